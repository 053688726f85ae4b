//! New tensors: constants, ranges, random numbers, and writing in place through views.

use std::ops::Range;

use orlop::{DType, Device, Element, Error, Result, Tensor, bf16, f16};

use crate::adapters::Context;
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::{random_shape, same};
use crate::rng::cases;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("create::ranges", Scope::Device, ranges),
        Test::new("create::exact_values", Scope::Device, exact_values),
        Test::new(
            "create::uniform_is_the_same",
            Scope::Kernels,
            uniform_is_the_same,
        ),
        Test::new("create::normal_is_close", Scope::Kernels, normal_is_close),
        Test::new("create::randomness", Scope::Device, randomness),
    ];
    for_each_dtype!(all, Scope::Kernels, "create::constants", constants);
    for_each_dtype!(all, Scope::Device, "create::copies_of_data", copies_of_data);
    for (name, body) in [
        (
            "fill::words::f16",
            fill_words::<f16> as fn(&Context) -> Result<()>,
        ),
        ("fill::words::bool", fill_words::<bool>),
    ] {
        all.push(Test::new(name, Scope::Kernels, body));
    }
    for_each_dtype!(all, Scope::Kernels, "fill::views", fill_views);
    all
}

const COUNTS: [usize; 12] = [0, 1, 2, 3, 5, 127, 255, 256, 257, 1023, 1025, 4099];

fn constants<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    for count in COUNTS {
        let number = |x: i64| T::from_value(Value::Integer(x));
        same(
            &Tensor::zeros(device, count, T::DTYPE)?,
            &vec![number(0); count],
        )?;
        same(
            &Tensor::ones(device, count, T::DTYPE)?,
            &vec![number(1); count],
        )?;
        same(
            &Tensor::full(device, count, 77, T::DTYPE)?,
            &vec![number(77); count],
        )?;
        assert_eq!(Tensor::empty(device, count, T::DTYPE)?.elements(), count);
    }
    assert_eq!(Tensor::full(device, (), 3, T::DTYPE)?.rank(), 0);
    if T::DTYPE.is_float() {
        let value = Value::Float(-0.1);
        let full = Tensor::full(device, [3, 5], -0.1, T::DTYPE)?;
        same(&full, &[T::from_value(value); 15])?;
        let nan = Tensor::full(device, 7, f64::NAN, T::DTYPE)?.to_vec::<T>()?;
        assert!(
            nan.iter()
                .all(|x| matches!(x.value(), Value::Float(x) if x.is_nan()))
        );
    }
    Ok(())
}

fn copies_of_data<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(12), |rng| {
        let shape = random_shape(rng, 6, 3000);
        let count = shape.iter().product();
        let values: Vec<T> = (0..count).map(|_| T::sample(rng)).collect();
        same(
            &Tensor::from_slice(context.device(), &values, &shape)?,
            &values,
        )?;
        let tensor = Tensor::from_vec(context.device(), values.clone(), shape)?;
        same(&tensor, &values)?;
        let mut target = values.clone();
        target.reverse();
        tensor.read_into(&mut target)?;
        assert!(
            target
                .iter()
                .zip(&values)
                .all(|(a, b)| a.bits() == b.bits())
        );
        if let Some(&first) = values.first() {
            same(&Tensor::scalar(context.device(), first)?, &[first])?;
        }
        Ok(())
    })
}

fn exact_values(context: &Context) -> Result<()> {
    let device = context.device();
    let u32s = Tensor::full(device, 3, u32::MAX, DType::U32)?;
    same(&u32s, &[u32::MAX; 3])?;
    same(
        &Tensor::full(device, 3, i32::MIN, DType::I32)?,
        &[i32::MIN; 3],
    )?;
    same(&Tensor::full(device, 3, 3.0, DType::I32)?, &[3i32; 3])?;
    // One rounding only.
    same(
        &Tensor::full(device, 3, 16_777_217, DType::F32)?,
        &[16_777_216f32; 3],
    )?;
    same(
        &Tensor::full(device, 3, 65520, DType::F16)?,
        &[f16::INFINITY; 3],
    )?;
    same(&Tensor::full(device, 3, 1e300, DType::F64)?, &[1e300f64; 3])?;
    same(&Tensor::full(device, 5, 0.1, DType::F64)?, &[0.1f64; 5])
}

fn ranges(context: &Context) -> Result<()> {
    let device = context.device();
    same(
        &Tensor::arange(device, 0, 5, 1, DType::I32)?,
        &[0i32, 1, 2, 3, 4],
    )?;
    same(
        &Tensor::arange(device, 5, 0, -2, DType::I32)?,
        &[5i32, 3, 1],
    )?;
    same(
        &Tensor::arange(device, 0, 5, -1, DType::I32)?,
        &[] as &[i32],
    )?;
    same(&Tensor::arange(device, 3, 3, 1, DType::U32)?, &[] as &[u32])?;
    same(
        &Tensor::arange(device, 0.0, 1.0, 0.25, DType::F16)?,
        &[0.0, 0.25, 0.5, 0.75].map(f16::from_f32),
    )?;
    let tenths: Vec<f32> = (0..10).map(|i| (f64::from(i) * 0.1) as f32).collect();
    same(&Tensor::arange(device, 0.0, 1.0, 0.1, DType::F32)?, &tenths)?;
    let tenths: Vec<f64> = (0..10).map(|i| f64::from(i) * 0.1).collect();
    same(&Tensor::arange(device, 0.0, 1.0, 0.1, DType::F64)?, &tenths)?;
    let long: Vec<u32> = (0..100_003).collect();
    same(&Tensor::arange(device, 0, 100_003, 1, DType::U32)?, &long)?;
    let down = |i: i32| 3e4 - 0.625 * f64::from(i);
    let long: Vec<i32> = (0..100_003).map(|i| 30_000 - 2 * i).collect();
    same(
        &Tensor::arange(device, 30_000, -170_006, -2, DType::I32)?,
        &long,
    )?;
    let long: Vec<f32> = (0..100_003).map(|i| down(i) as f32).collect();
    same(
        &Tensor::arange(device, 3e4, down(100_003), -0.625, DType::F32)?,
        &long,
    )?;
    let long: Vec<f64> = (0..100_003).map(down).collect();
    same(
        &Tensor::arange(device, 3e4, down(100_003), -0.625, DType::F64)?,
        &long,
    )?;
    let long: Vec<f16> = (0..100_003)
        .map(|i| f16::from_f32(down(i) as f32))
        .collect();
    same(
        &Tensor::arange(device, 3e4, down(100_003), -0.625, DType::F16)?,
        &long,
    )?;
    for (end, step, asked) in [(1e30, 1.0, 1e30 as u128), (1.0, 5e-324, u128::MAX)] {
        let refused = Tensor::arange(device, 0.0, end, step, DType::F32);
        let Err(Error::TooLarge(refused)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(refused.asked, asked);
    }
    // The first number that an integer cannot hold is named.
    let named =
        |end: f64, step: f64, dtype: DType| match Tensor::arange(device, 0.0, end, step, dtype) {
            Err(error) => error.to_string(),
            Ok(made) => panic!("{made:?}"),
        };
    assert!(named(3.0, 0.5, DType::I32).contains("0.5"));
    assert!(
        named(4e9, 1e9, DType::I32).contains("cannot hold the value 3000000000"),
        "{}",
        named(4e9, 1e9, DType::I32)
    );
    assert!(named(-3.0, -1.0, DType::U32).contains("-1"));
    let last = Tensor::arange(device, 2_147_480_000i64, 2_147_490_000i64, 1, DType::I32);
    let last = last.expect_err("beyond i32").to_string();
    assert!(last.contains("cannot hold the value 2147483648"), "{last}");
    assert!(named(3.0, 1.0, DType::Bool).contains('2'));
    Ok(())
}

/// The CPU's numbers, with the same seed.
fn host<T: Element>(
    made: fn(&Device, Vec<usize>, DType, u64) -> Result<Tensor>,
    count: usize,
    seed: u64,
) -> Result<Vec<T>> {
    made(&Device::cpu(), vec![count], T::DTYPE, seed)?.to_vec()
}

fn uniform_is_the_same(context: &Context) -> Result<()> {
    let device = context.device();
    let rand = |d: &Device, shape: Vec<usize>, dtype: DType, seed: u64| {
        Tensor::rand(d, shape, dtype, seed)
    };
    for count in COUNTS.into_iter().chain([100_001]) {
        for seed in [0, 7, u64::MAX, 1 << 40] {
            let shape = || vec![count];
            same(
                &rand(device, shape(), DType::F32, seed)?,
                &host::<f32>(rand, count, seed)?,
            )?;
            same(
                &rand(device, shape(), DType::F16, seed)?,
                &host::<f16>(rand, count, seed)?,
            )?;
            same(
                &rand(device, shape(), DType::BF16, seed)?,
                &host::<bf16>(rand, count, seed)?,
            )?;
            same(
                &rand(device, shape(), DType::F64, seed)?,
                &host::<f64>(rand, count, seed)?,
            )?;
        }
    }
    // The shape does not matter.
    integers(context)?;
    let flat = Tensor::rand(device, 24, DType::F32, 9)?.to_vec::<f32>()?;
    assert_eq!(
        Tensor::rand(device, [2, 3, 4], DType::F32, 9)?.to_vec::<f32>()?,
        flat
    );
    Ok(())
}

fn normal_is_close(context: &Context) -> Result<()> {
    let device = context.device();
    let randn = |d: &Device, shape: Vec<usize>, dtype: DType, seed: u64| {
        Tensor::randn(d, shape, dtype, seed)
    };
    for count in COUNTS.into_iter().chain([200_003]) {
        for seed in [1, 12_345] {
            let got = randn(device, vec![count], DType::F32, seed)?.to_vec::<f32>()?;
            let want = host::<f32>(randn, count, seed)?;
            assert_eq!(got.len(), count);
            for (at, (&got, &want)) in got.iter().zip(&want).enumerate() {
                let error = (f64::from(got) - f64::from(want)).abs();
                assert!(
                    error <= 1e-6 * f64::from(want.abs()).max(1.0),
                    "seed {seed}, element {at} of {count}: {got}, not {want}"
                );
            }
            let got = randn(device, vec![count], DType::F16, seed)?.to_vec::<f16>()?;
            let want = host::<f16>(randn, count, seed)?;
            for (&got, &want) in got.iter().zip(&want) {
                let (got, want) = (f64::from(got), f64::from(want));
                assert!(
                    (got - want).abs() <= want.abs() * 2f64.powi(-10) + 1e-6,
                    "{got}, not {want}"
                );
            }
            let got = randn(device, vec![count], DType::BF16, seed)?;
            same(&got, &host::<bf16>(randn, count, seed)?)?;
            let got = randn(device, vec![count], DType::F64, seed)?.to_vec::<f64>()?;
            assert_eq!(got, host::<f64>(randn, count, seed)?);
        }
    }
    Ok(())
}

/// Mean, variance and range; other seeds give other numbers.
fn randomness(context: &Context) -> Result<()> {
    let device = context.device();
    let count = 100_000;
    let moments = |values: &[f32]| {
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        let variance = values
            .iter()
            .map(|&x| (f64::from(x) - mean).powi(2))
            .sum::<f64>();
        (mean, variance / values.len() as f64)
    };
    let uniform = Tensor::rand(device, count, DType::F32, 3)?.to_vec::<f32>()?;
    assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
    let (mean, variance) = moments(&uniform);
    assert!(
        (mean - 0.5).abs() < 0.005 && (variance - 1.0 / 12.0).abs() < 0.002,
        "{mean} {variance}"
    );
    let normal = Tensor::randn(device, count, DType::F32, 3)?.to_vec::<f32>()?;
    let (mean, variance) = moments(&normal);
    assert!(
        mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03,
        "{mean} {variance}"
    );
    // Neighbours are not alike: their correlation is near zero.
    let pairs: f64 = normal
        .windows(2)
        .map(|w| f64::from(w[0]) * f64::from(w[1]))
        .sum();
    assert!((pairs / count as f64).abs() < 0.02);
    // Nor do distributions with one seed tell of each other.
    let integers = Tensor::randint(device, 0..1000, count, DType::I32, 3)?.to_vec::<i32>()?;
    let integers: Vec<f64> = integers
        .iter()
        .map(|&n| f64::from(n) / 1000.0 - 0.5)
        .collect();
    let uniforms: Vec<f64> = uniform.iter().map(|&x| f64::from(x) - 0.5).collect();
    let sizes: Vec<f64> = normal.iter().map(|&x| f64::from(x.abs()) - 0.8).collect();
    for (one, other) in [
        (&integers, &uniforms),
        (&sizes, &uniforms),
        (&sizes, &integers),
    ] {
        let product: f64 = one.iter().zip(other).map(|(a, b)| a * b).sum();
        assert!((product / count as f64).abs() < 0.003, "{product}");
    }
    let other = Tensor::rand(device, count, DType::F32, 4)?.to_vec::<f32>()?;
    let equal = uniform.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(equal < 10, "{equal} of {count} agree for another seed");
    Ok(())
}

/// In place through any view: what the view does not show stays.
fn fill_views<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(30), |rng| {
        let shape = context.shape(rng, 5, 900);
        let count: usize = shape.iter().product();
        let values: Vec<T> = (0..count).map(|_| T::sample(rng)).collect();
        let base = crate::operand::Operand::new(context.device(), values.clone(), &shape)?;
        let ranges: Vec<_> = shape
            .iter()
            .map(|&size| {
                let start = rng.below(size + 1);
                start..rng.between(start, size)
            })
            .collect();
        let mut view = base.slice(&ranges)?.permute(&rng.shuffled(shape.len()))?;
        if !shape.is_empty() && rng.one_in(2) {
            view = view.flip(&[rng.below(shape.len())])?;
        }
        if rng.one_in(3) && view.grid.indices.len() < 300 {
            let repeated: Vec<usize> = [3]
                .into_iter()
                .chain(view.shape().iter().copied())
                .collect();
            view = view.broadcast(&repeated)?;
        }
        view.tensor.fill(42)?;
        let mut want = values;
        for &at in &view.grid.indices {
            want[at] = T::from_value(Value::Integer(42));
        }
        let same_as = |tensor: &Tensor, want: &[T]| -> Result<()> {
            let got = tensor.to_vec::<T>()?;
            let at = (0..got.len()).find(|&at| got[at].bits() != want[at].bits());
            assert_eq!(at, None, "filled {} of {}", view.story(), base.story());
            Ok(())
        };
        same_as(&base.tensor, &want)
    })
}

/// Narrow elements from and to any place in a word, in lines, rows and alone.
fn fill_words<T: Number>(context: &Context) -> Result<()> {
    let (rows, columns) = (3, 12);
    let [zero, one] = [0, 1].map(|x| T::from_value(Value::Integer(x)));
    let filled = |ranges: [Range<usize>; 2], line: bool| -> Result<()> {
        let mut want = vec![zero; rows * columns];
        let whole = Tensor::from_slice(context.device(), &want, [rows, columns])?;
        let [of_rows, of_columns] = ranges;
        if line {
            whole
                .reshape(rows * columns)?
                .slice(of_columns.clone())?
                .fill(1)?;
            want[of_columns].fill(one);
        } else {
            let part = whole.slice((of_rows.clone(), of_columns.clone()))?;
            part.fill(1)?;
            for row in of_rows {
                want[row * columns..][of_columns.clone()].fill(one);
            }
        }
        same(&whole, &want)
    };
    for start in 0..9 {
        for end in start..=12 {
            filled([0..0, start..end], true)?;
            filled([1..3, start..end], false)?;
        }
    }
    filled([0..0, 1..36], true)
}

/// In range, each of them, the same on every device, and none of them more often than by chance.
fn integers(context: &Context) -> Result<()> {
    let (device, cpu) = (context.device(), orlop::Device::cpu());
    for (range, dtype) in [
        (0..10, DType::I32),
        (-3..4, DType::I32),
        (5..6, DType::U32),
        (i64::from(i32::MIN)..1 << 31, DType::I32),
        (0..1 << 32, DType::U32),
        ((1 << 31) - 2..(1 << 31) + 2, DType::U32),
    ] {
        let made = |device| Tensor::randint(device, range.clone(), [777], dtype, 5);
        let (got, want) = (made(device)?, made(&cpu)?);
        assert_eq!(got.device(), device);
        let numbers: Vec<i64> = match dtype {
            DType::I32 => {
                assert_eq!(got.to_vec::<i32>()?, want.to_vec::<i32>()?);
                got.to_vec::<i32>()?.into_iter().map(i64::from).collect()
            }
            _ => {
                assert_eq!(got.to_vec::<u32>()?, want.to_vec::<u32>()?);
                got.to_vec::<u32>()?.into_iter().map(i64::from).collect()
            }
        };
        assert!(numbers.iter().all(|number| range.contains(number)));
        if range.end - range.start <= 10 {
            for number in range.clone() {
                let count = numbers.iter().filter(|&&other| other == number).count() as f64;
                let expected = 777.0 / (range.end - range.start) as f64;
                assert!(
                    (count - expected).abs() <= 5.0 * expected.sqrt(),
                    "{number}: {count}"
                );
            }
        }
    }
    #[allow(clippy::reversed_empty_ranges)]
    for (range, dtype) in [
        (0..0, DType::I32),
        (3..1, DType::U32),
        (-1..3, DType::U32),
        (0..(1 << 31) + 1, DType::I32),
        (0..3, DType::F32),
        (i64::MIN..i64::MAX, DType::I32),
    ] {
        let refused = Tensor::randint(device, range, [3], dtype, 0);
        assert!(matches!(refused, Err(orlop::Error::InvalidArgument(_))));
    }
    Ok(())
}
