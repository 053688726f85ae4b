//! Elements along an axis in order, where they were, and the first of them.

mod cpu;
mod first;
mod kernel;
mod keys;
mod quantile;
mod search;
mod selection;
mod steps;

use std::borrow::Cow;

use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{KernelKey, Launches};
use crate::layout::Axis;
use crate::ops::contiguous::by_rows;
use crate::ops::ranges;
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::{Dims, Shape};
use crate::tensor::Tensor;

pub use search::SearchSide;

pub(super) fn specialisations() -> Vec<KernelKey> {
    let mut all = steps::specialisations();
    all.extend(search::specialisations());
    all
}

/// Which elements come first: [`Tensor::sort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortOrder {
    /// The smallest first, NaN last.
    Ascending,
    /// The largest first, and NaN before all.
    Descending,
}

impl Tensor {
    /// The elements along `axis` in order (PyTorch's and NumPy's `sort`), lines along it each by itself. The shape and the dtype
    /// are the tensor's; false is before true.
    ///
    /// NaN, of either sign, is larger than all numbers; -0 is before 0 where the smallest are first. The numbers are the same on
    /// every device, bit for bit but for those of NaN. In memory the axis is the innermost of the result. Where the elements were
    /// [`Tensor::argsort`] says; both at once are [`Tensor::top_k`] of all elements.
    ///
    /// ```
    /// use orlop::{Device, SortOrder, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[3.0f32, -1.0, f32::NAN, 2.0], [2, 2])?;
    /// let sorted = x.sort(1, SortOrder::Ascending)?.to_vec::<f32>()?;
    /// assert!(sorted[..3] == [-1.0, 3.0, 2.0] && sorted[3].is_nan());
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such axis, and for 2^32 elements along it or more; what any op can meet
    /// ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn sort(&self, axis: impl Into<Axis>, order: SortOrder) -> Result<Tensor> {
        let axis = axis.into().of("sort", self.shape())?;
        sorted("sort", self, axis, order)
    }

    /// Where the elements along `axis` are that come first, second and so on (PyTorch's and NumPy's `argsort`), as u32: with
    /// them [`Tensor::gather`] has any tensor of the shape in that order, and [`Tensor::index_select`] its rows. Equal elements
    /// stay in the order in which they are; -0 and 0 are equal here, and NaN and NaN. Otherwise in the order, and in memory, of
    /// [`Tensor::sort`]. By several keys: by the last one first, then the next one gathered, and so on. Ranks are
    /// `places.scatter(axis, &places, &counted)`, of numbers that count along the axis.
    ///
    /// ```
    /// use orlop::{Device, SortOrder, Tensor};
    ///
    /// let ages = Tensor::from_slice(&Device::cpu(), &[31u32, 25, 31, 4], [4])?;
    /// let oldest = ages.argsort(0, SortOrder::Descending)?;
    /// assert_eq!(oldest.to_vec::<u32>()?, [0, 2, 1, 3]);
    /// assert_eq!(ages.gather(0, &oldest)?.to_vec::<u32>()?, [31, 31, 25, 4]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::sort`].
    pub fn argsort(&self, axis: impl Into<Axis>, order: SortOrder) -> Result<Tensor> {
        first_places("argsort", self, axis.into(), None, order)
    }

    /// The first `count` elements along `axis` in order, and where they are, as u32 (PyTorch's `topk`, whose largest are the
    /// first [`SortOrder::Descending`]): the same as the first of [`Tensor::argsort`] and of what it gathers. A line is
    /// gone through once: on hardware for up to 512 elements, on the CPU for less than a quarter. For more, and on software
    /// adapters, all of it is sorted. In memory the axis is the innermost of
    /// the places; the elements lie by rows.
    ///
    /// ```
    /// use orlop::{Device, SortOrder, Tensor};
    ///
    /// let scores = Tensor::from_slice(&Device::cpu(), &[0.1f32, 0.6, 0.0, 0.3], [1, 4])?;
    /// let (best, places) = scores.top_k(2, -1, SortOrder::Descending)?;
    /// assert_eq!(best.to_vec::<f32>()?, [0.6, 0.3]);
    /// assert_eq!(places.to_vec::<u32>()?, [1, 3]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more elements than there are along the axis; as [`Tensor::sort`].
    pub fn top_k(
        &self,
        count: usize,
        axis: impl Into<Axis>,
        order: SortOrder,
    ) -> Result<(Tensor, Tensor)> {
        let axis = axis.into();
        let places = first_places("top_k", self, axis, Some(count), order)?;
        Ok((self.gather(axis, &places)?, places))
    }
}

/// [`Tensor::sort`] for the op that is named.
fn sorted(op: &'static str, x: &Tensor, axis: usize, order: SortOrder) -> Result<Tensor> {
    let sort = |wanted| Sort {
        op,
        order,
        wanted,
        kept: None,
    };
    match x.dtype() {
        // Their keys are two words, and places one.
        DType::F64 => {
            let wanted = Wanted::Places {
                of_equal_zeros: false,
            };
            x.gather(axis, &along(x, axis, &sort(wanted))?)
        }
        dtype => along(x, axis, &sort(Wanted::Values))?.cast(dtype),
    }
}

fn first_places(
    op: &'static str,
    x: &Tensor,
    axis: Axis,
    kept: Option<usize>,
    order: SortOrder,
) -> Result<Tensor> {
    let wanted = Wanted::Places {
        of_equal_zeros: true,
    };
    let sort = Sort {
        op,
        order,
        wanted,
        kept,
    };
    along(x, axis.of(op, x.shape())?, &sort)
}

/// A sort along any axis: turned inside, where lines are runs of memory.
fn along(x: &Tensor, axis: usize, sort: &Sort) -> Result<Tensor> {
    turned(x, axis, |lines| first::places(sort, &*sort.near(lines)?))
}

/// What an op of lines makes of those along an axis, the last one for it.
fn turned(
    x: &Tensor,
    axis: usize,
    of_lines: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let last = x.rank() - 1;
    let others = (0..x.rank()).filter(|&other| other != axis);
    let turned: Dims = others.chain([axis]).collect();
    let mut back: Dims = (0..last).collect();
    back.insert(axis, last);
    of_lines(&x.permute(&turned)?)?.permute(&back)
}

/// Whether there are not too many elements, of all and of a line along the last axis.
///
/// # Errors
/// `InvalidArgument`.
fn check_lines(op: &'static str, shape: &Shape) -> Result<()> {
    road::check_walk(op, shape)?;
    let size = shape.last().copied().unwrap_or(0);
    match u32::try_from(size) {
        Ok(_) => Ok(()),
        Err(_) => {
            let why = format!("{size} elements along the axis are more than u32 count");
            Err(Error::invalid(op, why))
        }
    }
}

/// What comes out.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    /// Elements, in the dtype that [`keys::widened`] says.
    Values,
    /// Where they were; -0 and 0 are equal or not.
    Places { of_equal_zeros: bool },
}

/// Elements along the last axis of a contiguous tensor.
struct Sort {
    op: &'static str,
    order: SortOrder,
    wanted: Wanted,
    /// The first so many alone.
    kept: Option<usize>,
}

impl Sort {
    /// Lines one behind the other, where kernels read them: the CPU's twin does without, and nothing is read for nothing.
    fn near<'a>(&self, lines: &'a Tensor) -> Result<Cow<'a, Tensor>> {
        by_rows(self, &[lines], lines, |_| {
            self.kept == Some(0) || lines.is_contiguous()
        })
    }

    /// Whether -0 and 0 have one key.
    fn has_equal_zeros(&self) -> bool {
        let equal = Wanted::Places {
            of_equal_zeros: true,
        };
        self.wanted == equal
    }

    /// Bits of keys that are turned: all of them where the largest come first.
    fn flip(&self, dtype: DType) -> u64 {
        match self.order {
            SortOrder::Ascending => 0,
            SortOrder::Descending => u64::MAX >> (64 - keys::bits(dtype)),
        }
    }

    /// Elements of a line that come in, and that come out; 0 of a scalar, which has no axis.
    fn sizes(&self, shape: &Shape) -> [usize; 2] {
        let size = shape.last().copied().unwrap_or(0);
        [size, self.kept.unwrap_or(size)]
    }
}

impl Op for Sort {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [x] = inputs else {
            return Err(Error::invalid(self.op, "takes one operand"));
        };
        let shape = x.layout.shape();
        check_lines(self.op, shape)?;
        let [size, kept] = self.sizes(shape);
        if kept > size {
            let why = format!("{kept} elements are asked for, of {size} along the axis");
            return Err(Error::invalid(self.op, why));
        }
        let mut dims: Dims = shape.dims().into();
        if let Some(last) = dims.last_mut() {
            *last = kept;
        }
        let dtype = match self.wanted {
            Wanted::Values => keys::widened(x.dtype),
            Wanted::Places { .. } => DType::U32,
        };
        Ok((Shape::from(&dims[..]), dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        _output: DType,
    ) -> Option<String> {
        let [x] = inputs else { return None };
        let elements = x.layout.elements();
        ranges::missing(capabilities, x.dtype, &[x.layout], elements)
            .or_else(|| kernel::missing(self, x, capabilities))
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        kernel::launches(self, problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [x] = inputs else { return Ok(()) };
        cpu::twin(self, x, output)
    }
}
