//! Products in f32 whose right operand lies by lines along k, as weights `[n, k]` do: both operands are turned square by square
//! in the processor's registers into panels, where `gemm` packs element by element. On the caller's thread.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m512i;
use std::ops::Range;

use pulp::Simd;
#[cfg(target_arch = "x86_64")]
use pulp::cast;
#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

use super::matrix::{Matrix, Size};
use super::narrow::{self, Narrow};
use super::rooms::Rooms;
use super::stores::LINE;
use super::{parallel, tiles};

/// Vectors of columns of B whose sums registers hold, beside rows of A: of the widest vectors so many, of others half of them.
const VECTORS: usize = 2;
const TILE: usize = 12;
const WIDEST: usize = 16;
/// Steps of k that are packed at a time, and rows of A: with a panel of B they stay in the second cache.
pub(crate) const STEPS: usize = 512;
pub(crate) const ROWS: usize = 384;
/// Rows below which others are faster, where columns of B push each other out of a cache and where not; and columns, and terms.
const LEAST_ROWS: [usize; 2] = [9, 21];
const LEAST_COLUMNS: usize = 32;
/// Columns of a tile, at least, where threads share them.
const WIDE: usize = 128;
const LEAST_TERMS: usize = 64;

/// Elements whose lines are packed as f32.
pub(crate) trait Lines: Copy + Sync {
    /// A line as f32: itself, or in `room`.
    fn wide<'a>(line: &'a [Self], room: &'a mut [f32]) -> &'a [f32];
}

impl Lines for f32 {
    #[inline]
    fn wide<'a>(line: &'a [f32], _: &'a mut [f32]) -> &'a [f32] {
        line
    }
}

impl<T: Narrow> Lines for T {
    #[inline]
    fn wide<'a>(line: &'a [T], room: &'a mut [f32]) -> &'a [f32] {
        narrow::widen(line, room);
        room
    }
}

/// Whether both operands are lines along k, of so many that packing pays, and the processor has the vectors.
pub(crate) fn suit<T>(a: Matrix<'_, T>, b: Matrix<'_, T>, Size { m, k, n }: Size) -> bool {
    let are_lines = a.column == 1 && b.row == 1;
    let least = LEAST_ROWS[usize::from(!b.clashes())];
    let are_enough = m >= least && n >= LEAST_COLUMNS && k >= LEAST_TERMS;
    are_lines && are_enough && has_vectors()
}

/// Whether the processor has vectors that are turned here.
fn has_vectors() -> bool {
    // (Miri has none of it, whatever it is told of the processor.)
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return V3::try_new().is_some();
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    false
}

/// Numbers of f32 that a product of so many rows and steps takes: panels of A, then one of B, then a line for each lane.
pub(crate) fn scratch(rows: usize, steps: usize) -> usize {
    // Of vectors of eight, too, whose panels have half of the rows.
    let panels = rows.div_ceil(TILE) * WIDEST;
    (panels + (VECTORS + 1) * WIDEST) * steps + LINE / size_of::<f32>()
}

/// `c = a x b`, `c` row-major without gaps, of operands that [`suit`]; on several cores if asked. `false` where there is no memory
/// for what is packed: nothing has happened.
pub(crate) fn share(
    c: &mut [f32],
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    size: Size,
    in_parallel: bool,
) -> bool {
    let Size { m, k, n } = size;
    let threads = if in_parallel { parallel::width() } else { 1 };
    // A few tiles for each thread: of some columns, for which all rows are packed again, or else of fewer rows.
    let tiles = if threads == 1 { 1 } else { 2 * threads };
    let across = (n / WIDE).clamp(1, tiles);
    let down = tiles.div_ceil(across);
    let columns = n.div_ceil(across).next_multiple_of(VECTORS * WIDEST).min(n);
    let rows = m.div_ceil(down).next_multiple_of(TILE).min(ROWS).min(m);
    let Ok(rooms) = Rooms::new("matmul", threads, scratch(rows, k.min(STEPS))) else {
        return false;
    };
    tiles::share(in_parallel, c, n, [rows, columns], |tile| {
        let size = Size {
            m: tile.rows,
            n: tile.columns,
            k,
        };
        let (a, b) = (a.from(tile.row, 0), b.from(0, tile.column));
        let lines = tile.lines.into_iter();
        let mut lines: Vec<&mut [f32]> = lines
            .flat_map(|lines| lines.chunks_mut(tile.columns))
            .collect();
        rooms.lend(|room| multiply(&mut lines, a, b, size, room));
    });
    true
}

/// `sums = a x b`, of operands that lie as [`suit`] says, in rows that are at least as long as the product is
/// wide. The scratch is as large as [`scratch`] says of all rows and of [`STEPS`], or of all of k.
pub(crate) fn multiply<T: Lines>(
    sums: &mut [&mut [f32]],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    scratch: &mut [f32],
) {
    Product {
        sums,
        a,
        b,
        size,
        scratch,
    }
    .by_widest();
}

/// Vectors that are turned in squares.
trait Squares<const LANES: usize>: Simd {
    /// Rows as columns.
    fn turn(self, rows: [&[f32; LANES]; LANES], columns: &mut [[f32; LANES]; LANES]);
}

#[cfg(target_arch = "x86_64")]
impl Squares<16> for V4 {
    #[inline(always)]
    fn turn(self, rows: [&[f32; 16]; 16], to: &mut [[f32; 16]; 16]) {
        let mut all = [self.avx512f._mm512_setzero_si512(); 16];
        for at in 0..16 {
            all[at] = cast(*rows[at]);
        }
        let columns = turned(self, all);
        for at in 0..16 {
            to[at] = cast(columns[at]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Squares<8> for V3 {
    #[inline(always)]
    fn turn(self, rows: [&[f32; 8]; 8], to: &mut [[f32; 8]; 8]) {
        let (simd, wide) = (self.avx2, self.avx);
        let mut all = [wide._mm256_setzero_si256(); 8];
        for at in 0..8 {
            all[at] = cast(*rows[at]);
        }
        let mut pairs = all;
        for at in (0..8).step_by(2) {
            pairs[at] = simd._mm256_unpacklo_epi32(all[at], all[at + 1]);
            pairs[at + 1] = simd._mm256_unpackhi_epi32(all[at], all[at + 1]);
        }
        let mut fours = pairs;
        for at in (0..8).step_by(4) {
            fours[at] = simd._mm256_unpacklo_epi64(pairs[at], pairs[at + 2]);
            fours[at + 1] = simd._mm256_unpackhi_epi64(pairs[at], pairs[at + 2]);
            fours[at + 2] = simd._mm256_unpacklo_epi64(pairs[at + 1], pairs[at + 3]);
            fours[at + 3] = simd._mm256_unpackhi_epi64(pairs[at + 1], pairs[at + 3]);
        }
        let mut columns = fours;
        for at in 0..4 {
            let (low, high) = (fours[at], fours[at + 4]);
            columns[at] = wide._mm256_permute2f128_si256::<0x20>(low, high);
            columns[at + 4] = wide._mm256_permute2f128_si256::<0x31>(low, high);
        }
        for at in 0..8 {
            to[at] = cast(columns[at]);
        }
    }
}

/// Sixteen vectors of as many words, rows as columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn turned(simd: V4, rows: [__m512i; 16]) -> [__m512i; 16] {
    let simd = simd.avx512f;
    let mut pairs = rows;
    for at in (0..16).step_by(2) {
        pairs[at] = simd._mm512_unpacklo_epi32(rows[at], rows[at + 1]);
        pairs[at + 1] = simd._mm512_unpackhi_epi32(rows[at], rows[at + 1]);
    }
    // Of four rows the elements of a column in each part of 128 bits.
    let mut fours = pairs;
    for at in (0..16).step_by(4) {
        fours[at] = simd._mm512_unpacklo_epi64(pairs[at], pairs[at + 2]);
        fours[at + 1] = simd._mm512_unpackhi_epi64(pairs[at], pairs[at + 2]);
        fours[at + 2] = simd._mm512_unpacklo_epi64(pairs[at + 1], pairs[at + 3]);
        fours[at + 3] = simd._mm512_unpackhi_epi64(pairs[at + 1], pairs[at + 3]);
    }
    let mut columns = fours;
    for at in 0..4 {
        let [a, b, c, d] = [fours[at], fours[at + 4], fours[at + 8], fours[at + 12]];
        let even = [
            simd._mm512_shuffle_i32x4::<0x88>(a, b),
            simd._mm512_shuffle_i32x4::<0x88>(c, d),
        ];
        let odd = [
            simd._mm512_shuffle_i32x4::<0xdd>(a, b),
            simd._mm512_shuffle_i32x4::<0xdd>(c, d),
        ];
        columns[at] = simd._mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
        columns[at + 4] = simd._mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
        columns[at + 8] = simd._mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
        columns[at + 12] = simd._mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
    }
    columns
}

struct Product<'a, 'b, T> {
    sums: &'a mut [&'b mut [f32]],
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    size: Size,
    scratch: &'a mut [f32],
}

impl<T: Lines> Product<'_, '_, T> {
    fn by_widest(self) {
        #[cfg(target_arch = "x86_64")]
        match V4::try_new() {
            Some(simd) => simd.vectorize(
                #[inline(always)]
                || self.run::<V4, 16, 4, 8, TILE>(simd),
            ),
            None => self.by_eights(),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn by_eights(self) {
        if let Some(simd) = V3::try_new() {
            simd.vectorize(
                #[inline(always)]
                || self.run::<V3, 8, 2, 4, { TILE / 2 }>(simd),
            );
        }
    }

    /// By tiles of up to `ALL` rows, or of fewer where these are all.
    #[inline(always)]
    fn run<
        S: Squares<LANES>,
        const LANES: usize,
        const FEW: usize,
        const MORE: usize,
        const ALL: usize,
    >(
        self,
        simd: S,
    ) {
        let Size { m, k, n } = self.size;
        let skipped = self.scratch.as_ptr().align_offset(LINE).min(LINE / 4);
        let (_, scratch) = self.scratch.split_at_mut(skipped);
        let width = VECTORS * LANES;
        for step in (0..k).step_by(STEPS) {
            let steps = STEPS.min(k - step);
            let (left, rest) = scratch.split_at_mut(m.div_ceil(ALL) * LANES * steps);
            let (right, rest) = rest.split_at_mut(width * steps);
            let room = &mut rest[..LANES * steps];
            let left: &mut [[f32; LANES]] = left.as_chunks_mut().0;
            let (first, second) = right.as_chunks_mut().0.split_at_mut(steps);
            for (panel, row) in left.chunks_mut(steps).zip((0..m).step_by(ALL)) {
                let lines = self.a.from(row, step);
                pack(simd, panel, lines, ALL.min(m - row), room);
            }
            for column in (0..n).step_by(width) {
                let lines = self.b.turned().from(column, step);
                let count = width.min(n - column);
                pack(simd, first, lines, count.min(LANES), room);
                if count > LANES {
                    pack(simd, second, lines.from(LANES, 0), count - LANES, room);
                }
                // Of no second vector the first one again.
                let b = [&*first, if count > LANES { &*second } else { &*first }];
                for (a, rows) in left.chunks(steps).zip(self.sums.chunks_mut(ALL)) {
                    let to = Target {
                        columns: column..column + count,
                        adds: step > 0,
                        rows,
                    };
                    if to.rows.len() <= FEW {
                        tile::<S, LANES, FEW>(simd, a, b, to);
                    } else if to.rows.len() <= MORE {
                        tile::<S, LANES, MORE>(simd, a, b, to);
                    } else {
                        tile::<S, LANES, ALL>(simd, a, b, to);
                    }
                }
            }
        }
    }
}

/// Some rows and columns of the sums.
struct Target<'a, 'b> {
    rows: &'a mut [&'b mut [f32]],
    columns: Range<usize>,
    adds: bool,
}

/// Sums of a panel's first `N` rows and two vectors of columns, all steps.
#[inline(always)]
fn tile<S: Simd, const LANES: usize, const N: usize>(
    simd: S,
    a: &[[f32; LANES]],
    b: [&[[f32; LANES]]; VECTORS],
    to: Target<'_, '_>,
) {
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; N];
    for ((a, first), second) in a.iter().zip(b[0]).zip(b[1]) {
        let right = [S::as_simd_f32s(first).0[0], S::as_simd_f32s(second).0[0]];
        for row in 0..N {
            let left = simd.splat_f32s(a[row]);
            for vector in 0..VECTORS {
                sums[row][vector] = simd.mul_add_f32s(left, right[vector], sums[row][vector]);
            }
        }
    }
    // Stored once, all of them: else one is in memory all the time.
    let mut stored = [[[0.0; LANES]; VECTORS]; N];
    for row in 0..N {
        for vector in 0..VECTORS {
            S::as_mut_simd_f32s(&mut stored[row][vector]).0[0] = sums[row][vector];
        }
    }
    for (row, sums) in to.rows.iter_mut().zip(&stored) {
        let row = &mut row[to.columns.clone()];
        let sums = sums.as_flattened();
        match to.adds {
            true => {
                for (to, sum) in row.iter_mut().zip(sums) {
                    *to += sum;
                }
            }
            false => row.copy_from_slice(&sums[..row.len()]),
        }
    }
}

/// Packs up to as many lines as there are lanes, all steps of the panel; others are zeros.
#[inline(always)]
fn pack<T: Lines, S: Squares<LANES>, const LANES: usize>(
    simd: S,
    panel: &mut [[f32; LANES]],
    lines: Matrix<'_, T>,
    count: usize,
    room: &mut [f32],
) {
    let steps = panel.len();
    let mut terms: [&[f32]; LANES] = [&[]; LANES];
    let rooms = room.chunks_mut(steps).enumerate().take(count);
    for (terms, (at, room)) in terms.iter_mut().zip(rooms) {
        *terms = T::wide(&lines.from(at, 0).elements[..steps], room);
    }
    let (squares, rest) = panel.as_chunks_mut::<LANES>();
    for (square, first) in squares.iter_mut().zip((0..steps).step_by(LANES)) {
        let mut rows = [&[0.0; LANES]; LANES];
        for (row, terms) in rows.iter_mut().zip(&terms) {
            let here = terms.get(first..).and_then(<[f32]>::first_chunk);
            *row = here.unwrap_or(row);
        }
        simd.turn(rows, square);
    }
    let first = steps - rest.len();
    for (at, to) in (first..).zip(rest) {
        *to = [0.0; LANES];
        for (to, terms) in to.iter_mut().zip(&terms[..count]) {
            *to = terms[at];
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// `a x b` of whole numbers, in rows that are longer, by vectors of either length.
    fn check<T: Lines>(make: impl Fn(f32) -> T, [m, k, n]: [usize; 3]) {
        let value = |at: usize, turn: usize| ((at * turn) % 13) as f32 - 6.0;
        let size = Size { m, k, n };
        let pitches = [k + 1, k + 3];
        let elements = |count: usize, turn: usize| -> Vec<T> {
            (0..count).map(|at| make(value(at, turn))).collect()
        };
        let (left, right) = (elements(m * pitches[0], 7), elements(n * pitches[1], 5));
        let lines = |elements, pitch: usize| Matrix {
            elements,
            row: pitch as isize,
            column: 1,
        };
        let (a, b) = (lines(&left, pitches[0]), lines(&right, pitches[1]).turned());
        for is_widest in [true, false] {
            let mut room = vec![f32::NAN; scratch(m, k.min(STEPS))];
            let mut sums = vec![f32::NAN; m * (n + 2)];
            let mut rows: Vec<&mut [f32]> = sums.chunks_mut(n + 2).collect();
            let product = Product {
                sums: &mut rows,
                a,
                b,
                size,
                scratch: &mut room,
            };
            match is_widest {
                true => product.by_widest(),
                false => product.by_eights(),
            }
            for (at, sum) in sums.iter().enumerate() {
                let (i, j) = (at / (n + 2), at % (n + 2));
                let term = |p: usize| value(i * pitches[0] + p, 7) * value(j * pitches[1] + p, 5);
                match j < n {
                    true => assert_eq!(*sum, (0..k).map(term).sum::<f32>(), "{size:?}, {i}, {j}"),
                    false => assert!(sum.is_nan(), "{size:?}: beside it"),
                }
            }
        }
    }

    #[test]
    fn products_are_exact_around_every_edge() {
        if !has_vectors() {
            return;
        }
        for m in [1, 2, 3, 4, 6, 7, 9, 12, 13, 25, 37] {
            for k in [1, 7, 8, 15, 16, 17, 33, 100] {
                for n in [1, 8, 9, 16, 17, 31, 32, 33, 65] {
                    check(|x| x, [m, k, n]);
                    check(f16::from_f32, [m, k, n]);
                }
            }
        }
        for k in [511, 512, 513, 1100] {
            check(|x| x, [13, k, 40]);
            check(bf16::from_f32, [13, k, 40]);
        }
    }
}
