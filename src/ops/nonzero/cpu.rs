//! The CPU twins: marks by words, then what is marked by bytes of marks, eight elements at once.

use std::cell::Cell;
use std::ops::{BitAnd, Range};

use super::kernel::bits;
use super::{WORD, words};
use crate::cpu::transpose::Transposed;
use crate::cpu::{self, host_vec, parallel, vectorised};
use crate::dtype::by_size;
use crate::error::Result;
use crate::road::{HostInput, HostOutput};
use crate::shape::Dims;

/// Words that a thread takes at a time.
const PART: usize = 512;
/// Marks of a word up to which they are found one by one.
const SPARSE: u32 = 6;

/// Of a byte of marks the places of those that are set, lowest first.
static PLACES: [[u8; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut next) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                all[byte][next] = bit as u8;
                next += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    all
};

fn is_much(words: usize) -> bool {
    words * WORD > parallel::PARALLEL
}

pub(super) fn mark(op: &'static str, x: &HostInput<'_>, output: &mut HostOutput<'_>) -> Result<()> {
    let mask = bits(x.dtype);
    by_size!(x.dtype, Bits => mark_bits::<Bits>(op, x, mask as Bits, output))
}

fn mark_bits<T>(
    op: &'static str,
    x: &HostInput<'_>,
    mask: T,
    output: &mut HostOutput<'_>,
) -> Result<()>
where
    T: bytemuck::Pod + Send + Sync + PartialEq + BitAnd<Output = T>,
{
    let all = words(x.layout.elements());
    let row = output.layout.shape()[1];
    let (marks, sums) = output.elements::<u32>().split_at_mut(row);
    let (Some(marks), Some(sums)) = (marks.get_mut(..all), sums.get_mut(..all)) else {
        return Ok(());
    };
    let elements = Elements::<T>::new(op, x)?;
    let parts = marks.chunks_mut(PART).zip(sums.chunks_mut(PART));
    parallel::share(is_much(all), parts.enumerate(), |(at, (marks, sums))| {
        elements.part(at * PART..at * PART + marks.len(), |given| {
            vectorised(|| {
                let mut sum = 0;
                let given = given.chunks(WORD);
                for (given, (marks, to)) in given.zip(marks.iter_mut().zip(sums.iter_mut())) {
                    *marks = match given.first_chunk() {
                        Some(given) => word::<T, WORD>(given, mask),
                        None => {
                            let each = given.iter().enumerate();
                            each.fold(0, |bits, (at, &x)| bits | word(&[x], mask) << at)
                        }
                    };
                    sum += marks.count_ones();
                    *to = sum;
                }
            });
        });
    });
    let mut before = 0;
    for sums in sums.chunks_mut(PART) {
        let base = before;
        before += sums.last().copied().unwrap_or(0);
        for sum in sums {
            *sum += base;
        }
    }
    Ok(())
}

/// Marks of a few elements, without a branch.
#[inline(always)]
fn word<T: bytemuck::Pod + PartialEq + BitAnd<Output = T>, const COUNT: usize>(
    given: &[T; COUNT],
    mask: T,
) -> u32 {
    let mut bits = 0;
    for (at, &x) in given.iter().enumerate() {
        bits |= u32::from(x & mask != T::zeroed()) << at;
    }
    bits
}

/// A tensor's elements in row-major order.
struct Elements<'a, T> {
    count: usize,
    elements: &'a [T],
    way: Way<T>,
}

/// How they lie.
enum Way<T> {
    /// One behind the other, from there on.
    Run(usize),
    /// Some steps apart.
    Steps(Box<parallel::Walk>),
    /// With rows turned: here is a copy.
    Turned(Vec<T>),
}

impl<'a, T: bytemuck::Pod + Send + Sync> Elements<'a, T> {
    fn new(op: &'static str, x: &HostInput<'a>) -> Result<Self> {
        let (layout, elements) = (x.layout, bytemuck::cast_slice(x.bytes));
        let count = layout.elements();
        let way = match Transposed::by_rows(layout) {
            _ if layout.is_contiguous() => Way::Run(layout.offset()),
            Some(transposed) => {
                let mut turned = host_vec(op, count)?;
                turned.resize(count, T::zeroed());
                transposed.copy(elements, &mut turned);
                Way::Turned(turned)
            }
            None => Way::Steps(Box::new(parallel::Walk::new(&[layout]))),
        };
        Ok(Self {
            count,
            elements,
            way,
        })
    }

    /// Calls `work` with the elements of some words.
    fn part(&self, words: Range<usize>, work: impl FnOnce(&[T])) {
        let first = words.start * WORD;
        let count = (words.end * WORD).min(self.count) - first;
        match &self.way {
            Way::Run(start) => work(&self.elements[start + first..][..count]),
            Way::Turned(elements) => work(&elements[first..][..count]),
            Way::Steps(walk) => {
                let mut copied = vec![T::zeroed(); count];
                walk.blocks(first, count, &mut |block| {
                    let to = (&mut copied[..], block.in_order());
                    cpu::copy_block(block, (self.elements, block.grids[0]), to);
                });
                work(&copied);
            }
        }
    }
}

/// Marks, and how many are set up to each word's end.
struct Marks<'a> {
    marks: &'a [u32],
    sums: &'a [u32],
}

impl<'a> Marks<'a> {
    fn new(input: &'a HostInput<'_>, elements: usize) -> Self {
        let row = input.layout.shape()[1];
        let (marks, sums) = input.elements::<u32>()[input.layout.offset()..].split_at(row);
        let all = words(elements);
        Self {
            marks: &marks[..all],
            sums: &sums[..all],
        }
    }

    /// Calls `work(words, marks, out)` for parts of marks, with the part of the output that is theirs: `size` entries for each.
    fn share<T: Send>(
        &self,
        size: usize,
        out: &mut [T],
        work: impl Fn(Range<usize>, &[u32], &mut [T]) + Sync,
    ) {
        let mut rest = out;
        let mut before = 0;
        let parts = self.marks.chunks(PART).zip(self.sums.chunks(PART));
        let parts = parts.enumerate().map(|(at, (marks, sums))| {
            let end = sums.last().map_or(before, |&end| end as usize);
            let count = (end - before) * size;
            before = end;
            let all = std::mem::take(&mut rest);
            let (out, left) = all.split_at_mut(count.min(all.len()));
            rest = left;
            (at * PART..at * PART + marks.len(), marks, out)
        });
        parallel::share(is_much(self.marks.len()), parts, |(words, marks, out)| {
            work(words, marks, out);
        });
    }
}

/// Writes something for each place of marks from 0 on, in order: what `one` says or, of those in eight neighbours from a first one
/// on, what `eight` writes, whose rest comes to lie where the next ones go.
#[inline(always)]
fn tell<T: Copy>(
    marks: &[u32],
    out: &mut [T],
    one: impl Fn(usize) -> T,
    eight: impl Fn(usize, &[u8; 8], &mut [T; 8]),
) {
    let mut next = 0;
    for (at, &marks) in marks.iter().enumerate() {
        let first = at * WORD;
        let count = marks.count_ones();
        let end = next + count as usize;
        match out.get_mut(next..next + WORD) {
            Some(out) if count > SPARSE => {
                let mut to = 0;
                for (byte, marks) in marks.to_le_bytes().into_iter().enumerate() {
                    if let Some(out) = out[to..].first_chunk_mut() {
                        eight(first + 8 * byte, &PLACES[usize::from(marks)], out);
                    }
                    to += marks.count_ones() as usize;
                }
            }
            _ => {
                let mut left = marks;
                for out in &mut out[next..end] {
                    *out = one(first + left.trailing_zeros() as usize);
                    left &= left.wrapping_sub(1);
                }
            }
        }
        next = end;
    }
}

pub(super) fn places(
    dims: &Dims,
    count: usize,
    marks: &HostInput<'_>,
    output: &mut HostOutput<'_>,
) {
    let marks = Marks::new(marks, dims.iter().product());
    let rank = dims.len();
    let out = &mut output.elements::<u32>()[..count * rank];
    marks.share(rank, out, |words, marks, out| {
        let first = words.start * WORD;
        match rank {
            // Without looking at rows: half the time.
            1 => vectorised(|| {
                let one = |place: usize| (first + place) as u32;
                tell(marks, out, one, |place, places, out| {
                    let base = one(place);
                    for (out, &after) in out.iter_mut().zip(places) {
                        *out = base + u32::from(after);
                    }
                });
            }),
            2 => few::<2>(dims, first, marks, out),
            3 => few::<3>(dims, first, marks, out),
            4 => few::<4>(dims, first, marks, out),
            _ => many(dims, first, marks, out),
        }
    });
}

/// The index along each axis of marks from the `first`th element on.
fn few<const RANK: usize>(dims: &[usize], first: usize, marks: &[u32], out: &mut [u32]) {
    let rows = Rows::<RANK> {
        dims,
        start: Cell::new(0),
        end: Cell::new(0),
        index: Cell::new([0; RANK]),
    };
    vectorised(|| {
        let out = out.as_chunks_mut().0;
        let one = |place: usize| rows.index_of(first + place);
        tell(marks, out, one, |place, places, out| {
            let index = one(place);
            if first + place + 8 <= rows.end.get() {
                for (out, &after) in out.iter_mut().zip(places) {
                    *out = index;
                    out[RANK - 1] += u32::from(after);
                }
                return;
            }
            for (out, &after) in out.iter_mut().zip(places) {
                *out = one(place + usize::from(after));
            }
        });
    });
}

/// Elements by their index, most of them in the row of the one before.
struct Rows<'a, const RANK: usize> {
    dims: &'a [usize],
    /// The elements of that row, and the index of its first one.
    start: Cell<usize>,
    end: Cell<usize>,
    index: Cell<[u32; RANK]>,
}

impl<const RANK: usize> Rows<'_, RANK> {
    #[inline(always)]
    fn index_of(&self, place: usize) -> [u32; RANK] {
        if place < self.start.get() || place >= self.end.get() {
            self.enter(place);
        }
        let mut index = self.index.get();
        index[RANK - 1] = (place - self.start.get()) as u32;
        index
    }

    #[inline(never)]
    fn enter(&self, place: usize) {
        let columns = self.dims[RANK - 1];
        let mut rest = place / columns;
        self.start.set(rest * columns);
        self.end.set((rest + 1) * columns);
        let mut index = [0; RANK];
        for (index, size) in index.iter_mut().zip(self.dims).take(RANK - 1).rev() {
            (*index, rest) = ((rest % size) as u32, rest / size);
        }
        self.index.set(index);
    }
}

/// The same of more axes.
fn many(dims: &[usize], first: usize, marks: &[u32], out: &mut [u32]) {
    let mut out = out.chunks_exact_mut(dims.len());
    for (at, &marks) in marks.iter().enumerate() {
        let mut left = marks;
        for _ in 0..marks.count_ones() {
            let mut rest = first + at * WORD + left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            let out = out.next().unwrap_or_default();
            for (index, size) in out.iter_mut().zip(dims).rev() {
                (*index, rest) = ((rest % size) as u32, rest / size);
            }
        }
    }
}

pub(super) fn select(
    op: &'static str,
    count: usize,
    [x, marks]: [&HostInput<'_>; 2],
    output: &mut HostOutput<'_>,
) -> Result<()> {
    by_size!(x.dtype, Bits => select_bits::<Bits>(op, count, [x, marks], output))
}

fn select_bits<T: bytemuck::Pod + Send + Sync>(
    op: &'static str,
    count: usize,
    [x, marks]: [&HostInput<'_>; 2],
    output: &mut HostOutput<'_>,
) -> Result<()> {
    let elements = Elements::<T>::new(op, x)?;
    let marks = Marks::new(marks, x.layout.elements());
    let out = &mut bytemuck::cast_slice_mut::<u8, T>(output.bytes)[..count];
    marks.share(1, out, |words, marks, out| {
        elements.part(words, |given| {
            vectorised(|| {
                let one = |place: usize| given.get(place).copied().unwrap_or(T::zeroed());
                tell(marks, out, one, |place, places, out| {
                    let eight = given
                        .get(place..)
                        .and_then(|given| given.first_chunk::<8>());
                    match eight {
                        Some(eight) => {
                            for (out, &after) in out.iter_mut().zip(places) {
                                *out = eight[usize::from(after % 8)];
                            }
                        }
                        None => {
                            for (out, &after) in out.iter_mut().zip(places) {
                                *out = one(place + usize::from(after));
                            }
                        }
                    }
                });
            });
        });
    });
    Ok(())
}
