//! Scopes: the device that ops of a thread run on, whatever their operands' home.

use std::cell::Cell;

use crate::device::Device;
use crate::local::with_local;

thread_local! {
    /// The device of the innermost scope that is open on this thread.
    static INNERMOST: Cell<Option<Device>> = const { Cell::new(None) };
}

impl Device {
    /// Runs `work` with every op of this thread on this device, and gives what `work` gives.
    ///
    /// Operands that live elsewhere travel here, under soft and strict placement alike (a scope
    /// asks for it), and the [placement log](Device::placement_log) says so. Results stay here.
    /// What this device cannot do goes to the CPU and comes back here under
    /// [`Placement::Soft`](crate::Placement::Soft), but for dtypes that it cannot hold (f64), which stay
    /// there; under [`Placement::Strict`](crate::Placement::Strict) it is an error.
    ///
    /// Not ops, so untouched by scopes: views, `contiguous` and `reshape`, reading to the host, and
    /// writing in place stay with their tensor; creation and [`Tensor::to`](crate::Tensor::to) go
    /// to the device they name.
    ///
    /// Scopes nest, the innermost counts, and each ends with its `work`, by a panic too. A scope
    /// is of this thread alone: threads that `work` starts are outside. A future is outside too
    /// once it is polled later: in async code a scope goes around the ops between two awaits,
    /// never around the making of a future.
    ///
    /// ```
    /// # use orlop::{DType, Device, Tensor};
    /// # fn main() -> orlop::Result<()> {
    /// let device = Device::best()?;
    /// let a = Tensor::ones(&device, [2, 3], DType::F32)?;
    /// let sum = Device::cpu().scope(|| &a + &a)?;
    /// assert_eq!(sum.device(), &Device::cpu());
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        with_local(&INNERMOST, Some(self.clone()), work)
    }
}

/// The device of the innermost scope that is open on this thread.
pub(super) fn innermost() -> Option<Device> {
    let device = INNERMOST.try_with(|innermost| {
        let device = innermost.take();
        innermost.set(device.clone());
        device
    });
    // A thread that is ending has no scope.
    device.ok().flatten()
}
