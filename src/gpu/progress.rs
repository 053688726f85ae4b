//! How far a device's queue is, as its polls find out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many submissions have run, as the device's polls found out.
#[derive(Default)]
pub(crate) struct Progress(pub(super) AtomicU64);

impl Progress {
    /// Counts the latest submission of the queue, the `number`th, once it has run.
    pub(crate) fn follow(self: &Arc<Self>, queue: &wgpu::Queue, number: u64) {
        let run = Run {
            progress: Arc::clone(self),
            number,
        };
        queue.on_submitted_work_done(move || drop(run));
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Counts a submission when it goes: when its callback runs, or goes uncalled since one of a program's before it
/// panicked. Nobody would tell of it any more.
struct Run {
    progress: Arc<Progress>,
    number: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.progress.0.fetch_max(self.number, Ordering::AcqRel);
    }
}
