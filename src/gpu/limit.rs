//! The budget of a device that is open.

use super::Gpu;
use super::spill::{HELD_BY_READS, Patience, Spill, Spilled};
use crate::error::Result;
use crate::memory::{Bytes, LimitRefused};

impl Gpu {
    /// Changes the budget, or takes it away. Live blocks that move for it are recorded; where the device spills, those go to
    /// the host that a lower one has no room for.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(crate) fn set_limit(&self, asked: Option<u64>) -> Result<Result<(), LimitRefused>> {
        match (self.change_limit(asked)?, &self.spill) {
            (Err(LimitRefused::Held { .. }), Some(spill)) => self.spill_for_limit(spill, asked),
            (changed, _) => Ok(changed),
        }
    }

    fn change_limit(&self, asked: Option<u64>) -> Result<Result<(), LimitRefused>> {
        self.health.check()?;
        let _hold = self.hold();
        self.giving_back(&mut self.stream.lock(), |pool, mover| {
            pool.release_dying();
            pool.change_limit(asked, mover, |regions| regions.claim().change_budget(asked))
        })
    }

    /// With the device's memory to itself, so that nothing comes back meanwhile.
    fn spill_for_limit(
        &self,
        spill: &Spill,
        asked: Option<u64>,
    ) -> Result<Result<(), LimitRefused>> {
        let access = self.alone(spill, &[])?;
        let (mut patience, mut spilled) = (Patience::default(), 0);
        loop {
            let (limit, memory) = match self.change_limit(asked)? {
                Err(LimitRefused::Held { limit, memory, .. }) => (limit, memory),
                changed => return Ok(changed),
            };
            let in_use = || {
                let mut memory = self.memory.lock();
                memory.release_dying();
                memory.statistics().allocated
            };
            // Whatever goes, regions with pinned blocks stay.
            let under_pins = self.memory.lock().under_pins();
            let found = match under_pins <= limit {
                // Each round moves what stays, so there are few: the next one doubles what went.
                true => {
                    let needed = || in_use().saturating_sub(limit);
                    self.spill_until(spill, &access, spilled, needed)?
                }
                false => Spilled::Nothing,
            };
            match found {
                Spilled::Some(bytes) => {
                    spilled += bytes;
                    patience = Patience::default();
                }
                Spilled::Busy if patience.lasts(self, "set_memory_limit")? => {}
                // What was in the way may have been dropped since.
                Spilled::Nothing if in_use() < memory.allocated => {}
                Spilled::Busy | Spilled::Nothing => {
                    let mut spilling = spill.diagnosis(&access);
                    if patience.is_tried() {
                        spilling.push_str(HELD_BY_READS);
                    }
                    if under_pins > 0 {
                        let pinned = Bytes(under_pins);
                        spilling += &format!("; {pinned} are in regions with pinned tensors");
                    }
                    return Ok(Err(LimitRefused::Held {
                        limit,
                        memory,
                        spilling,
                    }));
                }
            }
        }
    }
}
