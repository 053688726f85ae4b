//! Host memory in the same kind of pool as a GPU's: regions, chunks, budget, statistics.
//!
//! The one place, with its regions, where tensors' host memory is reached by pointer, not by slice. Soundness rests on three facts:
//! chunks of live blocks never overlap (the pool's invariant), a region outlives every block in it
//! (it is returned only when idle) and is never moved, and each block has a lock that keeps
//! readers, the one writer, and who moves it to another chunk apart.
#![allow(unsafe_code)]

mod region;

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use crate::background::Background;
use crate::faults::FaultHook;
use crate::memory::{
    BlockId, CallSite, Claim, Full, LimitRefused, MemorySnapshot, MemoryStatistics, Move, Mover,
    OwnedPool, Pool, PoolConfig, Request, TagStatistics, WhenFull,
};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::turns::Turns;

use region::{HostRegion, HostRegions};

/// A pool of host memory, and the threads of its device.
pub(crate) struct HostPool {
    pool: Mutex<OwnedPool<HostRegions, HostBlock>>,
    /// Whether blocks may move to make room.
    moves: bool,
    pub(crate) background: Background,
}

impl HostPool {
    pub(crate) fn new(
        config: PoolConfig,
        when_full: WhenFull,
        claim: Claim,
        faults: FaultHook,
    ) -> Arc<Self> {
        let pool = Pool::new(HostRegions::new(claim, faults), config);
        Arc::new(Self {
            pool: Mutex::new(OwnedPool::new(pool)),
            moves: when_full != WhenFull::Fail,
            background: Background::default(),
        })
    }

    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Arc<HostBlock>, Box<Full>> {
        let mut pool = self.pool.lock();
        pool.source_mut().age();
        let request = Request::tagged(bytes);
        let taken = self.changing(&mut pool, |pool, mover| pool.attempt(request, mover));
        let id = taken.map_err(|reason| pool.failed(request, reason))?;
        let found = pool.place(id).and_then(|place| {
            let region = pool.region(place.region)?;
            region
                .chunk(place)
                .map(|start| (start, place.bytes as usize))
        });
        let (start, bytes) = found.unwrap_or((NonNull::dangling(), 0));
        let block = Arc::new(HostBlock {
            pool: Arc::clone(self),
            id,
            bytes,
            start: RwLock::new(Start(start)),
            turns: Turns::default(),
            is_free: false,
        });
        pool.adopt(id, &block);
        Ok(block)
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
        let mut pool = self.pool.lock();
        pool.trim_to(bytes);
        pool.source_mut().let_go();
    }

    pub(crate) fn set_limit(&self, asked: Option<u64>) -> Result<(), LimitRefused> {
        let mut pool = self.pool.lock();
        self.changing(&mut pool, |pool, mover| {
            pool.change_limit(asked, mover, |regions| regions.claim().change_budget(asked))
        })?;
        pool.source_mut().let_go();
        Ok(())
    }

    /// Does something to the pool that may move blocks, where they may: again as long as it fails and blocks were freed meanwhile,
    /// which could not move then.
    fn changing<T, E>(
        &self,
        pool: &mut OwnedPool<HostRegions, HostBlock>,
        change: impl Fn(&mut Pool<HostRegions>, Option<&mut dyn Mover<HostRegion>>) -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let (memory, owners) = pool.parts();
            let mut still = Still {
                owners,
                ..Still::default()
            };
            let changed = match self.moves {
                true => change(memory, Some(&mut still)),
                false => change(memory, None),
            };
            let mut freed = false;
            for block in still.let_go() {
                // The last handle on it by now: to drop that takes the pool's lock, which is held.
                if let Some(mut block) = Arc::into_inner(block) {
                    pool.release(block.id);
                    (block.is_free, freed) = (true, true);
                }
            }
            if changed.is_ok() || !(pool.release_dying() || freed) {
                return changed;
            }
        }
    }
}

/// Where a chunk starts.
#[derive(Clone, Copy)]
struct Start(NonNull<u8>);

// SAFETY: an address; the bytes there are reached through a block's lock only.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

/// One chunk of a host pool. Dropping it frees the chunk.
pub(crate) struct HostBlock {
    pool: Arc<HostPool>,
    id: BlockId,
    bytes: usize,
    /// Its lock keeps readers, the writer, and who moves the chunk apart.
    start: RwLock<Start>,
    turns: Turns,
    /// It is the pool's already.
    is_free: bool,
}

/// Blocks that nobody reads or writes while their pool moves some of them.
#[derive(Default)]
struct Still<'a> {
    owners: &'a [Weak<HostBlock>],
    held: FxHashMap<BlockId, StillBlock>,
    /// Handles on blocks that are not held: each may be the last by now.
    passed: Vec<Arc<HostBlock>>,
}

struct StillBlock {
    // Before the block whose lock it is.
    start: RwLockWriteGuard<'static, Start>,
    block: Arc<HostBlock>,
}

impl Still<'_> {
    /// Lets blocks go, to be dropped while the pool is locked: who locks it next and moves blocks too would take them for used
    /// ones, and who dropped all other handles on one counts on its room.
    fn let_go(mut self) -> Vec<Arc<HostBlock>> {
        for (_, StillBlock { start, block }) in self.held.drain() {
            drop(start);
            self.passed.push(block);
        }
        self.passed
    }
}

impl Mover<HostRegion> for Still<'_> {
    /// Whoever uses a block keeps it where it is: nobody waits for others with the pool locked.
    fn may_move(&mut self, block: BlockId) -> bool {
        if self.held.contains_key(&block) {
            return true;
        }
        let Some(owner) = self.owners.get(block.index()).and_then(Weak::upgrade) else {
            return false;
        };
        #[cfg(test)]
        tests::may_be_the_last(block);
        let start = match owner.start.try_write() {
            Some(start) if owner.id == block => start,
            start => {
                drop(start);
                self.passed.push(owner);
                return false;
            }
        };
        // SAFETY: the lock lives in the block, which lies still in its `Arc`; that is kept beside the
        // guard and dropped after it.
        let start = unsafe {
            std::mem::transmute::<RwLockWriteGuard<'_, Start>, RwLockWriteGuard<'static, Start>>(
                start,
            )
        };
        let block_ = StillBlock {
            start,
            block: owner,
        };
        self.held.insert(block, block_);
        true
    }

    fn move_block(&mut self, moved: Move<'_, HostRegion>) {
        let places = (
            moved.from_region.chunk(moved.from),
            moved.to_region.chunk(moved.to),
        );
        let (Some(still), (Some(from), Some(to))) = (self.held.get_mut(&moved.block), places)
        else {
            return;
        };
        // SAFETY: both chunks lie inside their regions; the old one is this block's, whose write lock
        // is held, the new one is nobody's but its. They may overlap.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), moved.from.bytes as usize) };
        *still.start = Start(to);
    }
}

impl HostBlock {
    /// Reads that another thread will do, and who waits for them to write in place.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The bytes, shared with other readers; waits for writers that came before. A thread must not
    /// read a block that it reads already, and locks several in the order of their addresses: else
    /// readers wait for each other's writers.
    pub(crate) fn read(&self) -> ReadBytes<'_> {
        ReadBytes {
            bytes: self.bytes,
            start: self.start.read(),
        }
    }

    /// Keeps it where it is.
    pub(crate) fn pin(self: &Arc<Self>) -> HostPin {
        self.pool.pool.lock().pin(self.id);
        HostPin(Arc::clone(self))
    }

    /// Says where it was asked for.
    pub(crate) fn set_call_site(&self, site: CallSite) {
        self.pool.pool.lock().set_call_site(self.id, site);
    }

    /// The bytes for one writer; waits for readers. A thread must not hold a reader of it.
    pub(crate) fn write(&self) -> WriteBytes<'_> {
        WriteBytes {
            bytes: self.bytes,
            start: self.start.write(),
        }
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if !self.is_free {
            self.pool.pool.lock().release(self.id);
        }
    }
}

/// Keeps a block where it is until it is dropped.
pub(crate) struct HostPin(Arc<HostBlock>);

impl Drop for HostPin {
    fn drop(&mut self) {
        self.0.pool.pool.lock().unpin(self.0.id);
    }
}

pub(crate) struct ReadBytes<'a> {
    start: RwLockReadGuard<'a, Start>,
    bytes: usize,
}

impl Deref for ReadBytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the chunk is inside its region, which lives while the block does; its bytes are
        // initialised; the read lock is held, so nobody writes.
        unsafe { std::slice::from_raw_parts(self.start.0.as_ptr(), self.bytes) }
    }
}

pub(crate) struct WriteBytes<'a> {
    start: RwLockWriteGuard<'a, Start>,
    bytes: usize,
}

impl Deref for WriteBytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `ReadBytes`; the write lock is held.
        unsafe { std::slice::from_raw_parts(self.start.0.as_ptr(), self.bytes) }
    }
}

impl DerefMut for WriteBytes<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `ReadBytes`; the write lock is held, and `&mut self` makes this the only
        // slice made from it.
        unsafe { std::slice::from_raw_parts_mut(self.start.0.as_ptr(), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::memory::{Growth, Ledger, QUANTUM};

    thread_local! {
        static ELSEWHERE: RefCell<Vec<Arc<HostBlock>>> = const { RefCell::new(Vec::new()) };
    }

    /// The other handles on a block are dropped while the pool looks at it.
    pub(super) fn may_be_the_last(block: BlockId) {
        ELSEWHERE.with_borrow_mut(|blocks| blocks.retain(|other| other.id != block));
    }

    /// Whoever drops the last handle on a block needs the pool's lock: nobody may do so under it.
    #[test]
    fn a_block_that_dies_while_others_move_stops_nobody() {
        for in_use in [false, true] {
            let (done, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let pool = preallocated(4);
                let blocks: Vec<_> = (0..4).map(|_| pool.allocate(QUANTUM).unwrap()).collect();
                let kept = blocks.into_iter().skip(1).step_by(2);
                let kept: Vec<_> = kept
                    .inspect(|block| {
                        if in_use {
                            // Somebody reads it, and so it cannot move; with its last handle its room is there.
                            std::mem::forget(block.read());
                        }
                    })
                    .collect();
                ELSEWHERE.set(kept);
                let large = pool.allocate(2 * QUANTUM);
                assert!(large.is_ok());
                let left = ELSEWHERE.take().len() as u64;
                assert!(left < 2, "the pool looked at a block");
                drop(large);
                assert_eq!(pool.memory().live_blocks, 0);
                done.send(()).unwrap();
            });
            ended
                .recv_timeout(std::time::Duration::from_secs(20))
                .expect("it fails, or waits for itself");
        }
    }

    /// One region of so many quanta, and no more.
    fn preallocated(quanta: u64) -> Arc<HostPool> {
        let bytes = quanta * QUANTUM;
        let config = PoolConfig {
            growth: Growth::PreallocateBytes { bytes },
            limit: Some(bytes),
            max_region: bytes,
        };
        let claim = Arc::new(Ledger::default()).join(config.limit);
        HostPool::new(config, WhenFull::Relocate, claim, FaultHook::default())
    }

    pub(super) fn pool() -> Arc<HostPool> {
        let config = PoolConfig {
            growth: Default::default(),
            limit: Some(1 << 20),
            max_region: 1 << 20,
        };
        HostPool::new(
            config,
            WhenFull::Relocate,
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

    /// Who waits for the pool to free a block that nobody can get at any more is not waited for: its room is there.
    #[test]
    fn a_block_whose_drop_waits_is_room() {
        let pool = preallocated(4);
        let blocks: Vec<_> = (0..4).map(|_| pool.allocate(QUANTUM).unwrap()).collect();
        let dropped = Arc::downgrade(&blocks[1]);
        std::thread::scope(|scope| {
            let mut blocks = blocks;
            let mut locked = pool.pool.lock();
            let block = blocks.swap_remove(1);
            scope.spawn(move || drop(block));
            while dropped.strong_count() > 0 {
                std::thread::yield_now();
            }
            assert_eq!(locked.statistics().live_blocks, 4);
            assert!(locked.release_dying());
            assert!(!locked.release_dying());
            assert_eq!(locked.statistics().live_blocks, 3);
            drop(locked);
            // Of the others none goes, whoever's drop is over.
            let again = pool.allocate(QUANTUM).unwrap();
            assert_eq!(pool.memory().live_blocks, 4);
            drop((again, blocks));
        });
        assert_eq!(pool.memory().live_blocks, 0);
    }

    /// Threads that have their shares of the budget each are refused nothing, however they take turns.
    #[test]
    fn shares_are_never_refused() {
        let rounds = if cfg!(miri) { 10 } else { 30_000 };
        let pool = preallocated(3 * 8);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut mine = std::collections::VecDeque::new();
                    for round in 0..rounds {
                        let quanta = [8, 4, 1, 2][(round + thread) % 4];
                        while mine.iter().map(|(_, quanta)| quanta).sum::<u64>() + quanta > 8 {
                            mine.pop_front();
                        }
                        mine.push_back((pool.allocate(quanta * QUANTUM).unwrap(), quanta));
                    }
                });
            }
        });
        assert_eq!(pool.memory().live_blocks, 0);
    }

    /// Runs under Miri: two threads use their blocks while a third makes the pool move them.
    #[test]
    fn threads_use_blocks_that_move() {
        let (bytes, rounds) = (16 * QUANTUM, if cfg!(miri) { 8 } else { 2000 });
        let pool = preallocated(16);
        let mut blocks: Vec<_> = (0..16)
            .map(|_| Some(pool.allocate(QUANTUM).unwrap()))
            .collect();
        for block in blocks.iter_mut().step_by(2) {
            *block = None;
        }
        std::thread::scope(|scope| {
            for worker in 0..2u8 {
                let mine = blocks[1 + 2 * worker as usize].take().unwrap();
                scope.spawn(move || {
                    for round in 0..rounds {
                        mine.write().fill(round as u8 ^ worker);
                        assert!(mine.read().iter().all(|&byte| byte == round as u8 ^ worker));
                    }
                });
            }
            for _ in 0..rounds {
                // Room enough once blocks have moved, but those in use stay.
                let large = pool.allocate(4 * QUANTUM);
                let small: Vec<_> = (0..2).map(|_| pool.allocate(QUANTUM).unwrap()).collect();
                drop(large);
                drop(small);
            }
        });
        let kept = blocks.iter().flatten().count() as u64;
        assert_eq!(pool.memory().live_blocks, kept);
        let large = pool.allocate(bytes - kept * QUANTUM).unwrap();
        large.write().fill(1);
        assert!(pool.memory().events.relocations > 0);
    }
}
