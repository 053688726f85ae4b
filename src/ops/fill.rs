//! One value in every element: new tensors, and views in place.

use half::f16;
use smallvec::smallvec;

use super::plan;
use crate::capabilities::Capabilities;
use crate::cpu::parallel;
use crate::dtype::{DType, ElementBytes, Scalar};
use crate::error::{Error, Result};
use crate::launch::{Bound, Launch, Launches, Words};
use crate::layout::{Layout, merge};
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Elements that one workgroup writes.
const PER_WORKGROUP: u64 = 1024;

pub(super) struct Fill {
    op: &'static str,
    shape: Shape,
    dtype: DType,
    value: ElementBytes,
    /// The output is a new tensor: whole words can be written.
    fresh: bool,
}

impl Fill {
    /// # Errors
    /// `InvalidArgument` when an integer dtype cannot hold the value.
    pub(super) fn new(
        op: &'static str,
        shape: Shape,
        value: Scalar,
        dtype: DType,
        fresh: bool,
    ) -> Result<Self> {
        let value = value
            .to_bytes(dtype)
            .ok_or_else(|| Error::invalid(op, format!("{dtype} cannot hold the value {value}")))?;
        Ok(Self {
            op,
            shape,
            dtype,
            value,
            fresh,
        })
    }
}

impl Tensor {
    /// Writes `value` to every element, in place: all views of the storage see it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when an integer dtype cannot hold the value; unsupported under
    /// strict placement (f16 where kernels have none); a lost device.
    pub fn fill(&self, value: impl Into<Scalar>) -> Result<()> {
        let each = self.view(self.layout().distinct());
        let fill = Fill::new(
            "fill",
            each.shape().clone(),
            value.into(),
            self.dtype(),
            false,
        )?;
        road::write(&fill, &each)
    }
}

impl Op for Fill {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, _inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        Ok((self.shape.clone(), self.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        _inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let possible = capabilities.computes(output) || (self.fresh && capabilities.holds(output));
        (!possible).then(|| road::lacks(output))
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let [mut low, high] = self.value.words();
        // New tensors of f16 are filled two elements at a time: every device has 32-bit words.
        let words_of_pairs = Layout::contiguous(problem.output.layout.elements().div_ceil(2));
        let (element, layout) = match (self.dtype, problem.fresh) {
            (DType::F16, true) => ("u32", &words_of_pairs),
            (dtype, _) => (plan::bits(dtype).0, problem.output.layout),
        };
        if element == "f16" {
            low = f16::from_bits(low as u16).to_f32().to_bits();
        }
        let mut merged = merge(&[layout]);
        if merged.dims.is_empty() {
            merged.dims.push(1);
            merged.strides[0].push(0);
        }
        if u32::try_from(layout.end()).is_err() {
            return Err(plan::index_overflow(self.name()));
        }
        let count = layout.elements();
        let mut words: Words = smallvec![count as u32, layout.offset() as u32, low, high];
        words.extend(merged.dims.iter().skip(1).map(|&size| size as u32));
        words.extend(merged.strides[0].iter().map(|&stride| stride as u32));
        Ok(smallvec![Launch {
            kernel: plan::key(
                "fill",
                [
                    ("element", element.into()),
                    ("rank", (merged.dims.len() as u32).into()),
                ],
                1,
                &words,
            ),
            operands: smallvec![Bound::whole(0)],
            dispatches: smallvec![plan::dispatch(
                self.name(),
                words,
                count as u64,
                PER_WORKGROUP,
                capabilities.max_workgroups,
            )?],
            flops: 0.0,
            bytes: (count * self.dtype.size()) as f64,
        }])
    }

    fn twin(&self, _inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let value = self.value.as_slice();
        match self.dtype.size() {
            2 => twin(output, bytemuck::pod_read_unaligned::<u16>(value)),
            4 => twin(output, bytemuck::pod_read_unaligned::<u32>(value)),
            _ => twin(output, bytemuck::pod_read_unaligned::<u64>(value)),
        }
        Ok(())
    }
}

fn twin<T: bytemuck::Pod + Send + Sync>(output: &mut HostOutput<'_>, value: T) {
    let layout = output.layout;
    let out: &mut [T] = bytemuck::cast_slice_mut(output.bytes);
    if layout.is_contiguous() {
        let range = layout.offset()..layout.offset() + layout.elements();
        if let Some(out) = out.get_mut(range) {
            parallel::pieces(out, |_, piece| piece.fill(value));
        }
        return;
    }
    let walk = parallel::Walk::new(&[layout]);
    let stride = walk.inner_strides()[0];
    walk.runs(0, layout.elements(), |_, starts, count| {
        for at in 0..count as isize {
            out[(starts[0] + at * stride) as usize] = value;
        }
    });
}
