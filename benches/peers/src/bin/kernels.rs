//! Elementwise ops, reductions, norms, transposition and gathers of orlop beside burn-wgpu's on one adapter, in
//! one run, in turns with copies of orlop's; medians.
//!
//! `cargo run --release --bin kernels [-- --device lavapipe|swiftshader|gpu]... [--size 4096] [--json]`; where burn
//! may take another adapter nothing is measured.

#[path = "../adapter.rs"]
mod adapter;

use std::cell::Cell;
use std::process::exit;
use std::time::{Duration, Instant};

use burn_tensor::{Device as BurnDevice, DeviceKind, Int, TensorData, activation, module};
use clap::Parser;
use orlop::memory::Growth;
use orlop::{Device, Result, Tensor, fused};
use serde_json::json;

/// How long hardware works untimed: `warm` of the benches of orlop alone.
const WARMING: Duration = Duration::from_millis(200);

#[derive(Parser)]
struct Arguments {
    /// Where: lavapipe, swiftshader, gpu; lavapipe without it.
    #[arg(long)]
    device: Vec<String>,
    /// Rows and columns.
    #[arg(long, default_value_t = 4096)]
    size: usize,
    /// Rounds that a median is of.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only lines whose name contains this.
    #[arg(long)]
    line: Vec<String>,
    /// A line of JSON for each figure.
    #[arg(long)]
    json: bool,
    /// A process of its own for one device.
    #[arg(long, hide = true)]
    child: bool,
}

fn main() {
    let mut arguments = Arguments::parse();
    if arguments.child {
        return or_exit(Bench::run(&arguments));
    }
    if arguments.device.is_empty() {
        arguments.device.push("lavapipe".to_owned());
    }
    for device in &arguments.device {
        let mut command = adapter::alone(device).unwrap_or_else(|error| fail(&error));
        command.args(std::env::args().skip(1));
        let status = command.args(["--child", "--device", device]).status();
        if !status.is_ok_and(|status| status.success()) {
            fail(device);
        }
    }
}

fn fail(problem: &str) -> ! {
    eprintln!("kernels: {problem}");
    exit(2)
}

fn or_exit<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| fail(&error.to_string()))
}

type Matrix = burn_tensor::Tensor<2>;

/// What is copied beside each line, and how many bytes that moves.
struct Copied<'a> {
    of: &'a Tensor,
    bytes: usize,
}

struct Bench<'a> {
    arguments: &'a Arguments,
    ours: Device,
    theirs: BurnDevice,
    lines: Cell<usize>,
}

impl Bench<'_> {
    fn run(arguments: &Arguments) -> Result<()> {
        let selector = arguments.device.last().map_or("lavapipe", String::as_str);
        let takes = adapter::takes("burn-wgpu", selector).unwrap_or_else(|error| fail(&error));
        if !takes {
            fail("there is nothing to compare with");
        }
        let info = adapter::named(selector).unwrap_or_else(|error| fail(&error));
        let mut ours = Device::builder().select(selector);
        if info.kind().is_gpu() {
            // Where results of two sizes take turns, the default makes regions anew at first, which takes milliseconds.
            ours = ours.growth(Growth::PreallocateBytes { bytes: 4 << 30 });
        }
        let ours = ours.build()?;
        let bench = Bench {
            arguments,
            ours,
            theirs: BurnDevice::wgpu(DeviceKind::DefaultDevice),
            lines: Cell::new(0),
        };
        if !arguments.json {
            println!("\n{}, {} squared of f32", bench.ours, arguments.size);
            println!(
                "  {:<28}{:>12}{:>12}{:>12}{:>10}{:>10}{:>10}",
                "GB/s", "orlop", "burn-wgpu", "orlop, ms", "times", "a copy", "of it"
            );
        }
        bench.fill()?;
        if bench.lines.get() == 0 {
            fail(&format!(
                "no line has {} in its name",
                arguments.line.join(" or ")
            ));
        }
        Ok(())
    }

    fn fill(&self) -> Result<()> {
        let size = self.arguments.size;
        let values = |seed: u32| -> Vec<f32> {
            let at = (0..(size * size) as u32).map(|at| at.wrapping_mul(2_654_435_761) ^ seed);
            at.map(|bits| (bits >> 8) as f32 / 16_777_216.0 - 0.5)
                .collect()
        };
        let (x_values, y_values) = (values(0), values(77));
        let ours = |values: &[f32]| Tensor::from_slice(&self.ours, values, [size, size]);
        let theirs = |values: &[f32]| {
            let data = TensorData::new(values.to_vec(), [size, size]);
            Matrix::from_data(data, &self.theirs)
        };
        let (x, y) = (ours(&x_values)?, ours(&y_values)?);
        let (a, b) = (theirs(&x_values), theirs(&y_values));
        let weight = Tensor::from_slice(&self.ours, &y_values[..size], [size])?;
        let gamma: burn_tensor::Tensor<1> = b.clone().slice([0..1]).reshape([size]);
        let order: Vec<i32> = (0..size)
            .map(|at| ((at * 7919 + 13) % size) as i32)
            .collect();
        let order_data = TensorData::new(order.clone(), [size]);
        let order_theirs = burn_tensor::Tensor::<1, Int>::from_data(order_data, &self.theirs);
        let order = Tensor::from_slice(&self.ours, &order, [size])?;
        let places: Vec<i32> = (0..size * size)
            .map(|at| ((at * 7919 + at / size) % size) as i32)
            .collect();
        let places_data = TensorData::new(places.clone(), [size, size]);
        let places_theirs = burn_tensor::Tensor::<2, Int>::from_data(places_data, &self.theirs);
        let places = Tensor::from_slice(&self.ours, &places, [size, size])?;

        let one = 4 * size * size;
        let copy = Copied {
            of: &x,
            bytes: 2 * one,
        };
        self.line(
            &copy,
            "add",
            3 * one,
            || x.add(&y),
            || a.clone() + b.clone(),
        )?;
        self.line(&copy, "exp", 2 * one, || x.exp(), || a.clone().exp())?;
        self.line(&copy, "tanh", 2 * one, || x.tanh(), || a.clone().tanh())?;
        self.line(
            &copy,
            "gelu",
            2 * one,
            || x.gelu(),
            || activation::gelu(a.clone()),
        )?;
        let chain = || {
            fused(|e| {
                let x = e.input(&x);
                (((x * 2.0 + 1.0) * x - 0.5).maximum(0.0) * 0.25 + 3.0).minimum(9.0)
            })
        };
        self.line(&copy, "fused chain of 8", 2 * one, chain, || {
            let y = (a.clone().mul_scalar(2.0).add_scalar(1.0) * a.clone()).sub_scalar(0.5);
            y.clamp_min(0.0)
                .mul_scalar(0.25)
                .add_scalar(3.0)
                .clamp_max(9.0)
        })?;
        self.line(
            &copy,
            "transpose, + 1",
            2 * one,
            || x.transpose(0, 1)?.add(1.0),
            || a.clone().transpose().add_scalar(1.0),
        )?;
        self.line(
            &copy,
            "gather of rows",
            2 * one,
            || x.index_select(0, &order),
            || a.clone().select(0, order_theirs.clone()),
        )?;
        self.line(
            &copy,
            "gather of elements",
            3 * one,
            || x.gather(1, &places),
            || a.clone().gather(1, places_theirs.clone()),
        )?;
        self.line(
            &copy,
            "sum of all",
            one,
            || x.sum(..),
            || a.clone().sum().reshape([1, 1]),
        )?;
        self.line(
            &copy,
            "sum of rows",
            one,
            || x.sum(1),
            || a.clone().sum_dim(1),
        )?;
        self.line(
            &copy,
            "sum of columns",
            one,
            || x.sum(0),
            || a.clone().sum_dim(0),
        )?;
        self.line(
            &copy,
            "softmax of rows",
            2 * one,
            || x.softmax(1),
            || activation::softmax(a.clone(), 1),
        )?;
        let norm = || x.layer_norm(1, Some(&weight), None, 1e-5);
        self.line(&copy, "layer_norm of rows", 2 * one, norm, || {
            module::layer_norm(a.clone(), gamma.clone(), None, 1e-5)
        })
    }

    /// Both and a copy in turns, after one run each, whose results are compared.
    fn line(
        &self,
        copy: &Copied<'_>,
        what: &str,
        bytes: usize,
        ours: impl Fn() -> Result<Tensor>,
        theirs: impl Fn() -> Matrix,
    ) -> Result<()> {
        let asked = &self.arguments.line;
        if !asked.is_empty() && !asked.iter().any(|part| what.contains(part.as_str())) {
            return Ok(());
        }
        self.lines.set(self.lines.get() + 1);
        let got = ours()?.to_vec::<f32>()?;
        let want = theirs().into_data().try_to_vec::<f32>();
        let want = want.unwrap_or_else(|error| fail(&format!("{what}: {error:?}")));
        let is_near = |(got, want): (&f32, &f32)| (got - want).abs() <= 1e-3 * want.abs().max(1.0);
        // A sum of all has lost digits where it is not made of parts.
        if got.len() != want.len() || (got.len() > 1 && !got.iter().zip(&want).all(is_near)) {
            fail(&format!("{what}: the results differ"));
        }
        let sync = || {
            let waited = self.theirs.sync();
            waited.unwrap_or_else(|error| fail(&format!("burn: {error}")));
        };
        // Hardware finishes an op in less than a wait takes: several a wait.
        let repeat = match self.ours.info().kind().is_gpu() {
            true => 20,
            false => 1,
        };
        let mut seconds = [Vec::new(), Vec::new(), Vec::new()];
        // The first rounds tune; hardware, whose clock falls meanwhile, works on before it is timed.
        let (mut round, mut tuned) = (0, None);
        while round < self.arguments.rounds.max(1) + 2 {
            // Kept: burn leaves out what nobody asks for.
            let timed = |op: &dyn Fn() -> Result<Tensor>| -> Result<f64> {
                let start = Instant::now();
                let results = (0..repeat).map(|_| op()).collect::<Result<Vec<_>>>()?;
                self.ours.synchronize()?;
                let seconds = start.elapsed().as_secs_f64();
                drop(results);
                Ok(seconds / f64::from(repeat))
            };
            let copied = timed(&|| copy.of.copy())?;
            let mine = timed(&ours)?;
            let start = Instant::now();
            let results: Vec<Matrix> = (0..repeat).map(|_| theirs()).collect();
            sync();
            let other = start.elapsed().as_secs_f64() / f64::from(repeat);
            drop(results);
            if round > 1 {
                seconds[0].push(mine);
                seconds[1].push(other);
                seconds[2].push(copied);
            }
            let is_cold = round == 1
                && self.ours.info().kind().is_gpu()
                && tuned.get_or_insert_with(Instant::now).elapsed() < WARMING;
            if !is_cold {
                round += 1;
            }
        }
        let [ours, theirs, copied] = seconds.map(|mut seconds| {
            seconds.sort_by(f64::total_cmp);
            seconds[seconds.len() / 2]
        });
        if self.arguments.json {
            let device = self.ours.to_string();
            let line = json!({
                "device": device, "what": what, "bytes": bytes, "seconds": ours,
                "burn_seconds": theirs, "copied_bytes": copy.bytes, "copy_seconds": copied,
            });
            println!("{line}");
        } else {
            let speed = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
            let (own, other) = (speed(bytes, ours), speed(bytes, theirs));
            let copy = speed(copy.bytes, copied);
            println!(
                "  {what:<28}{own:>12.2}{other:>12.2}{:>12.2}{:>10.2}{copy:>10.2}{:>10.2}",
                ours * 1e3,
                theirs / ours,
                own / copy
            );
        }
        Ok(())
    }
}
