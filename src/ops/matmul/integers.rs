//! Products of integers on the CPU, which wrap: of u32, and of i32 by the same bits.

use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::product::ALONE;
use crate::cpu::{Loops, parallel, tiles, vectorised};

/// Rows and columns whose sums stay in registers.
const ROWS: usize = 4;
const COLUMNS: usize = 16;
/// Steps of k that are packed at a time: those of a block's columns stay in the first cache.
const STEPS: usize = 256;
/// Rows and columns of a tile at most: with what is packed 400 KiB.
const TILE: [usize; 2] = [128, 512];
/// Columns of a matrix that are added to a vector at a time, and terms of vectors that are set apart.
const ADDED: usize = 4;
const TERMS: usize = 4096;

/// `c = a x b`, `c` row-major without gaps.
pub(super) fn multiply(
    c: &mut [u32],
    a: Matrix<'_, u32>,
    b: Matrix<'_, u32>,
    size: Size,
    on_all_cores: bool,
) {
    let Size { m, k, n } = size;
    let in_parallel = on_all_cores && size.work() >= ALONE / 2;
    let threads = if in_parallel { parallel::width() } else { 1 };
    let shared = |length: usize, most: usize, multiple: usize| {
        let each = length.div_ceil(threads).next_multiple_of(multiple);
        if threads > 1 { most.min(each) } else { most }
    };
    if m == 1 || n == 1 {
        let (matrix, vector) = match n {
            1 => (a, b),
            _ => (b.turned(), a.turned()),
        };
        let each = shared(c.len(), TERMS, 64);
        let pieces = c.chunks_mut(each).enumerate();
        return parallel::share(in_parallel, pieces, |(at, c)| {
            let matrix = matrix.from(at * each, 0);
            let (length, step) = (k, vector.row as usize);
            vectorised(Vector {
                c,
                matrix,
                length,
                vector: vector.elements,
                step,
            });
        });
    }
    // The longer side lies along the vectors.
    let is_turned = n < COLUMNS && n < m;
    let shape = match is_turned {
        true => [shared(m, TILE[1], COLUMNS), n],
        false if m >= threads * ROWS => [shared(m, TILE[0], ROWS), TILE[1].min(n)],
        false => [TILE[0], shared(n, TILE[1], COLUMNS).min(n)],
    };
    tiles::share(in_parallel, c, n, shape, |tile| {
        let (a, b) = (a.from(tile.row, 0), b.from(0, tile.column));
        let (a, b, m, n) = match is_turned {
            true => (b.turned(), a.turned(), tile.columns, tile.rows),
            false => (a, b, tile.rows, tile.columns),
        };
        let mut sums = vec![0; m * n];
        vectorised(Product {
            sums: &mut sums,
            a,
            b,
            size: Size { m, k, n },
        });
        let mut first = 0;
        for line in tile.lines {
            match is_turned {
                true => {
                    for (at, out) in line.iter_mut().enumerate() {
                        *out = sums[at % m * n + at / m];
                    }
                }
                false => line.copy_from_slice(&sums[first..first + line.len()]),
            }
            first += line.len();
        }
    });
}

/// `c = matrix x vector`, of whose elements each is `step` after the other.
struct Vector<'a> {
    c: &'a mut [u32],
    matrix: Matrix<'a, u32>,
    length: usize,
    vector: &'a [u32],
    step: usize,
}

impl Loops for Vector<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Vector { c, matrix, .. } = self;
        let (row, column) = (matrix.row as usize, matrix.column as usize);
        c.fill(0);
        let mut x = [0; TERMS];
        for first in (0..self.length).step_by(TERMS) {
            let x = &mut x[..TERMS.min(self.length - first)];
            for (at, x) in x.iter_mut().enumerate() {
                *x = self.vector[(first + at) * self.step];
            }
            let elements = &matrix.elements[first * column..];
            if column != 1 && row == 1 {
                for (group, x) in x.chunks(ADDED).enumerate() {
                    let elements = &elements[group * ADDED * column..];
                    add(c, elements, column, x);
                }
                continue;
            }
            for (at, sum) in c.iter_mut().enumerate() {
                let line = &elements[at * row..];
                let dot = match column {
                    1 => dot(line[..x.len()].iter(), x),
                    0 => dot(std::iter::repeat(&line[0]), x),
                    _ => dot(line.iter().step_by(column), x),
                };
                *sum = sum.wrapping_add(dot);
            }
        }
    }
}

#[inline(always)]
fn dot<'a>(line: impl Iterator<Item = &'a u32>, x: &[u32]) -> u32 {
    line.zip(x)
        .fold(0, |sum: u32, (&a, &x)| sum.wrapping_add(a.wrapping_mul(x)))
}

/// Adds columns of neighbours, of which each is `stride` after the other, times `x`.
#[inline(always)]
fn add(c: &mut [u32], elements: &[u32], stride: usize, x: &[u32]) {
    let column = |at: usize| &elements[at * stride..][..c.len()];
    if let &[x0, x1, x2, x3] = x {
        let [first, second, third, fourth] = [column(0), column(1), column(2), column(3)];
        for (at, sum) in c.iter_mut().enumerate() {
            let near = x0
                .wrapping_mul(first[at])
                .wrapping_add(x1.wrapping_mul(second[at]));
            let far = x2
                .wrapping_mul(third[at])
                .wrapping_add(x3.wrapping_mul(fourth[at]));
            *sum = sum.wrapping_add(near).wrapping_add(far);
        }
        return;
    }
    for (at, x) in x.iter().enumerate() {
        for (sum, a) in c.iter_mut().zip(&elements[at * stride..]) {
            *sum = sum.wrapping_add(x.wrapping_mul(*a));
        }
    }
}

/// `sums += a x b`, row-major without gaps.
struct Product<'a> {
    sums: &'a mut [u32],
    a: Matrix<'a, u32>,
    b: Matrix<'a, u32>,
    size: Size,
}

impl Loops for Product<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Product { sums, a, b, size } = self;
        let Size { m, k, n } = size;
        let most = k.min(STEPS);
        let of_left = m.next_multiple_of(ROWS) * most;
        let mut packed = vec![0; of_left + COLUMNS * most];
        let (left, right) = packed.split_at_mut(of_left);
        for step in (0..k).step_by(STEPS) {
            let steps = STEPS.min(k - step);
            let left = &mut left[..m.next_multiple_of(ROWS) * steps];
            for (block, left) in left.chunks_exact_mut(ROWS * steps).enumerate() {
                let row = block * ROWS;
                pack::<ROWS>(left, a.from(row, step), m - row);
            }
            let right = &mut right[..COLUMNS * steps];
            for column in (0..n).step_by(COLUMNS) {
                pack::<COLUMNS>(right, b.from(step, column).turned(), n - column);
                for (block, left) in left.chunks_exact(ROWS * steps).enumerate() {
                    let product = product(left, right);
                    let lines = sums[block * ROWS * n..].chunks_mut(n);
                    for (line, product) in lines.zip(&product) {
                        for (sum, product) in line[column..].iter_mut().zip(product) {
                            *sum = sum.wrapping_add(*product);
                        }
                    }
                }
            }
        }
    }
}

/// The first elements of `WIDTH` rows, the second ones, and so on; zeros where there are no more than `rows`.
#[inline(always)]
fn pack<const WIDTH: usize>(into: &mut [u32], from: Matrix<'_, u32>, rows: usize) {
    let (row, column) = (from.row as usize, from.column as usize);
    let lines = into.as_chunks_mut::<WIDTH>().0;
    if row == 1 && rows >= WIDTH {
        for (at, line) in lines.iter_mut().enumerate() {
            line.copy_from_slice(&from.elements[at * column..][..WIDTH]);
        }
        return;
    }
    for lane in 0..WIDTH {
        if lane >= rows {
            lines.iter_mut().for_each(|line| line[lane] = 0);
            continue;
        }
        let elements = &from.elements[lane * row..];
        for (at, line) in lines.iter_mut().enumerate() {
            line[lane] = elements[at * column];
        }
    }
}

/// Of packed rows and columns.
#[inline(always)]
fn product(left: &[u32], right: &[u32]) -> [[u32; COLUMNS]; ROWS] {
    let mut sums = [[0u32; COLUMNS]; ROWS];
    let (left, right) = (left.as_chunks::<ROWS>().0, right.as_chunks::<COLUMNS>().0);
    for (a, b) in left.iter().zip(right) {
        for (sums, &a) in sums.iter_mut().zip(a) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = sum.wrapping_add(a.wrapping_mul(b));
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles, parts of k, vectors and what is left of blocks, in every layout, against sums in order.
    #[test]
    fn products_wrap_in_every_layout() {
        for [m, k, n] in [
            [1, 1, 1],
            [3, 2, 5],
            [130, 300, 40],
            [40, 17, 1100],
            [9, 700, 513],
            [700, 270, 3],
            [1, 5000, 70],
            [4200, 67, 1],
            [1, 6000, 1],
            [17, 0, 18],
            [1, 0, 3],
            [200, 90, 100],
        ] {
            let values = |count: usize, turn: u32| -> Vec<u32> {
                (0..count as u32)
                    .map(|at| (at + turn).wrapping_mul(0x9e37_79b1))
                    .collect()
            };
            let (a, b) = (values(2 * m * k + 2, 7), values(2 * k * n + 2, 3));
            for layouts in 0..16 {
                // By rows, by columns, with gaps between neighbours, and one element for all.
                let lay = |elements, rows: usize, columns: usize, layout: usize| {
                    let (row, column) = [(columns, 1), (1, rows), (2 * columns, 2), (0, 0)][layout];
                    Matrix {
                        elements,
                        row: row as isize,
                        column: column as isize,
                    }
                };
                let left = lay(&a, m, k, layouts % 4);
                let right = lay(&b, k, n, layouts / 4);
                let size = Size { m, k, n };
                let mut c = vec![9; m * n];
                multiply(&mut c, left, right, size, true);
                let mut alone = vec![9; m * n];
                multiply(&mut alone, left, right, size, false);
                assert!(c == alone, "{size:?}, layouts {layouts}");
                for at in (0..m * n).step_by(37).chain([m * n - 1]) {
                    let (i, j) = (at / n, at % n);
                    let element = |matrix: &Matrix<'_, u32>, i: usize, j: usize| {
                        matrix.elements[i * matrix.row as usize + j * matrix.column as usize]
                    };
                    let want = (0..k).fold(0u32, |sum, p| {
                        let (a, b) = (element(&left, i, p), element(&right, p, j));
                        sum.wrapping_add(a.wrapping_mul(b))
                    });
                    assert_eq!(c[at], want, "{size:?}, layouts {layouts}, entry {i}, {j}");
                }
            }
        }
    }
}
