{# Part of the flat tile: which block of which matrix the invocation has, and where its operands start. -#}
    // The grid is folded into two dimensions; its last invocations may be idle.
    let tile = (workgroup.x + workgroup.y * workgroups.x) * {{ threads }}u + local_index;
    if tile >= params.tiles {
        return;
    }
    let tiles_per_matrix = params.tiles_m * params.tiles_n;
    let batch = tile / tiles_per_matrix;
    let tile_in_matrix = tile - batch * tiles_per_matrix;
    let tile_row = tile_in_matrix / params.tiles_n;
    let row_first = tile_row * {{ tile_m }}u;
    let column_first = (tile_in_matrix - tile_row * params.tiles_n) * {{ tile_n }}u;

{% include "matmul/part/batch" %}
