//! A kernel of one's own: a step of heat through a plate, as WGSL for every GPU and as a Rust closure for the
//! CPU. The two are compared on random inputs, then the plate cools.

#[path = "common/cli.rs"]
mod cli;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use orlop::{DType, Device, Kernel, Shape, Tensor, Tolerance};

/// Runs a program's own WGSL kernel and compares it with its CPU twin.
#[derive(Parser, Debug)]
#[command(name = "custom_kernel", version)]
struct Args {
    /// cpu, gpu:0, soft:1, or a piece of a name; default: $ORLOP_DEVICE, else the best GPU, else
    /// the native CPU
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Rows and columns of the plate
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(3..=8192))]
    size: u32,
    /// Steps of time
    #[arg(long, default_value_t = 200)]
    steps: u32,
}

/// Each inner point moves towards the mean of its four neighbours; the rim stays.
const DIFFUSE: &str = "
struct Params { rate: f32, rows: u32, columns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> heat: array<f32>;
@group(0) @binding(1) var<storage, read_write> next: array<f32>;
@compute @workgroup_size(16, 16) fn diffuse(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.columns || id.y >= params.rows { return; }
    let at = id.y * params.columns + id.x;
    let inner = id.x > 0 && id.y > 0 && id.x < params.columns - 1 && id.y < params.rows - 1;
    next[at] = heat[at];
    if inner {
        let around = heat[at - 1] + heat[at + 1] + heat[at - params.columns] + heat[at + params.columns];
        next[at] += params.rate * (around - 4 * heat[at]);
    }
}";

fn diffuse() -> orlop::Result<Kernel> {
    Kernel::wgsl("diffuse", DIFFUSE)?
        .overwrites()
        .shape("next", |inputs: &[&Shape]| Ok(inputs[0].clone()))
        .twin(|call| {
            let (rate, heat) = (call.scalar::<f32>("rate")?, call.input::<f32>("heat")?);
            let (rows, columns) = (call.scalar::<u32>("rows")?, call.scalar::<u32>("columns")?);
            let (rows, columns) = (rows as usize, columns as usize);
            let next = call.output::<f32>("next")?;
            next.copy_from_slice(heat);
            for at in (1..rows - 1).flat_map(|row| (1..columns - 1).map(move |x| row * columns + x))
            {
                let around = heat[at - 1] + heat[at + 1] + heat[at - columns] + heat[at + columns];
                next[at] += rate * (around - 4.0 * heat[at]);
            }
            Ok(())
        })
}

fn main() -> ExitCode {
    cli::run(example)
}

fn example(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let device = match &args.device {
        Some(selector) => Device::select(selector)?,
        None => Device::best()?,
    };
    let kernel = diffuse()?;
    let within = Tolerance::new(1e-5, 1e-5);
    let checked = kernel.check(&device, &[("heat", &[33, 65])], within, |launch| {
        let launch = launch
            .scalar("rate", 0.2)
            .scalar("rows", 33)
            .scalar("columns", 65);
        launch.invocations([65, 33, 1])
    });
    let verdict = match checked {
        Ok(()) => "the kernel gives what its twin does".to_owned(),
        Err(orlop::Error::InvalidArgument(wrong)) => {
            cli::complain(format_args!("wrong: {wrong}\n"));
            return Ok(ExitCode::FAILURE);
        }
        // The CPU has no kernels and GL no bounds checks: the twin runs there.
        Err(orlop::Error::Unsupported(reason)) => reason.to_string(),
        Err(error) => return Err(error.into()),
    };

    let (size, side) = (args.size as usize, u64::from(args.size));
    let mut heat = Tensor::zeros(&device, [size, size], DType::F32)?;
    heat.slice((size / 3..2 * size / 3, size / 3..2 * size / 3))?
        .fill(100.0)?;
    let step = |heat: &Tensor| {
        let launch = kernel.launch().input("heat", heat).scalar("rate", 0.2);
        let launch = launch
            .scalar("rows", args.size)
            .scalar("columns", args.size);
        launch.invocations([side, side, 1]).run()
    };
    device.synchronize()?;
    let started = Instant::now();
    for _ in 0..args.steps {
        heat = step(&heat)?;
    }
    device.synchronize()?;
    let seconds = started.elapsed().as_secs_f64();
    // A plate that is larger than a binding is the twin's.
    let log = device.placement_log();
    let elsewhere = log.events.iter().rev().find(|event| event.op == "diffuse");
    let ran_on = elsewhere.map_or(String::new(), |event| {
        format!("ran on    {}: {}\n", event.to, event.reason)
    });
    let values = heat.to_vec::<f32>()?;
    let hottest = values.iter().copied().fold(0.0, f32::max);
    let mean = values.iter().map(|&heat| f64::from(heat)).sum::<f64>() / values.len() as f64;
    let points = f64::from(args.steps) * values.len() as f64;
    cli::say(format_args!(
        "device    {device}\n{ran_on}check     {verdict}\nplate     {size} x {size}, {} steps in {seconds:.3} s, {:.1} million points a second\nheat      mean {mean:.4}, hottest {hottest:.2}\n{}",
        args.steps,
        points / seconds / 1e6,
        device.memory_summary(),
    ));
    Ok(ExitCode::SUCCESS)
}
