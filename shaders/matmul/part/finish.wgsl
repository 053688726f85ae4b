{# Part of every matmul kernel: one finished sum, or four, to C; `index` counts in what C is declared as. -#}
{# Adding to what is there costs software adapters compile time: left out where nothing asks for it. -#}
{% from "matmul/part/result" import rounded -%}
{% set kept = "vec4<" ~ accumulator ~ ">" if vector_c == 4 else accumulator -%}
{% if finishes -%}
{% include "matmul/part/epilogue" %}

{% endif -%}
// `row` and `column` are the kernel's, in its matrix of C.
fn finish(index: u32, row: u32, column: u32, sum: {{ kept }}) {
    var value = sum;
    {%- if can_accumulate and accumulator != result %}
    let apart = index - params.c_offset{{ " / 4u" if vector_c == 4 }};
    if (params.part & 1u) != 0u {
        value += buffer{{ slot_sums }}[apart];
    }
    if (params.part & 2u) != 0u {
        buffer{{ slot_sums }}[apart] = value;
        return;
    }
    {%- elif can_accumulate %}
    if (params.part & 1u) != 0u {
        value += buffer{{ slot_c }}[index];
    }
    {%- endif %}
    {%- if apart is defined and apart %}
    // Later: matmul/part/finish_tile.
    {%- elif finishes and can_accumulate and accumulator == result %}
    if (params.part & 2u) == 0u {
        value = epilogue(row, column, value);
    }
    {%- elif finishes %}
    value = epilogue(row, column, value);
    {%- endif %}
    buffer{{ slot_c }}[index] = {{ rounded("value", vector_c) }};
}
