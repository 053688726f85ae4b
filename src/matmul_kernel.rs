//! The kernels for matrix products and their tiles: plain data, by name, with what each can do.
//! `ops/matmul/plan.rs` chooses among them.

use std::fmt;
use std::str::FromStr;

use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::TEXEL_ROWS;

/// The kernels, `shaders/matmul/*.wgsl`, with what is theirs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KernelKind {
    /// Tiles of both operands pass through workgroup memory, `tile_k` deep, each invocation sums `thread_m x thread_n`:
    /// hardware.
    Workgroup {
        tile_k: u32,
        thread_m: u32,
        thread_n: u32,
    },
    /// Each invocation has a tile of its own, of any matrix of the batch: small matrices, which would fill
    /// little of a workgroup's tile.
    Flat,
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
    /// As the subgroup tile for 4 lanes and 32 bits, rows of A handed round by swaps: SwiftShader.
    Quad,
    /// As the subgroup tile for 8 lanes, everything loaded eight elements at a time: software
    /// adapters with 64-bit integers.
    Wide,
    /// As the subgroup tile for 8 lanes, both operands loaded as texels.
    Texel,
    /// As the workgroup tile, multiplied by `subgroups[0] x subgroups[1]` subgroups of `lanes` in
    /// cooperative matrices of `edge x edge`: hardware that has them.
    Cooperative {
        tile_k: u32,
        edge: u32,
        lanes: u32,
        subgroups: [u32; 2],
        /// Steps of k whose loads are under way while one is summed.
        ahead: u32,
        /// Whether f16 are loaded eight at a time.
        by_eights: bool,
    },
    /// Matrix times vector.
    Vector { row_threads: u32, k_threads: u32 },
    /// A matrix times few columns, or few rows times a matrix (the tile's lesser edge), which is read once: hardware.
    Few { row_threads: u32, k_threads: u32 },
    /// Matrix times vector, the matrix loaded eight elements at a time, along k or not: software
    /// adapters with 64-bit integers.
    WideVector { along_k: bool },
}

/// A kernel for matrix products with its tile, by name: `subgroup_tile 48x32 lanes 8`. Displays and
/// parses as that name; [`MatmulKernel::all`] lists what there is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulKernel {
    pub(crate) kind: KernelKind,
    /// Block of the result per workgroup, in elements.
    pub(crate) tile_m: u32,
    pub(crate) tile_n: u32,
}

const fn workgroup(tile: [u32; 3], thread: [u32; 2]) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Workgroup {
            tile_k: tile[2],
            thread_m: thread[0],
            thread_n: thread[1],
        },
        tile_m: tile[0],
        tile_n: tile[1],
    }
}

const fn register(tile_m: u32, tile_n: u32, thread: [u32; 2], unroll: u32) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Register {
            thread_m: thread[0],
            thread_n: thread[1],
            unroll,
        },
        tile_m,
        tile_n,
    }
}

const fn flat(tile_m: u32, tile_n: u32) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Flat,
        tile_m,
        tile_n,
    }
}

const fn subgroup(tile_m: u32, tile_n: u32, lanes: u32) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Subgroup { lanes },
        tile_m,
        tile_n,
    }
}

const fn quad(tile_m: u32, tile_n: u32) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Quad,
        tile_m,
        tile_n,
    }
}

const fn cooperative(
    tile: [u32; 3],
    (edge, lanes): (u32, u32),
    subgroups: [u32; 2],
    (ahead, by_eights): (u32, bool),
) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Cooperative {
            tile_k: tile[2],
            edge,
            lanes,
            subgroups,
            ahead,
            by_eights,
        },
        tile_m: tile[0],
        tile_n: tile[1],
    }
}

const fn vector(tile_m: u32, row_threads: u32, k_threads: u32) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Vector {
            row_threads,
            k_threads,
        },
        tile_m,
        tile_n: 1,
    }
}

/// By `threads` along the long matrix and along k; the tile's other edge is of the few.
const fn few(tile_m: u32, tile_n: u32, threads: [u32; 2]) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Few {
            row_threads: threads[0],
            k_threads: threads[1],
        },
        tile_m,
        tile_n,
    }
}

const fn wide(tile_m: u32, tile_n: u32) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Wide,
        tile_m,
        tile_n,
    }
}

const fn texel(tile_m: u32, tile_n: u32) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::Texel,
        tile_m,
        tile_n,
    }
}

const fn wide_vector(tile_m: u32, along_k: bool) -> MatmulKernel {
    MatmulKernel {
        kind: KernelKind::WideVector { along_k },
        tile_m,
        tile_n: 1,
    }
}

pub(crate) const HARDWARE: MatmulKernel = workgroup([64, 64, 16], [8, 4]);
pub(crate) const HARDWARE_MIDDLE: MatmulKernel = workgroup([128, 64, 16], [8, 8]);
pub(crate) const HARDWARE_BROAD: MatmulKernel = workgroup([64, 128, 16], [8, 8]);
pub(crate) const HARDWARE_SMALL: MatmulKernel = workgroup([32, 32, 16], [4, 4]);
pub(crate) const HARDWARE_TALL: MatmulKernel = workgroup([128, 16, 32], [4, 4]);
pub(crate) const HARDWARE_WIDE: MatmulKernel = workgroup([16, 256, 16], [4, 4]);
pub(crate) const COOPERATIVE_LARGE: MatmulKernel =
    cooperative([128, 256, 32], (16, 32), [2, 4], (2, true));
pub(crate) const COOPERATIVE_MIDDLE: MatmulKernel =
    cooperative([128, 128, 32], (16, 32), [2, 2], (1, true));
pub(crate) const COOPERATIVE: MatmulKernel =
    cooperative([64, 64, 32], (16, 32), [2, 2], (1, false));
/// Subgroups as lavapipe has them; and all that the others have, for tests.
pub(crate) const COOPERATIVE_8: MatmulKernel = cooperative([32, 32, 16], (8, 8), [2, 2], (2, true));
pub(crate) const HARDWARE_VECTOR_ROWS: MatmulKernel = vector(8, 8, 32);
pub(crate) const HARDWARE_VECTOR_COLUMNS: MatmulKernel = vector(128, 32, 8);

/// A long matrix whose neighbours lie along k: a subgroup along each row, so many rows as there are registers for.
pub(crate) const FEW_COLUMNS_ALONG: MatmulKernel = few(64, 4, [8, 32]);
pub(crate) const FEW_ROWS_ALONG: MatmulKernel = few(4, 64, [8, 32]);
/// One whose neighbours lie across k: a subgroup along the rows.
pub(crate) const FEW_COLUMNS_ACROSS: MatmulKernel = few(128, 4, [32, 8]);
pub(crate) const FEW_ROWS_ACROSS: MatmulKernel = few(4, 128, [32, 8]);

pub(crate) const SOFTWARE_VECTOR: MatmulKernel = vector(64, 8, 1);
pub(crate) const REGISTER_WIDE: MatmulKernel = register(16, 128, [16, 16], 4);
pub(crate) const REGISTER: MatmulKernel = register(16, 64, [16, 8], 4);
pub(crate) const REGISTER_SCALAR: MatmulKernel = register(16, 64, [16, 8], 2);
pub(crate) const REGISTER_SMALL: MatmulKernel = register(8, 64, [8, 8], 4);

pub(crate) const FLAT_1: MatmulKernel = flat(1, 1);
pub(crate) const FLAT_2: MatmulKernel = flat(2, 2);
pub(crate) const FLAT_4: MatmulKernel = flat(4, 4);
pub(crate) const FLAT_8: MatmulKernel = flat(8, 8);

pub(crate) const SUBGROUP_8: MatmulKernel = subgroup(48, 32, 8);
pub(crate) const SUBGROUP_8_BATCHES: MatmulKernel = subgroup(64, 32, 8);
pub(crate) const SUBGROUP_8_SMALL: MatmulKernel = subgroup(32, 32, 8);
pub(crate) const SUBGROUP_8_WIDE: MatmulKernel = subgroup(8, 64, 8);
pub(crate) const SUBGROUP_8_TALL: MatmulKernel = subgroup(48, 8, 8);
pub(crate) const SUBGROUP_8_LONG: MatmulKernel = subgroup(16, 32, 8);
pub(crate) const WIDE_32: MatmulKernel = wide(32, 64);
pub(crate) const WIDE_16: MatmulKernel = wide(16, 64);
pub(crate) const WIDE_4: MatmulKernel = wide(4, 256);
pub(crate) const WIDE_8: MatmulKernel = wide(8, 128);
pub(crate) const TEXEL_16: MatmulKernel = texel(16, 64);
pub(crate) const TEXEL_FEW: MatmulKernel = texel(32, 32);
pub(crate) const WIDE_VECTOR_ROWS: MatmulKernel = wide_vector(8, true);
pub(crate) const WIDE_VECTOR_COLUMNS: MatmulKernel = wide_vector(512, false);
pub(crate) const WIDE_VECTOR_FEW: MatmulKernel = wide_vector(128, false);
pub(crate) const SUBGROUP_4: MatmulKernel = subgroup(16, 32, 4);
/// A quarter of the code: SwiftShader compiles it in a quarter of the time.
pub(crate) const SUBGROUP_4_SMALL: MatmulKernel = subgroup(8, 16, 4);
pub(crate) const QUAD: MatmulKernel = quad(16, 32);
/// A quarter of the code.
pub(crate) const QUAD_SMALL: MatmulKernel = quad(8, 16);
/// One column a lane.
pub(crate) const QUAD_TALL: MatmulKernel = quad(32, 4);
pub(crate) const QUAD_WIDE: MatmulKernel = quad(4, 64);

impl MatmulKernel {
    /// Every kernel that [`plan_matmul`](crate::plan_matmul) can choose.
    pub fn all() -> &'static [MatmulKernel] {
        &Self::ALL
    }

    pub(crate) const ALL: [MatmulKernel; 46] = [
        HARDWARE,
        HARDWARE_MIDDLE,
        HARDWARE_BROAD,
        HARDWARE_SMALL,
        HARDWARE_TALL,
        HARDWARE_WIDE,
        COOPERATIVE_LARGE,
        COOPERATIVE_MIDDLE,
        COOPERATIVE,
        COOPERATIVE_8,
        HARDWARE_VECTOR_ROWS,
        HARDWARE_VECTOR_COLUMNS,
        FEW_COLUMNS_ALONG,
        FEW_ROWS_ALONG,
        FEW_COLUMNS_ACROSS,
        FEW_ROWS_ACROSS,
        SOFTWARE_VECTOR,
        REGISTER_WIDE,
        REGISTER,
        REGISTER_SCALAR,
        REGISTER_SMALL,
        FLAT_1,
        FLAT_2,
        FLAT_4,
        FLAT_8,
        SUBGROUP_8,
        SUBGROUP_8_BATCHES,
        SUBGROUP_8_SMALL,
        SUBGROUP_8_WIDE,
        SUBGROUP_8_TALL,
        SUBGROUP_8_LONG,
        SUBGROUP_4,
        SUBGROUP_4_SMALL,
        QUAD,
        QUAD_SMALL,
        QUAD_TALL,
        QUAD_WIDE,
        WIDE_32,
        WIDE_16,
        WIDE_8,
        WIDE_4,
        TEXEL_16,
        TEXEL_FEW,
        WIDE_VECTOR_ROWS,
        WIDE_VECTOR_COLUMNS,
        WIDE_VECTOR_FEW,
    ];

    /// What the panels of a wide product take that have no vectors of eight.
    pub(crate) const NARROW: MatmulKernel = SUBGROUP_8_LONG;

    /// The same of a matrix times a vector.
    pub(crate) const NARROW_VECTOR: MatmulKernel = SOFTWARE_VECTOR;

    /// Steps of k that one launch may take: llvmpipe silently ends loops after 65,535 turns per
    /// invocation, so stay below with what the tails take.
    pub(crate) fn max_k(&self) -> usize {
        const TURNS: usize = 60_000;
        TURNS
            * match self.kind {
                KernelKind::Workgroup { tile_k, .. } | KernelKind::Cooperative { tile_k, .. } => {
                    tile_k
                }
                KernelKind::Register { unroll, .. } => unroll,
                KernelKind::Flat => FLAT_UNROLL,
                KernelKind::Subgroup { .. } => SUBGROUP_UNROLL,
                KernelKind::Wide => SUBGROUP_UNROLL,
                // Tails go step by step.
                KernelKind::Quad => 1,
                // What the texels have rows for.
                KernelKind::Texel => return TEXEL_ROWS as usize,
                KernelKind::Vector { k_threads, .. } | KernelKind::Few { k_threads, .. } => {
                    k_threads
                }
                // Panels without vectors take what goes step by step.
                KernelKind::WideVector { .. } => 1,
            } as usize
    }

    /// Whether it may be asked to add to what is there: k in several launches. Reading the result
    /// costs software adapters compile time, so few of theirs do.
    pub(crate) fn may_accumulate(&self) -> bool {
        match self.kind {
            KernelKind::Workgroup { .. } | KernelKind::Cooperative { .. } => true,
            KernelKind::Vector { .. } | KernelKind::WideVector { .. } | KernelKind::Few { .. } => {
                true
            }
            KernelKind::Wide => [WIDE_16, WIDE_8, WIDE_4].contains(self),
            KernelKind::Texel | KernelKind::Quad | KernelKind::Flat => false,
            KernelKind::Register { .. } => *self == REGISTER_SMALL,
            KernelKind::Subgroup { .. } => {
                [SUBGROUP_8_SMALL, SUBGROUP_8_LONG, SUBGROUP_4].contains(self)
            }
        }
    }

    /// The tile's edges along the long matrix and along the few, of kernels for few rows or columns.
    pub(crate) fn long_and_few(&self) -> [u32; 2] {
        [self.tile_m.max(self.tile_n), self.tile_m.min(self.tile_n)]
    }

    /// Whether it is for a matrix times a vector alone.
    pub(crate) fn is_of_vectors(&self) -> bool {
        matches!(
            self.kind,
            KernelKind::Vector { .. } | KernelKind::WideVector { .. }
        )
    }

    /// Whether a kernel multiplies `dtype` in the adapter's cooperative matrices.
    pub(crate) fn is_cooperative(capabilities: &Capabilities, dtype: DType) -> bool {
        Self::ALL.iter().any(|kernel| {
            matches!(kernel.kind, KernelKind::Cooperative { .. })
                && kernel.takes(dtype)
                && kernel.fits(capabilities, dtype)
        })
    }

    /// True when the kernel can multiply elements of `dtype`.
    pub(crate) fn takes(&self, dtype: DType) -> bool {
        match self.kind {
            _ if dtype == DType::Bool => false,
            // f64 shuffles are slower than loads.
            KernelKind::Subgroup { .. } => dtype != DType::F64,
            // Elements are made of the halves of 64-bit words.
            KernelKind::Wide | KernelKind::WideVector { .. } => dtype.size() == 4,
            // It stores one by one, which 16 bits do not want.
            KernelKind::Quad => dtype.size() == 4,
            KernelKind::Texel => dtype == DType::F32,
            // Large tiles of f32 were never measured.
            KernelKind::Cooperative { .. } => match dtype {
                DType::F32 => self.tile_m * self.tile_n <= 64 * 64,
                dtype => dtype == DType::F16,
            },
            // 64 sums of f64 do not fit registers.
            KernelKind::Workgroup {
                thread_m, thread_n, ..
            } => dtype != DType::F64 || thread_m * thread_n <= 32,
            _ => true,
        }
    }

    /// Whether an adapter can run the kernel.
    pub(crate) fn fits(&self, capabilities: &Capabilities, dtype: DType) -> bool {
        let lanes = |lanes| capabilities.subgroup_sizes == Some((lanes, lanes));
        let element = dtype.accumulator().size() as u32;
        let (threads, bytes) = match self.kind {
            KernelKind::Workgroup {
                tile_k,
                thread_m,
                thread_n,
            } => {
                let padding = if dtype == DType::F64 { 0 } else { 8 };
                let threads = self.tile_m / thread_m * (self.tile_n / thread_n);
                let step = self.tile_m + self.tile_n + padding;
                (threads, step * tile_k * element)
            }
            KernelKind::Cooperative {
                tile_k,
                edge,
                lanes: size,
                subgroups: [down, across],
                ..
            } if lanes(size)
                && capabilities.cooperative_matrices.edge(dtype) == Some(edge)
                && (capabilities.f16 || dtype != DType::F16) =>
            {
                let size_of = dtype.size() as u32;
                let padding = 16 / size_of;
                let operand = |tile: u32| tile * tile_k + padding * tile.max(tile_k);
                let step = operand(self.tile_m) + operand(self.tile_n);
                let subgroups = down * across;
                let bytes = step * size_of + subgroups * edge * edge * element;
                (subgroups * size, bytes)
            }
            KernelKind::Vector {
                row_threads,
                k_threads,
            } => (row_threads * k_threads, self.tile_m * k_threads * element),
            KernelKind::Few {
                row_threads,
                k_threads,
            } => {
                let threads = row_threads * k_threads;
                let [rows, columns] = self.long_and_few();
                let sums = rows * k_threads;
                let group = (FEW_SUMS / sums).clamp(1, columns);
                (threads, sums * group * element)
            }
            KernelKind::Register {
                thread_m, thread_n, ..
            } => (self.tile_m / thread_m * (self.tile_n / thread_n), 0),
            KernelKind::Flat => (FLAT_THREADS, 0),
            KernelKind::Subgroup { lanes: size } if lanes(size) => (size, 0),
            KernelKind::Wide | KernelKind::WideVector { .. }
                if lanes(WIDE) && capabilities.int64 =>
            {
                (WIDE, 0)
            }
            KernelKind::Texel if lanes(WIDE) && capabilities.texels => (WIDE, 0),
            KernelKind::Quad if lanes(4) => (4, 0),
            KernelKind::Subgroup { .. }
            | KernelKind::Cooperative { .. }
            | KernelKind::Wide
            | KernelKind::WideVector { .. }
            | KernelKind::Texel
            | KernelKind::Quad => {
                return false;
            }
        };
        threads <= capabilities.max_invocations && bytes <= capabilities.workgroup_memory_bytes
    }
}

/// Invocations of a workgroup of the flat tile, and its steps of k per turn.
pub(crate) const FLAT_THREADS: u32 = 64;
pub(crate) const FLAT_UNROLL: u32 = 4;

/// Sums that the few tile has in workgroup memory at a time.
pub(crate) const FEW_SUMS: u32 = 4096;

/// Steps of k per turn of the subgroup tile.
pub(crate) const SUBGROUP_UNROLL: u32 = 4;

/// The same of the quad tile.
pub(crate) const QUAD_UNROLL: u32 = 8;

/// Elements that the wide tile loads at a time, its lanes, and its steps of k per turn; and f16 that cooperative tiles load.
pub(crate) const WIDE: u32 = 8;

impl fmt::Display for MatmulKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            tile_m,
            tile_n,
        } = self;
        match kind {
            KernelKind::Workgroup {
                tile_k,
                thread_m,
                thread_n,
            } => write!(
                f,
                "workgroup_tile {tile_m}x{tile_n}x{tile_k} thread {thread_m}x{thread_n}"
            ),
            KernelKind::Register {
                thread_m,
                thread_n,
                unroll,
            } => write!(
                f,
                "register_tile {tile_m}x{tile_n} thread {thread_m}x{thread_n} unroll {unroll}"
            ),
            KernelKind::Subgroup { lanes } => {
                write!(f, "subgroup_tile {tile_m}x{tile_n} lanes {lanes}")
            }
            KernelKind::Cooperative {
                tile_k,
                edge,
                lanes,
                subgroups: [down, across],
                ..
            } => write!(
                f,
                "cooperative_tile {tile_m}x{tile_n}x{tile_k} matrices {edge}x{edge} subgroups {down}x{across} lanes {lanes}"
            ),
            KernelKind::Flat => write!(f, "flat_tile {tile_m}x{tile_n}"),
            KernelKind::Quad => write!(f, "quad_tile {tile_m}x{tile_n}"),
            KernelKind::Wide => write!(f, "wide_tile {tile_m}x{tile_n}"),
            KernelKind::Texel => write!(f, "texel_tile {tile_m}x{tile_n}"),
            KernelKind::WideVector { along_k } => {
                let lie = if *along_k { "rows" } else { "columns" };
                write!(f, "wide_vector {tile_m} of {lie}")
            }
            KernelKind::Few {
                row_threads,
                k_threads,
            } => write!(
                f,
                "few_tile {tile_m}x{tile_n} threads {row_threads}x{k_threads}"
            ),
            KernelKind::Vector {
                row_threads,
                k_threads,
            } => write!(f, "vector_tile {tile_m} threads {row_threads}x{k_threads}"),
        }
    }
}

impl fmt::Debug for MatmulKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for MatmulKernel {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` for a name that is not listed; it lists those that are.
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|kernel| kernel.to_string() == name);
        found.ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            Error::invalid(
                "matmul",
                format!("no kernel {name:?}; there are {}", names.join(", ")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for &kernel in MatmulKernel::all() {
            assert_eq!(kernel.to_string().parse::<MatmulKernel>().unwrap(), kernel);
        }
        let error = "wide_tile 7x7".parse::<MatmulKernel>().unwrap_err();
        assert!(error.to_string().contains("wide_tile 32x64"), "{error}");
    }
}
