//! Powers of f64.

use super::{
    SHIFT, exp_tail, polynomial, product, scaled, special_power, split, split_normal, sum, whole,
    within,
};

#[inline(always)]
pub(crate) fn pow(x: f64, y: f64) -> f64 {
    special_power(x, y, power(split(x.abs()), y))
}

/// [`pow`] of a normal number above zero.
#[inline(always)]
pub(crate) fn plain_pow(x: f64, y: f64) -> f64 {
    power(split_normal(x), y)
}

/// With x split, y log2(x) in two parts, then 2 to that. With s = f / (2 + f) the logarithm of 1 + f is 2 s + 2/3 s^3 and what is
/// small enough for one part.
#[inline(always)]
fn power((f, e): (f64, f64), y: f64) -> f64 {
    let d = 2.0 + f;
    let d_low = f - (d - 2.0);
    let inverse = 1.0 / d;
    let s = f * inverse;
    let s_low = s.mul_add(-d_low, s.mul_add(-d, f)) * inverse;
    let (z, z_low) = product(s, s);
    let z_low = (2.0 * s).mul_add(s_low, z_low);
    let (cube, cube_low) = product(z, s);
    let cube_low = z.mul_add(s_low, z_low.mul_add(s, cube_low));
    let rest = cube
        * z
        * polynomial(
            z,
            [
                0.16913584808113521,
                0.16888470469467604,
                0.19238058793412885,
                0.2219527881822988,
                0.2623081914719228,
                0.32059889796713803,
                0.4121985831111439,
                0.5770780163555853,
            ],
        );
    // 2 / ln 2 and 2/3 / ln 2 in two parts each.
    let (first, first_low) = product(2.8853900817779268, s);
    let first_low =
        2.8853900817779268f64.mul_add(s_low, 4.0710547481862066e-17f64.mul_add(s, first_low));
    let (third, third_low) = product(0.9617966939259756, cube);
    let third_low =
        0.9617966939259756f64.mul_add(cube_low, 5.0577616648125907e-17f64.mul_add(cube, third_low));
    let (high, low) = sum(e, first);
    let (high, lower) = sum(high, third);
    let low = low + lower + (first_low + third_low + rest);
    // What lies beyond overflows all the same.
    let y = within(y, -4e19, 4e19);
    let (e_high, e_low) = product(y, high);
    let e_low = y.mul_add(low, e_low);
    let (k, halves) = whole(within(e_high + e_low, -1100.0, 1100.0) + SHIFT);
    let t = within((e_high - k) + e_low, -1.0, 1.0) * std::f64::consts::LN_2;
    scaled(1.0 + (t + exp_tail(t)), halves)
}

#[cfg(test)]
mod tests {
    use super::super::tests::steps;
    use super::*;

    #[test]
    fn powers_are_where_those_of_libm_are() {
        for at in 0..1_000_000u64 {
            let bits = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // Of any size, or near 1, to powers that lead anywhere between the least and the largest number.
            let base = match at % 2 {
                0 => f64::from_bits(bits & 0x7fef_ffff_ffff_ffff),
                _ => 0.5 + (bits >> 11) as f64 / (1u64 << 53) as f64,
            };
            let aim = (at % 2099) as f64 - 1074.0;
            let power = aim / libm::log2(base);
            let (got, want) = (pow(base, power), libm::pow(base, power));
            if base >= f64::MIN_POSITIVE {
                assert_eq!(plain_pow(base, power).to_bits(), got.to_bits());
            }
            if got != want && want.is_finite() {
                let off = steps(got, want);
                assert!(off <= 3.0, "{base:e} to {power:e}: {got:e}, not {want:e}");
            }
        }
    }
}
