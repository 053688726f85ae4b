//! What a device can do, as plain data: plan functions and placement decide from it alone.

use std::sync::Arc;

use crate::dtype::DType;
use crate::launch::WINDOW_ALIGNMENT;
use crate::matmul_table::MatmulChoice;

/// Seconds that a launch may take by its estimate: longer ones are split and submitted apart, so
/// that no display's watchdog fires.
pub(crate) const LONGEST_LAUNCH: f64 = 0.2;

/// The kind of a device, in the order in which [`Device::best`](crate::Device::best) ranks GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    DiscreteGpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// A virtual or unknown GPU.
    OtherGpu,
    /// A software adapter (lavapipe, llvmpipe, SwiftShader, WARP): for tests, never picked unless
    /// named.
    Software,
    /// The native CPU device.
    Cpu,
}

impl DeviceKind {
    /// `discrete GPU`, `integrated GPU`, `other GPU`, `software adapter`, `CPU`.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::DiscreteGpu => "discrete GPU",
            DeviceKind::IntegratedGpu => "integrated GPU",
            DeviceKind::OtherGpu => "other GPU",
            DeviceKind::Software => "software adapter",
            DeviceKind::Cpu => "CPU",
        }
    }

    /// True for hardware GPUs.
    pub const fn is_gpu(self) -> bool {
        matches!(
            self,
            DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu | DeviceKind::OtherGpu
        )
    }
}

/// Matrices that the invocations of a subgroup multiply together, with sums in f32: how many rows and
/// columns each has, 8 or 16, by the dtype of the factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CooperativeMatrices {
    /// Of f16.
    pub f16: Option<u32>,
    /// Of f32.
    pub f32: Option<u32>,
}

impl CooperativeMatrices {
    /// Rows and columns of matrices of `dtype`, where there are any.
    pub fn edge(&self, dtype: DType) -> Option<u32> {
        match dtype {
            DType::F16 => self.f16,
            DType::F32 => self.f32,
            _ => None,
        }
    }
}

/// What a device can do. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The kind of device: kernels for hardware and for software adapters differ.
    pub kind: DeviceKind,
    /// Kernels can compute with f16.
    pub f16: bool,
    /// Kernels can compute with f64.
    pub f64: bool,
    /// Kernels can compute with 64-bit integers.
    pub int64: bool,
    /// Kernels of a program's own run with bounds checks, so that none reaches another tensor: not
    /// on GL, where their CPU twins run.
    pub bounds_checks: bool,
    /// Smallest and largest subgroup (warp, wave) when kernels can use subgroups.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// Kernels can read a storage texture of 16 x 16,384 texels in 8 layers.
    pub texels: bool,
    /// Cooperative matrices (tensor cores): those of the adapter; of an open device those that its
    /// kernels may use, which are none but with
    /// [`DeviceBuilder::experimental_cooperative_matrices`](crate::DeviceBuilder::experimental_cooperative_matrices).
    pub cooperative_matrices: CooperativeMatrices,
    /// The adapter can write timestamps inside its work.
    pub timestamps: bool,
    /// Bytes of immediates (push constants) a dispatch can carry; 0 when it has none.
    pub immediate_bytes: u32,
    /// The largest buffer, so the largest region and the largest tensor.
    pub max_buffer_bytes: u64,
    /// The largest range of a buffer that one kernel operand can be.
    pub max_binding_bytes: u64,
    /// Storage buffers that one kernel can bind.
    pub max_bindings: u32,
    /// Workgroups per grid dimension.
    pub max_workgroups: u32,
    /// Invocations per workgroup, all of which may lie along x.
    pub max_invocations: u32,
    /// Invocations of a workgroup along x, y and z.
    pub max_workgroup_size: [u32; 3],
    /// Workgroup memory.
    pub workgroup_memory_bytes: u32,
    /// Multiprocessors or compute units, where the driver tells: NVIDIA's and AMD's on Vulkan.
    pub cores: Option<u32>,
    /// Kernels measured for matrix products on this adapter, which go before the plan's rules:
    /// [`DeviceBuilder::matmul_table`](crate::DeviceBuilder::matmul_table). The first that matches decides.
    pub matmul_choices: Arc<[MatmulChoice]>,
}

impl Capabilities {
    /// Bytes of an operand, in whole windows, that kernels bind which count elements in 32 bits: bindings may be larger (Metal).
    pub(crate) fn indexed_bytes(&self) -> u64 {
        let bytes = self.max_binding_bytes.min(u64::from(u32::MAX));
        bytes - bytes % WINDOW_ALIGNMENT
    }

    /// The native CPU: everything that a twin can do.
    pub(crate) fn cpu() -> Self {
        Self {
            kind: DeviceKind::Cpu,
            f16: true,
            f64: true,
            int64: false,
            bounds_checks: true,
            subgroup_sizes: None,
            texels: false,
            cooperative_matrices: CooperativeMatrices::default(),
            timestamps: false,
            immediate_bytes: 0,
            max_buffer_bytes: isize::MAX as u64,
            max_binding_bytes: isize::MAX as u64,
            max_bindings: u32::MAX,
            max_workgroups: u32::MAX,
            max_invocations: u32::MAX,
            max_workgroup_size: [u32::MAX; 3],
            workgroup_memory_bytes: 0,
            cores: None,
            matmul_choices: Arc::default(),
        }
    }

    /// Seconds that work of `flops` operations on `bytes` bytes may take: a coarse guess that
    /// bounds launches and batches in time, never a promise.
    pub(crate) fn seconds(&self, flops: f64, bytes: f64) -> f64 {
        let (flops_per_second, bytes_per_second) = match self.kind {
            // Between lavapipe (45 GFLOP/s, 10 GB/s on two cores) and SwiftShader (6, 3).
            DeviceKind::Software => (2e10, 2e9),
            DeviceKind::DiscreteGpu => (5e12, 3e11),
            _ => (5e11, 3e10),
        };
        (flops / flops_per_second).max(bytes / bytes_per_second)
    }

    /// How many times as long as of f32 the operations of a dtype take, about: GPUs that are made for pictures have a unit for f64
    /// beside 16 to 64 for f32, those for computing beside two.
    pub(crate) fn slowness(&self, dtype: DType) -> f64 {
        match (dtype, self.kind) {
            (DType::F64, DeviceKind::Cpu | DeviceKind::Software) => 1.0,
            (DType::F64, _) => 16.0,
            _ => 1.0,
        }
    }

    /// True when kernels on the device can compute with `dtype`.
    pub fn computes(&self, dtype: DType) -> bool {
        match dtype {
            DType::F32 | DType::I32 | DType::U32 | DType::Bool => true,
            DType::F16 => self.f16,
            DType::BF16 => self.kind == DeviceKind::Cpu,
            DType::F64 => self.f64,
        }
    }

    /// True when tensors of `dtype` can live on the device: f64 only where it can compute with it,
    /// the others everywhere.
    pub fn holds(&self, dtype: DType) -> bool {
        dtype != DType::F64 || self.f64
    }
}
