//! Numbers as the twins of elementwise functions compute with them.

use std::ops::{BitAnd, BitOr, BitXor, Mul, Not, Rem};

use crate::cpu::whole::quotient;
use crate::cpu::{double, single};

/// f32 and f64. `FUSED`: the processor multiplies and adds in one instruction.
pub(in crate::ops) trait Real:
    bytemuck::Pod + PartialOrd + Mul<Output = Self> + Rem<Output = Self>
{
    const ZERO: Self;
    /// Of the dividend's sign, where it [`Real::is_rest_near`].
    fn near_rest<const FUSED: bool>(self, other: Self) -> Self;
    fn is_rest_near<const FUSED: bool>(self, other: Self) -> bool;
    /// What is larger in size is [`Real::sin`]'s, [`Real::cos`]'s and [`Real::tan`]'s, not [`Real::wave`]'s and
    /// [`Real::near_tan`]'s.
    const LARGE: Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn trunc(self) -> Self;
    fn exp<const FUSED: bool>(self) -> Self;
    fn exp2<const FUSED: bool>(self) -> Self;
    fn expm1<const FUSED: bool>(self) -> Self;
    fn log<const FUSED: bool>(self) -> Self;
    fn log2<const FUSED: bool>(self) -> Self;
    fn log1p<const FUSED: bool>(self) -> Self;
    fn wave<const FUSED: bool>(self, ahead: i32) -> Self;
    fn near_tan<const FUSED: bool>(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin<const FUSED: bool>(self) -> Self;
    fn acos<const FUSED: bool>(self) -> Self;
    fn atan<const FUSED: bool>(self) -> Self;
    fn atan2<const FUSED: bool>(self, x: Self) -> Self;
    fn sinh<const FUSED: bool>(self) -> Self;
    fn cosh<const FUSED: bool>(self) -> Self;
    fn asinh<const FUSED: bool>(self) -> Self;
    fn acosh<const FUSED: bool>(self) -> Self;
    fn atanh<const FUSED: bool>(self) -> Self;
    fn tanh<const FUSED: bool>(self) -> Self;
    fn sigmoid<const FUSED: bool>(self) -> Self;
    fn erf<const FUSED: bool>(self) -> Self;
    fn gelu<const FUSED: bool>(self) -> Self;
    fn gelu_tanh<const FUSED: bool>(self) -> Self;
    fn silu<const FUSED: bool>(self) -> Self;
    fn softplus<const FUSED: bool>(self) -> Self;
    /// By libm, for processors that do not multiply and add in one instruction. What follows is for those that do.
    fn pow(self, power: Self) -> Self;
    /// The exponent of 2 that gives the power of its size: the sum of two parts.
    fn exponent(self, power: Self) -> (Self, Self);
    fn raised(exponent: (Self, Self)) -> Self;
    /// What the power is where it is not that of its size.
    fn special_power(self, power: Self, of_size: Self) -> Self;
    /// A normal number above zero.
    fn is_base_plain(self) -> bool;
    /// Of what [`Real::is_base_plain`].
    fn plain_exponent(self, power: Self) -> (Self, Self);
    /// Of the first part of one whose power is normal.
    fn is_exponent_plain(self) -> bool;
    /// Of what [`Real::is_exponent_plain`].
    fn plain_raised(exponent: (Self, Self)) -> Self;

    #[inline(always)]
    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
}

macro_rules! common {
    ($rust:ident, $module:ident, $by_libm:path) => {
        const ZERO: Self = 0.0;
        #[inline(always)]
        fn abs(self) -> Self {
            $rust::abs(self)
        }
        #[inline(always)]
        fn floor(self) -> Self {
            $rust::floor(self)
        }
        #[inline(always)]
        fn ceil(self) -> Self {
            $rust::ceil(self)
        }
        #[inline(always)]
        fn round(self) -> Self {
            $rust::round_ties_even(self)
        }
        #[inline(always)]
        fn trunc(self) -> Self {
            $rust::trunc(self)
        }
        #[inline(always)]
        fn pow(self, power: Self) -> Self {
            $by_libm(self, power)
        }
        #[inline(always)]
        fn exponent(self, power: Self) -> (Self, Self) {
            $module::exponent(self, power)
        }
        #[inline(always)]
        fn raised(exponent: (Self, Self)) -> Self {
            $module::raised(exponent)
        }
        #[inline(always)]
        fn special_power(self, power: Self, of_size: Self) -> Self {
            $module::special_power(self, power, of_size)
        }
        #[inline(always)]
        fn is_base_plain(self) -> bool {
            ($rust::MIN_POSITIVE..=$rust::MAX).contains(&self)
        }
        #[inline(always)]
        fn plain_exponent(self, power: Self) -> (Self, Self) {
            $module::plain_exponent(self, power)
        }
        #[inline(always)]
        fn is_exponent_plain(self) -> bool {
            // NaN is not.
            $rust::abs(self) < $module::PLAIN_EXPONENT
        }
        #[inline(always)]
        fn plain_raised(exponent: (Self, Self)) -> Self {
            $module::plain_raised(exponent)
        }
    };
}

macro_rules! ours {
    ($($function:ident$(($other:ident))?;)*) => {$(
        #[inline(always)]
        fn $function<const FUSED: bool>(self$(, $other: Self)?) -> Self {
            /// One by one, compiled once: for processors without vectors of 256 bits.
            #[inline(never)]
            fn alone(x: f32$(, $other: f32)?) -> f32 {
                single::$function::<false>(x$(, $other)?)
            }
            match FUSED {
                true => single::$function::<true>(self$(, $other)?),
                false => alone(self$(, $other)?),
            }
        }
    )*};
}

impl Real for f32 {
    common!(f32, single, libm::powf);
    const LARGE: Self = single::LARGE;
    ours! {
        exp;
        exp2;
        expm1;
        log;
        log2;
        log1p;
        asin;
        acos;
        atan;
        atan2(other);
        sinh;
        cosh;
        asinh;
        acosh;
        atanh;
        tanh;
        sigmoid;
        erf;
        gelu;
        gelu_tanh;
        silu;
        softplus;
    }
    // Exact: a quotient of less than 29 bits, and so its product with the divisor. It is whole only where the true one
    // is, since that is 2^-24 away from the next whole number.
    #[inline(always)]
    fn near_rest<const FUSED: bool>(self, other: Self) -> Self {
        let (a, b) = (f64::from(self), f64::from(other));
        (a - (a / b).trunc() * b).copysign(a) as f32
    }
    #[inline(always)]
    fn is_rest_near<const FUSED: bool>(self, other: Self) -> bool {
        let (a, b) = (f64::from(self).abs(), f64::from(other).abs());
        a < 268_435_456.0 * b && b < f64::INFINITY
    }
    #[inline(always)]
    fn wave<const FUSED: bool>(self, ahead: i32) -> Self {
        single::wave::<FUSED>(self, ahead)
    }
    #[inline(always)]
    fn near_tan<const FUSED: bool>(self) -> Self {
        single::tan::<FUSED>(self)
    }
    fn sin(self) -> Self {
        libm::sin(f64::from(self)) as f32
    }
    fn cos(self) -> Self {
        libm::cos(f64::from(self)) as f32
    }
    fn tan(self) -> Self {
        libm::tan(f64::from(self)) as f32
    }
}

/// In vectors, or one by one.
macro_rules! ours_or {
    ($($function:ident$(($other:ident))? => $alone:expr;)*) => {$(
        #[inline(always)]
        fn $function<const FUSED: bool>(self$(, $other: Self)?) -> Self {
            match FUSED {
                true => double::$function(self$(, $other)?),
                false => $alone(self$(, $other)?),
            }
        }
    )*};
}

impl Real for f64 {
    common!(f64, double, libm::pow);
    const LARGE: Self = double::LARGE;
    ours_or! {
        exp => libm::exp;
        exp2 => libm::exp2;
        expm1 => libm::expm1;
        log => libm::log;
        log2 => libm::log2;
        log1p => libm::log1p;
        asin => libm::asin;
        acos => libm::acos;
        atan => libm::atan;
        atan2(other) => libm::atan2;
        sinh => libm::sinh;
        cosh => libm::cosh;
        asinh => libm::asinh;
        // Below -1 libm has some number.
        acosh => |x: f64| if x < 1.0 { f64::NAN } else { libm::acosh(x) };
        atanh => libm::atanh;
        tanh => libm::tanh;
        erf => libm::erf;
        gelu => |x: f64| {
            let x = if x < -50.0 { -50.0 } else { x };
            0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
        };
        gelu_tanh => |x: f64| {
            let x = if x < -50.0 { -50.0 } else { x };
            x / (1.0 + libm::exp(-1.595_769_121_605_731 * (x + 0.044715 * x * x * x)))
        };
        softplus => |x: f64| {
            let above = if x > 0.0 { x } else { 0.0 };
            let y = above + libm::log1p(libm::exp(-x.abs()));
            if x.is_nan() { x } else { y }
        };
    }
    // Exact: the quotient is a whole number less than 2^53, and one too large at most, where it was rounded up to a whole one.
    #[inline(always)]
    fn near_rest<const FUSED: bool>(self, other: Self) -> Self {
        if !FUSED {
            return self;
        }
        let b = other.abs();
        let rest = (-(self.abs() / b).trunc()).mul_add(b, self.abs());
        (if rest < 0.0 { rest + b } else { rest }).copysign(self)
    }
    #[inline(always)]
    fn is_rest_near<const FUSED: bool>(self, other: Self) -> bool {
        let (a, b) = (self.abs(), other.abs());
        FUSED && a < 9_007_199_254_740_992.0 * b && b < f64::INFINITY
    }
    #[inline(always)]
    fn wave<const FUSED: bool>(self, ahead: i32) -> Self {
        match (FUSED, ahead) {
            (true, _) => double::wave(self, ahead),
            (false, 0) => libm::sin(self),
            (false, _) => libm::cos(self),
        }
    }
    #[inline(always)]
    fn near_tan<const FUSED: bool>(self) -> Self {
        match FUSED {
            true => double::tan(self),
            false => libm::tan(self),
        }
    }
    fn sin(self) -> Self {
        libm::sin(self)
    }
    fn cos(self) -> Self {
        libm::cos(self)
    }
    fn tan(self) -> Self {
        libm::tan(self)
    }
    #[inline(always)]
    fn sigmoid<const FUSED: bool>(self) -> Self {
        let e = Real::exp::<FUSED>(-self.abs());
        (if self < 0.0 { e } else { 1.0 }) / (1.0 + e)
    }
    #[inline(always)]
    fn silu<const FUSED: bool>(self) -> Self {
        let x = if self < -800.0 { -800.0 } else { self };
        // The exponential in two factors: their product is below the least number sooner than the result.
        let half = Real::exp::<FUSED>(-0.5 * x.abs());
        let above = if x < 0.0 { x * half * half } else { x };
        above / (1.0 + half * half)
    }
}

/// i32 and u32: they wrap.
pub(super) trait Whole:
    bytemuck::Pod
    + Ord
    + Default
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
{
    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_sub(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;
    fn wrapping_neg(self) -> Self;
    fn wrapping_abs(self) -> Self;
    fn sign(self) -> Self;
    /// Toward zero; by zero it is 0.
    fn divide<const FUSED: bool>(self, other: Self) -> Self;
    /// Of the dividend's sign; by zero it is 0.
    fn rest<const FUSED: bool>(self, other: Self) -> Self;
    const ONE: Self;

    /// As often as a power multiplies; a negative one does not.
    fn counted(self) -> u32;
    /// It wraps, as the product of so many does; to a negative power 1 and -1 stay whole, others are 0.
    fn power(self, power: Self, product: Self) -> Self;
    /// By as many bits as the other is; 0 where that is not 0 to 31.
    fn shift_left(self, by: Self) -> Self;
    /// The same; of what is below zero -1 then, as the sign moves in.
    fn shift_right(self, by: Self) -> Self;
}

macro_rules! whole {
    ($rust:ident, $abs:expr, $sign:expr, $is_below:expr) => {
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
            fn wrapping_abs(self) -> Self {
                $abs(self)
            }
            #[inline(always)]
            fn sign(self) -> Self {
                $sign(self)
            }
            #[inline(always)]
            fn divide<const FUSED: bool>(self, other: Self) -> Self {
                match FUSED {
                    true => quotient(self.into(), other.into()) as $rust,
                    false if other == 0 => 0,
                    false => self.wrapping_div(other),
                }
            }
            #[inline(always)]
            fn rest<const FUSED: bool>(self, other: Self) -> Self {
                let multiple = self.divide::<FUSED>(other).wrapping_mul(other);
                let rest = $rust::wrapping_sub(self, multiple);
                if other == 0 { 0 } else { rest }
            }
            const ONE: Self = 1;

            #[inline(always)]
            fn counted(self) -> u32 {
                if $is_below(self) { 0 } else { self as u32 }
            }
            #[inline(always)]
            fn power(self, power: Self, product: Self) -> Self {
                let is_odd = power & 1 == 1;
                let minus_one = (0 as $rust).wrapping_sub(1);
                let is_whole = self == 1 || self == minus_one;
                let below = match is_whole {
                    true if is_odd => self,
                    true => 1,
                    false => 0,
                };
                if $is_below(power) { below } else { product }
            }
            #[inline(always)]
            fn shift_left(self, by: Self) -> Self {
                let by = by as u32;
                if by < 32 { self << (by & 31) } else { 0 }
            }
            #[inline(always)]
            fn shift_right(self, by: Self) -> Self {
                let by = by as u32;
                let sign = if $is_below(self) { !0 } else { 0 };
                if by < 32 { self >> (by & 31) } else { sign }
            }
        }
    };
}
whole!(i32, i32::wrapping_abs, i32::signum, |power: i32| power < 0);
whole!(u32, |x: u32| x, |x: u32| x.min(1), |_: u32| false);
