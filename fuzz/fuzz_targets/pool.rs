//! A pool lives through events that the input tells, and every promise is checked after each.

#![no_main]

// The allocator knows nothing but the standard library, so it is compiled here by itself, with the
// fuzzer's instruments; the rest of the crate needs none.
#[path = "../../src/memory/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub)]
mod memory;
#[path = "../../tests/world/mod.rs"]
mod world;

use libfuzzer_sys::fuzz_target;
use memory::{Growth, QUANTUM};
use world::{Event, World};

/// Blocks at a time: a check walks over all of them.
const MOST_BLOCKS: usize = 64;
/// Memory that the simulated device has at most.
const MOST: u64 = 4 << 20;

/// Reads numbers from the input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    fn short(&mut self) -> u64 {
        u64::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    /// A budget: mostly one that is soon reached.
    fn limit(&mut self) -> Option<u64> {
        match self.byte() % 8 {
            0 => None,
            1 => Some(self.bytes().min(MOST)),
            _ => Some((1 + self.short() % 512) * QUANTUM),
        }
    }

    /// Sizes of all orders of magnitude up to the device's memory, and now and then beyond.
    fn bytes(&mut self) -> u64 {
        let size = self.short();
        match size & 7 {
            0 => size >> 3,
            1..=4 => (1 + (size >> 3) % 64) * QUANTUM,
            5 => ((size >> 3) % 512) << 10,
            6 => ((size >> 3) % 64) << 16,
            _ => (size >> 3) << (size % 50),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let growth = match input.byte() % 7 {
        0 | 1 => Growth::Proportional,
        5 => Growth::Budget,
        2 => Growth::Step {
            bytes: input.bytes().min(MOST),
        },
        3 => Growth::Doubling {
            first: input.bytes().min(MOST),
        },
        4 => Growth::PreallocateBytes {
            bytes: input.bytes().min(MOST),
        },
        _ => Growth::Step { bytes: QUANTUM },
    };
    let limit = input.limit();
    let max_region = match input.byte() % 3 {
        0 => MOST,
        1 => 64 << 10,
        // Thousands of regions only take time.
        _ => input.bytes().clamp(4 << 10, MOST),
    };
    let mut world = World::new(growth, limit, max_region, MOST);
    while !input.0.is_empty() {
        let event = match input.byte() % 32 {
            0..=7 => Event::Allocate {
                bytes: input.bytes(),
                moving: true,
            },
            8..=11 => Event::Allocate {
                bytes: input.bytes(),
                moving: false,
            },
            12..=19 => Event::Free {
                which: input.short(),
            },
            20 => Event::Pin {
                which: input.short(),
            },
            21 => Event::Unpin {
                which: input.short(),
            },
            22 => Event::Busy {
                which: input.short(),
            },
            23 => Event::Spill {
                which: input.short(),
            },
            24 | 25 => Event::Refault,
            26 => Event::Trim,
            27 => Event::TrimTo {
                bytes: input.bytes(),
            },
            28 => Event::Limit {
                bytes: input.limit(),
            },
            29 => Event::Capacity {
                bytes: input.bytes().min(MOST),
            },
            30 => Event::Refuse {
                times: u32::from(input.byte() % 8),
            },
            _ => Event::ResetPeaks,
        };
        let full = world.live() >= MOST_BLOCKS;
        if full && matches!(event, Event::Allocate { .. } | Event::Refault) {
            continue;
        }
        world.happen(event);
        world.check();
    }
});
