//! Elements as the loops of reductions and norms take them: those of one output after the other, or an element of each
//! of many outputs side by side.

use super::number::Number;
use super::space::Space;
use crate::cpu::gather;
use crate::cpu::narrow::{self, Narrow};

/// Elements as loops take them, so that these are compiled once for all that are widened to one type.
pub(in crate::ops) trait Read<W>: Sync {
    /// So many from `start` on, `stride` apart: where they lie, or in `buffer`.
    fn run<'a>(
        &'a self,
        start: isize,
        stride: isize,
        count: usize,
        buffer: &'a mut Vec<W>,
    ) -> &'a [W];

    /// Those that are so far from each of some places, in `buffer`.
    fn each<'a>(&'a self, places: &[isize], from: isize, buffer: &'a mut Vec<W>) -> &'a [W];
}

/// Elements that are taken as they are.
pub(super) struct Plain<'a, W>(pub &'a [W]);

impl<W: bytemuck::Pod + Sync> Read<W> for Plain<'_, W> {
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
        buffer.resize(count, W::zeroed());
        gather(self.0, start, stride, buffer);
        buffer
    }

    fn each<'a>(&'a self, places: &[isize], from: isize, buffer: &'a mut Vec<W>) -> &'a [W] {
        buffer.resize(places.len(), W::zeroed());
        for (to, place) in buffer.iter_mut().zip(places) {
            *to = self.0[(place + from) as usize];
        }
        buffer
    }
}

/// f16 or bf16, taken as f32.
pub(super) struct Halves<'a, T>(pub &'a [T]);

/// Halves that are gathered before they are widened, since that is vectors' work.
const GATHERED: usize = 256;

impl<T: Number<Wide = f32> + Narrow> Read<f32> for Halves<'_, T> {
    fn run<'a>(
        &'a self,
        start: isize,
        stride: isize,
        count: usize,
        buffer: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        buffer.resize(count, 0.0);
        if stride == 1 {
            narrow::widen(&self.0[start as usize..][..count], buffer);
            return buffer;
        }
        let mut start = start;
        for wide in buffer.chunks_mut(GATHERED) {
            let halves = &mut [T::zeroed(); GATHERED][..wide.len()];
            gather(self.0, start, stride, halves);
            narrow::widen(halves, wide);
            start += GATHERED as isize * stride;
        }
        buffer
    }

    fn each<'a>(&'a self, places: &[isize], from: isize, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        buffer.resize(places.len(), 0.0);
        for (wide, places) in buffer.chunks_mut(GATHERED).zip(places.chunks(GATHERED)) {
            let halves = &mut [T::zeroed(); GATHERED][..wide.len()];
            for (half, place) in halves.iter_mut().zip(places) {
                *half = self.0[(place + from) as usize];
            }
            narrow::widen(halves, wide);
        }
        buffer
    }
}

/// Outputs side by side: an element of each is a row, so that vectors go across outputs, however short these are.
#[derive(Default)]
pub(in crate::ops) struct Lanes {
    count: usize,
    /// [`Lanes::rows_abreast`].
    abreast: Option<usize>,
    /// Where their first elements are: so far apart from the first on,
    start: isize,
    stride: isize,
    /// or, unless there is none, in these places.
    places: Vec<isize>,
}

impl Lanes {
    /// Outputs at most.
    pub const MOST: usize = 4096;
    /// The same where their elements are not neighbours: the lines that they lie on stay in the first cache for the rows
    /// that come next.
    pub const APART: usize = 256;
    /// Outputs whose elements lie evenly that are enough without those after them (6 Mi of f32 by 9 rows of 32 to 63
    /// columns, ms: `max` 7.6 looked up together and 3.6 to 4.4 so, `sum` 7.3 and 3.2, `softmax` 11.3 and 5.3 to 6.6,
    /// `argmax` 8.7 and 6 to 9; of 16 columns most are slower so; of every second column the same).
    const ENOUGH: usize = 32;
    /// Bytes of a row up to which its outputs go one by one, whose rows are near then: loops for vectors begin with more
    /// (2 M of f32 in 8 columns, ms: `argmax` 8.0 and 1.2, `logsumexp` 8.0 and 1.4, `max` 4.7 and 1.0; in 16 3.1 and 2.2, 8.0 and 2.2,
    /// 2.5 and 1.9; of f64 `sum` in 16 columns 1.0 and 4.0).
    const FEW_BYTES: usize = 64;
    /// Elements of rows that go abreast, and how many steps there are for them then at least.
    const WIDE: usize = 512;
    const STEPS: usize = 8;

    /// Where all that outputs side by side have follows one another in memory, row by row: how many of these rows go abreast, as one
    /// that is long enough for vectors. A power of two, since their states are joined by halves.
    pub fn rows_abreast(space: &Space, enough: usize) -> Option<usize> {
        let (&columns, &across) = space.kept.last().zip(space.kept_strides.last())?;
        let (&rows, &step) = space.reduced.last().zip(space.reduced_strides.last())?;
        let is_plane = across == 1 && step == columns as isize && columns <= Self::MOST;
        (is_plane && rows * columns >= enough).then(|| {
            let most = (Self::WIDE / columns).min(rows / Self::STEPS);
            1 << most.max(1).ilog2()
        })
    }

    /// Those of rows that follow one another, where they do.
    pub fn of(abreast: Option<usize>) -> Self {
        Self {
            abreast,
            ..Self::default()
        }
    }

    /// Whether a reduction of elements of so many bytes takes outputs side by side, where those of so many elements that are
    /// neighbours are faster one by one.
    pub fn suit(space: &Space, outputs: usize, bytes: usize, enough: usize) -> bool {
        let step = |stride: Option<&isize>| match stride.map_or(0, |stride| stride.unsigned_abs()) {
            0 => usize::MAX,
            step => step,
        };
        let kept = space.kept_strides.iter();
        let across = kept.map(|stride| step(Some(stride))).min();
        let across = across.unwrap_or(usize::MAX);
        let (last, outer) = match &space.reduced_strides[..] {
            [outer @ .., last] => (step(Some(last)), step(outer.last())),
            [] => (usize::MAX, usize::MAX),
        };
        let run = space.reduced.last().map_or(1, |&size| size);
        // Short, and either all there is or with the next one beyond the other outputs.
        let are_short = run < enough && (space.length() < enough || across < outer);
        // Equally near are windows that overlap: columns unless they are longer than rows.
        let row = space.kept.last().map_or(1, |&size| size);
        let are_columns = across < last || across == last && last < usize::MAX && run <= row;
        (outputs > 1 && are_short) || (outputs > Self::FEW_BYTES / bytes.max(4) && are_columns)
    }

    /// From an output on as many as go at once, of `left` at most.
    pub fn take(&mut self, space: &Space, first: usize, left: usize) -> usize {
        let inner = space.kept.last().copied().unwrap_or(1);
        self.stride = space.kept_strides.last().copied().unwrap_or(0);
        self.start = space.first(first);
        self.places.clear();
        let run = (inner - first % inner).min(left);
        if self.abreast.is_some() {
            self.count = run;
            return run;
        }
        self.count = match self.stride {
            1 => run.min(Self::MOST),
            _ => run.min(Self::APART),
        };
        if run < left.min(Self::ENOUGH) {
            self.count = left.min(Self::APART);
            self.places.reserve(self.count);
            while self.places.len() < self.count {
                let at = first + self.places.len();
                let start = space.first(at);
                let run = (inner - at % inner).min(self.count - self.places.len());
                let run = (0..run as isize).map(|at| start + at * self.stride);
                self.places.extend(run);
            }
        }
        self.count
    }

    /// So many elements of rows that follow one another.
    #[inline(always)]
    pub fn rows<'a, W: Copy>(
        &self,
        data: &'a dyn Read<W>,
        from: isize,
        count: usize,
        buffer: &'a mut Vec<W>,
    ) -> &'a [W] {
        data.run(self.start + from, 1, count, buffer)
    }

    /// Of each the element that is so far from its first one.
    #[inline(always)]
    pub fn row<'a, W: Copy>(
        &self,
        data: &'a dyn Read<W>,
        from: isize,
        buffer: &'a mut Vec<W>,
    ) -> &'a [W] {
        match self.places.is_empty() {
            true => data.run(self.start + from, self.stride, self.count, buffer),
            false => data.each(&self.places, from, buffer),
        }
    }
}
