//! Elements by their place: the plan and the loops of ops that copy what is inside of something and
//! write one value elsewhere.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::plan::{self, PER_THREAD, WORKGROUP};
use super::ranges;
use crate::capabilities::Capabilities;
use crate::cpu::{self, parallel};
use crate::error::Result;
use crate::launch::{Bound, KernelKey, Launch, Launches, Window, Words};
use crate::layout::{Layout, SliceRange, Strides, merge};
use crate::road::window::Limits;
use crate::shape::{Dims, Shape};

/// What is inside.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Inside {
    /// `from[d]` and `count[d]` indices after it.
    Box,
    /// Column - row of the last two dimensions is at most the diagonal, or at least.
    Lower(isize),
    Upper(isize),
    /// The number in the input is the last index; then these words are written.
    Hot([u32; 2], bool),
}

/// A new tensor as the kernel sees it.
pub(super) struct Positions {
    op: &'static str,
    inside: Inside,
    dims: Dims,
    /// Of [`Inside::Box`], along each dimension.
    boxed: SmallVec<[Range<usize>; 6]>,
    /// The input from the first element inside.
    offset: usize,
    strides: Strides,
    element_bytes: usize,
    input_bytes: usize,
    value: [u32; 2],
}

impl Positions {
    /// A box of `shape` that begins at `from`, copied from `input`.
    pub(super) fn boxed(
        op: &'static str,
        shape: &[usize],
        from: &[usize],
        input: &Layout,
        element_bytes: usize,
        value: [u32; 2],
    ) -> Self {
        let (mut dims, mut boxed) = (Dims::new(), SmallVec::<[Range<usize>; 6]>::new());
        let mut strides = Strides::new();
        for (axis, &size) in shape.iter().enumerate() {
            let range = from[axis]..from[axis] + input.shape()[axis];
            let stride = input.strides()[axis];
            if size == 1 && range.len() == 1 {
                continue;
            }
            // Rows that are inside from end to end follow each other.
            let outer = (dims.last_mut(), boxed.last_mut(), strides.last_mut());
            match outer {
                (Some(rows), Some(outer), Some(step))
                    if range == (0..size) && *step == stride * size as isize =>
                {
                    *rows *= size;
                    *outer = outer.start * size..outer.end * size;
                    *step = stride;
                }
                _ => {
                    dims.push(size);
                    boxed.push(range);
                    strides.push(stride);
                }
            }
        }
        if dims.is_empty() {
            dims.push(1);
            boxed.push(0..1);
            strides.push(0);
        }
        let last = dims.len() - 1;
        let mut offset = input.offset();
        let mut unit = 1;
        if strides[last] == 1 {
            let edges = [boxed[last].start as isize, boxed[last].len() as isize];
            let outer = strides[..last].iter().copied();
            let steps = outer.chain(edges).chain([offset as isize]);
            unit = ranges::unit(element_bytes, dims[last], steps);
            dims[last] /= unit;
            boxed[last] = boxed[last].start / unit..boxed[last].end / unit;
            offset /= unit;
            strides = ranges::widened(&strides, unit);
        }
        Self {
            op,
            inside: Inside::Box,
            dims,
            boxed,
            offset,
            strides,
            element_bytes: element_bytes * unit,
            input_bytes: element_bytes * unit,
            value,
        }
    }

    /// A triangle of the last two dimensions; 0 elsewhere.
    pub(super) fn triangle(
        op: &'static str,
        inside: Inside,
        input: &Layout,
        element_bytes: usize,
    ) -> Self {
        let outer = input.rank() - 2;
        let batch = merge(&[&input.leading(outer)]);
        let mut dims = batch.dims;
        let mut strides: Strides = batch.strides.into_iter().flatten().collect();
        dims.extend_from_slice(&input.shape()[outer..]);
        strides.extend_from_slice(&input.strides()[outer..]);
        Self {
            op,
            inside,
            dims,
            boxed: SmallVec::new(),
            offset: input.offset(),
            strides,
            element_bytes,
            input_bytes: element_bytes,
            value: [0; 2],
        }
    }

    /// A new last dimension, `hot` where its index is the number there.
    pub(super) fn hot(
        op: &'static str,
        index: &Layout,
        classes: usize,
        (hot, signed): ([u32; 2], bool),
        element_bytes: usize,
    ) -> Self {
        let merged = merge(&[index]);
        let mut dims = merged.dims;
        let mut strides: Strides = merged.strides.into_iter().flatten().collect();
        dims.push(classes);
        strides.push(0);
        Self {
            op,
            inside: Inside::Hot(hot, signed),
            dims,
            boxed: SmallVec::new(),
            offset: index.offset(),
            strides,
            element_bytes,
            input_bytes: 4,
            value: [0; 2],
        }
    }

    /// Launches that write every element, from one operand to another.
    pub(super) fn launches(
        &self,
        [input, output]: [usize; 2],
        capabilities: &Capabilities,
    ) -> Result<Launches> {
        let bytes = (self.element_bytes + self.input_bytes) as f64;
        let limits = Limits::new(capabilities, 1.0, bytes);
        let fits = |range: &Range<usize>| {
            let windows = [self.input_window(range), self.output_window(range)];
            windows
                .iter()
                .all(|window| window.bytes <= limits.binding_bytes)
        };
        let all = 0..self.dims.iter().product();
        let ranges = ranges::ranges(self.op, &self.dims, all, limits.elements, fits)?;
        let ranges = ranges.into_iter();
        ranges
            .map(|range| self.launch(&range, [input, output], capabilities))
            .collect()
    }

    fn output_window(&self, range: &Range<usize>) -> Window {
        ranges::window(
            &(range.start as isize..range.end as isize),
            self.element_bytes,
        )
    }

    /// What elements of a range read; something where none of them does.
    fn input_window(&self, range: &Range<usize>) -> Window {
        let (mut low, mut high) = (self.offset as isize, self.offset as isize);
        let bounds = ranges::bounds(&self.dims, range);
        for (axis, (&[first, last], &stride)) in bounds.iter().zip(&self.strides).enumerate() {
            let ends = match self.boxed.get(axis) {
                None => [first, last],
                Some(inside) if first >= inside.end || last < inside.start => [0, 0],
                Some(inside) => [first.max(inside.start), last.min(inside.end - 1)]
                    .map(|index| index - inside.start),
            };
            let [first, last] = ends.map(|index| index as isize * stride);
            low += first.min(last);
            high += first.max(last);
        }
        ranges::window(&(low..high + 1), self.input_bytes)
    }

    fn launch(
        &self,
        range: &Range<usize>,
        [input, output]: [usize; 2],
        capabilities: &Capabilities,
    ) -> Result<Launch> {
        let windows = [self.input_window(range), self.output_window(range)];
        let bases = [
            windows[0].offset / self.input_bytes as u64,
            windows[1].offset / self.element_bytes as u64,
        ];
        let before: isize = self
            .boxed
            .iter()
            .zip(&self.strides)
            .map(|(range, stride)| range.start as isize * stride)
            .sum();
        let mut words: Words = smallvec![
            range.start as u32,
            range.end as u32,
            bases[1] as u32,
            (self.offset as isize - before - bases[0] as isize) as u32,
            self.value[0],
            self.value[1],
        ];
        match self.inside {
            Inside::Box => {}
            Inside::Lower(diagonal) | Inside::Upper(diagonal) => {
                let most = i32::MAX as isize;
                words.push(diagonal.clamp(-most, most) as i32 as u32);
            }
            Inside::Hot(hot, _) => words.extend(hot),
        }
        for (axis, (&size, &stride)) in self.dims.iter().zip(&self.strides).enumerate() {
            words.extend([size as u32, stride as u32]);
            if let Some(inside) = self.boxed.get(axis) {
                words.extend([inside.start as u32, inside.len() as u32]);
            }
        }
        let bound = |operand, window| Bound {
            operand,
            window: Some(window),
        };
        let steps = range.len() / ranges::lanes(self.element_bytes) + 2;
        let element = ranges::moved(self.element_bytes);
        Ok(Launch {
            kernel: key(element, self.inside, self.dims.len() as u32),
            operands: smallvec![bound(input, windows[0]), bound(output, windows[1])],
            texels: smallvec![],
            dispatches: smallvec![plan::dispatch(
                self.op,
                words,
                steps as u64,
                WORKGROUP * u64::from(PER_THREAD),
                capabilities.max_workgroups,
            )?],
            flops: range.len() as f64,
            bytes: (range.len() * (self.element_bytes + self.input_bytes)) as f64,
        })
    }
}

fn key(element: &'static str, inside: Inside, rank: u32) -> KernelKey {
    let (name, signed, words) = match inside {
        Inside::Box => ("box", false, 6 + 4 * rank),
        Inside::Lower(_) => ("lower", false, 7 + 2 * rank),
        Inside::Upper(_) => ("upper", false, 7 + 2 * rank),
        Inside::Hot(_, signed) => ("hot", signed, 8 + 2 * rank),
    };
    let values = [
        ("inside", name.into()),
        ("element", element.into()),
        ("signed", u32::from(signed).into()),
        ("rank", rank.into()),
        ("per_thread", PER_THREAD.into()),
    ];
    KernelKey {
        template: "position",
        values: values.into_iter().collect(),
        bindings: 2,
        words,
    }
}

pub(super) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = Vec::new();
    for element in ranges::MOVED {
        for rank in 1..=ranks {
            all.push(key(element, Inside::Box, rank));
            // Of elements, not of units of several.
            if element == "vec4<u32>" {
                continue;
            }
            for signed in [false, true] {
                all.push(key(element, Inside::Hot([0; 2], signed), rank));
            }
            if rank > 1 {
                all.push(key(element, Inside::Lower(0), rank));
                all.push(key(element, Inside::Upper(0), rank));
            }
        }
    }
    all
}

/// Calls `work(starts, columns, elements)` for parts of rows that together are all of `out`, on all
/// cores; `starts` are the row's places in layouts of one element a row.
pub(super) fn rows<T: Send, const LAYOUTS: usize>(
    out: &mut [T],
    columns: usize,
    layouts: [&Layout; LAYOUTS],
    work: impl Fn([isize; LAYOUTS], Range<usize>, &mut [T]) + Sync + Send,
) {
    let walk = parallel::Walk::new(&layouts);
    parallel::pieces(out, |start, mut piece| {
        let (first, mut column) = (start / columns, start % columns);
        let rows = (start + piece.len()).div_ceil(columns) - first;
        walk.blocks(first, rows, &mut |block| {
            for outer in 0..block.rows {
                for inner in 0..block.columns {
                    let count = (columns - column).min(piece.len());
                    let (part, rest) = std::mem::take(&mut piece).split_at_mut(count);
                    let starts = std::array::from_fn(|of| block.grids[of].at(outer, inner));
                    work(starts, column..column + count, part);
                    (piece, column) = (rest, 0);
                }
            }
        });
    });
}

/// The part of a view that has this shape and begins at `from`.
pub(super) fn part(of: &Layout, from: &[usize], shape: &Shape) -> Result<Layout> {
    let ranges = from.iter().zip(shape.iter());
    let ranges: SmallVec<[SliceRange; 6]> = ranges
        .map(|(&from, &size)| (from..from + size).into())
        .collect();
    of.slice(&ranges)
}

/// A part of a row: the columns inside from the input, whose column 0 is (or would be) at `start`,
/// unless these are there, and the value elsewhere.
pub(super) fn line<T: Copy>(
    out: &mut [T],
    columns: Range<usize>,
    inside: Range<usize>,
    input: Option<(&[T], isize, isize)>,
    value: T,
) {
    let first = inside.start.clamp(columns.start, columns.end);
    let end = inside.end.clamp(first, columns.end);
    let (before, rest) = out.split_at_mut(first - columns.start);
    let (copied, after) = rest.split_at_mut(end - first);
    before.fill(value);
    after.fill(value);
    let Some((input, start, stride)) = input else {
        return;
    };
    cpu::gather(input, start + first as isize * stride, stride, copied);
}
