//! Conversions between dtypes.

use half::f16;
use smallvec::smallvec;

use super::plan::{self, WORKGROUP, Walk};
use crate::capabilities::Capabilities;
use crate::cpu::parallel;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::launch::{Launch, Words};
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Steps per invocation.
const PER_THREAD: u32 = 4;

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

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launch> {
        let elements = (problem.inputs[0].dtype.name(), problem.output.dtype.name());
        unary_launch(self.name(), problem, capabilities, elements, true)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [input] = inputs else { return Ok(()) };
        // Every dtype reaches every other through a type that holds both exactly.
        match (input.dtype, output.dtype) {
            (DType::F32, DType::F16) => twin(input, output, f16::from_f32),
            (DType::F32, DType::I32) => twin(input, output, |x: f32| x as i32),
            (DType::F32, DType::U32) => twin(input, output, |x: f32| x as u32),
            (DType::F32, DType::F64) => twin(input, output, |x: f32| f64::from(x)),
            (DType::F16, DType::F32) => twin(input, output, f16::to_f32),
            (DType::F16, DType::I32) => twin(input, output, |x: f16| x.to_f32() as i32),
            (DType::F16, DType::U32) => twin(input, output, |x: f16| x.to_f32() as u32),
            (DType::F16, DType::F64) => twin(input, output, f16::to_f64),
            (DType::I32, DType::F32) => twin(input, output, |x: i32| x as f32),
            (DType::I32, DType::F16) => twin(input, output, |x: i32| f16::from_f64(x.into())),
            (DType::I32, DType::U32) => twin(input, output, |x: i32| x as u32),
            (DType::I32, DType::F64) => twin(input, output, |x: i32| f64::from(x)),
            (DType::U32, DType::F32) => twin(input, output, |x: u32| x as f32),
            (DType::U32, DType::F16) => twin(input, output, |x: u32| f16::from_f64(x.into())),
            (DType::U32, DType::I32) => twin(input, output, |x: u32| x as i32),
            (DType::U32, DType::F64) => twin(input, output, |x: u32| f64::from(x)),
            (DType::F64, DType::F32) => twin(input, output, |x: f64| x as f32),
            (DType::F64, DType::F16) => twin(input, output, f16::from_f64),
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

/// The launch of an op with one input: copies and casts.
pub(super) fn unary_launch(
    op: &'static str,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    (element_in, element_out): (&'static str, &'static str),
    vectors: bool,
) -> Result<Launch> {
    let (from, to) = (problem.inputs[0].dtype, problem.output.dtype);
    let walk = Walk::new(op, &[problem.inputs[0].layout], vectors)?;
    let mut words: Words = smallvec![walk.count];
    words.extend_from_slice(&walk.offsets);
    words.extend_from_slice(&walk.dims);
    let operands = problem.bindings();
    let kernel = plan::key(
        "elementwise",
        [
            ("op", op.into()),
            ("element_in", element_in.into()),
            ("element_out", element_out.into()),
            ("kind", plan::kind(from).into()),
            ("kind_out", plan::kind(to).into()),
            ("vector", walk.vector.into()),
            ("inner_a", walk.inner[0].into()),
            ("inner_b", 0.into()),
            ("rank", walk.rank.into()),
            ("per_thread", PER_THREAD.into()),
            ("slot_a", 0.into()),
            ("slot_b", 0.into()),
            ("slot_out", 1.into()),
        ],
        operands.len(),
        &words,
    );
    let elements = problem.output.layout.elements() as f64;
    Ok(Launch {
        kernel,
        operands,
        dispatches: smallvec![plan::dispatch(
            op,
            words,
            u64::from(walk.count),
            WORKGROUP * u64::from(PER_THREAD),
            capabilities.max_workgroups,
        )?],
        flops: elements,
        bytes: elements * (from.size() + to.size()) as f64,
    })
}
