//! Quantiles: what stands at a place of a sorted line, or between two.

use super::selection::{self, Selection};
use super::{SortOrder, sorted, turned};
use crate::error::{Error, Result};
use crate::layout::{Axis, SliceRange};
use crate::ops::elementwise::fused;
use crate::road;
use crate::tensor::Tensor;

impl Tensor {
    /// The `q`-quantile along `axis`, with `q` from 0 to 1 (NumPy's and PyTorch's `quantile`, in their default way): of a line of
    /// `n` elements in order what stands at place `q * (n - 1)`, between two of them in proportion. The axis is gone from the
    /// shape. NaN where one is NaN.
    ///
    /// GPUs sort the lines, the CPU looks for the place alone where a line has 48 elements or more: for several quantiles of one
    /// tensor, [`Tensor::sort`] it once. Between -infinity and infinity is NaN; between an infinity and a number, or the same, is
    /// that infinity.
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[4.0f32, 1.0, 2.0, 8.0, 9.0, 5.0], [2, 3])?;
    /// assert_eq!(x.quantile(0.25, 1)?.to_vec::<f32>()?, [1.5, 6.5]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another `q`, for integers and bool, and where the axis is empty; as [`Tensor::sort`].
    pub fn quantile(&self, q: f64, axis: impl Into<Axis>) -> Result<Tensor> {
        quantile("quantile", self, q, axis.into())
    }

    /// The median along `axis`: [`Tensor::quantile`] 0.5, so of an even number of elements the mean of the two in the middle
    /// (NumPy's; PyTorch's `median` takes the lower one, which is `x.sort(..)` at place `(n - 1) / 2`).
    ///
    /// # Errors
    /// As [`Tensor::quantile`].
    pub fn median(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        quantile("median", self, 0.5, axis.into())
    }
}

fn quantile(op: &'static str, x: &Tensor, q: f64, axis: Axis) -> Result<Tensor> {
    let axis = axis.of(op, x.shape())?;
    if !(0.0..=1.0).contains(&q) {
        return Err(Error::invalid(op, format!("{q} is not from 0 to 1")));
    }
    if !x.dtype().is_float() {
        let why = format!("{} has no elements between others", x.dtype());
        return Err(Error::invalid(op, why));
    }
    let size = x.shape()[axis];
    if size == 0 {
        let why = format!("axis {axis} of shape {} is empty", x.shape());
        return Err(Error::invalid(op, why));
    }
    let last = size - 1;
    let place = q * last as f64;
    // Rounded, the place of a long line may lie behind it.
    let low = (place.floor() as usize).min(last);
    let part = place - low as f64;
    let (lines, places) = match size >= selection::LEAST && road::home(op, &[x])?.is_cpu() {
        true => (selected(op, x, axis, low)?, [0, 1, 2]),
        false => {
            let lines = sorted(op, x, axis, SortOrder::Ascending)?;
            (lines, [low, (low + 1).min(last), last])
        }
    };
    let at = |place: usize| -> Result<Tensor> {
        let mut ranges = vec![SliceRange::from(..); x.rank()];
        ranges[axis] = SliceRange::from(place);
        lines.slice(&ranges[..])
    };
    let (lower, largest) = (at(places[0])?, at(places[2])?);
    // Of a part that is none in f32 infinities would make NaN.
    if low == last || part < f64::from(f32::MIN_POSITIVE) {
        return lower.minimum(&largest);
    }
    let upper = at(places[1])?;
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    // The largest is NaN where one is, and so is the lesser of it and another.
    fused(|e| {
        let [lower, upper] = [&lower, &upper].map(|entry| e.input(entry).cast(wide));
        let between = lower * (1.0 - part) + upper * part;
        let value = lower.eq(upper).select(lower, between);
        value.cast(dtype).minimum(e.input(&largest))
    })
}

/// What [`Selection`] tells of the lines along an axis, in the tensor's dtype.
fn selected(op: &'static str, x: &Tensor, axis: usize, place: usize) -> Result<Tensor> {
    let selection = Selection { op, place };
    let told = turned(x, axis, |lines| road::run(&selection, &[lines]))?;
    told.cast(x.dtype())
}
