//! The free chunks in the order in which best fit tries them.
//!
//! Sizes are divided into bins: one for each small size, then 32 for each power of two. A bitmap tells
//! which bins hold something, so the next bin with a chunk is found in a few instructions. The chunks of
//! one bin are ordered by [`Slot::key`]: as a list while they are few, which is nearly always, else as a
//! treap (a search tree that random priorities keep shallow) until the bin is empty. Bins follow each
//! other in size, so the order over all bins is exactly the order of the keys. Links are in the chunks'
//! own slots: nothing is allocated here.

use super::QUANTUM;
use super::slots::{NONE, Slot};

/// Each power of two is divided into `1 << SPLIT` bins.
const SPLIT: u32 = 5;
/// A `u64` of bytes is less than 2^56 quanta; the sizes below `1 << SPLIT` share the first row of bins.
const BINS: usize = ((56 - SPLIT as usize) + 1) << SPLIT;
const WORDS: usize = BINS / 64;
/// Most chunks in a list: in recorded traces a new one passes 0.3 to 0.7 others on its way.
const LONGEST_LIST: u32 = 32;

/// Links of a list lead to the chunk before and the one after.
const BEFORE: usize = 0;
const AFTER: usize = 1;
/// Links of a treap lead to the children, of lower and of higher keys.
const LOWER: usize = 0;
const HIGHER: usize = 1;

#[derive(Clone, Copy, Debug)]
struct Bin {
    /// The head of the list, the root of the treap, or [`NONE`].
    first: u32,
    /// Chunks in the list, or [`TREAP`].
    listed: u32,
}

const EMPTY: Bin = Bin {
    first: NONE,
    listed: 0,
};

/// Stands for the number of chunks in a treap.
const TREAP: u32 = u32::MAX;

/// The free chunks, ordered by [`Slot::key`]; each is known by its slot. While a chunk is here its
/// size and address stay.
#[derive(Debug)]
pub(super) struct FreeIndex {
    bins: Box<[Bin; BINS]>,
    /// One bit for each bin that holds a chunk.
    filled: [u64; WORDS],
    /// One bit for each word of `filled` that is not 0.
    filled_words: u64,
    /// Chunks that ever came.
    came: u64,
    /// Chunks that left.
    left: u64,
    /// Bytes of the chunks that ever came.
    came_bytes: u64,
}

impl FreeIndex {
    pub(super) fn new() -> Self {
        FreeIndex {
            bins: Box::new([EMPTY; BINS]),
            filled: [0; WORDS],
            filled_words: 0,
            came: 0,
            left: 0,
            came_bytes: 0,
        }
    }

    /// Number of chunks.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.came - self.left
    }

    /// Number and bytes of all chunks that were ever inserted.
    pub(super) fn came(&self) -> [u64; 2] {
        [self.came, self.came_bytes]
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, slots: &mut [Slot], slot: u32) {
        let chunk = &mut slots[slot as usize];
        self.came += 1;
        // A sum that wraps is right as long as differences fit.
        self.came_bytes = self.came_bytes.wrapping_add(chunk.bytes);
        let (number, key) = (bin_of(chunk.bytes), chunk.key());
        chunk.bin = number as u16;
        let bin = &mut self.bins[number];
        let first = bin.first;
        // Mostly its bin is empty, and nothing has a higher key than what stands for nothing.
        if slots[first as usize].key() < key || bin.is_crowded() {
            return bin.insert(slots, slot, key);
        }
        slots[slot as usize].links = [NONE, first];
        slots[first as usize].links[BEFORE] = slot;
        bin.listed += 1;
        bin.first = slot;
        self.filled[number / 64] |= 1 << (number % 64);
        self.filled_words |= 1 << (number / 64);
    }

    /// Takes out a chunk that was inserted.
    #[inline]
    pub(super) fn remove(&mut self, slots: &mut [Slot], slot: u32) {
        let Slot { links, bin, .. } = slots[slot as usize];
        let number = usize::from(bin);
        let bin = &mut self.bins[number];
        if bin.is_treap() {
            bin.unhang(slots, slot);
            let is_empty = bin.first == NONE;
            if is_empty {
                *bin = EMPTY;
            }
            return self.left(number, is_empty);
        }
        let [before, after] = links;
        slots[after as usize].links[BEFORE] = before;
        slots[before as usize].links[AFTER] = after;
        bin.listed -= 1;
        if before == NONE {
            bin.first = after;
        }
        self.left(number, before | after == NONE);
    }

    /// Notes that a chunk has left a bin, the last one or not. Without a branch, because nobody foresees which.
    #[inline(always)]
    fn left(&mut self, number: usize, the_last: bool) {
        self.left += 1;
        let word = &mut self.filled[number / 64];
        *word &= !(u64::from(the_last) << (number % 64));
        self.filled_words &= !(u64::from(*word == 0) << (number / 64));
    }

    /// Takes out the smallest chunk of at least `bytes`, lowest address first among equals.
    #[inline(always)]
    pub(super) fn take_best(&mut self, slots: &mut [Slot], bytes: u64) -> Option<u32> {
        let number = self.next_filled(bin_of(bytes))?;
        let bin = &mut self.bins[number];
        let first = bin.first;
        let chunk = &slots[first as usize];
        if chunk.bytes < bytes || bin.is_treap() {
            return self.take_best_behind(slots, number, bytes);
        }
        // The head of a list is the lowest of its bin.
        let after = chunk.links[AFTER];
        slots[after as usize].links[BEFORE] = NONE;
        bin.listed -= 1;
        bin.first = after;
        self.left(number, after == NONE);
        Some(first)
    }

    /// [`FreeIndex::take_best`] where the chunk is not the head of the bin, the lowest that can hold
    /// such a chunk.
    #[inline(never)]
    fn take_best_behind(
        &mut self,
        slots: &mut [Slot],
        mut number: usize,
        bytes: u64,
    ) -> Option<u32> {
        let mut found = self.bins[number].best(slots, bytes);
        if found.is_none() {
            number = self.next_filled(number + 1)?;
            found = self.bins[number].best(slots, bytes);
        }
        let slot = found?;
        self.remove(slots, slot);
        Some(slot)
    }

    /// Bytes of the largest chunk, 0 when there is none.
    pub(super) fn largest(&self, slots: &[Slot]) -> u64 {
        let Some(word) = self.filled_words.checked_ilog2() else {
            return 0;
        };
        let word = word as usize;
        let bit = self.filled[word].checked_ilog2().unwrap_or(0) as usize;
        let mut largest = 0;
        let mut at = self.bins[word * 64 + bit].first;
        // In a list and in a treap alike the way to higher keys.
        while at != NONE {
            let chunk = &slots[at as usize];
            largest = chunk.bytes;
            at = chunk.links[HIGHER];
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

impl Bin {
    #[inline]
    fn is_treap(self) -> bool {
        self.listed == TREAP
    }

    /// Whether one more would be too many for a list, or it is none.
    #[inline]
    fn is_crowded(self) -> bool {
        self.listed >= LONGEST_LIST
    }

    /// Adds a chunk behind others.
    #[inline(always)]
    fn insert(&mut self, slots: &mut [Slot], slot: u32, key: u128) {
        if self.is_crowded() {
            return self.insert_into_treap(slots, slot);
        }
        self.listed += 1;
        let mut before = self.first;
        let mut after = slots[before as usize].links[AFTER];
        while slots[after as usize].key() < key {
            before = after;
            after = slots[before as usize].links[AFTER];
        }
        slots[slot as usize].links = [before, after];
        slots[before as usize].links[AFTER] = slot;
        slots[after as usize].links[BEFORE] = slot;
    }

    #[inline(never)]
    fn insert_into_treap(&mut self, slots: &mut [Slot], slot: u32) {
        if !self.is_treap() {
            let mut at = self.first;
            *self = Bin {
                first: NONE,
                listed: TREAP,
            };
            while at != NONE {
                let after = slots[at as usize].links[AFTER];
                self.hang(slots, at);
                at = after;
            }
        }
        self.hang(slots, slot);
    }

    /// The chunk with the lowest key of at least `bytes`.
    #[inline]
    fn best(&self, slots: &[Slot], bytes: u64) -> Option<u32> {
        if self.is_treap() {
            return self.best_in_treap(slots, bytes);
        }
        let mut at = self.first;
        while slots[at as usize].bytes < bytes {
            at = slots[at as usize].links[AFTER];
        }
        (at != NONE).then_some(at)
    }

    fn best_in_treap(&self, slots: &[Slot], bytes: u64) -> Option<u32> {
        let mut found = None;
        let mut at = self.first;
        while at != NONE {
            let chunk = &slots[at as usize];
            let side = if chunk.bytes >= bytes {
                found = Some(at);
                LOWER
            } else {
                HIGHER
            };
            at = chunk.links[side];
        }
        found
    }

    /// Hangs a chunk into the treap.
    fn hang(&mut self, slots: &mut [Slot], slot: u32) {
        let (key, own) = (slots[slot as usize].key(), priority(slot));
        // It goes above the first of lower priority on its way down...
        let mut above = None;
        let mut at = self.first;
        while at != NONE && priority(at) >= own {
            let chunk = &slots[at as usize];
            let side = if key < chunk.key() { LOWER } else { HIGHER };
            above = Some((at, side));
            at = chunk.links[side];
        }
        self.link(slots, above, slot);

        // ...and what hung there is split into its lower and its higher side.
        let mut ends = [(slot, LOWER), (slot, HIGHER)];
        while at != NONE {
            let chunk = &slots[at as usize];
            let (side, other) = if chunk.key() < key {
                (LOWER, HIGHER)
            } else {
                (HIGHER, LOWER)
            };
            let next = chunk.links[other];
            let (parent, end) = ends[side];
            slots[parent as usize].links[end] = at;
            ends[side] = (at, other);
            at = next;
        }
        for (parent, end) in ends {
            slots[parent as usize].links[end] = NONE;
        }
    }

    /// Hangs a chunk from another's side, or as the root.
    fn link(&mut self, slots: &mut [Slot], above: Option<(u32, usize)>, slot: u32) {
        match above {
            Some((parent, side)) => slots[parent as usize].links[side] = slot,
            None => self.first = slot,
        }
    }

    /// Takes a chunk out of the treap.
    #[inline(never)]
    fn unhang(&mut self, slots: &mut [Slot], slot: u32) {
        let Slot { links, .. } = slots[slot as usize];
        let key = slots[slot as usize].key();
        let mut above = None;
        let mut at = self.first;
        while at != slot {
            let chunk = &slots[at as usize];
            let side = if key < chunk.key() { LOWER } else { HIGHER };
            above = Some((at, side));
            at = chunk.links[side];
        }
        // Its two sides are merged in its place, the higher priority on top.
        let [mut lower, mut higher] = links;
        while lower != NONE && higher != NONE {
            if priority(lower) >= priority(higher) {
                self.link(slots, above, lower);
                above = Some((lower, HIGHER));
                lower = slots[lower as usize].links[HIGHER];
            } else {
                self.link(slots, above, higher);
                above = Some((higher, LOWER));
                higher = slots[higher as usize].links[LOWER];
            }
        }
        self.link(slots, above, if lower == NONE { higher } else { lower });
    }
}

/// The bin of a size: row 0 holds the sizes below 32 quanta, row `r` those from `32 << (r - 1)` on.
#[inline]
fn bin_of(bytes: u64) -> usize {
    let quanta = bytes / QUANTUM;
    let shift = (quanta | 1 << SPLIT).ilog2() - SPLIT;
    // The top bits of the size are 1 and the bin within its row: the 1 carries into the row number.
    ((shift as usize) << SPLIT) + (quanta >> shift) as usize
}

/// Spreads slots over priorities (the finaliser of MurmurHash3): random enough, and the same each time.
fn priority(slot: u32) -> u32 {
    let mut mixed = slot.wrapping_add(0x9e37_79b9);
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}

#[cfg(test)]
mod tests {
    use super::super::slots::Slots;
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
        const SLOTS: u32 = 300;
        let mut slots = Slots::new();
        (1..=SLOTS).for_each(|slot| assert_eq!(slots.occupy(), slot));
        let (slots, _) = slots.parts();
        let mut index = FreeIndex::new();
        let mut model: BTreeSet<(u64, u64, u32)> = BTreeSet::new();
        let mut state: u32 = 1;
        let mut random = |end: u64| {
            state = priority(state);
            u64::from(state) % end
        };
        let mut treaps = 0;
        // Miri takes milliseconds for each.
        let (steps, phase) = if cfg!(miri) {
            (600, 300)
        } else {
            (200_000, 1000)
        };
        for step in 0..steps {
            let slot = 1 + random(SLOTS.into()) as u32;
            let Slot { bytes, address, .. } = slots[slot as usize];
            let was_in = model.remove(&(bytes, address, slot));
            if was_in {
                index.remove(slots, slot);
            }
            if !was_in || random(2) == 0 {
                // Now many sizes, now many chunks of a few.
                let sizes = if step / phase % 2 == 0 { 17 } else { 1 };
                let bytes = (1 + random(40 * sizes / 17 + 1)) << (8 + random(3) * random(sizes));
                let address = (random(3) << 40) + u64::from(slot) * QUANTUM;
                (slots[slot as usize].bytes, slots[slot as usize].address) = (bytes, address);
                model.insert((bytes, address, slot));
                index.insert(slots, slot);
            }
            let asked = (1 + random(40)) << (8 + random(3) * random(17));
            let expected = model.range((asked, 0, 0)..).next().copied();
            let found = index.take_best(slots, asked);
            assert_eq!(found, expected.map(|(_, _, slot)| slot));
            if let Some(slot) = found {
                index.insert(slots, slot);
            }
            assert_eq!(index.len(), model.len() as u64);
            let largest = model.last().map_or(0, |&(bytes, _, _)| bytes);
            assert_eq!(index.largest(slots), largest);
            if step % 50 == 0 {
                treaps += u64::from(index.bins.iter().any(|bin| bin.is_treap()));
            }
        }
        assert!(
            (1..steps / 50).contains(&treaps),
            "bins of both kinds: {treaps}"
        );
    }
}
