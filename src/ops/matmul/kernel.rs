//! Which specialisation of its kernel a plan takes.

use smallvec::{SmallVec, smallvec};

use super::plan::{Kernel, MatmulPlan, SUBGROUP_UNROLL};
use crate::dtype::DType;
use crate::launch::{KernelKey, Value};

/// What a kernel is specialised by, beside the plan and the dtype.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub batch_rank: u32,
    pub a_along_k: bool,
    pub b_along_k: bool,
    pub vector_a: bool,
    pub vector_b: bool,
    pub vector_c: bool,
    /// One of several parts of k.
    pub accumulates: bool,
    /// Both operands are one binding.
    pub shared: bool,
    /// The kernel's A is the second operand: a row times a matrix, turned round.
    pub swapped: bool,
}

/// Whether a kernel can load A and B by vectors, along k or not.
pub(super) fn kernel_loads(plan: &MatmulPlan, along_k: [bool; 2]) -> [bool; 2] {
    match plan.kernel {
        // Its tiles lie k-major: vectors go along m and n.
        Kernel::Workgroup { .. } => along_k.map(|along_k| !along_k),
        Kernel::Register {
            thread_m,
            thread_n,
            unroll,
        } => {
            let load = |along_k, thread: u32| match along_k {
                true => unroll == 4,
                false => thread.is_multiple_of(4),
            };
            [load(along_k[0], thread_m), load(along_k[1], thread_n)]
        }
        Kernel::Subgroup { .. } => [true, along_k[1] || stores_vectors(plan)],
        Kernel::Vector { row_threads, .. } => {
            let thread_m = plan.tile_m / row_threads;
            [along_k[0] || thread_m.is_multiple_of(4), along_k[1]]
        }
    }
}

/// Whether a kernel can store four columns as one vector.
pub(super) fn stores_vectors(plan: &MatmulPlan) -> bool {
    match plan.kernel {
        Kernel::Workgroup { .. } => true,
        Kernel::Register { thread_n, .. } => thread_n.is_multiple_of(4),
        Kernel::Subgroup { lanes } => (plan.tile_n / lanes).is_multiple_of(4),
        Kernel::Vector { .. } => false,
    }
}

/// The specialisation of a plan's kernel.
pub(super) fn key(plan: &MatmulPlan, dtype: DType, form: Form) -> KernelKey {
    let vector = |on: bool| Value::Number(if on { 4 } else { 1 });
    let last = u32::from(!form.shared);
    let (slot_a, slot_b) = if form.swapped { (last, 0) } else { (0, last) };
    // A vector runs along k alone: the kernel does not ask.
    let b_along_k = form.b_along_k || matches!(plan.kernel, Kernel::Vector { .. });
    let mut values: SmallVec<[(&'static str, Value); 16]> = smallvec![
        ("element", dtype.name().into()),
        ("accumulator", dtype.accumulator().name().into()),
        ("slot_a", slot_a.into()),
        ("slot_b", slot_b.into()),
        ("slot_c", (last + 1).into()),
        ("batch_rank", form.batch_rank.into()),
        ("fast_a", if form.a_along_k { "k" } else { "m" }.into()),
        ("fast_b", if b_along_k { "k" } else { "n" }.into()),
        ("vector_a", vector(form.vector_a)),
        ("vector_b", vector(form.vector_b)),
        ("vector_c", vector(form.vector_c)),
        ("can_accumulate", u32::from(form.accumulates).into()),
        ("tile_m", plan.tile_m.into()),
        ("tile_n", plan.tile_n.into()),
    ];
    let sums_apart = form.accumulates && dtype.accumulator() != dtype;
    if sums_apart {
        values.push(("slot_sums", (last + 2).into()));
    }
    let (template, own): (_, &[(&'static str, u32)]) = match plan.kernel {
        Kernel::Workgroup { tile_k, thread } => (
            "matmul/workgroup_tile",
            &[
                ("tile_k", tile_k),
                ("thread_m", thread),
                ("thread_n", thread),
            ],
        ),
        Kernel::Register {
            thread_m,
            thread_n,
            unroll,
        } => (
            "matmul/register_tile",
            &[
                ("thread_m", thread_m),
                ("thread_n", thread_n),
                ("unroll", unroll),
            ],
        ),
        Kernel::Subgroup { lanes } => (
            "matmul/subgroup_tile",
            &[("lanes", lanes), ("unroll", SUBGROUP_UNROLL)],
        ),
        Kernel::Vector {
            row_threads,
            k_threads,
        } => (
            "matmul/vector_tile",
            &[("row_threads", row_threads), ("k_threads", k_threads)],
        ),
    };
    values.extend(own.iter().map(|&(name, value)| (name, value.into())));
    KernelKey {
        template,
        values,
        bindings: last + 2 + u32::from(sums_apart),
        words: 15 + 4 * form.batch_rank,
    }
}

/// Every specialisation with up to two batch dimensions after merging.
pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    let mut all = Vec::new();
    for plan in MatmulPlan::ALL {
        for dtype in DType::ALL.into_iter().filter(|&dtype| plan.takes(dtype)) {
            for bits in 0..1u32 << 7 {
                let bit = |at: u32| bits >> at & 1 == 1;
                let form = Form {
                    batch_rank: bits % 3,
                    a_along_k: bit(0),
                    b_along_k: bit(1),
                    vector_a: bit(2),
                    vector_b: bit(3),
                    vector_c: bit(4),
                    accumulates: bit(5),
                    shared: bit(6),
                    swapped: bit(1) && matches!(plan.kernel, Kernel::Vector { .. }),
                };
                if is_asked_for(&plan, form) {
                    all.push(key(&plan, dtype, form));
                }
            }
        }
    }
    all
}

fn is_asked_for(plan: &MatmulPlan, form: Form) -> bool {
    let [a, b] = kernel_loads(plan, [form.a_along_k, form.b_along_k]);
    (a || !form.vector_a)
        && (b || !form.vector_b)
        && (stores_vectors(plan) || !form.vector_c)
        && (plan.may_accumulate() || !form.accumulates)
        && (!form.shared || form.vector_a == form.vector_b)
}
