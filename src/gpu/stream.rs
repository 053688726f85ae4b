//! The device's one ordered record of work: an open batch of dispatches and copies, in program
//! order, and the submissions before it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::bindings::Bindings;
use super::block::GpuBlock;
use super::health::{self, Health};
use super::pipelines::Kernel;
use super::staging::Staging;
use super::templates::ParamsSpace;
use crate::error::{Error, Result};
use crate::launch::Dispatch;

/// When a batch is submitted though nobody waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    pub dispatches: usize,
    /// Bytes staged into the batch.
    pub staged_bytes: u64,
    /// Estimated seconds on the device.
    pub seconds: f64,
}

/// Bind groups kept for tensors: twice this many at most.
const BIND_GROUPS: usize = 1024;
/// Params of one batch where the adapter has no immediates.
const UNIFORM_BYTES: u64 = 64 << 10;
/// Alignment of uniform bindings that every adapter accepts.
const UNIFORM_ALIGNMENT: u64 = 256;
/// Labels named when a batch fails.
const LABELS: usize = 6;

/// A batch that was handed to the device.
#[derive(Clone)]
pub(crate) struct Submission {
    number: u64,
    pub index: wgpu::SubmissionIndex,
}

/// The open batch.
#[derive(Default)]
struct Batch {
    dispatches: usize,
    staged_bytes: u64,
    seconds: f64,
    /// What the batch writes: marked when it fails. Weak, so that a dropped tensor's memory is
    /// free at once.
    written: Vec<Weak<GpuBlock>>,
    labels: Vec<&'static str>,
}

/// Params in uniform slots: bytes of the open batch, uploaded just before it runs.
#[derive(Default)]
struct Uniforms {
    buffer: Option<wgpu::Buffer>,
    bytes: Vec<u8>,
    groups: HashMap<(u64, u64), wgpu::BindGroup>,
}

pub(crate) struct Stream {
    // Before the encoder: a pass must end first.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    /// The kernel that the pass has set.
    current: Option<Arc<Kernel>>,
    batch: Batch,
    uniforms: Uniforms,
    in_flight: VecDeque<Submission>,
    submissions: u64,
    /// The first batch that failed since the last synchronisation.
    failed: Option<Error>,
    pub bindings: Bindings,
    pub staging: Staging,
    limits: BatchLimits,
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    health: Arc<Health>,
}

impl Stream {
    pub(crate) fn new(
        name: &str,
        device: wgpu::Device,
        queue: wgpu::Queue,
        health: Arc<Health>,
        limits: BatchLimits,
    ) -> Self {
        Self {
            pass: None,
            encoder: None,
            current: None,
            batch: Batch::default(),
            uniforms: Uniforms::default(),
            in_flight: VecDeque::new(),
            submissions: 0,
            failed: None,
            bindings: Bindings::new(BIND_GROUPS),
            staging: Staging::new(),
            limits,
            name: name.to_owned(),
            device,
            queue,
            health,
        }
    }

    fn encoder(device: &wgpu::Device, slot: &mut Option<wgpu::CommandEncoder>) {
        if slot.is_none() {
            // One that came to nothing says so when the batch is submitted.
            let (encoder, _) = health::observed(device, || {
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor {
                    label: Some("orlop batch"),
                })
            });
            *slot = Some(encoder);
        }
    }

    /// Records dispatches of one kernel on bound operands, which write `written` and take about
    /// `seconds` in all. Everything was checked before.
    pub(crate) fn dispatch(
        &mut self,
        kernel: &Arc<Kernel>,
        operands: &wgpu::BindGroup,
        dispatches: &[Dispatch],
        written: &Arc<GpuBlock>,
        label: &'static str,
        seconds: f64,
    ) -> Result<()> {
        for dispatch in dispatches {
            // Before the pass: making room for the words may submit the batch.
            let uniform = match kernel.space {
                ParamsSpace::Uniform => Some(self.uniform_slot(kernel, &dispatch.words)?),
                ParamsSpace::Immediate => None,
            };
            Self::encoder(&self.device, &mut self.encoder);
            if self.pass.is_none() {
                self.current = None;
                if let Some(encoder) = &mut self.encoder {
                    let pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                    self.pass = Some(pass.forget_lifetime());
                }
            }
            if let Some(pass) = &mut self.pass {
                let current = self.current.replace(Arc::clone(kernel));
                if !current.is_some_and(|set| Arc::ptr_eq(&set, kernel)) {
                    pass.set_pipeline(&kernel.pipeline);
                }
                pass.set_bind_group(0, operands, &[]);
                match &uniform {
                    Some(group) => pass.set_bind_group(1, group, &[]),
                    None => pass.set_immediates(0, bytemuck::cast_slice(&dispatch.words)),
                }
                let [x, y, z] = dispatch.groups;
                pass.dispatch_workgroups(x, y, z);
            }
            self.batch.dispatches += 1;
            self.note(written, label, seconds / dispatches.len() as f64);
        }
        Ok(())
    }

    /// Puts a dispatch's words into the batch's uniform buffer.
    fn uniform_slot(&mut self, kernel: &Kernel, words: &[u32]) -> Result<wgpu::BindGroup> {
        let size = (words.len() as u64 * 4).next_multiple_of(16);
        if self.uniforms.bytes.len() as u64 + size > UNIFORM_BYTES {
            self.submit()?;
        }
        let offset = self.uniforms.bytes.len() as u64;
        self.uniforms
            .bytes
            .extend_from_slice(bytemuck::cast_slice(words));
        let end = (offset + size).next_multiple_of(UNIFORM_ALIGNMENT);
        self.uniforms.bytes.resize(end as usize, 0);
        if let Some(group) = self.uniforms.groups.get(&(offset, size)) {
            return Ok(group.clone());
        }
        let device = &self.device;
        let stored = &mut self.uniforms.buffer;
        let group = health::scoped(device, || {
            let buffer = stored.get_or_insert_with(|| {
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("orlop params"),
                    size: UNIFORM_BYTES,
                    usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                })
            });
            device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some("orlop params"),
                layout: &kernel.pipeline.get_bind_group_layout(1),
                entries: &[wgpu::BindGroupEntry {
                    binding: 0,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer,
                        offset,
                        size: wgpu::BufferSize::new(size),
                    }),
                }],
            })
        })
        .map_err(|caught| self.refused("params", caught.into_message()))?;
        self.uniforms.groups.insert((offset, size), group.clone());
        Ok(group)
    }

    /// An error of work that could not be recorded.
    pub(crate) fn refused(&self, label: &str, reason: String) -> Error {
        match self.health.check_failed(&self.device) {
            Err(lost) => lost,
            Ok(()) => Error::execution(&self.name, label, reason),
        }
    }

    /// Records a copy between two different buffers. Ends the open pass.
    pub(crate) fn copy(
        &mut self,
        from: (&wgpu::Buffer, u64),
        to: (&wgpu::Buffer, u64),
        bytes: u64,
    ) {
        self.pass = None;
        Self::encoder(&self.device, &mut self.encoder);
        if let Some(encoder) = &mut self.encoder {
            encoder.copy_buffer_to_buffer(from.0, from.1, to.0, to.1, bytes);
        }
        self.batch.staged_bytes += bytes;
    }

    /// Notes what the work just recorded writes and costs.
    pub(crate) fn note(&mut self, written: &Arc<GpuBlock>, label: &'static str, seconds: f64) {
        self.batch.written.push(Arc::downgrade(written));
        if self.batch.labels.len() < LABELS && !self.batch.labels.contains(&label) {
            self.batch.labels.push(label);
        }
        self.batch.seconds += seconds;
    }

    /// True when the batch is large enough to be submitted.
    pub(crate) fn is_full(&self) -> bool {
        self.batch.dispatches >= self.limits.dispatches
            || self.batch.staged_bytes >= self.limits.staged_bytes
            || self.batch.seconds >= self.limits.seconds
    }

    /// Ends the open batch and hands it to the device. A batch that fails marks what it wrote.
    ///
    /// # Errors
    /// Only [`Error::DeviceLost`]; a failed batch shows when its results are read.
    pub(crate) fn submit(&mut self) -> Result<()> {
        self.health.check()?;
        self.pass = None;
        self.current = None;
        let batch = std::mem::take(&mut self.batch);
        let Some(encoder) = self.encoder.take() else {
            return Ok(());
        };
        let uniforms = std::mem::take(&mut self.uniforms.bytes);
        let prelude = if uniforms.is_empty() {
            Ok(None)
        } else {
            self.uniform_upload(&uniforms)
        };
        self.staging.before_submit(&self.device);
        let (device, queue) = (&self.device, &self.queue);
        let submitted = prelude.and_then(|prelude| {
            health::scoped(device, || {
                queue.submit(prelude.into_iter().chain([encoder.finish()]))
            })
        });
        self.staging.after_submit(&self.device);
        match submitted {
            Ok(index) => {
                self.submissions += 1;
                self.in_flight.push_back(Submission {
                    number: self.submissions,
                    index,
                });
            }
            Err(caught) => {
                self.health.check_failed(&self.device)?;
                let error =
                    Error::execution(&self.name, batch.labels.join(", "), caught.into_message());
                tracing::error!(%error, "batch failed");
                for block in batch.written.iter().filter_map(Weak::upgrade) {
                    block.mark(&error);
                }
                self.failed.get_or_insert(error);
            }
        }
        self.health.check()
    }

    /// Submits work of its own after the open batch: when it fails nothing else is harmed.
    ///
    /// # Errors
    /// `InvalidArgument` with what the device said of it, `DeviceLost`.
    pub(crate) fn submit_apart(
        &mut self,
        op: &'static str,
        record: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<()> {
        self.submit()?;
        let (device, queue) = (&self.device, &self.queue);
        let submitted = health::scoped(device, || {
            let mut encoder =
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(op) });
            record(&mut encoder);
            queue.submit([encoder.finish()])
        });
        self.health.check()?;
        let index = submitted.map_err(|caught| Error::invalid(op, caught.into_message()))?;
        self.submissions += 1;
        self.in_flight.push_back(Submission {
            number: self.submissions,
            index,
        });
        Ok(())
    }

    fn uniform_upload(
        &mut self,
        bytes: &[u8],
    ) -> std::result::Result<Option<wgpu::CommandBuffer>, health::Caught> {
        let (from, offset) = self.staging.stage_small(&self.device, bytes)?;
        let (device, params) = (&self.device, &self.uniforms.buffer);
        health::scoped(device, || {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor {
                label: Some("orlop params"),
            });
            if let Some(params) = params {
                encoder.copy_buffer_to_buffer(&from, offset, params, 0, bytes.len() as u64);
            }
            Some(encoder.finish())
        })
    }

    /// The latest submission that may still run.
    pub(crate) fn last_submission(&self) -> Option<Submission> {
        self.in_flight.back().cloned()
    }

    /// The oldest of at least `count` submissions that may still run.
    pub(crate) fn oldest_of(&self, count: usize) -> Option<Submission> {
        (self.in_flight.len() >= count)
            .then(|| self.in_flight.front().cloned())
            .flatten()
    }

    /// Forgets a submission that was waited for, and those before it.
    pub(crate) fn finished(&mut self, submission: &Submission) {
        self.in_flight
            .retain(|other| other.number > submission.number);
    }

    /// The error of the first batch that failed since this was last asked.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failed.take()
    }
}
