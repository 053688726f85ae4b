{# Macros of kernels whose tiles pass through workgroup memory: `threads` invocations load a step of -#}
{# `tile_k` together, and keep it there as vec4<`staged`>. `quads` are the tile's rows of A, or columns -#}
{# of B, by fours; `fast` is the axis along which neighbours lie, `vector` of them a load: 1, 4, or 8 of f16 as vec4<u32>. -#}
{# Tiles are k-major: blocks of four by four along k are turned round in registers. Those of cooperative matrices lie as -#}
{# their operands do. -#}
{# Loads past the end of k read what is before it again, and zeros are kept: a branch at each load costs up to a fifth -#}
{# (docs/matmul.md). Where k is `whole` steps, which cooperative matrices ask, the last step is read again, and never kept. -#}
{% from "matmul/part/load" import load4, load1 -%}
{% set lie = edge is defined -%}
{% set staged4 = "vec4<" ~ staged ~ ">" -%}
{# What invocations load at a time: a vec4, a block of four by four along k, or an eight. -#}
{% macro items(vector, fast, quads) -%}
{{ quads * tile_k // (2 if vector == 8 else 4 if vector == 4 and fast == "k" else 1) }}
{%- endmacro -%}
{% macro loads(vector, fast, quads) -%}
{{ (items(vector, fast, quads) | int + threads - 1) // threads }}
{%- endmacro -%}
{# Where the loads of an invocation go: their step in k and their quad of rows or columns (of eights, the row along k, -#}
{# else the eight); and where they start. -#}
{# Rows and columns past the edge repeat the last one: what they add up to is never stored. -#}
{% macro load_start(name, first, extent, stride, vector, fast, quads) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- for i in range(loads(vector, fast, quads) | int) -%}
    {%- set in_step = name ~ "_k_" ~ i %}
    let {{ name }}_slot_{{ i }} = local_index + {{ i * threads }}u;
    {%- set slot = name ~ "_slot_" ~ i %}
    {%- set quad = name ~ "_quad_" ~ i %}
    {%- if along_k and not lie %}
    // Eight neighbours, which write together, have two blocks along k and four across: all banks.
    let {{ in_step }} = ({{ slot }} % 2u + {{ slot }} / 8u % {{ tile_k // 8 }}u * 2u) * 4u;
    let {{ quad }} = {{ slot }} / 2u % 4u + {{ slot }} / {{ tile_k }}u * 4u;
    {%- elif fast == "k" %}
    let {{ in_step }} = {{ slot }} % {{ tile_k // vector }}u * {{ vector }}u;
    let {{ quad }} = {{ slot }} / {{ tile_k // vector }}u;
    {%- else %}
    {%- set across = quads // 2 if vector == 8 else quads %}
    let {{ in_step }} = {{ slot }} / {{ across }}u;
    let {{ quad }} = {{ slot }} % {{ across }}u;
    {%- endif %}
    {%- if vector == 8 and fast == "k" %}
    let {{ name }}_start_{{ i }} = ({{ name }}_base + min({{ first }} + {{ quad }}, {{ extent }} - 1u) * {{ stride }}) / 8u;
    {%- elif vector == 8 %}
    let {{ name }}_start_{{ i }} = {{ name }}_base / 8u + min({{ first }} / 8u + {{ quad }}, {{ extent }} / 8u - 1u);
    {%- elif along_k %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = ({{ name }}_base + min({{ first }} + {{ quad }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }}) / 4u;
    {%- endfor %}
    {%- elif vector == 4 %}
    let {{ name }}_start_{{ i }} = {{ name }}_base / 4u + min({{ first }} / 4u + {{ quad }}, {{ extent }} / 4u - 1u);
    {%- else %}
    {%- for j in range(4) %}
    let {{ name }}_start_{{ i }}_{{ j }} = {{ name }}_base + min({{ first }} + {{ quad }} * 4u + {{ j }}u, {{ extent }} - 1u) * {{ stride }};
    {%- endfor %}
    {%- endif %}
    {%- endfor %}
{%- endmacro -%}
{% macro loaded(vector) -%}
{{ "vec4<u32>" if vector == 8 else staged4 }}
{%- endmacro -%}
{% macro load_declare(name, vector, fast, quads, set) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
    {%- for j in range(4 if along_k else 1) %}
    var {{ name }}_{{ set }}_{{ i }}{{ "_" ~ j if along_k }}: {{ loaded(vector) }};
    {%- endfor %}
    {%- endfor %}
{%- endmacro -%}
{# The loads of the step at `k`, into `name`_next, or another `set`: declared before, or by `declare` here. -#}
{% macro load_next(name, slot, along, vector, fast, quads, k="k", declare="", set="next") %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
        {%- set start = name ~ "_start_" ~ i %}
        {%- set next = declare ~ name ~ "_" ~ set ~ "_" ~ i %}
        {%- set at = name ~ "_" ~ set ~ "_at_" ~ i %}
        {%- if lie and whole %}
        let {{ at }} = min({{ k }}, params.k - {{ tile_k }}u) + {{ name }}_k_{{ i }};
        {%- else %}
        let {{ at }} = min({{ k }} + {{ name }}_k_{{ i }}, params.k - {{ vector if fast == "k" else 1 }}u);
        {%- endif %}
        {%- if vector == 8 %}
        {{ next }} = buffer{{ slot }}[{{ start }} + {{ at ~ " / 8u" if fast == "k" else at ~ " * (" ~ along ~ " / 8u)" }}];
        {%- elif along_k %}
        {%- for j in range(4) %}
        {{ next }}_{{ j }} = {{ load4(slot, start ~ "_" ~ j ~ " + " ~ at ~ " / 4u", staged) }};
        {%- endfor %}
        {%- elif vector == 4 %}
        {{ next }} = {{ load4(slot, start ~ " + " ~ at ~ " * (" ~ along ~ " / 4u)", staged) }};
        {%- else %}
        {{ next }} = {{ staged4 }}({% for j in range(4) %}{{ load1(slot, start ~ "_" ~ j ~ " + " ~ at ~ " * " ~ along, staged) }}{{ ", " if not loop.last }}{% endfor %});
        {%- endif %}
    {%- endfor %}
{%- endmacro -%}
{# Zeros for what was loaded past the end of k. -#}
{% macro load_end(name, vector, fast, quads, set) %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
            if k + {{ name }}_k_{{ i }} >= params.k {
                {%- for j in range(4 if along_k else 1) %}
                {{ name }}_{{ set }}_{{ i }}{{ "_" ~ j if along_k }} = {{ loaded(vector) }}();
                {%- endfor %}
            }
    {%- endfor %}
{%- endmacro -%}
{# Where the workgroup is larger than what a round of loads leaves to do, some invocations have loaded in vain. -#}
{# `pitch` vec4 are from one step of a tile to the next, or, where it lies along k, from row to row. -#}
{# With `end`, what was loaded past the end of k is kept as zeros. -#}
{% macro load_keep(name, pitch, vector, fast, quads, end=false, set="next") %}
    {%- set along_k = vector == 4 and fast == "k" %}
    {%- set count = items(vector, fast, quads) | int %}
    {%- for i in range(loads(vector, fast, quads) | int) %}
        {%- set in_step = name ~ "_k_" ~ i %}
        {%- set quad = name ~ "_quad_" ~ i %}
        {%- set next = name ~ "_" ~ set ~ "_" ~ i %}
        {%- if (i + 1) * threads > count %}
        if {{ name }}_slot_{{ i }} < {{ count }}u {
        {%- else %}
        {
        {%- endif %}
            {%- if vector == 8 %}
            let at = {% if fast == "k" %}{{ quad }} * {{ pitch }}u + {{ in_step }} / 4u{% else %}{{ in_step }} * {{ pitch }}u + {{ quad }} * 2u{% endif %};
            {%- for half in ["xy", "zw"] %}
            tile_{{ name }}[at{{ " + 1u" if not loop.first }}] = {{ staged4 }}(
                {%- if unpacks %}vec2<f16>(unpack2x16float({{ next }}.{{ half[0] }})), vec2<f16>(unpack2x16float({{ next }}.{{ half[1] }}))
                {%- else %}four_f16({{ next }}.{{ half }}){% endif %});
            {%- endfor %}
            {%- else %}
            let at = {% if along_k and lie %}{{ quad }} * {{ 4 * pitch }}u + {{ in_step }} / 4u{% else %}{{ in_step }} * {{ pitch }}u + {{ quad }}{% endif %};
            {%- for j in range(4 if along_k else 1) %}
            {%- if along_k and not lie %}
            {%- set four -%}
            {{ staged4 }}({% for row in range(4) %}{{ next }}_{{ row }}[{{ j }}]{{ ", " if not loop.last }}{% endfor %})
            {%- endset %}
            {%- else %}
            {%- set four = next ~ ("_" ~ j if along_k else "") %}
            {%- endif %}
            tile_{{ name }}[at{{ " + " ~ (j * pitch) ~ "u" if j }}] = {% if end %}select({{ four }}, {{ staged4 }}(), k + {{ in_step }} >= params.k){% else %}{{ four }}{% endif %};
            {%- endfor %}
            {%- endif %}
        }
    {%- endfor %}
{%- endmacro -%}
