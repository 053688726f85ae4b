//! Random tensors by counter: the numbers depend on the seed and the index alone.

use half::{bf16, f16};
use smallvec::smallvec;

use super::plan::{self, WORKGROUP};
use crate::capabilities::Capabilities;
use crate::cpu::parallel;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Bound, Launch, Launches, Words};
use crate::road::window::{self, Limits, Walked};
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Uniform,
    Normal,
    /// So many numbers from the first one on, modulo 2^32; none is 2^32.
    Integers {
        first: u32,
        count: u32,
    },
}

struct Random {
    distribution: Distribution,
    shape: Shape,
    dtype: DType,
    seed: u64,
}

impl Tensor {
    /// Uniform in `[0, 1)`: f32 in steps of 2^-24, f16 of 2^-11, bf16 of 2^-8, f64
    /// of 2^-53. The same bits for
    /// the same seed on every device, whatever the shape (Philox4x32-10, Salmon and others 2011).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for integer dtypes; as [`Tensor::empty`].
    pub fn rand(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        seed: u64,
    ) -> Result<Tensor> {
        random(device, shape.into(), dtype, seed, Distribution::Uniform)
    }

    /// Standard normal (Box-Muller over Philox4x32-10). For f32, devices agree within
    /// `1e-6 * max(1, |x|)` for the same seed; for f16 within one rounding; f64 and bf16 are made on the
    /// CPU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for integer dtypes; as [`Tensor::empty`].
    pub fn randn(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        seed: u64,
    ) -> Result<Tensor> {
        random(device, shape.into(), dtype, seed, Distribution::Normal)
    }
}

impl Tensor {
    /// Uniform among the integers of `range`, as i32 or u32: the same numbers for the same seed on
    /// every device, whatever the shape (Philox4x32-10). Each of n numbers comes with a probability
    /// within 2^-32 of 1/n.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another dtype, or a range that is empty or has numbers that the
    /// dtype does not hold; as [`Tensor::empty`].
    pub fn randint(
        device: &Device,
        range: std::ops::Range<i64>,
        shape: impl Into<Shape>,
        dtype: DType,
        seed: u64,
    ) -> Result<Tensor> {
        let (low, high) = match dtype {
            DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            DType::U32 => (0, i64::from(u32::MAX)),
            _ => {
                let why = format!("makes i32 and u32, not {dtype}");
                return Err(Error::invalid("randint", why));
            }
        };
        if range.is_empty() || range.start < low || range.end > high + 1 {
            let why = format!("the range {range:?} is empty, or not of {dtype}");
            return Err(Error::invalid("randint", why));
        }
        let (first, count) = (range.start as u32, (range.end - range.start) as u32);
        let integers = Distribution::Integers { first, count };
        random(device, shape.into(), dtype, seed, integers)
    }
}

fn random(
    device: &Device,
    shape: Shape,
    dtype: DType,
    seed: u64,
    distribution: Distribution,
) -> Result<Tensor> {
    road::create(
        &Random {
            distribution,
            shape,
            dtype,
            seed,
        },
        device,
    )
}

impl Random {
    /// Numbers of one Philox block.
    fn lanes(&self) -> usize {
        if self.dtype == DType::F64 { 2 } else { 4 }
    }
}

impl Op for Random {
    fn name(&self) -> &'static str {
        match self.distribution {
            Distribution::Uniform => "rand",
            Distribution::Normal => "randn",
            Distribution::Integers { .. } => "randint",
        }
    }

    fn infer(&self, _inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let integers = matches!(self.distribution, Distribution::Integers { .. });
        if !integers && !self.dtype.is_float() {
            return Err(Error::invalid(
                self.name(),
                format!("makes floats, not {}", self.dtype),
            ));
        }
        Ok((self.shape.clone(), self.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        _inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        if !capabilities.computes(output) {
            return Some(road::lacks(output));
        }
        let gpu = capabilities.kind != crate::capabilities::DeviceKind::Cpu;
        (gpu && output == DType::F64 && self.distribution == Distribution::Normal)
            .then(|| "WGSL has no f64 logarithm".to_owned())
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let (distribution, element, added) = match self.distribution {
            Distribution::Uniform => ("uniform", self.dtype.name(), None),
            Distribution::Normal => ("normal", self.dtype.name(), None),
            Distribution::Integers { first, count } => ("integers", "u32", Some([first, count])),
        };
        let block_bytes = self.lanes() * self.dtype.size();
        let flops = self.lanes() as f64 * 50.0;
        // Blocks from `first` on, into a binding from block `offset` on.
        let launch = |blocks: usize, first: usize, offset: usize, bound| {
            let mut words: Words = smallvec![
                blocks as u32,
                offset as u32,
                first as u32,
                (first as u64 >> 32) as u32,
                self.seed as u32,
                (self.seed >> 32) as u32,
            ];
            words.extend(added.into_iter().flatten());
            let values = [
                ("distribution", distribution.into()),
                ("element", element.into()),
            ];
            Ok(Launch {
                kernel: plan::key("random", values, 1, &words),
                operands: smallvec![bound],
                texels: smallvec![],
                dispatches: smallvec![plan::dispatch(
                    self.name(),
                    words,
                    blocks as u64,
                    WORKGROUP,
                    capabilities.max_workgroups,
                )?],
                flops: blocks as f64 * flops,
                bytes: (blocks * block_bytes) as f64,
            })
        };
        let blocks = problem.output.layout.elements().div_ceil(self.lanes());
        let (all_flops, bytes) = (blocks as f64 * flops, (blocks * block_bytes) as f64);
        if plan::is_one_launch(problem, capabilities, all_flops, bytes) {
            return Ok(smallvec![launch(blocks, 0, 0, Bound::whole(0))?]);
        }
        let walked = [Walked {
            storage: 0,
            element_bytes: block_bytes,
            offset: 0,
            strides: &[1],
        }];
        let limits = Limits::new(capabilities, flops, block_bytes as f64);
        window::pieces(&[blocks], &walked, limits)
            .into_iter()
            .map(|piece| {
                launch(
                    piece.elements(),
                    piece.start[0],
                    piece.offsets[0],
                    piece.bindings[0],
                )
            })
            .collect()
    }

    fn twin(&self, _inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let normal = self.distribution == Distribution::Normal;
        let seed = self.seed;
        let uniform =
            |words: [u32; 4]| words.map(|word| (word >> 8) as f32 * 0.000_000_059_604_645);
        if let Distribution::Integers { first, count } = self.distribution {
            let integer = |word: u32| {
                let step = match count {
                    0 => word,
                    _ => ((u64::from(word) * u64::from(count)) >> 32) as u32,
                };
                first.wrapping_add(step)
            };
            match self.dtype {
                DType::I32 => twin(output, seed, |words| words.map(|word| integer(word) as i32)),
                _ => twin(output, seed, |words| words.map(integer)),
            }
            return Ok(());
        }
        match self.dtype {
            DType::F32 if normal => twin(output, seed, normals),
            DType::F32 => twin(output, seed, uniform),
            DType::F16 if normal => twin(output, seed, |w| normals(w).map(f16::from_f32)),
            DType::F16 => twin(output, seed, |words| {
                words.map(|word| f16::from_f32((word >> 21) as f32 * 0.000_488_281_25))
            }),
            DType::BF16 if normal => twin(output, seed, |w| normals(w).map(bf16::from_f32)),
            DType::BF16 => twin(output, seed, |words| {
                words.map(|word| bf16::from_f32((word >> 24) as f32 * 0.003_906_25))
            }),
            DType::F64 if normal => twin(output, seed, wide_normals),
            DType::F64 => twin(output, seed, wide_uniforms),
            DType::I32 | DType::U32 | DType::Bool => {}
        }
        Ok(())
    }
}

/// Fills with `numbers(philox(block))`, `N` numbers a block.
fn twin<T: bytemuck::Pod + Send, const N: usize>(
    output: &mut HostOutput<'_>,
    seed: u64,
    numbers: impl Fn([u32; 4]) -> [T; N] + Sync + Send,
) {
    let count = output.layout.elements();
    let Some(out) = output.elements::<T>().get_mut(..count) else {
        return;
    };
    // Pieces start at whole blocks: their length is a multiple of four.
    parallel::pieces(out, |start, piece| {
        for (at, chunk) in piece.chunks_mut(N).enumerate() {
            let made = numbers(philox((start / N + at) as u64, seed));
            chunk.copy_from_slice(&made[..chunk.len()]);
        }
    });
}

/// Philox4x32-10.
fn philox(block: u64, seed: u64) -> [u32; 4] {
    let mut counter = [block as u32, (block >> 32) as u32, 0, 0];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let first = 0xD251_1F53 * u64::from(counter[0]);
        let second = 0xCD9E_8D57 * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

/// Step by step what shaders/random.wgsl does, so that only roundings can differ.
#[allow(clippy::excessive_precision, clippy::approx_constant)]
fn log_uniform(word: u32) -> f32 {
    if word >= 0xC000_0000 {
        let rest = ((u32::MAX - word) as f32 + 0.5) * 2.328_306_436_538_696_3e-10;
        return log_near_one(-rest);
    }
    let zeros = word.leading_zeros();
    let shifted = match zeros {
        0 => word,
        32 => 0x8000_0000,
        _ => (word << zeros) | (1 << (zeros - 1)),
    };
    let mut mantissa = (shifted >> 8) as f32 * 1.192_092_895_507_812_5e-7;
    let mut exponent = -1.0 - zeros as f32;
    if mantissa > 1.414_213_5 {
        mantissa *= 0.5;
        exponent += 1.0;
    }
    exponent * 0.693_147_18 + log_near_one(mantissa - 1.0)
}

#[allow(clippy::excessive_precision)]
fn log_near_one(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let q = s * s;
    let series =
        0.333_333_33 + q * (0.2 + q * (0.142_857_14 + q * (0.111_111_11 + q * 0.090_909_09)));
    2.0 * s * (1.0 + q * series)
}

/// Cosine and sine of a full turn times `(word + 1/2) / 2^32`.
#[allow(clippy::excessive_precision)]
fn turn(word: u32) -> [f32; 2] {
    let quarter = word.wrapping_add(0x2000_0000) >> 30;
    let rest = word.wrapping_sub(quarter << 30) as i32;
    let x = (rest as f32 + 0.5) * 1.462_918_079_267_159_6e-9;
    let q = x * x;
    let sine = x
        * (1.0
            + q * (-0.166_666_67
                + q * (0.008_333_333_3 + q * (-0.000_198_412_70 + q * 0.000_002_755_731_9))));
    let cosine = 1.0
        + q * (-0.5
            + q * (0.041_666_667
                + q * (-0.001_388_888_9 + q * (0.000_024_801_587 + q * -2.755_731_9e-7))));
    match quarter & 3 {
        0 => [cosine, sine],
        1 => [-sine, cosine],
        2 => [-cosine, -sine],
        _ => [sine, -cosine],
    }
}

fn normals(words: [u32; 4]) -> [f32; 4] {
    let pair = |radius: u32, angle: u32| {
        let r = (-2.0 * log_uniform(radius)).sqrt();
        turn(angle).map(|part| r * part)
    };
    let ([a, b], [c, d]) = (pair(words[0], words[1]), pair(words[2], words[3]));
    [a, b, c, d]
}

fn wide_uniforms(words: [u32; 4]) -> [f64; 2] {
    let number = |high: u32, low: u32| {
        (f64::from(high >> 5) * 67_108_864.0 + f64::from(low >> 6)) / 9_007_199_254_740_992.0
    };
    [number(words[0], words[1]), number(words[2], words[3])]
}

fn wide_normals(words: [u32; 4]) -> [f64; 2] {
    let [radius, angle] = wide_uniforms(words);
    // From (0, 1]: the logarithm of zero is infinite.
    let r = (-2.0 * (1.0 - radius).ln()).sqrt();
    let (sine, cosine) = (std::f64::consts::TAU * angle).sin_cos();
    [r * cosine, r * sine]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_its_published_vectors() {
        // Random123's kat_vectors for philox4x32-10.
        assert_eq!(
            philox(0, 0),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
    }

    #[test]
    fn normals_follow_the_f64_formula() {
        let mut worst = 0.0f64;
        for block in 0..200_000 {
            let words = philox(block, 42);
            check(words, &mut worst);
        }
        for edge in [
            0,
            1,
            2,
            0xBFFF_FFFF,
            0xC000_0000,
            u32::MAX - 1,
            u32::MAX,
            1 << 31,
        ] {
            for angle in [
                0,
                1,
                0x1FFF_FFFF,
                0x2000_0000,
                0x3FFF_FFFF,
                0xDFFF_FFFF,
                u32::MAX,
            ] {
                check([edge, angle, angle, edge], &mut worst);
            }
        }
        assert!(worst < 1e-6, "{worst}");
    }

    fn check(words: [u32; 4], worst: &mut f64) {
        let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        for (pair, got) in words.chunks(2).zip(normals(words).chunks(2)) {
            let r = (-2.0 * unit(pair[0]).ln()).sqrt();
            let (sine, cosine) = (std::f64::consts::TAU * unit(pair[1])).sin_cos();
            for (want, &got) in [r * cosine, r * sine].into_iter().zip(got) {
                let error = (want - f64::from(got)).abs() / want.abs().max(1.0);
                *worst = worst.max(error);
            }
        }
    }
}
