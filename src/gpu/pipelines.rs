//! Compiled kernels, one per specialisation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::generations::Generations;
use super::halves::Conversions;
use super::health::{self, Health};
use super::program_text::told;
use super::templates::{self, ParamsSpace};
use super::texels;
use crate::error::{Error, Result};
use crate::launch::KernelKey;
use crate::sync::Mutex;

/// A kernel ready to be dispatched.
pub(crate) struct CompiledKernel {
    pub pipeline: wgpu::ComputePipeline,
    /// The layout of group 0: the operands' buffers.
    pub operands: wgpu::BindGroupLayout,
    /// It reads the device's texels.
    pub texels: bool,
    pub space: ParamsSpace,
}

/// So many kernels in turn are compiled once, far more than a program's ops come to; of up to twice as many some are. Its own
/// kernels and expressions, with a number in the text of each, do not pile up for ever.
const KERNELS: usize = if cfg!(test) { 16 } else { 1024 };

/// The cache of kernels of one device.
pub(crate) struct Pipelines {
    device: wgpu::Device,
    health: Arc<Health>,
    /// naga's bounds, division and loop checks; our own kernels guard themselves.
    checks: bool,
    immediate_bytes: u32,
    pub(super) conversions: Conversions,
    kernels: Mutex<Generations<KernelKey, Arc<CompiledKernel>>>,
    /// On GL all that are in use or kept: ops let go of theirs where others call GL, and wherever that is none may be dropped.
    held: Option<Mutex<Vec<Arc<CompiledKernel>>>>,
}

impl Pipelines {
    pub(crate) fn new(
        device: wgpu::Device,
        health: Arc<Health>,
        checks: bool,
        immediate_bytes: u32,
        are_held: bool,
    ) -> Self {
        Self {
            device,
            health,
            checks,
            immediate_bytes,
            conversions: Conversions::default(),
            kernels: Mutex::new(Generations::new(KERNELS)),
            held: are_held.then(Mutex::default),
        }
    }

    /// Compiles at the first call for a key. On GL its lock is held.
    ///
    /// # Errors
    /// `KernelCompile` with the compiler's message, `DeviceLost`.
    pub(crate) fn get(&self, key: &KernelKey) -> Result<Arc<CompiledKernel>> {
        if let Some(kernel) = self.kernels.lock().get(key) {
            return Ok(kernel);
        }
        // Compiled outside the lock: two threads may do it twice, neither waits for the other.
        let kernel = Arc::new(self.compile(key)?);
        if let Some(held) = &self.held {
            let mut held = held.lock();
            held.push(Arc::clone(&kernel));
            // What nobody else has nobody gets any more.
            held.retain(|kernel| Arc::strong_count(kernel) > 1);
        }
        Ok(self.kernels.lock().insert(key.clone(), kernel))
    }

    fn compile(&self, key: &KernelKey) -> Result<CompiledKernel> {
        self.health.check()?;
        let space = if key.words * 4 <= self.immediate_bytes {
            ParamsSpace::Immediate
        } else {
            ParamsSpace::Uniform
        };
        let source = templates::render(key, space, self.conversions)?;
        let started = std::time::Instant::now();
        // naga panics where it writes some kernels of programs for the driver; what it was at is dropped.
        let compiled = health::scoped(&self.device, || {
            catch_unwind(AssertUnwindSafe(|| self.build(key, space, source)))
        });
        tracing::debug!(
            kernel = %key,
            seconds = started.elapsed().as_secs_f64(),
            "compiled"
        );
        self.health.ask(&self.device)?;
        let failed = |message: String| Error::kernel_compile(key.name(), message);
        let built = compiled.map_err(|caught| failed(caught.into_message()))?;
        built.map_err(|payload| failed(format!("its compiler panicked: {}", told(&*payload))))
    }

    #[allow(unsafe_code)]
    pub(super) fn build(
        &self,
        key: &KernelKey,
        space: ParamsSpace,
        source: String,
    ) -> CompiledKernel {
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(key.name()),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        };
        let checks = self.checks || key.is_users();
        let module = if checks {
            self.device.create_shader_module(descriptor)
        } else {
            // SAFETY: only the templates of `shaders/` come here, never a program's own kernels; each guards its indices by the
            // sizes in its params and ends its loops, which the suite proves with checks on too.
            unsafe {
                self.device.create_shader_module_trusted(
                    descriptor,
                    wgpu::ShaderRuntimeChecks::unchecked(),
                )
            }
        };
        let buffer = |binding, ty| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        // Usage is tracked per buffer, not per range: pooled operands are all read_write.
        let entries: Vec<_> = (0..key.bindings)
            .map(|binding| {
                buffer(
                    binding,
                    wgpu::BufferBindingType::Storage { read_only: false },
                )
            })
            .collect();
        let layout = |entries: &[wgpu::BindGroupLayoutEntry]| {
            self.device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                    label: Some(key.name()),
                    entries,
                })
        };
        let operands = layout(&entries);
        let uniform;
        let (mut groups, immediate_size) = match space {
            ParamsSpace::Immediate => (vec![Some(&operands)], key.words * 4),
            ParamsSpace::Uniform => {
                uniform = layout(&[buffer(0, wgpu::BufferBindingType::Uniform)]);
                (vec![Some(&operands), Some(&uniform)], 0)
            }
        };
        let texels = key.reads_texels().then(|| texels::layout(&self.device));
        if texels.is_some() {
            groups.resize(texels::GROUP as usize, None);
            groups.push(texels.as_ref());
        }
        let pipeline_layout = self
            .device
            .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(key.name()),
                bind_group_layouts: &groups,
                immediate_size,
            });
        let pipeline = self
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(key.name()),
                layout: Some(&pipeline_layout),
                module: &module,
                // The only one.
                entry_point: None,
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: checks,
                    ..Default::default()
                },
                cache: None,
            });
        CompiledKernel {
            pipeline,
            operands,
            texels: texels.is_some(),
            space,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::ops::fused;
    use crate::tensor::Tensor;

    /// Ever new expressions, then the first again: right, and no more kernels than are kept.
    #[test]
    fn kernels_do_not_pile_up() {
        let adapters = Device::list().unwrap();
        for info in adapters.iter().filter(|info| info.backend != "native") {
            let device = Device::select(&info.selector).unwrap();
            let x = Tensor::from_slice(&device, &[-1.5f32, 2.0], [2]).unwrap();
            let count = 3 * KERNELS;
            for at in (0..count).chain(0..4) {
                let value = |x: f32| {
                    let turns = (0..6).map(|bit| at >> bit & 1 == 1);
                    turns.fold(
                        x,
                        |value, is_sum| if is_sum { value + x } else { value - x },
                    )
                };
                let got = fused(|e| {
                    let x = e.input(&x);
                    let turns = (0..6).map(|bit| at >> bit & 1 == 1);
                    turns.fold(
                        x,
                        |value, is_sum| if is_sum { value + x } else { value - x },
                    )
                });
                let got = got.unwrap().to_vec::<f32>().unwrap();
                assert_eq!(got, [value(-1.5), value(2.0)], "{info}, {at}");
            }
            let pipelines = &device.gpu().unwrap().pipelines;
            if let Some(held) = &pipelines.held {
                let held = held.lock().len();
                assert!(held > KERNELS && held <= 2 * KERNELS + 2, "{info}: {held}");
            }
        }
    }
}
