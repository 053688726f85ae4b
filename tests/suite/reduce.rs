//! Reductions against sums of their own in f64, on any strides.

use orlop::{Axes, DType, Device, Error, Result, Tensor, bf16, f16, keepdim, with_hardware_plans};

use crate::adapters::{Context, Variant, full, in_turn, runs_hardwares, stored_alone};
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::Operand;
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("reduce::empty", Scope::Device, empty),
        Test::new("reduce::arguments", Scope::Device, arguments),
        Test::new("reduce::long", Scope::Device, long),
        Test::new("reduce::huge", Scope::Large, huge),
        Test::new(
            "reduce::truth_of_specials",
            Scope::Kernels,
            truth_of_specials,
        ),
        Test::new("reduce::in_kernels", Scope::Gpu, in_kernels),
        Test::new("reduce::wide_columns", Scope::Device, wide_columns)
            .when(|context| !context.is_slow() || full()),
        Test::new(
            "reduce::windows_of_wide_elements",
            Scope::Gpu,
            windows_of_wide_elements,
        )
        .when(|context| !context.is_slow() || full()),
        Test::new("reduce::random::bool", Scope::Kernels, random::<bool>),
        Test::new("reduce::edges::bool", Scope::Kernels, edges::<bool>),
    ];
    all.push(Test::new(
        "reduce::far_from_zero",
        Scope::Kernels,
        far_from_zero,
    ));
    all.push(Test::new(
        "reduce::squares_beyond",
        Scope::Kernels,
        squares_beyond,
    ));
    for_each_dtype!(
        all,
        Scope::Gpu,
        "reduce::hardware",
        hardware,
        runs_hardwares
    );
    for_each_dtype!(
        all,
        Scope::Gpu,
        "reduce::large_columns",
        large_columns,
        stored_alone
    );
    // At sizes that the slow adapters have no time for.
    all.push(
        Test::new("reduce::hardware_specials", Scope::Gpu, hardware_specials)
            .when(|context| !context.is_slow() || full()),
    );
    all.push(
        Test::new("reduce::hardware::bool", Scope::Gpu, hardware::<bool>)
            .when(runs_hardwares::<bool>),
    );
    for_each_dtype!(all, Scope::Kernels, "reduce::specials", specials);
    for_each_dtype!(all, Scope::Kernels, "reduce::random", random, in_turn);
    for_each_dtype!(all, Scope::Kernels, "reduce::edges", edges, in_turn);
    for_each_dtype!(all, Scope::Kernels, "reduce::short", short, in_turn);
    for_each_dtype!(all, Scope::Kernels, "reduce::pooled", pooled, in_turn);
    for_each_dtype!(all, Scope::Device, "reduce::abreast", abreast, is_native);
    all.push(
        Test::new("reduce::abreast::bool", Scope::Device, abreast::<bool>).when(is_native::<bool>),
    );
    all.push(Test::new("reduce::zeros", Scope::Device, zeros).when(is_native::<f32>));
    all
}

/// For each output, the elements that belong to it, in row-major order of the reduced axes.
pub fn groups<T: Copy>(values: &[T], shape: &[usize], axes: &[usize]) -> Vec<Vec<T>> {
    let kept: Vec<usize> = (0..shape.len())
        .filter(|axis| !axes.contains(axis))
        .collect();
    let outputs: usize = kept.iter().map(|&axis| shape[axis]).product();
    let mut groups = vec![Vec::new(); outputs];
    for (element, &value) in values.iter().enumerate() {
        let mut index = vec![0; shape.len()];
        let mut rest = element;
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        let output = kept
            .iter()
            .fold(0, |at, &axis| at * shape[axis] + index[axis]);
        groups[output].push(value);
    }
    groups
}

pub fn kept_shape(shape: &[usize], axes: &[usize], keep: bool) -> Vec<usize> {
    let sizes = shape.iter().enumerate();
    sizes
        .filter_map(|(axis, &size)| match axes.contains(&axis) {
            true => keep.then_some(1),
            false => Some(size),
        })
        .collect()
}

pub fn random_axes(rng: &mut Rng, rank: usize) -> Vec<usize> {
    let order = rng.shuffled(rank);
    order[..rng.between(0, rank)].to_vec()
}

/// Relative step of a float dtype, half of it: what one rounding costs.
pub fn rounding(dtype: DType) -> f64 {
    2f64.powi(match dtype {
        DType::F16 => -11,
        DType::BF16 => -8,
        DType::F64 => -53,
        _ => -24,
    })
}

fn float<T: Number>(x: T) -> f64 {
    match x.value() {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    }
}

/// What is reduced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Sum,
    Mean,
    Norm,
    Prod,
    Max,
    Min,
    ArgMax,
    ArgMin,
    Var,
    Std,
    LogSumExp,
    Any,
    All,
}

impl What {
    const EACH: [What; 13] = [
        What::Sum,
        What::Mean,
        What::Norm,
        What::Prod,
        What::Max,
        What::Min,
        What::ArgMax,
        What::ArgMin,
        What::Var,
        What::Std,
        What::LogSumExp,
        What::Any,
        What::All,
    ];
    const OF_BOOL: [What; 5] = [What::Sum, What::Max, What::Min, What::Any, What::All];
    const OF_INTEGERS: [What; 8] = [
        What::Sum,
        What::Prod,
        What::Max,
        What::Min,
        What::ArgMax,
        What::ArgMin,
        What::Any,
        What::All,
    ];

    fn of(dtype: DType) -> &'static [What] {
        match dtype {
            DType::Bool => &What::OF_BOOL,
            DType::I32 | DType::U32 => &What::OF_INTEGERS,
            _ => &What::EACH,
        }
    }

    /// On software adapters mostly one of each kind: a sum, places, two numbers at a time.
    fn some(context: &Context, rng: &mut Rng, dtype: DType) -> What {
        let one = match dtype {
            DType::Bool => What::Sum,
            DType::I32 | DType::U32 => *rng.pick(&[What::Sum, What::ArgMin]),
            _ => *rng.pick(&[What::Sum, What::ArgMin, What::Var]),
        };
        context.op(rng, What::of(dtype), one)
    }

    fn run(self, x: &Tensor, axes: Axes) -> Result<Tensor> {
        match self {
            What::Sum => x.sum(axes),
            What::Mean => x.mean(axes),
            What::Norm => x.norm(axes),
            What::Prod => x.prod(axes),
            What::Max => x.max(axes),
            What::Min => x.min(axes),
            What::ArgMax => x.argmax(axes),
            What::ArgMin => x.argmin(axes),
            What::Var => x.var(axes, 0),
            What::Std => x.std(axes, 1),
            What::LogSumExp => x.logsumexp(axes),
            What::Any => x.any(axes),
            What::All => x.all(axes),
        }
    }
}

type Verdict = std::result::Result<(), String>;

/// One output against its elements.
fn judge<T: Number>(what: What, got: T, elements: &[T]) -> Verdict {
    if matches!(what, What::Max | What::Min) {
        let best = elements[best(what == What::Min, elements)];
        let is_zero = float(best) == 0.0 && float(got) == 0.0;
        return match is_zero || T::is_same(best, got, false) {
            true => Ok(()),
            false => Err(format!("{got}, not {best}")),
        };
    }
    if !T::DTYPE.is_float() {
        let start = i64::from(what == What::Prod);
        let all: i64 = elements
            .iter()
            .fold(start, |all, x| match (x.value(), what) {
                (Value::Integer(x), What::Sum) => all.wrapping_add(x),
                (Value::Integer(x), _) => all.wrapping_mul(x),
                (Value::Float(_), _) => all,
            });
        // `as` of i64 to 32 bits wraps.
        let want = T::from_value(Value::Integer(all & 0xffff_ffff));
        return match want.bits() == got.bits() {
            true => Ok(()),
            false => Err(format!("{got}, not {want}")),
        };
    }
    let values: Vec<f64> = elements.iter().map(|&x| float(x)).collect();
    // Parts of a product go over or under, whatever it is as a whole.
    let sizes = values.iter().filter(|&&x| x != 0.0);
    if what == What::Prod && sizes.map(|x| x.abs().log2().abs()).sum::<f64>() > 100.0 {
        return Ok(());
    }
    let each = rounding(T::DTYPE.accumulator());
    let (want, slack) = reference(what, &values, each);
    let bound = slack + rounding(T::DTYPE) * want.abs();
    let got = float(got);
    let largest = if T::DTYPE == DType::F16 {
        65_504.0
    } else {
        3e38
    };
    let is_beyond = want.abs() > largest * 0.999 && got.abs() > largest * 0.999;
    let smallest = if T::DTYPE == DType::F16 {
        2f64.powi(-24)
    } else {
        1e-37
    };
    let is_same = (want.is_nan() && got.is_nan()) || want == got;
    match is_same || is_beyond || (got - want).abs() <= bound + smallest {
        true => Ok(()),
        false => Err(format!("{got:e}, not {want:e} within {bound:e}")),
    }
}

/// A sum without the roundings that a chain of so many has (Neumaier's way).
fn total(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut rest) = (0.0f64, 0.0);
    for x in values {
        let next = sum + x;
        rest += if sum.abs() >= x.abs() {
            (sum - next) + x
        } else {
            (x - next) + sum
        };
        sum = next;
    }
    if sum.is_finite() { sum + rest } else { sum }
}

/// The value in f64, and how far off one may be that rounds by `each` (relative) at each step, in
/// chains of at most 256.
fn reference(what: What, values: &[f64], each: f64) -> (f64, f64) {
    let count = values.len() as f64;
    let chain = each * count.min(256.0);
    let sum: f64 = total(values.iter().copied());
    let size: f64 = values.iter().map(|x| x.abs()).sum();
    let mean = sum / count;
    let squares: f64 = total(values.iter().map(|x| (x - mean).powi(2)));
    // The mean is off by so much.
    let shift = (chain + 8.0 * each) * size / count;
    let spread = (chain + 16.0 * each) * squares
        + 2.0 * (squares * count).sqrt() * shift
        + count * shift * shift;
    match what {
        What::Sum => (sum, chain * size),
        What::Mean => (mean, (chain * size + 4.0 * each * sum.abs()) / count),
        What::Norm => {
            let norm = total(values.iter().map(|x| x * x)).sqrt();
            (norm, (chain + 8.0 * each) * norm)
        }
        What::Prod => {
            let product: f64 = values.iter().product();
            (product, each * count * product.abs() * 1.1)
        }
        What::Var => (squares / count, spread / count),
        What::Std => {
            let std = (squares / (count - 1.0)).sqrt();
            let spread = spread / (count - 1.0);
            (
                std,
                (spread / std.max(1e-300)).min(spread.sqrt()) + 8.0 * each * std,
            )
        }
        _ => {
            let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let parts = values.iter().map(|x| (x - top).exp()).sum::<f64>();
            let want = match (
                sum.is_nan() && values.iter().any(|x| x.is_nan()),
                top.is_infinite(),
            ) {
                (true, _) => f64::NAN,
                (false, true) => top,
                (false, false) => top + parts.ln(),
            };
            // exp of distances that are off by half a step of themselves.
            (want, chain + each * (16.0 + 4.0 * (top.abs() + parts.ln())))
        }
    }
}

/// The first of the best ones; NaN is best.
fn best<T: Number>(least: bool, elements: &[T]) -> usize {
    let mut at = 0;
    for (place, x) in elements.iter().enumerate() {
        let is_better = match (x.value(), elements[at].value()) {
            (Value::Integer(x), Value::Integer(y)) => {
                if least {
                    x < y
                } else {
                    x > y
                }
            }
            (Value::Float(_), Value::Float(y)) if y.is_nan() => false,
            (Value::Float(x), Value::Float(y)) => x.is_nan() || if least { x < y } else { x > y },
            _ => false,
        };
        if is_better {
            at = place;
        }
    }
    at
}

fn check<T: Number>(
    context: &Context,
    what: What,
    x: &Operand<T>,
    axes: &[usize],
    keep: bool,
) -> Result<()> {
    let story = || format!("{what:?} of {} {} along {axes:?}", T::DTYPE, x.story());
    let named = if keep { keepdim(axes) } else { axes.into() };
    let groups = groups(&x.values(), x.shape(), axes);
    let lengths = axes.iter().map(|&axis| x.shape()[axis]);
    let length: usize = lengths.product();
    let result = what.run(&x.tensor, named);
    let of_nothing = [What::Sum, What::Prod, What::Any, What::All];
    if (length == 0 && !of_nothing.contains(&what)) || (length < 2 && what == What::Std) {
        // Its own test.
        return Ok(());
    }
    let result = result.unwrap_or_else(|error| panic!("{}: {error}", story()));
    assert_eq!(
        result.shape().dims(),
        kept_shape(x.shape(), axes, keep),
        "{}",
        story()
    );
    if context.device().capabilities().holds(T::DTYPE) {
        assert_eq!(result.device(), context.device(), "{}", story());
    }
    let is_place = matches!(what, What::ArgMax | What::ArgMin);
    if is_place {
        let got = result.to_vec::<u32>()?;
        let want: Vec<u32> = groups
            .iter()
            .map(|group| best(what == What::ArgMin, group) as u32)
            .collect();
        assert_eq!(got, want, "{}", story());
        return Ok(());
    }
    if matches!(what, What::Any | What::All) {
        let is_true = |x: &T| float(*x) != 0.0;
        let want = groups.iter().map(|group| match what {
            What::Any => group.iter().any(is_true),
            _ => group.iter().all(is_true),
        });
        let want: Vec<bool> = want.collect();
        assert_eq!(result.to_vec::<bool>()?, want, "{}", story());
        return Ok(());
    }
    if T::DTYPE == DType::Bool && what == What::Sum {
        let count = |group: &Vec<T>| group.iter().filter(|&&x| float(x) != 0.0).count() as u32;
        let want: Vec<u32> = groups.iter().map(count).collect();
        assert_eq!(result.to_vec::<u32>()?, want, "{}", story());
        return Ok(());
    }
    assert_eq!(result.dtype(), T::DTYPE);
    let got = result.to_vec::<T>()?;
    assert_eq!(got.len(), groups.len(), "{}", story());
    for (at, (&got, group)) in got.iter().zip(&groups).enumerate() {
        if let Err(problem) = judge(what, got, group) {
            panic!("{}: output {at}: {problem}", story());
        }
    }
    Ok(())
}

fn random<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 1500 } else { 6000 };
    cases(context.times(120), |rng| {
        let shape = context.shape(rng, 7, most);
        let x = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let axes = random_axes(rng, shape.len());
        let what = What::some(context, rng, T::DTYPE);
        check(context, what, &x, &axes, rng.one_in(2))
    })
}

/// Windows that overlap, pooled: outputs whose elements are as near as those of the next one.
fn pooled<T: Number>(context: &Context) -> Result<()> {
    let cut = if context.is_slow() { 3 } else { 1 };
    cases(1, |rng| {
        for (rows, columns) in [(45, 29), (12, 34), (9, 72), (7, 300 / cut)] {
            let images = Operand::<T>::random(context.device(), rng, &[2, rows, columns])?;
            for (size, step) in [([3, 3], 1), ([2, 2], 2), ([7, 5], 1), ([1, 4], 3)] {
                let windows = images.unfold(1, size[0], step)?.unfold(2, size[1], step)?;
                let what = What::some(context, rng, T::DTYPE);
                check(context, what, &windows, &[3, 4], false)?;
            }
        }
        let line = Operand::<T>::random(context.device(), rng, &[4000 / cut])?;
        for size in [2, 31, 32, 33, 100] {
            for step in [1, 2] {
                let windows = line.unfold(0, size, step)?;
                let what = What::some(context, rng, T::DTYPE);
                check(context, what, &windows, &[1], false)?;
                check(context, what, &windows.transpose(0, 1)?, &[0], true)?;
                check(context, what, &windows, &[0], false)?;
            }
        }
        Ok(())
    })
}

/// Sizes around vectors, lanes, blocks and chunks, from offsets that spoil the alignment.
fn edges<T: Number>(context: &Context) -> Result<()> {
    let mut sizes = vec![
        1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4095, 4096, 4099,
    ];
    if !context.is_slow() {
        sizes.extend([65_535, 65_537, 262_144, 262_147]);
    }
    cases(1, |rng| {
        for &size in &sizes {
            let x = Operand::<T>::random(context.device(), rng, &[size + 8])?;
            let is_few = context.shares_kernels() && T::DTYPE != DType::F32;
            let other = *rng.pick(&[1, 4, 8]);
            for first in [0, 1, 4, 8] {
                if is_few && first != 0 && first != other {
                    continue;
                }
                check(
                    context,
                    What::some(context, rng, T::DTYPE),
                    &x.range(first..first + size)?,
                    &[0],
                    false,
                )?;
            }
        }
        for (rows, columns) in [
            (1, 700),
            (700, 1),
            (3, 1000),
            (1000, 3),
            (33, 257),
            (257, 33),
            (64, 512),
            (513, 64),
            (2000, 8),
            (9, 4096),
        ] {
            if context.is_slow() && rows * columns > 20_000 {
                continue;
            }
            let x = Operand::<T>::random(context.device(), rng, &[rows, columns])?;
            for axes in [&[0][..], &[1], &[0, 1], &[]] {
                check(context, What::some(context, rng, T::DTYPE), &x, axes, false)?;
                check(
                    context,
                    What::some(context, rng, T::DTYPE),
                    &x.transpose(0, 1)?,
                    axes,
                    true,
                )?;
            }
        }
        let x = Operand::<T>::random(context.device(), rng, &[6, 20, 24])?;
        for axes in [&[0, 2][..], &[1], &[0, 1], &[1, 2]] {
            check(context, What::some(context, rng, T::DTYPE), &x, axes, false)?;
            check(
                context,
                What::some(context, rng, T::DTYPE),
                &x.permute(&[2, 0, 1])?,
                axes,
                false,
            )?;
        }
        Ok(())
    })
}

/// Outputs of few elements, more than go side by side at once; with those of the next one beyond the other outputs, in runs
/// too short for vectors, backwards and with steps.
fn short<T: Number>(context: &Context) -> Result<()> {
    let rows = if context.is_slow() { 67 } else { 4500 };
    cases(1, |rng| {
        for length in [1, 2, 3, 7, 9, 16, 31, 33, 65, 127, 512, 513] {
            if length > 16 && context.is_slow() {
                break;
            }
            let rows = (rows / length).max(70);
            let x = Operand::<T>::random(context.device(), rng, &[rows, length])?;
            let ways = [
                x.slice(&[0..rows, 0..length])?,
                x.flip(&[0])?,
                x.flip(&[1])?,
                x.step(0, 0..rows, 2)?,
            ];
            for x in ways {
                check(context, What::some(context, rng, T::DTYPE), &x, &[1], false)?;
                check(context, What::some(context, rng, T::DTYPE), &x, &[0], false)?;
            }
        }
        for shape in [[70, 4, 8], [40, 16, 4], [9, 70, 3], [2, 9, 300]] {
            let x = Operand::<T>::random(context.device(), rng, &shape)?;
            for axes in [&[1][..], &[0, 2], &[0], &[0, 1]] {
                for x in [
                    x.permute(&[0, 1, 2])?,
                    x.permute(&[0, 2, 1])?,
                    x.flip(&[2])?,
                ] {
                    check(context, What::some(context, rng, T::DTYPE), &x, axes, false)?;
                }
            }
        }
        // All of rows with gaps between them, and of each outer one, in parts that begin within rows.
        let rows = if context.is_slow() { 70 } else { 12_000 };
        for columns in [2, 3, 7, 23, 24] {
            let x = Operand::<T>::random(context.device(), rng, &[2, rows, columns + 1])?;
            let x = x.slice(&[0..2, 0..rows, 1..columns + 1])?;
            for axes in [&[0, 1, 2][..], &[1, 2]] {
                check(context, What::some(context, rng, T::DTYPE), &x, axes, false)?;
                let x = x.flip(&[1])?;
                check(context, What::some(context, rng, T::DTYPE), &x, axes, false)?;
            }
        }
        // Columns by many rows, backwards and every other one.
        let x = Operand::<T>::random(context.device(), rng, &[300, 150])?;
        check(
            context,
            What::some(context, rng, T::DTYPE),
            &x.flip(&[1])?,
            &[0],
            false,
        )?;
        let x = x.step(1, 0..150, 2)?;
        check(context, What::some(context, rng, T::DTYPE), &x, &[0], false)
    })
}

fn is_native<T: Number>(context: &Context) -> bool {
    context.is_cpu()
}

/// Few columns by rows that follow one another, which the CPU takes several of at once: as many as do not come out even, in
/// parts, through views; and rows that are about as short as its lanes.
fn abreast<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let all = What::of(T::DTYPE);
    cases(1, |rng| {
        for columns in 1..=65 {
            let rows = 256usize.div_ceil(columns).next_power_of_two();
            for rows in [
                128 / columns,
                rows,
                8 * rows,
                64 * rows,
                65 * rows,
                72 * rows,
            ] {
                let rows = (rows + rng.between(0, 2)).max(2) - 1;
                let outer = if rows * columns > 4000 { 2 } else { 7 };
                let x = Operand::<T>::random(device, rng, &[outer, rows + 2, columns])?;
                let x = match rng.between(0, 5) {
                    0 => x.flip(&[0])?,
                    1 => x.flip(&[1])?,
                    2 => x.step(1, 0..rows + 2, 2)?,
                    3 => x.permute(&[1, 0, 2])?,
                    _ => x.slice(&[0..outer, 1..rows + 1, 0..columns])?,
                };
                for axes in [&[1][..], &[0, 1]] {
                    check(context, *rng.pick(all), &x, axes, false)?;
                }
            }
        }
        // In parts, all at once and with gaps between some.
        for columns in [2, 3, 8, 24, 33, 64, 128, 300] {
            let rows = 150_000 / columns / 2 * 2;
            let x = Operand::<T>::random(device, rng, &[rows, columns])?;
            let parts = [2, rows / 2, columns];
            let gaps = [20, rows / 20, columns];
            let gaps = Operand::<T>::random(device, rng, &gaps)?;
            let gaps = gaps.slice(&[0..20, 0..rows / 20 - 1, 0..columns])?;
            for &what in all {
                check(context, what, &x, &[0], false)?;
                check(context, what, &gaps, &[0, 1], false)?;
            }
            let x = x.reshape(&parts)?;
            check(context, *rng.pick(all), &x, &[1], false)?;
        }
        let x = Operand::<T>::random(device, rng, &[9, 16, 20, 12])?;
        for &what in all {
            check(context, what, &x, &[0, 2], false)?;
            check(context, what, &x, &[1, 2], false)?;
        }
        for length in 8..=131 {
            let x = Operand::<T>::random(device, rng, &[150, length])?;
            for x in [x.flip(&[0])?, x] {
                check(context, *rng.pick(all), &x, &[1], false)?;
            }
        }
        Ok(())
    })
}

/// Which of both zeros is the largest and the least, and NaN beside infinities, in columns and in rows.
fn zeros(context: &Context) -> Result<()> {
    let few = [0.0, -0.0, -1.0, f32::NEG_INFINITY, f32::NAN];
    cases(20, |rng| {
        for (rows, columns) in [(700, 2), (90, 3), (40, 8), (31, 32), (400, 16)] {
            let some = &few[rng.between(0, 1)..rng.between(2, few.len())];
            let values: Vec<f32> = (0..rows * columns).map(|_| *rng.pick(some)).collect();
            for least in [false, true] {
                let values: Vec<f32> = match least {
                    true => values.iter().map(|x| -x).collect(),
                    false => values.clone(),
                };
                let want: Vec<f32> = (0..columns)
                    .map(|column| {
                        let of_column = values[column..].iter().step_by(columns);
                        let best =
                            of_column
                                .copied()
                                .reduce(|a, b| match a.is_nan() || b.is_nan() {
                                    true => f32::NAN,
                                    false if least == a.total_cmp(&b).is_lt() => a,
                                    false => b,
                                });
                        best.unwrap_or(f32::NAN)
                    })
                    .collect();
                let x = Tensor::from_slice(context.device(), &values, [rows, columns])?;
                let rows = x.transpose(0, 1)?.contiguous()?;
                for (x, axis) in [(x, 0), (rows, 1)] {
                    let got = if least { x.min(axis)? } else { x.max(axis)? };
                    for (got, want) in got.to_vec::<f32>()?.into_iter().zip(&want) {
                        let is_same = got.to_bits() == want.to_bits();
                        assert!(
                            is_same || got.is_nan() && want.is_nan(),
                            "{got}, not {want}"
                        );
                    }
                }
            }
        }
        Ok(())
    })
}

/// 2^22 values, with equal ones whose roundings all go one way; the same bits each time.
fn long(context: &Context) -> Result<()> {
    let count = if context.is_slow() { 1 << 20 } else { 1 << 22 };
    let device = context.device();
    let values: Vec<f32> = (0..count).map(|at| 0.1 + (at % 7) as f32 * 1e-3).collect();
    let x = Tensor::from_slice(device, &values, [count])?;
    let got: f32 = x.sum(..)?.item()?;
    judge(What::Sum, got, &values).unwrap_or_else(|problem| panic!("{problem}"));
    for _ in 0..3 {
        assert_eq!(x.sum(..)?.item::<f32>()?.to_bits(), got.to_bits());
    }
    // Columns with a gap before them: in one chain of so many of this value every rounding goes down.
    let x = Tensor::full(device, [4096, 71], 1.979_736_3, DType::F32)?;
    let column = [1.979_736_3f32; 4096];
    for got in x.slice((.., 1..))?.sum(0)?.to_vec::<f32>()? {
        judge(What::Sum, got, &column).unwrap_or_else(|problem| panic!("{problem}"));
    }
    Ok(())
}

/// 2^26 values, more than a binding of lavapipe: all at once, by rows and by columns.
fn huge(context: &Context) -> Result<()> {
    let (device, size) = (context.device(), 1 << 13);
    let x = Tensor::rand(device, [size * size], DType::F32, 5)?;
    let values = x.to_vec::<f32>()?;
    let right = |what, got: f32, elements: &[f32]| {
        judge(what, got, elements).unwrap_or_else(|problem| panic!("{what:?}: {problem}"));
    };
    right(What::Sum, x.sum(..)?.item()?, &values);
    right(What::Mean, x.mean(..)?.item()?, &values);
    right(What::Max, x.max(..)?.item()?, &values);
    assert_eq!(x.argmin(..)?.item::<u32>()? as usize, best(true, &values));
    let square = x.reshape([size, size])?;
    let rows = square.sum(1)?.to_vec::<f32>()?;
    let columns = square.sum(0)?.to_vec::<f32>()?;
    for at in [0, 1, 4095, 4097, size - 1] {
        right(What::Sum, rows[at], &values[at * size..][..size]);
        let column: Vec<f32> = values.iter().skip(at).step_by(size).copied().collect();
        right(What::Sum, columns[at], &column);
    }
    // Equal ones, whose roundings all go one way.
    let tenths = Tensor::full(device, [size * size], 0.1, DType::F32)?;
    let want = f64::from(0.1f32) * (size * size) as f64;
    let got = f64::from(tenths.sum(..)?.item::<f32>()?);
    assert!(
        (got - want).abs() <= want * 2f64.powi(-16),
        "{got}, not {want}"
    );
    Ok(())
}

fn empty(context: &Context) -> Result<()> {
    let device: &Device = context.device();
    let none = Tensor::zeros(device, [3, 0, 2], DType::F32)?;
    assert_eq!(none.sum(1)?.to_vec::<f32>()?, [0.0; 6]);
    assert_eq!(none.sum(keepdim(..))?.shape().dims(), [1, 1, 1]);
    assert_eq!(none.sum(0)?.shape().dims(), [0, 2]);
    let scalar = Tensor::scalar(device, 5.0f32)?;
    assert_eq!(scalar.sum(..)?.item::<f32>()?, 5.0);
    assert_eq!(scalar.sum([0; 0])?.item::<f32>()?, 5.0);
    assert_eq!(scalar.argmax(..)?.item::<u32>()?, 0);
    assert_eq!(none.prod(1)?.to_vec::<f32>()?, [1.0; 6]);
    assert_eq!(none.norm(1)?.to_vec::<f32>()?, [0.0; 6]);
    assert_eq!(none.logsumexp(1)?.to_vec::<f32>()?, [f32::NEG_INFINITY; 6]);
    assert!(none.mean(1)?.to_vec::<f32>()?.iter().all(|x| x.is_nan()));
    for refused in [
        none.max(1),
        none.min(..),
        none.argmax(1),
        none.argmin(1),
        none.var(1, 0),
        scalar.std(.., 1),
    ] {
        let error = refused.expect_err("there are no elements");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    for dtype in [DType::F32, DType::Bool, DType::I32] {
        let none = none.cast(dtype)?;
        assert_eq!(none.any(1)?.to_vec::<bool>()?, [false; 6]);
        assert_eq!(none.all(1)?.to_vec::<bool>()?, [true; 6]);
        assert_eq!(none.all(keepdim(..))?.shape().dims(), [1, 1, 1]);
        assert_eq!(none.any(0)?.shape().dims(), [0, 2]);
    }
    let never = none.cast(DType::Bool)?;
    assert_eq!(never.sum(1)?.to_vec::<u32>()?, [0; 6]);
    assert!(never.max(1).is_err() && never.min(..).is_err());
    let answers = Tensor::from_slice(device, &[true, false], 2)?;
    for refused in [
        answers.mean(0),
        answers.prod(0),
        answers.argmax(0),
        answers.argmin(0),
        answers.var(0, 0),
        answers.norm(0),
        answers.logsumexp(0),
    ] {
        let error = refused.expect_err("bool has none");
        assert!(error.to_string().contains("cast"), "{error}");
    }
    let whole = Tensor::zeros(device, [2, 3], DType::I32)?;
    for refused in [
        whole.mean(1),
        whole.var(1, 0),
        whole.norm(..),
        whole.logsumexp(0),
    ] {
        let error = refused.expect_err("integers have none");
        assert!(error.to_string().contains("cast"), "{error}");
    }
    Ok(())
}

fn arguments(context: &Context) -> Result<()> {
    let x = Tensor::zeros(context.device(), [2, 3], DType::F32)?;
    for wrong in [&[2][..], &[0, 0], &[0, 1, 2]] {
        let error = x.sum(wrong).expect_err("these are no axes");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    Ok(())
}

/// Columns that no cache holds, by parts of their rows.
fn large_columns<T: Number>(context: &Context) -> Result<()> {
    if context.is_slow() && T::DTYPE != DType::F32 && !full() {
        return Ok(());
    }
    let times = 4 / size_of::<T>().min(4);
    cases(1, |rng| {
        let x = Operand::<T>::random(context.device(), rng, &[1003 * times, 520])?;
        for &what in What::of(T::DTYPE) {
            check(context, what, &x, &[0], false)?;
        }
        let x = Operand::<T>::random(context.device(), rng, &[3, 700 * times, 260])?;
        check(context, What::Sum, &x, &[1], true)?;
        check(context, What::ArgMin, &x, &[1], false)
    })
}

/// More columns than the CPU holds the states of at once, of rows that several cores share.
fn wide_columns(context: &Context) -> Result<()> {
    fn of<T: Number>(context: &Context, rng: &mut Rng) -> Result<()> {
        let x = Operand::<T>::random(context.device(), rng, &[300, 4097])?;
        let all = [What::Sum, What::ArgMin, What::Any, What::Var].into_iter();
        for what in all.filter(|what| What::of(T::DTYPE).contains(what)) {
            check(context, what, &x, &[0], false)?;
        }
        Ok(())
    }
    cases(1, |rng| {
        of::<f32>(context, rng)?;
        if !context.is_cpu() {
            return Ok(());
        }
        of::<i32>(context, rng)?;
        of::<bf16>(context, rng)?;
        of::<f64>(context, rng)
    })
}

/// Elements of eight bytes, and such without a sign, through windows; by hardware's plans as well, whose workgroups begin within
/// them.
fn windows_of_wide_elements(context: &Context) -> Result<()> {
    let windows = &Context::new(context.adapter.clone(), Variant::Windows);
    random::<u32>(windows)?;
    with_hardware_plans(|| {
        random::<i32>(windows)?;
        random::<bf16>(windows)
    })?;
    if !windows.device().capabilities().holds(DType::F64) {
        return Ok(());
    }
    random::<f64>(windows)?;
    cases(1, |rng| {
        for (shape, axis) in [(&[700, 9][..], 0), (&[3, 700, 40], 1), (&[5, 1300], 1)] {
            let x = Operand::<f64>::random_view(windows.device(), rng, shape)?;
            for what in [What::Sum, What::Var, What::ArgMax] {
                check(windows, what, &x, &[axis], false)?;
            }
        }
        Ok(())
    })
}

/// The kernels that hardware is given: trees of lanes in workgroup memory.
fn hardware<T: Number>(context: &Context) -> Result<()> {
    // On software adapters dtypes share out what follows the edges.
    with_hardware_plans(|| {
        edges::<T>(context)?;
        if T::DTYPE != DType::Bool {
            if context.has_turn::<T>(&[DType::F32, DType::F64]) {
                specials::<T>(context)?;
            }
            if context.has_turn::<T>(&[DType::F32, DType::BF16, DType::I32]) {
                large_columns::<T>(context)?;
                whole_columns::<T>(context)?;
            }
        }
        if context.has_turn::<T>(&[DType::F32, DType::I32, DType::Bool]) {
            random::<T>(context)?;
        }
        Ok(())
    })
}

fn hardware_specials(context: &Context) -> Result<()> {
    with_hardware_plans(|| {
        short::<f32>(context)?;
        far_from_zero(context)?;
        squares_beyond(context)
    })
}

/// Columns that one launch of hardware's reads to their ends, by 128, 64 and 32 lanes, the last of them in a workgroup that has no
/// more columns.
fn whole_columns<T: Number>(context: &Context) -> Result<()> {
    if context.is_slow() && T::DTYPE != DType::F32 && !full() {
        return Ok(());
    }
    let unit = if size_of::<T>() == 2 { 8 } else { 4 };
    cases(1, |rng| {
        for (steps, columns) in [
            (521, 1025 * unit),
            (260, 2049 * unit),
            (130, 4097 * unit),
            (130, 4099),
        ] {
            let x = Operand::<T>::random(context.device(), rng, &[steps, columns])?;
            let all = What::of(T::DTYPE).iter().enumerate();
            for (at, &what) in all {
                if T::DTYPE == DType::F32 && steps > 500 || at % 4 == steps % 4 {
                    check(context, what, &x, &[0], false)?;
                }
            }
        }
        Ok(())
    })
}

/// Variances of numbers whose mean is far larger, by rows and by columns, alone and many at a time.
fn far_from_zero(context: &Context) -> Result<()> {
    if context.is_cpu() {
        // Equal values vary by nothing, also where their squares go over, or their sum.
        for (shape, axis) in [
            ([4, 3], 0),
            ([3, 4], 1),
            ([4, 64], 0),
            ([3, 200], 1),
            ([8, 64], 0),
            ([50, 9], 0),
            ([2, 5000], 1),
        ] {
            for value in [0.1, 1.3e160, 1e200, 1.7e308] {
                let x = Tensor::full(context.device(), shape, value, DType::F64)?;
                let all = x.var(axis, 0)?.to_vec::<f64>()?;
                assert!(all.iter().all(|&var| var == 0.0), "{shape:?}: {all:?}");
            }
        }
    }
    let device = context.device();
    // What is left over is alone in the last part of these on software adapters, and the first of its block.
    for length in (8705..8708).chain(17_409..17_416) {
        for (low, high) in [(1e20, 1e20), (1e8f32, 1e8 + 8.0)] {
            let values = (0..length).map(|at| if at % 2 == 0 { low } else { high });
            let values: Vec<f32> = values.collect();
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / length as f64;
            let squares = values.iter().map(|&x| (f64::from(x) - mean).powi(2));
            let want = match low == high {
                true => 0.0,
                false => squares.sum::<f64>() / length as f64,
            };
            let var = Tensor::from_vec(device, values, [length])?.var(0, 0)?;
            let var = f64::from(var.item::<f32>()?);
            assert!(
                (var - want).abs() <= want * 2e-5,
                "{length} of {low}, {high}: {var}, not {want}"
            );
        }
    }
    if device.capabilities().holds(DType::F64) {
        let var = Tensor::full(device, 100, 1e200, DType::F64)?.var(0, 0)?;
        assert_eq!(var.item::<f64>()?, 0.0);
    }
    let most = if context.is_slow() { 2000 } else { 10_000 };
    // First number, step, how often the three are repeated.
    let cases = [
        (1e8f32, 8.0, 1),
        (1e8, 8.0, 100),
        (-1e8, 8.0, 7),
        (16_777_216.0, 2.0, most / 3),
        (1e6, 1.0, most / 3),
        (1e30, 0.0, 5),
    ];
    for (start, step, times) in cases {
        let row: Vec<f32> = (0..3 * times)
            .map(|at| start + step * (at % 3) as f32)
            .collect();
        // Of 0, 1, 2.
        let want = f64::from(step).powi(2) * 2.0 / 3.0;
        for copies in [1, 9, 64] {
            let values = row.repeat(copies);
            if values.len() > 100_000 {
                continue;
            }
            let x = Tensor::from_slice(device, &values, [copies, row.len()])?;
            let turned = x.transpose(0, 1)?.contiguous()?;
            for (var, std) in [
                (x.var(1, 0)?, x.std(1, 0)?),
                (turned.var(0, 0)?, turned.std(0, 0)?),
                (
                    x.transpose(0, 1)?.var(0, 0)?,
                    turned.transpose(0, 1)?.std(1, 0)?,
                ),
            ] {
                for (var, std) in var.to_vec::<f32>()?.iter().zip(std.to_vec::<f32>()?) {
                    let off = (f64::from(*var) - want).abs();
                    let story = format!("{start} + {step} i, {times} times, {copies} rows: {var}");
                    assert!(off <= want * 2e-5, "{story}, not {want}");
                    assert!(
                        (f64::from(std) - want.sqrt()).abs() <= want.sqrt() * 1e-5,
                        "{story}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Norms of numbers whose squares are no f32, beside zeros and ones.
fn squares_beyond(context: &Context) -> Result<()> {
    let device = context.device();
    let longest = if context.is_slow() { 700 } else { 9000 };
    for pair in [
        [1e30f32, 1e30],
        [1e-30, 1e-30],
        [1e30, 1.0],
        [1e-30, 1.0],
        [1e36, 1e-30],
        [1e-30, 0.0],
        [0.0, 0.0],
        [1e19, 1e18],
        [1.0, f32::INFINITY],
    ] {
        for length in [2, 3, 9, 64, 67, longest] {
            // At the front, at the end, alternating.
            for way in 0..3 {
                let pick = |at: usize| match way {
                    0 => pair[usize::from(at > 0)],
                    1 => pair[usize::from(at + 1 < length)],
                    _ => pair[at % 2],
                };
                let row: Vec<f32> = (0..length).map(pick).collect();
                let squares = total(row.iter().map(|&x| f64::from(x).powi(2)));
                let x = Tensor::from_slice(device, &row.repeat(8), [8, length])?;
                let turned = x.transpose(0, 1)?.contiguous()?;
                let story = format!("{pair:?}, {length}, way {way}");
                for norm in [x.norm(1)?, turned.norm(0)?, x.slice(0..1)?.norm(1)?] {
                    for norm in norm.to_vec::<f32>()? {
                        let want = squares.sqrt();
                        let is_right = (f64::from(norm) - want).abs() <= want * 1e-5;
                        let is_same = f64::from(norm) == want;
                        assert!(is_right || is_same, "{story}: {norm:e}, not {want:e}");
                    }
                }
            }
        }
    }
    // What is left over is alone in the last part of these: on software adapters, and by hardware's plans.
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for length in [17_409, 17_415, 278_529] {
            if context.is_slow() && length > 20_000 {
                continue;
            }
            let x = Tensor::ones(device, [length], dtype)?;
            let norm = x.norm(0)?.cast(DType::F32)?.item::<f32>()?;
            let want = (length as f32).sqrt();
            assert!(
                (norm - want).abs() <= want / 256.0,
                "{length} {dtype}: {norm}"
            );
            let normed = x.rms_norm(0, None, 1e-5)?.cast(DType::F32)?;
            let normed = normed.to_vec::<f32>()?;
            assert!(
                normed.iter().all(|&one| (one - 1.0).abs() < 0.01),
                "{length} {dtype}"
            );
        }
    }
    Ok(())
}

/// One number that is not quite zero among zeros, and one zero among such numbers: NaN, subnormals,
/// infinities count as true, and -0 does not.
fn truth_of_specials(context: &Context) -> Result<()> {
    fn check<T: Number>(context: &Context, odd: T, zero: T) -> Result<()> {
        for size in [1, 3, 8, 40, 700] {
            for at in [0, size / 2, size - 1] {
                let mut values = vec![zero; size];
                values[at] = odd;
                let x = Tensor::from_slice(context.device(), &values, size)?;
                let story = format!("{odd} at {at} of {size} {}", T::DTYPE);
                assert!(x.any(0)?.item::<bool>()?, "{story}");
                assert_eq!(x.all(0)?.item::<bool>()?, size == 1, "{story}");
                values.fill(odd);
                values[at] = zero;
                let x = Tensor::from_slice(context.device(), &values, size)?;
                assert_eq!(x.any(0)?.item::<bool>()?, size > 1, "{story}");
                assert!(!x.all(0)?.item::<bool>()?, "{story}");
            }
        }
        Ok(())
    }
    for odd in [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        1e-45,
        f32::from_bits(0x7f80_0001),
    ] {
        check(context, odd, -0.0)?;
        check(context, f64::from(odd), -0.0)?;
    }
    for odd in [1, 0x7fff, 0x8001, 0x7c00, 0xfc01] {
        check(context, f16::from_bits(odd), f16::NEG_ZERO)?;
        check(context, bf16::from_bits(odd), bf16::NEG_ZERO)?;
    }
    for odd in [f64::NAN, 5e-324, -1e-310, f64::MIN_POSITIVE] {
        check(context, odd, 0.0)?;
        check(context, odd, -0.0)?;
    }
    check(context, i32::MIN, 0)?;
    check(context, u32::MAX, 0)?;
    check(context, true, false)
}

/// No reduction or norm of a dtype that the device holds goes to the CPU.
fn in_kernels(context: &Context) -> Result<()> {
    let device = context.open();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Bool, DType::I32] {
        let x = Tensor::ones(&device, [6, 40], dtype)?;
        for &what in What::of(dtype) {
            for axis in [0, 1] {
                what.run(&x, axis.into())?;
            }
        }
        if dtype.is_float() {
            let weight = Tensor::ones(&device, [40], dtype)?;
            x.softmax(1)?;
            x.log_softmax(0)?;
            x.layer_norm(1, Some(&weight), Some(&weight), 1e-5)?;
            x.rms_norm(1, Some(&weight), 1e-5)?;
        }
    }
    assert!(
        device.placement_log().events.is_empty(),
        "{}",
        device.placement_log()
    );
    Ok(())
}

/// NaN, infinities, zeros and the ends of the integers, one, two or many at a time.
fn specials<T: Number>(context: &Context) -> Result<()> {
    let values = T::specials();
    let ops = [What::Max, What::Min, What::ArgMax, What::ArgMin];
    cases(context.times(30), |rng| {
        for (rows, columns) in [(40, 1), (40, 2), (9, 40), (2, 700)] {
            let picked = (0..rows * columns).map(|_| *rng.pick(&values)).collect();
            let x = Operand::new(context.device(), picked, &[rows, columns])?;
            for what in ops {
                check(context, what, &x, &[1], false)?;
                check(context, what, &x.transpose(0, 1)?, &[0], false)?;
            }
            // Infinities and NaN alone: what is near the largest float may overflow on the way.
            if T::DTYPE.is_float() {
                let few = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1.5, -2.0];
                let few = if rng.one_in(2) { &few[1..] } else { &few[2..] };
                let with_nan = rng.one_in(3);
                let picked = (0..rows * columns)
                    .map(|_| match with_nan && rng.one_in(columns) {
                        true => T::from_value(Value::Float(f64::NAN)),
                        false => T::from_value(Value::Float(*rng.pick(few))),
                    })
                    .collect();
                let x = Operand::new(context.device(), picked, &[rows, columns])?;
                let of_floats = [What::Sum, What::Mean, What::Norm, What::LogSumExp];
                for what in of_floats.into_iter().chain([What::Var, What::Std]) {
                    check(context, what, &x, &[1], false)?;
                    check(context, what, &x.transpose(0, 1)?, &[0], false)?;
                }
            }
        }
        Ok(())
    })
}
