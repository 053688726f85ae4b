//! The allocator on recorded traces: reserved over peak live, and nanoseconds per allocate + free.
//!
//! `cargo bench --bench memory [-- --json]`: a table, or one JSON object a line.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use orlop::memory::{BlockId, Growth, Pool, PoolConfig, Refused, RegionSource};

const TRACES: [&str; 4] = ["gpt2_train", "llm_decode", "lstm_train", "resnet_train"];
/// What WebGPU implementations commonly allow a buffer.
const MAX_REGION: u64 = (1 << 31) - 1;
/// A figure of time is the median of this many replays of a trace, each in a new pool.
const REPEATS: usize = 31;

/// One line of a trace; ids are replaced by dense indices.
#[derive(Clone, Copy)]
enum Event {
    Allocate { index: usize, bytes: u64 },
    Free { index: usize },
}

struct Trace {
    events: Vec<Event>,
    allocations: usize,
    peak_live: u64,
}

impl Trace {
    fn read(name: &str) -> Result<Trace, Box<dyn std::error::Error>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
        let text = std::fs::read_to_string(folder.join(format!("{name}.trace")))?;
        let mut indices = std::collections::HashMap::new();
        let mut sizes = Vec::new();
        let mut events = Vec::new();
        let (mut live, mut peak_live) = (0, 0);
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["a", id, bytes] => {
                    let (index, bytes) = (sizes.len(), bytes.parse()?);
                    indices.insert(id, index);
                    sizes.push(bytes);
                    live += bytes;
                    peak_live = peak_live.max(live);
                    events.push(Event::Allocate { index, bytes });
                }
                ["f", id] => {
                    let index = indices.remove(id).ok_or("freed, but not allocated")?;
                    live -= sizes[index];
                    events.push(Event::Free { index });
                }
                _ => return Err(format!("not a line of a trace: {line}").into()),
            }
        }
        Ok(Trace {
            events,
            allocations: sizes.len(),
            peak_live,
        })
    }

    /// Replays the trace; the nanoseconds per allocation, its free included, and the pool after it.
    fn replay(&self, source: Source) -> Result<(f64, Pool<Source>), Box<dyn std::error::Error>> {
        let config = PoolConfig {
            growth: Growth::default(),
            limit: None,
            max_region: MAX_REGION,
        };
        let mut pool = Pool::new(source, config);
        let mut blocks: Vec<Option<BlockId>> = vec![None; self.allocations];
        let start = Instant::now();
        for &event in &self.events {
            match event {
                Event::Allocate { index, bytes } => blocks[index] = Some(pool.allocate(bytes)?),
                Event::Free { index } => {
                    if let Some(block) = blocks[index] {
                        black_box(pool.free(block));
                    }
                }
            }
        }
        let nanoseconds = start.elapsed().as_nanos() as f64;
        Ok((nanoseconds / self.allocations as f64, pool))
    }

    /// Median time of `REPEATS` replays, peak reserved bytes, and regions made.
    fn measure(&self) -> Result<Figures, Box<dyn std::error::Error>> {
        let mut times = Vec::new();
        let mut figures = Figures::default();
        for _ in 0..REPEATS {
            let (time, pool) = self.replay(Source::default())?;
            times.push(time);
            figures.peak_reserved = pool.statistics().peak_reserved;
            figures.regions_made = pool.source().made;
        }
        times.sort_by(f64::total_cmp);
        figures.nanoseconds = times[times.len() / 2];
        Ok(figures)
    }

    /// Peak reserved bytes under the growth rule of TensorFlow: the next region is 2 MiB, 4 MiB,
    /// 8 MiB and so on (doubled further until the request fits), and none is ever returned.
    fn doubling_peak(&self) -> u64 {
        let mut heap = DoublingHeap::default();
        let mut places = vec![(0, 0, 0); self.allocations];
        for &event in &self.events {
            match event {
                Event::Allocate { index, bytes } => places[index] = heap.allocate(bytes),
                Event::Free { index } => heap.free(places[index]),
            }
        }
        heap.reserved
    }
}

#[derive(Default)]
struct Figures {
    nanoseconds: f64,
    peak_reserved: u64,
    regions_made: u64,
}

/// Makes regions out of nothing, and counts them.
#[derive(Default)]
struct Source {
    made: u64,
}

impl RegionSource for Source {
    type Region = ();

    fn create(&mut self, _bytes: u64) -> Result<(), Refused> {
        self.made += 1;
        Ok(())
    }
}

/// Plain best fit over regions that double: free chunks as (bytes, region, offset), in order.
#[derive(Default)]
struct DoublingHeap {
    free: std::collections::BTreeSet<(u64, usize, u64)>,
    regions: usize,
    next_region: u64,
    reserved: u64,
}

impl DoublingHeap {
    /// Returns bytes, region and offset.
    fn allocate(&mut self, bytes: u64) -> (u64, usize, u64) {
        let bytes = bytes.max(1).next_multiple_of(256);
        let mut best = self.free.range((bytes, 0, 0)..).next().copied();
        if let Some(chunk) = best {
            self.free.remove(&chunk);
        }
        let (held, region, offset) = *best.get_or_insert_with(|| {
            self.next_region = self.next_region.max(1 << 20) * 2;
            while self.next_region < bytes {
                self.next_region *= 2;
            }
            self.reserved += self.next_region;
            self.regions += 1;
            (self.next_region, self.regions, 0)
        });
        if held > bytes {
            self.free.insert((held - bytes, region, offset + bytes));
        }
        (bytes, region, offset)
    }

    fn free(&mut self, (mut bytes, region, mut offset): (u64, usize, u64)) {
        let neighbours: Vec<_> = self.free.iter().copied().collect();
        for chunk in neighbours.into_iter().filter(|chunk| chunk.1 == region) {
            if chunk.2 == offset + bytes || chunk.2 + chunk.0 == offset {
                self.free.remove(&chunk);
                bytes += chunk.0;
                offset = offset.min(chunk.2);
            }
        }
        self.free.insert((bytes, region, offset));
    }
}

/// A pool with `holes` free chunks between blocks in use, all of one size or all of different sizes:
/// nanoseconds per allocate + free there.
fn among_holes(holes: usize, equal: bool) -> Result<f64, Box<dyn std::error::Error>> {
    const PAIRS: usize = 200_000;
    let config = PoolConfig {
        growth: Growth::default(),
        limit: None,
        max_region: u64::MAX,
    };
    let mut pool = Pool::new(Source::default(), config);
    let mut random: u64 = 1;
    let mut below = |end: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((random >> 33) % end as u64) as usize
    };
    let hole_bytes = |index: usize| if equal { 256 } else { 256 * (1 + index as u64) };
    let mut filled = Vec::new();
    for index in 0..holes {
        filled.push(pool.allocate(hole_bytes(index))?);
        pool.allocate(1)?;
    }
    while !filled.is_empty() {
        pool.free(filled.swap_remove(below(filled.len())));
    }
    let sizes: Vec<u64> = (0..PAIRS).map(|_| hole_bytes(below(holes))).collect();
    let start = Instant::now();
    for bytes in sizes {
        let block = pool.allocate(bytes)?;
        black_box(pool.free(block));
    }
    Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Cargo passes `--bench` by itself; all but `--json` is ignored.
    let json = std::env::args().any(|argument| argument == "--json");
    if !json {
        println!(
            "{:<14}{:>8}{:>13}{:>12}{:>15}{:>7}{:>9}{:>9}{:>16}",
            "trace",
            "events",
            "allocations",
            "peak live",
            "peak reserved",
            "ratio",
            "regions",
            "ns/pair",
            "2 MiB x2 ratio"
        );
    }
    for name in TRACES {
        let trace = Trace::read(name)?;
        let figures = trace.measure()?;
        let ratio = figures.peak_reserved as f64 / trace.peak_live as f64;
        let doubling_ratio = trace.doubling_peak() as f64 / trace.peak_live as f64;
        let (events, allocations) = (trace.events.len(), trace.allocations);
        let (peak_live, peak_reserved) = (trace.peak_live, figures.peak_reserved);
        let (regions_made, nanoseconds) = (figures.regions_made, figures.nanoseconds);
        if json {
            println!(
                "{{\"trace\":\"{name}\",\"events\":{events},\"allocations\":{allocations},\
                 \"peak_live\":{peak_live},\"peak_reserved\":{peak_reserved},\"ratio\":{ratio:.4},\
                 \"regions_made\":{regions_made},\"nanoseconds_per_pair\":{nanoseconds:.1},\
                 \"doubling_ratio\":{doubling_ratio:.4}}}"
            );
        } else {
            println!(
                "{name:<14}{events:>8}{allocations:>13}{peak_live:>12}{peak_reserved:>15}{ratio:>7.3}\
                 {regions_made:>9}{nanoseconds:>9.1}{doubling_ratio:>16.3}"
            );
        }
    }
    for (holes, equal) in [
        (1000, true),
        (100_000, true),
        (1000, false),
        (100_000, false),
    ] {
        let nanoseconds = among_holes(holes, equal)?;
        let sizes = if equal { "equal" } else { "different" };
        if json {
            println!(
                "{{\"holes\":{holes},\"sizes\":\"{sizes}\",\"nanoseconds_per_pair\":{nanoseconds:.1}}}"
            );
        } else {
            println!("among {holes} holes of {sizes} sizes: {nanoseconds:.1} ns/pair");
        }
    }
    Ok(())
}
