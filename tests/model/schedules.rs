//! The library's locks under many schedules: deadlocks, lost memory, torn reads, lost wakes.
//!
//! It is the library itself that runs: built with `--cfg orlop_model`, `src/sync/` takes its locks,
//! atomics, channels and threads from shuttle, which runs one thread at a time and chooses at each
//! of them who goes on. The device is wgpu's no-op backend, which makes buffers, copies and maps
//! but runs no kernel. `scripts/model.sh` runs this, a second time as if the device were GL.
//!
//! Shuttle and not loom: these schedules are thousands of steps long, too many to try them all. It
//! draws them at random, half of them by the priorities of PCT, which finds what needs few
//! changes of thread with a known probability. A schedule in which no thread can go on fails, and
//! so does one that leaves a thread behind.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::{Arc, Mutex};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner, thread};

use crate::device::Storage;
use crate::memory::{Growth, WhenFull};
use crate::{DType, Device, Error, Tensor};

/// As in the suite.
fn seed() -> u64 {
    let named = std::env::var("ORLOP_TEST_SEED").ok();
    named
        .and_then(|text| text.parse().ok())
        .unwrap_or(20_240_607)
}

/// Runs `body` under `schedules` schedules (ten times as many in a full run).
fn explore(schedules: usize, body: fn()) {
    let full =
        std::env::var("ORLOP_TEST_FULL").is_ok_and(|value| !value.is_empty() && value != "0");
    let half = (schedules * if full { 10 } else { 1 }).div_ceil(2);
    run(RandomScheduler::new_from_seed(seed(), half), body);
    run(PctScheduler::new_from_seed(seed(), 3, half), body);
}

fn run(scheduler: impl Scheduler + 'static, body: fn()) {
    let mut config = Config::new();
    // wgpu's shader compiler is deep.
    config.stack_size = 4 << 20;
    // A thread that spins for ever.
    config.max_steps = MaxSteps::FailAfter(300_000);
    config.failure_persistence = FailurePersistence::None;
    Runner::new(scheduler, config).run(body);
}

fn open() -> Device {
    Device::select("no-op")
        .or_else(|_| Device::select("noop"))
        .expect("WGPU_BACKEND=noop")
}

/// What the pool promises, at this moment.
fn check_pool(device: &Device) {
    let memory = device.memory();
    assert!(memory.allocated <= memory.reserved);
    let Some(gpu) = device.gpu() else { return };
    gpu.look_at_pool(|pool| {
        let mut used = (0, 0);
        let mut reserved = 0;
        for (region, bytes) in pool.regions() {
            let mut end = 0;
            let mut was_free = false;
            for chunk in pool.chunks(region) {
                assert_eq!(chunk.offset, end, "chunks tile their region");
                end += chunk.bytes;
                match chunk.block {
                    Some(block) => {
                        used = (used.0 + chunk.bytes, used.1 + 1);
                        let place = pool.place(block).expect("a block in use has a place");
                        assert_eq!((place.region, place.offset), (region, chunk.offset));
                    }
                    None => assert!(!was_free, "two free neighbours"),
                }
                was_free = chunk.block.is_none();
            }
            assert_eq!(end, bytes);
            reserved += bytes;
        }
        let memory = pool.statistics();
        assert_eq!((memory.allocated, memory.live_blocks), used);
        assert_eq!(memory.reserved, reserved);
    });
}

/// The id of a tensor's block, if it is on a GPU.
fn id(tensor: &Tensor) -> Option<crate::memory::BlockId> {
    match tensor.storage() {
        Storage::Gpu(block) => Some(block.id()),
        _ => None,
    }
}

fn numbers(count: usize, first: i32) -> Vec<i32> {
    (0..count as i32).map(|at| first + at).collect()
}

/// Three threads create, compute, read, hand over, drop and trim.
fn pool_and_stream(open: fn() -> Device) {
    let device = open();
    let waiting: Arc<Mutex<Vec<(Tensor, Vec<i32>)>>> = Arc::default();
    let threads: Vec<_> = (0..3)
        .map(|index| {
            let (device, waiting) = (device.clone(), Arc::clone(&waiting));
            thread::spawn(move || {
                for round in 0..3 {
                    let data = numbers(40 + 100 * index, (index * 1000 + round) as i32);
                    let tensor = Tensor::from_slice(&device, &data, [data.len()]).expect("room");
                    let other = Tensor::zeros(&device, [data.len()], DType::I32).expect("room");
                    let sum = tensor.add(&other).expect("recorded");
                    check_pool(&device);
                    assert_eq!(tensor.to_vec::<i32>().expect("data"), data);
                    let theirs = waiting.lock().expect("no panic").pop();
                    waiting.lock().expect("no panic").push((tensor, data));
                    if round == 1 {
                        device.trim().expect("a device that lives");
                    }
                    if let Some((tensor, data)) = theirs {
                        let old = id(&tensor);
                        assert_eq!(
                            tensor
                                .slice(3..9)
                                .expect("a view")
                                .to_vec::<i32>()
                                .expect("data"),
                            data[3..9]
                        );
                        drop(tensor);
                        let gone = |gpu: &Arc<crate::gpu::Gpu>| {
                            gpu.look_at_pool(|pool| old.and_then(|old| pool.place(old)).is_none())
                        };
                        assert!(device.gpu().is_none_or(gone), "a freed block has no place");
                    }
                    drop(sum);
                    check_pool(&device);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    waiting.lock().expect("no panic").clear();
    check_pool(&device);
    assert_eq!(
        (device.memory().allocated, device.memory().live_blocks),
        (0, 0)
    );
    device.trim().expect("a device that lives");
    assert_eq!(device.memory().reserved, 0);
}

#[test]
fn pool_and_stream_of_a_gpu() {
    explore(300, || pool_and_stream(open));
}

#[test]
fn pool_and_locks_of_the_cpu() {
    explore(600, || {
        pool_and_stream(|| Device::select("cpu").expect("a CPU"))
    });
}

/// A download of more slots than are recorded at once, and writers in place: it sees one of the
/// states that the whole was in, and each thread its own last write.
#[test]
fn readers_see_whole_writes() {
    const COUNT: usize = 40_000;
    explore(100, || {
        let device = open();
        let tensor = Tensor::from_slice(&device, &vec![0i32; COUNT], [COUNT]).expect("room");
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let tensor = tensor.clone();
                thread::spawn(move || {
                    let mut last = 0;
                    for _ in 0..2 {
                        let seen = tensor.to_vec::<i32>().expect("data");
                        assert!(seen.iter().all(|x| *x == seen[0]), "torn");
                        assert!(seen[0] >= last, "back in time");
                        last = seen[0];
                    }
                })
            })
            .collect();
        for value in 1..4 {
            let bytes: Vec<u8> = vec![value; COUNT]
                .into_iter()
                .flat_map(i32::to_ne_bytes)
                .collect();
            tensor.storage().write(&bytes).expect("recorded");
        }
        assert_eq!(tensor.to_vec::<i32>().expect("data"), vec![3; COUNT]);
        for reader in readers {
            reader.join().expect("no panic");
        }
    });
}

/// What a future gives is what was there at its call, with writers in place and other readers
/// about; and whoever waits for whom, all get there.
fn futures_are_ordered(open: fn() -> Device, count: usize) {
    let device = open();
    let tensor = Tensor::from_slice(&device, &vec![0i32; count], [count]).expect("room");
    let others: Vec<_> = (0..2)
        .map(|index| {
            let tensor = tensor.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let seen = match index {
                        0 => tensor.to_vec::<i32>(),
                        _ => shuttle::future::block_on(tensor.to_vec_async::<i32>()),
                    };
                    let seen = seen.expect("data");
                    assert!(seen.iter().all(|x| *x == seen[0]), "torn");
                }
            })
        })
        .collect();
    let mut futures = Vec::new();
    for value in 1..4 {
        futures.push((value - 1, tensor.to_vec_async::<i32>()));
        match tensor.storage() {
            // The no-op device runs no kernel, so it is written from the host.
            Storage::Gpu(_) => {
                let data = vec![value; count];
                let bytes = data.into_iter().flat_map(i32::to_ne_bytes);
                let bytes: Vec<u8> = bytes.collect();
                tensor.storage().write(&bytes).expect("recorded");
            }
            _ => tensor.fill(value).expect("it runs"),
        }
    }
    drop(tensor);
    for (value, future) in futures {
        let seen = shuttle::future::block_on(future).expect("data");
        assert_eq!(seen, vec![value; count]);
    }
    for other in others {
        other.join().expect("no panic");
    }
}

#[test]
fn futures_are_ordered_on_a_gpu() {
    explore(60, || futures_are_ordered(open, 40_000));
}

#[test]
fn futures_are_ordered_on_the_cpu() {
    explore(600, || {
        futures_are_ordered(|| Device::select("cpu").expect("a CPU"), 64);
    });
}

/// Futures complete whoever drops the last handle: their own thread, another, the device's own.
#[test]
fn futures_outlive_the_last_handle() {
    explore(400, || {
        let device = open();
        let data = numbers(500, 7);
        let tensor = Tensor::from_slice(&device, &data, [500]).expect("room");
        let kept = tensor.to_vec_async::<i32>();
        let dropped = tensor.to_vec_async::<i32>();
        let synchronized = device.synchronize_async();
        let elsewhere = thread::spawn(move || drop(dropped));
        let late = {
            let tensor = tensor.clone();
            thread::spawn(move || shuttle::future::block_on(tensor.to_vec_async::<i32>()))
        };
        drop((device, tensor));
        assert_eq!(shuttle::future::block_on(kept).expect("data"), data);
        assert_eq!(late.join().expect("no panic").expect("data"), data);
        elsewhere.join().expect("no panic");
        shuttle::future::block_on(synchronized).expect("all has run");
    });
}

/// The last handle goes in a waker, on the device's own thread.
#[test]
fn the_last_handle_goes_in_a_wake() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Holds(Mutex<Option<Device>>);
    impl Wake for Holds {
        fn wake(self: std::sync::Arc<Self>) {
            drop(self.0.lock().expect("no panic").take());
        }
    }
    explore(300, || {
        let device = open();
        let data = numbers(64, 1);
        let tensor = Tensor::from_slice(&device, &data, [64]).expect("room");
        let mut future = pin!(tensor.to_vec_async::<i32>());
        drop(tensor);
        let waker = Waker::from(std::sync::Arc::new(Holds(Mutex::new(Some(device)))));
        let seen = match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(seen) => seen,
            Poll::Pending => shuttle::future::block_on(future),
        };
        assert_eq!(seen.expect("data"), data);
    });
}

/// Whatever is going on when the device is lost ends, with data or with the error that says so.
#[test]
fn a_loss_ends_every_wait() {
    fn ends(outcome: crate::Result<Vec<i32>>, data: &[i32]) {
        match outcome {
            Ok(seen) => assert_eq!(seen, data),
            Err(Error::DeviceLost(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    explore(300, || {
        let device = open();
        let data = numbers(30_000, 1);
        let tensor = Tensor::from_slice(&device, &data, [data.len()]).expect("room");
        let reader = {
            let (tensor, data) = (tensor.clone(), data.clone());
            thread::spawn(move || ends(tensor.to_vec(), &data))
        };
        let awaits = {
            let (tensor, data) = (tensor.clone(), data.clone());
            thread::spawn(move || ends(shuttle::future::block_on(tensor.to_vec_async()), &data))
        };
        device.gpu().expect("a GPU").destroy();
        let after = tensor.to_vec::<i32>();
        assert!(matches!(after, Err(Error::DeviceLost(_))), "{after:?}");
        reader.join().expect("no panic");
        awaits.join().expect("no panic");
    });
}

/// Two devices share GL's lock; one closes while the other works.
#[test]
fn two_devices_side_by_side() {
    explore(150, || {
        let threads: Vec<_> = (0..2)
            .map(|index| {
                thread::spawn(move || {
                    let device = open();
                    let data = numbers(3000, index);
                    let tensor = Tensor::from_slice(&device, &data, [3000]).expect("room");
                    let future = tensor.to_vec_async::<i32>();
                    drop(device);
                    assert_eq!(tensor.to_vec::<i32>().expect("data"), data);
                    drop(tensor);
                    assert_eq!(shuttle::future::block_on(future).expect("data"), data);
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

/// Three threads whose tensors together are twice what the device has: they create, read now and
/// later, write in place and drop, while blocks move, go to the host and come back.
fn a_full_device(selector: &str, when_full: WhenFull) {
    const COUNT: usize = 5_000;
    let bytes = 7 * 20_224;
    let device = Device::builder()
        .select(selector)
        .growth(Growth::PreallocateBytes { bytes })
        .memory_limit(bytes)
        .when_full(when_full)
        .build()
        .expect("WGPU_BACKEND=noop");
    let threads: Vec<_> = (0..3)
        .map(|index| {
            let device = device.clone();
            thread::spawn(move || {
                let mut live: Vec<(Tensor, Vec<i32>)> = Vec::new();
                for round in 0..5 {
                    let count = COUNT - 1_000 * ((index + round) % 3);
                    let data = numbers(count, (index * 1_000_000 + round * 10_000) as i32);
                    match Tensor::from_slice(&device, &data, [count]) {
                        Ok(tensor) => live.push((tensor, data)),
                        Err(Error::OutOfMemory(_)) if when_full == WhenFull::Relocate => {
                            live.pop();
                        }
                        Err(error) => panic!("{error}"),
                    }
                    let at = round / 2;
                    if let Some((tensor, data)) = live.get_mut(at) {
                        let later = tensor.to_vec_async::<i32>();
                        let before = data.clone();
                        data.fill(round as i32);
                        match tensor.storage() {
                            // The no-op device runs no kernel, so it is written from the host.
                            Storage::Gpu(_) => {
                                let bytes = data.iter().flat_map(|number| number.to_ne_bytes());
                                let bytes: Vec<u8> = bytes.collect();
                                tensor.storage().write(&bytes).expect("recorded");
                            }
                            _ => tensor.fill(round as i32).expect("it runs"),
                        }
                        let seen = tensor.to_vec::<i32>().expect("data");
                        assert!(seen == *data, "torn");
                        let pinned = (round == 2).then(|| tensor.pin().expect("room"));
                        let was = shuttle::future::block_on(later).expect("data");
                        assert!(was == before, "out of order");
                        drop(pinned);
                    }
                    check_pool(&device);
                    if round == 3 && !live.is_empty() {
                        live.remove(0);
                    }
                }
                for (tensor, data) in &live {
                    assert!(tensor.to_vec::<i32>().expect("data") == *data, "lost");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    check_pool(&device);
    let memory = device.memory();
    assert_eq!((memory.allocated, memory.live_blocks), (0, 0));
    assert!(when_full == WhenFull::Relocate || memory.events.spills > 0);
}

#[test]
fn a_full_device_moves() {
    explore(100, || a_full_device("noop", WhenFull::Relocate));
}

#[test]
fn a_full_device_spills() {
    explore(200, || {
        a_full_device("noop", WhenFull::SpillToHost { most: None });
    });
}

#[test]
fn a_full_cpu_moves() {
    explore(200, || a_full_device("cpu", WhenFull::Relocate));
}

/// A reader drops the last handle on its block while the pool looks whether it may move.
#[test]
fn a_reader_goes_while_blocks_move() {
    explore(400, || {
        let bytes = 4 << 10;
        let device = Device::builder()
            .select("cpu")
            .growth(Growth::PreallocateBytes { bytes })
            .memory_limit(bytes)
            .build()
            .expect("a CPU");
        let make = |count: usize| Tensor::from_slice(&device, &numbers(count, 1), [count]);
        let mut tensors: Vec<_> = (0..8).map(|_| make(128).ok()).collect();
        for tensor in tensors.iter_mut().step_by(2) {
            *tensor = None;
        }
        let readers: Vec<_> = tensors
            .into_iter()
            .flatten()
            .take(2)
            .map(|tensor| {
                thread::spawn(move || {
                    assert_eq!(tensor.to_vec::<i32>().expect("data"), numbers(128, 1));
                    drop(tensor);
                })
            })
            .collect();
        // Whether it finds room depends on who reads.
        drop(make(256));
        drop(make(384));
        for reader in readers {
            reader.join().expect("no panic");
        }
        assert_eq!(device.memory().allocated, 0);
    });
}
