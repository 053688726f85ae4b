{% import "part/storage" as storage -%}
// out[i] = apply(inputs[i]) over any strides; `apply` is generated from an expression.
//
// body               `fn apply(a0: F, ...) -> F`, of the types below; `old` is what the output held
// buffers            the dtype of each binding, apart by spaces; bits alone: "bits8", "bits16", "u32",
//                    "vec2<u32>"
// operands           "dtype/binding/inner" of each input, then of the output; with a vector `inner`
//                    is the inner stride, 1 or 0 (one value for all of it)
// reads_old          1: what the output holds is an argument too, after the inputs
// scalars            words of numbers at the end of the params
// vector             4 or 8: as many neighbours of the innermost dimension per step; then every outer
//                    stride, the offsets and the inner size count in vectors. Eights are two fours, of
//                    every other element; those of 32 bits need words of 64
// rank               dimensions after merging; the outermost size is not needed
// strided_out        1: out has an offset and strides as the others (pieces of large tensors, views);
//                    0: it is new, and written at i
// per_thread         steps per invocation, a workgroup apart, so that neighbours read neighbours
//
// Elements narrower than a word are written in whole words where out is new, else bit by bit.
{% set four = vector > 1 -%}
{% set operands = operands | split -%}
{% set inputs = operands[:-1] -%}
{% set walked = operands if strided_out == 1 else inputs -%}
{% set out = operands | length - 1 -%}
{% set out_dtype, out_slot, _ = operands[-1] | split("/") -%}
{% set lanes_of_word = storage.lanes(out_dtype) | int -%}
{% set narrow = lanes_of_word > 1 -%}
{% set atomic = narrow and strided_out == 1 and not four -%}
{% set lanes = lanes_of_word if narrow and strided_out == 0 and not four else 1 -%}
{# Whether a step writes what no other step touches. -#}
{% set together = lanes == 1 and not atomic -%}
struct Params {
    count: u32,
    {%- for _ in walked %}
    offset_{{ loop.index0 }}: u32,
    {%- endfor %}
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for _ in walked %}
    {%- set operand = loop.index0 %}
    {%- for d in range(rank) %}
    stride_{{ operand }}_{{ d }}: u32,
    {%- endfor %}
    {%- endfor %}
    {%- for i in range(scalars) %}
    scalar_{{ i }}: u32,
    {%- endfor %}
}
{{ params_var }}
{% macro applied(half) -%}
apply({% for _ in inputs %}a{{ loop.index0 }}_{{ half }}{{ ", " if not loop.last or reads_old == 1 }}{% endfor %}{{ "old_" ~ half if reads_old == 1 }})
{%- endmacro -%}
{% for dtype in buffers | split %}
{%- set unit = "atomic<u32>" if atomic and loop.last else storage.unit_of(dtype, vector) %}
@group(0) @binding({{ loop.index0 }}) var<storage, read_write> buffer{{ loop.index0 }}: array<{{ unit }}>;
{%- endfor %}
{% include "part/body" %}

{% set result = {"f32": "F", "i32": "I", "u32": "U", "bool": "B", "f64": "D"}[storage.value(out_dtype)] | default(out_dtype) -%}
{% if vector == 8 -%}
struct Halves {
    first: {{ result }},
    second: {{ result }},
}
{% endif -%}
// The arguments at a step, and what becomes of them.
fn value(index: u32{% if strided_out == 1 %}, out_index: ptr<function, u32>{% endif %}) -> {{ "Halves" if vector == 8 else result }} {
    {%- for _ in walked %}
    var index_{{ loop.index0 }} = params.offset_{{ loop.index0 }};
    {%- endfor %}
    var rest = index;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let along_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- for operand in walked %}
    {%- if not (four and d == rank - 1) %}
    index_{{ loop.index0 }} += along_{{ d }} * params.stride_{{ loop.index0 }}_{{ d }};
    {%- elif (operand | split("/"))[2] == "1" %}
    index_{{ loop.index0 }} += along_{{ d }};
    {%- endif %}
    {%- endfor %}
    {%- endfor %}
    {%- for operand in walked %}
    {%- if four and rank == 1 %}
    {%- if (operand | split("/"))[2] == "1" %}
    index_{{ loop.index0 }} += rest;
    {%- endif %}
    {%- else %}
    index_{{ loop.index0 }} += rest * params.stride_{{ loop.index0 }}_0;
    {%- endif %}
    {%- endfor %}
    {%- for operand in inputs %}
    {%- set dtype, slot, inner = operand | split("/") %}
    {%- set name = "a" ~ loop.index0 %}
    {%- if not four or inner == "1" %}
    {{- storage.load_unit(dtype, vector, name, "buffer" ~ slot, "index_" ~ loop.index0) }}
    {%- else %}
    // One value for all of them; its index counts in elements.
    let {{ name }}_0 = vec4<{{ storage.value(dtype) }}>({{ storage.load_of(dtype, vector, "buffer" ~ slot, "index_" ~ loop.index0) }});
    {%- if vector == 8 %}
    let {{ name }}_1 = {{ name }}_0;
    {%- endif %}
    {%- endif %}
    {%- endfor %}
    {%- if strided_out == 1 %}
    *out_index = index_{{ out }};
    {%- endif %}
    {%- if reads_old == 1 %}
    {%- set at = "index_" ~ out if strided_out == 1 else "index" %}
    {%- if atomic %}
    let old_0 = {{ storage.load_atomic(out_dtype, "buffer" ~ out_slot, at) }};
    {%- else %}
    {{- storage.load_unit(out_dtype, vector, "old", "buffer" ~ out_slot, at) }}
    {%- endif %}
    {%- endif %}
    {%- if vector == 8 %}
    return Halves({{ applied(0) }}, {{ applied(1) }});
    {%- else %}
    return {{ applied(0) }};
    {%- endif %}
}

{% if not together -%}
fn step(index: u32) {
    {%- if lanes > 1 %}
    // A word of neighbours; those past the end of the last word do not matter.
    var word = 0u;
    {%- for lane in range(lanes) %}
    word |= {{ storage.bits1(out_dtype, "value(min(index * " ~ lanes ~ "u + " ~ lane ~ "u, params.count - 1u))") }} << {{ lane * (32 // lanes) }}u;
    {%- endfor %}
    buffer{{ out_slot }}[index] = word;
    {%- else %}
    var out_index = 0u;
    let result = value(index, &out_index);
    // Neighbours in the word belong to others.
    {%- set mask = "0xffu" if lanes_of_word == 4 else "0xffffu" %}
    let shift = out_index % {{ lanes_of_word }}u * {{ 32 // lanes_of_word }}u;
    let word = out_index / {{ lanes_of_word }}u;
    atomicAnd(&buffer{{ out_slot }}[word], ~({{ mask }} << shift));
    atomicOr(&buffer{{ out_slot }}[word], {{ storage.bits1(out_dtype, "result") }} << shift);
    {%- endif %}
}

{% endif -%}
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let first = (workgroup.x + workgroup.y * workgroups.x) * {{ 256 * per_thread }}u + local_index;
    {%- if together %}
    if first >= params.count {
        return;
    }
    // What is loaded is under way for all steps before the first store, which might change it as far as a compiler
    // knows; steps past the end load the invocation's first again, which nobody else writes.
    {%- for i in range(per_thread) %}
    let index_{{ i }} = first + {{ i * 256 }}u;
    {%- if strided_out == 1 %}
    var out_{{ i }} = 0u;
    {%- endif %}
    let result_{{ i }} = value({{ "first" if i == 0 else "select(first, index_" ~ i ~ ", index_" ~ i ~ " < params.count)" }}{{ ", &out_" ~ i if strided_out == 1 }});
    {%- endfor %}
    {%- for i in range(per_thread) %}
    {%- set name = "result_" ~ i %}
    if index_{{ i }} < params.count {
        {%- if vector == 8 %}
        {%- set parted = storage.parted(out_dtype, vector, "first") %}
        let {{ name }}_0 = {{ name }}.first{{ parted }};
        let {{ name }}_1 = {{ name }}.second{{ parted }};
        {%- else %}
        let {{ name }}_0 = {{ name }};
        {%- endif %}
        buffer{{ out_slot }}[{{ "out_" if strided_out == 1 else "index_" }}{{ i }}] = {{ storage.stored_unit(out_dtype, vector, name) }};
    }
    {%- endfor %}
    {%- else %}
    let steps = {% if lanes > 1 %}(params.count + {{ lanes - 1 }}u) / {{ lanes }}u{% else %}params.count{% endif %};
    {%- for i in range(per_thread) %}
    if first + {{ i * 256 }}u < steps {
        step(first + {{ i * 256 }}u);
    }
    {%- endfor %}
    {%- endif %}
}
