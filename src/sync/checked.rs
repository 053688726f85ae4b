//! parking_lot's interface, as far as it is used, over locks that poison.

use std::sync::PoisonError;

#[cfg(orlop_model)]
use shuttle::sync as locks;
#[cfg(not(orlop_model))]
use std::sync as locks;

pub(crate) use locks::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(locks::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(locks::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

pub(crate) fn wait<'a, T>(until: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    until.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub(crate) struct RwLock<T>(locks::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(locks::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }

    /// There is no time here: for as long as it takes.
    pub(crate) fn try_read_for(&self, _: std::time::Duration) -> Option<RwLockReadGuard<'_, T>> {
        Some(self.read())
    }

    /// As above.
    pub(crate) fn try_write_for(&self, _: std::time::Duration) -> Option<RwLockWriteGuard<'_, T>> {
        Some(self.write())
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(orlop_model)]
pub(crate) mod thread {
    pub(crate) use shuttle::thread::*;

    /// Shuttle has no time; who sleeps lets the others go on.
    pub(crate) fn sleep(_: std::time::Duration) {
        yield_now();
    }
}
