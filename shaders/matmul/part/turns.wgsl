{# Part of the kernels that go along k by turns: all of an invocation's, `turns` at a time where there are as many. -#}
    var k = k_thread * {{ steps }}u;
    {%- if turns > 1 %}
    while k + {{ (turns - 1) * stride }}u < params.k {
        {%- for turn in range(turns) %}
        let k_{{ turn }} = k + {{ turn * stride }}u;
        {{- load("k_" ~ turn, "_" ~ turn) }}
        {%- endfor %}
        {%- for turn in range(turns) %}
        {{- add("k_" ~ turn, "_" ~ turn) }}
        {%- endfor %}
        k += {{ turns * stride }}u;
    }
    {%- endif %}
    while k < params.k {
        {{- load("k", "") }}
        {{- add("k", "") }}
        k += {{ stride }}u;
    }
