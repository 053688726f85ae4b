//! What wgpu's portable API does not tell: total and free memory of a Vulkan adapter.
//!
//! The only `unsafe` of the GPU floor beside wgpu's own unsafe constructors.

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
    // The core form of this query exists from Vulkan 1.1 on.
    if instance.instance_api_version() < vk::API_VERSION_1_1
        || capabilities.properties().api_version < vk::API_VERSION_1_1
    {
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
    let total = heaps
        .clone()
        .filter(|heap| local(heap))
        .map(|heap| heap.size)
        .sum();
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

/// Without the Vulkan backend nothing is known.
#[cfg(not(all(
    feature = "vulkan",
    not(target_vendor = "apple"),
    not(target_family = "wasm")
)))]
pub(crate) fn adapter_memory(_adapter: &wgpu::Adapter) -> AdapterMemory {
    AdapterMemory::default()
}
