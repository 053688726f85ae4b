//! The reference for matrix products: NumPy's shapes, sums in f64 or better, bounds per dtype.

use orlop::{bf16, f16};

use crate::grid::broadcast_shapes;
use crate::number::{Number, Value};
use crate::operand::Operand;

/// An element type with the bound of its products.
pub trait Factor: Number {
    /// Checks one entry against the products that it sums.
    fn check(got: Self, terms: &[(Self, Self)]) -> Result<(), String>;
}

/// Sum of products and of their absolute values, by two-product and two-sum: f64 twice as long.
pub fn dot(terms: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut sum, mut rest, mut absolute) = (0.0f64, 0.0f64, 0.0f64);
    for (a, b) in terms {
        let product = a * b;
        rest += a.mul_add(b, -product);
        let next = sum + product;
        let other = next - sum;
        rest += (sum - (next - other)) + (product - other);
        sum = next;
        absolute += product.abs();
    }
    (sum + rest, absolute)
}

/// What `k` terms may be off by together, in steps of 1 of the accumulator and of the sum of their absolute values: what
/// random roundings come to, and never above `k`. Of one or two terms too, fused or not: a term is rounded as a product and
/// in at most `k - 1` sums, `k` roundings of half a step each.
pub fn steps(k: usize) -> f64 {
    (4.0 * (k as f64).sqrt()).min(k as f64)
}

/// `epsilon` of the accumulator; `rounding`: one more, relative to the result.
fn within(got: f64, terms: &[(f64, f64)], epsilon: f64, rounding: f64) -> Result<(), String> {
    let (want, absolute) = dot(terms.iter().copied());
    let bound = steps(terms.len()) * epsilon * absolute
        + rounding * want.abs()
        + f64::from(f32::MIN_POSITIVE);
    let error = (got - want).abs();
    if error <= bound {
        Ok(())
    } else {
        Err(format!(
            "{got}, not {want}: off by {error:e}, above {bound:e}"
        ))
    }
}

/// Terms in f64.
pub fn wide<T: Number>(terms: &[(T, T)]) -> Vec<(f64, f64)> {
    let float = |x: T| match x.value() {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    };
    terms.iter().map(|&(a, b)| (float(a), float(b))).collect()
}

impl Factor for f32 {
    fn check(got: Self, terms: &[(Self, Self)]) -> Result<(), String> {
        within(f64::from(got), &wide(terms), 2f64.powi(-23), 0.0)
    }
}

impl Factor for f64 {
    fn check(got: Self, terms: &[(Self, Self)]) -> Result<(), String> {
        within(got, &wide(terms), 2f64.powi(-52), 0.0)
    }
}

impl Factor for f16 {
    fn check(got: Self, terms: &[(Self, Self)]) -> Result<(), String> {
        // Sums in f32, rounded once.
        let terms = wide(terms);
        let (want, _) = dot(terms.iter().copied());
        if want.abs() < 2f64.powi(-13) {
            // Subnormal halves: steps of 2^-24, or flushed.
            let off = (f64::from(got) - want).abs();
            return if off <= 2f64.powi(-14) {
                Ok(())
            } else {
                Err(format!("{got}, not {want}"))
            };
        }
        within(f64::from(got), &terms, 2f64.powi(-23), 2f64.powi(-11))
    }
}

impl Factor for bf16 {
    fn check(got: Self, terms: &[(Self, Self)]) -> Result<(), String> {
        let (epsilon, rounding) = (2f64.powi(-23), 2f64.powi(-8));
        within(f64::from(got), &wide(terms), epsilon, rounding)
    }
}

macro_rules! integer {
    ($($rust:ty),*) => {$(
        impl Factor for $rust {
            fn check(got: Self, terms: &[(Self, Self)]) -> Result<(), String> {
                let want = terms
                    .iter()
                    .fold(0, |sum: $rust, &(a, b)| sum.wrapping_add(a.wrapping_mul(b)));
                if got == want {
                    Ok(())
                } else {
                    Err(format!("{got}, not {want}"))
                }
            }
        }
    )*};
}
integer!(i32, u32);

/// The shapes of a product by NumPy's rule.
pub struct Rule {
    /// What comes out.
    pub output: Vec<usize>,
    batch: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
}

impl Rule {
    pub fn of(a: &[usize], b: &[usize]) -> Self {
        let left: Vec<usize> = if a.len() == 1 {
            vec![1, a[0]]
        } else {
            a.to_vec()
        };
        let right: Vec<usize> = if b.len() == 1 {
            vec![b[0], 1]
        } else {
            b.to_vec()
        };
        let (left_batch, left) = left.split_at(left.len() - 2);
        let (right_batch, right) = right.split_at(right.len() - 2);
        let batch = broadcast_shapes(left_batch, right_batch);
        let mut output = batch.clone();
        if a.len() > 1 {
            output.push(left[0]);
        }
        if b.len() > 1 {
            output.push(right[1]);
        }
        assert_eq!(left[1], right[0]);
        Self {
            output,
            batch,
            m: left[0],
            n: right[1],
            k: left[1],
        }
    }
}

/// Checks a product; of large ones every `every`-th entry.
pub fn check<T: Factor>(
    a: &Operand<T>,
    b: &Operand<T>,
    got: &[T],
    every: usize,
) -> Result<(), String> {
    let Rule { m, n, k, .. } = Rule::of(a.shape(), b.shape());
    each_entry(a, b, got.len(), every, |at, terms| {
        T::check(got[at], terms).map_err(|problem| {
            let (batch, row, column) = (at / (m * n), at / n % m, at % n);
            format!("batch {batch}, row {row}, column {column} of {m}x{k}x{n}: {problem}")
        })
    })
}

/// Hands every `every`-th entry of a product the products that it sums.
pub fn each_entry<T: Factor>(
    a: &Operand<T>,
    b: &Operand<T>,
    entries: usize,
    every: usize,
    mut entry: impl FnMut(usize, &[(T, T)]) -> Result<(), String>,
) -> Result<(), String> {
    let rule = Rule::of(a.shape(), b.shape());
    let Rule { m, n, k, .. } = rule;
    let matrices = |operand: &Operand<T>, vector: [usize; 2], size: [usize; 2]| {
        let matrix = match operand.shape().len() {
            1 => operand.grid.reshape(&vector),
            _ => operand.grid.clone(),
        };
        let shape: Vec<usize> = rule.batch.iter().copied().chain(size).collect();
        operand.through(&matrix.broadcast(&shape))
    };
    let left = matrices(a, [1, k], [m, k]);
    let right = matrices(b, [k, 1], [k, n]);
    if entries != rule.output.iter().product::<usize>() {
        return Err(format!("{entries} entries for {:?}", rule.output));
    }
    let mut terms = Vec::with_capacity(k);
    for at in (0..entries).step_by(every) {
        let (batch, row, column) = (at / (m * n), at / n % m, at % n);
        terms.clear();
        terms.extend((0..k).map(|i| {
            (
                left[(batch * m + row) * k + i],
                right[(batch * k + i) * n + column],
            )
        }));
        entry(at, &terms)?;
    }
    Ok(())
}
