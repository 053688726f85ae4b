//! The renderer: knows wgpu, and of orlop only where a tensor lies.

use orlop::interop::{WgpuBinding, wgpu};

/// The adapter with these words in its name, driver or backend; without words the first hardware
/// GPU, else any.
pub fn adapter(words: Option<&str>) -> Result<wgpu::Adapter, String> {
    let instance =
        wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let backends = wgpu::Backends::from_env().unwrap_or(wgpu::Backends::all());
    let mut all = pollster::block_on(instance.enumerate_adapters(backends));
    let name = |adapter: &wgpu::Adapter| {
        let info = adapter.get_info();
        // Mesa calls its Vulkan driver by the name of its GL renderer.
        let lavapipe = info.backend == wgpu::Backend::Vulkan && info.name.contains("llvmpipe");
        let alias = if lavapipe { " lavapipe" } else { "" };
        format!("{} {} {:?}{alias}", info.name, info.driver, info.backend)
    };
    all.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::Cpu => 3,
        _ => 2,
    });
    let words = words.unwrap_or_default().to_lowercase();
    let names: Vec<String> = all.iter().map(name).collect();
    let found = names.iter().position(|name| {
        let name = name.to_lowercase();
        words.split_whitespace().all(|word| name.contains(word))
    });
    match found {
        Some(at) => Ok(all.swap_remove(at)),
        None if names.is_empty() => Err(
            "there is no adapter: it takes a GPU, or a software adapter (scripts/adapters.sh)"
                .into(),
        ),
        None => Err(format!(
            "no adapter matches `{words}`; there are: {}",
            names.join(", ")
        )),
    }
}

const FORMAT: wgpu::TextureFormat = wgpu::TextureFormat::Rgba8Unorm;
const DEPTH: wgpu::TextureFormat = wgpu::TextureFormat::Depth32Float;

pub struct Renderer<'a> {
    device: &'a wgpu::Device,
    queue: &'a wgpu::Queue,
    module: wgpu::ShaderModule,
    view: wgpu::Buffer,
    side: u32,
    size: [u32; 2],
}

impl<'a> Renderer<'a> {
    /// For a height field of `side` by `side` vertices and a picture of `size` pixels.
    pub fn new(
        device: &'a wgpu::Device,
        queue: &'a wgpu::Queue,
        side: u32,
        size: [u32; 2],
    ) -> Self {
        let module = device.create_shader_module(wgpu::include_wgsl!("passes.wgsl"));
        let view = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("view"),
            size: 80,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let eye = [0.45, 0.42, 1.05];
        let to_clip = look(eye, [0.1, 0.08, 0.0], size[0] as f32 / size[1] as f32);
        let mut uniforms: Vec<f32> = to_clip.concat();
        uniforms.extend(eye);
        uniforms.push(side as f32);
        let bytes: Vec<u8> = uniforms.iter().flat_map(|x| x.to_le_bytes()).collect();
        queue.write_buffer(&view, 0, &bytes);
        Self {
            device,
            queue,
            module,
            view,
            side,
            size,
        }
    }

    fn texture(
        &self,
        size: [u32; 2],
        format: wgpu::TextureFormat,
        usage: wgpu::TextureUsages,
    ) -> wgpu::Texture {
        self.device.create_texture(&wgpu::TextureDescriptor {
            label: None,
            size: wgpu::Extent3d {
                width: size[0],
                height: size[1],
                depth_or_array_layers: 1,
            },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format,
            usage,
            view_formats: &[],
        })
    }

    fn group(
        &self,
        layout: &wgpu::BindGroupLayout,
        resources: &[wgpu::BindingResource],
    ) -> wgpu::BindGroup {
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry {
                binding,
                resource: resource.clone(),
            })
            .collect();
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        })
    }

    /// The compute pass: the tensor as a storage buffer in, a coloured map out.
    pub fn paint(&self, heights: &WgpuBinding) -> wgpu::TextureView {
        let usage = wgpu::TextureUsages::STORAGE_BINDING | wgpu::TextureUsages::TEXTURE_BINDING;
        let map = self
            .texture([self.side; 2], FORMAT, usage)
            .create_view(&Default::default());
        let pipeline = self
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some("colour"),
                layout: None,
                module: &self.module,
                entry_point: Some("colour"),
                compilation_options: Default::default(),
                cache: None,
            });
        let groups = [
            self.group(
                &pipeline.get_bind_group_layout(0),
                &[self.view.as_entire_binding()],
            ),
            self.group(
                &pipeline.get_bind_group_layout(1),
                &[
                    heights.as_binding_resource(),
                    wgpu::BindingResource::TextureView(&map),
                ],
            ),
        ];
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        for (at, group) in (0..).zip(&groups) {
            pass.set_bind_group(at, group, &[]);
        }
        let groups = self.side.div_ceil(8);
        pass.dispatch_workgroups(groups, groups, 1);
        drop(pass);
        self.queue.submit([encoder.finish()]);
        map
    }

    /// The render pass: the tensor as vertices, under the map. Gives the pixels in a buffer and the
    /// bytes of a row in it.
    pub fn draw(&self, heights: &WgpuBinding, map: &wgpu::TextureView) -> (wgpu::Buffer, u32) {
        let [width, height] = self.size;
        let usage = wgpu::TextureUsages::RENDER_ATTACHMENT;
        let target = self.texture(self.size, FORMAT, usage | wgpu::TextureUsages::COPY_SRC);
        let depth = self
            .texture(self.size, DEPTH, usage)
            .create_view(&Default::default());
        let sky = self.pipeline("sky_vertex", "sky_fragment", false);
        let land = self.pipeline("vertex", "fragment", true);
        let sampler = self.device.create_sampler(&wgpu::SamplerDescriptor {
            mag_filter: wgpu::FilterMode::Linear,
            min_filter: wgpu::FilterMode::Linear,
            ..Default::default()
        });
        let groups = [
            self.group(
                &land.get_bind_group_layout(0),
                &[self.view.as_entire_binding()],
            ),
            self.group(
                &land.get_bind_group_layout(1),
                &[
                    wgpu::BindingResource::TextureView(map),
                    wgpu::BindingResource::Sampler(&sampler),
                ],
            ),
        ];
        let (triangles, count) = self.triangles();
        let row = (width * 4).next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
        let pixels = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("pixels"),
            size: u64::from(row) * u64::from(height),
            usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });

        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
            color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                view: &target.create_view(&Default::default()),
                depth_slice: None,
                resolve_target: None,
                ops: wgpu::Operations::default(),
            })],
            depth_stencil_attachment: Some(wgpu::RenderPassDepthStencilAttachment {
                view: &depth,
                depth_ops: Some(wgpu::Operations {
                    load: wgpu::LoadOp::Clear(1.0),
                    store: wgpu::StoreOp::Discard,
                }),
                stencil_ops: None,
            }),
            ..Default::default()
        });
        pass.set_pipeline(&sky);
        pass.draw(0..3, 0..1);
        pass.set_pipeline(&land);
        for (at, group) in (0..).zip(&groups) {
            pass.set_bind_group(at, group, &[]);
        }
        pass.set_vertex_buffer(0, heights.as_slice());
        pass.set_index_buffer(triangles.slice(..), wgpu::IndexFormat::Uint32);
        pass.draw_indexed(0..count, 0, 0..1);
        drop(pass);
        encoder.copy_texture_to_buffer(
            target.as_image_copy(),
            wgpu::TexelCopyBufferInfo {
                buffer: &pixels,
                layout: wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(row),
                    rows_per_image: None,
                },
            },
            target.size(),
        );
        self.queue.submit([encoder.finish()]);
        (pixels, row)
    }

    fn pipeline(&self, vertex: &str, fragment: &str, land: bool) -> wgpu::RenderPipeline {
        let height = [wgpu::VertexAttribute {
            format: wgpu::VertexFormat::Float32,
            offset: 0,
            shader_location: 0,
        }];
        let buffers = [Some(wgpu::VertexBufferLayout {
            array_stride: 4,
            step_mode: wgpu::VertexStepMode::Vertex,
            attributes: &height,
        })];
        self.device
            .create_render_pipeline(&wgpu::RenderPipelineDescriptor {
                label: Some(vertex),
                layout: None,
                vertex: wgpu::VertexState {
                    module: &self.module,
                    entry_point: Some(vertex),
                    compilation_options: Default::default(),
                    buffers: if land { &buffers } else { &[] },
                },
                primitive: wgpu::PrimitiveState::default(),
                depth_stencil: Some(wgpu::DepthStencilState {
                    format: DEPTH,
                    depth_write_enabled: Some(land),
                    depth_compare: Some(wgpu::CompareFunction::LessEqual),
                    stencil: Default::default(),
                    bias: Default::default(),
                }),
                multisample: Default::default(),
                fragment: Some(wgpu::FragmentState {
                    module: &self.module,
                    entry_point: Some(fragment),
                    compilation_options: Default::default(),
                    targets: &[Some(FORMAT.into())],
                }),
                multiview_mask: None,
                cache: None,
            })
    }

    /// Two triangles a cell of the height field.
    fn triangles(&self) -> (wgpu::Buffer, u32) {
        let side = self.side;
        let bytes: Vec<u8> = (0..side - 1)
            .flat_map(|y| (0..side - 1).map(move |x| y * side + x))
            .flat_map(|at| [at, at + side, at + 1, at + 1, at + side, at + side + 1])
            .flat_map(u32::to_le_bytes)
            .collect();
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("triangles"),
            size: bytes.len() as u64,
            usage: wgpu::BufferUsages::INDEX | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, &bytes);
        (buffer, bytes.len() as u32 / 4)
    }
}

/// A camera at `eye` that looks at `target`: world to clip space, by columns.
fn look(eye: [f32; 3], target: [f32; 3], aspect: f32) -> [[f32; 4]; 4] {
    let minus = |a: [f32; 3], b: [f32; 3]| [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
    let dot = |a: [f32; 3], b: [f32; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
    let cross = |a: [f32; 3], b: [f32; 3]| {
        [
            a[1] * b[2] - a[2] * b[1],
            a[2] * b[0] - a[0] * b[2],
            a[0] * b[1] - a[1] * b[0],
        ]
    };
    let unit = |a: [f32; 3]| a.map(|x| x / dot(a, a).sqrt());
    let ahead = unit(minus(target, eye));
    let right = unit(cross(ahead, [0.0, 1.0, 0.0]));
    let up = cross(right, ahead);
    let (near, far, zoom) = (0.05, 10.0, 1.9);
    let depth = far / (far - near);
    // Rows of the matrix, then columns.
    let rows = [
        (right, zoom / aspect, 0.0),
        (up, zoom, 0.0),
        (ahead, depth, -near * depth),
        (ahead, 1.0, 0.0),
    ]
    .map(|(axis, scale, shift)| {
        let [x, y, z] = axis.map(|part| part * scale);
        [x, y, z, shift - scale * dot(axis, eye)]
    });
    std::array::from_fn(|column| rows.map(|row| row[column]))
}
