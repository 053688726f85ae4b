//! Which kernel multiplies, with which tile: a pure function of the device's capabilities and the
//! problem. `docs/matmul.md` has the measurements behind it.

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::DType;

/// The kernels, `shaders/matmul/*_tile.wgsl`, with what is theirs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// Tiles of both operands pass through workgroup memory, `tile_k` deep, each invocation sums
    /// `thread x thread`: hardware.
    Workgroup { tile_k: u32, thread: u32 },
    /// Each invocation sums `thread_m x thread_n` in registers, straight from storage: software
    /// adapters.
    Register {
        thread_m: u32,
        thread_n: u32,
        unroll: u32,
    },
    /// As the register tile, one subgroup of `lanes` a workgroup, rows of A handed out by shuffles:
    /// software adapters with subgroups of one known size.
    Subgroup { lanes: u32 },
    /// Matrix times vector.
    Vector { row_threads: u32, k_threads: u32 },
}

/// How a product is computed. Sizes in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatmulPlan {
    pub kernel: Kernel,
    /// Block of the result per workgroup.
    pub tile_m: u32,
    pub tile_n: u32,
}

const fn workgroup(tile_m: u32, tile_n: u32, tile_k: u32, thread: u32) -> MatmulPlan {
    MatmulPlan {
        kernel: Kernel::Workgroup { tile_k, thread },
        tile_m,
        tile_n,
    }
}

const fn register(tile_m: u32, tile_n: u32, thread: [u32; 2], unroll: u32) -> MatmulPlan {
    MatmulPlan {
        kernel: Kernel::Register {
            thread_m: thread[0],
            thread_n: thread[1],
            unroll,
        },
        tile_m,
        tile_n,
    }
}

const fn subgroup(tile_m: u32, tile_n: u32, lanes: u32) -> MatmulPlan {
    MatmulPlan {
        kernel: Kernel::Subgroup { lanes },
        tile_m,
        tile_n,
    }
}

const fn vector(tile_m: u32, row_threads: u32, k_threads: u32) -> MatmulPlan {
    MatmulPlan {
        kernel: Kernel::Vector {
            row_threads,
            k_threads,
        },
        tile_m,
        tile_n: 1,
    }
}

const HARDWARE: MatmulPlan = workgroup(64, 64, 16, 4);
const HARDWARE_LARGE: MatmulPlan = workgroup(128, 128, 8, 8);
const HARDWARE_SMALL: MatmulPlan = workgroup(32, 32, 16, 4);
const HARDWARE_TALL: MatmulPlan = workgroup(256, 16, 16, 4);
const HARDWARE_WIDE: MatmulPlan = workgroup(16, 256, 16, 4);
const HARDWARE_VECTOR_ROWS: MatmulPlan = vector(8, 8, 32);
const HARDWARE_VECTOR_COLUMNS: MatmulPlan = vector(128, 32, 8);

const SOFTWARE_VECTOR: MatmulPlan = vector(64, 8, 1);
const REGISTER_WIDE: MatmulPlan = register(16, 128, [16, 16], 4);
const REGISTER: MatmulPlan = register(16, 64, [16, 8], 4);
const REGISTER_SCALAR: MatmulPlan = register(16, 64, [16, 8], 2);
const REGISTER_SMALL: MatmulPlan = register(8, 64, [8, 8], 4);

const SUBGROUP_8: MatmulPlan = subgroup(48, 32, 8);
const SUBGROUP_8_BATCHES: MatmulPlan = subgroup(64, 32, 8);
const SUBGROUP_8_SMALL: MatmulPlan = subgroup(32, 32, 8);
const SUBGROUP_8_WIDE: MatmulPlan = subgroup(8, 64, 8);
const SUBGROUP_8_TALL: MatmulPlan = subgroup(48, 8, 8);
const SUBGROUP_8_LONG: MatmulPlan = subgroup(16, 32, 8);
const SUBGROUP_4: MatmulPlan = subgroup(16, 32, 4);

impl MatmulPlan {
    /// Every plan that [`plan`] can choose.
    pub(super) const ALL: [MatmulPlan; 19] = [
        HARDWARE,
        HARDWARE_LARGE,
        HARDWARE_SMALL,
        HARDWARE_TALL,
        HARDWARE_WIDE,
        HARDWARE_VECTOR_ROWS,
        HARDWARE_VECTOR_COLUMNS,
        SOFTWARE_VECTOR,
        REGISTER_WIDE,
        REGISTER,
        REGISTER_SCALAR,
        REGISTER_SMALL,
        SUBGROUP_8,
        SUBGROUP_8_BATCHES,
        SUBGROUP_8_SMALL,
        SUBGROUP_8_WIDE,
        SUBGROUP_8_TALL,
        SUBGROUP_8_LONG,
        SUBGROUP_4,
    ];

    /// Steps of k that one launch may take: llvmpipe silently ends loops after 65,535 turns per
    /// invocation, so stay below with what the tails take.
    pub(super) fn max_k(&self) -> usize {
        const TURNS: usize = 60_000;
        TURNS
            * match self.kernel {
                Kernel::Workgroup { tile_k, .. } => tile_k,
                Kernel::Register { unroll, .. } => unroll,
                Kernel::Subgroup { .. } => SUBGROUP_UNROLL,
                Kernel::Vector { k_threads, .. } => k_threads,
            } as usize
    }

    /// Whether it may be asked to add to what is there: k in several launches. Reading the result
    /// costs software adapters compile time, so few of theirs do.
    pub(super) fn may_accumulate(&self) -> bool {
        match self.kernel {
            Kernel::Workgroup { .. } | Kernel::Vector { .. } => true,
            Kernel::Register { .. } => *self == REGISTER_SMALL,
            Kernel::Subgroup { .. } => {
                [SUBGROUP_8_SMALL, SUBGROUP_8_LONG, SUBGROUP_4].contains(self)
            }
        }
    }

    /// True when the kernel can multiply elements of `dtype`.
    pub(super) fn takes(&self, dtype: DType) -> bool {
        // f64 shuffles are slower than loads.
        dtype != DType::BF16
            && !(matches!(self.kernel, Kernel::Subgroup { .. }) && dtype == DType::F64)
    }

    /// Whether an adapter can run the kernel.
    pub(super) fn fits(&self, capabilities: &Capabilities, dtype: DType) -> bool {
        let element = dtype.accumulator().size() as u32;
        let (threads, bytes) = match self.kernel {
            Kernel::Workgroup { tile_k, thread } => {
                let padding = if dtype == DType::F64 { 0 } else { 8 };
                let threads = self.tile_m / thread * (self.tile_n / thread);
                (
                    threads,
                    (self.tile_m + self.tile_n + padding) * tile_k * element,
                )
            }
            Kernel::Vector {
                row_threads,
                k_threads,
            } => (row_threads * k_threads, self.tile_m * k_threads * element),
            Kernel::Register { .. } | Kernel::Subgroup { .. } => (1, 0),
        };
        threads <= capabilities.max_invocations && bytes <= capabilities.workgroup_memory_bytes
    }
}

/// Steps of k per turn of the subgroup tile.
pub(super) const SUBGROUP_UNROLL: u32 = 4;

/// What a plan needs to know of a problem. For a matrix times a vector, `n` is 1: a row times a
/// matrix is turned round before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    pub m: usize,
    pub n: usize,
    pub batches: usize,
    /// k is taken in parts that add up.
    pub accumulates: bool,
    pub dtype: DType,
    /// Neighbours of A in memory lie along k.
    pub a_along_k: bool,
    /// Both operands and the result can go by vectors.
    pub all_vectors: bool,
    /// An operand can be loaded by vectors along k.
    pub vectors_along_k: bool,
}

/// The plan for a problem on a device.
pub(super) fn plan(capabilities: &Capabilities, traits: Traits) -> MatmulPlan {
    if capabilities.kind != DeviceKind::Software {
        return hardware(capabilities, traits);
    }
    if traits.n == 1 {
        return SOFTWARE_VECTOR;
    }
    match capabilities.subgroup_sizes {
        Some((8, 8)) if traits.dtype != DType::F64 => subgroup_8(traits),
        Some((4, 4)) if traits.dtype != DType::F64 => SUBGROUP_4,
        _ => registers(traits),
    }
}

fn hardware(capabilities: &Capabilities, traits: Traits) -> MatmulPlan {
    let Traits { m, n, batches, .. } = traits;
    let tiles = |size: usize| {
        let (down, across) = (m.div_ceil(size), n.div_ceil(size));
        down.saturating_mul(across).saturating_mul(batches)
    };
    let wanted = if n == 1 && traits.a_along_k {
        HARDWARE_VECTOR_ROWS
    } else if n == 1 {
        HARDWARE_VECTOR_COLUMNS
    } else if n <= 16 {
        HARDWARE_TALL
    } else if m <= 16 {
        HARDWARE_WIDE
    } else if m <= 32 || n <= 32 || tiles(64) < 64 {
        HARDWARE_SMALL
    } else if m >= 1024 && n >= 1024 && tiles(128) >= 200 {
        HARDWARE_LARGE
    } else {
        HARDWARE
    };
    if wanted.fits(capabilities, traits.dtype) {
        wanted
    } else {
        HARDWARE_SMALL
    }
}

fn subgroup_8(traits: Traits) -> MatmulPlan {
    let Traits {
        m, n, all_vectors, ..
    } = traits;
    if traits.accumulates {
        return if all_vectors {
            SUBGROUP_8_SMALL
        } else {
            SUBGROUP_8_LONG
        };
    }
    match (m, n) {
        (0..=8, _) => SUBGROUP_8_WIDE,
        (_, 0..=8) => SUBGROUP_8_TALL,
        (0..=32, _) => SUBGROUP_8_SMALL,
        (33..=64, _) if all_vectors => SUBGROUP_8_BATCHES,
        (33..=64, _) => SUBGROUP_8_SMALL,
        _ => SUBGROUP_8,
    }
}

fn registers(traits: Traits) -> MatmulPlan {
    if traits.accumulates || traits.m <= 8 {
        REGISTER_SMALL
    } else if traits.all_vectors && traits.dtype == DType::F32 && traits.n > 64 {
        REGISTER_WIDE
    } else if traits.vectors_along_k {
        REGISTER
    } else {
        REGISTER_SCALAR
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Adapters of several kinds.
    pub(in super::super) fn adapters() -> Vec<Capabilities> {
        let webgpu = Capabilities {
            kind: DeviceKind::DiscreteGpu,
            max_invocations: 256,
            workgroup_memory_bytes: 16 << 10,
            ..Capabilities::cpu()
        };
        let software = |subgroup_sizes| Capabilities {
            kind: DeviceKind::Software,
            subgroup_sizes,
            ..webgpu.clone()
        };
        vec![
            software(None),
            software(Some((8, 8))),
            software(Some((4, 4))),
            software(Some((4, 128))),
            Capabilities {
                max_invocations: 64,
                workgroup_memory_bytes: 8 << 10,
                ..webgpu.clone()
            },
            webgpu,
        ]
    }

    /// Every problem gets a listed plan that the adapter can run, and parts of k one that accumulates.
    #[test]
    fn every_problem_gets_a_plan_that_runs() {
        let sizes = [1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 1024, 100_000];
        for capabilities in adapters() {
            for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::BF16) {
                for (m, n) in sizes
                    .iter()
                    .flat_map(|&m| sizes.iter().map(move |&n| (m, n)))
                {
                    for flags in 0..16 {
                        let traits = Traits {
                            m,
                            n,
                            batches: 1,
                            accumulates: flags & 8 == 8,
                            dtype,
                            a_along_k: flags & 1 == 1,
                            all_vectors: flags & 2 == 2,
                            vectors_along_k: flags & 4 == 4,
                        };
                        let plan = plan(&capabilities, traits);
                        assert!(MatmulPlan::ALL.contains(&plan), "{traits:?}");
                        assert!(plan.fits(&capabilities, dtype), "{plan:?} {traits:?}");
                        assert!(plan.takes(dtype), "{plan:?} {traits:?}");
                        assert!(
                            !traits.accumulates || plan.may_accumulate(),
                            "{plan:?} {traits:?}"
                        );
                    }
                }
            }
        }
    }
}
