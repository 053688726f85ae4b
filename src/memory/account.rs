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

/// One figure: how high it is now, how high it was, how much was added in all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counter {
    pub(super) current: u64,
    pub(super) peak: u64,
    /// All that was added since the totals were reset.
    added: u64,
    /// `current` when the totals were reset.
    base: u64,
}

impl Counter {
    fn add(&mut self, amount: u64) {
        self.current += amount;
        self.added = self.added.wrapping_add(amount);
        self.peak = self.peak.max(self.current);
    }

    fn take(&mut self, amount: u64) {
        self.current -= amount;
    }

    /// One step to another value: what it rises by is added, what it falls by is taken.
    fn set(&mut self, value: u64) {
        let rise = value.saturating_sub(self.current);
        self.added = self.added.wrapping_add(rise);
        self.current = value;
        self.peak = self.peak.max(value);
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_totals(&mut self) {
        self.added = 0;
        self.base = self.current;
    }

    fn count(&self) -> Count {
        Count {
            current: self.current,
            peak: self.peak,
            allocated: self.added,
            freed: self
                .base
                .wrapping_add(self.added)
                .wrapping_sub(self.current),
        }
    }
}

/// What is counted over all blocks, and over those of each tag.
#[derive(Clone, Copy, Debug, Default)]
struct Blocks {
    number: Counter,
    allocated: Counter,
    requested: Counter,
}

impl Blocks {
    fn add(&mut self, rounded: u64, requested: u64) {
        self.number.add(1);
        self.allocated.add(rounded);
        self.requested.add(requested);
    }

    fn take(&mut self, rounded: u64, requested: u64) {
        self.number.take(1);
        self.allocated.take(rounded);
        self.requested.take(requested);
    }

    fn each(&mut self, change: fn(&mut Counter)) {
        for counter in [&mut self.number, &mut self.allocated, &mut self.requested] {
            change(counter);
        }
    }
}

/// Everything that a pool counts.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// By [`BlockId::index`].
    details: Vec<Detail>,
    blocks: Blocks,
    /// By [`Tag::index`].
    by_tag: Vec<Blocks>,
    regions: Counter,
    reserved: Counter,
    splits: Counter,
    split_bytes: Counter,
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
        self.blocks.add(rounded, request.bytes);
        let tag = request.tag.index();
        if self.by_tag.len() <= tag {
            self.by_tag.resize(tag + 1, Blocks::default());
        }
        self.by_tag[tag].add(rounded, request.bytes);
    }

    pub(super) fn freed(&mut self, block: BlockId, rounded: u64) {
        let detail = self.details[block.index()];
        self.blocks.take(rounded, detail.requested);
        self.by_tag[detail.tag.index()].take(rounded, detail.requested);
    }

    /// What is free now: `chunks` of them in all, the idle regions among them.
    pub(super) fn divided(&mut self, chunks: u64, idle: Idle) {
        self.splits.set(chunks - idle.regions);
        let free = self.reserved.current - self.blocks.allocated.current;
        self.split_bytes.set(free - idle.bytes);
    }

    pub(super) fn region_opened(&mut self, bytes: u64) {
        self.regions.add(1);
        self.reserved.add(bytes);
    }

    pub(super) fn region_closed(&mut self, bytes: u64) {
        self.regions.take(1);
        self.reserved.take(bytes);
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
        self.reserved.current - self.blocks.allocated.current
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.current
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

    pub(super) fn counts(&self) -> MemoryCounts {
        MemoryCounts {
            blocks: self.blocks.number.count(),
            allocated_bytes: self.blocks.allocated.count(),
            requested_bytes: self.blocks.requested.count(),
            regions: self.regions.count(),
            reserved_bytes: self.reserved.count(),
            splits: self.splits.count(),
            split_bytes: self.split_bytes.count(),
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
            .map(|(index, blocks)| TagStatistics {
                tag: Tag::from_index(index),
                blocks: blocks.number.count(),
                allocated_bytes: blocks.allocated.count(),
                requested_bytes: blocks.requested.count(),
            })
            .filter(|tag| tag.blocks.peak > 0 || tag.blocks.freed > 0)
            .collect();
        tags.sort_by_key(|tag| (std::cmp::Reverse(tag.allocated_bytes.current), tag.tag));
        tags
    }

    pub(super) fn reset_peaks(&mut self) {
        self.each(Counter::reset_peak);
        self.largest = 0;
    }

    pub(super) fn reset_totals(&mut self) {
        self.each(Counter::reset_totals);
        self.events = MemoryEvents::default();
    }

    fn each(&mut self, change: fn(&mut Counter)) {
        self.blocks.each(change);
        self.by_tag
            .iter_mut()
            .for_each(|blocks| blocks.each(change));
        for counter in [
            &mut self.regions,
            &mut self.reserved,
            &mut self.splits,
            &mut self.split_bytes,
        ] {
            change(counter);
        }
    }
}
