//! Reductions: sums and the like along any dimensions, on any strides.

mod axes;
mod beside;
mod cpu;
mod exponential;
mod fold;
mod kernel;
mod lanes;
mod methods;
mod moment;
mod number;
mod plan;
mod shares;
mod space;

pub(super) use axes::Along;
pub use axes::{Axes, keepdim};
pub(super) use cpu::rows;
pub(super) use kernel::{State, specialisations};
pub(super) use lanes::{Lanes, Read};
pub(super) use number::{Float, Made, Number, largest, sum, sum_of_powers};
pub(super) use plan::states;
pub(super) use space::Space;

use smallvec::{SmallVec, smallvec};

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::ops::create::filled;
use crate::ops::plan::NO_WIDE_BITS;
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
    Any,
    All,
}

impl Reduction {
    /// One for each kind of kernel.
    const KERNELS: [Reduction; 8] = [
        Reduction::Sum,
        Reduction::Norm,
        Reduction::Product,
        Reduction::Max,
        Reduction::ArgMax,
        Reduction::Variance(0),
        Reduction::LogSumExp,
        Reduction::Any,
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
            Reduction::Any => "any",
            Reduction::All => "all",
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
            Reduction::Any | Reduction::All => "truth",
        }
    }

    /// Whether integers have it.
    fn takes_integers(self) -> bool {
        matches!(self.kernel(), "product" | "extreme" | "place" | "truth") || self == Reduction::Sum
    }

    /// Whether a dtype has it at all.
    fn takes(self, dtype: DType) -> bool {
        match dtype {
            DType::Bool => self.kernel() == "truth" || self == Reduction::Sum,
            _ => dtype.is_float() || self.takes_integers(),
        }
    }

    /// Whether kernels have it in a dtype: there is no exp of f64.
    pub(super) fn in_kernels(self, dtype: DType) -> bool {
        let exists = dtype != DType::F64 || self != Reduction::LogSumExp;
        exists && self.takes(dtype)
    }

    fn result(self, dtype: DType) -> DType {
        match (self.kernel(), dtype) {
            ("place", _) | ("sum", DType::Bool) => DType::U32,
            ("truth", _) => DType::Bool,
            _ => dtype,
        }
    }

    fn is_extreme(self) -> bool {
        use Reduction::*;
        matches!(self, Max | Min | ArgMax | ArgMin)
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
            Reduction::Sum | Reduction::Product | Reduction::LogSumExp | Reduction::Norm => {
                SmallVec::new()
            }
            Reduction::Max | Reduction::ArgMax => smallvec![0],
            Reduction::Min | Reduction::ArgMin => smallvec![u32::MAX],
            Reduction::Variance(less) | Reduction::Deviation(less) => {
                let root = u32::from(matches!(self, Reduction::Deviation(_)));
                let [low, high] = halves(length.saturating_sub(less));
                smallvec![root, low, high]
            }
            Reduction::Any | Reduction::All => {
                let bits = match dtype {
                    DType::Bool => 0xff,
                    DType::F16 | DType::BF16 => 0x7fff,
                    DType::F32 => 0x7fff_ffff,
                    _ => u32::MAX,
                };
                smallvec![u32::from(self == Reduction::All), bits]
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
            [input] => {
                road::check_walk(self.name(), input.layout.shape())?;
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
        _: DType,
    ) -> Option<String> {
        let dtype = inputs.first()?.dtype;
        missing(self.what, self.name(), dtype, capabilities)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        plan::launches(self, problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [input] = inputs else { return Ok(()) };
        cpu::twin(self, input, output)
    }
}

/// What kernels of a reduction lack: f64 some adapters, no device the narrow floats, which lie in words.
pub(super) fn missing(
    what: Reduction,
    name: &str,
    dtype: DType,
    capabilities: &Capabilities,
) -> Option<String> {
    if capabilities.kind == DeviceKind::Cpu {
        None
    } else if !capabilities.holds(dtype) {
        Some(road::lacks(dtype))
    } else if what.kernel() == "truth" && dtype == DType::F64 && !capabilities.int64 {
        Some(NO_WIDE_BITS.to_owned())
    } else {
        (!what.in_kernels(dtype)).then(|| format!("no kernel has {name} of {dtype}"))
    }
}

/// Runs a reduction; what is left of no elements needs none.
fn reduce(asked: Reduction, input: &Tensor, axes: Axes) -> Result<Tensor> {
    let (op, dtype) = (asked.name(), input.dtype());
    let along = axes.of(op, input.shape())?;
    let what = match asked {
        Reduction::Max if dtype == DType::Bool => Reduction::Any,
        Reduction::Min if dtype == DType::Bool => Reduction::All,
        other => other,
    };
    if !what.takes(dtype) {
        return Err(Error::invalid(
            op,
            format!("does not take {dtype}: convert it with `cast(DType::F32)` first"),
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
    let value = match asked {
        Reduction::Sum | Reduction::Norm | Reduction::Any => Scalar::Integer(0),
        Reduction::Product | Reduction::All => Scalar::Integer(1),
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
    filled(
        op,
        &road::home(op, &[input])?,
        output,
        value,
        what.result(dtype),
    )
}
