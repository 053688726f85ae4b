//! Matrix products of orlop beside others', in one run, round by round.
//!
//! `cargo run --release --bin matmul [-- --device cpu|lavapipe|swiftshader|gpu|SELECTOR]... [--json]`
//!
//! On the CPU: the `gemm` crate, faer and OpenBLAS (where the system has it), called directly; on
//! adapters: burn-wgpu; with `--pytorch` PyTorch too, on the CPU or by CUDA, with TF32 off and on
//! (`python3`, or `$ORLOP_PYTHON`). Burn and PyTorch take the adapter that they find: they are left out where that may be another.
//! `--dtype f16` is orlop, without and with cooperative matrices, and
//! PyTorch. Figures are medians; every result is checked. `--first` measures the first product of a
//! process instead, 256^3 or those of `--shape`: from its start to the result on the host, and the call alone.

#[path = "../../adapter.rs"]
mod adapter;
#[cfg(feature = "burn")]
mod burn;
mod first;
mod host;
mod orlop;
mod peer;
mod pytorch;
mod shapes;

use std::process::{Command, Stdio, exit};

use ::orlop::{DType, DeviceInfo, DeviceKind};
use clap::Parser;
use peer::Peer;
use pytorch::{Precision, PyTorch};
use serde_json::{Value, json};
use shapes::{LARGE, PROBLEMS, Problem};

#[derive(Parser)]
struct Arguments {
    /// Where: cpu, lavapipe, swiftshader, gpu, any selector of orlop's; the first three without it.
    #[arg(long)]
    device: Vec<String>,
    /// Only problems whose name contains this.
    #[arg(long)]
    shape: Vec<String>,
    /// One line of JSON a problem, seconds per product.
    #[arg(long)]
    json: bool,
    /// Rounds that a median is of.
    #[arg(long)]
    rounds: Option<usize>,
    /// f32 or f16.
    #[arg(long, default_value = "f32", value_parser = parse_dtype)]
    dtype: DType,
    /// Beside PyTorch.
    #[arg(long)]
    pytorch: bool,
    /// Only orlop.
    #[arg(long)]
    alone: bool,
    /// Only the first product of a process, in f32: 256^3, or each of the shapes.
    #[arg(long, conflicts_with_all = ["pytorch", "dtype"])]
    first: bool,
    /// A process of its own for one device: JSON only.
    #[arg(long, hide = true)]
    child: bool,
    /// A process of its own for the first product, by the peer of this name.
    #[arg(long, hide = true)]
    first_by: Option<String>,
}

fn parse_dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        other => Err(format!("{other} is neither f32 nor f16")),
    }
}

fn main() {
    let mut arguments = Arguments::parse();
    if arguments.device.is_empty() {
        arguments.device = ["cpu", "lavapipe", "swiftshader"]
            .map(str::to_owned)
            .to_vec();
    }
    if let Some(peer) = &arguments.first_by {
        let problem = arguments.shape.first().map_or("", String::as_str);
        return first::child(&arguments.device[0], peer, problem);
    }
    if arguments.child {
        return child(&arguments);
    }
    for device in &arguments.device {
        if arguments.first {
            let peers = first::peers(device, arguments.alone);
            for problem in first::problems(&arguments.shape) {
                for line in first::measure(device, &problem, &peers) {
                    match arguments.json {
                        true => println!("{line}"),
                        false => first::print(&line),
                    }
                }
            }
            continue;
        }
        let mut command = on(device);
        help_openblas(&mut command);
        command.args(
            std::env::args()
                .skip(1)
                .filter(|argument| argument != "--json"),
        );
        let output = command
            .args(["--child", "--device", device])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .output();
        let output = output.unwrap_or_else(|error| fail(&format!("{device}: {error}")));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match arguments.json {
            true => print!("{text}"),
            false => table(device, &text),
        }
        if !output.status.success() {
            fail(&format!("{device}: {}", output.status));
        }
    }
}

fn fail(problem: &str) -> ! {
    eprintln!("matmul: {problem}");
    exit(2)
}

/// This program again.
fn on(device: &str) -> Command {
    adapter::alone(device).unwrap_or_else(|error| fail(&error))
}

/// Has OpenBLAS take its kernels for Skylake-X where it knows the processor too little to take some of 512 bits.
fn help_openblas(command: &mut Command) {
    let is_narrow = |core: String| !host::WIDE.contains(&core.as_str());
    if std::env::var_os("OPENBLAS_CORETYPE").is_none()
        && is_avx512()
        && host::OpenBlas::open()
            .and_then(|openblas| openblas.core())
            .is_some_and(is_narrow)
    {
        command.env("OPENBLAS_CORETYPE", "SkylakeX");
    }
}

fn is_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

fn open(selector: &str, matrices: bool) -> ::orlop::Device {
    let builder = ::orlop::Device::builder().select(selector);
    let opened = builder.experimental_cooperative_matrices(matrices).build();
    opened.unwrap_or_else(|error| fail(&error.to_string()))
}

fn takes(who: &str, device: &str) -> bool {
    adapter::takes(who, device).unwrap_or_else(|error| fail(&error))
}

fn peers(device: &str, plain: ::orlop::Device, arguments: &Arguments) -> Vec<Box<dyn Peer>> {
    let dtype = arguments.dtype;
    let info = plain.info().clone();
    let mut peers: Vec<Box<dyn Peer>> = vec![Box::new(orlop::Orlop::on(plain, dtype))];
    if info.capabilities.cooperative_matrices.edge(dtype).is_some() {
        peers.push(Box::new(orlop::Orlop::on(open(device, true), dtype)));
    }
    if arguments.alone {
        return peers;
    }
    let is_cpu = info.kind() == DeviceKind::Cpu;
    if arguments.pytorch && info.kind() == DeviceKind::Software {
        eprintln!("without PyTorch, which has no {device}");
    } else if arguments.pytorch && (is_cpu || takes("PyTorch", device)) {
        let place = if is_cpu { "cpu" } else { "cuda" };
        let precisions: &[Precision] = match (dtype, is_cpu) {
            (DType::F16, _) => &[Precision::F16],
            (_, true) => &[Precision::F32],
            (_, false) => &[Precision::F32, Precision::Tf32],
        };
        for &precision in precisions {
            let opened = PyTorch::open(place, precision);
            peers.push(Box::new(opened.unwrap_or_else(|error| fail(&error))));
        }
    }
    if dtype == DType::F16 {
        return peers;
    }
    if is_cpu {
        peers.push(Box::new(host::Gemm));
        peers.push(Box::new(host::Faer));
        match host::OpenBlas::open() {
            Some(openblas) => peers.push(Box::new(openblas)),
            None => eprintln!("matmul: no libopenblas here"),
        }
    } else {
        #[cfg(feature = "burn")]
        if takes("burn-wgpu", device) {
            peers.push(Box::new(burn::Burn::open()));
        }
    }
    peers
}

/// The most operations that a device is asked for: seconds at burn's speed.
fn most(info: &DeviceInfo) -> f64 {
    match info.kind() {
        DeviceKind::Software if info.name.contains("SwiftShader") || info.backend == "Gl" => 2.2e9,
        DeviceKind::Software => 2e10,
        _ => f64::INFINITY,
    }
}

fn child(arguments: &Arguments) {
    let device = arguments.device.last().map_or("cpu", String::as_str);
    let plain = open(device, false);
    let info = plain.info().clone();
    let mut peers = peers(device, plain, arguments);
    let (rounds, seconds) = match info.kind() {
        DeviceKind::Cpu => (11, 0.02),
        _ => (3, 0.1),
    };
    let rounds = arguments.rounds.unwrap_or(rounds).max(1);
    let large = match info.kind().is_gpu() {
        true => &LARGE[..],
        false => &[],
    };
    for problem in PROBLEMS.iter().chain(large).copied() {
        let is_asked = |part: &String| problem.name().contains(part.as_str());
        let asked = arguments.shape.is_empty() || arguments.shape.iter().any(is_asked);
        if !asked || problem.flops() > most(&info) {
            continue;
        }
        let measured = peer::measure(&mut peers, &problem, rounds, seconds, arguments.dtype);
        let figures: Vec<Value> = peers
            .iter()
            .zip(measured)
            .map(|(peer, seconds)| json!({ "who": peer.name(), "seconds": seconds }))
            .collect();
        println!("{}", line(device, &problem, arguments.dtype, &figures));
    }
}

fn line(device: &str, problem: &Problem, dtype: DType, figures: &[Value]) -> Value {
    let Problem {
        batch,
        m,
        k,
        n,
        turned,
    } = *problem;
    json!({
        "device": device, "problem": problem.name(), "batch": batch, "m": m, "k": k, "n": n,
        "turned": turned, "flops": problem.flops(), "figures": figures,
        "matrix_bytes": problem.is_vector().then(|| problem.matrix_bytes(dtype)),
    })
}

/// GFLOP/s, or GB/s of the matrix for products with vectors, and orlop over the best of the others.
fn table(device: &str, text: &str) {
    let lines: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let Some(first) = lines.first() else {
        fail(&format!(
            "{device}: no product of those that it has time for is called so"
        ))
    };
    print!("\n{device:<34}");
    for figure in first["figures"].as_array().into_iter().flatten() {
        print!("{:>12}", figure["who"].as_str().unwrap_or_default());
    }
    println!("{:>12}", "over best");
    for line in &lines {
        let (amount, unit) = match line["matrix_bytes"].as_f64() {
            Some(bytes) => (bytes, "GB/s"),
            None => (line["flops"].as_f64().unwrap_or(f64::NAN), "GFLOP/s"),
        };
        let problem = line["problem"].as_str().unwrap_or_default();
        print!("{:<34}", format!("{problem}, {unit}"));
        let figures: Vec<Option<f64>> = line["figures"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|figure| {
                figure["seconds"]
                    .as_f64()
                    .map(|seconds| amount / seconds / 1e9)
            })
            .collect();
        for figure in &figures {
            match figure {
                Some(figure) => print!("{figure:>12.2}"),
                None => print!("{:>12}", "-"),
            }
        }
        let best = |own: bool| {
            let names = line["figures"].as_array().into_iter().flatten();
            let figures = names.zip(&figures).filter(|(figure, _)| {
                let name = figure["who"].as_str().unwrap_or_default();
                orlop::NAMES.contains(&name) == own
            });
            figures
                .filter_map(|(_, figure)| *figure)
                .fold(f64::NAN, f64::max)
        };
        println!("{:>12.2}", best(true) / best(false));
    }
}
