//! The CPU twin: each core has outputs of its own.

use half::{bf16, f16};

use super::{Change, Seen};
use crate::cpu::parallel::{self, Block};
use crate::cpu::stores::LINE;
use crate::ops::index::IndexReader;
use crate::road::{HostInput, HostOutput};

/// Outputs on the CPU that are work enough for a thread.
const ENOUGH: usize = 16 << 10;
/// Bytes of entries that a core changes, within its second cache.
const STRIP: usize = 512 << 10;
/// Entries of which a thread writes the columns of strips back.
const ROWS: usize = 64;

/// Elements of which one comes first.
pub(super) trait Ordered: bytemuck::Pod + Send + Sync {
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

/// Elements that are added in their own type.
pub(super) trait Summed: Ordered {
    fn sum(self, other: Self) -> Self;
}

/// A whole number in the order of floats, NaN at its end, without a branch: rows are compared in vectors.
macro_rules! ordered {
    ($x:ident, $bits:ty, $nan:ident) => {{
        let bits = $x.to_bits() as $bits;
        match $x.is_nan() {
            true => <$bits>::$nan,
            false => bits ^ ((bits >> (<$bits>::BITS - 1)) & <$bits>::MAX),
        }
    }};
}
macro_rules! floats {
    ($($float:ty, $bits:ty;)*) => {$(
        impl Ordered for $float {
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let rank = |x: $float| ordered!(x, $bits, MAX);
                if rank(other) > rank(self) { other } else { self }
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let rank = |x: $float| ordered!(x, $bits, MIN);
                if rank(other) < rank(self) { other } else { self }
            }
        }
    )*};
}

floats! {
    f32, i32;
    f64, i64;
    f16, i16;
    bf16, i16;
}

impl Summed for f32 {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        self + other
    }
}

impl Summed for f64 {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        self + other
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Summed for $integer {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }

        impl Ordered for $integer {
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
        }
    )*};
}
integers!(i32 u32);

impl Seen {
    /// [`Seen::twin`] of numbers.
    pub(super) fn combined<T: Summed>(
        &self,
        change: Change,
        axis: usize,
        index: &HostInput<'_>,
        source: &HostInput<'_>,
        output: &mut HostOutput<'_>,
    ) {
        match change {
            Change::Add => self.twin(axis, index, source, output, T::sum),
            _ => self.extremes::<T>(change, axis, index, source, output),
        }
    }

    /// [`Seen::twin`] of the largest or smallest; of halves sums are made in f32, by who calls.
    pub(super) fn extremes<T: Ordered>(
        &self,
        change: Change,
        axis: usize,
        index: &HostInput<'_>,
        source: &HostInput<'_>,
        output: &mut HostOutput<'_>,
    ) {
        match change {
            Change::Max => self.twin(axis, index, source, output, T::larger),
            Change::Min => self.twin(axis, index, source, output, T::smaller),
            Change::Add | Change::Set => {}
        }
    }

    /// Each core has outputs of its own: those at some places of the axes before the index's, or, where whole rows are
    /// taken, at some entries of that axis: then it goes through all of the index, and passes over the others. Outputs
    /// with gaps between them are changed by one core.
    pub(super) fn twin<T: bytemuck::Pod + Send + Sync>(
        &self,
        axis: usize,
        index: &HostInput<'_>,
        source: &HostInput<'_>,
        output: &mut HostOutput<'_>,
        change: impl Fn(T, T) -> T + Sync,
    ) {
        let layout = output.layout;
        let (target, is_dense) = (layout.shape(), layout.is_contiguous());
        let place = IndexReader::new(index, self.size);
        let given = source.elements::<T>();
        let mut out = output.elements::<T>();
        if is_dense {
            // Its places count from its first element.
            out = match out.get_mut(layout.span()) {
                Some(out) => out,
                None => return,
            };
        }
        let [base, named, seen] = &self.layouts;
        let walk = parallel::Walk::new(&[base, named, seen]);
        let strides = walk.inner_strides();
        let are_rows = strides[..] == [1, 0, 1];
        // Of those with gaps, never asked for.
        let stride = self.stride.unsigned_abs();
        if is_dense
            && out.len() == self.size * stride
            && !are_rows
            && self.by_strips(&walk, (&place, given), out, &change)
        {
            return;
        }
        // Places of the axes before, which are as many in the source but for the first.
        let leading = (target.iter().zip(seen.shape().iter()))
            .scan(true, |is_first, (&size, &seen)| {
                let goes_on = size == seen || *is_first;
                *is_first &= size == 1;
                goes_on.then_some((size, seen))
            })
            .take(if is_dense { axis } else { 0 });
        let (places, of_seen) = leading.fold((1, 1), |(all, of_seen), (size, seen)| {
            (all * size, of_seen * seen)
        });
        let of_place = out.len() / places;
        let is_much = seen.elements() > parallel::PARALLEL;
        // One part for each core, but of enough outputs: each goes through all of the index.
        let entries = self.size.div_ceil(parallel::width());
        let entries = entries.max(ENOUGH.div_ceil(stride.max(1)));
        let is_by_entries =
            is_much && is_dense && places == 1 && of_place == self.size * stride && are_rows;
        let part = match is_by_entries && out.len() >= 2 * ENOUGH {
            true => stride * entries,
            false => of_place * (ENOUGH / of_place).max(1),
        };
        let parts = out.chunks_mut(part).enumerate();
        parallel::share(is_much, parts, |(at, out)| {
            let before = at * part;
            // Of the axis, those in this part.
            let mine = match part < of_place {
                true => before / stride..(before + out.len()) / stride,
                false => 0..self.size,
            };
            let each = seen.elements() / of_seen;
            let [from, to] = [before, before + out.len()]
                .map(|element| element.div_ceil(of_place).min(of_seen) * each);
            let seen = if part < of_place {
                0..seen.elements()
            } else {
                from..to
            };
            let start =
                |to: isize, entry: usize| (to + entry as isize * self.stride) as usize - before;
            if are_rows {
                walk.blocks(seen.start, seen.len(), &mut |block| {
                    let [to, number, from] = [0, 1, 2].map(|of| block.grids[of]);
                    for row in 0..block.rows {
                        let entry = place.of(number.at(row, 0));
                        let Some(entry) = entry.filter(|entry| mine.contains(entry)) else {
                            continue;
                        };
                        let out = &mut out[start(to.at(row, 0), entry)..][..block.columns];
                        let given = &given[from.at(row, 0) as usize..][..block.columns];
                        change_row(out, given, &change);
                    }
                });
                return;
            }
            // Lines whose index lies in a row, as their source does, or with one number for all.
            let are_lines =
                (strides[0], strides[1], self.stride) == (0, 1, 1) && matches!(strides[2], 0 | 1);
            walk.blocks(seen.start, seen.len(), &mut |block| match are_lines {
                true => self.change_lines(block, (&place, given), (out, before), &change),
                false => self.change_elements(block, (&place, given), (out, before), &change),
            });
        });
    }

    /// A block whose rows go to a line each; `out` begins with the element that `before` are before.
    fn change_lines<T: bytemuck::Pod>(
        &self,
        block: &Block<'_>,
        (place, given): (&IndexReader<'_>, &[T]),
        (out, before): (&mut [T], usize),
        change: &impl Fn(T, T) -> T,
    ) {
        let [line, number, from] = [0, 1, 2].map(|of| block.grids[of]);
        for row in 0..block.rows {
            let [line, number, first] = [line, number, from].map(|grid| grid.at(row, 0) as usize);
            let line = &mut out[line - before..][..self.size];
            let entries = place.run(number, block.columns);
            let given = &given[first..];
            match from.column {
                0 => change_line(line, entries.map(|entry| (entry, given[0])), change),
                _ => change_line(line, entries.zip(given.iter().copied()), change),
            }
        }
    }

    fn change_elements<T: bytemuck::Pod>(
        &self,
        block: &Block<'_>,
        (place, given): (&IndexReader<'_>, &[T]),
        (out, before): (&mut [T], usize),
        change: &impl Fn(T, T) -> T,
    ) {
        for row in 0..block.rows {
            let [mut to, mut number, mut from] = [0, 1, 2].map(|of| block.grids[of].at(row, 0));
            for _ in 0..block.columns {
                if let Some(entry) = place.of(number) {
                    let out = &mut out[(to + entry as isize * self.stride) as usize - before];
                    *out = change(*out, given[from as usize]);
                }
                to += block.grids[0].column;
                number += block.grids[1].column;
                from += block.grids[2].column;
            }
        }
    }
}

impl Seen {
    /// Where rows' elements go each to an entry of its own: strips of columns, of which a near cache holds all entries. They are
    /// apart from the output meanwhile, which has them between others. `false` where that would be more work.
    fn by_strips<T: bytemuck::Pod + Send + Sync>(
        &self,
        walk: &parallel::Walk,
        (place, given): (&IndexReader<'_>, &[T]),
        out: &mut [T],
        change: &(impl Fn(T, T) -> T + Sync),
    ) -> bool {
        let (size, pitch) = (self.size, self.stride.unsigned_abs());
        let Some(([rows, columns], grids)) = walk.whole() else {
            return false;
        };
        let [base, named, seen] = [0, 1, 2].map(|of| grids[of]);
        // All cores have some, in whole lines, or as many as there are lines of.
        let line = LINE / size_of::<T>();
        let share = columns.div_ceil(parallel::width());
        let share = share.max(if columns < 2 * line { 0 } else { line });
        let width = (STRIP / size_of::<T>() / size).min(share) / line * line;
        let is_much = rows * columns > parallel::PARALLEL && 2 * rows * columns >= out.len();
        if !is_much || width == 0 || (base.start, base.row, base.column) != (0, 0, 1) {
            return false;
        }
        let strips: Vec<usize> = (0..columns).step_by(width).collect();
        let together = (2 * parallel::width()).min(strips.len());
        let mut memory = vec![vec![T::zeroed(); size * width]; together];
        for strips in strips.chunks(together) {
            let sums = memory.iter_mut().zip(strips);
            parallel::share(true, sums, |(sums, &first)| {
                let width = width.min(columns - first);
                for (sums, out) in sums.chunks_mut(width).zip(out.chunks(pitch)) {
                    sums.copy_from_slice(&out[first..first + width]);
                }
                for row in 0..rows {
                    let [mut number, mut from] = [named, seen].map(|grid| grid.at(row, first));
                    for column in 0..width {
                        if let Some(entry) = place.of(number) {
                            let sum = &mut sums[entry * width + column];
                            *sum = change(*sum, given[from as usize]);
                        }
                        number += named.column;
                        from += seen.column;
                    }
                }
            });
            let entries = out.chunks_mut(pitch * ROWS).enumerate();
            parallel::share(true, entries, |(at, out)| {
                for (sums, &first) in memory.iter().zip(strips) {
                    let width = width.min(columns - first);
                    let sums = sums.chunks(width).skip(at * ROWS);
                    for (out, sums) in out.chunks_mut(pitch).zip(sums) {
                        out[first..first + width].copy_from_slice(sums);
                    }
                }
            });
        }
        true
    }
}

#[inline(always)]
fn change_line<T: Copy>(
    line: &mut [T],
    given: impl Iterator<Item = (Option<usize>, T)>,
    change: impl Fn(T, T) -> T,
) {
    for (entry, given) in given {
        if let Some(out) = entry.and_then(|entry| line.get_mut(entry)) {
            *out = change(*out, given);
        }
    }
}

/// By fours first: a loop over the whole row takes longer to begin than a short row does.
#[inline(always)]
fn change_row<T: bytemuck::Pod>(out: &mut [T], given: &[T], change: impl Fn(T, T) -> T) {
    let (fours, rest) = out.as_chunks_mut::<4>();
    let (given_fours, given_rest) = given.as_chunks::<4>();
    for (out, given) in fours.iter_mut().zip(given_fours) {
        *out = std::array::from_fn(|at| change(out[at], given[at]));
    }
    for (out, &given) in rest.iter_mut().zip(given_rest) {
        *out = change(*out, given);
    }
}
