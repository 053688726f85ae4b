//! What an op is: a rule, a plan, a CPU twin.

use smallvec::SmallVec;

use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{Bound, Launches};
use crate::layout::Layout;
use crate::shape::Shape;

/// An operand as plans and rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub layout: &'a Layout,
    pub dtype: DType,
    /// Bytes of the storage that it lies in; 0 on the CPU, where no binding limits them.
    pub storage_bytes: u64,
}

/// What a plan is made for.
pub(crate) struct Problem<'a> {
    pub inputs: SmallVec<[Operand<'a>; 4]>,
    pub output: Operand<'a>,
    /// The output is a new tensor: contiguous from offset 0, its padding may be overwritten.
    pub fresh: bool,
    /// Scratch may be asked for that only makes the op faster.
    pub spare: bool,
    /// The binding of each input; inputs that share a storage share a binding.
    pub slots: SmallVec<[usize; 4]>,
}

impl Problem<'_> {
    /// The output's binding, after those of the inputs.
    pub(crate) fn output_slot(&self) -> usize {
        self.slots.iter().max().map_or(0, |last| last + 1)
    }

    /// What each binding is when storages are bound whole.
    pub(crate) fn bindings(&self) -> SmallVec<[Bound; 4]> {
        let mut operands: SmallVec<[Bound; 4]> = SmallVec::new();
        for (input, &slot) in self.slots.iter().enumerate() {
            if slot == operands.len() {
                operands.push(Bound::whole(input));
            }
        }
        operands.push(Bound::whole(self.inputs.len()));
        operands
    }

    /// Whether every storage can be bound whole.
    pub(crate) fn binds_whole(&self, capabilities: &Capabilities) -> bool {
        let operands = self.inputs.iter().chain([&self.output]);
        operands
            .map(|operand| operand.storage_bytes)
            .all(|bytes| bytes <= capabilities.max_binding_bytes)
    }
}

/// An operand of a CPU twin: bytes of its whole storage.
pub(crate) struct HostInput<'a> {
    pub bytes: &'a [u8],
    pub layout: &'a Layout,
    pub dtype: DType,
}

impl<'a> HostInput<'a> {
    /// The whole storage as elements; the layout says which of them.
    pub(crate) fn elements<T: bytemuck::Pod>(&self) -> &'a [T] {
        bytemuck::cast_slice(self.bytes)
    }

    /// Elements that follow each other in the storage.
    pub(crate) fn bytes_of(&self, first: usize, count: usize) -> &'a [u8] {
        let size = self.dtype.size();
        &self.bytes[first * size..(first + count) * size]
    }
}

/// The output of a CPU twin.
pub(crate) struct HostOutput<'a> {
    pub bytes: &'a mut [u8],
    pub layout: &'a Layout,
    pub dtype: DType,
}

impl HostOutput<'_> {
    /// The whole storage as elements; the layout says which of them.
    pub(crate) fn elements<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes)
    }
}

/// A rule (what goes in, what comes out), a plan, a CPU twin. Tied to no device.
pub(crate) trait Op {
    /// The name in errors, labels and logs.
    fn name(&self) -> &'static str;

    /// Checks the inputs and says what comes out. Every error about arguments comes from here.
    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)>;

    /// What of this op a device lacks, if anything: then it is placed on the CPU, or refused.
    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        missing_dtype(capabilities, inputs, output)
    }

    /// Which kernels on which operands, for an output with at least one element. Each launch
    /// keeps its bindings within `max_binding_bytes` and, where it can be split, its estimate
    /// (`Capabilities::seconds`) within `LONGEST_LAUNCH`.
    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches>;

    /// The same on the CPU: the fallback, and the reference of tests.
    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()>;
}

/// Elements that nobody waits for one op to walk: memory holds fewer, only views can claim them.
const MOST_WALKED: u64 = 1 << 40;

/// # Errors
/// `InvalidArgument` when an op would walk more elements than it ends with.
pub(crate) fn check_walk(op: &'static str, shape: &Shape) -> Result<()> {
    match (shape.count(op)? as u64) < MOST_WALKED {
        true => Ok(()),
        false => Err(Error::invalid(
            op,
            format!("shape {shape} has 2^40 elements or more, which take hours: check the shapes"),
        )),
    }
}

/// The dtype that a device lacks, if any.
pub(crate) fn missing_dtype(
    capabilities: &Capabilities,
    inputs: &[Operand<'_>],
    output: DType,
) -> Option<String> {
    inputs
        .iter()
        .map(|input| input.dtype)
        .chain([output])
        .find(|&dtype| !capabilities.computes(dtype))
        .map(super::lacks)
}
