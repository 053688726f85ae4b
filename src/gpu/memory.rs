//! A device's pool, and who owns its blocks. One lock: taken last, and never while waiting.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::block::GpuBlock;
use super::regions::Regions;
use crate::memory::{BlockId, Pool};

pub(crate) struct Memory {
    pool: Pool<Regions>,
    /// By the index of the block's id. Weak: a dropped tensor's memory is free at once.
    owners: Vec<Weak<GpuBlock>>,
}

impl Memory {
    pub(super) fn new(pool: Pool<Regions>) -> Self {
        Self {
            pool,
            owners: Vec::new(),
        }
    }

    /// Says whose a block is.
    pub(super) fn adopt(&mut self, id: BlockId, owner: &Arc<GpuBlock>) {
        let index = id.index();
        if self.owners.len() <= index {
            self.owners.resize_with(index + 1, Weak::new);
        }
        self.owners[index] = Arc::downgrade(owner);
    }

    /// Frees a block; nothing for one that has no chunk.
    pub(super) fn release(&mut self, id: BlockId) {
        if self.pool.free(id)
            && let Some(owner) = self.owners.get_mut(id.index())
        {
            *owner = Weak::new();
        }
    }

    pub(super) fn owner(&self, id: BlockId) -> Weak<GpuBlock> {
        self.owners.get(id.index()).cloned().unwrap_or_default()
    }

    /// All blocks with a chunk whose tensors live. Whoever gets them drops them after the lock: each
    /// may be the last handle.
    pub(super) fn residents(&self) -> Vec<Arc<GpuBlock>> {
        self.owners.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Deref for Memory {
    type Target = Pool<Regions>;

    fn deref(&self) -> &Pool<Regions> {
        &self.pool
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut Pool<Regions> {
        &mut self.pool
    }
}
