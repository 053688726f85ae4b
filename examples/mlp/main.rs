//! A perceptron with two layers learns handwritten digits, with gradients written by hand: products with their
//! epilogue, softmax, sums and updates in place, on any device.

#[path = "../common/cli.rs"]
mod cli;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use orlop::{Activation, DType, Device, Tensor};

/// Trains a two-layer perceptron on scikit-learn's digits.
#[derive(Parser, Debug)]
#[command(name = "mlp", version)]
struct Args {
    /// cpu, gpu:0, soft:1, or a piece of a name; default: $ORLOP_DEVICE, else the best GPU, else
    /// the native CPU
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Rounds over the training images
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Of the first weights, and of the order of the images
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

const DIGITS: &str = include_str!("digits.csv");
const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = 10;
const HIDDEN: usize = 256;
const BATCH: usize = 64;
/// Every fifth image is held out.
const HELD_OUT: usize = 5;
const RATE: f64 = 0.1;
const MOMENTUM: f64 = 0.9;
const DECAY: f64 = 5e-4;

/// Images as rows of pixels from 0 to 1, and their digits.
#[derive(Default)]
struct Images {
    pixels: Vec<f32>,
    digits: Vec<u32>,
}

impl Images {
    fn push(&mut self, pixels: impl Iterator<Item = f32>, digit: u32) {
        self.pixels.extend(pixels);
        self.digits.push(digit);
    }

    fn len(&self) -> usize {
        self.digits.len()
    }

    fn on(&self, device: &Device) -> orlop::Result<(Tensor, Tensor)> {
        Ok((
            Tensor::from_slice(device, &self.pixels, [self.len(), PIXELS])?,
            Tensor::from_slice(device, &self.digits, [self.len()])?,
        ))
    }
}

/// The images to learn from, each also moved by a pixel in the four directions; and those held out.
fn read() -> Result<(Images, Images), Box<dyn Error>> {
    let (mut learn, mut hold) = (Images::default(), Images::default());
    for (at, line) in DIGITS.lines().enumerate() {
        let numbers: Vec<f32> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let [pixels @ .., digit] = &numbers[..] else {
            return Err(format!("line {} of the digits is empty", at + 1).into());
        };
        if pixels.len() != PIXELS {
            return Err(
                format!("line {} of the digits has {} pixels", at + 1, pixels.len()).into(),
            );
        }
        let digit = *digit as u32;
        if at % HELD_OUT == HELD_OUT - 1 {
            hold.push(pixels.iter().map(|pixel| pixel / 16.0), digit);
            continue;
        }
        for (down, right) in [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)] {
            let moved = (0..PIXELS).map(|at| {
                let row = (at / SIDE)
                    .checked_add_signed(-down)
                    .filter(|&row| row < SIDE);
                let column = (at % SIDE)
                    .checked_add_signed(-right)
                    .filter(|&column| column < SIDE);
                row.zip(column)
                    .map_or(0.0, |(row, column)| pixels[row * SIDE + column] / 16.0)
            });
            learn.push(moved, digit);
        }
    }
    Ok((learn, hold))
}

/// A parameter and its velocity.
struct Parameter {
    value: Tensor,
    velocity: Tensor,
}

impl Parameter {
    fn new(value: Tensor) -> orlop::Result<Self> {
        let velocity = Tensor::zeros(value.device(), value.shape().clone(), DType::F32)?;
        Ok(Self { value, velocity })
    }

    /// Of a normal distribution with the deviation that keeps the size of what passes (He).
    fn weights(device: &Device, inputs: usize, outputs: usize, seed: u64) -> orlop::Result<Self> {
        let deviation = (2.0 / inputs as f64).sqrt();
        Self::new((&Tensor::randn(device, [inputs, outputs], DType::F32, seed)? * deviation)?)
    }

    fn zeros(device: &Device, size: usize) -> orlop::Result<Self> {
        Self::new(Tensor::zeros(device, [size], DType::F32)?)
    }

    /// A step against the gradient, with momentum and decay, in place.
    fn step(&self, gradient: &Tensor, rate: f64) -> orlop::Result<()> {
        let slope = self.value.mul_add(DECAY, gradient)?;
        self.velocity.mul_assign(MOMENTUM)?;
        self.velocity.sub_assign(&(&slope * rate)?)?;
        self.value.add_assign(&self.velocity)
    }
}

struct Perceptron {
    first: Parameter,
    first_bias: Parameter,
    second: Parameter,
    second_bias: Parameter,
}

impl Perceptron {
    fn new(device: &Device, seed: u64) -> orlop::Result<Self> {
        let seed = seed.wrapping_mul(2);
        Ok(Self {
            first: Parameter::weights(device, PIXELS, HIDDEN, seed)?,
            first_bias: Parameter::zeros(device, HIDDEN)?,
            second: Parameter::weights(device, HIDDEN, CLASSES, seed + 1)?,
            second_bias: Parameter::zeros(device, CLASSES)?,
        })
    }

    fn hidden(&self, images: &Tensor) -> orlop::Result<Tensor> {
        images.linear(
            &self.first.value,
            Some(&self.first_bias.value),
            Activation::Relu,
        )
    }

    fn scores(&self, hidden: &Tensor) -> orlop::Result<Tensor> {
        hidden.linear(
            &self.second.value,
            Some(&self.second_bias.value),
            Activation::None,
        )
    }

    /// One step on a batch; the sum of its losses, which stays on the device.
    fn learn(&self, images: &Tensor, truth: &Tensor, rate: f64) -> orlop::Result<Tensor> {
        let hidden = self.hidden(images)?;
        let logarithms = self.scores(&hidden)?.log_softmax(1)?;
        let loss = (&logarithms * truth)?.sum(..)?;
        let batch = images.shape().dims()[0] as f64;
        // The gradient of the mean loss by the scores.
        let by_scores = (&(logarithms.exp() - truth)? * (1.0 / batch))?;
        // relu's slope is the sign of what it gave.
        let by_hidden =
            (&by_scores.matmul(&self.second.value.transpose(0, 1)?)? * &hidden.sign()?)?;
        self.second
            .step(&hidden.transpose(0, 1)?.matmul(&by_scores)?, rate)?;
        self.second_bias.step(&by_scores.sum(0)?, rate)?;
        self.first
            .step(&images.transpose(0, 1)?.matmul(&by_hidden)?, rate)?;
        self.first_bias.step(&by_hidden.sum(0)?, rate)?;
        Ok(loss)
    }

    /// The share of images whose highest score is their digit's.
    fn accuracy(&self, images: &Tensor, digits: &[u32]) -> orlop::Result<f64> {
        let found = self
            .scores(&self.hidden(images)?)?
            .argmax(1)?
            .to_vec::<u32>()?;
        let right = found
            .iter()
            .zip(digits)
            .filter(|(found, digit)| found == digit);
        Ok(right.count() as f64 / digits.len() as f64)
    }
}

fn main() -> ExitCode {
    cli::run(example)
}

fn example(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let device = match &args.device {
        Some(selector) => Device::select(selector)?,
        None => Device::best()?,
    };
    let (learn, hold) = read()?;
    let (images, digits) = learn.on(&device)?;
    let truths = digits.one_hot(CLASSES, DType::F32)?;
    let (held_images, _) = hold.on(&device)?;
    let perceptron = Perceptron::new(&device, args.seed)?;

    let batches = learn.len() / BATCH;
    let bar = match args.json {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(u64::from(args.epochs) * batches as u64),
    };
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    let started = Instant::now();
    let mut losses = Vec::new();
    for epoch in 0..args.epochs {
        let rate = RATE * (1.0 - f64::from(epoch) / f64::from(args.epochs)) + 0.002;
        // The same order on every device: that of random numbers.
        let keys = Tensor::rand(
            &Device::cpu(),
            [learn.len()],
            DType::F32,
            args.seed.wrapping_add(1000 + u64::from(epoch)),
        )?;
        let keys = keys.to_vec::<f32>()?;
        let mut order: Vec<u32> = (0..learn.len() as u32).collect();
        order.sort_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
        let mut sum = Tensor::zeros(&device, (), DType::F32)?;
        for batch in order.chunks_exact(BATCH) {
            let batch = Tensor::from_slice(&device, batch, [BATCH])?;
            let (images, truth) = (
                images.index_select(0, &batch)?,
                truths.index_select(0, &batch)?,
            );
            sum = (&sum - &perceptron.learn(&images, &truth, rate)?)?;
            bar.inc(1);
        }
        let loss = sum.to_vec::<f32>()?[0] / (batches * BATCH) as f32;
        losses.push(loss);
        bar.set_message(format!("loss {loss:.4}"));
    }
    bar.finish_and_clear();
    let accuracy = perceptron.accuracy(&held_images, &hold.digits)?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        let report = serde_json::json!({
            "device": device.info().selector,
            "losses": losses,
            "accuracy": accuracy,
            "seconds": seconds,
        });
        cli::say(format_args!("{report}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    for (epoch, loss) in losses.iter().enumerate() {
        cli::say(format_args!("epoch {:2}  loss {loss:.4}\n", epoch + 1));
    }
    cli::say(format_args!(
        "{device}: {:.2} % of {} held-out digits are right, after {seconds:.1} s\n",
        100.0 * accuracy,
        hold.len(),
    ));
    Ok(ExitCode::SUCCESS)
}
