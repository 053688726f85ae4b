//! The loops of reductions on the CPU: many elements to one state, the same bits whatever the number
//! of threads.

use super::lanes::{Lanes, Read};
use super::space::Space;
use crate::cpu::{Loops, host_vec, parallel, vectorised};
use crate::error::Result;

/// What elements become: states that are joined. `FUSED` as in [`Loops::run`].
pub(super) trait Fold<W>: Sync {
    type State: Copy + Send + Sync;

    /// Whether neighbours are taken by [`Fold::block`], so that what comes one by one is little.
    const BY_BLOCKS: bool = false;
    /// Whether [`Fold::block`] has a state for most runs.
    const HAS_BLOCKS: bool = Self::BY_BLOCKS;
    /// Whether states tell where elements are.
    const HAS_PLACES: bool = false;
    /// Elements of an output from which on it is faster by itself than beside others.
    const ENOUGH: usize = 32;
    /// The same where outputs follow one another.
    const ENOUGH_IN_RUNS: usize = Self::ENOUGH;
    /// Elements of rows that follow one another from which on some go abreast, as [`Lanes::rows_abreast`] says: more where states
    /// take long to join.
    const ENOUGH_ABREAST: usize = 128;
    /// As [`Loops::WIDEST`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const WIDEST: bool = false;

    /// The state of no element.
    fn empty(&self) -> Self::State;

    /// With one element more, the `at`th of its output.
    fn take<const FUSED: bool>(&self, state: Self::State, x: W, at: usize) -> Self::State;

    /// The state of neighbours, the first of which is the `at`th of its output, where there is a faster
    /// way than one by one.
    #[inline(always)]
    fn block<const FUSED: bool>(&self, run: &[W], at: usize) -> Option<Self::State> {
        let _ = (run, at);
        None
    }

    /// Each output's state with one element more of each row, the first of which is the `at`th of its output.
    /// All rows are as long as there are states.
    #[inline(always)]
    fn rows<const FUSED: bool, const R: usize>(
        &self,
        states: &mut [Self::State],
        rows: [&[W]; R],
        at: usize,
    ) where
        W: Copy,
    {
        for (column, state) in states.iter_mut().enumerate() {
            let mut taken = *state;
            for (row, of_row) in rows.iter().enumerate() {
                taken = self.take::<FUSED>(taken, of_row[column], at + row);
            }
            *state = taken;
        }
    }

    /// The state of every `step`th element from the `first` one on, which were taken as if they were all.
    #[inline(always)]
    fn spread(&self, state: Self::State, step: usize, first: usize) -> Self::State {
        let _ = (step, first);
        state
    }

    /// Of `a`'s elements, then `b`'s.
    fn join<const FUSED: bool>(&self, a: Self::State, b: Self::State) -> Self::State;
}

/// Sums that go on side by side: in vectors, or one by one.
pub(super) const LANES: usize = 32;
pub(super) const FEW_LANES: usize = 4;
/// Neighbours that may be a block of their own.
const LEAST_BLOCK: usize = 16;
/// Elements of a sum after which it is joined.
pub(super) const LONGEST: usize = 64;
/// Neighbours that are fewer are looked up with those that come next: a run of their own takes as long as several elements.
const FEW: usize = 24;
/// Elements of rows that take so short that looking one up counts, and of those that are looked up together: what the
/// nearest cache holds beside their states.
const SHORT: usize = 512;
const TOGETHER: usize = 4096;
/// Lanes of rows so short that joining more takes longer than these rows, and their elements at most.
pub(super) const SHORT_LANES: usize = 8;
const FOR_SHORT_LANES: usize = 128;
/// Elements of an output that are one piece of work.
const PART: usize = 64 << 10;
/// The same where outputs are taken side by side, how many of them at most, and how many elements in all.
const PART_ROWS: usize = 4096;
/// Rows that follow one another and are one piece of work, at least.
const LEAST_ROWS: usize = 256;
const COLUMNS: usize = Lanes::MOST;
const PART_ELEMENTS: usize = 1 << 20;
/// Makes outputs of their states.
pub(super) type Finish<'a, S> = dyn Fn(&[S], &mut [u8]) + Sync + 'a;

/// Reduces the elements of `data` in `space` to outputs of `size` bytes.
pub(super) fn reduce<W: Copy, F: Fold<W>>(
    op: &'static str,
    fold: &F,
    space: &Space,
    data: &dyn Read<W>,
    (out, size): (&mut [u8], usize),
    finish: &Finish<'_, F::State>,
) -> Result<()> {
    let (length, outputs) = (space.length(), out.len() / size);
    // What has places has them in one dimension, so that rows abreast begin with every so many.
    let abreast = match F::HAS_PLACES && space.reduced.len() > 1 {
        true => None,
        false => Lanes::rows_abreast(space, F::ENOUGH_ABREAST),
    };
    let enough = match space.is_one_run() {
        true => F::ENOUGH_IN_RUNS,
        false => F::ENOUGH,
    };
    let are_beside =
        abreast.is_some_and(|rows| rows > 1) || Lanes::suit(space, outputs, size_of::<W>(), enough);
    let (part, width) = match (are_beside, abreast) {
        (true, Some(abreast)) => {
            let columns = space.kept.last().copied().unwrap_or(1);
            let rows = (PART / columns).max(LEAST_ROWS) / abreast * abreast;
            (rows, columns * (rows / length.max(1)).max(1))
        }
        (true, None) => {
            let width = outputs.clamp(1, COLUMNS);
            ((PART_ELEMENTS / width).clamp(LONGEST, PART_ROWS), width)
        }
        (false, _) => (PART, (PART / length.max(1)).max(1)),
    };
    let folder = Folder {
        fold,
        space,
        data,
        abreast,
    };
    let work = |from: usize, range: std::ops::Range<usize>, states: &mut [F::State]| {
        vectorised(Work {
            folder: &folder,
            are_beside,
            from,
            range,
            states,
        });
    };
    let parts = length.div_ceil(part);
    if parts == 1 {
        let is_much = outputs.saturating_mul(length) > parallel::PARALLEL;
        let pieces = out.chunks_mut(width * size).enumerate();
        parallel::share(is_much, pieces, |(at, out)| {
            let mut states = vec![fold.empty(); out.len() / size];
            work(at * width, 0..length, &mut states);
            finish(&states, out);
        });
        return Ok(());
    }
    let mut states = host_vec(op, outputs * parts)?;
    states.resize(outputs * parts, fold.empty());
    let pieces = states
        .chunks_mut(outputs)
        .enumerate()
        .flat_map(|(at, row)| {
            let pieces = row.chunks_mut(width).enumerate();
            pieces.map(move |(column, states)| (at, column * width, states))
        });
    parallel::share(true, pieces, |(at, from, states)| {
        work(from, at * part..length.min((at + 1) * part), states);
    });
    let mut apart = outputs;
    while apart < states.len() {
        for pair in states.chunks_mut(2 * apart) {
            let (first, second) = pair.split_at_mut(apart.min(pair.len()));
            vectorised(Pairs {
                fold,
                first: &mut first[..outputs],
                second: second.get(..outputs).unwrap_or_default(),
            });
        }
        apart *= 2;
    }
    let pieces = states[..outputs].chunks(COLUMNS);
    for (states, out) in pieces.zip(out.chunks_mut(COLUMNS * size)) {
        finish(states, out);
    }
    Ok(())
}

/// States of one part with those of a later one.
struct Pairs<'a, W, F: Fold<W>> {
    fold: &'a F,
    first: &'a mut [F::State],
    second: &'a [F::State],
}

impl<W, F: Fold<W>> Loops for Pairs<'_, W, F> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (first, &second) in self.first.iter_mut().zip(self.second) {
            *first = self.fold.join::<FUSED>(*first, second);
        }
    }
}

/// States joined two by two, however many come: a chain of joins is as long as their number has bits.
struct Tower<'a, W, F: Fold<W>> {
    fold: &'a F,
    /// Of 1, 2, 4, ... states, where `count` has the bit.
    levels: Vec<F::State>,
    count: usize,
}

impl<'a, W, F: Fold<W>> Tower<'a, W, F> {
    fn new(fold: &'a F) -> Self {
        Self {
            fold,
            levels: Vec::new(),
            count: 0,
        }
    }

    fn push(&mut self, mut state: F::State) {
        let full = self.count.trailing_ones() as usize;
        for level in &self.levels[..full] {
            state = self.fold.join::<false>(*level, state);
        }
        match self.levels.get_mut(full) {
            Some(level) => *level = state,
            None => self.levels.push(state),
        }
        self.count += 1;
    }

    /// The state of all, and none is left.
    fn take(&mut self) -> F::State {
        let mut top = None;
        for (bit, &earlier) in self.levels.iter().enumerate() {
            if self.count >> bit & 1 == 1 {
                top = Some(top.map_or(earlier, |later| self.fold.join::<false>(earlier, later)));
            }
        }
        self.count = 0;
        top.unwrap_or_else(|| self.fold.empty())
    }
}

/// The states of outputs from `from` on, each of its elements in `range`.
struct Work<'a, W, F: Fold<W>> {
    folder: &'a Folder<'a, W, F>,
    are_beside: bool,
    from: usize,
    range: std::ops::Range<usize>,
    states: &'a mut [F::State],
}

impl<W: Copy, F: Fold<W>> Loops for Work<'_, W, F> {
    const WIDEST: bool = F::WIDEST;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let (folder, from, range) = (self.folder, self.from, self.range);
        match (self.are_beside, FUSED) {
            (true, _) => folder.beside::<FUSED>(from, range, self.states),
            (false, true) => folder.rows::<LANES, FUSED>(from, range, self.states),
            (false, false) => folder.rows::<FEW_LANES, FUSED>(from, range, self.states),
        }
    }
}

pub(super) struct Folder<'a, W, F> {
    pub fold: &'a F,
    pub space: &'a Space,
    pub data: &'a dyn Read<W>,
    /// [`Lanes::rows_abreast`], of outputs that go side by side.
    pub abreast: Option<usize>,
}

impl<W: Copy, F: Fold<W>> Folder<'_, W, F> {
    /// The states of outputs from `from` on, each of its elements in `range`.
    #[inline(always)]
    fn rows<const LANES: usize, const FUSED: bool>(
        &self,
        from: usize,
        range: std::ops::Range<usize>,
        states: &mut [F::State],
    ) {
        let length = self.space.length();
        let short = match F::HAS_BLOCKS {
            true => LEAST_BLOCK..=SHORT,
            false => SHORT_LANES..=FOR_SHORT_LANES,
        };
        let is_whole = range == (0..length);
        if (FUSED || !F::HAS_BLOCKS)
            && is_whole
            && short.contains(&length)
            && self.space.is_one_run()
        {
            return self.short_rows::<LANES, FUSED>(from, length, states);
        }
        let stride = self.reduced_stride();
        let are_few = matches!(self.space.reduced[..], [.., _, inner] if inner < FEW);
        let (mut buffer, mut places) = (Vec::new(), Vec::new());
        let mut tower = Tower::new(self.fold);
        let mut lanes = [self.fold.empty(); LANES];
        for (at, state) in states.iter_mut().enumerate() {
            let base = self.space.first(from + at);
            let (mut index, mut taken) = (range.start, 0);
            while index < range.end {
                let most = LONGEST * LANES;
                let run = match are_few {
                    true => {
                        let count = most.min(range.end - index);
                        self.space.places(index, count, &mut places);
                        self.data.each(&places, base, &mut buffer)
                    }
                    false => {
                        let (from_first, count) = self.next_run(index, range.end, most);
                        self.data.run(base + from_first, stride, count, &mut buffer)
                    }
                };
                let count = run.len();
                let block = match taken == 0 && count >= LEAST_BLOCK {
                    true => self.fold.block::<FUSED>(run, index),
                    false => None,
                };
                if block.is_none() {
                    self.run::<LANES, FUSED>(&mut lanes, run, index);
                    taken += count.next_multiple_of(LANES);
                }
                index += count;
                let part = match block {
                    Some(block) => block,
                    None if taken < LONGEST * LANES && index < range.end => continue,
                    None => {
                        taken = 0;
                        let part = self.joined::<LANES, FUSED>(&lanes);
                        lanes = [self.fold.empty(); LANES];
                        part
                    }
                };
                if tower.count == 0 && index == range.end {
                    *state = part;
                } else {
                    tower.push(part);
                }
            }
            if tower.count > 0 {
                *state = tower.take();
            }
        }
    }

    /// The same of rows that come one after the other: several are looked up together.
    #[inline(always)]
    fn short_rows<const LANES: usize, const FUSED: bool>(
        &self,
        from: usize,
        length: usize,
        states: &mut [F::State],
    ) {
        let together = TOGETHER / length;
        let mut buffer = Vec::new();
        for (part, states) in states.chunks_mut(together).enumerate() {
            let start = self.space.first(from + part * together);
            let rows = self.data.run(start, 1, states.len() * length, &mut buffer);
            for (state, row) in states.iter_mut().zip(rows.chunks_exact(length)) {
                *state = match self.fold.block::<FUSED>(row, 0) {
                    Some(block) => block,
                    None if !F::HAS_BLOCKS => self.short_row::<FUSED>(row),
                    None => {
                        let mut lanes = [self.fold.empty(); LANES];
                        self.run::<LANES, FUSED>(&mut lanes, row, 0);
                        self.joined::<LANES, FUSED>(&lanes)
                    }
                };
            }
        }
    }

    /// One of them in few lanes.
    #[inline(always)]
    fn short_row<const FUSED: bool>(&self, row: &[W]) -> F::State {
        let mut lanes = [self.fold.empty(); SHORT_LANES];
        let (whole, rest) = row.as_chunks::<SHORT_LANES>();
        let mut at = 0;
        for chunk in whole {
            for lane in 0..SHORT_LANES {
                lanes[lane] = self.fold.take::<FUSED>(lanes[lane], chunk[lane], at + lane);
            }
            at += SHORT_LANES;
        }
        // By themselves, so that lanes stay a vector.
        let mut last = self.fold.empty();
        for (&x, at) in rest.iter().zip(at..) {
            last = self.fold.take::<FUSED>(last, x, at);
        }
        let state = self.joined::<SHORT_LANES, FUSED>(&lanes);
        self.fold.join::<FUSED>(state, last)
    }

    #[inline(always)]
    fn run<const LANES: usize, const FUSED: bool>(
        &self,
        lanes: &mut [F::State; LANES],
        run: &[W],
        index: usize,
    ) {
        if F::BY_BLOCKS {
            for (at, &x) in run.iter().enumerate() {
                let lane = &mut lanes[at % LANES];
                *lane = self.fold.take::<FUSED>(*lane, x, index + at);
            }
            return;
        }
        let mut local = *lanes;
        let whole = run.chunks_exact(LANES);
        let rest = whole.remainder();
        let mut at = index;
        for chunk in whole {
            for lane in 0..LANES {
                local[lane] = self.fold.take::<FUSED>(local[lane], chunk[lane], at + lane);
            }
            at += LANES;
        }
        for (lane, &x) in local.iter_mut().zip(rest) {
            *lane = self.fold.take::<FUSED>(*lane, x, at);
            at += 1;
        }
        *lanes = local;
    }

    #[inline(always)]
    fn joined<const LANES: usize, const FUSED: bool>(&self, lanes: &[F::State; LANES]) -> F::State {
        let mut lanes = *lanes;
        let mut apart = LANES / 2;
        while apart > 0 {
            for lane in 0..apart {
                lanes[lane] = self.fold.join::<FUSED>(lanes[lane], lanes[lane + apart]);
            }
            apart /= 2;
        }
        lanes[0]
    }

    fn reduced_stride(&self) -> isize {
        self.space.reduced_strides.last().copied().unwrap_or(0)
    }

    /// The run along the innermost reduced dimension that begins with element `at`, before `end`: where
    /// it starts from its output's first element, and how many it has, `most` at most.
    #[inline(always)]
    fn next_run(&self, at: usize, end: usize, most: usize) -> (isize, usize) {
        let space = self.space;
        let inner = space.reduced.last().copied().unwrap_or(1);
        let start = space.along(at);
        (start, (inner - at % inner).min(end - at).min(most))
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::super::Along;
    use super::super::lanes::Plain;
    use super::super::number::{largest, sum};
    use super::*;
    use crate::layout::Layout;

    struct Total;

    impl Fold<f32> for Total {
        type State = f32;

        fn empty(&self) -> f32 {
            0.0
        }

        fn take<const FUSED: bool>(&self, state: f32, x: f32, _: usize) -> f32 {
            state + x
        }

        fn join<const FUSED: bool>(&self, a: f32, b: f32) -> f32 {
            a + b
        }
    }

    /// The loops of processors without wide vectors, which those that run tests seldom are.
    #[test]
    fn loops_without_vectors() {
        let data: Vec<f32> = (0..15_000).map(|at| (at % 97) as f32 - 31.0).collect();
        for (axis, outputs) in [(0, 3000), (1, 5)] {
            let along = Along {
                axes: smallvec![axis],
                keep: false,
            };
            let space = Space::of(&Layout::contiguous([5, 3000]), &along, false);
            let folder = Folder {
                fold: &Total,
                space: &space,
                data: &Plain(&data),
                abreast: None,
            };
            let [slow, wide] = [false, true].map(|fused| {
                let mut states = vec![0.0; outputs];
                let work = Work {
                    folder: &folder,
                    are_beside: axis == 0,
                    from: 0,
                    range: 0..space.length(),
                    states: &mut states,
                };
                match fused {
                    true => work.run::<true>(),
                    false => work.run::<false>(),
                }
                states
            });
            assert_eq!(slow, wide);
            assert_eq!(
                slow[0],
                sum::<_, f32, false, false>(&slow[..1], |x| x) as f32
            );
            let all: f64 = slow.iter().map(|&x| f64::from(x)).sum();
            assert_eq!(all, sum::<_, f32, false, false>(&data, |x| x));
            assert_eq!(largest::<_, false, true>(&data), 65.0);
        }
    }
}
