//! Where elements are not zero, and elements where a mask is true.
//!
//! Both know the size of their result once the elements are counted. What is counted is kept, 32 elements in a word of *marks*:
//! so as much is written as was counted, whatever others write to the tensor meanwhile, and no more than marks is read again.

mod cpu;
mod kernel;

use std::borrow::Cow;

use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Launches, WINDOW_ALIGNMENT};
use crate::ops::contiguous::by_rows;
use crate::ops::{index, ranges};
use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::{Dims, Shape};
use crate::tensor::Tensor;

pub(super) use kernel::specialisations;

/// Elements whose marks are a word.
const WORD: usize = u32::BITS as usize;
/// What rows of marks are a multiple of, in words: two rows are no window's.
const ROW: usize = WINDOW_ALIGNMENT as usize / size_of::<u32>();

impl Tensor {
    /// Where the elements are that are not zero (PyTorch's `nonzero`, NumPy's `argwhere`), as u32: `[count, rank]`, an element's
    /// index along each axis in a row, rows in row-major order of the elements. NaN is not zero, and -0 is; of bool, what is true.
    ///
    /// Waits for the device, since their count is a size. Of one axis, `places.squeeze(1)` is an index for
    /// [`Tensor::index_select`]; `nonzero` of a flat [`Tensor::reshape`] has the places of elements in a tensor of any rank.
    /// How many there are without where: `x.cast(DType::Bool)?.sum(..)`. ONNX has axes in rows: the result, transposed.
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[0.0f32, 3.0, -0.0, f32::NAN, 0.0, 1.0], [2, 3])?;
    /// assert_eq!(x.nonzero()?.to_vec::<u32>()?, [0, 1, 1, 0, 1, 2]);
    /// let places = x.reshape([6])?.nonzero()?.squeeze(1)?;
    /// assert_eq!(places.to_vec::<u32>()?, [1, 3, 5]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 2^32 elements or more; as [`Tensor::to_vec`]; what any op can meet
    /// ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn nonzero(&self) -> Result<Tensor> {
        const OP: &str = "nonzero";
        let marked = Marked::of(OP, self)?;
        let dims = self.shape().dims().into();
        let rank = Some(self.rank());
        marked.places(dims, rank)
    }

    /// The elements where `mask`, of bool, is true (PyTorch's `masked_select`, NumPy's `x[mask]`): one after the other, in
    /// row-major order of what both broadcast to, by NumPy's rule. Elements of any dtype are moved bit for bit. Waits for the
    /// device, since their count is the size.
    ///
    /// What keeps the shape is [`Tensor::select`]; rows, by a mask of one axis, are `x.index_select(0, &mask.nonzero()?.squeeze(1)?)`.
    /// Several tensors by one mask take less with its [`Tensor::nonzero`].
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[1.0f32, -2.0, 3.0, -4.0], [2, 2])?;
    /// assert_eq!(x.masked_select(&x.lt(0.0)?)?.to_vec::<f32>()?, [-2.0, -4.0]);
    /// let column = Tensor::from_slice(&Device::cpu(), &[false, true], [2, 1])?;
    /// assert_eq!(x.masked_select(&column)?.to_vec::<f32>()?, [3.0, -4.0]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a mask of another dtype, [`Error::ShapeMismatch`] when the shapes do not broadcast; as
    /// [`Tensor::nonzero`].
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_select";
        if mask.dtype() != DType::Bool {
            let rule = "a mask is bool";
            return Err(Error::operand_dtype(OP, mask.dtype(), DType::Bool, rule));
        }
        let shape = self.shape().broadcast(mask.shape(), OP)?;
        let home = road::home(OP, &[self, mask])?;
        let x = self.broadcast_to(&shape)?;
        let marked = Marked::of(OP, &mask.broadcast_to(&shape)?)?;
        if home.is_cpu() {
            let select = Select {
                op: OP,
                count: marked.count,
            };
            return road::run(&select, &[&x, &marked.marks]);
        }
        let count = shape.elements();
        let places = marked.places(Dims::from_slice(&[count]), None)?;
        index::entries(OP, 0, &x.reshape([count])?, &places)
    }
}

/// What is counted of a tensor's elements.
struct Marked {
    op: &'static str,
    /// What [`Mark`] gives.
    marks: Tensor,
    count: usize,
}

impl Marked {
    fn of(op: &'static str, x: &Tensor) -> Result<Self> {
        let mark = Mark { op };
        let marks = road::run(&mark, &[&*mark.near(x)?])?;
        let count = match words(x.elements()).checked_sub(1) {
            Some(last) => marks.slice((1, last as isize))?.item::<u32>()? as usize,
            None => 0,
        };
        Ok(Self { op, marks, count })
    }

    /// Where the elements of such sizes are: an index along each axis, `[count, rank]`, or without a rank `[count]`.
    fn places(self, dims: Dims, rank: Option<usize>) -> Result<Tensor> {
        let (op, count) = (self.op, self.count);
        let places = Places {
            op,
            dims,
            count,
            rank,
        };
        road::run(&places, &[&self.marks])
    }
}

/// Words of the marks of so many elements.
fn words(elements: usize) -> usize {
    elements.div_ceil(WORD)
}

/// `[2, words]`, and a few more words that say nothing: a bit for each element that is not zero, the lowest first, and how many
/// there are up to each word's end.
struct Mark {
    op: &'static str,
}

impl Mark {
    /// A tensor that kernels read: one that reaches further than a binding lies together for them.
    fn near<'a>(&self, x: &'a Tensor) -> Result<Cow<'a, Tensor>> {
        let bytes = x.layout().span().len() as u64 * x.dtype().size() as u64;
        by_rows(self, &[x], x, |capabilities| {
            bytes + WINDOW_ALIGNMENT <= capabilities.indexed_bytes() || x.is_contiguous()
        })
    }
}

impl Op for Mark {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [x] = inputs else {
            return Err(Error::invalid(self.op, "takes one operand"));
        };
        let elements = x.layout.shape().count(self.op)?;
        if u32::try_from(elements).is_err() {
            let why = format!("{elements} elements are more than u32 count");
            return Err(Error::invalid(self.op, why));
        }
        let row = words(elements).next_multiple_of(ROW);
        Ok((Shape::from([2, row]), DType::U32))
    }

    /// Bits are read, which needs no dtype in kernels.
    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        _output: DType,
    ) -> Option<String> {
        let [x] = inputs else { return None };
        let elements = x.layout.elements();
        ranges::missing(capabilities, x.dtype, &[x.layout], elements)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        kernel::marks(self.op, problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [x] = inputs else { return Ok(()) };
        cpu::mark(self.op, x, output)
    }
}

/// Where marks are set, that many.
struct Places {
    op: &'static str,
    /// Sizes of what is marked.
    dims: Dims,
    count: usize,
    rank: Option<usize>,
}

impl Op for Places {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, _inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let sizes = [self.count].into_iter().chain(self.rank);
        Ok((sizes.collect(), DType::U32))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let [marks] = inputs else { return None };
        let elements = self.count.saturating_mul(self.dims.len());
        ranges::missing(capabilities, output, &[marks.layout], elements)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        kernel::places(self, problem, capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [marks] = inputs else { return Ok(()) };
        cpu::places(&self.dims, self.count, marks, output);
        Ok(())
    }
}

/// The elements that are marked, on the CPU: GPUs take them by their places.
struct Select {
    op: &'static str,
    count: usize,
}

impl Op for Select {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [x, _] = inputs else {
            return Err(Error::invalid(self.op, "takes a tensor and marks"));
        };
        Ok((Shape::from([self.count]), x.dtype))
    }

    fn plan(&self, _problem: &Problem<'_>, _capabilities: &Capabilities) -> Result<Launches> {
        Err(Error::invalid(self.op, "kernels take elements by places"))
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [x, marks] = inputs else { return Ok(()) };
        cpu::select(self.op, self.count, [x, marks], output)
    }
}
