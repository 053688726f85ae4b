//! Element types of tensors.

use std::fmt;

use half::{bf16, f16};

use crate::error::Error;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float; sums are kept in f32.
    F16,
    /// 32-bit signed integer; arithmetic wraps.
    I32,
    /// 32-bit unsigned integer; arithmetic wraps.
    U32,
    /// 64-bit IEEE float: on the CPU and on adapters that have it.
    F64,
    /// The upper half of an f32, "brain float": for storage; sums are kept in f32.
    BF16,
    /// True or false: a byte that is 1 or 0.
    Bool,
}

/// An expression in which a name stands for the unsigned integer of an element's size: what moves elements
/// without reading them does so once for all dtypes of a size.
macro_rules! by_size {
    ($dtype:expr, $Bits:ident => $moved:expr) => {
        match $dtype.size() {
            1 => {
                type $Bits = u8;
                $moved
            }
            2 => {
                type $Bits = u16;
                $moved
            }
            4 => {
                type $Bits = u32;
                $moved
            }
            _ => {
                type $Bits = u64;
                $moved
            }
        }
    };
}
pub(crate) use by_size;

impl DType {
    /// Every dtype.
    pub const ALL: &[DType] = &[
        DType::F32,
        DType::F16,
        DType::I32,
        DType::U32,
        DType::F64,
        DType::BF16,
        DType::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 => 8,
        }
    }

    /// The name, which is also the Rust name and, but for `bf16`, the WGSL name: `f32`, `f16`,
    /// `i32`, `u32`, `f64`, `bf16`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::F64 => "f64",
            DType::BF16 => "bf16",
            DType::Bool => "bool",
        }
    }

    /// True for `f16`, `bf16`, `f32` and `f64`.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
    }

    /// The type that sums of this dtype are kept in: `f32` for `f16` and `bf16`, else itself (sums of `bool` count, as `u32`).
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = Error;

    /// From [`DType::name`].
    fn from_str(name: &str) -> Result<Self, Error> {
        DType::ALL
            .iter()
            .copied()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| {
                let names = DType::ALL
                    .iter()
                    .map(|dtype| dtype.name())
                    .collect::<Vec<_>>()
                    .join(", ");
                Error::invalid("dtype", format!("there is no `{name}`; there are {names}"))
            })
    }
}

mod sealed {
    /// Elements from the bytes of a tensor, which may lie at any address.
    pub trait Sealed: Sized {
        fn extend(data: &mut Vec<Self>, bytes: &[u8]);
        fn read(into: &mut [Self], bytes: &[u8]);
    }
}

/// A Rust type that is a tensor's element type: `f32`, [`half::f16`], `i32`, `u32`, `f64`,
/// [`half::bf16`], `bool`.
pub trait Element:
    sealed::Sealed + bytemuck::NoUninit + PartialEq + fmt::Debug + fmt::Display + Send + Sync
{
    /// The dtype of this Rust type.
    const DTYPE: DType;
}

/// Appends the elements of whole elements' bytes.
pub(crate) fn extend<T: Element>(data: &mut Vec<T>, bytes: &[u8]) {
    T::extend(data, bytes);
}

/// Overwrites as many elements as there are bytes for.
pub(crate) fn read<T: Element>(into: &mut [T], bytes: &[u8]) {
    T::read(into, bytes);
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {
            fn extend(data: &mut Vec<Self>, bytes: &[u8]) {
                match bytemuck::try_cast_slice(bytes) {
                    Ok(elements) => data.extend_from_slice(elements),
                    Err(_) => data.extend(
                        bytes
                            .chunks_exact(size_of::<Self>())
                            .map(bytemuck::pod_read_unaligned::<Self>),
                    ),
                }
            }
            fn read(into: &mut [Self], bytes: &[u8]) {
                let into: &mut [u8] = bytemuck::cast_slice_mut(into);
                if let Some(into) = into.get_mut(..bytes.len()) {
                    into.copy_from_slice(bytes);
                }
            }
        }
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
element!(f32 => F32, f16 => F16, i32 => I32, u32 => U32, f64 => F64, bf16 => BF16);

impl sealed::Sealed for bool {
    fn extend(data: &mut Vec<Self>, bytes: &[u8]) {
        data.extend(bytes.iter().map(|&byte| byte != 0));
    }
    fn read(into: &mut [Self], bytes: &[u8]) {
        for (into, &byte) in into.iter_mut().zip(bytes) {
            *into = byte != 0;
        }
    }
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
}

/// One number given by the caller, before the dtype of its tensor is known.
///
/// Made from any Rust number: `Tensor::full(&device, [2, 2], 1.5, DType::F32)`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scalar {
    /// A float.
    Float(f64),
    /// An integer: whatever fits 64 bits, signed or not, and what does not until a dtype rounds or wraps it.
    Integer(i128),
}

macro_rules! scalar {
    ($variant:ident as $wide:ty: $($rust:ty),*) => {$(
        impl From<$rust> for Scalar {
            fn from(value: $rust) -> Self {
                Scalar::$variant(<$wide>::from(value))
            }
        }
    )*};
}
scalar!(Float as f64: f64, f32, f16, bf16);
scalar!(Integer as i128: i128, i64, u64, i32, u32, i16, u16, i8, u8, bool);

macro_rules! sized_scalar {
    ($($rust:ty),*) => {$(
        impl From<$rust> for Scalar {
            fn from(value: $rust) -> Self {
                // No target has more than 64 bits.
                Scalar::Integer(value as i128)
            }
        }
    )*};
}
sized_scalar!(usize, isize);

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Float(value) => value.fmt(f),
            Scalar::Integer(value) => value.fmt(f),
        }
    }
}

impl Scalar {
    /// The little-endian bytes of this number as one element of `dtype`, or `None` when an
    /// integer or bool dtype cannot hold it exactly (a fraction, or out of range). Floats round to
    /// nearest even.
    pub(crate) fn to_bytes(self, dtype: DType) -> Option<ElementBytes> {
        let integer = match self {
            Scalar::Integer(value) => Some(value),
            // What saturates is beyond every integer dtype.
            Scalar::Float(value) if value.trunc() == value => Some(value as i128),
            Scalar::Float(_) => None,
        };
        let float = match self {
            Scalar::Float(value) => value,
            Scalar::Integer(value) => value as f64,
        };
        // To odd, so that only the narrow type rounds.
        let odd = match self {
            Scalar::Integer(value) if float as i128 != value => {
                let is_beyond = (float as i128).unsigned_abs() > value.unsigned_abs();
                f64::from_bits((float.to_bits() - u64::from(is_beyond)) | 1)
            }
            _ => float,
        };
        Some(match dtype {
            DType::F32 => ElementBytes::of(match self {
                Scalar::Float(value) => value as f32,
                Scalar::Integer(value) => value as f32,
            }),
            DType::F16 => ElementBytes::of(f16_of(odd)),
            DType::BF16 => ElementBytes::of(bf16_of(odd)),
            DType::F64 => ElementBytes::of(float),
            DType::I32 => ElementBytes::of(i32::try_from(integer?).ok()?),
            DType::U32 => ElementBytes::of(u32::try_from(integer?).ok()?),
            DType::Bool => match integer? {
                0 => ElementBytes::of(false),
                1 => ElementBytes::of(true),
                _ => return None,
            },
        })
    }
}

/// To nearest even, rounded once. (`f16::from_f64` goes through f32 where the processor has no other
/// way, so it rounds twice.)
pub(crate) fn f16_of(value: f64) -> f16 {
    f16::from_f32(to_odd(value))
}

/// To nearest even, rounded once.
pub(crate) fn bf16_of(value: f64) -> bf16 {
    bf16::from_f32(to_odd(value))
}

/// The f32 that is `value`, or else that one of its two neighbours whose last bit is set: it is on
/// the same side of every tie of a narrower type as `value`.
pub(crate) fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let wide = f64::from(nearest);
    if wide == value || !nearest.is_finite() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    let bits = nearest.to_bits();
    f32::from_bits(match wide.abs() > value.abs() {
        true => bits - 1,
        false => bits + 1,
    })
}

/// The bytes of one element of any dtype.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementBytes {
    bytes: [u8; 8],
    size: usize,
}

impl ElementBytes {
    pub(crate) fn of<T: Element>(value: T) -> Self {
        let mut bytes = [0; 8];
        let size = size_of::<T>();
        bytes[..size].copy_from_slice(bytemuck::bytes_of(&value));
        Self { bytes, size }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    /// The element as a word of a kernel that computes with it: halves as f32.
    pub(crate) fn word(&self, dtype: DType) -> u32 {
        let [word, _] = self.words();
        match dtype {
            DType::F16 => f16::from_bits(word as u16).to_f32().to_bits(),
            DType::BF16 => bf16::from_bits(word as u16).to_f32().to_bits(),
            DType::Bool => word & 1,
            _ => word,
        }
    }

    /// The element as two 32-bit words; smaller elements repeat to fill them.
    pub(crate) fn words(&self) -> [u32; 2] {
        let mut words = [0; 8];
        for (at, byte) in words.iter_mut().enumerate() {
            *byte = self.bytes[at % self.size];
        }
        [
            u32::from_le_bytes([words[0], words[1], words[2], words[3]]),
            u32::from_le_bytes([words[4], words[5], words[6], words[7]]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        for sign in [1.0, -1.0] {
            for (tie, step) in [(-11, -10), (-8, -7)] {
                let above = sign * (1.0 + 2f64.powi(tie) + 2f64.powi(-40));
                let below = sign * (1.0 + 3.0 * 2f64.powi(tie) - 2f64.powi(-40));
                let want = sign * (1.0 + 2f64.powi(step));
                for value in [above, below] {
                    let got = match tie {
                        -11 => f16_of(value).to_f64(),
                        _ => bf16_of(value).to_f64(),
                    };
                    assert_eq!(got, want, "{value:e}");
                }
            }
            assert_eq!(bf16_of(sign * 1e300).to_f64(), sign * f64::INFINITY);
            assert_eq!(f16_of(sign * 1e-300).to_f64(), 0.0);
            // Half of the least f16, and a little more.
            assert_eq!(f16_of(sign * 2f64.powi(-25)).to_f64(), 0.0);
            let more = sign * (2f64.powi(-25) + 2f64.powi(-70));
            assert_eq!(f16_of(more).to_f64(), sign * 2f64.powi(-24));
        }
        assert!(bf16_of(f64::NAN).is_nan());
    }

    #[test]
    fn scalars_convert_exactly_or_not_at_all() {
        let bytes = |scalar: Scalar, dtype| scalar.to_bytes(dtype).map(|b| b.words()[0]);
        assert_eq!(bytes(1.5.into(), DType::F32), Some(1.5f32.to_bits()));
        assert_eq!(bytes(1.5.into(), DType::F16), Some(0x3e00_3e00));
        assert_eq!(bytes(1.5.into(), DType::I32), None);
        assert_eq!(bytes((-1).into(), DType::U32), None);
        assert_eq!(bytes((-1).into(), DType::I32), Some(u32::MAX));
        assert_eq!(bytes(u32::MAX.into(), DType::U32), Some(u32::MAX));
        assert_eq!(bytes(u32::MAX.into(), DType::I32), None);
        assert_eq!(bytes(f64::NAN.into(), DType::I32), None);
        assert_eq!(bytes(f64::INFINITY.into(), DType::U32), None);
        assert_eq!(bytes(3.0.into(), DType::U32), Some(3));
        // Just above the middle between two numbers of bf16, 2^62 and 2^62 + 2^55.
        let above = (1i64 << 62) + (1 << 54) + 1;
        let bf16 = |value: i64| bytes(value.into(), DType::BF16).map(|word| word & 0xffff);
        assert_eq!(bf16(above), bf16((1 << 62) + (1 << 55)));
        assert_eq!(bf16(above - 1), bf16(1 << 62));
        assert_eq!(bf16(-above), bf16(-(1 << 62) - (1 << 55)));
        assert_eq!(Scalar::from(u64::MAX), Scalar::Integer(u64::MAX.into()));
        assert_eq!(Scalar::from(u64::MAX).to_string(), u64::MAX.to_string());
        assert_eq!(
            Scalar::from(isize::MIN),
            Scalar::Integer(isize::MIN as i128)
        );
        // Above i64::MAX, and just above the middle between two numbers: f64 has the middle itself.
        let next = |above: u32| (1u64 << 63) + (1 << above) + 1;
        let of = |dtype, above| bytes(next(above).into(), dtype);
        assert_eq!(
            of(DType::F32, 39),
            Some((2f32.powi(63) + 2f32.powi(40)).to_bits())
        );
        assert_eq!(
            of(DType::BF16, 55).map(|word| word << 16),
            Some((2f32.powi(63) + 2f32.powi(56)).to_bits())
        );
        let wide = Scalar::from(next(10))
            .to_bytes(DType::F64)
            .map(|b| b.words());
        let bits = (2f64.powi(63) + 2f64.powi(11)).to_bits();
        assert_eq!(wide, Some([bits as u32, (bits >> 32) as u32]));
        assert_eq!(bytes(u64::MAX.into(), DType::U32), None);
        assert_eq!(bytes(1e30.into(), DType::U32), None);
        for end in [i128::MIN, i128::MIN + 1, i128::MAX] {
            assert_eq!(bytes(end.into(), DType::F32), Some((end as f32).to_bits()));
            assert_eq!(
                bytes(end.into(), DType::BF16).map(|word| word << 16),
                Some((end as f32).to_bits())
            );
        }
        assert_eq!(Scalar::from(7usize), Scalar::Integer(7));
        // One rounding only: 2^24 + 1 is not an f32.
        assert_eq!(
            bytes(16_777_217.into(), DType::F32),
            Some(16_777_216f32.to_bits())
        );
    }
}
