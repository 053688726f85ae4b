{# How a row's state makes its elements normal, one or four side by side: `norm` is "softmax", "log_softmax", -#}
{# "layer" or "rms"; the state is that of `op`. -#}
{% from "part/states" import wide_float, typed, kept -%}
{% macro row_members() -%}
length_low: u32,
    length_high: u32,
    epsilon: u32,
    {%- if wide_float %}
    // What f32 lacks of it.
    epsilon_rest: u32,
    {%- endif %}
{%- endmacro -%}
{% macro of_rows() -%}
fn length() -> {{ accumulator }} {
    return {{ accumulator }}(params.length_low) + {{ accumulator }}(params.length_high) * {{ accumulator }}(4294967296.0{{ "lf" if wide_float }});
}

fn epsilon() -> {{ accumulator }} {
    return {{ accumulator }}(bitcast<f32>(params.epsilon)){{ " + f64(bitcast<f32>(params.epsilon_rest))" if wide_float }};
}
{%- endmacro -%}
{% macro normalising(name, n) -%}
{% set State = "One" if n == 1 else "Many" -%}
{% set T = typed(accumulator, n) -%}
{% set U = typed("u32", n) -%}
{% set I = typed("i32", n) -%}
{% set suffix = "lf" if wide_float else "" -%}
struct Normal{{ State }} {
    shift: {{ T }},
    factor: {{ T }},
    rest: {{ T }},
}

fn normal_{{ name }}(state: {{ State }}) -> Normal{{ State }} {
    {%- if norm in ["softmax", "log_softmax"] %}
    // Where the largest is infinite, or one is NaN, nothing has a value. By bits: shaders may assume that
    // there is no NaN, and know an equality of bits for a test for infinity (LLVM 20).
    let sum = bitcast<{{ U }}>(state.b);
    let has_none = (bitcast<{{ I }}>(state.a) >= {{ I }}(0x7f800000)) | ((sum & {{ U }}(0x7fffffffu)) > {{ U }}(0x7f800000u)) | (sum == {{ U }}(0u));
    let none = bitcast<{{ T }}>(sum | {{ U }}(0x7fc00000u));
    {%- if norm == "softmax" %}
    return Normal{{ State }}(state.a, select(1.0 / state.b, none, has_none), {{ T }}());
    {%- else %}
    return Normal{{ State }}(state.a, select(log(state.b), none, has_none), {{ T }}());
    {%- endif %}
    {%- elif norm == "layer" %}
    let variance = state.c / {{ T }}(length());
    return Normal{{ State }}(state.d, {{ T }}(1.0{{ suffix }}) / sqrt(variance + {{ T }}(epsilon())), state.b);
    {%- elif wide_float %}
    return Normal{{ State }}({{ T }}(1.0lf), {{ T }}(1.0lf) / sqrt(state.a / {{ T }}(length()) + {{ T }}(epsilon())), {{ T }}());
    {%- else %}
    // Elements are multiplied by the scale of their squares first, but where epsilon is all that counts.
    let is_nothing = (state.b > {{ T }}(1.0)) & {{ typed("bool", n) }}(epsilon() >= 0x1p-34f);
    let scale = select(state.b, {{ T }}(1.0), is_nothing);
    let squares = select(state.a / {{ T }}(length()), {{ T }}(), is_nothing);
    return Normal{{ State }}(scale, {{ T }}(1.0) / sqrt(squares + {{ kept(name, T ~ "(epsilon()) * scale") }} * scale), {{ T }}());
    {%- endif %}
}

fn apply_{{ name }}(x: {{ T }}, normal: Normal{{ State }}) -> {{ T }} {
    {%- if norm == "softmax" %}
    // The largest has been taken off, or the factor is NaN.
    return less_{{ name }}(x - normal.shift) * normal.factor;
    {%- elif norm == "log_softmax" %}
    return {{ kept(name, "x - normal.shift") }} - normal.factor;
    {%- elif norm == "layer" %}
    return ({{ kept(name, "x - normal.shift") }} - normal.rest) * normal.factor;
    {%- else %}
    return {{ kept(name, "x * normal.shift") }} * normal.factor;
    {%- endif %}
}
{%- endmacro -%}
