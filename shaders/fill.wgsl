{{ enables }}
// Writes one value to every element of a view with any strides.
//
// element   "u32" (any 4-byte dtype, or words of narrower ones), "vec2<u32>" (8-byte dtypes);
//           "u16" and "u8": narrower ones alone, beside others in their words
// rank      dimensions after merging; the outermost size is not needed
{% set lanes = {"u16": 2, "u8": 4}[element] | default(1) -%}
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

@group(0) @binding(0) var<storage, read_write> buffer0: array<{{ "atomic<u32>" if lanes > 1 else element }}>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    {%- if element == "vec2<u32>" %}
    let value = vec2<u32>(params.value_low, params.value_high);
    {%- else %}
    let value = params.value_low;
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
            index += rest * params.stride_0;
            {%- if lanes > 1 %}
            let mask = {{ "0xffffu" if lanes == 2 else "0xffu" }} << (index % {{ lanes }}u * {{ 32 // lanes }}u);
            atomicAnd(&buffer0[index / {{ lanes }}u], ~mask);
            atomicOr(&buffer0[index / {{ lanes }}u], value & mask);
            {%- else %}
            buffer0[index] = value;
            {%- endif %}
        }
    }
}
