//! The tensor handle and its views. Nothing here computes, copies or allocates: see `ops`.

use std::fmt;
use std::ops::Range;

use crate::device::{Device, Storage, StoragePin};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Axis, Layout, SliceRanges};
use crate::shape::Shape;

/// Elements of one dtype on one device: a storage seen through a layout.
///
/// Clones and views share the storage; nothing is copied until an op needs it. Tensors are
/// `Send + Sync`. Work on a device happens in program order, so a tensor may be used at once and
/// dropped at any time.
#[derive(Clone)]
pub struct Tensor {
    device: Device,
    storage: Storage,
    layout: Layout,
    dtype: DType,
}

impl Tensor {
    pub(crate) fn new(device: Device, storage: Storage, layout: Layout, dtype: DType) -> Self {
        Self {
            device,
            storage,
            layout,
            dtype,
        }
    }

    /// The same storage through another layout.
    pub(crate) fn view(&self, layout: Layout) -> Self {
        Self {
            layout,
            ..self.clone()
        }
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The device that it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Shape, strides and offset, in elements.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The sizes of its dimensions.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Number of dimensions; 0 for a scalar.
    pub fn rank(&self) -> usize {
        self.layout.rank()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.layout.elements()
    }

    /// Bytes of its elements.
    pub(crate) fn bytes(&self) -> u64 {
        (self.elements() * self.dtype.size()) as u64
    }

    /// The bytes of a contiguous tensor in its storage.
    pub(crate) fn byte_range(&self) -> Range<u64> {
        let start = (self.layout.offset() * self.dtype.size()) as u64;
        start..start + self.bytes()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// True when the elements lie row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// True when both see the same storage; never of a tensor without elements, which has none.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        self.storage.is_same(&other.storage)
    }

    /// A view with two dimensions swapped: `t.transpose(-2, -1)` turns matrices. Here and everywhere, negative
    /// axes count from the last one, -1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when an axis does not exist.
    pub fn transpose(&self, first: impl Into<Axis>, second: impl Into<Axis>) -> Result<Self> {
        Ok(self.view(self.layout.transpose(first, second)?))
    }

    /// A view with the dimensions reordered: new dimension `i` is old dimension `axes[i]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `axes` names each once.
    pub fn permute(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Self> {
        Ok(self.view(self.layout.permute(axes)?))
    }

    /// A view of a range or an index of each dimension: `t.slice((0..2, .., 3..))`. Of an index the dimension
    /// goes away: `t.slice((0, .., -1))` has one dimension where `t` has three. Negative places count from the
    /// end: `t.slice(-2..)` is the last two rows. Dimensions that are not named stay whole. Ranges may have steps, also
    /// negative ones, which go backwards from the range's last element: [`SliceRange::step`](crate::SliceRange::step). Unlike
    /// NumPy's, ranges are not cut to the dimension: one that goes beyond it, or ends before it begins, is an error.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for too many ranges, a range or
    /// an index outside its dimension, or a step of 0.
    pub fn slice(&self, ranges: impl SliceRanges) -> Result<Self> {
        Ok(self.view(self.layout.slice(&ranges.ranges())?))
    }

    /// A view with dimensions turned round: their last element comes first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when an axis does not exist or is
    /// named twice.
    pub fn flip(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Self> {
        Ok(self.view(self.layout.flip(axes)?))
    }

    /// A view of every window of `size` neighbours along an axis, one each `step` elements (PyTorch's `Tensor.unfold`,
    /// NumPy's `sliding_window_view`). The axis counts windows then, `(length - size) / step + 1` of them, and a new last axis
    /// goes along each. Nothing is copied: windows that overlap see the same elements. So they can be read by
    /// every op, but not written to.
    ///
    /// Reduced along the new axes they are pooled: where windows of several axes overlap, sooner one axis after the other
    /// (`x.unfold(2, 3, 1)?.max(-1)?.unfold(3, 3, 1)?.max(-1)?`). Multiplied with weights they are convolved. Zeros around are those of
    /// [`Tensor::pad`]; windows of `d * (k - 1) + 1` whose new axis is sliced by steps of `d` are `k` elements, `d` apart. What
    /// belongs to windows goes back to what they show (a gradient, "fold") by as many
    /// `sum.slice(..)?.add_assign(&windows.slice(..)?)` as a window has places, each of all windows.
    ///
    /// ```
    /// use orlop::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), &[3.0f32, 1.0, 4.0, 1.0, 5.0, 9.0], [6])?;
    /// let windows = x.unfold(0, 2, 2)?;                       // [3, 2]
    /// assert_eq!(windows.max(-1)?.to_vec::<f32>()?, [3.0, 4.0, 9.0]);
    /// assert_eq!(x.unfold(0, 3, 1)?.mean(-1)?.to_vec::<f32>()?[3], 5.0);
    ///
    /// // A convolution of images [n, c, h, w] with weights [o, c, 3, 3], by steps of 1.
    /// let images = Tensor::randn(&Device::cpu(), [2, 3, 8, 10], orlop::DType::F32, 1)?;
    /// let weights = Tensor::randn(&Device::cpu(), [4, 3, 3, 3], orlop::DType::F32, 2)?;
    /// let windows = images.unfold(2, 3, 1)?.unfold(3, 3, 1)?;  // [n, c, h - 2, w - 2, 3, 3]
    /// let patches = windows.permute(&[0, 1, 4, 5, 2, 3])?.reshape([2, 3 * 3 * 3, 6 * 8])?; // a copy
    /// let features = weights.reshape([4, 3 * 3 * 3])?.matmul(&patches)?.reshape([2, 4, 6, 8])?;
    /// # let pixel = images.slice((1, .., 2..5, 3..6))?.mul(&weights.slice(2)?)?.sum(..)?;
    /// # assert!((features.slice((1, 2, 2, 3))?.item::<f32>()? - pixel.item::<f32>()?).abs() < 1e-4);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when there is no such axis, when `size` or `step` is
    /// 0, or when no window fits; [`Error::TooLarge`](crate::Error::TooLarge) when the count of elements overflows.
    pub fn unfold(&self, axis: impl Into<Axis>, size: usize, step: usize) -> Result<Self> {
        let layout = self.layout.unfold(axis, size, step)?;
        layout.shape().count("unfold")?;
        Ok(self.view(layout))
    }

    /// A view of the elements of two axes that are as far along one as along the other: the diagonals of matrices (PyTorch's
    /// and NumPy's `diagonal`). Both axes go, and a new last one goes along the diagonal. It begins `offset` elements along the
    /// second axis, or, below zero, as many along the first; beyond the matrix it has no elements.
    ///
    /// ```
    /// use orlop::{DType, Device, Tensor};
    ///
    /// let unit = Tensor::zeros(&Device::cpu(), [3, 3], DType::F32)?;
    /// unit.diagonal(0, 0, 1)?.fill(1.0)?;                     // in place: of any matrix
    /// unit.diagonal(1, 0, 1)?.add_assign(0.5)?;
    /// assert_eq!(unit.to_vec::<f32>()?, [1.0, 0.5, 0.0, 0.0, 1.0, 0.5, 0.0, 0.0, 1.0]);
    /// assert_eq!(unit.diagonal(0, 0, 1)?.sum(..)?.item::<f32>()?, 3.0);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when an axis does not exist, or both are one.
    pub fn diagonal(
        &self,
        offset: isize,
        first: impl Into<Axis>,
        second: impl Into<Axis>,
    ) -> Result<Self> {
        Ok(self.view(self.layout.diagonal(offset, first, second)?))
    }

    /// A view that repeats dimensions of size 1, and adds outer ones, by NumPy's rule.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch);
    /// [`Error::TooLarge`](crate::Error::TooLarge) when the count of elements overflows.
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        shape.count("broadcast_to")?;
        Ok(self.view(self.layout.broadcast_to(&shape)?))
    }

    /// A view without a dimension of size 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the axis does not exist or
    /// is not of size 1.
    pub fn squeeze(&self, axis: impl Into<Axis>) -> Result<Self> {
        Ok(self.view(self.layout.squeeze(axis)?))
    }

    /// A view with a dimension of size 1, which is then `axis`: before the one that is, or, where `axis` is the
    /// rank or -1, at the end.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when `axis` is above the rank or below
    /// `-rank - 1`.
    pub fn unsqueeze(&self, axis: impl Into<Axis>) -> Result<Self> {
        Ok(self.view(self.layout.unsqueeze(axis)?))
    }
}

/// Keeps a tensor's memory where it is until it is dropped: see [`Tensor::pin`].
#[must_use = "the tensor stays only as long as this lives"]
pub struct Pinned {
    // Before the tensor, whose memory it is.
    _pin: StoragePin,
    tensor: Tensor,
}

impl Pinned {
    /// The tensor that stays.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:?})", self.tensor)
    }
}

impl Tensor {
    /// Keeps the tensor's storage where it is in device memory, until what is returned is dropped:
    /// it is neither moved to make room for others nor spilled to the host. A spilled one is brought
    /// back first.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) when it cannot be brought back;
    /// [`Error::TimedOut`](crate::Error::TimedOut); [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub fn pin(&self) -> Result<Pinned> {
        Ok(Pinned {
            _pin: self.storage.pin().map_err(|error| error.asked_by("pin"))?,
            tensor: self.clone(),
        })
    }
}

/// Says what the tensor is; never downloads. [`Tensor::display`] shows the numbers.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {}", self.dtype, self.shape())?;
        if !self.is_contiguous() {
            write!(f, " strides {:?}", self.layout.strides())?;
        }
        write!(f, " on {})", self.device)
    }
}
