//! One value in every element: new tensors, and views in place.

use smallvec::smallvec;

use super::{contiguous, plan};
use crate::capabilities::Capabilities;
use crate::cpu::{self, parallel};
use crate::dtype::{DType, ElementBytes, Scalar, by_size};
use crate::error::{Error, Result};
use crate::launch::{Bound, Launch, Launches, Words};
use crate::layout::{Layout, Merged};
use crate::road::window::{self, Limits, Walked};
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
}

impl Fill {
    /// # Errors
    /// `InvalidArgument` when an integer dtype cannot hold the value.
    pub(super) fn new(op: &'static str, shape: Shape, value: Scalar, dtype: DType) -> Result<Self> {
        let value = value
            .to_bytes(dtype)
            .ok_or_else(|| Error::invalid(op, format!("{dtype} cannot hold the value {value}")))?;
        Ok(Self {
            op,
            shape,
            dtype,
            value,
        })
    }
}

impl Tensor {
    /// Writes `value` to every element, in place: all views of the storage see it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when an integer or bool dtype cannot hold the value;
    /// what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn fill(&self, value: impl Into<Scalar>) -> Result<()> {
        let each = self.view(self.layout().distinct());
        let fill = Fill::new("fill", each.shape().clone(), value.into(), self.dtype())?;
        contiguous::write(&fill, &[], &each)
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
        (!capabilities.holds(output)).then(|| road::lacks(output))
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let [low, high] = self.value.words();
        // New tensors are filled by whole words; in views neighbours of a word may be others'.
        let of_word = (4 / self.dtype.size()).max(1);
        let words = Layout::contiguous(problem.output.layout.elements().div_ceil(of_word));
        let (element, layout, element_bytes) = match (self.dtype.size(), problem.fresh) {
            (1 | 2, true) => ("u32", &words, 4),
            (1, false) => ("bits8", problem.output.layout, 1),
            (2, false) => ("bits16", problem.output.layout, 2),
            (4, _) => ("u32", problem.output.layout, 4),
            (size, _) => ("vec2<u32>", problem.output.layout, size),
        };
        let launch = |dims: &[usize], strides: &[isize], offset: usize, bound| {
            let count: usize = dims.iter().product();
            let mut words: Words = smallvec![count as u32, offset as u32, low, high];
            words.extend(dims.iter().skip(1).map(|&size| size as u32));
            words.extend(strides.iter().map(|&stride| stride as u32));
            let values = [
                ("element", element.into()),
                ("rank", (dims.len() as u32).into()),
            ];
            Ok(Launch {
                kernel: plan::key("fill", values, 1, &words),
                operands: smallvec![bound],
                texels: smallvec![],
                dispatches: smallvec![plan::dispatch(
                    self.op,
                    words,
                    count as u64,
                    PER_WORKGROUP,
                    capabilities.max_workgroups,
                )?],
                flops: 0.0,
                bytes: (count * element_bytes) as f64,
            })
        };
        let Merged { dims, strides } = plan::merged(&[layout]);
        let [strides] = &strides[..] else {
            return Err(Error::invalid(self.op, "writes one tensor"));
        };
        let bytes = (layout.elements() * element_bytes) as f64;
        if plan::is_one_launch(problem, capabilities, 0.0, bytes) {
            let whole = launch(&dims, strides, layout.offset(), Bound::whole(0))?;
            return Ok(smallvec![whole]);
        }
        let walked = [Walked {
            storage: 0,
            element_bytes,
            offset: layout.offset(),
            strides,
        }];
        let limits = Limits::new(capabilities, 0.0, element_bytes as f64);
        window::pieces(&dims, &walked, limits)
            .into_iter()
            .map(|piece| {
                let (dims, strides) = piece.without_single(&walked);
                launch(&dims, &strides[0], piece.offsets[0], piece.bindings[0])
            })
            .collect()
    }

    fn twin(&self, _inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let value = self.value.as_slice();
        by_size!(self.dtype, Bits => twin(output, bytemuck::pod_read_unaligned::<Bits>(value)))
    }
}

fn twin<T: bytemuck::Pod + Send + Sync>(output: &mut HostOutput<'_>, value: T) -> Result<()> {
    let layout = output.layout;
    let out: &mut [T] = bytemuck::cast_slice_mut(output.bytes);
    if layout.is_contiguous() {
        let range = layout.offset()..layout.offset() + layout.elements();
        if let Some(out) = out.get_mut(range) {
            parallel::pieces(out, |_, piece| piece.fill(value));
        }
        return Ok(());
    }
    cpu::fill((layout, out), value)
}
