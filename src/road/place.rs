//! Where an op runs, and moving tensors there.

use std::ops::Range;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::scope;
use crate::cpu::host_vec;
use crate::device::{Device, Placement, PlacementEvent, Storage, log_placement};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::memory::order;
use crate::tensor::Tensor;
use crate::turns::Turn;

/// The device that an op on `operands` belongs to, where it runs if it can and where its result
/// lives: the innermost scope's; else the one that the operands all live on; else, under soft
/// placement, the first that is not on the CPU (all on CPU devices: the first).
///
/// # Errors
/// `Unsupported` for mixed operands without a scope when any of their devices is strict.
pub(crate) fn home(op: &'static str, operands: &[&Tensor]) -> Result<Device> {
    let scoped = scope::innermost();
    home_of(op, operands, scoped.as_ref()).cloned()
}

/// The same, borrowed; `named` is what the caller or a scope names, if any.
///
/// # Errors
/// As [`home`].
pub(super) fn home_of<'a>(
    op: &'static str,
    operands: &[&'a Tensor],
    named: Option<&'a Device>,
) -> Result<&'a Device> {
    if let Some(named) = named {
        return Ok(named);
    }
    let home = operands
        .iter()
        .copied()
        .find(|tensor| !tensor.device().is_cpu())
        .or(operands.first().copied())
        .map(Tensor::device)
        .ok_or_else(|| Error::invalid(op, "no operand and no device"))?;
    let help = "move one of them with to(&device), name a device with device.scope(...), or open it with Placement::Soft";
    check_travel(op, home, operands.iter().copied(), help)?;
    Ok(home)
}

/// Whether operands may travel to where an existing tensor is written, whatever the scope.
///
/// # Errors
/// `Unsupported` for operands elsewhere when any of their devices, or the tensor's, is strict.
pub(super) fn check_travel_to(op: &'static str, inputs: &[&Tensor], into: &Tensor) -> Result<()> {
    // A scope does not move what is written.
    let help = "move what is read to where it is written with to(&device), or open it with Placement::Soft";
    let all = inputs.iter().copied().chain([into]);
    check_travel(op, into.device(), all, help)
}

fn check_travel<'a>(
    op: &'static str,
    home: &Device,
    operands: impl Iterator<Item = &'a Tensor> + Clone,
    help: &'static str,
) -> Result<()> {
    let mut devices = operands.map(Tensor::device);
    if let Some(stranger) = devices.clone().find(|&device| device != home)
        && let Some(strict) = devices.find(|device| device.placement() == Placement::Strict)
    {
        return Err(Error::unsupported(
            op,
            strict.to_string(),
            format!("operands live on {home} and on {stranger}, and its placement is strict"),
            help,
        ));
    }
    Ok(())
}

/// What an op that its home cannot do gets: the CPU, and the log will say why.
///
/// # Errors
/// `Unsupported` under strict placement.
pub(crate) fn fallback(op: &'static str, home: &Device, reason: &str) -> Result<Device> {
    match home.placement() {
        Placement::Soft => Ok(Device::cpu()),
        Placement::Strict => Err(Error::unsupported(
            op,
            home.to_string(),
            reason,
            "use Placement::Soft to run it on the CPU",
        )),
    }
}

/// Makes a new tensor of `dtype` where it can live: on the device, or on the CPU when the device cannot hold
/// the dtype and placement is soft. That is logged once it is made, though nothing travels.
///
/// # Errors
/// `Unsupported` under strict placement; what `make` says.
pub(crate) fn place_new(
    op: &'static str,
    device: &Device,
    dtype: DType,
    make: impl FnOnce(Device) -> Result<Tensor>,
) -> Result<Tensor> {
    if device.capabilities().holds(dtype) {
        return make(device.clone()).map_err(|error| error.asked_by(op));
    }
    let reason = lacks(dtype);
    let cpu = fallback(op, device, &reason)?;
    let made = make(cpu.clone()).map_err(|error| error.asked_by(op))?;
    log_placement(
        &PlacementEvent {
            op,
            from: device.to_string(),
            to: cpu.to_string(),
            result: cpu.to_string(),
            reason,
            bytes_moved: 0,
        },
        &[device],
    );
    Ok(made)
}

/// What to say of a device that does not compute in a dtype.
pub(crate) fn lacks(dtype: DType) -> String {
    format!("it has no {dtype} in kernels")
}

/// Why operands travel for an op that its home can do, which was named (whatever the scope) or not.
pub(super) fn why_operands_travel(is_named: bool) -> &'static str {
    match scope::innermost() {
        Some(_) if !is_named => "the scope's device is another than its operands'",
        _ => "operands lived on different devices",
    }
}

/// Operands where their op runs.
pub(super) struct Arrivals {
    /// Those that travelled, at their places; none at all when all were there.
    moved: Vec<Option<Tensor>>,
    /// Bytes that travelled.
    pub bytes: u64,
    /// The devices that some of them left, each once.
    pub left: Vec<Device>,
}

impl Arrivals {
    /// The operands, in their order; `None` where none travelled.
    pub(super) fn operands<'a>(
        &'a self,
        inputs: &[&'a Tensor],
    ) -> Option<SmallVec<[&'a Tensor; 4]>> {
        if self.moved.is_empty() {
            return None;
        }
        let each = inputs.iter().zip(&self.moved);
        let each = each.map(|(&input, moved)| moved.as_ref().unwrap_or(input));
        Some(each.collect())
    }
}

/// Brings operands to the device where their op runs. Those that see overlapping parts of one
/// storage travel together, once.
///
/// # Errors
/// As [`move_to`].
pub(super) fn bring(op: &'static str, inputs: &[&Tensor], target: &Device) -> Result<Arrivals> {
    let mut arrivals = Arrivals {
        moved: Vec::new(),
        bytes: 0,
        left: Vec::new(),
    };
    if inputs.iter().all(|tensor| tensor.device() == target) {
        return Ok(arrivals);
    }
    // Those that travel, by the storages that they see, in order of first use, and by where they begin there.
    let mut first_of: FxHashMap<_, usize> = FxHashMap::default();
    let mut travelling: SmallVec<[(usize, usize, Range<usize>); 3]> = SmallVec::new();
    for (at, &tensor) in inputs.iter().enumerate() {
        if tensor.device() == target {
            continue;
        }
        if !arrivals.left.contains(tensor.device()) {
            arrivals.left.push(tensor.device().clone());
        }
        // What has no bytes is none's neighbour.
        let key = tensor.storage().address().ok_or(at);
        let first = *first_of.entry(key).or_insert(at);
        travelling.push((at, first, tensor.layout().span()));
    }
    order::sort(&mut travelling, |(_, first, span)| {
        (*first as u64, span.start as u64)
    });
    // The parts of storages, and which of them each operand sees.
    let mut parts: SmallVec<[(&Tensor, Range<usize>); 3]> = SmallVec::new();
    let mut part_of: SmallVec<[Option<usize>; 4]> = SmallVec::from_elem(None, inputs.len());
    let mut last = None;
    for (at, first, span) in travelling {
        match parts.last_mut() {
            Some((_, part)) if last == Some(first) && span.start <= part.end => {
                part.end = part.end.max(span.end);
            }
            _ => parts.push((inputs[at], span)),
        }
        last = Some(first);
        part_of[at] = Some(parts.len() - 1);
    }
    let mut moved: SmallVec<[Tensor; 3]> = SmallVec::new();
    for (tensor, part) in &parts {
        let turn = tensor.storage().turn_to_read();
        let copy = copy_of(op, tensor, part, target, turn).map_err(|error| error.asked_by(op))?;
        arrivals.bytes += copy.bytes();
        moved.push(copy);
    }
    arrivals.moved = inputs
        .iter()
        .zip(part_of)
        .map(|(tensor, part)| {
            part.map(|at| seen_through(&moved[at], tensor.layout(), parts[at].1.start))
        })
        .collect();
    Ok(arrivals)
}

/// A copy of a tensor's span of its storage on another device, through staging; the layout keeps
/// its strides. The tensor itself when it is there already.
///
/// # Errors
/// `OutOfMemory`, `TooLarge`, a lost device, missing contents.
pub(crate) fn move_to(op: &'static str, tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device() == device {
        return Ok(tensor.clone());
    }
    let turn = tensor.storage().turn_to_read();
    move_in_turn(op, tensor, device, turn)
}

/// The same of a tensor of another device, in a turn to read that was taken before.
///
/// # Errors
/// As [`move_to`].
pub(crate) fn move_in_turn(
    op: &'static str,
    tensor: &Tensor,
    device: &Device,
    turn: Option<Turn>,
) -> Result<Tensor> {
    part_of(op, tensor, tensor.layout().span(), device, turn)
}

/// A copy of a part of a tensor's storage that has all of its elements, seen as the tensor sees its own.
fn part_of(
    op: &'static str,
    tensor: &Tensor,
    part: Range<usize>,
    device: &Device,
    turn: Option<Turn>,
) -> Result<Tensor> {
    let copy = copy_of(op, tensor, &part, device, turn).map_err(|error| error.asked_by(op))?;
    Ok(seen_through(&copy, tensor.layout(), part.start))
}

/// The bytes of a tensor with its gaps: of what travels.
pub(super) fn bytes_of_span(tensor: &Tensor) -> u64 {
    (tensor.layout().span().len() * tensor.dtype().size()) as u64
}

/// A copy that starts at index `start` of the original, seen as `layout` sees the original.
fn seen_through(copy: &Tensor, layout: &Layout, start: usize) -> Tensor {
    copy.view(layout.at_offset(layout.offset().saturating_sub(start)))
}

/// Elements `span` of a tensor's storage on a device, without gaps.
fn copy_of(
    op: &'static str,
    tensor: &Tensor,
    span: &Range<usize>,
    device: &Device,
    turn: Option<Turn>,
) -> Result<Tensor> {
    let size = tensor.dtype().size();
    let bytes = device.check_size(op, span.len() as u128 * size as u128)?;
    let storage = device.allocate(bytes)?;
    let range = (span.start * size) as u64..(span.end * size) as u64;
    if let Storage::Host(block) = &storage {
        let mut target = block.write();
        let mut at = 0;
        tensor.storage().read_in_turn(turn, range, &mut |piece| {
            if let Some(place) = target.get_mut(at..at + piece.len()) {
                place.copy_from_slice(piece);
            }
            at += piece.len();
        })?;
    } else if let Storage::Host(block) = tensor.storage() {
        // Straight from host memory into staging; held as it is, so that the turn is not waited for.
        let source = block.read();
        let piece = source
            .get(range.start as usize..range.end as usize)
            .ok_or_else(|| Error::invalid(op, "the range is outside of the tensor's memory"))?;
        storage.write(piece)?;
    } else {
        let mut host = host_vec(op, bytes as usize)?;
        tensor
            .storage()
            .read_in_turn(turn, range, &mut |piece| host.extend_from_slice(piece))?;
        storage.write(&host)?;
    }
    Ok(Tensor::new(
        device.clone(),
        storage,
        Layout::contiguous(span.len()),
        tensor.dtype(),
    ))
}

/// A copy of a tensor with its gaps, seen through the same strides, and the bytes that travelled: for ops that write in place
/// where the tensor does not live.
///
/// # Errors
/// As [`move_to`].
pub(super) fn part_on(op: &'static str, tensor: &Tensor, device: &Device) -> Result<(Tensor, u64)> {
    // Four elements at a time are whole words in every dtype, and chunks end on whole words.
    let span = tensor.layout().span();
    let part = span.start - span.start % 4..span.end.next_multiple_of(4);
    let bytes = (part.len() * tensor.dtype().size()) as u64;
    let copy = part_of(op, tensor, part, device, tensor.storage().turn_to_read())?;
    Ok((copy, bytes))
}
