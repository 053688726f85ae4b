//! The CPU twin: batches of matrices, one after the other on all cores or side by side, each by
//! `cpu::product`; halves through f32 in bounded memory; integers by loops of their own.

use half::{bf16, f16};

use super::finish::{Finisher, Sum, Term};
use super::halves::{self, Half};
use super::integers;
use super::rule::Finish;
use super::tiny;
use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::parallel;
use crate::cpu::product::{self, ALONE, LARGE};
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::layout::merge;
use crate::ops::reduce::Number;
use crate::road::{HostInput, HostOutput};
use crate::sync::Mutex;

/// Multiply-adds of products that a thread takes at a time.
const AT_A_TIME: usize = 128 << 10;
/// Lines of a product that are work for one of many threads.
const LINES: usize = 64;
/// Threads that share large products without loss.
const FEW_THREADS: usize = 8;

/// `output = left x right`, batch by batch, finished; the output is contiguous.
///
/// # Errors
/// `OutOfMemory` of the host, for what halves are widened to.
pub(super) fn multiply(
    finish: Finish,
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) -> Result<()> {
    match output.dtype {
        DType::F32 => floats::<f32>(finish, inputs, output),
        DType::F64 => floats::<f64>(finish, inputs, output),
        DType::F16 => through_f32::<f16>(finish, inputs, output)?,
        DType::BF16 => through_f32::<bf16>(finish, inputs, output)?,
        // Wrapping sums and products are the same bits.
        DType::I32 | DType::U32 => {
            if !tiny::multiply::<u32>(inputs, output, |_, _| {}) {
                each_matrix(inputs, output, |c, [a, b], size, all, _| {
                    integers::multiply(c, a, b, size, all);
                });
            }
        }
        // Refused by the rule.
        DType::Bool => {}
    }
    Ok(())
}

/// Sums in the type of the elements: straight in the output, finished while they are at hand.
fn floats<T: Term<Sum = T> + Sum + product::GemmElement + Number<Wide = T>>(
    finish: Finish,
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) {
    let finisher = Finisher::<T>::new(finish, inputs);
    if tiny::multiply::<T>(inputs, output, |first, sums| {
        if let Some(finisher) = &finisher {
            finisher.finish(first, sums, false);
        }
    }) {
        return;
    }
    each_matrix(inputs, output, |c: &mut [T], [a, b], size, all, first| {
        product::multiply(c, a, b, size, all);
        if let Some(finisher) = &finisher {
            finisher.finish(first, c, all);
        }
    });
}

fn through_f32<T: Half + Number<Wide = f32>>(
    finish: Finish,
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) -> Result<()> {
    let finisher = Finisher::<T>::new(finish, inputs);
    if tiny::multiply::<T>(inputs, output, |first, sums| {
        if let Some(finisher) = &finisher {
            finisher.finish(first, sums, false);
        }
    }) {
        return Ok(());
    }
    let result = Mutex::new(Ok(()));
    each_matrix(inputs, output, |c: &mut [T], [a, b], size, all, first| {
        let product = halves::multiply(c, a, b, size, all, |at, sums| {
            if let Some(finisher) = &finisher {
                finisher.finish(first + at, sums, false);
            }
        });
        if let Err(error) = product {
            *result.lock() = Err(error);
        }
    });
    result.into_inner()
}

/// Whether so many products keep threads as busy side by side as one after the other, each of them shared.
fn fill_threads(batches: usize, size: Size, width: usize) -> bool {
    if batches.is_multiple_of(width) || batches >= 8 * width {
        return true;
    }
    // Many threads have no use for a product of few lines, unless there is much to do in each; and sharing one costs them
    // about a third, but few threads less where it is large.
    let shared = (size.m.max(size.n) / LINES).max(size.work() / ALONE);
    let shared = shared.clamp(1, width);
    let [given, taken] = match width > FEW_THREADS || size.work() < LARGE {
        true => [3, 2],
        false => [1, 1],
    };
    width > parallel::MEASURED && taken * batches.div_ceil(width) * shared <= given * batches
}

/// The size of each product of a batch.
pub(super) fn size_of_each(a: &HostInput<'_>, output: &HostOutput<'_>) -> Option<Size> {
    match (a.layout.shape().dims(), output.layout.shape().dims()) {
        ([.., m, k], [.., n]) => Some(Size {
            m: *m,
            k: *k,
            n: *n,
        }),
        _ => None,
    }
}

/// Calls `product(c, [a, b], size, on all cores, index of its first entry)` for each matrix of the
/// batch: side by side where that keeps all cores busy, else one after the other on all cores.
fn each_matrix<T: Element + bytemuck::Pod>(
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
    product: impl Fn(&mut [T], [Matrix<'_, T>; 2], Size, bool, usize) + Sync,
) {
    let [a, b, ..] = inputs else { return };
    let (rank, count) = (output.layout.rank(), output.layout.elements());
    let Some(size) = size_of_each(a, output) else {
        return;
    };
    let Some(c) = output.elements::<T>().get_mut(..count) else {
        return;
    };
    let (a_all, b_all) = (a.elements::<T>(), b.elements::<T>());
    let one = |c: &mut [T], [a_start, b_start]: [usize; 2], all, first| {
        let matrix = |elements, input: &HostInput<'_>| Matrix {
            elements,
            row: input.layout.strides()[rank - 2],
            column: input.layout.strides()[rank - 1],
        };
        let operands = [matrix(&a_all[a_start..], a), matrix(&b_all[b_start..], b)];
        product(c, operands, size, all, first);
    };
    let (work, entries) = (size.work(), size.m * size.n);
    if count <= entries {
        return one(c, [a.layout.offset(), b.layout.offset()], true, 0);
    }
    let batches = [a, b].map(|input| input.layout.leading(rank - 2));
    let merged = merge(&[&batches[0], &batches[1]]);
    let start = |operand: usize, at: usize| {
        let offset = batches[operand].offset();
        offset.wrapping_add_signed(merged.place(operand, at))
    };
    let starts = |at: usize| [start(0, at), start(1, at)];
    let (batches, width) = (count / entries, parallel::width());
    let is_much = work.saturating_mul(batches) > ALONE;
    if !is_much || work <= ALONE || fill_threads(batches, size, width) {
        // Chunks that are worth fetching, but a few for each thread.
        let chunk = (AT_A_TIME / work.max(1)).clamp(1, batches.div_ceil(4 * width));
        let chunks = c.chunks_mut(chunk * entries).enumerate();
        parallel::share(is_much, chunks, |(first, c)| {
            for (at, c) in (first * chunk..).zip(c.chunks_mut(entries)) {
                one(c, starts(at), false, at * entries);
            }
        });
    } else {
        for (at, c) in c.chunks_mut(entries).enumerate() {
            one(c, starts(at), true, at * entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_have_small_products_side_by_side() {
        let cube = |side: usize| Size {
            m: side,
            k: side,
            n: side,
        };
        for (batches, side, width, want) in [
            // As measured for two.
            (3, 200, 2, false),
            (4, 200, 2, true),
            (17, 200, 2, true),
            // Little to do in each, or products nearly for all.
            (32, 200, 64, true),
            (3, 200, 64, false),
            (4, 4096, 3, false),
            (8, 800, 64, false),
            (3, 4096, 64, false),
            (32, 4096, 64, false),
            (50, 4096, 64, true),
            (65, 4096, 64, false),
            (100, 4096, 64, true),
        ] {
            let is_so = fill_threads(batches, cube(side), width);
            assert_eq!(is_so, want, "{batches} of {side} by {width}");
        }
    }
}
