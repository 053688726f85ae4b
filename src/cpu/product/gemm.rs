//! The one call of the `gemm` crates.
//!
//! They take raw pointers and strides: these are handed over after checking that every index that they can reach lies inside the
//! slices ([`checked`]).
#![allow(unsafe_code)]

use std::ops::Range;

use gemm_common::Parallelism;

use super::rows;
use crate::cpu::few::Few;
use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::panels;
use crate::cpu::vectors::add;

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
pub(crate) trait GemmElement: Few + bytemuck::Pod {
    const ONE: Self;
    /// The best kernel for this processor.
    fn gemm() -> Gemm<Self>;

    /// The product by [`panels`], and whether it suits them.
    fn by_panels(
        _c: &mut [Self],
        _a: Matrix<'_, Self>,
        _b: Matrix<'_, Self>,
        _size: Size,
        _in_parallel: bool,
    ) -> bool {
        false
    }
}

impl GemmElement for f32 {
    const ONE: f32 = 1.0;
    fn gemm() -> Gemm<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }

    fn by_panels(
        c: &mut [f32],
        a: Matrix<'_, f32>,
        b: Matrix<'_, f32>,
        size: Size,
        in_parallel: bool,
    ) -> bool {
        panels::suit(a, b, size) && panels::share(c, a, b, size, in_parallel)
    }
}

impl GemmElement for f64 {
    const ONE: f64 = 1.0;
    fn gemm() -> Gemm<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// The entries of `c`, if there are any and all matrices lie inside their slices.
pub(super) fn checked<'a, T>(
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

/// Rows of the left operand, or columns of the right one.
struct Lines<T> {
    count: usize,
    start: *const T,
    /// From one to the next.
    apart: isize,
    /// From term to term of one.
    term: isize,
    /// From the entries of one to those of the next.
    entry: isize,
}

/// Where a product goes: a row-major matrix of `row` columns.
#[derive(Clone, Copy)]
pub(super) struct Target<T> {
    pub start: *mut T,
    pub row: usize,
    /// Whether rows of the left operand are packed: of the whole product, so that pieces have its bits.
    pub packs_rows: bool,
}

// SAFETY: it is only written through `call`, each part of it by one thread.
unsafe impl<T: Send> Sync for Target<T> {}

impl<T: GemmElement> Target<T> {
    /// The part from a column on.
    pub(super) fn from(self, column: usize) -> Self {
        Self {
            start: self.start.wrapping_add(column),
            ..self
        }
    }

    /// Hands the pointers over, for some rows and columns of the product: a single one of neighbours would be a matrix times
    /// a vector to `gemm`, which adds all of k up in a row then.
    pub(super) fn call(
        &self,
        a: Matrix<'_, T>,
        b: Matrix<'_, T>,
        k: usize,
        [rows, columns]: [Range<usize>; 2],
        adds: bool,
        parallelism: Parallelism,
    ) {
        if !rows::has_gemm::<T>() {
            return self.call_by_rows(a, b, k, [rows, columns], adds);
        }
        let (m, n) = (rows.len(), columns.len());
        // SAFETY: `checked` has seen that the target holds all rows and columns, and by `holds` that
        // `a` and `b` do (or they are copies as large as what is taken of them); parts of rows and columns lie inside; the target is borrowed alone, and
        // calls at the same time have disjoint parts; strides are not negative.
        let (c, rows, columns) = unsafe {
            (
                self.start.add(rows.start * self.row + columns.start),
                Lines {
                    count: m,
                    start: a.elements.as_ptr().offset(rows.start as isize * a.row),
                    apart: a.row,
                    term: a.column,
                    entry: self.row as isize,
                },
                Lines {
                    count: n,
                    start: b
                        .elements
                        .as_ptr()
                        .offset(columns.start as isize * b.column),
                    apart: b.column,
                    term: b.row,
                    entry: 1,
                },
            )
        };
        // Its kernels want a column-major destination: a row-major product is the transposed product of the transposed
        // operands. But it packs the first one, one by one what are no neighbours, and that takes longer than storing entries so.
        let (first, second) = match self.packs_rows {
            true => (rows, columns),
            false => (columns, rows),
        };
        // SAFETY: as above.
        unsafe {
            T::gemm()(
                first.count,
                second.count,
                k,
                c,
                second.entry,
                first.entry,
                adds,
                first.start,
                first.term,
                first.apart,
                second.start,
                second.apart,
                second.term,
                if adds { T::ONE } else { T::ZERO },
                T::ONE,
                false,
                false,
                false,
                parallelism,
            );
        }
    }

    /// The same without `gemm`.
    pub(super) fn call_by_rows(
        &self,
        a: Matrix<'_, T>,
        b: Matrix<'_, T>,
        k: usize,
        [rows, columns]: [Range<usize>; 2],
        adds: bool,
    ) {
        let (a, b) = (a.from(rows.start, 0), b.from(0, columns.start));
        let (m, n) = (rows.len(), columns.len());
        rows::multiply(a, b, Size { m, k, n }, |row, sums, has_before| {
            // SAFETY: as in `call`: a row of this part of the target, which nobody else has.
            let target = unsafe {
                let start = (rows.start + row) * self.row + columns.start;
                std::slice::from_raw_parts_mut(self.start.add(start), n)
            };
            match adds || has_before {
                true => add(target, sums),
                false => target.copy_from_slice(sums),
            }
        });
    }
}
