//! GL shares one context per adapter behind a lock that panics after seconds: on GL every wgpu
//! call, drops included, goes through this lock of ours first.

use crate::sync::{self, Condvar, Mutex};

/// One per process: systems have one EGL or WGL context provider. Outermost of all locks.
pub(crate) struct Serial {
    busy: Mutex<bool>,
    free: Condvar,
}

#[cfg(not(orlop_model))]
static GL: Serial = Serial::new();
#[cfg(orlop_model)]
shuttle::lazy_static! {
    static ref GL: Serial = Serial::new();
}

/// Holds the lock until dropped. Unlike a mutex guard it may be dropped on another thread.
pub(crate) struct Hold(&'static Serial);

impl Serial {
    const fn new() -> Self {
        Self {
            busy: Mutex::new(false),
            free: Condvar::new(),
        }
    }

    pub(crate) fn gl() -> &'static Self {
        &GL
    }

    pub(crate) fn hold(&'static self) -> Hold {
        let mut busy = self.busy.lock();
        while *busy {
            busy = sync::wait(&self.free, busy);
        }
        *busy = true;
        Hold(self)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.0.busy.lock() = false;
        self.0.free.notify_one();
    }
}
