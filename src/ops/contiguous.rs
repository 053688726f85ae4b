//! Copies of views, row-major and without gaps.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::elementwise::{Body, Cost};
use super::order::Course;
use crate::capabilities::Capabilities;
use crate::cpu;
use crate::dtype::{DType, by_size};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Moves bits, so NaN payloads and subnormals stay: the op that it is named after, or part of it.
pub(super) struct Copy(pub &'static str);

/// Copies that a program asks for.
pub(super) const COPY: Copy = Copy("copy");

/// What moves the bits of an element, or of four.
pub(super) fn copy_code(dtype: DType) -> Arc<str> {
    let of = if dtype.size() == 8 { "vec2<u32>" } else { "U" };
    format!("fn apply(a0: {of}) -> {of} {{\n    return a0;\n}}").into()
}

/// Runs an op that writes an existing tensor, whose operands lie in other storages.
pub(super) fn write(op: &dyn Op, inputs: &[&Tensor], into: &Tensor) -> Result<()> {
    road::write(op, &Copy(op.name()), inputs, into)
}

/// Launches from which a copy is made first.
const MANY_LAUNCHES: u64 = 1024;

/// An operand of an op whose kernels read it in windows, near enough for the device where the op runs: a copy where rows
/// reach so much further than a binding that there would be thousands of launches, each with windows of its own.
/// `launches` says about how many there are with bindings of so many bytes.
///
/// # Errors
/// Those of [`Tensor::copy`]. Where a copy may be made the op's own come first: about its arguments, and about operands of
/// several devices that may not travel.
pub(super) fn near<'a>(
    op: &dyn Op,
    operands: &[&Tensor],
    operand: &'a Tensor,
    launches: impl FnOnce(u64) -> Result<u64>,
) -> Result<Cow<'a, Tensor>> {
    match is_far(op, operands, operand, launches)? {
        true => operand.copy_once(op.name()).map(Cow::Owned),
        false => Ok(Cow::Borrowed(operand)),
    }
}

/// Whether [`near`] copies an operand.
///
/// # Errors
/// The op's own, about its arguments and about operands of several devices that may not travel, where it may be far.
pub(super) fn is_far(
    op: &dyn Op,
    operands: &[&Tensor],
    operand: &Tensor,
    launches: impl FnOnce(u64) -> Result<u64>,
) -> Result<bool> {
    if operand.is_contiguous() {
        return Ok(false);
    }
    // What is wrong the road will find.
    let Ok(home) = road::home(op.name(), operands) else {
        return Ok(false);
    };
    let limit = home.capabilities().indexed_bytes();
    let bytes = operand.layout().span().len() as u64 * operand.dtype().size() as u64;
    if home.is_cpu() || bytes <= limit {
        return Ok(false);
    }
    road::check(op, operands, None)?;
    Ok(launches(limit)? > MANY_LAUNCHES)
}

/// An operand of an op whose kernels take it by rows, but where it `is_near` for a device's: itself then, or where the
/// CPU's twin takes it, else a copy.
///
/// # Errors
/// As [`near`].
pub(super) fn by_rows<'a>(
    op: &dyn Op,
    operands: &[&Tensor],
    operand: &'a Tensor,
    is_near: impl FnOnce(&Capabilities) -> bool,
) -> Result<Cow<'a, Tensor>> {
    let home = road::home(op.name(), operands)?;
    let capabilities = home.capabilities();
    if home.is_cpu() || is_near(capabilities) {
        return Ok(Cow::Borrowed(operand));
    }
    // Whether the op's arguments are right comes before memory for a copy.
    let given: SmallVec<[Operand<'_>; 4]> = operands.iter().copied().map(road::operand).collect();
    let (_, output) = op.infer(&given)?;
    match op.missing(capabilities, &given, output) {
        Some(_) => Ok(Cow::Borrowed(operand)),
        None => operand.copy_at_home(op.name()).map(Cow::Owned),
    }
}

impl Tensor {
    /// The same elements row-major and without gaps: the tensor itself when they lie so already,
    /// else a copy.
    ///
    /// # Errors
    /// What any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn contiguous(&self) -> Result<Tensor> {
        self.contiguous_for("contiguous")
    }

    /// The same for the op that is named.
    pub(super) fn contiguous_for(&self, op: &'static str) -> Result<Tensor> {
        match self.is_contiguous() {
            true => Ok(self.clone()),
            false => self.copy_at_home(op),
        }
    }

    /// A contiguous copy with a storage of its own.
    ///
    /// # Errors
    /// As [`Tensor::contiguous`].
    pub fn copy(&self) -> Result<Tensor> {
        road::run(&COPY, &[self])
    }

    /// [`Tensor::copy`] where the tensor lives, whatever the scope, for the op that is named.
    pub(in crate::ops) fn copy_at_home(&self, op: &'static str) -> Result<Tensor> {
        road::run_at_home(&Copy(op), self)
    }

    /// A copy where the tensor lives that repeats no dimension, seen as often as here, for the op that is named.
    pub(super) fn copy_once(&self, op: &'static str) -> Result<Tensor> {
        let once = self.view(self.layout().distinct()).copy_at_home(op)?;
        once.broadcast_to(self.shape())
    }

    /// Copies the elements of another tensor, which broadcasts to this shape, into this tensor's own memory, bit for
    /// bit: all views of the storage see them. Another view of the same storage is read before
    /// anything is written. For one number there is [`Tensor::fill`].
    ///
    /// ```
    /// use orlop::{DType, Device, Tensor};
    ///
    /// let cache = Tensor::zeros(&Device::cpu(), [4, 2], DType::F32)?;
    /// let row = Tensor::from_slice(&Device::cpu(), &[1.0f32, 2.0], [2])?;
    /// cache.slice(1..3)?.assign(&row)?;
    /// assert_eq!(cache.to_vec::<f32>()?, [0.0, 0.0, 1.0, 2.0, 1.0, 2.0, 0.0, 0.0]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the other tensor does not broadcast to this shape,
    /// [`Error::DTypeMismatch`], [`Error::InvalidArgument`] when this one repeats elements (a broadcast
    /// view, windows that overlap); as [`Tensor::copy`]. Nothing is written then.
    pub fn assign(&self, source: &Tensor) -> Result<()> {
        self.assign_for("assign", source)
    }

    /// The same for the op that is named.
    ///
    /// # Errors
    /// As [`Tensor::assign`].
    pub(super) fn assign_for(&self, op: &'static str, source: &Tensor) -> Result<()> {
        self.check_distinct(op)?;
        if source.dtype() != self.dtype() {
            return Err(Error::dtype_mismatch(op, self.dtype(), source.dtype()));
        }
        let view = source.view(source.layout().broadcast_for(op, self.shape())?);
        let view = match view.shares_storage(self) {
            true if view.layout() == self.layout() => return Ok(()),
            true => view.copy_once(op)?,
            false => view,
        };
        let copy = Copy(op);
        // Neighbours of what is written are written together.
        let course = Course::of(self.layout());
        write(&copy, &[&course.view(&view)?], &course.view(self)?)
    }

    /// # Errors
    /// [`Error::InvalidArgument`] for a view that has one element at several places: nothing can be written
    /// through it.
    pub(super) fn check_distinct(&self, op: &'static str) -> Result<()> {
        if self.layout().is_distinct() {
            return Ok(());
        }
        let problem = format!(
            "{self:?} has one element at several places, as far as its strides tell: copy it first"
        );
        Err(Error::invalid(op, problem))
    }
}

impl Op for Copy {
    fn name(&self) -> &'static str {
        self.0
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
            cost: Cost::Plain,
            reads_old: false,
            scalars: &[],
            flops: 0.0,
        }
        .launches(problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [input] = inputs else { return Ok(()) };
        by_size!(output.dtype, Bits => cpu::copy::<Bits>(
            (input.layout, bytemuck::cast_slice(input.bytes)),
            (output.layout, bytemuck::cast_slice_mut(output.bytes)),
        ));
        Ok(())
    }
}
