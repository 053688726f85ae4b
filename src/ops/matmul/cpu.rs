//! The CPU twin: `gemm` on all cores for floats, a plain loop for integers.

use half::{bf16, f16};
use rayon::prelude::*;

use super::finish::{self, Sum, Term};
use super::rule::Finish;
use crate::cpu::parallel;
use crate::cpu::product::{self, Matrix, Size};
use crate::dtype::{DType, Element};
use crate::layout::Layout;
use crate::road::{HostInput, HostOutput};

/// Multiply-adds below which one core is faster than waking the others.
const PARALLEL: usize = 64 * 64 * 64;

/// `output = left x right`, batch by batch, finished; the output is contiguous.
pub(super) fn multiply(finish: Finish, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) {
    let [a, b, added @ ..] = inputs else { return };
    let (layout, count) = (output.layout, output.layout.elements());
    match output.dtype {
        DType::F32 => in_place::<f32>(finish, [a, b], added, output),
        DType::F64 => in_place::<f64>(finish, [a, b], added, output),
        DType::F16 => through_f32::<f16>(finish, [a, b], added, output),
        DType::BF16 => through_f32::<bf16>(finish, [a, b], added, output),
        DType::I32 => {
            let Some(c) = output.elements::<i32>().get_mut(..count) else {
                return;
            };
            each_matrix::<i32, i32>(a, b, layout, c, |c, a, b, size, all| {
                integers(c, a, b, size, all, |sum, a, b| {
                    sum.wrapping_add(a.wrapping_mul(b))
                });
            });
        }
        DType::U32 => {
            let Some(c) = output.elements::<u32>().get_mut(..count) else {
                return;
            };
            each_matrix::<u32, u32>(a, b, layout, c, |c, a, b, size, all| {
                integers(c, a, b, size, all, |sum, a, b| {
                    sum.wrapping_add(a.wrapping_mul(b))
                });
            });
        }
    }
}

/// Halves: sums are kept in f32 until they are finished.
fn through_f32<T: Term<Sum = f32>>(
    finish: Finish,
    [a, b]: [&HostInput<'_>; 2],
    added: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) {
    let mut sums = vec![0.0f32; output.layout.elements()];
    each_matrix::<T, f32>(a, b, output.layout, &mut sums, halves);
    finish::finish::<T>(finish, added, &mut sums);
    for (out, sum) in output.elements::<T>().iter_mut().zip(sums) {
        *out = T::narrow(sum);
    }
}

/// Sums in the type of the elements: straight in the output.
fn in_place<T: Term<Sum = T> + Sum + product::GemmElement>(
    finish: Finish,
    [a, b]: [&HostInput<'_>; 2],
    added: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) {
    let (layout, count) = (output.layout, output.layout.elements());
    let Some(c) = output.elements::<T>().get_mut(..count) else {
        return;
    };
    each_matrix::<T, T>(a, b, layout, c, product::multiply);
    finish::finish::<T>(finish, added, c);
}

/// Calls `product` for each matrix of the batch: one after the other on all cores when each is
/// large, else side by side.
fn each_matrix<T: Element, C: Element>(
    a: &HostInput<'_>,
    b: &HostInput<'_>,
    output: &Layout,
    c: &mut [C],
    product: impl Fn(&mut [C], Matrix<'_, T>, Matrix<'_, T>, Size, bool) + Sync,
) {
    let rank = output.rank();
    let ([.., m, k], [.., n]) = (a.layout.shape().dims(), output.shape().dims()) else {
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
    let one = |c: &mut [C], batch: usize, parallel| {
        let a = matrix(&a_all[a_starts[batch]..], a.layout);
        let b = matrix(&b_all[b_starts[batch]..], b.layout);
        product(c, a, b, size, parallel);
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

/// Halves through f32: sums are kept in f32 over the whole of k.
fn halves<T: Term<Sum = f32>>(
    c: &mut [f32],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    all: bool,
) {
    let (a, b) = (Wide::of(a, size.m, size.k), Wide::of(b, size.k, size.n));
    product::multiply(c, a.matrix(), b.matrix(), size, all);
}

/// A matrix of halves as f32.
struct Wide {
    elements: Vec<f32>,
    row: isize,
    column: isize,
}

impl Wide {
    /// Without gaps, or as it lies where that is less: repeated rows and columns stay repeated.
    fn of<T: Term<Sum = f32>>(matrix: Matrix<'_, T>, rows: usize, columns: usize) -> Self {
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
                *out = matrix.elements[at].wide();
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
