//! The `gemm` crate behind a safe, checked call.
//!
//! `gemm` takes raw pointers and strides; this is the one place that hands them over, after
//! checking that every index it can reach lies inside the slices.
#![allow(unsafe_code)]

use gemm_common::Parallelism;

use super::parallel;

/// One matrix in a slice: its element (0, 0) comes first; strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub elements: &'a [T],
    pub row: isize,
    pub column: isize,
}

impl<T> Matrix<'_, T> {
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
pub(crate) trait GemmElement: Copy + Send + Sync + 'static {
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

/// `c = a x b`, `c` row-major without gaps; on all cores if asked.
/// Nothing happens when a matrix does not lie inside its slice.
pub(crate) fn multiply<T: GemmElement>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    on_all_cores: bool,
) {
    let Size { m, k, n } = size;
    let entries = m
        .checked_mul(n)
        .filter(|&entries| isize::try_from(entries).is_ok());
    let Some(entries) = entries else { return };
    if entries == 0 || c.len() < entries {
        return;
    }
    if k == 0 {
        c[..entries].fill(T::ZERO);
        return;
    }
    if !a.holds(m, k) || !b.holds(k, n) {
        return;
    }
    match on_all_cores.then(parallel::threads).flatten() {
        None => call(c, a, b, size, Parallelism::None),
        Some(threads) => threads.install(|| call(c, a, b, size, Parallelism::Rayon(0))),
    }
}

/// Hands the pointers over.
fn call<T: GemmElement>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    parallelism: Parallelism,
) {
    // Its kernels want a column-major destination: a row-major product is the transposed product
    // of the transposed operands.
    // SAFETY: `multiply` has checked that `c` holds m * n elements, and by `holds` the last
    // element that `a` and `b` can reach; `c` is borrowed alone; strides are not negative.
    unsafe {
        T::gemm()(
            size.n,
            size.m,
            size.k,
            c.as_mut_ptr(),
            size.n as isize,
            1,
            false,
            b.elements.as_ptr(),
            b.row,
            b.column,
            a.elements.as_ptr(),
            a.row,
            a.column,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
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
}
