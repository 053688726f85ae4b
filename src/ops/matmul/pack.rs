//! Operands copied into scratch first, in rows of whole vectors with zeros past their edges, where
//! that is faster than reading them as they lie.

use smallvec::{SmallVec, smallvec};

use super::panel::{Axis, Nest, Storages};
use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::launch::{
    Bound, Dispatch, KernelKey, Launch, Value, WINDOW_ALIGNMENT, Window, Words, fold_grid,
};
use crate::matmul_kernel::WIDE;

/// Vectors that one invocation copies.
const RUN: usize = 16;
const THREADS: usize = 64;
/// Number of words without a batch.
const WORDS: u32 = 11;

/// An operand and its copy: what one launch copies.
struct Pack {
    batch: SmallVec<[(usize, isize); 4]>,
    row_size: usize,
    rows: usize,
    row_vectors: usize,
    /// Vectors from row to row.
    row_pitch: usize,
    rows_padded: usize,
    offset: usize,
    row_stride: isize,
    element_stride: isize,
}

/// Plans the copy of an operand (0 or 1), the `input` of the op, in rows of whole multiples of `pitch`
/// elements, and makes the nest and its storage those of the copy. `k`
/// grows to whole vectors once both are copied. `None` where operand or copy do not fit a binding.
pub(super) fn pack(
    nest: &mut Nest,
    storages: &mut Storages,
    (operand, input): (usize, usize),
    pitch: usize,
    (scratch, from): (usize, u64),
    capabilities: &Capabilities,
) -> Result<Option<(Launch, Window)>> {
    let wide = WIDE as usize;
    let rank = nest.axes.len();
    let k = rank - 1;
    let side = rank - 3 + operand;
    let stride = |axis: &Axis| axis.strides[operand];
    let along_k = stride(&nest.axes[k]) == 1 || stride(&nest.axes[side]) != 1;
    let (inner, outer) = if along_k { (k, side) } else { (side, k) };
    let rows = nest.axes[outer].size;
    let copy = Pack {
        batch: nest.axes[..rank - 3]
            .iter()
            .filter(|axis| stride(axis) != 0)
            .map(|axis| (axis.size, stride(axis)))
            .collect(),
        row_size: nest.axes[inner].size,
        rows,
        row_vectors: nest.axes[inner].size.div_ceil(wide),
        row_pitch: nest.axes[inner].size.next_multiple_of(pitch).div_ceil(wide),
        rows_padded: if outer == k {
            rows.next_multiple_of(wide)
        } else {
            rows
        },
        offset: nest.offsets[operand],
        row_stride: stride(&nest.axes[outer]),
        element_stride: stride(&nest.axes[inner]),
    };
    let Some(bytes) = copy.bytes() else {
        return Ok(None);
    };
    if bytes > storages.limit || storages.bytes[operand] > storages.limit {
        return Ok(None);
    }
    let place = Window {
        offset: from,
        bytes,
    };
    let launch = copy.launch(
        storages.bytes[operand],
        input,
        (scratch, place),
        capabilities,
    )?;

    // The copy is the operand now.
    let pitch = copy.row_pitch * wide;
    let mut step = pitch * copy.rows_padded;
    for axis in nest.axes[..rank - 3].iter_mut().rev() {
        if axis.strides[operand] != 0 {
            axis.strides[operand] = step as isize;
            step *= axis.size;
        }
    }
    nest.axes[inner].strides[operand] = 1;
    nest.axes[outer].strides[operand] = pitch as isize;
    nest.offsets[operand] = 0;
    storages.bytes[operand] = bytes;
    // No other operand lies there.
    storages.of[operand] = usize::MAX - operand;
    Ok(Some((launch, place)))
}

impl Pack {
    /// Of the copy; `None` when they cannot be counted.
    fn bytes(&self) -> Option<u64> {
        let matrices = self
            .batch
            .iter()
            .try_fold(1usize, |all, &(size, _)| all.checked_mul(size));
        let vectors = matrices?
            .checked_mul(self.rows_padded)?
            .checked_mul(self.row_pitch)?;
        let bytes = (vectors as u64).checked_mul(4 * u64::from(WIDE))?;
        bytes.checked_next_multiple_of(WINDOW_ALIGNMENT)
    }

    fn launch(
        &self,
        storage_bytes: u64,
        input: usize,
        (scratch, place): (usize, Window),
        capabilities: &Capabilities,
    ) -> Result<Launch> {
        let matrices: usize = self.batch.iter().map(|&(size, _)| size).product();
        let rows_in_all = matrices * self.rows_padded;
        let invocations = rows_in_all * self.row_vectors.div_ceil(RUN);
        let groups = invocations.div_ceil(THREADS) as u64;
        let groups = fold_grid(groups, capabilities.max_workgroups)
            .ok_or_else(|| Error::invalid("matmul", "a copy above the adapter's grid"))?;
        let vector_bytes = 4 * u64::from(WIDE);
        let mut words: Words = [
            self.row_size,
            self.rows,
            self.row_vectors,
            self.row_pitch,
            self.rows_padded,
            self.offset,
            self.row_stride as usize,
            self.element_stride as usize,
            rows_in_all,
            invocations,
            (storage_bytes / vector_bytes).saturating_sub(1) as usize,
        ]
        .iter()
        .map(|&word| word as u32)
        .collect();
        for &(size, stride) in &self.batch {
            words.extend([size as u32, stride as u32]);
        }
        let bytes = place.bytes as f64 * 2.0;
        Ok(Launch {
            kernel: key(self.element_stride == 1, self.batch.len() as u32),
            operands: smallvec![
                Bound::whole(input),
                Bound {
                    operand: scratch,
                    window: Some(place),
                },
            ],
            texels: SmallVec::new(),
            dispatches: smallvec![Dispatch { words, groups }],
            flops: 0.0,
            bytes,
        })
    }
}

fn key(unit: bool, batch_rank: u32) -> KernelKey {
    let values: [(&'static str, Value); 3] = [
        ("unit", u32::from(unit).into()),
        ("run", (RUN as u32).into()),
        ("batch_rank", batch_rank.into()),
    ];
    KernelKey {
        template: "matmul/pack",
        values: values.into_iter().collect(),
        bindings: 2,
        words: WORDS + 2 * batch_rank,
    }
}

/// Every specialisation with up to two batch dimensions.
pub(super) fn specialisations() -> impl Iterator<Item = KernelKey> {
    (0..3).flat_map(|rank| [key(false, rank), key(true, rank)])
}
