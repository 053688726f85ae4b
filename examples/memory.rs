//! Reserved and allocated memory over a small workload: allocate, grow, free, reuse, run out of a
//! budget, trim. Each line is one step; the bar shows the budget: `#` in use, `+` reserved and
//! free.

#[path = "common/cli.rs"]
mod cli;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use orlop::memory::Growth;
use orlop::{DType, Device, Tensor};

/// Shows how a device's pool reserves and reuses memory, and what happens when its budget runs
/// out.
#[derive(Parser, Debug)]
#[command(name = "memory", version)]
struct Args {
    /// cpu, gpu:0, soft:1, or a piece of a name; default: $ORLOP_DEVICE, else the best GPU, else
    /// the native CPU
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// The device's budget; the workload scales with it
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = budget)]
    limit: u64,
}

/// Enough for sixteen units.
fn budget(text: &str) -> Result<u64, String> {
    match cli::bytes(text)? {
        bytes if bytes < 2 << 20 => Err(format!("{bytes} bytes: it takes 2M at least")),
        bytes => Ok(bytes),
    }
}

/// Characters of the bar: the whole budget.
const BAR: u64 = 32;

fn main() -> ExitCode {
    cli::run(example)
}

fn example(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    // A sixteenth of the budget, in whole quanta: 16 of them fill it.
    let unit = args.limit / 16 / 256 * 256;
    // Two regions fill the budget, and the first is kept when it is idle.
    let growth = Growth::Step { bytes: 8 * unit };
    let mut builder = Device::builder().memory_limit(args.limit).growth(growth);
    if let Some(selector) = args.device {
        builder = builder.select(selector);
    }
    let device = builder.build()?;
    let largest = device.capabilities().max_buffer_bytes;
    if largest < 8 * unit {
        let why = format!(
            "--limit {}: half of it is one region, and {device} makes none above {largest} bytes",
            args.limit
        );
        return Err(why.into());
    }
    let tensor = |units: u64| Tensor::empty(&device, (units * unit / 4) as usize, DType::F32);

    cli::say(format!(
        "{device}, budget {} bytes, one unit is {unit} bytes\n\n{:<34}{:>10}{:>10}{:>6}{:>9}{:>14}\n",
        args.limit, "KiB", "allocated", "reserved", "live", "regions", "largest hole"
    ));
    step(&device, "an open device holds nothing");
    let workspace = tensor(8)?;
    step(&device, "allocate 8 units");
    drop(workspace);
    step(&device, "free them: kept for reuse");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(tensor(1)?);
    }
    held.push(tensor(3)?);
    step(&device, "4 x 1 and 3 units: same region");
    drop(held.remove(2));
    drop(held.remove(0));
    step(&device, "free the first and the third");
    held.push(tensor(1)?);
    step(&device, "1 unit: best fit, lowest hole");
    drop(held.remove(0));
    step(&device, "free between holes: they merge");
    held.push(tensor(2)?);
    step(&device, "2 units fit the merged hole");
    held.push(tensor(4)?);
    step(&device, "4 units do not: a new region");
    let kept = Tensor::full(&device, (unit / 4) as usize, 7, DType::U32)?;
    step(&device, "write 1 unit of sevens");
    let full = loop {
        match tensor(1) {
            Ok(filler) => held.push(filler),
            Err(error) => break error,
        }
    };
    step(&device, "fill up until an error");
    cli::say(format!("  {full}\n"));
    let intact = kept.to_vec::<u32>()?.iter().all(|&element| element == 7);
    step(
        &device,
        if intact {
            "the sevens are all there"
        } else {
            "the sevens are NOT all there"
        },
    );
    drop(held.pop());
    let next = tensor(1)?;
    step(&device, "free one, and the next fits");
    drop((held, kept, next));
    step(&device, "free everything");
    device.trim()?;
    step(&device, "trim: given back to the adapter");
    cli::say(format!("\n{}", device.memory_summary()));
    Ok(if intact {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn step(device: &Device, what: &str) {
    let memory = device.memory();
    let limit = memory.limit.unwrap_or(1);
    let cells = |bytes: u64| (u128::from(bytes) * u128::from(BAR)).div_ceil(limit.into()) as usize;
    let used = cells(memory.allocated);
    let held = cells(memory.reserved);
    let bar: String = (0..BAR as usize)
        .map(|cell| match cell {
            cell if cell < used => '#',
            cell if cell < held => '+',
            _ => '.',
        })
        .collect();
    cli::say(format!(
        "{what:<34}{:>10}{:>10}{:>6}{:>9}{:>14}  {bar}\n",
        memory.allocated >> 10,
        memory.reserved >> 10,
        memory.live_blocks,
        memory.regions,
        memory.largest_free >> 10,
    ));
}
