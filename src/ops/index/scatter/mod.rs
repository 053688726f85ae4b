//! What an index names in a tensor: added to, compared with, or written over.

mod cpu;
mod kernel;

use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};

use crate::capabilities::Capabilities;
use crate::dtype::{DType, by_size};
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::layout::{Layout, SliceRange};
use crate::ops::contiguous::Copy;
use crate::ops::ranges;
use crate::road::{HostInput, HostOutput, Op, Operand, Problem, check_walk, missing_dtype};
use crate::shape::Shape;

pub(super) use kernel::specialisations;

/// What becomes of an entry that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The source's element is added to it.
    Add,
    /// It is the source's element, bit for bit; of several the last.
    Set,
    /// It is the source's element where that is larger, or NaN; of NaN the first.
    Max,
    /// So where that is smaller.
    Min,
}

/// How an op changes what an index names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub op: &'static str,
    /// The op that changes its tensor itself.
    pub in_place: &'static str,
    /// The index has the source's dimensions; else only the axis.
    pub along: bool,
    pub change: Change,
}

impl Way {
    pub(super) const fn new(
        [op, in_place]: [&'static str; 2],
        along: bool,
        change: Change,
    ) -> Self {
        Self {
            op,
            in_place,
            along,
            change,
        }
    }
}

/// `out[.., index[..], ..] += source[..]`, or `=` or the larger or smaller one, in the order of the axis, where `out` is a copy of a tensor
/// or the tensor itself.
pub(super) struct Scatter {
    pub way: Way,
    pub axis: usize,
    /// What is written, where it exists: the inputs are an index and a source then, else a tensor before them.
    pub into: Option<(Layout, DType)>,
}

/// What is walked, in the shape of the source: the output at entry 0 of the axis, which goes on by
/// `stride`, the index, the source.
struct Seen {
    layouts: [Layout; 3],
    size: usize,
    stride: isize,
}

impl Scatter {
    /// The index and the source.
    fn given<'a, T>(&self, inputs: &'a [T]) -> Result<[&'a T; 2]> {
        match (&self.into, inputs) {
            (None, [_, index, source]) | (Some(_), [index, source]) => Ok([index, source]),
            _ => Err(self.misses()),
        }
    }

    /// What is changed, or copied before.
    fn target<'a>(&'a self, inputs: &[Operand<'a>]) -> Result<(&'a Layout, DType)> {
        match (&self.into, inputs) {
            (Some((layout, dtype)), _) => Ok((layout, *dtype)),
            (None, [target, ..]) => Ok((target.layout, target.dtype)),
            (None, []) => Err(self.misses()),
        }
    }

    fn misses(&self) -> Error {
        Error::invalid(self.way.op, "takes a tensor, an index and a source")
    }

    /// The part of the source that is taken.
    fn shape(&self, index: &Layout, source: &Layout) -> Shape {
        match self.way.along {
            true => index.shape().clone(),
            false => source.shape().clone(),
        }
    }

    /// A layout at entry 0 of the axis, without the axis.
    fn lines(&self, layout: &Layout) -> Result<Layout> {
        let mut first: SmallVec<[SliceRange; 6]> = smallvec![(..).into(); self.axis];
        first.push(0.into());
        layout.slice(&first)
    }

    /// About how many launches there are with bindings of at most `limit` bytes, for one of the output, the index and the
    /// source, whose elements have so many bytes: parts of the axis reach half a binding ([`kernel::Walk::launches`]), lines
    /// the other half.
    pub(super) fn launches(
        &self,
        [out, index, source]: [&Layout; 3],
        (which, element_bytes): (usize, usize),
        limit: u64,
    ) -> Result<u64> {
        if out.elements() == 0 || self.shape(index, source).elements() == 0 {
            return Ok(0);
        }
        let half = (limit / 2).max(1);
        let seen = &self.seen(out, index, source)?.layouts[which];
        let count = seen.shape()[self.axis];
        let step = seen.strides()[self.axis].unsigned_abs();
        let reach = count.saturating_mul(step).saturating_mul(element_bytes);
        let parts = (reach as u64).div_ceil(half).clamp(1, count as u64);
        let of_part = ranges::launches(&self.lines(seen)?, element_bytes, half);
        Ok(parts.saturating_mul(of_part.max(1)))
    }

    fn seen(&self, out: &Layout, index: &Layout, source: &Layout) -> Result<Seen> {
        let shape = self.shape(index, source);
        let whole = |size: &usize| SliceRange::from(0..*size);
        let all: SmallVec<[SliceRange; 6]> = shape.iter().map(whole).collect();
        let mut first = all.clone();
        first[self.axis] = (0..1).into();
        let mut index = index.clone();
        if !self.way.along {
            for _ in self.axis + 1..shape.rank() {
                index = index.unsqueeze(index.rank())?;
            }
        }
        Ok(Seen {
            layouts: [
                out.slice(&first)?.broadcast_to(&shape)?,
                index.broadcast_to(&shape)?,
                source.slice(&all)?,
            ],
            size: out.shape()[self.axis],
            stride: out.strides()[self.axis],
        })
    }
}

impl Op for Scatter {
    fn name(&self) -> &'static str {
        self.way.op
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [index, source] = self.given(inputs)?;
        let (target, dtype) = self.target(inputs)?;
        if source.dtype != dtype {
            return Err(Error::dtype_mismatch(self.way.op, dtype, source.dtype));
        }
        if dtype == DType::Bool && self.way.change != Change::Set {
            return Err(Error::invalid(
                self.way.op,
                "takes numbers, not bool: cast first",
            ));
        }
        if !matches!(index.dtype, DType::I32 | DType::U32) {
            return Err(Error::no_index(self.way.op, index.dtype));
        }
        let [sizes, named, given] = [target, index.layout, source.layout].map(Layout::shape);
        let mut others = (0..sizes.rank()).filter(|&axis| axis != self.axis);
        let (fits_target, fits_source) = match self.way.along {
            true => (
                named.rank() == sizes.rank() && others.all(|axis| named[axis] <= sizes[axis]),
                named.rank() == given.rank() && named.iter().zip(given.iter()).all(|(a, b)| a <= b),
            ),
            false => (
                given.rank() == sizes.rank() && others.all(|axis| given[axis] == sizes[axis]),
                given.get(self.axis..=self.axis) == Some(named.dims()),
            ),
        };
        if !fits_target || !fits_source {
            let [left, right] = match fits_target {
                true => [named, given],
                false if self.way.along => [sizes, named],
                false => [sizes, given],
            };
            let rule = match self.way.along {
                true => {
                    "all have one rank, the index at most the source's sizes and, but for the axis, \
                     the tensor's"
                }
                false => {
                    "but for the axis the source has the tensor's sizes, and the index is as long as \
                     its axis"
                }
            };
            return Err(Error::shape_mismatch(self.way.op, left, right, rule));
        }
        check_walk(self.way.op, if self.way.along { named } else { given })?;
        Ok((sizes.clone(), dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let lacking = match self.way.change {
            Change::Add => missing_dtype(capabilities, inputs, output),
            // Moving and comparing bits needs no dtype in kernels.
            Change::Set | Change::Max | Change::Min => None,
        };
        let (target, _) = self.target(inputs).ok()?;
        let inputs = inputs.iter().map(|input| input.layout);
        let layouts: SmallVec<[&Layout; 4]> = inputs.chain([target]).collect();
        lacking.or_else(|| ranges::missing(capabilities, output, &layouts, target.elements()))
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let [index, source] = self.given(&problem.inputs)?;
        let mut launches = Launches::new();
        if self.into.is_none() {
            let copy = Problem {
                inputs: problem.inputs.iter().take(1).copied().collect(),
                output: problem.output,
                fresh: problem.fresh,
                spare: problem.spare,
                slots: smallvec![0],
            };
            launches = Copy(self.way.op).plan(&copy, capabilities)?;
            for bound in launches.iter_mut().flat_map(|launch| &mut launch.operands) {
                // The output came after one input there.
                bound.operand *= problem.inputs.len();
            }
        }
        if self.shape(index.layout, source.layout).elements() == 0 {
            return Ok(launches);
        }
        let walk = kernel::Walk::new(self, problem, [index, source])?;
        launches.extend(walk.launches(capabilities)?);
        Ok(launches)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [index, source] = self.given(inputs)?;
        if self.into.is_none() {
            Copy(self.way.op).twin(&inputs[..1], output)?;
        }
        if self.shape(index.layout, source.layout).elements() == 0 {
            return Ok(());
        }
        let dense = Layout::contiguous(output.layout.shape().clone());
        let out = match output.layout.is_contiguous() {
            true => &dense,
            false => output.layout,
        };
        let seen = self.seen(out, index.layout, source.layout)?;
        let of = self.axis;
        match (self.way.change, output.dtype) {
            (Change::Set, dtype) => {
                by_size!(dtype, Bits => seen.twin::<Bits>(of, index, source, output, |_, b| b));
            }
            (change, DType::F32) => seen.combined::<f32>(change, of, index, source, output),
            (change, DType::F64) => seen.combined::<f64>(change, of, index, source, output),
            (change, DType::I32) => seen.combined::<i32>(change, of, index, source, output),
            (change, DType::U32) => seen.combined::<u32>(change, of, index, source, output),
            (change, DType::F16) => seen.extremes::<f16>(change, of, index, source, output),
            (change, DType::BF16) => seen.extremes::<bf16>(change, of, index, source, output),
            (_, DType::Bool) => {}
        }
        Ok(())
    }
}
