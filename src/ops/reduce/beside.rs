//! Outputs side by side on the CPU, several rows of their elements at once; those of few outputs go abreast, where they follow
//! one another, so that vectors have enough to do.

use super::fold::{Fold, Folder, LONGEST};
use super::lanes::Lanes;

/// Rows that are taken at once, where neighbours are different outputs: a state is loaded once for them.
const ROWS: usize = 8;

impl<W: Copy, F: Fold<W>> Folder<'_, W, F> {
    /// The states of outputs from `from` on, each of its elements in `range`, an element of each after the other.
    #[inline(always)]
    pub(super) fn beside<const FUSED: bool>(
        &self,
        from: usize,
        range: std::ops::Range<usize>,
        states: &mut [F::State],
    ) {
        let mut lanes = Lanes::of(self.abreast);
        let abreast = self.abreast.unwrap_or(1);
        let mut buffers = [const { Vec::new() }; ROWS];
        let mut parts = Vec::new();
        let (mut first, mut rest) = (from, states);
        while !rest.is_empty() {
            let count = lanes.take(self.space, first, rest.len());
            let (states, later) = rest.split_at_mut(count);
            (first, rest) = (first + count, later);
            let (mut index, mut taken) = (range.start, 0);
            // Of rows abreast all go there.
            let mut is_first = abreast == 1;
            if !is_first {
                parts.clear();
                parts.resize(count * abreast, self.fold.empty());
            }
            while index < range.end {
                // The first go to the states themselves: of short rows these are all.
                let part = if is_first {
                    &mut *states
                } else {
                    &mut parts[..]
                };
                let left = self.rows_left(index, range.end);
                let steps = match left / abreast {
                    ROWS.. => {
                        self.take_rows::<FUSED, ROWS>(part, &lanes, index, left, &mut buffers)
                    }
                    2.. => self.take_rows::<FUSED, 2>(part, &lanes, index, left, &mut buffers),
                    _ => self.take_rows::<FUSED, 1>(part, &lanes, index, left, &mut buffers),
                };
                (index, taken) = (index + left.min(steps * abreast), taken + steps);
                if taken < LONGEST && index < range.end {
                    continue;
                }
                if !is_first {
                    self.join_abreast::<FUSED>(&mut parts, count);
                    for (state, &part) in states.iter_mut().zip(&parts) {
                        *state = self.fold.join::<FUSED>(*state, part);
                    }
                }
                (is_first, taken) = (false, 0);
                if index < range.end {
                    parts.clear();
                    parts.resize(count * abreast, self.fold.empty());
                }
            }
        }
    }

    /// How many rows there are from the `at`th on, of those that follow one another.
    #[inline(always)]
    fn rows_left(&self, at: usize, end: usize) -> usize {
        match (self.abreast, &self.space.reduced[..]) {
            (Some(_), [_, .., inner]) => (inner - at % inner).min(end - at),
            _ => end - at,
        }
    }

    /// Makes of the states of rows abreast those of `count` outputs.
    #[inline(always)]
    fn join_abreast<const FUSED: bool>(&self, states: &mut [F::State], count: usize) {
        let rows = states.len() / count;
        if F::HAS_PLACES && rows > 1 {
            for (row, states) in states.chunks_mut(count).enumerate() {
                for state in states {
                    *state = self.fold.spread(*state, rows, row);
                }
            }
        }
        let mut half = states.len();
        while half > count {
            half /= 2;
            let (first, second) = states[..2 * half].split_at_mut(half);
            for (first, &second) in first.iter_mut().zip(&*second) {
                *first = self.fold.join::<FUSED>(*first, second);
            }
        }
    }

    /// Takes `R` rows, or so many times those that go abreast, from the `at`th on, of `left`; and says how many these are.
    #[inline(always)]
    fn take_rows<const FUSED: bool, const R: usize>(
        &self,
        states: &mut [F::State],
        lanes: &Lanes,
        at: usize,
        left: usize,
        buffers: &mut [Vec<W>; ROWS],
    ) -> usize {
        let mut rows: [&[W]; R] = [&[]; R];
        let (mut count, mut first) = (states.len(), at);
        if let Some(abreast) = self.abreast {
            // The last may be less than go abreast.
            count = count.min(left * (count / abreast));
            first /= abreast;
            let [buffer, ..] = buffers;
            let run = lanes.rows(self.data, self.space.along(at), R * count, buffer);
            for (row, of_run) in rows.iter_mut().zip(run.chunks_exact(count)) {
                *row = of_run;
            }
        } else {
            for ((row, buffer), at) in rows.iter_mut().zip(buffers).zip(at..) {
                *row = lanes.row(self.data, self.space.along(at), buffer);
            }
        }
        let rows = rows.map(
            #[inline(always)]
            |row| &row[..count],
        );
        self.fold
            .rows::<FUSED, R>(&mut states[..count], rows, first);
        R
    }
}
