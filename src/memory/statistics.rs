//! The account: what is allocated, reserved and free, exact at any moment.

use std::fmt;

use super::tags::Tag;

/// What a pool holds at one moment, and what it has done. All sizes are bytes, rounded to
/// [`QUANTUM`](super::QUANTUM) where nothing else is said. `docs/memory.md` maps the names of
/// TensorFlow and PyTorch to these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// Bytes in blocks that are in use.
    pub allocated: u64,
    /// Bytes in regions taken from the source.
    pub reserved: u64,
    /// Highest `allocated` since the pool was made or its peaks were reset.
    pub peak_allocated: u64,
    /// Highest `reserved` since the pool was made or its peaks were reset.
    pub peak_reserved: u64,
    /// The budget on `reserved`, if there is one.
    pub limit: Option<u64>,
    /// Number of blocks in use.
    pub live_blocks: u64,
    /// Number of regions held.
    pub regions: u64,
    /// Bytes in the largest free chunk.
    pub largest_free: u64,
    /// Bytes in all free chunks: `reserved - allocated`.
    pub free: u64,
    /// Bytes of tensors whose contents are on the host now: they are in no region.
    pub spilled: u64,
    /// Now, at peak, and in total.
    pub counts: MemoryCounts,
    /// What happened to requests that found no free chunk at once.
    pub events: MemoryEvents,
}

/// One figure over time. `allocated - freed` is what `current` rose by since the totals were reset. Not
/// `#[non_exhaustive]`: tests of programs write out what they expect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Now.
    pub current: u64,
    /// The highest since the pool was made or its peaks were reset.
    pub peak: u64,
    /// All that was added since the pool was made or its totals were reset.
    pub allocated: u64,
    /// All that was taken away since the pool was made or its totals were reset.
    pub freed: u64,
}

/// Figures over time of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryCounts {
    /// Blocks in use. One whose contents go to the host counts as freed there and then; once they are
    /// back it counts as if it had never gone.
    pub blocks: Count,
    /// Bytes in blocks in use.
    pub allocated_bytes: Count,
    /// Bytes that were asked for in blocks in use, before they were rounded up.
    pub requested_bytes: Count,
    /// Regions held.
    pub regions: Count,
    /// Bytes in regions held.
    pub reserved_bytes: Count,
    /// Free chunks in regions that also hold blocks: what cannot be returned.
    /// The totals count each that is cut, merged or moved to another size or place.
    pub splits: Count,
    /// Bytes in free chunks in regions that also hold blocks.
    pub split_bytes: Count,
    /// Bytes of the largest block taken since the pool was made or its peaks were reset.
    pub largest_allocation: u64,
}

/// Single figures of a pool, since it was made or its totals were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEvents {
    /// Times that a request was tried again: after idle regions went back or blocks moved, and, where the adapter had refused
    /// memory, after the device's work was done.
    pub retries: u64,
    /// Blocks in use that were moved to merge holes.
    pub relocations: u64,
    /// Bytes in blocks that were moved.
    pub relocated_bytes: u64,
    /// Blocks whose contents went to the host to make room.
    pub spills: u64,
    /// Bytes in blocks whose contents went to the host.
    pub spilled_bytes: u64,
    /// Blocks whose contents came back from the host.
    pub refaults: u64,
    /// Bytes in blocks whose contents came back.
    pub refaulted_bytes: u64,
    /// Requests that failed for good: scratch that an op then went without is one, too, but where tensors may go to the host.
    pub failures: u64,
}

/// What one tag holds, and has held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagStatistics {
    /// Its name is what [`tagged`](super::tagged) was given.
    pub tag: Tag,
    /// Blocks in use.
    pub blocks: Count,
    /// Bytes in blocks in use.
    pub allocated_bytes: Count,
    /// Bytes that were asked for in blocks in use, before they were rounded up.
    pub requested_bytes: Count,
    /// Bytes in blocks whose contents are on the host now.
    pub spilled: u64,
}

impl MemoryStatistics {
    /// How scattered the free bytes are: `1 - largest_free / free`, and 0 when nothing is free.
    pub fn fragmentation(&self) -> f64 {
        if self.free == 0 {
            0.0
        } else {
            1.0 - self.largest_free as f64 / self.free as f64
        }
    }
}

/// Shows a number of bytes with a binary unit.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(formatter, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut units = UNITS.iter();
        let mut unit = units.next();
        // 1023.95 would print as 1024.0, so it moves on to the next unit.
        while value >= 1023.95 && units.len() > 0 {
            value /= 1024.0;
            unit = units.next();
        }
        write!(formatter, "{value:.1} {}", unit.unwrap_or(&""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pick_a_unit() {
        let shown = |bytes| Bytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1024), "1.0 KiB");
        assert_eq!(shown((1 << 20) - 1), "1.0 MiB");
        assert_eq!(shown(3 << 29), "1.5 GiB");
        assert_eq!(shown(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn fragmentation_of_nothing_is_zero() {
        assert_eq!(MemoryStatistics::default().fragmentation(), 0.0);
        let halves = MemoryStatistics {
            free: 512,
            largest_free: 256,
            ..Default::default()
        };
        assert_eq!(halves.fragmentation(), 0.5);
    }
}
