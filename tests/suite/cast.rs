//! Conversions between all dtypes, and copies that keep every bit.

use orlop::{DType, Element, Result, Tensor, bf16, f16};

use crate::adapters::{Context, in_turn};
use crate::number::{Number, for_each_dtype};
use crate::operand::{Operand, same};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![Test::new("copy::keeps_bits", Scope::Kernels, keeps_bits)];
    for_each_dtype!(all, Scope::Kernels, "cast::specials", specials);
    for_each_dtype!(all, Scope::Kernels, "cast::random", random, in_turn);
    for_each_dtype!(all, Scope::Kernels, "copy::random", copies);
    for_each_dtype!(all, Scope::Kernels, "copy::turned", turned);
    all.extend([
        Test::new("cast::specials::bool", Scope::Kernels, specials::<bool>),
        Test::new("cast::random::bool", Scope::Kernels, random::<bool>),
        Test::new("copy::random::bool", Scope::Kernels, copies::<bool>),
        Test::new("cast::every::f16", Scope::Kernels, every_f16),
        Test::new("cast::every::bf16", Scope::Kernels, every_bf16),
    ]);
    all
}

/// Casts an operand to one dtype and compares with Rust's `as`.
fn check<A: Number, B: Number>(context: &Context, from: &Operand<A>) -> Result<()> {
    let cast = from.tensor.cast(B::DTYPE)?;
    assert_eq!(cast.dtype(), B::DTYPE);
    assert_eq!(cast.shape().dims(), from.shape());
    let got = cast.to_vec::<B>()?;
    for (x, got) in from.values().into_iter().zip(got) {
        let want = B::from_value(x.value());
        // A subnormal may be flushed where it is read, or where it is written; to bool its bits count.
        let read = A::is_same(x, A::from_value(crate::number::Value::Float(0.0)), true);
        let may_flush = A::DTYPE.is_float() && B::DTYPE != DType::Bool;
        let flushed = read && may_flush && got.bits() & (u64::MAX >> 1) == 0;
        assert!(
            B::is_same(want, got, !context.is_cpu()) || (flushed && !context.is_cpu()),
            "{} to {} of {x:?}: {got:?} ({:#x}), not {want:?} ({:#x}); {}",
            A::DTYPE,
            B::DTYPE,
            got.bits(),
            want.bits(),
            from.story()
        );
    }
    Ok(())
}

fn check_all<A: Number>(context: &Context, from: &Operand<A>) -> Result<()> {
    for &dtype in DType::ALL {
        match dtype {
            DType::F32 => check::<A, f32>(context, from)?,
            DType::F16 => check::<A, f16>(context, from)?,
            DType::I32 => check::<A, i32>(context, from)?,
            DType::U32 => check::<A, u32>(context, from)?,
            DType::F64 => check::<A, f64>(context, from)?,
            DType::BF16 => check::<A, bf16>(context, from)?,
            DType::Bool => check::<A, bool>(context, from)?,
            other => panic!("no reference for {other}"),
        }
    }
    Ok(())
}

/// Values between the representable ones, at the ends of ranges, NaN and infinities.
fn specials<A: Number>(context: &Context) -> Result<()> {
    let mut values = A::specials();
    let floats = [
        // Ties of f16, its overflow at 65520, its subnormals.
        2049.0,
        2051.0,
        4098.0,
        65519.0,
        65519.99,
        65520.0,
        65536.0,
        1e-7,
        5.96e-8,
        6.1e-5,
        6.0e-5,
        // Subnormals of f32, and of f64.
        1e-40,
        -2e-45,
        1e-310,
        5e-324,
        -5e-324,
        // Ties and ends of f32 and of the integers.
        16_777_217.0,
        16_777_219.0,
        2_147_483_520.0,
        2_147_483_647.0,
        2_147_483_648.0,
        -2_147_483_648.0,
        -2_147_483_904.0,
        4_294_967_040.0,
        4_294_967_295.0,
        4_294_967_296.0,
        1e10,
        -1e10,
        1e30,
        -0.5,
        -0.99999,
        1e300,
        -1e300,
        3.5e38,
        1.000_000_06,
        // Just past ties of f16 and of bf16, and of both in f32.
        1.000_488_281_25,
        1.000_488_281_250_001,
        1.003_906_25,
        1.003_906_250_000_001,
        1.011_718_749_999_999,
    ];
    if A::DTYPE.is_float() {
        values.extend(floats.map(|x| A::from_value(crate::number::Value::Float(x))));
    }
    let count = values.len();
    let whole = Operand::new(context.device(), values, &[count])?;
    check_all(context, &whole)?;
    // Without vectors.
    check_all(context, &whole.range(1..count)?)
}

/// Every pattern of 16 bits, NaN payloads and subnormals among them.
fn every_f16(context: &Context) -> Result<()> {
    let all = (0..=u16::MAX).map(f16::from_bits).collect();
    check_all(context, &Operand::new(context.device(), all, &[1 << 16])?)
}

fn every_bf16(context: &Context) -> Result<()> {
    let all = (0..=u16::MAX).map(bf16::from_bits).collect();
    check_all(context, &Operand::new(context.device(), all, &[1 << 16])?)
}

fn random<A: Number>(context: &Context) -> Result<()> {
    cases(context.times(6), |rng| {
        let shape = context.shape(rng, 6, 1200);
        let view = Operand::<A>::random_view(context.device(), rng, &shape)?;
        check_all(context, &view)
    })
}

/// `copy` and `contiguous` of any view.
fn copies<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(24), |rng| {
        let shape = context.shape(rng, 7, 3000);
        let view = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let copy = view.tensor.copy()?;
        assert!(copy.is_contiguous() && !copy.shares_storage(&view.tensor));
        same(&copy, &view.values())?;
        let contiguous = view.tensor.contiguous()?;
        assert!(contiguous.is_contiguous());
        if view.tensor.is_contiguous() && view.tensor.elements() > 0 {
            assert!(contiguous.shares_storage(&view.tensor), "{}", view.story());
        }
        same(&contiguous, &view.values())
    })
}

/// Matrices turned round, of sizes around those of tiles, from somewhere within more.
fn turned<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(16), |rng| {
        let size = |rng: &mut Rng| *rng.pick(&[2, 15, 16, 17, 31, 32, 33, 65]);
        let sizes = [rng.between(1, 3), size(rng), size(rng)];
        let order = *rng.pick(&[[0, 2, 1], [2, 1, 0], [1, 2, 0]]);
        let matrices = Operand::<T>::random_view(context.device(), rng, &sizes)?;
        let whole = matrices.tensor.contiguous()?.permute(&order)?;
        let view = match rng.one_in(2) {
            true => whole.slice((.., 1.., ..))?,
            false => whole,
        };
        let values = matrices.values();
        let turned = order.map(|axis| sizes[axis]);
        let cut = turned[1] - view.shape()[1];
        let steps = order.map(|axis| sizes[axis + 1..].iter().product::<usize>());
        let mut want = Vec::new();
        for i in 0..turned[0] {
            for j in cut..turned[1] {
                for k in 0..turned[2] {
                    want.push(values[i * steps[0] + j * steps[1] + k * steps[2]]);
                }
            }
        }
        same(&view.copy()?, &want)
    })
}

/// NaN payloads, signalling NaN, subnormals, negative zero.
fn keeps_bits(context: &Context) -> Result<()> {
    let halves = [
        0x7C01u16, 0x7E12, 0xFE00, 0xFD55, 1, 0x83FF, 0x8000, 0x7C00, 0x3C00,
    ];
    let singles = [
        0x7F80_0001u32,
        0x7FC1_2345,
        0xFFC0_0000,
        0xFFA5_5A5A,
        1,
        0x807F_FFFF,
        1 << 31,
    ];
    let doubles = [
        0x7FF0_0000_0000_0001u64,
        0xFFF8_1234_5678_9ABC,
        1,
        1 << 63,
        0x000F << 48,
    ];
    check_bits(context, &halves.map(f16::from_bits))?;
    check_bits(context, &halves.map(bf16::from_bits))?;
    check_bits(context, &singles.map(f32::from_bits))?;
    check_bits(context, &doubles.map(f64::from_bits))
}

fn check_bits<T: Number + Element>(context: &Context, values: &[T]) -> Result<()> {
    let device = context.device();
    let whole = Operand::new(device, values.to_vec(), &[values.len()])?;
    whole.check()?;
    same(&whole.tensor.copy()?, values)?;
    same(&whole.range(1..values.len())?.tensor.copy()?, &values[1..])?;
    let square: Vec<T> = (0..12 * 12).map(|at| values[at % values.len()]).collect();
    let square = Operand::new(device, square, &[12, 12])?.transpose(0, 1)?;
    same(&square.tensor.contiguous()?, &square.values())?;
    let back: Tensor = square.tensor.to(&orlop::Device::cpu())?;
    same(&back, &square.values())
}
