//! The allocator: divides a few large regions into chunks by best fit. It knows bytes and offsets only.
//!
//! # The idea
//!
//! A [`Pool`] takes **regions** (large buffers) from a [`RegionSource`] and tiles each with **chunks**.
//! A chunk is free or it is a **block** in use. A request takes the smallest free chunk that holds it,
//! the one with the lowest address among equals (regions in order of creation, then by offset), and
//! what it does not need is split off. A freed block merges with its free neighbours at once.
//! When no chunk is large enough, the ladder is climbed: a new region (idle ones, all too small, are
//! traded in for it where the growth policy says so, and so they are when the chunk is an
//! idle region and much too large, until regions that stay are found to do), then idle regions are returned and a new region is tried again, then blocks are moved together ([`Pool::allocate_moving`]), then the request fails
//! with [`Full`]. A device that spills frees blocks and begins again.
//!
//! # Invariants
//!
//! - Chunks tile their region exactly; offsets and sizes are multiples of [`QUANTUM`].
//! - Two neighbouring chunks are never both free.
//! - The statistics equal what a walk over all chunks finds, at any moment.
//! - The same sequence of calls (and of answers of the source) gives the same offsets.
//! - A stale id is recognised: it changes nothing and has no place.
//! - A failed call changes nothing, except that idle regions may have been returned and blocks moved.
//! - Within one region without pinned blocks, moving never fails while enough is free.
//!
//! # Bounds
//!
//! - Time: with `n` free chunks in the bin of a size (1/32 of a power of two) [`allocate`](Pool::allocate),
//!   [`free`](Pool::free) and [`statistics`](Pool::statistics) look at no more than 32 of them, or at
//!   O(log n) (expected, over priorities that do not depend on the calls' sizes);
//!   [`place`](Pool::place) and [`region`](Pool::region) take O(1). Only a request that
//!   needs a new region, and [`trim`](Pool::trim), also look at each region, and at each chunk when it begins that regions that
//!   stay are tried on paper; while they are, `allocate` and `free` do all of it twice. Planning moves takes O(n log n) for
//!   the windows of `n` chunks, O(m log n) for each of at most 256 that are tried, of `m` chunks, and O(n) for each of at
//!   most 128 looks for what to slide, which see at most 2^19 chunks in all; O(n log n) for all regions that are
//!   to be emptied, each time one is.
//! - Rounding: less than one quantum for each block; nothing else is lost inside a block.
//! - Bookkeeping: 64 bytes of host memory for each chunk (up to twice that, as vectors grow by doubling),
//!   at the highest number of chunks so far: at most twice the blocks in use (those that move together
//!   count twice) plus the regions. And 14 KiB. Twice that while regions that stay are tried on paper.
//! - Reserved over in use: at most 1.10 on four recorded training and inference runs (a test asserts
//!   it), and on runs like them, once and ten times over (`docs/memory.md`). No such bound holds for every sequence of calls while
//!   blocks stay: caches alone that grow by copying take up to 1.18, as in one endless region. With moves a budget of 1.02 times the peak in use is enough for all of them
//!   ([`Growth::Budget`]); `docs/memory.md` has what is moved.
//! - Regions returned to keep idle ones whole: for a pool's first program, where it repeats itself and regions of 1.08
//!   times its peak would serve it, about 48 times that peak in all, and more until larger ones do. For those
//!   that do not, and for those that are traded in because none holds a request, there is no such bound: runs that were
//!   measured make regions of up to 0.75 of the bytes that they allocate.

mod account;
mod best_fit;
mod evacuate;
mod free_index;
mod growth;
mod history;
mod holes;
mod kept;
mod ladder;
mod ledger;
pub(crate) mod order;
mod owners;
mod plan;
mod pool;
mod rehearsal;
mod relocate;
mod remaking;
mod room;
mod slots;
mod snapshot;
mod statistics;
mod tags;

pub use best_fit::{BlockId, Chunk, Place, RegionId};
pub use growth::Growth;
pub use history::{CallSite, Event, EventKind};
pub(crate) use kept::Kept;
#[cfg(test)]
pub(crate) use kept::LEAST as KEPT_LEAST;
pub use ladder::{Full, FullReason, Holder, WhenFull};
pub(crate) use ledger::{Claim, Ledger, LimitRefused, Overcommitted};
pub(crate) use owners::OwnedPool;
pub use pool::{Pool, PoolConfig, Refused, RegionSource};
pub use relocate::{Move, Mover};
pub use snapshot::{
    BlockSnapshot, ChunkSnapshot, MemorySnapshot, RegionSnapshot, SpilledSnapshot, TagDiff,
};
pub(crate) use statistics::Bytes;
pub use statistics::{Count, MemoryCounts, MemoryEvents, MemoryStatistics, TagStatistics};
pub use tags::{Request, Tag, tagged};

/// Every offset and every chunk size is a multiple of this many bytes.
///
/// It is the same for all adapters, so that offsets are too; no adapter asks for a larger alignment.
pub const QUANTUM: u64 = 256;
