{{ enables }}
// Random numbers by counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011). Element i takes word i % 4 of block i / 4, so the numbers depend
// on the seed and the index alone. The third word of the counter tells distributions apart: with one seed they are
// independent of each other. src/ops/random.rs is the twin, step by step.
//
// distribution   "uniform": [0, 1), exact, so the same bits everywhere; "normal": Box-Muller;
//                "integers": `count` of them from `low` on, modulo 2^32
// element        "f32", "f16", "f64" (uniform only), "u32" (integers only)
struct Params {
    blocks: u32,
    // The first block's place in the buffer, and its 64-bit number.
    offset: u32,
    first_low: u32,
    first_high: u32,
    seed_low: u32,
    seed_high: u32,
    {%- if distribution == "integers" %}
    low: u32,
    // 0 is 2^32.
    count: u32,
    {%- endif %}
}
{{ params_var }}

{% set lanes = 2 if element == "f64" else 4 %}
@group(0) @binding(0) var<storage, read_write> buffer0: array<vec{{ lanes }}<{{ element }}>>;

// High half of a 64-bit product, by 16-bit halves.
fn multiply_high(a: u32, b: u32) -> u32 {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 16u);
    let other = a_low * b_high + (middle & 0xffffu);
    return a_high * b_high + (middle >> 16u) + (other >> 16u);
}

fn philox(step: u32) -> vec4<u32> {
    let block_low = params.first_low + step;
    let carry = select(0u, 1u, block_low < step);
    var counter = vec4<u32>(block_low, params.first_high + carry, {{ 2 if distribution == "integers" else 1 if distribution == "uniform" else 0 }}u, 0u);
    var key = vec2<u32>(params.seed_low, params.seed_high);
    for (var round = 0u; round < 10u; round++) {
        let high_0 = multiply_high(0xD2511F53u, counter.x);
        let low_0 = 0xD2511F53u * counter.x;
        let high_1 = multiply_high(0xCD9E8D57u, counter.z);
        let low_1 = 0xCD9E8D57u * counter.z;
        counter = vec4<u32>(high_1 ^ counter.y ^ key.x, low_1, high_0 ^ counter.w ^ key.y, low_0);
        key += vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

{% if distribution == "integers" -%}
fn integer(word: u32) -> u32 {
    return params.low + select(multiply_high(word, params.count), word, params.count == 0u);
}
{%- endif %}

{% if distribution == "normal" -%}
// Adapters differ in log, sin and cos by far more than 1e-6: these use + and * only.

// ln((word + 1/2) / 2^32), from -22.9 to -1.2e-10.
fn log_uniform(word: u32) -> f32 {
    // value = (2 word + 1) = mantissa * 2^exponent with 33 bits; leading zeros find the exponent.
    let zeros = countLeadingZeros(word);
    // 24 bits from the leading one on, the half included while there is room for it.
    let shifted = select((word << zeros) | select(0u, 1u << (zeros - 1u), zeros > 0u), 0x80000000u, zeros == 32u);
    // Close to 1 the complement is what carries the digits.
    if word >= 0xC0000000u {
        let rest = (f32(0xffffffffu - word) + 0.5) * 2.3283064365386963e-10;
        return log_near_one(-rest);
    }
    var mantissa = f32(shifted >> 8u) * 1.1920928955078125e-7;
    var exponent = -1.0 - f32(zeros);
    if mantissa > 1.4142135 {
        mantissa *= 0.5;
        exponent += 1.0;
    }
    return exponent * 0.69314718 + log_near_one(mantissa - 1.0);
}

// ln(1 + x) for x in [-0.3, 0.42]: 2 atanh(x / (2 + x)) as a series.
fn log_near_one(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let q = s * s;
    return 2.0 * s * (1.0 + q * (0.33333333 + q * (0.2 + q * (0.14285714 + q * (0.11111111 + q * 0.09090909)))));
}

// cos and sin of a full turn times (word + 1/2) / 2^32, by octants.
fn turn(word: u32) -> vec2<f32> {
    // Round to the nearest quarter turn; what is left is in [-1/8, 1/8) turns.
    let quarter = (word + 0x20000000u) >> 30u;
    let rest = bitcast<i32>(word - (quarter << 30u));
    let x = (f32(rest) + 0.5) * 1.4629180792671596e-9;
    let q = x * x;
    let sine = x * (1.0 + q * (-0.16666667 + q * (0.0083333333 + q * (-0.00019841270 + q * 0.0000027557319))));
    let cosine = 1.0 + q * (-0.5 + q * (0.041666667 + q * (-0.0013888889 + q * (0.000024801587 + q * -2.7557319e-7))));
    switch quarter & 3u {
        case 0u: { return vec2<f32>(cosine, sine); }
        case 1u: { return vec2<f32>(-sine, cosine); }
        case 2u: { return vec2<f32>(-cosine, -sine); }
        default: { return vec2<f32>(sine, -cosine); }
    }
}

fn normals(words: vec4<u32>) -> vec4<f32> {
    let first = sqrt(-2.0 * log_uniform(words.x)) * turn(words.y);
    let second = sqrt(-2.0 * log_uniform(words.z)) * turn(words.w);
    return vec4<f32>(first, second);
}
{%- endif %}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let step = (workgroup.x + workgroup.y * workgroups.x) * 256u + local_index;
    if step >= params.blocks {
        return;
    }
    let words = philox(step);
    let block = params.offset + step;
    {%- if distribution == "normal" %}
    buffer0[block] = vec4<{{ element }}>(normals(words));
    {%- elif distribution == "integers" %}
    buffer0[block] = vec4<u32>(integer(words.x), integer(words.y), integer(words.z), integer(words.w));
    {%- elif element == "f32" %}
    buffer0[block] = vec4<f32>(words >> vec4<u32>(8u)) * 5.9604644775390625e-8;
    {%- elif element == "f16" %}
    buffer0[block] = vec4<f16>(vec4<f32>(words >> vec4<u32>(21u)) * 0.00048828125);
    {%- else %}
    // 27 and 26 bits of two words make the 53 of a double.
    let high = vec2<f64>(words.xz >> vec2<u32>(5u));
    let low = vec2<f64>(words.yw >> vec2<u32>(6u));
    buffer0[block] = (high * 67108864.0lf + low) * 1.1102230246251565e-16lf;
    {%- endif %}
}
