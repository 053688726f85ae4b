//! A matrix times a few vectors in one pass over it, in the processor's vectors: the `gemm` crates pack it first. On the
//! caller's thread.

use pulp::{Arch, Simd, WithSimd};

use super::simd::{Floats, ROWS, each_float};

/// Vectors that are multiplied side by side.
pub(crate) const FEW: usize = 4;
/// Columns of the matrix that they take at a time: so many streams from memory.
const COLUMNS: usize = 8;
/// Rows of which the sums of columns stay in the first cache.
const FEW_ROWS: usize = 1024;

/// A float type with its loops over few vectors.
pub(crate) trait Few: Floats {
    /// [`Floats::rows_times`] of several vectors, one after the other in `x` and `y`: a multiple of [`FEW`].
    fn rows_times_few(matrix: &[Self], stride: usize, x: &[Self], y: &mut [Self], vectors: usize);

    /// [`Floats::columns_times`] of several vectors, a multiple of [`FEW`].
    fn columns_times_few(
        matrix: &[Self],
        stride: usize,
        x: &[Self],
        y: &mut [Self],
        vectors: usize,
    );
}

macro_rules! floats {
    (
        $module:ident, $float:ty, $vector:ident, $lanes:ident, $splat:ident, $mul_add:ident,
        $add:ident, $reduce:ident, $load:ident, $store:ident, $of:ident, $of_mut:ident
    ) => {
        mod $module {
            use super::*;

            impl Few for $float {
                fn rows_times_few(
                    matrix: &[$float],
                    stride: usize,
                    x: &[$float],
                    y: &mut [$float],
                    vectors: usize,
                ) {
                    let (rows, k) = (y.len() / vectors, x.len() / vectors);
                    if rows >= ROWS {
                        return Arch::new().dispatch(RowsFew(matrix, stride, x, y, vectors));
                    }
                    for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(rows)) {
                        Self::rows_times(matrix, stride, x, y);
                    }
                }

                fn columns_times_few(
                    matrix: &[$float],
                    stride: usize,
                    x: &[$float],
                    y: &mut [$float],
                    vectors: usize,
                ) {
                    Arch::new().dispatch(ColumnsFew(matrix, stride, x, y, vectors));
                }
            }

            struct RowsFew<'a>(&'a [$float], usize, &'a [$float], &'a mut [$float], usize);

            impl WithSimd for RowsFew<'_> {
                type Output = ();

                #[inline(always)]
                fn with_simd<S: Simd>(self, simd: S) {
                    let RowsFew(matrix, stride, x, y, vectors) = self;
                    let (rows, k) = (y.len() / vectors, x.len() / vectors);
                    for row in (0..rows).step_by(ROWS) {
                        // The last ones once more, where there are no four left.
                        let row = row.min(rows - ROWS);
                        let lines: [&[$float]; ROWS] =
                            std::array::from_fn(|at| &matrix[(row + at) * stride..][..k]);
                        for vector in (0..vectors).step_by(FEW) {
                            let sums = dots_few::<S>(simd, lines, &x[vector * k..][..FEW * k]);
                            for at in 0..ROWS {
                                for few in 0..FEW {
                                    y[(vector + few) * rows + row + at] = sums[at][few];
                                }
                            }
                        }
                    }
                }
            }

            #[inline(always)]
            fn dots_few<S: Simd>(
                simd: S,
                rows: [&[$float]; ROWS],
                x: &[$float],
            ) -> [[$float; FEW]; ROWS] {
                let k = x.len() / FEW;
                let vectors: [&[$float]; FEW] = std::array::from_fn(|at| &x[at * k..][..k]);
                let body = k / S::$lanes;
                let bodies: [&[S::$vector]; ROWS] =
                    std::array::from_fn(|row| &S::$of(rows[row]).0[..body]);
                let x_bodies: [&[S::$vector]; FEW] =
                    std::array::from_fn(|at| &S::$of(vectors[at]).0[..body]);
                let mut sums = [[simd.$splat(0.0); FEW]; ROWS];
                for at in 0..body {
                    let [a, b, c, d] = bodies.map(|body| body[at]);
                    for few in 0..FEW {
                        let x = x_bodies[few][at];
                        sums[0][few] = simd.$mul_add(a, x, sums[0][few]);
                        sums[1][few] = simd.$mul_add(b, x, sums[1][few]);
                        sums[2][few] = simd.$mul_add(c, x, sums[2][few]);
                        sums[3][few] = simd.$mul_add(d, x, sums[3][few]);
                    }
                }
                let tail = body * S::$lanes;
                if tail < k {
                    for few in 0..FEW {
                        let x = simd.$load(&vectors[few][tail..]);
                        for row in 0..ROWS {
                            let a = simd.$load(&rows[row][tail..]);
                            sums[row][few] = simd.$mul_add(a, x, sums[row][few]);
                        }
                    }
                }
                // Not by closures: the sums would go through memory in each turn.
                let mut all = [[0.0; FEW]; ROWS];
                for row in 0..ROWS {
                    for few in 0..FEW {
                        all[row][few] = simd.$reduce(sums[row][few]);
                    }
                }
                all
            }

            struct ColumnsFew<'a>(&'a [$float], usize, &'a [$float], &'a mut [$float], usize);

            impl WithSimd for ColumnsFew<'_> {
                type Output = ();

                #[inline(always)]
                fn with_simd<S: Simd>(self, simd: S) {
                    let ColumnsFew(matrix, stride, x, y, vectors) = self;
                    let (rows, k) = (y.len() / vectors, x.len() / vectors);
                    y.fill(0.0);
                    for first in (0..rows).step_by(FEW_ROWS) {
                        let last = rows.min(first + FEW_ROWS);
                        for (x, y) in x.chunks_exact(FEW * k).zip(y.chunks_exact_mut(FEW * rows)) {
                            let mut lines = y.chunks_exact_mut(rows);
                            let mut lines: [&mut [$float]; FEW] = std::array::from_fn(|_| {
                                lines
                                    .next()
                                    .map_or(&mut [][..], |line| &mut line[first..last])
                            });
                            for column in (0..k).step_by(COLUMNS) {
                                // Past the last columns come none: zeros times zero. Another column there could be
                                // infinite.
                                let columns: [&[$float]; COLUMNS] =
                                    std::array::from_fn(|nth| match column + nth < k {
                                        true => &matrix[(column + nth) * stride + first..],
                                        false => &[0.0; FEW_ROWS],
                                    });
                                let columns = columns.map(|column| &column[..last - first]);
                                let factors: [[$float; COLUMNS]; FEW] =
                                    std::array::from_fn(|few| {
                                        std::array::from_fn(|nth| match column + nth < k {
                                            true => x[few * k + column + nth],
                                            false => 0.0,
                                        })
                                    });
                                add_few::<S>(simd, columns, factors, &mut lines);
                            }
                        }
                    }
                }
            }

            #[inline(always)]
            fn add_few<S: Simd>(
                simd: S,
                columns: [&[$float]; COLUMNS],
                factors: [[$float; COLUMNS]; FEW],
                lines: &mut [&mut [$float]; FEW],
            ) {
                let rows = columns[0].len();
                let body = rows / S::$lanes;
                let bodies: [&[S::$vector]; COLUMNS] =
                    std::array::from_fn(|nth| &S::$of(columns[nth]).0[..body]);
                let splats: [[S::$vector; COLUMNS]; FEW] = std::array::from_fn(|few| {
                    std::array::from_fn(|nth| simd.$splat(factors[few][nth]))
                });
                let sums = lines.each_mut().map(|line| S::$of_mut(line));
                for at in 0..body {
                    let a: [S::$vector; COLUMNS] = std::array::from_fn(|nth| bodies[nth][at]);
                    for few in 0..FEW {
                        let mut sum = sums[few].0[at];
                        for nth in 0..COLUMNS {
                            sum = simd.$mul_add(a[nth], splats[few][nth], sum);
                        }
                        sums[few].0[at] = sum;
                    }
                }
                let tail = body * S::$lanes;
                if tail < rows {
                    for few in 0..FEW {
                        let mut sum = simd.$load(sums[few].1);
                        for nth in 0..COLUMNS {
                            let a = simd.$load(&columns[nth][tail..]);
                            sum = simd.$mul_add(a, splats[few][nth], sum);
                        }
                        simd.$store(sums[few].1, sum);
                    }
                }
            }
        }
    };
}

each_float!(floats);

#[cfg(test)]
mod tests {
    use super::super::simd::tests::values;
    use super::*;

    /// No column is taken for those that lack at the end: infinity times their zero would be NaN.
    #[test]
    fn infinities_stay_in_the_last_columns() {
        for (rows, k) in [(35, 70), (1090, 9), (16, 1), (20, 16)] {
            let mut matrix = vec![1.0; rows * k];
            matrix[(k - 1) * rows + 3] = f32::INFINITY;
            let mut y = vec![9.0; rows * FEW];
            f32::columns_times_few(&matrix, rows, &vec![1.0; k * FEW], &mut y, FEW);
            for (at, &y) in y.iter().enumerate() {
                let want = match at % rows {
                    3 => f32::INFINITY,
                    _ => k as f32,
                };
                assert_eq!(y, want, "{rows}x{k}, entry {at}");
            }
        }
    }

    #[test]
    fn matrices_times_few_vectors() {
        for (rows, k) in [
            (1, 1),
            (3, 70),
            (4, 16),
            (9, 65),
            (35, 200),
            (1090, 31),
            (16, 3),
        ] {
            for vectors in [4, 8] {
                let x = values(k * vectors);
                let dot = |element: &dyn Fn(usize) -> f32, vector: usize| -> f32 {
                    (0..k).map(|j| element(j) * x[vector * k + j]).sum()
                };
                let stride = k + 3;
                let matrix = values(stride * rows + k);
                let mut y = vec![9.0; rows * vectors];
                f32::rows_times_few(&matrix, stride, &x, &mut y, vectors);
                for (at, &y) in y.iter().enumerate() {
                    let (vector, row) = (at / rows, at % rows);
                    let want = dot(&|j| matrix[row * stride + j], vector);
                    assert_eq!(y, want, "{rows}x{k}, row {row}, vector {vector}");
                }
                let stride = rows + 2;
                let matrix = values(stride * k + rows);
                let mut y = vec![9.0; rows * vectors];
                f32::columns_times_few(&matrix, stride, &x, &mut y, vectors);
                for (at, &y) in y.iter().enumerate() {
                    let (vector, row) = (at / rows, at % rows);
                    let want = dot(&|j| matrix[row + j * stride], vector);
                    assert_eq!(
                        y, want,
                        "{rows}x{k}, row {row}, vector {vector}, by columns"
                    );
                }
            }
        }
    }
}
