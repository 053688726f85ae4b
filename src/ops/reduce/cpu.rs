//! Reductions on the CPU: what becomes of elements.

use std::marker::PhantomData;
use std::ops::{Add, BitAnd, Div, Mul, Sub};

use super::fold::{Fold, reduce};
use super::space::Space;
use super::{Reduce, Reduction};
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::road::{HostInput, HostOutput, Op};

/// The CPU twin.
pub(super) fn twin(op: &Reduce, input: &HostInput<'_>, output: &mut HostOutput<'_>) -> Result<()> {
    if matches!(op.what, Reduction::Any | Reduction::All) {
        return truth(op, input, output);
    }
    match input.dtype {
        DType::F32 => floats::<f32>(op, input, output),
        DType::F64 => floats::<f64>(op, input, output),
        DType::F16 => floats::<half::f16>(op, input, output),
        DType::BF16 => floats::<half::bf16>(op, input, output),
        DType::I32 => numbers::<i32>(op, input, output),
        DType::U32 => numbers::<u32>(op, input, output),
        DType::Bool => Run { op, input, output }.fold(&Count),
    }
}

/// any and all, by the bits of elements.
fn truth(op: &Reduce, input: &HostInput<'_>, output: &mut HostOutput<'_>) -> Result<()> {
    let flip = u32::from(op.what == Reduction::All);
    let (dtype, this) = (input.dtype, Run { op, input, output });
    match dtype {
        DType::Bool => this.fold(&Truth::<u8> { flip, mask: 0xff }),
        DType::F16 | DType::BF16 => this.fold(&Truth::<u16> { flip, mask: 0x7fff }),
        DType::F32 => this.fold(&Truth::<u32> {
            flip,
            mask: 0x7fff_ffff,
        }),
        DType::I32 | DType::U32 => this.fold(&Truth::<u32> {
            flip,
            mask: u32::MAX,
        }),
        DType::F64 => this.fold(&Truth::<u64> {
            flip,
            mask: u64::MAX >> 1,
        }),
    }
}

/// What all dtypes have.
fn numbers<T: Number>(
    op: &Reduce,
    input: &HostInput<'_>,
    output: &mut HostOutput<'_>,
) -> Result<()> {
    let least = matches!(op.what, Reduction::Min | Reduction::ArgMin);
    let (this, of) = (Run { op, input, output }, PhantomData::<T>);
    match op.what {
        Reduction::Product => this.fold::<T, _>(&Product(of)),
        Reduction::Max | Reduction::Min => this.fold::<T, _>(&Extreme { least, of }),
        Reduction::ArgMax | Reduction::ArgMin => this.fold::<T, _>(&Place { least, of }),
        _ => this.fold::<T, _>(&Sum(of)),
    }
}

fn floats<T: Number<Wide: Float>>(
    op: &Reduce,
    input: &HostInput<'_>,
    output: &mut HostOutput<'_>,
) -> Result<()> {
    let axes = op.along.axes.iter();
    let length = axes
        .map(|&axis| input.layout.shape()[axis])
        .product::<usize>();
    let of = PhantomData::<T>;
    let root = matches!(op.what, Reduction::Deviation(_));
    match op.what {
        Reduction::Mean => {
            let divisor = T::Wide::count(length);
            Run { op, input, output }.fold::<T, _>(&Mean { divisor, of })
        }
        Reduction::Norm => Run { op, input, output }.fold::<T, _>(&Norm(of)),
        Reduction::Variance(less) | Reduction::Deviation(less) => {
            let divisor = T::Wide::count(length - less);
            Run { op, input, output }.fold::<T, _>(&Moment { divisor, root, of })
        }
        Reduction::LogSumExp => Run { op, input, output }.fold::<T, _>(&LogSumExp(of)),
        _ => numbers::<T>(op, input, output),
    }
}

struct Run<'a, 'b> {
    op: &'a Reduce,
    input: &'a HostInput<'a>,
    output: &'a mut HostOutput<'b>,
}

impl Run<'_, '_> {
    fn fold<T: bytemuck::Pod + Sync, F: Fold<T, Out: bytemuck::Pod>>(self, fold: &F) -> Result<()> {
        let space = Space::of(self.input.layout, &self.op.along, self.op.what.has_order())?;
        let outputs = self.output.layout.elements();
        let out = self.output.elements::<F::Out>();
        let out = out.get_mut(..outputs).unwrap_or_default();
        reduce(
            self.op.name(),
            fold,
            &space,
            self.input.elements::<T>(),
            out,
        )
    }
}

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
    fn root(self) -> Self;
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
            fn root(self) -> Self {
                self.sqrt()
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
        $mul:expr, $to_key:expr, $of_key:expr
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
            |key: i32, least| <$number>::from_f32(unordered!(i32, u32, f32, key, least))
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
            |key: $number, least| if least { !key } else { key }
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
            |key: $bits, least| unordered!($bits, $unsigned, $number, key, least)
        );
    };
}
plain!(f32, i32, u32);
plain!(f64, i64, u64);
narrow!(half::f16);
narrow!(half::bf16);
integer!(i32);
integer!(u32);

/// The parts of a fold that has one number as its state.
macro_rules! sums {
    ($($fold:ident $(<$bound:ident>)?, $this:ident, $empty:expr, $take:expr, $join:expr, $finish:expr;)*) => {$(
        impl<T: Number $(<Wide: $bound>)?> Fold<T> for $fold<T> {
            type State = T::Wide;
            type Out = T;

            #[inline(always)]
            fn empty(&self) -> T::Wide {
                $empty
            }

            #[inline(always)]
            fn take(&self, state: T::Wide, x: T, _: usize) -> T::Wide {
                $take(state, x.wide())
            }

            #[inline(always)]
            fn join(&self, a: T::Wide, b: T::Wide) -> T::Wide {
                $join(a, b)
            }

            #[inline(always)]
            #[allow(clippy::redundant_closure_call)]
            fn finish(&self, state: T::Wide) -> T {
                let $this = self;
                T::narrow($finish(state))
            }
        }
    )*};
}

struct Sum<T>(PhantomData<T>);
struct Product<T>(PhantomData<T>);
struct Norm<T>(PhantomData<T>);
struct Mean<T: Number> {
    divisor: T::Wide,
    of: PhantomData<T>,
}
sums! {
    Sum, _this, T::ZERO, T::add, T::add, |sum| sum;
    Product, _this, T::ONE, T::mul, T::mul, |product| product;
    Norm<Float>, _this, <T as Number>::ZERO, |sum, x| T::add(sum, T::mul(x, x)), T::add, Float::root;
    Mean<Float>, this, <T as Number>::ZERO, T::add, T::add, |sum: T::Wide| sum / this.divisor;
}

/// max and min.
struct Extreme<T> {
    least: bool,
    of: PhantomData<T>,
}

impl<T: Number> Fold<T> for Extreme<T> {
    type State = T::Key;
    type Out = T;

    #[inline(always)]
    fn empty(&self) -> T::Key {
        T::LEAST
    }

    #[inline(always)]
    fn take(&self, state: T::Key, x: T, _: usize) -> T::Key {
        state.max(x.key(self.least, false))
    }

    #[inline(always)]
    fn join(&self, a: T::Key, b: T::Key) -> T::Key {
        a.max(b)
    }

    #[inline(always)]
    fn finish(&self, state: T::Key) -> T {
        T::of_key(state, self.least)
    }
}

/// argmax and argmin.
struct Place<T> {
    least: bool,
    of: PhantomData<T>,
}

impl<T: Number> Fold<T> for Place<T> {
    /// The best, and which it is: of nothing the largest number there is.
    type State = (T::Key, u32);
    type Out = u32;

    #[inline(always)]
    fn empty(&self) -> Self::State {
        (T::LEAST, u32::MAX)
    }

    #[inline(always)]
    fn take(&self, (best, place): Self::State, x: T, at: usize) -> Self::State {
        let key = x.key(self.least, true);
        match key > best || place == u32::MAX {
            true => (key, at as u32),
            false => (best, place),
        }
    }

    #[inline(always)]
    fn join(&self, a: Self::State, b: Self::State) -> Self::State {
        match b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) {
            true => b,
            false => a,
        }
    }

    #[inline(always)]
    fn finish(&self, state: Self::State) -> u32 {
        state.1
    }
}

/// var and std.
struct Moment<T: Number> {
    divisor: T::Wide,
    root: bool,
    of: PhantomData<T>,
}

impl<T: Number<Wide: Float>> Fold<T> for Moment<T> {
    /// How many, their mean, the sum of squared distances from it.
    type State = (T::Wide, T::Wide, T::Wide);
    type Out = T;

    #[inline(always)]
    fn empty(&self) -> Self::State {
        (Float::ZERO, Float::ZERO, Float::ZERO)
    }

    #[inline(always)]
    fn take(&self, (count, mean, squares): Self::State, x: T, _: usize) -> Self::State {
        let (x, count) = (x.wide(), count + Float::ONE);
        let apart = x - mean;
        let mean = mean + apart / count;
        (count, mean, squares + apart * (x - mean))
    }

    #[inline(always)]
    fn join(&self, a: Self::State, b: Self::State) -> Self::State {
        let count = a.0 + b.0;
        let apart = b.1 - a.1;
        let one = <T::Wide as Float>::ONE;
        let share = b.0 / if count > one { count } else { one };
        let squares = a.2 + b.2 + apart * apart * a.0 * share;
        (count, a.1 + apart * share, squares)
    }

    #[inline(always)]
    fn finish(&self, state: Self::State) -> T {
        let variance = state.2 / self.divisor;
        T::narrow(if self.root { variance.root() } else { variance })
    }
}

/// any, and all with what is false and true turned round.
struct Truth<B> {
    flip: u32,
    /// The bits that count.
    mask: B,
}

impl<B: bytemuck::Pod + Sync + BitAnd<Output = B> + PartialEq> Fold<B> for Truth<B> {
    type State = u32;
    type Out = u8;

    #[inline(always)]
    fn empty(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn take(&self, state: u32, x: B, _: usize) -> u32 {
        state | (u32::from(x & self.mask != B::zeroed()) ^ self.flip)
    }

    #[inline(always)]
    fn join(&self, a: u32, b: u32) -> u32 {
        a | b
    }

    #[inline(always)]
    fn finish(&self, state: u32) -> u8 {
        u8::from(state != self.flip)
    }
}

/// How many are true.
struct Count;

impl Fold<u8> for Count {
    type State = u32;
    type Out = u32;

    #[inline(always)]
    fn empty(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn take(&self, state: u32, x: u8, _: usize) -> u32 {
        state.wrapping_add(u32::from(x != 0))
    }

    #[inline(always)]
    fn join(&self, a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }

    #[inline(always)]
    fn finish(&self, state: u32) -> u32 {
        state
    }
}

struct LogSumExp<T>(PhantomData<T>);

impl<T: Number<Wide: Float>> Fold<T> for LogSumExp<T> {
    /// The largest, and the sum of `exp` of the distances from it. Of NaN only the sum tells.
    type State = (T::Wide, T::Wide);
    type Out = T;

    #[inline(always)]
    fn empty(&self) -> Self::State {
        (Float::LEAST, Float::ZERO)
    }

    #[inline(always)]
    fn take(&self, state: Self::State, x: T, _: usize) -> Self::State {
        self.join(state, (x.wide(), Float::ONE))
    }

    #[inline(always)]
    fn join(&self, a: Self::State, b: Self::State) -> Self::State {
        let one = <T::Wide as Float>::ONE;
        // Equal ones may be infinite.
        let apart = if a.0 == b.0 { Float::ZERO } else { b.0 - a.0 };
        let zero = <T::Wide as Float>::ZERO;
        let less = (zero - apart.abs()).exp();
        let is_higher = apart > Float::ZERO;
        let (to_a, to_b) = if is_higher { (less, one) } else { (one, less) };
        (if is_higher { b.0 } else { a.0 }, a.1 * to_a + b.1 * to_b)
    }

    #[inline(always)]
    fn finish(&self, (top, sum): Self::State) -> T {
        T::narrow(top + sum.ln())
    }
}
