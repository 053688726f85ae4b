//! A counted handle on a tensor's bytes.

use std::ops::Range;
use std::sync::Arc;

use super::{Backend, Device};
use crate::cpu::{HostBlock, HostPin, parallel};
use crate::error::{Error, Result};
use crate::gpu::{GpuBlock, Pin, Sink, out_of_memory};
use crate::memory::QUANTUM;
use crate::turns::Turn;

/// Bytes of a file that are on the host at a time.
const PIECE: usize = 4 << 20;
/// Bytes that one thread copies at a time, and from how many on it is several threads' work.
const SHARE: usize = 256 << 10;
const SHARED_FROM: usize = 1 << 20;

/// A tensor's bytes: a chunk of a device's pool. An address is never in it.
#[derive(Clone)]
pub(crate) enum Storage {
    Gpu(Arc<GpuBlock>),
    Host(Arc<HostBlock>),
    /// No bytes: tensors without elements.
    Empty,
}

/// Keeps a storage where it is until it is dropped.
pub(crate) enum StoragePin {
    Gpu(#[allow(dead_code)] Pin),
    Host(#[allow(dead_code)] HostPin),
    Empty,
}

impl Storage {
    /// Keeps the storage where it is; brings it back first if it is spilled.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`, `TimedOut`.
    pub(crate) fn pin(&self) -> Result<StoragePin> {
        Ok(match self {
            Storage::Gpu(block) => StoragePin::Gpu(block.gpu().pin(block)?),
            Storage::Host(block) => StoragePin::Host(block.pin()),
            Storage::Empty => StoragePin::Empty,
        })
    }

    /// True when this is the one handle on the bytes.
    pub(crate) fn is_held_once(&self) -> bool {
        match self {
            Storage::Gpu(block) => Arc::strong_count(block) == 1,
            Storage::Host(block) => Arc::strong_count(block) == 1,
            Storage::Empty => true,
        }
    }

    /// True when both are the same bytes.
    pub(crate) fn is_same(&self, other: &Storage) -> bool {
        match (self, other) {
            (Storage::Gpu(a), Storage::Gpu(b)) => Arc::ptr_eq(a, b),
            (Storage::Host(a), Storage::Host(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// What tells it from others while it lives; `None` without bytes.
    pub(crate) fn address(&self) -> Option<usize> {
        match self {
            Storage::Gpu(block) => Some(Arc::as_ptr(block).addr()),
            Storage::Host(block) => Some(Arc::as_ptr(block).addr()),
            Storage::Empty => None,
        }
    }

    /// Bytes of the chunk that a GPU gives for `bytes`.
    pub(crate) fn rounded(bytes: u64) -> u64 {
        bytes.next_multiple_of(QUANTUM)
    }

    /// Bytes of its chunk on a GPU; 0 elsewhere, where no binding limits them.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Storage::Gpu(block) => block.bytes(),
            Storage::Host(_) | Storage::Empty => 0,
        }
    }

    /// Bytes that were asked for on a GPU, behind which nobody's are; 0 elsewhere.
    pub(crate) fn asked(&self) -> u64 {
        match self {
            Storage::Gpu(block) => block.request().bytes,
            Storage::Host(_) | Storage::Empty => 0,
        }
    }

    /// Whether the bytes are on the host because the device had no room for them.
    pub(crate) fn is_spilled(&self) -> bool {
        matches!(self, Storage::Gpu(block) if !block.is_resident())
    }

    /// A turn to read the bytes as they are now, for whatever thread; nothing without bytes.
    pub(crate) fn turn_to_read(&self) -> Option<Turn> {
        match self {
            Storage::Gpu(block) => Some(block.turns().to_read()),
            Storage::Host(block) => Some(block.turns().to_read()),
            Storage::Empty => None,
        }
    }

    /// Waits until a turn has come.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(crate) fn await_turn(&self, turn: &Turn) -> Result<()> {
        match self {
            Storage::Gpu(block) => block.gpu().await_turn(turn),
            Storage::Host(_) | Storage::Empty => {
                turn.wait();
                Ok(())
            }
        }
    }

    /// Hands the bytes of a range to `sink`, piece by piece in order. Waits for the device.
    ///
    /// # Errors
    /// Why the bytes are missing; a lost device.
    pub(crate) fn read(&self, range: Range<u64>, sink: Sink<'_>) -> Result<()> {
        self.read_in_turn(self.turn_to_read(), range, sink)
    }

    /// [`Storage::read`] in a turn that was taken before, and is over as soon as it can be.
    ///
    /// # Errors
    /// As [`Storage::read`].
    pub(crate) fn read_in_turn(
        &self,
        turn: Option<Turn>,
        range: Range<u64>,
        sink: Sink<'_>,
    ) -> Result<()> {
        let Some(turn) = turn else {
            return Ok(());
        };
        self.await_turn(&turn)?;
        match self {
            Storage::Empty => Ok(()),
            Storage::Host(block) => {
                let bytes = block.read();
                let range = range.start as usize..range.end as usize;
                let piece = bytes.get(range).ok_or_else(|| {
                    Error::invalid("read", "the range is outside of the tensor's memory")
                })?;
                sink(piece);
                Ok(())
            }
            Storage::Gpu(block) => block
                .gpu()
                .begin_download(block, turn, range.start, range.end - range.start)?
                .finish(sink),
        }
    }

    /// Fills the first `bytes` bytes piece by piece, in order: `source` writes each whole. Pieces are
    /// [`PIECE`] bytes, the last one what is left.
    ///
    /// # Errors
    /// What `source` says; a lost device, or no memory for staging.
    // Without a feature nobody fills from files.
    #[cfg_attr(not(any(feature = "npy", feature = "safetensors")), allow(dead_code))]
    pub(crate) fn fill(
        &self,
        bytes: u64,
        source: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        match self {
            Storage::Empty => Ok(()),
            Storage::Host(block) => {
                let mut target = block.write();
                let target = target
                    .get_mut(..bytes as usize)
                    .ok_or_else(|| Error::invalid("write", "more bytes than the tensor has"))?;
                target.chunks_mut(PIECE).try_for_each(source)
            }
            Storage::Gpu(block) => {
                let mut piece = vec![0; PIECE.min(bytes as usize)];
                let mut at = 0;
                while at < bytes {
                    piece.truncate((bytes - at) as usize);
                    source(&mut piece)?;
                    block.gpu().upload(block, at, &piece)?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
        }
    }

    /// Copies `data` to the start of the storage, in the device's order.
    ///
    /// # Errors
    /// A lost device, or no memory for staging.
    pub(crate) fn write(&self, data: &[u8]) -> Result<()> {
        match self {
            Storage::Empty => Ok(()),
            Storage::Host(block) => write_to(block, 0, data),
            Storage::Gpu(block) => block.gpu().upload(block, 0, data),
        }
    }

    /// Copies `data` to `at` of a storage with contents, whole words of it on a GPU, in the device's order: all of it or, after
    /// an error, nothing.
    ///
    /// # Errors
    /// As [`Storage::write`]; `TimedOut`.
    pub(crate) fn overwrite(&self, at: u64, data: &[u8]) -> Result<()> {
        match self {
            Storage::Empty => Ok(()),
            Storage::Host(block) => {
                // Before anything is locked: the reads before it may need what is locked here.
                let turn = block.turns().to_write();
                if let Some(turn) = &turn {
                    turn.wait();
                }
                write_to(block, at as usize, data)
            }
            Storage::Gpu(block) => block.gpu().overwrite(block, at, data),
        }
    }
}

fn write_to(block: &HostBlock, at: usize, data: &[u8]) -> Result<()> {
    let mut bytes = block.write();
    let target = bytes
        .get_mut(at..)
        .and_then(|bytes| bytes.get_mut(..data.len()))
        .ok_or_else(|| Error::invalid("write", "more bytes than the tensor has"))?;
    let pieces = target.chunks_mut(SHARE).zip(data.chunks(SHARE));
    parallel::share(data.len() > SHARED_FROM, pieces, |(target, data)| {
        target.copy_from_slice(data);
    });
    Ok(())
}

impl Device {
    /// Memory of this device's pool; its contents are whatever was there.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`, `TimedOut`.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Storage> {
        if bytes == 0 {
            return Ok(Storage::Empty);
        }
        let storage = match self.backend() {
            Backend::Gpu(gpu) => gpu.allocate(bytes).map(Storage::Gpu),
            Backend::Cpu(pool) => pool.allocate(bytes).map(Storage::Host).map_err(|mut full| {
                // There is no other place than the host.
                full.spillable = 0;
                out_of_memory(&self.to_string(), &full)
            }),
        }?;
        self.record_call_site(&storage);
        Ok(storage)
    }
}
