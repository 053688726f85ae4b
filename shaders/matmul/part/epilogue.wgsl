{# Part of kernels that finish sums: scale, bias, residual and activation of one entry, or four in a row. -#}
{% from "matmul/part/load" import load1 -%}
{% set bits = "vec4<u32>" if vector_c == 4 else "u32" -%}
{# One element of a buffer, as it is declared. -#}
{% macro element_of(slot, vector, index) -%}
{% if vector == 8 and element == "f16" %}one_f16(buffer{{ slot }}[({{ index }}) / 8u][({{ index }}) / 2u % 4u] >> (({{ index }}) % 2u * 16u))
{%- elif vector == 8 %}bitcast<{{ accumulator }}>(u32(buffer{{ slot }}[({{ index }}) / 8u][({{ index }}) / 2u % 4u] >> (({{ index }}) % 2u * 32u)))
{%- elif vector == 4 and element in ["bf16", "packed_f16"] %}unpacked4(buffer{{ slot }}[({{ index }}) / 4u])[({{ index }}) % 4u]
{%- elif vector == 4 %}{{ accumulator }}(buffer{{ slot }}[({{ index }}) / 4u][({{ index }}) % 4u])
{%- else %}{{ load1(slot, index) }}{% endif %}
{%- endmacro -%}
{% macro added(name, slot, vector) -%}
    let {{ name }}_at = {{ name }}_base + row * params.{{ name }}_row + column * params.{{ name }}_column;
    {%- if vector_c == 4 %}
    value += {{ kept }}({% for j in range(4) %}{{ element_of(slot, vector, name ~ "_at + " ~ j ~ "u * params." ~ name ~ "_column") }}{{ ", " if not loop.last }}{% endfor %});
    {%- else %}
    value += {{ element_of(slot, vector, name ~ "_at") }};
    {%- endif %}
{%- endmacro -%}
// Where the matrix of the batch starts in each.
{%- if bias %}
var<private> bias_base: u32;
{%- endif %}
{%- if residual %}
var<private> residual_base: u32;
{%- endif %}

fn activate(value: {{ kept }}) -> {{ kept }} {
    {%- if activation in ["gelu", "silu"] %}
    // Zero below -120, where the formulas have none at minus infinity. By bits: see relu.
    let x = select(value, {{ kept }}(-120.0), bitcast<{{ bits }}>(value) - {{ bits }}(0xc2f00000u) < {{ bits }}(0x3c900001u));
    {%- else %}
    let x = value;
    {%- endif %}
    {%- if activation == "relu" %}
    // By bits, from the least negative number to minus infinity: of a comparison compilers make a
    // maximum, which loses NaN.
    return select(x, {{ kept }}(), bitcast<{{ bits }}>(x) - {{ bits }}(0x80000001u) < {{ bits }}(0x7f800000u));
    {%- elif activation == "gelu" %}
    // x/2 erfc(-x / sqrt 2): Abramowitz and Stegun 7.1.26, 1.5e-7.
    let z = abs(x) * 0.70710678;
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * exp(-z * z);
    return 0.5 * x * select(2.0 - tail, tail, x < {{ kept }}());
    {%- elif activation == "silu" %}
    // No exponential above 1.
    let e = exp(-abs(x));
    return x * select({{ kept }}(1.0), e, x < {{ kept }}()) / (1.0 + e);
    {%- else %}
    return x;
    {%- endif %}
}

// `row` and `column` are the kernel's, in its matrix of C.
fn epilogue(row: u32, column: u32, sum: {{ kept }}) -> {{ kept }} {
    var value = sum * bitcast<f32>(params.scale);
    {%- if bias %}
    {{ added("bias", slot_bias, vector_bias) }}
    {%- endif %}
    {%- if residual %}
    {{ added("residual", slot_residual, vector_residual) }}
    {%- endif %}
    return activate(value);
}
