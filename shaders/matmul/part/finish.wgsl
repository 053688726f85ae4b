{# Part of every matmul kernel: one finished sum, or four, to C; `index` counts in what C is declared as. -#}
{# Adding to what is there costs software adapters compile time: left out where nothing asks for it. -#}
{% set kept = "vec4<" ~ accumulator ~ ">" if vector_c == 4 else accumulator -%}
{% set stored = "vec4<" ~ element ~ ">" if vector_c == 4 else element -%}
fn finish(index: u32, sum: {{ kept }}) {
    var value = sum;
    {%- if can_accumulate and accumulator != element %}
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
    buffer{{ slot_c }}[index] = {{ stored }}(value);
}
