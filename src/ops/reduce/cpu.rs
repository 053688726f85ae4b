//! Reductions on the CPU: what becomes of elements.

use std::ops::BitAnd;

use super::exponential::{LogSumExp, Logarithms};
use super::fold::{Fold, LANES, SHORT_LANES, reduce};
use super::lanes::{Plain, Read};
use super::moment::{Moment, Norm};
use super::number::{Float, Number};
use super::space::Space;
use super::{Along, Reduce, Reduction};
use crate::cpu::{host_vec, vectorised};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::road::{HostInput, HostOutput, Op};

/// The CPU twin.
pub(super) fn twin(op: &Reduce, input: &HostInput<'_>, output: &mut HostOutput<'_>) -> Result<()> {
    let dtype = input.dtype;
    let run = Run { op, input, output };
    if matches!(op.what, Reduction::Any | Reduction::All) {
        return run.truth();
    }
    match dtype {
        DType::F32 => run.floats::<f32>(),
        DType::F64 => run.floats::<f64>(),
        DType::F16 => run.floats::<half::f16>(),
        DType::BF16 => run.floats::<half::bf16>(),
        // Sums and products that wrap have the same bits.
        DType::U32 if op.what.is_extreme() => run.extremes::<u32>(),
        DType::I32 if op.what.is_extreme() => run.extremes::<i32>(),
        DType::I32 | DType::U32 => run.sums::<i32>(),
        DType::Bool => run.fold(&Count, &Plain(input.elements::<u8>()), |count| count),
    }
}

struct Run<'a, 'b> {
    op: &'a Reduce,
    input: &'a HostInput<'a>,
    output: &'a mut HostOutput<'b>,
}

impl Run<'_, '_> {
    /// any and all, by the bits of elements.
    fn truth(self) -> Result<()> {
        match self.input.dtype {
            DType::Bool => self.bits_true(0xffu8),
            DType::F16 | DType::BF16 => self.bits_true(0x7fffu16),
            DType::F32 => self.bits_true(0x7fff_ffffu32),
            DType::I32 | DType::U32 => self.bits_true(u32::MAX),
            DType::F64 => self.bits_true(u64::MAX >> 1),
        }
    }

    fn bits_true<B: bytemuck::Pod + Sync + BitAnd<Output = B> + PartialEq>(
        self,
        mask: B,
    ) -> Result<()> {
        let flip = u32::from(self.op.what == Reduction::All);
        let data = Plain(self.input.elements::<B>());
        self.fold(&Truth { flip, mask }, &data, |state| {
            u8::from(state != flip)
        })
    }

    fn sums<T: Number<Wide: Number<Wide = T::Wide>>>(self) -> Result<()> {
        let data = T::reader(self.input.elements());
        match self.op.what {
            Reduction::Product => self.fold(&Product, &data, T::narrow),
            _ => self.fold(&Sum, &data, T::narrow),
        }
    }

    fn extremes<T: Number<Wide: Number<Wide = T::Wide, Key = T::Key>>>(self) -> Result<()> {
        let data = T::reader(self.input.elements());
        let least = matches!(self.op.what, Reduction::Min | Reduction::ArgMin);
        match self.op.what {
            Reduction::Max | Reduction::Min => {
                self.fold(&Extreme { least }, &data, |key| T::of_key(key, least))
            }
            _ => self.fold(&ArgExtreme { least }, &data, |(_, place)| {
                <T::Wide>::index(place)
            }),
        }
    }

    fn floats<T: Number<Wide: Float + Number<Wide = T::Wide, Key = T::Key>>>(self) -> Result<()> {
        let axes = self.op.along.axes.iter();
        let length = axes
            .map(|&axis| self.input.layout.shape()[axis])
            .product::<usize>();
        let data = T::reader(self.input.elements());
        let root = matches!(self.op.what, Reduction::Deviation(_));
        let of = |x: f64| T::narrow(T::Wide::of(x));
        match self.op.what {
            Reduction::Mean => {
                let divisor = T::Wide::count(length);
                self.fold(&Sum, &data, |sum| T::narrow(sum / divisor))
            }
            Reduction::Norm => self.fold(&Norm, &data, |squares: f64| of(squares.sqrt())),
            Reduction::Variance(less) | Reduction::Deviation(less) => {
                let divisor = (length - less) as f64;
                self.fold(&Moment, &data, |(_, _, squares): (f64, f64, f64)| {
                    let variance = squares / divisor;
                    of(if root { variance.sqrt() } else { variance })
                })
            }
            Reduction::LogSumExp => {
                self.fold_to(&LogSumExp, &data, size_of::<T>(), |states, out| {
                    let out: &mut [T] = bytemuck::cast_slice_mut(out);
                    vectorised(Logarithms { states, out });
                })
            }
            what if what.is_extreme() => self.extremes::<T>(),
            _ => self.sums::<T>(),
        }
    }

    fn fold<W: Copy, F: Fold<W>, O: bytemuck::Pod>(
        self,
        fold: &F,
        data: &dyn Read<W>,
        finish: impl Fn(F::State) -> O + Sync,
    ) -> Result<()> {
        self.fold_to(fold, data, size_of::<O>(), each(finish))
    }

    /// To outputs of `size` bytes.
    fn fold_to<W: Copy, F: Fold<W>>(
        self,
        fold: &F,
        data: &dyn Read<W>,
        size: usize,
        finish: impl Fn(&[F::State], &mut [u8]) + Sync,
    ) -> Result<()> {
        let space = Space::of(self.input.layout, &self.op.along, self.op.what.has_order());
        let bytes = self.output.layout.elements() * size;
        let out = self.output.bytes.get_mut(..bytes).unwrap_or_default();
        reduce(self.op.name(), fold, &space, data, (out, size), &finish)
    }
}

/// One output after the other.
fn each<S: Copy, O: bytemuck::Pod>(
    finish: impl Fn(S) -> O + Sync,
) -> impl Fn(&[S], &mut [u8]) + Sync {
    move |states, out| {
        let out: &mut [O] = bytemuck::cast_slice_mut(out);
        for (out, &state) in out.iter_mut().zip(states) {
            *out = finish(state);
        }
    }
}

/// Of each row of a norm two numbers: the largest and the sum of `exp` of distances from it, or the mean and
/// the mean of squared distances from it, or nothing and the mean of squares.
pub(in crate::ops) fn rows<W: Float>(
    what: Reduction,
    along: &Along,
    layout: &Layout,
    data: &dyn Read<W>,
    rows: usize,
) -> Result<Vec<[f64; 2]>> {
    let space = Space::of(layout, along, false);
    let (op, count) = (what.name(), space.length() as f64);
    let mut states = host_vec(op, rows)?;
    states.resize(rows, [0.0; 2]);
    let out = (bytemuck::cast_slice_mut(&mut states), size_of::<[f64; 2]>());
    match what {
        Reduction::LogSumExp => {
            let finish = each(|(top, sum): (W, W)| [top.wider(), sum.wider()]);
            reduce(op, &LogSumExp, &space, data, out, &finish)
        }
        Reduction::Norm => {
            let finish = each(|squares: f64| [0.0, squares / count]);
            reduce(op, &Norm, &space, data, out, &finish)
        }
        _ => {
            let finish = each(|(_, mean, squares): (f64, f64, f64)| [mean, squares / count]);
            reduce(op, &Moment, &space, data, out, &finish)
        }
    }?;
    Ok(states)
}

/// The folds that have one number as their state.
macro_rules! sums {
    ($($fold:ident, $empty:expr, $join:expr;)*) => {$(
        struct $fold;

        impl<W: Number<Wide = W>> Fold<W> for $fold {
            type State = W;
            const ENOUGH_IN_RUNS: usize = SHORT_LANES;

            #[inline(always)]
            fn empty(&self) -> W {
                $empty
            }

            #[inline(always)]
            fn take<const FUSED: bool>(&self, state: W, x: W, _: usize) -> W {
                $join(state, x)
            }

            #[inline(always)]
            fn block<const FUSED: bool>(&self, run: &[W], _: usize) -> Option<W> {
                W::WHOLE.then(|| run.iter().fold($empty, |state, &x| $join(state, x)))
            }

            #[inline(always)]
            fn join<const FUSED: bool>(&self, a: W, b: W) -> W {
                $join(a, b)
            }
        }
    )*};
}
sums! {
    Sum, W::ZERO, W::add;
    Product, W::ONE, W::mul;
}

/// max and min.
struct Extreme {
    least: bool,
}

impl<W: Number> Fold<W> for Extreme {
    type State = W::Key;
    const HAS_BLOCKS: bool = true;

    #[inline(always)]
    fn empty(&self) -> W::Key {
        W::LEAST
    }

    #[inline(always)]
    fn take<const FUSED: bool>(&self, state: W::Key, x: W, _: usize) -> W::Key {
        state.max(x.key(self.least, false))
    }

    #[inline(always)]
    fn block<const FUSED: bool>(&self, run: &[W], _: usize) -> Option<W::Key> {
        let best = W::best(run, self.least);
        let key = best.key(self.least, false);
        if W::WHOLE || best != W::narrow(W::ZERO) {
            return Some(key);
        }
        // Of both zeros of floats one is better, and nothing else is.
        let better = first(
            run,
            #[inline(always)]
            |x| x.key(self.least, false) > key,
        );
        Some(better.map_or(key, |at| run[at].key(self.least, false)))
    }

    #[inline(always)]
    fn join<const FUSED: bool>(&self, a: W::Key, b: W::Key) -> W::Key {
        a.max(b)
    }
}

/// Neighbours among which the best is looked for once it is known.
const SEARCHED: usize = 256;

/// argmax and argmin.
struct ArgExtreme {
    least: bool,
}

/// Where the first one is that is so: a few at a time, so that it is vectors' work.
#[inline(always)]
fn first<W: Copy>(run: &[W], is_so: impl Fn(&W) -> bool) -> Option<usize> {
    let (whole, rest) = run.as_chunks::<LANES>();
    let has_one = |chunk: &[W; LANES]| chunk.iter().fold(false, |has, x| has | is_so(x));
    match whole.iter().position(has_one) {
        None => {
            let place = rest.iter().position(is_so)?;
            Some(run.len() - rest.len() + place)
        }
        Some(at) => {
            let places = whole[at].iter().zip(0u32..);
            let place = places.map(|(x, place)| if is_so(x) { place } else { u32::MAX });
            Some(at * LANES + place.fold(u32::MAX, u32::min) as usize)
        }
    }
}

impl<W: Number> Fold<W> for ArgExtreme {
    /// The best, and which it is: of nothing the largest number there is.
    type State = (W::Key, W::Ordinal);
    const BY_BLOCKS: bool = true;
    const HAS_PLACES: bool = true;
    const ENOUGH: usize = 128;

    #[inline(always)]
    fn empty(&self) -> Self::State {
        (W::LEAST, W::NOWHERE)
    }

    #[inline(always)]
    fn take<const FUSED: bool>(&self, (best, place): Self::State, x: W, at: usize) -> Self::State {
        let key = x.key(self.least, true);
        match key > best || place == W::NOWHERE {
            true => (key, W::place(at)),
            false => (best, place),
        }
    }

    /// The best first, and then where it is, both in vectors.
    #[inline(always)]
    fn block<const FUSED: bool>(&self, run: &[W], at: usize) -> Option<Self::State> {
        let (mut best, mut found) = (W::LEAST, 0);
        for (index, part) in run.chunks(SEARCHED).enumerate() {
            let top = W::best(part, self.least).key(self.least, true);
            if top > best {
                (best, found) = (top, index * SEARCHED);
            }
        }
        let place = first(
            &run[found..],
            #[inline(always)]
            |x| x.key(self.least, true) == best,
        )?;
        Some((best, W::place(at + found + place)))
    }

    #[inline(always)]
    fn spread(&self, (best, place): Self::State, step: usize, first: usize) -> Self::State {
        match place == W::NOWHERE {
            true => (best, place),
            false => (best, W::place(W::index(place) as usize * step + first)),
        }
    }

    #[inline(always)]
    fn join<const FUSED: bool>(&self, a: Self::State, b: Self::State) -> Self::State {
        match b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) {
            true => b,
            false => a,
        }
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
    const ENOUGH_IN_RUNS: usize = SHORT_LANES;

    #[inline(always)]
    fn empty(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn take<const FUSED: bool>(&self, state: u32, x: B, _: usize) -> u32 {
        state | (u32::from(x & self.mask != B::zeroed()) ^ self.flip)
    }

    #[inline(always)]
    fn join<const FUSED: bool>(&self, a: u32, b: u32) -> u32 {
        a | b
    }
}

/// How many are true.
struct Count;

impl Fold<u8> for Count {
    type State = u32;
    const ENOUGH_IN_RUNS: usize = SHORT_LANES;

    #[inline(always)]
    fn empty(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn take<const FUSED: bool>(&self, state: u32, x: u8, _: usize) -> u32 {
        state.wrapping_add(u32::from(x != 0))
    }

    #[inline(always)]
    fn block<const FUSED: bool>(&self, run: &[u8], _: usize) -> Option<u32> {
        let ones = run.iter().map(|&x| u32::from(x != 0));
        Some(ones.fold(0, u32::wrapping_add))
    }

    #[inline(always)]
    fn join<const FUSED: bool>(&self, a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks against their elements taken one by one.
    fn check<W: Number>(pool: &[W], lengths: &[usize]) {
        let mut state = 1u64;
        let mut pick = |most: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % most
        };
        for &length in lengths {
            for _ in 0..20 {
                // Of few values, so that there are equal ones and rows without some.
                let some = 1 + pick(pool.len());
                let first = pick(pool.len());
                let mut value = || pool[(first + pick(some)) % pool.len()];
                let run: Vec<W> = (0..length).map(|_| value()).collect();
                for least in [false, true] {
                    let taken = run.iter().zip(7..);
                    let place = ArgExtreme { least };
                    let want = taken
                        .clone()
                        .fold(Fold::<W>::empty(&place), |state, (&x, at)| {
                            place.take::<false>(state, x, at)
                        });
                    let got = Fold::<W>::block::<false>(&place, &run, 7);
                    assert!(got == Some(want), "place of {length}, {least}");
                    let extreme = Extreme { least };
                    let want = taken.fold(Fold::<W>::empty(&extreme), |state, (&x, at)| {
                        extreme.take::<false>(state, x, at)
                    });
                    let got = Fold::<W>::block::<false>(&extreme, &run, 7);
                    assert!(
                        got.is_some_and(|got| got == want),
                        "extreme of {length}, {least}"
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_are_their_elements() {
        let lengths: Vec<usize> = match cfg!(miri) {
            true => vec![1, 40, 300],
            false => (1..70).chain([255, 256, 257, 300, 511, 513, 800]).collect(),
        };
        let infinity = f32::INFINITY;
        let floats = [
            0.0,
            -0.0,
            infinity,
            -infinity,
            1.5,
            -1.5,
            f32::NAN,
            2.0,
            -f32::NAN,
        ];
        check(&floats, &lengths);
        check(&floats.map(f64::from), &lengths);
        check(&[0, i32::MIN, i32::MAX, -1, 1], &lengths);
        check(&[0, u32::MAX, 1, 7], &lengths);
    }
}
