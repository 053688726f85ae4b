//! What moves where so that a hole comes to be, tried on a copy of the map before anything moves.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use super::best_fit::{BlockId, Piece};
use super::holes::{Window, Windows, cheapest_slide};
use super::order;

/// Windows that are tried for a hole, those with the fewest bytes in use first; and while there is no way at all.
const CANDIDATES: usize = 32;
const LAST_CANDIDATES: usize = 128;
/// Looks over the whole map for a hole elsewhere, for all windows of a hole; and the chunks that they see in all.
const SEARCHES: usize = 64;
const SEEN: usize = 1 << 18;
/// A request is small up to this share of what is reserved: the next ones will be like it, and so a hole for
/// two is made where that moves at most `FOR_TWO` halves of the bytes. What grows step by step (the caches
/// of a language model) comes to lie side by side that way, and its holes with it. A hole for two that are large
/// costs more than the second one would.
const SMALL_SHARE: u64 = 64;
const FOR_TWO: u64 = 5;

/// One block on its way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Down over the free chunk before it; it stays where there is none.
    Down(BlockId),
    /// To the front of what is left of the free chunk that had this slot.
    Into {
        block: BlockId,
        bytes: u64,
        hole: u32,
    },
}

/// Steps in order, and the bytes that they move.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    cost: u64,
}

/// Bytes and place (region, number in it) of a free chunk, the smallest first; the highest address first
/// among equals.
type Hole = (u64, Reverse<(usize, usize)>);

/// All regions as they would be.
pub(super) struct Map {
    /// Chunks in address order. A free chunk that is pinned has blocks of the plan before it, which are not listed.
    regions: Vec<Vec<Piece>>,
    holes: BTreeSet<Hole>,
    /// Places that a plan in the making has changed, and what was there.
    changed: Vec<((usize, usize), Piece)>,
}

/// A place in the map that stands for no bytes.
const NOTHING: Piece = Piece {
    slot: 0,
    bytes: 0,
    block: None,
    pinned: false,
};

/// The same, that no window goes over.
const BARRIER: Piece = Piece {
    pinned: true,
    ..NOTHING
};

impl Map {
    pub(super) fn of(regions: Vec<Vec<Piece>>) -> Self {
        let mut holes = BTreeSet::new();
        for (region, pieces) in regions.iter().enumerate() {
            for (at, piece) in pieces.iter().enumerate() {
                if piece.block.is_none() {
                    holes.insert((piece.bytes, Reverse((region, at))));
                }
            }
        }
        Map {
            regions,
            holes,
            changed: Vec::new(),
        }
    }

    /// The way to a hole of `bytes` that moves the fewest bytes: of those that were tried, and no more than
    /// the cheapest slide.
    pub(super) fn hole(&mut self, bytes: u64) -> Option<Plan> {
        let slide = cheapest_slide(&self.regions, bytes);
        let limit = slide.map_or(u64::MAX, |window| window.cost);
        let plan = self
            .hole_below(bytes, limit)
            .or_else(|| Some(self.sliding(slide?)))?;
        let all = self.regions.iter().flatten();
        let is_small = bytes <= all.map(|piece| piece.bytes).sum::<u64>() / SMALL_SHARE;
        let free: u64 = self.holes.iter().map(|hole| hole.0).sum();
        let for_two = match is_small && bytes <= free / 2 {
            true => self.hole_below(2 * bytes, plan.cost.saturating_mul(FOR_TWO) / 2),
            false => None,
        };
        Some(for_two.unwrap_or(plan))
    }

    /// The cheapest way that moves less than `limit`.
    fn hole_below(&mut self, bytes: u64, mut limit: u64) -> Option<Plan> {
        let chunks = self.regions.iter().map(Vec::len).sum::<usize>();
        let (mut best, mut searches) = (None, SEARCHES.min(SEEN / chunks.max(1)));
        let windows = Windows::new(&self.regions, bytes);
        let windows: Vec<Window> = windows.take(LAST_CANDIDATES).collect();
        for (tried, window) in windows.into_iter().enumerate() {
            // What moves elsewhere comes on top.
            if window.cost >= limit || (tried >= CANDIDATES && limit < u64::MAX) {
                break;
            }
            let plan = self.tried(|map| map.clearing(window, bytes, limit, &mut searches));
            if let Some(plan) = plan {
                limit = plan.cost;
                best = Some(plan);
            }
        }
        best
    }

    /// How all blocks of a region get out of it, into the holes of the others.
    pub(super) fn emptying(&mut self, region: usize) -> Option<Plan> {
        let pieces = &self.regions[region];
        let window = Window {
            cost: pieces.iter().map(Piece::used).sum(),
            region,
            first: 0,
            end: pieces.len(),
        };
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        self.tried(|map| map.clearing(window, bytes, u64::MAX, &mut 0))
    }

    /// What `plan` says, after which the map is as before.
    fn tried(&mut self, plan: impl FnOnce(&mut Self) -> Option<Plan>) -> Option<Plan> {
        let plan = plan(self);
        while let Some((place, piece)) = self.changed.pop() {
            self.exchange(place, piece);
        }
        plan
    }

    /// How blocks of a window get out of it, the largest first, until `bytes` are free in it, for less than
    /// `limit`: each into the smallest hole outside that holds it; where none does, one is slid together there,
    /// the cheapest, as long as there are `searches` left. The blocks that stay slide down. Leaves the map as
    /// the plan would make it.
    fn clearing(
        &mut self,
        window: Window,
        bytes: u64,
        limit: u64,
        searches: &mut usize,
    ) -> Option<Plan> {
        let pieces = &self.regions[window.region];
        let is_free = |at: usize| pieces.get(at).is_some_and(|piece| piece.block.is_none());
        // Free neighbours are part of the hole.
        let first = window.first - usize::from(window.first > 0 && is_free(window.first - 1));
        let end = window.end + usize::from(is_free(window.end));
        let inside = pieces[first..end].to_vec();
        let blocks = inside
            .iter()
            .filter_map(|piece| Some((piece.block?, piece.bytes)));
        let mut blocks: Vec<(BlockId, u64)> = blocks.collect();
        order::sort(&mut blocks, |&(_, bytes)| (!bytes, 0));
        let mut missing = bytes.saturating_sub(inside.iter().map(Piece::free).sum());
        let mut left = window.cost;
        let (mut cost, mut steps) = (window.cost, Vec::new());
        let mut gone = HashSet::new();
        self.leave_out(window.region, first, end);
        for (block, bytes) in blocks {
            if missing == 0 {
                break;
            }
            if left < missing {
                return None;
            }
            left -= bytes;
            let hole = match self.best_hole(bytes) {
                Some(hole) => hole,
                None if *searches == 0 => continue,
                None => {
                    *searches -= 1;
                    let slide = cheapest_slide(&self.regions, bytes);
                    let Some(slide) = slide.filter(|slide| slide.cost < limit - cost) else {
                        continue;
                    };
                    cost += slide.cost;
                    self.slide(slide, &mut steps)
                }
            };
            steps.push(self.fill(hole, block, bytes));
            gone.insert(block);
            missing = missing.saturating_sub(bytes);
        }
        if missing > 0 || cost >= limit {
            return None;
        }
        let mut is_behind = false;
        for piece in inside {
            match piece.block.filter(|block| !gone.contains(block)) {
                None => is_behind = true,
                Some(block) if is_behind => steps.push(Step::Down(block)),
                Some(_) => cost -= piece.bytes,
            }
        }
        Some(Plan { steps, cost })
    }

    fn sliding(&self, window: Window) -> Plan {
        let pieces = &self.regions[window.region][window.first..window.end];
        let blocks = pieces.iter().filter_map(|piece| piece.block);
        Plan {
            steps: blocks.map(Step::Down).collect(),
            cost: window.cost,
        }
    }

    /// The smallest hole that holds `bytes`.
    fn best_hole(&self, bytes: u64) -> Option<Hole> {
        let from = (bytes, Reverse((usize::MAX, usize::MAX)));
        self.holes.range(from..).next().copied()
    }

    /// Puts a piece into a place, and says what was there.
    fn exchange(&mut self, (region, at): (usize, usize), piece: Piece) -> Piece {
        let old = std::mem::replace(&mut self.regions[region][at], piece);
        let place = Reverse((region, at));
        if old.free() > 0 {
            self.holes.remove(&(old.bytes, place));
        }
        if piece.free() > 0 {
            self.holes.insert((piece.bytes, place));
        }
        old
    }

    fn change(&mut self, place: (usize, usize), piece: Piece) {
        let old = self.exchange(place, piece);
        self.changed.push((place, old));
    }

    /// From here on nothing moves there, and nothing moves into it.
    fn leave_out(&mut self, region: usize, first: usize, end: usize) {
        for at in first..end {
            self.change((region, at), BARRIER);
        }
    }

    /// A block comes to the front of a hole, and stays there.
    fn fill(&mut self, hole: Hole, block: BlockId, bytes: u64) -> Step {
        let (_, Reverse(place)) = hole;
        let piece = self.regions[place.0][place.1];
        self.change(
            place,
            Piece {
                bytes: piece.bytes - bytes,
                pinned: true,
                ..piece
            },
        );
        let hole = piece.slot;
        Step::Into { block, bytes, hole }
    }

    /// The blocks of a window slide down; the hole behind them has the slot of the window's first chunk. All
    /// chunks keep their numbers.
    fn slide(&mut self, window: Window, steps: &mut Vec<Step>) -> Hole {
        let Window {
            region, first, end, ..
        } = window;
        let pieces = self.regions[region][first..end].to_vec();
        let mut slid = Vec::with_capacity(pieces.len());
        if pieces[0].pinned {
            // The blocks before it stay.
            slid.push(BARRIER);
        }
        for piece in &pieces {
            if let Some(block) = piece.block {
                steps.push(Step::Down(block));
                slid.push(*piece);
            }
        }
        let hole = Piece {
            bytes: pieces.iter().map(Piece::free).sum(),
            pinned: false,
            ..pieces[0]
        };
        let place = (hole.bytes, Reverse((region, first + slid.len())));
        slid.push(hole);
        slid.resize(pieces.len(), NOTHING);
        for (at, piece) in (first..).zip(slid) {
            self.change((region, at), piece);
        }
        place
    }
}
