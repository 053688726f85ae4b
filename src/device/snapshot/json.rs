//! A snapshot as JSON.

use serde_json::{Value, json};

use crate::memory::{
    BlockSnapshot, Count, Event, EventKind, MemorySnapshot, MemoryStatistics, RegionSnapshot,
    SpilledSnapshot, TagStatistics,
};

impl MemorySnapshot {
    /// The snapshot as JSON: the names of its fields, sizes in bytes, times in seconds, `null` for
    /// what is not there. With the feature `snapshots`.
    pub fn to_json(&self) -> String {
        json!({
            "device": self.device,
            "time": self.time.map(|time| time.as_secs_f64()),
            "statistics": statistics(&self.statistics),
            "tags": self.tags.iter().map(tag).collect::<Vec<_>>(),
            "regions": self.regions.iter().map(region).collect::<Vec<_>>(),
            "spilled": self.spilled.iter().map(spilled).collect::<Vec<_>>(),
            "allocations": self.allocations,
            "history": self.history.iter().map(event).collect::<Vec<_>>(),
            "history_dropped": self.history_dropped,
        })
        .to_string()
    }
}

fn count(count: &Count) -> Value {
    json!({
        "current": count.current,
        "peak": count.peak,
        "allocated": count.allocated,
        "freed": count.freed,
    })
}

pub(super) fn statistics(statistics: &MemoryStatistics) -> Value {
    let (counts, events) = (&statistics.counts, &statistics.events);
    json!({
        "allocated": statistics.allocated,
        "reserved": statistics.reserved,
        "peak_allocated": statistics.peak_allocated,
        "peak_reserved": statistics.peak_reserved,
        "limit": statistics.limit,
        "live_blocks": statistics.live_blocks,
        "regions": statistics.regions,
        "largest_free": statistics.largest_free,
        "free": statistics.free,
        "spilled": statistics.spilled,
        "counts": {
            "blocks": count(&counts.blocks),
            "allocated_bytes": count(&counts.allocated_bytes),
            "requested_bytes": count(&counts.requested_bytes),
            "regions": count(&counts.regions),
            "reserved_bytes": count(&counts.reserved_bytes),
            "splits": count(&counts.splits),
            "split_bytes": count(&counts.split_bytes),
            "largest_allocation": counts.largest_allocation,
        },
        "events": {
            "retries": events.retries,
            "relocations": events.relocations,
            "relocated_bytes": events.relocated_bytes,
            "spills": events.spills,
            "spilled_bytes": events.spilled_bytes,
            "refaults": events.refaults,
            "refaulted_bytes": events.refaulted_bytes,
            "failures": events.failures,
        },
    })
}

pub(super) fn tag(tag: &TagStatistics) -> Value {
    json!({
        "tag": *tag.tag.name(),
        "blocks": count(&tag.blocks),
        "allocated_bytes": count(&tag.allocated_bytes),
        "requested_bytes": count(&tag.requested_bytes),
        "spilled": tag.spilled,
    })
}

fn region(region: &RegionSnapshot) -> Value {
    let chunks = region.chunks.iter().map(|chunk| {
        json!({
            "offset": chunk.offset,
            "bytes": chunk.bytes,
            "block": chunk.block.as_ref().map(block),
        })
    });
    json!({
        "address": region.address,
        "bytes": region.bytes,
        "chunks": chunks.collect::<Vec<_>>(),
    })
}

fn spilled(spilled: &SpilledSnapshot) -> Value {
    json!({"bytes": spilled.bytes, "block": block(&spilled.block)})
}

fn block(block: &BlockSnapshot) -> Value {
    json!({
        "number": block.number,
        "requested": block.requested,
        "tag": *block.tag.name(),
        "age": block.age,
        "pinned": block.pinned,
        "call_site": block.call_site.as_ref().map(ToString::to_string),
    })
}

fn event(event: &Event) -> Value {
    let from = match event.kind {
        EventKind::Relocated { from } => Some(from),
        _ => None,
    };
    json!({
        "time": event.time.as_secs_f64(),
        "kind": event.kind.name(),
        "from": from,
        "block": event.block,
        "address": event.address,
        "bytes": event.bytes,
        "requested": event.requested,
        "tag": *event.tag.name(),
        "call_site": event.call_site.as_ref().map(ToString::to_string),
        "allocated": event.allocated,
        "reserved": event.reserved,
    })
}
