//! What the plans of elementwise kernels share: merged dimensions as params, vector loads.

use smallvec::{SmallVec, smallvec};

use crate::capabilities::{Capabilities, LONGEST_LAUNCH};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Bound, Dispatch, KernelKey, Launch, Launches, Words, fold_grid};
use crate::layout::{Layout, Merged, Strides, merge};
use crate::road::window::{self, Limits, Walked};
use crate::road::{Operand, Problem};

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
    /// With vector 4: the innermost stride of each operand, 1 or 0; else 0.
    pub inner: SmallVec<[u32; 4]>,
    /// Offset of each operand, in the unit that the kernel counts in.
    pub offsets: SmallVec<[u32; 4]>,
    /// Sizes but the outermost, then the strides of each operand.
    pub dims: Words,
}

impl Walk {
    /// A walk over merged dimensions, whose indices all fit 32 bits. `vectors` allows vector loads,
    /// `padded` that the last step of a single dimension reaches past its end.
    pub(super) fn new(
        dims: &[usize],
        strides: &[Strides],
        offsets: &[usize],
        vectors: bool,
        padded: bool,
    ) -> Self {
        let vector = vectors && is_vectorised(dims, strides, offsets, padded);
        let inner: SmallVec<[u32; 4]> = strides
            .iter()
            .map(|strides| u32::from(vector && strides.last() == Some(&1)))
            .collect();
        let unit = |operand: usize| if inner[operand] == 1 { 4 } else { 1 };
        let elements: usize = dims.iter().product();
        let mut words = Words::new();
        for (axis, &size) in dims.iter().enumerate().skip(1) {
            let last = axis + 1 == dims.len();
            words.push((if vector && last { size / 4 } else { size }) as u32);
        }
        for (operand, strides) in strides.iter().enumerate() {
            words.extend(
                strides
                    .iter()
                    .map(|&stride| (stride / unit(operand)) as u32),
            );
        }
        Self {
            vector: if vector { 4 } else { 1 },
            count: (if vector {
                elements.div_ceil(4)
            } else {
                elements
            }) as u32,
            rank: dims.len() as u32,
            offsets: offsets
                .iter()
                .enumerate()
                .map(|(operand, &offset)| (offset / unit(operand) as usize) as u32)
                .collect(),
            inner,
            dims: words,
        }
    }
}

/// Every operand goes along the innermost dimension by 1 or 0, and everything else counts in
/// fours.
fn is_vectorised(dims: &[usize], strides: &[Strides], offsets: &[usize], padded: bool) -> bool {
    let rank = dims.len();
    let whole = (rank == 1 && padded) || dims.last().is_some_and(|size| size % 4 == 0);
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

/// Dimensions that operands of one shape walk together, at least one.
pub(super) fn merged(layouts: &[&Layout]) -> Merged {
    let mut merged = merge(layouts);
    if merged.dims.is_empty() {
        merged.dims.push(1);
        merged
            .strides
            .iter_mut()
            .for_each(|strides| strides.push(0));
    }
    merged
}

/// Whether one launch may bind all storages whole: within the binding limit, the time of a launch
/// and 32-bit indices.
pub(super) fn is_one_launch(
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    flops: f64,
    bytes: f64,
) -> bool {
    let operands = problem.inputs.iter().chain([&problem.output]);
    let reach = operands.map(|operand| operand.layout.end());
    let steps = problem.output.layout.elements();
    problem.binds_whole(capabilities)
        && capabilities.seconds(flops, bytes) <= LONGEST_LAUNCH
        && reach.chain([steps]).all(|end| u32::try_from(end).is_ok())
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

/// The dtypes that elementwise kernels know; there is no bf16 in WGSL.
pub(super) const IN_KERNELS: [DType; 5] =
    [DType::F32, DType::F16, DType::I32, DType::U32, DType::F64];

/// The unsigned type that moves a dtype's bits, and whether four of them make a vector.
pub(super) fn bits(dtype: DType) -> (&'static str, bool) {
    match dtype {
        DType::F32 | DType::I32 | DType::U32 => ("u32", true),
        DType::F64 => ("vec2<u32>", false),
        DType::F16 => ("f16", true),
        // Only new tensors of it are filled there, by words.
        DType::BF16 => ("u32", false),
    }
}

/// The kind of arithmetic of a dtype, as templates name it.
pub(super) fn kind(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => "float",
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

/// An elementwise op with one input or two, of the same shape.
pub(super) struct Elementwise {
    pub op: &'static str,
    /// The types that the kernel reads and writes.
    pub elements: (&'static str, &'static str),
    /// Four at a time, where the layouts allow it.
    pub vectors: bool,
}

impl Elementwise {
    /// One launch that binds everything whole, or one for each piece.
    pub(super) fn launches(
        &self,
        problem: &Problem<'_>,
        capabilities: &Capabilities,
    ) -> Result<Launches> {
        let output = problem.output;
        let operands: SmallVec<[Operand<'_>; 4]> =
            problem.inputs.iter().copied().chain([output]).collect();
        if !(2..=3).contains(&operands.len()) {
            return Err(Error::invalid(self.op, "takes one operand or two"));
        }
        let layouts: SmallVec<[&Layout; 4]> = operands.iter().map(|o| o.layout).collect();
        // The output joins the merging, so that a new tensor's index is the plain count.
        let Merged { dims, mut strides } = merged(&layouts);
        let count = output.layout.elements() as f64;
        let each = operands.iter().map(|o| o.dtype.size()).sum::<usize>() as f64;
        if problem.fresh && is_one_launch(problem, capabilities, count, count * each) {
            strides.pop();
            let offsets: SmallVec<[usize; 4]> = problem
                .inputs
                .iter()
                .map(|input| input.layout.offset())
                .collect();
            let walk = Walk::new(&dims, &strides, &offsets, self.vectors, true);
            let mut slots = problem.slots.clone();
            slots.push(problem.output_slot());
            let launch = self.launch(
                &operands,
                capabilities,
                walk,
                (&slots, problem.bindings()),
                (count, count * each),
            )?;
            return Ok(smallvec![launch]);
        }
        let walked: SmallVec<[Walked<'_>; 4]> = operands
            .iter()
            .zip(problem.slots.iter().copied().chain([problem.output_slot()]))
            .zip(&strides)
            .map(|((operand, storage), strides)| Walked {
                storage,
                element_bytes: operand.dtype.size(),
                offset: operand.layout.offset(),
                strides,
            })
            .collect();
        let limits = Limits::new(capabilities, 1.0, each);
        let pieces = window::pieces(&dims, &walked, limits);
        pieces
            .into_iter()
            .map(|piece| {
                let (dims, strides) = piece.without_single(&walked);
                let walk = Walk::new(&dims, &strides, &piece.offsets, self.vectors, false);
                let count = piece.elements() as f64;
                self.launch(
                    &operands,
                    capabilities,
                    walk,
                    (&piece.slots, piece.bindings),
                    (count, count * each),
                )
            })
            .collect()
    }

    /// One launch, on operands in bindings by their slots. The output is written through strides
    /// when the walk has them.
    fn launch(
        &self,
        operands: &[Operand<'_>],
        capabilities: &Capabilities,
        walk: Walk,
        (slots, bindings): (&[usize], SmallVec<[Bound; 4]>),
        (flops, bytes): (f64, f64),
    ) -> Result<Launch> {
        let mut words: Words = smallvec![walk.count];
        words.extend_from_slice(&walk.offsets);
        words.extend_from_slice(&walk.dims);
        let inputs = operands.len() - 1;
        // With one input there is no second: its values are not read.
        let second = |values: &[u32]| if inputs == 2 { values[1] } else { 0 };
        let slots: SmallVec<[u32; 4]> = slots.iter().map(|&slot| slot as u32).collect();
        let kernel = key(
            "elementwise",
            [
                ("op", self.op.into()),
                ("element_in", self.elements.0.into()),
                ("element_out", self.elements.1.into()),
                ("kind", kind(operands[0].dtype).into()),
                ("kind_out", kind(operands[inputs].dtype).into()),
                ("vector", walk.vector.into()),
                ("inner_a", walk.inner[0].into()),
                ("inner_b", second(&walk.inner).into()),
                ("rank", walk.rank.into()),
                ("per_thread", PER_THREAD.into()),
                ("slot_a", slots[0].into()),
                ("slot_b", second(&slots).into()),
                ("slot_out", slots[inputs].into()),
                ("strided_out", u32::from(walk.offsets.len() > inputs).into()),
            ],
            bindings.len(),
            &words,
        );
        let steps = u64::from(walk.count);
        let per_workgroup = WORKGROUP * u64::from(PER_THREAD);
        let limit = capabilities.max_workgroups;
        Ok(Launch {
            kernel,
            operands: bindings,
            texels: SmallVec::new(),
            dispatches: smallvec![dispatch(self.op, words, steps, per_workgroup, limit)?],
            flops,
            bytes,
        })
    }
}
