//! Keys: whole numbers in whose order elements are sorted. `shaders/part/keys.wgsl` has the same.
//!
//! The bits of IEEE numbers are in the order of the numbers but for their sign: those of negative ones are turned, to those of
//! the others the sign is added (M. Herf, "Radix Tricks", 2001).

use half::{bf16, f16};

use crate::dtype::DType;

/// What sorted elements of a dtype are written as, whose elements are words: floats that hold all of its, or counts.
pub(super) fn widened(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::U32,
        other => other.accumulator(),
    }
}

/// Bits of a dtype's keys.
pub(super) fn bits(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 1,
        other => 8 * other.size() as u32,
    }
}

/// An element, as it lies in memory.
pub(super) trait Keyed: bytemuck::Pod + Send + Sync {
    const DTYPE: DType;
    /// What it is written as.
    type Wide: bytemuck::Pod + Send + Sync;

    /// The key of the smallest first, in the low bits; `zeros`: -0 and 0 have one.
    fn key(self, zeros: bool) -> u64;

    /// The element of a key; NaN of one is the one that arithmetic makes.
    fn of(key: u64) -> Self::Wide;
}

macro_rules! floats {
    ($($float:ty, $bits:ty, $dtype:ident, $wide:ty;)*) => {$(
        impl Keyed for $float {
            const DTYPE: DType = DType::$dtype;
            type Wide = $wide;

            #[inline(always)]
            fn key(self, zeros: bool) -> u64 {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                let size = bits & !SIGN;
                let bits = match size > <$float>::INFINITY.to_bits() {
                    true => <$float>::NAN.to_bits(),
                    false if zeros && size == 0 => 0,
                    false => bits,
                };
                u64::from(if bits & SIGN == 0 { bits | SIGN } else { !bits })
            }

            #[inline(always)]
            fn of(key: u64) -> $wide {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let key = key as $bits;
                let bits = if key & SIGN == 0 { !key } else { key & !SIGN };
                <$float>::from_bits(bits).into()
            }
        }
    )*};
}
floats! {
    f32, u32, F32, f32;
    f64, u64, F64, f64;
    f16, u16, F16, f32;
    bf16, u16, BF16, f32;
}

impl Keyed for u32 {
    const DTYPE: DType = DType::U32;
    type Wide = u32;

    #[inline(always)]
    fn key(self, _: bool) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn of(key: u64) -> u32 {
        key as u32
    }
}

impl Keyed for i32 {
    const DTYPE: DType = DType::I32;
    type Wide = i32;

    #[inline(always)]
    fn key(self, _: bool) -> u64 {
        u64::from(self as u32 ^ (1 << 31))
    }

    #[inline(always)]
    fn of(key: u64) -> i32 {
        (key as u32 ^ (1 << 31)) as i32
    }
}

/// A bool's byte.
impl Keyed for u8 {
    const DTYPE: DType = DType::Bool;
    type Wide = u32;

    #[inline(always)]
    fn key(self, _: bool) -> u64 {
        u64::from(self != 0)
    }

    #[inline(always)]
    fn of(key: u64) -> u32 {
        key as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Keyed + PartialOrd + std::fmt::Debug>(ordered: &[T]) {
        for (at, &x) in ordered.iter().enumerate() {
            let bits = bits(T::DTYPE);
            assert!(bits == 64 || (x.key(false) | x.key(true)) >> bits == 0);
            for (other, &y) in ordered.iter().enumerate() {
                assert_eq!(x.key(false) < y.key(false), at < other, "{x:?} {y:?}");
                if x == y {
                    assert_eq!(x.key(true), y.key(true), "{x:?} {y:?}");
                }
            }
        }
    }

    #[test]
    fn keys_are_in_the_order_of_elements() {
        check(&[
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            -1e-45,
            -0.0,
            0.0,
            1e-45,
            1.0,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ]);
        check(&[
            f64::NEG_INFINITY,
            f64::MIN,
            -1.0,
            -5e-324,
            -0.0,
            0.0,
            5e-324,
            1.0,
            f64::MAX,
            f64::INFINITY,
            f64::NAN,
        ]);
        check(&[
            f16::NEG_INFINITY,
            f16::MIN,
            f16::NEG_ZERO,
            f16::ZERO,
            f16::ONE,
            f16::MAX,
            f16::INFINITY,
            f16::NAN,
        ]);
        check(&[
            bf16::NEG_INFINITY,
            bf16::MIN,
            bf16::NEG_ZERO,
            bf16::ZERO,
            bf16::ONE,
            bf16::MAX,
            bf16::INFINITY,
            bf16::NAN,
        ]);
        check(&[i32::MIN, -1, 0, 1, i32::MAX]);
        check(&[0u32, 1, u32::MAX]);
        check(&[0u8, 1]);
        for bits in (0..=u16::MAX).map(u64::from) {
            let x = f16::from_bits(bits as u16);
            let back = f16::of(x.key(false));
            assert!(x.to_f32().to_bits() == back.to_bits() || (x.is_nan() && back.is_nan()));
        }
        assert_eq!((-f32::NAN).key(false), f32::NAN.key(false));
        assert_eq!(i32::of((-7i32).key(false)), -7);
    }
}
