//! The pool: regions from a source, divided by best fit, with an exact account.

use std::fmt;

use super::QUANTUM;
use super::account::{Account, Located};
use super::best_fit::{BestFit, BlockId, Chunk, Place, RegionId};
use super::growth::{Growth, round_down, round_up};
use super::history::EventKind;
use super::ladder::{Full, FullReason, demand};
use super::ledger::{LimitRefused, Overcommitted};
use super::order;
use super::relocate::Mover;
use super::remaking::Remaking;
use super::statistics::{MemoryStatistics, TagStatistics};
use super::tags::Request;

/// Where a pool takes its regions from: a GPU, the host, or a test.
pub trait RegionSource {
    /// One region: a buffer, or whatever stands for it.
    type Region;

    /// Makes a region of `bytes` bytes, a multiple of [`QUANTUM`](super::QUANTUM).
    ///
    /// # Errors
    ///
    /// [`Refused`] when there is no such region to be had now; the pool then asks for less.
    fn create(&mut self, bytes: u64) -> Result<Self::Region, Refused>;

    /// Takes a region back that no block lies in any more.
    fn destroy(&mut self, region: Self::Region) {
        drop(region);
    }
}

/// A source did not make a region, for the reason told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "region refused: {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// What a pool may do. Not `#[non_exhaustive]`: programs write it out, and no field has a default that suits all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolConfig {
    /// How new regions are sized.
    pub growth: Growth,
    /// The budget: most bytes reserved at any time; `None` for no budget.
    pub limit: Option<u64>,
    /// Most bytes in one region (the adapter's largest buffer), and so in one block.
    pub max_region: u64,
}

impl PoolConfig {
    /// Bytes that may still be reserved where so many are.
    #[inline]
    pub(super) fn headroom(&self, reserved: u64) -> u64 {
        self.limit.unwrap_or(u64::MAX).saturating_sub(reserved)
    }
}

/// Regions from a source, divided into blocks by best fit.
///
/// Dropping a pool destroys all its regions, blocks in use or not.
pub struct Pool<S: RegionSource> {
    pub(super) source: S,
    pub(super) config: PoolConfig,
    pub(super) best_fit: BestFit<S::Region>,
    pub(super) account: Account,
    pub(super) remaking: Remaking,
    /// Most bytes that were ever reserved.
    pub(super) most_reserved: u64,
    /// The limit is what others leave, who may want it too: growth knows of no budget.
    pub(super) is_share: bool,
}

impl<S: RegionSource> Pool<S> {
    /// A pool without blocks; of regions it holds what the growth policy takes at once, as far as the
    /// source gives it (a share only of a limit: a pool does not know the whole). `config.max_region` is rounded down to
    /// [`QUANTUM`](super::QUANTUM).
    pub fn new(source: S, config: PoolConfig) -> Self {
        let mut pool = Pool {
            source,
            config: PoolConfig {
                max_region: round_down(config.max_region),
                ..config
            },
            best_fit: BestFit::new(),
            account: Account::default(),
            remaking: Remaking::default(),
            most_reserved: 0,
            is_share: false,
        };
        pool.preallocate();
        pool
    }

    /// Takes a block of at least `request.bytes` bytes (0 counts as 1), rounded up to
    /// [`QUANTUM`](super::QUANTUM). Blocks stay where they are.
    ///
    /// # Errors
    ///
    /// [`Full`] when the request exceeds what one region can be, or the budget, or the source has no
    /// more to give. Nothing has changed then, except that idle regions may have been returned.
    #[inline]
    pub fn allocate(&mut self, request: impl Into<Request>) -> Result<BlockId, Box<Full>> {
        let request = request.into();
        self.attempt(request, None)
            .map_err(|reason| self.failed(request, reason))
    }

    /// As [`Pool::allocate`]; when no chunk is large enough and no region can be had, blocks are moved
    /// together: [`Mover`] moves their bytes.
    ///
    /// # Errors
    ///
    /// As [`Pool::allocate`]; blocks may have moved, too.
    pub fn allocate_moving(
        &mut self,
        request: impl Into<Request>,
        mover: &mut dyn Mover<S::Region>,
    ) -> Result<BlockId, Box<Full>> {
        let request = request.into();
        self.attempt(request, Some(mover))
            .map_err(|reason| self.failed(request, reason))
    }

    /// As [`Pool::allocate_moving`]; that it fails is not in the account, since more may be done.
    #[inline]
    pub(crate) fn attempt(
        &mut self,
        request: Request,
        mover: Option<&mut dyn Mover<S::Region>>,
    ) -> Result<BlockId, FullReason> {
        let max_region = self.config.max_region;
        if request.bytes > max_region || max_region == 0 {
            return Err(FullReason::OverRegionLimit { max_region });
        }
        // As the limit is a multiple of the quantum, this is within it too.
        let rounded = (request.bytes.max(1) + (QUANTUM - 1)) & !(QUANTUM - 1);
        // The ladder's first rung: a free chunk.
        let detail = self.account.detail(rounded, request);
        // Where no region ceases to be idle, there are fewer free bytes than before and no more chunks.
        let found = self.best_fit.allocate(rounded, detail, |region, idle| {
            let demand = demand(&self.config, self.is_share, &self.account, rounded);
            self.remaking.keeps_whole()
                && self.config.growth.keeps_whole(region, demand, idle.bytes)
        });
        let (block, rose) = match found {
            Some(found) => found,
            None => (self.climb(rounded, request, mover)?, true),
        };
        self.account.allocated(rounded, request);
        self.remaking.saw(self.account.in_use());
        if self.remaking.rehearses() {
            self.remaking.allocated(block, rounded);
        }
        if rose {
            self.divided();
        }
        if self.account.is_watched()
            && let Some(located) = self.located(block)
        {
            self.account.record_block(EventKind::Allocated, located);
        }
        Ok(block)
    }

    /// What a request fails with; it is in the account already.
    #[cold]
    pub(crate) fn failed(&mut self, request: Request, reason: FullReason) -> Box<Full> {
        let mut full = Full {
            asked: request.bytes,
            rounded: round_up(request.bytes.max(1)).unwrap_or(round_down(u64::MAX)),
            reason,
            statistics: Box::default(),
            largest_by_moving: self.largest_after_sliding(),
            holders: self.account.largest_holders(),
            spillable: self.unpinned(),
        };
        self.account.failed(request, &full);
        *full.statistics = self.statistics();
        Box::new(full)
    }

    /// A request is tried again, after regions went back that it found in its way.
    pub(crate) fn retried(&mut self) {
        self.account.retried();
    }

    /// Holds a block where it is, until it is unpinned as often or freed. `false` for a stale id.
    pub fn pin(&mut self, block: BlockId) -> bool {
        self.best_fit.pin(block)
    }

    /// Undoes one [`Pool::pin`]. `false` for a stale id.
    pub fn unpin(&mut self, block: BlockId) -> bool {
        self.best_fit.unpin(block)
    }

    /// Whether a block must stay where it is.
    pub(crate) fn is_pinned(&self, block: BlockId) -> bool {
        self.best_fit.is_pinned(block)
    }

    /// Whether a free chunk holds `bytes`.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.best_fit.largest_free() >= bytes
    }

    /// Free bytes, and what the budget still allows, unless the source refuses it.
    pub(crate) fn room(&self, refused: bool) -> u64 {
        let more = if refused { 0 } else { self.headroom() };
        self.account.free().saturating_add(round_down(more))
    }

    /// Whether a region is without a block.
    pub(crate) fn has_idle_region(&self) -> bool {
        self.best_fit.idle().regions > 0
    }

    /// Frees a block whose contents went to the host: it lives on under the number returned, 0 for a
    /// stale id.
    pub(super) fn set_aside(&mut self, block: BlockId) -> u64 {
        let Some(Located { bytes, detail, .. }) = self.located(block) else {
            return 0;
        };
        self.account.set_aside(block, bytes, detail);
        self.free(block);
        detail.number
    }

    /// A new block that holds the contents of one that was set aside becomes that one.
    pub(crate) fn resume(&mut self, block: BlockId, number: u64) {
        let new = self.best_fit.detail(block).unwrap_or_default().number;
        if self.account.resume(block, new, number) {
            self.best_fit.renumber(block, number);
        }
    }

    /// What was set aside again at once had not come back: no event counts.
    pub(crate) fn return_failed(&mut self, number: u64) {
        self.account.return_failed(number);
    }

    /// Forgets a block that was set aside.
    pub(crate) fn discard(&mut self, number: u64) {
        self.account.discard(number);
    }

    /// Gives a block back. `false`, and nothing changed, for a stale id.
    #[inline]
    pub fn free(&mut self, block: BlockId) -> bool {
        // What is free has no place.
        let watched = match self.account.is_watched() {
            true => self.located(block),
            false => None,
        };
        let Some((bytes, detail)) = self.best_fit.free(block) else {
            return false;
        };
        self.account.freed(bytes, detail);
        if self.remaking.rehearses() {
            self.remaking.freed(block);
        }
        if let Some(located) = watched {
            self.account.forget(located);
        }
        self.divided();
        true
    }

    /// What events tell of a block in use; `None` for a stale id.
    #[cold]
    pub(super) fn located(&self, block: BlockId) -> Option<Located> {
        let place = self.best_fit.place(block)?;
        Some(Located {
            block,
            address: self.address(place),
            bytes: place.bytes,
            detail: self.best_fit.detail(block)?,
        })
    }

    pub(super) fn address(&self, place: Place) -> u64 {
        let region = self.best_fit.address(place.region);
        region.wrapping_add(place.offset)
    }

    /// The account looks at what is free: after whatever may have raised it.
    #[inline]
    pub(super) fn divided(&mut self) {
        let idle = self.best_fit.idle().bytes;
        self.account.divided(self.best_fit.split_chunks(), idle);
    }

    /// Where a block lies; `None` for a stale id.
    pub fn place(&self, block: BlockId) -> Option<Place> {
        self.best_fit.place(block)
    }

    /// The region behind an id; `None` for a stale id.
    pub fn region(&self, region: RegionId) -> Option<&S::Region> {
        self.best_fit.region(region)
    }

    /// Returns all regions without a block in use to the source, and says which ones, in order of creation.
    pub fn trim(&mut self) -> Vec<RegionId> {
        self.trim_to(0)
    }

    /// Returns regions without a block in use, the largest first (the latest among equals), until at
    /// most `bytes` are reserved. Says which ones, in order of creation.
    pub fn trim_to(&mut self, bytes: u64) -> Vec<RegionId> {
        let mut over = self.account.reserved().saturating_sub(bytes);
        let mut idle: Vec<_> = self.best_fit.idle_regions().enumerate().collect();
        order::sort(&mut idle, |&(at, (_, bytes))| (!bytes, !(at as u64)));
        idle.retain(|&(_, (_, bytes))| {
            let goes = over > 0;
            over = over.saturating_sub(bytes);
            goes
        });
        order::sort(&mut idle, |&(at, _)| (at as u64, 0));
        let regions: Vec<RegionId> = idle.into_iter().map(|(_, (region, _))| region).collect();
        // These, too, are in order of creation.
        let mut going = regions.iter().peekable();
        self.close_idle(|region| going.next_if(|&&next| next == region).is_some());
        if !regions.is_empty() {
            self.remaking.trimmed();
        }
        regions
    }

    /// [`Pool::trim`] where nobody asks which.
    pub(super) fn return_idle(&mut self) {
        self.close_idle(|_| true);
    }

    /// Gives the idle regions that are to go back to the source, in order of creation.
    fn close_idle(&mut self, goes: impl FnMut(RegionId) -> bool) {
        self.best_fit.close_idle(goes, |address, bytes, held| {
            self.account.region_closed(address, bytes);
            self.source.destroy(held);
        });
    }

    /// Changes the budget. More may be reserved than it allows, until blocks are freed and regions
    /// returned; no region is added until then.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.config.limit = limit;
        self.is_share = false;
    }

    /// [`Pool::set_limit`] of what others leave, who may want it too: no budget that growth may take at once.
    pub(crate) fn set_share(&mut self, share: Option<u64>) {
        self.config.limit = share;
        self.is_share = true;
    }

    /// [`Pool::set_limit`] of a device's pool, whose budget the source promises: what is idle beyond it goes back first, and
    /// what moving blocks together makes idle. Without a limit it is what the source leaves, and all stays that there is.
    ///
    /// # Errors
    /// When more is in regions that hold blocks, or the source does not promise it: the budget is what it was.
    pub(crate) fn change_limit(
        &mut self,
        limit: Option<u64>,
        mover: Option<&mut dyn Mover<S::Region>>,
        promise: impl FnOnce(&S) -> Result<Option<u64>, Overcommitted>,
    ) -> Result<(), LimitRefused> {
        if let Some(limit) = limit {
            self.trim_to(limit);
            if let Some(mover) = mover {
                self.shrink_to(limit, mover);
                self.trim_to(limit);
            }
            let statistics = self.statistics();
            if statistics.reserved > limit {
                return Err(LimitRefused::Held {
                    limit,
                    memory: Box::new(statistics),
                    spilling: String::new(),
                });
            }
        }
        let promised = promise(&self.source)?;
        match limit {
            Some(_) => self.set_limit(promised),
            None => self.set_share(promised),
        }
        Ok(())
    }

    /// Gives a region back to the source; false when it is in use.
    pub(super) fn close_region(&mut self, region: RegionId) -> bool {
        let address = self.best_fit.address(region);
        let Some(held) = self.best_fit.close_region(region) else {
            return false;
        };
        let (held, bytes) = held;
        self.account.region_closed(address, bytes);
        self.source.destroy(held);
        true
    }

    /// Where the regions come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Where the regions come from, to change it.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// The account at this moment.
    pub fn statistics(&self) -> MemoryStatistics {
        let chunks = self.best_fit.split_chunks();
        let (idle, made) = (self.best_fit.idle().bytes, self.best_fit.splits_made());
        let counts = self.account.counts(chunks, idle, made);
        let allocated = counts.allocated_bytes.current;
        let reserved = counts.reserved_bytes.current;
        MemoryStatistics {
            allocated,
            reserved,
            peak_allocated: counts.allocated_bytes.peak,
            peak_reserved: counts.reserved_bytes.peak,
            limit: self.config.limit,
            live_blocks: counts.blocks.current,
            regions: counts.regions.current,
            largest_free: self.best_fit.largest_free(),
            free: reserved - allocated,
            spilled: self.account.aside_bytes(),
            counts,
            events: self.account.events(),
        }
    }

    /// The tags that memory was taken under, those that hold most first.
    pub fn by_tag(&self) -> Vec<TagStatistics> {
        self.account.by_tag()
    }

    /// Makes the peaks what there is now.
    pub fn reset_peaks(&mut self) {
        let chunks = self.best_fit.split_chunks();
        self.account.reset_peaks(chunks, self.best_fit.idle().bytes);
    }

    /// Makes all totals and all events 0.
    pub fn reset_totals(&mut self) {
        let chunks = self.best_fit.split_chunks();
        let (idle, made) = (self.best_fit.idle().bytes, self.best_fit.splits_made());
        self.account.reset_totals(chunks, idle, made);
    }

    /// The regions held with their bytes, in address order: the order of their creation.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = (RegionId, u64)> + '_ {
        self.best_fit.regions()
    }

    /// The chunks of a region in address order; none for a stale id.
    pub fn chunks(&self, region: RegionId) -> impl Iterator<Item = Chunk> + '_ {
        self.best_fit.chunks(region)
    }

    /// Takes what the growth policy takes at once: as much of it as the source gives.
    fn preallocate(&mut self) {
        // Crumbs of what the source has left would be many regions.
        const CRUMB: u64 = 16;
        let mut left = self.config.growth.preallocated(self.config.limit);
        let mut most = self.config.max_region;
        let mut least = 0;
        while left > 0 && !self.best_fit.is_out_of_slots() {
            let bytes = round_down(left.min(most).min(self.headroom()));
            if bytes == 0 || most < least {
                break;
            }
            match self.source.create(bytes) {
                Ok(region) => {
                    self.open_region(region, bytes);
                    left -= bytes;
                    least = least.max(bytes / CRUMB);
                }
                // Less may be there: a tenth less, as TensorFlow tries it.
                Err(_) => most = bytes / 10 * 9,
            }
        }
        self.divided();
    }

    /// Takes a region that the source made into the account.
    pub(super) fn open_region(&mut self, region: S::Region, bytes: u64) -> RegionId {
        let region = self.best_fit.open_region(region, bytes);
        let address = self.best_fit.address(region);
        self.account.region_opened(address, bytes);
        self.most_reserved = self.most_reserved.max(self.account.reserved());
        region
    }

    /// Bytes that may still be reserved.
    pub(super) fn headroom(&self) -> u64 {
        self.config.headroom(self.account.reserved())
    }
}

impl<S: RegionSource> Drop for Pool<S> {
    fn drop(&mut self) {
        for region in self.best_fit.drain() {
            self.source.destroy(region);
        }
    }
}

impl<S: RegionSource> fmt::Debug for Pool<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pool")
            .field("config", &self.config)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
