//! Sorted elements, their places and the first of them against a stable sort by comparison, on any strides.

use std::cmp::Ordering;

use orlop::{DType, Device, Error, Placement, Result, SortOrder, Tensor, with_hardware_plans};

use crate::adapters::{Context, Variant, in_turn, runs_hardwares};
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::Operand;
use crate::rng::{Rng, cases};
use crate::scan::shape;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("sort::arguments", Scope::Device, arguments),
        Test::new("sort::gathers", Scope::Device, gathers),
        Test::new("sort::in_strict", Scope::Gpu, in_strict),
        Test::new("sort::far", Scope::Kernels, far)
            .when(|context| context.variant == Variant::Windows),
        Test::new("sort::random::bool", Scope::Kernels, random::<bool>),
        Test::new("sort::edges::bool", Scope::Kernels, edges::<bool>),
        Test::new("sort::hardware::bool", Scope::Gpu, hardware::<bool>)
            .when(runs_hardwares::<bool>),
        Test::new("sort::long::bool", Scope::Device, long::<bool>).when(is_cpu::<bool>),
        Test::new("sort::tiles", Scope::Gpu, tiles).when(|context| !context.is_slow()),
        Test::new("sort::placed", Scope::Device, placed),
        Test::new("sort::huge", Scope::Large, huge),
    ];
    for_each_dtype!(all, Scope::Kernels, "sort::random", random, in_turn);
    for_each_dtype!(all, Scope::Kernels, "sort::edges", edges, in_turn);
    for_each_dtype!(all, Scope::Gpu, "sort::hardware", hardware, runs_hardwares);
    for_each_dtype!(all, Scope::Device, "sort::long", long, is_cpu);
    all
}

const ORDERS: [SortOrder; 2] = [SortOrder::Ascending, SortOrder::Descending];

/// NaN is the largest.
pub fn compared<T: Number>(x: T, y: T) -> Ordering {
    match [x.value(), y.value()] {
        [Value::Integer(x), Value::Integer(y)] => x.cmp(&y),
        [x, y] => {
            let [x, y] = [x, y].map(|value| match value {
                Value::Float(x) => x,
                Value::Integer(x) => x as f64,
            });
            match (x.is_nan(), y.is_nan()) {
                (false, false) => x.partial_cmp(&y).unwrap(),
                (x, y) => x.cmp(&y),
            }
        }
    }
}

/// -0 is below 0.
fn with_signs<T: Number>(x: T, y: T) -> Ordering {
    let sign = |x: T| match x.value() {
        Value::Float(x) if x == 0.0 => u8::from(x.is_sign_positive()),
        _ => 0,
    };
    compared(x, y).then(sign(x).cmp(&sign(y)))
}

fn check<T: Number>(x: &Operand<T>, axis: usize) -> Result<()> {
    let shape = x.shape();
    let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let values = x.values();
    let firsts = (0..values.len()).filter(|at| at / inner % size == 0);
    let firsts: Vec<usize> = firsts.collect();
    let tensor = &x.tensor;
    for order in ORDERS {
        let sorted = tensor.sort(axis, order)?;
        let places = tensor.argsort(axis, order)?;
        assert_eq!((sorted.shape(), sorted.dtype()), (tensor.shape(), T::DTYPE));
        assert_eq!(
            (places.shape(), places.dtype()),
            (tensor.shape(), DType::U32)
        );
        let (sorted, places) = (sorted.to_vec::<T>()?, places.to_vec::<u32>()?);
        let kept = [0, 1, 10.min(size), size / 7, size / 2, size];
        let tops = kept.map(|kept| tensor.top_k(kept, axis, order).map(|top| (kept, top)));
        let mut first_ones = Vec::new();
        for top in tops {
            let (kept, (first, at)) = top?;
            let mut dims = shape.to_vec();
            dims[axis] = kept;
            assert_eq!(
                (first.shape().dims(), at.shape().dims()),
                (&dims[..], &dims[..])
            );
            first_ones.push((kept, first.to_vec::<T>()?, at.to_vec::<u32>()?));
        }
        for (line, &first) in firsts.iter().enumerate() {
            let of = |place: usize| values[first + place * inner];
            let in_order = |compared: fn(T, T) -> Ordering| {
                let mut all: Vec<usize> = (0..size).collect();
                all.sort_by(|&x, &y| match order {
                    SortOrder::Ascending => compared(of(x), of(y)),
                    _ => compared(of(y), of(x)),
                });
                all
            };
            let want = in_order(compared);
            let apart = in_order(with_signs);
            for at in 0..size {
                let here = first + at * inner;
                let told = || format!("{tensor:?} along {axis}, {order:?}, line {line}, {at}");
                assert_eq!(places[here], want[at] as u32, "{}", told());
                let value = of(apart[at]);
                assert!(
                    T::is_same(value, sorted[here], false),
                    "{}: {:?} for {value:?}",
                    told(),
                    sorted[here]
                );
                for (kept, first, places) in first_ones.iter().filter(|(kept, ..)| at < *kept) {
                    let of_line = line / inner * inner * kept + line % inner;
                    let here = of_line + at * inner;
                    assert_eq!(places[here], want[at] as u32, "first {kept} of {}", told());
                    assert_eq!(first[here].bits(), of(want[at]).bits(), "{}", told());
                }
            }
        }
    }
    Ok(())
}

/// Equal ones, special ones and others.
pub fn sample<T: Number>(rng: &mut Rng) -> T {
    match rng.below(4) {
        0 => *rng.pick(&T::specials()),
        1 => T::from_value(Value::Integer(rng.below(5) as i64 - 2)),
        _ => T::sample(rng),
    }
}

fn line<T: Number>(context: &Context, rng: &mut Rng, shape: &[usize]) -> Result<Operand<T>> {
    let count = shape.iter().product();
    let values = (0..count).map(|_| sample(rng)).collect();
    Operand::new(context.device(), values, shape)
}

fn random<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 500 } else { 5000 };
    cases(if context.is_slow() { 5 } else { 20 }, |rng| {
        let shape = shape(rng, most);
        let x = Operand::<T>::view_of(context.device(), rng, &shape, sample)?;
        check(&x, rng.below(shape.len()))
    })
}

/// Sizes around kernels and blocks, from offsets that spoil the alignment; lines beside each other.
fn edges<T: Number>(context: &Context) -> Result<()> {
    let mut sizes = vec![1, 2, 3, 63, 64, 65, 127, 129];
    let mut lines = vec![[1, 200], [200, 1], [3, 100], [100, 3], [70, 65]];
    if !context.is_slow() && context.variant != Variant::Windows {
        sizes.extend([511, 512, 513, 1024, 1025, 2047, 2048, 2049, 65_535, 65_536]);
        lines.extend([[513, 64], [8, 4100], [4100, 12], [2, 70_000], [300, 300]]);
    }
    cases(1, |rng| {
        for &size in &sizes {
            let x = line::<T>(context, rng, &[size + 8])?;
            let first = *rng.pick(&[0, 1, 2, 4]);
            check(&x.range(first..first + size)?, 0)?;
        }
        for shape in &lines {
            let x = line::<T>(context, rng, shape)?;
            check(&x, 1)?;
            check(&x.transpose(0, 1)?, 0)?;
            check(&x.flip(&[1])?, 0)?;
        }
        for &size in sizes.iter().filter(|size| (200..5000).contains(*size)) {
            let mut values: Vec<T> = (0..size).map(|_| sample(rng)).collect();
            // In order but for the signs of zeros.
            values.sort_by(|&x, &y| compared(x, y));
            check(&Operand::new(context.device(), values.clone(), &[size])?, 0)?;
            values.sort_by(|&x, &y| with_signs(x, y));
            check(&Operand::new(context.device(), values.clone(), &[size])?, 0)?;
            // In order but for the last one.
            values.rotate_left(1);
            check(&Operand::new(context.device(), values, &[size])?, 0)?;
        }
        let x = line::<T>(context, rng, &[6, 20, 24])?;
        for axis in 0..3 {
            check(&x.permute(&[1, 0, 2])?.flip(&[2])?, axis)?;
        }
        let row = line::<T>(context, rng, &[1, 90])?;
        check(&row.broadcast(&[7, 90])?, 0)?;
        check(&row.broadcast(&[7, 90])?, 1)
    })
}

fn is_cpu<T: Number>(context: &Context) -> bool {
    context.is_cpu()
}

/// Lines that the CPU's threads share: few, of 128 Ki elements and more; of all kinds, in order already, and all alike.
fn long<T: Number>(context: &Context) -> Result<()> {
    cases(1, |rng| {
        for shape in [[1, (128 << 10) - 1], [1, 128 << 10], [3, 150_001]] {
            check(&line::<T>(context, rng, &shape)?, 1)?;
        }
        let mut values: Vec<T> = (0..131_075).map(|_| sample(rng)).collect();
        values.sort_by(|&x, &y| with_signs(x, y));
        check(&Operand::new(context.device(), values, &[131_075])?, 0)?;
        check(&line::<T>(context, rng, &[1])?.broadcast(&[140_000])?, 0)
    })
}

/// The kernels in which workgroups have a line or a block.
fn hardware<T: Number>(context: &Context) -> Result<()> {
    let shapes: &[[usize; 2]] = match context.is_slow() {
        true => &[[1, 2500], [3, 70], [2, 600]],
        false => &[
            [1, 70_001],
            [3, 5000],
            [2, 2049],
            [5, 2048],
            [7, 513],
            [9, 512],
            [40, 65],
            [600, 4],
        ],
    };
    let mut rng = Rng::new(1);
    for shape in shapes {
        let x = line::<T>(context, &mut rng, shape)?;
        with_hardware_plans(|| -> Result<()> {
            check(&x, 1)?;
            check(&x.slice(&[0..shape[0], 1..shape[1]])?, 1)
        })?;
    }
    Ok(())
}

/// Lines that no binding holds, and counts of many blocks, by kernels: places of what goes down, and of what has few values.
fn far(context: &Context) -> Result<()> {
    let device = &strict(context)?;
    let longest = device.capabilities().max_binding_bytes as u32;
    for count in [900u32, 1500, 5000, 9001, longest / 2] {
        let down = Tensor::arange(device, i64::from(count), 0, -1, DType::U32)?;
        let parity = down.rem(2)?;
        let run = || -> Result<()> {
            let want: Vec<u32> = (1..=count).collect();
            assert_eq!(down.sort(0, SortOrder::Ascending)?.to_vec::<u32>()?, want);
            let back: Vec<u32> = (0..count).rev().collect();
            assert_eq!(
                down.argsort(0, SortOrder::Ascending)?.to_vec::<u32>()?,
                back
            );
            let (_, first) = down.top_k(3, 0, SortOrder::Ascending)?;
            assert_eq!(first.to_vec::<u32>()?, back[..3]);
            let places = parity.argsort(0, SortOrder::Descending)?.to_vec::<u32>()?;
            let (odd, even): (Vec<u32>, Vec<u32>) =
                (0..count).partition(|at| (count - at) % 2 == 1);
            assert_eq!(places, [odd, even].concat());
            Ok(())
        };
        if !context.is_slow() || count < 5000 {
            run()?;
            with_hardware_plans(run)?;
        }
    }
    Ok(())
}

/// So many lines that a workgroup has all of each, in two tiles.
fn tiles(context: &Context) -> Result<()> {
    let (lines, size) = (2048, 2100);
    let of_line = |at: usize| (at * 7 + at / 2048).is_multiple_of(3);
    let line: Vec<bool> = (0..size).map(of_line).collect();
    let x = Tensor::from_slice(context.device(), &line, [1, size])?;
    let x = x.broadcast_to([lines, size])?.copy()?;
    let (ones, others): (Vec<u32>, Vec<u32>) = (0..size as u32).partition(|&at| line[at as usize]);
    let want = Tensor::from_vec(context.device(), [ones, others].concat(), [1, size])?;
    let places = with_hardware_plans(|| x.argsort(1, SortOrder::Descending))?;
    assert!(!places.ne(&want)?.any(..)?.item::<bool>()?);
    Ok(())
}

/// What the CPU sorts takes no copy where the tensor lives, and what is empty takes nothing.
fn placed(context: &Context) -> Result<()> {
    let device = context.builder().memory_limit(4 << 20).build()?;
    let x = Tensor::rand(&device, [1024, 768], DType::F32, 1)?;
    let want = x
        .transpose(0, 1)?
        .to(&Device::cpu())?
        .argsort(1, SortOrder::Ascending)?;
    let places = Device::cpu().scope(|| x.argsort(0, SortOrder::Ascending))?;
    assert_eq!(
        places.transpose(0, 1)?.to_vec::<u32>()?,
        want.to_vec::<u32>()?
    );
    let (none, _) = x.top_k(0, 0, SortOrder::Ascending)?;
    assert_eq!(none.shape().dims(), [0, 768]);
    let wide = x.slice((..1, ..1))?.broadcast_to([1, u32::MAX as usize])?;
    assert_eq!(wide.top_k(0, 1, SortOrder::Ascending)?.1.elements(), 0);
    let long = x.slice((..1, ..1))?.broadcast_to([1, 1 << 32])?;
    let error = long.argsort(1, SortOrder::Ascending).unwrap_err();
    assert!(error.to_string().contains("4294967296"), "{error}");
    Ok(())
}

fn strict(context: &Context) -> Result<Device> {
    context.builder().placement(Placement::Strict).build()
}

/// Above the binding limit, where that is 128 MiB.
fn huge(context: &Context) -> Result<()> {
    let count = (160 << 20) / 4;
    let device = context.device();
    let down = Tensor::arange(device, count as i64 - 1, -1, -1, DType::U32)?;
    let up = Tensor::arange(device, 0, count as i64, 1, DType::U32)?;
    let sorted = down.sort(0, SortOrder::Ascending)?;
    assert!(!sorted.ne(&up)?.any(..)?.item::<bool>()?);
    drop(sorted);
    let (first, places) = down.top_k(5, 0, SortOrder::Ascending)?;
    assert_eq!(first.to_vec::<u32>()?, [0, 1, 2, 3, 4]);
    let last = count as u32 - 1;
    assert_eq!(
        places.to_vec::<u32>()?,
        [last, last - 1, last - 2, last - 3, last - 4]
    );
    Ok(())
}

/// Places are an index: of rows, of another tensor of the shape, and the way back.
fn gathers(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(3);
    let keys = Operand::<i32>::random(device, &mut rng, &[40, 30])?.tensor;
    let given = Tensor::arange(device, 0, 1200, 1, DType::F32)?.reshape([40, 30])?;
    for axis in [0, 1] {
        let places = keys.argsort(axis, SortOrder::Ascending)?;
        let moved = given.gather(axis, &places)?;
        let back = moved.gather(axis, &places.argsort(axis, SortOrder::Ascending)?)?;
        assert_eq!(back.to_vec::<f32>()?, given.to_vec::<f32>()?);
        let sorted = keys.gather(axis, &places)?.to_vec::<i32>()?;
        let want = keys.sort(axis, SortOrder::Ascending)?.to_vec::<i32>()?;
        assert_eq!(sorted, want);
    }
    // By a second key first, then by the first one.
    let second = Tensor::from_slice(device, &[2u32, 1, 2, 1, 0], [5])?;
    let first = Tensor::from_slice(device, &[0.0f32, -0.0, -1.0, 0.0, -1.0], [5])?;
    let by_second = second.argsort(0, SortOrder::Ascending)?;
    let by_first = first
        .gather(0, &by_second)?
        .argsort(0, SortOrder::Ascending)?;
    let places = by_second.gather(0, &by_first)?;
    assert_eq!(places.to_vec::<u32>()?, [4, 2, 1, 3, 0]);
    Ok(())
}

/// Nothing goes to the CPU.
fn in_strict(context: &Context) -> Result<()> {
    let device = context
        .builder()
        .placement(orlop::Placement::Strict)
        .build()?;
    for &dtype in DType::ALL {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let x = Tensor::zeros(&device, [3, 3000], dtype)?;
        x.sort(1, SortOrder::Ascending)?;
        x.argsort(1, SortOrder::Descending)?;
        x.top_k(5, 0, SortOrder::Descending).unwrap_err();
        x.top_k(2, 0, SortOrder::Descending)?;
    }
    Ok(())
}

fn arguments(context: &Context) -> Result<()> {
    let device = context.device();
    let x = Tensor::from_slice(device, &[3.0f32, 1.0, 2.0, 4.0, 6.0, 5.0], [2, 3])?;
    let up = SortOrder::Ascending;
    for axis in [2, -3] {
        assert!(matches!(x.sort(axis, up), Err(Error::InvalidArgument(_))));
        assert!(matches!(
            x.argsort(axis, up),
            Err(Error::InvalidArgument(_))
        ));
        assert!(matches!(
            x.top_k(1, axis, up),
            Err(Error::InvalidArgument(_))
        ));
    }
    let many = x.top_k(4, 1, up).unwrap_err().to_string();
    assert!(
        many.contains("4 elements") && many.contains("of 3"),
        "{many}"
    );
    // Nobody waits for what no memory holds.
    let line = x.slice((0, ..1))?;
    let huge = line.broadcast_to([(1 << 61) - 1])?;
    let long = line.broadcast_to([5000])?;
    let refused = |top: Result<(Tensor, Tensor)>| matches!(top, Err(Error::InvalidArgument(_)));
    with_hardware_plans(|| {
        assert!(refused(huge.top_k(1, 0, up)));
        assert!(refused(long.top_k(usize::MAX, 0, up)));
    });
    let scalar = Tensor::ones(device, (), DType::F32)?;
    assert!(matches!(scalar.sort(0, up), Err(Error::InvalidArgument(_))));
    assert_eq!(
        x.sort(-1, up)?.to_vec::<f32>()?,
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    );
    let (first, places) = x.top_k(0, 1, up)?;
    assert_eq!((first.shape().dims(), places.elements()), (&[2, 0][..], 0));
    for shape in [[0, 3], [2, 0]] {
        let none = Tensor::zeros(device, shape, DType::F16)?;
        for axis in [0, 1] {
            let sorted = none.sort(axis, up)?;
            assert_eq!(
                (sorted.shape().dims(), sorted.dtype()),
                (&shape[..], DType::F16)
            );
            assert_eq!(none.argsort(axis, up)?.shape().dims(), shape);
        }
    }
    // With the axis inside.
    assert!(
        x.transpose(0, 1)?
            .sort(0, up)?
            .transpose(0, 1)?
            .is_contiguous()
    );
    Ok(())
}
