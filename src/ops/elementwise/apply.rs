//! The functions of elementwise expressions on the CPU: one loop each over the values of a block.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::function::{Function, Kind};
use super::real::{Real, Whole};
use crate::cpu::stores::read_ahead;
use crate::cpu::{Loops, vectorised};

/// What a function reads of an operand.
#[derive(Clone, Copy, Default)]
pub(super) struct Values<'a> {
    pub bytes: &'a [u8],
    /// How far ahead of it memory is asked for.
    pub ahead: usize,
}

pub(super) type Operands<'a> = [Values<'a>; 3];

/// Elements before which memory is asked for as many further on.
const STEP: usize = 128;

impl<'a> Values<'a> {
    #[inline(always)]
    fn elements<A: Pod>(&self) -> &'a [A] {
        bytemuck::cast_slice(self.bytes)
    }

    /// Its elements by steps, asked for in time.
    #[inline(always)]
    fn steps<A: Pod>(&self, length: usize) -> impl Iterator<Item = &'a [A]> {
        let ahead = self.ahead;
        let asked = move |step: &&[A]| read_ahead(step, ahead);
        self.elements().chunks(length).inspect(asked)
    }
}

/// Values are whole arrays of a kind, as many as `out` has. Plain functions of floats are chains'.
pub(super) fn apply(function: Function, kind: Kind, values: Operands<'_>, out: &mut [u8]) {
    match kind {
        Kind::F32 => vectorised(Floats::<f32>(function, values, out, PhantomData)),
        Kind::F64 => vectorised(Floats::<f64>(function, values, out, PhantomData)),
        _ => vectorised(Others(function, kind, values, out)),
    }
}

struct Floats<'a, T>(Function, Operands<'a>, &'a mut [u8], PhantomData<T>);

impl<T: Real> Loops for Floats<'_, T> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Floats(function, values, out, _) = self;
        real::<T, FUSED>(function, values, out);
    }
}

struct Others<'a>(Function, Kind, Operands<'a>, &'a mut [u8]);

impl Loops for Others<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Others(function, kind, values, out) = self;
        match kind {
            Kind::F32 | Kind::F64 => never(),
            Kind::I32 => whole::<i32, FUSED>(function, values, out),
            Kind::U32 => whole::<u32, FUSED>(function, values, out),
            Kind::Bool => bools(function, values, out),
        }
    }
}

#[inline(always)]
fn one<A: Pod, R: Pod>(values: Operands<'_>, out: &mut [u8], f: impl Fn(A) -> R) {
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    for (out, a) in out.chunks_mut(STEP).zip(values[0].steps(STEP)) {
        for (out, &a) in out.iter_mut().zip(a) {
            *out = f(a);
        }
    }
}

#[inline(always)]
fn two<A: Pod, R: Pod>(values: Operands<'_>, out: &mut [u8], f: impl Fn(A, A) -> R) {
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    let (a, b) = (values[0].steps(STEP), values[1].steps(STEP));
    for ((out, a), b) in out.chunks_mut(STEP).zip(a).zip(b) {
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *out = f(a, b);
        }
    }
}

#[inline(always)]
fn three<C: Pod, A: Pod>(values: Operands<'_>, out: &mut [u8], f: impl Fn(C, A, A) -> A) {
    let out: &mut [A] = bytemuck::cast_slice_mut(out);
    let (a, b) = (values[1].steps(STEP), values[2].steps(STEP));
    let steps = out.chunks_mut(STEP).zip(values[0].steps(STEP));
    for (((out, c), a), b) in steps.zip(a).zip(b) {
        for (((out, &c), &a), &b) in out.iter_mut().zip(c).zip(a).zip(b) {
            *out = f(c, a, b);
        }
    }
}

#[inline(always)]
fn select<A: Pod>(values: Operands<'_>, out: &mut [u8]) {
    three::<u8, A>(values, out, |c, a, b| if c != 0 { a } else { b });
}

#[inline(always)]
fn compare<A: Pod>(values: Operands<'_>, out: &mut [u8], f: impl Fn(&A, &A) -> bool) {
    two::<A, u8>(values, out, |a, b| u8::from(f(&a, &b)));
}

/// Where a function has nothing to do with a kind: its rule has refused it.
fn never() {}

#[inline(always)]
fn real<T: Real, const FUSED: bool>(function: Function, values: Operands<'_>, out: &mut [u8]) {
    // Inlined always: what is called instead knows nothing of vectors.
    macro_rules! each {
        ($function:ident) => {
            one::<T, T>(
                values,
                out,
                #[inline(always)]
                |a| T::$function::<FUSED>(a),
            )
        };
    }
    macro_rules! wave {
        (|$a:ident| $near:expr, $exact:path) => {
            wave::<T>(
                values,
                out,
                #[inline(always)]
                |$a: T| $near,
                $exact,
            )
        };
    }
    match function {
        Function::Rem => rest::<T, FUSED>(values, out),
        Function::Pow => power::<T, FUSED>(values, out),
        Function::Floor => one::<T, T>(values, out, T::floor),
        Function::Ceil => one::<T, T>(values, out, T::ceil),
        Function::Round => one::<T, T>(values, out, T::round),
        Function::Trunc => one::<T, T>(values, out, T::trunc),
        Function::Exp => each!(exp),
        Function::Exp2 => each!(exp2),
        Function::Expm1 => each!(expm1),
        Function::Log => each!(log),
        Function::Log2 => each!(log2),
        Function::Log1p => each!(log1p),
        Function::Sin => wave!(|a| a.wave::<FUSED>(0), T::sin),
        Function::Cos => wave!(|a| a.wave::<FUSED>(1), T::cos),
        Function::Tan => wave!(|a| a.near_tan::<FUSED>(), T::tan),
        Function::Asin => each!(asin),
        Function::Acos => each!(acos),
        Function::Atan => each!(atan),
        Function::Sinh => each!(sinh),
        Function::Cosh => each!(cosh),
        Function::Asinh => each!(asinh),
        Function::Acosh => each!(acosh),
        Function::Atanh => each!(atanh),
        Function::Atan2 => two::<T, T>(
            values,
            out,
            #[inline(always)]
            |y, x| y.atan2::<FUSED>(x),
        ),
        Function::Tanh => each!(tanh),
        Function::Sigmoid => each!(sigmoid),
        Function::Erf => each!(erf),
        Function::Gelu => each!(gelu),
        Function::GeluTanh => each!(gelu_tanh),
        Function::Silu => each!(silu),
        Function::Softplus => each!(softplus),
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
        _ => never(),
    }
}

/// Elements that are looked at together for one that vectors cannot have.
const LOOKED_AT: usize = 64;

/// In vectors, and then what is large one by one.
#[inline(always)]
fn wave<T: Real>(
    values: Operands<'_>,
    out: &mut [u8],
    near: impl Fn(T) -> T,
    exact: impl Fn(T) -> T,
) {
    one::<T, T>(values, out, near);
    let a = values[0].elements::<T>();
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    // NaN is not near.
    let is_near = |a: T| a.abs() < T::LARGE;
    for (out, a) in out.chunks_mut(LOOKED_AT).zip(a.chunks(LOOKED_AT)) {
        if a.iter().fold(true, |all, &a| all & is_near(a)) {
            continue;
        }
        for (out, &a) in out.iter_mut().zip(a) {
            if !is_near(a) {
                *out = exact(a);
            }
        }
    }
}

/// Where nothing is special, without what is asked for such. The exponents of a few vectors first: one loop for all would
/// wait for each step of a power, where two have several vectors under way.
#[inline(always)]
fn power<T: Real, const FUSED: bool>(values: Operands<'_>, out: &mut [u8]) {
    if !FUSED {
        return two::<T, T>(values, out, T::pow);
    }
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    let steps = values[0].steps::<T>(LOOKED_AT);
    let steps = steps.zip(values[1].steps::<T>(LOOKED_AT));
    let (mut high, mut low) = ([T::ZERO; LOOKED_AT], [T::ZERO; LOOKED_AT]);
    for (out, (a, b)) in out.chunks_mut(LOOKED_AT).zip(steps) {
        let (high, low) = (&mut high[..out.len()], &mut low[..out.len()]);
        let exponents = high.iter_mut().zip(&mut *low);
        for ((high, low), (a, &b)) in exponents.zip(a.iter().zip(b)) {
            (*high, *low) = a.plain_exponent(b);
        }
        let plain = a.iter().zip(&*high);
        let plain = plain.map(|(a, high)| a.is_base_plain() & high.is_exponent_plain());
        let is_plain = plain.fold(true, |all, plain| all & plain);
        if is_plain {
            for (out, (&high, &low)) in out.iter_mut().zip(high.iter().zip(&*low)) {
                *out = T::plain_raised((high, low));
            }
            continue;
        }
        let exponents = high.iter_mut().zip(&mut *low);
        for ((high, low), (a, &b)) in exponents.zip(a.iter().zip(b)) {
            (*high, *low) = a.exponent(b);
        }
        let exponents = high.iter().zip(&*low).zip(a.iter().zip(b));
        for (out, ((&high, &low), (a, &b))) in out.iter_mut().zip(exponents) {
            *out = a.special_power(b, T::raised((high, low)));
        }
    }
}

/// In vectors, and then one by one where the quotient is large, or no number.
#[inline(always)]
fn rest<T: Real, const FUSED: bool>(values: Operands<'_>, out: &mut [u8]) {
    two::<T, T>(values, out, T::near_rest::<FUSED>);
    let (a, b) = (values[0].elements(), values[1].elements());
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    let operands = a.chunks(LOOKED_AT).zip(b.chunks(LOOKED_AT));
    for (out, (a, b)) in out.chunks_mut(LOOKED_AT).zip(operands) {
        let near = a
            .iter()
            .zip(b)
            .map(|(a, &b): (&T, &T)| a.is_rest_near::<FUSED>(b));
        if near.fold(true, |all, near| all & near) {
            continue;
        }
        for (out, (&a, &b)) in out.iter_mut().zip(a.iter().zip(b)) {
            if !a.is_rest_near::<FUSED>(b) {
                *out = a % b;
            }
        }
    }
}

#[inline(always)]
fn whole<T: Whole, const FUSED: bool>(function: Function, values: Operands<'_>, out: &mut [u8]) {
    match function {
        Function::Add => two::<T, T>(values, out, T::wrapping_add),
        Function::Sub => two::<T, T>(values, out, T::wrapping_sub),
        Function::Mul => two::<T, T>(values, out, T::wrapping_mul),
        Function::Div => two::<T, T>(values, out, T::divide::<FUSED>),
        Function::Rem => two::<T, T>(values, out, T::rest::<FUSED>),
        Function::Pow => powers::<T>(values, out),
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
        Function::BitAnd => two::<T, T>(values, out, |a, b| a & b),
        Function::BitOr => two::<T, T>(values, out, |a, b| a | b),
        Function::BitXor => two::<T, T>(values, out, |a, b| a ^ b),
        Function::BitNot => one::<T, T>(values, out, |a| !a),
        Function::ShiftLeft => two::<T, T>(values, out, T::shift_left),
        Function::ShiftRight => two::<T, T>(values, out, T::shift_right),
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

/// Several side by side, bit by bit of the powers, as many bits as the largest of them has: a loop for each would be of a length
/// that nobody foresees.
#[inline(always)]
fn powers<T: Whole>(values: Operands<'_>, out: &mut [u8]) {
    const LANES: usize = 16;
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    let (a, b) = (values[0].steps::<T>(LANES), values[1].steps::<T>(LANES));
    for ((out, a), b) in out.chunks_mut(LANES).zip(a).zip(b) {
        let (mut bases, mut rests, mut products) =
            ([T::ONE; LANES], [0u32; LANES], [T::ONE; LANES]);
        bases[..out.len()].copy_from_slice(&a[..out.len()]);
        for (rest, power) in rests.iter_mut().zip(b) {
            *rest = power.counted();
        }
        let bits = u32::BITS
            - rests
                .iter()
                .fold(0u32, |all, rest| all | rest)
                .leading_zeros();
        for _ in 0..bits {
            for lane in 0..LANES {
                let product = products[lane].wrapping_mul(bases[lane]);
                products[lane] = if rests[lane] & 1 == 1 {
                    product
                } else {
                    products[lane]
                };
                bases[lane] = bases[lane].wrapping_mul(bases[lane]);
                rests[lane] >>= 1;
            }
        }
        for (((out, &a), &b), product) in out.iter_mut().zip(a).zip(b).zip(products) {
            *out = a.power(b, product);
        }
    }
}

/// Of bytes: every one but 0 is true.
#[inline(always)]
fn bools(function: Function, values: Operands<'_>, out: &mut [u8]) {
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
