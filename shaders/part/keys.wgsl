{# Keys: whole numbers in whose order elements are sorted, as in `ops/sort/keys.rs`. Of f64 two words, the higher one first. -#}
{# Kernels have `flip`, all bits of a key to be turned where the largest come first, and `zeros`, not 0 where -0 and 0 are -#}
{# equal, among their params; elements are words of a buffer, `x` but where one is named. -#}
{% import "part/storage" as storage -%}

{# What a key is. -#}
{% macro type(element) -%}
{{ "vec2<u32>" if element == "f64" else "u32" }}
{%- endmacro -%}

{# Elements that move as they are, in words. -#}
{% macro moved(element) -%}
{{ {"f16": "bits16", "bf16": "bits16", "bool": "bits8", "f64": "vec2<u32>"}[element] | default("u32") }}
{%- endmacro -%}

{# `key_at` of a place in x. -#}
{% macro read(element) -%}
{{ loads(element) -}}
{{ key_of(element, "key_at", "x") }}
{%- endmacro -%}

{# What functions of keys call. -#}
{% macro loads(element) -%}
{% if storage.lanes(moved(element)) | int > 1 -%}
{{ storage.functions(moved(element)) }}

{% endif -%}
{%- endmacro -%}

{# A function of a place in a buffer, by its name. -#}
{% macro key_of(element, name, buffer) -%}
{% set width = {"f16": 16, "bf16": 16, "bool": 1, "f64": 64}[element] | default(32) -%}
fn {{ name }}(at: u32) -> {{ type(element) }} {
    let bits = {{ storage.load1(moved(element), buffer, "at") }};
    {%- if element == "f64" %}
    let size = vec2<u32>(bits.x, bits.y & 0x7fffffffu);
    let is_nan = size.y > 0x7ff00000u || (size.y == 0x7ff00000u && size.x != 0u);
    let is_zero = params.zeros != 0u && size.x == 0u && size.y == 0u;
    let plain = select(select(bits.yx, vec2<u32>(), is_zero), vec2<u32>(0x7ff80000u, 0u), is_nan);
    let key = select(plain | vec2<u32>(0x80000000u, 0u), ~plain, plain.x >= 0x80000000u);
    return key ^ vec2<u32>(params.flip);
    {%- elif element in ["f32", "f16", "bf16"] %}
    {%- set sign = "0x80000000u" if width == 32 else "0x8000u" %}
    {%- set infinity = {"f32": "0x7f800000u", "f16": "0x7c00u", "bf16": "0x7f80u"}[element] %}
    {%- set nan = {"f32": "0x7fc00000u", "f16": "0x7e00u", "bf16": "0x7fc0u"}[element] %}
    let size = bits & ({{ sign }} - 1u);
    let plain = select(select(bits, 0u, params.zeros != 0u && size == 0u), {{ nan }}, size > {{ infinity }});
    {%- set all = "0xffffffffu" if width == 32 else "0xffffu" %}
    return select(plain | {{ sign }}, plain ^ {{ all }}, plain >= {{ sign }}) ^ params.flip;
    {%- elif element == "i32" %}
    return bits ^ 0x80000000u ^ params.flip;
    {%- elif element == "bool" %}
    return select(0u, 1u, bits != 0u) ^ params.flip;
    {%- else %}
    return bits ^ params.flip;
    {%- endif %}
}
{%- endmacro -%}

{# `value_of` a key, in bits of the float or number that it is written as. -#}
{% macro written(element) -%}
{% if element == "f16" -%}
{{ storage.widened("f16") }}

{% endif -%}
fn value_of(flipped: u32) -> u32 {
    let key = flipped ^ params.flip;
    {%- if element == "f32" %}
    return select(~key, key ^ 0x80000000u, key >= 0x80000000u);
    {%- elif element in ["f16", "bf16"] %}
    let half = select(key ^ 0xffffu, key ^ 0x8000u, key >= 0x8000u);
    {%- if element == "bf16" %}
    return half << 16u;
    {%- else %}
    return bitcast<u32>(widened_f16(vec4<u32>(half)).x);
    {%- endif %}
    {%- elif element == "i32" %}
    return key ^ 0x80000000u;
    {%- else %}
    return key;
    {%- endif %}
}
{%- endmacro -%}

{# Params of kernels that have whole lines in order, `first` and `end` of which count what the kernel says. -#}
{% macro line_params() -%}
struct Params {
    first: u32,
    end: u32,
    // Place of element 0, and of the first that is written of line 0.
    x_first: u32,
    out_first: u32,
    // Elements of a line, and how many of it are written.
    size: u32,
    kept: u32,
    flip: u32,
    zeros: u32,
}
{%- endmacro -%}

{# What they bind, with the functions of keys that they need. -#}
{% macro of_lines(element, target) -%}
@group(0) @binding(0) var<storage, read_write> x: array<{{ storage.unit(moved(element), false) }}>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

{{ read(element) }}
{%- if target == "values" %}
{{ written(element) }}
{%- endif %}
{%- endmacro -%}
