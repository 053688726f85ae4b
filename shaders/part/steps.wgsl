{# The end of kernels that give their output in ranges: `step` for each element from `first` to `end`, or, with -#}
{# several `lanes` in a word, for the first of each word. -#}
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // The grid is folded into two dimensions.
    let first = (workgroup.x + workgroup.y * workgroups.x) * {{ 256 * per_thread }}u + local_index;
    {%- if lanes == 1 %}
    let count = params.end - params.first;
    {%- else %}
    let start = params.first - params.first % {{ lanes }}u;
    let count = (params.end - start + {{ lanes - 1 }}u) / {{ lanes }}u;
    {%- endif %}
    {%- for i in range(per_thread) %}
    if first + {{ i * 256 }}u < count {
        {%- if lanes == 1 %}
        step(params.first + first + {{ i * 256 }}u);
        {%- else %}
        step(start + (first + {{ i * 256 }}u) * {{ lanes }}u);
        {%- endif %}
    }
    {%- endfor %}
}
