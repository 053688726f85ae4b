//! A problem becomes launches: a plan, panels that fit, operands as they lie, vector loads where
//! they are allowed.

use smallvec::{SmallVec, smallvec};

use super::kernel::{Form, kernel_loads, key, stores_vectors};
use super::panel::{Axis, Limits, Nest, OPERANDS, Panel, Sizes, Storages};
use super::plan::{Kernel, MatmulKernel, MatmulOperand, MatmulPlan, MatmulProblem, WIDE};
use crate::capabilities::{Capabilities, LONGEST_LAUNCH};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Bound, Dispatch, Launch, Launches, Window, Words, fold_grid};
use crate::layout::{Layout, merge};
use crate::road::Problem;

const OP: &str = "matmul";
/// Launches of one product: more are refused before they take the host's memory.
const MAX_LAUNCHES: usize = 1 << 17;
/// Steps of k of which all kernels take whole turns and whole vectors.
const K_UNIT: usize = 128;
/// Operands of a nest.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// A product as its kernel sees it. For one row times a matrix the operands' places are swapped:
/// the transposed matrix times a column.
struct Product {
    nest: Nest,
    storages: Storages,
    dtype: DType,
    swapped: bool,
}

impl Product {
    fn of(problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Self> {
        let ([a, b], output) = (&problem.inputs[..], problem.output) else {
            return Err(Error::invalid(OP, "takes two operands"));
        };
        let rank = output.layout.rank();
        let dims = output.layout.shape().dims();
        let (m, n) = (dims[rank - 2], dims[rank - 1]);
        let k = a.layout.shape()[rank - 1];

        // Batches merge where both operands walk them evenly; C does everywhere.
        let batch_of = |layout: &Layout| layout.leading(rank - 2);
        let merged = merge(&[&batch_of(a.layout), &batch_of(b.layout)]);
        let stride = |layout: &Layout, axis: usize| layout.strides()[axis];
        let mut step = (m * n) as isize;
        let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
        for (axis, &size) in merged.dims.iter().enumerate().rev() {
            axes.push(Axis {
                size,
                strides: [merged.strides[0][axis], merged.strides[1][axis], step],
            });
            step = step.saturating_mul(size as isize);
        }
        axes.reverse();
        let rows = Axis {
            size: m,
            strides: [stride(a.layout, rank - 2), 0, n as isize],
        };
        let columns = Axis {
            size: n,
            strides: [0, stride(b.layout, rank - 1), 1],
        };
        let steps = Axis {
            size: k,
            strides: [stride(a.layout, rank - 1), stride(b.layout, rank - 2), 0],
        };
        axes.extend([rows, columns, steps]);
        let mut nest = Nest {
            axes,
            offsets: [a.layout.offset(), b.layout.offset(), 0],
        };
        let mut storages = Storages {
            bytes: [a, b, &output].map(|operand| operand.storage_bytes),
            shared: problem.slots[0] == problem.slots[1],
            element: output.dtype.size() as u64,
            // Elements are counted in 32 bits.
            limit: capabilities.max_binding_bytes.min(u64::from(u32::MAX)),
        };
        let swapped = m == 1 && n != 1;
        if swapped {
            let rank = nest.axes.len();
            nest.axes.swap(rank - 3, rank - 2);
            nest.axes
                .iter_mut()
                .for_each(|axis| axis.strides.swap(A, B));
            nest.offsets.swap(A, B);
            storages.bytes.swap(A, B);
        }
        Ok(Self {
            nest,
            storages,
            dtype: output.dtype,
            swapped,
        })
    }

    /// An operand as a kernel sees it in a panel.
    fn matrix(&self, operand: usize, sizes: &[usize], offset: usize) -> Matrix {
        let rank = self.nest.axes.len();
        let stride = |axis: usize| self.nest.axes[axis].strides[operand];
        // C has no k: its columns take that place.
        let [outer, inner] = match operand {
            A => [rank - 3, rank - 1],
            B => [rank - 2, rank - 1],
            _ => [rank - 3, rank - 2],
        };
        Matrix {
            offset,
            outer: stride(outer),
            outer_size: sizes[outer],
            inner: stride(inner),
            inner_size: sizes[inner],
            batch: (0..rank - 3).map(stride).collect(),
        }
    }

    /// What a plan has to know.
    fn problem(&self, sizes: &[usize]) -> MatmulProblem {
        let (batch, [m, n, k]) = sides(sizes);
        let [a, b] = [A, B].map(|operand| {
            let matrix = self.matrix(operand, sizes, self.nest.offsets[operand]);
            MatmulOperand {
                along_k: matrix.runs_along_inner(),
                width: matrix.width(),
            }
        });
        MatmulProblem {
            m,
            k,
            n,
            batches: batch.iter().product(),
            dtype: self.dtype,
            a,
            b,
            accumulates: self.splits_k(sizes),
        }
    }

    /// Operations, bytes and tiles of a part.
    fn work(&self, sizes: &[usize], kernel: &MatmulKernel) -> Work {
        let (batch, [m, n, k]) = sides(sizes);
        let tiles = [
            m.div_ceil(kernel.tile_m as usize),
            n.div_ceil(kernel.tile_n as usize),
        ];
        let batches = batch.iter().map(|&size| size as f64).product::<f64>();
        let [m, n, k] = [m, n, k].map(|size| size as f64);
        Work {
            flops: 2.0 * m * n * k * batches,
            bytes: (m * k + k * n + m * n) * batches * self.dtype.size() as f64,
            tiles: tiles[0] as f64 * tiles[1] as f64 * batches,
        }
    }

    /// The sizes of panels that a plan can take one launch each for.
    fn cut(&self, kernel: &MatmulKernel, capabilities: &Capabilities) -> Sizes {
        let grid = f64::from(capabilities.max_workgroups)
            .powi(2)
            .min(MAX_TILES);
        let time = |sizes: &[usize]| {
            let work = self.work(sizes, kernel);
            let seconds = capabilities.seconds(work.flops, work.bytes);
            (seconds / LONGEST_LAUNCH).max(work.tiles / grid)
        };
        let limits = |spans| Limits {
            spans,
            tile: [kernel.tile_m as usize, kernel.tile_n as usize, K_UNIT],
            max_k: kernel.max_k(),
            time: &time,
        };
        let spans = self.storages.spans();
        let sizes = self.nest.cut(&limits(spans));
        if !(self.splits_k(&sizes) && self.sums_apart()) {
            return sizes;
        }
        // The sums of a panel have to fit a binding too.
        let [a, b, c] = spans;
        let sums = self.storages.limit / self.dtype.accumulator().size() as u64;
        self.nest.cut(&limits([a, b, c.min(sums as usize)]))
    }

    fn k(&self) -> usize {
        self.nest.axes[self.nest.axes.len() - 1].size
    }

    fn splits_k(&self, sizes: &[usize]) -> bool {
        let (_, [_, _, k]) = sides(sizes);
        k < self.k()
    }

    /// Sums of parts of k need a place of their own: C's elements are too coarse.
    fn sums_apart(&self) -> bool {
        self.dtype.accumulator() != self.dtype
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
        let windows = self.storages.windows(&self.nest, panel);
        let offset = |operand: usize| {
            let start =
                windows.of[operand].map_or(0, |window| window.offset / self.storages.element);
            self.nest.first(panel, operand) - start as usize
        };
        let [a, b, c]: [Matrix; OPERANDS] =
            std::array::from_fn(|operand| self.matrix(operand, sizes, offset(operand)));
        let along_k = [&a, &b].map(Matrix::runs_along_inner);
        // A panel at an edge may not have what the others have.
        let whole = [&a, &b].map(Matrix::width) == [WIDE; 2] && k.is_multiple_of(WIDE as usize);
        let kernel = match kernel.kind {
            Kernel::Wide if !whole => &MatmulKernel::NARROW,
            _ => kernel,
        };
        let loads = kernel_loads(kernel, along_k);
        let fits = |width: u32, matrix: &Matrix| if matrix.width() >= width { width } else { 1 };
        let mut vector_a = fits(loads[0], &a);
        let mut vector_b = fits(loads[1], &b);
        if windows.shared && vector_a != vector_b {
            // One buffer is declared once: vectors for both, or for none.
            (vector_a, vector_b) = (1, 1);
        }
        let vector_c = stores_vectors(kernel) && c.runs_along_inner() && c.width() >= 4;
        let form = Form {
            batch_rank: batch.len() as u32,
            a_along_k: along_k[0],
            b_along_k: along_k[1],
            vector_a,
            vector_b,
            vector_c: if vector_c { 4 } else { 1 },
            accumulates,
            shared: windows.shared,
            swapped: self.swapped,
        };

        let tiles_m = m.div_ceil(kernel.tile_m as usize);
        let tiles_n = n.div_ceil(kernel.tile_n as usize);
        let work = self.work(sizes, kernel);
        let tiles = work.tiles as u64;
        let groups = fold_grid(tiles, capabilities.max_workgroups).ok_or_else(|| {
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
        for matrix in [&a, &b, &c] {
            words.extend(matrix.batch.iter().map(|&stride| stride as u32));
        }

        // Inputs in their own order; C; its sums.
        let inputs = if self.swapped { [B, A] } else { [A, B] };
        let mut operands: SmallVec<[Bound; 4]> = SmallVec::new();
        for (input, &operand) in inputs.iter().enumerate() {
            if input == 0 || !windows.shared {
                operands.push(Bound {
                    operand: input,
                    window: windows.of[operand],
                });
            }
        }
        operands.push(Bound {
            operand: 2,
            window: windows.of[C],
        });
        if accumulates && self.sums_apart() {
            let [low, high] = self.nest.reach(panel, C).map(|at| at as u64);
            let bytes = (high - low) * self.dtype.accumulator().size() as u64;
            operands.push(Bound {
                operand: SCRATCH,
                window: Some(Window::around(0..bytes)),
            });
        }
        Ok(Launch {
            kernel: key(kernel, self.dtype, form),
            operands,
            dispatches: smallvec![Dispatch { words, groups }],
            flops: work.flops,
            bytes: work.bytes,
        })
    }
}

/// Tiles of one launch: their numbers fit 32 bits, idle ones in the last row of a grid included.
const MAX_TILES: f64 = (1u32 << 31) as f64;
/// The operand after the inputs and the output.
const SCRATCH: usize = 3;

struct Work {
    flops: f64,
    bytes: f64,
    tiles: f64,
}

/// The sizes of batches, and m, n, k.
fn sides(sizes: &[usize]) -> (&[usize], [usize; 3]) {
    let (batch, sides) = sizes.split_at(sizes.len() - 3);
    (batch, [sides[0], sides[1], sides[2]])
}

/// One operand as a kernel sees it: strides in elements.
struct Matrix {
    offset: usize,
    /// Along m, or n of B.
    outer: isize,
    outer_size: usize,
    /// Along k, or n of C.
    inner: isize,
    inner_size: usize,
    batch: SmallVec<[isize; 6]>,
}

impl Matrix {
    /// Neighbours in memory lie along the inner axis.
    fn runs_along_inner(&self) -> bool {
        self.inner == 1 || self.outer != 1
    }

    /// How many neighbours along that axis can be taken as one vector: 8, 4 or 1.
    fn width(&self) -> u32 {
        let (unit, size, other, other_size) = if self.runs_along_inner() {
            (self.inner, self.inner_size, self.outer, self.outer_size)
        } else {
            (self.outer, self.outer_size, self.inner, self.inner_size)
        };
        let holds = |width: usize| {
            let whole = |stride: isize| stride >= 0 && stride % width as isize == 0;
            unit == 1
                && size.is_multiple_of(width)
                && (whole(other) || other_size == 1)
                && self.offset.is_multiple_of(width)
                && self.batch.iter().copied().all(whole)
        };
        [8, 4].into_iter().find(|&width| holds(width)).unwrap_or(1) as u32
    }
}

/// The launches of a product, by the plan that `choose` makes: one for each panel.
pub(super) fn launches(
    problem: &Problem<'_>,
    capabilities: &Capabilities,
    choose: impl Fn(&MatmulProblem) -> Result<MatmulPlan>,
) -> Result<Launches> {
    let product = Product::of(problem, capabilities)?;
    let nest = &product.nest;
    let whole: Sizes = nest.axes.iter().map(|axis| axis.size).collect();
    let mut kernel = choose(&product.problem(&whole))?.kernel;
    let mut sizes = product.cut(&kernel, capabilities);
    // Small panels have plans of their own, and so have parts of k, which the first of these may cut.
    for _ in 0..2 {
        if sizes == whole {
            break;
        }
        let mut problem = product.problem(&sizes);
        // One column of several is no vector: its neighbours in C lie a row apart.
        problem.n = problem.n.max(sides(&whole).1[1].min(2));
        kernel = choose(&problem)?.kernel;
        sizes = product.cut(&kernel, capabilities);
    }
    let count = nest.count(&sizes).unwrap_or(usize::MAX);
    if count > MAX_LAUNCHES {
        return Err(Error::invalid(
            OP,
            format!(
                "sizes {whole:?} (batches, m, n, k) take {count} launches of at most {sizes:?}, above {MAX_LAUNCHES}: multiply parts, or copies whose rows lie close together"
            ),
        ));
    }
    let accumulates = product.splits_k(&sizes);
    nest.panels(&sizes)
        .map(|panel| product.launch(&panel, &kernel, accumulates, capabilities))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{plan_matmul, tests::adapters};
    use super::*;
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
            slots: smallvec![0, 1],
        };
        launches(&problem, capabilities, |problem| {
            Ok(plan_matmul(capabilities, problem))
        })
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
                for (dtype, turned) in [DType::F32, DType::F16].into_iter().flat_map(|dtype| {
                    [[false, false], [true, false], [false, true]].map(|turned| (dtype, turned))
                }) {
                    let story = || format!("{sizes:?} {turned:?} {dtype} {capabilities:?}");
                    let launches = planned(&capabilities, sizes, turned, dtype).unwrap();
                    let flops: f64 = launches.iter().map(|launch| launch.flops).sum();
                    let all = sizes.iter().map(|&size| size as f64).product::<f64>() * 2.0;
                    assert!((flops / all - 1.0).abs() < 1e-9, "{}", story());
                    for launch in &launches {
                        let words = &launch.dispatches[0].words;
                        let tiles = words[14];
                        let seconds = capabilities.seconds(launch.flops, launch.bytes);
                        assert!(tiles == 1 || seconds <= LONGEST_LAUNCH, "{}", story());
                        let sums = launch
                            .operands
                            .iter()
                            .filter(|bound| bound.operand == SCRATCH);
                        let in_parts = words[3] != 0;
                        assert_eq!(
                            sums.count() == 1,
                            in_parts && dtype == DType::F16,
                            "{}",
                            story()
                        );
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
                assert_eq!(launches.len(), 1);
                assert!(
                    launches[0]
                        .operands
                        .iter()
                        .all(|bound| bound.window.is_none())
                );
            }
        }
    }
}
