//! The account against a naive model: after each of many random calls every figure is what sums over a
//! list of blocks and a walk over all chunks say.

mod random;

use std::collections::BTreeMap;

use orlop::memory::{
    BlockId, Count, EventKind, Growth, Move, Mover, Pool, PoolConfig, QUANTUM, Refused, RegionId,
    RegionSource, Request, Tag,
};

use random::Random;

const STEPS: u64 = 30_000;

/// Gives regions of nothing within a capacity, and counts them.
#[derive(Default)]
struct Source {
    capacity: u64,
    held: u64,
    made: [u64; 2],
    returned: [u64; 2],
}

impl RegionSource for Source {
    type Region = u64;

    fn create(&mut self, bytes: u64) -> Result<u64, Refused> {
        if self.held + bytes > self.capacity {
            return Err(Refused("full".into()));
        }
        self.held += bytes;
        self.made = [self.made[0] + 1, self.made[1] + bytes];
        Ok(bytes)
    }

    fn destroy(&mut self, bytes: u64) {
        self.held -= bytes;
        self.returned = [self.returned[0] + 1, self.returned[1] + bytes];
    }
}

struct Block {
    id: BlockId,
    requested: u64,
    rounded: u64,
    tag: Tag,
}

/// Blocks, bytes and bytes asked for: totals and peaks as plainly as can be.
#[derive(Clone, Copy, Default)]
struct Figures {
    peak: [u64; 3],
    allocated: [u64; 3],
    freed: [u64; 3],
}

impl Figures {
    fn counts(&self, now: [u64; 3]) -> [Count; 3] {
        [0, 1, 2].map(|at| Count {
            current: now[at],
            peak: self.peak[at],
            allocated: self.allocated[at],
            freed: self.freed[at],
        })
    }
}

fn plus<const N: usize>(a: [u64; N], b: [u64; N]) -> [u64; N] {
    std::array::from_fn(|at| a[at] + b[at])
}

fn higher<const N: usize>(a: [u64; N], b: [u64; N]) -> [u64; N] {
    std::array::from_fn(|at| a[at].max(b[at]))
}

struct Model {
    pool: Pool<Source>,
    blocks: Vec<Block>,
    all: Figures,
    tags: Vec<(Tag, Figures)>,
    largest: u64,
    failures: u64,
    failures_in_all: u64,
    peak_regions: [u64; 2],
    /// What the source counted when totals were reset.
    before: [[u64; 2]; 2],
    peak_splits: [u64; 2],
    /// The free chunks in regions that also hold blocks, after the last step: region, offset, bytes.
    last_splits: Vec<(RegionId, u64, u64)>,
    splits_made: [u64; 2],
    splits_gone: [u64; 2],
}

impl Model {
    fn new(config: PoolConfig, capacity: u64) -> Model {
        let tags = ["", "a", "a/b", "c"].map(|name| (Tag::named(name), Figures::default()));
        let source = Source {
            capacity,
            ..Source::default()
        };
        Model {
            pool: Pool::new(source, config),
            blocks: Vec::new(),
            all: Figures::default(),
            tags: tags.to_vec(),
            largest: 0,
            failures: 0,
            failures_in_all: 0,
            peak_regions: [0; 2],
            before: [[0; 2]; 2],
            peak_splits: [0; 2],
            last_splits: Vec::new(),
            splits_made: [0; 2],
            splits_gone: [0; 2],
        }
    }

    fn now(&self, tag: Option<Tag>) -> [u64; 3] {
        self.blocks
            .iter()
            .filter(|block| tag.is_none_or(|tag| block.tag == tag))
            .fold([0; 3], |sum, block| {
                plus(sum, [1, block.rounded, block.requested])
            })
    }

    /// Free chunks in regions that also hold blocks, and their bytes.
    fn splits(&mut self) -> [u64; 2] {
        let mut now = Vec::new();
        for (region, _) in self.pool.regions() {
            let chunks: Vec<_> = self.pool.chunks(region).collect();
            if chunks.iter().any(|chunk| chunk.block.is_some()) {
                let free = chunks.iter().filter(|chunk| chunk.block.is_none());
                now.extend(free.map(|chunk| (region, chunk.offset, chunk.bytes)));
            }
        }
        let sum = |chunks: &[(RegionId, u64, u64)], other: &[(RegionId, u64, u64)]| {
            let apart = chunks.iter().filter(|chunk| !other.contains(chunk));
            apart.fold([0; 2], |sum, chunk| plus(sum, [1, chunk.2]))
        };
        self.splits_made = plus(self.splits_made, sum(&now, &self.last_splits));
        self.splits_gone = plus(self.splits_gone, sum(&self.last_splits, &now));
        let all = sum(&now, &[]);
        self.last_splits = now;
        all
    }

    fn regions(&self) -> [u64; 2] {
        self.pool
            .regions()
            .fold([0; 2], |sum, (_, bytes)| plus(sum, [1, bytes]))
    }

    fn allocate(&mut self, requested: u64, tag: usize) {
        let (name, figures) = &mut self.tags[tag];
        let tag = *name;
        let bytes = requested;
        match self.pool.allocate(Request::new(bytes, tag)) {
            Ok(id) => {
                let rounded = requested.max(1).next_multiple_of(QUANTUM);
                let amounts = [1, rounded, requested];
                figures.allocated = plus(figures.allocated, amounts);
                self.all.allocated = plus(self.all.allocated, amounts);
                self.largest = self.largest.max(rounded);
                self.blocks.push(Block {
                    id,
                    requested,
                    rounded,
                    tag,
                });
            }
            Err(full) => {
                self.failures += 1;
                self.failures_in_all += 1;
                assert_eq!(full.statistics.events.failures, self.failures);
            }
        }
    }

    fn free(&mut self, at: usize) {
        let block = self.blocks.swap_remove(at);
        assert!(self.pool.free(block.id));
        assert!(!self.pool.free(block.id), "a stale id is in no account");
        let amounts = [1, block.rounded, block.requested];
        self.all.freed = plus(self.all.freed, amounts);
        for (_, figures) in self.tags.iter_mut().filter(|tag| tag.0 == block.tag) {
            figures.freed = plus(figures.freed, amounts);
        }
    }

    fn reset_peaks(&mut self) {
        self.pool.reset_peaks();
        self.largest = 0;
        self.all.peak = [0; 3];
        self.tags.iter_mut().for_each(|tag| tag.1.peak = [0; 3]);
        self.peak_regions = [0; 2];
        self.peak_splits = [0; 2];
    }

    fn reset_totals(&mut self) {
        self.pool.reset_totals();
        self.failures = 0;
        for figures in self.tags.iter_mut().map(|tag| &mut tag.1) {
            (figures.allocated, figures.freed) = ([0; 3], [0; 3]);
        }
        (self.all.allocated, self.all.freed) = ([0; 3], [0; 3]);
        (self.splits_made, self.splits_gone) = ([0; 2], [0; 2]);
        self.before = [self.pool.source().made, self.pool.source().returned];
    }

    fn check(&mut self) {
        let now = self.now(None);
        self.all.peak = higher(self.all.peak, now);
        let (splits, regions) = (self.splits(), self.regions());
        self.peak_splits = higher(self.peak_splits, splits);
        self.peak_regions = higher(self.peak_regions, regions);

        let told = self.pool.statistics();
        let counts = told.counts;
        assert_eq!(
            [
                counts.blocks,
                counts.allocated_bytes,
                counts.requested_bytes
            ],
            self.all.counts(now)
        );
        let source = self.pool.source();
        let expected = [0, 1].map(|at| Count {
            current: regions[at],
            peak: self.peak_regions[at],
            allocated: source.made[at] - self.before[0][at],
            freed: source.returned[at] - self.before[1][at],
        });
        assert_eq!([counts.regions, counts.reserved_bytes], expected);
        let expected = [0, 1].map(|at| Count {
            current: splits[at],
            peak: self.peak_splits[at],
            allocated: self.splits_made[at],
            freed: self.splits_gone[at],
        });
        assert_eq!([counts.splits, counts.split_bytes], expected);
        assert_eq!(counts.largest_allocation, self.largest);
        assert_eq!(told.events.failures, self.failures);
        assert_eq!((told.live_blocks, told.allocated), (now[0], now[1]));
        assert_eq!(told.peak_allocated, self.all.peak[1]);
        assert_eq!((told.regions, told.reserved), (regions[0], regions[1]));
        assert_eq!(told.peak_reserved, self.peak_regions[1]);
        assert_eq!(told.free, regions[1] - now[1]);

        let by_tag = self.pool.by_tag();
        let holds = by_tag.iter().map(|tag| tag.allocated_bytes.current);
        assert!(holds.rev().is_sorted(), "those that hold most come first");
        for at in 0..self.tags.len() {
            let tag = self.tags[at].0;
            let now = self.now(Some(tag));
            let figures = &mut self.tags[at].1;
            figures.peak = higher(figures.peak, now);
            let expected = figures.counts(now);
            let told = by_tag.iter().find(|told| told.tag == tag);
            let told = told.map_or([Count::default(); 3], |told| {
                [told.blocks, told.allocated_bytes, told.requested_bytes]
            });
            assert_eq!(told, expected, "{tag}");
        }
    }

    fn live_through(&mut self, random: &mut Random) {
        let mut fill = 70;
        for _ in 0..STEPS {
            match random.below(1000) {
                0..4 => {
                    self.pool.trim();
                }
                4 => self.reset_peaks(),
                5 => self.reset_totals(),
                6..14 => fill = [95, 70, 50, 35, 0][random.below(5) as usize],
                step if step % 100 < fill && self.blocks.len() < 60 => {
                    let most = 1 << random.below(19);
                    let bytes = random.below(1 + most);
                    self.allocate(bytes, random.below(4) as usize);
                }
                _ if !self.blocks.is_empty() => {
                    let at = random.below(self.blocks.len() as u64) as usize;
                    self.free(at);
                }
                _ => {}
            }
            self.check();
        }
    }
}

#[test]
fn every_figure_is_exact_at_each_step() {
    const MIB: u64 = 1 << 20;
    let bounds = [
        (None, u64::MAX >> 1),
        (Some(MIB), u64::MAX >> 1),
        (None, 3 * MIB / 4),
        (Some(MIB), 3 * MIB / 4),
    ];
    for (seed, (limit, capacity)) in (1..).zip(bounds) {
        let config = PoolConfig {
            growth: Growth::Proportional,
            limit,
            max_region: MIB,
        };
        let mut model = Model::new(config, capacity);
        model.live_through(&mut Random(seed));
        assert_eq!(model.failures_in_all > 0, seed > 1, "bounds were reached");
    }
}

#[test]
fn what_a_request_says_is_kept() {
    let config = PoolConfig {
        growth: Growth::Proportional,
        limit: None,
        max_region: u64::MAX,
    };
    let mut pool = Pool::new(
        Source {
            capacity: u64::MAX,
            ..Source::default()
        },
        config,
    );
    let inside = orlop::tagged("net", || orlop::tagged("layer", || Request::tagged(300)));
    pool.allocate(inside).expect("there is room");
    pool.allocate(1000).expect("there is room");
    let by_tag = pool.by_tag();
    let told: Vec<_> = by_tag
        .iter()
        .map(|tag| {
            let bytes = (tag.allocated_bytes.current, tag.requested_bytes.current);
            (tag.tag.to_string(), bytes)
        })
        .collect();
    let expected = [
        ("(untagged)".to_owned(), (1024, 1000)),
        ("net/layer".to_owned(), (512, 300)),
    ];
    assert_eq!(told, expected);
    assert_eq!(pool.statistics().counts.requested_bytes.current, 1300);
}

/// A full pool names who holds most, and nobody where nothing has a tag.
#[test]
fn full_names_the_largest_holders() {
    let config = PoolConfig {
        growth: Growth::Proportional,
        limit: Some(1 << 20),
        max_region: u64::MAX,
    };
    let source = || Source {
        capacity: u64::MAX,
        ..Source::default()
    };
    let mut pool = Pool::new(source(), config);
    for (tag, quanta) in [("a", 2), ("b", 30), ("c/d", 700), ("", 100), ("e", 1)] {
        let (tag, bytes) = (Tag::named(tag), quanta * QUANTUM);
        pool.allocate(Request::new(bytes, tag))
            .expect("there is room");
    }
    let full = pool.allocate(1 << 20).expect_err("over the budget");
    let expected = [("c/d", 700), ("", 100), ("b", 30)];
    let expected = expected.map(|(tag, quanta)| (Tag::named(tag), quanta * QUANTUM, 0));
    let told = full.holders.iter();
    let told: Vec<_> = told.map(|of| (of.tag, of.allocated, of.spilled)).collect();
    assert_eq!(told, expected);
    let text = full.to_string();
    let part = "; held by c/d 175.0 KiB, (untagged) 25.0 KiB, b 7.5 KiB; what would help";
    assert!(text.contains(part), "{text}");

    let mut pool = Pool::new(source(), config);
    pool.allocate(1000).expect("there is room");
    let full = pool.allocate(1 << 20).expect_err("over the budget");
    assert!(!full.to_string().contains("held by"), "{full}");
}

/// Moves nothing: there are no bytes.
struct Nothing;

impl Mover<u64> for Nothing {
    fn move_block(&mut self, _moved: Move<'_, u64>) {}
}

/// Regions that were taken before the history began are in it.
#[test]
fn a_history_begins_with_the_regions_that_are_there() {
    let config = PoolConfig {
        growth: Growth::PreallocateBytes {
            bytes: 10 * QUANTUM,
        },
        limit: None,
        max_region: 4 * QUANTUM,
    };
    let source = Source {
        capacity: u64::MAX,
        ..Source::default()
    };
    let mut pool = Pool::new(source, config);
    pool.record_history(10);
    pool.allocate(5 * QUANTUM).expect_err("over the largest");
    pool.allocate(QUANTUM).expect("there is room");
    let snapshot = pool.snapshot();
    let told: Vec<_> = snapshot.history[..3]
        .iter()
        .map(|event| (event.kind, event.address, event.bytes, event.reserved))
        .collect();
    let created = |at: usize, quanta: u64, reserved: u64| {
        let address = snapshot.regions[at].address;
        let kind = EventKind::RegionCreated;
        (kind, address, quanta * QUANTUM, reserved * QUANTUM)
    };
    let expected = [created(0, 4, 4), created(1, 4, 8), created(2, 2, 10)];
    assert_eq!(told, expected);
}

/// A history that drops nothing tells the present: who lives where, and every sum on the way.
#[test]
fn history_and_snapshot_agree() {
    let config = PoolConfig {
        growth: Growth::Proportional,
        limit: Some(1 << 20),
        max_region: 1 << 18,
    };
    let source = Source {
        capacity: u64::MAX,
        ..Source::default()
    };
    let mut pool = Pool::new(source, config);
    pool.record_history(usize::MAX);
    let mut random = Random(9);
    let mut live = Vec::new();
    let tags = ["", "a", "b"].map(Tag::named);
    for step in 0..20_000u64 {
        if random.below(100) < 55 && live.len() < 200 {
            let bytes = random.below(20_000);
            let tag = tags[random.below(3) as usize];
            let request = Request::new(bytes, tag);
            live.extend(pool.allocate_moving(request, &mut Nothing));
        } else if !live.is_empty() {
            let at = random.below(live.len() as u64) as usize;
            pool.free(live.swap_remove(at));
        }
        if step % 1000 == 0 {
            pool.trim();
        }
    }
    let snapshot = pool.snapshot();
    let events = snapshot.statistics.events;
    assert!(
        events.relocations > 100 && events.failures > 0,
        "{events:?}"
    );
    assert_eq!(snapshot.history_dropped, 0);

    // Address to number, bytes asked for, bytes and tag; address to bytes of regions.
    let mut blocks = BTreeMap::new();
    let mut regions = BTreeMap::new();
    let (mut moved, mut failed) = (0, 0);
    for event in &snapshot.history {
        let block = (event.block, event.requested, event.bytes, event.tag);
        match event.kind {
            EventKind::Allocated => assert_eq!(blocks.insert(event.address, block), None),
            EventKind::Freed => assert_eq!(blocks.remove(&event.address), Some(block)),
            EventKind::RegionCreated => {
                assert_eq!(regions.insert(event.address, event.bytes), None);
            }
            EventKind::RegionReturned => {
                assert_eq!(regions.remove(&event.address), Some(event.bytes));
            }
            EventKind::Relocated { from } => {
                assert_eq!(blocks.remove(&from), Some(block));
                assert_eq!(blocks.insert(event.address, block), None);
                moved += 1;
            }
            EventKind::Failed => failed += 1,
            kind => panic!("{kind:?}"),
        }
        assert_eq!(
            event.allocated,
            blocks.values().map(|block| block.2).sum::<u64>()
        );
        assert_eq!(event.reserved, regions.values().sum::<u64>());
        let (last, region) = (blocks.last_key_value(), regions.last_key_value());
        if let (Some((last, block)), Some((region, bytes))) = (last, region) {
            assert!(last + block.2 <= region + bytes);
        }
    }
    assert_eq!((moved, failed), (events.relocations, events.failures));
    let told: BTreeMap<u64, (u64, u64, u64, Tag)> = snapshot
        .regions
        .iter()
        .flat_map(|region| {
            region.chunks.iter().filter_map(|chunk| {
                let block = chunk.block.as_ref()?;
                let told = (block.number, block.requested, chunk.bytes, block.tag);
                Some((region.address + chunk.offset, told))
            })
        })
        .collect();
    assert_eq!(told, blocks);
    let told: BTreeMap<u64, u64> = snapshot
        .regions
        .iter()
        .map(|region| (region.address, region.bytes))
        .collect();
    assert_eq!(told, regions);
    pool.record_history(0);
    assert!(pool.snapshot().history.is_empty());
}
