//! The functions of elementwise expressions on the CPU: one loop each over the values of a block.

use bytemuck::Pod;

use super::function::{Function, Kind};
use super::real::{Real, Whole};

/// Values are whole arrays of a kind, as many as `out` has.
pub(super) fn apply(function: Function, kind: Kind, values: [&[u8]; 3], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        // The widest vectors where loops are long enough to gain by them.
        if let (Kind::F32, Some(simd)) = (kind, pulp::x86::V4::try_new()) {
            return pulp::Simd::vectorize(
                simd,
                #[inline(always)]
                || real::<f32, true>(function, values, out),
            );
        }
        if let Some(simd) = pulp::x86::V3::try_new() {
            return pulp::Simd::vectorize(
                simd,
                #[inline(always)]
                || of_kind::<true>(function, kind, values, out),
            );
        }
    }
    of_kind::<{ cfg!(target_arch = "aarch64") }>(function, kind, values, out);
}

#[inline(always)]
fn of_kind<const FUSED: bool>(function: Function, kind: Kind, values: [&[u8]; 3], out: &mut [u8]) {
    match kind {
        Kind::F32 => real::<f32, FUSED>(function, values, out),
        Kind::F64 => real::<f64, FUSED>(function, values, out),
        Kind::I32 => whole::<i32>(function, values, out),
        Kind::U32 => whole::<u32>(function, values, out),
        Kind::Bool => bools(function, values, out),
    }
}

#[inline(always)]
fn one<A: Pod, R: Pod>(values: [&[u8]; 3], out: &mut [u8], f: impl Fn(A) -> R) {
    let a: &[A] = bytemuck::cast_slice(values[0]);
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    for (out, &a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
}

#[inline(always)]
fn two<A: Pod, R: Pod>(values: [&[u8]; 3], out: &mut [u8], f: impl Fn(A, A) -> R) {
    let (a, b): (&[A], &[A]) = (
        bytemuck::cast_slice(values[0]),
        bytemuck::cast_slice(values[1]),
    );
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}

#[inline(always)]
fn three<C: Pod, A: Pod>(values: [&[u8]; 3], out: &mut [u8], f: impl Fn(C, A, A) -> A) {
    let c: &[C] = bytemuck::cast_slice(values[0]);
    let (a, b): (&[A], &[A]) = (
        bytemuck::cast_slice(values[1]),
        bytemuck::cast_slice(values[2]),
    );
    let out: &mut [A] = bytemuck::cast_slice_mut(out);
    for (((out, &c), &a), &b) in out.iter_mut().zip(c).zip(a).zip(b) {
        *out = f(c, a, b);
    }
}

#[inline(always)]
fn select<A: Pod>(values: [&[u8]; 3], out: &mut [u8]) {
    three::<u8, A>(values, out, |c, a, b| if c != 0 { a } else { b });
}

#[inline(always)]
fn compare<A: Pod>(values: [&[u8]; 3], out: &mut [u8], f: impl Fn(&A, &A) -> bool) {
    two::<A, u8>(values, out, |a, b| u8::from(f(&a, &b)));
}

/// Where a function has nothing to do with a kind: its rule has refused it.
fn never() {}

#[inline(always)]
fn real<T: Real, const FUSED: bool>(function: Function, values: [&[u8]; 3], out: &mut [u8]) {
    match function {
        Function::Add => two::<T, T>(values, out, |a, b| a + b),
        Function::Sub => two::<T, T>(values, out, |a, b| a - b),
        Function::Mul => two::<T, T>(values, out, |a, b| a * b),
        Function::Div => two::<T, T>(values, out, |a, b| a / b),
        Function::Rem => two::<T, T>(values, out, |a, b| a % b),
        Function::Pow => two::<T, T>(values, out, T::pow),
        Function::Min => two::<T, T>(values, out, T::least),
        Function::Max => two::<T, T>(values, out, T::greatest),
        Function::MulAdd => three::<T, T>(values, out, |a, b, c| a * b + c),
        Function::Clamp => three::<T, T>(values, out, T::clamp),
        Function::Neg => one::<T, T>(values, out, |a| -a),
        Function::Abs => one::<T, T>(values, out, T::abs),
        Function::Sign => one::<T, T>(values, out, T::sign),
        Function::Square => one::<T, T>(values, out, |a| a * a),
        // NaN stays.
        Function::Relu => one::<T, T>(values, out, |a| if a < T::ZERO { T::ZERO } else { a }),
        Function::LeakyRelu => {
            two::<T, T>(
                values,
                out,
                |a, slope| if a < T::ZERO { a * slope } else { a },
            );
        }
        Function::Recip => one::<T, T>(values, out, |a| T::ONE / a),
        Function::Sqrt => one::<T, T>(values, out, T::sqrt),
        Function::Rsqrt => one::<T, T>(values, out, |a| T::ONE / a.sqrt()),
        Function::Floor => one::<T, T>(values, out, T::floor),
        Function::Ceil => one::<T, T>(values, out, T::ceil),
        Function::Round => one::<T, T>(values, out, T::round),
        Function::Trunc => one::<T, T>(values, out, T::trunc),
        Function::Exp => one::<T, T>(values, out, T::exp::<FUSED>),
        Function::Exp2 => one::<T, T>(values, out, T::exp2::<FUSED>),
        Function::Expm1 => one::<T, T>(values, out, T::expm1::<FUSED>),
        Function::Log => one::<T, T>(values, out, T::log::<FUSED>),
        Function::Log2 => one::<T, T>(values, out, T::log2::<FUSED>),
        Function::Log1p => one::<T, T>(values, out, T::log1p::<FUSED>),
        Function::Sin => wave::<T, FUSED>(values, out, 0, T::sin),
        Function::Cos => wave::<T, FUSED>(values, out, 1, T::cos),
        Function::Tanh => one::<T, T>(values, out, T::tanh::<FUSED>),
        Function::Sigmoid => one::<T, T>(values, out, T::sigmoid::<FUSED>),
        Function::Erf => one::<T, T>(values, out, T::erf::<FUSED>),
        Function::Gelu => one::<T, T>(values, out, T::gelu::<FUSED>),
        Function::GeluTanh => one::<T, T>(values, out, T::gelu_tanh::<FUSED>),
        Function::Silu => one::<T, T>(values, out, T::silu::<FUSED>),
        Function::Softplus => one::<T, T>(values, out, T::softplus::<FUSED>),
        Function::IsNan => one::<T, u8>(values, out, |a| u8::from(a.is_nan())),
        // Infinity times zero is NaN.
        Function::IsFinite => one::<T, u8>(values, out, |a| u8::from(!(a * T::ZERO).is_nan())),
        Function::Select => select::<T>(values, out),
        Function::Eq => compare::<T>(values, out, T::eq),
        Function::Ne => compare::<T>(values, out, T::ne),
        Function::Lt => compare::<T>(values, out, T::lt),
        Function::Le => compare::<T>(values, out, T::le),
        Function::Gt => compare::<T>(values, out, T::gt),
        Function::Ge => compare::<T>(values, out, T::ge),
        Function::And | Function::Or | Function::Xor | Function::Not => never(),
    }
}

/// In vectors, and then what is large one by one.
#[inline(always)]
fn wave<T: Real, const FUSED: bool>(
    values: [&[u8]; 3],
    out: &mut [u8],
    ahead: i32,
    exact: impl Fn(T) -> T,
) {
    one::<T, T>(values, out, |a| a.wave::<FUSED>(ahead));
    let a: &[T] = bytemuck::cast_slice(values[0]);
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    for (out, &a) in out.iter_mut().zip(a) {
        let is_near = a.abs() < T::LARGE;
        // NaN is not near.
        if !is_near {
            *out = exact(a);
        }
    }
}

#[inline(always)]
fn whole<T: Whole>(function: Function, values: [&[u8]; 3], out: &mut [u8]) {
    match function {
        Function::Add => two::<T, T>(values, out, T::wrapping_add),
        Function::Sub => two::<T, T>(values, out, T::wrapping_sub),
        Function::Mul => two::<T, T>(values, out, T::wrapping_mul),
        Function::Div => two::<T, T>(values, out, T::divide),
        Function::Rem => two::<T, T>(values, out, T::rest),
        Function::Pow => two::<T, T>(values, out, T::power),
        Function::Min => two::<T, T>(values, out, T::min),
        Function::Max => two::<T, T>(values, out, T::max),
        Function::MulAdd => {
            three::<T, T>(values, out, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
        }
        Function::Clamp => three::<T, T>(values, out, |a, low, high| a.max(low).min(high)),
        Function::Neg => one::<T, T>(values, out, T::wrapping_neg),
        Function::Abs => one::<T, T>(values, out, T::wrapping_abs),
        Function::Sign => one::<T, T>(values, out, T::sign),
        Function::Square => one::<T, T>(values, out, |a| a.wrapping_mul(a)),
        Function::Relu => one::<T, T>(values, out, |a| a.max(T::default())),
        Function::Select => select::<T>(values, out),
        Function::Eq => compare::<T>(values, out, T::eq),
        Function::Ne => compare::<T>(values, out, T::ne),
        Function::Lt => compare::<T>(values, out, T::lt),
        Function::Le => compare::<T>(values, out, T::le),
        Function::Gt => compare::<T>(values, out, T::gt),
        Function::Ge => compare::<T>(values, out, T::ge),
        _ => never(),
    }
}

/// Of bytes: every one but 0 is true.
#[inline(always)]
fn bools(function: Function, values: [&[u8]; 3], out: &mut [u8]) {
    let mut both = |f: fn(bool, bool) -> bool| {
        two::<u8, u8>(values, out, |a, b| u8::from(f(a != 0, b != 0)));
    };
    match function {
        Function::And => both(|a, b| a & b),
        Function::Or => both(|a, b| a | b),
        Function::Xor | Function::Ne => both(|a, b| a ^ b),
        Function::Eq => both(|a, b| a == b),
        Function::Lt => both(|a, b| !a & b),
        Function::Le => both(|a, b| !a | b),
        Function::Gt => both(|a, b| a & !b),
        Function::Ge => both(|a, b| a | !b),
        Function::Not => one::<u8, u8>(values, out, |a| u8::from(a == 0)),
        Function::Select => select::<u8>(values, out),
        _ => never(),
    }
}
