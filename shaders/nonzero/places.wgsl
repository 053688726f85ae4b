// Where marks are set: an index along each dimension, one row of them behind the other.
//
// by     "word": an invocation has the 32 marks of one; "mark": one mark (hardware)
// rank   dimensions of what is marked; the outermost size is not needed
// per_thread   steps per invocation, a workgroup apart
{% set lanes = 1 -%}
struct Params {
    // Words, or marks: the first one, one past the last.
    first: u32,
    end: u32,
    // Places of word 0's marks, and of its sum.
    marks_first: u32,
    sums_first: u32,
    // What is bound of the output, in words.
    window_first: u32,
    window: u32,
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding(0) var<storage, read_write> marks: array<u32>;
// How many are set up to the end of each word.
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

// Writes row `row`: where an element is.
fn write(row: u32, element: u32) {
    let to = row * {{ rank }}u - params.window_first;
    var rest = element;
    {%- for d in range(rank) | reverse %}
    {%- if d > 0 %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- else %}
    let index_0 = rest;
    {%- endif %}
    if to + {{ d }}u < params.window {
        out[to + {{ d }}u] = index_{{ d }};
    }
    {%- endfor %}
}

fn step(i: u32) {
    {%- if by == "word" %}
    var bits = marks[params.marks_first + i];
    var row = sums[params.sums_first + i] - countOneBits(bits);
    while bits != 0u {
        write(row, i * 32u + firstTrailingBit(bits));
        bits &= bits - 1u;
        row++;
    }
    {%- else %}
    let bits = marks[params.marks_first + i / 32u] >> (i % 32u);
    if (bits & 1u) == 1u {
        write(sums[params.sums_first + i / 32u] - countOneBits(bits), i);
    }
    {%- endif %}
}

{% include "part/steps" %}
