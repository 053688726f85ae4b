//! What happens when a device is full: blocks move, tensors go to the host and come back, and when
//! nothing helps the error says so.

use std::collections::VecDeque;

use orlop::memory::{EventKind, Growth, WhenFull, tagged};
use orlop::{DType, Device, Error, Result, SliceRange, SortOrder, Tensor};

use crate::adapters::Context;
use crate::operand::same;
use crate::rng::Rng;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "full::scattered_holes_merge",
            Scope::Device,
            scattered_holes_merge,
        ),
        Test::new(
            "full::large_blocks_slide",
            Scope::Device,
            large_blocks_slide,
        ),
        Test::new(
            "full::pinned_tensors_stay",
            Scope::Device,
            pinned_tensors_stay,
        ),
        Test::new(
            "full::fail_moves_nothing",
            Scope::Device,
            fail_moves_nothing,
        ),
        Test::new("full::random_moves", Scope::Device, random_moves),
        Test::new(
            "full::spilled_tensors_come_back",
            Scope::Gpu,
            spilled_tensors_come_back,
        ),
        Test::new(
            "full::a_working_set_over_the_budget",
            Scope::Gpu,
            over_the_budget,
        ),
        Test::new(
            "full::host_bytes_are_bounded",
            Scope::Gpu,
            host_bytes_are_bounded,
        ),
        Test::new(
            "full::threads_share_a_small_device",
            Scope::Gpu,
            threads_share,
        ),
        Test::new("full::reads_beside_ops", Scope::Gpu, reads_beside_ops),
        Test::new("full::futures_of_views", Scope::Gpu, futures_of_views),
        Test::new("full::both_sides_are_full", Scope::Gpu, both_sides_are_full),
        Test::new(
            "full::the_error_says_it_all",
            Scope::Device,
            the_error_says_it_all,
        ),
        Test::new("full::small_scratch", Scope::Device, small_scratch),
        Test::new(
            "full::scratch_has_others_go",
            Scope::Gpu,
            scratch_has_others_go,
        ),
        Test::new(
            "full::a_budget_of_what_is_pinned",
            Scope::Gpu,
            a_budget_of_what_is_pinned,
        ),
        Test::new("full::growth_policies", Scope::Device, growth_policies),
        Test::new(
            "full::a_spilled_tensor_is_the_same_one",
            Scope::Gpu,
            a_spilled_tensor_is_the_same_one,
        ),
        Test::new("full::trim_to", Scope::Device, trim_to),
    ]
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// One region of `bytes`, and no more.
pub fn one_region(context: &Context, bytes: u64, when_full: WhenFull) -> Result<Device> {
    context
        .builder()
        .growth(Growth::PreallocateBytes { bytes })
        .memory_limit(bytes)
        .when_full(when_full)
        .build()
}

/// Numbers that tell one tensor from another.
fn numbers(bytes: u64, seed: u64) -> Vec<u32> {
    (0..bytes / 4)
        .map(|at| {
            (at as u32)
                .wrapping_mul(2_654_435_761)
                .wrapping_add(seed as u32)
        })
        .collect()
}

fn tensor(device: &Device, bytes: u64, seed: u64) -> Result<Tensor> {
    let host = numbers(bytes, seed);
    Tensor::from_slice(device, &host, [host.len()])
}

fn check(tensor: &Tensor, bytes: u64, seed: u64) -> Result<()> {
    same(tensor, &numbers(bytes, seed))
}

/// Every second of 16 tensors goes; what is left moves so that one of half the memory has room, while
/// work on them is under way and views look at them.
fn scattered_holes_merge(context: &Context) -> Result<()> {
    let device = one_region(context, 4 * MIB, WhenFull::Relocate)?;
    let mut tensors: Vec<_> = (0..16)
        .map(|seed| tensor(&device, 256 * KIB, seed).map(Some))
        .collect::<Result<_>>()?;
    for tensor in tensors.iter_mut().step_by(2) {
        *tensor = None;
    }
    let view = tensors[3].as_ref().map(|tensor| tensor.slice(100..200));
    let view = view.expect("kept")?;
    let sums: Vec<_> = tensors[1].iter().map(|tensor| tensor.add(tensor)).collect();
    assert_eq!(device.memory().events.relocations, 0);
    let large = tensor(&device, MIB + 768 * KIB, 99)?;
    assert!(device.memory().events.relocations > 0);
    check(&large, MIB + 768 * KIB, 99)?;
    for (seed, tensor) in (0..).zip(&tensors) {
        if let Some(tensor) = tensor {
            check(tensor, 256 * KIB, seed)?;
        }
    }
    same(&view, &numbers(256 * KIB, 3)[100..200])?;
    let doubled: Vec<u32> = numbers(256 * KIB, 1)
        .iter()
        .map(|n| n.wrapping_mul(2))
        .collect();
    for sum in sums {
        same(&sum?, &doubled)?;
    }
    assert_eq!(device.memory().reserved, 4 * MIB);
    Ok(())
}

/// No hole elsewhere takes a block: it slides down over itself, in pieces through the bounce buffer.
fn large_blocks_slide(context: &Context) -> Result<()> {
    let device = one_region(context, 8 * MIB, WhenFull::Relocate)?;
    let (hole, kept) = (
        tensor(&device, 300 * KIB, 1)?,
        tensor(&device, 5 * MIB + 256, 2)?,
    );
    let after = tensor(
        &device,
        8 * MIB - (5 * MIB + 256) - 300 * KIB - 200 * KIB,
        3,
    )?;
    drop(hole);
    let merged = tensor(&device, 500 * KIB, 4)?;
    check(&kept, 5 * MIB + 256, 2)?;
    check(&after, 8 * MIB - (5 * MIB + 256) - 300 * KIB - 200 * KIB, 3)?;
    check(&merged, 500 * KIB, 4)?;
    let memory = device.memory();
    assert_eq!((memory.free, memory.reserved), (0, 8 * MIB));
    assert_eq!(memory.events.relocations, 2);
    drop((kept, after, merged));
    assert_eq!(device.memory().largest_free, 8 * MIB);
    Ok(())
}

/// What is read of a tensor before it is written takes no more than it has, and what leaves needs no room where it was.
fn small_scratch(context: &Context) -> Result<()> {
    let device = one_region(context, MIB, WhenFull::Relocate)?;
    let x = Tensor::full(&device, [200, 1000], 3.0, DType::F32)?;
    x.slice((.., 0..1))?.fill(2.0)?;
    x.div_assign(&x.slice((.., 0..1))?)?;
    same(&x.slice((7, ..3))?, &[1.0f32, 1.5, 1.5])?;
    x.assign(&x.slice(0..1)?)?;
    same(&x.slice((199, ..3))?, &[1.0f32, 1.5, 1.5])?;
    drop(x);
    let x = Tensor::full(&device, 256 << 10, 4.0, DType::F32)?;
    let away = x.slice(SliceRange::from(..).step(4))?.to(&Device::cpu())?;
    same(&away, &vec![4.0f32; 64 << 10])
}

/// What an op needs beside its result, and cannot do without, is made room for as the result is.
fn scratch_has_others_go(context: &Context) -> Result<()> {
    let device = one_region(context, 2 * MIB, WhenFull::SpillToHost { most: None })?;
    let host: Vec<u32> = (0..(256 * KIB / 4) as u32).rev().collect();
    let x = Tensor::from_slice(&device, &host, host.len())?;
    let others: Vec<Tensor> = (0..7)
        .map(|seed| tensor(&device, 256 * KIB, seed))
        .collect::<Result<_>>()?;
    let sorted = x.sort(0, SortOrder::Ascending)?;
    // The result alone takes the place of one.
    assert!(device.memory().events.spills > 1);
    let want: Vec<u32> = host.iter().rev().copied().collect();
    same(&sorted, &want)?;
    for (seed, other) in (0..).zip(&others) {
        check(other, 256 * KIB, seed)?;
    }
    Ok(())
}

/// A budget of just what pinned tensors keep: the others go to the host for it.
fn a_budget_of_what_is_pinned(context: &Context) -> Result<()> {
    let builder = context.builder().growth(Growth::Step { bytes: MIB });
    let device = builder.when_full(SPILL).build()?;
    let (pinned, other) = (tensor(&device, MIB, 1)?, tensor(&device, MIB, 2)?);
    let _stays = pinned.pin()?;
    device.set_memory_limit(MIB)?;
    let memory = device.memory();
    assert_eq!((memory.reserved, memory.spilled), (MIB, MIB));
    check(&pinned, MIB, 1)?;
    check(&other, MIB, 2)
}

fn pinned_tensors_stay(context: &Context) -> Result<()> {
    let device = one_region(context, 2 * MIB, WhenFull::Relocate)?;
    let hole = tensor(&device, 512 * KIB, 1)?;
    let kept = tensor(&device, 512 * KIB, 2)?;
    let hole_after = tensor(&device, 512 * KIB, 3)?;
    let last = tensor(&device, 512 * KIB, 4)?;
    let (pinned, _stays) = (last.pin()?, kept.pin()?);
    drop((hole, hole_after));
    let large = || tensor(&device, MIB, 5);
    assert!(matches!(large(), Err(Error::OutOfMemory(_))));
    assert_eq!(device.memory().events.relocations, 0);
    assert!(pinned.tensor().shares_storage(&last));
    assert_eq!(device.memory().events.retries, 0);
    drop(pinned);
    let large = large()?;
    assert_eq!(device.memory().events.relocations, 1);
    assert_eq!(device.memory().events.retries, 1);
    check(&kept, 512 * KIB, 2)?;
    check(&last, 512 * KIB, 4)?;
    check(&large, MIB, 5)
}

fn fail_moves_nothing(context: &Context) -> Result<()> {
    let device = one_region(context, 2 * MIB, WhenFull::Fail)?;
    let mut tensors: Vec<_> = (0..8)
        .map(|seed| tensor(&device, 256 * KIB, seed))
        .collect::<Result<_>>()?;
    tensors.remove(1);
    tensors.remove(4);
    let full = tensor(&device, 512 * KIB, 9).expect_err("two holes");
    let text = full.to_string();
    for part in [
        "512.0 KiB",
        "the largest hole 256.0 KiB",
        "moving blocks together",
    ] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    assert_eq!(device.memory().events.relocations, 0);
    assert_eq!(device.memory().events.failures, 1);
    Ok(())
}

/// Random sizes within a budget of one region or several: as long as enough is free in one region
/// nothing fails, and every byte is right.
fn random_moves(context: &Context) -> Result<()> {
    let growths = [
        Growth::PreallocateBytes { bytes: 3 * MIB },
        Growth::Proportional,
        Growth::Step { bytes: 512 * KIB },
    ];
    for (round, growth) in (0..).zip(growths) {
        let device = context
            .builder()
            .growth(growth)
            .memory_limit(3 * MIB)
            .build()?;
        let mut rng = Rng::new(round);
        let mut live: Vec<(Tensor, u64, u64)> = Vec::new();
        for turn in 0..300 {
            if rng.below(7) < 4 {
                let bytes =
                    4 * (1 + rng.below(if turn % 3 == 0 { 150_000 } else { 30_000 }) as u64);
                let is_free = 3 * MIB - device.memory().allocated >= bytes.next_multiple_of(256);
                match tensor(&device, bytes, turn) {
                    Ok(tensor) => live.push((tensor, bytes, turn)),
                    Err(Error::OutOfMemory(full)) => {
                        let one = matches!(growth, Growth::PreallocateBytes { .. });
                        assert!(!(one && is_free), "{full:?}");
                    }
                    Err(error) => return Err(error),
                }
            } else if !live.is_empty() {
                let (tensor, bytes, seed) = live.swap_remove(rng.below(live.len() as _));
                if turn % 4 == 0 {
                    check(&tensor, bytes, seed)?;
                }
            }
        }
        for (tensor, bytes, seed) in &live {
            check(tensor, *bytes, *seed)?;
        }
        assert!(device.memory().events.relocations > 0);
        assert!(device.memory().reserved <= 3 * MIB);
        drop(live);
        assert_eq!(device.memory().allocated, 0);
    }
    Ok(())
}

const SPILL: WhenFull = WhenFull::SpillToHost { most: None };

/// Twelve tensors where four have room: all are right whenever they are looked at, changed in place
/// or computed with, and the account says what is where.
fn spilled_tensors_come_back(context: &Context) -> Result<()> {
    let bytes = 512 * KIB;
    let device = one_region(context, 4 * bytes, SPILL)?;
    let tensors: Vec<_> = (0..12)
        .map(|seed| tensor(&device, bytes, seed))
        .collect::<Result<_>>()?;
    let events = device.memory().events;
    assert_eq!((events.spills, events.failures), (8, 0));
    assert_eq!(device.memory().allocated, 4 * bytes);
    assert_eq!(device.memory().spilled, 8 * bytes);
    // Reading brings nothing back.
    for (seed, tensor) in (0..).zip(&tensors) {
        check(tensor, bytes, seed)?;
        same(&tensor.slice(7..9)?, &numbers(bytes, seed)[7..9])?;
    }
    assert_eq!(device.memory().events.refaults, 0);
    // Computing does, and what is used least recently goes.
    for pair in [[0, 11], [5, 6], [10, 1]] {
        let [a, b] = pair;
        let sum = tensors[a].add(&tensors[b])?;
        let expected: Vec<u32> = numbers(bytes, a as u64)
            .iter()
            .zip(numbers(bytes, b as u64))
            .map(|(a, b)| a.wrapping_add(b))
            .collect();
        same(&sum, &expected)?;
    }
    let events = device.memory().events;
    assert!(events.refaults >= 5, "{events:?}");
    // In place, through a view, on the host or not.
    for (seed, tensor) in (0u32..).zip(&tensors) {
        tensor.slice(3..5)?.fill(seed)?;
    }
    for (seed, tensor) in (0..).zip(&tensors) {
        let mut expected = numbers(bytes, seed);
        expected[3..5].fill(seed as u32);
        same(tensor, &expected)?;
    }
    drop(tensors);
    let memory = device.memory();
    assert_eq!((memory.allocated, memory.spilled), (0, 0));
    assert_eq!(memory.events.failures, 0);
    Ok(())
}

/// Going and coming back is no end and no beginning: totals, tags, the history and the error say so.
fn a_spilled_tensor_is_the_same_one(context: &Context) -> Result<()> {
    let bytes = 512 * KIB;
    let device = context
        .builder()
        .growth(Growth::PreallocateBytes { bytes: 2 * MIB })
        .memory_limit(2 * MIB)
        .when_full(SPILL)
        .record_history(1000)
        .build()?;
    let before = device.memory_snapshot();
    let old: Vec<_> = (0..2)
        .map(|seed| tagged("old", || tensor(&device, bytes, seed)))
        .collect::<Result<_>>()?;
    let new: Vec<_> = (2..6)
        .map(|seed| tagged("new", || tensor(&device, bytes, seed)))
        .collect::<Result<_>>()?;
    let held = || {
        let tags = device.memory_by_tag();
        ["old", "new"].map(|name| {
            let mut tags = tags.iter().filter(|tag| tag.tag.to_string() == name);
            let tag = tags.next().expect("it was used");
            (tag.allocated_bytes.current / bytes, tag.spilled / bytes)
        })
    };
    assert_eq!(held(), [(0, 2), (4, 0)]);
    let full = tensor(&device, 3 * MIB, 9).expect_err("over the budget");
    let text = full.to_string();
    let part = "held by new 2.0 MiB, old 0 B and 1.0 MiB on the host";
    assert!(text.contains(part), "{text}");
    let number = device.memory_snapshot().spilled[0].block.number;
    old[0].fill(7)?;
    assert_eq!(held(), [(1, 1), (3, 1)]);
    let memory = device.memory();
    assert_eq!((memory.events.spills, memory.events.refaults), (3, 1));
    let bytes_of = (memory.events.spilled_bytes, memory.events.refaulted_bytes);
    assert_eq!(bytes_of, (3 * bytes, bytes));
    let totals = device.memory_by_tag();
    let totals = ["old", "new"].map(|name| {
        let mut tags = totals.iter().filter(|tag| tag.tag.to_string() == name);
        let blocks = tags.next().expect("it was used").blocks;
        (blocks.allocated, blocks.freed)
    });
    assert_eq!(totals, [(2, 1), (4, 1)]);
    // What is on the host is new, too.
    let diff = device.memory_snapshot().diff(&before);
    let new_blocks = diff.iter().map(|tag| tag.blocks.len()).sum::<usize>();
    assert_eq!(new_blocks, 6, "{diff:?}");
    // Six tensors were made; two of them are on the host.
    let blocks = memory.counts.blocks;
    assert_eq!((blocks.allocated, blocks.freed, blocks.current), (6, 2, 4));
    assert_eq!(memory.counts.allocated_bytes.allocated, 6 * bytes);
    let snapshot = device.memory_snapshot();
    let of_it = snapshot
        .history
        .iter()
        .filter(|event| event.block == number);
    let kinds: Vec<_> = of_it.map(|event| event.kind).collect();
    use EventKind::{Allocated, Freed, Refaulted, Spilled};
    assert_eq!(kinds, [Allocated, Spilled, Freed, Allocated, Refaulted]);
    let made = snapshot
        .history
        .iter()
        .filter(|event| event.kind == Allocated);
    assert_eq!(made.count(), 7, "six, and one for the second time");
    // After a reset a return is what it looks like: more in use.
    device.reset_totals();
    old[1].fill(8)?;
    let blocks = device.memory().counts.blocks;
    assert_eq!((blocks.allocated, blocks.freed, blocks.current), (1, 1, 4));
    drop(new);
    assert_eq!(held(), [(2, 0), (0, 0)]);
    Ok(())
}

/// The error is a diagnosis: what was asked, what there is, who holds it, what would help.
fn the_error_says_it_all(context: &Context) -> Result<()> {
    let device = one_region(context, 2 * MIB, WhenFull::Relocate)?;
    let keys = tagged("decoder.keys", || tensor(&device, 900 * KIB, 1))?;
    let values = tagged("decoder.values", || tensor(&device, 700 * KIB, 2))?;
    let _pinned = keys.pin()?;
    let full = tensor(&device, MIB, 3).expect_err("not enough");
    let text = full.to_string();
    for part in [
        "asked for 1.0 MiB",
        "budget 2.0 MiB",
        "1.6 MiB in use",
        "2.0 MiB reserved",
        "the largest hole 448.0 KiB",
        "448.0 KiB by moving blocks together",
        "held by decoder.keys 900.0 KiB, decoder.values 700.0 KiB",
        "what would help: freeing tensors",
    ] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    // The CPU's memory is the host's.
    let spills = text.contains("700.0 KiB not pinned, which spilling could free");
    assert_eq!(spills, !context.is_cpu(), "{text}");
    // And who asked: the op, or the one that it is made of which did.
    let asked = |refused: Result<Tensor>| match refused {
        Err(Error::OutOfMemory(full)) => (full.op, full.to_string()),
        other => panic!("{other:?}"),
    };
    let (op, text) = asked(keys.slice(..(700 * KIB / 4) as usize)?.add(&values));
    assert_eq!(op, Some("add"), "{text}");
    assert!(
        text.starts_with("add: device ") && !text.contains("scratch"),
        "{text}"
    );
    assert_eq!(
        asked(Tensor::zeros(&device, MIB as usize, DType::I32)).0,
        Some("zeros")
    );
    let elsewhere = Tensor::zeros(&Device::cpu(), MIB as usize, DType::I32)?;
    assert_eq!(asked(elsewhere.to(&device)).0, Some("to"));
    if !context.is_cpu() {
        // The sorted numbers have room, what they pass through has none.
        let (op, text) = asked(
            keys.slice(..(300 * KIB / 4) as usize)?
                .sort(0, SortOrder::Ascending),
        );
        assert_eq!(op, Some("sort"), "{text}");
        assert!(
            text.ends_with("it was for scratch, beside the result"),
            "{text}"
        );
    }
    Ok(())
}

fn over_the_budget(context: &Context) -> Result<()> {
    let device = one_region(context, 2 * MIB, SPILL)?;
    let a = tensor(&device, 900 * KIB, 1)?;
    let b = tensor(&device, 900 * KIB, 2)?;
    let full = a.add(&b).expect_err("three of 900 KiB are more than 2 MiB");
    assert!(matches!(full, Error::OutOfMemory(_)), "{full}");
    let larger = tensor(&device, 3 * MIB, 3).expect_err("more than the budget");
    assert!(matches!(larger, Error::OutOfMemory(_)), "{larger}");
    check(&a, 900 * KIB, 1)?;
    check(&b, 900 * KIB, 2)?;
    let sum = a.slice(..1000)?.add(&b.slice(..1000)?)?;
    let expected: Vec<u32> = numbers(4000, 1)
        .iter()
        .zip(numbers(4000, 2))
        .map(|(a, b)| a.wrapping_add(b))
        .collect();
    same(&sum, &expected)?;
    assert_eq!(device.memory().events.failures, 2);
    Ok(())
}

fn host_bytes_are_bounded(context: &Context) -> Result<()> {
    let most = Some(MIB);
    let device = one_region(context, MIB, WhenFull::SpillToHost { most })?;
    let mut tensors = Vec::new();
    let full = loop {
        match tensor(&device, 256 * KIB, tensors.len() as u64) {
            Ok(tensor) => tensors.push(tensor),
            Err(full) => break full,
        }
    };
    assert_eq!(tensors.len(), 8);
    let text = full.to_string();
    // What is done already is no advice.
    let part = "what would help: freeing tensors, or a higher budget; 1.0 MiB of at most 1.0 MiB are on the host already (`most`";
    assert!(text.contains(part), "{text}");
    for (seed, tensor) in (0..).zip(&tensors) {
        check(tensor, 256 * KIB, seed)?;
    }
    // What is dropped there makes room there.
    tensors.truncate(4);
    tensors.push(tensor(&device, 256 * KIB, 4)?);
    for (seed, tensor) in (0..).zip(&tensors) {
        check(tensor, 256 * KIB, seed)?;
    }
    Ok(())
}

/// Each thread's working set has room, those of all together have not: everybody gets through.
fn threads_share(context: &Context) -> Result<()> {
    let device = one_region(context, 2 * MIB, SPILL)?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6u64)
            .map(|worker| {
                let device = &device;
                scope.spawn(move || -> Result<()> {
                    let mut rng = Rng::new(worker);
                    let mut live: VecDeque<(Tensor, u64, u64)> = VecDeque::new();
                    for turn in 0..40 {
                        let bytes = 4 * (1 + rng.below(60_000) as u64);
                        let seed = worker * 1000 + turn;
                        live.push_back((tensor(device, bytes, seed)?, bytes, seed));
                        let at = rng.below(live.len() as _);
                        let (tensor, bytes, seed) = &live[at];
                        let sum = tensor.add(tensor)?;
                        let doubled: Vec<u32> = numbers(*bytes, *seed)
                            .iter()
                            .map(|n| n.wrapping_mul(2))
                            .collect();
                        same(&sum, &doubled)?;
                        check(tensor, *bytes, *seed)?;
                        if live.len() > 8 {
                            live.pop_front();
                        }
                    }
                    for (tensor, bytes, seed) in &live {
                        check(tensor, *bytes, *seed)?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    let memory = device.memory();
    assert!(memory.events.spills > 0);
    assert_eq!((memory.allocated, memory.events.failures), (0, 0));
    Ok(())
}

fn growth_policies(context: &Context) -> Result<()> {
    let regions = |growth: Growth, sizes: &[u64]| -> Result<(u64, u64)> {
        let device = context.builder().growth(growth).build()?;
        let _kept: Vec<_> = sizes
            .iter()
            .map(|&bytes| Tensor::empty(&device, [bytes as usize / 4], DType::U32))
            .collect::<Result<_>>()?;
        let memory = device.memory();
        Ok((memory.regions, memory.reserved))
    };
    let bytes = 6 * MIB;
    assert_eq!(
        regions(Growth::PreallocateBytes { bytes }, &[])?,
        (1, bytes)
    );
    assert_eq!(
        regions(Growth::PreallocateBytes { bytes }, &[MIB; 6])?,
        (1, bytes)
    );
    let step = Growth::Step { bytes: 2 * MIB };
    assert_eq!(regions(step, &[MIB, MIB, 3 * MIB])?, (2, 6 * MIB));
    let doubling = Growth::Doubling { first: MIB };
    assert_eq!(regions(doubling, &[MIB, MIB, MIB, MIB])?, (3, 7 * MIB));
    // A fraction is one of the budget.
    let device = context
        .builder()
        .memory_limit(8 * MIB)
        .growth(Growth::Preallocate { fraction: 0.5 })
        .build()?;
    assert_eq!(device.memory().reserved, 4 * MIB);
    for fraction in [0.0, -1.0, 1.5, f64::NAN] {
        let refused = context
            .builder()
            .memory_limit(8 * MIB)
            .growth(Growth::Preallocate { fraction })
            .build();
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{fraction}"
        );
    }
    Ok(())
}

fn trim_to(context: &Context) -> Result<()> {
    let device = context
        .builder()
        .growth(Growth::Step { bytes: MIB })
        .build()?;
    let tensors: Vec<_> = (0..5)
        .map(|_| Tensor::empty(&device, [MIB as usize / 4], DType::U32))
        .collect::<Result<_>>()?;
    drop(tensors);
    device.trim_to(3 * MIB)?;
    assert_eq!(device.memory().reserved, 3 * MIB);
    device.trim_to(3 * MIB - 1)?;
    assert_eq!(device.memory().reserved, 2 * MIB);
    device.trim()?;
    assert_eq!(device.memory().reserved, 0);
    Ok(())
}

/// An op that needs all of the memory, beside a thread that reads and writes: it gets its turn.
fn reads_beside_ops(context: &Context) -> Result<()> {
    let bytes = 2 * MIB;
    let device = one_region(context, 3 * bytes, SPILL)?;
    let (a, b) = (tensor(&device, bytes, 1)?, tensor(&device, bytes, 2)?);
    let other = tensor(&device, bytes, 3)?;
    let expected: Vec<u32> = numbers(bytes, 1)
        .iter()
        .zip(numbers(bytes, 2))
        .map(|(a, b)| a.wrapping_add(b))
        .collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<()> {
            let mut round = 0u32;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                other.fill(round)?;
                let seen = other.to_vec::<u32>()?;
                assert!(seen.iter().all(|&number| number == round));
                round += 1;
            }
            Ok(())
        });
        let adds = (0..40).try_for_each(|_| same(&a.add(&b)?, &expected));
        done.store(true, std::sync::atomic::Ordering::Release);
        reader.join().expect("no panic")?;
        adds
    })?;
    assert_eq!(device.memory().events.failures, 0);
    Ok(())
}

/// Each future needs room for what it makes contiguous, and all their tensors wait to be read.
fn futures_of_views(context: &Context) -> Result<()> {
    let device = one_region(context, 4 * MIB, SPILL)?;
    let tensors: Vec<_> = (0..4)
        .map(|seed| tensor(&device, MIB, seed))
        .collect::<Result<_>>()?;
    let futures: Vec<_> = tensors
        .iter()
        .map(|tensor| {
            let square = tensor.reshape([512, 512])?;
            Ok(square.transpose(0, 1)?.to_vec_async::<u32>())
        })
        .collect::<Result<_>>()?;
    for (seed, future) in (0..).zip(futures) {
        let host = numbers(MIB, seed);
        let found = pollster::block_on(future)?;
        for at in [0, 1, 511, 512, 99_999, 512 * 512 - 1] {
            assert_eq!(found[at], host[at % 512 * 512 + at / 512]);
        }
    }
    assert_eq!(device.memory().events.failures, 0);
    Ok(())
}

/// Device and host are both full: a spilled tensor changes places with one on the device.
fn both_sides_are_full(context: &Context) -> Result<()> {
    let most = Some(MIB);
    let device = one_region(context, MIB, WhenFull::SpillToHost { most })?;
    let tensors: Vec<_> = (0..8)
        .map(|seed| tensor(&device, 256 * KIB, seed))
        .collect::<Result<_>>()?;
    assert_eq!(device.memory().spilled, MIB);
    for (value, tensor) in (0u32..).zip(&tensors) {
        tensor.slice(..10)?.fill(value)?;
        drop(tensor.pin()?);
        assert!(device.memory().spilled <= MIB);
    }
    for (value, tensor) in (0u32..).zip(&tensors) {
        let mut expected = numbers(256 * KIB, u64::from(value));
        expected[..10].fill(value);
        same(tensor, &expected)?;
    }
    Ok(())
}
