//! New tensors in ranges of their row-major order, for kernels that work out where each element comes
//! from: pure functions of sizes and strides.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{Bound, KernelKey, Launch, WINDOW_ALIGNMENT, Window, Words, check_count};
use crate::layout::{Layout, Strides};
use crate::ops::plan;
use crate::road;

/// Splits elements `all` of `dims` into ranges of at most `most` elements that `fit`, in order: one launch of an op or more
/// for each. A single element is not asked whether it does.
///
/// # Errors
/// `TooLarge` for more than there may be launches.
pub(super) fn ranges(
    op: &'static str,
    dims: &[usize],
    all: Range<usize>,
    most: usize,
    fits: impl Fn(&Range<usize>) -> bool,
) -> Result<Vec<Range<usize>>> {
    let mut done = Vec::new();
    let mut left = Vec::from([all]);
    while let Some(range) = left.pop() {
        if range.len() <= 1 || (range.len() <= most && fits(&range)) {
            done.push(range);
            check_count(op, done.len())?;
            continue;
        }
        let cut = middle(dims, &range);
        left.extend([cut..range.end, range.start..cut]);
    }
    Ok(done)
}

/// About how many [`ranges`] there are of elements that lie so, in windows of at most `limit` bytes: those of what an axis
/// and the ones inside of it reach, for all places of the axes outside.
pub(super) fn launches(layout: &Layout, element_bytes: usize, limit: u64) -> u64 {
    let (mut reach, mut outside, mut most) = (layout.span().len() as u64, 1u64, 0);
    for (&size, stride) in layout.shape().iter().zip(layout.strides()) {
        let pieces = reach * element_bytes as u64 / limit.max(1);
        most = outside.saturating_mul(pieces).max(most);
        outside = outside.saturating_mul(size as u64);
        let step = stride.unsigned_abs() as u64;
        reach = reach.saturating_sub((size as u64).saturating_sub(1).saturating_mul(step));
    }
    most
}

/// Where to cut a range of several elements: between whole rows of the outermost axis that it goes
/// along, so that what operands reach shrinks.
fn middle(dims: &[usize], range: &Range<usize>) -> usize {
    let mut inner: usize = dims.iter().product();
    for &size in dims {
        inner /= size;
        let (first, last) = (range.start / inner, (range.end - 1) / inner);
        if first != last {
            return (first + (last - first).div_ceil(2)) * inner;
        }
    }
    range.end
}

/// The first and the last index along each axis that elements `range` of `dims` have.
pub(super) fn bounds(dims: &[usize], range: &Range<usize>) -> SmallVec<[[usize; 2]; 6]> {
    let mut inner: usize = dims.iter().product();
    // Along the axes inside of the first that the range goes along, it has every index.
    let mut whole = false;
    let bound = |&size: &usize| {
        inner /= size;
        let bound = match whole {
            true => [0, size - 1],
            false => [range.start, range.end - 1].map(|at| at / inner % size),
        };
        whole |= bound[0] != bound[1];
        bound
    };
    dims.iter().map(bound).collect()
}

/// The places from the lowest to one past the highest that elements `range` of `dims` have from
/// `offset` on by `strides`; some of them may be of other elements.
pub(super) fn reach(
    dims: &[usize],
    offset: usize,
    strides: &[isize],
    range: &Range<usize>,
) -> Range<isize> {
    let (mut low, mut high) = (offset as isize, offset as isize);
    for (bound, &stride) in bounds(dims, range).iter().zip(strides) {
        let [first, last] = bound.map(|index| index as isize * stride);
        low += first.min(last);
        high += first.max(last);
    }
    low..high + 1
}

/// Strides in units of `unit` elements: the innermost, along which neighbours are joined, stays 1.
pub(super) fn widened(strides: &[isize], unit: usize) -> Strides {
    let outer = strides.len().saturating_sub(1);
    let widen = |(axis, &stride): (usize, &isize)| {
        if axis == outer && stride == 1 {
            1
        } else {
            stride / unit as isize
        }
    };
    strides.iter().enumerate().map(widen).collect()
}

/// How many neighbours along the innermost dimension can be moved at once, as elements of up to 16
/// bytes, when every one of `steps` (strides and offsets) is a whole multiple of that.
pub(super) fn unit(
    element_bytes: usize,
    inner: usize,
    steps: impl Iterator<Item = isize> + Clone,
) -> usize {
    [16, 8, 4]
        .into_iter()
        .map(|bytes| bytes / element_bytes)
        .find(|&unit| {
            unit > 1
                && inner.is_multiple_of(unit)
                && steps.clone().all(|step| step % unit as isize == 0)
        })
        .unwrap_or(1)
}

/// The window of elements in a storage.
pub(super) fn window(places: &Range<isize>, element_bytes: usize) -> Window {
    let size = element_bytes as u64;
    Window::around(places.start as u64 * size..places.end as u64 * size)
}

/// A part of the operands' memory.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub operand: usize,
    /// In bytes.
    pub offset: u64,
}

impl Area {
    /// Of elements, or lines, of so many bytes each.
    pub(super) fn window(&self, range: &Range<usize>, bytes: usize) -> Window {
        let [start, end] = [range.start, range.end].map(|at| self.offset + (at * bytes) as u64);
        Window::around(start..end)
    }

    /// Of line 0 in a window, in elements.
    pub(super) fn place(&self, window: &Window, element_bytes: usize) -> u32 {
        let bytes = element_bytes as u64;
        ((self.offset / bytes) as u32).wrapping_sub((window.offset / bytes) as u32)
    }
}

/// A launch of a kernel on parts of the operands: so many steps, with what they cost.
///
/// # Errors
/// A grid above the adapter's.
pub(super) fn launch(
    (op, kernel, capabilities): (&'static str, KernelKey, &Capabilities),
    bound: impl Iterator<Item = (Area, Window)>,
    words: Words,
    (steps, per_workgroup): (u64, u64),
    [flops, bytes]: [f64; 2],
) -> Result<Launch> {
    let most = capabilities.max_workgroups;
    let dispatch = plan::dispatch(op, words, steps, per_workgroup, most)?;
    let bound = bound.map(|(area, window)| Bound {
        operand: area.operand,
        window: Some(window),
    });
    Ok(Launch {
        kernel,
        operands: bound.collect(),
        texels: smallvec![],
        dispatches: smallvec![dispatch],
        flops,
        bytes,
    })
}

/// Words of what is written that windows begin and end at.
const WINDOW_ELEMENTS: usize = WINDOW_ALIGNMENT as usize / 4;

/// Elements that are written, in ranges of so many that are bound each, from the beginning of a window on.
pub(super) fn written(all: &Range<usize>, most: usize) -> SmallVec<[Range<usize>; 1]> {
    let first = all.start - all.start % WINDOW_ELEMENTS;
    let most = most / WINDOW_ELEMENTS * WINDOW_ELEMENTS;
    let starts = (first..all.end).step_by(most);
    starts
        .map(|start| start..(start + most).min(all.end))
        .collect()
}

/// What kernels call elements of so many bytes that are moved only.
pub(super) fn moved(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "vec2<u32>",
        _ => "vec4<u32>",
    }
}

/// What [`moved`] can give.
pub(super) const MOVED: [&str; 5] = ["u8", "u16", "u32", "vec2<u32>", "vec4<u32>"];

/// Elements that a word holds.
pub(super) fn lanes(element_bytes: usize) -> usize {
    (4 / element_bytes).max(1)
}

/// Positions of these kernels are 32 bits, of which those of one window are kept free.
pub(super) const POSITIONS: usize = 3 << 30;

/// Why kernels cannot move elements that lie so, if they cannot.
pub(super) fn missing(
    capabilities: &Capabilities,
    dtype: DType,
    layouts: &[&Layout],
    elements: usize,
) -> Option<String> {
    if !capabilities.holds(dtype) {
        return Some(road::lacks(dtype));
    }
    if capabilities.kind == DeviceKind::Cpu {
        return None;
    }
    let spans = layouts.iter().map(|layout| layout.span().len());
    let far = spans.chain([elements]).any(|count| count > POSITIONS);
    far.then(|| format!("the op's kernels reach {POSITIONS} elements"))
}

/// Sizes as the words of kernels: all but the outermost.
pub(super) fn size_words(dims: &[usize]) -> SmallVec<[u32; 6]> {
    dims.iter().skip(1).map(|&size| size as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_each_other_and_fit() {
        for dims in [&[1][..], &[7], &[5, 1, 9], &[3, 100, 2], &[2, 3, 4, 5, 6]] {
            let total: usize = dims.iter().product();
            for most in [1, 2, 10, 64, 1000] {
                let fits = |range: &Range<usize>| range.len() <= 50;
                let made = ranges("test", dims, 0..total, most, fits).unwrap();
                let mut end = 0;
                for range in &made {
                    assert_eq!(range.start, end);
                    assert!(!range.is_empty() && range.len() <= most.min(50));
                    end = range.end;
                }
                assert_eq!(end, total);
            }
        }
    }

    #[test]
    fn reaches_hold_every_place() {
        let dims = [3, 4, 5];
        for strides in [[20, 5, 1], [-7, 0, 3], [1, 3, -12], [0, 0, 0]] {
            for start in 0..60 {
                for end in start + 1..=60 {
                    let places = (start..end).map(|at: usize| {
                        let index = [at / 20, at / 5 % 4, at % 5];
                        let steps = index.iter().zip(&strides);
                        100 + steps.map(|(&i, &s)| i as isize * s).sum::<isize>()
                    });
                    let got = reach(&dims, 100, &strides, &(start..end));
                    for place in places {
                        assert!(got.contains(&place), "{strides:?} {start}..{end}");
                    }
                    if end == start + 1 {
                        assert_eq!(got.len(), 1);
                    }
                }
            }
            let all = reach(&dims, 100, &strides, &(0..60));
            let span: isize = dims
                .iter()
                .zip(&strides)
                .map(|(&size, &stride)| (size as isize - 1) * stride.abs())
                .sum();
            assert_eq!(all.len() as isize, span + 1);
        }
    }
}
