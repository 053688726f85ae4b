//! How the steps of a pass over a tensor are shared: among parts of an output, lanes of a part and neighbours of a load.

use super::kernel::{State, Tree};
use super::space::Space;
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::ops::plan::{self, AT_ONCE, ENOUGH_INVOCATIONS, HARD_INVOCATIONS, ROW_LANES};

/// Steps that one invocation takes at most: 64 blocks of 64, far below the loops that llvmpipe ends.
pub(super) const MOST_STEPS: usize = 4096;
/// Below it a part of a reduction is not worth an invocation.
const LEAST_STEPS: usize = 16;
/// Steps at once of a software adapter that go from row to row of what its caches do not hold: next to each other
/// invocations read next to each other in memory, before the rows are gone from there.
const FAR_STEPS: usize = 128;
/// Lanes that share a chunk on software adapters: those of lavapipe's vectors.
pub(super) const SOFT_LANES: usize = 8;
/// Invocations that a software adapter is given, if there is work: 64 vectors of eight.
const SOFT_INVOCATIONS: usize = 512;
/// Invocations of a hardware GPU that read columns to their ends, without parts of them and a second launch that joins those;
/// of 16-bit elements, whose second launch is as long beside half of the bytes, half as many.
const COLUMN_INVOCATIONS: usize = 128 << 10;
/// Steps of an output from which on hardware shares them among lanes.
const LEAST_TREE: usize = 8;
/// Lanes of an output on hardware where those are neighbours: a workgroup has the fewer of them the more lanes each has.
pub(super) const COLUMN_LANES: [usize; 4] = [8, 32, 64, 128];
/// Bytes of neighbouring outputs that a workgroup reads at a time, at least: what memory gives at once.
const SECTOR: usize = 32;
/// Invocations of a workgroup whose lanes are joined.
pub(super) const TREE_INVOCATIONS: usize = 256;
/// Workgroup memory of trees, at most, where an adapter has so much.
pub(super) const TREE_BYTES: usize = 16 << 10;

/// Workgroup memory of a tree of states of up to four neighbours: fields are as far apart as the widest is wide.
pub(super) fn tree_bytes(state: State, unit: usize) -> usize {
    TREE_INVOCATIONS * state.bytes() * unit.min(4)
}

/// What a pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Values,
    /// Those of a pass before.
    States,
}

/// A pass, as far as its shares depend on it.
pub(super) struct Pass<'a> {
    pub capabilities: &'a Capabilities,
    pub element: DType,
    pub state: State,
    pub space: &'a Space,
    pub source: Source,
    /// Where its target starts.
    pub offset: usize,
    /// Its outputs are part of something larger.
    pub is_placed: bool,
}

/// How the steps of a pass are shared.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    pub unit: usize,
    pub along_reduced: bool,
    pub lanes: usize,
    pub tree: Tree,
    pub chunks: usize,
    pub per_chunk: usize,
}

impl Shares {
    /// States of each output.
    pub fn parts(&self) -> usize {
        match self.tree {
            Tree::None => self.chunks * self.lanes,
            Tree::Rows | Tree::Columns => self.chunks,
        }
    }
}

impl Pass<'_> {
    pub fn shares(&self) -> Shares {
        let (space, source) = (self.space, self.source);
        let is_software = plan::is_software(self.capabilities);
        let binding = self.capabilities.max_binding_bytes as usize;
        let state_bytes = space.outputs() * self.state.bytes();
        let widest = match source {
            Source::Values
                if is_software && self.capabilities.int64 && self.element == DType::F32 =>
            {
                8
            }
            // As in norms: states of several fields for eight neighbours are too many registers.
            Source::Values
                if self.element.size() == 2 && (is_software || self.state.fields == 1) =>
            {
                8
            }
            Source::States if self.state.fields > 1 => 1,
            _ => 4,
        };
        let (mut unit, mut along_reduced) = space.unit(widest);
        if !along_reduced
            && (!self.offset.is_multiple_of(unit)
                || (self.is_placed && (source == Source::States || state_bytes > binding)))
        {
            (unit, along_reduced) = (1, true);
        }
        let (groups, steps) = match along_reduced {
            true => (space.outputs(), space.length().div_ceil(unit)),
            false => (space.outputs() / unit, space.length()),
        };
        let is_innermost = space.reduced_strides.last() == Some(&1);
        let fits_columns = !is_innermost
            && groups < ENOUGH_INVOCATIONS
            && (unit == 1 || !along_reduced)
            && tree_bytes(self.state, unit)
                <= TREE_BYTES.min(self.capabilities.workgroup_memory_bytes as usize);
        let tree = match steps >= LEAST_TREE && !is_software {
            true if is_innermost && along_reduced => Tree::Rows,
            true if fits_columns => Tree::Columns,
            _ => Tree::None,
        };
        let step_bytes = match source {
            Source::Values => self.element.size(),
            Source::States => self.state.bytes(),
        };
        // In one launch, where lanes enough to keep it busy have four loads each.
        let busy = match step_bytes {
            2 => COLUMN_INVOCATIONS / 2,
            _ => COLUMN_INVOCATIONS,
        };
        let mut fitting = COLUMN_LANES.into_iter();
        let whole_columns = fitting
            .find(|lanes| groups * lanes >= busy && steps >= AT_ONCE * lanes)
            .filter(|lanes| TREE_INVOCATIONS / lanes * unit * step_bytes >= SECTOR)
            .filter(|_| tree == Tree::Columns);
        let lanes = match source {
            _ if tree == Tree::Rows => self.row_lanes(groups, steps),
            _ if tree == Tree::Columns => {
                let least = if groups >= 32 {
                    COLUMN_LANES[0]
                } else {
                    COLUMN_LANES[1]
                };
                whole_columns.unwrap_or(least)
            }
            Source::Values
                if is_software
                    && is_innermost
                    && steps >= LEAST_STEPS * SOFT_LANES
                    && state_bytes * SOFT_LANES <= binding =>
            {
                SOFT_LANES
            }
            _ => 1,
        };
        let wanted = match source {
            Source::States => 1,
            _ if whole_columns.is_some() => 1,
            Source::Values if is_software => SOFT_INVOCATIONS,
            Source::Values if tree == Tree::None => ENOUGH_INVOCATIONS,
            Source::Values => HARD_INVOCATIONS,
        };
        // Far apart, steps go in parts whose memory the adapter's caches hold.
        let bytes = space.outputs() * space.length() * self.element.size();
        let goes_far = is_software
            && source == Source::Values
            && !is_innermost
            && bytes > plan::SOFT_CACHE_BYTES;
        let at_once = if goes_far {
            FAR_STEPS
        } else {
            MOST_STEPS * lanes
        };
        let least = steps.div_ceil(at_once);
        let most = steps / (LEAST_STEPS * lanes);
        let wanted = wanted.div_ceil((groups * lanes).max(1));
        // The states of a pass lie in one binding.
        let states = if tree == Tree::None { lanes } else { 1 };
        let room = binding / (state_bytes * states).max(1);
        let chunks = least.max(most.min(wanted)).min(room).max(1);
        let per_chunk = steps.div_ceil(chunks).next_multiple_of(lanes);
        Shares {
            unit,
            along_reduced,
            lanes,
            tree,
            chunks: steps.div_ceil(per_chunk),
            per_chunk,
        }
    }

    /// Lanes of rows on hardware: four loads at once for each, of states that take long to join four times as many, but
    /// where rows are few.
    fn row_lanes(&self, groups: usize, steps: usize) -> usize {
        let each = if self.state.fields > 1 { 16 } else { AT_ONCE };
        let mut lanes = ROW_LANES[0];
        for wider in ROW_LANES {
            let is_few = groups * lanes < ENOUGH_INVOCATIONS && steps >= AT_ONCE * wider;
            if steps >= each * wider || is_few {
                lanes = wider;
            }
        }
        lanes
    }
}
