//! A matrix of halves times a vector of f32, widened in the processor's vectors on the way: no more of it goes through the
//! caches than its own bytes. On the caller's thread.

use std::array;

use super::narrow::Narrow;

/// Elements that are widened together.
pub(crate) const LANES: usize = 16;
/// Rows that one pass over `x` takes.
const ROWS: usize = 4;
/// Bytes of rows up to which they are taken one by one: beside each other they are as many streams from memory, which end before
/// the processor reads them ahead.
const SHORT: usize = 8 << 10;
/// Sums of a single row that go on side by side.
const CHAINS: usize = 2;
/// Columns that one pass over `y` takes.
const COLUMNS: usize = 8;

/// `y[i] = sum_j matrix[i * stride + j] * x[j]`: rows of neighbours. Each has sixteen sums.
pub(crate) fn rows_times<T: Narrow>(matrix: &[T], stride: usize, x: &[f32], y: &mut [f32]) {
    T::widening(Rows {
        matrix,
        stride,
        x,
        y,
    });
}

/// `y[i] = sum_j matrix[i + j * stride] * x[j]`: columns of neighbours. One sum after the other.
pub(crate) fn columns_times<T: Narrow>(matrix: &[T], stride: usize, x: &[f32], y: &mut [f32]) {
    T::widening(Columns {
        matrix,
        stride,
        x,
        y,
    });
}

/// Loops that widen. They have to be inlined always. `FUSED`: the processor multiplies and adds in one instruction.
pub(crate) trait Widening<T> {
    fn run<const FUSED: bool>(self, by: impl Widens<T>);
}

/// How as many elements are widened as a vector has; inlined always. (Of a closure that is called from several places a
/// function is made, which is none for vectors.)
pub(crate) trait Widens<T>: Copy {
    fn wide(self, halves: &[T; LANES]) -> [f32; LANES];
}

#[inline(always)]
fn add<const FUSED: bool>(sum: f32, a: f32, b: f32) -> f32 {
    match FUSED {
        true => a.mul_add(b, sum),
        false => sum + a * b,
    }
}

struct Rows<'a, T> {
    matrix: &'a [T],
    stride: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl<T: Narrow> Widening<T> for Rows<'_, T> {
    #[inline(always)]
    fn run<const FUSED: bool>(self, by: impl Widens<T>) {
        let Rows {
            matrix,
            stride,
            x,
            y,
        } = self;
        let k = x.len();
        if k * size_of::<T>() <= SHORT {
            for (row, y) in y.iter_mut().enumerate() {
                *y = dot::<T, FUSED>(&matrix[row * stride..][..k], x, by);
            }
            return;
        }
        let (bodies, tail) = x.as_chunks::<LANES>();
        let mut x_tail = [0.0; LANES];
        x_tail[..tail.len()].copy_from_slice(tail);
        let mut row = 0;
        while row < y.len() {
            let count = if row + ROWS <= y.len() { ROWS } else { 1 };
            // Of a single row the same one again: its other sums are not read.
            let lines: [&[T]; ROWS] =
                array::from_fn(|at| &matrix[(row + at.min(count - 1)) * stride..][..k]);
            let mut sums = [[0.0; LANES]; ROWS];
            let chunks = lines.map(|line| &line.as_chunks::<LANES>().0[..bodies.len()]);
            for (at, x) in bodies.iter().enumerate() {
                for of in 0..ROWS {
                    let wide = by.wide(&chunks[of][at]);
                    for lane in 0..LANES {
                        sums[of][lane] = add::<FUSED>(sums[of][lane], wide[lane], x[lane]);
                    }
                }
            }
            if !tail.is_empty() {
                for of in 0..ROWS {
                    let mut last = [T::zeroed(); LANES];
                    last[..tail.len()].copy_from_slice(&lines[of][k - tail.len()..]);
                    let wide = by.wide(&last);
                    for lane in 0..LANES {
                        sums[of][lane] = add::<FUSED>(sums[of][lane], wide[lane], x_tail[lane]);
                    }
                }
            }
            let totals = sums.map(total);
            match y[row..].first_chunk_mut::<ROWS>() {
                Some(y) => *y = totals,
                None => y[row] = totals[0],
            }
            row += count;
        }
    }
}

/// A row times `x`.
#[inline(always)]
fn dot<T: Narrow, const FUSED: bool>(row: &[T], x: &[f32], by: impl Widens<T>) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let (bodies, x_rest) = x.as_chunks::<LANES>();
    let mut sums = [[0.0; LANES]; CHAINS];
    let (several, last) = chunks.as_chunks::<CHAINS>();
    let (x_several, x_last) = bodies.as_chunks::<CHAINS>();
    for (chunks, x) in several.iter().zip(x_several) {
        for chain in 0..CHAINS {
            let wide = by.wide(&chunks[chain]);
            for lane in 0..LANES {
                sums[chain][lane] = add::<FUSED>(sums[chain][lane], wide[lane], x[chain][lane]);
            }
        }
    }
    let [mut sums, others] = sums;
    for (chunk, x) in last.iter().zip(x_last) {
        let wide = by.wide(chunk);
        for lane in 0..LANES {
            sums[lane] = add::<FUSED>(sums[lane], wide[lane], x[lane]);
        }
    }
    for lane in 0..LANES {
        sums[lane] += others[lane];
    }
    if !rest.is_empty() {
        let (mut padded, mut x_padded) = ([T::zeroed(); LANES], [0.0; LANES]);
        padded[..rest.len()].copy_from_slice(rest);
        x_padded[..rest.len()].copy_from_slice(x_rest);
        let wide = by.wide(&padded);
        for lane in 0..LANES {
            sums[lane] = add::<FUSED>(sums[lane], wide[lane], x_padded[lane]);
        }
    }
    total(sums)
}

#[inline(always)]
fn total(sums: [f32; LANES]) -> f32 {
    let eight: [f32; 8] = array::from_fn(|lane| sums[lane] + sums[lane + 8]);
    let four: [f32; 4] = array::from_fn(|lane| eight[lane] + eight[lane + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

struct Columns<'a, T> {
    matrix: &'a [T],
    stride: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl<T: Narrow> Widening<T> for Columns<'_, T> {
    #[inline(always)]
    fn run<const FUSED: bool>(self, by: impl Widens<T>) {
        let Columns {
            matrix,
            stride,
            x,
            y,
        } = self;
        y.fill(0.0);
        let mut column = 0;
        while column < x.len() {
            let from = &matrix[column * stride..];
            match x[column..].first_chunk::<COLUMNS>() {
                Some(&x) => {
                    add_columns::<T, FUSED, COLUMNS>((from, stride), x, y, by);
                    column += COLUMNS;
                }
                None => {
                    add_columns::<T, FUSED, 1>((from, stride), [x[column]], y, by);
                    column += 1;
                }
            }
        }
    }
}

#[inline(always)]
fn add_columns<T: Narrow, const FUSED: bool, const N: usize>(
    (matrix, stride): (&[T], usize),
    x: [f32; N],
    y: &mut [f32],
    by: impl Widens<T>,
) {
    let rows = y.len();
    let (bodies, tail) = y.as_chunks_mut::<LANES>();
    let lines: [&[T]; N] = array::from_fn(|at| &matrix[at * stride..][..rows]);
    let chunks = lines.map(|line| &line.as_chunks::<LANES>().0[..bodies.len()]);
    for (at, y) in bodies.iter_mut().enumerate() {
        let mut sums = *y;
        for of in 0..N {
            let wide = by.wide(&chunks[of][at]);
            for lane in 0..LANES {
                sums[lane] = add::<FUSED>(sums[lane], wide[lane], x[of]);
            }
        }
        *y = sums;
    }
    let first = rows - tail.len();
    for (at, y) in tail.iter_mut().enumerate() {
        for of in 0..N {
            *y = add::<FUSED>(*y, lines[of][first + at].widened(), x[of]);
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Every length around what is taken at once, rows apart and side by side, against f64.
    fn near_f64<T: Narrow>() {
        for (rows, k) in (0..12)
            .flat_map(|rows| (0..40).map(move |k| (rows, k)))
            .chain([(3, 1000), (1000, 3), (5, 5003)])
        {
            let stride = rows.max(k) + 3;
            let value = |at: usize| T::rounded(((at * 37 % 101) as f32 - 50.0) / 16.0);
            let matrix: Vec<T> = (0..stride * rows.max(k)).map(value).collect();
            let x: Vec<f32> = (0..k).map(|at| (at * 29 % 47) as f32 / 8.0 - 3.0).collect();
            let check = |y: &[f32], row: usize, column: usize| {
                for (i, &y) in y.iter().enumerate() {
                    let terms = (0..k).map(|j| {
                        f64::from(matrix[i * row + j * column].widened()) * f64::from(x[j])
                    });
                    let (want, size) =
                        terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                    let error = (f64::from(y) - want).abs();
                    assert!(error <= 1e-5 * size, "{rows} x {k}: {y} for {want}");
                }
            };
            let mut y = vec![f32::NAN; rows];
            rows_times(&matrix, stride, &x, &mut y);
            check(&y, stride, 1);
            columns_times(&matrix, stride, &x, &mut y);
            check(&y, 1, stride);
        }
        // An infinity is of its own entry only.
        let matrix: Vec<T> = (0..100)
            .map(|at| T::rounded(if at == 37 { f32::INFINITY } else { 1.0 }))
            .collect();
        for by_rows in [true, false] {
            let mut y = [0.0; 10];
            match by_rows {
                true => rows_times(&matrix, 10, &[1.0; 10], &mut y),
                false => columns_times(&matrix, 10, &[1.0; 10], &mut y),
            }
            let at = if by_rows { 3 } else { 7 };
            assert!(
                y.iter()
                    .enumerate()
                    .all(|(i, &y)| y == if i == at { f32::INFINITY } else { 10.0 })
            );
        }
    }

    #[test]
    fn vectors_are_near_f64() {
        near_f64::<f16>();
        near_f64::<bf16>();
    }
}
