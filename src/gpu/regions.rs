//! Regions as wgpu buffers: where the pool gets its memory from.

use std::sync::Arc;

use super::health::{self, Caught, Health};
use crate::memory::{Refused, RegionSource};

/// Creates regions on one device.
pub(crate) struct Regions {
    device: wgpu::Device,
    health: Arc<Health>,
    /// A region was given back since this was last cleared: cached bind groups may keep its
    /// memory alive.
    pub returned: bool,
}

impl Regions {
    pub(crate) fn new(device: wgpu::Device, health: Arc<Health>) -> Self {
        Self {
            device,
            health,
            returned: false,
        }
    }
}

impl RegionSource for Regions {
    type Region = wgpu::Buffer;

    fn create(&mut self, bytes: u64) -> Result<wgpu::Buffer, Refused> {
        let created = health::scoped(&self.device, || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("orlop region"),
                size: bytes,
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::COPY_SRC
                    | wgpu::BufferUsages::COPY_DST,
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

    fn destroy(&mut self, region: wgpu::Buffer) {
        // Dropped, not destroyed: work in flight or in the open batch may still use it.
        drop(region);
        self.returned = true;
    }
}
