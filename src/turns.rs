//! Turns at a block's contents: whoever comes first goes first, whether it reads or writes in place.
//!
//! A read of a device's memory can take its time: its copies are recorded bit by bit, or by another
//! thread later. It takes a turn when it is called; who writes in place waits for the turns before
//! its own, and a read that comes while a writer waits goes after the writer. Ops need no turns:
//! they are recorded at once.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crate::sync::thread::{self, ThreadId};
use crate::sync::{self, Condvar, Mutex};

/// The turns at one block; nothing until somebody reads it.
#[derive(Default)]
pub(crate) struct Turns(OnceLock<Arc<Queue>>);

#[derive(Default)]
struct Queue {
    line: Mutex<Line>,
    moved: Condvar,
}

#[derive(Default)]
struct Line {
    /// Those that are over are mostly the first.
    waiting: VecDeque<Waiter>,
    taken: u64,
    /// How many have a thread.
    here: usize,
}

struct Waiter {
    number: u64,
    writes: bool,
    /// Whose reads within this one do not queue: a writer that waits for this one would wait for
    /// them, and they for the writer.
    thread: Option<ThreadId>,
}

/// One turn; over when it is dropped, on whatever thread.
pub(crate) struct Turn {
    queue: Arc<Queue>,
    number: u64,
}

impl Turns {
    /// A turn to read, for whatever thread.
    pub(crate) fn to_read(&self) -> Turn {
        let queue = self.0.get_or_init(Arc::default);
        let here = thread::current().id();
        queue.join(|line| {
            let end = line.waiting.len();
            let within = match line.here {
                0 => None,
                _ => (line.waiting.iter()).rposition(|place| place.thread == Some(here)),
            };
            (within.map_or(end, |at| at + 1), false)
        })
    }

    /// A turn to write, so that reads from now on come after it.
    pub(crate) fn line_up_to_write(&self) -> Turn {
        let queue = self.0.get_or_init(Arc::default);
        queue.join(|line| (line.waiting.len(), true))
    }

    /// A turn to write; nothing when nobody reads.
    pub(crate) fn to_write(&self) -> Option<Turn> {
        let queue = self.0.get()?;
        let nobody_reads = queue.line.lock().waiting.iter().all(|place| place.writes);
        (!nobody_reads).then(|| queue.join(|line| (line.waiting.len(), true)))
    }

    /// True when a writer may go on at once; else it takes a turn, if it has none yet.
    pub(crate) fn is_my_turn_to_write(&self, turn: &mut Option<Turn>) -> bool {
        if turn.is_none() {
            *turn = self.to_write();
        }
        turn.as_ref().is_none_or(Turn::has_come)
    }
}

impl Queue {
    /// Joins the line at a position.
    fn join(self: &Arc<Self>, place: impl FnOnce(&Line) -> (usize, bool)) -> Turn {
        let mut line = self.line.lock();
        let (at, writes) = place(&line);
        let number = line.taken;
        line.taken += 1;
        let place = Waiter {
            number,
            writes,
            thread: None,
        };
        line.waiting.insert(at, place);
        Turn {
            queue: Arc::clone(self),
            number,
        }
    }
}

impl Line {
    fn position(&self, number: u64) -> Option<usize> {
        self.waiting.iter().position(|place| place.number == number)
    }

    /// No writer is before a reader, and no reader before a writer: writers take turns by
    /// themselves.
    fn is_next(&self, number: u64) -> bool {
        self.position(number).is_none_or(|at| {
            let writes = self.waiting[at].writes;
            let mut before = self.waiting.iter().take(at);
            before.all(|place| place.writes == writes)
        })
    }
}

impl Turn {
    /// Those before it are over.
    pub(crate) fn has_come(&self) -> bool {
        self.queue.line.lock().is_next(self.number)
    }

    /// Until those before it are over.
    pub(crate) fn wait(&self) {
        let mut line = self.queue.line.lock();
        while !line.is_next(self.number) {
            line = sync::wait(&self.queue.moved, line);
        }
    }

    /// This thread reads: what it reads of the same block meanwhile does not queue.
    pub(crate) fn is_here(&self) {
        let mut line = self.queue.line.lock();
        if let Some(at) = line.position(self.number) {
            let before = line.waiting[at].thread.replace(thread::current().id());
            line.here += usize::from(before.is_none());
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = self.queue.line.lock();
        if let Some(at) = line.position(self.number) {
            let over = line.waiting.remove(at);
            line.here -= usize::from(over.is_some_and(|place| place.thread.is_some()));
        }
        drop(line);
        self.queue.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_come_first_served() {
        let turns = Turns::default();
        assert!(turns.to_write().is_none());
        let first = turns.to_read();
        let second = turns.to_read();
        assert!(first.has_come() && second.has_come());
        let writer = turns.to_write().unwrap();
        let other = turns.to_write().unwrap();
        let late = turns.to_read();
        assert!(!writer.has_come() && !other.has_come() && !late.has_come());
        drop(first);
        assert!(!writer.has_come());
        drop(second);
        assert!(writer.has_come() && other.has_come() && !late.has_come());
        drop(writer);
        assert!(!late.has_come());
        drop(other);
        assert!(late.has_come() && turns.to_write().is_some());
        drop(late);
        assert!(turns.to_write().is_none());
    }

    /// A writer that gives up lets those behind it go.
    #[test]
    fn a_turn_given_up_is_over() {
        let turns = Turns::default();
        let reader = turns.to_read();
        let writer = turns.to_write().unwrap();
        let late = turns.to_read();
        drop(writer);
        assert!(late.has_come());
        drop((reader, late));
    }

    #[test]
    fn reads_within_a_read_do_not_queue() {
        let turns = Turns::default();
        let outer = turns.to_read();
        let writer = turns.to_write().unwrap();
        assert!(!turns.to_read().has_come(), "not its own yet");
        outer.is_here();
        let inner = turns.to_read();
        assert!(inner.has_come() && !writer.has_come());
        let elsewhere = std::thread::scope(|scope| {
            let other = scope.spawn(|| turns.to_read().has_come());
            other.join().unwrap()
        });
        assert!(!elsewhere);
        drop(outer);
        assert!(!writer.has_come(), "the inner one still reads");
        drop(inner);
        assert!(writer.has_come());
    }
}
