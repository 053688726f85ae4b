//! Several elementwise functions as one kernel.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use smallvec::SmallVec;

use super::expression::power_by_products;
use super::write::can_be_taken_over;
use super::{Elementwise, Expression, Function, Node, is_same};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Most values of an expression.
const MOST: usize = 128;

/// Runs an expression of elementwise functions as one kernel: each input is read once, the result
/// written once, and nothing between them takes memory. f16 and bf16 are computed with as f32 and
/// rounded at the end alone. Drivers compile each expression once while it is in use, the longer the more functions like `sin`, `tanh` and `pow`
/// it has.
///
/// ```
/// use orlop::{DType, Device, Tensor, fused};
///
/// let device = Device::cpu();
/// let x = Tensor::from_slice(&device, &[0.0f32, 1.0, 2.0], 3)?;
/// let bias = Tensor::from_slice(&device, &[1.0f32], 1)?;
/// let y = fused(|e| {
///     let (x, bias) = (e.input(&x), e.input(&bias));
///     ((x * 2.0 + bias).square() - 1.0).maximum(5.0)
/// })?;
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 8.0, 24.0]);
/// # Ok::<(), orlop::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::add`]; [`Error::InvalidArgument`] for more than 128 values (inputs, numbers and
/// functions) or for an expression without tensors. Kernels read one tensor less than
/// [`Capabilities::max_bindings`](crate::Capabilities::max_bindings): of more an expression runs on the CPU, or is
/// [`Error::Unsupported`] under strict placement.
pub fn fused(build: impl for<'e> FnOnce(&'e Fusion) -> Expr<'e>) -> Result<Tensor> {
    let fusion = Fusion::default();
    let root = fusion.own(build(&fusion));
    let (op, inputs) = fusion.finish("fused", root)?;
    op.run(&inputs.iter().collect::<SmallVec<[&Tensor; 4]>>())
}

impl Tensor {
    /// Writes an expression of its elements, and of other tensors that broadcast to its shape, into this
    /// tensor's own memory: [`fused`] in place, and functions of one operand in place. All views of the
    /// storage see it.
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[1.0f32, 4.0], 2)?;
    /// x.fused_assign(|_, x| x.sqrt())?;
    /// let bias = Tensor::from_slice(&Device::cpu(), &[0.5f32], 1)?;
    /// x.fused_assign(|e, x| (x * 2.0 + e.input(&bias)).relu())?;
    /// assert_eq!(x.to_vec::<f32>()?, [2.5, 4.5]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`fused`] and [`Tensor::add_assign`]; [`Error::DTypeMismatch`] when the expression gives another
    /// dtype.
    pub fn fused_assign(
        &self,
        build: impl for<'e> FnOnce(&'e Fusion, Expr<'e>) -> Expr<'e>,
    ) -> Result<()> {
        let (op, inputs) = Fusion::of_old("fused_assign", self.dtype(), build)?;
        op.assign_to(self, &inputs.iter().collect::<SmallVec<[&Tensor; 4]>>())
    }

    /// An expression of this tensor's elements, and of other tensors, in this tensor's memory where nobody
    /// else holds it and the result fits, else in new memory. The tensor is used up, also by a call that fails
    /// ([`Tensor::fused_assign`] keeps it).
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[0.0f32, 1.0], 2)?;
    /// assert_eq!(x.into_fused(|_, x| x.exp() - 1.0)?.to_vec::<f32>()?[0], 0.0);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`fused`].
    pub fn into_fused(
        self,
        build: impl for<'e> FnOnce(&'e Fusion, Expr<'e>) -> Expr<'e>,
    ) -> Result<Tensor> {
        self.into_fused_as("into_fused", build)
    }

    /// [`Tensor::into_fused`] as what the program called it.
    ///
    /// # Errors
    /// As [`fused`].
    pub(in crate::ops) fn into_fused_as(
        self,
        op: &'static str,
        build: impl for<'e> FnOnce(&'e Fusion, Expr<'e>) -> Expr<'e>,
    ) -> Result<Tensor> {
        let (mut call, mut inputs) = Fusion::of_old(op, self.dtype(), build)?;
        let dtype = |at: usize| inputs.get(at).map(Tensor::dtype);
        let types = call.expression.types(op, &dtype, Some(self.dtype()))?;
        if types.last() == Some(&self.dtype()) && can_be_taken_over(op, &self, inputs.iter())? {
            call.assign_to(&self, &inputs.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
            return Ok(self);
        }
        // The first operand: of several devices its own is the home.
        for node in &mut call.expression.nodes {
            match node {
                Node::Old => *node = Node::Input(0),
                Node::Input(input) => *input += 1,
                _ => {}
            }
        }
        inputs.insert(0, self);
        call.run(&inputs.iter().collect::<SmallVec<[&Tensor; 4]>>())
    }
}

/// The inputs of an expression: see [`fused`].
#[derive(Debug, Default)]
pub struct Fusion(RefCell<Graph>);

#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<Node>,
    /// Of each node, where it is known and right.
    dtypes: Vec<Option<DType>>,
    /// Of what is written into.
    old: Option<DType>,
    numbers: SmallVec<[Scalar; 2]>,
    inputs: Vec<Tensor>,
    /// A value of another expression came in: `fused` within `fused`.
    has_strangers: bool,
}

impl Graph {
    fn push(&mut self, node: Node) -> u8 {
        let there = self.nodes.iter().position(|other| *other == node);
        let at = there.unwrap_or_else(|| {
            // Beyond the most values the whole is refused; numbers of nodes stay within it.
            self.dtypes.push(self.dtype_of(&node));
            self.nodes.push(node);
            self.nodes.len() - 1
        });
        at.min(MOST) as u8
    }

    fn dtype(&self, node: u8) -> Option<DType> {
        self.dtypes.get(usize::from(node)).copied().flatten()
    }

    /// The dtype of a new node; errors are told at the end.
    fn dtype_of(&self, node: &Node) -> Option<DType> {
        match *node {
            Node::Input(input) => self.inputs.get(usize::from(input)).map(Tensor::dtype),
            Node::Old => self.old,
            Node::Scalar(_) => None,
            Node::Cast(to, _) => Some(to),
            Node::Apply(function, operands) => {
                let mut alike = operands[function.first_alike()..function.operands()].iter();
                let dtype = alike.find_map(|&operand| self.dtype(operand))?;
                function.result(dtype)
            }
        }
    }
}

impl Fusion {
    /// An expression of what a tensor of a dtype holds, and its other inputs.
    fn of_old(
        op: &'static str,
        dtype: DType,
        build: impl for<'e> FnOnce(&'e Fusion, Expr<'e>) -> Expr<'e>,
    ) -> Result<(Elementwise, Vec<Tensor>)> {
        let fusion = Fusion::default();
        fusion.0.borrow_mut().old = Some(dtype);
        let node = fusion.0.borrow_mut().push(Node::Old);
        let old = Expr {
            fusion: &fusion,
            node,
        };
        let root = fusion.own(build(&fusion, old));
        fusion.finish(op, root)
    }

    /// The expression that ends at a node, and its inputs.
    fn finish(self, op: &'static str, root: u8) -> Result<(Elementwise, Vec<Tensor>)> {
        let Graph {
            mut nodes,
            numbers,
            inputs,
            has_strangers,
            ..
        } = self.0.into_inner();
        if has_strangers {
            let problem = "a value of another expression is used in this one: give it as a tensor, by input()";
            return Err(Error::invalid(op, problem));
        }
        if nodes.len() > MOST {
            let problem = format!("it has more than {MOST} values: make two of it");
            return Err(Error::invalid(op, problem));
        }
        nodes.truncate(usize::from(root) + 1);
        // What the result does not come from is left out, with its inputs and numbers.
        let mut is_needed = vec![false; nodes.len()];
        if let Some(last) = is_needed.last_mut() {
            *last = true;
        }
        for (at, node) in nodes.iter().enumerate().rev() {
            if is_needed[at] {
                for &read in node.reads() {
                    is_needed[usize::from(read)] = true;
                }
            }
        }
        let (mut kept, mut kept_inputs, mut kept_numbers) =
            (SmallVec::new(), Vec::new(), SmallVec::new());
        let mut place = vec![0u8; nodes.len()];
        for (at, node) in nodes
            .into_iter()
            .enumerate()
            .filter(|&(at, _)| is_needed[at])
        {
            let new = |old: u8| place[usize::from(old)];
            let node = match node {
                Node::Old => Node::Old,
                Node::Input(input) => {
                    kept_inputs.push(inputs[usize::from(input)].clone());
                    Node::Input(kept_inputs.len() as u8 - 1)
                }
                Node::Scalar(number) => {
                    kept_numbers.push(numbers[usize::from(number)]);
                    Node::Scalar(kept_numbers.len() as u8 - 1)
                }
                Node::Apply(function, operands) => Node::Apply(function, operands.map(new)),
                Node::Cast(dtype, operand) => Node::Cast(dtype, new(operand)),
            };
            place[at] = kept.len() as u8;
            kept.push(node);
        }
        let call = Elementwise {
            numbers: kept_numbers,
            ..Elementwise::new(op, Expression { nodes: kept })
        };
        Ok((call, kept_inputs))
    }

    /// A tensor as a value of the expression. All inputs broadcast to one shape.
    pub fn input(&self, tensor: &Tensor) -> Expr<'_> {
        let mut graph = self.0.borrow_mut();
        let there = graph.inputs.iter().position(|other| is_same(other, tensor));
        let input = there.unwrap_or_else(|| {
            graph.inputs.push(tensor.clone());
            graph.inputs.len() - 1
        });
        let node = graph.push(Node::Input(input.min(MOST) as u8));
        Expr { fusion: self, node }
    }

    /// The node of a value, which must be of this expression.
    fn own(&self, value: Expr<'_>) -> u8 {
        if !std::ptr::eq(self, value.fusion) {
            self.0.borrow_mut().has_strangers = true;
            return 0;
        }
        value.node
    }

    fn number(&self, number: Scalar) -> u8 {
        let mut graph = self.0.borrow_mut();
        graph.numbers.push(number);
        let number = (graph.numbers.len() - 1).min(MOST) as u8;
        graph.push(Node::Scalar(number))
    }
}

/// A value of an expression: see [`fused`].
#[derive(Clone, Copy, Debug)]
pub struct Expr<'e> {
    fusion: &'e Fusion,
    node: u8,
}

/// A value of an expression or a number.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ExprArgument<'e> {
    /// A value of the same expression.
    Expr(Expr<'e>),
    /// One number for all elements.
    Number(Scalar),
}

impl<'e> From<Expr<'e>> for ExprArgument<'e> {
    fn from(value: Expr<'e>) -> Self {
        ExprArgument::Expr(value)
    }
}

impl<T: Into<Scalar>> From<T> for ExprArgument<'_> {
    fn from(number: T) -> Self {
        ExprArgument::Number(number.into())
    }
}

impl<'e> Expr<'e> {
    fn node_of(self, argument: ExprArgument<'e>) -> u8 {
        match argument {
            ExprArgument::Expr(value) => self.fusion.own(value),
            ExprArgument::Number(number) => self.fusion.number(number),
        }
    }

    fn apply(self, function: Function, operands: [u8; 3]) -> Self {
        let node = Node::Apply(function, operands);
        let node = self.fusion.0.borrow_mut().push(node);
        Expr { node, ..self }
    }

    fn unary(self, function: Function) -> Self {
        self.apply(function, [self.node, 0, 0])
    }

    fn binary(self, function: Function, other: ExprArgument<'e>) -> Self {
        if let (Function::Pow, ExprArgument::Number(power)) = (function, other) {
            let mut graph = self.fusion.0.borrow_mut();
            let base = (self.node, graph.dtype(self.node));
            let node = power_by_products(base, power, |node| graph.push(node));
            if let Some(node) = node {
                return Expr { node, ..self };
            }
        }
        let other = self.node_of(other);
        self.apply(function, [self.node, other, 0])
    }

    /// As another dtype, rounded to it: [`Tensor::cast`].
    pub fn cast(self, dtype: DType) -> Self {
        let node = Node::Cast(dtype, self.node);
        let node = self.fusion.0.borrow_mut().push(node);
        Expr { node, ..self }
    }

    /// [`Tensor::rpow`].
    pub fn rpow(self, base: impl Into<Scalar>) -> Self {
        let base = self.fusion.number(base.into());
        self.apply(Function::Pow, [base, self.node, 0])
    }

    /// [`Tensor::mul_add`].
    pub fn mul_add(
        self,
        factor: impl Into<ExprArgument<'e>>,
        addend: impl Into<ExprArgument<'e>>,
    ) -> Self {
        let operands = [
            self.node,
            self.node_of(factor.into()),
            self.node_of(addend.into()),
        ];
        self.apply(Function::MulAdd, operands)
    }

    /// [`Tensor::clamp`].
    pub fn clamp(
        self,
        low: impl Into<ExprArgument<'e>>,
        high: impl Into<ExprArgument<'e>>,
    ) -> Self {
        let operands = [
            self.node,
            self.node_of(low.into()),
            self.node_of(high.into()),
        ];
        self.apply(Function::Clamp, operands)
    }

    /// [`Tensor::select`].
    pub fn select(
        self,
        when_true: impl Into<ExprArgument<'e>>,
        when_false: impl Into<ExprArgument<'e>>,
    ) -> Self {
        let (yes, no) = (when_true.into(), when_false.into());
        let operands = [self.node, self.node_of(yes), self.node_of(no)];
        self.apply(Function::Select, operands)
    }
}

macro_rules! methods {
    (unary $($method:ident $function:ident,)*; binary $($two:ident $function_of_two:ident,)*) => {
        impl<'e> Expr<'e> {
            $(
                #[doc = concat!("[`Tensor::", stringify!($method), "`].")]
                #[allow(clippy::should_implement_trait)]
                pub fn $method(self) -> Self {
                    self.unary(Function::$function)
                }
            )*
            $(
                #[doc = concat!("[`Tensor::", stringify!($two), "`].")]
                #[allow(clippy::should_implement_trait)]
                pub fn $two(self, other: impl Into<ExprArgument<'e>>) -> Self {
                    self.binary(Function::$function_of_two, other.into())
                }
            )*
        }
    };
}

methods! {
    unary neg Neg, abs Abs, sign Sign, square Square, relu Relu, recip Recip, sqrt Sqrt, rsqrt Rsqrt,
    floor Floor, ceil Ceil, round Round, trunc Trunc, exp Exp, exp2 Exp2, expm1 Expm1, log Log,
    log2 Log2, log1p Log1p, sin Sin, cos Cos, tan Tan, asin Asin, acos Acos, atan Atan,
    sinh Sinh, cosh Cosh, asinh Asinh, acosh Acosh, atanh Atanh, tanh Tanh, sigmoid Sigmoid, erf Erf, gelu Gelu,
    gelu_tanh GeluTanh, silu Silu, softplus Softplus, is_nan IsNan, is_finite IsFinite,
    logical_not Not, bitwise_not BitNot,;
    binary add Add, sub Sub, mul Mul, div Div, rem Rem, pow Pow, atan2 Atan2, minimum Min, maximum Max, leaky_relu LeakyRelu, eq Eq, ne Ne, lt Lt, le Le, gt Gt,
    ge Ge, logical_and And, logical_or Or, logical_xor Xor, bitwise_and BitAnd, bitwise_or BitOr,
    bitwise_xor BitXor, shift_left ShiftLeft, shift_right ShiftRight,
}

impl Neg for Expr<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        self.unary(Function::Neg)
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident),*) => {$(
        impl<'e, T: Into<ExprArgument<'e>>> $trait<T> for Expr<'e> {
            type Output = Expr<'e>;
            fn $method(self, other: T) -> Expr<'e> {
                self.binary(Function::$trait, other.into())
            }
        }
        operator!($trait $method: f64, i64, Scalar);
    )*};
    ($trait:ident $method:ident: $($number:ty),*) => {$(
        impl<'e> $trait<Expr<'e>> for $number {
            type Output = Expr<'e>;
            fn $method(self, other: Expr<'e>) -> Expr<'e> {
                let number = other.fusion.number(self.into());
                other.apply(Function::$trait, [number, other.node, 0])
            }
        }
    )*};
}
operator!(Add add, Sub sub, Mul mul, Div div, Rem rem);
