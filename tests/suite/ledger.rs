//! Virtual devices on one adapter: their budgets, and the ledger of their sum. Devices of other tests
//! are in it too, so each test looks for its own by number.

use orlop::memory::{Growth, WhenFull};
use orlop::{DType, Device, DeviceKind, Error, LedgerEntry, Result, Tensor};

use crate::adapters::Context;
use crate::operand::same;
use crate::{OnceTest, Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("ledger::two_budgets", Scope::Device, two_budgets),
        Test::new("ledger::devices_come_and_go", Scope::Device, come_and_go),
        Test::new("ledger::promises", Scope::Device, promises),
        Test::new("ledger::budgets_change", Scope::Device, budgets_change),
        Test::new("ledger::lowered_budgets", Scope::Device, lowered_budgets),
        Test::new("ledger::spilled_budgets", Scope::Device, spilled_budgets),
    ]
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![("ledger::the_host", the_host)]
}

/// A device's own line, in a ledger that adds up.
pub fn own(device: &Device) -> LedgerEntry {
    let ledger = device.adapter_ledger();
    let mut own = ledger.devices.iter().filter(|entry| entry.is_self);
    let entry = own.next().expect("an open device is in its ledger").clone();
    assert!(own.next().is_none());
    // The sums are those of one moment.
    let reserved: u64 = ledger.devices.iter().map(|entry| entry.reserved).sum();
    let promised: u64 = ledger
        .devices
        .iter()
        .filter(|entry| entry.promised)
        .filter_map(|entry| entry.budget)
        .fold(0, u64::saturating_add);
    assert_eq!((ledger.reserved, ledger.promised), (reserved, promised));
    assert!(ledger.devices.is_sorted_by_key(|entry| entry.number));
    entry
}

/// Filling one virtual device never touches the other, and the ledger has both to the byte.
fn two_budgets(context: &Context) -> Result<()> {
    let limits = [2 << 20, 5 << 20];
    let open = |limit: u64| context.builder().memory_limit(limit).build();
    let devices = [open(limits[0])?, open(limits[1])?];
    let [a, b] = &devices;
    assert_ne!(
        a.to_string(),
        b.to_string(),
        "names tell virtual devices apart"
    );
    for (device, limit) in devices.iter().zip(limits) {
        let entry = own(device);
        assert_eq!(
            (entry.budget, entry.promised, entry.reserved),
            (Some(limit), true, 0)
        );
        assert_eq!(device.memory().limit, Some(limit));
    }
    assert_ne!(own(a).number, own(b).number);
    let kept = Tensor::from_slice(b, &[1u32, 2, 3], 3)?;
    let before = b.memory();
    let mut all = Vec::new();
    let error = loop {
        match Tensor::ones(a, 50_000, DType::F32) {
            Ok(tensor) => all.push(tensor),
            Err(error) => break error,
        }
        assert_eq!(own(a).reserved, a.memory().reserved);
    };
    let Error::OutOfMemory(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (error.device, error.limit),
        (a.to_string(), Some(limits[0]))
    );
    assert!(a.memory().allocated > limits[0] - 256 * 1024);
    assert_eq!(b.memory(), before, "the neighbour feels nothing");
    assert_eq!(own(b).reserved, before.reserved);
    let rest = Tensor::ones(b, 1_000_000, DType::F32)?;
    for device in &devices {
        assert_eq!(own(device).reserved, device.memory().reserved);
    }
    same(&kept, &[1u32, 2, 3])?;
    all.clear();
    drop(rest);
    for device in &devices {
        device.trim()?;
        assert_eq!(own(device).reserved, device.memory().reserved);
    }
    assert_eq!(own(a).reserved, 0);
    Ok(())
}

fn come_and_go(context: &Context) -> Result<()> {
    let watch = context.open();
    let budget = 3 << 20;
    let limit = |mark: u64| budget + mark * 256;
    // Budgets that no other test has stand for their devices.
    let present = |mark: u64| {
        let ledger = watch.adapter_ledger();
        let is_it = |entry: &&LedgerEntry| entry.budget == Some(limit(mark));
        ledger
            .devices
            .iter()
            .find(is_it)
            .map(|entry| entry.reserved)
    };
    let open = |mark: u64| context.builder().memory_limit(limit(mark)).build();
    let (first, second) = (open(1)?, open(2)?);
    assert_eq!((present(1), present(2)), (Some(0), Some(0)));
    let tensor = Tensor::ones(&first, 1000, DType::F32)?;
    drop(first);
    // A tensor keeps its device.
    assert_eq!(present(1), Some(tensor.device().memory().reserved));
    drop(tensor);
    assert_eq!((present(1), present(2)), (None, Some(0)));
    drop(second);
    assert_eq!(present(2), None);
    // One that does not open leaves nothing.
    let failed = context
        .builder()
        .select("nothing")
        .memory_limit(limit(3))
        .build();
    assert!(failed.is_err() && present(3).is_none());
    let text = watch.adapter_ledger().to_string();
    assert!(
        text.contains(&watch.info().name) && text.contains("(this)"),
        "{text}"
    );
    Ok(())
}

/// Hardware GPUs divide their memory; elsewhere budgets are bounds, and any sum is allowed.
fn promises(context: &Context) -> Result<()> {
    let device = context.open();
    let ledger = device.adapter_ledger();
    assert_eq!(ledger.memory_total, device.info().memory_total);
    let divided = ledger
        .memory_total
        .filter(|_| device.info().kind().is_gpu());
    let Some(total) = divided else {
        let huge = context.builder().memory_limit(u64::MAX).build()?;
        assert_eq!(own(&huge).budget, Some(u64::MAX));
        assert_eq!(own(&device).budget, None);
        assert!(
            huge.adapter_ledger().promised == u64::MAX,
            "sums do not wrap"
        );
        return Ok(());
    };
    assert!(own(&device).budget <= Some(total / 10 * 9));
    let Err(Error::OutOfMemory(error)) = context.builder().memory_limit(total + 1).build() else {
        panic!("more than there is");
    };
    assert_eq!((error.asked, error.limit), (total + 1, Some(total)));
    assert!(error.to_string().contains("memory_limit"), "{error}");
    Ok(())
}

/// The budget of an open device: lowered, raised, taken away.
fn budgets_change(context: &Context) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let device = &context.builder().growth(Growth::Budget).build()?;
    let make = || Tensor::ones(device, 512 << 10, DType::F32);
    let refused = |limit: u64| match make() {
        Err(Error::OutOfMemory(error)) => {
            assert_eq!((error.asked, error.limit), (2 * MIB, Some(limit)))
        }
        other => panic!("{other:?} with a limit of {limit}"),
    };
    let (a, b) = (make()?, make()?);
    device.set_memory_limit(5 * MIB)?;
    assert_eq!(
        (own(device).budget, own(device).promised),
        (Some(5 * MIB), true)
    );
    assert_eq!(device.memory().limit, Some(5 * MIB));
    refused(5 * MIB);
    device.set_memory_limit(6 * MIB)?;
    let c = make()?;
    refused(6 * MIB);
    // Not below what regions with tensors in them have: nothing changes.
    let before = device.memory();
    let error = device.set_memory_limit(MIB).expect_err("more is in use");
    let Error::OutOfMemory(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!((error.asked, error.limit), (MIB, Some(6 * MIB)));
    assert!(error.to_string().contains("freeing tensors"), "{error}");
    assert_eq!(
        (own(device).budget, device.memory()),
        (Some(6 * MIB), before)
    );
    for tensor in [&a, &b, &c] {
        same(tensor, &[1.0f32; 512 << 10])?;
    }
    let number = own(device).number;
    drop((a, b, c));
    // What is idle and beyond the budget goes.
    assert!(device.memory().reserved >= 2 * MIB);
    device.set_memory_limit(MIB)?;
    assert_eq!((device.memory().reserved, own(device).reserved), (0, 0));
    refused(MIB);
    device.set_memory_limit(0)?;
    let refused = make().expect_err("a budget of nothing").to_string();
    assert!(
        refused.contains("no tensor takes less than 256 bytes"),
        "{refused}"
    );
    device.set_memory_limit(8 * MIB)?;
    assert_eq!(own(device).number, number);
    if let Some(total) = device
        .info()
        .memory_total
        .filter(|_| device.info().kind().is_gpu())
    {
        let error = device
            .set_memory_limit(total + 1)
            .expect_err("more than there is");
        assert!(error.to_string().contains("the other devices"), "{error}");
        assert_eq!(device.memory().limit, Some(8 * MIB));
    }
    make()?;
    device.set_memory_limit(None)?;
    let (budget, promised) = (own(device).budget, own(device).promised);
    assert_eq!((budget, promised), (device.memory().limit, false));
    match device.info().memory_total {
        Some(total) if device.info().kind().is_gpu() => assert!(budget.unwrap() < total),
        _ => assert_eq!(budget, None),
    }
    let many: Vec<Tensor> = (0..6).map(|_| make()).collect::<Result<_>>()?;
    same(&many[5], &[1.0f32; 512 << 10])
}

/// Where the device spills, tensors go to the host for a lower budget: those that were used least recently, and only where that helps.
fn spilled_budgets(context: &Context) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let numbers = |first: u32| (first..first + (256 << 10)).collect::<Vec<u32>>();
    for (growth, most) in [
        (Growth::Budget, None),
        (Growth::Step { bytes: 4 * MIB }, None),
        (Growth::Step { bytes: 4 * MIB }, Some(13 * MIB)),
    ] {
        let builder = context.builder().growth(growth).memory_limit(16 * MIB);
        let device = &builder.when_full(WhenFull::SpillToHost { most }).build()?;
        let make = |first: u32| Tensor::arange(device, first, first + (256 << 10), 1, DType::U32);
        let all: Vec<Tensor> = (0..16).map(make).collect::<Result<_>>()?;
        // Used last.
        all[0].fill(7)?;
        let before = device.memory();
        assert_eq!((before.allocated, before.spilled), (16 * MIB, 0));
        if !context.is_cpu() {
            // Not where pinned ones stay in the way, or the host may not hold it: nothing goes.
            let pinned: Vec<_> = all.iter().skip(9).map(Tensor::pin).collect::<Result<_>>()?;
            let error = device.set_memory_limit(6 * MIB).expect_err("pinned");
            assert!(error.to_string().contains("freeing tensors"), "{error}");
            assert_eq!(device.memory(), before);
            drop(pinned);
            if most.is_some() {
                let refused = device.set_memory_limit(2 * MIB);
                assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
                assert_eq!(device.memory().spilled, 0);
            }
        }
        let lowered = device.set_memory_limit(6 * MIB);
        if context.is_cpu() {
            assert!(matches!(lowered, Err(Error::OutOfMemory(_))), "{lowered:?}");
            continue;
        }
        lowered?;
        let after = device.memory();
        assert!(after.reserved <= 6 * MIB, "{after:?}");
        assert_eq!(after.spilled + after.allocated, 16 * MIB);
        assert!((10..=13).contains(&(after.spilled / MIB)), "{after:?}");
        // What was used last is there still: to use it brings nothing back.
        all[0].fill(8)?;
        assert_eq!(device.memory().spilled, after.spilled);
        same(&all[0], &vec![8u32; 256 << 10])?;
        for (first, tensor) in all.iter().enumerate().skip(1) {
            same(tensor, &numbers(first as u32))?;
        }
        device.set_memory_limit(None)?;
        for (first, tensor) in all.iter().enumerate().skip(1) {
            let sum = tensor.add(tensor)?;
            let twice: Vec<u32> = numbers(first as u32).iter().map(|x| 2 * x).collect();
            same(&sum, &twice)?;
        }
        assert_eq!(device.memory().spilled, 0);
    }
    Ok(())
}

/// Tensors move together where a lower budget needs their regions, unless the device moves none.
fn lowered_budgets(context: &Context) -> Result<()> {
    const MIB: u64 = 1 << 20;
    for when_full in [WhenFull::Relocate, WhenFull::Fail] {
        let builder = context.builder().growth(Growth::Step { bytes: 4 * MIB });
        let device = &builder
            .memory_limit(64 * MIB)
            .when_full(when_full)
            .build()?;
        let make = |first: u32| Tensor::arange(device, first, first + (256 << 10), 1, DType::U32);
        let mut all: Vec<Tensor> = (0..16).map(make).collect::<Result<_>>()?;
        let mut at = 0;
        // One in each region.
        all.retain(|_| {
            at += 1;
            at % 4 == 2
        });
        let before = device.memory();
        assert_eq!((before.allocated, before.reserved), (4 * MIB, 16 * MIB));
        let lowered = device.set_memory_limit(5 * MIB);
        let after = device.memory();
        match when_full {
            WhenFull::Fail => {
                let refused = lowered.expect_err("nothing may move").to_string();
                assert!(refused.contains("moving them together"), "{refused}");
                assert_eq!(after, before);
            }
            _ => {
                lowered?;
                assert_eq!((after.allocated, after.reserved), (4 * MIB, 4 * MIB));
                // Two may gather in a region that goes after them.
                assert!((3..=4).contains(&after.events.relocations), "{after:?}");
                assert_eq!(
                    (after.limit, own(device).budget),
                    (Some(5 * MIB), Some(5 * MIB))
                );
                assert_eq!(own(device).reserved, 4 * MIB);
            }
        }
        for (tensor, first) in all.iter().zip([1, 5, 9, 13]) {
            let numbers: Vec<u32> = (first..first + (256 << 10)).collect();
            same(tensor, &numbers)?;
        }
    }
    // One region that is the budget.
    let builder = context.builder().growth(Growth::Budget);
    let device = &builder.memory_limit(16 * MIB).build()?;
    let tensor = Tensor::arange(device, 0, 256 << 10, 1, DType::U32)?;
    assert_eq!(device.memory().reserved, 16 * MIB);
    device.set_memory_limit(2 * MIB)?;
    assert_eq!(device.memory().reserved, 2 * MIB);
    same(&tensor, &(0..256 << 10).collect::<Vec<u32>>())?;
    // So that nothing is refused that the budget has room for.
    let device = &context.builder().memory_limit(1_000_000).build()?;
    let make = |bytes: usize| Tensor::full(device, bytes / 4, 3, DType::U32);
    let (first, second) = (make(400_000)?, make(400_000)?);
    device.set_memory_limit(900_000)?;
    drop(second);
    let third = make(450_000)?;
    same(&first, &[3u32; 100_000])?;
    same(&third, &[3u32; 112_500])
}

/// The shared CPU device and virtual ones beside it.
fn the_host() -> Result<()> {
    let own_cpu = Device::builder()
        .select("cpu")
        .memory_limit(1 << 20)
        .build()?;
    let shared = own(&Device::cpu());
    assert_eq!(
        (shared.number, shared.budget, shared.promised),
        (1, None, false)
    );
    assert_eq!(Device::cpu().to_string(), Device::cpu().info().to_string());
    assert!(own_cpu.to_string().starts_with("cpu#"), "{own_cpu}");
    assert_eq!(own_cpu.info().kind(), DeviceKind::Cpu);
    assert_eq!(own(&own_cpu).budget, Some(1 << 20));
    if cfg!(target_os = "linux") {
        let ledger = own_cpu.adapter_ledger();
        assert!(ledger.memory_free <= ledger.memory_total && ledger.memory_free.is_some());
    }
    Ok(())
}
