//! Which kernel multiplies, with which tile: a pure function of the device's capabilities and the
//! problem. `docs/matmul.md` has the measurements behind it.

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::DType;

/// The kernels: `workgroup_tile`, `register_tile`, `subgroup_tile` in `shaders/matmul/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// Tiles of both operands pass through workgroup memory: hardware.
    Workgroup,
    /// Sums in registers, straight from storage: software adapters.
    Register,
    /// As the register tile, one subgroup a workgroup, rows of A handed out by shuffles: software
    /// adapters with subgroups of one known size.
    Subgroup,
}

/// How a product is computed. Sizes in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatmulPlan {
    pub kernel: Kernel,
    /// Block of the result per workgroup.
    pub tile_m: u32,
    pub tile_n: u32,
    /// Depth of one step through workgroup memory; unused by the others.
    pub tile_k: u32,
    /// Block of the result per invocation; with subgroups its width is tile_n / lanes.
    pub thread_m: u32,
    pub thread_n: u32,
    /// Steps of k per turn of the loop.
    pub unroll: u32,
    /// Invocations of a subgroup; unused by the others.
    pub lanes: u32,
}

impl MatmulPlan {
    const fn workgroup(tile_m: u32, tile_n: u32, tile_k: u32, thread: u32) -> Self {
        Self {
            kernel: Kernel::Workgroup,
            tile_m,
            tile_n,
            tile_k,
            thread_m: thread,
            thread_n: thread,
            unroll: 1,
            lanes: 0,
        }
    }

    const fn register(tile: [u32; 2], thread: [u32; 2], unroll: u32) -> Self {
        Self {
            kernel: Kernel::Register,
            tile_m: tile[0],
            tile_n: tile[1],
            tile_k: 0,
            thread_m: thread[0],
            thread_n: thread[1],
            unroll,
            lanes: 0,
        }
    }

    const fn subgroup(tile_m: u32, tile_n: u32, lanes: u32) -> Self {
        Self {
            kernel: Kernel::Subgroup,
            tile_m,
            tile_n,
            tile_k: 0,
            thread_m: 0,
            thread_n: 0,
            unroll: 4,
            lanes,
        }
    }

    /// Every tile that [`plan`] can choose.
    pub(super) const ALL: [MatmulPlan; 9] = [
        Self::workgroup(64, 64, 16, 4),
        Self::workgroup(32, 32, 16, 4),
        Self::register([16, 64], [8, 8], 4),
        Self::register([8, 32], [4, 4], 4),
        Self::register([64, 1], [1, 1], 4),
        Self::register([1, 64], [1, 1], 4),
        Self::subgroup(32, 32, 8),
        Self::subgroup(64, 32, 8),
        Self::subgroup(32, 64, 8),
    ];

    /// Steps of k that one dispatch may take: llvmpipe silently ends loops after 65,535 turns per
    /// invocation, so stay below with what every turn takes and the tail.
    pub(super) fn max_k(&self) -> usize {
        const TURNS: usize = 60_000;
        TURNS
            * match self.kernel {
                Kernel::Workgroup => self.tile_k,
                Kernel::Register | Kernel::Subgroup => self.unroll,
            } as usize
    }
}

/// What a plan needs to know of a problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub m: usize,
    pub n: usize,
    pub dtype: DType,
}

/// The plan for a problem on a device.
pub(super) fn plan(capabilities: &Capabilities, shape: Shape) -> MatmulPlan {
    let Shape { m, n, dtype } = shape;
    let software = capabilities.kind == DeviceKind::Software;
    if !software {
        let fits = |plan: &MatmulPlan| {
            let threads = plan.tile_m / plan.thread_m * (plan.tile_n / plan.thread_n);
            let bytes =
                (plan.tile_m + plan.tile_n + 8) * plan.tile_k * dtype.accumulator().size() as u32;
            threads <= capabilities.max_invocations && bytes <= capabilities.workgroup_memory_bytes
        };
        let large = MatmulPlan::workgroup(64, 64, 16, 4);
        if m.min(n) > 32 && fits(&large) {
            return large;
        }
        return MatmulPlan::workgroup(32, 32, 16, 4);
    }
    match (m, n) {
        (_, 1) => MatmulPlan::register([64, 1], [1, 1], 4),
        (1, _) => MatmulPlan::register([1, 64], [1, 1], 4),
        _ if m.min(n) < 16 => MatmulPlan::register([8, 32], [4, 4], 4),
        _ => MatmulPlan::register([16, 64], [8, 8], 4),
    }
}
