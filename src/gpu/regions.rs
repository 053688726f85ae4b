//! Regions as wgpu buffers: where the pool gets its memory from.

use std::sync::Arc;

use super::health::{self, Caught, Health};
use crate::error::{Error, Result};
use crate::faults::{Fault, FaultHook, INJECTED};
use crate::memory::{Claim, QUANTUM, Refused, RegionSource};
use crate::sync::atomic::{AtomicBool, Ordering};

/// What regions can be used for beside what orlop needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionUsages(pub wgpu::BufferUsages);

impl Default for RegionUsages {
    fn default() -> Self {
        Self(wgpu::BufferUsages::empty())
    }
}

/// Share of what regions hold that those may have which went back, but which work in flight or cached bind groups
/// may keep.
const UNSETTLED_SHARE: u64 = 8;
/// And what they may have in any case.
const UNSETTLED_BYTES: u64 = 4 << 20;

/// Creates regions on one device.
pub(crate) struct Regions {
    device: wgpu::Device,
    health: Arc<Health>,
    usages: wgpu::BufferUsages,
    faults: FaultHook,
    /// The device's seat in its adapter's ledger.
    claim: Claim,
    /// A region was given back since this was last cleared: cached bind groups may keep its
    /// memory alive.
    pub returned: bool,
    held: u64,
    /// Bytes that went back since somebody last waited for what used them.
    unsettled: u64,
    /// They are too many: the next allocation waits first.
    pub crowded: Arc<AtomicBool>,
}

impl Regions {
    /// # Errors
    /// `InvalidArgument` for extra usages that the device does not give to such buffers.
    pub(crate) fn new(
        device: wgpu::Device,
        health: Arc<Health>,
        extra: RegionUsages,
        claim: Claim,
        faults: FaultHook,
    ) -> Result<Self> {
        let watched = Arc::clone(&health);
        claim.lapses_when(move || watched.is_known_lost());
        let mut regions = Self {
            device,
            health,
            usages: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST
                | extra.0,
            claim,
            faults,
            returned: false,
            held: 0,
            unsettled: 0,
            crowded: Arc::default(),
        };
        if extra != RegionUsages::default() {
            // The device says best what it allows.
            let tried = regions.create(QUANTUM).map_err(|Refused(reason)| {
                Error::invalid(
                    "region_usages",
                    format!("{:?} cannot be had for regions: {reason}", extra.0),
                )
            })?;
            regions.destroy(tried);
            regions.returned = false;
        }
        Ok(regions)
    }
}

impl RegionSource for Regions {
    type Region = wgpu::Buffer;

    fn create(&mut self, bytes: u64) -> Result<wgpu::Buffer, Refused> {
        self.claim.take(bytes)?;
        let created = self.buffer(bytes);
        match created {
            Ok(_) => self.held += bytes,
            Err(_) => self.claim.give(bytes),
        }
        self.count_unsettled();
        created
    }

    fn destroy(&mut self, region: wgpu::Buffer) {
        let bytes = region.size();
        self.claim.give(bytes);
        // Dropped, not destroyed: work in flight or in the open batch may still use it.
        drop(region);
        self.returned = true;
        self.held = self.held.saturating_sub(bytes);
        self.unsettled += bytes;
        self.count_unsettled();
    }
}

impl Regions {
    /// Bytes that went back since [`Regions::settled`].
    pub(crate) fn unsettled(&self) -> u64 {
        self.unsettled
    }

    /// So many bytes are the adapter's again.
    pub(crate) fn settled(&mut self, bytes: u64) {
        self.unsettled = self.unsettled.saturating_sub(bytes);
        self.count_unsettled();
    }

    fn count_unsettled(&self) {
        let most = (self.held / UNSETTLED_SHARE).max(UNSETTLED_BYTES);
        let crowded = self.unsettled > most;
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    fn buffer(&self, bytes: u64) -> Result<wgpu::Buffer, Refused> {
        if self.faults.strikes(Fault::Region) {
            return Err(Refused(INJECTED.to_owned()));
        }
        let created = health::scoped(&self.device, || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("orlop region"),
                size: bytes,
                usage: self.usages,
                mapped_at_creation: false,
            })
        });
        // A lost device swallows errors and hands out dead buffers.
        if let Err(lost) = self.health.check() {
            return Err(Refused(lost.to_string()));
        }
        created.map_err(|caught| match caught {
            Caught::OutOfMemory(_) => Refused("the adapter is out of memory".to_owned()),
            Caught::Other(message) => Refused(message),
        })
    }
}
