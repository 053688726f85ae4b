{{ enables }}
// C = A B for hardware GPUs: tiles of both operands pass through workgroup memory,
// each invocation sums a block of {{ thread_m }} x {{ thread_n }} in registers.
//
// tile_m, tile_n, tile_k   block of C per workgroup, and the depth of one step
// thread_m, thread_n       block of C per invocation, multiples of 4
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which neighbours lie in memory;
//                          only speed depends on it, except that vec4 loads need "m" and "n"
{% set threads_m = tile_m // thread_m -%}
{% set threads_n = tile_n // thread_n -%}
{% set threads = threads_m * threads_n -%}
{% set blocks_m = thread_m // 4 -%}
{% set blocks_n = thread_n // 4 -%}
{% set quads_m = tile_m // 4 -%}
{% set quads_n = tile_n // 4 -%}
{# A row more than needed keeps transposing writes off one memory bank; f64 has no room for it. -#}
{% set pitch_a = quads_m + (1 if fast_a == "k" and accumulator != "f64" else 0) -%}
{% set pitch_b = quads_n + (1 if fast_b == "k" and accumulator != "f64" else 0) -%}
{% set loads_a = (quads_m * tile_k + threads - 1) // threads -%}
{% set loads_b = (quads_n * tile_k + threads - 1) // threads -%}
{% set band = 8 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" %}
{% from "matmul/part/load" import load4, load1 -%}
{% include "matmul/part/operands" %}

// Both tiles lie k-major in vec4, as the inner product reads them.
var<workgroup> tile_a: array<{{ quad }}, {{ pitch_a * tile_k }}>;
var<workgroup> tile_b: array<{{ quad }}, {{ pitch_b * tile_k }}>;

{# Where load number `i` of an invocation goes: its step in k and its quad of rows or columns. -#}
{% macro load_place(name, i, fast, quads) %}
    let {{ name }}_slot_{{ i }} = local_index + {{ i * threads }}u;
    {%- if fast == "k" %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} % {{ tile_k }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} / {{ tile_k }}u;
    {%- else %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} / {{ quads }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} % {{ quads }}u;
    {%- endif %}
{%- endmacro -%}
{# Rows and columns past the edge repeat the last one: what they add up to is never stored. -#}
{% macro load_start(name, i, first, extent, stride, along, vector) %}
    {%- if vector == 4 %}
    let {{ name }}_start_{{ i }} = {{ name }}_base / 4u + min({{ first }} / 4u + {{ name }}_quad_{{ i }}, {{ extent }} / 4u - 1u) + {{ name }}_k_{{ i }} * ({{ along }} / 4u);
    {%- else %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = {{ name }}_base + min({{ first }} + {{ name }}_quad_{{ i }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }} + {{ name }}_k_{{ i }} * {{ along }};
    {%- endfor %}
    {%- endif %}
{%- endmacro -%}
{# Steps past the end of k count as zero: the branch keeps them from being read. -#}
{% macro load_next(name, i, slot, along, vector) %}
        {{ name }}_next_{{ i }} = {{ quad }}();
        if k + {{ name }}_k_{{ i }} < params.k {
            {%- if vector == 4 %}
            {{ name }}_next_{{ i }} = {{ load4(slot, name ~ "_start_" ~ i ~ " + k * (" ~ along ~ " / 4u)") }};
            {%- else %}
            {{ name }}_next_{{ i }} = {{ quad }}({% for j in range(4) %}{{ load1(slot, name ~ "_start_" ~ i ~ "_" ~ j ~ " + k * " ~ along) }}{{ ", " if not loop.last }}{% endfor %});
            {%- endif %}
        }
{%- endmacro -%}
{# Where the workgroup is larger than what a round of loads leaves to do, some invocations have nothing to keep. -#}
{% macro keep(name, i, pitch, total) %}
        {%- if (i + 1) * threads > total %}
        if {{ name }}_slot_{{ i }} < {{ total }}u {
            tile_{{ name }}[{{ name }}_k_{{ i }} * {{ pitch }}u + {{ name }}_quad_{{ i }}] = {{ name }}_next_{{ i }};
        }
        {%- else %}
        tile_{{ name }}[{{ name }}_k_{{ i }} * {{ pitch }}u + {{ name }}_quad_{{ i }}] = {{ name }}_next_{{ i }};
        {%- endif %}
{%- endmacro -%}
{% macro load_both() %}
    {%- for i in range(loads_a) %}{{ load_next("a", i, slot_a, "params.a_column", vector_a) }}{% endfor %}
    {%- for i in range(loads_b) %}{{ load_next("b", i, slot_b, "params.b_row", vector_b) }}{% endfor %}
{%- endmacro -%}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
{% include "matmul/part/tile" %}
    {% for i in range(loads_a) -%}
    {{ load_place("a", i, fast_a, quads_m) }}
    {{- load_start("a", i, "tile_row", "params.m", "params.a_row", "params.a_column", vector_a) }}
    {%- endfor %}
    {%- for i in range(loads_b) -%}
    {{ load_place("b", i, fast_b, quads_n) }}
    {{- load_start("b", i, "tile_column", "params.n", "params.b_column", "params.b_row", vector_b) }}
    {%- endfor %}

    let local_m = local_index / {{ threads_n }}u;
    let local_n = local_index % {{ threads_n }}u;
    {%- for i in range(thread_m) %}
    {%- for j in range(blocks_n) %}
    var sum_{{ i }}_{{ j }} = {{ quad }}();
    {%- endfor %}
    {%- endfor %}
    {%- for i in range(loads_a) %}
    var a_next_{{ i }}: {{ quad }};
    {%- endfor %}
    {%- for i in range(loads_b) %}
    var b_next_{{ i }}: {{ quad }};
    {%- endfor %}

    var k = 0u;
    {{- load_both() }}
    while k < params.k {
        {%- for i in range(loads_a) %}{{ keep("a", i, pitch_a, quads_m * tile_k) }}{% endfor %}
        {%- for i in range(loads_b) %}{{ keep("b", i, pitch_b, quads_n * tile_k) }}{% endfor %}
        workgroupBarrier();

        // The next step's loads are under way while this step is summed.
        k += {{ tile_k }}u;
        {{- load_both() }}
        {%- for step in range(tile_k) %}
        {
            {%- for i in range(blocks_m) %}
            let a_{{ i }} = tile_a[{{ step * pitch_a + i * threads_m }}u + local_m];
            {%- endfor %}
            {%- for j in range(blocks_n) %}
            let b_{{ j }} = tile_b[{{ step * pitch_b + j * threads_n }}u + local_n];
            {%- endfor %}
            {%- for i in range(thread_m) %}
            {%- for j in range(blocks_n) %}
            sum_{{ i }}_{{ j }} += a_{{ i // 4 }}[{{ i % 4 }}] * b_{{ j }};
            {%- endfor %}
            {%- endfor %}
        }
        {%- endfor %}
        workgroupBarrier();
    }
    {% for i in range(thread_m) %}
    {
        let row = tile_row + (local_m + {{ i // 4 * threads_m }}u) * 4u + {{ i % 4 }}u;
        if row < params.m {
            {%- for j in range(blocks_n) %}
            let column_{{ j }} = tile_column + (local_n + {{ j * threads_n }}u) * 4u;
            store(c_base + row * params.c_row, row, column_{{ j }}, sum_{{ i }}_{{ j }});
            {%- endfor %}
        }
    }
    {%- endfor %}
}

{% include "matmul/part/store" %}
