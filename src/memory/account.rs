//! The account that a pool keeps: exact counts, kept in constant time for each call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::best_fit::BlockId;
use super::history::{CallSite, Event, EventKind, History};
use super::ladder::{Full, Holder};
use super::slots::Detail;
use super::statistics::{Count, MemoryCounts, MemoryEvents, TagStatistics};
use super::tags::{Request, Tag};

/// A block whose contents are on the host.
#[derive(Clone, Debug)]
pub(super) struct Aside {
    pub(super) bytes: u64,
    pub(super) detail: Detail,
    pub(super) call_site: Option<Arc<CallSite>>,
    /// How often totals had been reset when it went.
    resets: u64,
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

    /// An end and a new beginning, both since the totals were reset, were neither.
    fn join(&mut self, amounts: [u64; N]) {
        for (figure, amount) in amounts.into_iter().enumerate() {
            for before in [&mut self.added_before, &mut self.taken_before] {
                before[figure] = before[figure].wrapping_add(amount);
            }
        }
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

/// Where a block in use lies, for events: its address as in snapshots, its bytes, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) block: BlockId,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) detail: Detail,
}

fn event(kind: EventKind, bytes: u64) -> Event {
    Event {
        time: Duration::ZERO,
        kind,
        block: 0,
        address: 0,
        bytes,
        requested: 0,
        tag: Tag::NONE,
        call_site: None,
        allocated: 0,
        reserved: 0,
    }
}

/// Everything that a pool counts.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Blocks, their bytes, and the bytes asked for.
    blocks: Counters<3>,
    /// The same by [`Tag::index`]; empty until a tag is used, and all is [`Tag::NONE`]'s.
    by_tag: Vec<Counters<3>>,
    /// Regions and their bytes.
    regions: Counters<2>,
    /// The highest number of free chunks in regions that also hold blocks, and of their bytes.
    peak_splits: [u64; 2],
    /// How many there had been when the totals were reset, and how many had ceased to be.
    splits_before: [[u64; 2]; 2],
    largest: u64,
    events: MemoryEvents,
    /// How often totals were reset.
    resets: u64,
    /// By [`BlockId::index`], as far as any was told.
    call_sites: Vec<Option<Arc<CallSite>>>,
    /// Blocks whose contents are on the host, by number.
    aside: BTreeMap<u64, Aside>,
    /// Their bytes, so that the statistics need not look at each.
    aside_bytes: u64,
    /// There is a history, or a call site: one branch where there is neither.
    is_watched: bool,
    /// What happened, when it is recorded.
    history: Option<Box<History>>,
}

impl Account {
    /// What is to be known of a block that is made next.
    #[inline]
    pub(super) fn detail(&self, rounded: u64, request: Request) -> Detail {
        Detail {
            number: self.allocations() + 1,
            tag: request.tag,
            rounding: (rounded - request.bytes) as u16,
        }
    }

    /// A block is made.
    #[inline]
    pub(super) fn allocated(&mut self, rounded: u64, request: Request) {
        // A branch, because most of the time there is nothing to store.
        if rounded > self.largest {
            self.largest = rounded;
        }
        // Before the sums, which the first use of a tag copies.
        if request.tag != Tag::NONE || !self.by_tag.is_empty() {
            self.tagged(rounded, request);
        }
        self.blocks.add([1, rounded, request.bytes]);
    }

    #[inline(never)]
    fn tagged(&mut self, rounded: u64, request: Request) {
        if self.by_tag.is_empty() {
            self.by_tag.push(self.blocks);
        }
        let tag = request.tag.index();
        if self.by_tag.len() <= tag {
            self.by_tag.resize(tag + 1, Counters::default());
        }
        self.by_tag[tag].add([1, rounded, request.bytes]);
    }

    #[inline]
    pub(super) fn freed(&mut self, rounded: u64, detail: Detail) {
        let amounts = [1, rounded, detail.requested(rounded)];
        self.blocks.take(amounts);
        if let Some(counters) = self.by_tag.get_mut(detail.tag.index()) {
            counters.take(amounts);
        }
    }

    /// A block is free: for pools that are watched.
    #[cold]
    pub(super) fn forget(&mut self, freed: Located) {
        self.record_block(EventKind::Freed, freed);
        if let Some(site) = self.call_sites.get_mut(freed.block.index()) {
            *site = None;
        }
    }

    /// Free chunks in regions that also hold blocks, and their bytes, when there are `chunks` of
    /// them, and `idle` bytes in regions without a block.
    #[inline]
    fn splits(&self, chunks: u64, idle: u64) -> [u64; 2] {
        let free = self.regions.now(1).wrapping_sub(self.blocks.now(1));
        [chunks, free - idle]
    }

    /// Looks at what is free: after whatever may have raised it.
    #[inline]
    pub(super) fn divided(&mut self, chunks: u64, idle: u64) {
        let now = self.splits(chunks, idle);
        for (peak, now) in self.peak_splits.iter_mut().zip(now) {
            // A branch, because most of the time there is nothing to store.
            if now > *peak {
                *peak = now;
            }
        }
    }

    #[inline]
    pub(super) fn region_opened(&mut self, address: u64, bytes: u64) {
        self.regions.add([1, bytes]);
        self.record_region(EventKind::RegionCreated, address, bytes);
    }

    #[inline]
    pub(super) fn region_closed(&mut self, address: u64, bytes: u64) {
        self.regions.take([1, bytes]);
        self.record_region(EventKind::RegionReturned, address, bytes);
    }

    /// A request found no room, so that idle regions went back or blocks moved before it was tried again.
    pub(crate) fn retried(&mut self) {
        self.events.retries += 1;
    }

    /// A block in use has moved from an address.
    pub(crate) fn relocated(&mut self, from: u64, to: Located) {
        self.events.relocations += 1;
        self.events.relocated_bytes = self.events.relocated_bytes.wrapping_add(to.bytes);
        self.record_block(EventKind::Relocated { from }, to);
    }

    /// The contents of a block go to the host, and its bytes will be free: it lives on under its number.
    pub(super) fn set_aside(&mut self, block: BlockId, bytes: u64, detail: Detail) {
        self.events.spills += 1;
        self.events.spilled_bytes += bytes;
        let aside = Aside {
            bytes,
            detail,
            call_site: self.call_site(block),
            resets: self.resets,
        };
        self.record_aside(EventKind::Spilled, &aside);
        self.aside.insert(detail.number, aside);
        self.aside_bytes += bytes;
    }

    /// Contents came back from the host: the block, made as the allocation `new`, is the one that was
    /// set aside. `false` when none was.
    pub(super) fn resume(&mut self, block: BlockId, new: u64, number: u64) -> bool {
        let Some(aside) = self.discard(number) else {
            return false;
        };
        self.events.refaults += 1;
        self.events.refaulted_bytes += aside.bytes;
        if let Some(history) = &mut self.history {
            history.rename(new, number, aside.call_site.as_ref());
        }
        self.record_aside(EventKind::Refaulted, &aside);
        // It was the same tensor all the time.
        if aside.resets == self.resets {
            let detail = aside.detail;
            let amounts = [1, aside.bytes, detail.requested(aside.bytes)];
            self.blocks.join(amounts);
            if let Some(counters) = self.by_tag.get_mut(detail.tag.index()) {
                counters.join(amounts);
            }
        }
        if let Some(site) = aside.call_site {
            self.put_call_site(block, site);
        }
        true
    }

    /// The last return and the last spill were of what had not come back.
    pub(super) fn return_failed(&mut self, number: u64) {
        let Some(aside) = self.aside.get(&number) else {
            return;
        };
        let events = &mut self.events;
        // The totals may have been reset between the two.
        for times in [&mut events.refaults, &mut events.spills] {
            *times = times.saturating_sub(1);
        }
        for bytes in [&mut events.refaulted_bytes, &mut events.spilled_bytes] {
            *bytes = bytes.saturating_sub(aside.bytes);
        }
    }

    /// Forgets what was set aside, and returns it.
    pub(super) fn discard(&mut self, number: u64) -> Option<Aside> {
        let aside = self.aside.remove(&number)?;
        self.aside_bytes -= aside.bytes;
        Some(aside)
    }

    /// Bytes of the blocks whose contents are on the host.
    pub(super) fn aside_bytes(&self) -> u64 {
        self.aside_bytes
    }

    /// What lives on the host, by number.
    pub(super) fn aside(&self) -> impl Iterator<Item = &Aside> {
        self.aside.values()
    }

    fn record_aside(&mut self, kind: EventKind, aside: &Aside) {
        let detail = aside.detail;
        self.record(Event {
            block: detail.number,
            requested: detail.requested(aside.bytes),
            tag: detail.tag,
            call_site: aside.call_site.clone(),
            ..event(kind, aside.bytes)
        });
    }

    /// A request failed for good.
    pub(super) fn failed(&mut self, request: Request, full: &Full) {
        self.events.failures += 1;
        self.record(Event {
            requested: request.bytes,
            tag: request.tag,
            ..event(EventKind::Failed, full.rounded)
        });
    }

    /// Bytes in blocks.
    pub(super) fn in_use(&self) -> u64 {
        self.blocks.now(1)
    }

    /// Bytes in regions that are not in blocks.
    pub(super) fn free(&self) -> u64 {
        self.regions.now(1) - self.blocks.now(1)
    }

    pub(super) fn reserved(&self) -> u64 {
        self.regions.now(1)
    }

    /// Allocations since the pool was made: never reset, numbers blocks, tells ages.
    #[inline]
    pub(super) fn allocations(&self) -> u64 {
        self.blocks.added[0]
    }

    pub(super) fn call_site(&self, block: BlockId) -> Option<Arc<CallSite>> {
        self.call_sites.get(block.index()).cloned().flatten()
    }

    /// Says where a block in use, the one of that number, was asked for.
    pub(super) fn locate(&mut self, block: BlockId, number: u64, site: CallSite) {
        let site = Arc::new(site);
        if let Some(history) = &mut self.history {
            history.locate(number, &site);
        }
        self.put_call_site(block, site);
    }

    fn put_call_site(&mut self, block: BlockId, site: Arc<CallSite>) {
        if self.call_sites.len() <= block.index() {
            self.call_sites.resize(block.index() + 1, None);
        }
        self.call_sites[block.index()] = Some(site);
        self.is_watched = true;
    }

    /// Whether events or call sites are recorded.
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }

    pub(super) fn record_history(&mut self, most: usize) {
        self.history = (most > 0).then(|| Box::new(History::new(most)));
        self.is_watched = self.history.is_some() || !self.call_sites.is_empty();
    }

    /// Enters regions that are there already, by address and bytes.
    pub(super) fn record_regions(&mut self, regions: impl Iterator<Item = (u64, u64)>) {
        let (allocated, mut reserved) = (self.blocks.now(1), 0);
        for (address, bytes) in regions {
            reserved += bytes;
            if let Some(history) = &mut self.history {
                history.push(Event {
                    address,
                    allocated,
                    reserved,
                    ..event(EventKind::RegionCreated, bytes)
                });
            }
        }
    }

    pub(super) fn history_events(&self) -> (Vec<Event>, u64) {
        let history = self.history.as_ref();
        history.map_or_else(Default::default, |history| history.events())
    }

    /// Since the history began.
    pub(super) fn time(&self) -> Option<Duration> {
        self.history.as_ref().map(|history| history.now())
    }

    /// Enters an event of a block.
    #[cold]
    pub(super) fn record_block(&mut self, kind: EventKind, located: Located) {
        if self.history.is_none() {
            return;
        }
        let Located {
            block,
            address,
            bytes,
            detail,
        } = located;
        self.record(Event {
            block: detail.number,
            address,
            requested: detail.requested(bytes),
            tag: detail.tag,
            call_site: self.call_site(block),
            ..event(kind, bytes)
        });
    }

    #[inline]
    fn record_region(&mut self, kind: EventKind, address: u64, bytes: u64) {
        if self.history.is_some() {
            self.record_in_region(kind, address, bytes);
        }
    }

    #[cold]
    fn record_in_region(&mut self, kind: EventKind, address: u64, bytes: u64) {
        self.record(Event {
            address,
            ..event(kind, bytes)
        });
    }

    fn record(&mut self, mut event: Event) {
        event.allocated = self.blocks.now(1);
        event.reserved = self.regions.now(1);
        if let Some(history) = &mut self.history {
            history.push(event);
        }
    }

    /// The counts; `made`: all free chunks that ever came to be in regions that also held blocks.
    pub(super) fn counts(&self, chunks: u64, idle: u64, made: [u64; 2]) -> MemoryCounts {
        let [blocks, allocated_bytes, requested_bytes] = self.blocks.counts();
        let [regions, reserved_bytes] = self.regions.counts();
        let now = self.splits(chunks, idle);
        let [made_before, gone_before] = self.splits_before;
        let [splits, split_bytes] = std::array::from_fn(|figure| Count {
            current: now[figure],
            peak: self.peak_splits[figure],
            allocated: made[figure].wrapping_sub(made_before[figure]),
            freed: made[figure]
                .wrapping_sub(now[figure])
                .wrapping_sub(gone_before[figure]),
        });
        MemoryCounts {
            blocks,
            allocated_bytes,
            requested_bytes,
            regions,
            reserved_bytes,
            splits,
            split_bytes,
            largest_allocation: self.largest,
        }
    }

    pub(super) fn events(&self) -> MemoryEvents {
        self.events
    }

    /// The figures of each tag.
    fn tags(&self) -> impl Iterator<Item = (Tag, &Counters<3>)> {
        let counters = match self.by_tag.as_slice() {
            [] => std::slice::from_ref(&self.blocks),
            by_tag => by_tag,
        };
        let counters = counters.iter().enumerate();
        counters.map(|(index, counters)| (Tag::from_index(index), counters))
    }

    /// The three tags that hold most.
    pub(super) fn largest_holders(&self) -> Vec<Holder> {
        let tags = self.by_tag().into_iter();
        tags.map(|tag| Holder {
            tag: tag.tag,
            allocated: tag.allocated_bytes.current,
            spilled: tag.spilled,
        })
        .filter(|holder| holder.allocated > 0 || holder.spilled > 0)
        .take(3)
        .collect()
    }

    /// The tags that memory was taken under, those that hold most first.
    pub(super) fn by_tag(&self) -> Vec<TagStatistics> {
        let mut spilled = vec![0; self.by_tag.len().max(1)];
        for aside in self.aside.values() {
            spilled[aside.detail.tag.index()] += aside.bytes;
        }
        let mut tags: Vec<TagStatistics> = self
            .tags()
            .zip(spilled)
            .map(|((tag, counters), spilled)| {
                let [blocks, allocated_bytes, requested_bytes] = counters.counts();
                TagStatistics {
                    tag,
                    blocks,
                    allocated_bytes,
                    requested_bytes,
                    spilled,
                }
            })
            .filter(|tag| tag.blocks.peak > 0 || tag.blocks.freed > 0 || tag.spilled > 0)
            .collect();
        let held = |tag: &TagStatistics| (tag.allocated_bytes.current, tag.spilled);
        tags.sort_by_key(|tag| (std::cmp::Reverse(held(tag)), tag.tag));
        tags
    }

    pub(super) fn reset_peaks(&mut self, chunks: u64, idle: u64) {
        self.blocks.reset_peaks();
        self.by_tag.iter_mut().for_each(Counters::reset_peaks);
        self.regions.reset_peaks();
        self.peak_splits = self.splits(chunks, idle);
        self.largest = 0;
    }

    pub(super) fn reset_totals(&mut self, chunks: u64, idle: u64, made: [u64; 2]) {
        let now = self.splits(chunks, idle);
        let gone = std::array::from_fn(|figure| made[figure].wrapping_sub(now[figure]));
        self.splits_before = [made, gone];
        self.blocks.reset_totals();
        self.by_tag.iter_mut().for_each(Counters::reset_totals);
        self.regions.reset_totals();
        self.events = MemoryEvents::default();
        self.resets += 1;
    }
}
