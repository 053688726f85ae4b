{# Part of the kernels for vectors: which rows of which matrix the workgroup has, and where its operands start. -#}
    // The grid is folded into two dimensions; the last row of workgroups may be idle.
    let tile = workgroup.x + workgroup.y * workgroups.x;
    if tile >= params.tiles {
        return;
    }
    let batch = tile / params.tiles_m;
{% include "matmul/part/batch" %}
