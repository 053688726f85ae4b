//! The kernel's launches: the axis in blocks, whose sums are scanned first where there are several.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{OP, summed};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{
    Bound, KernelKey, Launch, Launches, WINDOW_ALIGNMENT, Window, Words, check_count,
};
use crate::layout::{Layout, SliceRange, Strides, merge};
use crate::ops::plan::{self, ENOUGH_INVOCATIONS, HARD_INVOCATIONS};
use crate::ops::ranges::{self, Area};
use crate::road::Problem;
use crate::road::window::Limits;
use crate::shape::Dims;

/// Elements of a block that one invocation goes through, at most: 64 runs of 64, which is also how many sums are added
/// one after the other.
const MOST: usize = 4096;
const RUN: usize = 64;
/// Elements that are worth an invocation: of software adapters, of hardware across lines.
const LEAST: usize = 64;
const LEAST_HARD: usize = 16;
/// Elements of a block, where the axis goes far; with fewer its sums would be as many as its elements.
const LEAST_FAR: usize = 8;
/// Steps of a software adapter from row to row of what its caches do not hold: with more of them pages and lines are gone
/// before its next invocations come by (4096 x 4096 on lavapipe: 8 120, 16 150 to 230, 32 220 to 270, 128 310 to 420 ms).
const FAR_STEPS: usize = 16;
/// Invocations that a software adapter is given.
const SOFT_INVOCATIONS: usize = 1024;
/// Invocations of a workgroup, of one that shares a block, and what hardware has share one.
const WORKGROUP: u64 = 64;
const SHARED: usize = 256;
const LANES: [usize; 3] = [16, 64, 256];
/// Steps of a line up to which one invocation has it.
const FEW_STEPS: usize = 8;
/// Steps of each lane, at least, where lanes share a block.
const TURNS: usize = 4;
/// Neighbours of a load.
const UNIT: usize = 4;
/// Ranks that kernels are made for; lower ones are filled up, higher ones are exact.
const RANKS: [usize; 4] = [1, 2, 3, 6];

/// Whether a block of an axis with such steps in memory is beyond a binding.
pub(super) fn is_far(capabilities: &Capabilities, size: usize, steps: [usize; 2]) -> bool {
    let step = steps[0].max(steps[1]);
    most_bound(capabilities, step) < size.min(LEAST_FAR)
}

/// Elements of an axis with such a step that a binding holds: of the widest dtype, so that all devices with the same limits
/// add up alike.
fn most_bound(capabilities: &Capabilities, step: usize) -> usize {
    // What is left is for the window's ends and for neighbours of a line.
    let limit = capabilities.indexed_bytes() - WINDOW_ALIGNMENT;
    (limit as usize / 2 / (step.max(1) * size_of::<f64>())).max(1)
}

/// What is scanned, or what comes out: a line for each element of `dims` without the axis.
#[derive(Clone)]
struct Side {
    operand: usize,
    dtype: DType,
    /// In elements from the start of the operand.
    offset: usize,
    strides: Strides,
}

/// A scan of lines.
struct Scan {
    /// The axis is the last or, where lines are neighbours, the last but one.
    dims: Dims,
    are_columns: bool,
    from: Side,
    to: Side,
}

impl Scan {
    fn axis(&self) -> usize {
        self.dims.len() - 1 - usize::from(self.are_columns)
    }
}

/// How the axis is cut.
#[derive(Clone, Copy)]
struct Blocks {
    unit: usize,
    lanes: usize,
    /// Elements of the axis.
    length: usize,
    count: usize,
}

/// What a launch makes.
#[derive(Clone)]
enum Target {
    /// The sum of each block, here in scratch.
    Sums(u64),
    /// Running sums; with what the blocks up to each one sum to, here in scratch.
    Running(Option<u64>),
}

struct Planner<'a> {
    op: &'static str,
    capabilities: &'a Capabilities,
    scratch: usize,
    /// Bytes of scratch that are taken.
    taken: u64,
    launches: Launches,
}

pub(super) fn launches(
    axis: usize,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
) -> Result<Launches> {
    let [x] = &problem.inputs[..] else {
        return Ok(Launches::new());
    };
    let out = problem.output;
    let layouts = [x.layout, out.layout];
    let mut first: SmallVec<[SliceRange; 6]> = smallvec![(..).into(); axis];
    first.push(0.into());
    let lines = [layouts[0].slice(&first)?, layouts[1].slice(&first)?];
    let mut merged = merge(&[&lines[0], &lines[1]]);
    let steps = layouts.map(|layout| layout.strides()[axis]);
    let are_columns = merged.strides[1]
        .last()
        .is_some_and(|&step| step < steps[1])
        && merged.dims.last().is_some_and(|&size| size > 1);
    let at = merged.dims.len() - usize::from(are_columns);
    merged.dims.insert(at, x.layout.shape()[axis]);
    let mut side = |which: usize, dtype: DType| {
        merged.strides[which].insert(at, steps[which]);
        Side {
            operand: which,
            dtype,
            offset: layouts[which].offset(),
            strides: merged.strides[which].clone(),
        }
    };
    let scan = Scan {
        from: side(0, x.dtype),
        to: side(1, out.dtype),
        dims: merged.dims,
        are_columns,
    };
    let mut planner = Planner {
        op: OP,
        capabilities,
        scratch: problem.inputs.len() + 1,
        taken: 0,
        launches: Launches::new(),
    };
    planner.scan(&scan)?;
    Ok(planner.launches)
}

/// Running sums of `[lines, size]` counts (u32), for another op: from there to there, with what follows in scratch to work in.
pub(in crate::ops) fn running(
    op: &'static str,
    capabilities: &Capabilities,
    dims: [usize; 2],
    [from, to]: [Area; 2],
    scratch: Area,
) -> Result<Launches> {
    let side = |area: Area| Side {
        operand: area.operand,
        dtype: DType::U32,
        offset: area.offset as usize / size_of::<u32>(),
        strides: Layout::contiguous(&dims[..]).strides().into(),
    };
    let scan = Scan {
        dims: dims[..].into(),
        are_columns: false,
        from: side(from),
        to: side(to),
    };
    let mut planner = Planner {
        op,
        capabilities,
        scratch: scratch.operand,
        taken: scratch.offset,
        launches: Launches::new(),
    };
    planner.scan(&scan)?;
    Ok(planner.launches)
}

impl Planner<'_> {
    fn scan(&mut self, scan: &Scan) -> Result<()> {
        let blocks = self.blocks(scan);
        if blocks.count == 1 {
            return self.launch(scan, blocks, Target::Running(None));
        }
        let mut dims = scan.dims.clone();
        dims[scan.axis()] = blocks.count;
        let dtype = scan.to.dtype;
        let bytes = (dims.iter().product::<usize>() * dtype.size()) as u64;
        let mut area = || {
            let area = self.taken;
            self.taken += bytes.next_multiple_of(WINDOW_ALIGNMENT);
            area
        };
        let (sums, running) = (area(), area());
        let side = |area: u64| Side {
            operand: self.scratch,
            dtype,
            offset: area as usize / dtype.size(),
            strides: Layout::contiguous(&dims[..]).strides().into(),
        };
        let of_blocks = Scan {
            from: side(sums),
            to: side(running),
            dims: dims.clone(),
            are_columns: scan.are_columns,
        };
        self.launch(scan, blocks, Target::Sums(sums))?;
        self.scan(&of_blocks)?;
        self.launch(scan, blocks, Target::Running(Some(running)))
    }

    fn blocks(&self, scan: &Scan) -> Blocks {
        let (axis, last) = (scan.axis(), scan.dims.len() - 1);
        let size = scan.dims[axis];
        let lines = scan.dims.iter().product::<usize>() / size;
        let sides = [&scan.from, &scan.to];
        let is_whole = |side: &&Side| {
            let mut outer = side.strides[..last].iter();
            side.strides[last] == 1
                && side.offset.is_multiple_of(UNIT)
                && outer.all(|step| step % UNIT as isize == 0)
        };
        let unit = match scan.dims[last].is_multiple_of(UNIT) && sides.iter().all(is_whole) {
            true => UNIT,
            false => 1,
        };
        let step = sides.map(|side| side.strides[axis].unsigned_abs());
        let bound = most_bound(self.capabilities, step[0].max(step[1]));
        let is_software = plan::is_software(self.capabilities);
        let are_columns = scan.are_columns;
        let of_lines = if are_columns { lines / unit } else { lines };
        let (lanes, wanted, least) = match (is_software, are_columns) {
            (true, _) => (1, SOFT_INVOCATIONS, LEAST),
            (false, true) => (1, ENOUGH_INVOCATIONS, LEAST_HARD),
            (false, false) if size / unit <= FEW_STEPS => (1, 1, LEAST_HARD),
            (false, false) => {
                let steps = size / unit;
                let enough = LANES.into_iter().find(|lanes| steps <= TURNS * lanes);
                let lanes = enough.unwrap_or(SHARED);
                (lanes, HARD_INVOCATIONS / lanes, TURNS * lanes * unit)
            }
        };
        let bytes = lines * size * scan.to.dtype.size();
        let most = match is_software && are_columns && bytes > plan::SOFT_CACHE_BYTES {
            true => FAR_STEPS.min(bound),
            false => (MOST / RUN * lanes * unit).max(MOST).min(bound),
        };
        let parts = wanted.div_ceil(of_lines).min(size.div_ceil(least));
        let length = size.div_ceil(parts.max(1)).min(most);
        // Whole steps of all lanes, where one binding has room for them.
        let whole = if are_columns { lanes } else { lanes * unit };
        let length = match length.next_multiple_of(whole) {
            length if length <= most => length,
            _ => (length / whole * whole).max(whole.min(length)),
        };
        let (unit, lanes) = match are_columns || length.is_multiple_of(unit) {
            true => (unit, lanes),
            false => (1, lanes),
        };
        Blocks {
            unit,
            lanes,
            length,
            count: size.div_ceil(length),
        }
    }

    fn launch(&mut self, scan: &Scan, blocks: Blocks, target: Target) -> Result<()> {
        let (axis, last) = (scan.axis(), scan.dims.len() - 1);
        let size = scan.dims[axis];
        let unit = blocks.unit;
        // Groups: a block of a line, or of neighbouring lines.
        let mut dims = scan.dims.clone();
        dims[axis] = blocks.count;
        let state_unit = if scan.are_columns { unit } else { 1 };
        dims[last] /= state_unit;
        let state_bytes = scan.to.dtype.size() * state_unit;
        // First elements of the places that groups reach, without those of the axis.
        let reach = |side: &Side, groups: &Range<usize>| {
            let mut strides = side.strides.clone();
            let step = std::mem::replace(&mut strides[axis], 0);
            strides[last] *= state_unit as isize;
            let places = ranges::reach(&dims, side.offset, &strides, groups);
            let bounds = ranges::bounds(&dims, groups);
            let [first, end] = [bounds[axis][0], bounds[axis][1] + 1]
                .map(|block| (block * blocks.length).min(size) as isize);
            let ends = [first * step, (end - 1) * step];
            let neighbours = state_unit as isize - 1;
            let places =
                places.start + ends[0].min(ends[1])..places.end + ends[0].max(ends[1]) + neighbours;
            ranges::window(&places, side.dtype.size())
        };
        let state = |area: u64, groups: &Range<usize>| {
            let bytes = state_bytes as u64;
            Window::around(area + groups.start as u64 * bytes..area + groups.end as u64 * bytes)
        };
        // What comes before a block is that many groups back.
        let back = if scan.are_columns { dims[last] } else { 1 };
        let windows = |groups: &Range<usize>| -> SmallVec<[Window; 3]> {
            let from = reach(&scan.from, groups);
            match target {
                Target::Sums(area) => smallvec![from, state(area, groups)],
                Target::Running(None) => smallvec![from, reach(&scan.to, groups)],
                Target::Running(Some(area)) => {
                    let before = groups.start.saturating_sub(back)..groups.end;
                    smallvec![from, reach(&scan.to, groups), state(area, &before)]
                }
            }
        };
        let of_group = (blocks.length * state_unit) as f64;
        let bytes = of_group * (scan.from.dtype.size() + scan.to.dtype.size()) as f64;
        let limits = Limits::new(self.capabilities, 4.0 * of_group, bytes);
        let fits = |groups: &Range<usize>| {
            let windows = windows(groups);
            windows
                .iter()
                .all(|window| window.bytes <= limits.binding_bytes)
        };
        let all = 0..dims.iter().product();
        for groups in ranges::ranges(self.op, &dims, all, limits.elements, fits)? {
            check_count(self.op, self.launches.len() + 1)?;
            let windows = windows(&groups);
            let key = Name {
                element: scan.from.dtype,
                target: &target,
                unit,
                are_columns: scan.are_columns,
                lanes: blocks.lanes,
                rank: RANKS
                    .into_iter()
                    .find(|&rank| rank >= dims.len())
                    .unwrap_or(dims.len()),
            }
            .key();
            // Positions count in what is loaded at once.
            let position = |place: usize, size: usize, window: &Window| {
                (place as u32).wrapping_sub((window.offset / (size * unit) as u64) as u32)
            };
            let operand = |side: &Side, window: &Window| {
                position(side.offset / unit, side.dtype.size(), window)
            };
            let out = match target {
                Target::Sums(area) => self.state_place(area, state_bytes, &windows[1]),
                Target::Running(_) => operand(&scan.to, &windows[1]),
            };
            let before = match target {
                Target::Running(Some(area)) => self.state_place(area, state_bytes, &windows[2]),
                _ => 0,
            };
            let along = if scan.are_columns { 1 } else { unit };
            let count = groups.len() as u64;
            let mut words: Words = smallvec![
                groups.start as u32,
                groups.end as u32,
                operand(&scan.from, &windows[0]),
                out,
                before,
                back as u32,
                (size / along) as u32,
                blocks.length.div_ceil(along) as u32,
            ];
            let filled = plan::filled(&dims, 1, &RANKS);
            words.extend(ranges::size_words(&filled));
            for side in [&scan.from, &scan.to] {
                let of_unit = |(at, &step): (usize, &isize)| match at == last {
                    true => step,
                    false => step / unit as isize,
                };
                let steps: Strides = side.strides.iter().enumerate().map(of_unit).collect();
                words.push(steps[axis] as u32);
                let mut strides = steps.clone();
                strides[axis] *= blocks.length.div_ceil(along) as isize;
                let strides = plan::filled(&strides, 0, &RANKS);
                words.extend(strides.iter().map(|&step| step as u32));
            }
            let operands = [
                Some(scan.from.operand),
                Some(match target {
                    Target::Sums(_) => self.scratch,
                    Target::Running(_) => scan.to.operand,
                }),
                Some(self.scratch),
            ];
            let operands = operands.into_iter().flatten().zip(&windows);
            let per_workgroup = match blocks.lanes {
                1 => WORKGROUP,
                lanes => (SHARED / lanes) as u64,
            };
            self.launches.push(Launch {
                kernel: key,
                operands: operands
                    .map(|(operand, &window)| Bound {
                        operand,
                        window: Some(window),
                    })
                    .collect(),
                texels: smallvec![],
                dispatches: smallvec![plan::dispatch(
                    self.op,
                    words,
                    count,
                    per_workgroup,
                    self.capabilities.max_workgroups,
                )?],
                flops: count as f64 * of_group * 2.0,
                bytes: count as f64 * bytes,
            });
        }
        Ok(())
    }

    /// Of group 0 in a window of scratch.
    fn state_place(&self, area: u64, state_bytes: usize, window: &Window) -> u32 {
        let bytes = state_bytes as u64;
        ((area / bytes) as u32).wrapping_sub((window.offset / bytes) as u32)
    }
}

/// Everything that makes a kernel another one.
struct Name<'a> {
    element: DType,
    target: &'a Target,
    unit: usize,
    are_columns: bool,
    lanes: usize,
    rank: usize,
}

impl Name<'_> {
    fn key(&self) -> KernelKey {
        let target = match self.target {
            Target::Sums(_) => "sums",
            Target::Running(None) => "first",
            Target::Running(Some(_)) => "later",
        };
        let values = [
            ("element", self.element.name().into()),
            ("accumulator", summed(self.element).name().into()),
            ("target", target.into()),
            ("unit", (self.unit as u32).into()),
            ("columns", u32::from(self.are_columns).into()),
            ("lanes", (self.lanes as u32).into()),
            ("rank", (self.rank as u32).into()),
        ];
        let rank = self.rank as u32;
        KernelKey {
            template: "scan",
            values: values.into_iter().collect(),
            bindings: if target == "later" { 3 } else { 2 },
            words: 8 + (rank - 1) + 2 * (rank + 1),
        }
    }
}

pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    let mut all = Vec::new();
    let targets = [
        Target::Sums(0),
        Target::Running(None),
        Target::Running(Some(0)),
    ];
    let lanes = std::iter::once(1).chain(LANES);
    let shapes = lanes.flat_map(|lanes| [(lanes, false), (lanes, true)]);
    for (lanes, are_columns) in shapes.filter(|&(lanes, are_columns)| lanes == 1 || !are_columns) {
        for &element in DType::ALL {
            for target in &targets {
                for unit in [1, UNIT] {
                    let ranks = RANKS.into_iter().filter(|&rank| rank > 1 || !are_columns);
                    all.extend(ranks.map(|rank| {
                        Name {
                            element,
                            target,
                            unit,
                            are_columns,
                            lanes,
                            rank,
                        }
                        .key()
                    }));
                }
            }
        }
    }
    all
}
