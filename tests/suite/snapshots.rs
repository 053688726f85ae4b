//! Tags, snapshots, histories and leaks of a device.

use std::sync::atomic::{AtomicBool, Ordering};

use orlop::memory::{EventKind, WhenFull};
use orlop::{DType, Error, LiveTensor, Result, Tensor, tagged};

use crate::adapters::Context;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("snapshots::tags", Scope::Device, tags),
        Test::new("snapshots::regions", Scope::Device, regions),
        Test::new("snapshots::history", Scope::Device, history),
        Test::new("snapshots::leaks", Scope::Device, leaks),
        Test::new(
            "snapshots::no_leak_comes_back",
            Scope::Gpu,
            no_leak_comes_back,
        ),
        Test::new(
            "snapshots::spilled_tensors_live",
            Scope::Gpu,
            spilled_tensors_live,
        ),
        Test::new("snapshots::call_sites", Scope::Device, call_sites),
    ]
}

/// Outputs and scratch of ops count for the tag around them, on each thread by itself.
fn tags(context: &Context) -> Result<()> {
    let device = context.open();
    let held = |name: &str| {
        let tags = device.memory_by_tag();
        let tag = tags.iter().find(|tag| tag.tag.to_string() == name);
        tag.map_or(0, |tag| tag.requested_bytes.current)
    };
    let a = Tensor::ones(&device, [100], DType::F32)?;
    let (sum, product) = tagged("net", || -> Result<_> {
        let sum = (&a + &a)?;
        let product = tagged("layer", || &sum * &a)?;
        let other = std::thread::scope(|scope| {
            let work = scope.spawn(|| Tensor::ones(&device, [5], DType::F32));
            work.join().expect("no panic")
        })?;
        assert_eq!(held("(untagged)"), 420);
        drop(other);
        Ok((sum, product))
    })?;
    assert_eq!((held("net"), held("net/layer")), (400, 400));
    let (tags, memory) = (device.memory_by_tag(), device.memory());
    let sum_of =
        |figure: fn(&orlop::memory::TagStatistics) -> u64| tags.iter().map(figure).sum::<u64>();
    assert_eq!(memory.live_blocks, sum_of(|tag| tag.blocks.current));
    assert_eq!(memory.allocated, sum_of(|tag| tag.allocated_bytes.current));
    let view = product.slice(1..3)?;
    drop((sum, product));
    assert_eq!(
        (held("net"), held("net/layer")),
        (0, 400),
        "a view holds it"
    );
    assert_eq!(view.to_vec::<f32>()?, [2.0; 2]);
    // A strided download takes a copy, on a thread of the device's.
    let columns = Tensor::ones(&device, [30, 40], DType::F32)?.transpose(0, 1)?;
    let read = tagged("read", || columns.to_vec_async::<f32>());
    assert_eq!(pollster::block_on(read)?, [1.0; 1200]);
    let tags = device.memory_by_tag();
    let mut tags = tags.iter().filter(|tag| tag.tag.to_string() == "read");
    let read = tags.next().expect("the copy").requested_bytes.allocated;
    assert_eq!(read, 4800);
    device.reset_totals();
    device.reset_peaks();
    let tags = device.memory_by_tag();
    let all = device.memory().counts;
    assert_eq!((all.blocks.allocated, all.blocks.freed), (0, 0));
    assert_eq!(all.requested_bytes.peak, all.requested_bytes.current);
    assert!(tags.iter().all(|tag| tag.blocks.allocated == 0));
    Ok(())
}

/// Chunks tile their regions, regions share no address, and blocks are what was asked for.
fn regions(context: &Context) -> Result<()> {
    let device = context.open();
    let mut kept = Vec::new();
    for count in 0..40usize {
        let tensor = tagged("even", || {
            Tensor::zeros(&device, [count * 1000], DType::F32)
        })?;
        if count % 2 == 0 {
            kept.push(tensor);
        }
    }
    let snapshot = device.memory_snapshot();
    assert_eq!(snapshot.device, device.to_string());
    let mut end = 0;
    for region in &snapshot.regions {
        assert!(region.address >= end);
        end = region.address + region.bytes;
        let mut offset = 0;
        for chunk in &region.chunks {
            assert_eq!(chunk.offset, offset);
            offset += chunk.bytes;
        }
        assert_eq!(offset, region.bytes);
    }
    let mut requested: Vec<u64> = snapshot
        .blocks()
        .map(|(_, block)| block.requested)
        .collect();
    requested.sort_unstable();
    let expected: Vec<u64> = (1..20).map(|at| at * 8000).collect();
    assert_eq!(requested, expected);
    for (_, block) in snapshot.blocks() {
        assert_eq!(block.tag.to_string(), "even");
        assert_eq!(block.number + block.age, snapshot.allocations);
        assert!(block.call_site.is_none());
    }
    assert_eq!(snapshot.statistics, device.memory());
    assert_eq!(snapshot.tags, device.memory_by_tag());
    assert!(snapshot.history.is_empty() && snapshot.time.is_none());

    let more = tagged("late", || Tensor::zeros(&device, [50], DType::F32))?;
    drop(kept);
    let new = device.memory_snapshot().diff(&snapshot);
    assert_eq!(new.len(), 1, "what went is not new");
    assert_eq!(
        (new[0].tag.to_string().as_str(), new[0].requested),
        ("late", 200)
    );
    assert_eq!(new[0].allocated, [0, 256]);
    drop(more);
    assert_eq!(device.memory_snapshot().diff(&snapshot), []);
    Ok(())
}

/// The latest events, no more than were asked for.
fn history(context: &Context) -> Result<()> {
    let device = context.builder().record_history(3).build()?;
    for count in [10usize, 20, 30] {
        drop(tagged("t", || Tensor::zeros(&device, [count], DType::F32))?);
    }
    let snapshot = device.memory_snapshot();
    let kinds: Vec<EventKind> = snapshot.history.iter().map(|event| event.kind).collect();
    use EventKind::{Allocated, Freed};
    assert_eq!(kinds, [Freed, Allocated, Freed]);
    // A region and three pairs.
    assert_eq!(snapshot.history_dropped, 4);
    let requested: Vec<u64> = snapshot
        .history
        .iter()
        .map(|event| event.requested)
        .collect();
    assert_eq!(requested, [80, 120, 120]);
    assert!(snapshot.history.is_sorted_by_key(|event| event.time));
    assert!(snapshot.time >= snapshot.history.last().map(|event| event.time));
    assert_eq!(snapshot.history[1].tag.to_string(), "t");
    // Ended, and begun anew with the regions that are there.
    device.record_history(0);
    drop(Tensor::zeros(&device, [40], DType::F32)?);
    assert_eq!(device.memory_snapshot().history, []);
    device.record_history(5);
    let tensor = Tensor::zeros(&device, [50], DType::F32)?;
    let snapshot = device.memory_snapshot();
    let kinds: Vec<EventKind> = snapshot.history.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::RegionCreated, Allocated]);
    assert_eq!(
        (snapshot.history[1].requested, snapshot.history_dropped),
        (200, 0)
    );
    drop(tensor);

    let device = context
        .builder()
        .memory_limit(1 << 20)
        .record_history(9)
        .build()?;
    let failed = Tensor::zeros(&device, [1 << 20], DType::F32);
    assert!(matches!(failed, Err(Error::OutOfMemory(_))));
    let snapshot = device.memory_snapshot();
    let last = snapshot.history.last().expect("the failure");
    assert_eq!((last.kind, last.requested), (EventKind::Failed, 4 << 20));
    assert!(snapshot.statistics.events.failures > 0);
    Ok(())
}

/// Tensors that go to the host and come back are the same all the time.
fn no_leak_comes_back(context: &Context) -> Result<()> {
    let device = context
        .builder()
        .memory_limit(8 << 20)
        .when_full(WhenFull::SpillToHost { most: None })
        .build()?;
    let both = [1.0, 2.0].map(|value| Tensor::full(&device, [5 << 18], value, DType::F32));
    let [x, y] = both;
    let (x, y) = (x?, y?);
    let before = device.memory_snapshot();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| -> Result<()> {
            for _ in 0..40 {
                x.fill(1.0)?;
                y.fill(2.0)?;
            }
            done.store(true, Ordering::Release);
            Ok(())
        });
        while !done.load(Ordering::Acquire) && !work.is_finished() {
            device.check_leaks_since(&before)?;
            assert_eq!(device.live_tensors().len(), 2);
            let memory = device.memory();
            assert_eq!(memory.allocated + memory.spilled, 10 << 20);
        }
        work.join().expect("no panic")
    })?;
    assert!(device.memory_snapshot().statistics.events.refaults > 20);
    Ok(())
}

/// What lives is listed, oldest first, until it is gone.
fn leaks(context: &Context) -> Result<()> {
    let device = context.open();
    device.check_leaks()?;
    let a = tagged("weights", || Tensor::ones(&device, [1000], DType::F32))?;
    let before = device.memory_snapshot();
    device.check_leaks_since(&before)?;
    let b = tagged("cache", || &a + &a)?;
    let view = b.slice(3..5)?;
    drop(b);
    let live = device.live_tensors();
    let told: Vec<(&str, u64, u64)> = live
        .iter()
        .map(|tensor| (tensor.tag.as_str(), tensor.requested, tensor.bytes))
        .collect();
    assert_eq!(told, [("weights", 4000, 4096), ("cache", 4000, 4096)]);
    assert!(live[0].age > live[1].age);
    let Err(Error::Leaks(leaks)) = device.check_leaks_since(&before) else {
        panic!("the view lives");
    };
    assert_eq!(leaks.tensors, live[1..]);
    let text = leaks.to_string();
    let said = ["1 tensor lives", "cache", "4000 bytes", "record_call_sites"];
    assert!(said.iter().all(|said| text.contains(said)), "{text}");
    let Err(Error::Leaks(leaks)) = device.check_leaks() else {
        panic!("both live");
    };
    assert_eq!(leaks.tensors.len(), 2);
    drop(view);
    device.check_leaks_since(&before)?;
    drop(a);
    device.check_leaks()?;
    let many: Result<Vec<Tensor>> = (0..50)
        .map(|_| Tensor::ones(&device, [1], DType::F32))
        .collect();
    let text = device.check_leaks().expect_err("fifty live").to_string();
    assert!(
        text.contains("50 tensors live") && text.contains("and 30 more"),
        "{text}"
    );
    drop(many);
    Ok(())
}

/// The function that asked, not those of the library.
#[inline(never)]
fn asks_for_memory(device: &orlop::Device) -> Result<Tensor> {
    let made = Tensor::from_slice(device, &[1.0f32, 2.0], [2])?;
    std::hint::black_box(made.fill(3.0))?;
    Ok(made)
}

#[inline(never)]
fn made_by_ops(x: &Tensor) -> Result<Vec<Tensor>> {
    let square = Tensor::zeros(x.device(), [8, 8], DType::F32)?;
    let product = square.matmul(&square)?;
    let turned = product.transpose(0, 1)?.copy()?;
    let sum = product.sum(0)?;
    Ok(std::hint::black_box(vec![
        x.add(x)?,
        square,
        product,
        turned,
        sum,
    ]))
}

fn call_sites(context: &Context) -> Result<()> {
    let device = context
        .builder()
        .record_call_sites(true)
        .record_history(10)
        .build()?;
    let made = asks_for_memory(&device)?;
    let live = device.live_tensors();
    let site = live[0].call_site.as_deref().unwrap_or_default();
    // Builds with tables of lines alone know no paths of functions.
    assert!(site.contains("asks_for_memory"), "{site}");
    let snapshot = device.memory_snapshot();
    let mut sites = snapshot.history.iter().filter_map(|event| {
        let site = event.call_site.as_ref()?;
        Some((event.kind, site.function.as_str()))
    });
    let (kind, function) = sites.next().expect("the allocation");
    assert_eq!(kind, EventKind::Allocated);
    assert!(site.starts_with(function));
    let text = device.check_leaks().expect_err("it lives").to_string();
    assert!(text.contains("asks_for_memory"), "{text}");
    // Results of ops, too.
    let results = made_by_ops(&made)?;
    for tensor in device.live_tensors().iter().skip(1) {
        let site = tensor.call_site.as_deref().unwrap_or_default();
        assert!(site.contains("made_by_ops"), "{site}");
    }
    assert_eq!(device.live_tensors().len(), 1 + results.len());
    drop((made, results));
    let unknown = context.open();
    let made = asks_for_memory(&unknown)?;
    assert_eq!(unknown.live_tensors()[0].call_site, None);
    drop(made);
    Ok(())
}

/// A tensor that goes to the host and comes back is the same: no leak, the same number, tag and age.
fn spilled_tensors_live(context: &Context) -> Result<()> {
    const MIB: usize = 1 << 20;
    let device = context
        .builder()
        .memory_limit(4 << 20)
        .when_full(WhenFull::SpillToHost { most: None })
        .record_history(1000)
        .record_call_sites(true)
        .build()?;
    let made: Result<Vec<Tensor>> = ["a", "b", "c"]
        .iter()
        .map(|name| tagged(name, || Tensor::full(&device, [MIB / 4], 1, DType::F32)))
        .collect();
    let made = made?;
    let before = device.memory_snapshot();
    let known = |tensor: &LiveTensor| {
        let LiveTensor {
            number,
            requested,
            tag,
            call_site,
            ..
        } = tensor.clone();
        (number, requested, tag, call_site)
    };
    let first: Vec<_> = device.live_tensors().iter().map(known).collect();
    assert_eq!(first.len(), 3);

    let more = Tensor::full(&device, [3 * MIB / 4], 2, DType::F32)?;
    let live = device.live_tensors();
    assert_eq!(live[..3].iter().map(known).collect::<Vec<_>>(), first);
    assert!(live[..3].iter().any(|tensor| tensor.spilled), "{live:?}");
    let snapshot = device.memory_snapshot();
    assert!(!snapshot.spilled.is_empty());
    let spilled: u64 = snapshot.spilled.iter().map(|spilled| spilled.bytes).sum();
    assert_eq!(snapshot.statistics.spilled, spilled);
    assert_eq!(device.memory().spilled, spilled);
    assert_eq!(snapshot.spilled.len() + snapshot.blocks().count(), 4);
    let spills: Vec<u64> = snapshot
        .history
        .iter()
        .filter(|event| event.kind == EventKind::Spilled)
        .map(|event| event.block)
        .collect();
    let aside: Vec<u64> = snapshot
        .spilled
        .iter()
        .map(|spilled| spilled.block.number)
        .collect();
    assert!(
        aside.iter().all(|number| spills.contains(number)),
        "{spills:?}"
    );
    assert_eq!(snapshot.statistics.events.spills, spills.len() as u64);
    let Err(Error::Leaks(leaks)) = device.check_leaks_since(&before) else {
        panic!("one is new");
    };
    assert_eq!(leaks.tensors.len(), 1);
    drop(more);
    for tensor in &made {
        drop((tensor + tensor)?);
    }
    let live = device.live_tensors();
    assert_eq!(live.iter().map(known).collect::<Vec<_>>(), first);
    assert!(device.memory().events.refaults > 0);
    device.check_leaks_since(&before)?;

    let again = Tensor::full(&device, [3 * MIB / 4], 2, DType::F32)?;
    assert!(!device.memory_snapshot().spilled.is_empty());
    drop(made);
    assert!(
        device.memory_snapshot().spilled.is_empty(),
        "dropped while on the host"
    );
    drop(again);
    device.check_leaks()
}
