// Marks of elements that are not zero: a bit for each, 32 in a word, and how many each word has.
//
// element   of x, as it lies in memory: "u32", "bits16", "bits8" or "vec2<u32>"
// four      1: loads of four neighbours, all of x in one run
// shared    0: an invocation has a word; 1: a workgroup has 64, side by side (hardware)
// rank      dimensions of x after merging; the outermost size is not needed
// per_thread   without `shared`: steps per invocation, a workgroup apart
//
// Places wrap, so strides may be negative.
{% import "part/storage" as storage -%}
{% set lanes = 1 -%}
struct Params {
    // Words: the first one, one past the last.
    first: u32,
    end: u32,
    // Elements in all.
    elements: u32,
    // Places of element 0, and of word 0's marks and count.
    x_first: u32,
    marks_first: u32,
    counts_first: u32,
    // Bits of an element that are not zero's: all but the sign of floats.
    mask_low: u32,
    mask_high: u32,
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for d in range(rank) %}
    stride_{{ d }}: u32,
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> x: array<{{ storage.unit(element, four == 1) }}>;
@group(0) @binding(1) var<storage, read_write> marks: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;
{%- if storage.lanes(element) | int > 1 %}

{{ storage.functions(element) }}
{%- endif %}
{%- if four == 0 %}

// Whether an element is not zero.
fn is_marked(element: u32) -> bool {
    var place = params.x_first;
    var rest = element;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    place += (rest - quotient_{{ d }} * params.size_{{ d }}) * params.stride_{{ d }};
    rest = quotient_{{ d }};
    {%- endfor %}
    place += rest * params.stride_0;
    let given = {{ storage.load1(element, "x", "place") }};
    {%- if element == "vec2<u32>" %}
    return (given.x & params.mask_low) != 0u || (given.y & params.mask_high) != 0u;
    {%- else %}
    return (given & params.mask_low) != 0u;
    {%- endif %}
}
{%- endif %}

fn store(word: u32, bits: u32) {
    marks[params.marks_first + word] = bits;
    counts[params.counts_first + word] = countOneBits(bits);
}
{%- if shared == 0 %}

fn step(word: u32) {
    let begin = word * 32u;
    let count = min(params.elements - begin, 32u);
    var bits = 0u;
    {%- if four == 1 %}
    let start = (params.x_first + begin) / 4u;
    for (var i = 0u; i * 4u < count; i++) {
        let given = {{ storage.load4(element, "x", "start + i") }};
        let set_bits = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u), (given & vec4<u32>(params.mask_low)) != vec4<u32>());
        bits |= (set_bits.x | set_bits.y | set_bits.z | set_bits.w) << (i * 4u);
    }
    // The last load may reach further.
    bits &= 0xffffffffu >> (32u - count);
    {%- else %}
    for (var i = 0u; i < count; i++) {
        bits |= select(0u, 1u, is_marked(begin + i)) << i;
    }
    {%- endif %}
    store(word, bits);
}

{% include "part/steps" %}
{%- else %}

var<workgroup> flags: array<u32, 2048>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let first = params.first + (workgroup.x + workgroup.y * workgroups.x) * 64u;
    // None leaves before the barrier. Elements are fewer than 3 * 2^30 (`ranges::missing`), so this does not wrap.
    let last = min(min(params.end, first + 64u) * 32u, params.elements);
    for (var i = local_index; i < 2048u; i += 256u) {
        var flag = 0u;
        if first < params.end && first * 32u + i < last {
            flag = select(0u, 1u, is_marked(first * 32u + i));
        }
        flags[i] = flag;
    }
    workgroupBarrier();
    if local_index < 64u && first + local_index < params.end {
        var bits = 0u;
        // Each begins with another bit: neighbours read neighbours.
        for (var i = 0u; i < 32u; i++) {
            let at = (i + local_index) & 31u;
            bits |= flags[local_index * 32u + at] << at;
        }
        store(first + local_index, bits);
    }
}
{%- endif %}
