//! Where values belong in sorted lines, by halves: each alone on GPUs, a few side by side on the CPU.

use std::ops::Range;

use smallvec::smallvec;

use super::cpu::lines_of;
use super::keys::Keyed;
use crate::capabilities::{Capabilities, DeviceKind};
use crate::cpu::{parallel, vectorised};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::launch::{KernelKey, Launches, WINDOW_ALIGNMENT, Words, check_count};
use crate::layout::SliceRange;
use crate::ops::contiguous::by_rows;
use crate::ops::create::filled;
use crate::ops::plan::{PER_THREAD, WORKGROUP};
use crate::ops::ranges::{self, Area};
use crate::road::window::Limits;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

const OP: &str = "search_sorted";

/// Values that the CPU looks for side by side, so that their loads are under way together.
const TOGETHER: usize = 16;
/// Values that a thread takes at a time.
const PART: usize = 1024;
/// Elements for each value, of those that are in order, up to which both are gone through one after the other.
const MERGED: usize = 2;
/// Operations of a step.
const STEPS: f64 = 16.0;

/// Where a value belongs among elements that are equal to it: [`Tensor::search_sorted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SearchSide {
    /// Before them.
    Left,
    /// Behind them.
    Right,
}

impl Tensor {
    /// Where `values` belong in this tensor, whose lines along the last axis are in order (NumPy's and PyTorch's
    /// `searchsorted`), as u32: how many of a line's elements come before each value, without those that are equal to it or,
    /// with [`SearchSide::Right`], with them. Put in there, lines stay in order.
    ///
    /// A tensor of one axis takes values of any shape; `[.., n]` takes `[.., m]`, values of each line's own. The result has the
    /// values' shape. The order is [`Tensor::sort`]'s with the smallest first, but that -0 and 0 are equal: NaN, which equals
    /// NaN, is the largest. So results are the same on every device. Of lines that are not in order they are some number up
    /// to `n`.
    ///
    /// ```
    /// use orlop::{Device, SearchSide, Tensor};
    ///
    /// let device = Device::cpu();
    /// let edges = Tensor::from_slice(&device, &[0.0f32, 1.0, 1.0, 2.5], [4])?;
    /// let values = Tensor::from_slice(&device, &[1.0f32, -3.0, 9.0, 2.0], [2, 2])?;
    /// let left = edges.search_sorted(&values, SearchSide::Left)?;
    /// assert_eq!(left.to_vec::<u32>()?, [1, 0, 4, 3]);
    /// let right = edges.search_sorted(&values, SearchSide::Right)?;
    /// assert_eq!(right.to_vec::<u32>()?, [3, 0, 4, 3]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for values of another dtype; [`Error::ShapeMismatch`] where there are lines of several axes and
    /// values of others; [`Error::InvalidArgument`] of a scalar, and for lines of 2^32 elements or more; what any op can meet
    /// ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn search_sorted(&self, values: &Tensor, side: SearchSide) -> Result<Tensor> {
        let search = Search { side };
        let operands = [self, values];
        if self.elements() == 0 && values.elements() > 0 {
            // Nothing comes before any.
            road::check(&search, &operands, None)?;
            let home = road::home(OP, &operands)?;
            let shape = values.shape().clone();
            return filled(OP, &home, shape, Scalar::Integer(0), DType::U32);
        }
        let only = search.only_line(operands)?;
        let operands = [only.as_ref().unwrap_or(self), values];
        let lines = by_rows(&search, &operands, operands[0], |_| {
            operands[0].is_contiguous()
        })?;
        // No binding has what another one has.
        let is_apart = values.is_contiguous() && !values.shares_storage(&lines);
        let values = by_rows(&search, &operands, values, |_| is_apart)?;
        road::run(&search, &[&lines, &values])
    }
}

struct Search {
    side: SearchSide,
}

impl Search {
    /// The line that all are where one is repeated: it is neither copied nor bound so often.
    fn only_line(&self, operands: [&Tensor; 2]) -> Result<Option<Tensor>> {
        let [lines, _] = operands;
        let outer = lines.rank().saturating_sub(1);
        let sizes = lines.shape().iter().zip(lines.layout().strides());
        let is_one = sizes
            .take(outer)
            .all(|(&size, &stride)| size == 1 || stride == 0);
        if outer == 0 || !is_one || lines.elements() == 0 {
            return Ok(None);
        }
        road::check(self, &operands, None)?;
        let first = vec![SliceRange::from(0); outer];
        lines.slice(&first[..]).map(Some)
    }
}

/// Elements of a line, and values that belong into it; 1 of none.
fn sizes(lines: &Shape, values: &Shape) -> [usize; 2] {
    let size = lines.last().copied().unwrap_or(0);
    let of_line = match lines.rank() {
        1 => values.elements(),
        _ => values.last().copied().unwrap_or(0),
    };
    [size, of_line.max(1)]
}

impl Op for Search {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [lines, values] = inputs else {
            return Err(Error::invalid(OP, "takes sorted lines and values"));
        };
        if lines.dtype != values.dtype {
            return Err(Error::dtype_mismatch(OP, lines.dtype, values.dtype));
        }
        let (sorted, shape) = (lines.layout.shape(), values.layout.shape());
        let Some((&size, outer)) = sorted.split_last() else {
            return Err(Error::invalid(OP, "a scalar has no line"));
        };
        let has_lines = match (outer, shape.split_last()) {
            ([], _) => true,
            (outer, Some((_, of_values))) => outer == of_values,
            _ => false,
        };
        if !has_lines {
            let rule = "values have all sizes of the lines but the last one, or there is one line";
            return Err(Error::shape_mismatch(OP, sorted, shape, rule));
        }
        if u32::try_from(size).is_err() {
            let why = format!("lines of {size} elements are more than u32 count");
            return Err(Error::invalid(OP, why));
        }
        road::check_walk(OP, shape)?;
        Ok((shape.clone(), DType::U32))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        _output: DType,
    ) -> Option<String> {
        let [lines, values] = inputs else { return None };
        let (dtype, elements) = (lines.dtype, values.layout.elements());
        let layouts = [lines.layout, values.layout];
        ranges::missing(capabilities, dtype, &layouts, elements).or_else(|| {
            let [size, _] = sizes(lines.layout.shape(), values.layout.shape());
            let is_kernels = capabilities.kind != DeviceKind::Cpu;
            let bytes = capabilities.indexed_bytes() - 2 * WINDOW_ALIGNMENT;
            (is_kernels && size as u64 > bytes / dtype.size() as u64).then(|| {
                format!("bindings of {bytes} bytes are too small for lines of {size} elements")
            })
        })
    }

    /// Of ranges of values, with all of the lines that they belong into.
    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let [lines, values] = &problem.inputs[..] else {
            return Ok(Launches::new());
        };
        let [size, of_line] = sizes(lines.layout.shape(), values.layout.shape());
        let count = values.layout.elements();
        let element = lines.dtype.size();
        let area = |operand: usize, offset: usize| Area {
            operand,
            offset: (offset * element) as u64,
        };
        let areas = [
            area(0, lines.layout.offset()),
            area(1, values.layout.offset()),
            area(2, 0),
        ];
        let windows = |range: &Range<usize>| {
            let of_range = range.start / of_line..(range.end - 1) / of_line + 1;
            [
                areas[0].window(&of_range, size * element),
                areas[1].window(range, element),
                areas[2].window(range, 4),
            ]
        };
        let steps = (size as f64 + 1.0).log2().ceil() + 1.0;
        let (flops, bytes) = (steps * STEPS, steps * element as f64 + 8.0);
        let limits = Limits::new(capabilities, flops, bytes);
        let fits = |range: &Range<usize>| {
            let mut windows = windows(range).into_iter();
            windows.all(|window| window.bytes <= limits.binding_bytes)
        };
        let mut launches = Launches::new();
        let dims = [count / of_line, of_line];
        for range in ranges::ranges(OP, &dims, 0..count, limits.elements, fits)? {
            check_count(OP, launches.len() + 1)?;
            let windows = windows(&range);
            let words: Words = smallvec![
                range.start as u32,
                range.end as u32,
                areas[0].place(&windows[0], element),
                areas[1].place(&windows[1], element),
                areas[2].place(&windows[2], 4),
                size as u32,
                of_line as u32,
                u32::from(self.side == SearchSide::Right),
                0,
                1,
            ];
            launches.push(ranges::launch(
                (OP, key(lines.dtype), capabilities),
                areas.into_iter().zip(windows),
                words,
                (range.len() as u64, WORKGROUP * u64::from(PER_THREAD)),
                [flops, bytes].map(|of_value| of_value * range.len() as f64),
            )?);
        }
        Ok(launches)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [lines, values] = inputs else {
            return Ok(());
        };
        match lines.dtype {
            DType::F32 => self.typed::<f32>(lines, values, output),
            DType::F64 => self.typed::<f64>(lines, values, output),
            DType::F16 => self.typed::<half::f16>(lines, values, output),
            DType::BF16 => self.typed::<half::bf16>(lines, values, output),
            DType::I32 => self.typed::<i32>(lines, values, output),
            DType::U32 => self.typed::<u32>(lines, values, output),
            DType::Bool => self.typed::<u8>(lines, values, output),
        }
    }
}

impl Search {
    fn typed<T: Keyed>(
        &self,
        lines: &HostInput<'_>,
        values: &HostInput<'_>,
        output: &mut HostOutput<'_>,
    ) -> Result<()> {
        let [size, of_line] = sizes(lines.layout.shape(), values.layout.shape());
        let [mut room, mut spare] = [Vec::new(), Vec::new()];
        let lines = lines_of::<T>(OP, lines, &mut room)?;
        let values = lines_of::<T>(OP, values, &mut spare)?;
        let out = &mut output.elements::<u32>()[..values.len()];
        // Keys of elements before a value are below this one.
        let end = |x: T| x.key(true) + u64::from(self.side == SearchSide::Right);
        let steps = 1 + size.checked_ilog2().map_or(0, |steps| steps as usize);
        let is_much = values.len().saturating_mul(steps) > parallel::PARALLEL;
        let of_lines = values.chunks(of_line).zip(out.chunks_mut(of_line));
        let mut parts = of_lines.enumerate().flat_map(|(at, (values, out))| {
            let line = &lines[at * size..][..size];
            let parts = values.chunks(PART).zip(out.chunks_mut(PART));
            parts.map(move |(values, out)| (line, values, out))
        });
        // Short lines' values together.
        let together = (PART / of_line).max(1);
        let parts = std::iter::from_fn(|| {
            let several: Vec<_> = parts.by_ref().take(together).collect();
            (!several.is_empty()).then_some(several)
        });
        parallel::share(is_much, parts, |several| {
            vectorised(|| {
                for (line, values, out) in several {
                    // Of a few values all are found in one pass over the line.
                    let is_worth_it = values.len() == 1 || values.len() > 4 * TOGETHER;
                    let reached = is_worth_it.then(|| reach(line, values, end)).flatten();
                    let (before, part) = reached.unwrap_or((0, line));
                    if reached.is_some() && part.len() <= MERGED * values.len() {
                        merge(part, values, out, end);
                    } else {
                        let parts = values.chunks(TOGETHER).zip(out.chunks_mut(TOGETHER));
                        for (values, out) in parts {
                            search(part, values, out, end);
                        }
                    }
                    out.iter_mut().for_each(|out| *out += before);
                }
            });
        });
        Ok(())
    }
}

/// Of values that are in order those elements among which they belong, and how many come before these.
#[inline(always)]
fn reach<'a, T: Keyed>(
    line: &'a [T],
    values: &[T],
    end: impl Fn(T) -> u64,
) -> Option<(u32, &'a [T])> {
    let mut pairs = values.iter().zip(values.iter().skip(1));
    let are_in_order = pairs.all(|(&one, &next)| one.key(true) <= next.key(true));
    let (first, last) = values.first().zip(values.last()).filter(|_| are_in_order)?;
    let before = |&x: &T| line.partition_point(|&y| y.key(true) < end(x));
    let first = before(first);
    // Of a line that is not in order these may be anything.
    let reached = line.get(first..before(last))?;
    Some((first as u32, reached))
}

/// Counts elements before values that are in order, of a line with not many more.
#[inline(always)]
fn merge<T: Keyed>(line: &[T], values: &[T], out: &mut [u32], end: impl Fn(T) -> u64) {
    let mut before = 0;
    for (out, &x) in out.iter_mut().zip(values) {
        let end = end(x);
        while line.get(before).is_some_and(|y| y.key(true) < end) {
            before += 1;
        }
        *out = before as u32;
    }
}

/// Counts elements before a few values, without a branch that depends on them.
#[inline(always)]
fn search<T: Keyed>(line: &[T], values: &[T], out: &mut [u32], end: impl Fn(T) -> u64) {
    let mut ends = [0; TOGETHER];
    for (to, &x) in ends.iter_mut().zip(values) {
        *to = end(x);
    }
    let mut before = [0; TOGETHER];
    let mut left = line.len();
    while left > 0 {
        let half = left.div_ceil(2);
        // Loads by themselves, then what vectors compute.
        let mut given = [T::zeroed(); TOGETHER];
        for (given, &before) in given.iter_mut().zip(&before) {
            *given = line.get(before + half - 1).copied().unwrap_or(T::zeroed());
        }
        for ((before, &end), x) in before.iter_mut().zip(&ends).zip(given) {
            *before += half & usize::from(x.key(true) < end).wrapping_neg();
        }
        // As much as the longer part: behind the shorter one is nothing that comes before.
        left -= half;
    }
    for (out, before) in out.iter_mut().zip(before) {
        *out = before as u32;
    }
}

fn key(dtype: DType) -> KernelKey {
    let values = [
        ("element", dtype.name().into()),
        ("per_thread", PER_THREAD.into()),
    ];
    KernelKey {
        template: "sort/search",
        values: values.into_iter().collect(),
        bindings: 3,
        words: 10,
    }
}

pub(super) fn specialisations() -> Vec<KernelKey> {
    DType::ALL.iter().map(|&dtype| key(dtype)).collect()
}
