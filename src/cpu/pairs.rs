//! Products of bf16 by the instruction that multiplies pairs of them and adds both products to a sum in f32 (AVX512-BF16): twice
//! as many multiply-adds as of f32, and nothing is widened. On the caller's thread.
//!
//! The instruction takes subnormal operands for zero. So where there is one nothing is computed here.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_add_ps, _mm512_and_si512, _mm512_cmplt_epu16_mask,
    _mm512_cvtepu16_epi32, _mm512_dpbf16_ps, _mm512_or_si512, _mm512_reduce_add_ps,
    _mm512_set1_epi16, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_sub_epi16,
};

use std::array;

use bytemuck::{cast, cast_slice_mut};
use half::bf16;
use pulp::x86::V4;

use super::matrix::{Matrix, Size};
use super::panels::turned;
use super::stores::LINE;

/// Pairs of a vector.
const LANES: usize = 16;
/// Rows of A, and vectors of columns of B, whose sums registers hold.
const ROWS: usize = 12;
const VECTORS: usize = 2;
/// Elements of a vector.
const WIDE: usize = 2 * LANES;
/// Lines of either side that are multiplied with each other at a time.
const SQUARE: usize = 4;
/// Steps of pairs that are packed of all columns before the next ones are: pages of several rows are read side by side.
const TOGETHER: usize = 8;
/// Lines that are few, and the least terms that pay for adding up vectors.
const FEW: usize = 8;
const LEAST: usize = 128;
/// Terms of lines that are taken one after the other.
const SHORT: usize = 4096;
/// Terms of a line that are summed before they are added to those before them.
const PART: usize = 8192;
/// Columns from which packing those of few rows pays, and multiply-adds from which it does for more.
const MANY: usize = 64;
const SMALLEST: usize = 32 * 32 * 32;

/// Pairs of steps of k, of sixteen rows or columns.
type Packed = [u32; LANES];

/// Numbers of 32 bits that packed operands take, of A and of B: they begin with a line of memory.
pub(super) fn packed([m, n]: [usize; 2], k: usize) -> [usize; 2] {
    let steps = k.div_ceil(2);
    [m.div_ceil(ROWS), n.div_ceil(LANES)].map(|panels| panels * steps * LANES + LINE / 4)
}

/// Whether the processor has the instruction, and what is used beside it.
pub(super) fn is_there() -> bool {
    // (Miri has none of it, whatever it is told of the processor.)
    cfg!(not(miri))
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512bf16")
}

/// `sums = a x b`, `sums` row-major without gaps, of few rows or columns and lines of neighbours along k, and whether that was
/// done: as [`multiply_add`].
pub(super) fn multiply_lines(
    sums: &mut [f32],
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    size: Size,
) -> bool {
    let is_few = size.m.min(size.n) <= FEW && size.k >= LEAST;
    let are_lines = a.column == 1 && b.row == 1;
    // SAFETY: the processor has what the function is compiled for.
    is_few && are_lines && is_there() && unsafe { lines(sums, a, b, size) }
}

/// Whether packing costs less than it gives.
fn pays(Size { m, k, n }: Size) -> bool {
    match m <= FEW {
        true => k >= LEAST && n >= MANY,
        false => n > FEW && k >= LANES && m * n * k >= SMALLEST,
    }
}

/// `sums += a x b`, `sums` row-major without gaps, and whether that was done: not where that does not pay, the processor has no
/// such instruction or an operand is subnormal. Matrices lie inside their slices; the scratch is as large as [`packed`] says.
pub(super) fn multiply_add(
    sums: &mut [f32],
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    size: Size,
    scratch: [&mut [f32]; 2],
) -> bool {
    // SAFETY: the processor has what the function is compiled for.
    pays(size) && is_there() && unsafe { product(sums, a, b, size, scratch) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn product(
    sums: &mut [f32],
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    Size { m, k, n }: Size,
    [left, right]: [&mut [f32]; 2],
) -> bool {
    let steps = k.div_ceil(2);
    let (left, right) = (panels(left, steps), panels(right, steps));
    let b = b.turned();
    let mut is_subnormal = false;
    for (panel, row) in left.chunks_mut(steps).zip((0..m).step_by(ROWS)) {
        is_subnormal |= pack(panel, a.from(row, 0), ROWS.min(m - row), k);
    }
    let whole = match b.row {
        1 => n / WIDE * WIDE,
        _ => 0,
    };
    let (wide, rest) = right.split_at_mut(whole / LANES * steps);
    for from in (0..steps).step_by(TOGETHER) {
        let to = steps.min(from + TOGETHER);
        for (panels, column) in wide.chunks_mut(2 * steps).zip((0..whole).step_by(WIDE)) {
            let (first, second) = panels.split_at_mut(steps);
            let lines = b.from(column, 2 * from);
            is_subnormal |= pack_wide(
                &mut first[from..to],
                &mut second[from..to],
                lines,
                k - 2 * from,
            );
        }
    }
    for (panel, column) in rest.chunks_mut(steps).zip((whole..n).step_by(LANES)) {
        is_subnormal |= pack(panel, b.from(column, 0), LANES.min(n - column), k);
    }
    if is_subnormal {
        return false;
    }
    let columns = (0..n).step_by(VECTORS * LANES);
    for (b, column) in right.chunks(VECTORS * steps).zip(columns) {
        let width = (n - column).min(VECTORS * LANES);
        // Of no second vector the first one again.
        let second = if width > LANES { steps } else { 0 };
        let b = (&b[..steps], &b[second..][..steps]);
        for (a, row) in left.chunks(steps).zip((0..m).step_by(ROWS)) {
            let height = (m - row).min(ROWS);
            let to = (&mut sums[row * n + column..], n);
            match height {
                1..=2 => tile::<2>(a, b, to, [height, width]),
                3..=4 => tile::<4>(a, b, to, [height, width]),
                5..=6 => tile::<6>(a, b, to, [height, width]),
                7..=8 => tile::<8>(a, b, to, [height, width]),
                _ => tile::<ROWS>(a, b, to, [height, width]),
            }
        }
    }
    true
}

/// Adds a tile's sums of all steps to those of the product, whose rows are `n` long.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn tile<const N: usize>(
    a: &[Packed],
    b: (&[Packed], &[Packed]),
    (to, n): (&mut [f32], usize),
    [height, width]: [usize; 2],
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; N];
    for ((a, first), second) in a.iter().zip(b.0).zip(b.1) {
        let right: [__m512bh; VECTORS] = [cast(*first), cast(*second)];
        for (row, sums) in sums.iter_mut().enumerate() {
            let left: __m512bh = cast(_mm512_set1_epi32(a[row] as i32));
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = _mm512_dpbf16_ps(*sum, left, right);
            }
        }
    }
    for (row, sums) in sums.iter().take(height).enumerate() {
        let sums: [f32; VECTORS * LANES] = cast(*sums);
        let to = &mut to[row * n..][..width];
        match to.first_chunk_mut::<{ VECTORS * LANES }>() {
            Some(to) => {
                for lane in 0..VECTORS * LANES {
                    to[lane] += sums[lane];
                }
            }
            None => {
                for (to, sum) in to.iter_mut().zip(&sums[..]) {
                    *to += sum;
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn lines(
    sums: &mut [f32],
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    Size { m, k, n }: Size,
) -> bool {
    let b = b.turned();
    let mut subnormal = 0;
    // The few are looked at before, the others as they are read.
    let (few, others, [count, many]) = match m <= n {
        true => (a, b, [m, n]),
        false => (b, a, [n, m]),
    };
    for line in 0..count {
        let line = &few.elements[line * few.row as usize..][..k];
        for at in (0..k).step_by(WIDE) {
            subnormal |= subnormals(loaded(line, at));
        }
    }
    let [to_few, to_many] = if m <= n { [n, 1] } else { [1, n] };
    for from in (0..many).step_by(SQUARE) {
        let long: [&[bf16]; SQUARE] = array::from_fn(|at| {
            &others.elements[(from + at).min(many - 1) * others.row as usize..][..k]
        });
        for first in (0..count).step_by(SQUARE) {
            let short: [&[bf16]; SQUARE] = array::from_fn(|at| {
                &few.elements[(first + at).min(count - 1) * few.row as usize..][..k]
            });
            let mut products = [[0.0; SQUARE]; SQUARE];
            // In parts, whose roundings do not add up along all of k.
            for start in (0..k).step_by(PART) {
                let part = start..k.min(start + PART);
                let short = short.map(|line| &line[part.clone()]);
                let long = long.map(|line| &line[part.clone()]);
                subnormal |= match count - first {
                    1 if count == 1 && k <= SHORT => add_lines(&mut products[0], short[0], &long),
                    1 => add_square::<1>(&mut products, &short, &long),
                    2 => add_square::<2>(&mut products, &short, &long),
                    _ => add_square::<SQUARE>(&mut products, &short, &long),
                };
            }
            for (row, products) in products.iter().enumerate().take(count - first) {
                for (column, &sum) in products.iter().enumerate().take(many - from) {
                    sums[(first + row) * to_few + (from + column) * to_many] = sum;
                }
            }
        }
    }
    subnormal == 0
}

/// Adds the products of the first `N` of some lines with each of others, and says which elements of these are subnormal.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn add_square<const N: usize>(
    products: &mut [[f32; SQUARE]; SQUARE],
    short: &[&[bf16]; SQUARE],
    long: &[&[bf16]; SQUARE],
) -> u32 {
    let k = long[0].len();
    let mut sums = [[_mm512_setzero_ps(); SQUARE]; N];
    let mut subnormal = 0;
    let whole = k / WIDE * WIDE;
    for at in (0..k).step_by(WIDE) {
        let mut right = [_mm512_setzero_si512(); SQUARE];
        for (right, line) in right.iter_mut().zip(long) {
            *right = match at < whole {
                true => whole_at(line, at),
                false => loaded(line, at),
            };
            subnormal |= subnormals(*right);
        }
        for (sums, line) in sums.iter_mut().zip(short) {
            let left = match at < whole {
                true => whole_at(line, at),
                false => loaded(line, at),
            };
            for (sum, &right) in sums.iter_mut().zip(&right) {
                *sum = _mm512_dpbf16_ps(*sum, cast(left), cast(right));
            }
        }
    }
    for (products, sums) in products.iter_mut().zip(&sums) {
        for (product, &sum) in products.iter_mut().zip(sums) {
            *product += _mm512_reduce_add_ps(sum);
        }
    }
    subnormal
}

/// The same of a single line with each of the others, one after the other: short ones beside each other would be as many streams from
/// memory, which end before the processor reads them ahead.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn add_lines(products: &mut [f32; SQUARE], short: &[bf16], long: &[&[bf16]; SQUARE]) -> u32 {
    let mut subnormal = 0;
    for (product, long) in products.iter_mut().zip(long) {
        let (fours, rest) = long.as_chunks::<{ SQUARE * WIDE }>();
        let mut sums = [_mm512_setzero_ps(); SQUARE];
        for (from, short) in fours.iter().zip(short.as_chunks::<{ SQUARE * WIDE }>().0) {
            let (from, short) = (from.as_chunks::<WIDE>().0, short.as_chunks::<WIDE>().0);
            for (at, sum) in sums.iter_mut().enumerate() {
                let right: __m512i = cast(from[at]);
                subnormal |= subnormals(right);
                *sum = _mm512_dpbf16_ps(*sum, cast(short[at]), cast(right));
            }
        }
        let first = long.len() - rest.len();
        for at in (first..long.len()).step_by(WIDE) {
            let right = loaded(long, at);
            subnormal |= subnormals(right);
            sums[0] = _mm512_dpbf16_ps(sums[0], cast(loaded(short, at)), cast(right));
        }
        let [first, second, third, fourth] = sums;
        let sum = _mm512_add_ps(_mm512_add_ps(first, second), _mm512_add_ps(third, fourth));
        *product += _mm512_reduce_add_ps(sum);
    }
    subnormal
}

/// A vector of a line's elements that has them all.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn whole_at(line: &[bf16], at: usize) -> __m512i {
    match line[at..].first_chunk::<WIDE>() {
        Some(&whole) => cast(whole),
        None => _mm512_setzero_si512(),
    }
}

/// A vector of a line's elements, and of zeros behind its end.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn loaded(line: &[bf16], at: usize) -> __m512i {
    let elements = &line[at..line.len().min(at + WIDE)];
    let mut padded = [bf16::ZERO; WIDE];
    padded[..elements.len()].copy_from_slice(elements);
    cast(padded)
}

/// The part of the scratch where panels of so many steps begin with a line of memory.
fn panels(scratch: &mut [f32], steps: usize) -> &mut [Packed] {
    let skipped = scratch.as_ptr().align_offset(LINE).min(LINE / 4);
    let whole = (scratch.len() - skipped) / (LANES * steps) * (LANES * steps);
    let words: &mut [u32] = cast_slice_mut(&mut scratch[skipped..][..whole]);
    words.as_chunks_mut().0
}

/// Packs up to sixteen lines of `k` elements, and says whether one of these is subnormal. Of fewer lines the others are not read.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack(panel: &mut [Packed], lines: Matrix<'_, bf16>, count: usize, k: usize) -> bool {
    let mut subnormal = 0;
    let elements = lines.elements;
    let [to_line, to_step] = [lines.row, lines.column].map(|stride| stride as usize);
    if let Some(simd) = V4::try_new().filter(|_| to_step == 1) {
        for (block, panel) in panel.chunks_mut(LANES).enumerate() {
            let first = block * WIDE;
            let here = (k - first).min(WIDE);
            let mut vectors = [_mm512_setzero_si512(); LANES];
            for (line, vector) in vectors.iter_mut().enumerate().take(count) {
                let elements = &elements[line * to_line + first..][..here];
                *vector = match elements.first_chunk::<{ WIDE }>() {
                    Some(&whole) => cast(whole),
                    None => {
                        let mut padded = [bf16::ZERO; WIDE];
                        padded[..here].copy_from_slice(elements);
                        cast(padded)
                    }
                };
                subnormal |= subnormals(*vector);
            }
            for (to, pairs) in panel.iter_mut().zip(turned(simd, vectors)) {
                *to = cast(pairs);
            }
        }
        return subnormal != 0;
    }
    for (step, to) in panel.iter_mut().enumerate() {
        let mut both = [[bf16::ZERO; LANES]; 2];
        for (of_step, at) in both.iter_mut().zip(2 * step..k) {
            let from = &elements[at * to_step..];
            match from.first_chunk::<LANES>() {
                Some(&whole) if to_line == 1 && count == LANES => *of_step = whole,
                _ => {
                    for (line, of_line) in of_step.iter_mut().enumerate().take(count) {
                        *of_line = from[line * to_line];
                    }
                }
            }
        }
        let [first, second] = both;
        for ((to, first), second) in to.iter_mut().zip(first).zip(second) {
            *to = u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16;
        }
        subnormal |= subnormals(cast(*to));
    }
    subnormal != 0
}

/// [`pack`] of two panels, whose lines' elements are neighbours at each step: whole lines of memory are read.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_wide(
    first: &mut [Packed],
    second: &mut [Packed],
    lines: Matrix<'_, bf16>,
    k: usize,
) -> bool {
    let mut subnormal = 0;
    let to_step = lines.column as usize;
    for (step, to) in first.iter_mut().zip(second).enumerate() {
        let mut halves = [[_mm512_setzero_si512(); 2]; 2];
        for (halves, at) in halves.iter_mut().zip(2 * step..k) {
            let from = &lines.elements[at * to_step..];
            for (half, from) in halves.iter_mut().zip(from.as_chunks::<LANES>().0) {
                *half = _mm512_cvtepu16_epi32(cast(*from));
            }
        }
        let [low, high] = halves;
        let both = |at: usize| _mm512_or_si512(low[at], _mm512_slli_epi32::<16>(high[at]));
        let pairs = [both(0), both(1)];
        subnormal |= subnormals(pairs[0]) | subnormals(pairs[1]);
        (*to.0, *to.1) = (cast(pairs[0]), cast(pairs[1]));
    }
    subnormal != 0
}

/// Which elements are subnormal: of those without their sign from the least to the greatest.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn subnormals(vector: __m512i) -> u32 {
    let sizes = _mm512_and_si512(vector, _mm512_set1_epi16(0x7fff));
    let before = _mm512_sub_epi16(sizes, _mm512_set1_epi16(1));
    _mm512_cmplt_epu16_mask(before, _mm512_set1_epi16(0x7f))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, whose sums f32 holds.
    fn values(count: usize, turn: usize) -> Vec<bf16> {
        let value = |at: usize| bf16::from_f32(((at * turn) % 13) as f32 - 6.0);
        (0..count).map(value).collect()
    }

    /// A matrix by rows, by columns, or with gaps between its elements: its strides and how many elements it takes.
    fn ways([rows, columns]: [usize; 2]) -> [[usize; 3]; 3] {
        [
            [columns + 3, 1, rows * (columns + 3)],
            [1, rows + 1, columns * (rows + 1)],
            [3 * columns, 3, rows * columns * 3],
        ]
    }

    fn matrix(elements: &[bf16], [row, column, _]: [usize; 3]) -> Matrix<'_, bf16> {
        Matrix {
            elements,
            row: row as isize,
            column: column as isize,
        }
    }

    #[test]
    fn products_are_exact_around_every_edge() {
        let sides = [1, 5, 8, 11, 12, 13, 31, 33, 70];
        let terms = [1, 17, 31, 32, 33, 130];
        for (m, n) in sides.into_iter().flat_map(|m| sides.map(|n| (m, n))) {
            for k in terms {
                for (of_a, of_b) in (0..9).map(|at| (at / 3, at % 3)) {
                    let (of_a, of_b) = (ways([m, k])[of_a], ways([k, n])[of_b]);
                    let (a, b) = (values(of_a[2], 7), values(of_b[2], 5));
                    let (a, b) = (matrix(&a, of_a), matrix(&b, of_b));
                    let want = |at: usize| -> f32 {
                        let (i, j) = (at / n, at % n);
                        let of = |matrix: Matrix<'_, bf16>, at: isize| {
                            matrix.elements[at as usize].to_f32()
                        };
                        let term = |p: isize| {
                            of(a, i as isize * a.row + p * a.column)
                                * of(b, p * b.row + j as isize * b.column)
                        };
                        (0..k as isize).map(term).sum()
                    };
                    let size = Size { m, k, n };
                    let mut scratch = packed([m, n], k).map(|count| vec![f32::NAN; count]);
                    let [left, right] = &mut scratch;
                    let mut sums = vec![1.0; m * n];
                    let is_done = multiply_add(&mut sums, a, b, size, [left, right]);
                    assert_eq!(is_done, is_there() && pays(size));
                    let mut alone = vec![f32::NAN; m * n];
                    let is_alone = multiply_lines(&mut alone, a, b, size);
                    let are_lines = a.column == 1 && b.row == 1;
                    let is_few = m.min(n) <= FEW && k >= LEAST;
                    assert_eq!(is_alone, is_there() && are_lines && is_few);
                    for at in 0..m * n {
                        assert!(!is_done || sums[at] == 1.0 + want(at), "{size:?}, {at}");
                        assert!(!is_alone || alone[at] == want(at), "{size:?}, {at}");
                    }
                }
            }
        }
    }

    /// Of one value everywhere all roundings go one way.
    #[test]
    fn long_lines_are_summed_in_parts() {
        let k = 1 << 22;
        let (x, y) = (bf16::from_f32(248.0 / 128.0), bf16::ONE);
        let (a, b) = (vec![x; k], vec![y; k]);
        let mut sums = [0.0];
        let (a, b) = (matrix(&a, [k, 1, k]), matrix(&b, [1, k, k]));
        if multiply_lines(&mut sums, a, b, Size { m: 1, k, n: 1 }) {
            let off = f64::from(sums[0]) / (k as f64 * f64::from(x.to_f32())) - 1.0;
            assert!(off.abs() < 1e-4, "{off}");
        } else {
            assert!(!is_there());
        }
    }

    /// Wherever one is, of either sign and size; beside the matrices it may be any.
    #[test]
    fn subnormal_operands_are_left_to_others() {
        let [k, n] = [161, 67];
        for (m, of_a, of_b) in (0..18).map(|at| ([1, 5][at / 9], at / 3 % 3, at % 3)) {
            let size = Size { m, k, n };
            let (of_a, of_b) = (ways([m, k])[of_a], ways([k, n])[of_b]);
            let mut both = [values(of_a[2], 7), values(of_b[2], 5)];
            let strides = [of_a, of_b];
            let sizes = [[m, k], [k, n]];
            let taken = |both: &[Vec<bf16>; 2]| {
                let (a, b) = (matrix(&both[0], of_a), matrix(&both[1], of_b));
                let mut scratch = packed([m, n], k).map(|count| vec![0.0; count]);
                let [left, right] = &mut scratch;
                let mut sums = vec![0.0; m * n];
                let added = multiply_add(&mut sums, a, b, size, [left, right]);
                let are_lines = a.column == 1 && b.row == 1;
                let are_taken = multiply_lines(&mut sums, a, b, size);
                assert!(added == are_taken || !are_lines);
                added
            };
            assert_eq!(taken(&both), is_there());
            for of in 0..2 {
                let [row, column, _] = strides[of];
                let [rows, columns] = sizes[of];
                for (i, j) in [
                    (0, 0),
                    (rows - 1, columns - 1),
                    (rows / 2, columns - 1),
                    (rows - 1, 1),
                ] {
                    let at = i * row + j * column;
                    for bits in [1, 0x7f, 0x8001, 0x807f] {
                        let kept = std::mem::replace(&mut both[of][at], bf16::from_bits(bits));
                        assert!(!taken(&both), "{bits:#x} at {i}, {j}");
                        both[of][at] = kept;
                    }
                    for bits in [0, 0x80, 0x8000, 0x8080] {
                        let kept = std::mem::replace(&mut both[of][at], bf16::from_bits(bits));
                        assert_eq!(taken(&both), is_there(), "{bits:#x} at {i}, {j}");
                        both[of][at] = kept;
                    }
                }
            }
        }
    }
}
