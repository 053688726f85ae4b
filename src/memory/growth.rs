//! How large the next region is: a pure function of what is held and what is needed.

use super::QUANTUM;

/// How the pool sizes a new region. Whatever the policy, a region is at least as large as the request,
/// within the budget and the largest buffer, and when it is refused a smaller one is tried, down to
/// the request itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Growth {
    /// In proportion to what is held already, in whole multiples of the request. Idle regions, all of
    /// them too small for the request, are traded in: they go back before the new one is made.
    #[default]
    Proportional,
    /// What a device with a `memory_limit` does where nothing else is said: few, large regions, since
    /// blocks in many small ones cannot be moved together when the budget is nearly used up. In
    /// proportion up to a 32nd of the budget; from there on each region is twice as large as all
    /// before it together, and takes the whole rest where less than another would be left.
    /// Idle regions are traded in as with `Proportional`, which it is where there is no budget.
    Budget,
    /// A share of the memory at once when the device is opened, as TensorFlow does by default: of the
    /// budget (`memory_limit`) where there is one, else of the adapter's memory. In proportion
    /// after that. Nobody else can have that memory then; drivers that overcommit set nothing aside
    /// before it is written.
    Preallocate {
        /// Above 0, at most 1.
        fraction: f64,
    },
    /// So many bytes at once when the device is opened. In proportion after that.
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

/// A new region is at least this share of what is held. A region's unused end is the price of growing:
/// a larger share means fewer regions (their number grows as `24 * ln(held)`) and a longer end.
/// On four recorded traces with sizes scaled by 0.6 to 6, the worst of reserved over in use (peaks) is
/// 1.11 with 1/24, 1.16 with 1/16 and 1.15 with 1/8.
const HELD_SHARE: u64 = 24;
/// The smallest region that is asked for when nothing forbids it.
const SMALLEST: u64 = 1 << 20;

/// Up to this share of a budget regions are small all the same: a program that uses little of a
/// large budget shall not hold much of it.
const FRUGAL_SHARE: u64 = 32;

/// What a growth policy knows. All sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Reserved so far.
    pub(super) held: u64,
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
    /// Whole multiples, because sizes come in series (layers): they fill the region to its end.
    fn proportional(&self) -> Option<u64> {
        (self.held / HELD_SHARE)
            .max(SMALLEST)
            .checked_next_multiple_of(self.needed)
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
    pub(super) fn region_size(self, demand: Demand) -> Option<u64> {
        let most = round_down(demand.max_region.min(demand.headroom));
        if demand.needed > most {
            return None;
        }
        let wanted = match self {
            Growth::Proportional | Growth::Preallocate { .. } | Growth::PreallocateBytes { .. } => {
                demand.proportional()
            }
            Growth::Budget => match (demand.budget, demand.proportional()) {
                (Some(budget), Some(least))
                    if demand.held.saturating_add(least) > budget / FRUGAL_SHARE =>
                {
                    let wanted = least.max(demand.held.saturating_mul(2));
                    let rest = most.saturating_sub(wanted);
                    round_up(if rest <= wanted { most } else { wanted })
                }
                (_, proportional) => proportional,
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

    /// Bytes that are taken before anything is asked for.
    pub(super) fn preallocated(self) -> u64 {
        match self {
            Growth::PreallocateBytes { bytes } => round_up(bytes).unwrap_or(round_down(u64::MAX)),
            // A share is made a number of bytes by who knows the whole.
            _ => 0,
        }
    }

    /// Whether idle regions go back before a new region is made (else only when there is no other way).
    pub(super) fn trades_idle_regions(self) -> bool {
        // No idle region holds the request, and a larger one in its place serves both: it takes
        // lstm_train from 1.34 to 1.07 of its peak in use and llm_decode from 1.15 to 1.06.
        // Who chose the sizes of regions chose to keep them.
        matches!(self, Growth::Proportional | Growth::Budget)
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
        needed: QUANTUM,
        max_region: u64::MAX,
        headroom: u64::MAX,
        budget: None,
    };

    #[test]
    fn grows_in_proportion_between_its_bounds() {
        let size = |demand| Growth::Proportional.region_size(demand);
        assert_eq!(size(DEMAND), Some(SMALLEST));
        let held = 24 << 30;
        assert_eq!(size(Demand { held, ..DEMAND }), Some(1 << 30));
        let needed = 768;
        let multiple = (1u64 << 30).next_multiple_of(needed);
        assert_eq!(
            size(Demand {
                held,
                needed,
                ..DEMAND
            }),
            Some(multiple)
        );
        let needed = 1 << 31;
        assert_eq!(
            size(Demand {
                held,
                needed,
                ..DEMAND
            }),
            Some(needed)
        );
        let max_region = 1000;
        assert_eq!(
            size(Demand {
                held,
                max_region,
                ..DEMAND
            }),
            Some(768)
        );
        let headroom = 300;
        assert_eq!(
            size(Demand {
                held,
                headroom,
                ..DEMAND
            }),
            Some(256)
        );
        let headroom = 255;
        assert_eq!(
            size(Demand {
                held,
                headroom,
                ..DEMAND
            }),
            None
        );
    }

    #[test]
    fn other_policies_size_as_they_say() {
        let step = Growth::Step { bytes: 1000 };
        let size = |growth: Growth, held, needed| {
            growth.region_size(Demand {
                held,
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
        assert_eq!(preallocated.preallocated(), 1024);
        assert_eq!(size(preallocated, 1024, 256), Some(SMALLEST));
        for growth in [step, doubling] {
            let needed = round_down(u64::MAX);
            assert_eq!(size(growth, u64::MAX, needed), Some(needed));
        }
    }

    #[test]
    fn a_budget_makes_few_large_regions() {
        const MIB: u64 = 1 << 20;
        let regions = |budget: u64, needed: u64| {
            let mut held = 0;
            let mut sizes = Vec::new();
            while let Some(size) = Growth::Budget.region_size(Demand {
                held,
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
        assert_eq!(regions(8 * MIB, QUANTUM), [1, 2, 5]);
        assert_eq!(regions(96 * MIB, QUANTUM), [1, 1, 1, 6, 18, 69]);
        assert_eq!(regions(96 * MIB, 40 * MIB), [40, 56]);
        assert_eq!(Growth::within(None), Growth::Proportional);
        let size = |demand| Growth::Budget.region_size(demand);
        assert_eq!(size(DEMAND), Some(SMALLEST), "no budget");
        let needed = 3 * MIB;
        let held = u64::MAX - 5 * MIB;
        let budget = Some(u64::MAX);
        let demand = Demand {
            held,
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
            needed,
            ..DEMAND
        };
        assert_eq!(Growth::Proportional.region_size(demand), Some(needed));
        assert_eq!(round_up(u64::MAX), None);
        assert_eq!(round_up(needed), Some(needed));
        assert_eq!(round_up(1), Some(QUANTUM));
    }
}
