//! Sums of squares on the CPU, and means.

use super::fold::Fold;
use super::number::{Float, sum, sum_of_powers};

/// norm, in f64, where no square of a narrower float goes over or under.
pub(super) struct Norm;

impl<W: Float> Fold<W> for Norm {
    type State = f64;
    const BY_BLOCKS: bool = true;

    #[inline(always)]
    fn empty(&self) -> f64 {
        0.0
    }

    #[inline(always)]
    fn take<const FUSED: bool>(&self, state: f64, x: W, _: usize) -> f64 {
        let x = x.wider();
        state + x * x
    }

    #[inline(always)]
    fn block<const FUSED: bool>(&self, run: &[W], _: usize) -> Option<f64> {
        Some(sum::<_, f64, FUSED, true>(
            run,
            #[inline(always)]
            |x| x.wider() * x.wider(),
        ))
    }

    #[inline(always)]
    fn join<const FUSED: bool>(&self, a: f64, b: f64) -> f64 {
        a + b
    }
}

/// var and std, in f64.
pub(super) struct Moment;

impl Moment {
    /// What is taken off before numbers are added up: a sum of f64 may go over where their variance does not, and is
    /// rounded, so that equal numbers would vary.
    #[inline(always)]
    fn near<W: Float>(first: W) -> f64 {
        if W::IS_WIDENED { 0.0 } else { first.wider() }
    }
}

impl<W: Float> Fold<W> for Moment {
    /// How many, their mean, the sum of squared distances from it.
    type State = (f64, f64, f64);
    const BY_BLOCKS: bool = true;
    const ENOUGH_ABREAST: usize = 1024;

    #[inline(always)]
    fn empty(&self) -> Self::State {
        (0.0, 0.0, 0.0)
    }

    #[inline(always)]
    fn take<const FUSED: bool>(
        &self,
        (count, mean, squares): Self::State,
        x: W,
        _: usize,
    ) -> Self::State {
        let (x, count) = (x.wider(), count + 1.0);
        let apart = x - mean;
        let mean = mean + apart / count;
        (count, mean, squares + apart * (x - mean))
    }

    #[inline(always)]
    fn block<const FUSED: bool>(&self, run: &[W], _: usize) -> Option<Self::State> {
        let (count, near) = (run.len() as f64, run[0].wider());
        if W::IS_WIDENED {
            // In one pass: a run's mean is not further from one of its elements than the root of all squared distances from
            // it, so that no more bits are lost than the run's length has, of the 29 that f64 has beyond f32.
            let [total, squares] = sum_of_powers::<_, _, FUSED>(
                run,
                #[inline(always)]
                |x| x.wider() - near,
            );
            let off = total / count;
            return Some((count, near + off, squares - total * off));
        }
        let total = sum::<_, _, FUSED, true>(
            run,
            #[inline(always)]
            |x| x.wider() - near,
        );
        let off = total / count;
        let squares = sum::<_, _, FUSED, false>(
            run,
            #[inline(always)]
            |x| {
                let apart = (x.wider() - near) - off;
                apart * apart
            },
        );
        Some((count, near + off, squares))
    }

    #[inline(always)]
    fn rows<const FUSED: bool, const R: usize>(
        &self,
        states: &mut [Self::State],
        rows: [&[W]; R],
        _: usize,
    ) {
        let (count, part) = (R as f64, 1.0 / R as f64);
        for (at, state) in states.iter_mut().enumerate() {
            let near = Self::near(rows[0][at]);
            let mut total = 0.0;
            for row in rows {
                total += row[at].wider() - near;
            }
            let off = total * part;
            let mut squares = 0.0;
            for row in rows {
                let apart = (row[at].wider() - near) - off;
                squares += apart * apart;
            }
            let of_rows = (count, near + off, squares);
            *state = <Self as Fold<W>>::join::<FUSED>(self, *state, of_rows);
        }
    }

    #[inline(always)]
    fn join<const FUSED: bool>(&self, a: Self::State, b: Self::State) -> Self::State {
        let count = a.0 + b.0;
        let apart = b.1 - a.1;
        let share = b.0 / count.max(1.0);
        // Beside nothing there is no distance, whose square may go over.
        let both = a.0 * share;
        let between = if both > 0.0 {
            apart * apart * both
        } else {
            0.0
        };
        (count, a.1 + apart * share, a.2 + b.2 + between)
    }
}
