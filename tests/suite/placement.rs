//! What runs elsewhere, and that it is said.

use orlop::{DType, Device, Error, Placement, PlacementEvent, Result, Tensor, f16};

use crate::adapters::Context;
use crate::operand::same;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("placement::f64_without_it", Scope::Gpu, f64_without_it),
        Test::new("placement::f16_without_it", Scope::Gpu, f16_without_it),
        Test::new("placement::nothing_to_log", Scope::Device, nothing_to_log),
        Test::new("placement::mixed_devices", Scope::Gpu, mixed_devices),
        Test::new("placement::log_is_bounded", Scope::Gpu, log_is_bounded),
    ]
}

fn open(context: &Context, placement: Placement) -> Result<Device> {
    context.builder().placement(placement).build()
}

fn is_unsupported<T>(result: Result<T>, parts: &[&str]) {
    match result {
        Err(Error::Unsupported(unsupported)) => {
            let text = unsupported.to_string();
            for part in parts.iter().chain(&["Placement::Soft"]) {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        Err(error) => panic!("not unsupported: {error}"),
        Ok(_) => panic!("done, but strict placement forbids it"),
    }
}

fn last(device: &Device) -> PlacementEvent {
    let mut log = device.placement_log();
    log.pop()
        .unwrap_or_else(|| panic!("nothing was logged on {device}"))
}

/// Soft: the tensor lives and works on the CPU. Strict: an error.
fn f64_without_it(context: &Context) -> Result<()> {
    let values: Vec<f64> = (0..12).map(|at| f64::from(at) / 3.0).collect();
    let soft = open(context, Placement::Soft)?;
    let strict = open(context, Placement::Strict)?;
    if soft.capabilities().f64 {
        let tensor = Tensor::from_slice(&strict, &values, [3, 4])?;
        assert_eq!(tensor.matmul(&tensor.transpose(0, 1)?)?.device(), &strict);
        // Only its normal numbers are the CPU's.
        is_unsupported(
            Tensor::randn(&strict, 4, DType::F64, 1),
            &["randn", "logarithm"],
        );
        let normal = Tensor::randn(&soft, 4, DType::F64, 1)?;
        assert_eq!(normal.device(), &soft, "back home");
        assert_eq!(last(&soft).op, "randn");
        return Ok(());
    }
    let tensor = Tensor::from_slice(&soft, &values, [3, 4])?;
    assert!(tensor.device().is_cpu());
    let event = last(&soft);
    assert_eq!((event.op, event.bytes_moved), ("from_slice", 96));
    assert!(
        event.from == soft.to_string() && event.to.starts_with("cpu"),
        "{event:?}"
    );
    assert!(event.reason.contains("f64"));
    let product = tensor.matmul(&tensor.transpose(0, 1)?)?;
    assert!(product.device().is_cpu());
    same(
        &product.slice((0..1, 0..1))?,
        &[values[..4].iter().map(|x| x * x).sum::<f64>()],
    )?;
    let logged = soft.placement_log().len();
    let made = Tensor::zeros(&soft, 5, DType::F64)?;
    assert!(made.device().is_cpu() && soft.placement_log().len() == logged + 1);
    // A cast to f64 goes to the CPU; one from it comes back only if asked.
    let wide = Tensor::ones(&soft, 4, DType::F32)?.cast(DType::F64)?;
    assert!(wide.device().is_cpu());
    same(&wide, &[1.0f64; 4])?;
    assert_eq!(last(&soft).op, "cast");
    assert_eq!(wide.cast(DType::F32)?.to(&soft)?.device(), &soft);

    let unsupported = ["f64", &context.adapter.info.name];
    is_unsupported(Tensor::from_slice(&strict, &values, [3, 4]), &unsupported);
    is_unsupported(Tensor::zeros(&strict, 5, DType::F64), &unsupported);
    is_unsupported(Tensor::empty(&strict, 5, DType::F64), &unsupported);
    is_unsupported(
        Tensor::ones(&strict, 4, DType::F32)?.cast(DType::F64),
        &unsupported,
    );
    is_unsupported(tensor.to(&strict), &["f64"]);
    assert_eq!(strict.placement_log(), []);
    Ok(())
}

/// Halves live on the device; ops on them go to the CPU and their results come home.
fn f16_without_it(context: &Context) -> Result<()> {
    let soft = open(context, Placement::Soft)?;
    let strict = open(context, Placement::Strict)?;
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(f16::from_f32);
    let tensor = Tensor::from_slice(&soft, &values, [2, 3])?;
    assert_eq!(tensor.device(), &soft);
    let logged = soft.placement_log().len();
    let sum = tensor.add(&tensor)?;
    assert_eq!(sum.device(), &soft);
    same(&sum, &values.map(|x| x + x))?;
    if soft.capabilities().f16 {
        assert_eq!(soft.placement_log().len(), logged);
        return Ok(());
    }
    assert_eq!(logged, 0, "to hold halves is nothing special");
    let log = soft.placement_log();
    assert_eq!(log.len(), 1, "{log:?}");
    // Two operands there (12 bytes each), the result back.
    assert_eq!((log[0].op, log[0].bytes_moved), ("add", 36));
    assert!(log[0].reason.contains("f16"));
    let product = tensor.matmul(&tensor.transpose(0, 1)?)?;
    assert_eq!((product.device(), last(&soft).op), (&soft, "matmul"));
    same(&product, &[14.0, 32.0, 32.0, 77.0].map(f16::from_f32))?;
    // In place, through a view at an odd offset.
    tensor.slice((.., 1..2))?.fill(9)?;
    same(&tensor, &[1.0, 9.0, 3.0, 4.0, 9.0, 6.0].map(f16::from_f32))?;
    assert_eq!(last(&soft).op, "fill");

    let tensor = Tensor::from_slice(&strict, &values, [2, 3])?;
    same(&tensor, &values)?;
    let parts = ["f16", &context.adapter.info.name];
    is_unsupported(tensor.add(&tensor), &parts);
    is_unsupported(tensor.matmul(&tensor.transpose(0, 1)?), &parts);
    is_unsupported(tensor.cast(DType::F32), &parts);
    is_unsupported(tensor.fill(1), &parts);
    same(&tensor, &values)
}

fn nothing_to_log(context: &Context) -> Result<()> {
    let device = open(context, Placement::Strict)?;
    let a = Tensor::rand(&device, [8, 8], DType::F32, 1)?;
    let b = a
        .matmul(&a)?
        .add(&a)?
        .cast(DType::I32)?
        .transpose(0, 1)?
        .contiguous()?;
    assert_eq!((b.device(), b.to_vec::<i32>()?.len()), (&device, 64));
    assert_eq!(device.placement_log(), []);
    assert_eq!(device.placement(), Placement::Strict);
    Ok(())
}

/// Soft: the operand travels to the device that is not the CPU. Strict: an error that names `to`.
fn mixed_devices(context: &Context) -> Result<()> {
    let soft = open(context, Placement::Soft)?;
    let host = Tensor::from_slice(&Device::cpu(), &[1i32, 2, 3], 3)?;
    let there = Tensor::from_slice(&soft, &[10i32, 20, 30], 3)?;
    for sum in [there.add(&host)?, host.add(&there)?] {
        assert_eq!(sum.device(), &soft);
        same(&sum, &[11i32, 22, 33])?;
    }
    let other = open(context, Placement::Soft)?;
    let elsewhere = there.to(&other)?;
    assert_eq!(elsewhere.device(), &other);
    let sum = there.add(&elsewhere)?;
    assert_eq!(sum.device(), &soft);
    same(&sum, &[20i32, 40, 60])?;

    let strict = open(context, Placement::Strict)?;
    let there = there.to(&strict)?;
    for mixed in [there.add(&host), host.add(&there), there.matmul(&host)] {
        is_unsupported(mixed, &["cpu", "to(&device)"]);
    }
    same(&there.add(&host.to(&strict)?)?, &[11i32, 22, 33])
}

/// The log keeps the latest 1024.
fn log_is_bounded(context: &Context) -> Result<()> {
    let device = open(context, Placement::Soft)?;
    if device.capabilities().f64 {
        return Ok(());
    }
    for _ in 0..1100 {
        let _ = Tensor::empty(&device, 1, DType::F64)?;
    }
    assert_eq!(device.placement_log().len(), 1024);
    Ok(())
}
