//! New tensors.

use super::fill::Fill;
use crate::cpu::{host_vec, parallel};
use crate::device::Device;
use crate::dtype::{DType, Element, Scalar, bf16_of, f16_of};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::road;
use crate::shape::Shape;
use crate::tensor::Tensor;

fn size(op: &'static str, shape: &Shape, dtype: DType) -> Result<u128> {
    Ok(shape.count(op)? as u128 * dtype.size() as u128)
}

/// A new tensor of one value, made by the op that is named.
pub(super) fn filled(
    op: &'static str,
    device: &Device,
    shape: Shape,
    value: Scalar,
    dtype: DType,
) -> Result<Tensor> {
    road::create(&Fill::new(op, shape, value, dtype)?, device)
}

impl Tensor {
    /// A tensor whose contents are whatever was in memory: write it before you read it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`]; [`Error::Unsupported`] for f64 under strict
    /// placement on a device without it (under soft placement the tensor lives on the CPU);
    /// [`Error::TimedOut`], [`Error::DeviceLost`].
    pub fn empty(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        Self::empty_for("empty", device, shape.into(), dtype)
    }

    /// The same for the op that is named and that writes it.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub(crate) fn empty_for(
        op: &'static str,
        device: &Device,
        shape: Shape,
        dtype: DType,
    ) -> Result<Tensor> {
        let bytes = size(op, &shape, dtype)?;
        road::place_new(op, device, dtype, |device| {
            let storage = device.allocate(device.check_size(op, bytes)?)?;
            let layout = Layout::contiguous(shape);
            Ok(Tensor::new(device, storage, layout, dtype))
        })
    }

    /// All zeros. For integers and floats alike.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn zeros(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        filled("zeros", device, shape.into(), 0.into(), dtype)
    }

    /// All ones.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn ones(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        filled("ones", device, shape.into(), 1.into(), dtype)
    }

    /// One value everywhere; floats round it to nearest even.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when an integer dtype cannot hold the value; as
    /// [`Tensor::empty`].
    pub fn full(
        device: &Device,
        shape: impl Into<Shape>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Tensor> {
        filled("full", device, shape.into(), value.into(), dtype)
    }

    /// `start`, `start + step`, ... below `end` (above it for a negative step): one dimension of
    /// `ceil((end - start) / step)` elements, each computed as `start + i * step` in f64 and
    /// rounded once, so the same on every device. As with NumPy, where that quotient is rounded up the last one may be
    /// `end`: 1.0 to 1.3 by 0.1 are four.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a step of 0, for a start, end or step that is not finite, or a value that an
    /// integer dtype cannot hold; as [`Tensor::empty`].
    pub fn arange(
        device: &Device,
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Tensor> {
        let [start, end, step] =
            [start.into(), end.into(), step.into()].map(|scalar| match scalar {
                Scalar::Float(value) => value,
                Scalar::Integer(value) => value as f64,
            });
        if !(start.is_finite() && end.is_finite() && step.is_finite()) || step == 0.0 {
            return Err(Error::invalid(
                "arange",
                format!(
                    "from {start} to {end} by {step}: needs finite numbers and a step that is not zero"
                ),
            ));
        }
        let count = ((end - start) / step).ceil().max(0.0);
        if count >= isize::MAX as f64 {
            // More than a shape can say.
            return Err(Error::too_large(
                "arange",
                format!("from {start} to {end} by {step}"),
                count as u128,
                isize::MAX as u64,
                "elements",
                "the address space",
                "take a larger step",
            ));
        }
        let count = count as usize;
        let bytes = size("arange", &Shape::from(count), dtype)?;
        road::place_new("arange", device, dtype, |device| {
            let size = device.check_size("arange", bytes)?;
            if device.memory().limit.is_some_and(|limit| size > limit) {
                // Fails, before the host computes anything.
                device.allocate(size)?;
            }
            let mut host = host_vec("arange", size as usize)?;
            // Before its pages are there.
            check_progression(count, [start, step], dtype)?;
            host.resize(size as usize, 0);
            progression(&mut host, [start, step], dtype);
            let storage = device.allocate(size)?;
            storage.write(&host)?;
            let layout = Layout::contiguous(count);
            Ok(Tensor::new(device, storage, layout, dtype))
        })
    }

    /// A copy of `data`, row-major.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the length is not the shape's; as [`Tensor::empty`].
    pub fn from_slice<T: Element>(
        device: &Device,
        data: &[T],
        shape: impl Into<Shape>,
    ) -> Result<Tensor> {
        Self::from_elements("from_slice", device, data, shape.into())
    }

    /// The elements of `data`, row-major; the vector's memory is let go after the copy.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_vec<T: Element>(
        device: &Device,
        data: Vec<T>,
        shape: impl Into<Shape>,
    ) -> Result<Tensor> {
        Self::from_elements("from_vec", device, &data, shape.into())
    }

    /// A tensor of no dimension.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn scalar<T: Element>(device: &Device, value: T) -> Result<Tensor> {
        Self::from_elements("scalar", device, &[value], ().into())
    }

    pub(super) fn from_elements<T: Element>(
        op: &'static str,
        device: &Device,
        data: &[T],
        shape: Shape,
    ) -> Result<Tensor> {
        if shape.checked_elements() != Some(data.len()) {
            return Err(Error::invalid(
                op,
                format!("{} elements given for shape {shape}", data.len()),
            ));
        }
        Self::from_bytes(op, device, shape, T::DTYPE, bytemuck::cast_slice(data))
    }

    fn from_bytes(
        op: &'static str,
        device: &Device,
        shape: Shape,
        dtype: DType,
        data: &[u8],
    ) -> Result<Tensor> {
        road::place_new(op, device, dtype, |device| {
            let storage = device.allocate(device.check_size(op, data.len() as u128)?)?;
            storage.write(data)?;
            let layout = Layout::contiguous(shape);
            Ok(Tensor::new(device, storage, layout, dtype))
        })
    }
}

/// That the dtype can hold each of `count` elements of `start + i * step`: an error that names the first that it cannot.
fn check_progression(count: usize, [start, step]: [f64; 2], dtype: DType) -> Result<()> {
    let Some(last) = count.checked_sub(1) else {
        return Ok(());
    };
    let value = |i: usize| Scalar::Float(start + i as f64 * step);
    let fits = |i: usize| value(i).to_bytes(dtype).is_some();
    // Whole numbers between two that fit do, and floats take any.
    let are_whole = start.fract() == 0.0 && step.fract() == 0.0 && dtype != DType::Bool;
    let first = match (fits(0), fits(last)) {
        _ if dtype.is_float() => None,
        (false, _) => Some(0),
        (true, true) if are_whole => None,
        (true, false) if are_whole => {
            let (mut fitting, mut other) = (0, last);
            while other - fitting > 1 {
                let middle = fitting.midpoint(other);
                match fits(middle) {
                    true => fitting = middle,
                    false => other = middle,
                }
            }
            Some(other)
        }
        _ => (1..count).find(|&i| !fits(i)),
    };
    match first.map(value) {
        None => Ok(()),
        Some(value) => {
            let problem = format!("{dtype} cannot hold the value {value}");
            Err(Error::invalid("arange", problem))
        }
    }
}

/// Fills with elements of `start + i * step`, which the dtype can hold.
fn progression(host: &mut [u8], [start, step]: [f64; 2], dtype: DType) {
    macro_rules! fill {
        ($size:literal, $of:expr) => {
            parallel::elements(host, dtype.size(), |first, piece| {
                let (places, _) = piece.as_chunks_mut::<$size>();
                for (place, i) in places.iter_mut().zip(0i32..) {
                    let i = first as f64 + f64::from(i);
                    *place = $of(start + i * step).to_ne_bytes();
                }
            })
        };
    }
    match dtype {
        DType::F32 => fill!(4, |x: f64| x as f32),
        DType::F64 => fill!(8, |x: f64| x),
        DType::F16 => fill!(2, f16_of),
        DType::BF16 => fill!(2, bf16_of),
        DType::U32 => fill!(4, |x: f64| x as u32),
        DType::I32 => fill!(4, |x: f64| x as i32),
        DType::Bool => fill!(1, |x: f64| x as u8),
    }
}
