//! A snapshot as a page for a browser.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::json;
use crate::memory::{CallSite, Event, EventKind, MemorySnapshot, Tag};

/// The page; its data stand where `PLACE` does.
const PAGE: &str = include_str!("page.html");
const PLACE: &str = "\"orlop-snapshot\"";

impl MemorySnapshot {
    /// The snapshot as one page that needs nothing else and no network: allocated and reserved bytes
    /// over time, addresses over time, a map of each region, tags; with the tensor, its tag and its
    /// life under the pointer, and relocations, spills and failures marked. What lies in time is
    /// there when a history is recorded. With the feature `snapshots`.
    pub fn to_html(&self) -> String {
        // Columns, since there may be very many events; and no `</script>` in any name.
        let data = self.columns().to_string().replace('<', "\\u003c");
        PAGE.replacen(PLACE, &data, 1)
    }

    fn columns(&self) -> Value {
        let mut names = Names::default();
        let regions: Vec<Value> = self
            .regions
            .iter()
            .map(|region| {
                let chunks = region.chunks.iter().map(|chunk| match &chunk.block {
                    None => json!([chunk.offset, chunk.bytes]),
                    Some(block) => json!([
                        chunk.offset,
                        chunk.bytes,
                        block.number,
                        block.requested,
                        names.tag(block.tag),
                        block.age,
                        u8::from(block.pinned),
                        names.site(block.call_site.as_deref()),
                    ]),
                });
                let chunks: Vec<Value> = chunks.collect();
                json!({"address": region.address, "bytes": region.bytes, "chunks": chunks})
            })
            .collect();
        let mut events: Vec<Value> = Vec::with_capacity(self.history.len());
        for event in &self.history {
            events.push(self.row(event, &mut names));
        }
        let tags: Vec<Value> = self.tags.iter().map(json::tag).collect();
        json!({
            "device": self.device,
            "time": self.time.map(|time| time.as_micros() as u64),
            "statistics": json::statistics(&self.statistics),
            "tags": tags,
            "regions": regions,
            "events": events,
            "spilled": [self.spilled.len() as u64, self.spilled.iter().map(|spilled| spilled.bytes).sum::<u64>()],
            "dropped": self.history_dropped,
            "tagNames": names.tags.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "sites": names.sites,
        })
    }

    /// Time in microseconds, kind, block, address, bytes, requested, tag, allocated, reserved, site,
    /// and the former address of what moved.
    fn row(&self, event: &Event, names: &mut Names) -> Value {
        let (kind, from) = match event.kind {
            EventKind::Allocated => (0, 0),
            EventKind::Freed => (1, 0),
            EventKind::RegionCreated => (2, 0),
            EventKind::RegionReturned => (3, 0),
            EventKind::Relocated { from } => (4, from),
            EventKind::Spilled => (5, 0),
            EventKind::Refaulted => (6, 0),
            EventKind::Failed => (7, 0),
        };
        json!([
            event.time.as_nanos() as f64 / 1000.0,
            kind,
            event.block,
            event.address,
            event.bytes,
            event.requested,
            names.tag(event.tag),
            event.allocated,
            event.reserved,
            names.site(event.call_site.as_deref()),
            from,
        ])
    }
}

/// Tags and call sites as numbers in the order of their first use.
#[derive(Default)]
struct Names {
    tags: Vec<Tag>,
    tag_numbers: HashMap<Tag, usize>,
    sites: Vec<String>,
    site_numbers: HashMap<CallSite, usize>,
}

impl Names {
    fn tag(&mut self, tag: Tag) -> usize {
        *self.tag_numbers.entry(tag).or_insert_with(|| {
            self.tags.push(tag);
            self.tags.len() - 1
        })
    }

    /// -1 where none is known.
    fn site(&mut self, site: Option<&CallSite>) -> i64 {
        let Some(site) = site else {
            return -1;
        };
        if let Some(&number) = self.site_numbers.get(site) {
            return number as i64;
        }
        let number = self.sites.len();
        self.sites.push(site.to_string());
        self.site_numbers.insert(site.clone(), number);
        number as i64
    }
}
