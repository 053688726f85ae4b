//! How a tensor's elements lie in its storage: shape, strides, offset, all in elements.

mod axis;
mod diagonal;
mod merge;
mod slice;
mod unfold;

pub use axis::Axis;
pub(crate) use axis::each_once;
pub(crate) use merge::{Merged, merge, place};
pub use slice::{SliceRange, SliceRanges};

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::shape::{Dims, Shape};

/// Strides in elements, outermost first; 0 where a dimension is broadcast, negative where it goes
/// backwards.
pub(crate) type Strides = SmallVec<[isize; 6]>;

/// Shape, strides and offset, in elements.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    strides: Strides,
    offset: usize,
}

impl Clone for Layout {
    /// As a copy of memory, like a shape's.
    fn clone(&self) -> Self {
        Self {
            shape: self.shape.clone(),
            strides: Strides::from_slice(&self.strides),
            offset: self.offset,
        }
    }
}

/// A size as strides count it; of shapes that nothing holds the most.
fn signed(size: usize) -> isize {
    isize::try_from(size).unwrap_or(isize::MAX)
}

/// The stride of a dimension: what is not stepped along does not go backwards.
fn stepped(size: usize, stride: isize) -> isize {
    if size > 1 {
        stride
    } else {
        stride.saturating_abs()
    }
}

impl Layout {
    /// Row-major, without gaps, from the start of the storage.
    pub fn contiguous(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let mut strides: Strides = SmallVec::from_elem(0, shape.rank());
        let mut step = 1;
        for (stride, &size) in strides.iter_mut().zip(shape.dims()).rev() {
            *stride = step;
            step = step.saturating_mul(signed(size));
        }
        if step == 0 {
            // Without elements there is nothing to step over, and sizes may be anything.
            strides.fill(0);
        }
        Self {
            shape,
            strides,
            offset: 0,
        }
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Index of the first element in the storage: with negative strides not the lowest.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The same strides from another start.
    pub(crate) fn at_offset(&self, offset: usize) -> Self {
        Self {
            offset,
            ..self.clone()
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// True when the elements lie row-major without gaps (from any offset).
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 {
                if stride != step {
                    // Without elements there is nothing that lies apart.
                    return self.elements() == 0;
                }
                // Of shapes that nothing holds too.
                step = step.saturating_mul(signed(size));
            }
        }
        true
    }

    /// One past the largest storage index that is used; 0 when there are no elements.
    pub fn end(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        let reach: isize = self
            .shape
            .iter()
            .zip(&self.strides)
            .map(|(&size, &stride)| signed(size - 1).saturating_mul(stride.max(0)))
            .fold(0, isize::saturating_add);
        self.offset.saturating_add(reach as usize).saturating_add(1)
    }

    /// The storage indices from the lowest that is used to one past the highest; `0..0` when there
    /// are no elements.
    pub(crate) fn span(&self) -> std::ops::Range<usize> {
        if self.elements() == 0 {
            return 0..0;
        }
        let back: usize = self
            .shape
            .iter()
            .zip(&self.strides)
            .map(|(&size, &stride)| (size - 1) * stride.min(0).unsigned_abs())
            .sum();
        self.offset - back..self.end()
    }

    /// True when a dimension goes backwards.
    pub(crate) fn goes_back(&self) -> bool {
        let mut sizes = self.shape.iter().zip(&self.strides);
        sizes.any(|(&size, &stride)| size > 1 && stride < 0)
    }

    /// The same elements with every dimension forwards.
    pub(crate) fn forwards(mut self) -> Self {
        for (&size, stride) in self.shape.iter().zip(&mut self.strides) {
            if size > 1 && *stride < 0 {
                self.offset -= (size - 1) * stride.unsigned_abs();
                *stride = -*stride;
            }
        }
        self
    }

    /// Repeated dimensions (stride 0) keep one index. Where windows do not overlap either
    /// ([`Layout::is_distinct`]), each element is there once.
    pub(crate) fn distinct(&self) -> Self {
        let sizes = self.shape.iter().zip(&self.strides);
        Self {
            shape: sizes
                .map(|(&size, &stride)| if stride == 0 { size.min(1) } else { size })
                .collect(),
            ..self.clone()
        }
    }

    /// The first `count` dimensions alone, at index 0 of the others.
    pub(crate) fn leading(&self, count: usize) -> Self {
        Self {
            shape: self.shape.iter().take(count).copied().collect(),
            strides: self.strides.iter().take(count).copied().collect(),
            offset: self.offset,
        }
    }

    /// Some dimensions alone, in this order, at index 0 of the others.
    pub(crate) fn alone(&self, axes: &[usize]) -> Self {
        Self {
            shape: axes.iter().map(|&axis| self.shape[axis]).collect(),
            strides: axes.iter().map(|&axis| self.strides[axis]).collect(),
            offset: self.offset,
        }
    }

    /// Storage indices of the elements in row-major order.
    pub fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.elements())
            .map(|at| (self.offset as isize + place(at, &self.shape, &self.strides)) as usize)
    }

    /// Swaps two dimensions.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when an axis does not exist.
    pub fn transpose(&self, first: impl Into<Axis>, second: impl Into<Axis>) -> Result<Self> {
        let first = first.into().of("transpose", &self.shape)?;
        let second = second.into().of("transpose", &self.shape)?;
        let mut axes: Dims = (0..self.rank()).collect();
        axes.swap(first, second);
        self.permute(&axes)
    }

    /// Reorders the dimensions: new dimension `i` is old dimension `axes[i]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `axes` names each axis once.
    pub fn permute(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Self> {
        let named = axis::each_once(axes, "permute", &self.shape)?;
        if named.len() < self.rank() {
            let given: Vec<String> = axes.iter().map(|&axis| axis.into().to_string()).collect();
            return Err(Error::invalid(
                "permute",
                format!(
                    "axes [{}] must name each axis of shape {} once",
                    given.join(", "),
                    self.shape
                ),
            ));
        }
        Ok(Self {
            shape: named.iter().map(|&axis| self.shape[axis]).collect(),
            strides: named.iter().map(|&axis| self.strides[axis]).collect(),
            offset: self.offset,
        })
    }

    /// Repeats dimensions of size 1, and adds outer ones, by stride 0 (NumPy's rule).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when a size is neither equal nor 1.
    pub fn broadcast_to(&self, shape: &Shape) -> Result<Self> {
        self.broadcast_for("broadcast_to", shape)
    }

    /// The same, for an op.
    pub(crate) fn broadcast_for(&self, op: &'static str, shape: &Shape) -> Result<Self> {
        let rule =
            "to broadcast to a shape, each size aligned at the last dimension must be equal or 1";
        let added = shape
            .rank()
            .checked_sub(self.rank())
            .ok_or_else(|| Error::shape_mismatch(op, &self.shape, shape, rule))?;
        let mut strides: Strides = SmallVec::from_elem(0, shape.rank());
        for axis in 0..self.rank() {
            let (from, to) = (self.shape[axis], shape[axis + added]);
            if from == to {
                strides[axis + added] = self.strides[axis];
            } else if from != 1 {
                return Err(Error::shape_mismatch(op, &self.shape, shape, rule));
            }
        }
        Ok(Self {
            shape: shape.clone(),
            strides,
            offset: self.offset,
        })
    }

    /// Removes a dimension of size 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the axis does not exist or its size is not 1.
    pub fn squeeze(&self, axis: impl Into<Axis>) -> Result<Self> {
        let axis = axis.into().of("squeeze", &self.shape)?;
        if self.shape[axis] != 1 {
            return Err(Error::invalid(
                "squeeze",
                format!("axis {axis} of shape {} is not of size 1", self.shape),
            ));
        }
        Ok(self.without(|at| at == axis))
    }

    /// The dimensions that are not so, at index 0 of those that are.
    fn without(&self, is_so: impl Fn(usize) -> bool) -> Self {
        let kept = || (0..self.rank()).filter(|&axis| !is_so(axis));
        Self {
            shape: kept().map(|axis| self.shape[axis]).collect(),
            strides: kept().map(|axis| self.strides[axis]).collect(),
            offset: self.offset,
        }
    }

    /// Adds a dimension of size 1, which is then `axis`: before the one that is, or, where `axis` is the
    /// rank or -1, at the end.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `axis` is above the rank or below `-rank - 1`.
    pub fn unsqueeze(&self, axis: impl Into<Axis>) -> Result<Self> {
        let axis = axis.into().added("unsqueeze", &self.shape)?;
        let mut dims: Dims = SmallVec::from_slice(&self.shape);
        let mut strides = self.strides.clone();
        dims.insert(axis, 1);
        strides.insert(axis, 0);
        Ok(Self {
            shape: dims.into_iter().collect(),
            strides,
            offset: self.offset,
        })
    }

    /// The same elements in row-major order under another shape; `None` when that needs a copy, or the other
    /// has not as many.
    pub fn reshape(&self, shape: &Shape) -> Option<Self> {
        let count = self.shape.checked_elements()?;
        if shape.checked_elements() != Some(count) {
            return None;
        }
        if self.elements() == 0 || self.is_contiguous() {
            return Some(Self {
                offset: self.offset,
                ..Self::contiguous(shape.clone())
            });
        }
        // Each run of old dimensions that lies evenly must be cut into whole new ones.
        let old = merge(&[self]);
        let mut strides: Strides = SmallVec::from_elem(0, shape.rank());
        let mut new_axis = shape.rank();
        for (size, stride) in old.dims.iter().zip(&old.strides[0]).rev() {
            let mut left = *size;
            let mut step = *stride;
            while left > 1 {
                new_axis = new_axis.checked_sub(1)?;
                let new_size = shape[new_axis];
                if left % new_size != 0 {
                    return None;
                }
                strides[new_axis] = stepped(new_size, step);
                step = step.saturating_mul(signed(new_size));
                left /= new_size;
            }
        }
        // What is left is of size 1: any stride does.
        Some(Self {
            shape: shape.clone(),
            strides,
            offset: self.offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Storage indices in row-major order: the definition that every view must keep.
    fn indices(layout: &Layout) -> Vec<usize> {
        let mut all = vec![layout.offset() as isize];
        for (&size, &stride) in layout.shape().iter().zip(layout.strides()) {
            all = all
                .iter()
                .flat_map(|&at| (0..size as isize).map(move |i| at + i * stride))
                .collect();
        }
        all.into_iter().map(|at| at as usize).collect()
    }

    #[test]
    fn reshape_refuses_other_counts() {
        let layout = Layout::contiguous([2, 3]);
        let turned = layout.transpose(0, 1).unwrap();
        for shape in [&[6, 0][..], &[5, 6], &[7], &[], &[usize::MAX, 2]] {
            assert_eq!(turned.reshape(&shape.into()), None);
            assert_eq!(layout.reshape(&shape.into()), None);
        }
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn shapes_that_nothing_holds_saturate() {
        let layout = Layout::contiguous([1 << 40, 1 << 40]);
        assert!(layout.is_contiguous());
        assert!(layout.end() > 1 << 62);
        assert_eq!(layout.reshape(&[usize::MAX].into()), None);
        let turned = layout.transpose(0, 1).unwrap();
        assert_eq!(turned.reshape(&[usize::MAX].into()), None);
        let turned = |sizes: [usize; 2]| Layout::contiguous(sizes).transpose(0, 1).unwrap();
        assert_eq!(turned([4, 1 << 61]).reshape(&[1 << 63].into()), None);
        let cut = turned([1 << 31, 1 << 32]).reshape(&[1 << 31, 1 << 16, 1 << 16].into());
        assert_eq!(cut, None);
        let rows = Layout::contiguous([2, 1 << 40, 1 << 40]);
        assert_eq!(rows.strides(), [isize::MAX, 1 << 40, 1]);
        assert!(rows.is_contiguous());
        for shape in [[2, 1 << 63], [2, usize::MAX]] {
            let layout = Layout::contiguous(shape);
            assert!(layout.is_contiguous());
            assert!(layout.slice(&[(0..1).into()]).is_ok());
        }
        let back = SliceRange::from(..).step(isize::MIN);
        let back = Layout::contiguous([usize::MAX]).slice(&[back]).unwrap();
        assert!(back.slice(&[0.into()]).is_ok());
        for size in [(1usize << 63) - 1, 1 << 63, usize::MAX] {
            assert_eq!(Layout::contiguous([size]).end(), size.min(1 << 63));
            let wide = Layout::contiguous([1]).broadcast_to(&[size].into());
            assert_eq!(wide.unwrap().end(), 1);
        }
    }

    #[test]
    fn reshape_keeps_the_order_of_elements() {
        let base = Layout::contiguous([4, 6, 5]);
        let cut = base
            .slice(&[(1..3).into(), (..).into(), (..).into()])
            .unwrap();
        let inner = base.slice(&[(..).into(), (1..4).into()]).unwrap();
        let turned = base.transpose(0, 2).unwrap();
        let wide = Layout::contiguous([1, 5])
            .broadcast_to(&[3, 5].into())
            .unwrap();
        let back = base.flip(&[0, 1, 2]).unwrap();
        let partly = base.flip(&[1]).unwrap();
        assert!(back.reshape(&[4, 15, 2].into()).is_some());
        for layout in [&base, &cut, &inner, &turned, &wide, &back, &partly] {
            let n = layout.elements();
            for shape in [
                vec![n],
                vec![1, n, 1],
                vec![2, n / 2],
                vec![n / 5, 5],
                vec![4, 3, 5],
                vec![4, 15],
                vec![4, 3, 5, 1],
                vec![5, 6, 2, 2],
                vec![5, 3, 2, 4],
            ] {
                let shape = Shape::from(shape);
                if shape.elements() != n {
                    continue;
                }
                if let Some(view) = layout.reshape(&shape) {
                    assert_eq!(indices(&view), indices(layout), "{layout:?} as {shape}");
                } else {
                    assert!(!layout.is_contiguous(), "{layout:?} as {shape}");
                }
            }
        }
        assert!(inner.reshape(&[4, 15].into()).is_some());
        assert!(inner.reshape(&[60].into()).is_none());
        assert!(turned.reshape(&[5, 3, 2, 4].into()).is_some());
    }

    #[test]
    fn merging_keeps_the_order_of_elements() {
        let a = Layout::contiguous([2, 3, 4, 1]);
        let b = Layout::contiguous([3, 4, 1])
            .broadcast_to(a.shape())
            .unwrap();
        let merged = merge(&[&a, &b]);
        assert_eq!(merged.dims.as_slice(), &[2, 12]);
        assert_eq!(merged.strides[0].as_slice(), &[12, 1]);
        assert_eq!(merged.strides[1].as_slice(), &[0, 1]);
        assert_eq!(merge(&[&a]).dims.as_slice(), &[24]);
        assert!(merge(&[&Layout::contiguous([1, 1])]).dims.is_empty());
    }

    #[test]
    fn ends_bound_what_is_read() {
        let base = Layout::contiguous([4, 6]);
        for layout in [
            base.clone(),
            base.transpose(0, 1).unwrap(),
            base.slice(&[(1..3).into(), (2..5).into()]).unwrap(),
            Layout::contiguous([1]).broadcast_to(&[9].into()).unwrap(),
            Layout::contiguous(()),
            base.flip(&[0, 1]).unwrap(),
            base.flip(&[1]).unwrap().transpose(0, 1).unwrap(),
            base.slice(&[SliceRange::from(1..).step(-2), SliceRange::from(..).step(4)])
                .unwrap(),
        ] {
            assert_eq!(Some(layout.end() - 1), layout.indices().max());
            assert_eq!(Some(layout.span().start), layout.indices().min());
            assert_eq!(layout.span().end, layout.end());
            assert!(layout.indices().eq(indices(&layout)));
        }
        assert_eq!(Layout::contiguous([0, 3]).end(), 0);
        assert_eq!(Layout::contiguous([0, 3]).span(), 0..0);
    }

    #[test]
    fn sizes_beside_a_zero_may_be_anything() {
        let huge = usize::MAX / 2;
        let none = Layout::contiguous([0, huge, 4]);
        let ranges = [(..).into(), (huge - 1..).into(), (..).into()];
        assert_eq!(
            none.slice(&ranges).unwrap().shape(),
            &Shape::from([0, 1, 4])
        );
        assert!(none.is_contiguous() && none.end() == 0);
        let turned = none.permute(&[1, 2, 0]).unwrap();
        assert_eq!(turned.indices().count(), 0);
    }

    #[test]
    fn bad_views_are_errors() {
        let base = Layout::contiguous([2, 3]);
        assert!(base.permute(&[0]).is_err());
        assert!(base.permute(&[0, 0]).is_err());
        assert!(base.transpose(0, 2).is_err());
        assert!(base.slice(&[(0..3).into()]).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = (2..1).into();
        assert!(base.slice(&[reversed]).is_err());
        assert!(
            base.slice(&[(..).into(), (..).into(), (..).into()])
                .is_err()
        );
        assert!(base.squeeze(0).is_err());
        assert!(base.unsqueeze(3).is_err());
        assert!(base.broadcast_to(&[3].into()).is_err());
        assert!(base.broadcast_to(&[4, 3].into()).is_err());
    }
}
