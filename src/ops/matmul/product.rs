//! A product as its kernel sees it: what lies where, and what a plan has to know of it.

use smallvec::{SmallVec, smallvec};

use super::kernel::{UNBOUND, element_name};
use super::pack;
use super::panel::{Axis, Nest, OPERANDS, Storages, Windows};
use super::plan::{MatmulOperand, MatmulProblem};
use super::rule::Finish;
use super::texels;
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Launches, Window};
use crate::layout::{Layout, merge};
use crate::matmul_kernel::{MatmulKernel, WIDE};
use crate::road::Problem;

const OP: &str = "matmul";
/// Operands of a nest.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
pub(super) const C: usize = 2;
pub(super) const BIAS: usize = 3;
pub(super) const RESIDUAL: usize = 4;

/// The operand after the output, which comes after the inputs.
pub(super) const SCRATCH: usize = 1;

/// A product as its kernel sees it. For one row times a matrix the operands' places are swapped:
/// the transposed matrix times a column.
#[derive(Clone)]
pub(super) struct Product {
    pub nest: Nest,
    pub storages: Storages,
    pub dtype: DType,
    pub finish: Finish,
    /// What each input of the op is, in its order.
    pub inputs: SmallVec<[usize; 4]>,
    /// Where the copies of A and B are, of those that are copied first.
    pub copies: [Option<Window>; 2],
    /// Copies may be made.
    pub spare: bool,
    /// What kernels call the elements of A and B, and those of C.
    pub element: &'static str,
    pub result: &'static str,
    /// Where C is, if it is scratch: sums that another kernel finishes.
    pub sums: Option<Window>,
}

impl Product {
    pub(super) fn of(
        finish: Finish,
        problem: &Problem<'_>,
        capabilities: &Capabilities,
    ) -> Result<Self> {
        let ([a, b, ..], output) = (&problem.inputs[..], problem.output) else {
            return Err(Error::invalid(OP, "takes two operands"));
        };
        let mut inputs: SmallVec<[usize; 4]> = smallvec![A, B];
        inputs.extend(finish.bias.then_some(BIAS));
        inputs.extend(finish.residual.then_some(RESIDUAL));
        if inputs.len() != problem.inputs.len() {
            return Err(Error::invalid(OP, "an operand of the epilogue is missing"));
        }
        let rank = output.layout.rank();
        let dims = output.layout.shape().dims();
        let (m, n) = (dims[rank - 2], dims[rank - 1]);
        let k = a.layout.shape()[rank - 1];

        // Batches merge where all operands walk them evenly; C does everywhere.
        let batches: SmallVec<[Layout; 4]> = problem
            .inputs
            .iter()
            .map(|input| input.layout.leading(rank - 2))
            .collect();
        let merged = merge(&batches.iter().collect::<SmallVec<[&Layout; 4]>>());
        let mut step = (m * n) as isize;
        let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
        for (axis, &size) in merged.dims.iter().enumerate().rev() {
            let mut strides = [0; OPERANDS];
            for (input, &operand) in inputs.iter().enumerate() {
                strides[operand] = merged.strides[input][axis];
            }
            strides[C] = step;
            axes.push(Axis { size, strides });
            step = step.saturating_mul(size as isize);
        }
        axes.reverse();
        let stride = |layout: &Layout, axis: usize| layout.strides()[axis];
        // What is added, along m or n.
        let along = |axis: usize, mut strides: [isize; OPERANDS]| {
            for (input, &operand) in problem.inputs.iter().zip(&inputs).skip(2) {
                strides[operand] = stride(input.layout, axis);
            }
            strides
        };
        let rows = Axis {
            size: m,
            strides: along(rank - 2, [stride(a.layout, rank - 2), 0, n as isize, 0, 0]),
        };
        let columns = Axis {
            size: n,
            strides: along(rank - 1, [0, stride(b.layout, rank - 1), 1, 0, 0]),
        };
        let steps = Axis {
            size: k,
            strides: [
                stride(a.layout, rank - 1),
                stride(b.layout, rank - 2),
                0,
                0,
                0,
            ],
        };
        axes.extend([rows, columns, steps]);
        let mut nest = Nest {
            axes,
            offsets: [0; OPERANDS],
        };
        let mut storages = Storages {
            bytes: [0; OPERANDS],
            // Those that are not there share nothing.
            of: std::array::from_fn(|operand| inputs.len() + operand),
            element: output.dtype.size() as u64,
            limit: capabilities.indexed_bytes(),
        };
        storages.bytes[C] = output.storage_bytes;
        for (at, (input, &operand)) in problem.inputs.iter().zip(&inputs).enumerate() {
            nest.offsets[operand] = input.layout.offset();
            storages.bytes[operand] = input.storage_bytes;
            storages.of[operand] = problem.slots[at];
        }
        if m == 1 && n != 1 {
            let rank = nest.axes.len();
            nest.axes.swap(rank - 3, rank - 2);
            nest.axes
                .iter_mut()
                .for_each(|axis| axis.strides.swap(A, B));
            nest.offsets.swap(A, B);
            storages.bytes.swap(A, B);
            storages.of.swap(A, B);
            inputs.swap(0, 1);
        }
        let element = element_name(output.dtype, capabilities);
        Ok(Self {
            nest,
            storages,
            dtype: output.dtype,
            finish,
            inputs,
            copies: [None; 2],
            spare: problem.spare,
            element,
            result: element,
            sums: None,
        })
    }

    /// An operand as a kernel sees it in a panel.
    pub(super) fn matrix(&self, operand: usize, sizes: &[usize], offset: usize) -> Matrix {
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
            padded: self.copies.get(operand).is_some_and(Option::is_some),
        }
    }

    /// Copies operands into scratch first, in rows of whole multiples of `pitch` elements: then those
    /// are the operands. `None` when a copy does not
    /// fit; nothing has changed then.
    pub(super) fn pack(
        &mut self,
        which: [bool; 2],
        pitch: usize,
        capabilities: &Capabilities,
    ) -> Result<Option<Launches>> {
        let (mut nest, mut storages) = (self.nest.clone(), self.storages);
        let mut copies = [None; 2];
        let mut launches = Launches::new();
        let mut end = 0;
        for operand in [A, B].into_iter().filter(|&operand| which[operand]) {
            let input = self.inputs.iter().position(|&input| input == operand);
            let scratch = (self.inputs.len() + SCRATCH, end);
            let packed = pack::pack(
                &mut nest,
                &mut storages,
                (operand, input.unwrap_or(operand)),
                pitch,
                scratch,
                capabilities,
            )?;
            let Some((launch, place)) = packed else {
                return Ok(None);
            };
            end = place.end();
            copies[operand] = Some(place);
            launches.push(launch);
        }
        let rank = nest.axes.len();
        let k = &mut nest.axes[rank - 1].size;
        if which == [true; 2] {
            *k = k.next_multiple_of(WIDE as usize);
        }
        (self.nest, self.storages, self.copies) = (nest, storages, copies);
        Ok(Some(launches))
    }

    /// Bytes of scratch that copies and sums take.
    pub(super) fn scratch(&self) -> u64 {
        let ends = self.copies.iter().chain([&self.sums]).flatten();
        let ends = ends.map(Window::end);
        ends.max().unwrap_or(0)
    }

    /// What a plan has to know.
    pub(super) fn problem(&self, sizes: &[usize]) -> MatmulProblem {
        self.problem_of(sizes, |operand| self.nest.offsets[operand])
    }

    /// The same of a panel whose operands start elsewhere.
    pub(super) fn problem_of(
        &self,
        sizes: &[usize],
        first: impl Fn(usize) -> usize,
    ) -> MatmulProblem {
        let (batch, [m, n, k]) = sides(sizes);
        let [a, b] = [A, B].map(|operand| self.matrix(operand, sizes, first(operand)).operand());
        MatmulProblem {
            m,
            k,
            n,
            batches: batch.iter().product(),
            dtype: self.dtype,
            a,
            b,
            accumulates: self.splits_k(sizes),
            may_pack: self.may_pack(),
        }
    }

    /// The copies of both operands would fit a binding, and there are none.
    pub(super) fn may_pack(&self) -> bool {
        let fits = |operand: usize| {
            let mut bytes = 4.0;
            for axis in &self.nest.axes {
                if axis.strides[operand] != 0 {
                    bytes *= axis.size.next_multiple_of(WIDE as usize) as f64;
                }
            }
            bytes <= self.storages.limit as f64
                && self.storages.bytes[operand] <= self.storages.limit
        };
        self.spare && self.copies == [None; 2] && fits(A) && fits(B)
    }

    /// Operations, bytes and tiles of a part.
    pub(super) fn work(&self, sizes: &[usize], kernel: &MatmulKernel) -> Work {
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

    pub(super) fn k(&self) -> usize {
        self.nest.axes[self.nest.axes.len() - 1].size
    }

    pub(super) fn splits_k(&self, sizes: &[usize]) -> bool {
        let (_, [_, _, k]) = sides(sizes);
        k < self.k()
    }

    /// Sums of parts of k need a place of their own: C's elements are too coarse.
    pub(super) fn sums_apart(&self) -> bool {
        self.dtype.accumulator().name() != self.result
    }

    /// The inputs that a launch binds: sums that another kernel finishes have no others added.
    pub(super) fn bound(&self) -> &[usize] {
        match self.finish == Finish::NONE {
            true => &self.inputs[..2],
            false => &self.inputs,
        }
    }

    /// Bias and residual, of those that there are.
    pub(super) fn added(&self) -> &[usize] {
        &self.inputs[2..]
    }

    /// The binding of each operand: inputs in their own order, those that are joined once; then C.
    /// A and B have none in kernels that read texels.
    pub(super) fn slots(&self, windows: &Windows, texels: bool) -> [u32; OPERANDS] {
        let mut slots = [0; OPERANDS];
        let mut next = 0;
        for (at, &operand) in self.bound().iter().enumerate() {
            if texels && (operand == A || operand == B) {
                slots[operand] = UNBOUND;
                continue;
            }
            let joined = |&&other: &&usize| {
                slots[other] != UNBOUND && windows.joined[other] == windows.joined[operand]
            };
            slots[operand] = match self.inputs[..at].iter().find(joined) {
                Some(&earlier) => slots[earlier],
                None => {
                    next += 1;
                    next - 1
                }
            };
        }
        slots[C] = next;
        slots
    }
}

pub(super) struct Work {
    pub flops: f64,
    pub bytes: f64,
    pub tiles: f64,
}

/// The sizes of batches, and m, n, k.
pub(super) fn sides(sizes: &[usize]) -> (&[usize], [usize; 3]) {
    let (batch, sides) = sizes.split_at(sizes.len() - 3);
    (batch, [sides[0], sides[1], sides[2]])
}

/// One operand as a kernel sees it: strides in elements.
pub(super) struct Matrix {
    pub offset: usize,
    /// Along m, or n of B.
    pub outer: isize,
    pub outer_size: usize,
    /// Along k, or n of C.
    pub inner: isize,
    pub inner_size: usize,
    pub batch: SmallVec<[isize; 6]>,
    /// Rows go on past the edge, to whole vectors of eight.
    pub padded: bool,
}

impl Matrix {
    /// At the start of its storage, in one batch: sizes and strides of the outer and the inner axis.
    pub(super) fn of([outer_size, inner_size]: [usize; 2], [outer, inner]: [isize; 2]) -> Self {
        Self {
            offset: 0,
            outer,
            outer_size,
            inner,
            inner_size,
            batch: SmallVec::new(),
            padded: false,
        }
    }

    /// What a plan has to know of A or B.
    pub(super) fn operand(&self) -> MatmulOperand {
        MatmulOperand {
            along_k: self.runs_along_inner(),
            width: self.width(),
            texels: texels::can_be_copied(self),
        }
    }

    /// Neighbours in memory lie along the inner axis.
    pub(super) fn runs_along_inner(&self) -> bool {
        self.inner == 1 || self.outer != 1
    }

    /// How many neighbours along that axis can be taken as one vector: 8, 4 or 1.
    pub(super) fn width(&self) -> u32 {
        let (unit, size, other, other_size) = if self.runs_along_inner() {
            (self.inner, self.inner_size, self.outer, self.outer_size)
        } else {
            (self.outer, self.outer_size, self.inner, self.inner_size)
        };
        let holds = |width: usize| {
            let whole = |stride: isize| stride >= 0 && stride % width as isize == 0;
            unit == 1
                && (self.padded || size.is_multiple_of(width))
                && (whole(other) || other_size == 1)
                && self.offset.is_multiple_of(width)
                && self.batch.iter().copied().all(whole)
        };
        [8, 4].into_iter().find(|&width| holds(width)).unwrap_or(1) as u32
    }
}
