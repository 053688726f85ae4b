//! A pool over simulated memory, in which every promise can be checked at any moment: what the model
//! knows of each block, what a walk finds, and what the memory itself holds.
//!
//! For whoever has a `memory` module at hand: `tests/memory.rs` (orlop's own) and `fuzz/`.

use std::cell::RefCell;
use std::rc::Rc;

use super::memory::{
    BlockId, Chunk, Growth, Move, Mover, Place, Pool, PoolConfig, QUANTUM, Refused, RegionId,
    RegionSource,
};

/// Memory of one region: a word for each quantum.
pub type Memory = Rc<RefCell<Vec<u64>>>;

/// Plays a device: a capacity, refusals on demand, memory, and a count of what it has given out.
#[derive(Default)]
pub struct Simulated {
    pub capacity: u64,
    /// So many regions are refused, whatever their size.
    pub refusals: u32,
    pub in_use: u64,
    pub peak: u64,
    pub held: u64,
}

impl RegionSource for Simulated {
    type Region = Memory;

    fn create(&mut self, bytes: u64) -> Result<Memory, Refused> {
        assert!(bytes > 0 && bytes.is_multiple_of(QUANTUM), "{bytes} bytes");
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(Refused("a bad moment".into()));
        }
        if bytes > self.capacity.saturating_sub(self.in_use) {
            return Err(Refused("no memory left".into()));
        }
        self.in_use += bytes;
        self.held += 1;
        self.peak = self.peak.max(self.in_use);
        Ok(Rc::new(RefCell::new(vec![0; (bytes / QUANTUM) as usize])))
    }

    fn destroy(&mut self, region: Memory) {
        let quanta = region.borrow().len() as u64;
        self.in_use -= quanta * QUANTUM;
        self.held -= 1;
    }
}

/// Moves the words of blocks, those of whom it is allowed.
#[derive(Default)]
struct Copies {
    /// Blocks that are in the middle of something.
    busy: Vec<BlockId>,
    moves: u64,
    bytes: u64,
}

impl Mover<Memory> for Copies {
    fn may_move(&mut self, block: BlockId) -> bool {
        !self.busy.contains(&block)
    }

    fn move_block(&mut self, moved: Move<'_, Memory>) {
        let Move {
            block, from, to, ..
        } = moved;
        assert!(!self.busy.contains(&block), "a busy block was moved");
        assert_eq!(from.bytes, to.bytes);
        assert!(from != to, "a move to the same place");
        self.moves += 1;
        self.bytes += from.bytes;
        let range = |place: Place| {
            let start = (place.offset / QUANTUM) as usize;
            start..start + (place.bytes / QUANTUM) as usize
        };
        if from.region == to.region {
            // In order of address: right when it goes down, or where the places do not overlap.
            let mut memory = moved.from_region.borrow_mut();
            for (from, to) in range(from).zip(range(to)) {
                memory[to] = memory[from];
            }
        } else {
            let words = moved.from_region.borrow()[range(from)].to_vec();
            moved.to_region.borrow_mut()[range(to)].copy_from_slice(&words);
        }
    }
}

/// What the model knows of a block.
struct Block {
    id: BlockId,
    /// Names what it holds.
    stamp: u64,
    asked: u64,
    /// Where it must be while it is pinned.
    pinned: Option<(Place, u32)>,
}

/// What can happen to a pool.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Allocate {
        bytes: u64,
        moving: bool,
    },
    Free {
        which: u64,
    },
    Pin {
        which: u64,
    },
    Unpin {
        which: u64,
    },
    /// The next allocation finds it in the middle of something.
    Busy {
        which: u64,
    },
    /// Its contents go to the host, and its memory is free.
    Spill {
        which: u64,
    },
    /// The contents that have been on the host longest come back.
    Refault,
    Trim,
    TrimTo {
        bytes: u64,
    },
    Limit {
        bytes: Option<u64>,
    },
    Capacity {
        bytes: u64,
    },
    Refuse {
        times: u32,
    },
    ResetPeaks,
}

/// A pool and what it must be like.
pub struct World {
    pub pool: Pool<Simulated>,
    limit: Option<u64>,
    max_region: u64,
    blocks: Vec<Block>,
    /// Contents on the host: stamp and bytes asked for, the oldest first.
    spilled: Vec<(u64, u64)>,
    stale: Vec<BlockId>,
    stale_regions: Vec<RegionId>,
    next_stamp: u64,
    busy: Vec<BlockId>,
    pub failures: u64,
    pub moves: u64,
    pub moved_bytes: u64,
    peak_allocated: u64,
}

impl World {
    pub fn new(growth: Growth, limit: Option<u64>, max_region: u64, capacity: u64) -> World {
        let config = PoolConfig {
            growth,
            limit,
            max_region,
        };
        let source = Simulated {
            capacity,
            ..Simulated::default()
        };
        World {
            pool: Pool::new(source, config),
            limit,
            max_region: max_region / QUANTUM * QUANTUM,
            blocks: Vec::new(),
            spilled: Vec::new(),
            stale: Vec::new(),
            stale_regions: Vec::new(),
            next_stamp: 1,
            busy: Vec::new(),
            failures: 0,
            moves: 0,
            moved_bytes: 0,
            peak_allocated: 0,
        }
    }

    /// Number of blocks in use.
    pub fn live(&self) -> usize {
        self.blocks.len()
    }

    /// Lets something happen and checks what it must have done; [`World::check`] looks at all the rest.
    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Allocate { bytes, moving } => {
                let stamp = self.next_stamp;
                self.next_stamp += 1;
                self.allocate(stamp, bytes, moving);
            }
            Event::Free { which } => {
                if let Some(at) = self.pick(which) {
                    let block = self.blocks.swap_remove(at);
                    assert!(self.pool.free(block.id));
                    self.stale.push(block.id);
                }
            }
            Event::Pin { which } => {
                if let Some(at) = self.pick(which) {
                    let block = &mut self.blocks[at];
                    assert!(self.pool.pin(block.id));
                    let place = self.pool.place(block.id).expect("it is in use");
                    block.pinned.get_or_insert((place, 0)).1 += 1;
                }
            }
            Event::Unpin { which } => {
                if let Some(at) = self.pick(which) {
                    let block = &mut self.blocks[at];
                    assert!(self.pool.unpin(block.id));
                    block.pinned = block
                        .pinned
                        .map(|(place, times)| (place, times - 1))
                        .filter(|(_, times)| *times > 0);
                }
            }
            Event::Busy { which } => {
                if let Some(at) = self.pick(which) {
                    self.busy.push(self.blocks[at].id);
                }
            }
            Event::Spill { which } => {
                if let Some(at) = self.pick(which) {
                    let block = self.blocks.swap_remove(at);
                    self.check_contents(&block);
                    assert!(self.pool.free(block.id));
                    self.stale.push(block.id);
                    self.spilled.push((block.stamp, block.asked));
                }
            }
            Event::Refault => {
                if !self.spilled.is_empty() {
                    let (stamp, asked) = self.spilled.remove(0);
                    if !self.allocate(stamp, asked, true) {
                        self.spilled.insert(0, (stamp, asked));
                    }
                }
            }
            Event::Trim => self.trim_to(0),
            Event::TrimTo { bytes } => self.trim_to(bytes),
            Event::Limit { bytes } => {
                self.limit = bytes;
                self.pool.set_limit(bytes);
            }
            Event::Capacity { bytes } => self.pool.source_mut().capacity = bytes,
            Event::Refuse { times } => self.pool.source_mut().refusals = times,
            Event::ResetPeaks => {
                self.pool.reset_peaks();
                let source = self.pool.source_mut();
                source.peak = source.in_use;
                self.peak_allocated = self.allocated();
            }
        }
    }

    fn pick(&self, which: u64) -> Option<usize> {
        let count = self.blocks.len() as u64;
        (count > 0).then(|| (which % count) as usize)
    }

    fn allocated(&self) -> u64 {
        let bytes = |block: &Block| block.asked.max(1).next_multiple_of(QUANTUM);
        self.blocks.iter().map(bytes).sum()
    }

    fn allocate(&mut self, stamp: u64, bytes: u64, moving: bool) -> bool {
        let before = self.pool.statistics();
        let broken_up = self.would_break_up(bytes);
        let mut copies = Copies {
            busy: std::mem::take(&mut self.busy),
            ..Copies::default()
        };
        let outcome = match moving {
            true => self.pool.allocate_moving(bytes, &mut copies),
            false => self.pool.allocate(bytes),
        };
        self.moves += copies.moves;
        self.moved_bytes += copies.bytes;
        let after = self.pool.statistics();
        assert!(moving || copies.moves == 0);
        assert_eq!(
            after.events.relocations - before.events.relocations,
            copies.moves
        );
        assert_eq!(
            after.events.relocated_bytes - before.events.relocated_bytes,
            copies.bytes
        );
        let rounded = bytes.max(1).checked_next_multiple_of(QUANTUM);
        match outcome {
            Ok(id) => {
                let place = self.pool.place(id).expect("a new block has a place");
                assert_eq!(Some(place.bytes), rounded);
                let block = Block {
                    id,
                    stamp,
                    asked: bytes,
                    pinned: None,
                };
                self.fill(&block, place);
                self.blocks.push(block);
                self.peak_allocated = self.peak_allocated.max(self.allocated());
                let retries = after.events.retries - before.events.retries;
                let regions = after.counts.regions.allocated - before.counts.regions.allocated;
                assert!(retries <= 1);
                assert!(copies.moves == 0 || regions > 0 || retries == 1);
                if before.largest_free >= place.bytes && !broken_up {
                    assert_eq!(after.reserved, before.reserved, "a hole was there");
                    assert_eq!(copies.moves, 0, "a hole was there");
                }
                true
            }
            Err(full) => {
                self.failures += 1;
                assert_eq!(full.asked, bytes);
                assert_eq!(*full.statistics, after);
                assert_eq!(after.allocated, before.allocated);
                assert_eq!(after.live_blocks, before.live_blocks);
                assert_eq!(after.events.failures, before.events.failures + 1);
                assert!(!full.to_string().is_empty());
                if let Some(rounded) = rounded {
                    assert!(after.largest_free < rounded, "a hole was there: {full}");
                    let is_over = matches!(full.reason, super::memory::FullReason::OverBudget);
                    assert!(
                        !is_over || before.largest_free < rounded,
                        "a hole was there before: {full}"
                    );
                }
                // Nothing stands in the way of sliding all blocks of a region together.
                let free = copies.busy.is_empty();
                if moving && free && rounded.is_some_and(|rounded| rounded <= self.max_region) {
                    assert!(full.largest_by_moving < full.rounded, "{full}");
                }
                false
            }
        }
    }

    /// Whether there is an idle region of which a request needs less than 4/5: it may go back instead.
    fn would_break_up(&self, bytes: u64) -> bool {
        self.pool.regions().any(|(region, held)| {
            let idle = |chunk: Chunk| chunk.block.is_none() && chunk.bytes == held;
            held > bytes.saturating_add(bytes / 4).max(64 << 10)
                && self.pool.chunks(region).any(idle)
        })
    }

    fn trim_to(&mut self, bytes: u64) {
        let before: Vec<(RegionId, u64)> = self.pool.regions().collect();
        let reserved = self.pool.statistics().reserved;
        let idle: Vec<RegionId> = before
            .iter()
            .filter(|(region, _)| self.pool.chunks(*region).all(|chunk| chunk.block.is_none()))
            .map(|(region, _)| *region)
            .collect();
        let returned = self.pool.trim_to(bytes);
        let after = self.pool.statistics().reserved;
        assert!(returned.iter().all(|region| idle.contains(region)));
        assert!(
            after <= bytes || returned.len() == idle.len(),
            "more could go"
        );
        assert!(reserved > bytes || returned.is_empty(), "none had to go");
        for region in &returned {
            assert!(self.pool.region(*region).is_none());
        }
        self.stale_regions.extend(returned);
    }

    fn fill(&self, block: &Block, place: Place) {
        let memory = self.pool.region(place.region).expect("it is held");
        let start = (place.offset / QUANTUM) as usize;
        for at in 0..(place.bytes / QUANTUM) as usize {
            memory.borrow_mut()[start + at] = word(block.stamp, at);
        }
    }

    fn check_contents(&self, block: &Block) {
        let place = self.pool.place(block.id).expect("it is in use");
        let memory = self.pool.region(place.region).expect("it is held");
        let memory = memory.borrow();
        let start = (place.offset / QUANTUM) as usize;
        for at in 0..(place.bytes / QUANTUM) as usize {
            let found = memory[start + at];
            assert_eq!(
                found,
                word(block.stamp, at),
                "block {} at {at}",
                block.stamp
            );
        }
        if let Some((pinned, _)) = block.pinned {
            assert_eq!(place, pinned, "a pinned block was moved");
        }
    }

    /// Every promise that can be seen from outside.
    pub fn check(&mut self) {
        for block in &self.blocks {
            self.check_contents(block);
        }
        for id in self.stale.drain(..) {
            assert!(!self.pool.free(id) && !self.pool.pin(id) && !self.pool.unpin(id));
            assert_eq!(self.pool.place(id), None);
        }
        for &region in &self.stale_regions {
            assert!(self.pool.region(region).is_none());
            assert_eq!(self.pool.chunks(region).count(), 0);
        }
        self.stale_regions.truncate(16);
        self.check_pins();
        self.check_walk();
    }

    /// Those blocks are pinned that were pinned and not freed since: a pin ends with its block.
    fn check_pins(&self) {
        let mut told = Vec::new();
        for ((id, _), region) in self.pool.regions().zip(self.pool.snapshot().regions) {
            let chunks = region.chunks.into_iter();
            let pinned = chunks.filter(|chunk| chunk.block.as_ref().is_some_and(|b| b.pinned));
            told.extend(pinned.map(|chunk| (id, chunk.offset)));
        }
        let pinned = self.blocks.iter().filter_map(|block| block.pinned);
        let pinned: Vec<_> = pinned.map(|(at, _)| (at.region, at.offset)).collect();
        assert_eq!(told.len(), pinned.len(), "{told:?} are pinned");
        assert!(pinned.iter().all(|place| told.contains(place)), "{told:?}");
    }

    /// The account equals what a walk over all chunks finds, and what the source gave.
    fn check_walk(&self) {
        let told = self.pool.statistics();
        let (mut reserved, mut allocated, mut free, mut largest) = (0, 0, 0, 0);
        let (mut regions, mut blocks, mut splits, mut split_bytes) = (0, 0, 0, 0);
        for (region, region_bytes) in self.pool.regions() {
            regions += 1;
            reserved += region_bytes;
            assert!(region_bytes <= self.max_region);
            let (mut end, mut previous_free, mut used) = (0, false, false);
            let (mut free_chunks, mut free_bytes) = (0, 0);
            for chunk in self.pool.chunks(region) {
                assert_eq!(chunk.offset, end, "chunks tile their region");
                assert!(chunk.bytes > 0 && chunk.bytes.is_multiple_of(QUANTUM));
                end += chunk.bytes;
                match chunk.block {
                    Some(block) => {
                        let place = self.pool.place(block).expect("a block in use has a place");
                        let found = (place.region, place.offset, place.bytes);
                        assert_eq!(found, (region, chunk.offset, chunk.bytes));
                        used = true;
                        blocks += 1;
                        allocated += chunk.bytes;
                    }
                    None => {
                        assert!(!previous_free, "free neighbours are merged");
                        free_chunks += 1;
                        free_bytes += chunk.bytes;
                        largest = largest.max(chunk.bytes);
                    }
                }
                previous_free = chunk.block.is_none();
            }
            assert_eq!(end, region_bytes, "chunks tile their region");
            free += free_bytes;
            if used {
                splits += free_chunks;
                split_bytes += free_bytes;
            }
        }
        let source = self.pool.source();
        assert_eq!(
            (told.reserved, told.allocated, told.free, told.largest_free),
            (reserved, allocated, free, largest)
        );
        assert_eq!((told.regions, told.live_blocks), (regions, blocks));
        assert_eq!((reserved, regions), (source.in_use, source.held));
        assert_eq!(told.peak_reserved, source.peak);
        assert_eq!(allocated, self.allocated());
        assert_eq!(blocks, self.blocks.len() as u64);
        assert_eq!(told.peak_allocated, self.peak_allocated);
        assert_eq!(told.limit, self.limit);
        assert_eq!(
            (told.counts.splits.current, told.counts.split_bytes.current),
            (splits, split_bytes)
        );
        let asked: u64 = self.blocks.iter().map(|block| block.asked).sum();
        assert_eq!(told.counts.requested_bytes.current, asked);
        assert_eq!(told.events.relocations, self.moves);
        assert_eq!(told.events.relocated_bytes, self.moved_bytes);
        assert_eq!(told.events.failures, self.failures);
    }
}

/// What a quantum of a block holds.
fn word(stamp: u64, at: usize) -> u64 {
    (stamp << 24) ^ at as u64
}
