//! Whether regions that stay would do for a program: the requests of a pool, on paper.

use super::best_fit::{BestFit, BlockId};
use super::slots::Detail;

/// When this share of the most in use is reserved on top of what was rehearsed, it was wrong.
const WRONG_SHARE: u64 = 100;
/// A program that uses less or more by this share of what it used before is another one, to be rehearsed anew.
pub(super) const OTHER_SHARE: u64 = 16;

/// Why a rehearsal came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NoRoom,
    TooLong,
    /// Less is in use than was, or more than ever.
    AnotherProgram,
}

/// Best fit in regions of nothing, asked for what a pool is asked for.
#[derive(Debug)]
pub(super) struct Rehearsal {
    pub(super) paper: BestFit<()>,
    /// The most in use that its regions are for.
    pub(super) most: u64,
    /// Bytes that go back before it is over, and then before it is seen whether it still holds.
    pub(super) length: u64,
    pub(super) is_over: bool,
    /// Bytes in use when it began, of the regions that they were in,
    pub(super) in_use: u64,
    pub(super) held: u64,
    /// and of those that would be made.
    pub(super) made: u64,
    /// So many allocations more.
    pub(super) left: u64,
    /// The blocks on paper, by the indices of those that they stand for.
    pub(super) blocks: Vec<Option<BlockId>>,
}

impl Default for Rehearsal {
    fn default() -> Self {
        Rehearsal {
            paper: BestFit::new(),
            most: 0,
            length: 0,
            is_over: false,
            in_use: 0,
            held: 0,
            made: 0,
            left: 0,
            blocks: Vec::new(),
        }
    }
}

impl Rehearsal {
    /// The regions in use, with blocks and holes where they are, and those that would be made.
    pub(super) fn begun<Chunks: Iterator<Item = (Option<BlockId>, u64)>>(
        mut self,
        max_region: u64,
        regions: impl Iterator<Item = (u64, Chunks)>,
    ) -> Result<Self, Failure> {
        let mut holes = Vec::new();
        for (bytes, chunks) in regions {
            self.paper.open_region((), bytes);
            // Nothing else is free: each chunk comes to lie after the last.
            for (block, bytes) in chunks {
                let on_paper = self.place(bytes)?;
                match block {
                    Some(block) => self.stands_for(block, on_paper),
                    None => holes.push(on_paper),
                }
            }
        }
        for hole in holes {
            self.paper.free(hole);
        }
        for bytes in regions_of(self.made, max_region) {
            self.paper.open_region((), bytes);
        }
        Ok(self)
    }

    /// Whether it is the program that was rehearsed that uses so many bytes.
    pub(super) fn is_as_large(&self, most: u64) -> bool {
        most >= self.most - self.most / OTHER_SHARE
    }

    /// More than so many bytes reserved are more than was rehearsed.
    pub(super) fn allowed(&self) -> u64 {
        let rehearsed = self.held.saturating_add(self.made).max(self.most);
        rehearsed.saturating_add(self.most / WRONG_SHARE)
    }

    pub(super) fn allocate(&mut self, block: BlockId, bytes: u64) -> Result<(), Failure> {
        self.left = self.left.checked_sub(1).ok_or(Failure::TooLong)?;
        let on_paper = self.place(bytes)?;
        self.stands_for(block, on_paper);
        Ok(())
    }

    pub(super) fn free(&mut self, block: BlockId) {
        let at = self.blocks.get_mut(block.index());
        if let Some(on_paper) = at.and_then(Option::take) {
            self.paper.free(on_paper);
        }
    }

    fn place(&mut self, bytes: u64) -> Result<BlockId, Failure> {
        let detail = Detail::default();
        let placed = self.paper.allocate(bytes, detail, |_, _| false);
        Ok(placed.ok_or(Failure::NoRoom)?.0)
    }

    fn stands_for(&mut self, block: BlockId, on_paper: BlockId) {
        let index = block.index();
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, None);
        }
        self.blocks[index] = Some(on_paper);
    }
}

/// The sizes of as few regions as may be that have so many bytes together.
pub(super) fn regions_of(bytes: u64, max_region: u64) -> impl Iterator<Item = u64> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let next = left.min(max_region);
        left -= next;
        (next > 0).then_some(next)
    })
}
