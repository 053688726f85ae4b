{# Part of the tiles of software adapters, at the end: the epilogue of the sums that the lane has stored, from C to C. For its
   formulas at each of a tile's entries compilers take seconds. Lanes have `across` columns from `column_first` on, `run` of them
   beside each other every `pitch`. -#}
{% if apart %}
    {%- if can_accumulate %}
    if (params.part & 2u) != 0u {
        return;
    }
    {%- endif %}
    // Ends that compilers do not know: else they unroll.
    let rows_there = min({{ tile_m }}u, {{ rows_left if rows_left is defined else "params.m - tile_row" }});
    let columns_there = min({{ across }}u, params.n);
    for (var i = 0u; i < rows_there; i++) {
        let row = tile_row + {{ row_of_lane if row_of_lane is defined else "i" }};
        for (var at = 0u; at < columns_there && row < params.m; at += {{ 4 if vector_c == 4 else 1 }}u) {
            finish_again(c_base + row * params.c_row, row, column_first + at / {{ run }}u * {{ pitch }}u + at % {{ run }}u);
        }
    }
{%- endif %}
