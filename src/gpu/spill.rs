//! Tensors whose bytes are on the host for a while, because the device is full.
//!
//! The contents of a spilled block are a copy on the host; it has no chunk. It gets one again when an
//! op needs it. Whoever needs room that moving blocks cannot make does so *alone*: no other op of
//! the device is between finding its operands and being recorded, so nothing that is brought back
//! for one op is spilled for another, and an op whose operands and results do not fit together
//! fails instead of taking turns with itself. Reads by the host go on meanwhile: a spilled block is
//! read from its copy, and one that is being read is not spilled. Those of other blocks that come meanwhile wait, or there might
//! always be one.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::Gpu;
use super::block::{GpuBlock, Held, Source};
use super::deadline::Deadline;
use super::wait::WriteOrder;
use crate::error::{Error, Result};
use crate::memory::Bytes;
use crate::memory::order;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long one that needs room waits for downloads that keep blocks where they are.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// What errors say once it has ended.
pub(super) const HELD_BY_READS: &str = "; reads that are under way kept tensors where they are";

/// What is left of it.
#[derive(Default)]
pub(super) struct Patience(Option<(Instant, Deadline)>);

impl Patience {
    /// Looks once more at what downloads keep; false once they have been waited for long enough.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn lasts(&mut self, gpu: &Gpu, what: &'static str) -> Result<bool> {
        let (since, deadline) = *self
            .0
            .get_or_insert_with(|| (Instant::now(), gpu.deadline()));
        if since.elapsed() > PATIENCE {
            return Ok(false);
        }
        gpu.look_again(what, deadline)?;
        Ok(true)
    }

    /// Whether anything is waited for.
    pub(super) fn is_tried(&self) -> bool {
        self.0.is_some()
    }
}

/// Who may use the device's memory, and how much of it is on the host.
pub(crate) struct Spill {
    /// Most bytes on the host.
    most: u64,
    pub(super) bytes: AtomicU64,
    ops: RwLock<()>,
    /// Blocks by when they were used last, the oldest at the end, as they were when all were looked at: those that
    /// were used or made since are younger than all of these. Those that had to stay at some moment, for anything but the host's room, are missing until all
    /// are looked at again, which is once the others are not enough. Locked within access, by an op that is alone, which
    /// downloads what goes: so its holder may wait for the device.
    pub(super) oldest: Mutex<Vec<Candidate>>,
}

/// A block that may be spilled as long as it was used at that time last. Weak: a tensor that is dropped meanwhile frees
/// its memory at once.
pub(super) struct Candidate {
    pub(super) last_used: u64,
    pub(super) block: Weak<GpuBlock>,
}

/// The right to find operands, take memory and record, as one op. Its holder may wait for the device. Turns at
/// what is written are waited for before it, since reads may have to wait for it: docs/architecture.md, "Locks".
// The guards are held, not read.
#[allow(dead_code)]
pub(crate) enum Access<'a> {
    /// The device does not spill.
    Free,
    /// Beside other ops: nothing is spilled.
    Shared(RwLockReadGuard<'a, ()>),
    /// No other op is at it: all may be spilled but the blocks of this one, and so many bytes may be on the host beside
    /// those that come back.
    Alone(RwLockWriteGuard<'a, ()>, &'a [&'a Arc<GpuBlock>], u64),
}

impl Access<'_> {
    /// Who waits for the reads before a write.
    pub(super) fn order(&self) -> WriteOrder {
        match self {
            Access::Free => WriteOrder::Waits,
            Access::Shared(_) | Access::Alone(..) => WriteOrder::Kept,
        }
    }

    /// Bytes of the op's blocks, which nothing else can take the place of.
    fn operands(&self) -> u64 {
        match self {
            Access::Free | Access::Shared(_) => 0,
            Access::Alone(_, blocks, _) => distinct(blocks).map(|block| block.bytes()).sum(),
        }
    }

    /// Most bytes on the host at this moment: those of the op's blocks that are there will be in device memory.
    pub(super) fn most_on_host(&self) -> u64 {
        match self {
            Access::Free | Access::Shared(_) => 0,
            Access::Alone(_, blocks, beside) => distinct(blocks)
                .filter(|block| !block.is_resident())
                .map(|block| block.bytes())
                .fold(*beside, u64::saturating_add),
        }
    }
}

/// Each of an op's blocks once.
fn distinct<'a>(blocks: &'a [&'a Arc<GpuBlock>]) -> impl Iterator<Item = &'a Arc<GpuBlock>> {
    let mut seen = FxHashSet::default();
    let blocks = blocks.iter().copied();
    blocks.filter(move |block| seen.insert(Arc::as_ptr(block)))
}

impl Spill {
    pub(super) fn new(most: Option<u64>) -> Self {
        Self {
            most: most.unwrap_or(u64::MAX),
            bytes: AtomicU64::new(0),
            ops: RwLock::new(()),
            oldest: Mutex::new(Vec::new()),
        }
    }

    /// Gives candidates back that were not needed, the oldest first.
    pub(super) fn put_back(
        &self,
        oldest: &mut Vec<Candidate>,
        candidates: impl DoubleEndedIterator<Item = Candidate>,
    ) {
        oldest.extend(candidates.rev());
        if self.most < u64::MAX {
            // What the host had no room for may be older.
            order::sort(oldest, |candidate| (!candidate.last_used, 0));
        }
    }

    /// Bytes on the host now.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// A copy on the host is gone.
    pub(super) fn forget(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// What was done and why it was not enough, for the error.
    pub(super) fn diagnosis(&self, access: &Access<'_>) -> String {
        let host = Bytes(self.bytes());
        let mut text = match self.most {
            u64::MAX => format!("; {host} are on the host already"),
            most => format!(
                "; {host} of at most {} are on the host already (`most` of `WhenFull::SpillToHost`)",
                Bytes(most)
            ),
        };
        let operands = access.operands();
        if operands > 0 {
            text += &format!(
                "; {} of what is in use or on the host are the op's own operands, which have to be there with its result",
                Bytes(operands)
            );
        }
        text
    }
}

/// What [`Gpu::spill_until`] found.
pub(super) enum Spilled {
    /// There may be room now: so many bytes went.
    Some(u64),
    /// Downloads keep blocks where they are, until they are recorded.
    Busy,
    /// Nothing that would help.
    Nothing,
}

/// Keeps a block where it is in device memory until it is dropped.
pub(crate) struct Pin(Arc<GpuBlock>);

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.gpu().memory.lock().unpin(self.0.id());
    }
}

impl Gpu {
    /// Keeps a block where it is, in device memory.
    ///
    /// # Errors
    /// As [`Gpu::with_access`].
    pub(crate) fn pin(self: &Arc<Self>, block: &Arc<GpuBlock>) -> Result<Pin> {
        self.health.check()?;
        self.with_access(&[block], None, |_| {
            self.memory.lock().pin(block.id());
            Ok(Pin(Arc::clone(block)))
        })
    }

    /// Runs `step`, which takes memory and records work on `blocks`, with all of them in device
    /// memory, `written` being one that exists and changes. Where it runs out of memory and the
    /// device spills, it runs a second time with the device's memory to itself.
    ///
    /// # Errors
    /// What `step` says; `OutOfMemory` when `blocks` do not fit together; `DeviceLost`, `TimedOut`.
    pub(crate) fn with_access<T>(
        self: &Arc<Self>,
        blocks: &[&Arc<GpuBlock>],
        written: Option<&Arc<GpuBlock>>,
        mut step: impl FnMut(&Access<'_>) -> Result<T>,
    ) -> Result<T> {
        let _change = written.and_then(|written| written.write_here());
        let Some(spill) = &self.spill else {
            return step(&Access::Free);
        };
        let _turn = match written {
            Some(written) => Some(self.line_up_to_write(written)?),
            None => None,
        };
        {
            let access = Access::Shared(self.share(spill)?);
            if blocks.iter().all(|block| block.is_resident()) {
                match step(&access) {
                    Err(Error::OutOfMemory(_)) => {}
                    done => return done,
                }
            }
        }
        let access = self.alone(spill, blocks)?;
        let _held: SmallVec<[Held; 4]> = blocks.iter().map(|block| Held::new(block)).collect();
        for block in blocks {
            self.bring_back(block, &access)?;
        }
        step(&access)
    }

    /// Access to all of the device's memory, for an op with such blocks: once no other op is at it.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(super) fn alone<'a>(
        &self,
        spill: &'a Spill,
        blocks: &'a [&'a Arc<GpuBlock>],
    ) -> Result<Access<'a>> {
        let alone = match self.wait_timeout {
            None => spill.ops.write(),
            Some(limit) => spill
                .ops
                .try_write_for(limit)
                .ok_or_else(|| self.waited_for_others(limit))?,
        };
        // There is more where a block could not come back after others had made room for it: these change places with it yet.
        let beside = spill.most.max(spill.bytes());
        Ok(Access::Alone(alone, blocks, beside))
    }

    /// Access beside others, behind an op that has the device's memory to itself.
    fn share<'a>(&self, spill: &'a Spill) -> Result<RwLockReadGuard<'a, ()>> {
        match self.wait_timeout {
            None => Ok(spill.ops.read()),
            Some(limit) => {
                (spill.ops.try_read_for(limit)).ok_or_else(|| self.waited_for_others(limit))
            }
        }
    }

    /// Where a download that begins now gets a block's bytes: from the copy, or behind an op that has the device's memory to
    /// itself. That may be waiting until the block leaves its chunk, which it never would if reads went on coming.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(super) fn source_of(&self, block: &Arc<GpuBlock>) -> Result<Source> {
        // Nobody writes it before this read's turn is over, so the copy stays what it holds.
        if let Some(copy) = block.copy() {
            return Ok(Source::Copy(copy));
        }
        let _others = match &self.spill {
            Some(spill) => Some(self.share(spill)?),
            None => None,
        };
        Ok(block.source())
    }

    fn waited_for_others(&self, limit: Duration) -> Error {
        Error::timed_out(&self.name, "other ops that need room", limit)
    }

    /// Records a copy of `data` to `start` of `block`, a multiple of 4.
    ///
    /// # Errors
    /// As [`Gpu::with_access`], and what the device said of staging memory.
    pub(crate) fn upload(
        self: &Arc<Self>,
        block: &Arc<GpuBlock>,
        start: u64,
        data: &[u8],
    ) -> Result<()> {
        self.with_access(&[block], Some(block), |access| {
            self.upload_now(block, access.order(), start, data)
        })
    }

    /// Bytes that could go to the host now: in blocks that are not pinned, as many as the host may hold more.
    pub(crate) fn spillable(&self) -> u64 {
        self.spill.as_ref().map_or(0, |spill| {
            let place = spill.most.saturating_sub(spill.bytes());
            self.memory.lock().unpinned().min(place)
        })
    }

    /// Gives a spilled block a chunk with its contents.
    fn bring_back(self: &Arc<Self>, block: &Arc<GpuBlock>, access: &Access<'_>) -> Result<()> {
        let Some(copy) = block.copy() else {
            return Ok(());
        };
        self.take(access, block.request(), Some(block))?;
        // Until then the copy is what readers get.
        let uploaded = self
            .upload_now(block, WriteOrder::Kept, 0, &copy)
            // Until the device has taken it, too: what it refuses later would be nowhere.
            .and_then(|()| self.submit())
            .and_then(|()| block.check());
        match uploaded {
            Ok(()) => {
                let _memory = self.memory.lock();
                block.forget_copy();
            }
            Err(_) => self.stay_away(block),
        }
        uploaded
    }

    /// The contents of a block did not get into the chunk that it was given: they are on the host as before.
    pub(super) fn stay_away(&self, block: &Arc<GpuBlock>) {
        let mut memory = self.memory.lock();
        let number = memory.set_aside(block.id());
        memory.return_failed(number);
        block.stay_away(number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::device::{Device, DeviceBuilder, Storage};
    use crate::dtype::DType;
    use crate::gpu::transfer::Download;
    use crate::memory::WhenFull;
    use crate::tensor::Tensor;

    /// Another op has the device to itself: an op waits as long as the device was told to.
    #[test]
    fn waits_for_others_end_at_their_limit() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let limit = Duration::from_millis(20);
            let builder = Device::builder().select(&info.selector).wait_timeout(limit);
            let device = builder
                .when_full(WhenFull::SpillToHost { most: None })
                .build()
                .unwrap();
            let gpu = device.gpu().unwrap();
            let alone = gpu.spill.as_ref().unwrap().ops.write();
            let refused = Tensor::empty(&device, [1], DType::F32).map(drop);
            assert!(matches!(refused, Err(Error::TimedOut(_))), "{refused:?}");
            drop(alone);
            let shared = gpu.spill.as_ref().unwrap().ops.read();
            Tensor::empty(&device, [1], DType::F32).unwrap();
            drop(shared);
        }
    }

    /// More than a download records at first.
    const COUNT: usize = 6 << 20;
    const BYTES: u64 = COUNT as u64 * 4;

    /// A device, a tensor that it has no more room than for, and a read of it that does not go on.
    fn read_that_stands(builder: DeviceBuilder) -> (Device, Tensor, Download) {
        let builder = builder.memory_limit(BYTES);
        let device = builder
            .when_full(WhenFull::SpillToHost { most: None })
            .build()
            .unwrap();
        let tensor = Tensor::empty(&device, [COUNT], DType::U32).unwrap();
        let Storage::Gpu(block) = tensor.storage() else {
            panic!("{device}: not on the device");
        };
        let (gpu, turn) = (device.gpu().unwrap(), block.turns().to_read());
        let read = gpu.begin_download(block, turn, 0, BYTES).unwrap();
        assert!(block.is_leaving(), "{device}: all of it is recorded");
        (device, tensor, read)
    }

    /// Without a limit an allocation waits for it for a while, and says so.
    #[test]
    fn patience_with_readers_ends() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let builder = Device::builder().select(&info.selector);
            let (device, _tensor, read) = read_that_stands(builder);
            let started = Instant::now();
            let refused = Tensor::empty(&device, [COUNT], DType::U32).map(drop);
            let text = refused.expect_err("no room").to_string();
            assert!(text.contains("reads that are under way"), "{info}: {text}");
            let waited = started.elapsed();
            assert!(
                waited >= PATIENCE && waited < 60 * PATIENCE,
                "{info}: {waited:?}"
            );
            drop(read);
            Tensor::empty(&device, [COUNT], DType::U32).unwrap();
        }
    }

    /// A read that does not go on keeps what would have to go: an allocation waits as long as the device was told to, not
    /// until its patience ends.
    #[test]
    fn waits_for_readers_end_at_their_limit() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let limit = Duration::from_millis(200);
            let builder = Device::builder().select(&info.selector).wait_timeout(limit);
            let (device, _tensor, read) = read_that_stands(builder);
            let refused = Tensor::empty(&device, [COUNT], DType::U32).map(drop);
            assert!(
                matches!(refused, Err(Error::TimedOut(_))),
                "{info}: {refused:?}"
            );
            drop(read);
            let mut room = Tensor::empty(&device, [COUNT], DType::U32);
            // Its copy to the host takes as many waits as it has pieces, each with a limit of its own.
            while matches!(room, Err(Error::TimedOut(_))) {
                room = Tensor::empty(&device, [COUNT], DType::U32);
            }
            room.unwrap();
        }
    }
}
