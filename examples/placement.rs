//! Where ops run and results live: what a device cannot do runs on the CPU, a scope names another
//! device, and the placement log says what, why and at what cost in bytes; then two virtual devices
//! with budgets of their own on one adapter, and the ledger of both.

#[path = "common/cli.rs"]
mod cli;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use orlop::{DType, Device, DeviceBuilder, Placement, Tensor};

/// Shows soft and strict placement, scopes, the placement log and virtual devices.
#[derive(Parser, Debug)]
#[command(name = "placement", version)]
struct Args {
    /// cpu, gpu:0, soft:1, or a piece of a name; default: $ORLOP_DEVICE, else the first adapter
    /// without f64, else the best
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
}

fn main() -> ExitCode {
    cli::run(example)
}

fn example(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let named = args.device.or_else(|| {
        std::env::var("ORLOP_DEVICE")
            .ok()
            .filter(|name| !name.trim().is_empty())
    });
    let all = Device::list()?;
    let lacks = |dtype: DType| {
        all.iter()
            .find(|info| !info.capabilities.computes(dtype))
            .map(|info| info.selector.clone())
    };
    let builder = || {
        let selector = named.clone().or_else(|| lacks(DType::F64));
        match selector {
            Some(selector) => Device::builder().select(selector),
            None => Device::builder(),
        }
    };
    fallbacks(&builder)?;
    scopes(&builder().build()?)?;
    virtual_devices(&builder)?;
    Ok(ExitCode::SUCCESS)
}

/// What the device lacks, under soft and under strict placement.
fn fallbacks(builder: &dyn Fn() -> DeviceBuilder) -> Result<(), Box<dyn Error>> {
    let soft = builder().build()?;
    let strict = builder().placement(Placement::Strict).build()?;
    if soft.capabilities().computes(DType::F64) {
        cli::say(format!(
            "{soft} computes in f64: nothing needs to be placed elsewhere\n\n"
        ));
        return Ok(());
    }
    cli::say(format!(
        "{soft} does not compute in f64\n\nPlacement::Soft\n"
    ));
    soft.clear_placement_log();
    product(&soft)?;
    log_of(&soft);
    cli::say("\nPlacement::Strict\n");
    match product(&strict) {
        Ok(()) => Err("strict placement let it pass".into()),
        Err(error) => {
            cli::say(format!("  error: {error}\n\n"));
            Ok(())
        }
    }
}

/// A scope beats the operands' home.
fn scopes(device: &Device) -> orlop::Result<()> {
    cli::say("Scopes\n");
    let a = Tensor::ones(device, [64, 64], DType::F32)?;
    show("a = ones(device)", &a);
    Device::cpu().scope(|| {
        show("cpu.scope: s = a + a", &(&a + &a)?);
        show("  a.transpose(0, 1)", &a.transpose(0, 1)?);
        show("  device.scope: a * a", &device.scope(|| &a * &a)?);
        show("  ones(device)", &Tensor::ones(device, [2], DType::F32)?);
        orlop::Result::Ok(())
    })?;
    show("after it: a + a", &(&a + &a)?);
    device.clear_placement_log();
    let host = Tensor::ones(&Device::cpu(), [64], DType::F32)?;
    show("a + h, h on the CPU", &(&a + &host)?);
    log_of(device);
    cli::say("\n");
    Ok(())
}

/// Two devices with budgets on one adapter: filling one leaves the other alone.
fn virtual_devices(builder: &dyn Fn() -> DeviceBuilder) -> orlop::Result<()> {
    let mebibytes = |count: u64| builder().memory_limit(count << 20).build();
    let (small, large) = (mebibytes(4)?, mebibytes(16)?);
    cli::say(format!(
        "Virtual devices\n  small is {small}\n  large is {large}\n"
    ));
    let fits = Tensor::zeros(&large, [1 << 20], DType::F32)?;
    let mut kept = Vec::new();
    loop {
        match Tensor::zeros(&small, [1 << 18], DType::F32) {
            Ok(tensor) => kept.push(tensor),
            Err(error) => {
                cli::say(format!("  after {} MiB: error: {error}\n", kept.len()));
                break;
            }
        }
    }
    show("in large still", &(&fits + &fits)?);
    cli::say(large.adapter_ledger());
    Ok(())
}

fn log_of(device: &Device) {
    cli::say("  placement log of the device:\n");
    for event in device.placement_log().events {
        cli::say(format!("    {event}\n"));
    }
}

/// A product in f64 and where its result can go, with a line for each tensor.
fn product(device: &Device) -> orlop::Result<()> {
    let a = Tensor::from_vec(device, vec![0.25f64; 64 * 64], [64, 64])?;
    show("a = from_vec", &a);
    let b = a.slice((.., 0..32))?;
    show("b = a.slice((.., 0..32))", &b);
    let c = a.matmul(&b)?;
    show("c = a.matmul(&b)", &c);
    let single = c.cast(DType::F32)?;
    show("d = c.cast(F32)", &single);
    let back = single.to(device)?;
    show("e = d.to(device)", &back);
    show("e + e", &(&back + &back)?);
    Ok(())
}

fn show(what: &str, tensor: &Tensor) {
    cli::say(format!(
        "  {what:<26}{:<4} {:<9} lives on {}\n",
        tensor.dtype(),
        tensor.shape().to_string(),
        tensor.device()
    ));
}
