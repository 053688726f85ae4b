//! Products of a matrix and vectors, one or a few, in one pass over the matrix as it lies; and sums over k by parts, so that
//! long ones lose no more than short ones.

use std::ops::Range;

use super::few::{FEW, Few};
use super::matrix::{Matrix, Size};
use super::parallel;

/// Bytes of a matrix below which one thread has it multiplied with a vector before another wakes up.
const VECTOR_ALONE: usize = 2 << 20;

/// Vectors up to which a matrix of rows, or of columns, is gone through as it lies; the rows, elements and terms that it
/// has then at least; and the rows and columns up to which vectors, their products and parts of these, set apart, are 16 MiB
/// of f32 each.
const MOST_FEW: [usize; 2] = [8, 16];
const LEAST_ROWS: usize = 16;
const LEAST_FEW: usize = 64 * 64;
const LEAST_TERMS: [usize; 2] = [256, 64];
const LONGEST_FEW: usize = 1 << 18;
/// Bytes of a matrix of columns up to which it stays in the caches while `gemm` goes through it.
const LEAST_COLUMNS: usize = 16 << 20;

/// Rows and columns of a product that is all k, its terms (whose sums in parts lose no more than 4 sqrt(k) ulps), and those that
/// are set apart at a time: the first cache has them.
const THIN: usize = 8;
const THIN_TERMS: std::ops::RangeInclusive<usize> = 128..=1 << 27;
const THIN_PART: usize = 512;

/// Rows for each column up to which threads share the columns of a matrix of columns: each goes through memory in a row then.
const ROWS_A_COLUMN: usize = 16;

/// Parts of the rows for one of many threads (up to two take one each), and their bytes at least.
const PARTS_EACH: usize = 4;
const LEAST_PART: usize = 128 << 10;
/// Rows of more parts than threads, where neighbours in memory are neighbours of a column.
const LEAST_RUN: usize = 256;
/// Columns at least for which one of many threads sets a vector apart; and entries of these vectors' sum that one takes.
const LEAST_WIDE: usize = 32;
const SUM: usize = 2 << 10;

/// Entries of a matrix times a vector at a time: parts of them are set apart.
const ENTRIES: usize = 1 << 16;

/// Terms of a product with a vector that is set apart as a whole.
pub(super) const LONGEST_VECTOR: usize = 1 << 16;

/// Terms of k that are added one to the other at most; longer sums are sums of such parts. A sum of t equal terms loses up
/// to t / 8 ulps: of 512 terms 64, where 4 sqrt(512) = 90 are allowed.
pub(super) fn longest_run(k: usize) -> usize {
    const RUN: usize = 512;
    // Small products ask, too: no root for them.
    match k <= RUN * RUN {
        true => RUN,
        false => k.isqrt(),
    }
}

/// `y` of all `k` terms from `sums`, which sets `y` to that of some, `terms` at a time.
pub(super) fn by_parts<T: Few>(
    y: &mut [T],
    k: usize,
    terms: usize,
    mut sums: impl FnMut(Range<usize>, &mut [T]),
) {
    sums(0..terms.min(k), y);
    if k <= terms {
        return;
    }
    let mut part = vec![T::ZERO; y.len()];
    for first in (terms..k).step_by(terms) {
        sums(first..k.min(first + terms), &mut part);
        add(y, &part);
    }
}

/// `sums += terms`, element by element.
pub(super) fn add<T: Few>(sums: &mut [T], terms: &[T]) {
    for (sum, &term) in sums.iter_mut().zip(terms) {
        *sum += term;
    }
}

/// Whether threads share the rows of a matrix, and how many they take at a time.
fn shares<T>(matrix: Matrix<'_, T>, [rows, k]: [usize; 2], on_all_cores: bool) -> (bool, usize) {
    let bytes = rows.saturating_mul(k).saturating_mul(size_of::<T>());
    if !on_all_cores || bytes < VECTOR_ALONE {
        return (false, rows.max(1));
    }
    let least = if matrix.column == 1 { 1 } else { LEAST_RUN };
    let parts = parts(parallel::width(), rows / least, bytes);
    (true, rows.div_ceil(parts).next_multiple_of(16))
}

/// Parts of so many bytes for `width` threads: more than two take a few each, so that they do not wait for a slow one,
/// but none that is too small, nor more than `most` then.
fn parts(width: usize, most: usize, bytes: usize) -> usize {
    match width <= parallel::MEASURED {
        true => width,
        false => (PARTS_EACH * width)
            .min(most.max(width))
            .min(bytes / LEAST_PART)
            .max(1),
    }
}

/// `y = matrix x vector` in one pass over the matrix, where its rows or columns are of neighbours, or there
/// is but one row. False where they are not: nothing has happened.
pub(super) fn times_vector<T: Few>(
    y: &mut [T],
    matrix: Matrix<'_, T>,
    (vector, step): (&[T], isize),
    [rows, k]: [usize; 2],
    on_all_cores: bool,
) -> bool {
    let gather = |elements: &[T], step: isize| -> Vec<T> {
        (0..k).map(|at| elements[at * step as usize]).collect()
    };
    let row: Vec<T>;
    let matrix = match rows == 1 && matrix.column != 1 {
        true => {
            row = gather(matrix.elements, matrix.column);
            Matrix {
                elements: &row,
                row: k as isize,
                column: 1,
            }
        }
        false => matrix,
    };
    if matrix.column != 1 && matrix.row != 1 {
        return false;
    }
    let gathered: Vec<T>;
    let x = match step {
        1 => &vector[..k],
        _ => {
            gathered = gather(vector, step);
            &gathered
        }
    };
    // Rows have several sums at a time.
    let terms = match matrix.column {
        1 => 16 * longest_run(k),
        _ => longest_run(k),
    };
    // The terms of `own`, of the rows from `start` on.
    let work = |start: usize, own: Range<usize>, y: &mut [T]| {
        for (at, y) in y.chunks_mut(ENTRIES).enumerate() {
            by_parts(y, own.len(), terms, |terms, y| {
                let terms = own.start + terms.start..own.start + terms.end;
                let elements = matrix.from(start + at * ENTRIES, terms.start).elements;
                match matrix.column {
                    1 => T::rows_times(elements, matrix.row as usize, &x[terms], y),
                    _ => T::columns_times(elements, matrix.column as usize, &x[terms], y),
                }
            });
        }
    };
    let (is_much, each) = shares(matrix, [rows, k], on_all_cores);
    let are_many = is_much && parallel::width() > parallel::MEASURED;
    let columns_each = match is_much && matrix.column != 1 && rows / ROWS_A_COLUMN <= k {
        true => (k.div_ceil(2 * parallel::width()).next_multiple_of(16)).max(if are_many {
            LEAST_WIDE
        } else {
            0
        }),
        false => k,
    };
    let mut parts = Vec::new();
    let count = rows.saturating_mul(k.div_ceil(columns_each));
    if columns_each < k && parts.try_reserve_exact(count).is_ok() {
        parts.resize(count, T::ZERO);
        let pieces = parts.chunks_mut(rows).enumerate();
        parallel::share(true, pieces, |(at, y)| {
            let first = at * columns_each;
            work(0, first..k.min(first + columns_each), y);
        });
        // Many threads have many parts: then they share the entries.
        let entries = if are_many { SUM } else { rows };
        parallel::share(are_many, y.chunks_mut(entries).enumerate(), |(at, y)| {
            let range = at * entries..at * entries + y.len();
            for (nth, part) in parts.chunks(rows).enumerate() {
                match nth {
                    0 => y.copy_from_slice(&part[range.clone()]),
                    _ => add(y, &part[range.clone()]),
                }
            }
        });
        return true;
    }
    let pieces = y.chunks_mut(each).enumerate();
    parallel::share(is_much, pieces, |(at, y)| work(at * each, 0..k, y));
    true
}

/// A product of which one operand has few rows or columns: in one pass over the other one, where that has rows or
/// columns of neighbours. False where it is no such product: nothing has happened.
pub(super) fn times_few<T: Few>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    Size { m, k, n }: Size,
    on_all_cores: bool,
) -> bool {
    // `matrix` has `rows`, the others are vectors: rows of a, turned, or columns of b.
    let (matrix, rows, few, vectors) = match n <= m {
        true => (a, m, b.turned(), n),
        false => (b.turned(), n, a, m),
    };
    let is_straight = matrix.column == 1;
    let is_worth_it = vectors <= MOST_FEW[usize::from(!is_straight)]
        && rows >= LEAST_ROWS
        && rows.saturating_mul(k) >= LEAST_FEW
        && k >= LEAST_TERMS[usize::from(!is_straight)]
        && rows.max(k) <= LONGEST_FEW
        && (is_straight || matrix.row == 1 && rows * k * size_of::<T>() >= LEAST_COLUMNS);
    if !is_worth_it {
        return false;
    }
    let padded = vectors.next_multiple_of(FEW);
    // The vectors' parts of k one after the other, as they are asked for.
    let terms = match is_straight {
        true => 2 * longest_run(k),
        false => longest_run(k),
    };
    let mut x = vec![T::ZERO; padded * k];
    for (part, x) in x.chunks_mut(padded * terms).enumerate() {
        let of_part = x.len() / padded;
        set_apart(few.from(0, part * terms), [vectors, of_part], x);
    }
    let work = |start: usize, y: &mut [T]| {
        by_parts(y, k, terms, |terms, y| {
            let elements = matrix.from(start, terms.start).elements;
            let x = &x[padded * terms.start..padded * terms.end];
            match is_straight {
                true => T::rows_times_few(elements, matrix.row as usize, x, y, padded),
                false => T::columns_times_few(elements, matrix.column as usize, x, y, padded),
            }
        });
    };
    let (is_much, each) = shares(matrix, [rows, k], on_all_cores);
    let mut y = vec![T::ZERO; padded * rows];
    let pieces = y.chunks_mut(padded * each).enumerate();
    parallel::share(is_much, pieces, |(at, y)| work(at * each, y));
    for (at, y) in y.chunks(padded * each).enumerate() {
        let (first, rows) = (at * each, y.len() / padded);
        for (nth, y) in y.chunks_exact(rows).take(vectors).enumerate() {
            for (row, &y) in (first..).zip(y) {
                let place = match n <= m {
                    true => row * n + nth,
                    false => nth * n + row,
                };
                c[place] = y;
            }
        }
    }
    true
}

/// A product of few rows and few columns over a long k, which threads share: both operands as lines along k, set apart where they
/// are not. False where it is no such product: nothing has happened.
pub(super) fn times_thin<T: Few>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    on_all_cores: bool,
) -> bool {
    let Size { m, k, n } = size;
    if m.max(n) > THIN || !THIN_TERMS.contains(&k) {
        return false;
    }
    let padded = n.next_multiple_of(FEW);
    let is_shared = on_all_cores && size.work() > super::product::ALONE;
    let threads = if is_shared { parallel::width() } else { 1 };
    let each = k.div_ceil(threads).next_multiple_of(THIN_PART);
    let entries = m * padded;
    let mut parts = vec![T::ZERO; k.div_ceil(each) * entries];
    parallel::share(
        is_shared,
        parts.chunks_mut(entries).enumerate(),
        |(at, sums)| {
            let most = THIN_PART.min(k);
            let mut left = vec![T::ZERO; if a.column == 1 { 0 } else { m * most }];
            let mut right = vec![T::ZERO; padded * most];
            let mut part = vec![T::ZERO; entries];
            let end = k.min((at + 1) * each);
            for first in (at * each..end).step_by(THIN_PART) {
                let terms = THIN_PART.min(end - first);
                let a = a.from(0, first);
                let (lines, stride) = match a.column {
                    1 => (a.elements, a.row as usize),
                    _ => (set_apart(a, [m, terms], &mut left), terms),
                };
                set_apart(b.from(first, 0).turned(), [n, terms], &mut right);
                T::rows_times_few(lines, stride, &right[..padded * terms], &mut part, padded);
                add(sums, &part);
            }
        },
    );
    for (nth, c) in c.iter_mut().enumerate() {
        *c = T::ZERO;
        for part in parts.chunks(entries) {
            *c += part[nth % n * m + nth / n];
        }
    }
    true
}

/// The rows of a matrix one after the other.
fn set_apart<'a, T: Few>(
    matrix: Matrix<'_, T>,
    [rows, columns]: [usize; 2],
    into: &'a mut [T],
) -> &'a [T] {
    for (row, into) in into.chunks_exact_mut(columns).take(rows).enumerate() {
        let line = matrix.from(row, 0).elements;
        match matrix.column {
            1 => into.copy_from_slice(&line[..columns]),
            step => {
                for (at, into) in into.iter_mut().enumerate() {
                    *into = line[at * step as usize];
                }
            }
        }
    }
    into
}
