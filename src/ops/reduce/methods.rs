//! The reductions of tensors.

use super::{Axes, Reduction, reduce};
use crate::error::Result;
use crate::tensor::Tensor;

/// Reductions along any axes: one (`x.sum(1)`), several (`x.sum([0, 2])`) or all (`x.sum(..)`);
/// `x.sum(keepdim(1))` keeps them as dimensions of size 1.
///
/// f16 and bf16 are reduced in f32 and rounded once. Results are the same bits each time on one device.
/// The bounds are in `docs/numerics.md`.
impl Tensor {
    /// The sum along `axes`; of no elements 0. Integers wrap in their own dtype; of bool, how many are
    /// true, as u32.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an axis that does not exist or is
    /// named twice; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn sum(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::Sum, self, axes.into())
    }

    /// The mean along `axes`; of no elements NaN.
    ///
    /// # Errors
    /// As [`Tensor::sum`], and [`Error::InvalidArgument`](crate::Error::InvalidArgument) for integers and
    /// bool.
    pub fn mean(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::Mean, self, axes.into())
    }

    /// The product along `axes`; of no elements 1. Integers wrap in their own dtype.
    ///
    /// # Errors
    /// As [`Tensor::sum`], and [`Error::InvalidArgument`](crate::Error::InvalidArgument) for bool.
    pub fn prod(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::Product, self, axes.into())
    }

    /// The largest element along `axes`; NaN where one is NaN. Of bool, where there are elements, as [`Tensor::any`].
    ///
    /// # Errors
    /// As [`Tensor::sum`], and [`Error::InvalidArgument`](crate::Error::InvalidArgument) where there are
    /// no elements.
    pub fn max(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::Max, self, axes.into())
    }

    /// The smallest element along `axes`; NaN where one is NaN. Of bool, where there are elements, as [`Tensor::all`].
    ///
    /// # Errors
    /// As [`Tensor::max`].
    pub fn min(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::Min, self, axes.into())
    }

    /// Where the largest element along `axes` is, as u32: the first of equal ones, the first NaN where
    /// there is one. Along several axes elements are counted row-major.
    ///
    /// # Errors
    /// As [`Tensor::max`], for bool, and for 2^32 elements or more.
    pub fn argmax(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::ArgMax, self, axes.into())
    }

    /// Where the smallest element along `axes` is: as [`Tensor::argmax`].
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    pub fn argmin(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::ArgMin, self, axes.into())
    }

    /// The variance along `axes`: the sum of squared distances from the mean, over the number of
    /// elements less `correction` (1 for a sample's, 0 for that of everything).
    ///
    /// # Errors
    /// As [`Tensor::mean`], and [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless there
    /// are more elements than `correction`.
    pub fn var(&self, axes: impl Into<Axes>, correction: usize) -> Result<Tensor> {
        reduce(Reduction::Variance(correction), self, axes.into())
    }

    /// The standard deviation along `axes`: the square root of [`Tensor::var`].
    ///
    /// # Errors
    /// As [`Tensor::var`].
    pub fn std(&self, axes: impl Into<Axes>, correction: usize) -> Result<Tensor> {
        reduce(Reduction::Deviation(correction), self, axes.into())
    }

    /// The logarithm of the sum of `exp` of the elements along `axes`, without overflow on the way; of
    /// no elements minus infinity.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::LogSumExp, self, axes.into())
    }

    /// The Euclidean norm along `axes`: the square root of the sum of squares.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn norm(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::Norm, self, axes.into())
    }

    /// Whether any element along `axes` is true, as bool: of numbers, whether any differs from
    /// zero, as NaN does. Of no elements false.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn any(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::Any, self, axes.into())
    }

    /// Whether all elements along `axes` are true, as bool: of numbers, whether none is zero,
    /// as NaN is not. Of no elements true.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn all(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        reduce(Reduction::All, self, axes.into())
    }
}
