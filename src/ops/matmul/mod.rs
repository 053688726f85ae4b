//! Matrix products: 2-D, batched with broadcasting, with vectors as in NumPy.

mod cpu;
mod gpu;
mod plan;
mod rule;

pub(super) use gpu::specialisations;

use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::Launch;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The product of `[batch..., m, k]` and `[batch..., k, n]`, batches already broadcast.
struct Matmul;

impl Tensor {
    /// The matrix product by NumPy's rule: the last two dimensions are matrices, those before
    /// them broadcast; a vector on the left is a row, on the right a column, and that dimension
    /// does not come out. Transposed and sliced views are read as they lie, without copies.
    ///
    /// f32 sums stay f32, f16 inputs are summed in f32, integers wrap. The f32 error is within
    /// `4 sqrt(k) 2^-23 sum |a||b|` of the exact result, entry by entry.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for inner sizes or batches that do
    /// not go together, [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a scalar operand; out of
    /// memory, unsupported under strict placement, a lost device.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        let form = rule::form(self, other)?;
        if form.inner == 0 {
            // Empty sums: nothing to multiply.
            return Tensor::zeros(self.device(), form.output, self.dtype());
        }
        let product = road::run(&Matmul, &[&form.left, &form.right])?;
        Ok(product.view(crate::layout::Layout::contiguous(form.output)))
    }
}

impl Op for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        rule::infer(inputs)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launch> {
        gpu::launch(problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        cpu::multiply(inputs, output);
        Ok(())
    }
}
