//! The kernels of elementwise expressions: one launch that binds everything whole, or one for each
//! piece.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::turned::Turned;
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{Bound, KernelKey, Launch, Launches, Words};
use crate::layout::{Layout, Merged, Strides};
use crate::ops::plan::{self, PER_THREAD, WORKGROUP, Walk};
use crate::road::window::{self, Limits, Walked};
use crate::road::{Operand, Problem};

/// What a kernel is generated from, beside the operands' layouts.
pub(in crate::ops) struct Body<'a> {
    pub op: &'static str,
    /// The function `apply`.
    pub code: Arc<str>,
    /// Elements are moved bit by bit, whatever their dtype.
    pub bits: bool,
    pub cost: Cost,
    /// What the output held is an argument too, after the inputs.
    pub reads_old: bool,
    /// The numbers of the expression.
    pub scalars: &'a [u32],
    /// Operations an element, for estimates.
    pub flops: f64,
}

/// What the functions of a body take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Cost {
    /// Each takes a few instructions.
    Plain,
    /// Some take more.
    Mixed,
    /// More than [`MANY_LONG`] take dozens: drivers compile it for long, and loads in flight do not count beside what is
    /// computed.
    Long,
}

/// Functions of dozens of instructions, above which a kernel has as few copies of the body as it can: drivers replace each
/// call by what it calls. With 16 copies, as shorter bodies have, Mesa's llvmpipe takes 22 seconds for 16 sines.
pub(super) const MANY_LONG: usize = 4;

impl Body<'_> {
    /// Whether a kernel has as few copies of it as it can, on software adapters: none for the elements of a square.
    fn is_long_in_software(&self, capabilities: &Capabilities) -> bool {
        self.cost == Cost::Long && plan::is_software(capabilities)
    }

    /// Whether kernels take one element at a time: of a long body Mesa's compiler makes a copy for each of a vector's.
    /// SwiftShader, which has subgroups and no words of 64 bits, does not, and is twice as slow by single elements.
    fn is_one_by_one(&self, capabilities: &Capabilities) -> bool {
        let is_swiftshader = capabilities.subgroup_sizes.is_some() && !capabilities.int64;
        self.is_long_in_software(capabilities) && !is_swiftshader
    }

    pub(in crate::ops) fn launches(
        &self,
        problem: &Problem<'_>,
        capabilities: &Capabilities,
    ) -> Result<Launches> {
        let output = problem.output;
        let operands: SmallVec<[Operand<'_>; 4]> =
            problem.inputs.iter().copied().chain([output]).collect();
        let layouts: SmallVec<[&Layout; 4]> = operands.iter().map(|o| o.layout).collect();
        // The output joins the merging, so that a new tensor's index is the plain count.
        let Merged { dims, strides } = plan::merged(&layouts);
        let count = output.layout.elements() as f64;
        let each = operands.iter().map(|o| o.dtype.size()).sum::<usize>() as f64;
        let (flops, bytes) = (count * self.flops, count * each);
        if problem.fresh && plan::is_one_launch(problem, capabilities, flops, bytes) {
            let offsets: SmallVec<[usize; 4]> = layouts.iter().map(|l| l.offset()).collect();
            let mut slots = problem.slots.clone();
            slots.push(problem.output_slot());
            let bound = (&slots[..], problem.bindings());
            let work = (flops, bytes);
            let axes = (&dims[..], &strides[..], &offsets[..]);
            let launch = self.launch(&operands, axes, true, capabilities, bound, work)?;
            return Ok(smallvec![launch]);
        }
        let walked: SmallVec<[Walked<'_>; 4]> = operands
            .iter()
            .zip(problem.slots.iter().copied().chain([problem.output_slot()]))
            .zip(&strides)
            .map(|((operand, storage), strides)| Walked {
                storage,
                element_bytes: operand.dtype.size(),
                offset: operand.layout.offset(),
                strides,
            })
            .collect();
        let limits = Limits::new(capabilities, self.flops, each);
        window::pieces(&dims, &walked, limits)
            .into_iter()
            .map(|piece| {
                let (dims, strides) = piece.without_single(&walked);
                let count = piece.elements() as f64;
                let work = (count * self.flops, count * each);
                let offsets = &piece.offsets[..];
                let bound = (&piece.slots[..], piece.bindings);
                let axes = (&dims[..], &strides[..], offsets);
                self.launch(&operands, axes, false, capabilities, bound, work)
            })
            .collect()
    }

    /// How many neighbours can be loaded as one vector, the best first. Software adapters load word by word, however
    /// wide those are; in functions that take longer that does not count.
    fn widths(&self, operands: &[Operand<'_>], capabilities: &Capabilities) -> &'static [usize] {
        let has_eights = plan::is_software(capabilities)
            && self.cost == Cost::Plain
            && operands.iter().all(|operand| match operand.dtype.size() {
                1 | 2 => true,
                4 => capabilities.int64,
                _ => false,
            });
        let has_fours = self.vectors(operands) && !self.is_one_by_one(capabilities);
        match (has_eights, has_fours) {
            (true, _) => &[8, 4],
            (false, true) => &[4],
            (false, false) => &[],
        }
    }

    /// Pairs of words have no vectors of four.
    pub(super) fn vectors(&self, operands: &[Operand<'_>]) -> bool {
        !self.bits || operands.iter().all(|operand| operand.dtype.size() <= 4)
    }

    /// What the template calls the operands.
    pub(super) fn storages(&self, operands: &[Operand<'_>]) -> SmallVec<[&'static str; 4]> {
        let dtypes = operands.iter().map(|operand| operand.dtype);
        dtypes.map(|dtype| storage(dtype, self.bits)).collect()
    }

    /// One launch, on operands in bindings by their slots, over dimensions, strides and offsets: in squares where
    /// inputs lie turned, else a walk. It writes a new output by the count, another one through strides.
    fn launch(
        &self,
        operands: &[Operand<'_>],
        (dims, strides, offsets): (&[usize], &[Strides], &[usize]),
        is_new: bool,
        capabilities: &Capabilities,
        bound: (&[usize], SmallVec<[Bound; 4]>),
        work: (f64, f64),
    ) -> Result<Launch> {
        let axes = (dims, strides, offsets);
        let may_turn = !self.is_long_in_software(capabilities);
        let turned = may_turn.then(|| Turned::of(self, operands, axes, capabilities));
        if let Some(turned) = turned.flatten() {
            return turned.launch(self, operands, capabilities, bound, work);
        }
        let (slots, bindings) = bound;
        let (flops, bytes) = work;
        let walked = operands.len() - usize::from(is_new);
        let walk = Walk::new(
            dims,
            &strides[..walked],
            &offsets[..walked],
            self.widths(operands, capabilities),
            is_new,
        );
        let mut words: Words = smallvec![walk.count];
        words.extend_from_slice(&walk.offsets);
        words.extend_from_slice(&walk.dims);
        words.extend_from_slice(self.scalars);
        let storages = self.storages(operands);
        let shape = KernelShape {
            vector: walk.vector,
            rank: walk.rank,
            inner: &walk.inner,
            slots,
            strided_out: !is_new,
            reads_old: self.reads_old,
            cost: self.cost,
        };
        let kernel = kernel(&self.code, &storages, &shape, self.scalars.len());
        let steps = u64::from(walk.count);
        let per_workgroup = WORKGROUP * u64::from(shape.per_thread());
        let limit = capabilities.max_workgroups;
        Ok(Launch {
            kernel,
            operands: bindings,
            texels: SmallVec::new(),
            dispatches: smallvec![plan::dispatch(self.op, words, steps, per_workgroup, limit)?],
            flops,
            bytes,
        })
    }
}

/// What of a launch its kernel depends on, beside code and dtypes.
pub(super) struct KernelShape<'a> {
    pub vector: u32,
    pub rank: u32,
    /// With a vector, of each walked operand: its inner stride is 1, or 0.
    pub inner: &'a [u32],
    /// The binding of each operand, the output last.
    pub slots: &'a [usize],
    pub strided_out: bool,
    pub reads_old: bool,
    pub cost: Cost,
}

impl KernelShape<'_> {
    /// Steps per invocation, each a copy of the body: of as many elements in fours as in eights.
    fn per_thread(&self) -> u32 {
        match (self.cost, self.vector) {
            (Cost::Long, _) => 1,
            (_, 8) => PER_THREAD / 2,
            _ => PER_THREAD,
        }
    }
}

/// How the template calls elements of a dtype, or their bits alone.
pub(super) fn storage(dtype: DType, bits: bool) -> &'static str {
    match (bits, dtype.size()) {
        (false, _) => dtype.name(),
        (true, 1) => "bits8",
        (true, 2) => "bits16",
        (true, 4) => "u32",
        (true, _) => "vec2<u32>",
    }
}

/// Operands in text, each with its dtype, its binding and how it is read; the dtype of each binding; how many
/// of those there are. Every launch makes them: without `format!`, which takes several times as long.
pub(super) fn bound(
    storages: &[&'static str],
    slots: &[usize],
    way: impl Fn(usize) -> &'static str,
) -> (Arc<str>, Arc<str>, u32) {
    let mut operands = String::with_capacity(storages.len() * "vec2<u32>/00/straight ".len());
    let mut buffers = String::with_capacity(storages.len() * "vec2<u32> ".len());
    let mut bound = 0;
    for (at, (name, &slot)) in storages.iter().zip(slots).enumerate() {
        let space = if at == 0 { "" } else { " " };
        operands.extend([space, name, "/"]);
        match char::from_digit(slot as u32, 10) {
            Some(digit) => operands.push(digit),
            None => operands.push_str(&slot.to_string()),
        }
        operands.extend(["/", way(at)]);
        if slot == bound {
            buffers.extend([space, name]);
            bound += 1;
        }
    }
    (operands.into(), buffers.into(), bound as u32)
}

/// The kernel of a body on operands as they are stored, the output last.
pub(super) fn kernel(
    code: &Arc<str>,
    storages: &[&'static str],
    shape: &KernelShape<'_>,
    scalars: usize,
) -> KernelKey {
    // New outputs are written at the step's number.
    let inner = |at: usize| shape.inner.get(at).copied();
    let inner = |at: usize| match inner(at).unwrap_or(u32::from(shape.vector > 1)) {
        0 => "0",
        _ => "1",
    };
    let (operands, buffers, bound) = bound(storages, shape.slots, inner);
    let walked = (storages.len() - usize::from(!shape.strided_out)) as u32;
    let words = 1 + walked + (shape.rank - 1) + walked * shape.rank;
    KernelKey {
        template: "elementwise",
        values: [
            ("body", Arc::clone(code).into()),
            ("operands", operands.into()),
            ("buffers", buffers.into()),
            ("reads_old", u32::from(shape.reads_old).into()),
            ("scalars", (scalars as u32).into()),
            ("vector", shape.vector.into()),
            ("rank", shape.rank.into()),
            ("strided_out", u32::from(shape.strided_out).into()),
            ("per_thread", shape.per_thread().into()),
        ]
        .into_iter()
        .collect(),
        bindings: bound,
        words: words + scalars as u32,
    }
}
