//! Element types as the tests see them: random values, special values, and what is right.

use orlop::{Element, bf16, f16};

use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
}

impl Arithmetic {
    pub const ALL: [Arithmetic; 4] = [
        Arithmetic::Add,
        Arithmetic::Sub,
        Arithmetic::Mul,
        Arithmetic::Div,
    ];

    fn f64(self, a: f64, b: f64) -> f64 {
        match self {
            Arithmetic::Add => a + b,
            Arithmetic::Sub => a - b,
            Arithmetic::Mul => a * b,
            Arithmetic::Div => a / b,
        }
    }
}

/// A value of any dtype without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Float(f64),
    Integer(i64),
}

/// An element type with its references.
pub trait Number: Element + Copy {
    /// A moderate value: sums and products of a few hundred stay finite.
    fn sample(rng: &mut Rng) -> Self;

    /// Values at the edges.
    fn specials() -> Vec<Self>;

    /// The value without loss.
    fn value(self) -> Value;

    /// Rust's `as` from any value: saturating, NaN to 0, nearest even.
    fn from_value(value: Value) -> Self;

    /// Whether `got` is right for `op(a, b)`; `exactly` as on the CPU.
    fn is_right(op: Arithmetic, a: Self, b: Self, got: Self, exactly: bool) -> bool;

    /// The bits, for comparisons that NaN must not escape.
    fn bits(self) -> u64;

    /// The same bits; for floats also two NaNs, or zero for a subnormal that was flushed.
    fn is_same(want: Self, got: Self, may_flush: bool) -> bool {
        let _ = may_flush;
        want.bits() == got.bits()
    }
}

macro_rules! float {
    ($rust:ty, $sample:expr, $loose_div:expr, $loose_all:expr, $from:expr) => {
        impl Number for $rust {
            fn sample(rng: &mut Rng) -> Self {
                #[allow(clippy::redundant_closure_call)]
                ($sample)(rng)
            }

            fn specials() -> Vec<Self> {
                let mut all: Vec<$rust> = [
                    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 0.999, -0.999, 255.5, 2048.5,
                    65504.0, -65504.0, 1e4, -1e4, 0.1,
                ]
                .iter()
                .map(|&x: &f64| Self::from_value(Value::Float(x)))
                .collect();
                all.extend([
                    <$rust>::INFINITY,
                    <$rust>::NEG_INFINITY,
                    <$rust>::NAN,
                    <$rust>::MAX,
                    <$rust>::MIN,
                    <$rust>::MIN_POSITIVE,
                    <$rust>::EPSILON,
                ]);
                all
            }

            fn value(self) -> Value {
                Value::Float(f64::from(self))
            }

            fn from_value(value: Value) -> Self {
                #[allow(clippy::redundant_closure_call)]
                ($from)(value)
            }

            fn is_right(op: Arithmetic, a: Self, b: Self, got: Self, exactly: bool) -> bool {
                let flush = |x: Self| if is_subnormal(x) { zero_like(x) } else { x };
                // f64 holds sums and products of the narrower types exactly (or to within its own
                // rounding, which then cannot matter); f64 itself is IEEE on the host.
                let right = |a: Self, b: Self| {
                    Self::from_value(Value::Float(op.f64(f64::from(a), f64::from(b))))
                };
                let want = right(a, b);
                if exactly {
                    return Self::is_same(want, got, false);
                }
                let slack: u64 = if op == Arithmetic::Div {
                    $loose_div
                } else {
                    $loose_all
                };
                [want, right(flush(a), flush(b))].into_iter().any(|want| {
                    Self::is_same(want, got, true)
                        || (want.is_finite()
                            && got.is_finite()
                            && !is_subnormal(want)
                            && distance(want, got) <= slack)
                })
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            fn is_same(want: Self, got: Self, may_flush: bool) -> bool {
                want.bits() == got.bits()
                    || (want.is_nan() && got.is_nan())
                    || (may_flush && is_subnormal(want) && f64::from(got) == 0.0)
            }
        }
    };
}

fn is_subnormal<T: Number + Limits>(x: T) -> bool {
    match x.value() {
        Value::Float(x) => x != 0.0 && x.abs() < T::SMALLEST_NORMAL,
        Value::Integer(_) => false,
    }
}

fn zero_like<T: Number>(x: T) -> T {
    match x.value() {
        Value::Float(x) => T::from_value(Value::Float(0.0f64.copysign(x))),
        Value::Integer(_) => x,
    }
}

/// Floats between two finite floats, by the order of their bits.
fn distance<T: Number>(a: T, b: T) -> u64 {
    let sign = 1i128 << (8 * size_of::<T>() - 1);
    let ordered = |x: T| {
        let bits = i128::from(x.bits());
        if bits >= sign { sign - bits } else { bits }
    };
    (ordered(a) - ordered(b)).unsigned_abs() as u64
}

/// Nearest even of f32's upper half, from the odd one of the two f32 around `x`.
fn brain_from_f64(x: f64) -> bf16 {
    let step = (x.abs().to_bits() >> 52).max(1023 - 126) as i32 - 1023 - 7;
    let scaled = x / 2f64.powi(step.max(-1000));
    if x.is_nan() || x.is_infinite() || x == 0.0 {
        return bf16::from_f32(x as f32);
    }
    // Exact below: eight bits of mantissa, in f32's range or beyond.
    bf16::from_f32((scaled.round_ties_even() * 2f64.powi(step)) as f32)
}

trait Limits {
    const SMALLEST_NORMAL: f64;
}
impl Limits for f32 {
    const SMALLEST_NORMAL: f64 = f32::MIN_POSITIVE as f64;
}
impl Limits for f64 {
    const SMALLEST_NORMAL: f64 = f64::MIN_POSITIVE;
}
impl Limits for bf16 {
    const SMALLEST_NORMAL: f64 = f32::MIN_POSITIVE as f64;
}
impl Limits for f16 {
    const SMALLEST_NORMAL: f64 = 6.103_515_625e-5;
}

/// Mostly plain numbers, some of them integers, some large or small.
fn sample_float(rng: &mut Rng, range: i32) -> f64 {
    match rng.below(8) {
        0 => rng.below(17) as f64 - 8.0,
        1 => rng.unit() * 2f64.powi(rng.below(2 * range as usize + 1) as i32 - range),
        _ => rng.unit() * 4.0,
    }
}

// 2.5 ULP in steps of floats are three at a power of two.
float!(
    f32,
    |rng| sample_float(rng, 20) as f32,
    3,
    0,
    |value| match value {
        Value::Float(x) => x as f32,
        Value::Integer(x) => x as f32,
    }
);
float!(
    f64,
    |rng| sample_float(rng, 20),
    3,
    0,
    |value| match value {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    }
);
float!(
    f16,
    |rng| f16::from_f64(sample_float(rng, 4)),
    1,
    1,
    |value| {
        match value {
            Value::Float(x) => half_from_f64(x),
            Value::Integer(x) => half_from_f64(x as f64),
        }
    }
);

float!(
    bf16,
    |rng| bf16::from_f64(sample_float(rng, 4)),
    1,
    1,
    |value| {
        match value {
            Value::Float(x) => brain_from_f64(x),
            Value::Integer(x) => brain_from_f64(x as f64),
        }
    }
);

/// Nearest even, worked out in f64: scale so that one unit is one step of f16, round, scale back.
fn half_from_f64(x: f64) -> f16 {
    if x.is_nan() {
        return f16::NAN;
    }
    if x == 0.0 || x.is_infinite() {
        return f16::from_f64_const(x);
    }
    let exponent = ((x.abs().to_bits() >> 52) as i32 - 1023).max(-14);
    let step = 2f64.powi(exponent - 10);
    let rounded = (x.abs() / step).round_ties_even() * step;
    let sign = if x < 0.0 { 0x8000 } else { 0 };
    if rounded >= 65536.0 {
        return f16::from_bits(sign | 0x7C00);
    }
    if rounded < 2f64.powi(-14) {
        return f16::from_bits(sign | (rounded * 2f64.powi(24)) as u16);
    }
    let exponent = (rounded.to_bits() >> 52) as i32 - 1023;
    let mantissa = (rounded / 2f64.powi(exponent) - 1.0) * 1024.0;
    f16::from_bits(sign | ((exponent + 15) as u16) << 10 | mantissa as u16)
}

macro_rules! integer {
    ($rust:ty) => {
        impl Number for $rust {
            fn sample(rng: &mut Rng) -> Self {
                match rng.below(6) {
                    0 => rng.next() as $rust,
                    1 => *rng.pick(&Self::specials()),
                    _ => (rng.below(201) as $rust).wrapping_sub(100),
                }
            }

            fn specials() -> Vec<Self> {
                [
                    0i64, 1, -1, 2, -2, 3, 7, 255, 2049, 2051, 4098, 65504, 65519, 65520, 65536,
                ]
                .into_iter()
                .chain([
                    16_777_217,
                    16_777_219,
                    2_147_483_583,
                    2_147_483_584,
                    2_147_483_647,
                ])
                .chain([-2_147_483_648, -2_147_483_647, 4_294_967_040, 4_294_967_167])
                .map(|x| x as $rust)
                .collect()
            }

            fn value(self) -> Value {
                Value::Integer(i64::from(self))
            }

            fn from_value(value: Value) -> Self {
                match value {
                    // Toward zero, saturating, NaN to 0.
                    Value::Float(x) if x.is_nan() => 0,
                    Value::Float(x) => {
                        x.trunc().clamp(<$rust>::MIN as f64, <$rust>::MAX as f64) as $rust
                    }
                    Value::Integer(x) => x as $rust,
                }
            }

            fn is_right(op: Arithmetic, a: Self, b: Self, got: Self, _: bool) -> bool {
                let (wide_a, wide_b) = (i128::from(a), i128::from(b));
                let want = match op {
                    Arithmetic::Add => wide_a + wide_b,
                    Arithmetic::Sub => wide_a - wide_b,
                    Arithmetic::Mul => wide_a * wide_b,
                    Arithmetic::Div if b == 0 => 0,
                    Arithmetic::Div => wide_a / wide_b,
                };
                want as $rust == got
            }

            fn bits(self) -> u64 {
                u64::from(self as u32)
            }
        }
    };
}
integer!(i32);
integer!(u32);

impl Number for bool {
    fn sample(rng: &mut Rng) -> Self {
        rng.one_in(2)
    }

    fn specials() -> Vec<Self> {
        vec![false, true, true, false, true]
    }

    fn value(self) -> Value {
        Value::Integer(self.into())
    }

    fn from_value(value: Value) -> Self {
        match value {
            // NaN is not zero.
            Value::Float(x) => x != 0.0,
            Value::Integer(x) => x != 0,
        }
    }

    fn is_right(_: Arithmetic, _: Self, _: Self, _: Self, _: bool) -> bool {
        false
    }

    fn bits(self) -> u64 {
        self.into()
    }
}

/// Calls a generic test for every number type: six trials.
macro_rules! for_each_dtype {
    ($list:expr, $scope:expr, $name:literal, $body:ident) => {{
        use crate::adapters::always;
        crate::number::for_each_dtype!($list, $scope, $name, $body, always);
    }};
    ($list:expr, $scope:expr, $name:literal, $body:ident, $when:ident) => {
        $list.extend([
            crate::Test::new(concat!($name, "::f32"), $scope, $body::<f32>).when($when::<f32>),
            crate::Test::new(concat!($name, "::f16"), $scope, $body::<orlop::f16>)
                .without_variants()
                .when($when::<orlop::f16>),
            crate::Test::new(concat!($name, "::i32"), $scope, $body::<i32>).when($when::<i32>),
            crate::Test::new(concat!($name, "::u32"), $scope, $body::<u32>)
                .without_variants()
                .when($when::<u32>),
            crate::Test::new(concat!($name, "::f64"), $scope, $body::<f64>).when($when::<f64>),
            crate::Test::new(concat!($name, "::bf16"), $scope, $body::<orlop::bf16>)
                .when($when::<orlop::bf16>),
        ])
    };
}
pub(crate) use for_each_dtype;
