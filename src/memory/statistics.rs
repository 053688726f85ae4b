//! The account: what is allocated, reserved and free, exact at any moment.

use std::fmt;

/// What a pool holds at one moment. All sizes are bytes, rounded to [`QUANTUM`](super::QUANTUM).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
pub(super) struct Bytes(pub(super) u64);

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
