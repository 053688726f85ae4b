//! Moving blocks together, so that free bytes in pieces become one piece.
//!
//! A hole is made out of a *window* of neighbouring chunks without a pinned block. Its blocks go to free
//! chunks elsewhere, the largest first, each to the smallest that holds it, until enough is free in the window;
//! where none holds one, such a chunk is slid together elsewhere first. The blocks that stay slide down to the
//! window's start, in order of address. What moves the fewest bytes in all is done, of the windows with the
//! fewest bytes in use and the cheapest slide; for a small request it makes room for two where that moves
//! little more than twice as much (`plan.rs`). When no window will do,
//! bytes that the budget still allows become a region to move into; then whole regions are
//! evacuated and returned so that a new one may be made in their place (`evacuate.rs`); at last all regions are
//! slid together, and windows are tried once more.

use std::collections::HashMap;

use super::best_fit::{BlockId, Place, RegionId};
use super::holes::Mapped;
use super::plan::{Map, Plan, Step};
use super::pool::{Pool, RegionSource};

/// One block that has changed its place; its id stays. Where both places are in one region they may
/// overlap: then the block moved down, and copying in order of address is right.
#[derive(Debug)]
#[non_exhaustive]
pub struct Move<'a, R> {
    /// The block.
    pub block: BlockId,
    /// Where its bytes are.
    pub from: Place,
    /// Where they belong, from now on.
    pub to: Place,
    /// The region that it leaves.
    pub from_region: &'a R,
    /// The region that it comes to.
    pub to_region: &'a R,
}

/// Moves the bytes of blocks when the pool has given them other places.
pub trait Mover<R> {
    /// Whether a block's bytes can be moved now. A block of which this was said may be moved until
    /// the pool returns.
    fn may_move(&mut self, block: BlockId) -> bool {
        let _ = block;
        true
    }

    /// Moves bytes, before anything else happens to either place. Moves come one after another, and a later
    /// one may read what an earlier one has written.
    fn move_block(&mut self, moved: Move<'_, R>);
}

/// For pools that hold no bytes.
impl<R> Mover<R> for () {
    fn move_block(&mut self, _moved: Move<'_, R>) {}
}

impl<S: RegionSource> Pool<S> {
    /// Moves blocks so that one free chunk holds `bytes`; false when no way was found. Blocks may
    /// have moved then, too. `refused`: the source has said no to a region that the budget allows.
    pub(super) fn make_hole(
        &mut self,
        bytes: u64,
        refused: bool,
        mover: &mut dyn Mover<S::Region>,
    ) -> bool {
        let free = self.account.free();
        let more = if refused { 0 } else { self.headroom() };
        if free.saturating_add(more) < bytes {
            return false;
        }
        if self.clear_window(bytes, mover) {
            return true;
        }
        // What the budget still allows gives room to move into.
        let room = self.headroom().min(bytes).min(self.config.max_region);
        let spare = match refused {
            true => None,
            false => self.open_spare(room),
        };
        let made = (spare.is_some() && self.clear_window(bytes, mover))
            || (bytes > self.largest_region() && self.trade_regions(bytes, mover))
            || {
                self.slide_all(mover);
                self.best_fit.largest_free() >= bytes
                    || self.clear_window(bytes, mover)
                    || self.trade_regions(bytes, mover)
            };
        if let Some(spare) = spare.filter(|_| !made) {
            // Unless something has moved there.
            self.close_region(spare);
        }
        made
    }

    fn largest_region(&self) -> u64 {
        self.best_fit
            .regions()
            .map(|(_, bytes)| bytes)
            .max()
            .unwrap_or(0)
    }

    /// Adds an empty region of `bytes`; nothing when there is none to be had.
    pub(super) fn open_spare(&mut self, bytes: u64) -> Option<RegionId> {
        let bytes = super::growth::round_down(bytes);
        if bytes == 0 {
            return None;
        }
        let region = self.source.create(bytes).ok()?;
        Some(self.open_region(region, bytes))
    }

    pub(super) fn map(&self, mover: &mut dyn Mover<S::Region>) -> Vec<Mapped> {
        let mut mapped: Vec<Mapped> = self
            .best_fit
            .regions()
            .map(|(id, bytes)| Mapped {
                id,
                bytes,
                pieces: self.best_fit.pieces(id).collect(),
            })
            .collect();
        for piece in mapped.iter_mut().flat_map(|region| &mut region.pieces) {
            if let Some(block) = piece.block {
                piece.pinned |= !mover.may_move(block);
            }
        }
        mapped
    }

    /// Makes a hole of `bytes` in the way that moves the fewest bytes.
    fn clear_window(&mut self, bytes: u64, mover: &mut dyn Mover<S::Region>) -> bool {
        let regions = self.map(mover).into_iter().map(|region| region.pieces);
        let Some(plan) = Map::of(regions.collect()).hole(bytes) else {
            return false;
        };
        self.carry_out(plan, mover);
        true
    }

    /// Slides the blocks of every region down, between those that are pinned.
    fn slide_all(&mut self, mover: &mut dyn Mover<S::Region>) {
        for region in self.map(mover) {
            for run in region.pieces.split(|piece| piece.pinned) {
                let blocks: Vec<BlockId> = run.iter().filter_map(|piece| piece.block).collect();
                self.slide(&blocks, mover);
            }
        }
    }

    pub(super) fn carry_out(&mut self, plan: Plan, mover: &mut dyn Mover<S::Region>) {
        // What is left of a hole is another chunk.
        let mut rests: HashMap<u32, u32> = HashMap::new();
        for step in plan.steps {
            match step {
                Step::Down(block) => self.slide(&[block], mover),
                Step::Into { block, bytes, hole } => {
                    let from = self.best_fit.place(block);
                    let rest = rests.entry(hole).or_insert(hole);
                    let target = self.best_fit.reserve(rest, bytes);
                    self.best_fit.exchange(block, target);
                    self.moved(block, from, mover);
                    self.best_fit.free(target);
                }
            }
        }
    }

    fn slide(&mut self, blocks: &[BlockId], mover: &mut dyn Mover<S::Region>) {
        for &block in blocks {
            let from = self.best_fit.place(block);
            if self.best_fit.slide_down(block) {
                self.moved(block, from, mover);
            }
        }
    }

    fn moved(&mut self, block: BlockId, from: Option<Place>, mover: &mut dyn Mover<S::Region>) {
        let (Some(from), Some(to)) = (from, self.best_fit.place(block)) else {
            return;
        };
        let from_address = self.address(from);
        if let Some(located) = self.located(block) {
            self.account.relocated(from_address, located);
        }
        let regions = (
            self.best_fit.region(from.region),
            self.best_fit.region(to.region),
        );
        if let (Some(from_region), Some(to_region)) = regions {
            mover.move_block(Move {
                block,
                from,
                to,
                from_region,
                to_region,
            });
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::ladder::tests::Capacity;
    use super::super::{Growth, PoolConfig, QUANTUM, Refused};
    use super::*;

    /// Regions of real bytes.
    pub(in crate::memory) struct Bytes;

    impl RegionSource for Bytes {
        type Region = std::cell::RefCell<Vec<u8>>;

        fn create(&mut self, bytes: u64) -> Result<Self::Region, Refused> {
            Ok(std::cell::RefCell::new(vec![0; bytes as usize]))
        }
    }

    /// Copies in order of address, as the contract says.
    pub(in crate::memory) struct Copies;

    type Region = <Bytes as RegionSource>::Region;

    impl Mover<Region> for Copies {
        fn move_block(&mut self, moved: Move<'_, Region>) {
            for at in 0..moved.from.bytes as usize {
                let byte = moved.from_region.borrow()[moved.from.offset as usize + at];
                moved.to_region.borrow_mut()[moved.to.offset as usize + at] = byte;
            }
        }
    }

    pub(in crate::memory) fn pool(growth: Growth, limit: u64) -> Pool<Bytes> {
        let config = PoolConfig {
            growth,
            limit: Some(limit * QUANTUM),
            max_region: limit * QUANTUM,
        };
        Pool::new(Bytes, config)
    }

    pub(in crate::memory) fn fill(pool: &Pool<Bytes>, block: BlockId, value: u8) {
        let place = pool.place(block).unwrap();
        let (from, to) = (place.offset as usize, (place.offset + place.bytes) as usize);
        pool.region(place.region).unwrap().borrow_mut()[from..to].fill(value);
    }

    fn holds(pool: &Pool<Bytes>, block: BlockId, value: u8) -> bool {
        let place = pool.place(block).unwrap();
        let (from, to) = (place.offset as usize, (place.offset + place.bytes) as usize);
        let region = pool.region(place.region).unwrap().borrow();
        region[from..to].iter().all(|&byte| byte == value)
    }

    /// Chunks tile, neighbours are not both free, and each block has its bytes.
    pub(in crate::memory) fn check(pool: &Pool<Bytes>, live: &[(BlockId, u64, u8)]) {
        let mut used = 0;
        for (region, bytes) in pool.regions() {
            let (mut at, mut was_free) = (0, false);
            for chunk in pool.chunks(region) {
                assert_eq!(chunk.offset, at);
                at += chunk.bytes;
                assert!(!(was_free && chunk.block.is_none()));
                was_free = chunk.block.is_none();
                used += chunk.block.map_or(0, |_| chunk.bytes);
            }
            assert_eq!(at, bytes);
        }
        assert_eq!(used, pool.statistics().allocated);
        for &(block, bytes, value) in live {
            assert_eq!(pool.place(block).unwrap().bytes, bytes * QUANTUM);
            assert!(holds(pool, block, value));
        }
    }

    /// Fills a pool of one region with blocks of these sizes and frees those with an odd number.
    fn alternate(pool: &mut Pool<Bytes>, sizes: &[u64]) -> Vec<(BlockId, u64, u8)> {
        let mut live = Vec::new();
        for (value, &bytes) in (0u8..).zip(sizes) {
            let block = pool.allocate(bytes * QUANTUM).unwrap();
            fill(pool, block, value);
            live.push((block, bytes, value));
        }
        live.retain(|&(block, _, value)| value % 2 == 0 || !pool.free(block));
        live
    }

    #[test]
    fn the_cheapest_way_is_taken() {
        let bytes = 32 * QUANTUM;
        // The hole of 4 next to the block of 1, which has a place before it.
        let mut pool_ = pool(Growth::PreallocateBytes { bytes }, 32);
        let live = alternate(&mut pool_, &[8, 2, 10, 4, 1, 3, 4]);
        let hole = pool_.allocate_moving(8 * QUANTUM, &mut Copies).unwrap();
        check(&pool_, &live);
        let statistics = pool_.statistics();
        assert_eq!(
            (
                statistics.events.relocations,
                statistics.events.relocated_bytes
            ),
            (1, QUANTUM)
        );
        assert_eq!(pool_.place(hole).unwrap().offset, 20 * QUANTUM);
        // Nothing has a place elsewhere: blocks slide, onto themselves.
        let mut pool_ = pool(Growth::PreallocateBytes { bytes }, 32);
        let live = alternate(&mut pool_, &[8, 2, 10, 2, 8, 2]);
        assert!(pool_.allocate(6 * QUANTUM).is_err());
        pool_.allocate_moving(6 * QUANTUM, &mut Copies).unwrap();
        check(&pool_, &live);
        assert_eq!(pool_.statistics().events.relocated_bytes, 18 * QUANTUM);
        assert_eq!(pool_.statistics().free, 0);
    }

    #[test]
    fn a_block_gets_a_hole_that_is_slid_together_elsewhere() {
        let bytes = 64 * QUANTUM;
        let mut pool = pool(Growth::PreallocateBytes { bytes }, 64);
        let live = alternate(&mut pool, &[20, 5, 4, 1, 20, 2, 1, 2, 9]);
        // The block of 1 slides, and the one of 4 goes where it was: all else would move 20 more.
        let hole = pool.allocate_moving(9 * QUANTUM, &mut Copies).unwrap();
        check(&pool, &live);
        let events = pool.statistics().events;
        assert_eq!(
            (events.relocations, events.relocated_bytes),
            (2, 5 * QUANTUM)
        );
        assert_eq!(pool.place(hole).unwrap().offset, 20 * QUANTUM);
    }

    #[test]
    fn a_small_request_gets_room_for_two() {
        let bytes = 512 * QUANTUM;
        let mut pool = pool(Growth::PreallocateBytes { bytes }, 512);
        let live = alternate(&mut pool, &[100, 4, 2, 1, 100, 3, 4, 3, 100, 4, 191]);
        // The block of 2 would be enough; with the one of 4 the hole is twice as large.
        pool.allocate_moving(5 * QUANTUM, &mut Copies).unwrap();
        check(&pool, &live);
        let statistics = pool.statistics();
        assert_eq!(statistics.events.relocated_bytes, 4 * QUANTUM);
        assert_eq!(statistics.largest_free, 5 * QUANTUM);
    }

    #[test]
    fn pinned_blocks_stay() {
        let bytes = 32 * QUANTUM;
        let mut pool = pool(Growth::PreallocateBytes { bytes }, 32);
        let live = alternate(&mut pool, &[8, 2, 10, 2, 8, 2]);
        let pinned = live[1].0;
        let place = pool.place(pinned);
        assert!(pool.pin(pinned));
        assert!(pool.allocate_moving(5 * QUANTUM, &mut Copies).is_err());
        pool.allocate_moving(4 * QUANTUM, &mut Copies).unwrap();
        assert_eq!(pool.place(pinned), place);
        check(&pool, &live);
        assert!(pool.unpin(pinned));
        pool.allocate_moving(2 * QUANTUM, &mut Copies).unwrap();
        check(&pool, &live);
        assert!(!pool.pin(BlockId::NOWHERE));
    }

    #[test]
    fn a_way_is_found_behind_many_cheap_windows_without_one() {
        for stretches in [1, 31, 32, 40, 63] {
            let quanta = stretches * 21 + 22;
            let bytes = quanta * QUANTUM;
            let mut pool = pool(Growth::PreallocateBytes { bytes }, quanta);
            let mut holes = Vec::new();
            // Between pinned blocks: 15 that fit nowhere and a hole of 5; once four of 4 and a hole of 4.
            let mut stretch = |blocks: &[u64], hole: u64| {
                let pinned = pool.allocate(QUANTUM).unwrap();
                assert!(pool.pin(pinned));
                for block in blocks {
                    pool.allocate(block * QUANTUM).unwrap();
                }
                holes.push(pool.allocate(hole * QUANTUM).unwrap());
            };
            for _ in 0..stretches {
                stretch(&[15], 5);
            }
            stretch(&[4; 4], 4);
            let last = pool.allocate(QUANTUM).unwrap();
            assert!(pool.pin(last));
            for hole in holes {
                assert!(pool.free(hole));
            }
            let made = pool.allocate_moving(20 * QUANTUM, &mut Copies);
            // Four holes of 5 are needed for the four blocks.
            assert_eq!(made.is_ok(), stretches >= 4, "{stretches}");
        }
    }

    #[test]
    fn room_to_move_into_goes_back_where_no_hole_comes_of_it() {
        let mut pool = pool(Growth::Step { bytes: 4 * QUANTUM }, 10);
        for _ in 0..2 {
            let block = pool.allocate(3 * QUANTUM).unwrap();
            assert!(pool.pin(block));
        }
        assert!(pool.allocate_moving(4 * QUANTUM, &mut Copies).is_err());
        let statistics = pool.statistics();
        assert_eq!((statistics.regions, statistics.reserved), (2, 8 * QUANTUM));
    }

    #[test]
    fn regions_are_traded_for_a_larger_one() {
        // Eight regions of 4, each with a block of 3, and 3 more allowed: then 8 are asked for.
        let mut pool = pool(Growth::Step { bytes: 4 * QUANTUM }, 35);
        let mut live = Vec::new();
        for value in 0..8 {
            let block = pool.allocate(3 * QUANTUM).unwrap();
            fill(&pool, block, value);
            live.push((block, 3, value));
        }
        assert_eq!(pool.statistics().regions, 8);
        let large = pool.allocate_moving(8 * QUANTUM, &mut Copies).unwrap();
        fill(&pool, large, 99);
        live.push((large, 8, 99));
        check(&pool, &live);
        assert!(pool.statistics().reserved <= 35 * QUANTUM);
    }

    /// Random sizes in a tight budget: whatever happens, tiles, account and bytes are right; and
    /// within one region nothing fails while enough is free.
    #[test]
    fn random_moves_keep_every_byte() {
        let mut state: u32 = 7;
        let mut random = move |end: u32| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state % end
        };
        let turns = if cfg!(miri) { 10 } else { 4000 };
        for growth in [
            Growth::Proportional,
            Growth::PreallocateBytes {
                bytes: 200 * QUANTUM,
            },
            Growth::Step {
                bytes: 30 * QUANTUM,
            },
        ] {
            let is_whole = matches!(growth, Growth::PreallocateBytes { .. });
            let mut pool = pool(growth, 200);
            let mut live: Vec<(BlockId, u64, u8)> = Vec::new();
            for turn in 0..turns {
                if random(5) < 3 {
                    let bytes = u64::from(1 + random(30));
                    let free = 200 * QUANTUM - pool.statistics().allocated;
                    match pool.allocate_moving(bytes * QUANTUM, &mut Copies) {
                        Ok(block) => {
                            let value = (turn % 251) as u8;
                            fill(&pool, block, value);
                            live.push((block, bytes, value));
                        }
                        Err(_) => assert!(!is_whole || free < bytes * QUANTUM),
                    }
                } else if !live.is_empty() {
                    let (block, ..) = live.swap_remove(random(live.len() as u32) as usize);
                    assert!(pool.free(block));
                }
                check(&pool, &live);
                assert!(pool.statistics().reserved <= 200 * QUANTUM);
            }
            assert!(pool.statistics().events.relocations > 0 || cfg!(miri));
        }
    }

    /// The source says no, not the budget: regions are traded all the same, and what fails leaves
    /// no region behind.
    #[test]
    fn regions_are_traded_when_the_source_refuses() {
        for limit in [None, Some(1 << 40), Some(64 * QUANTUM)] {
            let config = PoolConfig {
                growth: Growth::Step { bytes: 4 * QUANTUM },
                limit,
                max_region: 64 * QUANTUM,
            };
            let mut pool = Pool::new(Capacity(64 * QUANTUM), config);
            let blocks: Vec<_> = (0..64).map(|_| pool.allocate(QUANTUM).unwrap()).collect();
            for (at, &block) in blocks.iter().enumerate() {
                assert!(at % 4 == 0 || pool.free(block));
            }
            assert_eq!(pool.statistics().regions, 16);
            pool.allocate_moving(8 * QUANTUM, &mut ()).unwrap();
            assert!(pool.statistics().reserved <= 64 * QUANTUM);
            let before = pool.statistics().regions;
            assert!(pool.allocate_moving(60 * QUANTUM, &mut ()).is_err());
            assert!(pool.statistics().regions <= before);
        }
    }
}
