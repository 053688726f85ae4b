//! Element types as reductions on the CPU see them.

use std::ops::{Add, Div, Mul, Sub};

use super::fold::{Halves, Plain, Read};
use crate::dtype::Element;

/// An element type: what its sums are kept in, and integers in its order.
pub(in crate::ops) trait Number: Element + bytemuck::Pod {
    type Wide: Copy + Send + Sync;
    type Key: Ord + Copy + Send + Sync;
    const ZERO: Self::Wide;
    const ONE: Self::Wide;
    const LEAST: Self::Key;

    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn mul(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Larger is better; NaN is best. With `places`, both zeros are equal.
    fn key(self, least: bool, places: bool) -> Self::Key;
    fn of_key(key: Self::Key, least: bool) -> Self;
    /// Calls `work` with elements as what their sums are kept in.
    fn widened<R>(elements: &[Self], work: impl FnOnce(&dyn Read<Self::Wide>) -> R) -> R;
}

/// What sums of floats are kept in.
pub(in crate::ops) trait Float:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    const LEAST: Self;

    fn count(count: usize) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn abs(self) -> Self;
    fn wider(self) -> f64;
    fn of(x: f64) -> Self;
}

macro_rules! float {
    ($float:ty, $exp:expr) => {
        impl Float for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = <$float>::MIN;

            fn count(count: usize) -> Self {
                count as $float
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }

            #[inline(always)]
            fn ln(self) -> Self {
                <$float>::ln(self)
            }

            #[inline(always)]
            fn abs(self) -> Self {
                <$float>::abs(self)
            }

            #[inline(always)]
            #[allow(clippy::useless_conversion)]
            fn wider(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $float
            }
        }
    };
}
float!(f32, crate::cpu::exp);
float!(f64, f64::exp);

/// Floats in the order of integers.
macro_rules! ordered {
    ($bits:ty, $float:ty, $x:expr, $least:expr, $places:expr) => {{
        const LAST: u32 = <$bits>::BITS - 1;
        let bits = $x.to_bits() as $bits;
        let mut key = bits ^ ((bits >> LAST) & <$bits>::MAX);
        if $places && bits & <$bits>::MAX == 0 {
            key = 0;
        }
        if $least {
            key = !key;
        }
        if $x.is_nan() { <$bits>::MAX } else { key }
    }};
}

macro_rules! unordered {
    ($bits:ty, $unsigned:ty, $float:ty, $key:expr, $least:expr) => {{
        const LAST: u32 = <$bits>::BITS - 1;
        let key = if $least { !$key } else { $key };
        let bits = key ^ ((key >> LAST) & <$bits>::MAX);
        match $key == <$bits>::MAX {
            true => <$float>::NAN,
            false => <$float>::from_bits(bits as $unsigned),
        }
    }};
}

macro_rules! number {
    (
        $number:ty, $wide:ty, $key:ty, $zero:expr, $one:expr, $widen:expr, $narrow:expr, $add:expr,
        $mul:expr, $to_key:expr, $of_key:expr, $read:ident
    ) => {
        impl Number for $number {
            type Wide = $wide;
            type Key = $key;
            const ZERO: $wide = $zero;
            const ONE: $wide = $one;
            const LEAST: $key = <$key>::MIN;

            #[inline(always)]
            fn wide(self) -> $wide {
                $widen(self)
            }

            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }

            #[inline(always)]
            fn add(a: $wide, b: $wide) -> $wide {
                $add(a, b)
            }

            #[inline(always)]
            fn mul(a: $wide, b: $wide) -> $wide {
                $mul(a, b)
            }

            #[inline(always)]
            #[allow(clippy::redundant_closure_call)]
            fn key(self, least: bool, places: bool) -> $key {
                $to_key(self, least, places)
            }

            #[inline(always)]
            #[allow(clippy::redundant_closure_call)]
            fn of_key(key: $key, least: bool) -> Self {
                $of_key(key, least)
            }

            fn widened<R>(elements: &[Self], work: impl FnOnce(&dyn Read<$wide>) -> R) -> R {
                work(&$read(elements))
            }
        }
    };
}

macro_rules! narrow {
    ($number:ty) => {
        number!(
            $number,
            f32,
            i32,
            0.0,
            1.0,
            <$number>::to_f32,
            <$number>::from_f32,
            Add::add,
            Mul::mul,
            |x: Self, least, places| ordered!(i32, f32, x.to_f32(), least, places),
            |key: i32, least| <$number>::from_f32(unordered!(i32, u32, f32, key, least)),
            Halves
        );
    };
}

macro_rules! integer {
    ($number:ty) => {
        number!(
            $number,
            $number,
            $number,
            0,
            1,
            std::convert::identity,
            std::convert::identity,
            <$number>::wrapping_add,
            <$number>::wrapping_mul,
            |x: $number, least, _| if least { !x } else { x },
            |key: $number, least| if least { !key } else { key },
            Plain
        );
    };
}

macro_rules! plain {
    ($number:ty, $bits:ty, $unsigned:ty) => {
        number!(
            $number,
            $number,
            $bits,
            0.0,
            1.0,
            std::convert::identity,
            std::convert::identity,
            Add::add,
            Mul::mul,
            |x: $number, least, places| ordered!($bits, $number, x, least, places),
            |key: $bits, least| unordered!($bits, $unsigned, $number, key, least),
            Plain
        );
    };
}
plain!(f32, i32, u32);
plain!(f64, i64, u64);
narrow!(half::f16);
narrow!(half::bf16);
integer!(i32);
integer!(u32);

/// Elements of a block: sums of it are in chains of 64.
const BLOCK: usize = 2048;
const LANES: usize = 32;

/// The sum of `f`: in chains of 64 at most, whose sums are added in f64.
#[inline(always)]
pub(in crate::ops) fn sum<T: Copy, W: Float>(all: &[T], f: impl Fn(T) -> W) -> f64 {
    let mut total = 0.0;
    for block in all.chunks(BLOCK) {
        let mut lanes = [W::ZERO; LANES];
        let whole = block.chunks_exact(LANES);
        let rest = whole.remainder();
        for chunk in whole {
            for lane in 0..LANES {
                lanes[lane] = lanes[lane] + f(chunk[lane]);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = *lane + f(x);
        }
        let mut wide = lanes.map(Float::wider);
        let mut apart = LANES / 2;
        while apart > 0 {
            for lane in 0..apart {
                wide[lane] += wide[lane + apart];
            }
            apart /= 2;
        }
        total += wide[0];
    }
    total
}

/// The largest of `f`; NaN is passed over.
#[inline(always)]
pub(in crate::ops) fn largest<T: Copy, W: Float>(all: &[T], f: impl Fn(T) -> W) -> W {
    let greater = |a: W, b: W| if b > a { b } else { a };
    let least = W::of(f64::NEG_INFINITY);
    let mut lanes = [least; LANES];
    let whole = all.chunks_exact(LANES);
    let rest = whole.remainder();
    for chunk in whole {
        for lane in 0..LANES {
            lanes[lane] = greater(lanes[lane], f(chunk[lane]));
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = greater(*lane, f(x));
    }
    lanes.into_iter().fold(least, greater)
}
