//! The growth rules of TensorFlow and PyTorch, simulated: what they would reserve.

use std::collections::{BTreeMap, BTreeSet};

use crate::trace::{Event, Trace};

/// Peak reserved bytes of a trace under TensorFlow's rule (BFC): best fit at 256 bytes; a chunk is split
/// when what is left is as large as what is asked for, or 128 MiB; a new region is 2 MiB, 4 MiB, 8 MiB and
/// so on; one that is doubled further until the request fits is followed by one as large; none goes back.
pub fn tensorflow(trace: &Trace) -> u64 {
    let mut next = 2u64 << 20;
    let rules = Rules {
        pool_and_bytes: |bytes: u64| (0, bytes.max(1).next_multiple_of(256)),
        splits: |_, bytes: u64, held: u64| held >= 2 * bytes || held - bytes >= 128 << 20,
        region: |_, bytes: u64| {
            let mut region = next;
            while region < bytes {
                region *= 2;
            }
            next = match region == next {
                true => next * 2,
                false => region,
            };
            region
        },
    };
    rules.peak_reserved(trace)
}

/// Peak reserved bytes of a trace under PyTorch's rules (the caching allocator without expandable
/// segments): requests up to 1 MiB come from segments of 2 MiB, others below 10 MiB from segments of
/// 20 MiB, larger ones get a segment of their own in steps of 2 MiB; none goes back.
pub fn pytorch(trace: &Trace) -> u64 {
    const SMALL: u64 = 1 << 20;
    let rules = Rules {
        pool_and_bytes: |bytes: u64| {
            let bytes = bytes.max(1).next_multiple_of(512);
            (usize::from(bytes > SMALL), bytes)
        },
        splits: |pool, bytes: u64, held: u64| {
            held - bytes >= if pool == 0 { 512 } else { SMALL + 1 }
        },
        region: |pool, bytes: u64| match pool {
            0 => 2 << 20,
            _ if bytes < 10 << 20 => 20 << 20,
            _ => bytes.next_multiple_of(2 << 20),
        },
    };
    rules.peak_reserved(trace)
}

/// Peak reserved bytes of best fit with exact split at 256 bytes in one region that grows at its end by
/// what is needed: what best fit itself takes, where growth plays no part.
pub fn endless_best_fit(trace: &Trace) -> u64 {
    let mut heap = Heap::default();
    let mut places = vec![Place::default(); trace.sizes.len()];
    for &event in &trace.events {
        match event {
            Event::Allocate { index, bytes } => {
                let bytes = bytes.max(1).next_multiple_of(256);
                let place = heap.take(0, bytes).unwrap_or_else(|| heap.extend(bytes));
                if place.bytes > bytes {
                    heap.list(Place {
                        start: place.start + bytes,
                        bytes: place.bytes - bytes,
                        pool: 0,
                    });
                }
                places[index] = Place { bytes, ..place };
            }
            Event::Free { index } => heap.free(places[index]),
        }
    }
    heap.reserved
}

/// What differs between allocators that fit best and merge.
struct Rules<P, S, R> {
    /// Which pool serves a request, and with how many bytes.
    pool_and_bytes: P,
    /// Whether a chunk (pool, bytes asked for, bytes held) is split.
    splits: S,
    /// Bytes of a new region (pool, bytes asked for).
    region: R,
}

impl<P, S, R> Rules<P, S, R>
where
    P: FnMut(u64) -> (usize, u64),
    S: FnMut(usize, u64, u64) -> bool,
    R: FnMut(usize, u64) -> u64,
{
    fn peak_reserved(mut self, trace: &Trace) -> u64 {
        let mut heap = Heap::default();
        let mut places = vec![Place::default(); trace.sizes.len()];
        for &event in &trace.events {
            match event {
                Event::Allocate { index, bytes } => {
                    let (pool, bytes) = (self.pool_and_bytes)(bytes);
                    let mut place = heap
                        .take(pool, bytes)
                        .unwrap_or_else(|| heap.grow(pool, (self.region)(pool, bytes)));
                    if place.bytes > bytes && (self.splits)(pool, bytes, place.bytes) {
                        heap.list(Place {
                            start: place.start + bytes,
                            bytes: place.bytes - bytes,
                            pool,
                        });
                        place.bytes = bytes;
                    }
                    places[index] = place;
                }
                Event::Free { index } => heap.free(places[index]),
            }
        }
        heap.reserved
    }
}

#[derive(Clone, Copy, Default)]
struct Place {
    start: u64,
    bytes: u64,
    pool: usize,
}

/// Free chunks by size and by address. Regions lie apart, so that neighbours are of one region.
#[derive(Default)]
struct Heap {
    by_size: BTreeSet<(usize, u64, u64)>,
    by_start: BTreeMap<u64, Place>,
    end: u64,
    reserved: u64,
}

impl Heap {
    fn grow(&mut self, pool: usize, bytes: u64) -> Place {
        let start = self.end + 1;
        self.end = start + bytes;
        self.reserved += bytes;
        Place { start, bytes, pool }
    }

    /// Takes `bytes` at the end, what is free there included.
    fn extend(&mut self, bytes: u64) -> Place {
        let last = self.by_start.last_key_value().map(|(_, place)| *place);
        let last = last.filter(|last| last.start + last.bytes == self.end);
        if let Some(last) = last {
            self.by_start.remove(&last.start);
            self.by_size.remove(&(last.pool, last.bytes, last.start));
        }
        let start = last.map_or(self.end, |last| last.start);
        self.end = start + bytes;
        self.reserved = self.reserved.max(self.end);
        Place {
            start,
            bytes,
            pool: 0,
        }
    }

    fn take(&mut self, pool: usize, bytes: u64) -> Option<Place> {
        let best = self.by_size.range((pool, bytes, 0)..).next();
        let &(_, _, start) = best.filter(|best| best.0 == pool)?;
        let place = self.by_start.remove(&start)?;
        self.by_size.remove(&(pool, place.bytes, start));
        Some(place)
    }

    fn list(&mut self, place: Place) {
        self.by_size.insert((place.pool, place.bytes, place.start));
        self.by_start.insert(place.start, place);
    }

    fn free(&mut self, mut place: Place) {
        let before = self.by_start.range(..place.start).next_back();
        let before = before.map(|(_, place)| *place);
        let after = self.by_start.get(&(place.start + place.bytes)).copied();
        for neighbour in before.into_iter().chain(after) {
            let touches = neighbour.start + neighbour.bytes == place.start
                || place.start + place.bytes == neighbour.start;
            if touches {
                self.by_start.remove(&neighbour.start);
                self.by_size
                    .remove(&(neighbour.pool, neighbour.bytes, neighbour.start));
                place.start = place.start.min(neighbour.start);
                place.bytes += neighbour.bytes;
            }
        }
        self.list(place);
    }
}
