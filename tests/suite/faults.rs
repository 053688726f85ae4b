//! Faults injected at every step of a mixed workload, for all steps: each failure is a typed error,
//! what did not depend on it is whole, the account is exact, and the device works on.

use std::collections::BTreeSet;
use std::time::Duration;

use orlop::interop::wgpu;
use orlop::memory::{Growth, QUANTUM, WhenFull};
use orlop::{DType, Device, Error, Fault, Faults, Result, Tensor};

use crate::adapters::Context;
use crate::ledger::own;
use crate::operand::same;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("faults::every_step", Scope::Device, every_step),
        Test::new(
            "faults::each_kind_for_good",
            Scope::Device,
            each_kind_for_good,
        ),
        Test::new("faults::while_it_spills", Scope::Gpu, while_it_spills),
        Test::new("faults::while_it_moves", Scope::Gpu, while_it_moves),
        Test::new("faults::on_the_way_out", Scope::Gpu, on_the_way_out),
        Test::new("faults::on_the_way_back", Scope::Gpu, on_the_way_back),
        Test::new(
            "faults::back_to_a_full_host",
            Scope::Gpu,
            back_to_a_full_host,
        ),
        Test::new("faults::between_launches", Scope::Gpu, between_launches),
        Test::new("faults::are_counted", Scope::Device, are_counted),
        Test::new("faults::refused_ones_wait", Scope::Gpu, refused_ones_wait),
        Test::new(
            "faults::slots_are_made_anew",
            Scope::Gpu,
            slots_are_made_anew,
        ),
        Test::new("faults::the_first_is_told", Scope::Gpu, the_first_is_told),
        Test::new("faults::outside_of_scopes", Scope::Gpu, outside_of_scopes),
    ]
}

/// Bytes of the larger tensors: two upload slots, and more than a download records ahead.
const LARGE: usize = 9 << 20;

/// What a workload has made, and what it met.
#[derive(Default)]
struct Harvest {
    /// A tensor, what it must hold, and the upload or creation that it comes from.
    made: Vec<(Tensor, Vec<f32>, &'static str)>,
    errors: Vec<Error>,
}

impl Harvest {
    /// Keeps a tensor that was made; nothing else happens when it was not.
    fn keep(
        &mut self,
        root: &'static str,
        made: Result<Tensor>,
        values: Vec<f32>,
    ) -> Option<Tensor> {
        let tensor = self.note(made)?;
        self.made.push((tensor.clone(), values, root));
        Some(tensor)
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    /// What was read is right, if it was read.
    fn read(&mut self, result: Result<Vec<f32>>, values: &[f32]) {
        if let Some(found) = self.note(result) {
            assert!(found == values, "a read gave wrong numbers");
        }
    }
}

/// Everything that takes a step which can fail.
fn work(device: &Device) -> Harvest {
    let mut harvest = Harvest::default();
    let trimmed = device.trim();
    harvest.note(trimmed);
    let small: Vec<f32> = (0..1000).map(|at| at as f32).collect();
    let doubled: Vec<f32> = small.iter().map(|value| value * 2.0).collect();
    let large: Vec<f32> = (0..LARGE / 4).map(|at| (at % 8191) as f32).collect();

    let a = harvest.keep("a", Tensor::from_slice(device, &small, 1000), small.clone());
    let b = harvest.keep(
        "b",
        Tensor::from_slice(device, &large, large.len()),
        large.clone(),
    );
    let zeros = Tensor::zeros(device, 300_000, DType::F32);
    harvest.keep("zeros", zeros, vec![0.0; 300_000]);
    if let Some(a) = &a {
        harvest.keep("a", a + a, doubled.clone());
        let matrices = a
            .reshape([10, 100])
            .and_then(|a| a.matmul(&a.transpose(0, 1)?));
        let product = (0..100).map(|at| {
            let (row, column) = (at / 10 * 100, at % 10 * 100);
            (0..100)
                .map(|k| small[row + k] as f64 * small[column + k] as f64)
                .sum::<f64>() as f32
        });
        // Sums in another order: near is enough, and then what is there is what must stay.
        if let Some(found) = harvest.note(matrices) {
            let near: Vec<f32> = product.collect();
            let read = found.to_vec::<f32>();
            if let Some(read) = harvest.note(read) {
                assert!(
                    near.iter()
                        .zip(&read)
                        .all(|(a, b)| (a - b).abs() <= a * 1e-5)
                );
                harvest.made.push((found, read, "a"));
            }
        }
    }
    let ones = Tensor::ones(device, 512, DType::F32);
    if let Some(ones) = harvest.note(ones) {
        let filled = harvest.note(ones.fill(7)).is_some();
        let value = if filled { 7.0 } else { 1.0 };
        harvest.made.push((ones, vec![value; 512], "ones"));
    }
    // Elements that share words.
    let halves = Tensor::ones(device, 512, DType::F16).and_then(|halves| {
        halves.fill(3)?;
        halves.to_vec::<orlop::f16>()
    });
    if let Some(halves) = harvest.note(halves) {
        assert!(halves.iter().all(|half| half.to_f32() == 3.0));
    }
    if let Some(b) = &b {
        harvest.read(b.to_vec(), &large);
        let elsewhere = b.to(&Device::cpu()).and_then(|there| there.to_vec::<f32>());
        harvest.read(elsewhere, &large);
        harvest.read(pollster::block_on(b.to_vec_async()), &large);
        let back = b.to(&Device::cpu()).and_then(|there| there.to(device));
        harvest.keep("back", back, large.clone());
    }
    if let Some(a) = &a {
        harvest.read(a.to_vec(), &small);
        harvest.keep("a", a + a, doubled);
    }
    let trimmed = device.trim();
    harvest.note(trimmed);
    let synchronized = device.synchronize();
    harvest.note(synchronized);
    harvest
}

/// The workload, after which nothing fails any more: what it left is checked and dropped.
fn work_and_check(device: &Device, witness: &Tensor, faults: &Faults) -> Result<()> {
    let before = faults.injected();
    let harvest = work(device);
    faults.disarm();
    let injected = faults.injected() - before;
    for error in &harvest.errors {
        let typed = matches!(error, Error::OutOfMemory(_) | Error::Execution(_));
        assert!(typed, "not an error of a fault: {error:?}");
    }
    assert!(
        injected > 0 || harvest.errors.is_empty(),
        "{:?}",
        harvest.errors
    );

    let bytes = |count: usize| (count as u64 * 4).next_multiple_of(QUANTUM);
    let counts = harvest.made.iter().map(|(_, values, _)| values.len());
    let live: u64 = counts.chain([3]).map(bytes).sum();
    let memory = device.memory();
    // What is on the host is no block, and counted apart.
    assert_eq!(memory.allocated + memory.spilled, live, "{memory:?}");
    let spilled = device.memory_snapshot().spilled.len() as u64;
    let made = harvest.made.len() as u64;
    assert_eq!(memory.live_blocks + spilled, made + 1, "{memory:?}");

    let mut lost = BTreeSet::new();
    for (tensor, values, root) in &harvest.made {
        match tensor.to_vec::<f32>() {
            Ok(found) => assert!(found == *values, "a tensor of {root} holds wrong numbers"),
            Err(Error::Execution(_)) if injected > 0 => {
                lost.insert(*root);
            }
            Err(error) => panic!("a tensor of {root}: {error}"),
        }
    }
    assert!(
        lost.len() as u64 <= injected,
        "{injected} faults took {lost:?}"
    );
    // What failed is told once; then there is nothing left of it.
    let _ = device.synchronize();
    device.synchronize()?;
    drop(harvest);
    assert!(device.memory().live_blocks <= 1);
    same(witness, &[1.0f32, 2.0, 3.0])
}

fn every_step(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let device = context.builder().faults(&faults).build()?;
    let witness = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], 3)?;
    work_and_check(&device, &witness, &faults)?;
    let steps = fail_each_step(&device, witness, &faults)?;
    let least = if context.is_cpu() { 3 } else { 40 };
    assert!(steps >= least, "the workload has only {steps} steps");
    Ok(())
}

/// In a budget that holds half of the workload, so that tensors move and go to the host and come back.
fn while_it_spills(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let builder = context.builder().faults(&faults);
    let device = builder
        .memory_limit(LARGE as u64 * 7 / 4)
        .when_full(WhenFull::SpillToHost { most: None })
        .build()?;
    let witness = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], 3)?;
    work_and_check(&device, &witness, &faults)?;
    let (spills, refaults) = {
        let events = device.memory().events;
        (events.spills, events.refaults)
    };
    assert!(
        spills > 0 && refaults > 0,
        "{spills} spills, {refaults} refaults"
    );
    fail_each_step(&device, witness, &faults)?;
    Ok(())
}

/// A move is refused: what did not get to its new place says so, and the others are whole.
fn while_it_moves(context: &Context) -> Result<()> {
    const EACH: usize = 64 << 10;
    let faults = Faults::new();
    let bytes = 32 * EACH as u64;
    let builder = context.builder().faults(&faults).memory_limit(bytes);
    let device = builder
        .growth(Growth::PreallocateBytes { bytes })
        .when_full(WhenFull::Relocate)
        .build()?;
    for nth in 1.. {
        let all = (0..8u32).map(|value| {
            let tensor = Tensor::full(&device, EACH, value, DType::U32)?;
            Ok((value, tensor))
        });
        let all: Vec<_> = all.collect::<Result<_>>()?;
        device.synchronize()?;
        let kept: Vec<_> = all.into_iter().skip(1).step_by(2).collect();
        let (before, moves) = (faults.injected(), device.memory().events.relocations);
        faults.fail(Fault::Copy, nth);
        let large = Tensor::zeros(&device, 4 * EACH, DType::U32)?;
        assert!(device.memory().events.relocations > moves);
        let _ = device.synchronize();
        let is_injected = faults.injected() > before;
        faults.disarm();
        let mut lost = 0;
        for (value, tensor) in &kept {
            match tensor.to_vec::<u32>() {
                Ok(found) => assert!(found == [*value; EACH], "copy {nth}: wrong numbers"),
                Err(Error::Execution(_)) => lost += 1,
                Err(error) => return Err(error),
            }
        }
        assert_eq!(lost, usize::from(is_injected), "copy {nth}");
        same(&large, &[0u32; 4 * EACH])?;
        if !is_injected {
            assert!(nth > 2, "nothing moved");
            return Ok(());
        }
    }
    Ok(())
}

/// One block cannot go: the next one does.
fn on_the_way_out(context: &Context) -> Result<()> {
    const EACH: usize = 32 << 10;
    for fault in [Fault::Copy, Fault::Mapping] {
        let faults = Faults::new();
        let bytes = 32 * EACH as u64;
        let builder = context.builder().faults(&faults).memory_limit(bytes);
        let device = builder
            .growth(Growth::PreallocateBytes { bytes })
            .when_full(WhenFull::SpillToHost { most: None })
            .build()?;
        let full: Vec<Tensor> = (0..8u32)
            .map(|value| Tensor::full(&device, EACH, value, DType::U32))
            .collect::<Result<_>>()?;
        device.synchronize()?;
        faults.fail(fault, 1);
        let more = Tensor::ones(&device, EACH, DType::U32)?;
        assert_eq!(faults.injected(), 1);
        faults.disarm();
        for (value, tensor) in (0u32..).zip(&full) {
            same(tensor, &[value; EACH])?;
        }
        same(&more, &[1u32; EACH])?;
    }
    Ok(())
}

/// A tensor that does not get back from the host is on the host as before.
fn on_the_way_back(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let elements = 6 << 20;
    let device = context
        .builder()
        .faults(&faults)
        .memory_limit(elements as u64 * 6)
        .when_full(WhenFull::SpillToHost { most: None })
        .build()?;
    let values: Vec<i32> = (0..elements as i32).collect();
    let mut failures = 0;
    for nth in 1.. {
        let tensor = Tensor::from_slice(&device, &values, elements)?;
        let other = Tensor::zeros(&device, elements, DType::I32)?;
        device.synchronize()?;
        assert_eq!(device.memory().spilled, elements as u64 * 4);
        let before = faults.injected();
        let events = device.memory().events;
        faults.fail(Fault::Copy, nth);
        let filled = tensor.slice(0..1)?.fill(-1);
        // What it failed for: whoever reads it hears nothing of it.
        let is_injected = faults.injected() > before;
        failures += usize::from(filled.is_err());
        let _ = device.synchronize();
        faults.disarm();
        // Not refused later: the device has it when the call ends.
        assert_eq!(filled.is_err(), is_injected);
        let after = device.memory().events;
        let came_back = u64::from(filled.is_ok());
        assert_eq!(after.refaults, events.refaults + came_back);
        assert_eq!(
            after.refaulted_bytes - events.refaulted_bytes,
            came_back * elements as u64 * 4
        );
        // What made room for it, or did not get away.
        assert!(after.spills <= events.spills + 1, "{after:?}");
        let first = if filled.is_err() { values[0] } else { -1 };
        same(&tensor.slice(0..1)?, &[first])?;
        same(&tensor.slice(1..)?, &values[1..])?;
        same(&other.slice(5..9)?, &[0i32; 4])?;
        drop((tensor, other));
        if !is_injected {
            break;
        }
    }
    assert!(failures > 0);
    assert_eq!(device.memory().allocated + device.memory().spilled, 0);
    Ok(())
}

/// A tensor cannot come back after another has made room for it, and the host has more than it may: all are of use yet.
fn back_to_a_full_host(context: &Context) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let faults = Faults::new();
    let device = context
        .builder()
        .faults(&faults)
        .growth(Growth::PreallocateBytes { bytes: MIB })
        .memory_limit(MIB)
        .when_full(WhenFull::SpillToHost { most: Some(MIB) })
        .build()?;
    let tensors: Vec<_> = (0..8u32)
        .map(|value| Tensor::full(&device, 64 << 10, value, DType::U32))
        .collect::<Result<_>>()?;
    device.synchronize()?;
    assert_eq!(device.memory().spilled, MIB);
    let (mut was_over, mut value) = (false, 8u32);
    for nth in 1.. {
        let before = faults.injected();
        faults.fail(Fault::Copy, nth);
        let filled = tensors[0].slice(..1)?.fill(7);
        let is_injected = faults.injected() > before;
        let _ = device.synchronize();
        faults.disarm();
        was_over |= device.memory().spilled > MIB;
        // It may take the room that was made.
        let more = Tensor::full(&device, 64 << 10, 9, DType::U32);
        for tensor in &tensors {
            value += 1;
            tensor.slice(..1)?.fill(value)?;
        }
        for (value, tensor) in (value - 7..).zip(&tensors) {
            same(&tensor.slice(..1)?, &[value])?;
        }
        for (value, tensor) in (0u32..).zip(&tensors) {
            same(&tensor.slice(1..)?, &vec![value; (64 << 10) - 1])?;
        }
        drop(more);
        // The first is on the host again.
        tensors[5].slice(..1)?.fill(value - 2)?;
        while device.memory().spilled < MIB {
            drop(Tensor::full(&device, 128 << 10, 9, DType::U32)?);
        }
        if !is_injected {
            filled?;
            break;
        }
    }
    assert!(was_over, "no copy failed on the way back");
    Ok(())
}

/// The workload once for each of its steps, which fails, and once more; then all memory goes back.
/// Gives the number of steps.
fn fail_each_step(device: &Device, witness: Tensor, faults: &Faults) -> Result<u64> {
    let mut steps = 0;
    for nth in 1.. {
        let before = faults.injected();
        faults.fail_step(nth);
        work_and_check(device, &witness, faults)?;
        if faults.injected() == before {
            break;
        }
        steps = nth;
    }
    work_and_check(device, &witness, faults)?;
    drop(witness);
    device.trim()?;
    let memory = device.memory();
    assert_eq!((memory.allocated, memory.reserved), (0, 0), "{memory:?}");
    Ok(steps)
}

/// From some step on all of one kind fail; afterwards all is as before.
fn each_kind_for_good(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let device = context.builder().faults(&faults).build()?;
    let witness = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], 3)?;
    for fault in [Fault::Region, Fault::Mapping, Fault::Copy] {
        for nth in [1, 2, 3, 5, 8] {
            faults.fail_from(fault, nth);
            work_and_check(&device, &witness, &faults)?;
        }
    }
    work_and_check(&device, &witness, &faults)?;
    drop(witness);
    assert_eq!(device.memory().allocated, 0);
    Ok(())
}

/// A batch is full between two launches of one op: the second one's operand, which was to be written in it, is without
/// contents, and so is the result.
fn between_launches(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let device = context.builder().faults(&faults).build()?;
    let a = Tensor::from_slice(&device, &[1.0f32; 64], 64)?;
    for before in 0..140 {
        device.synchronize()?;
        faults.fail(Fault::Copy, 1);
        let b = Tensor::from_slice(&device, &[2.0f32; 64], 64)?;
        for _ in 0..before {
            a.add(&a)?;
        }
        let joined = Tensor::concat(&[&a, &b], 0).and_then(|joined| joined.to_vec::<f32>());
        assert!(joined.is_err(), "{before} launches before: {joined:?}");
        let _ = device.synchronize();
    }
    same(&a, &[1.0f32; 64])
}

/// The first work that failed is told, and to somebody who asks: not to a future that was dropped.
fn the_first_is_told(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let device = context.builder().faults(&faults).build()?;
    let large = Tensor::zeros(&device, LARGE / 4, DType::F32)?;
    device.synchronize()?;
    faults.fail(Fault::Copy, 1);
    let _lost = Tensor::from_slice(&device, &[1.0f32], 1)?;
    // Dropped before its turn, which comes after what takes long.
    let before = [(); 4].map(|()| large.to_vec_async::<f32>());
    drop(device.synchronize_async());
    let after = large.slice(..1)?.to_vec_async::<f32>();
    for before in before {
        pollster::block_on(before)?;
    }
    pollster::block_on(after)?;
    faults.fail(Fault::Copy, 1);
    let second = large.slice(..1)?.to_vec::<f32>();
    assert!(matches!(second, Err(Error::Execution(_))), "{second:?}");
    match device.synchronize() {
        Err(Error::Execution(first)) => assert_eq!(first.label, "upload"),
        other => panic!("not told: {other:?}"),
    }
    // Once.
    device.synchronize()
}

/// What the device says where no scope of orlop's listens is told as well.
fn outside_of_scopes(context: &Context) -> Result<()> {
    let device = context.open();
    let (wgpu, _) = device.wgpu_device().expect("a GPU");
    drop(wgpu.create_buffer(&wgpu::BufferDescriptor {
        label: Some("without usages"),
        size: 4,
        usage: wgpu::BufferUsages::empty(),
        mapped_at_creation: false,
    }));
    match device.synchronize() {
        Err(Error::Execution(told)) => assert!(told.reason.contains("usages"), "{told}"),
        other => panic!("not told: {other:?}"),
    }
    device.synchronize()
}

/// What the adapter refuses is asked for again when nothing is under way any more that may keep memory.
fn refused_ones_wait(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let device = context.builder().faults(&faults).build()?;
    let a = Tensor::full(&device, [384, 384], 1e-3, DType::F32)?;
    let mut product = a.clone();
    for _ in 0..6 {
        product = product.matmul(&a)?;
    }
    faults.fail_from(Fault::Region, 1);
    assert!(Tensor::zeros(&device, 8 << 20, DType::F32).is_err());
    // All that came before is done, or this would time out.
    device.synchronize_within(Duration::ZERO)?;
    faults.disarm();
    assert_eq!(product.shape().dims(), [384, 384]);
    Ok(())
}

/// Upload slots that the device does not map again are gone: others take their place, however many they were.
fn slots_are_made_anew(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let builder = context.builder().faults(&faults);
    let device = builder.wait_timeout(Duration::from_secs(20)).build()?;
    let host: Vec<u32> = (0..256 << 10).collect();
    for _ in 0..20 {
        let x = Tensor::from_slice(&device, &host, host.len())?;
        // When it is submitted its slot is mapped for the next one.
        faults.fail(Fault::Mapping, 1);
        device.synchronize()?;
        faults.disarm();
        same(&x, &host)?;
    }
    assert_eq!(faults.injected(), 20);
    Ok(())
}

fn are_counted(context: &Context) -> Result<()> {
    let (faults, other) = (Faults::new(), Faults::new());
    assert_ne!(faults, other);
    let device = context.builder().faults(&faults).build()?;
    let refused = |error: Option<Error>| {
        let text = error.map(|error| error.to_string());
        assert!(
            text.as_ref()
                .is_some_and(|text| text.contains("a fault was injected")),
            "{text:?}"
        );
    };
    faults.fail_from(Fault::Region, 1);
    refused(Tensor::zeros(&device, 64, DType::F32).err());
    let asked = faults.passed(Fault::Region);
    assert!(asked > 0 && faults.injected() == asked);
    // Only after a wait for the device, whose last work may keep what went back.
    let retries = device.memory().events.retries;
    assert_eq!(retries, u64::from(!context.is_cpu()));
    // Nor does the ledger hold what was refused.
    let is_in_ledger = || assert_eq!(own(&device).reserved, device.memory().reserved);
    is_in_ledger();
    // The pool is refused what it wants, and gets half of it.
    faults.fail(Fault::Region, 1);
    let one = Tensor::ones(&device, 64, DType::F32)?;
    assert_eq!(faults.passed(Fault::Region), asked + 2);
    assert_eq!(device.memory().reserved, 128 << 10);
    is_in_ledger();
    if !context.is_cpu() {
        faults.fail(Fault::Mapping, 1);
        let error = Tensor::from_slice(&device, &[1.0f32], 1).err();
        // One to catch, trim() and try again.
        assert!(matches!(error, Some(Error::OutOfMemory(_))), "{error:?}");
        refused(error);
        faults.fail(Fault::Copy, 1);
        let lost = Tensor::from_slice(&device, &[1.0f32], 1)?;
        let error = lost.to_vec::<f32>().err();
        assert!(matches!(error, Some(Error::Execution(_))), "{error:?}");
        // Nor is it written over.
        let error = lost.write_from(&[2.0f32]).err();
        assert!(matches!(error, Some(Error::Execution(_))), "{error:?}");
        faults.fail(Fault::Copy, 1);
        assert!(one.to_vec::<f32>().is_err());
        let _ = device.synchronize();
        assert_eq!(faults.passed(Fault::Copy), 3);
    }
    same(&one, &[1.0f32; 64])?;
    assert_eq!(other.injected() + other.passed(Fault::Region), 0);
    Ok(())
}
