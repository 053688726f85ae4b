// Copies a matrix of 32-bit elements into rows of whole vectors of eight, zeros past its edges: what
// the wide tile reads. Each invocation copies up to {{ run }} vectors of one row.
//
// Requires SHADER_INT64.
//
// unit                     elements of a row are neighbours: they are loaded by eights, from whole
//                          multiples of eight on, and shifted into place
// run                      vectors per invocation
// batch_rank               dimensions of the batch
struct Params {
    // Elements of a row, rows, and both with their padding: vectors, rows. Vectors from row to row.
    row_size: u32,
    rows: u32,
    row_vectors: u32,
    row_pitch: u32,
    rows_padded: u32,
    offset: u32,
    row_stride: u32,
    element_stride: u32,
    // Rows of all matrices, and these times the invocations of a row.
    rows_in_all: u32,
    invocations: u32,
    // Whole vectors in the buffer, less one.
    last: u32,
    {%- for d in range(batch_rank) %}
    batch_shape_{{ d }}: u32,
    batch_stride_{{ d }}: u32,
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> from_buffer: array<{{ "vec4<u64>" if unit else "u32" }}>;
@group(0) @binding(1) var<storage, read_write> into_buffer: array<vec4<u64>>;
{% macro load(name, index) %}
        let {{ name }} = from_buffer[min({{ index }}, params.last)];
        {%- for i in range(4) %}
        let {{ name }}_{{ 2 * i }} = u32({{ name }}[{{ i }}]);
        let {{ name }}_{{ 2 * i + 1 }} = u32({{ name }}[{{ i }}] >> 32u);
        {%- endfor %}
{%- endmacro %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let invocation = (workgroup.x + workgroup.y * workgroups.x) * 64u + local_index;
    if invocation >= params.invocations {
        return;
    }
    let row_in_all = invocation % params.rows_in_all;
    let row = row_in_all % params.rows_padded;
    var start = params.offset + row * params.row_stride;
    {%- if batch_rank > 0 %}
    var batch_rest = row_in_all / params.rows_padded;
    {%- for d in range(batch_rank) | reverse %}
    start += batch_rest % params.batch_shape_{{ d }} * params.batch_stride_{{ d }};
    batch_rest /= params.batch_shape_{{ d }};
    {%- endfor %}
    {%- endif %}
    let first = invocation / params.rows_in_all * {{ run }}u;
    let end = min(first + {{ run }}u, params.row_vectors);
    // Rows past the last are zeros.
    let size = select(0u, params.row_size, row < params.rows);
    {%- if unit %}
    let shift = start % 8u;
    var block = start / 8u + first;
    {{- load("begin", "block") }}
    {%- for i in range(8) %}
    var low_{{ i }} = begin_{{ i }};
    {%- endfor %}
    {%- endif %}
    for (var vector = first; vector < end; vector += 1u) {
        {%- if unit %}
        block += 1u;
        {{- load("high", "block") }}
        {%- for i in range(12) %}
        let by4_{{ i }} = select({% if i < 8 %}low_{{ i }}{% else %}high_{{ i - 8 }}{% endif %}, {% if i < 4 %}low_{{ i + 4 }}{% else %}high_{{ i - 4 }}{% endif %}, (shift & 4u) != 0u);
        {%- endfor %}
        {%- for i in range(10) %}
        let by2_{{ i }} = select(by4_{{ i }}, by4_{{ i + 2 }}, (shift & 2u) != 0u);
        {%- endfor %}
        {%- for i in range(8) %}
        let moved_{{ i }} = select(by2_{{ i }}, by2_{{ i + 1 }}, (shift & 1u) != 0u);
        {%- endfor %}
        {%- for i in range(8) %}
        let value_{{ i }} = select(0u, moved_{{ i }}, vector * 8u + {{ i }}u < size);
        low_{{ i }} = high_{{ i }};
        {%- endfor %}
        {%- else %}
        {%- for i in range(8) %}
        let at_{{ i }} = vector * 8u + {{ i }}u;
        let value_{{ i }} = select(0u, from_buffer[select(0u, start + at_{{ i }} * params.element_stride, at_{{ i }} < size)], at_{{ i }} < size);
        {%- endfor %}
        {%- endif %}
        into_buffer[row_in_all * params.row_pitch + vector] = vec4<u64>(
            {%- for i in range(4) %}
            u64(value_{{ 2 * i }}) | (u64(value_{{ 2 * i + 1 }}) << 32u),
            {%- endfor %}
        );
    }
}
