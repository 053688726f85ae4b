//! Conversions between dtypes on the CPU: one loop each over the values of a block.

use bytemuck::Pod;

use super::function::Kind;
use crate::cpu::whole::{single_to_i32, single_to_u32, to_i32, to_u32};
use crate::cpu::{Loops, vectorised};
use crate::dtype::{DType, to_odd};

/// Values as they are computed with: to f16 and bf16 as f32, to be rounded to them.
pub(super) fn convert(from: DType, to: DType, values: &[u8], out: &mut [u8]) {
    // Rounded once, however many digits there are.
    let is_narrow = matches!(to, DType::F16 | DType::BF16);
    vectorised(Conversion {
        kinds: (Kind::of(from), Kind::of(to)),
        is_narrow,
        values,
        out,
    });
}

struct Conversion<'a> {
    kinds: (Kind, Kind),
    is_narrow: bool,
    values: &'a [u8],
    out: &'a mut [u8],
}

impl Loops for Conversion<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Conversion {
            kinds,
            is_narrow,
            values,
            out,
        } = self;
        match kinds {
            (Kind::F32, Kind::F32) => each(values, out, |x: f32| x),
            (Kind::F32, Kind::F64) => each(values, out, |x: f32| f64::from(x)),
            (Kind::F32, Kind::I32) => each(values, out, single_to_i32::<FUSED>),
            (Kind::F32, Kind::U32) => each(values, out, single_to_u32::<FUSED>),
            (Kind::F32, Kind::Bool) => each(values, out, |x: f32| u8::from(x != 0.0)),
            (Kind::F64, Kind::F32) if is_narrow => each(values, out, to_odd),
            (Kind::F64, Kind::F32) => each(values, out, |x: f64| x as f32),
            (Kind::F64, Kind::F64) => each(values, out, |x: f64| x),
            (Kind::F64, Kind::I32) => each(values, out, to_i32::<FUSED>),
            (Kind::F64, Kind::U32) => each(values, out, to_u32::<FUSED>),
            (Kind::F64, Kind::Bool) => each(values, out, |x: f64| u8::from(x != 0.0)),
            (Kind::I32, Kind::F32) if is_narrow => each(values, out, |x: i32| to_odd(x.into())),
            (Kind::I32, Kind::F32) => each(values, out, |x: i32| x as f32),
            (Kind::I32, Kind::F64) => each(values, out, |x: i32| f64::from(x)),
            (Kind::U32, Kind::F32) if is_narrow => each(values, out, |x: u32| to_odd(x.into())),
            (Kind::U32, Kind::F32) => each(values, out, |x: u32| x as f32),
            (Kind::U32, Kind::F64) => each(values, out, |x: u32| f64::from(x)),
            (Kind::I32 | Kind::U32, Kind::I32 | Kind::U32) => each(values, out, |x: u32| x),
            (Kind::I32 | Kind::U32, Kind::Bool) => each(values, out, |x: u32| u8::from(x != 0)),
            // Programs' kernels and buffers may leave any byte.
            (Kind::Bool, Kind::F32) => each(values, out, |x: u8| f32::from(u8::from(x != 0))),
            (Kind::Bool, Kind::F64) => each(values, out, |x: u8| f64::from(u8::from(x != 0))),
            (Kind::Bool, Kind::I32 | Kind::U32) => each(values, out, |x: u8| u32::from(x != 0)),
            (Kind::Bool, Kind::Bool) => each(values, out, |x: u8| u8::from(x != 0)),
        }
    }
}

#[inline(always)]
fn each<A: Pod, R: Pod>(values: &[u8], out: &mut [u8], f: impl Fn(A) -> R) {
    let values: &[A] = bytemuck::cast_slice(values);
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    for (out, &value) in out.iter_mut().zip(values) {
        *out = f(value);
    }
}
