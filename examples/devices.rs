//! Lists every device that orlop finds, and what each can do. `--json` prints an array of objects.

#[path = "common/cli.rs"]
mod cli;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use orlop::{CooperativeMatrices, Device, DeviceInfo};
use serde_json::{Value, json};

/// Lists the devices and what each can do.
#[derive(Parser, Debug)]
#[command(name = "devices", version)]
struct Args {
    /// Print a JSON array of objects
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    cli::run(|args: Args| -> Result<ExitCode, Box<dyn Error>> {
        let devices = Device::list()?;
        cli::say(if args.json {
            format!("{}\n", devices.iter().map(object).collect::<Value>())
        } else {
            format!("{}\n{}\n", table(&devices), best())
        });
        Ok(ExitCode::SUCCESS)
    })
}

fn object(info: &DeviceInfo) -> Value {
    let can = &info.capabilities;
    json!({
        "selector": info.selector,
        "name": info.name,
        "kind": info.kind().name(),
        "backend": info.backend,
        "driver": info.driver,
        "memory_total": info.memory_total,
        "memory_free": info.memory_free,
        "f16": can.f16,
        "f64": can.f64,
        "subgroups": can.subgroup_sizes.map(|(least, most)| [least, most]),
        "cooperative_matrices": {
            "f16": can.cooperative_matrices.f16,
            "f32": can.cooperative_matrices.f32,
        },
        "timestamps": can.timestamps,
        "immediate_bytes": can.immediate_bytes,
        "max_buffer_bytes": can.max_buffer_bytes,
        "max_binding_bytes": can.max_binding_bytes,
        "max_bindings": can.max_bindings,
        "max_workgroups": can.max_workgroups,
        "max_invocations": can.max_invocations,
        "max_workgroup_size": can.max_workgroup_size,
        "workgroup_memory_bytes": can.workgroup_memory_bytes,
    })
}

fn table(devices: &[DeviceInfo]) -> String {
    let head = [
        "selector",
        "kind",
        "backend",
        "memory",
        "free",
        "f16",
        "f64",
        "subgroups",
        "cooperative",
        "timestamps",
        "immediates",
        "buffer",
        "binding",
        "name",
        "driver",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(devices.iter().map(row));
    let mut widths = [0; 15];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let line: String = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(info: &DeviceInfo) -> [String; 15] {
    let can = &info.capabilities;
    let flag = |has: bool| if has { "yes" } else { "-" }.to_owned();
    let size = |bytes: Option<u64>| bytes.map_or("?".to_owned(), shown);
    [
        info.selector.clone(),
        info.kind().name().to_owned(),
        info.backend.to_owned(),
        size(info.memory_total),
        size(info.memory_free),
        flag(can.f16),
        flag(can.f64),
        can.subgroup_sizes.map_or("-".to_owned(), |(least, most)| {
            if least == most {
                least.to_string()
            } else {
                format!("{least}-{most}")
            }
        }),
        cooperative(can.cooperative_matrices),
        flag(can.timestamps),
        match can.immediate_bytes {
            0 => "-".to_owned(),
            bytes => shown(bytes.into()),
        },
        limit(can.max_buffer_bytes),
        limit(can.max_binding_bytes),
        info.name.clone(),
        info.driver.clone(),
    ]
}

/// Dtypes and sizes of cooperative matrices.
fn cooperative(matrices: CooperativeMatrices) -> String {
    let edges = [("f16", matrices.f16), ("f32", matrices.f32)];
    let shown: Vec<String> = edges
        .iter()
        .filter_map(|(dtype, edge)| edge.map(|edge| format!("{dtype} {edge}x{edge}")))
        .collect();
    match shown.is_empty() {
        true => "-".to_owned(),
        false => shown.join(", "),
    }
}

/// A limit; no limit but the address space's is none.
fn limit(bytes: u64) -> String {
    if bytes >= isize::MAX as u64 {
        "any".to_owned()
    } else {
        shown(bytes)
    }
}

fn shown(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

fn best() -> String {
    match Device::best() {
        Ok(device) => format!("Device::best() opens {device}"),
        Err(error) => format!("Device::best() fails: {error}"),
    }
}
