{# Macros of kernels for every dtype: elements as they lie in memory, and as kernels compute with them. Those -#}
{# narrower than a word lie in words: "f16" and "bf16" two, computed with as f32; "bool" four, as bool; -#}
{# "bits16" and "bits8" are the bits of any such element, as u32. -#}
{# Four neighbours at a time (`four`), `index` counts in fours; else in elements. -#}

{# Elements of a word. -#}
{% macro lanes(dtype) -%}
{{ {"f16": 2, "bf16": 2, "bits16": 2, "bool": 4, "bits8": 4}[dtype] | default(1) }}
{%- endmacro -%}

{# What a kernel computes with. -#}
{% macro value(dtype) -%}
{{ {"f16": "f32", "bf16": "f32", "bits16": "u32", "bits8": "u32"}[dtype] | default(dtype) }}
{%- endmacro -%}

{# An element of the array that a buffer is. -#}
{% macro unit(dtype, four) -%}
{% if dtype in ["f16", "bf16", "bits16"] %}{{ "vec2<u32>" if four else "u32" }}{% elif dtype in ["bool", "bits8"] %}u32{% elif four %}vec4<{{ dtype }}>{% else %}{{ dtype }}{% endif %}
{%- endmacro -%}

{# Four neighbours. -#}
{% macro load4(dtype, buffer, index) -%}
{% if dtype in ["f16", "bf16", "bits16", "bool", "bits8"] %}four_{{ dtype }}({{ buffer }}[{{ index }}]){% else %}{{ buffer }}[{{ index }}]{% endif %}
{%- endmacro -%}

{# One element of a buffer of single units. -#}
{% macro load1(dtype, buffer, index) -%}
{{ loaded1(dtype, buffer ~ "[" ~ word_of(dtype, index) ~ "]", index) }}
{%- endmacro -%}

{# One element of a buffer of single units that are atomic. -#}
{% macro load_atomic(dtype, buffer, index) -%}
{{ loaded1(dtype, "atomicLoad(&" ~ buffer ~ "[" ~ word_of(dtype, index) ~ "])", index) }}
{%- endmacro -%}

{% macro word_of(dtype, index) -%}
{% if dtype in ["bool", "bits8"] %}({{ index }}) >> 2u{% elif dtype in ["f16", "bf16", "bits16"] %}({{ index }}) >> 1u{% else %}{{ index }}{% endif %}
{%- endmacro -%}

{% macro loaded1(dtype, word, index) -%}
{% if dtype in ["bool", "bits8"] %}one_{{ dtype }}({{ word }} >> ((({{ index }}) & 3u) << 3u)){% elif dtype in ["f16", "bf16", "bits16"] %}one_{{ dtype }}({{ word }} >> ((({{ index }}) & 1u) << 4u)){% else %}{{ word }}{% endif %}
{%- endmacro -%}

{# One element of a buffer of fours; `index` counts elements. -#}
{% macro load_of4(dtype, buffer, index) -%}
{% if dtype in ["bool", "bits8"] %}{{ load1(dtype, buffer, index) }}{% elif dtype in ["f16", "bf16", "bits16"] %}one_{{ dtype }}({{ buffer }}[({{ index }}) >> 2u][(({{ index }}) >> 1u) & 1u] >> ((({{ index }}) & 1u) << 4u)){% else %}{{ buffer }}[({{ index }}) >> 2u][({{ index }}) & 3u]{% endif %}
{%- endmacro -%}

{# Four values as they are stored. -#}
{% macro stored4(dtype, value) -%}
{% if dtype in ["f16", "bf16", "bits16", "bool", "bits8"] %}packed_{{ dtype }}({{ value }}){% else %}{{ value }}{% endif %}
{%- endmacro -%}

{# The bits of one value in the low end of a word, for dtypes narrower than one. -#}
{% macro bits1(dtype, value) -%}
bits_{{ dtype }}({{ value }})
{%- endmacro -%}

{# What holds eight neighbours, of 8, 16 or 32 bits each (the last where there are words of 64). -#}
{% macro unit8(dtype) -%}
{{ "vec2<u32>" if dtype in ["bool", "bits8"] else "vec4<u32>" if dtype in ["f16", "bf16", "bits16"] else "vec4<u64>" }}
{%- endmacro -%}

{# What holds one, four or eight neighbours. -#}
{% macro unit_of(dtype, count) -%}
{% if count == 8 %}{{ unit8(dtype) }}{% else %}{{ unit(dtype, count == 4) }}{% endif %}
{%- endmacro -%}

{# A unit of one, four or eight neighbours as `name`_0 and, of eight, `name`_1 with every other one. -#}
{% macro load_unit(dtype, count, name, buffer, index) -%}
{%- if count == 8 %}
            let {{ name }} = {{ buffer }}[{{ index }}];
            {%- if dtype in ["f16", "bf16"] %}
            let {{ name }}_0 = even_{{ dtype }}({{ name }});
            let {{ name }}_1 = odd_{{ dtype }}({{ name }});
            {%- elif dtype == "bits16" %}
            let {{ name }}_0 = {{ name }} & vec4<u32>(0xffffu);
            let {{ name }}_1 = {{ name }} >> vec4<u32>(16u);
            {%- elif dtype in ["bool", "bits8"] %}
            let {{ name }}_pairs = vec4<u32>({{ name }}.x, {{ name }}.x >> 16u, {{ name }}.y, {{ name }}.y >> 16u);
            {%- for half in range(2) %}
            let {{ name }}_{{ half }} = ({{ name }}_pairs & vec4<u32>({{ "0xff00u" if half else "0xffu" }})){{ " != vec4<u32>(0u)" if dtype == "bool" else " >> vec4<u32>(8u)" if half }};
            {%- endfor %}
            {%- else %}
            let {{ name }}_0 = bitcast<vec4<{{ dtype }}>>(vec4<u32>({{ name }}));
            let {{ name }}_1 = bitcast<vec4<{{ dtype }}>>(vec4<u32>({{ name }} >> vec4<u32>(32u)));
            {%- endif %}
{%- elif count == 4 %}
            let {{ name }}_0 = {{ load4(dtype, buffer, index) }};
{%- else %}
            let {{ name }}_0 = {{ load1(dtype, buffer, index) }};
{%- endif %}
{%- endmacro -%}

{# One element of a buffer of units; `index` counts elements. -#}
{% macro load_of(dtype, count, buffer, index) -%}
{% if count == 1 %}{{ load1(dtype, buffer, index) }}{% elif count == 4 %}{{ load_of4(dtype, buffer, index) }}{% elif dtype in ["bool", "bits8"] %}one_{{ dtype }}({{ buffer }}[({{ index }}) >> 3u][(({{ index }}) >> 2u) & 1u] >> ((({{ index }}) & 3u) << 3u)){% elif dtype in ["f16", "bf16", "bits16"] %}one_{{ dtype }}({{ buffer }}[({{ index }}) >> 3u][(({{ index }}) >> 1u) & 3u] >> ((({{ index }}) & 1u) << 4u)){% else %}bitcast<{{ dtype }}>(u32({{ buffer }}[({{ index }}) >> 3u][(({{ index }}) >> 1u) & 3u] >> ((({{ index }}) & 1u) << 5u))){% endif %}
{%- endmacro -%}

{# Four values, or eight in two halves as `load_unit` gives them, as they are stored. -#}
{% macro stored_unit(dtype, count, name) -%}
{% if count == 8 and dtype in ["f16", "bf16", "bool", "bits8"] %}eight_{{ dtype }}({{ name }}_0, {{ name }}_1){% elif count == 8 and dtype == "bits16" %}{{ name }}_0 | ({{ name }}_1 << vec4<u32>(16u)){% elif count == 8 %}vec4<u64>(bitcast<vec4<u32>>({{ name }}_0)) | (vec4<u64>(bitcast<vec4<u32>>({{ name }}_1)) << vec4<u32>(32u)){% elif count == 4 %}{{ stored4(dtype, name ~ "_0") }}{% else %}{{ name }}_0{% endif %}
{%- endmacro -%}

{# One value narrower than a word into a buffer of atomic words; its neighbours in the word belong to others. -#}
{% macro store_atomic(dtype, buffer, index, value) -%}
{%- set lanes_of_word = lanes(dtype) | int %}
            let lane_ = ({{ index }}) % {{ lanes_of_word }}u * {{ 32 // lanes_of_word }}u;
            atomicAnd(&{{ buffer }}[({{ index }}) / {{ lanes_of_word }}u], ~({{ "0xffu" if lanes_of_word == 4 else "0xffffu" }} << lane_));
            atomicOr(&{{ buffer }}[({{ index }}) / {{ lanes_of_word }}u], {{ bits1(dtype, value) }} << lane_);
{%- endmacro -%}

{# Behind eight integers: those that are only moved would stay words of 64 bits, which takes llvmpipe twice as -#}
{# long. A zero that it does not know of, a place's highest bit, parts them. -#}
{% macro parted(dtype, count, place) -%}
{% if count == 8 and dtype in ["i32", "u32"] %} ^ vec4<{{ dtype }}>(vec4<u32>({{ place }} >> 31u)){% endif %}
{%- endmacro -%}

{# Conversions by bits: WGSL leaves open how pack2x16float rounds, what it makes of infinities, and what becomes of -#}
{# subnormals. -#}
{% macro widened(dtype) -%}
fn widened_{{ dtype }}(halves: vec4<u32>) -> vec4<f32> {
    {%- if dtype == "bf16" %}
    return bitcast<vec4<f32>>(halves << vec4<u32>(16u));
    {%- else %}
    // Subnormals, infinities and NaN, all others.
    let size = halves & vec4<u32>(0x7fffu);
    let normal = (size << vec4<u32>(13u)) + select(vec4<u32>(0x38000000u), vec4<u32>(0x70000000u), size >= vec4<u32>(0x7c00u));
    let small = bitcast<vec4<u32>>(vec4<f32>(size) * 0x1p-24f);
    return bitcast<vec4<f32>>(select(normal, small, size < vec4<u32>(0x400u)) | ((halves & vec4<u32>(0x8000u)) << vec4<u32>(16u)));
    {%- endif %}
}
{%- endmacro -%}

{% macro narrowed(dtype) -%}
// Rounded to nearest, ties to even; NaN stays NaN.
fn narrowed_{{ dtype }}(values: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(values);
    let is_nan = (bits & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    {%- if dtype == "bf16" %}
    let rounded = (bits + vec4<u32>(0x7fffu) + ((bits >> vec4<u32>(16u)) & vec4<u32>(1u))) >> vec4<u32>(16u);
    let quiet = (bits >> vec4<u32>(16u)) | vec4<u32>(0x40u);
    return select(rounded, quiet, is_nan);
    {%- else %}
    // What is larger rounds to infinity too.
    let limited = min(abs(values), vec4<f32>(65536.0));
    let size = bitcast<vec4<u32>>(limited);
    let normal = (size + vec4<u32>(0xc8000fffu) + ((size >> vec4<u32>(13u)) & vec4<u32>(1u))) >> vec4<u32>(13u);
    // Adding 0.5 leaves the bits of a subnormal at the end.
    let small = bitcast<vec4<u32>>(limited + vec4<f32>(0.5)) - vec4<u32>(0x3f000000u);
    let finite = select(normal, small, limited < vec4<f32>(0x1p-14));
    return select(finite, vec4<u32>(0x7e00u), is_nan) | ((bits >> vec4<u32>(16u)) & vec4<u32>(0x8000u));
    {%- endif %}
}
{%- endmacro -%}

{# What the macros above call, for one dtype narrower than a word. `unpacks` and `packs`: the GPU's own conversions of -#}
{# f16 are as good as ours (`halves.wgsl` asks it). -#}
{% macro functions(dtype) -%}
{% if dtype == "bool" -%}
fn one_bool(bits: u32) -> bool {
    return (bits & 0xffu) != 0u;
}
fn four_bool(word: u32) -> vec4<bool> {
    return (vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(0xffu)) != vec4<u32>(0u);
}
fn bits_bool(value: bool) -> u32 {
    return select(0u, 1u, value);
}
fn packed_bool(values: vec4<bool>) -> u32 {
    let bits = select(vec4<u32>(0u), vec4<u32>(1u, 0x100u, 0x10000u, 0x1000000u), values);
    return bits.x | bits.y | bits.z | bits.w;
}
// Every other one of eight.
fn eight_bool(even: vec4<bool>, odd: vec4<bool>) -> vec2<u32> {
    let bits = select(vec4<u32>(0u), vec4<u32>(1u, 0x10000u, 1u, 0x10000u), even)
        | select(vec4<u32>(0u), vec4<u32>(0x100u, 0x1000000u, 0x100u, 0x1000000u), odd);
    return bits.xz | bits.yw;
}
{%- elif dtype == "bits8" -%}
fn one_bits8(bits: u32) -> u32 {
    return bits & 0xffu;
}
fn four_bits8(word: u32) -> vec4<u32> {
    return vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(0xffu);
}
fn bits_bits8(value: u32) -> u32 {
    return value;
}
fn packed_bits8(values: vec4<u32>) -> u32 {
    return values.x | (values.y << 8u) | (values.z << 16u) | (values.w << 24u);
}
// Every other one of eight.
fn eight_bits8(even: vec4<u32>, odd: vec4<u32>) -> vec2<u32> {
    let pairs = even | (odd << vec4<u32>(8u));
    return pairs.xz | (pairs.yw << vec2<u32>(16u));
}
{%- elif dtype == "bits16" -%}
fn one_bits16(bits: u32) -> u32 {
    return bits & 0xffffu;
}
fn four_bits16(words: vec2<u32>) -> vec4<u32> {
    return vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u);
}
fn bits_bits16(value: u32) -> u32 {
    return value;
}
fn packed_bits16(values: vec4<u32>) -> vec2<u32> {
    return vec2<u32>(values.x | (values.y << 16u), values.z | (values.w << 16u));
}
{%- else -%}
{% if dtype == "f16" and unpacks -%}
fn one_f16(bits: u32) -> f32 {
    return unpack2x16float(bits).x;
}
fn four_f16(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
// Every other one of eight.
fn even_f16(words: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(one_f16(words.x), one_f16(words.y), one_f16(words.z), one_f16(words.w));
}
fn odd_f16(words: vec4<u32>) -> vec4<f32> {
    return even_f16(words >> vec4<u32>(16u));
}
{%- else -%}
{{ widened(dtype) }}
fn one_{{ dtype }}(bits: u32) -> f32 {
    return widened_{{ dtype }}(vec4<u32>(bits & 0xffffu)).x;
}
fn four_{{ dtype }}(words: vec2<u32>) -> vec4<f32> {
    return widened_{{ dtype }}(vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u));
}
// Every other one of eight.
fn even_{{ dtype }}(words: vec4<u32>) -> vec4<f32> {
    return widened_{{ dtype }}(words & vec4<u32>(0xffffu));
}
fn odd_{{ dtype }}(words: vec4<u32>) -> vec4<f32> {
    return widened_{{ dtype }}(words >> vec4<u32>(16u));
}
{%- endif %}
{% if dtype == "f16" and packs -%}
fn bits_f16(value: f32) -> u32 {
    return pack2x16float(vec2<f32>(value, 0.0));
}
fn packed_f16(values: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(values.xy), pack2x16float(values.zw));
}
fn eight_f16(even: vec4<f32>, odd: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        pack2x16float(vec2<f32>(even.x, odd.x)),
        pack2x16float(vec2<f32>(even.y, odd.y)),
        pack2x16float(vec2<f32>(even.z, odd.z)),
        pack2x16float(vec2<f32>(even.w, odd.w)),
    );
}
{%- else -%}
{{ narrowed(dtype) }}
fn bits_{{ dtype }}(value: f32) -> u32 {
    return narrowed_{{ dtype }}(vec4<f32>(value)).x;
}
fn packed_{{ dtype }}(values: vec4<f32>) -> vec2<u32> {
    let halves = narrowed_{{ dtype }}(values);
    return vec2<u32>(halves.x | (halves.y << 16u), halves.z | (halves.w << 16u));
}
fn eight_{{ dtype }}(even: vec4<f32>, odd: vec4<f32>) -> vec4<u32> {
    return narrowed_{{ dtype }}(even) | (narrowed_{{ dtype }}(odd) << vec4<u32>(16u));
}
{%- endif %}
{%- endif %}
{%- endmacro -%}
