{# States of rows whose numbers are all held in registers, `held` loads for each lane at most: of `params.steps` loads by one lane, or of `steps` -#}
{# (0: none) by several `lanes` of a workgroup. Each declares the state as `state`, where a unit's elements are all of one (`per_state` and `unit` -#}
{# above 1), else as `state`_0 and _1; the numbers as x0_0, x0_1, x1_0, ...; and `is_there_1`, ..., of several lanes `is_there_0` too. -#}
{# `load` is a macro of a name and a step. -#}
{% from "part/states" import typed, scales, join_lanes, seen_of_unit, kept -%}
{# What several lanes join their parts in. -#}
{% macro shared() -%}
    {%- if op == "exponential" %}
struct Top {
    top: f32,
    above: i32,
    below: u32,
}

var<workgroup> tops_: array<Top, 256>;
var<workgroup> sums_: array<f32, 256>;
    {%- elif op == "moment" %}
var<workgroup> means_: array<f32, 256>;
var<workgroup> sums_: array<vec2<f32>, 256>;
    {%- else %}
var<workgroup> sums_: array<{{ "vec3<f32>" if scales else "f32" }}, 256>;
    {%- endif %}
{%- endmacro -%}
{# The loads, all under way together; what is not there is `nothing`, of each quad with its number where `each`. -#}
{% macro held_loads(load, held, quads, lanes, nothing, each=false) -%}
    {%- for i in range(held) %}
    {%- if i == 0 and lanes == 1 %}
    {{- load("x0", "0u") }}
    {%- else %}
    {%- set step = i ~ "u" if lanes == 1 else "lane + " ~ i * lanes ~ "u" %}
    let is_there_{{ i }} = {{ step }} < {{ "params.steps" if lanes == 1 else "steps" }};
    {{- load("loaded" ~ i, "min(" ~ step ~ ", params.steps - 1u)") }}
    {%- for q in range(quads) %}
    let x{{ i }}_{{ q }} = select({{ nothing ~ q if each else nothing }}, loaded{{ i }}_{{ q }}, is_there_{{ i }});
    {%- endfor %}
    {%- endif %}
    {%- endfor %}
{%- endmacro -%}
{# The sums of a lane, `name`_0 and _1, as `name`_of_0 and _1: where a unit's elements are all of one state (`joins`), one number. -#}
{% macro joined(name, quads, joins) -%}
    {%- if joins %}
    let {{ name }}_of_0 = {% for q in range(quads) %}(({{ name }}_{{ q }}.x + {{ name }}_{{ q }}.y) + ({{ name }}_{{ q }}.z + {{ name }}_{{ q }}.w)){{ " + " if not loop.last }}{% endfor %};
    {%- else %}
    {%- for q in range(quads) %}
    let {{ name }}_of_{{ q }} = {{ name }}_{{ q }};
    {%- endfor %}
    {%- endif %}
{%- endmacro -%}
{# Of exponentials, which are e0_0, ...: several lanes join them by `tops_` and `sums_`, of a Top and a number for each invocation. -#}
{% macro held_exponential(load, held, quads, unit, per_state, lanes=1) -%}
{% set many = "many" if unit > 1 else "one" -%}
{% set Many = "Many" if unit > 1 else "One" -%}
{% set T = typed(accumulator, unit) %}
    // Not a constant: those may not be infinite.
    let nothing = {{ T }}(bitcast<f32>((params.steps & 0u) | 0xff800000u));
    {{- held_loads(load, held, quads, lanes, "nothing") }}
    {%- for q in range(quads) %}
    var seen_{{ q }} = Seen{{ Many }}();
    var top_{{ q }} = {{ T }}(-3.4028234663852886e38);
    {%- for i in range(held) %}
    seen_{{ q }} = see_{{ many }}(seen_{{ q }}, x{{ i }}_{{ q }});
    top_{{ q }} = max(top_{{ q }}, x{{ i }}_{{ q }});
    {%- endfor %}
    {%- endfor %}
    {%- if per_state %}
    {%- if quads == 2 %}
    top_0 = max(top_0, top_1);
    {%- endif %}
    {%- if unit > 1 %}
    top_0 = {{ T }}(max(max(top_0.x, top_0.y), max(top_0.z, top_0.w)));
    {%- endif %}
    {%- if quads == 2 %}
    top_1 = top_0;
    {%- endif %}
    {%- endif %}
    {%- if lanes > 1 %}
    {%- if unit > 1 %}
    {{- seen_of_unit(quads) }}
    {%- else %}
    let seen = seen_0;
    {%- endif %}
    tops_[local_index] = Top(top_0{{ ".x" if unit > 1 }}, seen.above, seen.below);
    {{- join_lanes("tops_", "Top(max(x.top, y.top), max(x.above, y.above), max(x.below, y.below))", lanes) }}
    workgroupBarrier();
    let of_lanes = tops_[local_index - lane];
    {%- for q in range(quads) %}
    top_{{ q }} = {{ T }}(of_lanes.top);
    {%- endfor %}
    {%- endif %}
    {%- for q in range(quads) %}
    var sum_{{ q }} = {{ T }}();
    {%- for i in range(held) %}
    let e{{ i }}_{{ q }} = less_{{ many }}(x{{ i }}_{{ q }} - top_{{ q }});
    sum_{{ q }} += e{{ i }}_{{ q }};
    {%- endfor %}
    {%- endfor %}
    {%- if per_state and unit > 1 %}
    {%- if quads == 2 %}
    sum_0 += sum_1;
    {%- endif %}
    let sum = (sum_0.x + sum_0.y) + (sum_0.z + sum_0.w);
    {%- if lanes == 1 %}
    {{- seen_of_unit(quads) }}
    let state = seen_one(One(top_0.x, sum), seen);
    {%- endif %}
    {%- endif %}
    {%- if lanes > 1 %}
    sums_[local_index] = {{ "sum" if unit > 1 else "sum_0" }};
    {{- join_lanes("sums_", "x + y", lanes) }}
    workgroupBarrier();
    let {{ "state" if unit > 1 else "state_0" }} = seen_one(One(of_lanes.top, sums_[local_index - lane]), SeenOne(of_lanes.above, of_lanes.below));
    {%- elif not (per_state and unit > 1) %}
    {%- for q in range(quads) %}
    let state_{{ q }} = seen_{{ many }}({{ Many }}(top_{{ q }}, sum_{{ q }}), seen_{{ q }});
    {%- endfor %}
    {%- endif %}
{%- endmacro -%}
{# Of squares, by `sums_` of as many numbers as there are scales. All scales at once, since that costs less than to look which it takes. -#}
{% macro held_square(load, held, unit, per_state, lanes=1) -%}
{% set many = "many" if unit > 1 else "one" -%}
{% set T = typed(accumulator, unit) -%}
{% set joins = per_state and unit > 1 -%}
{% set parts = ["as_is", "large", "small"] if scales else ["as_is"] -%}
    {{- held_loads(load, held, 1, lanes, T ~ "()") }}
    {%- for part in parts %}
    var {{ part }}_0 = {{ T }}();
    {%- endfor %}
    {%- for i in range(held) %}
    as_is_0 += x{{ i }}_0 * x{{ i }}_0;
    {%- if scales %}
    {
        let large = {{ kept(many, "x" ~ i ~ "_0 * 0x1p-80f") }};
        let small = {{ kept(many, "x" ~ i ~ "_0 * 0x1p80f") }};
        large_0 += large * large;
        small_0 += small * small;
    }
    {%- endif %}
    {%- endfor %}
    {%- for part in parts %}
    {{- joined(part, 1, joins) }}
    {%- endfor %}
    {%- if lanes > 1 %}
    sums_[local_index] = {{ "vec3<f32>(as_is_of_0, large_of_0, small_of_0)" if scales else "as_is_of_0" }};
    {{- join_lanes("sums_", "x + y", lanes) }}
    workgroupBarrier();
    let of_lanes = sums_[local_index - lane];
    {%- for part in parts %}
    let {{ part }} = of_lanes{{ "." ~ "xyz"[loop.index0] if scales }};
    {%- endfor %}
    {%- else %}
    {%- for part in parts %}
    let {{ part }} = {{ part }}_of_0;
    {%- endfor %}
    {%- endif %}
    {%- set S = T if not joins else accumulator %}
    {%- if scales %}
    let scale = scale_{{ "one" if joins else many }}(as_is);
    let {{ "state" if joins else "state_0" }} = {{ "One" if joins or unit == 1 else "Many" }}(select(select(as_is, small, scale > {{ S }}(1.0)), large, scale < {{ S }}(1.0)), scale);
    {%- else %}
    let {{ "state" if joins else "state_0" }} = {{ "One" if joins or unit == 1 else "Many" }}(as_is, {{ S }}(1.0));
    {%- endif %}
{%- endmacro -%}
{# Of distances from the mean, by `means_` of a number and `sums_` of two. The mean is found by distances from the row's first number, which is exact of -#}
{# equal ones; what it is off by is found with the squares. `length()` is how many numbers there are. -#}
{% macro held_moment(load, held, quads, unit, per_state, lanes=1) -%}
{% set many = "many" if unit > 1 else "one" -%}
{% set T = typed(accumulator, unit) -%}
{% set joins = per_state and unit > 1 -%}
{% set S = T if not joins else accumulator -%}
{% set U = typed("u32", 1 if joins else unit) -%}
    {{- load("near", "0u") }}
    {%- for q in range(quads) %}
    let from_{{ q }} = {{ T ~ "(near_0.x)" if joins else "near_" ~ q }};
    {%- endfor %}
    {{- held_loads(load, held, quads, lanes, "from_", true) }}
    // Shares of the mean: the sum may go over.
    let share = 1.0 / length();
    {%- for q in range(quads) %}
    var apart_{{ q }} = {{ T }}();
    {%- for i in range(held) %}
    apart_{{ q }} += {{ kept(many, "x" ~ i ~ "_" ~ q ~ " - from_" ~ q) }} * share;
    {%- endfor %}
    {%- endfor %}
    {{- joined("apart", quads, joins) }}
    {%- if lanes > 1 %}
    means_[local_index] = apart_of_0;
    {{- join_lanes("means_", "x + y", lanes) }}
    workgroupBarrier();
    let apart_of_row = means_[local_index - lane];
    {%- endif %}
    {%- for q in range(quads) %}
    let mean_{{ q }} = from_{{ q }} + {{ "apart_of_row" if lanes > 1 else "apart_of_0" if joins else "apart_of_" ~ q }};
    var left_{{ q }} = {{ T }}();
    var squares_{{ q }} = {{ T }}();
    {%- for i in range(held) %}
    {
        let distance = {{ kept(many, "x" ~ i ~ "_" ~ q ~ " - mean_" ~ q) }};
        {%- if i > 0 or lanes > 1 %}
        let there = select({{ T }}(), distance, is_there_{{ i }});
        {%- else %}
        let there = distance;
        {%- endif %}
        left_{{ q }} += there;
        squares_{{ q }} += there * there;
    }
    {%- endfor %}
    {%- endfor %}
    {{- joined("left", quads, joins) }}
    {{- joined("squares", quads, joins) }}
    {%- if lanes > 1 %}
    sums_[local_index] = vec2<f32>(left_of_0, squares_of_0);
    {{- join_lanes("sums_", "x + y", lanes) }}
    workgroupBarrier();
    let of_lanes = sums_[local_index - lane];
    {%- endif %}
    {%- for q in range(1 if joins else quads) %}
    {%- set left, squares = ("of_lanes.x", "of_lanes.y") if lanes > 1 else ("left_of_" ~ q, "squares_of_" ~ q) %}
    let rest_{{ q }} = {{ left }} / length();
    // Never below 0. By bits: of a comparison compilers make a maximum, which loses NaN.
    let about_{{ q }} = {{ squares }} - {{ left }} * rest_{{ q }};
    let {{ "state" if joins else "state_" ~ q }} = {{ "One" if joins or unit == 1 else "Many" }}({{ S }}(length()), rest_{{ q }}, select(about_{{ q }}, {{ S }}(), (bitcast<{{ U }}>(about_{{ q }}) - {{ U }}(0x80000001u)) < {{ U }}(0x7f800000u)), mean_{{ q }}{{ ".x" if joins }});
    {%- endfor %}
{%- endmacro -%}
