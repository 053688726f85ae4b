//! Rows made normal along any dimensions: softmax, log_softmax, layer and root-mean-square norms.

mod beside;
mod cpu;
mod kernel;
mod plan;
mod spread;

use std::ops::RangeInclusive;

use super::order::AxisOrder;
use super::reduce::{self, Along, Axes, Reduction};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

pub(super) use kernel::specialisations;

/// What elements become, by what of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Norm {
    Softmax,
    LogSoftmax,
    Layer,
    Rms,
}

impl Norm {
    const ALL: [Norm; 4] = [Norm::Softmax, Norm::LogSoftmax, Norm::Layer, Norm::Rms];

    fn name(self) -> &'static str {
        match self {
            Norm::Softmax => "softmax",
            Norm::LogSoftmax => "log_softmax",
            Norm::Layer => "layer_norm",
            Norm::Rms => "rms_norm",
        }
    }

    /// As kernels call it.
    fn kernel(self) -> &'static str {
        match self {
            Norm::Softmax => "softmax",
            Norm::LogSoftmax => "log_softmax",
            Norm::Layer => "layer",
            Norm::Rms => "rms",
        }
    }

    /// Whether kernels hold short rows of these elements in registers: of exponentials for all; of others, whose rows caches
    /// have for the second time, it pays on hardware.
    fn is_held(self, element: DType, is_software: bool) -> bool {
        match self {
            Norm::Softmax | Norm::LogSoftmax => true,
            Norm::Layer | Norm::Rms => !is_software && element != DType::F64,
        }
    }

    /// The reduction whose states rows need.
    fn reduction(self) -> Reduction {
        match self {
            Norm::Softmax | Norm::LogSoftmax => Reduction::LogSumExp,
            Norm::Layer => Reduction::Variance(0),
            Norm::Rms => Reduction::Norm,
        }
    }
}

/// Epsilons, but 0, that two words of f32 hold to 48 bits, also where a device takes what is not normal for 0.
const IN_WORDS: RangeInclusive<f64> = 1e-23..=f32::MAX as f64;

struct Normalise {
    what: Norm,
    along: Along,
    epsilon: f64,
    /// After the tensor itself these are operands, broadcast to its shape.
    weight: bool,
    bias: bool,
}

/// Softmax and norms along any axes: one (`x.softmax(1)`), several as one row (`x.layer_norm([1, 2],
/// ..)`) or all (`..`).
///
/// f16 and bf16 are worked on in f32 and rounded once. Results are the same bits each time on one device; the bounds are
/// in `docs/numerics.md`. Their axes are in memory in the order of the tensor's, without gaps: of a transposed one
/// transposed, where within the bounds they may be other bits than its copy's; by rows where a weight has several axes
/// that lie in another order.
impl Tensor {
    /// `exp(x)` over the sum of `exp` along `axes`, without overflow on the way. NaN in a row makes it
    /// all NaN, and so does plus infinity, or nothing but minus infinity (which masks elements else).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for integers, for an axis that does not exist or is named twice, and for
    /// [`keepdim`](crate::keepdim), as every dimension stays;
    /// what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn softmax(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        normalise(Norm::Softmax, self, axes.into(), [None, None], 0.0)
    }

    /// The logarithm of [`Tensor::softmax`], accurate where that is near 0.
    ///
    /// # Errors
    /// As [`Tensor::softmax`].
    pub fn log_softmax(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        normalise(Norm::LogSoftmax, self, axes.into(), [None, None], 0.0)
    }

    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, with mean and variance (of everything,
    /// without correction) along `axes`. `weight` and `bias` have the sizes of these axes, in the tensor's
    /// order, whatever order they are named in. `epsilon` is an
    /// f64 or f32, rounded to f32 unless the tensor is of f64. On a GPU such tensors go to the CPU for one that is not 0 and
    /// below 1e-23 or above what f32 holds.
    ///
    /// # Errors
    /// As [`Tensor::softmax`]; [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for a weight or bias
    /// of another shape or dtype.
    pub fn layer_norm(
        &self,
        axes: impl Into<Axes>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: impl Into<f64>,
    ) -> Result<Tensor> {
        let epsilon = epsilon.into();
        normalise(Norm::Layer, self, axes.into(), [weight, bias], epsilon)
    }

    /// `x / sqrt(mean of squares + epsilon) * weight`, with the mean along `axes`. `weight` has the sizes of
    /// these axes, in order. `epsilon` as for [`Tensor::layer_norm`].
    ///
    /// # Errors
    /// As [`Tensor::layer_norm`].
    pub fn rms_norm(
        &self,
        axes: impl Into<Axes>,
        weight: Option<&Tensor>,
        epsilon: impl Into<f64>,
    ) -> Result<Tensor> {
        let epsilon = epsilon.into();
        normalise(Norm::Rms, self, axes.into(), [weight, None], epsilon)
    }
}

/// In the order of axes that the tensor has in memory, unless a weight would not be row-major there.
fn normalise(
    what: Norm,
    x: &Tensor,
    axes: Axes,
    [weight, bias]: [Option<&Tensor>; 2],
    epsilon: f64,
) -> Result<Tensor> {
    let along = axes.of(what.name(), x.shape())?;
    if along.keep {
        let problem = "the result has the tensor's shape: name the axes without keepdim()";
        return Err(Error::invalid(what.name(), problem));
    }
    // What kernels get, so that all devices have the same.
    let epsilon = match x.dtype() {
        DType::F64 => epsilon,
        _ => f64::from(epsilon as f32),
    };
    let order = AxisOrder::of(std::iter::once(x.layout()));
    if let Some(order) = order {
        let places = order.places(&along.axes);
        let is_scaled = weight.is_some() || bias.is_some();
        if !is_scaled || places.is_sorted() {
            let view = order.view(x)?;
            let made = normalise(
                what,
                &view,
                Axes::from(&places[..]),
                [weight, bias],
                epsilon,
            )?;
            return order.restored(&made);
        }
    }
    let given = |tensor: Option<&Tensor>, others: &[&Tensor]| -> Result<Option<Tensor>> {
        tensor
            .map(|tensor| spread(what.name(), tensor, x, others, &along))
            .transpose()
    };
    let weight = given(weight, &[x])?;
    let before: smallvec::SmallVec<[&Tensor; 2]> =
        [Some(x), weight.as_ref()].into_iter().flatten().collect();
    let bias = given(bias, &before)?;
    let op = Normalise {
        what,
        along,
        epsilon,
        weight: weight.is_some(),
        bias: bias.is_some(),
    };
    let operands: smallvec::SmallVec<[&Tensor; 3]> = [Some(x), weight.as_ref(), bias.as_ref()]
        .into_iter()
        .flatten()
        .collect();
    road::run(&op, &operands)
}

/// A weight or bias as a view of the tensor's shape, without gaps and in another storage than `others`.
fn spread(
    op: &'static str,
    given: &Tensor,
    x: &Tensor,
    others: &[&Tensor],
    along: &Along,
) -> Result<Tensor> {
    let sizes: Shape = along.axes.iter().map(|&axis| x.shape()[axis]).collect();
    if given.shape() != &sizes {
        let rule = "weight and bias have the sizes of the axes along which is normalised, in the tensor's order";
        return Err(Error::shape_mismatch(op, &sizes, given.shape(), rule));
    }
    if given.dtype() != x.dtype() {
        let rule = "weight and bias have the tensor's dtype";
        return Err(Error::operand_dtype(op, given.dtype(), x.dtype(), rule));
    }
    let shares = others.iter().any(|other| given.shares_storage(other));
    let own = if shares {
        given.copy_at_home(op)?
    } else {
        given.contiguous_for(op)?
    };
    let among: Shape = (0..x.rank())
        .map(|axis| {
            if along.axes.contains(&axis) {
                x.shape()[axis]
            } else {
                1
            }
        })
        .collect();
    own.reshape(&among)?.broadcast_to(x.shape())
}

impl Op for Normalise {
    fn name(&self) -> &'static str {
        self.what.name()
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let Some(x) = inputs.first() else {
            return Err(Error::invalid(self.name(), "takes an operand"));
        };
        if !x.dtype.is_float() {
            return Err(Error::invalid(
                self.name(),
                format!(
                    "takes floats, not {}: convert it with `cast(DType::F32)` first",
                    x.dtype
                ),
            ));
        }
        road::check_walk(self.name(), x.layout.shape())?;
        Ok((x.layout.shape().clone(), x.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        if capabilities.kind == DeviceKind::Cpu {
            return None;
        }
        // The output and the states of rows come on top.
        let bindings = inputs.len() as u32 + 2;
        if bindings > capabilities.max_bindings {
            let most = capabilities.max_bindings;
            return Some(format!(
                "a kernel binds {most} storage buffers, not {bindings}"
            ));
        }
        let size = self.epsilon.abs();
        if output == DType::F64 && size != 0.0 && !IN_WORDS.contains(&size) {
            let epsilon = self.epsilon;
            return Some(format!("no kernel takes {epsilon:e} as an epsilon"));
        }
        let reduction = self.what.reduction();
        reduce::missing(reduction, self.name(), output, capabilities)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        plan::launches(self, problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        cpu::twin(self, inputs, output)
    }
}
