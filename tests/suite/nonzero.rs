//! Places of what is not zero, and what a mask selects, against a walk through the elements one by one.

use orlop::{DType, Device, Error, Placement, Result, Tensor, with_hardware_plans};

use crate::adapters::{Context, Variant, in_turn, runs_hardwares};
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::{Operand, same};
use crate::rng::{Rng, cases};
use crate::scan::shape;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("nonzero::arguments", Scope::Device, arguments),
        Test::new("nonzero::zeros", Scope::Kernels, zeros),
        Test::new("nonzero::broadcasts", Scope::Device, broadcasts),
        Test::new("nonzero::in_strict", Scope::Gpu, in_strict),
        Test::new("nonzero::far", Scope::Kernels, far)
            .when(|context| context.variant == Variant::Windows),
        Test::new("nonzero::placed", Scope::Device, placed),
        Test::new(
            "nonzero::written_meanwhile",
            Scope::Device,
            written_meanwhile,
        ),
        Test::new("nonzero::huge", Scope::Large, huge),
        Test::new("nonzero::random::bool", Scope::Kernels, random::<bool>),
        Test::new("nonzero::edges::bool", Scope::Kernels, edges::<bool>),
        Test::new("nonzero::hardware::bool", Scope::Gpu, hardware::<bool>)
            .when(runs_hardwares::<bool>),
    ];
    for_each_dtype!(all, Scope::Kernels, "nonzero::random", random, in_turn);
    for_each_dtype!(all, Scope::Kernels, "nonzero::edges", edges, in_turn);
    for_each_dtype!(
        all,
        Scope::Gpu,
        "nonzero::hardware",
        hardware,
        runs_hardwares
    );
    all
}

fn is_nonzero<T: Number>(x: T) -> bool {
    match x.value() {
        Value::Float(x) => x != 0.0,
        Value::Integer(x) => x != 0,
    }
}

/// The index along each axis of the elements that are named, row by row.
fn indices(shape: &[usize], named: impl Iterator<Item = usize>) -> Vec<u32> {
    let row = |place: usize| {
        let mut inner: usize = shape.iter().product();
        shape.iter().map(move |size| {
            inner /= size;
            (place / inner % size) as u32
        })
    };
    named.flat_map(row).collect()
}

fn check_places<T: Number>(x: &Operand<T>) -> Result<()> {
    let values = x.values();
    let named = (0..values.len()).filter(|&at| is_nonzero(values[at]));
    let want = indices(x.shape(), named.clone());
    let places = x.tensor.nonzero()?;
    let dims = [named.count(), x.shape().len()];
    assert_eq!(
        (places.shape().dims(), places.dtype()),
        (&dims[..], DType::U32)
    );
    same(&places, &want)
}

fn check_selected<T: Number>(x: &Operand<T>, mask: &Operand<bool>) -> Result<()> {
    let shape = x.tensor.shape().broadcast(mask.tensor.shape(), "test")?;
    let all = [x.broadcast(&shape)?.values().len()];
    let (values, named) = (
        x.broadcast(&shape)?.values(),
        mask.broadcast(&shape)?.values(),
    );
    assert_eq!(all, [named.len()]);
    let pairs = values.into_iter().zip(named);
    let want: Vec<T> = pairs.filter(|(_, named)| *named).map(|(x, _)| x).collect();
    let selected = x.tensor.masked_select(&mask.tensor)?;
    assert_eq!(
        (selected.shape().dims(), selected.dtype()),
        (&[want.len()][..], T::DTYPE)
    );
    same(&selected, &want)
}

/// One in so many is zero, or all but one in so many.
fn sampled<T: Number>(one_in: usize, mostly_zero: bool) -> impl Fn(&mut Rng) -> T {
    move |rng| match rng.one_in(one_in) == mostly_zero {
        false if mostly_zero => T::from_value(Value::Integer(0)),
        false => *rng.pick(&T::specials()),
        true if mostly_zero => *rng.pick(&T::specials()),
        true => T::from_value(Value::Integer(0)),
    }
}

fn samples<T: Number>(rng: &mut Rng) -> impl Fn(&mut Rng) -> T + use<T> {
    let one_in = *rng.pick(&[1, 2, 5, 100, 2000]);
    sampled(one_in, rng.one_in(2))
}

fn random<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 600 } else { 9000 };
    cases(if context.is_slow() { 5 } else { 25 }, |rng| {
        let shape = shape(rng, most);
        let sample = samples(rng);
        let x = Operand::<T>::view_of(context.device(), rng, &shape, sample)?;
        check_places(&x)?;
        let sample = samples(rng);
        let mask = Operand::view_of(context.device(), rng, &shape, sample)?;
        check_selected(&x, &mask)
    })
}

/// Sizes around words and workgroups, from offsets that spoil the alignment, of all densities.
fn edges<T: Number>(context: &Context) -> Result<()> {
    let mut sizes = vec![1, 2, 31, 32, 33, 63, 64, 65, 2047, 2048, 2049];
    let mut rows = vec![[1, 700], [700, 1], [3, 33], [33, 3], [70, 65]];
    if !context.is_slow() && context.variant != Variant::Windows {
        sizes.extend([16_383, 16_384, 16_385, 32_800, 65_536, 262_147]);
        rows.extend([[513, 64], [2000, 8], [8, 4100]]);
    }
    cases(1, |rng| {
        for &size in &sizes {
            for one_in in [1, 3, 40] {
                for mostly_zero in [false, true] {
                    let values: Vec<T> = (0..size + 8)
                        .map(|_| sampled(one_in, mostly_zero)(rng))
                        .collect();
                    let x = Operand::new(context.device(), values, &[size + 8])?;
                    let marks = (0..size + 8).map(|_| sampled(one_in, mostly_zero)(rng));
                    let mask = Operand::new(context.device(), marks.collect(), &[size + 8])?;
                    let first = *rng.pick(&[0, 1, 4, 8]);
                    let (x, mask) = (
                        x.range(first..first + size)?,
                        mask.range(8 - first..8 - first + size)?,
                    );
                    check_places(&x)?;
                    check_selected(&x, &mask)?;
                }
            }
        }
        for shape in &rows {
            let sample = samples(rng);
            let x = Operand::<T>::view_of(context.device(), rng, shape, sample)?;
            check_places(&x)?;
            check_places(&x.transpose(0, 1)?)?;
            check_places(&x.flip(&[0])?)?;
            check_places(&x.step(1, 0..shape[1], -2)?)?;
        }
        Ok(())
    })
}

/// The kernels in which a workgroup marks, and an invocation has one mark.
fn hardware<T: Number>(context: &Context) -> Result<()> {
    let shapes: &[&[usize]] = match context.is_slow() {
        true => &[&[2500], &[3, 70]],
        false => &[
            &[70_001],
            &[2048],
            &[2047],
            &[3, 5000],
            &[40, 65],
            &[5, 6, 7, 8],
        ],
    };
    let mut rng = Rng::new(1);
    for shape in shapes {
        let sample = samples(&mut rng);
        let x = Operand::<T>::view_of(context.device(), &mut rng, shape, sample)?;
        let mask = Operand::view_of(context.device(), &mut rng, shape, sampled(3, true))?;
        with_hardware_plans(|| -> Result<()> {
            check_places(&x)?;
            check_selected(&x, &mask)
        })?;
    }
    Ok(())
}

/// -0 is zero, and NaN of any bits and subnormals are not.
fn zeros(context: &Context) -> Result<()> {
    let device = context.device();
    let nan = f32::from_bits(0xff80_0001);
    let x = [0.0, -0.0, nan, 1e-45, -1e-45, f32::NEG_INFINITY];
    let floats = Tensor::from_slice(device, &x, [6])?;
    same(&floats.nonzero()?, &[2u32, 3, 4, 5])?;
    let halves = floats.cast(DType::F16)?.nonzero()?;
    same(&halves, &[2u32, 5])?;
    let whole = Tensor::from_slice(device, &[0, i32::MIN, 1, 0], [2, 2])?;
    same(&whole.nonzero()?, &[0u32, 1, 1, 0])?;
    if device.capabilities().holds(DType::F64) {
        let x = [0.0, -0.0, -5e-324, f64::NAN, f64::from_bits(1 << 32)];
        let wide = Tensor::from_slice(device, &x, [5])?;
        same(&wide.nonzero()?, &[2u32, 3, 4])?;
    }
    Ok(())
}

/// NumPy's rule, both ways.
fn broadcasts(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(2);
    for (of_x, of_mask) in [
        (&[4, 5][..], &[5][..]),
        (&[5], &[4, 5]),
        (&[4, 1], &[1, 5]),
        (&[], &[3, 40]),
        (&[3, 40], &[]),
        (&[2, 1, 70], &[9, 1]),
        (&[], &[]),
        (&[0, 3], &[3]),
    ] {
        let x = Operand::<f32>::random(device, &mut rng, of_x)?;
        for one_in in [1, 2] {
            let mask = Operand::view_of(device, &mut rng, of_mask, sampled(one_in, true))?;
            check_selected(&x, &mask)?;
        }
    }
    Ok(())
}

/// With small bindings: rows further apart than a binding reaches, and places of many axes, by kernels.
fn far(context: &Context) -> Result<()> {
    let device = &context.builder().placement(Placement::Strict).build()?;
    let mut rng = Rng::new(2);
    for shape in [
        &[3, 900][..],
        &[900, 3],
        &[40, 300],
        &[2, 2, 2000],
        &[2, 1, 3, 1, 2, 1, 3, 1, 40],
    ] {
        let x = Operand::<f32>::view_of(device, &mut rng, shape, sampled(2, true))?;
        let last = shape.len() - 1;
        check_places(&x)?;
        check_places(&x.transpose(0, last)?)?;
        let row = x.step(0, 0..1, 1)?;
        let wide: Vec<usize> = [3].iter().chain(&shape[1..]).copied().collect();
        check_places(&row.broadcast(&wide)?)?;
        let mask = Operand::view_of(device, &mut rng, shape, sampled(2, true))?;
        with_hardware_plans(|| check_selected(&x, &mask))?;
    }
    Ok(())
}

/// Nothing goes to the CPU.
fn in_strict(context: &Context) -> Result<()> {
    let device = context.builder().placement(Placement::Strict).build()?;
    let mask = Tensor::ones(&device, [3, 300], DType::Bool)?;
    for &dtype in DType::ALL {
        if device.capabilities().holds(dtype) {
            let x = Tensor::zeros(&device, [3, 300], dtype)?;
            assert_eq!(x.nonzero()?.shape().dims(), [0, 2]);
            assert_eq!(x.masked_select(&mask)?.shape().dims(), [900]);
        }
    }
    Ok(())
}

/// Results live where ops of their operands do.
fn placed(context: &Context) -> Result<()> {
    let (device, cpu) = (context.device(), &Device::cpu());
    let numbers: Vec<f64> = (0..100).map(|x| f64::from(x % 3)).collect();
    let x = Tensor::from_slice(cpu, &numbers, [10, 10])?;
    let mask = x.ne(0.0)?.to(device)?;
    let want: Vec<f64> = numbers.iter().copied().filter(|&x| x != 0.0).collect();
    let selected = x.masked_select(&mask)?;
    assert_eq!(selected.to_vec::<f64>()?, want);
    assert_eq!(mask.nonzero()?.device(), device);
    let here = cpu.scope(|| mask.nonzero())?;
    assert_eq!((here.device(), here.shape().dims()), (cpu, &[66, 2][..]));
    let floats = x.cast(DType::F32)?.to(device)?;
    assert_eq!(floats.masked_select(&mask)?.device(), device);
    let selected = cpu.scope(|| floats.masked_select(&mask))?;
    assert_eq!((selected.device(), selected.elements()), (cpu, 66));
    let selected = device.scope(|| x.masked_select(&mask))?;
    assert_eq!(selected.to_vec::<f64>()?, want);
    Ok(())
}

/// What another thread writes meanwhile is counted or not: each place is written, once.
fn written_meanwhile(context: &Context) -> Result<()> {
    let count = if context.is_slow() { 5000 } else { 200_000 };
    let x = Tensor::zeros(context.device(), [count], DType::I32)?;
    let rounds = if context.is_slow() { 4 } else { 40 };
    std::thread::scope(|threads| -> Result<()> {
        let writer = threads.spawn(|| -> Result<()> {
            for round in 0..rounds {
                x.fill(round % 2)?;
                x.slice(..count as isize / 3)?.fill((round + 1) % 2)?;
            }
            Ok(())
        });
        for _ in 0..rounds {
            let places = x.nonzero()?.to_vec::<u32>()?;
            assert!(places.is_sorted_by(|a, b| a < b));
            assert!(places.last().is_none_or(|&last| last < count as u32));
        }
        writer.join().unwrap_or(Ok(()))
    })
}

/// Above the binding limit, where that is 128 MiB, and more words than workgroups of one dispatch.
fn huge(context: &Context) -> Result<()> {
    let count = (160 << 20) / 4;
    let device = context.device();
    let x = Tensor::arange(device, 0, count as i64, 1, DType::U32)?;
    let places = x.nonzero()?;
    assert_eq!(places.shape().dims(), [count - 1, 1]);
    let want = x.slice(1..)?;
    assert!(!places.squeeze(1)?.ne(&want)?.any(..)?.item::<bool>()?);
    drop(places);
    let few = x.rem(1_000_003)?.eq(7)?;
    let want: Vec<u32> = (7..count as u32).step_by(1_000_003).collect();
    assert_eq!(x.masked_select(&few)?.to_vec::<u32>()?, want);
    let by_rows = few.reshape([count / 64, 64])?.nonzero()?.to_vec::<u32>()?;
    assert_eq!(
        by_rows,
        indices(&[count / 64, 64], want.iter().map(|&x| x as usize))
    );
    Ok(())
}

fn arguments(context: &Context) -> Result<()> {
    let device = context.device();
    let x = Tensor::from_slice(device, &[3.0f32, 0.0, 2.0, 0.0, 0.0, 5.0], [2, 3])?;
    let error = x.masked_select(&x).unwrap_err();
    assert!(matches!(error, Error::DTypeMismatch(_)), "{error}");
    assert!(error.to_string().contains("a mask is bool"), "{error}");
    let mask = Tensor::ones(device, [2], DType::Bool)?;
    let error = x.masked_select(&mask).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch(_)), "{error}");
    // A scalar has an index along no axis.
    for (value, count) in [(0.0, 0), (2.0, 1)] {
        let scalar = Tensor::scalar(device, value as f32)?;
        assert_eq!(scalar.nonzero()?.shape().dims(), [count, 0]);
    }
    for shape in [[0, 3], [2, 0]] {
        let none = Tensor::zeros(device, shape, DType::F16)?;
        assert_eq!(none.nonzero()?.shape().dims(), [0, 2]);
        let mask = Tensor::ones(device, shape, DType::Bool)?;
        let selected = none.masked_select(&mask)?;
        assert_eq!(
            (selected.shape().dims(), selected.dtype()),
            (&[0][..], DType::F16)
        );
    }
    let long = x.slice((..1, ..1))?.broadcast_to([1 << 20, 1 << 12])?;
    let error = long.nonzero().unwrap_err();
    assert!(error.to_string().contains("4294967296"), "{error}");
    let mask = Tensor::ones(device, [1, 1], DType::Bool)?;
    let error = long.masked_select(&mask).unwrap_err();
    assert!(error.to_string().contains("4294967296"), "{error}");
    Ok(())
}
