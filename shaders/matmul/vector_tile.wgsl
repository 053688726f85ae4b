{{ enables }}
// C = A b for one column (n = 1), on any adapter. One row of A as the only one (m = 1) is the same
// product with the operands' places swapped: C' = B' a'.
// Invocations stand in a grid: `row_threads` along the rows of A, `k_threads` along k; those of one
// row (or four) add up through workgroup memory, or not at all where k_threads is 1.
//
// row_threads, k_threads   the workgroup; k_threads is a power of two
// tile_m                   row_threads * thread_m rows per workgroup
// thread_m                 rows per invocation: a multiple of 4 where vec4 runs along m
// fast_a ("m" or "k")      the axis along which vec4 loads run, and along which invocations are neighbours
{% set threads = row_threads * k_threads -%}
{% set thread_m = tile_m // row_threads -%}
{% set a_along_k = vector_a == 4 and fast_a == "k" -%}
{% set a_along_m = vector_a == 4 and fast_a == "m" -%}
{% set b_along_k = vector_b == 4 -%}
{% set fast_long = fast_a -%}
{# Steps of k per turn, and turns whose loads are under way together: four loads of A at least. -#}
{% set steps = 4 if a_along_k or b_along_k else 1 -%}
{% set stride = steps * k_threads -%}
{% set loads = thread_m * steps // vector_a -%}
{% set turns = 4 // loads if k_threads > 1 and loads < 4 else 1 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" %}
{% from "matmul/part/load" import load4, load1 -%}
{% include "matmul/part/operands" %}
{# What one turn reads, from step `k` on, under names that end in `turn`; and its products. -#}
{%- macro load(k, turn) %}
        {%- if b_along_k %}
        let b{{ turn }} = {{ load4(slot_b, "(b_base + " ~ k ~ " * params.b_row) / 4u") }};
        {%- endif %}
        {%- for step in range(steps) %}
        let b{{ turn }}_s{{ step }} = {% if b_along_k %}b{{ turn }}[{{ step }}]{% else %}{{ load1(slot_b, "b_base + (" ~ k ~ " + " ~ step ~ "u) * params.b_row") }}{% endif %};
        {%- endfor %}
        {%- for i in range(thread_m) %}
        {%- if a_along_k %}
        let a{{ turn }}_{{ i }} = {{ load4(slot_a, "(a_row_" ~ i ~ " + " ~ k ~ " * params.a_column) / 4u") }};
        {%- elif a_along_m and i % 4 == 0 %}
        {%- for step in range(steps) %}
        let a{{ turn }}_{{ i }}_s{{ step }} = {{ load4(slot_a, "(a_row_" ~ i ~ " + (" ~ k ~ " + " ~ step ~ "u) * params.a_column) / 4u") }};
        {%- endfor %}
        {%- elif not a_along_m %}
        {%- for step in range(steps) %}
        let a{{ turn }}_{{ i }}_s{{ step }} = {{ load1(slot_a, "a_row_" ~ i ~ " + (" ~ k ~ " + " ~ step ~ "u) * params.a_column") }};
        {%- endfor %}
        {%- endif %}
        {%- endfor %}
{%- endmacro %}
{%- macro add(k, turn) %}
        {%- for i in range(thread_m) %}
        sum_{{ i }} = sum_{{ i }}
        {%- for step in range(steps) %} + {% if a_along_k %}a{{ turn }}_{{ i }}[{{ step }}]{% elif a_along_m %}a{{ turn }}_{{ i // 4 * 4 }}_s{{ step }}[{{ i % 4 }}]{% else %}a{{ turn }}_{{ i }}_s{{ step }}{% endif %} * b{{ turn }}_s{{ step }}{% endfor %};
        {%- endfor %}
{%- endmacro %}

{%- if k_threads > 1 %}

var<workgroup> workgroup_sums: array<{{ accumulator }}, {{ threads * thread_m }}>;
{%- endif %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
{% include "matmul/part/rows" %}

{% include "matmul/part/threads" %}
    let row_first = tile % params.tiles_m * {{ tile_m }}u + row_thread * {{ thread_m }}u;
    // Rows past the edge repeat the last one: what they add up to is never stored.
    {%- for i in range(0, thread_m, 4 if a_along_m else 1) %}
    let a_row_{{ i }} = a_base + min(row_first + {{ i }}u, params.m - {{ 4 if a_along_m else 1 }}u) * params.a_row;
    {%- endfor %}
    {%- for i in range(thread_m) %}
    var sum_{{ i }} = {{ accumulator }}();
    {%- endfor %}

{% include "matmul/part/turns" %}
    {%- if k_threads > 1 %}

    let slot = (row_thread * {{ k_threads }}u + k_thread) * {{ thread_m }}u;
    {%- for i in range(thread_m) %}
    workgroup_sums[slot + {{ i }}u] = sum_{{ i }};
    {%- endfor %}
    workgroupBarrier();
    for (var reach = {{ k_threads // 2 }}u; reach > 0u; reach /= 2u) {
        if k_thread < reach {
            {%- for i in range(thread_m) %}
            workgroup_sums[slot + {{ i }}u] += workgroup_sums[slot + reach * {{ thread_m }}u + {{ i }}u];
            {%- endfor %}
        }
        workgroupBarrier();
    }
    if k_thread != 0u {
        return;
    }
    {%- for i in range(thread_m) %}
    sum_{{ i }} = workgroup_sums[slot + {{ i }}u];
    {%- endfor %}
    {%- endif %}
    {%- for i in range(thread_m) %}
    if row_first + {{ i }}u < params.m {
        finish(c_base + row_first + {{ i }}u, row_first + {{ i }}u, 0u, sum_{{ i }});
    }
    {%- endfor %}
}

{% include "matmul/part/finish" %}
