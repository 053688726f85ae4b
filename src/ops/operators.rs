//! `+ - * / %` on references, on results and with numbers: `(&a * &b + &c)?`, `(&a * 2.0)?`.
//!
//! Numbers are `f64`, `i64` or [`Scalar`]: with one float and one integer type a literal needs no
//! annotation. An `f32` goes through `f64::from(x)`, which loses nothing. They combine with `&Tensor`, not with results:
//! `&(&a * &b)? * 2.0`, since an `impl` of std's traits for `Result` and `f64` has no type of this crate's, and Rust refuses it.
//! What has no operator takes a number on the left by a method: [`Tensor::rpow`], and comparisons turned round.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use super::elementwise::{Elementwise, Function};
use crate::dtype::Scalar;
use crate::error::Result;
use crate::tensor::Tensor;

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl $trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(self, other)
            }
        }
        impl $trait<&Tensor> for Result<Tensor> {
            type Output = Result<Tensor>;
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(&self?, other)
            }
        }
        impl $trait<Result<Tensor>> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, other: Result<Tensor>) -> Result<Tensor> {
                Tensor::$method(self, &other?)
            }
        }
        operator!($trait, $method, f64, i64, Scalar);
    };
    ($trait:ident, $method:ident, $($number:ty),*) => {$(
        impl $trait<$number> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, other: $number) -> Result<Tensor> {
                Elementwise::call(Function::$trait, &[self.into(), other.into()])
            }
        }
        impl $trait<&Tensor> for $number {
            type Output = Result<Tensor>;
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Elementwise::call(Function::$trait, &[self.into(), other.into()])
            }
        }
    )*};
}
operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);
operator!(Rem, rem);

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}
