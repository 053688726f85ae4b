//! Conversions between dtypes.

use super::plan;
use crate::capabilities::Capabilities;
use crate::cpu::parallel;
use crate::dtype::{DType, Element, bf16_of, f16_of};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;
use half::{bf16, f16};

pub(super) struct Cast(pub DType);

impl Tensor {
    /// The elements as another dtype; the tensor itself when it has that dtype already.
    ///
    /// Floats to integers go toward zero and saturate, NaN becomes 0; integers to integers keep
    /// the bits; everything else rounds to nearest even (as Rust's `as`, on every device).
    ///
    /// # Errors
    /// Out of memory, unsupported under strict placement, a lost device.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        road::run(&Cast(dtype), &[self])
    }
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        match inputs {
            [input] => Ok((input.layout.shape().clone(), self.0)),
            _ => Err(Error::invalid(self.name(), "takes one operand")),
        }
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let elements = (problem.inputs[0].dtype.name(), problem.output.dtype.name());
        let op = self.name();
        plan::Elementwise {
            op,
            elements,
            vectors: true,
        }
        .launches(problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [input] = inputs else { return Ok(()) };
        // Every dtype reaches every other through a type that holds both exactly.
        match (input.dtype, output.dtype) {
            (DType::F32, DType::F16) => twin(input, output, f16::from_f32),
            (DType::F32, DType::BF16) => twin(input, output, bf16::from_f32),
            (DType::F32, DType::I32) => twin(input, output, |x: f32| x as i32),
            (DType::F32, DType::U32) => twin(input, output, |x: f32| x as u32),
            (DType::F32, DType::F64) => twin(input, output, |x: f32| f64::from(x)),
            (DType::F16, DType::F32) => twin(input, output, f16::to_f32),
            (DType::F16, DType::BF16) => twin(input, output, |x: f16| bf16::from_f32(x.to_f32())),
            (DType::F16, DType::I32) => twin(input, output, |x: f16| x.to_f32() as i32),
            (DType::F16, DType::U32) => twin(input, output, |x: f16| x.to_f32() as u32),
            (DType::F16, DType::F64) => twin(input, output, f16::to_f64),
            (DType::BF16, DType::F32) => twin(input, output, bf16::to_f32),
            (DType::BF16, DType::F16) => twin(input, output, |x: bf16| f16::from_f32(x.to_f32())),
            (DType::BF16, DType::I32) => twin(input, output, |x: bf16| x.to_f32() as i32),
            (DType::BF16, DType::U32) => twin(input, output, |x: bf16| x.to_f32() as u32),
            (DType::BF16, DType::F64) => twin(input, output, bf16::to_f64),
            (DType::I32, DType::F32) => twin(input, output, |x: i32| x as f32),
            (DType::I32, DType::F16) => twin(input, output, |x: i32| f16_of(x.into())),
            (DType::I32, DType::BF16) => twin(input, output, |x: i32| bf16_of(x.into())),
            (DType::I32, DType::U32) => twin(input, output, |x: i32| x as u32),
            (DType::I32, DType::F64) => twin(input, output, |x: i32| f64::from(x)),
            (DType::U32, DType::F32) => twin(input, output, |x: u32| x as f32),
            (DType::U32, DType::F16) => twin(input, output, |x: u32| f16_of(x.into())),
            (DType::U32, DType::BF16) => twin(input, output, |x: u32| bf16_of(x.into())),
            (DType::U32, DType::I32) => twin(input, output, |x: u32| x as i32),
            (DType::U32, DType::F64) => twin(input, output, |x: u32| f64::from(x)),
            (DType::F64, DType::F32) => twin(input, output, |x: f64| x as f32),
            (DType::F64, DType::F16) => twin(input, output, f16_of),
            (DType::F64, DType::BF16) => twin(input, output, bf16_of),
            (DType::F64, DType::I32) => twin(input, output, |x: f64| x as i32),
            (DType::F64, DType::U32) => twin(input, output, |x: f64| x as u32),
            // Equal dtypes, which `cast` itself never sends here.
            _ => return super::contiguous::Copy.twin(inputs, output),
        }
        Ok(())
    }
}

fn twin<A: Element, B: Element>(
    input: &HostInput<'_>,
    output: &mut HostOutput<'_>,
    f: impl Fn(A) -> B + Sync + Send,
) {
    let walk = parallel::Walk::new(&[input.layout]);
    let stride = walk.inner_strides()[0];
    let from = input.elements::<A>();
    let count = output.layout.elements();
    let Some(out) = output.elements::<B>().get_mut(..count) else {
        return;
    };
    parallel::pieces(out, |start, piece| {
        let length = piece.len();
        walk.runs(start, length, |first, starts, count| {
            let mut at = starts[0];
            for out in &mut piece[first..first + count] {
                *out = f(from[at as usize]);
                at += stride;
            }
        });
    });
}
