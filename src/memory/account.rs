//! The account that a pool keeps: exact counts, kept in constant time for each call.

use super::best_fit::{BlockId, Idle, Place};
use super::ladder::Full;
use super::statistics::{Count, MemoryCounts, MemoryEvents, TagStatistics};
use super::tags::{Request, Tag};

/// What is known of a block beside its chunk.
#[derive(Clone, Copy, Debug, Default)]
#[allow(dead_code)]
pub(super) struct Detail {
    pub(super) requested: u64,
    /// Number of the allocation that made it, counted from 1.
    pub(super) number: u64,
    pub(super) tag: Tag,
}

/// Figures that change together. Sums wrap, and so are right as long as what is now fits a `u64`.
#[derive(Clone, Copy, Debug)]
struct Counters<const N: usize> {
    /// Since the pool was made: what is now is the difference.
    added: [u64; N],
    taken: [u64; N],
    peak: [u64; N],
    /// `added` and `taken` when the totals were reset.
    added_before: [u64; N],
    taken_before: [u64; N],
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Counters {
            added: [0; N],
            taken: [0; N],
            peak: [0; N],
            added_before: [0; N],
            taken_before: [0; N],
        }
    }
}

impl<const N: usize> Counters<N> {
    #[inline]
    fn now(&self, figure: usize) -> u64 {
        self.added[figure].wrapping_sub(self.taken[figure])
    }

    #[inline]
    fn add(&mut self, amounts: [u64; N]) {
        for (figure, amount) in amounts.into_iter().enumerate() {
            self.added[figure] = self.added[figure].wrapping_add(amount);
            let now = self.now(figure);
            // A branch, because most of the time there is nothing to store.
            if now > self.peak[figure] {
                self.peak[figure] = now;
            }
        }
    }

    #[inline]
    fn take(&mut self, amounts: [u64; N]) {
        for (figure, amount) in amounts.into_iter().enumerate() {
            self.taken[figure] = self.taken[figure].wrapping_add(amount);
        }
    }

    fn reset_peaks(&mut self) {
        self.peak = std::array::from_fn(|figure| self.now(figure));
    }

    fn reset_totals(&mut self) {
        self.added_before = self.added;
        self.taken_before = self.taken;
    }

    fn counts(&self) -> [Count; N] {
        std::array::from_fn(|figure| Count {
            current: self.now(figure),
            peak: self.peak[figure],
            allocated: self.added[figure].wrapping_sub(self.added_before[figure]),
            freed: self.taken[figure].wrapping_sub(self.taken_before[figure]),
        })
    }
}

/// Everything that a pool counts.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// By [`BlockId::index`].
    details: Vec<Detail>,
    /// Blocks, their bytes, and the bytes asked for.
    blocks: Counters<3>,
    /// The same by [`Tag::index`].
    by_tag: Vec<Counters<3>>,
    /// Regions and their bytes.
    regions: Counters<2>,
    /// The highest number of free chunks in regions that also hold blocks, and of their bytes.
    peak_splits: [u64; 2],
    /// Never reset: numbers blocks, tells ages.
    allocations: u64,
    largest: u64,
    events: MemoryEvents,
}

impl Account {
    pub(super) fn allocated(&mut self, block: BlockId, rounded: u64, request: Request) {
        self.allocations += 1;
        let index = block.index();
        if self.details.len() <= index {
            self.details.resize(index + 1, Detail::default());
        }
        self.details[index] = Detail {
            requested: request.bytes,
            number: self.allocations,
            tag: request.tag,
        };
        self.largest = self.largest.max(rounded);
        let tag = request.tag.index();
        if self.by_tag.len() <= tag {
            self.by_tag.resize(tag + 1, Counters::default());
        }
        let amounts = [1, rounded, request.bytes];
        self.blocks.add(amounts);
        self.by_tag[tag].add(amounts);
    }

    pub(super) fn freed(&mut self, block: BlockId, rounded: u64) {
        let detail = self.details[block.index()];
        let amounts = [1, rounded, detail.requested];
        self.blocks.take(amounts);
        self.by_tag[detail.tag.index()].take(amounts);
    }

    /// Free chunks in regions that also hold blocks, and their bytes, when there are `chunks` of
    /// them in all, the idle regions among them.
    fn splits(&self, chunks: u64, idle: Idle) -> [u64; 2] {
        let free = self.regions.now(1).wrapping_sub(self.blocks.now(1));
        [chunks - idle.regions, free - idle.bytes]
    }

    /// Looks at what is free: after whatever may have raised it.
    pub(super) fn divided(&mut self, chunks: u64, idle: Idle) {
        let now = self.splits(chunks, idle);
        for (peak, now) in self.peak_splits.iter_mut().zip(now) {
            *peak = now.max(*peak);
        }
    }

    pub(super) fn region_opened(&mut self, bytes: u64) {
        self.regions.add([1, bytes]);
    }

    pub(super) fn region_closed(&mut self, bytes: u64) {
        self.regions.take([1, bytes]);
    }

    /// A request found no room, so that idle regions went back or blocks moved before it was tried again.
    pub(crate) fn retried(&mut self) {
        self.events.retries += 1;
    }

    /// A block in use has moved.
    pub(crate) fn relocated(&mut self, block: BlockId, from: Place, to: Place) {
        let _ = (block, from);
        self.events.relocations += 1;
        self.events.relocated_bytes += to.bytes;
    }

    #[allow(dead_code)]
    /// The contents of a block went to the host, and its bytes are free.
    pub(crate) fn spilled(&mut self, bytes: u64) {
        self.events.spills += 1;
        self.events.spilled_bytes += bytes;
    }

    #[allow(dead_code)]
    /// Contents came back from the host into a block of so many bytes.
    pub(crate) fn refaulted(&mut self, bytes: u64) {
        self.events.refaults += 1;
        self.events.refaulted_bytes += bytes;
    }

    /// A request failed for good.
    pub(crate) fn failed(&mut self, full: &Full) {
        let _ = full;
        self.events.failures += 1;
    }

    /// Bytes in regions that are not in blocks.
    pub(super) fn free(&self) -> u64 {
        self.regions.now(1) - self.blocks.now(1)
    }

    pub(super) fn reserved(&self) -> u64 {
        self.regions.now(1)
    }

    #[allow(dead_code)]
    /// What is known of a block in use.
    pub(super) fn detail(&self, block: BlockId) -> Option<Detail> {
        self.details.get(block.index()).copied()
    }

    #[allow(dead_code)]
    /// Allocations since the pool was made.
    pub(super) fn allocations(&self) -> u64 {
        self.allocations
    }

    pub(super) fn counts(&self, chunks: u64, idle: Idle) -> MemoryCounts {
        let [blocks, allocated_bytes, requested_bytes] = self.blocks.counts();
        let [regions, reserved_bytes] = self.regions.counts();
        let [splits, split_bytes] = self.splits(chunks, idle);
        let [peak_splits, peak_split_bytes] = self.peak_splits;
        MemoryCounts {
            blocks,
            allocated_bytes,
            requested_bytes,
            regions,
            reserved_bytes,
            splits,
            peak_splits,
            split_bytes,
            peak_split_bytes,
            largest_allocation: self.largest,
        }
    }

    pub(super) fn events(&self) -> MemoryEvents {
        self.events
    }

    /// The tags that memory was taken under, those that hold most first.
    pub(super) fn by_tag(&self) -> Vec<TagStatistics> {
        let mut tags: Vec<TagStatistics> = self
            .by_tag
            .iter()
            .enumerate()
            .map(|(index, counters)| {
                let [blocks, allocated_bytes, requested_bytes] = counters.counts();
                TagStatistics {
                    tag: Tag::from_index(index),
                    blocks,
                    allocated_bytes,
                    requested_bytes,
                }
            })
            .filter(|tag| tag.blocks.peak > 0 || tag.blocks.freed > 0)
            .collect();
        tags.sort_by_key(|tag| (std::cmp::Reverse(tag.allocated_bytes.current), tag.tag));
        tags
    }

    pub(super) fn reset_peaks(&mut self, chunks: u64, idle: Idle) {
        self.blocks.reset_peaks();
        self.by_tag.iter_mut().for_each(Counters::reset_peaks);
        self.regions.reset_peaks();
        self.peak_splits = self.splits(chunks, idle);
        self.largest = 0;
    }

    pub(super) fn reset_totals(&mut self) {
        self.blocks.reset_totals();
        self.by_tag.iter_mut().for_each(Counters::reset_totals);
        self.regions.reset_totals();
        self.events = MemoryEvents::default();
    }
}
