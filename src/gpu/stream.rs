//! The device's one ordered record of work: an open batch of dispatches and copies, in program
//! order, and the submissions before it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::batch::{Batch, Command, Effect, Target, Work};
use super::bindings::Bindings;
use super::block::GpuBlock;
use super::health::{self, Caught, Health};
use super::pipelines::CompiledKernel;
use super::progress::Progress;
use super::regions::Regions;
use super::staging::Staging;
use super::templates::ParamsSpace;
use super::texels::{self, TexelStore, Texels};
use crate::error::{Error, Result};
use crate::faults::{Fault, FaultHook};
use crate::launch::{Dispatch, TexelCopy};
use crate::memory::{BlockId, OwnedPool};

/// When a batch is submitted though nobody waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    pub dispatches: usize,
    /// Dispatches and copies, however small these are.
    pub commands: usize,
    /// Bytes copied by the batch.
    pub copied_bytes: u64,
    /// Estimated seconds on the device.
    pub seconds: f64,
}

/// Bind groups kept for tensors: twice this many at most.
const BIND_GROUPS: usize = 1024;
/// Params of one batch where the adapter has no immediates.
const UNIFORM_BYTES: u64 = 64 << 10;

/// A batch that was handed to the device.
#[derive(Clone)]
pub(crate) struct Submission {
    pub number: u64,
    pub index: wgpu::SubmissionIndex,
}

/// Params in uniform slots, uploaded just before the batch runs.
#[derive(Default)]
struct Uniforms {
    buffer: Option<wgpu::Buffer>,
    /// By offset and size.
    groups: HashMap<(u64, u64), wgpu::BindGroup>,
}

/// What a launch reads as texels: where, and what is copied there first.
#[derive(Default)]
pub(crate) struct TexelWork {
    pub store: Option<TexelStore>,
    pub copies: Vec<((wgpu::Buffer, u64), TexelCopy)>,
}

pub(crate) struct Stream {
    batch: Batch,
    uniforms: Uniforms,
    in_flight: VecDeque<Submission>,
    submissions: u64,
    /// Batches that the device refused as a whole.
    refused: u64,
    /// The first command that failed since the last synchronisation.
    failed: Option<Error>,
    pub bindings: Bindings,
    pub staging: Staging,
    pub texels: Texels,
    faults: FaultHook,
    limits: BatchLimits,
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    health: Arc<Health>,
    progress: Arc<Progress>,
}

impl Stream {
    pub(crate) fn new(
        name: &str,
        device: wgpu::Device,
        queue: wgpu::Queue,
        health: Arc<Health>,
        progress: Arc<Progress>,
        limits: BatchLimits,
        faults: FaultHook,
    ) -> Self {
        Self {
            batch: Batch::default(),
            uniforms: Uniforms::default(),
            in_flight: VecDeque::new(),
            submissions: 0,
            refused: 0,
            failed: None,
            bindings: Bindings::new(BIND_GROUPS),
            staging: Staging::new(&device, faults.clone()),
            texels: Texels::default(),
            faults,
            limits,
            name: name.to_owned(),
            device,
            queue,
            health,
            progress,
        }
    }

    /// Forgets the bind groups of regions that went back: they keep their memory.
    pub(crate) fn forget_returned(&mut self, pool: &mut OwnedPool<Regions, GpuBlock>) {
        if std::mem::take(&mut pool.source_mut().returned) {
            self.bindings.retain(|region| pool.region(region).is_some());
            // What is recorded may use it. (Of a batch that goes one by one the first counts: that is all but never.)
            let open = u64::from(!self.batch.commands.is_empty());
            pool.source_mut().leaves_with(self.submissions + open);
        }
    }

    /// Submits the open batch if it has no room for one more dispatch of `kernel`, so that its
    /// failures are known before the operands are looked at.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(crate) fn make_room(&mut self, kernel: &CompiledKernel, words: usize) -> Result<()> {
        let full = kernel.space == ParamsSpace::Uniform
            && self.batch.uniform_bytes + Batch::uniform_slot(words) > UNIFORM_BYTES;
        if full { self.submit() } else { Ok(()) }
    }

    /// Records dispatches of one kernel on bound operands, which take about `seconds` in all.
    /// Everything was checked before.
    pub(crate) fn dispatch(
        &mut self,
        kernel: &Arc<CompiledKernel>,
        operands: &wgpu::BindGroup,
        texels: &TexelWork,
        dispatches: &[Dispatch],
        effect: impl Fn() -> Effect,
        seconds: f64,
    ) -> Result<()> {
        let mut shared = None;
        for dispatch in dispatches {
            self.make_room(kernel, dispatch.words.len())?;
            // Making room begins a batch anew, also when nothing of the last one could run.
            if self.batch.effects.is_empty() {
                shared = None;
            }
            let first = shared.is_none();
            let effect = *shared.get_or_insert_with(|| self.batch.effect(effect()));
            if let (Some(store), true) = (&texels.store, first) {
                for (from, copy) in &texels.copies {
                    self.batch
                        .copy_to_texels(from, &store.texture, *copy, effect);
                }
            }
            let store = texels.store.as_ref();
            self.batch
                .dispatch(kernel, operands, store, dispatch, effect);
            self.batch.seconds += seconds / dispatches.len() as f64;
        }
        Ok(())
    }

    /// The device's texels, of so many layers at least.
    ///
    /// # Errors
    /// What the device said.
    pub(crate) fn texels_of(&mut self, layers: u32) -> std::result::Result<TexelStore, Caught> {
        self.texels.of(&self.device, layers)
    }

    /// Records a copy between two different buffers.
    pub(crate) fn copy(
        &mut self,
        mut from: (wgpu::Buffer, u64),
        to: (wgpu::Buffer, u64),
        bytes: u64,
        effect: Effect,
    ) {
        if self.faults.strikes(Fault::Copy) {
            // From beyond the end, so that wgpu itself refuses it.
            from.1 = from.0.size();
        }
        self.batch.copy(from, to, bytes, effect);
    }

    /// Commands of the open batch.
    #[cfg(test)]
    pub(super) fn commands(&self) -> usize {
        self.batch.commands.len()
    }

    /// True when the batch is large enough to be submitted.
    pub(crate) fn is_full(&self) -> bool {
        self.batch.dispatches >= self.limits.dispatches
            || self.batch.commands.len() >= self.limits.commands
            || self.batch.copied_bytes >= self.limits.copied_bytes
            || self.batch.seconds >= self.limits.seconds
    }

    /// Ends the open batch and hands it to the device. When the device refuses it, its commands go
    /// one by one: those that fail, and those that read what they would have written, mark what
    /// they write; all others run.
    ///
    /// # Errors
    /// Only [`Error::DeviceLost`]; failed work shows when its results are read.
    pub(crate) fn submit(&mut self) -> Result<()> {
        self.health.check()?;
        if self.batch.commands.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.staging.before_submit(&self.device);
        match self.run(&batch, &batch.commands) {
            Ok(index) => self.submitted(index),
            Err(_) => {
                self.refused += 1;
                self.run_one_by_one(&batch);
            }
        }
        self.staging.after_submit(&self.device);
        // After the mappings: whoever sees a submission done finds its slots mapped.
        self.progress.follow(&self.queue, self.submissions);
        batch.clear();
        self.batch = batch;
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
        let commands = health::scoped(device, || {
            let mut encoder =
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(op) });
            record(&mut encoder);
            encoder.finish()
        });
        let submitted = commands.and_then(|commands| health::submit(device, queue, commands));
        // A buffer that went with the device is refused like one that is wrong.
        self.health.ask(&self.device)?;
        let index = submitted.map_err(|caught| Error::invalid(op, caught.into_message()))?;
        self.submitted(index);
        self.progress.follow(&self.queue, self.submissions);
        Ok(())
    }

    fn submitted(&mut self, index: wgpu::SubmissionIndex) {
        self.forget_finished();
        self.submissions += 1;
        self.in_flight.push_back(Submission {
            number: self.submissions,
            index,
        });
    }

    /// Encodes commands of a batch and hands them to the device, all or none.
    fn run(
        &mut self,
        batch: &Batch,
        commands: &[Command],
    ) -> std::result::Result<wgpu::SubmissionIndex, Caught> {
        let slots = self.uniform_slots(batch, commands)?;
        let commands = health::scoped(&self.device, || {
            let mut encoder = self
                .device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor {
                    label: Some("orlop batch"),
                });
            if let (Some((from, offset, bytes)), Some(buffer)) =
                (&slots.upload, &self.uniforms.buffer)
            {
                encoder.copy_buffer_to_buffer(from, *offset, buffer, 0, *bytes);
            }
            encode(&mut encoder, batch, commands, &slots.groups);
            encoder.finish()
        })?;
        health::submit(&self.device, &self.queue, commands)
    }

    /// Runs what can run of a batch that the device refused as a whole.
    fn run_one_by_one(&mut self, batch: &Batch) {
        if self.health.ask(&self.device).is_err() {
            return;
        }
        let mut failed: HashMap<BlockId, Error> = HashMap::new();
        for command in &batch.commands {
            let effect = &batch.effects[command.effect];
            let inherited = effect
                .reads
                .iter()
                .find_map(|read| failed.get(read))
                .cloned();
            let error = match inherited {
                Some(error) => error,
                None => match self.run(batch, std::slice::from_ref(command)) {
                    Ok(index) => {
                        self.submitted(index);
                        continue;
                    }
                    Err(caught) => {
                        let error =
                            Error::execution(&self.name, effect.label, caught.into_message());
                        tracing::error!(%error, "work failed");
                        error
                    }
                },
            };
            effect.writes.mark(&error);
            if let Target::Block(block, _) = effect.writes {
                failed.insert(block, error.clone());
            }
            self.failed.get_or_insert(error);
        }
    }

    /// Stages the params of those commands that take them from the uniform buffer.
    fn uniform_slots(
        &mut self,
        batch: &Batch,
        commands: &[Command],
    ) -> std::result::Result<UniformSlots, Caught> {
        let mut slots = UniformSlots::default();
        if batch.uniform_bytes == 0 {
            return Ok(slots);
        }
        let mut bytes: Vec<u8> = Vec::new();
        for command in commands {
            let Work::Dispatch { kernel, words, .. } = &command.work else {
                continue;
            };
            if kernel.space != ParamsSpace::Uniform {
                continue;
            }
            let offset = bytes.len() as u64;
            let size = (words.len() as u64 * 4).next_multiple_of(16);
            bytes.extend_from_slice(bytemuck::cast_slice(&batch.words[words.clone()]));
            bytes.resize((offset + Batch::uniform_slot(words.len())) as usize, 0);
            slots
                .groups
                .push(self.uniforms.group(&self.device, kernel, offset, size)?);
        }
        if !bytes.is_empty() {
            let (from, offset) = self.staging.stage_small(&self.device, &bytes)?;
            self.staging.before_submit(&self.device);
            slots.upload = Some((from, offset, bytes.len() as u64));
        }
        Ok(slots)
    }

    /// How often work was handed to the device.
    pub(crate) fn submissions(&self) -> u64 {
        self.submissions
    }

    /// Batches that the device refused as a whole: operands may be without contents since.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// The latest submission that may still run.
    pub(crate) fn last_submission(&self) -> Option<Submission> {
        self.in_flight.back().cloned()
    }

    /// The first submission in flight that all up to this one have run with.
    pub(crate) fn submission_of(&self, number: u64) -> Option<Submission> {
        let number = number.min(self.submissions);
        let mut in_flight = self.in_flight.iter();
        in_flight
            .find(|submission| submission.number >= number)
            .cloned()
    }

    /// The oldest of at least `count` submissions that may still run.
    pub(crate) fn oldest_of(&mut self, count: usize) -> Option<Submission> {
        if self.in_flight.len() < count {
            return None;
        }
        self.forget_finished();
        (self.in_flight.len() >= count)
            .then(|| self.in_flight.front().cloned())
            .flatten()
    }

    fn forget_finished(&mut self) {
        let run = self.progress.count();
        while self
            .in_flight
            .front()
            .is_some_and(|oldest| oldest.number <= run)
        {
            self.in_flight.pop_front();
        }
    }

    /// The error of the first work that failed since this was last asked.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failed.take()
    }
}

/// Uniform slots of the commands of one submission, in their order.
#[derive(Default)]
struct UniformSlots {
    groups: Vec<wgpu::BindGroup>,
    /// Where their contents are staged: buffer, offset, bytes.
    upload: Option<(wgpu::Buffer, u64, u64)>,
}

impl Uniforms {
    fn group(
        &mut self,
        device: &wgpu::Device,
        kernel: &CompiledKernel,
        offset: u64,
        size: u64,
    ) -> std::result::Result<wgpu::BindGroup, Caught> {
        if let Some(group) = self.groups.get(&(offset, size)) {
            return Ok(group.clone());
        }
        let buffer = match &self.buffer {
            Some(buffer) => buffer,
            // Kept only once it is sound: the next launch may find room for it.
            None => self.buffer.insert(health::scoped(device, || {
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("orlop params"),
                    size: UNIFORM_BYTES,
                    usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                })
            })?),
        };
        let group = health::scoped(device, || {
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
        })?;
        self.groups.insert((offset, size), group.clone());
        Ok(group)
    }
}

/// Neighbouring dispatches share a pass; a copy ends it.
fn encode(
    encoder: &mut wgpu::CommandEncoder,
    batch: &Batch,
    commands: &[Command],
    uniform_slots: &[wgpu::BindGroup],
) {
    let is_copy = |command: &Command| !matches!(command.work, Work::Dispatch { .. });
    let mut uniform_slots = uniform_slots.iter();
    for run in commands.chunk_by(|a, b| is_copy(a) == is_copy(b)) {
        if is_copy(&run[0]) {
            for command in run {
                match &command.work {
                    Work::Copy { from, to, bytes } => {
                        encoder.copy_buffer_to_buffer(&from.0, from.1, &to.0, to.1, *bytes);
                    }
                    Work::Texels { from, to, copy } => texels::encode(encoder, from, to, copy),
                    Work::Dispatch { .. } => {}
                }
            }
            continue;
        }
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let mut current: Option<&Arc<CompiledKernel>> = None;
        for command in run {
            let Work::Dispatch {
                kernel,
                operands,
                texels,
                words,
                groups,
            } = &command.work
            else {
                continue;
            };
            let set = current.replace(kernel);
            if !set.is_some_and(|set| Arc::ptr_eq(set, kernel)) {
                pass.set_pipeline(&kernel.pipeline);
            }
            pass.set_bind_group(0, operands, &[]);
            match kernel.space {
                // Layouts without them have no place for them: wgpu 30 panics there on Metal and DX12.
                ParamsSpace::Immediate if words.is_empty() => {}
                ParamsSpace::Immediate => {
                    pass.set_immediates(0, bytemuck::cast_slice(&batch.words[words.clone()]));
                }
                ParamsSpace::Uniform => pass.set_bind_group(1, uniform_slots.next(), &[]),
            }
            if let Some(texels) = texels {
                pass.set_bind_group(texels::GROUP, texels, &[]);
            }
            let [x, y, z] = *groups;
            pass.dispatch_workgroups(x, y, z);
        }
    }
}
