//! A device that somebody else opened: a renderer's, say. Its handlers stay its owner's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::adapters::{self, Adapter};
use super::block::GpuBlock;
use super::deadline::Deadline;
use super::hal;
use super::health::{Health, wait_until_told};
use super::serial::Serial;
use super::spill::Pin;
use super::wait::WriteOrder;
use super::{Gpu, GpuOptions};
use crate::error::{DeviceFailure, Error, Result};
use crate::launch::WINDOW_ALIGNMENT;

/// Bytes of a buffer that a device needs, at least: of what is read and moved at a time.
const LEAST_BUFFER: u64 = 1 << 20;

/// A device of somebody else's with its queue, and what it can do: its features and limits count,
/// not its adapter's.
pub(crate) struct Lent {
    pub adapter: Adapter,
    device: wgpu::Device,
    queue: wgpu::Queue,
}

/// The first limit that is less than a device needs, with what there is and what is needed: of compute what WebGPU's least
/// adapters have, as the templates count on it; scalars that immediates do not hold lie in a uniform, in a group of its own.
pub(super) fn missing(limits: &wgpu::Limits) -> Option<(&'static str, u64, u64)> {
    let least = wgpu::Limits::downlevel_defaults();
    macro_rules! compute {
        ($($limit:ident),*) => {
            [$((stringify!($limit), limits.$limit.into(), least.$limit.into())),*]
        };
    }
    let [invocations, size, groups, memory, uniform] = compute!(
        max_compute_invocations_per_workgroup,
        max_compute_workgroup_size_x,
        max_compute_workgroups_per_dimension,
        max_compute_workgroup_storage_size,
        max_uniform_buffer_binding_size
    );
    let uniforms = limits.max_uniform_buffers_per_shader_stage;
    // Of alignments less is more.
    let alignments = [
        (
            "min_storage_buffer_offset_alignment",
            limits.min_storage_buffer_offset_alignment,
        ),
        (
            "min_uniform_buffer_offset_alignment",
            limits.min_uniform_buffer_offset_alignment,
        ),
    ];
    let coarse = alignments
        .into_iter()
        .map(|(limit, there)| (limit, u64::from(there), WINDOW_ALIGNMENT))
        .find(|(_, there, needed)| there > needed);
    let low = [
        ("max_buffer_size", limits.max_buffer_size, LEAST_BUFFER),
        (
            "max_storage_buffer_binding_size",
            limits.max_storage_buffer_binding_size,
            LEAST_BUFFER,
        ),
        invocations,
        size,
        groups,
        memory,
        uniform,
        ("max_uniform_buffers_per_shader_stage", uniforms.into(), 1),
        ("max_bind_groups", limits.max_bind_groups.into(), 2),
    ]
    .into_iter()
    .find(|(_, there, needed)| there < needed);
    low.or(coarse)
}

impl Lent {
    /// # Errors
    /// `DeviceUnavailable` when it is another adapter's, its backend is none of orlop's, or it has no compute shaders with four
    /// storage buffers, or less of a limit than it needs.
    pub(crate) fn new(
        adapter: &wgpu::Adapter,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
    ) -> Result<Self> {
        let info = adapter.get_info();
        let own = device.adapter_info();
        let of = |info: &wgpu::AdapterInfo| (info.backend, info.vendor, info.device);
        if of(&own) != of(&info)
            || own.name != info.name
            || own.device_pci_bus_id != info.device_pci_bus_id
        {
            let reason = format!(
                "the device is one of {} ({:?}); give the adapter that it was requested from",
                own.name, own.backend
            );
            return Err(unavailable(&info.name, reason));
        }
        if !hal::backends().contains(info.backend.into()) {
            let backend = info.backend;
            let reason = match hal::feature(backend) {
                Some(feature) => format!(
                    "orlop was built without its backend {backend:?}: turn on orlop's feature `{feature}`, where the \
                     system has it"
                ),
                None => format!("orlop knows no backend {backend:?}"),
            };
            return Err(unavailable(&info.name, reason));
        }
        let limits = device.limits();
        let adapter =
            adapters::describe(adapter.clone(), device.features(), &limits).ok_or_else(|| {
                unavailable(
                    &info.name,
                    format!(
                        "it was opened without compute shaders, or with {} storage buffers a \
                         stage, {} buffers in all, {} bindings a group, where 4 and a uniform are needed; request \
                         wgpu::Limits::default()",
                        limits.max_storage_buffers_per_shader_stage,
                        limits.max_buffers_and_acceleration_structures_per_shader_stage,
                        limits.max_bindings_per_bind_group
                    ),
                )
            })?;
        if let Some((limit, there, needed)) = missing(&limits) {
            return Err(unavailable(
                &adapter.name,
                format!(
                    "it was opened with a {limit} of {there} where {needed} is needed; request wgpu::Limits::default(), if \
                     the adapter has them"
                ),
            ));
        }
        Ok(Self {
            adapter,
            device: device.clone(),
            queue: queue.clone(),
        })
    }
}

impl Gpu {
    /// A pool and a stream on a device of somebody else's.
    ///
    /// # Errors
    /// `DeviceUnavailable` when device and queue do not belong together; `DeviceLost`, `TimedOut`;
    /// `InvalidArgument` for usages that it does not give to buffers.
    pub(crate) fn lend(lent: Lent, options: GpuOptions) -> Result<Arc<Self>> {
        let Lent {
            adapter,
            device,
            queue,
        } = lent;
        let health = Health::lent(&options.name, &device);
        health.check()?;
        let deadline = Deadline::after(options.wait_timeout);
        if !belong_together(&adapter, &device, &queue, &health, deadline)? {
            let reason = "the queue is another device's; give the two that request_device gave";
            return Err(unavailable(&options.name, reason.to_owned()));
        }
        Self::on(&adapter, device, queue, health, options)
    }

    /// Submits what is recorded; gives the buffer that a block lies in, and its offset. Whoever
    /// asked may write there: the reads that came before are recorded first.
    ///
    /// # Errors
    /// Why the block has no contents, `DeviceLost`, `TimedOut`.
    pub(crate) fn submit_and_place(
        self: &Arc<Self>,
        block: &Arc<GpuBlock>,
    ) -> Result<(wgpu::Buffer, u64, Pin)> {
        let pin = self.pin(block)?;
        let (mut stream, _hold) = self.stream_to_write(block, WriteOrder::Waits)?;
        stream.submit()?;
        // After the submission, which may have failed.
        block.check()?;
        let (buffer, offset) = self.resolve(block, 0, block.bytes())?;
        Ok((buffer, offset, pin))
    }

    /// Copies bytes of a buffer of somebody else's to the start of a block, in order.
    ///
    /// # Errors
    /// `InvalidArgument` with what the device says of the buffer, `DeviceLost`.
    pub(crate) fn copy_in(
        self: &Arc<Self>,
        op: &'static str,
        buffer: &wgpu::Buffer,
        offset: u64,
        block: &Arc<GpuBlock>,
        bytes: u64,
    ) -> Result<()> {
        self.with_access(&[block], Some(block), |access| {
            let (mut stream, _hold) = self.stream_to_write(block, access.order())?;
            let (to, start) = self.resolve(block, 0, bytes)?;
            stream.submit_apart(op, |encoder| {
                encoder.copy_buffer_to_buffer(buffer, offset, &to, start, bytes);
            })
        })
    }
}

/// True when polling the device runs the callbacks of the queue. wgpu has no other way to ask: what
/// a queue says of another device's work reaches the handler of the queue's device.
///
/// # Errors
/// `DeviceLost`, `TimedOut`.
fn belong_together(
    adapter: &Adapter,
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    health: &Health,
    deadline: Deadline,
) -> Result<bool> {
    let ran = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ran);
    let serial = adapter.is_gl().then(Serial::gl);
    {
        let _hold = serial.map(Serial::hold);
        queue.on_submitted_work_done(move || told.store(true, Ordering::Release));
    }
    wait_until_told(device, serial, health, deadline, || {
        ran.load(Ordering::Acquire)
    })
}

fn unavailable(device: &str, reason: String) -> Error {
    Error::DeviceUnavailable(Box::new(DeviceFailure {
        device: device.to_owned(),
        reason,
    }))
}
