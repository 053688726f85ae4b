//! Finds the fastest kernel for matrix products of each size on a device, and writes those that beat the
//! plan's own as a table (TOML) that a program ships: `Device::builder().matmul_table(..)`.
//!
//! Needs the feature `matmul-table`. Exit code 2 when there is nothing to measure on.

#[path = "../common/cli.rs"]
mod cli;
mod measure;
mod merge;

use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Bench, Case, LeftOut, Times, Way};
use orlop::{DType, Device, MatmulProblem, MatmulTable};

/// Measures the kernels for matrix products on a device and writes a table of the best.
///
/// Each size of the ladder stands for the sizes around it, up to the geometric mean with its neighbours. A
/// kernel is in the table where it saves --margin percent of the planned one's time at least, in the median of
/// rounds that take turns. Kernels that give other entries than the CPU are named, and not timed. --out has what was
/// found so far while it runs.
#[derive(Parser, Debug)]
#[command(name = "tune", version, verbatim_doc_comment)]
struct Args {
    /// gpu:0, soft:1, or a piece of a name (nvidia, lavapipe); default: $ORLOP_DEVICE, else the best GPU
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Where the table goes; it is printed without it
    #[arg(long, value_name = "FILE.toml")]
    out: Option<PathBuf>,
    /// A table that is there: what is measured now goes before it
    #[arg(long, value_name = "FILE.toml")]
    base: Option<PathBuf>,
    /// Sizes of m, k and n
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256,1024,4096")]
    sizes: Vec<usize>,
    /// Products side by side
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    batches: Vec<usize>,
    /// f32, f16, ...
    #[arg(long, value_delimiter = ',', default_value = "f32", value_parser = parse_dtype)]
    dtypes: Vec<DType>,
    /// Cooperative matrices (tensor cores) too, where the device has some for a dtype; such a table is for
    /// devices that are opened with them, one without keeps them from being used
    #[arg(long)]
    cooperative: bool,
    /// Operands stored by columns as well: A, B, both
    #[arg(long)]
    layouts: bool,
    /// Rounds that a median is of
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Percent of the planned kernel's time that must be saved
    #[arg(long, default_value_t = 5.0, allow_negative_numbers = true, value_parser = parse_percent)]
    margin: f64,
    /// Problems whose planned product takes longer than this many seconds are left out
    #[arg(long, default_value_t = 0.5, allow_negative_numbers = true, value_parser = parse_seconds)]
    longest: f64,
    /// Print what each kernel takes for each problem, on stderr
    #[arg(long)]
    times: bool,
}

fn parse_dtype(name: &str) -> Result<DType, orlop::Error> {
    name.parse()
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text
        .parse()
        .ok()
        .filter(|percent: &f64| percent.is_finite());
    percent.ok_or_else(|| "a number of percent".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "a number of seconds, not below 0".to_owned())
}

fn main() -> ExitCode {
    cli::run(example)
}

fn example(mut args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let mut builder = Device::builder().experimental_cooperative_matrices(args.cooperative);
    if let Some(selector) = &args.device {
        builder = builder.select(selector);
    }
    let device = builder.build()?;
    if device.is_cpu() {
        return Err(
            "the CPU device has no kernels to choose from: name a GPU or a software adapter".into(),
        );
    }
    let base = match &args.base {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            MatmulTable::from_toml(&text).map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => MatmulTable::new(),
    };
    if args.dtypes.contains(&DType::Bool) {
        return Err("--dtypes bool: products are of numbers".into());
    }
    for (name, numbers) in [("--sizes", &args.sizes), ("--batches", &args.batches)] {
        if numbers.contains(&0) {
            return Err(format!("{name} 0: there is nothing to multiply").into());
        }
    }
    if let Some(path) = &args.out {
        cli::check_writable(path)?;
    }
    args.dtypes.sort_unstable_by_key(|dtype| dtype.name());
    args.dtypes.dedup();
    args.sizes.sort_unstable();
    args.sizes.dedup();
    args.batches.sort_unstable();
    args.batches.dedup();

    let cases = cases(&args);
    if cases.is_empty() {
        return Err("a row times a matrix is measured as a column: name a size above 1".into());
    }
    let bar = ProgressBar::new(cases.len() as u64).with_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} {elapsed} (left: {eta}) {msg}",
    )?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let bench = Bench {
        device: &device,
        rounds: args.rounds as usize,
        longest: args.longest,
    };
    let mut found = Vec::new();
    let (mut left_out, mut failed, mut stopped) = (Vec::new(), 0, None);
    let info = device.info();
    // Written after each find: what stops the rest leaves what was found.
    let table = |found: &[(MatmulProblem, Way)]| -> orlop::Result<String> {
        let mut table = MatmulTable::new();
        for choice in merge::choices(found.to_vec(), &args.sizes, &args.batches) {
            table.push(&info.name, Some(&info.driver), choice)?;
        }
        table.extend(base.clone());
        Ok(format!(
            "# Kernels for matrix products, measured by orlop's example `tune`: at least {} % of the planned one's time\n# was to be saved. Those of --base are as they were.\n\n{}",
            args.margin,
            table.to_toml(),
        ))
    };
    for case in cases {
        bar.set_message(case.to_string());
        let say = |text: String| bar.suspend(|| cli::complain(text));
        match bench.times(&case) {
            Ok(Ok(times)) => {
                for (way, why) in &times.failed {
                    say(format!("{case}: {way} {why}\n"));
                }
                failed += times.failed.len();
                if args.times {
                    say(table_of(&case, &times));
                }
                if let Some((way, seconds)) = times.faster(args.margin / 100.0) {
                    say(match times.planned.is_finite() {
                        true => format!(
                            "{case}: {way}, {:.2} of the planned kernel's time\n",
                            seconds / times.planned
                        ),
                        false => format!("{case}: {way}, for the planned one\n"),
                    });
                    found.push((times.problem, way));
                    if let Some(path) = &args.out {
                        cli::write(path, table(&found)?.as_bytes())?;
                    }
                }
            }
            Ok(Err(why)) => left_out.push(why),
            Err(lost @ orlop::Error::DeviceLost(_)) => {
                stopped = Some(lost);
                break;
            }
            Err(error) => {
                failed += 1;
                say(format!("{case}: {error}\n"));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    let of = |why: LeftOut| left_out.iter().filter(|&&out| out == why).count();
    cli::complain(format!(
        "{info}: {} problems have a kernel that saves as much; left out were {} that take more memory than there is, {} that take longer than {} s, and {} that have no kernel but the CPU's; {failed} times a kernel failed\n",
        found.len(),
        of(LeftOut::Memory),
        of(LeftOut::TooLong),
        args.longest,
        of(LeftOut::NoKernel),
    ));
    let text = table(&found)?;
    match &args.out {
        Some(path) => cli::write(path, text.as_bytes())?,
        None => cli::say(text),
    }
    match stopped {
        Some(lost) => Err(lost.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// A line for each kernel, the fastest first.
fn table_of(case: &Case, times: &Times) -> String {
    let operations = 2.0
        * [case.batches, case.m, case.k, case.n]
            .map(|size| size as f64)
            .iter()
            .product::<f64>();
    let line = |name: &dyn Display, seconds: f64| {
        format!(
            "  {:<44}{:>12.4} ms{:>12.1} GFLOP/s\n",
            name.to_string(),
            seconds * 1e3,
            operations / seconds / 1e9
        )
    };
    let ways = times.ways.iter().map(|(way, seconds)| line(way, *seconds));
    format!(
        "{case}\n{}{}",
        line(&format_args!("planned: {}", times.plan), times.planned),
        ways.collect::<String>()
    )
}

fn cases(args: &Args) -> Vec<Case> {
    let layouts: &[[bool; 2]] = match args.layouts {
        true => &[[false, false], [true, false], [false, true], [true, true]],
        false => &[[false, false]],
    };
    let mut cases = Vec::new();
    for &dtype in &args.dtypes {
        for &[a_by_columns, b_by_columns] in layouts {
            for &batches in &args.batches {
                for (&m, &k, &n) in args.sizes.iter().flat_map(|m| {
                    let sizes = &args.sizes;
                    sizes
                        .iter()
                        .flat_map(move |k| sizes.iter().map(move |n| (m, k, n)))
                }) {
                    // A row times a matrix is turned round: measured as a column.
                    if m > 1 {
                        cases.push(Case {
                            dtype,
                            m,
                            k,
                            n,
                            batches,
                            a_by_columns,
                            b_by_columns,
                        });
                    }
                }
            }
        }
    }
    cases
}
