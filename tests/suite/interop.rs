//! On a wgpu device of the program's own: what is absent falls back, its handlers stay its own,
//! its passes read and write tensors, its buffers become tensors.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use orlop::interop::wgpu;
use orlop::memory::{Growth, WhenFull};
use orlop::{DType, Device, DeviceInfo, Error, Placement, Result, Tensor, f16, fused};

use crate::adapters::Context;
use crate::{OnceTest, Scope, Test, watchdog};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("interop::default_limits", Scope::Gpu, default_limits),
        Test::new(
            "interop::without_wide_integers",
            Scope::Gpu,
            without_wide_integers,
        ),
        Test::new("interop::settings", Scope::Gpu, settings),
        Test::new("interop::refused_devices", Scope::Gpu, refused_devices),
        Test::new("interop::handlers", Scope::Gpu, handlers),
        Test::new("interop::failing_callbacks", Scope::Gpu, failing_callbacks),
        Test::new(
            "interop::panicking_callbacks",
            Scope::Gpu,
            panicking_callbacks,
        ),
        // llvmpipe on GL works inside of the submission.
        Test::new("interop::waits_leave_room", Scope::Gpu, waits_leave_room)
            .when(|context| context.adapter.info.backend != "Gl"),
        Test::new("interop::busy_queues", Scope::Gpu, busy_queues)
            .when(|context| context.adapter.info.backend != "Gl"),
        Test::new("interop::loss", Scope::Gpu, loss),
        Test::new("interop::two_on_one", Scope::Gpu, two_on_one),
        Test::new("interop::bindings", Scope::Gpu, bindings),
        Test::new("interop::bindings_stay", Scope::Gpu, bindings_stay),
        Test::new("interop::refused_bindings", Scope::Device, refused_bindings),
        Test::new("interop::writes", Scope::Gpu, writes),
        Test::new(
            "interop::writes_come_after_reads",
            Scope::Gpu,
            writes_come_after_reads,
        ),
        Test::new("interop::buffers", Scope::Gpu, buffers),
        Test::new("interop::refused_buffers", Scope::Gpu, refused_buffers),
        Test::new("interop::region_usages", Scope::Gpu, region_usages),
        Test::new("interop::own_device", Scope::Gpu, own_device),
    ]
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![("interop::strange_backends", strange_backends)]
}

/// A renderer: its device, and what reached its handlers.
pub struct Owner {
    pub adapter: wgpu::Adapter,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    errors: Arc<Mutex<Vec<String>>>,
    losses: Arc<Mutex<Vec<String>>>,
}

/// An instance for each: on GL two enumerations of one share its context behind two locks.
fn adapter(info: &DeviceInfo) -> wgpu::Adapter {
    let backends = wgpu::Backends::from_comma_list(info.backend);
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle_from_env();
    descriptor.backends = backends;
    let instance = wgpu::Instance::new(descriptor);
    pollster::block_on(instance.enumerate_adapters(backends))
        .into_iter()
        .find(|adapter| {
            let found = adapter.get_info();
            found.name == info.name && format!("{:?}", found.backend) == info.backend
        })
        .expect("the adapter is there for others too")
}

impl Owner {
    /// Default limits, no features.
    pub fn new(context: &Context) -> Owner {
        Self::with(context, &wgpu::DeviceDescriptor::default())
    }

    pub fn with(context: &Context, descriptor: &wgpu::DeviceDescriptor<'_>) -> Owner {
        Self::on(adapter(&context.adapter.info), descriptor)
    }

    /// Another device on the same adapter.
    fn beside(&self) -> Owner {
        Self::on(self.adapter.clone(), &wgpu::DeviceDescriptor::default())
    }

    fn on(adapter: wgpu::Adapter, descriptor: &wgpu::DeviceDescriptor<'_>) -> Owner {
        let (device, queue) =
            pollster::block_on(adapter.request_device(descriptor)).expect("a device");
        let (errors, losses) = (Arc::default(), Arc::default());
        let (seen, lost): (Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>) =
            (Arc::clone(&errors), Arc::clone(&losses));
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            seen.lock().unwrap().push(error.to_string());
        }));
        device.set_device_lost_callback(move |reason, _| {
            lost.lock().unwrap().push(format!("{reason:?}"));
        });
        Owner {
            adapter,
            device,
            queue,
            errors,
            losses,
        }
    }

    pub fn lend(&self) -> Result<Device> {
        Device::from_wgpu(&self.adapter, &self.device, &self.queue)
    }

    fn buffer(&self, words: &[u32], usage: wgpu::BufferUsages) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: words.len() as u64 * 4,
            usage: usage | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.queue.write_buffer(&buffer, 0, &bytes);
        buffer
    }

    /// Runs one workgroup of the program's own on two bindings.
    fn compute(&self, source: &str, first: wgpu::BindingResource, second: wgpu::BindingResource) {
        let module = self
            .device
            .create_shader_module(wgpu::ShaderModuleDescriptor {
                label: None,
                source: wgpu::ShaderSource::Wgsl(source.into()),
            });
        let pipeline = self
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: None,
                module: &module,
                entry_point: None,
                compilation_options: Default::default(),
                cache: None,
            });
        let entry = |binding, resource| wgpu::BindGroupEntry { binding, resource };
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[entry(0, first), entry(1, second)],
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    fn read(&self, buffer: &wgpu::Buffer) -> Vec<u32> {
        let target = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &target, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        target.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .expect("the owner's device works");
        let view = target.slice(..).get_mapped_range().expect("it is mapped");
        view.chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    #[track_caller]
    fn assert_undisturbed(&self) {
        assert!(self.errors.lock().unwrap().is_empty(), "{:?}", self.errors);
        assert!(self.losses.lock().unwrap().is_empty(), "{:?}", self.losses);
        let buffer = self.buffer(&[1, 2, 3], wgpu::BufferUsages::COPY_SRC);
        assert_eq!(self.read(&buffer), [1, 2, 3]);
    }
}

const STORAGE_OUT: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC);

/// The second binding gets three times the first.
const TRIPLE: &str = "
    @group(0) @binding(0) var<storage, read> a: array<f32>;
    @group(0) @binding(1) var<storage, read_write> b: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(local_invocation_id) id: vec3<u32>) {
        for (var i = id.x; i < arrayLength(&a); i += 64u) { b[i] = 3.0 * a[i]; }
    }";

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().copied().map(f32::from_bits).collect()
}

fn default_limits(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let capabilities = device.capabilities();
    assert_eq!(device.info().selector, "lent");
    assert_eq!(device.info().capabilities, *capabilities);
    assert!(!capabilities.f16 && !capabilities.f64 && !capabilities.timestamps);
    assert_eq!(
        (capabilities.subgroup_sizes, capabilities.immediate_bytes),
        (None, 0)
    );
    let limits = wgpu::Limits::default();
    assert_eq!(capabilities.max_buffer_bytes, limits.max_buffer_size);
    assert_eq!(
        capabilities.max_binding_bytes,
        limits.max_storage_buffer_binding_size
    );
    assert_eq!(capabilities.max_invocations, 256);

    let cpu = Device::cpu();
    let inputs = |device: &Device| -> Result<[Tensor; 2]> {
        Ok([
            Tensor::randn(&cpu, [67, 130], DType::F32, 3)?.to(device)?,
            Tensor::randn(&cpu, [130, 91], DType::F32, 4)?.to(device)?,
        ])
    };
    let product = |device: &Device| -> Result<Vec<f32>> {
        let [a, b] = inputs(device)?;
        ((&a.matmul(&b)? * 0.5) + &Tensor::ones(device, [91], DType::F32)?)?.to_vec()
    };
    let (got, expected) = (product(&device)?, product(&cpu)?);
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-3, "{got} and {expected}");
    }
    let sums = |device: &Device| -> Result<Vec<i32>> {
        let a = Tensor::arange(device, 0, 70_000, 1, DType::I32)?.reshape([700, 100])?;
        a.transpose(0, 1)?.add(&a.reshape([100, 700])?)?.to_vec()
    };
    assert_eq!(sums(&device)?, sums(&cpu)?);

    // f16 is computed there, whatever the device has; f64 lives on the CPU.
    let halves = Tensor::full(&device, [5], 1.5, DType::F16)?;
    let sum = halves.add(&halves)?;
    assert_eq!(sum.to_vec::<f16>()?, [f16::from_f32(3.0); 5]);
    assert_eq!(sum.device(), &device);
    assert!(device.placement_log().events.is_empty());
    assert!(Tensor::zeros(&device, [3], DType::F64)?.device().is_cpu());
    assert!(!device.placement_log().events.is_empty());

    let before = device.memory();
    let error = Tensor::zeros(&device, [(256 << 20) / 4 + 1], DType::F32).unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)), "{error}");
    assert_eq!(device.memory().allocated, before.allocated);
    device.synchronize()?;
    owner.assert_undisturbed();
    Ok(())
}

fn settings(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = Device::builder()
        .memory_limit(1 << 20)
        .placement(Placement::Strict)
        .build_on_wgpu(&owner.adapter, &owner.device, &owner.queue)?;
    let kept = Tensor::ones(&device, [1 << 17], DType::F32)?;
    let full = Tensor::zeros(&device, [1 << 18], DType::F32).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory(_)), "{full}");
    let strict = Tensor::zeros(&device, [4], DType::F64).unwrap_err();
    assert!(matches!(strict, Error::Unsupported(_)), "{strict}");
    assert!(kept.to_vec::<f32>()?.iter().all(|&one| one == 1.0));

    let twice =
        Device::builder()
            .select("cpu")
            .build_on_wgpu(&owner.adapter, &owner.device, &owner.queue);
    assert!(matches!(twice, Err(Error::InvalidArgument(_))), "{twice:?}");
    owner.assert_undisturbed();

    // Buffers smaller than a slot of staging usually is.
    let less = Owner::with(
        context,
        &wgpu::DeviceDescriptor {
            required_limits: wgpu::Limits {
                max_buffer_size: 2 << 20,
                max_storage_buffer_binding_size: 2 << 20,
                ..Default::default()
            },
            ..Default::default()
        },
    );
    let words: Vec<u32> = (0..1 << 18).collect();
    let tensor = Tensor::from_slice(&less.lend()?, &words, [words.len()])?;
    assert_eq!(tensor.to_vec::<u32>()?, words);
    less.assert_undisturbed();

    // What the owner asked for is used.
    let more = Owner::with(
        context,
        &wgpu::DeviceDescriptor {
            required_features: owner.adapter.features()
                & (wgpu::Features::IMMEDIATES | wgpu::Features::SHADER_F16),
            required_limits: owner.adapter.limits(),
            ..Default::default()
        },
    );
    let device = more.lend()?;
    let adapter = &context.adapter.info.capabilities;
    let capabilities = device.capabilities();
    assert_eq!(capabilities.immediate_bytes, adapter.immediate_bytes);
    assert_eq!(capabilities.f16, adapter.f16);
    assert_eq!(capabilities.max_binding_bytes, adapter.max_binding_bytes);
    let ones = Tensor::ones(&device, [1000], DType::F32)?;
    assert_eq!(ones.add(&ones)?.to_vec::<f32>()?, [2.0; 1000]);
    more.assert_undisturbed();
    Ok(())
}

/// With f64 but without 64-bit integers: truths of f64, which go by their bits, are the CPU's, and nothing else is.
fn without_wide_integers(context: &Context) -> Result<()> {
    let adapter = adapter(&context.adapter.info);
    let owner = Owner::on(
        adapter.clone(),
        &wgpu::DeviceDescriptor {
            required_features: adapter.features() & wgpu::Features::SHADER_F64,
            ..Default::default()
        },
    );
    let device = owner.lend()?;
    assert!(!device.capabilities().int64);
    if !device.capabilities().f64 {
        return Ok(());
    }
    let values = [0.0, -0.0, 5e-324, -1e-310, f64::NAN, 2.0];
    let x = Tensor::from_slice(&device, &values, [3, 2])?;
    x.add(&x)?;
    x.cast(DType::F32)?.cast(DType::Bool)?;
    assert!(device.placement_log().events.is_empty());
    let want = [false, false, true, true, true, true];
    let fused_truths = fused(|e| (e.input(&x) * 1.0).cast(DType::Bool).logical_not())?;
    assert_eq!(fused_truths.to_vec::<bool>()?, want.map(|is_true| !is_true));
    assert_eq!(x.cast(DType::Bool)?.to_vec::<bool>()?, want);
    assert_eq!(x.any(1)?.to_vec::<bool>()?, [false, true, true]);
    assert_eq!(x.all(1)?.to_vec::<bool>()?, [false, true, true]);
    let log = device.placement_log().events;
    let ops: Vec<&str> = log.iter().map(|event| event.op).collect();
    assert_eq!(ops, ["fused", "cast", "any", "all"]);
    for event in &log {
        assert!(event.reason.contains("64-bit integers"), "{event:?}");
        assert_eq!(event.result, device.to_string(), "back home");
    }
    owner.assert_undisturbed();
    Ok(())
}

fn refused_devices(context: &Context) -> Result<()> {
    let weak = Owner::with(
        context,
        &wgpu::DeviceDescriptor {
            required_limits: wgpu::Limits::downlevel_webgl2_defaults(),
            ..Default::default()
        },
    );
    let error = weak.lend().unwrap_err();
    assert!(matches!(error, Error::DeviceUnavailable(_)), "{error}");
    assert!(error.to_string().contains("storage buffers"), "{error}");
    weak.assert_undisturbed();
    // Without room for a uniform beside them.
    let weak = Owner::with(
        context,
        &wgpu::DeviceDescriptor {
            required_limits: wgpu::Limits {
                max_buffers_and_acceleration_structures_per_shader_stage: 4,
                ..wgpu::Limits::default()
            },
            ..Default::default()
        },
    );
    let error = weak.lend().unwrap_err().to_string();
    assert!(error.contains("4 buffers in all"), "{error}");
    for (binding, lacking) in [
        (0, "max_storage_buffer_binding_size of 0"),
        (1 << 20, "max_compute_invocations_per_workgroup of 0"),
    ] {
        let weak = Owner::with(
            context,
            &wgpu::DeviceDescriptor {
                required_limits: wgpu::Limits {
                    max_storage_buffers_per_shader_stage: 4,
                    max_storage_buffer_binding_size: binding,
                    ..wgpu::Limits::downlevel_webgl2_defaults()
                },
                ..Default::default()
            },
        );
        let error = weak.lend().unwrap_err();
        assert!(matches!(error, Error::DeviceUnavailable(_)), "{error}");
        assert!(error.to_string().contains(lacking), "{error}");
        weak.assert_undisturbed();
    }

    // Less than the defaults of what scalars and windows need.
    type Change = fn(&mut wgpu::Limits);
    let changes: [(Change, &str); 4] = [
        (
            |limits| limits.min_storage_buffer_offset_alignment = 512,
            "min_storage_buffer_offset_alignment of 512 where 256 is",
        ),
        (
            |limits| limits.max_bind_groups = 1,
            "max_bind_groups of 1 where 2 is",
        ),
        (
            |limits| limits.max_uniform_buffers_per_shader_stage = 0,
            "max_uniform_buffers_per_shader_stage of 0 where 1 is",
        ),
        (
            |limits| limits.max_uniform_buffer_binding_size = 64,
            "max_uniform_buffer_binding_size of 64 where 16384 is",
        ),
    ];
    let with = |change: Change| {
        let mut required_limits = wgpu::Limits::default();
        change(&mut required_limits);
        let descriptor = wgpu::DeviceDescriptor {
            required_limits,
            ..Default::default()
        };
        Owner::with(context, &descriptor)
    };
    for (change, lacking) in changes {
        let weak = with(change);
        let error = weak.lend().unwrap_err().to_string();
        assert!(error.contains(lacking), "{error}");
        weak.assert_undisturbed();
    }
    let narrow = with(|limits| limits.max_bindings_per_bind_group = 4);
    let device = narrow.lend()?;
    let of = |value: f32| Tensor::full(&device, [5], value, DType::F32);
    let inputs = [of(1.0)?, of(2.0)?, of(3.0)?, of(4.0)?];
    let sum = fused(|e| {
        let [a, b, c, d] = inputs.each_ref().map(|input| e.input(input));
        a + b + c + d
    })?;
    assert_eq!(sum.to_vec::<f32>()?, [10.0; 5]);
    narrow.assert_undisturbed();

    let one = Owner::new(context);
    let stranger = strange_adapter();
    let error = Device::from_wgpu(&stranger, &one.device, &one.queue).unwrap_err();
    assert!(
        error.to_string().contains("it was requested from"),
        "{error}"
    );
    let other = one.beside();
    let error = Device::from_wgpu(&one.adapter, &one.device, &other.queue).unwrap_err();
    assert!(matches!(error, Error::DeviceUnavailable(_)), "{error}");
    one.assert_undisturbed();
    other.assert_undisturbed();

    one.device.destroy();
    let error = one.lend().unwrap_err();
    assert!(matches!(error, Error::DeviceLost(_)), "{error}");
    Ok(())
}

fn strange_adapter() -> wgpu::Adapter {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let found = pollster::block_on(
        wgpu::Instance::new(descriptor).enumerate_adapters(wgpu::Backends::NOOP),
    );
    found.into_iter().next().expect("built with it")
}

/// A backend that wgpu has for another crate's sake, as the tests have the one without a driver: never listed, and
/// refused by name.
fn strange_backends() -> Result<()> {
    let owner = Owner::on(strange_adapter(), &wgpu::DeviceDescriptor::default());
    let error = owner.lend().unwrap_err();
    assert!(matches!(error, Error::DeviceUnavailable(_)), "{error}");
    assert!(error.to_string().contains("backend Noop"), "{error}");
    assert!(Device::list()?.iter().all(|info| info.backend != "Noop"));
    Ok(())
}

/// The owner hears of its own errors and of none of orlop's; orlop hears of none of the owner's.
fn handlers(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let a = Tensor::ones(&device, [100], DType::F32)?;

    // Of orlop's: a copy that wgpu refuses.
    let stranger = owner.beside();
    let theirs = stranger.buffer(&[7; 100], wgpu::BufferUsages::COPY_SRC);
    let error = Tensor::from_wgpu_buffer(&device, &theirs, 0, [100], DType::U32).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    owner.assert_undisturbed();
    stranger.assert_undisturbed();

    // Of the owner's, on this thread and while orlop works.
    let sum = a.add(&a)?;
    drop(owner.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("the owner's mistake"),
        size: u64::MAX,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    }));
    assert_eq!(owner.errors.lock().unwrap().len(), 1);
    assert_eq!(sum.to_vec::<f32>()?, [2.0; 100]);
    device.synchronize()?;
    // A scope of the owner's around work of orlop's gets the owner's errors too.
    let scope = owner.device.push_error_scope(wgpu::ErrorFilter::Validation);
    assert_eq!(sum.add(&a)?.to_vec::<f32>()?, [3.0; 100]);
    drop(owner.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("the owner's second mistake"),
        size: 4,
        usage: wgpu::BufferUsages::empty(),
        mapped_at_creation: false,
    }));
    assert!(Tensor::from_wgpu_buffer(&device, &theirs, 0, [100], DType::U32).is_err());
    let caught = pollster::block_on(scope.pop()).expect("the owner's error");
    assert!(caught.to_string().contains("second mistake"), "{caught}");
    assert_eq!(owner.errors.lock().unwrap().len(), 1);
    Ok(())
}

/// Callbacks of the owner's that fail in a submission of orlop's: the batch is not taken for refused, nor run again.
fn failing_callbacks(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let a = Tensor::ones(&device, [100], DType::F32)?;
    let fails_in_the_next_submission = |ran: &Arc<Mutex<bool>>| {
        owner
            .device
            .poll(wgpu::PollType::wait_indefinitely())
            .expect("the owner's device works");
        let (ran, failing) = (Arc::clone(ran), owner.device.clone());
        owner.queue.on_submitted_work_done(move || {
            drop(failing.create_buffer(&wgpu::BufferDescriptor {
                label: Some("a callback's mistake"),
                size: 4,
                usage: wgpu::BufferUsages::empty(),
                mapped_at_creation: false,
            }));
            *ran.lock().unwrap() = true;
        });
    };
    for times in 1..4 {
        let ran = Arc::default();
        device.synchronize()?;
        fails_in_the_next_submission(&ran);
        a.add_assign(1)?;
        device.submit()?;
        assert!(*ran.lock().unwrap(), "in the submission");
        assert_eq!(a.to_vec::<f32>()?, [1.0 + times as f32; 100]);
        device.synchronize()?;
    }
    // In one of a program's buffer, too.
    let ran = Arc::default();
    let theirs = owner.buffer(&[7; 100], wgpu::BufferUsages::COPY_SRC);
    owner.queue.submit([]);
    fails_in_the_next_submission(&ran);
    let copied = Tensor::from_wgpu_buffer(&device, &theirs, 0, [100], DType::U32)?;
    assert!(*ran.lock().unwrap(), "in the submission");
    assert_eq!(copied.to_vec::<u32>()?, [7; 100]);
    // What is truly refused still is.
    theirs.destroy();
    let error = Tensor::from_wgpu_buffer(&device, &theirs, 0, [100], DType::U32).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    owner.assert_undisturbed();
    Ok(())
}

/// A callback of the owner's that panics takes those with it that wgpu would run after it, orlop's among them.
fn panicking_callbacks(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("interop::panicking_callbacks");
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let a = Tensor::full(&device, [512, 512], 1.0 / 512.0, DType::F32)?;
    device.synchronize()?;
    let product = a.matmul(&a)?.matmul(&a)?;
    device.submit()?;
    // Mapped after the product, and told of before its end.
    let theirs = owner.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    owner.queue.write_buffer(&theirs, 0, &[0; 4]);
    owner.queue.submit([]);
    theirs.slice(..).map_async(wgpu::MapMode::Read, |_| {
        // Without the hook's output: this one is meant.
        std::panic::resume_unwind(Box::new("a callback that panics"));
    });
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        owner.device.poll(wgpu::PollType::wait_indefinitely())
    }));
    assert!(polled.is_err(), "the callback ran");
    device.synchronize()?;
    let seen = product.to_vec::<f32>()?;
    assert!(seen.iter().all(|x| (x - 1.0 / 512.0).abs() < 1e-6));
    Ok(())
}

/// Work of a fifth of a second on software adapters.
fn long_work(device: &Device) -> Result<Tensor> {
    let a = Tensor::full(device, [1024, 1024], 1.0 / 1024.0, DType::F32)?;
    let mut product = a.clone();
    for _ in 0..6 {
        product = product.matmul(&a)?;
    }
    device.submit()?;
    Ok(product)
}

/// While orlop waits its owner destroys, which takes the lock of wgpu's that presenting takes, and submits.
fn waits_leave_room(context: &Context) -> Result<()> {
    let _alone = watchdog::alone();
    let owner = Owner::new(context);
    let device = owner.lend()?;
    // Kernels are compiled.
    drop(long_work(&device)?);
    device.synchronize()?;
    let mut blocked = Vec::new();
    for _ in 0..5 {
        let product = long_work(&device)?;
        let buffer = owner.buffer(&[0; 4], wgpu::BufferUsages::COPY_SRC);
        owner.queue.submit([]);
        let (begins, begun) = mpsc::channel();
        let (waited, held_up) = std::thread::scope(|scope| {
            let device = &device;
            let waiting = scope.spawn(move || {
                begins.send(()).expect("somebody listens");
                let since = Instant::now();
                device.synchronize().map(|()| since.elapsed())
            });
            begun.recv().expect("it begins");
            std::thread::sleep(Duration::from_millis(10));
            let since = Instant::now();
            buffer.destroy();
            owner.queue.submit([]);
            let held_up = since.elapsed();
            (waiting.join().expect("no panic"), held_up)
        });
        let waited = waited?;
        drop(product);
        // What is done sooner tells nothing.
        if waited < Duration::from_millis(80) {
            continue;
        }
        // Others use the machine, too.
        if held_up < waited / 4 {
            blocked.clear();
            break;
        }
        blocked.push((waited, held_up));
    }
    assert!(
        blocked.is_empty(),
        "waits, and how long each held its owner up: {blocked:?}"
    );
    owner.assert_undisturbed();
    Ok(())
}

/// Opening waits for what is in the queue, with a limit no longer than that.
fn busy_queues(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    drop(long_work(&device)?);
    device.synchronize()?;
    let limit = Duration::from_millis(1);
    let mut product = long_work(&device)?;
    // On a busy machine the work may be done before it is waited for.
    let mut has_timed_out = false;
    for _ in 0..5 {
        let builder = Device::builder().wait_timeout(limit);
        match builder.build_on_wgpu(&owner.adapter, &owner.device, &owner.queue) {
            Err(Error::TimedOut(error)) => {
                assert_eq!(error.limit, limit);
                has_timed_out = true;
                break;
            }
            lent => drop(lent?),
        }
        product = long_work(&device)?;
    }
    assert!(has_timed_out || !context.is_software());
    let beside = owner.lend()?;
    let ones = Tensor::ones(&beside, [10], DType::F32)?;
    assert_eq!(ones.to_vec::<f32>()?, [1.0; 10]);
    assert_eq!(product.slice((0, 0))?.item::<f32>()?, 1.0 / 1024.0);
    owner.assert_undisturbed();
    Ok(())
}

fn loss(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let lent = owner.lend()?;
    let other = context.open();
    let host: Vec<f32> = (0..3_000_000).map(|i| i as f32).collect();
    let a = Tensor::from_slice(&lent, &host, [host.len()])?;
    let small = Tensor::from_slice(&lent, &[1.0f32, 2.0], [2])?;
    let kept = Tensor::from_slice(&other, &host, [host.len()])?;
    let buffer = owner.buffer(&[1, 2, 3, 4], wgpu::BufferUsages::COPY_SRC);
    let pending = [a.to_vec_async::<f32>(), small.to_vec_async()];
    let sum = small.add(&small)?;
    owner.device.destroy();
    // wgpu now destroys every buffer of the device, orlop's in mid-flight included.
    let _ = owner.device.poll(wgpu::PollType::wait_indefinitely());
    for future in pending {
        // The copies may have been done before.
        match pollster::block_on(future) {
            Ok(data) => assert!(data == host || data == [1.0, 2.0]),
            Err(error) => assert!(matches!(error, Error::DeviceLost(_)), "{error}"),
        }
    }
    let calls: [(&str, Option<Error>); 16] = [
        ("to_vec", a.to_vec::<f32>().err()),
        ("pending", sum.to_vec::<f32>().err()),
        ("add", a.add(&a).err()),
        (
            "to_vec_async",
            pollster::block_on(small.to_vec_async::<f32>()).err(),
        ),
        (
            "from_slice",
            Tensor::from_slice(&lent, &host, [host.len()]).err(),
        ),
        ("small", Tensor::from_slice(&lent, &[1.0f32], [1]).err()),
        ("zeros", Tensor::zeros(&lent, [1 << 22], DType::F32).err()),
        ("fill", a.fill(1.0).err()),
        ("synchronize", lent.synchronize().err()),
        ("submit", lent.submit().err()),
        ("trim", lent.trim().err()),
        ("to", a.to(&other).err()),
        ("read_into", small.read_into(&mut [0.0f32; 2]).err()),
        ("wgpu_binding", a.wgpu_binding().err()),
        (
            "from_wgpu_buffer",
            Tensor::from_wgpu_buffer(&lent, &buffer, 0, [4], DType::U32).err(),
        ),
        ("from_wgpu", owner.lend().err()),
    ];
    for (call, error) in calls {
        assert!(
            matches!(error, Some(Error::DeviceLost(_))),
            "{call} gave {error:?}"
        );
    }
    // The owner's own handler is told by wgpu, and of nothing else.
    let _ = owner.device.poll(wgpu::PollType::wait_indefinitely());
    assert_eq!(*owner.losses.lock().unwrap(), ["Destroyed"]);
    drop((a, small, sum, lent));
    assert!(
        owner.errors.lock().unwrap().is_empty(),
        "{:?}",
        owner.errors
    );
    assert_eq!(kept.slice(7..8)?.item::<f32>()?, 7.0);
    Ok(())
}

fn two_on_one(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let (one, other) = (owner.lend()?, owner.lend()?);
    assert_ne!(one, other);
    let threads: Vec<_> = [(one, 1.0f32), (other, 2.0)]
        .into_iter()
        .map(|(device, value)| {
            std::thread::spawn(move || -> Result<Device> {
                let mut sum = Tensor::zeros(&device, [5000], DType::F32)?;
                let one = Tensor::full(&device, [5000], value, DType::F32)?;
                for _ in 0..300 {
                    sum = sum.add(&one)?;
                }
                assert_eq!(sum.to_vec::<f32>()?, [300.0 * value; 5000]);
                drop((sum, one));
                assert_eq!(device.memory().allocated, 0);
                Ok(device)
            })
        })
        .collect();
    // The owner's thread works and waits beside them.
    for _ in 0..20 {
        owner.assert_undisturbed();
    }
    let mut devices = Vec::new();
    for thread in threads {
        devices.push(thread.join().expect("no panic")?);
    }
    let [one, other] = [&devices[0], &devices[1]];
    let a = Tensor::from_slice(one, &[1.0f32, 2.0], [2])?;
    assert_eq!(
        a.to(other)?.add(&a.to(other)?)?.to_vec::<f32>()?,
        [2.0, 4.0]
    );
    let bound = a.wgpu_binding()?;
    drop((a, devices));
    owner.assert_undisturbed();
    drop(bound);
    owner.assert_undisturbed();
    Ok(())
}

fn bindings(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let host: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let a = Tensor::from_slice(&device, &host, [1000])?;
    let sum = a.add(&a)?;
    let out = owner.buffer(&[0; 1000], STORAGE_OUT);
    let bound = sum.wgpu_binding()?;
    assert_eq!(bound.size(), 4000);
    assert!(bound.offset() + bound.size() <= bound.buffer().size());
    // Later work does not come before what is submitted now.
    sum.fill(-1.0)?;
    owner.compute(TRIPLE, bound.as_binding_resource(), out.as_entire_binding());
    let tripled: Vec<f32> = host.iter().map(|x| 6.0 * x).collect();
    assert_eq!(floats(&owner.read(&out)), tripled);
    device.submit()?;
    owner.compute(TRIPLE, bound.as_binding_resource(), out.as_entire_binding());
    assert_eq!(floats(&owner.read(&out)), [-3.0; 1000]);

    // A view that starts where the device can bind.
    let view = a.slice(128..136)?;
    let bound_view = view.wgpu_binding()?;
    let out = owner.buffer(&[0; 8], STORAGE_OUT);
    owner.compute(
        TRIPLE,
        bound_view.as_binding_resource(),
        out.as_entire_binding(),
    );
    assert_eq!(
        floats(&owner.read(&out)),
        [384., 387., 390., 393., 396., 399., 402., 405.]
    );

    // The guard keeps the memory, from orlop's reuse too.
    let allocated = device.memory().allocated;
    drop(sum);
    assert_eq!(device.memory().allocated, allocated);
    let others: Vec<Tensor> = (0..20)
        .map(|_| Tensor::zeros(&device, [1000], DType::F32))
        .collect::<Result<_>>()?;
    device.submit()?;
    let out = owner.buffer(&[0; 1000], STORAGE_OUT);
    owner.compute(TRIPLE, bound.as_binding_resource(), out.as_entire_binding());
    assert_eq!(floats(&owner.read(&out)), [-3.0; 1000]);
    drop((bound, others, bound_view, view, a));
    assert_eq!(device.memory().allocated, 0);
    owner.assert_undisturbed();
    Ok(())
}

/// What is bound stays where it is, though there would be room if it moved.
fn bindings_stay(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let bytes = 2 << 20;
    let device = Device::builder()
        .memory_limit(bytes)
        .growth(Growth::PreallocateBytes { bytes })
        .when_full(WhenFull::Relocate)
        .build_on_wgpu(&owner.adapter, &owner.device, &owner.queue)?;
    let quarter = |value| Tensor::full(&device, [1 << 17], value, DType::F32);
    let (hole, kept, after, last) = (quarter(1.0)?, quarter(2.0)?, quarter(3.0)?, quarter(4.0)?);
    let bound = [kept.wgpu_binding()?, last.wgpu_binding()?];
    drop((hole, after));
    let half = || Tensor::zeros(&device, [1 << 18], DType::F32);
    let full = half();
    assert!(matches!(full, Err(Error::OutOfMemory(_))), "{full:?}");
    assert_eq!(kept.wgpu_binding()?.offset(), bound[0].offset());
    drop(bound);
    half()?;
    assert!(device.memory().events.relocations > 0);
    assert_eq!(kept.to_vec::<f32>()?, [2.0; 1 << 17]);
    owner.assert_undisturbed();
    Ok(())
}

fn refused_bindings(context: &Context) -> Result<()> {
    let device = context.device();
    let refused = |tensor: &Tensor, word: &str| {
        let error = tensor.wgpu_binding().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    let a = Tensor::zeros(device, [8, 6], DType::F32)?;
    if context.is_cpu() {
        refused(&a, "CPU");
        return Ok(());
    }
    refused(&a.transpose(0, 1)?, "contiguous()");
    refused(&a.slice(..0)?, "without elements");
    refused(&a.slice(1..2)?, "copy()");
    let copy = a.slice(1..2)?.copy()?;
    assert_eq!(copy.wgpu_binding()?.size(), 24);
    let odd = Tensor::zeros(device, [3], DType::F16)?;
    assert_eq!(odd.wgpu_binding()?.size(), 8);
    Ok(())
}

/// What the program writes through a binding orlop reads, in the queue's order.
fn writes(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let a = Tensor::zeros(&device, [64], DType::F32)?;
    let bound = a.wgpu_binding()?;
    let source: Vec<u32> = (0..64).map(|i| (i as f32).to_bits()).collect();
    let source = owner.buffer(&source, wgpu::BufferUsages::STORAGE);
    owner.compute(
        TRIPLE,
        source.as_entire_binding(),
        bound.as_binding_resource(),
    );
    let sum = a.add(&a)?;
    let expected: Vec<f32> = (0..64).map(|i| 6.0 * i as f32).collect();
    assert_eq!(sum.to_vec::<f32>()?, expected);
    // And the other way round: the work before the write reads what was there.
    let before = a.add(&a)?;
    let bound = a.wgpu_binding()?;
    let zeros = owner.buffer(&[0; 64], wgpu::BufferUsages::STORAGE);
    owner.compute(
        TRIPLE,
        zeros.as_entire_binding(),
        bound.as_binding_resource(),
    );
    assert_eq!(before.to_vec::<f32>()?, expected);
    assert_eq!(a.to_vec::<f32>()?, [0.0; 64]);
    owner.assert_undisturbed();
    Ok(())
}

/// A binding comes after the reads that were ordered before it: they see nothing of what is written through it.
fn writes_come_after_reads(context: &Context) -> Result<()> {
    // More than a download records at first.
    const COUNT: usize = 5_000_000;
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let words: Vec<u32> = (0..COUNT as u32).collect();
    let a = Tensor::from_slice(&device, &words, COUNT)?;
    let reads = [a.to_vec_async::<u32>(), a.to_vec_async()];
    let bound = a.wgpu_binding()?;
    // What is read last.
    let end = bound.offset() + bound.size() - 1024;
    owner.queue.write_buffer(bound.buffer(), end, &[0xff; 1024]);
    owner.queue.submit([]);
    for read in reads {
        assert!(pollster::block_on(read)? == words, "of what came later");
    }
    let (kept, end) = (COUNT - 256, a.to_vec::<u32>()?);
    assert!(end[..kept] == words[..kept] && end[kept..] == [u32::MAX; 256]);
    owner.assert_undisturbed();
    Ok(())
}

fn buffers(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let words: Vec<u32> = (0..5000).collect();
    let buffer = owner.buffer(&words, wgpu::BufferUsages::COPY_SRC);
    let all = Tensor::from_wgpu_buffer(&device, &buffer, 0, [50, 100], DType::U32)?;
    let tail = Tensor::from_wgpu_buffer(&device, &buffer, 4 * 4990, [10], DType::U32)?;
    let halves = Tensor::from_wgpu_buffer(&device, &buffer, 4, [3], DType::F16)?;
    // A copy: what the owner does later changes nothing.
    owner.queue.write_buffer(&buffer, 0, &[0xff; 20_000]);
    owner.queue.submit([]);
    drop(buffer);
    assert_eq!(all.to_vec::<u32>()?, words);
    assert_eq!(tail.to_vec::<u32>()?, words[4990..]);
    assert_eq!(halves.to_vec::<f16>()?.map_bits(), [1, 0, 2]);
    let sum = all.add(&all)?.transpose(0, 1)?.slice((1..2, ..))?;
    assert_eq!(sum.to_vec::<u32>()?[..3], [2, 202, 402]);
    // Into memory that work in the open batch still reads.
    let old = Tensor::full(&device, [1000], 5, DType::U32)?;
    let twice = old.add(&old)?;
    drop(old);
    let again = owner.buffer(&words, wgpu::BufferUsages::COPY_SRC);
    let new = Tensor::from_wgpu_buffer(&device, &again, 0, [1000], DType::U32)?;
    assert_eq!(twice.to_vec::<u32>()?, [10; 1000]);
    assert_eq!(new.to_vec::<u32>()?, words[..1000]);
    let none = Tensor::from_wgpu_buffer(&device, &again, 0, [0, 3], DType::U32)?;
    assert_eq!(none.elements(), 0);
    // Any byte but 0 is true, and files say so by a 1.
    let bools = owner.buffer(&[0x0402_0100, 0x0080_00ff], wgpu::BufferUsages::COPY_SRC);
    let bools = Tensor::from_wgpu_buffer(&device, &bools, 0, [8], DType::Bool)?;
    let is_true = [false, true, true, true, true, false, true, false];
    assert_eq!(bools.to_vec::<bool>()?, is_true);
    #[cfg(feature = "npy")]
    {
        let mut file = Vec::new();
        bools.to_npy(&mut file)?;
        assert!(file.ends_with(&is_true.map(u8::from)));
    }
    owner.assert_undisturbed();
    Ok(())
}

trait Bits {
    fn map_bits(self) -> Vec<u16>;
}

impl Bits for Vec<f16> {
    fn map_bits(self) -> Vec<u16> {
        self.into_iter().map(f16::to_bits).collect()
    }
}

fn refused_buffers(context: &Context) -> Result<()> {
    let owner = Owner::new(context);
    let device = owner.lend()?;
    let buffer = owner.buffer(&[1; 100], wgpu::BufferUsages::COPY_SRC);
    let kept = Tensor::ones(&device, [300], DType::F32)?;
    // In the open batch while the bad copies are tried.
    let sum = kept.add(&kept)?;
    let before = device.memory();
    let refused = |device: &Device, buffer: &wgpu::Buffer, offset, count: usize, dtype, word| {
        let made = Tensor::from_wgpu_buffer(device, buffer, offset, [count], dtype);
        let error = made.unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(&device, &buffer, 2, 10, DType::U32, "multiple of 4");
    refused(&device, &buffer, 4, 100, DType::U32, "400 bytes at 4");
    refused(&device, &buffer, u64::MAX - 3, 1, DType::U32, "inside");
    refused(&device, &buffer, 400, 1, DType::F16, "inside");
    refused(&device, &buffer, 0, usize::MAX, DType::U32, "limit");
    refused(&device, &buffer, 0, 10, DType::F64, "f64");
    refused(&Device::cpu(), &buffer, 0, 10, DType::U32, "CPU");
    let closed = owner.buffer(&[1; 10], wgpu::BufferUsages::STORAGE);
    refused(&device, &closed, 0, 10, DType::U32, "COPY_SRC");
    let gone = owner.buffer(&[1; 10], wgpu::BufferUsages::COPY_SRC);
    owner.queue.submit([]);
    gone.destroy();
    refused(&device, &gone, 0, 10, DType::U32, "destroyed");
    let mapped = owner.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 40,
        usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::MAP_WRITE,
        mapped_at_creation: true,
    });
    refused(&device, &mapped, 0, 10, DType::U32, "mapped");
    let strangers = owner
        .beside()
        .buffer(&[1; 10], wgpu::BufferUsages::COPY_SRC);
    refused(&device, &strangers, 0, 10, DType::U32, "doesn't match");

    let after = device.memory();
    assert_eq!(
        (after.allocated, after.live_blocks),
        (before.allocated, before.live_blocks)
    );
    assert_eq!(sum.to_vec::<f32>()?, [2.0; 300]);
    device.synchronize()?;
    owner.assert_undisturbed();
    Ok(())
}

fn region_usages(context: &Context) -> Result<()> {
    let usages = wgpu::BufferUsages::VERTEX | wgpu::BufferUsages::UNIFORM;
    for device in [context.builder().region_usages(usages).build()?, {
        let owner = Owner::new(context);
        Device::builder().region_usages(usages).build_on_wgpu(
            &owner.adapter,
            &owner.device,
            &owner.queue,
        )?
    }] {
        let a = Tensor::ones(&device, [100], DType::F32)?;
        assert_eq!(a.add(&a)?.to_vec::<f32>()?, [2.0; 100]);
        let bound = a.wgpu_binding()?;
        assert!(
            bound
                .buffer()
                .usage()
                .contains(usages | wgpu::BufferUsages::STORAGE)
        );
        assert_eq!(bound.as_slice().size(), 400);
    }
    let refused = context
        .builder()
        .region_usages(wgpu::BufferUsages::MAP_READ)
        .build();
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    Ok(())
}

/// A device that orlop opened serves a program's passes as well.
fn own_device(context: &Context) -> Result<()> {
    let device = context.open();
    let (raw, queue) = device.wgpu_device().expect("a GPU");
    let a = Tensor::full(&device, [16], 7, DType::U32)?;
    let bound = a.wgpu_binding()?;
    let target = raw.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = raw.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(bound.buffer(), bound.offset(), &target, 0, bound.size());
    queue.submit([encoder.finish()]);
    let back = Tensor::from_wgpu_buffer(&device, &target, 0, [16], DType::U32)?;
    assert_eq!(back.to_vec::<u32>()?, [7; 16]);
    assert!(Device::cpu().wgpu_device().is_none());
    device.synchronize()
}
