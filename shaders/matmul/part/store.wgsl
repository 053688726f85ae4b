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

{% include "matmul/part/finish" %}
