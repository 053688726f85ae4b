//! Running sums along an axis.

mod cpu;
mod kernel;

use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::layout::Axis;
use crate::ops::contiguous::near;
use crate::ops::order::AxisOrder;
use crate::ops::ranges;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::{Dims, Shape};
use crate::tensor::Tensor;

pub(super) use kernel::{running, specialisations};

const OP: &str = "cumsum";

impl Tensor {
    /// Running sums along `axis` (PyTorch's and NumPy's `cumsum`): the first element, the sum of the first two, and so on to
    /// the sum of all. The shape is the tensor's. Integers wrap in their own dtype; of bool, how many are true so far, as u32.
    ///
    /// f16 and bf16 are summed in f32 and rounded once each. Each sum is within the bound of [`Tensor::sum`], however long the
    /// axis is, and the same bits each time on one device; as elements are joined in another order it may differ from `sum`, and
    /// between devices, in its last bits. The result's axes are in memory in the order of the tensor's.
    ///
    /// Sums from the end are those of a flipped tensor, flipped; sums of what is before an element are the result of a
    /// [`Tensor::pad`] by one zero in front.
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let lengths = Tensor::from_slice(&Device::cpu(), &[3u32, 1, 4], [3])?;
    /// assert_eq!(lengths.cumsum(0)?.to_vec::<u32>()?, [3, 4, 8]);
    /// assert_eq!(lengths.flip(&[0])?.cumsum(0)?.flip(&[0])?.to_vec::<u32>()?, [8, 5, 4]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such axis; what any op can meet
    /// ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn cumsum(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = axis.into().of(OP, self.shape())?;
        let Some(order) = AxisOrder::of(std::iter::once(self.layout())) else {
            return along(self, axis);
        };
        let places = order.places(&[axis]);
        let sums = along(&order.view(self)?, places.first().copied().unwrap_or(axis))?;
        order.restored(&sums)
    }
}

/// Running sums of a tensor whose result lies by rows.
fn along(x: &Tensor, axis: usize) -> Result<Tensor> {
    let op = CumSum { axis };
    let home = road::home(OP, &[x])?;
    let inner = x.shape().iter().skip(axis + 1).product();
    let steps = [x.layout().strides()[axis].unsigned_abs(), inner];
    if !home.is_cpu() && kernel::is_far(home.capabilities(), x.shape()[axis], steps) {
        road::check(&op, &[x], None)?;
        // A block of the axis is more than a kernel binds: with the axis turned inside, it is a line.
        let last = x.rank() - 1;
        let others = (0..x.rank()).filter(|&other| other != axis);
        let turned: Dims = others.chain([axis]).collect();
        let mut back: Dims = (0..last).collect();
        back.insert(axis, last);
        let near = x.permute(&turned)?.copy_once(op.name())?;
        return along(&near, last)?.permute(&back);
    }
    let x = near(&op, &[x], x, |limit| {
        Ok(ranges::launches(x.layout(), x.dtype().size(), limit))
    })?;
    let sums = road::run(&op, &[&x])?;
    match x.dtype() {
        dtype @ (DType::F16 | DType::BF16) => sums.cast(dtype),
        _ => Ok(sums),
    }
}

/// Running sums in the type that sums are kept in, which the caller rounds.
struct CumSum {
    axis: usize,
}

/// What sums of a dtype are kept in.
fn summed(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::U32,
        other => other.accumulator(),
    }
}

impl Op for CumSum {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [x] = inputs else {
            return Err(Error::invalid(OP, "takes one operand"));
        };
        road::check_walk(OP, x.layout.shape())?;
        Ok((x.layout.shape().clone(), summed(x.dtype)))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let [x] = inputs else { return None };
        ranges::missing(capabilities, output, &[x.layout], x.layout.elements())
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        kernel::launches(self.axis, problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [x] = inputs else { return Ok(()) };
        cpu::twin(self.axis, x, output)
    }
}
