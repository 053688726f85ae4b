//! Matrix products by what is fastest for their size: loops of our own for small ones and for
//! vectors, else the `gemm` crate, behind a safe, checked call.
//!
//! `docs/matmul.md` has the measurements behind the choices.

mod gemm;
mod rows;
mod strips;

use std::ops::Range;

use gemm_common::Parallelism;

use super::matrix::{Matrix, Size};
use super::parallel;
use super::simd::{self, Small};
use super::vectors::{
    LONGEST_VECTOR, add, by_parts, longest_run, times_few, times_thin, times_vector,
};
pub(crate) use gemm::GemmElement;
use gemm::{Target, checked};

/// Multiply-adds below which one thread has the product before another wakes up.
pub(crate) const ALONE: usize = 100 * 100 * 100;
/// Multiply-adds from which pieces of fewer lines pack so much more than `gemm` does, which spreads the work itself, that
/// starting sooner does not make up for it.
pub(crate) const LARGE: usize = 400 * 400 * 400;
const LEAST_LINES: usize = 192;
/// Columns of a piece, below which rows are shared out where there are as many.
const LEAST_COLUMNS: usize = 32;
/// Terms up to which `gemm`'s parts of k, of 512 or more, are added one to the other.
const LONGEST: usize = 1 << 20;
/// Entries of a product that are set apart for a part of k, but for a longer row: their sum is made beside them.
const PART: usize = 4 << 20;
/// Multiply-adds up to which the loops of [`Small`] are faster than `gemm` where there are no vectors.
const SMALL_ALONE: usize = 24 * 24 * 24;
/// Bytes of a right operand that the first cache holds for a small product: it is not packed.
const SMALL_RIGHT: usize = 32 << 10;
/// Rows of a piece of a larger product for the loops of [`Small`].
const PIECE: usize = 24;
/// They have it where it has so many rows and columns, and terms so few that packing costs more than they do;
const MANY: [usize; 2] = [64, 32];
const FEW_TERMS: usize = 24;
/// or where threads share so many multiply-adds, so many columns and A by rows, and B has little more bytes than the first
/// cache.
const SHARED: usize = 128 * 128 * 128;
const SHARED_COLUMNS: usize = 64;
const SHARED_RIGHT: usize = 64 << 10;

/// Bytes of a column of rows up to which `gemm` packs them instead of the columns of a matrix of columns.
const NARROW: usize = 256;
/// Terms, and half of the rows, or few columns, more, from which that pays.
const LEAST_TERMS: usize = 64;
/// Terms from which a few rows by themselves are not packed.
const LEAST_BEYOND: usize = 256;
/// Columns up to which it goes through a matrix of columns as that lies.
const FEW_COLUMNS: usize = 16;

/// Whether a product of elements of so many bytes, B by rows and A by rows or columns, goes to the loops of [`Small`]: packing
/// costs more than it gives.
pub(crate) fn is_small(size: Size, bytes: usize) -> bool {
    let most = if simd::has_vectors() {
        ALONE
    } else {
        SMALL_ALONE
    };
    let right = size.k.saturating_mul(size.n).saturating_mul(bytes);
    size.work() <= most && right <= SMALL_RIGHT
}

/// `c = a x b`, `c` row-major without gaps; on several cores if asked and where that is faster.
/// Nothing happens when a matrix does not lie inside its slice.
pub(crate) fn multiply<T: GemmElement>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    on_all_cores: bool,
) {
    let Size { m, k, n } = size;
    let Some(c) = checked(c, a, b, size) else {
        return;
    };
    if k == 0 {
        c.fill(T::ZERO);
        return;
    }
    let straight = a.column == 1 && b.row == 1;
    if (m == 1 || n == 1) && k > LONGEST_VECTOR && !straight {
        return in_parts(c, a, b, size, LONGEST_VECTOR, on_all_cores);
    }
    if n == 1 && times_vector(c, a, (b.elements, b.row), [m, k], on_all_cores) {
        return;
    }
    if m == 1 && times_vector(c, b.turned(), (a.elements, a.column), [n, k], on_all_cores) {
        return;
    }
    let has_lines = b.column == 1 && (a.row == 1 || a.column == 1);
    if has_lines && n > 1 && is_small(size, size_of::<T>()) {
        if k > longest_run(k) {
            return in_parts(c, a, b, size, longest_run(k), on_all_cores);
        }
        return small(c, a, b, size);
    }
    if times_few(c, a, b, size, on_all_cores) || times_thin(c, a, b, size, on_all_cores) {
        return;
    }
    let is_shared = on_all_cores && size.work() > ALONE && parallel::width() > 1;
    if has_lines && suits_pieces(size, size_of::<T>(), is_shared && a.column == 1) {
        let pieces = c.chunks_mut(PIECE * n).enumerate();
        return parallel::share(is_shared, pieces, |(at, c)| {
            let m = c.len() / n;
            small(c, a.from(at * PIECE, 0), b, Size { m, ..size });
        });
    }
    // `gemm` adds up its parts of k in a row, and takes a single row or column of neighbours for a vector.
    let longest = match m == 1 || n == 1 {
        true => longest_run(k),
        false => LONGEST,
    };
    if k > longest {
        return in_parts(c, a, b, size, longest, on_all_cores);
    }
    if T::by_panels(c, a, b, size, is_shared) {
        return;
    }
    let packs_rows = packs_rows(a, b, size);
    let beyond = rows_beyond::<T>(m);
    if packs_rows && b.column != 1 && is_narrow::<T>(m) && beyond > 0 && k >= LEAST_BEYOND {
        let (whole, few) = c.split_at_mut((m - beyond) * n);
        let (rows, last) = (m - beyond, a.from(m - beyond, 0));
        multiply(whole, a, b, Size { m: rows, ..size }, on_all_cores);
        return multiply(few, last, b, Size { m: beyond, ..size }, on_all_cores);
    }
    let target = Target {
        start: c.as_mut_ptr(),
        row: n,
        packs_rows,
    };
    if !is_narrow::<T>(m) && strips::suit(b, size) {
        return strips::multiply(target, a, b, size, is_shared);
    }
    // Few rows that are packed, in front of all of b.
    let mut rows = Vec::new();
    let are_turned =
        a.turned().clashes() && target.packs_rows && rows.try_reserve_exact(k * m).is_ok();
    let a = match are_turned {
        true => strips::turned(a.turned(), [k, m], &mut rows).turned(),
        false => a,
    };
    let whole = [0..m, 0..n];
    let is_thin = size.work() > LARGE && m.max(n) < LEAST_LINES * shares();
    match (is_shared && is_thin)
        .then(parallel::product_threads)
        .flatten()
    {
        Some(threads) => {
            threads.install(|| target.call(a, b, k, whole, false, Parallelism::Rayon(0)));
        }
        // Each piece packs its share of one operand, and all of the other.
        None if is_shared => {
            let pieces = pieces(parallel::width(), m, n).into_iter();
            parallel::share(true, pieces, |piece| {
                target.call(a, b, k, piece, false, Parallelism::None);
            });
        }
        None => target.call(a, b, k, whole, false, Parallelism::None),
    }
}

/// By the loops of [`Small`].
fn small<T: GemmElement>(c: &mut [T], a: Matrix<'_, T>, b: Matrix<'_, T>, size: Size) {
    T::small(Small {
        c,
        a: a.elements,
        a_row: a.row as usize,
        a_column: a.column as usize,
        b: b.elements,
        b_row: b.row as usize,
        m: size.m,
        k: size.k,
        n: size.n,
    });
}

/// Whether those are faster, in pieces of rows: `by_rows` A lies so, and threads share them.
fn suits_pieces(size: Size, bytes: usize, by_rows: bool) -> bool {
    let Size { m, k, n } = size;
    let right = k.saturating_mul(n).saturating_mul(bytes);
    let is_middling = size.work() <= SHARED && n >= SHARED_COLUMNS && right <= SHARED_RIGHT;
    let is_many = m >= MANY[0] && n >= MANY[1];
    simd::has_vectors() && is_many && (k <= FEW_TERMS || by_rows && is_middling)
}

fn is_narrow<T>(m: usize) -> bool {
    m * size_of::<T>() <= NARROW
}

/// Whether `gemm` packs rows of a, and goes through b, or few columns of b and goes through a: elsewhere it packs columns of b.
fn packs_rows<T>(a: Matrix<'_, T>, b: Matrix<'_, T>, Size { m, k, n }: Size) -> bool {
    let few = m.min(n);
    let is_narrow = b.column != 1 && b.row == 1 && m <= n && is_narrow::<T>(m);
    let has_few_columns = a.row == 1 && a.column != 1 && n <= FEW_COLUMNS && 2 * n <= m;
    few > 1 && k >= LEAST_TERMS + few / 2 && (is_narrow || has_few_columns)
}

/// Rows beyond those that fill vectors, where they are few: `gemm` takes as long for them as for a vector more (17 of f32 357 us,
/// 16 and 1 217).
fn rows_beyond<T>(m: usize) -> usize {
    let lanes = simd::vector_bytes() / size_of::<T>();
    let beyond = m % lanes.max(1);
    if m > lanes && beyond <= lanes / 4 {
        beyond
    } else {
        0
    }
}

/// The sum of the products of parts of k.
fn in_parts<T: GemmElement>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    terms: usize,
    on_all_cores: bool,
) {
    let row = size.n.max(1);
    let rows = (PART / row).max(1);
    for (at, c) in c.chunks_mut(rows * row).enumerate() {
        let (a, m) = (a.from(at * rows, 0), c.len() / row);
        by_parts(c, size.k, terms, |terms, c| {
            let (a, b) = (a.from(0, terms.start), b.from(terms.start, 0));
            let k = terms.len();
            multiply(c, a, b, Size { m, k, ..size }, on_all_cores);
        });
    }
}

/// `c += a x b`, `c` row-major without gaps, on the caller's thread.
/// Nothing happens when a matrix does not lie inside its slice.
pub(crate) fn multiply_add<T: GemmElement>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
) {
    if size.k > 0
        && let Some(c) = checked(c, a, b, size)
    {
        if size.m == 1 || size.n == 1 {
            let mut product = vec![T::ZERO; c.len()];
            multiply(&mut product, a, b, size, false);
            return add(c, &product);
        }
        let target = Target {
            start: c.as_mut_ptr(),
            row: size.n,
            packs_rows: packs_rows(a, b, size),
        };
        let whole = [0..size.m, 0..size.n];
        target.call(a, b, size.k, whole, true, Parallelism::None);
    }
}

/// Pieces of a product: a few for each thread.
fn shares() -> usize {
    2 * parallel::width()
}

/// Pieces of a result for so many threads, along its columns, or its rows where these are far more. Where many threads
/// would get slivers they are cut the other way, too, if no fewer have one then: each packs its lines of both operands.
fn pieces(width: usize, m: usize, n: usize) -> Vec<[Range<usize>; 2]> {
    const SLIVER: usize = 48;
    let shares = 2 * width;
    let down = m >= 2 * n || m >= n && n < LEAST_COLUMNS * shares;
    let (length, other) = if down { (m, n) } else { (n, m) };
    let count =
        |[along, across]: [usize; 2]| cuts(length, along).count() * cuts(other, across).count();
    let (slivers, along) = ([shares, 1], (length / SLIVER).clamp(1, width));
    let both = [along, shares.div_ceil(along).min(other / SLIVER).max(1)];
    let is_thin = width > parallel::MEASURED && length < SLIVER * shares;
    let [along, across] = match is_thin && count(both) >= count(slivers).min(width) {
        true => both,
        false => slivers,
    };
    let pieces = cuts(length, along).flat_map(|range| {
        cuts(other, across).map(move |other| match down {
            true => [range.clone(), other],
            false => [other, range.clone()],
        })
    });
    pieces.collect()
}

/// About so many parts of some lines. The last one takes the next few, too: of a single one `gemm` would make a vector.
fn cuts(length: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    const FEW_LINES: usize = 8;
    let each = match count {
        1 => length.max(1),
        _ => length.div_ceil(count).next_multiple_of(16),
    };
    let starts = (0..length.saturating_sub(FEW_LINES).max(1)).step_by(each);
    starts.map(move |start| match start + each + FEW_LINES >= length {
        true => start..length,
        false => start..start + each,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By rows, or by columns.
    fn whole(elements: &[f32], rows: usize, columns: usize, by_columns: bool) -> Matrix<'_, f32> {
        let by_rows = |length: usize| Matrix {
            elements,
            row: length as isize,
            column: 1,
        };
        match by_columns {
            false => by_rows(columns),
            true => by_rows(rows).turned(),
        }
    }

    /// All of the result, each entry in one piece, and no line alone.
    #[test]
    fn pieces_are_the_result() {
        for width in [1, 2, 3, 12, 64, 200] {
            for [m, n] in [
                [1, 1],
                [1, 900],
                [100, 100],
                [128, 401],
                [1025, 90],
                [700, 733],
            ] {
                let mut seen = vec![0; m * n];
                let pieces = pieces(width, m, n);
                for [rows, columns] in &pieces {
                    assert!(
                        (rows.len() > 8 || rows.len() == m)
                            && (columns.len() > 8 || columns.len() == n)
                    );
                    for row in rows.clone() {
                        let row = &mut seen[row * n..][columns.clone()];
                        row.iter_mut().for_each(|seen| *seen += 1);
                    }
                }
                assert!(seen.iter().all(|&seen| seen == 1), "{m} x {n}");
                assert!(pieces.len() <= 4 * width, "{m} x {n}");
            }
        }
        // As few threads as they are, they have pieces; of more none has less than two have.
        let count = |width, m, n| pieces(width, m, n).len();
        for side in [64, 90, 128, 400] {
            let two = count(2, side, side);
            for width in [3, 4, 8, 16, 64] {
                assert!(count(width, side, side) >= two, "{side} by {width}");
            }
        }
        assert_eq!((count(2, 100, 128), count(64, 64, 64)), (4, 4));
        assert_eq!((count(4, 100, 100), count(12, 400, 400)), (4, 21));
    }

    #[test]
    fn products_are_right_and_out_of_range_ones_refused() {
        let a = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let left = Matrix {
            elements: &a,
            row: 3,
            column: 1,
        };
        let right = Matrix {
            elements: &a,
            row: 1,
            column: 3,
        };
        let mut c = [0.0f32; 4];
        let size = Size { m: 2, k: 3, n: 2 };
        multiply(&mut c, left, right, size, false);
        assert_eq!(c, [14.0, 32.0, 32.0, 77.0]);
        // One element short: refused, not read.
        let short = Matrix {
            elements: &a[..5],
            ..left
        };
        let mut untouched = [9.0f32; 4];
        multiply(&mut untouched, short, right, size, false);
        assert_eq!(untouched, [9.0; 4]);
        multiply(&mut c[..3], left, right, size, false);
        multiply(&mut untouched, left, right, Size { k: 0, ..size }, false);
        assert_eq!(untouched, [0.0; 4]);
    }

    /// Long sums of ones, which one f32 after the other would end at 2^24.
    #[test]
    fn long_sums_do_not_stand_still() {
        let k = (1 << 24) + (1 << 20) + 4;
        let ones = [1.0f32; 3];
        let one = |count: usize, row, column| Matrix {
            elements: &ones[..count],
            row,
            column,
        };
        for (m, n) in [(1, 1), (1, 3), (2, 1)] {
            let mut c = vec![9.0f32; m * n];
            // All of k in one element; rows apart, and one beside the other.
            for [a, b] in [
                [one(m, 1, 0), one(n, 0, 1)],
                [one(1, 0, 0), one(n, 0, 1)],
                [one(1, 0, 0), one(1, 0, 0)],
            ] {
                multiply(&mut c, a, b, Size { m, k, n }, false);
                assert!(c.iter().all(|&sum| sum == k as f32), "{m} x {n}: {c:?}");
            }
        }
    }

    /// Terms of one size lose as much each time: in one long sum far more than by chance.
    #[test]
    fn long_sums_of_equal_terms_are_within_their_bound() {
        for [m, k, n] in [
            [2, 4000, 2],
            [3, 5000, 1],
            [300, 9000, 1],
            [1, 1 << 21, 3],
            [64, 1 << 16, 1],
            [16, 1 << 16, 2],
            [17, 1 << 16, 17],
            [300, 9000, 8],
            [8, 9000, 300],
            [16, 9000, 300],
            [300, 9000, 16],
            [100, 4096, 200],
            [100, 1024, 100],
            [100, 9000, 100],
        ] {
            for value in [1.7616894f32, 1.1, 1.0 / 3.0] {
                let (ones, values) = (vec![1.0; m * k], vec![value; k * n]);
                for turned in 0..4 {
                    let left = whole(&ones, m, k, turned & 1 == 1);
                    let right = whole(&values, k, n, turned & 2 == 2);
                    let (mut c, mut added) = (vec![9.0; m * n], vec![0.0; m * n]);
                    let size = Size { m, k, n };
                    multiply(&mut c, left, right, size, true);
                    multiply_add(&mut added, left, right, size);
                    let want = k as f64 * f64::from(value);
                    let bound = 4.0 * (k as f64).sqrt() * f64::from(f32::EPSILON) * want;
                    // No neighbours: one element for all.
                    let mut apart = vec![9.0; m * n];
                    let one = Matrix {
                        row: 0,
                        column: 0,
                        ..left
                    };
                    multiply(&mut apart, one, right, size, true);
                    c.extend(apart);
                    for sum in c.into_iter().chain(added) {
                        let error = (f64::from(sum) - want).abs();
                        assert!(
                            error < bound,
                            "{size:?}, turned {turned}: {sum}, not {want}"
                        );
                    }
                }
            }
        }
    }

    /// In pieces, on all cores and by vectors: the same sums of small integers, in every layout.
    #[test]
    fn every_way_gives_the_same() {
        for [m, k, n] in [
            [40, 300, 900],
            [900, 300, 40],
            [410, 400, 420],
            // By `gemm` on its threads, by pieces of columns, the last of which has one line more, and of rows.
            [500, 300, 500],
            [790, 110, 833],
            [1601, 90, 450],
            [1500, 700, 1],
            [1, 700, 1500],
            [17, 9000, 1],
            [1, 1, 1],
            [1500, 700, 2],
            [8, 700, 1501],
            [4099, 67, 7],
            [16, 67, 4099],
            [17, 300, 5],
            [3, 300, 16],
            // Few rows that are packed, few columns, and strips: of columns that push each other out of the cache, too.
            [9, 300, 100],
            [18, 300, 100],
            [33, 512, 90],
            [64, 1024, 1001],
            [300, 100, 16],
            [70, 256, 193],
            [200, 1280, 800],
            // Pieces of rows: of few terms, and shared ones.
            [64, 24, 32],
            [72, 1, 45],
            [301, 9, 1500],
            [67, 24, 4000],
            [101, 101, 101],
            [64, 255, 64],
            [97, 128, 127],
        ] {
            let values = |count: usize, turn: usize| -> Vec<f32> {
                (0..count)
                    .map(|at| ((at * turn) % 5) as f32 - 2.0)
                    .collect()
            };
            let (a, b) = (values(m * k, 7), values(k * n, 3));
            // The last one has no neighbours, in rows or columns.
            let apart: Vec<f32> = b.iter().flat_map(|&element| [element, 8.0]).collect();
            for turned in 0..5 {
                let left = whole(&a, m, k, turned & 1 == 1);
                let right = match turned {
                    4 => Matrix {
                        elements: &apart,
                        row: 2 * n as isize,
                        column: 2,
                    },
                    _ => whole(&b, k, n, turned & 2 == 2),
                };
                let mut c = vec![9.0f32; m * n];
                let size = Size { m, k, n };
                multiply(&mut c, left, right, size, true);
                let mut added = c.clone();
                multiply_add(&mut added, left, right, size);
                let mut by_rows = vec![9.0f32; m * n];
                let target = Target {
                    start: by_rows.as_mut_ptr(),
                    row: n,
                    packs_rows: false,
                };
                for adds in [false, true] {
                    for rows in [0..m / 2, m / 2..m] {
                        target.call_by_rows(left, right, k, [rows, 0..n], adds);
                    }
                }
                for at in (0..m * n).step_by(97) {
                    let (i, j) = ((at / n) as isize, (at % n) as isize);
                    let want: f32 = (0..k as isize)
                        .map(|p| {
                            left.elements[(i * left.row + p * left.column) as usize]
                                * right.elements[(p * right.row + j * right.column) as usize]
                        })
                        .sum();
                    assert_eq!(c[at], want, "{size:?}, turned {turned}, entry {i}, {j}");
                    assert_eq!(added[at], 2.0 * want, "{size:?}, turned {turned}");
                    assert_eq!(by_rows[at], 2.0 * want, "{size:?}, turned {turned}");
                }
            }
        }
    }
}
