//! Futures that a thread completes: any executor polls them, none is needed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::{Error, Result};
use crate::sync::Mutex;

/// The future of work that was begun when it was made; any executor polls it. Dropping it is safe
/// at any time: the work goes on, and its result is dropped.
#[must_use = "the result comes when it is awaited"]
pub struct Pending<T>(Arc<Mutex<Answer<T>>>);

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
}

/// A future and the duty to complete it.
pub(crate) fn promise<T>(op: &'static str) -> (Promise<T>, Pending<T>) {
    let answer = Arc::new(Mutex::new(Answer {
        result: None,
        waker: None,
        taken: false,
    }));
    let promise = Promise {
        op,
        answer: Some(Arc::clone(&answer)),
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

    /// Leaves the result and wakes the future, whose executor may poll it at once on this thread.
    fn complete(&mut self, result: Result<T>) {
        let Some(answer) = self.answer.take() else {
            return;
        };
        let waker = {
            let mut answer = answer.lock();
            answer.result = Some(result);
            answer.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
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
                answer.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
