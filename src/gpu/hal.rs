//! What wgpu's portable API does not tell or hold: memory and cores of a Vulkan adapter; mapped memory while it is read or
//! written; that experimental features are known to be such.
//!
//! One of the three places with `unsafe` on the GPU floor: the others are `pipelines.rs` (wgpu's constructor of modules
//! without checks) and `serial.rs` (C's `atexit`). `tests/house.rs` lists them.

/// The backends that this system may have, and whether the feature of each is on.
fn ours() -> impl Iterator<Item = (wgpu::Backend, bool)> {
    let anywhere = !cfg!(target_vendor = "apple") && !cfg!(target_family = "wasm");
    [
        (wgpu::Backend::Vulkan, cfg!(feature = "vulkan"), anywhere),
        (wgpu::Backend::Gl, cfg!(feature = "gles"), anywhere),
        (
            wgpu::Backend::Metal,
            cfg!(feature = "metal"),
            cfg!(target_vendor = "apple"),
        ),
        (wgpu::Backend::Dx12, cfg!(feature = "dx12"), cfg!(windows)),
        (wgpu::Backend::Noop, true, cfg!(orlop_model)),
    ]
    .into_iter()
    .filter_map(|(backend, is_on, is_here)| is_here.then_some((backend, is_on)))
}

/// The backends that orlop uses: those of its own features, as the rest of this file knows them. wgpu may have others,
/// where another crate of the program's asked for them.
pub(super) fn backends() -> wgpu::Backends {
    ours()
        .filter_map(|(backend, is_on)| is_on.then_some(wgpu::Backends::from(backend)))
        .collect()
}

/// The features of this crate that are off and would add a backend here.
pub(crate) fn features_off() -> Vec<&'static str> {
    ours()
        .filter(|(_, is_on)| !is_on)
        .filter_map(|(backend, _)| feature(backend))
        .collect()
}

/// The feature of this crate that adds a backend.
pub(super) fn feature(backend: wgpu::Backend) -> Option<&'static str> {
    match backend {
        wgpu::Backend::Vulkan => Some("vulkan"),
        wgpu::Backend::Metal => Some("metal"),
        wgpu::Backend::Dx12 => Some("dx12"),
        wgpu::Backend::Gl => Some("gles"),
        _ => None,
    }
}

/// Total and free bytes of the adapter's own memory, where they can be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdapterMemory {
    pub total: Option<u64>,
    pub free: Option<u64>,
}

/// Asks the driver. Free memory needs `VK_EXT_memory_budget`; other backends know neither.
#[cfg(all(
    feature = "vulkan",
    not(target_vendor = "apple"),
    not(target_family = "wasm")
))]
#[allow(unsafe_code)]
pub(crate) fn adapter_memory(adapter: &wgpu::Adapter) -> AdapterMemory {
    use ash::vk;
    // SAFETY: the guard keeps the adapter alive while its raw handle is used here, and nothing of
    // it is destroyed or kept.
    let Some(vulkan) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else {
        return AdapterMemory::default();
    };
    let capabilities = vulkan.physical_device_capabilities();
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    let has_budget = capabilities.supports_extension(ash::ext::memory_budget::NAME);
    if has_budget {
        properties = properties.push_next(&mut budget);
    }
    let instance = vulkan.shared_instance();
    if !answers(&vulkan) {
        return AdapterMemory::default();
    }
    // SAFETY: the physical device belongs to this instance, both live as long as `vulkan`, and
    // the chained struct is one that the device's extension list allows.
    unsafe {
        instance
            .raw_instance()
            .get_physical_device_memory_properties2(vulkan.raw_physical_device(), &mut properties);
    }
    let memory = properties.memory_properties;
    let heaps = memory
        .memory_heaps
        .iter()
        .take(memory.memory_heap_count as usize);
    let local = |heap: &vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    let total: u64 = heaps
        .clone()
        .filter(|heap| local(heap))
        .map(|heap| heap.size)
        .sum();
    // Drivers that only compile (Mesa's for AMD without a GPU) say so: that is no budget.
    if total == 0 {
        return AdapterMemory::default();
    }
    let free = has_budget.then(|| {
        heaps
            .enumerate()
            .filter(|(_, heap)| local(heap))
            .map(|(at, _)| budget.heap_budget[at].saturating_sub(budget.heap_usage[at]))
            .sum()
    });
    AdapterMemory {
        total: Some(total),
        free,
    }
}

/// The core forms of the queries of properties exist from Vulkan 1.1 on.
#[cfg(all(
    feature = "vulkan",
    not(target_vendor = "apple"),
    not(target_family = "wasm")
))]
fn answers(vulkan: &wgpu::hal::vulkan::Adapter) -> bool {
    let device = vulkan.physical_device_capabilities().properties();
    let instance = vulkan.shared_instance().instance_api_version();
    instance.min(device.api_version) >= ash::vk::API_VERSION_1_1
}

/// Multiprocessors or compute units, as NVIDIA's and AMD's drivers tell.
#[cfg(all(
    feature = "vulkan",
    not(target_vendor = "apple"),
    not(target_family = "wasm")
))]
#[allow(unsafe_code)]
pub(super) fn cores(adapter: &wgpu::Adapter) -> Option<u32> {
    use ash::vk;
    // SAFETY: as in `adapter_memory`.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let capabilities = vulkan.physical_device_capabilities();
    let instance = vulkan.shared_instance();
    if !answers(&vulkan) {
        return None;
    }
    let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut properties = vk::PhysicalDeviceProperties2::default();
    if capabilities.supports_extension(ash::nv::shader_sm_builtins::NAME) {
        properties = properties.push_next(&mut nvidia);
    }
    if capabilities.supports_extension(ash::amd::shader_core_properties2::NAME) {
        properties = properties.push_next(&mut amd);
    }
    // SAFETY: the physical device belongs to this instance, both live as long as `vulkan`, and each
    // chained struct is one that the device's extension list allows.
    unsafe {
        instance
            .raw_instance()
            .get_physical_device_properties2(vulkan.raw_physical_device(), &mut properties);
    }
    let told = nvidia.shader_sm_count.max(amd.active_compute_unit_count);
    (told > 0).then_some(told)
}

/// Without the Vulkan backend nothing is known.
#[cfg(not(all(
    feature = "vulkan",
    not(target_vendor = "apple"),
    not(target_family = "wasm")
)))]
pub(super) fn cores(_adapter: &wgpu::Adapter) -> Option<u32> {
    None
}

/// Without the Vulkan backend nothing is known.
#[cfg(not(all(
    feature = "vulkan",
    not(target_vendor = "apple"),
    not(target_family = "wasm")
)))]
pub(crate) fn adapter_memory(_adapter: &wgpu::Adapter) -> AdapterMemory {
    AdapterMemory::default()
}

/// What wgpu asks for before it opens a device with cooperative matrices.
#[allow(unsafe_code)]
pub(crate) fn experimental_features() -> wgpu::ExperimentalFeatures {
    // SAFETY: wgpu checks neither where cooperative matrices are loaded from nor that whole subgroups run. Only
    // `shaders/matmul/cooperative_tile.wgsl` has them, within workgroup memory of its own; kernels of programs are
    // refused when they enable them. The suite runs it on lavapipe, and ran it on an NVIDIA H200. By the letter of Vulkan's
    // memory model naga 30 says too little of what passes through workgroup memory there (wgpu's issue 8805): drivers do
    // what is meant, as far as we know.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// Runs `work` on the mapping of a buffer, whose memory stays where it is meanwhile: of a lost device whoever polls
/// takes all buffers' memory, that of mapped ones too, and wgpu's views of a mapping do not keep it. Nothing when it is
/// gone. `work` calls nothing of wgpu, or it waits for who waits for it.
#[allow(unsafe_code)]
pub(crate) fn with_memory<T>(
    backend: wgpu::Backend,
    buffer: &wgpu::Buffer,
    work: impl FnOnce() -> T,
) -> Option<T> {
    // Some platforms have none of these.
    #[allow(unused_macros)]
    macro_rules! keep {
        ($api:ident) => {{
            // SAFETY: the guard is held, and the raw buffer in it is neither used nor destroyed.
            let _kept = unsafe { buffer.as_hal::<wgpu::hal::api::$api>() }?;
            Some(work())
        }};
    }
    match backend {
        #[cfg(all(
            feature = "vulkan",
            not(target_vendor = "apple"),
            not(target_family = "wasm")
        ))]
        wgpu::Backend::Vulkan => keep!(Vulkan),
        #[cfg(all(feature = "metal", target_vendor = "apple"))]
        wgpu::Backend::Metal => keep!(Metal),
        #[cfg(all(feature = "dx12", windows))]
        wgpu::Backend::Dx12 => keep!(Dx12),
        #[cfg(all(
            feature = "gles",
            not(target_vendor = "apple"),
            not(target_family = "wasm")
        ))]
        wgpu::Backend::Gl => keep!(Gles),
        // None of `backends`, or one without a driver's memory.
        _ => {
            let _ = buffer;
            Some(work())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::device::Device;

    /// wgpu waits for GL's context six seconds, then panics. A compiler may have it for longer.
    #[cfg(all(
        feature = "gles",
        unix,
        not(target_vendor = "apple"),
        not(target_family = "wasm")
    ))]
    #[test]
    #[allow(unsafe_code)]
    fn opening_waits_for_the_context() {
        for info in Device::list().unwrap() {
            let device = Device::select(&info.selector).unwrap();
            let Some(gpu) = device.gpu().filter(|gpu| gpu.serial.is_some()) else {
                continue;
            };
            let hold = gpu.hold();
            // SAFETY: the guard is held, and the context is only locked.
            let gl = unsafe { gpu.adapter.as_hal::<wgpu::hal::api::Gles>() }.unwrap();
            let context = gl.adapter_context().lock();
            thread::scope(|scope| {
                let opening = scope.spawn(|| Device::select(&info.selector).map(drop));
                thread::sleep(Duration::from_millis(6500));
                let is_waiting = !opening.is_finished();
                drop(context);
                drop(hold);
                opening.join().unwrap().unwrap();
                assert!(is_waiting, "{info}");
            });
        }
    }

    /// Without what holds it the memory is unmapped under the writer's feet.
    #[test]
    fn mapped_memory_outlives_a_loss_while_it_is_used() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let device = Device::select(&info.selector).unwrap();
            let gpu = device.gpu().unwrap();
            let bytes = 32 << 20;
            let hold = gpu.hold();
            let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes,
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            });
            drop(hold);
            let backend = gpu.device.adapter_info().backend;
            let mut view = buffer.slice(..).get_mapped_range_mut().unwrap();
            thread::scope(|scope| {
                let written = with_memory(backend, &buffer, || {
                    gpu.destroy();
                    let poll = scope.spawn(|| {
                        let _hold = gpu.hold();
                        gpu.poll_device(wgpu::PollType::Poll)
                    });
                    thread::sleep(Duration::from_millis(200));
                    view.slice(..).fill(1);
                    assert!(!poll.is_finished(), "{info}: the memory is gone");
                });
                assert_eq!(written, Some(()), "{info}");
            });
            drop(view);
            assert_eq!(with_memory(backend, &buffer, || ()), None, "{info}");
        }
    }
}
