//! A snapshot in PyTorch's format, for its memory viewer.

use serde_pickle::{HashableValue, SerOptions, Value};

use crate::error::{Error, Result};
use crate::memory::{CallSite, Event, EventKind, MemorySnapshot, RegionSnapshot, Tag};

impl MemorySnapshot {
    /// The snapshot as `torch.cuda.memory._dump_snapshot` writes it: `python -m
    /// torch.cuda._memory_viz` and <https://pytorch.org/memory_viz> read it. With the feature
    /// `snapshots`.
    ///
    /// Regions are segments. The parts of a tag and the call site are stack frames, so that flame
    /// graphs go by tag. A block that moved is freed and allocated at its new address; spills and
    /// their return are frees and allocations. Some 2 KB of host memory are taken for each recorded event meanwhile.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what cannot be pickled; nothing is known to be.
    pub fn to_pickle(&self) -> Result<Vec<u8>> {
        let events = self.history.iter().flat_map(trace);
        let snapshot = dict([
            ("segments", list(self.regions.iter().map(segment))),
            ("device_traces", list([list(events)])),
            (
                "allocator_settings",
                dict([
                    ("PYTORCH_CUDA_ALLOC_CONF", text("")),
                    ("PYTORCH_ALLOC_CONF", text("")),
                    ("max_split_size", Value::I64(-1)),
                    ("garbage_collection_threshold", Value::F64(0.0)),
                    ("expandable_segments", Value::Bool(false)),
                    ("pinned_num_register_threads", Value::I64(1)),
                    ("release_lock_on_malloc", Value::Bool(false)),
                    ("pinned_use_host_register", Value::Bool(false)),
                    ("roundup_power2_divisions", dict([])),
                    ("graph_capture_record_stream_reuse", Value::Bool(false)),
                ]),
            ),
            ("external_annotations", list([])),
        ]);
        serde_pickle::value_to_vec(&snapshot, SerOptions::new())
            .map_err(|error| Error::invalid("to_pickle", error.to_string()))
    }
}

fn dict<const N: usize>(items: [(&str, Value); N]) -> Value {
    let key = |name: &str| HashableValue::String(name.to_owned());
    Value::Dict(
        items
            .into_iter()
            .map(|(name, value)| (key(name), value))
            .collect(),
    )
}

fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::List(items.into_iter().collect())
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn number(number: u64) -> Value {
    i64::try_from(number).map_or_else(|_| Value::Int(number.into()), Value::I64)
}

fn frame(name: &str, file: &str, line: u32) -> Value {
    dict([
        ("name", text(name)),
        ("filename", text(file)),
        ("line", number(line.into())),
    ])
}

/// The call site, then the parts of the tag: the innermost frame comes first.
fn frames(tag: Tag, site: Option<&CallSite>) -> Value {
    let site = site.map(|site| frame(&site.function, &site.file, site.line));
    let name = tag.name();
    let parts = name.rsplit('/').map(|part| frame(part, "tag", 0));
    list(site.into_iter().chain(parts))
}

fn segment(region: &RegionSnapshot) -> Value {
    let blocks: Vec<_> = region
        .chunks
        .iter()
        .filter_map(|chunk| chunk.block.as_ref().map(|block| (chunk, block)))
        .collect();
    let allocated = blocks.iter().map(|(chunk, _)| chunk.bytes).sum();
    let requested = blocks.iter().map(|(_, block)| block.requested).sum();
    let chunks = region.chunks.iter().map(|chunk| {
        let block = chunk.block.as_ref();
        let state = match block {
            Some(_) => "active_allocated",
            None => "inactive",
        };
        let frames = match block {
            Some(block) => frames(block.tag, block.call_site.as_deref()),
            None => list([]),
        };
        dict([
            ("address", number(region.address + chunk.offset)),
            ("size", number(chunk.bytes)),
            (
                "requested_size",
                number(block.map_or(0, |block| block.requested)),
            ),
            ("state", text(state)),
            ("frames", frames),
        ])
    });
    dict([
        ("device", Value::I64(0)),
        ("address", number(region.address)),
        ("total_size", number(region.bytes)),
        ("allocated_size", number(allocated)),
        ("active_size", number(allocated)),
        ("requested_size", number(requested)),
        ("stream", Value::I64(0)),
        ("segment_type", text("large")),
        (
            "segment_pool_id",
            Value::Tuple(vec![Value::I64(0), Value::I64(0)]),
        ),
        ("is_expandable", Value::Bool(false)),
        ("frames", list([])),
        ("blocks", list(chunks)),
    ])
}

/// What PyTorch would have recorded for an event.
fn trace(event: &Event) -> Vec<Value> {
    let entry = |action: &str, address: u64, size: u64, frames: Value| {
        let place = if action == "oom" {
            "device_free"
        } else {
            "addr"
        };
        dict([
            ("action", text(action)),
            (place, number(address)),
            ("size", number(size)),
            ("stream", Value::I64(0)),
            ("time_us", number(event.time.as_micros() as u64)),
            ("frames", frames),
        ])
    };
    let frames = || frames(event.tag, event.call_site.as_deref());
    let freed = |address| {
        ["free_requested", "free_completed"]
            .map(|action| entry(action, address, event.requested, list([])))
            .to_vec()
    };
    let made = || entry("alloc", event.address, event.requested, frames());
    match event.kind {
        EventKind::Allocated => vec![made()],
        EventKind::Freed => freed(event.address),
        EventKind::Relocated { from } => {
            let mut moved = freed(from);
            moved.push(made());
            moved
        }
        EventKind::RegionCreated => {
            vec![entry("segment_alloc", event.address, event.bytes, list([]))]
        }
        EventKind::RegionReturned => {
            vec![entry("segment_free", event.address, event.bytes, list([]))]
        }
        EventKind::Failed => {
            let free = event.reserved - event.allocated;
            vec![entry("oom", free, event.requested, frames())]
        }
        // Their blocks are freed and allocated.
        EventKind::Spilled | EventKind::Refaulted => Vec::new(),
    }
}
