//! Futures that a thread completes: any executor polls them, none is needed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::background::Wakes;
use crate::error::{Error, Result};
use crate::sync::Mutex;

/// The future of work that was ordered when it was made; any executor polls it. Dropping it is safe
/// at any time: work that has begun goes on, and its result is dropped.
///
/// It is woken on a thread of the device that does nothing else: a waker that takes its time there
/// holds up other wakes of the device, and no work; one that waits there for another future of the
/// same device waits for a wake that comes after itself, so it must not.
#[must_use = "the result comes when it is awaited"]
pub struct Pending<T>(Arc<Mutex<Answer<T>>>);

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_done = self.0.lock().result.is_some();
        f.debug_struct("Pending")
            .field("is_done", &is_done)
            .finish_non_exhaustive()
    }
}

struct Answer<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
    /// The result was there, and is taken.
    taken: bool,
}

/// The duty to complete a future: dropped without that, it completes it with an error.
pub(crate) struct Promise<T> {
    op: &'static str,
    answer: Option<Arc<Mutex<Answer<T>>>>,
    wakes: Option<Arc<Wakes>>,
}

/// A future and the duty to complete it. Wakers run where `wakes` says, else on the thread that
/// completes it.
pub(crate) fn promise<T>(op: &'static str, wakes: Option<Arc<Wakes>>) -> (Promise<T>, Pending<T>) {
    let answer = Arc::new(Mutex::new(Answer {
        result: None,
        waker: None,
        taken: false,
    }));
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
        Self(Arc::new(Mutex::new(Answer {
            result: Some(result),
            waker: None,
            taken: false,
        })))
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
        let Some(answer) = self.answer.take() else {
            return;
        };
        let waker = {
            let mut answer = answer.lock();
            answer.result = Some(result);
            answer.waker.take()
        };
        match (waker, &self.wakes) {
            (Some(waker), Some(wakes)) => wakes.run(Box::new(|| waker.wake())),
            (Some(waker), None) => waker.wake(),
            (None, _) => {}
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let op = self.op;
        self.complete(Err(Error::invalid(
            op,
            "its thread ended before the result was there; call it again",
        )));
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A waker's clone and drop are the program's code too: they run without the lock.
        let waker = context.waker().clone();
        let mut answer = self.0.lock();
        match answer.result.take() {
            Some(result) => {
                answer.taken = true;
                Poll::Ready(result)
            }
            None if answer.taken => Poll::Ready(Err(Error::invalid(
                "await",
                "the future has given its result already",
            ))),
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
        let waker = self.0.lock().waker.take();
        drop(waker);
    }
}
