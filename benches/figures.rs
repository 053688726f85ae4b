//! First figures: matmul, add, small ops and transfers on every device, next to the limit that
//! this machine sets (the `gemm` crate, a parallel copy, memcpy), in one run.
//!
//! `cargo bench --bench figures [-- --device NAME]... [--quick] [--json]`

#[path = "common/args.rs"]
mod args;

use std::time::Instant;

use args::{Args, or_exit, repeats, warm};
use orlop::{DType, Device, Result, Tensor};
use rayon::prelude::*;

/// One line of the table.
struct Line {
    device: String,
    what: &'static str,
    value: f64,
    unit: &'static str,
    /// The limit in the same unit, and what it is.
    limit: Option<(f64, &'static str)>,
}

const BENCH: &str = "figures";

fn main() {
    let args = Args::of(BENCH, &[]);
    let devices = or_exit(BENCH, args.selectors());
    let (json, quick) = (args.json, args.quick);
    let limits = Limits::measure(quick);
    let mut lines = Vec::new();
    for selector in devices {
        let measured =
            Device::select(&selector).and_then(|device| measure(&device, &limits, quick));
        lines.extend(or_exit(BENCH, measured));
    }
    if json {
        for line in &lines {
            let (limit, what) = line.limit.unzip();
            println!(
                "{}",
                serde_json::json!({
                    "device": line.device, "what": line.what, "value": line.value,
                    "unit": line.unit, "limit": limit, "limit_is": what,
                })
            );
        }
    } else {
        print(&lines);
    }
}

fn print(lines: &[Line]) {
    let mut device = "";
    for line in lines {
        if line.device != device {
            device = &line.device;
            println!("\n{device}");
        }
        print!("  {:<34}{:>10.2} {:<8}", line.what, line.value, line.unit);
        match line.limit {
            Some((limit, what)) => {
                println!("{:>10.2} {what} ({:.2} of it)", limit, line.value / limit);
            }
            None => println!(),
        }
    }
}

/// Median seconds of `runs` runs after one to warm up; what a run returns is dropped outside of its time.
fn median<T>(runs: usize, mut work: impl FnMut() -> T) -> f64 {
    work();
    let mut seconds: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            let returned = work();
            let seconds = start.elapsed().as_secs_f64();
            drop(returned);
            seconds
        })
        .collect();
    middle(&mut seconds).unwrap_or(f64::NAN)
}

/// The median of what was measured, if anything was.
fn middle(measured: &mut [f64]) -> Option<f64> {
    measured.sort_by(f64::total_cmp);
    measured.get(measured.len() / 2).copied()
}

const SIZES: [(usize, &str); 4] = [
    (512, "matmul 512"),
    (1024, "matmul 1024"),
    (2048, "matmul 2048"),
    (4096, "matmul 4096 (hardware only)"),
];
const ADD: usize = 16 << 20;
/// Small ops recorded at a time: less than a batch holds on any adapter.
const BURST: usize = 12;
const COPY: usize = 64 << 20;

/// What this machine can do without orlop.
struct Limits {
    gemm: Vec<f64>,
    parallel_copy: f64,
    memcpy: f64,
}

impl Limits {
    fn measure(quick: bool) -> Self {
        let runs = if quick { 3 } else { 7 };
        let gemm = gemm_f32::gemm::f32::get_gemm_fn();
        let gemm = SIZES
            .iter()
            .map(|&(size, _)| {
                // The largest would take seconds here and is compared on hardware only.
                if size > 2048 {
                    return f64::NAN;
                }
                let (a, b) = (vec![1.0f32; size * size], vec![0.5f32; size * size]);
                let mut c = vec![0.0f32; size * size];
                let stride = size as isize;
                let seconds = median(runs, || {
                    // Columns first, as the `gemm` crate calls it: rows are columns of what is turned round.
                    // SAFETY: three square matrices of `size`.
                    unsafe {
                        gemm(
                            size,
                            size,
                            size,
                            c.as_mut_ptr(),
                            stride,
                            1,
                            false,
                            b.as_ptr(),
                            stride,
                            1,
                            a.as_ptr(),
                            stride,
                            1,
                            0.0,
                            1.0,
                            false,
                            false,
                            false,
                            gemm_common::Parallelism::Rayon(0),
                        );
                    }
                });
                flops(size) / seconds / 1e9
            })
            .collect();
        // As many bytes as the add moves: two thirds read, one third written.
        let from = vec![1.0f32; ADD * 3 / 2];
        let mut to = vec![0.0f32; ADD * 3 / 2];
        let seconds = median(runs, || {
            to.par_chunks_mut(1 << 16)
                .zip(from.par_chunks(1 << 16))
                .for_each(|(to, from)| to.copy_from_slice(from));
        });
        let parallel_copy = (ADD * 3 * 4) as f64 / seconds / 1e9;
        let from = vec![1u8; COPY];
        let mut to = vec![0u8; COPY];
        let seconds = median(runs, || to.copy_from_slice(&from));
        Self {
            gemm,
            parallel_copy,
            memcpy: COPY as f64 / seconds / 1e9,
        }
    }
}

fn flops(size: usize) -> f64 {
    2.0 * (size as f64).powi(3)
}

fn measure(device: &Device, limits: &Limits, quick: bool) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    let name = device.to_string();
    let hardware = device.info().kind().is_gpu();
    let slow = name.contains("SwiftShader") || device.info().backend == "Gl";
    let runs = if quick || slow { 3 } else { 7 };
    let mut line = |what, value, unit, limit| {
        lines.push(Line {
            device: name.clone(),
            what,
            value,
            unit,
            limit,
        });
    };

    for (&(size, what), &limit) in SIZES.iter().zip(&limits.gemm) {
        if (size > 2048 && !hardware) || (size > 1024 && slow) || (size > 1024 && quick) {
            continue;
        }
        let a = Tensor::rand(device, [size, size], DType::F32, 1)?;
        let b = Tensor::rand(device, [size, size], DType::F32, 2)?;
        let seconds = timed(device, runs, repeats(device), || a.matmul(&b))?;
        let limit = (!limit.is_nan()).then_some((limit, "gemm crate on the CPU"));
        line(what, flops(size) / seconds / 1e9, "GFLOP/s", limit);
    }

    let a = Tensor::rand(device, [ADD], DType::F32, 1)?;
    let b = Tensor::rand(device, [ADD], DType::F32, 2)?;
    let seconds = timed(device, runs, repeats(device), || a.add(&b))?;
    line(
        "add of 16 Mi f32",
        (ADD * 3 * 4) as f64 / seconds / 1e9,
        "GB/s",
        Some((limits.parallel_copy, "parallel copy on the CPU")),
    );
    drop((a, b));

    let one = Tensor::ones(device, [256], DType::F32)?;
    let count = if slow { 2_000 } else { 10_000 };
    let chained = |result: &mut Result<()>| {
        let mut sum = one.clone();
        for _ in 0..count {
            match sum.add(&one) {
                Ok(next) => sum = next,
                Err(error) => return *result = Err(error),
            }
        }
    };
    let mut result = Ok(());
    // What the caller's thread pays, then what the device needs on top.
    let mut recorded = Vec::new();
    let mut worked = Vec::new();
    let seconds = median(runs, || {
        let (start, work) = (Instant::now(), thread_seconds());
        chained(&mut result);
        recorded.push(start.elapsed().as_secs_f64());
        worked.extend(thread_seconds().zip(work).map(|(end, start)| end - start));
        let done = device.synchronize();
        if result.is_ok() {
            result = done;
        }
    });
    result?;
    // Without the first time, which warms up, as in `median`.
    recorded.remove(0);
    worked.drain(..worked.len().min(1));
    let mut each = |name, measured: &mut [f64], ops: usize| {
        if let Some(seconds) = middle(measured) {
            line(name, seconds / ops as f64 * 1e6, "us", None);
        }
    };
    each("small add, recorded", &mut recorded, count);
    // Less than a batch, so nothing is submitted: pipeline and bind groups are cached, nothing is
    // placed elsewhere.
    let mut result = Ok(());
    let mut bursts = Vec::new();
    for _ in 0..if device.is_cpu() { 0 } else { 200 } {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..BURST {
            result = result.and(one.add(&one).map(drop));
        }
        bursts.push(start.elapsed().as_secs_f64());
    }
    result?;
    each("small add, its recording", &mut bursts, BURST);
    each("small add, CPU with submission", &mut worked, count);
    line(
        "small add, chained and run",
        seconds / count as f64 * 1e6,
        "us",
        None,
    );
    let mut result = Ok(());
    let seconds = median(50, || {
        let done = one.add(&one).and_then(|_| device.synchronize());
        if result.is_ok() {
            result = done;
        }
    });
    result?;
    line("small add and wait", seconds * 1e6, "us", None);

    let host = vec![1.0f32; COPY / 4];
    let memcpy = Some((limits.memcpy, "memcpy"));
    let seconds = timed(device, runs, 1, || {
        Tensor::from_slice(device, &host, [COPY / 4])
    })?;
    line(
        "upload of 64 MiB",
        COPY as f64 / seconds / 1e9,
        "GB/s",
        memcpy,
    );
    let tensor = Tensor::from_slice(device, &host, [COPY / 4])?;
    let mut host = host;
    let mut result = Ok(());
    let seconds = median(runs, || {
        tensor
            .read_into(&mut host)
            .map_err(|error| result = Err(error))
    });
    result?;
    line(
        "download of 64 MiB, warm memory",
        COPY as f64 / seconds / 1e9,
        "GB/s",
        memcpy,
    );
    let mut result = Ok(());
    let seconds = median(runs, || {
        tensor.to_vec::<f32>().map_err(|error| result = Err(error))
    });
    result?;
    line(
        "download of 64 MiB, fresh memory",
        COPY as f64 / seconds / 1e9,
        "GB/s",
        memcpy,
    );
    Ok(lines)
}

/// Median seconds of one op, `repeat` of them before each wait.
fn timed(
    device: &Device,
    runs: usize,
    repeat: usize,
    mut op: impl FnMut() -> Result<Tensor>,
) -> Result<f64> {
    warm(device, || op().map(drop))?;
    let mut result = Ok(());
    let seconds = median(runs, || {
        let mut done = Ok(());
        for _ in 0..repeat {
            done = done.and_then(|()| op().map(drop));
        }
        let waited = device.synchronize();
        if result.is_ok() {
            result = done.and(waited);
        }
    });
    result.map(|()| seconds / repeat as f64)
}

/// Seconds that this thread has worked, where Linux tells.
#[cfg(target_os = "linux")]
fn thread_seconds() -> Option<f64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes the time where it is told to, nothing else.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    (status == 0).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

#[cfg(not(target_os = "linux"))]
fn thread_seconds() -> Option<f64> {
    None
}
