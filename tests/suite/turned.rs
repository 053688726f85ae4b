//! Inputs that lie turned: copies of permuted tensors and elementwise ops on them, in squares of every side,
//! against the list of indices.

use orlop::{DType, Device, Result, Tensor, bf16, with_hardware_plans};

use crate::adapters::{Context, full, runs_hardwares, stored_alone};
use crate::elementwise;
use crate::number::{Arithmetic, Number, for_each_dtype};
use crate::operand::{Operand, same};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("turned::copies::bool", Scope::Kernels, copies::<bool>),
        Test::new("turned::edges::bool", Scope::Device, edges::<bool>),
        Test::new(
            "turned::hardware::bool",
            Scope::Gpu,
            hardware_copies::<bool>,
        ),
        Test::new("turned::in_place", Scope::Kernels, in_place),
        Test::new("turned::words", Scope::Gpu, words),
        Test::new("turned::fused", Scope::Gpu, fused),
        Test::new("turned::order", Scope::Device, order),
        Test::new("turned::many_workgroups", Scope::Large, many_workgroups),
        Test::new(
            "turned::past_caches::f32",
            Scope::Device,
            past_caches::<f32>,
        )
        .when(|context| !context.is_slow()),
        Test::new(
            "turned::past_caches::bf16",
            Scope::Large,
            past_caches::<bf16>,
        ),
    ];
    for_each_dtype!(all, Scope::Kernels, "turned::copies", copies);
    for_each_dtype!(all, Scope::Device, "turned::edges", edges);
    for_each_dtype!(all, Scope::Kernels, "turned::sums", sums, stored_alone);
    for_each_dtype!(all, Scope::Device, "turned::tiles", tiles, stored_alone);
    for_each_dtype!(all, Scope::Gpu, "turned::hardware", hardware, runs);
    all
}

/// The slow adapters leave out most of f32, which lies as i32 does.
fn runs<T: Number>(context: &Context) -> bool {
    match T::DTYPE {
        DType::F32 => true,
        DType::I32 => !context.shares_kernels(),
        _ => runs_hardwares::<T>(context),
    }
}

/// Sizes at which squares begin to pay, and end.
const SIZES: [usize; 14] = [1, 3, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40];

/// A permuted tensor of rank 2 to 5 whose last axis is another one in memory, now and then within a larger one.
fn permuted<T: Number>(context: &Context, rng: &mut Rng) -> Result<Operand<T>> {
    let rank = rng.between(2, 5);
    let mut left = if context.is_slow() { 3000 } else { 9000 };
    // Whole vectors as often as not.
    let whole = rng.one_in(2);
    let mut shape = vec![1; rank];
    for axis in rng.shuffled(rank) {
        let fits = |size: &&usize| **size <= left && (!whole || size.is_multiple_of(8));
        let sizes: Vec<usize> = SIZES.iter().filter(fits).copied().collect();
        shape[axis] = if sizes.is_empty() {
            rng.between(1, left.min(3))
        } else {
            *rng.pick(&sizes)
        };
        left /= shape[axis];
    }
    let margin = if rng.one_in(2) {
        0
    } else if whole {
        8
    } else {
        rng.between(1, 3)
    };
    let outer: Vec<usize> = shape.iter().map(|size| size + margin).collect();
    let ranges: Vec<_> = shape.iter().map(|size| margin..margin + size).collect();
    let mut axes = rng.shuffled(rank);
    while axes[rank - 1] == rank - 1 {
        axes = rng.shuffled(rank);
    }
    let base = Operand::<T>::random(context.device(), rng, &outer)?;
    base.slice(&ranges)?.permute(&axes)
}

fn check_copy<T: Number>(view: &Operand<T>) -> Result<()> {
    let copy = view.tensor.copy()?;
    assert!(copy.is_contiguous());
    let (got, want) = (copy.to_vec::<T>()?, view.values());
    let wrong = (0..want.len()).find(|&at| got[at].bits() != want[at].bits());
    assert_eq!((got.len(), wrong), (want.len(), None), "{}", view.story());
    Ok(())
}

fn copies<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(12), |rng| {
        check_copy(&permuted::<T>(context, rng)?)
    })
}

/// Matrices around the sides of squares and tiles, from offsets that spoil the alignment.
fn edges<T: Number>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 17 } else { 65 };
    let sizes = [7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65];
    let sizes: Vec<usize> = sizes.into_iter().filter(|&size| size <= most).collect();
    cases(1, |rng| {
        for &rows in &sizes {
            for &columns in &sizes {
                let all = Operand::<T>::random(context.device(), rng, &[rows * columns + 8])?;
                for first in [0, 1, 8] {
                    let part = all.range(first..first + rows * columns)?;
                    let matrix = part.reshape(&[rows, columns])?;
                    check_copy(&matrix.transpose(0, 1)?)?;
                }
            }
        }
        Ok(())
    })
}

/// Turned operands beside others: straight and turned ones, rows, columns and single numbers.
fn sums<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let usual = if context.shares_kernels() { 3 } else { 6 };
    cases(context.times(usual), |rng| {
        let turned = permuted::<T>(context, rng)?;
        let shape = turned.shape().to_vec();
        let rank = shape.len();
        let straight = Operand::<T>::random(device, rng, &shape)?;
        let row = Operand::<T>::random(device, rng, &shape[rank - 1..])?;
        let mut one_column = shape.clone();
        one_column[rank - 1] = 1;
        let column = Operand::<T>::random(device, rng, &one_column)?;
        let one = Operand::<T>::random(device, rng, &[1])?;
        let also = permuted::<T>(context, rng)?;
        let other = match also.shape() == turned.shape() {
            true => &also,
            false => &turned,
        };
        for second in [&straight, &row, &column, &one, other] {
            let op = elementwise::some_op(context, rng);
            elementwise::check(context, op, &turned, second)?;
            elementwise::check(context, op, second, &turned)?;
            // What agrees on an order is not turned, but beside a straight one; between these nothing is rounded.
            let between = |turned: &Tensor| {
                orlop::fused(|e| {
                    let (x, low) = (e.input(turned), e.input(&second.tensor));
                    x.maximum(low).minimum(e.input(&straight.tensor))
                })?
                .to_vec::<T>()
            };
            let (got, want) = (between(&turned.tensor)?, between(&turned.tensor.copy()?)?);
            let wrong = (0..want.len()).find(|&at| got[at].bits() != want[at].bits());
            assert_eq!(wrong, None, "{} and {}", turned.story(), second.story());
        }
        let square = Operand::<T>::random(device, rng, &[16, 16])?;
        elementwise::check(context, Arithmetic::Sub, &square, &square.transpose(0, 1)?)
    })
}

/// Beside the sides of the CPU's tiles, with axes between and around rows and columns, also from offsets.
fn tiles<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let all: &[([usize; 4], [usize; 4])] = match context.is_slow() {
        true => &[([2, 2, 70, 17], [0, 3, 1, 2])],
        false => &[
            ([1, 1, 1030, 67], [0, 1, 3, 2]),
            ([1, 1, 66, 1027], [0, 1, 3, 2]),
            ([1, 1, 17, 4001], [0, 1, 3, 2]),
            ([40, 1, 33, 35], [0, 1, 3, 2]),
            ([3, 2, 131, 70], [0, 3, 1, 2]),
            ([2, 129, 3, 70], [3, 0, 2, 1]),
        ],
    };
    cases(1, |rng| {
        for (shape, axes) in all {
            let outer: Vec<usize> = shape.iter().map(|size| size + 1).collect();
            let ranges: Vec<_> = shape.iter().map(|&size| 1..size + 1).collect();
            let whole = Operand::<T>::random(device, rng, shape)?.permute(axes)?;
            let part = Operand::<T>::random(device, rng, &outer)?.slice(&ranges)?;
            let part = part.permute(axes)?;
            let straight = Operand::<T>::random(device, rng, whole.shape())?;
            let op = elementwise::some_op(context, rng);
            for turned in [&whole, &part] {
                check_copy(turned)?;
                elementwise::check(context, op, turned, &straight)?;
                elementwise::check(context, op, &straight, turned)?;
            }
            // Of several sizes in one launch.
            let conditions = Operand::<bool>::random(device, rng, &outer)?.slice(&ranges)?;
            let conditions = conditions.permute(axes)?;
            let got = straight.tensor.add(&whole.tensor)?;
            let got = conditions
                .tensor
                .select(&part.tensor, &got)?
                .to_vec::<T>()?;
            let (parts, sums) = (
                part.values(),
                straight.tensor.add(&whole.tensor)?.to_vec::<T>()?,
            );
            for (at, is_part) in conditions.values().into_iter().enumerate() {
                let want = if is_part { parts[at] } else { sums[at] };
                assert_eq!(got[at].bits(), want.bits(), "{at} of {}", part.story());
            }
            beside(device, rng, &part, (&outer, axes))?;
        }
        Ok(())
    })
}

/// What copies a turned one into a part of something, against what it does with its copy, which lies by rows.
fn beside<T: Number>(
    device: &Device,
    rng: &mut Rng,
    turned: &Operand<T>,
    (outer, axes): (&[usize], &[usize]),
) -> Result<()> {
    let (x, by_rows) = (&turned.tensor, &turned.tensor.copy()?);
    let rank = x.rank();
    let alike = |got: Tensor, want: Tensor| same(&got, &want.to_vec::<T>()?);
    let widths: Vec<(usize, usize)> = (0..rank).map(|axis| (axis % 2, 2)).collect();
    alike(x.pad(&widths, 1)?, by_rows.pad(&widths, 1)?)?;
    alike(x.tril(3)?, by_rows.tril(3)?)?;
    for axis in [0, rank - 1] {
        alike(
            Tensor::concat(&[x, by_rows], axis)?,
            Tensor::concat(&[by_rows, by_rows], axis)?,
        )?;
    }
    // Into parts that lie by rows, turned as well, and backwards.
    let sizes: Vec<usize> = x.shape().iter().map(|size| size + 1).collect();
    let part: Vec<_> = sizes.iter().map(|&size| 1..size).collect();
    let by_rows = Operand::<T>::random(device, rng, &sizes)?;
    let turned_too = Operand::<T>::random(device, rng, outer)?;
    let parts = [
        (&by_rows, by_rows.slice(&part)?),
        (&by_rows, by_rows.slice(&part)?.flip(&[0])?),
        (&turned_too, turned_too.permute(axes)?.slice(&part)?),
    ];
    for (whole, part) in parts {
        let mut want = whole.tensor.to_vec::<T>()?;
        for (&at, value) in part.grid.indices.iter().zip(turned.values()) {
            want[at] = value;
        }
        part.tensor.assign(x)?;
        same(&whole.tensor, &want)?;
    }
    Ok(())
}

/// Results so large that the CPU copies what lies turned into them first, against what is computed of copies.
fn past_caches<T: Number>(context: &Context) -> Result<()> {
    let device = &context.open();
    let (rows, columns) = (2900, 2930);
    let random = |shape: [usize; 2], seed| {
        Tensor::randint(device, -9..10, shape, DType::I32, seed)?.cast(T::DTYPE)
    };
    let (x, y) = (random([columns, rows], 1)?, random([rows, columns], 2)?);
    let z = random([columns + 1, rows + 2], 3)?.slice((1.., ..rows))?;
    let (x, z) = (x.transpose(0, 1)?, z.transpose(0, 1)?);
    let (x_by_rows, z_by_rows) = (x.copy()?, z.copy()?);
    let alike = |got: Tensor, want: Tensor| same(&got, &want.to_vec::<T>()?);
    alike(y.sub(&x)?, y.sub(&x_by_rows)?)?;
    let both = |x: &Tensor, z: &Tensor| {
        orlop::fused(|e| {
            let [y, x, z] = [&y, x, z].map(|input| e.input(input));
            y * x - x * z
        })
    };
    alike(both(&x, &z)?, both(&x_by_rows, &z_by_rows)?)?;
    // Of another size, and with an old value.
    let is_less = y.lt(&x)?.to_vec::<bool>()?;
    assert_eq!(is_less, y.lt(&x_by_rows)?.to_vec::<bool>()?);
    let (sum, want) = (y.copy()?, y.add(&z_by_rows)?);
    sum.add_assign(&z)?;
    alike(sum, want)
}

/// The kernels that hardware is given: a workgroup a square.
fn hardware<T: Number>(context: &Context) -> Result<()> {
    hardware_copies::<T>(context)?;
    if context.is_slow() && !full() {
        return Ok(());
    }
    with_hardware_plans(|| {
        sums::<T>(context)?;
        tiles::<T>(context)
    })
}

fn hardware_copies<T: Number>(context: &Context) -> Result<()> {
    with_hardware_plans(|| {
        edges::<T>(context)?;
        copies::<T>(context)
    })
}

/// What is written is read before, and other storages lie turned.
fn in_place(context: &Context) -> Result<()> {
    let device = context.device();
    let body = || {
        for (rows, columns) in [(16, 24), (9, 33), (20, 12), (64, 64)] {
            let values = |count: usize| (0..count as i32).collect::<Vec<i32>>();
            let a = Tensor::from_slice(device, &values(rows * columns), [rows, columns])?;
            let b = Tensor::from_slice(device, &values(rows * columns), [columns, rows])?;
            a.add_assign(&b.transpose(0, 1)?)?;
            let want = |at: usize| (at + (at % columns) * rows + at / columns) as i32;
            let want: Vec<i32> = (0..rows * columns).map(want).collect();
            assert_eq!(a.to_vec::<i32>()?, want, "{rows} x {columns}");
        }
        Ok(())
    };
    body()?;
    with_hardware_plans(body)
}

/// Squares of words of two elements, whole ones and parts: what lies straight, in another order or is one value beside
/// what lies turned, within larger ones, and in place. All sums are exact.
fn words(context: &Context) -> Result<()> {
    let device = context.device();
    let body = || {
        let sizes = [(32, 34), (62, 64), (66, 130), (128, 62), (65, 64), (64, 33)];
        for (at, (rows, columns)) in sizes.into_iter().enumerate() {
            let of = |count: usize, by: usize| -> Vec<bf16> {
                let values = (0..count).map(|i| (i * by % 97) as f32 - 40.0);
                values.map(bf16::from_f32).collect()
            };
            // Columns of a larger one: whole words begin at even ones alone.
            let (batch, wide, first) = (2, rows + 6, at % 3);
            let a = of(batch * columns * wide, 31);
            let b = of(batch * rows * columns, 17);
            let c = of(batch, 5);
            let x = Tensor::from_slice(device, &a, [batch, columns, wide])?
                .slice((.., .., first..first + rows))?
                .transpose(1, 2)?;
            let y = Tensor::from_slice(device, &b, [batch, rows, columns])?;
            let one = Tensor::from_slice(device, &c, [batch, 1, 1])?;
            let parts = |i: usize| {
                let (batch, row, column) = (i / columns / rows, i / columns % rows, i % columns);
                let turned = a[(batch * columns + column) * wide + first + row];
                (turned.to_f32(), b[i].to_f32(), c[batch].to_f32())
            };
            let is = |got: &Tensor, f: &dyn Fn(f32, f32, f32) -> f32| -> Result<()> {
                for (i, got) in got.to_vec::<bf16>()?.into_iter().enumerate() {
                    let (x, y, c) = parts(i);
                    assert_eq!(got.to_f32(), f(x, y, c), "{rows} x {columns}, {i}");
                }
                Ok(())
            };
            is(&x.copy()?, &|x, _, _| x)?;
            is(&x.add(&y)?, &|x, y, _| x + y)?;
            is(&y.sub(&x)?, &|x, y, _| y - x)?;
            is(&x.sub(&one)?, &|x, _, c| x - c)?;
            is(
                &one.broadcast_to([batch, rows, columns])?.sub(&x)?,
                &|x, _, c| c - x,
            )?;
            let twice = x.copy()?.transpose(1, 2)?.copy()?.transpose(1, 2)?;
            is(&twice.add(&y)?, &|x, y, _| x + y)?;
            // The same numbers as f16, and numbers of the expression.
            let halves = (x.cast(DType::F16)?, y.cast(DType::F16)?);
            let fused = orlop::fused(|e| e.input(&halves.0) * 0.5 + e.input(&halves.1))?;
            is(&fused.mul(2.0)?.cast(DType::BF16)?, &|x, y, _| x + 2.0 * y)?;
            y.add_assign(&x)?;
            is(&y, &|x, y, _| x + y)?;
        }
        Ok(())
    };
    body()?;
    with_hardware_plans(body)
}

/// Numbers of an expression, and results narrower than their inputs.
fn fused(context: &Context) -> Result<()> {
    let device = context.device();
    let body = || {
        for (rows, columns) in [(16, 32), (33, 20), (40, 24)] {
            let values: Vec<f32> = (0..rows * columns).map(|at| at as f32 - 300.0).collect();
            let x = Tensor::from_slice(device, &values, [rows, columns])?.transpose(0, 1)?;
            // Beside what lies by rows the others are turned.
            let zero = &Tensor::zeros(device, [columns, rows], DType::F32)?;
            let source = |at: usize| values[at % rows * columns + at / rows];
            let all = 0..rows * columns;
            let got = orlop::fused(|e| {
                let x = e.input(&x);
                ((x * 2.0 + 1.0) * x - 0.5).maximum(e.input(zero)) * 0.25
            })?;
            let f = |x: f32| ((x * 2.0 + 1.0) * x - 0.5).max(0.0) * 0.25;
            let got = got.to_vec::<f32>()?;
            assert!(
                all.clone()
                    .all(|at| (got[at] - f(source(at))).abs() <= 1e-5 * got[at])
            );
            let halves = x.cast(DType::BF16)?.to_vec::<orlop::bf16>()?;
            assert!(
                all.clone()
                    .all(|at| halves[at] == orlop::bf16::from_f32(source(at)))
            );
            let positive = x.gt(zero)?.to_vec::<bool>()?;
            assert!(all.clone().all(|at| positive[at] == (source(at) > 0.0)));
            let numbers = x
                .gt(zero)?
                .transpose(0, 1)?
                .cast(DType::I32)?
                .to_vec::<i32>()?;
            assert!(
                all.clone()
                    .all(|at| numbers[at] == i32::from(values[at] > 0.0))
            );
        }
        Ok(())
    };
    body()?;
    with_hardware_plans(body)
}

/// What is computed of tensors of one order lies in it too, in no more memory than it takes, and in place.
fn order(context: &Context) -> Result<()> {
    let device = &context.open();
    cases(context.times(6), |rng| {
        let rank = rng.between(2, 5);
        let shape: Vec<usize> = (0..rank).map(|_| rng.between(2, 6)).collect();
        let mut axes = rng.shuffled(rank);
        while axes.is_sorted() {
            axes = rng.shuffled(rank);
        }
        let mut back = vec![0; rank];
        for (at, &axis) in axes.iter().enumerate() {
            back[axis] = at;
        }
        let whole = Operand::<f32>::random(device, rng, &shape)?;
        let x = whole.permute(&axes)?;
        let y = Operand::<f32>::random(device, rng, &shape)?.permute(&axes)?;
        let row = Operand::<f32>::random(device, rng, &x.shape()[rank - 1..])?;
        let lies_so = |tensor: &Tensor| tensor.permute(&back).is_ok_and(|t| t.is_contiguous());
        let before = device.memory().allocated;
        let sum = x.tensor.add(&y.tensor)?;
        let taken = device.memory().allocated - before;
        assert_eq!(taken, (4 * sum.elements() as u64).next_multiple_of(256));
        let with_row = x.tensor.mul(&row.tensor)?;
        let is_less = x.tensor.lt(&y.tensor)?;
        let halves = x.tensor.cast(DType::BF16)?;
        let flipped = x.flip(&[0])?;
        let back_to_front = flipped.tensor.neg()?;
        for made in [&sum, &with_row, &is_less, &halves, &back_to_front] {
            assert!(lies_so(made), "{made:?} of {:?}", x.tensor);
        }
        let (a, b) = (x.values(), y.values());
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let last = x.shape()[rank - 1];
        let rows = row.values();
        let products: Vec<f32> = (0..a.len()).map(|at| a[at] * rows[at % last]).collect();
        same(&sum, &want)?;
        same(&with_row, &products)?;
        let less: Vec<bool> = a.iter().zip(&b).map(|(a, b)| a < b).collect();
        assert_eq!(is_less.to_vec::<bool>()?, less);
        let turned_back: Vec<f32> = flipped.values().iter().map(|x| -x).collect();
        same(&back_to_front, &turned_back)?;
        // With one that lies by rows it lies by rows; in place each stays as it is.
        let straight = Tensor::zeros(device, x.shape(), DType::F32)?;
        assert!(straight.add(&sum)?.is_contiguous() && sum.add(&straight)?.is_contiguous());
        straight.add_assign(&sum)?;
        same(&straight, &want)?;
        sum.mul_assign(&row.tensor)?;
        let products: Vec<f32> = (0..a.len()).map(|at| want[at] * rows[at % last]).collect();
        same(&sum, &products)?;
        let before = device.memory();
        let negated = sum.into_fused(|_, x| -x)?;
        assert_eq!(device.memory().allocated, before.allocated, "{negated:?}");
        assert!(lies_so(&negated));
        let products: Vec<f32> = products.iter().map(|x| -x).collect();
        same(&negated, &products)?;
        whole.check()
    })
}

/// More of them than one dimension of a grid has, in squares of 4 and in tiles.
fn many_workgroups(context: &Context) -> Result<()> {
    let device = context.open();
    let (rows, columns) = (8200, 8196);
    let values: Vec<bool> = (0..rows * columns)
        .map(|at: usize| at.is_multiple_of(7) ^ (at % columns).is_multiple_of(5))
        .collect();
    let turned = Tensor::from_slice(&device, &values, [rows, columns])?.transpose(0, 1)?;
    let check = || {
        let got = turned.copy()?.to_vec::<bool>()?;
        let wrong =
            (0..rows * columns).find(|&at| got[at] != values[at % rows * columns + at / rows]);
        assert_eq!(wrong, None);
        Ok(())
    };
    check()?;
    with_hardware_plans(check)
}
