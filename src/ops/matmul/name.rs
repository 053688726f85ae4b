//! Plans in words, and products of a thread by a kernel that is named.

use std::cell::Cell;
use std::fmt;

use super::plan::{MatmulPlan, MatmulProblem, plan_matmul};
use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::matmul_kernel::{Kernel, MatmulKernel};

impl fmt::Display for MatmulPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packs = match self.pack {
            [false, false] => "",
            [true, false] => ", left operand copied",
            [false, true] => ", right operand copied",
            [true, true] => ", both operands copied",
        };
        write!(f, "{}{packs}: {}", self.kernel, self.why)
    }
}

thread_local! {
    static FORCED: Cell<Option<MatmulKernel>> = const { Cell::new(None) };
}

/// Runs `work` with every matrix product of this thread by one kernel, whatever its plan would be: for
/// tests and measurements. Products that it cannot do, by adapter, dtype or shape, are an
/// [`Error::InvalidArgument`]. The CPU device and empty products have no kernels.
pub fn with_matmul_kernel<R>(kernel: MatmulKernel, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<MatmulKernel>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _restore = Restore(FORCED.replace(Some(kernel)));
    work()
}

/// The plan of this thread's next product: the kernel that is forced, or the one that suits.
///
/// # Errors
/// A forced kernel that cannot do it.
pub(super) fn choose(capabilities: &Capabilities, problem: &MatmulProblem) -> Result<MatmulPlan> {
    let Some(kernel) = FORCED.get() else {
        return Ok(plan_matmul(capabilities, problem));
    };
    let refuse = |why: &str| {
        Err(Error::invalid(
            "matmul",
            format!("kernel {kernel} is forced, but {why}"),
        ))
    };
    if !kernel.takes(problem.dtype) {
        return refuse(&format!("has no form for {}", problem.dtype));
    }
    if !kernel.fits(capabilities, problem.dtype) {
        return refuse("the adapter cannot run it");
    }
    match kernel.kind {
        Kernel::Vector { .. } if problem.n != 1 => refuse("no operand is a vector"),
        Kernel::Wide if !problem.is_wide() && !problem.may_pack => refuse(
            "strides, sizes and offsets are not all multiples of eight, and copies do not fit",
        ),
        _ => Ok(MatmulPlan {
            kernel,
            pack: match kernel.kind {
                Kernel::Wide => problem.lacks_vectors(),
                _ => [false; 2],
            },
            why: "forced",
        }),
    }
}
