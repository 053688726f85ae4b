//! Products row by row, as vectors: where `gemm` does not run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use super::GemmElement;
use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::vectors::times_vector;

/// Whether a call of `gemm` has panicked.
pub(super) static PANICS: AtomicBool = AtomicBool::new(false);

/// Runs a call of `gemm`, unless one has panicked before. False where it has not run.
///
/// It reads from the system how large caches are, and panics at every call where it does not understand that: a fourth level, or
/// shares too small for its tiles (`gemm-common` 0.19, `cache.rs`). It has written nothing by then.
pub(super) fn runs(gemm: impl FnOnce(), panics: &AtomicBool) -> bool {
    if panics.load(Ordering::Relaxed) {
        return false;
    }
    let has_run = catch_unwind(AssertUnwindSafe(gemm)).is_ok();
    if !has_run {
        panics.store(true, Ordering::Relaxed);
    }
    has_run
}

/// Hands each row of a product to `store`, with its index: a row of `a` times `b`.
pub(super) fn multiply<T: GemmElement>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    Size { m, k, n }: Size,
    mut store: impl FnMut(usize, &[T]),
) {
    let mut sums = vec![T::ZERO; n];
    // Without neighbours in rows or columns it is a copy that has them.
    let mut rows = Vec::new();
    let b = match b.row == 1 || b.column == 1 {
        true => b,
        false => {
            for term in 0..k {
                let row = b.from(term, 0).elements;
                rows.extend((0..n).map(|column| row[column * b.column as usize]));
            }
            Matrix {
                elements: &rows,
                row: n as isize,
                column: 1,
            }
        }
    };
    for row in 0..m {
        let vector = (a.from(row, 0).elements, a.column);
        times_vector(&mut sums, b.turned(), vector, [n, k], false);
        store(row, &sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_panics_is_not_called_again() {
        let panics = AtomicBool::new(false);
        let mut calls = 0;
        assert!(runs(|| calls += 1, &panics));
        assert!(!runs(|| panic!("four levels"), &panics));
        assert!(!runs(|| calls += 1, &panics));
        assert_eq!(calls, 1);
    }
}
