//! The CPU twin: rows of the axis one after the other, in pieces that threads share.

mod loops;

use loops::{Few, FewSums, Line, Short, Strip};

use super::OP;
use crate::cpu::{host_vec, parallel, vectorised};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Layout, SliceRange, Strides, merge, place};
use crate::ops::reduce::{Number, Read};
use crate::road::{HostInput, HostOutput};
use crate::shape::Dims;

/// Elements that are summed one after the other; then their sum goes to the base, in two parts.
const RUN: usize = 64;
/// Runs of a line that go on side by side.
const CHAINS: usize = 8;
/// Elements of a piece that is work enough for a thread.
const PIECE: usize = 64 << 10;
/// Neighbouring lines that go on side by side, whose sums stay in the first cache; at least, where threads share them, and of
/// how many rows at most.
const STRIP: usize = 1024;
const LEAST_STRIP: usize = 256;
const MOST_ROWS: usize = 4096;

/// Fewer neighbouring lines go one element after the other, as their rows are no vectors.
const FEW: usize = 16;

/// What sums are kept in: `added` to a base, in two parts, loses nothing but in its second one.
pub(super) trait Sum: Number<Wide = Self> + Default {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        <Self as Number>::add(self, other)
    }

    fn added(base: [Self; 2], sum: Self) -> [Self; 2];
}

macro_rules! floats {
    ($float:ty) => {
        impl Sum for $float {
            /// Knuth's two-sum, whose rest is none of what is not finite.
            #[inline(always)]
            fn added([base, rest]: [Self; 2], sum: Self) -> [Self; 2] {
                let total = base + sum;
                let of_base = total - sum;
                let lost = (base - of_base) + (sum - (total - of_base));
                let lost = if lost.is_finite() { lost } else { 0.0 };
                [total, rest + lost]
            }
        }
    };
}
floats!(f32);
floats!(f64);

macro_rules! integers {
    ($integer:ty) => {
        impl Sum for $integer {
            #[inline(always)]
            fn added([base, rest]: [Self; 2], sum: Self) -> [Self; 2] {
                [base.wrapping_add(sum), rest]
            }
        }
    };
}
integers!(i32);
integers!(u32);

/// Bools as numbers.
struct Truths<'a>(&'a [u8]);

impl Read<u32> for Truths<'_> {
    fn run<'a>(
        &'a self,
        start: isize,
        stride: isize,
        count: usize,
        buffer: &'a mut Vec<u32>,
    ) -> &'a [u32] {
        buffer.clear();
        if stride == 1 {
            let run = &self.0[start as usize..][..count];
            buffer.extend(run.iter().map(|&x| u32::from(x != 0)));
            return buffer;
        }
        let place = |at: usize| (start + at as isize * stride) as usize;
        buffer.extend((0..count).map(|at| u32::from(self.0[place(at)] != 0)));
        buffer
    }

    fn each<'a>(&'a self, places: &[isize], from: isize, buffer: &'a mut Vec<u32>) -> &'a [u32] {
        buffer.clear();
        let place = |place: &isize| (place + from) as usize;
        buffer.extend(places.iter().map(|at| u32::from(self.0[place(at)] != 0)));
        buffer
    }
}

pub(super) fn twin(axis: usize, x: &HostInput<'_>, output: &mut HostOutput<'_>) -> Result<()> {
    match x.dtype {
        DType::F32 => typed::<f32>(axis, x, output),
        DType::F64 => typed::<f64>(axis, x, output),
        DType::F16 => typed::<half::f16>(axis, x, output),
        DType::BF16 => typed::<half::bf16>(axis, x, output),
        DType::I32 => typed::<i32>(axis, x, output),
        DType::U32 => typed::<u32>(axis, x, output),
        DType::Bool => of(axis, x.layout, &Truths(x.elements()), output),
    }
}

fn typed<T: Number<Wide: Sum>>(
    axis: usize,
    x: &HostInput<'_>,
    output: &mut HostOutput<'_>,
) -> Result<()> {
    of(axis, x.layout, &T::reader(x.elements()), output)
}

fn of<W: Sum>(
    axis: usize,
    layout: &Layout,
    data: &dyn Read<W>,
    output: &mut HostOutput<'_>,
) -> Result<()> {
    let shape = layout.shape();
    let count = layout.elements();
    let length = shape[axis];
    let inner: usize = shape.iter().skip(axis + 1).product();
    let out: &mut [W] = output.elements();
    let Some(out) = out.get_mut(..count).filter(|_| count > 0) else {
        return Ok(());
    };
    let first = |axes: std::ops::Range<usize>| -> Result<Layout> {
        let ranges = (0..shape.rank()).map(|at| match axes.contains(&at) {
            true => SliceRange::from(..),
            false => SliceRange::from(0..1),
        });
        layout.slice(&ranges.collect::<smallvec::SmallVec<[SliceRange; 6]>>())
    };
    let outer = merge(&[&first(0..axis)?]);
    let mut across = merge(&[&first(axis + 1..shape.rank())?]);
    if across.dims.is_empty() {
        across.dims.push(1);
        across.strides[0].push(0);
    }
    let lines = Lines {
        data,
        offset: layout.offset() as isize,
        outer: (outer.dims, outer.strides[0].clone()),
        across: (across.dims, across.strides[0].clone()),
        step: layout.strides()[axis],
        inner,
    };
    lines.write(out, length)
}

/// A tensor's elements as lines along the axis, of which `inner` are neighbours in the output.
struct Lines<'a, W> {
    data: &'a dyn Read<W>,
    offset: isize,
    /// Dimensions before the axis, and behind it.
    outer: (Dims, Strides),
    across: (Dims, Strides),
    step: isize,
    inner: usize,
}

impl<W: Sum> Lines<'_, W> {
    fn write(&self, out: &mut [W], length: usize) -> Result<()> {
        let inner = self.inner;
        let is_much = out.len() > parallel::PARALLEL;
        let of_place = length * inner;
        let places = out.len() / of_place;
        let is_shared = is_much && places < 4 * parallel::width() && parallel::width() > 1;
        if is_shared && inner >= 2 * LEAST_STRIP && length <= MOST_ROWS {
            self.by_strips(out, length);
            return Ok(());
        }
        // Places before the axis are enough for all threads, or each is cut along the axis.
        let rows = match is_shared {
            true => (PIECE / inner).max(RUN),
            false => length,
        };
        if rows >= length {
            let together = match is_much {
                true => (PIECE / of_place).max(1),
                false => places,
            };
            let pieces = out.chunks_mut(of_place * together).enumerate();
            parallel::share(is_much, pieces, |(at, out)| {
                self.places(at * together, length, out);
            });
            return Ok(());
        }
        let pieces = length.div_ceil(rows);
        // Of each piece what those before it sum to: at first its own sums, a piece later.
        let mut bases: Vec<[W; 2]> = host_vec(OP, places * pieces * inner)?;
        bases.resize(places * pieces * inner, [W::default(); 2]);
        let of_pieces = bases.chunks_mut(inner).enumerate();
        parallel::share(true, of_pieces, |(at, sums)| {
            let (place, piece) = (at / pieces, at % pieces);
            if piece + 1 < pieces {
                self.sums(place, piece * rows, rows, sums);
            }
        });
        for of_place in bases.chunks_mut(pieces * inner) {
            for column in 0..inner {
                let mut base = [W::default(); 2];
                for sum in of_place.iter_mut().skip(column).step_by(inner) {
                    let [total, rest] = W::added(base, sum[0]);
                    let with = [total, rest.plus(sum[1])];
                    *sum = std::mem::replace(&mut base, with);
                }
            }
        }
        let of_places = out.chunks_mut(of_place);
        let of_pieces = of_places.flat_map(|out| out.chunks_mut(rows * inner).enumerate());
        let all = of_pieces.enumerate().zip(bases.chunks(inner));
        parallel::share(true, all, |((at, (piece, out)), bases)| {
            self.piece(at / pieces, piece * rows, bases, out);
        });
        Ok(())
    }

    /// Threads have neighbouring lines, whose parts of rows are apart in the output.
    fn by_strips(&self, out: &mut [W], length: usize) {
        let width = self.inner.div_ceil(4 * parallel::width());
        let width = width.clamp(LEAST_STRIP, STRIP).next_multiple_of(RUN);
        let mut strips = Vec::new();
        for (place, out) in out.chunks_mut(length * self.inner).enumerate() {
            let firsts = (0..self.inner).step_by(width);
            let mut of_place: Vec<_> = firsts
                .map(|first| (place, first, Vec::with_capacity(length)))
                .collect();
            for row in out.chunks_mut(self.inner) {
                for ((.., rows), part) in of_place.iter_mut().zip(row.chunks_mut(width)) {
                    rows.push(part);
                }
            }
            strips.append(&mut of_place);
        }
        parallel::share(true, strips.into_iter(), |(place, first, rows)| {
            let width = width.min(self.inner - first);
            vectorised(Strip {
                lines: self,
                start: self.start(place, 0),
                runs: &self.runs(first, width),
                bases: vec![[W::default(); 2]; width],
                rows: rows.into_iter(),
            });
        });
    }

    /// Running sums of whole places before the axis, from the `first`th on.
    fn places(&self, first: usize, length: usize, out: &mut [W]) {
        let of_place = length * self.inner;
        if of_place <= RUN * CHAINS {
            return vectorised(Short {
                lines: self,
                first,
                length,
                out,
            });
        }
        for (at, out) in out.chunks_mut(of_place).enumerate() {
            self.piece(first + at, 0, &[], out);
        }
    }

    /// Whether the elements of all places before the axis follow each other, as in the output.
    fn lie_together(&self, length: usize) -> bool {
        let (outer, strides) = &self.outer;
        let of_place = (length * self.inner) as isize;
        let are_places = match (&outer[..], &strides[..]) {
            ([], _) => true,
            ([_], [stride]) => *stride == of_place,
            _ => false,
        };
        are_places && self.are_rows()
    }

    /// Whether rows of neighbouring lines follow each other.
    fn are_rows(&self) -> bool {
        let (across, strides) = &self.across;
        let is_run = self.inner == 1 || (across.len() == 1 && strides[0] == 1);
        is_run && self.step == self.inner as isize
    }

    /// Running sums of some rows of a place before the axis, from `row` on; `bases` are what comes before, if anything.
    fn piece(&self, place: usize, row: usize, bases: &[[W; 2]], out: &mut [W]) {
        let start = self.start(place, row);
        if self.inner == 1 {
            let base = bases.first().copied().unwrap_or_default();
            return vectorised(Line {
                lines: self,
                start,
                base,
                out,
            });
        }
        if self.inner < FEW {
            return vectorised(Few {
                lines: self,
                start,
                bases,
                out,
            });
        }
        for first in (0..self.inner).step_by(STRIP) {
            let width = STRIP.min(self.inner - first);
            let rows = out.chunks_mut(self.inner);
            vectorised(Strip {
                lines: self,
                start,
                runs: &self.runs(first, width),
                bases: match bases.get(first..first + width) {
                    Some(bases) => bases.to_vec(),
                    None => vec![[W::default(); 2]; width],
                },
                rows: rows.map(|row| &mut row[first..first + width]),
            });
        }
    }

    /// The sums of so many rows from `row` on.
    fn sums(&self, place: usize, row: usize, rows: usize, sums: &mut [[W; 2]]) {
        let start = self.start(place, row);
        let mut buffer = Vec::new();
        if self.inner == 1 {
            vectorised(|| {
                let mut base = [W::default(); 2];
                for from in (0..rows).step_by(RUN * CHAINS) {
                    let count = (RUN * CHAINS).min(rows - from);
                    let at = start + from as isize * self.step;
                    let run = self.data.run(at, self.step, count, &mut buffer);
                    let mut chains = [W::default(); CHAINS];
                    for given in run.chunks(CHAINS) {
                        for (sum, &x) in chains.iter_mut().zip(given) {
                            *sum = sum.plus(x);
                        }
                    }
                    for sum in chains {
                        base = W::added(base, sum);
                    }
                }
                sums[0] = base;
            });
            return;
        }
        if self.inner < FEW {
            return vectorised(FewSums {
                lines: self,
                start,
                rows,
                sums,
            });
        }
        for (strip, sums) in sums.chunks_mut(STRIP).enumerate() {
            let runs = self.runs(strip * STRIP, sums.len());
            let mut of_run = vec![W::default(); sums.len()];
            for from in (0..rows).step_by(RUN) {
                of_run.fill(W::default());
                for row in from..rows.min(from + RUN) {
                    let at = start + row as isize * self.step;
                    self.take(&runs, at, &mut buffer, &mut of_run, |_, _| {});
                }
                for (base, &sum) in sums.iter_mut().zip(&of_run) {
                    *base = W::added(*base, sum);
                }
            }
        }
    }

    /// Where the elements of [`RUN`] rows are from the first one on, unless they follow each other.
    fn places_of_rows(&self) -> Vec<isize> {
        if self.are_rows() {
            return Vec::new();
        }
        let (dims, strides) = &self.across;
        let columns: Vec<isize> = (0..self.inner).map(|at| place(at, dims, strides)).collect();
        let rows = (0..RUN as isize).map(|row| row * self.step);
        let of_row = |row: isize| columns.iter().map(move |column| row + column);
        rows.flat_map(of_row).collect()
    }

    /// So many elements of rows from a row's start on, with [`Lines::places_of_rows`].
    fn rows<'b>(
        &'b self,
        start: isize,
        count: usize,
        places: &[isize],
        buffer: &'b mut Vec<W>,
    ) -> &'b [W] {
        match places.get(..count) {
            Some(places) => self.data.each(places, start, buffer),
            None => self.data.run(start, 1, count, buffer),
        }
    }

    fn start(&self, outer: usize, row: usize) -> isize {
        let (dims, strides) = &self.outer;
        self.offset + place(outer, dims, strides) + row as isize * self.step
    }

    /// Runs of the neighbouring lines from `first` on: how far from the first line they are, and how many.
    fn runs(&self, first: usize, count: usize) -> Vec<(isize, usize)> {
        let (dims, strides) = &self.across;
        let last = dims.last().copied().unwrap_or(1);
        let mut runs = Vec::new();
        let mut at = first;
        while at < first + count {
            let run = (last - at % last).min(first + count - at);
            runs.push((place(at, dims, strides), run));
            at += run;
        }
        runs
    }

    /// Adds a row to sums, and tells of each run of it.
    #[inline(always)]
    fn take(
        &self,
        runs: &[(isize, usize)],
        at: isize,
        buffer: &mut Vec<W>,
        sums: &mut [W],
        mut told: impl FnMut(usize, &[W]),
    ) {
        let stride = self.across.1.last().copied().unwrap_or(0);
        let mut column = 0;
        for &(from, count) in runs {
            let run = self.data.run(at + from, stride, count, buffer);
            let sums = &mut sums[column..column + count];
            for (sum, &x) in sums.iter_mut().zip(run) {
                *sum = sum.plus(x);
            }
            told(column, sums);
            column += count;
        }
    }
}
