//! The CPU twin: `gemm` on all cores for floats, a plain loop for integers.

use half::f16;
use rayon::prelude::*;

use crate::cpu::parallel;
use crate::cpu::product::{self, Matrix, Size};
use crate::dtype::{DType, Element};
use crate::layout::Layout;
use crate::road::{HostInput, HostOutput};

/// Multiply-adds below which one core is faster than waking the others.
const PARALLEL: usize = 64 * 64 * 64;

/// `output = left x right`, batch by batch; the output is contiguous.
pub(super) fn multiply(inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) {
    let [a, b] = inputs else { return };
    match output.dtype {
        DType::F32 => each_matrix::<f32>(a, b, output, product::multiply),
        DType::F64 => each_matrix::<f64>(a, b, output, product::multiply),
        DType::F16 => each_matrix::<f16>(a, b, output, halves),
        DType::I32 => each_matrix::<i32>(a, b, output, |c, a, b, size, all| {
            integers(c, a, b, size, all, |sum, a, b| {
                sum.wrapping_add(a.wrapping_mul(b))
            });
        }),
        DType::U32 => each_matrix::<u32>(a, b, output, |c, a, b, size, all| {
            integers(c, a, b, size, all, |sum, a, b| {
                sum.wrapping_add(a.wrapping_mul(b))
            });
        }),
    }
}

/// Calls `product` for each matrix of the batch: one after the other on all cores when each is
/// large, else side by side.
fn each_matrix<T: Element>(
    a: &HostInput<'_>,
    b: &HostInput<'_>,
    output: &mut HostOutput<'_>,
    product: impl Fn(&mut [T], Matrix<'_, T>, Matrix<'_, T>, Size, bool) + Sync,
) {
    let rank = output.layout.rank();
    let ([.., m, k], [.., n]) = (a.layout.shape().dims(), output.layout.shape().dims()) else {
        return;
    };
    let size = Size {
        m: *m,
        k: *k,
        n: *n,
    };
    let starts = |layout: &Layout| -> Vec<usize> { layout.leading(rank - 2).indices().collect() };
    let (a_starts, b_starts) = (starts(a.layout), starts(b.layout));
    let matrix = |elements, layout: &Layout| Matrix {
        elements,
        row: layout.strides()[rank - 2],
        column: layout.strides()[rank - 1],
    };
    let (a_all, b_all) = (a.elements::<T>(), b.elements::<T>());
    let one = |c: &mut [T], batch: usize, parallel| {
        let a = matrix(&a_all[a_starts[batch]..], a.layout);
        let b = matrix(&b_all[b_starts[batch]..], b.layout);
        product(c, a, b, size, parallel);
    };
    let count = output.layout.elements();
    let Some(c) = output.elements::<T>().get_mut(..count) else {
        return;
    };
    let (work, batches) = (size.work(), a_starts.len());
    let entries = size.m * size.n;
    let side_by_side = batches > 1 && work.saturating_mul(batches) >= PARALLEL;
    match side_by_side.then(parallel::threads).flatten() {
        Some(threads) if batches >= threads.current_num_threads() => threads.install(|| {
            c.par_chunks_mut(entries)
                .enumerate()
                .for_each(|(batch, c)| one(c, batch, false));
        }),
        _ => {
            for (batch, c) in c.chunks_mut(entries).enumerate() {
                one(c, batch, work >= PARALLEL);
            }
        }
    }
}

/// f16 through f32: sums are kept in f32 over the whole of k, and rounded once.
fn halves(c: &mut [f16], a: Matrix<'_, f16>, b: Matrix<'_, f16>, size: Size, all: bool) {
    let (a, b) = (Wide::of(a, size.m, size.k), Wide::of(b, size.k, size.n));
    let mut wide = vec![0.0f32; size.m * size.n];
    product::multiply(&mut wide, a.matrix(), b.matrix(), size, all);
    for (out, wide) in c.iter_mut().zip(wide) {
        *out = f16::from_f32(wide);
    }
}

/// A matrix of f16 as f32.
struct Wide {
    elements: Vec<f32>,
    row: isize,
    column: isize,
}

impl Wide {
    /// Without gaps, or as it lies where that is less: repeated rows and columns stay repeated.
    fn of(matrix: Matrix<'_, f16>, rows: usize, columns: usize) -> Self {
        let reach = |count: usize, stride: isize| (count - 1).saturating_mul(stride as usize);
        let span = reach(rows, matrix.row).saturating_add(reach(columns, matrix.column));
        let as_it_lies = span < rows.saturating_mul(columns);
        let count = if as_it_lies { span + 1 } else { rows * columns };
        let mut elements = vec![0.0f32; count];
        parallel::pieces(&mut elements, |from, piece| {
            for (at, out) in (from..).zip(piece) {
                let (i, j) = ((at / columns) as isize, (at % columns) as isize);
                let at = match as_it_lies {
                    true => at,
                    false => (i * matrix.row + j * matrix.column) as usize,
                };
                *out = matrix.elements[at].to_f32();
            }
        });
        let (row, column) = match as_it_lies {
            true => (matrix.row, matrix.column),
            false => (columns as isize, 1),
        };
        Self {
            elements,
            row,
            column,
        }
    }

    fn matrix(&self) -> Matrix<'_, f32> {
        Matrix {
            elements: &self.elements,
            row: self.row,
            column: self.column,
        }
    }
}

/// Rows of the output side by side on all cores; wrapping sums.
fn integers<T: Element + Default>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    on_all_cores: bool,
    add: fn(T, T, T) -> T,
) {
    let row = |(i, row): (usize, &mut [T])| {
        row.fill(T::default());
        for k in 0..size.k {
            let left = a.elements[(i as isize * a.row + k as isize * a.column) as usize];
            for (j, out) in row.iter_mut().enumerate() {
                let right = b.elements[(k as isize * b.row + j as isize * b.column) as usize];
                *out = add(*out, left, right);
            }
        }
    };
    match on_all_cores.then(parallel::threads).flatten() {
        None => c.chunks_mut(size.n).enumerate().for_each(row),
        Some(threads) => {
            threads.install(|| c.par_chunks_mut(size.n).enumerate().for_each(row));
        }
    }
}
