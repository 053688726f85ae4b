//! Functions that have one right result (`mul_add` has two), of every dtype: comparisons, minimum, maximum, rem, clamp,
//! select, what is NaN and what is finite.

use std::cmp::Ordering;

use orlop::{DType, Result, Tensor, bf16, f16, fused};

use crate::adapters::{Context, in_turn};
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::Operand;
use crate::rng::{Rng, seed};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new(
            "exact::comparisons::bool",
            Scope::Kernels,
            comparisons::<bool>,
        ),
        Test::new("exact::select::bool", Scope::Kernels, select::<bool>),
        Test::new("exact::select_views", Scope::Kernels, select_views),
        Test::new("exact::kinds_of_halves", Scope::Kernels, kinds_of_halves),
        Test::new("exact::kinds_of_doubles", Scope::Device, kinds_of_doubles),
    ];
    for_each_dtype!(all, Scope::Kernels, "exact::comparisons", comparisons);
    for_each_dtype!(all, Scope::Device, "exact::of_two", of_two, in_turn);
    for_each_dtype!(all, Scope::Device, "exact::clamp", clamp, in_turn);
    for_each_dtype!(all, Scope::Device, "exact::mul_add", mul_add, in_turn);
    for_each_dtype!(all, Scope::Kernels, "exact::select", select, in_turn);
    all
}

/// Whether more than one of several functions is tried from an odd element too, where nothing is loaded as vectors: where
/// kernels are shared out, one stands for all.
fn all_odd(context: &Context) -> bool {
    !context.shares_kernels()
}

/// The least normal number.
fn least<T: Number>() -> f64 {
    match T::DTYPE {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 2f64.powi(-14),
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

fn is_subnormal<T: Number>(x: T) -> bool {
    matches!(x.value(), Value::Float(x) if x != 0.0 && x.abs() < least::<T>())
}

/// Specials and numbers of any size. Subnormals, which GPUs may take for zero, on the CPU alone.
fn values<T: Number>(context: &Context, rng: &mut Rng, count: usize) -> Vec<T> {
    let mut all = T::specials();
    let range = match T::DTYPE {
        DType::F64 => 1074,
        DType::F16 => 24,
        _ => 149,
    };
    while all.len() < count {
        let exponent = rng.below(2 * range) as i32 - range as i32;
        all.push(match T::DTYPE.is_float() && !rng.one_in(3) {
            true => T::from_value(Value::Float(libm::ldexp(rng.unit(), exponent))),
            false => T::sample(rng),
        });
    }
    if T::DTYPE.is_float() {
        all.extend([1e-310, -1e-310, 1e-40, -1e-40, 1e-6].map(|x| T::from_value(Value::Float(x))));
    }
    all.retain(|&x| context.is_cpu() || !is_subnormal(x));
    all
}

/// Each with each.
fn pairs<T: Copy>(values: &[T]) -> (Vec<T>, Vec<T>) {
    let all = values.iter();
    all.flat_map(|&x| values.iter().map(move |&y| (x, y)))
        .unzip()
}

/// The result, but for a zero's sign, the bits of NaN, and subnormals that became zero.
fn is_right<T: Number>(context: &Context, want: T, got: T) -> bool {
    let is_equal =
        matches!((want.value(), got.value()), (Value::Float(x), Value::Float(y)) if x == y);
    is_equal || T::is_same(want, got, !context.is_cpu())
}

/// Compares each element of a result, which is `want` of the operands' elements.
fn check<T: Number, const N: usize>(
    context: &Context,
    name: &str,
    got: Result<Tensor>,
    operands: [&[T]; N],
    want: &dyn Fn([T; N]) -> T,
) -> Result<()> {
    let got = got?;
    assert_eq!(got.dtype(), T::DTYPE, "{name}");
    let got = got.to_vec::<T>()?;
    assert_eq!(got.len(), operands[0].len(), "{name}");
    for (at, got) in got.into_iter().enumerate() {
        let x = operands.map(|operand| operand[at]);
        let want = want(x);
        assert!(
            is_right(context, want, got),
            "{name} of {x:?}, {}: {got:?} ({:#x}), not {want:?}",
            T::DTYPE,
            got.bits()
        );
    }
    Ok(())
}

fn comparisons<T: Number>(context: &Context) -> Result<()> {
    let values = values::<T>(context, &mut Rng::new(seed()), 32);
    let (x, y) = pairs(&values);
    let tensor = |x: &[T]| Tensor::from_slice(context.device(), x, x.len());
    let (a, b) = (tensor(&x)?, tensor(&y)?);
    let order = |x: T, y: T| match (x.value(), y.value()) {
        (Value::Float(x), Value::Float(y)) => x.partial_cmp(&y),
        (Value::Integer(x), Value::Integer(y)) => Some(x.cmp(&y)),
        _ => None,
    };
    type Op = (
        &'static str,
        fn(&Tensor, &Tensor) -> Result<Tensor>,
        fn(Option<Ordering>) -> bool,
    );
    let ops: [Op; 6] = [
        ("eq", |a, b| a.eq(b), |order| order == Some(Ordering::Equal)),
        ("ne", |a, b| a.ne(b), |order| order != Some(Ordering::Equal)),
        ("lt", |a, b| a.lt(b), |order| order == Some(Ordering::Less)),
        (
            "le",
            |a, b| a.le(b),
            |order| order.is_some_and(Ordering::is_le),
        ),
        (
            "gt",
            |a, b| a.gt(b),
            |order| order == Some(Ordering::Greater),
        ),
        (
            "ge",
            |a, b| a.ge(b),
            |order| order.is_some_and(Ordering::is_ge),
        ),
    ];
    for (nth, (name, run, want)) in ops.into_iter().enumerate() {
        for from in [0, 1] {
            if from == 1 && nth > 0 && !all_odd(context) {
                continue;
            }
            let got = run(&a.slice(from..)?, &b.slice(from..)?)?;
            assert_eq!(got.dtype(), DType::Bool);
            let got = got.to_vec::<bool>()?;
            for ((&x, &y), got) in x[from..].iter().zip(&y[from..]).zip(got) {
                assert_eq!(
                    got,
                    want(order(x, y)),
                    "{name} of {} {x:?} and {y:?}",
                    T::DTYPE
                );
            }
        }
    }
    Ok(())
}

/// A function of floats where both are numbers, else NaN; and the same of integers.
fn either<T: Number>(x: T, y: T, floats: fn(f64, f64) -> f64, integers: fn(i64, i64) -> i64) -> T {
    T::from_value(match (x.value(), y.value()) {
        (Value::Float(x), Value::Float(y)) if x.is_nan() || y.is_nan() => Value::Float(f64::NAN),
        (Value::Float(x), Value::Float(y)) => Value::Float(floats(x, y)),
        (Value::Integer(x), Value::Integer(y)) => Value::Integer(integers(x, y)),
        _ => panic!("two dtypes"),
    })
}

/// minimum, maximum and rem.
fn of_two<T: Number>(context: &Context) -> Result<()> {
    let values = values::<T>(context, &mut Rng::new(seed()), 70);
    let (x, y) = pairs(&values);
    let tensor = |x: &[T]| Tensor::from_slice(context.device(), x, x.len());
    let (a, b) = (tensor(&x)?, tensor(&y)?);
    for from in [0, 1] {
        let (a, b, x, y) = (a.slice(from..)?, b.slice(from..)?, &x[from..], &y[from..]);
        let is = |name: &str, got: Result<Tensor>, want: &dyn Fn([T; 2]) -> T| {
            check(context, name, got, [x, y], want)
        };
        is("minimum", a.minimum(&b), &|[x, y]| {
            either(x, y, f64::min, i64::min)
        })?;
        if from == 1 && !all_odd(context) {
            continue;
        }
        is("maximum", a.maximum(&b), &|[x, y]| {
            either(x, y, f64::max, i64::max)
        })?;
        // Of narrower floats exact in f64 too: no quotient is rounded.
        is("rem", a.rem(&b), &|[x, y]| {
            either(x, y, |x, y| x % y, |x, y| x.checked_rem(y).unwrap_or(0))
        })?;
    }
    Ok(())
}

/// With tensors and with numbers as bounds; they cross, and are NaN.
fn clamp<T: Number>(context: &Context) -> Result<()> {
    let mut rng = Rng::new(seed());
    let values = values::<T>(context, &mut rng, 200);
    let mut drawn = || -> Vec<T> { (0..2000).map(|_| *rng.pick(&values)).collect() };
    let (x, low, high) = (drawn(), drawn(), drawn());
    let right = |[x, low, high]: [T; 3]| {
        T::from_value(match (x.value(), low.value(), high.value()) {
            (Value::Float(x), Value::Float(low), Value::Float(high)) => {
                let x = if x < low { low } else { x };
                Value::Float(if x > high { high } else { x })
            }
            (Value::Integer(x), Value::Integer(low), Value::Integer(high)) => {
                Value::Integer(x.max(low).min(high))
            }
            _ => panic!("two dtypes"),
        })
    };
    let tensor = |x: &[T]| Tensor::from_slice(context.device(), x, x.len());
    let (a, b, c) = (tensor(&x)?, tensor(&low)?, tensor(&high)?);
    for from in [0, 1] {
        let [a, b, c] = [&a, &b, &c].map(|tensor| tensor.slice(from..));
        let (a, b, c) = (a?, b?, c?);
        let (x, low, high) = (&x[from..], &low[from..], &high[from..]);
        check(context, "clamp", a.clamp(&b, &c), [x, low, high], &right)?;
        if from == 1 && !all_odd(context) {
            continue;
        }
        let of = |x: i64| T::from_value(Value::Integer(x));
        let (two, nine) = (of(2), of(9));
        let is = |name: &str, got: Result<Tensor>, [low, high]: [T; 2]| {
            check(context, name, got, [x], &|[x]| right([x, low, high]))
        };
        is("clamp to 2, 9", a.clamp(2, 9), [two, nine])?;
        is("clamp to 9, 2", a.clamp(9, 2), [nine, two])?;
        check(
            context,
            "clamp to 2, tensor",
            a.clamp(2, &c),
            [x, high],
            &|[x, high]| right([x, two, high]),
        )?;
        if T::DTYPE.is_float() {
            let none = T::from_value(Value::Float(f64::NAN));
            is("clamp to NaN, 9", a.clamp(f64::NAN, 9), [none, nine])?;
            is("clamp to 2, NaN", a.clamp(2, f64::NAN), [two, none])?;
        }
    }
    Ok(())
}

/// What `x * y + z` may be: rounded once or twice, in f32 or f64, and then to the dtype; integers wrap. A product that is
/// subnormal may be lost on the way on GPUs.
fn sums_of_product<T: Number>(context: &Context, [x, y, z]: [T; 3]) -> Vec<T> {
    let (x, y, z) = match (x.value(), y.value(), z.value()) {
        (Value::Float(x), Value::Float(y), Value::Float(z)) => (x, y, z),
        (Value::Integer(x), Value::Integer(y), Value::Integer(z)) => {
            let sum = i128::from(x) * i128::from(y) + i128::from(z);
            return vec![T::from_value(Value::Integer(sum as i64))];
        }
        _ => panic!("two dtypes"),
    };
    let mut sums = match T::DTYPE {
        DType::F64 => vec![x.mul_add(y, z), x * y + z],
        _ => {
            let [x, y, z] = [x, y, z].map(|x| x as f32);
            [x.mul_add(y, z), x * y + z].map(f64::from).to_vec()
        }
    };
    let least = match T::DTYPE {
        DType::F64 => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    if !context.is_cpu() && (x * y).abs() < least {
        sums.push(z);
    }
    sums.into_iter()
        .map(|sum| T::from_value(Value::Float(sum)))
        .collect()
}

/// With tensors and numbers in all places, broadcast, and as a fused expression.
fn mul_add<T: Number>(context: &Context) -> Result<()> {
    let mut rng = Rng::new(seed());
    let any = values::<T>(context, &mut rng, 100);
    let mut drawn = || -> Vec<T> {
        let value = |_| match rng.one_in(3) {
            true => *rng.pick(&any),
            // Of one size, whose sums cancel and round.
            false => T::sample(&mut rng),
        };
        (0..3000).map(value).collect()
    };
    let (x, y, mut z) = (drawn(), drawn(), drawn());
    // Exactly what a product rounds to, the other way: once rounded, its rounding is left.
    for at in (0..z.len()).step_by(5) {
        if let (Value::Float(x), Value::Float(y)) = (x[at].value(), y[at].value()) {
            z[at] = T::from_value(Value::Float(-x * y));
        }
    }
    z.iter_mut()
        .filter(|z| !context.is_cpu() && is_subnormal(**z))
        .for_each(|z| *z = T::from_value(Value::Integer(0)));
    let tensor = |x: &[T]| Tensor::from_slice(context.device(), x, [60, x.len() / 60]);
    let (a, b, c) = (tensor(&x)?, tensor(&y)?, tensor(&z)?);
    let is = |name: &str, got: Result<Tensor>, operands: &dyn Fn(usize) -> [T; 3]| -> Result<()> {
        let got = got?.to_vec::<T>()?;
        for (at, &got) in got.iter().enumerate() {
            let operands = operands(at);
            let sums = sums_of_product(context, operands);
            let is_one = sums.iter().any(|&sum| is_right(context, sum, got));
            let dtype = T::DTYPE;
            assert!(
                is_one,
                "{name} of {operands:?}, {dtype}: {got:?}, none of {sums:?}"
            );
        }
        Ok(())
    };
    let of = |x: i64| T::from_value(Value::Integer(x));
    is("mul_add", a.mul_add(&b, &c), &|at| [x[at], y[at], z[at]])?;
    let numbers = a.mul_add(3, 7);
    is("mul_add of numbers", numbers, &|at| [x[at], of(3), of(7)])?;
    is("mul_add 7", a.mul_add(&b, 7), &|at| [x[at], y[at], of(7)])?;
    is("mul_add by 3", a.mul_add(3, &c), &|at| {
        [x[at], of(3), z[at]]
    })?;
    let whole = fused(|e| e.input(&a).mul_add(e.input(&b), e.input(&c)));
    is("fused mul_add", whole, &|at| [x[at], y[at], z[at]])?;
    // A row, a column, and all without vectors.
    let (row, column) = (b.slice((3..4, 1..))?, c.slice((.., 7..8))?);
    let spread = a.slice((.., 1..))?.mul_add(&row, &column);
    is("mul_add of a row and a column", spread, &|at| {
        let (i, j) = (at / 49, at % 49 + 1);
        [x[50 * i + j], y[150 + j], z[50 * i + 7]]
    })
}

/// Specials and others, by tensors and by numbers, of odd offsets, broadcast.
fn select<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(seed());
    let values = values::<T>(context, &mut rng, 60);
    let mut drawn = || -> Vec<T> { (0..600).map(|_| *rng.pick(&values)).collect() };
    let (x, y) = (drawn(), drawn());
    let choice: Vec<bool> = (0..600).map(|_| rng.one_in(2)).collect();
    let tensor = |x: &[T]| Tensor::from_slice(device, x, [20, 30]);
    let (mask, a, b) = (
        Tensor::from_slice(device, &choice, [20, 30])?,
        tensor(&x)?,
        tensor(&y)?,
    );
    let is = |name: &str, got: Result<Tensor>, want: &dyn Fn(usize) -> T| -> Result<()> {
        let got = got?;
        assert_eq!(got.dtype(), T::DTYPE, "{name}");
        for (at, got) in got.to_vec::<T>()?.into_iter().enumerate() {
            let want = want(at);
            let is_same = T::is_same(want, got, !context.is_cpu());
            assert!(
                is_same,
                "{name}, {}, element {at}: {got:?}, not {want:?}",
                T::DTYPE
            );
        }
        Ok(())
    };
    let one = T::from_value(Value::Integer(1));
    let either = |at: usize, x: T, y: T| if choice[at] { x } else { y };
    is("select", mask.select(&a, &b), &|at| {
        either(at, x[at], y[at])
    })?;
    is("select 1", mask.select(1, &b), &|at| either(at, one, y[at]))?;
    is("select or 1", mask.select(&a, 1), &|at| {
        either(at, x[at], one)
    })?;
    let odd = |tensor: &Tensor| tensor.slice((.., 1..));
    let parts = odd(&mask)?.select(&odd(&a)?, &odd(&b)?);
    let inner = |at: usize| at / 29 * 30 + at % 29 + 1;
    is("select of parts", parts, &|at| {
        let at = inner(at);
        either(at, x[at], y[at])
    })?;
    // One choice for each column; and one element of each row.
    let spread = mask.slice(4..5)?.select(&a, &b.slice((.., 2..3))?);
    is("select by a row", spread, &|at| {
        either(120 + at % 30, x[at], y[at / 30 * 30 + 2])
    })
}

/// Broadcast, turned round, of halves; what is refused.
fn select_views(context: &Context) -> Result<()> {
    let device = context.device();
    let x: Vec<f32> = (0..60).map(|at| at as f32 - 20.5).collect();
    let a = Tensor::from_slice(device, &x, [3, 20])?;
    let mask = a.gt(0)?;
    let row = Tensor::from_slice(device, &x[..3], [1, 3])?.cast(DType::F16)?;
    let halves = a.transpose(0, 1)?.cast(DType::F16)?;
    let got = mask
        .transpose(0, 1)?
        .select(&row, &halves)?
        .to_vec::<f16>()?;
    for (at, got) in got.into_iter().enumerate() {
        let own = x[at % 3 * 20 + at / 3];
        let want = if own > 0.0 { x[at % 3] } else { own };
        assert_eq!(got.to_f32(), want, "element {at}");
    }
    assert!(a.select(&a, &a).is_err(), "the choice is no bool");
    assert!(mask.select(1, 2).is_err(), "two numbers have no dtype");
    Ok(())
}

/// Whether elements are NaN, and whether they are finite.
fn kinds<T: Number>(context: &Context, values: Vec<T>) -> Result<()> {
    let whole = Operand::new(context.device(), values, &[256, 256])?;
    // Without vectors, and turned round.
    let odd = whole.slice(&[0..256, 1..256])?;
    for view in [whole.transpose(0, 1)?, whole, odd] {
        let is_nan = view.tensor.is_nan()?.to_vec::<bool>()?;
        let is_finite = view.tensor.is_finite()?.to_vec::<bool>()?;
        for ((x, nan), finite) in view.values().into_iter().zip(is_nan).zip(is_finite) {
            let Value::Float(wide) = x.value() else {
                panic!("{} is no float", T::DTYPE)
            };
            let (dtype, bits) = (T::DTYPE, x.bits());
            assert_eq!(
                (nan, finite),
                (wide.is_nan(), wide.is_finite()),
                "{dtype} {bits:#x}"
            );
        }
    }
    Ok(())
}

/// Every f16 and every bf16.
fn kinds_of_halves(context: &Context) -> Result<()> {
    kinds(context, (0..=u16::MAX).map(f16::from_bits).collect())?;
    kinds(context, (0..=u16::MAX).map(bf16::from_bits).collect())
}

/// NaN of all payloads, the largest and the least numbers, zeros, and any.
fn kinds_of_doubles(context: &Context) -> Result<()> {
    let (infinity, largest) = (f64::INFINITY.to_bits(), f64::MAX.to_bits());
    let quiet = 1 << 51;
    let edges = [
        0,
        1,
        quiet,
        largest,
        largest - 1,
        infinity,
        f64::MIN_POSITIVE.to_bits(),
    ];
    // A payload in the lower word alone, in the upper one alone, the quiet bit, all.
    let payloads = [
        1,
        1 << 31,
        1 << 32,
        quiet,
        quiet | 1,
        quiet - 1,
        (1 << 52) - 1,
    ];
    let mut bits: Vec<u64> = edges.to_vec();
    bits.extend(payloads.map(|payload| infinity | payload));
    let mut rng = Rng::new(seed());
    while bits.len() < 1 << 15 {
        bits.push(match rng.one_in(2) {
            true => rng.next() >> 1,
            false => infinity | rng.next() >> 12 >> rng.below(52),
        });
    }
    let both = bits.iter().flat_map(|&bits| [bits, bits | 1 << 63]);
    kinds(context, both.map(f64::from_bits).collect())
}
