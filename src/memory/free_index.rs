//! The free chunks in the order in which best fit tries them.
//!
//! Sizes are divided into bins: one for each small size, then 32 for each power of two. A bitmap tells
//! which bins hold something, so the next bin with a chunk is found in a few instructions. The chunks of
//! one bin are ordered by [`Slot::key`]: as a list while they are few, which is nearly always, else as a
//! treap (a search tree that random priorities keep shallow) until the bin is empty. Bins follow each
//! other in size, so the order over all bins is exactly the order of the keys. Links are in the chunks'
//! own slots: nothing is allocated here.

use super::QUANTUM;
use super::slots::{NONE, Slot, Slots};

/// Each power of two is divided into `1 << SPLIT` bins.
const SPLIT: u32 = 5;
/// A `u64` of bytes is less than 2^56 quanta; the sizes below `1 << SPLIT` share the first row of bins.
const BINS: usize = ((56 - SPLIT as usize) + 1) << SPLIT;
const WORDS: usize = BINS / 64;
/// Most chunks in a list: in recorded traces a new one passes 0.3 to 0.7 others on its way.
const LONGEST_LIST: u16 = 32;

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
    /// Chunks in the list.
    listed: u16,
    is_treap: bool,
}

const EMPTY: Bin = Bin {
    first: NONE,
    listed: 0,
    is_treap: false,
};

/// The free chunks, ordered by [`Slot::key`]; each is known by its slot. While a chunk is here its
/// size and address stay.
#[derive(Debug)]
pub(super) struct FreeIndex {
    bins: Box<[Bin; BINS]>,
    /// One bit for each bin that holds a chunk.
    filled: [u64; WORDS],
    /// One bit for each word of `filled` that is not 0.
    filled_words: u64,
    /// Chunks that ever came, and their bytes.
    came: [u64; 2],
    /// Chunks that left.
    left: u64,
}

impl FreeIndex {
    pub(super) fn new() -> Self {
        FreeIndex {
            bins: Box::new([EMPTY; BINS]),
            filled: [0; WORDS],
            filled_words: 0,
            came: [0; 2],
            left: 0,
        }
    }

    /// Number of chunks.
    pub(super) fn len(&self) -> u64 {
        self.came[0] - self.left
    }

    /// Number and bytes of all chunks that were ever inserted.
    pub(super) fn came(&self) -> [u64; 2] {
        self.came
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, slots: &mut Slots, slot: u32) {
        let chunk = &mut slots[slot];
        self.came[0] += 1;
        // A sum that wraps is right as long as differences fit.
        self.came[1] = self.came[1].wrapping_add(chunk.bytes);
        let number = bin_of(chunk.bytes);
        chunk.bin = number as u16;
        chunk.links = [NONE; 2];
        let bin = &mut self.bins[number];
        // Mostly its bin is empty.
        if bin.first == NONE {
            bin.first = slot;
            bin.listed = 1;
            self.filled[number / 64] |= 1 << (number % 64);
            self.filled_words |= 1 << (number / 64);
        } else {
            bin.insert(slots, slot);
        }
    }

    /// Takes out a chunk that was inserted.
    #[inline]
    pub(super) fn remove(&mut self, slots: &mut Slots, slot: u32) {
        self.left += 1;
        let Slot { links, bin, .. } = slots[slot];
        let number = usize::from(bin);
        let bin = &mut self.bins[number];
        if bin.is_treap {
            bin.unhang(slots, slot);
            if bin.first == NONE {
                self.empty(number);
            }
            return;
        }
        let [before, after] = links;
        bin.listed -= 1;
        if after != NONE {
            slots[after].links[BEFORE] = before;
        }
        if before != NONE {
            slots[before].links[AFTER] = after;
        } else if after != NONE {
            bin.first = after;
        } else {
            self.empty(number);
        }
    }

    /// Notes that a bin holds nothing any more.
    #[inline]
    fn empty(&mut self, number: usize) {
        self.bins[number] = EMPTY;
        let word = &mut self.filled[number / 64];
        *word &= !(1 << (number % 64));
        if *word == 0 {
            self.filled_words &= !(1 << (number / 64));
        }
    }

    /// Takes out the smallest chunk of at least `bytes`, lowest address first among equals.
    #[inline]
    pub(super) fn take_best(&mut self, slots: &mut Slots, bytes: u64) -> Option<u32> {
        let number = self.next_filled(bin_of(bytes))?;
        let first = self.bins[number].first;
        let chunk = &slots[first];
        if chunk.bytes < bytes || self.bins[number].is_treap {
            return self.take_best_behind(slots, number, bytes);
        }
        // The head of a list is the lowest of its bin.
        self.left += 1;
        match chunk.links[AFTER] {
            NONE => self.empty(number),
            after => {
                let bin = &mut self.bins[number];
                bin.first = after;
                bin.listed -= 1;
                slots[after].links[BEFORE] = NONE;
            }
        }
        Some(first)
    }

    /// [`FreeIndex::take_best`] where the chunk is not the head of the bin, the lowest that can hold
    /// such a chunk.
    #[inline(never)]
    fn take_best_behind(
        &mut self,
        slots: &mut Slots,
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
    pub(super) fn largest(&self, slots: &Slots) -> u64 {
        let Some(word) = self.filled_words.checked_ilog2() else {
            return 0;
        };
        let word = word as usize;
        let bit = self.filled[word].checked_ilog2().unwrap_or(0) as usize;
        let mut largest = 0;
        let mut at = self.bins[word * 64 + bit].first;
        // In a list and in a treap alike the way to higher keys.
        while let Some(chunk) = slots.get(at) {
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
    /// Adds a chunk to others.
    #[inline(always)]
    fn insert(&mut self, slots: &mut Slots, slot: u32) {
        if self.is_treap || self.listed == LONGEST_LIST {
            return self.insert_into_treap(slots, slot);
        }
        self.listed += 1;
        let key = slots[slot].key();
        let (mut before, mut after) = (NONE, self.first);
        while let Some(chunk) = slots.get(after)
            && chunk.key() < key
        {
            (before, after) = (after, chunk.links[AFTER]);
        }
        slots[slot].links = [before, after];
        match before {
            NONE => self.first = slot,
            before => slots[before].links[AFTER] = slot,
        }
        if after != NONE {
            slots[after].links[BEFORE] = slot;
        }
    }

    #[inline(never)]
    fn insert_into_treap(&mut self, slots: &mut Slots, slot: u32) {
        if !self.is_treap {
            self.is_treap = true;
            let mut at = std::mem::replace(&mut self.first, NONE);
            while at != NONE {
                let after = slots[at].links[AFTER];
                self.hang(slots, at);
                at = after;
            }
        }
        self.hang(slots, slot);
    }

    /// The chunk with the lowest key of at least `bytes`.
    #[inline]
    fn best(&self, slots: &Slots, bytes: u64) -> Option<u32> {
        if self.is_treap {
            return self.best_in_treap(slots, bytes);
        }
        let mut at = self.first;
        while let Some(chunk) = slots.get(at) {
            if chunk.bytes >= bytes {
                return Some(at);
            }
            at = chunk.links[AFTER];
        }
        None
    }

    fn best_in_treap(&self, slots: &Slots, bytes: u64) -> Option<u32> {
        let mut found = None;
        let mut at = self.first;
        while let Some(chunk) = slots.get(at) {
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
    fn hang(&mut self, slots: &mut Slots, slot: u32) {
        let (key, own) = (slots[slot].key(), priority(slot));
        // It goes above the first of lower priority on its way down...
        let mut above = None;
        let mut at = self.first;
        while at != NONE && priority(at) >= own {
            let chunk = &slots[at];
            let side = if key < chunk.key() { LOWER } else { HIGHER };
            above = Some((at, side));
            at = chunk.links[side];
        }
        *self.link(slots, above) = slot;

        // ...and what hung there is split into its lower and its higher side.
        let mut ends = [(slot, LOWER), (slot, HIGHER)];
        while let Some(chunk) = slots.get(at) {
            let (side, other) = if chunk.key() < key {
                (LOWER, HIGHER)
            } else {
                (HIGHER, LOWER)
            };
            let next = chunk.links[other];
            let (parent, end) = ends[side];
            slots[parent].links[end] = at;
            ends[side] = (at, other);
            at = next;
        }
        for (parent, end) in ends {
            slots[parent].links[end] = NONE;
        }
    }

    /// What hangs from a chunk's side, or the root.
    fn link<'a>(&'a mut self, slots: &'a mut Slots, above: Option<(u32, usize)>) -> &'a mut u32 {
        match above {
            Some((parent, side)) => &mut slots[parent].links[side],
            None => &mut self.first,
        }
    }

    /// Takes a chunk out of the treap.
    #[inline(never)]
    fn unhang(&mut self, slots: &mut Slots, slot: u32) {
        let Slot { links, .. } = slots[slot];
        let key = slots[slot].key();
        let mut above = None;
        let mut at = self.first;
        while at != slot {
            let chunk = &slots[at];
            let side = if key < chunk.key() { LOWER } else { HIGHER };
            above = Some((at, side));
            at = chunk.links[side];
        }
        // Its two sides are merged in its place, the higher priority on top.
        let [mut lower, mut higher] = links;
        while lower != NONE && higher != NONE {
            if priority(lower) >= priority(higher) {
                *self.link(slots, above) = lower;
                above = Some((lower, HIGHER));
                lower = slots[lower].links[HIGHER];
            } else {
                *self.link(slots, above) = higher;
                above = Some((higher, LOWER));
                higher = slots[higher].links[LOWER];
            }
        }
        *self.link(slots, above) = if lower == NONE { higher } else { lower };
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
        (0..SLOTS).for_each(|slot| assert_eq!(slots.occupy(), slot));
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
            let slot = random(SLOTS.into()) as u32;
            let Slot { bytes, address, .. } = slots[slot];
            let was_in = model.remove(&(bytes, address, slot));
            if was_in {
                index.remove(&mut slots, slot);
            }
            if !was_in || random(2) == 0 {
                // Now many sizes, now many chunks of a few.
                let sizes = if step / phase % 2 == 0 { 17 } else { 1 };
                let bytes = (1 + random(40 * sizes / 17 + 1)) << (8 + random(3) * random(sizes));
                let address = (random(3) << 40) + u64::from(slot) * QUANTUM;
                (slots[slot].bytes, slots[slot].address) = (bytes, address);
                model.insert((bytes, address, slot));
                index.insert(&mut slots, slot);
            }
            let asked = (1 + random(40)) << (8 + random(3) * random(17));
            let expected = model.range((asked, 0, 0)..).next().copied();
            let found = index.take_best(&mut slots, asked);
            assert_eq!(found, expected.map(|(_, _, slot)| slot));
            if let Some(slot) = found {
                index.insert(&mut slots, slot);
            }
            assert_eq!(index.len(), model.len() as u64);
            let largest = model.last().map_or(0, |&(bytes, _, _)| bytes);
            assert_eq!(index.largest(&slots), largest);
            if step % 50 == 0 {
                treaps += u64::from(index.bins.iter().any(|bin| bin.is_treap));
            }
        }
        assert!(
            (1..steps / 50).contains(&treaps),
            "bins of both kinds: {treaps}"
        );
    }
}
