//! Kernels for matrix products: where their loops and tiles end, parts of k, halves, texels, against sums in f64.

use orlop::memory::WhenFull;
use orlop::{
    DType, Device, Element, Error, MatmulKernel, MatmulProblem, Result, Tensor, bf16,
    explain_matmuls, f16, plan_matmul, with_matmul_kernel, with_matmul_split,
};

use crate::adapters::{Context, full};
use crate::forced::turn_of;
use crate::full::one_region;
use crate::products::steps;
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("kernels::ends_of_k", Scope::Gpu, ends_of_k),
        Test::new("kernels::every_small_size", Scope::Device, every_small_size),
        Test::new("kernels::repeated", Scope::Device, repeated),
        Test::new("kernels::split", Scope::Gpu, split),
        Test::new("kernels::halves::f16", Scope::Kernels, f16_halves),
        Test::new("kernels::halves::bf16", Scope::Kernels, bf16_halves),
        Test::new("kernels::texels", Scope::Gpu, texels),
        Test::new("kernels::long_vectors", Scope::Gpu, long_vectors),
        Test::new("kernels::turns_of_vectors", Scope::Gpu, turns_of_vectors),
        Test::new("kernels::without_copies", Scope::Gpu, without_copies),
        Test::new("kernels::told_once", Scope::Gpu, told_once),
        Test::new(
            "kernels::nothing_goes_for_scratch",
            Scope::Gpu,
            nothing_goes_for_scratch,
        ),
        Test::new("kernels::told_within", Scope::Gpu, told_within),
        Test::new("kernels::planned_apart", Scope::Gpu, planned_apart),
        Test::new("kernels::refused", Scope::Device, refused),
    ]
}

/// A matrix on the host, row-major, and on the device as it is stored.
pub struct Matrix {
    pub host: Vec<f32>,
    pub tensor: Tensor,
}

impl Matrix {
    /// `[batch, rows, columns]`; `way` is how it lies: by rows, by columns, a slice of more.
    pub fn new(
        device: &Device,
        rng: &mut Rng,
        [batch, rows, columns]: [usize; 3],
        way: usize,
    ) -> Result<Self> {
        let margin = if way == 2 { 3 } else { 0 };
        let [outer, inner] = match way {
            1 => [columns, rows],
            _ => [rows + margin, columns + margin],
        };
        let stored: Vec<f32> = (0..batch * outer * inner)
            .map(|_| rng.below(1 << 16) as f32 / 32768.0 - 1.0)
            .collect();
        let tensor = Tensor::from_slice(device, &stored, [batch, outer, inner])?;
        let tensor = match way {
            1 => tensor.transpose(1, 2)?,
            _ => tensor.slice((.., margin.., margin..))?,
        };
        let at = |at: usize| {
            let (b, i, j) = (at / (rows * columns), at / columns % rows, at % columns);
            match way {
                1 => (b * outer + j) * inner + i,
                _ => (b * outer + i + margin) * inner + j + margin,
            }
        };
        let host = (0..batch * rows * columns).map(|i| stored[at(i)]).collect();
        Ok(Self { host, tensor })
    }
}

/// Each entry within [`steps`] of 2^-23 times `sum |a||b|`.
pub fn check(
    a: &[f32],
    b: &[f32],
    c: &[f32],
    [batch, m, k, n]: [usize; 4],
    story: &dyn Fn() -> String,
) {
    assert_eq!(c.len(), batch * m * n, "{}", story());
    let unit = 2f64.powi(-23) * steps(k);
    let (mut sums, mut sizes) = (vec![0.0f64; n], vec![0.0f64; n]);
    for (row, got) in c.chunks(n.max(1)).enumerate() {
        sums.fill(0.0);
        sizes.fill(0.0);
        for step in 0..k {
            let left = f64::from(a[row * k + step]);
            let right = &b[(row / m * k + step) * n..][..n];
            for ((sum, size), &right) in sums.iter_mut().zip(&mut sizes).zip(right) {
                let term = left * f64::from(right);
                *sum += term;
                *size += term.abs();
            }
        }
        for (column, (&got, (sum, size))) in got.iter().zip(sums.iter().zip(&sizes)).enumerate() {
            assert!(
                (f64::from(got) - sum).abs() <= unit * size,
                "{}, row {row}, column {column}: {got}, not {sum}",
                story()
            );
        }
    }
}

/// The kernels that the device has for a shape.
pub fn runs(kernel: MatmulKernel, a: &Tensor, b: &Tensor) -> Result<Option<Tensor>> {
    match with_matmul_kernel(kernel, || a.matmul(b)) {
        Ok(product) => Ok(Some(product)),
        Err(error) if error.to_string().contains("is forced, but") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Steps of k around vectors and tiles, the last one with an infinity in a row of A and a NaN in a column of B: whoever
/// reads it again, or past it, adds neither to other rows and columns, nor anything to sums. In full of every kernel, else
/// of those that read steps twice.
fn ends_of_k(context: &Context) -> Result<()> {
    if context.is_cpu() {
        return Ok(());
    }
    let device = context.device();
    let (m, n) = (68, 72);
    let (infinite, unknown) = (37, 41);
    for (nth, &kernel) in MatmulKernel::all().iter().enumerate() {
        if !full() && !kernel.to_string().starts_with("workgroup") {
            continue;
        }
        let turn = turn_of(context, nth, kernel);
        for way in 0..4 {
            if turn.is_some_and(|turn| !(turn + way).is_multiple_of(4)) {
                continue;
            }
            let [a_along_m, b_along_k] = [way % 2 == 1, way / 2 == 1];
            let mut products = Vec::new();
            for k in [1, 2, 3, 4, 8, 15, 16, 17, 20, 31, 32, 33, 36] {
                // Small integers: sums are exact in any order.
                let mut a: Vec<f32> = (0..m * k).map(|at| (at % 7) as f32 - 3.0).collect();
                let mut b: Vec<f32> = (0..k * n).map(|at| (at % 5) as f32 + 1.0).collect();
                a[infinite * k + k - 1] = f32::INFINITY;
                b[(k - 1) * n + unknown] = f32::NAN;
                let on_device = |host: &[f32], [rows, columns]: [usize; 2], turned: bool| {
                    let tensor = Tensor::from_slice(device, host, [rows, columns])?;
                    match turned {
                        true => tensor.transpose(0, 1)?.contiguous()?.transpose(0, 1),
                        false => Ok(tensor),
                    }
                };
                let left = on_device(&a, [m, k], a_along_m)?;
                let right = on_device(&b, [k, n], b_along_k)?;
                if let Some(product) = runs(kernel, &left, &right)? {
                    products.push((k, a, b, product));
                }
            }
            for (k, a, b, product) in products {
                for (at, got) in product.to_vec::<f32>()?.into_iter().enumerate() {
                    let (row, column) = (at / n, at % n);
                    let terms = (0..k).map(|step| a[row * k + step] * b[step * n + column]);
                    let sum: f32 = terms.sum();
                    assert!(
                        got == sum || got.is_nan() && sum.is_nan(),
                        "{kernel}, k {k}, way {way}, row {row}, column {column}: {got}, not {sum}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// All of 0..=33 cubed on lavapipe, some of them elsewhere: slices of two matrices.
fn every_small_size(context: &Context) -> Result<()> {
    let device = context.device();
    let every = match context.adapter.name.as_str() {
        "lavapipe" => 1,
        _ => 97,
    };
    cases(1, |rng| {
        let most = 33;
        let a = Matrix::new(device, rng, [1, most, most], 0)?;
        let b = Matrix::new(device, rng, [1, most, most], 1)?;
        let part = |matrix: &Matrix, rows: usize, columns: usize| -> Vec<f32> {
            let rows = (0..rows).map(|row| &matrix.host[row * most..][..columns]);
            rows.flatten().copied().collect()
        };
        // Many at a time: recorded, then read.
        let sizes: Vec<[usize; 3]> = (0..(most + 1).pow(3))
            .step_by(every)
            .map(|at| [at / 34 / 34, at / 34 % 34, at % 34])
            .collect();
        for sizes in sizes.chunks(256) {
            let products: Vec<Tensor> = sizes
                .iter()
                .map(|&[m, k, n]| {
                    let left = a.tensor.slice((.., ..m, ..k))?;
                    left.matmul(&b.tensor.slice((.., ..k, ..n))?)
                })
                .collect::<Result<_>>()?;
            for (&[m, k, n], product) in sizes.iter().zip(products) {
                assert_eq!(product.shape().dims(), [1, m, n]);
                let c = product.to_vec::<f32>()?;
                if m > 0 && n > 0 {
                    let (a, b) = (part(&a, m, k), part(&b, k, n));
                    check(&a, &b, &c, [1, m, k, n], &|| {
                        format!("[{m}, {k}] x [{k}, {n}]")
                    });
                }
            }
        }
        Ok(())
    })
}

/// One plan gives the same bits each time.
fn repeated(context: &Context) -> Result<()> {
    let device = context.device();
    for [m, k, n] in [[65, 300, 70], [128, 64, 128], [200, 77, 1], [9, 5000, 9]] {
        let a = Tensor::rand(device, [m, k], DType::F32, 1)?;
        let b = Tensor::rand(device, [k, n], DType::F32, 2)?;
        let bits = || -> Result<Vec<u32>> {
            let product = a.matmul(&b)?.to_vec::<f32>()?;
            Ok(product.into_iter().map(f32::to_bits).collect())
        };
        let first = bits()?;
        for _ in 0..5 {
            assert!(bits()? == first, "[{m}, {k}] x [{k}, {n}] differs");
        }
    }
    Ok(())
}

/// k in parts side by side: the same bounds, the same bits each time, and no other entries.
fn split(context: &Context) -> Result<()> {
    if context.is_cpu() {
        return Ok(());
    }
    let device = context.device();
    cases(1, |rng| {
        let shapes = [
            [1, 5, 70_000, 7],
            [2, 33, 1000, 20],
            [1, 64, 2048, 64],
            [1, 1, 5000, 3],
            [1, 40, 3000, 1],
            [3, 7, 333, 5],
            [1, 6, 17, 6],
            [1, 6, 33, 6],
        ];
        for [batch, m, k, n] in shapes {
            if context.is_slow() && !full() && m * k * n > 300_000 {
                continue;
            }
            let parts = *rng.pick(&[2, 3, 8, 16]);
            let ways = [rng.below(3), rng.below(3)];
            let a = Matrix::new(device, rng, [batch, m, k], ways[0])?;
            let b = Matrix::new(device, rng, [batch, k, n], ways[1])?;
            let story = || format!("{parts} parts of {batch} x [{m}, {k}] x [{k}, {n}], {ways:?}");
            let product = || with_matmul_split(parts, || a.tensor.matmul(&b.tensor));
            let (c, plans) = explain_matmuls(|| product()?.to_vec::<f32>());
            let c = c?;
            assert_eq!(plans[0].1.split, parts);
            let printed = plans[0].1.to_string();
            assert!(
                printed.contains(&format!("k split in {parts}")),
                "{printed}"
            );
            check(&a.host, &b.host, &c, [batch, m, k, n], &story);
            for _ in 0..3 {
                let again = product()?.to_vec::<f32>()?;
                let same = again
                    .iter()
                    .map(|x| x.to_bits())
                    .eq(c.iter().map(|x| x.to_bits()));
                assert!(same, "{} differs", story());
            }
        }
        Ok(())
    })
}

fn f16_halves(context: &Context) -> Result<()> {
    halves(context, f16::from_bits, f16::to_f32, f16::from_f32)
}

fn bf16_halves(context: &Context) -> Result<()> {
    // Adapters may take what is subnormal in f32 for zero.
    let normal = |bits: u16| match bits & 0x7f80 {
        0 => bf16::from_bits(bits & 0x8000),
        _ => bf16::from_bits(bits),
    };
    halves(context, normal, bf16::to_f32, bf16::from_f32)
}

/// Sums of two elements of 16 bits, of all kinds, to the bit: where rows of the result are whole
/// words, where they are not, and as one column.
fn halves<T: Element + PartialEq + std::fmt::Debug>(
    context: &Context,
    of_bits: impl Fn(u16) -> T,
    wide: impl Fn(T) -> f32,
    rounded: impl Fn(f32) -> T,
) -> Result<()> {
    let device = context.device();
    cases(1, |rng| {
        for n in [4, 3, 1] {
            let m = if context.is_slow() { 100 } else { 1000 };
            // Half of the pairs are close to each other, so that sums round.
            let a: Vec<T> = (0..m)
                .flat_map(|row| {
                    let x = rng.below(1 << 16) as u16;
                    let y = rng.below(1 << 16) as u16;
                    [x, if row % 2 == 0 { x ^ (y & 0x1fff) } else { y }]
                })
                .map(&of_bits)
                .collect();
            let left = Tensor::from_slice(device, &a, [m, 2])?;
            let right = Tensor::ones(device, [2, n], T::DTYPE)?;
            let got = left.matmul(&right)?.to_vec::<T>()?;
            for (row, got) in got.chunks(n).enumerate() {
                let [x, y] = [a[2 * row], a[2 * row + 1]].map(&wide);
                let sum = rounded(x + y);
                let is_lost = |got: T| wide(got) == 0.0 && (x + y).abs() < f32::MIN_POSITIVE;
                let same =
                    |got: T| got == sum || (wide(got).is_nan() && (x + y).is_nan()) || is_lost(got);
                // Nothing is said about the sign of zero, nor of sums that are subnormal in f32.
                let right = got.iter().all(|&got| same(got));
                assert!(right, "{x:e} + {y:e}: {got:?}, not {sum:?}, n {n}");
            }
        }
        Ok(())
    })
}

/// Operands of many strips and bands, of more than one layer, and of more than the device's texels
/// hold at a time; and texels that went back to the adapter between two products.
fn texels(context: &Context) -> Result<()> {
    // Its own: others take texels on the one that tests share.
    let device = &context.open();
    let kernel: MatmulKernel = "texel_tile 16x64".parse()?;
    cases(1, |rng| {
        for ([batch, m, k, n], ways) in [
            ([1, 2304, 4096, 72], [0, 0]),
            ([1, 72, 4096, 2304], [1, 1]),
            ([1, 40, 16_384, 96], [0, 0]),
            ([1, 64, 16_384, 64], [1, 1]),
            ([5, 130, 500, 200], [2, 1]),
            ([5, 130, 504, 200], [1, 2]),
            ([70, 64, 64, 64], [0, 0]),
        ] {
            if context.is_slow() {
                continue;
            }
            let a = Matrix::new(device, rng, [batch, m, k], ways[0])?;
            let b = Matrix::new(device, rng, [batch, k, n], ways[1])?;
            let Some(product) = runs(kernel, &a.tensor, &b.tensor)? else {
                return Ok(());
            };
            let story = || format!("{batch} x [{m}, {k}] x [{k}, {n}], ways {ways:?}");
            let c = product.to_vec::<f32>()?;
            check(&a.host, &b.host, &c, [batch, m, k, n], &story);
            let layer = 4 << 20;
            assert!(
                (layer..=8 * layer).contains(&device.texel_bytes()),
                "{}",
                story()
            );
            assert!(device.memory_summary().contains("texels of products"));
            device.trim()?;
            assert_eq!(device.texel_bytes(), 0);
            let again = runs(kernel, &a.tensor, &b.tensor)?;
            let again = again.map(|again| again.to_vec::<f32>()).transpose()?;
            assert!(again == Some(c), "{}: not the same again", story());
        }
        Ok(())
    })
}

/// Two operands of one storage that lie in different ways, over more steps than llvmpipe turns a loop.
fn long_vectors(context: &Context) -> Result<()> {
    let k = if context.is_slow() { 1000 } else { 200_000 };
    let ones = Tensor::ones(context.device(), [k, 8], DType::F32)?;
    let column = ones.slice((.., 0..1))?;
    let product = ones.transpose(0, 1)?.matmul(&column)?;
    assert_eq!(product.to_vec::<f32>()?, [k as f32; 8]);
    Ok(())
}

/// Kernels for hardware read several turns of k at once: as many as fit, one more step, one less, some left over.
fn turns_of_vectors(context: &Context) -> Result<()> {
    if context.is_cpu() {
        return Ok(());
    }
    let device = context.device();
    cases(1, |rng| {
        for (name, rows, columns) in [
            ("vector_tile 8 threads 8x32", 0, 1),
            ("vector_tile 128 threads 32x8", 0, 1),
            ("few_tile 64x4 threads 8x32", 0, 4),
            ("few_tile 128x4 threads 32x8", 0, 7),
            ("few_tile 4x128 threads 32x8", 4, 0),
            ("few_tile 4x64 threads 8x32", 5, 0),
        ] {
            let kernel: MatmulKernel = name.parse()?;
            let mut ran = 0;
            for k in [
                31, 63, 64, 68, 127, 128, 132, 384, 388, 511, 512, 516, 1029, 1412,
            ] {
                for ways in [[0, 0], [1, 0], [2, 2]] {
                    let m = 1 + rng.below(140);
                    // Vectors across k run along rows by four.
                    let m = if ways[0] == 1 || rows > 0 {
                        m.next_multiple_of(4)
                    } else {
                        m
                    };
                    let [m, n] = match rows {
                        0 => [m, columns],
                        _ => [rows, m],
                    };
                    let a = Matrix::new(device, rng, [1, m, k], ways[0])?;
                    let b = Matrix::new(device, rng, [1, k, n], ways[1])?;
                    let Some(product) = runs(kernel, &a.tensor, &b.tensor)? else {
                        continue;
                    };
                    ran += 1;
                    let story = || format!("{kernel}: [{m}, {k}] x [{k}, {n}], ways {ways:?}");
                    let c = product.to_vec::<f32>()?;
                    check(&a.host, &b.host, &c, [1, m, k, n], &story);
                }
            }
            assert!(ran > 0, "{kernel}");
        }
        Ok(())
    })
}

/// A product for whose copies there is no room takes its operands as they lie.
fn without_copies(context: &Context) -> Result<()> {
    if context.is_cpu() || context.is_slow() {
        return Ok(());
    }
    let device = context.builder().memory_limit(13 << 20).build()?;
    let a = Tensor::ones(&device, [1000, 1000], DType::F32)?;
    let b = Tensor::ones(&device, [1000, 1000], DType::F32)?;
    let c = a.matmul(&b)?.to_vec::<f32>()?;
    assert!(c.iter().all(|&c| c == 1000.0));
    Ok(())
}

/// A product whose scratch finds no room is told once, by the plan without.
fn told_once(context: &Context) -> Result<()> {
    // Sums of 8 parts take 128 KiB, of which the operands and the result leave 48.
    let device = one_region(context, (1024 + 64) << 10, WhenFull::Fail)?;
    let a = Tensor::ones(&device, [64, 2048], DType::F32)?;
    let b = Tensor::ones(&device, [2048, 64], DType::F32)?;
    let (product, plans) = with_matmul_split(8, || explain_matmuls(|| a.matmul(&b)));
    assert_eq!(product?.to_vec::<f32>()?, [2048.0; 64 * 64]);
    assert!(device.memory().events.failures > 0, "there was room");
    let whole = plans.iter().filter(|(problem, _)| problem.k == 2048);
    assert_eq!(whole.count(), 1, "{plans:?}");
    assert!(plans.iter().all(|(_, plan)| plan.split == 1), "{plans:?}");
    Ok(())
}

/// Nothing goes to the host for scratch that a product can do without.
fn nothing_goes_for_scratch(context: &Context) -> Result<()> {
    // As above, beside a tensor that could go.
    let spills = WhenFull::SpillToHost { most: None };
    let device = one_region(context, (1024 + 64 + 256) << 10, spills)?;
    let other = Tensor::ones(&device, [256, 256], DType::F32)?;
    let a = Tensor::ones(&device, [64, 2048], DType::F32)?;
    let b = Tensor::ones(&device, [2048, 64], DType::F32)?;
    let (product, plans) = with_matmul_split(8, || explain_matmuls(|| a.matmul(&b)));
    assert_eq!(product?.to_vec::<f32>()?, [2048.0; 64 * 64]);
    assert!(plans.iter().all(|(_, plan)| plan.split == 1), "{plans:?}");
    assert_eq!(device.memory().events.spills, 0);
    drop(other);
    // Where it has a place it is taken.
    let (product, plans) = with_matmul_split(8, || explain_matmuls(|| a.matmul(&b)));
    assert_eq!(product?.to_vec::<f32>()?, [2048.0; 64 * 64]);
    assert!(plans.iter().any(|(_, plan)| plan.split == 8), "{plans:?}");
    Ok(())
}

/// Who is told of products is told of those that another call within is told of.
fn told_within(context: &Context) -> Result<()> {
    let a = Tensor::ones(context.device(), [33, 33], DType::F32)?;
    let (told, outer) = explain_matmuls(|| -> Result<_> {
        drop(a.matmul(&a)?);
        let (product, inner) = explain_matmuls(|| a.matmul(&a));
        let (nothing, none) = explain_matmuls(|| a.add(&a));
        drop((product?, nothing?));
        Ok((inner, none))
    });
    let (inner, others) = told?;
    assert!(!inner.is_empty() && others.is_empty());
    assert_eq!(outer, [&inner[..], &inner].concat());
    let (_, after) = explain_matmuls(|| ());
    assert!(after.is_empty());
    Ok(())
}

/// Without tensors the same plan as for a product of two.
fn planned_apart(context: &Context) -> Result<()> {
    let device = context.device();
    for dtype in [DType::F32, DType::I32, DType::F16] {
        for [m, k, n] in [
            [1, 1, 1],
            [1, 64, 9],
            [1, 256, 128],
            [130, 64, 1],
            [9, 1, 12],
            [64, 64, 64],
            [67, 33, 65],
            [128, 256, 192],
            [200, 100, 36],
        ] {
            let a = Tensor::ones(device, [m, k], dtype)?;
            let b = Tensor::ones(device, [k, n], dtype)?;
            let (product, plans) = explain_matmuls(|| a.matmul(&b));
            drop(product?);
            let problem = MatmulProblem::new(m, k, n, dtype);
            let plan = plan_matmul(device.capabilities(), &problem);
            // Of halves that share words the sums are a product of their own, which is told next.
            let planned = plans.first();
            assert_eq!(
                planned,
                Some(&(problem, plan)),
                "{m} x {k} x {n} of {dtype}"
            );
        }
    }
    Ok(())
}

/// What a forced kernel cannot do is refused, and only while it is forced.
fn refused(context: &Context) -> Result<()> {
    let device = context.device();
    let a = Tensor::ones(device, [3, 4], DType::F32)?;
    let b = Tensor::ones(device, [4, 5], DType::F32)?;
    let vector: MatmulKernel = "vector_tile 64 threads 8x1".parse()?;
    let product = with_matmul_kernel(vector, || a.matmul(&b));
    if !context.is_cpu() {
        let error = product.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("vector_tile 64"), "{error}");
    }
    assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [4.0; 15]);
    Ok(())
}
