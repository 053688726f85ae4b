//! One opened wgpu device: its pool, its stream, its kernels.
//!
//! The order of locks, and which may be held while waiting for the device, is in
//! docs/architecture.md, "Locks". The innermost ones, [`serial`] (GL only), stream and memory, may not.

mod adapters;
mod allocate;
mod batch;
mod bindings;
mod block;
mod deadline;
mod encode;
mod exit;
mod generations;
mod hal;
pub(crate) mod halves;
mod health;
mod lent;
mod limit;
mod pipelines;
pub(crate) mod program_text;
mod progress;
mod regions;
mod relocate;
mod serial;
mod spill;
mod staging;
mod stream;
pub(crate) mod templates;
mod texels;
mod transfer;
mod victims;
mod wait;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use adapters::{Adapter, adapters};
pub(crate) use block::{Elsewhere, GpuBlock, Held};
pub(crate) use encode::{Blocks, Kernels};
pub(crate) use exit::close_ended;
pub(crate) use hal::{AdapterMemory, adapter_memory, features_off};
pub(crate) use halves::Conversions;
pub(crate) use lent::Lent;
pub(crate) use spill::{Access, Pin};

use crate::background::Background;
use crate::capabilities::{Capabilities, CooperativeMatrices};
use crate::error::{DeviceFailure, Error, OutOfMemory, Result};
use crate::faults::FaultHook;
use crate::matmul_table::MatmulChoice;
use crate::memory::{
    BlockId, CallSite, Claim, Full, MemorySnapshot, MemoryStatistics, Mover, OwnedPool, Pool,
    PoolConfig, TagStatistics, WhenFull,
};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use health::Health;
use pipelines::Pipelines;
use progress::Progress;
pub(crate) use regions::RegionUsages;
use regions::Regions;
use relocate::Bounce;
use serial::{Hold, Serial};
use spill::Spill;
use stream::{BatchLimits, Stream};
pub(crate) use transfer::Sink;

/// How a device is opened.
#[derive(Debug)]
pub(crate) struct GpuOptions {
    /// The device's selector and name, for errors.
    pub name: String,
    pub pool: PoolConfig,
    /// What happens when neither a free chunk nor a new region is to be had.
    pub when_full: WhenFull,
    /// The device's seat in its adapter's ledger.
    pub claim: Claim,
    /// naga's runtime checks in kernels.
    pub kernel_checks: bool,
    /// Scalars travel in immediates where the adapter has them.
    pub immediates: bool,
    /// Kernels may use the adapter's cooperative matrices.
    pub cooperative_matrices: bool,
    /// Takes the largest storage binding for smaller than it is.
    pub max_binding_bytes: Option<u64>,
    /// What regions can be used for beside storage and copies.
    pub region_usages: RegionUsages,
    /// After which waits give up.
    pub wait_timeout: Option<Duration>,
    /// Steps that are to fail.
    pub faults: FaultHook,
    /// Kernels that were measured on the adapter.
    pub matmul_choices: Arc<[MatmulChoice]>,
}

/// Driver blocks that hold small buffers, in bytes: small, so that what the driver holds stays
/// close to what the pool reserved. Larger buffers get memory of their own.
const DRIVER_BLOCKS: std::ops::Range<u64> = (1 << 20)..(8 << 20);

/// Bindings of all bind groups that DX12 has room for at a time: of those that are kept (some 2,000), in flight and a program's
/// own. Where there are more it loses the device.
const DESCRIPTORS: u32 = 1 << 18;

pub(crate) struct Gpu {
    name: String,
    pub(crate) capabilities: Capabilities,
    pipelines: Pipelines,
    stream: Mutex<Stream>,
    memory: Mutex<OwnedPool<Regions, GpuBlock>>,
    /// Where blocks may move, what they pass through.
    bounce: Option<Bounce>,
    /// Where tensors may go to the host.
    spill: Option<Spill>,
    /// [`Regions::crowded`].
    crowded: Arc<AtomicBool>,
    /// Counts uses of blocks.
    clock: AtomicU64,
    /// The number of the submission with the latest copy from staging as large as itself.
    last_large: AtomicU64,
    pub(crate) background: Background,
    health: Arc<Health>,
    progress: Arc<Progress>,
    wait_timeout: Option<Duration>,
    device: wgpu::Device,
    queue: wgpu::Queue,
    adapter: wgpu::Adapter,
    serial: Option<&'static Serial>,
    /// Waits are wgpu's own, which hold a lock that presenting and `destroy` need: on a lent device others do. On Metal wgpu 30
    /// takes a wait for a loss where another thread has just seen that the work is done (`pending_command_buffers`).
    waits_in_wgpu: bool,
    /// Set while dropping: after every wgpu object, so that it outlives them.
    dropping: Option<Hold>,
    counted: Option<exit::Counted>,
}

impl Gpu {
    /// Opens a device of its own on the adapter.
    ///
    /// # Errors
    /// `DeviceUnavailable` with the driver's reason.
    pub(crate) fn open(adapter: &Adapter, options: GpuOptions) -> Result<Arc<Self>> {
        let serial = adapter.is_gl().then(Serial::gl);
        let mut wanted = wgpu::Features::IMMEDIATES
            | wgpu::Features::SHADER_F16
            | wgpu::Features::SHADER_F64
            | wgpu::Features::SHADER_INT64
            | wgpu::Features::SUBGROUP;
        let mut experimental_features = wgpu::ExperimentalFeatures::disabled();
        let has_matrices = adapter.capabilities.cooperative_matrices != Default::default();
        if options.cooperative_matrices && has_matrices {
            wanted |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
            experimental_features = hal::experimental_features();
        }
        let mut limits = adapter.adapter.limits();
        // DX12 takes a heap of so many descriptors at once, of some 32 bytes each; others do not ask.
        limits.max_non_sampler_bindings = limits.max_non_sampler_bindings.min(DESCRIPTORS);
        let label = options.name.clone();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some(&label),
            required_features: adapter.adapter.features() & wanted,
            required_limits: limits,
            experimental_features,
            memory_hints: wgpu::MemoryHints::Manual {
                suballocated_device_memory_block_size: DRIVER_BLOCKS,
            },
            ..Default::default()
        };
        // On native the call itself opens it, and its future is ready: the lock is not held across a real wait.
        let opened = {
            let _hold = serial.map(Serial::hold);
            pollster::block_on(adapter.adapter.request_device(&descriptor))
        };
        let (device, queue) = opened.map_err(|error| {
            Error::DeviceUnavailable(Box::new(DeviceFailure {
                device: options.name.clone(),
                reason: format!(
                    "the driver did not open it: {error}; see Device::list() for the others"
                ),
            }))
        })?;
        let health = Health::watch(&options.name, &device);
        Self::on(adapter, device, queue, health, options)
    }

    /// A pool and a stream of our own on an open device.
    ///
    /// # Errors
    /// `InvalidArgument` for usages that the device does not give to buffers, `DeviceUnavailable` where it has no
    /// memory to try them, `DeviceLost`.
    fn on(
        adapter: &Adapter,
        device: wgpu::Device,
        queue: wgpu::Queue,
        health: Arc<Health>,
        options: GpuOptions,
    ) -> Result<Arc<Self>> {
        let serial = adapter.is_gl().then(Serial::gl);
        let mut capabilities = adapter.capabilities.clone();
        if !options.immediates {
            capabilities.immediate_bytes = 0;
        }
        if !options.cooperative_matrices {
            capabilities.cooperative_matrices = CooperativeMatrices::default();
        }
        if let Some(bytes) = options.max_binding_bytes {
            let bytes = adapters::whole_windows(bytes);
            capabilities.max_binding_bytes = capabilities.max_binding_bytes.min(bytes);
        }
        capabilities.matmul_choices = options.matmul_choices;
        let (pool, bounce, device, queue, health) = {
            let _hold = serial.map(Serial::hold);
            // Where something fails they go before the lock does.
            let (device, queue, health) = (device, queue, health);
            let regions = Regions::new(
                device.clone(),
                Arc::clone(&health),
                &options.name,
                options.region_usages,
                options.claim,
                options.faults.clone(),
            )?;
            let bounce = match options.when_full {
                WhenFull::Fail => None,
                WhenFull::Relocate | WhenFull::SpillToHost { .. } => {
                    Some(Bounce::new(&device).map_err(|caught| {
                        Error::DeviceUnavailable(Box::new(DeviceFailure {
                            device: options.name.clone(),
                            reason: format!(
                                "the driver gave no buffer to move tensors through: {}",
                                caught.into_message()
                            ),
                        }))
                    })?)
                }
            };
            let mut pool = Pool::new(regions, options.pool);
            if !pool.source().claim().is_promised() {
                pool.set_share(options.pool.limit);
            }
            (pool, bounce, device, queue, health)
        };
        let crowded = Arc::clone(&pool.source().crowded);
        let limits = BatchLimits {
            dispatches: if serial.is_some() { 16 } else { 128 },
            commands: if serial.is_some() { 256 } else { 2048 },
            copied_bytes: 16 << 20,
            seconds: 0.02,
        };
        let progress = Arc::new(Progress::default());
        // Mesa's, or one like it.
        let settles = cfg!(not(orlop_model))
            && (serial.is_some() || capabilities.kind == crate::capabilities::DeviceKind::Software);
        let mut pipelines = Pipelines::new(
            device.clone(),
            Arc::clone(&health),
            options.kernel_checks,
            capabilities.immediate_bytes,
            serial.is_some(),
        );
        let limit = options.wait_timeout;
        pipelines.conversions =
            halves::conversions(adapter, &device, &queue, &pipelines, &health, limit);
        let waits_in_wgpu = serial.is_none() && !health.is_lent() && adapter.backend != "Metal";
        let gpu = Arc::new(Self {
            pipelines,
            stream: Mutex::new(Stream::new(
                &options.name,
                device.clone(),
                queue.clone(),
                Arc::clone(&health),
                Arc::clone(&progress),
                limits,
                options.faults,
            )),
            memory: Mutex::new(OwnedPool::new(pool)),
            bounce,
            spill: match options.when_full {
                WhenFull::SpillToHost { most } => Some(Spill::new(most)),
                WhenFull::Fail | WhenFull::Relocate => None,
            },
            crowded,
            clock: AtomicU64::new(0),
            last_large: AtomicU64::new(0),
            background: Background::default(),
            capabilities,
            wait_timeout: options.wait_timeout,
            progress,
            health,
            device,
            queue,
            adapter: adapter.adapter.clone(),
            serial,
            waits_in_wgpu,
            name: options.name,
            dropping: None,
            counted: settles.then(|| exit::Counted::new(serial.is_some())),
        });
        if settles {
            exit::watch(&gpu);
        }
        Ok(gpu)
    }

    /// The lock that GL's wgpu calls need; nothing elsewhere.
    fn hold(&self) -> Option<Hold> {
        self.serial.map(Serial::hold)
    }

    /// Counts a use of a block.
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn free(&self, block: BlockId) {
        self.memory.lock().release(block);
    }

    pub(crate) fn memory(&self) -> MemoryStatistics {
        self.memory.lock().statistics()
    }

    pub(crate) fn memory_by_tag(&self) -> Vec<TagStatistics> {
        self.memory.lock().by_tag()
    }

    pub(crate) fn snapshot(&self) -> MemorySnapshot {
        self.memory.lock().snapshot()
    }

    pub(crate) fn record_history(&self, events: usize) {
        self.memory.lock().record_history(events);
    }

    /// Says where a block was asked for.
    pub(crate) fn set_call_site(&self, block: BlockId, site: CallSite) {
        self.memory.lock().set_call_site(block, site);
    }

    pub(crate) fn reset_peaks(&self) {
        self.memory.lock().reset_peaks();
    }

    pub(crate) fn reset_totals(&self) {
        self.memory.lock().reset_totals();
    }

    /// Gives idle regions, until at most `bytes` are reserved, and idle staging back to the adapter.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(crate) fn trim_to(&self, bytes: u64) -> Result<()> {
        let _hold = self.hold();
        let mut stream = self.stream.lock();
        self.giving_back(&mut stream, |pool, _| pool.trim_to(bytes))?;
        stream.staging.trim();
        stream.texels.trim();
        Ok(())
    }

    /// Lets regions go, and those that went before.
    fn giving_back<T>(
        &self,
        stream: &mut Stream,
        give: impl FnOnce(&mut OwnedPool<Regions, GpuBlock>, Option<&mut dyn Mover<wgpu::Buffer>>) -> T,
    ) -> Result<T> {
        // The open batch may use a region that goes; submitting it lets the memory go after it.
        stream.submit()?;
        let (given, moved) = self.moving(stream, give);
        moved.and_then(|()| stream.submit())?;
        let mut pool = self.memory.lock();
        pool.source_mut().let_go();
        stream.forget_returned(&mut pool);
        Ok(given)
    }

    /// The device and the queue themselves.
    pub(crate) fn wgpu(&self) -> (&wgpu::Device, &wgpu::Queue) {
        (&self.device, &self.queue)
    }

    /// Hands the open batch to the queue.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(crate) fn submit(&self) -> Result<()> {
        let _hold = self.hold();
        self.stream.lock().submit()
    }

    /// Loses the device, for tests.
    #[cfg(test)]
    pub(crate) fn destroy(&self) {
        let _hold = self.hold();
        self.device.destroy();
    }

    /// Submissions that have not run yet, for tests.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        let submissions = self.stream.lock().submissions();
        submissions - self.progress.count()
    }

    /// All of its locks: who needs the device waits, whatever for.
    #[cfg(test)]
    pub(crate) fn take_locks(&self) -> impl Sized + '_ {
        (self.hold(), self.stream.lock(), self.memory.lock())
    }

    /// The pool, for schedules that walk its chunks.
    #[cfg(orlop_model)]
    pub(crate) fn look_at_pool<T>(&self, look: impl FnOnce(&Pool<Regions>) -> T) -> T {
        look(&self.memory.lock())
    }

    /// Total and free memory of its adapter now.
    pub(crate) fn adapter_memory(&self) -> AdapterMemory {
        adapter_memory(&self.adapter)
    }

    /// Bytes of the texture that products read operands from.
    pub(crate) fn texel_bytes(&self) -> u64 {
        self.stream.lock().texels.bytes()
    }

    /// Bytes that the driver holds for this device, where wgpu knows: regions, staging, and what
    /// its own rounding adds.
    pub(crate) fn driver_reserved(&self) -> Option<u64> {
        let _hold = self.hold();
        self.device
            .generate_allocator_report()
            .map(|report| report.total_reserved_bytes)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.background.join();
        self.leave_what_hangs();
        self.dropping = self.hold();
    }
}

/// What a full pool says, as an error of a device.
pub(crate) fn out_of_memory(device: &str, full: &Full) -> Error {
    Error::OutOfMemory(Box::new(OutOfMemory {
        op: None,
        device: device.to_owned(),
        asked: full.asked,
        limit: full.statistics.limit,
        allocated: full.statistics.allocated,
        reserved: full.statistics.reserved,
        largest_free: full.statistics.largest_free,
        diagnosis: full.to_string(),
    }))
}
