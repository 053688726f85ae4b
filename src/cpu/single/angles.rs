//! Tangents, inverse and hyperbolic functions of f32 (`cpu::angles`). Polynomials that name nobody are Chebyshev's of the
//! function, rounded.

use super::{fma, halvings, log_beside_one, polynomial, power_of_two, turn};
use crate::cpu::angles::angles;

/// Below it odd functions are their operands.
const SMALL: f32 = 2.441_406_25e-4;

angles! { f32, [FUSED]; pi_rest: -2.782753438e-8, small: SMALL }

/// Of sizes up to [`super::LARGE`]. A zero keeps its sign.
#[inline(always)]
pub(crate) fn tan<const FUSED: bool>(x: f32) -> f32 {
    let (turns, r, low) = turn::<FUSED>(x);
    let z = r * r;
    let p = polynomial::<FUSED, _>(
        z,
        [
            3.8473042659e-3,
            1.1782998918e-3,
            9.9665448070e-3,
            2.1619873121e-2,
            5.3994625807e-2,
            1.3333229721e-1,
            3.3333334327e-1,
        ],
    );
    // The slope is 1 and the square of the tangent, or nearly that of the angle.
    let tail = fma::<FUSED>(z, r * p, fma::<FUSED>(low, z, low));
    let y = r + tail;
    let y = if turns & 1 == 1 { -1.0 / y } else { y };
    if x.abs() < SMALL { x } else { y }
}

/// atan(q) - q for q from 0 to 1.
#[inline(always)]
fn atan_tail<const FUSED: bool>(q: f32) -> f32 {
    let z = q * q;
    let p = polynomial::<FUSED, _>(
        z,
        [
            -2.3869972210e-3,
            1.3507771306e-2,
            -3.5871539265e-2,
            6.2501691282e-2,
            -8.6568802595e-2,
            1.1033764482e-1,
            -1.4278568327e-1,
            1.9999739528e-1,
            -3.3333331347e-1,
        ],
    );
    q * (z * p)
}

/// asin(s) / s - 1 for z = s^2 up to 1/4.
#[inline(always)]
fn asin_tail<const FUSED: bool>(z: f32) -> f32 {
    let p = polynomial::<FUSED, _>(
        z,
        [
            3.8085024804e-2,
            2.6554541662e-2,
            4.5001380146e-2,
            7.4988551438e-2,
            1.6666673124e-1,
        ],
    );
    z * p
}

/// A size as k ln 2 + r, and with z = r^2 sinh(r) / r - 1 and cosh(r) - 1, both over z. Beyond what is finite that of an infinite one.
#[inline(always)]
fn hyperbolic_parts<const FUSED: bool>(size: f32) -> (i32, f32, f32, f32) {
    let (k, r) = halvings::<FUSED>(if size < 89.5 { size } else { 89.5 });
    let z = r * r;
    let sine = polynomial::<FUSED, _>(z, [1.9891079864e-4, 8.3333104849e-3, 1.6666667163e-1]);
    let cosine = polynomial::<FUSED, _>(z, [1.3933731243e-3, 4.1666463017e-2, 0.5]);
    (k, r, sine, cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Function = fn(f32) -> f32;
    type Exact = fn(f64) -> f64;

    /// In both forms: of the fused one vectors of this processor may be, of the other those of others.
    #[test]
    fn functions_are_within_their_bounds() {
        let cases: [(&str, [Function; 2], Exact, f64); 9] = [
            ("tan", [tan::<true>, tan::<false>], libm::tan, 3.0),
            ("asin", [asin::<true>, asin::<false>], libm::asin, 3.0),
            ("acos", [acos::<true>, acos::<false>], libm::acos, 2.0),
            ("atan", [atan::<true>, atan::<false>], libm::atan, 2.0),
            ("sinh", [sinh::<true>, sinh::<false>], libm::sinh, 3.0),
            ("cosh", [cosh::<true>, cosh::<false>], libm::cosh, 3.0),
            ("asinh", [asinh::<true>, asinh::<false>], libm::asinh, 2.5),
            ("acosh", [acosh::<true>, acosh::<false>], libm::acosh, 3.0),
            ("atanh", [atanh::<true>, atanh::<false>], libm::atanh, 2.5),
        ];
        for (name, forms, exact, most) in cases {
            for at in 0..(1u64 << 32) / 1009 {
                let x = f32::from_bits((at * 1009) as u32);
                if (name == "tan" && x.abs() > super::super::LARGE) || (name == "acosh" && x < 1.0)
                {
                    continue;
                }
                let want = exact(x.into());
                let single = want as f32;
                let step = (want.abs().log2().floor().max(-126.0) - 23.0).exp2();
                for got in forms.map(|form| form(x)) {
                    let is_right = match single.is_finite() {
                        true => (f64::from(got) - want).abs() <= most * step,
                        false => got == single || (got.is_nan() && single.is_nan()),
                    };
                    assert!(is_right, "{name} of {x:e}: {got:e}, not {want:e}");
                }
            }
        }
        for x in [0.999_999_94, 0.0, -1.0, -3.0, f32::NEG_INFINITY, f32::NAN] {
            assert!(acosh::<true>(x).is_nan() && acosh::<false>(x).is_nan());
        }
    }
}
