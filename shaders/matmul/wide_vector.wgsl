{{ enables }}
// C = A b for one column (n = 1), on software adapters with subgroups of 8 and 64-bit integers: every
// load of A takes eight elements as a vec4<u64>, for which such an adapter needs little more than for
// one. One row of A as the only one (m = 1) is the same product with the operands' places swapped.
//
// Requires features SUBGROUP and SHADER_INT64, and subgroups of exactly 8 invocations. k is a multiple
// of 8 where A and b are vectors along k, else of 4, and m of 8.
//
// tile_m                   rows per workgroup; multiples of 64 where A lies along m
// fast_a ("m" or "k")      the axis along which elements of A are neighbours: its lanes lie along it too
{% set quad = "vec4<" ~ accumulator ~ ">" -%}
{% set groups = tile_m // 64 %}
{% from "matmul/part/load" import load8 -%}
{% include "matmul/part/operands" %}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
{% include "matmul/part/rows" %}
    let row_first = tile % params.tiles_m * {{ tile_m }}u;
    {%- if fast_a == "k" %}

    // Rows past the edge repeat the last one: what they add up to is never stored.
    {%- for i in range(tile_m) %}
    let a_row_{{ i }} = (a_base + min(row_first + {{ i }}u, params.m - 1u) * params.a_row) / 8u;
    var sum_{{ i }} = {{ accumulator }}();
    {%- endfor %}
    for (var k = lane; k < params.k / 8u; k += 8u) {
        {{- load8("b", slot_b, "b_base / 8u + k") }}
        {%- for i in range(tile_m) %}
        {
            {{- load8("a", slot_a, "a_row_" ~ i ~ " + k") }}
            sum_{{ i }} = sum_{{ i }}
            {%- for step in range(8) %} + a_{{ step }} * b_{{ step }}{% endfor %};
        }
        {%- endfor %}
    }
    {%- for i in range(tile_m) %}
    let all_{{ i }} = subgroupAdd(sum_{{ i }});
    {%- endfor %}
    {%- for i in range(tile_m) %}
    if lane == 0u && row_first + {{ i }}u < params.m {
        finish(c_base + row_first + {{ i }}u, row_first + {{ i }}u, 0u, all_{{ i }});
    }
    {%- endfor %}
    {%- else %}

    // Lanes own eight rows of each 64.
    let lane_first = row_first + lane * 8u;
    {%- for g in range(groups) %}
    let a_row_{{ g }} = (a_base + min(lane_first + {{ 64 * g }}u, params.m - 8u)) / 8u;
    {%- for i in range(8) %}
    var sum_{{ g }}_{{ i }} = {{ accumulator }}();
    {%- endfor %}
    {%- endfor %}
    let a_column = params.a_column / 8u;
    var a_at = 0u;
    for (var k = 0u; k < params.k; k += 4u) {
        // Lane by lane a step of k.
        let b = {{ accumulator }}(buffer{{ slot_b }}[b_base + (k + lane % 4u) * params.b_row]);
        {%- for step in range(4) %}
        let b_{{ step }} = subgroupShuffle(b, {{ step }}u);
        {%- endfor %}
        {%- for g in range(groups) %}
        {
            {%- for step in range(4) %}
            {{- load8("a_" ~ step, slot_a, "a_row_" ~ g ~ " + a_at + a_column * " ~ step ~ "u") }}
            {%- endfor %}
            {%- for i in range(8) %}
            sum_{{ g }}_{{ i }} = sum_{{ g }}_{{ i }}
            {%- for step in range(4) %} + a_{{ step }}_{{ i }} * b_{{ step }}{% endfor %};
            {%- endfor %}
        }
        {%- endfor %}
        a_at += a_column * 4u;
    }
    {%- for g in range(groups) %}
    if lane_first + {{ 64 * g }}u < params.m {
        let row = lane_first + {{ 64 * g }}u;
        {%- for i in range(8) %}
        finish(c_base + row + {{ i }}u, row + {{ i }}u, 0u, sum_{{ g }}_{{ i }});
        {%- endfor %}
    }
    {%- endfor %}
    {%- endif %}
}

{% include "matmul/part/finish" %}
