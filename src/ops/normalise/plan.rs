//! Which kernels make norms: whole rows by one kernel, or the states of rows by a reduction, then all
//! elements by them.

use smallvec::{SmallVec, smallvec};

use super::Normalise;
use super::kernel::{Apply, Family, HARD_HELD, HELD, RANKS, ROW_RANKS, Rows, TOGETHER};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{Bound, Launch, Launches, Window, Words};
use crate::layout::{Layout, Strides, merge};
use crate::ops::plan::{self, AT_ONCE, ENOUGH_INVOCATIONS, ROW_LANES};
use crate::ops::reduce::states;
use crate::road::Problem;
use crate::road::window::{self, Limits, Walked};
use crate::shape::Dims;

/// Steps that one invocation goes through up to three times, of one row or of all that it has: below the turns after which
/// llvmpipe ends loops.
const MOST_STEPS: usize = 16 << 10;
/// Rows, in units, from which on a software adapter is busy; hardware with a workgroup a row.
const SOFT_ROWS: usize = 32;
const HARD_SHARED_ROWS: usize = 512;
/// Steps of a row on hardware up to which one invocation has it, where they are neighbours.
const ALONE: usize = 4;
/// Up to which it has one, however few rows there are.
const FEW: usize = 16;
/// Steps of a row up to which a workgroup has it, however few rows there are.
const LONG: usize = 4096;
/// Rows, in units, that give a software adapter enough workgroups of 64; with fewer they have 8.
const MANY_ROWS: usize = 4096;
/// Rows, in units, from which on a software adapter's invocations take several, where there is a weight or bias.
const TOGETHER_ROWS: usize = 256;
/// Rows one after the other that one invocation goes down with the states of its columns, which are more to load than
/// a row is: on software adapters, whose loads are what counts, many of eight columns, where enough invocations are left.
const LEAST_EACH: u32 = 4;
const MOST_EACH: u32 = 16;
const BUSY: u32 = 1024;
/// Steps that do not pay for more than one kernel.
const FEW_STEPS: usize = 1024;

pub(super) fn launches(
    op: &Normalise,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
) -> Result<Launches> {
    let planner = Planner {
        op,
        problem,
        capabilities,
        family: Family {
            what: op.what,
            element: problem.output.dtype,
            weight: op.weight,
            bias: op.bias,
        },
    };
    match planner.rows()? {
        Some(launch) => Ok(smallvec![launch]),
        None => planner.by_states(),
    }
}

struct Planner<'a, 'b> {
    op: &'a Normalise,
    problem: &'a Problem<'b>,
    capabilities: &'a Capabilities,
    family: Family,
}

impl Planner<'_, '_> {
    /// Elements, and the bytes that pass through the kernel.
    fn work(&self) -> (f64, f64) {
        let elements = self.problem.output.layout.elements() as f64;
        (
            elements * 32.0,
            elements * 2.0 * self.family.element.size() as f64,
        )
    }

    /// Elements of a row, in two halves, and epsilon, for sums of f64 in two parts.
    fn of_rows(&self) -> SmallVec<[u32; 4]> {
        let shape = self.problem.output.layout.shape();
        let length = self
            .op
            .along
            .axes
            .iter()
            .map(|&axis| shape[axis])
            .product::<usize>();
        let epsilon = self.op.epsilon as f32;
        let mut words: SmallVec<[u32; 4]> = smallvec![
            length as u32,
            (length as u64 >> 32) as u32,
            epsilon.to_bits()
        ];
        if self.family.is_double() {
            let rest = self.op.epsilon - f64::from(epsilon);
            words.push((rest as f32).to_bits());
        }
        words
    }

    /// One kernel for whole rows, where they have one dimension and there are enough of them.
    fn rows(&self) -> Result<Option<Launch>> {
        let (flops, bytes) = self.work();
        if !self.problem.fresh
            || !plan::is_one_launch(self.problem, self.capabilities, flops, bytes)
        {
            return Ok(None);
        }
        let operands = self.problem.inputs.iter().chain([&self.problem.output]);
        let layouts: SmallVec<[&Layout; 4]> = operands.map(|operand| operand.layout).collect();
        let part = |axes: &Dims| -> SmallVec<[Layout; 4]> {
            layouts.iter().map(|layout| layout.alone(axes)).collect()
        };
        let rows = part(&self.op.along.kept(layouts[0].rank()));
        // Weight and bias are the same for all rows.
        let mut kept = merge(&[&rows[0], &rows[rows.len() - 1]]);
        let columns = part(&self.op.along.axes);
        let reduced = merge(&columns.iter().collect::<SmallVec<[&Layout; 4]>>());
        let length: usize = reduced.dims.iter().product();
        let steps_of = |operand: usize| reduced.strides[operand].last().copied().unwrap_or(1);
        let shared = 1..layouts.len() - 1;
        if reduced.dims.len() > 1 || shared.clone().any(|operand| steps_of(operand) != 1) {
            return Ok(None);
        }
        let (x_step, out_step) = (steps_of(0), steps_of(layouts.len() - 1));
        let rank = ROW_RANKS.into_iter().find(|&rank| rank >= kept.dims.len());
        let added = rank.unwrap_or(kept.dims.len()) - kept.dims.len();
        for _ in 0..added {
            kept.dims.insert(0, 1);
            kept.strides
                .iter_mut()
                .for_each(|strides| strides.insert(0, 0));
        }
        let (unit, along_reduced) = self.unit(&layouts, &kept, (length, x_step, out_step));
        let inner = kept.dims.len() - 1;
        let groups = kept.dims.iter().product::<usize>() / if along_reduced { 1 } else { unit };
        let steps = if along_reduced { length / unit } else { length };
        let is_software = plan::is_software(self.capabilities);
        let lanes = match is_software {
            false if along_reduced && x_step == 1 && steps > ALONE => {
                let mut lanes = ROW_LANES.into_iter();
                lanes.find(|lanes| steps <= AT_ONCE * lanes).unwrap_or(256)
            }
            _ => 1,
        };
        let enough = match (is_software, lanes) {
            (true, _) => groups >= SOFT_ROWS || groups * steps <= FEW_STEPS,
            (false, 1) => groups >= ENOUGH_INVOCATIONS || steps <= FEW,
            (false, _) => groups >= HARD_SHARED_ROWS || steps <= LONG,
        };
        // States come first then, and after them all elements in the order of memory.
        let exceeds_caches = bytes > plan::SOFT_CACHE_BYTES as f64;
        if is_software && !along_reduced && exceeds_caches {
            return Ok(None);
        }
        if !enough || steps > MOST_STEPS * lanes {
            return Ok(None);
        }
        let in_units = |value: isize| (value / unit as isize) as u32;
        let mut words: Words = smallvec![groups as u32, steps as u32];
        words.extend(self.of_rows());
        words.push((layouts[0].offset() / unit) as u32);
        let offset = |there: bool, operand: usize| match (there, along_reduced) {
            (false, _) => 0,
            (true, true) => (layouts[operand].offset() / unit) as u32,
            (true, false) => layouts[operand].offset() as u32,
        };
        words.push(offset(self.op.weight, 1));
        words.push(offset(self.op.bias, 1 + usize::from(self.op.weight)));
        words.extend(kept.dims.iter().enumerate().skip(1).map(|(at, &size)| {
            (if at == inner && !along_reduced {
                size / unit
            } else {
                size
            }) as u32
        }));
        for (strides, step) in [(&kept.strides[0], x_step), (&kept.strides[1], out_step)] {
            words.push(match along_reduced && unit > 1 {
                true => 1,
                false => in_units(step),
            });
            words.extend(strides.iter().enumerate().map(|(at, &stride)| {
                match at == inner && !along_reduced && unit > 1 {
                    true => 1,
                    false => in_units(stride),
                }
            }));
        }
        let shares = is_software && self.family.is_shared() && groups >= TOGETHER_ROWS;
        let each = match shares && steps <= MOST_STEPS / TOGETHER as usize {
            true => TOGETHER,
            false => 1,
        };
        let invocations = groups.div_ceil(each as usize) * lanes;
        let workgroup = match (lanes, is_software) {
            (1, true) if invocations < MANY_ROWS => 8,
            (1, _) => 64,
            _ => 256,
        };
        let may_hold = self.op.what.is_held(self.family.element, is_software);
        let fits = |held: usize| is_software || held * unit <= HARD_HELD;
        let mut held = HELD.into_iter().filter(|&held| may_hold && fits(held));
        let held = held.find(|&held| steps.div_ceil(lanes) <= held);
        let kernel = self.family.rows(Rows {
            unit: unit as u32,
            along_reduced,
            kept_rank: kept.dims.len() as u32,
            lanes: lanes as u32,
            workgroup,
            held: held.unwrap_or(0) as u32,
            each,
        });
        let limit = self.capabilities.max_workgroups;
        let name = self.op.what.name();
        Ok(Some(Launch {
            kernel,
            operands: self.problem.bindings(),
            texels: SmallVec::new(),
            dispatches: smallvec![plan::dispatch(
                name,
                words,
                invocations as u64,
                u64::from(workgroup),
                limit
            )?],
            flops,
            bytes,
        }))
    }

    /// Whether a load takes eight neighbours: software adapters load word by word, however wide those are. On hardware
    /// eight halves keep too many registers: layer_norm of f16 ran at 0.25 of a copy by eights, at 0.55 by fours (H200).
    fn is_wide(&self) -> bool {
        let has_words = match self.family.element {
            DType::F32 => self.capabilities.int64,
            element => element.size() == 2,
        };
        has_words && plan::is_software(self.capabilities)
    }

    /// How many neighbours a load takes, and whether they lie in a row.
    fn unit(
        &self,
        layouts: &[&Layout],
        kept: &crate::layout::Merged,
        (length, x_step, out_step): (usize, isize, isize),
    ) -> (usize, bool) {
        let units = if self.is_wide() { &[8, 4][..] } else { &[4] };
        for &unit in units {
            let is_whole = |stride: &isize| stride % unit as isize == 0;
            let inputs = &layouts[..layouts.len() - 1];
            let are_aligned = inputs
                .iter()
                .all(|layout| layout.offset().is_multiple_of(unit));
            let strides = &kept.strides;
            let all = || strides.iter().all(|strides| strides.iter().all(is_whole));
            if are_aligned && (x_step, out_step) == (1, 1) && length.is_multiple_of(unit) && all() {
                return (unit, true);
            }
            let inner = kept.dims.len() - 1;
            let outer = || {
                strides
                    .iter()
                    .all(|strides| strides[..inner].iter().all(is_whole))
            };
            if layouts[0].offset().is_multiple_of(unit)
                && strides.iter().all(|strides| strides[inner] == 1)
                && kept.dims[inner].is_multiple_of(unit)
                && is_whole(&x_step)
                && is_whole(&out_step)
                && outer()
            {
                return (unit, false);
            }
        }
        (1, true)
    }

    /// The states of all rows into scratch, then all elements by them.
    fn by_states(&self) -> Result<Launches> {
        let (problem, state) = (self.problem, self.family.state());
        let output = problem.inputs.len();
        let x = &problem.inputs[0];
        let mut launches = states(
            (self.op.what.reduction(), &self.op.along),
            x,
            output + 1,
            self.capabilities,
        )?;
        // Where the state of each element's row is.
        let rows = Layout::contiguous(self.op.along.of_one(x.layout.shape()));
        let of_states = rows.broadcast_to(x.layout.shape())?;
        let operands = problem.inputs.iter().chain([&problem.output]);
        let layouts: SmallVec<[&Layout; 5]> = operands
            .clone()
            .map(|operand| operand.layout)
            .chain([&of_states])
            .collect();
        let merged = plan::merged(&layouts);
        let sizes: SmallVec<[usize; 5]> = operands
            .map(|operand| operand.dtype.size())
            .chain([state.bytes()])
            .collect();
        let (flops, bytes) = self.work();
        let one = problem.fresh && plan::is_one_launch(problem, self.capabilities, flops, bytes);
        let scratch = (rows.elements() * state.bytes()) as u64;
        if one && scratch <= self.capabilities.max_binding_bytes {
            let offsets: SmallVec<[usize; 5]> = layouts.iter().map(|l| l.offset()).collect();
            let mut bindings = problem.bindings();
            bindings.push(Bound {
                operand: output + 1,
                window: Some(Window::around(0..scratch)),
            });
            launches.push(self.apply(&merged.dims, &merged.strides, &offsets, bindings, false)?);
            return Ok(launches);
        }
        let walked: SmallVec<[Walked<'_>; 5]> = (0..layouts.len())
            .map(|operand| Walked {
                storage: operand,
                element_bytes: sizes[operand],
                offset: layouts[operand].offset(),
                strides: &merged.strides[operand],
            })
            .collect();
        let each = 2.0 * self.family.element.size() as f64;
        let limits = Limits::new(self.capabilities, 32.0, each);
        for piece in window::pieces(&merged.dims, &walked, limits) {
            let (dims, strides) = piece.without_single(&walked);
            let bindings = piece.bindings;
            launches.push(self.apply(&dims, &strides, &piece.offsets, bindings, true)?);
        }
        Ok(launches)
    }

    /// All elements of a box. The operands are x, weight, bias, output, states.
    fn apply(
        &self,
        dims: &[usize],
        strides: &[Strides],
        offsets: &[usize],
        bindings: SmallVec<[Bound; 4]>,
        strided: bool,
    ) -> Result<Launch> {
        let dims = plan::filled(dims, 1, &RANKS);
        let strides: SmallVec<[Strides; 5]> = strides
            .iter()
            .map(|strides| plan::filled(strides, 0, &RANKS))
            .collect();
        let output = strides.len() - 2;
        let inner = |operand: usize| strides[operand].last().copied().unwrap_or(0);
        let along_reduced = inner(output + 1) == 0;
        // Along a row weights are neighbours and there is one state; else the other way round.
        let fits = inner(0) == 1
            && inner(output) == 1
            && inner(output + 1) == isize::from(!along_reduced)
            && (1..output).all(|operand| inner(operand) == isize::from(along_reduced));
        let walked: SmallVec<[usize; 5]> = (0..strides.len())
            .filter(|&operand| strided || operand != output)
            .collect();
        let steps: SmallVec<[Strides; 5]> = walked
            .iter()
            .map(|&operand| strides[operand].clone())
            .collect();
        let offsets: SmallVec<[usize; 5]> =
            walked.iter().map(|&operand| offsets[operand]).collect();
        // Steps of one state in one invocation: along a row, or from row to row.
        let last = dims.len() - 1;
        let axis = if along_reduced {
            Some(last)
        } else {
            last.checked_sub(1)
        };
        let axis = axis.filter(|&axis| strides[output + 1][axis] == 0);
        let units: &[usize] = match (fits, axis) {
            (false, _) => &[],
            (true, Some(_)) if self.is_wide() => &[8, 4],
            (true, _) => &[4],
        };
        let walk = plan::Walk::new(&dims, &steps, &offsets, units, false);
        let axis = axis.filter(|_| walk.vector > 1);
        let is_software = plan::is_software(self.capabilities);
        let mut words: Words = smallvec![0];
        words.extend(self.of_rows());
        let count = match axis {
            Some(axis) if axis == last => {
                let along = dims[axis] as u32 / walk.vector;
                let groups = along.div_ceil(4);
                words.extend([along, groups]);
                walk.count / along * groups
            }
            Some(axis) => {
                let along = dims[axis] as u32;
                let each = match is_software && walk.vector == 8 {
                    true => (walk.count / BUSY).clamp(LEAST_EACH, MOST_EACH),
                    false => LEAST_EACH,
                };
                let groups = along.div_ceil(each);
                words.extend([along, groups, each]);
                walk.count / along * groups
            }
            None => walk.count,
        };
        words[0] = count;
        let per_workgroup = if axis.is_some() { 256 } else { 1024 };
        words.extend_from_slice(&walk.offsets);
        words.extend_from_slice(&walk.dims);
        let kernel = self.family.apply(Apply {
            vector: walk.vector,
            along_reduced: walk.vector == 1 || along_reduced,
            rank: walk.rank,
            grouped: axis.is_some(),
            backwards: axis.is_some() && !is_software,
            strided,
        });
        let elements = dims.iter().product::<usize>() as f64;
        let limit = self.capabilities.max_workgroups;
        let name = self.op.what.name();
        let dispatch = plan::dispatch(name, words, u64::from(count), per_workgroup, limit)?;
        Ok(Launch {
            kernel,
            operands: bindings,
            texels: SmallVec::new(),
            dispatches: smallvec![dispatch],
            flops: elements * 32.0,
            bytes: elements * 2.0 * self.family.element.size() as f64,
        })
    }
}
