//! Which shapes multiply, what is done to the sums, and what comes out.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::capabilities::DeviceKind;
use crate::cpu::matrix::Size;
use crate::cpu::product::is_small;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::road::Operand;
use crate::shape::Shape;
use crate::tensor::Tensor;

const INNER: &str =
    "the last size of the first must equal the last but one of the second (or its only one)";
const INNER_TURNED: &str = "the last size of the first must equal the last but one of the second, as it would of its `transpose(-1, -2)`";
const BATCH: &str = "the sizes before the last two must be equal or one of them 1";

/// A function of each entry of a product, applied before it is stored.
///
/// NaN stays NaN. Computed in f32, within `2^-20 (|y| + |f(y)|)`; of f64 in f64 (`Gelu` and `Silu` on the CPU), within
/// `2^-47 (|y| + |f(y)|)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Activation {
    /// `y`
    #[default]
    None,
    /// `max(y, 0)`
    Relu,
    /// `y/2 erfc(-y / sqrt 2)`, not the approximation by tanh
    Gelu,
    /// `y / (1 + exp(-y))`, also called swish
    Silu,
}

impl Activation {
    /// Every activation.
    pub const ALL: &[Activation] = &[
        Activation::None,
        Activation::Relu,
        Activation::Gelu,
        Activation::Silu,
    ];

    /// `none`, `relu`, `gelu`, `silu`: as kernels and messages name it.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::None => "none",
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
            Activation::Silu => "silu",
        }
    }
}

/// What [`Tensor::matmul_with`] does to the entries of a product before they are stored:
/// `activation(scale * product + bias + residual)`, in the type that sums are kept in, rounded
/// once.
///
/// ```
/// # use orlop::{Activation, DType, Device, Epilogue, Tensor};
/// # fn main() -> orlop::Result<()> {
/// # let device = Device::cpu();
/// let x = Tensor::ones(&device, [2, 4], DType::F32)?;
/// let w = Tensor::ones(&device, [4, 4], DType::F32)?;
/// let y = x.matmul_with(&w, &Epilogue::new().scale(0.5).residual(&x))?;
/// assert_eq!(y.to_vec::<f32>()?, [3.0; 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Epilogue<'a> {
    pub(super) scale: f64,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) residual: Option<&'a Tensor>,
    pub(super) activation: Activation,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Epilogue<'a> {
    /// The product as it is.
    pub const fn new() -> Self {
        Self {
            scale: 1.0,
            bias: None,
            residual: None,
            activation: Activation::None,
        }
    }

    /// A factor for the product, rounded to the type that sums are kept in; 1 without it.
    pub fn scale(self, scale: impl Into<f64>) -> Self {
        let scale = scale.into();
        Self { scale, ..self }
    }

    /// A tensor `[n]` added to each row, where n is the last size of the product's right operand
    /// (1 when that is a vector).
    pub const fn bias(self, bias: &'a Tensor) -> Self {
        Self {
            bias: Some(bias),
            ..self
        }
    }

    /// A tensor of the result's shape that is added. Any view will do.
    pub const fn residual(self, residual: &'a Tensor) -> Self {
        Self {
            residual: Some(residual),
            ..self
        }
    }

    /// What is applied last.
    pub const fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }
}

/// An epilogue without its tensors, which are operands: after both factors the bias, then the
/// residual, of those that there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Finish {
    pub scale: f64,
    pub bias: bool,
    pub residual: bool,
    pub activation: Activation,
}

impl Finish {
    /// The product as it is.
    pub(super) const NONE: Finish = Finish {
        scale: 1.0,
        bias: false,
        residual: false,
        activation: Activation::None,
    };

    pub(super) fn of(epilogue: &Epilogue<'_>) -> Self {
        Self {
            scale: epilogue.scale,
            bias: epilogue.bias.is_some(),
            residual: epilogue.residual.is_some(),
            activation: epilogue.activation,
        }
    }
}

/// A product as batches of matrices, and the shape that the caller sees.
pub(super) struct Form<'a> {
    /// `[batch..., m, k]`
    pub left: Cow<'a, Tensor>,
    /// `[batch..., k, n]`
    pub right: Cow<'a, Tensor>,
    /// Bias and residual, of those that there are: `[batch..., m, n]`
    pub added: SmallVec<[Tensor; 2]>,
    /// k
    pub inner: usize,
    pub output: Shape,
}

impl Form<'_> {
    /// One matrix on the right of all batches, whose rows on the left lie evenly: one product of all rows.
    fn of_all_rows(self) -> Self {
        match self.all_rows() {
            Some((left, right, added)) => Self {
                left: Cow::Owned(left),
                right: Cow::Owned(right),
                added,
                ..self
            },
            None => self,
        }
    }

    /// [`Self::of_all_rows`]'s left, right, and what is added.
    fn all_rows(&self) -> Option<(Tensor, Tensor, SmallVec<[Tensor; 2]>)> {
        let ([batch @ .., m, k], [.., n]) = (self.left.shape().dims(), self.right.shape().dims())
        else {
            return None;
        };
        let (m, k, n) = (*m, *k, *n);
        let mut repeats = batch.iter().zip(self.right.layout().strides());
        let is_one = !batch.is_empty()
            && repeats.all(|(&size, &stride)| size == 1 || size > 0 && stride == 0);
        // The CPU has loops of its own for these, where rows are enough.
        let dtype = self.left.dtype();
        let strides = self.left.layout().strides();
        let stays = m >= 16
            && dtype.is_float()
            && is_small(Size { m, k, n }, dtype.accumulator().size())
            && strides[strides.len() - 2..].contains(&1)
            && self.right.layout().strides().last() == Some(&1)
            && self.left.device().capabilities().kind == DeviceKind::Cpu;
        if !is_one || stays {
            return None;
        }
        let rows = batch
            .iter()
            .try_fold(m, |rows, &size| rows.checked_mul(size))?;
        let view = |tensor: &Tensor, layout: &Layout, sizes: [usize; 2]| {
            Some(tensor.view(layout.reshape(&Shape::from(sizes))?))
        };
        let first = vec![(0..1).into(); batch.len()];
        let right = self.right.layout().slice(&first).ok()?;
        let added = self
            .added
            .iter()
            .map(|added| view(added, added.layout(), [rows, n]));
        Some((
            view(&self.left, self.left.layout(), [rows, k])?,
            view(&self.right, &right, [k, n])?,
            added.collect::<Option<_>>()?,
        ))
    }

    /// The same result from one step of k: zeros times zeros, where there is none to sum.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub(super) fn of_one_step(mut self) -> Result<Self> {
        for (operand, axis) in [(&mut self.left, 1), (&mut self.right, 2)] {
            let mut sizes = operand.shape().to_vec();
            let at = sizes.len() - axis;
            sizes[at] = 1;
            let zero = Tensor::zeros(operand.device(), (), operand.dtype())?;
            *operand = Cow::Owned(zero.broadcast_to(sizes)?);
        }
        self.inner = 1;
        Ok(self)
    }
}

/// Matrices with equal batches, each with its own, and something to sum: they need no other form.
pub(super) fn is_plain(a: &Tensor, b: &Tensor) -> bool {
    match (a.shape().dims(), b.shape().dims()) {
        ([left @ .., _, inner], [right @ .., _, _]) => {
            let is_repeated = !right.is_empty() && b.layout().strides()[0] == 0;
            left == right && *inner != 0 && !is_repeated
        }
        _ => false,
    }
}

/// # Errors
/// `InvalidArgument` for scalars, integers with an epilogue, `DTypeMismatch`, `ShapeMismatch`.
pub(super) fn form<'a>(a: &'a Tensor, b: &'a Tensor, epilogue: &Epilogue<'_>) -> Result<Form<'a>> {
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
    check_number(a.dtype())?;
    let mismatch = |rule| Error::shape_mismatch("matmul", a.shape(), b.shape(), rule);
    let (row, column) = (a.rank() == 1, b.rank() == 1);
    let left = match row {
        true => Cow::Owned(a.unsqueeze(0)?),
        false => Cow::Borrowed(a),
    };
    let right = match column {
        true => Cow::Owned(b.unsqueeze(1)?),
        false => Cow::Borrowed(b),
    };
    let (left_batch, [m, inner]) = split(left.shape());
    let (right_batch, [k, n]) = split(right.shape());
    if inner != k {
        let is_turned = !column && inner == n;
        return Err(mismatch(if is_turned { INNER_TURNED } else { INNER }));
    }
    let batch = left_batch
        .broadcast(&right_batch, "matmul")
        .map_err(|_| mismatch(BATCH))?;
    let with = |sizes: &[usize]| batch.iter().chain(sizes).copied().collect::<Shape>();
    let mut output: Vec<usize> = batch.to_vec();
    output.extend((!row).then_some(m));
    output.extend((!column).then_some(n));
    let output = Shape::from(output);
    let entries = output.count("matmul")?;
    check_work("matmul", entries, inner)?;
    if Finish::of(epilogue) != Finish::NONE && !a.dtype().is_float() {
        return Err(Error::invalid(
            "matmul",
            format!("an epilogue on {}: it is for floats", a.dtype()),
        ));
    }
    let mut added: SmallVec<[Tensor; 2]> = SmallVec::new();
    let sizes = with(&[m, n]);
    if let Some(bias) = epilogue.bias {
        if bias.shape().dims() != [n] {
            let rule = "a bias has one dimension, the last of the product's right operand";
            return Err(Error::shape_mismatch("matmul", &sizes, bias.shape(), rule));
        }
        added.push(bias.broadcast_to(&sizes)?);
    }
    if let Some(residual) = epilogue.residual {
        if residual.shape() != &output {
            let rule = "a residual has the shape of the result";
            return Err(Error::shape_mismatch(
                "matmul",
                &output,
                residual.shape(),
                rule,
            ));
        }
        let with_row = match row {
            true => residual.unsqueeze(batch.rank())?,
            false => residual.clone(),
        };
        added.push(match column {
            true => with_row.unsqueeze(batch.rank() + 1)?,
            false => with_row,
        });
    }
    for tensor in &added {
        if tensor.dtype() != a.dtype() {
            let rule = "bias and residual have the dtype of what is multiplied";
            return Err(Error::operand_dtype(
                "matmul",
                tensor.dtype(),
                a.dtype(),
                rule,
            ));
        }
    }
    let form = Form {
        left: repeated(left, &left_batch, &batch)?,
        right: repeated(right, &right_batch, &batch)?,
        added,
        inner,
        output,
    };
    Ok(form.of_all_rows())
}

/// # Errors
/// `InvalidArgument` for bool.
fn check_number(dtype: DType) -> Result<()> {
    match dtype {
        DType::Bool => Err(Error::invalid(
            "matmul",
            "multiplies numbers, not bool: cast first",
        )),
        _ => Ok(()),
    }
}

/// Multiply-adds that nobody waits for: a week and more at 100 GFLOP/s.
const MOST_WORK: u128 = 1 << 55;

/// # Errors
/// `InvalidArgument` for a product that would not end: sizes that only views can claim.
pub(super) fn check_work(op: &'static str, entries: usize, inner: usize) -> Result<()> {
    let work = entries as u128 * inner as u128;
    match work > MOST_WORK {
        true => Err(Error::invalid(
            op,
            format!(
                "{work} multiply-adds, {inner} for each of {entries} entries, would take weeks: check the shapes"
            ),
        )),
        false => Ok(()),
    }
}

/// Matrices repeated for all batches, if they have not as many.
fn repeated<'a>(matrices: Cow<'a, Tensor>, batch: &Shape, all: &Shape) -> Result<Cow<'a, Tensor>> {
    if batch == all {
        return Ok(matrices);
    }
    let (_, last) = split(matrices.shape());
    let sizes: Shape = all.iter().copied().chain(last).collect();
    Ok(Cow::Owned(matrices.broadcast_to(sizes)?))
}

/// The batch sizes, and the last two.
fn split(shape: &Shape) -> (Shape, [usize; 2]) {
    match shape.dims() {
        [batch @ .., rows, columns] => (batch.into(), [*rows, *columns]),
        _ => (Shape::default(), [1, 1]),
    }
}

/// The rule for matrices with equal batches, and what is added to their product: what [`form`] makes.
pub(super) fn infer(finish: Finish, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
    let [a, b, added @ ..] = inputs else {
        return Err(Error::invalid("matmul", "takes two operands"));
    };
    if added.len() != usize::from(finish.bias) + usize::from(finish.residual) {
        return Err(Error::invalid(
            "matmul",
            "an operand of the epilogue is missing",
        ));
    }
    if let Some(other) = inputs.iter().find(|other| other.dtype != a.dtype) {
        return Err(Error::dtype_mismatch("matmul", a.dtype, other.dtype));
    }
    check_number(a.dtype)?;
    let (left, right) = (a.layout.shape(), b.layout.shape());
    let ([batch @ .., _, inner], [right_batch @ .., k, n]) = (left.dims(), right.dims()) else {
        return Err(Error::invalid("matmul", "takes two operands"));
    };
    let mismatch = |rule| Error::shape_mismatch("matmul", left, right, rule);
    if inner != k {
        return Err(mismatch(INNER));
    }
    if batch != right_batch {
        return Err(mismatch(BATCH));
    }
    let shape = left.with_last(*n);
    check_work("matmul", shape.count("matmul")?, *inner)?;
    if let Some(other) = added.iter().find(|other| other.layout.shape() != &shape) {
        let rule = "what is added has the shape of the product";
        return Err(Error::shape_mismatch(
            "matmul",
            &shape,
            other.layout.shape(),
            rule,
        ));
    }
    Ok((shape, a.dtype))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    /// The sizes of what is multiplied.
    fn multiplied(a: &Tensor, b: &Tensor, epilogue: &Epilogue<'_>) -> [Vec<usize>; 2] {
        assert!(!is_plain(a, b));
        let form = form(a, b, epilogue).unwrap();
        let [.., rows, _] = form.left.shape().dims() else {
            panic!("no matrix");
        };
        for added in &form.added {
            assert_eq!(added.rank(), form.left.rank());
            assert_eq!(added.shape()[added.rank() - 2], *rows);
        }
        [form.left.shape().to_vec(), form.right.shape().to_vec()]
    }

    #[test]
    fn one_matrix_for_all_batches_is_one_product() {
        let device = Device::cpu();
        let make = |sizes: &[usize]| Tensor::ones(&device, sizes, DType::F32).unwrap();
        let (a, b) = (make(&[2, 4, 3, 5]), make(&[5, 6]));
        let (bias, residual) = (make(&[6]), make(&[2, 4, 3, 6]));
        let all = Epilogue::new().bias(&bias).residual(&residual);
        let turned = make(&[6, 5]).transpose(0, 1).unwrap();
        for b in [&b, &turned, &b.broadcast_to([2, 4, 5, 6]).unwrap()] {
            for epilogue in [&Epilogue::new(), &all] {
                let got = multiplied(&a, b, epilogue);
                assert_eq!(got, [vec![24, 5], vec![5, 6]]);
            }
        }
        // Rows or what is added lie apart, batches differ, or the CPU has small ones as they lie.
        let apart = make(&[2, 3, 4, 5]).transpose(1, 2).unwrap();
        assert_eq!(multiplied(&apart, &b, &Epilogue::new())[0], [2, 4, 3, 5]);
        let added = make(&[2, 3, 4, 6]).transpose(1, 2).unwrap();
        let epilogue = Epilogue::new().residual(&added);
        assert_eq!(multiplied(&a, &b, &epilogue)[0], [2, 4, 3, 5]);
        let halves = make(&[2, 1, 5, 6]);
        assert_eq!(multiplied(&a, &halves, &Epilogue::new())[0], [2, 4, 3, 5]);
        let small = make(&[7, 16, 5]);
        assert_eq!(multiplied(&small, &b, &Epilogue::new())[0], [7, 16, 5]);
    }
}
