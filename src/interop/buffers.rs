//! Tensors as wgpu buffers, and wgpu buffers as tensors.

use std::fmt;

use crate::device::{Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::Pin;
use crate::layout::Layout;
use crate::road;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Where a tensor's elements lie, from [`Tensor::wgpu_binding`]: a range of a buffer that other
/// tensors share. While it lives the tensor's memory stays where it is and is not reused, also
/// after the last handle on the tensor is gone.
#[must_use = "the memory stays only as long as this lives"]
pub struct WgpuBinding {
    // Before the tensor, whose memory it is.
    buffer: wgpu::Buffer,
    offset: u64,
    size: u64,
    tensor: Tensor,
    _pin: Pin,
}

impl WgpuBinding {
    /// The buffer; beside the tensor it holds other ones. A bind group on it keeps all of its
    /// memory from the adapter, whatever [`Device::trim`] gives back.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Bytes from the buffer's start to the first element: a multiple of the device's
    /// `min_storage_buffer_offset_alignment`.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the elements, rounded up to a multiple of 4.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The tensor's range as an entry of a bind group. wgpu refuses it above the device's
    /// `max_storage_buffer_binding_size`: then bind parts, by [`WgpuBinding::offset`].
    pub fn as_binding_resource(&self) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.buffer,
            offset: self.offset,
            size: wgpu::BufferSize::new(self.size),
        })
    }

    /// The range as a slice of the buffer: for `set_vertex_buffer` and `set_index_buffer`, which wgpu refuses unless the
    /// device was opened with [`region_usages`](crate::DeviceBuilder::region_usages) of `VERTEX` or `INDEX`.
    pub fn as_slice(&self) -> wgpu::BufferSlice<'_> {
        self.buffer.slice(self.offset..self.offset + self.size)
    }
}

impl fmt::Debug for WgpuBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "WgpuBinding({} bytes at {} of {:?})",
            self.size, self.offset, self.tensor
        )
    }
}

impl Tensor {
    /// Where a contiguous tensor lies on its wgpu device, for passes of the program's own. All work
    /// recorded so far is submitted first, so what the program submits from now on reads the
    /// tensor's contents as they are at this call. The call does not wait for that work; it waits where recording does
    /// ([`DeviceBuilder::wait_timeout`](crate::DeviceBuilder::wait_timeout)).
    ///
    /// **Later work.** Order is the queue's: what orlop records after this call (in-place `fill`,
    /// say) is submitted some time later, at the latest by [`Device::submit`] or another
    /// `wgpu_binding`. A program that reads the tensor again, or that writes it for orlop to read,
    /// puts its own submission and `device.submit()` into the order it wants.
    ///
    /// **Writing** through the binding changes the tensor and all that share its storage; bytes
    /// outside of the range belong to others. Reads that were ordered before (by
    /// [`Tensor::to_vec_async`], or on other threads) are recorded before this call returns; a
    /// program that goes on writing through a binding awaits those that came later.
    ///
    /// **Passes.** wgpu tracks usage by buffer, and tensors share buffers: within one dispatch or
    /// one render pass bind all tensors as read-only storage (or vertex data and the like), or all
    /// as `read_write` storage.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a tensor on the CPU, without elements, that is not contiguous
    /// (`contiguous()` makes one), or a view that starts where the device cannot bind (`copy()`
    /// makes one that can be); [`Error::Execution`] when the work that made it failed; [`Error::OutOfMemory`] when a spilled
    /// one cannot be brought back; [`Error::TimedOut`], [`Error::DeviceLost`].
    pub fn wgpu_binding(&self) -> Result<WgpuBinding> {
        let refused = |problem: &str| Err(Error::invalid("wgpu_binding", problem));
        let block = match self.storage() {
            _ if self.elements() == 0 => {
                return refused("a tensor without elements is in no buffer");
            }
            Storage::Gpu(block) => block,
            Storage::Host(_) | Storage::Empty => {
                return refused("a tensor on the CPU is in no wgpu buffer: move it with `to`");
            }
        };
        if !self.is_contiguous() {
            return refused("the tensor's elements do not lie row-major: use `contiguous()` of it");
        }
        let start = self.byte_range().start;
        let (device, _) = block.gpu().wgpu();
        let alignment = device.limits().min_storage_buffer_offset_alignment;
        if !start.is_multiple_of(u64::from(alignment)) {
            return refused(&format!(
                "the view starts at byte {start} of its storage, no multiple of {alignment}: use \
                 `copy()` of it, or the binding of the whole tensor"
            ));
        }
        let (buffer, place, pin) = block
            .gpu()
            .submit_and_place(block)
            .map_err(|error| error.asked_by("wgpu_binding"))?;
        Ok(WgpuBinding {
            buffer,
            offset: place + start,
            size: self.bytes().next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT),
            tensor: self.clone(),
            _pin: pin,
        })
    }

    /// A tensor with a copy of the bytes at `offset` of a buffer, row-major, in the order of the
    /// device's queue: what the program submitted before is in it. The buffer has the usage
    /// `COPY_SRC` and is of the wgpu device that `device` is on (see [`Device::from_wgpu`]); it is
    /// not needed any more after the call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an offset that is no multiple of 4, a range outside the
    /// buffer (whole words are copied: of f16, bf16 and bool up to 3 bytes more), a missing usage, a buffer of another
    /// device (of the same `wgpu::Instance`: across instances wgpu itself cannot tell), a mapped
    /// or destroyed buffer, one that this device's tensors lie in (wgpu copies within no buffer:
    /// use [`Tensor::copy`] of the tensor), or the CPU as the device; [`Error::Unsupported`] for f64 where the
    /// device has none; [`Error::OutOfMemory`], [`Error::TooLarge`], [`Error::TimedOut`], [`Error::DeviceLost`].
    pub fn from_wgpu_buffer(
        device: &Device,
        buffer: &wgpu::Buffer,
        offset: u64,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<Tensor> {
        const OP: &str = "from_wgpu_buffer";
        let shape = shape.into();
        let Some(gpu) = device.gpu() else {
            return Err(Error::invalid(
                OP,
                "the CPU has no wgpu buffers: take the device of Device::from_wgpu",
            ));
        };
        if !device.capabilities().holds(dtype) {
            return Err(Error::unsupported(
                OP,
                device.to_string(),
                road::lacks(dtype),
                "such tensors live on the CPU",
            ));
        }
        let bytes = device.check_size(OP, shape.count(OP)? as u128 * dtype.size() as u128)?;
        let copied = bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        if !offset.is_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT)
            || offset
                .checked_add(copied)
                .is_none_or(|end| end > buffer.size())
        {
            return Err(Error::invalid(
                OP,
                format!(
                    "{copied} bytes at {offset} of a buffer of {} bytes: the range must lie inside \
                     and start at a multiple of 4",
                    buffer.size()
                ),
            ));
        }
        if !buffer.usage().contains(wgpu::BufferUsages::COPY_SRC) {
            return Err(Error::invalid(
                OP,
                format!("the buffer has no COPY_SRC, only {:?}", buffer.usage()),
            ));
        }
        let storage = device.allocate(bytes).map_err(|error| error.asked_by(OP))?;
        if let Storage::Gpu(block) = &storage {
            gpu.copy_in(OP, buffer, offset, block, copied)
                .map_err(|error| error.asked_by(OP))?;
        }
        let layout = Layout::contiguous(shape);
        Ok(Tensor::new(device.clone(), storage, layout, dtype))
    }
}
