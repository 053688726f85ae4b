//! softmax, log_softmax, layer_norm, rms_norm against rows of their own in f64, on any strides.

use orlop::{DType, Error, Result, Tensor, keepdim, with_hardware_plans};

use crate::adapters::{Context, Variant, always, full, in_turn, runs_hardwares};
use crate::number::{Number, Value};
use crate::operand::Operand;
use crate::reduce::{groups, random_axes, rounding};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("normalise::arguments", Scope::Device, arguments),
        Test::new(
            "normalise::epsilons_beyond_f32",
            Scope::Device,
            epsilons_beyond_f32,
        ),
        Test::new("normalise::specials", Scope::Kernels, specials),
        Test::new("normalise::far_from_zero", Scope::Kernels, far_from_zero),
        Test::new("normalise::far_apart", Scope::Device, far_apart),
        Test::new(
            "normalise::long_rows_of_little",
            Scope::Device,
            long_rows_of_little,
        )
        .when(|context| !context.is_slow()),
        Test::new("normalise::short_specials", Scope::Kernels, short_specials),
        Test::new(
            "normalise::hardware_specials",
            Scope::Gpu,
            hardware_specials,
        )
        // Vulkan's compilers are enough for those.
        .when(|context| !context.shares_kernels() || context.adapter.name != "gl"),
    ];
    macro_rules! floats {
        ($name:literal, $scope:expr, $body:ident, $when:ident) => {
            all.extend([
                Test::new(concat!($name, "::f32"), $scope, $body::<f32>).when($when::<f32>),
                Test::new(concat!($name, "::f16"), $scope, $body::<orlop::f16>)
                    .when($when::<orlop::f16>)
                    .without_variants(),
                Test::new(concat!($name, "::f64"), $scope, $body::<f64>).when($when::<f64>),
                Test::new(concat!($name, "::bf16"), $scope, $body::<orlop::bf16>)
                    .when($when::<orlop::bf16>),
            ]);
        };
    }
    floats!("normalise::random", Scope::Kernels, random, one_of_16_bits);
    floats!("normalise::edges", Scope::Kernels, edges, one_of_16_bits);
    floats!("normalise::short", Scope::Kernels, short, one_of_16_bits);
    floats!("normalise::hardware", Scope::Gpu, hardware, runs_hardwares);
    floats!(
        "normalise::large_columns",
        Scope::Gpu,
        large_columns,
        always
    );
    all
}

/// Of software adapters those whose kernels have f16 take that for both, the others bf16; variants bf16 alone.
fn one_of_16_bits<T: Number>(context: &Context) -> bool {
    let has_f16 = context.adapter.info.capabilities.f16 && context.variant == Variant::Plain;
    let is_taken = match T::DTYPE {
        DType::F16 => has_f16,
        DType::BF16 => !has_f16,
        _ => true,
    };
    in_turn::<T>(context) && (is_taken || !context.shares_kernels())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Softmax,
    LogSoftmax,
    Layer,
    Rms,
}

const ALL: [What; 4] = [What::Softmax, What::LogSoftmax, What::Layer, What::Rms];

/// All; where kernels are shared out, of other dtypes than f32 and of variants one of each kin.
fn of_each_kin<T: Number>(context: &Context, rng: &mut Rng) -> Vec<What> {
    if !context.is_stood_for::<T>() {
        return ALL.to_vec();
    }
    let (exponentials, norms) = ALL.split_at(2);
    vec![*rng.pick(exponentials), *rng.pick(norms)]
}

/// Which no float holds: sums of f64 have all of it.
const EPSILON: f64 = 1e-5;

fn float<T: Number>(x: T) -> f64 {
    match x.value() {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    }
}

/// A row in f64, and how far off each element may be.
fn reference(what: What, row: &[f64], each: f64) -> Vec<(f64, f64)> {
    let count = row.len() as f64;
    let chain = each * count.min(400.0);
    let mean = row.iter().sum::<f64>() / count;
    match what {
        What::Softmax | What::LogSoftmax => {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
            let one = |x: &f64| {
                let log = x - top - sum.ln();
                // The distance from the largest is off by half a step of itself.
                let slack = chain + each * (16.0 + 2.0 * (x - top).abs());
                match what {
                    What::Softmax => (log.exp(), slack * log.exp()),
                    _ => (log, slack + 4.0 * each * log.abs()),
                }
            };
            row.iter().map(one).collect()
        }
        What::Layer => {
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let size = row.iter().map(|x| x.abs()).sum::<f64>() / count;
            let factor = 1.0 / (variance + EPSILON).sqrt();
            // The mean is off by so much, and the variance in turn.
            let shift = (chain + 8.0 * each) * size;
            let spread =
                (chain + 16.0 * each) * variance + 2.0 * variance.sqrt() * shift + shift * shift;
            let relative = (spread * factor * factor).min(1.0) + 8.0 * each;
            let one = |x: &f64| {
                let y = (x - mean) * factor;
                (
                    y,
                    shift * factor + relative * y.abs() + each * x.abs() * factor,
                )
            };
            row.iter().map(one).collect()
        }
        What::Rms => {
            let square = row.iter().map(|x| x * x).sum::<f64>() / count;
            let factor = 1.0 / (square + EPSILON).sqrt();
            let one = |x: &f64| (x * factor, (chain + 16.0 * each) * (x * factor).abs());
            row.iter().map(one).collect()
        }
    }
}

/// A weight or bias of some sizes, now and then.
fn given<T: Number>(
    context: &Context,
    rng: &mut Rng,
    sizes: &[usize],
) -> Result<Option<Operand<T>>> {
    match rng.one_in(2) {
        true => Operand::<T>::random_view(context.device(), rng, sizes).map(Some),
        false => Ok(None),
    }
}

fn check<T: Number>(
    context: &Context,
    rng: &mut Rng,
    what: What,
    x: &Operand<T>,
    axes: &[usize],
) -> Result<()> {
    let story = || format!("{what:?} of {} {} along {axes:?}", T::DTYPE, x.story());
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    let sizes: Vec<usize> = sorted.iter().map(|&axis| x.shape()[axis]).collect();
    let (mut weight, mut bias) = (None, None);
    if matches!(what, What::Layer | What::Rms) {
        weight = given::<T>(context, rng, &sizes)?;
    }
    if what == What::Layer {
        bias = given::<T>(context, rng, &sizes)?;
    }
    let tensor = |given: &Option<Operand<T>>| given.as_ref().map(|given| given.tensor.clone());
    let (w, b) = (tensor(&weight), tensor(&bias));
    let result = match what {
        What::Softmax => x.tensor.softmax(axes),
        What::LogSoftmax => x.tensor.log_softmax(axes),
        What::Layer => x.tensor.layer_norm(axes, w.as_ref(), b.as_ref(), EPSILON),
        What::Rms => x.tensor.rms_norm(axes, w.as_ref(), EPSILON),
    };
    let result = result.unwrap_or_else(|error| panic!("{}: {error}", story()));
    assert_eq!(result.shape().dims(), x.shape(), "{}", story());
    // Without gaps, in the order of the operand.
    let layout = result.layout();
    assert_eq!(layout.end(), result.elements(), "{}", story());
    if context.device().capabilities().holds(T::DTYPE) {
        assert_eq!(result.device(), context.device(), "{}", story());
    }
    let got = groups(&result.to_vec::<T>()?, x.shape(), axes);
    let rows = groups(&x.values(), x.shape(), axes);
    let values = |given: &Option<Operand<T>>, nothing: f64| -> Vec<f64> {
        let count = sizes.iter().product();
        given.as_ref().map_or(vec![nothing; count], |given| {
            given.values().into_iter().map(float).collect()
        })
    };
    let (weight, bias) = (values(&weight, 1.0), values(&bias, 0.0));
    let each = rounding(T::DTYPE.accumulator());
    let smallest = if T::DTYPE == DType::F16 {
        2f64.powi(-24)
    } else {
        1e-37
    };
    for (at, (got, row)) in got.iter().zip(&rows).enumerate() {
        let row: Vec<f64> = row.iter().map(|&x| float(x)).collect();
        for (column, (&got, (y, slack))) in got.iter().zip(reference(what, &row, each)).enumerate()
        {
            let (w, b) = (weight[column], bias[column]);
            let want = y * w + b;
            let bound = slack * w.abs()
                + 4.0 * each * ((y * w).abs() + b.abs())
                + rounding(T::DTYPE) * want.abs()
                + smallest;
            let got = float(got);
            assert!(
                (got - want).abs() <= bound,
                "{}: row {at}, column {column}: {got:e}, not {want:e} within {bound:e}",
                story()
            );
        }
    }
    Ok(())
}

fn random<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 1500 } else { 4000 };
    cases(context.times(90), |rng| {
        let shape = context.shape(rng, 6, most);
        let x = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let axes = random_axes(rng, shape.len());
        let what = *rng.pick(&ALL);
        check(context, rng, what, &x, &axes)
    })
}

/// Long rows, many rows, columns, one of each, from offsets that spoil the alignment.
fn edges<T: Number>(context: &Context) -> Result<()> {
    cases(1, |rng| {
        for (rows, columns) in [
            (1, 1),
            (1, 5000),
            (2, 12_000),
            (5001, 1),
            (40, 64),
            (64, 40),
            (33, 257),
            (48, 1024),
            (1025, 48),
            (3, 20_000),
        ] {
            if context.is_slow() && rows * columns > 20_000 {
                continue;
            }
            let x = Operand::<T>::random(context.device(), rng, &[rows + 1, columns])?;
            for what in of_each_kin::<T>(context, rng) {
                for first in [0, 1] {
                    let x = x.slice(&[first..first + rows, 0..columns])?;
                    check(context, rng, what, &x, &[1])?;
                }
                let whole = x.slice(&[0..rows, 0..columns])?;
                check(context, rng, what, &whole, &[0])?;
                let axis = rng.below(2);
                check(context, rng, what, &whole.transpose(0, 1)?, &[axis])?;
            }
        }
        let x = Operand::<T>::random(context.device(), rng, &[6, 20, 24])?;
        for axes in [&[0, 2][..], &[1], &[0, 1], &[1, 2], &[]] {
            let what = *rng.pick(&ALL);
            check(context, rng, what, &x, axes)?;
            check(context, rng, what, &x.permute(&[2, 0, 1])?, axes)?;
        }
        Ok(())
    })
}

/// Lengths around those that kernels hold in registers: 2, 4, 8 and 16 loads of one, four and eight elements.
fn short_lengths(context: &Context) -> &'static [usize] {
    if context.is_slow() && !full() {
        return &[5, 32, 40, 128];
    }
    &[
        1, 2, 3, 5, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 64, 65, 72, 100, 127, 128, 129, 136,
    ]
}

/// Short rows: next to each other, a few and many, and beside each other; from offsets that spoil the alignment.
fn short<T: Number>(context: &Context) -> Result<()> {
    // Where kernels are shared out other dtypes, and variants, meet every other length.
    short_of::<T>(context, if context.is_stood_for::<T>() { 2 } else { 1 })
}

/// One length in so many, where kernels are shared out.
fn short_of<T: Number>(context: &Context, every: usize) -> Result<()> {
    let every = if context.shares_kernels() { every } else { 1 };
    let lengths = short_lengths(context).iter();
    cases(1, |rng| {
        for &length in lengths
            .clone()
            .skip(T::DTYPE.size() / 4 % every)
            .step_by(every)
        {
            for rows in [24, 67] {
                let x = Operand::<T>::random(context.device(), rng, &[rows + 1, length])?;
                let turned = Operand::<T>::random(context.device(), rng, &[length, rows])?;
                for what in of_each_kin::<T>(context, rng) {
                    let first = rng.below(2);
                    let x = x.slice(&[first..first + rows, 0..length])?;
                    check(context, rng, what, &x, &[1])?;
                    check(context, rng, what, &turned, &[0])?;
                }
            }
        }
        // Rows beside each other in blocks, and in parts of the output that are far apart.
        for shape in [[70, 4, 8], [9, 16, 70], [70, 63, 3], [2, 3, 300]] {
            let x = Operand::<T>::random(context.device(), rng, &shape)?;
            for what in of_each_kin::<T>(context, rng) {
                check(context, rng, what, &x, &[1])?;
                check(context, rng, what, &x.flip(&[2])?, &[1])?;
                check(context, rng, what, &x, &[0])?;
            }
        }
        // A few long rows beside each other, in several parts of the output.
        let shape = if context.is_slow() {
            [3, 70, 2]
        } else {
            [7, 700, 5]
        };
        let x = Operand::<T>::random(context.device(), rng, &shape)?;
        for what in of_each_kin::<T>(context, rng) {
            check(context, rng, what, &x, &[1])?;
            check(context, rng, what, &x.flip(&[1, 2])?, &[1])?;
        }
        if !context.is_slow() {
            let x = Operand::<T>::random(context.device(), rng, &[2, 2, 9001])?;
            for what in of_each_kin::<T>(context, rng) {
                check(context, rng, what, &x, &[1])?;
            }
        }
        let many = if context.is_slow() { 300 } else { 4100 };
        let x = Operand::<T>::random(context.device(), rng, &[many, 40])?;
        check(context, rng, What::Softmax, &x, &[1])
    })
}

/// Short rows and columns with one number in each place that is none, or out of range.
fn short_specials(context: &Context) -> Result<()> {
    let device = context.device();
    let both = [DType::F32, DType::BF16];
    for (nth, &length) in short_lengths(context).iter().enumerate() {
        let dtypes = match context.shares_kernels() {
            true => &both[nth % 2..][..1],
            false => &both,
        };
        for &dtype in dtypes {
            for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                // The last row is of nothing else.
                let one = |at: usize| match at / length == at % length || at / length == length {
                    true => special,
                    false => (at % 5) as f32,
                };
                let values: Vec<f32> = (0..(length + 1) * length).map(one).collect();
                let x = Tensor::from_slice(device, &values, [length + 1, length])?.cast(dtype)?;
                let turned = x.transpose(0, 1)?.contiguous()?;
                let ways = [
                    (x.softmax(1)?, false),
                    (turned.softmax(0)?.transpose(0, 1)?, false),
                    (x.log_softmax(1)?, true),
                    (turned.log_softmax(0)?.transpose(0, 1)?, true),
                ];
                for (way, (y, is_log)) in ways.iter().enumerate() {
                    let y = y.cast(DType::F32)?.to_vec::<f32>()?;
                    for (row, y) in y.chunks(length).enumerate() {
                        let story =
                            format!("{dtype}: {special} at {row} of {length}, way {way}: {y:?}");
                        if special != f32::NEG_INFINITY || length == 1 || row == length {
                            assert!(y.iter().all(|y| y.is_nan()), "{story}");
                            continue;
                        }
                        let none = if *is_log { f32::NEG_INFINITY } else { 0.0 };
                        assert_eq!(y[row], none, "{story}");
                        let share = |&y: &f32| if *is_log { y.exp() } else { y };
                        let sum: f32 = y.iter().map(share).sum();
                        let most = if dtype == DType::F32 { 1e-5 } else { 0.05 };
                        assert!((sum - 1.0).abs() < most, "{story}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Columns that no cache holds, whose states come first; rows that four do not divide.
fn large_columns<T: Number>(context: &Context) -> Result<()> {
    let times = 4 / size_of::<T>().min(4);
    cases(1, |rng| {
        for shape in [
            &[517 * times, 520][..],
            &[3, 301 * times, 300],
            &[2, 131_100 * times + 4],
        ] {
            let x = Operand::<T>::random(context.device(), rng, shape)?;
            for what in ALL {
                if context.is_slow() && !full() && (T::DTYPE != DType::F32 || shape.len() > 2) {
                    continue;
                }
                check(context, rng, what, &x, &[shape.len() - 2])?;
                check(context, rng, what, &x, &[shape.len() - 1])?;
            }
        }
        Ok(())
    })
}

/// On the CPU distances and factors beyond f32's range are no infinities, in any order of elements.
fn far_apart(context: &Context) -> Result<()> {
    if !context.is_cpu() {
        return Ok(());
    }
    for (shape, axis) in [
        ([2, 70_000], 1),
        ([70_000, 3], 0),
        ([4, 60], 1),
        ([64, 16], 0),
    ] {
        for (one, others) in [(3e38f32, -3e38f32), (1e-40, 3e-40)] {
            let place = |at: usize| {
                if axis == 1 {
                    at % shape[1]
                } else {
                    at / shape[1]
                }
            };
            let of = |at: usize| {
                if place(at).is_multiple_of(4) {
                    one
                } else {
                    others
                }
            };
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(of).collect();
            let x = Tensor::from_slice(context.device(), &values, shape)?;
            let y = x.layer_norm(axis, None, None, 0.0)?.to_vec::<f32>()?;
            // One in four lies three times as far from the mean as the others.
            let sign = (one - others).signum();
            for (at, y) in y.into_iter().enumerate() {
                let factor = if place(at).is_multiple_of(4) {
                    1.0
                } else {
                    -1.0 / 3.0
                };
                let expected = sign * factor * 3f32.sqrt();
                let apart = (y - expected).abs();
                assert!(
                    apart < 1e-4,
                    "{shape:?} along {axis}, {at}: {y}, not {expected}"
                );
            }
        }
    }
    Ok(())
}

/// The kernels that hardware is given: lanes of a workgroup share rows.
fn hardware<T: Number>(context: &Context) -> Result<()> {
    // On software adapters dtypes share out what follows the edges.
    with_hardware_plans(|| {
        edges::<T>(context)?;
        if context.has_turn::<T>(&[DType::F32, DType::BF16]) {
            large_columns::<T>(context)?;
        }
        if context.has_turn::<T>(&[DType::F64]) {
            random::<T>(context)?;
        }
        Ok(())
    })
}

/// What is neither a number nor finite, and numbers far from 0, there.
fn hardware_specials(context: &Context) -> Result<()> {
    with_hardware_plans(|| {
        specials(context)?;
        short_of::<f32>(context, 3)?;
        short_specials(context)?;
        far_from_zero(context)?;
        if context.is_slow() && !full() {
            return Ok(());
        }
        held_halves(context)?;
        many_long_rows::<f32>(context)?;
        many_long_rows::<orlop::bf16>(context)
    })
}

/// Norms of f16 that lanes hold in registers, unscaled where its squares are f32's.
fn held_halves(context: &Context) -> Result<()> {
    cases(1, |rng| {
        for sizes in [[67, 8], [33, 256], [40, 1000], [9, 16_384]] {
            let x = Operand::<orlop::f16>::random(context.device(), rng, &sizes)?;
            for what in [What::Rms, What::Layer] {
                check(context, rng, what, &x, &[1])?;
            }
        }
        Ok(())
    })
}

/// More rows than are shared by whole workgroups, longer than their lanes hold, and of no whole vectors; all of their elements
/// matter to the exponentials' sums.
fn many_long_rows<T: Number>(context: &Context) -> Result<()> {
    let shape = [512, 4099];
    cases(1, |rng| {
        let of = |value: &dyn Fn(usize) -> f64| {
            let values = (0..shape[0] * shape[1]).map(|at| T::from_value(Value::Float(value(at))));
            Operand::<T>::new(context.device(), values.collect(), &shape)
        };
        for what in ALL {
            check(context, rng, what, &of(&|at| (at % 5) as f64)?, &[1])?;
        }
        check(context, rng, What::Softmax, &of(&|_| 0.0)?, &[1])?;
        // Squares that go under are looked at again, in steps of their own.
        let little = of(&|at| if at % 3 == 0 { 2e-25 } else { -1e-25 })?;
        let y = little.tensor.rms_norm(1, None, 0.0)?.cast(DType::F32)?;
        // A third of four, two thirds of one.
        let mean = 2f32.sqrt();
        for (at, y) in y.to_vec::<f32>()?.into_iter().enumerate() {
            let want = if at % 3 == 0 { 2.0 / mean } else { -1.0 / mean };
            assert!(
                (y - want).abs() <= want.abs() / 64.0,
                "{at}: {y}, not {want}"
            );
        }
        Ok(())
    })
}

/// Rows as long as one invocation takes, whose squares go under, two at a time: llvmpipe ends long loops.
fn long_rows_of_little(context: &Context) -> Result<()> {
    let [rows, length] = [256, 16_001];
    let x = Tensor::full(context.device(), [rows, length], 1e-25, DType::F32)?;
    let weight = Tensor::full(context.device(), length, 3.0, DType::F32)?;
    let y = x.rms_norm(1, Some(&weight), 0.0)?.to_vec::<f32>()?;
    let wrong = (0..y.len()).find(|&at| (y[at] - 3.0).abs() > 1e-3);
    let story = wrong.map(|at| format!("{} at {} of row {}", y[at], at % length, at / length));
    assert_eq!(story, None);
    Ok(())
}

/// Rows whose mean is far larger than their spread, and such whose squares are no f32; by rows and by
/// columns, alone and many at a time.
fn far_from_zero(context: &Context) -> Result<()> {
    let device = context.device();
    let most = if context.is_slow() { 500 } else { 3333 };
    for (start, step, times) in [
        (1e8f32, 8.0, 1),
        (1e8, 8.0, 40),
        (-1e8, 8.0, 7),
        (16_777_216.0, 2.0, most),
        (1e6, 1.0, most),
    ] {
        let row: Vec<f32> = (0..3 * times)
            .map(|at| start + step * (at % 3) as f32)
            .collect();
        let want = [-1.5f32.sqrt(), 0.0, 1.5f32.sqrt()];
        for copies in [1, 9, 64] {
            if row.len() * copies > 100_000 {
                continue;
            }
            let x = Tensor::from_slice(device, &row.repeat(copies), [copies, row.len()])?;
            let turned = x.transpose(0, 1)?.contiguous()?;
            let by_rows = x.layer_norm(1, None, None, 0.0)?;
            let by_columns = turned.layer_norm(0, None, None, 0.0)?.transpose(0, 1)?;
            for (way, result) in [by_rows, by_columns].iter().enumerate() {
                for (at, y) in result.to_vec::<f32>()?.into_iter().enumerate() {
                    let want = want[at % row.len() % 3];
                    assert!(
                        (y - want).abs() <= 2e-5,
                        "{start} + {step} i, {times} times, {copies} rows, way {way}: {y}, not {want}"
                    );
                }
            }
        }
    }
    for (first, second, epsilon) in [
        (1e30f32, 1e30f32, 1e-5f32),
        (1e30, -1e30, 0.0),
        (1e-30, 1e-30, 0.0),
        (1e-30, 2e-30, 1.0),
        (1e-30, 2e-30, 1e-12),
        (1e30, 1.0, 1e-5),
        (3e38, -3e38, 1e-5),
    ] {
        for length in [2, 8, 40, 3000] {
            let pick = |at: usize| if at.is_multiple_of(2) { first } else { second };
            let row: Vec<f32> = (0..length).map(pick).collect();
            let square = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / length as f64;
            let factor = 1.0 / (square + f64::from(epsilon)).sqrt();
            for copies in [1, 40] {
                let x = Tensor::from_slice(device, &row.repeat(copies), [copies, length])?;
                let turned = x.transpose(0, 1)?.contiguous()?;
                let by_rows = x.rms_norm(1, None, epsilon)?;
                let by_columns = turned.rms_norm(0, None, epsilon)?.transpose(0, 1)?;
                for (way, result) in [by_rows, by_columns].iter().enumerate() {
                    for (at, y) in result.to_vec::<f32>()?.into_iter().enumerate() {
                        let want = f64::from(row[at % length]) * factor;
                        let off = (f64::from(y) - want).abs();
                        assert!(
                            off <= want.abs() * 1e-5 + 1e-37,
                            "{first:e} {second:e} {epsilon}, {length}, {copies}, way {way}: {y:e}, not {want:e}"
                        );
                    }
                }
            }
        }
    }
    // A sum of them is no f64.
    if device.capabilities().holds(DType::F64) {
        for (copies, length) in [(1, 40), (4, 2), (64, 20), (40, 3000)] {
            let x = Tensor::full(device, [copies, length], 1.7e308, DType::F64)?;
            for result in [
                x.layer_norm(1, None, None, 1e-5)?,
                x.layer_norm(0, None, None, 1e-5)?,
            ] {
                let result = result.to_vec::<f64>()?;
                assert!(
                    result.iter().all(|&y| y == 0.0),
                    "{copies} x {length}: {result:?}"
                );
            }
        }
    }
    // The first one far from all others, in f64.
    for length in [40, 1000, 4096, 60_000] {
        if !context.is_cpu() {
            break;
        }
        let mut row: Vec<f64> = (0..length).map(|at| (at % 7) as f64).collect();
        row[0] = 1e6;
        // The sum is exact.
        let mean = row.iter().sum::<f64>() / length as f64;
        // The small ones first.
        let squares = row.iter().rev().map(|&x| (x - mean).powi(2));
        let deviation = (squares.sum::<f64>() / length as f64).sqrt();
        let x = Tensor::from_slice(device, &row, [1, length])?;
        let result = x.layer_norm(1, None, None, 0.0)?.to_vec::<f64>()?;
        for (at, (y, x)) in result.into_iter().zip(&row).enumerate() {
            let want = (x - mean) / deviation;
            let off = (y - want).abs();
            assert!(
                off <= 1e-14 * want.abs(),
                "{length}, element {at}: {y}, not {want}"
            );
        }
    }
    // One that is far from all others, and numbers of which each is the mean.
    for length in [3, 16, 40, 1000, 4096] {
        let mut row: Vec<f32> = (0..length).map(|at| (at % 7) as f32).collect();
        row[0] = 1e6;
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / length as f64;
        let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let deviation = (squares.sum::<f64>() / length as f64).sqrt();
        let equal = vec![1e30f32; length];
        for copies in [1, 40] {
            let apart = Tensor::from_slice(device, &row.repeat(copies), [copies, length])?;
            let equal = Tensor::from_slice(device, &equal.repeat(copies), [copies, length])?;
            let turned = |x: &Tensor| x.transpose(0, 1)?.contiguous();
            let by_columns = turned(&apart)?.layer_norm(0, None, None, 0.0)?;
            for result in [
                apart.layer_norm(1, None, None, 0.0)?,
                by_columns.transpose(0, 1)?,
            ] {
                for (at, y) in result.to_vec::<f32>()?.into_iter().enumerate() {
                    let want = (f64::from(row[at % length]) - mean) / deviation;
                    assert!(
                        (f64::from(y) - want).abs() <= 1e-6 * want.abs() + 1e-7,
                        "{length}, {copies} rows, element {at}: {y}, not {want}"
                    );
                }
            }
            // The roots of smaller ones are beyond what is multiplied by in one step.
            let epsilons: &[f64] = if context.is_cpu() {
                &[1e-5, 1e-39]
            } else {
                &[1e-5]
            };
            for &epsilon in epsilons {
                let by_columns = turned(&equal)?.layer_norm(0, None, None, epsilon)?;
                for result in [equal.layer_norm(1, None, None, epsilon)?, by_columns] {
                    assert_eq!(
                        result.to_vec::<f32>()?,
                        vec![0.0; length * copies],
                        "{length}, {epsilon:e}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Rows with NaN and infinities, large and small numbers.
fn specials(context: &Context) -> Result<()> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let device = context.device();
    // With many rows, and alone; short, and as long as vectors are.
    for (copies, columns) in [(1, 4), (50, 4), (50, 8), (2, 4000)] {
        let rows: [(Vec<f32>, bool); 6] = [
            (vec![1.0, nan], true),
            (vec![1.0, inf], true),
            (vec![-inf, -inf], true),
            (vec![-inf, 2.0], false),
            (vec![1e30, -1e30], false),
            (vec![-3e38, 3e38], false),
        ];
        for (row, is_none) in rows {
            let values: Vec<f32> = (0..copies * columns)
                .map(|at| row[at % columns % 2])
                .collect();
            let x = Tensor::from_slice(device, &values, [copies, columns])?;
            let soft = x.softmax(1)?.to_vec::<f32>()?;
            let log = x.log_softmax(1)?.to_vec::<f32>()?;
            let first_wins = row[0] > row[1];
            for (at, (&soft, &log)) in soft.iter().zip(&log).enumerate() {
                let story = format!("{row:?} x {columns} x {copies}, element {at}: {soft}, {log}");
                if is_none {
                    assert!(soft.is_nan() && log.is_nan(), "{story}");
                    continue;
                }
                let wins = (at % columns).is_multiple_of(2) == first_wins;
                let want = if wins { 2.0 / columns as f32 } else { 0.0 };
                assert!((soft - want).abs() <= want * 1e-5, "{story}");
                assert!(!log.is_nan() && (wins == (log > -20.0)), "{story}");
            }
        }
    }
    Ok(())
}

/// Of 1, 2, 3 with themselves as weight and bias: in two views of a storage, and in x's own.
fn weight_of_three(device: &orlop::Device) -> Result<[Vec<f32>; 2]> {
    let both = Tensor::from_slice(device, &[1.0f32, 2.0, 3.0, 1.0, 2.0, 3.0], 6)?;
    let (weight, bias) = (both.slice(0..3)?, both.slice(3..6)?);
    let x = weight.copy()?;
    Ok([
        x.layer_norm(0, Some(&weight), Some(&bias), 0.0)?.to_vec()?,
        x.layer_norm(0, Some(&x), Some(&x), 0.0)?.to_vec()?,
    ])
}

/// f64 has all of an epsilon; narrower types what f32 has of it, on every device.
fn epsilons_beyond_f32(context: &Context) -> Result<()> {
    let device = context.device();
    for (epsilon, size) in [
        (1e-60, 1e-30f64),
        (1e-300, 1e-160),
        (1e-60, 0.0),
        (1e300, 1.0),
    ] {
        let x = Tensor::from_slice(device, &[size, -size, size, -size], [2, 2])?;
        // Mean 0, so both norms are the same.
        let want = size / (size * size + epsilon).sqrt();
        for made in [
            x.rms_norm(1, None, epsilon)?,
            x.layer_norm(1, None, None, epsilon)?,
        ] {
            for (at, got) in made.to_vec::<f64>()?.into_iter().enumerate() {
                let want = if at % 2 == 0 { want } else { -want };
                let off = (got - want).abs();
                assert!(
                    off <= 1e-15 * want.abs(),
                    "{epsilon:e}: {got:e}, not {want:e}"
                );
            }
        }
        let narrow = x.cast(DType::F32)?;
        let by_f32 = narrow.rms_norm(1, None, epsilon as f32)?.to_vec::<f32>()?;
        let got = narrow.rms_norm(1, None, epsilon)?.to_vec::<f32>()?;
        let bits = |all: &[f32]| -> Vec<u32> { all.iter().map(|x| x.to_bits()).collect() };
        assert_eq!(bits(&got), bits(&by_f32), "{epsilon:e}");
    }
    Ok(())
}

fn arguments(context: &Context) -> Result<()> {
    let device = context.device();
    let x = Tensor::zeros(device, [2, 3], DType::F32)?;
    let whole = Tensor::zeros(device, [2, 3], DType::I32)?;
    for refused in [
        x.softmax(2),
        x.log_softmax([0, 0]),
        whole.softmax(1),
        whole.rms_norm(1, None, 0.0),
        x.softmax(keepdim(1)),
        x.log_softmax(keepdim(..)),
        x.layer_norm(keepdim(1), None, None, 0.0),
        x.transpose(0, 1)?.rms_norm(keepdim(1), None, 0.0),
    ] {
        let error = refused.expect_err("arguments are wrong");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    let weight = Tensor::zeros(device, [2], DType::F32)?;
    let error = x
        .layer_norm(1, Some(&weight), None, 0.0)
        .expect_err("its shape is another");
    assert!(matches!(error, Error::ShapeMismatch(_)), "{error}");
    let weight = Tensor::zeros(device, [3], DType::F64)?;
    let error = x
        .rms_norm(1, Some(&weight), 0.0)
        .expect_err("its dtype is another");
    assert!(matches!(error, Error::DTypeMismatch(_)), "{error}");
    // One tensor for both, and for all three.
    let y = weight_of_three(device)?;
    let (mean, deviation) = (2.0f32, (2.0f32 / 3.0).sqrt());
    let want = [1.0, 2.0, 3.0].map(|x: f32| (x - mean) / deviation * x + x);
    for (at, y) in y.iter().flatten().enumerate() {
        assert!((y - want[at % 3]).abs() < 1e-5, "{y}, not {}", want[at % 3]);
    }
    let none = Tensor::zeros(device, [0, 3], DType::F32)?;
    assert_eq!(none.softmax(1)?.shape().dims(), [0, 3]);
    assert_eq!(none.layer_norm(0, None, None, 0.0)?.elements(), 0);
    Ok(())
}
