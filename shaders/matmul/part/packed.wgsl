{# Part of kernels with 16-bit elements that have no type of their own: `packed` says which, two to a word. -#}
{%- if packed == "bf16" %}
fn widened(halves: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(halves << vec4<u32>(16u));
}
{%- else %}
// By bits, where unpack2x16float may be missing: subnormals, infinities and NaN, all others.
fn widened(halves: vec4<u32>) -> vec4<f32> {
    let size = halves & vec4<u32>(0x7fffu);
    let normal = (size << vec4<u32>(13u)) + select(vec4<u32>(0x38000000u), vec4<u32>(0x70000000u), size >= vec4<u32>(0x7c00u));
    let small = bitcast<vec4<u32>>(vec4<f32>(size) * 0x1p-24f);
    return bitcast<vec4<f32>>(select(normal, small, size < vec4<u32>(0x400u)) | ((halves & vec4<u32>(0x8000u)) << vec4<u32>(16u)));
}
{%- endif %}

fn unpacked4(words: vec2<u32>) -> vec4<f32> {
    return widened(vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u));
}

fn unpacked1(word: u32, index: u32) -> f32 {
    return widened(vec4<u32>((word >> (index % 2u * 16u)) & 0xffffu)).x;
}

// Rounded to nearest, ties to even; NaN stays NaN.
fn packed4(values: vec4<f32>) -> vec2<u32> {
    let bits = bitcast<vec4<u32>>(values);
    {%- if packed == "bf16" %}
    let rounded = (bits + vec4<u32>(0x7fffu) + ((bits >> vec4<u32>(16u)) & vec4<u32>(1u))) >> vec4<u32>(16u);
    let quiet = (bits >> vec4<u32>(16u)) | vec4<u32>(0x40u);
    let halves = select(rounded, quiet, (bits & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u));
    {%- else %}
    // By bits: pack2x16float may round either way, and what it makes of infinities is open.
    let size = bits & vec4<u32>(0x7fffffffu);
    let normal = (size - vec4<u32>(0x37fff001u) + ((size >> vec4<u32>(13u)) & vec4<u32>(1u))) >> vec4<u32>(13u);
    // Adding 0.5 leaves the bits of a subnormal at the end.
    let small = bitcast<vec4<u32>>(bitcast<vec4<f32>>(size) + vec4<f32>(0.5)) - vec4<u32>(0x3f000000u);
    let finite = select(normal, small, size < vec4<u32>(0x38800000u));
    let limited = select(finite, vec4<u32>(0x7c00u), size >= vec4<u32>(0x477ff000u));
    let halves = select(limited, vec4<u32>(0x7e00u), size > vec4<u32>(0x7f800000u)) | ((bits >> vec4<u32>(16u)) & vec4<u32>(0x8000u));
    {%- endif %}
    return vec2<u32>(halves.x | (halves.y << 16u), halves.z | (halves.w << 16u));
}
