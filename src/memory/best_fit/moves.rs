//! Blocks that change their place and keep their id.

use super::super::slots::absorb_next;
use super::{BestFit, BlockId, Detail, RegionId, Slot};

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

impl Piece {
    /// Bytes in use.
    pub(in crate::memory) fn used(&self) -> u64 {
        self.block.map_or(0, |_| self.bytes)
    }

    /// Bytes that are free.
    pub(in crate::memory) fn free(&self) -> u64 {
        self.bytes - self.used()
    }
}

impl<R> BestFit<R> {
    /// Holds a block where it is until it is unpinned as often. `false` for a stale id.
    pub(in crate::memory) fn pin(&mut self, block: BlockId) -> bool {
        self.change_pins(block, |pins| pins.saturating_add(1))
    }

    /// Undoes one [`BestFit::pin`]. `false` for a stale id.
    pub(in crate::memory) fn unpin(&mut self, block: BlockId) -> bool {
        self.change_pins(block, |pins| match pins {
            // So many hold it that they are not counted any more.
            u32::MAX => pins,
            pins => pins.saturating_sub(1),
        })
    }

    pub(in crate::memory) fn is_pinned(&self, block: BlockId) -> bool {
        self.live_slot(block).is_some_and(|slot| slot.pins > 0)
    }

    fn change_pins(&mut self, block: BlockId, change: impl FnOnce(u32) -> u32) -> bool {
        if self.live_slot(block).is_none() {
            return false;
        }
        let slot = &mut self.slots[block.slot];
        slot.pins = change(slot.pins);
        true
    }

    /// The chunks of a region in address order, with their slots; none for a stale id.
    pub(in crate::memory) fn pieces(&self, region: RegionId) -> impl Iterator<Item = Piece> + '_ {
        self.slots(region).map(|slot| {
            let chunk = &self.slots[slot];
            Piece {
                slot,
                bytes: chunk.bytes,
                block: chunk.in_use.then_some(BlockId {
                    slot,
                    generation: chunk.generation,
                }),
                pinned: chunk.pins > 0,
            }
        })
    }

    /// Takes the front of a free chunk for a block that will move there. `hole` becomes what is left of it.
    pub(in crate::memory) fn reserve(&mut self, hole: &mut u32, bytes: u64) -> BlockId {
        self.slots.make_vacant();
        let (slots, _) = self.slots.parts();
        let chunk = &slots[*hole as usize];
        if chunk.fills_its_region() {
            self.idle.take(chunk.bytes);
        }
        self.free.remove(slots, *hole);
        let block = self.occupy(*hole, bytes, Detail::default());
        *hole = self.slots[block.slot].next;
        block
    }

    /// Makes two blocks of equal size change places; each keeps its id.
    pub(in crate::memory) fn exchange(&mut self, a: BlockId, b: BlockId) {
        let (a, b) = (a.slot, b.slot);
        let renamed = |slot: u32| match slot {
            slot if slot == a => b,
            slot if slot == b => a,
            other => other,
        };
        let (old_a, old_b) = (self.slots[a], self.slots[b]);
        for (slot, from) in [(a, old_b), (b, old_a)] {
            let chunk = &mut self.slots[slot];
            chunk.address = from.address;
            chunk.region = from.region;
            chunk.previous = renamed(from.previous);
            chunk.next = renamed(from.next);
        }
        for slot in [a, b] {
            let Slot {
                previous,
                next,
                region,
                ..
            } = self.slots[slot];
            self.link_forward(previous, region, slot);
            self.slots[next].previous = slot;
        }
    }

    /// Makes a block change places with the free chunk before it; that merges with what is free
    /// after the block. `false`, and nothing changed, when what is before it is in use.
    pub(in crate::memory) fn slide_down(&mut self, block: BlockId) -> bool {
        let slot = block.slot;
        let Some(&Slot {
            address,
            bytes,
            region,
            previous: hole,
            next,
            ..
        }) = self.live_slot(block)
        else {
            return false;
        };
        if !self.slots.is_free(hole) {
            return false;
        }
        self.free.remove(self.slots.parts().0, hole);
        let before = self.slots[hole].previous;
        let freed = self.slots[hole].bytes;
        let chunk = &mut self.slots[slot];
        chunk.address = address.wrapping_sub(freed);
        chunk.previous = before;
        chunk.next = hole;
        self.link_forward(before, region, slot);
        let chunk = &mut self.slots[hole];
        chunk.address = address.wrapping_sub(freed).wrapping_add(bytes);
        chunk.previous = slot;
        chunk.next = next;
        self.slots[next].previous = hole;
        if self.slots.is_free(next) {
            let (slots, vacant) = self.slots.parts();
            self.free.remove(slots, next);
            absorb_next(slots, vacant, hole);
        }
        self.free.insert(self.slots.parts().0, hole);
        true
    }
}
