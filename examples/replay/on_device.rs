//! On a device: each block is a tensor that holds a pattern of its own, and is verified when it goes.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use orlop::memory::Growth;
use orlop::{Device, Error, Tensor};

use crate::Report;
use crate::settings::Full;
use crate::trace::{Event, Trace};

/// Patterns are stretches of one sequence that begin at different words.
const BEGINNINGS: usize = 65_521;

pub fn replay(
    trace: &Trace,
    selector: &str,
    growth: Growth,
    limit: Option<u64>,
    when_full: Full,
) -> Result<Report, Box<dyn StdError>> {
    let mut builder = Device::builder()
        .select(selector)
        .growth(growth)
        .when_full(when_full.setting());
    if let Some(limit) = limit {
        builder = builder.memory_limit(limit);
    }
    let device = builder.build()?;
    if device.is_cpu() && when_full == Full::Spill {
        return Err("--when-full spill: the CPU device is on the host, and spills nothing".into());
    }
    let patterns = Patterns::new(trace)?;
    let mut tensors: Vec<Option<Tensor>> = vec![None; trace.sizes.len()];
    let (mut failures, mut verified, mut verifying) = (0, true, Duration::ZERO);
    let start = Instant::now();
    for &event in &trace.events {
        match event {
            Event::Allocate { index, .. } => {
                let pattern = patterns.of(index);
                match Tensor::from_slice(&device, pattern, pattern.len()) {
                    Ok(tensor) => tensors[index] = Some(tensor),
                    Err(Error::OutOfMemory(_)) => failures += 1,
                    Err(error) => return Err(error.into()),
                }
            }
            Event::Free { index } => {
                if let Some(tensor) = tensors[index].take() {
                    let began = Instant::now();
                    verified &= patterns.holds(index, &tensor)?;
                    verifying += began.elapsed();
                }
            }
        }
    }
    device.synchronize()?;
    let nanoseconds = (start.elapsed() - verifying).as_nanos() as f64;
    for (index, tensor) in tensors.into_iter().enumerate() {
        if let Some(tensor) = tensor {
            verified &= patterns.holds(index, &tensor)?;
        }
    }
    let memory = device.memory();
    Ok(Report {
        peak_reserved: memory.peak_reserved,
        nanoseconds,
        moved_bytes: memory.events.relocated_bytes,
        relocations: memory.events.relocations,
        spilled_bytes: memory.events.spilled_bytes,
        failures,
        verified: verified && device.memory().allocated == 0,
    })
}

/// What each block holds.
struct Patterns {
    words: Vec<u32>,
    /// Words of each block.
    counts: Vec<usize>,
}

impl Patterns {
    fn new(trace: &Trace) -> Result<Patterns, Box<dyn StdError>> {
        let counts = trace.sizes.iter();
        // An empty tensor takes no memory, but an empty allocation does.
        let counts: Vec<usize> = counts
            .map(|bytes| bytes.div_ceil(4).max(1) as usize)
            .collect();
        let longest = counts.iter().copied().max().unwrap_or(0);
        let bytes = trace.sizes.iter().copied().max().unwrap_or(0);
        let total = Device::cpu().info().memory_total;
        let mut words = Vec::new();
        let is_room = total.is_none_or(|total| bytes <= total)
            && words.try_reserve_exact(BEGINNINGS + longest).is_ok();
        if !is_room {
            return Err(
                format!("the host has no room for what a block of {bytes} bytes holds").into(),
            );
        }
        words.extend((0..BEGINNINGS + longest).map(|at| {
            let at = at as u32;
            (at ^ at >> 15).wrapping_mul(0x2c1b_3c6d)
        }));
        Ok(Patterns { words, counts })
    }

    fn of(&self, index: usize) -> &[u32] {
        let start = index % BEGINNINGS;
        &self.words[start..start + self.counts[index]]
    }

    fn holds(&self, index: usize, tensor: &Tensor) -> orlop::Result<bool> {
        Ok(tensor.to_vec::<u32>()? == self.of(index))
    }
}
