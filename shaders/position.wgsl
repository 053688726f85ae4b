// out[i] by where i is: an element of the input where it is inside, else one value.
//
// inside    "box": each coordinate is in a range, in which the input begins;
//           "lower", "upper": of the last two, column - row is at most, at least `diagonal`;
//           "hot": the last coordinate is the number that the input, an index, has there
// element   what moves at once: "vec4<u32>", "vec2<u32>", "u32"; "u16" and "u8" lie in words, which are
//           written whole
// signed    of "hot", 1: negative numbers count from the end
// rank      dimensions; the outermost size is not needed
// per_thread   steps per invocation, a workgroup apart
//
// All positions count in elements of that kind; they wrap, so strides may be negative.
{% set lanes = 4 if element == "u8" else 2 if element == "u16" else 1 -%}
{% set bits = 32 // lanes -%}
{% set stored = "u32" if lanes > 1 else element -%}
struct Params {
    // Of the output: the first element, one past the last, and that which its binding starts with.
    first: u32,
    end: u32,
    out_base: u32,
    // Place of output element 0 in the binding of the input.
    input_first: u32,
    // What is not inside: words that repeat; of "hot" also what is.
    value_low: u32,
    value_high: u32,
    {%- if inside == "hot" %}
    hot_low: u32,
    hot_high: u32,
    {%- elif inside != "box" %}
    diagonal: i32,
    {%- endif %}
    {%- for d in range(rank) %}
    size_{{ d }}: u32,
    stride_{{ d }}: u32,
    {%- if inside == "box" %}
    from_{{ d }}: u32,
    count_{{ d }}: u32,
    {%- endif %}
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> input: array<{{ "u32" if inside == "hot" else stored }}>;
@group(0) @binding(1) var<storage, read_write> out: array<{{ stored }}>;

{% macro value(name) -%}
{% if element == "vec4<u32>" -%}
vec4<u32>(params.{{ name }}_low, params.{{ name }}_high, params.{{ name }}_low, params.{{ name }}_high)
{%- elif element == "vec2<u32>" -%}
vec2<u32>(params.{{ name }}_low, params.{{ name }}_high)
{%- else -%}
params.{{ name }}_low
{%- endif -%}
{%- endmacro -%}

// Where output element `i` is in the input's binding, and whether it is inside.
fn source(i: u32) -> vec2<u32> {
    var place = params.input_first;
    var rest = i;
    var inside = true;
    {%- for d in range(rank) | reverse %}
    {%- if d > 0 %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- else %}
    let index_0 = rest;
    {%- endif %}
    place += index_{{ d }} * params.stride_{{ d }};
    {%- if inside == "box" %}
    inside = inside && index_{{ d }} - params.from_{{ d }} < params.count_{{ d }};
    {%- endif %}
    {%- endfor %}
    {%- if inside == "lower" %}
    inside = i32(index_{{ rank - 1 }}) - i32(index_{{ rank - 2 }}) <= params.diagonal;
    {%- elif inside == "upper" %}
    inside = i32(index_{{ rank - 1 }}) - i32(index_{{ rank - 2 }}) >= params.diagonal;
    {%- elif inside == "hot" %}
    let given = input[place];
    {%- if signed == 1 %}
    let number = given + select(0u, params.size_{{ rank - 1 }}, given >= 0x80000000u);
    {%- else %}
    let number = given;
    {%- endif %}
    inside = number == index_{{ rank - 1 }};
    {%- endif %}
    return vec2<u32>(place, u32(inside));
}

fn step(i: u32) {
    {%- if lanes == 1 %}
    let origin = source(i);
    {%- if inside == "hot" %}
    if origin.y == 1u {
        out[i - params.out_base] = {{ value("hot") }};
    } else {
        out[i - params.out_base] = {{ value("value") }};
    }
    {%- else %}
    if origin.y == 1u {
        out[i - params.out_base] = input[origin.x];
    } else {
        out[i - params.out_base] = {{ value("value") }};
    }
    {%- endif %}
    {%- else %}
    // `i` is the first element of a word; the ends of the range may lie within one.
    let word = (i - params.out_base) / {{ lanes }}u;
    var value = params.value_low;
    if i < params.first || i + {{ lanes }}u > params.end {
        value = out[word];
    }
    for (var lane = 0u; lane < {{ lanes }}u; lane++) {
        let element = i + lane;
        if element >= params.first && element < params.end {
            let origin = source(element);
            let mask = {{ "0xffffu" if bits == 16 else "0xffu" }} << (lane * {{ bits }}u);
            {%- if inside == "hot" %}
            let read = select(params.value_low, params.hot_low, origin.y == 1u);
            value = (value & ~mask) | (read & mask);
            {%- else %}
            if origin.y == 1u {
                let read = input[origin.x / {{ lanes }}u] >> (origin.x % {{ lanes }}u * {{ bits }}u);
                value = (value & ~mask) | ((read << (lane * {{ bits }}u)) & mask);
            } else {
                value = (value & ~mask) | (params.value_low & mask);
            }
            {%- endif %}
        }
    }
    out[word] = value;
    {%- endif %}
}

{% include "part/steps" %}
