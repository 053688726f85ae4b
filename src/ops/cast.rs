//! Conversions between dtypes.

use super::elementwise::Elementwise;
use crate::dtype::DType;
use crate::error::Result;
use crate::road;
use crate::tensor::Tensor;

impl Tensor {
    /// The elements as another dtype; the tensor itself when it has that dtype already (on the device of a
    /// [scope](crate::Device::scope) that is open, a copy).
    ///
    /// Floats to integers go toward zero and saturate, NaN becomes 0; integers to integers keep
    /// the bits; everything else rounds to nearest even (as Rust's `as`, on every device). To bool:
    /// whether it is not zero, NaN included; from bool: 1 and 0.
    ///
    /// # Errors
    /// What any op can meet ([`Error`](crate::Error#what-any-op-can-meet)).
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return match road::home("cast", &[self])? == *self.device() {
                true => Ok(self.clone()),
                false => self.copy(),
            };
        }
        Elementwise::cast(dtype).run(&[self])
    }
}
