//! A problem becomes launches: a plan, panels that fit, operands as they lie, vector loads where
//! they are allowed.

use smallvec::{SmallVec, smallvec};

use super::kernel::{Form, kernel_loads, key, stores_vectors};
use super::panel::{Limits, OPERANDS, Panel, Storages};
use super::plan::{MatmulPlan, MatmulProblem};
use super::product::{A, B, C, Matrix, Product, SCRATCH, sides};
use super::rule::Finish;
use super::texels::{self, Cursor, Placed};
use crate::capabilities::{Capabilities, LONGEST_LAUNCH};
use crate::error::{Error, Result};
use crate::launch::{
    Bound, Dispatch, Launch, Launches, MAX_LAUNCHES, Window, Words, fold_grid, too_many,
};
use crate::matmul_kernel::{FLAT_THREADS, KernelKind, MatmulKernel, WIDE};
use crate::road::Problem;
use crate::shape::Dims;

const OP: &str = "matmul";
/// Steps of k of which all kernels take whole turns and whole vectors.
const K_UNIT: usize = 128;
impl Product {
    /// The sizes of panels that a plan can take one launch each for.
    fn cut(&self, kernel: &MatmulKernel, capabilities: &Capabilities) -> Dims {
        let grid = f64::from(capabilities.max_workgroups)
            .powi(2)
            .min(MAX_TILES);
        let time = |sizes: &[usize]| {
            let work = self.work(sizes, kernel);
            let flops = work.flops * capabilities.slowness(self.dtype);
            let seconds = capabilities.seconds(flops, work.bytes);
            let room = match kernel.kind {
                KernelKind::Texel if self.in_texels(sizes).is_none() => 2.0,
                _ => 0.0,
            };
            (seconds / LONGEST_LAUNCH).max(work.tiles / grid).max(room)
        };
        let limits = |spans| Limits {
            spans,
            tile: [kernel.tile_m as usize, kernel.tile_n as usize, K_UNIT],
            max_k: kernel.max_k(),
            time: &time,
        };
        let mut spans = self.storages_of(kernel).spans();
        let mut sizes = self.nest.cut(&limits(spans));
        let ([m, n, _], [all_m, all_n, _]) = (sides(&sizes).1, sides(&self.nest.sizes()).1);
        let starts_odd = |part: usize, all: usize| part < all && !part.is_multiple_of(4);
        if kernel.kind == KernelKind::Texel && (starts_odd(m, all_m) || starts_odd(n, all_n)) {
            // Panels that begin between texels bind their operands.
            spans = self.storages.spans();
            sizes = self.nest.cut(&limits(spans));
        }
        if !(self.splits_k(&sizes) && self.sums_apart()) {
            return sizes;
        }
        // The sums of a panel have to fit a binding too.
        let sums = self.storages.limit / self.dtype.accumulator().size() as u64;
        let mut with_sums = spans;
        with_sums[C] = spans[C].min(sums as usize);
        self.nest.cut(&limits(with_sums))
    }

    /// Where A and B of a panel lie in texels. `None` where there is no room.
    fn in_texels(&self, sizes: &[usize]) -> Option<[Placed; 2]> {
        let (batch, _) = sides(sizes);
        let mut cursor = Cursor::default();
        let mut place = |operand| {
            let matrix = self.matrix(operand, sizes, self.nest.offsets[operand]);
            texels::place(&matrix, batch, &mut cursor)
        };
        Some([place(A)?, place(B)?])
    }

    /// The storages as a kernel binds them: operands that are read as texels are not bound.
    fn storages_of(&self, kernel: &MatmulKernel) -> Storages {
        match kernel.kind {
            KernelKind::Texel => self.storages.without_factors(),
            _ => self.storages,
        }
    }

    /// The launch of one panel.
    fn launch(
        &self,
        panel: &Panel,
        kernel: &MatmulKernel,
        accumulates: bool,
        capabilities: &Capabilities,
    ) -> Result<Launch> {
        let sizes = &panel.sizes[..];
        let (batch, [m, n, k]) = sides(sizes);
        let first = |operand: usize| self.nest.first(panel, operand);
        // Where they lie in their storages.
        let lie = [A, B].map(|operand| self.matrix(operand, sizes, first(operand)));
        let placed = match kernel.kind {
            KernelKind::Texel if lie.iter().all(texels::can_be_copied) => self.in_texels(sizes),
            _ => None,
        };
        // A panel at an edge may not have what the others have.
        let kernel = match kernel.kind {
            KernelKind::Texel if placed.is_none() => &MatmulKernel::NARROW,
            _ => kernel,
        };
        let windows = self.storages_of(kernel).windows(&self.nest, panel);
        let offset = |operand: usize| {
            let start =
                windows.of[operand].map_or(0, |window| window.offset / self.storages.element);
            first(operand) - start as usize
        };
        let mut matrices: [Matrix; OPERANDS] =
            std::array::from_fn(|operand| self.matrix(operand, sizes, offset(operand)));
        let whole = [A, B].map(|operand| matrices[operand].width()) == [WIDE; 2]
            && k.is_multiple_of(WIDE as usize);
        let kernel = match kernel.kind {
            KernelKind::Wide if !whole => &MatmulKernel::NARROW,
            KernelKind::WideVector { along_k }
                if !self.problem_of(sizes, first).is_wide_vector(along_k)
                    // One buffer is declared once, and loaded one way.
                    || !along_k && windows.joined[A] == windows.joined[B] =>
            {
                &MatmulKernel::NARROW_VECTOR
            }
            _ => kernel,
        };
        if kernel.kind != KernelKind::Wide {
            // Only wide tiles read what lies past a copy's edge: others repeat its last vector.
            for matrix in &mut matrices {
                matrix.padded = false;
            }
        }
        let mut copies = SmallVec::new();
        let texel_forms = [A, B].map(|operand| matrices[operand].runs_along_inner());
        if let Some(placed) = &placed {
            for (operand, placed) in [A, B].into_iter().zip(placed) {
                let from = match self.copies[operand] {
                    Some(window) => (self.inputs.len() + SCRATCH, window.offset),
                    None => (
                        self.inputs
                            .iter()
                            .position(|&of| of == operand)
                            .unwrap_or(operand),
                        0,
                    ),
                };
                texels::copies(&lie[operand], batch, placed, from, &mut copies);
                // Where they lie in texels.
                let matrix = &mut matrices[operand];
                matrix.offset = placed.first;
                matrix.outer = placed.band as isize;
                matrix.inner = placed.units as isize;
                matrix.batch = placed.batch.iter().map(|&units| units as isize).collect();
            }
        }
        let [a, b, c, ..] = &matrices;
        let along_k = match placed {
            Some(_) => texel_forms,
            None => [a, b].map(Matrix::runs_along_inner),
        };
        let loads = kernel_loads(kernel, self.element, along_k);
        let cooperative_step = match kernel.kind {
            KernelKind::Cooperative { tile_k, .. } => Some(tile_k as usize),
            _ => None,
        };
        let fits = |width: u32, matrix: &Matrix| match width {
            0 => 0,
            _ if matrix.width() >= width => width,
            WIDE if cooperative_step.is_some() && matrix.width() >= 4 => 4,
            _ => 1,
        };
        let mut vector_a = fits(loads[0], a);
        let mut vector_b = fits(loads[1], b);
        if windows.joined[A] == windows.joined[B] && vector_a != vector_b {
            // One buffer is declared once, by the narrower.
            let least = vector_a.min(vector_b);
            (vector_a, vector_b) = (least, least);
        }
        let vector_c = stores_vectors(kernel) && c.runs_along_inner() && c.width() >= 4;
        let form = Form {
            element: self.element,
            result: self.result,
            batch_rank: batch.len() as u32,
            a_along_k: along_k[0],
            b_along_k: along_k[1],
            vector_a,
            vector_b,
            vector_c: if vector_c { 4 } else { 1 },
            accumulates,
            whole: cooperative_step.is_some_and(|step| k > 0 && k.is_multiple_of(step)),
            slots: self.slots(&windows, placed.is_some()),
            finish: self.finish,
        };

        let tiles_m = m.div_ceil(kernel.tile_m as usize);
        let tiles_n = n.div_ceil(kernel.tile_n as usize);
        let work = self.work(sizes, kernel);
        let tiles = work.tiles as u64;
        let workgroups = match kernel.kind {
            KernelKind::Flat => tiles.div_ceil(u64::from(FLAT_THREADS)),
            _ => tiles,
        };
        let groups = fold_grid(workgroups, capabilities.max_workgroups).ok_or_else(|| {
            Error::invalid(
                OP,
                format!("{tiles} tiles are more than the adapter's grid"),
            )
        })?;
        let (_, [_, _, k_start]) = sides(&panel.starts);
        let part = usize::from(k_start > 0) | usize::from(k_start + k < self.k()) << 1;
        let mut words: Words = [
            m,
            n,
            k,
            part,
            a.offset,
            a.outer as usize,
            a.inner as usize,
            b.offset,
            b.inner as usize,
            b.outer as usize,
            c.offset,
            c.outer as usize,
            tiles_m,
            tiles_n,
            tiles as usize,
        ]
        .iter()
        .map(|&word| word as u32)
        .collect();
        words.extend(batch.iter().map(|&size| size as u32));
        for matrix in [a, b, c] {
            words.extend(matrix.batch.iter().map(|&stride| stride as u32));
        }
        if self.finish != Finish::NONE {
            words.push((self.finish.scale as f32).to_bits());
            for &operand in self.added() {
                let matrix = &matrices[operand];
                let [row, column] = [matrix.outer, matrix.inner].map(|stride| stride as u32);
                words.extend([matrix.offset as u32, row, column]);
                words.extend(matrix.batch.iter().map(|&stride| stride as u32));
            }
        }

        // Inputs in their own order; C; its sums.
        let mut operands: SmallVec<[Bound; 4]> = SmallVec::new();
        for (input, &operand) in self.bound().iter().enumerate() {
            if form.slots[operand] as usize == operands.len() {
                let copy = self.copies.get(operand).copied().flatten();
                operands.push(match copy {
                    Some(_) => Bound {
                        operand: self.inputs.len() + SCRATCH,
                        window: copy,
                    },
                    None => Bound {
                        operand: input,
                        window: windows.of[operand],
                    },
                });
            }
        }
        operands.push(match self.sums {
            Some(_) => Bound {
                operand: self.inputs.len() + SCRATCH,
                window: self.sums,
            },
            None => Bound {
                operand: self.inputs.len(),
                window: windows.of[C],
            },
        });
        if accumulates && self.sums_apart() {
            let [low, high] = self.nest.reach(panel, C).map(|at| at as u64);
            let bytes = (high - low) * self.dtype.accumulator().size() as u64;
            operands.push(Bound {
                operand: self.inputs.len() + SCRATCH,
                window: Some(Window::around(self.scratch()..self.scratch() + bytes)),
            });
        }
        Ok(Launch {
            kernel: key(kernel, self.dtype, form),
            operands,
            texels: copies,
            dispatches: smallvec![Dispatch { words, groups }],
            flops: work.flops * capabilities.slowness(self.dtype),
            bytes: work.bytes,
        })
    }
}

/// Tiles of one launch: their numbers fit 32 bits, idle ones in the last row of a grid included.
const MAX_TILES: f64 = (1u32 << 31) as f64;

/// A product whose kernel, copies and panels are chosen.
struct Settled {
    product: Product,
    kernel: MatmulKernel,
    sizes: Dims,
    split: u32,
    /// Of operands into scratch.
    copies: Launches,
}

/// What a product is to be done by, by the plan that `choose` makes.
fn settled(
    finish: Finish,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    choose: impl Fn(&MatmulProblem) -> Result<MatmulPlan>,
) -> Result<Settled> {
    let mut product = Product::of(finish, problem, capabilities)?;
    let plan = choose(&product.problem(&product.nest.sizes()))?;
    let mut kernel = plan.kernel;
    let mut copies = Launches::new();
    if plan.pack != [false; 2] {
        let pitch = match kernel.kind {
            KernelKind::Texel => texels::STRIP,
            _ => WIDE as usize,
        };
        match product.pack(plan.pack, pitch, capabilities)? {
            Some(packed) => {
                copies = packed;
            }
            None => {
                let problem = MatmulProblem {
                    may_pack: false,
                    ..product.problem(&product.nest.sizes())
                };
                kernel = choose(&problem)?.kernel;
            }
        }
    }
    let (sizes, kernel) = product.settle(kernel, capabilities, &choose)?;
    Ok(Settled {
        product,
        kernel,
        sizes,
        split: plan.split,
        copies,
    })
}

/// Whether words of the result, where 16 bits lie two to a word, belong to several invocations: sums take
/// scratch then.
///
/// # Errors
/// As [`launches`].
pub(super) fn shares_words(
    finish: Finish,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    choose: impl Fn(&MatmulProblem) -> Result<MatmulPlan>,
) -> Result<bool> {
    let settled = settled(finish, problem, capabilities, choose)?;
    let by_vectors = stores_vectors(&settled.kernel);
    Ok(settled.product.shares_words(&settled.sizes, by_vectors))
}

/// The launches of a product, by the plan that `choose` makes: one for each panel.
pub(super) fn launches(
    finish: Finish,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    choose: impl Fn(&MatmulProblem) -> Result<MatmulPlan>,
) -> Result<Launches> {
    let Settled {
        product,
        kernel,
        sizes,
        split,
        copies: mut all,
    } = settled(finish, problem, capabilities, &choose)?;
    let parts = match sizes == product.nest.sizes() {
        true => split as usize,
        // Panels keep the device busy.
        false => 1,
    };
    let shares_words = product.shares_words(&sizes, stores_vectors(&kernel));
    if parts > 1 || shares_words {
        let summed = match product.summed(parts, capabilities)? {
            None if shares_words => product.summed(1, capabilities)?,
            summed => summed,
        };
        if let Some(summed) = summed {
            for part in &summed.products {
                let problem = MatmulProblem {
                    may_pack: false,
                    ..part.problem(&part.nest.sizes())
                };
                let kernel = choose(&problem)?.kernel;
                let (sizes, kernel) = part.settle(kernel, capabilities, &choose)?;
                part.record(&sizes, &kernel, capabilities, &mut all)?;
            }
            all.extend(summed.reduce);
            return Ok(all);
        }
        if shares_words {
            return Err(Error::invalid(
                OP,
                format!(
                    "sums for {} odd rows of 16 bits are more than a binding holds",
                    sizes[sizes.len() - 3]
                ),
            ));
        }
    }
    product.record(&sizes, &kernel, capabilities, &mut all)?;
    Ok(all)
}

impl Product {
    /// The sizes of panels, and the kernel for them: small ones have plans of their own, and so
    /// have parts of k, which the first of these may cut.
    fn settle(
        &self,
        mut kernel: MatmulKernel,
        capabilities: &Capabilities,
        choose: impl Fn(&MatmulProblem) -> Result<MatmulPlan>,
    ) -> Result<(Dims, MatmulKernel)> {
        let whole = self.nest.sizes();
        let mut sizes = self.cut(&kernel, capabilities);
        for _ in 0..2 {
            if sizes == whole {
                break;
            }
            let mut problem = self.problem(&sizes);
            // One column of several is no vector: its neighbours in C lie a row apart.
            problem.n = problem.n.max(sides(&whole).1[1].min(2));
            kernel = choose(&problem)?.kernel;
            sizes = self.cut(&kernel, capabilities);
        }
        Ok((sizes, kernel))
    }

    /// The launches of all panels.
    fn record(
        &self,
        sizes: &Dims,
        kernel: &MatmulKernel,
        capabilities: &Capabilities,
        all: &mut Launches,
    ) -> Result<()> {
        let count = self.nest.count(sizes).unwrap_or(usize::MAX);
        if count > MAX_LAUNCHES {
            let whole = self.nest.sizes();
            let what = format!(
                "the work of sizes {whole:?} (batches, then m, n, k) in launches of at most {sizes:?}"
            );
            return Err(too_many(OP, what, count));
        }
        let accumulates = self.splits_k(sizes);
        for panel in self.nest.panels(sizes) {
            all.push(self.launch(&panel, kernel, accumulates, capabilities)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{plan_matmul, tests::adapters};
    use super::*;
    use crate::dtype::DType;
    use crate::layout::Layout;
    use crate::road::Operand;

    /// The launches of `[m, k] x [k, n]`, stored by rows or by columns.
    fn planned(
        capabilities: &Capabilities,
        [m, k, n]: [usize; 3],
        turned: [bool; 2],
        dtype: DType,
    ) -> Result<Launches> {
        let stored = |rows, columns, turned| match turned {
            false => Layout::contiguous([rows, columns]),
            true => Layout::contiguous([columns, rows]).transpose(0, 1).unwrap(),
        };
        let layouts = [
            stored(m, k, turned[0]),
            stored(k, n, turned[1]),
            stored(m, n, false),
        ];
        let operand = |at: usize| Operand {
            layout: &layouts[at],
            dtype,
            storage_bytes: (layouts[at].elements() * dtype.size()).next_multiple_of(256) as u64,
        };
        let problem = Problem {
            inputs: smallvec![operand(0), operand(1)],
            output: operand(2),
            fresh: true,
            spare: true,
            slots: smallvec![0, 1],
        };
        launches(Finish::NONE, &problem, capabilities, |problem| {
            Ok(plan_matmul(capabilities, problem))
        })
    }

    fn copies(launch: &Launch) -> bool {
        launch.kernel.template == "matmul/pack"
    }

    /// Bindings within the limit, f16 sums in scratch, and a fifth of a second at most wherever
    /// more than one tile is left.
    #[test]
    fn launches_keep_the_limits_of_adapters() {
        for capabilities in adapters() {
            let limit = 128 << 20;
            let capabilities = Capabilities {
                max_binding_bytes: limit,
                ..capabilities
            };
            for sizes in [
                [300, 400, 500],
                [8192, 8192, 8192],
                [60_000, 3000, 8],
                [7, 3000, 60_000],
                [1, 70_000, 4000],
                [20_000, 200_000, 1],
                [3, 100_000_000, 5],
                [40_000, 8, 40_000],
            ] {
                let dtypes = [DType::F32, DType::F16, DType::F64];
                for (dtype, turned) in dtypes.into_iter().flat_map(|dtype| {
                    [[false, false], [true, false], [false, true]].map(|turned| (dtype, turned))
                }) {
                    let story = || format!("{sizes:?} {turned:?} {dtype} {capabilities:?}");
                    let launches = planned(&capabilities, sizes, turned, dtype).unwrap();
                    let flops: f64 = launches.iter().map(|launch| launch.flops).sum();
                    let all = sizes.iter().map(|&size| size as f64).product::<f64>() * 2.0;
                    let all = all * capabilities.slowness(dtype);
                    assert!((flops / all - 1.0).abs() < 1e-9, "{}", story());
                    let adds_up = |launch: &Launch| launch.kernel.template == "matmul/reduce";
                    let is_split = launches.iter().any(adds_up);
                    let products = launches.iter().filter(|launch| !copies(launch));
                    for launch in products.filter(|launch| !adds_up(launch)) {
                        let words = &launch.dispatches[0].words;
                        let tiles = words[14];
                        let seconds = capabilities.seconds(launch.flops, launch.bytes);
                        assert!(tiles == 1 || seconds <= LONGEST_LAUNCH, "{}", story());
                        let sums = launch
                            .operands
                            .iter()
                            .filter(|bound| bound.operand == 2 + SCRATCH);
                        let in_parts = words[3] != 0;
                        if dtype == DType::F16 && !is_split {
                            assert_eq!(sums.count() == 1, in_parts, "{}", story());
                        }
                        assert_eq!(launch.kernel.bindings as usize, launch.operands.len());
                        for window in launch.operands.iter().filter_map(|bound| bound.window) {
                            assert!(window.bytes <= limit, "{window:?}, {}", story());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_fits_is_one_launch() {
        for capabilities in adapters() {
            for sizes in [[1, 1, 1], [300, 400, 500], [1, 4000, 4000]] {
                let launches = planned(&capabilities, sizes, [false; 2], DType::F32).unwrap();
                // k split between workgroups takes one for the parts, one for the rest, one for all sums.
                if let Some((last, parts)) = launches.split_last()
                    && last.kernel.template == "matmul/reduce"
                {
                    assert!(parts.len() <= 2, "{sizes:?}");
                    continue;
                }
                let mut launches = launches.iter().filter(|launch| !copies(launch));
                let launch = launches.next().unwrap();
                assert!(launches.next().is_none());
                let operands = launch.operands.iter();
                let mut storages = operands.filter(|bound| bound.operand < 2 + SCRATCH);
                assert!(storages.all(|bound| bound.window.is_none()));
            }
        }
    }
}
