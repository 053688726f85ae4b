{{ enables }}
// C = A B for software adapters with subgroups: no workgroup memory, no barriers, one subgroup per
// workgroup. Lanes own columns of C; each lane loads rows of A and hands them to the others by
// shuffles from constant lanes, which a software adapter turns into vector shuffles.
//
// Requires feature SUBGROUP, and subgroups of exactly `lanes` invocations (minimum size = maximum).
//
// lanes                    size of a subgroup, and of a workgroup: 4, 8, 16, ...
// tile_m, tile_n           block of C per workgroup: multiples of lanes (of 4 * lanes where vec4 runs along n)
// unroll                   steps of k per turn of the loop; 4 when A is read as vec4, or B is along k
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which vec4 loads run; where it is "m", each
//                          lane of four loads another step of k
{% set thread_n = tile_n // lanes -%}
{% set width = 4 if thread_n % 4 == 0 else 1 -%}
{% set blocks_n = thread_n // width -%}
{% set apart = finishes and accumulator == result -%}
{% set groups_m = tile_m // lanes -%}
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
        {%- for g in range(groups_m) %}
        let a_{{ g }} = {{ load4(slot_a, "a_row_" ~ g ~ " / 4u + a_k") }};
        {%- endfor %}
        {%- elif a_along_m %}
        let a_k = (k{% if steps == 4 %} + lane % 4u{% endif %}) * params.a_column;
        {%- for g in range(groups_m) %}
        let a_{{ g }} = {{ load4(slot_a, "(a_row_" ~ g ~ " + a_k) / 4u") }};
        {%- endfor %}
        {%- else %}
        {%- for step in range(steps) %}
        let a_k_{{ step }} = (k + {{ step }}u) * params.a_column;
        {%- for g in range(groups_m) %}
        let a_{{ g }}_{{ step }} = {{ load1(slot_a, "a_row_" ~ g ~ " + a_k_" ~ step) }};
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
        {%- for i in range(tile_m) %}
        {
            {%- for step in range(steps) %}
            let a_all_{{ step }} = subgroupShuffle({% if a_along_k %}a_{{ i // lanes }}[{{ step }}], {{ i % lanes }}u{% elif a_along_m %}a_{{ i // lanes }}[{{ i % 4 }}], {{ i % lanes // 4 * 4 + step }}u{% else %}a_{{ i // lanes }}_{{ step }}, {{ i % lanes }}u{% endif %});
            {%- endfor %}
            {%- for j in range(blocks_n) %}
            sum_{{ i }}_{{ j }} = sum_{{ i }}_{{ j }}
            {%- for step in range(steps) %} + a_all_{{ step }} * b_{{ step }}_{{ j }}{% endfor %};
            {%- endfor %}
        }
        {%- endfor %}
{%- endmacro -%}

@compute @workgroup_size({{ lanes }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
{% include "matmul/part/tile" %}

    let column_first = tile_column + lane * {{ thread_n }}u;
    // Rows and columns past the edge repeat the last ones: what they add up to is never stored.
    {%- for g in range(groups_m) %}
    {%- if a_along_m %}
    let a_row_{{ g }} = a_base + min(tile_row + {{ g * lanes }}u + lane / 4u * 4u, params.m - 4u) * params.a_row;
    {%- else %}
    let a_row_{{ g }} = a_base + min(tile_row + {{ g * lanes }}u + lane, params.m - 1u) * params.a_row;
    {%- endif %}
    {%- endfor %}
    {%- for j in range(0, thread_n, 4 if b_along_n else 1) %}
    let b_column_{{ j }} = b_base + min(column_first + {{ j }}u, params.n - {{ 4 if b_along_n else 1 }}u) * params.b_column;
    {%- endfor %}
    {%- for i in range(tile_m) %}
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
    {% for i in range(tile_m) %}
    if tile_row + {{ i }}u < params.m {
        let row_start = c_base + (tile_row + {{ i }}u) * params.c_row;
        {%- for j in range(blocks_n) %}
        {{ "store" if width == 4 else "store_one" }}(row_start, tile_row + {{ i }}u, column_first + {{ j * width }}u, sum_{{ i }}_{{ j }});
        {%- endfor %}
    }
    {%- endfor %}
    {%- set across = thread_n %}
    {%- set run = thread_n %}
    {%- set pitch = thread_n %}
{% include "matmul/part/finish_tile" %}
}

{% include "matmul/part/store" %}
