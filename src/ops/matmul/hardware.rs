//! Which kernel hardware GPUs get, with which tile, and whether k is split between workgroups:
//! `docs/matmul.md`, *Hardware*, has the arithmetic behind it.

use super::pace::{self, MOST_PLANNED_SPLIT, cores};
use super::plan::{MatmulPlan, MatmulProblem, because, flat};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::matmul_kernel::{
    COOPERATIVE_8, FEW_COLUMNS_ACROSS, FEW_COLUMNS_ALONG, FEW_ROWS_ACROSS, FEW_ROWS_ALONG,
    FLAT_THREADS, HARDWARE_SMALL, HARDWARE_TALL, HARDWARE_VECTOR_COLUMNS, HARDWARE_VECTOR_ROWS,
    HARDWARE_WIDE, KernelKind, MatmulKernel,
};

/// Steps of k from which a kernel for few rows or columns has turns enough.
const FEW_K: usize = 256;

/// How many workgroups a kernel wants for each core, and the steps of k that are worth a part.
fn parts(kernel: MatmulKernel) -> [usize; 2] {
    match kernel.kind {
        // A turn is four steps of each of 32 invocations.
        KernelKind::Few { k_threads: 32, .. } => [1, 512],
        KernelKind::Few { .. } => [2, 256],
        _ if kernel == HARDWARE_VECTOR_COLUMNS => [4, 512],
        KernelKind::Vector { .. } => [2, 1024],
        _ => [2, 256],
    }
}

/// Up to there the small tile is fuller than those for few rows or columns.
const SHORT: usize = 64;
/// Steps of k up to which an invocation has a small product to itself: further ones leave too few
/// of a row's neighbours in cache. Its tile: eight rows would leave lanes idle for want of tiles.
const FLAT_K: usize = 256;
const FLAT_EDGE: u32 = 4;

pub(super) fn plan(capabilities: &Capabilities, problem: &MatmulProblem) -> MatmulPlan {
    let Some(plan) = shaped(capabilities, problem) else {
        let fastest =
            cooperative(capabilities, problem).or_else(|| pace::fastest(capabilities, problem));
        return fastest.unwrap_or_else(|| because(HARDWARE_SMALL, "small limits of the adapter"));
    };
    let [wanted, part] = parts(plan.kernel);
    let lacking = wanted * cores(capabilities) / problem.tiles(plan.kernel).max(1);
    let split = lacking.min(problem.k / part).min(MOST_PLANNED_SPLIT);
    MatmulPlan {
        split: match problem.may_split() {
            true => split.max(1) as u32,
            false => 1,
        },
        ..plan
    }
}

/// By cooperative matrices, where the device was opened with them: also on software adapters, where they
/// are slower than other kernels, since nobody asks for them there but to try them.
pub(super) fn cooperative(
    capabilities: &Capabilities,
    problem: &MatmulProblem,
) -> Option<MatmulPlan> {
    if problem.m <= 16 || problem.n <= 16 {
        return None;
    }
    let fits =
        COOPERATIVE_8.takes(problem.dtype) && COOPERATIVE_8.fits(capabilities, problem.dtype);
    let least = || fits.then_some(because(COOPERATIVE_8, "cooperative matrices"));
    pace::fastest_cooperative(capabilities, problem).or_else(least)
}

/// The kernel that reads the long matrix once for up to four rows or columns of the other; along k twice for up to
/// eight, from the cache then.
fn few(problem: &MatmulProblem) -> Option<MatmulKernel> {
    let &MatmulProblem { m, n, a, b, .. } = problem;
    let (few, long, by_rows) = match () {
        () if n <= 16 && m > SHORT => (n, a, false),
        () if m <= 16 && n > SHORT => (m, b, true),
        () => return None,
    };
    let most = match long.along_k && problem.dtype != DType::F64 {
        true => 8,
        false => 4,
    };
    if problem.k < FEW_K || few > most {
        return None;
    }
    Some(match (by_rows, long.along_k) {
        (false, false) => FEW_COLUMNS_ACROSS,
        (false, true) => FEW_COLUMNS_ALONG,
        (true, false) => FEW_ROWS_ACROSS,
        (true, true) => FEW_ROWS_ALONG,
    })
}

/// Kernels for products of some shapes.
fn shaped(capabilities: &Capabilities, problem: &MatmulProblem) -> Option<MatmulPlan> {
    let &MatmulProblem { m, n, k, dtype, .. } = problem;
    let fits = |kernel: MatmulKernel| kernel.fits(capabilities, dtype);
    let lanes = cores(capabilities) * FLAT_THREADS as usize;
    if k <= FLAT_K
        && let Some(plan) = flat(problem, FLAT_EDGE, lanes)
    {
        return Some(plan);
    }
    if n == 1 {
        let (kernel, why) = match problem.a.along_k {
            true => (HARDWARE_VECTOR_ROWS, "a matrix of rows times a vector"),
            false => (
                HARDWARE_VECTOR_COLUMNS,
                "a matrix of columns times a vector",
            ),
        };
        if fits(kernel) {
            return Some(because(kernel, why));
        }
    } else if let Some(kernel) = few(problem).filter(|&kernel| fits(kernel)) {
        return Some(because(
            kernel,
            "few rows or columns, the other matrix read once",
        ));
    } else if n <= 16 && m > SHORT && fits(HARDWARE_TALL) {
        return Some(because(HARDWARE_TALL, "few columns"));
    } else if m <= 16 && n > SHORT && fits(HARDWARE_WIDE) {
        return Some(because(HARDWARE_WIDE, "few rows"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::plan::{MatmulOperand, plan_matmul};
    use super::*;
    use crate::capabilities::{CooperativeMatrices, DeviceKind};

    fn large() -> Capabilities {
        Capabilities {
            kind: DeviceKind::DiscreteGpu,
            max_invocations: 1024,
            workgroup_memory_bytes: 48 << 10,
            ..Capabilities::cpu()
        }
    }

    fn printed(capabilities: &Capabilities, sizes: [usize; 3], dtype: DType) -> String {
        printed_along(capabilities, sizes, dtype, [true, sizes[2] == 1])
    }

    /// The plan for operands along k or not.
    fn printed_along(
        capabilities: &Capabilities,
        [m, k, n]: [usize; 3],
        dtype: DType,
        along_k: [bool; 2],
    ) -> String {
        let operand = |along_k| MatmulOperand {
            along_k,
            width: 4,
            texels: false,
        };
        let problem = MatmulProblem {
            m,
            k,
            n,
            batches: 1,
            dtype,
            a: operand(along_k[0]),
            b: operand(along_k[1]),
            accumulates: false,
            may_pack: true,
        };
        plan_matmul(capabilities, &problem).to_string()
    }

    /// With the cores of an H200; what was measured there is in `docs/matmul.md`.
    #[test]
    fn tiles_are_as_large_as_keep_every_core_busy() {
        let known = Capabilities {
            cores: Some(132),
            ..large()
        };
        let starts = |capabilities: &Capabilities, sizes, name: &str| {
            let plan = printed(capabilities, sizes, DType::F32);
            assert!(plan.starts_with(name), "{sizes:?}: {plan}");
        };
        for capabilities in [&known, &large()] {
            let starts = |sizes, name: &str| starts(capabilities, sizes, name);
            let broad = "workgroup_tile 64x128x16 thread 8x8: ";
            starts([4096; 3], broad);
            starts([2048; 3], broad);
            let both = printed_along(capabilities, [4096; 3], DType::F32, [true; 2]);
            assert!(both.starts_with(broad), "{both}");
            let halves = printed(capabilities, [4096; 3], DType::BF16);
            let middle = "workgroup_tile 128x64x16 thread 8x8: ";
            assert!(halves.starts_with(middle), "{halves}");
            starts([100, 100, 100], "workgroup_tile 32x32x16 thread 4x4: ");
            starts([16384, 16384, 1], "vector_tile 8 threads 8x32: ");
            let vector = "vector_tile 8 threads 8x32, k split in 3";
            starts([64, 1 << 20, 1], vector);
            let f64 = printed(capabilities, [4096; 3], DType::F64);
            assert!(f64.starts_with("workgroup_tile 64x64x16"), "{f64}");
        }
        let parts = "workgroup_tile 64x128x16 thread 8x8, k split in 3: ";
        starts(&known, [1536; 3], parts);
        let few = "workgroup_tile 64x64x16 thread 8x4, k split in 4: ";
        starts(&known, [512; 3], few);
        let long = "workgroup_tile 64x64x16 thread 8x4, k split in 256: ";
        starts(&known, [64, 1 << 20, 64], long);
        let few = "few_tile 64x4 threads 8x32: ";
        starts(&known, [4096, 4096, 8], few);
    }

    #[test]
    fn tensor_cores_multiply_where_they_may() {
        let opened = Capabilities {
            subgroup_sizes: Some((32, 32)),
            cooperative_matrices: CooperativeMatrices {
                f16: Some(16),
                f32: None,
            },
            ..large()
        };
        let starts = |capabilities: &Capabilities, sizes, dtype, name: &str| {
            let plan = printed(capabilities, sizes, dtype);
            assert!(plan.starts_with(name), "{sizes:?}: {plan}");
        };
        let small = "cooperative_tile 64x64x32 matrices 16x16 subgroups 2x2 lanes 32: ";
        let middling = "cooperative_tile 128x128x32 matrices 16x16 subgroups 2x2 lanes 32: ";
        let largest = "cooperative_tile 128x256x32 matrices 16x16 subgroups 2x4 lanes 32: ";
        starts(&opened, [4096; 3], DType::F16, largest);
        starts(&opened, [2048; 3], DType::F16, largest);
        starts(&opened, [512; 3], DType::F16, small);
        starts(&opened, [17, 40, 20], DType::F16, small);
        starts(
            &opened,
            [16, 4096, 4096],
            DType::F16,
            "workgroup_tile 16x256",
        );
        starts(&opened, [4, 4096, 4096], DType::F16, "few_tile 4x128");
        starts(&opened, [4096, 4096, 1], DType::F16, "vector_tile");
        for dtype in [DType::F32, DType::BF16, DType::I32] {
            starts(&opened, [4096; 3], dtype, "workgroup_tile");
        }
        // Not asked for, of another size, in subgroups that nobody knows, with little memory.
        for other in [
            large(),
            Capabilities {
                cooperative_matrices: CooperativeMatrices {
                    f16: Some(8),
                    f32: None,
                },
                ..opened.clone()
            },
            Capabilities {
                subgroup_sizes: Some((32, 64)),
                ..opened.clone()
            },
            Capabilities {
                workgroup_memory_bytes: 8 << 10,
                ..opened.clone()
            },
        ] {
            starts(&other, [4096; 3], DType::F16, "workgroup_tile");
        }
        let little = Capabilities {
            workgroup_memory_bytes: 32 << 10,
            ..opened.clone()
        };
        let without = Capabilities {
            f16: false,
            ..opened.clone()
        };
        starts(&without, [4096; 3], DType::F16, "workgroup_tile");
        starts(&little, [4096; 3], DType::F16, middling);
        let singles = Capabilities {
            cooperative_matrices: CooperativeMatrices {
                f16: None,
                f32: Some(16),
            },
            workgroup_memory_bytes: 96 << 10,
            ..opened
        };
        starts(&singles, [4096; 3], DType::F32, small);
    }

    #[test]
    fn other_gpus_get_smaller_workgroups() {
        let integrated = Capabilities {
            kind: DeviceKind::IntegratedGpu,
            workgroup_memory_bytes: 32 << 10,
            ..large()
        };
        let plan = printed(&integrated, [1024; 3], DType::F16);
        assert!(
            plan.starts_with("workgroup_tile 64x64x16 thread 8x4: "),
            "{plan}"
        );
        let downlevel = Capabilities {
            workgroup_memory_bytes: 16 << 10,
            max_invocations: 256,
            ..large()
        };
        let plan = printed(&downlevel, [4096; 3], DType::F32);
        assert!(
            plan.starts_with("workgroup_tile 64x128x16 thread 8x8: "),
            "{plan}"
        );
        let least = Capabilities {
            max_invocations: 128,
            workgroup_memory_bytes: 8 << 10,
            ..large()
        };
        for sizes in [[4096; 3], [4096, 4096, 1], [4, 4096, 4096], [4096, 4096, 4]] {
            let plan = printed(&least, sizes, DType::F32);
            assert!(
                plan.starts_with("workgroup_tile 32x32x16 thread 4x4"),
                "{plan}"
            );
        }
    }
}
