//! A renderer's own wgpu device, lent to orlop: orlop makes a landscape, the renderer's compute pass
//! paints it and its render pass draws it, both reading the tensor where it lies. Without a window:
//! `--output picture.png`.

#[path = "../common/cli.rs"]
mod cli;
mod renderer;
mod terrain;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use orlop::interop::wgpu;
use orlop::{DType, Device, Tensor};

/// Vertices along each side of the landscape.
const SIDE: usize = 512;

#[derive(Parser)]
#[command(about = "Draws a landscape that orlop made on the program's own wgpu device")]
struct Args {
    /// The adapter that the renderer opens: words of its name, driver or backend (no `gpu:0`, no `cpu`).
    /// Default: the first hardware GPU, else what there is.
    #[arg(long)]
    device: Option<String>,
    /// Where the picture goes.
    #[arg(long, default_value = "picture.png")]
    output: PathBuf,
    /// Size of the picture in pixels.
    #[arg(long, default_value_t = 960, value_parser = clap::value_parser!(u32).range(16..=4096))]
    width: u32,
    /// Size of the picture in pixels.
    #[arg(long, default_value_t = 540, value_parser = clap::value_parser!(u32).range(16..=4096))]
    height: u32,
    /// Another landscape.
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

fn main() -> ExitCode {
    cli::run(draw)
}

fn draw(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    // What a renderer does anyway: an adapter, a device with default limits, a queue.
    let adapter = renderer::adapter(args.device.as_deref())?;
    let (device, queue) = pollster::block_on(adapter.request_device(&Default::default()))?;

    // The same device, for tensors that can be vertices as well.
    let orlop = Device::builder()
        .region_usages(wgpu::BufferUsages::VERTEX)
        .build_on_wgpu(&adapter, &device, &queue)?;
    let heights = terrain::heights(&orlop, SIDE, args.seed)?;

    // The renderer's passes read the tensor where it lies. Since the device was opened nothing has waited.
    let binding = heights.wgpu_binding()?;
    let renderer = renderer::Renderer::new(&device, &queue, SIDE as u32, [args.width, args.height]);
    let map = renderer.paint(&binding);
    let (pixels, row) = renderer.draw(&binding, &map);

    // And back: a buffer of the renderer's becomes a tensor; rows are padded, the picture is a view.
    let rows = [args.height as usize, row as usize / 4];
    let picture = Tensor::from_wgpu_buffer(&orlop, &pixels, 0, rows, DType::U32)?
        .slice((.., ..args.width as usize))?;
    write_png(&args.output, &picture)?;
    cli::say(format_args!(
        "{} by {} pixels, drawn on {orlop}: {}\n{}",
        args.width,
        args.height,
        args.output.display(),
        orlop.memory_summary()
    ));
    Ok(ExitCode::SUCCESS)
}

/// One little-endian word a pixel: red, green, blue, alpha.
fn write_png(path: &Path, picture: &Tensor) -> Result<(), Box<dyn std::error::Error>> {
    let fail = |error: &dyn std::error::Error| format!("{}: {error}", path.display());
    let words = picture.to_vec::<u32>()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let file = BufWriter::new(File::create(path).map_err(|error| fail(&error))?);
    let [height, width] = [0, 1].map(|axis| picture.shape()[axis] as u32);
    let mut encoder = png::Encoder::new(file, width, height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(|error| fail(&error))?;
    writer
        .write_image_data(&bytes)
        .and_then(|()| writer.finish())
        .map_err(|error| fail(&error))?;
    Ok(())
}
