//! Bind groups, kept while they are in use.

use smallvec::SmallVec;

use super::generations::Generations;
use super::health;
use crate::memory::RegionId;

/// A range of a region that a kernel binds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BoundRange {
    pub region: RegionId,
    pub offset: u64,
    pub bytes: u64,
}

pub(crate) type BindingKey = SmallVec<[BoundRange; 3]>;

/// The bind groups in use. Any layout with as many buffers is compatible, so the ranges alone are the key.
pub(crate) struct Bindings(Generations<BindingKey, wgpu::BindGroup>);

impl Bindings {
    /// Keeps at most `2 * capacity` bind groups.
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Generations::new(capacity))
    }

    /// The bind group of these ranges, made at the first use. `buffers` resolves the regions.
    ///
    /// # Errors
    /// What the device said, when it refuses.
    pub(crate) fn get<'a>(
        &mut self,
        device: &wgpu::Device,
        layout: &wgpu::BindGroupLayout,
        key: &BindingKey,
        buffers: impl FnOnce() -> Option<SmallVec<[&'a wgpu::Buffer; 3]>>,
    ) -> std::result::Result<wgpu::BindGroup, String> {
        if let Some(group) = self.0.get(key) {
            return Ok(group);
        }
        let buffers = buffers().ok_or("an operand's region is gone")?;
        let group = create(device, layout, key, &buffers)?;
        Ok(self.0.insert(key.clone(), group))
    }

    /// Forgets every bind group that keeps the memory of a region alive that `lives` denies.
    pub(crate) fn retain(&mut self, lives: impl Fn(RegionId) -> bool) {
        self.0
            .retain(|key| key.iter().all(|range| lives(range.region)));
    }
}

fn create(
    device: &wgpu::Device,
    layout: &wgpu::BindGroupLayout,
    key: &BindingKey,
    buffers: &[&wgpu::Buffer],
) -> std::result::Result<wgpu::BindGroup, String> {
    let entries: SmallVec<[wgpu::BindGroupEntry<'_>; 3]> = (0u32..)
        .zip(key.iter().zip(buffers))
        .map(|(binding, (range, buffer))| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset: range.offset,
                size: wgpu::BufferSize::new(range.bytes),
            }),
        })
        .collect();
    health::scoped(device, || {
        device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        })
    })
    .map_err(health::Caught::into_message)
}
