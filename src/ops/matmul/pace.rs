//! How long hardware GPUs take for a product by each tile that passes workgroup memory: a model of few figures, by which
//! the plan takes the fastest, and splits k between workgroups where that is faster. `docs/matmul.md`, *Hardware*, has
//! the measurements behind it.

use super::plan::{MatmulPlan, MatmulProblem, because};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::matmul_kernel::{
    COOPERATIVE, COOPERATIVE_LARGE, COOPERATIVE_MIDDLE, HARDWARE, HARDWARE_BROAD, HARDWARE_MIDDLE,
    HARDWARE_SMALL, MatmulKernel,
};

/// Nanoseconds of a step of k, on an H200: what counts is how they compare.
struct Pace {
    kernel: MatmulKernel,
    /// For each tile of a core that is busy, however many there are at a time: A along m, then along k; of each B along n,
    /// then along k.
    shared: [[f64; 2]; 2],
    /// At least, of a workgroup that has a core to itself and waits for memory and at barriers.
    alone: f64,
}

const fn pace(kernel: MatmulKernel, shared: [[f64; 2]; 2], alone: f64) -> Pace {
    Pace {
        kernel,
        shared,
        alone,
    }
}

/// The last one's are those of few workgroups a core, which products have that take it.
const PACES: [Pace; 4] = [
    pace(HARDWARE_MIDDLE, [[45.6, 47.2], [46.7, 48.1]], 57.0),
    pace(HARDWARE_BROAD, [[44.5, 47.7], [46.5, 47.2]], 58.0),
    pace(HARDWARE, [[24.2, 25.7], [25.9, 26.2]], 46.0),
    pace(HARDWARE_SMALL, [[9.3, 9.8], [9.8, 10.3]], 33.0),
];

/// Of elements of 16 bits, which are slower one by one.
const HALF_PACES: [Pace; 4] = [
    pace(HARDWARE_MIDDLE, [[46.7, 48.8], [46.1, 48.3]], 57.0),
    pace(HARDWARE_BROAD, [[47.0, 46.8], [48.8, 48.6]], 58.0),
    pace(HARDWARE, [[24.3, 27.1], [26.8, 30.2]], 46.0),
    pace(HARDWARE_SMALL, [[8.8, 10.0], [10.0, 11.3]], 33.0),
];

/// Of those that multiply by cooperative matrices, of f16.
const COOPERATIVE_PACES: [Pace; 3] = [
    pace(COOPERATIVE_LARGE, [[26.7, 30.3], [27.2, 31.7]], 28.0),
    pace(COOPERATIVE_MIDDLE, [[13.2, 15.0], [14.4, 16.0]], 18.0),
    pace(COOPERATIVE, [[7.5, 8.1], [7.8, 8.2]], 13.0),
];

/// Nanoseconds that adding up the parts of k takes beside its bytes: one launch more, after all others.
const ADDING_UP: f64 = 6000.0;
/// Bytes of memory that pass in a nanosecond.
const BYTES: f64 = 3000.0;
/// The most parts of k: their sums are written and read once more.
pub(super) const MOST_PLANNED_SPLIT: usize = 256;
/// Steps of k of which a part has at least so many.
const PART: usize = 64;

/// Multiprocessors (compute units, cores), where no driver tells: large GPUs have 60 to 150, integrated ones 8 to 16.
pub(super) fn cores(capabilities: &Capabilities) -> usize {
    match (capabilities.cores, capabilities.kind) {
        (Some(cores), _) => cores.max(1) as usize,
        (None, DeviceKind::DiscreteGpu) => 128,
        (None, _) => 16,
    }
}

/// Nanoseconds of a product whose k is in so many parts.
fn nanoseconds(pace: &Pace, split: usize, cores: usize, problem: &MatmulProblem) -> f64 {
    let tiles = problem.tiles(pace.kernel).saturating_mul(split);
    let steps = problem.k.div_ceil(split) as f64;
    let rounds = tiles.div_ceil(cores) as f64;
    let adding = match split {
        1 => 0.0,
        _ => {
            let sums = problem.m as f64 * problem.n as f64 * problem.batches as f64;
            ADDING_UP + 8.0 * sums * split as f64 / BYTES
        }
    };
    let [a, b] = [problem.a, problem.b].map(|operand| usize::from(operand.along_k));
    let shared = pace.shared[a][b];
    (rounds * shared).max(pace.alone) * steps + adding
}

/// The fastest tile for a product, with k in as many parts as pay.
pub(super) fn fastest(capabilities: &Capabilities, problem: &MatmulProblem) -> Option<MatmulPlan> {
    // Tiles of many invocations are for GPUs of large cores.
    let is_for = |kernel: MatmulKernel| match capabilities.kind {
        DeviceKind::DiscreteGpu => true,
        _ => [HARDWARE, HARDWARE_SMALL].contains(&kernel),
    };
    let paces = match problem.dtype.size() {
        2 => &HALF_PACES,
        _ => &PACES,
    };
    let paces = paces.iter().filter(|pace| is_for(pace.kernel));
    fastest_of(paces, capabilities, problem)
}

/// The same of tiles of cooperative matrices.
pub(super) fn fastest_cooperative(
    capabilities: &Capabilities,
    problem: &MatmulProblem,
) -> Option<MatmulPlan> {
    fastest_of(COOPERATIVE_PACES.iter(), capabilities, problem)
}

fn fastest_of<'a>(
    paces: impl Iterator<Item = &'a Pace>,
    capabilities: &Capabilities,
    problem: &MatmulProblem,
) -> Option<MatmulPlan> {
    let dtype = problem.dtype;
    let cores = cores(capabilities);
    let most = match problem.may_split() {
        true => (problem.k / PART).clamp(1, MOST_PLANNED_SPLIT),
        false => 1,
    };
    // 1, 2, 3, 4, 6, 8, 12, ...
    let powers = (0..).flat_map(|power: u32| [2usize << power, 3 << power]);
    let parts = || std::iter::once(1).chain(powers.clone().take_while(|&parts| parts <= most));
    let fitting =
        paces.filter(|pace| pace.kernel.takes(dtype) && pace.kernel.fits(capabilities, dtype));
    let ways = fitting.flat_map(|pace| {
        let way = move |split| {
            let nanoseconds = nanoseconds(pace, split, cores, problem);
            (nanoseconds, pace.kernel, split)
        };
        parts().map(way)
    });
    let (_, kernel, split) = ways.min_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(MatmulPlan {
        split: split as u32,
        ..because(kernel, "the fastest tile for so many cores")
    })
}
