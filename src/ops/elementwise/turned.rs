//! Elementwise kernels of inputs that lie turned, a transposed matrix: their neighbours in memory are not the
//! output's. Squares of both axes are read along the one and written along the other.

use smallvec::{SmallVec, smallvec};

use super::launch::{Body, Cost, bound};
use crate::capabilities::Capabilities;
use crate::error::Result;
use crate::launch::{Bound, KernelKey, Launch, Words};
use crate::layout::Strides;
use crate::ops::plan;
use crate::road::Operand;
use crate::shape::Dims;

/// Below it along either axis squares do not pay.
const LEAST: usize = 8;
/// A hardware workgroup's square, that of 16-bit elements, and the bytes of workgroup memory that every adapter has.
const TILE: usize = 32;
const WORDS_TILE: usize = 64;
const TILE_BYTES: usize = 16 << 10;
/// Operations that a kernel may have for each element of a square, one after another.
const LIGHT: f64 = 6.0;
/// Invocations of a workgroup that turns squares in registers.
const WORKGROUP: u64 = 64;

/// How an operand lies in a square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Its neighbours are the output's.
    Straight,
    /// Its neighbours follow each other along the turned axis.
    Turned,
    /// One value for all.
    One,
    /// In another way.
    Apart,
}

impl Way {
    fn of(strides: &[isize], inner: usize, turned: usize) -> Self {
        match (strides[inner], strides[turned]) {
            (0, 0) => Way::One,
            (1, _) => Way::Straight,
            (_, 1) => Way::Turned,
            _ => Way::Apart,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Way::Turned => "turned",
            Way::One => "one",
            Way::Straight | Way::Apart => "straight",
        }
    }
}

/// What of a launch its kernel depends on.
#[derive(Clone, Debug)]
pub(super) struct Squares {
    pub side: u32,
    pub unit: u32,
    pub squares: u32,
    pub tile: bool,
    /// Of each operand, the output last.
    pub ways: SmallVec<[Way; 4]>,
    /// With the inner and the turned axis.
    pub rank: u32,
}

/// A launch of squares.
pub(super) struct Turned {
    shape: Squares,
    /// But the numbers of the expression.
    words: Words,
    /// Invocations, or tiles.
    count: u64,
}

impl Turned {
    /// The squares of operands, the output last, on merged dimensions whose indices fit 32 bits; `None` where none
    /// of the inputs lies turned, or one lies in another way.
    pub(super) fn of(
        body: &Body<'_>,
        operands: &[Operand<'_>],
        (dims, strides, offsets): (&[usize], &[Strides], &[usize]),
        capabilities: &Capabilities,
    ) -> Option<Self> {
        let inner = dims.len().checked_sub(1)?;
        let (output, inputs) = strides.split_last()?;
        let is_apart = |strides: &&Strides| !matches!(strides[inner], 0 | 1);
        let first = inputs.iter().find(is_apart)?;
        let turned = first[..inner].iter().position(|&stride| stride == 1)?;
        let ways: SmallVec<[Way; 4]> = strides
            .iter()
            .map(|strides| Way::of(strides, inner, turned))
            .collect();
        let mut turns = inputs
            .iter()
            .zip(&ways)
            .filter(|(strides, _)| is_apart(strides));
        if output[inner] != 1 || !turns.all(|(_, &way)| way == Way::Turned) {
            return None;
        }
        let square = Square {
            body,
            operands,
            strides,
            offsets,
            ways: &ways,
            sizes: [dims[inner], dims[turned]],
            axes: [inner, turned],
        };
        let (side, unit, tile) = square.form(capabilities)?;
        // An output of 16-bit elements, or of words of 64 bits, has whole lines of both squares.
        let squares = if side == 8 && !body.reads_old { 2 } else { 1 };
        let outer: Dims = (0..inner).filter(|&axis| axis != turned).collect();
        let steps = [
            dims[inner].div_ceil(side * squares),
            dims[turned].div_ceil(side),
        ];
        let mut sizes: Dims = outer.iter().map(|&axis| dims[axis]).collect();
        sizes.extend(steps);
        let count: usize = sizes.iter().product();
        let mut words: Words = smallvec![
            count as u32,
            (dims[inner] / unit - 1) as u32,
            (dims[turned] / unit - 1) as u32
        ];
        // One value for all counts in elements.
        let units: SmallVec<[usize; 4]> = ways
            .iter()
            .map(|&way| if way == Way::One { 1 } else { unit })
            .collect();
        words.extend(
            offsets
                .iter()
                .zip(&units)
                .map(|(&offset, &unit)| (offset / unit) as u32),
        );
        words.extend(sizes[1..].iter().map(|&size| size as u32));
        for (strides, (&unit, &way)) in strides.iter().zip(units.iter().zip(&ways)) {
            let along = |axis: usize, is_one: bool| match unit > 1 && is_one {
                true => 1,
                false => (strides[axis] / unit as isize) as u32,
            };
            words.extend(outer.iter().map(|&axis| along(axis, false)));
            words.push(along(inner, way == Way::Straight));
            words.push(along(turned, way == Way::Turned));
        }
        Some(Self {
            shape: Squares {
                side: side as u32,
                unit: unit as u32,
                squares: squares as u32,
                tile,
                ways,
                rank: sizes.len() as u32,
            },
            words,
            count: count as u64,
        })
    }

    /// The launch on operands in bindings by their slots.
    pub(super) fn launch(
        self,
        body: &Body<'_>,
        operands: &[Operand<'_>],
        capabilities: &Capabilities,
        (slots, bindings): (&[usize], SmallVec<[Bound; 4]>),
        (flops, bytes): (f64, f64),
    ) -> Result<Launch> {
        let mut words = self.words;
        words.extend_from_slice(body.scalars);
        let per_workgroup = if self.shape.tile { 1 } else { WORKGROUP };
        let limit = capabilities.max_workgroups;
        Ok(Launch {
            kernel: self
                .shape
                .kernel(body, &body.storages(operands), slots, words.len()),
            operands: bindings,
            texels: SmallVec::new(),
            dispatches: smallvec![plan::dispatch(
                body.op,
                words,
                self.count,
                per_workgroup,
                limit
            )?],
            flops,
            bytes,
        })
    }
}

impl Squares {
    /// How many words its `Params` have, but for numbers.
    pub(super) fn words(&self) -> usize {
        let (operands, rank) = (self.ways.len(), self.rank as usize);
        3 + operands + (rank - 1) + operands * rank
    }

    /// The kernel of a body on operands as they are stored, the output last.
    pub(super) fn kernel(
        &self,
        body: &Body<'_>,
        storages: &[&'static str],
        slots: &[usize],
        words: usize,
    ) -> KernelKey {
        let (operands, buffers, bindings) = bound(storages, slots, |at| self.ways[at].name());
        KernelKey {
            template: "turned",
            values: [
                ("body", std::sync::Arc::clone(&body.code).into()),
                ("operands", operands.into()),
                ("buffers", buffers.into()),
                ("reads_old", u32::from(body.reads_old).into()),
                ("scalars", (body.scalars.len() as u32).into()),
                ("vector", if self.unit > 2 { 4 } else { 1 }.into()),
                ("rank", self.rank.into()),
                ("side", self.side.into()),
                ("unit", self.unit.into()),
                ("squares", self.squares.into()),
                ("tile", u32::from(self.tile).into()),
            ]
            .into_iter()
            .collect(),
            bindings,
            words: words as u32,
        }
    }
}

/// Two axes of a launch.
struct Square<'a> {
    body: &'a Body<'a>,
    operands: &'a [Operand<'a>],
    strides: &'a [Strides],
    offsets: &'a [usize],
    ways: &'a [Way],
    /// The inner one, then the turned one.
    sizes: [usize; 2],
    axes: [usize; 2],
}

impl Square<'_> {
    /// The side, neighbours of a load, and whether the square is in workgroup memory.
    fn form(&self, capabilities: &Capabilities) -> Option<(usize, usize, bool)> {
        let output = self.operands.last()?.dtype.size();
        let least = self.sizes[0].min(self.sizes[1]);
        if !plan::is_software(capabilities) {
            let are_halves = self
                .operands
                .iter()
                .all(|operand| operand.dtype.size() == 2);
            let turned = self.ways.iter().filter(|&&way| way == Way::Turned).count();
            let fits = 4 * turned * WORDS_TILE * (WORDS_TILE / 2 + 1) <= TILE_BYTES;
            if are_halves && fits && least >= WORDS_TILE / 2 && self.is_whole(2) {
                return Some((WORDS_TILE, 2, true));
            }
            let turned = self.ways.iter().zip(self.operands);
            let turned = turned.filter(|(way, _)| **way == Way::Turned);
            let bytes: usize = turned.map(|(_, operand)| operand.dtype.size().max(4)).sum();
            let fits = bytes * TILE * (TILE + 1) <= TILE_BYTES;
            return (fits && least >= TILE / 2 && self.has_words(output))
                .then_some((TILE, 1, true));
        }
        if least < LEAST {
            return None;
        }
        let has_eights = self.body.cost == Cost::Plain
            && self.body.flops <= LIGHT
            && self
                .operands
                .iter()
                .all(|operand| match operand.dtype.size() {
                    2 => true,
                    4 => capabilities.int64,
                    _ => false,
                });
        let has_fours = self.body.vectors(self.operands);
        let sides = [(8, has_eights), (4, has_fours)];
        for (side, _) in sides.into_iter().filter(|&(_, has)| has) {
            if self.is_whole(side) {
                return Some((side, side, false));
            }
        }
        (output >= 4).then_some((4, 1, false))
    }

    /// Whether everything counts in vectors of `side`.
    fn is_whole(&self, side: usize) -> bool {
        let [inner, turned] = self.axes;
        let operands = self.strides.iter().zip(self.offsets).zip(self.ways);
        self.sizes.iter().all(|size| size.is_multiple_of(side))
            && operands.into_iter().all(|((strides, &offset), &way)| {
                let along = match way {
                    Way::One => return true,
                    Way::Apart => return false,
                    Way::Straight => inner,
                    Way::Turned => turned,
                };
                let mut others = strides
                    .iter()
                    .enumerate()
                    .filter(|&(axis, _)| axis != along);
                offset.is_multiple_of(side) && others.all(|(_, stride)| stride % side as isize == 0)
            })
    }

    /// Whether rows of the output begin and end with whole words.
    fn has_words(&self, element_bytes: usize) -> bool {
        let lanes = 4usize.div_ceil(element_bytes);
        let [inner, _] = self.axes;
        let (Some(strides), Some(offset)) = (self.strides.last(), self.offsets.last()) else {
            return false;
        };
        let mut others = strides
            .iter()
            .enumerate()
            .filter(|&(axis, _)| axis != inner);
        self.sizes[0].is_multiple_of(lanes)
            && offset.is_multiple_of(lanes)
            && others.all(|(_, stride)| stride % lanes as isize == 0)
    }
}
