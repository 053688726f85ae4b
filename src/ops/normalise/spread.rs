//! Norms on the CPU by the states of rows: those first, then all elements in the order of the output.

use super::cpu::{ENOUGH, Norms};
use super::{Norm, Normalise};
use crate::cpu::{Loops, host_vec, parallel, vectorised};
use crate::error::Result;
use crate::layout::{Layout, Merged, merge};
use crate::ops::reduce::{self, Float};

/// Operands of the walk.
const X: usize = 0;
const ROW: usize = 1;
const COLUMN: usize = 2;

/// Elements of a run where the same few rows are the output's neighbours again and again, and how few they are.
const RUN: usize = 512;
const FEW: usize = 64;

pub(super) fn spread<W: Float>(norms: &Norms<'_, W>, out: &mut [u8]) -> Result<()> {
    let (op, shape) = (norms.op, norms.layout.shape());
    let of_columns = (0..shape.rank()).map(|axis| match op.along.axes.contains(&axis) {
        true => shape[axis],
        false => 1,
    });
    let of_columns: Vec<usize> = of_columns.collect();
    let rows = Layout::contiguous(op.along.of_one(shape));
    let places = merge(&[
        norms.layout,
        &rows.broadcast_to(shape)?,
        &Layout::contiguous(of_columns).broadcast_to(shape)?,
        &Layout::contiguous(shape.clone()),
    ]);
    let what = op.what.reduction();
    let states = reduce::rows(what, &op.along, norms.layout, norms.data, rows.elements())?;
    let spread = Spread {
        norms,
        inner: places.dims.last().copied().unwrap_or(1),
        plane: plane(&places).filter(|_| norms.weight.is_none()),
        places,
        normals: Normals::of(op, &states)?,
    };
    drop(states);
    let is_much = out.len() / norms.size > parallel::PARALLEL;
    let pieces = out.chunks_mut(ENOUGH * norms.size);
    parallel::share(is_much, pieces.enumerate(), |(at, piece)| {
        (norms.made)(piece, &mut |out| {
            vectorised(Runs {
                spread: &spread,
                first: at * ENOUGH,
                out,
            });
        });
    });
    Ok(())
}

/// Elements of the last two dimensions where the last is a few rows, and x lies without gaps as the output does.
fn plane(places: &Merged) -> Option<usize> {
    let [.., columns, rows] = places.dims[..] else {
        return None;
    };
    let of_row = &places.strides[ROW];
    let of_x = &places.strides[X];
    let last = places.dims.len() - 1;
    let is_again = of_row[last - 1..] == [0, 1];
    let is_whole = of_x[last - 1] == of_x[last] * rows as isize;
    (rows < FEW && is_again && is_whole).then_some(columns * rows)
}

/// How each row's elements become normal: softmax `exp(x - shift) * factor`, all others
/// `((x * step - shift) - rest) * factor`, of which it has the more.
struct Normals<W> {
    step: Vec<W>,
    shift: Vec<W>,
    rest: Vec<W>,
    factor: Vec<W>,
}

impl<W: Float> Normals<W> {
    fn of(op: &Normalise, states: &[[f64; 2]]) -> Result<Self> {
        let is_scaled = op.what != Norm::Softmax;
        let room = |is_needed| host_vec(op.what.name(), if is_needed { states.len() } else { 0 });
        let mut all = Self {
            step: room(is_scaled)?,
            shift: room(true)?,
            rest: room(is_scaled)?,
            factor: room(true)?,
        };
        for &state in states {
            let [step, shift, rest, factor] = normal::<W>(op, state).map(W::of);
            all.shift.push(shift);
            all.factor.push(factor);
            if is_scaled {
                all.step.push(step);
                all.rest.push(rest);
            }
        }
        Ok(all)
    }
}

impl<W: Copy> Normals<W> {
    /// Those of `count` rows from the `first` on, again and again for a run that begins with any of them.
    fn again(&self, first: usize, count: usize) -> Self {
        let cycle = |of: &Vec<W>| -> Vec<W> {
            let of = of.get(first..first + count).unwrap_or_default();
            of.iter().copied().cycle().take(RUN + count).collect()
        };
        Self {
            step: cycle(&self.step),
            shift: cycle(&self.shift),
            rest: cycle(&self.rest),
            factor: cycle(&self.factor),
        }
    }
}

fn normal<W: Float>(op: &Normalise, [first, second]: [f64; 2]) -> [f64; 4] {
    let root = |square: f64| 1.0 / (square + op.epsilon).sqrt();
    match op.what {
        Norm::Softmax | Norm::LogSoftmax => {
            // Where the largest is infinite nothing has a value.
            let sum = match first == f64::INFINITY {
                true => f64::NAN,
                false => second,
            };
            match op.what {
                Norm::Softmax => [1.0, first, 0.0, 1.0 / sum],
                _ => [1.0, first, sum.ln(), 1.0],
            }
        }
        Norm::Layer | Norm::Rms => {
            let factor = match root(second) {
                // What is so large and varies so little is equal, and to be 0: multiplied first it may go over.
                factor if factor > 2f64.powi(64) && first.abs() >= 2f64.powi(60) => 2f64.powi(64),
                factor => factor,
            };
            // In two steps, since the factor alone, or a distance, may go over or under.
            let step = match factor {
                factor if factor > 2f64.powi(64) => 2f64.powi(64),
                factor if factor < 2f64.powi(-64) => 2f64.powi(-64),
                _ => 1.0,
            };
            let shift = W::of(first).wider();
            [step, shift * step, (first - shift) * step, factor / step]
        }
    }
}

struct Spread<'a, W> {
    norms: &'a Norms<'a, W>,
    /// Of x, rows, columns and the output.
    places: Merged,
    /// Elements of the last dimension: of a run, unless there is a plane.
    inner: usize,
    /// [`plane`].
    plane: Option<usize>,
    normals: Normals<W>,
}

/// Elements from the `first` on, run by run.
struct Runs<'a, W> {
    spread: &'a Spread<'a, W>,
    first: usize,
    out: &'a mut [W],
}

impl<W: Float> Loops for Runs<'_, W> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let spread = self.spread;
        let Norms {
            op, layout, data, ..
        } = spread.norms;
        let stride = |operand: usize| spread.places.strides[operand].last().copied();
        let (x_stride, is_row) = (stride(X).unwrap_or(0), stride(ROW).unwrap_or(0) == 0);
        let mut buffer = Vec::new();
        let (mut first, mut rest) = (self.first, self.out);
        // The few rows of the plane that is gone through, and the first of them.
        let mut few: Option<(usize, Normals<W>)> = None;
        while !rest.is_empty() {
            let (span, most) = match spread.plane {
                Some(plane) => (plane, RUN),
                None => (spread.inner, usize::MAX),
            };
            let within = first % span;
            let count = (span - within).min(rest.len()).min(most);
            let (out, later) = rest.split_at_mut(count);
            let place = |operand: usize| spread.places.place(operand, first);
            let start = layout.offset() as isize + place(X);
            let x = data.run(start, x_stride, out.len(), &mut buffer);
            let (mut row, column) = (place(ROW) as usize, place(COLUMN) as usize);
            let mut normals = &spread.normals;
            if spread.plane.is_some() {
                let in_few = within % spread.inner;
                let begin = row - in_few;
                if few.as_ref().is_none_or(|&(of, _)| of != begin) {
                    few = Some((begin, normals.again(begin, spread.inner)));
                }
                if let Some((_, again)) = &few {
                    (normals, row) = (again, in_few);
                }
            }
            first += count;
            rest = later;
            // Along a row its state stays, beside it the column.
            let Normals {
                step,
                shift,
                rest,
                factor,
            } = normals;
            match (op.what, is_row) {
                (Norm::Softmax, true) => {
                    let (shift, factor) = (shift[row], factor[row]);
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = (x - shift).exp_below::<FUSED>() * factor;
                    }
                }
                (Norm::Softmax, false) => {
                    let of_rows = shift[row..].iter().zip(&factor[row..]);
                    let all = out.iter_mut().zip(x).zip(of_rows);
                    for ((out, &x), (&shift, &factor)) in all {
                        *out = (x - shift).exp_below::<FUSED>() * factor;
                    }
                }
                (_, true) => {
                    let (step, shift) = (step[row], shift[row]);
                    let (rest, factor) = (rest[row], factor[row]);
                    spread.norms.columns(
                        column,
                        x,
                        out,
                        #[inline(always)]
                        |x| ((x * step - shift) - rest) * factor,
                    );
                }
                (_, false) => {
                    let of_column = |of: Option<&[W]>| of.map(|all| all[column]);
                    let weight = of_column(spread.norms.weight).unwrap_or(W::ONE);
                    let bias = of_column(spread.norms.bias).unwrap_or(W::ZERO);
                    let of_rows = step[row..].iter().zip(&shift[row..]);
                    let of_rows = of_rows.zip(rest[row..].iter().zip(&factor[row..]));
                    for ((out, &x), ((&step, &shift), (&rest, &factor))) in
                        out.iter_mut().zip(x).zip(of_rows)
                    {
                        *out = ((x * step - shift) - rest) * factor * weight + bias;
                    }
                }
            }
        }
    }
}
