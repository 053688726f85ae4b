//! Arrays of the `ndarray` crate.

use std::cmp::Reverse;

use ndarray::{ArrayD, ArrayRef, Dimension, IxDyn};

use crate::cpu::host_vec;
use crate::device::Device;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Elements of a lane below which finding it takes longer than going on one by one.
const SHORT: usize = 32;

/// # Arrays of the `ndarray` crate
///
/// With the feature `ndarray`.
impl Tensor {
    /// A tensor with the elements of an array or view of any strides: `&array`, `&array.view()`.
    ///
    /// Elements that lie without gaps, in C order, Fortran order or any other order of the axes, go
    /// up straight from where they are, and the tensor is a view with the same order of axes.
    /// Others (reversed, sliced, repeated) are collected row-major first.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`]; [`Error::OutOfMemory`] of the `host` where there is no room to collect them.
    pub fn from_ndarray<T: Element, D: Dimension>(
        device: &Device,
        array: &ArrayRef<T, D>,
    ) -> Result<Tensor> {
        let array = array.view().into_dyn();
        let axes = widest_first(array.shape(), array.strides());
        let ordered = array.view().permuted_axes(axes.clone());
        match ordered.as_slice() {
            Some(elements) => {
                let tensor = Tensor::from_slice(device, elements, ordered.shape())?;
                tensor.permute(&inverse(&axes))
            }
            None => {
                let mut elements = host_vec("from_ndarray", array.len())?;
                if array.shape().last().is_some_and(|&lane| lane < SHORT) {
                    elements.extend(array.iter().copied());
                    return Tensor::from_vec(device, elements, array.shape());
                }
                for lane in array.rows() {
                    match lane.as_slice() {
                        Some(lane) => elements.extend_from_slice(lane),
                        None => elements.extend(lane.iter().copied()),
                    }
                }
                Tensor::from_vec(device, elements, array.shape())
            }
        }
    }

    /// The elements as an array, with the tensor's order of axes where its elements lie without
    /// gaps, else row-major. The data is copied once, from the device.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        let axes = widest_first(self.shape().dims(), self.layout().strides());
        let ordered = self.permute(&axes)?;
        let (source, axes) = if ordered.is_contiguous() {
            (ordered, axes)
        } else {
            (self.clone(), (0..self.rank()).collect())
        };
        let shape = IxDyn(source.shape().dims());
        let array = ArrayD::from_shape_vec(shape, source.to_vec()?)
            .map_err(|error| Error::invalid("to_ndarray", error.to_string()))?;
        Ok(array.permuted_axes(inverse(&axes)))
    }
}

/// The axes by falling stride: the order in which elements lie. Axes of size 1 have no place in it
/// and come first.
fn widest_first(sizes: &[usize], strides: &[isize]) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..sizes.len()).collect();
    axes.sort_by_key(|&axis| (sizes[axis] != 1, Reverse(strides[axis])));
    axes
}

fn inverse(axes: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; axes.len()];
    for (new, &old) in axes.iter().enumerate() {
        inverse[old] = new;
    }
    inverse
}
