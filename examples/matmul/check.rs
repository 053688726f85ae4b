//! The product against an f64 reference, entry by entry, each against a bound of its own.
//!
//! An f32 entry may be off by `k 2^-23 sum|a||b|`: plain relative error means nothing where terms
//! cancel. Of random operands roundings go either way: `4 sqrt(k)` takes the place of k. f16 adds the rounding of its result, f64 has 2^-52 and a reference of
//! twice the precision, integers wrap and must be equal.

use orlop::{Layout, Result, f16};

use crate::values::{Array, Values};

/// Multiply-adds up to which every entry is checked.
const WHOLE: usize = 1 << 26;
/// Multiply-adds of a sample, about.
const SAMPLE: usize = 1 << 28;
/// Entries of a sample at most.
const ENTRIES: usize = 4096;

/// How roundings add up over a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roundings {
    /// Either way by chance.
    Random,
    /// All the same way, at worst.
    Any,
}

impl Roundings {
    /// How many of a sum of `k` terms have to be reckoned with.
    fn of(self, k: usize) -> f64 {
        match self {
            Roundings::Random => 4.0 * (k as f64).sqrt(),
            Roundings::Any => k as f64,
        }
    }

    /// As the report writes it.
    pub fn text(self) -> &'static str {
        match self {
            Roundings::Random => "4 sqrt(k)",
            Roundings::Any => "k",
        }
    }
}

/// What the check found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check {
    /// Entries that were checked.
    pub checked: usize,
    /// Distance to the reference, of the entry that comes closest to its bound or exceeds it most.
    pub error: f64,
    /// That entry's bound.
    pub bound: f64,
}

impl Check {
    /// True when no checked entry is above its bound.
    pub fn holds(&self) -> bool {
        self.error <= self.bound
    }

    fn ratio(&self) -> f64 {
        match (self.error, self.bound) {
            (0.0, _) => 0.0,
            (error, bound) => error / bound,
        }
    }
}

/// Checks the row-major product `c` of `a` and `b`: all entries, or a sample at fixed
/// pseudo-random places, spread over all of them, when that would take long.
///
/// # Errors
/// Shapes that do not multiply.
pub fn check(a: &Array, b: &Array, c: &Values, roundings: Roundings) -> Result<Check> {
    let places = Places::new(a, b, roundings)?;
    Ok(match (&a.values, &b.values, c) {
        (Values::F32(a), Values::F32(b), Values::F32(c)) => compare(a, b, c, &places),
        (Values::F16(a), Values::F16(b), Values::F16(c)) => compare(a, b, c, &places),
        (Values::F64(a), Values::F64(b), Values::F64(c)) => compare(a, b, c, &places),
        (Values::I32(a), Values::I32(b), Values::I32(c)) => compare(a, b, c, &places),
        (Values::U32(a), Values::U32(b), Values::U32(c)) => compare(a, b, c, &places),
        // Never: the product has the dtype of its operands.
        _ => Check {
            error: f64::MAX,
            ..Check::default()
        },
    })
}

/// Where the operands' elements lie, as batches of matrices.
struct Places {
    /// `[batch..., m, k]`
    a: Layout,
    /// `[batch..., k, n]`
    b: Layout,
    batch: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
    roundings: Roundings,
}

impl Places {
    fn new(a: &Array, b: &Array, roundings: Roundings) -> Result<Places> {
        let (mut left, mut right) = (a.layout()?, b.layout()?);
        if left.rank() == 1 {
            left = left.unsqueeze(0)?;
        }
        if right.rank() == 1 {
            right = right.unsqueeze(1)?;
        }
        let split = |layout: &Layout| {
            let dims = layout.shape().dims();
            let at = dims.len().saturating_sub(2);
            (dims[..at].to_vec(), dims[at..].to_vec())
        };
        let ((left_batch, rows), (right_batch, columns)) = (split(&left), split(&right));
        let batch = orlop::Shape::from(left_batch)
            .broadcast(&orlop::Shape::from(right_batch), "matmul")?
            .to_vec();
        let whole = |matrix: &[usize]| batch.iter().chain(matrix).copied().collect();
        Ok(Places {
            a: left.broadcast_to(&whole(&rows))?,
            b: right.broadcast_to(&whole(&columns))?,
            m: rows.first().copied().unwrap_or(1),
            k: rows.last().copied().unwrap_or(1),
            n: columns.last().copied().unwrap_or(1),
            batch,
            roundings,
        })
    }

    /// The pairs of storage indices whose products add up to entry `at` of the product.
    fn terms(&self, at: usize) -> impl Iterator<Item = (usize, usize)> {
        let (row, column) = (at / self.n % self.m, at % self.n);
        let mut batch = at / self.n / self.m;
        let (a, b) = (self.a.strides(), self.b.strides());
        let rank = self.batch.len();
        let mut start_a = self.a.offset() as isize + row as isize * a[rank];
        let mut start_b = self.b.offset() as isize + column as isize * b[rank + 1];
        for (axis, size) in self.batch.iter().enumerate().rev() {
            start_a += (batch % size) as isize * a[axis];
            start_b += (batch % size) as isize * b[axis];
            batch /= size;
        }
        let (step_a, step_b) = (a[rank + 1], b[rank]);
        (0..self.k as isize).map(move |i| {
            (
                (start_a + i * step_a) as usize,
                (start_b + i * step_b) as usize,
            )
        })
    }
}

fn compare<T: Entry>(a: &[T], b: &[T], c: &[T], places: &Places) -> Check {
    let work = c.len().saturating_mul(places.k).saturating_mul(T::COST);
    let mut worst = Check::default();
    let mut look = |at: usize| {
        let terms = places.terms(at).map(|(i, j)| (a[i], b[j]));
        let (error, bound) = T::judge(terms, c[at], places.roundings);
        worst.checked += 1;
        let one = Check {
            checked: worst.checked,
            error,
            bound,
        };
        if worst.checked == 1 || one.ratio() > worst.ratio() {
            worst = one;
        }
    };
    let count = (SAMPLE / T::COST / places.k.max(1)).clamp(16, ENTRIES);
    if work <= WHOLE || count >= c.len() {
        (0..c.len()).for_each(&mut look);
    } else {
        sample(c.len(), count).for_each(&mut look);
    }
    worst
}

/// So many places of `0..size`, fewer than that: one in each of as many parts, so none comes twice.
fn sample(size: usize, count: usize) -> impl Iterator<Item = usize> {
    let start = move |part: usize| (part as u128 * size as u128 / count as u128) as usize;
    (0..count).map(move |part| {
        let (from, to) = (start(part), start(part + 1));
        from + (scramble(part as u64) % (to - from) as u64) as usize
    })
}

/// splitmix64: fixed numbers that look random.
fn scramble(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What an entry of the product should be.
trait Entry: Copy {
    /// What a term costs, next to a plain multiply-add.
    const COST: usize;

    /// The error of one entry and its bound.
    fn judge(
        terms: impl Iterator<Item = (Self, Self)>,
        got: Self,
        roundings: Roundings,
    ) -> (f64, f64);
}

/// How a float dtype computes.
struct Precision {
    /// Unit of the bound on sums.
    unit: f64,
    /// The smallest normal number and the largest number of the type that sums are kept in.
    range: (f64, f64),
    /// Half a unit in the last place of the result, relative and absolute, and the first number
    /// that rounds to infinity; where the result is narrower than its sum.
    narrowed: Option<(f64, f64, f64)>,
}

const SINGLE: Precision = Precision {
    unit: f32::EPSILON as f64,
    range: (f32::MIN_POSITIVE as f64, f32::MAX as f64),
    narrowed: None,
};

const HALF: Precision = Precision {
    narrowed: Some((1.0 / 2048.0, 1.0 / 33_554_432.0, 65520.0)),
    ..SINGLE
};

const DOUBLE: Precision = Precision {
    unit: f64::EPSILON,
    range: (f64::MIN_POSITIVE, f64::MAX),
    narrowed: None,
};

impl Precision {
    /// `sum` is the reference of `k` terms, `mass` the sum of their magnitudes.
    fn judge(
        &self,
        (k, roundings): (usize, Roundings),
        [sum, mass]: [f64; 2],
        got: f64,
    ) -> (f64, f64) {
        let (smallest, largest) = self.range;
        // Products and sums below the smallest normal number may be flushed to zero.
        let mut bound = roundings.of(k) * self.unit * mass + k as f64 * smallest;
        let mut overflows = largest;
        if let Some((relative, absolute, infinite)) = self.narrowed {
            bound += relative * sum.abs() + absolute;
            overflows = infinite;
        }
        if !sum.is_finite() {
            let same = got == sum || (got.is_nan() && sum.is_nan());
            // Infinite terms of both signs, or sums that overflow on the way, may end as NaN.
            let lost = mass.is_infinite() && got.is_nan();
            return (if same || lost { 0.0 } else { f64::MAX }, 0.0);
        }
        if !got.is_finite() {
            let may = mass >= largest
                || (got.is_infinite()
                    && got.signum() == sum.signum()
                    && sum.abs() + bound >= overflows);
            return (if may { 0.0 } else { f64::MAX }, bound.min(f64::MAX));
        }
        ((got - sum).abs(), bound.min(f64::MAX))
    }
}

macro_rules! single_entry {
    ($($element:ty: $precision:ident),*) => {$(
        impl Entry for $element {
            const COST: usize = 1;

            fn judge(
                terms: impl Iterator<Item = (Self, Self)>,
                got: Self,
                roundings: Roundings,
            ) -> (f64, f64) {
                let (mut k, mut sum, mut mass) = (0, 0.0, 0.0);
                for (a, b) in terms {
                    // Exact: both have at most 24 bits.
                    let product = f64::from(a) * f64::from(b);
                    k += 1;
                    sum += product;
                    mass += product.abs();
                }
                $precision.judge((k, roundings), [sum, mass], f64::from(got))
            }
        }
    )*};
}
single_entry!(f32: SINGLE, f16: HALF);

impl Entry for f64 {
    const COST: usize = 8;

    fn judge(
        terms: impl Iterator<Item = (Self, Self)>,
        got: Self,
        roundings: Roundings,
    ) -> (f64, f64) {
        // Sum and products keep what they round away (Ogita, Rump, Oishi: Dot2).
        let (mut k, mut sum, mut lost, mut mass) = (0, 0.0f64, 0.0f64, 0.0f64);
        for (a, b) in terms {
            let product = a * b;
            let next = sum + product;
            let part = next - sum;
            lost += (sum - (next - part)) + (product - part) + a.mul_add(b, -product);
            sum = next;
            k += 1;
            mass += product.abs();
        }
        let exact = if sum.is_finite() { sum + lost } else { sum };
        DOUBLE.judge((k, roundings), [exact, mass], got)
    }
}

macro_rules! integer_entry {
    ($($element:ty),*) => {$(
        impl Entry for $element {
            const COST: usize = 1;

            fn judge(
                terms: impl Iterator<Item = (Self, Self)>,
                got: Self,
                _: Roundings,
            ) -> (f64, f64) {
                let sum = terms.fold(0, |sum: $element, (a, b)| sum.wrapping_add(a.wrapping_mul(b)));
                (f64::from(got.abs_diff(sum)), 0.0)
            }
        }
    )*};
}
integer_entry!(i32, u32);
