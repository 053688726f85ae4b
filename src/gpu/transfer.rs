//! Uploads and downloads through staging, in order with everything else.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use smallvec::{SmallVec, smallvec};

use super::Gpu;
use super::batch::{Effect, Target};
use super::block::{GpuBlock, Source};
use super::health::Caught;
use super::staging::{self, COPY_ALIGNMENT, READ_SLOT, ReadSlot, SMALL_UPLOAD, Taken, UploadSlot};
use super::stream::Submission;
use super::wait::{IN_FLIGHT, WriteOrder};
use crate::error::{Error, OutOfMemory, Result};
use crate::sync::atomic::Ordering;
use crate::turns::Turn;

/// Copies recorded ahead of the reader, in slots; half of it a submission.
const READ_WINDOW: usize = 8;

/// Who gets the bytes of a download, in order, piece by piece. Copies them, and calls nothing of a device.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]);

impl Gpu {
    /// Records a copy of `data` to `start` of `block`, a multiple of 4.
    ///
    /// # Errors
    /// `DeviceLost`, or what the device said of staging memory.
    pub(super) fn upload_now(
        &self,
        block: &Arc<GpuBlock>,
        order: WriteOrder,
        start: u64,
        data: &[u8],
    ) -> Result<()> {
        if data.len() <= SMALL_UPLOAD {
            self.upload_small(block, order, start, data)?;
        } else {
            let most = staging::large_slot(&self.device);
            for (at, piece) in (0..).zip(data.chunks(most as usize)) {
                self.upload_piece(block, order, start + at * most, piece)?;
            }
        }
        Ok(())
    }

    /// Records a copy of `data` to `at` of a block with contents: as a whole, in one copy, or
    /// after an error not at all. For more than a slot holds it takes staging of that size, once the last one that did has run.
    ///
    /// # Errors
    /// As [`Gpu::upload`]; why the contents are missing; `TimedOut`.
    pub(crate) fn overwrite(
        self: &Arc<Self>,
        block: &Arc<GpuBlock>,
        at: u64,
        data: &[u8],
    ) -> Result<()> {
        block.check()?;
        if data.len() as u64 <= staging::large_slot(&self.device) {
            return self.upload(block, at, data);
        }
        let before = {
            let last = self.last_large.load(Ordering::Acquire);
            let is_running = self.progress.count() < last;
            let running = || self.stream.lock().submission_of(last);
            is_running.then(running).flatten()
        };
        if let Some(before) = before {
            self.wait_submission("upload", &before, self.deadline())?;
        }
        let (slot, written) = {
            let _hold = self.hold();
            let make = self.stream.lock().staging.slots_of_their_own();
            let slot = make(&self.device, data.len() as u64)
                .map_err(|caught| self.staging_failed(caught))?;
            let written = slot.write(0, data);
            staging::unmap(&self.device, &slot.buffer);
            (slot, written)
        };
        let recorded = self.with_access(&[block], Some(block), |access| {
            let (mut stream, _hold) = self.stream_to_write(block, access.order())?;
            let bytes = written
                .clone()
                .map_err(|reason| self.staging_failed(Caught::Other(reason)))?;
            let (to, start) = self.resolve(block, at, bytes)?;
            let from = slot.buffer.clone();
            stream.copy((from, 0), (to, start), bytes, upload_to(block));
            let submitted = stream.submit();
            self.last_large
                .fetch_max(stream.submissions(), Ordering::AcqRel);
            submitted
        });
        let _hold = self.hold();
        drop(slot);
        recorded
    }

    fn upload_small(
        &self,
        block: &Arc<GpuBlock>,
        order: WriteOrder,
        at: u64,
        data: &[u8],
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let (mut stream, _hold) = self.stream_to_write(block, order)?;
        let staged = stream.staging.stage_small(&self.device, data);
        let (from, offset) = staged.map_err(|caught| self.staging_failed(caught))?;
        let bytes = (data.len() as u64).next_multiple_of(COPY_ALIGNMENT);
        let (to, start) = self.resolve(block, at, bytes)?;
        stream.copy((from, offset), (to, start), bytes, upload_to(block));
        if stream.is_full() {
            stream.submit()
        } else {
            Ok(())
        }
    }

    fn upload_piece(
        &self,
        block: &Arc<GpuBlock>,
        order: WriteOrder,
        at: u64,
        piece: &[u8],
    ) -> Result<()> {
        let slot = self.take_upload_slot()?;
        // The copy into mapped memory is the expensive part: no stream lock here.
        let written = {
            let _hold = self.hold();
            let written = slot.write(0, piece);
            staging::unmap(&self.device, &slot.buffer);
            written
        };
        let locked = self.stream_to_write(block, order);
        let (mut stream, _hold) = match locked {
            Ok(locked) => locked,
            Err(error) => {
                let _hold = self.hold();
                self.stream.lock().staging.forget_large();
                drop(slot);
                return Err(error);
            }
        };
        let recorded = written
            .map_err(|reason| self.staging_failed(Caught::Other(reason)))
            .and_then(|bytes| Ok((bytes, self.resolve(block, at, bytes)?)));
        match recorded {
            Ok((bytes, (to, start))) => {
                let from = slot.buffer.clone();
                stream.copy((from, 0), (to, start), bytes, upload_to(block));
                stream.staging.recorded_large(slot);
                if stream.is_full() {
                    stream.submit()
                } else {
                    Ok(())
                }
            }
            Err(error) => {
                stream.staging.forget_large();
                // While GL's lock is held.
                drop(slot);
                Err(error)
            }
        }
    }

    /// A mapped slot; waits for one without the stream lock, which those that fill the others need.
    pub(super) fn take_upload_slot(&self) -> Result<UploadSlot> {
        let deadline = self.deadline();
        loop {
            let oldest = {
                let _hold = self.hold();
                let mut stream = self.stream.lock();
                self.health.check()?;
                let taken = stream.staging.take_large(&self.device);
                match taken.map_err(|caught| self.staging_failed(caught))? {
                    Taken::Slot(slot) => return Ok(slot),
                    Taken::Wait { recorded } => {
                        if recorded {
                            stream.submit()?;
                        }
                        stream.oldest_of(1)
                    }
                }
            };
            match oldest {
                Some(oldest) => self.wait_submission("upload", &oldest, deadline)?,
                // Other threads are filling all slots: they record and submit them soon.
                None => self.look_again("upload", deadline)?,
            }
        }
    }

    pub(super) fn staging_failed(&self, caught: Caught) -> Error {
        let is_full = matches!(caught, Caught::OutOfMemory(_));
        let reason = format!("{}; trim() gives idle memory back", caught.into_message());
        match self.health.explain(&self.device, "staging", reason) {
            Error::Execution(failed) if is_full => {
                let statistics = self.memory.lock().statistics();
                Error::OutOfMemory(Box::new(OutOfMemory {
                    op: None,
                    device: self.name.clone(),
                    asked: 0,
                    limit: statistics.limit,
                    allocated: statistics.allocated,
                    reserved: statistics.reserved,
                    largest_free: statistics.largest_free,
                    diagnosis: format!(
                        "no memory for staging, which is beside the budget: {}",
                        failed.reason
                    ),
                }))
            }
            other => other,
        }
    }

    /// The buffer and offset of `bytes` bytes at `at` of a block. Under the stream lock.
    pub(super) fn resolve(
        &self,
        block: &Arc<GpuBlock>,
        at: u64,
        bytes: u64,
    ) -> Result<(wgpu::Buffer, u64)> {
        let pool = self.memory.lock();
        pool.place(block.id())
            .filter(|place| at.checked_add(bytes).is_some_and(|end| end <= place.bytes))
            .and_then(|place| Some((pool.region(place.region)?.clone(), place.offset + at)))
            .ok_or_else(|| Error::invalid("copy", "the range is outside of the tensor's memory"))
    }

    /// Records the first copies of `bytes` bytes at `at`, in a turn that has come; the rest follows
    /// as this thread reads. The turn is over when all is recorded.
    ///
    /// # Errors
    /// Why the block has no contents, `DeviceLost`, `TimedOut`, or what the device said of staging memory.
    pub(crate) fn begin_download(
        &self,
        block: &Arc<GpuBlock>,
        turn: Turn,
        at: u64,
        bytes: u64,
    ) -> Result<Download> {
        let source = self.in_time(|| self.source_of(block))?;
        self.download_from(source, block, turn, at, bytes)
    }

    /// [`Gpu::begin_download`] from where the bytes are.
    ///
    /// # Errors
    /// As there.
    pub(super) fn download_from(
        &self,
        source: Source,
        block: &Arc<GpuBlock>,
        turn: Turn,
        at: u64,
        bytes: u64,
    ) -> Result<Download> {
        let start = at - at % COPY_ALIGNMENT;
        let mut download = Download {
            skip: (at - start) as usize,
            left: bytes as usize,
            next: start,
            end: (at + bytes).next_multiple_of(COPY_ALIGNMENT),
            window: VecDeque::new(),
            turn: Some(turn),
            source,
            block: Arc::clone(block),
        };
        if matches!(download.source, Source::Copy(_)) {
            return Ok(download);
        }
        block.used();
        download.record(self)?;
        Ok(download)
    }

    /// Where a block's bytes are read from, once the device is not too far behind: wgpu keeps the staging of downloads
    /// that were given up until they have run.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn in_time(&self, source: impl Fn() -> Result<Source>) -> Result<Source> {
        let mut deadline = None;
        loop {
            let source = source()?;
            if matches!(source, Source::Copy(_)) {
                return Ok(source);
            }
            let Some(oldest) = self.stream.lock().oldest_of(IN_FLIGHT) else {
                return Ok(source);
            };
            // The block may go to the host meanwhile.
            drop(source);
            let deadline = *deadline.get_or_insert_with(|| self.deadline());
            self.wait_submission("download", &oldest, deadline)?;
        }
    }
}

fn upload_to(block: &Arc<GpuBlock>) -> Effect {
    Effect {
        label: "upload",
        reads: SmallVec::new(),
        writes: Target::block(block),
    }
}

/// One copy on its way to the host.
struct Reading {
    slot: ReadSlot,
    bytes: u64,
    submission: Submission,
}

/// A download whose first copies are recorded.
pub(crate) struct Download {
    block: Arc<GpuBlock>,
    /// Bytes before the first one asked for: copies start at multiples of 4.
    skip: usize,
    left: usize,
    next: u64,
    end: u64,
    window: VecDeque<Reading>,
    /// Until all is recorded: nobody writes the block in place.
    turn: Option<Turn>,
    /// Until all is recorded: the block stays in its chunk, or what is read is its copy.
    source: Source,
}

impl Download {
    fn recorded_all(&mut self) {
        self.turn = None;
        self.source = Source::Chunk(None);
    }

    /// Records copies until [`READ_WINDOW`] are on their way, or as many as the driver has memory for.
    fn record(&mut self, gpu: &Gpu) -> Result<()> {
        if self.next >= self.end {
            self.recorded_all();
            return Ok(());
        }
        let _hold = gpu.hold();
        let mut stream = gpu.stream.lock();
        gpu.health.check()?;
        self.block.check()?;
        let mut slots = Vec::new();
        let failure = Arc::new(OnceLock::new());
        while self.next < self.end && self.window.len() + slots.len() < READ_WINDOW {
            let bytes = (self.end - self.next).min(READ_SLOT);
            let (from, start) = gpu.resolve(&self.block, self.next, bytes)?;
            let slot = match stream.staging.take_read(&gpu.device, bytes) {
                Ok(slot) => slot,
                // With fewer on their way it takes longer.
                Err(_) if !(slots.is_empty() && self.window.is_empty()) => break,
                Err(caught) => return Err(gpu.staging_failed(caught)),
            };
            let effect = Effect {
                label: "download",
                reads: smallvec![self.block.id()],
                writes: Target::Host(Arc::clone(&failure)),
            };
            stream.copy((from, start), (slot.buffer.clone(), 0), bytes, effect);
            self.next += bytes;
            slots.push((slot, bytes));
        }
        if slots.is_empty() {
            return Ok(());
        }
        stream.submit()?;
        if let Some(error) = failure.get() {
            return Err(error.clone());
        }
        let submission = stream.last_submission().ok_or_else(|| {
            let reason = "nothing was submitted".to_owned();
            gpu.health.explain(&gpu.device, "download", reason)
        })?;
        for (mut slot, bytes) in slots {
            slot.map(&gpu.device, bytes);
            self.window.push_back(Reading {
                slot,
                bytes,
                submission: submission.clone(),
            });
        }
        drop(stream);
        if self.next >= self.end {
            self.recorded_all();
        }
        Ok(())
    }

    /// Waits for the bytes and hands them over in order.
    ///
    /// # Errors
    /// `DeviceLost`, or what the device said.
    pub(crate) fn finish(mut self, sink: Sink<'_>) -> Result<()> {
        if let Source::Copy(copy) = &self.source {
            let start = self.next as usize + self.skip;
            sink(&copy[start..start + self.left]);
            return Ok(());
        }
        let gpu = Arc::clone(self.block.gpu());
        while let Some(reading) = self.window.pop_front() {
            // Its own for each piece: else what is long enough would never arrive.
            let deadline = gpu.deadline();
            let arrived = gpu
                .wait_for("download", &reading.submission, deadline, || {
                    reading.slot.state.done()
                })
                .and_then(|()| gpu.health.check());
            let hold = gpu.hold();
            let handed = arrived.and_then(|()| self.hand_over(&gpu, &reading, sink));
            // Where the wait gave up wgpu will map the slot for whoever asks then.
            let is_free = reading.slot.state.done();
            // Also after an error, while GL's lock is held.
            staging::unmap(&gpu.device, &reading.slot.buffer);
            if is_free {
                gpu.stream.lock().staging.return_read(reading.slot);
            } else {
                drop(reading.slot);
            }
            drop(hold);
            handed?;
            if self.window.len() <= READ_WINDOW / 2 {
                self.record(&gpu)?;
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, gpu: &Gpu, reading: &Reading, sink: Sink<'_>) -> Result<()> {
        let part = self.skip..(self.skip + self.left).min(reading.bytes as usize);
        let handed = reading
            .slot
            .read(reading.bytes, |view| sink(&view[part.clone()]));
        if !handed {
            // A loss, most likely, that may not be reported yet.
            let reason = "a read slot could not be mapped".to_owned();
            return Err(gpu.health.explain(&gpu.device, "download", reason));
        }
        self.left -= part.len();
        self.skip = 0;
        Ok(())
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _hold = self.block.gpu().hold();
        self.window.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::READ_WINDOW;
    use crate::device::{Device, Storage};
    use crate::dtype::DType;
    use crate::error::{Error, Result};
    use crate::gpu::deadline::with_waits;
    use crate::gpu::staging::{LARGE_SLOT, READ_SLOT};
    use crate::tensor::Tensor;

    /// However small uploads are, few wait for others to be submitted.
    #[test]
    fn batches_of_small_uploads_end() {
        for info in Device::list().unwrap() {
            let device = Device::builder().select(&info.selector).build().unwrap();
            let Some(gpu) = device.gpu() else { continue };
            let kept = Tensor::scalar(&device, 7u32).unwrap();
            for value in 0..10_000u32 {
                drop(Tensor::scalar(&device, value).unwrap());
                let waiting = gpu.stream.lock().commands();
                assert!(waiting <= 2048, "{info}: {waiting}");
            }
            assert_eq!(kept.item::<u32>().unwrap(), 7);
        }
    }

    /// What takes many times as long as one wait may: each of its pieces has that time to itself.
    #[test]
    fn long_downloads_wait_for_each_piece() {
        const COUNT: usize = 2 * READ_WINDOW * READ_SLOT as usize / 4;
        // No machine is so slow.
        const LIMIT: Duration = Duration::from_secs(3600);
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let builder = Device::builder().select(&info.selector);
            let device = builder.wait_timeout(LIMIT).build().unwrap();
            let tensor = Tensor::full(&device, [COUNT], 9, DType::U32).unwrap();
            let mut read = vec![0u32; COUNT];
            let mut read_in = |each| with_waits(each, || tensor.read_into(&mut read));
            let late = read_in(2 * LIMIT);
            assert!(matches!(late, Err(Error::TimedOut(_))), "{info}: {late:?}");
            read_in(LIMIT / 2).unwrap();
            assert!(read.iter().all(|&x| x == 9), "{info}");
        }
    }

    /// A busy device, staging for one slot and no patience: the rest of the pieces would time out
    /// after the first is recorded.
    #[test]
    fn a_failed_overwrite_changes_nothing() {
        const PATIENCE: Duration = Duration::from_secs(100);
        fn patiently<T>(device: &Device, mut call: impl FnMut() -> Result<T>) -> T {
            loop {
                match call() {
                    Err(Error::TimedOut(_)) => device.synchronize_within(PATIENCE).unwrap(),
                    other => return other.unwrap(),
                }
            }
        }
        let count = 4 * LARGE_SLOT as usize;
        for info in Device::list().unwrap() {
            let device = Device::builder()
                .select(&info.selector)
                .wait_timeout(Duration::from_millis(1))
                .build()
                .unwrap();
            let Some(gpu) = device.gpu() else { continue };
            let tensor = patiently(&device, || Tensor::zeros(&device, [count / 4], DType::I32));
            let Storage::Gpu(block) = tensor.storage() else {
                panic!("{info}: not on the device");
            };
            device.synchronize_within(PATIENCE).unwrap();
            let slots: Vec<_> = (0..7).map(|_| gpu.take_upload_slot().unwrap()).collect();
            let a = patiently(&device, || Tensor::ones(&device, [768, 768], DType::F32));
            let products: Vec<_> = (0..4)
                .map_while(|_| {
                    a.matmul(&a)
                        .and_then(|product| gpu.submit().map(|()| product))
                        .ok()
                })
                .collect();
            let outcome = gpu.overwrite(block, 0, &vec![1; count]);
            let expected = match outcome {
                Ok(()) => 0x0101_0101,
                Err(Error::TimedOut(_)) => 0,
                Err(error) => panic!("{info}: {error}"),
            };
            let holds = |expected: i32| {
                let part = count / 4 / 256;
                (0..256).all(|at| {
                    let part = tensor.slice(at * part..(at + 1) * part).unwrap();
                    let seen = patiently(&device, || part.to_vec::<i32>());
                    seen.iter().all(|&x| x == expected)
                })
            };
            assert!(holds(expected), "{info}: half of it");
            patiently(&device, || gpu.overwrite(block, 0, &vec![2; count]));
            assert!(holds(0x0202_0202), "{info}");
            let _hold = gpu.hold();
            let mut stream = gpu.stream.lock();
            for slot in slots {
                stream.staging.forget_large();
                drop(slot);
            }
            drop(stream);
            drop(_hold);
            drop(products);
        }
    }
}
