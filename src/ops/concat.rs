//! Tensors one after another, and parts of one.

use std::borrow::Borrow;

use smallvec::{SmallVec, smallvec};

use super::contiguous::Copy;
use super::position;
use crate::capabilities::Capabilities;
use crate::cpu;
use crate::dtype::{DType, by_size};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::layout::{Axis, Layout, SliceRange};
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::{Dims, Shape, axis_of};
use crate::tensor::Tensor;

/// Parts that [`Tensor::chunk`] makes at most: each is a tensor on the host.
const MOST_PARTS: usize = 1 << 24;

struct Concat {
    name: &'static str,
    axis: usize,
}

impl Tensor {
    /// Tensors one after another along an axis that they have. In the others their sizes are equal.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without tensors, or when there is no such axis;
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`];
    /// what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn concat(tensors: &[impl Borrow<Tensor>], axis: impl Into<Axis>) -> Result<Tensor> {
        let tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
        let first = tensors.first();
        let axis = axis.into();
        let axis = first.map_or(Ok(0), |first| axis.of("concat", first.shape()))?;
        let name = "concat";
        road::run(&Concat { name, axis }, &tensors)
    }

    /// Tensors of one shape side by side along a new axis.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without tensors, or for an axis above their rank or below `-rank - 1`;
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`];
    /// what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn stack(tensors: &[impl Borrow<Tensor>], axis: impl Into<Axis>) -> Result<Tensor> {
        let name = "stack";
        let tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
        let shape = tensors.first().map(|first| first.shape());
        let axis = axis.into();
        let axis = shape.map_or(Ok(0), |shape| axis.added(name, shape))?;
        let mut rows = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            let first = tensors[0].shape();
            if tensor.shape() != first {
                let rule = "all shapes must be equal";
                return Err(Error::shape_mismatch(name, first, tensor.shape(), rule));
            }
            rows.push(tensor.unsqueeze(axis)?);
        }
        let rows: Vec<&Tensor> = rows.iter().collect();
        road::run(&Concat { name, axis }, &rows)
    }

    /// Views of parts of an axis, of these sizes one after another, which are together its size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such axis or the sizes are not its.
    pub fn split(&self, axis: impl Into<Axis>, sizes: &[usize]) -> Result<Vec<Tensor>> {
        let axis = axis.into().of("split", self.shape())?;
        let size = self.shape()[axis];
        let all = sizes
            .iter()
            .try_fold(0usize, |all, &size| all.checked_add(size));
        if all != Some(size) {
            let why = format!(
                "sizes {sizes:?} are not together axis {axis} of {}",
                self.shape()
            );
            return Err(Error::invalid("split", why));
        }
        let mut start = 0;
        sizes
            .iter()
            .map(|&size| {
                let end = start + size;
                let mut ranges: SmallVec<[SliceRange; 6]> = smallvec![(..).into(); axis];
                ranges.push((start..end).into());
                start = end;
                self.slice(&ranges[..])
            })
            .collect()
    }

    /// Views of an axis in at most `count` parts of one size, but for the last; one of an empty axis.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such axis, for a count of 0, or for more than 2^24 parts.
    pub fn chunk(&self, axis: impl Into<Axis>, count: usize) -> Result<Vec<Tensor>> {
        let axis = axis.into().of("chunk", self.shape())?;
        let size = self.shape()[axis];
        if count == 0 {
            return Err(Error::invalid(
                "chunk",
                "into 0 parts: there must be at least one",
            ));
        }
        let each = size.div_ceil(count).max(1);
        let parts = size.div_ceil(each);
        if parts > MOST_PARTS {
            return Err(Error::invalid(
                "chunk",
                format!("{parts} parts are above {MOST_PARTS}"),
            ));
        }
        let starts = (0..size.max(1)).step_by(each);
        let sizes: Vec<usize> = starts.map(|start| each.min(size - start)).collect();
        self.split(axis, &sizes)
    }
}

impl Concat {
    /// Each input that has elements, and where it begins in the output.
    fn parts<'a>(&self, layouts: impl Iterator<Item = &'a Layout>) -> Vec<(usize, Dims)> {
        let mut start = 0;
        let mut parts = Vec::new();
        for (input, layout) in layouts.enumerate() {
            if layout.elements() > 0 {
                let mut from: Dims = smallvec![0; layout.rank()];
                from[self.axis] = start;
                parts.push((input, from));
            }
            start += layout.shape()[self.axis];
        }
        parts
    }
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let Some(first) = inputs.first() else {
            return Err(Error::invalid(self.name(), "takes one tensor or more"));
        };
        let shape = first.layout.shape();
        let mut sizes: Dims = SmallVec::from_slice(shape);
        for input in &inputs[1..] {
            if input.dtype != first.dtype {
                return Err(Error::dtype_mismatch(self.name(), first.dtype, input.dtype));
            }
            let other = input.layout.shape();
            let alike = |axis: usize| axis == self.axis || other[axis] == shape[axis];
            if other.rank() != shape.rank() || !(0..shape.rank()).all(alike) {
                let rule = "but for the axis, all sizes must be equal";
                return Err(Error::shape_mismatch(self.name(), shape, other, rule));
            }
            sizes[self.axis] = axis_of(self.name(), [sizes[self.axis], other[self.axis]])?;
        }
        Ok((sizes.into_iter().collect(), first.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        Copy(self.name).missing(capabilities, inputs, output)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let output = problem.output;
        let last = problem.inputs.len();
        let mut launches = Launches::new();
        for (input, from) in self.parts(problem.inputs.iter().map(|input| input.layout)) {
            let operand = problem.inputs[input];
            let place = position::part(output.layout, &from, operand.layout.shape())?;
            let copy = Problem {
                inputs: smallvec![operand],
                output: Operand {
                    layout: &place,
                    ..output
                },
                fresh: false,
                spare: problem.spare,
                slots: smallvec![0],
            };
            for mut launch in Copy(self.name).plan(&copy, capabilities)? {
                for bound in &mut launch.operands {
                    bound.operand = if bound.operand == 0 { input } else { last };
                }
                launches.push(launch);
            }
        }
        Ok(launches)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        for (input, from) in self.parts(inputs.iter().map(|input| input.layout)) {
            let input = &inputs[input];
            let place = position::part(output.layout, &from, input.layout.shape())?;
            by_size!(output.dtype, Bits => cpu::copy::<Bits>(
                (input.layout, bytemuck::cast_slice(input.bytes)),
                (&place, bytemuck::cast_slice_mut(output.bytes)),
            ));
        }
        Ok(())
    }
}
