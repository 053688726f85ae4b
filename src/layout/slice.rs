//! Parts of tensors: a range or an index of each dimension.

use std::ops::{Bound, RangeBounds};

use smallvec::SmallVec;

use super::axis::{self, Counted};
use super::{Axis, Layout, Strides};
use crate::error::{Error, Result};
use crate::shape::{Dims, Shape};

/// A range of one dimension, as given to `slice`: `2..5`, `..`, `3..`, `..=4`, `-2..`; with
/// [`SliceRange::step`] every `step`-th element of it. Or one index, `3`, without a range: the dimension
/// goes away. Negative numbers count from the end: -1 is the last element. An end with `=` is an
/// element that is there. (Where both ends are literals, as in `1..-1`, clippy takes the range for an empty one:
/// `reversed_empty_ranges` is to be allowed there.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceRange {
    start: Counted,
    end: Counted,
    /// The end is the last element, not the place behind it.
    is_closed: bool,
    step: isize,
    /// One element, whose dimension goes.
    is_index: bool,
}

impl SliceRange {
    fn new<T: Copy + Into<Counted>>(range: impl RangeBounds<T>) -> Self {
        let start = match range.start_bound() {
            // None of the types below leaves its start out.
            Bound::Included(&start) | Bound::Excluded(&start) => start.into(),
            Bound::Unbounded => Counted::FromStart(0),
        };
        let (end, is_closed) = match range.end_bound() {
            Bound::Included(&end) => (end.into(), true),
            Bound::Excluded(&end) => (end.into(), false),
            Bound::Unbounded => (Counted::FromEnd(0), false),
        };
        Self {
            start,
            end,
            is_closed,
            step: 1,
            is_index: false,
        }
    }

    /// Every `step`th element of the range; backwards from its last one when `step` is negative:
    /// `SliceRange::from(1..8).step(-3)` is 7, 4, 1. Of one index it changes nothing. A step of 0 is refused.
    #[must_use]
    pub fn step(self, step: isize) -> Self {
        Self { step, ..self }
    }
}

macro_rules! slice_range_from {
    ($($integer:ty),*) => {$(
        slice_range_from!(
            $integer:
            std::ops::Range<$integer>,
            std::ops::RangeFrom<$integer>,
            std::ops::RangeTo<$integer>,
            std::ops::RangeInclusive<$integer>,
            std::ops::RangeToInclusive<$integer>
        );

        /// One element.
        impl From<$integer> for SliceRange {
            fn from(index: $integer) -> Self {
                Self {
                    is_index: true,
                    ..SliceRange::from(index..=index)
                }
            }
        }
    )*};
    ($integer:ty: $($range:ty),*) => {$(
        impl From<$range> for SliceRange {
            fn from(range: $range) -> Self {
                SliceRange::new::<$integer>(range)
            }
        }
    )*};
}
slice_range_from!(usize, isize, i32, i64);

impl From<std::ops::RangeFull> for SliceRange {
    fn from(range: std::ops::RangeFull) -> Self {
        SliceRange::new::<usize>(range)
    }
}

/// The argument of `slice`: one range or index, a tuple of up to eight, or a slice, an array or a `Vec` of [`SliceRange`].
/// Dimensions that are not named are kept whole.
pub trait SliceRanges: Ranges {}

impl<R: Ranges> SliceRanges for R {}

/// What [`SliceRanges`] gives, for the crate alone.
pub trait Ranges {
    /// The ranges, outermost dimension first.
    fn ranges(self) -> SmallVec<[SliceRange; 6]>;
}

impl<R: Into<SliceRange>> Ranges for R {
    fn ranges(self) -> SmallVec<[SliceRange; 6]> {
        SmallVec::from_slice(&[self.into()])
    }
}

macro_rules! slice_ranges_list {
    (<$(const $length:ident)?> $list:ty) => {
        impl<$(const $length: usize)?> Ranges for $list {
            fn ranges(self) -> SmallVec<[SliceRange; 6]> {
                SmallVec::from_slice(self.as_ref())
            }
        }
    };
}
slice_ranges_list!(<> &[SliceRange]);
slice_ranges_list!(<const N> [SliceRange; N]);
slice_ranges_list!(<const N> &[SliceRange; N]);
slice_ranges_list!(<> Vec<SliceRange>);
slice_ranges_list!(<> &Vec<SliceRange>);

macro_rules! slice_ranges_tuple {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Into<SliceRange>),*> Ranges for ($($name,)*) {
            fn ranges(self) -> SmallVec<[SliceRange; 6]> {
                SmallVec::from_slice(&[$(self.$index.into()),*])
            }
        }
    };
}
slice_ranges_tuple!(A 0);
slice_ranges_tuple!(A 0, B 1);
slice_ranges_tuple!(A 0, B 1, C 2);
slice_ranges_tuple!(A 0, B 1, C 2, D 3);
slice_ranges_tuple!(A 0, B 1, C 2, D 3, E 4);
slice_ranges_tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
slice_ranges_tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
slice_ranges_tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

impl Layout {
    /// Turns dimensions round: their last element comes first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when an axis does not exist or is named twice.
    pub fn flip(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Self> {
        let mut ranges: SmallVec<[SliceRange; 6]> =
            SmallVec::from_elem(SliceRange::from(..), self.rank());
        for axis in axis::each_once(axes, "flip", &self.shape)? {
            ranges[axis] = SliceRange::from(..).step(-1);
        }
        self.slice(&ranges)
    }

    /// Keeps a range of each dimension, every `step`-th element of it, or one index without the
    /// dimension; dimensions that are not named stay whole.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for too many ranges, one outside its dimension, or a step of 0.
    pub fn slice(&self, ranges: &[SliceRange]) -> Result<Self> {
        if ranges.len() > self.rank() {
            return Err(Error::invalid(
                "slice",
                format!(
                    "{} ranges given for shape {} of rank {}",
                    ranges.len(),
                    self.shape,
                    self.rank()
                ),
            ));
        }
        let mut dims: Dims = SmallVec::from_slice(&self.shape);
        let mut strides = Strides::from_slice(&self.strides);
        let mut offset = self.offset as isize;
        for (axis, range) in ranges.iter().enumerate() {
            let (start, end) = self.bounds(axis, range)?;
            if range.step == 0 {
                return Err(Error::invalid("slice", "a step of 0 goes nowhere"));
            }
            dims[axis] = (end - start).div_ceil(range.step.unsigned_abs());
            // Backwards it begins with the range's last element.
            let first = match range.step < 0 && dims[axis] > 0 {
                true => end - 1,
                false => start,
            };
            strides[axis] = match dims[axis] > 1 {
                true => strides[axis].saturating_mul(range.step),
                // It is not stepped along, so neither backwards.
                false => strides[axis].saturating_abs(),
            };
            offset = offset.saturating_add((first as isize).saturating_mul(self.strides[axis]));
        }
        let shape: Shape = dims.into_iter().collect();
        // Without elements the offset means nothing: keep it inside the storage.
        let offset = if shape.elements() == 0 {
            0
        } else {
            offset as usize
        };
        let part = Self {
            shape,
            strides,
            offset,
        };
        let is_index = |axis: usize| ranges.get(axis).is_some_and(|range| range.is_index);
        match ranges.iter().any(|range| range.is_index) {
            true => Ok(part.without(is_index)),
            false => Ok(part),
        }
    }

    /// Where a range begins and ends.
    fn bounds(&self, axis: usize, range: &SliceRange) -> Result<(usize, usize)> {
        let size = self.shape[axis];
        let start = range.start.among(size);
        let end = range.end.among(size);
        let end = match range.is_closed {
            true => end.filter(|&last| last < size).map(|last| last + 1),
            false => end,
        };
        let what = || match (range.is_index, range.is_closed) {
            (true, _) => format!("index {}", range.start),
            (false, true) => format!("range {}..={}", range.start, range.end),
            (false, false) => format!("range {}..{}", range.start, range.end),
        };
        let where_to = || format!("axis {axis} of size {size} in shape {}", self.shape);
        let why = match start.zip(end) {
            Some((start, end)) if start <= end => return Ok((start, end)),
            Some(_) => format!("{} of {} ends before it begins", what(), where_to()),
            None => format!("{} is outside {}", what(), where_to()),
        };
        Err(Error::invalid("slice", why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_pick_what_they_pass() {
        let base = Layout::contiguous([10]);
        let picked =
            |range: SliceRange| -> Vec<usize> { base.slice(&[range]).unwrap().indices().collect() };
        assert_eq!(picked(SliceRange::from(1..8).step(3)), [1, 4, 7]);
        assert_eq!(picked(SliceRange::from(1..8).step(-3)), [7, 4, 1]);
        assert_eq!(picked(SliceRange::from(2..8).step(-3)), [7, 4]);
        assert_eq!(picked(SliceRange::from(..).step(-9)), [9, 0]);
        assert_eq!(picked(SliceRange::from(..).step(isize::MIN)), [9]);
        assert_eq!(picked(SliceRange::from(3..4).step(isize::MAX)), [3]);
        assert_eq!(picked(SliceRange::from(5..5).step(-1)), [0; 0]);
        let twice = base.slice(&[SliceRange::from(1..).step(2)]).unwrap();
        let twice = twice.flip(&[0]).unwrap();
        assert!(twice.indices().eq([9, 7, 5, 3, 1]));
        assert!(twice.flip(&[0]).unwrap().indices().eq([1, 3, 5, 7, 9]));
        assert!(base.slice(&[SliceRange::from(..).step(0)]).is_err());
        assert!(base.flip(&[1]).is_err() && base.flip(&[0, 0]).is_err());
        assert!(Layout::contiguous([0, 3]).flip(&[0, 1]).is_ok());
        assert!(base.flip(&[0]).unwrap().goes_back());
        assert!(!Layout::contiguous([1]).flip(&[0]).unwrap().goes_back());
        // Nor where one element is left.
        let one = base.flip(&[0]).unwrap().slice(&[(3..4).into()]).unwrap();
        assert_eq!((one.strides(), one.offset()), (&[1][..], 6));
        let cut = base
            .flip(&[0])
            .unwrap()
            .reshape(&[2, 1, 5, 1].into())
            .unwrap();
        assert_eq!(cut.strides(), [-5, 5, -1, 1]);
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn places_count_from_both_ends() -> Result<()> {
        let base = Layout::contiguous([10]);
        let picked = |range: SliceRange| -> Vec<usize> {
            base.slice(&[range])
                .map_or(vec![99], |part| part.indices().collect())
        };
        for start in -11..12 {
            for end in -11..12 {
                let place = |at: i32| if at < 0 { at + 10 } else { at };
                let (from, to) = (place(start), place(end));
                let is_inside = 0 <= from && from <= to && to <= 10;
                let expected: Vec<usize> = match is_inside {
                    true => (from as usize..to as usize).collect(),
                    false => vec![99],
                };
                assert_eq!(picked((start..end).into()), expected, "{start}..{end}");
                let wide = start as isize..end as isize;
                assert_eq!(picked(wide.into()), expected, "{start}..{end}");
                // Up to an element that is there.
                let closed = match 0 <= from && from <= to + 1 && (0..10).contains(&to) {
                    true => (from as usize..to as usize + 1).collect(),
                    false => vec![99],
                };
                assert_eq!(picked((start..=end).into()), closed, "{start}..={end}");
            }
        }
        assert_eq!(picked((-3..).into()), [7, 8, 9]);
        assert_eq!(picked((..=-9).into()), [0, 1]);
        assert_eq!(picked((7..=-1).into()), [7, 8, 9]);
        assert_eq!(picked(SliceRange::from(-4..-1).step(-2)), [8, 6]);
        for far in [isize::MIN, isize::MAX] {
            assert_eq!(picked(far.into()), [99]);
            assert_eq!(picked((far..).into()), [99]);
        }
        assert_eq!(picked((0..=usize::MAX).into()), [99]);
        let endless = Layout::contiguous([0, usize::MAX]);
        assert!(endless.slice(&[(..).into(), usize::MAX.into()]).is_err());
        let said = |range: SliceRange| base.slice(&[range]).unwrap_err().to_string();
        for (range, problem) in [
            ((2..=10).into(), "range 2..=10 is outside axis 0 of size 10"),
            ((-11..3).into(), "range -11..3 is outside axis 0"),
            (
                (-3..2).into(),
                "range -3..2 of axis 0 of size 10 in shape [10] ends before",
            ),
            (
                (5..=-8).into(),
                "range 5..=-8 of axis 0 of size 10 in shape [10] ends before",
            ),
        ] {
            assert!(said(range).contains(problem), "{}", said(range));
        }
        Ok(())
    }

    #[test]
    fn indices_take_their_dimension_away() -> Result<()> {
        let base = Layout::contiguous([4, 5, 6]);
        let part = base.slice(&[2.into(), (1..3).into(), (-1).into()])?;
        assert_eq!(part.shape(), &Shape::from([2]));
        assert!(part.indices().eq([2 * 30 + 6 + 5, 2 * 30 + 12 + 5]));
        let one = base.slice(&[3usize.into(), 4.into(), 5isize.into()])?;
        assert_eq!((one.rank(), one.offset()), (0, 119));
        let back = base
            .flip(&[0, -1])?
            .slice(&[0.into(), 0.into(), 0.into()])?;
        assert_eq!((back.rank(), back.offset()), (0, 3 * 30 + 5));
        // Of nothing there is no index, but beside it.
        let none = Layout::contiguous([0, 3]);
        assert!(none.slice(&[0.into()]).is_err());
        assert_eq!(
            none.slice(&[(..).into(), 2.into()])?.shape(),
            &Shape::from([0])
        );
        for outside in [4, -5, i32::MAX, i32::MIN] {
            let said = base.slice(&[outside.into()]).unwrap_err().to_string();
            let named = format!("index {outside} is outside axis 0 of size 4 in shape [4, 5, 6]");
            assert!(said.contains(&named), "{said}");
        }
        let step = base.slice(&[SliceRange::from(1).step(-3)])?;
        assert_eq!((step.rank(), step.offset()), (2, 30));
        Ok(())
    }
}
