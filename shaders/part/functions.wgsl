{# What generated bodies call, where `body` names it. F, I, U, B and D are f32, i32, u32, bool and f64, or four -#}
{# of them. NaN is told by its bits: shaders may assume that comparisons meet none. The twin has the same -#}
{# algorithms; bounds are in docs/numerics.md. -#}
{% macro each(name, count) -%}
{% if vector > 1 -%}
{% for lane in ["x", "y", "z", "w"] %}{{ name }}(a.{{ lane }}{{ ", b." ~ lane if count == 2 }}){{ ", " if not loop.last }}{% endfor %}
{%- else -%}
{{ name }}(a{{ ", b" if count == 2 }})
{%- endif %}
{%- endmacro -%}
{% if "div_U(" in body -%}
// Division by zero is zero, on every device.
fn div_U(a: U, b: U) -> U {
    let zero = b == U(0u);
    return select(a / select(b, U(1u), zero), U(0u), zero);
}
{% endif -%}
{% if "div_I(" in body -%}
// Division by zero is zero, and the smallest value over -1 wraps to itself, on every device.
fn div_I(a: I, b: I) -> I {
    let zero = b == I(0);
    let negates = b == I(-1);
    let quotient = a / select(b, I(1), zero | negates);
    return select(select(quotient, I(0) - a, negates), I(0), zero);
}
{% endif -%}
{% if "rem_U(" in body -%}
// By zero it is zero.
fn rem_U(a: U, b: U) -> U {
    let zero = b == U(0u);
    return select(a % select(b, U(1u), zero), U(0u), zero);
}
{% endif -%}
{% if "rem_I(" in body -%}
// The sign is the dividend's; by zero, and by -1, it is zero. On sizes: signs of % differ.
fn rem_I(a: I, b: I) -> I {
    let size = bitcast<U>(abs(b));
    let zero = b == I(0);
    let rest = bitcast<I>(bitcast<U>(abs(a)) % select(size, U(1u), zero));
    return select(select(rest, I(0) - rest, a < I(0)), I(0), zero);
}
{% endif -%}
{% if "shift_left_U(" in body or "shift_left_I(" in body -%}
// By less than nothing it is by many.
fn shift_left_U(a: U, b: U) -> U {
    return select(U(0u), a << (b & U(31u)), b < U(32u));
}
{% endif -%}
{% if "shift_left_I(" in body -%}
fn shift_left_I(a: I, b: I) -> I {
    return bitcast<I>(shift_left_U(bitcast<U>(a), bitcast<U>(b)));
}
{% endif -%}
{% if "shift_right_U(" in body -%}
fn shift_right_U(a: U, b: U) -> U {
    return select(U(0u), a >> (b & U(31u)), b < U(32u));
}
{% endif -%}
{% if "shift_right_I(" in body -%}
// The sign moves in.
fn shift_right_I(a: I, b: I) -> I {
    return a >> min(bitcast<U>(b), U(31u));
}
{% endif -%}
{% if "pow_U(" in body or "pow_I(" in body -%}
// By squaring; it wraps.
fn pow_U(a: U, b: U) -> U {
    var power = U(1u);
    var square = a;
    for (var bit = 0u; bit < 32u; bit++) {
        let is_set = ((b >> U(bit)) & U(1u)) == U(1u);
        power = select(power, power * square, is_set);
        square *= square;
    }
    return power;
}
{% endif -%}
{% if "pow_I(" in body -%}
// To a negative power: 1 and -1 stay whole, the others are 0.
fn pow_I(a: I, b: I) -> I {
    let power = bitcast<I>(pow_U(bitcast<U>(a), bitcast<U>(b)));
    let is_one = (a == I(1)) | (a == I(-1));
    let one = select(a, I(1), (b & I(1)) == I(0));
    return select(power, select(I(0), one, is_one), b < I(0));
}
{% endif -%}
{% if "sign_I(" in body -%}
fn sign_I(x: I) -> I {
    return sign(x);
}
{% endif -%}
{% if "sign_U(" in body -%}
fn sign_U(x: U) -> U {
    return min(x, U(1u));
}
{% endif -%}
{% if "sqrt_F(" in body -%}
// Mesa takes a root, and 1 over one, for no less than zero, and leaves out what makes that of them: abs, relu. Those of -0 are
// -0 and -inf.
fn sqrt_F(x: F) -> F {
    return bitcast<F>(bitcast<U>(sqrt(x)) | (bitcast<U>(x) & U(0x80000000u)));
}
{% endif -%}
{% if "_D(" in body -%}
// DXC makes false of it; but wgpu has f64 on Vulkan alone.
fn is_nan_D(x: D) -> B {
    return !(x == x);
}
fn is_finite_D(x: D) -> B {
    return abs(x) <= D(1.7976931348623157e308lf);
}
fn minimum_D(a: D, b: D) -> D {
    return select(select(select(b, a, a < b), b, is_nan_D(b)), a, is_nan_D(a));
}
fn maximum_D(a: D, b: D) -> D {
    return select(select(select(b, a, a > b), b, is_nan_D(b)), a, is_nan_D(a));
}
fn clamp_D(x: D, low: D, high: D) -> D {
    let raised = select(x, low, x < low);
    return select(raised, high, raised > high);
}
fn sign_D(x: D) -> D {
    return select(select(select(D(), D(1.0lf), x > D()), D(-1.0lf), x < D()), x, is_nan_D(x));
}
// lavapipe's own, where the processor has no vectors of 512 bits, rounds 1.5 to 1 and leaves large numbers as they are.
fn trunc_D(x: D) -> D {
    return select(floor(x), ceil(x), x < D());
}
// To the even one of two whole numbers that are as near.
fn round_D(x: D) -> D {
    let below = floor(x);
    let rest = x - below;
    let is_odd = floor(below * D(0.5lf)) * D(2.0lf) != below;
    let near = select(below, below + D(1.0lf), (rest > D(0.5lf)) | ((rest == D(0.5lf)) & is_odd));
    return select(near, -near, (near == D()) & (x < D()));
}
fn sqrt_D(x: D) -> D {
    return select(sqrt(x), x, x == D());
}
fn relu_D(x: D) -> D {
    return select(x, D(), x < D());
}
fn leaky_relu_D(x: D, slope: D) -> D {
    return select(x, x * slope, x < D());
}
{% endif -%}
{% if "I_of_D(" in body or "U_of_D(" in body -%}
// Toward zero, saturating, NaN to zero: as Rust's `as`.
fn I_of_D(x: D) -> I {
    return select(I(clamp(x, D(-2147483648.0lf), D(2147483647.0lf))), I(0), is_nan_D(x));
}
fn U_of_D(x: D) -> U {
    return select(U(clamp(x, D(), D(4294967295.0lf))), U(0u), is_nan_D(x));
}
{% endif -%}
{% if "B_of_D(" in body -%}
{% set W = "vec4<u64>" if vector > 1 else "u64" -%}
// By bits, all but the sign: lavapipe of Mesa 26 takes a subnormal for zero where it compares.
fn B_of_D(x: D) -> B {
    return (bitcast<{{ W }}>(x) << U(1u)) != {{ W }}();
}
{% endif -%}
{% if "odd_D(" in body -%}
// The f32 that lies toward zero, odd where it is not exact: a narrower type that it is rounded to is
// rounded once.
fn odd_D(x: D) -> F {
    // A minimum that changes no number: from Mesa 25 on lavapipe takes f64 to f32 and back for nothing.
    let bits = min(bitcast<U>(F(x)), U(0xfffffffeu));
    let wide = D(bitcast<F>(bits));
    let beyond = ((wide > x) & (x > D())) | ((wide < x) & (x < D()));
    let odd = (bits - select(U(0u), U(1u), beyond)) | U(1u);
    let exact = (wide == x) | ((bits & U(0x7fffffffu)) >= U(0x7f800000u));
    return bitcast<F>(select(odd, bits, exact));
}
{% endif -%}
{% if "odd_" in body -%}
// As f32 with the last bit set where others are lost, so that a narrower type is rounded to once.
fn odd_U(x: U) -> F {
    let lost = x & ((U(0xffffffffu) >> countLeadingZeros(x)) >> U(24u));
    return f32_of_U((x ^ lost) | select(U(0u), (U(1u) << (U(8u) - min(countLeadingZeros(x), U(8u)))), lost != U(0u)));
}
fn odd_I(x: I) -> F {
    let size = odd_U(bitcast<U>(abs(x)));
    return select(size, -size, x < I(0));
}
{% endif -%}
{% if "f32_of_U(" in body or "odd_" in body -%}
// In exact halves, so that the sum rounds once: SwiftShader's own conversion rounds wrongly above 2^31.
fn f32_of_U(x: U) -> F {
    return F(x >> U(16u)) * 65536.0 + F(x & U(0xffffu));
}
{% endif -%}
{% for dtype in ["f16", "bf16"] -%}
{% if "rounded_" ~ dtype in body -%}
// A minimum that changes no number: NVIDIA's compiler (580) takes it for nothing to pack and unpack.
fn rounded_{{ dtype }}(x: F) -> F {
    {%- if vector > 1 %}
    return four_{{ dtype }}(min(packed_{{ dtype }}(x), vec2<u32>(0xfffffffeu)));
    {%- else %}
    return one_{{ dtype }}(min(packed_{{ dtype }}(vec4<f32>(x)).x, 0xfffffffeu));
    {%- endif %}
}
{% endif -%}
{% endfor -%}
{% if "_F(" in body -%}
fn is_nan_F(x: F) -> B {
    return (bitcast<U>(x) & U(0x7fffffffu)) > U(0x7f800000u);
}
fn is_finite_F(x: F) -> B {
    return (bitcast<U>(x) & U(0x7fffffffu)) < U(0x7f800000u);
}
// From the least negative number to minus infinity: of a comparison compilers make a maximum, which
// loses NaN.
fn is_negative_F(x: F) -> B {
    return (bitcast<U>(x) - U(0x80000001u)) < U(0x7f800000u);
}
{% endif -%}
{% set compared = [["eq", "=="], ["lt", "<"], ["le", "<="], ["gt", ">"], ["ge", ">="]] -%}
{% for name, sign in compared -%}
{% if name ~ "_F(" in body or (name == "eq" and "ne_F(" in body) -%}
// False with NaN.
fn {{ name }}_F(a: F, b: F) -> B {
    return (a {{ sign }} b) & (max(bitcast<U>(a) & U(0x7fffffffu), bitcast<U>(b) & U(0x7fffffffu)) <= U(0x7f800000u));
}
{% endif -%}
{% endfor -%}
{% if "ne_F(" in body -%}
fn ne_F(a: F, b: F) -> B {
    return !eq_F(a, b);
}
{% endif -%}
{% if "_of_F(" in body -%}
// Toward zero, saturating, NaN to zero: as Rust's `as`.
fn I_of_F(x: F) -> I {
    let whole = I(clamp(x, F(-2147483648.0), F(2147483520.0)));
    return select(select(whole, I(2147483647), x >= F(2147483648.0)), I(0), is_nan_F(x));
}
fn U_of_F(x: F) -> U {
    let whole = U(clamp(x, F(), F(4294967040.0)));
    return select(select(whole, U(0xffffffffu), x >= F(4294967296.0)), U(0u), is_nan_F(x));
}
{% endif -%}
{% if "minimum_F(" in body -%}
fn minimum_F(a: F, b: F) -> F {
    return select(select(min(a, b), b, is_nan_F(b)), a, is_nan_F(a));
}
{% endif -%}
{% if "maximum_F(" in body -%}
fn maximum_F(a: F, b: F) -> F {
    return select(select(max(a, b), b, is_nan_F(b)), a, is_nan_F(a));
}
{% endif -%}
{% if "clamp_F(" in body -%}
fn clamp_F(x: F, low: F, high: F) -> F {
    // A bound that is NaN is none.
    let raised = select(max(x, low), x, is_nan_F(low));
    return select(select(min(raised, high), raised, is_nan_F(high)), x, is_nan_F(x));
}
{% endif -%}
{% if "sign_F(" in body -%}
fn sign_F(x: F) -> F {
    return select(sign(x), x, is_nan_F(x));
}
{% endif -%}
{% if "relu_F(" in body -%}
fn relu_F(x: F) -> F {
    return select(x, F(), is_negative_F(x));
}
fn leaky_relu_F(x: F, slope: F) -> F {
    return select(x, x * slope, is_negative_F(x));
}
{% endif -%}
{% if "rem_F(" in body -%}
// Exact, with the dividend's sign: long division by bits, eight of the quotient at a time.
fn rem_one(a: f32, b: f32) -> f32 {
    let sign = bitcast<u32>(a) & 0x80000000u;
    let size_a = bitcast<u32>(a) & 0x7fffffffu;
    let size_b = bitcast<u32>(b) & 0x7fffffffu;
    if size_a >= 0x7f800000u || size_b > 0x7f800000u || size_b == 0u {
        return bitcast<f32>(size_a | 0x7fc00000u);
    }
    if size_a < size_b {
        return a;
    }
    let exponent_b = max(size_b >> 23u, 1u);
    var left = max(size_a >> 23u, 1u) - exponent_b;
    let whole_a = (size_a & 0x7fffffu) | select(0u, 0x800000u, size_a >= 0x800000u);
    let whole_b = (size_b & 0x7fffffu) | select(0u, 0x800000u, size_b >= 0x800000u);
    var rest = whole_a % whole_b;
    for (var i = 0u; i < 32u && left > 0u; i++) {
        let bits = min(left, 8u);
        rest = (rest << bits) % whole_b;
        left -= bits;
    }
    // rest * 2^(exponent_b - 150), as bits: subnormals too.
    let up = min(countLeadingZeros(max(rest, 1u)) - 8u, exponent_b - 1u);
    let shifted = rest << up;
    let exponent = select(0u, exponent_b - up, shifted >= 0x800000u);
    return bitcast<f32>(sign | (exponent << 23u) | (shifted & 0x7fffffu));
}
fn rem_F(a: F, b: F) -> F {
    return F({{ each("rem_one", 2) }});
}
{% endif -%}
{% include "part/transcendental" %}
