{# Keys of a workgroup by a digit of four bits: `threads` invocations have eight neighbours each, `key_0` to `key_7`. -#}
{# After Merrill and Grimshaw, "High Performance and Scalable Radix Sorting" (2011): of each digit every invocation counts its -#}
{# own keys; counts of all digits, those of one in the order of invocations, are scanned; two are in a word. -#}

{% macro memory(threads) -%}
// Keys or places as they change hands; counts of two digits each, and words that invocations sum of them.
var<workgroup> exchange: array<u32, {{ 8 * threads }}>;
var<workgroup> sums: array<u32, {{ threads }}>;

// Of a word of two digits' counts, that of one.
fn count_of(word: u32, digit: u32) -> u32 {
    return (word >> ((digit >> 3u) << 4u)) & 0xffffu;
}
{%- endmacro -%}

{# `rank_0` to `rank_7`: where the keys go among those of the workgroup. Exchange has, until the next barrier, at -#}
{# `(digit & 7) * threads` how many have lower digits. All have left it before. -#}
{% macro ranks(threads) %}
        // Of each digit the own keys so far, in four bits.
        var own = vec2<u32>();
        {%- for i in range(8) %}
        let digit_{{ i }} = (key_{{ i }} >> shift) & 15u;
        let bit_{{ i }} = (digit_{{ i }} & 7u) << 2u;
        let is_high_{{ i }} = digit_{{ i }} >= 8u;
        let before_{{ i }} = (select(own.x, own.y, is_high_{{ i }}) >> bit_{{ i }}) & 15u;
        own += select(vec2<u32>(1u << bit_{{ i }}, 0u), vec2<u32>(0u, 1u << bit_{{ i }}), is_high_{{ i }});
        {%- endfor %}
        {%- for d in range(8) %}
        exchange[{{ d * threads }}u + local_index] = ((own.x >> {{ 4 * d }}u) & 15u) | (((own.y >> {{ 4 * d }}u) & 15u) << 16u);
        {%- endfor %}
        workgroupBarrier();
        var sum = 0u;
        {%- for i in range(8) %}
        sum += exchange[local_index * 8u + {{ i }}u];
        {%- endfor %}
        let of_own = sum;
        sums[local_index] = sum;
        {%- for d in [1, 2, 4, 8, 16, 32, 64, 128] if d < threads %}
        workgroupBarrier();
        sum += select(0u, sums[local_index - min(local_index, {{ d }}u)], local_index >= {{ d }}u);
        workgroupBarrier();
        sums[local_index] = sum;
        {%- endfor %}
        workgroupBarrier();
        // The higher digits of words come behind all lower ones.
        var next = sum - of_own + (sums[{{ threads - 1 }}] << 16u);
        {%- for i in range(8) %}
        let count_{{ i }} = exchange[local_index * 8u + {{ i }}u];
        exchange[local_index * 8u + {{ i }}u] = next;
        next += count_{{ i }};
        {%- endfor %}
        workgroupBarrier();
        {%- for i in range(8) %}
        let rank_{{ i }} = before_{{ i }} + count_of(exchange[(digit_{{ i }} & 7u) * {{ threads }}u + local_index], digit_{{ i }});
        {%- endfor %}
{%- endmacro -%}

{# Eight neighbours' `name`_0 to `name`_7 to where they go. -#}
{% macro scattered(name) %}
        workgroupBarrier();
        {%- for i in range(8) %}
        exchange[rank_{{ i }}] = {{ name }}_{{ i }};
        {%- endfor %}
        workgroupBarrier();
{%- endmacro -%}
