//! Kernels by name, and products of a thread by a kernel that is named.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use super::plan::{Kernel, MatmulKernel, MatmulPlan, MatmulProblem, plan_matmul};
use crate::capabilities::Capabilities;
use crate::error::{Error, Result};

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

impl fmt::Display for MatmulKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            tile_m,
            tile_n,
        } = self;
        match kind {
            Kernel::Workgroup { tile_k, thread } => write!(
                f,
                "workgroup_tile {tile_m}x{tile_n}x{tile_k} thread {thread}x{thread}"
            ),
            Kernel::Register {
                thread_m,
                thread_n,
                unroll,
            } => write!(
                f,
                "register_tile {tile_m}x{tile_n} thread {thread_m}x{thread_n} unroll {unroll}"
            ),
            Kernel::Subgroup { lanes } => {
                write!(f, "subgroup_tile {tile_m}x{tile_n} lanes {lanes}")
            }
            Kernel::Wide => write!(f, "wide_tile {tile_m}x{tile_n}"),
            Kernel::Vector {
                row_threads,
                k_threads,
            } => write!(f, "vector_tile {tile_m} threads {row_threads}x{k_threads}"),
        }
    }
}

impl fmt::Debug for MatmulKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for MatmulKernel {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` for a name that is not listed; it lists those that are.
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|kernel| kernel.to_string() == name);
        found.ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            Error::invalid(
                "matmul",
                format!("no kernel {name:?}; there are {}", names.join(", ")),
            )
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for &kernel in MatmulKernel::all() {
            assert_eq!(kernel.to_string().parse::<MatmulKernel>().unwrap(), kernel);
        }
        let error = "wide_tile 7x7".parse::<MatmulKernel>().unwrap_err();
        assert!(error.to_string().contains("wide_tile 32x64"), "{error}");
    }
}
