//! Which kernel multiplies, with which tile: a pure function of the device's capabilities and the
//! problem. `docs/matmul.md` has the measurements behind it.

use super::kernel::{element_name, packs, stores_vectors};
use super::product::Matrix;
use super::{hardware, software};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::dtype::DType;
use crate::matmul_kernel::{FLAT_1, FLAT_2, FLAT_4, FLAT_8, KernelKind, MatmulKernel, WIDE};

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatmulOperand {
    /// Neighbours in memory lie along k; else along m (left) or n (right).
    pub along_k: bool,
    /// How many neighbours can be loaded as one vector: 8, 4 or 1. Strides, sizes and offsets that
    /// are no multiples forbid it.
    pub width: u32,
    /// Its rows can be copied into the device's texels as they lie: they start at multiples of four
    /// elements, and 64 or a multiple of it apart.
    pub texels: bool,
}

/// What a plan needs to know of a product of `[m, k]` and `[k, n]`: [`MatmulProblem::new`], whose fields may then be changed. For
/// a matrix times a vector, `n` is 1: a row times a matrix is turned round before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatmulProblem {
    /// Rows of the result.
    pub m: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// Products side by side.
    pub batches: usize,
    /// Of both operands and the result.
    pub dtype: DType,
    /// The left operand, as its kernel sees it.
    pub a: MatmulOperand,
    /// The right operand.
    pub b: MatmulOperand,
    /// k is taken in parts, one launch each, that add up.
    pub accumulates: bool,
    /// Operands may be copied into scratch first: they fit a binding, and are no copies already.
    pub may_pack: bool,
}

impl MatmulProblem {
    /// The product of two row-major matrices without gaps and of no size 0, each at the start of its storage: what
    /// [`Tensor::matmul`](crate::Tensor::matmul) makes of them, where copies of both fit a storage binding.
    pub fn new(m: usize, k: usize, n: usize, dtype: DType) -> Self {
        let row = |outer_size| Matrix::of([outer_size, k], [k as isize, 1]);
        let across = |outer_size| Matrix::of([outer_size, k], [1, outer_size as isize]);
        let (m, n, a, b) = match (m, n) {
            // Turned round.
            (1, 2..) => (n, 1, across(n), row(1)),
            _ => (m, n, row(m), across(n)),
        };
        Self {
            m,
            k,
            n,
            batches: 1,
            dtype,
            a: a.operand(),
            b: b.operand(),
            accumulates: false,
            may_pack: true,
        }
    }

    /// Both operands and the result can go by vectors of four.
    pub(super) fn all_vectors(&self) -> bool {
        self.a.width >= 4 && self.b.width >= 4 && self.n.is_multiple_of(4)
    }

    /// An operand can be loaded by vectors along k.
    pub(super) fn vectors_along_k(&self) -> bool {
        [self.a, self.b]
            .iter()
            .any(|operand| operand.along_k && operand.width >= 4)
    }

    /// How many neighbours of both operands can be loaded as one vector: 8, 4 or 1.
    pub fn vectors(&self) -> u32 {
        self.a.width.min(self.b.width)
    }

    /// Both operands can be loaded eight elements at a time, over the whole of k.
    pub(super) fn is_wide(&self) -> bool {
        self.lacks_vectors() == [false; 2]
    }

    /// A matrix times a vector, the matrix in vectors of eight along k, and the vector too; or the
    /// matrix across k.
    pub(super) fn is_wide_vector(&self, along_k: bool) -> bool {
        self.n == 1
            && self.a.along_k == along_k
            && self.a.width == WIDE
            && match along_k {
                true => self.b.width == WIDE && self.k.is_multiple_of(WIDE as usize),
                false => self.k.is_multiple_of(4),
            }
    }

    /// Which operands would have to be copied for that: both, where k has a rest.
    pub(super) fn lacks_vectors(&self) -> [bool; 2] {
        let whole = self.k.is_multiple_of(WIDE as usize);
        [self.a, self.b].map(|operand| operand.width < WIDE || !whole)
    }

    /// Which operands would have to be copied into rows that can be taken into texels.
    pub(super) fn lacks_texels(&self) -> [bool; 2] {
        let whole = self.k.is_multiple_of(WIDE as usize);
        [self.a, self.b].map(|operand| !operand.texels || !whole)
    }

    /// Copying rows and columns takes less than their products save.
    pub(super) fn is_worth_packing(&self, least: f64) -> bool {
        let [m, n] = [self.m, self.n].map(|size| size as f64);
        self.may_pack && m * n / (m + n) >= least
    }

    /// Multiplications of all batches.
    pub(super) fn sums(&self) -> f64 {
        [self.m, self.n, self.k, self.batches]
            .iter()
            .map(|&size| size as f64)
            .product()
    }

    /// Workgroups may share k: their sums are added up in f32, and not those of panels, which add up already.
    pub(super) fn may_split(&self) -> bool {
        !self.accumulates && self.dtype.accumulator() == DType::F32
    }

    /// Tiles of a kernel, of all batches.
    pub(super) fn tiles(&self, kernel: MatmulKernel) -> usize {
        let down = self.m.div_ceil(kernel.tile_m as usize);
        let across = self.n.div_ceil(kernel.tile_n as usize);
        down.saturating_mul(across).saturating_mul(self.batches)
    }

    /// The part of a kernel's tiles that lies inside the result.
    pub(super) fn fills(&self, kernel: MatmulKernel) -> f64 {
        let part = |size: usize, tile: u32| {
            let tiles = size.div_ceil(tile as usize) as f64;
            size as f64 / (tiles * f64::from(tile))
        };
        part(self.m, kernel.tile_m) * part(self.n, kernel.tile_n)
    }
}

/// How a product is computed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatmulPlan {
    /// Which kernel, with which tile.
    pub kernel: MatmulKernel,
    /// Whether the left and the right operand are copied first, into rows of whole vectors.
    pub pack: [bool; 2],
    /// Into how many parts k is split, side by side; another kernel adds them up in their order.
    pub split: u32,
    /// What decided.
    pub why: &'static str,
}

/// The plan for a product on a device: a pure function, by the table of what was measured on the adapter
/// ([`Capabilities::matmul_choices`]), else by rules (`docs/matmul.md`). The CPU device has no kernels and asks for
/// no plan: what is said of its capabilities is said of a GPU with them. There are no products of bool: a plan of one says so
/// ([`MatmulPlan::why`]), and computes nothing.
pub fn plan_matmul(capabilities: &Capabilities, problem: &MatmulProblem) -> MatmulPlan {
    if problem.dtype == DType::Bool {
        return because(MatmulKernel::NARROW, "there are no products of bool");
    }
    if let Some(plan) = measured(capabilities, problem) {
        return plan;
    }
    match capabilities.kind {
        DeviceKind::Software => hardware::cooperative(capabilities, problem)
            .unwrap_or_else(|| software::plan(capabilities, problem)),
        _ => hardware::plan(capabilities, problem),
    }
}

/// Rows and columns up to which the products of a batch are small: other tiles would be a quarter full.
pub(super) const SMALL: usize = 16;
/// How much fuller a tile of half the edge has to be to be taken: it loads twice as much for each product.
const FULLER: f64 = 1.6;

/// The flat tile for a batch of small products, up to one of `edge`, where there are `least` tiles.
pub(super) fn flat(problem: &MatmulProblem, edge: u32, least: usize) -> Option<MatmulPlan> {
    if problem.m > SMALL || problem.n > SMALL || problem.accumulates {
        return None;
    }
    let mut kernels = [FLAT_8, FLAT_4, FLAT_2, FLAT_1].into_iter();
    let mut kernel = kernels.find(|kernel| kernel.tile_m <= edge)?;
    // Smaller ones would store 16 bits by way of sums.
    let by_fours = problem.dtype.size() == 2 && problem.n.is_multiple_of(4);
    for smaller in kernels.filter(|smaller| !by_fours || smaller.tile_n >= 4) {
        if problem.fills(smaller) <= FULLER * problem.fills(kernel) {
            break;
        }
        kernel = smaller;
    }
    let fits = problem.tiles(kernel) >= least && problem.k <= kernel.max_k();
    fits.then_some(because(kernel, "small matrices, many of them"))
}

pub(super) const fn because(kernel: MatmulKernel, why: &'static str) -> MatmulPlan {
    MatmulPlan {
        kernel,
        pack: [false; 2],
        split: 1,
        why,
    }
}

/// By the first choice of the table that matches, where its kernel can do it.
fn measured(capabilities: &Capabilities, problem: &MatmulProblem) -> Option<MatmulPlan> {
    let lies = |wanted: Option<bool>, operand: MatmulOperand| {
        wanted.is_none_or(|along_k| along_k == operand.along_k)
    };
    let choice = capabilities.matmul_choices.iter().find(|choice| {
        choice.dtype == problem.dtype
            && choice.m.contains(&problem.m)
            && choice.k.contains(&problem.k)
            && choice.n.contains(&problem.n)
            && choice.batches.contains(&problem.batches)
            && lies(choice.a_along_k, problem.a)
            && lies(choice.b_along_k, problem.b)
            && choice
                .vectors
                .is_none_or(|vectors| vectors == problem.vectors())
    })?;
    let why = "measured on the adapter";
    let plan = MatmulPlan {
        split: if problem.may_split() { choice.split } else { 1 },
        ..plan_by(choice.kernel, capabilities, problem, why).ok()?
    };
    (choice.kernel.may_accumulate() || !problem.accumulates).then_some(plan)
}

/// The plan with a kernel that is given.
///
/// # Errors
/// Why it cannot do the product.
pub(super) fn plan_by(
    kernel: MatmulKernel,
    capabilities: &Capabilities,
    problem: &MatmulProblem,
    why: &'static str,
) -> Result<MatmulPlan, String> {
    let dtype = problem.dtype;
    if !kernel.takes(dtype) {
        return Err(format!("has no form for {dtype}"));
    }
    if !kernel.fits(capabilities, dtype) {
        return Err(match kernel.kind {
            KernelKind::Cooperative { .. } => format!(
                "the device was opened without cooperative matrices of its size for {dtype} \
                 (DeviceBuilder::experimental_cooperative_matrices), or has none"
            ),
            _ => "the adapter cannot run it".to_owned(),
        });
    }
    // Kernels that store no vectors leave 16 bits to a pass over sums.
    let by_words = packs(element_name(dtype, capabilities)) && problem.n != 1;
    let sums = 4.0 * problem.m as f64 * problem.n as f64 * problem.batches as f64;
    if by_words && !stores_vectors(&kernel) && sums + 256.0 > capabilities.indexed_bytes() as f64 {
        return Err(format!("its sums of {dtype} are more than a binding holds"));
    }
    let plan = because(kernel, why);
    match kernel.kind {
        _ if kernel.is_of_vectors() && problem.n != 1 => Err("no operand is a vector".to_owned()),
        KernelKind::WideVector { along_k } if !problem.is_wide_vector(along_k) => {
            Err("the operands do not lie in vectors of eight, as it loads them".to_owned())
        }
        KernelKind::Wide if kernel.tile_m < WIDE && !problem.a.along_k => Err(
            "it has fewer rows than the left operand's vectors, which lie across them".to_owned(),
        ),
        KernelKind::Wide if problem.is_wide() || problem.may_pack => Ok(MatmulPlan {
            pack: problem.lacks_vectors(),
            ..plan
        }),
        KernelKind::Wide => Err(
            "strides, sizes and offsets are not all multiples of eight, and copies do not fit"
                .to_owned(),
        ),
        KernelKind::Texel if problem.lacks_texels() == [false; 2] || problem.may_pack => {
            Ok(MatmulPlan {
                pack: problem.lacks_texels(),
                ..plan
            })
        }
        KernelKind::Texel => Err(
            "strides and offsets are no multiples of 64 and of four, and copies do not fit"
                .to_owned(),
        ),
        _ => Ok(plan),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::matmul_kernel::{
        HARDWARE_TALL, HARDWARE_VECTOR_ROWS, REGISTER, SUBGROUP_4, SUBGROUP_8, SUBGROUP_8_TALL,
    };
    use crate::matmul_table::MatmulChoice;

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
            Capabilities {
                int64: true,
                ..software(Some((8, 8)))
            },
            Capabilities {
                int64: true,
                texels: true,
                ..software(Some((8, 8)))
            },
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

    /// A choice of the table goes before the rules where it matches and its kernel can do the product.
    #[test]
    fn what_was_measured_goes_first() {
        let operand = MatmulOperand {
            along_k: true,
            width: 4,
            texels: false,
        };
        let problem = MatmulProblem {
            m: 100,
            k: 200,
            n: 300,
            batches: 2,
            dtype: DType::F32,
            a: operand,
            b: MatmulOperand {
                along_k: false,
                ..operand
            },
            accumulates: false,
            may_pack: false,
        };
        let choice = MatmulChoice {
            m: 64..=100,
            k: 200..=400,
            n: 300..=300,
            batches: 2..=2,
            a_along_k: Some(true),
            b_along_k: Some(false),
            vectors: Some(4),
            split: 8,
            ..MatmulChoice::new(DType::F32, HARDWARE_TALL)
        };
        let webgpu = Capabilities {
            workgroup_memory_bytes: 32 << 10,
            ..adapters().pop().unwrap()
        };
        let with = |choice: &MatmulChoice| Capabilities {
            matmul_choices: [choice.clone()].into(),
            ..webgpu.clone()
        };
        let plan = plan_matmul(&with(&choice), &problem);
        assert_eq!((plan.kernel, plan.split), (HARDWARE_TALL, 8));
        let truths = MatmulProblem::new(100, 200, 300, DType::Bool);
        let none = plan_matmul(&with(&choice), &truths).to_string();
        assert!(none.ends_with("no products of bool"), "{none}");
        assert!(
            plan.to_string().ends_with("measured on the adapter"),
            "{plan}"
        );
        // Sums that are not f32 are made in one part, whatever the table says.
        let whole = MatmulChoice {
            dtype: DType::I32,
            ..choice.clone()
        };
        let of_integers = MatmulProblem {
            dtype: DType::I32,
            ..problem
        };
        let plan = plan_matmul(&with(&whole), &of_integers);
        assert_eq!((plan.kernel, plan.split), (HARDWARE_TALL, 1));
        let ruled = plan_matmul(&webgpu, &problem);
        assert_ne!(ruled.kernel, HARDWARE_TALL);
        for other in [
            MatmulProblem { m: 63, ..problem },
            MatmulProblem { m: 101, ..problem },
            MatmulProblem { k: 199, ..problem },
            MatmulProblem { n: 301, ..problem },
            MatmulProblem {
                batches: 1,
                ..problem
            },
            MatmulProblem {
                dtype: DType::I32,
                ..problem
            },
            MatmulProblem {
                b: MatmulOperand {
                    width: 1,
                    ..problem.b
                },
                ..problem
            },
            MatmulProblem {
                a: problem.b,
                ..problem
            },
            MatmulProblem {
                b: problem.a,
                ..problem
            },
        ] {
            assert_eq!(
                plan_matmul(&with(&choice), &other),
                plan_matmul(&webgpu, &other),
                "{other:?}"
            );
        }
        // A kernel that cannot: for vectors only, for other adapters, without parts of k.
        for kernel in [HARDWARE_VECTOR_ROWS, SUBGROUP_4] {
            let choice = MatmulChoice {
                kernel,
                ..choice.clone()
            };
            assert_eq!(plan_matmul(&with(&choice), &problem), ruled);
        }
        let parts = MatmulProblem {
            accumulates: true,
            ..problem
        };
        let choice = MatmulChoice {
            kernel: REGISTER,
            ..choice
        };
        assert_eq!(plan_matmul(&with(&choice), &problem).kernel, REGISTER);
        assert_ne!(plan_matmul(&with(&choice), &parts).kernel, REGISTER);
    }

    /// A kernel without vector stores leaves 16 bits to sums in scratch, which have to fit a binding.
    #[test]
    fn sums_that_do_not_fit_are_left_to_others() {
        let mut capabilities = adapters().swap_remove(1);
        let operand = MatmulOperand {
            along_k: true,
            width: 8,
            texels: false,
        };
        let problem = MatmulProblem {
            m: 256,
            k: 16,
            n: 128,
            batches: 1,
            dtype: DType::BF16,
            a: operand,
            b: operand,
            accumulates: false,
            may_pack: true,
        };
        for (limit, able) in [(1 << 20, true), (64 << 10, false)] {
            capabilities.max_binding_bytes = limit;
            let plan = plan_by(SUBGROUP_8_TALL, &capabilities, &problem, "forced");
            assert_eq!(plan.is_ok(), able, "{plan:?}");
            assert!(plan_by(SUBGROUP_8, &capabilities, &problem, "forced").is_ok());
        }
        // Sums of more bytes than are counted in 32 bits, however much is bound.
        capabilities.max_binding_bytes = 8 << 30;
        let large = MatmulProblem {
            m: 1 << 15,
            n: 1 << 15,
            ..problem
        };
        assert!(plan_by(SUBGROUP_8_TALL, &capabilities, &large, "forced").is_err());
    }

    /// Every problem gets a listed kernel that the adapter can run, and parts of k one that accumulates.
    #[test]
    fn every_problem_gets_a_kernel_that_runs() {
        let sizes = [
            1,
            2,
            8,
            9,
            16,
            17,
            32,
            33,
            64,
            65,
            1024,
            100_000,
            usize::MAX,
        ];
        for capabilities in adapters() {
            // Products of bool are refused before.
            for dtype in DType::ALL
                .iter()
                .copied()
                .filter(|&dtype| dtype != DType::Bool)
            {
                for (m, n) in sizes
                    .iter()
                    .flat_map(|&m| sizes.iter().map(move |&n| (m, n)))
                {
                    for flags in 0..36 {
                        let width = [1, 4, 8][flags / 12];
                        let operand = |along_k| MatmulOperand {
                            along_k,
                            width,
                            texels: width > 1 && flags & 1 == 0,
                        };
                        let problem = MatmulProblem {
                            m,
                            n,
                            k: if flags & 4 == 4 { 8 } else { 7 },
                            batches: 1,
                            accumulates: flags % 12 >= 8,
                            dtype,
                            a: operand(flags & 1 == 1),
                            b: operand(flags & 2 == 2),
                            may_pack: flags & 1 == 0,
                        };
                        let MatmulPlan { kernel, .. } = plan_matmul(&capabilities, &problem);
                        assert!(MatmulKernel::all().contains(&kernel), "{problem:?}");
                        assert!(kernel.fits(&capabilities, dtype), "{kernel} {problem:?}");
                        assert!(kernel.takes(dtype), "{kernel} {problem:?}");
                        assert!(
                            !problem.accumulates || kernel.may_accumulate(),
                            "{kernel} {problem:?}"
                        );
                    }
                }
            }
        }
    }
}
