//! Products whose right operand lies by columns so far apart that `gemm` packs it slowly.

use super::{GemmElement, Parallelism, Target};
use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::stores::Stores;
use crate::cpu::{parallel, transpose};

/// Columns and terms that are turned at a time then.
const STRIP: usize = 192;
const STRIP_TERMS: usize = 256;
/// Columns of a strip at least.
const LEAST: usize = 48;

/// A matrix of columns as rows without gaps.
pub(super) fn turned<'a, T: GemmElement>(
    matrix: Matrix<'_, T>,
    [rows, columns]: [usize; 2],
    into: &'a mut Vec<T>,
) -> Matrix<'a, T> {
    into.resize(rows * columns, T::ZERO);
    transpose::Matrix::of(matrix.column as usize, [rows, columns]).copy(
        matrix.elements,
        (into, columns),
        &Stores::Plain.lines(),
    );
    Matrix {
        elements: into,
        row: columns as isize,
        column: 1,
    }
}

/// Whether strips pay, by what the product alone says: its bits do not depend on who works on it.
pub(super) fn suit<T>(b: Matrix<'_, T>, Size { k, n, .. }: Size) -> bool {
    b.clashes() && k >= STRIP_TERMS && n >= STRIP
}

/// The product by strips of columns of b, which are turned before: by squares, where `gemm` packs element by element.
pub(super) fn multiply<T: GemmElement>(
    target: Target<T>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    Size { m, k, n }: Size,
    in_parallel: bool,
) {
    // All cores have some.
    let width = if in_parallel { parallel::width() } else { 1 };
    let count = n.div_ceil(STRIP).max(width.min(n / LEAST));
    let target = Target {
        packs_rows: false,
        ..target
    };
    parallel::share(in_parallel, 0..count, |strip| {
        // Of equal width: a single column would be a vector to `gemm`.
        let columns = strip * n / count..(strip + 1) * n / count;
        let mut scratch = Vec::new();
        for first in (0..k).step_by(STRIP_TERMS) {
            let terms = STRIP_TERMS.min(k - first);
            let strip = b.from(first, columns.start);
            let strip = turned(strip, [terms, columns.len()], &mut scratch);
            let all = [0..m, 0..columns.len()];
            let target = target.from(columns.start);
            target.call(
                a.from(0, first),
                strip,
                terms,
                all,
                first > 0,
                Parallelism::None,
            );
        }
    });
}
