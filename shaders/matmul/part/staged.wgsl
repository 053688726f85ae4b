{# Macros of kernels whose tiles pass through workgroup memory: `threads` invocations load a step of -#}
{# `tile_k` together, as vec4<`staged`>, and keep it there. `quads` are the tile's rows of A, or columns -#}
{# of B, by fours; `fast` is the axis along which neighbours lie. -#}
{# Of one stage, loads past the end of k read the last step again, and zeros are kept: a branch at each -#}
{# load costs up to a fifth (docs/matmul.md). Kernels with two stages are faster with the branches. -#}
{% from "matmul/part/load" import load4, load1 -%}
{% set branches = stages is defined and stages == 2 -%}
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
{% macro load_start(name, first, extent, stride, along, vector, fast, quads) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- for i in range(loads(vector, fast, quads) | int) -%}
    {%- set in_step = name ~ "_k_" ~ i %}
    let {{ name }}_slot_{{ i }} = local_index + {{ i * threads }}u;
    {%- if along_k %}
    let {{ in_step }} = {{ name }}_slot_{{ i }} % {{ tile_k // 4 }}u * 4u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} / {{ tile_k // 4 }}u;
    {%- elif fast == "k" %}
    let {{ in_step }} = {{ name }}_slot_{{ i }} % {{ tile_k }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} / {{ tile_k }}u;
    {%- else %}
    let {{ in_step }} = {{ name }}_slot_{{ i }} / {{ quads }}u;
    let {{ name }}_quad_{{ i }} = {{ name }}_slot_{{ i }} % {{ quads }}u;
    {%- endif %}
    {%- if along_k %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = ({{ name }}_base + min({{ first }} + {{ name }}_quad_{{ i }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }}{{ " + " ~ in_step if branches }}) / 4u;
    {%- endfor %}
    {%- elif vector == 4 %}
    let {{ name }}_start_{{ i }} = {{ name }}_base / 4u + min({{ first }} / 4u + {{ name }}_quad_{{ i }}, {{ extent }} / 4u - 1u){{ " + " ~ in_step ~ " * (" ~ along ~ " / 4u)" if branches }};
    {%- else %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = {{ name }}_base + min({{ first }} + {{ name }}_quad_{{ i }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }}{{ " + " ~ in_step ~ " * " ~ along if branches }};
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
{# The loads of the step at `k`, into `name`_next: declared before, or by `declare` here. -#}
{% macro load_next(name, slot, along, vector, fast, quads, k="k", declare="") %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- set count = items(vector, fast, quads) | int %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
        {%- set start = name ~ "_start_" ~ i %}
        {%- set next = declare ~ name ~ "_next_" ~ i %}
        {%- if branches %}
        {%- set at = k %}
        {%- for j in range(4 if along_k else 1) %}
        {{ next }}{{ "_" ~ j if along_k }} = {{ staged4 }}();
        {%- endfor %}
        if {{ k }} + {{ name }}_k_{{ i }} < params.k{% if (i + 1) * threads > count %} && {{ name }}_slot_{{ i }} < {{ count }}u{% endif %} {
        {%- else %}
        {%- set at = name ~ "_at_" ~ i %}
        let {{ at }} = min({{ k }} + {{ name }}_k_{{ i }}, params.k - {{ 4 if along_k else 1 }}u);
        {%- endif %}
        {%- if along_k %}
        {%- for j in range(4) %}
        {{ next }}_{{ j }} = {{ load4(slot, start ~ "_" ~ j ~ " + " ~ at ~ " / 4u", staged) }};
        {%- endfor %}
        {%- elif vector == 4 %}
        {{ next }} = {{ load4(slot, start ~ " + " ~ at ~ " * (" ~ along ~ " / 4u)", staged) }};
        {%- else %}
        {{ next }} = {{ staged4 }}({% for j in range(4) %}{{ load1(slot, start ~ "_" ~ j ~ " + " ~ at ~ " * " ~ along, staged) }}{{ ", " if not loop.last }}{% endfor %});
        {%- endif %}
        {%- if branches %}
        }
        {%- endif %}
    {%- endfor %}
{%- endmacro -%}
{# Zeros for what was loaded past the end of k. -#}
{% macro load_end(name, vector, fast, quads) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
            if k + {{ name }}_k_{{ i }} >= params.k {
                {%- for j in range(4 if along_k else 1) %}
                {{ name }}_next_{{ i }}{{ "_" ~ j if along_k }} = {{ staged4 }}();
                {%- endfor %}
            }
    {%- endfor %}
{%- endmacro -%}
{# Where the workgroup is larger than what a round of loads leaves to do, some invocations have loaded in vain. -#}
{# The tile is k-major from vec4 `first` on, `pitch` vec4 a step; what is loaded along k lies in rows of `pitch` vec4. -#}
{# With `end`, what was loaded past the end of k is kept as zeros. -#}
{% macro load_keep(name, pitch, vector, fast, quads, first="", end=false) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- set count = items(vector, fast, quads) | int %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
        {%- set in_step = name ~ "_k_" ~ i %}
        {%- set quad = name ~ "_quad_" ~ i %}
        {%- if (i + 1) * threads > count %}
        if {{ name }}_slot_{{ i }} < {{ count }}u {
        {%- else %}
        {
        {%- endif %}
            let at = {{ first }}{% if along_k %}{{ quad }} * {{ 4 * pitch }}u + {{ in_step }} / 4u{% else %}{{ in_step }} * {{ pitch }}u + {{ quad }}{% endif %};
            {%- for j in range(4 if along_k else 1) %}
            {%- set next = name ~ "_next_" ~ i ~ ("_" ~ j if along_k else "") %}
            tile_{{ name }}[at{{ " + " ~ (j * pitch) ~ "u" if j }}] = {% if end %}select({{ next }}, {{ staged4 }}(), k + {{ in_step }} >= params.k){% else %}{{ next }}{% endif %};
            {%- endfor %}
        }
    {%- endfor %}
{%- endmacro -%}
