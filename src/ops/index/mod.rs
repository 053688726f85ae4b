//! Ops that find places by the numbers in an index tensor.
//!
//! An index is i32 or u32. Negative ones count from the end of the axis; what is then outside of the
//! axis is never read or written, on any device: it takes a 0, and adds nothing. Errors would need the
//! numbers on the host; who wants them asks [`Tensor::check_indices`].

mod halves;
mod scatter;
mod take;

use std::borrow::Cow;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::{Axis, Layout};
use crate::ops::contiguous::{is_far, near, write};
use crate::ops::ranges;
use crate::road::{self, Op};
use crate::tensor::Tensor;

use scatter::{Change, Scatter, Way};
pub(super) use take::IndexReader;
use take::Take;

use crate::launch::KernelKey;

pub(super) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = take::specialisations(ranks);
    all.extend(scatter::specialisations(ranks));
    all
}

impl Tensor {
    /// The entries of `axis` that `index` names: the axis is replaced by the index's dimensions, of
    /// which there may be any number. `[a, n, c]` with an index `[i, j]` at axis 1 gives
    /// `[a, i, j, c]`; with an index of one dimension it is PyTorch's `index_select`, with any NumPy's
    /// `take`.
    ///
    /// The index is i32 or u32. Negative numbers count from the end of the axis. Numbers that are
    /// then outside of it give zeros, on every device; [`Tensor::check_indices`] finds them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such axis, or it is empty and the result is not;
    /// [`Error::DTypeMismatch`] for an index of another dtype; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn index_select(&self, axis: impl Into<Axis>, index: &Tensor) -> Result<Tensor> {
        let axis = axis.into().of("index_select", self.shape())?;
        take(Take::select("index_select", axis), self, index)
    }

    /// The rows of a table `[rows, width]` that `index` names: `[.., width]` for an index `[..]`.
    /// Indices as in [`Tensor::index_select`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the table has another rank; as [`Tensor::index_select`].
    pub fn embedding(&self, index: &Tensor) -> Result<Tensor> {
        if self.rank() != 2 {
            let shape = self.shape();
            let why = format!("the table is of shape {shape}, not [rows, width]");
            return Err(Error::invalid("embedding", why));
        }
        take(Take::select("embedding", 0), self, index)
    }

    /// One entry of `axis` for each element of `index`, which has as many dimensions as the tensor
    /// and in the other axes at most its sizes (PyTorch's `gather`): for axis 1 of three,
    /// `out[i, j, k] = self[i, index[i, j, k], k]`. Indices as in [`Tensor::index_select`].
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for another rank or larger sizes; as [`Tensor::index_select`].
    pub fn gather(&self, axis: impl Into<Axis>, index: &Tensor) -> Result<Tensor> {
        let axis = axis.into().of("gather", self.shape())?;
        take(Take::gather("gather", axis), self, index)
    }

    /// A copy to which each element of `source` is added at the entry of `axis` that `index` names
    /// (PyTorch's `scatter_add`): for axis 1 of three, `out[i, index[i, j, k], k] += source[i, j, k]`.
    /// All have one rank; the index is at most as large as the source and, but for the axis, as the
    /// tensor, and where it is smaller the rest of the source is not added. Indices as in
    /// [`Tensor::index_select`]; what is outside of the axis adds nothing.
    ///
    /// One sum after the other in the order of the source's axis, so the result has the same bits in
    /// every run, and on every device where f32 sums are IEEE's. Its error is at most `n 2^-24 sum |x|` where `n` are added to one element:
    /// f32 ones stop at 2^24, so what adds up millions in one place is cast to f64 first. f16 and bf16 are summed in f32 and
    /// rounded once, with copies of the tensor and the source in f32.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for bool, and when there is no
    /// such axis; what any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn scatter_add(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        SCATTER_ADD.run(axis.into(), [self, index, source])
    }

    /// A copy to which the entries of `source` along `axis` are added at those that `index`, of one
    /// dimension, names (PyTorch's `index_add`): for axis 0 of two, `out[index[i], j] += source[i, j]`,
    /// the gradient of an [`Tensor::embedding`]. Sums and indices as in [`Tensor::scatter_add`].
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn index_add(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        INDEX_ADD.run(axis.into(), [self, index, source])
    }

    /// A copy in which each entry of `axis` is the largest of itself and of the elements of `source` that `index` names it for
    /// (PyTorch's `scatter_reduce` with `amax`, ONNX's `ScatterElements` with `max`): for axis 1 of three,
    /// `out[i, index[i, j, k], k] = max(out[i, index[i, j, k], k], source[i, j, k])`. Sizes and indices as in
    /// [`Tensor::scatter_add`]. NaN where one of them is, and -0 is below +0, on every device.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn scatter_max(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        SCATTER_MAX.run(axis.into(), [self, index, source])
    }

    /// [`Tensor::scatter_max`] of the smallest.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn scatter_min(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        SCATTER_MIN.run(axis.into(), [self, index, source])
    }

    /// A copy in which each entry of `axis` is, element by element, the largest of itself and of the entries of `source` along
    /// `axis` that `index`, of one dimension, names it for (PyTorch's `index_reduce` with `amax`): for axis 0 of two,
    /// `out[index[i], j] = max(out[index[i], j], source[i, j])`, as [`Tensor::scatter_max`].
    ///
    /// ```
    /// use orlop::{DType, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let group = Tensor::from_slice(&device, &[0, 2, 0, 2, 2], [5])?;
    /// let price = Tensor::from_slice(&device, &[4.0f32, 1.0, 9.0, 3.0, 2.0], [5])?;
    /// // Of nothing: minus infinity.
    /// let none = Tensor::full(&device, 3, f32::NEG_INFINITY, DType::F32)?;
    /// let highest = none.index_max(0, &group, &price)?;
    /// assert_eq!(highest.to_vec::<f32>()?, [9.0, f32::NEG_INFINITY, 3.0]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn index_max(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        INDEX_MAX.run(axis.into(), [self, index, source])
    }

    /// [`Tensor::index_max`] of the smallest.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn index_min(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        INDEX_MIN.run(axis.into(), [self, index, source])
    }

    /// A copy in which each element of `source` stands at the entry of `axis` that `index` names (PyTorch's `scatter`,
    /// ONNX's `ScatterElements`): for axis 1 of three, `out[i, index[i, j, k], k] = source[i, j, k]`. Sizes and indices
    /// as in [`Tensor::scatter_add`].
    ///
    /// Elements of any dtype are moved bit for bit. Of several that one entry is named for, the last along the
    /// source's axis is there, in every run and on every device.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`], but bool has no error.
    pub fn scatter(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        SCATTER.run(axis.into(), [self, index, source])
    }

    /// A copy in which the entries of `source` along `axis` stand at those that `index`, of one dimension, names
    /// (PyTorch's `index_copy`): for axis 0 of two, `out[index[i], j] = source[i, j]`. Elements and indices as in
    /// [`Tensor::scatter`].
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    pub fn index_copy(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        INDEX_COPY.run(axis.into(), [self, index, source])
    }

    /// [`Tensor::scatter_add`] to this tensor's own memory: all views of the storage see it. An index or a source that
    /// lies in the same storage is read before anything is written. f16 and bf16 are summed apart, as [`Tensor::scatter_add`]
    /// does, and what is named comes back: on [`Device::cpu`](crate::Device::cpu) what another thread writes to the same entries
    /// meanwhile may be lost.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`]; [`Error::InvalidArgument`] when this tensor repeats elements (a broadcast view).
    /// Nothing is written then.
    pub fn scatter_add_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        SCATTER_ADD.assign(axis.into(), [self, index, source])
    }

    /// [`Tensor::index_add`] to this tensor's own memory, as [`Tensor::scatter_add_assign`]: rows of a table of embeddings. Where
    /// the index names few of the entries, sums of f16 and bf16 too take time and memory for these alone (`docs/memory.md`).
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_assign`].
    pub fn index_add_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        INDEX_ADD.assign(axis.into(), [self, index, source])
    }

    /// [`Tensor::scatter_max`] to this tensor's own memory, as [`Tensor::scatter_add_assign`].
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_assign`].
    pub fn scatter_max_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        SCATTER_MAX.assign(axis.into(), [self, index, source])
    }

    /// [`Tensor::scatter_min`] to this tensor's own memory, as [`Tensor::scatter_add_assign`].
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_assign`].
    pub fn scatter_min_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        SCATTER_MIN.assign(axis.into(), [self, index, source])
    }

    /// [`Tensor::index_max`] to this tensor's own memory, as [`Tensor::scatter_add_assign`].
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_assign`].
    pub fn index_max_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        INDEX_MAX.assign(axis.into(), [self, index, source])
    }

    /// [`Tensor::index_min`] to this tensor's own memory, as [`Tensor::scatter_add_assign`].
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_assign`].
    pub fn index_min_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        INDEX_MIN.assign(axis.into(), [self, index, source])
    }

    /// [`Tensor::scatter`] into this tensor's own memory, as [`Tensor::scatter_add_assign`]; nothing but what is
    /// named is written.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_assign`], but bool has no error.
    pub fn scatter_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        SCATTER.assign(axis.into(), [self, index, source])
    }

    /// [`Tensor::index_copy`] into this tensor's own memory, as [`Tensor::scatter_assign`]: rows of a cache whose places
    /// are in an index. For places that follow each other there is [`Tensor::assign`] of a slice.
    ///
    /// ```
    /// use orlop::{DType, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let cache = Tensor::zeros(&device, [4, 2], DType::F32)?;
    /// let places = Tensor::from_slice(&device, &[3, -4], [2])?;
    /// let rows = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// cache.index_copy_assign(0, &places, &rows)?;
    /// assert_eq!(cache.to_vec::<f32>()?, [3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::scatter_assign`].
    pub fn index_copy_assign(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        INDEX_COPY.assign(axis.into(), [self, index, source])
    }

    /// Reads an index tensor back and checks that each number is in `-size..size`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the first number that is not, and where it is;
    /// [`Error::DTypeMismatch`] when it is neither i32 nor u32; as [`Tensor::to_vec`].
    pub fn check_indices(&self, size: usize) -> Result<()> {
        const OP: &str = "check_indices";
        let wide = i64::try_from(size).unwrap_or(i64::MAX);
        let is_outside = |x: i64| x >= wide || x < -wide;
        let first = match self.dtype() {
            DType::U32 => first(&self.to_vec::<u32>()?, is_outside),
            DType::I32 => first(&self.to_vec::<i32>()?, is_outside),
            other => return Err(Error::no_index(OP, other)),
        };
        match first {
            None => Ok(()),
            Some((at, x)) => Err(Error::invalid(
                OP,
                format!("element {at} of the index is {x}, and the axis has {size} entries"),
            )),
        }
    }
}

/// The first number that is so, and where it is.
fn first<T: Copy + Into<i64>>(numbers: &[T], is_so: impl Fn(i64) -> bool) -> Option<(usize, i64)> {
    let mut numbers = numbers.iter().map(|&x| x.into()).enumerate();
    numbers.find(|&(_, x)| is_so(x))
}

/// The entries of an axis that `index` names, for the op that is named.
pub(super) fn entries(
    op: &'static str,
    axis: usize,
    table: &Tensor,
    index: &Tensor,
) -> Result<Tensor> {
    take(Take::select(op, axis), table, index)
}

fn take(op: Take, table: &Tensor, index: &Tensor) -> Result<Tensor> {
    let launches = |limit| op.launches(table.layout(), index.layout(), limit);
    let apart = apart(&op, &[table, index], (index, table), launches)?;
    road::run(&op, &[table, &apart])
}

const SCATTER_ADD: Way = Way::new(["scatter_add", "scatter_add_assign"], true, Change::Add);
const INDEX_ADD: Way = Way::new(["index_add", "index_add_assign"], false, Change::Add);
const SCATTER_MAX: Way = Way::new(["scatter_max", "scatter_max_assign"], true, Change::Max);
const SCATTER_MIN: Way = Way::new(["scatter_min", "scatter_min_assign"], true, Change::Min);
const INDEX_MAX: Way = Way::new(["index_max", "index_max_assign"], false, Change::Max);
const INDEX_MIN: Way = Way::new(["index_min", "index_min_assign"], false, Change::Min);
const SCATTER: Way = Way::new(["scatter", "scatter_assign"], true, Change::Set);
const INDEX_COPY: Way = Way::new(["index_copy", "index_copy_assign"], false, Change::Set);

impl Way {
    /// A changed copy of the first operand.
    fn run(self, axis: Axis, operands: [&Tensor; 3]) -> Result<Tensor> {
        let [target, index, source] = operands;
        let axis = axis.of(self.op, target.shape())?;
        let op = Scatter {
            way: self,
            axis,
            into: None,
        };
        let dtype = target.dtype();
        if !self.is_of_halves(dtype) {
            let out = Layout::contiguous(target.shape().clone());
            let (index, source) = op.operands(&out, &operands, [index, source])?;
            return road::run(&op, &[target, &index, &source]);
        }
        road::check(&op, &operands, None)?;
        let sums = || {
            let (target, source) = (target.cast(DType::F32)?, source.cast(DType::F32)?);
            self.run(axis.into(), [&target, index, &source])?
                .cast(dtype)
        };
        sums().map_err(|error| error.asked_for(self.op))
    }

    /// Changes the first operand itself.
    fn assign(mut self, axis: Axis, operands: [&Tensor; 3]) -> Result<()> {
        self.op = self.in_place;
        let [target, index, source] = operands;
        target.check_distinct(self.op)?;
        let axis = axis.of(self.op, target.shape())?;
        let op = self.into(axis, target);
        road::check(&op, &[index, source], Some(target))?;
        if target.elements() == 0 {
            return Ok(());
        }
        // Where the tensor lives, what comes before too.
        let changed = target
            .device()
            .scope(|| match self.is_of_halves(target.dtype()) {
                true => self.assign_sums(axis, operands),
                false => self.assign_checked(&op, operands),
            });
        changed.map_err(|error| error.asked_for(self.op))
    }

    fn into(self, axis: usize, target: &Tensor) -> Scatter {
        Scatter {
            way: self,
            axis,
            into: Some((target.layout().clone(), target.dtype())),
        }
    }

    /// Writes a source over what is named.
    fn set(self, axis: usize, operands: [&Tensor; 3]) -> Result<()> {
        let set = Self {
            change: Change::Set,
            ..self
        };
        set.assign_checked(&set.into(axis, operands[0]), operands)
    }

    fn assign_checked(self, op: &Scatter, operands: [&Tensor; 3]) -> Result<()> {
        let [target, index, source] = operands;
        let apart = |operand: &Tensor| match operand.shares_storage(target) {
            true => operand.copy_once(self.op),
            false => Ok(operand.clone()),
        };
        let [index, source] = [&apart(index)?, &apart(source)?];
        let given = [index, source];
        let launches = |limit| {
            let layouts = [target, index, source].map(Tensor::layout);
            let size = target.dtype().size();
            let each = [(0, size), (1, 4), (2, size)].map(|of| op.launches(layouts, of, limit));
            let [lines, named, taken] = each;
            let reach = target.layout().span().len();
            let windows = reach as u64 * size as u64 / limit + 1;
            let parts = named?.max(taken?).max(1).saturating_mul(windows);
            // What kernels do not reach they may in a copy.
            let is_beyond = reach > ranges::POSITIONS && target.elements() <= ranges::POSITIONS;
            Ok(lines?.max(if is_beyond { u64::MAX } else { parts }))
        };
        if is_far(op, &given, target, launches)? {
            // Rows that lie too far apart for kernels are changed in a copy.
            let _alone = road::alone(target);
            let near = target.copy_once(self.op)?;
            let op = self.into(op.axis, &near);
            self.assign_checked(&op, [&near, index, source])?;
            return target.assign_for(self.op, &near);
        }
        let (index, source) = op.operands(target.layout(), &given, given)?;
        write(op, &[&index, &source], target)
    }

    /// Whether sums are kept in another dtype.
    fn is_of_halves(self, dtype: DType) -> bool {
        self.change == Change::Add && dtype != dtype.accumulator()
    }
}

impl Scatter {
    /// The index and the source of an op's operands for kernels that write what lies so.
    fn operands<'a>(
        &self,
        out: &Layout,
        all: &[&Tensor],
        [index, source]: [&'a Tensor; 2],
    ) -> Result<(Cow<'a, Tensor>, Cow<'a, Tensor>)> {
        let launches = |which: usize, size: usize| {
            let layouts = [out, index.layout(), source.layout()];
            move |limit| self.launches(layouts, (which, size), limit)
        };
        let near_source = near(self, all, source, launches(2, source.dtype().size()))?;
        let index = apart(self, all, (index, &near_source), launches(1, 4))?;
        Ok((index, near_source))
    }
}

/// The index of an op's operands for kernels: in another storage than what is read by it, and near enough.
fn apart<'a>(
    op: &dyn Op,
    operands: &[&Tensor],
    (index, other): (&'a Tensor, &Tensor),
    launches: impl FnOnce(u64) -> Result<u64>,
) -> Result<Cow<'a, Tensor>> {
    if !other.shares_storage(index) {
        return near(op, operands, index, launches);
    }
    road::check(op, operands, None)?;
    index.copy_once(op.name()).map(Cow::Owned)
}
