//! A device's own threads, started at first use: one does what futures wait for, one wakes them.
//!
//! A program's waker may block or panic. So the thread that works never runs one, nor drops one:
//! whatever wakers do, reads go on. Only other wakes of the device come after a waker that blocks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::promise::{Pending, Promise, promise};
use crate::sync::Mutex;
use crate::sync::mpsc::{self, Sender};
use crate::sync::thread::{self, JoinHandle};

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Both threads of one device.
#[derive(Default)]
pub(crate) struct Background(Mutex<Option<Threads>>);

struct Threads {
    jobs: Sender<Job>,
    worker: JoinHandle<()>,
    wakes: Arc<Wakes>,
}

/// The way to the thread that wakes. That ends after what it was sent, once all promises are kept
/// and the device is gone; nobody waits for it.
pub(crate) struct Wakes(Mutex<Sender<Job>>);

impl Wakes {
    pub(crate) fn run(&self, wake: Job) {
        let sent = self.0.lock().send(wake);
        if let Err(mpsc::SendError(wake)) = sent {
            wake();
        }
    }
}

impl Background {
    /// A future that the working thread completes. `job` gives what it does, after the jobs before
    /// it, and is called in the order of the jobs: what it orders comes in that order too.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn order<T: Send + 'static>(
        &self,
        op: &'static str,
        job: impl FnOnce(Promise<T>) -> Job,
    ) -> Result<Pending<T>> {
        let mut threads = self.0.lock();
        let there = match threads.take() {
            Some(there) => there,
            None => Threads::start().map_err(|error| Error::no_thread(op, &error))?,
        };
        let there = threads.insert(there);
        let (promise, pending) = promise(op, Some(Arc::clone(&there.wakes)));
        // When the thread has ended the promise in the job says so.
        let _ = there.jobs.send(job(promise));
        Ok(pending)
    }

    /// Ends the working thread after its jobs. From the thread itself: lets it end by itself.
    pub(crate) fn join(&self) {
        let threads = self.0.lock().take();
        if let Some(Threads { jobs, worker, .. }) = threads {
            drop(jobs);
            if worker.thread().id() != thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.join();
    }
}

impl Threads {
    fn start() -> std::io::Result<Self> {
        let (wakes, _) = start("orlop wakes")?;
        let (jobs, worker) = start("orlop downloads")?;
        Ok(Self {
            jobs,
            worker,
            wakes: Arc::new(Wakes(Mutex::new(wakes))),
        })
    }
}

/// A thread that runs jobs in order, until the sender is gone.
fn start(name: &str) -> std::io::Result<(Sender<Job>, JoinHandle<()>)> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            for job in jobs {
                // A program's waker may panic: the next job still runs.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        })?;
    Ok((sender, thread))
}
