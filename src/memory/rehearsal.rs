//! Whether regions that stay would do for a program: tried on paper while regions are made anew.

use super::best_fit::{BestFit, BlockId};
use super::growth::round_down;
use super::slots::Detail;

/// A rehearsal begins when so many times the most in use has gone back to keep regions whole, and lasts until as
/// much has again and then as much was in use again. After each that fails, or that was wrong, both are twice as many.
/// (Inputs of a fuzzer are short.)
const FIRST: u64 = if cfg!(fuzzing) { 1 } else { 8 };
/// And it lasts for so many allocations at most, twice as many after each that fails: of a program that makes little
/// anew, regions need not stay.
const LONGEST: u64 = 1 << 20;
/// So many percent more than the most in use are rehearsed: under 6 `lstm_train` over and over finds no room.
const REHEARSED_PERCENT: u64 = 6;
/// And so many are made: blocks in use keep their places, so what stays is not quite what was rehearsed.
const MADE_PERCENT: u64 = 7;
/// And so many may be reserved in all before that is wrong.
const SETTLED_PERCENT: u64 = 9;
/// So often there is no room before regions stay that were not rehearsed: those in use then, and those that come
/// until so many percent more than the most in use are reserved; then it was wrong, and the next is tried.
const CRAMPED: usize = if cfg!(fuzzing) { 1 } else { 7 };
const STAY_PERCENT: [u64; 3] = [12, 25, 50];
/// And so many percent of them may be holes between blocks in use when they are made: what is missing is made anew.
const HOLES_PERCENT: u64 = 1;
/// Regions that stay are made when, within this share of the most, as little is in use as lately at such a moment:
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
    /// Bytes that went back since a rehearsal failed, began or went through its length.
    bytes: u64,
    /// Most bytes in use then.
    most: u64,
    /// Most bytes in use that regions which stayed were not enough for.
    outgrown: u64,
    /// Rehearsals that failed, or that regions were made after which did not do.
    failed: u32,
    /// For want of room.
    cramped: usize,
    rehearsal: Option<Box<Rehearsal>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Idle regions are kept whole.
    #[default]
    Remakes,
    /// Regions stay, for so many bytes in use, until so many are reserved.
    Settled { most: u64, reserved: u64 },
    /// The source has refused a region: where memory is short, what is held is not given back for less.
    Refused,
}

/// Why a rehearsal came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NoRoom,
    TooLong,
    /// Less is in use than was, or more than ever.
    AnotherProgram,
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

    /// So many bytes are in use.
    #[inline]
    pub(super) fn saw(&mut self, in_use: u64) {
        // A branch, because most of the time there is nothing to store.
        if in_use > self.most {
            self.most = in_use;
        }
    }

    /// `idle` bytes of regions go back; `blocks` are those in use, with their bytes.
    pub(super) fn goes_back(
        &mut self,
        idle: u64,
        max_region: u64,
        blocks: impl Iterator<Item = (BlockId, u64)>,
    ) {
        self.bytes = self.bytes.saturating_add(idle);
        let begins_at = self.doubled(FIRST).saturating_mul(self.most);
        match &mut self.rehearsal {
            None if self.bytes >= begins_at && self.cramped >= CRAMPED => {
                let step = (self.cramped - CRAMPED).min(STAY_PERCENT.len() - 1);
                self.stay(self.most, STAY_PERCENT[step]);
            }
            None if self.bytes >= begins_at => {
                let length = self.bytes;
                let (most, longest) = (self.most, self.doubled(LONGEST));
                (self.bytes, self.most) = (0, 0);
                match Rehearsal::new([most, length, longest], max_region, blocks) {
                    Ok(rehearsal) => self.rehearsal = Some(Box::new(rehearsal)),
                    Err(failure) => self.fails(failure),
                }
            }
            Some(rehearsal) if self.bytes >= rehearsal.length => {
                let is_another = !rehearsal.is_as_large(self.most);
                rehearsal.is_over = true;
                rehearsal.lowest = [rehearsal.lowest[1], u64::MAX];
                (self.bytes, self.most) = (0, 0);
                if is_another {
                    self.fails(Failure::AnotherProgram);
                }
            }
            _ => {}
        }
    }

    /// Twice as many for each failure.
    fn doubled(&self, first: u64) -> u64 {
        let times = 1u64.checked_shl(self.failed).unwrap_or(u64::MAX);
        first.saturating_mul(times)
    }

    /// The bytes to be reserved in regions that stay, if this is the moment to make them: `reserved` are where
    /// `in_use` are in use, and none is idle.
    pub(super) fn settles(&mut self, in_use: u64, reserved: u64) -> Option<u64> {
        let rehearsal = self.rehearsal.as_mut()?;
        rehearsal.lowest[1] = rehearsal.lowest[1].min(in_use);
        let low = rehearsal.lowest[0].min(rehearsal.lowest[1]);
        let is_low = in_use <= low.saturating_add(rehearsal.most / LOW_SHARE);
        // That much was in use lately, too: else what was the program's beginning would be reserved for good.
        let is_over = rehearsal.is_over && rehearsal.is_as_large(self.most);
        let is_whole = reserved - in_use <= rehearsal.most / 100 * HOLES_PERCENT;
        (is_over && is_low && is_whole).then(|| with_spare(rehearsal.most, MADE_PERCENT))
    }

    /// What was rehearsed will not do.
    pub(super) fn fails(&mut self, failure: Failure) {
        *self = Remaking {
            state: self.state,
            failed: self.failed.saturating_add(1),
            cramped: self.cramped + usize::from(failure == Failure::NoRoom),
            outgrown: self.outgrown,
            ..Remaking::default()
        };
    }

    /// Regions that stay are made now.
    pub(super) fn settle(&mut self) {
        let most = self.rehearsal.take().map_or(0, |rehearsal| rehearsal.most);
        self.stay(most, SETTLED_PERCENT);
    }

    fn stay(&mut self, most: u64, percent: u64) {
        let reserved = with_spare(most, percent);
        *self = Remaking {
            state: State::Settled { most, reserved },
            failed: self.failed,
            cramped: self.cramped,
            outgrown: self.outgrown,
            ..Remaking::default()
        };
    }

    /// A further region is needed for a request, with which `in_use` bytes are in use and `reserved` are
    /// reserved: if others were to do, they may be found not to.
    pub(super) fn grows(&mut self, in_use: u64, reserved: u64) {
        if let State::Settled {
            most,
            reserved: limit,
        } = self.state
            && reserved > limit
        {
            self.state = State::Remakes;
            if in_use <= most {
                self.fails(Failure::NoRoom);
            } else if in_use <= self.outgrown.saturating_add(self.outgrown / OTHER_SHARE) {
                // The same program does something larger now and then.
                self.fails(Failure::AnotherProgram);
            } else {
                *self = Remaking {
                    outgrown: in_use,
                    ..Remaking::default()
                };
            }
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
        let rehearsal = self.rehearsal.as_mut();
        if let Some(Err(failure)) = rehearsal.map(|rehearsal| rehearsal.allocate(block, bytes)) {
            self.fails(failure);
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
    /// The most in use that its regions were made for.
    most: u64,
    /// Bytes that go back before it is over, and then before it is seen whether it still holds.
    length: u64,
    is_over: bool,
    /// The least bytes in use at a moment when regions could be made, before `length` bytes went back the last time
    /// and since.
    lowest: [u64; 2],
    /// So many allocations more.
    left: u64,
    /// The blocks on paper, by the indices of those that they stand for.
    blocks: Vec<Option<BlockId>>,
}

impl Rehearsal {
    fn new(
        [most, length, left]: [u64; 3],
        max_region: u64,
        blocks: impl Iterator<Item = (BlockId, u64)>,
    ) -> Result<Self, Failure> {
        let mut rehearsal = Rehearsal {
            paper: BestFit::new(),
            most,
            length,
            is_over: false,
            lowest: [u64::MAX; 2],
            left,
            blocks: Vec::new(),
        };
        for bytes in regions_of(with_spare(most, REHEARSED_PERCENT), max_region) {
            rehearsal.paper.open_region((), bytes);
        }
        for (block, bytes) in blocks {
            rehearsal.allocate(block, bytes)?;
        }
        Ok(rehearsal)
    }

    /// Whether it is the program that was rehearsed that uses so many bytes.
    fn is_as_large(&self, most: u64) -> bool {
        most >= self.most - self.most / OTHER_SHARE
    }

    fn allocate(&mut self, block: BlockId, bytes: u64) -> Result<(), Failure> {
        self.left = self.left.checked_sub(1).ok_or(Failure::TooLong)?;
        let (on_paper, _) = self
            .paper
            .allocate(bytes, Detail::default(), |_, _| false)
            .ok_or(Failure::NoRoom)?;
        let index = block.index();
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, None);
        }
        self.blocks[index] = Some(on_paper);
        Ok(())
    }
}

fn with_spare(most: u64, percent: u64) -> u64 {
    round_down(most.saturating_add((most / 100).saturating_mul(percent)))
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// So many bytes go back while a MiB is in use, none of it in blocks.
    fn goes_back(remaking: &mut Remaking, bytes: u64) {
        remaking.saw(MIB);
        remaking.goes_back(bytes, u64::MAX, std::iter::empty());
    }

    #[test]
    fn what_is_rehearsed_is_made_when_little_is_in_use() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 8 * MIB - 1);
        assert!(!remaking.rehearses() && remaking.keeps_whole());
        goes_back(&mut remaking, 1);
        assert!(remaking.rehearses());
        assert_eq!(remaking.settles(0, 0), None, "not over");
        goes_back(&mut remaking, 8 * MIB);
        assert_eq!(remaking.settles(0, 0), None, "not as much in use since");
        remaking.saw(MIB);
        assert_eq!(remaking.settles(MIB, MIB), None, "too much in use");
        let holes = MIB / 100 + 1;
        assert_eq!(remaking.settles(0, holes), None, "too many holes");
        assert_eq!(
            remaking.settles(MIB / 32, MIB / 32),
            Some(with_spare(MIB, 7))
        );
        remaking.settle();
        assert!(!remaking.rehearses() && !remaking.keeps_whole());
        remaking.grows(MIB, with_spare(MIB, 9));
        assert!(!remaking.keeps_whole());
        remaking.grows(MIB, with_spare(MIB, 9) + 1);
        assert!(remaking.keeps_whole());
        goes_back(&mut remaking, 16 * MIB - 1);
        assert!(!remaking.rehearses(), "twice as long");
        goes_back(&mut remaking, 1);
        assert!(remaking.rehearses());
    }

    #[test]
    fn a_program_that_uses_less_is_rehearsed_anew() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 8 * MIB);
        remaking.saw(MIB / 16 * 15 - 1);
        remaking.goes_back(8 * MIB, u64::MAX, std::iter::empty());
        assert!(!remaking.rehearses());
        assert_eq!((remaking.failed, remaking.cramped), (1, 0));
    }

    #[test]
    fn a_rehearsal_ends_by_itself() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 8 * MIB);
        let block = BlockId::from_bits(1 << 32);
        for _ in 0..LONGEST {
            remaking.allocated(block, 256);
            remaking.freed(block);
        }
        assert!(remaking.rehearses());
        remaking.allocated(block, 256);
        assert!(!remaking.rehearses());
        assert_eq!((remaking.failed, remaking.cramped), (1, 0));
    }

    #[test]
    fn regions_stay_in_the_end_where_there_is_no_room() {
        let mut remaking = Remaking::default();
        let block = BlockId::from_bits(1 << 32);
        for failed in 0..CRAMPED {
            assert!(remaking.keeps_whole());
            goes_back(&mut remaking, (8 << failed) * MIB);
            remaking.allocated(block, 2 * MIB);
            assert_eq!(remaking.cramped, failed + 1);
        }
        for percent in [12, 25, 50, 50] {
            goes_back(&mut remaking, u64::MAX);
            assert!(!remaking.keeps_whole() && !remaking.rehearses());
            remaking.grows(MIB, with_spare(MIB, percent));
            assert!(!remaking.keeps_whole());
            remaking.grows(MIB, with_spare(MIB, percent) + 1);
            assert!(remaking.keeps_whole());
        }
    }

    #[test]
    fn waits_end_at_the_end_of_the_number_range() {
        let mut remaking = Remaking::default();
        let mut before = 0;
        for _ in 0..100 {
            assert!(remaking.doubled(FIRST) > before || before == u64::MAX);
            before = remaking.doubled(FIRST);
            remaking.fails(Failure::TooLong);
        }
        assert_eq!(before, u64::MAX);
        remaking.saw(u64::MAX);
        remaking.goes_back(u64::MAX, 1 << 62, std::iter::empty());
        assert!(remaking.rehearses());
        assert_eq!(remaking.settles(0, 0), None);
    }
}
