// Where values belong in sorted lines: how many of a line's elements come before each, by halves of what is left of it.
//
// element   of both: "f32", "f16", "bf16", "f64", "i32", "u32" or "bool"
// per_thread   steps per invocation, a workgroup apart
{% import "part/keys" as keys -%}
{% import "part/storage" as storage -%}
{% set lanes = 1 -%}
struct Params {
    // Values: the first one, one past the last.
    first: u32,
    end: u32,
    // Places of line 0, of value 0 and of what is written of it.
    lines_first: u32,
    values_first: u32,
    out_first: u32,
    // Elements of a line, and values that belong into it.
    size: u32,
    of_line: u32,
    // Not 0: behind what is equal.
    right: u32,
    flip: u32,
    zeros: u32,
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> lines: array<{{ storage.unit(keys.moved(element), false) }}>;
@group(0) @binding(1) var<storage, read_write> values: array<{{ storage.unit(keys.moved(element), false) }}>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

{{ keys.loads(element) -}}
{{ keys.key_of(element, "key_of_line", "lines") }}

{{ keys.key_of(element, "key_of_value", "values") }}

fn is_less(a: {{ keys.type(element) }}, b: {{ keys.type(element) }}) -> bool {
    {%- if element == "f64" %}
    return a.x < b.x || (a.x == b.x && a.y < b.y);
    {%- else %}
    return a < b;
    {%- endif %}
}

fn step(i: u32) {
    let value = key_of_value(params.values_first + i);
    let line = params.lines_first + i / params.of_line * params.size;
    var before = 0u;
    var left = params.size;
    while left > 0u {
        let half = left / 2u;
        let key = key_of_line(line + before + half);
        if select(is_less(key, value), !is_less(value, key), params.right != 0u) {
            before += half + 1u;
            left -= half + 1u;
        } else {
            left = half;
        }
    }
    out[params.out_first + i] = before;
}

{% include "part/steps" %}
