//! Matrix products of all shapes and layouts, within the documented bounds.

use orlop::{DType, Result, Tensor, bf16, with_matmul_split};

use crate::adapters::{Context, Variant, full, in_turn, stored_alone};
use crate::number::{Number, for_each_dtype};
use crate::operand::Operand;
use crate::products::{self, Factor, Rule};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("matmul::few", Scope::Kernels, few::<f32>),
        // Of the software adapters one each.
        Test::new("matmul::few::i32", Scope::Device, few::<i32>)
            .when(|context| !context.shares_kernels() || context.adapter.name == "swiftshader"),
        Test::new("matmul::few::f64", Scope::Device, few::<f64>)
            .when(|context| !context.shares_kernels() || context.adapter.name == "lavapipe"),
        Test::new("matmul::larger", Scope::Kernels, larger),
        Test::new("matmul::many_workgroups", Scope::Kernels, many_workgroups),
        Test::new("matmul::specials", Scope::Kernels, specials),
        Test::new("matmul::specials::bf16", Scope::Device, bf16_specials),
        Test::new("matmul::backwards", Scope::Device, backwards),
        Test::new("matmul::small_sweep", Scope::Device, small_sweep),
        // Which the CPU shares out otherwise than small ones.
        Test::new("matmul::few_large_ones", Scope::Device, few_large_ones)
            .when(|context| !context.is_software()),
    ];
    for_each_dtype!(all, Scope::Kernels, "matmul::random", random, in_turn);
    for_each_dtype!(
        all,
        Scope::Kernels,
        "matmul::batches",
        batches,
        stored_alone
    );
    for_each_dtype!(
        all,
        Scope::Kernels,
        "matmul::small_batches",
        small_batches,
        stored_alone
    );
    for_each_dtype!(all, Scope::Kernels, "matmul::edges", edges, in_turn);
    for_each_dtype!(all, Scope::Kernels, "matmul::empty", empty);
    for_each_dtype!(
        all,
        Scope::Kernels,
        "matmul::vectors",
        vectors,
        stored_alone
    );
    for_each_dtype!(
        all,
        Scope::Kernels,
        "matmul::aliases",
        aliases,
        stored_alone
    );
    all
}

/// Multiplies on the device and checks each entry.
pub fn check<T: Factor>(context: &Context, a: &Operand<T>, b: &Operand<T>) -> Result<()> {
    check_some(context, a, b, 1)
}

fn check_some<T: Factor>(
    context: &Context,
    a: &Operand<T>,
    b: &Operand<T>,
    every: usize,
) -> Result<()> {
    let story = || format!("{} {} x {}", T::DTYPE, a.story(), b.story());
    let rule = Rule::of(a.shape(), b.shape());
    let product = a
        .tensor
        .matmul(&b.tensor)
        .unwrap_or_else(|error| panic!("{}: {error}", story()));
    assert_eq!(product.shape().dims(), rule.output, "{}", story());
    assert_eq!(product.dtype(), T::DTYPE);
    assert!(product.is_contiguous());
    if context.device().capabilities().holds(T::DTYPE) {
        assert_eq!(product.device(), context.device());
    }
    let got = product.to_vec::<T>()?;
    products::check(a, b, &got, every).unwrap_or_else(|problem| panic!("{}: {problem}", story()));
    Ok(())
}

/// Operands of a product in the layouts that BLAS users have: row-major, column-major, slices at
/// odd offsets, any view.
pub fn operand<T: Number>(context: &Context, rng: &mut Rng, shape: &[usize]) -> Result<Operand<T>> {
    let device = context.device();
    let rank = shape.len();
    if rank < 2 {
        return Operand::random_view(device, rng, shape);
    }
    let mut turned = shape.to_vec();
    turned.swap(rank - 2, rank - 1);
    match rng.below(5) {
        0 => Operand::random(device, rng, shape),
        1 => Operand::random(device, rng, &turned)?.transpose(rank - 2, rank - 1),
        2 => {
            let start = rng.between(0, 5);
            let outer: Vec<usize> = shape.iter().map(|size| size + start + 1).collect();
            let ranges: Vec<_> = shape.iter().map(|size| start..start + size).collect();
            Operand::random(device, rng, &outer)?.slice(&ranges)
        }
        3 => {
            // Rows padded to fours: vectors from an aligned start.
            let mut outer = turned.clone();
            outer[rank - 1] = outer[rank - 1].next_multiple_of(4) + 4;
            let mut ranges: Vec<_> = turned.iter().map(|&size| 0..size).collect();
            ranges[rank - 1] = 4..4 + turned[rank - 1];
            Operand::random(device, rng, &outer)?
                .slice(&ranges)?
                .transpose(rank - 2, rank - 1)
        }
        _ => Operand::random_view(device, rng, shape),
    }
}

/// Sizes that tiles like and sizes that they do not.
fn size(rng: &mut Rng, most: usize) -> usize {
    match rng.below(4) {
        0 => (4 * rng.between(1, 20)).min(most),
        1 => *rng.pick(&[1, 2, 3, 5, 7, 11, 13]),
        _ => rng.between(1, most),
    }
}

fn random<T: Factor>(context: &Context) -> Result<()> {
    let most = if context.is_slow() { 40 } else { 80 };
    // Those of 16 bits take compilers longest.
    let is_few = T::DTYPE.size() == 2 && context.shares_kernels();
    let usual = if is_few { 20 } else { 40 };
    cases(context.times(usual), |rng| {
        let (m, k, n) = (size(rng, most), size(rng, most), size(rng, most));
        let a = operand::<T>(context, rng, &[m, k])?;
        let b = operand::<T>(context, rng, &[k, n])?;
        let parts = if rng.one_in(4) { 3 } else { 1 };
        with_matmul_split(parts, || check(context, &a, &b))
    })
}

/// Operands that go back are copied once, not for every batch or row.
fn backwards(context: &Context) -> Result<()> {
    const BATCH: usize = 64;
    const SIDE: usize = 64;
    let device = context.open();
    let count = |shape: [usize; 3]| shape.iter().product::<usize>();
    let values = |count: usize| (0..count).map(|at| (at * 7 % 11) as f32 - 5.0).collect();
    let (left, rows) = ([BATCH, 1, SIDE], [16, 8, SIDE]);
    let (x, y): (Vec<f32>, Vec<f32>) = (values(count(left)), values(count(rows)));
    let (w, bias): (Vec<f32>, Vec<f32>) = (values(SIDE * SIDE), values(SIDE));
    let tensor = |data: &[f32], shape: &[usize]| Tensor::from_slice(&device, data, shape);
    let flipped_w = tensor(&w, &[SIDE, SIDE])?.flip(&[0])?;
    let flipped_bias = tensor(&bias, &[SIDE])?.flip(&[0])?;
    let (x_there, y_there) = (tensor(&x, &left)?, tensor(&y, &rows)?);
    let peak = |product: &dyn Fn() -> Result<Tensor>| -> Result<(u64, Vec<f32>)> {
        device.reset_peaks();
        let before = device.memory().allocated;
        let product = product()?;
        let data = product.to_vec::<f32>()?;
        Ok((device.memory().peak_allocated - before, data))
    };
    let (taken, product) = peak(&|| x_there.matmul(&flipped_w))?;
    // The result and a copy, and not one of the matrix for each of the batch.
    let once = 4 * (BATCH * SIDE + SIDE * SIDE) as u64;
    assert!(
        taken <= once,
        "{taken} bytes, {once} are the result and a copy"
    );
    for (at, &got) in product.iter().enumerate() {
        let (i, j) = (at / SIDE, at % SIDE);
        let terms = (0..SIDE).map(|p| x[i * SIDE + p] * w[(SIDE - 1 - p) * SIDE + j]);
        assert_eq!(got, terms.sum::<f32>(), "entry {i}, {j}");
    }
    let (taken, layer) =
        peak(&|| y_there.linear(&flipped_w, Some(&flipped_bias), orlop::Activation::None))?;
    let once = 4 * (128 * SIDE + SIDE * SIDE + SIDE) as u64;
    assert!(
        taken <= once,
        "{taken} bytes, {once} are the result and copies"
    );
    for (at, &got) in layer.iter().enumerate() {
        let (i, j) = (at / SIDE, at % SIDE);
        let terms = (0..SIDE).map(|p| y[i * SIDE + p] * w[(SIDE - 1 - p) * SIDE + j]);
        assert_eq!(
            got,
            terms.sum::<f32>() + bias[SIDE - 1 - j],
            "entry {i}, {j}"
        );
    }
    Ok(())
}

/// Batches that broadcast, and batches that do not merge into one dimension.
fn batches<T: Factor>(context: &Context) -> Result<()> {
    cases(context.times(24), |rng| {
        let (m, k, n) = (size(rng, 12), size(rng, 12), size(rng, 12));
        let rank = rng.between(1, 3);
        let batch: Vec<usize> = (0..rank).map(|_| rng.between(1, 4)).collect();
        let mut side = |last: [usize; 2]| -> Vec<usize> {
            let dropped = rng.below(rank + 1);
            batch[if rng.one_in(2) { dropped } else { 0 }..]
                .iter()
                .map(|&size| if rng.one_in(4) { 1 } else { size })
                .chain(last)
                .collect()
        };
        let (left, right) = (side([m, k]), side([k, n]));
        let a = operand::<T>(context, rng, &left)?;
        let b = operand::<T>(context, rng, &right)?;
        check(context, &a, &b)
    })
}

/// Batches of matrices that are large enough to be shared out one by one, and repeat on one side.
fn few_large_ones(context: &Context) -> Result<()> {
    few_large_ones_of::<f32>(context)?;
    few_large_ones_of::<i32>(context)?;
    few_large_ones_of::<orlop::f16>(context)
}

fn few_large_ones_of<T: Factor>(context: &Context) -> Result<()> {
    cases(1, |rng| {
        for left in [&[3, 110, 100][..], &[1, 110, 100], &[110, 100]] {
            let a = operand::<T>(context, rng, left)?;
            let b = operand::<T>(context, rng, &[3, 100, 101])?;
            check_some(context, &a, &b, 7)?;
        }
        Ok(())
    })
}

/// One below, at and one above the sizes of tiles.
fn edges<T: Factor>(context: &Context) -> Result<()> {
    let mut around = vec![15, 16, 17, 31, 32, 33, 63, 64, 65];
    if !context.is_slow() {
        around.extend([127, 128, 129]);
    } else if context.variant != Variant::Plain || T::DTYPE.size() == 2 {
        around.truncate(6);
    }
    let most = *around.last().unwrap_or(&64);
    cases(1, |rng| {
        // Above what small tiles get, as it lies and turned.
        let a = operand::<T>(context, rng, &[65, 70])?;
        let b = operand::<T>(context, rng, &[70, 67])?;
        check(context, &a, &b)?;
        let a = Operand::<T>::random(context.device(), rng, &[72, 64])?;
        let b = Operand::<T>::random(context.device(), rng, &[68, 72])?;
        check(context, &a.transpose(0, 1)?, &b.transpose(0, 1)?)?;
        for (nth, &size) in around.iter().enumerate() {
            let others = [1, 4, rng.between(2, 20), *rng.pick(&around)];
            let all = [
                [size, others[0], others[1]],
                [others[1], size, others[2]],
                [others[2], others[3].min(most), size],
                [size, others[2], size],
            ];
            for (at, [m, k, n]) in all.into_iter().enumerate() {
                if (nth + at).is_multiple_of(2) && context.is_stood_for::<T>() {
                    continue;
                }
                let a = operand::<T>(context, rng, &[m, k])?;
                let b = operand::<T>(context, rng, &[k, n])?;
                check(context, &a, &b)?;
            }
        }
        Ok(())
    })
}

/// Nothing in it, or nothing to sum: the right shape, and zeros.
fn empty<T: Factor>(context: &Context) -> Result<()> {
    let device = context.device();
    for (a, b) in [
        (vec![0, 3], vec![3, 4]),
        (vec![3, 4], vec![4, 0]),
        (vec![3, 0], vec![0, 4]),
        (vec![0, 0], vec![0, 0]),
        (vec![0, 3, 4], vec![4, 5]),
        (vec![2, 3, 0], vec![2, 0, 5]),
        (vec![2, 3, 0], vec![0]),
        (vec![0], vec![0]),
        (vec![0], vec![0, 4]),
        (vec![0, 3, 4], vec![1, 4, 2]),
    ] {
        let a = Operand::<T>::new(device, vec![T::specials()[2]; a.iter().product()], &a)?;
        let b = Operand::<T>::new(device, vec![T::specials()[2]; b.iter().product()], &b)?;
        check(context, &a, &b)?;
    }
    Ok(())
}

/// Vectors on either side and on both, with batches.
fn vectors<T: Factor>(context: &Context) -> Result<()> {
    cases(context.times(8), |rng| {
        let (m, k, n) = (size(rng, 70), size(rng, 70), size(rng, 70));
        for (left, right) in [
            (vec![k], vec![k]),
            (vec![k], vec![k, n]),
            (vec![m, k], vec![k]),
            (vec![1, k], vec![k, n]),
            (vec![m, k], vec![k, 1]),
            (vec![3, m, k], vec![k]),
            (vec![k], vec![2, k, n]),
            (vec![2, 1, m, k], vec![3, k, 1]),
        ] {
            let a = operand::<T>(context, rng, &left)?;
            let b = operand::<T>(context, rng, &right)?;
            check(context, &a, &b)?;
        }
        Ok(())
    })
}

/// Both operands in one storage.
fn aliases<T: Factor>(context: &Context) -> Result<()> {
    cases(1, |rng| {
        for size in [1, 4, 13, 20, 33, 64] {
            let a = Operand::<T>::random(context.device(), rng, &[size, size])?;
            let wide = Operand::<T>::random(context.device(), rng, &[size, size + 3])?;
            let left = wide.slice(&[0..size, 0..size])?;
            let right = wide.slice(&[0..size, 3..size + 3])?;
            let all = [
                (a.clone(), a.clone()),
                (a.clone(), a.transpose(0, 1)?),
                (a.transpose(0, 1)?, a),
                (wide.clone(), wide.transpose(0, 1)?),
                (left.clone(), right.clone()),
                (left, right.transpose(0, 1)?),
            ];
            // Each is a kernel.
            let few = match context.is_stood_for::<T>() {
                true => 1,
                false if context.shares_kernels() => 2,
                false => all.len(),
            };
            let first = rng.below(all.len());
            for (a, b) in all.iter().cycle().skip(first).take(few) {
                check(context, a, b)?;
            }
        }
        Ok(())
    })
}

/// Few rows or columns, on both sides of where they end, times matrices as they lie and turned, of whole vectors and not.
fn few<T: Factor>(context: &Context) -> Result<()> {
    let device = context.device();
    cases(1, |rng| {
        let sizes: &[usize] = match (context.is_slow(), context.shares_kernels()) {
            (true, _) => &[130],
            (_, true) if context.is_stood_for::<T>() => &[515],
            (_, true) => &[120, 520],
            _ => &[120, 136, 264, 515, 520],
        };
        let every = if context.is_stood_for::<T>() { 2 } else { 1 };
        for &n in sizes {
            for few in [2, 3, 4, 5, 8, 7, 16, 9, 17].into_iter().step_by(every) {
                let k = *rng.pick(&[8, 67, 200, 256]);
                let rows = Operand::<T>::random(device, rng, &[few, k])?;
                let turned = Operand::<T>::random(device, rng, &[k, few])?.transpose(0, 1)?;
                let a = if rng.one_in(2) { &rows } else { &turned };
                let b = match rng.one_in(2) {
                    true => Operand::<T>::random(device, rng, &[k, n])?,
                    false => Operand::<T>::random(device, rng, &[n, k])?.transpose(0, 1)?,
                };
                check(context, a, &b)?;
                check(context, &b.transpose(0, 1)?, &a.transpose(0, 1)?)?;
            }
            let a = Operand::<T>::random(device, rng, &[3, 3, 40])?;
            check(context, &a, &Operand::random(device, rng, &[40, n])?)?;
            check(context, &a, &Operand::random(device, rng, &[3, 40, n])?)?;
        }
        Ok(())
    })
}

fn larger(context: &Context) -> Result<()> {
    let sizes: &[[usize; 3]] = if context.is_slow() {
        &[[129, 70, 67], [61, 200, 130], [130, 131, 129]]
    } else {
        &[
            [257, 129, 300],
            [256, 256, 256],
            [211, 307, 101],
            [512, 64, 512],
        ]
    };
    cases(1, |rng| {
        for &[m, k, n] in sizes {
            let a = operand::<f32>(context, rng, &[m, k])?;
            let b = operand::<f32>(context, rng, &[k, n])?;
            check_some(context, &a, &b, 7)?;
        }
        Ok(())
    })
}

/// More workgroups than one dimension of a grid has.
fn many_workgroups(context: &Context) -> Result<()> {
    cases(1, |rng| {
        let batch = 70_000;
        let a = Operand::<i32>::random(context.device(), rng, &[batch, 17, 3])?;
        let b = Operand::<i32>::random(context.device(), rng, &[batch, 3, 1])?;
        check(context, &a, &b)?;
        let a = Operand::<f32>::random(context.device(), rng, &[batch, 1, 1])?;
        let b = Operand::<f32>::random(context.device(), rng, &[1, 1])?;
        check(context, &a, &b)?;
        // 64 small matrices share a workgroup.
        if context.is_slow() && context.variant != Variant::Plain && !full() {
            return Ok(());
        }
        let batch = 64 * 66_000 + 5;
        let a = Operand::<i32>::random(context.device(), rng, &[batch, 1, 1])?;
        let b = Operand::<i32>::random(context.device(), rng, &[batch, 1, 1])?;
        check(context, &a, &b)
    })
}

/// Batches of small matrices, as many as a hardware GPU's cores share: around the tiles of invocations, in several
/// layouts, and broadcast.
fn small_batches<T: Factor>(context: &Context) -> Result<()> {
    let across = if !context.is_cpu() && !context.is_software() {
        40
    } else {
        8
    };
    cases(1, |rng| {
        for [m, k, n] in [
            [1, 1, 1],
            [2, 2, 2],
            [2, 3, 2],
            [3, 3, 1],
            [3, 3, 3],
            [3, 4, 5],
            [4, 1, 4],
            [4, 4, 1],
            [4, 4, 4],
            [4, 8, 1],
            [1, 7, 4],
            [8, 8, 8],
            [9, 5, 16],
            [16, 33, 12],
        ] {
            let a = operand::<T>(context, rng, &[across, 1, m, k])?;
            let b = operand::<T>(context, rng, &[300, k, n])?;
            check_some(context, &a, &b, 7)?;
        }
        Ok(())
    })
}

/// NaN and infinities pass through as sums demand; tiles' padding adds none.
fn specials(context: &Context) -> Result<()> {
    let (m, k, n) = (5, 6, 7);
    let mut values = vec![1.0f32; m * k];
    values[0] = f32::NAN;
    values[k] = f32::INFINITY;
    values[2 * k] = f32::INFINITY;
    values[2 * k + 1] = f32::NEG_INFINITY;
    let a = Tensor::from_slice(context.device(), &values, [m, k])?;
    let b = Tensor::ones(context.device(), [k, n], DType::F32)?;
    let got = a.matmul(&b)?.to_vec::<f32>()?;
    for (at, got) in got.iter().enumerate() {
        match at / n {
            0 | 2 => assert!(got.is_nan(), "row {}: {got}", at / n),
            1 => assert_eq!(*got, f32::INFINITY),
            _ => assert_eq!(*got, k as f32),
        }
    }
    Ok(())
}

/// What processors with instructions for bf16 could take for zero, and NaN and infinities, by rows and by columns, of few rows
/// and of many.
fn bf16_specials(context: &Context) -> Result<()> {
    let (device, k) = (context.device(), 160);
    for (m, n) in [(1, 40), (3, 40), (40, 3), (40, 70)] {
        let tiny = bf16::from_f32(1e-39);
        let mut rows = vec![bf16::ONE; m * k];
        rows[(m - 1) * k + 7] = tiny;
        let mut columns = vec![bf16::ZERO; k * n];
        columns[7 * n..8 * n].fill(bf16::from_f32(1e38));
        let a = Tensor::from_slice(device, &rows, [m, k])?;
        let b = Tensor::from_slice(device, &columns, [k, n])?;
        let turned = |x: &Tensor| x.transpose(0, 1)?.contiguous()?.transpose(0, 1);
        for (a, b) in [
            (a.clone(), b.clone()),
            (a.clone(), turned(&b)?),
            (turned(&a)?, turned(&b)?),
        ] {
            let got = a.matmul(&b)?.cast(DType::F32)?.to_vec::<f32>()?;
            let want = tiny.to_f32() * 1e38;
            let near = |x: f32, y: f32| (x - y).abs() <= 0.01 * y;
            for (at, &got) in got.iter().enumerate() {
                match at / n == m - 1 {
                    true => assert!(near(got, want) || got == 0.0 && !context.is_cpu(), "{got}"),
                    false => assert!(near(got, 1e38), "{got}"),
                }
            }
        }
        let (nan, infinity) = (bf16::NAN, bf16::INFINITY);
        columns.fill(bf16::ONE);
        columns[9 * n] = nan;
        columns[150 * n + n - 1] = infinity;
        columns[20 * n + 1] = bf16::NEG_INFINITY;
        rows[(m - 1) * k + 7] = bf16::ONE;
        rows[(m - 1) * k + 150] = bf16::ZERO;
        let a = Tensor::from_slice(device, &rows, [m, k])?;
        let b = Tensor::from_slice(device, &columns, [k, n])?;
        for b in [b.clone(), turned(&b)?] {
            let got = a.matmul(&b)?.cast(DType::F32)?.to_vec::<f32>()?;
            for (at, &got) in got.iter().enumerate() {
                let (is_last, column) = (at / n == m - 1, at % n);
                let is_right = match column {
                    0 => got.is_nan(),
                    1 => got == f32::NEG_INFINITY,
                    // 0 times infinity.
                    _ if column == n - 1 && is_last => got.is_nan(),
                    _ if column == n - 1 => got == f32::INFINITY,
                    _ => got == if is_last { 159.0 } else { 160.0 },
                };
                assert!(is_right, "{m} x {n}, {at}: {got}");
            }
        }
    }
    Ok(())
}

/// In full: every m, k, n up to 20. Else a part of them, with every m, every k and every n.
fn small_sweep(context: &Context) -> Result<()> {
    let every = match (full(), context.is_slow()) {
        (true, _) => 1,
        (false, true) => 199,
        (false, false) => 67,
    };
    let (most, mut rng) = (21, Rng::new(crate::rng::seed()));
    for at in (0..most * most * most).step_by(every) {
        let (m, k, n) = (at / (most * most), at / most % most, at % most);
        let a = operand::<f32>(context, &mut rng, &[m, k])?;
        let b = operand::<f32>(context, &mut rng, &[k, n])?;
        check(context, &a, &b)?;
    }
    Ok(())
}
