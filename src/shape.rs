//! The sizes of a tensor's dimensions.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// A number for each dimension (sizes, indices), or the numbers of some: without an allocation for as many as most have.
pub(crate) type Dims = SmallVec<[usize; 6]>;

/// The sizes of a tensor's dimensions, outermost first. A scalar has none.
///
/// Made from arrays, slices, vectors, a single `usize`, or `()` for a scalar.
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Clone for Shape {
    /// As a copy of memory: the derived one goes element by element, and ops copy shapes all the time.
    fn clone(&self) -> Self {
        Shape(SmallVec::from_slice(&self.0))
    }
}

impl Shape {
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Sizes, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of elements: 1 for a scalar, 0 when any size is 0; `None` when it overflows `usize`.
    pub fn checked_elements(&self) -> Option<usize> {
        let product = self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        // What comes before a 0 may overflow.
        product.or_else(|| self.0.contains(&0).then_some(0))
    }

    /// Number of elements, saturating. Shapes of tensors never overflow.
    pub fn elements(&self) -> usize {
        self.checked_elements().unwrap_or(usize::MAX)
    }

    /// The number of elements of a tensor to be.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when it overflows `isize`, which bounds every address.
    pub(crate) fn count(&self, op: &'static str) -> Result<usize> {
        match self.checked_elements() {
            Some(count) if isize::try_from(count).is_ok() => Ok(count),
            _ => Err(self.too_large(op)),
        }
    }

    #[cold]
    fn too_large(&self, op: &'static str) -> Error {
        // The exact count may not fit any integer: say at least this much.
        let sizes = self.0.iter();
        let asked = sizes.fold(1u128, |n, &d| n.saturating_mul(d as u128));
        Error::too_large(
            op,
            format!("a tensor of shape {self}"),
            asked,
            isize::MAX as u64,
            "elements",
            "the address space",
            "check the shape",
        )
    }

    /// The same with another last size.
    pub(crate) fn with_last(&self, size: usize) -> Shape {
        let mut shape = self.clone();
        if let Some(last) = shape.0.last_mut() {
            *last = size;
        }
        shape
    }

    /// The shape that `self` and `other` broadcast to by NumPy's rule: aligned at the last
    /// dimension, sizes are equal or one of them is 1.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] with `op` as the operation's name.
    pub fn broadcast(&self, other: &Shape, op: &'static str) -> Result<Shape> {
        if self == other {
            return Ok(self.clone());
        }
        let rank = self.rank().max(other.rank());
        let size_at = |shape: &Shape, d: usize| {
            (d + shape.rank())
                .checked_sub(rank)
                .map_or(1, |at| shape.0[at])
        };
        let mut dims = SmallVec::with_capacity(rank);
        for d in 0..rank {
            dims.push(match (size_at(self, d), size_at(other, d)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => {
                    return Err(Error::shape_mismatch(
                        op,
                        self,
                        other,
                        "aligned at the last dimension, sizes must be equal or one of them 1",
                    ));
                }
            });
        }
        Ok(Shape(dims))
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        Shape(iter.into_iter().collect())
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Self {
        Shape::default()
    }
}

impl From<usize> for Shape {
    fn from(size: usize) -> Self {
        Shape::from([size])
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(SmallVec::from_vec(dims))
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Self {
        Shape::from(dims.as_slice())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl From<Shape> for Vec<usize> {
    fn from(shape: Shape) -> Self {
        shape.0.into_vec()
    }
}

impl<'a> IntoIterator for &'a Shape {
    type Item = &'a usize;
    type IntoIter = std::slice::Iter<'a, usize>;

    fn into_iter(self) -> Self::IntoIter {
        self.dims().iter()
    }
}

impl PartialEq<Vec<usize>> for Shape {
    fn eq(&self, other: &Vec<usize>) -> bool {
        self.dims() == other
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        self.dims() == other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self.dims() == other
    }
}

/// The size of an axis that has all of `parts`.
///
/// # Errors
/// `TooLarge`, of tensors without elements too.
pub(crate) fn axis_of(op: &'static str, parts: impl IntoIterator<Item = usize>) -> Result<usize> {
    let size = parts.into_iter().map(|part| part as u128).sum::<u128>();
    usize::try_from(size)
        .ok()
        .filter(|&size| isize::try_from(size).is_ok())
        .ok_or_else(|| {
            Error::too_large(
                op,
                "an axis",
                size,
                isize::MAX as u64,
                "elements",
                "the address space",
                "use smaller sizes",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let b = |a: &[usize], b: &[usize]| {
            Shape::from(a)
                .broadcast(&Shape::from(b), "add")
                .ok()
                .map(|s| s.dims().to_vec())
        };
        assert_eq!(b(&[2, 3], &[3]), Some(vec![2, 3]));
        assert_eq!(b(&[2, 1], &[1, 4]), Some(vec![2, 4]));
        assert_eq!(b(&[], &[5]), Some(vec![5]));
        assert_eq!(b(&[0, 3], &[1]), Some(vec![0, 3]));
        assert_eq!(b(&[0], &[1]), Some(vec![0]));
        assert_eq!(b(&[0], &[2]), None);
        assert_eq!(b(&[2, 3], &[2]), None);
    }

    #[test]
    fn element_counts_never_overflow() {
        assert_eq!(Shape::from(()).checked_elements(), Some(1));
        assert_eq!(
            Shape::from([usize::MAX, usize::MAX]).checked_elements(),
            None
        );
        assert_eq!(
            Shape::from([usize::MAX, usize::MAX, 0]).checked_elements(),
            Some(0)
        );
    }
}
