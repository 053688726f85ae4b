//! The arguments that benches on devices share: `[--device NAME]... [--quick] [--json]`, and where the bench takes
//! them `[--only LINE]... [--dtype NAME]`.

use std::time::{Duration, Instant};

use orlop::{DType, Device, Result};

const WARMING: Duration = Duration::from_millis(200);

/// What was asked for.
pub struct Args {
    /// Selectors of devices.
    devices: Vec<String>,
    /// Only lines whose names contain one of these, where the bench takes it.
    #[allow(dead_code)]
    pub only: Vec<String>,
    /// Of elements, where the bench takes it.
    #[allow(dead_code)]
    pub dtype: DType,
    /// Fewer runs, smaller sizes.
    pub quick: bool,
    /// A line of JSON for each figure.
    pub json: bool,
}

impl Args {
    /// The arguments of the process, with those in `takes` that not every bench has; what is none of them ends it.
    pub fn of(bench: &str, takes: &[&str]) -> Self {
        let mut read = Self {
            devices: Vec::new(),
            only: Vec::new(),
            dtype: DType::F32,
            quick: false,
            json: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || {
                // Cargo's `--bench` comes last.
                let value = args.next().filter(|value| !value.starts_with("--"));
                value.unwrap_or_else(|| refuse(bench, &format!("{arg} needs a value")))
            };
            match arg.as_str() {
                "--device" => read.devices.push(value()),
                "--only" if takes.contains(&"--only") => read.only.push(value()),
                "--dtype" if takes.contains(&"--dtype") => {
                    read.dtype = or_exit(bench, value().parse());
                }
                "--json" => read.json = true,
                "--quick" => read.quick = true,
                // What cargo passes.
                "--bench" => {}
                other => {
                    let there = [&["--device", "--quick", "--json"], takes].concat();
                    let there = there.join(", ");
                    refuse(
                        bench,
                        &format!("unknown argument {other}; there are {there}"),
                    )
                }
            }
        }
        read
    }

    /// The devices that were named, or all.
    pub fn selectors(&self) -> Result<Vec<String>> {
        if !self.devices.is_empty() {
            return Ok(self.devices.clone());
        }
        let all = Device::list()?;
        Ok(all.into_iter().map(|info| info.selector).collect())
    }
}

/// Ends the process when there is an error.
pub fn or_exit<T>(bench: &str, result: Result<T>) -> T {
    result.unwrap_or_else(|error| refuse(bench, &error.to_string()))
}

/// Ends the process with a line that says why.
pub fn refuse(bench: &str, why: &str) -> ! {
    eprintln!("{bench}: {why}");
    std::process::exit(2)
}

/// Runs what is timed next until it has compiled, and for 0.2 s more on hardware: it idles while kernels compile, and an H200's
/// clock falls from 1980 to 345 MHz within a second.
#[allow(dead_code)]
pub fn warm(device: &Device, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let mut once = || work().and_then(|()| device.synchronize());
    once()?;
    let compiled = Instant::now();
    while device.info().kind().is_gpu() && compiled.elapsed() < WARMING {
        once()?;
    }
    Ok(())
}

/// Median seconds of two ops that take turns: of `op(false)` and of `op(true)`.
#[allow(dead_code)]
pub fn in_turns<T>(
    device: &Device,
    runs: usize,
    mut op: impl FnMut(bool) -> Result<T>,
) -> Result<[f64; 2]> {
    let repeat = repeats(device);
    let mut run = |is_second: bool| -> Result<f64> {
        let start = Instant::now();
        let mut last = None;
        for _ in 0..repeat {
            last = Some(op(is_second)?);
        }
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64() / repeat as f64;
        drop(last);
        Ok(seconds)
    };
    warm(device, || run(false).and(run(true)).map(drop))?;
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (seconds, is_second) in seconds.iter_mut().zip([false, true]) {
            seconds.push(run(is_second)?);
        }
    }
    Ok(seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    }))
}

/// How many ops are timed between two waits: hardware finishes one in less than a wait takes.
pub fn repeats(device: &Device) -> usize {
    match device.info().kind().is_gpu() {
        true => 20,
        false => 1,
    }
}
