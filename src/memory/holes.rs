//! Windows that can become a hole, in the order of what is in them: pure looks at a map of the regions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::best_fit::{Piece, RegionId};

/// A stretch of neighbouring chunks of one region, by their numbers in it. In order the one with the fewest
/// bytes in use comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Window {
    /// Bytes in use in it: what has to move.
    pub(super) cost: u64,
    pub(super) region: usize,
    pub(super) first: usize,
    /// The first chunk after it.
    pub(super) end: usize,
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

/// Of windows from one chunk on, each has at least this share of the hole more in use than the one before.
const STEP_SHARE: u64 = 8;

/// Windows at least as long as a hole: from each chunk on the shortest, then longer ones; those
/// with the fewest bytes in use first.
pub(super) struct Windows<'a> {
    regions: &'a [Vec<Piece>],
    step: u64,
    next: BinaryHeap<Reverse<Window>>,
}

impl<'a> Windows<'a> {
    pub(super) fn new(regions: &'a [Vec<Piece>], bytes: u64) -> Self {
        let mut next = Vec::new();
        for (region, pieces) in regions.iter().enumerate() {
            let (mut end, mut span, mut cost) = (0, 0, 0);
            for first in 0..pieces.len() {
                if end < first {
                    (end, span, cost) = (first, 0, 0);
                }
                while span < bytes && end < pieces.len() && !pieces[end].pinned {
                    span += pieces[end].bytes;
                    cost += pieces[end].used();
                    end += 1;
                }
                if span >= bytes {
                    next.push(Reverse(Window {
                        cost,
                        region,
                        first,
                        end,
                    }));
                }
                if end > first {
                    span -= pieces[first].bytes;
                    cost -= pieces[first].used();
                }
            }
        }
        Windows {
            regions,
            step: bytes / STEP_SHARE + 1,
            next: BinaryHeap::from(next),
        }
    }
}

impl Iterator for Windows<'_> {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        let Reverse(window) = self.next.pop()?;
        let mut longer = window;
        let pieces = self.regions[window.region][window.end..].iter();
        for piece in pieces.take_while(|piece| !piece.pinned) {
            longer.cost += piece.used();
            longer.end += 1;
            if longer.cost >= window.cost.saturating_add(self.step) {
                break;
            }
        }
        if longer.end > window.end {
            self.next.push(Reverse(longer));
        }
        Some(window)
    }
}

/// The window whose free chunks add up to `bytes` with the fewest bytes between them. A free chunk that is
/// pinned is what is left behind blocks that stay: a window may begin with it, no window goes over it.
pub(super) fn cheapest_slide(regions: &[Vec<Piece>], bytes: u64) -> Option<Window> {
    let mut cheapest: Option<Window> = None;
    for (region, pieces) in regions.iter().enumerate() {
        let (mut first, mut free, mut cost) = (0, 0, 0);
        for (at, piece) in pieces.iter().enumerate() {
            if piece.pinned {
                (first, free, cost) = match piece.block {
                    Some(_) => (at + 1, 0, 0),
                    None => (at, piece.bytes, 0),
                };
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
                    cost,
                    region,
                    first,
                    end: at + 1,
                });
            }
        }
    }
    cheapest
}
