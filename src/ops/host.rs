//! Tensors to the host and to other devices.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::cpu::host_vec;
use crate::device::{Device, Storage};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::road;
use crate::sync::Mutex;
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
    /// executor's thread is never blocked: a thread of the device waits. Dropping the future is
    /// safe at any time.
    ///
    /// # Errors
    /// From the future, as [`Tensor::to_vec`].
    pub fn to_vec_async<T: Element>(&self) -> ToVec<T> {
        let shared = Arc::new(Mutex::new(Answer::default()));
        if let Err(error) = self.order(&shared) {
            shared.lock().result = Some(Err(error));
        }
        ToVec(shared)
    }

    fn order<T: Element>(&self, shared: &Arc<Mutex<Answer<T>>>) -> Result<()> {
        self.check_dtype::<T>("to_vec_async")?;
        let source = self.contiguous()?;
        let range = source.byte_range();
        let Storage::Gpu(block) = source.storage() else {
            shared.lock().result = Some(source.to_vec());
            return Ok(());
        };
        let gpu = Arc::clone(block.gpu());
        let download = gpu.begin_download(block, range.start, range.end - range.start, true)?;
        let mut data = host_vec("to_vec_async", source.elements())?;
        let promise = Promise(Some(Arc::clone(shared)));
        gpu.in_background(Box::new(move || {
            let result = download.finish(&mut |piece| extend(&mut data, piece));
            promise.keep(result.map(|()| data));
        }))
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

struct Answer<T> {
    result: Option<Result<Vec<T>>>,
    waker: Option<Waker>,
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self {
            result: None,
            waker: None,
        }
    }
}

/// The duty to complete a future: dropped without that, it completes it with an error.
struct Promise<T>(Option<Arc<Mutex<Answer<T>>>>);

impl<T> Promise<T> {
    fn keep(mut self, result: Result<Vec<T>>) {
        self.complete(result);
    }

    /// Leaves the result and wakes the future, whose executor may poll it at once on this thread.
    fn complete(&mut self, result: Result<Vec<T>>) {
        let Some(answer) = self.0.take() else { return };
        let waker = {
            let mut answer = answer.lock();
            answer.result = Some(result);
            answer.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.complete(Err(Error::invalid(
            "to_vec_async",
            "the device closed before the data arrived",
        )));
    }
}

/// The future of [`Tensor::to_vec_async`]; any executor polls it.
#[must_use = "futures do nothing unless awaited"]
pub struct ToVec<T>(Arc<Mutex<Answer<T>>>);

impl<T> Future for ToVec<T> {
    type Output = Result<Vec<T>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = self.0.lock();
        match answer.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                answer.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
