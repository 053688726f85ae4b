//! Threads that help whoever has much to do, from when they come until it is done. Nobody waits for one that is busy
//! elsewhere: what a caller does alone before another thread comes costs no more than it does alone.
//!
//! A scope of rayon's would wait until all that it spawned has run, behind the work of other callers. So what is spawned
//! here borrows nothing: it asks a queue for callers whose work is not over.
#![allow(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::sync::{Condvar, Mutex, wait};

/// Threads for parallel work, or `None` where it must run on the caller's thread: those that help.
///
/// Work runs while blocks are locked. So the threads are our own: none of them ever waits for such
/// a lock, as a task of the program in rayon's global pool might. And a caller that is itself a
/// rayon worker works alone: while waiting it would take up other tasks, which may want the lock.
pub(crate) fn threads() -> Option<&'static rayon::ThreadPool> {
    static THREADS: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    pool(&THREADS, "cpu")
}

/// As [`threads`], for what shares itself out with rayon and waits for all of it: threads of its own, since helpers go from
/// one caller to the next without looking at what else there is.
pub(crate) fn product_threads() -> Option<&'static rayon::ThreadPool> {
    static THREADS: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    pool(&THREADS, "product")
}

fn pool(
    threads: &'static OnceLock<Option<rayon::ThreadPool>>,
    name: &'static str,
) -> Option<&'static rayon::ThreadPool> {
    if rayon::current_thread_index().is_some() {
        return None;
    }
    let made = threads.get_or_init(|| {
        rayon::ThreadPoolBuilder::new()
            .thread_name(move |index| format!("orlop {name} {index}"))
            .build()
            .ok()
            .filter(|threads| threads.current_num_threads() > 1)
    });
    made.as_ref()
}

/// Threads that may do parts of one caller's work, the caller's included.
pub(crate) fn width() -> usize {
    threads().map_or(1, rayon::ThreadPool::current_num_threads)
}

/// Runs `work` on the caller's thread, and on others as soon as they come: on `most` in all.
pub(crate) fn everywhere(most: usize, work: &(dyn Fn() + Sync)) {
    static HELPERS: LazyLock<Helpers> = LazyLock::new(Helpers::default);

    fn come(threads: &'static rayon::ThreadPool) {
        threads.spawn(move || HELPERS.serve(threads.current_num_threads(), &|| come(threads)));
    }

    match threads() {
        Some(threads) => {
            let spawn = || come(threads);
            HELPERS.run([threads.current_num_threads(), most], &spawn, work);
        }
        None => work(),
    }
}

/// Threads that one wakes before it goes to work: each takes some microseconds, and those that come wake the others.
const AT_ONCE: usize = 2;

#[derive(Default)]
struct Helpers(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// Callers whose work is not over, and how many helpers each may still have.
    callers: VecDeque<(Arc<Call>, usize)>,
    /// Threads that look here for callers, or will.
    serving: usize,
    /// Those of them that have not looked yet. While helpers are wanted and not all threads serve, one at least is
    /// coming, which has the next ones spawned.
    coming: usize,
}

impl Queue {
    /// How many threads are to be spawned now, of `width`: they count from here on.
    fn spawned(&mut self, width: usize) -> usize {
        let wanted: usize = self.callers.iter().map(|(_, wanted)| wanted).sum();
        let missing = wanted.saturating_sub(self.coming);
        let missing = missing.min(width.saturating_sub(self.serving)).min(AT_ONCE);
        self.serving += missing;
        self.coming += missing;
        missing
    }
}

impl Helpers {
    /// Runs `work` here and on up to `most - 1` of `width` threads, but on no more than `width` in all; `spawn` makes one
    /// [`serve`](Helpers::serve).
    fn run(&self, [width, most]: [usize; 2], spawn: &dyn Fn(), work: &(dyn Fn() + Sync)) {
        let wanted = width.min(most).saturating_sub(1);
        if wanted == 0 {
            return work();
        }
        let pointer: *const (dyn Fn() + Sync + '_) = work;
        // SAFETY: of the pointer only the lifetime changes. It is followed by helpers that came before the call was over, and
        // until these have left this function does not return, nor unwind.
        let call = Arc::new(Call {
            work: Work(unsafe {
                std::mem::transmute::<
                    *const (dyn Fn() + Sync + '_),
                    *const (dyn Fn() + Sync + 'static),
                >(pointer)
            }),
            state: Mutex::default(),
            left: Condvar::default(),
        });
        let missing = {
            let mut queue = self.0.lock();
            queue.callers.push_back((Arc::clone(&call), wanted));
            queue.spawned(width)
        };
        let over = Over(self, &call);
        for _ in 0..missing {
            spawn();
        }
        work();
        drop(over);
        let panic = call.state.lock().panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Helps callers until there are none; `spawn` makes one more thread do so.
    fn serve(&self, width: usize, spawn: &dyn Fn()) {
        let mut has_come = true;
        while let Some((call, missing)) = self.next(width, has_come) {
            has_come = false;
            for _ in 0..missing {
                spawn();
            }
            if call.help() {
                self.leave(&call);
            }
        }
    }

    /// Nobody need come to this caller any more: there is nothing left to do, or it is over.
    fn leave(&self, call: &Arc<Call>) {
        let mut queue = self.0.lock();
        queue.callers.retain(|(other, _)| !Arc::ptr_eq(other, call));
    }

    /// The next caller, for one that `has_come` or has been here before; and how many threads are to be spawned.
    fn next(&self, width: usize, has_come: bool) -> Option<(Arc<Call>, usize)> {
        let mut queue = self.0.lock();
        queue.coming -= usize::from(has_come);
        let Some((call, wanted)) = queue.callers.front_mut() else {
            queue.serving -= 1;
            return None;
        };
        let call = Arc::clone(call);
        *wanted -= 1;
        if *wanted == 0 {
            queue.callers.pop_front();
        }
        Some((call, queue.spawned(width)))
    }
}

/// One caller's work.
struct Call {
    work: Work,
    state: Mutex<State>,
    left: Condvar,
}

struct Work(*const (dyn Fn() + Sync));

// SAFETY: it points to what is `Sync`, and is followed only while that lives.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

#[derive(Default)]
struct State {
    /// Threads that are at it, but for the caller's.
    helpers: usize,
    is_over: bool,
    panic: Option<Box<dyn Any + Send>>,
}

impl Call {
    /// Takes part, unless it is over; whether nothing is left to do.
    fn help(&self) -> bool {
        {
            let mut state = self.state.lock();
            if state.is_over {
                return true;
            }
            state.helpers += 1;
        }
        // SAFETY: it was not over, so the caller waits until this helper has left.
        let work = unsafe { &*self.work.0 };
        let done = catch_unwind(AssertUnwindSafe(work));
        let mut state = self.state.lock();
        if let Err(panic) = done {
            state.panic.get_or_insert(panic);
        }
        state.helpers -= 1;
        if state.helpers == 0 {
            self.left.notify_all();
        }
        state.panic.is_none()
    }
}

/// When it is dropped nobody comes to help any more, and those who did have left.
struct Over<'a>(&'a Helpers, &'a Arc<Call>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let Self(helpers, call) = self;
        helpers.leave(call);
        let mut state = call.state.lock();
        state.is_over = true;
        while state.helpers > 0 {
            state = wait(&call.left, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::thread::Scope;
    use std::time::Duration;

    use super::*;

    /// One more thread that helps.
    fn come<'scope>(helpers: &'scope Helpers, width: usize, scope: &'scope Scope<'scope, '_>) {
        scope.spawn(move || helpers.serve(width, &|| come(helpers, width, scope)));
    }

    fn is_left(helpers: &Helpers) -> bool {
        let queue = helpers.0.lock();
        (queue.callers.len(), queue.serving, queue.coming) == (0, 0, 0)
    }

    /// Runs under Miri: parts of arrays on the callers' stacks are written by helpers, which come late, or never; some are
    /// woken by others.
    #[test]
    fn callers_share_their_work() {
        let helpers = Helpers::default();
        let rounds = if cfg!(miri) { 3 } else { 300 };
        std::thread::scope(|scope| {
            let caller = || {
                for round in 0..rounds {
                    let mut numbers = [0usize; 40];
                    let parts = Mutex::new(numbers.iter_mut().enumerate());
                    let work = || {
                        loop {
                            let next = parts.lock().next();
                            let Some((at, number)) = next else { break };
                            *number = at + round;
                        }
                    };
                    helpers.run([5, 4], &|| come(&helpers, 5, scope), &work);
                    assert!((round..).zip(numbers).all(|(want, got)| want == got));
                }
            };
            for _ in 0..2 {
                scope.spawn(caller);
            }
        });
        assert!(is_left(&helpers));
    }

    /// As many as are wanted, each woken by one that came before, and no more.
    #[test]
    fn as_many_come_as_are_wanted() {
        for (most, want) in [(1, 1), (2, 2), (5, 5), (usize::MAX, 12)] {
            let helpers = Helpers::default();
            let [at_it, spawned] = [const { AtomicUsize::new(0) }; 2];
            std::thread::scope(|scope| {
                let spawn = || {
                    spawned.fetch_add(1, Ordering::Relaxed);
                    come(&helpers, 12, scope);
                };
                helpers.run([12, most], &spawn, &|| {
                    at_it.fetch_add(1, Ordering::Relaxed);
                    while at_it.load(Ordering::Relaxed) < want {
                        std::thread::yield_now();
                    }
                });
            });
            assert_eq!(at_it.into_inner(), want);
            assert_eq!(spawned.into_inner(), AT_ONCE.min(want - 1));
            assert!(is_left(&helpers));
        }
    }

    /// All threads are at the work of others: who does its own alone does not wait for them.
    #[test]
    fn nobody_waits_for_who_is_busy() {
        let Some(threads) = threads() else { return };
        let busy = AtomicUsize::new(0);
        let is_free = (Mutex::new(false), Condvar::default());
        let wait_for_it = || {
            busy.fetch_add(1, Ordering::Relaxed);
            let mut free = is_free.0.lock();
            while !*free {
                free = wait(&is_free.1, free);
            }
        };
        let (done, ended) = channel();
        let ended = std::thread::scope(|scope| {
            // Two callers, so that no thread is left.
            for _ in 0..2 {
                scope.spawn(|| everywhere(usize::MAX, &wait_for_it));
            }
            while busy.load(Ordering::Relaxed) < threads.current_num_threads() + 2 {
                std::thread::yield_now();
            }
            scope.spawn(move || {
                everywhere(usize::MAX, &|| {});
                let _ = done.send(());
            });
            let ended = ended.recv_timeout(Duration::from_secs(20));
            *is_free.0.lock() = true;
            is_free.1.notify_all();
            ended
        });
        assert_eq!(ended, Ok(()));
    }

    #[test]
    fn what_a_helper_panics_with_is_the_callers() {
        if threads().is_none() {
            return;
        }
        let caller = std::thread::current().id();
        let has_come = AtomicUsize::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            everywhere(usize::MAX, &|| {
                if std::thread::current().id() != caller {
                    has_come.store(1, Ordering::Relaxed);
                    panic!("a helper's");
                }
                while has_come.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
            });
        }));
        let text = caught.unwrap_err();
        assert_eq!(text.downcast_ref(), Some(&"a helper's"));
        // It helps again.
        everywhere(usize::MAX, &|| {});
    }
}
