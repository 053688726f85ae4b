//! The device's texels: a texture of its own that operands of products are copied into, for kernels
//! that load texels. Software adapters load them without a branch for each lane.
//!
//! Like staging it is outside of the pool, bounded, taken at first use and given back by `trim`. It
//! holds nothing between launches: each copies what its kernel reads.

use super::health::{self, Caught};
use crate::launch::{TEXEL_BYTES, TEXEL_LAYERS, TEXEL_ROWS, TEXEL_WIDTH, TexelCopy};

/// The group of the texture in pipelines that read it.
pub(super) const GROUP: u32 = 2;

const FORMAT: wgpu::TextureFormat = wgpu::TextureFormat::Rgba32Float;

/// What an adapter has to allow.
pub(super) fn fit(limits: &wgpu::Limits) -> bool {
    limits.max_texture_dimension_2d >= TEXEL_ROWS
        && limits.max_texture_array_layers >= TEXEL_LAYERS
        && limits.max_storage_textures_per_shader_stage >= 1
        && limits.max_bind_groups > GROUP
}

/// The layout of the group.
pub(super) fn layout(device: &wgpu::Device) -> wgpu::BindGroupLayout {
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some("orlop texels"),
        entries: &[wgpu::BindGroupLayoutEntry {
            binding: 0,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::StorageTexture {
                access: wgpu::StorageTextureAccess::ReadOnly,
                format: FORMAT,
                view_dimension: wgpu::TextureViewDimension::D2Array,
            },
            count: None,
        }],
    })
}

/// A texture and the group that binds it.
#[derive(Clone)]
pub(crate) struct TexelStore {
    pub texture: wgpu::Texture,
    pub group: wgpu::BindGroup,
}

/// What is there, if anything.
#[derive(Default)]
pub(crate) struct Texels(Option<TexelStore>);

impl Texels {
    /// At least so many layers. A larger texture takes the place of a smaller one, which lives until
    /// work that was recorded with it is done.
    ///
    /// # Errors
    /// What the device said.
    pub(crate) fn of(&mut self, device: &wgpu::Device, layers: u32) -> Result<TexelStore, Caught> {
        if let Some(store) = &self.0
            && store.texture.depth_or_array_layers() >= layers
        {
            return Ok(store.clone());
        }
        self.0 = None;
        let store = health::scoped(device, || {
            let texture = device.create_texture(&wgpu::TextureDescriptor {
                label: Some("orlop texels"),
                size: wgpu::Extent3d {
                    width: TEXEL_WIDTH,
                    height: TEXEL_ROWS,
                    depth_or_array_layers: layers,
                },
                mip_level_count: 1,
                sample_count: 1,
                dimension: wgpu::TextureDimension::D2,
                format: FORMAT,
                usage: wgpu::TextureUsages::COPY_DST | wgpu::TextureUsages::STORAGE_BINDING,
                view_formats: &[],
            });
            let view = texture.create_view(&wgpu::TextureViewDescriptor {
                dimension: Some(wgpu::TextureViewDimension::D2Array),
                ..Default::default()
            });
            let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some("orlop texels"),
                layout: &layout(device),
                entries: &[wgpu::BindGroupEntry {
                    binding: 0,
                    resource: wgpu::BindingResource::TextureView(&view),
                }],
            });
            TexelStore { texture, group }
        })?;
        self.0 = Some(store.clone());
        Ok(store)
    }

    /// Bytes of the texture; 0 without one.
    pub(crate) fn bytes(&self) -> u64 {
        let layers = self
            .0
            .as_ref()
            .map_or(0, |store| store.texture.depth_or_array_layers());
        u64::from(TEXEL_WIDTH) * u64::from(TEXEL_ROWS) * TEXEL_BYTES * u64::from(layers)
    }

    /// Gives the texture back.
    pub(crate) fn trim(&mut self) {
        self.0 = None;
    }
}

/// Copies rows of a buffer.
pub(super) fn encode(
    encoder: &mut wgpu::CommandEncoder,
    (from, offset): &(wgpu::Buffer, u64),
    to: &wgpu::Texture,
    copy: &TexelCopy,
) {
    encoder.copy_buffer_to_texture(
        wgpu::TexelCopyBufferInfo {
            buffer: from,
            layout: wgpu::TexelCopyBufferLayout {
                offset: *offset,
                // One row has none.
                bytes_per_row: (copy.rows > 1).then_some(copy.pitch as u32),
                rows_per_image: None,
            },
        },
        wgpu::TexelCopyTextureInfo {
            texture: to,
            mip_level: 0,
            origin: wgpu::Origin3d {
                x: 0,
                y: copy.row,
                z: copy.layer,
            },
            aspect: wgpu::TextureAspect::All,
        },
        wgpu::Extent3d {
            width: copy.width,
            height: copy.rows,
            depth_or_array_layers: 1,
        },
    );
}
