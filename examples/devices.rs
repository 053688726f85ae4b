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
            format!(
                "{}\n{}\n",
                devices.iter().map(text_of).collect::<String>(),
                best()
            )
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

/// Of each device who it is, and below what it can do.
fn text_of(info: &DeviceInfo) -> String {
    let can = &info.capabilities;
    let memory = match (info.memory_total, info.memory_free) {
        (None, _) => "memory unknown".to_owned(),
        (Some(total), None) => format!("memory {}", shown(total)),
        (Some(total), Some(free)) => format!("memory {}, {} free", shown(total), shown(free)),
    };
    let mut found = vec![memory];
    let has = [
        (can.f16, "f16"),
        (can.f64, "f64"),
        (can.timestamps, "timestamps"),
    ];
    found.extend(
        has.iter()
            .filter(|(has, _)| *has)
            .map(|(_, name)| (*name).to_owned()),
    );
    if let Some((least, most)) = can.subgroup_sizes {
        found.push(match least == most {
            true => format!("subgroups of {least}"),
            false => format!("subgroups of {least} to {most}"),
        });
    }
    found.extend(cooperative(can.cooperative_matrices));
    let mut limits = vec![
        format!("buffers up to {}", limit(can.max_buffer_bytes)),
        format!("bindings up to {}", limit(can.max_binding_bytes)),
    ];
    if can.immediate_bytes > 0 {
        limits.push(format!("immediates {}", shown(can.immediate_bytes.into())));
    }
    format!(
        "{:<8} {}\n         {}, {}, {}\n         {}\n         {}\n",
        info.selector,
        info.name,
        info.kind().name(),
        info.backend,
        info.driver,
        found.join(", "),
        limits.join(", "),
    )
}

/// Dtypes and sizes of cooperative matrices.
fn cooperative(matrices: CooperativeMatrices) -> Option<String> {
    let edges = [("f16", matrices.f16), ("f32", matrices.f32)];
    let shown: Vec<String> = edges
        .iter()
        .filter_map(|(dtype, edge)| edge.map(|edge| format!("{dtype} {edge}x{edge}")))
        .collect();
    (!shown.is_empty()).then(|| format!("cooperative matrices of {}", shown.join(" and ")))
}

/// A limit; no limit but the address space's is none.
fn limit(bytes: u64) -> String {
    if bytes >= isize::MAX as u64 {
        "any size".to_owned()
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
