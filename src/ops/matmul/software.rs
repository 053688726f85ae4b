//! Which kernel software adapters get, with which tile: `docs/matmul.md` has the measurements behind it.

use super::plan::{MatmulPlan, MatmulProblem, SMALL, because, flat};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::matmul_kernel::{
    FLAT_2, FLAT_4, FLAT_8, MatmulKernel, QUAD, QUAD_SMALL, QUAD_TALL, QUAD_WIDE, REGISTER,
    REGISTER_SCALAR, REGISTER_SMALL, REGISTER_WIDE, SOFTWARE_VECTOR, SUBGROUP_4, SUBGROUP_4_SMALL,
    SUBGROUP_8, SUBGROUP_8_BATCHES, SUBGROUP_8_LONG, SUBGROUP_8_SMALL, SUBGROUP_8_TALL,
    SUBGROUP_8_WIDE, TEXEL_16, TEXEL_FEW, WIDE, WIDE_4, WIDE_8, WIDE_16, WIDE_32,
    WIDE_VECTOR_COLUMNS, WIDE_VECTOR_FEW, WIDE_VECTOR_ROWS,
};

/// Sizes from which copying operands first is faster: the half of the harmonic mean of m and n, for the
/// wide tile and for texels. Measured: `docs/matmul.md`.
const PACKED: f64 = 48.0;
const PACKED_TEXELS: f64 = 48.0;
/// The same where the wide tile reads them as they lie.
const PACKED_WIDE: f64 = 150.0;
/// Multiplications from which copies are worth the passes that they take, and the part of the tiles of texels that has
/// to be filled.
const PASSES: f64 = 4e6;
const FILLED_TEXELS: f64 = 0.5;
/// The part of its tiles that the wide tile has to fill to be faster, as operands lie, and copied.
const FILLED: [f64; 2] = [0.6, 0.8];

/// Multiplications up to which a program multiplies thousands of times before SwiftShader's large tile has made up for the
/// time that it takes to compile: of 32 bits 2 to 3 seconds of a processor, for the small one 0.4.
const SMALL_QUAD: f64 = 128.0 * 128.0 * 128.0;
/// The same of 16 bits, whose large tile takes less.
const SMALL_SUBGROUP: f64 = 64.0 * 64.0 * 64.0;
/// The same where there are no subgroups: up to there the small tile is as fast.
const SMALL_REGISTERS: f64 = 48.0 * 48.0 * 48.0;

/// Tiles from which small products share workgroups: fewer are not worth another kernel's compile time.
const FLAT_TILES: usize = 64;

/// Terms from which results of few entries are summed in parts, terms of a part at least, and parts at most.
const LONG: usize = 2048;
const PART: usize = 64;
const MOST_PARTS: usize = 256;
/// Columns and terms of long products for flat tiles, and rows of them.
const FEW_COLUMNS: usize = 8;
const FEW_TERMS: usize = 16;
const MANY_ROWS: usize = 1024;

/// The plan for a software adapter.
pub(super) fn plan(capabilities: &Capabilities, problem: &MatmulProblem) -> MatmulPlan {
    if let Some(plan) = flat(problem, 8, FLAT_TILES) {
        return plan;
    }
    if problem.n == 1 {
        return vector(capabilities, problem);
    }
    if let Some(plan) = narrow(problem) {
        return plan;
    }
    if WIDE_8.takes(problem.dtype)
        && WIDE_8.fits(capabilities, problem.dtype)
        && let Some(plan) = few_rows(problem)
    {
        return plan;
    }
    if TEXEL_16.takes(problem.dtype)
        && TEXEL_16.fits(capabilities, problem.dtype)
        && let Some(plan) = texels(problem)
    {
        return plan;
    }
    if WIDE_32.takes(problem.dtype)
        && WIDE_32.fits(capabilities, problem.dtype)
        && (problem.is_wide() || problem.sums() >= PASSES && problem.is_worth_packing(PACKED))
        && let Some(plan) = wide_8(problem)
    {
        return plan;
    }
    match capabilities.subgroup_sizes {
        Some((8, 8)) if problem.dtype != DType::F64 => subgroup_8(problem),
        Some((4, 4)) if problem.dtype != DType::F64 => subgroup_4(problem),
        _ => registers(problem),
    }
}

/// Results of few entries over a long k, in parts, and long ones of few columns and terms: larger tiles would be nearly empty.
fn narrow(problem: &MatmulProblem) -> Option<MatmulPlan> {
    let (m, n, k) = (problem.m, problem.n, problem.k);
    if problem.accumulates {
        return None;
    }
    let widest = m.max(n);
    if widest <= SMALL && m > 1 && k >= LONG && problem.may_split() {
        let kernel = match widest {
            0..=3 => FLAT_2,
            4..=8 => FLAT_4,
            _ => FLAT_8,
        };
        let parts = (k / PART).min(MOST_PARTS / problem.batches.max(1)).max(1);
        return (k.div_ceil(parts) <= kernel.max_k()).then_some(MatmulPlan {
            split: parts as u32,
            ..because(kernel, "few entries, parts of a long k")
        });
    }
    let kernel = if n <= 4 { FLAT_4 } else { FLAT_8 };
    let is_long = n <= FEW_COLUMNS && k <= FEW_TERMS && m >= MANY_ROWS;
    is_long.then_some(because(kernel, "few columns, few terms"))
}

fn vector(capabilities: &Capabilities, problem: &MatmulProblem) -> MatmulPlan {
    let wide = WIDE_VECTOR_ROWS.takes(problem.dtype)
        && WIDE_VECTOR_ROWS.fits(capabilities, problem.dtype)
        && problem.is_wide_vector(problem.a.along_k);
    match (wide, problem.a.along_k, problem.m) {
        (true, true, _) => because(WIDE_VECTOR_ROWS, "a matrix of rows, by vectors of eight"),
        (true, false, 2048..) => because(
            WIDE_VECTOR_COLUMNS,
            "a matrix of columns, by vectors of eight",
        ),
        (true, false, _) => because(WIDE_VECTOR_FEW, "short columns, by vectors of eight"),
        (false, ..) => because(SOFTWARE_VECTOR, "a matrix times a vector"),
    }
}

/// A matrix of rows times few others: in one pass, half a kibibyte or one of each of its rows at a time.
fn few_rows(problem: &MatmulProblem) -> Option<MatmulPlan> {
    let kernel = if problem.m <= 4 { WIDE_4 } else { WIDE_8 };
    let is_few = problem.m <= 8
        && problem.is_wide()
        && !problem.b.along_k
        && (problem.a.along_k || kernel.tile_m >= WIDE)
        && problem.n >= kernel.tile_n as usize;
    is_few.then_some(because(kernel, "few rows: a matrix in one pass"))
}

/// Where the operands have room in texels, and little of the tile lies past the edge.
fn texels(problem: &MatmulProblem) -> Option<MatmulPlan> {
    let pack = problem.lacks_texels();
    let packs = pack != [false; 2];
    let kernel = if problem.n <= 32 { TEXEL_FEW } else { TEXEL_16 };
    let least = if problem.is_wide() {
        PACKED_WIDE
    } else {
        PACKED_TEXELS
    };
    let worth = !problem.accumulates
        && problem.k <= kernel.max_k()
        && problem.sums() >= PASSES
        && (!packs || problem.is_worth_packing(least))
        && problem.fills(kernel) >= FILLED_TEXELS;
    worth.then_some(MatmulPlan {
        pack,
        ..because(kernel, "loads of texels have no branches")
    })
}

/// Where little of the tile lies past the edge.
fn wide_8(problem: &MatmulProblem) -> Option<MatmulPlan> {
    let plan = if problem.accumulates || problem.m <= 16 {
        because(WIDE_16, "eight elements at a time, few rows or parts of k")
    } else {
        because(WIDE_32, "eight elements at a time")
    };
    let pack = problem.lacks_vectors();
    let least = FILLED[usize::from(pack != [false; 2])];
    (problem.fills(plan.kernel) >= least).then_some(MatmulPlan { pack, ..plan })
}

fn subgroup_8(problem: &MatmulProblem) -> MatmulPlan {
    let vectors = problem.all_vectors();
    if problem.accumulates {
        let kernel = if vectors {
            SUBGROUP_8_SMALL
        } else {
            SUBGROUP_8_LONG
        };
        return because(kernel, "parts of k");
    }
    // A row of the smaller tile takes a tenth more.
    let rows = |kernel: MatmulKernel| {
        let tile = f64::from(kernel.tile_m);
        (problem.m as f64 / tile).ceil() * tile
    };
    let is_short = rows(SUBGROUP_8_SMALL) * 1.1 < rows(SUBGROUP_8);
    match (problem.m, problem.n) {
        (0..=8, _) => because(SUBGROUP_8_WIDE, "few rows"),
        // It stores no vectors, which 16 bits want.
        (_, 0..=8) if problem.dtype.size() == 4 || !problem.n.is_multiple_of(4) => {
            because(SUBGROUP_8_TALL, "few columns")
        }
        (49..=64, _) if vectors => because(SUBGROUP_8_BATCHES, "up to 64 rows, by vectors"),
        _ if is_short => because(SUBGROUP_8_SMALL, "rows that fill tiles of 32"),
        _ => because(SUBGROUP_8, "subgroups of eight: shuffles are cheap"),
    }
}

fn subgroup_4(problem: &MatmulProblem) -> MatmulPlan {
    if !QUAD.takes(problem.dtype) || problem.accumulates || problem.k > QUAD.max_k() {
        return match !problem.accumulates && problem.sums() <= SMALL_SUBGROUP {
            true => because(SUBGROUP_4_SMALL, "small: compiled sooner"),
            false => because(SUBGROUP_4, "subgroups of four: shuffles are cheap"),
        };
    }
    match (problem.m, problem.n) {
        (0..=4, _) => because(QUAD_WIDE, "few rows"),
        (_, 0..=8) => because(QUAD_TALL, "few columns"),
        (0..=8, _) | (_, 0..=16) => because(QUAD_SMALL, "few rows or columns"),
        _ if problem.sums() <= SMALL_QUAD => because(QUAD_SMALL, "small: compiled sooner"),
        _ => because(QUAD, "subgroups of four: swaps are cheap"),
    }
}

fn registers(problem: &MatmulProblem) -> MatmulPlan {
    if problem.accumulates || problem.m <= 8 {
        because(REGISTER_SMALL, "few rows, or parts of k")
    } else if problem.sums() <= SMALL_REGISTERS {
        because(REGISTER_SMALL, "small: compiled sooner")
    } else if problem.all_vectors() && problem.dtype == DType::F32 && problem.n > 64 {
        because(REGISTER_WIDE, "no subgroups; all by vectors")
    } else if problem.vectors_along_k() {
        because(REGISTER, "no subgroups; vectors along k")
    } else {
        because(REGISTER_SCALAR, "no subgroups")
    }
}
