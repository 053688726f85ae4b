// out[i] = table[place of i + index[place of i] * axis_stride], or 0 where the index is out of range.
//
// element   what moves at once: "vec4<u32>", "vec2<u32>", "u32"; "u16" and "u8" lie in words, which are
//           written whole
// signed    1: negative indices count from the end of the axis
// keep      1: an earlier launch saw another part of the table; only what is in this part is written
// rank      dimensions after merging; the outermost size is not needed
// four      1: four neighbours a step, of "u32": indices that follow each other, from multiples of four
// per_thread   steps per invocation, a workgroup apart
//
// All positions count in elements of that kind; they wrap, so strides may be negative.
{% set lanes = 4 if element == "u8" or four == 1 else 2 if element == "u16" else 1 -%}
{% set bits = 32 // lanes -%}
{% set stored = "u32" if lanes > 1 else element -%}
{% set several = "vec4<u32>" if four == 1 else "u32" -%}
struct Params {
    // Of the output: the first element, one past the last, and that which its binding starts with.
    first: u32,
    end: u32,
    out_base: u32,
    // Of the bindings of the table and the index: the place of output element 0.
    table_first: u32,
    index_first: u32,
    // Elements of the table that are bound.
    table_count: u32,
    axis_size: u32,
    axis_stride: u32,
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for name in ["table", "index"] %}
    {%- for d in range(rank) %}
    {{ name }}_stride_{{ d }}: u32,
    {%- endfor %}
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> table: array<{{ stored }}>;
@group(0) @binding(1) var<storage, read_write> indices: array<{{ several }}>;
@group(0) @binding(2) var<storage, read_write> out: array<{{ several if four == 1 else stored }}>;

// Where output element `i` is in the table's binding but for what its index adds, and where the index is.
fn places(i: u32) -> vec2<u32> {
    var place = params.table_first;
    var at = params.index_first;
    var rest = i;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    place += index_{{ d }} * params.table_stride_{{ d }};
    at += index_{{ d }} * params.index_stride_{{ d }};
    {%- endfor %}
    place += rest * params.table_stride_0;
    at += rest * params.index_stride_0;
    return vec2<u32>(place, at);
}

// Where an element is in the table's binding, and whether it is there and its index in range.
fn found(first: u32, given: u32) -> vec2<u32> {
    {%- if signed == 1 %}
    let taken = given + select(0u, params.axis_size, given >= 0x80000000u);
    {%- else %}
    let taken = given;
    {%- endif %}
    let place = first + taken * params.axis_stride;
    return vec2<u32>(place, u32(taken < params.axis_size && place < params.table_count));
}
{% if four == 0 %}
fn source(i: u32) -> vec2<u32> {
    let at = places(i);
    return found(at.x, indices[at.y]);
}
{% endif %}
fn step(i: u32) {
    {%- if four == 1 %}
    let at = places(i);
    let given = indices[at.y / 4u];
    let word = (i - params.out_base) / 4u;
    var value = {{ "out[word]" if keep == 1 else "vec4<u32>()" }};
    {%- for lane in range(4) %}
    let origin_{{ lane }} = found(at.x + {{ lane }}u * params.table_stride_{{ rank - 1 }}, given[{{ lane }}]);
    if origin_{{ lane }}.y == 1u {
        value[{{ lane }}] = table[origin_{{ lane }}.x];
    }
    {%- endfor %}
    out[word] = value;
    {%- elif lanes == 1 %}
    let origin = source(i);
    {%- if keep == 1 %}
    if origin.y == 1u {
        out[i - params.out_base] = table[origin.x];
    }
    {%- else %}
    var value = {{ stored }}();
    if origin.y == 1u {
        value = table[origin.x];
    }
    out[i - params.out_base] = value;
    {%- endif %}
    {%- else %}
    // `i` is the first element of a word; the ends of the range may lie within one.
    let word = (i - params.out_base) / {{ lanes }}u;
    var value = 0u;
    {%- if keep == 0 %}
    if i < params.first || i + {{ lanes }}u > params.end {
        value = out[word];
    }
    {%- else %}
    value = out[word];
    {%- endif %}
    for (var lane = 0u; lane < {{ lanes }}u; lane++) {
        let element = i + lane;
        if element >= params.first && element < params.end {
            let origin = source(element);
            let mask = {{ "0xffffu" if bits == 16 else "0xffu" }} << (lane * {{ bits }}u);
            if origin.y == 1u {
                let read = table[origin.x / {{ lanes }}u] >> (origin.x % {{ lanes }}u * {{ bits }}u);
                value = (value & ~mask) | ((read << (lane * {{ bits }}u)) & mask);
            }
            {%- if keep == 0 %} else {
                value &= ~mask;
            }
            {%- endif %}
        }
    }
    out[word] = value;
    {%- endif %}
}

{% include "part/steps" %}
