//! Opening a device with settings: all of them come before first use, so none can come too late.

use super::find::{self, DeviceInfo, Found};
use super::{Backend, Device};
use crate::error::{Error, Result};
use crate::gpu::{Gpu, GpuOptions, Lent, RegionUsages};
use crate::memory::{Growth, PoolConfig};

/// What happens to an op that the device cannot do (a dtype, a feature, a limit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// It runs on the CPU, and the placement log says why.
    #[default]
    Soft,
    /// It is an error.
    Strict,
}

/// Settings for opening a device, from [`Device::builder`].
#[derive(Clone, Debug)]
pub struct DeviceBuilder {
    selector: Option<String>,
    pub(super) growth: Growth,
    pub(super) memory_limit: Option<u64>,
    pub(super) placement: Placement,
    kernel_checks: bool,
    immediates: bool,
    max_binding_bytes: Option<u64>,
    region_usages: RegionUsages,
}

impl DeviceBuilder {
    pub(super) fn new() -> Self {
        Self {
            selector: None,
            growth: Growth::default(),
            memory_limit: None,
            placement: Placement::default(),
            kernel_checks: false,
            immediates: true,
            max_binding_bytes: None,
            region_usages: RegionUsages::default(),
        }
    }

    /// Which device: `gpu:0`, `soft:1`, `cpu`; an index into [`Device::list`]; a piece of the
    /// adapter's name, driver or backend, within a class (`gpu:nvidia`, `soft:llvmpipe`) or
    /// without (`radeon`). The first match in the order of [`Device::list`] is taken. Without a
    /// selector: as [`Device::best`].
    #[must_use]
    pub fn select(mut self, selector: impl Into<String>) -> Self {
        self.selector = Some(selector.into());
        self
    }

    /// How reserved memory grows.
    #[must_use]
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }

    /// A budget in bytes on what the device reserves for tensors. Without it: none on the CPU and
    /// on software adapters, nine tenths of the adapter's memory on GPUs that tell theirs, because
    /// a driver that runs out while it works loses the device.
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
    /// limits). Off by default, since orlop's kernels guard themselves; for hunting driver bugs.
    #[must_use]
    pub fn kernel_checks(mut self, checks: bool) -> Self {
        self.kernel_checks = checks;
        self
    }

    /// Passes scalars in immediates (push constants) where the adapter has them: on by default;
    /// off passes them in a uniform buffer, for hunting driver bugs.
    #[must_use]
    pub fn immediates(mut self, immediates: bool) -> Self {
        self.immediates = immediates;
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

    /// Opens the device, with a pool of its own.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`](crate::Error::UnknownDevice) lists the devices there are;
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) when the driver refuses.
    pub fn build(self) -> Result<Device> {
        pollster::block_on(self.build_async())
    }

    /// [`DeviceBuilder::build`] without blocking.
    ///
    /// # Errors
    /// As [`DeviceBuilder::build`].
    pub async fn build_async(self) -> Result<Device> {
        let named = self.selector.clone().or_else(|| {
            std::env::var("ORLOP_DEVICE")
                .ok()
                .filter(|name| !name.is_empty())
        });
        if let Some(selector) = named {
            let found = find::select(&selector, find::find())?;
            return self.open(found).await;
        }
        let gpus = find::find()
            .into_iter()
            .filter(|found| found.info.kind().is_gpu());
        for found in gpus {
            let name = found.info.to_string();
            match self.clone().open(found).await {
                Ok(device) => return Ok(device),
                Err(error) => tracing::warn!(device = name, %error, "not opened, trying the next"),
            }
        }
        Ok(Device::new_cpu(self))
    }

    async fn open(self, found: Found) -> Result<Device> {
        let Some(adapter) = found.adapter else {
            return Ok(Device::new_cpu(self));
        };
        let gpu = Gpu::open(adapter, self.options(&found.info, found.info.memory_total)).await?;
        Ok(Device::new(found.info, Backend::Gpu(gpu), self.placement))
    }

    fn options(&self, info: &DeviceInfo, memory: Option<u64>) -> GpuOptions {
        let default_limit = memory
            .filter(|_| info.kind().is_gpu())
            .map(|bytes| bytes / 10 * 9);
        GpuOptions {
            name: info.to_string(),
            pool: PoolConfig {
                growth: self.growth,
                limit: self.memory_limit.or(default_limit),
                max_region: info.capabilities.max_buffer_bytes,
            },
            kernel_checks: self.kernel_checks,
            immediates: self.immediates,
            max_binding_bytes: self.max_binding_bytes,
            region_usages: self.region_usages,
        }
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
        if let Some(selector) = &self.selector {
            return Err(Error::invalid(
                "build_on_wgpu",
                format!("the device is given, but `{selector}` is selected as well"),
            ));
        }
        let info = DeviceInfo::adapter("lent".to_owned(), &lent.adapter);
        let options = self.options(&info, info.memory_free.or(info.memory_total));
        let gpu = Gpu::lend(lent, options)?;
        Ok(Device::new(info, Backend::Gpu(gpu), self.placement))
    }
}
