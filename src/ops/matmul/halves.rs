//! Products of halves on the CPU: sums in f32 over the whole of k, rounded once, in blocks that are
//! widened as they are needed.

use super::finish::Term;
use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::narrow::{self, Narrow};
use crate::cpu::parallel;
use crate::cpu::product::{self, ALONE};

/// Steps of k that are widened at a time.
const STEPS: usize = 512;
/// Columns of the right operand that are widened at a time.
const COLUMNS: usize = 512;
/// Entries of sums that a thread holds: at most 4 MiB of f32.
const SUMS: usize = 1 << 20;
/// Rows of the result at a time: more make better use of what was widened.
const ROWS: [usize; 2] = [64, 256];

/// What is multiplied here.
pub(super) trait Half: Term<Sum = f32> + Narrow {}

impl<T: Term<Sum = f32> + Narrow> Half for T {}

/// `c = a x b`, `c` row-major without gaps; `finish(index of the first entry, sums)` before they are
/// rounded.
pub(super) fn multiply<T: Half>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    on_all_cores: bool,
    finish: impl Fn(usize, &mut [f32]) + Sync,
) {
    let Size { m, k, n } = size;
    let in_parallel = on_all_cores && size.work() > ALONE;
    if in_parallel && m < ROWS[0] {
        // Few rows: columns are shared out, into sums that are small beside `b`.
        let mut sums = vec![0.0f32; m * n];
        let each = n
            .div_ceil(2 * parallel::width())
            .next_multiple_of(16)
            .min(COLUMNS);
        let panels = sums.chunks_mut(m * each).enumerate();
        parallel::share(true, panels, |(at, sums)| {
            let columns = sums.len() / m;
            let panel = b.from(0, at * each);
            accumulate(sums, a, panel, Size { m, k, n: columns });
        });
        let mut row = vec![0.0f32; n];
        for (i, c) in c.chunks_mut(n).enumerate() {
            for (panel, row) in sums.chunks(m * each).zip(row.chunks_mut(each)) {
                row.copy_from_slice(&panel[i * row.len()..][..row.len()]);
            }
            finish(i * n, &mut row);
            narrow::round(&row, c);
        }
        return;
    }
    let mut rows = (SUMS / n.max(1)).clamp(ROWS[0], ROWS[1]);
    if in_parallel {
        rows = rows.min(m.div_ceil(parallel::width()).next_multiple_of(8));
    }
    let band = |(at, c): (usize, &mut [T])| {
        let mut sums = vec![0.0f32; c.len()];
        let size = Size {
            m: c.len() / n,
            k,
            n,
        };
        accumulate(&mut sums, a.from(at * rows, 0), b, size);
        finish(at * rows * n, &mut sums);
        narrow::round(&sums, c);
    };
    let bands = c.chunks_mut(rows * n).enumerate();
    parallel::share(in_parallel, bands, band);
}

/// `sums += a x b` on the caller's thread.
fn accumulate<T: Half>(sums: &mut [f32], a: Matrix<'_, T>, b: Matrix<'_, T>, size: Size) {
    let Size { m, k, n } = size;
    let (mut left, mut right, mut part) = (Vec::new(), Vec::new(), Vec::new());
    for step in (0..k).step_by(STEPS) {
        let steps = STEPS.min(k - step);
        let a = widened(a.from(0, step), [m, steps], &mut left);
        for column in (0..n).step_by(COLUMNS) {
            let columns = COLUMNS.min(n - column);
            let b = widened(b.from(step, column), [steps, columns], &mut right);
            let size = Size {
                m,
                k: steps,
                n: columns,
            };
            if columns == n {
                product::multiply_add(sums, a, b, size);
                continue;
            }
            part.resize(m * columns, 0.0f32);
            product::multiply(&mut part, a, b, size, false);
            for (sums, part) in sums.chunks_mut(n).zip(part.chunks(columns)) {
                for (sum, part) in sums[column..].iter_mut().zip(part) {
                    *sum += part;
                }
            }
        }
    }
}

/// A matrix in f32, without gaps, along the way that its elements lie.
fn widened<'a, T: Half>(
    matrix: Matrix<'_, T>,
    [rows, columns]: [usize; 2],
    into: &'a mut Vec<f32>,
) -> Matrix<'a, f32> {
    let along_columns = matrix.row == 1 && matrix.column != 1;
    let (lines, length, next, step) = match along_columns {
        true => (columns, rows, matrix.column, matrix.row),
        false => (rows, columns, matrix.row, matrix.column),
    };
    into.resize(lines * length, 0.0);
    for (line, out) in into.chunks_mut(length).enumerate() {
        let from = &matrix.elements[line * next as usize..];
        match step {
            1 => narrow::widen(&from[..length], out),
            _ => {
                for (at, out) in out.iter_mut().enumerate() {
                    *out = from[at * step as usize].wide();
                }
            }
        }
    }
    let (row, column) = match along_columns {
        true => (1, length as isize),
        false => (length as isize, 1),
    };
    Matrix {
        elements: into,
        row,
        column,
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// Blocks of k and of columns, bands and panels: sums of small integers, which f16 holds.
    #[test]
    fn blocks_join() {
        for [m, k, n] in [[16, 600, 1300], [300, 1100, 700], [70, 513, 65], [3, 2, 5]] {
            let values = |count: usize, turn: usize| -> Vec<f16> {
                (0..count)
                    .map(|at| f16::from_f32(((at * turn) % 3) as f32 - 1.0))
                    .collect()
            };
            let (a, b) = (values(m * k, 7), values(k * n, 5));
            let left = Matrix {
                elements: &a,
                row: 1,
                column: m as isize,
            };
            let right = Matrix {
                elements: &b,
                row: n as isize,
                column: 1,
            };
            let mut c = vec![f16::NAN; m * n];
            let seen = std::sync::atomic::AtomicUsize::new(0);
            multiply(
                &mut c,
                left,
                right,
                Size { m, k, n },
                true,
                |first, sums| {
                    assert_eq!(first % n, 0);
                    seen.fetch_add(sums.len(), std::sync::atomic::Ordering::Relaxed);
                    sums.iter_mut().for_each(|sum| *sum += 1.0);
                },
            );
            assert_eq!(seen.into_inner(), m * n);
            for at in (0..m * n).step_by(53) {
                let (i, j) = (at / n, at % n);
                let want: f32 = (0..k)
                    .map(|p| a[i + p * m].to_f32() * b[p * n + j].to_f32())
                    .sum();
                assert_eq!(c[at].to_f32(), want + 1.0, "{m}x{k}x{n}, entry {i}, {j}");
            }
        }
    }
}
