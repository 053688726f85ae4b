// Normal elements from those of x and the states of their rows, over any strides: out[i] =
// apply(x[i], state[i]) * weight[i] + bias[i].
//
// norm          "softmax", "log_softmax", "layer", "rms"; op: the reduction that made the states
// weight, bias  1: there is one
// vector        4, or 8 (as four words of twice their bits): neighbours of the innermost dimension per step; then
//               every outer stride, the offsets and the inner size count in them
// along         with a vector: "reduced": they lie in a row and have one state; "kept": in as many rows,
//               whose states are neighbours, with one weight and bias
// grouped       1, with a vector: an invocation has several steps of one state, four that lie a quarter apart along the
//               rows, or as many as `params.each` one after the other down the columns; 0: four steps a workgroup apart
// backwards     1, grouped: the last elements first, which caches have from the pass that made the states (hardware)
// strided_out   1: out has an offset and strides as the others; 0: it is written at i
{% from "part/states" import wide_float, fields, names, count, span, word, value, typed, restored, operations -%}
{% from "part/normal" import normalising, of_rows, row_members -%}
{% import "part/storage" as storage -%}
{% set narrow = storage.lanes(element) | int > 1 -%}
{# Four states are whole vectors of words. -#}
{% set by_fours = vector > 1 and along == "kept" and not wide_float -%}
{% set quads = vector // 4 if vector > 1 else 1 -%}
{% set loaded = storage.unit_of(element, vector) -%}
{% set inputs = ["x"] + (["weight"] if weight else []) + (["bias"] if bias else []) -%}
{% set walked = inputs + (["out"] if strided_out else []) + ["state"] -%}
{% set per_row = 1 if along == "reduced" else 0 -%}
{% set inner = {"x": 1, "state": 1 - per_row, "weight": per_row, "bias": per_row, "out": 1} -%}
{% set slots = {"x": slot_x, "state": slot_state, "weight": slot_weight, "bias": slot_bias, "out": slot_out} -%}
struct Params {
    count: u32,
    {{ row_members() }}
    {%- if grouped %}
    // Steps along the axis of a group, and groups of them.
    along: u32,
    groups: u32,
    {%- if along == "kept" %}
    each: u32,
    {%- endif %}
    {%- endif %}
    {%- for name in walked %}
    {{ name }}_offset: u32,
    {%- endfor %}
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for name in walked %}
    {%- for d in range(rank) %}
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
@group(0) @binding({{ slot_out }}) var<storage, read_write> buffer{{ slot_out }}: array<{{ "atomic<u32>" if narrow and vector == 1 else loaded }}>;
@group(0) @binding({{ slot_state }}) var<storage, read_write> buffer{{ slot_state }}: array<{{ "vec4<" ~ word ~ ">" if by_fours else word }}>;
{%- if narrow %}
{{ storage.functions(element) }}
{%- endif %}

{{ of_rows() }}

{{ operations("one", 1) }}
{{ normalising("one", 1) }}
{%- if vector > 1 %}
{{ operations("many", 4) }}
{{ normalising("many", 4) }}
{%- endif %}
{% set many = "many" if vector > 1 else "one" -%}
{% set Many = "Many" if vector > 1 else "One" -%}
{% macro field(at, type, place) -%}
{{ restored(type, "buffer" ~ slot_state ~ "[(" ~ place ~ ") * " ~ span ~ "u + " ~ at ~ "u]") }}
{%- endmacro %}
{# A field of the state of a neighbour, whose words have been loaded in fours. -#}
{% macro loaded_field(at, type, neighbour) -%}
{{ restored(type, "words_" ~ (neighbour * span + at) // 4 ~ "[" ~ (neighbour * span + at) % 4 ~ "]") }}
{%- endmacro %}
{# What is to be done with elements, from the state, or the states side by side, at `state_index`. Of eight neighbours -#}
{# each half has every other one. -#}
{% macro normal_of_state() -%}
    {%- if vector > 1 and along == "kept" %}
    {%- if by_fours %}
    {%- for i in range(span * quads) %}
    let words_{{ i }} = buffer{{ slot_state }}[state_index * {{ span * quads }}u + {{ i }}u];
    {%- endfor %}
    {%- endif %}
    {%- for q in range(quads) %}
    let normal_{{ q }} = normal_many(Many(
        {%- for type in fields %}
        {%- set at = loop.index0 %}
        vec4<{{ type }}>({% for c in range(4) %}{{ loaded_field(at, type, c * quads + q) if by_fours else field(at, type, "state_index * 4u + " ~ c ~ "u") }}{{ ", " if not loop.last }}{% endfor %}),
        {%- endfor %}
    ));
    {%- endfor %}
    {%- else %}
    let of_row = normal_one(One({% for type in fields %}{{ field(loop.index0, type, "state_index") }}, {% endfor %}));
    {%- for q in range(quads) %}
    {%- if vector > 1 %}
    // One row for all.
    let normal_{{ q }} = NormalMany(vec4<{{ accumulator }}>(of_row.shift), vec4<{{ accumulator }}>(of_row.factor), vec4<{{ accumulator }}>(of_row.rest));
    {%- else %}
    let normal_{{ q }} = of_row;
    {%- endif %}
    {%- endfor %}
    {%- endif %}
{%- endmacro %}
{% macro normals() -%}
{% for q in range(quads) %}normal_{{ q }}{{ ", " if not loop.last }}{% endfor %}
{%- endmacro %}

// One step.
fn write(out_at: u32, {% for name in inputs %}{{ name }}_index: u32, {% endfor %}{% for q in range(quads) %}normal_{{ q }}: Normal{{ Many }}{{ ", " if not loop.last }}{% endfor %}) {
    {%- for name in inputs %}
    {%- if vector > 1 and inner[name] == 0 %}
    let {{ name }} = {{ typed(accumulator, vector) }}({{ storage.load_of(element, vector, "buffer" ~ slots[name], name ~ "_index") }});
    {%- for q in range(quads) %}
    let {{ name }}_{{ q }} = {{ name }};
    {%- endfor %}
    {%- else %}
    {{- storage.load_unit(element, vector, name, "buffer" ~ slots[name], name ~ "_index") }}
    {%- endif %}
    {%- endfor %}
    {%- for q in range(quads) %}
    let y_{{ q }} = apply_{{ many }}(x_{{ q }}, normal_{{ q }}){{ " * weight_" ~ q if weight }}{{ " + bias_" ~ q if bias }};
    {%- endfor %}
    {%- if narrow and vector == 1 %}
    {{- storage.store_atomic(element, "buffer" ~ slot_out, "out_at", "y_0") }}
    {%- else %}
    buffer{{ slot_out }}[out_at] = {{ storage.stored_unit(element, vector, "y") }};
    {%- endif %}
}
{%- if grouped %}
{%- set last = rank - 1 %}
{%- set axis = last if along == "reduced" else rank - 2 %}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let place = (workgroup.x + workgroup.y * workgroups.x) * 256u + local_index;
    if place >= params.count {
        return;
    }
    let index = {{ "params.count - 1u - place" if backwards else "place" }};
    {%- for name in walked %}
    var {{ name }}_index = params.{{ name }}_offset;
    {%- endfor %}
    var rest = index;
    {%- if along == "kept" %}
    let column = rest % params.size_{{ last }};
    rest /= params.size_{{ last }};
    {%- for name in walked if inner[name] == 1 %}
    {{ name }}_index += column;
    {%- endfor %}
    {%- endif %}
    let group = rest % params.groups;
    rest /= params.groups;
    let outer = rest;
    {%- for d in range(1, axis) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- for name in walked %}
    {{ name }}_index += index_{{ d }} * params.{{ name }}_stride_{{ d }};
    {%- endfor %}
    {%- endfor %}
    {%- if axis > 0 %}
    {%- for name in walked %}
    {{ name }}_index += rest * params.{{ name }}_stride_0;
    {%- endfor %}
    {%- endif %}
    {{- normal_of_state() }}
    {%- if along == "kept" %}
    let end = min((group + 1u) * params.each, params.along);
    for (var along = group * params.each; along < end; along++) {
        {%- if strided_out %}
        let out_at = out_index + along * params.out_stride_{{ axis }};
        {%- else %}
        let out_at = (outer * params.along + along) * params.size_{{ last }} + column;
        {%- endif %}
        write(out_at, {% for name in inputs %}{{ name }}_index + along * params.{{ name }}_stride_{{ axis }}, {% endfor %}{{ normals() }});
    }
    {%- else %}
    {%- for i in range(4) %}
    {
        let along = group + {{ i }}u * params.groups;
        if along < params.along {
            {%- if strided_out %}
            let out_at = out_index + along;
            {%- else %}
            let out_at = outer * params.along + along;
            {%- endif %}
            write(out_at, {% for name in inputs %}{{ name }}_index{% if inner[name] == 1 %} + along{% endif %}, {% endfor %}{{ normals() }});
        }
    }
    {%- endfor %}
    {%- endif %}
}
{%- else %}

fn step(index: u32) {
    {%- for name in walked %}
    var {{ name }}_index = params.{{ name }}_offset;
    {%- endfor %}
    var rest = index;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- for name in walked %}
    {%- if not (vector > 1 and d == rank - 1) %}
    {{ name }}_index += index_{{ d }} * params.{{ name }}_stride_{{ d }};
    {%- elif inner[name] == 1 %}
    {{ name }}_index += index_{{ d }};
    {%- endif %}
    {%- endfor %}
    {%- endfor %}
    {%- for name in walked %}
    {%- if vector > 1 and rank == 1 %}
    {%- if inner[name] == 1 %}
    {{ name }}_index += rest;
    {%- endif %}
    {%- else %}
    {{ name }}_index += rest * params.{{ name }}_stride_0;
    {%- endif %}
    {%- endfor %}
    {{- normal_of_state() }}
    write({{ "out_index" if strided_out else "index" }}, {% for name in inputs %}{{ name }}_index, {% endfor %}{{ normals() }});
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let first = (workgroup.x + workgroup.y * workgroups.x) * 1024u + local_index;
    {%- for i in range(4) %}
    if first + {{ i * 256 }}u < params.count {
        step(first + {{ i * 256 }}u);
    }
    {%- endfor %}
}
{%- endif %}
