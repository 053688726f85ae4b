//! Whole numbers of 32 bits by way of f64, which holds all of them: processors divide and round those in vectors,
//! integers one by one. `FUSED` as in [`Loops::run`](super::Loops::run): elsewhere the integers' own way is the better one.

/// Whether processors make integers of floats in vectors as the language does: within their bounds, 0 of NaN.
const HAS_SATURATING: bool = cfg!(target_arch = "aarch64");

/// Added to a whole number below 2^51 in size it leaves that one's lowest bits as its own: 2^52 + 2^51.
const UNITS: f64 = 6_755_399_441_055_744.0;

/// The lowest 32 bits of a whole number below 2^51 in size.
#[inline(always)]
fn low(whole: f64) -> u32 {
    (whole + UNITS).to_bits() as u32
}

/// Toward zero, within two bounds; 0 of NaN.
#[inline(always)]
fn within(x: f64, least: f64, most: f64) -> f64 {
    let raised = if x < least { least } else { x };
    let within = if raised > most { most } else { raised };
    if x.is_nan() { 0.0 } else { within.trunc() }
}

/// As `x as i32`.
#[inline(always)]
pub(crate) fn to_i32<const FUSED: bool>(x: f64) -> i32 {
    match FUSED && !HAS_SATURATING {
        true => low(within(x, i32::MIN.into(), i32::MAX.into())) as i32,
        false => x as i32,
    }
}

/// As `x as u32`.
#[inline(always)]
pub(crate) fn to_u32<const FUSED: bool>(x: f64) -> u32 {
    match FUSED && !HAS_SATURATING {
        true => low(within(x, 0.0, u32::MAX.into())),
        false => x as u32,
    }
}

/// [`to_i32`] of an f32.
#[inline(always)]
pub(crate) fn single_to_i32<const FUSED: bool>(x: f32) -> i32 {
    match HAS_SATURATING {
        true => x as i32,
        false => to_i32::<FUSED>(x.into()),
    }
}

/// [`to_u32`] of an f32.
#[inline(always)]
pub(crate) fn single_to_u32<const FUSED: bool>(x: f32) -> u32 {
    match HAS_SATURATING {
        true => x as u32,
        false => to_u32::<FUSED>(x.into()),
    }
}

/// The quotient of two whole numbers of 32 bits toward zero, its lowest 32 bits; by 0 it is 0. The quotient in f64 is
/// whole only where the true one is: that is 2^-32 away from the next whole number, and 2^-53 of itself is less.
#[inline(always)]
pub(crate) fn quotient(a: f64, b: f64) -> u32 {
    let quotient = low((a / b).trunc());
    if b == 0.0 { 0 } else { quotient }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_language_has_them() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let shift = (state >> 58) as u32 / 2;
            (state >> 16) as u32 >> shift
        };
        let edges = [
            0,
            1,
            2,
            3,
            i32::MAX,
            i32::MAX - 1,
            i32::MIN,
            i32::MIN + 1,
            -1,
            -2,
            -3,
        ];
        let all = edges.iter().flat_map(|&a| edges.map(|b| (a, b)));
        let more: Vec<(i32, i32)> = (0..if cfg!(miri) { 100 } else { 1 << 20 })
            .map(|_| (random() as i32, random() as i32))
            .collect();
        for (a, b) in all
            .chain(more.iter().copied())
            .chain(more.iter().map(|&(a, b)| (a, -b >> 16)))
        {
            let signed = if b == 0 { 0 } else { a.wrapping_div(b) };
            assert_eq!(quotient(a.into(), b.into()) as i32, signed, "{a} / {b}");
            let (a, b) = (a as u32, b as u32);
            assert_eq!(
                quotient(a.into(), b.into()),
                a.checked_div(b).unwrap_or(0),
                "{a} / {b}"
            );
        }
        let floats = [
            0.0,
            -0.0,
            0.5,
            -0.5,
            0.99999999,
            1.5,
            -1.5,
            2147483646.5,
            2147483647.0,
            2147483647.5,
        ];
        let floats =
            floats
                .into_iter()
                .chain([2147483648.0, -2147483647.5, -2147483648.0, -2147483649.0]);
        let floats = floats.chain([
            4294967295.0,
            4294967295.5,
            4294967296.0,
            1e300,
            -1e300,
            5e-324,
        ]);
        let specials = [
            f64::NAN,
            -f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::from_bits(!0),
        ];
        let random = more
            .iter()
            .map(|&(a, b)| f64::from_bits((a as u64) << 32 | b as u64));
        let scaled = more
            .iter()
            .map(|&(a, b)| f64::from(a) + f64::from(b) / 65536.0);
        for x in floats.chain(specials).chain(random).chain(scaled) {
            assert_eq!(to_i32::<true>(x), x as i32, "{x}");
            assert_eq!(to_u32::<true>(x), x as u32, "{x}");
            let x = x as f32;
            assert_eq!(single_to_i32::<true>(x), x as i32, "{x}");
            assert_eq!(single_to_u32::<true>(x), x as u32, "{x}");
        }
    }
}
