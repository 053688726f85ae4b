//! GL shares one context per adapter behind a lock that panics after seconds: on GL every wgpu
//! call, drops included, goes through this lock of ours first.
//!
//! When the process ends while other threads work, Mesa's exit handler takes the context apart under
//! their feet, and the destructors of its compiler do before it. So the thread that ends the process takes
//! the lock first, for good: `exit.rs` knows when. The one `unsafe` here declares C's `atexit`, which the
//! standard library links.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

use crate::sync::{self, Condvar, Mutex, thread};

/// One per process: systems have one EGL or WGL context provider. Taken before stream and memory, after all other
/// locks: docs/architecture.md, "Locks".
pub(crate) struct Serial {
    state: Mutex<State>,
    free: Condvar,
}

struct State {
    busy: bool,
    /// The process ends: nobody gets the lock any more but the thread that ends it.
    closed: bool,
}

#[cfg(not(orlop_model))]
static GL: Serial = Serial::new();
#[cfg(orlop_model)]
shuttle::lazy_static! {
    static ref GL: Serial = Serial::new();
}

thread_local! {
    /// This thread runs the exit handlers. Without a destructor: those have run by then.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Between two looks at a call that another thread is in while the process ends.
pub(super) const PAUSE: Duration = Duration::from_millis(1);
/// So many looks: one that never ends must not keep the process.
pub(super) const LOOKS: usize = 5000;

// SAFETY: as the C standard has it; the callback is a function, so it lives as long as the process.
unsafe extern "C" {
    safe fn atexit(callback: extern "C" fn()) -> std::ffi::c_int;
}

/// Has `callback` run when the process ends, before the handlers that there are. Where there is no room for
/// it, it does not.
pub(super) fn at_exit(callback: extern "C" fn()) {
    _ = atexit(callback);
}

/// Holds the lock until dropped. Unlike a mutex guard it may be dropped on another thread.
pub(crate) struct Hold(&'static Serial);

impl Serial {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                busy: false,
                closed: false,
            }),
            free: Condvar::new(),
        }
    }

    pub(crate) fn gl() -> &'static Self {
        &GL
    }

    /// Keeps every other thread out of GL for good: this one ends the process. Panics nowhere.
    pub(super) fn close(&'static self) {
        ENDS.set(true);
        self.state.lock().closed = true;
        for _ in 0..LOOKS {
            if !self.state.lock().busy {
                break;
            }
            thread::sleep(PAUSE);
        }
    }

    pub(crate) fn hold(&'static self) -> Hold {
        let mut state = self.state.lock();
        while (state.busy || state.closed) && !ENDS.get() {
            state = sync::wait(&self.free, state);
        }
        state.busy = true;
        Hold(self)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.free.notify_one();
    }
}
