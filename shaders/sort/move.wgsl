// A pass of a sort, then: elements of each block go to where their digits say, behind those of lower digits and of blocks
// before, equal ones in the order in which they are.
//
// element   as in `sort/count`
// source    as in `sort/count`
// target    "keys", or "pairs" of one and where it was; at last "values", as words, or "places"
// shared    0: an invocation has a block; 1: a workgroup has one, 2048 elements at once (hardware)
{% import "part/passes" as passes -%}
{% import "part/keys" as keys -%}
{% import "part/digits" as of -%}
{% set has_places = target in ["places", "pairs"] -%}
{% set first = passes.count(source) | int -%}
{{ passes.params() }}
{{ params_var }}

{{ passes.bindings(element, source) -}}
// Sums of what is counted, each with its own.
@group(0) @binding({{ first }}) var<storage, read_write> counted: array<u32>;
@group(0) @binding({{ first + 1 }}) var<storage, read_write> out: array<{{ "vec2<u32>" if target == "pairs" else "u32" }}>;

{{ passes.read(element, source) }}
{%- if target == "values" %}
{{ keys.written(element) }}
{%- endif %}

{# What is written of a key, and of where it was. -#}
{% macro written(key, place) -%}
{{ {"keys": key, "places": place, "pairs": "vec2<u32>(" ~ key ~ ", " ~ place ~ ")"}[target] | default("value_of(" ~ key ~ ")") }}
{%- endmacro %}
// Of a line's digit and block, the elements that come before its first one.
fn before(line: u32, digit: u32, block: u32) -> u32 {
    let at = digit * params.blocks + block;
    if at == 0u {
        return 0u;
    }
    return counted[params.counts_first + line * 16u * params.blocks + at - 1u];
}
{%- if shared == 0 %}

{{ passes.begun(0) }}
    var next: array<u32, 16>;
    for (var digit = 0u; digit < 16u; digit++) {
        next[digit] = before(line, digit, block);
    }
    for (var place = start; place < end; place++) {
        let item = item_of(elements, place);
        let digit = (item.x >> params.shift) & 15u;
        let to = next[digit];
        next[digit] = to + 1u;
        let bound = line * params.kept + to - params.window_first;
        if to < params.kept && bound < params.window {
            out[bound] = {{ written("item.x", "item.y") }};
        }
    }
}
{%- else %}

{{ of.memory(256) }}
// Of each digit, what comes before the block's elements that have it, without those of lower digits in the block.
var<workgroup> starts: array<u32, 16>;

{{ passes.begun(1) }}
    let shift = params.shift;
    // Of the first invocations, each of its digit.
    var before_tile = 0u;
    if local_index < 16u {
        before_tile = before(line, local_index, block);
    }
    for (var done = 0u; done < params.length; done += 2048u) {
        let begin = start + done;
        // Behind the end are keys that stay last.
        for (var i = local_index; i < 2048u; i += 256u) {
            var key = 0xffffffffu;
            if begin + i < end {
                key = item_of(elements, begin + i).x;
            }
            exchange[i] = key;
        }
        workgroupBarrier();
        {%- for i in range(8) %}
        let key_{{ i }} = exchange[local_index * 8u + {{ i }}u];
        {%- endfor %}
        workgroupBarrier();
        {{- of.ranks(256) }}
        if local_index < 16u {
            let lower = count_of(exchange[(local_index & 7u) * 256u], local_index);
            var upper = 2048u;
            if local_index < 15u {
                upper = count_of(exchange[((local_index + 1u) & 7u) * 256u], local_index + 1u);
            }
            starts[local_index] = before_tile - lower;
            before_tile += upper - lower;
        }
        {{- of.scattered("key") }}
        {%- for i in range(8) %}
        let at_{{ i }} = local_index + {{ 256 * i }}u;
        let moved_{{ i }} = exchange[at_{{ i }}];
        let to_{{ i }} = starts[(moved_{{ i }} >> shift) & 15u] + at_{{ i }};
        let bound_{{ i }} = line * params.kept + to_{{ i }} - params.window_first;
        let is_bound_{{ i }} = begin + at_{{ i }} < end && to_{{ i }} < params.kept && bound_{{ i }} < params.window;
        {%- endfor %}
        {%- if has_places %}
        {%- for i in range(8) %}
        var place_{{ i }} = 0u;
        if begin + local_index * 8u + {{ i }}u < end {
            place_{{ i }} = item_of(elements, begin + local_index * 8u + {{ i }}u).y;
        }
        {%- endfor %}
        {{- of.scattered("place") }}
        {%- endif %}
        {%- for i in range(8) %}
        if is_bound_{{ i }} {
            out[bound_{{ i }}] = {{ written("moved_" ~ i, "exchange[at_" ~ i ~ "]") }};
        }
        {%- endfor %}
        workgroupBarrier();
    }
}
{%- endif %}
