//! Conversions between dtypes.

use super::elementwise::Elementwise;
use crate::dtype::DType;
use crate::error::Result;
use crate::road;
use crate::tensor::Tensor;

impl Tensor {
    /// The elements as another dtype; the tensor itself when it has that dtype already and lives where it would be
    /// cast (see [`Device::scope`](crate::Device::scope)).
    ///
    /// Floats to integers go toward zero and saturate, NaN becomes 0; integers to integers keep
    /// the bits; everything else rounds to nearest even (as Rust's `as`, on every device). To bool:
    /// whether it is not zero, NaN included; from bool: 1 and 0.
    ///
    /// # Errors
    /// Out of memory, unsupported under strict placement, a lost device.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return self.to(&road::home("cast", &[self])?);
        }
        Elementwise::cast(dtype).run(&[self])
    }
}
