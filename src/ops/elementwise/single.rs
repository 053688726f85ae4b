//! Functions of f32 as the kernels have them (`shaders/part/transcendental.wgsl`), without branches, so
//! that loops over them vectorise. Bounds: docs/numerics.md.
#![allow(clippy::excessive_precision)]

/// e^r - 1 - r for |r| up to ln(2) / 2 (Cephes).
#[inline(always)]
fn exp_tail(r: f32) -> f32 {
    let p = ((((1.9875691500e-4 * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r
        + 4.1665795894e-2)
        * r
        + 1.6666665459e-1)
        * r;
    (p + 5.0000001201e-1) * (r * r)
}

/// To the nearest whole number, ties to even, for sizes below 2^22.
#[inline(always)]
fn whole(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// 2^k for whole k from -126 to 127.
#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits(((k + 127) as u32) << 23)
}

/// A whole number as an integer.
#[inline(always)]
fn integer(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// x 2^k, in two steps: into subnormals and infinity.
#[inline(always)]
fn scaled(x: f32, k: f32) -> f32 {
    let k = integer(k);
    let half = k >> 1;
    x * power_of_two(half) * power_of_two(k - half)
}

/// Within two bounds; NaN is one of them.
#[inline(always)]
fn within(x: f32, low: f32, high: f32) -> f32 {
    let raised = if x > low { x } else { low };
    if raised < high { raised } else { high }
}

/// The whole number of halvings in e^y, and what is left of y.
#[inline(always)]
fn halvings(y: f32) -> (f32, f32) {
    let k = whole(y * std::f32::consts::LOG2_E);
    (k, (y - k * 0.693359375) + k * 2.12194440e-4)
}

#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let (k, r) = halvings(within(x, -104.0, 89.0));
    let y = scaled(1.0 + (r + exp_tail(r)), k);
    if x.is_nan() { x } else { y }
}

#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    let y = within(x, -151.0, 129.0);
    let k = whole(y);
    let r = (y - k) * std::f32::consts::LN_2;
    let y = scaled(1.0 + (r + exp_tail(r)), k);
    if x.is_nan() { x } else { y }
}

#[inline(always)]
pub(super) fn expm1(x: f32) -> f32 {
    let (k, r) = halvings(within(x, -18.0, 89.0));
    let half = power_of_two(integer(k) - 1);
    let y = (half * (r + exp_tail(r)) + (half - 0.5)) * 2.0;
    let is_small = x.abs() < 2.980_232_2e-8;
    if x.is_nan() | is_small { x } else { y }
}

/// log(1 + f) - f + f^2 / 2 for 1 + f from sqrt(1/2) to sqrt 2 (FreeBSD's k_logf).
#[inline(always)]
fn log_tail(f: f32) -> f32 {
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let r = w * (0.40000972152 + w * 0.24279078841) + z * (0.66666662693 + w * 0.28498786688);
    s * (0.5 * f * f + r)
}

/// log(1 + f) + e ln 2.
#[inline(always)]
fn log_sum(f: f32, e: f32) -> f32 {
    ((log_tail(f) + e * 9.0580006145e-6) - 0.5 * f * f) + f + e * 6.9313812256e-1
}

/// What logarithms of x are where `y` is not: of infinity and NaN, below zero, of zero.
#[inline(always)]
fn log_special(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// x = (1 + f) 2^e with 1 + f from sqrt(1/2) to sqrt 2; subnormals as whole numbers.
#[inline(always)]
fn split(x: f32) -> (f32, f32) {
    let is_small = x < f32::MIN_POSITIVE;
    let normal = if is_small { x * 8_388_608.0 } else { x };
    let moved = normal.to_bits().wrapping_sub(0x3f35_04f3);
    let f = f32::from_bits((moved & 0x007f_ffff) + 0x3f35_04f3) - 1.0;
    let e = ((moved as i32) >> 23) - if is_small { 23 } else { 0 };
    (f, e as f32)
}

#[inline(always)]
pub(super) fn log(x: f32) -> f32 {
    let (f, e) = split(x);
    log_special(x, log_sum(f, e))
}

#[inline(always)]
pub(super) fn log2(x: f32) -> f32 {
    let (f, e) = split(x);
    let half = 0.5 * f * f;
    let high = f32::from_bits((f - half).to_bits() & 0xffff_f000);
    let low = ((f - high) - half) + log_tail(f);
    let y = (((low + high) * -1.7605285393e-4 + low * 1.4428710938) + high * 1.4428710938) + e;
    log_special(x, y)
}

/// With the exponent of 1 + x taken out of x and of 1 apart, so that nothing of x is lost.
#[inline(always)]
pub(super) fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    let e = (u.to_bits().wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let scale = f32::from_bits((129i32.wrapping_sub(e) as u32) << 23);
    let f = x * scale * 0.25 + (scale * 0.25 - 1.0);
    let is_small = x.abs() < 2.980_232_2e-8;
    let y = if is_small { x } else { log_sum(f, e as f32) };
    log_special(u, y)
}

#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let t = expm1(2.0 * if size < 10.0 { size } else { 10.0 });
    let is_large = t > 2.0;
    let y = if is_large { -2.0 } else { t } / (t + 2.0) + if is_large { 1.0 } else { 0.0 };
    let y = y.copysign(x);
    if x.is_nan() { x } else { y }
}

#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    let y = if x < -120.0 { -120.0 } else { x };
    // The exponential in two factors: their product is below the least number sooner than the result.
    let half = exp(-0.5 * y.abs());
    let above = if y < 0.0 { y * half * half } else { y };
    above / (1.0 + half * half)
}

/// x/2 erfc(-x / sqrt 2): Abramowitz and Stegun 7.1.26, 1.5e-7.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    let y = if x < -30.0 { -30.0 } else { x };
    let z = y.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let p = t
        * (0.254829592
            + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    let tail = p * exp(-z * z);
    0.5 * y * if y < 0.0 { tail } else { 2.0 - tail }
}

/// (1 + tanh u) / 2 = sigmoid(2u).
#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    let y = if x < -30.0 { -30.0 } else { x };
    y * sigmoid(1.5957691216 * (y + 0.044715 * y * y * y))
}

#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    let above = if x > 0.0 { x } else { 0.0 };
    let y = above + log1p(exp(-x.abs()));
    if x.is_nan() { x } else { y }
}

/// Two polynomials (N. Juffa).
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let size = x.abs();
    let t = if size < 5.0 { size } else { 5.0 };
    let s = t * t;
    let p = ((((-5.96761703e-4 * s + 4.99119423e-3) * s - 2.67681349e-2) * s + 1.12819925e-1) * s
        - 3.76125336e-1)
        * s
        + 1.28379166e-1;
    let near = t * (1.0 + p);
    let q = ((-1.72853470e-5 * t + 3.83197126e-4) * s + (-3.88396438e-3 * t + 2.42546219e-2)) * t
        - 1.06777877e-1;
    let far = 1.0 - exp(((q * t - 6.34846687e-1) * t - 1.28717512e-1) * t - t);
    let y = if t > 0.927734375 { far } else { near };
    let y = y.copysign(x);
    if x.is_nan() { x } else { y }
}

/// Sizes up to which [`wave`] is right.
pub(super) const LARGE: f32 = 6000.0;

/// The sine after `ahead` quarter turns (Cephes), of sizes up to [`LARGE`].
#[inline(always)]
pub(super) fn wave(x: f32, ahead: i32) -> f32 {
    let k = whole(within(x, -LARGE, LARGE) * std::f32::consts::FRAC_2_PI);
    // pi/2 in parts of eleven bits, and the rest: exact to 8192.
    let r = ((x - k * 1.5703125) - k * 4.837512969970703125e-4) - k * 7.549789948768648e-8;
    let turns = integer(k) + ahead;
    let z = r * r;
    let sine = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
    let cosine =
        ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z
            - 0.5 * z
            + 1.0;
    let y = if turns & 1 == 1 { cosine } else { sine };
    if turns & 2 == 2 { -y } else { y }
}
