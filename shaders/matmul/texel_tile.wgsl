{{ enables }}
// C = A B for software adapters with subgroups of 8: A and B lie in the device's texels, four elements
// each. A software adapter loads those of all lanes without a branch, where a load of a buffer
// is a loop over the lanes.
//
// Requires feature SUBGROUP, and subgroups of exactly 8 invocations. k is a multiple of 8.
//
// Rows of 16 texels are what there is; an operand is cut into strips of 64 columns. Strips along k lie
// one below the other, for a band of rows at a time: `a_row` (`b_column`) rows. Strips across k lie so
// whole, k rows each. A band or strip is a unit; `a_offset` is the first one, `a_column` (`b_row`) how
// many a layer has, and strides of the batch count them.
//
// tile_m, tile_n           block of C per workgroup: a multiple of 8; of 32, at most 64
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which elements of a texel lie
{% set groups_m = tile_m // 8 -%}
{% set groups_n = tile_n // 32 -%}
{% set apart = finishes and accumulator == result -%}
{% set band = 8 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" %}
{% include "matmul/part/operands" %}
@group(2) @binding(0) var texels: texture_storage_2d_array<rgba32float, read>;

{# Where the tile's part of an operand starts: layer, row, and texel of a row. -#}
{% macro begin(name, along_k, first, rows, units) %}
    {%- if along_k %}
    let {{ name }}_unit = {{ name }}_base + {{ first }} / {{ rows }};
    let {{ name }}_start = {{ name }}_unit % {{ units }} * ((params.k + 63u) / 64u * {{ rows }}) + {{ first }} % {{ rows }};
    {%- else %}
    let {{ name }}_unit = {{ name }}_base + {{ first }} / 64u;
    let {{ name }}_start = {{ name }}_unit % {{ units }} * params.k;
    let {{ name }}_x = {{ first }} % 64u / 4u;
    {%- endif %}
    let {{ name }}_layer = {{ name }}_unit / {{ units }};
{%- endmacro -%}
{% macro load(name, operand, x, y) %}
        let {{ name }} = textureLoad(texels, vec2({{ x }}, {{ y }}), {{ operand }}_layer);
{%- endmacro -%}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
{% include "matmul/part/tile" %}

    // Lanes own four columns of each 32. Rows and columns past the edge are whatever lies there: what
    // they add up to is never stored.
    let column_first = tile_column + lane * 4u;
    {{- begin("a", fast_a == "k", "tile_row", "params.a_row", "params.a_column") }}
    {{- begin("b", fast_b == "k", "tile_column", "params.b_column", "params.b_row") }}
    {%- for i in range(tile_m) %}
    {%- for q in range(groups_n) %}
    var sum_{{ i }}_{{ q }} = {{ quad }}();
    {%- endfor %}
    {%- endfor %}

    for (var k = 0u; k < params.k; k += 8u) {
        {%- if fast_a == "k" or fast_b == "k" %}
        let x = k % 64u / 4u;
        {%- endif %}
        {%- if fast_b == "k" %}
        let b_y = b_start + k / 64u * params.b_column + lane * 4u;
        {%- for q in range(groups_n) %}
        {%- for c in range(4) %}
        {%- for half in range(2) %}
        {{- load("b_k_" ~ q ~ "_" ~ c ~ "_" ~ half, "b", "x + " ~ half ~ "u", "b_y + " ~ (32 * q + c) ~ "u") }}
        {%- endfor %}
        {%- endfor %}
        {%- for step in range(8) %}
        let b_{{ step }}_{{ q }} = {{ quad }}({% for c in range(4) %}b_k_{{ q }}_{{ c }}_{{ step // 4 }}[{{ step % 4 }}]{{ ", " if not loop.last }}{% endfor %});
        {%- endfor %}
        {%- endfor %}
        {%- else %}
        {%- for step in range(8) %}
        {%- for q in range(groups_n) %}
        {{- load("b_" ~ step ~ "_" ~ q, "b", "b_x + lane + " ~ (8 * q) ~ "u", "b_start + k + " ~ step ~ "u") }}
        {%- endfor %}
        {%- endfor %}
        {%- endif %}
        {%- for g in range(groups_m) %}
        {
            {%- for half in range(2) %}
            {%- if fast_a == "k" %}
            {{- load("a_" ~ half, "a", "x + " ~ half ~ "u", "a_start + k / 64u * params.a_row + lane + " ~ (8 * g) ~ "u") }}
            {%- else %}
            // Lane by lane a step of k.
            {{- load("a_" ~ half, "a", "a_x + " ~ (2 * g + half) ~ "u", "a_start + k + lane") }}
            {%- endif %}
            {%- endfor %}
            {%- for i in range(8) %}
            {
                {%- for step in range(8) %}
                let a_all_{{ step }} = subgroupShuffle({% if fast_a == "k" %}a_{{ step // 4 }}[{{ step % 4 }}], {{ i }}u{% else %}a_{{ i // 4 }}[{{ i % 4 }}], {{ step }}u{% endif %});
                {%- endfor %}
                {%- for q in range(groups_n) %}
                sum_{{ g * 8 + i }}_{{ q }} = sum_{{ g * 8 + i }}_{{ q }}
                {%- for step in range(8) %} + a_all_{{ step }} * b_{{ step }}_{{ q }}{% endfor %};
                {%- endfor %}
            }
            {%- endfor %}
        }
        {%- endfor %}
    }
    {% for i in range(tile_m) %}
    if tile_row + {{ i }}u < params.m {
        let row_start = c_base + (tile_row + {{ i }}u) * params.c_row;
        {%- for q in range(groups_n) %}
        store(row_start, tile_row + {{ i }}u, column_first + {{ 32 * q }}u, sum_{{ i }}_{{ q }});
        {%- endfor %}
    }
    {%- endfor %}
    {%- set across = 4 * groups_n %}
    {%- set run = 4 %}
    {%- set pitch = 32 %}
{% include "matmul/part/finish_tile" %}
}

{% include "matmul/part/store" %}
