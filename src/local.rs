//! Variables of a thread.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs `work` with another value in a variable of this thread, which then is what it was before, after a panic too. A
/// thread that is ending may have the variable no more: `work` runs without it.
pub(crate) fn with_local<T, R>(
    variable: &'static LocalKey<Cell<T>>,
    value: T,
    work: impl FnOnce() -> R,
) -> R {
    struct Restore<T: 'static> {
        variable: &'static LocalKey<Cell<T>>,
        old: Option<T>,
    }
    impl<T> Drop for Restore<T> {
        fn drop(&mut self) {
            if let Some(old) = self.old.take() {
                let _ = self.variable.try_with(|variable| variable.set(old));
            }
        }
    }
    let old = variable.try_with(|variable| variable.replace(value)).ok();
    let _restore = Restore { variable, old };
    work()
}
