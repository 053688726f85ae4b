//! Elementwise functions of tensors and numbers, with NumPy's broadcasting, on any strides: one op
//! whose data is an expression.

mod expression;
mod function;
mod launch;
mod methods;
mod real;
mod specialisations;
mod twin;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::{DType, ElementBytes, Scalar};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;
use expression::{Expression, Node, Types};
pub(super) use function::Function;
pub(super) use specialisations::specialisations;

/// An expression with its numbers.
pub(super) struct Elementwise {
    name: &'static str,
    expression: Expression,
    numbers: SmallVec<[Scalar; 2]>,
}

impl Elementwise {
    /// A function of tensors.
    pub(super) fn of(function: Function) -> Self {
        Self {
            name: function.name(),
            expression: Expression::of_inputs(function),
            numbers: SmallVec::new(),
        }
    }

    /// A function of a tensor and a number, either first.
    pub(super) fn with_number(function: Function, number: Scalar, number_first: bool) -> Self {
        Self {
            name: function.name(),
            expression: Expression::with_number(function, number_first),
            numbers: SmallVec::from_slice(&[number]),
        }
    }

    /// Runs it on tensors that broadcast to one shape.
    pub(super) fn run(mut self, inputs: &[&Tensor]) -> Result<Tensor> {
        // Checked in `infer` too, but the views below need the shape.
        let mut shape = inputs
            .first()
            .map_or_else(Shape::default, |input| input.shape().clone());
        for input in inputs.iter().skip(1) {
            shape = shape.broadcast(input.shape(), self.name)?;
        }
        let numbers = self.numbers_as_tensors(inputs)?;
        let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().copied().chain(&numbers).collect();
        if inputs.iter().all(|input| *input.shape() == shape) {
            return road::run(&self, &inputs);
        }
        let views = inputs
            .iter()
            .map(|input| input.broadcast_to(&shape))
            .collect::<Result<SmallVec<[Tensor; 4]>>>()?;
        let inputs: SmallVec<[&Tensor; 4]> = views.iter().collect();
        road::run(&self, &inputs)
    }

    /// Kernels take words, and no number of f64 fits one: there such numbers become inputs.
    fn numbers_as_tensors(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let is_wide = inputs.iter().any(|input| input.dtype() == DType::F64);
        if self.numbers.is_empty() || !is_wide {
            return Ok(Vec::new());
        }
        let home = road::home(self.name, inputs)?;
        if home.is_cpu() {
            return Ok(Vec::new());
        }
        let dtypes: SmallVec<[DType; 4]> = inputs.iter().map(|input| input.dtype()).collect();
        let types = self.expression.types(self.name, &dtypes)?;
        let mut tensors = Vec::new();
        for (node, &dtype) in self.expression.nodes.iter_mut().zip(&types) {
            if let (Node::Scalar(number), DType::F64) = (*node, dtype) {
                let value = self.numbers[usize::from(number)];
                tensors.push(Tensor::full(&home, (), value, dtype)?);
                *node = Node::Input((inputs.len() + tensors.len() - 1) as u8);
            }
        }
        Ok(tensors)
    }

    fn types(&self, inputs: impl Iterator<Item = DType>) -> Result<Types> {
        let inputs: SmallVec<[DType; 4]> = inputs.collect();
        self.expression.types(self.name, &inputs)
    }

    /// The numbers as elements of what they are combined with.
    fn elements(&self, types: &Types) -> Result<SmallVec<[ElementBytes; 2]>> {
        let mut elements: SmallVec<[ElementBytes; 2]> =
            SmallVec::from_elem(ElementBytes::of(0u32), self.numbers.len());
        for (node, &dtype) in self.expression.nodes.iter().zip(types) {
            if let Node::Scalar(number) = *node {
                let number = usize::from(number);
                let value = self.numbers[number];
                elements[number] = value.to_bytes(dtype).ok_or_else(|| {
                    Error::invalid(self.name, format!("{dtype} cannot hold the value {value}"))
                })?;
            }
        }
        Ok(elements)
    }

    /// The numbers as kernels take them: halves as f32.
    fn words(&self, types: &Types) -> Result<SmallVec<[u32; 2]>> {
        let mut words: SmallVec<[u32; 2]> = SmallVec::from_elem(0, self.numbers.len());
        let elements = self.elements(types)?;
        for (node, &dtype) in self.expression.nodes.iter().zip(types) {
            if let Node::Scalar(number) = *node {
                let number = usize::from(number);
                words[number] = elements[number].word(dtype);
            }
        }
        Ok(words)
    }
}

impl Op for Elementwise {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let types = self.types(inputs.iter().map(|input| input.dtype))?;
        self.elements(&types)?;
        let mut shape = inputs
            .first()
            .map_or_else(Shape::default, |input| input.layout.shape().clone());
        for input in inputs.iter().skip(1) {
            shape = shape.broadcast(input.layout.shape(), self.name)?;
        }
        let dtype = types
            .last()
            .ok_or_else(|| Error::invalid(self.name, "an expression without a result"))?;
        Ok((shape, *dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        if capabilities.kind == DeviceKind::Cpu {
            return None;
        }
        let mut dtypes = inputs.iter().map(|input| input.dtype).chain([output]);
        if let Some(dtype) = dtypes.find(|&dtype| !capabilities.holds(dtype)) {
            return Some(road::lacks(dtype));
        }
        let types = self.types(inputs.iter().map(|input| input.dtype)).ok()?;
        let nodes = self.expression.nodes.iter();
        nodes.clone().find_map(|node| match *node {
            Node::Apply(function, operands) => {
                let of = *types.get(usize::from(operands[0]))?;
                (!function.is_in_kernels(of))
                    .then(|| format!("it has no {} of {of} in kernels", function.name()))
            }
            _ => None,
        })
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let inputs: SmallVec<[DType; 4]> = problem.inputs.iter().map(|input| input.dtype).collect();
        let types = self.types(inputs.iter().copied())?;
        let code: Arc<str> = self.expression.body(&types, &inputs).into();
        launch::Body {
            op: self.name,
            code,
            scalars: &self.words(&types)?,
            flops: self.expression.nodes.len() as f64,
        }
        .launches(problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let types = self.types(inputs.iter().map(|input| input.dtype))?;
        let numbers = self.elements(&types)?;
        twin::evaluate(&self.expression, &types, &numbers, inputs, output);
        Ok(())
    }
}
