//! What tensors compute: one file (or folder) per family, each with its rule, its plan and its CPU
//! twin. `Tensor`'s methods live here.

mod cast;
mod concat;
mod contiguous;
mod create;
mod display;
mod elementwise;
mod fill;
mod host;
mod index;
mod matmul;
mod nonzero;
mod normalise;
mod operators;
mod order;
mod pad;
mod plan;
mod position;
mod random;
mod ranges;
mod reduce;
mod reshape;
mod scan;
mod sort;
mod specialisations;
mod user;

pub use elementwise::{Argument, Expr, ExprArgument, Fusion, fused};
#[cfg(feature = "npy")]
pub(crate) use matmul::check_part;
pub use matmul::{
    Activation, Epilogue, HostMatrix, MatmulOperand, MatmulPlan, MatmulProblem, MatrixSource,
    MatrixTarget, Streamed, explain_matmuls, matmul_streamed, plan_matmul, with_matmul_kernel,
    with_matmul_split,
};
pub use plan::with_hardware_plans;
pub use reduce::{Axes, keepdim};
pub use reshape::Sizes;
pub use sort::{SearchSide, SortOrder};
pub(crate) use specialisations::specialisations;
pub use user::{Kernel, KernelBuilder, KernelCall, KernelLaunch, KernelValue, Tolerance};
