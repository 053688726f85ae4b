//! Sums of 16-bit floats by an index in place: kept in f32, and rounded once.

use super::{Take, Way, take};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::fused;
use crate::ops::sort::{SearchSide, SortOrder};
use crate::road;
use crate::tensor::Tensor;

/// Work of an entry that is looked up, in elements that are summed.
const LOOKED_UP: usize = 16;
/// How many times the elements of a source a tensor has of which not all is summed.
const MANY: usize = 4;

impl Way {
    /// What is named is summed apart, and comes back.
    pub(super) fn assign_sums(self, axis: usize, operands: [&Tensor; 3]) -> Result<()> {
        let [target, index, source] = operands;
        // Read once: others may write it meanwhile.
        let index = &match index.device() == target.device() {
            true => index.copy_once(self.op)?,
            false => road::move_to(self.op, index, target.device())?,
        };
        let _alone = road::alone(target);
        let operands = [target, index, source];
        let named = match self.are_few(axis, operands) {
            true => self.sums_of_few(axis, operands)?,
            false => {
                let sums = self.run(axis.into(), operands)?;
                let named = match self.along {
                    true => Take::gather(self.op, axis),
                    false => Take::select(self.op, axis),
                };
                take(named, &sums, index)?
            }
        };
        self.set(axis, [target, index, &named])
    }

    /// Whether the entries that are named are so few that finding out which are the same takes less than summing all.
    fn are_few(self, axis: usize, [target, index, source]: [&Tensor; 3]) -> bool {
        let work = source.elements() as u128 + LOOKED_UP as u128 * index.elements() as u128;
        // Of i32 the size is added to.
        let is_counted = i32::try_from(target.shape()[axis]).is_ok();
        !self.along && is_counted && MANY as u128 * work <= target.elements() as u128
    }

    /// The sums of the entries that are named, for each number of the index.
    fn sums_of_few(self, axis: usize, [target, index, source]: [&Tensor; 3]) -> Result<Tensor> {
        let size = target.shape()[axis] as i64;
        let entries = match index.dtype() {
            // What is still negative names nothing when the sums come back.
            DType::I32 => &fused(|e| {
                let entry = e.input(index);
                entry.lt(0).select(entry + size, entry)
            })?,
            _ => index,
        };
        let sorted = entries.sort(0, SortOrder::Ascending)?;
        // Those that name one entry share the sum of the first.
        let shared = sorted.search_sorted(entries, SearchSide::Left)?;
        let sums = {
            let sums = take(Take::select(self.op, axis), target, &sorted)?.cast(DType::F32)?;
            self.assign(axis.into(), [&sums, &shared, &source.cast(DType::F32)?])?;
            sums.cast(target.dtype())?
        };
        take(Take::select(self.op, axis), &sums, &shared)
    }
}
