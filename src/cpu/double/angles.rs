//! Tangents, inverse and hyperbolic functions of f64 (`cpu::angles`).

use super::{halvings, log_beside_one, polynomial, power_of_two, waves};
use crate::cpu::angles::angles;

/// Below it odd functions are their operands.
const SMALL: f64 = 7.450580596923828e-9;

angles! { f64, []; pi_rest: 3.8981718325193756e-17, small: SMALL }

/// Of sizes up to [`super::LARGE`]. A zero keeps its sign.
#[inline(always)]
pub(crate) fn tan(x: f64) -> f64 {
    let (turns, sine, cosine) = waves(x);
    let is_odd = turns & 1 == 1;
    let (above, below) = if is_odd {
        (-cosine, sine)
    } else {
        (sine, cosine)
    };
    if x.abs() < SMALL { x } else { above / below }
}

/// atan(q) - q for q from 0 to 1.
#[inline(always)]
fn atan_tail(q: f64) -> f64 {
    let z = q * q;
    let p = polynomial(
        z,
        [
            1.806195461861215e-05,
            -0.00019996189377901382,
            0.0010496035084968515,
            -0.0034958859739163094,
            0.008368931178450162,
            -0.015535152475414177,
            0.023696731580048622,
            -0.031277189066996385,
            0.03749486812535247,
            -0.04260356632601652,
            0.04737749579527779,
            -0.052579733342841106,
            0.05881506877793656,
            -0.06666564699289104,
            0.07692298971033217,
            -0.09090908590891934,
            0.11111111093490827,
            -0.14285714285384132,
            0.1999999999999753,
            -0.3333333333333333,
        ],
    );
    q * (z * p)
}

/// asin(s) / s - 1 for z = s^2 up to 1/4.
#[inline(always)]
fn asin_tail(z: f64) -> f64 {
    let p = polynomial(
        z,
        [
            0.028757851367421566,
            -0.014851887071247204,
            0.01740087944269402,
            0.005457506718640358,
            0.01032281435018578,
            0.011479177415184906,
            0.013971212973552933,
            0.017352392720869973,
            0.02237217294214989,
            0.030381944138531247,
            0.04464285714635543,
            0.07499999999998433,
            0.16666666666666669,
        ],
    );
    z * p
}

/// A size as k ln 2 + r, and with z = r^2 sinh(r) / r - 1 and cosh(r) - 1, both over z. Beyond what is finite that of an infinite one.
#[inline(always)]
fn hyperbolic_parts(size: f64) -> (i64, f64, f64, f64) {
    let (k, r) = halvings(if size < 710.5 { size } else { 710.5 }, 0.0);
    let z = r * r;
    let sine = polynomial(
        z,
        [
            2.5100472505694996e-08,
            2.7557268276905696e-06,
            0.00019841269863171557,
            0.008333333333330039,
            0.16666666666666669,
        ],
    );
    let cosine = polynomial(
        z,
        [
            2.091821231913398e-09,
            2.755726307730941e-07,
            2.480158733663095e-05,
            0.0013888888888879004,
            0.04166666666666668,
            0.5,
        ],
    );
    (k, r, sine, cosine)
}

#[cfg(test)]
mod tests {
    use super::super::tests::steps;
    use super::*;

    type Function = fn(f64) -> f64;

    /// Functions with those of libm, where from and where to, and how many steps they may be apart.
    const CASES: [(&str, Function, Function, f64, f64, f64); 20] = [
        ("tan", tan, libm::tan, -2.0, 2.0, 3.0),
        ("tan", tan, libm::tan, -1e9, 1e9, 3.0),
        ("asin", asin, libm::asin, -1.0, 1.0, 3.0),
        ("asin", asin, libm::asin, -1e-3, 1e-3, 2.0),
        ("acos", acos, libm::acos, -1.0, 1.0, 3.0),
        ("acos", acos, libm::acos, 0.999, 1.0, 3.0),
        ("atan", atan, libm::atan, -3.0, 3.0, 3.0),
        ("atan", atan, libm::atan, -1e3, 1e3, 3.0),
        ("atan", atan, libm::atan, -1e-3, 1e-3, 2.0),
        ("sinh", sinh, libm::sinh, -1.0, 1.0, 4.0),
        ("sinh", sinh, libm::sinh, -710.4, 710.4, 4.0),
        ("cosh", cosh, libm::cosh, -1.0, 1.0, 4.0),
        ("cosh", cosh, libm::cosh, -710.4, 710.4, 4.0),
        ("asinh", asinh, libm::asinh, -3.0, 3.0, 4.0),
        ("asinh", asinh, libm::asinh, -1e-3, 1e-3, 4.0),
        ("asinh", asinh, libm::asinh, -1e300, 1e300, 4.0),
        ("acosh", acosh, libm::acosh, 1.0, 1.001, 4.0),
        ("acosh", acosh, libm::acosh, 1.0, 1e300, 4.0),
        ("atanh", atanh, libm::atanh, -1.0, 1.0, 4.0),
        ("atanh", atanh, libm::atanh, -1e-3, 1e-3, 4.0),
    ];

    fn is_near(got: f64, want: f64, most: f64) -> bool {
        got == want || (got.is_nan() && want.is_nan()) || steps(got, want) <= most
    }

    #[test]
    fn functions_are_where_those_of_libm_are() {
        const COUNT: u32 = 200_000;
        for (name, ours, theirs, low, high, most) in CASES {
            for at in 0..=COUNT {
                let x = low + (high - low) * f64::from(at) / f64::from(COUNT);
                let (got, want) = (ours(x), theirs(x));
                assert!(
                    is_near(got, want, most),
                    "{name} of {x:e}: {got:e}, not {want:e}"
                );
            }
        }
    }

    #[test]
    fn edges_are_as_libm_has_them() {
        let specials = [
            0.0,
            1.0,
            2.0,
            0.5,
            1e300,
            5e-324,
            2.5e-308,
            709.8,
            710.4758600739439,
            710.5,
            1e9,
            1.2e18,
            f64::INFINITY,
            f64::NAN,
            f64::MAX,
            1.0 - f64::EPSILON,
            1.0 + f64::EPSILON,
        ];
        for x in specials.into_iter().flat_map(|x| [x, -x]) {
            for (name, ours, theirs, ..) in CASES {
                // What is below 1 libm leaves open; the larger sizes are libm's own.
                let is_its = match name {
                    "acosh" => x >= 1.0,
                    "tan" => x.abs() <= super::super::LARGE,
                    _ => true,
                };
                let (got, want) = (ours(x), theirs(x));
                let is_right =
                    is_near(got, want, 4.0) && (got != 0.0 || got.to_bits() == want.to_bits());
                assert!(
                    !is_its || is_right,
                    "{name} of {x:e}: {got:e}, not {want:e}"
                );
            }
            assert!(x >= 1.0 || acosh(x).is_nan());
            for y in specials.into_iter().flat_map(|y| [y, -y]) {
                let (got, want) = (atan2(y, x), libm::atan2(y, x));
                let is_right =
                    is_near(got, want, 3.0) && (got != 0.0 || got.to_bits() == want.to_bits());
                assert!(is_right, "atan2 of {y:e} and {x:e}: {got:e}, not {want:e}");
            }
        }
    }
}
