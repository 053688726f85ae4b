//! Ops that find places by the numbers in an index tensor.
//!
//! An index is i32 or u32. Negative ones count from the end of the axis; what is then outside of the
//! axis is never read or written, on any device: it takes a 0, and adds nothing. Errors would need the
//! numbers on the host; who wants them asks [`Tensor::check_indices`].

mod take;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::road;
use crate::tensor::Tensor;

pub(super) use take::{Take, specialisations};

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
    /// [`Error::InvalidArgument`] when there is no such axis, or it is empty and the index is not;
    /// [`Error::DTypeMismatch`] for an index of another dtype; out of memory, a lost device.
    pub fn index_select(&self, axis: usize, index: &Tensor) -> Result<Tensor> {
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
    pub fn gather(&self, axis: usize, index: &Tensor) -> Result<Tensor> {
        take(Take::gather(axis), self, index)
    }

    /// Reads an index tensor back and checks that each number is in `-size..size`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the first number that is not, and where it is;
    /// [`Error::DTypeMismatch`] when it is neither i32 nor u32; as [`Tensor::to_vec`].
    pub fn check_indices(&self, size: usize) -> Result<()> {
        const OP: &str = "check_indices";
        let numbers: Vec<i64> = match self.dtype() {
            DType::U32 => self.to_vec::<u32>()?.into_iter().map(i64::from).collect(),
            _ => self.to_vec::<i32>()?.into_iter().map(i64::from).collect(),
        };
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        match numbers.iter().position(|&x| x >= size || x < -size) {
            None => Ok(()),
            Some(at) => Err(Error::invalid(
                OP,
                format!(
                    "element {at} of the index is {}, and the axis has {size} entries",
                    numbers[at]
                ),
            )),
        }
    }
}

fn take(op: Take, table: &Tensor, index: &Tensor) -> Result<Tensor> {
    road::run(&op, &[table, &apart(index, &[table])?])
}

/// An index for kernels: in a storage that none of the others share, and without gaps where it would
/// not fit a binding.
fn apart(index: &Tensor, others: &[&Tensor]) -> Result<Tensor> {
    let limit = index.device().capabilities().max_binding_bytes;
    let shared = others.iter().any(|other| other.shares_storage(index));
    if shared || (index.storage().bytes() > limit && !index.is_contiguous()) {
        return index.copy();
    }
    Ok(index.clone())
}
