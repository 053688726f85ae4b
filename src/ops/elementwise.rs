//! Elementwise arithmetic of two tensors, with NumPy's broadcasting, on any strides.

use super::plan;
use crate::capabilities::Capabilities;
use crate::cpu::parallel;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

impl Binary {
    pub(super) const ALL: [Binary; 4] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div];
}

impl Tensor {
    /// `self + other`, elementwise with NumPy's broadcasting. Integers wrap.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; what any op can meet: out of memory,
    /// unsupported under strict placement, a lost device.
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        binary(Binary::Add, self, other)
    }

    /// `self - other`, elementwise with NumPy's broadcasting. Integers wrap.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        binary(Binary::Sub, self, other)
    }

    /// `self * other`, elementwise with NumPy's broadcasting. Integers wrap.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        binary(Binary::Mul, self, other)
    }

    /// `self / other`, elementwise with NumPy's broadcasting. Integers truncate toward zero;
    /// an integer divided by zero is 0, and `i32::MIN / -1` is `i32::MIN`, on every device.
    /// Floats: within 2.5 ULP on GPUs (WGSL), correctly rounded on the CPU.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        binary(Binary::Div, self, other)
    }
}

fn binary(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    // Checked here once more than in `infer`, since the views below need the shape.
    let shape = a.shape().broadcast(b.shape(), op.name())?;
    if a.shape() == b.shape() {
        return road::run(&op, &[a, b]);
    }
    road::run(&op, &[&a.broadcast_to(&shape)?, &b.broadcast_to(&shape)?])
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
        }
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [a, b] = inputs else {
            return Err(Error::invalid(self.name(), "takes two operands"));
        };
        if a.dtype != b.dtype {
            return Err(Error::dtype_mismatch(self.name(), a.dtype, b.dtype));
        }
        let shape = a.layout.shape().broadcast(b.layout.shape(), self.name())?;
        Ok((shape, a.dtype))
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let element = problem.output.dtype.name();
        plan::Elementwise {
            op: self.name(),
            elements: (element, element),
            vectors: true,
        }
        .launches(problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        match output.dtype {
            DType::F32 => self.floats::<f32>(inputs, output),
            DType::F64 => self.floats::<f64>(inputs, output),
            DType::F16 => self.floats::<half::f16>(inputs, output),
            DType::BF16 => self.floats::<half::bf16>(inputs, output),
            DType::I32 => match self {
                Binary::Add => twin::<i32>(inputs, output, i32::wrapping_add),
                Binary::Sub => twin::<i32>(inputs, output, i32::wrapping_sub),
                Binary::Mul => twin::<i32>(inputs, output, i32::wrapping_mul),
                Binary::Div => {
                    twin::<i32>(
                        inputs,
                        output,
                        |a, b| {
                            if b == 0 { 0 } else { a.wrapping_div(b) }
                        },
                    )
                }
            },
            DType::U32 => match self {
                Binary::Add => twin::<u32>(inputs, output, u32::wrapping_add),
                Binary::Sub => twin::<u32>(inputs, output, u32::wrapping_sub),
                Binary::Mul => twin::<u32>(inputs, output, u32::wrapping_mul),
                Binary::Div => twin::<u32>(inputs, output, |a, b| a.checked_div(b).unwrap_or(0)),
            },
        }
        Ok(())
    }
}

impl Binary {
    fn floats<T>(self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>)
    where
        T: Element
            + std::ops::Add<Output = T>
            + std::ops::Sub<Output = T>
            + std::ops::Mul<Output = T>
            + std::ops::Div<Output = T>,
    {
        match self {
            Binary::Add => twin::<T>(inputs, output, |a, b| a + b),
            Binary::Sub => twin::<T>(inputs, output, |a, b| a - b),
            Binary::Mul => twin::<T>(inputs, output, |a, b| a * b),
            Binary::Div => twin::<T>(inputs, output, |a, b| a / b),
        }
    }
}

/// Applies `f` over both operands; unit strides take a loop that vectorises.
fn twin<T: Element>(
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
    f: impl Fn(T, T) -> T + Sync + Send,
) {
    let [a, b] = inputs else { return };
    let walk = parallel::Walk::new(&[a.layout, b.layout]);
    let strides = walk.inner_strides();
    let (a, b) = (a.elements::<T>(), b.elements::<T>());
    let count = output.layout.elements();
    let Some(out) = output.elements::<T>().get_mut(..count) else {
        return;
    };
    parallel::pieces(out, |from, piece| {
        let length = piece.len();
        walk.runs(from, length, |first, starts, count| {
            let out = &mut piece[first..first + count];
            let (a_start, b_start) = (starts[0] as usize, starts[1] as usize);
            match (strides[0], strides[1]) {
                (1, 1) => {
                    let a = &a[a_start..a_start + count];
                    let b = &b[b_start..b_start + count];
                    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                        *out = f(a, b);
                    }
                }
                (1, 0) => {
                    let a = &a[a_start..a_start + count];
                    let b = b[b_start];
                    for (out, &a) in out.iter_mut().zip(a) {
                        *out = f(a, b);
                    }
                }
                (a_stride, b_stride) => {
                    let (mut at_a, mut at_b) = (starts[0], starts[1]);
                    for out in out {
                        *out = f(a[at_a as usize], b[at_b as usize]);
                        at_a += a_stride;
                        at_b += b_stride;
                    }
                }
            }
        });
    });
}
