//! What runs elsewhere, and that it is said.

use std::cell::Cell;

use orlop::{
    DType, Device, Error, Expr, Kernel, Placement, PlacementEvent, PlacementLog, Result, Tensor,
    f16, fused,
};

use crate::adapters::Context;
use crate::interop::Owner;
use crate::operand::{Operand, random_shape, same};
use crate::rng::cases;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("placement::f64_without_it", Scope::Gpu, f64_without_it),
        Test::new("placement::f16_without_it", Scope::Gpu, f16_without_it),
        Test::new("placement::nothing_to_log", Scope::Device, nothing_to_log),
        Test::new("placement::mixed_devices", Scope::Gpu, mixed_devices),
        Test::new("placement::mixed_settings", Scope::Gpu, mixed_settings),
        Test::new("placement::exact_bytes", Scope::Gpu, exact_bytes),
        Test::new("placement::part_of_a_part", Scope::Gpu, part_of_a_part),
        Test::new("placement::no_room_at_home", Scope::Gpu, no_room_at_home),
        Test::new("placement::no_elements", Scope::Gpu, no_elements),
        Test::new("placement::in_place", Scope::Gpu, in_place),
        Test::new("placement::wide_numbers", Scope::Gpu, wide_numbers),
        Test::new("placement::parts_elsewhere", Scope::Gpu, parts_elsewhere),
        Test::new(
            "placement::overlapping_parts",
            Scope::Gpu,
            overlapping_parts,
        ),
        Test::new("placement::views_travel", Scope::Gpu, views_travel),
        Test::new("placement::log_is_bounded", Scope::Gpu, log_is_bounded),
        Test::new("placement::log_in_words", Scope::Gpu, log_in_words),
        Test::new("placement::traced", Scope::Gpu, traced),
        Test::new(
            "placement::threads_write_one_storage",
            Scope::Gpu,
            threads_write_one_storage,
        ),
        Test::new("placement::neighbours_stay", Scope::Gpu, neighbours_stay),
    ]
}

pub fn open(context: &Context, placement: Placement) -> Result<Device> {
    context.builder().placement(placement).build()
}

pub fn is_unsupported<T>(result: Result<T>, parts: &[&str]) {
    match result {
        Err(Error::Unsupported(unsupported)) => {
            let text = unsupported.to_string();
            for part in parts {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        Err(error) => panic!("not unsupported: {error}"),
        Ok(_) => panic!("done, but strict placement forbids it"),
    }
}

pub fn last(device: &Device) -> PlacementEvent {
    let mut log = device.placement_log();
    log.events
        .pop()
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
    assert_eq!((event.op, event.bytes_moved), ("from_slice", 0));
    assert!(
        event.from == soft.to_string()
            && event.to == Device::cpu().to_string()
            && event.result == event.to,
        "{event:?}"
    );
    assert!(event.reason.contains("f64"));
    let product = tensor.matmul(&tensor.transpose(0, 1)?)?;
    assert!(product.device().is_cpu());
    same(
        &product.slice((0..1, 0..1))?,
        &[values[..4].iter().map(|x| x * x).sum::<f64>()],
    )?;
    let logged = soft.placement_log().events.len();
    let made = Tensor::zeros(&soft, 5, DType::F64)?;
    assert!(made.device().is_cpu() && soft.placement_log().events.len() == logged + 1);
    // What was not made was not placed.
    let endless = Tensor::arange(&soft, 0.0, 1e18, 1.0, DType::F64);
    assert!(matches!(endless, Err(Error::OutOfMemory(_))), "{endless:?}");
    assert_eq!(soft.placement_log().events.len(), logged + 1);
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
    assert_eq!(strict.placement_log(), PlacementLog::default());
    Ok(())
}

/// Kernels take halves apart by bits, so nothing goes elsewhere.
fn f16_without_it(context: &Context) -> Result<()> {
    let soft = open(context, Placement::Soft)?;
    let strict = open(context, Placement::Strict)?;
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(f16::from_f32);
    let tensor = Tensor::from_slice(&soft, &values, [2, 3])?;
    assert_eq!(tensor.device(), &soft);
    let sum = tensor.add(&tensor)?;
    assert_eq!(sum.device(), &soft);
    same(&sum, &values.map(|x| x + x))?;
    let product = tensor.matmul(&tensor.transpose(0, 1)?)?;
    same(&product, &[14.0, 32.0, 32.0, 77.0].map(f16::from_f32))?;
    assert_eq!(soft.placement_log().events.len(), 0);
    // In place, through a view at an odd offset.
    tensor.slice((.., 1..2))?.fill(9)?;
    same(&tensor, &[1.0, 9.0, 3.0, 4.0, 9.0, 6.0].map(f16::from_f32))?;
    assert_eq!(soft.placement_log().events.len(), 0);

    let tensor = Tensor::from_slice(&strict, &values, [2, 3])?;
    same(&tensor, &values)?;
    same(&tensor.add(&tensor)?, &values.map(|x| x + x))?;
    same(
        &tensor.matmul(&tensor.transpose(0, 1)?)?,
        &[14.0, 32.0, 32.0, 77.0].map(f16::from_f32),
    )?;
    let singles = tensor.cast(DType::F32)?.to_vec::<f32>()?;
    assert_eq!(singles, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    tensor.fill(1)?;
    same(&tensor, &[f16::ONE; 6])
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
    assert_eq!(device.placement_log(), PlacementLog::default());
    assert_eq!(device.placement(), Placement::Strict);
    Ok(())
}

/// Soft: the operand travels to the device that is not the CPU. Strict: an error that names `to`.
fn mixed_devices(context: &Context) -> Result<()> {
    let soft = open(context, Placement::Soft)?;
    let own_cpu = Device::select("cpu")?;
    let host = Tensor::from_slice(&own_cpu, &[1i32, 2, 3], 3)?;
    let there = Tensor::from_slice(&soft, &[10i32, 20, 30], 3)?;
    for sum in [there.add(&host)?, host.add(&there)?] {
        assert_eq!(sum.device(), &soft);
        same(&sum, &[11i32, 22, 33])?;
        let event = last(&soft);
        assert_eq!((event.op, event.bytes_moved), ("add", 12));
        assert_eq!(event.from, own_cpu.to_string());
        assert_eq!([&event.to, &event.result], [&soft.to_string(); 2]);
        assert_eq!(last(&own_cpu), event, "the device that it left knows too");
    }
    assert_eq!(own_cpu.placement_log(), soft.placement_log());
    let other = open(context, Placement::Soft)?;
    let elsewhere = there.to(&other)?;
    assert_eq!(elsewhere.device(), &other);
    assert_eq!(
        other.placement_log(),
        PlacementLog::default(),
        "asked for, so not logged"
    );
    let sum = there.add(&elsewhere)?;
    assert_eq!(sum.device(), &soft);
    same(&sum, &[20i32, 40, 60])?;
    assert_eq!(elsewhere.add(&there)?.device(), &other, "the first decides");
    // Two CPU devices: the first decides.
    let shared = Tensor::from_slice(&Device::cpu(), &[5i32, 5, 5], 3)?;
    assert_eq!(host.add(&shared)?.device(), &own_cpu);
    assert_eq!(shared.add(&host)?.device(), &Device::cpu());
    assert_eq!(last(&own_cpu).bytes_moved, 12);
    // An empty sum is at home where any other product would be.
    let (rows, columns) = (host.slice(0..0)?.reshape([0, 1])?, there.reshape([1, 3])?);
    let nothing = columns.slice((.., 0..0))?.matmul(&rows)?;
    assert_eq!(nothing.device(), &soft);

    let strict = open(context, Placement::Strict)?;
    let there = there.to(&strict)?;
    for mixed in [there.add(&host), host.add(&there), there.matmul(&host)] {
        let names = [&own_cpu, &strict].map(|device| device.to_string());
        is_unsupported(mixed, &[&names[0], &names[1], "to(&device)"]);
    }
    is_unsupported(
        columns
            .slice((.., 0..0))?
            .matmul(&there.slice(0..0)?.reshape([0, 1])?),
        &["to(&device)"],
    );
    same(&there.add(&host.to(&strict)?)?, &[11i32, 22, 33])
}

/// Among mixed operands one strict device is enough; the error names it. Wrong arguments come first.
fn mixed_settings(context: &Context) -> Result<()> {
    let open_cpu = |placement| Device::builder().select("cpu").placement(placement).build();
    let devices = [
        (Placement::Soft, open(context, Placement::Soft)?),
        (Placement::Strict, open(context, Placement::Strict)?),
        (Placement::Soft, open_cpu(Placement::Soft)?),
        (Placement::Strict, open_cpu(Placement::Strict)?),
        (Placement::Soft, Device::cpu()),
    ];
    for (first_setting, first) in &devices {
        for (second_setting, second) in &devices {
            if first == second {
                continue;
            }
            let a = Tensor::from_slice(first, &[1.0f32, 2.0], 2)?;
            let b = Tensor::from_slice(second, &[3.0f32, 4.0], 2)?;
            let before = [first.memory(), second.memory()];
            let sum = a.add(&b);
            if [first_setting, second_setting].contains(&&Placement::Strict) {
                let names = [first, second].map(|device| device.to_string());
                is_unsupported(sum, &[&names[0], &names[1], "to(&device)", "scope"]);
                // Nor is what goes backwards copied before.
                let product = a.flip(&[0])?.matmul(&b);
                is_unsupported(product, &[&names[0], &names[1], "to(&device)", "scope"]);
                if *first != Device::cpu() && *second != Device::cpu() {
                    assert_eq!([first.memory(), second.memory()], before);
                }
            } else {
                let home = if first.is_cpu() && !second.is_cpu() {
                    second
                } else {
                    first
                };
                assert_eq!(sum?.device(), home);
            }
            // What a scope asks for is not silent.
            let sum = second.scope(|| a.add(&b))?;
            assert_eq!(sum.device(), second);
            same(&sum, &[4.0f32, 6.0])?;
            let wrong = Tensor::zeros(second, 2, DType::I32)?;
            assert!(matches!(a.add(&wrong), Err(Error::DTypeMismatch(_))));
        }
    }
    Ok(())
}

/// What travels is counted from the indices themselves: the span of each operand, once for those
/// that overlap in one storage, and the result where it comes back.
fn exact_bytes(context: &Context) -> Result<()> {
    let device = open(context, Placement::Soft)?;
    let target = Device::select("cpu")?;
    cases(context.times(60), |rng| {
        let shape = random_shape(rng, 3, 200);
        let a = Operand::<f32>::random_view(&device, rng, &shape)?;
        let b = match rng.below(4) {
            0 => Operand::<f32>::random_view(&device, rng, &shape)?,
            1 => a.clone(),
            2 => Operand::<f32>::random_view(&target, rng, &shape)?,
            _ => {
                // Of the same storage, perhaps apart from it.
                let flat = Operand::<f32>::random(&device, rng, &[40])?;
                let at = rng.below(30);
                let (a, b) = (flat.range(0..5)?, flat.range(at..at + 5)?);
                return check_bytes(&device, &target, &a, &b);
            }
        };
        check_bytes(&device, &target, &a, &b)
    })
}

/// What lies within another operand's span travels with it, wherever the next one begins.
fn part_of_a_part(context: &Context) -> Result<()> {
    let device = open(context, Placement::Soft)?;
    let cpu = Device::select("cpu")?;
    let host: Vec<f32> = (0..1000).map(|at| at as f32).collect();
    let x = Tensor::from_slice(&device, &host, host.len())?;
    let sum = cpu.scope(|| x.mul_add(&x.slice(2..3)?, &x.slice(500..501)?))?;
    let want: Vec<f32> = host.iter().map(|x| x * 2.0 + 500.0).collect();
    same(&sum, &want)?;
    assert_eq!(last(&device).bytes_moved, 4000);
    Ok(())
}

fn check_bytes(device: &Device, target: &Device, a: &Operand<f32>, b: &Operand<f32>) -> Result<()> {
    device.clear_placement_log();
    target.clear_placement_log();
    let sum = target.scope(|| a.tensor.add(&b.tensor))?;
    assert_eq!(sum.device(), target);
    let want: Vec<f32> = a
        .values()
        .iter()
        .zip(b.values())
        .map(|(a, b)| a + b)
        .collect();
    same(&sum, &want)?;
    let span = |operand: &Operand<f32>| {
        let used: Vec<usize> = operand.tensor.layout().indices().collect();
        let (low, high) = (used.iter().min()?, used.iter().max()?);
        (operand.tensor.device() == device).then_some((*low, high + 1))
    };
    let elements = match (span(a), span(b)) {
        (None, None) => 0,
        (Some((low, high)), None) | (None, Some((low, high))) => high - low,
        (Some(a_span), Some(b_span)) => {
            let apart = a_span.1 < b_span.0 || b_span.1 < a_span.0;
            if apart || !a.tensor.shares_storage(&b.tensor) {
                (a_span.1 - a_span.0) + (b_span.1 - b_span.0)
            } else {
                a_span.1.max(b_span.1) - a_span.0.min(b_span.0)
            }
        }
    };
    let events = device.placement_log().events;
    assert_eq!(events, target.placement_log().events);
    let moved: u64 = events.iter().map(|event| event.bytes_moved).sum();
    assert_eq!(moved, 4 * elements as u64, "{} + {}", a.story(), b.story());
    assert_eq!(events.len(), usize::from(elements > 0));
    Ok(())
}

/// What is written in place stays where it lives: strict placement holds within a scope too.
fn in_place(context: &Context) -> Result<()> {
    let strict = open(context, Placement::Strict)?;
    let x = Tensor::zeros(&strict, [4], DType::F32)?;
    let one = Tensor::ones(&Device::cpu(), [4], DType::F32)?;
    is_unsupported(x.add_assign(&one), &["strict"]);
    is_unsupported(Device::cpu().scope(|| x.add_assign(&one)), &["strict"]);
    Device::cpu().scope(|| x.add_assign(1))?;
    assert_eq!((x.device(), x.to_vec::<f32>()?), (&strict, vec![1.0; 4]));
    // What is told and logged has the op's own name.
    is_unsupported(x.assign(&one), &["assign: ", "strict"]);
    let soft = open(context, Placement::Soft)?;
    let y = x.to(&soft)?;
    y.assign(&one.mul(3.0)?)?;
    assert_eq!(
        (last(&soft).op, y.to_vec::<f32>()?),
        ("assign", vec![3.0; 4])
    );
    refused_writes(&strict)
}

/// Wrong arguments are told before devices that do not go together, and neither after a copy was made. A scope would not help.
fn refused_writes(strict: &Device) -> Result<()> {
    let x = Tensor::ones(strict, [6], DType::F32)?;
    let (part, other) = (x.slice(0..4)?, x.slice(2..6)?);
    let host = Tensor::ones(&Device::cpu(), [4], DType::F32)?;
    let (whole, long) = (
        host.cast(DType::I32)?,
        Tensor::ones(&Device::cpu(), [5], DType::F32)?,
    );
    let twice = x.slice(0..1)?.broadcast_to([4])?;
    let before = strict.memory();
    // Numbers beside f64 ask for the device first.
    let wide = Tensor::ones(&Device::cpu(), [6], DType::F64)?;
    let clamped = wide.clamp(&x, 1.0).map(drop);
    let truth = part.fused_assign(|e, x| (x * e.input(&other)).lt(e.input(&host)));
    for refused in [part.add_assign(&whole), part.assign(&whole), clamped, truth] {
        assert!(
            matches!(refused, Err(Error::DTypeMismatch(_))),
            "{refused:?}"
        );
    }
    for refused in [
        part.add_assign(&long),
        part.assign(&long),
        part.fused_assign(|e, x| x * e.input(&other) + e.input(&long)),
    ] {
        assert!(
            matches!(refused, Err(Error::ShapeMismatch(_))),
            "{refused:?}"
        );
    }
    for refused in [twice.add_assign(&host), twice.assign(&host)] {
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
    }
    for refused in [
        part.add_assign(&host),
        part.assign(&host),
        part.fused_assign(|e, x| x * e.input(&other) + e.input(&host)),
    ] {
        let text = refused
            .as_ref()
            .map_or_else(Error::to_string, |()| String::new());
        assert!(!text.contains("scope"), "{text}");
        is_unsupported(refused, &["strict", "to(&device)", "Placement::Soft"]);
    }
    assert_eq!(strict.memory(), before);
    if strict.capabilities().f64 {
        let (x, host) = (x.cast(DType::F64)?, host.cast(DType::F64)?);
        let (part, before) = (x.slice(0..4)?, strict.memory());
        let refused = part.fused_assign(|e, x| x * 2.0 + e.input(&host));
        is_unsupported(refused, &["fused_assign", "to(&device)"]);
        assert_eq!(strict.memory(), before, "no number became a tensor");
    }
    same(&x, &[1.0f32; 6])
}

/// Numbers of f64 are operands of kernels, which bind as many tensors as the adapter lets them: equal ones are one.
fn wide_numbers(context: &Context) -> Result<()> {
    let device = open(context, Placement::Strict)?;
    let most = device.capabilities().max_bindings as usize;
    if !device.capabilities().f64 {
        return Ok(());
    }
    let x = Tensor::arange(&device, 0, 100, 1, DType::F64)?;
    let allocations = || device.memory().counts.blocks.allocated;
    let check = |y: &Tensor| -> Result<()> {
        for (x, got) in y.to_vec::<f64>()?.into_iter().enumerate() {
            let want = 2.0 * (x as f64 + 50.0 / 3.0);
            assert!((got - want).abs() < 1e-9, "{x}: {got}, not {want}");
        }
        Ok(())
    };
    // A third, and two as an integer and as a float, beside the result.
    fn sum(x: Expr<'_>) -> Expr<'_> {
        let sum = (0..50).fold(x, |sum, _| sum + 1.0 / 3.0);
        (sum * 2).maximum(2.0)
    }
    let before = allocations();
    let y = fused(|e| sum(e.input(&x)))?;
    assert_eq!(allocations() - before, 3);
    check(&y)?;
    let y = x.copy()?;
    let before = allocations();
    y.fused_assign(|_, x| sum(x))?;
    assert_eq!(allocations() - before, 2);
    check(&y)?;
    check(&x.copy()?.into_fused(|_, x| sum(x))?)?;
    // Zeros of both signs are two numbers: the sum is of infinities of both.
    let apart = fused(|e| 1.0 / (e.input(&x) * 0.0) + 1.0 / (e.input(&x) * -0.0))?;
    assert!(apart.to_vec::<f64>()?.iter().all(|y| y.is_nan()));
    // Of those that differ there may be too many.
    if most < 60 {
        let add =
            |count: usize| fused(|e| (0..count).fold(e.input(&x), |sum, at| sum + 0.1 * at as f64));
        assert_eq!(add(most - 2)?.device(), &device);
        is_unsupported(add(most - 1), &["fused", "bind"]);
    }
    Ok(())
}

/// Parts of one storage that overlap travel once, in whatever order they are named.
fn overlapping_parts(context: &Context) -> Result<()> {
    let device = context.open();
    let values: Vec<f32> = (0..30u8).map(f32::from).collect();
    let x = Tensor::from_slice(&device, &values, 30)?;
    let [a, b, c] = [0, 12, 5].map(|from| x.slice(from..from + 10));
    let (a, b, c) = (a?, b?, c?);
    let far = x.slice(25..)?;
    let cpu = Device::select("cpu")?;
    for parts in [[&a, &b, &c], [&b, &c, &a], [&c, &b, &a]] {
        let sum = cpu.scope(|| parts[0].mul_add(parts[1], parts[2]))?;
        assert_eq!(last(&cpu).bytes_moved, 22 * 4);
        let starts = parts.map(|part| part.layout().offset());
        let exact = (0..10).map(|at| {
            let [a, b, c] = starts.map(|start| (start + at) as f32);
            a * b + c
        });
        same(&sum, &exact.collect::<Vec<_>>())?;
    }
    let ends = cpu.scope(|| a.slice(..5)?.add(&far))?;
    assert_eq!(last(&cpu).bytes_moved, 10 * 4, "others stay apart");
    same(&ends, &[25.0f32, 27.0, 29.0, 31.0, 33.0])
}

/// A function that kernels lack is computed elsewhere: of a view its own elements come back, and only its span travels.
fn parts_elsewhere(context: &Context) -> Result<()> {
    let device = context.open();
    if !device.capabilities().f64 {
        // Such tensors do not live there.
        return Ok(());
    }
    let whole = Tensor::full(&device, [1 << 20], 2.0, DType::F64)?;
    let end = whole.slice((1 << 20) - 10..)?;
    end.pow_assign(5.0)?;
    assert!(last(&device).bytes_moved <= 24 * 8);
    // The number, four elements of which the one is among, and that one back.
    whole.slice(1..2)?.pow_assign(1.0)?;
    assert_eq!(last(&device).bytes_moved, 8 + 4 * 8 + 8);
    assert_eq!(
        whole.to_vec::<f64>()?[(1 << 20) - 11..],
        [[2.0].as_slice(), &[32.0; 10]].concat()
    );
    let columns = whole.reshape([1 << 10, 1 << 10])?.slice((1.., 3..5))?;
    let next = whole.reshape([1 << 10, 1 << 10])?.slice((.., 5..6))?;
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| (0..10).try_for_each(|_| columns.pow_assign(1.0)));
        // Neighbours that change meanwhile keep what they are given.
        let mut value = 0.0;
        while !elsewhere.is_finished() {
            value += 1.0;
            next.fill(value)?;
            std::thread::sleep(std::time::Duration::from_micros(300));
            assert_eq!(next.slice(1..2)?.item::<f64>()?, value);
        }
        elsewhere.join().expect("no panic")
    })
}

/// What lies between the elements of a view travels only where it is little.
fn views_travel(context: &Context) -> Result<()> {
    let device = context.open();
    let cpu = Device::builder().select("cpu").build()?;
    for (from, to) in [(&cpu, &device), (&device, &cpu)] {
        let whole = Tensor::arange(from, 0, 1 << 16, 1, DType::I32)?.reshape([1 << 8, 1 << 8])?;
        let column = whole.slice((.., 7..8))?.broadcast_to([1 << 8, 3])?;
        let before = to.memory().allocated;
        let moved = column.to(to)?;
        assert_eq!(to.memory().allocated - before, 4 << 8);
        assert_eq!(moved.to_vec::<i32>()?, column.to_vec::<i32>()?);
        let rows = whole.slice((3..5, 1..))?.to(to)?;
        assert_eq!(rows.layout().strides(), [1 << 8, 1]);
    }
    Ok(())
}

/// The result of a fallback that finds no room at home is lost with an error, and nothing else is.
fn no_room_at_home(context: &Context) -> Result<()> {
    let limit = 1 << 20;
    let device = context.builder().memory_limit(limit).build()?;
    let capabilities = device.capabilities();
    let run = || Tensor::randn(&device, 1 << 16, DType::F64, 1);
    if !capabilities.f64 {
        return Ok(());
    }
    let rest = Tensor::zeros(
        &device,
        (limit - device.memory().allocated) as usize / 4,
        DType::F32,
    )?;
    assert_eq!(device.memory().allocated, limit);
    let mut before = (device.memory(), device.placement_log());
    before.0.events.failures += 1;
    let Err(Error::OutOfMemory(error)) = run() else {
        panic!("the budget is used up");
    };
    assert_eq!(error.device, device.to_string());
    assert_eq!((device.memory(), device.placement_log()), before);
    assert_eq!(rest.slice(0..1)?.item::<f32>()?, 0.0);
    drop(rest);
    assert_eq!(run()?.device(), &device);
    assert_eq!(
        device.placement_log().events.len(),
        before.1.events.len() + 1
    );
    Ok(())
}

/// Tensors without elements live where others of their dtype live.
fn no_elements(context: &Context) -> Result<()> {
    let soft = open(context, Placement::Soft)?;
    let strict = open(context, Placement::Strict)?;
    let holds = soft.capabilities().holds(DType::F64);
    for make in [Tensor::zeros, Tensor::empty] {
        let none = make(&soft, orlop::Shape::from([0, 3]), DType::F64)?;
        assert_eq!(none.device().is_cpu(), !holds);
        assert_eq!(none.add(&none)?.device(), none.device());
        if !holds {
            assert_eq!(last(&soft).bytes_moved, 0);
            is_unsupported(make(&strict, 0.into(), DType::F64), &["f64"]);
        }
    }
    let none = Tensor::ones(&soft, 0, DType::F32)?.cast(DType::F64)?;
    assert_eq!(none.device().is_cpu(), !holds);
    assert_eq!(soft.placement_log().events.len(), if holds { 0 } else { 3 });
    Ok(())
}

/// The log keeps the latest 1024 and counts the others; clearing forgets both.
fn log_is_bounded(context: &Context) -> Result<()> {
    let device = open(context, Placement::Soft)?;
    let other = Device::select("cpu")?;
    let a = Tensor::zeros(&other, 4, DType::F32)?;
    for size in 0..1100usize {
        let from = size % 4;
        let _ = device.scope(|| a.slice(from..)?.copy())?;
    }
    let log = device.placement_log();
    assert_eq!((log.events.len(), log.dropped), (1024, 76));
    // The 77th was of one element fewer.
    assert_eq!(log.events[0].bytes_moved, 16);
    assert_eq!(log.events[1023].bytes_moved, 4);
    assert!(log.to_string().starts_with("(76 older events dropped)\n"));
    device.clear_placement_log();
    assert_eq!(device.placement_log(), PlacementLog::default());
    assert_eq!(other.placement_log(), log, "each device has its own");
    Ok(())
}

fn log_in_words(context: &Context) -> Result<()> {
    let device = open(context, Placement::Soft)?;
    let a = Tensor::zeros(&device, 4, DType::F32)?;
    let _ = Device::cpu().scope(|| a.add(&a))?;
    let (cpu, event) = (Device::cpu(), last(&device));
    assert_eq!(
        device.placement_log().to_string(),
        format!(
            "add: from {device} to {cpu}, result on {cpu}; {}; 16 bytes moved\n",
            event.reason
        )
    );
    assert!(event.reason.contains("scope"));
    Ok(())
}

thread_local! {
    static TRACED: Cell<usize> = const { Cell::new(0) };
}

/// Counts each thread's events of placement. One for the process: those of a thread alone race
/// where tests run side by side.
struct Counter;

impl tracing::Subscriber for Counter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "orlop::device::log"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        TRACED.set(TRACED.get() + 1);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Each event is one of `tracing` too, whichever logs hold it.
fn traced(context: &Context) -> Result<()> {
    // Fails where it is set already.
    let _ = tracing::subscriber::set_global_default(Counter);
    let device = open(context, Placement::Soft)?;
    let host = Tensor::ones(&Device::select("cpu")?, 2, DType::F32)?;
    let before = TRACED.get();
    let there = Tensor::ones(&device, 2, DType::F32)?.add(&host.to(&device)?)?;
    assert_eq!(TRACED.get(), before, "nothing is placed elsewhere");
    there.add(&host)?;
    host.device().scope(|| there.add(&there))?;
    assert_eq!(TRACED.get(), before + 2);
    Ok(())
}

/// Threads that write one storage elsewhere do not undo each other.
fn threads_write_one_storage(context: &Context) -> Result<()> {
    // Without f16 in kernels its twin runs.
    let source = "enable f16;
        struct Params { y_length: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.y_length { y[id.x] += f32(1.0h); }
        }";
    let kernel = Kernel::wgsl("one_more", source)?.twin(|call| {
        call.output::<f32>("y")?.iter_mut().for_each(|y| *y += 1.0);
        Ok(())
    })?;
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let y = Tensor::zeros(&device, [64], DType::F32)?;
    std::thread::scope(|scope| {
        let add = || (0..25).try_for_each(|_| kernel.launch().invocations([64, 1, 1]).run_into(&y));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    assert_eq!(last(&device).op, "one_more");
    same(&y, &[100.0f32; 64])
}

/// Elements that share words with those that were written elsewhere stay as they are.
fn neighbours_stay(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let halves = [1.0, 2.0, 3.0, 4.0, 5.0].map(f16::from_f32);
    let truths = [true, false, true, true, false];
    let went = || {
        let event = last(&device);
        assert_eq!(
            (event.op, event.to),
            ("fused_assign", Device::cpu().to_string())
        );
        device.clear_placement_log();
    };
    for part in [0..3, 1..2, 1..4] {
        let x = Tensor::from_slice(&device, &halves, 5)?;
        x.slice(part.clone())?
            .fused_assign(|_, x| (x.cast(DType::F64) * 2.0).cast(DType::F16))?;
        went();
        let y = Tensor::from_slice(&device, &truths, 5)?;
        y.slice(part.clone())?
            .fused_assign(|_, y| y.cast(DType::F64).lt(0.5))?;
        went();
        let (mut doubled, mut turned) = (halves, truths);
        for at in part {
            doubled[at] = halves[at] + halves[at];
            turned[at] = !truths[at];
        }
        same(&x, &doubled)?;
        same(&y, &turned)?;
    }
    Ok(())
}
