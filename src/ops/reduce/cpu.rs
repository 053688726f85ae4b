//! Reductions on the CPU: what becomes of elements.

use std::marker::PhantomData;
use std::ops::BitAnd;

use super::fold::{Fold, reduce};
use super::number::{Float, Number, largest, sum};
use super::space::Space;
use super::{Along, Reduce, Reduction};
use crate::cpu::host_vec;
use crate::dtype::DType;
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
            let divisor = (length - less) as f64;
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

/// Of each row of a norm two numbers in f64: the largest and the sum of `exp` of distances from it, or
/// the mean and the mean of squared distances from it, or nothing and the mean of squares.
pub(in crate::ops) fn rows<T: Number<Wide: Float>>(
    what: Reduction,
    along: &Along,
    input: &HostInput<'_>,
    outputs: usize,
) -> Result<Vec<(f64, f64)>> {
    let space = Space::of(input.layout, along, false)?;
    let (op, of, count) = (what.name(), PhantomData::<T>, space.length() as f64);
    let mut out = host_vec(op, outputs)?;
    out.resize(outputs, (0.0, 0.0));
    let data = input.elements::<T>();
    match what {
        Reduction::LogSumExp => {
            let fold = Finished(LogSumExp(of), |(top, sum): (T::Wide, T::Wide)| {
                (top.wider(), sum.wider())
            });
            reduce(op, &fold, &space, data, &mut out)?;
        }
        Reduction::Norm => {
            let fold = Finished(Norm(of), |squares| (0.0, squares / count));
            reduce(op, &fold, &space, data, &mut out)?;
        }
        _ => {
            let (divisor, root) = (count, false);
            let fold = Finished(Moment { divisor, root, of }, |(_, mean, squares)| {
                (mean, squares / count)
            });
            reduce(op, &fold, &space, data, &mut out)?;
        }
    }
    Ok(out)
}

/// A fold that ends in something else.
struct Finished<F, M>(F, M);

impl<T, F: Fold<T>, O: Send, M: Fn(F::State) -> O + Sync> Fold<T> for Finished<F, M> {
    type State = F::State;
    type Out = O;

    #[inline(always)]
    fn empty(&self) -> F::State {
        self.0.empty()
    }

    #[inline(always)]
    fn take(&self, state: F::State, x: T, at: usize) -> F::State {
        self.0.take(state, x, at)
    }

    #[inline(always)]
    fn block(&self, run: &[T], at: usize) -> Option<F::State> {
        self.0.block(run, at)
    }

    #[inline(always)]
    fn join(&self, a: F::State, b: F::State) -> F::State {
        self.0.join(a, b)
    }

    #[inline(always)]
    fn finish(&self, state: F::State) -> O {
        self.1(state)
    }
}

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
struct Mean<T: Number> {
    divisor: T::Wide,
    of: PhantomData<T>,
}
sums! {
    Sum, _this, T::ZERO, T::add, T::add, |sum| sum;
    Product, _this, T::ONE, T::mul, T::mul, |product| product;
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

/// norm, in f64, where no square of a narrower float goes over or under.
struct Norm<T>(PhantomData<T>);

impl<T: Number<Wide: Float>> Fold<T> for Norm<T> {
    type State = f64;
    type Out = T;

    #[inline(always)]
    fn empty(&self) -> f64 {
        0.0
    }

    #[inline(always)]
    fn take(&self, state: f64, x: T, _: usize) -> f64 {
        let x = x.wide().wider();
        state + x * x
    }

    #[inline(always)]
    fn join(&self, a: f64, b: f64) -> f64 {
        a + b
    }

    #[inline(always)]
    fn finish(&self, state: f64) -> T {
        T::narrow(T::Wide::of(state.sqrt()))
    }
}

/// var and std, in f64.
struct Moment<T: Number> {
    divisor: f64,
    root: bool,
    of: PhantomData<T>,
}

impl<T: Number<Wide: Float>> Fold<T> for Moment<T> {
    /// How many, their mean, the sum of squared distances from it.
    type State = (f64, f64, f64);
    type Out = T;

    #[inline(always)]
    fn empty(&self) -> Self::State {
        (0.0, 0.0, 0.0)
    }

    #[inline(always)]
    fn take(&self, (count, mean, squares): Self::State, x: T, _: usize) -> Self::State {
        let (x, count) = (x.wide().wider(), count + 1.0);
        let apart = x - mean;
        let mean = mean + apart / count;
        (count, mean, squares + apart * (x - mean))
    }

    #[inline(always)]
    fn block(&self, run: &[T], _: usize) -> Option<Self::State> {
        let count = run.len() as f64;
        let mean = sum(run, |x| x.wide().wider()) / count;
        let apart = |x: T| x.wide().wider() - mean;
        let squares = sum(run, |x| apart(x) * apart(x));
        Some((count, mean, squares))
    }

    #[inline(always)]
    fn join(&self, a: Self::State, b: Self::State) -> Self::State {
        let count = a.0 + b.0;
        let apart = b.1 - a.1;
        let share = b.0 / count.max(1.0);
        let squares = a.2 + b.2 + apart * apart * a.0 * share;
        (count, a.1 + apart * share, squares)
    }

    #[inline(always)]
    fn finish(&self, state: Self::State) -> T {
        let variance = state.2 / self.divisor;
        let result = if self.root { variance.sqrt() } else { variance };
        T::narrow(T::Wide::of(result))
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
    fn block(&self, run: &[T], _: usize) -> Option<Self::State> {
        let top = largest(run, T::wide);
        // Infinities and NaN go one by one.
        let is_finite = top.wider().abs() <= f64::MAX;
        is_finite.then(|| (top, T::Wide::of(sum(run, |x| (x.wide() - top).exp()))))
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
