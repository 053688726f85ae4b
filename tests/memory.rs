//! The allocator against a naive oracle, at its edges, and on recorded traces.

mod random;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use orlop::memory::{
    BlockId, Chunk, Full, FullReason, Growth, MemoryStatistics, Pool, PoolConfig, QUANTUM, Refused,
    RegionId, RegionSource,
};

use random::Random;

/// Random events for each seed: over all tests 4.4 million.
const EVENTS: u64 = 200_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Plays a device: a capacity, refusals at random, and a count of what it has given out.
/// Each region is its creation number, and two copies of a device behave alike.
#[derive(Clone)]
struct Device {
    random: Random,
    /// One call in so many is refused; 0 for none.
    refuse_once_in: u64,
    capacity: u64,
    in_use: u64,
    created: Vec<u64>,
    destroyed: Vec<usize>,
}

impl Device {
    fn new() -> Device {
        Device {
            random: Random(0),
            refuse_once_in: 0,
            capacity: u64::MAX,
            in_use: 0,
            created: Vec::new(),
            destroyed: Vec::new(),
        }
    }

    fn with_capacity(capacity: u64) -> Device {
        Device {
            capacity,
            ..Device::new()
        }
    }
}

impl RegionSource for Device {
    type Region = usize;

    fn create(&mut self, bytes: u64) -> Result<usize, Refused> {
        assert!(bytes > 0 && bytes.is_multiple_of(QUANTUM));
        if self.refuse_once_in > 0 && self.random.once_in(self.refuse_once_in) {
            return Err(Refused("a bad moment".into()));
        }
        if bytes > self.capacity - self.in_use {
            return Err(Refused("no memory left".into()));
        }
        self.in_use += bytes;
        self.created.push(bytes);
        Ok(self.created.len() - 1)
    }

    fn destroy(&mut self, region: usize) {
        self.in_use -= self.created[region];
        self.destroyed.push(region);
    }
}

/// The account without figures over time, which `tests/statistics.rs` checks.
fn moment(statistics: MemoryStatistics) -> MemoryStatistics {
    MemoryStatistics {
        counts: Default::default(),
        events: Default::default(),
        ..statistics
    }
}

const NO_LIMIT: PoolConfig = PoolConfig {
    growth: Growth::Proportional,
    limit: None,
    max_region: (1 << 31) - 1,
};

fn with_limit(limit: u64) -> PoolConfig {
    PoolConfig {
        limit: Some(limit),
        ..NO_LIMIT
    }
}

/// The specification once more, as plainly as possible: lists and linear scans.
struct Oracle {
    device: Device,
    config: PoolConfig,
    regions: Vec<OracleRegion>,
    remaking: Remaking,
    peak_allocated: u64,
    peak_reserved: u64,
}

/// What ends that regions are made anew: regions that are found to do, or a refusal.
#[derive(Default)]
struct Remaking {
    /// The most in use that regions stay for, and how many bytes may be reserved.
    settled: Option<(u64, u64)>,
    refused: bool,
    /// Since a rehearsal began, failed, or went through its length: bytes that went back, and most bytes in use when a
    /// request found no chunk.
    bytes: u64,
    most: u64,
    /// Rehearsals that failed or were wrong, and those of them that had no room.
    failed: u32,
    cramped: u32,
    rehearsal: Option<Rehearsal>,
}

/// The same requests in regions for a little more than the most in use.
struct Rehearsal {
    regions: Vec<OracleRegion>,
    most: u64,
    length: u64,
    /// The least in use at a moment to make regions, each time that so many bytes went back.
    lowest: Vec<u64>,
    allocations: u64,
    longest: u64,
}

struct OracleRegion {
    /// The creation number that the device gave.
    number: usize,
    /// Offset, bytes and tag of the block, in address order.
    chunks: Vec<(u64, u64, Option<u64>)>,
}

impl OracleRegion {
    fn idle(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.2.is_none())
    }
}

impl Oracle {
    fn new(device: Device, config: PoolConfig) -> Oracle {
        Oracle {
            device,
            config,
            regions: Vec::new(),
            remaking: Remaking::default(),
            peak_allocated: 0,
            peak_reserved: 0,
        }
    }

    /// Creation number of the region, and offset.
    fn allocate(&mut self, tag: u64, bytes: u64) -> Result<(usize, u64), FullReason> {
        let max_region = self.config.max_region / QUANTUM * QUANTUM;
        let bytes = bytes.max(1).div_ceil(QUANTUM) * QUANTUM;
        if bytes > max_region {
            return Err(FullReason::OverRegionLimit { max_region });
        }
        let live = self.statistics().allocated + bytes;
        let most = live + live / 20;
        let busy = self.busy();
        let smallest = if busy > most { 64 << 10 } else { 256 << 10 };
        // An idle region goes back, with all others, rather than be broken up for less than 4/5 of it.
        let keeps = self.remaking.settled.is_none() && !self.remaking.refused;
        let found = best(&self.regions, bytes);
        let kept_whole = found.is_some_and(|(held, region, _)| {
            keeps && self.regions[region].idle() && held > bytes.max(smallest) / 4 * 5
        });
        if found.is_some() && !kept_whole {
            return Ok(self.place(tag, bytes).expect("it was found"));
        }
        self.remaking.most = self.remaking.most.max(live);
        // Idle regions are traded in, if a region for the request is within the budget then.
        let limit = self.config.limit.unwrap_or(u64::MAX);
        let idle = self.statistics().reserved - busy;
        if idle > 0 && busy + bytes <= limit {
            if kept_whole {
                self.rehearse(idle, max_region);
            }
            self.trim();
            self.settle(live - bytes, max_region);
        }
        if let Some(found) = self.place(tag, bytes) {
            return Ok(found);
        }
        if let Some((most, reserved)) = self.remaking.settled
            && self.busy() + bytes > reserved
        {
            self.remaking.fails(live <= most);
        }
        let busy = self.busy();
        if busy + bytes > limit {
            return Err(FullReason::OverBudget);
        }
        self.trim();
        // Ahead of the request while reserved stays within 21/20 of what is in use.
        let step = most.saturating_sub(busy).max(smallest).max(busy / 256);
        let multiple = (step / bytes).max(1) * bytes;
        let most = max_region.min((limit - busy) / QUANTUM * QUANTUM);
        let mut size = multiple.min(most);
        loop {
            match self.device.create(size) {
                Ok(number) => {
                    let chunks = vec![(0, size, None)];
                    self.regions.push(OracleRegion { number, chunks });
                    break;
                }
                Err(refused) => {
                    self.remaking = Remaking::refused();
                    if size == bytes {
                        return Err(FullReason::Refused(refused.0));
                    }
                    size = (size / 2 / QUANTUM * QUANTUM).max(bytes);
                }
            }
        }
        self.peak_reserved = self.peak_reserved.max(self.device.in_use);
        Ok(self.place(tag, bytes).expect("the new region has room"))
    }

    /// Counts what goes back to keep regions whole, and begins to rehearse.
    fn rehearse(&mut self, idle: u64, max_region: u64) {
        self.remaking.bytes += idle;
        let Remaking { bytes, most, .. } = self.remaking;
        if let Some(rehearsal) = &mut self.remaking.rehearsal {
            if bytes >= rehearsal.length {
                rehearsal.lowest.push(u64::MAX);
                (self.remaking.bytes, self.remaking.most) = (0, 0);
                if most < rehearsal.most - rehearsal.most / 16 {
                    self.remaking.fails(false);
                }
            }
            return;
        }
        if bytes < most * (8 << self.remaking.failed) {
            return;
        }
        let with = |percent| (most + most / 100 * percent) / QUANTUM * QUANTUM;
        let stays = match self.remaking.cramped {
            0..7 => None,
            7 => Some(12),
            8 => Some(25),
            _ => Some(50),
        };
        if let Some(percent) = stays {
            self.remaking.settle(most, with(percent));
            return;
        }
        let rehearsed = with(6);
        let regions = sizes(rehearsed, max_region)
            .into_iter()
            .enumerate()
            .map(|(number, bytes)| OracleRegion {
                number,
                chunks: vec![(0, bytes, None)],
            })
            .collect();
        let mut rehearsal = Rehearsal {
            regions,
            most,
            length: bytes,
            lowest: vec![u64::MAX],
            allocations: 0,
            longest: (1 << 20) << self.remaking.failed,
        };
        (self.remaking.bytes, self.remaking.most) = (0, 0);
        let chunks = self.regions.iter().flat_map(|region| &region.chunks);
        for &(_, bytes, block) in chunks {
            if let Some(tag) = block
                && let Some(cramped) = rehearsal.cannot(tag, bytes)
            {
                self.remaking.fails(cramped);
                return;
            }
        }
        self.remaking.rehearsal = Some(rehearsal);
    }

    /// Makes the regions that were rehearsed, when it has lasted long enough and little is in use.
    fn settle(&mut self, in_use: u64, max_region: u64) {
        let reserved = self.busy();
        let limit = self.config.limit.unwrap_or(u64::MAX);
        let remaking = &mut self.remaking;
        let Some(rehearsal) = &mut remaking.rehearsal else {
            return;
        };
        let times = rehearsal.lowest.len();
        rehearsal.lowest[times - 1] = rehearsal.lowest[times - 1].min(in_use);
        let lowest = rehearsal.lowest[times.saturating_sub(2)..].iter().min();
        if times < 2
            || remaking.most < rehearsal.most - rehearsal.most / 16
            || in_use > lowest.expect("one") + rehearsal.most / 32
        {
            return;
        }
        let most = rehearsal.most;
        let [made, allowed] =
            [7, 9].map(|percent| (most + most / 100 * percent) / QUANTUM * QUANTUM);
        if made.max(reserved) > limit {
            remaking.fails(false);
            return;
        }
        remaking.settle(most, allowed);
        for bytes in sizes(made.saturating_sub(reserved), max_region) {
            let Ok(number) = self.device.create(bytes) else {
                self.remaking = Remaking::refused();
                return;
            };
            let chunks = vec![(0, bytes, None)];
            self.regions.push(OracleRegion { number, chunks });
        }
        self.peak_reserved = self.peak_reserved.max(self.device.in_use);
    }

    /// Bytes of the regions with a block.
    fn busy(&self) -> u64 {
        let busy = self.regions.iter().filter(|region| !region.idle());
        busy.map(|region| self.device.created[region.number]).sum()
    }

    fn place(&mut self, tag: u64, bytes: u64) -> Option<(usize, u64)> {
        let found = place(&mut self.regions, tag, bytes)?;
        let rehearsal = self.remaking.rehearsal.as_mut();
        if let Some(cramped) = rehearsal.and_then(|rehearsal| rehearsal.cannot(tag, bytes)) {
            self.remaking.fails(cramped);
        }
        self.peak_allocated = self.peak_allocated.max(self.statistics().allocated);
        Some(found)
    }

    fn free(&mut self, tag: u64) {
        assert!(free(&mut self.regions, tag), "no block {tag}");
        if let Some(rehearsal) = &mut self.remaking.rehearsal {
            free(&mut rehearsal.regions, tag);
        }
    }

    fn trim(&mut self) {
        for region in &self.regions {
            if region.idle() {
                self.device.destroy(region.number);
            }
        }
        self.regions.retain(|region| !region.idle());
    }

    fn statistics(&self) -> MemoryStatistics {
        let mut statistics = MemoryStatistics {
            peak_allocated: self.peak_allocated,
            peak_reserved: self.peak_reserved,
            limit: self.config.limit,
            regions: self.regions.len() as u64,
            ..MemoryStatistics::default()
        };
        for &(_, bytes, block) in self.regions.iter().flat_map(|region| &region.chunks) {
            statistics.reserved += bytes;
            if block.is_some() {
                statistics.allocated += bytes;
                statistics.live_blocks += 1;
            } else {
                statistics.free += bytes;
                statistics.largest_free = statistics.largest_free.max(bytes);
            }
        }
        statistics
    }
}

impl Remaking {
    fn settle(&mut self, most: u64, reserved: u64) {
        *self = Remaking {
            settled: Some((most, reserved)),
            failed: self.failed,
            cramped: self.cramped,
            ..Remaking::default()
        };
    }

    fn fails(&mut self, cramped: bool) {
        *self = Remaking {
            failed: self.failed + 1,
            cramped: self.cramped + u32::from(cramped),
            ..Remaking::default()
        };
    }

    fn refused() -> Remaking {
        Remaking {
            refused: true,
            ..Remaking::default()
        }
    }
}

impl Rehearsal {
    /// Whether it was for want of room, where it cannot be allocated.
    fn cannot(&mut self, tag: u64, bytes: u64) -> Option<bool> {
        self.allocations += 1;
        if self.allocations > self.longest {
            return Some(false);
        }
        place(&mut self.regions, tag, bytes)
            .is_none()
            .then_some(true)
    }
}

/// So many bytes in regions as large as may be.
fn sizes(bytes: u64, max_region: u64) -> Vec<u64> {
    let mut sizes = vec![max_region; (bytes / max_region) as usize];
    sizes.extend(Some(bytes % max_region).filter(|&rest| rest > 0));
    sizes
}

/// Best fit: the smallest chunk that is large enough, the first of its size in address order: its bytes,
/// region and place there.
fn best(regions: &[OracleRegion], bytes: u64) -> Option<(u64, usize, usize)> {
    let mut best: Option<(u64, usize, usize)> = None;
    for (region_index, region) in regions.iter().enumerate() {
        for (chunk_index, &(_, chunk_bytes, block)) in region.chunks.iter().enumerate() {
            let better = best.is_none_or(|(best_bytes, _, _)| chunk_bytes < best_bytes);
            if block.is_none() && chunk_bytes >= bytes && better {
                best = Some((chunk_bytes, region_index, chunk_index));
            }
        }
    }
    best
}

/// Takes the best chunk; tells its region's number, and the offset.
fn place(regions: &mut [OracleRegion], tag: u64, bytes: u64) -> Option<(usize, u64)> {
    let (held, region_index, chunk_index) = best(regions, bytes)?;
    let region = &mut regions[region_index];
    let offset = region.chunks[chunk_index].0;
    region.chunks[chunk_index] = (offset, bytes, Some(tag));
    if held > bytes {
        let rest = (offset + bytes, held - bytes, None);
        region.chunks.insert(chunk_index + 1, rest);
    }
    Some((region.number, offset))
}

/// False where there is no such block.
fn free(regions: &mut [OracleRegion], tag: u64) -> bool {
    for region in regions {
        let found = region.chunks.iter().position(|chunk| chunk.2 == Some(tag));
        if let Some(index) = found {
            region.chunks[index].2 = None;
            region.chunks.dedup_by(|next, previous| {
                let merge = next.2.is_none() && previous.2.is_none();
                if merge {
                    previous.1 += next.1;
                }
                merge
            });
            return true;
        }
    }
    false
}

/// Every promise that can be seen from outside, by a walk over all chunks.
fn check_invariants<S: RegionSource>(pool: &Pool<S>) {
    let mut walked = MemoryStatistics::default();
    for (region, region_bytes) in pool.regions() {
        assert!(pool.region(region).is_some());
        walked.regions += 1;
        walked.reserved += region_bytes;
        let mut end = 0;
        let mut previous_free = false;
        for Chunk {
            offset,
            bytes,
            block,
        } in pool.chunks(region)
        {
            assert_eq!(offset, end, "chunks tile their region");
            assert!(bytes > 0 && bytes.is_multiple_of(QUANTUM) && offset.is_multiple_of(QUANTUM));
            assert!(
                !(previous_free && block.is_none()),
                "free neighbours are merged"
            );
            previous_free = block.is_none();
            end += bytes;
            if let Some(block) = block {
                let place = pool.place(block).expect("a block in use has a place");
                assert_eq!(
                    (place.region, place.offset, place.bytes),
                    (region, offset, bytes)
                );
                walked.live_blocks += 1;
                walked.allocated += bytes;
            } else {
                walked.free += bytes;
                walked.largest_free = walked.largest_free.max(bytes);
            }
        }
        assert_eq!(end, region_bytes, "chunks tile their region");
    }
    let told = moment(pool.statistics());
    walked.limit = told.limit;
    walked.peak_allocated = told.peak_allocated;
    walked.peak_reserved = told.peak_reserved;
    assert_eq!(told, walked, "the account is exact");
    assert!(told.peak_allocated >= told.allocated && told.peak_reserved >= told.reserved);
    assert!(told.limit.is_none_or(|limit| told.reserved <= limit));
}

/// A pool and an oracle that live through the same events.
struct Pair {
    pool: Pool<Device>,
    oracle: Oracle,
    /// Blocks in use: tag and id.
    live: Vec<(u64, BlockId)>,
    stale_blocks: Vec<BlockId>,
    stale_regions: Vec<RegionId>,
    next_tag: u64,
    failures: u64,
}

impl Pair {
    fn new(device: Device, config: PoolConfig) -> Pair {
        Pair {
            pool: Pool::new(device.clone(), config),
            oracle: Oracle::new(device, config),
            live: Vec::new(),
            stale_blocks: Vec::new(),
            stale_regions: Vec::new(),
            next_tag: 0,
            failures: 0,
        }
    }

    fn allocate(&mut self, bytes: u64) {
        let tag = self.next_tag;
        self.next_tag += 1;
        match (self.pool.allocate(bytes), self.oracle.allocate(tag, bytes)) {
            (Ok(block), Ok((number, offset))) => {
                let place = self.pool.place(block).expect("a new block has a place");
                assert_eq!(self.pool.region(place.region), Some(&number));
                assert_eq!(place.offset, offset);
                self.live.push((tag, block));
            }
            (Err(full), Err(reason)) => {
                assert_eq!(full.reason, reason);
                assert_eq!(full.asked, bytes);
                assert_eq!(*full.statistics, self.pool.statistics());
                assert!(!full.to_string().is_empty());
                self.failures += 1;
            }
            (got, expected) => panic!("{bytes} bytes: got {got:?}, expected {expected:?}"),
        }
    }

    fn free(&mut self, index: usize) {
        let (tag, block) = self.live.swap_remove(index);
        assert!(self.pool.free(block));
        self.oracle.free(tag);
        self.stale_blocks.push(block);
    }

    fn trim(&mut self) {
        let before: Vec<RegionId> = self.pool.regions().map(|(region, _)| region).collect();
        let returned = self.pool.trim();
        self.oracle.trim();
        let gone = |region: &RegionId| self.pool.region(*region).is_none();
        assert_eq!(
            before.into_iter().filter(gone).collect::<Vec<_>>(),
            returned
        );
        self.stale_regions.extend(returned);
    }

    fn check_stale_ids(&mut self) {
        for block in self.stale_blocks.drain(..) {
            assert!(!self.pool.free(block));
            assert_eq!(self.pool.place(block), None);
        }
        for &region in &self.stale_regions {
            assert_eq!(self.pool.region(region), None);
            assert_eq!(self.pool.chunks(region).count(), 0);
        }
        self.stale_regions.truncate(100);
    }

    fn check_statistics(&self) {
        assert_eq!(moment(self.pool.statistics()), self.oracle.statistics());
    }

    /// The two agree in every chunk, and in what they asked of the device.
    fn check_all(&mut self) {
        self.check_stale_ids();
        self.check_statistics();
        check_invariants(&self.pool);
        let device = self.pool.source();
        assert_eq!(device.created, self.oracle.device.created);
        assert_eq!(device.destroyed, self.oracle.device.destroyed);
        let regions: Vec<_> = self.pool.regions().collect();
        assert_eq!(regions.len(), self.oracle.regions.len());
        for ((id, _), expected) in regions.into_iter().zip(&self.oracle.regions) {
            assert_eq!(self.pool.region(id), Some(&expected.number));
            let chunks = self.pool.chunks(id);
            assert!(
                chunks
                    .map(|chunk| (chunk.offset, chunk.bytes, chunk.block.is_some()))
                    .eq(expected
                        .chunks
                        .iter()
                        .map(|chunk| (chunk.0, chunk.1, chunk.2.is_some())))
            );
        }
    }

    /// `events` random events: phases that fill and drain, all kinds of sizes, trims.
    fn live_through(&mut self, random: &mut Random, events: u64) {
        let mut fill_percent = 70;
        for event in 0..events {
            if random.once_in(150) {
                fill_percent = [95, 70, 55, 50, 35, 0][random.below(6) as usize];
            }
            if random.once_in(500) {
                self.trim();
            } else if random.once_in(1000) {
                self.pool.reset_peaks();
                let statistics = self.oracle.statistics();
                self.oracle.peak_allocated = statistics.allocated;
                self.oracle.peak_reserved = statistics.reserved;
            } else if random.below(100) < fill_percent && self.live.len() < 120 {
                let bytes = random_size(random, self.pool_max_region());
                self.allocate(bytes);
            } else if !self.live.is_empty() {
                let index = random.below(self.live.len() as u64) as usize;
                self.free(index);
            }
            if event % 4 == 0 {
                self.check_statistics();
            }
            if event % 64 == 0 {
                self.check_all();
            }
        }
        self.check_all();
    }

    /// A program that does the same over and over, now and then a little else, and at times becomes another.
    /// Returns how often it came to regions that stay, and how often they did not do.
    fn repeat(&mut self, random: &mut Random) -> [u64; 2] {
        let mut seen = [0; 2];
        let mut was_settled = false;
        for _ in 0..4 {
            let unit = QUANTUM << random.below(12);
            let steps: Vec<(u64, bool)> = (0..10 + random.below(40))
                .map(|_| (unit * (1 + random.below(64)), random.once_in(3)))
                .collect();
            for _ in 0..120 {
                for &(bytes, goes_at_once) in &steps {
                    let before = self.live.len();
                    self.allocate(bytes);
                    let settled = self.oracle.remaking.settled.is_some();
                    seen[0] += u64::from(settled && !was_settled);
                    seen[1] += u64::from(was_settled && !settled);
                    was_settled = settled;
                    if goes_at_once && self.live.len() > before {
                        self.free(before);
                    }
                    if random.once_in(200) {
                        self.allocate(random.below(8 * unit));
                    }
                }
                self.check_statistics();
                let stay = random.below(3) as usize;
                while self.live.len() > stay {
                    self.free(random.below(self.live.len() as u64) as usize);
                }
            }
            self.check_all();
        }
        seen
    }

    fn pool_max_region(&self) -> u64 {
        self.oracle.config.max_region
    }
}

/// Tiny, equal, power of two, odd, and huge sizes.
fn random_size(random: &mut Random, max_region: u64) -> u64 {
    match random.below(16) {
        0..4 => random.below(600),
        4..7 => QUANTUM * (1 + random.below(4)),
        7..10 => 1 << random.below(19),
        10..14 => random.below(100_000),
        14 => random.below(MIB),
        _ if random.once_in(8) => random.below(max_region.saturating_mul(2).max(1)),
        _ => random.below(3 * MIB),
    }
}

/// Runs both on random events for several seeds; returns how many allocations failed.
fn against_the_oracle(
    name: &str,
    config: PoolConfig,
    device: impl Fn(u64) -> Device,
    seeds: u64,
) -> u64 {
    let mut failures = 0;
    for seed in 0..seeds {
        println!("{name}: seed {seed}");
        let mut pair = Pair::new(device(seed), config);
        pair.live_through(&mut Random(seed), EVENTS);
        failures += pair.failures;
    }
    failures
}

#[test]
fn oracle_without_bounds() {
    let config = PoolConfig {
        max_region: 64 * MIB,
        ..NO_LIMIT
    };
    against_the_oracle("no bounds", config, |_| Device::new(), 6);
}

#[test]
fn oracle_of_programs_that_repeat_themselves() {
    let small = PoolConfig {
        max_region: 8 * MIB,
        ..NO_LIMIT
    };
    for (name, config, refuse_once_in) in [
        ("no bounds", NO_LIMIT, 0),
        ("a budget", with_limit(40 * MIB), 0),
        ("small regions", small, 0),
        ("refusals", NO_LIMIT, 1000),
    ] {
        let mut seen = [0; 2];
        for seed in 0..100 {
            println!("{name}: seed {seed}");
            let device = Device {
                random: Random(seed),
                refuse_once_in,
                ..Device::new()
            };
            let mut pair = Pair::new(device, config);
            let [settled, again] = pair.repeat(&mut Random(seed));
            seen = [seen[0] + settled, seen[1] + again];
        }
        println!("{name}: {seen:?}");
        assert!(seen[0] > 5 && seen[1] > 1, "{name}: {seen:?}");
    }
}

#[test]
fn oracle_with_a_budget() {
    let limit = 9 * MIB + 77;
    let failures = against_the_oracle("budget", with_limit(limit), |_| Device::new(), 5);
    assert!(
        failures > 1000,
        "the budget was reached only {failures} times"
    );
}

#[test]
fn oracle_with_small_regions() {
    let config = PoolConfig {
        max_region: 333_333,
        ..NO_LIMIT
    };
    let failures = against_the_oracle("small regions", config, |_| Device::new(), 5);
    assert!(failures > 1000, "only {failures} requests were too large");
}

#[test]
fn oracle_with_refusals() {
    let device = |seed| Device {
        random: Random(seed),
        refuse_once_in: 3,
        ..Device::with_capacity(12 * MIB)
    };
    let config = PoolConfig {
        limit: Some(14 * MIB),
        max_region: 5 * MIB,
        ..NO_LIMIT
    };
    let failures = against_the_oracle("refusals", config, device, 6);
    assert!(failures > 1000, "only {failures} requests were refused");
}

#[test]
fn a_budget_of_any_size_holds() {
    let mut random = Random(11);
    for limit in [
        0,
        1,
        255,
        256,
        257,
        511,
        512,
        1000,
        65_536,
        u64::MAX - 1,
        u64::MAX,
    ] {
        for max_region in [0, 1, 255, 256, 1000, MIB, u64::MAX] {
            let config = PoolConfig {
                limit: Some(limit),
                max_region,
                ..NO_LIMIT
            };
            println!("limit {limit}, max_region {max_region}");
            // A pool of the size of the whole number range cannot be summed by the oracle.
            if limit < 1 << 40 {
                Pair::new(Device::new(), config).live_through(&mut random, 500);
            } else {
                let mut pool = Pool::new(Device::new(), config);
                for _ in 0..500 {
                    let _ = pool.allocate(random_size(&mut random, 1 << 62));
                    check_invariants(&pool);
                }
            }
        }
    }
}

#[test]
fn zero_bytes_are_one_quantum() -> Result<(), Box<Full>> {
    let mut pool = Pool::new(Device::new(), NO_LIMIT);
    let (first, second) = (pool.allocate(0)?, pool.allocate(0)?);
    assert_ne!(first, second);
    assert_eq!(pool.place(first).map(|place| place.bytes), Some(QUANTUM));
    assert_eq!(pool.place(second).map(|place| place.offset), Some(QUANTUM));
    Ok(())
}

#[test]
fn over_large_requests_change_nothing() -> Result<(), Box<Full>> {
    let config = PoolConfig {
        max_region: MIB + 100,
        ..NO_LIMIT
    };
    let mut pool = Pool::new(Device::new(), config);
    let idle = pool.allocate(KIB)?;
    assert!(pool.free(idle));
    let before = pool.statistics();
    for bytes in [MIB + 1, MIB + 100, u64::MAX - 255, u64::MAX - 254, u64::MAX] {
        let full = pool.allocate(bytes).expect_err("larger than any region");
        assert_eq!(full.reason, FullReason::OverRegionLimit { max_region: MIB });
        assert_eq!(full.asked, bytes);
        assert!(full.rounded.is_multiple_of(QUANTUM) && full.rounded >= MIB);
        assert_eq!(moment(*full.statistics), moment(before));
        assert_eq!(moment(pool.statistics()), moment(before));
    }
    pool.allocate(MIB)?;
    Ok(())
}

#[test]
fn the_whole_number_range_can_be_reserved() -> Result<(), Box<Full>> {
    let most = u64::MAX - 255;
    for limit in [None, Some(u64::MAX)] {
        let config = PoolConfig {
            limit,
            max_region: u64::MAX,
            ..NO_LIMIT
        };
        let mut pool = Pool::new(Device::new(), config);
        // Again and again, so that sums over the life of the pool pass the number range.
        for _ in 0..600 {
            let all = pool.allocate(most)?;
            assert_eq!(pool.statistics().allocated, most);
            let full = pool.allocate(1).expect_err("nothing is left");
            assert_eq!(full.reason, FullReason::OverBudget);
            assert!(pool.free(all));
            check_invariants(&pool);
            let half = pool.allocate(most / 512 * 256)?;
            pool.allocate(1)?;
            assert!(pool.free(half));
            check_invariants(&pool);
            pool = Pool::new(Device::new(), config);
        }
        for _ in 0..600 {
            let all = pool.allocate(most)?;
            assert!(pool.free(all));
            assert_eq!(pool.trim().len(), 1);
        }
    }
    Ok(())
}

#[test]
fn best_fit_takes_the_smallest_hole_and_the_lowest_of_equals() -> Result<(), Box<Full>> {
    let mut pool = Pool::new(Device::new(), NO_LIMIT);
    let sizes = [4, 1, 2, 1, 3, 1, 2, 1];
    let mut blocks = Vec::new();
    for size in sizes {
        blocks.push(pool.allocate(size * QUANTUM)?);
    }
    for index in [6, 4, 0, 2] {
        assert!(pool.free(blocks[index]));
    }
    let mut offset = |quanta: u64| -> Result<Option<u64>, Box<Full>> {
        let block = pool.allocate(quanta * QUANTUM)?;
        Ok(pool.place(block).map(|place| place.offset / QUANTUM))
    };
    // Holes: 4 at 0, 2 at 5, 3 at 8, 2 at 12.
    assert_eq!(offset(2)?, Some(5));
    assert_eq!(offset(2)?, Some(12));
    assert_eq!(offset(2)?, Some(8));
    assert_eq!(offset(1)?, Some(10));
    assert_eq!(offset(4)?, Some(0));
    Ok(())
}

#[test]
fn a_refusing_source_is_asked_for_less_and_recovers() -> Result<(), Box<Full>> {
    // 300 KiB left: 1 MiB and 512 KiB are refused, 256 KiB is granted.
    let mut pool = Pool::new(Device::with_capacity(300 * KIB), NO_LIMIT);
    let small = pool.allocate(16 * KIB)?;
    assert_eq!(pool.source().created, [256 * KIB]);
    // 44 KiB left: halves of 1 MiB end at what is needed.
    let exact = pool.allocate(16 * KIB + 240 * KIB).expect_err("too much");
    assert_eq!(exact.reason, FullReason::Refused("no memory left".into()));
    let before = pool.statistics();
    assert_eq!(*exact.statistics, before);
    let filler = pool.allocate(240 * KIB)?;
    let tail = pool.allocate(44 * KIB)?;
    assert_eq!(pool.source().created, [256 * KIB, 44 * KIB]);
    // Nothing is lost: with room again the same request is met.
    for block in [small, filler, tail] {
        assert!(pool.free(block));
    }
    pool.allocate(256 * KIB + 256)?;
    assert_eq!(pool.statistics().regions, 1);
    check_invariants(&pool);
    Ok(())
}

#[test]
fn idle_regions_are_traded_in_for_a_larger_one() -> Result<(), Box<Full>> {
    let mut pool = Pool::new(Device::new(), NO_LIMIT);
    let small = pool.allocate(MIB)?;
    assert!(pool.free(small));
    let busy = pool.allocate(MIB)?;
    assert_eq!(pool.source().created, [MIB], "what is free is used first");
    pool.allocate(2 * MIB)?;
    assert_eq!(pool.source().destroyed.len(), 0, "a region in use stays");
    assert!(pool.free(busy));
    pool.allocate(3 * MIB)?;
    assert_eq!(pool.source().destroyed, [0]);
    assert_eq!(pool.statistics().reserved, 5 * MIB);
    Ok(())
}

#[test]
fn a_failure_under_a_budget_keeps_regions_that_would_not_help() -> Result<(), Box<Full>> {
    let mut pool = Pool::new(Device::new(), with_limit(8 * MIB));
    let busy = pool.allocate(6 * MIB)?;
    let idle = pool.allocate(MIB)?;
    assert!(pool.free(idle));
    assert_eq!(pool.statistics().regions, 2);
    let full = pool.allocate(3 * MIB).expect_err("over the budget");
    assert_eq!(full.reason, FullReason::OverBudget);
    assert_eq!(pool.statistics().regions, 2);
    // Here the idle region goes back, and its bytes are used anew.
    pool.allocate(2 * MIB)?;
    assert_eq!(pool.source().destroyed, [1]);
    assert_eq!(pool.statistics().reserved, 8 * MIB);
    assert!(pool.free(busy));
    Ok(())
}

/// Where holes that fit nothing are all that is free, regions do not become as many as requests.
#[test]
fn regions_stay_few_where_holes_fit_nothing() -> Result<(), Box<Full>> {
    let mut pool = Pool::new(Device::new(), NO_LIMIT);
    let mut blocks = Vec::new();
    for _ in 0..4096 {
        blocks.push(pool.allocate(MIB / 2)?);
    }
    for &block in blocks.iter().step_by(2) {
        assert!(pool.free(block));
    }
    for _ in 0..8192 {
        pool.allocate(MIB)?;
    }
    let regions = pool.statistics().regions;
    assert!(regions < 700, "{regions} regions");
    Ok(())
}

/// What fits a free chunk is not refused because the budget was lowered meanwhile.
#[test]
fn a_lowered_budget_leaves_what_is_there() -> Result<(), Box<Full>> {
    let mut pool = Pool::new(Device::new(), NO_LIMIT);
    let idle = pool.allocate(100 * MIB)?;
    pool.allocate(100 * MIB)?;
    assert!(pool.free(idle));
    pool.set_limit(Some(80 * MIB));
    pool.allocate(50 * MIB)?;
    assert_eq!(pool.statistics().reserved, 200 * MIB);
    Ok(())
}

#[test]
fn full_says_what_would_help() {
    let mut pool = Pool::new(Device::new(), with_limit(4 * MIB));
    let blocks: Vec<_> = (0..32).flat_map(|_| pool.allocate(MIB / 8)).collect();
    for block in blocks.into_iter().step_by(2) {
        assert!(pool.free(block));
    }
    let scattered = pool.allocate(MIB).expect_err("only holes are left");
    assert_eq!(
        scattered.to_string(),
        "out of memory: asked for 1.0 MiB (1048576 bytes), which the budget does not allow; \
         budget 4.0 MiB; 2.0 MiB in use (blocks: 16); 4.0 MiB reserved (regions: 16); 2.0 MiB free, \
         the largest hole 128.0 KiB, 128.0 KiB by moving blocks together; \
         2.0 MiB not pinned, which spilling could free; what would help: moving blocks together, \
         or spilling where that was not enough (enough is free, in pieces)"
    );
    let help = |full: Box<Full>| {
        full.to_string()
            .rsplit_once(": ")
            .map(|(_, help)| help.to_owned())
    };
    let over = pool.allocate(3 * MIB).expect_err("over the budget");
    assert_eq!(
        help(over).as_deref(),
        Some("freeing tensors, spilling them, or a higher budget")
    );
    let larger = pool.allocate(1 << 40).expect_err("over the region limit");
    assert_eq!(help(larger).as_deref(), Some("smaller pieces"));
    assert_eq!(pool.statistics().fragmentation(), 0.9375);
}

#[test]
fn a_dropped_pool_destroys_its_regions() -> Result<(), Box<Full>> {
    struct Counted(Rc<RefCell<Vec<u64>>>);
    impl RegionSource for Counted {
        type Region = u64;
        fn create(&mut self, bytes: u64) -> Result<u64, Refused> {
            self.0.borrow_mut().push(bytes);
            Ok(bytes)
        }
        fn destroy(&mut self, region: u64) {
            self.0.borrow_mut().retain(|&bytes| bytes != region);
        }
    }
    let held = Rc::new(RefCell::new(Vec::new()));
    let mut pool = Pool::new(Counted(held.clone()), NO_LIMIT);
    pool.allocate(MIB)?;
    pool.allocate(3 * MIB)?;
    assert_eq!(*held.borrow(), [MIB, 3 * MIB]);
    drop(pool);
    assert!(held.borrow().is_empty());
    Ok(())
}

/// Replays a trace; returns peak reserved over the peak of the bytes asked for.
fn replay(name: &str, max_region: u64) -> f64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let text = std::fs::read_to_string(folder.join(format!("{name}.trace"))).expect("the trace");
    let mut pool = Pool::new(
        Device::new(),
        PoolConfig {
            max_region,
            ..NO_LIMIT
        },
    );
    let mut blocks = std::collections::HashMap::new();
    let (mut live, mut peak_live) = (0, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["a", id, bytes] => {
                let bytes: u64 = bytes.parse().expect("a number of bytes");
                let block = pool.allocate(bytes).expect("no budget is set");
                blocks.insert(id, (block, bytes));
                live += bytes;
                peak_live = peak_live.max(live);
            }
            ["f", id] => {
                let (block, bytes) = blocks.remove(id).expect("allocated before");
                assert!(pool.free(block));
                live -= bytes;
            }
            _ => panic!("not a line of a trace: {line}"),
        }
    }
    check_invariants(&pool);
    let ratio = pool.statistics().peak_reserved as f64 / peak_live as f64;
    println!("{name} with regions up to {max_region}: {ratio:.3}");
    ratio
}

#[test]
fn traces_reserve_little_more_than_they_use() {
    for max_region in [(1 << 31) - 1, 256 * MIB, 40 * MIB] {
        for name in ["gpt2_train", "llm_decode", "lstm_train", "resnet_train"] {
            let ratio = replay(name, max_region);
            assert!(ratio <= 1.10, "{name}: {ratio}");
        }
    }
}
