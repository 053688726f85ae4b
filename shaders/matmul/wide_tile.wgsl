{{ enables }}
// C = A B for software adapters with subgroups of 8 and 64-bit integers: as the subgroup tile, but
// every load takes eight elements as a vec4<u64>. A software adapter makes each load a loop over its
// lanes, in which a fetch of 64 bits costs little more than one of 32.
//
// Requires features SUBGROUP and SHADER_INT64, and subgroups of exactly 8 invocations. A and B are
// vectors of eight along an axis of unit stride, whole ones at the edges too; k is a multiple of 8.
//
// tile_m, tile_n           block of C per workgroup: 4 or a multiple of 8; a multiple of 64
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which loads run
{% set rows = 4 if tile_m == 4 else 8 -%}
{% set groups_m = tile_m // rows -%}
{% set groups_n = tile_n // 64 -%}
{% set apart = finishes and accumulator == result -%}
{% set band = 8 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" %}
{% from "matmul/part/load" import load8 -%}
{% include "matmul/part/operands" %}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
{% include "matmul/part/tile" %}

    // Lanes own eight columns each. Rows and columns past the edge repeat the last ones: what they
    // add up to is never stored.
    let column_first = tile_column + lane * 8u;
    {%- for g in range(groups_m) %}
    {%- if fast_a == "k" %}
    let a_row_{{ g }} = (a_base + min(tile_row + {{ g * 8 }}u + lane, params.m - 1u) * params.a_row) / 8u;
    {%- else %}
    // Lane by lane a step of k.
    let a_row_{{ g }} = (a_base + min(tile_row + {{ g * 8 }}u, (params.m - 1u) / 8u * 8u) + lane * params.a_column) / 8u;
    {%- endif %}
    {%- endfor %}
    {%- if fast_b == "k" %}
    {%- for h in range(groups_n) %}
    {%- for j in range(8) %}
    let b_column_{{ h }}_{{ j }} = (b_base + min(column_first + {{ 64 * h + j }}u, params.n - 1u) * params.b_column) / 8u;
    {%- endfor %}
    {%- endfor %}
    {%- else %}
    let b_row = params.b_row / 8u;
    {%- for h in range(groups_n) %}
    let b_column_{{ h }} = (b_base + min(column_first + {{ 64 * h }}u, (params.n - 1u) / 8u * 8u)) / 8u;
    {%- endfor %}
    var b_at = 0u;
    {%- endif %}
    {%- for h in range(groups_n) %}
    {%- for i in range(tile_m) %}
    {%- for j in range(8) %}
    var sum_{{ h }}_{{ i }}_{{ j }} = {{ accumulator }}();
    {%- endfor %}
    {%- endfor %}
    {%- endfor %}

    {% if fast_a == "m" %}var a_at = 0u;
    {% endif -%}
    for (var k = 0u; k < params.k / 8u; k += 1u) {
        {%- for h in range(groups_n) %}
        {
            {%- for step in range(8) %}
            {%- if fast_b == "k" %}
            {{- load8("b_" ~ step, slot_b, "b_column_" ~ h ~ "_" ~ step ~ " + k") }}
            {%- else %}
            {{- load8("b_" ~ step, slot_b, "b_column_" ~ h ~ " + b_at + b_row * " ~ step ~ "u") }}
            {%- endif %}
            {%- endfor %}
            {%- for g in range(groups_m) %}
            {
                {{- load8("a", slot_a, "a_row_" ~ g ~ (" + k" if fast_a == "k" else " + a_at")) }}
                {%- for i in range(rows) %}
                {
                    {%- for step in range(8) %}
                    let a_all_{{ step }} = subgroupShuffle({% if fast_a == "k" %}a_{{ step }}, {{ i }}u{% else %}a_{{ i }}, {{ step }}u{% endif %});
                    {%- endfor %}
                    {%- for j in range(8) %}
                    {%- set sum = "sum_" ~ h ~ "_" ~ (g * 8 + i) ~ "_" ~ j %}
                    {{ sum }} = {{ sum }}
                    {%- for step in range(8) %} + a_all_{{ step }} * {% if fast_b == "k" %}b_{{ j }}_{{ step }}{% else %}b_{{ step }}_{{ j }}{% endif %}{% endfor %};
                    {%- endfor %}
                }
                {%- endfor %}
            }
            {%- endfor %}
        }
        {%- endfor %}
        {%- if fast_b == "n" %}
        b_at += b_row * 8u;
        {%- endif %}
        {%- if fast_a == "m" %}
        a_at += params.a_column;
        {%- endif %}
    }
    {% for i in range(tile_m) %}
    if tile_row + {{ i }}u < params.m {
        let row_start = c_base + (tile_row + {{ i }}u) * params.c_row;
        {%- for h in range(groups_n) %}
        {%- for j in range(2) %}
        store(row_start, tile_row + {{ i }}u, column_first + {{ 64 * h + 4 * j }}u, {{ quad }}({% for c in range(4) %}sum_{{ h }}_{{ i }}_{{ 4 * j + c }}{{ ", " if not loop.last }}{% endfor %}));
        {%- endfor %}
        {%- endfor %}
    }
    {%- endfor %}
    {%- set across = 8 * groups_n %}
    {%- set run = 8 %}
    {%- set pitch = 64 %}
{% include "matmul/part/finish_tile" %}
}

{% include "matmul/part/store" %}
