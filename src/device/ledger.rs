//! The memory of one adapter or of the host, divided among the virtual devices on it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Backend, Device, DeviceInfo, find};
use crate::error::{Error, OutOfMemory, Result};
use crate::gpu::close_ended;
use crate::memory::{Bytes, Claim, Ledger, LimitRefused, Overcommitted};

/// What the devices that are open on one adapter were promised and hold, at one moment; from
/// [`Device::adapter_ledger`]. All sizes are bytes. `Display` gives a table for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterLedger {
    /// The adapter's name and backend, or the CPU's.
    pub adapter: String,
    /// Memory of the adapter, where it is known.
    pub memory_total: Option<u64>,
    /// What of it is free now, where it is known: other programs count too.
    pub memory_free: Option<u64>,
    /// The devices that are open and not lost, in the order of their numbers.
    pub devices: Vec<LedgerEntry>,
    /// Sum of the devices' budgets that were asked for with
    /// [`memory_limit`](crate::DeviceBuilder::memory_limit) or [`Device::set_memory_limit`].
    pub promised: u64,
    /// Sum of what all the devices have reserved.
    pub reserved: u64,
}

/// One virtual device in an [`AdapterLedger`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerEntry {
    /// The number behind `#` in the device's name; 1, which is not shown there, for the first.
    pub number: u64,
    /// Most bytes that it may reserve; `None` for no limit. Without a promise it grows when it is needed and others have been
    /// promised less since.
    pub budget: Option<u64>,
    /// The budget was asked for, so it is kept free for this device where memory is divided
    /// ([`memory_limit`](crate::DeviceBuilder::memory_limit)); else the device shares what is left with the others of its kind.
    pub promised: bool,
    /// Bytes that it has reserved for tensors.
    pub reserved: u64,
    /// It is the device that was asked.
    pub is_self: bool,
}

impl fmt::Display for AdapterLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |count| Bytes(count).to_string();
        let known = |count: Option<u64>| count.map_or("unknown".to_owned(), bytes);
        writeln!(
            f,
            "memory of {}: {} in all, {} free",
            self.adapter,
            known(self.memory_total),
            known(self.memory_free)
        )?;
        for entry in &self.devices {
            writeln!(
                f,
                "  #{:<4} budget {:>12}{} reserved {:>12}{}",
                entry.number,
                entry.budget.map_or("none".to_owned(), bytes),
                if entry.promised {
                    ", promised,"
                } else {
                    ",          "
                },
                bytes(entry.reserved),
                if entry.is_self { "  (this)" } else { "" }
            )?;
        }
        writeln!(
            f,
            "  sum   promised {:>10}            reserved {:>12}",
            bytes(self.promised),
            bytes(self.reserved)
        )
    }
}

/// The ledger of an adapter, by what names it: it lives as long as the process.
fn ledger(physical: &str) -> Arc<Ledger> {
    // The standard library's: it outlives every schedule of a model.
    static ALL: Mutex<BTreeMap<String, Arc<Ledger>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    match all.get(physical) {
        Some(ledger) => Arc::clone(ledger),
        None => Arc::clone(all.entry(physical.to_owned()).or_default()),
    }
}

/// Where a device stands in its adapter's ledger.
pub(super) struct Standing {
    ledger: Arc<Ledger>,
    number: u64,
}

impl Standing {
    /// The device's name: virtual devices beside the first have a number.
    pub(super) fn name(&self, info: &DeviceInfo) -> String {
        match self.number {
            1 => info.to_string(),
            number => format!(
                "{}#{number} ({}, {})",
                info.selector, info.name, info.backend
            ),
        }
    }
}

/// Enters a device of the host, whose memory the system divides.
pub(super) fn join_host(budget: Option<u64>) -> (Claim, Standing) {
    enter(ledger("cpu"), |ledger| ledger.join(budget))
}

/// Enters a device on an adapter that `physical` names: with the budget `asked` for, or with one
/// of at most `most`. Only the memory of hardware GPUs that tell theirs is divided.
///
/// # Errors
/// `OutOfMemory`, listing the other devices, when the budget is more than they leave.
pub(super) fn join_adapter(
    physical: &str,
    info: &DeviceInfo,
    asked: Option<u64>,
    most: Option<u64>,
) -> Result<(Claim, Standing)> {
    let ledger = ledger(physical);
    let Some(total) = info.memory_total.filter(|_| info.kind().is_gpu()) else {
        return Ok(enter(ledger, |ledger| ledger.join(asked)));
    };
    let claim = ledger
        .claim(total, asked, most.unwrap_or(u64::MAX))
        .map_err(|refused| overcommitted(None, info.to_string(), &refused))?;
    Ok(enter(ledger, |_| claim))
}

fn enter(ledger: Arc<Ledger>, claim: impl FnOnce(&Arc<Ledger>) -> Claim) -> (Claim, Standing) {
    let claim = claim(&ledger);
    let number = claim.number();
    (claim, Standing { ledger, number })
}

fn overcommitted(op: Option<&'static str>, device: String, refused: &Overcommitted) -> Error {
    Error::OutOfMemory(Box::new(OutOfMemory {
        op,
        device,
        asked: refused.asked.unwrap_or(0),
        limit: Some(refused.total),
        allocated: 0,
        reserved: refused.others.iter().map(|other| other.reserved).sum(),
        largest_free: refused.left,
        diagnosis: refused.to_string(),
    }))
}

impl Device {
    /// Changes the budget of the open device to so many bytes, as [`DeviceBuilder::memory_limit`](crate::DeviceBuilder::memory_limit)
    /// sets it when it is opened: where memory is divided it is a promise from now on. `None` takes it away: there the device shares
    /// what others leave, as one that is opened without a budget, and keeps what it has.
    ///
    /// Before a budget is lower, idle regions beyond it go back. Then tensors move into the holes of other regions, or into smaller
    /// ones (unless the device has [`WhenFull::Fail`](crate::memory::WhenFull::Fail)): where the old budget leaves no room for such a
    /// one beside theirs, one region after the other, and for that moment as much more is reserved as the new one has. Then, with
    /// [`WhenFull::SpillToHost`](crate::memory::WhenFull::SpillToHost), tensors go to the host, those that were used least recently
    /// first. What work in flight uses of regions that went is the driver's until that is done.
    ///
    /// How regions grow stays as it was when the device was opened: [`Growth::Budget`](crate::memory::Growth::Budget) has a lower
    /// budget in one region again, where the adapter has room for that beside the old one; what a higher one adds is another
    /// region; without a budget it grows in proportion. On [`Device::cpu`] it is everybody's budget, and that of ops which other
    /// devices cannot do.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when other devices on the adapter leave less, listing them, or when regions with tensors in them have
    /// more, which could not be moved together or spilled (some may be on the host then): the budget is what it was. [`Error::TimedOut`], where it spills;
    /// [`Error::DeviceLost`].
    pub fn set_memory_limit(&self, bytes: impl Into<Option<u64>>) -> Result<()> {
        const OP: &str = "set_memory_limit";
        let bytes = bytes.into();
        let changed = match &self.0.backend {
            Backend::Cpu(pool) => pool.set_limit(bytes),
            Backend::Gpu(gpu) => gpu.set_limit(bytes)?,
        };
        changed.map_err(|refused| match refused {
            LimitRefused::Overcommitted(refused) => {
                overcommitted(Some(OP), self.to_string(), &refused)
            }
            LimitRefused::Held {
                limit,
                memory,
                spilling,
            } => Error::OutOfMemory(Box::new(OutOfMemory {
                op: Some(OP),
                device: self.to_string(),
                asked: limit,
                limit: memory.limit,
                allocated: memory.allocated,
                reserved: memory.reserved,
                largest_free: memory.largest_free,
                diagnosis: format!(
                    "a budget of {} was asked for, but regions with tensors in them have {} (regions: {}), of which {} are in use; \
                     what would help: freeing tensors, moving them together (`WhenFull::Relocate`, the default) or spilling them (`WhenFull::SpillToHost`) where that was not tried, \
                     or a budget of as much{spilling}",
                    Bytes(limit),
                    Bytes(memory.reserved),
                    memory.regions,
                    Bytes(memory.allocated),
                ),
            })),
        })
    }

    /// The devices of this process that are open on this device's adapter (or on the host), with
    /// their budgets, what each has reserved, and the sums: exact, at one moment. Devices leave it
    /// when they close, and when they are lost.
    pub fn adapter_ledger(&self) -> AdapterLedger {
        close_ended();
        let standing = &self.0.standing;
        let devices: Vec<LedgerEntry> = standing
            .ledger
            .entries()
            .into_iter()
            .map(|entry| LedgerEntry {
                number: entry.number,
                budget: entry.budget,
                promised: entry.promised,
                reserved: entry.reserved,
                is_self: entry.number == standing.number,
            })
            .collect();
        let info = self.info();
        let memory_free = match &self.0.backend {
            Backend::Cpu(_) => find::host_memory().1,
            Backend::Gpu(gpu) => gpu.adapter_memory().free,
        };
        AdapterLedger {
            adapter: format!("{} ({})", info.name, info.backend),
            memory_total: info.memory_total,
            memory_free,
            promised: devices
                .iter()
                .filter(|entry| entry.promised)
                .filter_map(|entry| entry.budget)
                .fold(0, u64::saturating_add),
            reserved: devices.iter().map(|entry| entry.reserved).sum(),
            devices,
        }
    }
}
