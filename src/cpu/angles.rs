//! Functions of angles and what undoes them, circular and hyperbolic, as f32 and f64 have them alike: without branches, so that
//! loops over them vectorise.

/// For a float type whose module has `log_beside_one`, `hyperbolic_parts`, `atan_tail` and `asin_tail`; in brackets the
/// name of what says whether the processor multiplies and adds in one instruction, where that is open. `pi_rest`: what the
/// float of pi lacks, of itself. `small`: below it hyperbolic sines are their operands.
macro_rules! angles {
    { $float:ident, [$($fused:ident)?]; pi_rest: $pi_rest:expr, small: $small:expr } => {
        use std::$float::consts::{FRAC_PI_2, PI};

        /// An angle that lies beside 0, pi/2 or pi.
        #[inline(always)]
        fn beside(axis: $float, rest: $float) -> $float {
            axis + (axis * $pi_rest + rest)
        }

        /// As IEEE 754 has it: zeros have signs, and infinities are equal.
        #[inline(always)]
        pub(crate) fn atan2$(<const $fused: bool>)?(y: $float, x: $float) -> $float {
            let (up, along) = (y.abs(), x.abs());
            let is_steep = up > along;
            let (less, more) = if is_steep { (along, up) } else { (up, along) };
            let equal = if more == 0.0 { 0.0 } else { 1.0 };
            let q = if less == more { equal } else { less / more };
            let t = q + atan_tail$(::<$fused>)?(q);
            let is_back = x.is_sign_negative();
            let flat = if is_back { PI } else { 0.0 };
            let axis = if is_steep { FRAC_PI_2 } else { flat };
            let angle = beside(axis, if is_steep == is_back { t } else { -t }).copysign(y);
            if x.is_nan() | y.is_nan() { $float::NAN } else { angle }
        }

        #[inline(always)]
        pub(crate) fn atan$(<const $fused: bool>)?(x: $float) -> $float {
            atan2$(::<$fused>)?(x, 1.0)
        }

        /// Whether a size is at most 1/2, and its inverse sine; above, half the inverse cosine. NaN above 1.
        #[inline(always)]
        fn arc$(<const $fused: bool>)?(size: $float) -> (bool, $float) {
            let is_near = size <= 0.5;
            let z = if is_near { size * size } else { 0.5 - 0.5 * size };
            let s = if is_near { size } else { z.sqrt() };
            (is_near, s + s * asin_tail$(::<$fused>)?(z))
        }

        #[inline(always)]
        pub(crate) fn asin$(<const $fused: bool>)?(x: $float) -> $float {
            let (is_near, t) = arc$(::<$fused>)?(x.abs());
            let angle = if is_near { t } else { beside(FRAC_PI_2, -2.0 * t) };
            angle.copysign(x)
        }

        #[inline(always)]
        pub(crate) fn acos$(<const $fused: bool>)?(x: $float) -> $float {
            let (is_near, t) = arc$(::<$fused>)?(x.abs());
            let is_back = x < 0.0;
            let flat = if is_back { PI } else { 0.0 };
            let axis = if is_near { FRAC_PI_2 } else { flat };
            let size = if is_near { t } else { 2.0 * t };
            beside(axis, if is_back == is_near { size } else { -size })
        }

        /// With |x| = k ln 2 + r: halves of the hyperbolic sine and cosine of k ln 2, the sine of r, and the cosine of r less 1.
        #[inline(always)]
        fn hyperbolic$(<const $fused: bool>)?(x: $float) -> [$float; 4] {
            let (k, r, sine, cosine) = hyperbolic_parts$(::<$fused>)?(x.abs());
            let up = power_of_two(k.wrapping_sub(2));
            let down = if k > 60 { 0.0 } else { power_of_two(k.wrapping_neg().wrapping_sub(2)) };
            let z = r * r;
            [up - down, up + down, r + r * (z * sine), z * cosine]
        }

        #[inline(always)]
        pub(crate) fn sinh$(<const $fused: bool>)?(x: $float) -> $float {
            let [a, b, sine, cosine] = hyperbolic$(::<$fused>)?(x);
            let y = (a + (a * cosine + b * sine)) * 2.0;
            // What is small is not halved on the way.
            let is_itself = (x.abs() < $small) | x.is_nan();
            if is_itself { x } else { y.copysign(x) }
        }

        #[inline(always)]
        pub(crate) fn cosh$(<const $fused: bool>)?(x: $float) -> $float {
            let [a, b, sine, cosine] = hyperbolic$(::<$fused>)?(x);
            let y = (b + (b * cosine + a * sine)) * 2.0;
            if x.is_nan() { x } else { y }
        }

        /// From here on a root of 1 and a square is the square's, and 1 adds nothing.
        const HUGE: $float = 1_152_921_504_606_846_976.0;

        /// The logarithm of 1 + near, of twice the size where that is huge.
        #[inline(always)]
        fn log_of_sum$(<const $fused: bool>)?(size: $float, near: $float) -> $float {
            let is_huge = size > HUGE;
            let (near, more) = if is_huge { (size, 1.0) } else { (near, 0.0) };
            let y = log_beside_one$(::<$fused>)?(near, more);
            // Infinity and NaN stay.
            if size < $float::INFINITY { y } else { size }
        }

        #[inline(always)]
        pub(crate) fn asinh$(<const $fused: bool>)?(x: $float) -> $float {
            let size = x.abs();
            let square = size * size;
            let near = size + square / (1.0 + (1.0 + square).sqrt());
            log_of_sum$(::<$fused>)?(size, near).copysign(x)
        }

        #[inline(always)]
        pub(crate) fn acosh$(<const $fused: bool>)?(x: $float) -> $float {
            let more = x - 1.0;
            let y = log_of_sum$(::<$fused>)?(x, more + (more * (more + 2.0)).sqrt());
            if x < 1.0 { $float::NAN } else { y }
        }

        #[inline(always)]
        pub(crate) fn atanh$(<const $fused: bool>)?(x: $float) -> $float {
            let size = x.abs();
            let twice = 2.0 * size;
            let y = 0.5 * log_beside_one$(::<$fused>)?(twice + twice * size / (1.0 - size), 0.0);
            let edge = if size == 1.0 { $float::INFINITY } else { $float::NAN };
            (if size < 1.0 { y } else { edge }).copysign(x)
        }
    };
}
pub(super) use angles;
