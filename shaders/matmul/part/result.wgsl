{# Macros of kernels that write a result: elements of C as they are stored. -#}
{% set packs = result in ["bf16", "packed_f16"] -%}
{% macro result_storage(vector) -%}
{% if packs %}array<vec2<u32>>{% elif vector == 4 %}array<vec4<{{ result }}>>{% else %}array<{{ result }}>{% endif %}
{%- endmacro -%}
{# Finished sums, four or one, as elements. 16 bits without a type are stored by fours alone. -#}
{% macro rounded(value, vector) -%}
{% if packs %}packed4({{ value }}){% elif vector == 4 %}vec4<{{ result }}>({{ value }}){% else %}{{ result }}({{ value }}){% endif %}
{%- endmacro -%}
