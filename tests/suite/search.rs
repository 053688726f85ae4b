//! Where values belong in sorted lines, and quantiles, against counts of what comes before and sorted lines in f64.

use std::cmp::Ordering;

use orlop::{DType, Device, Error, Placement, Result, SearchSide, SortOrder, Tensor};

use crate::adapters::{Context, Variant, in_turn};
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::{Operand, same};
use crate::reduce::rounding;
use crate::rng::{Rng, cases, seed};
use crate::scan::shape;
use crate::sort::{compared, sample};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("search::arguments", Scope::Device, arguments),
        Test::new("search::in_strict", Scope::Gpu, in_strict),
        Test::new("search::placed", Scope::Device, placed),
        Test::new("search::close", Scope::Kernels, close),
        Test::new("search::far", Scope::Kernels, far)
            .when(|context| context.variant == Variant::Windows),
        Test::new("search::huge", Scope::Large, huge),
        Test::new("search::random::bool", Scope::Kernels, random::<bool>),
        Test::new("quantile::arguments", Scope::Device, quantile_arguments),
        Test::new("quantile::specials", Scope::Device, specials),
        Test::new("quantile::long", Scope::Device, long_quantiles),
    ];
    for_each_dtype!(all, Scope::Kernels, "search::random", random, in_turn);
    all.extend([
        Test::new("quantile::random::f32", Scope::Device, quantiles::<f32>),
        Test::new("quantile::random::f64", Scope::Device, quantiles::<f64>),
        Test::new(
            "quantile::random::f16",
            Scope::Device,
            quantiles::<orlop::f16>,
        ),
        Test::new(
            "quantile::random::bf16",
            Scope::Device,
            quantiles::<orlop::bf16>,
        ),
    ]);
    all
}

const SIDES: [SearchSide; 2] = [SearchSide::Left, SearchSide::Right];

fn check<T: Number>(lines: &Operand<T>, values: &Operand<T>) -> Result<()> {
    let (of_lines, shape) = (lines.shape(), values.shape());
    let size = of_lines[of_lines.len() - 1];
    let (sorted, wanted) = (lines.values(), values.values());
    let of_line = match of_lines.len() {
        1 => wanted.len(),
        _ => shape[shape.len() - 1],
    };
    for side in SIDES {
        let want: Vec<u32> = (0..wanted.len())
            .map(|at| {
                let line = &sorted[at / of_line * size..][..size];
                let is_before = |&&x: &&T| match compared(x, wanted[at]) {
                    Ordering::Less => true,
                    Ordering::Equal => side == SearchSide::Right,
                    Ordering::Greater => false,
                };
                line.iter().filter(is_before).count() as u32
            })
            .collect();
        let places = lines.tensor.search_sorted(&values.tensor, side)?;
        assert_eq!((places.shape().dims(), places.dtype()), (shape, DType::U32));
        same(&places, &want)?;
    }
    Ok(())
}

/// A view of lines in order.
fn in_order<T: Number>(context: &Context, rng: &mut Rng, shape: &[usize]) -> Result<Operand<T>> {
    let (&size, outer) = shape.split_last().unwrap();
    let count = shape.iter().product::<usize>();
    let mut values: Vec<T> = (0..count).map(|_| sample(rng)).collect();
    for line in values.chunks_mut(size.max(1)) {
        line.sort_by(|&x, &y| compared(x, y));
    }
    match outer.len() {
        // Backwards, or with gaps.
        0 if rng.one_in(2) => {
            values.reverse();
            Operand::new(context.device(), values, shape)?.flip(&[0])
        }
        1 if rng.one_in(2) => {
            let turned: Vec<T> = (0..count)
                .map(|at| values[at % outer[0] * size + at / outer[0]])
                .collect();
            Operand::new(context.device(), turned, &[size, outer[0]])?.transpose(0, 1)
        }
        _ => Operand::new(context.device(), values, shape),
    }
}

fn random<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 400 } else { 3000 };
    cases(if context.is_slow() { 4 } else { 20 }, |rng| {
        let values = shape(rng, most);
        let size = *rng.pick(&[1, 2, 3, 15, 16, 17, 64, 255, 1000]);
        let line = in_order::<T>(context, rng, &[size])?;
        let wanted = Operand::view_of(context.device(), rng, &values, sample)?;
        check(&line, &wanted)?;
        let (rows, size) = (rng.between(1, 9), rng.between(1, 70));
        let lines = in_order::<T>(context, rng, &[rows, size])?;
        let columns = rng.between(1, 40);
        let wanted = Operand::view_of(context.device(), rng, &[rows, columns], sample)?;
        check(&lines, &wanted)?;
        // Values in order, as those are that rows are repeated by; most of one line belong among few of its elements.
        for [size, wanted] in [[7, 40], [60, 1100], [900, 1030], [2500, 300]] {
            if size * wanted < 50 * most {
                let line = in_order::<T>(context, rng, &[size])?;
                check(&line, &in_order::<T>(context, rng, &[wanted])?)?;
            }
        }
        // One line for all.
        check(
            &lines.slice(&[0..1, 0..size])?.broadcast(&[rows, size])?,
            &wanted,
        )
    })
}

fn strict(context: &Context) -> Result<Device> {
    context.builder().placement(Placement::Strict).build()
}

/// Lines up to what a binding holds by kernels; longer ones are the CPU's.
fn far(context: &Context) -> Result<()> {
    let device = &strict(context)?;
    let bound = device.capabilities().max_binding_bytes as i64;
    for (size, is_bound) in [(bound / 4 - 128, true), (bound / 4 + 1, false)] {
        let line = Tensor::arange(device, 0, size, 1, DType::U32)?;
        let wanted = Tensor::arange(device, 0, 3 * size, 1, DType::U32)?.rem(size)?;
        let places = line.search_sorted(&wanted, SearchSide::Left);
        assert_eq!(places.is_ok(), is_bound);
        if let Ok(places) = places {
            same(&places, &wanted.to_vec::<u32>()?)?;
        }
        let (line, wanted) = (line.to(context.device())?, wanted.to(context.device())?);
        let places = line.search_sorted(&wanted, SearchSide::Right)?;
        assert_eq!(places.device(), context.device());
        same(&places, &wanted.add(1)?.to_vec::<u32>()?)?;
    }
    let lines = Tensor::arange(device, 0, 9000, 1, DType::I32)?.reshape([30, 300])?;
    let places = lines.search_sorted(&lines, SearchSide::Left)?;
    let want: Vec<u32> = (0..9000).map(|at| at % 300).collect();
    same(&places, &want)
}

/// Nothing goes to the CPU.
fn in_strict(context: &Context) -> Result<()> {
    let device = strict(context)?;
    for &dtype in DType::ALL {
        if device.capabilities().holds(dtype) {
            let line = Tensor::zeros(&device, [300], dtype)?;
            let places = line.search_sorted(&line, SearchSide::Right)?;
            same(&places, &[300u32; 300])?;
            // Another part of the same storage.
            let [first, rest] = [line.slice(..100)?, line.slice(100..)?];
            let places = first.search_sorted(&rest, SearchSide::Left)?;
            same(&places, &[0u32; 200])?;
        }
    }
    Ok(())
}

fn placed(context: &Context) -> Result<()> {
    let (device, cpu) = (context.device(), Device::cpu());
    let line = Tensor::from_slice(&cpu, &[1.0f32, 2.0, 3.0], [3])?;
    let wanted = Tensor::from_slice(device, &[2.5f32], [1])?;
    let home = if device.is_cpu() { &cpu } else { device };
    let places = line.search_sorted(&wanted, SearchSide::Left)?;
    assert_eq!(places.device(), home);
    same(&places, &[2u32])?;
    let here = cpu.scope(|| line.search_sorted(&wanted, SearchSide::Left))?;
    assert_eq!(here.device(), &cpu);
    let none = line.slice(..0)?.search_sorted(&wanted, SearchSide::Right)?;
    assert_eq!(none.device(), home);
    same(&none, &[0u32])
}

/// f64 that differ in the lower one of their key's two words alone, which makes numbers and NaN of zeros and infinities.
fn close(context: &Context) -> Result<()> {
    let (one, infinity) = (1f64.to_bits(), f64::INFINITY.to_bits());
    let above = [one..one + 30, 0..3, infinity - 1..infinity + 2];
    let above = above.into_iter().flatten().map(f64::from_bits);
    let mut values: Vec<f64> = above.flat_map(|x| [x, -x]).collect();
    values.sort_by(|&x, &y| compared(x, y));
    let count = values.len();
    let wanted: Vec<f64> = (0..count).map(|at| values[at * 31 % count]).collect();
    let line = Operand::new(context.device(), values, &[count])?;
    check(&line, &Operand::new(context.device(), wanted, &[count])?)
}

/// Values above the binding limit, where that is 128 MiB.
fn huge(context: &Context) -> Result<()> {
    let count = (160 << 20) / 4;
    let line = Tensor::arange(context.device(), 0, 1000, 1, DType::U32)?;
    let wanted = Tensor::arange(context.device(), 0, count, 1, DType::U32)?.rem(1000)?;
    let places = line.search_sorted(&wanted, SearchSide::Left)?;
    assert!(!places.ne(&wanted)?.any(..)?.item::<bool>()?);
    Ok(())
}

fn arguments(context: &Context) -> Result<()> {
    let device = context.device();
    let left = SearchSide::Left;
    let line = Tensor::from_slice(device, &[1.0f32, 2.0, 3.0], [3])?;
    let lines = Tensor::ones(device, [2, 3], DType::F32)?;
    let error = line.search_sorted(&Tensor::ones(device, [2], DType::I32)?, left);
    assert!(matches!(error, Err(Error::DTypeMismatch(_))));
    for shape in [&[3][..], &[3, 3], &[2, 2, 2], &[]] {
        let wanted = Tensor::ones(device, shape, DType::F32)?;
        let error = lines.search_sorted(&wanted, left);
        assert!(matches!(error, Err(Error::ShapeMismatch(_))), "{shape:?}");
        assert_eq!(line.search_sorted(&wanted, left)?.shape().dims(), shape);
    }
    let scalar = Tensor::ones(device, (), DType::F32)?;
    let error = scalar.search_sorted(&line, left).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    let place = line.search_sorted(&Tensor::scalar(device, 2.5f32)?, left)?;
    assert_eq!((place.shape().rank(), place.item::<u32>()?), (0, 2));
    for shape in [[2, 0], [0, 4]] {
        let wanted = Tensor::ones(device, shape, DType::F32)?;
        let of_each = Tensor::ones(device, [shape[0], 3], DType::F32)?;
        let places = of_each.search_sorted(&wanted, left)?;
        assert_eq!(
            (places.shape().dims(), places.dtype()),
            (&shape[..], DType::U32)
        );
        assert_eq!(line.search_sorted(&wanted, left)?.shape().dims(), shape);
    }
    let none = lines.slice((.., ..0))?;
    same(&none.search_sorted(&lines, SearchSide::Right)?, &[0u32; 6])?;
    let long = line.slice(..1)?.broadcast_to([1 << 32])?;
    let error = long.search_sorted(&line, left).unwrap_err();
    assert!(error.to_string().contains("4294967296"), "{error}");
    let long = line.slice(..1)?.broadcast_to([1 << 62])?;
    let error = long.search_sorted(&line, left).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    Ok(())
}

fn float<T: Number>(x: T) -> f64 {
    match x.value() {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    }
}

fn quantiles<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 300 } else { 3000 };
    cases(if context.is_slow() { 4 } else { 15 }, |rng| {
        let shape = shape(rng, most);
        let x = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let axis = rng.below(shape.len());
        let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let values = x.values();
        for q in [0.0, 0.25, 0.5, 1.0, rng.unit().abs()] {
            let got = x.tensor.quantile(q, axis)?;
            let mut want = shape.clone();
            want.remove(axis);
            assert_eq!((got.shape().dims(), got.dtype()), (&want[..], T::DTYPE));
            let firsts = (0..values.len()).filter(|at| at / inner % size == 0);
            for (first, got) in firsts.zip(got.to_vec::<T>()?) {
                let line = (0..size).map(|at| float(values[first + at * inner]));
                let mut line: Vec<f64> = line.collect();
                line.sort_by(f64::total_cmp);
                let place = q * (size - 1) as f64;
                let (low, part) = (place as usize, place.fract());
                let next = line[(low + 1).min(size - 1)];
                let want = line[low] * (1.0 - part) + next * part;
                let bound = 4.0 * rounding(T::DTYPE) * line[low].abs().max(next.abs()) + 1e-7;
                let off = (float(got) - want).abs();
                assert!(
                    off <= bound,
                    "{q} of {:?}: {} for {want}",
                    x.tensor,
                    float(got)
                );
            }
            if q == 0.5 {
                same(&x.tensor.median(axis)?, &got.to_vec::<T>()?)?;
            }
        }
        Ok(())
    })
}

/// Lines of many elements and of many that are equal, whose places the CPU finds by a sample.
fn long_quantiles(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(seed());
    let sizes: &[usize] = match context.is_slow() {
        true => &[48, 2049],
        false => &[47, 48, 2047, 2048, 2049, 70_001, 300_001],
    };
    for &size in sizes {
        let random: Vec<f32> = (0..size).map(|_| rng.unit() as f32).collect();
        let lines = [
            random.clone(),
            random.iter().map(|x| (4.0 * x).round()).collect(),
            random.iter().map(|x| x.max(0.0)).collect(),
            (0..size).map(|at| at as f32).collect(),
            (0..size).map(|at| -(at as f32)).collect(),
            (0..size).map(|at| (at % 16) as f32).collect(),
            vec![-3.0; size],
            (0..size).map(|at| f32::from(at + 1 == size)).collect(),
        ];
        let x = Tensor::from_slice(device, &lines.concat(), [lines.len(), size])?;
        let last = size - 1;
        let near = 1.0 / last as f64;
        for q in [0.0, 0.3 * near, near, 0.25, 0.5, 0.99, 1.0 - near, 1.0] {
            let got = x.quantile(q, 1)?.to_vec::<f32>()?;
            for (line, got) in lines.iter().zip(got) {
                let mut line = line.clone();
                line.sort_by(f32::total_cmp);
                let place = q * last as f64;
                let low = (place as usize).min(last);
                let (at, next) = (f64::from(line[low]), f64::from(line[(low + 1).min(last)]));
                let want = at + (next - at) * (place - low as f64);
                let off = (f64::from(got) - want).abs();
                assert!(
                    off <= 1e-6 * at.abs().max(next.abs()) + 1e-7,
                    "{q} of {size}: {got} for {want}"
                );
            }
        }
        // One line alone, which threads share where it is long; in the middle of an odd one is an element of it.
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let typed = x.cast(dtype)?;
            let sorted = typed.sort(1, SortOrder::Ascending)?;
            for line in (0..lines.len()).filter(|_| size % 2 == 1) {
                let want = sorted
                    .slice((line, (size / 2) as isize))?
                    .cast(DType::F64)?;
                let got = typed.slice(line)?.median(0)?.cast(DType::F64)?;
                same(&got, &want.to_vec::<f64>()?)?;
            }
        }
        let mut spoiled = lines.concat();
        spoiled[size / 3] = f32::NAN;
        let spoiled = Tensor::from_slice(device, &spoiled, [lines.len(), size])?;
        let got = spoiled.median(1)?.to_vec::<f32>()?;
        assert!(got[0].is_nan() && got[1..].iter().all(|x| !x.is_nan()));
    }
    Ok(())
}

fn specials(context: &Context) -> Result<()> {
    let device = context.device();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [1.0, nan, 3.0, 2.0],
        [inf, inf, inf, inf],
        [-inf, 1.0, 2.0, inf],
        [-inf, -inf, inf, inf],
        [0.1, 0.1, 0.1, 0.1],
    ];
    let x = Tensor::from_slice(device, rows.as_flattened(), [5, 4])?;
    let half = x.median(1)?.to_vec::<f32>()?;
    assert!(half[0].is_nan() && half[3].is_nan());
    assert_eq!([half[1], half[2], half[4]], [inf, 1.5, 0.1]);
    let most = x.quantile(0.9, -1)?.to_vec::<f32>()?;
    assert!(most[0].is_nan());
    assert_eq!(most[1..], [inf, inf, inf, 0.1]);
    let least = x.quantile(0.0, 1)?.to_vec::<f32>()?;
    assert!(least[0].is_nan());
    assert_eq!(least[1..], [inf, -inf, -inf, 0.1]);
    let sorted = x.sort(1, SortOrder::Ascending)?.slice((1.., 3))?;
    same(&x.slice(1..)?.quantile(1.0, 1)?, &sorted.to_vec::<f32>()?)?;
    // Between equal ones lies no other, however they round.
    for at in 0..100 {
        let got = x.slice(4)?.quantile(f64::from(at) / 100.0, 0)?;
        assert_eq!(got.item::<f32>()?, 0.1, "{at}");
    }
    // Places that f64 has a little beside an entry, where the next one is infinite: parts that f16 has not.
    let count = |at: i32| if at > 55 { f32::INFINITY } else { at as f32 };
    let high: Vec<f32> = (0..101).map(count).collect();
    let low: Vec<f32> = (0..101).map(|at| -count(100 - at)).collect();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let [high, low] = [&high, &low].map(|line| -> Result<Tensor> {
            Tensor::from_slice(context.device(), line, [101])?.cast(dtype)
        });
        let (high, low) = (high?, low?);
        for q in [0.55, 0.45, 0.29, 0.07, 1e-50] {
            for (line, is_high) in [(&high, true), (&low, false)] {
                let got = line.quantile(q, 0)?.cast(DType::F32)?.item::<f32>()?;
                let place = q * 100.0;
                let is_infinite = match is_high {
                    true => place > 55.0,
                    false => place < 45.0,
                };
                assert!(
                    !got.is_nan() && got.is_infinite() == is_infinite,
                    "{q} of {dtype}: {got}"
                );
            }
        }
    }
    Ok(())
}

fn quantile_arguments(context: &Context) -> Result<()> {
    let x = Tensor::ones(context.device(), [2, 3], DType::F32)?;
    for q in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(x.quantile(q, 0), Err(Error::InvalidArgument(_))));
    }
    for axis in [2, -3] {
        assert!(matches!(x.median(axis), Err(Error::InvalidArgument(_))));
    }
    let whole = x.cast(DType::I32)?;
    assert!(matches!(whole.median(0), Err(Error::InvalidArgument(_))));
    let none = x.slice((.., ..0))?;
    for sides in [[1 << 32, 1], [1 << 20, 1 << 20]] {
        let many = Tensor::zeros(context.device(), [1, 1], DType::F32)?.broadcast_to(sides)?;
        assert!(matches!(many.median(0), Err(Error::InvalidArgument(_))));
    }
    let error = none.median(1).unwrap_err().to_string();
    assert!(error.contains("is empty"), "{error}");
    assert_eq!(none.median(0)?.shape().dims(), [0]);
    assert_eq!(x.median(-1)?.shape().dims(), [2]);
    Ok(())
}
