//! Elementwise functions of tensors and numbers, with NumPy's broadcasting, on any strides: one op
//! whose data is an expression.

mod apply;
mod bits;
mod chain;
mod convert;
mod expression;
mod function;
mod fused;
mod lanes;
mod launch;
mod methods;
mod real;
mod rows;
mod specialisations;
mod tiles;
mod turned;
mod twin;
mod walked;
mod write;

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::{DType, ElementBytes, Scalar};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::ops::order::AxisOrder;
use crate::ops::plan::NO_WIDE_BITS;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;
use expression::{Expression, Node, Types, power_by_products};
pub(super) use function::Function;
pub use fused::{Expr, ExprArgument, Fusion, fused};
pub(super) use launch::{Body, Cost};
pub use methods::Argument;
pub(super) use real::Real;
pub(super) use specialisations::specialisations;

/// An expression with its numbers.
#[derive(Clone, Debug)]
pub(super) struct Elementwise {
    name: &'static str,
    expression: Expression,
    numbers: SmallVec<[Scalar; 2]>,
    /// What it is written into, where that is there already: [`Node::Old`] is what it held.
    into: Option<(Shape, DType)>,
}

impl Elementwise {
    /// A function of tensors.
    #[cfg(test)]
    pub(super) fn of(function: Function) -> Self {
        Self::new(function.name(), Expression::of_inputs(function))
    }

    /// A conversion.
    pub(super) fn cast(dtype: DType) -> Self {
        Self::new("cast", Expression::cast(dtype))
    }

    fn new(name: &'static str, expression: Expression) -> Self {
        Self {
            name,
            expression,
            numbers: SmallVec::new(),
            into: None,
        }
    }

    /// Runs a function on tensors and numbers.
    pub(super) fn call(function: Function, arguments: &[Argument<'_>]) -> Result<Tensor> {
        Self::call_as(function.name(), function, arguments)
    }

    /// [`Elementwise::call`] as what the program called it.
    fn call_as(
        name: &'static str,
        function: Function,
        arguments: &[Argument<'_>],
    ) -> Result<Tensor> {
        let mut call = Self::new(name, Expression::default());
        let mut inputs = SmallVec::new();
        call.push(function, arguments, &mut inputs);
        call.run(&inputs)
    }

    /// Adds a function of tensors and numbers at the end; operands that are there already come first.
    fn push<'a>(
        &mut self,
        function: Function,
        arguments: &[Argument<'a>],
        inputs: &mut SmallVec<[&'a Tensor; 4]>,
    ) {
        let before = self.expression.nodes.len();
        if let (Function::Pow, [bases @ .., Argument::Number(power)]) = (function, arguments) {
            for base in bases {
                self.operand(base, inputs);
            }
            let written = self.into.as_ref().map(|(_, dtype)| *dtype);
            let dtype = inputs.first().map(|base| base.dtype()).or(written);
            let nodes = &mut self.expression.nodes;
            let products = power_by_products((0, dtype), *power, |node| {
                nodes.push(node);
                (nodes.len() - 1) as u8
            });
            if products.is_some() {
                return;
            }
        }
        let mut operands = [0u8, 1, 2];
        for (operand, argument) in operands[before..].iter_mut().zip(arguments) {
            *operand = match argument {
                Argument::Tensor(tensor) if function.folds_alike() => self.input(tensor, inputs),
                _ => self.operand(argument, inputs),
            };
        }
        self.expression.nodes.push(Node::Apply(function, operands));
    }

    /// The node of an input of its own, also where the same tensor is one already: for what compilers fold of a value and
    /// itself.
    fn input<'a>(&mut self, tensor: &'a Tensor, inputs: &mut SmallVec<[&'a Tensor; 4]>) -> u8 {
        let nodes = &mut self.expression.nodes;
        nodes.push(Node::Input(inputs.len() as u8));
        inputs.push(tensor);
        (nodes.len() - 1) as u8
    }

    /// The node of an argument.
    fn operand<'a>(
        &mut self,
        argument: &Argument<'a>,
        inputs: &mut SmallVec<[&'a Tensor; 4]>,
    ) -> u8 {
        let node = match *argument {
            Argument::Number(number) => {
                self.numbers.push(number);
                Node::Scalar((self.numbers.len() - 1) as u8)
            }
            Argument::Tensor(tensor) => {
                match inputs.iter().position(|other| is_same(other, tensor)) {
                    Some(input) => Node::Input(input as u8),
                    None => return self.input(tensor, inputs),
                }
            }
        };
        let nodes = &mut self.expression.nodes;
        let there = nodes.iter().position(|other| *other == node);
        there.unwrap_or_else(|| {
            nodes.push(node);
            nodes.len() - 1
        }) as u8
    }

    /// Runs it on tensors that broadcast to one shape.
    pub(super) fn run(mut self, inputs: &[&Tensor]) -> Result<Tensor> {
        // Checked in `infer` too, but the views below need the shape.
        let shape = broadcast(self.name, inputs.iter().map(|input| input.shape()))?;
        let numbers = self.numbers_as_tensors(inputs, None)?;
        if numbers.is_empty() && matches!(shape, Cow::Borrowed(_)) {
            return self.run_in_order(inputs);
        }
        let views = inputs
            .iter()
            .copied()
            .chain(&numbers)
            .map(|input| input.broadcast_to(&*shape))
            .collect::<Result<SmallVec<[Tensor; 4]>>>()?;
        self.run_in_order(&views.iter().collect::<SmallVec<[&Tensor; 4]>>())
    }

    /// Runs it on tensors of one shape: what it gives lies in memory as they do, where they agree.
    fn run_in_order(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let Some(order) = AxisOrder::of(inputs.iter().map(|input| input.layout())) else {
            return road::run(self, inputs);
        };
        let views = inputs
            .iter()
            .map(|input| order.view(input))
            .collect::<Result<SmallVec<[Tensor; 4]>>>()?;
        let views: SmallVec<[&Tensor; 4]> = views.iter().collect();
        order.restored(&road::run(self, &views)?)
    }

    /// Kernels take words, and no number of f64 fits one: there such numbers become inputs, equal ones the same.
    fn numbers_as_tensors(
        &mut self,
        inputs: &[&Tensor],
        into: Option<&Tensor>,
    ) -> Result<Vec<Tensor>> {
        if self.numbers.is_empty() {
            return Ok(Vec::new());
        }
        let mut dtypes = inputs.iter().copied().chain(into).map(Tensor::dtype);
        let mut nodes = self.expression.nodes.iter();
        let is_wide = dtypes.any(|dtype| dtype == DType::F64)
            || nodes.any(|node| matches!(node, Node::Cast(DType::F64, _)));
        if !is_wide {
            return Ok(Vec::new());
        }
        let home = match into {
            Some(into) => into.device().clone(),
            None => match road::home(self.name, inputs) {
                Ok(home) => home,
                // What is wrong with arguments comes before where they live.
                Err(mixed) => {
                    self.types(&|at| inputs.get(at).map(|input| input.dtype()))?;
                    return Err(mixed);
                }
            },
        };
        // Where there is no f64 the op goes to the CPU, or is refused, by its own name.
        if home.is_cpu() || !home.capabilities().holds(DType::F64) {
            return Ok(Vec::new());
        }
        let types = self.types(&|at| inputs.get(at).map(|input| input.dtype()))?;
        let elements = self.elements(&types)?;
        let mut tensors = Vec::new();
        let mut bits: SmallVec<[[u32; 2]; 4]> = SmallVec::new();
        for (node, &dtype) in self.expression.nodes.iter_mut().zip(&types) {
            if let (Node::Scalar(number), DType::F64) = (*node, dtype) {
                let number = usize::from(number);
                let words = elements[number].words();
                let at = match bits.iter().position(|&other| other == words) {
                    Some(at) => at,
                    None => {
                        tensors.push(Tensor::full(&home, (), self.numbers[number], dtype)?);
                        bits.push(words);
                        bits.len() - 1
                    }
                };
                *node = Node::Input((inputs.len() + at) as u8);
            }
        }
        Ok(tensors)
    }

    fn types(&self, input: &dyn Fn(usize) -> Option<DType>) -> Result<Types> {
        let into = self.into.as_ref().map(|(_, dtype)| *dtype);
        self.expression.types(self.name, input, into)
    }

    /// The numbers as elements of what they are combined with.
    fn elements(&self, types: &Types) -> Result<SmallVec<[ElementBytes; 2]>> {
        if self.numbers.is_empty() {
            return Ok(SmallVec::new());
        }
        let mut elements: SmallVec<[ElementBytes; 2]> =
            SmallVec::from_elem(ElementBytes::of(0u32), self.numbers.len());
        for (node, &dtype) in self.expression.nodes.iter().zip(types) {
            if let Node::Scalar(number) = *node {
                let number = usize::from(number);
                let value = self.numbers[number];
                elements[number] = value.to_bytes(dtype).ok_or_else(|| {
                    let why =
                        format!("{dtype} cannot hold the value {value}: cast the tensor first");
                    Error::invalid(self.name, why)
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

/// What shapes broadcast to: borrowed where all are the same.
fn broadcast<'a>(
    op: &'static str,
    mut shapes: impl Iterator<Item = &'a Shape>,
) -> Result<Cow<'a, Shape>> {
    let Some(first) = shapes.next() else {
        return Ok(Cow::Owned(Shape::default()));
    };
    shapes.try_fold(Cow::Borrowed(first), |all, shape| match *all == *shape {
        true => Ok(all),
        false => all.broadcast(shape, op).map(Cow::Owned),
    })
}

/// The same elements: one load does for both.
fn is_same(a: &Tensor, b: &Tensor) -> bool {
    a.shares_storage(b) && a.layout() == b.layout()
}

impl Op for Elementwise {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let types = self.types(&|at| inputs.get(at).map(|input| input.dtype))?;
        self.elements(&types)?;
        let written = self.into.as_ref().map(|(shape, _)| shape);
        let inputs = inputs.iter().map(|input| input.layout.shape());
        let shape = broadcast(self.name, written.into_iter().chain(inputs))?;
        let dtype = types
            .last()
            .ok_or_else(|| Error::invalid(self.name, "an expression without a result"))?;
        Ok((shape.into_owned(), *dtype))
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
        let most = capabilities.max_bindings as usize;
        if inputs.len() >= most {
            let given = inputs.len();
            return Some(format!(
                "its kernels bind {most} tensors, the result too, and {given} are read"
            ));
        }
        let types = self.types(&|at| inputs.get(at).map(|input| input.dtype));
        let types = types.ok()?;
        let mut nodes = self.expression.nodes.iter().zip(&types);
        nodes.find_map(|(node, &dtype)| {
            let (of, name) = match *node {
                Node::Apply(function, operands) => {
                    let of = types[usize::from(operands[function.first_alike()])];
                    if function.is_in_kernels(of) {
                        return None;
                    }
                    (of, function.name())
                }
                Node::Cast(DType::Bool, operand)
                    if types[usize::from(operand)] == DType::F64 && !capabilities.int64 =>
                {
                    return Some(NO_WIDE_BITS.to_owned());
                }
                // In expressions of their own they are refused above.
                _ if !capabilities.holds(dtype) => return Some(road::lacks(dtype)),
                _ => return None,
            };
            Some(format!("it has no {name} of {of} in kernels"))
        })
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let inputs: SmallVec<[DType; 4]> = problem.inputs.iter().map(|input| input.dtype).collect();
        let types = self.types(&|at| inputs.get(at).copied())?;
        let old = self.into.as_ref().map(|(_, dtype)| *dtype);
        let code = self.expression.code(&types, &inputs, old);
        Body {
            op: self.name,
            code,
            bits: false,
            cost: self.expression.cost(),
            reads_old: old.is_some(),
            scalars: &self.words(&types)?,
            flops: self.expression.nodes.len() as f64,
        }
        .launches(problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let types = self.types(&|at| inputs.get(at).map(|input| input.dtype))?;
        let numbers = self.elements(&types)?;
        twin::evaluate(&self.expression, &types, &numbers, inputs, output);
        Ok(())
    }
}
