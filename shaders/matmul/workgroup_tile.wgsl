{{ enables }}
// C = A B for hardware GPUs: tiles of both operands pass through workgroup memory,
// each invocation sums a block of {{ thread_m }} x {{ thread_n }} in registers.
//
// tile_m, tile_n, tile_k   block of C per workgroup, and the depth of one step
// thread_m, thread_n       block of C per invocation, multiples of 4
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which neighbours lie in memory, and vec4 loads run
{% set threads_m = tile_m // thread_m -%}
{% set threads_n = tile_n // thread_n -%}
{% set blocks_m = thread_m // 4 -%}
{% set blocks_n = thread_n // 4 -%}
{% set quads_m = tile_m // 4 -%}
{% set quads_n = tile_n // 4 -%}
{% from "matmul/part/staged" import load_start, load_next, load_keep -%}
{# A row more than needed keeps transposing writes off one memory bank; f64 has no room for it. -#}
{% set pitch_a = quads_m + (1 if fast_a == "k" and accumulator != "f64" else 0) -%}
{% set pitch_b = quads_n + (1 if fast_b == "k" and accumulator != "f64" else 0) -%}
{% set size_a = pitch_a * tile_k -%}
{% set size_b = pitch_b * tile_k -%}
{% set band = 8 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" %}
{% include "matmul/part/operands" %}

// Both tiles lie k-major in vec4, as the inner product reads them.
var<workgroup> tile_a: array<{{ quad }}, {{ size_a }}>;
var<workgroup> tile_b: array<{{ quad }}, {{ size_b }}>;

{% macro load_both(k) %}
    {{- load_next("a", slot_a, "params.a_column", vector_a, fast_a, quads_m, k, "let ") }}
    {{- load_next("b", slot_b, "params.b_row", vector_b, fast_b, quads_n, k, "let ") }}
{%- endmacro -%}
{# What was loaded for the step at `k`. Of the last step alone a part may be past the end of k; past that one `k` may be -#}
{# too, the difference wraps, and what is kept is never read. -#}
{% macro keep_both() %}
        if params.k - k < {{ tile_k }}u {
            {{- load_keep("a", pitch_a, vector_a, fast_a, quads_m, true) }}
            {{- load_keep("b", pitch_b, vector_b, fast_b, quads_n, true) }}
        } else {
            {{- load_keep("a", pitch_a, vector_a, fast_a, quads_m) }}
            {{- load_keep("b", pitch_b, vector_b, fast_b, quads_n) }}
        }
{%- endmacro -%}
@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
{% include "matmul/part/tile" %}
    {{- load_start("a", "tile_row", "params.m", "params.a_row", vector_a, fast_a, quads_m) }}
    {{- load_start("b", "tile_column", "params.n", "params.b_column", vector_b, fast_b, quads_n) }}

    {% if threads_n % 8 == 0 and threads_m % 4 == 0 -%}
    // 32 neighbours, which most hardware runs together, have 4 x 8 blocks: their reads of workgroup memory
    // touch 4 and 8 vec4. Bits of both take turns, so that of any four neighbours pairs read the same of A, and pairs the
    // same of B: faster on an H200 (docs/matmul.md), which seems to join such reads.
    let part = local_index / 32u;
    let local_m = part / {{ threads_n // 8 }}u * 4u + local_index / 2u % 2u + local_index / 16u % 2u * 2u;
    let local_n = part % {{ threads_n // 8 }}u * 8u + local_index % 2u + local_index / 4u % 4u * 2u;
    {%- else -%}
    let local_m = local_index / {{ threads_n }}u;
    let local_n = local_index % {{ threads_n }}u;
    {%- endif %}
    {%- for i in range(thread_m) %}
    {%- for j in range(blocks_n) %}
    var sum_{{ i }}_{{ j }} = {{ quad }}();
    {%- endfor %}
    {%- endfor %}

    {
        {{- load_both("0u") }}
        let k = 0u;
        {{- keep_both() }}
        workgroupBarrier();
    }

    var k = 0u;
    while k < params.k {
        // The next step's loads are under way while this step is summed.
        k += {{ tile_k }}u;
        {{- load_both("k") }}
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
        {{- keep_both() }}
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
