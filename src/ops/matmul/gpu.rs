//! A plan and a problem become a launch: operands as they lie, vector loads where they are
//! allowed, long k in several dispatches.

use smallvec::{SmallVec, smallvec};

use super::plan::{Kernel, MatmulPlan, SUBGROUP_UNROLL, Traits};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Dispatch, KernelKey, Launch, Launches, Value, Words, fold_grid};
use crate::layout::{Layout, merge};
use crate::ops::plan::index_overflow;
use crate::road::Problem;

/// One operand as a kernel sees it: strides in elements.
struct Matrix {
    offset: usize,
    /// Along m (of A) or n (of B): the axis that comes out.
    outer: isize,
    outer_size: usize,
    /// Along k.
    inner: isize,
    batch: SmallVec<[isize; 6]>,
}

impl Matrix {
    /// The axis along which neighbours lie in memory is k.
    fn runs_along_k(&self) -> bool {
        self.inner == 1 || self.outer != 1
    }

    /// Four neighbours along that axis can be loaded as one vector.
    fn is_vectorised(&self, k: usize) -> bool {
        let (unit, size, other, other_size) = if self.runs_along_k() {
            (self.inner, k, self.outer, self.outer_size)
        } else {
            (self.outer, self.outer_size, self.inner, k)
        };
        unit == 1
            && size.is_multiple_of(4)
            && (other % 4 == 0 || other_size == 1)
            && self.offset.is_multiple_of(4)
            && self.batch.iter().all(|stride| stride % 4 == 0)
    }
}

/// What a kernel is specialised by, beside the plan and the dtype.
#[derive(Clone, Copy)]
struct Form {
    batch_rank: u32,
    a_along_k: bool,
    b_along_k: bool,
    vector_a: bool,
    vector_b: bool,
    vector_c: bool,
    accumulates: bool,
    /// Both operands are one storage.
    shared: bool,
    /// The kernel's A is the second operand: a row times a matrix, turned round.
    swapped: bool,
}

/// The launch of a product, by the plan that `choose` makes of its traits.
pub(super) fn launch(
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    choose: impl Fn(Traits) -> MatmulPlan,
) -> Result<Launches> {
    let op = "matmul";
    let ([a, b], output) = (&problem.inputs[..], problem.output) else {
        return Err(Error::invalid(op, "takes two operands"));
    };
    let rank = output.layout.rank();
    let shape = output.layout.shape();
    let (mut m, mut n) = (shape[rank - 2], shape[rank - 1]);
    let k = a.layout.shape()[rank - 1];

    // Batches merge where both operands walk them evenly.
    let batches: usize = shape[..rank - 2].iter().product();
    let batch_of = |layout: &Layout| layout.leading(rank - 2);
    let merged = merge(&[&batch_of(a.layout), &batch_of(b.layout)]);
    let matrix = |layout: &Layout, outer: usize, inner: usize, operand: usize| Matrix {
        offset: layout.offset(),
        outer: layout.strides()[outer],
        outer_size: layout.shape()[outer],
        inner: layout.strides()[inner],
        batch: merged.strides[operand].iter().copied().collect(),
    };
    let mut left = matrix(a.layout, rank - 2, rank - 1, 0);
    let mut right = matrix(b.layout, rank - 1, rank - 2, 1);
    // A row times a matrix is the transposed matrix times a column.
    let swapped = m == 1 && n != 1;
    if swapped {
        std::mem::swap(&mut left, &mut right);
        std::mem::swap(&mut m, &mut n);
    }

    let vectors = [left.is_vectorised(k), right.is_vectorised(k)];
    let along_k = [left.runs_along_k(), right.runs_along_k()];
    let plan = choose(Traits {
        m,
        n,
        k,
        batches,
        dtype: output.dtype,
        a_along_k: along_k[0],
        all_vectors: vectors == [true; 2] && n.is_multiple_of(4),
        vectors_along_k: (0..2).any(|operand| vectors[operand] && along_k[operand]),
    });
    let panel = plan.max_k();
    let shared = problem.slots[0] == problem.slots[1];
    let loads = kernel_loads(&plan, along_k);
    let [mut vector_a, mut vector_b] = [0, 1].map(|operand| vectors[operand] && loads[operand]);
    if shared && vector_a != vector_b {
        // One buffer is declared once: vectors for both, or for none.
        (vector_a, vector_b) = (false, false);
    }
    let form = Form {
        batch_rank: merged.dims.len() as u32,
        a_along_k: along_k[0],
        b_along_k: along_k[1],
        vector_a,
        vector_b,
        vector_c: n.is_multiple_of(4) && stores_vectors(&plan),
        accumulates: k > panel,
        shared,
        swapped,
    };

    let tiles_m = m.div_ceil(plan.tile_m as usize);
    let tiles_n = n.div_ceil(plan.tile_n as usize);
    let tiles = tiles_m as u64 * tiles_n as u64 * batches as u64;
    let groups = fold_grid(tiles, capabilities.max_workgroups).ok_or_else(|| {
        Error::invalid(
            op,
            format!("{tiles} tiles are more than the adapter's grid"),
        )
    })?;
    let reach = [a.layout.end(), b.layout.end(), output.layout.elements(), k];
    if reach.into_iter().any(|end| u32::try_from(end).is_err()) || u32::try_from(tiles).is_err() {
        return Err(index_overflow(op));
    }
    let words = |k_begin: usize| -> Words {
        let mut words: Words = [
            m,
            n,
            k_begin,
            k.min(k_begin + panel),
            usize::from(k_begin > 0),
            left.offset,
            left.outer as usize,
            left.inner as usize,
            right.offset,
            right.inner as usize,
            right.outer as usize,
            0,
            tiles_m,
            tiles_n,
            tiles as usize,
        ]
        .iter()
        .map(|&word| word as u32)
        .collect();
        words.extend(merged.dims.iter().map(|&size| size as u32));
        for operand in [&left, &right] {
            words.extend(operand.batch.iter().map(|&stride| stride as u32));
        }
        words
    };
    let dispatches: SmallVec<[Dispatch; 1]> = (0..k)
        .step_by(panel)
        .map(|k_begin| Dispatch {
            words: words(k_begin),
            groups,
        })
        .collect();
    let size = output.dtype.size() as f64;
    let (m, n, k, batches) = (m as f64, n as f64, k as f64, batches as f64);
    Ok(smallvec![Launch {
        kernel: key(&plan, output.dtype, form),
        operands: problem.bindings(),
        dispatches,
        flops: 2.0 * m * n * k * batches,
        bytes: (m * k + k * n + m * n) * batches * size,
    }])
}

/// Whether a kernel can load A and B by vectors, along k or not.
fn kernel_loads(plan: &MatmulPlan, along_k: [bool; 2]) -> [bool; 2] {
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
fn stores_vectors(plan: &MatmulPlan) -> bool {
    match plan.kernel {
        Kernel::Workgroup { .. } => true,
        Kernel::Register { thread_n, .. } => thread_n.is_multiple_of(4),
        Kernel::Subgroup { lanes } => (plan.tile_n / lanes).is_multiple_of(4),
        Kernel::Vector { .. } => false,
    }
}

fn key(plan: &MatmulPlan, dtype: DType, form: Form) -> KernelKey {
    let vector = |on: bool| Value::Number(if on { 4 } else { 1 });
    let last = u32::from(!form.shared);
    let (slot_a, slot_b) = if form.swapped { (last, 0) } else { (0, last) };
    // A vector runs along k alone: the kernel does not ask.
    let b_along_k = form.b_along_k || matches!(plan.kernel, Kernel::Vector { .. });
    let mut values: SmallVec<[(&'static str, Value); 12]> = smallvec![
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
        bindings: last + 2,
        words: 15 + 3 * form.batch_rank,
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
