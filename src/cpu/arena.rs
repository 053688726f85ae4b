//! Host memory in the same kind of pool as a GPU's: regions, chunks, budget, statistics.
//!
//! The one place where host memory is handled by pointer. Soundness rests on three facts:
//! chunks of live blocks never overlap (the pool's invariant), a region outlives every block in it
//! (it is returned only when idle) and is never moved, and each block has a lock that keeps
//! readers and the one writer apart.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::background::Background;
use crate::faults::{Fault, FaultHook, INJECTED};
use crate::memory::{
    BlockId, CallSite, Claim, Full, MemorySnapshot, MemoryStatistics, Place, Pool, PoolConfig,
    QUANTUM, Refused, RegionSource, Request, TagStatistics,
};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::turns::Turns;

/// Regions start at multiples of this many bytes: chunks are then aligned to the quantum.
const REGION_ALIGNMENT: usize = 4096;
const _: () = assert!(REGION_ALIGNMENT.is_multiple_of(QUANTUM as usize));

/// One block of host memory, zeroed when it was taken.
struct HostRegion {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a region is plain memory; every access goes through a block's lock.
unsafe impl Send for HostRegion {}

impl HostRegion {
    fn new(bytes: u64) -> Result<Self, Refused> {
        let refused = || Refused(format!("the system has no {bytes} bytes of memory to give"));
        let layout = usize::try_from(bytes)
            .ok()
            .filter(|&bytes| bytes > 0)
            .and_then(|bytes| Layout::from_size_align(bytes, REGION_ALIGNMENT).ok())
            .ok_or_else(refused)?;
        // SAFETY: the layout's size is not zero. Zeroed, so that every byte is initialised.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Self { start, layout })
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Takes regions from the system; the device's seat in the host's ledger.
struct HostRegions {
    claim: Claim,
    faults: FaultHook,
}

impl RegionSource for HostRegions {
    type Region = HostRegion;

    fn create(&mut self, bytes: u64) -> Result<HostRegion, Refused> {
        if self.faults.strikes(Fault::Region) {
            return Err(Refused(INJECTED.to_owned()));
        }
        self.claim.take(bytes)?;
        let region = HostRegion::new(bytes);
        if region.is_err() {
            self.claim.give(bytes);
        }
        region
    }

    fn destroy(&mut self, region: HostRegion) {
        self.claim.give(region.layout.size() as u64);
    }
}

/// A pool of host memory, and the threads of its device.
pub(crate) struct HostPool {
    pool: Mutex<Pool<HostRegions>>,
    pub(crate) background: Background,
}

impl HostPool {
    pub(crate) fn new(config: PoolConfig, claim: Claim, faults: FaultHook) -> Arc<Self> {
        Arc::new(Self {
            pool: Mutex::new(Pool::new(HostRegions { claim, faults }, config)),
            background: Background::default(),
        })
    }

    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Arc<HostBlock>, Box<Full>> {
        let mut pool = self.pool.lock();
        let id = pool.allocate(Request::tagged(bytes))?;
        // Places of host blocks never change, so the address is resolved once.
        let found = pool.place(id).and_then(|place| {
            let region = pool.region(place.region)?;
            chunk_start(region, place).map(|start| (start, place.bytes as usize))
        });
        drop(pool);
        let (start, bytes) = found.unwrap_or((NonNull::dangling(), 0));
        Ok(Arc::new(HostBlock {
            pool: Arc::clone(self),
            id,
            start,
            bytes,
            access: RwLock::new(()),
            turns: Turns::default(),
        }))
    }

    pub(crate) fn memory(&self) -> MemoryStatistics {
        self.pool.lock().statistics()
    }

    pub(crate) fn memory_by_tag(&self) -> Vec<TagStatistics> {
        self.pool.lock().by_tag()
    }

    pub(crate) fn snapshot(&self) -> MemorySnapshot {
        self.pool.lock().snapshot()
    }

    pub(crate) fn record_history(&self, events: usize) {
        self.pool.lock().record_history(events);
    }

    pub(crate) fn reset_peaks(&self) {
        self.pool.lock().reset_peaks();
    }

    pub(crate) fn reset_totals(&self) {
        self.pool.lock().reset_totals();
    }

    pub(crate) fn trim_to(&self, bytes: u64) {
        self.pool.lock().trim_to(bytes);
    }
}

/// The address of a chunk, if it lies inside its region.
fn chunk_start(region: &HostRegion, place: Place) -> Option<NonNull<u8>> {
    let end = place.offset.checked_add(place.bytes)?;
    if end > region.layout.size() as u64 {
        return None;
    }
    // SAFETY: offset + bytes lies inside the region's allocation, checked above.
    Some(unsafe { region.start.add(place.offset as usize) })
}

/// One chunk of a host pool. Dropping it frees the chunk.
pub(crate) struct HostBlock {
    pool: Arc<HostPool>,
    id: BlockId,
    start: NonNull<u8>,
    bytes: usize,
    access: RwLock<()>,
    turns: Turns,
}

// SAFETY: the chunk belongs to this block alone while it lives; `access` keeps readers and the
// writer apart.
unsafe impl Send for HostBlock {}
// SAFETY: as above; shared references reach the bytes only through the lock.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Reads that another thread will do, and who waits for them to write in place.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The bytes, shared with other readers; waits for a writer. A thread may read a block that it
    /// already reads.
    pub(crate) fn read(&self) -> ReadBytes<'_> {
        ReadBytes {
            block: self,
            _access: self.access.read_recursive(),
        }
    }

    /// Says where it was asked for.
    pub(crate) fn set_call_site(&self, site: CallSite) {
        self.pool.pool.lock().set_call_site(self.id, site);
    }

    /// The bytes for one writer; waits for readers. A thread must not hold a reader of it.
    pub(crate) fn write(&self) -> WriteBytes<'_> {
        WriteBytes {
            block: self,
            _access: self.access.write(),
        }
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        self.pool.pool.lock().free(self.id);
    }
}

pub(crate) struct ReadBytes<'a> {
    block: &'a HostBlock,
    _access: RwLockReadGuard<'a, ()>,
}

impl Deref for ReadBytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the chunk is inside its region, which lives while the block does; its bytes are
        // initialised; the read lock is held, so nobody writes.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr(), self.block.bytes) }
    }
}

pub(crate) struct WriteBytes<'a> {
    block: &'a HostBlock,
    _access: RwLockWriteGuard<'a, ()>,
}

impl Deref for WriteBytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `ReadBytes`; the write lock is held.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr(), self.block.bytes) }
    }
}

impl DerefMut for WriteBytes<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `ReadBytes`; the write lock is held, and `&mut self` makes this the only
        // slice made from it.
        unsafe { std::slice::from_raw_parts_mut(self.block.start.as_ptr(), self.block.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Ledger;

    fn pool() -> Arc<HostPool> {
        let config = PoolConfig {
            growth: Default::default(),
            limit: Some(1 << 20),
            max_region: 1 << 20,
        };
        HostPool::new(
            config,
            Arc::new(Ledger::default()).join(config.limit),
            FaultHook::default(),
        )
    }

    /// Runs under Miri: pointers, locks, frees and reuse.
    #[test]
    fn blocks_are_apart_and_reused() {
        let pool = pool();
        let a = pool.allocate(1000).unwrap();
        let b = pool.allocate(300).unwrap();
        a.write().fill(1);
        b.write().fill(2);
        assert!(a.read().iter().all(|&byte| byte == 1));
        assert!(b.read().iter().all(|&byte| byte == 2));
        assert_eq!(a.read().len(), 1024);
        assert_eq!(a.read().as_ptr() as usize % QUANTUM as usize, 0);
        let (first, second) = (a.read(), a.read());
        assert_eq!(first[..], second[..]);
        drop((first, second));
        drop(a);
        let c = pool.allocate(1024).unwrap();
        c.write()[1023] = 9;
        assert!(b.read().iter().all(|&byte| byte == 2));
        drop((b, c));
        assert_eq!(pool.memory().allocated, 0);
        pool.trim_to(0);
        assert_eq!(pool.memory().reserved, 0);
        assert!(pool.allocate(2 << 20).is_err());
    }

    #[test]
    fn threads_share_a_block() {
        let pool = pool();
        let block = pool.allocate(256).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let mut bytes = block.write();
                        let next = bytes[0] + 1;
                        bytes.fill(next);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..20 {
                        let bytes = block.read();
                        assert!(bytes.iter().all(|&byte| byte == bytes[0]));
                    }
                });
            }
        });
        assert_eq!(block.read()[255], 80);
    }

    /// Blocks side by side in one region are written at the same time, dropped on other threads,
    /// and their memory is reused and given back meanwhile.
    #[test]
    fn threads_write_neighbours_and_free_for_each_other() {
        use std::sync::mpsc;

        let pool = pool();
        let rounds: u8 = if cfg!(miri) { 12 } else { 200 };
        let (give, taken) = mpsc::channel::<(Arc<HostBlock>, u8)>();
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let (pool, give) = (&pool, give.clone());
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..rounds {
                        let bytes = 1 + u64::from(round) * 37 % 700;
                        let block = pool.allocate(bytes).unwrap();
                        let value = thread ^ round;
                        block.write().fill(value);
                        match round % 3 {
                            0 => give.send((block, value)).unwrap(),
                            1 => kept.push((block, value)),
                            _ => drop(kept.pop()),
                        }
                        if round % 8 == 0 {
                            pool.trim_to(0);
                        }
                        for (block, value) in &kept {
                            assert!(block.read().iter().all(|byte| byte == value));
                        }
                    }
                });
            }
            drop(give);
            for (block, value) in taken {
                assert!(block.read().iter().all(|&byte| byte == value));
            }
        });
        assert_eq!((pool.memory().allocated, pool.memory().live_blocks), (0, 0));
        pool.trim_to(0);
        assert_eq!(pool.memory().reserved, 0);
    }
}
