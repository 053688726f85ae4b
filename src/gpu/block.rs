//! A counted handle on device memory.

use std::sync::{Arc, OnceLock};

use super::Gpu;
use crate::error::{Error, Result};
use crate::memory::BlockId;
use crate::turns::Turns;

/// One chunk of a device's pool, named by id: where it lies is the pool's business. Dropping it
/// frees the chunk at once, whatever is still in flight: order makes that safe.
pub(crate) struct GpuBlock {
    gpu: Arc<Gpu>,
    id: BlockId,
    bytes: u64,
    /// Why the contents are missing: a batch that wrote them failed.
    error: OnceLock<Error>,
    /// Downloads with copies still to record, and who waits for them to write in place.
    turns: Turns,
}

impl GpuBlock {
    pub(super) fn new(gpu: Arc<Gpu>, id: BlockId, bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            gpu,
            id,
            bytes,
            error: OnceLock::new(),
            turns: Turns::default(),
        })
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Bytes of its chunk.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn id(&self) -> BlockId {
        self.id
    }

    /// Says why the contents are missing; the first reason stays.
    pub(super) fn mark(&self, error: &Error) {
        let _ = self.error.set(error.clone());
    }

    /// # Errors
    /// Why the contents are missing, if they are.
    pub(super) fn check(&self) -> Result<()> {
        match self.error.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }
}

impl Drop for GpuBlock {
    fn drop(&mut self) {
        self.gpu.free(self.id);
    }
}
