// Each output is what `op` makes of the elements along the reduced dimensions, over any strides.
//
// op            "sum" (and mean), "square" (norm), "product", "extreme" (max, min), "place" (argmax,
//               argmin), "moment" (var, std), "exponential" (logsumexp), "truth" (any, all)
// element       dtype of values; "u32", "bits16", "bits8": only their bits count
// accumulator   type of a state's first field
// result        what is written in the end; narrower than a word, units are written in whole words, single
//               ones by atomics
// source        "values": elements; "states": partial results of a pass before
// target        "result", or "state": partial results
// unit          neighbours of a load: 1, 4 or 8 (as four words of twice their bits); sizes, strides and
//               offsets of the source count in them
// along         "reduced" or "kept": the dimensions along which these neighbours lie
// kept_rank, reduced_rank   dimensions after merging; the outermost sizes are not needed
// held          steps that a lane has at most, without a loop (one chunk, no tail; one lane on software adapters, whose loops go
//               through their bodies once more than there are steps; on hardware exponentials and moments alone, by rows); 0: any
// lanes         invocations that share a chunk of steps, each taking every `lanes`th
// tree          "rows", "columns": lanes are joined in workgroup memory (hardware), neighbours are lanes of one output
//               or those of neighbouring ones, so that they read neighbours either way; "none": each writes a state of its own
// placed        1: outputs have strides (pieces of large tensors), and states may be joined with those
//               there; 0: they are counted
//
// A chain of roundings is 64 long in a block, as long over the blocks (the plan bounds the steps),
// and short over lanes and chunks.
{% from "part/states" import is_arg, is_extreme, is_moment, scales, wide_float, divides, roots, fields, names, count, span, word, value, typed, stored, restored, one_of, operations -%}
{% import "part/storage" as storage -%}
{% import "part/states" as states -%}
{% import "part/held" as held_rows -%}
{% set again = scales and source == "values" -%}
{% set is_based = is_moment and source == "values" and not wide_float -%}
{% set quads = unit // 4 if unit > 1 else 1 -%}
{% set wide = unit if along == "kept" else 1 -%}
{# Whether a unit's elements are all of one output. -#}
{% set per_state = along == "reduced" or unit == 1 -%}
{% set is_tree = tree != "none" -%}
{# Whether all numbers are in registers, and their state is made in several passes over them. -#}
{% set in_passes = held and op in ["exponential", "moment"] and not wide_float -%}
{% set workgroup = 256 if is_tree else 64 -%}
{# From a lane to the next. -#}
{% set pitch = 256 // lanes if tree == "columns" else 1 -%}
{# Steps of rows far apart, in words of 64 bits: software adapters alone. -#}
{% set is_far = source == "values" and along == "kept" and unit == 8 and element == "f32" -%}
{% set words = source == "states" and count > 1 -%}
struct Params {
    // Of the launch, in units where they are kept.
    outputs: u32,
    chunks: u32,
    per_chunk: u32,
    // Whole units, then elements beyond them (along "reduced" in one dimension).
    steps: u32,
    tail: u32,
    in_offset: u32,
    out_offset: u32,
    // From the states of a chunk's lane to those of the next, in outputs.
    pitch: u32,
    {%- if placed %}
    // Not 0: with the state that is there.
    joins: u32,
    {%- endif %}
    {%- if is_extreme %}
    // All bits of numbers that are best when least, else none.
    least: u32,
    {%- endif %}
    {%- if op == "truth" %}
    // 1: whether none is false; and the bits of an element that count.
    flip: u32,
    mask: u32,
    {%- endif %}
    {%- if roots %}
    // Not 0: the result's square root.
    root: u32,
    {%- endif %}
    {%- if divides %}
    // What results are divided by, its lower half first.
    divisor_low: u32,
    divisor_high: u32,
    {%- endif %}
    {%- if is_arg and source == "values" %}
    // Which element of its output the first is, and steps along each dimension.
    first: u32,
    {%- for d in range(reduced_rank) %}
    weight_{{ d }}: u32,
    {%- endfor %}
    {%- endif %}
    {%- for d in range(1, kept_rank) %}
    kept_size_{{ d }}: u32,
    {%- endfor %}
    {%- for d in range(kept_rank) %}
    kept_stride_{{ d }}: u32,
    {%- endfor %}
    {%- if placed %}
    {%- for d in range(kept_rank) %}
    out_stride_{{ d }}: u32,
    {%- endfor %}
    {%- endif %}
    {%- for d in range(1, reduced_rank) %}
    reduced_size_{{ d }}: u32,
    {%- endfor %}
    {%- for d in range(reduced_rank) %}
    reduced_stride_{{ d }}: u32,
    {%- endfor %}
}
{{ params_var }}

{% set loaded = storage.unit_of(element, unit) if source == "values" else typed(word, unit) -%}
{% set written = result if target == "result" else word -%}
{# Outputs written together; states of several fields go one by one. -#}
{% set together = 4 if wide > 1 and (target == "result" or count == 1) else 1 -%}
@group(0) @binding(0) var<storage, read_write> source: array<{{ loaded }}>;
{% set narrow = storage.lanes(written) | int > 1 -%}
{% set kept_in = "atomic<u32>" if narrow and together == 1 else storage.unit(written, together == 4) -%}
@group(0) @binding(1) var<storage, read_write> target_: array<{{ kept_in }}>;

{% for dtype in ["f16", "bf16", "bool", "bits16", "bits8"] -%}
{% if dtype == written or dtype == element and source == "values" -%}
{{ storage.functions(dtype) }}
{% endif -%}
{% endfor %}

{% if wide_float -%}
fn lowest() -> f64 {
    // Not a constant: those may not be infinite.
    return f64(bitcast<f32>((params.steps & 0u) | 0xff800000u));
}
{%- endif %}
{% if divides -%}
fn divisor() -> {{ accumulator }} {
    return {{ accumulator }}(params.divisor_low) + {{ accumulator }}(params.divisor_high) * {{ accumulator }}(4294967296.0{{ "lf" if wide_float }});
}
{%- endif %}

{{ operations("one", 1) }}
{%- set many = "many" if unit > 1 else "one" %}
{%- set Many = "Many" if unit > 1 else "One" %}
{%- if unit > 1 %}
{{ operations("many", 4) }}
{%- endif %}
{%- if in_passes and is_moment %}
fn length() -> f32 {
    return f32(params.steps{{ " * " ~ unit ~ "u" if along == "reduced" and unit > 1 }});
}
{%- endif %}
{%- if is_tree and in_passes %}
{{ held_rows.shared() }}
{%- elif is_tree %}
var<workgroup> shared_: array<{{ "Many" if wide > 1 else "One" }}, 256>;
{%- endif %}

{% macro load(name, index) -%}
{% if source == "values" %}{{ storage.load_unit(element, unit, name, "source", index) }}{% else %}
            let {{ name }}_0 = source[{{ index }}];
{%- endif %}
{%- endmacro -%}
{% macro load_step(name, step) -%}
{{ load(name, "base + at(" ~ step ~ ")") }}
{%- endmacro -%}
{# Lanes of a software adapter's vector each see an element, the first of their own, of another one of the eight -#}
{# steps to come, twice: memory is waited for once then, not step by step. -#}
{% macro ahead() %}
            {%- for apart in [0, 4] %}
            let ahead_{{ apart }} = step + 8u + ((local_index + {{ apart }}u) & 7u);
            seen_0.below.x = max(seen_0.below.x, u32(source[base + at(min(ahead_{{ apart }}, end - 1u))].x));
            {%- endfor %}
{%- endmacro -%}
{# A step's elements, or a state, into `part`_0 and, of eight, `part`_1 with every other one. -#}
{% macro absorb(part, step) %}
        {
            {%- if words %}
            let at_state = (base + at({{ step }})) * {{ span }}u;
            let x = One({% for field in fields %}{{ restored(field, "source[at_state + " ~ loop.index0 ~ "u]") }}{{ ", " if not loop.last }}{% endfor %});
            {{ part }}_0 = join_one({{ part }}_0, x);
            {%- else %}
            {%- if is_arg %}
            let from_first = position({{ step }});
            {%- endif %}
            {{- load("x", "base + at(" ~ step ~ ")") }}
            {%- for q in range(quads) %}
            {%- if source == "states" %}
            {{ part }}_{{ q }} = join_{{ many }}({{ part }}_{{ q }}, {{ Many }}(x_{{ q }}));
            {%- else %}
            {{ part }}_{{ q }} = take_{{ many }}({{ part }}_{{ q }}, x_{{ q }}, {{ place_of(q) }});
            {%- endif %}
            {%- endfor %}
            {%- endif %}
        }
{%- endmacro -%}
{# Empty states as `part`_0 and _1, before a step. -#}
{% macro begin(step) %}
        {%- for q in range(quads) %}
        var part_{{ q }} = empty_{{ many }}();
        {%- endfor %}
        {%- if op == "square" and source == "values" %}
        {%- for q in range(quads) %}
        part_{{ q }}.b = scale_{{ q }};
        {%- endfor %}
        {%- elif is_based %}
        {
            // Distances from a number next to the mean, so that little is lost where all are far from 0.
            {{- load("near", "base + at(" ~ step ~ ")") }}
            {%- for q in range(quads) %}
            part_{{ q }}.d = near_{{ q }};
            {%- endfor %}
        }
        {%- endif %}
{%- endmacro -%}
{# The elements of the `i`th step into `part`_0 and _1; where there are not so many, nothing changes. -#}
{% macro absorb_held(i) %}
        {
            let step = {{ "0u" if i == 0 else "min(" ~ i ~ "u, end - 1u)" }};
            {%- if is_arg %}
            let from_first = position(step);
            {%- endif %}
            {{- load("x", "base + at(step)") }}
            {%- for q in range(quads) %}
            let taken_{{ q }} = take_{{ many }}(part_{{ q }}, x_{{ q }}, {{ place_of(q) }});
            {%- if i == 0 %}
            part_{{ q }} = taken_{{ q }};
            {%- else %}
            part_{{ q }} = {{ Many }}(
                {%- for field in fields %}
                {%- set name = names[loop.index0] %}select(part_{{ q }}.{{ name }}, taken_{{ q }}.{{ name }}, {{ i }}u < end){{ ", " if not loop.last }}
                {%- endfor %});
            {%- endif %}
            {%- endfor %}
        }
{%- endmacro -%}
{# Which elements of their outputs a vector holds. -#}
{% macro place_of(q) -%}
{% if not is_arg %}{{ typed("u32", unit) }}(0u){% elif unit == 1 %}from_first{% elif along == "kept" %}vec4<u32>(from_first){% elif unit == 4 %}from_first + vec4<u32>(0u, 1u, 2u, 3u){% else %}from_first + vec4<u32>({{ q }}u, {{ q + 2 }}u, {{ q + 4 }}u, {{ q + 6 }}u){% endif %}
{%- endmacro -%}

// Where a step's elements are, from those of the output's first.
fn at(step: u32) -> u32 {
    {%- if reduced_rank == 1 %}
    return step * params.reduced_stride_0;
    {%- else %}
    var rest = step;
    var place = 0u;
    {%- for d in range(1, reduced_rank) | reverse %}
    let quotient_{{ d }} = rest / params.reduced_size_{{ d }};
    place += (rest - quotient_{{ d }} * params.reduced_size_{{ d }}) * params.reduced_stride_{{ d }};
    rest = quotient_{{ d }};
    {%- endfor %}
    return place + rest * params.reduced_stride_0;
    {%- endif %}
}
{%- if is_arg and source == "values" %}

// Which element of its output the first of a step is.
fn position(step: u32) -> u32 {
    var rest = step;
    var place = params.first;
    {%- for d in range(1, reduced_rank) | reverse %}
    let quotient_{{ d }} = rest / params.reduced_size_{{ d }};
    place += (rest - quotient_{{ d }} * params.reduced_size_{{ d }}) * params.weight_{{ d }};
    rest = quotient_{{ d }};
    {%- endfor %}
    return place + rest * params.weight_0;
}
{%- endif %}

@compute @workgroup_size({{ workgroup }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let invocation = (workgroup.x + workgroup.y * workgroups.x) * {{ workgroup }}u + local_index;
    {%- if tree == "columns" %}
    let lane = local_index / {{ pitch }}u;
    let group = invocation / 256u * {{ pitch }}u + local_index % {{ pitch }}u;
    {%- else %}
    let lane = invocation % {{ lanes }}u;
    let group = invocation / {{ lanes }}u;
    {%- endif %}
    let output = group % params.outputs;
    let chunk = group / params.outputs;
    {%- if is_tree %}
    // None leaves before the barriers.
    let is_there = chunk < params.chunks;
    {%- else %}
    if chunk >= params.chunks {
        return;
    }
    {%- endif %}
    var base = params.in_offset;
    {%- if placed %}
    var place = params.out_offset;
    {%- else %}
    let place = params.out_offset + output;
    {%- endif %}
    var rest = output;
    {%- for d in range(1, kept_rank) | reverse %}
    let quotient_{{ d }} = rest / params.kept_size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.kept_size_{{ d }};
    base += index_{{ d }} * params.kept_stride_{{ d }};
    {%- if placed %}
    place += index_{{ d }} * params.out_stride_{{ d }};
    {%- endif %}
    rest = quotient_{{ d }};
    {%- endfor %}
    base += rest * params.kept_stride_0;
    {%- if placed %}
    place += rest * params.out_stride_0;
    {%- endif %}

    {%- if held %}
    let end = params.steps;
    {%- if is_tree %}
    let steps = select(0u, params.steps, is_there);
    {%- endif %}
    {%- else %}
    let first = chunk * params.per_chunk;
    {%- if is_tree %}
    let end = select(0u, min(first + params.per_chunk, params.steps), is_there);
    {%- else %}
    let end = min(first + params.per_chunk, params.steps);
    {%- endif %}
    {%- endif %}
    {%- if in_passes %}
    {%- if is_moment %}
    {{- held_rows.held_moment(load_step, held, quads, unit, per_state, lanes) }}
    {%- else %}
    {{- held_rows.held_exponential(load_step, held, quads, unit, per_state, lanes) }}
    {%- endif %}
    {%- if per_state and unit > 1 %}
    let total = state;
    {%- else %}
    {%- for q in range(quads) %}
    let total_{{ q }} = state_{{ q }};
    {%- endfor %}
    {%- endif %}
    {%- else %}
    {%- for q in range(quads) %}
    var total_{{ q }} = empty_{{ many }}();
    {%- endfor %}
    {%- if op == "square" and source == "values" %}
    {%- for q in range(quads) %}
    var scale_{{ q }} = {{ typed(accumulator, unit) }}(1.0{{ "lf" if wide_float }});
    {%- endfor %}
    {%- endif %}
    {%- if again %}
    // Once more, scaled, where squares went over or under.
    for (var turn = 0u; turn < 2u; turn++) {
    {%- for q in range(quads) %}
    total_{{ q }} = empty_{{ many }}();
    {%- endfor %}
    {%- endif %}
    {%- if held %}
    {{- begin("0u") }}
    {%- for i in range(held) %}
    {{- absorb_held(i) }}
    {%- endfor %}
    {%- for q in range(quads) %}
    total_{{ q }} = part_{{ q }};
    {%- endfor %}
    {%- else %}
    var step = first + lane;
    {%- if op == "exponential" and source == "values" %}
    {{- states.exponentials(load_step, lanes, quads, unit, ahead if is_far else "", is_tree and element in ["f16", "bf16"]) }}
    {%- else %}
    while step < end {
        let block_end = min(step + {{ 64 * lanes }}u, end);
        {{- begin("step") }}
        while step + {{ 3 * lanes }}u < block_end {
            {%- for i in range(4) %}
            {{- absorb("part", "step + " ~ i * lanes ~ "u") }}
            {%- endfor %}
            {%- if is_based %}
            {%- for q in range(quads) %}
            part_{{ q }} = based_{{ many }}(part_{{ q }});
            {%- endfor %}
            {%- endif %}
            step += {{ 4 * lanes }}u;
        }
        while step < block_end {
            {{- absorb("part", "step") }}
            step += {{ lanes }}u;
        }
        {%- for q in range(quads) %}
        total_{{ q }} = join_{{ many }}(total_{{ q }}, part_{{ q }});
        {%- endfor %}
    }
    {%- endif %}
    {%- endif %}
    {%- if again %}
    {{- states.scaling(quads, unit, along == "kept") }}
    }
    {%- endif %}
    {%- endif %}
    {%- set is_total = in_passes and unit > 1 and per_state %}
    {%- if along == "reduced" and unit > 1 and not is_total %}
    {%- if quads == 2 %}
    total_0 = join_many(total_0, total_1);
    {%- endif %}
    {%- for i in range(4) %}
    let total_of_{{ i }} = {{ one_of("total_0", i) }};
    {%- endfor %}
    var total = join_one(join_one(total_of_0, total_of_1), join_one(total_of_2, total_of_3));
    {%- if reduced_rank == 1 and not held %}
    if params.tail > 0u && lane == 0u && chunk + 1u == params.chunks {
        {{- load("x", "base + params.steps") }}
        {%- if is_based %}
        if total.a == 0.0 {
            // It has no whole step: a state without a base would keep its mean from 0.
            total.d = x_0[0];
        }
        {%- endif %}
        {%- for i in range(unit - 1) %}
        {%- set element_of_x = "x_" ~ i % quads ~ "[" ~ i // quads ~ "]" %}
        if {{ i }}u < params.tail {
            {%- if source == "states" %}
            total = join_one(total, One({{ element_of_x }}));
            {%- else %}
            {%- if op == "square" and not wide_float %}
            // Where there was no whole step its scale is that of nothing.
            total = join_one(total, single_one({{ element_of_x }}));
            {%- else %}
            total = take_one(total, {{ element_of_x }}, {{ "position(params.steps) + " ~ i ~ "u" if is_arg else "0u" }});
            {%- endif %}
            {%- endif %}
        }
        {%- endfor %}
    }
    {%- endif %}
    {%- elif wide == 1 and not is_total %}
    var total = total_0;
    {%- endif %}
    {%- if is_tree %}
    {%- if not in_passes %}
    {%- set total_names = ["total_0", "total_1"] if wide == 8 else ["total_0"] if wide == 4 else ["total"] %}
    {%- for name in total_names %}
    {%- if not loop.first %}
    workgroupBarrier();
    {%- endif %}
    shared_[local_index] = {{ name }};
    {{- states.join_lanes("shared_", "join_" ~ ("many" if wide > 1 else "one") ~ "(x, y)", lanes, pitch) }}
    {{ name }} = shared_[local_index];
    {%- endfor %}
    {%- endif %}
    if lane > 0u || !is_there {
        return;
    }
    {%- endif %}
    {%- if target == "state" %}
    let to = place + {{ "chunk" if is_tree else "(chunk * " ~ lanes ~ "u + lane)" }} * params.pitch;
    {%- else %}
    let to = place;
    {%- endif %}
    {%- if target == "result" and wide == 1 %}
    {%- if narrow %}
    {{- storage.store_atomic(written, "target_", "to", "finish_one(total)") }}
    {%- else %}
    target_[to] = finish_one(total);
    {%- endif %}
    {%- elif together == 4 %}
    {%- for q in range(quads) %}
    let done_{{ q }} = {{ "finish_many(total_" ~ q ~ ")" if target == "result" else "total_" ~ q ~ ".a" }};
    {%- endfor %}
    {%- if unit == 8 %}
    {%- set Four = "vec4<" ~ storage.value(written) ~ ">" %}
    target_[to * 2u] = {{ storage.stored4(written, Four ~ "(done_0.x, done_1.x, done_0.y, done_1.y)") }};
    target_[to * 2u + 1u] = {{ storage.stored4(written, Four ~ "(done_0.z, done_1.z, done_0.w, done_1.w)") }};
    {%- else %}
    target_[to] = {{ storage.stored4(written, "done_0") }};
    {%- endif %}
    {%- elif wide > 1 %}
    {%- for i in range(wide) %}
    {%- for field in fields %}
    target_[(to * {{ wide }}u + {{ i }}u) * {{ span }}u + {{ loop.index0 }}u] = {{ stored(field, "total_" ~ i % quads ~ "." ~ names[loop.index0] ~ "[" ~ i // quads ~ "]") }};
    {%- endfor %}
    {%- endfor %}
    {%- else %}
    {%- if placed %}
    if params.joins != 0u {
        let before = One({% for field in fields %}{{ restored(field, "target_[to * " ~ span ~ "u + " ~ loop.index0 ~ "u]") }}{{ ", " if not loop.last }}{% endfor %});
        total = join_one(before, total);
    }
    {%- endif %}
    {%- for field in fields %}
    target_[to * {{ span }}u + {{ loop.index0 }}u] = {{ stored(field, "total." ~ names[loop.index0]) }};
    {%- endfor %}
    {%- endif %}
}
