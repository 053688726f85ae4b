//! Element types as reductions on the CPU see them.

use std::ops::{Add, Div, Mul, Sub};

use super::fold::{FEW_LANES, LANES, LONGEST};
use super::lanes::{Halves, Plain, Read};
use crate::cpu::narrow::{self, Narrow};
use crate::cpu::stores::{AHEAD, read_ahead};
use crate::cpu::{double, single};
use crate::dtype::Element;

/// An element type: what its sums are kept in, and integers in its order.
pub(in crate::ops) trait Number: Element + bytemuck::Pod {
    type Wide: Copy + Send + Sync;
    type Key: Ord + Copy + Send + Sync;
    /// An element's number, as wide as a key: so loops over both are vectors'.
    type Ordinal: Ord + Copy + Send + Sync;
    const NOWHERE: Self::Ordinal;
    const ZERO: Self::Wide;
    const ONE: Self::Wide;
    const LEAST: Self::Key;
    /// Whether elements are integers: their sums and extremes are the same in any order, and compilers find the best one for
    /// vectors themselves, of what is not already divided into lanes.
    const WHOLE: bool;

    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn mul(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Larger is better; NaN is best. With `places`, both zeros are equal.
    fn key(self, least: bool, places: bool) -> Self::Key;
    fn of_key(key: Self::Key, least: bool) -> Self;
    /// The best one, which may be another than the first of equal ones: NaN, zeros.
    fn best(all: &[Self], least: bool) -> Self;
    fn place(at: usize) -> Self::Ordinal;
    /// Of no element the largest number there is.
    fn index(place: Self::Ordinal) -> u32;
    /// Elements as what their sums are kept in.
    fn reader(elements: &[Self]) -> impl Read<Self::Wide>;
    /// Lets outputs be made as what sums are kept in: in their own memory, or rounded afterwards.
    fn made(out: &mut [u8], make: &mut dyn FnMut(&mut [Self::Wide]));
}

/// [`Number::made`].
pub(in crate::ops) type Made<W> = fn(&mut [u8], &mut dyn FnMut(&mut [W]));

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
    /// Whether sums of it are joined in a wider type.
    const IS_WIDENED: bool;

    fn count(count: usize) -> Self;
    /// Of numbers up to 0: what is below the least normal number may be 0.
    fn exp_below<const FUSED: bool>(self) -> Self;
    fn ln<const FUSED: bool>(self) -> Self;
    fn abs(self) -> Self;
    fn wider(self) -> f64;
    fn of(x: f64) -> Self;
}

macro_rules! float {
    ($float:ty, $is_widened:expr, $exp:expr, $log:expr) => {
        impl Float for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = <$float>::MIN;
            const IS_WIDENED: bool = $is_widened;

            fn count(count: usize) -> Self {
                count as $float
            }

            #[inline(always)]
            fn exp_below<const FUSED: bool>(self) -> Self {
                $exp(self)
            }

            #[inline(always)]
            fn ln<const FUSED: bool>(self) -> Self {
                $log(self)
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
float!(f32, true, single::exp_below::<FUSED>, single::log::<FUSED>);
float!(f64, false, exp_of_double::<FUSED>, log_of_double::<FUSED>);

#[inline(always)]
fn exp_of_double<const FUSED: bool>(x: f64) -> f64 {
    if FUSED { double::exp_below(x) } else { x.exp() }
}

#[inline(always)]
fn log_of_double<const FUSED: bool>(x: f64) -> f64 {
    if FUSED { double::log(x) } else { x.ln() }
}

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
        $whole:expr, $number:ty, $wide:ty, $key:ty, $place:ty, $zero:expr, $one:expr, $widen:expr, $narrow:expr, $add:expr,
        $mul:expr, $to_key:expr, $of_key:expr, $best:expr, $read:ident, $made:ident
    ) => {
        impl Number for $number {
            type Wide = $wide;
            type Key = $key;
            type Ordinal = $place;
            const NOWHERE: $place = <$place>::MAX;
            const ZERO: $wide = $zero;
            const ONE: $wide = $one;
            const LEAST: $key = <$key>::MIN;
            const WHOLE: bool = $whole;

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

            #[inline(always)]
            fn best(all: &[Self], least: bool) -> Self {
                $best(all, least)
            }

            #[inline(always)]
            fn place(at: usize) -> $place {
                at as $place
            }

            fn index(place: $place) -> u32 {
                place as u32
            }

            fn reader(elements: &[Self]) -> impl Read<$wide> {
                $read(elements)
            }

            fn made(out: &mut [u8], make: &mut dyn FnMut(&mut [$wide])) {
                $made::<Self>(out, make);
            }
        }
    };
}

macro_rules! narrow {
    ($number:ty) => {
        number!(
            false,
            $number,
            f32,
            i32,
            u32,
            0.0,
            1.0,
            Narrow::widened,
            Narrow::rounded,
            Add::add,
            Mul::mul,
            |x: Self, least, places| ordered!(i32, f32, x.widened(), least, places),
            |key: i32, least| <$number>::rounded(unordered!(i32, u32, f32, key, least)),
            by_keys,
            Halves,
            rounded
        );
    };
}

macro_rules! integer {
    ($number:ty) => {
        number!(
            true,
            $number,
            $number,
            $number,
            u32,
            0,
            1,
            std::convert::identity,
            std::convert::identity,
            <$number>::wrapping_add,
            <$number>::wrapping_mul,
            |x: $number, least, _| if least { !x } else { x },
            |key: $number, least| if least { !key } else { key },
            by_keys,
            Plain,
            straight
        );
    };
}

macro_rules! plain {
    ($number:ty, $bits:ty, $unsigned:ty) => {
        number!(
            false,
            $number,
            $number,
            $bits,
            $unsigned,
            0.0,
            1.0,
            std::convert::identity,
            std::convert::identity,
            Add::add,
            Mul::mul,
            |x: $number, least, places| ordered!($bits, $number, x, least, places),
            |key: $bits, least| unordered!($bits, $unsigned, $number, key, least),
            best,
            Plain,
            straight
        );
    };
}
plain!(f32, i32, u32);
plain!(f64, i64, u64);
narrow!(half::f16);
narrow!(half::bf16);
integer!(i32);
integer!(u32);

/// [`Number::best`] in the order of keys.
#[inline(always)]
fn by_keys<T: Number>(all: &[T], least: bool) -> T {
    let keys = all.iter().map(|x| x.key(least, false));
    T::of_key(keys.fold(T::LEAST, T::Key::max), least)
}

fn straight<T: bytemuck::Pod>(out: &mut [u8], make: &mut dyn FnMut(&mut [T])) {
    make(bytemuck::cast_slice_mut(out));
}

fn rounded<T: Number<Wide = f32> + Narrow>(out: &mut [u8], make: &mut dyn FnMut(&mut [f32])) {
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    let mut wide = vec![0.0; out.len()];
    make(&mut wide);
    narrow::round(&wide, out);
}

/// The sum of `f`: in chains of 64 at most, whose sums are added in f64. `FUSED` as in [`Loops::run`]. `COLD` where elements come
/// from memory, and what follows them is read next.
#[inline(always)]
pub(in crate::ops) fn sum<T: Copy, W: Float, const FUSED: bool, const COLD: bool>(
    all: &[T],
    f: impl Fn(T) -> W,
) -> f64 {
    match FUSED {
        true => sum_in::<T, W, LANES, COLD>(all, f),
        false => sum_in::<T, W, FEW_LANES, COLD>(all, f),
    }
}

#[inline(always)]
fn sum_in<T: Copy, W: Float, const LANES: usize, const COLD: bool>(
    all: &[T],
    f: impl Fn(T) -> W,
) -> f64 {
    let mut total = 0.0;
    for block in all.chunks(LONGEST * LANES) {
        let mut lanes = [W::ZERO; LANES];
        let (whole, rest) = block.as_chunks::<LANES>();
        for chunk in whole {
            if COLD {
                read_ahead(chunk, AHEAD);
            }
            for lane in 0..LANES {
                lanes[lane] = lanes[lane] + f(chunk[lane]);
            }
        }
        // Lanes of f64 that are joined so would not stay whole vectors before.
        if W::IS_WIDENED {
            let mut few = fewer(lanes, W::ZERO, |a, b| a + b);
            for chunk in rest.chunks(FEW) {
                for (lane, &x) in few.iter_mut().zip(chunk) {
                    *lane = *lane + f(x);
                }
            }
            total += joined(few);
        } else {
            for (lane, &x) in lanes.iter_mut().zip(rest) {
                *lane = *lane + f(x);
            }
            total += joined(lanes);
        }
    }
    total
}

/// Lanes that are left when the others were joined to them.
const FEW: usize = 8;

/// The first joins in whole vectors: two by two compilers make pairs of them, which took most of the time that
/// sums of short rows do.
#[inline(always)]
fn fewer<W: Copy, const LANES: usize>(
    lanes: [W; LANES],
    empty: W,
    join: impl Fn(W, W) -> W,
) -> [W; FEW] {
    let mut few = [empty; FEW];
    for lane in 0..LANES {
        few[lane % FEW] = join(few[lane % FEW], lanes[lane]);
    }
    few
}

/// The sums of `f` and of its squares, as [`sum`] adds; f64's in half the lanes, so that both stay in registers.
#[inline(always)]
pub(in crate::ops) fn sum_of_powers<T: Copy, W: Float, const FUSED: bool>(
    all: &[T],
    f: impl Fn(T) -> W,
) -> [f64; 2] {
    const HALF: usize = LANES / 2;
    match (FUSED, W::IS_WIDENED) {
        (true, true) => sum_of_powers_in::<T, W, LANES>(all, f),
        (true, false) => sum_of_powers_in::<T, W, HALF>(all, f),
        (false, _) => sum_of_powers_in::<T, W, FEW_LANES>(all, f),
    }
}

#[inline(always)]
fn sum_of_powers_in<T: Copy, W: Float, const LANES: usize>(
    all: &[T],
    f: impl Fn(T) -> W,
) -> [f64; 2] {
    let mut totals = [0.0; 2];
    for block in all.chunks(LONGEST * LANES) {
        let (mut firsts, mut seconds) = ([W::ZERO; LANES], [W::ZERO; LANES]);
        let (whole, rest) = block.as_chunks::<LANES>();
        for chunk in whole {
            read_ahead(chunk, AHEAD);
            for lane in 0..LANES {
                let x = f(chunk[lane]);
                firsts[lane] = firsts[lane] + x;
                seconds[lane] = seconds[lane] + x * x;
            }
        }
        for (lane, &x) in rest.iter().enumerate() {
            let x = f(x);
            firsts[lane] = firsts[lane] + x;
            seconds[lane] = seconds[lane] + x * x;
        }
        totals[0] += joined(firsts);
        totals[1] += joined(seconds);
    }
    totals
}

/// The sum of lanes, two by two.
#[inline(always)]
fn joined<W: Float, const LANES: usize>(lanes: [W; LANES]) -> f64 {
    let mut wide = lanes.map(Float::wider);
    let mut apart = LANES / 2;
    while apart > 0 {
        for lane in 0..apart {
            wide[lane] += wide[lane + apart];
        }
        apart /= 2;
    }
    wide[0]
}

/// The largest; NaN is passed over. `COLD` as of [`sum`].
#[inline(always)]
pub(in crate::ops) fn largest<W: Float, const FUSED: bool, const COLD: bool>(all: &[W]) -> W {
    match FUSED {
        true => outermost::<W, LANES, true, false, COLD>(all).0,
        false => outermost::<W, FEW_LANES, true, false, COLD>(all).0,
    }
}

/// The largest or the least; NaN where one is. Of zeros any.
#[inline(always)]
fn best<W: Float>(all: &[W], least: bool) -> W {
    let (best, is_nan) = match least {
        false => outermost::<W, LANES, true, true, true>(all),
        true => outermost::<W, LANES, false, true, true>(all),
    };
    if is_nan { W::of(f64::NAN) } else { best }
}

/// The largest or the least of those that are not NaN, and, where asked, whether one is.
#[inline(always)]
fn outermost<
    W: Float,
    const LANES: usize,
    const LARGEST: bool,
    const NANS: bool,
    const COLD: bool,
>(
    all: &[W],
) -> (W, bool) {
    let better = |a: W, b: W| {
        let is_better = if LARGEST { b > a } else { b < a };
        if is_better { b } else { a }
    };
    #[allow(clippy::eq_op)]
    let is_nan = |x: W| x != x;
    let seen = |nan: W, x: W| if NANS && is_nan(x) { x } else { nan };
    let empty = match LARGEST {
        true => W::of(f64::NEG_INFINITY),
        false => W::of(f64::INFINITY),
    };
    let (mut lanes, mut nans) = ([empty; LANES], [W::ZERO; LANES]);
    let (whole, rest) = all.as_chunks::<LANES>();
    for chunk in whole {
        if COLD {
            read_ahead(chunk, AHEAD);
        }
        for lane in 0..LANES {
            lanes[lane] = better(lanes[lane], chunk[lane]);
            nans[lane] = seen(nans[lane], chunk[lane]);
        }
    }
    let mut few = fewer(lanes, empty, better);
    let mut few_nans = fewer(nans, W::ZERO, seen);
    for chunk in rest.chunks(FEW) {
        for ((lane, nan), &x) in few.iter_mut().zip(&mut few_nans).zip(chunk) {
            *lane = better(*lane, x);
            *nan = seen(*nan, x);
        }
    }
    let mut apart = FEW / 2;
    while apart > 0 {
        for lane in 0..apart {
            few[lane] = better(few[lane], few[lane + apart]);
            few_nans[lane] = seen(few_nans[lane], few_nans[lane + apart]);
        }
        apart /= 2;
    }
    (few[0], is_nan(few_nans[0]))
}
