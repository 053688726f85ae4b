//! The account is exact, budgets hold, and full means full.

use std::time::{Duration, Instant};

use orlop::memory::{MemoryStatistics, QUANTUM};
use orlop::{DType, Device, Error, Result, Tensor};
#[cfg(feature = "fault-injection")]
use orlop::{Fault, Faults};

use crate::adapters::Context;
use crate::operand::same;
use crate::rng::cases;
use crate::{Scope, Test, watchdog};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("memory::exact_account", Scope::Device, exact_account),
        Test::new("memory::outputs_only", Scope::Device, outputs_only),
        Test::new("memory::budget", Scope::Device, budget),
        Test::new(
            "memory::budgets_are_apart",
            Scope::Device,
            budgets_are_apart,
        ),
        Test::new("memory::summary", Scope::Device, summary),
        Test::new(
            "memory::trim_while_working",
            Scope::Device,
            trim_while_working,
        ),
        Test::new(
            "memory::trim_reaches_the_driver",
            Scope::Gpu,
            trim_reaches_the_driver,
        ),
        Test::new(
            "memory::what_went_back_does_not_pile_up",
            Scope::Gpu,
            what_went_back_does_not_pile_up,
        ),
        #[cfg(feature = "fault-injection")]
        Test::new(
            "memory::what_is_made_anew_is_not_asked_for",
            Scope::Gpu,
            what_is_made_anew_is_not_asked_for,
        ),
    ]
}

/// Waits, for background threads, until the account is as wanted.
pub fn settle(device: &Device, wanted: impl Fn(&MemoryStatistics) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !wanted(&device.memory()) {
        assert!(Instant::now() < deadline, "{}", device.memory_summary());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn rounded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(QUANTUM)
}

/// After each step of a random sequence the statistics are the model's.
fn exact_account(context: &Context) -> Result<()> {
    cases(2, |rng| {
        let device = context.open();
        assert_eq!(device.memory().allocated, 0);
        let mut live: Vec<(Tensor, u64)> = Vec::new();
        let mut peak = 0;
        for _ in 0..context.times(300) {
            match rng.below(8) {
                0..=3 => {
                    let dtype = *rng.pick(&[DType::F32, DType::F16, DType::I32]);
                    let count = *rng.pick(&[0, 1, 63, 64, 65, 1000, 30_000]);
                    let made = if rng.one_in(2) {
                        Tensor::empty(&device, count, dtype)?
                    } else {
                        Tensor::full(&device, [count, 1], 1, dtype)?
                    };
                    live.push((made, rounded(count * dtype.size())));
                }
                4 | 5 if !live.is_empty() => {
                    live.swap_remove(rng.below(live.len()));
                }
                6 if !live.is_empty() => {
                    // Views and clones are no bytes; the storage stays while one of them lives.
                    let (tensor, _) = rng.pick(&live);
                    let view = tensor.unsqueeze(0)?.transpose(0, 1)?.clone();
                    let slice = tensor.slice(..tensor.shape()[0] / 2)?;
                    assert_eq!(view.elements(), tensor.elements());
                    drop((view, slice));
                }
                _ if rng.one_in(10) => {
                    device.reset_peaks();
                    peak = device.memory().allocated;
                }
                _ => {}
            }
            let now: u64 = live.iter().map(|(_, bytes)| bytes).sum();
            peak = peak.max(now);
            let memory = device.memory();
            assert_eq!(memory.allocated, now);
            assert_eq!(
                memory.live_blocks,
                live.iter().filter(|(_, bytes)| *bytes > 0).count() as u64
            );
            assert_eq!(memory.peak_allocated, peak);
            assert_eq!(memory.free, memory.reserved - memory.allocated);
            assert!(memory.largest_free <= memory.free && memory.peak_reserved >= memory.reserved);
            assert!((0.0..=1.0).contains(&memory.fragmentation()));
        }
        // A view keeps its storage.
        let view = Tensor::ones(&device, [10, 10], DType::F32)?.slice(3..4)?;
        live.clear();
        assert_eq!(
            (device.memory().allocated, device.memory().live_blocks),
            (512, 1)
        );
        same(&view, &[1.0f32; 10])?;
        drop(view);
        device.trim()?;
        let memory = device.memory();
        assert_eq!((memory.allocated, memory.live_blocks), (0, 0));
        assert_eq!(
            (memory.reserved, memory.regions, memory.largest_free),
            (0, 0, 0)
        );
        device.reset_peaks();
        assert_eq!(
            (
                device.memory().peak_allocated,
                device.memory().peak_reserved
            ),
            (0, 0)
        );
        Ok(())
    })
}

/// No op takes memory beyond its output, not even for a moment.
fn outputs_only(context: &Context) -> Result<()> {
    let device = context.open();
    let a = Tensor::ones(&device, [96, 80], DType::F32)?;
    let b = Tensor::ones(&device, [80, 96], DType::F32)?;
    let takes = |what: &str, bytes: usize, op: &dyn Fn() -> Result<Tensor>| -> Result<()> {
        let before = device.memory().allocated;
        device.reset_peaks();
        let output = op()?;
        let memory = device.memory();
        assert_eq!(memory.allocated - before, rounded(bytes), "{what}");
        assert_eq!(memory.peak_allocated, memory.allocated, "{what}: its peak");
        drop(output);
        assert_eq!(device.memory().allocated, before, "{what}: after the drop");
        Ok(())
    };
    let size = 96 * 80 * 4;
    takes("add", size, &|| a.add(&a))?;
    takes("add of views", size, &|| a.add(&b.transpose(0, 1)?))?;
    takes("add with broadcasting", size, &|| a.add(&a.slice(0..1)?))?;
    takes("matmul", 96 * 96 * 4, &|| a.matmul(&b))?;
    takes("matmul of views", 80 * 80 * 4, &|| {
        a.transpose(0, 1)?.matmul(&b.transpose(0, 1)?)
    })?;
    takes("copy", size, &|| b.transpose(0, 1)?.contiguous())?;
    takes("cast", size, &|| a.cast(DType::I32))?;
    takes("reshape that copies", size, &|| {
        b.transpose(0, 1)?.reshape([-1])
    })?;
    takes("reshape that does not", 0, &|| b.reshape([-1]))?;
    takes("rand", size, &|| {
        Tensor::rand(&device, [96, 80], DType::F32, 1)
    })?;
    takes("arange", 4000, &|| {
        Tensor::arange(&device, 0, 1000, 1, DType::I32)
    })?;
    takes("a vector's product", 96 * 4, &|| {
        a.matmul(&b.slice((.., 0..1))?.squeeze(1)?)
    })
}

/// Fills a budget of 64 MiB: a true error, everything before it intact, and room again at once.
fn budget(context: &Context) -> Result<()> {
    let limit = 64 << 20;
    let device = context.builder().memory_limit(limit).build()?;
    let count = 3 << 18;
    let mut held = Vec::new();
    let error = loop {
        let value = held.len() as i32;
        match Tensor::full(&device, count, value, DType::I32) {
            Ok(tensor) => held.push(tensor),
            Err(error) => break error,
        }
        assert!(held.len() <= 21, "the budget holds 21 tensors of 3 MiB");
    };
    assert_eq!(held.len(), 21);
    let memory = device.memory();
    let Error::OutOfMemory(full) = &error else {
        panic!("{error}");
    };
    assert_eq!((full.asked, full.limit), (3 << 20, Some(limit)));
    assert_eq!(
        (full.allocated, full.reserved),
        (memory.allocated, memory.reserved)
    );
    assert_eq!(full.largest_free, memory.largest_free);
    assert_eq!(memory.allocated, 63 << 20);
    assert!(memory.reserved <= limit);
    for part in [
        "3.0 MiB",
        "64.0 MiB",
        "63.0 MiB",
        "21",
        "largest hole",
        "would help",
    ] {
        assert!(full.diagnosis.contains(part), "{part}: {}", full.diagnosis);
    }
    assert!(full.device.contains(&context.adapter.info.name));
    // Other calls fail the same way, and change nothing.
    assert!(matches!(held[0].add(&held[1]), Err(Error::OutOfMemory(_))));
    assert!(matches!(
        Tensor::from_vec(&device, vec![0; count], count),
        Err(Error::OutOfMemory(_))
    ));
    let mut counted = memory;
    counted.events.failures += 2;
    assert_eq!(device.memory(), counted);
    // What fits the last MiB still fits.
    drop(Tensor::zeros(&device, 1000, DType::I32)?);
    for (value, tensor) in held.iter().enumerate() {
        assert!(
            tensor.to_vec::<i32>()?.iter().all(|&x| x == value as i32),
            "tensor {value}"
        );
    }
    held.swap_remove(7);
    held.push(Tensor::full(&device, count, -1, DType::I32)?);
    same(&held[20], &vec![-1i32; count])?;
    // More than the budget at once.
    let error = Tensor::zeros(&device, 17 << 20, DType::I32);
    assert!(matches!(error, Err(Error::OutOfMemory(_))));
    drop(held);
    // Whole again, in one piece.
    drop(Tensor::zeros(&device, 16 << 20, DType::I32)?);
    Ok(())
}

/// Two devices on one adapter are two budgets.
fn budgets_are_apart(context: &Context) -> Result<()> {
    let open = |mebibytes: u64| context.builder().memory_limit(mebibytes << 20).build();
    let (small, large) = (open(2)?, open(8)?);
    assert_ne!(small, large);
    let count = 1 << 18;
    let first = Tensor::ones(&small, [2, count], DType::F32)?;
    assert!(matches!(
        Tensor::ones(&small, count, DType::F32),
        Err(Error::OutOfMemory(_))
    ));
    let second = Tensor::ones(&large, [7, count], DType::F32)?;
    assert_eq!(
        (small.memory().allocated, large.memory().allocated),
        (2 << 20, 7 << 20)
    );
    assert_eq!(
        (small.memory().limit, large.memory().limit),
        (Some(2 << 20), Some(8 << 20))
    );
    // A tensor of the one that is too large for the other stays where it is.
    assert!(matches!(second.to(&small), Err(Error::OutOfMemory(_))));
    drop(first);
    assert_eq!(
        (small.memory().allocated, large.memory().allocated),
        (0, 7 << 20)
    );
    Ok(())
}

fn summary(context: &Context) -> Result<()> {
    let device = context.builder().memory_limit(64 << 20).build()?;
    let tensor = Tensor::ones(&device, 1 << 18, DType::F32)?;
    let text = device.memory_summary();
    assert!(text.starts_with(&format!("memory of {device}\n")), "{text}");
    for (name, value) in [
        ("allocated", "1.0 MiB"),
        ("reserved", "1.0 MiB"),
        ("peak allocated", "1.0 MiB"),
        ("peak reserved", "1.0 MiB"),
        ("limit", "64.0 MiB"),
        ("live tensors", "1"),
        ("regions", "1"),
        ("largest free chunk", "0 B"),
        ("fragmentation", "0.0 %"),
    ] {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        assert!(
            line.is_some_and(|line| line.ends_with(value)),
            "{name} {value}:\n{text}"
        );
    }
    drop(tensor);
    Ok(())
}

/// Regions go while work that used them may still run.
fn trim_while_working(context: &Context) -> Result<()> {
    let device = context.open();
    for round in 0..10 {
        let a = Tensor::full(&device, 400_000, round, DType::I32)?;
        let b = a.add(&a)?;
        drop(a);
        device.trim()?;
        let c = b.add(&b)?;
        drop(b);
        device.trim()?;
        assert!(c.to_vec::<i32>()?.iter().all(|&x| x == 4 * round));
        drop(c);
        device.trim()?;
        assert_eq!(device.memory().reserved, 0);
    }
    device.synchronize()
}

/// Whether wgpu knows what the driver has: not on GL and Metal.
fn driver_tells(context: &Context) -> bool {
    !matches!(context.adapter.info.backend, "Gl" | "Metal")
}

/// Regions that are made for one tensor each, while work that used those before them is not done.
fn what_went_back_does_not_pile_up(context: &Context) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let _alone = watchdog::alone();
    let device = context.open();
    let mut most = 0;
    for _ in 0..60 {
        for mib in [16, 10] {
            drop(Tensor::ones(&device, mib << 18, DType::F32)?);
            most = most.max(device.driver_reserved().unwrap_or(0));
        }
    }
    // Until one region is found to do for both.
    assert!((60..120).contains(&device.memory().counts.regions.allocated));
    // The one that went last, the one that is there, and staging.
    assert!(most <= (16 + 10 + 8) * MIB, "{} MiB", most / MIB);
    assert_eq!(most > 0, driver_tells(context));
    Ok(())
}

/// Small regions that the pool gives back and makes anew are the driver's for who needs none as large, not before.
#[cfg(feature = "fault-injection")]
fn what_is_made_anew_is_not_asked_for(context: &Context) -> Result<()> {
    let faults = Faults::new();
    let device = context.builder().faults(&faults).build()?;
    let weights = Tensor::ones(&device, 4 << 20, DType::F32)?;
    let made = || device.memory().counts.regions.allocated;
    let asked = || faults.passed(Fault::Region);
    let step = |at: usize| -> Result<()> {
        let result = Tensor::full(&device, 4 << 10, at as f32, DType::F32)?;
        let scratch = Tensor::full(&device, 512 << 10, 1.0, DType::F32)?;
        let sum = scratch.slice(..4 << 10)?.add(&result)?;
        drop((result, scratch));
        same(&sum, &vec![at as f32 + 1.0; 4 << 10])
    };
    for at in 0..3 {
        step(at)?;
    }
    let (made_before, asked_before) = (made(), asked());
    for at in 0..30 {
        step(at)?;
    }
    assert!(made() >= made_before + 30, "{} regions", made());
    assert_eq!(asked(), asked_before);
    // What nobody needs for long goes, and all by `trim`.
    let large = || Tensor::full(&device, 3 << 18, 1.0, DType::F32);
    let asked_after = |between: &dyn Fn() -> Result<()>| -> Result<u64> {
        drop(large()?);
        drop(Tensor::full(&device, 64, 1.0, DType::F32)?);
        between()?;
        let before = asked();
        large()?;
        Ok(asked() - before)
    };
    assert_eq!(asked_after(&|| device.synchronize())?, 0);
    let part = weights.slice(64..128)?;
    let ops = |count: usize| (0..count).try_for_each(|_| part.fill(1.0));
    assert_eq!(asked_after(&|| ops(1000))?, 0);
    assert_eq!(asked_after(&|| ops(1100))?, 1);
    assert_eq!(asked_after(&|| device.trim())?, 1);
    same(&weights.slice(..3)?, &[1.0f32; 3])
}

/// 256 MiB that many bind groups were made for are gone from the driver's own figure.
fn trim_reaches_the_driver(context: &Context) -> Result<()> {
    const SIZE: u64 = 256 << 20;
    let _alone = watchdog::alone();
    let device = context.open();
    let small = Tensor::ones(&device, [64, 64], DType::F32)?;
    let rest = small.add(&small)?;
    // One region, or two where bindings are smaller.
    let regions = SIZE
        .div_ceil(device.capabilities().max_binding_bytes)
        .max(1) as usize;
    let large: Vec<Tensor> = (0..regions)
        .map(|_| Tensor::empty(&device, [256 / regions, 512, 512], DType::F32))
        .collect::<Result<_>>()?;
    let mut results = Vec::new();
    for at in (0..256).step_by(16) {
        let page = at / regions;
        let view = large[at % regions].slice((page..page + 1, 0..64, 64..128))?;
        let view = view.squeeze(0)?;
        view.fill(at as f32)?;
        results.push(view.add(&small)?);
        results.push(small.matmul(&view.transpose(0, 1)?)?);
        results.push(view.contiguous()?);
    }
    same(&results[3].slice((0..1, 0..2))?, &[17.0f32, 17.0])?;
    same(&results[4].slice((0..1, 0..2))?, &[1024.0f32, 1024.0])?;
    let before = device.driver_reserved();
    drop(large);
    device.trim()?;
    device.synchronize()?;
    let after = device.driver_reserved();
    if let (Some(before), Some(after)) = (before, after) {
        assert!(before >= after + SIZE, "{before} bytes, then {after}");
    }
    assert_eq!(before.is_some(), driver_tells(context));
    assert!(device.memory().reserved < SIZE);
    // The rest is there, and works.
    same(&rest.slice((0..1, 0..2))?, &[2.0f32, 2.0])?;
    same(&rest.add(&small)?.slice((0..1, 0..2))?, &[3.0f32, 3.0])
}
