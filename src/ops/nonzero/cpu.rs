//! The CPU twins: marks by words, then what is marked by bytes of marks, eight elements at once.

use std::ops::{BitAnd, Range};

use super::kernel::bits;
use super::{WORD, words};
use crate::cpu::{self, parallel, vectorised};
use crate::dtype::by_size;
use crate::layout::Layout;
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

pub(super) fn mark(x: &HostInput<'_>, output: &mut HostOutput<'_>) {
    let mask = bits(x.dtype);
    by_size!(x.dtype, Bits => mark_bits::<Bits>(x, mask as Bits, output));
}

fn mark_bits<T>(x: &HostInput<'_>, mask: T, output: &mut HostOutput<'_>)
where
    T: bytemuck::Pod + Send + Sync + PartialEq + BitAnd<Output = T>,
{
    let all = words(x.layout.elements());
    let row = output.layout.shape()[1];
    let (marks, sums) = output.elements::<u32>().split_at_mut(row);
    let (Some(marks), Some(sums)) = (marks.get_mut(..all), sums.get_mut(..all)) else {
        return;
    };
    let elements = Elements::<T>::new(x);
    let parts = marks.chunks_mut(PART).zip(sums.chunks_mut(PART));
    parallel::share(is_much(all), parts.enumerate(), |(at, (marks, sums))| {
        elements.part(at * PART..at * PART + marks.len(), |given| {
            vectorised(|| {
                let mut sum = 0;
                let words = given
                    .chunks(WORD)
                    .zip(marks.iter_mut().zip(sums.iter_mut()));
                for (given, (marks, to)) in words {
                    *marks = match given.first_chunk() {
                        Some(given) => word::<T, WORD>(given, mask),
                        None => {
                            let mut bits = 0;
                            for (at, &x) in given.iter().enumerate() {
                                bits |= word(&[x], mask) << at;
                            }
                            bits
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
    layout: &'a Layout,
    elements: &'a [T],
    walk: parallel::Walk,
}

impl<'a, T: bytemuck::Pod> Elements<'a, T> {
    fn new(x: &HostInput<'a>) -> Self {
        Self {
            layout: x.layout,
            elements: bytemuck::cast_slice(x.bytes),
            walk: parallel::Walk::new(&[x.layout]),
        }
    }

    /// Calls `work` with the elements of some words, as they lie or copied together.
    fn part(&self, words: Range<usize>, work: impl FnOnce(&[T])) {
        let first = words.start * WORD;
        let count = (words.end * WORD).min(self.layout.elements()) - first;
        if self.layout.is_contiguous() {
            return work(&self.elements[self.layout.offset() + first..][..count]);
        }
        let mut copied = vec![T::zeroed(); count];
        self.walk.blocks(first, count, &mut |block| {
            let to = (&mut copied[..], block.in_order());
            cpu::copy_block(block, (self.elements, block.grids[0]), to);
        });
        work(&copied);
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

/// Writes what `told` says of the places of marks from 0 on, in order.
#[inline(always)]
fn tell<T: Copy>(marks: &[u32], out: &mut [T], told: impl Fn(usize) -> T) {
    let mut next = 0;
    for (at, &marks) in marks.iter().enumerate() {
        let first = at * WORD;
        let count = marks.count_ones();
        let end = next + count as usize;
        if count <= SPARSE {
            let mut left = marks;
            for out in &mut out[next..end] {
                *out = told(first + left.trailing_zeros() as usize);
                left &= left.wrapping_sub(1);
            }
        } else if count == u32::BITS {
            for (place, out) in (first..).zip(&mut out[next..end]) {
                *out = told(place);
            }
        } else {
            for (byte, marks) in marks.to_le_bytes().into_iter().enumerate() {
                let first = first + 8 * byte;
                let count = marks.count_ones() as usize;
                let places = &PLACES[usize::from(marks)];
                // All eight, where there is room for those that come to lie over the next ones' places.
                match out[next..].first_chunk_mut::<8>() {
                    Some(out) => {
                        for (out, &place) in out.iter_mut().zip(places) {
                            *out = told(first + usize::from(place));
                        }
                    }
                    None => {
                        for (out, &place) in out[next..][..count].iter_mut().zip(places) {
                            *out = told(first + usize::from(place));
                        }
                    }
                }
                next += count;
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
    if rank <= 1 {
        return marks.share(1, out, |words, marks, out| {
            let first = (words.start * WORD) as u32;
            vectorised(|| tell(marks, out, |place| first + place as u32));
        });
    }
    marks.share(rank, out, |words, marks, out| {
        rows(dims, words.start * WORD, marks, out);
    });
}

/// An index along each axis for each mark, from the `first`th element on.
fn rows(dims: &Dims, first: usize, marks: &[u32], out: &mut [u32]) {
    let (mut index, columns) = (vec![0u32; dims.len()], dims[dims.len() - 1]);
    let outer = dims.len() - 1;
    // Of the row that is gone through.
    let mut row = first..first;
    let mut out = out.chunks_exact_mut(dims.len());
    for (at, &marks) in marks.iter().enumerate() {
        let mut left = marks;
        while left != 0 {
            let place = first + at * WORD + left.trailing_zeros() as usize;
            left &= left - 1;
            if place >= row.end {
                let mut rest = place / columns;
                row = rest * columns..(rest + 1) * columns;
                for (index, size) in index[..outer].iter_mut().zip(dims).rev() {
                    (*index, rest) = ((rest % size) as u32, rest / size);
                }
            }
            index[outer] = (place - row.start) as u32;
            if let Some(out) = out.next() {
                out.copy_from_slice(&index);
            }
        }
    }
}

pub(super) fn select(
    count: usize,
    x: &HostInput<'_>,
    marks: &HostInput<'_>,
    output: &mut HostOutput<'_>,
) {
    by_size!(x.dtype, Bits => select_bits::<Bits>(count, x, marks, output));
}

fn select_bits<T: bytemuck::Pod + Send + Sync>(
    count: usize,
    x: &HostInput<'_>,
    marks: &HostInput<'_>,
    output: &mut HostOutput<'_>,
) {
    let elements = Elements::<T>::new(x);
    let marks = Marks::new(marks, x.layout.elements());
    let out = &mut bytemuck::cast_slice_mut::<u8, T>(output.bytes)[..count];
    marks.share(1, out, |words, marks, out| {
        elements.part(words, |given| {
            vectorised(|| {
                tell(marks, out, |place| {
                    given.get(place).copied().unwrap_or(T::zeroed())
                })
            });
        });
    });
}
