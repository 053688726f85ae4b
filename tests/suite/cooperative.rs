//! Products by cooperative matrices, on devices that are opened with them.

use orlop::{DType, MatmulKernel, Result, Tensor, explain_matmuls, f16, with_matmul_kernel};

use crate::adapters::{Context, full};
use crate::operand::Operand;
use crate::rng::cases;
use crate::{Scope, Test, linear, matmul, products};

/// Of the tests of products those of f16, and what only these kernels are asked.
pub fn families() -> Vec<Vec<Test>> {
    let products = [matmul::tests(), linear::tests()];
    let halves = products.map(|tests| {
        tests
            .into_iter()
            .filter(|test| test.name.ends_with("::f16"))
            .filter(|test| !test.name.contains("forced"))
            .map(|test| Test {
                scope: Scope::Kernels,
                ..test
            })
            .collect()
    });
    let own = vec![
        Test::new("edges", Scope::Kernels, edges),
        Test::new("long", Scope::Kernels, long),
        Test::new("panels", Scope::Kernels, panels),
        Test::new("neighbours", Scope::Kernels, neighbours),
        Test::new("asked", Scope::Kernels, asked),
    ];
    halves.into_iter().chain([own]).collect()
}

/// The kernels that the device has; none would prove nothing.
fn kernels(context: &Context) -> Result<Vec<MatmulKernel>> {
    let ones = Tensor::ones(context.device(), [17, 17], DType::F16)?;
    let all = MatmulKernel::all().iter().copied();
    let all: Vec<MatmulKernel> = all
        .filter(|kernel| kernel.to_string().starts_with("cooperative"))
        .filter(|&kernel| with_matmul_kernel(kernel, || ones.matmul(&ones)).is_ok())
        .collect();
    assert!(!all.is_empty(), "no kernel has these cooperative matrices");
    Ok(all)
}

/// Every kernel, around the edges of its matrices, steps and tiles, in all layouts.
fn edges(context: &Context) -> Result<()> {
    let sizes = [1, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129];
    let depths = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 63, 65, 100];
    for kernel in kernels(context)? {
        cases(if full() { 1000 } else { 120 }, |rng| {
            let (m, n) = (*rng.pick(&sizes), *rng.pick(&sizes));
            let k = *rng.pick(&depths);
            let batch = if rng.one_in(4) { vec![3] } else { vec![] };
            let a = matmul::operand::<f16>(context, rng, &[&batch[..], &[m, k]].concat())?;
            let b = matmul::operand::<f16>(context, rng, &[k, n])?;
            with_matmul_kernel(kernel, || matmul::check(context, &a, &b))
        })?;
    }
    Ok(())
}

/// More steps than llvmpipe turns a loop.
fn long(context: &Context) -> Result<()> {
    for kernel in kernels(context)? {
        cases(1, |rng| {
            let a = Operand::<f16>::random(context.device(), rng, &[18, 70_001])?;
            let b = Operand::<f16>::random(context.device(), rng, &[70_001, 20])?;
            with_matmul_kernel(kernel, || matmul::check(context, &a, &b))
        })?;
    }
    Ok(())
}

/// Operands and results above a binding: parts of k that add up, rows and columns by windows.
fn panels(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    for kernel in kernels(context)? {
        cases(1, |rng| {
            for [m, k, n] in [[20, 3000, 24], [70, 50, 90], [33, 400, 65]] {
                let a = Operand::<f16>::random(&device, rng, &[m, k])?;
                let b = Operand::<f16>::random(&device, rng, &[n, k])?.transpose(0, 1)?;
                let product = with_matmul_kernel(kernel, || a.tensor.matmul(&b.tensor))?;
                products::check(&a, &b, &product.to_vec::<f16>()?, 1)
                    .unwrap_or_else(|problem| panic!("{kernel}, [{m}, {k}, {n}]: {problem}"));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// NaN and infinities stay in their rows and columns, those of the last step too, which is read again past the end of
/// k; and the bits are the same each time.
fn neighbours(context: &Context) -> Result<()> {
    let device = context.device();
    let [m, n] = [37, 45];
    for kernel in kernels(context)? {
        // By single elements, and by vectors, along k and (A turned) across it.
        for (k, is_turned) in [(21, false), (20, false), (36, false), (3, true), (24, true)] {
            let mut a = vec![f16::ONE; m * k];
            a[(m - 1) * k + 2] = f16::NAN;
            a[5 * k + k - 1] = f16::INFINITY;
            let mut b = vec![f16::from_f32(0.5); k * n];
            b[(k - 1) * n + n - 1] = f16::NAN;
            let mut a = Tensor::from_slice(device, &a, [m, k])?;
            let mut b = Tensor::from_slice(device, &b, [k, n])?;
            if is_turned {
                a = a.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
                b = b.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
            }
            let product = || with_matmul_kernel(kernel, || a.matmul(&b))?.to_vec::<f16>();
            let c = product()?;
            let sum = f16::from_f32(k as f32 / 2.0);
            for (at, &got) in c.iter().enumerate() {
                let (row, column) = (at / n, at % n);
                match (row, column) {
                    _ if row == m - 1 || column == n - 1 => {
                        assert!(got.is_nan(), "{kernel} {k} {at}");
                    }
                    (5, _) => assert_eq!(got, f16::INFINITY, "{kernel} {k} {at}"),
                    _ => assert_eq!(got, sum, "{kernel} {k} {at}"),
                }
            }
            let bits = |values: &[f16]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for _ in 0..3 {
                assert!(bits(&product()?) == bits(&c), "{kernel} differs");
            }
        }
    }
    Ok(())
}

/// They are there for whoever asks for them, alone.
fn asked(context: &Context) -> Result<()> {
    let first = kernels(context)?[0];
    let ones = Tensor::ones(context.device(), [40, 40], DType::F16)?;
    let (product, plans) = explain_matmuls(|| ones.matmul(&ones));
    assert_eq!(product?.to_vec::<f16>()?, [f16::from_f32(40.0); 1600]);
    let plan = plans[0].1.to_string();
    assert!(plan.starts_with("cooperative_tile"), "{plan}");

    // With naga's checks too.
    let checked = context.builder().kernel_checks(true).build()?;
    let halves = Tensor::ones(&checked, [40, 40], DType::F16)?;
    let product = halves.matmul(&halves)?.to_vec::<f16>()?;
    assert_eq!(product, [f16::from_f32(40.0); 1600]);

    let plain = context
        .builder()
        .experimental_cooperative_matrices(false)
        .build()?;
    assert_eq!(
        plain.capabilities().cooperative_matrices,
        Default::default()
    );
    let ones = Tensor::ones(&plain, [40, 40], DType::F16)?;
    let error = with_matmul_kernel(first, || ones.matmul(&ones)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("experimental_cooperative_matrices"),
        "{error}"
    );
    let (product, plans) = explain_matmuls(|| ones.matmul(&ones));
    assert_eq!(product?.to_vec::<f16>()?, [f16::from_f32(40.0); 1600]);
    let plan = plans[0].1.to_string();
    assert!(!plan.starts_with("cooperative_tile"), "{plan}");
    Ok(())
}
