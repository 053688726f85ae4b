//! What happens when a pool is full, in order, in one place.

use std::fmt;

use super::QUANTUM;
use super::account::Account;
use super::best_fit::BlockId;
use super::growth::{Demand, round_down};
use super::pool::{Pool, PoolConfig, RegionSource};
use super::rehearsal::regions_of;
use super::relocate::Mover;
use super::remaking::Moment;
use super::statistics::{Bytes, MemoryStatistics};
use super::tags::{Request, Tag};

/// Why a request could not be met.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FullReason {
    /// The request is larger than any region can be, so that it can never be met here.
    OverRegionLimit {
        /// Bytes in the largest region that the source makes.
        max_region: u64,
    },
    /// A region for the request would exceed the budget, even with all idle regions returned.
    OverBudget,
    /// The source refused a region of exactly the size needed, for this reason.
    Refused(String),
}

/// An allocation failed. Nothing has changed, except that idle regions may have been returned and
/// blocks moved, the latter into a new region too.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Full {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes needed: what was asked for, rounded up to [`QUANTUM`](super::QUANTUM)
    /// (down, where a `u64` holds no higher multiple).
    pub rounded: u64,
    /// Why it failed.
    pub reason: FullReason,
    /// The account after the failure.
    pub statistics: Box<MemoryStatistics>,
    /// Bytes of the largest hole that moving blocks together within one region would make.
    pub largest_by_moving: u64,
    /// The tags that hold most, the largest first: three at most.
    pub holders: Vec<Holder>,
    /// Bytes in blocks that are not pinned: what spilling could make free, where the host has room. 0 for memory of the host
    /// itself.
    pub spillable: u64,
}

/// What a tag holds when a pool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The tag.
    pub tag: Tag,
    /// Bytes in use.
    pub allocated: u64,
    /// Bytes whose contents are on the host.
    pub spilled: u64,
}

impl fmt::Display for Full {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statistics = &self.statistics;
        write!(
            formatter,
            "out of memory: asked for {} ({} bytes), ",
            Bytes(self.asked),
            self.asked
        )?;
        match &self.reason {
            FullReason::OverRegionLimit { max_region } => write!(
                formatter,
                "but one allocation can be at most {} here",
                Bytes(*max_region)
            )?,
            FullReason::OverBudget => write!(
                formatter,
                "which takes {}, more than the budget leaves",
                Bytes(self.rounded)
            )?,
            FullReason::Refused(reason) => {
                write!(formatter, "and the device gave no more memory: {reason}")?;
            }
        }
        match statistics.limit {
            Some(limit) => write!(formatter, "; budget {}", Bytes(limit))?,
            None => write!(formatter, "; no budget set")?,
        }
        write!(
            formatter,
            "; {} in use (blocks: {}); {} reserved (regions: {}); {} free, the largest hole {}, {} by \
             moving blocks together; ",
            Bytes(statistics.allocated),
            statistics.live_blocks,
            Bytes(statistics.reserved),
            statistics.regions,
            Bytes(statistics.free),
            Bytes(statistics.largest_free),
            Bytes(self.largest_by_moving),
        )?;
        if self.spillable > 0 {
            write!(
                formatter,
                "{} not pinned, which spilling could free; ",
                Bytes(self.spillable)
            )?;
        }
        // Without tags there is nothing to tell apart.
        if self.holders.iter().any(|holder| holder.tag != Tag::NONE) {
            formatter.write_str("held by ")?;
            for (at, holder) in self.holders.iter().enumerate() {
                let between = if at == 0 { "" } else { ", " };
                let (tag, held) = (holder.tag, Bytes(holder.allocated));
                write!(formatter, "{between}{tag} {held}")?;
                if holder.spilled > 0 {
                    write!(formatter, " and {} on the host", Bytes(holder.spilled))?;
                }
            }
            formatter.write_str("; ")?;
        }
        formatter.write_str("what would help: ")?;
        formatter.write_str(self.what_would_help())
    }
}

impl Full {
    fn what_would_help(&self) -> &'static str {
        let is_scattered = self.statistics.free >= self.rounded;
        let is_over = |limit: u64| self.rounded > limit;
        match (&self.reason, self.spillable > 0) {
            (FullReason::OverRegionLimit { .. }, _) => "smaller pieces",
            (FullReason::OverBudget, _)
                if self.statistics.limit.is_some_and(|limit| limit < QUANTUM) =>
            {
                "a higher budget: no tensor takes less than 256 bytes"
            }
            (FullReason::OverBudget, _) if self.statistics.limit.is_some_and(is_over) => {
                "a higher budget, or smaller pieces"
            }
            (_, true) if is_scattered => {
                "moving blocks together (`WhenFull::Relocate`, the default), where that was not tried, or spilling (enough is free, in pieces)"
            }
            (_, false) if is_scattered => {
                "freeing tensors, or moving blocks together (`WhenFull::Relocate`, the default) where that was not tried; pinned ones stay (enough is free, in pieces)"
            }
            (FullReason::OverBudget, true) => {
                "freeing tensors, spilling them (`WhenFull::SpillToHost`, with a larger `most` where it has one), or a higher budget"
            }
            (FullReason::OverBudget, false) => "freeing tensors, or a higher budget",
            (FullReason::Refused(_), true) => {
                "freeing tensors, spilling them (`WhenFull::SpillToHost`, with a larger `most` where it has one), or fewer other users of the device"
            }
            (FullReason::Refused(_), false) => {
                "freeing tensors, or fewer other users of the device"
            }
        }
    }
}

impl std::error::Error for Full {}

/// What a device does when no free chunk holds a request and no region can be had for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// The request fails.
    Fail,
    /// Live tensors are moved together to merge free chunks; the request fails when that is not enough.
    #[default]
    Relocate,
    /// As `Relocate`; when that is not enough, the tensors that were used least recently go to host
    /// memory, and come back when they are used. So a program that goes through more than fits in one order, time after time,
    /// has nearly all of it copied each time, however much of it would fit. On the CPU, whose memory is the host's, it is `Relocate`.
    SpillToHost {
        /// Most bytes of host memory for them; `None` for as many as the system gives. For the moment
        /// in which tensors change places it may be as much more as those that come back (and stays so where one
        /// then cannot).
        most: Option<u64>,
    },
}

impl<S: RegionSource> Pool<S> {
    /// Meets a request of `bytes` (a multiple of the quantum, within the region limit) that no free
    /// chunk holds, or says why not. The last rung, spilling, is the device's: it waits, and a pool
    /// does not.
    #[cold]
    #[inline(never)]
    pub(super) fn climb(
        &mut self,
        bytes: u64,
        request: Request,
        mover: Option<&mut dyn Mover<S::Region>>,
    ) -> Result<BlockId, FullReason> {
        if self.best_fit.is_out_of_slots() {
            return Err(FullReason::Refused("2^32 chunks are in use".into()));
        }
        let detail = self.account.detail(bytes, request);
        // Second rung: a new region, for which a policy may trade the idle ones in.
        let mut went_back = false;
        let kept_whole = self.has_room(bytes);
        let in_use = self.account.in_use().saturating_add(bytes);
        if self.config.growth.trades_idle_regions() && self.returning_idle_makes_room(bytes) {
            // A request that no budget allows, or maybe no source, is not seen: it was not in use.
            if in_use <= self.most_reserved {
                self.remaking.saw(in_use);
            }
            if kept_whole {
                self.remaking.goes_back(self.best_fit.idle().bytes);
            }
            self.return_idle();
            self.settle(bytes);
            went_back = true;
        }
        // The next larger chunk may be in a region in use or in one that stays; or the budget, lowered, allows no
        // other region.
        if self.has_room(bytes)
            && let Some((block, _)) = self.best_fit.allocate(bytes, detail, |_, _| false)
        {
            return Ok(block);
        }
        let region = self.next_region(bytes);
        let reserved = self.account.reserved();
        let mut is_short = false;
        let mut outcome = self.grow(bytes, region, &mut is_short);
        let failed = outcome.is_err();
        // Third rung: idle regions go back, where that can make room, and a new region is tried again.
        let returned = failed && self.returning_idle_makes_room(bytes);
        if returned {
            self.return_idle();
            outcome = self.grow(bytes, self.next_region(bytes), &mut is_short);
        }
        // Fourth rung: blocks move together.
        let mut moved = false;
        if let (Err(reason), Some(mover)) = (&outcome, mover) {
            let refused = matches!(reason, FullReason::Refused(_));
            let before = self.account.reserved();
            moved = self.make_hole(bytes, refused, mover);
            if moved {
                outcome = Ok(());
            } else if self.headroom() >= bytes && self.account.reserved() < before {
                // Regions went back, and their memory may be free only later: that is a refusal.
                outcome = self.grow(bytes, self.next_region(bytes), &mut is_short);
            }
        }
        if returned || moved {
            self.account.retried();
        }
        if outcome.is_ok() {
            self.remaking.grows(in_use, self.account.reserved());
        }
        // A request beyond all that the source has ever given says nothing of how short memory is.
        let is_new = reserved.saturating_add(bytes) > self.most_reserved;
        if is_short && (outcome.is_ok() || !is_new) {
            self.remaking.refused();
        }
        if let Err(reason) = outcome {
            // Regions may have gone, and blocks moved.
            self.divided();
            if went_back || returned {
                // Those that were to stay, maybe.
                self.remaking.trimmed();
            }
            return Err(reason);
        }
        self.best_fit
            .allocate(bytes, detail, |_, _| false)
            .map(|(block, _)| block)
            .ok_or_else(|| FullReason::Refused("a region was lost".into()))
    }

    /// Makes regions that stay before one for `needed` bytes, if it is time and they were found to do.
    fn settle(&mut self, needed: u64) {
        let moment = Moment {
            in_use: self.account.in_use(),
            reserved: self.account.reserved(),
            needed,
            headroom: self.headroom(),
            max_region: self.config.max_region,
        };
        let best_fit = &self.best_fit;
        let regions = best_fit.regions().map(|(region, bytes)| {
            let chunks = best_fit.chunks(region);
            (bytes, chunks.map(|chunk| (chunk.block, chunk.bytes)))
        });
        let made = self.remaking.at(moment, regions);
        for bytes in regions_of(made.unwrap_or(0), moment.max_region) {
            match self.source.create(bytes) {
                Ok(region) => self.open_region(region, bytes),
                Err(_) => return self.remaking.refused(),
            };
        }
    }

    /// Whether there are idle regions, and the budget would allow a region of `bytes` without them.
    fn returning_idle_makes_room(&self, bytes: u64) -> bool {
        let idle = self.best_fit.idle().bytes;
        // More may be reserved than the budget allows.
        let stays = self.account.reserved() - idle;
        idle > 0 && self.config.headroom(stays) >= bytes
    }

    /// The size of a region for a request of `bytes`, where the budget allows one.
    fn next_region(&self, bytes: u64) -> Option<u64> {
        let demand = demand(&self.config, self.is_share, &self.account, bytes);
        self.config.growth.region_size(demand)
    }

    /// Takes a new region from the source for a request of `bytes`. A source that refuses the size
    /// that growth wants is asked for half of it, and so on, and at last for exactly `bytes`. `is_short` where it refuses any.
    fn grow(
        &mut self,
        bytes: u64,
        wanted: Option<u64>,
        is_short: &mut bool,
    ) -> Result<(), FullReason> {
        let mut size = wanted.ok_or(FullReason::OverBudget)?;
        loop {
            match self.source.create(size) {
                Ok(region) => {
                    self.open_region(region, size);
                    return Ok(());
                }
                Err(refused) => {
                    *is_short = true;
                    if size == bytes {
                        return Err(FullReason::Refused(refused.0));
                    }
                    size = round_down(size / 2).max(bytes);
                }
            }
        }
    }
}

/// What growth is asked with for a request of `bytes`.
#[inline]
pub(super) fn demand(config: &PoolConfig, is_share: bool, account: &Account, bytes: u64) -> Demand {
    let held = account.reserved();
    Demand {
        held,
        live: account.in_use(),
        needed: bytes,
        max_region: config.max_region,
        headroom: config.headroom(held),
        budget: config.limit.filter(|_| !is_share),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Growth, PoolConfig, Refused};
    use super::*;

    /// Gives so many bytes, and takes them back.
    pub(in crate::memory) struct Capacity(pub(in crate::memory) u64);

    impl RegionSource for Capacity {
        type Region = u64;

        fn create(&mut self, bytes: u64) -> Result<u64, Refused> {
            let left = self.0.checked_sub(bytes);
            self.0 = left.ok_or(Refused("no memory left".into()))?;
            Ok(bytes)
        }

        fn destroy(&mut self, bytes: u64) {
            self.0 += bytes;
        }
    }

    /// Two regions of one quantum, the first idle; then a request of two quanta, within the bounds given.
    fn third_rung(capacity: u64, limit: u64) -> Result<[u64; 2], Box<Full>> {
        let config = PoolConfig {
            growth: Growth::KeepsIdle,
            limit: Some(limit * QUANTUM),
            max_region: u64::MAX,
        };
        let mut pool = Pool::new(Capacity(capacity * QUANTUM), config);
        let first = pool.allocate(QUANTUM)?;
        pool.allocate(QUANTUM)?;
        assert!(pool.free(first));
        pool.allocate(2 * QUANTUM)?;
        let statistics = pool.statistics();
        Ok([statistics.regions, statistics.events.retries])
    }

    /// What others leave is no budget: they may want it too.
    #[test]
    fn a_share_grows_in_proportion() {
        const MIB: u64 = 1 << 20;
        let reserved = |is_share| {
            let limit = Some(1 << 30);
            let config = PoolConfig {
                growth: Growth::Budget,
                limit,
                max_region: u64::MAX,
            };
            let mut pool = Pool::new(Capacity(u64::MAX), config);
            if is_share {
                pool.set_share(limit);
            }
            for _ in 0..40 {
                pool.allocate(MIB).unwrap();
            }
            assert!(pool.allocate(1 << 30).is_err(), "the limit stays");
            pool.statistics().reserved
        };
        assert_eq!(reserved(false), 1 << 30);
        assert!(reserved(true) < 43 * MIB);
    }

    #[test]
    fn idle_regions_go_back_only_when_there_is_no_other_way() {
        let outcome = |capacity, limit| third_rung(capacity, limit).map_err(|full| full.reason);
        assert_eq!(outcome(4, 4), Ok([3, 0]), "nothing need go back");
        assert_eq!(outcome(3, 4), Ok([2, 1]), "refused, then granted");
        assert_eq!(outcome(4, 3), Ok([2, 1]), "over the budget, then within");
        assert_eq!(outcome(4, 2), Err(FullReason::OverBudget));
        let refused = FullReason::Refused("no memory left".into());
        assert_eq!(outcome(2, 4), Err(refused));
    }
}
