//! Norms on the CPU: row by row, in the type that sums are kept in, where rows of outputs lie one after the
//! other; else by the states of rows.

use smallvec::SmallVec;

use super::beside::{Block, beside};
use super::spread::spread;
use super::{Norm, Normalise};
use crate::cpu::{Loops, host_vec, parallel, vectorised};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Layout, place};
use crate::ops::reduce::{Float, Made, Number, Read, Space, largest, sum, sum_of_powers};
use crate::road::{HostInput, HostOutput};

/// Elements that are work enough for a thread.
pub(super) const ENOUGH: usize = 16 << 10;
/// Elements of a row that are still near when they are read again.
const LONGEST: usize = 64 << 10;
/// Elements of a row whose mean is taken for that of all at first.
const FIRST: usize = 32;
/// Short rows that are worked on together, and how many elements they have at most.
const TOGETHER: usize = 32;
const SHORT: usize = 2048;

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

fn typed<T: Number<Wide: Float>>(
    op: &Normalise,
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) -> Result<()> {
    let Some(x) = inputs.first() else {
        return Ok(());
    };
    let shape = x.layout.shape();
    let length: usize = op.along.axes.iter().map(|&axis| shape[axis]).product();
    let [_, of_columns @ ..] = inputs else {
        return Ok(());
    };
    let readers: SmallVec<[_; 2]> = of_columns
        .iter()
        .map(|given| T::reader(given.elements()))
        .collect();
    // Where they lie, but for what is widened.
    let mut rooms = [Vec::new(), Vec::new()];
    let mut columns: SmallVec<[&[T::Wide]; 2]> = SmallVec::new();
    for ((given, reader), room) in of_columns.iter().zip(&readers).zip(&mut rooms) {
        if size_of::<T>() != size_of::<T::Wide>() {
            *room = host_vec(op.what.name(), length)?;
        }
        columns.push(reader.run(given.layout.offset() as isize, 1, length, room));
    }
    let mut ones: Vec<_>;
    let (weight, bias) = match (op.weight, op.bias) {
        (false, false) => (None, None),
        (true, _) => (columns.first().copied(), columns.get(1).copied()),
        (false, true) => {
            ones = host_vec(op.what.name(), length)?;
            ones.resize(length, <T::Wide as Float>::ONE);
            (Some(&ones[..]), columns.first().copied())
        }
    };
    let norms = Norms {
        op,
        layout: x.layout,
        data: &T::reader(x.elements()),
        length,
        weight,
        bias,
        made: T::made,
        size: size_of::<T>(),
    };
    let count = output.layout.elements() * size_of::<T>();
    norms.write(output.bytes.get_mut(..count).unwrap_or_default())
}

/// A norm's operands, in the type that sums are kept in.
pub(super) struct Norms<'a, W> {
    pub op: &'a Normalise,
    pub layout: &'a Layout,
    pub data: &'a dyn Read<W>,
    /// Elements of a row.
    pub length: usize,
    /// One element a column; where there is a bias there is a weight.
    pub weight: Option<&'a [W]>,
    pub bias: Option<&'a [W]>,
    /// [`Number::made`], and the bytes of an output.
    pub made: Made<W>,
    pub size: usize,
}

impl<W: Float> Norms<'_, W> {
    fn write(&self, out: &mut [u8]) -> Result<()> {
        let space = Space::of(self.layout, &self.op.along, true);
        let sizes = self.layout.shape().iter().enumerate();
        let is_reduced = sizes
            .filter(|&(_, &size)| size > 1)
            .map(|(axis, _)| self.op.along.axes.contains(&axis));
        // Rows one after the other: no dimension that stays comes after one of theirs.
        let are_rows_together = is_reduced.is_sorted_by(|before, after| before <= after);
        let length = self.length;
        if let Some(block) = Block::of(self, are_rows_together) {
            return beside(self, &space, block, out);
        }
        if !are_rows_together || space.reduced.len() > 1 || length > LONGEST {
            return spread(self, out);
        }
        let width = (ENOUGH / length).max(1);
        let is_much = out.len() / self.size > parallel::PARALLEL;
        let pieces = out.chunks_mut(length * width * self.size).enumerate();
        parallel::share(is_much, pieces, |(at, piece)| {
            (self.made)(piece, &mut |out| {
                vectorised(Rows {
                    norms: self,
                    space: &space,
                    first: at * width,
                    out,
                });
            });
        });
        Ok(())
    }
}

/// The loops of several rows.
struct Rows<'a, W> {
    norms: &'a Norms<'a, W>,
    space: &'a Space,
    first: usize,
    out: &'a mut [W],
}

impl<W: Float> Loops for Rows<'_, W> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let (norms, space) = (self.norms, self.space);
        let length = norms.length;
        let (together, stride) = match space.is_one_run() {
            true => (self.out.len() / length, 1),
            false => (1, space.reduced_strides.last().copied().unwrap_or(0)),
        };
        let mut buffer = Vec::new();
        for (at, out) in self.out.chunks_mut(together * length).enumerate() {
            let from_first = place(self.first + at * together, &space.kept, &space.kept_strides);
            let start = space.offset as isize + from_first;
            let x = norms.data.run(start, stride, out.len(), &mut buffer);
            norms.rows::<FUSED>(x, out);
        }
    }
}

impl<W: Float> Norms<'_, W> {
    /// Rows one after the other.
    #[inline(always)]
    fn rows<const FUSED: bool>(&self, x: &[W], out: &mut [W]) {
        let length = self.length;
        match self.op.what {
            Norm::Softmax | Norm::LogSoftmax => {
                let together = (SHORT / length).clamp(1, TOGETHER) * length;
                for (x, out) in x.chunks(together).zip(out.chunks_mut(together)) {
                    self.softmax::<FUSED>(x, out);
                }
            }
            Norm::Layer | Norm::Rms => {
                let rows = x.chunks_exact(length).zip(out.chunks_exact_mut(length));
                for (x, out) in rows {
                    self.scaled::<FUSED>(x, out);
                }
            }
        }
    }

    /// [`TOGETHER`] rows at most: each step of all of them before the next, since a row's waits for what the
    /// one before found. Where the largest is infinite, or one is NaN, nothing has a value.
    #[inline(always)]
    fn softmax<const FUSED: bool>(&self, x: &[W], out: &mut [W]) {
        let length = self.length;
        let (mut tops, mut sums) = ([W::ZERO; TOGETHER], [0.0; TOGETHER]);
        for (top, x) in tops.iter_mut().zip(x.chunks_exact(length)) {
            *top = largest::<_, FUSED, true>(x);
        }
        // To the output for log_softmax too: so it comes from memory while something is computed.
        let rows = x.chunks_exact(length).zip(out.chunks_exact_mut(length));
        for (&top, (x, out)) in tops.iter().zip(rows) {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = (x - top).exp_below::<FUSED>();
            }
        }
        for (sum_of_row, out) in sums.iter_mut().zip(out.chunks_exact(length)) {
            *sum_of_row = sum::<_, _, FUSED, false>(out, |x| x);
        }
        let rows = x.chunks_exact(length).zip(out.chunks_exact_mut(length));
        for ((&top, &sum), (x, out)) in tops.iter().zip(&sums).zip(rows) {
            match self.op.what {
                Norm::LogSoftmax => {
                    let less = W::of(sum.ln());
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = (x - top) - less;
                    }
                }
                _ => {
                    let share = W::of(1.0 / sum);
                    for out in out {
                        *out = *out * share;
                    }
                }
            }
        }
    }

    /// The mean, and the mean of squared distances from it.
    #[inline(always)]
    fn mean_then_squares<const FUSED: bool>(&self, x: &[W]) -> (f64, f64) {
        let count = x.len() as f64;
        let mean = match self.op.what {
            Norm::Layer => {
                let mean = mean_by::<_, FUSED>(x, W::ZERO);
                match x.first() {
                    // The sum is more than f64 holds: distances may be less.
                    Some(&first) if mean.is_infinite() => mean_by::<_, FUSED>(x, first),
                    _ => mean,
                }
            }
            _ => 0.0,
        };
        let shift = W::of(mean);
        let rest = W::of(mean - shift.wider());
        let squares = sum::<_, _, FUSED, true>(
            x,
            #[inline(always)]
            |x| {
                let apart = (x - shift) - rest;
                apart * apart
            },
        );
        (mean, squares / count)
    }

    #[inline(always)]
    fn scaled<const FUSED: bool>(&self, x: &[W], out: &mut [W]) {
        let count = x.len() as f64;
        let near = match self.op.what {
            Norm::Layer => moments::<_, FUSED>(x),
            _ => None,
        };
        let (mean, squares) = match near {
            Some(moments) => moments,
            None => self.mean_then_squares::<FUSED>(x),
        };
        // The mean in two parts, so that none of it is lost.
        let shift = W::of(mean);
        let rest = W::of(mean - shift.wider());
        let epsilon = self.op.epsilon;
        if squares > 1e-30 && squares < 1e30 {
            let factor = W::of(1.0 / (squares + epsilon).sqrt());
            self.columns(
                0,
                x,
                out,
                #[inline(always)]
                |x| ((x - shift) - rest) * factor,
            );
            return;
        }
        // Squares that may be beyond what the type holds.
        let squares = sum::<_, _, FUSED, false>(
            x,
            #[inline(always)]
            |x| {
                let apart = x.wider() - mean;
                apart * apart
            },
        ) / count;
        let factor = 1.0 / (squares + epsilon).sqrt();
        self.columns(
            0,
            x,
            out,
            #[inline(always)]
            |x| W::of((x.wider() - mean) * factor),
        );
    }

    /// What `normal` makes of elements that lie in one row from a column on, with weight and bias.
    #[inline(always)]
    pub(super) fn columns(&self, column: usize, x: &[W], out: &mut [W], normal: impl Fn(W) -> W) {
        let all = out.iter_mut().zip(x);
        match (self.weight, self.bias) {
            (None, _) => {
                for (out, &x) in all {
                    *out = normal(x);
                }
            }
            (Some(weight), None) => {
                for ((out, &x), &weight) in all.zip(&weight[column..]) {
                    *out = normal(x) * weight;
                }
            }
            (Some(weight), Some(bias)) => {
                let of_columns = weight[column..].iter().zip(&bias[column..]);
                for ((out, &x), (&weight, &bias)) in all.zip(of_columns) {
                    *out = normal(x) * weight + bias;
                }
            }
        }
    }
}

/// The mean, by distances from `near`.
#[inline(always)]
fn mean_by<W: Float, const FUSED: bool>(x: &[W], near: W) -> f64 {
    let total = sum::<_, _, FUSED, true>(
        x,
        #[inline(always)]
        |x| (x - near).wider(),
    );
    near.wider() + total / x.len() as f64
}

/// The mean and the mean of squared distances from it, by those from the mean of the first elements: in one
/// pass, where that is near enough to the mean of all that little is lost.
#[inline(always)]
fn moments<W: Float, const FUSED: bool>(x: &[W]) -> Option<(f64, f64)> {
    let first = &x[..x.len().min(FIRST)];
    let near = sum::<_, _, FUSED, false>(
        first,
        #[inline(always)]
        |x| x.wider(),
    );
    let near = W::of(near / first.len() as f64);
    let [total, squares] = sum_of_powers::<_, _, FUSED>(
        x,
        #[inline(always)]
        |x| x - near,
    );
    let count = x.len() as f64;
    let apart = total / count;
    let variance = squares / count - apart * apart;
    (2.0 * apart * apart <= variance).then(|| (near.wider() + apart, variance))
}
