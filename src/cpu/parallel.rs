//! Loops over elements, on all cores when that pays.

use std::ops::Range;

use smallvec::SmallVec;

use super::helpers::everywhere;
pub(crate) use super::helpers::{product_threads, width};
use crate::layout::{Layout, Merged, merge, place};
use crate::shape::Dims;
use crate::sync::Mutex;

/// Elements below which starting threads costs more than it gives (about 20 microseconds of work).
pub(crate) const PARALLEL: usize = 32 << 10;
/// Elements that one thread takes at a time, or multiples of it for many threads.
const CHUNK: usize = 16 << 10;
/// Threads of the machines that choices were measured on: what is for more is by reasoning, and changes nothing for these.
pub(crate) const MEASURED: usize = 2;
/// Threads up to which it is that: more would wait for each other to take some. They take a few parts each then.
const FEW_THREADS: usize = 8;
const PARTS_EACH: usize = 8;
/// Bytes of a part at most, for the second cache.
const LARGEST: usize = 512 << 10;

/// Elements that one of `width` threads takes at a time, of `count` that have so many bytes each.
fn chunk(width: usize, count: usize, bytes: usize) -> usize {
    if width <= FEW_THREADS {
        return CHUNK;
    }
    let part = (count / (PARTS_EACH * width)).min(LARGEST / bytes.max(1));
    (part / CHUNK * CHUNK).max(CHUNK)
}

/// Runs `work(start, piece)` over pieces of `out`; `start` is the index of the piece's first
/// element.
pub(crate) fn pieces<T: Send>(out: &mut [T], work: impl Fn(usize, &mut [T]) + Sync) {
    in_chunks(out, 1, &work);
}

/// [`pieces`] of elements of `size` bytes, as bytes.
pub(crate) fn elements(out: &mut [u8], size: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    in_chunks(out, size, &work);
}

/// Elements of `size` entries of `out` each.
fn in_chunks<T: Send>(out: &mut [T], size: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let is_much = out.len() > PARALLEL * size;
    let chunk = match is_much {
        true => chunk(width(), out.len() / size, size * size_of::<T>()),
        false => PARALLEL,
    };
    let pieces = out.chunks_mut((chunk * size).max(1)).enumerate();
    share(is_much, pieces, |(at, piece)| work(at * chunk, piece));
}

/// Runs `work(places, base, piece)` over all elements of a view into `elements`: `places` count them in row-major order,
/// and `piece` holds them, the `base`th element and those after it. On all cores where there are many, and the parts of
/// one axis at least lie one after the other.
pub(crate) fn through<T: Send>(
    layout: &Layout,
    elements: &mut [T],
    work: impl Fn(Range<usize>, usize, &mut [T]) + Sync,
) {
    let count = layout.elements();
    if count <= PARALLEL {
        return work(0..count, 0, elements);
    }
    let Merged { dims, strides } = merge(&[layout]);
    let chunk = chunk(width(), count, size_of::<T>());
    let split = |axes: usize| {
        let of_row: usize = dims[axes..].iter().product();
        Split {
            dims: &dims,
            strides: &strides[0],
            offset: layout.offset(),
            axes,
            height: (chunk / of_row).max(1),
        }
    };
    // As many axes as pieces that are not too large take, or those whose places do not lie in each other.
    let is_large = |axes: &usize| dims[*axes..].iter().product::<usize>() > chunk;
    let wanted = (1..dims.len()).find(|axes| !is_large(axes));
    let mut cuts = (1..=wanted.unwrap_or(dims.len())).rev().map(split);
    match cuts.find(|split| split.span().is_some()) {
        Some(split) => split.share(elements, work),
        None => work(0..count, 0, elements),
    }
}

/// A view whose first `axes` are cut, all but the last of them one by one, that one by `height`.
pub(crate) struct Split<'a> {
    pub dims: &'a [usize],
    pub strides: &'a [isize],
    pub offset: usize,
    pub axes: usize,
    pub height: usize,
}

impl Split<'_> {
    /// As [`through`].
    pub(crate) fn share<T: Send>(
        &self,
        elements: &mut [T],
        work: impl Fn(Range<usize>, usize, &mut [T]) + Sync,
    ) {
        let count = self.dims.iter().product();
        let span = if count > PARALLEL { self.span() } else { None };
        let Some(span) = span else {
            return work(0..count, 0, elements);
        };
        let (outer, inner) = self.dims.split_at(self.axes);
        let of_row: usize = inner.iter().product();
        let (&rows, outer) = outer.split_last().unwrap_or((&1, &[]));
        let pitch = self
            .strides
            .get(self.axes - 1)
            .map_or(0, |&stride| stride as usize);
        let (mut base, mut rest) = (0, elements);
        let outer_places: usize = outer.iter().product();
        let count = outer_places * rows.div_ceil(self.height);
        let starts = (0..outer_places).flat_map(|at| {
            let start = self.offset + place(at, outer, self.strides) as usize;
            let rows = (0..rows).step_by(self.height);
            rows.map(move |row| (at, row, start + row * pitch))
        });
        let pieces = starts.map(|(at, row, start)| {
            let height = self.height.min(rows - row);
            let (_, from) = std::mem::take(&mut rest).split_at_mut(start - base);
            let (piece, left) = from.split_at_mut((height - 1) * pitch + span);
            (base, rest) = (start + piece.len(), left);
            let first = (at * rows + row) * of_row;
            (first..first + height * of_row, start, piece)
        });
        among(count, pieces, |(places, base, piece)| {
            work(places, base, piece)
        });
    }

    /// From the first element of what is not cut to behind its last one; `None` where pieces would lie in each other.
    fn span(&self) -> Option<usize> {
        let (mut span, mut uncut) = (1, 1);
        for (axis, (&size, &stride)) in self.dims.iter().zip(self.strides).enumerate().rev() {
            if stride <= 0 || (axis < self.axes && (stride as usize) < span) {
                return None;
            }
            span += (size - 1) * stride as usize;
            if axis >= self.axes {
                uncut = span;
            }
        }
        Some(uncut)
    }
}

/// Hands each item to `work`: on the caller's thread, and where there `is_much` to do on the others as
/// soon as they come. Work that is done before they do costs no more than it does alone.
pub(crate) fn share<I: Iterator<Item: Send> + Send>(
    is_much: bool,
    items: I,
    work: impl Fn(I::Item) + Sync,
) {
    if !is_much {
        return items.for_each(work);
    }
    let most = items.size_hint().1.unwrap_or(usize::MAX);
    among(most, items, work);
}

/// [`share`] of much: of `most` items, for as many threads.
fn among<I: Iterator<Item: Send> + Send>(most: usize, items: I, work: impl Fn(I::Item) + Sync) {
    let items = Mutex::new(items);
    let next = || items.lock().next();
    everywhere(most, &|| {
        while let Some(item) = next() {
            work(item);
        }
    });
}

/// Walks the elements of several layouts of one shape together, in row-major order, as blocks of
/// the two innermost merged dimensions: where runs of the last one are short, there are many at a time.
pub(crate) struct Walk {
    merged: Merged,
    offsets: SmallVec<[isize; 3]>,
    elements: usize,
}

/// Where the elements of a block are in one layout.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    /// The first one's storage index.
    pub start: isize,
    /// From a row to the next one, and from a column.
    pub row: isize,
    pub column: isize,
}

impl Grid {
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, column: usize) -> isize {
        self.start + row as isize * self.row + column as isize * self.column
    }

    /// In elements that begin with the storage's `base`th.
    pub(crate) fn after(self, base: usize) -> Self {
        let start = self.start - base as isize;
        Self { start, ..self }
    }
}

/// Rows that follow each other.
pub(crate) struct Block<'a> {
    /// Its first element, counted from where the walk began.
    pub first: usize,
    pub rows: usize,
    pub columns: usize,
    /// One a layout.
    pub grids: &'a [Grid],
}

impl Block<'_> {
    /// Where its elements are among all of the walk, one after the other.
    pub(crate) fn in_order(&self) -> Grid {
        Grid {
            start: self.first as isize,
            row: self.columns as isize,
            column: 1,
        }
    }
}

impl Walk {
    /// All layouts have the same shape.
    pub(crate) fn new(layouts: &[&Layout]) -> Self {
        let elements = layouts.first().map_or(0, |layout| layout.elements());
        Self {
            merged: merge(layouts),
            offsets: layouts.iter().map(|l| l.offset() as isize).collect(),
            elements,
        }
    }

    /// Strides of the innermost dimension, one a layout.
    pub(crate) fn inner_strides(&self) -> Vec<isize> {
        self.merged
            .strides
            .iter()
            .map(|strides| strides.last().copied().unwrap_or(0))
            .collect()
    }

    /// Elements of the innermost dimension.
    pub(crate) fn columns(&self) -> usize {
        self.merged.dims.last().copied().unwrap_or(1)
    }

    /// Elements of a block at most: of the two innermost dimensions.
    pub(crate) fn block_elements(&self) -> usize {
        self.merged.dims.iter().rev().take(2).product()
    }

    /// After how many elements the first layout's come again, if they do.
    pub(crate) fn period(&self) -> Option<usize> {
        let (&rows, &stride) = (self.merged.dims.first()?, self.merged.strides[0].first()?);
        (stride == 0).then(|| self.elements / rows)
    }

    /// Where in the first layout's storage `count` elements from `from` on begin, if they are neighbours there.
    pub(crate) fn straight(&self, from: usize, count: usize) -> Option<usize> {
        let columns = self.columns();
        // Divided only where it may be.
        let is_straight = self.merged.strides[0].last() == Some(&1) && count <= columns;
        (is_straight && from % columns + count <= columns)
            .then(|| (self.offsets[0] + self.merged.place(0, from)) as usize)
    }

    /// Rows and columns of all of it, and where they are in each layout, where no more dimensions are left.
    pub(crate) fn whole(&self) -> Option<([usize; 2], SmallVec<[Grid; 3]>)> {
        let [rows, columns] = self.merged.dims[..] else {
            return None;
        };
        let of_layouts = self.offsets.iter().zip(&self.merged.strides);
        let grids = of_layouts.map(|(&start, strides)| Grid {
            start,
            row: strides[0],
            column: strides[1],
        });
        Some(([rows, columns], grids.collect()))
    }

    /// Calls `work` with blocks that together cover elements `from..from + count`: whole rows, but for the first and
    /// the last one.
    pub(crate) fn blocks(&self, from: usize, count: usize, work: &mut dyn FnMut(&Block<'_>)) {
        let end = from.saturating_add(count).min(self.elements);
        if from >= end {
            return;
        }
        let (outer, [rows, columns]) = match &self.merged.dims[..] {
            [outer @ .., rows, columns] => (outer, [*rows, *columns]),
            [columns] => (&[][..], [1, *columns]),
            [] => (&[][..], [1, 1]),
        };
        // Places are counted on from here: divisions for each block would take longer than short ones do.
        let (mut row, mut column) = (from / columns % rows, from % columns);
        let mut counters: Dims = SmallVec::from_elem(0, outer.len());
        let mut rest = from / columns / rows;
        for (counter, size) in counters.iter_mut().zip(outer).rev() {
            (*counter, rest) = (rest % size, rest / size);
        }
        let mut bases: SmallVec<[isize; 3]> = self.offsets.clone();
        let mut grids: SmallVec<[Grid; 3]> = SmallVec::new();
        for (base, strides) in bases.iter_mut().zip(&self.merged.strides) {
            let outer = counters.iter().zip(strides);
            *base += (outer.map(|(&at, stride)| at as isize * stride)).sum::<isize>();
            let (row, column) = match strides[..] {
                [.., row, column] => (row, column),
                [column] => (0, column),
                [] => (0, 0),
            };
            grids.push(Grid {
                start: *base,
                row,
                column,
            });
        }
        let mut at = from;
        while at < end {
            let left = end - at;
            let (height, width) = if column > 0 || left < columns {
                (1, left.min(columns - column))
            } else if (rows - row) * columns <= left {
                (rows - row, columns)
            } else {
                (left / columns, columns)
            };
            for (grid, &start) in grids.iter_mut().zip(&bases) {
                grid.start = Grid { start, ..*grid }.at(row, column);
            }
            work(&Block {
                first: at - from,
                rows: height,
                columns: width,
                grids: &grids,
            });
            at += height * width;
            (row, column) = (row + height, 0);
            if row < rows {
                continue;
            }
            row = 0;
            for axis in (0..outer.len()).rev() {
                counters[axis] += 1;
                let is_over = counters[axis] == outer[axis];
                let back = if is_over { outer[axis] as isize } else { 0 };
                for (base, strides) in bases.iter_mut().zip(&self.merged.strides) {
                    *base += strides[axis] * (1 - back);
                }
                if !is_over {
                    break;
                }
                counters[axis] = 0;
            }
        }
    }

    /// [`Walk::blocks`] row by row: calls `run(first, starts, count)`, where `first` counts from `from` and `starts` are
    /// storage indices of the run's first element in each layout.
    pub(crate) fn runs(
        &self,
        from: usize,
        count: usize,
        run: &mut dyn FnMut(usize, &[isize], usize),
    ) {
        self.blocks(from, count, &mut |block| {
            let starts = block.grids.iter().map(|grid| grid.start);
            let mut starts: SmallVec<[isize; 3]> = starts.collect();
            for row in 0..block.rows {
                run(block.first + row * block.columns, &starts, block.columns);
                for (start, grid) in starts.iter_mut().zip(block.grids) {
                    *start += grid.row;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_rayon_work_alone() {
        rayon::scope(|scope| {
            scope.spawn(|_| assert!(product_threads().is_none() && width() == 1));
        });
    }

    /// As measured for a few threads; in whole chunks, of a few parts for each of many.
    #[test]
    fn many_threads_take_more_at_a_time() {
        assert_eq!(chunk(2, 1 << 30, 4), CHUNK);
        assert_eq!(chunk(64, 1 << 20, 4), CHUNK);
        assert_eq!(chunk(64, (1 << 24) + 5, 4), 2 * CHUNK);
        assert_eq!(chunk(64, 1 << 30, 4), LARGEST / 4);
        assert_eq!(chunk(64, 1 << 30, 1 << 30), CHUNK);
    }

    #[test]
    fn shared_items_are_worked_on_once() {
        let mut seen = vec![0u32; 10_000];
        for (round, is_much) in [(1, true), (2, false)] {
            share(is_much, seen.chunks_mut(7).enumerate(), |(at, chunk)| {
                chunk.iter_mut().for_each(|seen| *seen += at as u32 + 1);
            });
            let mut seen = seen.iter().enumerate();
            assert!(seen.all(|(at, &seen)| seen == round * (at as u32 / 7 + 1)));
        }
    }

    /// Each element of a view once, in the piece that it is handed with; pieces only where they can be apart.
    #[test]
    fn views_are_cut_into_pieces() {
        let rows = Layout::contiguous([3, 50, 4, 100]);
        let part = rows.slice(&[(1..3).into(), (3..49).into(), (..).into(), (1..99).into()]);
        let part = part.unwrap();
        let column = Layout::contiguous([40_000, 3])
            .slice(&[(5..).into(), (1..2).into()])
            .unwrap();
        let wide = Layout::contiguous([2, 70_000])
            .slice(&[(..).into(), (1..).into()])
            .unwrap();
        let cases = [
            (rows.clone(), true),
            (part.clone(), true),
            (column, true),
            (wide, true),
            // Few long rows, of which parts are apart, or none but whole ones.
            (
                Layout::contiguous([2, 3, 70_001])
                    .slice(&[(..).into(), (..).into(), (1..).into()])
                    .unwrap(),
                true,
            ),
            (
                Layout::contiguous([2, 20_000, 3])
                    .permute(&[0, 2, 1])
                    .unwrap(),
                true,
            ),
            (rows.permute(&[1, 0, 2, 3]).unwrap(), false),
            (rows.flip(&[1]).unwrap(), false),
            (part.slice(&[(0..1).into()]).unwrap(), false),
            (rows.slice(&[(0..0).into()]).unwrap(), false),
        ];
        for (layout, are_many) in cases {
            let mut seen = vec![0; layout.end()];
            let count = Mutex::new(0);
            let walk = Walk::new(&[&layout]);
            let stride = walk.inner_strides().first().copied().unwrap_or(1);
            through(&layout, &mut seen, |places, base, piece| {
                *count.lock() += 1;
                walk.runs(places.start, places.len(), &mut |first, starts, length| {
                    for at in 0..length {
                        let place = starts[0] + at as isize * stride - base as isize;
                        piece[place as usize] += places.start + first + at + 1;
                    }
                });
            });
            let mut want = vec![0; layout.end()];
            walk.runs(0, layout.elements(), &mut |first, starts, length| {
                for at in 0..length {
                    want[(starts[0] + at as isize * stride) as usize] = first + at + 1;
                }
            });
            assert!(seen == want, "{layout:?}");
            assert_eq!(*count.lock() > 1, are_many, "{layout:?}");
        }
    }

    #[test]
    fn walks_visit_each_element_once_in_order() {
        let base = Layout::contiguous([3, 4, 5]);
        let turned = base.permute(&[2, 0, 1]).unwrap();
        let walk = Walk::new(&[&turned]);
        let stride = walk.inner_strides()[0];
        for (from, count) in [(0, 60), (7, 20), (59, 1), (0, 0), (58, 9)] {
            let mut seen = Vec::new();
            walk.runs(from, count, &mut |first, starts, length| {
                assert_eq!(first, seen.len());
                seen.extend((0..length as isize).map(|i| starts[0] + i * stride));
            });
            let expected: Vec<isize> = (from..(from + count).min(60))
                .map(|at| {
                    let (k, rest) = (at / 12, at % 12);
                    ((rest / 4) * 20 + (rest % 4) * 5 + k) as isize
                })
                .collect();
            assert_eq!(seen, expected);
        }
    }

    /// Blocks of three layouts from anywhere to anywhere are the elements in order, and short rows come together.
    #[test]
    fn blocks_are_whole_rows_in_order() {
        let base = Layout::contiguous([3, 4, 5, 2]);
        let shape = base.shape();
        let turned = Layout::contiguous([2, 4, 3, 5])
            .permute(&[2, 1, 3, 0])
            .unwrap();
        let repeated = Layout::contiguous([4, 1, 2]).broadcast_to(shape).unwrap();
        let back = base.flip(&[0, 2]).unwrap();
        let single = Layout::contiguous([]);
        let line = Layout::contiguous([7]);
        let sets: [&[&Layout]; 6] = [
            &[&base],
            &[&base, &turned],
            &[&repeated, &back, &turned],
            &[&back],
            &[&single],
            &[&line, &line],
        ];
        for layouts in sets {
            let walk = Walk::new(layouts);
            let all: Vec<Vec<usize>> = layouts.iter().map(|l| l.indices().collect()).collect();
            let count = all[0].len();
            for (from, to) in
                (0..=count).flat_map(|from| (from..=count + 1).map(move |to| (from, to)))
            {
                let mut next = from;
                walk.blocks(from, to - from, &mut |block| {
                    for (row, column) in (0..block.rows)
                        .flat_map(|row| (0..block.columns).map(move |column| (row, column)))
                    {
                        let in_order = block.in_order().at(row, column) as usize;
                        assert_eq!(from + in_order, next);
                        for (all, grid) in all.iter().zip(block.grids) {
                            assert_eq!(grid.at(row, column) as usize, all[next]);
                        }
                        next += 1;
                    }
                });
                assert_eq!(next, to.min(count));
            }
        }
        let wide = Layout::contiguous([1000, 3]);
        let part = wide.slice(&[(..).into(), (0..2).into()]).unwrap();
        let mut calls = 0;
        Walk::new(&[&part]).blocks(1, 1998, &mut |_| calls += 1);
        assert_eq!(calls, 3);
    }
}
