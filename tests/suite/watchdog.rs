//! Ends the process with a message when a test hangs, so that nobody waits for a deadlock.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Dropping it calls the watchdog off.
pub struct Watchdog(#[allow(dead_code)] Sender<()>);

/// Aborts the process unless the guard is dropped within `limit`.
pub fn watch(what: &'static str, limit: Duration) -> Watchdog {
    let (sender, called_off) = mpsc::channel::<()>();
    thread::spawn(move || {
        if called_off.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{what}: hangs, {limit:?} are over; aborting");
            std::process::abort();
        }
    });
    Watchdog(sender)
}

/// A minute.
pub fn minute(what: &'static str) -> Watchdog {
    watch(what, Duration::from_secs(60))
}
