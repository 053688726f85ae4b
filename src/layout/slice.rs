//! What `slice` takes: a range of each dimension.

use std::ops::{Bound, RangeBounds};

use smallvec::SmallVec;

/// A range of one dimension, as given to `slice`: `2..5`, `..`, `3..`, `..=4`; with
/// [`SliceRange::step`] every so-manieth element of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceRange {
    pub(super) start: usize,
    pub(super) end: Option<usize>,
    pub(super) step: isize,
}

impl SliceRange {
    fn new(range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => Some(end.saturating_add(1)),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => None,
        };
        Self {
            start,
            end,
            step: 1,
        }
    }

    /// Every `step`th element of the range; backwards from its last one when `step` is negative:
    /// `SliceRange::from(1..8).step(-3)` is 7, 4, 1.
    #[must_use]
    pub fn step(self, step: isize) -> Self {
        Self { step, ..self }
    }
}

macro_rules! slice_range_from {
    ($($range:ty),*) => {$(
        impl From<$range> for SliceRange {
            fn from(range: $range) -> Self {
                SliceRange::new(range)
            }
        }
    )*};
}
slice_range_from!(
    std::ops::Range<usize>,
    std::ops::RangeFrom<usize>,
    std::ops::RangeTo<usize>,
    std::ops::RangeInclusive<usize>,
    std::ops::RangeToInclusive<usize>,
    std::ops::RangeFull
);

/// The argument of `slice`: one range, a tuple of up to six, or a slice of [`SliceRange`].
/// Dimensions that are not named are kept whole.
pub trait SliceRanges {
    /// The ranges, outermost dimension first.
    fn ranges(self) -> SmallVec<[SliceRange; 6]>;
}

impl<R: Into<SliceRange>> SliceRanges for R {
    fn ranges(self) -> SmallVec<[SliceRange; 6]> {
        SmallVec::from_slice(&[self.into()])
    }
}

impl SliceRanges for &[SliceRange] {
    fn ranges(self) -> SmallVec<[SliceRange; 6]> {
        SmallVec::from_slice(self)
    }
}

macro_rules! slice_ranges_tuple {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Into<SliceRange>),*> SliceRanges for ($($name,)*) {
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
