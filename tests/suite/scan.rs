//! Running sums against those of their own in f64, on any strides.

use orlop::{DType, Error, Result, Tensor, with_hardware_plans};

use crate::adapters::{Context, Variant, full, in_turn, runs_hardwares};
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::Operand;
use crate::reduce::rounding;
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("scan::arguments", Scope::Device, arguments),
        Test::new("scan::long", Scope::Device, long),
        Test::new("scan::alone", Scope::Device, alone).when(Context::is_cpu),
        Test::new("scan::specials", Scope::Kernels, specials),
        Test::new("scan::far_axes", Scope::Kernels, far_axes)
            .when(|context| context.variant == Variant::Windows),
        Test::new("scan::random::bool", Scope::Kernels, random::<bool>),
        Test::new("scan::edges::bool", Scope::Kernels, edges::<bool>),
        Test::new("scan::hardware::bool", Scope::Gpu, hardware::<bool>)
            .when(runs_hardwares::<bool>),
        Test::new("scan::huge", Scope::Large, huge),
    ];
    for_each_dtype!(all, Scope::Kernels, "scan::random", random, in_turn);
    for_each_dtype!(all, Scope::Kernels, "scan::edges", edges, in_turn);
    for_each_dtype!(all, Scope::Gpu, "scan::hardware", hardware, runs_hardwares);
    all
}

/// Additions that an element goes through, at most (docs/numerics.md).
const MOST_ADDED: usize = 640;

fn of<T: Number>(x: T) -> f64 {
    match x.value() {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    }
}

/// Compares `cumsum` with sums in f64, or with whole numbers that wrap.
fn check<T: Number>(x: &Operand<T>, axis: usize) -> Result<()> {
    let sums = x.tensor.cumsum(axis)?;
    let shape = x.shape();
    assert_eq!(sums.shape().dims(), shape);
    let (length, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let values = x.values();
    let lines = (0..values.len())
        .filter(|at| at / inner.max(1) % length == 0)
        .map(|first| (0..length).map(move |at| first + at * inner));
    match T::DTYPE {
        DType::I32 | DType::U32 | DType::Bool => {
            let got: Vec<u32> = match T::DTYPE {
                DType::I32 => sums.to_vec::<i32>()?.iter().map(|&x| x as u32).collect(),
                _ => sums.to_vec()?,
            };
            for line in lines {
                let mut sum = 0u32;
                for at in line {
                    sum = sum.wrapping_add(of(values[at]) as i64 as u32);
                    assert_eq!(got[at], sum, "{:?} along {axis}, {at}", x.tensor);
                }
            }
        }
        dtype => {
            let got = sums.to_vec::<T>()?;
            let most = length.min(MOST_ADDED) as f64;
            let rounded = match dtype {
                DType::F16 | DType::BF16 => rounding(dtype),
                _ => 0.0,
            };
            for line in lines {
                let (mut sum, mut size) = (0.0f64, 0.0);
                let mut lost = 0.0;
                for at in line {
                    let value = of(values[at]);
                    // Of f64 in two parts.
                    let next = sum + value;
                    let back = next - value;
                    lost += (sum - back) + (value - (next - back));
                    sum = next;
                    size += value.abs();
                    let bound = most * rounding(dtype.accumulator()) * size
                        + rounded * sum.abs()
                        + 1e-7 * rounded;
                    let off = (of(got[at]) - sum - lost).abs();
                    assert!(
                        off <= bound,
                        "{:?} along {axis}, {at}: {} is {off} from {sum}, bound {bound}",
                        x.tensor,
                        of(got[at])
                    );
                }
            }
        }
    }
    Ok(())
}

/// Up to six axes, short ones and long ones, with no more elements than that.
pub fn shape(rng: &mut Rng, most: usize) -> Vec<usize> {
    loop {
        let rank = rng.between(1, 6);
        let largest = *rng.pick(&[4, 9, 70, 2000]);
        let shape: Vec<usize> = (0..rank).map(|_| rng.between(1, largest)).collect();
        if shape.iter().product::<usize>() <= most {
            return shape;
        }
    }
}

fn random<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 600 } else { 6000 };
    cases(if context.is_slow() { 6 } else { 25 }, |rng| {
        let shape = shape(rng, most);
        let x = Operand::<T>::random_view(context.device(), rng, &shape)?;
        for axis in 0..shape.len() {
            check(&x, axis)?;
        }
        Ok(())
    })
}

/// Sizes around loads, runs, blocks and lanes, from offsets that spoil the alignment; lines beside each other.
fn edges<T: Number>(context: &Context) -> Result<()> {
    let mut sizes = vec![1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 511, 512, 513];
    let mut lines = vec![
        [1, 700],
        [700, 1],
        [3, 500],
        [500, 3],
        [33, 129],
        [130, 36],
        [64, 64],
    ];
    if !context.is_slow() {
        sizes.extend([4095, 4096, 4100, 65_535, 65_536, 262_147]);
        lines.extend([[513, 64], [2000, 8], [8, 4100], [4100, 12], [20_000, 5]]);
        // Few columns beside each other, in more than one piece.
        lines.extend([
            [70_001, 2],
            [45_000, 3],
            [33_003, 4],
            [9000, 15],
            [9000, 16],
        ]);
    }
    cases(1, |rng| {
        for &size in &sizes {
            let x = Operand::<T>::random(context.device(), rng, &[size + 8])?;
            for first in [0, *rng.pick(&[1, 2, 4])] {
                check(&x.range(first..first + size)?, 0)?;
            }
        }
        for shape in &lines {
            let x = Operand::<T>::random(context.device(), rng, shape)?;
            for axis in [0, 1] {
                check(&x, axis)?;
                check(&x.transpose(0, 1)?, axis)?;
                check(&x.flip(&[axis])?, axis)?;
            }
            if shape[1] > 2 {
                // Gaps between rows.
                check(&x.slice(&[0..shape[0], 1..shape[1]])?, 0)?;
            }
        }
        let x = Operand::<T>::random(context.device(), rng, &[6, 20, 24])?;
        for axis in 0..3 {
            check(&x, axis)?;
            check(&x.permute(&[2, 0, 1])?, axis)?;
            check(&x.permute(&[1, 0, 2])?.flip(&[2])?, axis)?;
        }
        let row = Operand::<T>::random(context.device(), rng, &[1, 90])?;
        for axis in [0, 1] {
            check(&row.broadcast(&[70, 90])?, axis)?;
        }
        Ok(())
    })
}

/// The kernels in which lanes of a workgroup share a block, and those of few invocations across lines.
fn hardware<T: Number>(context: &Context) -> Result<()> {
    let shapes: &[[usize; 2]] = match context.is_slow() {
        true => &[[1, 5000], [5, 64], [3, 130]],
        false => &[
            [1, 300_000],
            [3, 70_001],
            [5, 64],
            [70, 17],
            [900, 4],
            [500, 31],
            [40, 260],
            [9, 1030],
            [2, 4096],
            [300, 40],
        ],
    };
    let mut rng = Rng::new(1);
    for shape in shapes {
        let x = Operand::<T>::random(context.device(), &mut rng, shape)?;
        with_hardware_plans(|| -> Result<()> {
            check(&x, 1)?;
            check(&x, 0)?;
            check(&x.transpose(0, 1)?, 0)?;
            check(&x.slice(&[0..shape[0], 1..shape[1]])?, 1)
        })?;
    }
    Ok(())
}

/// 2^22 equal signs whose roundings all go one way: each sum within the bound, the same bits each time.
fn long(context: &Context) -> Result<()> {
    let count = if context.is_slow() { 1 << 18 } else { 1 << 22 };
    let values: Vec<f32> = (0..count).map(|at| 0.1 + (at % 7) as f32 * 1e-3).collect();
    let x = Operand::new(context.device(), values, &[count])?;
    check(&x, 0)?;
    let first = x.tensor.cumsum(0)?.to_vec::<f32>()?;
    let again = x.tensor.cumsum(0)?.to_vec::<f32>()?;
    assert!(
        first
            .iter()
            .zip(&again)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
    Ok(())
}

/// Long lines that no threads share, by itself, few beside each other and with gaps between them: of equal values, whose
/// roundings all go one way where sums of runs are added up in one part.
fn alone(context: &Context) -> Result<()> {
    let rows = 270_001;
    for columns in [1, 2, 3] {
        let values = vec![1.979_736_3f32; rows * columns];
        let x = Operand::new(context.device(), values, &[rows, columns])?;
        let x = match columns {
            3 => x.slice(&[0..rows, 1..3])?,
            _ => x,
        };
        // A worker of rayon asks no other one.
        let mut checked = Ok(());
        rayon::scope(|scope| scope.spawn(|_| checked = check(&x, 0)));
        checked?;
    }
    Ok(())
}

/// Above the binding limit, where that is 128 MiB: ones of u32, whose sums are their places.
fn huge(context: &Context) -> Result<()> {
    let count = (160 << 20) / 4;
    let ones = Tensor::ones(context.device(), [count], DType::U32)?;
    let places = Tensor::arange(context.device(), 1, count as i64 + 1, 1, DType::U32)?;
    let differ = ones.cumsum(0)?.ne(&places)?;
    assert!(!differ.any(..)?.item::<bool>()?);
    let columns = ones.reshape([count / 64, 64])?.cumsum(0)?;
    let last = columns.slice(-1)?.to_vec::<u32>()?;
    assert_eq!(last, [count as u32 / 64; 64]);
    Ok(())
}

/// With small bindings: rows of neighbours, and axes whose entries lie further apart than a binding reaches.
fn far_axes(context: &Context) -> Result<()> {
    let mut rng = Rng::new(2);
    for shape in [
        &[3, 900][..],
        &[40, 300],
        &[12, 2000],
        &[2, 5000],
        &[9, 7, 200],
        &[2, 2, 2000],
    ] {
        let x = Operand::<f32>::random(context.device(), &mut rng, shape)?;
        for axis in 0..shape.len() {
            check(&x, axis)?;
            let last = shape.len() - 1;
            check(&x.transpose(0, last)?, axis)?;
        }
    }
    Ok(())
}

/// NaN and infinities go into what comes after them, and into nothing else.
fn specials(context: &Context) -> Result<()> {
    let count = 700;
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 1, 63, 64, 200, 511, 512, 699] {
            let mut values = vec![1.0f32; count];
            values[at] = special;
            let x = Tensor::from_slice(context.device(), &values, [count])?;
            let beside = x.reshape([count, 1])?.broadcast_to([count, 5])?.copy()?;
            let of_column = |column: usize| beside.cumsum(0)?.slice((.., column))?.to_vec::<f32>();
            for sums in [x.cumsum(0)?.to_vec::<f32>()?, of_column(4)?] {
                for (place, &sum) in sums.iter().enumerate() {
                    let want = if place < at {
                        place as f32 + 1.0
                    } else {
                        special
                    };
                    let is_right = sum == want || (sum.is_nan() && want.is_nan());
                    assert!(is_right, "{special} at {at}: {sum} at {place}");
                }
            }
        }
    }
    Ok(())
}

fn arguments(context: &Context) -> Result<()> {
    let device = context.device();
    let x = Tensor::ones(device, [2, 3], DType::F32)?;
    for axis in [2, -3] {
        assert!(matches!(x.cumsum(axis), Err(Error::InvalidArgument(_))));
    }
    let scalar = Tensor::ones(device, (), DType::F32)?;
    assert!(matches!(scalar.cumsum(0), Err(Error::InvalidArgument(_))));
    assert_eq!(
        x.cumsum(-1)?.to_vec::<f32>()?,
        [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    );
    for shape in [[0, 3], [2, 0]] {
        let none = Tensor::zeros(device, shape, DType::F16)?;
        for axis in [0, 1] {
            let sums = none.cumsum(axis)?;
            assert_eq!(
                (sums.shape().dims(), sums.dtype()),
                (&shape[..], DType::F16)
            );
        }
    }
    let none = Tensor::zeros(device, [0], DType::Bool)?;
    assert_eq!(none.cumsum(0)?.dtype(), DType::U32);
    // In the order of the tensor's axes.
    let turned = x.transpose(0, 1)?;
    assert!(turned.cumsum(0)?.transpose(0, 1)?.is_contiguous());
    if full() {
        let far = x.reshape([6, 1])?.broadcast_to([6, 1 << 20])?;
        assert_eq!(far.cumsum(0)?.slice((5, 77))?.item::<f32>()?, 6.0);
    }
    Ok(())
}
