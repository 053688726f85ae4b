//! Regions of host memory, taken from the system.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::cpu::pages::{self, LARGE};
use crate::faults::{Fault, FaultHook, INJECTED};
use crate::memory::{Claim, Kept, Place, QUANTUM, Refused, RegionSource};

/// Regions start at multiples of this many bytes: chunks are then aligned to the quantum.
const REGION_ALIGNMENT: usize = 4096;
const _: () = assert!(REGION_ALIGNMENT.is_multiple_of(QUANTUM as usize));

/// Bytes from which a region is pages of its own on Linux. C's allocator maps large memory too, but from a size that it raises
/// to 32 MiB: what is below is kept in the process when it is freed, and written with zeros when it is taken again, under the
/// pool's lock.
const MAPPED: usize = 128 << 10;

/// One block of host memory, zeros when it was taken from the system.
pub(super) struct HostRegion {
    /// The first multiple of the alignment in what the system gave.
    start: NonNull<u8>,
    bytes: usize,
    given: NonNull<u8>,
    layout: Layout,
    is_mapped: bool,
}

// SAFETY: a region is plain memory; every access goes through a block's lock.
unsafe impl Send for HostRegion {}

impl HostRegion {
    fn new(bytes: u64) -> Result<Self, Refused> {
        let refused = || Refused(format!("the system has no {bytes} bytes of memory to give"));
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(refused)?;
        // A large one begins with a large page; what that skips is never touched.
        let alignment = match bytes >= 2 * LARGE {
            true => LARGE,
            false => REGION_ALIGNMENT,
        };
        // Of no more than the usual alignment: only such memory is taken from the system as pages that it makes when
        // they are written; all else is written with zeros here, under the pool's lock.
        let layout = bytes
            .checked_add(alignment)
            .and_then(|most| Layout::from_size_align(most, align_of::<u64>()).ok())
            .ok_or_else(refused)?;
        let mapped = (bytes >= MAPPED).then(|| map(layout.size())).flatten();
        // SAFETY: the layout's size is not zero. Zeroed, so that every byte is initialised.
        let given = mapped.or_else(|| NonNull::new(unsafe { alloc_zeroed(layout) }));
        let given = given.ok_or_else(refused)?;
        let address = given.addr().get();
        let before = address.next_multiple_of(alignment) - address;
        // SAFETY: less than `alignment`, which was asked for besides the bytes.
        let start = unsafe { given.add(before) };
        // SAFETY: inside of what was given, which nobody else has yet; its bytes are initialised.
        let all = unsafe {
            std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>().as_ptr(), bytes)
        };
        pages::prefer_large(all);
        Ok(Self {
            start,
            bytes,
            given,
            layout,
            is_mapped: mapped.is_some(),
        })
    }

    /// The address of a chunk, if it lies inside.
    pub(super) fn chunk(&self, place: Place) -> Option<NonNull<u8>> {
        let end = place.offset.checked_add(place.bytes)?;
        if end > self.bytes as u64 {
            return None;
        }
        // SAFETY: offset + bytes lies inside the region's allocation, checked above.
        Some(unsafe { self.start.add(place.offset as usize) })
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        match self.is_mapped {
            true => unmap(self.given, self.layout.size()),
            // SAFETY: allocated with this layout, freed once.
            false => unsafe { dealloc(self.given.as_ptr(), self.layout) },
        }
    }
}

/// Pages of zeros, which the system makes when they are written.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let (may, of) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new pages, at an address of the system's choice.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), bytes, may, of, -1, 0) };
        NonNull::new(pages.cast::<u8>()).filter(|_| pages != libc::MAP_FAILED)
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    {
        let _ = bytes;
        None
    }
}

/// Gives back what [`map`] gave.
fn unmap(pages: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: mapped with this length, unmapped once; nobody has a chunk of it any more.
    unsafe {
        libc::munmap(pages.as_ptr().cast(), bytes);
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    let _ = (pages, bytes);
}

/// Takes regions from the system; the device's seat in the host's ledger.
pub(super) struct HostRegions {
    claim: Claim,
    faults: FaultHook,
    held: u64,
    kept: Kept<HostRegion>,
}

impl HostRegions {
    pub(super) fn new(claim: Claim, faults: FaultHook) -> Self {
        Self {
            claim,
            faults,
            held: 0,
            kept: Kept::default(),
        }
    }

    /// Keeps none any longer; whether there was any.
    pub(super) fn let_go(&mut self) -> bool {
        std::iter::from_fn(|| self.kept.pop()).count() > 0
    }

    /// One more allocation: what nobody has needed for long goes.
    pub(super) fn age(&mut self) {
        self.kept.age();
        while let Some(region) = self.kept.pop_old() {
            drop(region);
        }
    }

    fn made(&mut self, bytes: u64) -> Result<HostRegion, Refused> {
        if self.faults.strikes(Fault::Region) {
            return Err(Refused(INJECTED.to_owned()));
        }
        match HostRegion::new(bytes) {
            // What is kept may be what is missing.
            Err(_) if self.let_go() => HostRegion::new(bytes),
            made => made,
        }
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }
}

impl RegionSource for HostRegions {
    type Region = HostRegion;

    fn create(&mut self, bytes: u64) -> Result<HostRegion, Refused> {
        self.claim.take(bytes)?;
        let region = match self.kept.take(bytes) {
            Some(kept) => Ok(kept),
            None => self.made(bytes),
        };
        match region {
            Ok(_) => self.held += bytes,
            Err(_) => self.claim.give(bytes),
        }
        region
    }

    fn destroy(&mut self, region: HostRegion) {
        let bytes = region.bytes as u64;
        self.claim.give(bytes);
        self.held = self.held.saturating_sub(bytes);
        drop(self.kept.push(region, bytes, self.held));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::Ledger;

    /// What went back lately is kept for the next one of its size, until it is old.
    #[test]
    fn the_next_one_is_the_last() {
        const BYTES: u64 = 64 << 10;
        let claim = Arc::new(Ledger::default()).join(None);
        let mut regions = HostRegions::new(claim, FaultHook::default());
        let first = regions.create(BYTES).unwrap();
        let start = first.start;
        regions.destroy(first);
        assert_eq!(regions.held, 0);
        let other = regions.create(BYTES / 2).unwrap();
        let next = regions.create(BYTES).unwrap();
        assert_eq!(next.start, start);
        assert_eq!(regions.held, BYTES + BYTES / 2);
        regions.destroy(next);
        regions.destroy(other);
        assert!(regions.let_go());
        assert!(!regions.let_go());
        // What the system has not may be what is kept: that goes before it is asked again. (Miri would end the test.)
        if !cfg!(miri) {
            let last = regions.create(BYTES).unwrap();
            regions.destroy(last);
            assert!(regions.create(1 << 56).is_err());
            assert!(!regions.let_go());
            assert_eq!(regions.held, 0);
        }
        let old = regions.create(BYTES).unwrap();
        regions.destroy(old);
        (0..1025).for_each(|_| regions.age());
        assert!(!regions.let_go());
    }

    /// What is kept goes with age, and where memory is asked back or there may be less of it.
    #[test]
    fn kept_regions_go() {
        let pool = crate::cpu::arena::tests::pool();
        let keeps_one = || {
            let mut pool = pool.pool.lock();
            let region = pool.source_mut().create(QUANTUM).unwrap();
            pool.source_mut().destroy(region);
        };
        let has_one = || pool.pool.lock().source_mut().let_go();
        // Its region stays, whatever comes and goes beside it.
        let _first = pool.allocate(QUANTUM).unwrap();
        // Each allocation is one more; quicker than so many of them is to say so.
        for (allocations, is_there) in [(24, true), (25, false)] {
            keeps_one();
            (0..1000).for_each(|_| pool.pool.lock().source_mut().age());
            (0..allocations).for_each(|_| drop(pool.allocate(QUANTUM).unwrap()));
            assert_eq!(has_one(), is_there);
        }
        keeps_one();
        pool.trim_to(0);
        assert!(!has_one());
        keeps_one();
        pool.set_limit(Some(1 << 20)).unwrap();
        assert!(!has_one());
    }
}
