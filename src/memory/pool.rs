//! The pool: regions from a source, divided by best fit, with an exact account.

use std::fmt;

use super::account::Account;
use super::best_fit::{BestFit, BlockId, Chunk, Place, RegionId};
use super::growth::{Growth, round_down, round_up};
use super::ladder::{Full, FullReason};
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

/// What a pool may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How new regions are sized.
    pub growth: Growth,
    /// The budget: most bytes reserved at any time; `None` for no budget.
    pub limit: Option<u64>,
    /// Most bytes in one region (the adapter's largest buffer), and so in one block.
    pub max_region: u64,
}

/// Regions from a source, divided into blocks by best fit.
///
/// Dropping a pool destroys all its regions, blocks in use or not.
pub struct Pool<S: RegionSource> {
    pub(super) source: S,
    pub(super) config: PoolConfig,
    pub(super) best_fit: BestFit<S::Region>,
    pub(super) account: Account,
}

impl<S: RegionSource> Pool<S> {
    /// A pool that holds nothing yet. `config.max_region` is rounded down to [`QUANTUM`](super::QUANTUM).
    pub fn new(source: S, config: PoolConfig) -> Self {
        Pool {
            source,
            config: PoolConfig {
                max_region: round_down(config.max_region),
                ..config
            },
            best_fit: BestFit::new(),
            account: Account::default(),
        }
    }

    /// Takes a block of at least `request.bytes` bytes (0 counts as 1), rounded up to
    /// [`QUANTUM`](super::QUANTUM).
    ///
    /// # Errors
    ///
    /// [`Full`] when the request exceeds what one region can be, or the budget, or the source has no
    /// more to give. Nothing has changed then, except that idle regions may have been returned.
    pub fn allocate(&mut self, request: impl Into<Request>) -> Result<BlockId, Full> {
        let request = request.into();
        let asked = request.bytes.max(1);
        let max_region = self.config.max_region;
        let rounded = round_up(asked).filter(|&rounded| rounded <= max_region);
        let outcome = match rounded {
            Some(rounded) => self.climb(rounded).map(|block| (block, rounded)),
            None => Err(FullReason::OverRegionLimit { max_region }),
        };
        match outcome {
            Ok((block, rounded)) => {
                self.account.allocated(block, rounded, request);
                self.divided();
                Ok(block)
            }
            Err(reason) => Err(self.failed(request, reason)),
        }
    }

    /// What a request fails with; it is in the account already.
    #[cold]
    pub(super) fn failed(&mut self, request: Request, reason: FullReason) -> Full {
        let mut full = Full {
            asked: request.bytes,
            rounded: round_up(request.bytes.max(1)).unwrap_or(round_down(u64::MAX)),
            reason,
            statistics: Box::default(),
        };
        self.account.failed(&full);
        *full.statistics = self.statistics();
        full
    }

    /// Gives a block back. `false`, and nothing changed, for a stale id.
    pub fn free(&mut self, block: BlockId) -> bool {
        let Some(bytes) = self.best_fit.free(block) else {
            return false;
        };
        self.account.freed(block, bytes);
        self.divided();
        true
    }

    /// Tells the account what is free now.
    fn divided(&mut self) {
        let idle = self.best_fit.idle();
        self.account.divided(self.best_fit.free_chunks(), idle);
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
        let idle: Vec<_> = self.best_fit.idle_regions().collect();
        let mut returned = Vec::with_capacity(idle.len());
        for (id, bytes) in idle {
            if let Some(region) = self.best_fit.close_region(id) {
                self.account.region_closed(bytes);
                self.source.destroy(region);
                returned.push(id);
            }
        }
        returned
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
        let counts = self.account.counts();
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
        self.account.reset_peaks();
    }

    /// Makes all totals and all events 0.
    pub fn reset_totals(&mut self) {
        self.account.reset_totals();
    }

    #[allow(dead_code)]
    /// The account, for what happens around the pool.
    pub(crate) fn account_mut(&mut self) -> &mut Account {
        &mut self.account
    }

    /// The regions held with their bytes, in address order: the order of their creation.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = (RegionId, u64)> + '_ {
        self.best_fit.regions()
    }

    /// The chunks of a region in address order; none for a stale id.
    pub fn chunks(&self, region: RegionId) -> impl Iterator<Item = Chunk> + '_ {
        self.best_fit.chunks(region)
    }

    /// Takes a region that the source made into the account, with its first block.
    pub(super) fn open_region(
        &mut self,
        region: S::Region,
        region_bytes: u64,
        block_bytes: u64,
    ) -> BlockId {
        self.account.region_opened(region_bytes);
        self.best_fit.open_region(region, region_bytes, block_bytes)
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
