//! What room there would be if blocks moved or went.

use super::best_fit::{Piece, RegionId};
use super::growth::round_down;
use super::pool::{Pool, RegionSource};

impl<S: RegionSource> Pool<S> {
    /// Bytes of the largest hole that sliding blocks together could make within one region.
    pub(super) fn largest_after_sliding(&self) -> u64 {
        let regions = self.best_fit.regions();
        let is_free = |piece: &Piece| piece.block.is_none();
        let runs = regions.map(|(region, _)| self.longest_run(region, u64::MAX, is_free));
        runs.max().unwrap_or(0)
    }

    /// Whether all that is not pinned would leave room for `bytes`, a multiple of the quantum, if it went: between pins, or
    /// in a region made anew from those that hold none.
    pub(crate) fn could_hold(&self, bytes: u64) -> bool {
        let mut anew = round_down(self.headroom());
        for (region, size) in self.best_fit.regions() {
            let run = self.longest_run(region, bytes, |_| true);
            if run >= bytes {
                return true;
            }
            if run == size {
                anew = anew.saturating_add(size);
            }
        }
        bytes <= anew.min(self.config.max_region)
    }

    /// Most bytes between pinned blocks of a region, of pieces that count; no more are looked for than are `enough`.
    fn longest_run(&self, region: RegionId, enough: u64, counts: impl Fn(&Piece) -> bool) -> u64 {
        let (mut run, mut longest) = (0, 0);
        for piece in self.best_fit.pieces(region) {
            match piece.pinned {
                true => run = 0,
                false if counts(&piece) => run += piece.bytes,
                false => {}
            }
            longest = run.max(longest);
            if longest >= enough {
                break;
            }
        }
        longest
    }

    /// Bytes in regions that hold pinned blocks.
    pub(crate) fn under_pins(&self) -> u64 {
        let regions = self.best_fit.regions();
        let pinned = regions.filter(|&(region, _)| {
            let mut pieces = self.best_fit.pieces(region);
            pieces.any(|piece| piece.pinned)
        });
        pinned.map(|(_, bytes)| bytes).sum()
    }

    /// Bytes in blocks that are not pinned.
    pub(crate) fn unpinned(&self) -> u64 {
        let regions = self.best_fit.regions();
        regions
            .flat_map(|(region, _)| self.best_fit.pieces(region))
            .filter(|piece| piece.block.is_some() && !piece.pinned)
            .map(|piece| piece.bytes)
            .sum()
    }
}
