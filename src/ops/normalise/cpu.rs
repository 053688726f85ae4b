//! Norms on the CPU: row by row, in the type that sums are kept in.

use super::columns::columns;
use super::{Norm, Normalise};
use crate::cpu::{Loops, parallel, vectorised};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Layout, Merged, merge};
use crate::ops::reduce::{Float, Number, largest, sum};
use crate::road::{HostInput, HostOutput};

/// Elements that are work enough for a thread.
const ENOUGH: usize = 16 << 10;
/// Neighbouring rows that are gathered together where elements of a row are not neighbours.
const TOGETHER: usize = 16;

/// The CPU twin.
pub(super) fn twin(
    op: &Normalise,
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) -> Result<()> {
    match output.dtype {
        DType::F64 => typed::<f64>(op, inputs, output),
        DType::F16 => typed::<half::f16>(op, inputs, output),
        DType::BF16 => typed::<half::bf16>(op, inputs, output),
        _ => typed::<f32>(op, inputs, output),
    }
}

/// Where elements are: rows and columns merged apart.
struct Places {
    rows: Merged,
    columns: Merged,
    offset: usize,
}

impl Places {
    fn of(layout: &Layout, op: &Normalise) -> Result<Self> {
        let rank = layout.rank();
        let (kept, along) = (op.along.kept(rank), &op.along.axes);
        let part = |first: &[usize], rest: &[usize]| -> Result<Merged> {
            let order: Vec<usize> = first.iter().chain(rest).copied().collect();
            let contiguous = Layout::contiguous(layout.shape().clone()).permute(&order)?;
            let turned = layout.permute(&order)?;
            Ok(merge(&[
                &turned.leading(first.len()),
                &contiguous.leading(first.len()),
            ]))
        };
        Ok(Self {
            rows: part(&kept, along)?,
            columns: part(along, &kept)?,
            offset: layout.offset(),
        })
    }

    /// How far row or column `at` is from the first, in the input (0) and in the output (1).
    fn place(part: &Merged, operand: usize, at: usize) -> isize {
        let (mut rest, mut place) = (at, 0);
        for (&size, &stride) in part.dims.iter().zip(&part.strides[operand]).rev() {
            place += (rest % size) as isize * stride;
            rest /= size;
        }
        place
    }
}

fn typed<T: Number<Wide: Float>>(
    op: &Normalise,
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) -> Result<()> {
    let Some(x) = inputs.first() else {
        return Ok(());
    };
    let places = Places::of(x.layout, op)?;
    let shape = x.layout.shape();
    let length: usize = op.along.axes.iter().map(|&axis| shape[axis]).product();
    let elements = output.layout.elements();
    let rows = elements / length;
    // Weight and bias, one element a column.
    let spread = |there: bool, at: usize| -> Vec<T::Wide> {
        let given = inputs.get(at).filter(|_| there);
        given.map_or_else(Vec::new, |given| {
            let from = given.layout.offset();
            let all = &given.elements::<T>()[from..from + length];
            all.iter().map(|x| x.wide()).collect()
        })
    };
    let weight = spread(op.weight, 1);
    let bias = spread(op.bias, 1 + usize::from(op.weight));
    let data = x.elements::<T>();
    let Some(out) = output.elements::<T>().get_mut(..elements) else {
        return Ok(());
    };
    let row = Row {
        what: op.what,
        length,
        epsilon: op.epsilon,
        weight: &weight,
        bias: &bias,
    };
    if columns(op, x, &weight, &bias, out)? {
        return Ok(());
    }
    let is_plain = |operand: usize| {
        places.columns.dims.len() <= 1
            && places.columns.strides[operand]
                .last()
                .is_none_or(|&stride| stride == 1)
    };
    let is_row_major = {
        let packed = Layout::contiguous(&places.rows.dims[..]);
        let mut strides = packed.strides().iter().zip(&places.rows.strides[1]);
        strides.all(|(&rows, &elements)| rows * length as isize == elements)
    };
    if is_plain(0) && is_plain(1) && is_row_major {
        let width = (ENOUGH / length).max(1);
        let pieces = out.chunks_mut(length * width).enumerate();
        let work = |(at, piece): (usize, &mut [T])| {
            vectorised(Work {
                row: &row,
                x: |index: usize| {
                    let place = Places::place(&places.rows, 0, at * width + index);
                    let start = (places.offset as isize + place) as usize;
                    &data[start..start + length]
                },
                out: piece,
            });
        };
        match elements <= parallel::PARALLEL {
            true => pieces.for_each(work),
            false => parallel::share(pieces, work),
        }
        return Ok(());
    }
    // Through rows that are gathered and scattered, several at a time so that lines of memory are used
    // as a whole.
    let columns: Vec<[isize; 2]> = (0..length)
        .map(|at| [0, 1].map(|operand| Places::place(&places.columns, operand, at)))
        .collect();
    let mut gathered = vec![T::narrow(<T::Wide as Float>::ZERO); TOGETHER * length];
    let mut made = gathered.clone();
    for first in (0..rows).step_by(TOGETHER) {
        let count = TOGETHER.min(rows - first);
        let starts: Vec<[isize; 2]> = (first..first + count)
            .map(|at| [0, 1].map(|operand| Places::place(&places.rows, operand, at)))
            .collect();
        for (column, &[place, _]) in columns.iter().enumerate() {
            for (at, &[start, _]) in starts.iter().enumerate() {
                let from = places.offset as isize + start + place;
                gathered[at * length + column] = data[from as usize];
            }
        }
        vectorised(Work {
            row: &row,
            x: |at: usize| &gathered[at * length..][..length],
            out: &mut made[..count * length],
        });
        for (column, &[_, place]) in columns.iter().enumerate() {
            for (at, &[_, start]) in starts.iter().enumerate() {
                out[(start + place) as usize] = made[at * length + column];
            }
        }
    }
    Ok(())
}

struct Row<'a, W> {
    what: Norm,
    length: usize,
    epsilon: f32,
    weight: &'a [W],
    bias: &'a [W],
}

/// The loops of several rows.
struct Work<'a, T: Number, X> {
    row: &'a Row<'a, T::Wide>,
    x: X,
    out: &'a mut [T],
}

impl<'x, T: Number<Wide: Float> + 'x, X: Fn(usize) -> &'x [T]> Loops for Work<'_, T, X> {
    #[inline(always)]
    fn run(self) {
        let length = self.row.length;
        let mut buffer = vec![<T::Wide as Float>::ZERO; length];
        for (at, out) in self.out.chunks_mut(length).enumerate() {
            self.row.work((self.x)(at), &mut buffer, out);
        }
    }
}

impl<W: Float> Row<'_, W> {
    #[inline(always)]
    fn work<T: Number<Wide = W>>(&self, x: &[T], buffer: &mut [W], out: &mut [T]) {
        for (to, x) in buffer.iter_mut().zip(x) {
            *to = x.wide();
        }
        let count = x.len() as f64;
        match self.what {
            Norm::Softmax | Norm::LogSoftmax => {
                let top = largest(buffer, |x| x);
                // Where the largest is infinite, or one is NaN, nothing has a value.
                let is_soft = self.what == Norm::Softmax;
                if is_soft {
                    for x in buffer.iter_mut() {
                        *x = (*x - top).exp();
                    }
                    let share = W::of(1.0 / sum(buffer, |x| x));
                    for (out, &x) in out.iter_mut().zip(&*buffer) {
                        *out = T::narrow(x * share);
                    }
                } else {
                    let less = W::of(sum(buffer, |x| (x - top).exp()).ln());
                    for (out, &x) in out.iter_mut().zip(&*buffer) {
                        *out = T::narrow((x - top) - less);
                    }
                }
            }
            Norm::Layer => {
                let mean = sum(buffer, |x| x.wider()) / count;
                let apart = |x: W| x.wider() - mean;
                let variance = sum(buffer, |x| apart(x) * apart(x)) / count;
                let factor = 1.0 / (variance + f64::from(self.epsilon)).sqrt();
                self.write(buffer, out, |x| W::of(apart(x) * factor));
            }
            Norm::Rms => {
                let squares = sum(buffer, |x| x.wider() * x.wider()) / count;
                let factor = 1.0 / (squares + f64::from(self.epsilon)).sqrt();
                self.write(buffer, out, |x| W::of(x.wider() * factor));
            }
        }
    }

    #[inline(always)]
    fn write<T: Number<Wide = W>>(&self, buffer: &[W], out: &mut [T], normal: impl Fn(W) -> W) {
        match (self.weight.is_empty(), self.bias.is_empty()) {
            (true, true) => {
                for (out, &x) in out.iter_mut().zip(buffer) {
                    *out = T::narrow(normal(x));
                }
            }
            (false, true) => {
                for ((out, &x), &w) in out.iter_mut().zip(buffer).zip(self.weight) {
                    *out = T::narrow(normal(x) * w);
                }
            }
            (true, false) => {
                for ((out, &x), &b) in out.iter_mut().zip(buffer).zip(self.bias) {
                    *out = T::narrow(normal(x) + b);
                }
            }
            (false, false) => {
                let of_columns = self.weight.iter().zip(self.bias);
                for ((out, &x), (&w, &b)) in out.iter_mut().zip(buffer).zip(of_columns) {
                    *out = T::narrow(normal(x) * w + b);
                }
            }
        }
    }
}
