//! A landscape from random numbers, by products of matrices.

use orlop::{DType, Device, Result, Tensor};

/// Octaves: knots along a side, height.
const OCTAVES: [(usize, f64); 7] = [
    (5, 0.50),
    (9, 0.30),
    (17, 0.165),
    (33, 0.085),
    (65, 0.043),
    (129, 0.021),
    (257, 0.010),
];

/// Heights of `side` by `side` points, row-major, sea level at 0, around -1 to 1.5.
///
/// Each octave is a coarse grid of random numbers R between which a smooth curve runs: B R Bᵀ, where
/// row i of B says how much each knot counts at point i. The same seed gives the same landscape on
/// every device.
pub fn heights(device: &Device, side: usize, seed: u64) -> Result<Tensor> {
    let mut sum = Tensor::full(device, [side, side], 0.12, DType::F32)?;
    for (octave, (knots, height)) in (0..).zip(OCTAVES) {
        let random = Tensor::randn(
            device,
            [knots, knots],
            DType::F32,
            seed.wrapping_add(octave),
        )?;
        let weights = weights(device, side, knots)?;
        let smooth = weights.matmul(&random)?.matmul(&weights.transpose(0, 1)?)?;
        // Fine detail belongs on high ground: each octave counts by what lies below it.
        let detail = if octave < 2 {
            smooth
        } else {
            smooth.mul(&(&sum + 0.25)?)?
        };
        sum = (&sum + &(&detail * height)?)?;
    }
    Ok(sum)
}

/// Row i: the weights of the knots at point i, by cubic B-splines, scaled so that the sum varies as
/// much as one knot does.
fn weights(device: &Device, side: usize, knots: usize) -> Result<Tensor> {
    let mut weights = vec![0.0f32; side * knots];
    for (i, row) in weights.chunks_exact_mut(knots).enumerate() {
        let place = i as f32 / (side - 1) as f32 * (knots - 1) as f32;
        for (knot, weight) in row.iter_mut().enumerate() {
            let distance = (place - knot as f32).abs();
            *weight = 1.4
                * match distance {
                    d if d < 1.0 => 2.0 / 3.0 - d * d + 0.5 * d * d * d,
                    d if d < 2.0 => (2.0 - d).powi(3) / 6.0,
                    _ => 0.0,
                };
        }
    }
    Tensor::from_vec(device, weights, [side, knots])
}
