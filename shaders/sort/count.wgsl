// A pass of a sort, first: how many elements of each block have each digit, by lines, then digits, then blocks.
//
// element   of x: "f32", "f16", "bf16", "f64", "i32", "u32" or "bool"
// source    of keys: "x", of f64 their lower words; "keys" that the pass before has moved, or "pairs" of one and where it was;
//           "places" in x that it has, of f64 the higher words
// shared    0: an invocation has a block; 1: a workgroup has one (hardware)
{% import "part/passes" as passes -%}
{{ passes.params() }}
{{ params_var }}

{{ passes.bindings(element, source) -}}
@group(0) @binding({{ passes.count(source) }}) var<storage, read_write> counts: array<u32>;

{{ passes.read(element, source) }}

{%- if shared == 0 %}

{{ passes.begun(0) }}
    var of_digits: array<u32, 16>;
    for (var place = start; place < end; place++) {
        of_digits[(item_of(elements, place).x >> params.shift) & 15u] += 1u;
    }
    var to = params.counts_first + line * 16u * params.blocks + block;
    for (var digit = 0u; digit < 16u; digit++) {
        counts[to] = of_digits[digit];
        to += params.blocks;
    }
}
{%- else %}

var<workgroup> totals: array<atomic<u32>, 16>;

{{ passes.begun(1) }}
    if local_index < 16u {
        atomicStore(&totals[local_index], 0u);
    }
    workgroupBarrier();
    {%- for i in range(4) %}
    var of_digits_{{ i }} = vec4<u32>();
    {%- endfor %}
    for (var place = start + local_index; place < end; place += 256u) {
        let digit = (item_of(elements, place).x >> params.shift) & 15u;
        {%- for i in range(4) %}
        of_digits_{{ i }} += select(vec4<u32>(), vec4<u32>(1u), vec4<u32>(digit) == vec4<u32>({{ 4 * i }}u, {{ 4 * i + 1 }}u, {{ 4 * i + 2 }}u, {{ 4 * i + 3 }}u));
        {%- endfor %}
    }
    {%- for digit in range(16) %}
    atomicAdd(&totals[{{ digit }}], of_digits_{{ digit // 4 }}[{{ digit % 4 }}]);
    {%- endfor %}
    workgroupBarrier();
    if is_there && local_index < 16u {
        counts[params.counts_first + (line * 16u + local_index) * params.blocks + block] = atomicLoad(&totals[local_index]);
    }
}
{%- endif %}
