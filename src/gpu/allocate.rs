//! Memory for blocks: the ladder of the pool, and above it the rungs that wait for the device.

use std::sync::Arc;

use super::spill::{HELD_BY_READS, Patience, Spilled};
use super::{Access, Gpu, GpuBlock, out_of_memory};
use crate::error::{Error, OutOfMemory, Result};
use crate::memory::{BlockId, FullReason, Request};
use crate::sync::atomic::Ordering;

impl Gpu {
    /// Memory for `bytes` bytes.
    ///
    /// # Errors
    /// `OutOfMemory` with the pool's figures, `DeviceLost`, `TimedOut`.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Arc<GpuBlock>> {
        self.with_access(&[], None, |access| self.allocate_in(access, bytes))
    }

    /// Memory for `bytes` bytes, for an op with access.
    ///
    /// # Errors
    /// As [`Gpu::allocate`].
    pub(crate) fn allocate_in(
        self: &Arc<Self>,
        access: &Access<'_>,
        bytes: u64,
    ) -> Result<Arc<GpuBlock>> {
        let request = Request::tagged(bytes);
        let id = self.take(access, request, None)?;
        Ok(self.adopted(id, request))
    }

    /// [`Gpu::allocate_in`] for what an op is faster with: nothing is spilled for it.
    ///
    /// # Errors
    /// As [`Gpu::allocate`]; an `OutOfMemory` that nobody reads where tensors would have to go.
    pub(crate) fn allocate_spare(
        self: &Arc<Self>,
        access: &Access<'_>,
        bytes: u64,
    ) -> Result<Arc<GpuBlock>> {
        if self.spill.is_none() {
            return self.allocate_in(access, bytes);
        }
        let request = Request::tagged(bytes);
        self.begins()?;
        let id = loop {
            match self.attempt(request, None)? {
                Ok(id) => break id,
                Err(FullReason::OverBudget) if self.takes_larger_share() => {}
                Err(_) => return Err(full_for_now(&self.name, request)),
            }
        };
        Ok(self.adopted(id, request))
    }

    /// What comes before any request.
    fn begins(&self) -> Result<()> {
        if self.crowded.load(Ordering::Relaxed) {
            // Else the adapter holds much more than is reserved.
            self.wait_for_returned()?;
        }
        self.health.check()
    }

    fn adopted(self: &Arc<Self>, id: BlockId, request: Request) -> Arc<GpuBlock> {
        let block = GpuBlock::new(Arc::clone(self), id, request);
        self.memory.lock().adopt(id, &block);
        block
    }

    /// A chunk, for a block that comes `back` from the host if one does: the ladder of the pool, and above it the
    /// rungs that wait for the device.
    ///
    /// # Errors
    /// As [`Gpu::allocate`].
    pub(super) fn take(
        self: &Arc<Self>,
        access: &Access<'_>,
        request: Request,
        back: Option<&Arc<GpuBlock>>,
    ) -> Result<BlockId> {
        self.begins()?;
        let (mut has_waited, mut in_use) = (false, u64::MAX);
        let (mut patience, mut spilled) = (Patience::default(), 0);
        let reason = loop {
            let reason = match self.attempt(request, back)? {
                Ok(id) => return Ok(id),
                Err(reason) => reason,
            };
            self.health.check()?;
            if reason == FullReason::OverBudget && self.takes_larger_share() {
                continue;
            }
            let refused = matches!(reason, FullReason::Refused(_));
            // With access that others share it is tried again anyway.
            if refused && !has_waited && !matches!(access, Access::Shared(..)) {
                // Memory that was given back is free only after the last work that used it.
                self.trim_to(0)?;
                self.finish("allocation", self.deadline())?;
                self.memory.lock().retried();
                has_waited = true;
                continue;
            }
            match access {
                Access::Free => break reason,
                // It is tried again, alone.
                Access::Shared(..) => return Err(full_for_now(&self.name, request)),
                _ if matches!(reason, FullReason::OverRegionLimit { .. }) => break reason,
                Access::Alone(..) => {
                    let before = self.memory.lock().statistics().allocated;
                    match self.spill_for(access, request, refused, spilled)? {
                        Spilled::Some(bytes) => {
                            // Each round moves what stays, so there are few: the next one doubles what went.
                            spilled += bytes;
                            // Regions that are idle now may go back, in their time.
                            has_waited &= !self.memory.lock().has_idle_region();
                            patience = Patience::default();
                        }
                        Spilled::Busy => {
                            if !patience.lasts(self, "allocation")? {
                                break reason;
                            }
                        }
                        Spilled::Nothing => {
                            // What was in the way may have been dropped since: by others, who take nothing meanwhile.
                            let mut memory = self.memory.lock();
                            memory.release_dying();
                            let left = memory.statistics().allocated;
                            let is_there = memory.room(refused) >= request.bytes && left < in_use;
                            if left >= before && !is_there {
                                break reason;
                            }
                            in_use = left;
                        }
                    }
                }
            }
        };
        let mut full = self.memory.lock().failed(request, reason);
        if self.spill.is_some() {
            // What may go went: it is no advice.
            full.spillable = 0;
        }
        let mut error = out_of_memory(&self.name, &full);
        if let (Error::OutOfMemory(details), Some(spill)) = (&mut error, &self.spill) {
            details.diagnosis.push_str(&spill.diagnosis(access));
            if patience.is_tried() {
                details.diagnosis.push_str(HELD_BY_READS);
            }
        }
        Err(error)
    }

    /// Whether others on the adapter leave more to devices without a budget than before: it is this one's from now on.
    pub(crate) fn takes_larger_share(&self) -> bool {
        let mut pool = self.memory.lock();
        let share = pool.source().claim().grown_share();
        if share.is_some() {
            pool.set_share(share);
        }
        share.is_some()
    }
}

/// What nobody reads: the op is tried again with the device's memory to itself.
fn full_for_now(device: &str, request: Request) -> Error {
    Error::OutOfMemory(Box::new(OutOfMemory {
        op: None,
        device: device.to_owned(),
        asked: request.bytes,
        limit: None,
        allocated: 0,
        reserved: 0,
        largest_free: 0,
        diagnosis: String::new(),
    }))
}
