// Normal elements of whole rows, each by one invocation or by several of a workgroup: once through for the
// row's state, once more, from the caches, for its elements; or from registers, where rows are short.
//
// norm          "softmax", "log_softmax", "layer", "rms"; op: the reduction that makes the state
// weight, bias  1: there is one, as long as a row and without gaps
// unit          neighbours of a load, 1 or 4, or 8 (as four words of twice their bits); sizes, strides and offsets count in them
// along         "reduced": they lie in a row; "kept": in neighbouring rows
// kept_rank     dimensions of rows
// lanes         invocations of a row: 1, or 4 to 256, each of which takes every `lanes`th step (hardware)
// workgroup     invocations of a workgroup
// each          rows of an invocation, which share loads of weight and bias (one lane, not held)
// held          steps that a lane has at most, all of which are held in registers (softmax, log_softmax; hardware: all norms);
//               0: any
{% from "part/states" import wide_float, is_moment, scales, fields, names, count, value, typed, one_of, operations -%}
{% from "part/normal" import normalising, of_rows, row_members -%}
{% set quads = unit // 4 if unit > 1 else 1 -%}
{% set many = "many" if unit > 1 else "one" -%}
{% set Many = "Many" if unit > 1 else "One" -%}
{% import "part/storage" as storage -%}
{% import "part/states" as states -%}
{% import "part/held" as held_rows -%}
{% set is_based = is_moment and not wide_float -%}
{% set loaded = storage.unit_of(element, unit) -%}
{% set narrow = storage.lanes(element) | int > 1 -%}
{% set T = typed(accumulator, unit) -%}
struct Params {
    rows: u32,
    steps: u32,
    {{ row_members() }}
    x_offset: u32,
    weight_offset: u32,
    bias_offset: u32,
    {%- for d in range(1, kept_rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for name in ["x", "out"] %}
    {{ name }}_step: u32,
    {%- for d in range(kept_rank) %}
    {{ name }}_stride_{{ d }}: u32,
    {%- endfor %}
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding({{ slot_x }}) var<storage, read_write> buffer{{ slot_x }}: array<{{ loaded }}>;
{%- if weight %}
@group(0) @binding({{ slot_weight }}) var<storage, read_write> buffer{{ slot_weight }}: array<{{ loaded }}>;
{%- endif %}
{%- if bias %}
@group(0) @binding({{ slot_bias }}) var<storage, read_write> buffer{{ slot_bias }}: array<{{ loaded }}>;
{%- endif %}
@group(0) @binding({{ slot_out }}) var<storage, read_write> buffer{{ slot_out }}: array<{{ "atomic<u32>" if narrow and unit == 1 else loaded }}>;
{%- if narrow %}
{{ storage.functions(element) }}
{%- endif %}

{{ of_rows() }}

{{ operations("one", 1) }}
{%- if unit > 1 %}
{{ operations("many", 4) }}
{%- endif %}
{{ normalising("one", 1) }}
{%- if unit > 1 %}
{{ normalising("many", 4) }}
{%- endif %}
{%- if lanes > 1 and held %}
{{ held_rows.shared() }}
{%- elif lanes > 1 %}
var<workgroup> shared_: array<One, 256>;
{%- endif %}

{% macro load(name, slot, index) %}
            {{- storage.load_unit(element, unit, name, "buffer" ~ slot, index) }}
{%- endmacro %}
{% macro load_step(name, step) %}
            {{- load(name, slot_x, "base + (" ~ step ~ ") * params.x_step") }}
{%- endmacro %}
{% macro store(to) %}
            {%- if narrow and unit == 1 %}
            {{- storage.store_atomic(element, "buffer" ~ slot_out, to, "y_0") }}
            {%- else %}
            buffer{{ slot_out }}[{{ to }}] = {{ storage.stored_unit(element, unit, "y") }};
            {%- endif %}
{%- endmacro %}
{# Whether the elements of a unit are in one row. -#}
{% set per_state = along == "reduced" or unit == 1 -%}
{# What the rows of an invocation have in common at a step, under names with `i`. -#}
{% macro load_shared(i, step) %}
            {%- for name, there, slot in [("weight", weight, slot_weight), ("bias", bias, slot_bias)] if there %}
            {%- set named = name ~ i %}
            {%- if per_state %}
            {{- load(named, slot, "params." ~ name ~ "_offset + " ~ step) }}
            {%- else %}
            // One for all rows: its index counts in elements.
            let {{ named }}_at = params.{{ name }}_offset + {{ step }};
            let {{ named }} = {{ T }}({{ storage.load_of(element, unit, "buffer" ~ slot, named ~ "_at") }});
            {%- for q in range(quads) %}
            let {{ named }}_{{ q }} = {{ named }};
            {%- endfor %}
            {%- endif %}
            {%- endfor %}
{%- endmacro %}
{# The element of row `r` at a step; and what becomes of it. -#}
{% macro load_element(r, i, step) %}
            {{- load("x" ~ i, slot_x, "start_" ~ r ~ ".base + " ~ step ~ " * params.x_step") }}
{%- endmacro %}
{% macro finish_element(r, i, step) %}
            {%- for q in range(quads) %}
            let y_{{ q }} = apply_{{ many }}(x{{ i }}_{{ q }}, normal_{{ r }}_{{ q }}){{ " * weight" ~ i ~ "_" ~ q if weight }}{{ " + bias" ~ i ~ "_" ~ q if bias }};
            {%- endfor %}
            {{- store("start_" ~ r ~ ".place + " ~ step ~ " * params.out_step") }}
{%- endmacro %}

struct Place {
    base: u32,
    place: u32,
}

// Where a row starts, in x and in out.
fn place_of(row: u32) -> Place {
    var base = params.x_offset;
    var place = 0u;
    var rest = row;
    {%- for d in range(1, kept_rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    base += index_{{ d }} * params.x_stride_{{ d }};
    place += index_{{ d }} * params.out_stride_{{ d }};
    rest = quotient_{{ d }};
    {%- endfor %}
    base += rest * params.x_stride_0;
    place += rest * params.out_stride_0;
    return Place(base, place);
}

@compute @workgroup_size({{ workgroup }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    {%- if lanes > 1 %}
    let row_of_lane = (workgroup.x + workgroup.y * workgroups.x) * {{ workgroup // lanes }}u + local_index / {{ lanes }}u;
    let lane = local_index % {{ lanes }}u;
    // None leaves before the barriers.
    let steps = select(0u, params.steps, row_of_lane < params.rows);
    let row = min(row_of_lane, params.rows - 1u);
    {%- else %}
    let row = ((workgroup.x + workgroup.y * workgroups.x) * {{ workgroup }}u + local_index) * {{ each }}u;
    let lane = 0u;
    let steps = params.steps;
    if row >= params.rows {
        return;
    }
    {%- endif %}
    {%- for r in range(each) %}
    // What is missing of the last ones is the last again.
    let start_{{ r }} = place_of({{ "row" if r == 0 else "min(row + " ~ r ~ "u, params.rows - 1u)" }});
    {%- endfor %}
    {%- if held %}
    let base = start_0.base;
    {%- if op == "exponential" %}
    {{- held_rows.held_exponential(load_step, held, quads, unit, per_state, lanes) }}
    {%- elif is_moment %}
    {{- held_rows.held_moment(load_step, held, quads, unit, per_state, lanes) }}
    {%- else %}
    {{- held_rows.held_square(load_step, held, unit, per_state, lanes) }}
    {%- endif %}
    {%- if per_state and unit > 1 %}
    let of_row = normal_one(state);
    {%- for q in range(quads) %}
    let normal_{{ q }} = NormalMany({{ T }}(of_row.shift), {{ T }}(of_row.factor), {{ T }}(of_row.rest));
    {%- endfor %}
    {%- else %}
    {%- for q in range(quads) %}
    let normal_{{ q }} = normal_{{ many }}(state_{{ q }});
    {%- endfor %}
    {%- endif %}
    {%- for first in range(0, held, 4) %}
    {%- set steps = range(first, first + 4 if held > 4 else held) %}
    {%- for i in steps %}
    {{- load_shared(i, (i ~ "u" if lanes == 1 and i == 0 else "min(" ~ (i ~ "u" if lanes == 1 else "lane + " ~ i * lanes ~ "u") ~ ", params.steps - 1u)")) }}
    {%- endfor %}
    {%- for i in steps %}
    {{ "if is_there_" ~ i ~ " " if i > 0 or lanes > 1 }}{
        {%- for q in range(quads) %}
        {%- if norm == "softmax" %}
        let y_{{ q }} = e{{ i }}_{{ q }} * normal_{{ q }}.factor;
        {%- else %}
        let y_{{ q }} = apply_{{ many }}(x{{ i }}_{{ q }}, normal_{{ q }}){{ " * weight" ~ i ~ "_" ~ q if weight }}{{ " + bias" ~ i ~ "_" ~ q if bias }};
        {%- endif %}
        {%- endfor %}
        {{- store("start_0.place + " ~ (i ~ "u" if lanes == 1 else "(lane + " ~ i * lanes ~ "u)") ~ " * params.out_step") }}
    }
    {%- endfor %}
    {%- endfor %}
    {%- else %}
    {%- for r in range(each) %}
    {%- for q in range(quads) %}
    var normal_{{ r }}_{{ q }} = Normal{{ Many }}();
    {%- endfor %}
    {
    let base = start_{{ r }}.base;
    {%- for q in range(quads) %}
    var total_{{ q }} = empty_{{ many }}();
    {%- if op == "square" %}
    var scale_{{ q }} = {{ T }}(1.0{{ "lf" if wide_float }});
    {%- endif %}
    {%- endfor %}
    var step = lane;
    {%- if scales %}
    // Once more, scaled, where squares went over or under.
    for (var turn = 0u; turn < 2u; turn++) {
    {%- for q in range(quads) %}
    total_{{ q }} = empty_{{ many }}();
    {%- endfor %}
    step = lane;
    {%- endif %}
    {%- if op == "exponential" %}
    let end = steps;
    {{- states.exponentials(load_step, lanes, quads, unit) }}
    {%- else %}
    while step < steps {
        let block_end = min(step + {{ 64 * lanes }}u, steps);
        {%- for q in range(quads) %}
        var part_{{ q }} = empty_{{ many }}();
        {%- endfor %}
        {%- if op == "square" %}
        {%- for q in range(quads) %}
        part_{{ q }}.b = scale_{{ q }};
        {%- endfor %}
        {%- elif is_based %}
        {
            // Distances from a number next to the mean, so that little is lost where all are far from 0.
            {{- load("near", slot_x, "base + step * params.x_step") }}
            {%- for q in range(quads) %}
            part_{{ q }}.d = near_{{ q }};
            {%- endfor %}
        }
        while step + {{ 3 * lanes }}u < block_end {
            {%- for i in range(4) %}
            {{- load("x" ~ i, slot_x, "base + (step + " ~ i * lanes ~ "u) * params.x_step") }}
            {%- for q in range(quads) %}
            part_{{ q }} = take_{{ many }}(part_{{ q }}, x{{ i }}_{{ q }}, {{ typed("u32", unit) }}(0u));
            {%- endfor %}
            {%- endfor %}
            {%- for q in range(quads) %}
            part_{{ q }} = based_{{ many }}(part_{{ q }});
            {%- endfor %}
            step += {{ 4 * lanes }}u;
        }
        {%- endif %}
        while step < block_end {
            {{- load("x", slot_x, "base + step * params.x_step") }}
            {%- for q in range(quads) %}
            part_{{ q }} = take_{{ many }}(part_{{ q }}, x_{{ q }}, {{ typed("u32", unit) }}(0u));
            {%- endfor %}
            step += {{ lanes }}u;
        }
        {%- for q in range(quads) %}
        total_{{ q }} = join_{{ many }}(total_{{ q }}, part_{{ q }});
        {%- endfor %}
    }
    {%- endif %}
    {%- if scales %}
    {{- states.scaling(quads, unit, along == "kept") }}
    }
    {%- endif %}
    {%- if along == "kept" and unit > 1 %}
    {%- for q in range(quads) %}
    normal_{{ r }}_{{ q }} = normal_many(total_{{ q }});
    {%- endfor %}
    {%- else %}
    {%- if unit > 1 %}
    {%- if quads == 2 %}
    total_0 = join_many(total_0, total_1);
    {%- endif %}
    {%- for i in range(4) %}
    let total_of_{{ i }} = {{ one_of("total_0", i) }};
    {%- endfor %}
    var total = join_one(join_one(total_of_0, total_of_1), join_one(total_of_2, total_of_3));
    {%- else %}
    var total = total_0;
    {%- endif %}
    {%- if lanes > 1 %}
    shared_[local_index] = total;
    {{- states.join_lanes("shared_", "join_one(x, y)", lanes) }}
    workgroupBarrier();
    total = shared_[local_index - lane];
    {%- endif %}
    let of_row = normal_one(total);
    {%- for q in range(quads) %}
    normal_{{ r }}_{{ q }} = Normal{{ Many }}({{ T }}(of_row.shift), {{ T }}(of_row.factor), {{ T }}(of_row.rest));
    {%- endfor %}
    {%- endif %}

    }
    {%- endfor %}

    var step = lane;
    {%- if lanes > 1 %}
    // Four steps' loads are under way before the first store, which might change what they read as far as a compiler knows.
    while step + {{ 3 * lanes }}u < steps {
        {%- for i in range(4) %}
        let step_{{ i }} = step + {{ i * lanes }}u;
        {{- load_shared(i, "step_" ~ i) }}
        {{- load_element(0, i, "step_" ~ i) }}
        {%- endfor %}
        {%- for i in range(4) %}
        {
        {{- finish_element(0, i, "step_" ~ i) }}
        }
        {%- endfor %}
        step += {{ 4 * lanes }}u;
    }
    {%- endif %}
    while step < steps {
        {
            {{- load_shared("", "step") }}
            {%- for r in range(each) %}
            {
            {{- load_element(r, "", "step") }}
            {{- finish_element(r, "", "step") }}
            }
            {%- endfor %}
        }
        step += {{ lanes }}u;
    }
    {%- endif %}
}
