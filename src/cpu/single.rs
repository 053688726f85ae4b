//! Functions of f32, most as the kernels have them (`shaders/part/transcendental.wgsl`), without branches, so
//! that loops over them vectorise. Bounds: docs/numerics.md.
#![allow(clippy::excessive_precision)]

mod angles;

use super::shared::shared;
pub(crate) use angles::{acos, acosh, asin, asinh, atan, atan2, atanh, cosh, sinh, tan};

shared! { f32, i32, u32; fraction: 23, one: 127, shift: 12_582_912.0, even: 16_777_216.0 }

/// a b + c, rounded once where the processor has that as one instruction.
#[inline(always)]
fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// A polynomial's value, from the highest coefficient on.
#[inline(always)]
fn polynomial<const FUSED: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut y = coefficients[0];
    let mut at = 1;
    while at < N {
        y = fma::<FUSED>(y, x, coefficients[at]);
        at += 1;
    }
    y
}

/// e^r - 1 - r for |r| up to ln(2) / 2 (Cephes).
#[inline(always)]
fn exp_tail<const FUSED: bool>(r: f32) -> f32 {
    let p = polynomial::<FUSED, _>(
        r,
        [
            1.9875691500e-4,
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ],
    );
    p * (r * r)
}

/// The whole number of halvings in e^y, and what is left of y.
#[inline(always)]
fn halvings<const FUSED: bool>(y: f32) -> (i32, f32) {
    let (k, n) = whole(fma::<FUSED>(y, std::f32::consts::LOG2_E, SHIFT));
    let r = fma::<FUSED>(k, -0.693359375, y);
    (n, fma::<FUSED>(k, 2.12194440e-4, r))
}

#[inline(always)]
pub(crate) fn exp<const FUSED: bool>(x: f32) -> f32 {
    let (k, r) = halvings::<FUSED>(within(x, -104.0, 89.0));
    scaled(1.0 + (r + exp_tail::<FUSED>(r)), k)
}

/// e^x for x up to 0, in half the steps of [`exp`]: what is below 1.2e-38 may be 0. Within
/// 4 u + 0.3 u |x|, where u is 2^-24.
#[inline(always)]
pub(crate) fn exp_below<const FUSED: bool>(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // From there on the factor is 0; NaN stays.
    let x = if x < -88.0 { -88.0 } else { x };
    let (k, power) = whole_power(fma::<FUSED>(x, LOG2_E, SHIFTED));
    let r = match FUSED {
        true => fma::<FUSED>(x, LOG2_E, -k),
        false => ((x - k * 0.693359375) + k * 2.12194440e-4) * LOG2_E,
    };
    power_near_one::<FUSED>(r) * power
}

/// 2^r for |r| up to 1/2, within 1.3 u where the last is not rounded to 1.
#[inline(always)]
fn power_near_one<const FUSED: bool>(r: f32) -> f32 {
    polynomial::<FUSED, _>(
        r,
        [
            1.3276472e-3,
            9.6755413e-3,
            5.5507133e-2,
            0.2402212,
            0.69314697,
            1.0,
        ],
    )
}

#[inline(always)]
pub(crate) fn exp2<const FUSED: bool>(x: f32) -> f32 {
    let y = within(x, -151.0, 129.0);
    let (k, n) = whole(y + SHIFT);
    let r = (y - k) * std::f32::consts::LN_2;
    scaled(1.0 + (r + exp_tail::<FUSED>(r)), n)
}

#[inline(always)]
pub(crate) fn expm1<const FUSED: bool>(x: f32) -> f32 {
    let (k, r) = halvings::<FUSED>(within(x, -18.0, 89.0));
    let half = power_of_two(k.wrapping_sub(1));
    let y = fma::<FUSED>(half, r + exp_tail::<FUSED>(r), half - 0.5) * 2.0;
    let is_small = x.abs() < 2.980_232_2e-8;
    if is_small { x } else { y }
}

/// log(1 + f) - f + f^2 / 2 for 1 + f from sqrt(1/2) to sqrt 2 (FreeBSD's k_logf).
#[inline(always)]
fn log_tail<const FUSED: bool>(f: f32) -> f32 {
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * polynomial::<FUSED, _>(
        z,
        [0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693],
    );
    s * fma::<FUSED>(0.5 * f, f, r)
}

/// log(1 + f) + e ln 2.
#[inline(always)]
fn log_sum<const FUSED: bool>(f: f32, e: f32) -> f32 {
    let low = fma::<FUSED>(e, 9.0580006145e-6, log_tail::<FUSED>(f));
    let near = fma::<FUSED>(-0.5 * f, f, low) + f;
    fma::<FUSED>(e, 6.9313812256e-1, near)
}

/// x = (1 + f) 2^e with 1 + f from sqrt(1/2) to sqrt 2; subnormals as whole numbers.
#[inline(always)]
fn split(x: f32) -> (f32, f32) {
    let is_small = x < f32::MIN_POSITIVE;
    let (f, e) = split_normal(if is_small { x * 8_388_608.0 } else { x });
    (f, e - if is_small { 23.0 } else { 0.0 })
}

/// [`split`] of what is no subnormal.
#[inline(always)]
fn split_normal(x: f32) -> (f32, f32) {
    let moved = x.to_bits().wrapping_sub(0x3f35_04f3);
    let f = f32::from_bits((moved & 0x007f_ffff) + 0x3f35_04f3) - 1.0;
    (f, ((moved as i32) >> 23) as f32)
}

#[inline(always)]
pub(crate) fn log<const FUSED: bool>(x: f32) -> f32 {
    let (f, e) = split(x);
    log_special(x, log_sum::<FUSED>(f, e))
}

/// log2(1 + f) as f + f p: the sum alone is rounded in steps as large as the result's.
#[inline(always)]
pub(crate) fn log2<const FUSED: bool>(x: f32) -> f32 {
    let (f, e) = split(x);
    let p = polynomial::<FUSED, _>(
        f,
        [
            1.258370578e-1,
            -2.072697580e-1,
            2.157156020e-1,
            -2.389448136e-1,
            2.879162431e-1,
            -3.607036769e-1,
            4.809106290e-1,
            -7.213473320e-1,
            4.42695022e-1,
        ],
    );
    log_special(x, fma::<FUSED>(f, p, f) + e)
}

/// log(1 + x) + more ln 2, with the exponent of 1 + x taken out of x and of 1 apart, so that nothing of x is lost.
#[inline(always)]
fn log_beside_one<const FUSED: bool>(x: f32, more: f32) -> f32 {
    let e = ((1.0 + x).to_bits().wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let scale = f32::from_bits((129i32.wrapping_sub(e) as u32) << 23);
    let f = x * scale * 0.25 + (scale * 0.25 - 1.0);
    log_sum::<FUSED>(f, e as f32 + more)
}

#[inline(always)]
pub(crate) fn log1p<const FUSED: bool>(x: f32) -> f32 {
    let is_small = x.abs() < 2.980_232_2e-8;
    let y = if is_small {
        x
    } else {
        log_beside_one::<FUSED>(x, 0.0)
    };
    log_special(1.0 + x, y)
}

#[inline(always)]
pub(crate) fn tanh<const FUSED: bool>(x: f32) -> f32 {
    let size = x.abs();
    let t = expm1::<FUSED>(2.0 * if size < 10.0 { size } else { 10.0 });
    let is_large = t > 2.0;
    let y = if is_large { -2.0 } else { t } / (t + 2.0) + if is_large { 1.0 } else { 0.0 };
    let y = y.copysign(x);
    if x.is_nan() { x } else { y }
}

#[inline(always)]
pub(crate) fn sigmoid<const FUSED: bool>(x: f32) -> f32 {
    let e = exp::<FUSED>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// e^(-size / 2), a normal number: its square is below the least one sooner. Of sizes above 170 that of 170, whose square is 0.
#[inline(always)]
fn exp_of_half<const FUSED: bool>(size: f32) -> f32 {
    let (k, r) = halvings::<FUSED>(-0.5 * if size > 170.0 { 170.0 } else { size });
    (1.0 + (r + exp_tail::<FUSED>(r))) * power_of_two(k)
}

#[inline(always)]
pub(crate) fn silu<const FUSED: bool>(x: f32) -> f32 {
    let y = if x < -120.0 { -120.0 } else { x };
    let half = exp_of_half::<FUSED>(y.abs());
    let above = if y < 0.0 { y * half * half } else { y };
    above / (1.0 + half * half)
}

/// The error function within 2e-7, a quotient of polynomials (XLA).
#[inline(always)]
fn erf_near<const FUSED: bool>(x: f32) -> f32 {
    let y = within(x, -4.0, 4.0);
    let z = y * y;
    let p = polynomial::<FUSED, _>(
        z,
        [
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ],
    );
    let q = polynomial::<FUSED, _>(
        z,
        [
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ],
    );
    y * p / q
}

/// x/2 (1 + erf(x / sqrt 2)).
#[inline(always)]
pub(crate) fn gelu<const FUSED: bool>(x: f32) -> f32 {
    let half = 0.5 * if x < -6.0 { 0.0 } else { x };
    let erf = erf_near::<FUSED>(x * std::f32::consts::FRAC_1_SQRT_2);
    fma::<FUSED>(half, erf, half)
}

/// (1 + tanh u) / 2 = sigmoid(2u) = 1 / (1 + 2^w) with w = -2u / ln 2.
#[inline(always)]
pub(crate) fn gelu_tanh<const FUSED: bool>(x: f32) -> f32 {
    let y = if x < -30.0 { -30.0 } else { x };
    let w = y * fma::<FUSED>(-0.10294324, y * y, -2.3022082);
    // Infinite far below 0.
    let w = within(w, -126.0, 128.0);
    let (k, power) = whole_power(w + SHIFTED);
    y / fma::<FUSED>(power_near_one::<FUSED>(w - k), power, 1.0)
}

/// log(1 + e) for e from 0 to 1, without a quotient.
#[inline(always)]
fn log_of_more<const FUSED: bool>(e: f32) -> f32 {
    let p = polynomial::<FUSED, _>(
        e,
        [
            -3.256378463e-3,
            2.003451623e-2,
            -5.757864192e-2,
            1.069882289e-1,
            -1.538438499e-1,
            1.971266717e-1,
            -2.496352941e-1,
            3.333115280e-1,
            -4.999996126e-1,
        ],
    );
    fma::<FUSED>(e * e, p, e)
}

#[inline(always)]
pub(crate) fn softplus<const FUSED: bool>(x: f32) -> f32 {
    let above = if x > 0.0 { x } else { 0.0 };
    let half = exp_of_half::<FUSED>(x.abs());
    above + log_of_more::<FUSED>(half * half)
}

/// Two polynomials: of small numbers (N. Juffa), and for the logarithm of what is missing from 1.
#[inline(always)]
pub(crate) fn erf<const FUSED: bool>(x: f32) -> f32 {
    let size = x.abs();
    // NaN stays.
    let t = if size > 4.0 { 4.0 } else { size };
    let p = polynomial::<FUSED, _>(
        t * t,
        [
            -5.96761703e-4,
            4.99119423e-3,
            -2.67681349e-2,
            1.12819925e-1,
            -3.76125336e-1,
            1.28379166e-1,
        ],
    );
    let near = fma::<FUSED>(t, p, t);
    let y = polynomial::<FUSED, _>(
        t,
        [
            -2.333494194e-5,
            5.277090822e-4,
            -5.444434006e-3,
            3.446139023e-2,
            -1.530222893e-1,
            -9.170417786e-1,
            -1.627701879,
            -1.720490400e-4,
        ],
    );
    let (k, n) = whole(y + SHIFT);
    // 2^r, as near as a number below 0.2 that is taken from 1 needs to be.
    let power = power_near_one::<FUSED>(y - k);
    let far = fma::<FUSED>(-power_of_two(n), power, 1.0);
    let y = if t > 0.927734375 { far } else { near };
    y.copysign(x)
}

/// Sizes up to which [`wave`] is right.
pub(crate) const LARGE: f32 = 6000.0;

/// What is left of x, up to [`LARGE`] in size, beside whole quarter turns: how many they are, the rest, and what rounding took
/// from it.
#[inline(always)]
fn turn<const FUSED: bool>(x: f32) -> (i32, f32, f32) {
    // pi/2 in parts of eleven bits, and the rest: exact to 8192.
    const PARTS: [f32; 4] = [
        -1.5703125,
        -4.837512969970703125e-4,
        -7.5495336204767227e-8,
        -2.563344152e-12,
    ];
    let y = within(x, -LARGE, LARGE);
    let (k, n) = whole(fma::<FUSED>(y, std::f32::consts::FRAC_2_PI, SHIFT));
    let near = fma::<FUSED>(k, PARTS[1], fma::<FUSED>(k, PARTS[0], y));
    let r = fma::<FUSED>(k, PARTS[2], near);
    let low = fma::<FUSED>(k, PARTS[2], near - r);
    (n, r, fma::<FUSED>(k, PARTS[3], low))
}

/// The sine after `ahead` quarter turns (Cephes), of sizes up to [`LARGE`].
#[inline(always)]
pub(crate) fn wave<const FUSED: bool>(x: f32, ahead: i32) -> f32 {
    let (n, r, low) = turn::<FUSED>(x);
    let r = r + low;
    let turns = n.wrapping_add(ahead);
    let z = r * r;
    let sine = polynomial::<FUSED, _>(z, [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1]);
    let sine = fma::<FUSED>(sine * z, r, r);
    let cosine = polynomial::<FUSED, _>(
        z,
        [
            2.443315711809948e-5,
            -1.388731625493765e-3,
            4.166664568298827e-2,
            -0.5,
            1.0,
        ],
    );
    let y = if turns & 1 == 1 { cosine } else { sine };
    f32::from_bits(y.to_bits() ^ ((turns as u32 & 2) << 30))
}

/// Of the exponents below: they lie as in a float's bits, above its fraction.
const EXPONENT_ONE: f32 = 8_388_608.0;

/// Exponents whose power is normal, and so is its product with what is near 1.
pub(crate) const PLAIN_EXPONENT: f32 = 125.0 * EXPONENT_ONE;

/// y log2(|x|) in two parts, in units of 1 / [`EXPONENT_ONE`].
#[inline(always)]
pub(crate) fn exponent(x: f32, y: f32) -> (f32, f32) {
    let (f, e) = split(x.abs());
    // What lies beyond overflows all the same.
    exponent_of(f, e * EXPONENT_ONE, within(y, -1e12, 1e12))
}

/// [`exponent`] for a normal number x above zero; infinite or NaN only where y is, or where it is beyond [`PLAIN_EXPONENT`].
#[inline(always)]
pub(crate) fn plain_exponent(x: f32, y: f32) -> (f32, f32) {
    // As `split_normal`, but for the exponent.
    let e = x.to_bits().wrapping_sub(0x3f35_04f3) & 0xff80_0000;
    let f = f32::from_bits(x.to_bits().wrapping_sub(e)) - 1.0;
    exponent_of(f, e as i32 as f32, y)
}

/// With x = (1 + f) 2^(e / [`EXPONENT_ONE`]). With s = f / (2 + f) the logarithm of 1 + f is 2 s and what one part holds.
#[inline(always)]
fn exponent_of(f: f32, e: f32, y: f32) -> (f32, f32) {
    // 2 / ln 2.
    const FIRST: f32 = 2.885390043258667 * EXPONENT_ONE;
    const FIRST_LOW: f32 = 3.851926067e-8 * EXPONENT_ONE;
    let inverse = 1.0 / (2.0 + f);
    let s = f * inverse;
    // f - 2 s is exact.
    let s_low = s.mul_add(-f, s.mul_add(-2.0, f)) * inverse;
    let z = s * s;
    let cube = polynomial::<true, _>(
        z,
        [
            0.33659467101097107 * EXPONENT_ONE,
            0.4119010269641876 * EXPONENT_ONE,
            0.5770797729492188 * EXPONENT_ONE,
            0.9617967009544373 * EXPONENT_ONE,
            FIRST_LOW,
        ],
    );
    let sum = FIRST.mul_add(s, e);
    let sum_low = FIRST.mul_add(s, -(sum - e));
    let high = s.mul_add(cube, sum);
    let high_low = s.mul_add(cube, -(high - sum));
    // What s lacks counts three times in the cube.
    let low = high_low + cube.mul_add(3.0, FIRST).mul_add(s_low, sum_low);
    let e_high = y * high;
    (e_high, y.mul_add(low, y.mul_add(high, -e_high)))
}

/// 2 to an exponent in two parts.
#[inline(always)]
pub(crate) fn raised((high, low): (f32, f32)) -> f32 {
    let (high, low) = (high * (1.0 / EXPONENT_ONE), low * (1.0 / EXPONENT_ONE));
    let (k, halves) = whole_exponent(within(high + low, -160.0, 130.0) + SHIFTED);
    let t = within((high - k) + low, -1.0, 1.0);
    scaled(power_of_fraction(t), halves)
}

/// [`raised`], bit for bit, where the first part is below [`PLAIN_EXPONENT`] in size.
#[inline(always)]
pub(crate) fn plain_raised((high, low): (f32, f32)) -> f32 {
    let (k, power) = whole_power((high + low).mul_add(1.0 / EXPONENT_ONE, SHIFTED));
    let t = low.mul_add(1.0 / EXPONENT_ONE, high.mul_add(1.0 / EXPONENT_ONE, -k));
    power_of_fraction(t) * power
}

/// 2^t for |t| up to 1/2, and something finite up to 1.
#[inline(always)]
fn power_of_fraction(t: f32) -> f32 {
    polynomial::<true, _>(
        t,
        [
            0.00015453182277269661,
            0.0013390886597335339,
            0.009618082083761692,
            0.055503569543361664,
            0.24022650718688965,
            0.6931471824645996,
            1.0,
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the test below.
    #[test]
    fn unfused_logarithms_and_error_functions_are_within_their_bounds() {
        let step = |want: f64| (want.abs().log2().floor().max(-126.0) - 23.0).exp2();
        let off = |got: f32, want: f64| (f64::from(got) - want).abs() / step(want);
        let (mut log_off, mut erf_off, mut plus_off) = (0.0f64, 0.0f64, 0.0f64);
        for at in 1..0x7f80_0000 / 1009u32 {
            let x = f32::from_bits(at * 1009);
            let wide = f64::from(x);
            log_off = log_off.max(off(log2::<false>(x), wide.log2()));
            erf_off = erf_off.max(off(erf::<false>(x), libm::erf(wide)));
            if x < 100.0 {
                plus_off = plus_off.max(off(softplus::<false>(-x), (-wide).exp().ln_1p()));
            }
        }
        for at in 0..1_000_000 {
            let x = 0.7 + at as f32 * 7.5e-7;
            log_off = log_off.max(off(log2::<false>(x), f64::from(x).log2()));
            let x = x + 0.2;
            erf_off = erf_off.max(off(erf::<false>(x), libm::erf(x.into())));
        }
        assert!(log_off <= 2.0, "{log_off}");
        assert!(erf_off <= 3.0, "{erf_off}");
        assert!(plus_off <= 6.0, "{plus_off}");
        assert!(erf::<false>(f32::NAN).is_nan() && softplus::<false>(f32::NAN).is_nan());
        assert_eq!(erf::<false>(f32::NEG_INFINITY), -1.0);
        assert_eq!(log2::<false>(1.0), 0.0);
    }

    #[test]
    fn exponentials_of_numbers_below_zero() {
        fn check<const FUSED: bool>() {
            for at in 0..2_000_000 {
                let x = -88.5 * (at as f32 / 2e6).powi(3);
                let (got, want) = (f64::from(exp_below::<FUSED>(x)), f64::from(x).exp());
                let unit = 2f64.powi(-24) * want;
                let is_right = (got - want).abs() <= (4.0 + 0.3 * f64::from(-x)) * unit;
                assert!(
                    is_right || (got == 0.0 && want < 1.2e-38),
                    "{x}: {got}, {want}"
                );
            }
            assert_eq!(exp_below::<FUSED>(0.0), 1.0);
            assert_eq!(exp_below::<FUSED>(f32::NEG_INFINITY), 0.0);
            assert_eq!(exp_below::<FUSED>(f32::MIN), 0.0);
            for bits in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0x7fff_ffff] {
                assert!(exp_below::<FUSED>(f32::from_bits(bits)).is_nan());
            }
        }
        check::<false>();
        check::<true>();
    }

    /// To what leads anywhere between the least and the largest number.
    #[test]
    fn powers_are_within_their_bounds() {
        let step = |want: f64| (want.abs().log2().floor().max(-126.0) - 23.0).exp2();
        for at in 0..4_000_000u32 {
            let base = match at % 2 {
                0 => f32::from_bits(at * 530 + 7),
                _ => 0.6 + at as f32 * 2.2e-7,
            };
            let aim = f64::from(at % 1007) / 1007.0 * 277.0 - 149.0;
            let power = (aim / f64::from(base).log2()) as f32;
            let want = f64::from(base).powf(power.into());
            if want > f64::from(f32::MAX) {
                continue;
            }
            let got = raised(exponent(base, power));
            let off = (f64::from(got) - want).abs() / step(want);
            assert!(off <= 2.5, "{base:e} to {power:e}: {got:e}, not {want:e}");
            if base >= f32::MIN_POSITIVE {
                let exponent = plain_exponent(base, power);
                if exponent.0.abs() < PLAIN_EXPONENT {
                    assert_eq!(plain_raised(exponent).to_bits(), got.to_bits());
                }
            }
        }
    }

    /// The form without fused operations, which vectors of this processor may have.
    #[test]
    fn unfused_functions_are_within_their_bounds() {
        let step = |want: f64| (want.abs().log2().floor().max(-126.0) - 23.0).exp2();
        let mut exp_off = 0.0f64;
        for at in 0..4_000_000u32 {
            let x = (f64::from(at) / 4e6 * 192.0 - 103.5) as f32;
            let want = f64::from(x).exp();
            if want < f64::from(f32::MAX) {
                exp_off = exp_off.max((f64::from(exp::<false>(x)) - want).abs() / step(want));
            }
        }
        assert!(exp_off <= 2.0, "{exp_off}");
        assert_eq!(exp::<false>(0.0), 1.0);
        assert_eq!(exp::<false>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<false>(-200.0), 0.0);
        assert_eq!(exp::<false>(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp::<false>(89.0), f32::INFINITY);
        assert!(exp::<false>(f32::NAN).is_nan());
    }
}
