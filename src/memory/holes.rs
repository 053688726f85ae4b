//! Where blocks could move, and what that would cost: pure plans over a map of the regions.

use std::collections::{BTreeSet, HashSet};

use super::best_fit::{BlockId, Piece, RegionId};

/// A stretch of neighbouring chunks of one region, by their numbers in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) region: usize,
    pub(super) first: usize,
    /// The first chunk after it.
    pub(super) end: usize,
    /// Bytes in use in it: what has to move.
    pub(super) cost: u64,
}

/// A region with its chunks in address order.
pub(super) struct Mapped {
    pub(super) id: RegionId,
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Piece>,
}

impl Mapped {
    pub(super) fn used(&self) -> u64 {
        let used = self.pieces.iter().filter(|piece| piece.block.is_some());
        used.map(|piece| piece.bytes).sum()
    }

    pub(super) fn free_share(&self) -> f64 {
        1.0 - self.used() as f64 / self.bytes as f64
    }

    /// The key by which regions with a larger free share come first.
    pub(super) fn emptiest_first(&self) -> (u64, u64) {
        // Bits of numbers that are not below 0 are in their order.
        (!self.free_share().to_bits(), 0)
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pieces.iter().any(|piece| piece.pinned)
    }
}

/// Blocks with the slots of the free chunks that they move into.
pub(super) type Moves = Vec<(BlockId, u64, u32)>;

/// Windows as long as `bytes`, from each chunk on, that move less than `limit`.
pub(super) fn windows_to_evacuate(mapped: &[Mapped], bytes: u64, limit: u64) -> Vec<Window> {
    let mut windows = Vec::new();
    for (region, Mapped { pieces, .. }) in mapped.iter().enumerate() {
        let (mut end, mut span, mut cost) = (0, 0, 0);
        for first in 0..pieces.len() {
            if end < first {
                (end, span, cost) = (first, 0, 0);
            }
            while span < bytes && end < pieces.len() && !pieces[end].pinned {
                span += pieces[end].bytes;
                cost += pieces[end].block.map_or(0, |_| pieces[end].bytes);
                end += 1;
            }
            if span >= bytes && cost < limit {
                windows.push(Window {
                    region,
                    first,
                    end,
                    cost,
                });
            }
            if end > first {
                span -= pieces[first].bytes;
                cost -= pieces[first].block.map_or(0, |_| pieces[first].bytes);
            }
        }
    }
    windows
}

/// The window whose free chunks add up to `bytes` with the fewest bytes between them.
pub(super) fn cheapest_slide(mapped: &[Mapped], bytes: u64) -> Option<Window> {
    let mut cheapest: Option<Window> = None;
    for (region, Mapped { pieces, .. }) in mapped.iter().enumerate() {
        let (mut first, mut free, mut cost) = (0, 0, 0);
        for (at, piece) in pieces.iter().enumerate() {
            if piece.pinned {
                (first, free, cost) = (at + 1, 0, 0);
                continue;
            }
            match piece.block {
                Some(_) => cost += piece.bytes,
                None => free += piece.bytes,
            }
            // The window begins with a free chunk, the last that leaves enough.
            while first < at {
                match pieces[first].block {
                    Some(_) => cost -= pieces[first].bytes,
                    None if free - pieces[first].bytes >= bytes => free -= pieces[first].bytes,
                    None => break,
                }
                first += 1;
            }
            let is_cheaper = cheapest.is_none_or(|best| cost < best.cost);
            if free >= bytes && piece.block.is_none() && is_cheaper {
                cheapest = Some(Window {
                    region,
                    first,
                    end: at + 1,
                    cost,
                });
            }
        }
    }
    cheapest
}

/// Free chunks that blocks can move into.
pub(super) struct Holes {
    /// Bytes and number in `slots`, smallest first.
    sorted: Vec<(u64, usize)>,
    /// By address, the highest first: it is taken among equals.
    slots: Vec<u32>,
}

impl Holes {
    pub(super) fn of(mapped: &[Mapped]) -> Self {
        let pieces = mapped
            .iter()
            .rev()
            .flat_map(|region| region.pieces.iter().rev());
        let free = pieces.filter(|piece| piece.block.is_none());
        let (mut sorted, mut slots) = (Vec::new(), Vec::new());
        for (number, piece) in free.enumerate() {
            sorted.push((piece.bytes, number));
            slots.push(piece.slot);
        }
        sorted.sort_unstable();
        Holes { sorted, slots }
    }

    /// Where the blocks of a window can go, outside of it: the largest first, each to the smallest
    /// chunk that holds it.
    pub(super) fn fit(&self, mapped: &[Mapped], window: Window) -> Option<Moves> {
        let pieces = &mapped[window.region].pieces[window.first..window.end];
        let mut blocks: Vec<(BlockId, u64)> = pieces
            .iter()
            .filter_map(|piece| Some((piece.block?, piece.bytes)))
            .collect();
        blocks.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        // Most windows are out for one look.
        let (largest, _) = self.sorted.last().copied().unwrap_or_default();
        if blocks.first().is_some_and(|&(_, bytes)| bytes > largest) {
            return None;
        }
        let inside: HashSet<u32> = pieces
            .iter()
            .filter(|piece| piece.block.is_none())
            .map(|piece| piece.slot)
            .collect();
        let outside = self
            .sorted
            .iter()
            .filter(|hole| !inside.contains(&self.slots[hole.1]));
        let mut holes: BTreeSet<(u64, usize)> = outside.copied().collect();
        let mut moves = Moves::with_capacity(blocks.len());
        for (block, bytes) in blocks {
            let hole = *holes.range((bytes, 0)..).next()?;
            holes.remove(&hole);
            moves.push((block, bytes, self.slots[hole.1]));
            if hole.0 > bytes {
                holes.insert((hole.0 - bytes, hole.1));
            }
        }
        Some(moves)
    }
}
