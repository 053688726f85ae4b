{{ enables }}
// out[i] = op(a[i], b[i]) over any strides; copies and casts have one input.
//
// op                 "add", "sub", "mul", "div", "copy", "cast"
// element_in, element_out   storage types; "copy" moves bits, so its types are unsigned
// kind               "float", "signed", "unsigned" (of element_in) and kind_out
// vector             4: four neighbours of the innermost dimension per step; then every outer
//                    stride, the offsets and the inner size count in fours
// inner_a, inner_b   with vector 4: the inner stride, 1 or 0 (one value for all four)
// rank               dimensions after merging; the outermost size is not needed
// strided_out        1: out has an offset and strides as the others (pieces of large tensors, views);
//                    0: it is written at i
// per_thread         steps per invocation, a workgroup apart, so that neighbours read neighbours
{% set two = op not in ["copy", "cast"] -%}
{% set names = ["a", "b"] if two else ["a"] -%}
{% set walked = names + ["out"] if strided_out == 1 else names -%}
{% set inner = {"a": inner_a, "b": inner_b, "out": 1} -%}
{% set slots = {"a": slot_a, "b": slot_b} -%}
{% macro typed(element) -%}
{% if vector == 4 %}vec4<{{ element }}>{% else %}{{ element }}{% endif %}
{%- endmacro -%}
{% set value_in = typed(element_in) -%}
{% set value_out = typed(element_out) %}
struct Params {
    count: u32,
    {%- for name in walked %}
    {{ name }}_offset: u32,
    {%- endfor %}
    {%- for d in range(1, rank) %}
    size_{{ d }}: u32,
    {%- endfor %}
    {%- for name in walked %}
    {%- for d in range(rank) %}
    {{ name }}_stride_{{ d }}: u32,
    {%- endfor %}
    {%- endfor %}
}
{{ params_var }}

@group(0) @binding({{ slot_a }}) var<storage, read_write> buffer{{ slot_a }}: array<{{ value_in }}>;
{%- if two and slot_b != slot_a %}
@group(0) @binding({{ slot_b }}) var<storage, read_write> buffer{{ slot_b }}: array<{{ value_in }}>;
{%- endif %}
@group(0) @binding({{ slot_out }}) var<storage, read_write> buffer{{ slot_out }}: array<{{ value_out }}>;

{% if op == "div" and kind == "unsigned" -%}
// Division by zero is zero, on every device.
fn divide_one(a: u32, b: u32) -> u32 {
    let safe = select(b, 1u, b == 0u);
    return select(a / safe, 0u, b == 0u);
}
{%- elif op == "div" and kind == "signed" -%}
// Division by zero is zero, and the smallest value over -1 wraps to itself, on every device.
fn divide_one(a: i32, b: i32) -> i32 {
    let special = b == 0 || b == -1;
    let quotient = a / select(b, 1, special);
    return select(select(quotient, 0 - a, b == -1), 0, b == 0);
}
{%- endif %}
{%- if op == "cast" and kind == "float" and kind_out != "float" -%}
{% set low, high, last = ("-2147483648.0", "2147483648.0", "2147483647") if kind_out == "signed" else ("0.0", "4294967296.0", "4294967295u") -%}
{% set wide = "f64" if element_in == "f64" else "f32" -%}
{% set suffix = "lf" if element_in == "f64" else "f" -%}
// Toward zero, saturating, NaN to zero: as Rust's `as`.
fn convert_one(x: {{ element_in }}) -> {{ element_out }} {
    let value = {{ wide }}(x);
    {%- if element_in == "f64" %}
    let is_number = value == value;
    {%- else %}
    // By bits: shaders may assume that comparisons meet no NaN.
    let is_number = (bitcast<u32>(value) & 0x7fffffffu) <= 0x7f800000u;
    {%- endif %}
    if !is_number || value <= {{ low }}{{ suffix }} {
        {%- if kind_out == "signed" %}
        return select(0, -2147483647 - 1, is_number);
        {%- else %}
        return 0u;
        {%- endif %}
    }
    if value >= {{ high }}{{ suffix }} {
        return {{ last }};
    }
    return {{ element_out }}(value);
}
{%- endif %}

{% set narrows = op == "cast" and element_in == "f64" and element_out == "f16" -%}
{% if narrows -%}
// Through the f32 that lies toward zero, odd where it is not exact, so that only f16 rounds:
// lavapipe's own conversion rounds to f32 first.
fn narrow_one(x: f64) -> f16 {
    let near = f32(x);
    var bits = bitcast<u32>(near);
    if (bits & 0x7fffffffu) < 0x7f800000u && f64(near) != x {
        let is_beyond = select(f64(near) > x, f64(near) < x, x < 0.0lf);
        bits = (bits - select(0u, 1u, is_beyond)) | 1u;
    }
    return f16(bitcast<f32>(bits));
}
{%- endif %}

{% set halves = op == "cast" and kind == "unsigned" and kind_out == "float" and element_out != "f64" -%}
{% if halves -%}
// In exact halves, so that the sum rounds once: SwiftShader's own conversion rounds wrongly above 2^31.
fn convert_halves(x: {{ value_in }}) -> {{ typed("f32") }} {
    return {{ typed("f32") }}(x >> {{ value_in }}(16u)) * 65536.0 + {{ typed("f32") }}(x & {{ value_in }}(0xffffu));
}
{%- endif %}

fn apply(a: {{ value_in }}{% if two %}, b: {{ value_in }}{% endif %}) -> {{ value_out }} {
    {%- if op == "copy" %}
    return a;
    {%- elif op == "cast" %}
    {%- if kind == "float" and kind_out != "float" %}
    {%- if vector == 4 %}
    return {{ value_out }}(convert_one(a.x), convert_one(a.y), convert_one(a.z), convert_one(a.w));
    {%- else %}
    return convert_one(a);
    {%- endif %}
    {%- elif halves %}
    return {{ value_out }}(convert_halves(a));
    {%- elif narrows and vector == 4 %}
    return {{ value_out }}(narrow_one(a.x), narrow_one(a.y), narrow_one(a.z), narrow_one(a.w));
    {%- elif narrows %}
    return narrow_one(a);
    {%- else %}
    return {{ value_out }}(a);
    {%- endif %}
    {%- elif op == "div" and kind != "float" %}
    {%- if vector == 4 %}
    return {{ value_out }}(divide_one(a.x, b.x), divide_one(a.y, b.y), divide_one(a.z, b.z), divide_one(a.w, b.w));
    {%- else %}
    return divide_one(a, b);
    {%- endif %}
    {%- else %}
    return a {{ {"add": "+", "sub": "-", "mul": "*", "div": "/"}[op] }} b;
    {%- endif %}
}

fn step(index: u32) {
    {%- for name in walked %}
    var {{ name }}_index = params.{{ name }}_offset;
    {%- endfor %}
    var rest = index;
    {%- for d in range(1, rank) | reverse %}
    let quotient_{{ d }} = rest / params.size_{{ d }};
    let index_{{ d }} = rest - quotient_{{ d }} * params.size_{{ d }};
    rest = quotient_{{ d }};
    {%- for name in walked %}
    {%- if not (vector == 4 and d == rank - 1) %}
    {{ name }}_index += index_{{ d }} * params.{{ name }}_stride_{{ d }};
    {%- elif inner[name] == 1 %}
    {{ name }}_index += index_{{ d }};
    {%- endif %}
    {%- endfor %}
    {%- endfor %}
    {%- for name in walked %}
    {%- if vector == 4 and rank == 1 %}
    {%- if inner[name] == 1 %}
    {{ name }}_index += rest;
    {%- endif %}
    {%- else %}
    {{ name }}_index += rest * params.{{ name }}_stride_0;
    {%- endif %}
    {%- endfor %}
    {%- for name in names %}
    {%- if vector == 4 and inner[name] == 0 %}
    // One value for all four; its index counts in elements.
    let {{ name }} = {{ value_in }}(buffer{{ slots[name] }}[{{ name }}_index >> 2u][{{ name }}_index & 3u]);
    {%- else %}
    let {{ name }} = buffer{{ slots[name] }}[{{ name }}_index];
    {%- endif %}
    {%- endfor %}
    buffer{{ slot_out }}[{{ "out_index" if strided_out == 1 else "index" }}] = apply({{ names | join(", ") }});
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let first = (workgroup.x + workgroup.y * workgroups.x) * {{ 256 * per_thread }}u + local_index;
    {%- for i in range(per_thread) %}
    if first + {{ i * 256 }}u < params.count {
        step(first + {{ i * 256 }}u);
    }
    {%- endfor %}
}
