{# Part of every matmul kernel: its params and buffers. A buffer that both operands share is declared once. -#}
struct Params {
    m: u32,
    n: u32,
    k_begin: u32,
    k_end: u32,
    accumulate: u32,
    a_offset: u32,
    a_row: u32,
    a_column: u32,
    b_offset: u32,
    b_row: u32,
    b_column: u32,
    c_offset: u32,
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
}
{{ params_var }}

{% macro storage(vector) -%}
{% if vector == 4 %}array<vec4<{{ element }}>>{% else %}array<{{ element }}>{% endif %}
{%- endmacro -%}
@group(0) @binding({{ slot_a }}) var<storage, read_write> buffer{{ slot_a }}: {{ storage(vector_a) }};
{%- if slot_b != slot_a %}
@group(0) @binding({{ slot_b }}) var<storage, read_write> buffer{{ slot_b }}: {{ storage(vector_b) }};
{%- endif %}
@group(0) @binding({{ slot_c }}) var<storage, read_write> buffer{{ slot_c }}: {{ storage(vector_c) }};
