{{ enables }}
// C = A B for hardware GPUs: tiles of both operands pass through workgroup memory,
// each invocation sums a block of {{ thread_m }} x {{ thread_n }} in registers.
//
// tile_m, tile_n, tile_k   block of C per workgroup, and the depth of one step
// thread_m, thread_n       block of C per invocation, multiples of 4
// stages                   2: a step is written into one half of workgroup memory while the other is
//                          read, with one barrier a step instead of two
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which neighbours lie in memory, and vec4 loads
//                          run; along k an invocation turns blocks of 4 x 4 round in registers
{% set threads_m = tile_m // thread_m -%}
{% set threads_n = tile_n // thread_n -%}
{% set threads = threads_m * threads_n -%}
{% set blocks_m = thread_m // 4 -%}
{% set blocks_n = thread_n // 4 -%}
{% set quads_m = tile_m // 4 -%}
{% set quads_n = tile_n // 4 -%}
{% set along_k_a = vector_a == 4 and fast_a == "k" -%}
{% set along_k_b = vector_b == 4 and fast_b == "k" -%}
{# A row more than needed keeps transposing writes off one memory bank; f64 has no room for it. -#}
{% set pitch_a = quads_m + (1 if fast_a == "k" and accumulator != "f64" else 0) -%}
{% set pitch_b = quads_n + (1 if fast_b == "k" and accumulator != "f64" else 0) -%}
{# What invocations load at a time: a vec4, or a block of four along k. -#}
{% set items_a = quads_m * tile_k // (4 if along_k_a else 1) -%}
{% set items_b = quads_n * tile_k // (4 if along_k_b else 1) -%}
{% set loads_a = (items_a + threads - 1) // threads -%}
{% set loads_b = (items_b + threads - 1) // threads -%}
{# Where neither operand has work for more than half of the invocations, each takes its own half. -#}
{% set first_b = threads // 2 if items_a * 2 <= threads and items_b * 2 <= threads else 0 -%}
{% set size_a = pitch_a * tile_k -%}
{% set size_b = pitch_b * tile_k -%}
{% set band = 8 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" %}
{% from "matmul/part/load" import load4, load1 -%}
{% include "matmul/part/operands" %}

// Both tiles lie k-major in vec4, as the inner product reads them.
var<workgroup> tile_a: array<{{ quad }}, {{ size_a * stages }}>;
var<workgroup> tile_b: array<{{ quad }}, {{ size_b * stages }}>;

{# Where load number `i` of an invocation goes: its step in k and its quad of rows or columns. -#}
{% macro load_place(name, i, fast, quads, along_k, first) %}
    let {{ name }}_slot_{{ i }} = {% if first %}(local_index + {{ first }}u) % {{ threads }}u{% else %}local_index{% endif %} + {{ i * threads }}u;
    {%- if along_k %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} % {{ tile_k // 4 }}u * 4u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} / {{ tile_k // 4 }}u;
    {%- elif fast == "k" %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} % {{ tile_k }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} / {{ tile_k }}u;
    {%- else %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} / {{ quads }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} % {{ quads }}u;
    {%- endif %}
{%- endmacro -%}
{# Rows and columns past the edge repeat the last one: what they add up to is never stored. -#}
{% macro load_start(name, i, first, extent, stride, along, vector, along_k) %}
    {%- if along_k %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = ({{ name }}_base + min({{ first }} + {{ name }}_quad_{{ i }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }} + {{ name }}_k_{{ i }}) / 4u;
    {%- endfor %}
    {%- elif vector == 4 %}
    let {{ name }}_start_{{ i }} = {{ name }}_base / 4u + min({{ first }} / 4u + {{ name }}_quad_{{ i }}, {{ extent }} / 4u - 1u) + {{ name }}_k_{{ i }} * ({{ along }} / 4u);
    {%- else %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = {{ name }}_base + min({{ first }} + {{ name }}_quad_{{ i }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }} + {{ name }}_k_{{ i }} * {{ along }};
    {%- endfor %}
    {%- endif %}
{%- endmacro -%}
{# Steps past the end of k count as zero: the branch keeps them from being read. -#}
{% macro load_next(name, i, slot, along, vector, along_k, items) %}
        {%- for j in range(4 if along_k else 1) %}
        {{ name }}_next_{{ i }}{{ "_" ~ j if along_k }} = {{ quad }}();
        {%- endfor %}
        if k + {{ name }}_k_{{ i }} < params.k{% if (i + 1) * threads > items %} && {{ name }}_slot_{{ i }} < {{ items }}u{% endif %} {
            {%- if along_k %}
            {%- for j in range(4) %}
            {{ name }}_next_{{ i }}_{{ j }} = {{ load4(slot, name ~ "_start_" ~ i ~ "_" ~ j ~ " + k / 4u") }};
            {%- endfor %}
            {%- elif vector == 4 %}
            {{ name }}_next_{{ i }} = {{ load4(slot, name ~ "_start_" ~ i ~ " + k * (" ~ along ~ " / 4u)") }};
            {%- else %}
            {{ name }}_next_{{ i }} = {{ quad }}({% for j in range(4) %}{{ load1(slot, name ~ "_start_" ~ i ~ "_" ~ j ~ " + k * " ~ along) }}{{ ", " if not loop.last }}{% endfor %});
            {%- endif %}
        }
{%- endmacro -%}
{# Where the workgroup is larger than what a round of loads leaves to do, some invocations have nothing to keep. -#}
{% macro keep(name, i, pitch, items, size, along_k) %}
        {%- if (i + 1) * threads > items %}
        if {{ name }}_slot_{{ i }} < {{ items }}u {
        {%- else %}
        {
        {%- endif %}
            let at = {% if stages == 2 %}stage * {{ size }}u + {% endif %}{{ name }}_k_{{ i }} * {{ pitch }}u + {{ name }}_quad_{{ i }};
            {%- if along_k %}
            {%- for step in range(4) %}
            tile_{{ name }}[at + {{ step * pitch }}u] = {{ quad }}({% for j in range(4) %}{{ name }}_next_{{ i }}_{{ j }}[{{ step }}]{{ ", " if not loop.last }}{% endfor %});
            {%- endfor %}
            {%- else %}
            tile_{{ name }}[at] = {{ name }}_next_{{ i }};
            {%- endif %}
        }
{%- endmacro -%}
{% macro load_both() %}
    {%- for i in range(loads_a) %}{{ load_next("a", i, slot_a, "params.a_column", vector_a, along_k_a, items_a) }}{% endfor %}
    {%- for i in range(loads_b) %}{{ load_next("b", i, slot_b, "params.b_row", vector_b, along_k_b, items_b) }}{% endfor %}
{%- endmacro -%}
{% macro keep_both() %}
    {%- for i in range(loads_a) %}{{ keep("a", i, pitch_a, items_a, size_a, along_k_a) }}{% endfor %}
    {%- for i in range(loads_b) %}{{ keep("b", i, pitch_b, items_b, size_b, along_k_b) }}{% endfor %}
{%- endmacro -%}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
{% include "matmul/part/tile" %}
    {% for i in range(loads_a) -%}
    {{ load_place("a", i, fast_a, quads_m, along_k_a, 0) }}
    {{- load_start("a", i, "tile_row", "params.m", "params.a_row", "params.a_column", vector_a, along_k_a) }}
    {%- endfor %}
    {%- for i in range(loads_b) -%}
    {{ load_place("b", i, fast_b, quads_n, along_k_b, first_b) }}
    {{- load_start("b", i, "tile_column", "params.n", "params.b_column", "params.b_row", vector_b, along_k_b) }}
    {%- endfor %}

    {% if threads_n % 8 == 0 and threads_m % 4 == 0 -%}
    // 32 neighbours, which most hardware runs together, have 4 x 8 blocks: their reads of workgroup memory
    // touch 4 and 8 vec4.
    let part = local_index / 32u;
    let local_m = part / {{ threads_n // 8 }}u * 4u + local_index / 8u % 4u;
    let local_n = part % {{ threads_n // 8 }}u * 8u + local_index % 8u;
    {%- else -%}
    let local_m = local_index / {{ threads_n }}u;
    let local_n = local_index % {{ threads_n }}u;
    {%- endif %}
    {%- for i in range(thread_m) %}
    {%- for j in range(blocks_n) %}
    var sum_{{ i }}_{{ j }} = {{ quad }}();
    {%- endfor %}
    {%- endfor %}
    {%- for i in range(loads_a) %}
    {%- for j in range(4 if along_k_a else 1) %}
    var a_next_{{ i }}{{ "_" ~ j if along_k_a }}: {{ quad }};
    {%- endfor %}
    {%- endfor %}
    {%- for i in range(loads_b) %}
    {%- for j in range(4 if along_k_b else 1) %}
    var b_next_{{ i }}{{ "_" ~ j if along_k_b }}: {{ quad }};
    {%- endfor %}
    {%- endfor %}

    var k = 0u;
    {%- if stages == 2 %}
    var stage = 0u;
    {%- endif %}
    {{- load_both() }}
    while k < params.k {
        {{- keep_both() }}
        workgroupBarrier();

        // The next step's loads are under way while this step is summed.
        k += {{ tile_k }}u;
        {{- load_both() }}
        {%- if stages == 2 %}
        let a_first = stage * {{ size_a }}u + local_m;
        let b_first = stage * {{ size_b }}u + local_n;
        // Who is a step ahead writes the other half; who is two ahead waits at the barrier.
        stage = 1u - stage;
        {%- endif %}
        {%- for step in range(tile_k) %}
        {
            {%- for i in range(blocks_m) %}
            let a_{{ i }} = tile_a[{{ step * pitch_a + i * threads_m }}u + {{ "a_first" if stages == 2 else "local_m" }}];
            {%- endfor %}
            {%- for j in range(blocks_n) %}
            let b_{{ j }} = tile_b[{{ step * pitch_b + j * threads_n }}u + {{ "b_first" if stages == 2 else "local_n" }}];
            {%- endfor %}
            {%- for i in range(thread_m) %}
            {%- for j in range(blocks_n) %}
            sum_{{ i }}_{{ j }} += a_{{ i // 4 }}[{{ i % 4 }}] * b_{{ j }};
            {%- endfor %}
            {%- endfor %}
        }
        {%- endfor %}
        {%- if stages == 1 %}
        workgroupBarrier();
        {%- endif %}
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
