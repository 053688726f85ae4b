{# Macros of every matmul kernel: elements as they are stored, loaded as what sums are kept in. 16 bits -#}
{# that the device has no type for ("bf16"; "packed_f16" without SHADER_F16) lie two to a word. -#}
{% set packs = element in ["bf16", "packed_f16"] -%}
{# How a buffer of elements is declared, by the width of its loads. -#}
{% macro storage(vector) -%}
{% if vector == 8 and element == "f16" %}array<vec4<u32>>{% elif vector == 8 %}array<vec4<u64>>{% elif packs and vector == 4 %}array<vec2<u32>>{% elif packs %}array<u32>{% elif vector == 4 %}array<vec4<{{ element }}>>{% else %}array<{{ element }}>{% endif %}
{%- endmacro -%}
{# Four neighbours, as vec4 of `kept`; `index` counts fours. -#}
{% macro load4(slot, index, kept=accumulator) -%}
{% if packs %}unpacked4(buffer{{ slot }}[{{ index }}]){% else %}vec4<{{ kept }}>(buffer{{ slot }}[{{ index }}]){% endif %}
{%- endmacro -%}
{% macro load1(slot, index, kept=accumulator) -%}
{% if packs %}unpacked1(buffer{{ slot }}[({{ index }}) / 2u], {{ index }}){% else %}{{ kept }}(buffer{{ slot }}[{{ index }}]){% endif %}
{%- endmacro -%}
{# Eight neighbours of 32 bits as scalars `name`_0 to `name`_7; `index` counts eights. -#}
{% macro load8(name, slot, index) %}
        let {{ name }} = buffer{{ slot }}[{{ index }}];
        {%- for i in range(4) %}
        let {{ name }}_{{ 2 * i }} = bitcast<{{ accumulator }}>(u32({{ name }}[{{ i }}]));
        let {{ name }}_{{ 2 * i + 1 }} = bitcast<{{ accumulator }}>(u32({{ name }}[{{ i }}] >> 32u));
        {%- endfor %}
{%- endmacro -%}
