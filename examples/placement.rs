//! Soft placement made visible: what a device cannot do runs on the CPU, and the device remembers
//! where, why and at what cost in bytes; under strict placement it is an error.

#[path = "common/cli.rs"]
mod cli;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use orlop::{DType, Device, DeviceInfo, Placement, Tensor, f16};

/// Multiplies matrices in a dtype that the device lacks, under soft and under strict placement.
#[derive(Parser, Debug)]
#[command(name = "placement", version)]
struct Args {
    /// cpu, gpu:0, soft:1, or a piece of a name; default: $ORLOP_DEVICE, else the first adapter
    /// without f64, else the first without f16
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
            .filter(|name| !name.is_empty())
    });
    let lacks = |dtype: DType| {
        let first = |info: &DeviceInfo| !info.capabilities.computes(dtype);
        Device::list().into_iter().find(first)
    };
    let found = || lacks(DType::F64).or_else(|| lacks(DType::F16));
    let Some(selector) = named.or_else(|| found().map(|info| info.selector)) else {
        cli::say(
            "every device here computes in f16 and f64: nothing needs to be placed elsewhere\n",
        );
        return Ok(ExitCode::SUCCESS);
    };
    let soft = Device::select(&selector)?;
    let strict = Device::builder()
        .select(&selector)
        .placement(Placement::Strict)
        .build()?;
    let missing: Vec<DType> = [DType::F64, DType::F16]
        .into_iter()
        .filter(|&dtype| !soft.capabilities().computes(dtype))
        .collect();
    if missing.is_empty() {
        cli::say(format!(
            "{soft} computes in f16 and f64: nothing needs to be placed elsewhere; --device names another\n"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    for dtype in missing {
        cli::say(format!(
            "{soft} does not compute in {dtype}\n\nPlacement::Soft\n"
        ));
        soft.clear_placement_log();
        product(&soft, dtype)?;
        cli::say("  placement log of the device:\n");
        for event in soft.placement_log().events {
            cli::say(format!("    {event}\n"));
        }
        cli::say("\nPlacement::Strict\n");
        match product(&strict, dtype) {
            Ok(()) => return Err("strict placement let it pass".into()),
            Err(error) => cli::say(format!("  error: {error}\n\n")),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A product in `dtype` and where its result can go, with a line for each tensor.
fn product(device: &Device, dtype: DType) -> orlop::Result<()> {
    let a = match dtype {
        DType::F64 => Tensor::from_vec(device, vec![0.25f64; 64 * 64], [64, 64])?,
        _ => Tensor::from_vec(device, vec![f16::from_f32(0.25); 64 * 64], [64, 64])?,
    };
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
