//! A pool, and who owns its blocks.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use super::best_fit::BlockId;
use super::pool::{Pool, RegionSource};

/// A pool whose blocks belong to handles: so that who moves or spills a block finds them.
pub(crate) struct OwnedPool<S: RegionSource, B> {
    pool: Pool<S>,
    /// By the index of the block's id. Weak: a dropped tensor's memory is free at once.
    owners: Vec<Weak<B>>,
}

impl<S: RegionSource, B> OwnedPool<S, B> {
    pub(crate) fn new(pool: Pool<S>) -> Self {
        Self {
            pool,
            owners: Vec::new(),
        }
    }

    /// Says whose a block is.
    pub(crate) fn adopt(&mut self, id: BlockId, owner: &Arc<B>) {
        let index = id.index();
        if self.owners.len() <= index {
            self.owners.resize_with(index + 1, Weak::new);
        }
        self.owners[index] = Arc::downgrade(owner);
    }

    /// Frees a block; nothing for one that has no chunk.
    pub(crate) fn release(&mut self, id: BlockId) {
        if self.pool.free(id)
            && let Some(owner) = self.owners.get_mut(id.index())
        {
            *owner = Weak::new();
        }
    }

    /// Frees the blocks whose last handle is being dropped, which waits for the pool and finds them gone then; whether there
    /// were any. Nobody else can get at them, to move them or to spill them.
    pub(crate) fn release_dying(&mut self) -> bool {
        let is_dying = |id: &BlockId| {
            let owner = self.owners.get(id.index());
            owner.is_some_and(|owner| owner.strong_count() == 0 && !owner.ptr_eq(&Weak::new()))
        };
        let regions = self.pool.regions();
        let chunks = regions.flat_map(|(region, _)| self.pool.chunks(region));
        let dying: Vec<BlockId> = chunks
            .filter_map(|chunk| chunk.block)
            .filter(is_dying)
            .collect();
        if !dying.is_empty() {
            // After whatever was done by their handles, whose counts alone were looked at.
            fence(Ordering::Acquire);
        }
        for &id in &dying {
            self.release(id);
        }
        !dying.is_empty()
    }

    /// Frees a block whose contents are on the host; the number under which it lives on.
    pub(crate) fn set_aside(&mut self, id: BlockId) -> u64 {
        let number = self.pool.set_aside(id);
        if let Some(owner) = self.owners.get_mut(id.index()) {
            *owner = Weak::new();
        }
        number
    }

    /// The handle of a block; none while it is being made or dropped.
    pub(crate) fn owner(&self, id: BlockId) -> Weak<B> {
        self.owners.get(id.index()).cloned().unwrap_or_default()
    }

    /// The handles of all blocks. Whoever gets them drops them after the pool's lock: each may be the
    /// last one.
    pub(crate) fn residents(&self) -> Vec<Arc<B>> {
        self.owners.iter().filter_map(Weak::upgrade).collect()
    }

    /// The pool and the owners apart.
    pub(crate) fn parts(&mut self) -> (&mut Pool<S>, &[Weak<B>]) {
        (&mut self.pool, &self.owners)
    }
}

impl<S: RegionSource, B> Deref for OwnedPool<S, B> {
    type Target = Pool<S>;

    fn deref(&self) -> &Pool<S> {
        &self.pool
    }
}

impl<S: RegionSource, B> DerefMut for OwnedPool<S, B> {
    fn deref_mut(&mut self) -> &mut Pool<S> {
        &mut self.pool
    }
}
