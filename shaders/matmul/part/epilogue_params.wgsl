{# Part of Params: what an epilogue takes. -#}
    {%- if finishes %}
    // Bits of an f32.
    scale: u32,
    {%- for name in ["bias", "residual"] %}
    {%- if (bias if name == "bias" else residual) %}
    {{ name }}_offset: u32,
    {{ name }}_row: u32,
    {{ name }}_column: u32,
    {%- for d in range(batch_rank) %}
    batch_{{ name }}_{{ d }}: u32,
    {%- endfor %}
    {%- endif %}
    {%- endfor %}
    {%- endif %}
