{% import "part/storage" as storage -%}
// Counts f16 that the GPU's own conversions treat otherwise than those by bits do. Widening: each of them, in either
// half of a word. Narrowing: f32 at, between and beside them, f32 of any bits, and there and back.
//
// Invocations: one for each f16, 256 workgroups.
@group(0) @binding(0) var<storage, read_write> counts: array<atomic<u32>, 3>;

{{ storage.widened("f16") }}
{{ storage.narrowed("f16") }}

// One NaN is as good as another.
fn differ(one: u32, other: u32, infinity: u32) -> u32 {
    let sizes = infinity * 2u - 1u;
    let are_nan = min(one & sizes, other & sizes) > infinity;
    return select(1u, 0u, are_nan || one == other);
}

fn bits_of(half: u32) -> u32 {
    return bitcast<u32>(widened_f16(vec4<u32>(half)).x);
}

fn widens(half: u32) -> u32 {
    let low = unpack2x16float(half | 0x3c000000u).x;
    let high = unpack2x16float((half << 16u) | 0x3c00u).y;
    let bits = bits_of(half);
    return differ(bits, bitcast<u32>(low), 0x7f800000u) + differ(bits, bitcast<u32>(high), 0x7f800000u);
}

fn narrows(bits: u32) -> u32 {
    let value = bitcast<f32>(bits);
    let half = narrowed_f16(vec4<f32>(value)).x;
    let low = pack2x16float(vec2<f32>(value, 1.0)) & 0xffffu;
    let high = pack2x16float(vec2<f32>(1.0, value)) >> 16u;
    let back = bitcast<u32>(unpack2x16float(pack2x16float(vec2<f32>(value))).y);
    return differ(half, low, 0x7c00u) + differ(half, high, 0x7c00u) + differ(bits_of(half), back, 0x7f800000u);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let half = id.x;
    let at = bits_of(half);
    // Between it and the next one from zero: of bits as of numbers, but beside zero. Then half of a last place, which
    // of the largest leads to infinity.
    let between = select((at + bits_of(half + 1u)) / 2u, 0x33000000u, half == 0u);
    var narrowing = 0u;
    for (var i = 0u; i < 3u; i++) {
        narrowing += narrows(at + i - 1u) + narrows(between + i - 1u) + narrows(at + 0xfffu + i);
        narrowing += narrows((half * 3u + i) * 2654435769u);
    }
    atomicAdd(&counts[0], widens(half));
    atomicAdd(&counts[1], narrowing);
    atomicAdd(&counts[2], 1u);
}
