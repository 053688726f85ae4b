//! Norms on the CPU of rows that lie side by side: the states of all rows first, then all elements in
//! the order of memory.

use super::{Norm, Normalise};
use crate::cpu::{Loops, parallel, vectorised};
use crate::error::Result;
use crate::layout::{Layout, Merged, merge};
use crate::ops::reduce::{self, Float, Number};
use crate::road::HostInput;

/// Elements that are work enough for a thread.
const ENOUGH: usize = 16 << 10;
/// Rows side by side that pay.
const LEAST_ROWS: usize = 8;

/// Fills the output, unless rows lie in another way.
pub(super) fn columns<T: Number<Wide: Float>>(
    op: &Normalise,
    x: &HostInput<'_>,
    weight: &[T::Wide],
    bias: &[T::Wide],
    out: &mut [T],
) -> Result<bool> {
    let shape = x.layout.shape();
    let of_columns = (0..shape.rank()).map(|axis| match op.along.axes.contains(&axis) {
        true => shape[axis],
        false => 1,
    });
    let of_columns: Vec<usize> = of_columns.collect();
    let rows = Layout::contiguous(op.along.of_one(shape));
    let places = merge(&[
        x.layout,
        &rows.broadcast_to(shape)?,
        &Layout::contiguous(of_columns).broadcast_to(shape)?,
        &Layout::contiguous(shape.clone()),
    ]);
    let inner = places.dims.last().copied().unwrap_or(1);
    let are_neighbours = |operand: usize| places.strides[operand].last() == Some(&1);
    if inner < LEAST_ROWS || !are_neighbours(0) || !are_neighbours(1) {
        return Ok(false);
    }
    let states = reduce::rows::<T>(op.what.reduction(), &op.along, x, rows.elements())?;
    let normals = Normals::of(op, &states);
    let spread = Spread {
        what: op.what,
        places: &places,
        offset: x.layout.offset(),
        data: x.elements::<T>(),
        normals: &normals,
        weight,
        bias,
    };
    let width = (ENOUGH / inner).max(1);
    let elements = out.len();
    let pieces = out.chunks_mut(inner * width).enumerate();
    let work = |(at, out): (usize, &mut [T])| {
        vectorised(Work {
            spread: &spread,
            first: at * width,
            out,
        });
    };
    match elements <= parallel::PARALLEL {
        true => pieces.for_each(work),
        false => parallel::share(pieces, work),
    }
    Ok(true)
}

/// How each row's elements become normal: softmax `exp(x - shift) * factor`, its logarithm
/// `(x - shift) - factor`, layers `((x - shift) - rest) * factor`, root-mean-square `(x * shift) * factor`.
struct Normals<W> {
    shift: Vec<W>,
    rest: Vec<W>,
    factor: Vec<W>,
}

impl<W: Float> Normals<W> {
    fn of(op: &Normalise, states: &[(f64, f64)]) -> Self {
        let root = |square: f64| 1.0 / (square + f64::from(op.epsilon)).sqrt();
        let of_row = |&(first, second): &(f64, f64)| -> [W; 3] {
            match op.what {
                Norm::Softmax | Norm::LogSoftmax => {
                    // Where the largest is infinite nothing has a value.
                    let sum = if first == f64::INFINITY {
                        f64::NAN
                    } else {
                        second
                    };
                    let factor = if op.what == Norm::Softmax {
                        1.0 / sum
                    } else {
                        sum.ln()
                    };
                    [W::of(first), W::ZERO, W::of(factor)]
                }
                Norm::Layer => {
                    let shift = W::of(first);
                    let rest = first - shift.wider();
                    [shift, W::of(rest), W::of(root(second))]
                }
                Norm::Rms => {
                    let factor = root(second);
                    // In two steps, since the factor alone may go over or under.
                    let step = match factor {
                        factor if factor > 2f64.powi(64) => 2f64.powi(64),
                        factor if factor < 2f64.powi(-64) => 2f64.powi(-64),
                        _ => 1.0,
                    };
                    [W::of(step), W::ZERO, W::of(factor / step)]
                }
            }
        };
        let all: Vec<[W; 3]> = states.iter().map(of_row).collect();
        let part = |at: usize| all.iter().map(|normal| normal[at]).collect();
        Self {
            shift: part(0),
            rest: part(1),
            factor: part(2),
        }
    }
}

struct Spread<'a, T: Number> {
    what: Norm,
    /// Of x, rows, columns and the output.
    places: &'a Merged,
    offset: usize,
    data: &'a [T],
    normals: &'a Normals<T::Wide>,
    weight: &'a [T::Wide],
    bias: &'a [T::Wide],
}

/// The runs of neighbours from the `first` on.
struct Work<'a, T: Number> {
    spread: &'a Spread<'a, T>,
    first: usize,
    out: &'a mut [T],
}

impl<T: Number<Wide: Float>> Loops for Work<'_, T> {
    #[inline(always)]
    fn run(self) {
        let inner = self.spread.places.dims.last().copied().unwrap_or(1);
        for (at, out) in self.out.chunks_mut(inner).enumerate() {
            self.spread.run(self.first + at, out);
        }
    }
}

impl<T: Number<Wide: Float>> Spread<'_, T> {
    /// The run `at`: neighbours of one column.
    #[inline(always)]
    fn run(&self, at: usize, out: &mut [T]) {
        let outer = self.places.dims.len().saturating_sub(1);
        let (mut rest, mut from) = (at, [self.offset as isize, 0, 0]);
        for axis in (0..outer).rev() {
            let size = self.places.dims[axis];
            for (operand, from) in from.iter_mut().enumerate() {
                *from += (rest % size) as isize * self.places.strides[operand][axis];
            }
            rest /= size;
        }
        let [x, row, column] = from.map(|from| from as usize);
        let x = &self.data[x..x + out.len()];
        match self.what {
            Norm::Softmax => self.each(x, row, column, out, |x, s, _, f| (x - s).exp() * f),
            Norm::LogSoftmax => self.each(x, row, column, out, |x, s, _, f| (x - s) - f),
            Norm::Layer => self.each(x, row, column, out, |x, s, r, f| ((x - s) - r) * f),
            Norm::Rms => self.each(x, row, column, out, |x, s, _, f| (x * s) * f),
        }
    }

    #[inline(always)]
    fn each(
        &self,
        x: &[T],
        row: usize,
        column: usize,
        out: &mut [T],
        normal: impl Fn(T::Wide, T::Wide, T::Wide, T::Wide) -> T::Wide,
    ) {
        let one = <T::Wide as Float>::ONE;
        let weight = self.weight.get(column).copied().unwrap_or(one);
        let bias = self.bias.get(column).copied();
        let bias = bias.unwrap_or(<T::Wide as Float>::ZERO);
        let count = out.len();
        let shift = &self.normals.shift[row..][..count];
        let rest = &self.normals.rest[row..][..count];
        let factor = &self.normals.factor[row..][..count];
        for at in 0..count {
            let y = normal(x[at].wide(), shift[at], rest[at], factor[at]);
            out[at] = T::narrow(y * weight + bias);
        }
    }
}
