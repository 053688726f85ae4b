{# Part of functions: what needs more than arithmetic. No step relies on fused or on unfused operations: products -#}
{# that must be exact have few enough bits. Compilers for Metal and Direct3D take sums and products in any order, and -#}
{# factors out of sums (DXC does): what must be computed for itself goes through `kept`, or has bits cut off. -#}
{% macro asks(names) -%}
{% for name in names %}{% if " " ~ name ~ "_F(" in body %}1{% endif %}{% endfor %}
{%- endmacro -%}
{% set exponentials = asks(["exp", "exp2", "expm1", "tanh", "sigmoid", "silu", "gelu_tanh", "softplus", "erf", "pow", "sinh", "cosh"]) -%}
{% set logarithms = asks(["log", "log2", "log1p", "asinh", "acosh", "atanh"]) -%}
{% set angles = asks(["asin", "acos", "atan", "atan2"]) -%}
{% if exponentials or logarithms or angles or asks(["sin", "cos", "tan", "gelu"]) -%}
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
// 2^k for whole k from -126 to 127, which is in the last bits of the sum; of others it is any number.
fn power_of_two(k: F) -> F {
    return bitcast<F>(bitcast<U>(k + 12583039.0) << U(23u));
}
// x 2^k, in two steps: into subnormals and infinity.
fn scaled(x: F, k: F) -> F {
    let half = floor(k * 0.5);
    return kept(x * power_of_two(half)) * power_of_two(k - half);
}
// x = k ln 2 + r for |x| up to 110, k whole.
struct Exponent {
    k: F,
    r: F,
}
fn exponent_F(x: F) -> Exponent {
    let k = round(x * 1.44269504);
    return Exponent(k, kept(x - k * 0.693359375) + k * 2.12194440e-4);
}
fn exp_F(x: F) -> F {
    let parts = exponent_F(clamp(x, F(-104.0), F(89.0)));
    return select(scaled(1.0 + (parts.r + exp_tail(parts.r)), parts.k), x, is_nan_F(x));
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
    let parts = exponent_F(clamp(x, F(-18.0), F(89.0)));
    let half = power_of_two(parts.k - 1.0);
    let result = (half * (parts.r + exp_tail(parts.r)) + kept(half - 0.5)) * 2.0;
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
{% if asks(["log1p", "asinh", "acosh", "atanh"]) -%}
// log(1 + x) + more ln 2, with the exponent of 1 + x taken out of x and of 1 apart, so that nothing of x is lost.
fn log_beside_one(x: F, more: F) -> F {
    let e = bitcast<I>(bitcast<U>(1.0 + x) - U(0x3f3504f3u)) >> U(23u);
    let scale = bitcast<F>((I(129) - e) << U(23u));
    let f = kept(x * scale) * 0.25 + kept(scale * 0.25 - 1.0);
    return log_sum(f, F(e) + more);
}
{% endif -%}
{% if asks(["log1p"]) -%}
fn log1p_F(x: F) -> F {
    let y = select(log_beside_one(x, F()), x, abs(x) < F(0x1p-25));
    return log_special(1.0 + x, y);
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
// log(1 + e) as a polynomial of e = e^-|x|, whose power of two is 2^64 of itself at first: a normal number.
fn softplus_F(x: F) -> F {
    let parts = exponent_F(max(-abs(x), F(-110.0)));
    let r = parts.r;
    let near = (((((F(1.3933658e-3) * r + 8.369163e-3) * r + 4.1666463e-2) * r + 1.6666505e-1) * r + 0.5) * r + 1.0) * r + 1.0;
    let e = near * power_of_two(parts.k + 64.0) * 0x1p-64;
    let p = (((((((F(-3.256378463e-3) * e + 2.003451623e-2) * e - 5.757864192e-2) * e + 1.069882289e-1) * e - 1.538438499e-1) * e + 1.971266717e-1) * e - 2.496352941e-1) * e + 3.33311528e-1) * e - 4.999996126e-1;
    return select(max(x, F()) + (e * e * p + e), x, is_nan_F(x));
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
{% if asks(["sin", "cos", "tan"]) -%}
// x = k pi/2 + r + low, k modulo 4: low is what rounding took from r.
struct Turn {
    k: I,
    r: F,
    low: F,
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
fn turn_large(x: f32) -> vec3<f32> {
    let digits = quarters(abs(x));
    // To the nearest quarter: the rest is signed.
    let k = (digits.x + 0x20000000u) >> 30u;
    let rest = digits.x - (k << 30u);
    let is_back = (rest & 0x80000000u) != 0u;
    let high = select(rest, ~rest, is_back);
    let low = select(digits.y, ~digits.y, is_back);
    // With all its bits, from the first that is set; then times pi/2.
    let lead = min(countLeadingZeros(high), 31u);
    let top = (high << lead) | select(low >> (32u - max(lead, 1u)), 0u, lead == 0u);
    let angle = i32(high_product(top, 0xc90fdaa2u) >> 1u);
    let size = f32(angle);
    let power = bitcast<f32>((127u - 28u - lead) << 23u);
    let unit = select(power, -power, is_back != (x < 0.0));
    return vec3<f32>(select(f32(k), -f32(k), x < 0.0), size * unit, f32(angle - i32(size)) * unit);
}
fn turn_F(x: F) -> Turn {
    let k = round(x * 0.636619772);
    // pi/2 in parts of eleven bits, and the rest: exact to 8192.
    let near = kept(kept(x - k * 1.5703125) - k * 4.837512969970703125e-4);
    let third = k * 7.5495336204767227e-8;
    let r = kept(near - third);
    var turn = Turn(I(clamp(k, F(-65536.0), F(65536.0))), r, kept(kept(near - r) - third) - k * 2.563344152e-12);
    let is_large = abs(x) > F(6000.0);
    if any(is_large) {
        {%- if vector > 1 %}
        for (var i = 0u; i < 4u; i++) {
            if is_large[i] {
                let large = turn_large(x[i]);
                turn.k[i] = i32(large.x);
                turn.r[i] = large.y;
                turn.low[i] = large.z;
            }
        }
        {%- else %}
        let large = turn_large(x);
        turn = Turn(i32(large.x), large.y, large.z);
        {%- endif %}
    }
    return turn;
}
// Of infinity it is NaN.
fn wave_special(x: F, y: F) -> F {
    let bits = bitcast<U>(x);
    return select(y, bitcast<F>(bits | U(0x7fc00000u)), (bits & U(0x7f800000u)) == U(0x7f800000u));
}
{% endif -%}
{% if asks(["sin", "cos"]) -%}
// The sine of the rest after `ahead` quarter turns more (Cephes).
fn sine_of(turn: Turn, ahead: I) -> F {
    let k = turn.k + ahead;
    let r = turn.r + turn.low;
    let z = r * r;
    let sine = ((F(-1.9515295891e-4) * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
    let cosine = ((F(2.443315711809948e-5) * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
    let y = select(sine, cosine, (k & I(1)) == I(1));
    return select(y, -y, (k & I(2)) == I(2));
}
{% endif -%}
{% if asks(["sin"]) -%}
fn sin_F(x: F) -> F {
    return wave_special(x, sine_of(turn_F(x), I()));
}
{% endif -%}
{% if asks(["cos"]) -%}
fn cos_F(x: F) -> F {
    return wave_special(x, sine_of(turn_F(x), I(1)));
}
{% endif -%}
{% if asks(["tan"]) -%}
fn tan_F(x: F) -> F {
    let turn = turn_F(x);
    let r = turn.r;
    let z = r * r;
    let p = (((((F(3.8473042659e-3) * z + 1.1782998918e-3) * z + 9.966544807e-3) * z + 2.1619873121e-2) * z + 5.3994625807e-2) * z + 1.3333229721e-1) * z + 3.3333334327e-1;
    // The slope is 1 and the square of the tangent, or nearly that of the angle.
    let near = r + (z * (r * p) + (turn.low * z + turn.low));
    let is_odd = (turn.k & I(1)) == I(1);
    let y = select(near, -1.0 / select(F(1.0), near, is_odd), is_odd);
    return wave_special(x, select(y, x, abs(x) < F(0x1p-12)));
}
{% endif -%}
{% if angles or asks(["sinh", "asinh", "atanh"]) -%}
fn signed_as(x: F, y: F) -> F {
    return bitcast<F>(bitcast<U>(x) | (bitcast<U>(y) & U(0x80000000u)));
}
{% endif -%}
{% if angles or asks(["acosh", "atanh"]) -%}
// NaN where there is none.
fn nan_where(is_none: B, x: F) -> F {
    return bitcast<F>(select(bitcast<U>(x), U(0x7fc00000u), is_none));
}
{% endif -%}
{% if angles -%}
// An angle that lies beside 0, pi/2 or pi, of which their floats lack something.
fn beside(axis: F, rest: F) -> F {
    return axis + kept(axis * -2.782753438e-8 + rest);
}
{% endif -%}
{% if asks(["atan", "atan2"]) -%}
// As IEEE 754 has it: zeros have signs, and infinities are equal. By bits: drivers may divide by what is huge or subnormal as
// they like, and know no infinity.
fn angle_of(y: F, x: F) -> F {
    let up = bitcast<U>(y) & U(0x7fffffffu);
    let along = bitcast<U>(x) & U(0x7fffffffu);
    let is_steep = up > along;
    let less = min(up, along);
    let more = max(up, along);
    // A quarter of both where one is huge; subnormals as whole numbers.
    let cut = select(U(0u), U(0x1000000u), more >= U(0x7e800000u));
    let is_small = more < U(0x800000u);
    let above = select(bitcast<F>(less - min(less, cut)), F(less), is_small);
    let below = select(bitcast<F>(more - cut), F(more), is_small);
    let none = (more == U(0u)) | ((more >= U(0x7f800000u)) & (less < more));
    let q = select(above / below, F(), none);
    let z = q * q;
    let p = (((((((F(-2.386997221e-3) * z + 1.3507771306e-2) * z - 3.5871539265e-2) * z + 6.2501691282e-2) * z - 8.6568802595e-2) * z + 1.1033764482e-1) * z - 1.4278568327e-1) * z + 1.9999739528e-1) * z - 3.3333331347e-1;
    let t = q + q * (z * p);
    let is_back = bitcast<U>(x) >= U(0x80000000u);
    let axis = select(select(F(), F(3.14159274), is_back), F(1.57079637), is_steep);
    let angle = beside(axis, select(-t, t, is_steep == is_back));
    return nan_where(more > U(0x7f800000u), signed_as(angle, y));
}
{% endif -%}
{% if asks(["atan"]) -%}
fn atan_F(x: F) -> F {
    return angle_of(x, F(1.0));
}
{% endif -%}
{% if asks(["atan2"]) -%}
fn atan2_F(y: F, x: F) -> F {
    return angle_of(y, x);
}
{% endif -%}
{% if asks(["asin", "acos"]) -%}
// The inverse sine of a size up to 1/2; above, half the inverse cosine.
fn arc(size: F, is_near: B) -> F {
    let rest = 0.5 - 0.5 * min(size, F(1.0));
    let z = select(rest, size * size, is_near);
    let p = (((F(3.8085024804e-2) * z + 2.6554541662e-2) * z + 4.5001380146e-2) * z + 7.4988551438e-2) * z + 1.6666673124e-1;
    let s = select(sqrt(rest), size, is_near);
    return s + s * (z * p);
}
{% endif -%}
{% if asks(["asin"]) -%}
fn asin_F(x: F) -> F {
    let size = abs(x);
    let is_near = size <= F(0.5);
    let t = arc(size, is_near);
    let y = select(beside(F(1.57079637), -2.0 * t), t, is_near);
    return nan_where(bitcast<U>(size) > U(0x3f800000u), signed_as(y, x));
}
{% endif -%}
{% if asks(["acos"]) -%}
fn acos_F(x: F) -> F {
    let size = abs(x);
    let is_near = size <= F(0.5);
    let t = arc(size, is_near) * select(F(2.0), F(1.0), is_near);
    let is_back = bitcast<U>(x) >= U(0x80000000u);
    let axis = select(select(F(), F(3.14159274), is_back), F(1.57079637), is_near);
    return nan_where(bitcast<U>(size) > U(0x3f800000u), beside(axis, select(-t, t, is_back == is_near)));
}
{% endif -%}
{% if asks(["sinh", "cosh"]) -%}
// With |x| = k ln 2 + r: halves of the hyperbolic sine and cosine of k ln 2, the sine of r, and the cosine of r less 1. Beyond
// what is finite that of an infinite one.
struct Hyperbolic {
    a: F,
    b: F,
    sine: F,
    cosine: F,
}
fn hyperbolic_F(x: F) -> Hyperbolic {
    let parts = exponent_F(min(abs(x), F(89.5)));
    let up = power_of_two(parts.k - 2.0);
    let down = select(power_of_two(-2.0 - parts.k), F(), parts.k > F(60.0));
    let r = parts.r;
    let z = r * r;
    let sine = (F(1.9891079864e-4) * z + 8.3333104849e-3) * z + 1.6666667163e-1;
    let cosine = (F(1.3933731243e-3) * z + 4.1666463017e-2) * z + 0.5;
    return Hyperbolic(up - down, up + down, r + r * (z * sine), z * cosine);
}
{% endif -%}
{% if asks(["sinh"]) -%}
fn sinh_F(x: F) -> F {
    let parts = hyperbolic_F(x);
    let y = kept(parts.a + kept(parts.a * parts.cosine + parts.b * parts.sine)) * 2.0;
    // What is small is not halved on the way.
    return select(signed_as(y, x), x, is_nan_F(x) | (abs(x) < F(0x1p-12)));
}
{% endif -%}
{% if asks(["cosh"]) -%}
fn cosh_F(x: F) -> F {
    let parts = hyperbolic_F(x);
    let y = kept(parts.b + kept(parts.b * parts.cosine + parts.a * parts.sine)) * 2.0;
    return select(y, x, is_nan_F(x));
}
{% endif -%}
{% if asks(["asinh", "acosh"]) -%}
// The logarithm of 1 + near, of twice the size where that is huge: 1 adds nothing there. Infinity and NaN stay.
fn log_of_near(size: F, near: F) -> F {
    let is_huge = size > F(0x1p60);
    let y = log_beside_one(select(near, size, is_huge), select(F(), F(1.0), is_huge));
    return select(y, size, bitcast<U>(size) >= U(0x7f800000u));
}
{% endif -%}
{% if asks(["asinh"]) -%}
fn asinh_F(x: F) -> F {
    let size = abs(x);
    let square = min(size, F(0x1p60)) * min(size, F(0x1p60));
    let near = size + square / (1.0 + sqrt(1.0 + square));
    return signed_as(log_of_near(size, near), x);
}
{% endif -%}
{% if asks(["acosh"]) -%}
fn acosh_F(x: F) -> F {
    let more = kept(clamp(x, F(1.0), F(0x1p60)) - 1.0);
    let y = log_of_near(x, more + sqrt(more * (more + 2.0)));
    let bits = bitcast<U>(x);
    return nan_where((bits < U(0x3f800000u)) | (bits > U(0x7f800000u)), y);
}
{% endif -%}
{% if asks(["atanh"]) -%}
fn atanh_F(x: F) -> F {
    let size = abs(x);
    let bits = bitcast<U>(size);
    let twice = 2.0 * size;
    let y = 0.5 * log_beside_one(twice + twice * size / kept(1.0 - min(size, F(0.99999994))), F());
    let edge = bitcast<F>(select(bitcast<U>(y), U(0x7f800000u), bits == U(0x3f800000u)));
    return nan_where(bits > U(0x3f800000u), signed_as(edge, x));
}
{% endif -%}
{% if asks(["pow"]) -%}
// The bits of a number that a mask has, few enough for exact products; with the last one alone cut off what is exact without
// it, which no compiler takes apart.
fn upper(x: F, mask: u32) -> F {
    return bitcast<F>(bitcast<U>(x) & U(mask));
}
// What a power 2^v = near 2^round(v) is for any operands.
fn any_power(x: F, y: F, v: F, near: F) -> F {
    let bits = bitcast<U>(x) & U(0x7fffffffu);
    var size = scaled(select(near, F(1.0), abs(v) > F(1000.0)), round(clamp(v, F(-160.0), F(130.0))));
    // Zero and infinity; then signs.
    let y_bits = bitcast<U>(y);
    let falls = y_bits >= U(0x80000000u);
    size = select(size, select(F(), bitcast<F>(bits | U(0x7f800000u)), falls == (bits == U(0u))), (bits == U(0u)) | (bits >= U(0x7f800000u)));
    let is_large = abs(y) >= F(16777216.0);
    let is_whole = is_large | (trunc(y) == y);
    let is_odd = !is_large & is_whole & (floor(y * 0.5) * 2.0 != y);
    let is_minus = bitcast<U>(x) >= U(0x80000000u);
    size = select(size, bitcast<F>(bitcast<U>(size) | U(0x80000000u)), is_minus & is_odd);
    let is_finite = (bits < U(0x7f800000u)) & (bits > U(0u));
    size = select(size, bitcast<F>(bits | U(0x7fc00000u)), is_minus & is_finite & !is_whole);
    size = select(size, x, is_nan_F(x));
    size = select(size, y, is_nan_F(y));
    return select(size, F(1.0), ((y_bits & U(0x7fffffffu)) == U(0u)) | (bitcast<U>(x) == U(0x3f800000u)));
}
// 2^(y log2 x), where the logarithm of x = m 2^e is e + (2 s + 2/3 s^3 + ...) / ln 2 with s = (m - 1) / (m + 1). Each of y, s and
// 2 y / ln 2 is in two parts, and so is s^3: what is left of the exponent is within 2e-7.
fn pow_F(x: F, y: F) -> F {
    let bits = bitcast<U>(x);
    // But for normal numbers above zero.
    let is_special = ((bits - U(0x800000u)) >= U(0x7f000000u)) | is_nan_F(y);
    var size = bits;
    if any(is_special) {
        // Subnormals as whole numbers, with exponents below zero.
        let whole = bits & U(0x7fffffffu);
        size = select(whole, bitcast<U>(F(whole)) - U(0x4a800000u), whole < U(0x800000u));
    }
    // m from sqrt(1/2) to sqrt 2; e times 2^23.
    let e_bits = (size - U(0x3f3504f3u)) & U(0xff800000u);
    let e = F(bitcast<I>(e_bits));
    let m = bitcast<F>(size - e_bits);
    let f = upper(m - 1.0, 0xfffffffeu);
    // 1 / (m + 1) within 1e-7, which s_l makes up for.
    let inverse = (((((F(6.67696679e-3) * f - 1.618911512e-2) * f + 3.143359348e-2) * f - 6.247634813e-2) * f + 1.249934062e-1) * f - 2.500002682e-1) * f + 5.000000596e-1;
    let s_h = upper(f * inverse, 0xffffe000u);
    let m_h = upper(m, 0xffffe000u);
    let s_l = (upper(f - s_h * (m_h + 1.0), 0xfffffffeu) - s_h * (m - m_h)) * inverse;
    let s = s_h + s_l;
    // s^3, of which the series takes back what 2 / (3 ln 2) lacks of 1, and a third of what follows it.
    let cube = s_h * (s_h * s_h);
    let z = s * s;
    let series = ((F(1.121982262e-1) * z + 1.373003423e-1) * z + 1.923599243e-1) * z - 1.27344327e-2;
    let rest = s * (z * series) + s_l * (s_h * s);
    // What lies beyond overflows all the same.
    let power = clamp(y, F(-1e30), F(1e30));
    let y_e = power * 0x1p-23;
    let y_h = upper(y_e, 0xfffffe00u);
    let y_l = y_e - y_h;
    let c = power * 2.88539008;
    let c_h = upper(c, 0xfffff800u);
    let c_l = upper(y_h * 24182784.0 - c_h, 0xfffffffeu) + (y_h * 21622.3223 + y_l * 24204406.3);
    let low = y_l * e + (c_l * s_h + (c * s_l + (power * 3.0) * rest));
    let v = y_h * e + (c_h * s_h + (power * cube + low));
    let k = round(v);
    let t = (kept(upper(y_h * e - k, 0xfffffffeu) + c_h * s_h) + power * cube) + low;
    let near = (((((F(1.5453182e-4) * t + 1.33908866e-3) * t + 9.61808208e-3) * t + 5.55035695e-2) * t + 2.40226507e-1) * t + 6.93147182e-1) * t + 1.0;
    var result = near * power_of_two(k);
    if any(is_special | (abs(v) > F(125.0))) {
        result = any_power(x, y, v, near);
    }
    return result;
}
{% endif -%}
