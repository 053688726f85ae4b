//! One value in every element: new tensors, and views in place.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::order::Course;
use super::{contiguous, plan, ranges};
use crate::capabilities::Capabilities;
use crate::cpu::{self, parallel};
use crate::dtype::{DType, ElementBytes, Scalar, by_size};
use crate::error::{Error, Result};
use crate::launch::{Bound, Launch, Launches, Words};
use crate::layout::{Merged, Strides};
use crate::road::window::{self, Limits, Walked};
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::{Dims, Shape};
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
    /// [`Error::InvalidArgument`] when an integer or bool dtype cannot hold the value, or for windows that overlap
    /// ([`Tensor::unfold`]); what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn fill(&self, value: impl Into<Scalar>) -> Result<()> {
        let each = self.view(self.layout().distinct());
        each.check_distinct("fill")?;
        let each = Course::of(each.layout()).view(&each)?;
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
        let mut launches = Launches::new();
        for part in self.parts(problem) {
            self.launches(&part, problem, capabilities, &mut launches)?;
        }
        Ok(launches)
    }

    fn twin(&self, _inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let value = self.value.as_slice();
        by_size!(self.dtype, Bits => twin(output, bytemuck::pod_read_unaligned::<Bits>(value)))
    }
}

/// What a kernel fills, in elements of its own.
struct Part {
    element: &'static str,
    element_bytes: usize,
    dims: Dims,
    strides: Strides,
    offset: usize,
}

impl Fill {
    /// New tensors are filled by whole words, and so are views that have no other elements in theirs: of one without gaps what
    /// is between the first and the last word. Else neighbours in a word may be others'.
    fn parts(&self, problem: &Problem<'_>) -> SmallVec<[Part; 3]> {
        let layout = problem.output.layout;
        let element_bytes = self.dtype.size();
        let Merged { dims, mut strides } = plan::merged(&[layout]);
        let mut part = Part {
            element: ranges::moved(element_bytes),
            element_bytes,
            dims,
            strides: strides.swap_remove(0),
            offset: layout.offset(),
        };
        let lanes = ranges::lanes(element_bytes);
        if lanes == 1 {
            return smallvec![part];
        }
        let last = part.dims.len() - 1;
        let of_row = part.dims[last];
        let outer = part.strides[..last].iter().copied();
        let mut steps = outer.chain([part.offset as isize, of_row as isize]);
        let is_dense = last == 0 && (part.strides[last] == 1 || of_row == 1);
        if part.strides[last] == 1 && steps.all(|step| step % lanes as isize == 0) {
            part.widen(lanes);
            return smallvec![part];
        }
        if problem.fresh && is_dense {
            part.dims[last] = of_row.next_multiple_of(lanes);
            part.widen(lanes);
            return smallvec![part];
        }
        let words = part.offset.next_multiple_of(lanes)..(part.offset + of_row) / lanes * lanes;
        if !is_dense || words.is_empty() {
            return smallvec![part];
        }
        let cut = |range: Range<usize>| Part {
            dims: smallvec![range.len()],
            strides: smallvec![1],
            offset: range.start,
            ..part
        };
        let mut between = cut(words.clone());
        between.widen(lanes);
        let ends = [part.offset..words.start, words.end..part.offset + of_row];
        let ends = ends.into_iter().filter(|end| !end.is_empty()).map(cut);
        std::iter::once(between).chain(ends).collect()
    }

    fn launches(
        &self,
        part: &Part,
        problem: &Problem<'_>,
        capabilities: &Capabilities,
        launches: &mut Launches,
    ) -> Result<()> {
        let [low, high] = self.value.words();
        let launch = |dims: &[usize], strides: &[isize], offset: usize, bound| {
            let count: usize = dims.iter().product();
            let mut words: Words = smallvec![count as u32, offset as u32, low, high];
            words.extend(dims.iter().skip(1).map(|&size| size as u32));
            words.extend(strides.iter().map(|&stride| stride as u32));
            let values = [
                ("element", part.element.into()),
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
                bytes: (count * part.element_bytes) as f64,
            })
        };
        let elements: usize = part.dims.iter().product();
        let bytes = (elements * part.element_bytes) as f64;
        if plan::is_one_launch(problem, capabilities, 0.0, bytes) {
            launches.push(launch(
                &part.dims,
                &part.strides,
                part.offset,
                Bound::whole(0),
            )?);
            return Ok(());
        }
        let walked = [Walked {
            storage: 0,
            element_bytes: part.element_bytes,
            offset: part.offset,
            strides: &part.strides,
        }];
        let limits = Limits::new(capabilities, 0.0, part.element_bytes as f64);
        for piece in window::pieces(&part.dims, &walked, limits) {
            let (dims, strides) = piece.without_single(&walked);
            launches.push(launch(
                &dims,
                &strides[0],
                piece.offsets[0],
                piece.bindings[0],
            )?);
        }
        Ok(())
    }
}

impl Part {
    /// In words of `lanes` neighbours, where all steps allow it.
    fn widen(&mut self, lanes: usize) {
        if let Some(last) = self.dims.last_mut() {
            *last /= lanes;
        }
        self.strides = ranges::widened(&self.strides, lanes);
        self.offset /= lanes;
        self.element_bytes *= lanes;
        self.element = ranges::moved(self.element_bytes);
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
