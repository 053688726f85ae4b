//! Launches become dispatches: addresses are resolved here, under the stream lock, and never
//! leave it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::batch::{Effect, Target};
use super::bindings::{BindingKey, BoundRange};
use super::block::GpuBlock;
use super::health::Caught;
use super::pipelines::CompiledKernel;
use super::regions::Regions;
use super::stream::TexelWork;
use super::{Access, Gpu};
use crate::error::{Error, Result};
use crate::launch::{Bound, Launch, TexelCopy, WINDOW_ALIGNMENT, Window};
use crate::memory::{Pool, QUANTUM};

const _: () = assert!(QUANTUM.is_multiple_of(WINDOW_ALIGNMENT));

/// The kernel of each launch.
pub(crate) type Kernels = SmallVec<[Arc<CompiledKernel>; 1]>;
/// An op's operands: inputs, then what it writes, then scratch.
pub(crate) type Blocks<'a> = SmallVec<[&'a Arc<GpuBlock>; 4]>;

impl Gpu {
    /// Refuses what the device would refuse, before memory is taken for it, and compiles each
    /// kernel. `storage_bytes` are the sizes of the operands' storages.
    ///
    /// # Errors
    /// A kernel that does not compile, a binding above the limit, a grid above the adapter's, a
    /// lost device.
    pub(crate) fn prepare(
        &self,
        op: &'static str,
        launches: &[Launch],
        storage_bytes: &[u64],
    ) -> Result<Kernels> {
        for launch in launches {
            self.check_launch(op, launch)?;
            for bound in &launch.operands {
                let bytes = storage_bytes.get(bound.operand).copied();
                self.check_bound(op, bound, bytes.unwrap_or(0))?;
            }
        }
        let _hold = self.hold();
        let mut kernels = Kernels::new();
        for (at, launch) in launches.iter().enumerate() {
            let before = at
                .checked_sub(1)
                .filter(|&before| launches[before].kernel == launch.kernel);
            let kernel = match before {
                Some(before) => Arc::clone(&kernels[before]),
                None => self.pipelines.get(&launch.kernel)?,
            };
            kernels.push(kernel);
        }
        Ok(kernels)
    }

    /// Records launches that were prepared, in order, with nothing of other threads between them.
    /// `blocks[output]` is what they write.
    ///
    /// # Errors
    /// An operand without contents, no memory for texels, a lost device; then nothing was recorded. What fails later shows when the result is read.
    pub(crate) fn record(
        &self,
        access: &Access<'_>,
        op: &'static str,
        launches: &[Launch],
        kernels: &Kernels,
        blocks: &Blocks<'_>,
        output: usize,
    ) -> Result<()> {
        let written = blocks
            .get(output)
            .ok_or_else(|| Error::invalid(op, "a launch without operands"))?;
        let (mut stream, _hold) = self.stream_to_write(written, access.order())?;
        let first = launches.first().zip(kernels.first());
        if let Some((dispatch, kernel)) =
            first.and_then(|(launch, kernel)| Some((launch.dispatches.first()?, kernel)))
        {
            stream.make_room(kernel, dispatch.words.len())?;
        }
        // Under the lock: another thread's submission may have failed what wrote an operand.
        for block in blocks {
            block.check()?;
            block.used();
        }
        let (groups, mut texels) = {
            let mut pool = self.memory.lock();
            pool.source_mut().age();
            stream.forget_returned(&mut pool);
            let mut groups: SmallVec<[wgpu::BindGroup; 1]> = SmallVec::new();
            let mut texels: SmallVec<[TexelWork; 1]> = SmallVec::new();
            for (launch, kernel) in launches.iter().zip(kernels) {
                let key = resolve(op, &pool, launch, blocks)?;
                let group = stream
                    .bindings
                    .get(&self.device, &kernel.operands, &key, || {
                        key.iter()
                            .map(|range| pool.region(range.region))
                            .collect::<Option<SmallVec<_>>>()
                    })
                    .map_err(|reason| self.health.explain(&self.device, op, reason))?;
                groups.push(group);
                texels.push(TexelWork {
                    store: None,
                    copies: rows(op, &pool, launch, blocks)?,
                });
            }
            (groups, texels)
        };
        let layers = launches.iter().flat_map(|launch| &launch.texels);
        if let Some(last) = layers.map(|copy| copy.layer).max() {
            let store = stream.texels_of(last + 1).map_err(|caught| match caught {
                Caught::OutOfMemory(_) => self.staging_failed(caught),
                other => self.health.explain(&self.device, op, other.into_message()),
            })?;
            for (work, kernel) in texels.iter_mut().zip(kernels) {
                work.store = kernel.texels.then(|| store.clone());
            }
        }
        for (((launch, kernel), group), texels) in
            launches.iter().zip(kernels).zip(&groups).zip(&texels)
        {
            let seconds = self.capabilities.seconds(launch.flops, launch.bytes);
            let before = stream.refused();
            let effect = || Effect {
                label: op,
                reads: match launch.texels.is_empty() {
                    // Of an op's many operands a launch may have few.
                    true => {
                        let bound = launch.operands.iter();
                        let bound = bound.filter_map(|bound| blocks.get(bound.operand));
                        bound.map(|block| block.id()).collect()
                    }
                    false => blocks.iter().map(|block| block.id()).collect(),
                },
                writes: Target::block(written),
            };
            stream.dispatch(kernel, group, texels, &launch.dispatches, effect, seconds)?;
            if stream.is_full() {
                stream.submit()?;
            }
            if stream.refused() > before {
                // Of what failed then, and later launches read, their batch knows nothing.
                let failed = blocks.iter().find_map(|block| block.check().err());
                if let Some(error) = failed {
                    written.mark(written.id(), &error);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What is bound fits its storage and the adapter's limit.
    fn check_bound(&self, op: &'static str, bound: &Bound, storage_bytes: u64) -> Result<()> {
        let limit = self.capabilities.max_binding_bytes;
        let (what, bytes) = match bound.window {
            None => ("an operand's storage", storage_bytes),
            Some(window) => ("a window of an operand", window.bytes),
        };
        if bytes > limit {
            return Err(Error::too_large(
                op,
                what,
                bytes.into(),
                limit,
                "bytes",
                "the adapter's largest storage binding",
                "split it along a dimension, or use the CPU device",
            ));
        }
        let is_inside = |window: Window| {
            window.offset.is_multiple_of(WINDOW_ALIGNMENT)
                && window.bytes > 0
                && window.bytes.is_multiple_of(WINDOW_ALIGNMENT)
                && window.end() <= storage_bytes
        };
        match bound.window {
            Some(window) if !is_inside(window) => Err(Error::invalid(
                op,
                format!("{window:?} does not lie in a storage of {storage_bytes} bytes"),
            )),
            _ => Ok(()),
        }
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
                        launch.kernel.name(),
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
                    launch.kernel.name(),
                    launch.kernel.bindings,
                    launch.operands.len(),
                    capabilities.max_bindings
                ),
            ));
        }
        Ok(())
    }
}

/// Where the rows are that a launch copies into texels.
fn rows(
    op: &'static str,
    pool: &Pool<Regions>,
    launch: &Launch,
    blocks: &Blocks<'_>,
) -> Result<Vec<((wgpu::Buffer, u64), TexelCopy)>> {
    launch
        .texels
        .iter()
        .map(|&copy| {
            let place = blocks
                .get(copy.operand)
                .and_then(|block| pool.place(block.id()));
            place
                .and_then(|place| {
                    let buffer = pool.region(place.region)?.clone();
                    Some(((buffer, place.offset + copy.offset), copy))
                })
                .ok_or_else(|| Error::invalid(op, "an operand has no memory"))
        })
        .collect()
}

/// The places of a launch's bindings.
fn resolve(
    op: &'static str,
    pool: &Pool<Regions>,
    launch: &Launch,
    blocks: &Blocks<'_>,
) -> Result<BindingKey> {
    launch
        .operands
        .iter()
        .map(|bound| {
            let place = blocks
                .get(bound.operand)
                .and_then(|block| pool.place(block.id()))
                .ok_or_else(|| Error::invalid(op, "an operand has no memory"))?;
            let (from, bytes) = match bound.window {
                Some(window) => (window.offset, window.bytes),
                None => (0, place.bytes),
            };
            Ok(BoundRange {
                region: place.region,
                offset: place.offset + from,
                bytes,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::device::Device;
    use crate::dtype::DType;
    use crate::gpu::wait::IN_FLIGHT;
    use crate::tensor::Tensor;

    /// Who records is never far ahead of the device. (On GL llvmpipe works inside of the submission.)
    #[test]
    fn few_submissions_are_in_flight() {
        for info in Device::list().unwrap() {
            if info.kind() != crate::DeviceKind::Software || info.backend == "Gl" {
                continue;
            }
            let device = Device::builder().select(&info.selector).build().unwrap();
            let gpu = device.gpu().unwrap();
            let a = Tensor::full(&device, [256, 256], 1.0, DType::F32).unwrap();
            for _ in 0..40 {
                a.matmul(&a).unwrap();
                gpu.submit().unwrap();
                let in_flight = gpu.in_flight();
                assert!(in_flight <= IN_FLIGHT as u64 + 1, "{info}: {in_flight}");
            }
        }
    }

    /// 96 MiB in windows of 4 MiB, each an estimated 2 ms: the batch is full after ten.
    #[test]
    fn long_work_is_submitted_apart() {
        let soft = |info: &&crate::DeviceInfo| info.kind() == crate::DeviceKind::Software;
        for info in Device::list().unwrap().iter().filter(soft) {
            let device = Device::builder()
                .select(&info.selector)
                .max_binding_bytes(4 << 20)
                .build()
                .unwrap();
            let tensor = Tensor::empty(&device, 24 << 20, DType::F32).unwrap();
            let submissions = || device.gpu().unwrap().stream.lock().submissions();
            tensor.slice(..1 << 20).unwrap().fill(1.0).unwrap();
            assert_eq!(submissions(), 0, "{info}: one window is no batch");
            tensor.fill(2.0).unwrap();
            assert_eq!(submissions(), 2, "{info}");
            let ends = [0, (1 << 20) - 1, 1 << 20, (24 << 20) - 1];
            for at in ends {
                let got = tensor.slice(at..at + 1).unwrap().item::<f32>().unwrap();
                assert_eq!(got, 2.0, "{info}: element {at}");
            }
        }
    }
}
