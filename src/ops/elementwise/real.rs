//! Numbers as the twins of elementwise functions compute with them.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// f32 and f64.
pub(super) trait Real:
    bytemuck::Pod
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    const ZERO: Self;
    fn exp(self) -> Self;
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($($rust:ident),*) => {$(
        impl Real for $rust {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn exp(self) -> Self {
                $rust::exp(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $rust::sqrt(self)
            }
        }
    )*};
}
real!(f32, f64);

/// i32 and u32: they wrap.
pub(super) trait Whole: bytemuck::Pod + Ord + Default {
    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_sub(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;
    fn wrapping_neg(self) -> Self;
    /// Toward zero; by zero it is 0.
    fn divide(self, other: Self) -> Self;
}

macro_rules! whole {
    ($($rust:ident),*) => {$(
        impl Whole for $rust {
            #[inline(always)]
            fn wrapping_add(self, other: Self) -> Self {
                $rust::wrapping_add(self, other)
            }
            #[inline(always)]
            fn wrapping_sub(self, other: Self) -> Self {
                $rust::wrapping_sub(self, other)
            }
            #[inline(always)]
            fn wrapping_mul(self, other: Self) -> Self {
                $rust::wrapping_mul(self, other)
            }
            #[inline(always)]
            fn wrapping_neg(self) -> Self {
                $rust::wrapping_neg(self)
            }
            #[inline(always)]
            fn divide(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
        }
    )*};
}
whole!(i32, u32);
