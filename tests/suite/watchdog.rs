//! Ends the process with a message when a test hangs, so that nobody waits for a deadlock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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

/// One at a time of the tests that take gigabytes or look at the clock.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Steps of one thread, for a watchdog that bounds each step and not the whole.
pub struct Pulse(Arc<AtomicU64>);

/// The thread waits for others, or has ended: nothing is expected of it.
const RESTING: u64 = 1 << 63;

impl Pulse {
    /// A step is done.
    pub fn beat(&self) {
        let next = (self.count() + 1) & !RESTING;
        self.0.store(next, Ordering::Release);
    }

    /// Steps so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire) & !RESTING
    }

    /// Until the next beat only the others are watched.
    pub fn wait(&self) {
        self.0.fetch_or(RESTING, Ordering::AcqRel);
    }

    /// No more steps.
    pub fn end(&self) {
        self.wait();
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.end();
    }
}

/// One pulse a thread. Aborts the process when a thread takes longer than `limit` for a step.
pub fn pulses(what: &str, threads: usize, limit: Duration) -> Vec<Pulse> {
    let counts: Vec<_> = (0..threads).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let pulses = counts
        .iter()
        .map(|count| Pulse(Arc::clone(count)))
        .collect();
    let what = what.to_owned();
    thread::spawn(move || {
        let mut seen: Vec<(u64, Instant)> = vec![(0, Instant::now()); threads];
        // All pulses dropped: the test is over.
        while counts.iter().any(|count| Arc::strong_count(count) > 1) {
            thread::sleep(Duration::from_millis(200));
            for (index, (count, (last, since))) in counts.iter().zip(&mut seen).enumerate() {
                let now = count.load(Ordering::Acquire);
                if now != *last || now & RESTING != 0 {
                    (*last, *since) = (now, Instant::now());
                } else if since.elapsed() > limit {
                    eprintln!(
                        "{what}: thread {index} hangs in step {now}, {limit:?} are over; aborting"
                    );
                    std::process::abort();
                }
            }
        }
    });
    pulses
}
