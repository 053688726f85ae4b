//! The function that every op goes through.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::op::{HostInput, HostOutput, Op, Operand, Problem};
use super::{place, scope};
use crate::cpu::{HostBlock, ReadBytes};
use crate::device::{Device, PlacementEvent, Storage, log_placement};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::{Blocks, Elsewhere, Gpu, GpuBlock, Held, Kernels};
use crate::launch::Launches;
use crate::layout::Layout;
use crate::memory::order;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Runs an op on operands and gives its result, where [`place::home`] says.
pub(crate) fn run(op: &dyn Op, inputs: &[&Tensor]) -> Result<Tensor> {
    travel(op, None, inputs, None)
}

/// Runs an op on an operand and gives its result where the operand lives, whatever the scope.
pub(crate) fn run_at_home(op: &dyn Op, input: &Tensor) -> Result<Tensor> {
    travel(op, Some(input.device()), &[input], None)
}

/// Runs an op without operands on a device.
pub(crate) fn create(op: &dyn Op, device: &Device) -> Result<Tensor> {
    travel(op, Some(device), &[], None)
}

/// Runs an op that writes an existing tensor, through whatever strides it has; `copy` copies elements, for what was
/// written elsewhere and comes back. Operands lie in other storages.
pub(crate) fn write(op: &dyn Op, copy: &dyn Op, inputs: &[&Tensor], into: &Tensor) -> Result<()> {
    travel(op, Some(into.device()), inputs, Some((into, copy))).map(drop)
}

fn travel(
    op: &dyn Op,
    named: Option<&Device>,
    inputs: &[&Tensor],
    write: Option<(&Tensor, &dyn Op)>,
) -> Result<Tensor> {
    steps(op, named, inputs, write).map_err(|error| error.asked_by(op.name()))
}

fn steps(
    op: &dyn Op,
    named: Option<&Device>,
    inputs: &[&Tensor],
    write: Option<(&Tensor, &dyn Op)>,
) -> Result<Tensor> {
    let name = op.name();
    let into = write.map(|(into, _)| into);

    // 1. Infer: every error about arguments, before anything changes.
    let mut specs = operands_of(inputs);
    let (shape, dtype, size) = inferred(op, inputs, &specs, into)?;

    // 2. Place: at home, or on the CPU with a reason.
    let scoped = match named {
        Some(_) => None,
        None => scope::innermost(),
    };
    let home = place::home_of(name, inputs, named.or(scoped.as_ref()))?;
    let capabilities = home.capabilities();
    for (spec, input) in specs.iter_mut().zip(inputs) {
        if input.device() != home {
            // What it will have there.
            spec.storage_bytes = Storage::rounded(place::bytes_of_span(input));
        }
    }
    let reason = if size > 0 {
        op.missing(capabilities, &specs, dtype)
    } else {
        // Nothing is computed, but somewhere it must live.
        (!capabilities.holds(dtype)).then(|| place::lacks(dtype))
    };
    let fallback;
    let target = match &reason {
        None => home,
        Some(reason) => {
            fallback = place::fallback(name, home, reason)?;
            &fallback
        }
    };
    target.check_size(name, size)?;
    if target != home && home.capabilities().holds(dtype) {
        // The result returns there.
        home.check_size(name, size)?;
    }
    if size == 0 {
        let layout = Layout::contiguous(shape);
        let empty = Tensor::new(target.clone(), Storage::Empty, layout, dtype);
        if reason.is_some() {
            observe(name, (named, home, target), &empty, reason, 0, &[]);
        }
        return Ok(into.cloned().unwrap_or(empty));
    }
    let arrivals = place::bring(name, inputs, target)?;
    // Read, changed elsewhere and written back: one at a time, so that none undoes another.
    let _alone = into.filter(|into| into.device() != target).and_then(alone);
    let brought = arrivals.operands(inputs);
    let operands = brought.as_deref().unwrap_or(inputs);
    let mut moved = arrivals.bytes;
    let elsewhere = match into {
        Some(into) if into.device() != target => {
            let (copy, bytes) = place::part_on(name, into, target)?;
            moved += bytes + into.bytes();
            Some(copy)
        }
        _ => None,
    };

    // 3. Plan, 4. allocate, and 5. record.
    let layout = Layout::contiguous(shape);
    let existing = elsewhere.as_ref().or(into);
    let mut result = match (target.gpu(), existing) {
        (Some(gpu), _) => launched(op, target, gpu, operands, existing, &layout, dtype)?,
        (None, Some(existing)) => existing.clone(),
        (None, None) => Tensor::new(target.clone(), target.allocate(size as u64)?, layout, dtype),
    };
    if target.is_cpu() {
        // Which runs it at once.
        twin(op, operands, &result)?;
    }

    // Results of fallbacks return home, unless home cannot hold them.
    if let (Some(written), Some((into, copy))) = (&elsewhere, write) {
        write_back(name, written, into, copy)?;
        result = into.clone();
    } else if target != home && home.capabilities().holds(dtype) {
        moved += result.bytes();
        result = place::move_to(name, &result, home)?;
    }

    // 6. Observe.
    if reason.is_some() || !arrivals.left.is_empty() {
        let places = (named, home, target);
        observe(name, places, &result, reason, moved, &arrivals.left);
    }
    Ok(result)
}

/// Plans an op for a GPU and records it there, into what exists or into a new tensor.
///
/// # Errors
/// What the device refuses, before anything is allocated; `OutOfMemory`, `DeviceLost`.
fn launched(
    op: &dyn Op,
    target: &Device,
    gpu: &Arc<Gpu>,
    inputs: &[&Tensor],
    existing: Option<&Tensor>,
    layout: &Layout,
    dtype: DType,
) -> Result<Tensor> {
    let bytes = (layout.elements() * dtype.size()) as u64;
    let output = Operand {
        layout: existing.map_or(layout, |tensor| tensor.layout()),
        dtype,
        storage_bytes: match existing {
            Some(existing) => existing.storage().bytes(),
            None => Storage::rounded(bytes),
        },
    };
    let planned = |spare| plan(op, gpu, inputs, output, existing.is_none(), spare);
    let fresh = |block| Tensor::new(target.clone(), Storage::Gpu(block), layout.clone(), dtype);
    let launched = |prepared: &(Launches, Kernels), is_spare| {
        let memory = (bytes, is_spare);
        launch(
            op.name(),
            target,
            prepared,
            inputs,
            existing,
            memory,
            &fresh,
        )
    };
    let scratch = |(launches, _): &(Launches, Kernels)| scratch_bytes(launches, inputs.len());
    let prepared = planned(true)?;
    match launched(&prepared, true) {
        // With less scratch there may be room.
        Err(Error::OutOfMemory(full)) if scratch(&prepared) > 0 => match planned(false) {
            Ok(lean) if scratch(&lean) < scratch(&prepared) => launched(&lean, false),
            // Without a word: nothing but spare memory was asked for in vain.
            _ if full.diagnosis.is_empty() => launched(&prepared, false),
            _ => Err(Error::OutOfMemory(full)),
        },
        launched => launched,
    }
}

/// Brings what was written elsewhere back into a tensor's own elements, and into no other that lies between
/// them: all of it or, after an error, nothing.
///
/// # Errors
/// A lost device, or no memory for staging or beside the tensor.
fn write_back(name: &'static str, written: &Tensor, into: &Tensor, copy: &dyn Op) -> Result<()> {
    let range = into.byte_range();
    let is_whole_words = range.start.is_multiple_of(4) && range.end.is_multiple_of(4);
    if let (Some(here), Some(there)) = (host_block(written), block(into))
        && into.is_contiguous()
        && is_whole_words
    {
        let place = written.byte_range();
        let bytes = here.read();
        let bytes = bytes.get(place.start as usize..place.end as usize);
        let bytes = bytes.unwrap_or_default();
        return there.gpu().overwrite(there, range.start, bytes);
    }
    let dense = travel(copy, Some(written.device()), &[written], None)?;
    let beside = place::move_to(name, &dense, into.device())?;
    travel(copy, Some(into.device()), &[&beside], Some((into, copy))).map(drop)
}

/// Says that an op ran elsewhere than where all its operands live.
fn observe(
    op: &'static str,
    (named, home, target): (Option<&Device>, &Device, &Device),
    result: &Tensor,
    lacking: Option<String>,
    bytes_moved: u64,
    left: &[Device],
) {
    let from = match lacking {
        Some(_) => home.to_string(),
        None => left
            .iter()
            .map(Device::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    };
    let event = PlacementEvent {
        op,
        from,
        to: target.to_string(),
        result: result.device().to_string(),
        reason: lacking.unwrap_or_else(|| place::why_operands_travel(named.is_some()).to_owned()),
        bytes_moved,
    };
    let concerned: SmallVec<[&Device; 4]> = std::iter::once(home).chain(left).collect();
    log_placement(&event, &concerned);
}

/// A tensor as rules and plans see it.
pub(crate) fn operand(tensor: &Tensor) -> Operand<'_> {
    Operand {
        layout: tensor.layout(),
        dtype: tensor.dtype(),
        storage_bytes: tensor.storage().bytes(),
    }
}

fn operands_of<'a>(tensors: &[&'a Tensor]) -> SmallVec<[Operand<'a>; 4]> {
    tensors.iter().copied().map(operand).collect()
}

/// What comes out, and its bytes; `specs` are the inputs as rules see them.
///
/// # Errors
/// Every one about the op's arguments, and about what it is written into; then `Unsupported` for operands that may not
/// travel there.
fn inferred(
    op: &dyn Op,
    inputs: &[&Tensor],
    specs: &[Operand<'_>],
    into: Option<&Tensor>,
) -> Result<(Shape, DType, u128)> {
    let (shape, dtype) = op.infer(specs)?;
    let size = shape.count(op.name())? as u128 * dtype.size() as u128;
    if let Some(into) = into {
        if into.dtype() != dtype {
            return Err(Error::dtype_into(op.name(), into.dtype(), dtype));
        }
        if into.shape() != &shape {
            let problem = format!("{dtype} {shape} cannot be written into {into:?}");
            return Err(Error::invalid(op.name(), problem));
        }
        place::check_travel_to(op.name(), inputs, into)?;
    }
    Ok((shape, dtype, size))
}

/// What [`run`], or [`write`] into a tensor, checks first, for callers that make copies for it before.
///
/// # Errors
/// Every one about the op's arguments; then `Unsupported` for operands that may not travel to what is written.
pub(crate) fn check(op: &dyn Op, inputs: &[&Tensor], into: Option<&Tensor>) -> Result<()> {
    inferred(op, inputs, &operands_of(inputs), into).map(drop)
}

/// The launches on a GPU, checked against its limits and compiled.
fn plan(
    op: &dyn Op,
    gpu: &Arc<Gpu>,
    inputs: &[&Tensor],
    output: Operand<'_>,
    fresh: bool,
    spare: bool,
) -> Result<(Launches, Kernels)> {
    let slots = slots(inputs);
    let problem = Problem {
        inputs: operands_of(inputs),
        output,
        fresh,
        spare,
        slots,
    };
    let launches = op.plan(&problem, &gpu.capabilities)?;
    let scratch = scratch_bytes(&launches, problem.inputs.len());
    let operands = problem.inputs.iter().chain([&problem.output]);
    let storage_bytes: SmallVec<[u64; 4]> = operands
        .map(|operand| operand.storage_bytes)
        .chain([scratch])
        .collect();
    let kernels = gpu.prepare(op.name(), &launches, &storage_bytes)?;
    Ok((launches, kernels))
}

/// Operands that are compared one with another.
const FEW: usize = 16;

/// Of each operand which of the different storages it has, in order of first use.
fn slots(inputs: &[&Tensor]) -> SmallVec<[usize; 4]> {
    let mut slots: SmallVec<[usize; 4]> = SmallVec::new();
    if inputs.len() <= FEW {
        let mut next = 0;
        for (at, tensor) in inputs.iter().enumerate() {
            let mut earlier = inputs[..at].iter().zip(&slots);
            let shared = earlier.find(|(other, _)| other.shares_storage(tensor));
            let slot = shared.map_or(next, |(_, &slot)| slot);
            next = next.max(slot + 1);
            slots.push(slot);
        }
        return slots;
    }
    let mut of_storages = FxHashMap::default();
    for (at, tensor) in inputs.iter().enumerate() {
        let next = of_storages.len();
        // What has no bytes is none's neighbour.
        let key = tensor.storage().address().ok_or(at);
        slots.push(*of_storages.entry(key).or_insert(next));
    }
    slots
}

/// How far windows on the operand after the output reach.
fn scratch_bytes(launches: &Launches, output: usize) -> u64 {
    launches
        .iter()
        .flat_map(|launch| &launch.operands)
        .filter(|bound| bound.operand > output)
        .filter_map(|bound| bound.window)
        .map(|window| window.end())
        .max()
        .unwrap_or(0)
}

/// Takes memory for the output (unless it is there), of so many bytes, and for scratch, which is free again once all is
/// recorded and may be spare, and records launches on them and on the inputs, all in device memory.
fn launch(
    op: &'static str,
    target: &Device,
    (launches, kernels): &(Launches, Kernels),
    inputs: &[&Tensor],
    existing: Option<&Tensor>,
    (bytes, is_spare): (u64, bool),
    fresh: &impl Fn(Arc<GpuBlock>) -> Tensor,
) -> Result<Tensor> {
    let missing = || Error::invalid(op, "an operand has no memory");
    // What has no elements has no memory, and no launch binds it: another one stands for it.
    let any = inputs.iter().copied().chain(existing).find_map(block);
    let operands: Option<Blocks<'_>> = inputs
        .iter()
        .copied()
        .chain(existing)
        .map(|tensor| block(tensor).or(any.filter(|_| tensor.elements() == 0)))
        .collect();
    let operands = operands.ok_or_else(missing)?;
    let scratch = scratch_bytes(launches, inputs.len());
    let gpu = target.gpu().ok_or_else(missing)?;
    let written = existing.and_then(block);
    gpu.with_access(&operands, written, |access| {
        let allocate = |bytes: u64, is_spare| {
            let block = match is_spare {
                true => gpu.allocate_spare(access, bytes),
                false => gpu.allocate_in(access, bytes),
            }?;
            target.record_call_site(&Storage::Gpu(Arc::clone(&block)));
            Ok::<_, Error>(block)
        };
        let output = match existing {
            Some(_) => None,
            None => Some(Held::new(&allocate(bytes, false)?)),
        };
        let scratch = match scratch {
            0 => None,
            bytes => Some(allocate(bytes, is_spare).map_err(Error::of_scratch)?),
        };
        let taken = output.as_ref().map(Held::block);
        let blocks: Blocks<'_> = operands
            .iter()
            .copied()
            .chain(taken)
            .chain(&scratch)
            .collect();
        gpu.record(access, op, launches, kernels, &blocks, inputs.len())?;
        match (existing, taken) {
            (Some(existing), _) => Ok(existing.clone()),
            (None, Some(block)) => Ok(fresh(Arc::clone(block))),
            (None, None) => Err(missing()),
        }
    })
}

fn block(tensor: &Tensor) -> Option<&Arc<GpuBlock>> {
    match tensor.storage() {
        Storage::Gpu(block) => Some(block),
        Storage::Host(_) | Storage::Empty => None,
    }
}

/// Keeps a GPU's tensor from being changed by others until what is returned is dropped: while it is read, changed elsewhere
/// and written back.
pub(crate) fn alone(into: &Tensor) -> Option<Elsewhere<'_>> {
    block(into).map(|block| block.write_elsewhere())
}

/// Runs the CPU twin on the caller's thread.
fn twin(op: &dyn Op, inputs: &[&Tensor], output: &Tensor) -> Result<()> {
    let Storage::Host(block) = output.storage() else {
        return Ok(());
    };
    if inputs.iter().any(|input| input.shares_storage(output)) {
        // It would wait for itself for ever.
        let problem = "an operand lies in the memory that is written: copy it first";
        return Err(Error::invalid(op.name(), problem));
    }
    // Before anything is locked: the reads before it may need what is locked here.
    let turn = block.turns().to_write();
    if let Some(turn) = &turn {
        turn.wait();
    }
    // Each block once and in one order everywhere, what is written too: another op may read what this one
    // writes and write what it reads.
    let place = |block: &Arc<HostBlock>| Arc::as_ptr(block).addr();
    let mut blocks: SmallVec<[&Arc<HostBlock>; 4]> =
        inputs.iter().copied().filter_map(host_block).collect();
    order::sort(&mut blocks, |block| (place(block) as u64, 0));
    let mut read: SmallVec<[(usize, ReadBytes<'_>); 4]> = SmallVec::new();
    let mut written = None;
    for &other in &blocks {
        let at = place(other);
        if read.last().is_some_and(|&(last, _)| last == at) {
            continue;
        }
        if at > place(block) {
            written.get_or_insert_with(|| block.write());
        }
        read.push((at, other.read()));
    }
    let mut bytes = written.unwrap_or_else(|| block.write());
    let mut operands: SmallVec<[HostInput<'_>; 4]> = SmallVec::new();
    for tensor in inputs {
        let found = host_block(tensor).and_then(|block| {
            let at = read.binary_search_by_key(&place(block), |&(at, _)| at);
            read.get(at.ok()?)
        });
        operands.push(HostInput {
            bytes: found.map_or(&[][..], |(_, bytes)| &bytes[..]),
            layout: tensor.layout(),
            dtype: tensor.dtype(),
        });
    }
    op.twin(
        &operands,
        &mut HostOutput {
            bytes: &mut bytes,
            layout: output.layout(),
            dtype: output.dtype(),
        },
    )
}

fn host_block(tensor: &Tensor) -> Option<&Arc<HostBlock>> {
    match tensor.storage() {
        Storage::Host(block) => Some(block),
        _ => None,
    }
}
