//! What matrix products gain from being one with what comes before and after them, in one run: epilogues
//! in the store against the separate ops, products of host matrices by tiles against their transfers and
//! their product one after the other.
//!
//! `cargo bench --bench products [-- --device NAME]... [--quick] [--json]`

#[path = "common/args.rs"]
mod args;

use args::{Args, in_turns, or_exit};
use orlop::{Activation, DType, Device, HostMatrix, Result, Tensor, matmul_streamed};

const BENCH: &str = "products";

fn main() {
    let args = Args::of(BENCH, &[]);
    let table = Table {
        json: args.json,
        runs: if args.quick { 3 } else { 9 },
    };
    for selector in or_exit(BENCH, args.selectors()) {
        let filled = Device::builder()
            .select(selector)
            .build()
            .and_then(|device| table.fill(&device, args.quick));
        or_exit(BENCH, filled);
    }
}

struct Table {
    json: bool,
    runs: usize,
}

impl Table {
    fn fill(&self, device: &Device, quick: bool) -> Result<()> {
        if !self.json {
            println!("\n{device}");
            println!(
                "{:<52}{:>12}{:>12}{:>9}",
                "", "one, ms", "apart, ms", "apart/one"
            );
        }
        let is_slow = device.to_string().contains("SwiftShader") || device.info().backend == "Gl";
        let sizes: &[[usize; 3]] = match quick || is_slow {
            true => &[[256, 256, 256], [1024, 64, 1024]],
            false => &[
                [256, 256, 256],
                [1024, 64, 1024],
                [1024, 1024, 1024],
                [64, 1024, 4096],
            ],
        };
        for &[m, k, n] in sizes {
            let tensor = |rows, columns, seed| {
                // Around zero: activations do both of their sides.
                Tensor::rand(device, [rows, columns], DType::F32, seed)?
                    .add(&Tensor::scalar(device, -0.5f32)?)
            };
            let (x, w, bias) = (
                tensor(m, k, 1)?,
                tensor(k, n, 2)?,
                tensor(1, n, 3)?.reshape([n])?,
            );
            self.line(
                device,
                &format!("{m}x{k} times {k}x{n}, bias"),
                &mut || x.linear(&w, Some(&bias), Activation::None).map(drop),
                &mut || x.matmul(&w)?.add(&bias).map(drop),
            )?;
            self.line(
                device,
                &format!("{m}x{k} times {k}x{n}, bias, gelu"),
                &mut || x.linear(&w, Some(&bias), Activation::Gelu).map(drop),
                &mut || x.matmul(&w)?.add(&bias)?.gelu().map(drop),
            )?;
            let residual = tensor(m, n, 4)?;
            let epilogue = orlop::Epilogue::new()
                .scale(0.5)
                .bias(&bias)
                .residual(&residual);
            let half = Tensor::scalar(device, 0.5f32)?;
            self.line(
                device,
                &format!("{m}x{k} times {k}x{n}, scale, bias, residual"),
                &mut || x.matmul_with(&w, &epilogue).map(drop),
                &mut || {
                    x.matmul(&w)?
                        .mul(&half)?
                        .add(&bias)?
                        .add(&residual)
                        .map(drop)
                },
            )?;
        }
        let size = if quick || is_slow { 512 } else { 2048 };
        self.streamed(device, size)
    }

    /// A product of host matrices on a device whose budget holds a quarter of them; apart: both to the
    /// device, the product, and back, on one that has room.
    fn streamed(&self, device: &Device, size: usize) -> Result<()> {
        let matrix = vec![0.5f32; size * size];
        let mut out = vec![0.0f32; size * size];
        let mut back = vec![0.0f32; size * size];
        let small = Device::builder()
            .select(device.info().selector.clone())
            .memory_limit((3 * size * size) as u64)
            .build()?;
        let shape = [size, size];
        self.line(
            device,
            &format!("{size}^3 of the host, by tiles in a quarter"),
            &mut || {
                let mut a = HostMatrix::new(&matrix[..], shape)?;
                let mut b = a;
                let mut c = HostMatrix::new(&mut out[..], shape)?;
                matmul_streamed(&small, &mut a, &mut b, &mut c).map(drop)
            },
            &mut || {
                let a = Tensor::from_slice(device, &matrix, shape)?;
                let b = Tensor::from_slice(device, &matrix, shape)?;
                device.synchronize()?;
                let c = a.matmul(&b)?;
                device.synchronize()?;
                c.read_into(&mut back)
            },
        )
    }

    /// Medians of rounds that take turns.
    fn line(
        &self,
        device: &Device,
        what: &str,
        one: &mut dyn FnMut() -> Result<()>,
        apart: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let [one, apart] = in_turns(device, self.runs, |is_apart| match is_apart {
            true => apart(),
            false => one(),
        })?;
        if self.json {
            println!(
                "{}",
                serde_json::json!({
                    "device": device.to_string(), "what": what, "one_seconds": one, "apart_seconds": apart,
                })
            );
        } else {
            println!(
                "{what:<52}{:>12.3}{:>12.3}{:>9.2}",
                one * 1e3,
                apart * 1e3,
                apart / one
            );
        }
        Ok(())
    }
}
