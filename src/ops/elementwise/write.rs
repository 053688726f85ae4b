//! Elementwise functions in place, and those that take a tensor's memory over.

use smallvec::SmallVec;

use super::{Argument, AxisOrder, Elementwise, Expression, Function, Node, is_same};
use crate::error::Result;
use crate::ops::contiguous;
use crate::ops::order::Course;
use crate::road;
use crate::tensor::Tensor;

impl Elementwise {
    /// Writes a function of a tensor and of arguments into the tensor's own memory.
    pub(super) fn assign(
        name: &'static str,
        function: Function,
        into: &Tensor,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let mut call = Self::new(name, Expression::default());
        call.expression.nodes.push(Node::Old);
        call.into = Some((into.shape().clone(), into.dtype()));
        let mut inputs = SmallVec::new();
        call.push(function, arguments, &mut inputs);
        call.assign_to(into, &inputs)
    }

    /// Writes what it gives into a tensor's own memory: [`Node::Old`] is what that held.
    pub(super) fn assign_to(mut self, into: &Tensor, inputs: &[&Tensor]) -> Result<()> {
        into.check_distinct(self.name)?;
        for input in inputs {
            // In `infer` the shapes broadcast either way.
            input.layout().broadcast_for(self.name, into.shape())?;
        }
        self.into = Some((into.shape().clone(), into.dtype()));
        // Before numbers become tensors, and what lies in the same storage is copied.
        road::check(&self, inputs, Some(into))?;
        let course = Course::of(into.layout());
        let shape = into.shape();
        let into = &course.view(into)?;
        self.into = Some((into.shape().clone(), into.dtype()));
        let numbers = self.numbers_as_tensors(inputs, Some(into))?;
        // What lies in the same storage: the tensor itself is read where it is written (but where that is folded, as in
        // `Elementwise::input`), other parts of it, or it in another order, before.
        let folds = matches!(
            self.expression.nodes[..],
            [.., Node::Apply(function, [0, 1, _])] if function.folds_alike()
        );
        let mut others: SmallVec<[Tensor; 4]> = SmallVec::new();
        let mut renamed: SmallVec<[Node; 4]> = SmallVec::new();
        for input in inputs.iter().copied().chain(&numbers) {
            let mut view = course.view(&input.broadcast_to(shape)?)?;
            if is_same(&view, into) && !folds {
                renamed.push(Node::Old);
                continue;
            }
            if view.shares_storage(into) {
                view = view.copy_once(self.name)?;
            }
            renamed.push(Node::Input(others.len() as u8));
            others.push(view);
        }
        for node in &mut self.expression.nodes {
            if let Node::Input(input) = *node {
                *node = renamed[usize::from(input)];
            }
        }
        let others: SmallVec<[&Tensor; 4]> = others.iter().collect();
        contiguous::write(&self, &others, into)
    }

    /// A function of a tensor and of arguments, in the tensor's memory where nobody else holds it and
    /// the result fits.
    pub(super) fn take_over(
        name: &'static str,
        function: Function,
        tensor: Tensor,
        arguments: &[Argument<'_>],
    ) -> Result<Tensor> {
        let tensors = arguments.iter().filter_map(|argument| match argument {
            Argument::Number(_) => None,
            Argument::Tensor(other) => Some(*other),
        });
        if can_be_taken_over(name, &tensor, tensors)? {
            Self::assign(name, function, &tensor, arguments)?;
            return Ok(tensor);
        }
        let all: SmallVec<[Argument<'_>; 3]> = std::iter::once(Argument::Tensor(&tensor))
            .chain(arguments.iter().copied())
            .collect();
        Self::call_as(name, function, &all)
    }
}

/// Whether nobody else holds a tensor's memory, and a result of it and of others has its shape and stays on
/// its device.
pub(super) fn can_be_taken_over<'a>(
    name: &'static str,
    tensor: &Tensor,
    mut others: impl Iterator<Item = &'a Tensor>,
) -> Result<bool> {
    let is_dense = || match AxisOrder::of(std::iter::once(tensor.layout())) {
        Some(order) => order.view(tensor).is_ok_and(|view| view.is_contiguous()),
        None => tensor.is_contiguous(),
    };
    let is_ours = tensor.storage().is_held_once()
        && is_dense()
        && road::home(name, &[tensor])? == *tensor.device();
    let shape = tensor.shape();
    Ok(is_ours
        && others.all(|other| {
            let both = shape.broadcast(other.shape(), name);
            other.device() == tensor.device() && both.is_ok_and(|both| both == *shape)
        }))
}
