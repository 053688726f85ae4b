// Lines of at most 8 x `threads` elements in order, each in a workgroup's memory: digit after digit of its keys. Params count lines.
//
// element   of x: "f32", "f16", "bf16", "f64", "i32", "u32" or "bool"
// target    "values": elements in order, as words; "places": where they were
// threads   of a workgroup: 64 or 256
{% import "part/keys" as keys -%}
{% import "part/digits" as digits -%}
{% set bits = {"f16": 16, "bf16": 16, "bool": 1}[element] | default(32) -%}
{{ keys.line_params() }}
{{ params_var }}

{{ keys.of_lines(element, target) }}

{{ digits.memory(threads) }}

{# What exchange has, as neighbours. -#}
{% macro taken(name) %}
        {%- for i in range(8) %}
        {{ name }}_{{ i }} = exchange[local_index * 8u + {{ i }}u];
        {%- endfor %}
{%- endmacro %}
@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let at = workgroup.x + workgroup.y * workgroups.x;
    // None leaves before the barriers.
    let is_there = at < params.end - params.first;
    let line = params.first + select(0u, at, is_there);
    let size = select(0u, params.size, is_there);
    let start = params.x_first + line * params.size;
    {%- for i in range(8) %}
    {%- if target == "places" %}
    var place_{{ i }} = local_index * 8u + {{ i }}u;
    {%- endif %}
    var key_{{ i }} = 0u;
    {%- endfor %}
    {%- for word in (["y", "x"] if element == "f64" else [""]) %}
    // Behind the line's end are keys that stay last.
    {%- if word == "x" %}
    {%- for i in range(8) %}
    key_{{ i }} = 0xffffffffu;
    if place_{{ i }} < size {
        key_{{ i }} = key_at(start + place_{{ i }}).x;
    }
    {%- endfor %}
    {%- else %}
    for (var i = local_index; i < {{ 8 * threads }}u; i += {{ threads }}u) {
        var key = 0xffffffffu;
        if i < size {
            key = key_at(start + i){{ "." ~ word if word }};
        }
        exchange[i] = key;
    }
    workgroupBarrier();
    {{- taken("key") }}
    {%- endif %}
    for (var shift = 0u; shift < {{ bits }}u; shift += 4u) {
        workgroupBarrier();
        {{- digits.ranks(threads) }}
        {{- digits.scattered("key") }}
        {{- taken("key") }}
        {%- if target == "places" %}
        {{- digits.scattered("place") }}
        {{- taken("place") }}
        {%- endif %}
    }
    {%- endfor %}
    workgroupBarrier();
    {%- for i in range(8) %}
    exchange[local_index * 8u + {{ i }}u] = {{ "key" if target == "values" else "place" }}_{{ i }};
    {%- endfor %}
    workgroupBarrier();
    let kept = min(size, params.kept);
    for (var i = local_index; i < kept; i += {{ threads }}u) {
        out[params.out_first + line * params.kept + i] = {{ "value_of(exchange[i])" if target == "values" else "exchange[i]" }};
    }
}
