//! The allocator with everything in the mix (moves, pins, spills, limits that change, refusals, trims),
//! over a million random events: after each, memory holds what it must, and the account is exact.

use orlop::memory::{self, Growth, QUANTUM};

mod random;
mod world;

use random::Random;
use world::{Event, World};

const MIB: u64 = 1 << 20;

/// What a random event is like in one run.
#[derive(Clone, Copy)]
struct Mix {
    growth: Growth,
    limit: Option<u64>,
    max_region: u64,
    capacity: u64,
    /// Blocks are at most so large.
    most: u64,
    /// Of a thousand events so many change the limit or the capacity, or are refusals.
    trouble: u64,
}

impl Mix {
    fn event(&self, random: &mut Random, fill_percent: u64) -> Event {
        let which = random.below(1 << 16);
        let size = |random: &mut Random| match random.below(8) {
            0 => random.below(600),
            1..=3 => QUANTUM * (1 + random.below(8)),
            4 if random.below(20) == 0 => self.most * 2,
            _ => random.below(self.most),
        };
        match random.below(1000) {
            0..8 => Event::Pin { which },
            8..16 => Event::Unpin { which },
            16..36 => Event::Busy { which },
            36..50 => Event::Spill { which },
            50..70 => Event::Refault,
            70..72 => Event::Trim,
            72..76 => Event::TrimTo {
                bytes: random.below(2 * MIB),
            },
            76..78 => Event::ResetPeaks,
            roll if roll < 78 + self.trouble => match random.below(3) {
                0 => Event::Limit {
                    bytes: self.limit.map(|limit| limit / 2 + random.below(limit)),
                },
                1 => Event::Capacity {
                    bytes: self.capacity / 2 + random.below(self.capacity / 2),
                },
                _ => Event::Refuse {
                    times: random.below(4) as u32,
                },
            },
            _ if random.below(100) < fill_percent => Event::Allocate {
                bytes: size(random),
                moving: random.below(4) > 0,
            },
            _ => Event::Free { which },
        }
    }

    /// Lives through `events` events; where everything lay at the end, and what was moved on the way.
    fn live(&self, seed: u64, events: u64) -> (Vec<(u64, u64, bool)>, World) {
        let mut random = Random(seed);
        let mut world = World::new(self.growth, self.limit, self.max_region, self.capacity);
        let mut fill_percent = 70;
        for _ in 0..events {
            if random.below(150) == 0 {
                fill_percent = [90, 70, 55, 50, 35, 0][random.below(6) as usize];
            }
            let event = self.event(&mut random, fill_percent);
            let full = world.live() >= 100;
            if full && matches!(event, Event::Allocate { .. } | Event::Refault) {
                continue;
            }
            world.happen(event);
            world.check();
        }
        world.check();
        let regions: Vec<_> = world.pool.regions().collect();
        let chunks = regions
            .iter()
            .flat_map(|(region, _)| world.pool.chunks(*region));
        let map = chunks.map(|chunk| (chunk.offset, chunk.bytes, chunk.block.is_some()));
        (map.collect(), world)
    }

    /// For several seeds; blocks must have moved, and requests must have failed.
    fn holds(&self, seeds: u64, events: u64) {
        let (mut moves, mut failures) = (0, 0);
        for seed in 0..seeds {
            println!("seed {seed}");
            let (_, world) = self.live(seed, events);
            moves += world.moves;
            failures += world.failures;
        }
        println!("{moves} moves, {failures} failures");
        assert!(moves > seeds * 20, "only {moves} blocks were moved");
        assert!(failures > seeds, "only {failures} requests failed");
    }
}

const BUDGET: Mix = Mix {
    growth: Growth::Proportional,
    limit: Some(512 << 10),
    max_region: MIB,
    capacity: 4 * MIB,
    most: 24 << 10,
    trouble: 0,
};

#[test]
fn with_a_budget() {
    BUDGET.holds(4, 100_000);
}

#[test]
fn with_small_regions() {
    let mix = Mix {
        max_region: 48 << 10,
        ..BUDGET
    };
    mix.holds(3, 100_000);
}

#[test]
fn with_budgets_that_change_and_refusals() {
    let mix = Mix {
        limit: Some(600 << 10),
        capacity: MIB,
        trouble: 12,
        ..BUDGET
    };
    mix.holds(3, 100_000);
}

#[test]
fn with_each_growth_policy() {
    for growth in [
        Growth::Step { bytes: 64 << 10 },
        Growth::Doubling { first: 16 << 10 },
        Growth::PreallocateBytes { bytes: 400 << 10 },
        Growth::Budget,
    ] {
        println!("{growth:?}");
        let mix = Mix { growth, ..BUDGET };
        mix.holds(1, 100_000);
    }
}

#[test]
fn the_same_events_give_the_same_places() {
    let mix = Mix {
        trouble: 8,
        ..BUDGET
    };
    let (first, _) = mix.live(9, 30_000);
    let (second, _) = mix.live(9, 30_000);
    assert_eq!(first, second);
}

/// Idle regions are kept whole in a pool's first events only, and until the first refusal: so many pools begin.
#[test]
fn with_young_pools() {
    let mix = Mix {
        limit: Some(1200 << 10),
        trouble: 120,
        most: 200 << 10,
        ..BUDGET
    };
    for seed in 0..2000 {
        println!("seed {seed}");
        mix.live(seed, 400);
    }
}
