{{ enables }}
// out[place of line + index[line, j] * axis_stride] += source[line, j], for j in order: one sum after the
// other, so that the same bits come out of every run.
//
// A line is what is left of the source without its axis. Each is walked by `parts` invocations, each of
// which adds to every `parts`th entry of the output's axis; neighbours walk neighbouring lines, to the same entries.
//
// element   "f32", "i32", "u32", "f64"
// signed    1: negative indices count from the end of the axis
// rank      dimensions of the lines after merging; the outermost size is not needed
//
// All positions count in elements; they wrap, so strides may be negative.
struct Params {
    // The first line, one past the last; the first j, one past the last.
    first: u32,
    end: u32,
    first_j: u32,
    end_j: u32,
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
@group(0) @binding(1) var<storage, read_write> source: array<{{ element }}>;
@group(0) @binding(2) var<storage, read_write> out: array<{{ element }}>;

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
    for (var j = params.first_j; j < params.end_j; j++) {
        {%- if signed == 1 %}
        let given = indices[at_index];
        let entry = given + select(0u, params.axis_size, given >= 0x80000000u);
        {%- else %}
        let entry = indices[at_index];
        {%- endif %}
        let place = at_out + entry * params.out_axis;
        if entry < params.axis_size && (entry & (params.parts - 1u)) == part && place < params.out_count {
            out[place] = out[place] + source[at_source];
        }
        at_index += params.index_axis;
        at_source += params.source_axis;
    }
}
