//! Locks and threads, from one place, so that what checks the code can put its own in.
//!
//! Everywhere but in two kinds of build these are parking_lot's and the standard library's.
//! `--cfg orlop_model` (see `tests/model/`) takes shuttle's, which try many schedules; Miri takes
//! the standard library's locks, since parking_lot turns integers into pointers.

#[cfg(any(orlop_model, miri))]
mod checked;

#[cfg(any(orlop_model, miri))]
pub(crate) use checked::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, wait,
};
#[cfg(not(any(orlop_model, miri)))]
pub(crate) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

#[cfg(orlop_model)]
pub(crate) use checked::thread;
#[cfg(orlop_model)]
pub(crate) use shuttle::sync::{atomic, mpsc};
#[cfg(not(orlop_model))]
pub(crate) use std::{
    sync::{atomic, mpsc},
    thread,
};

/// Lets go of the lock until somebody notifies.
#[cfg(not(any(orlop_model, miri)))]
pub(crate) fn wait<'a, T>(until: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    until.wait(&mut guard);
    guard
}
