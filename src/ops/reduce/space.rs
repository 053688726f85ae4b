//! The dimensions of a reduction, merged.

use smallvec::smallvec;

use super::Along;
use crate::layout::{Layout, Strides, merge, place};
use crate::memory::order;
use crate::shape::Dims;

/// What one pass goes through: the dimensions that stay and those that go, merged, outermost first.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Space {
    pub kept: Dims,
    pub kept_strides: Strides,
    pub reduced: Dims,
    pub reduced_strides: Strides,
    pub offset: usize,
}

impl Space {
    pub(in crate::ops) fn of(layout: &Layout, along: &Along, has_order: bool) -> Self {
        let kept = along.kept(layout.rank());
        let mut reduced = along.axes.clone();
        if !has_order {
            // Neighbours innermost.
            order::sort(&mut reduced, |&axis| {
                (!(layout.strides()[axis].unsigned_abs() as u64), 0)
            });
        }
        let mut across = layout.alone(&reduced);
        if !has_order {
            across = across.forwards();
        }
        // New outputs are contiguous, so that all dimensions that lie evenly here merge.
        let kept = merge(&[&layout.alone(&kept)]);
        let reduced = merge(&[&across]);
        Self {
            kept: kept.dims,
            kept_strides: kept.strides.into_iter().next().unwrap_or_default(),
            reduced: reduced.dims,
            reduced_strides: reduced.strides.into_iter().next().unwrap_or_default(),
            offset: across.offset(),
        }
    }

    pub(super) fn outputs(&self) -> usize {
        self.kept.iter().product()
    }

    pub(super) fn length(&self) -> usize {
        self.reduced.iter().product()
    }

    /// Where the first element of an output is.
    #[inline(always)]
    pub(in crate::ops) fn first(&self, output: usize) -> isize {
        place(output, &self.kept, &self.kept_strides) + self.offset as isize
    }

    /// How far an output's element is from its first one.
    #[inline(always)]
    pub(in crate::ops) fn along(&self, at: usize) -> isize {
        match self.reduced_strides[..] {
            [stride] => at as isize * stride,
            _ => place(at, &self.reduced, &self.reduced_strides),
        }
    }

    /// [`Space::along`] of `count` elements from the `from`th on.
    pub(super) fn places(&self, from: usize, count: usize, places: &mut Vec<isize>) {
        let [rows, columns] = match self.reduced[..] {
            [.., rows, columns] => [rows, columns],
            [columns] => [1, columns],
            [] => [1, 1],
        };
        let [row_step, step] = match self.reduced_strides[..] {
            [.., row_step, step] => [row_step, step],
            [step] => [0, step],
            [] => [0, 0],
        };
        places.clear();
        while places.len() < count {
            let at = from + places.len();
            // Of a plane of the last two dimensions, which go on without a division.
            let within = at % (rows * columns);
            let plane = self.along(at - within);
            let mut column = within % columns;
            for row in within / columns..rows {
                let left = count - places.len();
                if left == 0 {
                    break;
                }
                let start = plane + row as isize * row_step;
                let few = (column..columns).take(left);
                places.extend(few.map(|column| start + column as isize * step));
                column = 0;
            }
        }
    }

    /// Whether an output's elements are neighbours, and those of the next output come next.
    pub(in crate::ops) fn is_one_run(&self) -> bool {
        let length = self.length() as isize;
        self.reduced.len() <= 1
            && self.kept.len() <= 1
            && self.reduced_strides.iter().all(|&stride| stride == 1)
            && self.kept_strides.iter().all(|&stride| stride == length)
    }

    /// How many elements of an output one step along each reduced dimension goes over.
    pub(super) fn weights(&self) -> Dims {
        let mut weights = Dims::from_elem(1, self.reduced.len());
        for axis in (1..self.reduced.len()).rev() {
            weights[axis - 1] = weights[axis].saturating_mul(self.reduced[axis]);
        }
        weights
    }

    /// The states of a pass before: `parts` of them for each output, one after the other for all.
    pub(super) fn of_states(outputs: usize, parts: usize) -> Self {
        Self {
            kept: smallvec![outputs],
            kept_strides: smallvec![1],
            reduced: smallvec![parts],
            reduced_strides: smallvec![outputs as isize],
            offset: 0,
        }
    }

    /// How many neighbours a load takes, and whether they lie along the reduced dimensions.
    pub(super) fn unit(&self, widest: usize) -> (usize, bool) {
        let aligned = |unit: usize, strides: &[isize]| {
            strides.iter().all(|stride| stride % unit as isize == 0)
        };
        let inner = |strides: &Strides| strides.last() == Some(&1);
        let outer =
            |strides: &Strides| -> Strides { strides[..strides.len().saturating_sub(1)].into() };
        for unit in [8, 4].into_iter().filter(|&unit| unit <= widest) {
            if !self.offset.is_multiple_of(unit) {
                continue;
            }
            let size = self.reduced.last().copied().unwrap_or(1);
            let whole = size % unit == 0 || (self.reduced.len() == 1 && size >= unit);
            if inner(&self.reduced_strides)
                && whole
                && aligned(unit, &outer(&self.reduced_strides))
                && aligned(unit, &self.kept_strides)
            {
                return (unit, true);
            }
            let size = self.kept.last().copied().unwrap_or(1);
            if inner(&self.kept_strides)
                && size % unit == 0
                && aligned(unit, &outer(&self.kept_strides))
                && aligned(unit, &self.reduced_strides)
            {
                return (unit, false);
            }
        }
        (1, true)
    }
}
