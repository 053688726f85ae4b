//! exp of f32 in a form that becomes vectors: the same steps as `shaders/part/exp.wgsl`.

/// Within 2 ULP; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons with NaN are false, so it stays.
    let limited = if x < -104.0 { -104.0 } else { x };
    let limited = if limited > 89.0 { 89.0 } else { limited };
    // To the nearest integer: what is added leaves no room for a fraction.
    const ROUND: f32 = 12_582_912.0;
    let shifted = limited * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (limited - n * 0.693_145_75) - n * 1.428_606_8e-6;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    // 2^n in two factors, each of which is a normal number.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let first = n >> 1;
    let second = n.wrapping_sub(first);
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    let scaled = p * power(first) * power(second);
    if x.is_nan() { x } else { scaled }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exp_is_within_two_steps() {
        let mut worst = 0.0f64;
        for at in 0..4_000_000u32 {
            let x = (f64::from(at) / 4e6 * 192.0 - 103.5) as f32;
            let want = f64::from(x).exp();
            let step = (want.log2().floor().max(-126.0) - 23.0).exp2();
            if want < f64::from(f32::MAX) {
                worst = worst.max((f64::from(exp(x)) - want).abs() / step);
            }
        }
        assert!(worst <= 2.0, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
