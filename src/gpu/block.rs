//! A counted handle on device memory.

use std::sync::Arc;

use super::Gpu;
use crate::error::{Error, Result};
use crate::memory::{BlockId, QUANTUM, Request};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::turns::Turns;

/// One chunk of a device's pool, named by id: where it lies is the pool's business. Dropping it
/// frees the chunk at once, whatever is still in flight: order makes that safe. While it is spilled
/// it has a copy on the host, and no chunk.
pub(crate) struct GpuBlock {
    gpu: Arc<Gpu>,
    /// The id, as bits. It and `copy` change under the memory lock only.
    id: AtomicU64,
    request: Request,
    /// The contents, while they are on the host.
    copy: Mutex<Option<Arc<Vec<u8>>>>,
    /// The number of its allocation, known once it was spilled; else 0.
    number: AtomicU64,
    /// Why the contents are missing: a batch that wrote them failed.
    error: Mutex<Option<Error>>,
    /// Downloads with copies still to record, and who waits for them to write in place.
    turns: Turns,
    /// Ops that hold it in device memory until they are recorded: those that are alone their operands, all of them
    /// their output.
    held: AtomicUsize,
    /// Downloads from the chunk with copies still to record.
    leaving: AtomicUsize,
    /// When it was used last, counted in uses of any block of the device.
    last_used: AtomicU64,
    /// Held alone by an op that changes the contents on the CPU, from their download to their upload, and by others while
    /// they record what changes them here: else these would be lost.
    changes: RwLock<()>,
    /// The mark of the thread whose op has it alone, which brings the contents back itself; else 0.
    elsewhere: AtomicUsize,
}

thread_local! {
    static MARK: u8 = const { 0 };
}

/// A number that no other thread has at the time, and not 0. (Tasks of `orlop_model` are of one thread.)
fn mark() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl GpuBlock {
    pub(super) fn new(gpu: Arc<Gpu>, id: BlockId, request: Request) -> Arc<Self> {
        let last_used = AtomicU64::new(gpu.now());
        Arc::new(Self {
            gpu,
            id: AtomicU64::new(id.to_bits()),
            request,
            copy: Mutex::new(None),
            number: AtomicU64::new(0),
            error: Mutex::new(None),
            turns: Turns::default(),
            held: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            last_used,
            changes: RwLock::new(()),
            elsewhere: AtomicUsize::new(0),
        })
    }

    /// The turn of an op that changes the contents elsewhere and brings them back. Its holder may wait for the device:
    /// docs/architecture.md, "Locks", has it outermost.
    pub(crate) fn write_elsewhere(&self) -> Elsewhere<'_> {
        if self.is_written_elsewhere_here() {
            return Elsewhere(self, None);
        }
        let alone = self.changes.write();
        self.elsewhere.store(mark(), Ordering::Release);
        Elsewhere(self, Some(alone))
    }

    /// The turn of an op that changes the contents in device memory, until that is recorded. It waits for those that change
    /// them elsewhere, whose own waits for the device have their limit.
    pub(super) fn write_here(&self) -> Option<RwLockReadGuard<'_, ()>> {
        (!self.is_written_elsewhere_here()).then(|| self.changes.read())
    }

    /// By this thread.
    fn is_written_elsewhere_here(&self) -> bool {
        self.elsewhere.load(Ordering::Acquire) == mark()
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Bytes of its chunk.
    pub(crate) fn bytes(&self) -> u64 {
        self.request.bytes.next_multiple_of(QUANTUM)
    }

    /// What it was taken for.
    pub(crate) fn request(&self) -> Request {
        self.request
    }

    /// Names its chunk; nothing while it is spilled.
    pub(crate) fn id(&self) -> BlockId {
        BlockId::from_bits(self.id.load(Ordering::Acquire))
    }

    /// Says why the contents of a chunk are missing, if it is still this block's; the first reason stays.
    pub(super) fn mark(&self, chunk: BlockId, error: &Error) {
        let mut reason = self.error.lock();
        if self.id() == chunk {
            reason.get_or_insert_with(|| error.clone());
        }
    }

    /// The contents did not get into the chunk: they are on the host as before, under this number.
    pub(super) fn stay_away(&self, number: u64) {
        let mut reason = self.error.lock();
        self.number.store(number, Ordering::Release);
        self.settle(BlockId::NOWHERE);
        *reason = None;
    }

    /// # Errors
    /// Why the contents are missing, if they are.
    pub(super) fn check(&self) -> Result<()> {
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    pub(super) fn used(&self) {
        self.last_used.store(self.gpu.now(), Ordering::Relaxed);
    }

    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    pub(super) fn hold(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn let_go(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_resident(&self) -> bool {
        self.copy.lock().is_none()
    }

    /// Whether nobody needs it where it is.
    pub(super) fn may_be_spilled(&self) -> bool {
        self.is_resident()
            && self.held.load(Ordering::Acquire) == 0
            && !self.is_leaving()
            && self.error.lock().is_none()
    }

    /// Whether a download from its chunk has copies still to record.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) != 0
    }

    /// Where a download that begins now gets the bytes: from the copy, or from the chunk, which stays
    /// until what is returned is dropped.
    pub(super) fn source(self: &Arc<Self>) -> Source {
        if self.gpu.spill.is_none() {
            return Source::Chunk(None);
        }
        // Not between the last look of who spills it and its going.
        let _stays = self.gpu.memory.lock();
        match self.copy() {
            Some(copy) => Source::Copy(copy),
            None => Source::Chunk(Some(Leaving::new(self))),
        }
    }

    /// The contents, while they are on the host.
    pub(super) fn copy(&self) -> Option<Arc<Vec<u8>>> {
        self.copy.lock().clone()
    }

    /// From now on the contents are on the host.
    pub(super) fn spill(&self, copy: Vec<u8>, number: u64) {
        self.number.store(number, Ordering::Release);
        *self.copy.lock() = Some(Arc::new(copy));
        self.settle(BlockId::NOWHERE);
    }

    /// The number under which the pool knows it while it is spilled.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Drops the copy on the host; false when there was none.
    pub(super) fn forget_copy(&self) -> bool {
        let had_copy = self.copy.lock().take().is_some();
        if had_copy && let Some(spill) = &self.gpu.spill {
            spill.forget(self.bytes());
        }
        had_copy
    }

    /// From now on this is its chunk.
    pub(super) fn settle(&self, id: BlockId) {
        self.id.store(id.to_bits(), Ordering::Release);
    }
}

/// Held by an op that changes a block's contents elsewhere; without a lock within another one of the same thread.
pub(crate) struct Elsewhere<'a>(&'a GpuBlock, Option<RwLockWriteGuard<'a, ()>>);

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        if self.1.is_some() {
            self.0.elsewhere.store(0, Ordering::Release);
        }
    }
}

/// Where the bytes of a block are read from.
pub(super) enum Source {
    Copy(Arc<Vec<u8>>),
    // Held, not read.
    #[allow(dead_code)]
    Chunk(Option<Leaving>),
}

/// Keeps a block in its chunk while copies from it are recorded.
pub(super) struct Leaving(Arc<GpuBlock>);

impl Leaving {
    fn new(block: &Arc<GpuBlock>) -> Self {
        block.leaving.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(block))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leaving.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for GpuBlock {
    fn drop(&mut self) {
        if self.forget_copy() {
            self.gpu.memory.lock().discard(self.number());
        } else {
            self.gpu.free(self.id());
        }
    }
}

/// Keeps a block in device memory until it is dropped: operands until their op is recorded.
pub(crate) struct Held(Arc<GpuBlock>);

impl Held {
    pub(crate) fn new(block: &Arc<GpuBlock>) -> Self {
        block.hold();
        Self(Arc::clone(block))
    }

    pub(crate) fn block(&self) -> &Arc<GpuBlock> {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use crate::device::{Device, Storage};
    use crate::dtype::DType;
    use crate::error::{Error, Result};
    use crate::memory::WhenFull;
    use crate::tensor::Tensor;

    /// A turn that does not come is waited for as long as the device was told to: by who reads, and by who writes in place,
    /// whether tensors of the device may go to the host or not.
    #[test]
    fn waits_for_turns_end_at_their_limit() {
        type Waiting = fn(&Tensor) -> Result<()>;
        let reads: Waiting = |tensor| tensor.to_vec::<f32>().map(drop);
        let writes: Waiting = |tensor| tensor.fill(1.0);
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            for when_full in [WhenFull::Fail, WhenFull::SpillToHost { most: None }] {
                let builder = Device::builder().select(&info.selector);
                let builder = builder.wait_timeout(Duration::from_millis(20));
                let device = builder.when_full(when_full).build().unwrap();
                let tensor = Tensor::empty(&device, [16], DType::F32).unwrap();
                let Storage::Gpu(block) = tensor.storage() else {
                    panic!("{info}: not on the device");
                };
                let ends = |wait: Waiting| {
                    let (tensor, (ended, result)) = (tensor.clone(), mpsc::channel());
                    // A thread of its own, so that the test fails where it would hang.
                    std::thread::spawn(move || ended.send(wait(&tensor)));
                    let result = result.recv_timeout(Duration::from_secs(60));
                    let result = result.unwrap_or_else(|_| panic!("{info}: a wait did not end"));
                    assert!(
                        matches!(result, Err(Error::TimedOut(_))),
                        "{info}: {result:?}"
                    );
                };
                let turn = block.turns().line_up_to_write();
                ends(reads);
                drop(turn);
                let turn = block.turns().to_read();
                ends(writes);
                drop(turn);
            }
        }
    }

    /// Uploads that gave up waiting for their turn leave others their slots.
    #[test]
    fn uploads_that_give_up_leave_their_slots() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let builder = Device::builder().select(&info.selector);
            let builder = builder.wait_timeout(Duration::from_millis(50));
            let device = builder.build().unwrap();
            let tensor = Tensor::empty(&device, [256 << 10], DType::F32).unwrap();
            let Storage::Gpu(block) = tensor.storage() else {
                panic!("{info}: not on the device");
            };
            let upload = || block.gpu().upload(block, 0, &vec![0; 1 << 20]);
            let turn = block.turns().to_read();
            for _ in 0..10 {
                assert!(matches!(upload(), Err(Error::TimedOut(_))), "{info}");
            }
            drop(turn);
            upload().unwrap();
        }
    }
}
