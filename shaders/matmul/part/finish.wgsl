{# Part of every matmul kernel: one finished sum, or four, to C; `index` counts in what C is declared as. -#}
{# Adding to what is there costs software adapters compile time: left out where nothing asks for it. -#}
{% set kept = "vec4<" ~ accumulator ~ ">" if vector_c == 4 else accumulator -%}
{% set bits = "vec4<u32>" if vector_c == 4 else "u32" -%}
{% set stored = "vec4<" ~ element ~ ">" if vector_c == 4 else element -%}
{% if finishes -%}
{# One element of a buffer, as it is declared. -#}
{% macro element_of(slot, vector, index) -%}
{% if vector == 8 %}bitcast<{{ accumulator }}>(u32(buffer{{ slot }}[({{ index }}) / 8u][({{ index }}) / 2u % 4u] >> (({{ index }}) % 2u * 32u)))
{%- elif vector == 4 %}{{ accumulator }}(buffer{{ slot }}[({{ index }}) / 4u][({{ index }}) % 4u])
{%- else %}{{ accumulator }}(buffer{{ slot }}[{{ index }}]){% endif %}
{%- endmacro -%}
{% macro added(name, slot, vector) -%}
    let {{ name }}_at = {{ name }}_base + row * params.{{ name }}_row + column * params.{{ name }}_column;
    {%- if vector_c == 4 %}
    value += {{ kept }}({% for j in range(4) %}{{ element_of(slot, vector, name ~ "_at + " ~ j ~ "u * params." ~ name ~ "_column") }}{{ ", " if not loop.last }}{% endfor %});
    {%- else %}
    value += {{ element_of(slot, vector, name ~ "_at") }};
    {%- endif %}
{%- endmacro -%}
fn activate(x: {{ kept }}) -> {{ kept }} {
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

{% endif -%}
// `row` and `column` are the kernel's, in its matrix of C.
fn finish(index: u32, row: u32, column: u32, sum: {{ kept }}) {
    var value = sum;
    {%- if can_accumulate and accumulator != element %}
    let apart = index - params.c_offset{{ " / 4u" if vector_c == 4 }};
    if (params.part & 1u) != 0u {
        value += buffer{{ slot_sums }}[apart];
    }
    if (params.part & 2u) != 0u {
        buffer{{ slot_sums }}[apart] = value;
        return;
    }
    {%- elif can_accumulate %}
    if (params.part & 1u) != 0u {
        value += buffer{{ slot_c }}[index];
    }
    {%- endif %}
    {%- if finishes %}
    {%- if can_accumulate and accumulator == element %}
    if (params.part & 2u) == 0u {
    {%- endif %}
    value *= bitcast<f32>(params.scale);
    {%- if bias %}
    {{ added("bias", slot_bias, vector_bias) }}
    {%- endif %}
    {%- if residual %}
    {{ added("residual", slot_residual, vector_residual) }}
    {%- endif %}
    value = activate(value);
    {%- if can_accumulate and accumulator == element %}
    }
    {%- endif %}
    {%- endif %}
    buffer{{ slot_c }}[index] = {{ stored }}(value);
}
