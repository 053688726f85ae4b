//! Matrix products: 2-D, batched with broadcasting, with vectors as in NumPy, and what is done to
//! their entries before they are stored.

mod cpu;
mod finish;
mod gpu;
mod halves;
mod kernel;
mod panel;
mod plan;
mod rule;
mod streamed;

pub(super) use kernel::specialisations;
pub use rule::{Activation, Epilogue};
pub use streamed::{HostMatrix, MatrixSource, MatrixTarget, Streamed, matmul_streamed};

use rule::Finish;
use smallvec::SmallVec;

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::Launches;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The product of `[batch..., m, k]` and `[batch..., k, n]`, batches already broadcast, then what
/// is added to it, `[batch..., m, n]`.
struct Matmul(Finish);

impl Tensor {
    /// The matrix product by NumPy's rule: the last two dimensions are matrices, those before
    /// them broadcast; a vector on the left is a row, on the right a column, and that dimension
    /// does not come out. Transposed and sliced views are read as they lie, without copies.
    ///
    /// f32 sums stay f32, f16 inputs are summed in f32, integers wrap. The f32 error is within
    /// `4 sqrt(k) 2^-23 sum |a||b|` of the exact result, entry by entry.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for inner sizes or batches that do
    /// not go together, [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a scalar operand, or more than
    /// 2^55 multiply-adds; out of memory, unsupported under strict placement, a lost device.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        self.matmul_with(other, &Epilogue::new())
    }

    /// A layer: `activation(self x weight + bias)`, with `self` `[..., k]`, `weight` `[k, n]` and
    /// `bias` `[n]`. Weights that lie `[n, k]`, as PyTorch's do, are given as
    /// `weight.transpose(0, 1)`, which costs nothing.
    ///
    /// # Errors
    /// As [`Tensor::matmul_with`].
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
    /// another pass over the result.
    ///
    /// # Errors
    /// As [`Tensor::matmul`]; [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for a bias
    /// that is not `[n]` or a residual that has not the shape of the result,
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an epilogue on integers.
    pub fn matmul_with(&self, other: &Tensor, epilogue: &Epilogue<'_>) -> Result<Tensor> {
        let mut form = rule::form(self, other, epilogue)?;
        let finish = Finish::of(epilogue);
        if form.inner == 0 {
            // Empty sums: nothing to multiply.
            if finish == Finish::NONE {
                let home = road::home("matmul", &[self, other])?;
                return Tensor::zeros(&home, form.output, self.dtype());
            }
            form = form.of_one_step()?;
        }
        let inputs: SmallVec<[&Tensor; 4]> = [&*form.left, &*form.right]
            .into_iter()
            .chain(&form.added)
            .collect();
        let product = road::run(&Matmul(finish), &inputs)?;
        if product.shape() == &form.output {
            return Ok(product);
        }
        Ok(product.view(crate::layout::Layout::contiguous(form.output)))
    }
}

impl Op for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
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
        if self.0 != Finish::NONE && capabilities.kind != DeviceKind::Cpu {
            return Some("its kernels have no epilogue".to_owned());
        }
        road::missing_dtype(capabilities, inputs, output)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        gpu::launches(problem, capabilities, |traits| {
            plan::plan(capabilities, traits)
        })
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        cpu::multiply(self.0, inputs, output);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::plan::{Kernel, MatmulPlan};
    use super::*;
    use crate::device::Device;

    /// A product by a given plan, whatever the device's own would be.
    struct Forced(MatmulPlan);

    impl Op for Forced {
        fn name(&self) -> &'static str {
            "forced matmul"
        }

        fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
            Matmul(Finish::NONE).infer(inputs)
        }

        fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
            gpu::launches(problem, capabilities, |_| self.0)
        }

        fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
            Matmul(Finish::NONE).twin(inputs, output)
        }
    }

    /// Every plan that an adapter can run, those for hardware on software adapters too, against
    /// sums in f64 within `4 sqrt(k) 2^-23 sum |a||b|`.
    #[test]
    fn every_plan_is_right_on_every_adapter() {
        for info in Device::list()
            .unwrap()
            .iter()
            .filter(|info| info.backend != "native")
        {
            let device = Device::select(&info.selector).unwrap();
            let windows = Device::builder()
                .select(&info.selector)
                .max_binding_bytes(32 << 10)
                .build()
                .unwrap();
            let capabilities = device.capabilities();
            for plan in MatmulPlan::ALL {
                let lanes_fit = match plan.kernel {
                    Kernel::Subgroup { lanes } => {
                        capabilities.subgroup_sizes == Some((lanes, lanes))
                    }
                    _ => true,
                };
                if !lanes_fit || !plan.fits(capabilities, DType::F32) {
                    continue;
                }
                let vector = matches!(plan.kernel, Kernel::Vector { .. });
                for (m, k, n) in [
                    (1, 1, 1),
                    (67, 35, 130),
                    (64, 64, 64),
                    (257, 40, 12),
                    (15, 129, 300),
                ] {
                    let n = if vector { 1 } else { n };
                    for turned in [0, 3] {
                        check(&device, plan, [m, k, n], turned);
                    }
                }
                // Panels: C is above the limit by rows, A along k.
                let sizes = if vector {
                    [8300, 40, 1]
                } else {
                    [200, 100, 132]
                };
                check(&windows, plan, sizes, 1);
            }
        }
    }

    fn check(device: &Device, plan: MatmulPlan, [m, k, n]: [usize; 3], turned: usize) {
        // The same values here and there: the host's are the reference's.
        let make = |rows: usize, columns: usize, turn: bool, seed| {
            let (first, second) = if turn {
                (columns, rows)
            } else {
                (rows, columns)
            };
            let host = Tensor::randn(&Device::cpu(), [2, first, second], DType::F32, seed);
            [&Device::cpu(), device].map(|device| {
                let flat = host.as_ref().unwrap().to(device).unwrap();
                match turn {
                    true => flat.transpose(1, 2).unwrap(),
                    false => flat,
                }
            })
        };
        let [host_a, a] = make(m, k, turned & 1 == 1, 1);
        let [host_b, b] = make(k, n, turned & 2 == 2, 2);
        let product = road::run(&Forced(plan), &[&a, &b]).unwrap();
        let [a, b, c] = [&host_a, &host_b, &product].map(|tensor| tensor.to_vec::<f32>().unwrap());
        for (at, &got) in c.iter().enumerate() {
            let (batch, i, j) = (at / (m * n), at / n % m, at % n);
            let (mut sum, mut size) = (0.0f64, 0.0f64);
            for step in 0..k {
                let left = f64::from(a[(batch * m + i) * k + step]);
                let term = left * f64::from(b[(batch * k + step) * n + j]);
                sum += term;
                size += term.abs();
            }
            let bound = 4.0 * (k as f64).sqrt() * 2f64.powi(-23) * size;
            assert!(
                (f64::from(got) - sum).abs() <= bound,
                "{device} {plan:?} [{m}, {k}] x [{k}, {n}], turned {turned}, at {at}: {got}, not {sum}"
            );
        }
    }
}
