//! What a device remembers of ops that were placed elsewhere.

use std::collections::VecDeque;
use std::fmt;

use super::Device;
use crate::sync::Mutex;

/// Events that a device remembers.
const MOST_EVENTS: usize = 1024;

/// An op that ran elsewhere than where its operands live (all of them or one), and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementEvent {
    /// The operation.
    pub op: &'static str,
    /// Where it would have run, if its device lacks something; else where the operands lived that
    /// had to travel.
    pub from: String,
    /// Where it ran.
    pub to: String,
    /// Where its result lives.
    pub result: String,
    /// What the device lacks, or why operands travelled.
    pub reason: String,
    /// Bytes that travelled between devices for it, there and back: of each operand the span of
    /// its storage from the first element used to the last, once for all operands that share it.
    pub bytes_moved: u64,
}

impl fmt::Display for PlacementEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: from {} to {}, result on {}; {}; {} bytes moved",
            self.op, self.from, self.to, self.result, self.reason, self.bytes_moved
        )
    }
}

/// The placement log of a device at one moment, from [`Device::placement_log`]. `Display` gives
/// one line for each event, and for equal ones in a row how many they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementLog {
    /// The latest events (1024 at most), oldest first.
    pub events: Vec<PlacementEvent>,
    /// How many older ones were dropped to make room.
    pub dropped: u64,
}

impl fmt::Display for PlacementLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dropped > 0 {
            writeln!(f, "({} older events dropped)", self.dropped)?;
        }
        self.events
            .chunk_by(|one, next| one == next)
            .try_for_each(|same| match same {
                [event] => writeln!(f, "{event}"),
                same => writeln!(f, "{} ({} times)", same[0], same.len()),
            })
    }
}

/// The log that belongs to a device.
#[derive(Default)]
pub(super) struct Log(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    events: VecDeque<PlacementEvent>,
    dropped: u64,
}

impl Device {
    /// Which ops were placed elsewhere than where their operands live, and why: fallbacks to the
    /// CPU, mixed operands, scopes. An event is in the log of the device that the op belonged to
    /// (the scope's, else its operands' home) and in those of the devices that operands left. Each
    /// is a `tracing` event as well. Ops that run where they belong cost nothing here, and moves
    /// that are asked for ([`Tensor::to`](crate::Tensor::to), reading to the host) are no events.
    pub fn placement_log(&self) -> PlacementLog {
        let kept = self.0.log.0.lock();
        PlacementLog {
            events: kept.events.iter().cloned().collect(),
            dropped: kept.dropped,
        }
    }

    /// Forgets all events, and the count of those dropped.
    pub fn clear_placement_log(&self) {
        *self.0.log.0.lock() = Kept::default();
    }
}

/// Remembers an event on each of the devices it concerns.
pub(crate) fn log_placement(event: &PlacementEvent, devices: &[&Device]) {
    tracing::info!(
        op = event.op,
        from = event.from,
        to = event.to,
        result = event.result,
        reason = event.reason,
        bytes = event.bytes_moved,
        "placed elsewhere"
    );
    for (at, device) in devices.iter().enumerate() {
        if devices[..at].contains(device) {
            continue;
        }
        let mut kept = device.0.log.0.lock();
        if kept.events.len() == MOST_EVENTS {
            kept.events.pop_front();
            kept.dropped += 1;
        }
        kept.events.push_back(event.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_events_in_a_row_are_one_line() {
        let event = |op| PlacementEvent {
            op,
            from: "a".to_owned(),
            to: "b".to_owned(),
            result: "a".to_owned(),
            reason: "why".to_owned(),
            bytes_moved: 3,
        };
        let log = PlacementLog {
            events: ["x", "y", "y", "x"].map(event).into(),
            dropped: 0,
        };
        let text = log.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let line = |op| format!("{op}: from a to b, result on a; why; 3 bytes moved");
        assert_eq!(lines, [line("x"), line("y") + " (2 times)", line("x")]);
    }
}
