//! Which tensors go to the host, and what is read there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use orlop::memory::{WhenFull, tagged};
use orlop::{DType, Device, Error, Result, Tensor, f16};

use crate::adapters::Context;
use crate::full::one_region;
use crate::number::Number;
use crate::operand::same;
use crate::rng::Rng;
use crate::watchdog::alone;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("spill::the_oldest_go", Scope::Gpu, the_oldest_go),
        Test::new(
            "spill::nothing_goes_in_vain",
            Scope::Gpu,
            nothing_goes_in_vain,
        ),
        Test::new("spill::beside_a_pin", Scope::Gpu, beside_a_pin),
        Test::new("spill::views_are_read_there", Scope::Gpu, views_are_read),
        Test::new("spill::odd_views_are_read", Scope::Gpu, odd_views),
        Test::new("spill::views_beside_a_pin", Scope::Gpu, views_beside_a_pin),
        Test::new("spill::errors_name_operands", Scope::Gpu, names_operands),
        Test::new(
            "spill::beside_reads_without_end",
            Scope::Gpu,
            beside_reads_without_end,
        ),
    ]
}

const KIB: u64 = 1 << 10;

const SPILL: WhenFull = WhenFull::SpillToHost { most: None };

/// Which of the tensors that are tagged with their numbers are on the host.
fn on_the_host(device: &Device) -> Vec<usize> {
    let spilled = device.memory_snapshot().spilled;
    let number = |tag: String| tag.parse().expect("a number");
    let tags = spilled.iter().map(|spilled| spilled.block.tag.to_string());
    tags.map(number).collect()
}

/// Small tensors, one after the other, some of them used in between: whatever the order, the ones that are on the host were
/// used before all that are not.
fn the_oldest_go(context: &Context) -> Result<()> {
    let device = one_region(context, 64 * KIB, SPILL)?;
    let mut rng = Rng::new(7);
    let mut tensors = Vec::new();
    // By their last use, the latest at the end.
    let mut order: Vec<usize> = Vec::new();
    for turn in 0..400usize {
        // Of several sizes, so that one takes the place of several.
        let words = 256 << rng.below(3);
        let name = turn.to_string();
        tensors.push(tagged(&name, || {
            Tensor::from_slice(&device, &vec![turn as u32; words], [words])
        })?);
        order.push(turn);
        for _ in 0..rng.below(3) {
            let used = rng.below(tensors.len() as _);
            let first = tensors[used].slice(..1)?;
            match rng.below(3) {
                0 => first.fill(used as u32)?,
                // An operand is used, though nothing writes it,
                1 => drop(first.add(&first)?),
                // and so is what is read; what is on the host is read there.
                _ => {
                    let is_there = !on_the_host(&device).contains(&used);
                    assert_eq!(first.item::<u32>()?, used as u32);
                    if !is_there {
                        continue;
                    }
                }
            }
            order.retain(|&other| other != used);
            order.push(used);
        }
        let gone = on_the_host(&device);
        let last = order.iter().rposition(|turn| gone.contains(turn));
        let earlier = &order[..last.unwrap_or(0)];
        let stayed = earlier.iter().find(|turn| !gone.contains(turn));
        assert_eq!(stayed, None, "turn {turn}: {gone:?} of {order:?}");
    }
    assert!(device.memory().events.spills > 300);
    for (turn, tensor) in tensors.iter().enumerate() {
        same(tensor, &vec![turn as u32; tensor.elements()])?;
    }
    Ok(())
}

/// What the host may hold would not make room: all stays as it is.
fn nothing_goes_in_vain(context: &Context) -> Result<()> {
    let most = Some(256 * KIB);
    let device = one_region(context, 1024 * KIB, WhenFull::SpillToHost { most })?;
    let tensors: Vec<_> = (0..8)
        .map(|_| Tensor::ones(&device, [128 << 8], DType::U32))
        .collect::<Result<_>>()?;
    let before = device.memory();
    let full = Tensor::zeros(&device, [512 << 8], DType::U32).expect_err("too much");
    assert!(matches!(full, Error::OutOfMemory(_)), "{full}");
    let after = device.memory();
    assert_eq!(
        (after.allocated, after.spilled, after.events.spills),
        (before.allocated, before.spilled, before.events.spills)
    );
    assert_eq!(after.events.failures, before.events.failures + 1);
    // Nor for a request that a budget holds, but not in whole quanta.
    let odd = context
        .builder()
        .memory_limit(100_000)
        .when_full(SPILL)
        .build()?;
    let small: Vec<_> = (0..8)
        .map(|_| Tensor::ones(&odd, [1 << 10], DType::U32))
        .collect::<Result<_>>()?;
    Tensor::zeros(&odd, [25_000], DType::U32).expect_err("100,096 bytes");
    assert_eq!(odd.memory().events.spills, 0);
    drop(small);
    // As much as it may hold.
    let fits = Tensor::zeros(&device, [256 << 8], DType::U32)?;
    assert_eq!(device.memory().events.spills, 2);
    drop((tensors, fits));
    assert_eq!(device.memory().allocated, 0);
    Ok(())
}

/// A pin in the middle: what fits beside it gets its room in a few rounds, for what does not nothing goes.
fn beside_a_pin(context: &Context) -> Result<()> {
    let device = one_region(context, 1024 * KIB, SPILL)?;
    let tensors = (0..64u32).map(|at| Tensor::full(&device, [16 << 8], at, DType::U32));
    let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
    let pin = tensors[32].pin()?;
    let before = device.memory();
    let full = Tensor::zeros(&device, [(33 * 16) << 8], DType::U32).expect_err("too much");
    assert!(matches!(full, Error::OutOfMemory(_)), "{full}");
    let after = device.memory();
    assert_eq!(
        (
            after.allocated,
            after.events.spills,
            after.events.relocations
        ),
        (
            before.allocated,
            before.events.spills,
            before.events.relocations
        )
    );
    for beside in [20, 31, 32] {
        let large = Tensor::full(&device, [(beside * 16) << 8], 99, DType::U32)?;
        same(&large.slice(..2)?, &[99u32; 2])?;
    }
    let moved = device.memory().events;
    assert!(moved.relocations < 300, "{moved:?}");
    for (at, tensor) in tensors.iter().enumerate() {
        same(tensor, &[at as u32; 16 << 8])?;
    }
    drop((pin, tensors));
    assert_eq!(device.memory().allocated, 0);
    Ok(())
}

/// Views with gaps, of what is on the host: nothing comes back for them, and they need no device.
fn views_are_read(context: &Context) -> Result<()> {
    let device = one_region(context, 1024 * KIB, SPILL)?;
    let host: Vec<u32> = (0..128 << 10).collect();
    let first = Tensor::from_slice(&device, &host, [256, 512])?;
    let second = Tensor::ones(&device, [192 << 10], DType::U32)?;
    assert_eq!(device.memory().spilled, 512 * KIB);
    let turned: Vec<u32> = (0..512)
        .flat_map(|column| (0..256).map(move |row| row * 512 + column))
        .collect();
    let view = first.transpose(0, 1)?;
    assert_eq!(view.to_vec::<u32>()?, turned);
    assert_eq!(pollster::block_on(view.to_vec_async::<u32>())?, turned);
    assert_eq!(first.slice((1, 7))?.item::<u32>()?, 519);
    assert_eq!(device.memory().events.refaults, 0);
    // Views of little come back, as long as there is a device.
    let look = |first: &Tensor| -> Result<()> {
        let view = first.transpose(0, 1)?;
        assert_eq!(view.to_vec::<u32>()?, turned);
        assert_eq!(
            pollster::block_on(view.slice(3)?.to_vec_async::<u32>())?,
            turned[3 * 256..4 * 256]
        );
        let mut column = vec![0; 256];
        first.slice((.., 2))?.read_into(&mut column)?;
        assert_eq!(column, turned[512..768]);
        assert_eq!(first.slice((1, 7))?.item::<u32>()?, 519);
        view.display().map(drop)
    };
    look(&first)?;
    second.slice(..1)?.fill(7)?;
    assert_eq!(device.memory().spilled, 512 * KIB);
    if let Some((wgpu, _)) = device.wgpu_device() {
        wgpu.destroy();
        look(&first)?;
    }
    Ok(())
}

/// What is on the host is read from its element on, not from the word that it lies in.
fn odd_views(context: &Context) -> Result<()> {
    let device = one_region(context, 1024 * KIB, SPILL)?;
    let halves: Vec<f16> = (0..2000u16).map(|at| f16::from_bits(at + 1)).collect();
    let truths: Vec<bool> = (0..2000).map(|at| at % 3 == 1).collect();
    let first = Tensor::from_slice(&device, &halves, [2000])?;
    let second = Tensor::from_slice(&device, &truths, [2000])?;
    let third = Tensor::ones(&device, [256 << 10], DType::U32)?;
    assert_eq!(device.memory().spilled, 4096 + 2048);
    odd_views_of(&first, &halves)?;
    odd_views_of(&second, &truths)?;
    assert_eq!(device.memory().events.refaults, 0);
    drop(third);
    Ok(())
}

fn odd_views_of<T: Number>(tensor: &Tensor, host: &[T]) -> Result<()> {
    let bits = |values: &[T]| values.iter().map(|value| value.bits()).collect::<Vec<_>>();
    for range in [1..host.len(), 2..7, 3..4] {
        let view = tensor.slice(range.clone())?;
        same(&view, &host[range.clone()])?;
        let later = pollster::block_on(view.to_vec_async::<T>())?;
        assert_eq!(bits(&later), bits(&host[range]));
    }
    Ok(())
}

/// Of what cannot come back, since all else is pinned: views with wide gaps are read all the same.
fn views_beside_a_pin(context: &Context) -> Result<()> {
    let device = one_region(context, 1024 * KIB, SPILL)?;
    let host: Vec<u32> = (0..128 << 10).collect();
    let first = Tensor::from_slice(&device, &host, [256, 512])?;
    let second = Tensor::ones(&device, [192 << 10], DType::U32)?;
    let pin = second.pin()?;
    assert_eq!(device.memory().spilled, 512 * KIB);
    let column: Vec<u32> = (0..256).map(|row| row * 512 + 2).collect();
    let view = first.slice((.., 2))?;
    same(&view, &column)?;
    assert_eq!(pollster::block_on(view.to_vec_async::<u32>())?, column);
    let mut read = vec![0; 256];
    view.read_into(&mut read)?;
    assert_eq!(read, column);
    assert_eq!(device.memory().events.refaults, 0);
    drop(pin);
    Ok(())
}

/// Operands and result do not fit together: the error says whose the memory is.
fn names_operands(context: &Context) -> Result<()> {
    let device = one_region(context, 1024 * KIB, SPILL)?;
    let [a, b] = [1, 2].map(|value| Tensor::full(&device, [100 << 10], value, DType::U32));
    let (a, b) = (a?, b?);
    let full = a.add(&b).expect_err("three of 400 KiB").to_string();
    assert!(full.contains("800.0 KiB of what is in use"), "{full}");
    Ok(())
}

/// Threads read a tensor over and over, of which some read is always on its way: it goes to the host all the same.
fn beside_reads_without_end(context: &Context) -> Result<()> {
    // More than is recorded of a read at once.
    const WORDS: usize = 6 << 20;
    const READERS: usize = 4;
    // Five seconds are what an op waits for reads.
    let _alone = alone();
    let device = one_region(context, 32 << 20, SPILL)?;
    let numbers: Vec<u32> = (0..WORDS as u32).map(|at| at.wrapping_mul(7919)).collect();
    let read = Tensor::from_slice(&device, &numbers, [WORDS])?;
    let (reads, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let reader = || -> Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            assert!(read.to_vec::<u32>()? == numbers);
            reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let spills = |are_reading: &dyn Fn() -> bool| -> Result<u64> {
        for _ in 0..3 {
            let before = reads.load(Ordering::Relaxed);
            while reads.load(Ordering::Relaxed) < before + READERS && are_reading() {
                std::thread::yield_now();
            }
            drop(Tensor::zeros(&device, [WORDS], DType::U32)?);
            // It comes back.
            read.slice(..1)?.fill(0u32)?;
        }
        Ok(device.memory().events.spills)
    };
    let spilled = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        let spilled = spills(&|| readers.iter().all(|reader| !reader.is_finished()));
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("what was read is right")?;
        }
        spilled
    })?;
    assert_eq!(spilled, 3);
    Ok(())
}
