//! What the plans of elementwise kernels share: merged dimensions as params, vector loads.

use smallvec::{SmallVec, smallvec};

use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Dispatch, KernelKey, Launch, Launches, Words, fold_grid};
use crate::layout::{Layout, Merged, merge};
use crate::road::Problem;

/// Steps per invocation of elementwise kernels: neighbours of a workgroup read neighbours of memory
/// in each.
pub(super) const PER_THREAD: u32 = 4;
/// Invocations of an elementwise workgroup.
pub(super) const WORKGROUP: u64 = 256;

/// Dimensions of an elementwise launch.
pub(super) struct Walk {
    /// 4 when each step takes four neighbours, else 1.
    pub vector: u32,
    /// Steps in all.
    pub count: u32,
    /// Dimensions after merging, at least 1.
    pub rank: u32,
    /// With vector 4: the innermost stride of each operand, 1 or 0.
    pub inner: SmallVec<[u32; 2]>,
    /// Offset of each operand, in the unit that the kernel counts in.
    pub offsets: SmallVec<[u32; 2]>,
    /// Sizes but the outermost, then the strides of each operand.
    pub dims: Words,
}

impl Walk {
    /// Plans a walk over operands that write a fresh contiguous output. `vectors` allows
    /// vector loads.
    ///
    /// # Errors
    /// An index that does not fit 32 bits.
    pub(super) fn new(op: &'static str, layouts: &[&Layout], vectors: bool) -> Result<Self> {
        // The output joins the merging, so that its index is the plain count.
        let output = Layout::contiguous(layouts.first().map_or(&[][..], |l| l.shape().dims()));
        let mut all: SmallVec<[&Layout; 3]> = SmallVec::from_slice(layouts);
        all.push(&output);
        let Merged {
            mut dims,
            mut strides,
        } = merge(&all);
        strides.pop();
        if dims.is_empty() {
            dims.push(1);
            strides.iter_mut().for_each(|strides| strides.push(0));
        }
        let rank = dims.len();
        let offsets: SmallVec<[usize; 2]> = layouts.iter().map(|l| l.offset()).collect();
        let vector = vectors && is_vectorised(&dims, &strides, &offsets);
        let inner: SmallVec<[u32; 2]> = strides
            .iter()
            .map(|strides| u32::from(strides.last() == Some(&1)))
            .collect();
        let unit = |operand: usize| if vector && inner[operand] == 1 { 4 } else { 1 };
        let elements: usize = dims.iter().product();
        let count = if vector {
            elements.div_ceil(4)
        } else {
            elements
        };
        let too_far = || index_overflow(op);
        let mut words = Words::new();
        for (axis, &size) in dims.iter().enumerate().skip(1) {
            let last = axis + 1 == rank;
            let size = if vector && last { size / 4 } else { size };
            words.push(u32::try_from(size).map_err(|_| too_far())?);
        }
        for (operand, strides) in strides.iter().enumerate() {
            for &stride in strides {
                let stride = stride / unit(operand);
                words.push(u32::try_from(stride).map_err(|_| too_far())?);
            }
        }
        let ends = layouts.iter().map(|l| l.end()).chain([elements]);
        if ends.max().is_some_and(|end| u32::try_from(end).is_err()) {
            return Err(too_far());
        }
        Ok(Self {
            vector: if vector { 4 } else { 1 },
            count: count as u32,
            rank: rank as u32,
            offsets: offsets
                .iter()
                .enumerate()
                .map(|(operand, &offset)| (offset / unit(operand) as usize) as u32)
                .collect(),
            inner,
            dims: words,
        })
    }
}

/// Every operand goes along the innermost dimension by 1 or 0, and everything else counts in
/// fours. With one dimension the last step may reach into the padding of the chunks.
fn is_vectorised(dims: &[usize], strides: &[crate::layout::Strides], offsets: &[usize]) -> bool {
    let rank = dims.len();
    let whole = rank == 1 || dims.last().is_some_and(|size| size % 4 == 0);
    whole
        && strides
            .iter()
            .zip(offsets)
            .all(|(strides, offset)| match strides.last() {
                Some(0) => true,
                Some(1) => {
                    offset % 4 == 0 && strides[..rank - 1].iter().all(|stride| stride % 4 == 0)
                }
                _ => false,
            })
}

pub(super) fn index_overflow(op: &'static str) -> Error {
    Error::too_large(
        op,
        "an operand of a kernel",
        u128::from(u32::MAX) + 1,
        u64::from(u32::MAX),
        "32-bit indices of WGSL",
        "split it along a dimension",
    )
}

/// One dispatch of `steps` steps, `per_workgroup` of them a workgroup.
///
/// # Errors
/// A grid above the adapter's.
pub(super) fn dispatch(
    op: &'static str,
    words: Words,
    steps: u64,
    per_workgroup: u64,
    max_workgroups: u32,
) -> Result<Dispatch> {
    let workgroups = steps.div_ceil(per_workgroup);
    let groups = fold_grid(workgroups, max_workgroups).ok_or_else(|| {
        Error::invalid(
            op,
            format!("{workgroups} workgroups are more than the adapter's grid"),
        )
    })?;
    Ok(Dispatch { words, groups })
}

/// The unsigned type that moves a dtype's bits, and whether four of them make a vector.
pub(super) fn bits(dtype: DType) -> (&'static str, bool) {
    match dtype {
        DType::F32 | DType::I32 | DType::U32 => ("u32", true),
        DType::F64 => ("vec2<u32>", false),
        DType::F16 => ("f16", true),
    }
}

/// The kind of arithmetic of a dtype, as templates name it.
pub(super) fn kind(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::F64 => "float",
        DType::I32 => "signed",
        DType::U32 => "unsigned",
    }
}

/// A key whose words are counted from its dispatch.
pub(super) fn key(
    template: &'static str,
    values: impl IntoIterator<Item = (&'static str, crate::launch::Value)>,
    bindings: usize,
    words: &Words,
) -> KernelKey {
    KernelKey {
        template,
        values: values.into_iter().collect(),
        bindings: bindings as u32,
        words: words.len() as u32,
    }
}

/// The launch of an elementwise op with one input or two, of the same shape, into a new tensor.
/// `elements` are the types that the kernel reads and writes; `vectors` allows four at a time.
pub(super) fn elementwise_launch(
    op: &'static str,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    elements: (&'static str, &'static str),
    vectors: bool,
) -> Result<Launches> {
    let layouts: SmallVec<[&Layout; 2]> = problem.inputs.iter().map(|input| input.layout).collect();
    let (Some(from), to) = (
        problem.inputs.first().map(|input| input.dtype),
        problem.output.dtype,
    ) else {
        return Err(Error::invalid(op, "takes an operand"));
    };
    let walk = Walk::new(op, &layouts, vectors)?;
    let mut words: Words = smallvec![walk.count];
    words.extend_from_slice(&walk.offsets);
    words.extend_from_slice(&walk.dims);
    let operands = problem.bindings();
    // With one input there is no second: its values are not read.
    let second = |values: &[u32]| values.get(1).copied().unwrap_or(0);
    let slots: SmallVec<[u32; 2]> = problem.slots.iter().map(|&slot| slot as u32).collect();
    let kernel = key(
        "elementwise",
        [
            ("op", op.into()),
            ("element_in", elements.0.into()),
            ("element_out", elements.1.into()),
            ("kind", kind(from).into()),
            ("kind_out", kind(to).into()),
            ("vector", walk.vector.into()),
            ("inner_a", walk.inner[0].into()),
            ("inner_b", second(&walk.inner).into()),
            ("rank", walk.rank.into()),
            ("per_thread", PER_THREAD.into()),
            ("slot_a", slots[0].into()),
            ("slot_b", second(&slots).into()),
            ("slot_out", (problem.output_slot() as u32).into()),
        ],
        operands.len(),
        &words,
    );
    let count = problem.output.layout.elements() as f64;
    Ok(smallvec![Launch {
        kernel,
        operands,
        dispatches: smallvec![dispatch(
            op,
            words,
            u64::from(walk.count),
            WORKGROUP * u64::from(PER_THREAD),
            capabilities.max_workgroups,
        )?],
        flops: count,
        bytes: count * (from.size() * layouts.len() + to.size()) as f64,
    }])
}
