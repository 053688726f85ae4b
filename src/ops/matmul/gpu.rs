//! A plan and a problem become a launch: operands as they lie, vector loads where they are
//! allowed, long k in several dispatches.

use smallvec::{SmallVec, smallvec};

use super::plan::{Kernel, MatmulPlan, Shape, plan};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Dispatch, KernelKey, Launch, Value, Words, fold_grid};
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
        let (unit, other, size) = if self.runs_along_k() {
            (self.inner, self.outer, k)
        } else {
            (self.outer, self.inner, self.outer_size)
        };
        unit == 1
            && other % 4 == 0
            && size.is_multiple_of(4)
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
    shared: bool,
}

pub(super) fn launch(problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launch> {
    let op = "matmul";
    let ([a, b], output) = (&problem.inputs[..], problem.output) else {
        return Err(Error::invalid(op, "takes two operands"));
    };
    let rank = output.layout.rank();
    let shape = output.layout.shape();
    let (m, n) = (shape[rank - 2], shape[rank - 1]);
    let k = a.layout.shape()[rank - 1];
    let plan = plan(
        capabilities,
        Shape {
            m,
            n,
            dtype: output.dtype,
        },
    );

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
    let left = matrix(a.layout, rank - 2, rank - 1, 0);
    let right = matrix(b.layout, rank - 1, rank - 2, 1);

    let panel = plan.max_k();
    let shared = problem.slots[0] == problem.slots[1];
    let (mut vector_a, mut vector_b) = (
        allows_vector(&plan, &left, k, plan.thread_m),
        allows_vector(&plan, &right, k, plan.thread_n),
    );
    if shared && vector_a != vector_b {
        // One buffer is declared once: vectors for both, or for none.
        (vector_a, vector_b) = (false, false);
    }
    let form = Form {
        batch_rank: merged.dims.len() as u32,
        a_along_k: left.runs_along_k(),
        b_along_k: right.runs_along_k(),
        vector_a,
        vector_b,
        vector_c: n.is_multiple_of(4) && width(&plan) == 4,
        accumulates: k > panel,
        shared,
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
    let reach = [a.layout.end(), b.layout.end(), output.layout.elements()];
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
        for strides in &merged.strides {
            words.extend(strides.iter().map(|&stride| stride as u32));
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
    Ok(Launch {
        kernel: key(&plan, output.dtype, form),
        operands: problem.bindings(),
        dispatches,
        flops: 2.0 * m * n * k * batches,
        bytes: (m * k + k * n + m * n) * batches * size,
    })
}

/// Whether a kernel can load an operand by vectors.
fn allows_vector(plan: &MatmulPlan, matrix: &Matrix, k: usize, per_thread: u32) -> bool {
    let along_k = matrix.runs_along_k();
    let kernel = match plan.kernel {
        // Its tiles lie k-major: vectors go along m and n.
        Kernel::Workgroup => !along_k,
        Kernel::Register if along_k => plan.unroll == 4,
        Kernel::Register => per_thread.is_multiple_of(4),
        Kernel::Subgroup => true,
    };
    kernel && matrix.is_vectorised(k)
}

/// Columns that an invocation sums and stores together.
fn width(plan: &MatmulPlan) -> u32 {
    let per_thread = match plan.kernel {
        Kernel::Subgroup => plan.tile_n / plan.lanes,
        _ => plan.thread_n,
    };
    if per_thread.is_multiple_of(4) { 4 } else { 1 }
}

fn key(plan: &MatmulPlan, dtype: DType, form: Form) -> KernelKey {
    let vector = |on: bool| Value::Number(if on { 4 } else { 1 });
    let slot_b = u32::from(!form.shared);
    let mut values: SmallVec<[(&'static str, Value); 12]> = smallvec![
        ("element", dtype.name().into()),
        ("accumulator", dtype.accumulator().name().into()),
        ("slot_a", 0.into()),
        ("slot_b", slot_b.into()),
        ("slot_c", (slot_b + 1).into()),
        ("batch_rank", form.batch_rank.into()),
        ("fast_a", if form.a_along_k { "k" } else { "m" }.into()),
        ("fast_b", if form.b_along_k { "k" } else { "n" }.into()),
        ("vector_a", vector(form.vector_a)),
        ("vector_b", vector(form.vector_b)),
        ("vector_c", vector(form.vector_c)),
        ("can_accumulate", u32::from(form.accumulates).into()),
        ("tile_m", plan.tile_m.into()),
        ("tile_n", plan.tile_n.into()),
    ];
    let template = match plan.kernel {
        Kernel::Workgroup => {
            values.push(("tile_k", plan.tile_k.into()));
            values.push(("thread_m", plan.thread_m.into()));
            values.push(("thread_n", plan.thread_n.into()));
            "matmul/workgroup_tile"
        }
        Kernel::Register => {
            values.push(("thread_m", plan.thread_m.into()));
            values.push(("thread_n", plan.thread_n.into()));
            values.push(("unroll", plan.unroll.into()));
            "matmul/register_tile"
        }
        Kernel::Subgroup => {
            values.push(("lanes", plan.lanes.into()));
            values.push(("unroll", plan.unroll.into()));
            "matmul/subgroup_tile"
        }
    };
    KernelKey {
        template,
        values,
        bindings: slot_b + 2,
        words: 15 + 3 * form.batch_rank,
    }
}

/// Every specialisation with up to two batch dimensions after merging.
pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    let flags = [false, true];
    let mut all = Vec::new();
    for plan in MatmulPlan::ALL {
        for dtype in DType::ALL {
            // Bits: along k and vector of A and B, vector store, accumulation, one shared buffer.
            for bits in 0..1u32 << 7 {
                let bit = |at: u32| flags[(bits >> at & 1) as usize];
                let form = Form {
                    batch_rank: bits % 3,
                    a_along_k: bit(0),
                    b_along_k: bit(1),
                    vector_a: bit(2),
                    vector_b: bit(3),
                    vector_c: bit(4),
                    accumulates: bit(5),
                    shared: bit(6),
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
    let matrix = |along_k: bool| Matrix {
        offset: 0,
        outer: if along_k { 4 } else { 1 },
        outer_size: 4,
        inner: if along_k { 1 } else { 4 },
        batch: SmallVec::new(),
    };
    let allows = |along_k, per_thread| allows_vector(plan, &matrix(along_k), 4, per_thread);
    (!form.vector_a || allows(form.a_along_k, plan.thread_m))
        && (!form.vector_b || allows(form.b_along_k, plan.thread_n))
        && (!form.vector_c || width(plan) == 4)
        && (!form.shared || form.vector_a == form.vector_b)
}
