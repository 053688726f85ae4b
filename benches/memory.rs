//! The allocator on traces: reserved over peak live, with and without moving blocks, nanoseconds per
//! allocate + free, host memory for bookkeeping, and what threads cost each other; the first for families
//! of runs like the recorded ones, and for runs over and over, too.
//!
//! `cargo bench --bench memory [-- --json]`: a table, or one JSON object a line. Other allocators in
//! the same run: `benches/peers`.

#[path = "common/rules.rs"]
mod rules;
#[path = "../examples/common/trace.rs"]
mod trace;
#[path = "common/traces.rs"]
mod traces;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use orlop::memory::{BlockId, Growth, Pool, PoolConfig, Refused, RegionSource};
use orlop::{DType, Device, Tensor};
use trace::{Event, Trace};

/// What WebGPU implementations commonly allow a buffer.
const MAX_REGION: u64 = (1 << 31) - 1;
/// A figure of time is the median of this many replays of a trace, each in a new pool.
const REPEATS: usize = 31;
/// Or of this many runs that take longer, on a new device or pool each.
const RUNS: usize = 5;
/// The budget under which blocks are moved: so many times the peak in use.
const BUDGET: f64 = 1.02;

/// The allocator on traces.
#[derive(Parser)]
struct Args {
    /// A line of JSON for each figure.
    #[arg(long)]
    json: bool,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Counts the host memory that each thread takes, for itself: threads would wait for a counter that they share.
struct Counting;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator with a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get().wrapping_add(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        TAKEN.set(TAKEN.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Makes regions out of nothing, and counts them.
#[derive(Default)]
struct Source {
    made: u64,
    bytes: u64,
}

impl RegionSource for Source {
    type Region = ();

    fn create(&mut self, bytes: u64) -> Result<(), Refused> {
        self.made += 1;
        self.bytes += bytes;
        Ok(())
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Replays a trace; the nanoseconds per allocation, its free included, and the pool after it.
fn replay(trace: &Trace, limit: Option<u64>) -> (f64, Pool<Source>) {
    let config = PoolConfig {
        growth: Growth::within(limit),
        limit,
        max_region: MAX_REGION,
    };
    let mut pool = Pool::new(Source::default(), config);
    let mut blocks: Vec<Option<BlockId>> = vec![None; trace.sizes.len()];
    let start = Instant::now();
    for &event in &trace.events {
        match event {
            Event::Allocate { index, bytes } => {
                // What fails is counted by the pool.
                blocks[index] = match limit {
                    None => pool.allocate(bytes).ok(),
                    Some(_) => pool.allocate_moving(bytes, &mut ()).ok(),
                };
            }
            Event::Free { index } => {
                if let Some(block) = blocks[index] {
                    black_box(pool.free(block));
                }
            }
        }
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    (nanoseconds / trace.sizes.len() as f64, pool)
}

#[derive(Default)]
struct Figures {
    nanoseconds: f64,
    peak_reserved: u64,
    regions_made: u64,
    /// Under the budget.
    peak_within: u64,
    moved: f64,
    failed: u64,
}

/// Median time of `REPEATS` replays, peak reserved bytes and regions made; then under the budget the
/// peak reserved and the share of the bytes allocated that moved.
fn measure(trace: &Trace) -> Figures {
    let mut times = Vec::new();
    let mut figures = Figures::default();
    for _ in 0..REPEATS {
        let (time, pool) = replay(trace, None);
        times.push(time);
        figures.peak_reserved = pool.statistics().peak_reserved;
        figures.regions_made = pool.source().made;
    }
    times.sort_by(f64::total_cmp);
    figures.nanoseconds = times[times.len() / 2];
    let (_, pool) = replay(trace, Some((trace.peak_live as f64 * BUDGET) as u64));
    let statistics = pool.statistics();
    figures.peak_within = statistics.peak_reserved;
    let allocated: u64 = trace.sizes.iter().sum();
    figures.failed = statistics.events.failures;
    figures.moved = statistics.events.relocated_bytes as f64 / allocated as f64;
    figures
}

/// Host memory of a pool that manages `blocks` blocks of 64 KiB in the mean, every other one freed and
/// taken again with another size, over the bytes that it manages.
fn bookkeeping(blocks: usize) -> Outcome<f64> {
    let config = PoolConfig {
        growth: Growth::default(),
        limit: None,
        max_region: MAX_REGION,
    };
    let mut random: u64 = 1;
    let mut size = || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) % (128 << 10)
    };
    let before = TAKEN.get();
    let mut pool = Pool::new(Source::default(), config);
    let mut taken = Vec::new();
    for _ in 0..blocks {
        taken.push(pool.allocate(size())?);
    }
    for block in taken.iter_mut().step_by(2) {
        pool.free(*block);
    }
    for block in taken.iter_mut().step_by(2) {
        *block = pool.allocate(size())?;
    }
    let ids = taken.capacity() * size_of::<BlockId>();
    let host = TAKEN.get() - before - ids;
    Ok(host as f64 / pool.statistics().reserved as f64)
}

/// Nanoseconds of the clock over all the tensors that are made and dropped on a new device by `threads` threads at
/// once, each doing its share: how fast they are together, not how long one takes.
fn contended(selector: &str, threads: usize) -> Outcome<f64> {
    const TENSORS: usize = 200_000;
    let device = Device::builder().select(selector).build()?;
    let each = TENSORS / threads;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let device = &device;
                scope.spawn(move || -> orlop::Result<()> {
                    for round in 0..each {
                        let elements = 64 << ((round + thread) % 6);
                        black_box(Tensor::empty(device, elements, DType::F32)?);
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| "a thread panicked")??;
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    Ok(start.elapsed().as_nanos() as f64 / (each * threads) as f64)
}

/// A pool with `holes` free chunks between blocks in use, all of one size or all of different sizes:
/// nanoseconds per allocate + free there.
fn among_holes(holes: usize, equal: bool) -> Outcome<f64> {
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

/// The median of some runs.
fn median(run: impl Fn() -> Outcome<f64>) -> Outcome<f64> {
    let runs = (0..RUNS).map(|_| run()).collect::<Outcome<Vec<f64>>>()?;
    Ok(spread(runs)[0])
}

/// Median, ninth decile and highest.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values.len() / 2, values.len() * 9 / 10, values.len() - 1].map(|at| values[at])
}

/// How many ratios are above what is to be reached.
fn over(ratios: &[f64]) -> usize {
    ratios.iter().filter(|&&ratio| ratio > 1.10).count()
}

/// One line for each family of runs like the recorded ones.
fn families(json: bool) -> Outcome<()> {
    if !json {
        println!(
            "{:<24}{:>5}{:>24}{:>7}{:>24}{:>7}{:>22}{:>8}",
            "median, 9/10, highest",
            "runs",
            "reserved / peak live",
            "> 1.10",
            "endless best fit",
            "> 1.10",
            "moved % in 1.02 x",
            "failed"
        );
    }
    for traces::Family { name, runs } in traces::families()? {
        let (mut reserved, mut endless, mut moved, mut failed) = (vec![], vec![], vec![], 0);
        for trace in runs {
            let peak_live = trace.peak_live as f64;
            let (_, pool) = replay(&trace, None);
            reserved.push(pool.statistics().peak_reserved as f64 / peak_live);
            endless.push(rules::endless_best_fit(&trace) as f64 / peak_live);
            let events = replay(&trace, Some((peak_live * BUDGET) as u64))
                .1
                .statistics()
                .events;
            let allocated: u64 = trace.sizes.iter().sum();
            moved.push(events.relocated_bytes as f64 / allocated as f64 * 100.0);
            failed += events.failures;
        }
        let (count, over, endless_over) = (reserved.len(), over(&reserved), over(&endless));
        let (reserved, endless, moved) = (spread(reserved), spread(endless), spread(moved));
        if json {
            println!(
                "{{\"family\":\"{name}\",\"runs\":{count},\"ratio\":{reserved:.4?},\"over\":{over},\
                 \"endless_ratio\":{endless:.4?},\"endless_over\":{endless_over},\
                 \"moved_percent\":{moved:.3?},\"failed\":{failed}}}"
            );
        } else {
            println!(
                "{name:<24}{count:>5}{}{over:>7}{}{endless_over:>7}{}{failed:>8}",
                three(reserved, 3),
                three(endless, 3),
                three(moved, 2)
            );
        }
    }
    Ok(())
}

/// One line for each family of runs over and over: what they reserve, and what is made anew in the second
/// half of the time.
fn over_and_over(json: bool) -> Outcome<()> {
    if !json {
        println!(
            "{:<24}{:>5}{:>7}{:>24}{:>7}{:>19}{:>34}",
            "median, 9/10, highest",
            "runs",
            "times",
            "reserved / peak live",
            "> 1.10",
            "still make regions",
            "bytes made / allocated then"
        );
    }
    for (traces::Family { name, runs }, times) in traces::over_and_over()? {
        let (mut reserved, mut still, mut made) = (vec![], 0, vec![]);
        for trace in runs {
            let (_, before) = replay(&traces::repeated(&trace, times / 2), None);
            let (_, pool) = replay(&traces::repeated(&trace, times), None);
            reserved.push(pool.statistics().peak_reserved as f64 / trace.peak_live as f64);
            still += u64::from(pool.source().made > before.source().made);
            let allocated: u64 = trace.sizes.iter().sum();
            let later = (times - times / 2) as u64 * allocated;
            made.push((pool.source().bytes - before.source().bytes) as f64 / later as f64);
        }
        let (count, over) = (reserved.len(), over(&reserved));
        let (reserved, made) = (spread(reserved), spread(made));
        if json {
            println!(
                "{{\"family\":\"{name}\",\"runs\":{count},\"times\":{times},\"ratio\":{reserved:.4?},\
                 \"over\":{over},\"still_make_regions\":{still},\"made_share\":{made:.4?}}}"
            );
        } else {
            println!(
                "{name:<24}{count:>5}{times:>7}{}{over:>7}{still:>19}{:>10}{}",
                three(reserved, 3),
                "",
                three(made, 3)
            );
        }
    }
    Ok(())
}

fn three(values: [f64; 3], digits: usize) -> String {
    values.map(|value| format!("{value:>8.digits$}")).concat()
}

fn main() -> Outcome<()> {
    let Args { json, .. } = Args::parse();
    if !json {
        println!(
            "{:<18}{:>8}{:>12}{:>12}{:>14}{:>7}{:>9}{:>9}{:>11}{:>9}{:>8}{:>12}{:>9}",
            "trace",
            "events",
            "allocations",
            "peak live",
            "peak reserved",
            "ratio",
            "regions",
            "ns/pair",
            "in 1.02x",
            "moved %",
            "failed",
            "TensorFlow",
            "PyTorch"
        );
    }
    for (name, trace) in traces::all()? {
        let figures = measure(&trace);
        let ratio = |bytes: u64| bytes as f64 / trace.peak_live as f64;
        let (events, allocations) = (trace.events.len(), trace.sizes.len());
        let (peak_live, peak_reserved) = (trace.peak_live, figures.peak_reserved);
        let (reserved, within) = (ratio(peak_reserved), ratio(figures.peak_within));
        let (regions_made, nanoseconds) = (figures.regions_made, figures.nanoseconds);
        let (moved, failed) = (figures.moved, figures.failed);
        let tensorflow = ratio(rules::tensorflow(&trace));
        let pytorch = ratio(rules::pytorch(&trace));
        if json {
            println!(
                "{{\"trace\":\"{name}\",\"events\":{events},\"allocations\":{allocations},\
                 \"peak_live\":{peak_live},\"peak_reserved\":{peak_reserved},\"ratio\":{reserved:.4},\
                 \"regions_made\":{regions_made},\"nanoseconds_per_pair\":{nanoseconds:.1},\
                 \"ratio_in_budget\":{within:.4},\"moved_share\":{moved:.4},\"failed\":{failed},\
                 \"tensorflow_ratio\":{tensorflow:.4},\"pytorch_ratio\":{pytorch:.4}}}"
            );
        } else {
            println!(
                "{name:<18}{events:>8}{allocations:>12}{peak_live:>12}{peak_reserved:>14}{reserved:>7.3}\
                 {regions_made:>9}{nanoseconds:>9.1}{within:>11.3}{:>9.2}{failed:>8}{tensorflow:>12.3}{pytorch:>9.3}",
                moved * 100.0
            );
        }
    }
    families(json)?;
    over_and_over(json)?;
    for (holes, equal) in [
        (1000, true),
        (100_000, true),
        (1000, false),
        (100_000, false),
    ] {
        let nanoseconds = median(|| among_holes(holes, equal))?;
        let sizes = if equal { "equal" } else { "different" };
        if json {
            println!(
                "{{\"holes\":{holes},\"sizes\":\"{sizes}\",\"nanoseconds_per_pair\":{nanoseconds:.1}}}"
            );
        } else {
            println!("among {holes} holes of {sizes} sizes: {nanoseconds:.1} ns/pair");
        }
    }
    for blocks in [1000, 100_000] {
        let share = bookkeeping(blocks)?;
        if json {
            println!("{{\"blocks\":{blocks},\"bookkeeping_share\":{share:.6}}}");
        } else {
            let percent = share * 100.0;
            println!("bookkeeping of {blocks} blocks of 64 KiB in the mean: {percent:.3} %");
        }
    }
    for info in Device::list()? {
        for threads in [1, 2, 24] {
            let nanoseconds = median(|| contended(&info.selector, threads))?;
            let (selector, name, backend) = (&info.selector, &info.name, &info.backend);
            if json {
                println!(
                    "{{\"device\":\"{selector}\",\"backend\":\"{backend}\",\"threads\":{threads},\
                     \"nanoseconds_per_tensor\":{nanoseconds:.1}}}"
                );
            } else {
                println!(
                    "{threads} threads make and drop tensors on {name} ({backend}): {nanoseconds:.1} ns a tensor, all threads together"
                );
            }
        }
    }
    Ok(())
}
