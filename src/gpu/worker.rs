//! One lazily started thread a device: it waits for the device so that futures do not have to.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sync::Mutex;
use crate::sync::mpsc::{self, Sender};
use crate::sync::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Worker(Mutex<Option<(Sender<Job>, JoinHandle<()>)>>);

impl Worker {
    /// Runs `job` on the thread, after those before it.
    ///
    /// # Errors
    /// The job back, when the system gives no thread.
    pub(crate) fn run(&self, job: Job) -> Result<(), (Job, std::io::Error)> {
        let mut worker = self.0.lock();
        if worker.is_none() {
            let (sender, jobs) = mpsc::channel::<Job>();
            let started = thread::Builder::new()
                .name("orlop downloads".to_owned())
                .spawn(move || {
                    for job in jobs {
                        // A job wakes a future, whose program may panic: the next one still runs.
                        let _ = catch_unwind(AssertUnwindSafe(job));
                    }
                });
            match started {
                Ok(handle) => *worker = Some((sender, handle)),
                Err(error) => return Err((job, error)),
            }
        }
        match worker.as_ref() {
            Some((sender, _)) => sender.send(job).map_err(|mpsc::SendError(job)| {
                (job, std::io::Error::other("the thread has ended"))
            }),
            None => Ok(()),
        }
    }

    /// Ends the thread after its jobs. From the thread itself: lets it end by itself.
    pub(crate) fn join(&self) {
        if let Some((sender, handle)) = self.0.lock().take() {
            drop(sender);
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}
