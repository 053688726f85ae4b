//! orlop's allocator beside others on the same traces, in the same run, round by round.
//!
//! `cargo run --release --bin memory [-- --json]` in `benches/peers`: peak reserved over peak live of each, and
//! nanoseconds for an allocation and its free.

#[path = "../../../common/rules.rs"]
#[expect(
    dead_code,
    reason = "the bench of the allocator alone takes more of it"
)]
mod rules;
#[path = "../../../../examples/common/trace.rs"]
mod trace;
#[path = "../../../common/traces.rs"]
#[expect(
    dead_code,
    reason = "the bench of the allocator alone takes more of it"
)]
mod traces;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    Cleanup, ErrorGraph, ManagedMemoryHandle, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use cubecl_server::server::IoError;
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use orlop::memory::{BlockId, Growth, Pool, PoolConfig, QUANTUM, Refused, RegionSource};
use trace::{Event, Trace};

/// orlop's allocator beside others.
#[derive(Parser)]
struct Args {
    /// A line of JSON for each trace.
    #[arg(long)]
    json: bool,
}

/// A figure of time is the median of this many rounds; in a round each allocator replays the trace.
const ROUNDS: usize = 41;
/// cubecl takes its time.
const SLOW_ROUNDS: usize = 5;
/// The largest buffer, as WebGPU implementations commonly allow.
const MAX_REGION: u64 = (1 << 31) - 1;

/// An allocator that can live through a trace.
trait Allocator {
    type Block;

    fn allocate(&mut self, bytes: u64) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block);

    /// Lives through the trace; nanoseconds for an allocation and its free, `None` when one failed.
    fn replay(&mut self, trace: &Trace) -> Option<f64> {
        let mut blocks: Vec<Option<Self::Block>> = trace.sizes.iter().map(|_| None).collect();
        let start = Instant::now();
        for &event in &trace.events {
            match event {
                Event::Allocate { index, bytes } => blocks[index] = Some(self.allocate(bytes)?),
                Event::Free { index } => {
                    if let Some(block) = blocks[index].take() {
                        self.free(block);
                    }
                }
            }
        }
        let nanoseconds = start.elapsed().as_nanos() as f64;
        Some(nanoseconds / trace.sizes.len() as f64)
    }
}

/// Regions out of nothing.
struct NoRegions;

impl RegionSource for NoRegions {
    type Region = ();

    fn create(&mut self, _bytes: u64) -> Result<(), Refused> {
        Ok(())
    }
}

impl Allocator for Pool<NoRegions> {
    type Block = BlockId;

    fn allocate(&mut self, bytes: u64) -> Option<BlockId> {
        Pool::allocate(self, bytes).ok()
    }

    fn free(&mut self, block: BlockId) {
        black_box(Pool::free(self, block));
    }
}

fn orlop() -> Pool<NoRegions> {
    let config = PoolConfig {
        growth: Growth::Proportional,
        limit: None,
        max_region: MAX_REGION,
    };
    Pool::new(NoRegions, config)
}

/// One slab, counted in quanta, of a size given beforehand.
struct Slab(offset_allocator::Allocator<u32>);

impl Slab {
    fn new(bytes: u64) -> Slab {
        Slab(offset_allocator::Allocator::new((bytes / QUANTUM) as u32))
    }
}

impl Allocator for Slab {
    type Block = offset_allocator::Allocation<u32>;

    fn allocate(&mut self, bytes: u64) -> Option<Self::Block> {
        self.0.allocate(bytes.max(1).div_ceil(QUANTUM) as u32)
    }

    fn free(&mut self, block: Self::Block) {
        self.0.free(block);
    }
}

/// The smallest slab on which the trace completes, within 0.1 % of its peak.
fn smallest_slab(trace: &Trace) -> u64 {
    let (mut low, mut high) = (trace.peak_live, trace.peak_live * 2);
    while high - low > trace.peak_live / 1000 {
        let middle = (low + high) / 2;
        match Slab::new(middle).replay(trace) {
            Some(_) => high = middle,
            None => low = middle,
        }
    }
    high
}

/// Storage that holds nothing but counts.
#[derive(Default)]
struct NoStorage {
    held: std::collections::HashMap<StorageId, u64>,
    now: u64,
    peak: u64,
}

impl ComputeStorage for NoStorage {
    type Resource = ();

    fn alignment(&self) -> usize {
        QUANTUM as usize
    }

    fn get(&mut self, _handle: &StorageHandle) -> Result<(), IoError> {
        Ok(())
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let id = StorageId::new();
        self.held.insert(id, size);
        self.now += size;
        self.peak = self.peak.max(self.now);
        let utilization = StorageUtilization { offset: 0, size };
        Ok(StorageHandle { id, utilization })
    }

    fn dealloc(&mut self, id: StorageId) {
        self.now -= self.held.remove(&id).unwrap_or(0);
    }

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        self.now
    }
}

/// cubecl's memory management as its GPU runtimes set it up.
struct Cubecl {
    memory: MemoryManagement<NoStorage>,
    failures: ErrorGraph,
}

impl Cubecl {
    fn new() -> Cubecl {
        let memory = MemoryManagement::from_configuration(
            NoStorage::default(),
            &MemoryDeviceProperties::new(MAX_REGION / QUANTUM * QUANTUM, QUANTUM),
            MemoryConfiguration::default(),
            Arc::new(ServerLogger::default()),
            MemoryManagementOptions::new("peers"),
        );
        Cubecl {
            memory,
            failures: ErrorGraph::default(),
        }
    }
}

impl Allocator for Cubecl {
    type Block = ManagedMemoryHandle;

    fn allocate(&mut self, bytes: u64) -> Option<ManagedMemoryHandle> {
        let reserved = self
            .memory
            .reserve(bytes.max(1), PageUpdate::Allow, &mut self.failures);
        reserved.ok()
    }

    fn free(&mut self, block: ManagedMemoryHandle) {
        drop(block);
    }
}

/// What is told of one trace.
struct Figures {
    orlop: (f64, f64),
    slab: (f64, f64),
    cubecl: (f64, f64),
    tensorflow: f64,
    pytorch: f64,
}

fn measure(trace: &Trace) -> Result<Figures, Box<dyn std::error::Error>> {
    let slab_bytes = smallest_slab(trace);
    let ratio = |bytes: u64| bytes as f64 / trace.peak_live as f64;
    let (mut ours, mut slabs, mut cubecls) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reserved, mut cubecl_reserved) = (0, 0);
    for round in 0..ROUNDS {
        let mut pool = orlop();
        ours.push(pool.replay(trace).ok_or("orlop failed")?);
        reserved = pool.statistics().peak_reserved;
        // Room enough, so that it never searches in vain.
        let mut slab = Slab::new(trace.peak_live * 2);
        slabs.push(slab.replay(trace).ok_or("offset-allocator failed")?);
        if round < SLOW_ROUNDS {
            let mut cubecl = Cubecl::new();
            cubecls.push(cubecl.replay(trace).ok_or("cubecl failed")?);
            cubecl_reserved = cubecl.memory.storage().peak;
            cubecl
                .memory
                .cleanup(Cleanup::Explicit, &mut cubecl.failures);
        }
    }
    Ok(Figures {
        orlop: (ratio(reserved), median(ours)),
        slab: (ratio(slab_bytes), median(slabs)),
        cubecl: (ratio(cubecl_reserved), median(cubecls)),
        tensorflow: ratio(rules::tensorflow(trace)),
        pytorch: ratio(rules::pytorch(trace)),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Args { json } = Args::parse();
    if !json {
        println!("peak reserved / peak live, and nanoseconds for an allocation and its free");
        println!(
            "{:<20}{:>12}{:>8}{:>6}{:>9}{:>6}{:>9}{:>7}{:>12}{:>9}",
            "trace",
            "allocations",
            "orlop",
            "ns",
            "offset-a",
            "ns",
            "cubecl",
            "ns",
            "TensorFlow",
            "PyTorch"
        );
    }
    for (name, trace) in traces::all()? {
        let figures = measure(&trace)?;
        let allocations = trace.sizes.len();
        let Figures {
            orlop: (orlop, orlop_ns),
            slab: (slab, slab_ns),
            cubecl: (cubecl, cubecl_ns),
            tensorflow,
            pytorch,
        } = figures;
        if json {
            println!(
                "{{\"trace\":\"{name}\",\"allocations\":{allocations},\"peak_live\":{},\
                 \"orlop\":{orlop:.4},\"orlop_ns\":{orlop_ns:.1},\
                 \"offset_allocator\":{slab:.4},\"offset_allocator_ns\":{slab_ns:.1},\
                 \"cubecl\":{cubecl:.4},\"cubecl_ns\":{cubecl_ns:.1},\
                 \"tensorflow\":{tensorflow:.4},\"pytorch\":{pytorch:.4}}}",
                trace.peak_live
            );
        } else {
            println!(
                "{name:<20}{allocations:>12}{orlop:>8.3}{orlop_ns:>6.0}{slab:>9.3}{slab_ns:>6.0}\
                 {cubecl:>9.3}{cubecl_ns:>7.0}{tensorflow:>12.3}{pytorch:>9.3}"
            );
        }
    }
    Ok(())
}
