//! Best fit with exact split and immediate coalescing, over several regions.

mod moves;

use super::free_index::FreeIndex;
use super::slots::{Detail, NONE, Slot, Slots, absorb_next, vacate};
pub(super) use moves::Piece;

/// Names a block in use. Once the block is freed the id is stale, and it stays so for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    slot: u32,
    generation: u32,
}

impl BlockId {
    /// The block's place in vectors beside the pool: no two blocks in use share one, and numbers are
    /// reused, so that they stay below twice the most blocks in use at a time (one that moves counts
    /// twice), plus the regions.
    pub fn index(self) -> usize {
        // No block is in slot 0.
        self.slot.wrapping_sub(1) as usize
    }

    /// An id that names nothing, in any pool.
    pub(crate) const NOWHERE: Self = BlockId {
        slot: u32::MAX,
        generation: u32::MAX,
    };

    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        BlockId {
            slot: (bits >> 32) as u32,
            generation: bits as u32,
        }
    }
}

/// Names a region that is held. Once the region is returned the id is stale, and it stays so for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId {
    slot: u32,
    generation: u32,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The region that it lies in.
    pub region: RegionId,
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Bytes in the block: what was asked for, rounded up to [`QUANTUM`](super::QUANTUM).
    pub bytes: u64,
}

/// One piece of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Bytes in the chunk.
    pub bytes: u64,
    /// The block that it holds, `None` when it is free.
    pub block: Option<BlockId>,
}

/// A region in its slot.
#[derive(Debug)]
struct Region<R> {
    generation: u32,
    /// The address of its first chunk: bytes in all regions before it, with a gap before each.
    address: u64,
    bytes: u64,
    first_chunk: u32,
    /// What the source gave, `None` while the slot is vacant.
    held: Option<R>,
}

/// Bytes before each region in the addresses: in pictures neighbours are seen apart, and no block lies at 0.
const GAP: u64 = 2 << 20;

/// Divides regions; never asks for one by itself. All sizes it takes are multiples of the quantum, and not 0.
#[derive(Debug)]
pub(super) struct BestFit<R> {
    slots: Slots,
    regions: Vec<Region<R>>,
    vacant_regions: Vec<u32>,
    /// Slots of the regions held, in order of creation.
    region_order: Vec<u32>,
    next_address: u64,
    /// Number and bytes of the regions without a block in use.
    idle: Idle,
    free: FreeIndex,
}

/// The regions without a block in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Idle {
    pub(super) regions: u64,
    pub(super) bytes: u64,
    /// Number and bytes of all that ever were.
    came: [u64; 2],
}

impl Idle {
    /// Adds a region of so many bytes.
    #[inline]
    fn add(&mut self, bytes: u64) {
        self.regions += 1;
        self.bytes += bytes;
        self.came[0] += 1;
        self.came[1] = self.came[1].wrapping_add(bytes);
    }

    /// Undoes [`Idle::add`].
    #[inline]
    fn take(&mut self, bytes: u64) {
        self.regions -= 1;
        self.bytes -= bytes;
    }
}

impl<R> BestFit<R> {
    pub(super) fn new() -> Self {
        BestFit {
            slots: Slots::new(),
            regions: Vec::new(),
            vacant_regions: Vec::new(),
            region_order: Vec::new(),
            next_address: 0,
            idle: Idle::default(),
            free: FreeIndex::new(),
        }
    }

    /// Whether there are so many chunks that a further one could not be named.
    pub(super) fn is_out_of_slots(&self) -> bool {
        self.slots.are_out()
    }

    /// Takes the best free chunk for `bytes`, and says whether it was an idle region; `None`, and nothing changed,
    /// when none is large enough, when it is an idle region of so many bytes that is kept whole, or when what would be
    /// left of it could not be named.
    #[inline(always)]
    pub(super) fn allocate(
        &mut self,
        bytes: u64,
        detail: Detail,
        kept_whole: impl FnOnce(u64, Idle) -> bool,
    ) -> Option<(BlockId, bool)> {
        if !self.slots.spare() {
            return None;
        }
        let (slots, _) = self.slots.parts();
        let slot = self.free.take_best(slots, bytes)?;
        let chunk = &slots[slot as usize];
        let was_idle = chunk.fills_its_region();
        if was_idle {
            if kept_whole(chunk.bytes, self.idle) {
                self.put_back(slot);
                return None;
            }
            self.idle.take(chunk.bytes);
        }
        Some((self.occupy(slot, bytes, detail), was_idle))
    }

    /// Undoes that the index let an idle region go: as if it had come to be idle once more.
    #[cold]
    fn put_back(&mut self, slot: u32) {
        let bytes = self.slots[slot].bytes;
        self.idle.take(bytes);
        self.free.insert(self.slots.parts().0, slot);
        self.idle.add(bytes);
    }

    /// Adds a region of one free chunk.
    pub(super) fn open_region(&mut self, held: R, region_bytes: u64) -> RegionId {
        let region_slot = self.vacant_regions.pop().unwrap_or_else(|| {
            self.regions.push(Region {
                generation: 0,
                address: 0,
                bytes: 0,
                first_chunk: NONE,
                held: None,
            });
            (self.regions.len() - 1) as u32
        });
        let address = self.next_address.wrapping_add(GAP);
        self.next_address = address.wrapping_add(region_bytes);
        let chunk_slot = self.slots.occupy();
        let chunk = &mut self.slots[chunk_slot];
        chunk.address = address;
        chunk.bytes = region_bytes;
        chunk.region = region_slot;
        chunk.previous = NONE;
        chunk.next = NONE;
        let region = &mut self.regions[region_slot as usize];
        region.address = address;
        region.bytes = region_bytes;
        region.first_chunk = chunk_slot;
        region.held = Some(held);
        self.region_order.push(region_slot);
        self.free.insert(self.slots.parts().0, chunk_slot);
        self.idle.add(region_bytes);
        self.region_id(region_slot)
    }

    /// Gives a block back and merges it with its free neighbours. Returns what was known of it, with its
    /// bytes; `None` for a stale id.
    #[inline(always)]
    pub(super) fn free(&mut self, block: BlockId) -> Option<(u64, Detail)> {
        let slot = block.slot;
        let (slots, vacant) = self.slots.parts();
        let freed = slots.get_mut(slot as usize)?;
        if freed.generation != block.generation || !freed.in_use {
            return None;
        }
        freed.in_use = false;
        freed.pins = 0;
        freed.generation = freed.generation.saturating_add(1);
        let Slot {
            bytes,
            detail,
            previous,
            next,
            ..
        } = *freed;
        let is_worn_out = freed.is_worn_out();

        // Of chunks that merge the first keeps its slot.
        let mut first = slot;
        if !slots[next as usize].in_use {
            self.free.remove(slots, next);
            absorb_next(slots, vacant, slot);
        }
        if !slots[previous as usize].in_use {
            self.free.remove(slots, previous);
            absorb_next(slots, vacant, previous);
            first = previous;
        } else if is_worn_out {
            first = self.resettle(slot);
        }
        let slots = self.slots.parts().0;
        self.free.insert(slots, first);
        let merged = &slots[first as usize];
        if merged.fills_its_region() {
            self.idle.add(merged.bytes);
        }
        Some((bytes, detail))
    }

    /// What is known of a block in use.
    pub(super) fn detail(&self, block: BlockId) -> Option<Detail> {
        self.live_slot(block).map(|slot| slot.detail)
    }

    /// Makes a block in use the one of an earlier allocation.
    pub(super) fn renumber(&mut self, block: BlockId, number: u64) {
        if self.live_slot(block).is_some() {
            self.slots[block.slot].detail.number = number;
        }
    }

    /// The address of a region's first byte, where regions follow each other in order of creation.
    pub(super) fn address(&self, region: RegionId) -> u64 {
        self.live_region(region).map_or(0, |region| region.address)
    }

    pub(super) fn place(&self, block: BlockId) -> Option<Place> {
        let slot = self.live_slot(block)?;
        Some(Place {
            region: self.region_id(slot.region),
            offset: self.offset(slot),
            bytes: slot.bytes,
        })
    }

    /// What the source gave for a region; `None` for a stale id.
    pub(super) fn region(&self, region: RegionId) -> Option<&R> {
        self.live_region(region)?.held.as_ref()
    }

    /// The regions held with their bytes, in order of creation.
    pub(super) fn regions(&self) -> impl ExactSizeIterator<Item = (RegionId, u64)> + '_ {
        self.region_order
            .iter()
            .map(|&slot| (self.region_id(slot), self.regions[slot as usize].bytes))
    }

    /// The regions without a block in use, with their bytes, in order of creation.
    pub(super) fn idle_regions(&self) -> impl Iterator<Item = (RegionId, u64)> + '_ {
        self.regions()
            .filter(|(region, _)| self.is_idle(region.slot))
    }

    /// The chunks of a region in address order; none for a stale id.
    pub(super) fn chunks(&self, region: RegionId) -> impl Iterator<Item = Chunk> + '_ {
        self.slots(region).map(|slot| {
            let chunk = &self.slots[slot];
            let generation = chunk.generation;
            Chunk {
                offset: self.offset(chunk),
                bytes: chunk.bytes,
                block: chunk.in_use.then_some(BlockId { slot, generation }),
            }
        })
    }

    fn slots(&self, region: RegionId) -> impl Iterator<Item = u32> + '_ {
        let first = self.live_region(region).map(|region| region.first_chunk);
        std::iter::successors(first, |&slot| {
            Some(self.slots[slot].next).filter(|&next| next != NONE)
        })
    }

    /// Forgets a region without a block in use and gives back what the source gave, and its bytes;
    /// `None`, and nothing changed, for a stale id or a region in use.
    pub(super) fn close_region(&mut self, id: RegionId) -> Option<(R, u64)> {
        self.live_region(id)?;
        if !self.is_idle(id.slot) {
            return None;
        }
        let at = self
            .region_order
            .iter()
            .rposition(|&slot| slot == id.slot)?;
        self.region_order.remove(at);
        let (_, bytes, held) = self.forget(id.slot);
        held.map(|held| (held, bytes))
    }

    /// Forgets the idle regions that are to go in order of creation, and hands on each one's address and bytes, and what
    /// the source gave.
    pub(super) fn close_idle(
        &mut self,
        mut goes: impl FnMut(RegionId) -> bool,
        mut closed: impl FnMut(u64, u64, R),
    ) {
        // Most are among the last.
        let mut first = self.region_order.len();
        let mut left = self.idle.regions;
        while left > 0 && first > 0 {
            first -= 1;
            left -= u64::from(self.is_idle(self.region_order[first]));
        }
        let mut kept = first;
        for at in first..self.region_order.len() {
            let slot = self.region_order[at];
            let generation = self.regions[slot as usize].generation;
            if !self.is_idle(slot) || !goes(RegionId { slot, generation }) {
                self.region_order[kept] = slot;
                kept += 1;
            } else if let (address, bytes, Some(held)) = self.forget(slot) {
                closed(address, bytes, held);
            }
        }
        self.region_order.truncate(kept);
    }

    /// Forgets an idle region that is no longer in the order of creation.
    fn forget(&mut self, region_slot: u32) -> (u64, u64, Option<R>) {
        let region = &mut self.regions[region_slot as usize];
        self.idle.take(region.bytes);
        let (slots, vacant) = self.slots.parts();
        self.free.remove(slots, region.first_chunk);
        vacate(slots, vacant, region.first_chunk);
        region.generation = region.generation.saturating_add(1);
        // A slot whose generations are used up stays empty, so that no stale id comes back to life.
        if region.generation < u32::MAX {
            self.vacant_regions.push(region_slot);
        }
        (region.address, region.bytes, region.held.take())
    }

    /// What the source gave for each region, in order of creation. Before the end: no region is known any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = R> {
        let order = std::mem::take(&mut self.region_order);
        let mut regions = std::mem::take(&mut self.regions);
        order
            .into_iter()
            .filter_map(move |slot| regions[slot as usize].held.take())
    }

    /// Number and bytes of the regions without a block in use: each is one free chunk.
    #[inline]
    pub(super) fn idle(&self) -> Idle {
        self.idle
    }

    /// Number of free chunks in regions that also hold blocks.
    #[inline]
    pub(super) fn split_chunks(&self) -> u64 {
        self.free.len() - self.idle.regions
    }

    /// Number and bytes of all free chunks that ever came to be in regions that also held blocks.
    pub(super) fn splits_made(&self) -> [u64; 2] {
        let (all, idle) = (self.free.came(), self.idle.came);
        std::array::from_fn(|figure| all[figure].wrapping_sub(idle[figure]))
    }

    /// Bytes of the largest free chunk, 0 when there is none.
    pub(super) fn largest_free(&self) -> u64 {
        self.free.largest(self.slots.all())
    }

    /// Makes the first `bytes` of a free chunk that the index has let go a block; what is left stays free, in a slot
    /// that is vacant.
    #[inline(always)]
    fn occupy(&mut self, slot: u32, bytes: u64, detail: Detail) -> BlockId {
        let (slots, vacant) = self.slots.parts();
        let chunk = &mut slots[slot as usize];
        chunk.detail = detail;
        chunk.in_use = true;
        let block = BlockId {
            slot,
            generation: chunk.generation,
        };
        let left = chunk.bytes - bytes;
        if left > 0 {
            chunk.bytes = bytes;
            let rest = *vacant;
            let (address, region) = (chunk.address, chunk.region);
            let next = std::mem::replace(&mut chunk.next, rest);
            slots[next as usize].previous = rest;
            let chunk = &mut slots[rest as usize];
            *vacant = chunk.next;
            chunk.address = address.wrapping_add(bytes);
            chunk.bytes = left;
            chunk.region = region;
            chunk.previous = slot;
            chunk.next = next;
            self.free.insert(slots, rest);
        }
        block
    }

    /// Makes `slot` what comes after `previous`, or the first chunk of the region.
    fn link_forward(&mut self, previous: u32, region: u32, slot: u32) {
        if previous == NONE {
            self.regions[region as usize].first_chunk = slot;
        } else {
            self.slots[previous].next = slot;
        }
    }

    /// Moves a chunk to another slot and leaves its own empty for good.
    #[cold]
    fn resettle(&mut self, worn_out: u32) -> u32 {
        let slot = self.slots.occupy();
        let Slot { generation, .. } = self.slots[slot];
        let chunk = self.slots[worn_out];
        self.slots[slot] = Slot {
            generation,
            ..chunk
        };
        self.slots[chunk.next].previous = slot;
        self.link_forward(chunk.previous, chunk.region, slot);
        slot
    }

    fn live_slot(&self, block: BlockId) -> Option<&Slot> {
        self.slots
            .get(block.slot)
            .filter(|slot| slot.in_use && slot.generation == block.generation)
    }

    fn offset(&self, chunk: &Slot) -> u64 {
        let region = &self.regions[chunk.region as usize];
        chunk.address.wrapping_sub(region.address)
    }

    /// Free neighbours are always merged, so an idle region is one free chunk.
    fn is_idle(&self, region: u32) -> bool {
        let first = &self.slots[self.regions[region as usize].first_chunk];
        !first.in_use && first.next == NONE
    }

    fn live_region(&self, id: RegionId) -> Option<&Region<R>> {
        self.regions
            .get(id.slot as usize)
            .filter(|region| region.held.is_some() && region.generation == id.generation)
    }

    fn region_id(&self, slot: u32) -> RegionId {
        RegionId {
            slot,
            generation: self.regions[slot as usize].generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worn_out_slot_never_names_a_block_again() {
        let mut best_fit = BestFit::new();
        best_fit.open_region((), 1024);
        let first = best_fit
            .allocate(256, Detail::default(), |_, _| false)
            .unwrap()
            .0;
        let region = best_fit.region_id(0);
        best_fit.slots[first.slot].generation = u32::MAX - 1;
        let last = BlockId {
            generation: u32::MAX - 1,
            ..first
        };
        assert!(best_fit.free(first).is_none());
        assert_eq!(best_fit.free(last).map(|freed| freed.0), Some(256));
        let next = best_fit
            .allocate(256, Detail::default(), |_, _| false)
            .map(|(block, _)| block.slot);
        assert!(next.is_some_and(|slot| slot != first.slot));
        assert!(best_fit.free(last).is_none());
        let tiles: Vec<_> = best_fit
            .chunks(region)
            .map(|chunk| (chunk.offset, chunk.bytes, chunk.block.is_some()))
            .collect();
        assert_eq!(tiles, [(0, 256, true), (256, 768, false)]);
    }

    #[test]
    fn a_worn_out_region_slot_stays_empty() {
        let mut best_fit = BestFit::new();
        let region = best_fit.open_region((), 256);
        let block = best_fit
            .allocate(256, Detail::default(), |_, _| false)
            .unwrap()
            .0;
        assert_eq!(best_fit.close_region(region), None);
        assert_eq!(best_fit.free(block).map(|freed| freed.0), Some(256));
        best_fit.regions[region.slot as usize].generation = u32::MAX - 1;
        let last = RegionId {
            generation: u32::MAX - 1,
            ..region
        };
        assert_eq!(best_fit.close_region(region), None);
        assert_eq!(best_fit.close_region(last), Some(((), 256)));
        best_fit.open_region((), 256);
        let next = best_fit
            .allocate(256, Detail::default(), |_, _| false)
            .unwrap()
            .0;
        let place = best_fit.place(next);
        assert!(place.is_some_and(|place| place.region.slot != region.slot));
        assert_eq!(best_fit.region(last), None);
        assert_eq!(best_fit.chunks(last).count(), 0);
    }
}
