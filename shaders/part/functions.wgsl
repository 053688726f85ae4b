{# What generated bodies call: included where `body` names it. F, I, U and B are f32, i32, u32 and bool, or -#}
{# four of them. -#}
{% if "divide_U(" in body -%}
// Division by zero is zero, on every device.
fn divide_U(a: U, b: U) -> U {
    let zero = b == U(0u);
    return select(a / select(b, U(1u), zero), U(0u), zero);
}
{%- endif %}
{% if "divide_I(" in body -%}
// Division by zero is zero, and the smallest value over -1 wraps to itself, on every device.
fn divide_I(a: I, b: I) -> I {
    let zero = b == I(0);
    let negates = b == I(-1);
    let quotient = a / select(b, I(1), zero | negates);
    return select(select(quotient, I(0) - a, negates), I(0), zero);
}
{%- endif %}
{% if "exp_F(" in body -%}
fn exp_F(x: F) -> F {
    return exp(x);
}
{%- endif %}
