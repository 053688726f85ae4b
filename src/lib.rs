//! Tensors and WGSL kernels on any GPU through wgpu, over memory that is planned, visible and
//! never wasted, with a native CPU device when there is no GPU.
//!
//! ```
//! use orlop::{DType, Device, Tensor};
//!
//! # fn main() -> orlop::Result<()> {
//! let device = Device::best()?; // the best GPU, else the native CPU
//! let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
//! let b = Tensor::randn(&device, [2, 3], DType::F32, 7)?; // seed 7: the same numbers on every device, to 1e-6
//! let bias = Tensor::ones(&device, [3], DType::F32)?;
//! let c = (&a.matmul(&b)? + &bias)?; // operators take references and return Result
//! let host: Vec<f32> = c.to_vec()?; // waits; to_vec_async() does not
//! assert_eq!(host.len(), 6);
//! println!("{}", device.memory_summary());
//! # Ok(())
//! # }
//! ```
//!
//! # Which op on which dtype and device
//!
//! | | f32 | f16 | i32 | u32 | f64 | bf16 |
//! |---|---|---|---|---|---|---|
//! | CPU | all | all, sums in f32 | all but `rand`, `randn` | as i32 | all | as f16 |
//! | GPU with the dtype in kernels | all | all, sums in f32 | all but `rand`, `randn` | as i32 | all; on the CPU: `randn`, `logsumexp`, `softmax`, `log_softmax`, `gelu` and `silu` after a product, functions that WGSL does not have (`exp`, `log`, `sin`, `atan2`, `pow`, `rem` and what is made of them), without 64-bit integers `any`, `all` and casts to bool | |
//! | GPU without it | | all, sums in f32; on the CPU: `rand`, `randn` | | | lives on the CPU | as f16 |
//!
//! bool lives everywhere: `zeros`, `ones`, `full`, `from_slice`, `to_vec`, views, `cast`, comparisons and logic, `select`, `any`, `all`,
//! `max`, `min`, `sum` and `cumsum` (counts), and what only moves elements; no arithmetic and no products.
//!
//! *All* is:
//!
//! - made: `empty`, `zeros`, `ones`, `full`, `scalar`, `arange`, `from_slice`, `from_vec`, `rand`, `randn` (`randint` makes i32 and u32);
//! - moved: `to`, `to_vec`, `to_vec_async`, `read_into`, `write_from`, `item`, `display`, `copy`, `contiguous`, `assign`, `fill`, `cast`, `reshape` and
//!   the other views;
//! - element by element: `add`, `sub`, `mul`, `div`, `rem`, `pow`, `rpow`, `minimum`, `maximum`, `clamp`, `mul_add`, `neg`, `abs`,
//!   `sign`, `square`, `relu`, comparisons, `select`, of integers `bitwise_and`, `bitwise_or`, `bitwise_xor`, `bitwise_not`, `shift_left`,
//!   `shift_right`, and what [`fused`] makes of them (all other functions are of floats alone: integers are an error that names `cast`);
//!   `add`, `sub`, `mul`, `div`, `rem`, `pow`, `minimum` and `maximum` also in place (`add_assign`) and in the memory of an operand that is used up
//!   (`into_add`), and any of them, `cast` on the way too, by [`Tensor::fused_assign`] and [`Tensor::into_fused`];
//! - along axes: `sum`, `cumsum`, `prod`, `max`, `min`, `argmax`, `argmin`, `any`, `all`, and of floats `mean`, `var`, `std`, `norm`,
//!   `logsumexp`, `softmax`, `log_softmax`, `layer_norm`, `rms_norm`, `quantile` and `median` (a `sort` and a little arithmetic);
//! - products: `matmul`, `matmul_with`, `linear` (floats);
//! - sums by an index: `scatter_add`, `index_add`, both also in place;
//! - what only moves or compares elements by their bits, and so runs wherever the dtype lives: `concat`, `stack`, `split`, `chunk`, `pad`,
//!   `tril`, `triu`, `one_hot`, `index_select`, `embedding`, `gather`, `check_indices`, `sort`, `argsort`, `top_k`, `search_sorted`, `nonzero`, `masked_select`;
//!   and, also in place, `scatter`, `index_copy` and, but for bool, `scatter_max`, `scatter_min`, `index_max` and `index_min`.
//!
//! *On the CPU* under [`Placement::Soft`] means that the op runs there, that its result comes back
//! and that [`Device::placement_log`] says so; under [`Placement::Strict`] it is an
//! [`Error::Unsupported`].
//!
//! # Rules
//!
//! - There is no implicit conversion: mixed dtypes are an error that names [`Tensor::cast`].
//! - Operators take a `&Tensor` and another, or the `Result` of another op (`(&x * &y + &z)?`), or a number on either side of a
//!   `&Tensor` (`&x * 2.0`, and with its `?` first `&(&x * &y)? * 2.0`).
//! - An op runs where its operands live, or where [`Device::scope`] says; nothing travels in silence.
//! - Work on a device happens in program order, from any number of threads.
//! - The CPU's ops use every core, or as many threads as `RAYON_NUM_THREADS` says; but called on a thread of a rayon pool (in
//!   `par_iter`, say) each runs on that thread alone: [`Device::cpu`].
//! - `tracing` events are sent while orlop holds its locks: a subscriber calls nothing of orlop's, or may never return.
//! - Every failure is a typed [`Error`]; a failed call changes no tensor, but what a program's own twin wrote before it failed and
//!   what [`matmul_streamed`] or a read was filling.
//! - Integers wrap; an integer divided by zero is 0.
//!
//! What has a name elsewhere and is a few lines here (`unique`, `bincount`, `roll`, ...): `docs/recipes.md`.
//!
//! Files in `docs/` that these pages name lie in the crate and its repository.

#![warn(missing_debug_implementations)]
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod background;
mod capabilities;
mod cpu;
mod device;
mod dtype;
mod error;
mod faults;
mod gpu;
pub mod interop;
pub mod kernels;
mod launch;
mod layout;
mod local;
mod matmul_kernel;
mod matmul_table;
pub mod memory;
mod ops;
mod promise;
mod road;
mod shape;
mod sync;
mod tensor;
mod turns;

/// Its code is tested with that of these pages.
#[cfg(doctest)]
#[doc = include_str!("../docs/recipes.md")]
mod recipes {}

/// The library under a model checker: `scripts/model.sh`.
#[cfg(all(test, orlop_model))]
#[path = "../tests/model/schedules.rs"]
mod model;

pub use capabilities::{Capabilities, CooperativeMatrices, DeviceKind};
pub use device::{
    AdapterLedger, Device, DeviceBuilder, DeviceInfo, LedgerEntry, Placement, PlacementEvent,
    PlacementLog,
};
pub use dtype::{DType, Element, Scalar};
pub use error::{
    DTypeMismatch, DeviceFailure, Error, Execution, FileFailure, InvalidArgument, KernelCompile,
    Leaks, LiveTensor, OutOfMemory, Result, ShapeMismatch, TimedOut, TooLarge, UnknownDevice,
    Unsupported,
};
#[cfg(feature = "fault-injection")]
pub use faults::{Fault, Faults};
pub use half::{bf16, f16};
pub use layout::{Axis, Layout, SliceRange, SliceRanges};
pub use matmul_kernel::MatmulKernel;
pub use matmul_table::{MatmulChoice, MatmulTable};
pub use memory::tagged;
#[doc(hidden)]
pub use ops::with_hardware_plans;
pub use ops::{
    Activation, Argument, Axes, Epilogue, Expr, ExprArgument, Fusion, HostMatrix, Kernel,
    KernelBuilder, KernelCall, KernelLaunch, KernelValue, MatmulOperand, MatmulPlan, MatmulProblem,
    MatrixSource, MatrixTarget, SearchSide, Sizes, SortOrder, Streamed, Tolerance, explain_matmuls,
    fused, keepdim, matmul_streamed, plan_matmul, with_matmul_kernel, with_matmul_split,
};
pub use promise::Pending;
pub use shape::Shape;
pub use tensor::{Pinned, Tensor};
