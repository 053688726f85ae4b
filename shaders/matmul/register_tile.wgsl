{{ enables }}
// C = A B without workgroup memory and barriers, for software adapters and small matrices. Each invocation
// sums a block of {{ thread_m }} x {{ thread_n }} in registers, straight from storage.
//
// tile_m, tile_n           block of C per workgroup, of one matrix of the batch
// flat                     or per invocation: a workgroup has blocks of as many matrices as it takes
// threads                  invocations of a workgroup
// thread_m, thread_n       block of C per invocation; a vec4 axis has to be a multiple of 4
// unroll                   steps of k per turn of the loop; 4 when an operand is read as vec4 along k
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which vec4 loads run
{% set threads_n = tile_n // thread_n -%}
{% set width = 4 if thread_n % 4 == 0 else 1 -%}
{% set blocks_n = thread_n // width -%}
{% set band = 8 -%}
{% set a_along_k = vector_a == 4 and fast_a == "k" -%}
{% set b_along_k = vector_b == 4 and fast_b == "k" -%}
{% set a_along_m = vector_a == 4 and fast_a == "m" -%}
{% set b_along_n = vector_b == 4 and fast_b == "n" -%}
{% set quad = "vec4<" ~ accumulator ~ ">" -%}
{% set sums = quad if width == 4 else accumulator %}
{% from "matmul/part/load" import load4, load1 -%}
{% include "matmul/part/operands" %}

{# `steps` steps of k from `k` on: load what they need, then add row by row, so that a sum is touched once per turn. -#}
{% macro turn(steps) %}
        {%- if a_along_k %}
        let a_k = k * params.a_column / 4u;
        {%- for i in range(thread_m) %}
        let a_{{ i }} = {{ load4(slot_a, "a_row_" ~ i ~ " / 4u + a_k") }};
        {%- endfor %}
        {%- else %}
        {%- for step in range(steps) %}
        let a_k_{{ step }} = (k + {{ step }}u) * params.a_column;
        {%- for i in range(0, thread_m, 4 if a_along_m else 1) %}
        {%- if a_along_m %}
        let a_{{ i }}_{{ step }} = {{ load4(slot_a, "(a_row_" ~ i ~ " + a_k_" ~ step ~ ") / 4u") }};
        {%- else %}
        let a_{{ i }}_{{ step }} = {{ load1(slot_a, "a_row_" ~ i ~ " + a_k_" ~ step) }};
        {%- endif %}
        {%- endfor %}
        {%- endfor %}
        {%- endif %}
        {%- if b_along_k %}
        let b_k = k * params.b_row / 4u;
        {%- for j in range(thread_n) %}
        let b_column_{{ j }}_k = {{ load4(slot_b, "b_column_" ~ j ~ " / 4u + b_k") }};
        {%- endfor %}
        {%- for step in range(steps) %}
        {%- for j in range(blocks_n) %}
        let b_{{ step }}_{{ j }} = {% if width == 4 %}{{ quad }}({% for c in range(4) %}b_column_{{ j * 4 + c }}_k[{{ step }}]{{ ", " if not loop.last }}{% endfor %}){% else %}b_column_{{ j }}_k[{{ step }}]{% endif %};
        {%- endfor %}
        {%- endfor %}
        {%- else %}
        {%- for step in range(steps) %}
        let b_k_{{ step }} = (k + {{ step }}u) * params.b_row;
        {%- for j in range(blocks_n) %}
        {%- if b_along_n %}
        let b_{{ step }}_{{ j }} = {{ load4(slot_b, "(b_column_" ~ (j * 4) ~ " + b_k_" ~ step ~ ") / 4u") }};
        {%- elif width == 4 %}
        let b_{{ step }}_{{ j }} = {{ quad }}({% for c in range(4) %}{{ load1(slot_b, "b_column_" ~ (j * 4 + c) ~ " + b_k_" ~ step) }}{{ ", " if not loop.last }}{% endfor %});
        {%- else %}
        let b_{{ step }}_{{ j }} = {{ load1(slot_b, "b_column_" ~ j ~ " + b_k_" ~ step) }};
        {%- endif %}
        {%- endfor %}
        {%- endfor %}
        {%- endif %}
        {%- for i in range(thread_m) %}
        {%- for j in range(blocks_n) %}
        sum_{{ i }}_{{ j }} = sum_{{ i }}_{{ j }}
        {%- for step in range(steps) %} + {% if a_along_k %}a_{{ i }}[{{ step }}]{% elif a_along_m %}a_{{ i // 4 * 4 }}_{{ step }}[{{ i % 4 }}]{% else %}a_{{ i }}_{{ step }}{% endif %} * b_{{ step }}_{{ j }}{% endfor %};
        {%- endfor %}
        {%- endfor %}
{%- endmacro -%}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
{% if flat -%}
{% include "matmul/part/block" %}
{%- else -%}
{% include "matmul/part/tile" %}

    let row_first = tile_row + local_index / {{ threads_n }}u * {{ thread_m }}u;
    let column_first = tile_column + local_index % {{ threads_n }}u * {{ thread_n }}u;
{%- endif %}
    // Rows and columns past the edge repeat the last ones: what they add up to is never stored.
    {%- for i in range(0, thread_m, 4 if a_along_m else 1) %}
    let a_row_{{ i }} = a_base + min(row_first + {{ i }}u, params.m - {{ 4 if a_along_m else 1 }}u) * params.a_row;
    {%- endfor %}
    {%- for j in range(0, thread_n, 4 if b_along_n else 1) %}
    let b_column_{{ j }} = b_base + min(column_first + {{ j }}u, params.n - {{ 4 if b_along_n else 1 }}u) * params.b_column;
    {%- endfor %}
    {%- for i in range(thread_m) %}
    {%- for j in range(blocks_n) %}
    var sum_{{ i }}_{{ j }} = {{ sums }}();
    {%- endfor %}
    {%- endfor %}

    var k = 0u;
    {%- if unroll > 1 %}
    let k_whole = params.k / {{ unroll }}u * {{ unroll }}u;
    while k < k_whole {
        {{- turn(unroll) }}
        k += {{ unroll }}u;
    }
    {%- endif %}
    {%- if not (a_along_k or b_along_k) %}
    while k < params.k {
        {{- turn(1) }}
        k += 1u;
    }
    {%- endif %}
    {% for i in range(thread_m) %}
    if row_first + {{ i }}u < params.m {
        let row_start = c_base + (row_first + {{ i }}u) * params.c_row;
        {%- for j in range(blocks_n) %}
        {{ "store" if width == 4 else "store_one" }}(row_start, row_first + {{ i }}u, column_first + {{ j * width }}u, sum_{{ i }}_{{ j }});
        {%- endfor %}
    }
    {%- endfor %}
}

{% include "matmul/part/store" %}
