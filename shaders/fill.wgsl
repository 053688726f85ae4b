{{ enables }}
// Writes one value to every element of a view with any strides.
//
// element   "u32" (any 4-byte dtype, or pairs of f16), "vec2<u32>" (8-byte dtypes), "f16"
// rank      dimensions after merging; the outermost size is not needed
struct Params {
    count: u32,
    offset: u32,
    value_low: u32,
    value_high: u32,
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for d in range(rank) %}
    stride_{{ d }}: u32,
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> buffer0: array<{{ element }}>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    {%- if element == "f16" %}
    // As the bits of an f32: f16 has no bitcast of its own here.
    let value = f16(bitcast<f32>(params.value_low));
    {%- elif element == "u32" %}
    let value = params.value_low;
    {%- else %}
    let value = vec2<u32>(params.value_low, params.value_high);
    {%- endif %}
    // The grid is folded into two dimensions; neighbours write neighbours.
    let first = (workgroup.x + workgroup.y * workgroups.x) * 1024u + local_index;
    for (var i = 0u; i < 4u; i++) {
        var rest = first + i * 256u;
        if rest < params.count {
            var index = params.offset;
            {%- for d in range(1, rank) | reverse %}
            index += rest % params.size_{{ d }} * params.stride_{{ d }};
            rest /= params.size_{{ d }};
            {%- endfor %}
            buffer0[index + rest * params.stride_0] = value;
        }
    }
}
