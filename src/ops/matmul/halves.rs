//! Products of halves on the CPU: sums in f32 over the whole of k, rounded once, in tiles that are
//! widened as they are needed.

use super::finish::Term;
use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::narrow::{self, Narrow};
use crate::cpu::parallel;
use crate::cpu::product::{self, ALONE};
use crate::cpu::{Rooms, halves, panels, tiles};
use crate::error::Result;

/// Steps of k that are widened at a time.
const STEPS: usize = 512;
/// Rows and columns of a tile that make good use of what was widened.
const ROWS: usize = 256;
const COLUMNS: usize = 512;
/// Entries of a tile, and elements of either operand's part for it where that is no longer than `STEPS` and `COLUMNS` ask.
const ENTRIES: usize = ROWS * COLUMNS;
/// Rows that threads share; of fewer they share the columns.
const SHARED_ROWS: usize = 64;
/// Rows or columns that are few.
const FEW: usize = 8;
/// Elements of the other operand that are widened at a time then, each of them used so few times: the first cache has them.
const NEAR: usize = 4096;
/// Its lines along k (for each of the few), or steps of k, at least, since each time costs.
const LEAST: usize = 16;
/// Steps of k of a matrix times a vector that are summed at a time, along its lines and across them; and its lines, or elements
/// of one, of a tile.
const VECTOR_STEPS: [usize; 2] = [8192, 512];
const VECTOR_LINES: usize = 4096;

/// What is multiplied here.
pub(super) trait Half: Term<Sum = f32> + Narrow {}

impl<T: Term<Sum = f32> + Narrow> Half for T {}

/// `c = a x b`, `c` row-major without gaps; `finish(index of the first entry, sums)` before they are
/// rounded.
///
/// # Errors
/// `OutOfMemory` of the host, for what a thread widens and sums: at most 2.5 MiB. `c` is as it was then.
pub(super) fn multiply<T: Half>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    size: Size,
    on_all_cores: bool,
    finish: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<()> {
    let in_parallel = on_all_cores && size.work() > ALONE;
    let threads = if in_parallel { parallel::width() } else { 1 };
    let cut = Cut::of(a, b, size, threads);
    let scratch: usize = cut
        .scratch::<T>([cut.rows, cut.columns], size.k)
        .iter()
        .sum();
    let rooms = Rooms::new("matmul", threads, scratch)?;
    tiles::share(in_parallel, c, size.n, [cut.rows, cut.columns], |tile| {
        let part = Size {
            m: tile.rows,
            n: tile.columns,
            ..size
        };
        let (a, b) = (a.from(tile.row, 0), b.from(0, tile.column));
        rooms.lend(|room| {
            let mut sums = cut.sums(a, b, part, room);
            let mut first = tile.row * size.n + tile.column;
            for line in tile.lines {
                let (of_line, others) = sums.split_at_mut(line.len());
                finish(first, of_line);
                narrow::round(of_line, line);
                (sums, first) = (others, first + size.n);
            }
        });
    });
    Ok(())
}

/// How a product is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Of a tile, which is one thread's.
    rows: usize,
    columns: usize,
    /// Of k, which are widened at a time.
    steps: usize,
    way: Way,
}

/// How a tile is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A matrix with lines of neighbours times a vector: it is widened as it is multiplied.
    Vector,
    /// Lines along k, which are widened as they are packed.
    Panels,
    /// By steps of k, which are widened before.
    Steps,
}

impl Cut {
    /// Tiles of more rows or columns where the other side or k is short, of fewer where threads would have none; of few where
    /// either side is that short.
    fn of<T: Narrow>(a: Matrix<'_, T>, b: Matrix<'_, T>, size: Size, threads: usize) -> Self {
        let Size { m, k, n } = size;
        let (matrix, _) = as_vector(a, b, size);
        let has_columns = matrix.row == 1 && m.max(n) >= halves::LANES;
        if m.min(n) == 1 && (matrix.column == 1 || has_columns) {
            let shared = match threads {
                1 => VECTOR_LINES,
                _ => m.max(n).div_ceil(2 * threads).next_multiple_of(16),
            };
            let longer = shared.min(VECTOR_LINES).min(m.max(n));
            let [rows, columns] = if n == 1 { [longer, 1] } else { [1, longer] };
            let steps = VECTOR_STEPS[usize::from(matrix.column != 1)];
            return Self {
                rows,
                columns,
                steps: k.clamp(1, steps),
                way: Way::Vector,
            };
        }
        let terms = k.clamp(1, STEPS);
        let mut rows = ENTRIES / terms.max(n.min(COLUMNS));
        if threads > 1 && m >= SHARED_ROWS {
            rows = rows.min(m.div_ceil(threads).next_multiple_of(8));
        }
        rows = rows.min(m);
        let mut columns = (ENTRIES / terms.max(rows)).max(COLUMNS);
        if threads > 1 && m < SHARED_ROWS {
            columns = columns.min(n.div_ceil(2 * threads).next_multiple_of(16));
        }
        let mut cut = Self {
            rows,
            columns: columns.min(n),
            steps: terms,
            way: match !T::has_products() && panels::suit(a, b, size) {
                true => Way::Panels,
                false => Way::Steps,
            },
        };
        // Along the lines that the longer side has.
        let (longer, are_lines_of_k) = match m <= n {
            true => (&mut cut.columns, b.row == 1),
            false => (&mut cut.rows, a.column == 1),
        };
        if m.min(n) <= FEW {
            if are_lines_of_k {
                *longer = (*longer).min((NEAR / terms).max(LEAST * m.min(n)));
            } else {
                *longer = (*longer).min(NEAR / LEAST);
                cut.steps = terms.min(NEAR / *longer);
            }
        }
        cut
    }

    /// Numbers that a tile of so many rows and columns takes: sums, those of some steps of k, and of either operand what is
    /// widened.
    fn scratch<T: Narrow>(self, [rows, columns]: [usize; 2], k: usize) -> [usize; 4] {
        let (entries, steps) = (rows * columns, k.min(self.steps));
        match self.way {
            Way::Vector => return [entries, entries, steps, 0],
            Way::Panels => return [entries, 0, panels::scratch(rows, k.min(panels::STEPS)), 0],
            Way::Steps => {}
        }
        let [left, right] = T::packed([rows, columns], steps);
        let (left, right) = (left.max(rows * steps), right.max(steps * columns));
        [entries, entries, left, right]
    }

    /// `a x b` on the caller's thread.
    fn sums<'a, T: Half>(
        self,
        a: Matrix<'_, T>,
        b: Matrix<'_, T>,
        Size { m, k, n }: Size,
        scratch: &'a mut [f32],
    ) -> &'a mut [f32] {
        let lengths = self.scratch::<T>([m, n], k);
        let (sums, rest) = scratch.split_at_mut(lengths[0]);
        let (part, rest) = rest.split_at_mut(lengths[1]);
        let (left, right) = rest.split_at_mut(lengths[2]);
        let size = Size { m, k, n };
        if self.way == Way::Panels {
            let mut rows: Vec<&mut [f32]> = sums.chunks_mut(n).collect();
            panels::multiply(&mut rows, a, b, size, left);
            return sums;
        }
        if T::multiply_lines(sums, a, b, size) {
            return sums;
        }
        sums.fill(0.0);
        for step in (0..k).step_by(self.steps) {
            let steps = self.steps.min(k - step);
            if self.way == Way::Vector {
                let (a, b) = (a.from(0, step), b.from(step, 0));
                times_vector(part, as_vector(a, b, Size { m, k, n }), &mut left[..steps]);
            } else {
                let size = Size { m, k: steps, n };
                let (a, b) = (a.from(0, step), b.from(step, 0));
                if T::multiply_add(sums, a, b, size, [left, right]) {
                    continue;
                }
                let a = widened(a, [m, steps], left);
                let b = widened(b, [steps, n], right);
                if !is_small(a, b, size) {
                    product::multiply_add(sums, a, b, size);
                    continue;
                }
                product::multiply(part, a, b, size, false);
            }
            for (sum, part) in sums.iter_mut().zip(&*part) {
                *sum += part;
            }
        }
        sums
    }
}

/// A product of one row or one column as a matrix and the vector that it is multiplied with, as a row.
fn as_vector<'a, T: Copy>(
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    size: Size,
) -> (Matrix<'a, T>, Matrix<'a, T>) {
    match size.n == 1 {
        true => (a, b.turned()),
        false => (b.turned(), a),
    }
}

/// `y = matrix x vector`, of as many terms as `x` has room for.
fn times_vector<T: Half>(
    y: &mut [f32],
    (matrix, vector): (Matrix<'_, T>, Matrix<'_, T>),
    x: &mut [f32],
) {
    widened(vector, [1, x.len()], x);
    match matrix.column {
        1 => halves::rows_times(matrix.elements, matrix.row as usize, x, y),
        step => halves::columns_times(matrix.elements, step as usize, x, y),
    }
}

/// Whether there are loops of our own for it that are faster than adding to the sums at once: for vectors, few rows times
/// columns, or rows times few columns, and what is not worth packing.
fn is_small<T>(a: Matrix<'_, T>, b: Matrix<'_, T>, size: Size) -> bool {
    let Size { m, n, .. } = size;
    let is_straight = if n <= m { a.column == 1 } else { b.row == 1 };
    let most = if is_straight { FEW } else { 1 };
    m.min(n) <= most || product::is_small(size, size_of::<f32>())
}

/// A matrix in f32, without gaps, along the way that its elements lie, or its longer side.
fn widened<'a, T: Half>(
    matrix: Matrix<'_, T>,
    [rows, columns]: [usize; 2],
    into: &'a mut [f32],
) -> Matrix<'a, f32> {
    let along_columns = if rows == 1 || columns == 1 {
        columns == 1
    } else if matrix.row == 1 || matrix.column == 1 {
        matrix.column != 1
    } else {
        rows > columns
    };
    let (mut lines, mut length, next, step) = match along_columns {
        true => (columns, rows, matrix.column, matrix.row),
        false => (rows, columns, matrix.row, matrix.column),
    };
    let strides = match along_columns {
        true => (1, length as isize),
        false => (length as isize, 1),
    };
    if (next, step) == (length as isize, 1) {
        // Lines without gaps are one.
        (lines, length) = (1, lines * length);
    }
    let into = &mut into[..lines * length];
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
    let (row, column) = strides;
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
    use crate::sync::Mutex;

    /// Parts of k and tiles, by rows and by columns: sums of small integers, which f16 holds.
    #[test]
    fn tiles_join() {
        for [m, k, n] in [
            [16, 600, 1300],
            [300, 1100, 700],
            [70, 513, 65],
            [3, 2, 5],
            [63, 2, 20_000],
            [20_000, 2, 63],
            [1, 1500, 700],
            [700, 1500, 1],
            [1, 2000, 1],
            [2, 0, 3],
        ] {
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
            for (row, column) in [(n, 1), (1, k)] {
                let right = Matrix {
                    elements: &b,
                    row: row as isize,
                    column: column as isize,
                };
                let mut c = vec![f16::NAN; m * n];
                let seen = Mutex::new(vec![0; m * n]);
                let finish = |first: usize, sums: &mut [f32]| {
                    assert!(sums.len() <= ENTRIES, "{m}x{k}x{n}");
                    let seen = &mut seen.lock()[first..][..sums.len()];
                    seen.iter_mut().for_each(|seen| *seen += 1);
                    sums.iter_mut().for_each(|sum| *sum += 1.0);
                };
                multiply(&mut c, left, right, Size { m, k, n }, true, finish).unwrap();
                assert!(seen.into_inner().iter().all(|&seen| seen == 1));
                for at in (0..m * n).step_by(53) {
                    let (i, j) = (at / n, at % n);
                    let want: f32 = (0..k)
                        .map(|p| a[i + p * m].to_f32() * b[p * row + j * column].to_f32())
                        .sum();
                    assert_eq!(c[at].to_f32(), want + 1.0, "{m}x{k}x{n}, entry {i}, {j}");
                }
            }
        }
    }

    /// However long the sides are, on any number of cores.
    #[test]
    fn scratch_is_bounded() {
        let sides = [
            1,
            2,
            7,
            63,
            64,
            255,
            513,
            5000,
            1 << 20,
            isize::MAX as usize >> 23,
        ];
        for at in 0..sides.len() * sides.len() * sides.len() {
            let side = |nth: u32| sides[at / sides.len().pow(nth) % sides.len()];
            let size = Size {
                m: side(0),
                k: side(1),
                n: side(2),
            };
            for (threads, straight) in [1, 2, 64].into_iter().flat_map(|at| [(at, 1), (at, 2)]) {
                let lying = |[row, column]: [isize; 2]| Matrix {
                    elements: &[f16::ZERO; 0],
                    row,
                    column,
                };
                let (a, b) = (lying([7, straight]), lying([straight, 7]));
                let cut = Cut::of(a, b, size, threads);
                assert!(cut.rows > 0 && cut.rows <= size.m, "{size:?}: {cut:?}");
                assert!(
                    cut.columns > 0 && cut.columns <= size.n,
                    "{size:?}: {cut:?}"
                );
                let most = if cut.way == Way::Vector {
                    VECTOR_STEPS[0]
                } else {
                    STEPS
                };
                assert!(cut.steps > 0 && cut.steps <= most, "{size:?}: {cut:?}");
                let tile = [cut.rows, cut.columns];
                let numbers: usize = cut.scratch::<half::bf16>(tile, size.k).iter().sum();
                assert!(numbers * 4 <= 5 << 19, "{size:?}: {cut:?}");
                if size.m.min(size.n) <= FEW {
                    assert!(
                        numbers * 4 <= (64 << 10) * size.m.min(size.n),
                        "{size:?}: {cut:?}"
                    );
                }
            }
        }
    }
}
