//! Devices on a program's own wgpu device.

use crate::device::{Device, DeviceBuilder};
use crate::error::Result;
use crate::gpu::{Lent, RegionUsages};

/// # On a wgpu device of the program's own
///
/// See [`DeviceBuilder::build_on_wgpu`] for what both sides may rely on.
impl Device {
    /// A device with a pool and a stream of its own on the program's wgpu device, with default
    /// settings; [`DeviceBuilder::build_on_wgpu`] takes others.
    ///
    /// # Errors
    /// As [`DeviceBuilder::build_on_wgpu`].
    pub fn from_wgpu(
        adapter: &wgpu::Adapter,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
    ) -> Result<Device> {
        Device::builder().build_on_wgpu(adapter, device, queue)
    }

    /// The wgpu device and queue that this device works on, whoever opened it; `None` on the CPU.
    /// What is submitted here runs after what orlop has submitted: see [`Device::submit`]. Callbacks
    /// that are given to them may run in any call of orlop's that records or waits, while it holds its
    /// locks: they call nothing of orlop's, or may never return.
    pub fn wgpu_device(&self) -> Option<(&wgpu::Device, &wgpu::Queue)> {
        self.gpu().map(|gpu| gpu.wgpu())
    }

    /// Hands all that is recorded to the device's queue, without waiting: work that the program
    /// submits later sees it. On the CPU nothing is ever pending.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub fn submit(&self) -> Result<()> {
        self.gpu().map_or(Ok(()), |gpu| gpu.submit())
    }
}

impl DeviceBuilder {
    /// More usages for the buffers that tensors lie in, so that a pass of the program's own can
    /// take a tensor as `VERTEX`, `INDEX`, `INDIRECT` or `UNIFORM` data. `STORAGE`, `COPY_SRC` and
    /// `COPY_DST` are always there. Checked when the device is opened: usages that it does not
    /// give to such buffers (`MAP_READ`, say) are an
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument). Without meaning on the CPU.
    #[must_use]
    pub fn region_usages(self, usages: wgpu::BufferUsages) -> Self {
        self.with_region_usages(RegionUsages(usages))
    }

    /// Opens on the program's own wgpu device, with a pool and a stream of its own. The adapter is
    /// the one that the device was requested from, the queue the device's.
    ///
    /// - **What it can do** are the device's features and limits, whatever the adapter has. All
    ///   that is needed are compute shaders with four storage buffers, bound by 1 MiB at multiples of 256 bytes, a uniform buffer in
    ///   a second bind group, and `downlevel_defaults()`'s workgroups (`wgpu::Limits::default()` has all of it). What is missing has a fallback: without
    ///   `IMMEDIATES` scalars travel in a uniform buffer, without `SUBGROUP` other kernels run,
    ///   without `SHADER_F64` f64 goes to the CPU, without `SHADER_F16` of f16 `rand`, `randn` and programs' own kernels, without
    ///   `SHADER_INT64` what asks whether f64 are zero (`any`, `all`, casts to bool), and so do expressions that read as many tensors as
    ///   there are storage buffers. Tensors are at most
    ///   `max_buffer_size` bytes, operands at most `max_storage_buffer_binding_size`.
    /// - **Handlers stay the owner's**: neither `on_uncaptured_error` nor
    ///   `set_device_lost_callback` is called. What orlop does wrong it catches in error scopes
    ///   of its own; what the program does wrong reaches the program (but in callbacks, below). A loss is seen at the next
    ///   call.
    /// - **Order** is the queue's. orlop records and submits in batches; [`Device::submit`] and
    ///   [`Tensor::wgpu_binding`](crate::Tensor::wgpu_binding) submit what is pending. Other
    ///   devices may be opened on the same wgpu device, each with its own pool and order.
    /// - **Waiting and recording**: a submission and a poll run the callbacks of the program that are
    ///   due (of maps and submitted work), so these may run in any call of orlop's that records or
    ///   waits, and on orlop's own threads, while orlop holds its locks. As wgpu asks of all its
    ///   callbacks, they should only store and wake: on any backend one that calls orlop may never
    ///   return. What goes wrong in one that runs in a submission of orlop's is logged and reaches
    ///   no handler; one that submits there what wgpu refuses makes orlop's own seem refused. wgpu 30 panics when a poll with a time-out ends while another thread polls: the program
    ///   polls without one.
    /// - **Presenting**: orlop looks again and again instead of waiting inside of wgpu, which keeps a lock there that
    ///   presenting and `destroy` need. Opening waits for what is in the queue, for as long as
    ///   [`wait_timeout`](DeviceBuilder::wait_timeout) allows; without one, after ten seconds in which the queue was never
    ///   empty, inside of wgpu, and so before what is presented.
    /// - **Memory**: without [`memory_limit`](DeviceBuilder::memory_limit) the budget on a hardware
    ///   GPU is nine tenths of what is free now, where the driver tells; 64 MiB of it are needed.
    ///   [`Device::driver_reserved`] counts the whole wgpu device. Under its default `memory_hints` wgpu takes blocks of up to 256 MiB
    ///   for regions that are smaller, and keeps the last one: `MemoryHints::MemoryUsage` takes less.
    /// - **GL** has one context for an adapter behind a lock of wgpu's, and a call that waits for
    ///   it longer than seconds panics. orlop's own calls take turns and are short; the program's
    ///   calls do not take part in that, so its work on GL must be short as well.
    /// - **Dropping** the device and its tensors leaves the wgpu device as it was; while it is at work for longer than
    ///   [`wait_timeout`](DeviceBuilder::wait_timeout) allows, orlop has handles on it and its budget in the ledger until its work
    ///   has ended and the program looks at the ledger ([`Device::adapter_ledger`]) or opens a device.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) when the device has no compute
    /// shaders with what is needed, it is another adapter's, the queue is another device's, or orlop was built without the feature
    /// for its backend;
    /// [`Error::DeviceLost`](crate::Error::DeviceLost); [`Error::TimedOut`](crate::Error::TimedOut) where the queue is at
    /// work for longer than waits may take; [`Error::OutOfMemory`](crate::Error::OutOfMemory)
    /// when less is left than the budget, or without one less than 64 MiB;
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a selector, or region usages
    /// that the device does not have.
    pub fn build_on_wgpu(
        self,
        adapter: &wgpu::Adapter,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
    ) -> Result<Device> {
        self.lend(Lent::new(adapter, device, queue)?)
    }
}
