{# Part of every matmul kernel: where the operands of the batch's matrices start that are the workgroup's (or invocation's). -#}
    var a_base = params.a_offset;
    var b_base = params.b_offset;
    var c_base = params.c_offset;
    {%- if finishes and bias %}
    bias_base = params.bias_offset;
    {%- endif %}
    {%- if finishes and residual %}
    residual_base = params.residual_offset;
    {%- endif %}
    {%- if batch_rank > 0 %}
    var batch_rest = batch;
    {%- for d in range(batch_rank) | reverse %}
    let batch_index_{{ d }} = batch_rest % params.batch_shape_{{ d }};
    batch_rest /= params.batch_shape_{{ d }};
    a_base += batch_index_{{ d }} * params.batch_a_{{ d }};
    b_base += batch_index_{{ d }} * params.batch_b_{{ d }};
    c_base += batch_index_{{ d }} * params.batch_c_{{ d }};
    {%- if finishes and bias %}
    bias_base += batch_index_{{ d }} * params.batch_bias_{{ d }};
    {%- endif %}
    {%- if finishes and residual %}
    residual_base += batch_index_{{ d }} * params.batch_residual_{{ d }};
    {%- endif %}
    {%- endfor %}
    {%- endif %}
