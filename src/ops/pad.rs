//! Ops that keep a part of a tensor and write one value beside it: padding, triangles, one-hot rows.

use std::ops::Range;

use super::contiguous::near;
use super::create::filled;
use super::position::{self, Inside, Positions};
use super::ranges;
use crate::capabilities::{Capabilities, DeviceKind};
use crate::cpu::transpose::Transposed;
use crate::cpu::{self, parallel};
use crate::dtype::{DType, ElementBytes, Scalar, by_size};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::layout::{Layout, SliceRange};
use crate::ops::index::IndexReader;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::{Shape, axis_of};
use crate::tensor::Tensor;

/// Elements that the nearest cache holds, read and written.
const NEAR: usize = 4096;

struct Pad {
    /// Elements before and after, along each axis.
    widths: Vec<(usize, usize)>,
    value: ElementBytes,
}

struct Triangle {
    lower: bool,
    diagonal: isize,
}

struct OneHot {
    classes: usize,
    dtype: DType,
    one: ElementBytes,
}

impl Tensor {
    /// The tensor with `(before, after)` more elements along each axis, all of them `value`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is one pair for each axis, or when an integer dtype
    /// cannot hold the value; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn pad(&self, widths: &[(usize, usize)], value: impl Into<Scalar>) -> Result<Tensor> {
        let (value, dtype) = (value.into(), self.dtype());
        let bytes = value.to_bytes(dtype).ok_or_else(|| {
            Error::invalid("pad", format!("{dtype} cannot hold the value {value}"))
        })?;
        let pad = Pad {
            widths: widths.to_vec(),
            value: bytes,
        };
        let shape = pad.shape(self.layout())?;
        if self.elements() == 0 {
            return filled("pad", &road::home("pad", &[self])?, shape, value, dtype);
        }
        run(&pad, self)
    }

    /// The lower triangles of the last two dimensions: 0 where column - row is above `diagonal`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] below rank 2; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn tril(&self, diagonal: isize) -> Result<Tensor> {
        let lower = true;
        run(&Triangle { lower, diagonal }, self)
    }

    /// The upper triangles of the last two dimensions: 0 where column - row is below `diagonal`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] below rank 2; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn triu(&self, diagonal: isize) -> Result<Tensor> {
        let lower = false;
        run(&Triangle { lower, diagonal }, self)
    }

    /// A row of `classes` elements for each number: 1 at the number's place, 0 elsewhere. Numbers
    /// are i32 or u32; negative ones count from the end, and those outside give a row of zeros, on
    /// every device ([`Tensor::check_indices`] finds them).
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for numbers of another dtype; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor> {
        let one = Scalar::Integer(1).to_bytes(dtype);
        let one = one.ok_or_else(|| Error::invalid("one_hot", format!("{dtype} has no 1")))?;
        let hot = OneHot {
            classes,
            dtype,
            one,
        };
        run(&hot, self)
    }
}

/// Runs an op on a tensor, or on a copy whose rows lie nearer.
fn run(op: &dyn Op, tensor: &Tensor) -> Result<Tensor> {
    let size = tensor.dtype().size();
    let launches = |limit| Ok(ranges::launches(tensor.layout(), size, limit));
    road::run(op, &[&*near(op, &[tensor], tensor, launches)?])
}

fn only<'a, T>(op: &'static str, inputs: &'a [T]) -> Result<&'a T> {
    match inputs {
        [input] => Ok(input),
        _ => Err(Error::invalid(op, "takes one operand")),
    }
}

impl Pad {
    fn shape(&self, input: &Layout) -> Result<Shape> {
        let shape = input.shape();
        if self.widths.len() != shape.rank() {
            let (given, rank) = (self.widths.len(), shape.rank());
            let why = format!(
                "{given} pairs of widths for shape {shape}, which takes {rank}: one for each dimension"
            );
            return Err(Error::invalid("pad", why));
        }
        let sizes = shape.iter().zip(&self.widths);
        let sizes = sizes.map(|(&size, &(before, after))| axis_of("pad", [before, size, after]));
        let shape: Shape = sizes.collect::<Result<_>>()?;
        shape.count("pad")?;
        Ok(shape)
    }

    fn from(&self) -> Vec<usize> {
        self.widths.iter().map(|&(before, _)| before).collect()
    }
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let input = only(self.name(), inputs)?;
        Ok((self.shape(input.layout)?, input.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let input = inputs.first()?.layout;
        let elements = self
            .shape(input)
            .map_or(usize::MAX, |shape| shape.elements());
        ranges::missing(capabilities, output, &[input], elements)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let input = only(self.name(), &problem.inputs)?;
        let (shape, from) = (problem.output.layout.shape(), self.from());
        let (size, value) = (input.dtype.size(), self.value.words());
        Positions::boxed(self.name(), shape, &from, input.layout, size, value)
            .launches([0, 1], capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let input = only(self.name(), inputs)?;
        let (from, value) = (self.from(), self.value.as_slice());
        by_size!(output.dtype, Bits => {
            copy_box::<Bits>(input, output, &from, bytemuck::pod_read_unaligned(value))
        })
    }
}

/// Copies the input into the box of the output that begins at `from`, and writes the value beside it.
fn copy_box<T: bytemuck::Pod + Send + Sync>(
    input: &HostInput<'_>,
    output: &mut HostOutput<'_>,
    from: &[usize],
    value: T,
) -> Result<()> {
    let (sizes, layout) = (output.layout.shape(), input.layout);
    let elements: &[T] = bytemuck::cast_slice(input.bytes);
    let place = position::part(output.layout, from, layout.shape())?;
    let count = output.layout.elements();
    let Some(out) = bytemuck::cast_slice_mut::<u8, T>(output.bytes).get_mut(..count) else {
        return Ok(());
    };
    if let Some(transposed) = Transposed::of(layout, &place, size_of::<T>()) {
        transposed.copy(elements, out);
        return fill_beside(output.layout, from, layout.shape(), out, value);
    }
    let walk = parallel::Walk::new(&[layout, &place]);
    // By parts that stay in the nearest cache, so that what is inside may be written twice.
    parallel::pieces(out, |start, piece| {
        let mut first = before(start, sizes, from, layout.shape());
        for (at, out) in piece.chunks_mut(NEAR).enumerate() {
            out.fill(value);
            let base = start + at * NEAR;
            let end = before(base + out.len(), sizes, from, layout.shape());
            walk.blocks(first, end - first, &mut |block| {
                let [from, to] = [block.grids[0], block.grids[1]];
                cpu::copy_block(block, (elements, from), (out, to.after(base)));
            });
            first = end;
        }
    });
    Ok(())
}

/// How many elements of a box of `shape` that begins at `from` come before the `at`th one of the whole.
fn before(at: usize, sizes: &Shape, from: &[usize], shape: &Shape) -> usize {
    let (mut whole, mut boxed) = (sizes.elements(), shape.elements());
    let (mut rest, mut count) = (at, 0);
    for (axis, (&size, &inside)) in sizes.iter().zip(shape.iter()).enumerate() {
        (whole, boxed) = (whole / size, boxed / inside);
        let index = rest / whole;
        if index < from[axis] {
            return count;
        }
        let inside = inside.min(index - from[axis]);
        count += inside * boxed;
        if index >= from[axis] + shape[axis] {
            return count;
        }
        rest %= whole;
    }
    // Of one element, the place behind it.
    count + rest
}

/// Writes the value beside a box of `shape` that begins at `from`.
fn fill_beside<T: bytemuck::Pod + Send + Sync>(
    whole: &Layout,
    from: &[usize],
    shape: &Shape,
    out: &mut [T],
    value: T,
) -> Result<()> {
    let inside = |axis: usize| from[axis]..from[axis] + shape[axis];
    for axis in 0..shape.rank() {
        let size = whole.shape()[axis];
        for beside in [0..inside(axis).start, inside(axis).end..size] {
            let outer = (0..axis).map(|axis| inside(axis).into());
            let ranges: Vec<SliceRange> = outer.chain([beside.into()]).collect();
            cpu::fill((&whole.slice(&ranges)?, &mut *out), value)?;
        }
    }
    Ok(())
}

impl Op for Triangle {
    fn name(&self) -> &'static str {
        if self.lower { "tril" } else { "triu" }
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let input = only(self.name(), inputs)?;
        let shape = input.layout.shape();
        if shape.rank() < 2 {
            let why = format!("shape {shape} has no matrices");
            return Err(Error::invalid(self.name(), why));
        }
        Ok((shape.clone(), input.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let input = inputs.first()?.layout;
        ranges::missing(capabilities, output, &[input], input.elements()).or_else(|| {
            // Rows and columns are compared as signed numbers.
            let is_long = |&size: &usize| i32::try_from(size).is_err();
            let is_far = input.shape().iter().rev().take(2).any(is_long);
            let why = || format!("the op's kernels compare {} rows and columns", i32::MAX);
            (capabilities.kind != DeviceKind::Cpu && is_far).then(why)
        })
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let input = only(self.name(), &problem.inputs)?;
        let inside = match self.lower {
            true => Inside::Lower(self.diagonal),
            false => Inside::Upper(self.diagonal),
        };
        Positions::triangle(self.name(), inside, input.layout, input.dtype.size())
            .launches([0, 1], capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let input = only(self.name(), inputs)?;
        by_size!(output.dtype, Bits => self.copy::<Bits>(input, output))
    }
}

impl Triangle {
    fn copy<T: bytemuck::Pod + Send + Sync>(
        &self,
        input: &HostInput<'_>,
        output: &mut HostOutput<'_>,
    ) -> Result<()> {
        let layout = input.layout;
        let sizes = layout.shape();
        let last = sizes.rank() - 1;
        let elements: &[T] = bytemuck::cast_slice(input.bytes);
        let count = layout.elements();
        let Some(out) = bytemuck::cast_slice_mut::<u8, T>(output.bytes).get_mut(..count) else {
            return Ok(());
        };
        let transposed = Transposed::by_rows(layout);
        if let Some(transposed) = &transposed {
            transposed.copy(elements, out);
        }
        let of_matrix = sizes[last - 1] * sizes[last];
        if transposed.is_none() && of_matrix <= NEAR {
            self.copy_small(layout, elements, out);
            return Ok(());
        }
        let rows = layout.leading(last);
        let numbers = Layout::contiguous([sizes[last - 1]]).broadcast_to(rows.shape())?;
        let stride = layout.strides()[last];
        position::rows(
            out,
            sizes[last],
            [&rows, &numbers],
            |[start, row], columns, out| {
                let input = transposed.is_none().then_some((elements, start, stride));
                position::line(out, columns, self.inside(row), input, T::zeroed());
            },
        );
        Ok(())
    }

    /// Small matrices: all of their elements, and of these a mask for several matrices clears those outside.
    fn copy_small<T: bytemuck::Pod + Send + Sync>(
        &self,
        layout: &Layout,
        elements: &[T],
        out: &mut [T],
    ) {
        let sizes = layout.shape();
        let (height, width) = (sizes[sizes.rank() - 2], sizes[sizes.rank() - 1]);
        let each = height * width * (NEAR / (height * width).max(1));
        let each = each.min(out.len());
        let mut mask = vec![0u8; size_of_val(&out[..each])];
        for (at, bytes) in mask.chunks_mut(width * size_of::<T>()).enumerate() {
            let inside = self.inside((at % height) as isize);
            let inside = inside.start.min(width)..inside.end.min(width);
            bytes[inside.start * size_of::<T>()..inside.end * size_of::<T>()].fill(u8::MAX);
        }
        let walk = parallel::Walk::new(&[layout]);
        parallel::pieces(out, |mut start, mut piece| {
            while !piece.is_empty() {
                let first = start % each;
                let count = piece.len().min(each - first);
                let (part, rest) = std::mem::take(&mut piece).split_at_mut(count);
                walk.blocks(start, count, &mut |block| {
                    let to = (&mut *part, block.in_order());
                    cpu::copy_block(block, (elements, block.grids[0]), to);
                });
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(part);
                for (byte, mask) in bytes.iter_mut().zip(&mask[first * size_of::<T>()..]) {
                    *byte &= mask;
                }
                (start, piece) = (start + count, rest);
            }
        });
    }

    /// The columns of a row that are kept.
    fn inside(&self, row: isize) -> Range<usize> {
        // The first column above the diagonal, or the first that is not below it.
        let edge = row.saturating_add(self.diagonal);
        match self.lower {
            true => 0..edge.saturating_add(1).max(0) as usize,
            false => edge.max(0) as usize..usize::MAX,
        }
    }
}

impl Op for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let index = only(self.name(), inputs)?;
        if !matches!(index.dtype, DType::I32 | DType::U32) {
            return Err(Error::no_index(self.name(), index.dtype));
        }
        let sizes = index.layout.shape().iter().copied();
        Ok((sizes.chain([self.classes]).collect(), self.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let index = inputs.first()?.layout;
        let elements = index.elements().saturating_mul(self.classes);
        ranges::missing(capabilities, output, &[index], elements)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let index = only(self.name(), &problem.inputs)?;
        let hot = (self.one.words(), index.dtype == DType::I32);
        let size = self.dtype.size();
        Positions::hot(self.name(), index.layout, self.classes, hot, size)
            .launches([0, 1], capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let index = only(self.name(), inputs)?;
        let one = self.one.as_slice();
        by_size!(output.dtype, Bits => {
            self.rows::<Bits>(index, output, bytemuck::pod_read_unaligned(one))
        });
        Ok(())
    }
}

impl OneHot {
    fn rows<T: bytemuck::Pod + Send + Sync>(
        &self,
        index: &HostInput<'_>,
        output: &mut HostOutput<'_>,
        one: T,
    ) {
        let (place, layout) = (IndexReader::new(index, self.classes), index.layout);
        let count = output.layout.elements();
        let Some(out) = bytemuck::cast_slice_mut::<u8, T>(output.bytes).get_mut(..count) else {
            return;
        };
        position::rows(out, self.classes, [layout], |[at], columns, out| {
            out.fill(T::zeroed());
            if let Some(class) = place.of(at).filter(|class| columns.contains(class)) {
                out[class - columns.start] = one;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_triangles_say_what_kernels_lack() -> Result<()> {
        let triangle = Triangle {
            lower: true,
            diagonal: 0,
        };
        let lacks = |kind, shape: [usize; 3]| {
            let layout = Layout::contiguous([1]).broadcast_to(&shape.into())?;
            let dtype = DType::Bool;
            let input = Operand {
                layout: &layout,
                dtype,
                storage_bytes: 256,
            };
            let capabilities = Capabilities {
                kind,
                ..Capabilities::cpu()
            };
            Ok::<_, Error>(triangle.missing(&capabilities, &[input], dtype))
        };
        let gpu = DeviceKind::OtherGpu;
        for shape in [[1, 1 << 31, 1], [1, 1, 1 << 31]] {
            let why = lacks(gpu, shape)?.unwrap_or_default();
            assert!(why.contains("compare 2147483647 rows"), "{why}");
            assert_eq!(lacks(DeviceKind::Cpu, shape)?, None);
        }
        assert_eq!(lacks(gpu, [1 << 31, 1, 1])?, None);
        let why = lacks(gpu, [1, 2, 1 << 31])?.unwrap_or_default();
        assert!(why.contains("reach 3221225472 elements"), "{why}");
        Ok(())
    }
}
