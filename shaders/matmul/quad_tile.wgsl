{{ enables }}
// C = A B for software adapters with subgroups of four (SwiftShader): no workgroup memory, no barriers, one quad per
// workgroup. Each lane loads a row of A and gets those of the other three by swaps, one instruction each there, where a
// shuffle takes a dozen: so lanes go through rows in another order each. Neighbours own neighbouring columns of C, since
// four neighbours in memory are one load there.
//
// Requires feature SUBGROUP, and subgroups of exactly 4 invocations (minimum size = maximum).
//
// tile_m, tile_n           block of C per workgroup: multiples of 4
// unroll                   steps of k per turn of the loop: a multiple of 4
// vector_a, vector_b       4: loads of vec4 along k
{% set groups_m = tile_m // 4 -%}
{% set columns = tile_n // 4 -%}
{% set apart = finishes and accumulator == result -%}
{% set band = 8 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" -%}
{# Steps of a turn at the end: k is a multiple of four where vec4 run along it. -#}
{% set rest = 4 if vector_a == 4 or vector_b == 4 else 1 -%}
{% from "matmul/part/load" import load4, load1 -%}
{% include "matmul/part/operands" %}

{# `steps` steps of k from `k` on: load what they need, then add row by row, so that a sum is touched once per turn. -#}
{% macro turn(steps) %}
        {%- for step in range(0, steps, 4 if vector_a == 4 else 1) %}
        let a_k_{{ step }} = (k + {{ step }}u) * a_column;
        {%- endfor %}
        {%- for step in range(0, steps, 4 if vector_b == 4 else 1) %}
        let b_k_{{ step }} = (k + {{ step }}u) * b_row;
        {%- endfor %}
        {%- for g in range(groups_m) %}
        {%- for at in range(0, steps, 4) %}
        {%- if vector_a == 4 %}
        let a_{{ g }}_{{ at }} = {{ load4(slot_a, "(a_row_" ~ g ~ " + a_k_" ~ at ~ ") >> 2u") }};
        {%- elif steps >= 4 %}
        let a_{{ g }}_{{ at }} = {{ quad }}({% for step in range(4) %}{{ load1(slot_a, "a_row_" ~ g ~ " + a_k_" ~ (at + step)) }}{{ ", " if not loop.last }}{% endfor %});
        {%- else %}
        let a_{{ g }}_{{ at }} = {{ quad }}({{ load1(slot_a, "a_row_" ~ g ~ " + a_k_0") }});
        {%- endif %}
        let a_{{ g }}_{{ at }}_x = quadSwapX(a_{{ g }}_{{ at }});
        let a_{{ g }}_{{ at }}_y = quadSwapY(a_{{ g }}_{{ at }});
        let a_{{ g }}_{{ at }}_d = quadSwapDiagonal(a_{{ g }}_{{ at }});
        {%- endfor %}
        {%- endfor %}
        {%- for j in range(columns) %}
        {%- if vector_b == 4 %}
        {%- for at in range(0, steps, 4) %}
        let b_{{ j }}_{{ at }} = {{ load4(slot_b, "(b_column_" ~ j ~ " + b_k_" ~ at ~ ") >> 2u") }};
        {%- endfor %}
        {%- else %}
        {%- for step in range(steps) %}
        let b_{{ j }}_{{ step }} = {{ load1(slot_b, "b_column_" ~ j ~ " + b_k_" ~ step) }};
        {%- endfor %}
        {%- endif %}
        {%- endfor %}
        {%- for i in range(tile_m) %}
        {%- for j in range(columns) %}
        sum_{{ i }}_{{ j }} = sum_{{ i }}_{{ j }}
        {%- for step in range(steps) %} + a_{{ i // 4 }}_{{ step // 4 * 4 }}{{ ["", "_x", "_y", "_d"][i % 4] }}[{{ step % 4 }}] * {% if vector_b == 4 %}b_{{ j }}_{{ step // 4 * 4 }}[{{ step % 4 }}]{% else %}b_{{ j }}_{{ step }}{% endif %}{% endfor %};
        {%- endfor %}
        {%- endfor %}
{%- endmacro -%}

@compute @workgroup_size(4)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
{% include "matmul/part/tile" %}

    // Rows and columns past the edge repeat the last ones: what they add up to is never stored.
    {%- for g in range(groups_m) %}
    let a_row_{{ g }} = a_base + min(tile_row + {{ g * 4 }}u + lane, params.m - 1u) * params.a_row;
    {%- endfor %}
    {%- for j in range(columns) %}
    let b_column_{{ j }} = b_base + min(tile_column + {{ j * 4 }}u + lane, params.n - 1u) * params.b_column;
    {%- endfor %}
    {%- for i in range(tile_m) %}
    {%- for j in range(columns) %}
    var sum_{{ i }}_{{ j }} = {{ accumulator }}();
    {%- endfor %}
    {%- endfor %}

    let a_column = params.a_column;
    let b_row = params.b_row;
    var k = 0u;
    let k_whole = params.k / {{ unroll }}u * {{ unroll }}u;
    while k < k_whole {
        {{- turn(unroll) }}
        k += {{ unroll }}u;
    }
    while k < params.k {
        {{- turn(rest) }}
        k += {{ rest }}u;
    }
    {% for i in range(tile_m) %}
    let row_{{ i }} = tile_row + {{ i // 4 * 4 }}u + (lane ^ {{ i % 4 }}u);
    if row_{{ i }} < params.m {
        let row_start = c_base + row_{{ i }} * params.c_row;
        {%- for j in range(columns) %}
        store_one(row_start, row_{{ i }}, tile_column + {{ j * 4 }}u + lane, sum_{{ i }}_{{ j }});
        {%- endfor %}
    }
    {%- endfor %}
    {%- set across = columns %}
    {%- set run = 1 %}
    {%- set pitch = 4 %}
    {%- set rows_left = "(params.m - tile_row + 3u) / 4u * 4u" %}
    {%- set row_of_lane = "i / 4u * 4u + (lane ^ i % 4u)" %}
    {%- if apart %}
    let column_first = tile_column + lane;
    {%- endif %}
{% include "matmul/part/finish_tile" %}
}

{% include "matmul/part/store" %}
