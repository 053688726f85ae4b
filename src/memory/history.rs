//! What happened in a pool: the latest events, when they are recorded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tags::Tag;

/// A place in code that asked for memory; whoever has a pool of its own says which.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct CallSite {
    /// The function.
    pub function: String,
    /// Its source file; empty where the program has no debug information.
    pub file: String,
    /// The line in it, 0 where it is not known.
    pub line: u32,
}

impl CallSite {
    /// A function, its source file, or an empty name, and the line in it, or 0.
    pub fn new(function: impl Into<String>, file: impl Into<String>, line: u32) -> CallSite {
        CallSite {
            function: function.into(),
            file: file.into(),
            line,
        }
    }
}

impl std::fmt::Display for CallSite {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.function)?;
        if !self.file.is_empty() {
            write!(formatter, " at {}:{}", self.file, self.line)?;
        }
        Ok(())
    }
}

/// What an event of a pool was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was taken.
    Allocated,
    /// A block was given back.
    Freed,
    /// A region was taken from the source.
    RegionCreated,
    /// A region was given back to the source.
    RegionReturned,
    /// A block in use moved to [`Event::address`].
    Relocated {
        /// Where it was.
        from: u64,
    },
    /// Contents of so many bytes went to the host; that the block is freed comes after it.
    Spilled,
    /// Contents of so many bytes came back from the host: the latest event that says that a block
    /// with this number was taken. Where they got lost on the way [`Spilled`](Self::Spilled) follows at once, and
    /// [`MemoryEvents`](super::MemoryEvents) counts neither.
    Refaulted,
    /// A request of so many bytes failed.
    Failed,
}

impl EventKind {
    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Allocated => "allocated",
            EventKind::Freed => "freed",
            EventKind::RegionCreated => "region created",
            EventKind::RegionReturned => "region returned",
            EventKind::Relocated { .. } => "relocated",
            EventKind::Spilled => "spilled",
            EventKind::Refaulted => "refaulted",
            EventKind::Failed => "failed",
        }
    }
}

/// One event of a pool's history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Since [`record_history`](super::Pool::record_history).
    pub time: Duration,
    /// What it was.
    pub kind: EventKind,
    /// Number of the block's allocation, counted from 1; 0 for what is no block.
    pub block: u64,
    /// The address of the block or region (see [`RegionSnapshot::address`](super::RegionSnapshot));
    /// 0 where there is none.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// What they are for.
    pub tag: Tag,
    /// Where they were asked for, when call sites are recorded.
    pub call_site: Option<Arc<CallSite>>,
    /// Bytes in blocks after it.
    pub allocated: u64,
    /// Bytes in regions after it.
    pub reserved: u64,
}

/// The latest events, as many as were asked for.
#[derive(Debug)]
pub(super) struct History {
    began: Instant,
    most: usize,
    events: VecDeque<Event>,
    dropped: u64,
}

impl History {
    pub(super) fn new(most: usize) -> History {
        History {
            began: Instant::now(),
            most,
            events: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Now, as times of events count.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn push(&mut self, mut event: Event) {
        event.time = self.now();
        if self.events.len() == self.most {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(event);
    }

    /// Adds its call site to the event that made a block, if it is still there.
    pub(super) fn locate(&mut self, block: u64, site: &Arc<CallSite>) {
        // Other threads may have come between, but not many.
        let mut latest = self.events.iter_mut().rev().take(1000);
        let made = latest.find(|event| event.block == block && event.kind == EventKind::Allocated);
        if let Some(made) = made {
            made.call_site = Some(Arc::clone(site));
        }
    }

    /// The block that was just made under one number is the one of another, which was asked for at `site`.
    pub(super) fn rename(&mut self, new: u64, number: u64, site: Option<&Arc<CallSite>>) {
        let mut latest = self.events.iter_mut().rev().take(1000);
        let made = latest.find(|event| event.block == new && event.kind == EventKind::Allocated);
        if let Some(made) = made {
            made.block = number;
            made.call_site = site.cloned();
        }
    }

    pub(super) fn events(&self) -> (Vec<Event>, u64) {
        (self.events.iter().cloned().collect(), self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ladder::tests::Capacity;
    use super::super::{Growth, Pool, PoolConfig, QUANTUM};
    use super::*;

    #[test]
    fn what_goes_to_the_host_and_comes_back_keeps_its_call_site() {
        let config = PoolConfig {
            growth: Growth::Proportional,
            limit: None,
            max_region: u64::MAX,
        };
        let mut pool = Pool::new(Capacity(u64::MAX), config);
        pool.record_history(10);
        let block = pool.allocate(QUANTUM).expect("there is room");
        let site = CallSite {
            function: "net::forward".into(),
            file: String::new(),
            line: 0,
        };
        assert!(pool.set_call_site(block, site.clone()));
        let number = pool.set_aside(block);
        let again = pool.allocate(QUANTUM).expect("there is room");
        pool.resume(again, number);
        let events = pool.snapshot().history;
        let of_block: Vec<&Event> = events.iter().filter(|event| event.block > 0).collect();
        let kinds: Vec<EventKind> = of_block.iter().map(|event| event.kind).collect();
        let (made, freed) = (EventKind::Allocated, EventKind::Freed);
        let (gone, back) = (EventKind::Spilled, EventKind::Refaulted);
        assert_eq!(kinds, [made, gone, freed, made, back]);
        for event in of_block {
            assert_eq!(event.block, number);
            assert_eq!(event.call_site.as_deref(), Some(&site), "{event:?}");
        }
    }

    #[test]
    fn events_are_as_small_as_told() {
        assert!(
            size_of::<Event>() <= 96,
            "DeviceBuilder::record_history says 96"
        );
    }
}
