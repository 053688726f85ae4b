//! The CPU twin: lines one after the other or, of few long ones, parts of their range of keys, in threads that share them.

use super::keys::{self, Keyed};
use super::{Sort, Wanted};
use crate::cpu::{self, host_vec, parallel, vectorised};
use crate::dtype::{DType, by_size};
use crate::error::Result;
use crate::layout::Layout;
use crate::road::{HostInput, HostOutput};
use crate::sync::Mutex;

/// Items of a line that each of them is compared with.
const SHORT: usize = 16;
/// Items that a comparison sort has in order before all their digits are counted.
const FEW: usize = 512;
/// Bits of a digit: its 256 places to write to are what the first cache's lines and pages hold.
const DIGIT: u32 = 8;
const DIGITS: usize = 1 << DIGIT;
/// Those of f64.
const MOST_PASSES: usize = 8;
/// Elements of a line from which threads share it.
pub(super) const LONG: usize = 128 << 10;
/// Items of a line, a part, that are looked at to find where parts end.
const SAMPLES: usize = 64;
/// Of so many times as many elements as are kept most are passed by.
const SPARSE: usize = 4;
const LEAST_HELD: usize = 1024;
/// Elements that are passed by together.
const PASSED: usize = 64;

pub(super) fn twin(sort: &Sort, x: &HostInput<'_>, output: &mut HostOutput<'_>) -> Result<()> {
    match x.dtype {
        DType::F32 => typed::<f32>(sort, x, output),
        DType::F64 => typed::<f64>(sort, x, output),
        DType::F16 => typed::<half::f16>(sort, x, output),
        DType::BF16 => typed::<half::bf16>(sort, x, output),
        DType::I32 => typed::<i32>(sort, x, output),
        DType::U32 => typed::<u32>(sort, x, output),
        DType::Bool => typed::<u8>(sort, x, output),
    }
}

fn typed<T: Keyed>(sort: &Sort, x: &HostInput<'_>, output: &mut HostOutput<'_>) -> Result<()> {
    let layout = x.layout;
    let [size, kept] = sort.sizes(layout.shape());
    let count = layout.elements();
    if count == 0 || kept == 0 {
        return Ok(());
    }
    let mut copied = Vec::new();
    let x = lines_of::<T>(sort.op, x, &mut copied)?;
    let outs = count / size * kept;
    let lines = Lines {
        op: sort.op,
        x,
        size,
        kept,
        zeros: sort.has_equal_zeros(),
        flip: sort.flip(T::DTYPE),
    };
    match sort.wanted {
        Wanted::Values => {
            let out = &mut output.elements::<T::Wide>()[..outs];
            let flip = lines.flip;
            lines.write(out, &|key: u32| T::of(u64::from(key) ^ flip))
        }
        Wanted::Places { .. } => {
            let out = &mut output.elements::<u32>()[..outs];
            match T::DTYPE {
                DType::F64 => lines.write(out, &|item: u128| item as u32),
                _ => lines.write(out, &|item: u64| item as u32),
            }
        }
    }
}

/// A tensor's elements by rows: as they lie or, into what is given, copied together.
pub(super) fn lines_of<'a, T: Keyed>(
    op: &'static str,
    x: &'a HostInput<'_>,
    copied: &'a mut Vec<T>,
) -> Result<&'a [T]> {
    let (layout, elements) = (x.layout, x.elements::<T>());
    let count = layout.elements();
    if layout.is_contiguous() {
        return Ok(&elements[layout.offset()..][..count]);
    }
    *copied = host_vec(op, count)?;
    copied.resize(count, T::zeroed());
    let lines = Layout::contiguous(layout.shape());
    by_size!(x.dtype, Bits => cpu::copy::<Bits>(
        (layout, bytemuck::cast_slice(elements)),
        (&lines, bytemuck::cast_slice_mut(copied)),
    ));
    Ok(copied)
}

/// What is put in order: a key or, above a place, one; equal ones are the same.
trait Item: Ord + Copy + Send + Sync + Default {
    /// Bits of the place.
    const PLACE: u32;

    fn new(key: u64, place: usize) -> Self;
    fn key(self) -> u64;
    fn digit(self, shift: u32) -> usize;
}

macro_rules! item {
    ($item:ty, |$key:ident, $at:ident| $new:expr, $place:expr) => {
        impl Item for $item {
            const PLACE: u32 = $place;

            #[inline(always)]
            fn new($key: u64, $at: usize) -> Self {
                $new
            }

            #[inline(always)]
            fn key(self) -> u64 {
                (self >> Self::PLACE) as u64
            }

            #[inline(always)]
            fn digit(self, shift: u32) -> usize {
                (self >> shift) as usize % DIGITS
            }
        }
    };
}
item!(u32, |key, _at| key as u32, 0);
item!(u64, |key, at| key << Self::PLACE | at as u64, 32);
item!(
    u128,
    |key, at| u128::from(key) << Self::PLACE | at as u128,
    32
);

struct Lines<'a, T> {
    op: &'static str,
    x: &'a [T],
    size: usize,
    kept: usize,
    zeros: bool,
    flip: u64,
}

impl<T: Keyed> Lines<'_, T> {
    /// Writes what `told` says of the first items of each line.
    fn write<I: Item, O: Send>(
        &self,
        out: &mut [O],
        told: &(impl Fn(I) -> O + Sync),
    ) -> Result<()> {
        let (size, kept) = (self.size, self.kept);
        let lines = self.x.len() / size;
        let width = parallel::width();
        let is_shared = size >= LONG && lines < 2 * width && width > 1;
        // Each thread has its own first ones of a line that they share.
        let held_by = if is_shared { width } else { 1 };
        let is_sparse = kept < size / SPARSE / held_by;
        if is_shared {
            for (line, out) in self.x.chunks(size).zip(out.chunks_mut(kept)) {
                if self.is_in_order(line) {
                    let pieces = line.chunks(LONG).zip(out.chunks_mut(LONG)).enumerate();
                    parallel::share(true, pieces, |(at, (line, out))| {
                        self.tell_all(line, at * LONG, out, told);
                    });
                    continue;
                }
                match is_sparse {
                    true => self.first_of_long(line, out, told)?,
                    false => self.long(line, out, told)?,
                }
            }
            return Ok(());
        }
        let together = (LONG / 8 / size).max(1);
        let (room, spare) = match is_sparse {
            true => (held(kept), 0),
            false => (size, if size > FEW { size } else { 0 }),
        };
        // Each thread's, made before they start, since none of them could say that there is no memory.
        let threads = width.min(lines.div_ceil(together));
        let mut rooms = Vec::new();
        for _ in 0..threads {
            rooms.push([host_vec::<I>(self.op, room)?, host_vec(self.op, spare)?]);
        }
        let rooms = Mutex::new(rooms);
        let pieces = self
            .x
            .chunks(size * together)
            .zip(out.chunks_mut(kept * together));
        let is_much = self.x.len() > parallel::PARALLEL / 4;
        parallel::share(is_much, pieces, |(lines, out)| {
            let room = rooms.lock().pop();
            let [mut items, mut spare] = room.unwrap_or_default();
            for (line, out) in lines.chunks(size).zip(out.chunks_mut(kept)) {
                if size > FEW && self.is_in_order(line) {
                    self.tell_all(line, 0, out, told);
                    continue;
                }
                items.clear();
                let sorted = match is_sparse {
                    true => {
                        vectorised(|| self.hold(line, 0, &mut items));
                        items.sort_unstable();
                        &items
                    }
                    false => {
                        let all = line.iter().enumerate();
                        items.extend(all.map(|(place, &x)| self.item::<I>(x, place)));
                        if size <= SHORT {
                            ranked(&items, out, told);
                            continue;
                        }
                        sorted(&mut items, &mut spare, T::DTYPE)
                    }
                };
                tell(out, sorted, told);
            }
            rooms.lock().push([items, spare]);
        });
        Ok(())
    }

    #[inline(always)]
    fn item<I: Item>(&self, x: T, place: usize) -> I {
        I::new(x.key(self.zeros) ^ self.flip, place)
    }

    /// Whether a line is in order as it lies: where it is not, that shows soon.
    fn is_in_order(&self, line: &[T]) -> bool {
        let key = |x: T| x.key(self.zeros) ^ self.flip;
        let mut is_in_order = false;
        vectorised(|| {
            is_in_order = (0..line.len()).step_by(PASSED).all(|from| {
                let part = &line[from..line.len().min(from + PASSED + 1)];
                let pairs = part.iter().zip(part.iter().skip(1));
                !pairs.fold(false, |falls, (&one, &next)| falls | (key(one) > key(next)))
            });
        });
        is_in_order
    }

    /// Writes what is told of a line's elements as they lie, the first of which has that place.
    fn tell_all<I: Item, O>(
        &self,
        line: &[T],
        first: usize,
        out: &mut [O],
        told: &impl Fn(I) -> O,
    ) {
        for ((place, &x), out) in (first..).zip(line).zip(out) {
            *out = told(self.item(x, place));
        }
    }

    /// A line whose keys threads have ranges of: each goes through all of it for its own.
    fn long<I: Item, O: Send>(
        &self,
        line: &[T],
        out: &mut [O],
        told: &(impl Fn(I) -> O + Sync),
    ) -> Result<()> {
        let parts = parallel::width();
        let ends = self.ends::<I>(line, parts);
        let chunk = line.len().div_ceil(parts);
        let mut counts = vec![vec![0; parts]; parts];
        let chunks = line.chunks(chunk).enumerate().zip(&mut counts);
        parallel::share(true, chunks, |((at, xs), counts)| {
            for (i, &x) in xs.iter().enumerate() {
                let item = self.item(x, at * chunk + i);
                counts[ends.iter().filter(|&&end: &&I| end <= item).count()] += 1;
            }
        });
        let mut rest = out;
        let mut pieces = Vec::new();
        for part in 0..parts {
            let count: usize = counts.iter().map(|counts| counts[part]).sum();
            let here = count.min(rest.len());
            let (out, left) = std::mem::take(&mut rest).split_at_mut(here);
            rest = left;
            // What comes behind the first ones is not sorted.
            if here > 0 {
                let items = host_vec::<I>(self.op, count + 1)?;
                let spare = host_vec::<I>(self.op, if count > FEW { count } else { 0 })?;
                pieces.push((part, out, items, spare));
            }
        }
        parallel::share(
            true,
            pieces.into_iter(),
            |(part, out, mut items, mut spare)| {
                let from = part.checked_sub(1).map(|before| ends[before]);
                let end = ends.get(part).copied();
                // Each goes behind those before it, and stays if it is of the part: which of them do, no processor foresees.
                items.resize(items.capacity(), I::default());
                let mut count = 0;
                for (place, &x) in line.iter().enumerate() {
                    let item = self.item(x, place);
                    let is_here =
                        from.is_none_or(|from| from <= item) & end.is_none_or(|end| item < end);
                    items[count] = item;
                    count += usize::from(is_here);
                }
                items.truncate(count);
                let sorted = sorted(&mut items, &mut spare, T::DTYPE);
                tell(out, sorted, told);
            },
        );
        Ok(())
    }

    /// Items between which about as many of the line's are, one fewer than parts.
    fn ends<I: Item>(&self, line: &[T], parts: usize) -> Vec<I> {
        let step = (line.len() / (parts * SAMPLES)).max(1);
        let samples = line.iter().enumerate().step_by(step);
        let mut samples: Vec<I> = samples.map(|(at, &x)| self.item(x, at)).collect();
        samples.sort_unstable();
        (1..parts)
            .map(|part| samples[part * samples.len() / parts])
            .collect()
    }

    /// The first items of a line that threads share, of each one's part the first.
    fn first_of_long<I: Item, O>(
        &self,
        line: &[T],
        out: &mut [O],
        told: &(impl Fn(I) -> O + Sync),
    ) -> Result<()> {
        let parts = parallel::width();
        let chunk = line.len().div_ceil(parts);
        let mut firsts = Vec::new();
        for _ in 0..parts {
            firsts.push(host_vec::<I>(self.op, held(self.kept))?);
        }
        let chunks = line.chunks(chunk).enumerate().zip(&mut firsts);
        parallel::share(true, chunks, |((at, xs), items)| {
            vectorised(|| self.hold(xs, at * chunk, items));
        });
        let mut all = host_vec::<I>(self.op, firsts.iter().map(Vec::len).sum())?;
        for first in &firsts {
            all.extend_from_slice(first);
        }
        all.sort_unstable();
        tell(out, &all, told);
        Ok(())
    }

    /// Whether a key of some elements is below `end`: all are looked at, so that loops are vectors.
    #[inline(always)]
    fn is_before(&self, xs: &[T], end: u64) -> bool {
        let mut is_before = false;
        for &x in xs {
            is_before |= (x.key(self.zeros) ^ self.flip) < end;
        }
        is_before
    }

    /// Puts the first items, in any order, into `items`: what comes before the last of those that are held.
    #[inline(always)]
    fn hold<I: Item>(&self, xs: &[T], first: usize, items: &mut Vec<I>) {
        let room = held(self.kept);
        // Keys from which on none is among the first ones; of equal keys those that are held came before.
        let mut end = None;
        for (at, xs) in xs.chunks(PASSED).enumerate() {
            if end.is_some_and(|end| !self.is_before(xs, end)) {
                continue;
            }
            for (next, &x) in xs.iter().enumerate() {
                let key = x.key(self.zeros) ^ self.flip;
                if end.is_none_or(|end| key < end) {
                    items.push(I::new(key, first + at * PASSED + next));
                    if items.len() == room {
                        let last = *items.select_nth_unstable(self.kept - 1).1;
                        items.truncate(self.kept);
                        end = Some(last.key());
                    }
                }
            }
        }
        if items.len() > self.kept {
            items.select_nth_unstable(self.kept - 1);
            items.truncate(self.kept);
        }
    }
}

/// Writes what is told of the first items, as many as there is room for.
#[inline(always)]
fn tell<I: Item, O>(out: &mut [O], items: &[I], told: &impl Fn(I) -> O) {
    for (out, &item) in out.iter_mut().zip(items) {
        *out = told(item);
    }
}

/// Items that are held for so many that are kept.
fn held(kept: usize) -> usize {
    (2 * kept).max(LEAST_HELD)
}

/// Writes each of a few items behind those that come before it, without a branch for any pair of them.
#[inline(always)]
fn ranked<I: Item, O>(items: &[I], out: &mut [O], told: &impl Fn(I) -> O) {
    for (at, &item) in items.iter().enumerate() {
        let (before, behind) = items.split_at(at);
        let first = before.iter().map(|&other| u32::from(other <= item));
        let later = behind.iter().map(|&other| u32::from(other < item));
        let rank = first.sum::<u32>() + later.sum::<u32>();
        if let Some(out) = out.get_mut(rank as usize) {
            *out = told(item);
        }
    }
}

/// The items in order, here or in what is spare. From the lowest digit to the highest each moves all of them to where their
/// digits say, equal ones in the order in which they are; digits that all items share move none.
fn sorted<'a, I: Item>(items: &'a mut Vec<I>, spare: &'a mut Vec<I>, dtype: DType) -> &'a [I] {
    let count = items.len();
    if count <= FEW {
        items.sort_unstable();
        return items;
    }
    let passes = keys::bits(dtype).div_ceil(DIGIT);
    let mut counts = [[0usize; DIGITS]; MOST_PASSES];
    let counts = &mut counts[..passes as usize];
    for item in items.iter() {
        for (pass, counts) in (0..).zip(counts.iter_mut()) {
            counts[item.digit(I::PLACE + pass * DIGIT)] += 1;
        }
    }
    spare.resize(count, I::default());
    let (mut from, mut to) = (items, spare);
    for (pass, counts) in (0..).zip(counts) {
        if counts.contains(&count) {
            continue;
        }
        let mut next = 0;
        for count in counts.iter_mut() {
            next += std::mem::replace(count, next);
        }
        let shift = I::PLACE + pass * DIGIT;
        for &item in from.iter() {
            let place = &mut counts[item.digit(shift)];
            to[*place] = item;
            *place += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    from
}
