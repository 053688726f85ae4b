//! Which blocks go to the host, and how.

use std::sync::Arc;

use super::Gpu;
use super::block::GpuBlock;
use super::spill::{Access, Candidate, Spill, Spilled};
use crate::error::{Error, Result};
use crate::memory::{QUANTUM, Request, order};
use crate::sync::atomic::Ordering;

impl Gpu {
    /// Spills blocks until there may be room for a request, and `least` bytes if there are so many; none where all that may
    /// go would not be enough. `refused`: the adapter gives no more, so that only freed bytes count.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn spill_for(
        &self,
        access: &Access<'_>,
        request: Request,
        refused: bool,
        least: u64,
    ) -> Result<Spilled> {
        let Some(spill) = &self.spill else {
            return Ok(Spilled::Nothing);
        };
        let bytes = request.bytes.max(1).next_multiple_of(QUANTUM);
        if !self.memory.lock().could_hold(bytes) {
            // What is pinned stays in the way, whatever goes.
            return Ok(Spilled::Nothing);
        }
        let needed = || bytes.saturating_sub(self.memory.lock().room(refused));
        self.spill_until(spill, access, least, needed)
    }

    /// Spills blocks, those that were used least recently first, until no more bytes are `needed`, and `least` bytes if there
    /// are so many; none where all that may go would not be enough.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn spill_until(
        &self,
        spill: &Spill,
        access: &Access<'_>,
        least: u64,
        needed: impl Fn() -> u64,
    ) -> Result<Spilled> {
        let most = access.most_on_host();
        let place = || most.saturating_sub(spill.bytes());
        let mut oldest = spill.oldest.lock();
        let (mut busy, mut is_leaving, mut has_looked) = (0, false, false);
        let mut spilled = 0;
        loop {
            let needs = needed();
            let wanted = needs.max(least.saturating_sub(spilled));
            let (victims, yields) = self.victims(&mut oldest, wanted, place());
            if victims.is_empty() || yields < needs {
                spill.put_back(&mut oldest, victims.into_iter());
                if !has_looked {
                    busy = self.look_at_all(&mut oldest, place());
                    has_looked = true;
                    continue;
                }
                let is_busy = is_leaving || busy > 0 && yields.saturating_add(busy) >= needs;
                return Ok(match spilled {
                    0 if is_busy => Spilled::Busy,
                    0 => Spilled::Nothing,
                    spilled => Spilled::Some(spilled),
                });
            }
            let mut victims = victims.into_iter();
            while let Some(candidate) = victims.next() {
                let block = candidate.block.upgrade();
                // It may have been dropped meanwhile.
                let done = block.as_ref().map(|block| self.spill_block(spill, block));
                match done.unwrap_or(Ok(true)) {
                    Ok(true) => spilled += block.map_or(1, |block| block.bytes()),
                    // It has to stay: the next one.
                    Ok(false) => {
                        is_leaving |= block.is_some_and(|block| block.is_leaving());
                        continue;
                    }
                    Err(error) => {
                        spill.put_back(&mut oldest, victims);
                        return Err(error);
                    }
                }
                if needed() == 0 && spilled >= least {
                    spill.put_back(&mut oldest, victims);
                    return Ok(Spilled::Some(spilled));
                }
            }
        }
    }

    /// Takes those that go first from the candidates, one at least, until they yield `needed` bytes, `room` at most:
    /// the oldest first, and what they yield.
    fn victims(
        &self,
        oldest: &mut Vec<Candidate>,
        needed: u64,
        room: u64,
    ) -> (Vec<Candidate>, u64) {
        let (mut victims, mut yields) = (Vec::new(), 0u64);
        // The host may have room for them another time.
        let mut larger = Vec::new();
        while victims.is_empty() || yields < needed {
            let Some(candidate) = oldest.pop() else {
                break;
            };
            let Some(block) = candidate.block.upgrade() else {
                continue;
            };
            if block.last_used() != candidate.last_used || !block.may_be_spilled() {
                continue;
            }
            if yields.saturating_add(block.bytes()) > room {
                larger.push(candidate);
            } else if !self.memory.lock().is_pinned(block.id()) {
                yields += block.bytes();
                victims.push(candidate);
            }
        }
        oldest.extend(larger.into_iter().rev());
        (victims, yields)
    }

    /// Finds the candidates anew; the bytes of blocks that only downloads keep where they are, of those that `room` has
    /// place for.
    fn look_at_all(&self, oldest: &mut Vec<Candidate>, room: u64) -> u64 {
        let (residents, are_pinned) = {
            let memory = self.memory.lock();
            let residents = memory.residents();
            let are_pinned = residents.iter().map(|block| memory.is_pinned(block.id()));
            let are_pinned: Vec<bool> = are_pinned.collect();
            (residents, are_pinned)
        };
        let mut busy = 0u64;
        oldest.clear();
        for (block, is_pinned) in residents.into_iter().zip(are_pinned) {
            if is_pinned {
                continue;
            }
            if block.may_be_spilled() {
                oldest.push(Candidate {
                    last_used: block.last_used(),
                    block: Arc::downgrade(&block),
                });
            } else if block.is_leaving() && block.bytes() <= room {
                busy += block.bytes();
            }
        }
        order::sort(oldest, |candidate| (!candidate.last_used, 0));
        busy
    }

    /// Copies a block to the host and frees its chunk; false when it has to stay.
    fn spill_block(&self, spill: &Spill, block: &Arc<GpuBlock>) -> Result<bool> {
        let bytes = block.bytes();
        let mut copy = Vec::new();
        if copy.try_reserve_exact(bytes as usize).is_err() {
            return Ok(false);
        }
        // Its turn need not have come: nobody writes beside this op.
        let turn = block.turns().to_read();
        match self
            .in_time(|| Ok(block.source()))
            .and_then(|source| self.download_from(source, block, turn, 0, bytes))
            .and_then(|download| download.finish(&mut |piece| copy.extend_from_slice(piece)))
        {
            Ok(()) => {}
            Err(error @ (Error::DeviceLost(_) | Error::TimedOut(_))) => return Err(error),
            // Staging, or contents that were never there.
            Err(_) => return Ok(false),
        }
        let mut memory = self.memory.lock();
        if !block.may_be_spilled() || memory.is_pinned(block.id()) {
            return Ok(false);
        }
        let number = memory.set_aside(block.id());
        block.spill(copy, number);
        spill.bytes.fetch_add(bytes, Ordering::AcqRel);
        Ok(true)
    }
}
