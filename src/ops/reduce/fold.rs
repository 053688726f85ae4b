//! The loops of reductions on the CPU: many elements to one state, the same bits whatever the number
//! of threads.

use half::slice::HalfFloatSliceExt;

use super::number::Number;
use super::space::Space;
use crate::cpu::{Loops, host_vec, parallel, vectorised};
use crate::error::Result;
use crate::layout::Strides;

/// What elements become: states that are joined.
pub(super) trait Fold<W>: Sync {
    type State: Copy + Send + Sync;

    /// The state of no element.
    fn empty(&self) -> Self::State;

    /// With one element more, the `at`th of its output.
    fn take(&self, state: Self::State, x: W, at: usize) -> Self::State;

    /// The state of neighbours, the first of which is the `at`th of its output, where there is a faster
    /// way than one by one.
    #[inline(always)]
    fn block(&self, run: &[W], at: usize) -> Option<Self::State> {
        let _ = (run, at);
        None
    }

    /// Of `a`'s elements, then `b`'s.
    fn join(&self, a: Self::State, b: Self::State) -> Self::State;
}

/// Elements as folds take them, so that their loops are compiled once for all that are widened to one type.
pub(in crate::ops) trait Read<W>: Sync {
    /// So many from `start` on, `stride` apart: where they lie, or in `buffer`.
    fn run<'a>(
        &'a self,
        start: isize,
        stride: isize,
        count: usize,
        buffer: &'a mut Vec<W>,
    ) -> &'a [W];
}

/// Elements that folds take as they are.
pub(super) struct Plain<'a, W>(pub &'a [W]);

impl<W: Copy + Sync> Read<W> for Plain<'_, W> {
    fn run<'a>(
        &'a self,
        start: isize,
        stride: isize,
        count: usize,
        buffer: &'a mut Vec<W>,
    ) -> &'a [W] {
        if stride == 1 {
            return &self.0[start as usize..][..count];
        }
        gather(self.0, start, stride, count, |x| x, buffer)
    }
}

/// f16 or bf16, taken as f32.
pub(super) struct Halves<'a, T>(pub &'a [T]);

impl<T: Number<Wide = f32>> Read<f32> for Halves<'_, T>
where
    [T]: HalfFloatSliceExt,
{
    fn run<'a>(
        &'a self,
        start: isize,
        stride: isize,
        count: usize,
        buffer: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        if stride == 1 {
            buffer.resize(count, 0.0);
            self.0[start as usize..][..count].convert_to_f32_slice(buffer);
            return buffer;
        }
        gather(self.0, start, stride, count, T::wide, buffer)
    }
}

fn gather<'a, T: Copy, W>(
    data: &[T],
    start: isize,
    stride: isize,
    count: usize,
    widen: impl Fn(T) -> W,
    into: &'a mut Vec<W>,
) -> &'a [W] {
    into.clear();
    into.extend((0..count as isize).map(|at| widen(data[(start + at * stride) as usize])));
    into
}

/// Sums that go on side by side.
const LANES: usize = 32;
/// Neighbours that may be a block of their own.
const LEAST_BLOCK: usize = 16;
/// Elements after which they are joined: none is longer than 64.
const BLOCK: usize = 64 * LANES;
/// Elements of an output that are one piece of work.
const PART: usize = 32 * BLOCK;
/// The same where whole rows of outputs are taken, how many outputs at most, and how many elements in all.
const PART_ROWS: usize = 4096;
const COLUMNS: usize = 4096;
const PART_ELEMENTS: usize = 1 << 20;
/// Rows after which sums are joined.
const BLOCK_ROWS: usize = 64;

/// Reduces the elements of `data` in `space` to one result an output, which `finish` makes of its state.
pub(super) fn reduce<W: Copy, F: Fold<W>, O: Send>(
    op: &'static str,
    fold: &F,
    space: &Space,
    data: &dyn Read<W>,
    out: &mut [O],
    finish: impl Fn(F::State) -> O + Sync,
) -> Result<()> {
    let length = space.length();
    let is_columns = space.kept_strides.last() == Some(&1)
        && space.reduced_strides.last() != Some(&1)
        && space.kept.last().is_some_and(|&size| size >= 8);
    let (part, width) = match is_columns {
        true => {
            let width = space.kept.last().map_or(1, |&inner| inner.min(COLUMNS));
            ((PART_ELEMENTS / width).clamp(BLOCK_ROWS, PART_ROWS), width)
        }
        false => (PART, (PART / length.max(1)).max(1)),
    };
    let folder = Folder { fold, space, data };
    let work = |from: usize, range: std::ops::Range<usize>, states: &mut [F::State]| {
        vectorised(Work {
            folder: &folder,
            is_columns,
            from,
            range,
            states,
        });
    };
    let parts = length.div_ceil(part);
    let alone = out.len().saturating_mul(length) <= parallel::PARALLEL;
    if parts == 1 {
        let each = |(at, piece): (usize, &mut [O])| {
            let mut states = vec![fold.empty(); piece.len()];
            work(at * width, 0..length, &mut states);
            for (out, &state) in piece.iter_mut().zip(&states) {
                *out = finish(state);
            }
        };
        let pieces = out.chunks_mut(width).enumerate();
        match alone {
            true => pieces.for_each(each),
            false => parallel::share(pieces, each),
        }
        return Ok(());
    }
    let outputs = out.len();
    let mut states = host_vec(op, outputs * parts)?;
    states.resize(outputs * parts, fold.empty());
    let pieces = states
        .chunks_mut(outputs)
        .enumerate()
        .flat_map(|(at, row)| {
            let pieces = row.chunks_mut(width).enumerate();
            pieces.map(move |(column, states)| (at, column * width, states))
        });
    parallel::share(pieces, |(at, from, states)| {
        work(from, at * part..length.min((at + 1) * part), states);
    });
    for (at, out) in out.iter_mut().enumerate() {
        let mut tower = Tower::new(fold);
        for part in 0..parts {
            tower.push(states[part * outputs + at]);
        }
        *out = finish(tower.top());
    }
    Ok(())
}

/// States joined two by two, however many come: a chain of joins is as long as their number has bits.
struct Tower<'a, W, F: Fold<W>> {
    fold: &'a F,
    /// Of 1, 2, 4, ... states, where `count` has the bit.
    levels: [F::State; usize::BITS as usize],
    count: usize,
}

impl<'a, W, F: Fold<W>> Tower<'a, W, F> {
    fn new(fold: &'a F) -> Self {
        Self {
            fold,
            levels: [fold.empty(); usize::BITS as usize],
            count: 0,
        }
    }

    fn push(&mut self, mut state: F::State) {
        let full = self.count.trailing_ones() as usize;
        for level in &self.levels[..full] {
            state = self.fold.join(*level, state);
        }
        self.levels[full] = state;
        self.count += 1;
    }

    fn top(&self) -> F::State {
        let bits = (0..usize::BITS as usize).filter(|bit| self.count >> bit & 1 == 1);
        bits.map(|bit| self.levels[bit])
            .reduce(|later, earlier| self.fold.join(earlier, later))
            .unwrap_or_else(|| self.fold.empty())
    }
}

/// The states of outputs from `from` on, each of its elements in `range`.
struct Work<'a, W, F: Fold<W>> {
    folder: &'a Folder<'a, W, F>,
    is_columns: bool,
    from: usize,
    range: std::ops::Range<usize>,
    states: &'a mut [F::State],
}

impl<W: Copy, F: Fold<W>> Loops for Work<'_, W, F> {
    #[inline(always)]
    fn run(self) {
        match self.is_columns {
            true => self.folder.columns(self.from, self.range, self.states),
            false => self.folder.rows(self.from, self.range, self.states),
        }
    }
}

struct Folder<'a, W, F> {
    fold: &'a F,
    space: &'a Space,
    data: &'a dyn Read<W>,
}

impl<W: Copy, F: Fold<W>> Folder<'_, W, F> {
    /// The states of outputs from `from` on, each of its elements in `range`.
    #[inline(always)]
    fn rows(&self, from: usize, range: std::ops::Range<usize>, states: &mut [F::State]) {
        let stride = self.space.reduced_strides.last().copied().unwrap_or(0);
        let mut buffer = Vec::new();
        for (at, state) in states.iter_mut().enumerate() {
            let base = self.base(from + at);
            if range.len() <= BLOCK {
                let (from_first, count) = self.next_run(range.start, range.end, BLOCK);
                if count == range.len() {
                    let run = self.data.run(base + from_first, stride, count, &mut buffer);
                    let block = (count >= LEAST_BLOCK).then(|| self.fold.block(run, range.start));
                    *state = block.flatten().unwrap_or_else(|| {
                        let mut lanes = [self.fold.empty(); LANES];
                        self.run(&mut lanes, run, range.start);
                        self.joined(&lanes)
                    });
                    continue;
                }
            }
            let mut tower = Tower::new(self.fold);
            let mut lanes = [self.fold.empty(); LANES];
            let mut taken = 0;
            let mut index = range.start;
            while index < range.end {
                let (from_first, count) = self.next_run(index, range.end, BLOCK);
                let run = self.data.run(base + from_first, stride, count, &mut buffer);
                let is_block = taken == 0 && count >= LEAST_BLOCK;
                if let Some(state) = is_block.then(|| self.fold.block(run, index)).flatten() {
                    tower.push(state);
                    index += count;
                    continue;
                }
                self.run(&mut lanes, run, index);
                index += count;
                taken += count.next_multiple_of(LANES);
                if taken >= BLOCK {
                    tower.push(self.joined(&lanes));
                    lanes = [self.fold.empty(); LANES];
                    taken = 0;
                }
            }
            if taken > 0 {
                tower.push(self.joined(&lanes));
            }
            *state = tower.top();
        }
    }

    #[inline(always)]
    fn run(&self, lanes: &mut [F::State; LANES], run: &[W], index: usize) {
        let mut local = *lanes;
        let whole = run.chunks_exact(LANES);
        let rest = whole.remainder();
        let mut at = index;
        for chunk in whole {
            for lane in 0..LANES {
                local[lane] = self.fold.take(local[lane], chunk[lane], at + lane);
            }
            at += LANES;
        }
        for (lane, &x) in local.iter_mut().zip(rest) {
            *lane = self.fold.take(*lane, x, at);
            at += 1;
        }
        *lanes = local;
    }

    #[inline(always)]
    fn joined(&self, lanes: &[F::State; LANES]) -> F::State {
        let mut lanes = *lanes;
        let mut apart = LANES / 2;
        while apart > 0 {
            for lane in 0..apart {
                lanes[lane] = self.fold.join(lanes[lane], lanes[lane + apart]);
            }
            apart /= 2;
        }
        lanes[0]
    }

    /// The same for outputs that are neighbours, row by row.
    #[inline(always)]
    fn columns(&self, from: usize, range: std::ops::Range<usize>, states: &mut [F::State]) {
        let inner = self.space.kept.last().copied().unwrap_or(1);
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < states.len() {
            let first = from + done;
            let count = (inner - first % inner).min(states.len() - done);
            let base = self.base(first);
            let states = &mut states[done..done + count];
            let mut part = vec![self.fold.empty(); count];
            let mut taken = 0;
            let stride = self.space.reduced_strides.last().copied().unwrap_or(0);
            let mut index = range.start;
            while index < range.end {
                let (from_first, rows) = self.next_run(index, range.end, BLOCK_ROWS);
                for row in 0..rows {
                    let start = base + from_first + row as isize * stride;
                    let run = self.data.run(start, 1, count, &mut buffer);
                    for (state, &x) in part.iter_mut().zip(run) {
                        *state = self.fold.take(*state, x, index + row);
                    }
                }
                index += rows;
                taken += rows;
                if taken >= BLOCK_ROWS {
                    for (state, part) in states.iter_mut().zip(part.iter_mut()) {
                        *state = self.fold.join(*state, *part);
                        *part = self.fold.empty();
                    }
                    taken = 0;
                }
            }
            for (state, part) in states.iter_mut().zip(part) {
                *state = self.fold.join(*state, part);
            }
            done += count;
        }
    }

    /// Where the first element of an output is.
    #[inline(always)]
    fn base(&self, output: usize) -> isize {
        let space = self.space;
        place(output, &space.kept, &space.kept_strides) + space.offset as isize
    }

    /// The run along the innermost reduced dimension that begins with element `at`, before `end`: where
    /// it starts from its output's first element, and how many it has, `most` at most.
    #[inline(always)]
    fn next_run(&self, at: usize, end: usize, most: usize) -> (isize, usize) {
        let space = self.space;
        let inner = space.reduced.last().copied().unwrap_or(1);
        let start = place(at, &space.reduced, &space.reduced_strides);
        (start, (inner - at % inner).min(end - at).min(most))
    }
}

/// Where element `at` of these dimensions is, from their first.
#[inline(always)]
fn place(at: usize, dims: &[usize], strides: &Strides) -> isize {
    let mut rest = at;
    let mut place = 0;
    for (&size, &stride) in dims.iter().zip(strides).rev() {
        place += (rest % size) as isize * stride;
        rest /= size;
    }
    place
}
