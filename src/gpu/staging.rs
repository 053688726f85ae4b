//! Mapped buffers through which every byte between host and device goes.
//!
//! Uploads are copied into a mapped slot and recorded in the stream as a copy, so they happen in
//! program order (`Queue::write_buffer` would overtake the open batch). Slots are reused once the
//! submission that read them is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::hal;
use super::health::{self, Caught};
use crate::faults::{Fault, FaultHook, INJECTED};

/// Copies and their offsets are multiples of this many bytes (wgpu).
pub(crate) const COPY_ALIGNMENT: u64 = 4;
/// Mapped ranges start at multiples of this many bytes (wgpu).
const MAP_ALIGNMENT: u64 = 8;

/// One large upload slot, where buffers may be so large: big enough that the copy commands do not matter.
pub(crate) const LARGE_SLOT: u64 = 4 << 20;
/// Slots shared by many small uploads of one batch.
pub(crate) const SMALL_SLOT: u64 = 256 << 10;
/// Uploads up to this size share a small slot.
pub(crate) const SMALL_UPLOAD: usize = 64 << 10;
/// Large slots that a device keeps at most.
pub(crate) const LARGE_SLOTS: usize = 8;
/// One read slot: small enough to stay in the cache between the copy and the read.
/// (The model checker has many schedules to run.)
pub(crate) const READ_SLOT: u64 = if cfg!(orlop_model) { 8 << 10 } else { 1 << 20 };
/// Read slots of up to this size serve small downloads.
const SMALL_READ_SLOT: u64 = 4 << 10;
/// Idle read slots that a device keeps of each size.
const READ_SLOTS: usize = 16;

/// Bytes of a large slot: [`LARGE_SLOT`] where the device's buffers may be so large.
pub(crate) fn large_slot(device: &wgpu::Device) -> u64 {
    let most = device.limits().max_buffer_size;
    LARGE_SLOT.min(most / MAP_ALIGNMENT * MAP_ALIGNMENT)
}

/// Why a mapping of a lost device is not used.
const GONE: &str = "its memory went with the device";

const WAITING: u8 = 0;
const MAPPED: u8 = 1;
const FAILED: u8 = 2;

/// Where a map callback leaves its result. It takes no lock and wakes nobody.
#[derive(Clone)]
pub(crate) struct MapState {
    state: Arc<AtomicU8>,
    backend: wgpu::Backend,
    faults: FaultHook,
}

impl MapState {
    fn new(backend: wgpu::Backend, faults: &FaultHook) -> Self {
        Self {
            state: Arc::default(),
            backend,
            faults: faults.clone(),
        }
    }

    pub(crate) fn done(&self) -> bool {
        self.state.load(Ordering::Acquire) != WAITING
    }

    pub(crate) fn mapped(&self) -> bool {
        self.state.load(Ordering::Acquire) == MAPPED
    }

    fn map(&self, device: &wgpu::Device, buffer: &wgpu::Buffer, mode: wgpu::MapMode, bytes: u64) {
        if self.faults.strikes(Fault::Mapping) {
            return self.state.store(FAILED, Ordering::Release);
        }
        self.state.store(WAITING, Ordering::Release);
        let told = Told {
            state: Arc::clone(&self.state),
            value: FAILED,
        };
        // The callback gets the error too.
        health::observed(device, || {
            buffer
                .slice(..bytes)
                .map_async(mode, move |result| told.with(result.is_ok()));
        });
    }
}

/// Stores what became of a mapping, also when its callback goes uncalled: wgpu drops those that come after one of a
/// program's that panics.
struct Told {
    state: Arc<AtomicU8>,
    value: u8,
}

impl Told {
    fn with(mut self, is_mapped: bool) {
        if is_mapped {
            self.value = MAPPED;
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.state.store(self.value, Ordering::Release);
    }
}

/// Unmaps a buffer; where the device is lost it has no mapping any more, and says so to nobody.
pub(crate) fn unmap(device: &wgpu::Device, buffer: &wgpu::Buffer) {
    health::observed(device, || buffer.unmap());
}

/// A buffer that is mapped for writing until it is recorded.
pub(crate) struct UploadSlot {
    pub buffer: wgpu::Buffer,
    state: MapState,
}

impl UploadSlot {
    fn create(
        device: &wgpu::Device,
        bytes: u64,
        backend: wgpu::Backend,
        faults: &FaultHook,
    ) -> Result<Self, Caught> {
        if faults.strikes(Fault::Mapping) {
            return Err(Caught::OutOfMemory(INJECTED.to_owned()));
        }
        let buffer = health::scoped(device, || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("orlop upload slot"),
                size: bytes.next_multiple_of(MAP_ALIGNMENT),
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            })
        })?;
        let state = MapState::new(backend, faults);
        state.state.store(MAPPED, Ordering::Release);
        Ok(Self { buffer, state })
    }

    /// Writes at `at`, a multiple of 8; pads with zeros to a multiple of 4 bytes.
    ///
    /// # Errors
    /// What the device said, when the slot is not mapped.
    pub(crate) fn write(&self, at: u64, data: &[u8]) -> Result<u64, String> {
        let bytes = (data.len() as u64).next_multiple_of(COPY_ALIGNMENT);
        let mut view = self
            .buffer
            .slice(at..at + bytes)
            .get_mapped_range_mut()
            .map_err(|error| error.to_string())?;
        let written = hal::with_memory(self.state.backend, &self.buffer, || {
            let (mut body, mut padding) = view.slice(..).split_at(data.len());
            body.copy_from_slice(data);
            padding.fill(0);
            bytes
        });
        written.ok_or_else(|| GONE.to_owned())
    }
}

/// Upload slots of one size on their way round: free, recorded, in flight, free again.
struct Ring {
    slot_bytes: u64,
    created: usize,
    free: Vec<UploadSlot>,
    recorded: Vec<UploadSlot>,
    in_flight: Vec<UploadSlot>,
    backend: wgpu::Backend,
    faults: FaultHook,
}

impl Ring {
    fn new(slot_bytes: u64, backend: wgpu::Backend, faults: &FaultHook) -> Self {
        Self {
            backend,
            faults: faults.clone(),
            slot_bytes,
            created: 0,
            free: Vec::new(),
            recorded: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    fn take(&mut self) -> Option<UploadSlot> {
        if self.free.is_empty() {
            self.collect();
        }
        self.free.pop()
    }

    /// Takes slots back whose submission is done.
    fn collect(&mut self) {
        let (done, waiting): (Vec<_>, Vec<_>) =
            self.in_flight.drain(..).partition(|slot| slot.state.done());
        self.in_flight = waiting;
        let returned = done.len();
        let before = self.free.len();
        // A slot that could not be mapped again is dropped, and may be replaced.
        self.free
            .extend(done.into_iter().filter(|slot| slot.state.mapped()));
        self.created -= returned - (self.free.len() - before);
    }

    fn create(&mut self, device: &wgpu::Device) -> Result<UploadSlot, Caught> {
        let slot = UploadSlot::create(device, self.slot_bytes, self.backend, &self.faults)?;
        self.created += 1;
        Ok(slot)
    }

    fn submitted(&mut self, device: &wgpu::Device) {
        for slot in self.recorded.drain(..) {
            slot.state
                .map(device, &slot.buffer, wgpu::MapMode::Write, self.slot_bytes);
            self.in_flight.push(slot);
        }
    }
}

/// A buffer that the device copies into and the host reads.
pub(crate) struct ReadSlot {
    pub buffer: wgpu::Buffer,
    pub state: MapState,
}

impl ReadSlot {
    /// Asks for the mapping; call it after the copy was submitted.
    pub(crate) fn map(&mut self, device: &wgpu::Device, bytes: u64) {
        // A callback of an earlier mapping that was given up may still come.
        self.state = MapState::new(self.state.backend, &self.state.faults);
        self.state
            .map(device, &self.buffer, wgpu::MapMode::Read, bytes);
    }

    /// Hands the first `bytes` bytes over. False when the slot is not mapped.
    pub(crate) fn read(&self, bytes: u64, sink: impl FnOnce(&[u8])) -> bool {
        if !self.state.mapped() {
            return false;
        }
        let Ok(view) = self.buffer.slice(..bytes).get_mapped_range() else {
            return false;
        };
        hal::with_memory(self.state.backend, &self.buffer, || sink(&view)).is_some()
    }
}

/// All staging of one device.
pub(crate) struct Staging {
    large: Ring,
    small: Ring,
    /// The small slot that is being filled, and how far.
    open: Option<(UploadSlot, u64)>,
    small_reads: Vec<ReadSlot>,
    large_reads: Vec<ReadSlot>,
    backend: wgpu::Backend,
    faults: FaultHook,
}

/// Answer of [`Staging::take_large`].
pub(crate) enum Taken {
    Slot(UploadSlot),
    /// All slots are in use: wait for a submission. `recorded` when the open batch holds some.
    Wait {
        recorded: bool,
    },
}

impl Staging {
    pub(crate) fn new(device: &wgpu::Device, faults: FaultHook) -> Self {
        let backend = device.adapter_info().backend;
        Self {
            large: Ring::new(large_slot(device), backend, &faults),
            small: Ring::new(SMALL_SLOT, backend, &faults),
            backend,
            faults,
            open: None,
            small_reads: Vec::new(),
            large_reads: Vec::new(),
        }
    }

    /// A large slot to fill outside any lock.
    pub(crate) fn take_large(&mut self, device: &wgpu::Device) -> Result<Taken, Caught> {
        if let Some(slot) = self.large.take() {
            return Ok(Taken::Slot(slot));
        }
        if self.large.created < LARGE_SLOTS {
            return self.large.create(device).map(Taken::Slot);
        }
        Ok(Taken::Wait {
            recorded: !self.large.recorded.is_empty(),
        })
    }

    /// Makes a slot that is used once, for so many bytes at least: without the stream's lock, since it takes as long as they are many.
    pub(crate) fn slots_of_their_own(
        &self,
    ) -> impl Fn(&wgpu::Device, u64) -> Result<UploadSlot, Caught> + use<> {
        let (backend, faults) = (self.backend, self.faults.clone());
        move |device, bytes| UploadSlot::create(device, bytes, backend, &faults)
    }

    /// A large slot whose copy is recorded: back once the batch is done.
    pub(crate) fn recorded_large(&mut self, slot: UploadSlot) {
        self.large.recorded.push(slot);
    }

    /// A slot that was taken and came to nothing.
    pub(crate) fn forget_large(&mut self) {
        self.large.created = self.large.created.saturating_sub(1);
    }

    /// Copies a small piece into the batch's open slot; gives the buffer and offset to copy from.
    pub(crate) fn stage_small(
        &mut self,
        device: &wgpu::Device,
        data: &[u8],
    ) -> Result<(wgpu::Buffer, u64), Caught> {
        let needed = (data.len() as u64).next_multiple_of(COPY_ALIGNMENT);
        if let Some((slot, used)) = self.open.take_if(|(_, used)| *used + needed > SMALL_SLOT) {
            self.close(device, slot, used);
        }
        let (slot, used) = match self.open.take() {
            Some(open) => open,
            None => match self.small.take() {
                Some(slot) => (slot, 0),
                None => (self.small.create(device)?, 0),
            },
        };
        let buffer = slot.buffer.clone();
        match slot.write(used, data) {
            Ok(written) => {
                self.open = Some((slot, (used + written).next_multiple_of(MAP_ALIGNMENT)));
                Ok((buffer, used))
            }
            Err(reason) => {
                // What was staged in it before still goes; the ring makes another.
                self.close(device, slot, used);
                Err(Caught::Other(reason))
            }
        }
    }

    fn close(&mut self, device: &wgpu::Device, slot: UploadSlot, used: u64) {
        if used == 0 {
            self.small.free.push(slot);
        } else {
            unmap(device, &slot.buffer);
            self.small.recorded.push(slot);
        }
    }

    /// Mapped buffers block a submission: call this just before one.
    pub(crate) fn before_submit(&mut self, device: &wgpu::Device) {
        if let Some((slot, used)) = self.open.take() {
            self.close(device, slot, used);
        }
    }

    /// Sends the recorded slots on their way back.
    pub(crate) fn after_submit(&mut self, device: &wgpu::Device) {
        self.large.submitted(device);
        self.small.submitted(device);
    }

    /// A read slot for `bytes` (at most [`READ_SLOT`]); never waits.
    pub(crate) fn take_read(
        &mut self,
        device: &wgpu::Device,
        bytes: u64,
    ) -> Result<ReadSlot, Caught> {
        let (idle, size) = if bytes <= SMALL_READ_SLOT {
            (&mut self.small_reads, SMALL_READ_SLOT)
        } else {
            (&mut self.large_reads, READ_SLOT)
        };
        if let Some(slot) = idle.pop() {
            return Ok(slot);
        }
        let buffer = health::scoped(device, || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("orlop read slot"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })?;
        Ok(ReadSlot {
            buffer,
            state: MapState::new(self.backend, &self.faults),
        })
    }

    /// Takes an unmapped read slot back.
    pub(crate) fn return_read(&mut self, slot: ReadSlot) {
        let idle = if slot.buffer.size() <= SMALL_READ_SLOT {
            &mut self.small_reads
        } else {
            &mut self.large_reads
        };
        if idle.len() < READ_SLOTS {
            idle.push(slot);
        }
    }

    /// Gives idle slots back to the adapter.
    pub(crate) fn trim(&mut self) {
        for ring in [&mut self.large, &mut self.small] {
            ring.collect();
            ring.created -= ring.free.len().min(ring.created);
            ring.free.clear();
        }
        self.small_reads.clear();
        self.large_reads.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::device::Device;
    use crate::tensor::Tensor;

    /// Slots that nothing uses any more are the adapter's after a trim.
    #[test]
    fn trim_gives_slots_back() {
        for info in Device::list().unwrap() {
            let device = Device::select(&info.selector).unwrap();
            let Some(gpu) = device.gpu() else { continue };
            let values = vec![1.0f32; 3 << 20];
            let large = Tensor::from_slice(&device, &values, values.len()).unwrap();
            let small = Tensor::from_slice(&device, &[1.0f32], 1).unwrap();
            assert!(large.to_vec::<f32>().unwrap() == values);
            assert_eq!(small.to_vec::<f32>().unwrap(), [1.0]);
            device.synchronize().unwrap();
            let kept = || {
                let _hold = gpu.hold();
                let staging = &gpu.stream.lock().staging;
                let uploads = staging.large.created + staging.small.created;
                (
                    uploads,
                    staging.large_reads.len() + staging.small_reads.len(),
                )
            };
            let (uploads, reads) = kept();
            assert!(uploads > 1 && reads > 1, "{info}: {uploads}, {reads}");
            let started = Instant::now();
            // What was unmapped for a copy may be on its way back.
            while kept() != (0, 0) {
                device.trim().unwrap();
                device.synchronize().unwrap();
                assert!(
                    started.elapsed() < Duration::from_secs(60),
                    "{info}: {:?}",
                    kept()
                );
            }
        }
    }
}
