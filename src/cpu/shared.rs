//! What functions of f32 and of f64 share: whole numbers and powers of two by bits, bounds, and what logarithms and powers are
//! of operands that are special.

/// For a float type with integers as wide, the bits of its fraction, the exponent of 1, what leaves no room for a fraction
/// when it is added, and the number from which on all are even.
macro_rules! shared {
    {
        $float:ident, $signed:ident, $unsigned:ident; fraction: $fraction:expr, one: $one:expr, shift: $shift:expr,
        even: $even:expr
    } => {
        /// What leaves no room for a fraction when it is added, for sizes below a third of it.
        const SHIFT: $float = $shift;

        /// The nearest whole number, ties to even, of a number to which [`SHIFT`] was added: as float and as
        /// integer. Of NaN any integer.
        #[inline(always)]
        fn whole(shifted: $float) -> ($float, $signed) {
            let bits = shifted.to_bits().wrapping_sub(SHIFT.to_bits());
            (shifted - SHIFT, bits as $signed)
        }

        /// 2^k for whole k whose power is normal.
        #[inline(always)]
        fn power_of_two(k: $signed) -> $float {
            $float::from_bits((k.wrapping_add($one) as $unsigned) << $fraction)
        }

        /// As [`SHIFT`], for [`whole_power`]: the exponent of a power is at the end of a sum's bits.
        const SHIFTED: $float = SHIFT + $one as $float;

        /// The nearest whole number of a number to which [`SHIFTED`] was added, and 2 to it, where that is normal or infinite.
        #[inline(always)]
        fn whole_power(shifted: $float) -> ($float, $float) {
            let power = $float::from_bits(shifted.to_bits() << $fraction);
            (shifted - SHIFTED, power)
        }

        /// [`whole`] of a number to which [`SHIFTED`] was added: what lies half way goes where [`whole_power`] has it.
        #[inline(always)]
        fn whole_exponent(shifted: $float) -> ($float, $signed) {
            let bits = shifted.to_bits().wrapping_sub(SHIFTED.to_bits());
            (shifted - SHIFTED, bits as $signed)
        }

        /// x 2^k, in two steps: into subnormals and infinity.
        #[inline(always)]
        fn scaled(x: $float, k: $signed) -> $float {
            let half = k >> 1;
            x * power_of_two(half) * power_of_two(k.wrapping_sub(half))
        }

        /// Within two bounds; NaN stays.
        #[inline(always)]
        fn within(x: $float, low: $float, high: $float) -> $float {
            let raised = if x < low { low } else { x };
            if raised > high { high } else { raised }
        }

        /// What logarithms of x are where `y` is not: of infinity and NaN, below zero, of zero.
        #[inline(always)]
        fn log_special(x: $float, y: $float) -> $float {
            let least = if x == 0.0 {
                $float::NEG_INFINITY
            } else {
                $float::NAN
            };
            let y = if x > 0.0 { y } else { least };
            if x < $float::INFINITY { y } else { x }
        }

        /// What a power is where it is not `size`, that of the base without its sign: of zero and infinity, with
        /// signs, of NaN, and 1.
        #[inline(always)]
        pub(crate) fn special_power(x: $float, y: $float, size: $float) -> $float {
            let (is_zero, is_infinite) = (x == 0.0, x.abs() == $float::INFINITY);
            let edge = match y.is_sign_negative() == is_zero {
                true => $float::INFINITY,
                false => 0.0,
            };
            let size = if is_zero | is_infinite { edge } else { size };
            let is_large = y.abs() >= $even;
            let is_whole = (y.trunc() == y) | is_large;
            let half = 0.5 * y;
            let is_odd = is_whole & !is_large & (half.trunc() != half);
            let is_minus = x.is_sign_negative();
            let signed = if is_minus & is_odd { -size } else { size };
            let has_none = is_minus & !is_whole & !is_zero & !is_infinite;
            let y_or = if has_none | y.is_nan() {
                $float::NAN
            } else {
                signed
            };
            let value = if x.is_nan() { x } else { y_or };
            if (y == 0.0) | (x == 1.0) { 1.0 } else { value }
        }
    };
}
pub(super) use shared;
