{# Part of the kernels whose invocations share k: where each stands among those along the rows and those along k. -#}
    // Neighbours in the workgroup read neighbours in memory.
    {%- if fast_long == "k" %}
    let k_thread = local_index % {{ k_threads }}u;
    let row_thread = local_index / {{ k_threads }}u;
    {%- else %}
    let k_thread = local_index / {{ row_threads }}u;
    let row_thread = local_index % {{ row_threads }}u;
    {%- endif %}
