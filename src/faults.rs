//! Faults on purpose, for tests: the Nth region, mapping or copy of a device fails. Without the
//! feature `fault-injection` none ever does, and asking costs nothing.

#[cfg(feature = "fault-injection")]
use std::sync::Arc;

#[cfg(feature = "fault-injection")]
use crate::sync::Mutex;

/// A step of a device that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A region of memory is asked for: the adapter (on the CPU the system) has no more. The pool
    /// then asks for less, so that one refusal alone rarely fails an allocation.
    Region,
    /// A staging buffer is mapped, for an upload or a download: the device does not map it.
    Mapping,
    /// A copy is recorded, for an upload, a download or a move: the device refuses it with its batch, all
    /// of which then runs one by one.
    Copy,
}

/// Fails chosen steps of the devices that were opened with it
/// ([`DeviceBuilder::faults`](crate::DeviceBuilder::faults)): with the feature `fault-injection`.
/// Clones are one; it can be armed while the devices run, and counts the steps that pass, so that
/// a test can fail each of them in turn:
///
/// ```
/// use orlop::{DType, Device, Fault, Faults, Tensor};
///
/// # fn main() -> orlop::Result<()> {
/// let faults = Faults::new();
/// let device = Device::builder().select("cpu").faults(&faults).build()?;
/// faults.fail_from(Fault::Region, 1);
/// assert!(Tensor::zeros(&device, [256], DType::F32).is_err());
/// faults.disarm();
/// Tensor::zeros(&device, [256], DType::F32)?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "fault-injection")]
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[cfg(feature = "fault-injection")]
#[derive(Debug, Default)]
struct State {
    passed: [u64; 3],
    injected: u64,
    plan: Option<Plan>,
}

/// Which steps are to fail.
#[cfg(feature = "fault-injection")]
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// `None` for steps of any kind.
    fault: Option<Fault>,
    /// So many pass before it.
    spared: u64,
    /// So many fail then.
    times: u64,
}

#[cfg(feature = "fault-injection")]
impl Faults {
    /// Fails nothing until it is armed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fails the `nth` step of a kind, counted from now: 1 is the next. Replaces what was armed.
    pub fn fail(&self, fault: Fault, nth: u64) {
        self.arm(Some(fault), nth, 1);
    }

    /// Fails the `nth` step of a kind and all of that kind after it.
    pub fn fail_from(&self, fault: Fault, nth: u64) {
        self.arm(Some(fault), nth, u64::MAX);
    }

    /// Fails the `nth` step of any kind, counted from now.
    pub fn fail_step(&self, nth: u64) {
        self.arm(None, nth, 1);
    }

    /// Fails nothing any more.
    pub fn disarm(&self) {
        self.0.lock().plan = None;
    }

    /// Steps of a kind since it was made, those that failed included.
    #[must_use]
    pub fn passed(&self, fault: Fault) -> u64 {
        self.0.lock().passed[fault as usize]
    }

    /// Steps that were made to fail.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.0.lock().injected
    }

    fn arm(&self, fault: Option<Fault>, nth: u64, times: u64) {
        let spared = nth.saturating_sub(1);
        self.0.lock().plan = Some(Plan {
            fault,
            spared,
            times,
        });
    }

    /// Counts a step; true when it is to fail.
    fn strike(&self, fault: Fault) -> bool {
        let mut state = self.0.lock();
        state.passed[fault as usize] += 1;
        let Some(plan) = &mut state.plan else {
            return false;
        };
        if plan.fault.is_some_and(|planned| planned != fault) {
            return false;
        }
        if plan.spared > 0 {
            plan.spared -= 1;
            return false;
        }
        let strikes = plan.times > 0;
        plan.times = plan.times.saturating_sub(1);
        state.injected += u64::from(strikes);
        strikes
    }
}

/// Equality is identity.
#[cfg(feature = "fault-injection")]
impl PartialEq for Faults {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(feature = "fault-injection")]
impl Eq for Faults {}

/// Where a device asks whether a step is to fail.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FaultHook {
    #[cfg(feature = "fault-injection")]
    faults: Option<Faults>,
}

impl FaultHook {
    #[cfg(feature = "fault-injection")]
    pub(crate) fn to(faults: &Faults) -> Self {
        Self {
            faults: Some(faults.clone()),
        }
    }

    /// Whether this step is to fail.
    #[inline]
    pub(crate) fn strikes(&self, fault: Fault) -> bool {
        #[cfg(feature = "fault-injection")]
        if let Some(faults) = &self.faults {
            return faults.strike(fault);
        }
        let _ = fault;
        false
    }
}

/// What a failed step says.
pub(crate) const INJECTED: &str = "a fault was injected";
