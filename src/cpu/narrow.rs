//! f16 and bf16 as f32 and back, in vectors: by bits, without branches, on every processor; f16 by instructions where
//! there are vectors of 512 bits. (Those for 256 bits cannot be called from here without `unsafe`, and the `half` crate
//! calls them for eight elements at a time.)

use std::marker::PhantomData;

use bytemuck::Pod;
#[cfg(target_arch = "x86_64")]
use bytemuck::cast;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use pulp::x86::V4;

use super::halves::{LANES, Widening, Widens};
use super::matrix::{Matrix, Size};
#[cfg(target_arch = "x86_64")]
use super::pairs;
use super::simd::{Loops, Widest, vectorised};

/// A float of 16 bits.
pub(crate) trait Narrow: Pod + Send + Sync {
    fn widened(self) -> f32;

    /// To nearest even; NaN stays NaN.
    fn rounded(x: f32) -> Self;

    /// As many as both have, sixteens at a time by instructions of the processor: how many.
    #[inline]
    fn widen_sixteens(_from: &[Self], _to: &mut [f32]) -> usize {
        0
    }

    /// Runs loops with what widens sixteen: by bits, or by instructions of the processor.
    #[inline]
    fn widening<W: Widening<Self>>(work: W) {
        vectorised(ByBits(work, PhantomData::<Self>));
    }

    /// Whether the processor has instructions that multiply them as they are.
    #[inline]
    fn has_products() -> bool {
        false
    }

    /// Numbers that [`Narrow::multiply_add`] takes for operands of so many rows, columns and steps of k.
    #[inline]
    fn packed(_sides: [usize; 2], _k: usize) -> [usize; 2] {
        [0; 2]
    }

    /// `sums = a x b` of few rows or columns and of lines of neighbours along k: as [`Narrow::multiply_add`], without scratch.
    #[inline]
    fn multiply_lines(
        _sums: &mut [f32],
        _a: Matrix<'_, Self>,
        _b: Matrix<'_, Self>,
        _size: Size,
    ) -> bool {
        false
    }

    /// `sums += a x b` by instructions of the processor that nothing is widened for, and whether there are such and they take these
    /// elements.
    #[inline]
    fn multiply_add(
        _sums: &mut [f32],
        _a: Matrix<'_, Self>,
        _b: Matrix<'_, Self>,
        _size: Size,
        _scratch: [&mut [f32]; 2],
    ) -> bool {
        false
    }

    /// As many as both have, sixteens at a time by instructions of the processor: how many.
    #[inline]
    fn round_sixteens(_from: &[f32], _to: &mut [Self]) -> usize {
        0
    }
}

/// Loops that widen by bits, on every processor.
struct ByBits<W, T>(W, PhantomData<T>);

impl<T: Narrow, W: Widening<T>> Loops for ByBits<W, T> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        self.0.run::<FUSED>(Bits);
    }
}

#[derive(Clone, Copy)]
struct Bits;

impl<T: Narrow> Widens<T> for Bits {
    #[inline(always)]
    fn wide(self, halves: &[T; LANES]) -> [f32; LANES] {
        halves.map(T::widened)
    }
}

#[cfg(target_arch = "x86_64")]
impl Widens<f16> for V4 {
    #[inline(always)]
    fn wide(self, halves: &[f16; LANES]) -> [f32; LANES] {
        cast(self.avx512f._mm512_cvtph_ps(cast(*halves)))
    }
}

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;
/// As `_mm512_cvtps_ph` has it.
#[cfg(target_arch = "x86_64")]
const NEAREST_EVEN: i32 = 0;
/// Of a NaN that no operation takes for a signalling one.
const QUIET: u32 = 1 << 22;

impl Narrow for f16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
        // The exponent of f32 counts from 127 instead of 15.
        let normal = (rest << 13) + (112 << 23);
        // Whole numbers of 2^-24.
        let subnormal = (rest as i32 as f32 * f32::from_bits(103 << 23)).to_bits();
        let (is_finite, is_nan) = (rest < 0x7c00, rest > 0x7c00);
        let above = normal | INFINITY | if is_nan { QUIET } else { 0 };
        let normal = if is_finite { normal } else { above };
        f32::from_bits(sign | if rest < 0x0400 { subnormal } else { normal })
    }

    #[inline(always)]
    fn rounded(x: f32) -> Self {
        let bits = x.to_bits();
        let (sign, rest) = (bits & SIGN, bits & !SIGN);
        // What is added carries where the rest is above a half, or a half and the last bit is odd.
        let odd = (rest >> 13) & 1;
        let normal = rest.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
        // The sum with 1/2 is a whole number of 2^-24, rounded as all sums are.
        let subnormal = (f32::from_bits(rest) + 0.5)
            .to_bits()
            .wrapping_sub(126 << 23);
        let is_nan = rest > INFINITY;
        // As the instruction has it: the upper bits of a NaN stay.
        let above = if is_nan {
            0x7e00 | (rest >> 13 & 0x03ff)
        } else {
            0x7c00
        };
        // From 2^16 on all are infinite; below that rounding gets there by itself.
        let normal = if rest < 143 << 23 { normal } else { above };
        let rest = if rest < 113 << 23 { subnormal } else { normal };
        f16::from_bits((sign >> 16 | rest) as u16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn widen_sixteens(from: &[f16], to: &mut [f32]) -> usize {
        sixteens(from, to, |simd, x| {
            cast(simd.avx512f._mm512_cvtph_ps(cast(x)))
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn widening<W: Widening<f16>>(work: W) {
        match V4::try_new() {
            Some(simd) => simd.vectorize(
                #[inline(always)]
                || work.run::<true>(simd),
            ),
            None => vectorised(ByBits(work, PhantomData::<f16>)),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn round_sixteens(from: &[f32], to: &mut [f16]) -> usize {
        sixteens(from, to, |simd, x| {
            cast(simd.avx512f._mm512_cvtps_ph::<NEAREST_EVEN>(cast(x)))
        })
    }
}

/// What `convert` makes of whole sixteens: how many elements.
#[cfg(target_arch = "x86_64")]
#[inline]
fn sixteens<A: Pod, B: Pod>(
    from: &[A],
    to: &mut [B],
    convert: impl Fn(V4, [A; 16]) -> [B; 16],
) -> usize {
    let (from, to) = (from.as_chunks::<16>().0, to.as_chunks_mut::<16>().0);
    let Some(simd) = V4::try_new() else {
        return 0;
    };
    simd.vectorize(
        #[inline(always)]
        || {
            for (to, &from) in to.iter_mut().zip(from) {
                *to = convert(simd, from);
            }
        },
    );
    16 * from.len().min(to.len())
}

impl Narrow for bf16 {
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn has_products() -> bool {
        pairs::is_there()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn packed(sides: [usize; 2], k: usize) -> [usize; 2] {
        pairs::packed(sides, k)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn multiply_lines(
        sums: &mut [f32],
        a: Matrix<'_, bf16>,
        b: Matrix<'_, bf16>,
        size: Size,
    ) -> bool {
        pairs::multiply_lines(sums, a, b, size)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn multiply_add(
        sums: &mut [f32],
        a: Matrix<'_, bf16>,
        b: Matrix<'_, bf16>,
        size: Size,
        scratch: [&mut [f32]; 2],
    ) -> bool {
        pairs::multiply_add(sums, a, b, size, scratch)
    }

    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn rounded(x: f32) -> Self {
        let bits = x.to_bits();
        let odd = (bits >> 16) & 1;
        let near = bits.wrapping_add(0x7fff + odd);
        let is_nan = bits & !SIGN > INFINITY;
        bf16::from_bits((if is_nan { bits | QUIET } else { near } >> 16) as u16)
    }
}

/// As many elements as both have.
pub(crate) fn widen<T: Narrow>(from: &[T], to: &mut [f32]) {
    let done = T::widen_sixteens(from, to);
    let (from, to) = (&from[done..], &mut to[done..]);
    if from.is_empty() {
        return;
    }
    vectorised(Widest(
        #[inline(always)]
        || {
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.widened();
            }
        },
    ));
}

/// As many elements as both have, to nearest even.
pub(crate) fn round<T: Narrow>(from: &[f32], to: &mut [T]) {
    let done = T::round_sixteens(from, to);
    let (from, to) = (&from[done..], &mut to[done..]);
    if from.is_empty() {
        return;
    }
    vectorised(Widest(
        #[inline(always)]
        || {
            for (to, &from) in to.iter_mut().zip(from) {
                *to = T::rounded(from);
            }
        },
    ));
}

/// Each number as it is after it was rounded and widened again.
pub(crate) fn round_in_place<T: Narrow>(values: &mut [f32]) {
    vectorised(Widest(
        #[inline(always)]
        || {
            for value in values {
                *value = T::rounded(*value).widened();
            }
        },
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_widen_as_the_half_crate_has_them() {
        let same = |ours: f32, theirs: f32| {
            ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan()
        };
        for bits in 0..=u16::MAX {
            let (f, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(same(f.widened(), f.to_f32()), "{bits:#x}");
            assert!(same(b.widened(), b.to_f32()), "{bits:#x}");
        }
        // As many at once as there are, and one less than sixteens are.
        let all: Vec<f16> = (0..u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        widen(&all, &mut wide);
        for (&f, wide) in all.iter().zip(wide) {
            assert_eq!(wide.to_bits(), f.widened().to_bits(), "{f:?}");
        }
    }

    /// Every value of 16 bits, half way to the next one, and their neighbours; random bits.
    #[test]
    fn f32_rounds_as_the_half_crate_has_it() {
        let mut from: Vec<f32> = Vec::new();
        for bits in 0..=u16::MAX {
            let (f, b) = (
                f16::from_bits(bits).to_f32(),
                bf16::from_bits(bits).to_f32(),
            );
            for near in [0u32, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001] {
                let far = |x: f32| f32::from_bits(x.to_bits().wrapping_add(near));
                from.extend([
                    far(f),
                    far(b),
                    f32::from_bits(b.to_bits().wrapping_sub(near)),
                ]);
            }
        }
        let mut state = 1u32;
        from.extend((0..1 << 20).map(|_| {
            state = state.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
            f32::from_bits(state ^ state >> 15)
        }));
        let (mut f, mut b) = (vec![f16::ZERO; from.len()], vec![bf16::ZERO; from.len()]);
        round(&from, &mut f);
        round(&from, &mut b);
        for (at, &x) in from.iter().enumerate() {
            let (want_f, want_b) = (f16::from_f32(x), bf16::from_f32(x));
            let bits = x.to_bits();
            // In vectors and by itself, NaN's bits too.
            assert_eq!(f[at].to_bits(), f16::rounded(x).to_bits(), "{bits:#x}");
            assert_eq!(b[at].to_bits(), bf16::rounded(x).to_bits(), "{bits:#x}");
            assert_eq!(f[at].is_nan(), want_f.is_nan(), "{bits:#x}");
            assert_eq!(b[at].is_nan(), want_b.is_nan(), "{bits:#x}");
            if !x.is_nan() {
                assert_eq!(f[at].to_bits(), want_f.to_bits(), "{bits:#x}");
                assert_eq!(b[at].to_bits(), want_b.to_bits(), "{bits:#x}");
            }
            assert_eq!(
                (f[at].is_sign_negative(), b[at].is_sign_negative()),
                (x.is_sign_negative(), x.is_sign_negative())
            );
        }
    }
}
