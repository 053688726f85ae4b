//! Tensor's elementwise methods.

use super::{Elementwise, Function};
use crate::dtype::Scalar;
use crate::error::Result;
use crate::tensor::Tensor;

/// A tensor or a number: what elementwise functions take beside their first tensor. A number has the
/// dtype of the tensor that it is combined with, and travels with the launch (of f64 as a tensor of one element, which counts
/// as one that a kernel binds).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Argument<'a> {
    /// A tensor that broadcasts.
    Tensor(&'a Tensor),
    /// One number for all elements.
    Number(Scalar),
}

impl<'a> From<&'a Tensor> for Argument<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Argument::Tensor(tensor)
    }
}

impl<'a> From<&&'a Tensor> for Argument<'a> {
    fn from(tensor: &&'a Tensor) -> Self {
        Argument::Tensor(tensor)
    }
}

impl<T: Into<Scalar>> From<T> for Argument<'_> {
    fn from(number: T) -> Self {
        Argument::Number(number.into())
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident $function:ident;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// As [`Tensor::add`].
                pub fn $method(&self) -> Result<Tensor> {
                    Elementwise::call(Function::$function, &[self.into()])
                }
            )*
        }
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $method:ident $function:ident;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// As [`Tensor::add`].
                pub fn $method<'a>(&'a self, other: impl Into<Argument<'a>>) -> Result<Tensor> {
                    Elementwise::call(Function::$function, &[self.into(), other.into()])
                }
            )*
        }
    };
}

macro_rules! in_place {
    ($($function:ident $method:ident $assign:ident $into:ident;)*) => {
        impl Tensor {
            $(
                #[doc = concat!("[`Tensor::", stringify!($method), "`] into this tensor's own memory: ")]
                /// all views of the storage see it. Another view of the same storage as the argument is
                /// read before anything is written.
                ///
                /// `add`, `sub`, `mul`, `div`, `rem`, `pow`, `minimum` and `maximum` have such a form. All others, of one
                /// operand, `clamp`, `mul_add` and `select` among them, go in place by [`Tensor::fused_assign`]
                /// (`x.fused_assign(|_, x| x.exp())`); so does `cast`, within an expression that ends in this dtype.
                ///
                /// # Errors
                /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) when the argument does not
                /// broadcast to this shape;
                /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the tensor repeats
                /// elements (a broadcast view); as [`Tensor::add`]. Nothing is written then.
                pub fn $assign<'a>(&self, other: impl Into<Argument<'a>>) -> Result<()> {
                    Elementwise::assign(stringify!($assign), Function::$function, self, &[other.into()])
                }

                #[doc = concat!("[`Tensor::", stringify!($method), "`] in this tensor's memory where ")]
                /// nobody else holds it and the result fits, else in new memory. Functions without such a form of their own:
                /// [`Tensor::into_fused`]. The tensor is used up, also by a call that fails; where that matters
                #[doc = concat!("[`Tensor::", stringify!($assign), "`] keeps it.")]
                ///
                /// # Errors
                /// As [`Tensor::add`].
                pub fn $into<'a>(self, other: impl Into<Argument<'a>>) -> Result<Tensor> {
                    let arguments = [other.into()];
                    Elementwise::take_over(stringify!($into), Function::$function, self, &arguments)
                }
            )*
        }
    };
}

in_place! {
    Add add add_assign into_add;
    Sub sub sub_assign into_sub;
    Mul mul mul_assign into_mul;
    Div div div_assign into_div;
    Rem rem rem_assign into_rem;
    Pow pow pow_assign into_pow;
    Min minimum minimum_assign into_minimum;
    Max maximum maximum_assign into_maximum;
}

impl Tensor {
    /// `self + other`, elementwise with NumPy's broadcasting. Integers wrap.
    ///
    /// The result of this and all other elementwise functions lies in memory as its operands do, where those that
    /// are not broadcast agree on an order (PyTorch's rule): of transposed matrices it is a transposed one, and nothing
    /// is moved. Else it lies by rows. [`Tensor::contiguous`] gives rows in any case.
    ///
    /// ```
    /// use orlop::{DType, Device, Tensor};
    ///
    /// let rows = Tensor::ones(&Device::cpu(), [3, 2], DType::F32)?;
    /// let turned = rows.transpose(0, 1)?;
    /// assert!(turned.add(1.0)?.transpose(0, 1)?.is_contiguous());
    /// assert!(turned.add(&Tensor::ones(&Device::cpu(), [2, 3], DType::F32)?)?.is_contiguous());
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a dtype that the function does
    /// not take, or a number that the dtype cannot hold; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn add<'a>(&'a self, other: impl Into<Argument<'a>>) -> Result<Tensor> {
        Elementwise::call(Function::Add, &[self.into(), other.into()])
    }

    /// `self * factor + addend`: floats are rounded once or twice. Integers wrap.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul_add<'a>(
        &'a self,
        factor: impl Into<Argument<'a>>,
        addend: impl Into<Argument<'a>>,
    ) -> Result<Tensor> {
        let arguments = [self.into(), factor.into(), addend.into()];
        Elementwise::call(Function::MulAdd, &arguments)
    }

    /// Not below `low` and not above `high`; `high` where they cross. NaN stays; a bound that is NaN is none.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn clamp<'a>(
        &'a self,
        low: impl Into<Argument<'a>>,
        high: impl Into<Argument<'a>>,
    ) -> Result<Tensor> {
        Elementwise::call(Function::Clamp, &[self.into(), low.into(), high.into()])
    }

    /// `base` to this power: `pow` with the number on the left, which has no operator to put it there. For 2 there is
    /// [`Tensor::exp2`], for e [`Tensor::exp`], which take less time.
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[-1.0f32, 0.0, 2.0], 3)?;
    /// assert_eq!(x.rpow(2)?.to_vec::<f32>()?, [0.5, 1.0, 4.0]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn rpow(&self, base: impl Into<Scalar>) -> Result<Tensor> {
        let base = Argument::Number(base.into());
        Elementwise::call(Function::Pow, &[base, self.into()])
    }

    /// Where this tensor of bool is true an element of the one, else of the other (NumPy's `where`).
    ///
    /// # Errors
    /// As [`Tensor::add`]; one of both must be a tensor.
    pub fn select<'a>(
        &'a self,
        when_true: impl Into<Argument<'a>>,
        when_false: impl Into<Argument<'a>>,
    ) -> Result<Tensor> {
        let arguments = [self.into(), when_true.into(), when_false.into()];
        Elementwise::call(Function::Select, &arguments)
    }
}

binary! {
    /// `self - other`, elementwise with NumPy's broadcasting. Integers wrap.
    sub Sub;
    /// `self * other`, elementwise with NumPy's broadcasting. Integers wrap.
    mul Mul;
    /// `self / other`, elementwise with NumPy's broadcasting. Integers truncate toward zero;
    /// an integer divided by zero is 0, and `i32::MIN / -1` is `i32::MIN`, on every device.
    /// Floats: within 2.5 ULP on GPUs (WGSL), correctly rounded on the CPU.
    div Div;
    /// What is left of a division toward zero, with the dividend's sign (C's `fmod`): exact. Integers by
    /// zero give 0.
    rem Rem;
    /// `self` to a power. Integers wrap; to a negative power 1 and -1 stay whole and others are 0. To the numbers 2, 3 and
    /// 4 it is as fast as products are. A number to the power of a tensor is [`Tensor::rpow`].
    pow Pow;
    /// The lesser element; NaN when either is.
    minimum Min;
    /// The greater element; NaN when either is.
    maximum Max;
    /// The angle of the point `other` to the right and `self` up, all around the origin: from -pi to pi, 0 to the right. That
    /// is the inverse tangent of `self / other`, of both signs. Zeros and infinities are as IEEE 754 has them: of -0 and -1 it
    /// is -pi, of two infinities an eighth of a turn. NaN where either is.
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let y = Tensor::from_slice(&Device::cpu(), &[0.0f32, 1.0, -0.0], 3)?;
    /// let x = Tensor::from_slice(&Device::cpu(), &[2.0f32, 0.0, -1.0], 3)?;
    /// let pi = std::f32::consts::PI;
    /// assert_eq!(y.atan2(&x)?.to_vec::<f32>()?, [0.0, pi / 2.0, -pi]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    atan2 Atan2;
    /// `x`, below zero `slope * x`. NaN stays.
    leaky_relu LeakyRelu;
    /// Equal, as bool; false for NaN.
    eq Eq;
    /// Not equal, as bool; true for NaN.
    ne Ne;
    /// Less, as bool; false for NaN.
    lt Lt;
    /// Less or equal, as bool; false for NaN.
    le Le;
    /// Greater, as bool; false for NaN.
    gt Gt;
    /// Greater or equal, as bool; false for NaN.
    ge Ge;
    /// Both, of bools.
    logical_and And;
    /// Either or both, of bools.
    logical_or Or;
    /// One of both, of bools.
    logical_xor Xor;
    /// The bits that both integers have. Of bools: [`Tensor::logical_and`].
    bitwise_and BitAnd;
    /// The bits that either integer has, or both.
    bitwise_or BitOr;
    /// The bits that one of both integers has.
    bitwise_xor BitXor;
    /// The bits of an integer moved up by as many places as `other` is: `self` times that power of two, wrapping. 0 where
    /// `other` is not 0 to 31.
    shift_left ShiftLeft;
    /// The bits of an integer moved down by as many places as `other` is; of i32 the sign moves in (`self` by that power of
    /// two, rounded down), of u32 zeros. Where `other` is not 0 to 31 that is all: -1 of what is below zero, else 0.
    ///
    /// ```
    /// use orlop::{DType, Device, Tensor, fused};
    ///
    /// // Eight numbers of four bits in each word, and what one step is: widened in one kernel.
    /// let words = Tensor::from_slice(&Device::cpu(), &[0x7654_3210u32, 0xffff_ffff], [2, 1])?;
    /// let places = Tensor::arange(&Device::cpu(), 0, 32, 4, DType::U32)?;
    /// let numbers = fused(|e| {
    ///     let four = e.input(&words).shift_right(e.input(&places)).bitwise_and(15);
    ///     (four.cast(DType::F32) - 8.0) * 0.5
    /// })?;
    /// assert_eq!(numbers.slice(0)?.to_vec::<f32>()?, [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    shift_right ShiftRight;
}

unary! {
    /// `-x`. Integers wrap.
    neg Neg;
    /// Without the sign. Integers wrap: `i32::MIN` stays.
    abs Abs;
    /// 1, 0 or -1 by the sign; NaN stays.
    sign Sign;
    /// `x * x`. Integers wrap.
    square Square;
    /// `max(x, 0)`; NaN stays.
    relu Relu;
    /// `1 / x`.
    recip Recip;
    /// The square root; NaN below zero.
    sqrt Sqrt;
    /// `1 / sqrt(x)`.
    rsqrt Rsqrt;
    /// The next whole number down.
    floor Floor;
    /// The next whole number up.
    ceil Ceil;
    /// The nearest whole number, halves to the even one.
    round Round;
    /// The next whole number toward zero.
    trunc Trunc;
    /// `e^x`.
    exp Exp;
    /// `2^x`.
    exp2 Exp2;
    /// `e^x - 1`, within 3 ULP near 0 too.
    expm1 Expm1;
    /// The natural logarithm; NaN below zero.
    log Log;
    /// The logarithm to base 2; NaN below zero.
    log2 Log2;
    /// `log(1 + x)`, within 3 ULP near 0 too.
    log1p Log1p;
    /// The sine of radians, of any size.
    sin Sin;
    /// The cosine of radians, of any size.
    cos Cos;
    /// The tangent of radians, of any size; NaN at infinity.
    tan Tan;
    /// The inverse sine, from -pi/2 to pi/2; NaN where a size is above 1.
    asin Asin;
    /// The inverse cosine, from 0 to pi; NaN where a size is above 1.
    acos Acos;
    /// The inverse tangent, from -pi/2 to pi/2. Of a quotient, all around: [`Tensor::atan2`].
    atan Atan;
    /// The hyperbolic sine.
    sinh Sinh;
    /// The hyperbolic cosine.
    cosh Cosh;
    /// The inverse hyperbolic sine.
    asinh Asinh;
    /// The inverse hyperbolic cosine, from 0 on; NaN below 1.
    acosh Acosh;
    /// The inverse hyperbolic tangent; infinity of their sign at 1 and -1, NaN where a size is above 1.
    atanh Atanh;
    /// The hyperbolic tangent.
    tanh Tanh;
    /// `1 / (1 + e^-x)`.
    sigmoid Sigmoid;
    /// The error function.
    erf Erf;
    /// `x/2 (1 + erf(x / sqrt 2))`.
    gelu Gelu;
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    gelu_tanh GeluTanh;
    /// `x / (1 + e^-x)`; 0 at minus infinity.
    silu Silu;
    /// `log(1 + e^x)`.
    softplus Softplus;
    /// Whether an element is not a number.
    is_nan IsNan;
    /// Whether an element is neither infinite nor NaN.
    is_finite IsFinite;
    /// The other bool.
    logical_not Not;
    /// All bits of an integer turned round.
    bitwise_not BitNot;
}
