//! Elementwise ops of one, two and three operands that broadcast; comparisons; in place, taken over, fused.

use ndarray::{ArrayD, IxDyn};
use orlop::{DType, Expr, Result, Tensor, fused};

use super::{Case, Drawn, Fuzz, as_f64, epsilon, is_near, small};
use crate::grid::broadcast_shapes;
use crate::number::{Number, Value};
use crate::operand::{Operand, same};
use crate::rng::Rng;

/// Truncated; 0 of integers by 0.
pub fn quotient<T: Number>(a: f64, b: f64) -> f64 {
    match (T::DTYPE.is_float(), b == 0.0) {
        (true, _) => a / b,
        (false, true) => 0.0,
        (false, false) => (a / b).trunc(),
    }
}

fn rest<T: Number>(a: f64, b: f64) -> f64 {
    match T::DTYPE.is_float() || b != 0.0 {
        true => a % b,
        false => 0.0,
    }
}

fn power<T: Number>(a: f64, b: f64) -> f64 {
    if T::DTYPE.is_float() {
        return a.powf(b);
    }
    let power = |a: f64, b: f64| (0..b as usize).fold(1.0, |product, _| product * a);
    match b < 0.0 {
        false => power(a, b),
        true if a.abs() == 1.0 => power(a, -b),
        true => 0.0,
    }
}

fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

/// A function of two in place, and in memory that is taken over.
macro_rules! written {
    ($($name:literal $assign:ident $into:ident $reference:expr;)*) => {
        [$(
            (
                concat!($name, "_assign"),
                (|f| f.written(|a, b| a.$assign(b), $reference)) as fn(&mut Fuzz<'_, T>) -> Result<()>,
            ),
            (concat!("into_", $name), |f| f.taken_over(|a, b| a.$into(b), $reference)),
        )*]
    };
}

/// Of one dtype each other's place in kernels.
pub fn table<T: Number>() -> Vec<Case<T>> {
    let mut all: Vec<Case<T>> = vec![
        ("eq", |f| f.comparison(|a, b| a.eq(b), |a, b| a == b)),
        ("ne", |f| f.comparison(|a, b| a.ne(b), |a, b| a != b)),
        ("lt", |f| f.comparison(|a, b| a.lt(b), |a, b| a < b)),
        ("le", |f| f.comparison(|a, b| a.le(b), |a, b| a <= b)),
        ("gt", |f| f.comparison(|a, b| a.gt(b), |a, b| a > b)),
        ("ge", |f| f.comparison(|a, b| a.ge(b), |a, b| a >= b)),
        ("select", |f| f.choice()),
    ];
    match T::DTYPE {
        DType::Bool => all.extend(logic()),
        _ => all.extend(numbers()),
    }
    if matches!(T::DTYPE, DType::I32 | DType::U32) {
        all.extend(bits());
    }
    if T::DTYPE.is_float() {
        all.push(("is_nan", |f| f.kind(Tensor::is_nan, f64::is_nan)));
        all.push(("is_finite", |f| f.kind(Tensor::is_finite, f64::is_finite)));
        all.push(("leaky_relu", |f| {
            f.binary(
                |x, slope| x.leaky_relu(slope),
                |x, slope| if x < 0.0 { slope * x } else { x },
            )
        }));
    }
    all
}

fn logic<T: Number>() -> Vec<Case<T>> {
    vec![
        ("logical_and", |f| {
            f.binary(|a, b| a.logical_and(b), f64::min)
        }),
        ("logical_or", |f| f.binary(|a, b| a.logical_or(b), f64::max)),
        ("logical_xor", |f| {
            f.binary(|a, b| a.logical_xor(b), |a, b| (a - b).abs())
        }),
        ("logical_not", |f| {
            f.unary("logical_not", 0.0, Tensor::logical_not, |x| 1.0 - x)
        }),
        ("fused logic", |f| {
            f.fusion(
                |[a, b, c]| a.logical_and(b).logical_or(c.logical_not()),
                |[a, b, c]| a.min(b).max(1.0 - c),
                |_| 0.0,
            )
        }),
        ("fused comparison of bools", |f| {
            f.fusion(
                |[a, b, c]| a.eq(b).logical_xor(c),
                |[a, b, c]| (f64::from(a == b) - c).abs(),
                |_| 0.0,
            )
        }),
    ]
}

fn bits<T: Number>() -> Vec<Case<T>> {
    vec![
        ("bitwise_and", |f| {
            f.binary(|a, b| a.bitwise_and(b), |a, b| (a as i64 & b as i64) as f64)
        }),
        ("bitwise_or", |f| {
            f.binary(|a, b| a.bitwise_or(b), |a, b| (a as i64 | b as i64) as f64)
        }),
        ("fused bits", |f| {
            f.fusion(
                |[a, b, c]| a.bitwise_and(b).shift_left(3).bitwise_xor(c).shift_right(1),
                |[a, b, c]| ((((a as i64 & b as i64) << 3) ^ c as i64) >> 1) as f64,
                |_| 0.0,
            )
        }),
    ]
}

fn numbers<T: Number>() -> Vec<Case<T>> {
    let mut all: Vec<Case<T>> = vec![
        ("rem", |f| f.binary(|a, b| a.rem(b), rest::<T>)),
        ("pow", |f| f.binary(|a, b| a.pow(b), power::<T>)),
        ("minimum", |f| f.binary(|a, b| a.minimum(b), f64::min)),
        ("maximum", |f| f.binary(|a, b| a.maximum(b), f64::max)),
        ("rem by 3", |f| {
            f.unary("rem", 0.0, |a| a.rem(3), |a| a % 3.0)
        }),
        ("minimum with 2", |f| {
            f.unary("minimum", 0.0, |a| a.minimum(2), |a| a.min(2.0))
        }),
        ("maximum with 2", |f| {
            f.unary("maximum", 0.0, |a| a.maximum(2), |a| a.max(2.0))
        }),
        ("abs", |f| f.unary("abs", 0.0, Tensor::abs, f64::abs)),
        ("sign", |f| f.unary("sign", 0.0, Tensor::sign, sign)),
        ("square", |f| {
            f.unary("square", 1.0, Tensor::square, |x| x * x)
        }),
        ("clamp", |f| {
            f.ternary(
                |a, b, c| a.clamp(b, c),
                |[a, b, c]| a.max(b).min(c),
                |_| 0.0,
            )
        }),
        ("mul_add", |f| {
            f.ternary(
                |a, b, c| a.mul_add(b, c),
                |[a, b, c]| a * b + c,
                |[a, b, c]| (a * b).abs() + c.abs(),
            )
        }),
        ("fused sum and product", |f| {
            f.fusion(
                |[a, b, c]| (a + b) * c - a,
                |[a, b, c]| (a + b) * c - a,
                |[a, b, c]| (a.abs() + b.abs()) * c.abs() + a.abs(),
            )
        }),
        ("fused bounds", |f| {
            f.fusion(
                |[a, b, c]| a.maximum(b).minimum(c),
                |[a, b, c]| a.max(b).min(c),
                |_| 0.0,
            )
        }),
        ("fused choice", |f| {
            f.fusion(
                |[a, b, c]| a.lt(b).select(c, a),
                |[a, b, c]| if a < b { c } else { a },
                |_| 0.0,
            )
        }),
        ("fused rest", |f| {
            f.fusion(
                |[a, b, c]| -(a % b) + c,
                |[a, b, c]| c - rest::<T>(a, b),
                |[a, _, c]| a.abs() + c.abs(),
            )
        }),
        ("fused signs", |f| {
            f.fusion(
                |[a, b, c]| a.abs() + b.sign() * c.square(),
                |[a, b, c]| a.abs() + sign(b) * c * c,
                |[a, _, c]| a.abs() + c * c,
            )
        }),
        ("fused_assign", |f| {
            f.written(
                |a, b| a.fused_assign(|e, a| a * 2 - e.input(b)),
                |a, b| 2.0 * a - b,
            )
        }),
        ("into_fused", |f| {
            f.taken_over(
                |a, b| a.into_fused(|e, a| a * 2 - e.input(b)),
                |a, b| 2.0 * a - b,
            )
        }),
    ];
    all.extend(written!(
        "add" add_assign into_add |a, b| a + b;
        "sub" sub_assign into_sub |a, b| a - b;
        "mul" mul_assign into_mul |a, b| a * b;
        "div" div_assign into_div quotient::<T>;
        "rem" rem_assign into_rem rest::<T>;
        "pow" pow_assign into_pow power::<T>;
        "minimum" minimum_assign into_minimum f64::min;
        "maximum" maximum_assign into_maximum f64::max;
    ));
    all
}

/// Specials among small numbers.
fn special<T: Number>(rng: &mut Rng) -> T {
    match rng.one_in(3) {
        true => *rng.pick(&T::specials()),
        false => small(rng),
    }
}

/// Few numbers, so that two are often equal.
fn few<T: Number>(rng: &mut Rng) -> T {
    T::from_value(Value::Integer(rng.below(4) as i64))
}

impl<T: Number> Fuzz<'_, T> {
    /// Shapes that broadcast to one shape.
    fn shapes<const N: usize>(&mut self) -> [Vec<usize>; N] {
        let whole = self.shape(0, 6);
        std::array::from_fn(|_| {
            let from = match self.rng.one_in(3) {
                true => self.rng.below(whole.len() + 1),
                false => 0,
            };
            self.thinned(&whole[from..])
        })
    }

    /// Some sizes become 1.
    fn thinned(&mut self, shape: &[usize]) -> Vec<usize> {
        let thin = |&size: &usize| if self.rng.one_in(4) { 1 } else { size };
        shape.iter().map(thin).collect()
    }

    /// A function of the elements of operands that broadcast.
    fn zipped<R, const N: usize>(
        operands: [&ArrayD<f64>; N],
        mut function: impl FnMut([f64; N]) -> R,
    ) -> ArrayD<R> {
        let shape = operands.iter().fold(Vec::new(), |shape, operand| {
            broadcast_shapes(&shape, operand.shape())
        });
        let views = operands.map(|operand| operand.broadcast(IxDyn(&shape)).unwrap());
        ArrayD::from_shape_fn(IxDyn(&shape), |at| {
            function(std::array::from_fn(|which| views[which][&at]))
        })
    }

    pub fn binary(
        &mut self,
        op: fn(&Tensor, &Tensor) -> Result<Tensor>,
        reference: fn(f64, f64) -> f64,
    ) -> Result<()> {
        let [left, right] = self.shapes();
        let (a, b) = (self.draw(&left)?, self.draw(&right)?);
        let want = Self::zipped([&a.array, &b.array], |[a, b]| reference(a, b));
        self.check("a binary op", &a, &op(&a.tensor, &b.tensor)?, &want)
    }

    /// Operands that broadcast.
    fn three(&mut self) -> Result<[Drawn<T>; 3]> {
        let [a, b, c] = self.shapes();
        Ok([self.draw(&a)?, self.draw(&b)?, self.draw(&c)?])
    }

    /// Exact where nothing has a size, else within what sums and products of that size round to.
    fn ternary(
        &mut self,
        op: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
        reference: fn([f64; 3]) -> f64,
        size: fn([f64; 3]) -> f64,
    ) -> Result<()> {
        let [a, b, c] = self.three()?;
        let got = op(&a.tensor, &b.tensor, &c.tensor)?;
        self.check_sized("a ternary op", [&a, &b, &c], &got, reference, size)
    }

    fn check_sized(
        &self,
        name: &str,
        operands: [&Drawn<T>; 3],
        got: &Tensor,
        reference: fn([f64; 3]) -> f64,
        size: fn([f64; 3]) -> f64,
    ) -> Result<()> {
        let arrays = operands.map(|operand| &operand.array);
        let want = Self::zipped(arrays, reference);
        // In f32 for 16 bits, and rounded after all.
        let wide = epsilon(T::DTYPE.accumulator());
        let sizes = Self::zipped(arrays, |x| 4.0 * wide * size(x));
        let bound = sizes + want.mapv(|want| epsilon(T::DTYPE) * want.abs());
        self.check_within(name, operands[0], got, &want, &bound)
    }

    fn fusion(
        &mut self,
        op: for<'e> fn([Expr<'e>; 3]) -> Expr<'e>,
        reference: fn([f64; 3]) -> f64,
        size: fn([f64; 3]) -> f64,
    ) -> Result<()> {
        let [a, b, c] = self.three()?;
        let got = fused(|e| op([&a, &b, &c].map(|drawn| e.input(&drawn.tensor))))?;
        self.check_sized("a fused op", [&a, &b, &c], &got, reference, size)
    }

    fn check_bools(&self, op: &str, a: &Drawn<T>, got: &Tensor, want: &ArrayD<bool>) -> Result<()> {
        let story = || format!("{op} of {} {}", T::DTYPE, a.operand.story());
        assert_eq!(got.dtype(), DType::Bool, "{}", story());
        assert_eq!(got.shape().dims(), want.shape(), "{}", story());
        let got = got.to_vec::<bool>()?;
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(got, want, "{}: element {at}", story());
        }
        Ok(())
    }

    fn comparison(
        &mut self,
        op: fn(&Tensor, &Tensor) -> Result<Tensor>,
        reference: fn(f64, f64) -> bool,
    ) -> Result<()> {
        let [left, right] = self.shapes();
        let sample = if self.rng.one_in(2) { few } else { small };
        let (a, b) = (self.draw_by(&left, sample)?, self.draw_by(&right, sample)?);
        let want = Self::zipped([&a.array, &b.array], |[a, b]| reference(a, b));
        self.check_bools("a comparison", &a, &op(&a.tensor, &b.tensor)?, &want)
    }

    fn kind(
        &mut self,
        op: fn(&Tensor) -> Result<Tensor>,
        reference: fn(f64) -> bool,
    ) -> Result<()> {
        let shape = self.shape(0, 6);
        let a = self.draw_by(&shape, special)?;
        let want = a.array.mapv(reference);
        self.check_bools("a test", &a, &op(&a.tensor)?, &want)
    }

    /// By bools of any view, of two tensors, or of one and a number.
    fn choice(&mut self) -> Result<()> {
        let [choice, left, right] = self.shapes();
        let device = self.context.device();
        let mask = Operand::<bool>::random_view(device, self.rng, &choice)?;
        let bools = mask.values().into_iter().map(as_f64).collect();
        let choice = ArrayD::from_shape_vec(IxDyn(&choice), bools).unwrap();
        let (a, b) = (self.draw(&left)?, self.draw(&right)?);
        let pick = |[mask, a, b]: [f64; 3]| if mask == 1.0 { a } else { b };
        if self.rng.one_in(3) {
            let one = ArrayD::from_elem(IxDyn(&[]), 1.0);
            let want = Self::zipped([&choice, &a.array, &one], pick);
            return self.check("select", &a, &mask.tensor.select(&a.tensor, 1)?, &want);
        }
        let want = Self::zipped([&choice, &a.array, &b.array], pick);
        let got = mask.tensor.select(&a.tensor, &b.tensor)?;
        self.check("select", &a, &got, &want)
    }

    /// Into a view of a larger tensor, beside which nothing changes.
    fn written(
        &mut self,
        op: fn(&Tensor, &Tensor) -> Result<()>,
        reference: fn(f64, f64) -> f64,
    ) -> Result<()> {
        let shape: Vec<usize> = self.shape(1, 4).iter().map(|&size| size.max(1)).collect();
        let count = shape.iter().product();
        let values: Vec<T> = (0..count).map(|_| small(self.rng)).collect();
        let whole = Operand::new(self.context.device(), values.clone(), &shape)?;
        let mut view = whole.clone();
        for (axis, &size) in shape.iter().enumerate() {
            let start = self.rng.below(size) * self.rng.below(2);
            let step = *self.rng.pick(&[1, 1, 1, 2, -1]);
            view = view.step(axis, start..size, step)?;
        }
        let order = self.rng.shuffled(shape.len());
        let view = view.permute(&order)?;
        let thin = self.thinned(view.shape());
        let from = self.rng.below(thin.len() + 1) * self.rng.below(2);
        let other = self.draw(&thin[from..])?;
        op(&view.tensor, &other.tensor)?;
        let others = other.array.broadcast(IxDyn(view.shape())).unwrap();
        let written: std::collections::HashMap<usize, &f64> =
            view.grid.indices.iter().copied().zip(&others).collect();
        let story = || format!("in place, {} {}", T::DTYPE, view.story());
        for (at, (&old, got)) in values.iter().zip(whole.tensor.to_vec::<T>()?).enumerate() {
            let Some(&&other) = written.get(&at) else {
                assert_eq!(got.bits(), old.bits(), "{}: {at} is beside it", story());
                continue;
            };
            let want = reference(as_f64(old), other);
            let bound = 3.0 * epsilon(T::DTYPE) * want.abs();
            let is_right = is_near(got, want, bound);
            assert!(
                is_right,
                "{}: {at} of {old} and {other}: {got}, not {want}",
                story()
            );
        }
        // What was read stays.
        same(&other.tensor, &other.operand.values())
    }

    /// Of a tensor that nobody else holds, or of a view that somebody holds.
    fn taken_over(
        &mut self,
        op: fn(Tensor, &Tensor) -> Result<Tensor>,
        reference: fn(f64, f64) -> f64,
    ) -> Result<()> {
        let [left, right] = self.shapes();
        let (a, b) = (self.draw(&left)?, self.draw(&right)?);
        let is_alone = self.rng.one_in(2);
        let taken = match is_alone {
            true => a.tensor.copy()?,
            false => a.tensor.clone(),
        };
        let got = op(taken, &b.tensor)?;
        let want = Self::zipped([&a.array, &b.array], |[a, b]| reference(a, b));
        self.check("what was taken over", &a, &got, &want)?;
        same(&a.tensor, &a.operand.values())
    }
}
