{# A pass of a sort over lines in blocks, by a digit of the keys: `sort/count` and `sort/move`. -#}
{% import "part/keys" as keys -%}
{% import "part/storage" as storage -%}

{% macro params() -%}
struct Params {
    // Blocks of all lines: the first one, one past the last.
    first: u32,
    end: u32,
    // Elements of a line and of its blocks, and blocks of it.
    size: u32,
    length: u32,
    blocks: u32,
    // The digit's lowest bit.
    shift: u32,
    flip: u32,
    zeros: u32,
    // Places of line 0: in the elements, in what the pass before moved, and in what is counted.
    x_first: u32,
    given_first: u32,
    counts_first: u32,
    // Elements that are written of a line, which of those of all lines are bound, and how many.
    kept: u32,
    window_first: u32,
    window: u32,
}
{%- endmacro -%}

{# The bindings that are read; how many. -#}
{% macro bindings(element, source) -%}
{% if source in ["x", "places"] -%}
@group(0) @binding(0) var<storage, read_write> x: array<{{ storage.unit(keys.moved(element), false) }}>;
{% endif -%}
{% if source != "x" -%}
@group(0) @binding({{ 1 if source == "places" else 0 }}) var<storage, read_write> given: array<{{ "vec2<u32>" if source == "pairs" else "u32" }}>;
{% endif -%}
{%- endmacro -%}

{% macro count(source) -%}
{{ 2 if source == "places" else 1 }}
{%- endmacro -%}

{# A function of a line's first element, and of one's place in the line: its key and, but of `keys`, where it was. -#}
{% macro read(element, source) -%}
{% if source in ["x", "places"] -%}
{{ keys.read(element) }}

{% endif -%}
fn item_of(line: u32, place: u32) -> vec2<u32> {
    {%- if source == "x" %}
    return vec2<u32>(key_at(params.x_first + line + place){{ ".y" if element == "f64" }}, place);
    {%- elif source == "keys" %}
    return vec2<u32>(given[params.given_first + line + place], 0u);
    {%- elif source == "pairs" %}
    return given[params.given_first + line + place];
    {%- else %}
    let was = given[params.given_first + line + place];
    return vec2<u32>(key_at(params.x_first + line + was).x, was);
    {%- endif %}
}
{%- endmacro -%}

{# The head of main, by an invocation or, `shared`, a workgroup for each block: its line, which begins at `elements`, and its -#}
{# places from `start` to `end` there. -#}
{% macro begun(shared) -%}
{% if shared == 0 -%}
@compute @workgroup_size(16)
{%- else -%}
@compute @workgroup_size(256)
{%- endif %}
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let workgroup_index = workgroup.x + workgroup.y * workgroups.x;
    {%- if shared == 0 %}
    let at = workgroup_index * 16u + local_index;
    if at >= params.end - params.first {
        return;
    }
    {%- else %}
    // None leaves before the barriers.
    let is_there = workgroup_index < params.end - params.first;
    let at = select(0u, workgroup_index, is_there);
    {%- endif %}
    let line = (params.first + at) / params.blocks;
    let block = params.first + at - line * params.blocks;
    let start = block * params.length;
    let end = {{ "min(start + params.length, params.size)" if shared == 0 else "select(0u, min(start + params.length, params.size), is_there)" }};
    let elements = line * params.size;
{%- endmacro -%}
