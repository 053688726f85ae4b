//! The kernels' launches: short lines at once, others by their keys' digits from the lowest to the highest.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::keys::bits;
use super::steps::{DIGITS, Source, Step, Target, Walk, all_passes, pass_key, whole_key};
use super::{Sort, Wanted};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{KernelKey, Launches, WINDOW_ALIGNMENT, Window, Words, check_count};
use crate::ops::plan;
use crate::ops::ranges::{self, Area, written};
use crate::ops::scan;
use crate::road::window::Limits;
use crate::road::{Operand, Problem};

/// Elements of a line that each of them is compared with.
const SHORT: usize = 64;
/// Elements of an invocation, of a workgroup that has a line or part of one in its memory (hardware).
const NEIGHBOURS: usize = 8;
pub(super) const THREADS: [usize; 2] = [64, 256];
const TILE: usize = NEIGHBOURS * THREADS[1];
/// Invocations that a software adapter is given, how many elements each has at least, and turns of its loops at most: llvmpipe
/// ends them at 65,535.
const SOFT_INVOCATIONS: usize = 256;
const LEAST: usize = 64;
const LONGEST_LOOP: usize = 32 << 10;
/// Workgroups of hardware that all lines are cut for.
const WORKGROUPS: usize = 2048;
/// Invocations of a workgroup that compares, and of one of software adapters in passes.
const WORKGROUP: usize = 256;
const SOFT_WORKGROUP: usize = 16;
/// Operations of an element, about: of a workgroup's line for each bit, of the walks of a pass.
const STEPS_OF_BIT: f64 = 32.0;
const COUNT_STEPS: f64 = 24.0;
const MOVE_STEPS: f64 = 64.0;

/// How lines are cut in passes.
#[derive(Clone, Copy)]
struct Blocks {
    is_shared: bool,
    /// Elements of a block, and blocks of a line.
    length: usize,
    count: usize,
}

impl Blocks {
    fn new(lines: usize, size: usize, capabilities: &Capabilities) -> Self {
        let is_shared = !plan::is_software(capabilities);
        let bytes = counted_bytes(capabilities) as usize;
        // What bindings hold: a block's elements, of 8 bytes at most, and a line's counts.
        let most = bytes / 8;
        let least = size.div_ceil((bytes / (4 * DIGITS)).max(1));
        let of_line = |all: usize| size.div_ceil(all.div_ceil(lines)).max(least);
        let length = match is_shared {
            // Whole tiles, or part of one.
            true => of_line(WORKGROUPS)
                .next_multiple_of(TILE)
                .min((most / TILE * TILE).max(TILE)),
            false => of_line(SOFT_INVOCATIONS).clamp(LEAST, LONGEST_LOOP),
        };
        let length = length.min(most).max(1);
        Blocks {
            is_shared,
            length,
            count: size.div_ceil(length),
        }
    }

    /// Bytes of the counts of a line.
    fn count_bytes(&self) -> u64 {
        (DIGITS * self.count * 4) as u64
    }
}

/// Bytes of what a launch binds, but for a window's ends.
fn counted_bytes(capabilities: &Capabilities) -> u64 {
    capabilities.indexed_bytes() - 2 * WINDOW_ALIGNMENT
}

/// How lines are sorted.
enum Way {
    /// Each element by itself.
    Rank,
    /// Each line by a workgroup of so many.
    Line(usize),
    Passes,
}

fn way(size: usize, dtype: DType, capabilities: &Capabilities) -> Way {
    let mut threads = THREADS.into_iter();
    let enough = threads.find(|threads| size <= NEIGHBOURS * threads);
    let is_bound = (size * dtype.size().max(4)) as u64 <= counted_bytes(capabilities);
    match enough {
        _ if size <= SHORT => Way::Rank,
        Some(threads) if is_bound && !plan::is_software(capabilities) => Way::Line(threads),
        _ => Way::Passes,
    }
}

/// Elements of a line that hardware sorts faster by themselves than in passes with all others: software adapters do not.
pub(super) fn tile(dtype: DType, capabilities: &Capabilities) -> Option<usize> {
    match way(TILE, dtype, capabilities) {
        Way::Line(_) => Some(TILE),
        Way::Rank | Way::Passes => (!plan::is_software(capabilities)).then_some(SHORT),
    }
}

/// What of a sort's passes bindings are too few or too small for, if they are.
pub(super) fn missing(sort: &Sort, x: &Operand<'_>, capabilities: &Capabilities) -> Option<String> {
    let [size, _] = sort.sizes(x.layout.shape());
    let is_kernels = capabilities.kind != DeviceKind::Cpu;
    if !is_kernels || !matches!(way(size, x.dtype, capabilities), Way::Passes) {
        return None;
    }
    let blocks = Blocks::new(1, size, capabilities);
    // Higher words of f64 are read at any place.
    let wide = match x.dtype {
        DType::F64 => size as u64 * 8,
        _ => 0,
    };
    let bytes = counted_bytes(capabilities);
    (blocks.count_bytes().max(wide) > bytes)
        .then(|| format!("bindings of {bytes} bytes are too small for lines of {size} elements"))
}

struct Planner<'a> {
    sort: &'a Sort,
    capabilities: &'a Capabilities,
    dtype: DType,
    lines: usize,
    /// Elements of a line that come in, and that come out.
    size: usize,
    kept: usize,
    x: Area,
    out: Area,
    scratch: usize,
    /// Bytes of scratch that are taken.
    taken: u64,
    launches: Launches,
}

pub(super) fn launches(
    sort: &Sort,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
) -> Result<Launches> {
    let [x] = &problem.inputs[..] else {
        return Ok(Launches::new());
    };
    let [size, kept] = sort.sizes(x.layout.shape());
    let area = |operand, offset: usize, dtype: DType| Area {
        operand,
        offset: (offset * dtype.size()) as u64,
    };
    let out = problem.output;
    let mut planner = Planner {
        sort,
        capabilities,
        dtype: x.dtype,
        lines: x.layout.elements() / size,
        size,
        kept,
        x: area(0, x.layout.offset(), x.dtype),
        out: area(1, out.layout.offset(), out.dtype),
        scratch: 2,
        taken: 0,
        launches: Launches::new(),
    };
    match way(size, x.dtype, capabilities) {
        Way::Rank => planner.whole(None)?,
        Way::Line(threads) => planner.whole(Some(threads))?,
        Way::Passes => planner.passes()?,
    }
    Ok(planner.launches)
}

impl Planner<'_> {
    /// Lines that kernels have in order at once: by an invocation for each element, or a workgroup of so many for each line.
    fn whole(&mut self, threads: Option<usize>) -> Result<()> {
        let (size, kept) = (self.size, self.kept);
        let element = self.dtype.size();
        let steps = match threads {
            Some(_) => bits(self.dtype) as f64 * STEPS_OF_BIT,
            None => size as f64 * 2.0,
        };
        let flops = size as f64 * steps;
        let bytes = (size * element + kept * 4) as f64;
        let limits = Limits::new(self.capabilities, flops, bytes);
        let (x, out) = (self.x, self.out);
        let windows =
            |lines: &Range<usize>| [x.window(lines, size * element), out.window(lines, kept * 4)];
        let fits = |lines: &Range<usize>| {
            let mut windows = windows(lines).into_iter();
            windows.all(|window| window.bytes <= limits.binding_bytes)
        };
        let all = 0..self.lines;
        let target = match self.sort.wanted {
            Wanted::Values => Target::Values,
            Wanted::Places { .. } => Target::Places,
        };
        for lines in ranges::ranges(self.sort.op, &[self.lines], all, limits.elements, fits)? {
            let windows = windows(&lines);
            let (per_line, per_workgroup) = match threads {
                Some(_) => (1, 1),
                None => (size, WORKGROUP),
            };
            let words = smallvec![
                (lines.start * per_line) as u32,
                (lines.end * per_line) as u32,
                self.x.place(&windows[0], element),
                self.out.place(&windows[1], 4),
                size as u32,
                kept as u32,
                self.sort.flip(self.dtype) as u32,
                u32::from(self.sort.has_equal_zeros()),
            ];
            let launch = Launched {
                key: whole_key(self.dtype, target, threads),
                bound: &[(x, windows[0]), (out, windows[1])],
                words,
                steps: lines.len() * per_line,
                per_workgroup,
                cost: [flops, bytes].map(|of_line| of_line * lines.len() as f64),
            };
            self.launch(launch)?;
        }
        Ok(())
    }

    /// Lines of any size: by each digit of keys two walks through their blocks.
    fn passes(&mut self) -> Result<()> {
        let blocks = Blocks::new(self.lines, self.size, self.capabilities);
        let passes = all_passes(self.dtype, self.sort.wanted);
        let bytes = self.lines as u64 * blocks.count_bytes();
        let counts = self.take(bytes);
        let sums = self.take(bytes);
        // What a pass reads the one before it wrote, so that two areas take turns; where all is kept the output is one of them.
        let is_out = self.kept == self.size;
        let count = self.lines * self.size;
        let mut areas: [Option<Area>; 2] = [None; 2];
        let mut given = self.x;
        let mut all = Vec::new();
        for (left, &step) in (0..passes.len()).rev().zip(&passes) {
            let goes_out = match step.target {
                Target::Values => true,
                Target::Places => left == 0 || is_out,
                Target::Keys => is_out && left.is_multiple_of(2),
                Target::Pairs => false,
            };
            let to = match (goes_out, step.target) {
                (true, _) => self.out,
                // Of f64, once.
                (false, Target::Places) => self.take((count * 4) as u64),
                (false, target) => {
                    let bytes = (count * target.bytes()) as u64;
                    *areas[left % 2].get_or_insert_with(|| self.take(bytes))
                }
            };
            all.push(Pass {
                step,
                blocks,
                given: std::mem::replace(&mut given, to),
                to,
                kept: if left == 0 { self.kept } else { self.size },
            });
        }
        let dims = [self.lines, DIGITS * blocks.count];
        let scratch = Area {
            operand: self.scratch,
            offset: self.taken,
        };
        for pass in &all {
            self.walk(pass, Walk::Count, counts)?;
            let (op, capabilities) = (self.sort.op, self.capabilities);
            let scanned = scan::running(op, capabilities, dims, [counts, sums], scratch)?;
            self.launches.extend(scanned);
            self.walk(pass, Walk::Move, sums)?;
        }
        Ok(())
    }

    fn take(&mut self, bytes: u64) -> Area {
        let offset = self.taken;
        self.taken += bytes.next_multiple_of(WINDOW_ALIGNMENT);
        Area {
            operand: self.scratch,
            offset,
        }
    }

    /// Elements of all lines that blocks of them have.
    fn elements(&self, blocks: &Blocks, groups: &Range<usize>) -> Range<usize> {
        let place = |group: usize| {
            let (line, block) = (group / blocks.count, group % blocks.count);
            (line * self.size, block * blocks.length)
        };
        let ((first, start), (last, block)) = (place(groups.start), place(groups.end - 1));
        first + start..last + (block + blocks.length).min(self.size)
    }

    /// What a pass reads of some blocks: elements, and what the one before it moved.
    fn sources(&self, pass: &Pass, groups: &Range<usize>) -> SmallVec<[(Area, Window); 2]> {
        let elements = self.elements(&pass.blocks, groups);
        let size = self.dtype.size();
        let source = pass.step.source;
        let given = || (pass.given, pass.given.window(&elements, source.bytes()));
        match source {
            Source::X => smallvec![(self.x, self.x.window(&elements, size))],
            Source::Keys | Source::Pairs => smallvec![given()],
            Source::Places => {
                let x = self.x.window(&pass.lines(groups), self.size * size);
                smallvec![(self.x, x), given()]
            }
        }
    }

    /// One walk of a pass through all blocks, which writes or reads what is counted.
    fn walk(&mut self, pass: &Pass, walk: Walk, counts: Area) -> Result<()> {
        let blocks = &pass.blocks;
        let of_block = blocks.length as f64;
        let (steps, bytes) = match walk {
            Walk::Count => (COUNT_STEPS, 4.0),
            Walk::Move => (MOVE_STEPS, 20.0),
        };
        let limits = Limits::new(self.capabilities, of_block * steps, of_block * bytes);
        let limit = limits.binding_bytes;
        let target_bytes = pass.step.target.bytes();
        let counted = |groups: &Range<usize>| {
            counts.window(&pass.lines(groups), blocks.count_bytes() as usize)
        };
        let fits = |groups: &Range<usize>| {
            let lines = pass.lines(groups).len() as u64;
            let written =
                (lines * pass.kept as u64 * target_bytes as u64).next_multiple_of(WINDOW_ALIGNMENT);
            let sources = self.sources(pass, groups);
            let mut windows = sources.iter().map(|(_, window)| window.bytes);
            windows.all(|bytes| bytes <= limit)
                && counted(groups).bytes <= limit
                && (lines == 1 || written + WINDOW_ALIGNMENT <= limit)
        };
        let dims = [self.lines, blocks.count];
        let all = 0..self.lines * blocks.count;
        for groups in ranges::ranges(self.sort.op, &dims, all, limits.elements, fits)? {
            let sources = self.sources(pass, &groups);
            let counts = (counts, counted(&groups));
            let lines = pass.lines(&groups);
            // One binding may not hold all that is written of a line.
            let written = match walk {
                Walk::Count => smallvec![0..0],
                Walk::Move => {
                    let all = lines.start * pass.kept..lines.end * pass.kept;
                    written(&all, limit as usize / target_bytes)
                }
            };
            for written in written {
                let mut bound = sources.clone();
                bound.push(counts);
                if walk == Walk::Move {
                    bound.push((pass.to, pass.to.window(&written, target_bytes)));
                }
                let place = |at: usize, bytes: usize| {
                    let (area, window) = &bound[at];
                    area.place(window, bytes)
                };
                let source = pass.step.source;
                let reads_x = matches!(source, Source::X | Source::Places);
                let given = sources.len() - 1;
                let words = smallvec![
                    groups.start as u32,
                    groups.end as u32,
                    self.size as u32,
                    blocks.length as u32,
                    blocks.count as u32,
                    pass.step.shift,
                    self.sort.flip(self.dtype) as u32,
                    u32::from(self.sort.has_equal_zeros()),
                    if reads_x {
                        place(0, self.dtype.size())
                    } else {
                        0
                    },
                    if source == Source::X {
                        0
                    } else {
                        place(given, source.bytes())
                    },
                    place(sources.len(), 4),
                    pass.kept as u32,
                    written.start as u32,
                    written.len() as u32,
                ];
                let launch = Launched {
                    key: pass_key(self.dtype, pass.step, walk, blocks.is_shared),
                    bound: &bound,
                    words,
                    steps: groups.len(),
                    per_workgroup: if blocks.is_shared { 1 } else { SOFT_WORKGROUP },
                    cost: [steps, bytes].map(|of_step| of_step * of_block * groups.len() as f64),
                };
                self.launch(launch)?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, launched: Launched<'_>) -> Result<()> {
        let op = self.sort.op;
        check_count(op, self.launches.len() + 1)?;
        self.launches.push(ranges::launch(
            (op, launched.key, self.capabilities),
            launched.bound.iter().copied(),
            launched.words,
            (launched.steps as u64, launched.per_workgroup as u64),
            launched.cost,
        )?);
        Ok(())
    }
}

/// What a launch is made of.
struct Launched<'a> {
    key: KernelKey,
    bound: &'a [(Area, Window)],
    words: Words,
    steps: usize,
    per_workgroup: usize,
    /// Operations and bytes.
    cost: [f64; 2],
}

/// A pass with what it reads and writes.
struct Pass {
    step: Step,
    blocks: Blocks,
    /// What the pass before moved, if there is one.
    given: Area,
    to: Area,
    /// Elements of a line that are written.
    kept: usize,
}

impl Pass {
    fn lines(&self, groups: &Range<usize>) -> Range<usize> {
        let blocks = self.blocks.count;
        groups.start / blocks..(groups.end - 1) / blocks + 1
    }
}
