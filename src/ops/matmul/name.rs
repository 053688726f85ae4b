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
    static PLANS: Cell<Option<Vec<(MatmulProblem, MatmulPlan)>>> = const { Cell::new(None) };
}

/// Runs `work` with every matrix product of this thread by one kernel, whatever its plan would be: for
/// tests and measurements. Products that it cannot do, by adapter, dtype or shape, are an
/// [`Error::InvalidArgument`]. The CPU device and empty products have no kernels.
pub fn with_matmul_kernel<R>(kernel: MatmulKernel, work: impl FnOnce() -> R) -> R {
    with_local(&FORCED, Some(kernel), work)
}

/// Runs `work` with k of every matrix product of this thread split in `parts` (1 to 1024) side by side,
/// whatever its plan would be: for tests and measurements. Integers and f64 are not split, nor are
/// products above a storage binding or the time of a launch.
pub fn with_matmul_split<R>(parts: u32, work: impl FnOnce() -> R) -> R {
    with_local(&SPLIT, Some(parts.clamp(1, MOST_SPLIT)), work)
}

/// Runs `work` and tells how each matrix product in it was to be computed on GPUs, in order: the problem as
/// its kernel sees it, and the plan. A product that is cut into panels has further entries for those. Of
/// this thread only; products on the CPU device have no plans.
///
/// ```
/// # fn main() -> Result<(), orlop::Error> {
/// # let device = orlop::Device::cpu();
/// let a = orlop::Tensor::rand(&device, [64, 64], orlop::DType::F32, 1)?;
/// let (product, plans) = orlop::explain_matmuls(|| a.matmul(&a));
/// for (problem, plan) in plans {
///     println!("{} x {} x {}: {plan}", problem.m, problem.k, problem.n);
/// }
/// # product?;
/// # Ok(())
/// # }
/// ```
pub fn explain_matmuls<R>(work: impl FnOnce() -> R) -> (R, Vec<(MatmulProblem, MatmulPlan)>) {
    with_local(&PLANS, Some(Vec::new()), || {
        let result = work();
        // A thread that is ending is told nothing.
        let plans = PLANS.try_with(Cell::take).ok().flatten();
        (result, plans.unwrap_or_default())
    })
}

/// The plan of this thread's next product: the kernel and the split that are forced, or what suits.
///
/// # Errors
/// A forced kernel that cannot do it.
pub(super) fn choose(capabilities: &Capabilities, problem: &MatmulProblem) -> Result<MatmulPlan> {
    let plan = consider(capabilities, problem)?;
    // A thread that is ending tells nobody.
    let _ = PLANS.try_with(|plans| {
        if let Some(mut told) = plans.take() {
            told.push((*problem, plan));
            plans.set(Some(told));
        }
    });
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
