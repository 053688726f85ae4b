{# Part of the tiled kernels: four columns or one into C, inside its edges. -#}
{% if vector_c == 4 -%}
fn store(row_start: u32, row: u32, column: u32, sum: {{ quad }}) {
    if column < params.n {
        finish((row_start + column) / 4u, row, column, sum);
    }
}
{%- else -%}
fn store(row_start: u32, row: u32, column: u32, sum: {{ quad }}) {
    {%- for j in range(4) %}
    store_one(row_start, row, column + {{ j }}u, sum[{{ j }}]);
    {%- endfor %}
}

fn store_one(row_start: u32, row: u32, column: u32, sum: {{ accumulator }}) {
    if column < params.n {
        finish(row_start + column, row, column, sum);
    }
}
{%- endif %}

{% if apart is defined and apart -%}
fn finish_again(row_start: u32, row: u32, column: u32) {
    if column < params.n {
        let index = {{ "(row_start + column) / 4u" if vector_c == 4 else "row_start + column" }};
        buffer{{ slot_c }}[index] = epilogue(row, column, buffer{{ slot_c }}[index]);
    }
}

{% endif -%}
{% include "matmul/part/finish" %}
