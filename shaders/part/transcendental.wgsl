{# Part of functions: what needs more than arithmetic. No step relies on fused or on unfused operations: products -#}
{# that must be exact have few enough bits. Compilers for Metal and Direct3D take sums and products in any order, and -#}
{# factors out of sums (DXC does): what must be computed for itself goes through `kept`, or has bits cut off. -#}
{% macro asks(names) -%}
{% for name in names %}{% if name ~ "_F(" in body %}1{% endif %}{% endfor %}
{%- endmacro -%}
{% set exponentials = asks(["exp", "exp2", "expm1", "tanh", "sigmoid", "silu", "gelu_tanh", "softplus", "erf", "pow"]) -%}
{% set logarithms = asks(["log", "log2", "log1p", "softplus"]) -%}
{% if exponentials or logarithms or asks(["sin", "cos", "gelu"]) -%}
// The same number, which no compiler takes apart: a minimum that changes none. Not for what is never negative: LLVM sees
// that its bits are lower.
fn kept(x: F) -> F {
    return bitcast<F>(min(bitcast<U>(x), U(0xfffffffeu)));
}
{% endif -%}
{% if exponentials -%}
// e^r - 1 - r for |r| up to ln(2) / 2 (Cephes).
fn exp_tail(r: F) -> F {
    let p = ((((F(1.9875691500e-4) * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r + 4.1665795894e-2) * r + 1.6666665459e-1) * r;
    return (p + 5.0000001201e-1) * (r * r);
}
// 2^k for whole k from -126 to 127.
fn power_of_two(k: F) -> F {
    return bitcast<F>((I(k) + I(127)) << U(23u));
}
// x 2^k, in two steps: into subnormals and infinity.
fn scaled(x: F, k: F) -> F {
    let half = floor(k * 0.5);
    return kept(x * power_of_two(half)) * power_of_two(k - half);
}
fn exp_F(x: F) -> F {
    let y = clamp(x, F(-104.0), F(89.0));
    let k = round(y * 1.44269504);
    let r = kept(y - k * 0.693359375) + k * 2.12194440e-4;
    return select(scaled(1.0 + (r + exp_tail(r)), k), x, is_nan_F(x));
}
{% endif -%}
{% if asks(["exp2"]) -%}
fn exp2_F(x: F) -> F {
    let y = clamp(x, F(-151.0), F(129.0));
    let k = round(y);
    let r = (y - k) * 0.69314718;
    return select(scaled(1.0 + (r + exp_tail(r)), k), x, is_nan_F(x));
}
{% endif -%}
{% if asks(["expm1", "tanh"]) -%}
fn expm1_F(x: F) -> F {
    let y = clamp(x, F(-18.0), F(89.0));
    let k = round(y * 1.44269504);
    let r = kept(y - k * 0.693359375) + k * 2.12194440e-4;
    let half = power_of_two(k - 1.0);
    let result = (half * (r + exp_tail(r)) + kept(half - 0.5)) * 2.0;
    return select(result, x, is_nan_F(x) | (abs(x) < F(0x1p-25)));
}
{% endif -%}
{% if logarithms -%}
// log(1 + f) - f + f^2 / 2 for 1 + f from sqrt(1/2) to sqrt 2 (FreeBSD's k_logf).
fn log_tail(f: F) -> F {
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let r = w * (0.40000972152 + w * 0.24279078841) + z * (0.66666662693 + w * 0.28498786688);
    return s * (0.5 * f * f + r);
}
// log(1 + f) + e ln 2.
fn log_sum(f: F, e: F) -> F {
    return kept((log_tail(f) + e * 9.0580006145e-6) - 0.5 * f * f) + f + e * 6.9313812256e-1;
}
// What logarithms of x are where `y` is not: of infinity and NaN, below zero, of zero.
fn log_special(x: F, y: F) -> F {
    let bits = bitcast<U>(x);
    let beyond = select(y, x, bits >= U(0x7f800000u));
    let below = select(beyond, bitcast<F>(bits | U(0x7fc00000u)), bits > U(0x80000000u));
    return select(below, bitcast<F>((bits << U(1u)) | U(0xff800000u)), (bits & U(0x7fffffffu)) == U(0u));
}
{% endif -%}
{% if asks(["log", "log2"]) -%}
// x = (1 + f) 2^e with 1 + f from sqrt(1/2) to sqrt 2; subnormals as whole numbers.
struct Split {
    f: F,
    e: F,
}
fn split_F(x: F) -> Split {
    let bits = bitcast<U>(x);
    let is_small = bits < U(0x800000u);
    let moved = select(bits, bitcast<U>(F(bits)), is_small) - U(0x3f3504f3u);
    let f = kept(bitcast<F>((moved & U(0x7fffffu)) + U(0x3f3504f3u)) - 1.0);
    return Split(f, F(bitcast<I>(moved) >> U(23u)) - select(F(), F(149.0), is_small));
}
{% endif -%}
{% if asks(["log"]) -%}
fn log_F(x: F) -> F {
    let parts = split_F(x);
    return log_special(x, log_sum(parts.f, parts.e));
}
{% endif -%}
{% if asks(["log2"]) -%}
fn log2_F(x: F) -> F {
    let parts = split_F(x);
    let f = parts.f;
    let half = 0.5 * f * f;
    let high = bitcast<F>(bitcast<U>(f - half) & U(0xfffff000u));
    let low = ((f - high) - half) + log_tail(f);
    let y = (kept((low + high) * -1.7605285393e-4 + low * 1.4428710938) + high * 1.4428710938) + parts.e;
    return log_special(x, y);
}
{% endif -%}
{% if asks(["log1p", "softplus"]) -%}
// With the exponent of 1 + x taken out of x and of 1 apart, so that nothing of x is lost.
fn log1p_F(x: F) -> F {
    let u = 1.0 + x;
    let e = bitcast<I>(bitcast<U>(u) - U(0x3f3504f3u)) >> U(23u);
    let scale = bitcast<F>((I(129) - e) << U(23u));
    let f = kept(x * scale) * 0.25 + kept(scale * 0.25 - 1.0);
    let y = select(log_sum(f, F(e)), x, abs(x) < F(0x1p-25));
    return log_special(u, y);
}
{% endif -%}
{% if asks(["tanh"]) -%}
fn tanh_F(x: F) -> F {
    let t = expm1_F(2.0 * min(abs(x), F(10.0)));
    let is_large = t > F(2.0);
    let y = select(t, F(-2.0), is_large) / (t + 2.0) + select(F(), F(1.0), is_large);
    let signed = bitcast<F>(bitcast<U>(y) | (bitcast<U>(x) & U(0x80000000u)));
    return select(signed, x, is_nan_F(x));
}
{% endif -%}
{% if asks(["sigmoid", "gelu_tanh"]) -%}
fn sigmoid_F(x: F) -> F {
    let e = exp_F(-abs(x));
    return select(F(1.0), e, is_negative_F(x)) / (1.0 + e);
}
{% endif -%}
{% if asks(["silu"]) -%}
fn silu_F(x: F) -> F {
    let y = max(x, F(-120.0));
    // The exponential in two factors: their product is below the least number sooner than the result.
    let half = exp_F(-0.5 * abs(y));
    let above = select(y, kept(y * half) * half, is_negative_F(y));
    return select(above / (1.0 + half * half), x, is_nan_F(x));
}
{% endif -%}
{% if asks(["gelu"]) -%}
// x/2 (1 + erf(x / sqrt 2)), with an error function within 2e-7, a quotient of polynomials (XLA).
fn gelu_F(x: F) -> F {
    let half = 0.5 * select(x, F(), x < F(-6.0));
    let y = clamp(x * 0.70710678, F(-4.0), F(4.0));
    let z = y * y;
    let p = (((((F(-2.72614225801306e-10) * z + 2.77068142495902e-8) * z - 2.10102402082508e-6) * z - 5.69250639462346e-5) * z - 7.34990630326855e-4) * z - 2.95459980854025e-3) * z - 1.60960333262415e-2;
    let q = (((F(-1.45660718464996e-5) * z - 2.13374055278905e-4) * z - 1.68282697438203e-3) * z - 7.37332916720468e-3) * z - 1.42647390514189e-2;
    return select(half * kept(y * p / q) + half, x, is_nan_F(x));
}
{% endif -%}
{% if asks(["gelu_tanh"]) -%}
// (1 + tanh u) / 2 = sigmoid(2u).
fn gelu_tanh_F(x: F) -> F {
    let y = max(x, F(-30.0));
    let u = 1.5957691216 * (y + 0.044715 * y * y * y);
    return select(y * sigmoid_F(u), x, is_nan_F(x));
}
{% endif -%}
{% if asks(["softplus"]) -%}
fn softplus_F(x: F) -> F {
    return select(max(x, F()) + log1p_F(exp_F(-abs(x))), x, is_nan_F(x));
}
{% endif -%}
{% if asks(["erf"]) -%}
// Two polynomials (N. Juffa).
fn erf_F(x: F) -> F {
    let t = min(abs(x), F(5.0));
    let s = t * t;
    let p = ((((F(-5.96761703e-4) * s + 4.99119423e-3) * s - 2.67681349e-2) * s + 1.12819925e-1) * s - 3.76125336e-1) * s + 1.28379166e-1;
    let near = t * (1.0 + p);
    let q = ((F(-1.72853470e-5) * t + 3.83197126e-4) * s + (F(-3.88396438e-3) * t + 2.42546219e-2)) * t - 1.06777877e-1;
    let far = 1.0 - exp_F(((q * t - 6.34846687e-1) * t - 1.28717512e-1) * t - t);
    let y = select(near, far, t > F(0.927734375));
    let signed = bitcast<F>(bitcast<U>(y) | (bitcast<U>(x) & U(0x80000000u)));
    return select(signed, x, is_nan_F(x));
}
{% endif -%}
{% if asks(["sin", "cos"]) -%}
// x = k pi/2 + r, k modulo 4.
struct Turn {
    k: I,
    r: F,
}
fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
}
// A word of 2/pi's binary digits.
fn two_over_pi(at: u32) -> u32 {
    switch at {
        case 0u: { return 0u; }
        case 1u: { return 0xa2f9836eu; }
        case 2u: { return 0x4e441529u; }
        case 3u: { return 0xfc2757d1u; }
        case 4u: { return 0xf534ddc0u; }
        case 5u: { return 0xdb629599u; }
        case 6u: { return 0x3c439041u; }
        default: { return 0xfe5163abu; }
    }
}
// The size of a large number as quarter turns: 2 bits and a fraction of 30, then 32 more of the
// fraction (Payne and Hanek).
fn quarters(size: f32) -> vec2<u32> {
    let bits = bitcast<u32>(size);
    let whole = (bits & 0x7fffffu) | 0x800000u;
    // size = whole 2^shift: the digits of 2/pi from 2 before the point on, after `shift` of them.
    let skip = (bits >> 23u) - 150u + 30u;
    let word = skip / 32u;
    let by = skip % 32u;
    let a = two_over_pi(word);
    let b = two_over_pi(word + 1u);
    let c = two_over_pi(word + 2u);
    let d = two_over_pi(word + 3u);
    let up = select(32u - by, 31u, by == 0u);
    let first = select((a << by) | (b >> up), a, by == 0u);
    let second = select((b << by) | (c >> up), b, by == 0u);
    let third = select((c << by) | (d >> up), c, by == 0u);
    // The middle words of the product: those above are whole turns.
    let low = high_product(whole, third);
    let middle = whole * second;
    let sum = middle + low;
    let carry = select(0u, 1u, sum < low);
    return vec2<u32>(whole * first + high_product(whole, second) + carry, sum);
}
fn turn_large(x: f32) -> vec2<f32> {
    let digits = quarters(abs(x));
    // To the nearest quarter: the rest is signed.
    let k = (digits.x + 0x20000000u) >> 30u;
    let rest = digits.x - (k << 30u);
    let is_back = (rest & 0x80000000u) != 0u;
    let high = select(rest, ~rest, is_back);
    let low = select(digits.y, ~digits.y, is_back);
    // As a float with all its bits: from the first that is set.
    let lead = min(countLeadingZeros(high), 31u);
    let top = (high << lead) | select(low >> (32u - max(lead, 1u)), 0u, lead == 0u);
    let power = bitcast<f32>((127u - 30u - lead) << 23u);
    let size = (f32(top >> 8u) * 256.0 + f32(top & 0xffu)) * power * 1.57079633;
    let r = select(size, -size, is_back);
    return select(vec2<f32>(f32(k), r), vec2<f32>(-f32(k), -r), x < 0.0);
}
fn turn_F(x: F) -> Turn {
    let k = round(x * 0.636619772);
    // pi/2 in parts of eleven bits, and the rest: exact to 8192.
    var turn = Turn(I(clamp(k, F(-65536.0), F(65536.0))), kept(kept(x - k * 1.5703125) - k * 4.837512969970703125e-4) - k * 7.549789948768648e-8);
    let is_large = abs(x) > F(6000.0);
    if any(is_large) {
        {%- if vector > 1 %}
        for (var i = 0u; i < 4u; i++) {
            if is_large[i] {
                let large = turn_large(x[i]);
                turn.k[i] = i32(large.x);
                turn.r[i] = large.y;
            }
        }
        {%- else %}
        let large = turn_large(x);
        turn = Turn(i32(large.x), large.y);
        {%- endif %}
    }
    return turn;
}
// The sine of `r` after `k` quarter turns (Cephes).
fn sine_of(k: I, r: F) -> F {
    let z = r * r;
    let sine = ((F(-1.9515295891e-4) * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
    let cosine = ((F(2.443315711809948e-5) * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
    let y = select(sine, cosine, (k & I(1)) == I(1));
    return select(y, -y, (k & I(2)) == I(2));
}
// Of infinity it is NaN.
fn wave_special(x: F, y: F) -> F {
    let bits = bitcast<U>(x);
    return select(y, bitcast<F>(bits | U(0x7fc00000u)), (bits & U(0x7f800000u)) == U(0x7f800000u));
}
{% endif -%}
{% if asks(["sin"]) -%}
fn sin_F(x: F) -> F {
    let turn = turn_F(x);
    return wave_special(x, sine_of(turn.k, turn.r));
}
{% endif -%}
{% if asks(["cos"]) -%}
fn cos_F(x: F) -> F {
    let turn = turn_F(x);
    return wave_special(x, sine_of(turn.k + I(1), turn.r));
}
{% endif -%}
{% if asks(["pow"]) -%}
fn upper(x: F) -> F {
    return bitcast<F>(bitcast<U>(x) & U(0xfffff000u));
}
// y log2(x) in two parts, then 2 to that (FreeBSD's e_powf).
fn pow_F(x: F, y: F) -> F {
    let bits = bitcast<U>(x) & U(0x7fffffffu);
    let is_small = bits < U(0x800000u);
    let normal = select(bits, bitcast<U>(F(bits)), is_small);
    let fraction = normal & U(0x7fffffu);
    let is_middle = (fraction > U(0x1cc471u)) & (fraction < U(0x5db3d7u));
    let is_upper = fraction >= U(0x5db3d7u);
    let n = F(bitcast<I>(normal >> U(23u)) - I(127)) - select(F(), F(149.0), is_small) + select(F(), F(1.0), is_upper);
    let mantissa = (fraction | U(0x3f800000u)) - select(U(0u), U(0x800000u), is_upper);
    let m = bitcast<F>(mantissa);
    let base = select(F(1.0), F(1.5), is_middle);
    let u = m - base;
    let v = 1.0 / (m + base);
    let s = u * v;
    let s_h = upper(s);
    let t_h = bitcast<F>((((mantissa >> U(1u)) & U(0xfffff000u)) | U(0x20000000u)) + U(0x00400000u) + select(U(0u), U(0x200000u), is_middle));
    let t_l = m - kept(t_h - base);
    let s_l = v * (kept(u - s_h * t_h) - s_h * t_l);
    let s2 = s * s;
    let series = s2 * s2 * (6.0000002384e-1 + s2 * (4.2857143283e-1 + s2 * (3.3333334327e-1 + s2 * (2.7272811532e-1 + s2 * (2.3066075146e-1 + s2 * 2.0697501302e-1)))));
    let r = series + s_l * (s_h + s);
    let square = s_h * s_h;
    let w_h = upper(3.0 + square + r);
    let w_l = r - kept(kept(w_h - 3.0) - square);
    let p = s_h * w_h;
    let q = s_l * w_h + w_l * s;
    let p_h = upper(p + q);
    let p_l = q - kept(p_h - p);
    let z_h = 9.6191406250e-1 * p_h;
    let d_h = select(F(), F(5.84960938e-1), is_middle);
    let z_l = -1.1736857402e-4 * p_h + p_l * 9.6179670095e-1 + select(F(), F(1.56322085e-6), is_middle);
    let log_h = upper(((z_h + z_l) + d_h) + n);
    let log_l = z_l - kept(kept(kept(log_h - n) - d_h) - z_h);
    // What lies beyond overflows all the same.
    let power = clamp(y, F(-1e30), F(1e30));
    let y_h = upper(power);
    let e_l = kept(power - y_h) * log_h + power * log_l;
    let e_h = y_h * log_h;
    let k = round(clamp(e_h + e_l, F(-160.0), F(130.0)));
    let t = clamp(kept(e_h - k) + e_l, F(-1.0), F(1.0)) * 0.69314718;
    var size = scaled(1.0 + (t + exp_tail(t)), k);
    // Zero and infinity; then signs.
    let y_bits = bitcast<U>(y);
    let falls = y_bits >= U(0x80000000u);
    size = select(size, select(F(), bitcast<F>(bits | U(0x7f800000u)), falls == (bits == U(0u))), (bits == U(0u)) | (bits >= U(0x7f800000u)));
    let is_whole = (trunc(power) == power) | (abs(power) >= F(16777216.0));
    let is_odd = is_whole & (abs(power) < F(16777216.0)) & (floor(power * 0.5) * 2.0 != power);
    let is_minus = bitcast<U>(x) >= U(0x80000000u);
    size = select(size, bitcast<F>(bitcast<U>(size) | U(0x80000000u)), is_minus & is_odd);
    let is_finite = (bits < U(0x7f800000u)) & (bits > U(0u));
    size = select(size, bitcast<F>(bits | U(0x7fc00000u)), is_minus & is_finite & !is_whole);
    size = select(size, x, is_nan_F(x));
    size = select(size, y, is_nan_F(y));
    return select(size, F(1.0), ((y_bits & U(0x7fffffffu)) == U(0u)) | (bitcast<U>(x) == U(0x3f800000u)));
}
{% endif -%}
