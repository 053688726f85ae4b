//! Copies of views whose neighbours in memory follow another axis than the last: in squares with a side of 64 bytes, of
//! which whole lines of memory are read and whole lines are written. Within a square vectors of 16 bytes are turned by
//! interleaving them (every x86-64 has that), so that no element is moved by itself.

use std::ops::Range;

use super::parallel;
use super::stores::{LINE, Lines, Stores};
use crate::layout::{Layout, Merged, merge, place};

/// Rows and columns below which elements move one by one.
const LEAST: usize = 16;
/// Elements from a neighbour to the next one at most: two of a line at least.
const FARTHEST: usize = 8;
/// Bytes along which a band is read before the next column is: a page, after which processors read ahead no more. Half
/// of it where what is written stays in the caches, which keep a line of each row then.
const PAGE: usize = 4096;

/// Elements of a view, as they are copied to another one of the same shape: those along one axis, the `rows`, are
/// neighbours where they are read (or few elements apart, or backwards), those along the last one, the `columns`, where they are written.
#[derive(Debug)]
pub(crate) struct Transposed {
    /// Of both views.
    places: Merged,
    offsets: [usize; 2],
    /// Which axis has the rows.
    axis: usize,
    /// How many elements are moved as one: places count these.
    unit: usize,
}

/// The views of a copy.
const FROM: usize = 0;
const TO: usize = 1;

impl Transposed {
    /// Of elements of `size` bytes. `None` where neighbours are not so, or too few along either axis.
    pub(crate) fn of(from: &Layout, to: &Layout, size: usize) -> Option<Self> {
        if Self::may_be(from) {
            return Self::between(from, to);
        }
        // Few neighbours in both views may be moved as one.
        let columns = from.shape().last().copied().unwrap_or(1);
        let are_few = columns > 1 && columns * size <= size_of::<Vector>();
        let may_be_units = are_few && from.elements() >= LEAST * LEAST;
        may_be_units
            .then(|| Self::of_units(from, to, size))
            .flatten()
    }

    /// What nearly all that lie otherwise fail, without looking at all their axes.
    fn may_be(from: &Layout) -> bool {
        let last = from.shape().iter().zip(from.strides()).next_back();
        let is_by_rows = last.is_some_and(|(&size, &stride)| size > 1 && stride == 1);
        !is_by_rows && from.elements() >= LEAST * LEAST
    }

    fn between(from: &Layout, to: &Layout) -> Option<Self> {
        Self::along(merge(&[from, to]), [from.offset(), to.offset()], 1)
    }

    /// Of all the elements of the last axis together.
    fn of_units(from: &Layout, to: &Layout, size: usize) -> Option<Self> {
        let mut places = merge(&[from, to]);
        let unit = places.dims.pop()?;
        let bytes = unit * size;
        if !bytes.is_power_of_two() || bytes > size_of::<Vector>() {
            return None;
        }
        let mut offsets = [from.offset(), to.offset()];
        for (strides, offset) in places.strides.iter_mut().zip(&mut offsets) {
            let is_whole = |stride: &isize| stride % unit as isize == 0;
            let is_by_rows = strides.pop() == Some(1);
            if !is_by_rows || !offset.is_multiple_of(unit) || !strides.iter().all(is_whole) {
                return None;
            }
            strides
                .iter_mut()
                .for_each(|stride| *stride /= unit as isize);
            *offset /= unit;
        }
        Self::along(places, offsets, unit)
    }

    fn along(places: Merged, offsets: [usize; 2], unit: usize) -> Option<Self> {
        let dims = &places.dims[..];
        let last = dims.len().checked_sub(1)?;
        let strides = &places.strides[FROM];
        let step = |axis: &usize| strides[*axis].unsigned_abs();
        let axis = (0..last)
            .filter(|axis| dims[*axis] >= LEAST && (1..=FARTHEST).contains(&step(axis)))
            .min_by_key(step)?;
        let are_apart = step(&last) > step(&axis);
        let are_forward = places.strides[TO].iter().all(|&stride| stride > 0);
        let are_many = dims[last] >= LEAST && !dims.contains(&0);
        (are_apart && are_forward && are_many && places.strides[TO][last] == 1).then(|| Self {
            places,
            offsets,
            axis,
            unit,
        })
    }

    /// A view that is copied row-major and without gaps.
    pub(crate) fn by_rows(from: &Layout) -> Option<Self> {
        let between = || Self::between(from, &Layout::contiguous(from.shape().clone()));
        Self::may_be(from).then(between).flatten()
    }

    /// The rows from an element on, `height` at most, of its place of the outer axes.
    pub(crate) fn band(&self, element: usize, height: usize) -> Band {
        let row = element / self.pitch();
        let (outer, first) = (row / self.rows(), row % self.rows());
        let rows = height.min(self.rows() - first);
        Band { outer, first, rows }
    }

    pub(crate) fn rows(&self) -> usize {
        self.places.dims[self.axis]
    }

    pub(crate) fn columns(&self) -> usize {
        self.places.dims.last().copied().unwrap_or(1)
    }

    /// Elements of the view from a row's first to the next one's.
    pub(crate) fn pitch(&self) -> usize {
        self.places.dims[self.axis + 1..].iter().product()
    }

    /// Places of the axes between rows and columns.
    pub(crate) fn middles(&self) -> usize {
        self.pitch() / self.columns()
    }

    /// Whether the other copy, of the same shape, has its rows along the same axis.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.rows() == other.rows()
            && self.columns() == other.columns()
            && self.pitch() == other.pitch()
    }

    /// Where the first element of a band is, at one place of the axes between rows and columns.
    fn first(&self, of: usize, band: &Band, middle: usize) -> isize {
        let (dims, strides, at) = (&self.places.dims, &self.places.strides[of], self.axis);
        let last = dims.len() - 1;
        self.offsets[of] as isize
            + place(band.outer, &dims[..at], &strides[..at])
            + band.first as isize * strides[at]
            + place(middle, &dims[at + 1..last], &strides[at + 1..last])
    }

    /// The part of a band that has one place of the axes between: its `rows` by these `columns`.
    pub(crate) fn matrix(&self, band: &Band, middle: usize, columns: Range<usize>) -> Matrix {
        let stride = self.places.strides[FROM].last().copied().unwrap_or(0);
        Matrix {
            first: self.first(FROM, band, middle) + columns.start as isize * stride,
            step: self.places.strides[FROM][self.axis],
            stride,
            rows: band.rows,
            columns: columns.len(),
        }
    }

    /// Copies all elements.
    pub(crate) fn copy<T: bytemuck::Pod + Send + Sync>(&self, from: &[T], out: &mut [T]) {
        let (from, out) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(out));
        match size_of::<T>() * self.unit {
            1 => self.copy_bytes::<1>(from, out),
            2 => self.copy_bytes::<2>(from, out),
            4 => self.copy_bytes::<4>(from, out),
            8 => self.copy_bytes::<8>(from, out),
            _ => self.copy_bytes::<16>(from, out),
        }
    }

    fn copy_bytes<const SIZE: usize>(&self, from: &[u8], out: &mut [u8])
    where
        [u8; SIZE]: bytemuck::Pod,
    {
        let count: usize = self.places.dims.iter().product();
        let ((from, _), (out, _)) = (from.as_chunks::<SIZE>(), out.as_chunks_mut());
        self.copy_by(Stores::scattered(count * SIZE), from, out);
    }

    fn copy_by<T: bytemuck::Pod + Send + Sync>(&self, stores: Stores, from: &[T], out: &mut [T]) {
        let side = LINE / size_of::<T>();
        let page = match stores {
            Stores::Streaming => PAGE,
            Stores::Plain => PAGE / 2,
        };
        // Each thread gets some, but of rows that one line has.
        let outer: usize = self.places.dims[..self.axis].iter().product();
        let shares = (2 * parallel::width()).div_ceil(outer);
        let height = self.rows().div_ceil(shares).next_multiple_of(side);
        let height = height.min(page / size_of::<T>());
        let split = parallel::Split {
            dims: &self.places.dims,
            strides: &self.places.strides[TO],
            offset: self.offsets[TO],
            axes: self.axis + 1,
            height,
        };
        let pitch = self.places.strides[TO][self.axis] as usize;
        split.share(out, |places, base, out| {
            let lines = stores.lines();
            let mut at = places.start;
            while at < places.end {
                let band = self.band(at, height);
                for middle in 0..self.middles() {
                    let first = self.first(TO, &band, middle) as usize - base;
                    self.matrix(&band, middle, 0..self.columns()).copy(
                        from,
                        (&mut out[first..], pitch),
                        &lines,
                    );
                }
                at += band.rows * self.pitch();
            }
        });
    }
}

/// Rows from the `first` on, at one place of the outer axes.
pub(crate) struct Band {
    outer: usize,
    first: usize,
    pub rows: usize,
}

/// A matrix of memory, from the `first` element on.
pub(crate) struct Matrix {
    first: isize,
    /// From a row to the next one, and from a column.
    step: isize,
    stride: isize,
    rows: usize,
    columns: usize,
}

impl Matrix {
    /// From the first element on, rows that are neighbours and columns that are `stride` elements apart.
    pub(crate) fn of(stride: usize, [rows, columns]: [usize; 2]) -> Self {
        Self {
            first: 0,
            step: 1,
            stride: stride as isize,
            rows,
            columns,
        }
    }

    /// Copies it to rows that are `pitch` elements apart.
    pub(crate) fn copy<T: bytemuck::Pod>(
        &self,
        from: &[T],
        (out, pitch): (&mut [T], usize),
        lines: &Lines,
    ) {
        let from = bytemuck::cast_slice(from);
        let out = (bytemuck::cast_slice_mut(out), pitch);
        match size_of::<T>() {
            1 => self.squares::<1, 16>(from, out, lines),
            2 => self.squares::<2, 8>(from, out, lines),
            4 => self.squares::<4, 4>(from, out, lines),
            8 => self.squares::<8, 2>(from, out, lines),
            _ => self.squares::<16, 1>(from, out, lines),
        }
    }

    /// Of elements of `SIZE` bytes, `EACH` to a vector.
    fn squares<const SIZE: usize, const EACH: usize>(
        &self,
        from: &[u8],
        (out, pitch): (&mut [u8], usize),
        lines: &Lines,
    ) {
        let side = LINE / SIZE;
        let is_back = self.step == -1;
        let mut columns = [[[0; VECTORS]; EACH]; VECTORS];
        let mut turned = [[0; VECTORS]; EACH];
        for column in (0..self.columns).step_by(side) {
            let width = side.min(self.columns - column);
            for row in (0..self.rows).step_by(side) {
                let height = side.min(self.rows - row);
                let mut start =
                    self.first + column as isize * self.stride + row as isize * self.step;
                for line in &mut columns.as_flattened_mut()[..width] {
                    let line: &mut [u8] = bytemuck::cast_slice_mut(line);
                    match self.step {
                        1 | -1 => {
                            // Backwards from the last row on.
                            let back = if is_back { height - 1 } else { 0 };
                            let of_column =
                                &from[(start as usize - back) * SIZE..][..height * SIZE];
                            // Of a known length it is no call.
                            match <&[u8; LINE]>::try_from(of_column) {
                                Ok(whole) => line.copy_from_slice(whole),
                                Err(_) => line[..height * SIZE].copy_from_slice(of_column),
                            }
                        }
                        step => {
                            let mut at = start;
                            for element in line.chunks_exact_mut(SIZE).take(height) {
                                element.copy_from_slice(&from[at as usize * SIZE..][..SIZE]);
                                at += step;
                            }
                        }
                    }
                    start += self.stride;
                }
                for at in 0..height.div_ceil(EACH) {
                    let columns = columns.iter().take(width.div_ceil(EACH));
                    for (to, columns) in columns.enumerate() {
                        let square = std::array::from_fn(|of| columns[of][at]);
                        let square = turn::<SIZE, EACH>(square);
                        for (line, vector) in turned.iter_mut().zip(square) {
                            line[to] = vector;
                        }
                    }
                    let rows = EACH.min(height - at * EACH);
                    for (line, to) in turned[..rows].iter().zip(at * EACH..) {
                        let to = row + if is_back { height - 1 - to } else { to };
                        let out = &mut out[(to * pitch + column) * SIZE..][..width * SIZE];
                        let line: &[u8; LINE] = bytemuck::cast_ref(line);
                        match <&mut [u8; LINE]>::try_from(&mut *out) {
                            Ok(out) => lines.write(out, line),
                            Err(_) => out.copy_from_slice(&line[..width * SIZE]),
                        }
                    }
                }
            }
        }
    }
}

/// 16 bytes.
type Vector = u128;
/// Vectors of a line.
const VECTORS: usize = LINE / size_of::<Vector>();

/// The rows of a square as its columns: each round joins every element with the one half of the square further on.
#[inline(always)]
fn turn<const SIZE: usize, const EACH: usize>(mut square: [Vector; EACH]) -> [Vector; EACH] {
    for _ in 0..EACH.ilog2() {
        let before = square;
        for at in 0..EACH / 2 {
            let [low, high] = interleaved::<SIZE>(before[at], before[at + EACH / 2]);
            square[2 * at] = low;
            square[2 * at + 1] = high;
        }
    }
    square
}

/// The elements of both in turns: first those of the lower halves, then those of the upper ones.
#[inline(always)]
fn interleaved<const SIZE: usize>(a: Vector, b: Vector) -> [Vector; 2] {
    #[cfg(target_arch = "x86_64")]
    if let Some(sse2) = pulp::core_arch::x86::Sse2::try_new() {
        let (a, b) = (bytemuck::cast(a), bytemuck::cast(b));
        let both = match SIZE {
            1 => [sse2._mm_unpacklo_epi8(a, b), sse2._mm_unpackhi_epi8(a, b)],
            2 => [sse2._mm_unpacklo_epi16(a, b), sse2._mm_unpackhi_epi16(a, b)],
            4 => [sse2._mm_unpacklo_epi32(a, b), sse2._mm_unpackhi_epi32(a, b)],
            _ => [sse2._mm_unpacklo_epi64(a, b), sse2._mm_unpackhi_epi64(a, b)],
        };
        return both.map(bytemuck::cast);
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(neon) = pulp::core_arch::aarch64::Neon::try_new() {
        macro_rules! zipped {
            ($low:ident, $high:ident) => {{
                let (a, b) = (bytemuck::cast(a), bytemuck::cast(b));
                [neon.$low(a, b), neon.$high(a, b)].map(bytemuck::cast)
            }};
        }
        return match SIZE {
            1 => zipped!(vzip1q_u8, vzip2q_u8),
            2 => zipped!(vzip1q_u16, vzip2q_u16),
            4 => zipped!(vzip1q_u32, vzip2q_u32),
            _ => zipped!(vzip1q_u64, vzip2q_u64),
        };
    }
    interleaved_bytes::<SIZE>(a, b)
}

/// What any processor can do.
#[inline(always)]
fn interleaved_bytes<const SIZE: usize>(a: Vector, b: Vector) -> [Vector; 2] {
    let (a, b) = (a.to_ne_bytes(), b.to_ne_bytes());
    [0, 8].map(|half| {
        Vector::from_ne_bytes(std::array::from_fn(|at| {
            let (element, byte) = (at / SIZE, at % SIZE);
            let from = if element % 2 == 0 { a } else { b };
            from[half + element / 2 * SIZE + byte]
        }))
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::layout::SliceRange;

    fn interleaves<const SIZE: usize>() {
        let [a, b] = [
            0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128,
            0xfedc_ba98_7654_3210_u128 << 61,
        ];
        assert_eq!(interleaved::<SIZE>(a, b), interleaved_bytes::<SIZE>(a, b));
    }

    fn copies<T: bytemuck::Pod + Send + Sync + PartialEq + Debug>(of: impl Fn(usize) -> T) {
        let shapes = [
            ([1, 16, 1, 17], [0, 3, 2, 1]),
            ([2, 65, 3, 134], [0, 3, 2, 1]),
            ([2, 316, 1, 128], [0, 3, 2, 1]),
            ([17, 2, 2, 33], [3, 1, 2, 0]),
            ([1, 17, 1, 5040], [0, 3, 2, 1]),
        ];
        let ways = [(0, 1), (3, 1), (1, -1), (0, 2), (2, -3)];
        for ((shape, axes), (margin, step)) in
            shapes.into_iter().flat_map(|s| ways.map(|way| (s, way)))
        {
            let times = |size: usize| size * isize::unsigned_abs(step);
            let outer = shape.map(|size| times(size) + margin);
            let ranges =
                shape.map(|size| SliceRange::from(margin..margin + times(size)).step(step));
            let whole = Layout::contiguous(outer);
            let layout = whole.slice(&ranges).unwrap().permute(&axes).unwrap();
            let from: Vec<T> = (0..whole.elements()).map(&of).collect();
            let transposed = Transposed::by_rows(&layout).unwrap();
            let want: Vec<T> = (0..layout.elements())
                .map(|at| {
                    let at = place(at, layout.shape().dims(), layout.strides());
                    from[layout.offset().wrapping_add_signed(at)]
                })
                .collect();
            for (stores, before) in [
                (Stores::Plain, 0),
                (Stores::Streaming, 0),
                (Stores::Streaming, 1),
            ] {
                let mut out = vec![T::zeroed(); before + want.len()];
                transposed.copy_by(stores, &from, &mut out[before..]);
                assert!(out[before..] == want, "{layout:?} {before}");
            }
            // Into a part of something, whose other elements stay.
            let sizes = layout
                .shape()
                .iter()
                .map(|size| size + 2)
                .collect::<Vec<_>>();
            let part: Vec<_> = layout
                .shape()
                .iter()
                .map(|size| (1..size + 1).into())
                .collect();
            let to = Layout::contiguous(&sizes[..]).slice(&part).unwrap();
            let mut out = vec![T::zeroed(); to.end() + 1];
            Transposed::of(&layout, &to, size_of::<T>())
                .unwrap()
                .copy_by(Stores::Streaming, &from, &mut out);
            let mut wanted = vec![T::zeroed(); out.len()];
            for (at, &element) in want.iter().enumerate() {
                let at = place(at, to.shape().dims(), to.strides());
                wanted[to.offset() + at as usize] = element;
            }
            assert!(out == wanted, "{layout:?} to {to:?}");
        }
    }

    #[test]
    fn copies_of_all_sizes_are_the_elements_in_order() {
        copies(|at| (at % 251) as u8);
        copies(|at| at as u16);
        copies(|at| at as u32);
        copies(|at| at as u64);
    }

    fn units<T: bytemuck::Pod + Send + Sync + PartialEq>(of: impl Fn(usize) -> T) {
        for unit in [2, 4, 8, 16]
            .into_iter()
            .filter(|unit| unit * size_of::<T>() <= 16)
        {
            let whole = Layout::contiguous([18 * 41, unit]);
            let part = whole
                .slice(&[(1..1 + 17 * 40).into(), (..).into()])
                .unwrap();
            let layout = part.reshape(&[17, 40, unit].into()).unwrap();
            // What lies behind the last unit is not one.
            let from: Vec<T> = (0..whole.elements() + 1).map(&of).collect();
            for turned in [
                layout.permute(&[1, 0, 2]),
                layout.flip(&[0]).unwrap().permute(&[1, 0, 2]),
            ] {
                let turned = turned.unwrap();
                let ranges = [(1..41).into(), (2..19).into(), (..).into()];
                let to = Layout::contiguous([42, 20, unit]).slice(&ranges).unwrap();
                let transposed = Transposed::of(&turned, &to, size_of::<T>()).unwrap();
                assert_eq!(transposed.unit, unit);
                let mut want = vec![T::zeroed(); 42 * 20 * unit + 1];
                let mut out = want.clone();
                for (at, place) in turned.indices().zip(to.indices()) {
                    want[place] = from[at];
                }
                transposed.copy(&from, &mut out);
                assert!(out == want, "{turned:?}");
            }
        }
    }

    #[test]
    fn few_neighbours_are_moved_as_one() {
        units(|at| (at % 251) as u8 + 1);
        units(|at| at as u16 + 1);
        units(|at| at as u32 + 1);
        units(|at| at as u64 + 1);
        let turned = |shape: [usize; 3]| Layout::contiguous(shape).permute(&[1, 0, 2]).unwrap();
        let is_of = |from: &Layout, size| {
            let to = Layout::contiguous(from.shape().clone());
            Transposed::of(from, &to, size).is_some()
        };
        assert!(is_of(&turned([20, 20, 4]), 4));
        assert!(!is_of(&turned([20, 20, 4]), 8));
        assert!(!is_of(&turned([20, 20, 3]), 4));
        // From within a unit on.
        let within = turned([20, 20, 4]).slice(&[(..).into(), (..).into(), (1..3).into()]);
        assert!(!is_of(&within.unwrap(), 4));
    }

    /// What is by rows, or repeats, or has few rows or columns, goes other ways.
    #[test]
    fn others_are_not_transposed() {
        let of = |shape: [usize; 3], axes: [usize; 3]| {
            Transposed::by_rows(&Layout::contiguous(shape).permute(&axes).unwrap()).is_some()
        };
        assert!(of([2, 16, 16], [0, 2, 1]));
        assert!(of([16, 2, 16], [2, 1, 0]));
        assert!(!of([2, 16, 16], [0, 1, 2]));
        assert!(!of([2, 16, 16], [1, 0, 2]));
        assert!(!of([2, 15, 16], [0, 2, 1]));
        assert!(!of([2, 16, 15], [0, 2, 1]));
        assert!(!of([0, 16, 16], [0, 2, 1]));
        assert!(!of([16, 0, 16], [2, 1, 0]));
        let every = |step: isize| {
            let rows = Layout::contiguous([20, 200])
                .slice(&[(..).into(), SliceRange::from(..).step(step)]);
            Transposed::by_rows(&rows.unwrap().transpose(0, 1).unwrap()).is_some()
        };
        assert!([1, -1, 2, -8].into_iter().all(every));
        assert!(!every(9));
        let column = Layout::contiguous([16, 1]);
        let repeated = column.broadcast_to(&[16, 20].into()).unwrap();
        assert!(Transposed::by_rows(&repeated).is_none());
    }

    #[test]
    fn vectors_are_interleaved_as_bytes_are() {
        interleaves::<1>();
        interleaves::<2>();
        interleaves::<4>();
        interleaves::<8>();
    }
}
