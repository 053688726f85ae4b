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

/// The children of a node, of lower and of higher keys.
type Children = [u32; 2];
const LOWER: usize = 0;
const HIGHER: usize = 1;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: Key,
    children: Children,
    /// At least that of its children.
    priority: u32,
    bin: u16,
}

/// The free chunks, ordered by [`Key`]; each is known by its slot.
#[derive(Debug)]
pub(super) struct FreeIndex {
    nodes: Vec<Node>,
    /// The roots of the bins.
    roots: Box<[u32; BINS]>,
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
            roots: Box::new([NONE; BINS]),
            filled: [0; WORDS],
            filled_words: 0,
            chunks: 0,
        }
    }

    /// Number of chunks.
    pub(super) fn len(&self) -> u64 {
        self.chunks
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, slot: u32, key: Key) {
        self.chunks += 1;
        if self.nodes.len() <= slot as usize {
            self.grow(slot);
        }
        let bin = bin_of(key.bytes);
        let node = &mut self.nodes[slot as usize];
        node.key = key;
        node.children = [NONE; 2];
        node.bin = bin as u16;
        // Mostly its bin is empty.
        if self.roots[bin] == NONE {
            self.roots[bin] = slot;
            self.filled[bin / 64] |= 1 << (bin % 64);
            self.filled_words |= 1 << (bin / 64);
        } else {
            self.hang(slot);
        }
    }

    /// Makes room for nodes up to `slot`.
    #[cold]
    fn grow(&mut self, slot: u32) {
        for slot in self.nodes.len() as u32..=slot {
            self.nodes.push(Node {
                key: Key::default(),
                children: [NONE; 2],
                priority: scatter(slot),
                bin: 0,
            });
        }
    }

    /// Hangs a node into the tree of its bin.
    #[inline(never)]
    fn hang(&mut self, slot: u32) {
        let Node {
            key, priority, bin, ..
        } = self.nodes[slot as usize];
        let bin = usize::from(bin);
        // The node goes above the first node of lower priority on its way down...
        let mut above = None;
        let mut at = self.roots[bin];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.priority < priority {
                break;
            }
            let side = if key < node.key { LOWER } else { HIGHER };
            above = Some((at, side));
            at = node.children[side];
        }
        *self.link(bin, above) = slot;

        // ...and what hung there is split into its lower and its higher side.
        let mut ends = [(slot, LOWER), (slot, HIGHER)];
        while at != NONE {
            let node = &self.nodes[at as usize];
            let (side, other) = if node.key < key {
                (LOWER, HIGHER)
            } else {
                (HIGHER, LOWER)
            };
            let next = node.children[other];
            let (parent, end) = ends[side];
            self.nodes[parent as usize].children[end] = at;
            ends[side] = (at, other);
            at = next;
        }
        for (parent, end) in ends {
            self.nodes[parent as usize].children[end] = NONE;
        }
    }

    /// What hangs from a node's side, or from the root of a bin.
    fn link(&mut self, bin: usize, above: Option<(u32, usize)>) -> &mut u32 {
        match above {
            Some((parent, side)) => &mut self.nodes[parent as usize].children[side],
            None => &mut self.roots[bin],
        }
    }

    /// Takes out a chunk that was inserted.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) {
        self.chunks -= 1;
        let Node { children, bin, .. } = self.nodes[slot as usize];
        if self.roots[usize::from(bin)] == slot && is_leaf(children) {
            self.empty(usize::from(bin));
        } else {
            self.find_and_unhang(slot);
        }
    }

    /// Notes that a bin holds nothing any more.
    #[inline]
    fn empty(&mut self, bin: usize) {
        self.roots[bin] = NONE;
        let word = &mut self.filled[bin / 64];
        *word &= !(1 << (bin % 64));
        if *word == 0 {
            self.filled_words &= !(1 << (bin / 64));
        }
    }

    #[inline(never)]
    fn find_and_unhang(&mut self, slot: u32) {
        let Node { key, bin, .. } = self.nodes[slot as usize];
        let bin = usize::from(bin);
        let mut above = None;
        let mut at = self.roots[bin];
        while at != slot {
            let node = &self.nodes[at as usize];
            let side = if key < node.key { LOWER } else { HIGHER };
            above = Some((at, side));
            at = node.children[side];
        }
        self.unhang(slot, bin, above);
    }

    /// Takes a node that is not alone in its bin out from where it hangs.
    fn unhang(&mut self, slot: u32, bin: usize, mut above: Option<(u32, usize)>) {
        let [mut lower, mut higher] = self.nodes[slot as usize].children;
        // Its two sides are merged in its place, the higher priority on top.
        while lower != NONE && higher != NONE {
            if self.nodes[lower as usize].priority >= self.nodes[higher as usize].priority {
                *self.link(bin, above) = lower;
                above = Some((lower, HIGHER));
                lower = self.nodes[lower as usize].children[HIGHER];
            } else {
                *self.link(bin, above) = higher;
                above = Some((higher, LOWER));
                higher = self.nodes[higher as usize].children[LOWER];
            }
        }
        *self.link(bin, above) = if lower == NONE { higher } else { lower };
    }

    /// Gives a chunk that was inserted another key.
    #[inline]
    pub(super) fn change(&mut self, slot: u32, key: Key) {
        self.remove(slot);
        self.insert(slot, key);
    }

    /// Takes out the smallest chunk of at least `bytes`, lowest address first among equals.
    #[inline]
    pub(super) fn take_best(&mut self, bytes: u64) -> Option<u32> {
        let mut bin = bin_of(bytes);
        let mut root = self.roots[bin];
        if root == NONE {
            bin = self.next_filled(bin + 1)?;
            root = self.roots[bin];
        }
        let node = &self.nodes[root as usize];
        if is_leaf(node.children) && node.key.bytes >= bytes {
            self.empty(bin);
            self.chunks -= 1;
            return Some(root);
        }
        self.take_best_of_several(bin, bytes)
    }

    /// [`FreeIndex::take_best`] where `bin`, the lowest that can hold such a chunk, has several, or one
    /// that is too small.
    #[inline(never)]
    fn take_best_of_several(&mut self, mut bin: usize, bytes: u64) -> Option<u32> {
        let mut found = self.best_in(bin, bytes);
        if found.is_none() {
            bin = self.next_filled(bin + 1)?;
            found = self.best_in(bin, bytes);
        }
        let (slot, above) = found?;
        if above.is_none() && is_leaf(self.nodes[slot as usize].children) {
            self.empty(bin);
        } else {
            self.unhang(slot, bin, above);
        }
        self.chunks -= 1;
        Some(slot)
    }

    /// The node with the lowest key of at least `bytes` in a bin, and what it hangs from.
    fn best_in(&self, bin: usize, bytes: u64) -> Option<(u32, Option<(u32, usize)>)> {
        let mut found = None;
        let mut above = None;
        let mut at = self.roots[bin];
        while at != NONE {
            let node = &self.nodes[at as usize];
            let side = if node.key.bytes >= bytes {
                found = Some((at, above));
                LOWER
            } else {
                HIGHER
            };
            above = Some((at, side));
            at = node.children[side];
        }
        found
    }

    /// Bytes of the largest chunk, 0 when there is none.
    pub(super) fn largest(&self) -> u64 {
        let Some(word) = self.filled_words.checked_ilog2() else {
            return 0;
        };
        let word = word as usize;
        let bit = self.filled[word].checked_ilog2().unwrap_or(0) as usize;
        let mut largest = 0;
        let mut at = self.roots[word * 64 + bit];
        while at != NONE {
            let node = &self.nodes[at as usize];
            largest = node.key.bytes;
            at = node.children[HIGHER];
        }
        largest
    }

    /// The first filled bin from `bin` on.
    #[inline]
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
}

fn is_leaf(children: Children) -> bool {
    children == [NONE; 2]
}

/// The bin of a size: row 0 holds the sizes below 32 quanta, row `r` those from `32 << (r - 1)` on.
#[inline]
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
            let expected = model.range((lowest, 0)..).next().copied();
            assert_eq!(index.take_best(asked), expected.map(|(_, slot)| slot));
            if let Some((key, slot)) = expected {
                index.insert(slot, key);
            }
            assert_eq!(index.len(), model.len() as u64);
            assert_eq!(
                index.largest(),
                model.last().map_or(0, |(key, _)| key.bytes)
            );
        }
    }
}
