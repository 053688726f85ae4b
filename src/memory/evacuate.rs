//! Whole regions whose blocks move into others: so that one may be made in their place, or a lowered budget is kept.

use super::best_fit::RegionId;
use super::holes::Mapped;
use super::order;
use super::plan::Map;
use super::pool::{Pool, RegionSource};
use super::relocate::Mover;

impl<S: RegionSource> Pool<S> {
    /// Evacuates whole regions and returns them, until a new region of `bytes` can be made; false
    /// when that cannot be reached.
    pub(super) fn trade_regions(&mut self, bytes: u64, mover: &mut dyn Mover<S::Region>) -> bool {
        if bytes > self.config.max_region {
            return false;
        }
        self.with_spares(mover, 0, |pool, mover| pool.evacuate_regions(bytes, mover))
    }

    /// Evacuates regions until `evacuated` says that it has what it wants; false when that cannot be reached. `limit`: most bytes
    /// reserved afterwards, where more than blocks take is wanted.
    fn with_spares(
        &mut self,
        mover: &mut dyn Mover<S::Region>,
        limit: u64,
        evacuated: impl Fn(&mut Self, &mut dyn Mover<S::Region>) -> bool,
    ) -> bool {
        let mut before = u64::MAX;
        loop {
            if evacuated(self, mover) {
                return true;
            }
            let reserved = self.account.reserved();
            if reserved >= before {
                return false;
            }
            before = reserved;
            // The holes elsewhere are too small one by one: what the budget still allows becomes one,
            // exactly as large as what several regions hold.
            let (used, closing) = self.packed(mover);
            let most = limit
                .saturating_sub(reserved - closing)
                .min(self.headroom());
            if self.open_spare_for(used, most).is_none() {
                return false;
            }
        }
    }

    /// An empty region for `used` bytes, or as large as `most` where all of a budget is to be one region.
    fn open_spare_for(&mut self, used: u64, most: u64) -> Option<RegionId> {
        let wanted = most.min(self.config.max_region);
        let is_whole = !self.is_share && self.config.growth.has_one_region(wanted, used);
        let whole = (is_whole && wanted > used)
            .then(|| self.open_spare(wanted))
            .flatten();
        // The adapter may have no room for more beside what is there.
        whole.or_else(|| self.open_spare(used))
    }

    /// Bytes in use in those regions with the largest free share that fit together into one region
    /// within the budget, and the bytes of these regions.
    fn packed(&self, mover: &mut dyn Mover<S::Region>) -> (u64, u64) {
        let mut mapped = self.map(mover);
        mapped.retain(|region| !region.is_pinned() && region.free_share() > 0.0);
        order::sort(&mut mapped, Mapped::emptiest_first);
        let room = self.headroom().min(self.config.max_region);
        mapped
            .iter()
            .fold((0, 0), |(sum, regions), region| match sum + region.used() {
                more if more <= room => (more, regions + region.bytes),
                _ => (sum, regions),
            })
    }

    /// Evacuates regions and returns them, those with the largest free share first, until a region
    /// of `bytes` is there in their place; false when the blocks of the others find no room, or when
    /// enough went back and the source still says no (its memory may be free only later).
    fn evacuate_regions(&mut self, bytes: u64, mover: &mut dyn Mover<S::Region>) -> bool {
        let mut returned = 0;
        loop {
            if self.headroom() >= bytes && self.open_spare(bytes).is_some() {
                return true;
            }
            if returned >= bytes && self.headroom() >= bytes {
                return false;
            }
            // An empty region is worth returning only where it makes the room.
            let headroom = self.headroom();
            let helps = |region: &Mapped| {
                region.used() > 0 || headroom.saturating_add(region.bytes) >= bytes
            };
            match self.evacuate(helps, mover) {
                Some(bytes) => returned += bytes,
                None => return false,
            }
        }
    }

    /// Moves the blocks of a region into the holes of others and returns it, of those that help the one with the largest
    /// free share; its bytes, or nothing where no region's blocks find room.
    fn evacuate(
        &mut self,
        helps: impl Fn(&Mapped) -> bool,
        mover: &mut dyn Mover<S::Region>,
    ) -> Option<u64> {
        let mapped = self.map(mover);
        self.evacuate_among(&mapped, helps, mover)
    }

    /// The same into holes of these regions alone.
    fn evacuate_among(
        &mut self,
        mapped: &[Mapped],
        helps: impl Fn(&Mapped) -> bool,
        mover: &mut dyn Mover<S::Region>,
    ) -> Option<u64> {
        let mut map = Map::of(mapped.iter().map(|region| region.pieces.clone()).collect());
        let mut regions: Vec<usize> = (0..mapped.len()).collect();
        regions.retain(|&at| !mapped[at].is_pinned() && helps(&mapped[at]));
        order::sort(&mut regions, |&at| mapped[at].emptiest_first());
        let (at, plan) = regions
            .into_iter()
            .find_map(|at| Some((at, map.emptying(at)?)))?;
        self.carry_out(plan, mover);
        self.close_region(mapped[at].id).then_some(mapped[at].bytes)
    }

    /// Evacuates regions and returns them until no more than `limit` is reserved, or no way is left. May leave an idle region.
    pub(super) fn shrink_to(&mut self, limit: u64, mover: &mut dyn Mover<S::Region>) {
        if self.account.in_use() > limit {
            return;
        }
        let is_done = self.with_spares(mover, limit, |pool, mover| {
            while pool.account.reserved() > limit
                && pool.evacuate(|region| region.used() > 0, mover).is_some()
            {}
            pool.account.reserved() <= limit
        });
        if !is_done {
            self.shrink_one_by_one(limit, mover);
        }
        self.divided();
    }

    /// What a budget that is used up has no room for: each region's blocks move into one as large as they are (the last one's into
    /// one as large as the lower budget leaves, where all of that is to be one), which is there beside theirs for that moment.
    /// Nothing moves where that would not be enough.
    fn shrink_one_by_one(&mut self, limit: u64, mover: &mut dyn Mover<S::Region>) {
        let mut mapped = self.map(mover);
        let least = |region: &Mapped| match region.is_pinned() {
            true => region.bytes,
            false => region.used(),
        };
        if mapped.iter().map(least).sum::<u64>() > limit {
            return;
        }
        mapped.retain(|region| least(region) < region.bytes);
        order::sort(&mut mapped, Mapped::emptiest_first);
        for region in mapped {
            if self.account.reserved() <= limit {
                return;
            }
            let used = region.used();
            // More where no other has to move after this one.
            let after = self.account.reserved() - region.bytes + used;
            let spare = self.open_spare_for(used, used + limit.saturating_sub(after));
            // No other holes: what does not lie side by side in the new one would leave some of it empty.
            let both = |other: &Mapped| other.id == region.id || Some(other.id) == spare;
            let mut mapped = self.map(mover);
            mapped.retain(both);
            let is_this = |other: &Mapped| other.id == region.id;
            if self.evacuate_among(&mapped, is_this, mover).is_none() {
                // The blocks are where they were.
                if let Some(spare) = spare {
                    self.close_region(spare);
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::relocate::tests::{Bytes, Copies, check, fill, pool};
    use super::super::{BlockId, Growth, LimitRefused, QUANTUM};
    use super::*;

    /// A pool of regions of 8 with a block of so many at the start of each, within a budget.
    fn one_each(limit: u64, sizes: &[u64]) -> (Pool<Bytes>, Vec<(BlockId, u64, u8)>) {
        let mut pool = pool(Growth::Step { bytes: 8 * QUANTUM }, limit);
        let mut live = Vec::new();
        let mut fillers = Vec::new();
        for (value, &bytes) in (0u8..).zip(sizes) {
            let block = pool.allocate(bytes * QUANTUM).unwrap();
            fill(&pool, block, value);
            live.push((block, bytes, value));
            fillers.push(pool.allocate((8 - bytes) * QUANTUM).unwrap());
        }
        for filler in fillers {
            assert!(pool.free(filler));
        }
        assert_eq!(pool.statistics().reserved, 8 * QUANTUM * sizes.len() as u64);
        (pool, live)
    }

    /// A pool of regions of so many with a block, a hole and so on of so many.
    fn with_holes(limit: u64, regions: &[(u64, &[u64])]) -> (Pool<Bytes>, Vec<(BlockId, u64, u8)>) {
        let mut pool = pool(Growth::Step { bytes: QUANTUM }, limit);
        let (mut live, mut holes) = (Vec::new(), Vec::new());
        for &(bytes, pieces) in regions {
            let whole = pool.allocate(bytes * QUANTUM).unwrap();
            assert!(pool.free(whole));
            for (at, &bytes) in pieces.iter().enumerate() {
                let block = pool.allocate(bytes * QUANTUM).unwrap();
                match at % 2 {
                    0 => live.push((block, bytes, live.len() as u8)),
                    _ => holes.push(block),
                }
            }
        }
        for &(block, _, value) in &live {
            fill(&pool, block, value);
        }
        for hole in holes {
            assert!(pool.free(hole));
        }
        (pool, live)
    }

    fn lowered(pool: &mut Pool<Bytes>, limit: u64) -> bool {
        let changed = pool.change_limit(Some(limit * QUANTUM), Some(&mut Copies), |_| {
            Ok(Some(limit * QUANTUM))
        });
        match changed {
            Ok(()) => assert!(pool.statistics().reserved <= limit * QUANTUM),
            Err(refused) => assert!(matches!(refused, LimitRefused::Held { .. })),
        }
        pool.statistics().limit == Some(limit * QUANTUM)
    }

    #[test]
    fn a_lowered_budget_is_one_region_where_it_was() {
        let made = |pool: &mut Pool<Bytes>, sizes: &[u64]| -> Vec<(BlockId, u64, u8)> {
            let one = |(value, &bytes): (u8, &u64)| {
                let block = pool.allocate(bytes * QUANTUM).unwrap();
                fill(pool, block, value);
                (block, bytes, value)
            };
            (0..).zip(sizes).map(one).collect()
        };
        let mut all = pool(Growth::Budget, 64);
        let live = made(&mut all, &[20]);
        assert!(lowered(&mut all, 40));
        assert_eq!(all.statistics().reserved, 40 * QUANTUM);
        check(&all, &live);
        assert!(all.allocate(20 * QUANTUM).is_ok());
        // Little of a large one in use does not hold much of it.
        let mut all = pool(Growth::Budget, 1024);
        let live = made(&mut all, &[700, 2]);
        assert!(all.free(live[0].0));
        assert!(lowered(&mut all, 512));
        assert_eq!(all.statistics().reserved, 2 * QUANTUM);
        // No more moves than has to: the larger one stays.
        let mut all = pool(Growth::Budget, 32);
        let mut live = made(&mut all, &[31]);
        all.set_limit(Some(48 * QUANTUM));
        live.extend(made(&mut all, &[2]));
        assert_eq!(all.statistics().reserved, 48 * QUANTUM);
        assert!(lowered(&mut all, 40));
        let statistics = all.statistics();
        assert_eq!(statistics.events.relocated_bytes, 2 * QUANTUM);
        assert_eq!(statistics.reserved, 40 * QUANTUM);
        check(&all, &live);
    }

    #[test]
    fn a_lowered_budget_moves_blocks_together() {
        // Into the holes of others, the emptiest region first.
        let (mut pool, live) = one_each(64, &[4, 2, 6, 4]);
        assert!(lowered(&mut pool, 16));
        assert_eq!(pool.statistics().reserved, 16 * QUANTUM);
        assert_eq!(pool.statistics().events.relocated_bytes, 6 * QUANTUM);
        check(&pool, &live);
        // Into a region of what both hold, where the old budget has room for it beside theirs.
        let (mut pool, live) = one_each(26, &[5, 5]);
        assert!(lowered(&mut pool, 12));
        assert_eq!(pool.statistics().reserved, 10 * QUANTUM);
        check(&pool, &live);
        let (mut pool, live) = one_each(20, &[5, 5]);
        assert!(lowered(&mut pool, 12));
        assert_eq!(pool.statistics().reserved, 10 * QUANTUM);
        check(&pool, &live);
    }

    /// A budget that is one region: its blocks move into one of their size, which it has no room for.
    #[test]
    fn a_budget_that_is_used_up_can_be_lowered() {
        let (mut pool, live) = one_each(8, &[3]);
        assert!(!lowered(&mut pool, 2));
        assert!(lowered(&mut pool, 3));
        assert_eq!(pool.statistics().reserved, 3 * QUANTUM);
        assert_eq!(pool.statistics().peak_reserved, 11 * QUANTUM);
        check(&pool, &live);
        // The fullest stays, where the others are enough.
        let (mut pool, live) = one_each(24, &[7, 1, 5]);
        assert!(lowered(&mut pool, 18));
        assert_eq!(pool.statistics().events.relocated_bytes, QUANTUM);
        check(&pool, &live);
        // Holes elsewhere would take what leaves holes in the new regions.
        let (mut pool, live) = with_holes(26, &[(16, &[5, 2, 2, 2, 2, 3]), (10, &[3, 2, 3, 2])]);
        assert!(lowered(&mut pool, 15));
        assert_eq!(pool.statistics().reserved, 15 * QUANTUM);
        check(&pool, &live);
        // Held by one that must not move: what would not be enough does not begin.
        let (mut pool, live) = one_each(16, &[5, 5]);
        assert!(pool.pin(live[0].0));
        let before = pool.statistics();
        assert!(!lowered(&mut pool, 12));
        assert_eq!(pool.statistics(), before);
        assert!(lowered(&mut pool, 13));
        check(&pool, &live);
    }

    #[test]
    fn what_cannot_move_keeps_its_region() {
        let (mut pool, live) = one_each(64, &[4, 4]);
        assert!(pool.pin(live[0].0));
        assert!(pool.pin(live[1].0));
        assert!(!lowered(&mut pool, 8));
        assert!(pool.unpin(live[1].0));
        assert!(lowered(&mut pool, 8));
        check(&pool, &live);
        // More is in use than the budget allows: nothing moves in vain.
        let (mut pool, live) = one_each(64, &[4, 2, 6, 4]);
        let before = pool.statistics();
        assert!(!lowered(&mut pool, 15));
        assert_eq!(pool.statistics(), before);
        check(&pool, &live);
        // Nor without somebody who moves them.
        let limit = Some(16 * QUANTUM);
        assert!(pool.change_limit(limit, None, |_| Ok(limit)).is_err());
        assert_eq!(pool.statistics(), before);
    }
}
