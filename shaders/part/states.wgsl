{# What kernels keep of many elements: states, one or four side by side, that take an element more and are joined. -#}
{# `op`, `element`, `accumulator`, `target` and `result` are those of the reduction. -#}
{% import "part/storage" as storage -%}
{% set is_arg = op == "place" -%}
{% set is_extreme = op in ["place", "extreme"] -%}
{% set is_moment = op == "moment" -%}
{% set wide_float = accumulator == "f64" -%}
{% set divides = op in ["sum", "moment"] and (element in ["f32", "f16", "bf16", "f64"]) -%}
{% set roots = op == "moment" -%}
{# Squares of f32 may go over or under: what is squared is scaled where they would. -#}
{% set scales = op == "square" and element in ["f32", "bf16"] and not wide_float -%}
{# The types of a state's fields. -#}
{% set fields = [accumulator, "u32"] if is_arg else [accumulator, accumulator, accumulator, accumulator] if is_moment else [accumulator, accumulator] if op in ["exponential", "square"] else [accumulator] -%}
{% set names = ["a", "b", "c", "d"] -%}
{% set count = fields | length -%}
{# From one state to the next, in words: windows begin at multiples of it. -#}
{% set span = count -%}
{# How states are stored. -#}
{% set word = accumulator if count == 1 or wide_float else "u32" -%}
{# What elements are worked on as. -#}
{% set value = storage.value(element) -%}
{% macro typed(base, n) -%}
{% if n > 1 %}vec4<{{ base }}>{% else %}{{ base }}{% endif %}
{%- endmacro -%}
{% macro stored(field, text) -%}
{% if word == field %}{{ text }}{% elif wide_float %}f64({{ text }}){% else %}bitcast<u32>({{ text }}){% endif %}
{%- endmacro -%}
{% macro restored(field, text) -%}
{% if word == field %}{{ text }}{% elif wide_float %}{{ field }}({{ text }}){% else %}bitcast<{{ field }}>({{ text }}){% endif %}
{%- endmacro -%}
{% from "part/exp" import exponential -%}
{% macro one_of(state, i) -%}
One({% for field in fields %}{{ state }}.{{ names[loop.index0] }}[{{ i }}]{{ ", " if not loop.last }}{% endfor %})
{%- endmacro -%}
{# A number that no compiler takes apart, as `kept` of part/transcendental; f64 as it is. -#}
{% macro kept(name, text) -%}
{% if wide_float %}({{ text }}){% else %}kept_{{ name }}({{ text }}){% endif %}
{%- endmacro -%}
{% macro operations(name, n) %}
{% set State = "One" if n == 1 else "Many" -%}
{% set T = typed(accumulator, n) -%}
{% set U = typed("u32", n) -%}
{% if op in ["exponential", "moment", "square"] and not wide_float -%}
fn kept_{{ name }}(x: {{ T }}) -> {{ T }} {
    return bitcast<{{ T }}>(min(bitcast<{{ U }}>(x), {{ U }}(0xfffffffeu)));
}
{%- endif %}

{% if op == "exponential" -%}
{{ exponential(name, n) }}
{%- endif %}

struct {{ State }} {
    {%- for field in fields %}
    {{ names[loop.index0] }}: {{ typed(field, n) }},
    {%- endfor %}
}

{% if is_extreme and not wide_float -%}
// Numbers in the order of integers, larger is better; NaN is best. Shaders may assume that
// comparisons of floats meet no NaN.
fn key_{{ name }}(x: {{ typed(value, n) }}) -> {{ T }} {
    {%- if value == "f32" %}
    let bits = bitcast<{{ T }}>(x);
    let size = bits & {{ T }}(0x7fffffff);
    var key = bits ^ ((bits >> {{ U }}(31u)) & {{ T }}(0x7fffffff));
    {%- if is_arg %}
    // Both zeros are equal.
    key = select(key, {{ T }}(0), size == {{ T }}(0));
    {%- endif %}
    key ^= {{ T }}(bitcast<i32>(params.least));
    return select(key, {{ T }}(0x7fffffff), size > {{ T }}(0x7f800000));
    {%- else %}
    return x ^ {{ T }}({{ "bitcast<i32>(params.least)" if value == "i32" else "params.least" }});
    {%- endif %}
}
{%- endif %}

{% if is_extreme and wide_float -%}
fn signed_{{ name }}(x: {{ T }}) -> {{ T }} {
    return select(x, -x, params.least != 0u);
}

// By bits of the f32 next to it: comparisons of what is no number may be done away with.
fn is_nan_{{ name }}(x: {{ T }}) -> {{ typed("bool", n) }} {
    return (bitcast<{{ U }}>({{ typed("f32", n) }}(x)) & {{ U }}(0x7fffffffu)) > {{ U }}(0x7f800000u);
}
{%- endif %}

fn empty_{{ name }}() -> {{ State }} {
    {%- if op == "product" %}
    return {{ State }}({{ T }}(1));
    {%- elif is_extreme %}
    {%- set least = "-2147483647 - 1" if accumulator == "i32" else "0" if accumulator == "u32" else "lowest()" %}
    return {{ State }}({{ T }}({{ least }}){{ ", " ~ U ~ "(0xffffffffu)" if is_arg }});
    {%- elif op == "square" %}
    return {{ State }}({{ T }}(), {{ T }}({{ "1.0lf" if wide_float else "0x1p80f" }}));
    {%- elif op == "exponential" %}
    return {{ State }}({{ T }}(-3.4028234663852886e38), {{ T }}(0.0));
    {%- else %}
    return {{ State }}({% for field in fields %}{{ T }}(){{ ", " if not loop.last }}{% endfor %});
    {%- endif %}
}

fn take_{{ name }}(state: {{ State }}, x: {{ typed(value, n) }}, at: {{ U }}) -> {{ State }} {
    {%- if op == "truth" %}
    {%- if value == "f64" %}
    {%- set W = typed("u64", n) %}
    // All bits but the sign: lavapipe of Mesa 26 takes a subnormal for zero where it compares.
    let is_true = (bitcast<{{ W }}>(x) << {{ U }}(1u)) != {{ W }}();
    {%- else %}
    let is_true = (x & {{ U }}(params.mask)) != {{ U }}(0u);
    {%- endif %}
    return {{ State }}(state.a | (select({{ U }}(0u), {{ U }}(1u), is_true) ^ {{ U }}(params.flip)));
    {%- elif op == "sum" and element == "bits8" %}
    return {{ State }}(state.a + min(x, {{ U }}(1u)));
    {%- elif op == "sum" %}
    return {{ State }}(state.a + x);
    {%- elif op == "square" %}
    let y = x * state.b;
    return {{ State }}(state.a + y * y, state.b);
    {%- elif op == "product" %}
    return {{ State }}(state.a * x);
    {%- elif is_arg %}
    let y = {{ "signed_" ~ name ~ "(x)" if wide_float else "key_" ~ name ~ "(x)" }};
    // The first of equal ones: steps go forward. Anything is better than nothing.
    let is_better = (y > state.a) | (state.b == {{ U }}(0xffffffffu)){% if wide_float %} | (is_nan_{{ name }}(y) & !is_nan_{{ name }}(state.a)){% endif %};
    return {{ State }}(select(state.a, y, is_better), select(state.b, at, is_better));
    {%- elif is_extreme and wide_float %}
    let y = signed_{{ name }}(x);
    let is_better = (y > state.a) | is_nan_{{ name }}(y);
    return {{ State }}(select(state.a, y, is_better));
    {%- elif is_extreme %}
    return {{ State }}(max(state.a, key_{{ name }}(x)));
    {%- elif is_moment %}
    // Welford's way; all have taken as many. The mean is d + b.
    let count = state.a + {{ T }}(1.0);
    let y = {{ kept(name, "x - state.d") }};
    let from_mean = y - state.b;
    let mean = state.b + from_mean * (1.0{{ "lf" if wide_float }} / count{{ ".x" if n > 1 }});
    return {{ State }}(count, mean, state.c + from_mean * (y - mean), state.d);
    {%- elif op == "exponential" %}
    return join_{{ name }}(state, {{ State }}(x, {{ T }}(1.0)));
    {%- endif %}
}

{% if is_moment -%}
// With d next to the mean, and in b what is left of it. Bits are cut off so that no compiler takes the
// difference for nothing.
fn based_{{ name }}(state: {{ State }}) -> {{ State }} {
    {%- if wide_float %}
    return state;
    {%- else %}
    let mean = bitcast<{{ T }}>(bitcast<{{ U }}>(state.d + state.b) & {{ U }}(0xfffffffeu));
    return {{ State }}(state.a, kept_{{ name }}(state.d - mean) + state.b, state.c, mean);
    {%- endif %}
}
{%- endif %}

{% if op == "square" and not wide_float -%}
// What elements are multiplied by whose squares sum to this: squares below 2^-126 are nothing beside 2^-60.
fn scale_{{ name }}(sum: {{ T }}) -> {{ T }} {
    let bits = bitcast<{{ U }}>(sum);
    let small = select({{ T }}(1.0), {{ T }}(0x1p80f), bits < {{ U }}(0x21800000u));
    return select(small, {{ T }}(0x1p-80f), bits >= {{ U }}(0x71800000u));
}

// The state of one element.
fn single_{{ name }}(x: {{ T }}) -> {{ State }} {
    let bits = bitcast<{{ U }}>(x) & {{ U }}(0x7fffffffu);
    let small = select({{ T }}(1.0), {{ T }}(0x1p80f), bits < {{ U }}(0x30800000u));
    let scale = select(small, {{ T }}(0x1p-80f), bits >= {{ U }}(0x58000000u));
    let y = x * scale;
    return {{ State }}(y * y, scale);
}

// A sum of squares in another scale: 2^160 times smaller, or out of sight.
fn rescaled_{{ name }}(sum: {{ T }}, from_scale: {{ T }}, to_scale: {{ T }}) -> {{ T }} {
    let next = select({{ T }}(), kept_{{ name }}(sum * 0x1p-80f) * 0x1p-80f, from_scale * 0x1p-80f == to_scale);
    return select(next, sum, from_scale == to_scale);
}
{%- endif %}

{% if op == "exponential" -%}
// Four that are finite, or minus infinity.
fn take_four_{{ name }}(state: {{ State }}, x: {{ T }}, y: {{ T }}, z: {{ T }}, w: {{ T }}) -> {{ State }} {
    let top = max(max(max(x, y), max(z, w)), state.a);
    let sum = (less_{{ name }}(x - top) + less_{{ name }}(y - top)) + (less_{{ name }}(z - top) + less_{{ name }}(w - top));
    return {{ State }}(top, state.b * less_{{ name }}(state.a - top) + sum);
}

// As many once more.
fn take_eight_{{ name }}(state: {{ State }}, x: array<{{ T }}, 8>) -> {{ State }} {
    let above = max(max(max(x[0], x[1]), max(x[2], x[3])), max(max(x[4], x[5]), max(x[6], x[7])));
    let top = max(above, state.a);
    let first = (less_{{ name }}(x[0] - top) + less_{{ name }}(x[1] - top)) + (less_{{ name }}(x[2] - top) + less_{{ name }}(x[3] - top));
    let second = (less_{{ name }}(x[4] - top) + less_{{ name }}(x[5] - top)) + (less_{{ name }}(x[6] - top) + less_{{ name }}(x[7] - top));
    return {{ State }}(top, state.b * less_{{ name }}(state.a - top) + (first + second));
}

// The largest bits so far, as those of signed and of unsigned numbers.
struct Seen{{ State }} {
    above: {{ typed("i32", n) }},
    below: {{ U }},
}

fn see_{{ name }}(seen: Seen{{ State }}, x: {{ T }}) -> Seen{{ State }} {
    return Seen{{ State }}(max(seen.above, bitcast<{{ typed("i32", n) }}>(x)), max(seen.below, bitcast<{{ U }}>(x)));
}

// The state of numbers among which there may have been infinity or NaN. By bits: shaders may assume that there
// is none.
fn seen_{{ name }}(state: {{ State }}, seen: Seen{{ State }}) -> {{ State }} {
    let is_infinite = seen.above == {{ typed("i32", n) }}(0x7f800000);
    let is_nan = (seen.above > {{ typed("i32", n) }}(0x7f800000)) | (seen.below > {{ U }}(0xff800000u));
    let top = select(state.a, bitcast<{{ T }}>(seen.above), is_infinite);
    let sum = select(state.b, {{ T }}(1.0), is_infinite);
    return {{ State }}(select(top, {{ T }}(), is_nan), select(sum, bitcast<{{ T }}>(seen.below | {{ U }}(0x7fc00000u)), is_nan));
}
{%- endif %}

fn join_{{ name }}(x: {{ State }}, y: {{ State }}) -> {{ State }} {
    {%- if op == "truth" %}
    return {{ State }}(x.a | y.a);
    {%- elif op == "sum" %}
    return {{ State }}(x.a + y.a);
    {%- elif op == "square" and wide_float %}
    return {{ State }}(x.a + y.a, x.b);
    {%- elif op == "square" %}
    let scale = min(x.b, y.b);
    return {{ State }}(rescaled_{{ name }}(x.a, x.b, scale) + rescaled_{{ name }}(y.a, y.b, scale), scale);
    {%- elif op == "product" %}
    return {{ State }}(x.a * y.a);
    {%- elif is_arg %}
    {%- if wide_float %}
    let is_equal = (x.a == y.a) | (is_nan_{{ name }}(x.a) & is_nan_{{ name }}(y.a));
    let is_better = (y.a > x.a) | (is_nan_{{ name }}(y.a) & !is_nan_{{ name }}(x.a));
    {%- else %}
    let is_equal = x.a == y.a;
    let is_better = y.a > x.a;
    {%- endif %}
    // Positions of nothing are the largest.
    let is_first = is_equal & (y.b < x.b);
    let takes = (y.b != {{ U }}(0xffffffffu)) & ((x.b == {{ U }}(0xffffffffu)) | is_better | is_first);
    return {{ State }}(select(x.a, y.a, takes), select(x.b, y.b, takes));
    {%- elif is_extreme and wide_float %}
    let is_better = (y.a > x.a) | is_nan_{{ name }}(y.a);
    return {{ State }}(select(x.a, y.a, is_better));
    {%- elif is_extreme %}
    return {{ State }}(max(x.a, y.a));
    {%- elif is_moment %}
    let count = x.a + y.a;
    let base = select(x.d, y.d, x.a == {{ T }}());
    let apart = select({{ kept(name, "y.d - base") }} + (y.b - x.b), {{ T }}(), y.a == {{ T }}());
    let share = y.a / max(count, {{ T }}(1.0));
    // Beside nothing there is no distance, whose square may go over.
    let between = select(apart * apart * x.a * share, {{ T }}(), x.a == {{ T }}());
    return based_{{ name }}({{ State }}(count, x.b + apart * share, x.c + y.c + between, base));
    {%- elif op == "exponential" %}
    // Of NaN only the sum tells. Equal ones may be infinite.
    let is_nan = (bitcast<{{ U }}>(y.a) & {{ U }}(0x7fffffffu)) > {{ U }}(0x7f800000u);
    let top = select(max(x.a, y.a), x.a, is_nan);
    let apart = select(y.a - x.a, {{ T }}(0.0), bitcast<{{ U }}>(x.a) == bitcast<{{ U }}>(y.a));
    let less = exp_{{ name }}(-abs(apart));
    let is_higher = apart > {{ T }}(0.0);
    let one = {{ T }}(1.0);
    return {{ State }}(top, x.b * select(one, less, is_higher) + y.b * select(less, one, is_higher));
    {%- endif %}
}

{% if target == "result" -%}
{% set R = typed(storage.value(result), n) -%}
fn finish_{{ name }}(state: {{ State }}) -> {{ R }} {
    {%- if op == "truth" %}
    return (state.a ^ {{ U }}(params.flip)) != {{ U }}(0u);
    {%- elif divides and op == "sum" %}
    let is_one = params.divisor_low == 1u && params.divisor_high == 0u;
    return {{ R }}(select(state.a / divisor(), state.a, is_one));
    {%- elif op == "square" and wide_float %}
    return sqrt(state.a);
    {%- elif op == "square" %}
    let one = {{ T }}(1.0);
    let back = select(select({{ T }}(0x1p-80f), one, state.b == one), {{ T }}(0x1p80f), state.b < one);
    return {{ R }}(sqrt(state.a) * back);
    {%- elif is_moment %}
    let variance = state.c / divisor();
    return {{ R }}(select(variance, sqrt(variance), params.root != 0u));
    {%- elif is_arg %}
    return state.b;
    {%- elif is_extreme and wide_float %}
    return signed_{{ name }}(state.a);
    {%- elif is_extreme and result in ["f32", "f16", "bf16"] %}
    let key = state.a ^ {{ T }}(bitcast<i32>(params.least));
    let bits = key ^ ((key >> {{ U }}(31u)) & {{ T }}(0x7fffffff));
    return {{ R }}(bitcast<{{ typed("f32", n) }}>(select(bits, {{ T }}(0x7fc00000), state.a == {{ T }}(0x7fffffff))));
    {%- elif is_extreme %}
    return state.a ^ {{ T }}({{ "bitcast<i32>(params.least)" if accumulator == "i32" else "params.least" }});
    {%- elif op == "exponential" %}
    let sum = state.a + log(state.b);
    // Of nothing but minus infinity.
    let is_none = (bitcast<{{ U }}>(state.b) & {{ U }}(0x7fffffffu)) == {{ U }}(0u);
    let lowest = bitcast<{{ T }}>((bitcast<{{ U }}>(state.b) & {{ U }}(0u)) | {{ U }}(0xff800000u));
    return {{ R }}(select(select(sum, state.b, (bitcast<{{ U }}>(state.b) & {{ U }}(0x7fffffffu)) >= {{ U }}(0x7f800000u)), lowest, is_none));
    {%- else %}
    return {{ R }}(state.a);
    {%- endif %}
}
{%- endif %}
{% endmacro -%}
{# Joins what the `lanes` of a row have in `shared`, `pitch` from one to the next, in halves: lane 0 has it all in the -#}
{# end. `joined` is what becomes of two, x and y. -#}
{% macro join_lanes(shared, joined, lanes, pitch=1) -%}
    {%- for apart in [128, 64, 32, 16, 8, 4, 2, 1] if apart < lanes %}
    workgroupBarrier();
    if lane < {{ apart }}u {
        let x = {{ shared }}[local_index];
        let y = {{ shared }}[local_index + {{ apart * pitch }}u];
        {{ shared }}[local_index] = {{ joined }};
    }
    {%- endfor %}
{%- endmacro -%}
{# Sums of exponentials from `step` to `end`, into `total`_0 and `total`_1, as if all numbers were finite; what was -#}
{# not is put right after it. Software adapters go through both sides of every branch, so there is none. `load` is -#}
{# a macro of a name and a step, `ahead` one that sees what eight steps will load. With `early` the four steps to come -#}
{# are loaded before four are summed: 16-bit elements on hardware wait for memory else (docs/reductions.md). -#}
{% macro exponentials(load, lanes, quads, unit, ahead='', early=false) -%}
{% set many = "many" if unit > 1 else "one" -%}
{% set Many = "Many" if unit > 1 else "One" -%}
    {%- for q in range(quads) %}
    var seen_{{ q }} = Seen{{ Many }}();
    {%- endfor %}
    {%- if early %}
    // Past the end the last step once more; who has none loads the first.
    let last = max(end, 1u) - 1u;
    {%- for i in range(4) %}
    {{- load("first" ~ i, "min(step + " ~ i * lanes ~ "u, last)") }}
    {%- for q in range(quads) %}
    var x{{ i }}_{{ q }} = first{{ i }}_{{ q }};
    {%- endfor %}
    {%- endfor %}
    {%- endif %}
    while step < end {
        let block_end = min(step + {{ 64 * lanes }}u, end);
        {%- for q in range(quads) %}
        var part_{{ q }} = empty_{{ many }}();
        {%- endfor %}
        {%- if early %}
        while step + {{ 3 * lanes }}u < block_end {
            {%- for i in range(4) %}
            {{- load("next" ~ i, "min(step + " ~ (4 + i) * lanes ~ "u, last)") }}
            {%- endfor %}
            {%- for q in range(quads) %}
            {%- for i in range(4) %}
            seen_{{ q }} = see_{{ many }}(seen_{{ q }}, x{{ i }}_{{ q }});
            {%- endfor %}
            part_{{ q }} = take_four_{{ many }}(part_{{ q }}, x0_{{ q }}, x1_{{ q }}, x2_{{ q }}, x3_{{ q }});
            {%- for i in range(4) %}
            x{{ i }}_{{ q }} = next{{ i }}_{{ q }};
            {%- endfor %}
            {%- endfor %}
            step += {{ 4 * lanes }}u;
        }
        {%- endif %}
        {%- for steps in ([] if early else [8, 4] if lanes <= 8 else [4]) %}
        while step + {{ (steps - 1) * lanes }}u < block_end {
            {%- if ahead and steps == 8 %}
            {{- ahead() }}
            {%- endif %}
            {%- for i in range(steps) %}
            {{- load("x" ~ i, "step + " ~ i * lanes ~ "u") }}
            {%- for q in range(quads) %}
            seen_{{ q }} = see_{{ many }}(seen_{{ q }}, x{{ i }}_{{ q }});
            {%- endfor %}
            {%- endfor %}
            {%- for q in range(quads) %}
            {%- if steps == 8 %}
            part_{{ q }} = take_eight_{{ many }}(part_{{ q }}, array<{{ typed(accumulator, unit) }}, 8>({% for i in range(8) %}x{{ i }}_{{ q }}{{ ", " if not loop.last }}{% endfor %}));
            {%- else %}
            part_{{ q }} = take_four_{{ many }}(part_{{ q }}, x0_{{ q }}, x1_{{ q }}, x2_{{ q }}, x3_{{ q }});
            {%- endif %}
            {%- endfor %}
            step += {{ steps * lanes }}u;
        }
        {%- endfor %}
        while step < block_end {
            {{- load("x", "step") }}
            {%- for q in range(quads) %}
            seen_{{ q }} = see_{{ many }}(seen_{{ q }}, x_{{ q }});
            part_{{ q }} = take_{{ many }}(part_{{ q }}, x_{{ q }}, {{ typed("u32", unit) }}(0u));
            {%- endfor %}
            step += {{ lanes }}u;
        }
        {%- for q in range(quads) %}
        total_{{ q }} = join_{{ many }}(total_{{ q }}, part_{{ q }});
        {%- endfor %}
    }
    {%- for q in range(quads) %}
    total_{{ q }} = seen_{{ many }}(total_{{ q }}, seen_{{ q }});
    {%- endfor %}
{%- endmacro -%}
{# What a unit's elements, all of one row, have been seen as together: `seen`. -#}
{% macro seen_of_unit(quads) %}
    {%- for q in range(quads) %}
    let above_{{ q }} = max(max(seen_{{ q }}.above.x, seen_{{ q }}.above.y), max(seen_{{ q }}.above.z, seen_{{ q }}.above.w));
    let below_{{ q }} = max(max(seen_{{ q }}.below.x, seen_{{ q }}.below.y), max(seen_{{ q }}.below.z, seen_{{ q }}.below.w));
    {%- endfor %}
    let seen = SeenOne({{ "max(above_0, above_1), max(below_0, below_1)" if quads == 2 else "above_0, below_0" }});
{%- endmacro -%}
{# Ends a turn of sums of squares, `total`_0 and `total`_1, unless `scale`_0 and _1 are wrong for them. -#}
{% macro scaling(quads, unit, apart) -%}
{%- if unit > 1 and not apart %}
    let sum = {% for q in range(quads) %}(total_{{ q }}.a.x + total_{{ q }}.a.y + total_{{ q }}.a.z + total_{{ q }}.a.w){{ " + " if not loop.last }}{% endfor %};
    let better = scale_one(sum);
    if better == scale_0.x {
        break;
    }
    {%- for q in range(quads) %}
    scale_{{ q }} = vec4<{{ accumulator }}>(better);
    {%- endfor %}
{%- else %}
    {%- for q in range(quads) %}
    let better_{{ q }} = scale_{{ "many" if unit > 1 else "one" }}(total_{{ q }}.a);
    {%- endfor %}
    if {% for q in range(quads) %}{{ "all" if unit > 1 }}(better_{{ q }} == scale_{{ q }}){{ " && " if not loop.last }}{% endfor %} {
        break;
    }
    {%- for q in range(quads) %}
    scale_{{ q }} = better_{{ q }};
    {%- endfor %}
{%- endif %}
{%- endmacro -%}
