//! Where an op runs, and moving tensors there.

use crate::cpu::host_vec;
use crate::device::{Device, Placement, Storage};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::tensor::Tensor;

/// The device that operands call home: the one they all live on. Under soft placement operands
/// may be mixed: the first that is not on the CPU decides.
///
/// # Errors
/// `Unsupported` for mixed operands when the home's placement is strict.
pub(super) fn home<'a>(op: &'static str, operands: &[&'a Tensor]) -> Result<&'a Device> {
    let first = operands
        .iter()
        .find(|tensor| !tensor.device().is_cpu())
        .or(operands.first())
        .map(|tensor| tensor.device())
        .ok_or_else(|| Error::invalid(op, "no operand and no device"))?;
    let stranger = operands.iter().find(|tensor| tensor.device() != first);
    match stranger {
        Some(tensor) if first.placement() == Placement::Strict => Err(Error::unsupported(
            op,
            first.to_string(),
            format!(
                "an operand lives on {}; move it with to(&device)",
                tensor.device()
            ),
        )),
        _ => Ok(first),
    }
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
    let layout = tensor.layout();
    // Strides are not negative: the offset is the lowest index used.
    let start = layout.offset().min(layout.end());
    let span = layout.end() - start;
    let size = tensor.dtype().size();
    let bytes = device.check_size(op, span as u128 * size as u128)?;
    let storage = device.allocate(bytes)?;
    let range = (start * size) as u64..((start + span) * size) as u64;
    if let Storage::Host(block) = &storage {
        let mut target = block.write();
        let mut at = 0;
        tensor.storage().read(range, &mut |piece| {
            if let Some(place) = target.get_mut(at..at + piece.len()) {
                place.copy_from_slice(piece);
            }
            at += piece.len();
        })?;
    } else if let Storage::Host(block) = tensor.storage() {
        // Straight from host memory into staging.
        let source = block.read();
        let piece = source
            .get(range.start as usize..range.end as usize)
            .ok_or_else(|| Error::invalid(op, "the range is outside of the tensor's memory"))?;
        storage.write(piece)?;
    } else {
        let mut host = host_vec(op, bytes as usize)?;
        tensor
            .storage()
            .read(range, &mut |piece| host.extend_from_slice(piece))?;
        storage.write(&host)?;
    }
    Ok(Tensor::new(
        device.clone(),
        storage,
        layout.at_offset(0),
        tensor.dtype(),
    ))
}

/// A copy of all that a tensor's storage holds up to the tensor's end, seen through the same
/// layout: for ops that write in place where the tensor does not live.
///
/// # Errors
/// As [`move_to`].
pub(super) fn whole_on(op: &'static str, tensor: &Tensor, device: &Device) -> Result<Tensor> {
    // Two elements at a time are whole words in every dtype, and chunks end on whole words.
    let end = tensor.layout().end().next_multiple_of(2);
    let whole = tensor.view(Layout::contiguous(end));
    Ok(move_to(op, &whole, device)?.view(tensor.layout().clone()))
}

/// Brings a copy of [`whole_on`] back after it was written.
///
/// # Errors
/// A lost device, or no memory for staging.
pub(super) fn write_back(copy: &Tensor, tensor: &Tensor) -> Result<()> {
    let end = tensor.layout().end().next_multiple_of(2) * tensor.dtype().size();
    match copy.storage() {
        Storage::Host(block) => tensor
            .storage()
            .write(block.read().get(..end).unwrap_or_default()),
        _ => Ok(()),
    }
}
