{# Part of every matmul kernel: which matrices of the batch are the workgroup's. -#}
    {%- if batch_rank > 0 %}
    var batch_rest = batch;
    {%- for d in range(batch_rank) | reverse %}
    let batch_index_{{ d }} = batch_rest % params.batch_shape_{{ d }};
    batch_rest /= params.batch_shape_{{ d }};
    a_base += batch_index_{{ d }} * params.batch_a_{{ d }};
    b_base += batch_index_{{ d }} * params.batch_b_{{ d }};
    c_base += batch_index_{{ d }} * params.batch_c_{{ d }};
    {%- endfor %}
    {%- endif %}
