{{ enables }}
// out[place of line + index[line, j] * axis_stride] += source[line, j], or = or the larger or smaller one, for j in order: one
// after the other, so that the same bits come out of every run.
//
// A line is what is left of the source without its axis. Each is walked by `parts` invocations, each of
// which changes every `parts`th entry of the output's axis; neighbours walk neighbouring lines, to the same entries.
//
// shared    1: all lines have one index (hardware). A workgroup has 256 lines and a part, looks through 256 entries of the
//           index at once and walks those of its part alone; 0: each invocation looks through all of it
// change    "add", "set", "max" or "min"
// element   what is added or compared: "f32", "i32", "u32", "f64"; what is set at once: "vec4<u32>", "vec2<u32>", "u32", or
//           "u16" and "u8", which lie in words whose other elements are others' to set; so do "f16_bits" and "bf16_bits",
//           which are compared
// signed    1: negative indices count from the end of the axis
// rank      dimensions of the lines after merging; the outermost size is not needed
//
// All positions count in elements of that kind; they wrap, so strides may be negative.
{% set lanes = 4 if element == "u8" else 2 if element in ["u16", "f16_bits", "bf16_bits"] else 1 -%}
{% set bits = 32 // lanes -%}
{# Numbers are compared by their bits: no adapter loses a NaN, a subnormal or the sign of a zero so, and f64 needs no kernels. -#}
{% set is_extreme = change in ["max", "min"] -%}
{% set is_put = change == "set" or lanes > 1 -%}
{% set compared = "vec2<u32>" if element == "f64" else "u32" -%}
{% set kind = "u32" if lanes > 1 else compared if is_extreme else element -%}
struct Params {
    // The first line, one past the last; the first j, and how many there are.
    first: u32,
    end: u32,
    first_j: u32,
    count_j: u32,
    // A power of two.
    parts: u32,
    // Of the bindings: the place of line 0 and j 0.
    out_first: u32,
    index_first: u32,
    source_first: u32,
    // Elements of the output that are bound.
    out_count: u32,
    axis_size: u32,
    out_axis: u32,
    index_axis: u32,
    source_axis: u32,
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for name in ["out", "index", "source"] %}
    {%- for d in range(rank) %}
    {{ name }}_stride_{{ d }}: u32,
    {%- endfor %}
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> indices: array<u32>;
@group(0) @binding(1) var<storage, read_write> source: array<{{ kind }}>;
@group(0) @binding(2) var<storage, read_write> out: array<{{ "atomic<u32>" if lanes > 1 else kind }}>;
{%- if is_extreme %}

// A whole number in whose order numbers are taken, NaN before all.
fn rank(bits: {{ kind }}) -> {{ kind }} {
    {%- set turned = "~" if change == "min" else "" %}
    {%- if element == "f64" %}
    let size = vec2<u32>(bits.x, bits.y & 0x7fffffffu);
    let is_nan = size.y > 0x7ff00000u || (size.y == 0x7ff00000u && size.x != 0u);
    // The higher word first.
    let order = select(vec2<u32>(bits.y | 0x80000000u, bits.x), ~bits.yx, bits.y >= 0x80000000u);
    return select({{ turned }}order, vec2<u32>(0xffffffffu), is_nan);
    {%- elif element == "f32" %}
    let order = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    return select({{ turned }}order, 0xffffffffu, (bits & 0x7fffffffu) > 0x7f800000u);
    {%- elif lanes == 2 %}
    let order = select(bits | 0x8000u, bits ^ 0xffffu, bits >= 0x8000u);
    let is_nan = (bits & 0x7fffu) > {{ "0x7c00u" if element == "f16_bits" else "0x7f80u" }};
    return select({{ turned }}order, 0xffffffffu, is_nan);
    {%- elif element == "i32" %}
    return {{ turned }}(bits ^ 0x80000000u);
    {%- else %}
    return {{ turned }}bits;
    {%- endif %}
}

fn better(old: {{ kind }}, given: {{ kind }}) -> {{ kind }} {
    let a = rank(old);
    let b = rank(given);
    {%- if element == "f64" %}
    return select(old, given, b.x > a.x || (b.x == a.x && b.y > a.y));
    {%- else %}
    return select(old, given, b > a);
    {%- endif %}
}
{%- endif %}
{%- if is_put %}

fn put(place: u32, at: u32) {
    {%- if lanes == 1 %}
    out[place] = source[at];
    {%- else %}
    let mask = {{ "0xffffu" if bits == 16 else "0xffu" }};
    let given = (source[at / {{ lanes }}u] >> (at % {{ lanes }}u * {{ bits }}u)) & mask;
    let shift = place % {{ lanes }}u * {{ bits }}u;
    {%- if is_extreme %}
    // No other invocation writes these bits of the word.
    let old = (atomicLoad(&out[place / {{ lanes }}u]) >> shift) & mask;
    let chosen = better(old, given);
    {%- else %}
    let chosen = given;
    {%- endif %}
    atomicAnd(&out[place / {{ lanes }}u], ~(mask << shift));
    atomicOr(&out[place / {{ lanes }}u], chosen << shift);
    {%- endif %}
}
{%- endif %}

{# Two elements as one. -#}
{% macro combined(old, given) -%}
{{ "better(" ~ old ~ ", " ~ given ~ ")" if is_extreme else old ~ " + " ~ given }}
{%- endmacro -%}

{# Where a line starts in out, and its first j in the index and the source. -#}
{% macro places_of_line() %}
    var rest = params.first + line;
    var at_out = params.out_first;
    var at_index = params.index_first + params.first_j * params.index_axis;
    var at_source = params.source_first + params.first_j * params.source_axis;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- for name in ["out", "index", "source"] %}
    at_{{ name }} += index_{{ d }} * params.{{ name }}_stride_{{ d }};
    {%- endfor %}
    {%- endfor %}
    {%- for name in ["out", "index", "source"] %}
    at_{{ name }} += rest * params.{{ name }}_stride_0;
    {%- endfor %}
{%- endmacro %}
{%- if shared == 1 %}
const WIDTH = 256u;

// Which entries of the index are of this part, as bits; then their places in order, and what they name.
var<workgroup> are_mine: array<atomic<u32>, 8>;
var<workgroup> mine: array<u32, 256>;
var<workgroup> entries: array<u32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let block = workgroup.x + workgroup.y * workgroups.x;
    let lines = params.end - params.first;
    let blocks = (lines + WIDTH - 1u) / WIDTH;
    let line = block % blocks * WIDTH + local_index;
    let part = block / blocks;
    // None leaves before the barriers.
    let is_there = line < lines;
    {{- places_of_line() }}
    for (var start = 0u; start < params.count_j; start += WIDTH) {
        if local_index < 8u {
            atomicStore(&are_mine[local_index], 0u);
        }
        workgroupBarrier();
        var entry = 0u;
        var is_mine = false;
        let j = start + local_index;
        if j < params.count_j {
            entry = indices[at_index + j * params.index_axis];
            {%- if signed == 1 %}
            entry += select(0u, params.axis_size, entry >= 0x80000000u);
            {%- endif %}
            is_mine = entry < params.axis_size && (entry & (params.parts - 1u)) == part;
        }
        let word = local_index / 32u;
        let bit = 1u << (local_index % 32u);
        if is_mine {
            atomicOr(&are_mine[word], bit);
        }
        workgroupBarrier();
        var before = 0u;
        var count = 0u;
        for (var at = 0u; at < 8u; at++) {
            let bits = atomicLoad(&are_mine[at]);
            before += select(0u, countOneBits(select(bits, bits & (bit - 1u), at == word)), at <= word);
            count += countOneBits(bits);
        }
        if is_mine {
            mine[before] = j;
            entries[before] = entry;
        }
        workgroupBarrier();
        if is_there {
            {%- if is_put %}
            for (var at = 0u; at < count; at++) {
                let place = at_out + entries[at] * params.out_axis;
                if place < params.out_count {
                    put(place, at_source + mine[at] * params.source_axis);
                }
            }
            {%- else %}
            for (var at = 0u; at < count; at += 4u) {
                // Four are loaded before one is stored; a place that was there before is taken from its sum.
                {%- for i in range(4) %}
                let at_{{ i }} = min(at + {{ i }}u, count - 1u);
                let place_{{ i }} = at_out + entries[at_{{ i }}] * params.out_axis;
                let given_{{ i }} = source[at_source + mine[at_{{ i }}] * params.source_axis];
                let found_{{ i }} = out[min(place_{{ i }}, params.out_count - 1u)];
                {%- endfor %}
                {%- for i in range(4) %}
                var sum_{{ i }} = found_{{ i }};
                {%- for earlier in range(i) %}
                sum_{{ i }} = select(sum_{{ i }}, sum_{{ earlier }}, place_{{ earlier }} == place_{{ i }});
                {%- endfor %}
                sum_{{ i }} = {{ combined("sum_" ~ i, "given_" ~ i) }};
                {%- endfor %}
                {%- for i in range(4) %}
                if at + {{ i }}u < count && place_{{ i }} < params.out_count {
                    out[place_{{ i }}] = sum_{{ i }};
                }
                {%- endfor %}
            }
            {%- endif %}
        }
        workgroupBarrier();
    }
}
{%- else %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let invocation = (workgroup.x + workgroup.y * workgroups.x) * 64u + local_index;
    let lines = params.end - params.first;
    let part = invocation / lines;
    let line = invocation - part * lines;
    if part >= params.parts {
        return;
    }
    {{- places_of_line() }}
    for (var j = 0u; j < params.count_j; j++) {
        {%- if signed == 1 %}
        let given = indices[at_index];
        let entry = given + select(0u, params.axis_size, given >= 0x80000000u);
        {%- else %}
        let entry = indices[at_index];
        {%- endif %}
        let place = at_out + entry * params.out_axis;
        if entry < params.axis_size && (entry & (params.parts - 1u)) == part && place < params.out_count {
            {%- if is_put %}
            put(place, at_source);
            {%- else %}
            out[place] = {{ combined("out[place]", "source[at_source]") }};
            {%- endif %}
        }
        at_index += params.index_axis;
        at_source += params.source_axis;
    }
}
{%- endif %}
