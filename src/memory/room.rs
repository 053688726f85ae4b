//! What room there would be if blocks moved or went.

use super::pool::{Pool, RegionSource};

impl<S: RegionSource> Pool<S> {
    /// Bytes of the largest hole that sliding blocks together could make within one region.
    pub(super) fn largest_after_sliding(&self) -> u64 {
        let mut largest = 0;
        for (region, _) in self.best_fit.regions() {
            let mut run = 0;
            for piece in self.best_fit.pieces(region) {
                match (piece.block, piece.pinned) {
                    (None, _) => run += piece.bytes,
                    (Some(_), true) => run = 0,
                    (Some(_), false) => {}
                }
                largest = largest.max(run);
            }
        }
        largest
    }

    /// Whether all that is not pinned would leave room for `bytes` if it went: between pins, or in a region made anew
    /// from those that hold none.
    pub(crate) fn could_hold(&self, bytes: u64) -> bool {
        let mut anew = self.headroom();
        for (region, size) in self.best_fit.regions() {
            let (mut run, mut is_pinned) = (0u64, false);
            for piece in self.best_fit.pieces(region) {
                is_pinned |= piece.pinned;
                run = if piece.pinned { 0 } else { run + piece.bytes };
                if run >= bytes {
                    return true;
                }
            }
            if !is_pinned {
                anew = anew.saturating_add(size);
            }
        }
        bytes <= anew.min(self.config.max_region)
    }

    /// Bytes in blocks that are not pinned.
    pub(super) fn unpinned(&self) -> u64 {
        let regions = self.best_fit.regions();
        regions
            .flat_map(|(region, _)| self.best_fit.pieces(region))
            .filter(|piece| piece.block.is_some() && !piece.pinned)
            .map(|piece| piece.bytes)
            .sum()
    }
}
