//! Many threads on one device, many devices at once.

use std::sync::Barrier;
use std::thread;

use orlop::memory::WhenFull;
use orlop::{DType, Device, Kernel, Result, Shape, Tensor};

use crate::adapters::{self, Context, Variant};
use crate::memory::settle;
use crate::rng::{Rng, seed};
use crate::watchdog;
use crate::{OnceTest, Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "threads::eight_on_one_device",
            Scope::Device,
            eight_on_one_device,
        ),
        Test::new(
            "threads::one_tensor_for_all",
            Scope::Device,
            one_tensor_for_all,
        ),
        Test::new("threads::one_op_at_a_time", Scope::Gpu, one_op_at_a_time),
        Test::new(
            "threads::here_and_elsewhere",
            Scope::Gpu,
            here_and_elsewhere,
        ),
        Test::new("threads::shares", Scope::Gpu, shares),
        Test::new(
            "threads::two_devices_on_one_adapter",
            Scope::Device,
            two_devices,
        ),
        Test::new("threads::devices_come_and_go", Scope::Device, come_and_go),
        Test::new("threads::each_other", Scope::Device, each_other),
        Test::new(
            "threads::inside_a_thread_pool",
            Scope::Device,
            inside_a_thread_pool,
        ),
    ]
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![("threads::every_adapter_at_once", every_adapter)]
}

/// A tensor that one thread changes on the device and another one on the CPU, for want of a kernel, has both changes.
fn here_and_elsewhere(context: &Context) -> Result<()> {
    let rounds = context.times(300);
    for when_full in [WhenFull::Relocate, WhenFull::SpillToHost { most: None }] {
        let device = context.builder().when_full(when_full).build()?;
        let count = |of: &Tensor, elsewhere: &(dyn Fn() -> Result<()> + Sync)| -> Result<()> {
            thread::scope(|scope| {
                let there = scope.spawn(|| (0..rounds).try_for_each(|_| elsewhere()));
                let upload = Tensor::ones(&device, of.shape(), of.dtype())?;
                for round in 0..rounds {
                    match round % 2 {
                        0 => of.add_assign(1)?,
                        _ => of.add_assign(&upload)?,
                    }
                }
                there.join().expect("no panic")
            })?;
            let found = of.cast(DType::F32)?.to_vec::<f32>()?;
            assert_eq!(found, vec![2.0 * rounds as f32; of.elements()]);
            Ok(())
        };
        if device.capabilities().f64 {
            let of = Tensor::zeros(&device, [1000], DType::F64)?;
            let one = Tensor::ones(&device, [1000], DType::F64)?;
            count(&of, &|| {
                of.fused_assign(|e, x| x + e.input(&one).exp().log().round())
            })?;
            assert!(
                device
                    .placement_log()
                    .events
                    .iter()
                    .any(|event| event.op == "fused_assign")
            );
        }
        // On GL its twin runs.
        let source = "@group(0) @binding(0) var<storage, read_write> counts: array<u32>;\n\
            @compute @workgroup_size(64) fn count(@builtin(global_invocation_id) id: vec3<u32>) {\n\
            if id.x < 1000 { counts[id.x] += 1; } }";
        let kernel = Kernel::wgsl("count", source)?
            .shape("counts", |_: &[&Shape]| Ok([1000].into()))
            .twin(|call| {
                let of = call.output::<u32>("counts")?;
                of.iter_mut().for_each(|of| *of += 1);
                Ok(())
            })?;
        // A view that does not begin where kernels can bind is copied, changed and written back.
        let wide = Tensor::zeros(&device, [1001], DType::U32)?;
        for of in [
            Tensor::zeros(&device, [1000], DType::U32)?,
            wide.slice(1..)?,
        ] {
            count(&of, &|| {
                kernel.launch().invocations([1000, 1, 1]).run_into(&of)
            })?;
        }
    }
    Ok(())
}

/// Threads that fit one by one, where others' tensors go to the host, are refused nothing: nor while those are dropped.
fn shares(context: &Context) -> Result<()> {
    let builder = context.builder().memory_limit(1 << 20);
    let device = builder
        .when_full(WhenFull::SpillToHost { most: None })
        .build()?;
    thread::scope(|scope| {
        let work = || -> Result<()> {
            (0..context.times(3000)).try_for_each(|_| {
                // Nine tenths of the budget.
                Tensor::empty(&device, [235_929], DType::U32).map(drop)
            })
        };
        let others: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        others
            .into_iter()
            .try_for_each(|other| other.join().expect("no panic"))
    })?;
    assert_eq!(device.memory().allocated, 0);
    Ok(())
}

/// What one thread reads the other writes, and the other way round: one op goes after the other.
fn each_other(context: &Context) -> Result<()> {
    let device = context.open();
    let one = || Tensor::ones(&device, [1 << 18], DType::U32);
    let (a, b) = (one()?, one()?);
    let work = |into: &Tensor, from: &Tensor| -> Result<()> {
        for _ in 0..context.times(200) {
            into.assign(from)?;
            into.maximum_assign(from)?;
            from.mul(into)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| work(&b, &a));
        work(&a, &b)?;
        other.join().expect("no panic")
    })?;
    assert!(a.to_vec::<u32>()?.iter().all(|&x| x == 1));
    Ok(())
}

/// Creates, adds, multiplies, drops and reads, with answers known beforehand.
fn work(device: &Device, salt: u64, rounds: usize) -> Result<()> {
    let mut rng = Rng::new(seed() ^ salt);
    let mut sum = Tensor::zeros(device, [8, 8], DType::I32)?;
    let mut model = vec![0i32; 64];
    for round in 0..rounds {
        let values: Vec<i32> = (0..64).map(|_| rng.below(19) as i32 - 9).collect();
        let fresh = Tensor::from_slice(device, &values, [8, 8])?;
        match rng.below(4) {
            0 => {
                sum = sum.matmul(&fresh)?;
                model = (0..64)
                    .map(|at| {
                        let (row, column) = (at / 8, at % 8);
                        (0..8).fold(0i32, |sum, k| {
                            sum.wrapping_add(
                                model[row * 8 + k].wrapping_mul(values[k * 8 + column]),
                            )
                        })
                    })
                    .collect();
            }
            1 => {
                let size = rng.between(1, 40_000);
                let other = Tensor::full(device, size, round as i64, DType::I32)?;
                assert_eq!(other.slice(size - 1..)?.item::<i32>()?, round as i32);
            }
            _ => {
                sum = sum.transpose(0, 1)?.add(&fresh)?;
                model = (0..64)
                    .map(|at| model[at % 8 * 8 + at / 8].wrapping_add(values[at]))
                    .collect();
            }
        }
        if rng.one_in(12) {
            assert_eq!(
                sum.to_vec::<i32>()?,
                model,
                "round {round} of worker {salt}"
            );
        }
    }
    assert_eq!(pollster::block_on(sum.to_vec_async::<i32>())?, model);
    Ok(())
}

/// Runs jobs side by side; the first failure is the test's.
fn side_by_side(
    jobs: impl IntoIterator<Item = Box<dyn FnOnce() -> Result<()> + Send>>,
) -> Result<()> {
    let running: Vec<_> = jobs.into_iter().map(thread::spawn).collect();
    // Join all before any failure ends the test.
    let ended: Vec<_> = running.into_iter().map(thread::JoinHandle::join).collect();
    for end in ended {
        end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    Ok(())
}

fn worker(device: &Device, salt: u64, rounds: usize) -> Box<dyn FnOnce() -> Result<()> + Send> {
    let device = device.clone();
    Box::new(move || work(&device, salt, rounds))
}

fn eight_on_one_device(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("threads::eight_on_one_device");
    let device = context.open();
    let rounds = if context.is_slow() { 60 } else { 150 };
    side_by_side((0..8).map(|salt| worker(&device, salt, rounds)))?;
    device.synchronize()?;
    settle(&device, |memory| memory.allocated == 0);
    assert_eq!(device.memory().live_blocks, 0);
    device.trim()?;
    assert_eq!(device.memory().reserved, 0);
    Ok(())
}

/// Readers see a value that was whole at some moment, whoever fills.
fn one_tensor_for_all(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("threads::one_tensor_for_all");
    let device = context.open();
    let tensor = Tensor::zeros(&device, 100_000, DType::I32)?;
    let jobs = (0..6).map(|at| {
        let tensor = tensor.clone();
        let job: Box<dyn FnOnce() -> Result<()> + Send> = if at < 2 {
            Box::new(move || (0..30).try_for_each(|value| tensor.fill(value)))
        } else {
            Box::new(move || {
                for _ in 0..10 {
                    let seen = tensor.copy()?.to_vec::<i32>()?;
                    assert!(seen.iter().all(|&x| x == seen[0]), "half of a fill");
                }
                Ok(())
            })
        };
        job
    });
    side_by_side(jobs)
}

/// Between the launches of one op there is none of another: what several fill at once holds what one of them wrote.
fn one_op_at_a_time(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    // In 25 launches.
    let tensor = &Tensor::zeros(&device, 25 << 10, DType::I32)?;
    for round in 0..150 {
        let together = &Barrier::new(3);
        thread::scope(|scope| {
            let fill = |value: i32| {
                move || {
                    together.wait();
                    tensor.fill(value)
                }
            };
            let fills = [0, 1, 2].map(|at| scope.spawn(fill(3 * round + at)));
            let mut ended = fills.into_iter().map(|fill| fill.join().expect("no panic"));
            ended.try_for_each(|filled| filled)
        })?;
        let seen = tensor.to_vec::<i32>()?;
        assert!(seen.iter().all(|&x| x == seen[0]), "parts of two fills");
    }
    Ok(())
}

fn two_devices(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("threads::two_devices");
    let devices = [context.open(), context.open()];
    let rounds = if context.is_slow() { 40 } else { 120 };
    side_by_side((0..4).map(|salt| worker(&devices[salt as usize % 2], salt, rounds)))?;
    for device in &devices {
        settle(device, |memory| memory.allocated == 0);
    }
    Ok(())
}

/// Devices open and close on several threads while another works; tensors outlive handles.
fn come_and_go(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("threads::devices_come_and_go");
    let steady = context.open();
    let open = {
        let builder = context.builder();
        move || builder.clone().build()
    };
    let jobs = (0..3u64).map(|salt| {
        let open = open.clone();
        let job: Box<dyn FnOnce() -> Result<()> + Send> = Box::new(move || {
            for round in 0..3 {
                let device = open()?;
                let tensor = Tensor::full(&device, 1000, round, DType::I32)?;
                let future = tensor.to_vec_async::<i32>();
                drop(device);
                let sum = tensor.add(&tensor)?;
                drop(tensor);
                assert_eq!(sum.to_vec::<i32>()?, vec![2 * round; 1000], "{salt}");
                drop(sum);
                assert_eq!(pollster::block_on(future)?, vec![round; 1000]);
            }
            Ok(())
        });
        job
    });
    side_by_side(jobs.chain([worker(&steady, 99, 60)]))
}

/// Called from rayon's own threads, which take other tasks up while they wait.
fn inside_a_thread_pool(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("threads::inside_a_thread_pool");
    let device = context.open();
    let tensor = Tensor::ones(&device, 300_000, DType::F32)?;
    let rounds = if context.is_slow() { 3 } else { 60 };
    for _ in 0..rounds {
        rayon::scope(|scope| {
            for at in 0..8 {
                let tensor = &tensor;
                scope.spawn(move |_| {
                    let done = if at % 2 == 0 {
                        tensor.fill(at)
                    } else {
                        tensor.add(tensor).map(drop)
                    };
                    assert!(done.is_ok(), "{done:?}");
                });
            }
        });
    }
    device.synchronize()
}

/// Every adapter at once, GL among them, two devices each.
fn every_adapter() -> Result<()> {
    let _watchdog = watchdog::minute("threads::every_adapter_at_once");
    let devices: Vec<Device> = adapters::found()
        .into_iter()
        .flat_map(|adapter| {
            let context = Context::new(adapter, Variant::Plain);
            [context.open(), context.open()]
        })
        .collect();
    side_by_side(
        (0..)
            .zip(&devices)
            .map(|(salt, device)| worker(device, salt, 40)),
    )?;
    for device in &devices {
        settle(device, |memory| memory.allocated == 0);
    }
    Ok(())
}
