{# `apply`, the body, with the types and functions that it is written in; vector, buffers and body as in -#}
{# elementwise.wgsl. -#}
{% import "part/storage" as storage -%}
alias F = {{ "vec4<f32>" if vector > 1 else "f32" }};
alias I = {{ "vec4<i32>" if vector > 1 else "i32" }};
alias U = {{ "vec4<u32>" if vector > 1 else "u32" }};
alias B = {{ "vec4<bool>" if vector > 1 else "bool" }};
{%- if "f64" in buffers or "D(" in body %}
alias D = {{ "vec4<f64>" if vector > 1 else "f64" }};
{%- endif %}
{% set dtypes = buffers | split -%}
{% for dtype in ["f16", "bf16", "bool", "bits16", "bits8"] -%}
{% if dtype in dtypes or "rounded_" ~ dtype in body %}
{{ storage.functions(dtype) }}
{% endif -%}
{% endfor %}
{% include "part/functions" %}
{{ body }}
