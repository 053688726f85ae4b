//! Conversions between dtypes on the CPU: one loop each over the values of a block.

use bytemuck::Pod;
use half::{bf16, f16};

use super::function::Kind;
use crate::cpu::vectorised;
use crate::dtype::{DType, to_odd};

/// Values as they are computed with: of f16 and bf16 as f32, rounded to them.
pub(super) fn convert(from: DType, to: DType, values: &[u8], out: &mut [u8]) {
    let kinds = (Kind::of(from), Kind::of(to));
    // Rounded once, however many digits there are.
    let is_narrow = matches!(to, DType::F16 | DType::BF16);
    vectorised(
        #[inline(always)]
        || match kinds {
            (Kind::F32, Kind::F32) => each(values, out, |x: f32| x),
            (Kind::F32, Kind::F64) => each(values, out, |x: f32| f64::from(x)),
            (Kind::F32, Kind::I32) => each(values, out, |x: f32| x as i32),
            (Kind::F32, Kind::U32) => each(values, out, |x: f32| x as u32),
            (Kind::F32, Kind::Bool) => each(values, out, |x: f32| u8::from(x != 0.0)),
            (Kind::F64, Kind::F32) if is_narrow => each(values, out, to_odd),
            (Kind::F64, Kind::F32) => each(values, out, |x: f64| x as f32),
            (Kind::F64, Kind::F64) => each(values, out, |x: f64| x),
            (Kind::F64, Kind::I32) => each(values, out, |x: f64| x as i32),
            (Kind::F64, Kind::U32) => each(values, out, |x: f64| x as u32),
            (Kind::F64, Kind::Bool) => each(values, out, |x: f64| u8::from(x != 0.0)),
            (Kind::I32, Kind::F32) if is_narrow => each(values, out, |x: i32| to_odd(x.into())),
            (Kind::I32, Kind::F32) => each(values, out, |x: i32| x as f32),
            (Kind::I32, Kind::F64) => each(values, out, |x: i32| f64::from(x)),
            (Kind::U32, Kind::F32) if is_narrow => each(values, out, |x: u32| to_odd(x.into())),
            (Kind::U32, Kind::F32) => each(values, out, |x: u32| x as f32),
            (Kind::U32, Kind::F64) => each(values, out, |x: u32| f64::from(x)),
            (Kind::I32 | Kind::U32, Kind::I32 | Kind::U32) => each(values, out, |x: u32| x),
            (Kind::I32 | Kind::U32, Kind::Bool) => each(values, out, |x: u32| u8::from(x != 0)),
            (Kind::Bool, Kind::F32) => each(values, out, |x: u8| f32::from(x)),
            (Kind::Bool, Kind::F64) => each(values, out, |x: u8| f64::from(x)),
            (Kind::Bool, Kind::I32 | Kind::U32) => each(values, out, |x: u8| u32::from(x)),
            (Kind::Bool, Kind::Bool) => each(values, out, |x: u8| x),
        },
    );
    let rounded = |out: &mut [u8], f: fn(f32) -> f32| {
        let out: &mut [f32] = bytemuck::cast_slice_mut(out);
        for out in out {
            *out = f(*out);
        }
    };
    match to {
        DType::F16 => rounded(out, |x| f16::from_f32(x).to_f32()),
        DType::BF16 => rounded(out, |x| bf16::from_f32(x).to_f32()),
        _ => {}
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
