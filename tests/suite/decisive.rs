//! Long reductions in which each element decides: none is left out or read twice where the parts of the work meet. (Sums of
//! random floats have bounds wider than one of their elements.)

use std::collections::BTreeSet;

use orlop::{DType, Device, Result, Tensor, bf16, f16, with_hardware_plans};

use crate::adapters::{Context, full};
use crate::number::{Number, Value};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("reduce::decisive", Scope::Device, as_planned),
        Test::new("reduce::decisive_by_hardware", Scope::Gpu, by_hardware)
            .when(|context| !context.is_slow() || full()),
    ]
}

/// What is left over is alone in the last part of 17,409 to 17,415 on software adapters, of 278,529 to 278,535 by
/// hardware's plans.
const LENGTHS: [usize; 12] = [
    513, 4099, 8705, 17_409, 17_410, 17_411, 17_412, 17_415, 65_537, 278_529, 278_530, 278_535,
];

fn as_planned(context: &Context) -> Result<()> {
    for length in LENGTHS {
        if context.is_slow() && length > LONG && !full() {
            break;
        }
        decisive(context, length)?;
    }
    Ok(())
}

fn by_hardware(context: &Context) -> Result<()> {
    with_hardware_plans(|| {
        LENGTHS
            .iter()
            .try_for_each(|&length| decisive(context, length))
    })
}

fn decisive(context: &Context, length: usize) -> Result<()> {
    let device = context.device();
    sums::<f32>(device, length)?;
    places::<f32>(device, length)?;
    exponentials::<f32>(device, length)?;
    products::<f32>(device, length)?;
    truths(device, length)?;
    sums::<i32>(device, length)?;
    // Each dtype is a kernel of its own, which slow compilers meet elsewhere; the longest rows take long to make.
    if (context.is_slow() || length > LONG) && !full() {
        return Ok(());
    }
    products::<u32>(device, length)?;
    if device.capabilities().holds(DType::F64) {
        sums::<f64>(device, length)?;
        exponentials::<f64>(device, length)?;
    }
    places::<bf16>(device, length)?;
    exponentials::<bf16>(device, length)?;
    places::<f16>(device, length)?;
    exponentials::<f16>(device, length)
}

/// One that lies by itself, three beside each other, and the columns of a matrix: how many there are and along which axis.
const LYING: [(usize, usize); 3] = [(1, 1), (3, 1), (9, 0)];

/// From there on one way to be odd is tried.
const LONG: usize = 20_000;

/// The ways to be odd.
fn shifts(length: usize) -> std::ops::Range<usize> {
    0..if length > LONG { 1 } else { 3 }
}

/// Rows of `value(row, place)`, as one of [`LYING`].
fn rows<T: Number>(
    device: &Device,
    length: usize,
    (count, axis): (usize, usize),
    value: impl Fn(usize, usize) -> T,
) -> Result<Tensor> {
    let all = 0..count * length;
    match axis {
        0 => {
            let values: Vec<T> = all.map(|at| value(at % count, at / count)).collect();
            Tensor::from_vec(device, values, [length, count])
        }
        _ => {
            let values: Vec<T> = all.map(|at| value(at / length, at % length)).collect();
            Tensor::from_vec(device, values, [count, length])
        }
    }
}

fn number<T: Number>(value: i64) -> T {
    T::from_value(Value::Integer(value))
}

/// A number that looks like none before it.
fn scattered(row: usize, at: usize) -> u64 {
    (row as u64 * 0x9e37_79b9 + at as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95) >> 33
}

/// Whole numbers whose sum is exact in any order.
fn sums<T: Number>(device: &Device, length: usize) -> Result<()> {
    let value = |row, at| scattered(row, at) as i64 % 15 - 7;
    for lying in LYING {
        let x = rows(device, length, lying, |row, at| number::<T>(value(row, at)))?;
        let want = (0..lying.0).map(|row| (0..length).map(|at| value(row, at)).sum());
        let want: Vec<u64> = want.map(|sum: i64| number::<T>(sum).bits()).collect();
        let got = x.sum(lying.1)?.to_vec::<T>()?;
        let got: Vec<u64> = got.into_iter().map(T::bits).collect();
        assert_eq!(got, want, "sum of {} x {length} {}", lying.0, T::DTYPE);
    }
    Ok(())
}

/// Where something happens in a row: at its ends, in its middle, around the places where parts may meet.
fn place(length: usize, nth: usize) -> usize {
    let all = [
        length - 1,
        0,
        length / 2 + 3,
        256,
        length - 2,
        255,
        length / 3,
    ];
    all[nth % all.len()]
}

/// One element is larger than the others, and one less.
fn places<T: Number>(device: &Device, length: usize) -> Result<()> {
    for lying in LYING {
        for shift in shifts(length) {
            let largest = |row| place(length, row + shift);
            let least = |row| place(length, row + shift + 1);
            let x = rows(device, length, lying, |row, at| {
                number::<T>(match at {
                    at if at == largest(row) => 9,
                    at if at == least(row) => 1,
                    at => 3 + (at % 3) as i64,
                })
            })?;
            let story = format!("{} x {length} {}, {shift}", lying.0, T::DTYPE);
            let want = |place: &dyn Fn(usize) -> usize| -> Vec<u32> {
                (0..lying.0).map(|row| place(row) as u32).collect()
            };
            let (most, few) = (x.argmax(lying.1)?, x.argmin(lying.1)?);
            assert_eq!(most.to_vec::<u32>()?, want(&largest), "argmax of {story}");
            assert_eq!(few.to_vec::<u32>()?, want(&least), "argmin of {story}");
            let (most, few) = (x.max(lying.1)?, x.min(lying.1)?);
            let are = |got: Vec<T>, value| {
                got.iter()
                    .all(|got| got.bits() == number::<T>(value).bits())
            };
            assert!(are(most.to_vec()?, 9), "max of {story}");
            assert!(are(few.to_vec()?, 1), "min of {story}");
        }
    }
    Ok(())
}

/// So many zeros among numbers whose exponentials are nothing.
fn exponentials<T: Number>(device: &Device, length: usize) -> Result<()> {
    let zeros: BTreeSet<usize> = (0..7).map(|nth| place(length, nth)).collect();
    let want = (zeros.len() as f64).ln();
    for lying in LYING {
        let x = rows(device, length, lying, |_, at| {
            number::<T>(if zeros.contains(&at) { 0 } else { -10_000 })
        })?;
        for got in x.logsumexp(lying.1)?.to_vec::<T>()? {
            let Value::Float(got) = got.value() else {
                unreachable!("a float");
            };
            // One more or less is off by a seventh.
            let story = format!("{} x {length} {}", lying.0, T::DTYPE);
            assert!(
                (got - want).abs() < 0.02,
                "logsumexp of {story}: {got}, not {want}"
            );
        }
    }
    Ok(())
}

/// Floats: ones and three threes. Integers: odd numbers, of which each changes the product.
fn products<T: Number>(device: &Device, length: usize) -> Result<()> {
    let threes = [0, length / 2, length - 1];
    let value = |row, at| match T::DTYPE.is_float() {
        true => 1 + 2 * i64::from(threes.contains(&at)),
        false => (scattered(row, at) & 0x7fff_ffff | 1) as i64,
    };
    for lying in LYING {
        let x = rows(device, length, lying, |row, at| number::<T>(value(row, at)))?;
        let of_row =
            |row| (0..length).fold(1u32, |all, at| all.wrapping_mul(value(row, at) as u32));
        let want: Vec<u64> = (0..lying.0)
            .map(|row| number::<T>(of_row(row).into()).bits())
            .collect();
        let got = x.prod(lying.1)?.to_vec::<T>()?;
        let got: Vec<u64> = got.into_iter().map(T::bits).collect();
        assert_eq!(got, want, "product of {} x {length} {}", lying.0, T::DTYPE);
    }
    Ok(())
}

/// One that is true, or false, among others.
fn truths(device: &Device, length: usize) -> Result<()> {
    for lying in LYING {
        for shift in shifts(length) {
            let odd = |row: usize, at: usize| at == place(length, row + shift);
            let one = rows(device, length, lying, odd)?;
            let others = rows(device, length, lying, |row, at| !odd(row, at))?;
            let story = format!("{} x {length}, {shift}", lying.0);
            for (any, all) in [
                (one.any(lying.1)?, one.all(lying.1)?),
                (others.any(lying.1)?, others.all(lying.1)?),
            ] {
                assert_eq!(any.to_vec::<bool>()?, vec![true; lying.0], "any of {story}");
                assert_eq!(
                    all.to_vec::<bool>()?,
                    vec![false; lying.0],
                    "all of {story}"
                );
            }
            let counts = [
                (one.sum(lying.1)?, 1),
                (others.sum(lying.1)?, length as u32 - 1),
            ];
            for (count, want) in counts {
                assert_eq!(
                    count.to_vec::<u32>()?,
                    vec![want; lying.0],
                    "count of {story}"
                );
            }
        }
    }
    Ok(())
}
