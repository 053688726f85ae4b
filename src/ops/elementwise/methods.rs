//! Tensor's elementwise methods.

use super::{Elementwise, Function};
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// `self + other`, elementwise with NumPy's broadcasting. Integers wrap.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a dtype that the function does
    /// not take; what any op can meet: out of memory, unsupported under strict placement, a lost
    /// device.
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        Elementwise::of(Function::Add).run(&[self, other])
    }

    /// `self - other`, elementwise with NumPy's broadcasting. Integers wrap.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        Elementwise::of(Function::Sub).run(&[self, other])
    }

    /// `self * other`, elementwise with NumPy's broadcasting. Integers wrap.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        Elementwise::of(Function::Mul).run(&[self, other])
    }

    /// `self / other`, elementwise with NumPy's broadcasting. Integers truncate toward zero;
    /// an integer divided by zero is 0, and `i32::MIN / -1` is `i32::MIN`, on every device.
    /// Floats: within 2.5 ULP on GPUs (WGSL), correctly rounded on the CPU.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        Elementwise::of(Function::Div).run(&[self, other])
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident = $function:ident;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// As [`Tensor::add`].
                pub fn $method(&self) -> Result<Tensor> {
                    Elementwise::of(Function::$function).run(&[self])
                }
            )*
        }
    };
}

unary! {
    /// `-x`. Integers wrap.
    neg = Neg;
    /// `max(x, 0)`; NaN stays.
    relu = Relu;
    /// `e^x`.
    exp = Exp;
    /// The square root; NaN below zero.
    sqrt = Sqrt;
}
