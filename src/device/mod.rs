//! Devices: finding, selecting and opening them, and their memory.

mod build;
mod find;
mod ledger;
mod log;
mod snapshot;
mod storage;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use build::{DeviceBuilder, Placement};
pub use find::DeviceInfo;
pub use ledger::{AdapterLedger, LedgerEntry};
pub(crate) use log::log_placement;
pub use log::{PlacementEvent, PlacementLog};
pub(crate) use storage::{Storage, StoragePin};

use crate::background::Background;
use crate::capabilities::Capabilities;
use crate::cpu::HostPool;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::{Bytes, MemoryStatistics, PoolConfig, TagStatistics};
use crate::promise::Pending;

/// A cheap handle on one opened adapter, or on the native CPU: one stream of work, one pool of
/// memory, with a budget where one is set or the GPU tells its memory. Clones are the same device; equality is identity, and so is what it is hashed by.
///
/// Opening an adapter twice gives two virtual devices, each with its own pool and budget. The
/// device closes when the last handle and the last tensor on it are gone.
///
/// wgpu 30 remembers each thread that called it for a GPU (a few hundred bytes for its error scopes), as long as the device
/// lives: a program that would begin a thread for each request keeps a pool of them.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    /// Selector and name, with a number where there are several on one adapter.
    name: String,
    info: DeviceInfo,
    backend: Backend,
    placement: Placement,
    /// Allocations remember where they were asked for.
    call_sites: bool,
    standing: ledger::Standing,
    log: log::Log,
}

enum Backend {
    Cpu(Arc<HostPool>),
    Gpu(Arc<Gpu>),
}

impl Device {
    /// Every device that is visible: hardware GPUs (`gpu:0`, ... discrete before integrated before
    /// other, each physical GPU once with its best backend), software adapters (`soft:0`, ...) and
    /// `cpu`. Adapters are looked for once a process.
    ///
    /// The environment variable `ORLOP_VISIBLE_DEVICES` hides what it does not name, here and for
    /// everything that opens a device: selectors, separated by commas, among the devices that are
    /// there. As with `CUDA_VISIBLE_DEVICES` its order is the new order and selectors count anew:
    /// with `gpu:2,gpu:0` the old `gpu:2` is `gpu:0` now. Empty leaves the CPU alone, which is
    /// always there, and last. It is read at each call.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] for a name in `ORLOP_VISIBLE_DEVICES` that no device has;
    /// [`Error::InvalidArgument`] for one device named twice.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        Self::builder().list()
    }

    /// Opens the best visible device: the one that `ORLOP_DEVICE` names, else the first GPU that opens,
    /// else the native CPU ([`Device::cpu`]). Never a software adapter unless `ORLOP_DEVICE` names it.
    ///
    /// # Errors
    /// As [`DeviceBuilder::build`]: so [`Error::OutOfMemory`] comes instead of the CPU where no GPU opens,
    /// one of them for want of memory.
    pub fn best() -> Result<Device> {
        Self::builder().build()
    }

    /// [`Device::best`] without blocking: from the call on another thread opens the device.
    ///
    /// # Errors
    /// As [`Device::best`].
    pub fn best_async() -> Pending<Device> {
        Self::builder().build_async()
    }

    /// Opens the device that a selector names, with default settings; see
    /// [`DeviceBuilder::select`].
    ///
    /// # Errors
    /// As [`DeviceBuilder::build`], whose settings but the selector are the defaults.
    pub fn select(selector: &str) -> Result<Device> {
        Self::builder().select(selector).build()
    }

    /// The process's shared CPU device: where work goes that no other device can do. Always there.
    /// For a CPU device with a budget of its own, use `Device::builder().select("cpu")`.
    ///
    /// Ops on the CPU share their work out among threads that all CPU devices have: two thread pools, each with one thread per core, or as many
    /// as the environment variable `RAYON_NUM_THREADS` says when they begin, which is with the first op that is large enough.
    /// An op that is called on a thread of a rayon pool runs on that thread alone.
    pub fn cpu() -> Device {
        static HOST: OnceLock<Device> = OnceLock::new();
        HOST.get_or_init(|| Self::new_cpu(DeviceBuilder::new()))
            .clone()
    }

    /// Settings for opening a device.
    pub fn builder() -> DeviceBuilder {
        DeviceBuilder::new()
    }

    fn new_cpu(settings: DeviceBuilder) -> Device {
        let info = DeviceInfo::cpu();
        let (claim, standing) = ledger::join_host(settings.memory_limit);
        let config = PoolConfig {
            growth: settings.growth.unwrap_or_default(),
            limit: settings.memory_limit,
            max_region: info.capabilities.max_buffer_bytes,
        };
        let pool = Backend::Cpu(HostPool::new(
            config,
            settings.when_full,
            claim,
            settings.faults.clone(),
        ));
        Self::new(info, pool, &settings, standing)
    }

    fn new(
        mut info: DeviceInfo,
        backend: Backend,
        settings: &DeviceBuilder,
        standing: ledger::Standing,
    ) -> Device {
        if let Backend::Gpu(gpu) = &backend {
            // Settings may leave it less than its adapter has.
            info.capabilities = gpu.capabilities.clone();
        }
        let device = Device(Arc::new(Inner {
            name: standing.name(&info),
            info,
            backend,
            placement: settings.placement,
            call_sites: settings.call_sites,
            standing,
            log: log::Log::default(),
        }));
        device.record_history(settings.history_events);
        device
    }

    /// What the device is, with the capabilities that it was opened with. Free memory is as of that moment.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// What the device can do as it was opened: less than its adapter may ([`Device::list`]), where settings say so.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.info.capabilities
    }

    /// True for the native CPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self.0.backend, Backend::Cpu(_))
    }

    /// Whether ops that the device cannot do go to the CPU or fail.
    pub fn placement(&self) -> Placement {
        self.0.placement
    }

    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.0.backend {
            Backend::Gpu(gpu) => Some(gpu),
            Backend::Cpu(_) => None,
        }
    }

    /// The threads that do what futures wait for.
    pub(crate) fn background(&self) -> &Background {
        match &self.0.backend {
            Backend::Cpu(pool) => &pool.background,
            Backend::Gpu(gpu) => &gpu.background,
        }
    }

    fn backend(&self) -> &Backend {
        &self.0.backend
    }

    /// The device's memory at this moment: allocated, reserved, peaks, counts, the largest hole.
    /// Exact, on the CPU too. Staging is not in it: typically 50 MiB, taken when first
    /// used, and 180 MiB while many small uploads wait for the device ([`Device::trim`] gives what is idle back), 8 MiB for each
    /// thread that reads while others do, and as much as a tensor while `write_from` writes it or what the CPU wrote in place goes back to it; nor are
    /// regions that went back and are kept (up to 64 MiB) or still used by work in flight; nor are [`Device::texel_bytes`].
    pub fn memory(&self) -> MemoryStatistics {
        match &self.0.backend {
            Backend::Cpu(pool) => pool.memory(),
            Backend::Gpu(gpu) => gpu.memory(),
        }
    }

    /// What each tag holds and has held (see [`tagged`](crate::tagged)), most bytes in use first;
    /// memory outside of tags is in it as `(untagged)`. Their blocks and bytes sum to those of
    /// [`Device::memory`].
    pub fn memory_by_tag(&self) -> Vec<TagStatistics> {
        match &self.0.backend {
            Backend::Cpu(pool) => pool.memory_by_tag(),
            Backend::Gpu(gpu) => gpu.memory_by_tag(),
        }
    }

    /// Sets every peak to what there is now, those of tags too.
    pub fn reset_peaks(&self) {
        match &self.0.backend {
            Backend::Cpu(pool) => pool.reset_peaks(),
            Backend::Gpu(gpu) => gpu.reset_peaks(),
        }
    }

    /// Sets every total (allocated, freed) and every count of events to 0, those of tags too. What
    /// there is now, and the peaks, stay.
    pub fn reset_totals(&self) {
        match &self.0.backend {
            Backend::Cpu(pool) => pool.reset_totals(),
            Backend::Gpu(gpu) => gpu.reset_totals(),
        }
    }

    /// Records the latest `events` events of the device's memory from now on, as
    /// [`DeviceBuilder::record_history`] does from the start, beginning with the regions that are there. What was recorded
    /// before is gone; 0 ends it. [`Device::cpu`] is everybody's, and so is its history.
    pub fn record_history(&self, events: usize) {
        match &self.0.backend {
            Backend::Cpu(pool) => pool.record_history(events),
            Backend::Gpu(gpu) => gpu.record_history(events),
        }
    }

    /// Gives regions without a tensor, those that went back lately and are kept, idle staging and texels back to the adapter. The
    /// driver has what work in flight still uses when that is done and the device is called again: after [`Device::synchronize`].
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn trim(&self) -> Result<()> {
        self.trim_to(0)
    }

    /// Gives regions without a tensor back to the adapter, the largest first, until at most `bytes`
    /// are reserved or no such region is left; and what went back lately and is kept, idle staging and texels.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn trim_to(&self, bytes: u64) -> Result<()> {
        match &self.0.backend {
            Backend::Cpu(pool) => {
                pool.trim_to(bytes);
                Ok(())
            }
            Backend::Gpu(gpu) => gpu.trim_to(bytes),
        }
    }

    /// Bytes of the texture that matrix products on some software adapters (lavapipe) copy their
    /// operands into: 4 to 32 MiB from the first such product on, until [`Device::trim`]; else 0.
    pub fn texel_bytes(&self) -> u64 {
        match &self.0.backend {
            Backend::Cpu(_) => 0,
            Backend::Gpu(gpu) => gpu.texel_bytes(),
        }
    }

    /// Bytes that the driver holds for this device, where it tells: regions, those that went back and are kept (up to 64 MiB) or still
    /// used by work in flight, staging, and what its own rounding adds. `None` on the CPU and on backends that do not tell.
    pub fn driver_reserved(&self) -> Option<u64> {
        match &self.0.backend {
            Backend::Cpu(_) => None,
            Backend::Gpu(gpu) => gpu.driver_reserved(),
        }
    }

    /// Waits until all work recorded so far has run.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]; [`Error::TimedOut`] after [`DeviceBuilder::wait_timeout`]; [`Error::Execution`] of the first
    /// work that failed since the last call.
    pub fn synchronize(&self) -> Result<()> {
        match &self.0.backend {
            // The CPU runs each op before the call returns.
            Backend::Cpu(_) => Ok(()),
            Backend::Gpu(gpu) => gpu.synchronize(None),
        }
    }

    /// [`Device::synchronize`] that gives up after `limit` with [`Error::TimedOut`]; the work goes
    /// on, and reads after a success wait for no more than their own copy.
    ///
    /// # Errors
    /// As [`Device::synchronize`], and [`Error::TimedOut`].
    pub fn synchronize_within(&self, limit: Duration) -> Result<()> {
        match &self.0.backend {
            Backend::Cpu(_) => Ok(()),
            Backend::Gpu(gpu) => gpu.synchronize(Some(limit)),
        }
    }

    /// [`Device::synchronize`] without blocking, for all work recorded before the call: a thread of
    /// the device submits it and waits, after what futures before it wait for.
    ///
    /// # Errors
    /// From the future, as [`Device::synchronize`].
    pub fn synchronize_async(&self) -> Pending<()> {
        match &self.0.backend {
            Backend::Cpu(_) => Pending::ready(Ok(())),
            Backend::Gpu(gpu) => gpu
                .synchronize_async()
                .unwrap_or_else(|error| Pending::ready(Err(error))),
        }
    }

    /// The device's memory as a table for people.
    pub fn memory_summary(&self) -> String {
        let memory = self.memory();
        let bytes = |count| Bytes(count).to_string();
        let mut rows = vec![
            ("allocated", bytes(memory.allocated)),
            ("reserved", bytes(memory.reserved)),
            ("peak allocated", bytes(memory.peak_allocated)),
            ("peak reserved", bytes(memory.peak_reserved)),
            ("limit", memory.limit.map_or("none".to_owned(), bytes)),
            ("live tensors", memory.live_blocks.to_string()),
            ("regions", memory.regions.to_string()),
            ("largest free chunk", bytes(memory.largest_free)),
            (
                "fragmentation",
                format!("{:.1} %", memory.fragmentation() * 100.0),
            ),
        ];
        if memory.spilled > 0 {
            rows.push(("spilled to the host", bytes(memory.spilled)));
        }
        if self.texel_bytes() > 0 {
            rows.push(("texels of products", bytes(self.texel_bytes())));
        }
        if let Some(held) = self.driver_reserved() {
            rows.push(("held by the driver", bytes(held)));
        }
        let mut table = format!("memory of {self}\n");
        for (name, value) in rows {
            table.push_str(&format!("  {name:<19}{value:>14}\n"));
        }
        table
    }

    /// A tensor's bytes checked against the device's largest buffer.
    pub(crate) fn check_size(&self, op: &'static str, asked: u128) -> Result<u64> {
        let limit = self.capabilities().max_buffer_bytes;
        u64::try_from(asked)
            .ok()
            .filter(|&bytes| bytes <= limit)
            .ok_or_else(|| {
                Error::too_large(
                    op,
                    format!("a tensor on {self}"),
                    asked,
                    limit,
                    "bytes",
                    "the device's largest buffer",
                    "split it along a dimension",
                )
            })
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// Its selector and name, `gpu:0 (NVIDIA H200, Vulkan)`; virtual devices beside the first on one
/// adapter have a number, `gpu:0#2 (NVIDIA H200, Vulkan)`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::Tensor;

    /// On every adapter that is there: after a loss each call says so, futures end, and another
    /// device on the same adapter goes on.
    #[test]
    fn a_lost_device_says_so_and_others_go_on() {
        for info in Device::list()
            .unwrap()
            .iter()
            .filter(|info| info.backend != "native")
        {
            let open = || Device::select(&info.selector).unwrap();
            let (lost, other) = (open(), open());
            let host: Vec<f32> = (0..3_000_000).map(|i| i as f32).collect();
            let a = Tensor::from_slice(&lost, &host, [host.len()]).unwrap();
            let kept = Tensor::from_slice(&other, &host, [host.len()]).unwrap();
            let pending = a.to_vec_async::<f32>();
            lost.gpu().unwrap().destroy();
            // The copy may have been done before.
            if let Ok(data) = pollster::block_on(pending) {
                assert_eq!(data, host);
            }
            let outcomes = [
                ("add", a.add(&a).and_then(|sum| sum.to_vec::<f32>()).err()),
                ("to_vec", a.to_vec::<f32>().err()),
                (
                    "to_vec_async",
                    pollster::block_on(a.to_vec_async::<f32>()).err(),
                ),
                (
                    "from_slice",
                    Tensor::from_slice(&lost, &host, [host.len()]).err(),
                ),
                ("small", Tensor::from_slice(&lost, &[1.0f32], [1]).err()),
                ("zeros", Tensor::zeros(&lost, [1 << 22], DType::F32).err()),
                ("fill", a.fill(1.0).err()),
                ("synchronize", lost.synchronize().err()),
                ("trim", lost.trim().err()),
                ("pin", a.pin().err()),
                ("to", a.to(&other).err()),
            ];
            for (call, error) in outcomes {
                assert!(
                    matches!(error, Some(Error::DeviceLost(_))),
                    "{info}: {call} gave {error:?}"
                );
            }
            assert_eq!(
                kept.add(&kept)
                    .unwrap()
                    .slice(7..8)
                    .unwrap()
                    .item::<f32>()
                    .unwrap(),
                14.0
            );
            let entries = |device: &Device| device.adapter_ledger().devices;
            let is_self = |device: &Device| entries(device).iter().any(|entry| entry.is_self);
            assert!(!is_self(&lost) && is_self(&other), "{info}");
            drop((a, lost));
            assert_eq!(kept.to_vec::<f32>().unwrap(), host);
        }
    }
}
