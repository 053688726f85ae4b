//! Which kernels make a reduction: one pass, or two where reductions are long or outputs few; in
//! pieces what no binding holds.

use smallvec::{SmallVec, smallvec};

use super::kernel::{Name, State, Tree};
use super::shares::{MOST_STEPS, Pass, Shares, Source, TREE_INVOCATIONS};
use super::space::Space;
use super::{Along, Reduce, Reduction};
use crate::capabilities::{Capabilities, LONGEST_LAUNCH};
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{Bound, Launch, Launches, WINDOW_ALIGNMENT, Window, Words};
use crate::layout::{Layout, Strides};
use crate::ops::plan;
use crate::road::window::{self, Limits, MOST_ELEMENTS, Walked};
use crate::road::{Operand, Problem};
use crate::shape::Dims;

/// Kernels exist for these ranks; lower ones are filled up with sizes of 1, higher ones are exact.
pub(super) const KEPT_RANKS: [usize; 3] = [1, 6, 6];
pub(super) const REDUCED_RANKS: [usize; 3] = [1, 2, 6];

/// Steps that a lane of kernels without loops has at most. Software adapters go through a loop's body once more than there are
/// steps, and through what it does four at a time; on hardware states of several fields take longer to join than to make anew.
pub(super) const HELD: [usize; 5] = [1, 2, 4, 8, 16];

/// Whether hardware holds numbers in registers, those of several lanes too, and goes through them twice.
pub(super) fn is_held_by_lanes(what: Reduction, state: State) -> bool {
    matches!(what.kernel(), "exponential" | "moment") && state.accumulator == DType::F32
}

/// Steps that a kernel without loops is for at least: of one alone compilers see that an element is taken from itself, and
/// make 0 of what may be infinite.
pub(super) fn least_held(what: Reduction) -> usize {
    if what.kernel() == "moment" { 2 } else { 1 }
}

/// What becomes of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Result,
    State,
    /// A state, joined with the one that is there.
    Join,
}

/// Where a pass writes.
#[derive(Clone, Debug)]
struct Target {
    kind: Kind,
    bound: Bound,
    offset: usize,
    /// Those of outputs that are part of something larger.
    strides: Option<Strides>,
}

/// What the launches of one op have in common.
struct Planner<'a> {
    what: Reduction,
    element: DType,
    result: DType,
    state: State,
    /// Elements of one output, and how many steps along each dimension go over.
    length: usize,
    weights: Dims,
    capabilities: &'a Capabilities,
    /// The operand that scratch is.
    scratch: usize,
    launches: Launches,
}

pub(super) fn launches(
    op: &Reduce,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
) -> Result<Launches> {
    let [input] = &problem.inputs[..] else {
        return Ok(Launches::new());
    };
    let space = Space::of(input.layout, &op.along, op.what.has_order());
    let scratch = problem.inputs.len() + 1;
    let mut planner = Planner::new(op.what, input.dtype, &space, scratch, capabilities);
    let source = (Source::Values, Bound::whole(0));
    if planner.is_one_piece(&[*input, problem.output]) {
        let target = Target {
            kind: Kind::Result,
            bound: Bound::whole(1),
            offset: 0,
            strides: None,
        };
        planner.passes(&space, source, &target, 0, 0)?;
    } else {
        planner.in_pieces(&space)?;
        planner.results(space.outputs())?;
    }
    Ok(planner.launches)
}

/// The states of all outputs of the first operand, one after the other from the start of scratch.
pub(in crate::ops) fn states(
    (what, along): (Reduction, &Along),
    input: &Operand<'_>,
    scratch: usize,
    capabilities: &Capabilities,
) -> Result<Launches> {
    let space = Space::of(input.layout, along, what.has_order());
    let mut planner = Planner::new(what, input.dtype, &space, scratch, capabilities);
    let bytes = (space.outputs() * planner.state.bytes()) as u64;
    if bytes <= capabilities.max_binding_bytes && planner.is_one_piece(&[*input]) {
        let target = Target {
            kind: Kind::State,
            bound: Bound {
                operand: scratch,
                window: Some(Window::around(0..bytes)),
            },
            offset: 0,
            strides: None,
        };
        let source = (Source::Values, Bound::whole(0));
        planner.passes(&space, source, &target, 0, bytes)?;
    } else {
        planner.in_pieces(&space)?;
    }
    Ok(planner.launches)
}

impl<'a> Planner<'a> {
    fn new(
        what: Reduction,
        element: DType,
        space: &Space,
        scratch: usize,
        capabilities: &'a Capabilities,
    ) -> Self {
        Self {
            what,
            element,
            result: what.result(element),
            state: State::of(what, element),
            length: space.length(),
            weights: space.weights(),
            capabilities,
            scratch,
            launches: Launches::new(),
        }
    }

    /// Elements whose states, one of each invocation's, fit a binding.
    fn room(&self) -> usize {
        let states = self.capabilities.max_binding_bytes as usize / self.state.bytes();
        states.max(1).saturating_mul(MOST_STEPS)
    }

    /// Whether one launch may bind operands whole.
    fn is_one_piece(&self, operands: &[Operand<'_>]) -> bool {
        let elements = operands[0].layout.elements();
        let bytes = (elements * self.element.size()) as f64;
        self.capabilities.seconds(elements as f64, bytes) <= LONGEST_LAUNCH
            && elements <= MOST_ELEMENTS.min(self.room())
            && operands.iter().all(|operand| {
                operand.storage_bytes <= self.capabilities.max_binding_bytes
                    && u32::try_from(operand.layout.end()).is_ok()
            })
    }

    /// Pieces of the input each give states, which are joined in the order of the pieces, from the start
    /// of scratch on.
    fn in_pieces(&mut self, space: &Space) -> Result<()> {
        let outputs = space.outputs();
        let dims: Dims = space.kept.iter().chain(&space.reduced).copied().collect();
        let strides = space.kept_strides.iter().chain(&space.reduced_strides);
        let strides: Strides = strides.copied().collect();
        let mut placed: Strides = Layout::contiguous(&space.kept[..]).strides().into();
        placed.extend(space.reduced.iter().map(|_| 0));
        let walked = [
            Walked {
                storage: 0,
                element_bytes: self.element.size(),
                offset: space.offset,
                strides: &strides,
            },
            Walked {
                storage: self.scratch,
                element_bytes: self.state.bytes(),
                offset: 0,
                strides: &placed,
            },
        ];
        let mut limits = Limits::new(self.capabilities, 1.0, self.element.size() as f64);
        limits.elements = limits.elements.min(self.room());
        let parts_from = (outputs * self.state.bytes()) as u64;
        let kept = space.kept.len();
        for piece in window::pieces(&dims, &walked, limits) {
            let part = Space {
                kept: piece.dims[..kept].into(),
                kept_strides: space.kept_strides.clone(),
                reduced: piece.dims[kept..].into(),
                reduced_strides: space.reduced_strides.clone(),
                offset: piece.offsets[0],
            };
            let start = &piece.start[kept..];
            let bound = |at: usize, operand| Bound {
                operand,
                window: piece.bindings[piece.slots[at]].window,
            };
            let target = Target {
                kind: if start.iter().all(|&start| start == 0) {
                    Kind::State
                } else {
                    Kind::Join
                },
                bound: bound(1, self.scratch),
                offset: piece.offsets[1],
                strides: Some(placed[..kept].into()),
            };
            let first = start
                .iter()
                .zip(&self.weights)
                .map(|(start, weight)| start * weight)
                .sum();
            self.passes(
                &part,
                (Source::Values, bound(0, 0)),
                &target,
                first,
                parts_from,
            )?;
        }
        Ok(())
    }

    /// The states of all outputs at the start of scratch become results.
    fn results(&mut self, outputs: usize) -> Result<()> {
        let parts_from = (outputs * self.state.bytes()) as u64;
        let strides = [1];
        let walked = [(self.scratch, self.state.bytes()), (1, self.result.size())].map(
            |(storage, element_bytes)| Walked {
                storage,
                element_bytes,
                offset: 0,
                strides: &strides,
            },
        );
        let limits = Limits::new(self.capabilities, 1.0, self.state.bytes() as f64);
        for piece in window::pieces(&[outputs], &walked, limits) {
            let bound = |at: usize, operand| Bound {
                operand,
                window: piece.bindings[piece.slots[at]].window,
            };
            let mut states = Space::of_states(piece.dims[0], 1);
            states.offset = piece.offsets[0];
            let target = Target {
                kind: Kind::Result,
                bound: bound(1, 1),
                offset: piece.offsets[1],
                strides: None,
            };
            let source = (Source::States, bound(0, self.scratch));
            self.passes(&states, source, &target, 0, parts_from)?;
        }
        Ok(())
    }

    /// The passes that bring a space, whose outputs' elements count from `first`, to its target; states
    /// on the way lie in scratch from a byte on.
    fn passes(
        &mut self,
        space: &Space,
        source: (Source, Bound),
        target: &Target,
        first: usize,
        parts_from: u64,
    ) -> Result<()> {
        let pass = Pass {
            capabilities: self.capabilities,
            element: self.element,
            state: self.state,
            space,
            source: source.0,
            offset: target.offset,
            is_placed: target.strides.is_some(),
        };
        let shares = pass.shares();
        // Outputs that are written by units cannot be placed one by one at the same time.
        let is_placed = target.strides.is_some() && !shares.along_reduced;
        if shares.parts() == 1 && !is_placed {
            return self.launch(space, source, target, &shares, first);
        }
        let (outputs, parts) = (space.outputs(), shares.parts());
        let from = parts_from.next_multiple_of(WINDOW_ALIGNMENT);
        let bytes = (outputs * parts * self.state.bytes()) as u64;
        let bound = Bound {
            operand: self.scratch,
            window: Some(Window::around(from..from + bytes)),
        };
        let on_the_way = Target {
            kind: Kind::State,
            bound,
            offset: 0,
            strides: None,
        };
        self.launch(space, source, &on_the_way, &shares, first)?;
        let mut states = Space::of_states(outputs, parts);
        if target.strides.is_some() {
            states.kept = space.kept.clone();
            states.kept_strides = Layout::contiguous(&space.kept[..]).strides().into();
        }
        self.passes(&states, (Source::States, bound), target, 0, from + bytes)
    }

    fn launch(
        &mut self,
        space: &Space,
        (source, from): (Source, Bound),
        target: &Target,
        shares: &Shares,
        first: usize,
    ) -> Result<()> {
        let (unit, along_reduced) = (shares.unit, shares.along_reduced);
        let (kept_unit, reduced_unit) = if along_reduced { (1, unit) } else { (unit, 1) };
        let kept = plan::filled(&space.kept, 1, &KEPT_RANKS);
        let kept_strides = plan::filled(&space.kept_strides, 0, &KEPT_RANKS);
        let reduced = plan::filled(&space.reduced, 1, &REDUCED_RANKS);
        let reduced_strides = plan::filled(&space.reduced_strides, 0, &REDUCED_RANKS);
        let (groups, length) = (space.outputs() / kept_unit, space.length());
        let steps = length / reduced_unit;
        let mut words: Words = smallvec![
            groups as u32,
            shares.chunks as u32,
            shares.per_chunk as u32,
            steps as u32,
            (length % reduced_unit) as u32,
            (space.offset / unit) as u32,
            (target.offset / kept_unit) as u32,
            groups as u32,
        ];
        if target.strides.is_some() {
            words.push(u32::from(target.kind == Kind::Join));
        }
        words.extend(self.what.words(self.element, self.length));
        let may_share = match plan::is_software(self.capabilities) {
            true => shares.lanes == 1,
            false => is_held_by_lanes(self.what, self.state) && shares.tree != Tree::Columns,
        };
        let may_hold = may_share
            && source == Source::Values
            && shares.chunks == 1
            && target.strides.is_none()
            && steps >= least_held(self.what)
            && length.is_multiple_of(reduced_unit);
        // Of the others more is more to compile, and no faster. Exponentials are computed once so, instead of for each join.
        let most = match (self.what.kernel(), unit, along_reduced) {
            ("exponential", ..) | (_, 1, _) => 16,
            _ if !plan::is_software(self.capabilities) => 16,
            (_, _, false) => 8,
            (_, _, true) => 4,
        };
        let held = HELD
            .into_iter()
            .find(|&held| may_hold && steps.div_ceil(shares.lanes) <= held && held <= most);
        let name = Name {
            what: self.what,
            element: self.element,
            state: self.state,
            result: (target.kind == Kind::Result).then_some(self.result),
            source,
            unit: unit as u32,
            along_reduced,
            kept_rank: kept.len() as u32,
            reduced_rank: reduced.len() as u32,
            held: held.unwrap_or(0) as u32,
            lanes: shares.lanes as u32,
            tree: shares.tree,
            placed: target.strides.is_some(),
        };
        if name.has_positions() {
            words.push(first as u32);
            let filled = reduced.len() - space.reduced.len();
            words.extend((0..filled).map(|_| 0));
            let mut weights: Words = self.weights.iter().map(|&weight| weight as u32).collect();
            if let Some(last) = weights.last_mut() {
                *last *= reduced_unit as u32;
            }
            words.extend(weights);
        }
        sizes(&mut words, &kept, kept_unit);
        strides(&mut words, &kept_strides, unit, kept_unit > 1);
        if let Some(placed) = &target.strides {
            let placed = plan::filled(placed, 0, &KEPT_RANKS);
            strides(&mut words, &placed, 1, false);
        }
        sizes(&mut words, &reduced, reduced_unit);
        strides(&mut words, &reduced_strides, unit, reduced_unit > 1);
        let invocations = (groups * shares.chunks * shares.lanes) as u64;
        let per_workgroup = match shares.tree {
            Tree::None => 64,
            Tree::Rows | Tree::Columns => TREE_INVOCATIONS as u64,
        };
        let limit = self.capabilities.max_workgroups;
        let elements = (space.outputs() * length) as f64;
        let size = match source {
            Source::Values => self.element.size(),
            Source::States => self.state.bytes(),
        };
        let kernel = name.key(words.len());
        let op = self.what.name();
        self.launches.push(Launch {
            kernel,
            operands: smallvec![from, target.bound],
            texels: SmallVec::new(),
            dispatches: smallvec![plan::dispatch(
                op,
                words,
                invocations,
                per_workgroup,
                limit
            )?],
            flops: elements,
            bytes: elements * size as f64,
        });
        Ok(())
    }
}

/// All sizes but the outermost, the innermost in units.
fn sizes(words: &mut Words, dims: &Dims, unit: usize) {
    let inner = dims.len() - 1;
    let sizes = dims.iter().enumerate().skip(1);
    words.extend(sizes.map(|(at, &size)| (if at == inner { size / unit } else { size }) as u32));
}

/// Strides in units; to neighbours it is one unit.
fn strides(words: &mut Words, strides: &Strides, unit: usize, are_neighbours: bool) {
    let inner = strides.len() - 1;
    words.extend(strides.iter().enumerate().map(|(at, &stride)| {
        match are_neighbours && at == inner {
            true => 1,
            false => (stride / unit as isize) as u32,
        }
    }));
}
