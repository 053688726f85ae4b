//! Scopes: the device that ops of a thread run on, whatever their operands' home.

use std::cell::RefCell;

use crate::device::Device;

thread_local! {
    /// The devices of the scopes that are open on this thread, innermost last.
    static OPEN: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// Runs `work` with every op of this thread on this device, and gives what `work` gives.
    ///
    /// Operands that live elsewhere travel here, under soft and strict placement alike (a scope
    /// asks for it), and the [placement log](Device::placement_log) says so. Results stay here.
    /// What this device cannot do goes to the CPU and comes back here under
    /// [`Placement::Soft`](crate::Placement::Soft), and is an error under
    /// [`Placement::Strict`](crate::Placement::Strict).
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
        /// Closes the scope, after a panic too.
        struct Close;
        impl Drop for Close {
            fn drop(&mut self) {
                let closed = OPEN.try_with(|open| open.borrow_mut().pop());
                // A device's last handle goes here, where nothing is borrowed.
                drop(closed);
            }
        }
        // A thread that is ending has no scope.
        let _ = OPEN.try_with(|open| open.borrow_mut().push(self.clone()));
        let _close = Close;
        work()
    }
}

/// The device of the innermost scope that is open on this thread.
pub(super) fn innermost() -> Option<Device> {
    OPEN.try_with(|open| open.borrow().last().cloned())
        .ok()
        .flatten()
}
