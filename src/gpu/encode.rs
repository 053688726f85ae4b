//! A launch becomes dispatches: addresses are resolved here, under the stream lock, and never
//! leave it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Gpu;
use super::bindings::{BindingKey, BoundRange};
use super::block::GpuBlock;
use super::pipelines::Kernel;
use crate::capabilities::DeviceKind;
use crate::error::{Error, Result};
use crate::launch::Launch;

impl Gpu {
    /// Refuses what the device would refuse, before memory is taken for it, and compiles the
    /// kernel. `largest` is the largest storage that the launch binds, in bytes.
    ///
    /// # Errors
    /// A kernel that does not compile, a storage above the binding limit, a grid above the
    /// adapter's, a lost device.
    pub(crate) fn prepare(
        &self,
        op: &'static str,
        launch: &Launch,
        largest: u64,
    ) -> Result<Arc<Kernel>> {
        let limit = self.capabilities.max_binding_bytes;
        if largest > limit {
            return Err(Error::too_large(
                op,
                "an operand's storage",
                u128::from(largest),
                limit,
                "the adapter's largest storage binding",
                "split it along a dimension, or use the CPU device",
            ));
        }
        self.check_launch(op, launch)?;
        let _hold = self.hold();
        self.pipelines.get(&launch.kernel)
    }

    /// Records a launch that was prepared. `operands` are in the order of its bindings, what it
    /// writes last.
    ///
    /// # Errors
    /// An operand without contents, a lost device; then nothing was recorded.
    pub(crate) fn record(
        &self,
        op: &'static str,
        launch: &Launch,
        kernel: &Arc<Kernel>,
        operands: &[&Arc<GpuBlock>],
    ) -> Result<()> {
        for operand in operands {
            operand.check()?;
        }
        let written = operands
            .last()
            .filter(|_| operands.len() == launch.kernel.bindings as usize)
            .ok_or_else(|| Error::invalid(op, "a launch without its operands"))?;
        let (mut stream, hold) = self.stream_to_write(written)?;
        {
            let mut pool = self.pool.lock();
            if std::mem::take(&mut pool.source_mut().returned) {
                stream
                    .bindings
                    .retain(|region| pool.region(region).is_some());
            }
            let mut key = BindingKey::new();
            for operand in operands {
                let place = pool
                    .place(operand.id())
                    .ok_or_else(|| Error::invalid(op, "an operand has no memory"))?;
                key.push(BoundRange {
                    region: place.region,
                    offset: place.offset,
                    bytes: place.bytes,
                });
            }
            let group = stream
                .bindings
                .get(&self.device, &kernel.operands, &key, || {
                    key.iter()
                        .map(|range| pool.region(range.region))
                        .collect::<Option<SmallVec<_>>>()
                })
                .map_err(|reason| stream.refused(op, reason))?;
            drop(pool);
            let seconds = self.estimate_seconds(launch);
            stream.dispatch(kernel, &group, &launch.dispatches, written, op, seconds)?;
        }
        let full = stream.is_full();
        if full {
            stream.submit()?;
        }
        drop((stream, hold));
        if full { self.throttle() } else { Ok(()) }
    }

    /// What the adapter would refuse is refused here, before it can spoil a batch.
    fn check_launch(&self, op: &'static str, launch: &Launch) -> Result<()> {
        let capabilities = &self.capabilities;
        let limit = capabilities.max_workgroups;
        for dispatch in &launch.dispatches {
            if dispatch.groups.iter().any(|&groups| groups > limit) {
                return Err(Error::invalid(
                    op,
                    format!(
                        "a grid of {:?} workgroups is above {limit}",
                        dispatch.groups
                    ),
                ));
            }
            if dispatch.words.len() != launch.kernel.words as usize {
                return Err(Error::invalid(
                    op,
                    format!(
                        "kernel {} takes {} words of params, got {}",
                        launch.kernel.template,
                        launch.kernel.words,
                        dispatch.words.len()
                    ),
                ));
            }
        }
        if launch.kernel.bindings as usize != launch.operands.len()
            || launch.kernel.bindings > capabilities.max_bindings
        {
            return Err(Error::invalid(
                op,
                format!(
                    "kernel {} binds {} buffers, got {}; the adapter allows {}",
                    launch.kernel.template,
                    launch.kernel.bindings,
                    launch.operands.len(),
                    capabilities.max_bindings
                ),
            ));
        }
        Ok(())
    }

    /// A coarse guess that bounds a batch in time; never a promise.
    fn estimate_seconds(&self, launch: &Launch) -> f64 {
        let (flops_per_second, bytes_per_second) = match self.capabilities.kind {
            DeviceKind::Software => (5e9, 2e9),
            DeviceKind::DiscreteGpu => (5e12, 3e11),
            _ => (5e11, 3e10),
        };
        (launch.flops / flops_per_second).max(launch.bytes / bytes_per_second)
    }
}
