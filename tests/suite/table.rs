//! Kernels by a table of what was measured on the adapter.

use orlop::{
    DType, Device, MatmulChoice, MatmulKernel, MatmulTable, Result, Tensor, explain_matmuls,
    with_matmul_kernel,
};

use crate::adapters::Context;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![Test::new("table::goes_first", Scope::Device, goes_first)]
}

/// Products that the table names take its kernel, others the planned one; another driver's table is
/// nothing to this one; results are the same.
fn goes_first(context: &Context) -> Result<()> {
    let info = &context.adapter.info;
    let shared = context.device();
    let input = |device: &Device, seed| Tensor::rand(device, [64, 64], DType::F32, seed);
    let (a, b) = (input(shared, 1)?, input(shared, 2)?);
    let (expected, plans) = explain_matmuls(|| a.matmul(&b));
    let expected = expected?.to_vec::<f32>()?;
    assert_eq!(plans.is_empty(), context.is_cpu(), "{plans:?}");
    let planned = plans.first().map(|(_, plan)| plan.kernel);
    let others = MatmulKernel::all().iter().copied().filter(|&kernel| {
        Some(kernel) != planned && with_matmul_kernel(kernel, || a.matmul(&b)).is_ok()
    });
    let Some(other) = others.into_iter().next() else {
        panic!("{} has one kernel only", context.adapter.name)
    };

    let choice = MatmulChoice {
        m: 33..=64,
        ..MatmulChoice::new(DType::F32, other)
    };
    for (driver, is_meant) in [
        (Some(&info.driver[..]), true),
        (None, true),
        (Some("another"), false),
    ] {
        let mut table = MatmulTable::new();
        table.push(&info.name, driver, choice.clone())?;
        let device = context.builder().matmul_table(table).build()?;
        let (a, b) = (input(&device, 1)?, input(&device, 2)?);
        let (product, plans) = explain_matmuls(|| a.matmul(&b));
        for (found, expected) in product?.to_vec::<f32>()?.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
        }
        let (small, small_plans) = explain_matmuls(|| a.slice(0..32)?.matmul(&b));
        assert_eq!(small?.shape().dims(), [32, 64]);
        if context.is_cpu() {
            assert!(plans.is_empty() && small_plans.is_empty());
            continue;
        }
        assert_eq!(plans[0].1.kernel == other, is_meant, "{plans:?}");
        assert_eq!(plans[0].1.why == "measured on the adapter", is_meant);
        assert_ne!(small_plans[0].1.why, "measured on the adapter");
        assert_eq!(small_plans[0].0.m, 32);
    }
    Ok(())
}
