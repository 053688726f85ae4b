//! When waits give up. In tests they take the time that is said, whatever the device and the machine do.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Between two looks where a wait cannot block: others must get at what a wait would keep.
pub(super) const PAUSE: Duration = Duration::from_micros(100);

/// When a wait gives up.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    started: Instant,
    limit: Option<Duration>,
}

impl Deadline {
    pub(super) fn after(limit: Option<Duration>) -> Self {
        Self {
            started: now(),
            limit,
        }
    }

    /// The wait never gives up.
    pub(super) fn is_endless(&self) -> bool {
        self.limit.is_none()
    }

    /// # Errors
    /// `TimedOut` once it is over.
    pub(super) fn check(&self, device: &str, what: &'static str) -> Result<()> {
        // No wait is shorter than the time between two looks, or what was just submitted is never seen done.
        let is_over = |limit: &Duration| now().duration_since(self.started) >= PAUSE.max(*limit);
        match self.limit.filter(is_over) {
            Some(limit) => Err(Error::timed_out(device, what, limit)),
            None => Ok(()),
        }
    }
}

#[cfg(not(test))]
fn now() -> Instant {
    Instant::now()
}

/// What a wait looks at until it is true; in tests the first looks may see nothing yet, and take the time that is said.
#[cfg(not(test))]
pub(super) fn looks(done: impl Fn() -> bool) -> impl Fn() -> bool {
    done
}

#[cfg(test)]
use tests::now;
#[cfg(test)]
pub(super) use tests::{looks, with_waits};

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use crate::local::with_local;

    thread_local! {
        /// Time that has passed on this thread beside the system's.
        static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        /// What passes at each of a wait's first looks.
        static EACH: Cell<Option<Duration>> = const { Cell::new(None) };
    }

    /// Looks that see nothing yet: one before a wait's deadline is checked and one after.
    const LATE: u32 = 2;

    /// Runs `work` with each wait of this thread for so long, which takes no time.
    pub(in crate::gpu) fn with_waits<R>(of: Duration, work: impl FnOnce() -> R) -> R {
        with_local(&EACH, Some(of / LATE), work)
    }

    pub(super) fn now() -> Instant {
        Instant::now() + PASSED.get()
    }

    pub(in crate::gpu) fn looks(done: impl Fn() -> bool) -> impl Fn() -> bool {
        let late = Cell::new(LATE);
        move || match EACH.get() {
            Some(time) if late.get() > 0 => {
                late.set(late.get() - 1);
                PASSED.set(PASSED.get() + time);
                false
            }
            _ => done(),
        }
    }
}
