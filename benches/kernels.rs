//! What passes through kernels, in GB/s, beside a copy of as many bytes on the same device in the same run:
//! elementwise ops, reductions, norms, transposition, gathers, sorts, searches, masks.
//!
//! `cargo bench --bench kernels [-- --device NAME]... [--only LINE]... [--dtype NAME] [--quick] [--json]`

#[path = "common/args.rs"]
mod args;

use std::cell::RefCell;

use args::{Args, in_turns, or_exit, refuse};
use orlop::memory::Growth;
use orlop::{DType, Device, Result, SearchSide, SortOrder, Tensor, fused};

const BENCH: &str = "kernels";

fn main() {
    let args = Args::of(BENCH, &["--only", "--dtype"]);
    let missed = RefCell::new(args.only.clone());
    let mut is_measured = false;
    for selector in or_exit(BENCH, args.selectors()) {
        let device = or_exit(BENCH, steady(&selector));
        // The CPU would do the work.
        if !device.capabilities().holds(args.dtype) {
            eprintln!("{BENCH}: {device} has no {}, so it is left out", args.dtype);
            continue;
        }
        is_measured = true;
        let table = Table {
            device: &device,
            json: args.json,
            only: &args.only,
            missed: &missed,
            dtype: args.dtype,
            runs: if args.quick { 3 } else { 9 },
        };
        or_exit(BENCH, table.fill(args.quick));
    }
    if !is_measured {
        refuse(BENCH, "nothing is measured");
    }
    if let [first, ..] = &missed.borrow()[..] {
        refuse(BENCH, &format!("no line has {first} in its name"));
    }
}

/// A device whose memory is there: where results of two sizes take turns, the default makes regions anew at first, which
/// takes milliseconds on hardware.
fn steady(selector: &str) -> Result<Device> {
    // Closed before the other opens.
    let is_gpu = Device::select(selector)?.info().kind().is_gpu();
    let builder = Device::builder().select(selector);
    match is_gpu {
        true => builder.growth(Growth::PreallocateBytes { bytes: 1 << 30 }),
        false => builder,
    }
    .build()
}

type Function = fn(&Tensor) -> Result<Tensor>;

/// Functions that take more than a few instructions.
const FUNCTIONS: [(&str, Function); 23] = [
    ("sqrt", Tensor::sqrt),
    ("rsqrt", Tensor::rsqrt),
    ("exp2", Tensor::exp2),
    ("expm1", Tensor::expm1),
    ("log", Tensor::log),
    ("log2", Tensor::log2),
    ("log1p", Tensor::log1p),
    ("sin", Tensor::sin),
    ("cos", Tensor::cos),
    ("tan", Tensor::tan),
    ("asin", Tensor::asin),
    ("acos", Tensor::acos),
    ("atan", Tensor::atan),
    ("sinh", Tensor::sinh),
    ("cosh", Tensor::cosh),
    ("asinh", Tensor::asinh),
    ("acosh", Tensor::acosh),
    ("atanh", Tensor::atanh),
    ("sigmoid", Tensor::sigmoid),
    ("silu", Tensor::silu),
    ("softplus", Tensor::softplus),
    ("gelu_tanh", Tensor::gelu_tanh),
    ("erf", Tensor::erf),
];

struct Table<'a> {
    device: &'a Device,
    json: bool,
    only: &'a [String],
    /// Those of `only` that no line had in its name yet.
    missed: &'a RefCell<Vec<String>>,
    dtype: DType,
    runs: usize,
}

impl Table<'_> {
    fn fill(&self, quick: bool) -> Result<()> {
        let device = self.device;
        if !self.json {
            println!("\n{device}, {}", self.dtype);
            println!(
                "  {:<34}{:>10}{:>10}{:>12}{:>8}",
                "", "ms", "GB/s", "copy, GB/s", "of it"
            );
        }
        let is_slow = device.to_string().contains("SwiftShader") || device.info().backend == "Gl";
        let size: usize = if quick || is_slow { 1024 } else { 4096 };
        let elements = size * size;
        let all = self.dtype.size() * elements;
        // The same numbers for every dtype.
        let rand =
            |shape: &[usize], seed| Tensor::rand(device, shape, DType::F32, seed)?.cast(self.dtype);
        let (x, y) = (rand(&[size, size], 1)?, rand(&[size, size], 2)?);
        let (weight, bias) = (rand(&[size], 3)?, rand(&[size], 4)?);
        let order: Vec<u32> = (0..size)
            .map(|at| ((at * 7919 + 13) % size) as u32)
            .collect();
        let order = Tensor::from_slice(device, &order, [size])?;

        self.line("add", 3 * all, || x.add(&y))?;
        self.line("copy", 2 * all, || x.copy())?;
        self.line("neg", 2 * all, || x.neg())?;
        self.line("exp", 2 * all, || x.exp())?;
        self.line("tanh", 2 * all, || x.tanh())?;
        self.line("gelu", 2 * all, || x.gelu())?;
        self.line("a fused chain of 8", 2 * all, || {
            fused(|e| {
                let x = e.input(&x);
                (((x * 2.0 + 1.0) * x - 0.5).maximum(0.0) * 0.25 + 3.0).minimum(9.0)
            })
        })?;
        self.line("pow", 2 * all, || x.pow(2.5))?;
        for (name, function) in FUNCTIONS {
            self.line(name, 2 * all, || function(&x))?;
        }
        self.line("transpose", 2 * all, || x.transpose(0, 1)?.copy())?;
        let turned = x.transpose(0, 1)?;
        self.line("add of a transposed one", 3 * all, || y.add(&turned))?;
        let written = rand(&[size, size], 5)?.transpose(0, 1)?;
        self.line("assignment to a transposed one", 2 * all, || {
            written.assign(&x)?;
            Ok(written.clone())
        })?;
        self.line("concatenation with a transposed one", 4 * all, || {
            Tensor::concat(&[&turned, &x], 0)
        })?;
        let images = x.reshape([size / 64, size / 64, 64, 64])?;
        self.line("channels last", 2 * all, || {
            images.permute(&[0, 2, 3, 1])?.copy()
        })?;
        self.line("gather of rows", 2 * all, || x.index_select(0, &order))?;
        self.line("sum of rows into rows", 3 * all, || {
            x.index_add(0, &order, &y)
        })?;
        let places: Vec<u32> = (0..elements)
            .map(|at| ((at * 7919 + at / size) % size) as u32)
            .collect();
        let places = Tensor::from_slice(device, &places, [size, size])?;
        self.line("gather of elements", 2 * all + 4 * elements, || {
            x.gather(1, &places)
        })?;

        self.line("sum of all", all, || x.sum(..))?;
        self.line("sum of rows", all, || x.sum(1))?;
        self.line("sum of columns", all, || x.sum(0))?;
        self.line("sum of a transposed one's rows", all, || {
            x.transpose(0, 1)?.sum(1)
        })?;
        self.line("max of rows", all, || x.max(1))?;
        self.line("argmax of rows", all, || x.argmax(1))?;
        self.line("argmax of columns", all, || x.argmax(0))?;
        self.line("var of rows", all, || x.var(1, 1))?;
        self.line("logsumexp of rows", all, || x.logsumexp(1))?;
        self.line("logsumexp of columns", all, || x.logsumexp(0))?;

        self.line("softmax of rows", 2 * all, || x.softmax(1))?;
        self.line("softmax of columns", 2 * all, || x.softmax(0))?;
        self.line("softmax of a transposed one's rows", 2 * all, || {
            turned.softmax(1)
        })?;
        self.line("log_softmax of rows", 2 * all, || x.log_softmax(1))?;
        self.line("layer_norm of rows", 2 * all, || {
            x.layer_norm(1, Some(&weight), Some(&bias), 1e-5)
        })?;
        self.line("rms_norm of rows", 2 * all, || {
            x.rms_norm(1, Some(&weight), 1e-5)
        })?;
        let long = x.reshape([8, elements / 8])?;
        self.line("softmax of 8 long rows", 2 * all, || long.softmax(1))?;
        let short = x.reshape([elements / 64, 64])?;
        self.line("sum of short rows", all, || short.sum(1))?;
        self.line("softmax of short rows", 2 * all, || short.softmax(1))?;

        let up = SortOrder::Ascending;
        let line = x.reshape(elements)?;
        self.line("sort of all", 2 * all, || line.sort(0, up))?;
        self.line("argsort of all", all + 4 * elements, || line.argsort(0, up))?;
        self.line("sort of rows of 1024", 2 * all, || {
            x.reshape([elements / 1024, 1024])?.sort(1, up)
        })?;
        self.line("sort of short rows", 2 * all, || short.sort(1, up))?;
        self.line("first 50 of 8 long rows", all, || {
            Ok(long.top_k(50, 1, SortOrder::Descending)?.0)
        })?;
        let ordered = line.slice(..1024)?.sort(0, up)?;
        self.line("search in 1024", all + 4 * elements, || {
            ordered.search_sorted(&line, SearchSide::Left)
        })?;
        for (named, part) in [("few", 0.01), ("half", 0.5), ("most", 0.99)] {
            let mask = line.lt(part)?;
            let count = mask.sum(0)?.item::<u32>()? as usize;
            self.line(&format!("nonzero, {named}"), elements + 4 * count, || {
                mask.nonzero()
            })?;
            let moved = elements + 2 * count * line.dtype().size();
            self.line(&format!("masked_select, {named}"), moved, || {
                line.masked_select(&mask)
            })?;
        }
        Ok(())
    }

    /// An op that reads and writes `bytes`, and a copy of as many, in turns; medians.
    fn line(&self, what: &str, bytes: usize, op: impl Fn() -> Result<Tensor>) -> Result<()> {
        if !self.only.is_empty() && !self.only.iter().any(|part| what.contains(part.as_str())) {
            return Ok(());
        }
        self.missed
            .borrow_mut()
            .retain(|part| !what.contains(part.as_str()));
        let from = Tensor::empty(self.device, [bytes / 8], DType::F32)?;
        from.fill(1.0)?;
        let [op, copy] = in_turns(self.device, self.runs, |is_copy| match is_copy {
            true => from.copy(),
            false => op(),
        })?;
        let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
        if self.json {
            println!(
                "{}",
                serde_json::json!({
                    "device": self.device.to_string(), "dtype": self.dtype.name(), "what": what, "bytes": bytes,
                    "seconds": op, "copy_seconds": copy,
                })
            );
        } else {
            let (op_speed, copy_speed) = (speed(op), speed(copy));
            println!(
                "  {what:<34}{:>10.3}{op_speed:>10.2}{copy_speed:>12.2}{:>8.2}",
                op * 1e3,
                op_speed / copy_speed
            );
        }
        Ok(())
    }
}
