{# exp of f32, one (`n` 1) or four: within 2 ULP, subnormals may be 0, NaN stays NaN. `less_` is that of numbers -#}
{# up to 0, minus infinity among them, in fewer steps: within 4 u + 1.3 u abs(x), where u is 2^-24; what is below 2^-126 -#}
{# may be 0, and NaN is anything. `kept_` is part/states's. -#}
{% macro exponential(name, n) -%}
{% set F = "vec4<f32>" if n > 1 else "f32" -%}
{% set I = "vec4<i32>" if n > 1 else "i32" -%}
{% set U = "vec4<u32>" if n > 1 else "u32" -%}
fn exp_{{ name }}(x: {{ F }}) -> {{ F }} {
    let limited = clamp(x, {{ F }}(-104.0), {{ F }}(89.0));
    // e^limited is p 2^halves, with the whole number nearest to limited / ln 2.
    let halves = round(limited * 1.44269504);
    let r = kept_{{ name }}(limited - halves * 0.693145751953125) - halves * 1.428606765330187e-6;
    var p = {{ F }}(1.9875691500e-4);
    p = p * r + 1.3981999507e-3;
    p = p * r + 8.3334519073e-3;
    p = p * r + 4.1665795894e-2;
    p = p * r + 1.6666665459e-1;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    // 2^n in two factors, each of which is a normal number.
    let n = {{ I }}(halves);
    let first = n >> {{ U }}(1u);
    let second = n - first;
    let scaled = kept_{{ name }}(p * bitcast<{{ F }}>((first + 127) << {{ U }}(23u))) * bitcast<{{ F }}>((second + 127) << {{ U }}(23u));
    // By bits: shaders may assume that there is no NaN.
    return select(scaled, x, (bitcast<{{ U }}>(x) & {{ U }}(0x7fffffffu)) > {{ U }}(0x7f800000u));
}

fn less_{{ name }}(x: {{ F }}) -> {{ F }} {
    // From there on the factor is 0. Numbers below 0 are in the order of their bits, the other way round.
    let limited = bitcast<{{ F }}>(min(bitcast<{{ U }}>(x * 1.44269504), {{ U }}(0xc2fe0000u)));
    let halves = round(limited);
    let r = limited - halves;
    // 2^r between -1/2 and 1/2, within 1.3 u where the last is not rounded to 1.
    var p = {{ F }}(1.3276472e-3);
    p = p * r + 9.6755413e-3;
    p = p * r + 5.5507133e-2;
    p = p * r + 0.2402212;
    p = p * r + 0.69314697;
    p = p * r + 1.0;
    // The exponent is at the end of the bits of a whole number from 2^23 to 2^24.
    return p * bitcast<{{ F }}>(bitcast<{{ U }}>(halves + 12583039.0) << {{ U }}(23u));
}
{%- endmacro -%}
