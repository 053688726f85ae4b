//! Best fit with exact split and immediate coalescing, over several regions.

mod moves;

use super::free_index::{FreeIndex, Key};
pub(super) use moves::Piece;

/// Names a block in use. Once the block is freed the id is stale, and it stays so for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    slot: u32,
    generation: u32,
}

impl BlockId {
    /// The block's place in vectors beside the pool: no two blocks in use share one, and numbers are
    /// reused, so that they stay below twice the most blocks in use at a time, plus the regions.
    pub fn index(self) -> usize {
        self.slot as usize
    }

    /// An id that names nothing, in any pool.
    pub(crate) const NOWHERE: Self = BlockId {
        slot: NONE,
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

impl RegionId {
    /// The region's place in vectors beside the pool; numbers are reused.
    pub(super) fn index(self) -> usize {
        self.slot as usize
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
pub struct Chunk {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Bytes in the chunk.
    pub bytes: u64,
    /// The block that it holds, `None` when it is free.
    pub block: Option<BlockId>,
}

/// Stands for "no slot" in links.
const NONE: u32 = u32::MAX;
/// Slots are counted in 32 bits; an operation adds at most two.
const MOST_SLOTS: usize = u32::MAX as usize - 2;

/// A chunk in its slot, linked to its neighbours in the region.
#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    bytes: u64,
    region: u32,
    previous: u32,
    next: u32,
    /// Counts the blocks that have lived in this slot.
    generation: u32,
    /// How many hold the block where it is.
    pins: u32,
    in_use: bool,
}

impl Entry {
    fn fills_its_region(&self) -> bool {
        self.previous & self.next == NONE
    }
}

/// A region in its slot.
#[derive(Debug)]
struct Region<R> {
    generation: u32,
    /// Number of regions opened before this one.
    order: u64,
    bytes: u64,
    first_chunk: u32,
    /// What the source gave, `None` while the slot is vacant.
    held: Option<R>,
}

/// Divides regions; never asks for one by itself. All sizes it takes are multiples of the quantum, and not 0.
#[derive(Debug)]
pub(super) struct BestFit<R> {
    entries: Vec<Entry>,
    vacant_entries: Vec<u32>,
    regions: Vec<Region<R>>,
    vacant_regions: Vec<u32>,
    /// Slots of the regions held, in order of creation.
    region_order: Vec<u32>,
    regions_opened: u64,
    /// Number and bytes of the regions without a block in use.
    idle: Idle,
    free: FreeIndex,
}

/// The regions without a block in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Idle {
    pub(super) regions: u64,
    pub(super) bytes: u64,
    /// How often a region became one of them or ceased to be.
    pub(super) changes: u64,
}

impl Idle {
    /// Adds the region that a chunk, its only one, fills.
    fn add(&mut self, chunk: &Entry) {
        if chunk.fills_its_region() {
            self.regions += 1;
            self.bytes += chunk.bytes;
            self.changes += 1;
        }
    }

    /// Undoes [`Idle::add`].
    fn take(&mut self, chunk: &Entry) {
        if chunk.fills_its_region() {
            self.regions -= 1;
            self.bytes -= chunk.bytes;
            self.changes += 1;
        }
    }
}

impl<R> BestFit<R> {
    pub(super) fn new() -> Self {
        BestFit {
            entries: Vec::new(),
            vacant_entries: Vec::new(),
            regions: Vec::new(),
            vacant_regions: Vec::new(),
            region_order: Vec::new(),
            regions_opened: 0,
            idle: Idle::default(),
            free: FreeIndex::new(),
        }
    }

    /// Whether there are so many chunks that a further one could not be named.
    pub(super) fn is_out_of_slots(&self) -> bool {
        self.entries.len() > MOST_SLOTS
    }

    /// Takes the best free chunk for `bytes`; `None`, and nothing changed, when none is large enough
    /// or what would be left of it could not be named.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<BlockId> {
        if self.is_out_of_slots() {
            return None;
        }
        let slot = self.free.take_best(bytes)?;
        Some(self.occupy(slot, bytes))
    }

    /// Adds a region of one free chunk.
    pub(super) fn open_region(&mut self, held: R, region_bytes: u64) -> RegionId {
        let region_slot = self.vacant_regions.pop().unwrap_or_else(|| {
            self.regions.push(Region {
                generation: 0,
                order: 0,
                bytes: 0,
                first_chunk: NONE,
                held: None,
            });
            (self.regions.len() - 1) as u32
        });
        let chunk_slot = self.add_entry(Entry {
            offset: 0,
            bytes: region_bytes,
            region: region_slot,
            previous: NONE,
            next: NONE,
            generation: 0,
            pins: 0,
            in_use: false,
        });
        let region = &mut self.regions[region_slot as usize];
        region.order = self.regions_opened;
        region.bytes = region_bytes;
        region.first_chunk = chunk_slot;
        region.held = Some(held);
        self.regions_opened += 1;
        self.region_order.push(region_slot);
        self.list(chunk_slot);
        self.idle.add(&self.entries[chunk_slot as usize]);
        self.region_id(region_slot)
    }

    /// Gives a block back and merges it with its free neighbours. Returns its bytes; `None` for a stale id.
    pub(super) fn free(&mut self, block: BlockId) -> Option<u64> {
        let slot = block.slot;
        let freed = self.entries.get_mut(slot as usize)?;
        if !freed.in_use || freed.generation != block.generation {
            return None;
        }
        freed.in_use = false;
        freed.pins = 0;
        freed.generation = freed.generation.saturating_add(1);
        let (offset, bytes) = (freed.offset, freed.bytes);
        let (previous, next) = (freed.previous, freed.next);

        // A free neighbour keeps its slot and grows.
        let listed = match (self.is_free(previous), self.is_free(next)) {
            (true, true) => {
                self.free.remove(next);
                self.absorb_next(previous);
                self.absorb_next(previous);
                self.relist(previous);
                previous
            }
            (true, false) => {
                self.absorb_next(previous);
                self.relist(previous);
                previous
            }
            (false, true) => {
                let region = self.entries[slot as usize].region;
                let after = &mut self.entries[next as usize];
                after.offset = offset;
                after.bytes += bytes;
                after.previous = previous;
                self.link_forward(previous, region, next);
                self.vacate(slot);
                self.relist(next);
                next
            }
            (false, false) => {
                let slot = match self.is_worn_out(slot) {
                    true => self.resettle(slot),
                    false => slot,
                };
                self.list(slot);
                slot
            }
        };
        self.idle.add(&self.entries[listed as usize]);
        Some(bytes)
    }

    pub(super) fn place(&self, block: BlockId) -> Option<Place> {
        let entry = self.live_entry(block)?;
        Some(Place {
            region: self.region_id(entry.region),
            offset: entry.offset,
            bytes: entry.bytes,
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
            let entry = &self.entries[slot as usize];
            let generation = entry.generation;
            Chunk {
                offset: entry.offset,
                bytes: entry.bytes,
                block: entry.in_use.then_some(BlockId { slot, generation }),
            }
        })
    }

    fn slots(&self, region: RegionId) -> impl Iterator<Item = u32> + '_ {
        let first = self.live_region(region).map(|region| region.first_chunk);
        std::iter::successors(first, |&slot| {
            Some(self.entries[slot as usize].next).filter(|&next| next != NONE)
        })
    }

    /// Forgets a region without a block in use and gives back what the source gave, and its bytes;
    /// `None`, and nothing changed, for a stale id or a region in use.
    pub(super) fn close_region(&mut self, id: RegionId) -> Option<(R, u64)> {
        let chunk_slot = self.live_region(id)?.first_chunk;
        if !self.is_idle(id.slot) {
            return None;
        }
        self.idle.take(&self.entries[chunk_slot as usize]);
        self.free.remove(chunk_slot);
        self.vacate(chunk_slot);
        let order = self.regions[id.slot as usize].order;
        let found = self
            .region_order
            .binary_search_by_key(&order, |&slot| self.regions[slot as usize].order);
        if let Ok(at) = found {
            self.region_order.remove(at);
        }
        let region = &mut self.regions[id.slot as usize];
        region.generation = region.generation.saturating_add(1);
        // A slot whose generations are used up stays empty, so that no stale id comes back to life.
        if region.generation < u32::MAX {
            self.vacant_regions.push(id.slot);
        }
        let bytes = region.bytes;
        region.held.take().map(|held| (held, bytes))
    }

    /// Forgets every region and gives back what the source gave, in order of creation.
    pub(super) fn drain(&mut self) -> Vec<R> {
        let mut emptied = std::mem::replace(self, BestFit::new());
        let order = std::mem::take(&mut emptied.region_order);
        order
            .into_iter()
            .filter_map(|slot| emptied.regions[slot as usize].held.take())
            .collect()
    }

    /// Number and bytes of the regions without a block in use: each is one free chunk.
    pub(super) fn idle(&self) -> Idle {
        self.idle
    }

    /// Number of free chunks.
    pub(super) fn free_chunks(&self) -> u64 {
        self.free.len()
    }

    /// Bytes of the largest free chunk, 0 when there is none.
    pub(super) fn largest_free(&self) -> u64 {
        self.free.largest()
    }

    /// Makes the first `bytes` of a free chunk a block; what is left stays free.
    fn take(&mut self, slot: u32, bytes: u64) -> BlockId {
        self.free.remove(slot);
        self.occupy(slot, bytes)
    }

    /// As [`BestFit::take`], for a chunk that the index has let go.
    fn occupy(&mut self, slot: u32, bytes: u64) -> BlockId {
        let chunk = &self.entries[slot as usize];
        self.idle.take(chunk);
        if chunk.bytes == bytes {
            return self.use_whole(slot);
        }
        // The rest keeps the slot.
        let front = self.vacant_slot();
        let rest = &mut self.entries[slot as usize];
        let (offset, region) = (rest.offset, rest.region);
        rest.offset += bytes;
        rest.bytes -= bytes;
        let previous = std::mem::replace(&mut rest.previous, front);
        self.list(slot);
        let entry = &mut self.entries[front as usize];
        entry.offset = offset;
        entry.bytes = bytes;
        entry.region = region;
        entry.previous = previous;
        entry.next = slot;
        self.link_forward(previous, region, front);
        self.use_whole(front)
    }

    /// Makes a chunk that the index does not know a block.
    fn use_whole(&mut self, slot: u32) -> BlockId {
        let entry = &mut self.entries[slot as usize];
        entry.in_use = true;
        BlockId {
            slot,
            generation: entry.generation,
        }
    }

    /// Merges the chunk after `slot` into it.
    fn absorb_next(&mut self, slot: u32) {
        let absorbed = self.entries[slot as usize].next;
        let Entry { bytes, next, .. } = self.entries[absorbed as usize];
        let entry = &mut self.entries[slot as usize];
        entry.bytes += bytes;
        entry.next = next;
        if next != NONE {
            self.entries[next as usize].previous = slot;
        }
        self.vacate(absorbed);
    }

    /// Makes `slot` what comes after `previous`, or the first chunk of the region.
    fn link_forward(&mut self, previous: u32, region: u32, slot: u32) {
        if previous == NONE {
            self.regions[region as usize].first_chunk = slot;
        } else {
            self.entries[previous as usize].next = slot;
        }
    }

    /// Whether there is a chunk in `slot`, and it is free.
    fn is_free(&self, slot: u32) -> bool {
        // `NONE` is beyond the end.
        let entry = self.entries.get(slot as usize);
        entry.is_some_and(|entry| !entry.in_use)
    }

    /// A slot for a chunk; it keeps its generation.
    fn vacant_slot(&mut self) -> u32 {
        if let Some(slot) = self.vacant_entries.pop() {
            return slot;
        }
        self.entries.push(Entry {
            offset: 0,
            bytes: 0,
            region: NONE,
            previous: NONE,
            next: NONE,
            generation: 0,
            pins: 0,
            in_use: false,
        });
        (self.entries.len() - 1) as u32
    }

    /// Puts a chunk into a slot; the slot keeps its own generation.
    fn add_entry(&mut self, entry: Entry) -> u32 {
        let slot = self.vacant_slot();
        let place = &mut self.entries[slot as usize];
        let generation = place.generation;
        *place = Entry {
            generation,
            ..entry
        };
        slot
    }

    fn vacate(&mut self, slot: u32) {
        if !self.is_worn_out(slot) {
            self.vacant_entries.push(slot);
        }
    }

    /// Whether all generations of a slot are used up: from then on it must not name a block.
    fn is_worn_out(&self, slot: u32) -> bool {
        self.entries[slot as usize].generation == u32::MAX
    }

    /// Moves a chunk to another slot and leaves its own empty for good.
    fn resettle(&mut self, worn_out: u32) -> u32 {
        let entry = self.entries[worn_out as usize];
        let slot = self.add_entry(entry);
        if entry.next != NONE {
            self.entries[entry.next as usize].previous = slot;
        }
        self.link_forward(entry.previous, entry.region, slot);
        slot
    }

    /// Enters a free chunk into the index.
    fn list(&mut self, slot: u32) {
        self.free.insert(slot, self.key(slot));
    }

    /// Tells the index that a free chunk has changed.
    fn relist(&mut self, slot: u32) {
        self.free.change(slot, self.key(slot));
    }

    fn key(&self, slot: u32) -> Key {
        let entry = &self.entries[slot as usize];
        Key {
            bytes: entry.bytes,
            region_order: self.regions[entry.region as usize].order,
            offset: entry.offset,
        }
    }

    fn live_entry(&self, block: BlockId) -> Option<&Entry> {
        self.entries
            .get(block.slot as usize)
            .filter(|entry| entry.in_use && entry.generation == block.generation)
    }

    /// Free neighbours are always merged, so an idle region is one free chunk.
    fn is_idle(&self, region: u32) -> bool {
        let first = &self.entries[self.regions[region as usize].first_chunk as usize];
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
        let first = best_fit.allocate(256).unwrap();
        let region = best_fit.region_id(0);
        best_fit.entries[first.slot as usize].generation = u32::MAX - 1;
        let last = BlockId {
            generation: u32::MAX - 1,
            ..first
        };
        assert_eq!(best_fit.free(first), None);
        assert_eq!(best_fit.free(last), Some(256));
        let next = best_fit.allocate(256).map(|block| block.slot);
        assert!(next.is_some_and(|slot| slot != first.slot));
        assert_eq!(best_fit.free(last), None);
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
        let block = best_fit.allocate(256).unwrap();
        assert_eq!(best_fit.close_region(region), None);
        assert_eq!(best_fit.free(block), Some(256));
        best_fit.regions[region.slot as usize].generation = u32::MAX - 1;
        let last = RegionId {
            generation: u32::MAX - 1,
            ..region
        };
        assert_eq!(best_fit.close_region(region), None);
        assert_eq!(best_fit.close_region(last), Some(((), 256)));
        best_fit.open_region((), 256);
        let next = best_fit.allocate(256).unwrap();
        let place = best_fit.place(next);
        assert!(place.is_some_and(|place| place.region.slot != region.slot));
        assert_eq!(best_fit.region(last), None);
        assert_eq!(best_fit.chunks(last).count(), 0);
    }
}
