//! Opening a device with settings: all of them come before first use, so none can come too late.

use std::time::Duration;

use super::find::{self, DeviceInfo, Found};
use super::{Backend, Device, ledger};
use crate::error::{Error, Result};
use crate::faults::FaultHook;
#[cfg(feature = "fault-injection")]
use crate::faults::Faults;
use crate::gpu::{Adapter, Gpu, GpuOptions, Lent, RegionUsages, close_ended};
use crate::matmul_table::MatmulTable;
use crate::memory::{Growth, PoolConfig, WhenFull};
use crate::promise::{Pending, promise};
use crate::sync::thread;

/// What happens to an op that the device cannot do (a dtype, a feature, a limit), and to one whose
/// operands live on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Placement {
    /// It runs on the CPU and its result comes back, if the device has its dtype (which then has to have room for it); operands travel to
    /// the first device that is not the CPU. The placement log says so.
    #[default]
    Soft,
    /// It is an error; mixed operands are when any of their devices is strict. What is asked for
    /// is done: [`Tensor::to`](crate::Tensor::to), [`Device::scope`].
    Strict,
}

/// Settings for opening a device, from [`Device::builder`]; the defaults are those of [`Device::best`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceBuilder {
    selector: Option<String>,
    visible: Option<Vec<String>>,
    pub(super) growth: Option<Growth>,
    pub(super) when_full: WhenFull,
    pub(super) memory_limit: Option<u64>,
    pub(super) placement: Placement,
    kernel_checks: bool,
    immediates: bool,
    cooperative_matrices: bool,
    max_binding_bytes: Option<u64>,
    region_usages: RegionUsages,
    wait_timeout: Option<Duration>,
    matmul_table: MatmulTable,
    pub(super) faults: FaultHook,
    pub(super) history_events: usize,
    pub(super) call_sites: bool,
}

impl DeviceBuilder {
    pub(super) fn new() -> Self {
        Self {
            selector: None,
            visible: None,
            growth: None,
            when_full: WhenFull::default(),
            memory_limit: None,
            placement: Placement::default(),
            kernel_checks: false,
            immediates: true,
            cooperative_matrices: false,
            max_binding_bytes: None,
            region_usages: RegionUsages::default(),
            wait_timeout: None,
            matmul_table: MatmulTable::new(),
            faults: FaultHook::default(),
            history_events: 0,
            call_sites: false,
        }
    }

    /// Which device: `gpu:0`, `soft:1`, `cpu`; an index into [`Device::list`]; words, each of which is in the
    /// adapter's name, driver or backend, within a class (`gpu:nvidia`, `soft:llvmpipe`) or
    /// without (`radeon`); a number of three digits and more that is no index is a whole word of the name (`4090`). The
    /// first match in the order of [`Device::list`] is taken. Without a selector: as [`Device::best`].
    #[must_use]
    pub fn select(mut self, selector: impl Into<String>) -> Self {
        self.selector = Some(selector.into());
        self
    }

    /// Hides every device that `selectors` do not name from [`DeviceBuilder::select`], from what is
    /// best and from [`DeviceBuilder::list`], as `ORLOP_VISIBLE_DEVICES` does for the process (see
    /// [`Device::list`]), and among the devices that it leaves: their order is the new order, and
    /// selectors count anew.
    #[must_use]
    pub fn visible<S: Into<String>>(mut self, selectors: impl IntoIterator<Item = S>) -> Self {
        self.visible = Some(selectors.into_iter().map(Into::into).collect());
        self
    }

    /// How reserved memory grows; else [`Growth::Budget`] with a [`memory_limit`](Self::memory_limit),
    /// [`Growth::Proportional`] without. What is preallocated is taken when the device is opened, as much of
    /// it as there is; [`Device::memory`] shows how much that is.
    #[must_use]
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = Some(growth);
        self
    }

    /// What happens when no free chunk holds a tensor and no region can be had for it: live tensors
    /// are moved together (the default), those that were used least recently go to host memory as
    /// well, or the op fails with [`Error::OutOfMemory`] at once. Before any of
    /// these, regions without tensors go back to the system for one that is large enough. The CPU has no host to spill to: there
    /// tensors move, unless an op is at them.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// A budget in bytes on what the device reserves for tensors.
    ///
    /// The memory of a hardware GPU that tells its size is divided, because a driver that runs out
    /// while it works loses the device. A budget asked for here is promised: those of all devices
    /// on the adapter sum to its memory at most, beside what devices without one hold, or `build` fails. Devices without one share nine
    /// tenths of the memory less what is promised, whoever comes first; `build` fails when less
    /// than 64 MiB are left to share. On the CPU, on software adapters and where the size is
    /// unknown a budget is a bound and nothing is promised: the system gives memory, pages and
    /// overcommits as it likes. [`Device::adapter_ledger`] shows who has what, and
    /// [`Device::set_memory_limit`] changes it later.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// What happens to ops that the device cannot do.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Compiles kernels with the runtime checks that wgpu adds by default (bounds, division, loop
    /// limits). Off by default, since orlop's kernels guard themselves; for hunting driver bugs. Nothing on the CPU, which has no
    /// kernels.
    #[must_use]
    pub fn kernel_checks(mut self, checks: bool) -> Self {
        self.kernel_checks = checks;
        self
    }

    /// Passes scalars in immediates (push constants) where the adapter has them: on by default;
    /// off passes them in a uniform buffer, for hunting driver bugs. Nothing on the CPU.
    #[must_use]
    pub fn immediates(mut self, immediates: bool) -> Self {
        self.immediates = immediates;
        self
    }

    /// Lets products of matrices use the adapter's cooperative matrices (tensor cores), where it has some for
    /// their dtype ([`Capabilities::cooperative_matrices`](crate::Capabilities)): f16, and f32 where there are such, with sums in f32. On
    /// Vulkan, with subgroups of one size; nothing where there are none. Off by default: wgpu calls the feature experimental,
    /// drivers may add up with less care than other kernels do (toward zero, say), and it has been tried on lavapipe and on
    /// an NVIDIA H200 alone.
    #[must_use]
    pub fn experimental_cooperative_matrices(mut self, matrices: bool) -> Self {
        self.cooperative_matrices = matrices;
        self
    }

    /// Takes the adapter's largest storage binding for smaller than it is, but not for less than
    /// 4 KiB: for tests of how tensors above it are worked on in pieces, and for hunting driver
    /// bugs. Nothing on the CPU, which has no such limit.
    #[must_use]
    pub fn max_binding_bytes(mut self, bytes: u64) -> Self {
        self.max_binding_bytes = Some(bytes.max(4 << 10));
        self
    }

    /// How long one wait for the device may take before it gives up with [`Error::TimedOut`]. No limit without it. What waits:
    ///
    /// - `synchronize`; reads, for each mebibyte, and what reads: `to` another device, `display`, `check_indices`, `nonzero`, `masked_select`,
    ///   `Kernel::check`, writing files, `matmul_streamed`, an op that the CPU does instead or whose operands come from another GPU;
    /// - recording when the device is eight submissions behind, or, of a write in place, behind reads of other threads and
    ///   of futures that are not all recorded;
    /// - a copy of more than 64 KiB to the device, while eight such copies, of 4 MiB at most, are on their way; `write_from` of more
    ///   than 4 MiB, for the last one that was;
    /// - an allocation that the adapter refuses until memory that went back is free, and any while more than an eighth of what
    ///   is reserved (and 4 MiB) went back to the adapter and may still be in use;
    /// - with [`WhenFull::SpillToHost`] an op (or [`Device::set_memory_limit`]) that sends tensors to the host or brings them back (so does `pin`, and `wgpu_binding`), for the copies, for reads
    ///   that are under way, and for other ops that do; and reads of what is not on the host, for these ops;
    /// - opening a device that is lent ([`build_on_wgpu`](Self::build_on_wgpu)), for what is in its queue;
    /// - opening the first device on each GPU, or software adapter that cannot compute with 64-bit integers, for a kernel that
    ///   counts how the adapter converts f16, and later ones until it has answered. A device whose question takes too long converts
    ///   by bits, which is slower.
    ///
    /// A read or a copy of many mebibytes waits as often, so it may take longer. A device that is dropped while it works for
    /// longer is left to the driver, with its memory, until the process ends. On the CPU device there is nothing to wait for
    /// but other threads: reads and writes in place of one tensor wait for each other, without a limit; so do, on a GPU, writes
    /// in place for an op of another thread that the CPU does to the same tensor.
    #[must_use]
    pub fn wait_timeout(mut self, limit: Duration) -> Self {
        self.wait_timeout = Some(limit);
        self
    }

    /// Kernels that were measured to be best for matrix products: those for the adapter and driver that is
    /// opened go before the plan's own rules ([`Capabilities::matmul_choices`](crate::Capabilities)). A
    /// kernel that cannot do a product leaves it to them. Nothing on the CPU, which has no kernels.
    #[must_use]
    pub fn matmul_table(mut self, table: MatmulTable) -> Self {
        self.matmul_table = table;
        self
    }

    /// Fails steps of the device on purpose, for tests: as `faults` is armed. Needs the feature
    /// `fault-injection`.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn faults(mut self, faults: &Faults) -> Self {
        self.faults = FaultHook::to(faults);
        self
    }

    /// Records the latest `events` events of the device's memory (allocations, frees, regions,
    /// relocations, spills, failures) for [`Device::memory_snapshot`]; 0, the default, records none
    /// and costs nothing. An event takes 96 bytes on the host and about 50 ns. [`Device::record_history`] begins and ends it later.
    #[must_use]
    pub fn record_history(mut self, events: usize) -> Self {
        self.history_events = events;
        self
    }

    /// Remembers for each tensor the first function outside of orlop that asked for its memory, for
    /// [`Device::live_tensors`], [`Device::check_leaks`] and snapshots. Off by default: each
    /// allocation then takes a backtrace, which costs milliseconds. File and line are there in
    /// programs with debug information only.
    #[must_use]
    pub fn record_call_sites(mut self, record: bool) -> Self {
        self.call_sites = record;
        self
    }

    /// Opens the device, with a pool of its own; where nothing is set and there is no GPU, or `ORLOP_DEVICE` names the CPU, it is
    /// [`Device::cpu`], whose pool all share.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] lists the devices there are, and what may hide others; [`Error::DeviceUnavailable`] when the
    /// driver refuses; [`Error::OutOfMemory`] when other devices on the adapter leave less than
    /// the budget (see [`DeviceBuilder::memory_limit`]), listing them; [`Error::InvalidArgument`] for
    /// a fraction to preallocate that is not above 0 and at most 1, or where the adapter does not tell its memory, and for
    /// region usages that the device does not have; as [`Device::list`]. Where nothing was selected and no GPU opens, the
    /// first `OutOfMemory` or `InvalidArgument` of one is returned instead of the CPU.
    pub fn build(self) -> Result<Device> {
        let of_environment = || environment(DEVICE).filter(|name| !name.trim().is_empty());
        let (selector, setting) = match &self.selector {
            Some(selector) => (Some(selector.clone()), None),
            None => (of_environment(), Some(DEVICE)),
        };
        let hides = self.hides();
        // Drivers of GPUs take a tenth of a second and 70 MB to be asked; names that are to be visible are checked in any case.
        let is_cpu = |selector: &String| selector.trim().eq_ignore_ascii_case("cpu");
        let devices = match hides.is_empty() && selector.as_ref().is_some_and(is_cpu) {
            true => vec![Found::cpu()],
            false => self.devices()?,
        };
        if let Some(selector) = selector {
            let found = find::select(&selector, setting, &hides, devices)?;
            return match found.adapter.is_some() || setting.is_none() {
                true => self.open(found),
                false => self.shared_or_own_cpu(),
            };
        }
        let mut refused = None;
        for found in devices {
            if !found.info.kind().is_gpu() {
                continue;
            }
            let name = found.info.to_string();
            match self.clone().open(found) {
                Ok(device) => return Ok(device),
                Err(error) => {
                    tracing::warn!(device = name, %error, "not opened, trying the next");
                    let counts = matches!(error, Error::OutOfMemory(_) | Error::InvalidArgument(_));
                    refused = refused.or(counts.then_some(error));
                }
            }
        }
        match refused {
            // The CPU is for want of a GPU, not of memory that other devices were promised or of settings that
            // can be.
            Some(error) => Err(error),
            None => self.shared_or_own_cpu(),
        }
    }

    /// The CPU that nobody selected here: without a setting of its own it is the shared one.
    fn shared_or_own_cpu(self) -> Result<Device> {
        match self == Self::new() {
            true => Ok(Device::cpu()),
            false => self.open_cpu(),
        }
    }

    /// What [`DeviceBuilder::select`] chooses from: see [`Device::list`].
    ///
    /// # Errors
    /// As [`Device::list`], for the names given to [`DeviceBuilder::visible`] as well.
    pub fn list(&self) -> Result<Vec<DeviceInfo>> {
        Ok(self
            .devices()?
            .into_iter()
            .map(|found| found.info)
            .collect())
    }

    fn devices(&self) -> Result<Vec<Found>> {
        let mut devices = find::find();
        if let Some(text) = environment(VISIBLE) {
            let names: Vec<String> = match text.trim() {
                "" => Vec::new(),
                text => text.split(',').map(str::to_owned).collect(),
            };
            devices = find::visible(VISIBLE, &names, &[], devices)?;
        }
        match &self.visible {
            Some(names) => {
                let hides: Vec<&str> = environment(VISIBLE).map(|_| VISIBLE).into_iter().collect();
                find::visible("visible", names, &hides, devices)
            }
            None => Ok(devices),
        }
    }

    /// The settings that hide devices.
    fn hides(&self) -> Vec<&'static str> {
        let environment = environment(VISIBLE).map(|_| VISIBLE);
        let own = self.visible.as_ref().map(|_| "visible");
        environment.into_iter().chain(own).collect()
    }

    /// [`DeviceBuilder::build`] without blocking: from the call on another thread opens the device, which takes
    /// drivers a good part of a second.
    ///
    /// # Errors
    /// As [`DeviceBuilder::build`]; [`Error::OutOfMemory`] of the host where the system gives no thread.
    pub fn build_async(self) -> Pending<Device> {
        let op = "build_async";
        let (promise, pending) = promise(op, None);
        let opens = thread::Builder::new().name("orlop open".to_owned());
        match opens.spawn(move || promise.keep(self.build())) {
            Ok(_) => pending,
            Err(error) => Pending::ready(Err(Error::no_thread(op, &error))),
        }
    }

    fn open(self, found: Found) -> Result<Device> {
        let Some(adapter) = found.adapter else {
            return self.open_cpu();
        };
        let (options, standing) = self.options(&found.info, adapter, None)?;
        let gpu = Backend::Gpu(Gpu::open(adapter, options)?);
        Ok(Device::new(found.info, gpu, &self, standing))
    }

    fn open_cpu(mut self) -> Result<Device> {
        self.growth = Some(self.region_growth(&DeviceInfo::cpu())?);
        // The shared one is the first: it has no number.
        let _shared = Device::cpu();
        Ok(Device::new_cpu(self))
    }

    /// The growth policy, with a fraction as a number of bytes, and no more of them than there are.
    ///
    /// # Errors
    /// `InvalidArgument` for a fraction of nothing known, or that is none.
    fn region_growth(&self, info: &DeviceInfo) -> Result<Growth> {
        let growth = self.growth.unwrap_or(Growth::within(self.memory_limit));
        let refused = |problem: String| Err(Error::invalid("growth", problem));
        let bytes = match growth {
            Growth::PreallocateBytes { bytes } => bytes,
            Growth::Preallocate { fraction } => {
                if !(fraction > 0.0 && fraction <= 1.0) {
                    return refused(format!(
                        "a fraction of {fraction} cannot be preallocated: it is above 0 and at most 1"
                    ));
                }
                let Some(whole) = self.memory_limit.or(info.memory_total) else {
                    return refused(
                        "the adapter does not tell its memory, of which a fraction was to be \
                         preallocated: set a memory_limit, or use PreallocateBytes"
                            .to_owned(),
                    );
                };
                (whole as f64 * fraction) as u64
            }
            _ => return Ok(growth),
        };
        // More than there is would only be promised, page by page, until the system ends the process.
        let most = info.memory_total.into_iter().chain(most_of_free(info));
        let bytes = most.fold(bytes, u64::min);
        Ok(Growth::PreallocateBytes { bytes })
    }

    /// The settings for an adapter, with a seat in its ledger. Without a `memory_limit` the budget
    /// is `most` at most.
    ///
    /// # Errors
    /// `OutOfMemory` when other devices leave less than the budget.
    fn options(
        &self,
        info: &DeviceInfo,
        adapter: &Adapter,
        most: Option<u64>,
    ) -> Result<(GpuOptions, ledger::Standing)> {
        close_ended();
        let (claim, standing) =
            ledger::join_adapter(&adapter.physical(), info, self.memory_limit, most)?;
        let options = GpuOptions {
            name: standing.name(info),
            pool: PoolConfig {
                growth: self.region_growth(info)?,
                limit: claim.budget(),
                max_region: info.capabilities.max_buffer_bytes,
            },
            claim,
            when_full: self.when_full,
            kernel_checks: self.kernel_checks,
            immediates: self.immediates,
            cooperative_matrices: self.cooperative_matrices,
            max_binding_bytes: self.max_binding_bytes,
            region_usages: self.region_usages,
            wait_timeout: self.wait_timeout,
            faults: self.faults.clone(),
            matmul_choices: self.matmul_table.choices(&info.name, &info.driver).into(),
        };
        Ok((options, standing))
    }

    pub(crate) fn with_region_usages(mut self, usages: RegionUsages) -> Self {
        self.region_usages = usages;
        self
    }

    /// Opens on a device of somebody else's. Without a `memory_limit` the budget of a hardware GPU
    /// is nine tenths of what is free now: its owner needs memory too.
    ///
    /// # Errors
    /// `InvalidArgument` for a selector, which could only contradict; what [`Gpu::lend`] says.
    pub(crate) fn lend(self, lent: Lent) -> Result<Device> {
        let named = self.selector.iter().chain(self.visible.iter().flatten());
        if let Some(selector) = named.into_iter().next() {
            return Err(Error::invalid(
                "build_on_wgpu",
                format!("the device is given, but `{selector}` is selected as well"),
            ));
        }
        // Before it is asked what is free.
        close_ended();
        let info = DeviceInfo::adapter("lent".to_owned(), &lent.adapter);
        let (options, standing) = self.options(&info, &lent.adapter, most_of_free(&info))?;
        let gpu = Backend::Gpu(Gpu::lend(lent, options)?);
        Ok(Device::new(info, gpu, &self, standing))
    }
}

impl Default for DeviceBuilder {
    fn default() -> Self {
        Self::new()
    }
}

/// Nine tenths of the bytes that are free: others need some too.
fn most_of_free(info: &DeviceInfo) -> Option<u64> {
    info.memory_free.map(|bytes| bytes / 10 * 9)
}

/// Names the device that [`Device::best`] opens.
const DEVICE: &str = "ORLOP_DEVICE";
/// Names the devices that are there: see [`Device::list`].
const VISIBLE: &str = "ORLOP_VISIBLE_DEVICES";

/// A variable of the environment. What is no Unicode names nothing that is there.
fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nine tenths of what is free, and no more than there is.
    #[test]
    fn preallocation_leaves_others_some() {
        let bytes = |growth, total, free| {
            let info = DeviceInfo {
                memory_total: total,
                memory_free: free,
                ..DeviceInfo::cpu()
            };
            match DeviceBuilder::new().growth(growth).region_growth(&info) {
                Ok(Growth::PreallocateBytes { bytes }) => bytes,
                other => panic!("{other:?}"),
            }
        };
        let all = Growth::Preallocate { fraction: 1.0 };
        let some = Growth::PreallocateBytes { bytes: 700 };
        assert_eq!(bytes(all, Some(1000), Some(500)), 450);
        assert_eq!(bytes(all, Some(1000), None), 1000);
        assert_eq!(bytes(some, Some(1000), Some(500)), 450);
        assert_eq!(bytes(some, Some(600), None), 600);
        assert_eq!(bytes(some, None, None), 700);
        assert_eq!(bytes(some, Some(1000), Some(1000)), 700);
    }
}
