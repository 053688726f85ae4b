//! Every test of the library that needs a device, once for each device that is there.
//!
//! Trials are named `lavapipe::matmul::edges::f32`; those of a variant
//! `lavapipe::checks::matmul::edges::f32` (`checks`, `uniforms`, `windows`, `cooperative`); those that need no
//! or several devices `all::...`.
//!
//! - `ORLOP_TEST_REQUIRE=cpu,lavapipe,swiftshader,gl`: a missing one fails the run.
//! - `ORLOP_TEST_FULL=1`: exhaustive sweeps; `every`: of every f32, too, which takes an hour or two.
//! - `ORLOP_TEST_SEED=N`: another seed for random cases.
//! - `ORLOP_TEST_TIMES=1`: the time of each trial at the end, not of the slowest alone.
//! - `ORLOP_TEST_FUZZ=linear`: of the fuzz only ops with that in their names.
//! - `ORLOP_TEST_VERBOSE=1`: how many products each forced kernel made.
//! - `ORLOP_TEST_ONNX=relu`: the cases of ONNX with that in their names, and why they are not run.

mod adapters;
mod cast;
mod cooperative;
mod create;
mod decisive;
mod devices;
mod elementwise;
mod errors;
mod exact;
#[cfg(feature = "fault-injection")]
mod faults;
mod forced;
#[cfg(all(feature = "ndarray", feature = "npy", feature = "safetensors"))]
mod formats;
mod full;
mod functions;
mod futures;
#[cfg(feature = "ndarray")]
mod fuzz;
mod grid;
mod index;
mod interop;
mod kernels;
mod lacking;
mod large;
mod ledger;
mod linear;
mod matmul;
mod memory;
mod nonzero;
mod normalise;
mod number;
mod onnx;
mod operand;
mod order;
mod panels;
mod placement;
mod products;
mod reduce;
mod rng;
mod scan;
mod scopes;
mod scratch;
mod search;
mod shapes;
mod snapshots;
mod sort;
mod spill;
mod streamed;
mod stress;
mod table;
mod text;
mod threads;
mod transfer;
mod turned;
mod unfold;
mod user;
mod views;
mod watchdog;
mod wide;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adapters::{Adapter, Context, Variant};
use libtest_mimic::{Arguments, Trial};
use orlop::Result;

/// How often a test runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// On each device.
    Device,
    /// On each device, and on those with other kernels: with checks, without immediates, with
    /// windows.
    Kernels,
    /// On each device that is not the CPU.
    Gpu,
    /// Hundreds of mebibytes: as `Gpu`, and on the slow software adapters in a full run only.
    Large,
}

/// A test that runs once, under `all::`.
pub type OnceTest = (&'static str, fn() -> Result<()>);

/// One test: one body for all devices.
pub struct Test {
    name: &'static str,
    scope: Scope,
    body: fn(&Context) -> Result<()>,
    when: fn(&Context) -> bool,
}

impl Test {
    /// Where it runs, and what it does.
    pub fn new(name: &'static str, scope: Scope, body: fn(&Context) -> Result<()>) -> Self {
        Self {
            name,
            scope,
            body,
            when: |_| true,
        }
    }

    /// Only where this says so: elsewhere there is no such trial.
    pub fn when(mut self, when: fn(&Context) -> bool) -> Self {
        self.when = when;
        self
    }

    /// Of one dtype that others stand for where kernels are only fed and guarded otherwise; in a
    /// full run none does.
    pub fn without_variants(mut self) -> Self {
        if self.scope == Scope::Kernels && !adapters::full() {
            self.scope = Scope::Device;
        }
        self
    }

    /// Checks are of indices, whatever lies there: on software adapters f32 stands for other dtypes of whole words, and
    /// elements that share words meet the edges of what takes compilers long. The fuzz shares ops out over dtypes.
    fn is_stood_for(&self, context: &Context) -> bool {
        let (rest, dtype) = self.name.rsplit_once("::").unwrap_or_default();
        let (family, what) = rest.split_once("::").unwrap_or_default();
        let takes_long = ["matmul", "linear", "reduce", "normalise"].contains(&family);
        let is_other = match dtype {
            "i32" | "u32" | "f64" | "f16" => family != "fuzz",
            "bf16" => takes_long && what != "edges",
            _ => false,
        };
        is_other && context.variant == Variant::Checks && context.shares_kernels()
    }

    fn runs_on(&self, context: &Context) -> bool {
        let scope = match self.scope {
            Scope::Kernels => !self.is_stood_for(context),
            Scope::Device => context.variant == Variant::Plain,
            Scope::Gpu => context.variant == Variant::Plain && !context.is_cpu(),
            Scope::Large => {
                let in_time = !context.is_slow() || adapters::full();
                context.variant == Variant::Plain && !context.is_cpu() && in_time
            }
        };
        scope && (self.when)(context)
    }
}

/// By families: each has a device of its own on an adapter, dropped when the last of its trials has run, since
/// compilers of software adapters keep a mebibyte or two of each kernel.
fn tests() -> Vec<Vec<Test>> {
    vec![
        elementwise::tests(),
        functions::tests(),
        exact::tests(),
        matmul::tests(),
        panels::tests(),
        linear::tests(),
        streamed::tests(),
        kernels::tests(),
        forced::tests(),
        table::tests(),
        reduce::tests(),
        scan::tests(),
        sort::tests(),
        search::tests(),
        decisive::tests(),
        nonzero::tests(),
        normalise::tests(),
        cast::tests(),
        create::tests(),
        views::tests(),
        turned::tests(),
        unfold::tests(),
        index::tests(),
        shapes::tests(),
        scratch::tests(),
        #[cfg(feature = "ndarray")]
        fuzz::tests(),
        onnx::tests(),
        transfer::tests(),
        futures::tests(),
        order::tests(),
        memory::tests(),
        full::tests(),
        threads::tests(),
        placement::tests(),
        scopes::tests(),
        snapshots::tests(),
        spill::tests(),
        ledger::tests(),
        errors::tests(),
        #[cfg(feature = "fault-injection")]
        faults::tests(),
        large::tests(),
        devices::tests(),
        stress::tests(),
        interop::tests(),
        #[cfg(all(feature = "ndarray", feature = "npy", feature = "safetensors"))]
        formats::tests(),
        text::tests(),
        user::tests(),
        wide::tests(),
        lacking::tests(),
    ]
}

/// Tests that need several devices, or none.
fn tests_once() -> Vec<OnceTest> {
    [
        devices::tests_once(),
        functions::tests_once(),
        interop::tests_once(),
        ledger::tests_once(),
        stress::tests_once(),
        threads::tests_once(),
        transfer::tests_once(),
        user::tests_once(),
        #[cfg(all(feature = "ndarray", feature = "npy", feature = "safetensors"))]
        formats::tests_once(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Seconds and name of each trial that has run.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// A trial that notes how long it took.
fn timed(name: String, body: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    let noted = name.clone();
    Trial::test(name, move || {
        let started = Instant::now();
        let result = body();
        let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
        times.push((started.elapsed(), noted));
        Ok(result?)
    })
}

/// Of fewer trials nobody asks which are slow.
const FEW: u64 = 100;

/// Where the time went: whoever adds a slow trial sees it here.
fn print_slowest(count: usize) {
    let mut times = std::mem::take(&mut *TIMES.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_unstable_by(|a, b| b.cmp(a));
    eprintln!("slowest trials, seconds:");
    for (time, name) in times.iter().take(count) {
        eprintln!("{:8.2} {name}", time.as_secs_f64());
    }
}

/// The trials of each variant of an adapter.
fn trials_on(adapter: &Adapter) -> impl Iterator<Item = Vec<Trial>> {
    Context::variants(adapter).into_iter().map(|variant| {
        let families = match variant {
            Variant::Cooperative => cooperative::families(),
            _ => tests(),
        };
        let mut trials = Vec::new();
        for family in families {
            let context = Arc::new(Context::new(adapter.clone(), variant));
            for test in family.into_iter().filter(|test| test.runs_on(&context)) {
                let name = format!("{}::{}{}", adapter.name, variant.prefix(), test.name);
                let context = Arc::clone(&context);
                trials.push(timed(name, move || (test.body)(&context)));
            }
        }
        trials
    })
}

/// The trials of all lists, each list in its order and spread over the whole run: what runs side by side runs on
/// different devices, since a device compiles one kernel at a time.
fn spread(lists: Vec<Vec<Trial>>) -> Vec<Trial> {
    let mut placed: Vec<(f64, Trial)> = lists
        .into_iter()
        .flat_map(|list| {
            let count = list.len() as f64;
            let nth = list.into_iter().enumerate();
            nth.map(move |(at, trial)| (at as f64 / count, trial))
        })
        .collect();
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    placed.into_iter().map(|(_, trial)| trial).collect()
}

fn trials(found: &[Adapter]) -> Vec<Trial> {
    let mut lists: Vec<Vec<Trial>> = found.iter().flat_map(trials_on).collect();
    let once = tests_once().into_iter();
    lists.push(
        once.map(|(name, body)| timed(format!("all::{name}"), body))
            .collect(),
    );
    let mut trials = spread(lists);
    for name in adapters::required() {
        if found.iter().all(|adapter| adapter.name != name) {
            let there = names(found);
            trials.push(Trial::test(format!("{name}::required"), move || {
                Err(format!(
                    "ORLOP_TEST_REQUIRE names {name}, which is not here; there are: {there}. \
                     `source scripts/adapters.sh` installs the software adapters"
                )
                .into())
            }));
        }
    }
    trials
}

fn names(found: &[Adapter]) -> String {
    let names: Vec<String> = found
        .iter()
        .map(|adapter| {
            format!(
                "{} ({}, {})",
                adapter.name, adapter.info.name, adapter.info.backend
            )
        })
        .collect();
    names.join(", ")
}

/// Trials at once: their devices, threads and memory add up on machines of many cores.
const MOST_TRIALS: usize = 16;

fn main() -> ExitCode {
    if devices::is_child() {
        return devices::child();
    }
    let mut arguments = Arguments::from_args();
    // Trials that wait for a device's compiler, or for a moment, leave a core to others.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    arguments
        .test_threads
        .get_or_insert((cores + 1).min(MOST_TRIALS));
    let found = adapters::found();
    if !arguments.list {
        eprintln!("adapters: {}", names(&found));
        eprintln!("seed {} (ORLOP_TEST_SEED)", rng::seed());
    }
    if std::env::var_os("RUST_BACKTRACE").is_none_or(|value| value == "0") {
        // A trial's message is printed once, at the end.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let conclusion = libtest_mimic::run(&arguments, trials(&found));
    if std::env::var_os("ORLOP_TEST_TIMES").is_some() {
        print_slowest(usize::MAX);
    } else if conclusion.num_passed > FEW {
        print_slowest(20);
    }
    // A trial's thread may be at its end still, and libEGL's exit handler frees what that does too: once in 900 runs
    // beside other work it was freed twice.
    std::thread::sleep(std::time::Duration::from_millis(100));
    conclusion.exit_code()
}
