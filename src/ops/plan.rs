//! What plans share (elementwise, fill, random, index, position, reductions, norms): merged dimensions as params, vector
//! loads, grids, what is one launch.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::capabilities::{Capabilities, DeviceKind, LONGEST_LAUNCH};
use crate::error::{Error, Result};
use crate::launch::{Dispatch, KernelKey, Words, fold_grid};
use crate::layout::{Layout, Merged, Strides, merge};
use crate::local::with_local;
use crate::road::Problem;
use crate::road::window::MOST_ELEMENTS;

/// Steps per invocation of elementwise kernels: neighbours of a workgroup read neighbours of memory
/// in each.
pub(super) const PER_THREAD: u32 = 4;
/// Invocations of an elementwise workgroup.
pub(super) const WORKGROUP: u64 = 256;

/// Bytes that a software adapter's caches hold: what is larger is best gone through in the order of memory.
pub(super) const SOFT_CACHE_BYTES: usize = 2_000_000;

/// Invocations of a hardware GPU, one for each place in its multiprocessors (an H200 has 270,000).
pub(super) const HARD_INVOCATIONS: usize = 256 << 10;
/// Those whose loads, [`AT_ONCE`] of 16 bytes each, are as many as its memory takes.
pub(super) const ENOUGH_INVOCATIONS: usize = 64 << 10;
/// Loads that an invocation of hardware has under way.
pub(super) const AT_ONCE: usize = 4;
/// Invocations of a workgroup of hardware that share a row, joined in workgroup memory.
pub(super) const ROW_LANES: [usize; 4] = [4, 16, 64, 256];

/// Why f64 become no truths where there is no u64: comparisons may take a subnormal for zero, and WGSL has no other integers of
/// their size for their bits.
pub(super) const NO_WIDE_BITS: &str =
    "it has no 64-bit integers in kernels, by whose bits it would tell f64 from zero";

thread_local! {
    static AS_HARDWARE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with reductions, norms, running sums, sums by an index, sorts, marks and turned inputs of this thread planned on
/// software adapters as on hardware, by trees and squares in workgroup memory: for tests of those kernels.
#[doc(hidden)]
pub fn with_hardware_plans<R>(work: impl FnOnce() -> R) -> R {
    with_local(&AS_HARDWARE, true, work)
}

/// Whether plans are those for software adapters.
pub(super) fn is_software(capabilities: &Capabilities) -> bool {
    capabilities.kind == DeviceKind::Software && !AS_HARDWARE.get()
}

/// Dimensions of an elementwise launch.
pub(super) struct Walk {
    /// Neighbours that each step takes: 1, 4 or 8.
    pub vector: u32,
    /// Steps in all.
    pub count: u32,
    /// Dimensions after merging, at least 1.
    pub rank: u32,
    /// With a vector: the innermost stride of each operand, 1 or 0; else 0.
    pub inner: SmallVec<[u32; 4]>,
    /// Offset of each operand, in the unit that the kernel counts in.
    pub offsets: SmallVec<[u32; 4]>,
    /// Sizes but the outermost, then the strides of each operand.
    pub dims: Words,
}

impl Walk {
    /// A walk over merged dimensions, whose indices all fit 32 bits, by the first of `vectors` that fits, else one by
    /// one. `padded` allows that the last step of a single dimension reaches past its end.
    pub(super) fn new(
        dims: &[usize],
        strides: &[Strides],
        offsets: &[usize],
        vectors: &[usize],
        padded: bool,
    ) -> Self {
        let fits = |&&vector: &&usize| is_vectorised(dims, strides, offsets, vector, padded);
        let vector = vectors.iter().find(fits).copied().unwrap_or(1);
        let inner: SmallVec<[u32; 4]> = strides
            .iter()
            .map(|strides| u32::from(vector > 1 && strides.last() == Some(&1)))
            .collect();
        let unit = |operand: usize| if inner[operand] == 1 { vector } else { 1 };
        let elements: usize = dims.iter().product();
        let mut words = Words::new();
        for (axis, &size) in dims.iter().enumerate().skip(1) {
            let last = axis + 1 == dims.len();
            words.push((if last { size / vector } else { size }) as u32);
        }
        for (operand, strides) in strides.iter().enumerate() {
            words.extend(
                strides
                    .iter()
                    .map(|&stride| (stride / unit(operand) as isize) as u32),
            );
        }
        Self {
            vector: vector as u32,
            count: elements.div_ceil(vector) as u32,
            rank: dims.len() as u32,
            offsets: offsets
                .iter()
                .enumerate()
                .map(|(operand, &offset)| (offset / unit(operand)) as u32)
                .collect(),
            inner,
            dims: words,
        }
    }
}

/// Every operand goes along the innermost dimension by 1 or 0, and everything else counts in
/// vectors.
fn is_vectorised(
    dims: &[usize],
    strides: &[Strides],
    offsets: &[usize],
    vector: usize,
    padded: bool,
) -> bool {
    let rank = dims.len();
    let is_whole = |stride: &isize| stride % vector as isize == 0;
    let whole =
        (rank == 1 && padded) || dims.last().is_some_and(|size| size.is_multiple_of(vector));
    whole
        && strides
            .iter()
            .zip(offsets)
            .all(|(strides, offset)| match strides.last() {
                Some(0) => true,
                Some(1) => {
                    offset.is_multiple_of(vector) && strides[..rank - 1].iter().all(is_whole)
                }
                _ => false,
            })
}

/// Sizes or strides of as many dimensions as a kernel has, the first of `ranks` that is enough: outer ones are `filler`.
pub(super) fn filled<T: Copy>(inner: &[T], filler: T, ranks: &[usize]) -> SmallVec<[T; 6]> {
    let mut ranks = ranks.iter().copied();
    let rank = ranks.find(|&rank| rank >= inner.len());
    let added = rank.unwrap_or(inner.len()) - inner.len();
    let mut all = SmallVec::new();
    all.resize(added, filler);
    all.extend_from_slice(inner);
    all
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
    let mut reach = operands.map(|operand| operand.layout.end());
    let steps = problem.output.layout.elements();
    problem.binds_whole(capabilities)
        && capabilities.seconds(flops, bytes) <= LONGEST_LAUNCH
        && steps <= MOST_ELEMENTS
        && reach.all(|end| u32::try_from(end).is_ok())
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
