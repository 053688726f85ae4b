{{ enables }}
// Sums partial sums in the order of their parts, applies the epilogue and stores them as C's elements: after
// k was split between workgroups, and where C's elements are halves of words and its rows are odd, so that
// only a pass over all of them owns whole words. Each invocation has four entries, wherever rows end.
// Storages are whole numbers of fours: what is stored past the last entry is nobody's.
{% set vector_c = 1 -%}
{% set kept = accumulator -%}
struct Params {
    // Fours of entries: the first of this launch, one past its last; of all, as far as parts are apart.
    first: u32,
    end: u32,
    pitch: u32,
    parts: u32,
    m: u32,
    n: u32,
    {%- for d in range(batch_rank) %}
    batch_shape_{{ d }}: u32,
    {%- endfor %}
    {%- include "matmul/part/epilogue_params" %}
}
{{ params_var }}
{% from "matmul/part/load" import storage -%}
{% from "matmul/part/result" import result_storage, rounded -%}
{% if finishes and bias -%}
@group(0) @binding({{ slot_bias }}) var<storage, read_write> buffer{{ slot_bias }}: {{ storage(1) }};
{% endif -%}
{% if finishes and residual and not (bias and slot_residual == slot_bias) -%}
@group(0) @binding({{ slot_residual }}) var<storage, read_write> buffer{{ slot_residual }}: {{ storage(1) }};
{% endif -%}
@group(0) @binding(0) var<storage, read_write> buffer0: array<vec4<{{ accumulator }}>>;
@group(0) @binding({{ slot_c }}) var<storage, read_write> buffer{{ slot_c }}: {{ result_storage(4) }};
{%- set packed = result if result in ["bf16", "packed_f16"] else element %}
{%- if packed in ["bf16", "packed_f16"] %}

{% include "matmul/part/packed" %}
{%- endif %}
{%- if finishes %}

{% include "matmul/part/epilogue" %}

// Entries past the last count as others, so that they read what is there.
fn finished(entry: u32, sum: {{ kept }}) -> {{ kept }} {
    let column = entry % params.n;
    let row = entry / params.n % params.m;
    {%- if bias %}
    bias_base = params.bias_offset;
    {%- endif %}
    {%- if residual %}
    residual_base = params.residual_offset;
    {%- endif %}
    {%- if batch_rank > 0 and (bias or residual) %}
    var batch_rest = entry / params.n / params.m;
    {%- for d in range(batch_rank) | reverse %}
    let batch_index_{{ d }} = batch_rest % params.batch_shape_{{ d }};
    batch_rest /= params.batch_shape_{{ d }};
    {%- if bias %}
    bias_base += batch_index_{{ d }} * params.batch_bias_{{ d }};
    {%- endif %}
    {%- if residual %}
    residual_base += batch_index_{{ d }} * params.batch_residual_{{ d }};
    {%- endif %}
    {%- endfor %}
    {%- endif %}
    return epilogue(row, column, sum);
}
{%- endif %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let four = params.first + (workgroup.x + workgroup.y * workgroups.x) * 64u + local_index;
    if four >= params.end {
        return;
    }
    var sums = buffer0[four];
    // Loads of eight parts are under way together: few entries have few invocations to hide them.
    var part = 1u;
    while part + 7u < params.parts {
        {%- for i in range(8) %}
        let sums_{{ i }} = buffer0[(part + {{ i }}u) * params.pitch + four];
        {%- endfor %}
        {%- for i in range(8) %}
        sums += sums_{{ i }};
        {%- endfor %}
        part += 8u;
    }
    while part < params.parts {
        sums += buffer0[part * params.pitch + four];
        part += 1u;
    }
    {%- if finishes %}
    sums = vec4<{{ kept }}>({% for j in range(4) %}finished(four * 4u + {{ j }}u, sums[{{ j }}]){{ ", " if not loop.last }}{% endfor %});
    {%- endif %}
    buffer{{ slot_c }}[four] = {{ rounded("sums", 4) }};
}
