{# A pass of a sort over lines in blocks, by a digit of the keys: `sort/count` and `sort/move`. -#}
{% import "part/keys" as keys -%}
{% import "part/storage" as storage -%}

{% macro params() -%}
struct Params {
    // Blocks of all lines: the first one, one past the last.
    first: u32,
    end: u32,
    // Elements of a line and of its blocks, and blocks of it.
    size: u32,
    length: u32,
    blocks: u32,
    // The digit's lowest bit.
    shift: u32,
    flip: u32,
    zeros: u32,
    // Places of line 0: in what is read, as elements, keys and places, and in what is counted.
    x_first: u32,
    keys_first: u32,
    places_first: u32,
    counts_first: u32,
    // Elements that are written of a line, which of those of all lines are bound, and how many.
    kept: u32,
    window_first: u32,
    window: u32,
}
{%- endmacro -%}

{# The bindings that keys, and with `places` also where they were, are read from; how many. -#}
{% macro bindings(element, source, places) -%}
{% if source == "keys" -%}
@group(0) @binding(0) var<storage, read_write> keys: array<u32>;
{% else -%}
@group(0) @binding(0) var<storage, read_write> x: array<{{ storage.unit(keys.moved(element), false) }}>;
{% endif -%}
{% if count(source, places) | int == 2 -%}
@group(0) @binding(1) var<storage, read_write> places: array<u32>;
{% endif -%}
{%- endmacro -%}

{% macro count(source, places) -%}
{{ 2 if source == "places" or (source == "keys" and places) else 1 }}
{%- endmacro -%}

{# A function of an element's place in its line, and of the line's first one. -#}
{% macro read(element, source) -%}
{% if source != "keys" -%}
{{ keys.read(element) }}

{% endif -%}
fn key_of(line: u32, place: u32) -> u32 {
    {%- if source == "keys" %}
    return keys[params.keys_first + line + place];
    {%- elif source == "places" %}
    return key_at(params.x_first + line + places[params.places_first + line + place]).x;
    {%- else %}
    return key_at(params.x_first + line + place){{ ".y" if element == "f64" }};
    {%- endif %}
}
{%- endmacro -%}
