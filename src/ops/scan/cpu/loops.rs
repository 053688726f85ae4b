//! The loops of running sums: along a line, through short places, and of neighbouring lines side by side.

use super::{CHAINS, FEW, Lines, RUN, Sum};
use crate::cpu::Loops;

/// One line, or a part of it.
pub(super) struct Line<'a, W> {
    pub lines: &'a Lines<'a, W>,
    pub start: isize,
    pub base: [W; 2],
    pub out: &'a mut [W],
}

impl<W: Sum> Loops for Line<'_, W> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let (data, step) = (self.lines.data, self.lines.step);
        let mut buffer = Vec::new();
        let mut base = self.base;
        for (at, out) in self.out.chunks_mut(RUN * CHAINS).enumerate() {
            let start = self.start + (at * RUN * CHAINS) as isize * step;
            let run = data.run(start, step, out.len(), &mut buffer);
            if let (Ok(out), Ok(run)) = (
                <&mut [W; RUN * CHAINS]>::try_from(&mut *out),
                <&[W; RUN * CHAINS]>::try_from(run),
            ) {
                let mut chains = [W::default(); CHAINS];
                for at in 0..RUN {
                    for (chain, sum) in chains.iter_mut().enumerate() {
                        *sum = sum.plus(run[chain * RUN + at]);
                        out[chain * RUN + at] = *sum;
                    }
                }
                for (out, sum) in out.as_chunks_mut::<RUN>().0.iter_mut().zip(chains) {
                    let before = base[0].plus(base[1]);
                    for out in out {
                        *out = before.plus(*out);
                    }
                    base = W::added(base, sum);
                }
                continue;
            }
            for (out, run) in out.chunks_mut(RUN).zip(run.chunks(RUN)) {
                let before = base[0].plus(base[1]);
                let mut sum = W::default();
                for (out, &x) in out.iter_mut().zip(run) {
                    sum = sum.plus(x);
                    *out = before.plus(sum);
                }
                base = W::added(base, sum);
            }
        }
    }
}

/// Short places before the axis, one after the other.
pub(super) struct Short<'a, W> {
    pub lines: &'a Lines<'a, W>,
    pub first: usize,
    pub length: usize,
    pub out: &'a mut [W],
}

impl<W: Sum> Loops for Short<'_, W> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let lines = self.lines;
        let (inner, of_place) = (lines.inner, self.length * lines.inner);
        let mut buffer = Vec::new();
        if lines.lie_together(self.length) {
            let together = (RUN * CHAINS / of_place).max(1) * of_place;
            let first = lines.start(self.first, 0);
            for (at, out) in self.out.chunks_mut(together).enumerate() {
                let start = first + (at * together) as isize;
                let run = lines.data.run(start, 1, out.len(), &mut buffer);
                for (out, run) in out.chunks_mut(of_place).zip(run.chunks(of_place)) {
                    add_up(out, run, inner);
                }
            }
            return;
        }
        let runs = lines.runs(0, inner);
        let stride = lines.across.1.last().copied().unwrap_or(0);
        let mut rows = Vec::with_capacity(of_place);
        for (at, out) in self.out.chunks_mut(of_place).enumerate() {
            let start = lines.start(self.first + at, 0);
            if inner == 1 {
                let line = lines.data.run(start, lines.step, self.length, &mut buffer);
                add_up(out, line, 1);
                continue;
            }
            rows.clear();
            for row in 0..self.length {
                let start = start + row as isize * lines.step;
                for &(from, count) in &runs {
                    rows.extend_from_slice(lines.data.run(
                        start + from,
                        stride,
                        count,
                        &mut buffer,
                    ));
                }
            }
            add_up(out, &rows, inner);
        }
    }
}

/// Rows one after the other: each is its row and the sum before it.
#[inline(always)]
fn add_up<W: Sum>(out: &mut [W], run: &[W], inner: usize) {
    match inner {
        1 => {
            let mut sum = W::default();
            for (out, &x) in out.iter_mut().zip(run) {
                sum = sum.plus(x);
                *out = sum;
            }
            return;
        }
        2 => return add_up_rows::<W, 2>(out, run),
        3 => return add_up_rows::<W, 3>(out, run),
        4 => return add_up_rows::<W, 4>(out, run),
        _ => {}
    }
    let first = inner.min(run.len());
    out[..first].copy_from_slice(&run[..first]);
    if inner < FEW {
        for at in first..out.len() {
            out[at] = out[at - inner].plus(run[at]);
        }
        return;
    }
    for at in (first..out.len()).step_by(inner) {
        let (before, row) = out.split_at_mut(at);
        for ((out, &before), &x) in row.iter_mut().zip(&before[at - inner..]).zip(&run[at..]) {
            *out = before.plus(x);
        }
    }
}

/// The same of rows so short that their sums stay in registers.
#[inline(always)]
fn add_up_rows<W: Sum, const N: usize>(out: &mut [W], run: &[W]) {
    let rows = out
        .as_chunks_mut::<N>()
        .0
        .iter_mut()
        .zip(run.as_chunks::<N>().0);
    let mut sums: [W; N] = run.first_chunk().copied().unwrap_or([W::default(); N]);
    for (at, (out, run)) in rows.enumerate() {
        for column in 0..N {
            if at > 0 {
                sums[column] = sums[column].plus(run[column]);
            }
            out[column] = sums[column];
        }
    }
}

/// Few neighbouring lines, some rows of them at once.
pub(super) struct Few<'a, W> {
    pub lines: &'a Lines<'a, W>,
    pub start: isize,
    pub bases: &'a [[W; 2]],
    pub out: &'a mut [W],
}

impl<W: Sum> Loops for Few<'_, W> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let inner = self.lines.inner;
        let mut bases = [[W::default(); 2]; FEW];
        bases[..self.bases.len()].copy_from_slice(self.bases);
        let mut several = [W::default(); FEW * CHAINS];
        let (places, mut buffer) = (self.lines.places_of_rows(), Vec::new());
        for (at, out) in self.out.chunks_mut(RUN * inner).enumerate() {
            let start = self.start + (at * RUN) as isize * self.lines.step;
            let run = self.lines.rows(start, out.len(), &places, &mut buffer);
            add_up(out, run, inner);
            let before = bases.map(|[base, rest]| base.plus(rest));
            let last = out.len() - inner;
            for (base, &sum) in bases.iter_mut().zip(&out[last..]) {
                *base = W::added(*base, sum);
            }
            // Some rows at once are vectors, as one is none.
            let together = &mut several[..inner * CHAINS];
            for row in together.chunks_mut(inner) {
                row.copy_from_slice(&before[..inner]);
            }
            for rows in out.chunks_mut(together.len()) {
                for (out, &before) in rows.iter_mut().zip(&*together) {
                    *out = before.plus(*out);
                }
            }
        }
    }
}

/// The sums of few neighbouring lines alone.
pub(super) struct FewSums<'a, W> {
    pub lines: &'a Lines<'a, W>,
    pub start: isize,
    pub rows: usize,
    pub sums: &'a mut [[W; 2]],
}

impl<W: Sum> Loops for FewSums<'_, W> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let inner = self.lines.inner;
        let (places, mut buffer) = (self.lines.places_of_rows(), Vec::new());
        let mut added = [W::default(); RUN * FEW];
        for row in (0..self.rows).step_by(RUN) {
            let count = RUN.min(self.rows - row) * inner;
            let start = self.start + row as isize * self.lines.step;
            let run = self.lines.rows(start, count, &places, &mut buffer);
            let added = &mut added[..count];
            add_up(added, run, inner);
            for (base, &sum) in self.sums.iter_mut().zip(&added[count - inner..]) {
                *base = W::added(*base, sum);
            }
        }
    }
}

/// Neighbouring lines side by side.
pub(super) struct Strip<'a, W, I> {
    pub lines: &'a Lines<'a, W>,
    /// The first element of the first line of all.
    pub start: isize,
    pub runs: &'a [(isize, usize)],
    pub bases: Vec<[W; 2]>,
    pub rows: I,
}

impl<'o, W: Sum + 'o, I: Iterator<Item = &'o mut [W]>> Loops for Strip<'_, W, I> {
    #[inline(always)]
    fn run<const FUSED: bool>(mut self) {
        let width = self.bases.len();
        let mut buffer = Vec::new();
        let mut before = vec![W::default(); width];
        let mut sums = vec![W::default(); width];
        for (row, out) in self.rows.enumerate() {
            if row % RUN == 0 {
                let bases = self.bases.iter_mut();
                for ((base, before), sum) in bases.zip(&mut before).zip(&mut sums) {
                    *base = W::added(*base, std::mem::take(sum));
                    *before = base[0].plus(base[1]);
                }
            }
            let at = self.start + row as isize * self.lines.step;
            let (lines, runs) = (self.lines, self.runs);
            lines.take(runs, at, &mut buffer, &mut sums, |column, sums| {
                let out = &mut out[column..column + sums.len()];
                let before = &before[column..column + sums.len()];
                for ((out, &sum), &before) in out.iter_mut().zip(sums).zip(before) {
                    *out = before.plus(sum);
                }
            });
        }
    }
}
