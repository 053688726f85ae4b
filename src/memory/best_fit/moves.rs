//! Blocks that change their place and keep their id.

use super::{BestFit, BlockId, Entry, NONE, RegionId};

/// A chunk with its slot, for plans of moves.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Piece {
    pub(in crate::memory) slot: u32,
    pub(in crate::memory) bytes: u64,
    /// The block that it holds, `None` when it is free.
    pub(in crate::memory) block: Option<BlockId>,
    /// The block must stay where it is.
    pub(in crate::memory) pinned: bool,
}

impl<R> BestFit<R> {
    /// Holds a block where it is until it is unpinned as often. `false` for a stale id.
    pub(in crate::memory) fn pin(&mut self, block: BlockId) -> bool {
        self.change_pins(block, |pins| pins.saturating_add(1))
    }

    /// Undoes one [`BestFit::pin`]. `false` for a stale id.
    pub(in crate::memory) fn unpin(&mut self, block: BlockId) -> bool {
        self.change_pins(block, |pins| pins.saturating_sub(1))
    }

    pub(in crate::memory) fn is_pinned(&self, block: BlockId) -> bool {
        self.live_entry(block).is_some_and(|entry| entry.pins > 0)
    }

    fn change_pins(&mut self, block: BlockId, change: impl FnOnce(u32) -> u32) -> bool {
        if self.live_entry(block).is_none() {
            return false;
        }
        let entry = &mut self.entries[block.slot as usize];
        entry.pins = change(entry.pins);
        true
    }

    /// The chunks of a region in address order, with their slots; none for a stale id.
    pub(in crate::memory) fn pieces(&self, region: RegionId) -> impl Iterator<Item = Piece> + '_ {
        self.slots(region).map(|slot| {
            let entry = &self.entries[slot as usize];
            Piece {
                slot,
                bytes: entry.bytes,
                block: entry.in_use.then_some(BlockId {
                    slot,
                    generation: entry.generation,
                }),
                pinned: entry.pins > 0,
            }
        })
    }

    /// Takes the front of a free chunk for a block that will move there.
    pub(in crate::memory) fn reserve(&mut self, hole: u32, bytes: u64) -> BlockId {
        self.take(hole, bytes)
    }

    /// Makes two blocks of equal size change places; each keeps its id.
    pub(in crate::memory) fn exchange(&mut self, a: BlockId, b: BlockId) {
        let (a, b) = (a.slot, b.slot);
        let renamed = |slot: u32| match slot {
            slot if slot == a => b,
            slot if slot == b => a,
            other => other,
        };
        let (old_a, old_b) = (self.entries[a as usize], self.entries[b as usize]);
        for (slot, from) in [(a, old_b), (b, old_a)] {
            let entry = &mut self.entries[slot as usize];
            entry.offset = from.offset;
            entry.region = from.region;
            entry.previous = renamed(from.previous);
            entry.next = renamed(from.next);
        }
        for slot in [a, b] {
            let Entry {
                previous,
                next,
                region,
                ..
            } = self.entries[slot as usize];
            self.link_forward(previous, region, slot);
            if next != NONE {
                self.entries[next as usize].previous = slot;
            }
        }
    }

    /// Makes a block change places with the free chunk before it; that merges with what is free
    /// after the block. `false`, and nothing changed, when what is before it is in use.
    pub(in crate::memory) fn slide_down(&mut self, block: BlockId) -> bool {
        let slot = block.slot;
        let Some(&Entry {
            offset,
            bytes,
            region,
            previous: hole,
            next,
            ..
        }) = self.live_entry(block)
        else {
            return false;
        };
        if !self.is_free(hole) {
            return false;
        }
        let before = self.entries[hole as usize].previous;
        let freed = self.entries[hole as usize].bytes;
        let entry = &mut self.entries[slot as usize];
        entry.offset = offset - freed;
        entry.previous = before;
        entry.next = hole;
        self.link_forward(before, region, slot);
        let entry = &mut self.entries[hole as usize];
        entry.offset = offset - freed + bytes;
        entry.previous = slot;
        entry.next = next;
        if next != NONE {
            self.entries[next as usize].previous = hole;
        }
        if self.is_free(next) {
            self.free.remove(next);
            self.absorb_next(hole);
        }
        self.relist(hole);
        true
    }
}
