//! Batches of matrices of a few elements on the CPU: each product straight from its operands, since choosing a way for it takes
//! longer than it does.

use super::cpu::size_of_each;
use crate::cpu::matrix::Size;
use crate::cpu::{Loops, parallel, vectorised};
use crate::ops::reduce::Number;
use crate::road::{HostInput, HostOutput};

/// Multiply-adds of a product, at most, and products that make a batch.
const MOST: usize = 64;
const LEAST_BATCHES: usize = 8;
/// Multiply-adds and entries that a thread takes at a time.
const AT_A_TIME: usize = 32 << 10;

/// The products of a batch of such matrices, in a contiguous output; `finish` gets sums, and the number of the first one. `false`
/// for what is no such batch.
pub(super) fn multiply<T: Number>(
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
    finish: impl Fn(usize, &mut [T::Wide]) + Sync,
) -> bool {
    let [a, b, ..] = inputs else { return false };
    let (rank, count) = (output.layout.rank(), output.layout.elements());
    let Some(size) = size_of_each(a, output) else {
        return false;
    };
    let entries = size.m * size.n;
    let is_tiny = (1..=MOST).contains(&size.work());
    if !is_tiny || count / entries < LEAST_BATCHES {
        return false;
    }
    let Some(c) = output.elements::<T>().get_mut(..count) else {
        return false;
    };
    let batches = [a, b].map(|input| input.layout.leading(rank - 2));
    let walk = parallel::Walk::new(&[&batches[0], &batches[1]]);
    let apart = walk.inner_strides();
    let steps = [a, b].map(|input| {
        let strides = input.layout.strides();
        [strides[rank - 2], strides[rank - 1]]
    });
    let elements = [a.elements::<T>(), b.elements::<T>()];
    let of_product = size.work() + entries;
    let together = (AT_A_TIME / of_product).max(1);
    let is_much = count / entries * of_product > parallel::PARALLEL;
    let chunks = c.chunks_mut(together * entries).enumerate();
    parallel::share(is_much, chunks, |(at, c)| {
        let first = at * together;
        let products = c.len() / entries;
        T::made(bytemuck::cast_slice_mut(c), &mut |sums| {
            walk.runs(first, products, &mut |done, starts, count| {
                vectorised(Products {
                    sums: &mut sums[done * entries..][..count * entries],
                    elements,
                    starts: [starts[0], starts[1]],
                    apart: [apart[0], apart[1]],
                    steps,
                    size,
                });
            });
            finish(first * entries, sums);
        });
    });
    true
}

/// Products whose operands are evenly apart.
struct Products<'a, T: Number> {
    sums: &'a mut [T::Wide],
    elements: [&'a [T]; 2],
    /// Of the first element of the first of each operand, and from each product to the next.
    starts: [isize; 2],
    apart: [isize; 2],
    /// From row to row and from column to column.
    steps: [[isize; 2]; 2],
    size: Size,
}

impl<T: Number> Loops for Products<'_, T> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        match (self.size.m, self.size.k, self.size.n) {
            (2, 2, 2) => self.of::<2, 2, 2>(),
            (3, 3, 3) => self.of::<3, 3, 3>(),
            (4, 4, 4) => self.of::<4, 4, 4>(),
            (2, 2, 1) => self.of::<2, 2, 1>(),
            (3, 3, 1) => self.of::<3, 3, 1>(),
            (4, 4, 1) => self.of::<4, 4, 1>(),
            _ => self.of_any(),
        }
    }
}

impl<T: Number> Products<'_, T> {
    #[inline(always)]
    fn of_any(self) {
        let Size { m, k, n } = self.size;
        let [mut a, mut b] = self.starts;
        let [a_step, b_step] = self.steps;
        for sums in self.sums.chunks_exact_mut(m * n) {
            for (row, sums) in sums.chunks_exact_mut(n).enumerate() {
                for (column, sum) in sums.iter_mut().enumerate() {
                    let mut left = a + row as isize * a_step[0];
                    let mut right = b + column as isize * b_step[1];
                    *sum = T::ZERO;
                    for _ in 0..k {
                        let [left_term, right_term] = [
                            self.elements[0][left as usize].wide(),
                            self.elements[1][right as usize].wide(),
                        ];
                        *sum = T::add(*sum, T::mul(left_term, right_term));
                        left += a_step[1];
                        right += b_step[0];
                    }
                }
            }
            a += self.apart[0];
            b += self.apart[1];
        }
    }

    /// Operands of one size are taken up whole.
    #[inline(always)]
    fn of<const M: usize, const K: usize, const N: usize>(self) {
        let [mut a, mut b] = self.starts;
        let [a_step, b_step] = self.steps;
        for sums in self.sums.chunks_exact_mut(M * N) {
            let left = taken::<T, M, K>(self.elements[0], a, a_step);
            let right = taken::<T, K, N>(self.elements[1], b, b_step);
            for (sums, left) in sums.chunks_exact_mut(N).zip(&left) {
                let mut row = [T::ZERO; N];
                for (left, right) in left.iter().zip(&right) {
                    for (sum, right) in row.iter_mut().zip(right) {
                        *sum = T::add(*sum, T::mul(*left, *right));
                    }
                }
                sums.copy_from_slice(&row);
            }
            a += self.apart[0];
            b += self.apart[1];
        }
    }
}

#[inline(always)]
fn taken<T: Number, const ROWS: usize, const COLUMNS: usize>(
    elements: &[T],
    start: isize,
    [row_step, column_step]: [isize; 2],
) -> [[T::Wide; COLUMNS]; ROWS] {
    std::array::from_fn(|row| {
        let start = start + row as isize * row_step;
        std::array::from_fn(|column| {
            elements[(start + column as isize * column_step) as usize].wide()
        })
    })
}
