{# Part of the tiled kernels: which tile of which matrix the workgroup has, and where its operands start. -#}
    // The grid is folded into two dimensions; the last row of workgroups may be idle.
    let tile = workgroup.x + workgroup.y * workgroups.x;
    if tile >= params.tiles {
        return;
    }
    let tiles_per_matrix = params.tiles_m * params.tiles_n;
    let batch = tile / tiles_per_matrix;
    let tile_in_matrix = tile % tiles_per_matrix;

    // Walk down bands of {{ band }} tile rows, so that neighbours in time share operands in cache.
    let tiles_per_band = {{ band }}u * params.tiles_n;
    let band_first = tile_in_matrix / tiles_per_band * {{ band }}u;
    let band_height = min({{ band }}u, params.tiles_m - band_first);
    let tile_in_band = tile_in_matrix % tiles_per_band;
    let tile_row = (band_first + tile_in_band % band_height) * {{ tile_m }}u;
    let tile_column = tile_in_band / band_height * {{ tile_n }}u;

{% include "matmul/part/batch" %}
