//! GL shares one context per adapter behind a lock that panics after seconds: on GL every wgpu
//! call, drops included, goes through this lock of ours first.
//!
//! When the process ends while other threads work, Mesa's exit handler takes the context apart under
//! their feet. So a handler of ours takes the lock before it, for good. That is the one `unsafe`
//! here: declaring C's `atexit`, which the standard library links.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Once;
use std::time::Duration;

use crate::sync::{self, Condvar, Mutex, thread};

/// One per process: systems have one EGL or WGL context provider. Outermost of all locks.
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

/// Keeps every other thread out of GL. Panics nowhere.
extern "C" fn close() {
    ENDS.set(true);
    let serial = Serial::gl();
    serial.state.lock().closed = true;
    for _ in 0..LOOKS {
        if !serial.state.lock().busy {
            break;
        }
        thread::sleep(PAUSE);
    }
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

    /// Keeps threads out of GL when the process ends. To be called once GL is in use: handlers run
    /// in reverse order, and so this one before the driver's.
    pub(crate) fn close_at_exit() {
        static ASKED: Once = Once::new();
        if cfg!(not(orlop_model)) {
            // Where there is no room for a handler it is as it was without.
            ASKED.call_once(|| _ = atexit(close));
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
