//! Reductions: sums and the like along any dimensions, on any strides.

mod axes;
mod cpu;
mod fold;
mod kernel;
mod methods;
mod plan;
mod space;

pub(super) use axes::Along;
pub use axes::{Axes, keepdim};
pub(super) use cpu::{Float, Number};
pub(super) use kernel::{State, specialisations};
pub(super) use plan::states;

use smallvec::{SmallVec, smallvec};

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// What becomes of the elements that belong to one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    Sum,
    Mean,
    Norm,
    Product,
    Max,
    Min,
    ArgMax,
    ArgMin,
    /// With what is subtracted from the number of elements.
    Variance(usize),
    Deviation(usize),
    LogSumExp,
}

impl Reduction {
    /// One for each kind of kernel.
    const KERNELS: [Reduction; 7] = [
        Reduction::Sum,
        Reduction::Norm,
        Reduction::Product,
        Reduction::Max,
        Reduction::ArgMax,
        Reduction::Variance(0),
        Reduction::LogSumExp,
    ];

    fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Norm => "norm",
            Reduction::Product => "prod",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::ArgMax => "argmax",
            Reduction::ArgMin => "argmin",
            Reduction::Variance(_) => "var",
            Reduction::Deviation(_) => "std",
            Reduction::LogSumExp => "logsumexp",
        }
    }

    /// What its kernels are called.
    pub(super) fn kernel(self) -> &'static str {
        match self {
            Reduction::Sum | Reduction::Mean => "sum",
            Reduction::Norm => "square",
            Reduction::Product => "product",
            Reduction::Max | Reduction::Min => "extreme",
            Reduction::ArgMax | Reduction::ArgMin => "place",
            Reduction::Variance(_) | Reduction::Deviation(_) => "moment",
            Reduction::LogSumExp => "exponential",
        }
    }

    /// Whether integers have it.
    fn takes_integers(self) -> bool {
        matches!(self.kernel(), "product" | "extreme" | "place") || self == Reduction::Sum
    }

    /// Whether kernels have it in a dtype that they compute with: there is no exp of f64.
    pub(super) fn in_kernels(self, dtype: DType) -> bool {
        let exists = dtype != DType::F64 || self != Reduction::LogSumExp;
        exists && (dtype.is_float() || self.takes_integers())
    }

    fn result(self, dtype: DType) -> DType {
        match self.kernel() {
            "place" => DType::U32,
            _ => dtype,
        }
    }

    /// Whether it matters which element comes first.
    fn has_order(self) -> bool {
        self.kernel() == "place"
    }

    /// What is told to a kernel beside sizes, for outputs of `length` elements.
    fn words(self, dtype: DType, length: usize) -> SmallVec<[u32; 3]> {
        let halves = |count: usize| [count as u32, (count as u64 >> 32) as u32];
        match self {
            Reduction::Sum if dtype.is_float() => halves(1).into_iter().collect(),
            Reduction::Mean => halves(length).into_iter().collect(),
            Reduction::Sum | Reduction::Product | Reduction::LogSumExp => SmallVec::new(),
            Reduction::Norm => smallvec![1],
            Reduction::Max | Reduction::ArgMax => smallvec![0],
            Reduction::Min | Reduction::ArgMin => smallvec![u32::MAX],
            Reduction::Variance(less) | Reduction::Deviation(less) => {
                let root = u32::from(matches!(self, Reduction::Deviation(_)));
                let [low, high] = halves(length.saturating_sub(less));
                smallvec![root, low, high]
            }
        }
    }
}

/// A reduction along some dimensions.
pub(super) struct Reduce {
    what: Reduction,
    along: Along,
}

impl Op for Reduce {
    fn name(&self) -> &'static str {
        self.what.name()
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        match inputs {
            [input] if input.dtype == DType::Bool => Err(Error::invalid(
                self.name(),
                "of numbers, not bool: cast first",
            )),
            [input] => {
                let shape = self.along.shape(input.layout.shape());
                Ok((shape, self.what.result(input.dtype)))
            }
            _ => Err(Error::invalid(self.name(), "takes one operand")),
        }
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        road::missing_dtype(capabilities, inputs, output).or_else(|| {
            let dtype = inputs.first()?.dtype;
            let exists = capabilities.kind == DeviceKind::Cpu || self.what.in_kernels(dtype);
            (!exists).then(|| format!("no kernel has {} of {dtype}", self.name()))
        })
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        plan::launches(self, problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [input] = inputs else { return Ok(()) };
        cpu::twin(self, input, output)
    }
}

/// Runs a reduction; what is left of no elements needs none.
fn reduce(what: Reduction, input: &Tensor, axes: Axes) -> Result<Tensor> {
    let (op, dtype) = (what.name(), input.dtype());
    let along = axes.of(op, input.shape())?;
    if !dtype.is_float() && !what.takes_integers() {
        return Err(Error::invalid(
            op,
            format!("{dtype} has none: convert it with `cast(DType::F32)` first"),
        ));
    }
    let lengths = along.axes.iter().map(|&axis| input.shape()[axis]);
    let length = lengths.fold(1usize, usize::saturating_mul);
    if let Reduction::Variance(less) | Reduction::Deviation(less) = what
        && length <= less
    {
        let problem =
            format!("of {length} elements with a correction of {less}: there must be more");
        return Err(Error::invalid(op, problem));
    }
    if what.has_order() && u32::try_from(length).is_err() {
        let problem = format!("of {length} elements: a u32 cannot count them");
        return Err(Error::invalid(op, problem));
    }
    let along = Reduce { what, along };
    if length > 0 {
        return road::run(&along, &[input]);
    }
    let value = match what {
        Reduction::Sum | Reduction::Norm => Scalar::Integer(0),
        Reduction::Product => Scalar::Integer(1),
        Reduction::LogSumExp => Scalar::Float(f64::NEG_INFINITY),
        Reduction::Mean | Reduction::Variance(_) | Reduction::Deviation(_) => {
            Scalar::Float(f64::NAN)
        }
        Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin => {
            return Err(Error::invalid(
                op,
                format!("of no elements: shape {} has none there", input.shape()),
            ));
        }
    };
    let output = along.along.shape(input.shape());
    Tensor::full(&road::home(op, &[input])?, output, value, dtype)
}
