//! Matrix products by what is fastest for their size: loops of our own for small ones and for
//! vectors, else the `gemm` crate, behind a safe, checked call.
//!
//! `gemm` takes raw pointers and strides; this is the one place that hands them over, after
//! checking that every index it can reach lies inside the slices.
//! `docs/matmul.md` has the measurements behind the choices.
#![allow(unsafe_code)]

use std::ops::Range;

use gemm_common::Parallelism;

use super::few::{FEW, Few};
use super::parallel;
use super::simd::Small;

/// Multiply-adds below which one thread has the product before another wakes up.
pub(crate) const ALONE: usize = 100 * 100 * 100;
/// Multiply-adds above which `gemm` spreads the work itself; below, pieces by hand start sooner.
const LARGE: usize = 400 * 400 * 400;
/// Multiply-adds up to which packing costs more than it gives.
const SMALL: usize = 64 * 64 * 64;
/// Elements of a right operand that the first cache holds for a small product.
const SMALL_RIGHT: usize = 8 << 10;
/// Bytes of a matrix below which one thread has it multiplied with a vector before another wakes up.
const VECTOR_ALONE: usize = 2 << 20;

/// Vectors up to which a matrix of rows, or of columns, is gone through as it lies; the rows and elements that it has then
/// at least, and the rows and columns up to which vectors and their products, set apart, are no more than 16 MiB.
const MOST_FEW: [usize; 2] = [8, 16];
const LEAST_ROWS: usize = 16;
const LEAST_FEW: usize = 64 * 64;
const LONGEST_FEW: usize = 1 << 18;
/// Terms that one lane, or one sum, takes one after the other at most, by rows and by columns.
const LONGEST_FEW_ROWS: usize = 1 << 14;
const FEW_TERMS: usize = 512;

/// Terms of a sum with a vector that are added one to the other: longer ones are sums of parts, so that
/// what comes last is not lost in what is there.
const LONGEST_SUM: usize = 1 << 16;

/// One matrix in a slice: its element (0, 0) comes first; strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub elements: &'a [T],
    pub row: isize,
    pub column: isize,
}

impl<T> Matrix<'_, T> {
    /// The part from an element on.
    pub(crate) fn from(self, row: usize, column: usize) -> Self {
        let start = row as isize * self.row + column as isize * self.column;
        Self {
            elements: self.elements.get(start as usize..).unwrap_or_default(),
            ..self
        }
    }

    /// Rows as columns.
    fn turned(self) -> Self {
        Self {
            row: self.column,
            column: self.row,
            ..self
        }
    }

    /// True when every element of `rows x columns` lies inside the slice.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let reach = |count: usize, stride: isize| {
            isize::try_from(count.saturating_sub(1))
                .ok()?
                .checked_mul(stride)
        };
        let last = reach(rows, self.row)
            .zip(reach(columns, self.column))
            .and_then(|(down, across)| down.checked_add(across));
        self.row >= 0
            && self.column >= 0
            && last.is_some_and(|last| (last as usize) < self.elements.len())
    }
}

/// m, k, n: `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

impl Size {
    /// Multiply-adds.
    pub(crate) fn work(&self) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(self.n)
    }
}

/// The `gemm` crate's function for one type: m, n, k; destination with column and row stride;
/// whether it is read; both operands with column and row stride; alpha, beta; conjugations.
type Gemm<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// The types that the `gemm` crate multiplies here.
pub(crate) trait GemmElement: Few + std::ops::AddAssign {
    const ONE: Self;
    const ZERO: Self;
    /// The best kernel for this processor.
    fn gemm() -> Gemm<Self>;
}

impl GemmElement for f32 {
    const ONE: f32 = 1.0;
    const ZERO: f32 = 0.0;
    fn gemm() -> Gemm<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl GemmElement for f64 {
    const ONE: f64 = 1.0;
    const ZERO: f64 = 0.0;
    fn gemm() -> Gemm<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
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
    // Rows of neighbours have many sums at a time.
    let straight = a.column == 1 && b.row == 1;
    if (m == 1 || n == 1) && k > LONGEST_SUM && !straight {
        return in_parts(c, a, b, size, on_all_cores);
    }
    if n == 1 && times_vector(c, a, (b.elements, b.row), [m, k], on_all_cores) {
        return;
    }
    if m == 1 && times_vector(c, b.turned(), (a.elements, a.column), [n, k], on_all_cores) {
        return;
    }
    if b.column == 1 && n > 1 && size.work() <= SMALL && k * n <= SMALL_RIGHT {
        return T::small(Small {
            c,
            a: a.elements,
            a_row: a.row as usize,
            a_column: a.column as usize,
            b: b.elements,
            b_row: b.row as usize,
            m,
            k,
            n,
        });
    }
    if times_few(c, a, b, size, on_all_cores) {
        return;
    }
    let threads = match on_all_cores && size.work() > ALONE {
        true => parallel::threads(),
        false => None,
    };
    let target = Target {
        start: c.as_mut_ptr(),
        row: n,
    };
    let whole = [0..m, 0..n];
    match threads {
        None => target.call(a, b, k, whole, false, Parallelism::None),
        Some(threads) if size.work() > LARGE => {
            threads.install(|| target.call(a, b, k, whole, false, Parallelism::Rayon(0)));
        }
        // Each piece packs its share of one operand, and all of the other.
        Some(_) => parallel::share(true, pieces(m, n), |piece| {
            target.call(a, b, k, piece, false, Parallelism::None);
        }),
    }
}

/// The sum of the products of parts of k.
fn in_parts<T: GemmElement>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    on_all_cores: bool,
) {
    let mut sums = vec![T::ZERO; c.len()];
    c.fill(T::ZERO);
    for start in (0..size.k).step_by(LONGEST_SUM) {
        let k = LONGEST_SUM.min(size.k - start);
        let part = Size { k, ..size };
        multiply(
            &mut sums,
            a.from(0, start),
            b.from(start, 0),
            part,
            on_all_cores,
        );
        for (all, &sum) in c.iter_mut().zip(&sums) {
            *all += sum;
        }
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
        let target = Target {
            start: c.as_mut_ptr(),
            row: size.n,
        };
        let whole = [0..size.m, 0..size.n];
        target.call(a, b, size.k, whole, true, Parallelism::None);
    }
}

/// The entries of `c`, if there are any and all matrices lie inside their slices.
fn checked<'a, T>(
    c: &'a mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    Size { m, k, n }: Size,
) -> Option<&'a mut [T]> {
    let entries = m
        .checked_mul(n)
        .filter(|&entries| entries > 0 && isize::try_from(entries).is_ok())?;
    let inside = k == 0 || a.holds(m, k) && b.holds(k, n);
    c.get_mut(..entries).filter(|_| inside)
}

/// Pieces of a result along its longer side, a few for each thread.
fn pieces(m: usize, n: usize) -> impl Iterator<Item = [Range<usize>; 2]> + Send {
    let down = m >= n;
    let length = m.max(n);
    let each = length.div_ceil(2 * parallel::width()).next_multiple_of(16);
    (0..length).step_by(each).map(move |start| {
        let range = start..(start + each).min(length);
        match down {
            true => [range, 0..n],
            false => [0..m, range],
        }
    })
}

/// `y = matrix x vector` in one pass over the matrix, where its rows or columns are of neighbours, or there
/// is but one row. False where they are not: nothing has happened.
fn times_vector<T: GemmElement>(
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
    let work = |start: usize, y: &mut [T]| match matrix.column {
        1 => {
            let stride = matrix.row as usize;
            T::rows_times(&matrix.elements[start * stride..], stride, x, y);
        }
        _ => T::columns_times(&matrix.elements[start..], matrix.column as usize, x, y),
    };
    let bytes = rows.saturating_mul(k).saturating_mul(size_of::<T>());
    let is_much = on_all_cores && bytes >= VECTOR_ALONE;
    let each = match is_much {
        true => rows.div_ceil(parallel::width()).next_multiple_of(16),
        false => rows.max(1),
    };
    let pieces = y.chunks_mut(each).enumerate();
    parallel::share(is_much, pieces, |(at, y)| work(at * each, y));
    true
}

/// A product of which one operand has few rows or columns: in one pass over the other one, where that has rows or
/// columns of neighbours. False where it is no such product: nothing has happened.
fn times_few<T: GemmElement>(
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
        && rows.max(k) <= LONGEST_FEW
        && match is_straight {
            true => (1024..=LONGEST_FEW_ROWS).contains(&k),
            false => matrix.row == 1 && (64..=LONGEST_SUM).contains(&k),
        };
    if !is_worth_it {
        return false;
    }
    let padded = vectors.next_multiple_of(FEW);
    let mut x = vec![T::ZERO; padded * k];
    for (nth, x) in x.chunks_exact_mut(k).take(vectors).enumerate() {
        let start = nth * few.row as usize;
        for (at, x) in x.iter_mut().enumerate() {
            *x = few.elements[start + at * few.column as usize];
        }
    }
    let work = |start: usize, y: &mut [T]| match is_straight {
        true => {
            let stride = matrix.row as usize;
            T::rows_times_few(&matrix.elements[start * stride..], stride, &x, y, padded);
        }
        false => {
            let stride = matrix.column as usize;
            // Sums of parts of k, added up: one after the other in f32 they would lose what comes last.
            let mut part = vec![T::ZERO; y.len()];
            for first in (0..k).step_by(FEW_TERMS) {
                let last = k.min(first + FEW_TERMS);
                let lines = x.chunks_exact(k).flat_map(|line| &line[first..last]);
                let terms: Vec<T> = lines.copied().collect();
                let columns = &matrix.elements[start + first * stride..];
                T::columns_times_few(columns, stride, &terms, &mut part, padded);
                for (sum, &part) in y.iter_mut().zip(&part) {
                    *sum += part;
                }
            }
        }
    };
    let bytes = rows.saturating_mul(k).saturating_mul(size_of::<T>());
    let is_much = on_all_cores && bytes >= VECTOR_ALONE;
    let each = match is_much {
        true => rows.div_ceil(parallel::width()).next_multiple_of(16),
        false => rows,
    };
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

/// Where a product goes: a row-major matrix of `row` columns.
#[derive(Clone, Copy)]
struct Target<T> {
    start: *mut T,
    row: usize,
}

// SAFETY: it is only written through `call`, each part of it by one thread.
unsafe impl<T: Send> Sync for Target<T> {}

impl<T: GemmElement> Target<T> {
    /// Hands the pointers over, for some rows and columns of the product.
    fn call(
        &self,
        a: Matrix<'_, T>,
        b: Matrix<'_, T>,
        k: usize,
        [rows, columns]: [Range<usize>; 2],
        adds: bool,
        parallelism: Parallelism,
    ) {
        // Its kernels want a column-major destination: a row-major product is the transposed product
        // of the transposed operands.
        // SAFETY: `checked` has seen that the target holds all rows and columns, and by `holds` that
        // `a` and `b` do; parts of rows and columns lie inside; the target is borrowed alone, and
        // calls at the same time have disjoint parts; strides are not negative.
        unsafe {
            T::gemm()(
                columns.len(),
                rows.len(),
                k,
                self.start.add(rows.start * self.row + columns.start),
                self.row as isize,
                1,
                adds,
                b.elements
                    .as_ptr()
                    .offset(columns.start as isize * b.column),
                b.row,
                b.column,
                a.elements.as_ptr().offset(rows.start as isize * a.row),
                a.row,
                a.column,
                if adds { T::ONE } else { T::ZERO },
                T::ONE,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// In pieces, on all cores and by vectors: the same sums of small integers, in every layout.
    #[test]
    fn every_way_gives_the_same() {
        for [m, k, n] in [
            [40, 300, 900],
            [900, 300, 40],
            [410, 400, 420],
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
        ] {
            let values = |count: usize, turn: usize| -> Vec<f32> {
                (0..count)
                    .map(|at| ((at * turn) % 5) as f32 - 2.0)
                    .collect()
            };
            let (a, b) = (values(m * k, 7), values(k * n, 3));
            let matrix = |elements, rows, columns, turned| match turned {
                false => Matrix {
                    elements,
                    row: columns as isize,
                    column: 1,
                },
                true => Matrix {
                    elements,
                    row: 1,
                    column: rows as isize,
                },
            };
            for turned in 0..4 {
                let left: Matrix<'_, f32> = matrix(&a, m, k, turned & 1 == 1);
                let right = matrix(&b, k, n, turned & 2 == 2);
                let mut c = vec![9.0f32; m * n];
                let size = Size { m, k, n };
                multiply(&mut c, left, right, size, true);
                let mut added = c.clone();
                multiply_add(&mut added, left, right, size);
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
                }
            }
        }
    }
}
