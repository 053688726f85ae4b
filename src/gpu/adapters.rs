//! Finds the adapters that wgpu reaches, once a process, and says what each can do.

use std::sync::{Arc, OnceLock};

use super::hal;
use super::halves::Conversions;
use super::lent;
use crate::capabilities::{Capabilities, CooperativeMatrices, DeviceKind};
use crate::dtype::DType;
use crate::launch::WINDOW_ALIGNMENT;
use crate::matmul_kernel::MatmulKernel;
use crate::memory::{QUANTUM, order};

/// One adapter as wgpu shows it.
pub(crate) struct Adapter {
    pub adapter: wgpu::Adapter,
    pub name: String,
    /// `Vulkan`, `Metal`, `Dx12`, `Gl`.
    pub backend: &'static str,
    pub driver: String,
    /// PCI vendor and bus address where the backend knows them.
    pub vendor: u32,
    pub pci: String,
    pub capabilities: Capabilities,
    /// Known once a device has asked it.
    pub conversions: OnceLock<Conversions>,
}

impl Adapter {
    /// What names the physical adapter, however it is reached: its PCI address, else what is known
    /// of it, which two of a kind share.
    pub(crate) fn physical(&self) -> String {
        if self.pci.is_empty() {
            format!("{} {} {}", self.vendor, self.name, self.backend)
        } else {
            self.pci.clone()
        }
    }

    /// GL shares one context per adapter, so its wgpu calls are serialised.
    pub(crate) fn is_gl(&self) -> bool {
        // The model checker tries GL's lock over the no-op backend.
        let as_gl = cfg!(orlop_model) && std::env::var_os("ORLOP_MODEL_GL").is_some();
        as_gl || self.adapter.get_info().backend == wgpu::Backend::Gl
    }
}

/// All adapters, each physical GPU once with its best backend: hardware first (discrete,
/// integrated, other), then software; within a kind native backends before GL.
pub(crate) fn adapters() -> &'static [Adapter] {
    static ADAPTERS: OnceLock<Vec<Adapter>> = OnceLock::new();
    ADAPTERS.get_or_init(|| {
        // Without a backend for this target wgpu's constructor panics.
        let backends = wgpu::Instance::enabled_backend_features() & hal::backends();
        if backends.is_empty() {
            return Vec::new();
        }
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle_from_env();
        descriptor.backends &= backends;
        let is_for_dx12 = cfg!(windows) && descriptor.backends.contains(wgpu::Backends::DX12);
        if is_for_dx12 && std::env::var_os("WGPU_DEBUG").is_none() {
            // With it DX12's compilers optimise nothing, and so in each program that is built for its developers.
            descriptor.flags.remove(wgpu::InstanceFlags::DEBUG);
        }
        let wanted = descriptor.backends;
        let instance = wgpu::Instance::new(descriptor);
        let found = pollster::block_on(instance.enumerate_adapters(wanted));
        let mut all: Vec<Adapter> = found
            .into_iter()
            .filter_map(|adapter| {
                let (features, limits) = (adapter.features(), adapter.limits());
                // With less most kernels are none: the CPU does it all.
                match lent::missing(&limits) {
                    None => describe(adapter, features, &limits),
                    Some((limit, there, needed)) => {
                        let name = adapter.get_info().name;
                        tracing::warn!(name, limit, there, needed, "an adapter is left out");
                        None
                    }
                }
            })
            .collect();
        order::sort(&mut all, |adapter| {
            let rank = backend_rank(adapter.backend);
            (adapter.capabilities.kind as u64, rank.into())
        });
        one_per_gpu(all)
    })
}

fn backend_rank(backend: &str) -> u32 {
    match backend {
        "Metal" | "Vulkan" => 0,
        "Dx12" => 1,
        _ => 2,
    }
}

/// Leaves out what an earlier, better backend already shows: the same PCI address, or a GL view
/// (which knows no address) of a vendor that a native backend shows.
fn one_per_gpu(all: Vec<Adapter>) -> Vec<Adapter> {
    let mut kept: Vec<Adapter> = Vec::new();
    for adapter in all {
        let shown = adapter.capabilities.kind.is_gpu()
            && kept.iter().any(|other| {
                let same_address =
                    is_same_address((adapter.backend, &adapter.pci), (other.backend, &other.pci));
                let gl_view = adapter.is_gl()
                    && !other.is_gl()
                    && other.capabilities.kind.is_gpu()
                    && (adapter.vendor == 0 || adapter.vendor == other.vendor);
                // Two native backends without addresses: the same name and vendor on another API.
                let other_api = (adapter.pci.is_empty() || other.pci.is_empty())
                    && adapter.backend != other.backend
                    && adapter.vendor == other.vendor
                    && adapter.name == other.name;
                same_address || gl_view || other_api
            });
        if !shown {
            kept.push(adapter);
        }
    }
    // Of the addresses that two have nobody knows whose they are.
    let pci = |adapter: &Adapter| adapter.pci.clone();
    let addresses: Vec<String> = kept.iter().map(pci).collect();
    for adapter in &mut kept {
        if addresses.iter().filter(|&pci| *pci == adapter.pci).count() > 1 {
            adapter.pci.clear();
        }
    }
    kept
}

/// Whether two adapters, each a backend and a PCI address, lie at one address. DX12 alone cannot tell: there wgpu
/// looks the address up by vendor and model, and gives two of a kind the same one.
fn is_same_address(one: (&str, &str), other: (&str, &str)) -> bool {
    let is_told = one.0 != "Dx12" || other.0 != "Dx12";
    is_told && !one.1.is_empty() && one.1 == other.1
}

/// What a device on the adapter can do with these features and limits. `None` when it cannot run
/// compute shaders with storage buffers.
pub(super) fn describe(
    adapter: wgpu::Adapter,
    features: wgpu::Features,
    limits: &wgpu::Limits,
) -> Option<Adapter> {
    let info = adapter.get_info();
    let backend = match info.backend {
        wgpu::Backend::Vulkan => "Vulkan",
        wgpu::Backend::Metal => "Metal",
        wgpu::Backend::Dx12 => "Dx12",
        wgpu::Backend::Gl => "Gl",
        #[cfg(orlop_model)]
        wgpu::Backend::Noop => "Noop",
        _ => return None,
    };
    let flags = adapter.get_downlevel_capabilities().flags;
    // Beside them there has to be room for a uniform. 0: none but the storage buffers are counted.
    let max_bindings = match limits.max_buffers_and_acceleration_structures_per_shader_stage {
        0 => limits.max_storage_buffers_per_shader_stage,
        most => limits.max_storage_buffers_per_shader_stage.min(most - 1),
    };
    let max_bindings = max_bindings.min(limits.max_bindings_per_bind_group);
    if !flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) || max_bindings < 4 {
        return None;
    }
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => DeviceKind::DiscreteGpu,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::IntegratedGpu,
        wgpu::DeviceType::Cpu => DeviceKind::Software,
        _ if looks_like_software(&info.name) => DeviceKind::Software,
        _ => DeviceKind::OtherGpu,
    };
    let has = |feature: wgpu::Features| features.contains(feature);
    let mut capabilities = Capabilities {
        kind,
        f16: has(wgpu::Features::SHADER_F16),
        f64: has(wgpu::Features::SHADER_F64),
        int64: has(wgpu::Features::SHADER_INT64),
        bounds_checks: info.backend != wgpu::Backend::Gl,
        subgroup_sizes: has(wgpu::Features::SUBGROUP)
            .then_some((info.subgroup_min_size, info.subgroup_max_size)),
        texels: super::texels::fit(limits),
        cooperative_matrices: match has(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
            true => cooperative_matrices(&adapter),
            false => CooperativeMatrices::default(),
        },
        timestamps: has(wgpu::Features::TIMESTAMP_QUERY),
        immediate_bytes: if has(wgpu::Features::IMMEDIATES) {
            limits.max_immediate_size
        } else {
            0
        },
        // What is made are whole quanta, and what is bound whole windows.
        max_buffer_bytes: limits.max_buffer_size / QUANTUM * QUANTUM,
        max_binding_bytes: whole_windows(limits.max_storage_buffer_binding_size),
        max_bindings,
        max_workgroups: limits.max_compute_workgroups_per_dimension,
        // Kernels may put all of a workgroup into one dimension.
        max_invocations: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x),
        max_workgroup_size: [
            limits.max_compute_workgroup_size_x,
            limits.max_compute_workgroup_size_y,
            limits.max_compute_workgroup_size_z,
        ],
        workgroup_memory_bytes: limits.max_compute_workgroup_storage_size,
        cores: hal::cores(&adapter),
        matmul_choices: Arc::default(),
    };
    // Those that no kernel multiplies are as good as none.
    let runs = |dtype| MatmulKernel::is_cooperative(&capabilities, dtype);
    let [halves, singles] = [DType::F16, DType::F32].map(runs);
    let matrices = &mut capabilities.cooperative_matrices;
    matrices.f16 = matrices.f16.filter(|_| halves);
    matrices.f32 = matrices.f32.filter(|_| singles);
    Some(Adapter {
        backend,
        driver: [info.driver.trim(), info.driver_info.trim()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" "),
        name: info.name,
        vendor: info.vendor,
        pci: info.device_pci_bus_id,
        capabilities,
        conversions: OnceLock::new(),
        adapter,
    })
}

/// As much of a binding as kernels see.
pub(super) fn whole_windows(bytes: u64) -> u64 {
    bytes / WINDOW_ALIGNMENT * WINDOW_ALIGNMENT
}

/// The largest square matrices with sums in f32. On Vulkan alone: nothing else has run the kernel.
fn cooperative_matrices(adapter: &wgpu::Adapter) -> CooperativeMatrices {
    use wgpu::CooperativeScalarType as Scalar;
    if adapter.get_info().backend != wgpu::Backend::Vulkan {
        return CooperativeMatrices::default();
    }
    let all = adapter.cooperative_matrix_properties();
    let edge = |factors| {
        all.iter()
            .filter(|one| one.m_size == one.n_size && one.n_size == one.k_size)
            .filter(|one| one.ab_type == factors && one.cr_type == Scalar::F32)
            .map(|one| one.m_size)
            .max()
    };
    CooperativeMatrices {
        f16: edge(Scalar::F16),
        f32: edge(Scalar::F32),
    }
}

/// GL and some translation layers report software renderers as `Other`.
fn looks_like_software(name: &str) -> bool {
    let name = name.to_lowercase();
    ["llvmpipe", "softpipe", "swiftshader", "basic render"]
        .iter()
        .any(|software| name.contains(software))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_under_dx12_alone_are_no_proof() {
        let address = "0000:01:00.0";
        for (one, other, same) in [
            (("Vulkan", address), ("Vulkan", address), true),
            (("Dx12", address), ("Vulkan", address), true),
            (("Dx12", address), ("Dx12", address), false),
            (("Vulkan", address), ("Vulkan", "0000:02:00.0"), false),
            (("Vulkan", ""), ("Gl", ""), false),
        ] {
            assert_eq!(is_same_address(one, other), same, "{one:?} {other:?}");
        }
    }
}
