//! Matrix products: 2-D, batched with broadcasting, with vectors as in NumPy, and what is done to
//! their entries before they are stored.

mod cpu;
mod finish;
mod gpu;
mod halves;
mod hardware;
mod integers;
mod kernel;
mod name;
mod pace;
mod pack;
mod panel;
mod parts;
mod plan;
mod product;
mod rule;
mod software;
mod streamed;
mod texels;
mod tiny;

pub(super) use kernel::specialisations;
pub use name::{explain_matmuls, with_matmul_kernel, with_matmul_split};
pub use plan::{MatmulOperand, MatmulPlan, MatmulProblem, plan_matmul};
pub use rule::{Activation, Epilogue};
#[cfg(feature = "npy")]
pub(crate) use streamed::check_part;
pub use streamed::{HostMatrix, MatrixSource, MatrixTarget, Streamed, matmul_streamed};

use std::borrow::Cow;

use rule::Finish;
use smallvec::SmallVec;

use crate::capabilities::{Capabilities, DeviceKind};
use crate::device::{Device, Placement};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{LAUNCHES, Launches};
use crate::layout::Layout;
use crate::ops::create::filled;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

const NAME: &str = "matmul";

/// The product of `[batch..., m, k]` and `[batch..., k, n]`, batches already broadcast, then what
/// is added to it, `[batch..., m, n]`.
struct Matmul(Finish);

impl Tensor {
    /// The matrix product by NumPy's rule: the last two dimensions are matrices, those before
    /// them broadcast; a vector on the left is a row, on the right a column, and that dimension
    /// does not come out. Transposed and sliced views are read as they lie, unless they go backwards: those are copied whole.
    /// On software adapters the plan may copy operands first, where that is faster. What memory a product takes: `docs/memory.md`, "Scratch".
    ///
    /// f32 sums stay f32, f16 inputs are summed in f32, integers wrap. Each f32 entry is within
    /// `k 2^-23 sum |a||b|` of the exact result; where roundings go either way by chance, as with random
    /// operands, within `4 sqrt(k) 2^-23 sum |a||b|`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for inner sizes or batches that do
    /// not go together, [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for bool, a scalar operand, or more than
    /// 2^55 multiply-adds; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        self.matmul_with(other, &Epilogue::new())
    }

    /// A layer: `activation(self x weight + bias)`, with `self` `[..., k]`, `weight` `[k, n]` and
    /// `bias` `[n]`. Weights that lie `[n, k]`, as PyTorch's do, are given as
    /// `weight.transpose(0, 1)`, which copies nothing; on the CPU products of 2 to 24 rows take up to 1.5 times as long with such
    /// weights, so that one copy of them, `.copy()`, pays there.
    ///
    /// # Errors
    /// As [`Tensor::matmul_with`], under the name `matmul`.
    pub fn linear(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
    ) -> Result<Tensor> {
        let epilogue = Epilogue::new().activation(activation);
        let epilogue = match bias {
            Some(bias) => epilogue.bias(bias),
            None => epilogue,
        };
        self.matmul_with(weight, &epilogue)
    }

    /// [`Tensor::matmul`] with an [`Epilogue`]: scale, bias, residual and activation, without
    /// another pass over the result; of f64 on a GPU with one, in the result's memory.
    ///
    /// # Errors
    /// As [`Tensor::matmul`]; [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for a bias
    /// that is not `[n]` or a residual that has not the shape of the result,
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an epilogue on integers.
    pub fn matmul_with(&self, other: &Tensor, epilogue: &Epilogue<'_>) -> Result<Tensor> {
        let finish = Finish::of(epilogue);
        let plain = !self.layout().goes_back() && !other.layout().goes_back();
        if plain && finish == Finish::NONE && rule::is_plain(self, other) {
            return product(finish, &[self, other]);
        }
        let mut form = rule::form(self, other, epilogue)?;
        if form.inner == 0 {
            // Empty sums: nothing to multiply.
            if finish == Finish::NONE {
                let home = road::home(NAME, &[self, other])?;
                return filled(NAME, &home, form.output, 0.into(), self.dtype());
            }
            form = form.of_one_step()?;
        }
        // Kernels read operands as they lie, but none backwards.
        let inputs = [&*form.left, &*form.right].into_iter().chain(&form.added);
        if inputs.clone().any(|input| input.layout().goes_back()) {
            // Operands that may not travel are refused before they are copied.
            road::home(NAME, &inputs.clone().collect::<SmallVec<[&Tensor; 4]>>())?;
        }
        let forward = inputs.map(|input| match input.layout().goes_back() {
            // What is repeated, as matrices for all batches are, is copied once.
            true => input.copy_once(NAME).map(Cow::Owned),
            false => Ok(Cow::Borrowed(input)),
        });
        let forward = forward.collect::<Result<SmallVec<[Cow<'_, Tensor>; 4]>>>()?;
        let inputs: SmallVec<[&Tensor; 4]> = forward.iter().map(|input| &**input).collect();
        let product = multiply(finish, &inputs)?;
        if product.shape() == &form.output {
            return Ok(product);
        }
        Ok(product.view(crate::layout::Layout::contiguous(form.output)))
    }
}

/// A product in one op. Operands whose rows lie so far apart that there would be more launches than there may be are
/// copied, to lie close together.
fn product(finish: Finish, inputs: &[&Tensor]) -> Result<Tensor> {
    let op = Matmul(finish);
    let is_near = |input: &Tensor| input.is_contiguous();
    match road::run(&op, inputs) {
        Err(Error::TooLarge(limit))
            if limit.unit == LAUNCHES && !inputs.iter().copied().all(is_near) =>
        {
            let near = inputs.iter().map(|&input| match is_near(input) {
                true => Ok(Cow::Borrowed(input)),
                false => input.copy_once(NAME).map(Cow::Owned),
            });
            let near = near.collect::<Result<SmallVec<[Cow<'_, Tensor>; 4]>>>()?;
            road::run(
                &op,
                &near
                    .iter()
                    .map(|input| &**input)
                    .collect::<SmallVec<[&Tensor; 4]>>(),
            )
        }
        done => done,
    }
}

/// A product of matrices and what is done to its entries: in one op, but for f64 on devices that multiply it, whose kernels
/// have no epilogue. There it is an elementwise op of its own, in the product's memory.
fn multiply(finish: Finish, inputs: &[&Tensor]) -> Result<Tensor> {
    let [left, right, added @ ..] = inputs else {
        return product(finish, inputs);
    };
    let Some(home) = finished_apart(finish, inputs)? else {
        return product(finish, inputs);
    };
    // Both at the home of all: what is added may be elsewhere.
    home.scope(|| {
        let sums = product(Finish::NONE, &[left, right])?;
        sums.into_fused_as(NAME, |e, sums| {
            let scaled = match finish.scale == 1.0 {
                true => sums,
                false => sums * finish.scale,
            };
            let sum = added.iter().fold(scaled, |sum, added| sum + e.input(added));
            match finish.activation {
                Activation::None => sum,
                Activation::Relu => sum.relu(),
                Activation::Gelu => sum.gelu(),
                Activation::Silu => sum.silu(),
            }
        })
    })
}

/// Where that is so: not where the CPU does all of it, nor where a strict device is to refuse a function before anything
/// is multiplied.
fn finished_apart(finish: Finish, inputs: &[&Tensor]) -> Result<Option<Device>> {
    let is_wide = inputs.iter().all(|input| input.dtype() == DType::F64);
    if finish == Finish::NONE || !is_wide {
        return Ok(None);
    }
    let home = road::home(NAME, inputs)?;
    let in_kernels = matches!(finish.activation, Activation::None | Activation::Relu);
    let is_apart = !home.is_cpu()
        && home.capabilities().holds(DType::F64)
        && (in_kernels || home.placement() == Placement::Soft);
    Ok(is_apart.then_some(home))
}

impl Op for Matmul {
    fn name(&self) -> &'static str {
        NAME
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        rule::infer(self.0, inputs)
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        if capabilities.kind == DeviceKind::Cpu {
            return None;
        }
        if self.0 != Finish::NONE {
            if output == DType::F64 && capabilities.holds(output) {
                let name = self.0.activation.name();
                return Some(format!("it has no {name} of f64 in kernels"));
            }
            // Inputs, the result, sums of parts of k.
            let bindings = inputs.len() as u32 + 2;
            if capabilities.max_bindings < bindings {
                return Some(format!("its kernels bind no {bindings} buffers"));
            }
        }
        match output {
            // Kernels have them two to a word.
            DType::F16 | DType::BF16 => sums_above_a_binding(self.0, capabilities, inputs, output),
            _ => road::missing_dtype(capabilities, inputs, output),
        }
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let spare = problem.spare;
        name::begin(spare);
        gpu::launches(self.0, problem, capabilities, |problem| {
            name::choose(capabilities, problem, spare)
        })
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        cpu::multiply(self.0, inputs, output)
    }
}

/// Where 16 bits are stored by words, rows that are odd, or cut so, take a pass over sums in scratch: what is
/// missing when those, or what is added to them, are above a binding.
fn sums_above_a_binding(
    finish: Finish,
    capabilities: &Capabilities,
    inputs: &[Operand<'_>],
    dtype: DType,
) -> Option<String> {
    let [a, b, added @ ..] = inputs else {
        return None;
    };
    let (rows, columns) = (a.layout.shape().dims(), b.layout.shape().dims());
    let [rows @ .., m, _] = rows else { return None };
    let n = *columns.last()?;
    let entries = rows.iter().product::<usize>() as f64 * *m as f64 * n as f64;
    let by_words = kernel::packs(kernel::element_name(dtype, capabilities));
    // Windows begin and end at multiples of 256 bytes, and of one storage they may be one.
    let span =
        |added: &Operand<'_>| (added.layout.span().len() * added.dtype.size()) as f64 + 512.0;
    let spans = added.iter().map(|one| {
        let together = added.iter();
        let together = together.filter(|other| other.storage_bytes == one.storage_bytes);
        // A storage within the limit is bound whole.
        together
            .map(span)
            .sum::<f64>()
            .min(one.storage_bytes as f64)
    });
    let spans = spans.fold(0.0, f64::max);
    let bytes = ((entries / 64.0).ceil() * 256.0).max(spans);
    let is_refused = entries * dtype.size() as f64 > capabilities.max_buffer_bytes as f64;
    if !by_words || is_refused || bytes <= capabilities.indexed_bytes() as f64 {
        return None;
    }
    let odd = || !n.is_multiple_of(4) || *m == 1;
    (odd() || cuts_words(finish, capabilities, inputs, dtype, [*m, n]))
        .then(|| format!("its kernels have no room for sums of odd rows of {dtype}"))
}

/// Whether the panels of a product, or its kernel, store less than whole words of `dtype`, with scratch to
/// spare or without, operands that may lie in one storage apart or together.
fn cuts_words(
    finish: Finish,
    capabilities: &Capabilities,
    inputs: &[Operand<'_>],
    dtype: DType,
    [m, n]: [usize; 2],
) -> bool {
    let rows = inputs[0].layout.shape().dims();
    let batch = &rows[..rows.len() - 2];
    let layout = Layout::contiguous(batch.iter().copied().chain([m, n]).collect::<Shape>());
    let bytes = (layout.elements() as u64).saturating_mul(dtype.size() as u64);
    let together = |at: usize| {
        let storage = |other: &Operand<'_>| other.storage_bytes == inputs[at].storage_bytes;
        inputs.iter().position(storage).unwrap_or(at)
    };
    let ways = [true, false].map(|spare| [(spare, true), (spare, false)]);
    ways.into_iter().flatten().any(|(spare, apart)| {
        let problem = Problem {
            inputs: inputs.iter().copied().collect(),
            output: Operand {
                layout: &layout,
                dtype,
                storage_bytes: bytes,
            },
            fresh: true,
            spare,
            slots: match apart {
                true => (0..inputs.len()).collect(),
                false => (0..inputs.len()).map(together).collect(),
            },
        };
        let choose = |problem: &MatmulProblem| name::consider(capabilities, problem);
        // What cannot be planned at all, the plan says itself.
        gpu::shares_words(finish, &problem, capabilities, choose).unwrap_or(false)
    })
}
