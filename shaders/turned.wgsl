{% import "part/storage" as storage -%}
// out[i] = apply(inputs[i]) where inputs lie turned: what are neighbours in memory there are no neighbours in
// the output, but along another axis, the turned one. Squares of both axes are read along the one and written
// along the other, so that both sides go by whole vectors and lines.
//
// body, buffers, reads_old, scalars, vector   as in elementwise.wgsl
// operands      "dtype/binding/way" of each input, then of the output; the way is "turned", "straight" (neighbours
//               as the output's) or "one" (one value for a square); it counts where there are vectors and tiles
// rank          dimensions: the outer ones, then the inner one, then the turned one, both in steps
// side          elements of a square along each axis
// unit          neighbours of a load and of a store: `side` of them or 2 (words of 16-bit elements, in tiles), then sizes,
//               strides, and offsets count in these but for "one"; or 1
// squares       squares of an invocation, one after another along the inner axis
// tile          1: a workgroup has one square, which passes through its memory (hardware, where an invocation's
//               neighbours should touch neighbours); 0: an invocation turns squares in its registers (software
//               adapters, where that is nothing but other names, and barriers and workgroup memory are slow)
{% set operands = operands | split -%}
{% set inputs = operands[:-1] -%}
{% set out = operands | length - 1 -%}
{% set out_dtype, out_slot, _ = operands[-1] | split("/") -%}
{% set lanes = storage.lanes(out_dtype) | int if tile else 1 -%}
{% set inner = rank - 2 -%}
{% set turned = rank - 1 -%}
struct Params {
    // Invocations, or tiles.
    count: u32,
    // The last index, or unit, along both axes.
    inner_last: u32,
    turned_last: u32,
    {%- for _ in operands %}
    offset_{{ loop.index0 }}: u32,
    {%- endfor %}
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for _ in operands %}
    {%- set operand = loop.index0 %}
    {%- for d in range(rank) %}
    stride_{{ operand }}_{{ d }}: u32,
    {%- endfor %}
    {%- endfor %}
    {%- for i in range(scalars) %}
    scalar_{{ i }}: u32,
    {%- endfor %}
}
{{ params_var }}
{% for dtype in buffers | split %}
@group(0) @binding({{ loop.index0 }}) var<storage, read_write> buffer{{ loop.index0 }}: array<{{ storage.unit_of(dtype, unit) }}>;
{%- endfor %}
{% include "part/body" %}
{# What workgroup memory holds of an element. -#}
{% macro held(dtype) -%}
{{ "u32" if dtype == "bool" or unit == 2 else storage.value(dtype) }}
{%- endmacro -%}
{%- if tile %}
{%- for operand in inputs %}
{%- set dtype, _, way = operand | split("/") %}
{%- if way == "turned" %}
// With a column between rows, so that neither way goes through one bank. Booleans as numbers: arrays of bool in
// workgroup memory come back wrong from NVIDIA's driver (580).
var<workgroup> tile_{{ loop.index0 }}: array<{{ held(dtype) }}, {{ side * (side // unit + 1) }}>;
{%- endif %}
{%- endfor %}
{%- endif %}
{# The place of an element of an operand, or of a vector of it. -#}
{% macro at(operand, inner_index, turned_index) -%}
base_{{ operand }} + {{ inner_index }} * params.stride_{{ operand }}_{{ inner }} + {{ turned_index }} * params.stride_{{ operand }}_{{ turned }}
{%- endmacro %}

@compute @workgroup_size({{ 256 if tile else 64 }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let group = workgroup.x + workgroup.y * workgroups.x;
    let index = {{ "group" if tile else "group * 64u + local_index" }};
    if index >= params.count {
        return;
    }
    {%- for _ in operands %}
    var base_{{ loop.index0 }} = params.offset_{{ loop.index0 }};
    {%- endfor %}
    var rest = index;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let along_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- if d < inner %}
    {%- for _ in operands %}
    base_{{ loop.index0 }} += along_{{ d }} * params.stride_{{ loop.index0 }}_{{ d }};
    {%- endfor %}
    {%- endif %}
    {%- endfor %}
    {%- if rank == 2 %}
    let inner_step = rest;
    {%- else %}
    let inner_step = along_{{ inner }};
    {%- for _ in operands %}
    base_{{ loop.index0 }} += rest * params.stride_{{ loop.index0 }}_0;
    {%- endfor %}
    {%- endif %}
    let turned_step = along_{{ turned }};
{%- if tile and unit == 2 %}
    {%- set words = side // 2 %}
    // Two by two elements are words of rows of the input, and of those of the output. Even rows first and then odd ones,
    // so that neither way goes through one bank.
    {
        let column = local_index % {{ words }}u;
        let row = local_index / {{ words }}u;
        let turned_unit = turned_step * {{ words }}u + column;
        {%- for j in range(side * words // 256) %}
        let row_{{ j }} = row + {{ j * 256 // words }}u;
        let inner_{{ j }} = inner_step * {{ side }}u + row_{{ j }};
        {%- for operand in inputs %}
        {%- set _, slot, way = operand | split("/") %}
        {%- if way == "turned" %}
        var seen_{{ loop.index0 }}_{{ j }} = 0u;
        if inner_{{ j }} / 2u <= params.inner_last && turned_unit <= params.turned_last {
            seen_{{ loop.index0 }}_{{ j }} = buffer{{ slot }}[{{ at(loop.index0, "inner_" ~ j, "turned_unit") }}];
        }
        {%- endif %}
        {%- endfor %}
        {%- endfor %}
        {%- for j in range(side * words // 256) %}
        {%- for operand in inputs %}
        {%- set _, _, way = operand | split("/") %}
        {%- if way == "turned" %}
        tile_{{ loop.index0 }}[(row_{{ j }} % 2u * {{ words }}u + row_{{ j }} / 2u) * {{ words + 1 }}u + column] = seen_{{ loop.index0 }}_{{ j }};
        {%- endif %}
        {%- endfor %}
        {%- endfor %}
    }
    workgroupBarrier();
    {%- for j in range(words * words // 256) %}
    {
        let column = local_index % {{ words }}u;
        let row = local_index / {{ words }}u + {{ j * 256 // words }}u;
        let inner_unit = inner_step * {{ words }}u + column;
        let turned_unit = turned_step * {{ words }}u + row;
        if inner_unit <= params.inner_last && turned_unit <= params.turned_last {
            {%- for operand in inputs %}
            {%- set _, _, way = operand | split("/") %}
            {%- if way == "turned" %}
            {%- set number = loop.index0 %}
            {%- for lane in range(2) %}
            let x{{ number }}_{{ lane }} = tile_{{ number }}[(column + {{ lane * words }}u) * {{ words + 1 }}u + row];
            {%- endfor %}
            {%- endif %}
            {%- endfor %}
            {%- for t in range(2) %}
            {
                let place = {{ at(out, "inner_unit", "(turned_unit * 2u + " ~ t ~ "u)") }};
                {%- if reads_old == 1 %}
                let old = buffer{{ out_slot }}[place];
                {%- endif %}
                {%- for operand in inputs %}
                {%- set dtype, slot, way = operand | split("/") %}
                {%- if way == "straight" %}
                let x{{ loop.index0 }} = buffer{{ slot }}[{{ at(loop.index0, "inner_unit", "(turned_unit * 2u + " ~ t ~ "u)") }}];
                {%- endif %}
                {%- endfor %}
                {%- for lane in range(2) %}
                let y_{{ lane }} = apply(
                {%- for operand in inputs %}
                {%- set dtype, slot, way = operand | split("/") %}
                {%- if way == "one" %}{{ storage.load1(dtype, "buffer" ~ slot, "base_" ~ loop.index0) }}
                {%- elif way == "turned" %}one_{{ dtype }}(x{{ loop.index0 }}_{{ lane }} >> {{ t * 16 }}u)
                {%- else %}one_{{ dtype }}(x{{ loop.index0 }} >> {{ lane * 16 }}u)
                {%- endif %}{{ ", " if not loop.last or reads_old == 1 }}
                {%- endfor %}{{ "one_" ~ out_dtype ~ "(old >> " ~ lane * 16 ~ "u)" if reads_old == 1 }});
                {%- endfor %}
                buffer{{ out_slot }}[place] = {{ storage.bits1(out_dtype, "y_0") }} | ({{ storage.bits1(out_dtype, "y_1") }} << 16u);
            }
            {%- endfor %}
        }
    }
    {%- endfor %}
{%- elif tile %}
    // Along the turned axis in, along the inner one out. All loads are under way before the first is waited for.
    {
        let column = local_index % {{ side }}u;
        let row = local_index / {{ side }}u;
        let turned_index = turned_step * {{ side }}u + column;
        {%- for j in range(side * side // 256) %}
        let inner_{{ j }} = inner_step * {{ side }}u + row + {{ j * 256 // side }}u;
        {%- for operand in inputs %}
        {%- set dtype, slot, way = operand | split("/") %}
        {%- if way == "turned" %}
        var seen_{{ loop.index0 }}_{{ j }} = {{ held(dtype) }}();
        if inner_{{ j }} <= params.inner_last && turned_index <= params.turned_last {
            let at_{{ loop.index0 }} = {{ at(loop.index0, "inner_" ~ j, "turned_index") }};
            {%- set loaded = storage.load1(dtype, "buffer" ~ slot, "at_" ~ loop.index0) %}
            seen_{{ loop.index0 }}_{{ j }} = {{ storage.bits1(dtype, loaded) if dtype == "bool" else loaded }};
        }
        {%- endif %}
        {%- endfor %}
        {%- endfor %}
        {%- for j in range(side * side // 256) %}
        {%- for operand in inputs %}
        {%- set dtype, slot, way = operand | split("/") %}
        {%- if way == "turned" %}
        tile_{{ loop.index0 }}[(row + {{ j * 256 // side }}u) * {{ side + 1 }}u + column] = seen_{{ loop.index0 }}_{{ j }};
        {%- endif %}
        {%- endfor %}
        {%- endfor %}
    }
    workgroupBarrier();
    {%- set words = side // lanes %}
    {%- for j in range(side * words // 256) %}
    {
        let row = local_index / {{ words }}u + {{ j * 256 // words }}u;
        let column = local_index % {{ words }}u * {{ lanes }}u;
        let turned_index = turned_step * {{ side }}u + row;
        let inner_index = inner_step * {{ side }}u + column;
        if inner_index <= params.inner_last && turned_index <= params.turned_last {
            let place = {{ at(out, "inner_index", "turned_index") }};
            {%- for lane in range(lanes) %}
            {%- for operand in inputs %}
            {%- set dtype, slot, way = operand | split("/") %}
            {%- if way == "turned" %}
            let a{{ loop.index0 }}_{{ lane }} = tile_{{ loop.index0 }}[(column + {{ lane }}u) * {{ side + 1 }}u + row]{{ " != 0u" if dtype == "bool" }};
            {%- else %}
            let at_{{ loop.index0 }}_{{ lane }} = {{ at(loop.index0, "(inner_index + " ~ lane ~ "u)", "turned_index") }};
            let a{{ loop.index0 }}_{{ lane }} = {{ storage.load1(dtype, "buffer" ~ slot, "at_" ~ loop.index0 ~ "_" ~ lane) }};
            {%- endif %}
            {%- endfor %}
            {%- if reads_old == 1 %}
            let old_{{ lane }} = {{ storage.load1(out_dtype, "buffer" ~ out_slot, "place + " ~ lane ~ "u") }};
            {%- endif %}
            let y_{{ lane }} = apply({% for _ in inputs %}a{{ loop.index0 }}_{{ lane }}{{ ", " if not loop.last or reads_old == 1 }}{% endfor %}{{ "old_" ~ lane if reads_old == 1 }});
            {%- endfor %}
            {%- if lanes > 1 %}
            buffer{{ out_slot }}[place / {{ lanes }}u] = {% for lane in range(lanes) %}({{ storage.bits1(out_dtype, "y_" ~ lane) }} << {{ lane * (32 // lanes) }}u){{ " | " if not loop.last }}{% endfor %};
            {%- else %}
            buffer{{ out_slot }}[place] = y_0;
            {%- endif %}
        }
    }
    {%- endfor %}
{%- elif unit == 1 %}
    // What would be past an edge is the last one once more, read before anything is written.
    {%- for i in range(side) %}
    let inner_{{ i }} = min(inner_step * {{ side }}u + {{ i }}u, params.inner_last);
    let turned_{{ i }} = min(turned_step * {{ side }}u + {{ i }}u, params.turned_last);
    {%- endfor %}
    {%- for i in range(side) %}
    {%- for t in range(side) %}
    {%- for operand in inputs %}
    {%- set dtype, slot, _ = operand | split("/") %}
    {%- set name = loop.index0 ~ "_" ~ i ~ "_" ~ t %}
    let at_{{ name }} = {{ at(loop.index0, "inner_" ~ i, "turned_" ~ t) }};
    let a{{ name }} = {{ storage.load1(dtype, "buffer" ~ slot, "at_" ~ name) }};
    {%- endfor %}
    {%- endfor %}
    {%- endfor %}
    {%- for t in range(side) %}
    {%- for i in range(side) %}
    {%- set name = i ~ "_" ~ t %}
    let place_{{ name }} = {{ at(out, "inner_" ~ i, "turned_" ~ t) }};
    let y_{{ name }} = apply({% for _ in inputs %}a{{ loop.index0 }}_{{ name }}{{ ", " if not loop.last or reads_old == 1 }}{% endfor %}{{ storage.load1(out_dtype, "buffer" ~ out_slot, "place_" ~ name) if reads_old == 1 }});
    {%- endfor %}
    {%- endfor %}
    {%- for t in range(side) %}
    {%- for i in range(side) %}
    buffer{{ out_slot }}[place_{{ i }}_{{ t }}] = y_{{ i }}_{{ t }};
    {%- endfor %}
    {%- endfor %}
{%- else %}
    {%- for square in range(squares) %}
    {
        {%- if squares > 1 %}
        // Past the last one it is that once more.
        let inner_unit = min(inner_step * {{ squares }}u + {{ square }}u, params.inner_last);
        {%- else %}
        let inner_unit = inner_step;
        {%- endif %}
        {%- for operand in inputs %}
        {%- set dtype, slot, way = operand | split("/") %}
        {%- set buffer = "buffer" ~ slot %}
        {%- set number = loop.index0 %}
        {%- if way == "one" %}
        let one_{{ number }} = vec4<{{ storage.value(dtype) }}>({{ storage.load_of(dtype, unit, buffer, "base_" ~ number) }});
        {%- elif way == "turned" %}
        {%- for k in range(side) %}
        let at_{{ number }}_{{ k }} = {{ at(number, "(inner_unit * " ~ side ~ "u + " ~ k ~ "u)", "turned_step") }};
        {{- storage.load_unit(dtype, unit, "x" ~ number ~ "_" ~ k, buffer, "at_" ~ number ~ "_" ~ k) }}
        {%- endfor %}
        {%- endif %}
        {%- endfor %}
        {%- for t in range(side) %}
        {
            {%- for operand in inputs %}
            {%- set dtype, slot, way = operand | split("/") %}
            {%- set number = loop.index0 %}
            {%- if way == "straight" %}
            let at_{{ number }} = {{ at(number, "inner_unit", "(turned_step * " ~ side ~ "u + " ~ t ~ "u)") }};
            {{- storage.load_unit(dtype, unit, "a" ~ number, "buffer" ~ slot, "at_" ~ number) }}
            {%- else %}
            {%- for half in range(side // 4) %}
            {%- if way == "one" %}
            let a{{ number }}_{{ half }} = one_{{ number }};
            {%- else %}
            let a{{ number }}_{{ half }} = vec4<{{ storage.value(dtype) }}>({% for j in range(4) %}x{{ number }}_{{ j * (side // 4) + half }}_{{ t % (side // 4) }}[{{ t // (side // 4) }}]{{ ", " if not loop.last }}{% endfor %});
            {%- endif %}
            {%- endfor %}
            {%- endif %}
            {%- endfor %}
            let place = {{ at(out, "inner_unit", "(turned_step * " ~ side ~ "u + " ~ t ~ "u)") }};
            {%- if reads_old == 1 %}
            {{- storage.load_unit(out_dtype, unit, "old", "buffer" ~ out_slot, "place") }}
            {%- endif %}
            {%- for half in range(side // 4) %}
            let y_{{ half }} = apply({% for _ in inputs %}a{{ loop.index0 }}_{{ half }}{{ ", " if not loop.last or reads_old == 1 }}{% endfor %}{{ "old_" ~ half if reads_old == 1 }}){{ storage.parted(out_dtype, unit, "inner_unit") }};
            {%- endfor %}
            buffer{{ out_slot }}[place] = {{ storage.stored_unit(out_dtype, unit, "y") }};
        }
        {%- endfor %}
    }
    {%- endfor %}
{%- endif %}
}
