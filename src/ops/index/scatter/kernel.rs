//! The kernel's launches.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{Change, Scatter};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{
    Bound, KernelKey, Launch, Launches, WINDOW_ALIGNMENT, Window, Words, check_count,
};
use crate::layout::{Layout, Merged, Strides};
use crate::ops::plan::{self, ENOUGH_INVOCATIONS, HARD_INVOCATIONS};
use crate::ops::ranges;
use crate::road::window::Limits;
use crate::road::{Operand, Problem};
use crate::shape::Dims;

/// Turns of the kernel's loop: llvmpipe ends loops at 65,535.
const LONGEST_LOOP: usize = 32 << 10;
/// Invocations of a workgroup; those that look through the index together.
const WORKGROUP: u64 = 64;
const SHARED: usize = 256;
/// Fewer lines than that with an index each, of so many entries, are launches of their own on hardware, so that workgroups
/// share the index of each.
const APART_LINES: usize = 32;
const APART_ENTRIES: usize = 4096;

/// What the kernel sees, of the output, the index and the source, in units that it changes at once.
pub(super) struct Walk {
    op: &'static str,
    /// Of the lines.
    dims: Dims,
    strides: SmallVec<[Strides; 3]>,
    offsets: [usize; 3],
    /// Strides along the axis.
    axes: [isize; 3],
    /// Entries of the output's axis, and of the source's.
    size: usize,
    count: usize,
    element_bytes: usize,
    element: &'static str,
    change: Change,
    signed: bool,
    /// The operands of launches.
    operands: [usize; 3],
}

impl Walk {
    pub(super) fn new(
        op: &Scatter,
        problem: &Problem<'_>,
        [index, source]: [&Operand<'_>; 2],
    ) -> Result<Self> {
        let seen = op.seen(problem.output.layout, index.layout, source.layout)?;
        let [out, named, given] = &seen.layouts;
        let lines = [op.lines(out)?, op.lines(named)?, op.lines(given)?];
        let Merged {
            mut dims,
            mut strides,
        } = plan::merged(&[&lines[0], &lines[1], &lines[2]]);
        let mut offsets = lines.each_ref().map(Layout::offset);
        let mut axes = [
            seen.stride,
            named.strides()[op.axis],
            given.strides()[op.axis],
        ];
        let dtype = source.dtype;
        let (mut element, mut element_bytes) = (number(dtype), dtype.size());
        if op.way.change == Change::Set {
            // Rows of neighbours are moved in units as wide as all steps allow.
            let last = dims.len() - 1;
            let unit = match [0, 1, 2].map(|which: usize| strides[which][last]) {
                [1, 0, 1] => {
                    let steps = [0, 2].into_iter().flat_map(|which: usize| {
                        let outer = strides[which][..last].iter().copied();
                        outer.chain([offsets[which] as isize, axes[which]])
                    });
                    ranges::unit(element_bytes, dims[last], steps)
                }
                _ => 1,
            };
            dims[last] /= unit;
            for which in [0, 2] {
                strides[which] = ranges::widened(&strides[which], unit);
                offsets[which] /= unit;
                axes[which] /= unit as isize;
            }
            element_bytes *= unit;
            element = ranges::moved(element_bytes);
        }
        let inputs = problem.inputs.len();
        Ok(Self {
            op: op.way.op,
            dims,
            strides,
            offsets,
            axes,
            size: seen.size,
            count: seen.layouts[0].shape()[op.axis],
            element_bytes,
            element,
            change: op.way.change,
            signed: index.dtype == DType::I32,
            operands: [inputs, inputs - 2, inputs - 1],
        })
    }

    fn element_bytes(&self) -> [usize; 3] {
        [self.element_bytes, 4, self.element_bytes]
    }

    /// What lines and entries of the axis reach of an operand.
    fn window(&self, which: usize, lines: &Range<usize>, entries: &Range<usize>) -> Window {
        let places = ranges::reach(&self.dims, self.offsets[which], &self.strides[which], lines);
        let [first, last] = [entries.start, entries.end - 1].map(|j| j as isize * self.axes[which]);
        ranges::window(
            &(places.start + first.min(last)..places.end + first.max(last)),
            self.element_bytes()[which],
        )
    }

    /// Launches for lines, then parts of the source's axis in order, then windows of the output.
    pub(super) fn launches(&self, capabilities: &Capabilities) -> Result<Launches> {
        let size = self.element_bytes as f64;
        let limits = Limits::new(capabilities, 2.0, 3.0 * size + 4.0);
        let limit = limits.binding_bytes;
        let steps =
            [1, 2].map(|which| self.axes[which].unsigned_abs() * self.element_bytes()[which]);
        let step_bytes = steps[0].max(steps[1]).max(1);
        let reach = limit as usize / (2 * step_bytes);
        let each = self.count.min(LONGEST_LOOP).min(reach.max(1));
        // Later parts may begin at other places of their windows, which are that much larger then.
        let slack = if each < self.count {
            WINDOW_ALIGNMENT
        } else {
            0
        };
        let fits = |lines: &Range<usize>| {
            let windows = [1, 2].map(|which| self.window(which, lines, &(0..each)));
            windows.iter().all(|window| window.bytes + slack <= limit)
        };
        let all: usize = self.dims.iter().product();
        let mut launches = Launches::new();
        let mut most = (limits.elements / each).max(1);
        let is_apart = all < APART_LINES && self.count >= APART_ENTRIES && !self.has_one_index();
        if is_apart && !plan::is_software(capabilities) {
            most = 1;
        }
        for lines in ranges::ranges(self.op, &self.dims, 0..all, most, fits)? {
            let out = self.window(0, &lines, &(0..self.size));
            for start in (0..self.count).step_by(each) {
                let entries = start..(start + each).min(self.count);
                let mut at = out.offset;
                while at < out.end() {
                    let bytes = limit.min(out.end() - at);
                    let window = Window { offset: at, bytes };
                    check_count(self.op, launches.len() + 1)?;
                    launches.push(self.launch(&lines, &entries, window, capabilities)?);
                    at += bytes;
                }
            }
        }
        Ok(launches)
    }

    /// Whether all lines have one.
    fn has_one_index(&self) -> bool {
        self.strides[1].iter().all(|&stride| stride == 0)
    }

    fn launch(
        &self,
        lines: &Range<usize>,
        entries: &Range<usize>,
        out: Window,
        capabilities: &Capabilities,
    ) -> Result<Launch> {
        let bytes = self.element_bytes();
        let windows = [
            out,
            self.window(1, lines, entries),
            self.window(2, lines, entries),
        ];
        let first = |which: usize| {
            let base = windows[which].offset / bytes[which] as u64;
            (self.offsets[which] as u32).wrapping_sub(base as u32)
        };
        // As many invocations as keep the adapter busy: each walks all of a line's index. A software adapter is busy with one.
        let is_software = plan::is_software(capabilities);
        let is_shared = !is_software && (lines.len() == 1 || self.has_one_index());
        let wide = lines.len().next_multiple_of(SHARED);
        let (wanted, each) = match (is_software, is_shared) {
            (true, _) => (1, lines.len()),
            (false, false) => (ENOUGH_INVOCATIONS, lines.len()),
            (false, true) => (HARD_INVOCATIONS, wide),
        };
        let workgroup = if is_shared { SHARED as u64 } else { WORKGROUP };
        let parts = (wanted / each).clamp(1, self.size).next_power_of_two();
        // Where a line's own index begins: those who share it look there, whatever lines they have.
        let mut strides = self.strides.clone();
        let mut index_first = first(1);
        if is_shared {
            let place = ranges::reach(&self.dims, 0, &strides[1], lines).start;
            index_first = index_first.wrapping_add(place as u32);
            strides[1].fill(0);
        }
        let mut words: Words = smallvec![
            lines.start as u32,
            lines.end as u32,
            entries.start as u32,
            // An end of 2^32 would be none.
            entries.len() as u32,
            parts as u32,
            first(0),
            index_first,
            first(2),
            (out.bytes / bytes[0] as u64) as u32,
            self.size as u32,
        ];
        words.extend(self.axes.map(|stride| stride as u32));
        words.extend(ranges::size_words(&self.dims));
        let strides = strides.iter().flatten();
        words.extend(strides.map(|&stride| stride as u32));
        let bound = |which: usize| Bound {
            operand: self.operands[which],
            window: Some(windows[which]),
        };
        let added = (lines.len() * entries.len()) as f64;
        // Each invocation goes through the index, or those of a workgroup do together.
        let walks = (each * parts) as f64 / if is_shared { SHARED as f64 } else { 1.0 };
        let walked = walks * entries.len() as f64;
        Ok(Launch {
            kernel: key(
                (self.element, self.change),
                self.signed,
                self.dims.len() as u32,
                is_shared,
            ),
            operands: smallvec![bound(1), bound(2), bound(0)],
            texels: smallvec![],
            dispatches: smallvec![plan::dispatch(
                self.op,
                words,
                (each * parts) as u64,
                workgroup,
                capabilities.max_workgroups,
            )?],
            flops: 2.0 * added + 8.0 * walked,
            bytes: added * (3.0 * bytes[0] as f64 + 4.0),
        })
    }
}

/// Halves are compared by their bits, which takes no f16 of a device's.
fn number(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16_bits",
        DType::BF16 => "bf16_bits",
        _ => dtype.name(),
    }
}

fn name(change: Change) -> &'static str {
    match change {
        Change::Add => "add",
        Change::Set => "set",
        Change::Max => "max",
        Change::Min => "min",
    }
}

fn key(
    (element, change): (&'static str, Change),
    signed: bool,
    rank: u32,
    shared: bool,
) -> KernelKey {
    let values = [
        ("shared", u32::from(shared).into()),
        ("element", element.into()),
        ("change", name(change).into()),
        ("signed", u32::from(signed).into()),
        ("rank", rank.into()),
    ];
    KernelKey {
        template: "index/scatter",
        values: values.into_iter().collect(),
        bindings: 3,
        words: 13 + 4 * rank - 1,
    }
}

pub(in crate::ops::index) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let numbers = [DType::F32, DType::I32, DType::U32, DType::F64];
    let extremes = numbers.into_iter().chain([DType::F16, DType::BF16]);
    let extremes =
        extremes.flat_map(|dtype| [Change::Max, Change::Min].map(|change| (number(dtype), change)));
    let sums = numbers.map(|dtype| (number(dtype), Change::Add));
    let set = ranges::MOVED.map(|element| (element, Change::Set));
    let mut all = Vec::new();
    for of in sums.into_iter().chain(extremes).chain(set) {
        for rank in 1..=ranks {
            let ways = [(false, false), (false, true), (true, false), (true, true)];
            all.extend(ways.map(|(signed, shared)| key(of, signed, rank, shared)));
        }
    }
    all
}
