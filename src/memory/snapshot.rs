//! A pool at one moment, as plain data.

use std::sync::Arc;
use std::time::Duration;

use super::best_fit::{BlockId, Piece};
use super::history::{CallSite, Event};
use super::pool::{Pool, RegionSource};
use super::slots::Detail;
use super::statistics::{MemoryStatistics, TagStatistics};
use super::tags::Tag;

/// Memory at one moment: every region and chunk, what each holds, and the latest events if they are
/// recorded. From [`Pool::snapshot`]; of a device from
/// [`Device::memory_snapshot`](crate::Device::memory_snapshot).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// The device's selector and name; empty for a pool of its own.
    pub device: String,
    /// Since [`record_history`](Pool::record_history), if a history is recorded.
    pub time: Option<Duration>,
    /// The account.
    pub statistics: MemoryStatistics,
    /// The account by tag, those that hold most first.
    pub tags: Vec<TagStatistics>,
    /// The regions in order of creation, which is that of their addresses.
    pub regions: Vec<RegionSnapshot>,
    /// Blocks whose contents are on the host for now, oldest first.
    pub spilled: Vec<SpilledSnapshot>,
    /// Number of the latest allocation.
    pub allocations: u64,
    /// The latest events, oldest first; empty when none are recorded.
    pub history: Vec<Event>,
    /// Older events that were dropped to make room.
    pub history_dropped: u64,
}

/// One region of a [`MemorySnapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionSnapshot {
    /// Where it would start if all regions that the pool ever had lay one after the other: no two
    /// share an address, and none is used again, until their bytes pass 2^64.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its chunks in address order; they tile it exactly.
    pub chunks: Vec<ChunkSnapshot>,
}

/// One chunk of a [`RegionSnapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkSnapshot {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// What it holds, `None` when it is free.
    pub block: Option<BlockSnapshot>,
}

/// A block in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockSnapshot {
    /// Number of the allocation that made it, counted from 1.
    pub number: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// What they are for.
    pub tag: Tag,
    /// Allocations since it was made.
    pub age: u64,
    /// Whether it must stay where it is.
    pub pinned: bool,
    /// Where it was asked for, when call sites are recorded.
    pub call_site: Option<Arc<CallSite>>,
}

/// A block that was spilled: it has no chunk until it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpilledSnapshot {
    /// Its bytes.
    pub bytes: u64,
    /// What it is.
    pub block: BlockSnapshot,
}

/// What a tag holds that it did not hold before, from [`MemorySnapshot::diff`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagDiff {
    /// The tag.
    pub tag: Tag,
    /// Blocks in use now that were made since.
    pub blocks: Vec<BlockSnapshot>,
    /// Bytes that were asked for in them.
    pub requested: u64,
    /// Bytes in use under the tag then and now, rounded.
    pub allocated: [u64; 2],
}

impl MemorySnapshot {
    /// The blocks in use with their chunks, in address order; spilled ones are not among them.
    pub fn blocks(&self) -> impl Iterator<Item = (&ChunkSnapshot, &BlockSnapshot)> {
        let chunks = self.regions.iter().flat_map(|region| &region.chunks);
        chunks.filter_map(|chunk| chunk.block.as_ref().map(|block| (chunk, block)))
    }

    /// What is new since `before`, an earlier snapshot of the same pool: for each tag the blocks that
    /// were made since and still live, the tag with most new bytes first. Tags with nothing new are
    /// left out. What grows from step to step of a loop is a leak.
    pub fn diff(&self, before: &MemorySnapshot) -> Vec<TagDiff> {
        let mut tags: Vec<TagDiff> = Vec::new();
        let held = |snapshot: &MemorySnapshot, tag| {
            let mut tags = snapshot.tags.iter();
            tags.find(|held| held.tag == tag)
                .map_or(0, |held| held.allocated_bytes.current)
        };
        let mut new: Vec<&BlockSnapshot> = self
            .blocks()
            .map(|(_, block)| block)
            .chain(self.spilled.iter().map(|spilled| &spilled.block))
            .filter(|block| block.number > before.allocations)
            .collect();
        new.sort_by_key(|block| (block.tag, block.number));
        for block in new {
            if tags.last().is_none_or(|last| last.tag != block.tag) {
                tags.push(TagDiff {
                    tag: block.tag,
                    blocks: Vec::new(),
                    requested: 0,
                    allocated: [held(before, block.tag), held(self, block.tag)],
                });
            }
            if let Some(tag) = tags.last_mut() {
                tag.requested += block.requested;
                tag.blocks.push(block.clone());
            }
        }
        tags.sort_by_key(|tag| (std::cmp::Reverse(tag.requested), tag.tag));
        tags
    }
}

impl<S: RegionSource> Pool<S> {
    /// The pool at this moment.
    pub fn snapshot(&self) -> MemorySnapshot {
        let regions = self.regions().map(|(id, bytes)| RegionSnapshot {
            address: self.best_fit.address(id),
            bytes,
            chunks: self
                .best_fit
                .pieces(id)
                .scan(0, |end, piece| {
                    let offset = *end;
                    *end += piece.bytes;
                    Some(ChunkSnapshot {
                        offset,
                        bytes: piece.bytes,
                        block: piece.block.map(|block| self.block_snapshot(block, piece)),
                    })
                })
                .collect(),
        });
        let regions = regions.collect();
        let (history, history_dropped) = self.account.history_events();
        MemorySnapshot {
            device: String::new(),
            time: self.account.time(),
            statistics: self.statistics(),
            tags: self.by_tag(),
            regions,
            spilled: self
                .account
                .aside()
                .map(|aside| SpilledSnapshot {
                    bytes: aside.bytes,
                    block: self.describe(aside.bytes, aside.detail, false, aside.call_site.clone()),
                })
                .collect(),
            allocations: self.account.allocations(),
            history,
            history_dropped,
        }
    }

    /// Records the latest `events` events from now on, first the regions that are there; 0 ends it.
    /// Off at first: then it costs a branch in each call.
    pub fn record_history(&mut self, events: usize) {
        self.account.record_history(events);
        let regions = self.best_fit.regions();
        let regions = regions.map(|(id, bytes)| (self.best_fit.address(id), bytes));
        self.account.record_regions(regions);
    }

    /// Says where a block was asked for. `false` for a stale id.
    pub fn set_call_site(&mut self, block: BlockId, site: CallSite) -> bool {
        let detail = self.best_fit.detail(block);
        if let Some(detail) = detail {
            self.account.locate(block, detail.number, site);
        }
        detail.is_some()
    }

    fn block_snapshot(&self, block: BlockId, piece: Piece) -> BlockSnapshot {
        let detail = self.best_fit.detail(block).unwrap_or_default();
        let call_site = self.account.call_site(block);
        self.describe(piece.bytes, detail, piece.pinned, call_site)
    }

    fn describe(
        &self,
        bytes: u64,
        detail: Detail,
        pinned: bool,
        call_site: Option<Arc<CallSite>>,
    ) -> BlockSnapshot {
        BlockSnapshot {
            number: detail.number,
            requested: detail.requested(bytes),
            tag: detail.tag,
            age: self.account.allocations() - detail.number,
            pinned,
            call_site,
        }
    }
}
