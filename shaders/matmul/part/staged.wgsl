{# Macros of kernels whose tiles pass through workgroup memory: `threads` invocations load a step of -#}
{# `tile_k` together, as vec4<`staged`>, and keep it in one of `stages` halves. `quads` are the tile's -#}
{# rows of A, or columns of B, by fours; `fast` is the axis along which neighbours lie. -#}
{% from "matmul/part/load" import load4, load1 -%}
{% set staged4 = "vec4<" ~ staged ~ ">" -%}
{# What invocations load at a time: a vec4, or a block of four by four along k. -#}
{% macro items(vector, fast, quads) -%}
{{ quads * tile_k // (4 if vector == 4 and fast == "k" else 1) }}
{%- endmacro -%}
{% macro loads(vector, fast, quads) -%}
{{ (items(vector, fast, quads) | int + threads - 1) // threads }}
{%- endmacro -%}
{# Where the loads of an invocation go: their step in k and their quad of rows or columns; and where they start. -#}
{# Rows and columns past the edge repeat the last one: what they add up to is never stored. -#}
{% macro load_start(name, first, extent, stride, along, vector, fast, quads, first_slot) %}
    {%- for i in range(loads(vector, fast, quads) | int) -%}
    {%- set along_k = vector == 4 and fast == "k" %}
    let {{ name }}_slot_{{ i }} = {% if first_slot %}(local_index + {{ first_slot }}u) % {{ threads }}u{% else %}local_index{% endif %} + {{ i * threads }}u;
    {%- if along_k %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} % {{ tile_k // 4 }}u * 4u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} / {{ tile_k // 4 }}u;
    {%- elif fast == "k" %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} % {{ tile_k }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} / {{ tile_k }}u;
    {%- else %}
    let {{ name }}_k_{{ i }} = {{ name }}_slot_{{ i }} / {{ quads }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} % {{ quads }}u;
    {%- endif %}
    {%- if along_k %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = ({{ name }}_base + min({{ first }} + {{ name }}_quad_{{ i }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }} + {{ name }}_k_{{ i }}) / 4u;
    {%- endfor %}
    {%- elif vector == 4 %}
    let {{ name }}_start_{{ i }} = {{ name }}_base / 4u + min({{ first }} / 4u + {{ name }}_quad_{{ i }}, {{ extent }} / 4u - 1u) + {{ name }}_k_{{ i }} * ({{ along }} / 4u);
    {%- else %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = {{ name }}_base + min({{ first }} + {{ name }}_quad_{{ i }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }} + {{ name }}_k_{{ i }} * {{ along }};
    {%- endfor %}
    {%- endif %}
    {%- endfor %}
{%- endmacro -%}
{% macro load_declare(name, vector, fast, quads) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
    {%- for j in range(4 if along_k else 1) %}
    var {{ name }}_next_{{ i }}{{ "_" ~ j if along_k }}: {{ staged4 }};
    {%- endfor %}
    {%- endfor %}
{%- endmacro -%}
{# Steps past the end of k count as zero: the branch keeps them from being read. -#}
{% macro load_next(name, slot, along, vector, fast, quads) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- set count = items(vector, fast, quads) | int %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
        {%- for j in range(4 if along_k else 1) %}
        {{ name }}_next_{{ i }}{{ "_" ~ j if along_k }} = {{ staged4 }}();
        {%- endfor %}
        if k + {{ name }}_k_{{ i }} < params.k{% if (i + 1) * threads > count %} && {{ name }}_slot_{{ i }} < {{ count }}u{% endif %} {
            {%- if along_k %}
            {%- for j in range(4) %}
            {{ name }}_next_{{ i }}_{{ j }} = {{ load4(slot, name ~ "_start_" ~ i ~ "_" ~ j ~ " + k / 4u", staged) }};
            {%- endfor %}
            {%- elif vector == 4 %}
            {{ name }}_next_{{ i }} = {{ load4(slot, name ~ "_start_" ~ i ~ " + k * (" ~ along ~ " / 4u)", staged) }};
            {%- else %}
            {{ name }}_next_{{ i }} = {{ staged4 }}({% for j in range(4) %}{{ load1(slot, name ~ "_start_" ~ i ~ "_" ~ j ~ " + k * " ~ along, staged) }}{{ ", " if not loop.last }}{% endfor %});
            {%- endif %}
        }
    {%- endfor %}
{%- endmacro -%}
{# Where the workgroup is larger than what a round of loads leaves to do, some invocations have nothing to keep. -#}
{# The tile is k-major, `pitch` vec4 a step; with `as_they_lie` blocks along k stay rows of `pitch` vec4. -#}
{% macro load_keep(name, pitch, size, vector, fast, quads, as_they_lie) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- set count = items(vector, fast, quads) | int %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
        {%- if (i + 1) * threads > count %}
        if {{ name }}_slot_{{ i }} < {{ count }}u {
        {%- else %}
        {
        {%- endif %}
            {%- if along_k and as_they_lie %}
            let at = {% if stages == 2 %}stage * {{ size }}u + {% endif %}{{ name }}_quad_{{ i }} * {{ 4 * pitch }}u + {{ name }}_k_{{ i }} / 4u;
            {%- for j in range(4) %}
            tile_{{ name }}[at + {{ j * pitch }}u] = {{ name }}_next_{{ i }}_{{ j }};
            {%- endfor %}
            {%- else %}
            let at = {% if stages == 2 %}stage * {{ size }}u + {% endif %}{{ name }}_k_{{ i }} * {{ pitch }}u + {{ name }}_quad_{{ i }};
            {%- if along_k %}
            {%- for step in range(4) %}
            tile_{{ name }}[at + {{ step * pitch }}u] = {{ staged4 }}({% for j in range(4) %}{{ name }}_next_{{ i }}_{{ j }}[{{ step }}]{{ ", " if not loop.last }}{% endfor %});
            {%- endfor %}
            {%- else %}
            tile_{{ name }}[at] = {{ name }}_next_{{ i }};
            {%- endif %}
            {%- endif %}
        }
    {%- endfor %}
{%- endmacro -%}
