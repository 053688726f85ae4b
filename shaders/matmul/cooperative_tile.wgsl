{{ enables }}
enable wgpu_cooperative_matrix;
// C = A B for GPUs with cooperative matrices (tensor cores): tiles of both operands pass through
// workgroup memory, as they lie, and subgroups multiply square matrices out of it. Sums are kept in f32, and go
// through workgroup memory to C, so that all edges are guarded.
//
// Requires feature EXPERIMENTAL_COOPERATIVE_MATRIX with these factors and f32 sums, and subgroups of
// exactly `lanes` invocations (minimum size = maximum).
//
// tile_m, tile_n, tile_k   block of C per workgroup, and the depth of one step
// edge                     rows and columns of a cooperative matrix: 8 or 16
// subgroups_m, subgroups_n how the block is divided between subgroups
// staged                   what is multiplied: f16, or f32
// whole                    1: k is a whole number of steps
// ahead                    steps whose loads are under way while one is summed: 1 or 2
// fast_a ("m" or "k"), fast_b ("n" or "k")   the axis along which neighbours lie in memory, and loads of 4 or 8 run
{% set quads_m = tile_m // 4 -%}
{% set quads_n = tile_n // 4 -%}
{# Matrices of a subgroup. -#}
{% set rows = tile_m // subgroups_m // edge -%}
{% set columns = tile_n // subgroups_n // edge -%}
{% from "matmul/part/staged" import load_start, load_declare, load_next, load_end, load_keep -%}
{# Whether a tile lies in workgroup memory along k; and 16 bytes that keep its rows off one memory bank. -#}
{% set along_k_a = vector_a > 1 and fast_a == "k" -%}
{% set along_k_b = vector_b > 1 and fast_b == "k" -%}
{% set pad = 2 if staged == "f16" else 1 -%}
{% set pitch_a = (tile_k // 4 if along_k_a else quads_m) + pad -%}
{% set pitch_b = (tile_k // 4 if along_k_b else quads_n) + pad -%}
{% set size_a = pitch_a * (tile_m if along_k_a else tile_k) -%}
{% set size_b = pitch_b * (tile_n if along_k_b else tile_k) -%}
{% set quads = edge * edge // 4 -%}
{% set matrix = "coop_mat" ~ edge ~ "x" ~ edge -%}
{% set band = 8 -%}
{% set quad = "vec4<" ~ accumulator ~ ">" %}
{% include "matmul/part/operands" %}

var<workgroup> tile_a: array<vec4<{{ staged }}>, {{ size_a }}>;
var<workgroup> tile_b: array<vec4<{{ staged }}>, {{ size_b }}>;
// One matrix of sums of each subgroup, on its way to C.
var<workgroup> sums: array<{{ quad }}, {{ quads * subgroups_m * subgroups_n }}>;

{% set sets = ["next", "later"] if ahead == 2 else ["next"] -%}
{% macro load_both(set, k) %}
    {{- load_next("a", slot_a, "params.a_column", vector_a, fast_a, quads_m, k, "", set) }}
    {{- load_next("b", slot_b, "params.b_row", vector_b, fast_b, quads_n, k, "", set) }}
{%- endmacro -%}
@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
    @builtin(subgroup_id) subgroup_id: u32,
) {
{% include "matmul/part/tile" %}
    {{- load_start("a", "tile_row", "params.m", "params.a_row", vector_a, fast_a, quads_m) }}
    {{- load_start("b", "tile_column", "params.n", "params.b_column", vector_b, fast_b, quads_n) }}

    // Never more than there are: whatever a driver does, what follows stays in workgroup memory.
    let subgroup = min(subgroup_id, {{ subgroups_m * subgroups_n - 1 }}u);
    let local_m = subgroup / {{ subgroups_n }}u * {{ rows * edge }}u;
    let local_n = subgroup % {{ subgroups_n }}u * {{ columns * edge }}u;
    {%- for i in range(rows) %}
    {%- for j in range(columns) %}
    var sum_{{ i }}_{{ j }} = {{ matrix }}<{{ accumulator }}, C>();
    {%- endfor %}
    {%- endfor %}
    {%- for set in sets %}
    {{- load_declare("a", vector_a, fast_a, quads_m, set) }}
    {{- load_declare("b", vector_b, fast_b, quads_n, set) }}
    {%- endfor %}

    var k = 0u;
    {%- for set in sets %}
    {{- load_both(set, loop.index0 * tile_k ~ "u") }}
    {%- endfor %}
    while k < params.k {
        {%- for set in sets %}
        {%- if not loop.first %}
        if k >= params.k {
            break;
        }
        {%- endif %}
        {
        {%- if not whole %}
        if params.k - k < {{ tile_k }}u {
            {{- load_end("a", vector_a, fast_a, quads_m, set) }}
            {{- load_end("b", vector_b, fast_b, quads_n, set) }}
        }
        {%- endif %}
        {{- load_keep("a", pitch_a, vector_a, fast_a, quads_m, false, set) }}
        {{- load_keep("b", pitch_b, vector_b, fast_b, quads_n, false, set) }}
        workgroupBarrier();

        // The loads of steps to come are under way while this step is summed.
        k += {{ tile_k }}u;
        {{- load_both(set, "k" ~ (" + " ~ tile_k ~ "u" if ahead == 2 else "")) }}
        let a_first = local_m{{ " * " ~ pitch_a ~ "u" if along_k_a else " / 4u" }};
        let b_first = local_n{{ " * " ~ pitch_b ~ "u" if along_k_b else " / 4u" }};
        {%- for step in range(tile_k // edge) %}
        {
            {%- for i in range(rows) %}
            {%- set at = i * edge * pitch_a + step * edge // 4 if along_k_a else step * edge * pitch_a + i * edge // 4 %}
            let a_{{ i }} = coopLoad{{ "T" if along_k_a }}<{{ matrix }}<{{ staged }}, A>>(&tile_a[a_first + {{ at }}u], {{ pitch_a }}u);
            {%- endfor %}
            {%- for j in range(columns) %}
            {%- set at = j * edge * pitch_b + step * edge // 4 if along_k_b else step * edge * pitch_b + j * edge // 4 %}
            let b_{{ j }} = coopLoad{{ "T" if not along_k_b }}<{{ matrix }}<{{ staged }}, B>>(&tile_b[b_first + {{ at }}u], {{ pitch_b }}u);
            {%- endfor %}
            {%- for i in range(rows) %}
            {%- for j in range(columns) %}
            sum_{{ i }}_{{ j }} = coopMultiplyAdd(a_{{ i }}, b_{{ j }}, sum_{{ i }}_{{ j }});
            {%- endfor %}
            {%- endfor %}
        }
        {%- endfor %}
        workgroupBarrier();
        }
        {%- endfor %}
    }
    {%- for i in range(rows) %}
    {%- for j in range(columns) %}
    {
        coopStoreT(sum_{{ i }}_{{ j }}, &sums[subgroup * {{ quads }}u], {{ edge // 4 }}u);
        workgroupBarrier();
        {%- for part in range(quads // lanes) %}
        {
            // Whoever's they are: no driver says which invocations a subgroup has.
            let at = local_index + {{ part * threads }}u;
            let whose = at / {{ quads }}u;
            let row = tile_row + whose / {{ subgroups_n }}u * {{ rows * edge }}u + {{ i * edge }}u + at % {{ quads }}u / {{ edge // 4 }}u;
            let column = tile_column + whose % {{ subgroups_n }}u * {{ columns * edge }}u + {{ j * edge }}u + at % {{ edge // 4 }}u * 4u;
            if row < params.m {
                store(c_base + row * params.c_row, row, column, sums[at]);
            }
        }
        {%- endfor %}
        workgroupBarrier();
    }
    {%- endfor %}
    {%- endfor %}
}

{% include "matmul/part/store" %}
