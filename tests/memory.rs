//! The allocator against a naive oracle, at its edges, and on recorded traces.

mod oracle;
mod random;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use orlop::memory::{
    BlockId, CallSite, Chunk, Full, FullReason, Growth, MemoryStatistics, Pool, PoolConfig,
    QUANTUM, Refused, RegionId, RegionSource,
};

use oracle::{Device, Oracle};
use random::Random;

/// Random events for each seed: over all tests 4.4 million.
const EVENTS: u64 = 200_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The account without figures over time, which `tests/statistics.rs` checks.
fn moment(mut statistics: MemoryStatistics) -> MemoryStatistics {
    statistics.counts = Default::default();
    statistics.events = Default::default();
    statistics
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
            ..
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
            for _ in 0..300 {
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
        ("refusals", NO_LIMIT, 3000),
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
    // Seldom, so that what a refusal changes comes late, after peaks were reset, too.
    let device = |seed| Device {
        random: Random(seed),
        refuse_once_in: 500,
        ..Device::new()
    };
    against_the_oracle("few refusals", NO_LIMIT, device, 6);
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

/// Where an adapter makes no region as large as the budget, requests of one size have all of it, but for what is less than one.
#[test]
fn budgets_of_many_regions_are_used_up() -> Result<(), Box<Full>> {
    const BUDGET: u64 = 24 << 30;
    for growth in [Growth::Budget, Growth::Proportional] {
        for size in [1100, 1024, 700, 512, 256, 1] {
            let config = PoolConfig {
                limit: Some(BUDGET),
                max_region: (1 << 31) - 1,
                growth,
            };
            let mut pool = Pool::new(Device::new(), config);
            let mut blocks = 0;
            while pool.allocate(size * MIB).is_ok() {
                blocks += 1;
            }
            let most = BUDGET / MIB / size;
            assert!(
                blocks == most,
                "{growth:?}: {blocks} of {most} blocks of {size} MiB"
            );
        }
    }
    Ok(())
}

/// A request beyond what a source ever gave leaves the pool's ways as they were; one within that does not.
#[test]
fn a_request_beyond_reason_changes_no_policy() -> Result<(), Box<Full>> {
    let trades = |pool: &mut Pool<Device>| -> Result<bool, Box<Full>> {
        pool.trim();
        let idle = pool.allocate(16 * MIB)?;
        assert!(pool.free(idle));
        let small = pool.allocate(MIB)?;
        let reserved = pool.statistics().reserved;
        assert!(pool.free(small));
        Ok(reserved == MIB)
    };
    let mut pool = Pool::new(Device::with_capacity(64 * MIB), NO_LIMIT);
    assert!(trades(&mut pool)?);
    let absurd = pool.allocate(1 << 30).expect_err("more than there is");
    assert!(
        matches!(absurd.reason, FullReason::Refused(_)),
        "{absurd:?}"
    );
    assert!(trades(&mut pool)?, "memory is as it was");
    // Now another program has what this one had.
    pool.trim();
    pool.source_mut().capacity = 8 * MIB;
    pool.allocate(16 * MIB).expect_err("no longer there");
    pool.source_mut().capacity = 64 * MIB;
    assert!(!trades(&mut pool)?, "memory is short");
    Ok(())
}

/// A program that repeats itself has come to regions that stay: they do after it has asked for more than its budget, too,
/// or it comes to some again where those went back for more than there is.
#[test]
fn a_request_over_the_budget_unsettles_nothing() -> Result<(), Box<Full>> {
    let step = |pool: &mut Pool<Device>| -> Result<u64, Box<Full>> {
        for bytes in [16 * MIB, MIB, 20 * MIB, 300 << 10] {
            let first = pool.allocate(bytes)?;
            let second = pool.allocate(bytes / 2)?;
            assert!(pool.free(first) && pool.free(second));
        }
        Ok(pool.statistics().counts.regions.allocated)
    };
    let settles = |pool: &mut Pool<Device>| -> Result<u64, Box<Full>> {
        for _ in 0..1000 {
            step(pool)?;
        }
        let before = step(pool)?;
        assert_eq!(step(pool)?, before, "regions stay");
        Ok(before)
    };
    let mut pool = Pool::new(Device::new(), with_limit(64 * MIB));
    let before = settles(&mut pool)?;
    pool.allocate(65 * MIB).expect_err("over the budget");
    for _ in 0..10 {
        assert_eq!(step(&mut pool)?, before);
    }
    let mut pool = Pool::new(Device::with_capacity(64 * MIB), NO_LIMIT);
    for _ in 0..3 {
        settles(&mut pool)?;
        pool.allocate(1 << 46).expect_err("more than there is");
    }
    settles(&mut pool)?;
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

/// The largest idle regions go first, and no more than have to.
#[test]
fn the_largest_idle_regions_are_trimmed() {
    let growth = Growth::Step { bytes: MIB };
    let mut pool = Pool::new(Device::new(), PoolConfig { growth, ..NO_LIMIT });
    let blocks = [1, 4, 2].map(|size| pool.allocate(size * MIB).expect("there is no limit"));
    assert!(blocks.into_iter().all(|block| pool.free(block)));
    assert_eq!(pool.trim_to(5 * MIB).len(), 1);
    assert_eq!(pool.statistics().reserved, 3 * MIB);
    assert!(pool.trim_to(3 * MIB).is_empty());
}

/// What a source has left beside large regions is not taken in crumbs.
#[test]
fn preallocation_leaves_crumbs() {
    let growth = Growth::PreallocateBytes {
        bytes: 2000 * QUANTUM,
    };
    let source = Device::with_capacity(1000 * QUANTUM);
    let pool = Pool::new(source, PoolConfig { growth, ..NO_LIMIT });
    let statistics = pool.statistics();
    assert_eq!(statistics.regions, 1);
    assert!(statistics.reserved > 900 * QUANTUM);
}

/// A call site goes with its block, after a history has ended too.
#[test]
fn call_sites_go_with_their_blocks() -> Result<(), Box<Full>> {
    let mut pool = Pool::new(Device::new(), NO_LIMIT);
    let first = pool.allocate(QUANTUM)?;
    assert!(pool.set_call_site(first, CallSite::new("make", "make.rs", 1)));
    pool.record_history(4);
    pool.record_history(0);
    assert!(pool.free(first));
    pool.allocate(QUANTUM)?;
    let regions = pool.snapshot().regions;
    let mut chunks = regions.iter().flat_map(|region| &region.chunks);
    let block = chunks.find_map(|chunk| chunk.block.as_ref());
    assert_eq!(block.expect("one is in use").call_site, None);
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
        "out of memory: asked for 1.0 MiB (1048576 bytes), which takes 1.0 MiB, more than the budget leaves; \
         budget 4.0 MiB; 2.0 MiB in use (blocks: 16); 4.0 MiB reserved (regions: 16); 2.0 MiB free, \
         the largest hole 128.0 KiB, 128.0 KiB by moving blocks together; \
         2.0 MiB not pinned, which spilling could free; what would help: moving blocks together (`WhenFull::Relocate`, the \
         default), where that was not tried, or spilling (enough is free, in pieces)"
    );
    let help = |full: Box<Full>| {
        full.to_string()
            .rsplit_once(": ")
            .map(|(_, help)| help.to_owned())
    };
    let over = pool.allocate(3 * MIB).expect_err("over the budget");
    assert_eq!(
        help(over).as_deref(),
        Some(
            "freeing tensors, spilling them (`WhenFull::SpillToHost`, with a larger `most` where it has one), or a higher budget"
        )
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
