//! Random tensors by counter: the numbers depend on the seed and the index alone.

use half::{bf16, f16};
use smallvec::smallvec;

use super::plan::{self, WORKGROUP};
use crate::capabilities::Capabilities;
use crate::cpu::narrow::Narrow;
use crate::cpu::{Loops, parallel, vectorised};
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
    /// Uniform in `[0, 1)`: f32 in steps of 2^-24, f16 of 2^-11, bf16 of 2^-8, f64 of 2^-53. The same bits for the same
    /// seed on every device, whatever the shape (Philox4x32-10, Salmon and others 2011); independent of what
    /// [`Tensor::randn`] and [`Tensor::randint`] make of the seed.
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
            let why = match range.is_empty() {
                true => format!("the range {range:?} is empty"),
                false => format!("the range {range:?} has numbers that {dtype} does not hold"),
            };
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
        let source = Source {
            seed: self.seed,
            // As in shaders/random.wgsl.
            distribution: match self.distribution {
                Distribution::Normal => 0,
                Distribution::Uniform => 1,
                Distribution::Integers { .. } => 2,
            },
        };
        // Closures that are inlined always: what is called instead knows nothing of vectors.
        macro_rules! each {
            ($word:ident => $number:expr) => {
                fill(
                    output,
                    source,
                    #[inline(always)]
                    |words| {
                        words.map(
                            #[inline(always)]
                            |lanes| {
                                lanes.map(
                                    #[inline(always)]
                                    |$word| $number,
                                )
                            },
                        )
                    },
                )
            };
        }
        if let Distribution::Integers { first, count } = self.distribution {
            // Of all 2^32 where the count is 0.
            let count = if count == 0 {
                1 << 32
            } else {
                u64::from(count)
            };
            each!(word => first.wrapping_add(((u64::from(word) * count) >> 32) as u32));
            return Ok(());
        }
        match self.dtype {
            DType::F32 if normal => fill(output, source, normals),
            DType::F32 => each!(word => (word >> 8) as i32 as f32 * 0.000_000_059_604_645),
            DType::F16 if normal => fill(output, source, rounded::<f16>),
            DType::F16 => {
                each!(word => f16::rounded((word >> 21) as i32 as f32 * 0.000_488_281_25));
            }
            DType::BF16 if normal => fill(output, source, rounded::<bf16>),
            DType::BF16 => {
                each!(word => bf16::rounded((word >> 24) as i32 as f32 * 0.003_906_25));
            }
            DType::F64 if normal => fill(output, source, wide_normals),
            DType::F64 => fill(output, source, wide_uniforms),
            DType::I32 | DType::U32 | DType::Bool => {}
        }
        Ok(())
    }
}

/// Which numbers: the seed, and a word that tells distributions apart, which are independent of each other then.
#[derive(Clone, Copy)]
struct Source {
    seed: u64,
    distribution: u32,
}

/// Blocks of Philox that are made together, each word of all of them in one array.
const LANES: usize = 32;
type Lanes<T> = [T; LANES];

/// Fills with `numbers` of the words of blocks, `N` numbers a block.
fn fill<T: bytemuck::Pod + Send, const N: usize>(
    output: &mut HostOutput<'_>,
    source: Source,
    numbers: impl Fn([Lanes<u32>; 4]) -> [Lanes<T>; N] + Sync + Send,
) {
    let count = output.layout.elements();
    let Some(out) = output.elements::<T>().get_mut(..count) else {
        return;
    };
    // Pieces start at whole blocks: their length is a multiple of four.
    parallel::pieces(out, |start, piece| {
        vectorised(Made {
            piece,
            first: (start / N) as u64,
            source,
            numbers: &numbers,
        });
    });
}

/// The numbers of a piece.
struct Made<'a, T, F> {
    piece: &'a mut [T],
    /// Its first block.
    first: u64,
    source: Source,
    numbers: &'a F,
}

impl<T: bytemuck::Pod, F: Fn([Lanes<u32>; 4]) -> [Lanes<T>; N], const N: usize> Loops
    for Made<'_, T, F>
{
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let mut block = self.first;
        for chunk in self.piece.chunks_mut(N * LANES) {
            let made = (self.numbers)(philox(block, self.source));
            block += LANES as u64;
            let (whole, rest) = chunk.as_chunks_mut::<N>();
            for (lane, chunk) in whole.iter_mut().enumerate() {
                for (out, made) in chunk.iter_mut().zip(&made) {
                    *out = made[lane];
                }
            }
            for (out, made) in rest.iter_mut().zip(&made) {
                *out = made[whole.len()];
            }
        }
    }
}

/// Philox4x32-10 of blocks one after the other.
#[inline(always)]
fn philox(first: u64, source: Source) -> [Lanes<u32>; 4] {
    let mut words = [[0u32; LANES]; 4];
    words[2] = [source.distribution; LANES];
    let [low, high, ..] = &mut words;
    for (lane, (low, high)) in low.iter_mut().zip(high).enumerate() {
        let block = first.wrapping_add(lane as u64);
        (*low, *high) = (block as u32, (block >> 32) as u32);
    }
    let mut key = [source.seed as u32, (source.seed >> 32) as u32];
    for _ in 0..10 {
        let [a, b, c, d] = &mut words;
        for lane in 0..LANES {
            let first = 0xD251_1F53 * u64::from(a[lane]);
            let second = 0xCD9E_8D57 * u64::from(c[lane]);
            a[lane] = (second >> 32) as u32 ^ b[lane] ^ key[0];
            b[lane] = second as u32;
            c[lane] = (first >> 32) as u32 ^ d[lane] ^ key[1];
            d[lane] = first as u32;
        }
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    words
}

/// Step by step what shaders/random.wgsl does, so that only roundings can differ.
#[allow(clippy::excessive_precision, clippy::approx_constant)]
#[inline(always)]
fn log_uniform(word: u32) -> f32 {
    let rest = ((u32::MAX - word) as i32 as f32 + 0.5) * 2.328_306_436_538_696_3e-10;
    // Leading zeros, by the exponent of what holds all 32 bits; a half is added below the last bit.
    let exponent = (f64::from(word) + 0.25).to_bits() >> 52;
    let zeros = (1023 + 31u32).wrapping_sub(exponent as u32).min(32);
    let half = 1u32.checked_shl(zeros.wrapping_sub(1)).unwrap_or(0);
    let shifted = word.checked_shl(zeros).unwrap_or(0) | half;
    let mut mantissa = (shifted >> 8) as i32 as f32 * 1.192_092_895_507_812_5e-7;
    let mut exponent = -1.0 - zeros as i32 as f32;
    let is_above = mantissa > 1.414_213_5;
    mantissa *= if is_above { 0.5 } else { 1.0 };
    exponent += if is_above { 1.0 } else { 0.0 };
    let is_near_one = word >= 0xC000_0000;
    let log = log_near_one(if is_near_one { -rest } else { mantissa - 1.0 });
    let whole = if is_near_one {
        0.0
    } else {
        exponent * 0.693_147_18
    };
    whole + log
}

#[allow(clippy::excessive_precision)]
#[inline(always)]
fn log_near_one(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let q = s * s;
    let series =
        0.333_333_33 + q * (0.2 + q * (0.142_857_14 + q * (0.111_111_11 + q * 0.090_909_09)));
    2.0 * s * (1.0 + q * series)
}

/// Cosine and sine of a full turn times `(word + 1/2) / 2^32`.
#[allow(clippy::excessive_precision)]
#[inline(always)]
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
    let (first, second) = match quarter & 1 {
        0 => (cosine, sine),
        _ => (sine, cosine),
    };
    // The cosine is below zero in the second and third quarter, the sine in the third and fourth.
    let signed = |x: f32, is_below: u32| f32::from_bits(x.to_bits() ^ is_below << 31);
    [
        signed(first, (quarter ^ quarter >> 1) & 1),
        signed(second, quarter >> 1 & 1),
    ]
}

#[inline(always)]
fn normals(words: [Lanes<u32>; 4]) -> [Lanes<f32>; 4] {
    let mut made = [[0.0; LANES]; 4];
    for pair in [0, 2] {
        for lane in 0..LANES {
            let r = (-2.0 * log_uniform(words[pair][lane])).sqrt();
            let [cosine, sine] = turn(words[pair + 1][lane]);
            made[pair][lane] = r * cosine;
            made[pair + 1][lane] = r * sine;
        }
    }
    made
}

#[inline(always)]
fn rounded<T: Narrow>(words: [Lanes<u32>; 4]) -> [Lanes<T>; 4] {
    normals(words).map(
        #[inline(always)]
        |lanes| lanes.map(T::rounded),
    )
}

#[inline(always)]
fn wide_uniforms(words: [Lanes<u32>; 4]) -> [Lanes<f64>; 2] {
    let mut made = [[0.0; LANES]; 2];
    for (pair, made) in made.iter_mut().enumerate() {
        for (lane, made) in made.iter_mut().enumerate() {
            let (high, low) = (words[2 * pair][lane] >> 5, words[2 * pair + 1][lane] >> 6);
            *made = (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0;
        }
    }
    made
}

fn wide_normals(words: [Lanes<u32>; 4]) -> [Lanes<f64>; 2] {
    let mut made = wide_uniforms(words);
    let [first, second] = &mut made;
    for (first, second) in first.iter_mut().zip(second) {
        // From (0, 1]: the logarithm of zero is infinite.
        let r = (-2.0 * (1.0 - *first).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * *second).sin_cos();
        (*first, *second) = (r * cosine, r * sine);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_its_published_vectors() {
        // Random123's kat_vectors for philox4x32-10.
        assert_eq!(
            philox(
                0,
                Source {
                    seed: 0,
                    distribution: 0
                }
            )
            .map(|lanes| lanes[0]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
    }

    #[test]
    fn normals_follow_the_f64_formula() {
        let mut worst = 0.0f64;
        for block in (0..200_000).step_by(LANES) {
            check(
                philox(
                    block,
                    Source {
                        seed: 42,
                        distribution: 0,
                    },
                ),
                &mut worst,
            );
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
                check(
                    [edge, angle, angle, edge].map(|word| [word; LANES]),
                    &mut worst,
                );
            }
        }
        assert!(worst < 1e-6, "{worst}");
    }

    #[test]
    fn wide_normals_follow_their_formula() {
        for block in (0..20_000).step_by(LANES) {
            let source = Source {
                seed: 43,
                distribution: 0,
            };
            let words = philox(block, source);
            let [cosines, sines] = wide_normals(words);
            for lane in 0..LANES {
                // 53 bits in [0, 1).
                let unit = |high: usize| {
                    let bits = u64::from(words[high][lane] >> 5) << 26
                        | u64::from(words[high + 1][lane] >> 6);
                    bits as f64 * 2f64.powi(-53)
                };
                let r = (-2.0 * (1.0 - unit(0)).ln()).sqrt();
                let (sine, cosine) = (std::f64::consts::TAU * unit(2)).sin_cos();
                for (want, got) in [(r * cosine, cosines[lane]), (r * sine, sines[lane])] {
                    assert!((want - got).abs() < 1e-12, "{block}: {got}, not {want}");
                }
            }
        }
    }

    fn check(words: [Lanes<u32>; 4], worst: &mut f64) {
        let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        let made = normals(words);
        for (lane, pair) in (0..LANES).flat_map(|lane| [(lane, 0), (lane, 2)]) {
            let r = (-2.0 * unit(words[pair][lane]).ln()).sqrt();
            let (sine, cosine) = (std::f64::consts::TAU * unit(words[pair + 1][lane])).sin_cos();
            for (want, got) in [(r * cosine, made[pair]), (r * sine, made[pair + 1])] {
                let error = (want - f64::from(got[lane])).abs() / want.abs().max(1.0);
                *worst = worst.max(error);
            }
        }
    }
}
