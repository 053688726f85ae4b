{# Part of kernels with 16-bit elements that have no type of their own: `packed` says which, two to a word. -#}
{% from "part/storage" import functions -%}
{% set half = "bf16" if packed == "bf16" else "f16" -%}
{{ functions(half) }}

fn unpacked4(words: vec2<u32>) -> vec4<f32> {
    return four_{{ half }}(words);
}

fn unpacked1(word: u32, index: u32) -> f32 {
    return one_{{ half }}(word >> (index % 2u * 16u));
}

fn packed4(values: vec4<f32>) -> vec2<u32> {
    return packed_{{ half }}(values);
}
