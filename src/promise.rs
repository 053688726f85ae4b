//! Futures that a thread completes: any executor polls them, none is needed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::background::Wakes;
use crate::error::{Error, Result};
use crate::sync::{self, Condvar, Mutex};

/// The future of work that was ordered when it was made; any executor polls it. Dropping it is safe
/// at any time: work that has begun goes on, and its result is dropped.
///
/// It is woken on a thread of the device that does nothing else (while one opens, on the thread that opens it): a waker that takes its time there
/// holds up other wakes of the device, and no work; one that waits there for another future of the
/// same device waits for a wake that comes after itself, so it must not.
#[must_use = "the result comes when it is awaited"]
pub struct Pending<T>(Arc<Shared<T>>);

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_done = self.0.answer.lock().result.is_some();
        f.debug_struct("Pending")
            .field("is_done", &is_done)
            .finish_non_exhaustive()
    }
}

struct Shared<T> {
    answer: Mutex<Answer<T>>,
    /// For who blocks: no waker of the program's comes before it.
    arrived: Condvar,
}

impl<T> Shared<T> {
    fn new(result: Option<Result<T>>) -> Arc<Self> {
        Arc::new(Self {
            answer: Mutex::new(Answer {
                result,
                waker: None,
                taken: false,
            }),
            arrived: Condvar::new(),
        })
    }
}

struct Answer<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
    /// The result was there, and is taken.
    taken: bool,
}

impl<T> Answer<T> {
    /// The result when it is there, and an error for who had it already.
    fn take(&mut self) -> Option<Result<T>> {
        match self.result.take() {
            None if self.taken => Some(Err(Error::invalid(
                "await",
                "the future has given its result already",
            ))),
            result => {
                self.taken = result.is_some();
                result
            }
        }
    }
}

/// The duty to complete a future: dropped without that, it completes it with an error.
pub(crate) struct Promise<T> {
    op: &'static str,
    answer: Option<Arc<Shared<T>>>,
    wakes: Option<Arc<Wakes>>,
}

/// A future and the duty to complete it. Wakers run where `wakes` says, else on the thread that
/// completes it.
pub(crate) fn promise<T>(op: &'static str, wakes: Option<Arc<Wakes>>) -> (Promise<T>, Pending<T>) {
    let answer = Shared::new(None);
    let promise = Promise {
        op,
        answer: Some(Arc::clone(&answer)),
        wakes,
    };
    (promise, Pending(answer))
}

impl<T> Pending<T> {
    /// A future that has its result already.
    pub(crate) fn ready(result: Result<T>) -> Self {
        Self(Shared::new(Some(result)))
    }

    /// Blocks until the result is there, for programs without an executor; other futures' wakers, which may take their time,
    /// do not hold it up.
    ///
    /// # Errors
    /// The operation's own.
    pub fn wait(self) -> Result<T> {
        let mut answer = self.0.answer.lock();
        loop {
            if let Some(result) = answer.take() {
                return result;
            }
            answer = sync::wait(&self.0.arrived, answer);
        }
    }
}

impl<T> Promise<T> {
    /// False once the future was dropped.
    pub(crate) fn is_awaited(&self) -> bool {
        self.answer
            .as_ref()
            .is_some_and(|answer| Arc::strong_count(answer) > 1)
    }

    pub(crate) fn keep(mut self, result: Result<T>) {
        self.complete(result);
    }

    /// Leaves the result and wakes the future, whose executor may poll it at once in the wake.
    fn complete(&mut self, result: Result<T>) {
        let Some(shared) = self.answer.take() else {
            return;
        };
        let waker = {
            let mut answer = shared.answer.lock();
            answer.result = Some(result);
            answer.waker.take()
        };
        shared.arrived.notify_all();
        match (waker, &self.wakes) {
            (Some(waker), Some(wakes)) => wakes.run(Box::new(|| waker.wake())),
            (Some(waker), None) => waker.wake(),
            (None, _) => {}
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.complete(Err(Error::thread_ended(self.op)));
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A waker's clone and drop are the program's code too: they run without the lock.
        let waker = context.waker().clone();
        let mut answer = self.0.answer.lock();
        match answer.take() {
            Some(result) => Poll::Ready(result),
            None => {
                let before = answer.waker.replace(waker);
                drop(answer);
                drop(before);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Pending<T> {
    /// The waker goes here, not on the thread that works.
    fn drop(&mut self) {
        let waker = self.0.answer.lock().waker.take();
        drop(waker);
    }
}
