//! Sums of exponentials on the CPU, which no number overflows.

use super::fold::Fold;
use super::number::{Float, Number, largest, sum};
use crate::cpu::Loops;

/// How far a number is below the largest. Equal ones may be infinite.
#[inline(always)]
fn below<W: Float>(x: W, top: W) -> W {
    if x == top { W::ZERO } else { x - top }
}

/// The largest, and the logarithm of the sum of the exponentials.
pub(super) struct LogSumExp;

impl<W: Float> Fold<W> for LogSumExp {
    /// The largest, and the sum of `exp` of the distances from it. Of NaN only the sum tells.
    type State = (W, W);
    const BY_BLOCKS: bool = true;
    const ENOUGH_ABREAST: usize = 1024;
    const WIDEST: bool = true;

    #[inline(always)]
    fn empty(&self) -> Self::State {
        (W::LEAST, W::ZERO)
    }

    #[inline(always)]
    fn take<const FUSED: bool>(&self, state: Self::State, x: W, _: usize) -> Self::State {
        <Self as Fold<W>>::join::<FUSED>(self, state, (x, W::ONE))
    }

    #[inline(always)]
    fn block<const FUSED: bool>(&self, run: &[W], _: usize) -> Option<Self::State> {
        let top = largest::<_, FUSED, false>(run);
        // Infinities and NaN go one by one.
        let is_finite = top.wider().abs() <= f64::MAX;
        match is_finite {
            true => {
                let sum = sum::<_, _, FUSED, true>(
                    run,
                    #[inline(always)]
                    |x| (x - top).exp_below::<FUSED>(),
                );
                Some((top, W::of(sum)))
            }
            false => None,
        }
    }

    #[inline(always)]
    fn rows<const FUSED: bool, const R: usize>(
        &self,
        states: &mut [Self::State],
        rows: [&[W]; R],
        _: usize,
    ) {
        for (at, state) in states.iter_mut().enumerate() {
            let (before, sum) = *state;
            let mut top = before;
            for row in rows {
                top = if row[at] > top { row[at] } else { top };
            }
            let mut sum = sum * below(before, top).exp_below::<FUSED>();
            for row in rows {
                sum = sum + below(row[at], top).exp_below::<FUSED>();
            }
            *state = (top, sum);
        }
    }

    #[inline(always)]
    fn join<const FUSED: bool>(&self, a: Self::State, b: Self::State) -> Self::State {
        let one = W::ONE;
        let apart = below(b.0, a.0);
        let less = (W::ZERO - apart.abs()).exp_below::<FUSED>();
        let is_higher = apart > W::ZERO;
        let (to_a, to_b) = if is_higher { (less, one) } else { (one, less) };
        (if is_higher { b.0 } else { a.0 }, a.1 * to_a + b.1 * to_b)
    }
}

/// What logsumexp makes of the largest and the sums: a logarithm each, in vectors.
pub(super) struct Logarithms<'a, W, T> {
    pub states: &'a [(W, W)],
    pub out: &'a mut [T],
}

impl<T: Number<Wide: Float>> Loops for Logarithms<'_, T::Wide, T> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (out, &(top, sum)) in self.out.iter_mut().zip(self.states) {
            *out = T::narrow(top + sum.ln::<FUSED>());
        }
    }
}
