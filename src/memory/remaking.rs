//! How long regions are made anew to keep idle ones whole, and how that comes to an end.

use super::best_fit::BlockId;
use super::growth::round_down;
use super::rehearsal::{Failure, OTHER_SHARE, Rehearsal};

/// A rehearsal begins when so many times the most in use has gone back to keep regions whole, and lasts until twice
/// as much has again and then as much was in use again. After each that fails, or that was wrong, both are twice as many.
/// (Inputs of a fuzzer are short.)
const FIRST: u64 = if cfg!(fuzzing) { 1 } else { 16 };
/// And it lasts for so many allocations at most, twice as many after each that fails: of a program that makes little
/// anew, regions need not stay. (Miri is slow.)
const LONGEST: u64 = if cfg!(miri) { 1 << 8 } else { 1 << 20 };
/// So many percent more than the most in use are rehearsed and made, after so many rehearsals that had no room (and
/// the last after more). Under 6 `lstm_train` over and over finds none; some programs need 50.
const SPARE_PERCENT: [u64; 11] = [8, 8, 8, 8, 10, 10, 10, 15, 25, 50, 100];
/// At a moment to make regions that stay at most this share of the most is in holes between blocks in use, which
/// stay too.
const HOLES_SHARE: u64 = 32;
/// And no more is in use than this share of the most above the least lately at such moments: blocks in use hold
/// regions that were made for them.
const LOW_SHARE: u64 = 32;
/// And no more is in use than when it was rehearsed, in regions whose bytes differ by this share of the most at most.
const ALIKE_SHARE: u64 = 100;
/// What a pool knows of the regions that it gave back to keep them whole, and how it comes to an end with them.
///
/// To make regions anew costs time, in every step of a program that repeats itself. So it is tried on paper whether
/// the same program would get by with the regions in use at a moment when little is, and one more that stays. If it
/// would, that one is made at the next such moment, and nothing is made anew until it does not do after all.
#[derive(Debug)]
pub(super) struct Remaking {
    state: State,
    /// Bytes that went back since a rehearsal failed, began or went through its length.
    bytes: u64,
    /// Most bytes in use then.
    most: u64,
    /// The least bytes in use at a moment when regions could be made: since then, and before that since the last time.
    lowest: [u64; 2],
    /// Most bytes in use of the program that failures are counted for.
    largest: u64,
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
    /// Regions stay, for so many bytes in use, until more than so many are reserved.
    Settled { most: u64, reserved: u64 },
    /// The source has refused a region: where memory is short, what is held is not given back for less.
    Refused,
}

/// A moment when idle regions have gone back for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) in_use: u64,
    pub(super) reserved: u64,
    /// Bytes of the request.
    pub(super) needed: u64,
    /// What the budget still allows.
    pub(super) headroom: u64,
    pub(super) max_region: u64,
}

impl Default for Remaking {
    fn default() -> Self {
        Remaking {
            state: State::default(),
            bytes: 0,
            most: 0,
            lowest: [u64::MAX; 2],
            largest: 0,
            failed: 0,
            cramped: 0,
            rehearsal: None,
        }
    }
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

    /// `idle` bytes of regions go back.
    #[inline]
    pub(super) fn goes_back(&mut self, idle: u64) {
        self.outgrown(self.most);
        self.bytes = self.bytes.saturating_add(idle);
        let begins_at = self.begins_at();
        match &mut self.rehearsal {
            // It has not begun, for want of a moment when as little as before is in use.
            None if self.bytes / 2 >= begins_at => {
                self.bytes = begins_at;
                self.forget_lowest();
            }
            Some(rehearsal) if self.bytes >= rehearsal.length => {
                let is_another = !rehearsal.is_as_large(self.most);
                rehearsal.is_over = true;
                (self.bytes, self.most) = (0, 0);
                self.forget_lowest();
                if is_another {
                    self.fails(Failure::AnotherProgram);
                }
            }
            _ => {}
        }
    }

    /// So many bytes are in use. Of a program that uses more than any before nothing has failed.
    fn outgrown(&mut self, in_use: u64) {
        if in_use > self.largest.saturating_add(self.largest / OTHER_SHARE) {
            *self = Remaking {
                largest: in_use,
                most: in_use,
                ..Remaking::default()
            };
        }
    }

    /// When so many bytes went back a rehearsal begins.
    fn begins_at(&self) -> u64 {
        self.doubled(FIRST).saturating_mul(self.most)
    }

    /// Twice as many for each failure.
    fn doubled(&self, first: u64) -> u64 {
        let times = 1u64.checked_shl(self.failed).unwrap_or(u64::MAX);
        first.saturating_mul(times)
    }

    fn forget_lowest(&mut self) {
        self.lowest = [u64::MAX, self.lowest[0]];
    }

    /// Begins to rehearse if it is time, in `regions`, their bytes with the chunks in them. Or
    /// the bytes of regions to be made which are to stay, if they were rehearsed and this is the moment to make them.
    pub(super) fn at<Chunks: Iterator<Item = (Option<BlockId>, u64)>>(
        &mut self,
        moment: Moment,
        regions: impl Iterator<Item = (u64, Chunks)>,
    ) -> Option<u64> {
        if !self.keeps_whole() {
            return None;
        }
        let Moment {
            in_use, reserved, ..
        } = moment;
        let most = match &self.rehearsal {
            Some(rehearsal) => rehearsal.most,
            None => self.most,
        };
        self.lowest[0] = self.lowest[0].min(in_use);
        let low = self.lowest[0].min(self.lowest[1]);
        let is_low = in_use <= low.saturating_add(most / LOW_SHARE);
        // What was rehearsed is not for more than the most.
        let is_larger = in_use.saturating_add(moment.needed) > most;
        if !is_low || is_larger || reserved - in_use > most / HOLES_SHARE {
            return None;
        }
        match &self.rehearsal {
            None if self.bytes > 0 && self.bytes >= self.begins_at() => {
                self.begin(moment, regions);
                None
            }
            // That much was in use lately, too: else what was the program's beginning would be reserved for good.
            Some(rehearsal) if rehearsal.is_over && rehearsal.is_as_large(self.most) => {
                let is_alike = in_use <= rehearsal.in_use
                    && reserved.abs_diff(rehearsal.held) <= most / ALIKE_SHARE;
                let (made, allowed) = (rehearsal.made, rehearsal.allowed());
                if is_alike && made > moment.headroom {
                    self.fails(Failure::AnotherProgram);
                    return None;
                }
                is_alike.then(|| {
                    self.becomes(State::Settled {
                        most,
                        reserved: allowed,
                    });
                    made
                })
            }
            _ => None,
        }
    }

    fn begin<Chunks: Iterator<Item = (Option<BlockId>, u64)>>(
        &mut self,
        moment: Moment,
        regions: impl Iterator<Item = (u64, Chunks)>,
    ) {
        let percent = SPARE_PERCENT[self.cramped.min(SPARE_PERCENT.len() - 1)];
        let spare = (self.most / 100).saturating_mul(percent);
        let wanted = self.most.saturating_add(spare);
        let made = wanted.saturating_sub(moment.reserved).min(moment.headroom);
        let rehearsal = Rehearsal {
            most: self.most,
            length: self.bytes.saturating_mul(2),
            in_use: moment.in_use,
            held: moment.reserved,
            made: round_down(made),
            left: self.doubled(LONGEST),
            ..Rehearsal::default()
        };
        (self.bytes, self.most) = (0, 0);
        match rehearsal.begun(moment.max_region, regions) {
            Ok(rehearsal) => self.rehearsal = Some(Box::new(rehearsal)),
            Err(failure) => self.fails(failure),
        }
    }

    /// What was rehearsed will not do.
    fn fails(&mut self, failure: Failure) {
        self.failed = self.failed.saturating_add(1);
        self.cramped += usize::from(failure == Failure::NoRoom);
        self.becomes(State::Remakes);
    }

    /// Of what was before, the failures are known.
    fn becomes(&mut self, state: State) {
        *self = Remaking {
            state,
            failed: self.failed,
            cramped: self.cramped,
            largest: self.largest,
            ..Remaking::default()
        };
    }

    /// A further region is needed for a request, with which `in_use` bytes are in use and `reserved` are
    /// reserved: if others were to do, they may be found not to.
    #[inline]
    pub(super) fn grows(&mut self, in_use: u64, reserved: u64) {
        if let State::Settled {
            most,
            reserved: limit,
        } = self.state
            && reserved > limit
        {
            self.fails(match in_use <= most {
                true => Failure::NoRoom,
                // The same program does something larger now and then, or it is another.
                false => Failure::AnotherProgram,
            });
            self.outgrown(in_use);
        }
    }

    /// Idle regions went back because somebody wanted them to: those that were to stay, maybe.
    pub(super) fn trimmed(&mut self) {
        if matches!(self.state, State::Settled { .. }) {
            self.becomes(State::Remakes);
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
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.free(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NOTHING: Moment = Moment {
        in_use: 0,
        reserved: 0,
        needed: 0,
        headroom: u64::MAX,
        max_region: u64::MAX,
    };

    /// So many bytes go back while a MiB is in use at most.
    fn goes_back(remaking: &mut Remaking, bytes: u64) {
        remaking.saw(MIB);
        remaking.goes_back(bytes);
    }

    /// A moment when so many bytes are in use, in one block and in a region of so many.
    fn at(remaking: &mut Remaking, in_use: u64, reserved: u64) -> Option<u64> {
        let block = BlockId::from_bits(1 << 32);
        let chunks = [(Some(block), in_use), (None, reserved - in_use)];
        let chunks = chunks.into_iter().filter(|chunk| chunk.1 > 0);
        let regions = (reserved > 0).then_some((reserved, chunks)).into_iter();
        let moment = Moment {
            in_use,
            reserved,
            ..NOTHING
        };
        remaking.at(moment, regions)
    }

    fn percent_more(percent: u64) -> u64 {
        round_down(MIB + MIB / 100 * percent)
    }

    #[test]
    fn what_is_rehearsed_is_made_when_little_is_in_use() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 16 * MIB - 1);
        assert_eq!(at(&mut remaking, 0, 0), None);
        assert!(!remaking.rehearses() && remaking.keeps_whole());
        goes_back(&mut remaking, 1);
        assert_eq!(at(&mut remaking, MIB / 32 + 1, MIB / 32 + 1), None);
        assert!(!remaking.rehearses(), "too much in use");
        assert_eq!(at(&mut remaking, 0, 0), None);
        assert!(remaking.rehearses());
        assert_eq!(at(&mut remaking, 0, 0), None, "not over");
        goes_back(&mut remaking, 32 * MIB);
        assert_eq!(at(&mut remaking, 0, 0), None, "not as much in use since");
        remaking.saw(MIB);
        assert_eq!(at(&mut remaking, MIB, MIB), None, "too much in use");
        assert_eq!(at(&mut remaking, 0, MIB / 32 + 1), None, "holes");
        let unlike = MIB / 100 + 1;
        assert_eq!(at(&mut remaking, 0, unlike), None, "other regions");
        assert_eq!(at(&mut remaking, 1, 1), None, "more in use");
        let larger = Moment {
            needed: MIB + 256,
            ..NOTHING
        };
        let none = std::iter::empty::<(u64, std::iter::Empty<_>)>();
        assert_eq!(remaking.at(larger, none), None, "a larger request");
        let made = percent_more(8);
        assert_eq!(at(&mut remaking, 0, MIB / 100), Some(made));
        assert!(!remaking.rehearses() && !remaking.keeps_whole());
        let allowed = made + MIB / 100;
        remaking.grows(MIB, allowed);
        assert!(!remaking.keeps_whole());
        remaking.grows(MIB, allowed + 1);
        assert!(remaking.keeps_whole());
        goes_back(&mut remaking, 32 * MIB - 1);
        at(&mut remaking, 0, 0);
        assert!(!remaking.rehearses(), "twice as long");
        goes_back(&mut remaking, 1);
        at(&mut remaking, 0, 0);
        assert!(remaking.rehearses());
    }

    #[test]
    fn regions_in_use_are_rehearsed_with() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 16 * MIB);
        at(&mut remaking, MIB / 4, MIB / 4 + 256);
        let rehearsal = remaking.rehearsal.as_ref().unwrap();
        let held: Vec<_> = rehearsal.paper.regions().collect();
        assert_eq!(held.len(), 2);
        let chunks = rehearsal.paper.chunks(held[0].0);
        let chunks: Vec<_> = chunks
            .map(|chunk| (chunk.bytes, chunk.block.is_some()))
            .collect();
        assert_eq!(chunks, [(MIB / 4, true), (256, false)]);
        let made = percent_more(8) - MIB / 4 - 256;
        assert_eq!((rehearsal.made, held[1].1), (made, made));
        goes_back(&mut remaking, 32 * MIB);
        remaking.saw(MIB);
        assert_eq!(at(&mut remaking, 0, 0), None, "that region is gone");
        let again = at(&mut remaking, MIB / 4, MIB / 4);
        assert_eq!(again, None, "not the least");
        for _ in 0..2 {
            goes_back(&mut remaking, 32 * MIB);
            remaking.saw(MIB);
        }
        assert_eq!(at(&mut remaking, MIB / 4, MIB / 4), Some(made));
    }

    #[test]
    fn what_is_made_is_within_the_budget() {
        let budget = Moment {
            headroom: MIB + 256,
            ..NOTHING
        };
        let none = || std::iter::empty::<(u64, std::iter::Empty<_>)>();
        for (headroom, made) in [(MIB + 256, Some(MIB + 256)), (MIB, None)] {
            let mut remaking = Remaking::default();
            goes_back(&mut remaking, 16 * MIB);
            remaking.at(budget, none());
            goes_back(&mut remaking, 32 * MIB);
            remaking.saw(MIB);
            let now = Moment {
                headroom,
                ..NOTHING
            };
            assert_eq!(remaking.at(now, none()), made);
            assert_eq!(remaking.failed, u32::from(made.is_none()));
            assert_eq!(remaking.cramped, 0);
        }
    }

    #[test]
    fn a_program_that_uses_less_is_rehearsed_anew() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 16 * MIB);
        at(&mut remaking, 0, 0);
        remaking.saw(MIB / 16 * 15 - 1);
        remaking.goes_back(32 * MIB);
        assert_eq!(at(&mut remaking, 0, 0), None);
        assert!(!remaking.rehearses());
        assert_eq!((remaking.failed, remaking.cramped), (1, 0));
    }

    #[test]
    fn a_rehearsal_ends_by_itself() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 16 * MIB);
        at(&mut remaking, 0, 0);
        let block = BlockId::from_bits(1 << 32);
        for _ in 0..LONGEST {
            remaking.allocated(block, 256);
            remaking.freed(block);
        }
        assert!(remaking.rehearses());
        remaking.allocated(block, 256);
        assert!(!remaking.rehearses());
        assert_eq!((remaking.failed, remaking.cramped), (1, 0));
        assert_eq!(remaking.largest, MIB, "the same program");
        goes_back(&mut remaking, 32 * MIB);
        at(&mut remaking, 0, 0);
        let left = remaking.rehearsal.map(|rehearsal| rehearsal.left);
        assert_eq!(left, Some(2 * LONGEST));
    }

    #[test]
    fn more_is_rehearsed_where_there_was_no_room() {
        let mut remaking = Remaking::default();
        let block = BlockId::from_bits(1 << 32);
        for failed in 0..20 {
            goes_back(&mut remaking, (16 << failed) * MIB);
            at(&mut remaking, 0, 0);
            let percent = SPARE_PERCENT[(failed as usize).min(10)];
            remaking.allocated(block, percent_more(percent));
            assert!(remaking.rehearses());
            remaking.allocated(block, 256);
            assert!(!remaking.rehearses());
            assert_eq!(remaking.cramped, failed as usize + 1);
        }
    }

    #[test]
    fn what_failed_is_no_matter_to_a_larger_program() {
        let mut remaking = Remaking::default();
        goes_back(&mut remaking, 1);
        for _ in 0..5 {
            remaking.fails(Failure::NoRoom);
        }
        for (in_use, failures) in [(MIB / 16 * 17, 5), (MIB / 16 * 17 + 1, 0)] {
            remaking.saw(in_use);
            remaking.goes_back(1);
            assert_eq!(remaking.failed, failures);
            assert_eq!(remaking.cramped, failures as usize);
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
        remaking.goes_back(u64::MAX);
        let moment = Moment {
            max_region: 1 << 62,
            ..NOTHING
        };
        let none = || std::iter::empty::<(u64, std::iter::Empty<_>)>();
        assert_eq!(remaking.at(moment, none()), None);
        assert!(remaking.rehearses());
        assert_eq!(remaking.at(moment, none()), None);
    }
}
