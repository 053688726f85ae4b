//! Whether regions that stay would do for a program: tried on paper while regions are made anew.

use super::best_fit::{BestFit, BlockId};
use super::growth::round_down;
use super::slots::Detail;

/// A rehearsal begins when so many times the most in use has gone back to keep regions whole; regions that
/// stay are made when it has lasted for as much again. After each that fails both are twice as many.
/// (Inputs of a fuzzer are short.)
const FIRST: u64 = if cfg!(fuzzing) { 1 } else { 8 };
/// So many percent more than the most in use are rehearsed, and then made: blocks in use keep their places, so what
/// stays is not quite what was rehearsed. (`lstm_train` over and over takes 7.4 in best fit of one region that grows
/// as it needs, the other recorded runs 2.9 to 3.6.)
const SPARE_PERCENT: [u64; 2] = [6, 7];
/// Regions that stay are made when, within this share of the most, as little is in use as ever at such a moment:
/// blocks in use hold regions that were made for them.
const LOW_SHARE: u64 = 32;
/// And a program that uses less by this share of what it used before is another one, to be rehearsed anew.
const OTHER_SHARE: u64 = 16;

/// What a pool knows of the regions that it gave back to keep them whole, and how it comes to an end with them.
///
/// To make regions anew costs time, in every step of a program that repeats itself. So it is tried on paper
/// whether the same program would get by with a few regions that stay: then those are made, when little
/// is in use, and nothing is made anew until they do not do after all.
#[derive(Debug, Default)]
pub(super) struct Remaking {
    state: State,
    /// Bytes that went back since the pool began, or since regions that stayed did not do.
    bytes: u64,
    /// Most bytes in use when no free chunk was right, since the rehearsal before this one, or since this one, began.
    most: u64,
    /// Rehearsals that failed since then.
    failed: u32,
    rehearsal: Option<Box<Rehearsal>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Idle regions are kept whole.
    #[default]
    Remakes,
    /// Regions stay.
    Settled,
    /// The source has refused a region: where memory is short, what is held is not given back for less.
    Refused,
}

impl Remaking {
    /// Whether idle regions are kept whole, at the price of regions that are made anew.
    #[inline]
    pub(super) fn keeps_whole(&self) -> bool {
        self.state == State::Remakes
    }

    /// Whether it must be told which blocks come and go.
    #[inline]
    pub(super) fn rehearses(&self) -> bool {
        self.rehearsal.is_some()
    }

    /// No free chunk was right for a request with which `in_use` bytes are in use.
    pub(super) fn climbs(&mut self, in_use: u64) {
        self.most = self.most.max(in_use);
    }

    /// `idle` bytes of regions go back; `blocks` are those in use, with their bytes.
    pub(super) fn goes_back(
        &mut self,
        idle: u64,
        max_region: u64,
        blocks: impl Iterator<Item = (BlockId, u64)>,
    ) {
        self.bytes = self.bytes.saturating_add(idle);
        if self.rehearsal.is_none() && self.bytes >= self.begins_at(self.most) {
            let most = std::mem::take(&mut self.most);
            let rehearsal = Rehearsal::new(most, max_region, blocks);
            self.rehearsal = Some(Box::new(rehearsal));
        }
    }

    /// What is to have gone back before the next rehearsal.
    fn begins_at(&self, most: u64) -> u64 {
        let times = FIRST.checked_shl(self.failed).unwrap_or(u64::MAX);
        most.saturating_mul(times)
    }

    /// The bytes to be reserved in regions that stay, if this is the moment to make them.
    pub(super) fn settles(&mut self, in_use: u64) -> Option<u64> {
        let rehearsal = self.rehearsal.as_mut()?;
        rehearsal.lowest = rehearsal.lowest.min(in_use);
        let Rehearsal {
            most, lowest, fits, ..
        } = **rehearsal;
        let is_over = self.bytes / 2 >= self.begins_at(most);
        if !fits || (is_over && self.most < most - most / OTHER_SHARE) {
            self.fails();
            return None;
        }
        let is_low = in_use <= lowest.saturating_add(most / LOW_SHARE);
        (is_over && is_low).then(|| with_spare(most, SPARE_PERCENT[1]))
    }

    /// What was rehearsed will not do.
    pub(super) fn fails(&mut self) {
        self.rehearsal = None;
        self.failed = self.failed.saturating_add(1);
    }

    /// Regions that stay are made now.
    pub(super) fn settle(&mut self) {
        *self = Remaking {
            state: State::Settled,
            ..Remaking::default()
        };
    }

    /// A further region is needed: if others were to do, they did not.
    pub(super) fn grows(&mut self) {
        if self.state == State::Settled {
            *self = Remaking::default();
        }
    }

    /// The source has refused a region.
    pub(super) fn refused(&mut self) {
        *self = Remaking {
            state: State::Refused,
            ..Remaking::default()
        };
    }

    /// A block came to be.
    #[cold]
    #[inline(never)]
    pub(super) fn allocated(&mut self, block: BlockId, bytes: u64) {
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.allocate(block, bytes);
        }
    }

    /// A block went.
    #[cold]
    #[inline(never)]
    pub(super) fn freed(&mut self, block: BlockId) {
        if let Some(rehearsal) = &mut self.rehearsal
            && let Some(at) = rehearsal.blocks.get_mut(block.index())
            && let Some(on_paper) = at.take()
        {
            rehearsal.paper.free(on_paper);
        }
    }
}

/// Best fit in a few regions of nothing, asked for what a pool is asked for.
#[derive(Debug)]
struct Rehearsal {
    paper: BestFit<()>,
    /// The most in use that they were made for.
    most: u64,
    /// The blocks on paper, by the indices of those that they stand for.
    blocks: Vec<Option<BlockId>>,
    /// Whether every request so far found room.
    fits: bool,
    /// The least bytes in use at a moment when regions could be made.
    lowest: u64,
}

impl Rehearsal {
    fn new(most: u64, max_region: u64, blocks: impl Iterator<Item = (BlockId, u64)>) -> Self {
        let mut rehearsal = Rehearsal {
            paper: BestFit::new(),
            most,
            blocks: Vec::new(),
            fits: true,
            lowest: u64::MAX,
        };
        for bytes in regions_of(with_spare(most, SPARE_PERCENT[0]), max_region) {
            rehearsal.paper.open_region((), bytes);
        }
        for (block, bytes) in blocks {
            rehearsal.allocate(block, bytes);
        }
        rehearsal
    }

    fn allocate(&mut self, block: BlockId, bytes: u64) {
        // One that failed is waiting to be asked.
        if !self.fits {
            return;
        }
        let found = self.paper.allocate(bytes, Detail::default(), |_, _| false);
        self.fits = found.is_some();
        let index = block.index();
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, None);
        }
        self.blocks[index] = found.map(|(block, _)| block);
    }
}

fn with_spare(most: u64, percent: u64) -> u64 {
    round_down(most.saturating_add(most / 100 * percent))
}

/// The sizes of as few regions as may be that have so many bytes together.
pub(super) fn regions_of(bytes: u64, max_region: u64) -> impl Iterator<Item = u64> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let next = left.min(max_region);
        left -= next;
        (next > 0).then_some(next)
    })
}
