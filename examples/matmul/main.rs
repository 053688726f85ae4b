//! Multiplies two matrices on the best device and says how fast, how exact, and at what cost in
//! memory and transfers: random ones, or NumPy files (`--a A.npy --b B.npy --out C.npy`).
//! `--json` prints one JSON object. Exit code 1 when an entry is above its error bound, 2 when
//! there was no product.

mod args;
mod check;
#[path = "../common/cli.rs"]
mod cli;
mod npy;
mod report;
mod values;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use args::Args;
use check::Roundings;
use orlop::{DType, Device, DeviceKind, Tensor, explain_matmuls};
use report::Report;
use values::{Array, Values};

fn main() -> ExitCode {
    cli::run(example)
}

fn example(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(path) = &args.out {
        cli::check_writable(path)?;
    }
    let (device, note) = open(&args)?;
    let (a, b) = operands(&args, &device)?;

    let started = Instant::now();
    let (left, right) = (a.upload(&device)?, b.upload(&device)?);
    device.synchronize()?;
    let upload = started.elapsed().as_secs_f64();

    let (first, plans) = explain_matmuls(|| timed(&device, &left, &right, 1));
    let (mut product, first_seconds) = first?;
    let mut times = Vec::new();
    let in_a_row = match device.is_cpu() {
        // Nothing was compiled.
        true => in_ten_ms(first_seconds),
        false => {
            drop(product);
            let in_a_row;
            (product, in_a_row) = at_speed(&device, &left, &right)?;
            in_a_row
        }
    };
    for _ in 0..args.repeat {
        drop(product);
        let seconds;
        (product, seconds) = timed(&device, &left, &right, in_a_row)?;
        times.push(seconds);
    }
    times.sort_by(f64::total_cmp);

    let started = Instant::now();
    let c = Values::of(&product)?;
    let download = started.elapsed().as_secs_f64();
    if let Some(path) = &args.out {
        npy::write(path, &c, product.shape())?;
    }

    // Files may hold anything.
    let roundings = match &args.a {
        Some(_) => Roundings::Any,
        None => Roundings::Random,
    };
    let last = |shape: &orlop::Shape, back: usize| {
        let at = shape.rank().checked_sub(back);
        at.map_or(1, |at| shape[at])
    };
    // A vector on the left is a row, on the right a column.
    let sizes = [
        last(&a.shape, 2),
        last(&a.shape, 1),
        if b.shape.rank() == 1 {
            1
        } else {
            last(&b.shape, 1)
        },
    ];
    let report = Report {
        elsewhere: elsewhere(&device, &product),
        sizes,
        dtype: product.dtype(),
        plan: plans.first().map(|(_, plan)| plan.to_string()),
        first_seconds,
        seconds: times[times.len() / 2],
        repeats: args.repeat,
        in_a_row,
        check: check::check(&a, &b, &c, roundings)?,
        roundings,
        upload: (a.bytes() + b.bytes(), upload),
        download: (c.len() * c.dtype().size(), download),
        memory: device.memory(),
        shapes: [a.shape, b.shape, product.shape().clone()],
        device,
    };
    if args.json {
        cli::complain(note);
        cli::say(report.json());
    } else {
        cli::say(format!("{note}{}", report.text()));
    }
    if report.check.holds() {
        Ok(ExitCode::SUCCESS)
    } else {
        cli::complain(format!(
            "wrong: an entry is off by {:e}, its bound is {:e}\n",
            report.check.error, report.check.bound
        ));
        Ok(ExitCode::FAILURE)
    }
}

/// The device, and a line when it is only the CPU because there was nothing better.
fn open(args: &Args) -> Result<(Device, &'static str), Box<dyn Error>> {
    let builder = Device::builder().experimental_cooperative_matrices(args.cooperative);
    if let Some(selector) = &args.device {
        return Ok((builder.select(selector).build()?, ""));
    }
    let device = builder.build()?;
    let named = std::env::var("ORLOP_DEVICE").is_ok_and(|name| !name.trim().is_empty());
    let note = if named || !device.is_cpu() {
        ""
    } else if Device::list()?.iter().any(|info| info.kind().is_gpu()) {
        "no GPU could be opened: running on the native CPU device\n"
    } else {
        "no GPU found: running on the native CPU device\n"
    };
    Ok((device, note))
}

/// The matrices of the files, or random ones.
fn operands(args: &Args, device: &Device) -> Result<(Array, Array), Box<dyn Error>> {
    let dtype = args.dtype.map(DType::from);
    if let (Some(a), Some(b)) = (&args.a, &args.b) {
        let (a, b) = (npy::read(a)?, npy::read(b)?);
        return Ok(match dtype {
            Some(dtype) => (a.cast(dtype)?, b.cast(dtype)?),
            None => (a, b),
        });
    }
    let dtype = dtype.unwrap_or(DType::F32);
    let [m, k, n] = [args.m, args.k, args.n].map(|size| size.unwrap_or(args.size));
    check_host_memory([m, k, n], dtype, device)?;
    Ok((
        Array::random([m, k].into(), dtype, 1)?,
        Array::random([k, n].into(), dtype, 2)?,
    ))
}

/// Says no before the system kills the process: operating systems promise more than they have.
fn check_host_memory([m, k, n]: [usize; 3], dtype: DType, device: &Device) -> Result<(), String> {
    let elements = [(m, k), (k, n), (m, n)]
        .iter()
        .map(|&(rows, columns)| rows as u128 * columns as u128)
        .fold(0, u128::saturating_add);
    // Once here for the check, once while numbers are made, once where the device has no memory of its own.
    let copies = match device.info().kind() {
        DeviceKind::DiscreteGpu => 2,
        _ => 3,
    };
    let needed = elements.saturating_mul(dtype.size() as u128 * copies);
    match Device::cpu().info().memory_free {
        Some(free) if needed > u128::from(free) => Err(format!(
            "[{m}, {k}] x [{k}, {n}] needs about {:.1} GiB of host memory, {:.1} GiB is available",
            needed as f64 / f64::from(1 << 30),
            free as f64 / f64::from(1 << 30)
        )),
        _ => Ok(()),
    }
}

/// Seconds of products between two waits, unless one takes longer: a wait takes as long as a small product.
const RUN: f64 = 0.01;
/// For which hardware is kept busy first: its clock falls while kernels compile, and takes its time to rise.
const WARMING: Duration = Duration::from_millis(200);

/// The last of so many products, and the seconds of one until all were there.
fn timed(device: &Device, a: &Tensor, b: &Tensor, in_a_row: u32) -> orlop::Result<(Tensor, f64)> {
    let started = Instant::now();
    let mut product = a.matmul(b)?;
    for _ in 1..in_a_row {
        drop(product);
        product = a.matmul(b)?;
    }
    device.synchronize()?;
    let seconds = started.elapsed().as_secs_f64();
    Ok((product, seconds / f64::from(in_a_row)))
}

/// A product by a device that is at speed, and how many to time between two waits.
fn at_speed(device: &Device, a: &Tensor, b: &Tensor) -> orlop::Result<(Tensor, u32)> {
    let started = Instant::now();
    loop {
        let (product, seconds) = timed(device, a, b, 1)?;
        if !device.info().kind().is_gpu() || started.elapsed() > WARMING {
            return Ok((product, in_ten_ms(seconds)));
        }
    }
}

fn in_ten_ms(seconds: f64) -> u32 {
    (RUN / seconds).clamp(1.0, 1000.0) as u32
}

/// Where the product ran when the device could not do it, and what the device lacks.
fn elsewhere(device: &Device, product: &Tensor) -> Option<(String, String)> {
    let log = device.placement_log();
    let event = log.events.iter().rev().find(|event| {
        event.op == "matmul" || (product.device() != device && event.op == "from_slice")
    })?;
    Some((event.to.clone(), event.reason.clone()))
}
