//! Powers of f64.

use super::{
    SHIFTED, exp_tail, polynomial, product, scaled, split, split_normal, whole_exponent,
    whole_power, within,
};

/// Exponents of 2 whose power is normal, and so is its product with what is near 1.
pub(crate) const PLAIN_EXPONENT: f64 = 1021.0;

/// y log2(|x|) in two parts, for [`raised`].
#[inline(always)]
pub(crate) fn exponent(x: f64, y: f64) -> (f64, f64) {
    // What lies beyond overflows all the same.
    exponent_of(split(x.abs()), within(y, -4e19, 4e19))
}

/// [`exponent`] for a normal number x above zero; infinite or NaN only where y is, or where it is beyond [`PLAIN_EXPONENT`].
#[inline(always)]
pub(crate) fn plain_exponent(x: f64, y: f64) -> (f64, f64) {
    exponent_of(split_normal(x), y)
}

/// With x split. With s = f / (2 + f) the logarithm of 1 + f is 2 s + 2/3 s^3 and what is small enough for one part.
#[inline(always)]
fn exponent_of((f, e): (f64, f64), y: f64) -> (f64, f64) {
    // 2 / ln 2 and 2/3 / ln 2 in two parts each.
    const FIRST: f64 = 2.8853900817779268;
    const FIRST_LOW: f64 = 4.0710547481862066e-17;
    const THIRD: f64 = 0.9617966939259756;
    const THIRD_LOW: f64 = 5.0577616648125907e-17;
    let inverse = 1.0 / (2.0 + f);
    let s = f * inverse;
    // f - 2 s is exact.
    let s_low = s.mul_add(-f, s.mul_add(-2.0, f)) * inverse;
    let (z, z_low) = product(s, s);
    let z_low = (2.0 * s).mul_add(s_low, z_low);
    let (cube, cube_low) = product(z, s);
    let cube_low = z.mul_add(s_low, z_low.mul_add(s, cube_low));
    let rest = polynomial(
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
    let lost = FIRST.mul_add(s_low, FIRST_LOW * s);
    let lost = THIRD.mul_add(cube_low, THIRD_LOW.mul_add(cube, lost));
    let lost = rest.mul_add(cube * z, lost);
    let sum = FIRST.mul_add(s, e);
    let sum_low = FIRST.mul_add(s, -(sum - e));
    let high = THIRD.mul_add(cube, sum);
    let high_low = THIRD.mul_add(cube, -(high - sum));
    let low = high_low + sum_low + lost;
    let (e_high, e_low) = product(y, high);
    (e_high, y.mul_add(low, e_low))
}

/// 2 to a number in two parts.
#[inline(always)]
pub(crate) fn raised((high, low): (f64, f64)) -> f64 {
    let (k, halves) = whole_exponent(within(high + low, -1100.0, 1100.0) + SHIFTED);
    let t = within((high - k) + low, -1.0, 1.0);
    scaled(power_of_fraction(t), halves)
}

/// [`raised`], bit for bit, where the first part is below [`PLAIN_EXPONENT`] in size. The second one counts for what is nearest:
/// it holds all but the first terms of the logarithm.
#[inline(always)]
pub(crate) fn plain_raised((high, low): (f64, f64)) -> f64 {
    let (k, power) = whole_power((high + low) + SHIFTED);
    power_of_fraction((high - k) + low) * power
}

/// 2^t for |t| up to 1/2, and something finite up to 1.
#[inline(always)]
fn power_of_fraction(t: f64) -> f64 {
    let t = t * std::f64::consts::LN_2;
    1.0 + (t + exp_tail(t))
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
            // Whole ones are the easy ones.
            let aim = (at % 2099) as f64 - 1074.0 + (at % 97) as f64 / 97.0;
            let power = aim / libm::log2(base);
            let (got, want) = (raised(exponent(base, power)), libm::pow(base, power));
            if base >= f64::MIN_POSITIVE {
                let exponent = plain_exponent(base, power);
                if exponent.0.abs() < PLAIN_EXPONENT {
                    assert_eq!(plain_raised(exponent).to_bits(), got.to_bits());
                }
            }
            if got != want && want.is_finite() {
                let off = steps(got, want);
                assert!(off <= 3.0, "{base:e} to {power:e}: {got:e}, not {want:e}");
            }
        }
    }
}
