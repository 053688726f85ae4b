{# Part of the kernels for vectors: which rows of which matrix the workgroup has, and where its operands start. -#}
    // The grid is folded into two dimensions; the last row of workgroups may be idle.
    let tile = workgroup.x + workgroup.y * workgroups.x;
    if tile >= params.tiles {
        return;
    }
    let batch = tile / params.tiles_m;
    var a_base = params.a_offset;
    var b_base = params.b_offset;
    var c_base = params.c_offset;
{% include "matmul/part/batch" %}
