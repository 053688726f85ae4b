//! Plans in words, and those of a thread: told, or by a kernel that is named.

use std::cell::Cell;
use std::fmt;

use super::plan::{MatmulPlan, MatmulProblem, plan_by, plan_matmul};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::local::with_local;
use crate::matmul_kernel::MatmulKernel;
use crate::matmul_table::MOST_SPLIT;

impl fmt::Display for MatmulPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packs = match self.pack {
            [false, false] => "",
            [true, false] => ", left operand copied",
            [false, true] => ", right operand copied",
            [true, true] => ", both operands copied",
        };
        write!(f, "{}{packs}", self.kernel)?;
        if self.split > 1 {
            write!(f, ", k split in {}", self.split)?;
        }
        write!(f, ": {}", self.why)
    }
}

thread_local! {
    static FORCED: Cell<Option<MatmulKernel>> = const { Cell::new(None) };
    static SPLIT: Cell<Option<u32>> = const { Cell::new(None) };
    static TOLD: Cell<Option<Told>> = const { Cell::new(None) };
}

/// What [`explain_matmuls`] tells.
#[derive(Default)]
struct Told {
    plans: Vec<(MatmulProblem, MatmulPlan)>,
    /// So many of them are of products before the latest.
    before: usize,
}

/// Tells this thread something, if it asks. One that is ending is told nothing.
fn tell(something: impl FnOnce(&mut Told)) {
    let _ = TOLD.try_with(|told| {
        if let Some(mut own) = told.take() {
            something(&mut own);
            told.set(Some(own));
        }
    });
}

/// Runs `work` with every matrix product of this thread by one kernel, whatever its plan would be: for
/// tests and measurements. Products that it cannot do, by adapter, dtype or shape, are an
/// [`Error::InvalidArgument`]. The CPU device and empty products have no kernels.
pub fn with_matmul_kernel<R>(kernel: MatmulKernel, work: impl FnOnce() -> R) -> R {
    with_local(&FORCED, Some(kernel), work)
}

/// Runs `work` with k of every matrix product of this thread split in `parts` (1 to 1024; others count as the nearest of these) side by side,
/// whatever its plan would be: for tests and measurements. Integers and f64 are not split, nor are
/// products above a storage binding or the time of a launch.
pub fn with_matmul_split<R>(parts: u32, work: impl FnOnce() -> R) -> R {
    with_local(&SPLIT, Some(parts.clamp(1, MOST_SPLIT)), work)
}

/// Runs `work` and tells how each matrix product in it was to be computed on GPUs, in order: the problem as
/// its kernel sees it, and the plan. A product that is cut into panels, or k of which is split, has further entries for its
/// parts. Of this thread only; products on the CPU device have no plans. An operand that goes backwards is copied whole before: the
/// problem is that of its copy. A call within another tells its own products; the other one tells them, too.
///
/// ```
/// # fn main() -> Result<(), orlop::Error> {
/// // Without a GPU there is nothing to tell.
/// let device = orlop::Device::best()?;
/// let a = orlop::Tensor::rand(&device, [64, 64], orlop::DType::F32, 1)?;
/// let (product, plans) = orlop::explain_matmuls(|| a.matmul(&a));
/// for (problem, plan) in plans {
///     println!("{} x {} x {}: {plan}", problem.m, problem.k, problem.n);
/// }
/// assert_eq!(product?.shape(), &[64, 64]);
/// # Ok(())
/// # }
/// ```
pub fn explain_matmuls<R>(work: impl FnOnce() -> R) -> (R, Vec<(MatmulProblem, MatmulPlan)>) {
    let (result, plans) = with_local(&TOLD, Some(Told::default()), || {
        let result = work();
        let told = TOLD.try_with(Cell::take).ok().flatten();
        (result, told.unwrap_or_default().plans)
    });
    tell(|outer| outer.plans.extend_from_slice(&plans));
    (result, plans)
}

/// A product is planned: with scratch to `spare`, or once more without, and then the plan before is none of it.
pub(super) fn begin(spare: bool) {
    tell(|told| match spare {
        true => told.before = told.plans.len(),
        false => told.plans.truncate(told.before),
    });
}

/// The plan of this thread's next product: the kernel and the split that are forced, or what suits. It is not split
/// without scratch to `spare`.
///
/// # Errors
/// A forced kernel that cannot do it.
pub(super) fn choose(
    capabilities: &Capabilities,
    problem: &MatmulProblem,
    spare: bool,
) -> Result<MatmulPlan> {
    let mut plan = consider(capabilities, problem)?;
    if !spare {
        // Sums of parts take memory that is not there.
        plan.split = 1;
    }
    tell(|told| told.plans.push((*problem, plan)));
    Ok(plan)
}

/// The same, not told to [`explain_matmuls`]: no product is made by it yet.
///
/// # Errors
/// As [`choose`].
pub(super) fn consider(capabilities: &Capabilities, problem: &MatmulProblem) -> Result<MatmulPlan> {
    let mut plan = match FORCED.get() {
        None => plan_matmul(capabilities, problem),
        Some(kernel) => plan_by(kernel, capabilities, problem, "forced").map_err(|why| {
            let problem = format!("kernel {kernel} is forced, but {why}");
            Error::invalid("matmul", problem)
        })?,
    };
    if let Some(split) = SPLIT.get() {
        plan.split = split;
    }
    if problem.dtype.accumulator() != DType::F32 {
        plan.split = 1;
    }
    Ok(plan)
}
