//! Replays recorded allocations, on the allocator alone or on a device with every byte verified, and
//! tells what was reserved, moved, spilled and how long it took.

mod alone;
#[path = "../common/cli.rs"]
mod cli;
mod on_device;
mod settings;
#[path = "../common/trace.rs"]
mod trace;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use orlop::memory::Growth;
use settings::{Full, Growing, Limit};
use trace::Trace;

/// Replays traces of allocations: lines `a ID BYTES` allocate, `f ID` free. Exit code 1: a block did
/// not hold what was written into it.
#[derive(Parser, Debug)]
#[command(name = "replay", version)]
struct Args {
    /// Traces
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// proportional, budget, preallocate:BYTES, preallocate:0.9 (of the budget, or of a device's memory), step:BYTES,
    /// doubling:BYTES; the default is budget with a limit, proportional without
    #[arg(long, value_name = "POLICY")]
    growth: Option<Growing>,
    /// The budget, in bytes (K, M, G: binary units), or times the peak of the bytes in use: 1.02x
    #[arg(long, value_name = "BYTES")]
    limit: Option<Limit>,
    /// What happens when the budget is reached
    #[arg(long, value_name = "WHAT", value_enum, default_value = "relocate")]
    when_full: Full,
    /// cpu, gpu:0, soft:1, or a piece of a name: real memory, and every block verified. Without it:
    /// the allocator alone, over no memory
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// What is told of one trace. All sizes are bytes.
struct Report {
    peak_reserved: u64,
    nanoseconds: f64,
    moved_bytes: u64,
    relocations: u64,
    spilled_bytes: u64,
    failures: u64,
    /// Every block held what was written into it; alone: the chunks tile their regions and the
    /// account equals a walk over them.
    verified: bool,
}

fn main() -> ExitCode {
    cli::run(example)
}

fn example(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let is_share = matches!(args.growth, Some(Growing(Growth::Preallocate { .. })));
    if is_share && args.limit.is_none() && args.device.is_none() {
        return Err(
            "preallocate:FRACTION is a share of --limit, or of the memory of --device".into(),
        );
    }
    // All are read before the first is replayed, so that output is whole or none.
    let traces: Vec<(String, Trace)> = args
        .files
        .iter()
        .map(|file| read(file))
        .collect::<Result<_, _>>()?;
    let mut verified = true;
    for (at, (name, trace)) in traces.iter().enumerate() {
        let limit = args.limit.map(|limit| limit.bytes(trace.peak_live));
        let growth = args
            .growth
            .map_or(Growth::within(limit), |growing| growing.0);
        let report = match &args.device {
            Some(selector) => on_device::replay(trace, selector, growth, limit, args.when_full)?,
            None => alone::replay(trace, growth, limit, args.when_full)?,
        };
        verified &= report.verified;
        // Nothing is printed before the device is there and the growth is accepted.
        if at == 0 && !args.json {
            cli::say(header());
        }
        cli::say(match args.json {
            true => json(name, trace, &report),
            false => row(name, trace, &report),
        });
    }
    Ok(match verified {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The trace in a file, and its name.
fn read(file: &str) -> Result<(String, Trace), Box<dyn Error>> {
    let bytes = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        format!("{file}: line {line}: it is not UTF-8")
    })?;
    let trace = Trace::parse(text).map_err(|error| format!("{file}: {error}"))?;
    let name = Path::new(file).file_stem().unwrap_or_default();
    Ok((name.to_string_lossy().into_owned(), trace))
}

/// Peak reserved over the most that the trace has in use, whatever failed or was spilled; 1 where that is nothing.
fn ratio(trace: &Trace, report: &Report) -> f64 {
    match trace.peak_live {
        0 => 1.0,
        peak => report.peak_reserved as f64 / peak as f64,
    }
}

fn json(name: &str, trace: &Trace, report: &Report) -> String {
    format!(
        "{{\"trace\":{},\"events\":{},\"allocations\":{},\"peak_live\":{},\"peak_reserved\":{},\
         \"ratio\":{:.4},\"ns_per_allocation\":{:.1},\"moved_bytes\":{},\"relocations\":{},\
         \"spilled_bytes\":{},\"failures\":{},\"verified\":{}}}\n",
        serde_json::Value::from(name),
        trace.events.len(),
        trace.sizes.len(),
        trace.peak_live,
        report.peak_reserved,
        ratio(trace, report),
        report.nanoseconds / trace.sizes.len().max(1) as f64,
        report.moved_bytes,
        report.relocations,
        report.spilled_bytes,
        report.failures,
        report.verified,
    )
}

/// The line above the rows.
fn header() -> String {
    format!(
        "{:<16}{:>8}{:>12}{:>12}{:>14}{:>7}{:>9}{:>12}{:>7}{:>12}{:>9}{:>10}\n",
        "trace",
        "events",
        "allocations",
        "peak live",
        "peak reserved",
        "ratio",
        "ns/alloc",
        "moved",
        "moves",
        "spilled",
        "failures",
        "verified"
    )
}

fn row(name: &str, trace: &Trace, report: &Report) -> String {
    format!(
        "{name:<16}{:>8}{:>12}{:>12}{:>14}{:>7.3}{:>9.0}{:>12}{:>7}{:>12}{:>9}{:>10}\n",
        trace.events.len(),
        trace.sizes.len(),
        trace.peak_live,
        report.peak_reserved,
        ratio(trace, report),
        report.nanoseconds / trace.sizes.len().max(1) as f64,
        report.moved_bytes,
        report.relocations,
        report.spilled_bytes,
        report.failures,
        report.verified,
    )
}
