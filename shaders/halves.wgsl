{% import "part/storage" as storage -%}
// Counts f16 that the GPU's own conversions treat otherwise than those by bits do. Widening: each of them, in either
// half of a word. Narrowing: f32 at, between and beside them, f32 of any bits, there and back; sums and products.
//
// Invocations: one for each f16, 256 workgroups.

// What is widened and what is narrowed otherwise, invocations, and 0.
@group(0) @binding(0) var<storage, read_write> counts: array<atomic<u32>, 4>;

{{ storage.widened("f16") }}
{{ storage.narrowed("f16") }}

// Of a format: all bits but the sign's, and those of infinity.
const F32 = vec2<u32>(0x7fffffffu, 0x7f800000u);
const F16 = vec2<u32>(0x7fffu, 0x7c00u);

// One NaN is as good as another.
fn differ(one: u32, other: u32, format: vec2<u32>) -> u32 {
    let are_nan = min(one & format.x, other & format.x) > format.y;
    return select(1u, 0u, are_nan || one == other);
}

fn bits_of(half: u32) -> u32 {
    return bitcast<u32>(widened_f16(vec4<u32>(half)).x);
}

fn widens(half: u32) -> u32 {
    let low = unpack2x16float(half | 0x3c000000u).x;
    let high = unpack2x16float((half << 16u) | 0x3c00u).y;
    let bits = bits_of(half);
    return differ(bits, bitcast<u32>(low), F32) + differ(bits, bitcast<u32>(high), F32);
}

// There and back as part/functions rounds.
fn narrows(bits: u32) -> u32 {
    let value = bitcast<f32>(bits);
    let half = narrowed_f16(vec4<f32>(value)).x;
    let low = pack2x16float(vec2<f32>(value, 0.0));
    let high = pack2x16float(vec2<f32>(1.0, value)) >> 16u;
    let back = bitcast<u32>(unpack2x16float(min(pack2x16float(vec2<f32>(value)), 0xfffffffeu)).y);
    return differ(half, low, F16) + differ(half, high, F16) + differ(bits_of(half), back, F32);
}

fn any_of(half: u32, i: u32) -> u32 {
    return (half * 3u + i) * 2654435769u;
}

// From 2^-8 to 2^8, or as far below 0.
fn number_of(bits: u32) -> f32 {
    return bitcast<f32>((bits & 0x87ffffffu) + 0x3b800000u);
}

// A sum and a product are f32 before they are narrowed: no compiler may round them once where that is twice. Those by
// bits are other ones, as far as it knows, and of unknown bits before they are narrowed: `nothing` is 0.
fn narrows_made(left: u32, right: u32, nothing: u32) -> u32 {
    let made = vec2<f32>(number_of(left) + number_of(right), number_of(left) * number_of(right));
    let a = number_of(left ^ nothing);
    let b = number_of(right ^ nothing);
    let kept = bitcast<vec2<f32>>(bitcast<vec2<u32>>(vec2<f32>(a + b, a * b)) ^ vec2<u32>(nothing));
    let expected = narrowed_f16(kept.xyxy);
    let words = pack2x16float(made);
    return differ(expected.x, words & 0xffffu, F16) + differ(expected.y, words >> 16u, F16);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let half = id.x;
    let at = bits_of(half);
    // Between it and the next one from zero: of bits as of numbers, but beside zero. Then half of a last place, which
    // of the largest leads to infinity.
    let size = half & 0x7fffu;
    let between = select((bits_of(size) + bits_of(size + 1u)) / 2u, 0x33000000u, size == 0u) | (at & 0x80000000u);
    let nothing = atomicLoad(&counts[3]);
    var narrowing = 0u;
    // One call for all of them: where functions are inlined, compiling takes longer than running.
    for (var i = 0u; i < 12u; i++) {
        let beside = i / 4u;
        let bits = vec4<u32>(at + beside - 1u, between + beside - 1u, at + 0xfffu + beside, any_of(half, beside));
        narrowing += narrows(bits[i % 4u]);
    }
    for (var i = 0u; i < 3u; i++) {
        let any = any_of(half, i);
        narrowing += narrows_made(any, any * 2246822519u + 1u, nothing);
    }
    atomicAdd(&counts[0], widens(half));
    atomicAdd(&counts[1], narrowing);
    atomicAdd(&counts[2], 1u);
}
