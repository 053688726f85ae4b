//! Who was promised how much of one adapter's memory, and who holds how much of it.
//!
//! Budgets that users name are promises: their sum never exceeds the adapter's memory. Devices
//! without one share nine tenths of it less what is promised; each region that they take is
//! checked against that, so that the driver, which loses devices when it runs out, never does.
//! Memory that nobody divides (the host's, a software adapter's, or of unknown size) is only
//! counted.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::order;
use super::pool::Refused;
use super::statistics::{Bytes, MemoryStatistics};

/// Less than this is no budget to open a device with.
const LEAST: u64 = 64 << 20;

/// The account of one adapter. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Vec<Seat>>);

struct Seat {
    entry: Entry,
    /// Bytes that are divided among all seats, where they are.
    divided: Option<u64>,
    /// Most of them that it has without a promise.
    most: u64,
    /// True once the device is lost: its memory is gone though handles on it live.
    lapsed: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// One device's line in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// 1, 2, ...: the lowest that was free when the device was opened.
    pub number: u64,
    /// Most bytes that it may reserve.
    pub budget: Option<u64>,
    /// The budget was asked for, so it is kept free for this device.
    pub promised: bool,
    pub reserved: u64,
}

/// A budget that the adapter's memory does not allow beside those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overcommitted {
    /// Bytes asked for; `None` for whatever is left.
    pub asked: Option<u64>,
    pub total: u64,
    pub left: u64,
    /// What is left is what others than the devices leave.
    pub is_held_outside: bool,
    pub others: Vec<Entry>,
}

impl fmt::Display for Overcommitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.asked {
            Some(asked) => write!(f, "a budget of {} was asked for", Bytes(asked))?,
            None => write!(f, "a device without a memory_limit was asked for")?,
        }
        if self.is_held_outside {
            return write!(
                f,
                ", but of the adapter's {} others than orlop leave it {} and at least {} are needed; what would \
                 help: freeing memory there, or a memory_limit",
                Bytes(self.total),
                Bytes(self.left),
                Bytes(LEAST)
            );
        }
        write!(
            f,
            ", but of the adapter's {} the other devices that are open leave {}",
            Bytes(self.total),
            Bytes(self.left)
        )?;
        for (at, other) in self.others.iter().enumerate() {
            write!(f, "{}#{}", if at == 0 { ": " } else { ", " }, other.number)?;
            match (other.promised, other.budget) {
                (true, Some(budget)) => write!(f, " has a budget of {}", Bytes(budget))?,
                _ => write!(f, " without a memory_limit holds {}", Bytes(other.reserved))?,
            }
        }
        f.write_str("; what would help: smaller budgets, closing a device, or trim() on those without a memory_limit")
    }
}

/// Why the budget of an open device cannot be changed.
#[derive(Clone, Debug)]
pub(crate) enum LimitRefused {
    Overcommitted(Overcommitted),
    /// More is reserved in regions with blocks in them than the budget that it would be.
    Held {
        limit: u64,
        memory: Box<MemoryStatistics>,
        /// What spilling did not do, for a text that goes on; empty where the device does not spill.
        spilling: String,
    },
}

impl From<Overcommitted> for LimitRefused {
    fn from(refused: Overcommitted) -> Self {
        LimitRefused::Overcommitted(refused)
    }
}

/// What of the adapter is spoken for, of the seats that count.
struct Spoken {
    promised: u64,
    /// Reserved by devices that were promised nothing.
    shared: u64,
}

impl Ledger {
    /// Enters a device whose memory nobody divides.
    pub(crate) fn join(self: &Arc<Self>, budget: Option<u64>) -> Claim {
        self.enter(&mut self.seats(), budget, budget.is_some(), None)
    }

    /// Enters a device on an adapter with `total` bytes: with the budget `asked` for, else with
    /// what is left of nine tenths after the promised budgets, and at most `most`, which others leave.
    ///
    /// # Errors
    /// When that is more than the others leave, or too little to work with.
    pub(crate) fn claim(
        self: &Arc<Self>,
        total: u64,
        asked: Option<u64>,
        most: u64,
    ) -> Result<Claim, Overcommitted> {
        let mut seats = self.seats();
        let budget = divided(counted(&seats).collect(), total, asked, most)?;
        let divided = Some((total, most));
        Ok(self.enter(&mut seats, Some(budget), asked.is_some(), divided))
    }

    fn enter(
        self: &Arc<Self>,
        seats: &mut Vec<Seat>,
        budget: Option<u64>,
        promised: bool,
        divided: Option<(u64, u64)>,
    ) -> Claim {
        let taken = |number: &u64| seats.iter().any(|seat| seat.entry.number == *number);
        let number = (1..).find(|number| !taken(number)).unwrap_or(u64::MAX);
        let entry = Entry {
            number,
            budget,
            promised,
            reserved: 0,
        };
        seats.push(Seat {
            entry,
            divided: divided.map(|(total, _)| total),
            most: divided.map_or(u64::MAX, |(_, most)| most),
            lapsed: None,
        });
        Claim {
            ledger: Arc::clone(self),
            number,
        }
    }

    /// The devices that are open and not lost, in the order of their numbers.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = counted(&self.seats()).collect();
        order::sort(&mut entries, |entry| (entry.number, 0));
        entries
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn counted(seats: &[Seat]) -> impl Iterator<Item = Entry> + '_ {
    seats
        .iter()
        .filter(|seat| !seat.lapsed.as_ref().is_some_and(|lapsed| lapsed()))
        .map(|seat| seat.entry)
}

/// The budget of a device beside `others`, as in [`Ledger::claim`].
fn divided(
    others: Vec<Entry>,
    total: u64,
    asked: Option<u64>,
    most: u64,
) -> Result<u64, Overcommitted> {
    let spoken = spoken(others.iter().copied());
    let (budget, left, is_held_outside) = match asked {
        Some(asked) => {
            let left = total.saturating_sub(spoken.promised.saturating_add(spoken.shared));
            (asked, left, false)
        }
        None => {
            let shared = shareable(total).saturating_sub(spoken.promised);
            let left = shared.min(most);
            let is_held_outside = most < shared.saturating_sub(spoken.shared);
            (left.max(LEAST), left, is_held_outside)
        }
    };
    if budget > left {
        return Err(Overcommitted {
            asked,
            total,
            left,
            is_held_outside,
            others,
        });
    }
    Ok(budget)
}

fn spoken(entries: impl Iterator<Item = Entry>) -> Spoken {
    let mut spoken = Spoken {
        promised: 0,
        shared: 0,
    };
    for entry in entries {
        match entry.budget.filter(|_| entry.promised) {
            Some(budget) => spoken.promised = spoken.promised.saturating_add(budget),
            None => spoken.shared = spoken.shared.saturating_add(entry.reserved),
        }
    }
    spoken
}

/// What devices without a promise share of an adapter's memory, before promises.
fn shareable(total: u64) -> u64 {
    total / 10 * 9
}

/// A device's seat in its adapter's ledger, held by whoever takes its regions; the seat is free
/// again when this is dropped.
pub(crate) struct Claim {
    ledger: Arc<Ledger>,
    number: u64,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim(#{}, {:?} bytes)", self.number, self.budget())
    }
}

impl Claim {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Most bytes that the device may reserve.
    pub(crate) fn budget(&self) -> Option<u64> {
        self.entry()?.budget
    }

    /// Whether the budget is the device's own, not what others leave.
    pub(crate) fn is_promised(&self) -> bool {
        self.entry().is_some_and(|entry| entry.promised)
    }

    fn entry(&self) -> Option<Entry> {
        let seats = self.ledger.seats();
        let own = seats.iter().find(|s| s.entry.number == self.number);
        own.map(|seat| seat.entry)
    }

    /// Promises the device another budget, or none any more: then it has what others leave, and no less than it holds.
    ///
    /// # Errors
    /// When the others leave less than is asked for: nothing has changed.
    pub(crate) fn change_budget(&self, asked: Option<u64>) -> Result<Option<u64>, Overcommitted> {
        let mut seats = self.ledger.seats();
        let others = counted(&seats).filter(|entry| entry.number != self.number);
        let others: Vec<Entry> = others.collect();
        let own = seats.iter_mut().find(|s| s.entry.number == self.number);
        let Some(seat) = own else {
            return Ok(asked);
        };
        let budget = match (seat.divided, asked) {
            (Some(total), None) => {
                let promised = spoken(others.into_iter()).promised;
                let share = shareable(total).saturating_sub(promised).min(seat.most);
                // A promise of another that came meanwhile takes nothing away.
                let shared = seat.entry.budget.filter(|_| !seat.entry.promised);
                Some(share.max(seat.entry.reserved).max(shared.unwrap_or(0)))
            }
            (Some(total), asked) => Some(divided(others, total, asked, u64::MAX)?),
            (None, asked) => asked,
        };
        seat.entry.budget = budget;
        seat.entry.promised = asked.is_some();
        Ok(budget)
    }

    /// The budget that the device has from now on, where it was promised none and others were promised more than now.
    pub(crate) fn grown_share(&self) -> Option<u64> {
        let mut seats = self.ledger.seats();
        let promised = spoken(counted(&seats)).promised;
        let own = seats.iter_mut().find(|s| s.entry.number == self.number);
        let seat = own.filter(|seat| !seat.entry.promised)?;
        let share = shareable(seat.divided?).saturating_sub(promised);
        let share = share.min(seat.most);
        let has_grown = seat.entry.budget.is_some_and(|budget| budget < share);
        has_grown.then(|| *seat.entry.budget.insert(share))
    }

    /// From when `lapsed` says so on, the device counts no more. It is asked under the ledger's
    /// lock: it only looks.
    pub(crate) fn lapses_when(&self, lapsed: impl Fn() -> bool + Send + Sync + 'static) {
        self.change(|seat| seat.lapsed = Some(Box::new(lapsed)));
    }

    /// Enters a region that is about to be taken from the adapter.
    ///
    /// # Errors
    /// When the device has no promise, and those and the others without one leave no room.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), Refused> {
        let mut seats = self.ledger.seats();
        let spoken = spoken(counted(&seats));
        let Some(seat) = seats.iter_mut().find(|s| s.entry.number == self.number) else {
            return Ok(());
        };
        if let Some(total) = seat.divided
            && !seat.entry.promised
        {
            let left = shareable(total)
                .saturating_sub(spoken.promised)
                .saturating_sub(spoken.shared);
            if bytes > left {
                return Err(Refused(format!(
                    "of the adapter's {} its devices leave {} to those without a memory_limit",
                    Bytes(total),
                    Bytes(left)
                )));
            }
        }
        seat.entry.reserved += bytes;
        Ok(())
    }

    /// Strikes out a region that went back, or was not to be had.
    pub(crate) fn give(&self, bytes: u64) {
        self.change(|seat| seat.entry.reserved = seat.entry.reserved.saturating_sub(bytes));
    }

    fn change(&self, change: impl FnOnce(&mut Seat)) {
        let mut seats = self.ledger.seats();
        if let Some(seat) = seats.iter_mut().find(|s| s.entry.number == self.number) {
            change(seat);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut seats = self.ledger.seats();
        let at = seats.iter().position(|s| s.entry.number == self.number);
        let left = at.map(|at| seats.remove(at));
        drop(seats);
        // What the seat knew of its device goes where no lock is held.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const GIB: u64 = 1 << 30;
    const TOTAL: u64 = 10 * GIB;

    fn ledger() -> Arc<Ledger> {
        Arc::default()
    }

    fn claim(ledger: &Arc<Ledger>, asked: Option<u64>) -> Result<Claim, Overcommitted> {
        ledger.claim(TOTAL, asked, u64::MAX)
    }

    #[test]
    fn promises_sum_to_the_total_at_most() {
        let ledger = ledger();
        let a = claim(&ledger, Some(6 * GIB)).unwrap();
        let b = claim(&ledger, Some(4 * GIB)).unwrap();
        let refused = claim(&ledger, Some(1)).unwrap_err();
        assert_eq!(
            (refused.total, refused.left, refused.asked),
            (TOTAL, 0, Some(1))
        );
        assert_eq!(refused.others, ledger.entries());
        let text = refused.to_string();
        for part in [
            "budget of 1 B",
            "10.0 GiB",
            "#1 has a budget of 6.0 GiB",
            "#2 has a budget of 4.0 GiB",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!((a.number(), b.number()), (1, 2));
        drop(a);
        assert_eq!(ledger.entries().len(), 1);
        let again = claim(&ledger, Some(6 * GIB)).unwrap();
        assert_eq!(again.number(), 1, "the lowest that is free");
        assert!(claim(&ledger, Some(u64::MAX)).is_err(), "sums do not wrap");
    }

    #[test]
    fn the_others_share_what_is_left_of_nine_tenths() {
        let ledger = ledger();
        let a = claim(&ledger, None).unwrap();
        assert_eq!(a.budget(), Some(9 * GIB));
        let promised = claim(&ledger, Some(5 * GIB)).unwrap();
        let b = claim(&ledger, None).unwrap();
        assert_eq!(b.budget(), Some(4 * GIB));
        assert_eq!(ledger.claim(TOTAL, None, GIB).unwrap().budget(), Some(GIB));
        // Whoever comes first.
        a.take(3 * GIB).unwrap();
        assert!(b.take(2 * GIB).is_err());
        b.take(GIB).unwrap();
        let Err(Refused(reason)) = a.take(1) else {
            panic!("nothing is left");
        };
        assert!(
            reason.contains("10.0 GiB") && reason.contains("leave 0 B"),
            "{reason}"
        );
        // What was promised is there, whatever the others hold.
        promised.take(5 * GIB).unwrap();
        // 4 of 10 GiB are held and cannot be promised again, 5 are promised.
        assert_eq!(claim(&ledger, Some(2 * GIB)).unwrap_err().left, GIB);
        b.give(GIB);
        a.take(GIB).unwrap();
        let reserved: Vec<u64> = ledger
            .entries()
            .iter()
            .map(|entry| entry.reserved)
            .collect();
        assert_eq!(reserved, [4 * GIB, 5 * GIB, 0]);
        drop(promised);
        a.take(5 * GIB).unwrap();
    }

    #[test]
    fn budgets_change() {
        let ledger = ledger();
        let (a, b) = (claim(&ledger, None).unwrap(), claim(&ledger, None).unwrap());
        a.take(3 * GIB).unwrap();
        b.take(2 * GIB).unwrap();
        // Beside what the other holds, and no more than that; its own bytes do not stand in its way.
        let before = ledger.entries();
        let refused = a.change_budget(Some(9 * GIB)).unwrap_err();
        assert_eq!((refused.asked, refused.left), (Some(9 * GIB), 8 * GIB));
        assert_eq!(refused.others, before[1..]);
        assert_eq!(ledger.entries(), before, "a refusal changes nothing");
        assert_eq!(a.change_budget(Some(8 * GIB)).unwrap(), a.budget());
        assert_eq!((a.budget(), b.budget()), (Some(8 * GIB), Some(9 * GIB)));
        // A promise is kept free from then on, and what a lower one leaves is the others'.
        assert!(ledger.entries()[0].promised && b.take(1).is_err());
        a.change_budget(Some(4 * GIB)).unwrap();
        b.take(3 * GIB).unwrap();
        assert_eq!(a.change_budget(Some(u64::MAX)).unwrap_err().left, 5 * GIB);
        // Without a promise it has what others leave, and keeps what it has, whatever was promised since.
        a.take(GIB).unwrap();
        let _other = claim(&ledger, Some(GIB)).unwrap();
        assert_eq!(a.change_budget(None).unwrap(), Some(8 * GIB));
        assert!(!a.is_promised() && b.take(1).is_err());
        b.give(3 * GIB);
        let late = claim(&ledger, Some(3 * GIB)).unwrap();
        assert_eq!(a.change_budget(None).unwrap(), Some(8 * GIB));
        a.change_budget(Some(4 * GIB)).unwrap();
        assert_eq!(a.change_budget(None).unwrap(), Some(5 * GIB));
        drop(late);
        assert_eq!(a.grown_share(), Some(8 * GIB));
        // Not less than its regions have, though others were promised more than that leaves.
        let ledger = self::ledger();
        let full = claim(&ledger, Some(6 * GIB)).unwrap();
        full.take(6 * GIB).unwrap();
        let _rest = claim(&ledger, Some(4 * GIB));
        assert_eq!(full.change_budget(None).unwrap(), Some(6 * GIB));
        // Where nothing is divided a budget is a bound.
        let bound = self::ledger().join(None);
        bound.change_budget(Some(u64::MAX)).unwrap();
        assert_eq!(bound.budget(), Some(u64::MAX));
        assert_eq!(bound.change_budget(None).unwrap(), None);
    }

    #[test]
    fn shares_grow_when_promises_end() {
        let ledger = ledger();
        let promised = claim(&ledger, Some(6 * GIB)).unwrap();
        let (shared, most) = (claim(&ledger, None).unwrap(), 5 * GIB);
        let lent = ledger.claim(TOTAL, None, most).unwrap();
        assert_eq!(shared.budget(), Some(3 * GIB));
        assert_eq!((shared.grown_share(), promised.grown_share()), (None, None));
        promised.change_budget(Some(5 * GIB)).unwrap();
        assert_eq!(shared.grown_share(), Some(4 * GIB));
        let (grown, budget) = (shared.grown_share(), shared.budget());
        assert_eq!((grown, budget), (None, Some(4 * GIB)));
        drop(promised);
        assert_eq!(shared.grown_share(), Some(9 * GIB));
        assert_eq!(lent.grown_share(), Some(most), "what others left");
        // A promise that comes later takes nothing away but what regions may be made of.
        let _later = claim(&ledger, Some(8 * GIB)).unwrap();
        let (grown, budget) = (shared.grown_share(), shared.budget());
        assert_eq!((grown, budget), (None, Some(9 * GIB)));
        assert!(shared.take(2 * GIB).is_err());
        assert_eq!(self::ledger().join(None).grown_share(), None);
    }

    #[test]
    fn too_little_is_an_error() {
        let ledger = ledger();
        let _most = claim(&ledger, Some(9 * GIB - LEAST)).unwrap();
        assert_eq!(claim(&ledger, None).unwrap().budget(), Some(LEAST));
        let _little = claim(&ledger, Some(1)).unwrap();
        let refused = claim(&ledger, None).unwrap_err();
        assert_eq!((refused.asked, refused.left), (None, LEAST - 1));
        assert!(refused.to_string().contains("without a memory_limit"));
        // Nor is what others than the devices leave.
        let ledger = self::ledger();
        let least = ledger.claim(TOTAL, None, LEAST).unwrap();
        assert_eq!(least.budget(), Some(LEAST));
        let refused = ledger.claim(TOTAL, None, 40 << 20).unwrap_err();
        assert_eq!((refused.asked, refused.left), (None, 40 << 20));
        let text = refused.to_string();
        assert!(text.contains("others than orlop leave it 40.0"), "{text}");
        // What devices of orlop hold is with no others.
        let ledger = self::ledger();
        let holder = claim(&ledger, None).unwrap();
        holder.take(9 * GIB - (32 << 20)).unwrap();
        let refused = ledger.claim(TOTAL, None, 40 << 20).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("#1 without a memory_limit"), "{text}");
    }

    #[test]
    fn a_lost_device_counts_no_more() {
        let ledger = ledger();
        let lost = Arc::new(AtomicBool::new(false));
        let a = claim(&ledger, Some(TOTAL)).unwrap();
        a.take(GIB).unwrap();
        let seen = Arc::clone(&lost);
        a.lapses_when(move || seen.load(Ordering::Relaxed));
        assert!(claim(&ledger, None).is_err());
        lost.store(true, Ordering::Relaxed);
        assert_eq!(ledger.entries(), []);
        let b = claim(&ledger, Some(TOTAL)).unwrap();
        assert_eq!(b.number(), 2, "a's handles live, and so does its number");
        a.give(GIB);
        drop(a);
        assert_eq!(ledger.entries().len(), 1);
    }

    #[test]
    fn undivided_memory_is_only_counted() {
        let ledger = ledger();
        let (a, b) = (ledger.join(Some(u64::MAX)), ledger.join(None));
        a.take(7).unwrap();
        b.take(u64::MAX).unwrap();
        assert_eq!((a.budget(), b.budget()), (Some(u64::MAX), None));
        assert_eq!(ledger.entries()[1].reserved, u64::MAX);
    }

    /// Random claims from many threads: the sum of promises and shares never exceeds the total.
    #[test]
    fn the_sum_holds_at_any_moment() {
        let ledger = ledger();
        let rounds = if cfg!(miri) { 30 } else { 300 };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let ledger = &ledger;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let asked = (round % 3 != 0).then_some((thread + 1) * GIB);
                        if let Ok(claim) = claim(ledger, asked) {
                            let _ = claim.take(GIB);
                            let (mut spoken, mut reserved) = (0, 0);
                            for entry in ledger.entries() {
                                reserved += entry.reserved;
                                spoken += match entry.promised {
                                    true => entry.budget.unwrap_or(0),
                                    false => entry.reserved,
                                };
                            }
                            assert!(spoken <= TOTAL && reserved <= spoken);
                        }
                    }
                });
            }
        });
        assert_eq!(ledger.entries(), []);
    }
}
