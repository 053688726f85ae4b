//! How large the next region is: a pure function of what is held and what is needed.

use super::QUANTUM;

/// How the pool sizes a new region. Whatever the policy, a region is at least as large as the request,
/// within the budget and the largest buffer, and when it is refused a smaller one is tried, down to
/// the request itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Growth {
    /// Close to what is in use: a new region is several times its request, in whole multiples, as long as
    /// at most 1/20 more is reserved than is in use, and at least 1/256 of what is reserved.
    ///
    /// Idle regions that are all too small for a request go back before a new one is made. An idle region of which the request
    /// needs less than 4/5 goes back, too, for one of its size. That ends when the adapter refuses a region (not for a request beyond all that was ever reserved, which then fails), or when the pool has
    /// found one region that, with those in use, would serve all requests again: it makes that one, and keeps it. With it 8 % more are reserved than the most
    /// in use; 10 % and more, up to twice as much, after attempts that found none (`docs/memory.md` has the rule). If somebody else takes what went back, the request that it
    /// went back for may be refused.
    #[default]
    Proportional,
    /// What a device with a `memory_limit` does where nothing else is said: in proportion up to a 64th of the
    /// budget, and then all the rest in one region, since blocks of several cannot be moved together when the
    /// budget is nearly used up. So a budget of 1/63 more than the most in use refuses nothing where blocks may
    /// move (not with [`WhenFull::Fail`](super::WhenFull), not those that are pinned, on the CPU not while an op is at one) and the adapter makes a region as large as that.
    /// Idle regions are traded in as with `Proportional`, which it is where there is no budget.
    Budget,
    /// A share of the memory at once when the device is opened, as TensorFlow does by default: of the
    /// budget (`memory_limit`) where there is one, else of the adapter's memory. In proportion
    /// after that, but idle regions stay. At most nine tenths of what is free then, where that is known. Nobody else can have that memory then; drivers that overcommit set nothing aside
    /// before it is written.
    Preallocate {
        /// Above 0, at most 1.
        fraction: f64,
    },
    /// So many bytes at once when the device is opened, at most nine tenths of what is free. In proportion after that, but idle regions stay.
    PreallocateBytes {
        /// Rounded up to [`QUANTUM`]; in as few regions as the largest buffer allows.
        bytes: u64,
    },
    /// In whole multiples of a fixed step.
    Step {
        /// Bytes of a step, rounded up to [`QUANTUM`].
        bytes: u64,
    },
    /// Each region at least as large as all before it together, as TensorFlow grows with
    /// `allow_growth`: few regions, up to half of them unused. For comparison.
    Doubling {
        /// Bytes of the first region, rounded up to [`QUANTUM`]; TensorFlow begins with 2 MiB.
        first: u64,
    },
    /// For the tests of the ladder: idle regions go back only when there is no other way.
    #[cfg(test)]
    KeepsIdle,
}

/// Regions are made larger than the request while what is reserved stays within what is in use, the
/// request included, and this share of it: the unused ends of regions are the price of growing, and so
/// they cost 1/20 at most. From there on a region is as large as its request.
const AHEAD_SHARE: u64 = 20;
/// A region is at least this share of what is held, even where holes that fit nothing are more than what may
/// be ahead: so the number of regions grows as the logarithm of what is held.
const LEAST_SHARE: u64 = 256;
/// The smallest region that is asked for when nothing forbids it.
const SMALLEST: u64 = 256 << 10;
/// And where more is reserved already than may be ahead: what is free there are holes that fit nothing, and of
/// regions that few blocks share more become idle.
const SMALLEST_AMONG_HOLES: u64 = 64 << 10;
/// And with a budget, where blocks are to be moved together.
const SMALLEST_OF_FEW: u64 = 1 << 20;

/// An idle region is kept whole from requests that need less than 4/5 of it: it exceeds them by more than
/// a quarter of them.
const WHOLE_EXCESS: u64 = 4;

/// Up to this share of a budget regions are small all the same: a program that uses little of a
/// large budget shall not hold much of it.
const FRUGAL_SHARE: u64 = 64;

/// What a growth policy knows. All sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Reserved so far.
    pub(super) held: u64,
    /// In use so far.
    pub(super) live: u64,
    /// The request that found no room: a multiple of the quantum, and not 0.
    pub(super) needed: u64,
    /// The largest region that the adapter makes.
    pub(super) max_region: u64,
    /// What the budget still allows.
    pub(super) headroom: u64,
    /// The budget, if there is one.
    pub(super) budget: Option<u64>,
}

impl Demand {
    /// What may be reserved while regions are larger than requests.
    fn within(&self) -> u64 {
        let live = self.live.saturating_add(self.needed);
        live.saturating_add(live / AHEAD_SHARE)
    }

    /// The smallest region where there is no budget.
    fn smallest(&self) -> u64 {
        match self.held > self.within() {
            true => SMALLEST_AMONG_HOLES,
            false => SMALLEST,
        }
    }

    /// Whole multiples, because sizes come in series (layers): they fill the region to its end.
    fn proportional(&self, smallest: u64) -> u64 {
        let least = smallest.max(self.held / LEAST_SHARE);
        let ahead = self.within().saturating_sub(self.held).max(least);
        let multiples = ahead / self.needed;
        self.needed.saturating_mul(multiples.max(1))
    }
}

impl Growth {
    /// What a device does where nothing else is said, with this budget or with none.
    pub fn within(limit: Option<u64>) -> Growth {
        match limit {
            Some(_) => Growth::Budget,
            None => Growth::Proportional,
        }
    }

    /// The size of the next region, at least `needed` and a multiple of the quantum;
    /// `None` when `needed` fits neither the adapter nor the budget.
    #[inline]
    pub(super) fn region_size(self, demand: Demand) -> Option<u64> {
        let most = round_down(demand.max_region.min(demand.headroom));
        if demand.needed > most {
            return None;
        }
        // Where this need not be the last region, it has no end that is too small for another request as large.
        let most = match self {
            Growth::Step { .. } | Growth::Doubling { .. } => most,
            _ if demand.headroom > demand.max_region => most / demand.needed * demand.needed,
            _ => most,
        };
        let wanted = match self {
            Growth::Proportional | Growth::Preallocate { .. } | Growth::PreallocateBytes { .. } => {
                Some(demand.proportional(demand.smallest()))
            }
            Growth::Budget => match demand.budget {
                None => Some(demand.proportional(demand.smallest())),
                Some(budget) => {
                    let least = demand.proportional(SMALLEST_OF_FEW);
                    let is_frugal = demand.held.saturating_add(least) <= budget / FRUGAL_SHARE;
                    Some(if is_frugal { least } else { most })
                }
            },
            Growth::Step { bytes } => {
                at_least_one(bytes).and_then(|step| demand.needed.checked_next_multiple_of(step))
            }
            Growth::Doubling { first } => at_least_one(first).and_then(|mut wanted| {
                while wanted < demand.needed || wanted <= demand.held {
                    wanted = wanted.checked_mul(2)?;
                }
                Some(wanted)
            }),
            #[cfg(test)]
            Growth::KeepsIdle => Some(demand.needed),
        };
        let wanted = wanted.unwrap_or(most);
        Some(wanted.clamp(demand.needed, most))
    }

    /// Whether a budget of which so many bytes are in use is one region.
    pub(super) fn has_one_region(self, budget: u64, used: u64) -> bool {
        self == Growth::Budget && used > budget / FRUGAL_SHARE
    }

    /// Bytes that are taken before anything is asked for.
    pub(super) fn preallocated(self, budget: Option<u64>) -> u64 {
        let bytes = match self {
            Growth::PreallocateBytes { bytes } => bytes,
            // Without a budget the whole is the device's, which makes it a number of bytes.
            Growth::Preallocate { fraction } => {
                budget.map_or(0, |budget| (budget as f64 * fraction) as u64)
            }
            _ => 0,
        };
        round_up(bytes).unwrap_or(round_down(u64::MAX))
    }

    /// Whether idle regions go back before a new region is made (else only when there is no other way).
    pub(super) fn trades_idle_regions(self) -> bool {
        // No idle region holds the request, and a larger one in its place serves both: it takes
        // lstm_train from 1.34 to 1.07 of its peak in use and llm_decode from 1.15 to 1.06.
        // Who chose the sizes of regions chose to keep them.
        matches!(self, Growth::Proportional | Growth::Budget)
    }

    /// Whether an idle region of `region` bytes, the best there is for what is demanded, goes back (with all
    /// `idle` bytes of idle regions) rather than be broken up.
    ///
    /// A region that was made for one large block is filled by small ones as soon as it is idle, and the next
    /// large block needs another: without it runs of language models that serve take up to 1.17 of their
    /// peak in use instead of 1.09, and there is no other way without moves while best fit is to stay best fit
    /// (`docs/memory.md`).
    #[inline]
    pub(super) fn keeps_whole(self, region: u64, demand: Demand, idle: u64) -> bool {
        let keeps = match self {
            Growth::Proportional => true,
            Growth::Budget => demand.budget.is_none(),
            _ => false,
        };
        let after = Demand {
            held: demand.held.saturating_sub(idle),
            ..demand
        };
        // What it gets instead is no smaller than any region.
        let least = demand.needed.max(after.smallest());
        keeps && region.saturating_sub(least) > least / WHOLE_EXCESS
    }
}

fn at_least_one(bytes: u64) -> Option<u64> {
    round_up(bytes.max(1))
}

/// The next lower multiple of the quantum.
pub(super) fn round_down(bytes: u64) -> u64 {
    bytes - bytes % QUANTUM
}

/// The next higher multiple of the quantum; `None` when that is more than a `u64` holds.
pub(super) fn round_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(QUANTUM)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand = Demand {
        held: 0,
        live: 0,
        needed: QUANTUM,
        max_region: u64::MAX,
        headroom: u64::MAX,
        budget: None,
    };

    #[test]
    fn grows_in_proportion_between_its_bounds() {
        let size = |demand| Growth::Proportional.region_size(demand);
        assert_eq!(size(DEMAND), Some(SMALLEST));
        let full = |held, needed| Demand {
            held,
            live: held,
            needed,
            ..DEMAND
        };
        // A twentieth of what is in use then, and the request.
        assert_eq!(size(full(20 << 30, 16 << 20)), Some((1 << 30) + (16 << 20)));
        assert_eq!(size(full(20 << 30, 600 << 20)), Some(1200 << 20));
        assert_eq!(size(full(20 << 30, 3 << 30)), Some(3 << 30));
        // Whole multiples, no more than that.
        assert_eq!(size(full(0, 768)), Some(SMALLEST / 768 * 768));
        assert_eq!(size(full(0, SMALLEST - 256)), Some(SMALLEST - 256));
        // What is reserved is ahead already.
        let ahead = Demand {
            live: 19 << 30,
            ..full(20 << 30, 16 << 20)
        };
        assert_eq!(size(ahead), Some(80 << 20));
        let few = Demand {
            live: 19 << 30,
            ..full(20 << 30, 256)
        };
        assert_eq!(size(few), Some(80 << 20), "regions stay few");
        let max_region = 1000;
        let narrow = Demand {
            max_region,
            ..full(1 << 30, 256)
        };
        assert_eq!(size(narrow), Some(768));
        let headroom = |headroom| Demand {
            headroom,
            ..full(1 << 30, 256)
        };
        assert_eq!(size(headroom(300)), Some(256));
        assert_eq!(size(headroom(255)), None);
        // The last one that there may be has all of it, others whole multiples.
        for (headroom, expected) in [(1024, 1024), (1280, 768)] {
            let last = Demand {
                needed: 768,
                max_region: 1024,
                headroom,
                budget: Some(headroom),
                ..DEMAND
            };
            assert_eq!(Growth::Budget.region_size(last), Some(expected));
        }
    }

    #[test]
    fn idle_regions_are_kept_whole() {
        let demand = |budget| Demand {
            held: 1 << 20,
            live: 1 << 20,
            needed: 2 * SMALLEST,
            budget,
            ..DEMAND
        };
        let whole = |growth: Growth, budget, region| growth.keeps_whole(region, demand(budget), 0);
        let larger = 2 * SMALLEST / 4 * 5 + 256;
        for growth in [Growth::Proportional, Growth::Budget] {
            assert!(!whole(growth, None, larger - 256));
            assert!(whole(growth, None, larger));
        }
        assert!(whole(Growth::Proportional, Some(1 << 30), larger));
        assert!(!whole(Growth::Budget, Some(1 << 30), larger));
        assert!(!whole(Growth::Step { bytes: 256 }, None, larger));
    }

    #[test]
    fn regions_are_smaller_among_holes() {
        const MIB: u64 = 1 << 20;
        let demand = |held, live| Demand {
            held,
            live,
            ..DEMAND
        };
        let size = |held, live| Growth::Proportional.region_size(demand(held, live));
        let most = MIB + QUANTUM + (MIB + QUANTUM) / 20;
        assert_eq!(size(most, MIB), Some(SMALLEST));
        assert_eq!(size(most + 1, MIB), Some(SMALLEST_AMONG_HOLES));
        // An idle region goes back only for a smaller one.
        for [held, live, smallest] in [
            [2 * MIB, 2 * MIB, SMALLEST],
            [2 * MIB, MIB, SMALLEST_AMONG_HOLES],
        ] {
            let whole = |region| {
                let demand = demand(held + region, live);
                Growth::Proportional.keeps_whole(region, demand, region)
            };
            assert!(!whole(smallest) && !whole(smallest / 4 * 5), "{live}");
            assert!(whole(smallest / 4 * 5 + 256), "{live}");
        }
    }

    #[test]
    fn other_policies_size_as_they_say() {
        let step = Growth::Step { bytes: 1000 };
        let size = |growth: Growth, held, needed| {
            growth.region_size(Demand {
                held,
                live: held,
                needed,
                ..DEMAND
            })
        };
        assert_eq!(size(step, 0, 256), Some(1024));
        assert_eq!(size(step, 5000, 1024), Some(1024));
        assert_eq!(size(step, 0, 1280), Some(2048));
        assert_eq!(size(Growth::Step { bytes: 0 }, 0, 512), Some(512));
        let doubling = Growth::Doubling { first: 1024 };
        let mut held = 0;
        for expected in [1024, 2048, 4096, 8192] {
            assert_eq!(size(doubling, held, 256), Some(expected));
            held += expected;
        }
        assert_eq!(size(doubling, 0, 5120), Some(8192));
        let preallocated = Growth::PreallocateBytes { bytes: 1000 };
        assert_eq!(preallocated.preallocated(None), 1024);
        for (fraction, bytes) in [(0.5, 2048), (0.0, 0), (-1.0, 0), (f64::NAN, 0)] {
            let share = Growth::Preallocate { fraction };
            assert_eq!(share.preallocated(Some(4096)), bytes);
            assert_eq!(share.preallocated(None), 0);
        }
        assert_eq!(size(preallocated, 1024, 256), Some(SMALLEST));
        for growth in [step, doubling] {
            let needed = round_down(u64::MAX);
            assert_eq!(size(growth, u64::MAX, needed), Some(needed));
        }
    }

    #[test]
    fn a_budget_is_one_region_but_for_a_64th() {
        const MIB: u64 = 1 << 20;
        let regions = |budget: u64, needed: u64| {
            let mut held = 0;
            let mut sizes = Vec::new();
            while let Some(size) = Growth::Budget.region_size(Demand {
                held,
                live: held,
                needed,
                max_region: u64::MAX,
                headroom: budget - held,
                budget: Some(budget),
            }) {
                held += size;
                sizes.push(size / MIB);
            }
            assert!(budget - held < needed);
            sizes
        };
        assert_eq!(regions(2 * MIB, QUANTUM), [2]);
        assert_eq!(regions(64 * MIB, QUANTUM), [1, 63]);
        assert_eq!(regions(192 * MIB, QUANTUM), [1, 1, 1, 189]);
        assert_eq!(regions(192 * MIB, 40 * MIB), [192]);
        assert_eq!(Growth::within(None), Growth::Proportional);
        let size = |demand| Growth::Budget.region_size(demand);
        assert_eq!(size(DEMAND), Some(SMALLEST), "no budget");
        let needed = 3 * MIB;
        let held = u64::MAX - 5 * MIB;
        let budget = Some(u64::MAX);
        let demand = Demand {
            held,
            live: held,
            needed,
            max_region: u64::MAX,
            headroom: 5 * MIB,
            budget,
        };
        assert_eq!(size(demand), Some(5 * MIB), "the end of the number range");
    }

    #[test]
    fn holds_at_the_end_of_the_number_range() {
        let needed = round_down(u64::MAX);
        let demand = Demand {
            held: u64::MAX,
            live: u64::MAX,
            needed,
            ..DEMAND
        };
        assert_eq!(Growth::Proportional.region_size(demand), Some(needed));
        assert_eq!(round_up(u64::MAX), None);
        assert_eq!(round_up(needed), Some(needed));
        assert_eq!(round_up(1), Some(QUANTUM));
    }
}
