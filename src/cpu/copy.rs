//! Copies of elements from one view into another.

use super::parallel::{Block, Grid, Walk, through};
use super::simd::{Loops, vectorised};
use super::transpose::Transposed;
use crate::error::Result;
use crate::layout::Layout;

/// Columns of a block below which it is copied column by column.
const FEW: usize = 16;
/// Elements that the nearest cache holds, read and written.
const NEAR: usize = 2048;

/// Copies all elements of the one view to their places in the other one, which has the same shape and no element twice.
pub(crate) fn copy<T: bytemuck::Pod + Send + Sync>(
    (from, elements): (&Layout, &[T]),
    (to, out): (&Layout, &mut [T]),
) {
    if let Some(transposed) = Transposed::of(from, to, size_of::<T>()) {
        return transposed.copy(elements, out);
    }
    let walk = Walk::new(&[from, to]);
    through(to, out, |places, base, out| {
        walk.blocks(places.start, places.len(), &mut |block| {
            let [from, to] = [block.grids[0], block.grids[1]];
            copy_block(block, (elements, from), (out, to.after(base)));
        });
    });
}

/// Writes one value to all elements of a view, which has none twice.
///
/// # Errors
/// None: that one value is seen in any shape.
pub(crate) fn fill<T: bytemuck::Pod + Send + Sync>(
    (to, out): (&Layout, &mut [T]),
    value: T,
) -> Result<()> {
    let from = Layout::contiguous([]).broadcast_to(to.shape())?;
    copy((&from, &[value]), (to, out));
    Ok(())
}

/// Copies the elements of a block. Of few columns those of one are taken together, in loops as long as there are rows.
pub(crate) fn copy_block<T: bytemuck::Pod>(
    block: &Block<'_>,
    (elements, from): (&[T], Grid),
    (out, to): (&mut [T], Grid),
) {
    let (rows, columns) = (block.rows, block.columns);
    if from.column == 1 && to.column == 1 {
        for row in 0..rows {
            let [at, to] = [from, to].map(|grid| grid.at(row, 0) as usize);
            copy_run(&elements[at..][..columns], &mut out[to..][..columns]);
        }
        return;
    }
    if from.column == 0 && to.column == 1 && columns >= FEW {
        return vectorised(Fill(block, (elements, from), (out, to)));
    }
    if rows <= columns || columns >= FEW {
        for row in 0..rows {
            let [at, to_start] = [from, to].map(|grid| grid.at(row, 0));
            copy_steps(
                (elements, at, from.column),
                (out, to_start, to.column),
                columns,
            );
        }
        return;
    }
    // As many rows as stay in the nearest cache.
    let height = NEAR / columns;
    for row in (0..rows).step_by(height) {
        let count = height.min(rows - row);
        for column in 0..columns {
            let [at, to_start] = [from, to].map(|grid| grid.at(row, column));
            copy_steps((elements, at, from.row), (out, to_start, to.row), count);
        }
    }
}

/// Copies elements that follow each other: few of them as the two halves of the run, which may share some, without a call.
#[inline(always)]
pub(crate) fn copy_run<T: bytemuck::Pod>(from: &[T], out: &mut [T]) {
    #[inline(always)]
    fn ends<const WIDTH: usize>(from: &[u8], out: &mut [u8]) {
        let ends = (from.first_chunk::<WIDTH>(), from.last_chunk::<WIDTH>());
        let (Some(&first), Some(&last)) = ends else {
            return;
        };
        if let Some(out) = out.first_chunk_mut() {
            *out = first;
        }
        if let Some(out) = out.last_chunk_mut() {
            *out = last;
        }
    }
    let from: &[u8] = bytemuck::cast_slice(from);
    let out: &mut [u8] = bytemuck::cast_slice_mut(out);
    match out.len() {
        0..3 => ends::<1>(from, out),
        3..5 => ends::<2>(from, out),
        5..9 => ends::<4>(from, out),
        9..17 => ends::<8>(from, out),
        17..33 => ends::<16>(from, out),
        33..65 => ends::<32>(from, out),
        _ if clash(from, out) => {
            for (from, out) in from.chunks(SHORT).zip(out.chunks_mut(SHORT)) {
                out.copy_from_slice(from);
            }
        }
        _ => out.copy_from_slice(from),
    }
}

/// Bytes below which C's `memcpy` goes by vectors; of more it leaves the copy to the processor (`rep movsb`).
const SHORT: usize = 1024;

/// Whether a long copy goes to a little further on in a page than it comes from: AMD's processors take 4 to 10 times as long
/// for it as one (4 MiB to the next f32 0.74 and 0.10 ms on an EPYC).
#[inline(always)]
fn clash(from: &[u8], out: &[u8]) -> bool {
    let ahead = out.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) % 4096;
    out.len() > SHORT && (1..64).contains(&ahead)
}

/// Rows of no less than [`FEW`], each of one value.
struct Fill<'a, T>(&'a Block<'a>, (&'a [T], Grid), (&'a mut [T], Grid));

impl<T: Copy> Loops for Fill<'_, T> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Fill(block, (elements, from), (out, to)) = self;
        for row in 0..block.rows {
            let value = [elements[from.at(row, 0) as usize]; FEW];
            let out = &mut out[to.at(row, 0) as usize..][..block.columns];
            let (runs, rest) = out.as_chunks_mut::<FEW>();
            for run in runs {
                *run = value;
            }
            // The last ones twice, instead of one by one.
            if !rest.is_empty()
                && let Some(out) = out.last_chunk_mut::<FEW>()
            {
                *out = value;
            }
        }
    }
}

/// Copies `count` elements that are some strides apart, from where each starts.
fn copy_steps<T: Copy>(
    (elements, mut at, stride): (&[T], isize, isize),
    (out, mut to, out_stride): (&mut [T], isize, isize),
    count: usize,
) {
    if out_stride == 1 {
        return gather(elements, at, stride, &mut out[to as usize..][..count]);
    }
    for _ in 0..count {
        out[to as usize] = elements[at as usize];
        at += stride;
        to += out_stride;
    }
}

/// Elements that are `stride` apart, from the one at `start` on, as many as `out` holds.
pub(crate) fn gather<T: Copy>(elements: &[T], start: isize, stride: isize, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    match stride {
        1 => out.copy_from_slice(&elements[start as usize..][..out.len()]),
        0 => out.fill(elements[start as usize]),
        -1 if out.len() >= FEW => {
            let end = start as usize + 1;
            vectorised(Backwards(&elements[end - out.len()..end], out));
        }
        _ => {
            // Several in one turn of the loop: else where it lies in memory decides how fast it is.
            const TURN: usize = 8;
            let mut at = start;
            let mut copy = |out: &mut T| {
                *out = elements[at as usize];
                at += stride;
            };
            let (turns, rest) = out.as_chunks_mut::<TURN>();
            for turn in turns {
                turn.iter_mut().for_each(&mut copy);
            }
            rest.iter_mut().for_each(copy);
        }
    }
}

/// As many elements as there are places for, the last one first.
struct Backwards<'a, T>(&'a [T], &'a mut [T]);

impl<T: Copy> Loops for Backwards<'_, T> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (out, &element) in self.1.iter_mut().zip(self.0.iter().rev()) {
            *out = element;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::SliceRange;

    /// Views of this shape: parts, steps, backwards, turned, repeated along either axis.
    fn views(rows: usize, columns: usize) -> Vec<Layout> {
        let every = |step: isize| {
            let times = |size: usize| 1..1 + size * step.unsigned_abs();
            let whole = [rows, columns].map(|size| times(size).end + 1);
            let ranges = [rows, columns].map(|size| SliceRange::from(times(size)).step(step));
            Layout::contiguous(whole).slice(&ranges).unwrap()
        };
        let turned = Layout::contiguous([columns, rows + 1]).slice(&[(..).into(), (1..).into()]);
        let shape = [rows, columns].into();
        vec![
            Layout::contiguous([rows, columns]),
            every(1),
            every(2),
            every(-1),
            every(-3),
            every(1).flip(&[0]).unwrap(),
            turned.unwrap().transpose(0, 1).unwrap(),
            Layout::contiguous([columns]).broadcast_to(&shape).unwrap(),
            Layout::contiguous([rows, 1]).broadcast_to(&shape).unwrap(),
            Layout::contiguous([]).broadcast_to(&shape).unwrap(),
        ]
    }

    fn copies<T: bytemuck::Pod + Send + Sync + PartialEq>(
        sizes: &[[usize; 2]],
        of: impl Fn(usize) -> T,
    ) {
        for &[rows, columns] in sizes {
            for from in views(rows, columns) {
                let elements: Vec<T> = (0..from.end()).map(&of).collect();
                for to in views(rows, columns) {
                    if to.distinct() != to {
                        continue;
                    }
                    let mut want = vec![T::zeroed(); to.end() + 1];
                    let mut out = want.clone();
                    for (at, place) in from.indices().zip(to.indices()) {
                        want[place] = elements[at];
                    }
                    copy((&from, &elements), (&to, &mut out));
                    assert!(out == want, "{from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn rows_of_all_short_lengths_are_copied() {
        let lengths = (1..=20).chain([31, 33, 64, 65, 129]);
        let sizes: Vec<[usize; 2]> = lengths.flat_map(|at| [[at, 37], [37, at]]).collect();
        copies(&sizes, |at| (at % 251) as u8 + 1);
        copies(&sizes, |at| at as u16 + 1);
        copies(&sizes, |at| at as u32 + 1);
        copies(&sizes, |at| at as u64 + 1);
    }

    /// Pieces that begin within rows.
    #[test]
    fn many_short_rows_are_copied() {
        let sizes = [
            [35_001, 2],
            [12_001, 3],
            [8_003, 5],
            [2_500, 15],
            [3, 12_001],
        ];
        copies(&sizes, |at| at as u32 + 1);
    }
}
