// Short lines in order: each element is written behind those of its line that come before it. Params count
// elements.
//
// element   of x: "f32", "f16", "bf16", "f64", "i32", "u32" or "bool"
// target    "values": elements in order, as words; "places": where they were
{% import "part/keys" as keys -%}
{{ keys.line_params() }}
{{ params_var }}

{{ keys.of_lines(element, target) }}

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
