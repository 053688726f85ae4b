//! The free chunks in the order in which best fit tries them.
//!
//! Sizes are divided into bins: one for each small size, then 32 for each power of two. A bitmap tells
//! which bins hold something, so the next bin with a chunk is found in a few instructions. The chunks of
//! one bin form a treap (a search tree that random priorities keep shallow), ordered by [`Key`]. Bins
//! follow each other in size, so the order over all bins is exactly the order of the keys. Nodes live in
//! one vector that is indexed by the chunk's slot: nothing is allocated but when that vector grows.

use super::QUANTUM;

/// Where a free chunk stands: by size first, then by address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) bytes: u64,
    /// Counts regions in the order of their creation.
    pub(super) region_order: u64,
    pub(super) offset: u64,
}

/// Stands for "no node" in links.
const NONE: u32 = u32::MAX;
/// Each power of two is divided into `1 << SPLIT` bins.
const SPLIT: u32 = 5;
/// A `u64` of bytes is less than 2^56 quanta; the sizes below `1 << SPLIT` share the first row of bins.
const BINS: usize = ((56 - SPLIT as usize) + 1) << SPLIT;
const WORDS: usize = BINS / 64;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: Key,
    /// A node's priority is at least that of its children.
    priority: u32,
}

const LOWER: usize = 0;
const HIGHER: usize = 1;

/// The place in `links` of a node's link to one of its children.
fn child(slot: u32, side: usize) -> usize {
    BINS + 2 * slot as usize + side
}

/// The free chunks, ordered by [`Key`]; each is known by its slot.
#[derive(Debug)]
pub(super) struct FreeIndex {
    nodes: Vec<Node>,
    /// The roots of the bins, then for each node its child of lower keys and its child of higher keys:
    /// in one vector, so that a link is an index, whatever it hangs from.
    links: Vec<u32>,
    /// One bit for each bin that holds a chunk.
    filled: [u64; WORDS],
    /// One bit for each word of `filled` that is not 0.
    filled_words: u64,
    chunks: u64,
}

impl FreeIndex {
    pub(super) fn new() -> Self {
        FreeIndex {
            nodes: Vec::new(),
            links: vec![NONE; BINS],
            filled: [0; WORDS],
            filled_words: 0,
            chunks: 0,
        }
    }

    /// Number of chunks.
    pub(super) fn len(&self) -> u64 {
        self.chunks
    }

    pub(super) fn insert(&mut self, slot: u32, key: Key) {
        self.chunks += 1;
        while self.nodes.len() <= slot as usize {
            self.nodes.push(Node {
                key: Key::default(),
                priority: scatter(self.nodes.len() as u32),
            });
            self.links.extend([NONE; 2]);
        }
        let bin = bin_of(key.bytes);
        self.filled[bin / 64] |= 1 << (bin % 64);
        self.filled_words |= 1 << (bin / 64);

        // The node goes above the first node of lower priority on its way down...
        let priority = self.nodes[slot as usize].priority;
        let mut link = bin;
        let mut at = self.links[bin];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.priority < priority {
                break;
            }
            let side = if key < node.key { LOWER } else { HIGHER };
            link = child(at, side);
            at = self.links[link];
        }
        self.links[link] = slot;
        self.nodes[slot as usize].key = key;

        // ...and what hung there is split into its lower and its higher side.
        let mut ends = [child(slot, LOWER), child(slot, HIGHER)];
        while at != NONE {
            let node = &self.nodes[at as usize];
            let (side, other) = if node.key < key {
                (LOWER, HIGHER)
            } else {
                (HIGHER, LOWER)
            };
            self.links[ends[side]] = at;
            ends[side] = child(at, other);
            at = self.links[ends[side]];
        }
        self.links[ends[LOWER]] = NONE;
        self.links[ends[HIGHER]] = NONE;
    }

    /// Takes out a chunk that was inserted.
    pub(super) fn remove(&mut self, slot: u32) {
        self.chunks -= 1;
        let key = self.nodes[slot as usize].key;
        let bin = bin_of(key.bytes);
        let mut link = bin;
        let mut at = self.links[bin];
        while at != slot {
            let node = &self.nodes[at as usize];
            let side = if key < node.key { LOWER } else { HIGHER };
            link = child(at, side);
            at = self.links[link];
        }

        // Its two sides are merged in its place, the higher priority on top.
        let mut lower = self.links[child(slot, LOWER)];
        let mut higher = self.links[child(slot, HIGHER)];
        while lower != NONE && higher != NONE {
            if self.nodes[lower as usize].priority >= self.nodes[higher as usize].priority {
                self.links[link] = lower;
                link = child(lower, HIGHER);
                lower = self.links[link];
            } else {
                self.links[link] = higher;
                link = child(higher, LOWER);
                higher = self.links[link];
            }
        }
        self.links[link] = if lower == NONE { higher } else { lower };

        if self.links[bin] == NONE {
            self.filled[bin / 64] &= !(1 << (bin % 64));
            if self.filled[bin / 64] == 0 {
                self.filled_words &= !(1 << (bin / 64));
            }
        }
    }

    /// Gives a chunk that was inserted another key.
    pub(super) fn change(&mut self, slot: u32, key: Key) {
        let node = &mut self.nodes[slot as usize];
        let bin = bin_of(node.key.bytes);
        // Alone in its bin, and it stays there: what is left of a region's end is mostly so.
        let childless = self.links[child(slot, LOWER)] & self.links[child(slot, HIGHER)] == NONE;
        if bin == bin_of(key.bytes) && self.links[bin] == slot && childless {
            node.key = key;
        } else {
            self.remove(slot);
            self.insert(slot, key);
        }
    }

    /// The slot of the smallest chunk of at least `bytes`, lowest address first among equals.
    pub(super) fn best(&self, bytes: u64) -> Option<u32> {
        let bin = bin_of(bytes);
        // The request's own bin may hold chunks that are too small.
        let mut found = NONE;
        let mut at = self.links[bin];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.key.bytes >= bytes {
                found = at;
                at = self.links[child(at, LOWER)];
            } else {
                at = self.links[child(at, HIGHER)];
            }
        }
        if found != NONE {
            return Some(found);
        }
        let bin = self.next_filled(bin + 1)?;
        Some(self.outermost(bin, LOWER))
    }

    /// Bytes of the largest chunk, 0 when there is none.
    pub(super) fn largest(&self) -> u64 {
        let Some(word) = self.filled_words.checked_ilog2() else {
            return 0;
        };
        let word = word as usize;
        let bit = self.filled[word].checked_ilog2().unwrap_or(0) as usize;
        let slot = self.outermost(word * 64 + bit, HIGHER);
        self.nodes[slot as usize].key.bytes
    }

    /// The first filled bin from `bin` on.
    fn next_filled(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let rest = self.filled.get(word)? & (u64::MAX << (bin % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let later = self.filled_words & (u64::MAX << word << 1);
        let word = later.trailing_zeros() as usize;
        let bits = self.filled.get(word)?;
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The node with the lowest or the highest key of a filled bin.
    fn outermost(&self, bin: usize, side: usize) -> u32 {
        let mut at = self.links[bin];
        loop {
            let next = self.links[child(at, side)];
            if next == NONE {
                return at;
            }
            at = next;
        }
    }
}

/// The bin of a size: row 0 holds the sizes below 32 quanta, row `r` those from `32 << (r - 1)` on.
fn bin_of(bytes: u64) -> usize {
    let quanta = bytes / QUANTUM;
    let shift = (quanta | 1).ilog2().saturating_sub(SPLIT);
    // The top bits of the size are 1 and the bin within its row: the 1 carries into the row number.
    ((shift as usize) << SPLIT) + (quanta >> shift) as usize
}

/// Spreads slots over priorities (the finaliser of MurmurHash3): random enough, and the same each time.
fn scatter(slot: u32) -> u32 {
    let mut mixed = slot.wrapping_add(0x9e37_79b9);
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn bins_follow_each_other_in_size() {
        assert_eq!(bin_of(QUANTUM), 1);
        assert_eq!(bin_of(31 * QUANTUM), 31);
        assert_eq!(bin_of(32 * QUANTUM), 32);
        assert_eq!(bin_of(63 * QUANTUM), 63);
        assert_eq!(bin_of(64 * QUANTUM), 64);
        assert_eq!(bin_of(65 * QUANTUM), 64);
        assert_eq!(bin_of(66 * QUANTUM), 65);
        assert_eq!(bin_of(u64::MAX), BINS - 1);
        let mut sizes: Vec<u64> = (8..64)
            .flat_map(|bit| [1 << bit, (1 << bit) + (1 << bit) / 3])
            .collect();
        sizes.sort_unstable();
        assert!(sizes.is_sorted_by_key(|&bytes| bin_of(bytes)));
    }

    #[test]
    fn agrees_with_an_ordered_set() {
        let mut index = FreeIndex::new();
        let mut model: BTreeSet<(Key, u32)> = BTreeSet::new();
        let mut keys: Vec<Option<Key>> = vec![None; 300];
        let mut state: u32 = 1;
        let mut random = |end: u64| {
            state = scatter(state);
            u64::from(state) % end
        };
        // Miri takes milliseconds for each.
        for _ in 0..if cfg!(miri) { 150 } else { 100_000 } {
            let slot = random(300) as u32;
            let bytes = (1 + random(40)) << (8 + random(3) * random(17));
            let key = Key {
                bytes,
                region_order: random(3),
                offset: u64::from(slot) * QUANTUM,
            };
            let old = keys[slot as usize].take();
            if let Some(old) = old {
                model.remove(&(old, slot));
            }
            let stays = old.is_none() || random(2) == 0;
            match old {
                None => index.insert(slot, key),
                Some(_) if stays => index.change(slot, key),
                Some(_) => index.remove(slot),
            }
            if stays {
                keys[slot as usize] = Some(key);
                model.insert((key, slot));
            }
            let asked = (1 + random(40)) << (8 + random(3) * random(17));
            let lowest = Key {
                bytes: asked,
                ..Key::default()
            };
            let expected = model.range((lowest, 0)..).next().map(|&(_, slot)| slot);
            assert_eq!(index.best(asked), expected);
            assert_eq!(index.len(), model.len() as u64);
            assert_eq!(
                index.largest(),
                model.last().map_or(0, |(key, _)| key.bytes)
            );
        }
    }
}
