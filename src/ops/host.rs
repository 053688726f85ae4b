//! Tensors to the host and to other devices.

use std::sync::Arc;

use crate::cpu::host_vec;
use crate::device::{Device, Storage};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::promise::{Pending, promise};
use crate::road;
use crate::tensor::Tensor;

impl Tensor {
    /// The elements, row-major, on the host. Waits for the device.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the tensor's dtype; [`Error::Execution`] when the
    /// work that made it failed; what a copy of a strided view can meet; a lost device.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_dtype::<T>("to_vec")?;
        let source = self.contiguous()?;
        let mut data = host_vec("to_vec", source.elements())?;
        source
            .storage()
            .read(source.byte_range(), &mut |piece| extend(&mut data, piece))?;
        Ok(data)
    }

    /// The elements, row-major, into memory that the caller has: for large tensors several times as
    /// fast as [`Tensor::to_vec`], whose fresh memory the system must map page by page.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the length is not the tensor's; as [`Tensor::to_vec`], and
    /// then part of `target` may be written.
    pub fn read_into<T: Element>(&self, target: &mut [T]) -> Result<()> {
        self.check_dtype::<T>("read_into")?;
        if target.len() != self.elements() {
            return Err(Error::invalid(
                "read_into",
                format!(
                    "{} elements of memory for a tensor of shape {}",
                    target.len(),
                    self.shape()
                ),
            ));
        }
        let source = self.contiguous()?;
        let target: &mut [u8] = bytemuck::cast_slice_mut(target);
        let mut at = 0;
        source.storage().read(source.byte_range(), &mut |piece| {
            if let Some(place) = target.get_mut(at..at + piece.len()) {
                place.copy_from_slice(piece);
            }
            at += piece.len();
        })
    }

    /// [`Tensor::to_vec`] without blocking: the copy is ordered now, the future waits for it. The
    /// executor's thread does not wait for the device: a thread of the device does. What the call
    /// itself does takes milliseconds (staging for the whole tensor); on the CPU device, which has
    /// no queue, it is the copy. Dropping the future is safe at any time.
    ///
    /// # Errors
    /// From the future, as [`Tensor::to_vec`].
    pub fn to_vec_async<T: Element>(&self) -> Pending<Vec<T>> {
        self.order()
            .unwrap_or_else(|error| Pending::ready(Err(error)))
    }

    fn order<T: Element>(&self) -> Result<Pending<Vec<T>>> {
        let op = "to_vec_async";
        self.check_dtype::<T>(op)?;
        let source = self.contiguous()?;
        let range = source.byte_range();
        let Storage::Gpu(block) = source.storage() else {
            return Ok(Pending::ready(source.to_vec()));
        };
        let gpu = Arc::clone(block.gpu());
        let download = gpu.begin_download(block, range.start, range.end - range.start, true)?;
        let mut data = host_vec(op, source.elements())?;
        let (promise, pending) = promise(op);
        gpu.in_background(
            op,
            Box::new(move || {
                let result = download.finish(&mut |piece| extend(&mut data, piece));
                promise.keep(result.map(|()| data));
            }),
        )?;
        Ok(pending)
    }

    /// The one element of a tensor with one element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is not exactly one; as [`Tensor::to_vec`].
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.elements() {
            1 => self
                .to_vec()?
                .pop()
                .ok_or_else(|| Error::invalid("item", "the device gave no element")),
            count => Err(Error::invalid(
                "item",
                format!("shape {} has {count} elements, not one", self.shape()),
            )),
        }
    }

    /// The tensor on another device, through staging; the tensor itself when it is there already.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`]; [`Error::Unsupported`] when the device cannot
    /// hold the dtype; a lost device.
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        if !device.capabilities().holds(self.dtype()) {
            return Err(Error::unsupported(
                "to",
                device.to_string(),
                road::lacks(self.dtype()),
                "leave it on the CPU, or cast it first",
            ));
        }
        road::move_to("to", self, device)
    }

    fn check_dtype<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE == self.dtype() {
            Ok(())
        } else {
            Err(Error::dtype_mismatch(op, self.dtype(), T::DTYPE))
        }
    }

    /// The bytes of a contiguous tensor in its storage.
    pub(crate) fn byte_range(&self) -> std::ops::Range<u64> {
        let size = self.dtype().size() as u64;
        let start = self.layout().offset() as u64 * size;
        start..start + self.elements() as u64 * size
    }
}

/// Pieces are whole elements, but mapped memory may lie at any address.
fn extend<T: Element>(data: &mut Vec<T>, piece: &[u8]) {
    match bytemuck::try_cast_slice(piece) {
        Ok(elements) => data.extend_from_slice(elements),
        Err(_) => data.extend(
            piece
                .chunks_exact(size_of::<T>())
                .map(bytemuck::pod_read_unaligned::<T>),
        ),
    }
}
