//! Copies of views, row-major and without gaps.

use std::sync::Arc;

use super::elementwise::Body;
use crate::capabilities::Capabilities;
use crate::cpu::parallel;
use crate::dtype::{DType, by_size};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Moves bits, so NaN payloads and subnormals stay.
pub(super) struct Copy;

/// What moves the bits of an element, or of four.
pub(super) fn copy_code(dtype: DType) -> Arc<str> {
    let of = if dtype.size() == 8 { "vec2<u32>" } else { "U" };
    format!("fn apply(a0: {of}) -> {of} {{\n    return a0;\n}}").into()
}

impl Tensor {
    /// The same elements row-major and without gaps: the tensor itself when they lie so already,
    /// else a copy.
    ///
    /// # Errors
    /// Out of memory, a lost device.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        road::run_at_home(&Copy, self)
    }

    /// A contiguous copy with a storage of its own.
    ///
    /// # Errors
    /// As [`Tensor::contiguous`].
    pub fn copy(&self) -> Result<Tensor> {
        road::run(&Copy, &[self])
    }
}

impl Op for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        match inputs {
            [input] => Ok((input.layout.shape().clone(), input.dtype)),
            _ => Err(Error::invalid(self.name(), "takes one operand")),
        }
    }

    /// Moving bits needs no dtype in kernels.
    fn missing(
        &self,
        capabilities: &Capabilities,
        _inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        (!capabilities.holds(output)).then(|| road::lacks(output))
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        Body {
            op: self.name(),
            code: copy_code(problem.output.dtype),
            bits: true,
            reads_old: false,
            scalars: &[],
            flops: 0.0,
        }
        .launches(problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        by_size!(output.dtype, Bits => twin::<Bits>(inputs, output));
        Ok(())
    }
}

fn twin<T: bytemuck::Pod + Send + Sync>(inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) {
    let [input] = inputs else { return };
    let walk = parallel::Walk::new(&[input.layout]);
    let stride = walk.inner_strides()[0];
    let from: &[T] = bytemuck::cast_slice(input.bytes);
    let count = output.layout.elements();
    let Some(out) = bytemuck::cast_slice_mut::<u8, T>(output.bytes).get_mut(..count) else {
        return;
    };
    parallel::pieces(out, |start, piece| {
        let length = piece.len();
        walk.runs(start, length, |first, starts, count| {
            let out = &mut piece[first..first + count];
            if stride == 1 {
                let at = starts[0] as usize;
                out.copy_from_slice(&from[at..at + count]);
            } else {
                let mut at = starts[0];
                for out in out {
                    *out = from[at as usize];
                    at += stride;
                }
            }
        });
    });
}
