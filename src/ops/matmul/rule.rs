//! Which shapes multiply, and what comes out.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::road::Operand;
use crate::shape::Shape;
use crate::tensor::Tensor;

const INNER: &str =
    "the last size of the first must equal the last but one of the second (or its only one)";
const BATCH: &str = "the sizes before the last two must be equal or one of them 1";

/// A product as batches of matrices, and the shape that the caller sees.
pub(super) struct Form {
    /// `[batch..., m, k]`
    pub left: Tensor,
    /// `[batch..., k, n]`
    pub right: Tensor,
    /// k
    pub inner: usize,
    pub output: Shape,
}

/// # Errors
/// `InvalidArgument` for scalars, `DTypeMismatch`, `ShapeMismatch`.
pub(super) fn form(a: &Tensor, b: &Tensor) -> Result<Form> {
    if a.rank() == 0 || b.rank() == 0 {
        return Err(Error::invalid(
            "matmul",
            format!(
                "shapes {} and {}: a scalar is no matrix; use mul",
                a.shape(),
                b.shape()
            ),
        ));
    }
    if a.dtype() != b.dtype() {
        return Err(Error::dtype_mismatch("matmul", a.dtype(), b.dtype()));
    }
    let mismatch = |rule| Error::shape_mismatch("matmul", a.shape(), b.shape(), rule);
    let (row, column) = (a.rank() == 1, b.rank() == 1);
    let left = if row { a.unsqueeze(0)? } else { a.clone() };
    let right = if column { b.unsqueeze(1)? } else { b.clone() };
    let (left_batch, [m, inner]) = split(left.shape());
    let (right_batch, [k, n]) = split(right.shape());
    if inner != k {
        return Err(mismatch(INNER));
    }
    let batch = left_batch
        .broadcast(&right_batch, "matmul")
        .map_err(|_| mismatch(BATCH))?;
    let with = |sizes: &[usize]| batch.iter().chain(sizes).copied().collect::<Shape>();
    let mut output: Vec<usize> = batch.to_vec();
    output.extend((!row).then_some(m));
    output.extend((!column).then_some(n));
    Ok(Form {
        left: left.broadcast_to(with(&[m, k]))?,
        right: right.broadcast_to(with(&[k, n]))?,
        inner,
        output: output.into(),
    })
}

/// The batch sizes, and the last two.
fn split(shape: &Shape) -> (Shape, [usize; 2]) {
    match shape.dims() {
        [batch @ .., rows, columns] => (batch.into(), [*rows, *columns]),
        _ => (Shape::default(), [1, 1]),
    }
}

/// The rule for matrices with equal batches: what [`form`] makes.
pub(super) fn infer(inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
    let [a, b] = inputs else {
        return Err(Error::invalid("matmul", "takes two operands"));
    };
    if a.dtype != b.dtype {
        return Err(Error::dtype_mismatch("matmul", a.dtype, b.dtype));
    }
    let (batch, [m, inner]) = split(a.layout.shape());
    let (right_batch, [k, n]) = split(b.layout.shape());
    let mismatch = |rule| Error::shape_mismatch("matmul", a.layout.shape(), b.layout.shape(), rule);
    if inner != k {
        return Err(mismatch(INNER));
    }
    if batch != right_batch {
        return Err(mismatch(BATCH));
    }
    Ok((batch.iter().copied().chain([m, n]).collect(), a.dtype))
}
