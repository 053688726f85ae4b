//! The allocator alone, over no memory. Spilling is played: the oldest block goes.

use std::collections::VecDeque;
use std::time::Instant;

use orlop::memory::{BlockId, Growth, Pool, PoolConfig, Refused, RegionSource};

use crate::Report;
use crate::settings::Full;
use crate::trace::{Event, Trace};

/// The largest buffer, as WebGPU implementations commonly allow.
const MAX_REGION: u64 = (1 << 31) - 1;

/// Most regions that are preallocated: nothing ends them but the memory of their accounts.
const MOST_REGIONS: u64 = 1 << 16;

/// Regions out of nothing.
struct NoMemory;

impl RegionSource for NoMemory {
    type Region = ();

    fn create(&mut self, _bytes: u64) -> Result<(), Refused> {
        Ok(())
    }
}

pub fn replay(
    trace: &Trace,
    growth: Growth,
    limit: Option<u64>,
    when_full: Full,
) -> Result<Report, String> {
    // A pool knows no whole that it could take a share of.
    let growth = match (growth, limit) {
        (Growth::Preallocate { fraction }, Some(limit)) => Growth::PreallocateBytes {
            bytes: (limit as f64 * fraction) as u64,
        },
        (growth, _) => growth,
    };
    if let Growth::PreallocateBytes { bytes } = growth {
        let bytes = bytes.min(limit.unwrap_or(u64::MAX));
        let most = MOST_REGIONS * MAX_REGION;
        if bytes > most {
            return Err(format!(
                "{bytes} bytes cannot be preallocated: without --device {most} at most"
            ));
        }
    }
    let config = PoolConfig {
        growth,
        limit,
        max_region: MAX_REGION,
    };
    let mut player = Player {
        pool: Pool::new(NoMemory, config),
        when_full,
        blocks: vec![None; trace.sizes.len()],
        oldest: VecDeque::new(),
        spilled_bytes: 0,
        failures: 0,
    };
    let start = Instant::now();
    for &event in &trace.events {
        match event {
            Event::Allocate { index, bytes } => player.allocate(index, bytes),
            Event::Free { index } => player.free(index),
        }
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    let statistics = player.pool.statistics();
    Ok(Report {
        peak_reserved: statistics.peak_reserved,
        nanoseconds,
        moved_bytes: statistics.events.relocated_bytes,
        relocations: statistics.events.relocations,
        spilled_bytes: player.spilled_bytes,
        failures: player.failures,
        verified: player.verified(),
    })
}

struct Player {
    pool: Pool<NoMemory>,
    when_full: Full,
    /// By number of the allocation: `None` before it, when it failed, after it was freed or spilled.
    blocks: Vec<Option<BlockId>>,
    /// Numbers of allocations, while spilling is allowed.
    oldest: VecDeque<usize>,
    spilled_bytes: u64,
    failures: u64,
}

impl Player {
    fn allocate(&mut self, index: usize, bytes: u64) {
        let block = loop {
            let taken = match self.when_full {
                Full::Fail => self.pool.allocate(bytes),
                Full::Relocate | Full::Spill => self.pool.allocate_moving(bytes, &mut ()),
            };
            match taken {
                Ok(block) => break block,
                Err(_) if self.spill() => {}
                Err(_) => {
                    self.failures += 1;
                    return;
                }
            }
        };
        self.blocks[index] = Some(block);
        if self.when_full == Full::Spill {
            self.oldest.push_back(index);
        }
    }

    /// Sends the oldest block away; false when there is none.
    fn spill(&mut self) -> bool {
        while let Some(index) = self.oldest.pop_front() {
            if let Some(block) = self.blocks[index].take() {
                let place = self.pool.place(block);
                self.spilled_bytes += place.map_or(0, |place| place.bytes);
                return self.pool.free(block);
            }
        }
        false
    }

    fn free(&mut self, index: usize) {
        if let Some(block) = self.blocks[index].take() {
            self.pool.free(block);
        }
    }

    /// Chunks tile their regions, and the account equals a walk over them.
    fn verified(&self) -> bool {
        let (mut reserved, mut allocated, mut tiled) = (0, 0, true);
        for (region, bytes) in self.pool.regions() {
            let mut end = 0;
            for chunk in self.pool.chunks(region) {
                tiled &= chunk.offset == end;
                end += chunk.bytes;
                allocated += if chunk.block.is_some() {
                    chunk.bytes
                } else {
                    0
                };
            }
            tiled &= end == bytes;
            reserved += bytes;
        }
        let statistics = self.pool.statistics();
        tiled && (statistics.reserved, statistics.allocated) == (reserved, allocated)
    }
}
