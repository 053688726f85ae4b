{# Part of every matmul kernel: its params and buffers. A buffer that both operands share is declared once. -#}
struct Params {
    m: u32,
    n: u32,
    k: u32,
    // Bits: 1 adds to the sums of earlier parts of k; 2 leaves the sums for later parts.
    part: u32,
    a_offset: u32,
    a_row: u32,
    a_column: u32,
    b_offset: u32,
    b_row: u32,
    b_column: u32,
    c_offset: u32,
    c_row: u32,
    tiles_m: u32,
    tiles_n: u32,
    tiles: u32,
    {%- for d in range(batch_rank) %}
    batch_shape_{{ d }}: u32,
    {%- endfor %}
    {%- for d in range(batch_rank) %}
    batch_a_{{ d }}: u32,
    {%- endfor %}
    {%- for d in range(batch_rank) %}
    batch_b_{{ d }}: u32,
    {%- endfor %}
    {%- for d in range(batch_rank) %}
    batch_c_{{ d }}: u32,
    {%- endfor %}
    {%- include "matmul/part/epilogue_params" %}
}
{{ params_var }}

{% from "matmul/part/load" import storage -%}
{% if vector_a %}@group(0) @binding({{ slot_a }}) var<storage, read_write> buffer{{ slot_a }}: {{ storage(vector_a) }};
{%- endif %}
{%- if slot_b != slot_a %}
@group(0) @binding({{ slot_b }}) var<storage, read_write> buffer{{ slot_b }}: {{ storage(vector_b) }};
{%- endif %}
{% from "matmul/part/result" import result_storage -%}
@group(0) @binding({{ slot_c }}) var<storage, read_write> buffer{{ slot_c }}: {{ result_storage(vector_c) }};
{#- Parts of k add up in C, or apart where C's elements are too coarse for sums. -#}
{%- set sums_apart = can_accumulate and accumulator != result %}
{%- if sums_apart %}
@group(0) @binding({{ slot_sums }}) var<storage, read_write> buffer{{ slot_sums }}: {% if vector_c == 4 %}array<vec4<{{ accumulator }}>>{% else %}array<{{ accumulator }}>{% endif %};
{%- endif %}
{%- if finishes %}
{%- if bias and slot_bias != slot_a and slot_bias != slot_b %}
@group(0) @binding({{ slot_bias }}) var<storage, read_write> buffer{{ slot_bias }}: {{ storage(1) }};
{%- endif %}
{%- if residual and slot_residual != slot_a and slot_residual != slot_b and not (bias and slot_residual == slot_bias) %}
@group(0) @binding({{ slot_residual }}) var<storage, read_write> buffer{{ slot_residual }}: {{ storage(1) }};
{%- endif %}
{%- endif %}
{%- set packed = element if element in ["bf16", "packed_f16"] else result %}
{%- if packed in ["bf16", "packed_f16"] %}

{% include "matmul/part/packed" %}
{%- endif %}
{%- if element == "f16" and (vector_a == 8 or vector_b == 8) %}
{% from "part/storage" import functions -%}
{{ functions("f16") }}
{%- endif %}
