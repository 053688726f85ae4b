//! The slots that chunks live in: all that is known of a chunk, in one cache line.

use super::tags::Tag;

/// Stands for "no slot" in links: a slot in use for good, larger than all others, at both ends of everything. So
/// who follows a link need not ask whether it leads anywhere; links of its own are of no meaning.
pub(super) const NONE: u32 = 0;
/// Slots are counted in 32 bits; an operation adds at most two.
const MOST: usize = u32::MAX as usize - 2;

/// What is known of a block beside its chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Detail {
    /// Number of the allocation that made it, counted from 1.
    pub(super) number: u64,
    pub(super) tag: Tag,
    /// Bytes by which it was rounded up: one quantum at most.
    pub(super) rounding: u16,
}

impl Detail {
    /// Bytes that were asked for, of a block of `bytes`.
    #[inline]
    pub(super) fn requested(&self, bytes: u64) -> u64 {
        bytes - u64::from(self.rounding)
    }
}

/// A chunk in its slot, linked to its neighbours in the region. It fills a cache line, because each
/// operation looks at two to four of them, wherever they are.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// Where the chunk would lie if all regions there ever were followed each other, in order of creation.
    /// It wraps at 2^64 bytes of regions: then ties between equal sizes are not in order for a while.
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) detail: Detail,
    pub(super) region: u32,
    pub(super) previous: u32,
    /// In a vacant slot: the next vacant one.
    pub(super) next: u32,
    /// Counts the blocks that have lived in this slot.
    pub(super) generation: u32,
    /// How many hold the block where it is.
    pub(super) pins: u32,
    /// Of a free chunk: its place in the index.
    pub(super) links: [u32; 2],
    pub(super) bin: u16,
    pub(super) in_use: bool,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    const VACANT: Slot = Slot {
        address: 0,
        bytes: 0,
        detail: Detail {
            number: 0,
            tag: Tag::NONE,
            rounding: 0,
        },
        region: NONE,
        previous: NONE,
        next: NONE,
        generation: 0,
        pins: 0,
        links: [NONE; 2],
        bin: 0,
        in_use: false,
    };
    /// What is at [`NONE`]. No block has its generation.
    const END: Slot = Slot {
        address: u64::MAX,
        bytes: u64::MAX,
        generation: u32::MAX,
        in_use: true,
        ..Slot::VACANT
    };

    /// Its place among free chunks: by size first, then by address.
    /// One number, because that is compared without a branch.
    #[inline]
    pub(super) fn key(&self) -> u128 {
        u128::from(self.bytes) << 64 | u128::from(self.address)
    }

    /// Whether all generations of a slot are used up: from then on it must not name a block.
    #[inline]
    pub(super) fn is_worn_out(&self) -> bool {
        self.generation == u32::MAX
    }

    #[inline]
    pub(super) fn fills_its_region(&self) -> bool {
        self.previous | self.next == NONE
    }
}

/// All slots, by number. A slot keeps its generation when it becomes vacant.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// The slot vacated last.
    vacant: u32,
}

impl Slots {
    pub(super) fn new() -> Self {
        // 8 KiB: it need not be moved while chunks are few.
        let mut slots = Vec::with_capacity(128);
        slots.push(Slot::END);
        Slots {
            slots,
            vacant: NONE,
        }
    }

    /// Whether there are so many chunks that a further one could not be named.
    pub(super) fn are_out(&self) -> bool {
        self.slots.len() > MOST
    }

    /// `None` for what is beyond the end.
    pub(super) fn get(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(slot as usize)
    }

    pub(super) fn all(&self) -> &[Slot] {
        &self.slots
    }

    /// Whether the chunk in `slot` is free.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        !self[slot].in_use
    }

    /// All slots, and the number of the one vacated last. Who has the slots at hand finds each of them in
    /// fewer steps than through [`Slots`].
    #[inline(always)]
    pub(super) fn parts(&mut self) -> (&mut [Slot], &mut u32) {
        (&mut self.slots, &mut self.vacant)
    }

    /// Sees to it that there is a vacant slot; false when one more could not be named.
    #[inline(always)]
    pub(super) fn spare(&mut self) -> bool {
        self.vacant != NONE || self.add_nameable()
    }

    #[cold]
    #[inline(never)]
    fn add_nameable(&mut self) -> bool {
        let can = !self.are_out();
        if can {
            self.add();
        }
        can
    }

    fn add(&mut self) {
        self.vacant = self.slots.len() as u32;
        self.slots.push(Slot::VACANT);
    }

    /// Sees to it that there is a vacant slot, whether or not it can be named.
    pub(super) fn make_vacant(&mut self) {
        if self.vacant == NONE {
            self.add();
        }
    }

    /// A slot for a chunk.
    pub(super) fn occupy(&mut self) -> u32 {
        self.make_vacant();
        let slot = self.vacant;
        self.vacant = self[slot].next;
        slot
    }
}

/// Adds a slot to the vacant ones, unless it is worn out.
#[inline(always)]
pub(super) fn vacate(slots: &mut [Slot], vacant: &mut u32, slot: u32) {
    let chunk = &mut slots[slot as usize];
    if !chunk.is_worn_out() {
        chunk.next = *vacant;
        *vacant = slot;
    }
}

/// Merges the chunk after `slot`, which the index has let go, into it.
#[inline(always)]
pub(super) fn absorb_next(slots: &mut [Slot], vacant: &mut u32, slot: u32) {
    let absorbed = slots[slot as usize].next;
    let Slot { bytes, next, .. } = slots[absorbed as usize];
    let chunk = &mut slots[slot as usize];
    chunk.bytes += bytes;
    chunk.next = next;
    slots[next as usize].previous = slot;
    vacate(slots, vacant, absorbed);
}

impl std::ops::Index<u32> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }
}

impl std::ops::IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }
}
