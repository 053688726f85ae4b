//! Tensors to the host and to other devices.

use crate::cpu::host_vec;
use crate::device::Device;
use crate::dtype::{self, Element};
use crate::error::{Error, Result};
use crate::memory::Tag;
use crate::promise::Pending;
use crate::road;
use crate::tensor::Tensor;
use crate::turns::Turn;

impl Tensor {
    /// The elements, row-major, on the host. Waits for the device.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the tensor's dtype; [`Error::Execution`] when the
    /// work that made it failed; [`Error::OutOfMemory`] of the host or of staging; what a copy of a strided view can meet;
    /// [`Error::TimedOut`]; a lost device.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_dtype::<T>("to_vec")?;
        let source = self.dense("to_vec", || self.storage().turn_to_read())?;
        let mut data = host_vec("to_vec", source.elements())?;
        let mut sink = |piece: &[u8]| dtype::extend(&mut data, piece);
        let read = source.storage().read(source.byte_range(), &mut sink);
        read.map_err(|error| error.asked_by("to_vec"))?;
        Ok(data)
    }

    /// The elements, row-major, into memory that the caller has: for large tensors faster than
    /// [`Tensor::to_vec`], whose fresh memory the system must fill with zeros first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the length is not the tensor's; as [`Tensor::to_vec`], and
    /// then part of `target` may be written.
    pub fn read_into<T: Element>(&self, target: &mut [T]) -> Result<()> {
        self.check_dtype::<T>("read_into")?;
        self.check_length("read_into", target.len())?;
        let source = self.dense("read_into", || self.storage().turn_to_read())?;
        let mut at = 0;
        let read = source.storage().read(source.byte_range(), &mut |piece| {
            let count = piece.len() / size_of::<T>();
            if let Some(place) = target.get_mut(at..at + count) {
                dtype::read(place, piece);
            }
            at += count;
        });
        read.map_err(|error| error.asked_by("read_into"))
    }

    /// Writes elements of the caller's memory, row-major, over the tensor's own: all views of the storage see them. In the order
    /// of the device's work, so a read that began before still gets what was there. For a view with gaps or in another order, or
    /// whose bytes are no whole words of 4 on a GPU, a tensor beside it is made first. More than 4 MiB take as much staging,
    /// made for them, which takes several times an upload by [`Tensor::from_slice`], and wait until the last such write has run:
    /// where a frame counts, write parts of up to 4 MiB.
    ///
    /// ```
    /// use orlop::{DType, Device, Tensor};
    ///
    /// let frames = Tensor::zeros(&Device::cpu(), [2, 3], DType::F32)?;
    /// frames.slice(1)?.write_from(&[1.0f32, 2.0, 3.0])?;
    /// assert_eq!(frames.to_vec::<f32>()?, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the tensor's dtype; [`Error::InvalidArgument`] when the length is not the tensor's,
    /// or for a view that has one element at several places; [`Error::OutOfMemory`], of staging too; [`Error::Execution`] when the
    /// work that made the tensor failed; [`Error::TimedOut`]; a lost device. Nothing is written then.
    pub fn write_from<T: Element>(&self, source: &[T]) -> Result<()> {
        const OP: &str = "write_from";
        self.check_dtype::<T>(OP)?;
        self.check_length(OP, source.len())?;
        self.check_distinct(OP)?;
        let range = self.byte_range();
        let is_whole = range.start.is_multiple_of(4) && range.end.is_multiple_of(4);
        if self.is_contiguous() && (is_whole || self.device().is_cpu()) {
            let bytes = bytemuck::cast_slice(source);
            let written = self.storage().overwrite(range.start, bytes);
            return written.map_err(|error| error.asked_by(OP));
        }
        let beside = Tensor::from_elements(OP, self.device(), source, self.shape().clone())?;
        self.assign_for(OP, &beside)
    }

    /// [`Tensor::to_vec`] without blocking: the elements as they are at the call, whatever is
    /// recorded later. The call itself only fixes that order; all else, copies of strided views and
    /// the CPU's included, is done by a thread of the device, one future after another. Until it
    /// has recorded the read, ops that write the tensor in place wait. (A program that writes it
    /// through [`Tensor::wgpu_binding`] waits for the future first.) Dropping the future is safe at
    /// any time.
    ///
    /// # Errors
    /// From the future, as [`Tensor::to_vec`].
    pub fn to_vec_async<T: Element>(&self) -> Pending<Vec<T>> {
        let op = "to_vec_async";
        let ordered = self.check_dtype::<T>(op).and_then(|()| {
            self.device().background().order(op, |promise| {
                let (source, turn) = (self.clone(), self.storage().turn_to_read());
                let tag = Tag::current();
                Box::new(move || {
                    let result = match promise.is_awaited() {
                        true => tag.around(|| source.read_in_turn(op, turn)),
                        // Nobody is there to hear it.
                        false => Ok(Vec::new()),
                    };
                    promise.keep(result);
                })
            })
        });
        ordered.unwrap_or_else(|error| Pending::ready(Err(error)))
    }

    /// The elements one after the other, to be read. What is on the host while the device is full is read there, views too:
    /// nothing comes back for that, and it needs no device. Unless one has room and more lies between the elements than they
    /// are, which would be copied too. `turn`: to read, and over then.
    pub(crate) fn dense(
        &self,
        op: &'static str,
        turn: impl FnOnce() -> Option<Turn>,
    ) -> Result<Tensor> {
        if self.is_contiguous() || !self.storage().is_spilled() {
            return self.contiguous_for(op);
        }
        if self.has_wide_gaps() {
            match self.contiguous_for(op) {
                Err(Error::DeviceLost(_) | Error::OutOfMemory(_)) => {}
                there => return there,
            }
        }
        road::move_in_turn(op, self, &Device::cpu(), turn())?.contiguous_for(op)
    }

    /// Whether more lies between the elements than they are.
    fn has_wide_gaps(&self) -> bool {
        let layout = self.layout();
        layout.span().len() > 2 * layout.distinct().elements()
    }

    /// The elements in a turn that was taken before; drops this handle on the tensor.
    fn read_in_turn<T: Element>(self, op: &'static str, mut turn: Option<Turn>) -> Result<Vec<T>> {
        if let Some(turn) = &turn {
            self.storage().await_turn(turn)?;
            turn.is_here();
        }
        let source = self.dense(op, || turn.take())?;
        let turn = match source.shares_storage(&self) {
            true => turn,
            false => {
                // The copy is recorded, all of it.
                drop(turn);
                source.storage().turn_to_read()
            }
        };
        drop(self);
        let mut data = host_vec(op, source.elements())?;
        let range = source.byte_range();
        let mut sink = |piece: &[u8]| dtype::extend(&mut data, piece);
        let read = source.storage().read_in_turn(turn, range, &mut sink);
        read.map_err(|error| error.asked_by(op))?;
        Ok(data)
    }

    /// The one element of a tensor with one element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is not exactly one; as [`Tensor::to_vec`].
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.elements() {
            1 => {
                self.check_dtype::<T>("item")?;
                self.to_vec()?
                    .pop()
                    .ok_or_else(|| Error::invalid("item", "the device gave no element"))
            }
            count => Err(Error::invalid(
                "item",
                format!("shape {} has {count} elements, not one", self.shape()),
            )),
        }
    }

    /// The tensor on another device, through staging; the tensor itself when it is there already. What lies between the
    /// elements of a view travels with them, but where it is more than they: then they are copied together first, if there is
    /// room and a device for that.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`]; [`Error::Unsupported`] when the device cannot
    /// hold the dtype; [`Error::TimedOut`]; a lost device.
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        if !device.capabilities().holds(self.dtype()) {
            return Err(Error::unsupported(
                "to",
                device.to_string(),
                road::lacks(self.dtype()),
                "leave it where it is, or cast it first",
            ));
        }
        if self.device() != device && self.has_wide_gaps() {
            match self.copy_once("to") {
                Ok(once) => return road::move_to("to", &once, device),
                // Where nothing can be copied together any more, what lies between travels too.
                Err(Error::DeviceLost(_) | Error::OutOfMemory(_)) => {}
                Err(error) => return Err(error),
            }
        }
        road::move_to("to", self, device)
    }

    fn check_length(&self, op: &'static str, length: usize) -> Result<()> {
        if length == self.elements() {
            return Ok(());
        }
        let shape = self.shape();
        let problem = format!("{length} elements of memory for a tensor of shape {shape}");
        Err(Error::invalid(op, problem))
    }

    fn check_dtype<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE == self.dtype() {
            Ok(())
        } else {
            Err(Error::read_dtype(op, self.dtype(), T::DTYPE))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use half::f16;

    use super::*;
    use crate::device::Storage;
    use crate::dtype::DType;
    use crate::memory::WhenFull;

    /// On every device that is there, with all of its locks taken and so are the tensors: the calls
    /// return all the same, and what they ordered is what was there.
    #[test]
    fn calls_wait_for_nothing() {
        let spills = WhenFull::SpillToHost { most: None };
        let ways = [WhenFull::default(), spills];
        let infos = Device::list().unwrap();
        for (info, when_full) in infos.iter().flat_map(|info| ways.map(|way| (info, way))) {
            let device = Device::builder()
                .select(&info.selector)
                .when_full(when_full)
                .build()
                .unwrap();
            let (rows, columns) = (3000, 1000);
            let host: Vec<f32> = (0..rows * columns).map(|x| (x % 2039) as f32).collect();
            let whole = Tensor::from_slice(&device, &host, [rows, columns]).unwrap();
            let half = whole.cast(DType::F16).unwrap();
            assert!(half.device() == &device, "{info}");
            let small = Tensor::from_slice(&device, &host[..7], [7]).unwrap();
            let turned = |tensor: &Tensor| tensor.transpose(0, 1).unwrap();
            let empty = Tensor::empty(&device, [0], DType::F32).unwrap();
            let (called, calls) = mpsc::channel();
            let tensors = [whole, half, small];
            let held = tensors.clone();
            // A thread of its own, so that the test fails where it would hang.
            std::thread::spawn(move || {
                let taken = device.gpu().map(|gpu| gpu.take_locks());
                let written: Vec<_> = held
                    .iter()
                    .filter_map(|tensor| match tensor.storage() {
                        Storage::Host(block) => Some(block.write()),
                        _ => None,
                    })
                    .collect();
                let [whole, half, small] = &held;
                let floats = [
                    whole.to_vec_async::<f32>(),
                    turned(whole).to_vec_async(),
                    small.to_vec_async(),
                    empty.to_vec_async(),
                ];
                let halves = [half.to_vec_async::<f16>(), turned(half).to_vec_async()];
                let synchronized = device.synchronize_async();
                drop(whole.to_vec_async::<f32>());
                drop((taken, written));
                called.send((floats, halves, synchronized)).unwrap();
            });
            let (floats, halves, synchronized) = calls
                .recv_timeout(Duration::from_secs(60))
                .unwrap_or_else(|_| panic!("{info}: a call waits"));
            // Writers in place come after the reads.
            for tensor in &tensors {
                tensor.fill(-1).unwrap();
            }
            let [whole, turned, small, empty] =
                floats.map(|future| pollster::block_on(future).unwrap());
            let [half, half_turned] = halves.map(|future| pollster::block_on(future).unwrap());
            pollster::block_on(synchronized).unwrap();
            let across = |at: usize| host[at % rows * columns + at / rows];
            assert_eq!(whole, host, "{info}");
            assert!((0..).zip(&turned).all(|(at, &x)| x == across(at)), "{info}");
            assert_eq!(turned.len(), rows * columns);
            assert_eq!((&small[..], empty.len()), (&host[..7], 0), "{info}");
            let right = |(x, expected): (&f16, f32)| x.to_f32() == expected;
            assert!(half.iter().zip(host.iter().copied()).all(right), "{info}");
            assert!(half_turned.iter().zip((0..).map(across)).all(right));
            for tensor in &tensors {
                let last = tensor.slice(tensor.shape().dims()[0] - 1..).unwrap();
                let last = last.cast(DType::F32).unwrap().to_vec::<f32>().unwrap();
                assert!(last.iter().all(|&x| x == -1.0), "{info}");
            }
        }
    }
}
