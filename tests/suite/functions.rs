//! Functions of one element and of more against f64, within the bounds of docs/numerics.md; logic; in place, taken
//! over, fused.

use orlop::{DType, Device, Error, Result, Tensor, bf16, f16, fused};

use crate::adapters::{Context, Variant, every, found, full};
use crate::rng::{Rng, seed};
use crate::{OnceTest, Scope, Test};

/// Takes an hour or two, so only when it is asked for.
pub fn tests_once() -> Vec<OnceTest> {
    match every() {
        true => vec![("functions::every_single", every_single)],
        false => Vec::new(),
    }
}

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("functions::halves", Scope::Device, halves),
        Test::new("functions::singles", Scope::Device, singles),
        Test::new("functions::doubles", Scope::Device, doubles),
        Test::new("functions::subnormals", Scope::Device, subnormals),
        Test::new("functions::signs_of_zeros", Scope::Device, signs_of_zeros),
        Test::new("functions::angles", Scope::Device, angles),
        Test::new("functions::powers", Scope::Device, powers),
        Test::new(
            "functions::powers_of_numbers",
            Scope::Device,
            powers_of_numbers,
        ),
        Test::new(
            "functions::powers_over_the_range",
            Scope::Device,
            powers_over_the_range,
        ),
        Test::new(
            "functions::powers_of_positive_numbers",
            Scope::Device,
            powers_of_positive_numbers,
        ),
        Test::new(
            "functions::numbers_to_powers",
            Scope::Device,
            numbers_to_powers,
        ),
        Test::new("functions::of_integers", Scope::Kernels, of_integers),
        Test::new("functions::bools", Scope::Kernels, bools),
        Test::new("functions::in_place", Scope::Kernels, in_place),
        Test::new("functions::overlaps", Scope::Kernels, overlaps),
        Test::new("functions::overwritten", Scope::Device, overwritten),
        Test::new("functions::take_over", Scope::Device, take_over),
        Test::new("functions::fused", Scope::Kernels, fusions),
        Test::new("functions::long_fusions", Scope::Kernels, long_fusions),
        Test::new("functions::chains", Scope::Kernels, chains),
        Test::new("functions::fused_in_place", Scope::Device, fused_in_place),
        Test::new("functions::refuses", Scope::Device, refuses),
    ]
}

/// A function with its reference and its bound.
pub struct Case {
    pub name: &'static str,
    pub run: fn(&Tensor) -> Result<Tensor>,
    pub exact: fn(f64) -> f64,
    /// In units of the last place of the result.
    pub ulps: f64,
    /// Beside it, in multiples of the operand's size.
    pub of_operand: f64,
}

fn case(
    name: &'static str,
    run: fn(&Tensor) -> Result<Tensor>,
    exact: fn(f64) -> f64,
    ulps: f64,
) -> Case {
    Case {
        name,
        run,
        exact,
        ulps,
        of_operand: 0.0,
    }
}

/// Of f64 too, where `1 / (1 + e^-x)` has nothing left.
fn sigmoid(x: f64) -> f64 {
    x.min(0.0).exp() / (1.0 + (-x.abs()).exp())
}

fn sign(x: f64) -> f64 {
    match x {
        x if x > 0.0 => 1.0,
        x if x < 0.0 => -1.0,
        x if x.is_nan() => x,
        _ => 0.0,
    }
}

/// Below -1 libm has some number.
fn acosh(x: f64) -> f64 {
    match x < 1.0 {
        true => f64::NAN,
        false => libm::acosh(x),
    }
}

fn gelu(x: f64) -> f64 {
    match x == f64::NEG_INFINITY {
        true => 0.0,
        false => 0.5 * x * libm::erfc(-x / 2f64.sqrt()),
    }
}

fn gelu_tanh(x: f64) -> f64 {
    match x == f64::NEG_INFINITY {
        true => 0.0,
        false => {
            x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
        }
    }
}

fn silu(x: f64) -> f64 {
    match x == f64::NEG_INFINITY {
        true => 0.0,
        // The exponential in two factors: it has no digits left before the product has none.
        false => {
            let half = (0.5 * x.min(0.0)).exp();
            x * half * half / (1.0 + (-x.abs()).exp())
        }
    }
}

pub fn cases() -> Vec<Case> {
    let near = |case: Case, of_operand| Case { of_operand, ..case };
    vec![
        case("neg", Tensor::neg, |x| -x, 0.0),
        case("abs", Tensor::abs, f64::abs, 0.0),
        case("sign", Tensor::sign, sign, 0.0),
        case("square", Tensor::square, |x| x * x, 0.5),
        case("relu", Tensor::relu, |x| if x < 0.0 { 0.0 } else { x }, 0.0),
        case(
            "leaky_relu",
            |x| x.leaky_relu(0.25),
            |x| if x < 0.0 { 0.25 * x } else { x },
            0.5,
        ),
        case("recip", Tensor::recip, f64::recip, 2.5),
        case("sqrt", Tensor::sqrt, f64::sqrt, 2.5),
        case("rsqrt", Tensor::rsqrt, |x| 1.0 / x.sqrt(), 4.5),
        case("floor", Tensor::floor, f64::floor, 0.0),
        case("ceil", Tensor::ceil, f64::ceil, 0.0),
        case("round", Tensor::round, f64::round_ties_even, 0.0),
        case("trunc", Tensor::trunc, f64::trunc, 0.0),
        case("exp", Tensor::exp, f64::exp, 2.0),
        case("exp2", Tensor::exp2, f64::exp2, 2.0),
        case("expm1", Tensor::expm1, f64::exp_m1, 3.0),
        case("log", Tensor::log, f64::ln, 2.0),
        case("log2", Tensor::log2, f64::log2, 2.0),
        case("log1p", Tensor::log1p, f64::ln_1p, 3.0),
        case("sin", Tensor::sin, f64::sin, 3.0),
        case("cos", Tensor::cos, f64::cos, 3.0),
        case("tan", Tensor::tan, f64::tan, 5.0),
        case("asin", Tensor::asin, f64::asin, 5.0),
        case("acos", Tensor::acos, f64::acos, 5.0),
        case("atan", Tensor::atan, f64::atan, 4.0),
        case("sinh", Tensor::sinh, f64::sinh, 3.0),
        case("cosh", Tensor::cosh, f64::cosh, 3.0),
        // Those of the standard library have fewer digits than f64.
        case("asinh", Tensor::asinh, libm::asinh, 5.0),
        case("acosh", Tensor::acosh, acosh, 6.0),
        case("atanh", Tensor::atanh, libm::atanh, 6.0),
        case("tanh", Tensor::tanh, f64::tanh, 6.0),
        case("sigmoid", Tensor::sigmoid, sigmoid, 6.0),
        case("erf", Tensor::erf, libm::erf, 3.0),
        near(case("gelu", Tensor::gelu, gelu, 4.0), 3e-7),
        near(case("gelu_tanh", Tensor::gelu_tanh, gelu_tanh, 8.0), 3e-7),
        case("silu", Tensor::silu, silu, 7.0),
        case(
            "softplus",
            Tensor::softplus,
            |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p(),
            6.0,
        ),
    ]
}

/// A format of floats: its precision and its least exponent.
#[derive(Clone, Copy)]
struct Format {
    bits: i32,
    least: i32,
    largest: f64,
}

const SINGLE: Format = Format {
    bits: 24,
    least: -126,
    largest: f32::MAX as f64,
};
const DOUBLE: Format = Format {
    bits: 53,
    least: -1022,
    largest: f64::MAX,
};
const BRAIN: Format = Format { bits: 8, ..SINGLE };
const HALF: Format = Format {
    bits: 11,
    least: -14,
    largest: 65504.0,
};

impl Format {
    /// One unit in the last place of `x`.
    fn ulp(self, x: f64) -> f64 {
        // The exponent by its bits: below the least one it is of no interest.
        let exponent = (x.abs().min(self.largest).to_bits() >> 52) as i32 - 1023;
        let exponent = exponent.max(self.least) - self.bits + 1;
        match u64::try_from(exponent + 1023) {
            Ok(biased) if biased > 0 => f64::from_bits(biased << 52),
            _ => libm::ldexp(1.0, exponent),
        }
    }

    /// Whether `got` is within `bound` of `want`; infinite beyond the largest number, and zero below
    /// the least normal one where it may be flushed.
    fn is_close(self, want: f64, got: f64, bound: f64, may_flush: bool) -> bool {
        if want.is_nan() || got.is_nan() {
            return want.is_nan() && got.is_nan();
        }
        if want.is_infinite() {
            return got == want;
        }
        let least = 2f64.powi(self.least);
        let most = self.largest + self.ulp(self.largest) / 2.0;
        if got.is_infinite() {
            return got.signum() == want.signum() && want.abs() + bound >= most;
        }
        if want.abs() >= most {
            return got.signum() == want.signum() && got.abs() + bound >= self.largest;
        }
        (got - want).abs() <= bound
            || (may_flush && want.abs() < least * 1.001 && got.abs() <= least)
    }
}

/// How far a result is from `want`, a function of `x`, in ulps beside what the bound allows of the operand's size, where it
/// is in the format's range.
///
/// # Errors
/// What is wrong, where it is beyond the bound.
fn judge(
    case: &Case,
    format: Format,
    is_cpu: bool,
    [x, want, got]: [f64; 3],
) -> Result<f64, String> {
    let right = |want: f64| {
        // Results are rounded to the format after all.
        let (rounding, wide) = match format.bits == SINGLE.bits {
            true => (0.0, format.ulp(want)),
            false => {
                let within = want.clamp(-format.largest, format.largest);
                (0.5 * format.ulp(want), SINGLE.ulp(within))
            }
        };
        let extra = case.of_operand * if x.is_finite() { x.abs() } else { 0.0 };
        let bound = case.ulps * wide + rounding + extra;
        let close = format.is_close(want, got, bound, !is_cpu);
        (close, ((got - want).abs() - extra) / wide)
    };
    let (close, error) = right(want);
    let is_subnormal = x != 0.0 && x.abs() < 2f64.powi(SINGLE.least);
    // Which may be taken for zero.
    if !(close || is_subnormal && !is_cpu && right((case.exact)(0f64.copysign(x))).0) {
        return Err(format!(
            "{} of {x:e}: {got:e}, not {want:e} (off by {error} ulps)",
            case.name
        ));
    }
    let counts = close && error.is_finite() && want.abs() > 2f64.powi(SINGLE.least + 2);
    Ok(if counts { error.max(0.0) } else { 0.0 })
}

/// Compares each result; `x` are the operands as f64, `got` the results. The largest error in ulps.
fn check(context: &Context, case: &Case, format: Format, x: &[f64], got: &[f64]) -> f64 {
    assert_eq!(x.len(), got.len());
    let pairs = x.iter().zip(got);
    let errors = pairs.map(|(&x, &got)| {
        let values = [x, (case.exact)(x), got];
        judge(case, format, context.is_cpu(), values)
    });
    errors.fold(0.0, |worst, error| {
        f64::max(worst, error.unwrap_or_else(|wrong| panic!("{wrong}")))
    })
}

/// Every f16, and the same of bf16.
fn halves(context: &Context) -> Result<()> {
    let device = context.device();
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let tensor = Tensor::from_slice(device, &all, all.len())?;
    let x: Vec<f64> = all.iter().map(|x| x.to_f64()).collect();
    for case in cases() {
        let result = (case.run)(&tensor)?;
        assert_eq!(
            (result.dtype(), result.device()),
            (DType::F16, device),
            "{}",
            case.name
        );
        let got: Vec<f64> = result.to_vec::<f16>()?.iter().map(|x| x.to_f64()).collect();
        check(context, &case, HALF, &x, &got);
    }
    let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let tensor = Tensor::from_slice(device, &all, all.len())?;
    let x: Vec<f64> = all.iter().map(|x| x.to_f64()).collect();
    let format = Format { bits: 8, ..SINGLE };
    let format = Format {
        largest: f64::from(bf16::MAX),
        ..format
    };
    for case in cases() {
        let got = (case.run)(&tensor)?.to_vec::<bf16>()?;
        let got: Vec<f64> = got.iter().map(|x| x.to_f64()).collect();
        check(context, &case, format, &x, &got);
    }
    Ok(())
}

/// Bit patterns of every kind: uniform over all of them, moderate numbers, and the specials.
fn patterns(count: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed());
    let specials = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::EPSILON,
        1e-45,
        -1e-45,
        0.5,
        1.5,
        2.5,
        -0.5,
        88.72,
        88.73,
        -87.33,
        -87.34,
        -103.9,
        -104.1,
        127.99,
        128.0,
        -149.0,
        -150.5,
        0.99999994,
        1.0000001,
        -0.99999994,
        -0.9999,
        8_388_607.5,
        8_388_608.0,
        16_777_217.0,
        9.01,
        10.0,
        6000.0,
        6000.5,
        8192.0,
        1e5,
        1e10,
        1e20,
        89.41,
        89.42,
        -89.6,
        2.4e-4,
        -2.5e-4,
        1.1e18,
        -1.2e18,
        -1.0000001,
        std::f32::consts::PI,
        1.5707964,
        4.712389,
        6.2831855,
        16_367_173.0,
        1.7e38,
    ];
    let mut all = specials.to_vec();
    while all.len() < count {
        all.push(match rng.below(5) {
            0 => rng.unit() as f32,
            1 => rng.unit() as f32 * 10.0,
            2 => rng.unit() as f32 * 100.0,
            _ => f32::from_bits(rng.next() as u32),
        });
    }
    all
}

/// In a full run 2^24 patterns.
fn singles(context: &Context) -> Result<()> {
    let count = if full() { 1 << 24 } else { 1 << 17 };
    let values = patterns(count);
    let tensor = Tensor::from_slice(context.device(), &values, count)?;
    let x: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    let mut lines = String::new();
    for case in cases() {
        let got: Vec<f64> = (case.run)(&tensor)?
            .to_vec::<f32>()?
            .iter()
            .map(|&x| x.into())
            .collect();
        let worst = check(context, &case, SINGLE, &x, &got);
        lines += &format!("{} {worst:.2}, ", case.name);
    }
    if full() {
        println!(
            "{}: worst in ulps beside what the operand's size allows: {lines}",
            context.adapter.name
        );
    }
    let want_nan = tensor.is_nan()?.to_vec::<bool>()?;
    let want_finite = tensor.is_finite()?.to_vec::<bool>()?;
    for ((x, nan), finite) in values.iter().zip(want_nan).zip(want_finite) {
        assert_eq!((x.is_nan(), x.is_finite()), (nan, finite), "{x:e}");
    }
    Ok(())
}

/// How many f32 one step of `every_single` takes.
const STEP: usize = 1 << 22;

/// Every f32 there is, all 2^32, on every device: an hour or two of two cores. Prints the largest errors and where they are,
/// and what is wrong.
fn every_single() -> Result<()> {
    let devices: Vec<Context> = found()
        .into_iter()
        .map(|adapter| Context::new(adapter, Variant::Plain))
        .collect();
    let cases = cases();
    // Of each case on each device: the largest error, its operand, and how many are wrong.
    let mut all = vec![vec![(0.0f64, 0.0f64, 0u64); devices.len()]; cases.len()];
    let steps = (1usize << 32) / STEP;
    for step in 0..steps {
        // From all over, so that what goes wrong shows early.
        let first = (step * 387 % steps * STEP) as u32;
        let values: Vec<f32> = (first..=first + (STEP as u32 - 1))
            .map(f32::from_bits)
            .collect();
        let tensors: Vec<Tensor> = devices
            .iter()
            .map(|context| Tensor::from_slice(context.device(), &values, STEP))
            .collect::<Result<_>>()?;
        for (case, all) in cases.iter().zip(&mut all) {
            let results: Vec<Vec<f32>> = tensors
                .iter()
                .map(|tensor| (case.run)(tensor)?.to_vec())
                .collect::<Result<_>>()?;
            let half = STEP / 2;
            let found = std::thread::scope(|scope| {
                let halves = [0..half, half..STEP].map(|range| {
                    let (values, results, devices) = (&values, &results, &devices);
                    scope.spawn(move || worst_of(case, devices, values, results, range))
                });
                halves.map(|half| half.join().expect("no panic"))
            });
            for found in found {
                for (all, (error, x, wrong)) in all.iter_mut().zip(found) {
                    let is_worse = error > all.0;
                    let (error, x) = if is_worse { (error, x) } else { (all.0, all.1) };
                    *all = (error, x, all.2 + wrong);
                }
            }
        }
        if (step + 1) % (steps / 16) > 0 {
            continue;
        }
        let names = devices.iter().map(|context| &*context.adapter.name);
        let mut table = format!(
            "{} of {steps} steps; ulps beside what the operand's size allows, at, wrong:",
            step + 1
        );
        names.for_each(|name| table += &format!(" {name}"));
        for (case, all) in cases.iter().zip(&all) {
            table += &format!("\n{:10}", case.name);
            for (error, x, wrong) in all {
                table += &format!(" {error:>6.3} {x:>14.7e} {wrong:>6}");
            }
        }
        println!("{table}");
    }
    let wrong: u64 = all.iter().flatten().map(|(_, _, wrong)| wrong).sum();
    assert_eq!(wrong, 0, "results beyond their bounds");
    Ok(())
}

/// Of a part of one step: for each device the largest error, its operand, and how many are wrong.
fn worst_of(
    case: &Case,
    devices: &[Context],
    values: &[f32],
    results: &[Vec<f32>],
    range: std::ops::Range<usize>,
) -> Vec<(f64, f64, u64)> {
    let mut all = vec![(0.0, 0.0, 0); devices.len()];
    for at in range {
        let x = f64::from(values[at]);
        let want = (case.exact)(x);
        // Most devices agree on most bits.
        let mut judged = None;
        for ((context, results), all) in devices.iter().zip(results).zip(&mut all) {
            let same = (results[at].to_bits(), context.is_cpu());
            let error = match judged {
                Some((of, error)) if of == same => Ok(error),
                _ => judge(
                    case,
                    SINGLE,
                    context.is_cpu(),
                    [x, want, f64::from(results[at])],
                ),
            };
            match error {
                Ok(error) => {
                    judged = Some((same, error));
                    if error > all.0 {
                        (all.0, all.1) = (error, x);
                    }
                }
                Err(wrong) => {
                    if all.2 == 0 {
                        println!("{}: {wrong}", context.adapter.name);
                    }
                    all.2 += 1;
                }
            }
        }
    }
    all
}

/// f64 where it is: kernels or the CPU, the result at home. Bounds are those of f32 in steps of f64, and two steps for what
/// the references have.
fn doubles(context: &Context) -> Result<()> {
    let device = context.device();
    if !device.capabilities().holds(DType::F64) {
        return Ok(());
    }
    let mut rng = Rng::new(seed());
    let mut values: Vec<f64> = patterns(2000).into_iter().map(f64::from).collect();
    for _ in 0..if full() { 1 << 20 } else { 20_000 } {
        values.push(match rng.below(4) {
            0 => rng.unit(),
            1 => rng.unit() * 40.0,
            2 => rng.unit() * 1000.0,
            _ => f64::from_bits(rng.next()),
        });
    }
    let tensor = Tensor::from_slice(device, &values, values.len())?;
    for case in cases() {
        let result = (case.run)(&tensor)?;
        assert_eq!(result.device(), device, "{}", case.name);
        for (&x, got) in values.iter().zip(result.to_vec::<f64>()?) {
            let size = if x.is_finite() { x.abs() } else { 0.0 };
            let extra = case.of_operand * size * libm::ldexp(1.0, -29);
            let is_right = |want: f64| {
                let bound = (case.ulps + 2.0) * DOUBLE.ulp(want) + extra;
                got == want || DOUBLE.is_close(want, got, bound, !context.is_cpu())
            };
            let want = (case.exact)(x);
            // Which may be taken for zero.
            let is_flushed =
                x.is_subnormal() && !context.is_cpu() && is_right((case.exact)(0f64.copysign(x)));
            assert!(
                is_right(want) || is_flushed,
                "{} of {x:e}: {got:e}, not {want:e}",
                case.name
            );
        }
    }
    // Pairs of any two, of neighbours in size, and powers that are no edges.
    let mut pairs: Vec<(f64, f64)> = Vec::new();
    for &x in &values {
        let (other, factor) = (values[rng.below(values.len())], rng.unit());
        let near = if x.abs() > 1e-300 {
            x * 1e-3 * factor
        } else {
            x
        };
        let power = 1000.0 * factor / x.abs().log2();
        pairs.extend([
            (x, other),
            (x, near),
            (x.trunc(), near.trunc()),
            (x.abs(), power),
        ]);
    }
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let a = Tensor::from_slice(device, &x, x.len())?;
    let b = Tensor::from_slice(device, &y, y.len())?;
    let (powers, rests) = (a.pow(&b)?.to_vec::<f64>()?, a.rem(&b)?.to_vec::<f64>()?);
    for (&(x, y), (power, rest)) in pairs.iter().zip(powers.into_iter().zip(rests)) {
        let want = x.powf(y);
        let close = want == power || DOUBLE.is_close(want, power, 4.0 * DOUBLE.ulp(want), false);
        assert!(close, "{x:e} to {y:e}: {power:e}, not {want:e}");
        let want = x % y;
        let is_same = want.to_bits() == rest.to_bits() || (want.is_nan() && rest.is_nan());
        assert!(is_same, "rest of {x:e} by {y:e}: {rest:e}, not {want:e}");
    }
    Ok(())
}

/// What goes through zero takes the sign of a zero along.
fn signs_of_zeros(context: &Context) -> Result<()> {
    let device = context.device();
    let x = Tensor::from_slice(device, &[0.0f32, -0.0], 2)?;
    let names = ["tan", "asin", "atan", "sinh", "asinh", "atanh", "sqrt"];
    let all: Vec<Case> = cases()
        .into_iter()
        .filter(|case| names.contains(&case.name))
        .collect();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let x = x.to(&Device::cpu())?.cast(dtype)?.to(device)?;
        for case in &all {
            let got = (case.run)(&x)?.to(&Device::cpu())?.cast(DType::F64)?;
            let bits: Vec<u64> = got.to_vec::<f64>()?.iter().map(|x| x.to_bits()).collect();
            assert_eq!(bits, [0, 1 << 63], "{}, {dtype}", case.name);
        }
        // Compilers that take roots for positive leave out what follows.
        let infinity = f64::INFINITY;
        let follows = [
            (fused(|e| e.input(&x).rsqrt())?, [infinity, -infinity]),
            (fused(|e| e.input(&x).rsqrt().abs())?, [infinity; 2]),
            (fused(|e| e.input(&x).rsqrt().relu())?, [infinity, 0.0]),
            (fused(|e| e.input(&x).rsqrt().minimum(9))?, [9.0, -infinity]),
            (fused(|e| e.input(&x).rsqrt().abs().minimum(9))?, [9.0; 2]),
            (fused(|e| e.input(&x).sqrt().recip().abs())?, [infinity; 2]),
            (fused(|e| e.input(&x).sqrt().abs().recip())?, [infinity; 2]),
            (fused(|e| e.input(&x).recip().abs())?, [infinity; 2]),
        ];
        for (at, (got, want)) in follows.into_iter().enumerate() {
            let got = got.to(&Device::cpu())?.cast(DType::F64)?;
            assert_eq!(got.to_vec::<f64>()?, want, "{at}, {dtype}");
        }
    }
    Ok(())
}

/// `atan2` of specials with each other, with the signs of zeros, of moderate numbers and of any; as a part of an expression.
fn angles(context: &Context) -> Result<()> {
    let device = context.device();
    let specials = [
        0.0,
        1.0,
        0.5,
        3.0,
        1e30,
        3e38,
        1e-30,
        1e-40,
        1.2e-38,
        0.999_999_94,
        f64::INFINITY,
        f64::NAN,
    ];
    let specials: Vec<f64> = specials.iter().flat_map(|&x| [x, -x]).collect();
    let mut pairs: Vec<(f64, f64)> = specials
        .iter()
        .flat_map(|&y| specials.iter().map(move |&x| (y, x)))
        .collect();
    let mut rng = Rng::new(seed());
    for _ in 0..if full() { 1 << 22 } else { 40_000 } {
        let mut any = || f64::from(f32::from_bits(rng.next() as u32));
        let (y, x) = (any(), any());
        pairs.push(match rng.below(3) {
            0 => (y, x),
            1 => (y, y * rng.unit()),
            _ => (rng.unit(), rng.unit()),
        });
    }
    let (y, x): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    let formats = [
        (DType::F32, SINGLE),
        (DType::F64, DOUBLE),
        (DType::F16, HALF),
        (DType::BF16, BRAIN),
    ];
    for (dtype, format) in formats {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let held = |x: &[f64]| -> Result<(Tensor, Vec<f64>)> {
            let x = Tensor::from_slice(&Device::cpu(), x, x.len())?.cast(dtype)?;
            Ok((x.to(device)?, x.cast(DType::F64)?.to_vec()?))
        };
        let ((a, y), (b, x)) = (held(&y)?, held(&x)?);
        let mut worst = 0.0f64;
        for (form, got) in [a.atan2(&b)?, fused(|e| e.input(&a).atan2(e.input(&b)))?]
            .iter()
            .enumerate()
        {
            let got = got.to(&Device::cpu())?.cast(DType::F64)?.to_vec::<f64>()?;
            for ((&y, &x), got) in y.iter().zip(&x).zip(got) {
                let want = libm::atan2(y, x);
                let (rounding, ulp) = match format.bits < SINGLE.bits {
                    true => (0.5 * format.ulp(want), SINGLE.ulp(want)),
                    false => (0.0, format.ulp(want)),
                };
                // Two more for the reference.
                let ulps = if dtype == DType::F64 { 8.0 } else { 6.0 };
                let bound = ulps * ulp + rounding;
                let close = format.is_close(want, got, bound, !context.is_cpu());
                let signed = want.is_nan() || want.is_sign_negative() == got.is_sign_negative();
                // Which may be taken for zero.
                let is_subnormal = |x: f64| x != 0.0 && x.abs() < 2f64.powi(format.least);
                let zeroed = |x: f64| if is_subnormal(x) { 0f64.copysign(x) } else { x };
                let flushed = libm::atan2(zeroed(y), zeroed(x));
                let excused = !context.is_cpu() && format.is_close(flushed, got, bound, true);
                assert!(
                    (close || excused) && signed,
                    "{y:e} over {x:e}, {dtype}, form {form}: {got:e}, not {want:e}"
                );
                if close && want.abs() > 2f64.powi(SINGLE.least + 2) && !want.is_nan() {
                    worst = worst.max(((got - want).abs() - rounding) / ulp);
                }
            }
        }
        if full() {
            println!(
                "{}: worst of atan2 in ulps, {dtype}: {worst:.2}",
                context.adapter.name
            );
        }
    }
    Ok(())
}

/// `pow` of specials with each other, of moderate numbers and of any.
fn powers(context: &Context) -> Result<()> {
    let device = context.device();
    let specials = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        1.5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e30,
        -1e30,
        16_777_216.0,
        8_388_607.5,
        1e-30,
        127.0,
        0.999_999_94,
        1.000_000_1,
    ];
    let mut pairs: Vec<(f32, f32)> = specials
        .iter()
        .flat_map(|&x| specials.iter().map(move |&y| (x, y)))
        .collect();
    let mut rng = Rng::new(seed());
    for _ in 0..if full() { 1 << 22 } else { 40_000 } {
        let x = f32::from_bits(rng.next() as u32);
        pairs.push(match rng.below(3) {
            0 => (x, f32::from_bits(rng.next() as u32)),
            1 => (x, rng.unit() as f32 * 4.0),
            _ => (x.abs().clamp(0.01, 100.0), rng.unit() as f32 * 30.0),
        });
    }
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let a = Tensor::from_slice(device, &x, x.len())?;
    let b = Tensor::from_slice(device, &y, y.len())?;
    let got = a.pow(&b)?.to_vec::<f32>()?;
    for (&(x, y), got) in pairs.iter().zip(got) {
        let want = f64::from(x).powf(y.into());
        let is_subnormal = |x: f32| x != 0.0 && x.abs() < f32::MIN_POSITIVE;
        let close = SINGLE.is_close(want, got.into(), 3.0 * SINGLE.ulp(want), !context.is_cpu());
        let excused = !context.is_cpu() && (is_subnormal(x) || is_subnormal(y));
        assert!(close || excused, "{x:e} to {y:e}: {got:e}, not {want:e}");
    }
    Ok(())
}

/// Dtypes that have powers; integers have no format, and are exact.
const POWERS: [(DType, Option<Format>); 6] = [
    (DType::F32, Some(SINGLE)),
    (DType::F16, Some(HALF)),
    (DType::BF16, Some(BRAIN)),
    (DType::F64, Some(DOUBLE)),
    (DType::I32, None),
    (DType::U32, None),
];

/// To a number instead of a tensor: the least whole ones are products. In all forms, of all dtypes.
fn powers_of_numbers(context: &Context) -> Result<()> {
    const COUNT: usize = 600;
    let device = context.device();
    let bits = Tensor::from_slice(device, &patterns(COUNT), COUNT)?;
    for (dtype, format) in POWERS {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let x = bits.cast(dtype)?;
        let numbers = |tensor: &Tensor| -> Result<Vec<f64>> {
            assert_eq!(tensor.dtype(), dtype);
            tensor.to(&Device::cpu())?.cast(DType::F64)?.to_vec()
        };
        for power in [0, 1, 2, 3, 4, 5] {
            let want = numbers(&x.pow(&Tensor::full(device, [COUNT], power, dtype)?)?)?;
            let written = x.copy()?;
            written.pow_assign(power)?;
            let forms = [
                x.pow(power)?,
                x.pow(f64::from(power))?,
                x.copy()?.into_pow(power)?,
                written,
                fused(|e| e.input(&x).pow(power).mul_add(1, 0))?,
                x.copy()?.into_fused(|_, x| x.pow(power))?,
            ];
            for (form, got) in forms.iter().enumerate() {
                for ((&want, got), x) in want.iter().zip(numbers(got)?).zip(numbers(&x)?) {
                    // Three steps for the power, two for products.
                    let is_right = got == want
                        || format.is_some_and(|format| {
                            format.is_close(want, got, 5.0 * format.ulp(want), !context.is_cpu())
                        });
                    assert!(
                        is_right,
                        "{x:e} to {power}, {dtype}, form {form}: {got:e}, not {want:e}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// A number on the left of `pow`, in all forms, of all dtypes.
fn numbers_to_powers(context: &Context) -> Result<()> {
    let device = context.device();
    for (dtype, format) in POWERS {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        // Held by all floats.
        let broken = (-64..=64).map(|x| f64::from(x) / 8.0);
        let powers: Vec<f64> = match format {
            Some(_) => broken.chain(specials).collect(),
            None => (0..=40).map(f64::from).collect(),
        };
        let count = powers.len();
        let host = Tensor::from_slice(&Device::cpu(), &powers, count)?;
        let x = host.cast(dtype)?.to(device)?;
        let bases: &[f64] = match (format, dtype) {
            (Some(_), _) => &[2.0, 10.0, 0.5, 1.0, 0.0, -2.0, -1.0, 1.5],
            (None, DType::I32) => &[2.0, 3.0, -3.0, 0.0, 1.0, -1.0],
            _ => &[2.0, 3.0, 0.0, 1.0],
        };
        for &base in bases {
            let written = x.copy()?;
            written.fused_assign(|_, x| x.rpow(base))?;
            let forms = [
                x.rpow(base)?,
                fused(|e| e.input(&x).rpow(base))?,
                x.copy()?.into_fused(|_, x| x.rpow(base))?,
                written,
            ];
            for (form, got) in forms.iter().enumerate() {
                assert_eq!(got.dtype(), dtype);
                let got = got.to(&Device::cpu())?.cast(DType::F64)?.to_vec::<f64>()?;
                for (&x, got) in powers.iter().zip(got) {
                    let is_right = match (format, dtype) {
                        (Some(format), _) => {
                            let want = base.powf(x);
                            let bound = 4.0 * format.ulp(want);
                            got == want || format.is_close(want, got, bound, !context.is_cpu())
                        }
                        (None, DType::I32) => {
                            got == f64::from((base as i32).wrapping_pow(x as u32))
                        }
                        _ => got == f64::from((base as u32).wrapping_pow(x as u32)),
                    };
                    assert!(
                        is_right,
                        "{base} to {x}, {dtype}, form {form}: {got:e}, not {:e}",
                        base.powf(x)
                    );
                }
            }
        }
    }
    Ok(())
}

/// Powers anywhere between the least and the largest normal number, of bases where the logarithm has most parts.
fn powers_over_the_range(context: &Context) -> Result<()> {
    use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
    let device = context.device();
    let mut rng = Rng::new(seed());
    let formats = [
        (DType::F32, SINGLE, 125.0),
        (DType::F64, DOUBLE, 1021.0),
        (DType::F16, HALF, 13.0),
        (DType::BF16, BRAIN, 125.0),
    ];
    let count = if context.is_slow() { 999 } else { 30_000 };
    for (dtype, format, furthest) in formats {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let held = |x: Vec<f64>| -> Result<(Tensor, Vec<f64>)> {
            let x = Tensor::from_slice(&Device::cpu(), &x, count)?.cast(dtype)?;
            Ok((x.to(device)?, x.cast(DType::F64)?.to_vec()?))
        };
        let bases = (0..count).map(|at| match at % 3 {
            0 => SQRT_2 * (1.0 + 1e-3 * rng.unit()),
            1 => FRAC_1_SQRT_2 * (1.0 + 1e-3 * rng.unit()),
            _ => 1.5 + 0.4 * rng.unit(),
        });
        let (x, bases) = held(bases.collect())?;
        let powers = bases.iter().map(|x| furthest * rng.unit() / x.log2());
        let (y, powers) = held(powers.collect())?;
        let got = x.pow(&y)?.to(&Device::cpu())?.cast(DType::F64)?;
        for ((x, y), got) in bases.iter().zip(powers).zip(got.to_vec::<f64>()?) {
            let want = x.powf(y);
            let ulps = if dtype == DType::F32 { 3.0 } else { 4.0 };
            let is_right = format.is_close(want, got, ulps * format.ulp(want), !context.is_cpu());
            assert!(is_right, "{x:e} to {y:e}, {dtype}: {got:e}, not {want:e}");
        }
    }
    Ok(())
}

/// Of positive numbers alone, which have a way of their own, and with one that is not among them.
fn powers_of_positive_numbers(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(seed());
    let formats = [
        (DType::F32, SINGLE),
        (DType::F64, DOUBLE),
        (DType::F16, HALF),
        (DType::BF16, BRAIN),
    ];
    for (dtype, format) in formats {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        for count in [1, 63, 64, 65, 129, 1000] {
            for special in [
                None,
                Some(0.0),
                Some(f64::NAN),
                Some(f64::INFINITY),
                Some(-2.0),
            ] {
                let mut x: Vec<f64> = (0..count).map(|_| 0.01 + 4.0 * rng.unit().abs()).collect();
                if let Some(special) = special {
                    x[rng.below(count)] = special;
                }
                let x = Tensor::from_slice(&Device::cpu(), &x, count)?.cast(dtype)?;
                let wide = x.cast(DType::F64)?.to_vec::<f64>()?;
                let x = x.to(device)?;
                // Held by all dtypes.
                for power in [0.5, 2.5, -1.75, 0.0, 7.0] {
                    let got = x.pow(power)?.to(&Device::cpu())?.cast(DType::F64)?;
                    for (&x, got) in wide.iter().zip(got.to_vec::<f64>()?) {
                        let want = x.powf(power);
                        let bound = 4.0 * format.ulp(want);
                        let is_right =
                            got == want || format.is_close(want, got, bound, !context.is_cpu());
                        assert!(
                            is_right,
                            "{x:e} to {power}, {dtype}, of {count}: {got:e}, not {want:e}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// What adapters do with subnormals of f32, as `docs/numerics.md` says it of those that are known.
fn subnormals(context: &Context) -> Result<()> {
    let device = context.device();
    let tiny = 1e-40f32;
    let of = |x: f32| Tensor::from_slice(device, &[x; 8], [8]);
    let (x, normal) = (of(tiny)?, of(1.5e-38)?);
    let cases: [(&str, Tensor, f32); 10] = [
        ("copy", x.copy()?, tiny),
        ("neg", x.neg()?, -tiny),
        ("add", x.add(&x)?, tiny + tiny),
        ("sub to one", normal.sub(&of(1.2e-38)?)?, 1.5e-38 - 1.2e-38),
        ("mul from one", x.mul(&of(1e10)?)?, tiny * 1e10),
        ("mul to one", normal.mul(&of(0.125)?)?, 1.5e-38 * 0.125),
        ("div from one", x.div(&of(1e-10)?)?, tiny / 1e-10),
        ("sqrt", x.sqrt()?, tiny.sqrt()),
        ("log", x.log()?, tiny.ln()),
        ("exp to one", of(-95.0)?.exp()?, (-95f64).exp() as f32),
    ];
    let mut lost = Vec::new();
    for (name, result, want) in cases {
        let got = result.to_vec::<f32>()?;
        // Nothing but the right one and zero.
        let right = got.iter().all(|got| ((got - want) / want).abs() < 1e-3);
        let is_lost = got.iter().all(|&got| got == 0.0);
        assert!(right || is_lost, "{name}: {got:?}, not {want:e}");
        if is_lost {
            lost.push(name);
        }
    }
    // Of hardware nothing is promised, nor of other drivers.
    let keeps = context.is_cpu() || context.adapter.info.driver.contains("Mesa 22.");
    match context.adapter.name.as_str() {
        _ if keeps => assert!(lost.is_empty(), "{lost:?}"),
        "swiftshader" => assert_eq!((lost.len(), lost.contains(&"log")), (8, false), "{lost:?}"),
        _ => {}
    }
    Ok(())
}

fn of_integers(context: &Context) -> Result<()> {
    let device = context.device();
    let values = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        7,
        -7,
        10,
        31,
        65_536,
        i32::MAX,
        i32::MIN,
        i32::MIN + 1,
    ];
    let grid = |of: fn(usize) -> usize| (0..196).map(|at| values[of(at)]).collect::<Vec<i32>>();
    let (x, y) = (grid(|at| at / 14), grid(|at| at % 14));
    let a = Tensor::from_slice(device, &x, x.len())?;
    let b = Tensor::from_slice(device, &y, y.len())?;
    let power = |x: i32, y: i32| match y {
        y if y >= 0 => x.wrapping_pow(y as u32),
        _ => match x {
            1 => 1,
            -1 if y % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        },
    };
    let is = |got: Tensor, want: &dyn Fn(i32, i32) -> i32, name: &str| -> Result<()> {
        for ((&x, &y), got) in x.iter().zip(&y).zip(got.to_vec::<i32>()?) {
            assert_eq!(got, want(x, y), "{name} of {x} and {y}");
        }
        Ok(())
    };
    is(
        a.rem(&b)?,
        &|x, y| if y == 0 { 0 } else { x.wrapping_rem(y) },
        "rem",
    )?;
    is(a.pow(&b)?, &power, "pow")?;
    is(a.minimum(&b)?, &i32::min, "minimum")?;
    is(a.maximum(&b)?, &i32::max, "maximum")?;
    is(a.neg()?, &|x, _| x.wrapping_neg(), "neg")?;
    is(a.abs()?, &|x, _| x.wrapping_abs(), "abs")?;
    is(a.sign()?, &|x, _| x.signum(), "sign")?;
    is(a.square()?, &|x, _| x.wrapping_mul(x), "square")?;
    is(a.relu()?, &|x, _| x.max(0), "relu")?;
    is(a.clamp(-5, 9)?, &|x, _| x.clamp(-5, 9), "clamp")?;
    is(a.bitwise_and(&b)?, &|x, y| x & y, "bitwise_and")?;
    is(a.bitwise_or(&b)?, &|x, y| x | y, "bitwise_or")?;
    is(a.bitwise_xor(&b)?, &|x, y| x ^ y, "bitwise_xor")?;
    is(a.bitwise_not()?, &|x, _| !x, "bitwise_not")?;
    let amounts = [0, 1, 4, 7, 15, 16, 30, 31, 32, 33, 64, -1, -31, i32::MIN];
    let by: Vec<i32> = (0..196).map(|at| amounts[at % 14]).collect();
    // More than all bits where it is not one of them.
    let bits = |y: i32| if (0..32).contains(&y) { y } else { 40 };
    let is_by = |got: Tensor, want: &dyn Fn(i64, i32) -> i64, name: &str| -> Result<()> {
        for ((&x, &y), got) in x
            .iter()
            .zip(&by)
            .zip(got.cast(DType::I32)?.to_vec::<i32>()?)
        {
            assert_eq!(got, want(x.into(), bits(y)) as i32, "{name} of {x} by {y}");
        }
        Ok(())
    };
    let places = Tensor::from_slice(device, &by, by.len())?;
    is_by(a.shift_left(&places)?, &|x, y| x << y, "shift_left")?;
    is_by(a.shift_right(&places)?, &|x, y| x >> y, "shift_right")?;
    is(a.shift_right(4)?, &|x, _| x >> 4, "shift_right by 4")?;
    let (bare, bare_places) = (a.cast(DType::U32)?, places.cast(DType::U32)?);
    let left = bare.shift_left(&bare_places)?;
    is_by(left, &|x, y| x << y, "shift_left of u32")?;
    let right = bare.shift_right(&bare_places)?;
    is_by(
        right,
        &|x, y| i64::from(x as u32) >> y,
        "shift_right of u32",
    )?;
    let refused = |dtype| a.cast(dtype)?.bitwise_not();
    let text = |dtype| refused(dtype).expect_err("no integers").to_string();
    let told = "bitwise_not: takes integers, not ";
    assert_eq!(text(DType::F32), format!("{told}f32: cast first"));
    let bool = format!("{told}bool: `logical_and` and its like take it");
    assert_eq!(text(DType::Bool), bool);
    is(
        a.mul_add(&b, 3)?,
        &|x, y| x.wrapping_mul(y).wrapping_add(3),
        "mul_add",
    )?;
    let (a, b) = (a.cast(DType::U32)?, b.cast(DType::U32)?);
    let is = |got: Tensor, want: &dyn Fn(u32, u32) -> u32, name: &str| -> Result<()> {
        for ((&x, &y), got) in x.iter().zip(&y).zip(got.to_vec::<u32>()?) {
            assert_eq!(got, want(x as u32, y as u32), "{name} of {x} and {y}");
        }
        Ok(())
    };
    is(a.rem(&b)?, &|x, y| x.checked_rem(y).unwrap_or(0), "rem")?;
    is(a.pow(&b)?, &u32::wrapping_pow, "pow")?;
    is(a.maximum(&b)?, &u32::max, "maximum")?;
    is(a.neg()?, &|x, _| x.wrapping_neg(), "neg")?;
    is(a.sign()?, &|x, _| x.min(1), "sign")?;
    is(a.bitwise_and(&b)?, &|x, y| x & y, "bitwise_and")?;
    is(a.bitwise_or(&b)?, &|x, y| x | y, "bitwise_or")?;
    is(a.bitwise_xor(&b)?, &|x, y| x ^ y, "bitwise_xor")?;
    is(a.bitwise_not()?, &|x, _| !x, "bitwise_not")?;
    is(a.clamp(2, 9)?, &|x, _| x.clamp(2, 9), "clamp")
}

/// Bools of every length, through views, to and from the host.
fn bools(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(seed());
    for length in [1, 2, 3, 4, 5, 7, 8, 31, 64, 257, 5000] {
        let mut make = || (0..length).map(|_| rng.one_in(2)).collect::<Vec<bool>>();
        let (x, y) = (make(), make());
        let a = Tensor::from_slice(device, &x, length)?;
        let b = Tensor::from_slice(device, &y, length)?;
        assert_eq!(a.to_vec::<bool>()?, x);
        let mut read = vec![false; length];
        a.read_into(&mut read)?;
        assert_eq!(read, x);
        for from in [0, 1, 3].into_iter().filter(|&from| from < length) {
            let (a, b) = (a.slice(from..)?, b.slice(from..)?);
            let (x, y) = (&x[from..], &y[from..]);
            let is = |got: Result<Tensor>, want: fn(bool, bool) -> bool| -> Result<()> {
                let want: Vec<bool> = x.iter().zip(y).map(|(&x, &y)| want(x, y)).collect();
                assert_eq!(got?.to_vec::<bool>()?, want);
                Ok(())
            };
            is(a.logical_and(&b), |x, y| x & y)?;
            is(a.logical_or(&b), |x, y| x | y)?;
            is(a.logical_xor(&b), |x, y| x ^ y)?;
            is(a.logical_not(), |x, _| !x)?;
            is(a.eq(&b), |x, y| x == y)?;
            is(a.ne(&b), |x, y| x != y)?;
            is(a.lt(&b), |x, y| !x & y)?;
            is(a.ge(&b), |x, y| x | !y)?;
            is(a.logical_or(true), |_, _| true)?;
            is(a.copy(), |x, _| x)?;
            is(a.cast(DType::F16)?.cast(DType::Bool), |x, _| x)?;
            is(a.cast(DType::U32)?.cast(DType::Bool), |x, _| x)?;
        }
    }
    let a = Tensor::full(device, [6, 5], true, DType::Bool)?;
    a.slice((1..4, 2..3))?.fill(false)?;
    let got = a.transpose(0, 1)?.contiguous()?.to_vec::<bool>()?;
    let want = |at: usize| !(at / 6 == 2 && (1..4).contains(&(at % 6)));
    assert!(got.iter().enumerate().all(|(at, &got)| got == want(at)));
    assert!(a.add(&a).is_err() && a.exp().is_err() && a.neg().is_err());
    assert!(Tensor::full(device, 2, 2, DType::Bool).is_err());
    Ok(())
}

/// Into the tensor's own memory, and nothing beside it changes.
fn in_place(context: &Context) -> Result<()> {
    // Its own, whose memory no other test takes.
    let device = &context.open();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::F64] {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let x: Vec<f32> = (0..120).map(|at| (at % 17) as f32 - 4.0).collect();
        let of = |shape: &[usize]| -> Result<Tensor> {
            Tensor::from_slice(device, &x, shape)?.cast(dtype)?.copy()
        };
        let read = |tensor: &Tensor| tensor.cast(DType::F32)?.to_vec::<f32>();
        let whole = of(&[10, 12])?;
        let before = device.memory().allocated;
        whole.add_assign(3)?;
        whole.mul_assign(&whole)?;
        assert!(device.memory().allocated <= before, "nothing is taken");
        let mut want: Vec<f32> = x.iter().map(|x| (x + 3.0) * (x + 3.0)).collect();
        assert_eq!(read(&whole)?, want, "{dtype}");
        // Views at odd places, turned round, a row at a time.
        let view = whole.slice((2..9, 1..12))?.transpose(0, 1)?;
        let row = Tensor::from_slice(device, &x[..7], 7)?.cast(dtype)?;
        view.sub_assign(&row)?;
        for (at, want) in want.iter_mut().enumerate() {
            let (i, j) = (at / 12, at % 12);
            if (2..9).contains(&i) && j >= 1 {
                *want -= x[i - 2];
            }
        }
        assert_eq!(read(&whole)?, want, "{dtype}");
        whole.slice((.., 3..4))?.maximum_assign(100)?;
        for want in want.iter_mut().skip(3).step_by(12) {
            *want = want.max(100.0);
        }
        assert_eq!(read(&whole)?, want, "{dtype}");
    }
    // What kernels have no f64 of: there and back.
    if device.capabilities().holds(DType::F64) {
        let x = Tensor::from_slice(device, &[1.0f64, 2.0, 3.0, 4.0, 5.0], 5)?;
        x.slice(1..4)?.pow_assign(2)?;
        assert_eq!(x.to_vec::<f64>()?, [1.0, 4.0, 9.0, 16.0, 5.0]);
    }
    Ok(())
}

/// Arguments that lie in the memory that is written; failed calls.
fn overlaps(context: &Context) -> Result<()> {
    let device = context.device();
    let x: Vec<f32> = (0..49).map(|at| at as f32).collect();
    let a = Tensor::from_slice(device, &x, [7, 7])?;
    a.add_assign(&a.transpose(0, 1)?)?;
    let want = |at: usize| (at + at % 7 * 7 + at / 7) as f32;
    assert!(
        a.to_vec::<f32>()?
            .iter()
            .enumerate()
            .all(|(at, &got)| got == want(at))
    );
    // The other way round, with enough to have an order of its own; flipped.
    let large: Vec<f32> = (0..90_000).map(|at| (at * 7 % 1000) as f32).collect();
    let views: [fn(&Tensor) -> Result<Tensor>; 3] = [
        |x| x.transpose(0, 1),
        |x| x.flip(&[0]),
        |x| x.flip(&[0, 1])?.transpose(0, 1),
    ];
    for view in views {
        let a = Tensor::from_slice(device, &large, [300, 300])?;
        let want = view(&a)?.add(&a)?.to_vec::<f32>()?;
        view(&a)?.add_assign(&a)?;
        assert!(view(&a)?.to_vec::<f32>()? == want);
        let a = Tensor::from_slice(device, &large, [300, 300])?;
        view(&a)?.fused_assign(|e, x| e.input(&a) + x)?;
        assert!(view(&a)?.to_vec::<f32>()? == want);
    }
    // What is taken from itself: no compiler may make 0 of it.
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let odd = [f32::NAN, 1.0, f32::INFINITY, -2.5, f32::NEG_INFINITY];
        let x = Tensor::from_slice(device, &odd, 5)?.cast(dtype)?;
        for none in [x.sub(&x)?, x.sub(&x.slice(..)?)?, {
            x.sub_assign(&x)?;
            x.clone()
        }] {
            let got = none.cast(DType::F32)?.to_vec::<f32>()?;
            let is_zero = |at: usize| got[at] == 0.0;
            assert!(
                got[0].is_nan() && got[2].is_nan() && got[4].is_nan() && is_zero(1) && is_zero(3)
            );
        }
    }
    let line = Tensor::from_slice(device, &x, 49)?;
    line.slice(1..)?.add_assign(&line.slice(..48)?)?;
    let got = line.to_vec::<f32>()?;
    assert!((1..49).all(|at| got[at] == (2 * at - 1) as f32), "{got:?}");
    let before = line.to_vec::<f32>()?;
    let repeated = Tensor::from_slice(device, &[1.0f32], 1)?.broadcast_to([4])?;
    assert!(matches!(
        repeated.add_assign(1),
        Err(Error::InvalidArgument(_))
    ));
    assert!(matches!(line.add_assign(&a), Err(Error::ShapeMismatch(_))));
    let one = Tensor::from_slice(device, &[1.0f32], 1)?;
    assert!(matches!(
        one.add_assign(&line),
        Err(Error::ShapeMismatch(_))
    ));
    assert!(matches!(
        line.add_assign(&line.cast(DType::I32)?),
        Err(Error::DTypeMismatch(_))
    ));
    assert!(line.cast(DType::I32)?.add_assign(0.5).is_err());
    assert_eq!(line.to_vec::<f32>()?, before);
    Ok(())
}

/// What the memory held is read where it is overwritten, once or several times, by what is one loop and what is several,
/// with whole inputs, rows and columns: the bits that it gives elsewhere.
fn overwritten(context: &Context) -> Result<()> {
    let device = context.device();
    let mut shapes = vec![[1, 7], [3, 31], [2, 130]];
    if !context.is_slow() {
        let more = [
            [1, 1],
            [7, 16],
            [1, 129],
            [2, 1025],
            [1, 70_001],
            [300, 257],
        ];
        shapes.extend(more);
    }
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32] {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        for &[rows, columns] in &shapes {
            let of = |rows: usize, columns: usize, salt: usize| -> Result<Tensor> {
                let value = |at: usize| ((at * 37 + salt) % 101) as f32 - 50.0;
                let values: Vec<f32> = (0..rows * columns).map(value).collect();
                Tensor::from_slice(device, &values, [rows, columns])?
                    .cast(dtype)?
                    .copy()
            };
            let base = of(rows + 2, columns + 3, 5)?;
            let part = |x: &Tensor, first| x.slice((1..rows + 1, first..first + columns));
            let view = |x: &Tensor, which: usize| match which {
                0 => part(x, 0)?.copy(),
                1 => part(x, 2),
                _ => part(x, 1)?.flip(&[1]),
            };
            for which in 0..3 {
                for (m, n) in [(rows, columns), (1, columns), (rows, 1)] {
                    let other = of(m, n, 11)?;
                    let fresh = view(&base, which)?;
                    let give = |what: usize, into: &Tensor| match what {
                        0 => into.add_assign(&other),
                        1 => into.fused_assign(|e, x| (e.input(&other) - x * 2) * x + x),
                        2 => into.fused_assign(|e, x| x.maximum(e.input(&other)) - 3),
                        _ => into.fused_assign(|e, x| (x * x).minimum(7) + (e.input(&other) - x)),
                    };
                    for what in 0..4 {
                        let want = orlop::fused(|e| {
                            let (x, other) = (e.input(&fresh), e.input(&other));
                            match what {
                                0 => x + other,
                                1 => (other - x * 2) * x + x,
                                2 => x.maximum(other) - 3,
                                _ => (x * x).minimum(7) + (other - x),
                            }
                        })?;
                        let whole = base.copy()?;
                        let into = view(&whole, which)?;
                        give(what, &into)?;
                        let is_same = into.eq(&want)?.all(..)?.item::<bool>()?;
                        assert!(is_same, "{what} of {into:?} and {other:?}");
                        // Nothing beside it.
                        let changed = base.ne(&whole)?.sum(..)?.item::<u32>()?;
                        assert!(changed as usize <= rows * columns, "{what} of {into:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Memory is taken over where nobody else holds it.
fn take_over(context: &Context) -> Result<()> {
    let device = context.open();
    let x: Vec<f32> = (0..1000).map(|at| at as f32).collect();
    let a = Tensor::from_slice(&device, &x, 1000)?;
    let allocations = || device.memory().counts.blocks.allocated;
    let before = allocations();
    let a = a.into_add(1)?.into_mul(2)?;
    assert_eq!(allocations(), before, "the same memory");
    let other = a.clone();
    let b = a.into_sub(2)?;
    assert!(allocations() > before && !b.shares_storage(&other));
    assert!(
        b.to_vec::<f32>()?
            .iter()
            .zip(&x)
            .all(|(&got, &x)| got == 2.0 * x)
    );
    assert!(
        other
            .to_vec::<f32>()?
            .iter()
            .zip(&x)
            .all(|(&got, &x)| got == 2.0 * x + 2.0)
    );
    // A result of another shape has memory of its own.
    let wide = b.into_add(&Tensor::ones(&device, [3, 1], DType::F32)?)?;
    assert_eq!(wide.shape(), &[3, 1000]);
    Ok(())
}

fn fusions(context: &Context) -> Result<()> {
    let device = context.device();
    let x: Vec<f32> = (0..600).map(|at| at as f32 / 100.0 - 3.0).collect();
    let a = Tensor::from_slice(device, &x, [20, 30])?;
    let bias = Tensor::from_slice(device, &x[..30], 30)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (a, bias) = (a.cast(dtype)?, bias.cast(dtype)?);
        let read = |tensor: &Tensor| tensor.cast(DType::F32)?.to_vec::<f32>();
        let bound = match dtype {
            DType::F32 => 2e-6,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        for turned in [false, true] {
            let a = if turned {
                a.reshape([30, 20])?.transpose(0, 1)?
            } else {
                a.clone()
            };
            let x = read(&a)?;
            let b = read(&bias)?;
            let y = fused(|e| {
                let (a, bias) = (e.input(&a), e.input(&bias));
                let y = (2.0 * a + bias).tanh();
                let y = a.gt(0.5).select(y, y * y - 1.0);
                y.mul_add(a.exp(), 0.25).maximum(-0.5) / 3
            })?;
            assert_eq!((y.dtype(), y.device()), (dtype, device));
            for (at, got) in read(&y)?.into_iter().enumerate() {
                let (x, b) = (f64::from(x[at]), f64::from(b[at % 30]));
                let y = (2.0 * x + b).tanh();
                let y = if x > 0.5 { y } else { y * y - 1.0 };
                let want = (y * x.exp() + 0.25).max(-0.5) / 3.0;
                let error = (f64::from(got) - want).abs();
                assert!(
                    error <= bound * want.abs().max(0.1),
                    "{dtype} element {at}: {got}, not {want}"
                );
            }
        }
    }
    let mask = fused(|e| e.input(&a).is_finite().logical_and(e.input(&bias).lt(0)))?;
    assert_eq!(mask.dtype(), DType::Bool);
    let got = mask.to_vec::<bool>()?;
    assert!((0..600).all(|at| got[at] == (x[at % 30] < 0.0)));
    // The input itself, a conversion, a number twice.
    assert_eq!(fused(|e| e.input(&a))?.to_vec::<f32>()?, x);
    let named = fused(|e| {
        e.input(&a)
            .add(1.5)
            .mul(e.input(&a))
            .sub(2)
            .div(3)
            .rem(4)
            .neg()
    })?;
    let signs = fused(|e| -(((e.input(&a) + 1.5) * e.input(&a) - 2) / 3 % 4))?;
    assert!(
        named
            .ne(&signs)?
            .logical_and(&named.is_finite()?)?
            .sum(..)?
            .item::<u32>()?
            == 0
    );
    let whole = fused(|e| e.input(&a).cast(DType::I32) + 1)?.to_vec::<i32>()?;
    assert!(whole.iter().zip(&x).all(|(&got, &x)| got == x as i32 + 1));
    // f64 in between, with numbers: f32 would lose them.
    let wide = fused(|e| ((e.input(&a).cast(DType::F64) + 1e9 - 1e9) * 0.1).cast(DType::F32))?;
    let is_near = |(got, &x): (f32, &f32)| (f64::from(got) - f64::from(x) * 0.1).abs() < 1e-6;
    assert!(wide.to_vec::<f32>()?.into_iter().zip(&x).all(is_near));
    // Rounded on the way, to f32 and from integers.
    let tenth = Tensor::from_slice(device, &[0.1f64, -0.1, 3.0], [3])?;
    let on_the_way = fused(|e| e.input(&tenth).cast(DType::F32).cast(DType::F64))?;
    let want = [0.1f32, -0.1, 3.0].map(f64::from);
    assert_eq!(on_the_way.to_vec::<f64>()?, want);
    let odd = Tensor::from_slice(device, &[16_777_217i32, -16_777_217, 5], [3])?;
    let on_the_way = fused(|e| e.input(&odd).cast(DType::F32).cast(DType::F64))?;
    assert_eq!(
        on_the_way.to_vec::<f64>()?,
        [16_777_216.0, -16_777_216.0, 5.0]
    );
    let below = fused(|e| e.input(&a).cast(DType::F64).lt(0.1))?.to_vec::<bool>()?;
    assert!(
        below
            .iter()
            .zip(&x)
            .all(|(&got, &x)| got == (f64::from(x) < 0.1))
    );
    let same = fused(|e| e.input(&a).cast(DType::F64).cast(DType::F32))?;
    assert_eq!(same.to_vec::<f32>()?, x);
    // What is computed of halves is rounded where it is said, also to what they are.
    let large = Tensor::full(device, [70], 60_000.0, DType::F16)?;
    let rounded = fused(|e| (e.input(&large) * 2).cast(DType::F16) * 0.5)?;
    let rounded = rounded.cast(DType::F32)?.to_vec::<f32>()?;
    assert!(rounded.iter().all(|&x| x == f32::INFINITY));
    let fine = Tensor::full(device, [70], 1.0078125, DType::BF16)?;
    let rounded = fused(|e| (e.input(&fine) + 0.001).cast(DType::BF16) * 1)?;
    let rounded = rounded.cast(DType::F32)?.to_vec::<f32>()?;
    assert!(rounded.iter().all(|&x| x == 1.0078125));
    let turned = a.copy()?;
    turned.fused_assign(|_, x| (x.cast(DType::F64) * 0.5).cast(DType::F32))?;
    assert!(
        turned
            .to_vec::<f32>()?
            .iter()
            .zip(&x)
            .all(|(&got, &x)| got == x * 0.5)
    );
    // What the result does not come from: neither its shape nor what is wrong with it.
    let alone = fused(|e| {
        let (x, other) = (e.input(&bias), e.input(&a).logical_not() + 2.5);
        let _ = other.exp();
        x * 1.0
    })?;
    assert_eq!(alone.to_vec::<f32>()?, x[..30]);
    // As many values as there may be, and more.
    let chain = |count: usize| fused(|e| (0..count).fold(e.input(&bias), |y, _| y + 1.0));
    let got = chain(60)?.to_vec::<f32>()?;
    assert!(
        got.iter()
            .zip(&x)
            .all(|(&got, &x)| (got - x - 60.0).abs() < 1e-4)
    );
    assert!(chain(100).is_err() && chain(300).is_err());
    assert!(fused(|e| e.input(&a) + e.input(&mask)).is_err());
    // A value of one expression in another.
    let strange = fused(|e| {
        let x = e.input(&a);
        let inner = fused(|other| {
            let y = other.input(&bias);
            let _ = x + y.exp().log().sqrt();
            y
        });
        assert!(inner.is_ok());
        x.exp()
    });
    assert!(
        matches!(strange, Err(Error::InvalidArgument(_))),
        "{strange:?}"
    );
    // The last batch may be empty.
    for shape in [&[0, 2][..], &[4, 0, 12, 2], &[0]] {
        let none = Tensor::zeros(context.device(), shape, DType::F32)?;
        none.add_assign(1.0)?;
        none.fused_assign(|_, x| x.exp())?;
        none.assign(&none.copy()?)?;
        assert_eq!(none.into_add(1.0)?.shape().dims(), shape);
    }
    Ok(())
}

/// More functions of dozens of instructions than kernels have several copies of: new, through strides and in place.
fn long_fusions(context: &Context) -> Result<()> {
    let device = context.device();
    let x: Vec<f32> = (0..1155).map(|at| at as f32 / 200.0 - 3.0).collect();
    let want = |x: f32| {
        let x = f64::from(x);
        (0..3).fold(x, |y, _| ((y * 0.5).sin() + 0.3 * x).tanh())
    };
    for (dtype, bound) in [(DType::F32, 2e-6), (DType::F16, 1e-3)] {
        let a = Tensor::from_slice(device, &x, [33, 35])?.cast(dtype)?;
        let read = |tensor: &Tensor| tensor.cast(DType::F32)?.to_vec::<f32>();
        let check = |x: &[f32], got: &[f32]| {
            for (&x, &got) in x.iter().zip(got) {
                let error = (f64::from(got) - want(x)).abs();
                assert!(error <= bound, "{dtype} of {x}: {got}, not {}", want(x));
            }
        };
        for view in [a.clone(), a.transpose(0, 1)?, a.slice((.., 1..34))?] {
            let y = fused(|e| {
                let x = e.input(&view);
                (0..3).fold(x, |y, _| ((y * 0.5).sin() + x * 0.3).tanh())
            })?;
            check(&read(&view)?, &read(&y)?);
        }
        let old = read(&a)?;
        a.slice((.., 1..34))?
            .fused_assign(|_, x| (0..3).fold(x, |y, _| ((y * 0.5).sin() + x * 0.3).tanh()))?;
        for (row, old) in read(&a)?.chunks(35).zip(old.chunks(35)) {
            assert_eq!((row[0], row[34]), (old[0], old[34]));
            check(&old[1..34], &row[1..34]);
        }
    }
    Ok(())
}

/// Plain functions in all places of their operands, of lengths around the CPU's vectors, NaN and infinities
/// among them.
fn chains(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(seed());
    let dtypes = [
        (DType::F32, 2e-4),
        (DType::F64, 1e-9),
        (DType::F16, 2e-3),
        (DType::BF16, 6e-3),
    ];
    let counts = [1, 7, 63, 64, 65, 127, 128, 129, 1023, 1025, 20_000];
    for (count, (dtype, bound)) in counts
        .into_iter()
        .flat_map(|count| dtypes.map(|dtype| (count, dtype)))
    {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        // Held by all dtypes.
        let mut number = || (rng.below(257) as f32 - 128.0) / 32.0;
        let (mut x, y): (Vec<f32>, Vec<f32>) = (0..count).map(|_| (number(), number())).unzip();
        for (at, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0]
            .into_iter()
            .enumerate()
        {
            if count > 100 {
                x[at * count / 4 + 3] = special;
            }
        }
        let (a, b) = (
            Tensor::from_slice(device, &x, count)?.cast(dtype)?,
            Tensor::from_slice(device, &y, count)?.cast(dtype)?,
        );
        let one = Tensor::from_slice(device, &[0.75f32], 1)?.cast(dtype)?;
        let got = fused(|e| {
            let (x, y, one) = (e.input(&a), e.input(&b), e.input(&one));
            let z = -((3.0 - x) * y).maximum(x).minimum(2.5);
            let z = (z.abs() + 0.5).sqrt().recip().mul_add(y, x);
            let z = x.mul_add(z, 0.25).clamp(-4.0, 4.0).square() - one;
            let z = z.leaky_relu(0.5).sign() + z;
            let z = y.minimum(z).maximum(y - 1.0).relu() - z;
            2.0 / (z * z + 1.0).rsqrt()
        })?;
        let got = got.to(&Device::cpu())?.cast(DType::F64)?.to_vec::<f64>()?;
        for (at, got) in got.into_iter().enumerate() {
            let (x, y) = (f64::from(x[at]), f64::from(y[at]));
            let with_nan = |a: f64, b: f64, c: f64| match a.is_nan() || b.is_nan() {
                true => f64::NAN,
                false => c,
            };
            let max = |a: f64, b: f64| with_nan(a, b, a.max(b));
            let min = |a: f64, b: f64| with_nan(a, b, a.min(b));
            let z = -min(max((3.0 - x) * y, x), 2.5);
            let z = 1.0 / (z.abs() + 0.5).sqrt() * y + x;
            let z = (x * z + 0.25).clamp(-4.0, 4.0).powi(2) - 0.75;
            let leaky = if z < 0.0 { 0.5 * z } else { z };
            let sign = if leaky == 0.0 { 0.0 } else { leaky.signum() };
            let z = sign + z;
            let z = max(max(min(y, z), y - 1.0), 0.0) - z;
            let want = 2.0 * (z * z + 1.0).sqrt();
            let is_near = (got - want).abs() <= bound * want.abs().max(1.0);
            // Its sign is that of a rounding.
            let is_doubtful = leaky.abs() < 1e-4;
            assert!(
                is_near || is_doubtful || (got.is_nan() && want.is_nan()),
                "{dtype}, {count}, element {at} of x {x}, y {y}: {got}, not {want}"
            );
        }
    }
    Ok(())
}

/// Each function of one operand in place: the same numbers, in the same memory.
fn fused_in_place(context: &Context) -> Result<()> {
    let device = context.open();
    let values: Vec<f32> = (0..3000).map(|at| at as f32 / 300.0 - 4.0).collect();
    let x = Tensor::from_slice(&device, &values, [30, 100])?;
    macro_rules! each {
        ($($method:ident)*) => {
            [$((
                stringify!($method),
                Tensor::$method as fn(&Tensor) -> Result<Tensor>,
                (|x: &Tensor| x.fused_assign(|_, x| x.$method())) as fn(&Tensor) -> Result<()>,
            )),*]
        };
    }
    let all = each!(
        neg abs sign square relu recip sqrt rsqrt floor ceil round trunc exp exp2 expm1 log log2
        log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh sigmoid erf gelu gelu_tanh silu softplus
    );
    let is_same = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs() || a == b || (a.is_nan() && b.is_nan()))
    };
    let allocations = || device.memory().counts.blocks.allocated;
    for (name, function, assign) in all {
        let want = function(&x)?.to_vec::<f32>()?;
        let y = x.copy()?;
        let before = allocations();
        assign(&y)?;
        assert_eq!(allocations(), before, "{name}: memory of its own");
        assert!(is_same(&y.to_vec::<f32>()?, &want), "{name}");
        // A part of it, through strides.
        let z = x.copy()?;
        assign(&z.transpose(0, 1)?.slice((10..60, ..))?)?;
        let (part, old) = (z.to_vec::<f32>()?, &values);
        for at in 0..3000 {
            let is_inside = (10..60).contains(&(at % 100));
            let want = if is_inside { want[at] } else { old[at] };
            assert!(is_same(&part[at..=at], &[want]), "{name}, element {at}");
        }
    }
    // Taken over, unless somebody else holds it or the result is another dtype.
    let y = x.copy()?;
    let before = allocations();
    let y = y.into_fused(|_, x| x.abs().sqrt() * 2.0)?;
    assert_eq!(allocations(), before);
    let want: Vec<f32> = values.iter().map(|x| x.abs().sqrt() * 2.0).collect();
    assert!(is_same(&y.to_vec::<f32>()?, &want));
    let held = y.clone();
    let z = y.into_fused(|e, x| x + e.input(&held))?;
    assert!(allocations() > before && !z.shares_storage(&held));
    assert!(is_same(&held.to_vec::<f32>()?, &want));
    let mask = z.into_fused(|_, x| x.gt(1.0))?;
    assert_eq!(mask.dtype(), DType::Bool);
    let refused = held.fused_assign(|_, x| x.gt(1.0));
    // Bool in the memory of f32.
    assert!(
        matches!(refused, Err(Error::DTypeMismatch(_))),
        "{refused:?}"
    );
    let wide = Tensor::ones(&device, [2, 30, 100], DType::F32)?;
    assert!(held.fused_assign(|e, x| x + e.input(&wide)).is_err());
    assert!(is_same(&held.to_vec::<f32>()?, &want), "nothing is written");
    let grown = held.into_fused(|e, x| x + e.input(&wide))?;
    assert_eq!(grown.shape(), &[2, 30, 100]);
    Ok(())
}

fn refuses(context: &Context) -> Result<()> {
    let device = context.device();
    let whole = Tensor::ones(device, 4, DType::I32)?;
    for refused in [
        whole.exp(),
        whole.sqrt(),
        whole.is_nan(),
        whole.logical_not(),
        whole.add(0.5),
    ] {
        let error = refused.expect_err("no meaning");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    // Powers by products are refused as what was asked for.
    let mask = &whole.gt(0)?;
    for power in [2, 3, 4, 5] {
        for refused in [
            mask.pow(power),
            mask.pow(f64::from(power)),
            mask.copy()?.into_pow(power),
            mask.pow_assign(power).map(|()| mask.clone()),
            fused(|e| e.input(mask).pow(power)),
            fused(|e| (e.input(&whole).lt(3)).logical_not().pow(power)),
            fused(|e| e.input(&whole).cast(DType::Bool).pow(power)),
            mask.copy()?.into_fused(|_, x| x.pow(power)),
            mask.fused_assign(|_, x| x.pow(power))
                .map(|()| mask.clone()),
        ] {
            let error = refused.expect_err("no power").to_string();
            assert!(
                error.starts_with("pow") || error.contains("pow takes"),
                "{error}"
            );
            assert!(error.contains("takes numbers, not bool"), "{error}");
        }
    }
    let floats = Tensor::ones(device, 4, DType::F32)?;
    assert!(matches!(whole.eq(&floats), Err(Error::DTypeMismatch(_))));
    assert!(matches!(
        floats.maximum(&Tensor::ones(device, 3, DType::F32)?),
        Err(Error::ShapeMismatch(_))
    ));
    Ok(())
}
