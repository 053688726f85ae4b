{{ enables }}
// C = A B where B has few columns, or A few rows: the other matrix is read once, by neighbours in memory,
// what it meets of the few comes from the cache. As the vector tile, with several sums for each long row.
// The *long* matrix is A for few columns and B for few rows; its rows are those of A, or the columns of B.
//
// few                      "n": few columns; "m": few rows
// row_threads, k_threads   the workgroup: invocations along the long rows and along k, a power of two
// thread_rows              long rows of an invocation: a multiple of 4 where vec4 runs along them
{% set threads = row_threads * k_threads -%}
{% set by_rows = few == "m" -%}
{% set columns = tile_m if by_rows else tile_n -%}
{% set long, short = ("b", "a") if by_rows else ("a", "b") -%}
{% set slot_long, slot_short = (slot_b, slot_a) if by_rows else (slot_a, slot_b) -%}
{% set fast_long, fast_short = (fast_b, fast_a) if by_rows else (fast_a, fast_b) -%}
{% set vector_long, vector_short = (vector_b, vector_a) if by_rows else (vector_a, vector_b) -%}
{% set long_row, long_k = ("params.b_column", "params.b_row") if by_rows else ("params.a_row", "params.a_column") -%}
{% set short_column, short_k = ("params.a_row", "params.a_column") if by_rows else ("params.b_column", "params.b_row") -%}
{% set long_size, short_size = ("params.n", "params.m") if by_rows else ("params.m", "params.n") -%}
{% set long_first, short_first = ("tile_column", "tile_row") if by_rows else ("tile_row", "tile_column") -%}
{% set long_along_k = vector_long == 4 and fast_long == "k" -%}
{% set long_across = vector_long == 4 and fast_long != "k" -%}
{% set short_along_k = vector_short == 4 and fast_short == "k" -%}
{% set short_across = vector_short == 4 and fast_short != "k" -%}
{# Steps of k per turn, and turns whose loads are under way together: four loads of the long matrix at least. -#}
{% set steps = 4 if long_along_k or short_along_k else 1 -%}
{% set stride = steps * k_threads -%}
{% set loads = thread_rows * steps // vector_long -%}
{% set turns = 4 // loads if loads < 4 else 1 -%}
{# Columns whose sums are in workgroup memory at a time, of `few_sums`: all together where they fit. -#}
{% set room = few_sums // (threads * thread_rows) -%}
{% set group = columns if room >= columns else (room if room > 1 else 1) -%}
{% set band = 8 -%}
{% from "matmul/part/load" import load4, load1 -%}
{% include "matmul/part/operands" %}
{# What one turn reads of the long matrix, from step `k` on, under names that end in `turn`. -#}
{%- macro load(k, turn) %}
        {%- for i in range(thread_rows) %}
        {%- if long_along_k %}
        let long{{ turn }}_{{ i }} = {{ load4(slot_long, "(long_row_" ~ i ~ " + " ~ k ~ " * " ~ long_k ~ ") / 4u") }};
        {%- elif not long_across or i % 4 == 0 %}
        {%- for step in range(steps) %}
        let long{{ turn }}_{{ i }}_s{{ step }} = {% if long_across %}{{ load4(slot_long, "(long_row_" ~ i ~ " + (" ~ k ~ " + " ~ step ~ "u) * " ~ long_k ~ ") / 4u") }}{% else %}{{ load1(slot_long, "long_row_" ~ i ~ " + (" ~ k ~ " + " ~ step ~ "u) * " ~ long_k) }}{% endif %};
        {%- endfor %}
        {%- endif %}
        {%- endfor %}
{%- endmacro %}
{# The same turn's products, with what it meets of the few, which each load serves all rows of. -#}
{%- macro add(k, turn) %}
        {%- for j in range(columns) %}
        {%- if short_along_k %}
        let few{{ turn }}_{{ j }} = {{ load4(slot_short, "(short_column_" ~ j ~ " + " ~ k ~ " * " ~ short_k ~ ") / 4u") }};
        {%- elif not short_across or j % 4 == 0 %}
        {%- for step in range(steps) %}
        let few{{ turn }}_{{ j }}_s{{ step }} = {% if short_across %}{{ load4(slot_short, "(short_column_" ~ j ~ " + (" ~ k ~ " + " ~ step ~ "u) * " ~ short_k ~ ") / 4u") }}{% else %}{{ load1(slot_short, "short_column_" ~ j ~ " + (" ~ k ~ " + " ~ step ~ "u) * " ~ short_k) }}{% endif %};
        {%- endfor %}
        {%- endif %}
        {%- for i in range(thread_rows) %}
        sum_{{ i }}_{{ j }} = sum_{{ i }}_{{ j }}
        {%- for step in range(steps) %} + {% if long_along_k %}long{{ turn }}_{{ i }}[{{ step }}]{% elif long_across %}long{{ turn }}_{{ i // 4 * 4 }}_s{{ step }}[{{ i % 4 }}]{% else %}long{{ turn }}_{{ i }}_s{{ step }}{% endif %} * {% if short_along_k %}few{{ turn }}_{{ j }}[{{ step }}]{% elif short_across %}few{{ turn }}_{{ j // 4 * 4 }}_s{{ step }}[{{ j % 4 }}]{% else %}few{{ turn }}_{{ j }}_s{{ step }}{% endif %}{% endfor %};
        {%- endfor %}
        {%- endfor %}
{%- endmacro %}

var<workgroup> workgroup_sums: array<{{ accumulator }}, {{ threads * thread_rows * group }}>;

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
{% include "matmul/part/tile" %}

{% include "matmul/part/threads" %}
    let row_first = {{ long_first }} + row_thread * {{ thread_rows }}u;
    // Rows and columns past the edge repeat the last ones: what they add up to is never stored.
    {%- for i in range(0, thread_rows, 4 if long_across else 1) %}
    let long_row_{{ i }} = {{ long }}_base + min(row_first + {{ i }}u, {{ long_size }} - {{ 4 if long_across else 1 }}u) * {{ long_row }};
    {%- endfor %}
    {%- for j in range(0, columns, 4 if short_across else 1) %}
    let short_column_{{ j }} = {{ short }}_base + min({{ short_first }} + {{ j }}u, {{ short_size }} - {{ 4 if short_across else 1 }}u) * {{ short_column }};
    {%- endfor %}
    {%- for i in range(thread_rows) %}
    {%- for j in range(columns) %}
    var sum_{{ i }}_{{ j }} = {{ accumulator }}();
    {%- endfor %}
    {%- endfor %}

{% include "matmul/part/turns" %}

    // Sums of k's invocations, as many columns at a time as there is room for.
    let slot = (row_thread * {{ k_threads }}u + k_thread) * {{ thread_rows * group }}u;
    {%- for first in range(0, columns, group) %}
    {%- if first > 0 %}
    workgroupBarrier();
    {%- endif %}
    {%- for i in range(thread_rows) %}
    {%- for j in range(group) %}
    workgroup_sums[slot + {{ i * group + j }}u] = sum_{{ i }}_{{ first + j }};
    {%- endfor %}
    {%- endfor %}
    workgroupBarrier();
    for (var reach = {{ k_threads // 2 }}u; reach > 0u; reach /= 2u) {
        if k_thread < reach {
            for (var at = slot; at < slot + {{ thread_rows * group }}u; at += 1u) {
                workgroup_sums[at] += workgroup_sums[at + reach * {{ thread_rows * group }}u];
            }
        }
        workgroupBarrier();
    }
    // Each invocation of k finishes some of them.
    for (var at = k_thread; at < {{ thread_rows * group }}u; at += {{ k_threads }}u) {
        let row = row_first + at / {{ group }}u;
        let column = {{ short_first }} + {{ first }}u + at % {{ group }}u;
        if row < {{ long_size }} && column < {{ short_size }} {
            {%- set place = ["column", "row"] if by_rows else ["row", "column"] %}
            finish(c_base + {{ place[0] }} * params.c_row + {{ place[1] }}, {{ place[0] }}, {{ place[1] }}, workgroup_sums[slot - k_thread * {{ thread_rows * group }}u + at]);
        }
    }
    {%- endfor %}
}

{% include "matmul/part/finish" %}
