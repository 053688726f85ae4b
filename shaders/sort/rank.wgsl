// Short lines in order: each element is written behind those of its line that come before it.
//
// element   of x: "f32", "f16", "bf16", "f64", "i32", "u32" or "bool"
// target    "values": elements in order, as words; "places": where they were
{% import "part/keys" as keys -%}
{% import "part/storage" as storage -%}
struct Params {
    // Elements: the first one, one past the last.
    first: u32,
    end: u32,
    // Place of element 0, and of the first that is written of line 0.
    x_first: u32,
    out_first: u32,
    // Elements of a line, and how many of it are written.
    size: u32,
    kept: u32,
    flip: u32,
    zeros: u32,
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> x: array<{{ storage.unit(keys.moved(element), false) }}>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

{{ keys.read(element) }}
{%- if target == "values" %}
{{ keys.written(element) }}
{%- endif %}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let at = (workgroup.x + workgroup.y * workgroups.x) * 256u + local_index;
    if at >= params.end - params.first {
        return;
    }
    let line = (params.first + at) / params.size;
    let place = params.first + at - line * params.size;
    let start = params.x_first + line * params.size;
    let own = key_at(start + place);
    var before = 0u;
    for (var other = 0u; other < params.size; other++) {
        let key = key_at(start + other);
        {%- if element == "f64" %}
        let is_less = key.x < own.x || (key.x == own.x && key.y < own.y);
        let is_equal = key.x == own.x && key.y == own.y;
        {%- else %}
        let is_less = key < own;
        let is_equal = key == own;
        {%- endif %}
        before += select(0u, 1u, is_less || (is_equal && other < place));
    }
    if before < params.kept {
        out[params.out_first + line * params.kept + before] = {{ "value_of(own)" if target == "values" else "place" }};
    }
}
