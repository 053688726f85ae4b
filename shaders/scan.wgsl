// Running sums along an axis: out[line, i] = x[line, 0] + .. + x[line, i], each block of the axis by itself.
//
// A group is a block of a line, or with `columns` of as many neighbouring lines as a load has. Groups count row-major, the axis
// last, with `columns` before the dimension of the neighbouring lines.
//
// target    "sums": the sum of each group's block, in the order of groups; "first": running sums of lines that are one block;
//           "later": those of lines of several, each of which begins with what `before` has of the group before it
// element, accumulator   of x; of sums, "f32", "f64", "i32" or "u32"
// unit      1 or 4: neighbours per load, along the axis or with `columns` across lines; steps, strides and places count in them
// lanes     1: an invocation goes through a block; else so many of a workgroup share it, step by step (hardware, no `columns`)
// rank      dimensions of groups; the outermost size is not needed
//
// Up to 64 elements are summed one after the other, and up to 64 such sums. Places wrap, so strides may be negative.
{% import "part/storage" as storage -%}
{% set axis = rank - 1 - columns -%}
{# What a group sums: a number, or one of each neighbouring line. -#}
{% set State = "vec4<" ~ accumulator ~ ">" if columns and unit > 1 else accumulator -%}
{% set Step = "vec4<" ~ accumulator ~ ">" if unit > 1 else accumulator -%}
{% set along = unit if not columns else 1 -%}
struct Params {
    // Groups: the first one, one past the last.
    first: u32,
    end: u32,
    // Places of group 0.
    x_first: u32,
    out_first: u32,
    before_first: u32,
    // Groups back to the block before.
    back: u32,
    // Steps of the axis, and of a block.
    length: u32,
    block: u32,
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for name in ["x", "out"] %}
    {{ name }}_step: u32,
    {%- for d in range(rank) %}
    {{ name }}_stride_{{ d }}: u32,
    {%- endfor %}
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> x: array<{{ storage.unit(element, unit > 1) }}>;
@group(0) @binding(1) var<storage, read_write> out: array<{{ State if target == "sums" else Step }}>;
{%- if target == "later" %}
@group(0) @binding(2) var<storage, read_write> before: array<{{ State }}>;
{%- endif %}
{%- if storage.lanes(element) | int > 1 %}
{{ storage.functions(element) }}
{%- endif %}

fn loaded(at: u32) -> {{ Step }} {
    {%- set value = storage.load4(element, "x", "at") if unit > 1 else storage.load1(element, "x", "at") %}
    {%- if element == "bool" %}
    return select({{ Step }}(), {{ Step }}(1u), {{ value }});
    {%- else %}
    return {{ value }};
    {%- endif %}
}
{%- if along > 1 %}

// The first, the first two, and so on.
fn running(x: {{ Step }}) -> {{ Step }} {
    let two = x.x + x.y;
    let three = two + x.z;
    return {{ Step }}(x.x, two, three, three + x.w);
}
{%- endif %}

{# Where a group is along the axis, and in x and in out. -#}
{% macro places() %}
    var rest = group;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- endfor %}
    let index_0 = rest;
    {%- for name in ["x", "out"] if name == "x" or target != "sums" %}
    var at_{{ name }} = params.{{ name }}_first{% for d in range(rank) %} + index_{{ d }} * params.{{ name }}_stride_{{ d }}{% endfor %};
    {%- endfor %}
    let start = index_{{ axis }} * params.block;
    var base = {{ State }}();
    {%- if target == "later" %}
    if index_{{ axis }} > 0u {
        base = before[params.before_first + group - params.back];
    }
    {%- endif %}
{%- endmacro %}
{% macro store(sum) %}
    {%- if target != "sums" %}
                out[at_out] = {{ Step ~ "(base)" if along > 1 else "base" }} + {{ sum }};
    {%- endif %}
{%- endmacro %}
{%- if lanes == 1 %}
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let at = (workgroup.x + workgroup.y * workgroups.x) * 64u + local_index;
    if at >= params.end - params.first {
        return;
    }
    let group = params.first + at;
    {{- places() }}
    let steps = min(params.block, params.length - start);
    for (var done = 0u; done < steps; done += {{ 64 // along }}u) {
        let run = min(steps - done, {{ 64 // along }}u);
        var sum = {{ State }}();
        for (var step = 0u; step < run; step++) {
            let given = loaded(at_x);
            {%- if along > 1 %}
            let these = running(given);
            {{- store(Step ~ "(sum) + these") }}
            sum += these.w;
            {%- else %}
            sum += given;
            {{- store("sum") }}
            {%- endif %}
            at_x += params.x_step;
            {%- if target != "sums" %}
            at_out += params.out_step;
            {%- endif %}
        }
        base += sum;
    }
    {%- if target == "sums" %}
    out[params.out_first + group] = base;
    {%- endif %}
}
{%- else %}

var<workgroup> sums: array<{{ accumulator }}, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let at = (workgroup.x + workgroup.y * workgroups.x) * {{ 256 // lanes }}u + local_index / {{ lanes }}u;
    // None leaves before the barriers.
    let is_there = at < params.end - params.first;
    let group = params.first + select(0u, at, is_there);
    {{- places() }}
    let lane = local_index % {{ lanes }}u;
    let steps = select(0u, min(params.block, params.length - start), is_there);
    at_x += lane * params.x_step;
    {%- if target != "sums" %}
    at_out += lane * params.out_step;
    {%- endif %}
    for (var done = 0u; done < params.block; done += {{ lanes }}u) {
        let is_step = done + lane < steps;
        var these = {{ Step }}();
        if is_step {
            these = {{ "running(loaded(at_x))" if along > 1 else "loaded(at_x)" }};
        }
        var sum = these{{ ".w" if along > 1 }};
        sums[local_index] = sum;
        {%- for d in [1, 2, 4, 8, 16, 32, 64, 128] if d < lanes %}
        workgroupBarrier();
        sum += select({{ accumulator }}(), sums[local_index - min(lane, {{ d }}u)], lane >= {{ d }}u);
        workgroupBarrier();
        sums[local_index] = sum;
        {%- endfor %}
        workgroupBarrier();
        {%- if target != "sums" %}
        if is_step {
            let lower = select({{ accumulator }}(), sums[local_index - min(lane, 1u)], lane > 0u);
            {{- store((Step ~ "(lower)" if along > 1 else "lower") ~ " + these") }}
        }
        at_out += {{ lanes }}u * params.out_step;
        {%- endif %}
        base += sums[local_index | {{ lanes - 1 }}u];
        at_x += {{ lanes }}u * params.x_step;
        workgroupBarrier();
    }
    {%- if target == "sums" %}
    if is_there && lane == 0u {
        out[params.out_first + group] = base;
    }
    {%- endif %}
}
{%- endif %}
