//! A launch of a program's own kernel as an op: it goes the one road.

use std::cell::Cell;

use smallvec::{SmallVec, smallvec};

use super::Kernel;
use super::call::{Bytes, KernelCall};
use crate::capabilities::{Capabilities, DeviceKind, LONGEST_LAUNCH};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::launch::{
    Bound, Dispatch, KernelKey, Launch, Launches, USER, WINDOW_ALIGNMENT, Window, Words,
};
use crate::layout::Layout;
use crate::ops::fill::Fill;
use crate::road::{HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// What a binding is bound to.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Input(usize),
    Output(usize),
}

/// An output in the one storage that all of them share.
pub(super) struct Output {
    pub name: String,
    pub shape: Shape,
    pub dtype: DType,
    /// From the storage's start, a multiple of the alignment of windows.
    pub offset: u64,
}

impl Output {
    pub(super) fn bytes(&self) -> u64 {
        (self.shape.elements() * self.dtype.size()) as u64
    }

    /// Bytes up to the next output: never none, since it is bound.
    pub(super) fn room(&self) -> u64 {
        self.bytes().max(1).next_multiple_of(WINDOW_ALIGNMENT)
    }
}

/// What the kernel's params say of an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// Elements; in a piece those of the piece.
    Length,
    Offset,
    Size(usize),
    Stride(usize),
}

pub(super) struct UserOp<'k> {
    pub kernel: &'k Kernel,
    /// Of each input, before it is placed.
    pub lengths: SmallVec<[usize; 4]>,
    pub shapes: SmallVec<[Shape; 4]>,
    pub outputs: SmallVec<[Output; 2]>,
    /// Of each binding.
    pub places: SmallVec<[Role; 4]>,
    /// The scalars that were given; those about operands are still to be filled in.
    pub words: Words,
    pub about: SmallVec<[(usize, Role, About); 4]>,
    pub groups: [u32; 3],
    /// The output is a tensor that is there, and keeps what it holds.
    pub keeps: bool,
}

impl UserOp<'_> {
    /// Bytes of the storage of all outputs.
    fn output_bytes(&self) -> u64 {
        match &self.outputs[..] {
            [output] => output.bytes(),
            outputs => outputs.last().map_or(0, |last| last.offset + last.room()),
        }
    }

    /// Elements of an operand.
    fn length(&self, place: Role) -> usize {
        match place {
            Role::Input(at) => self.lengths[at],
            Role::Output(at) => self.outputs[at].shape.elements(),
        }
    }

    /// The params, for a launch on `length` elements of each operand, or on all.
    fn params(&self, inputs: &[Layout], length: Option<usize>) -> Words {
        let mut words = self.words.clone();
        for &(word, place, about) in &self.about {
            words[word] = match (place, about) {
                (_, About::Length) => length.unwrap_or_else(|| self.length(place)) as u32,
                (Role::Input(at), About::Size(axis)) => self.shapes[at].dims()[axis] as u32,
                // One element stands for what has none.
                (Role::Input(at), _) if self.lengths[at] == 0 => 0,
                (Role::Input(at), About::Offset) => inputs[at].offset() as u32,
                (Role::Input(at), About::Stride(axis)) => inputs[at].strides()[axis] as u32,
                (Role::Output(at), About::Size(axis)) => self.outputs[at].shape.dims()[axis] as u32,
                (Role::Output(_), _) => 0,
            };
        }
        words
    }

    /// One launch on the elements of a piece, or on everything.
    fn launch(
        &self,
        problem: &Problem<'_>,
        piece: Option<std::ops::Range<usize>>,
        groups: [u32; 3],
        capabilities: &Capabilities,
    ) -> Launch {
        let windows: SmallVec<[Option<Window>; 4]> = (problem.inputs.iter())
            .map(|input| self.part_of(input, capabilities))
            .collect();
        let offset = |at: usize| {
            let input = &problem.inputs[at];
            let first = windows[at].map_or(0, |window| window.offset);
            input.layout.offset() - first as usize / input.dtype.size()
        };
        // Others are told lengths alone.
        let layouts: SmallVec<[Layout; 4]> = match self.kernel.strided {
            true => (problem.inputs.iter().enumerate())
                .map(|(at, input)| input.layout.at_offset(offset(at)))
                .collect(),
            false => SmallVec::new(),
        };
        let words = self.params(&layouts, piece.as_ref().map(std::ops::Range::len));
        let mut bytes = 0;
        let operands = self.places.iter().map(|&place| {
            let (operand, first, size, count) = match place {
                Role::Input(at) => {
                    let Operand { layout, dtype, .. } = problem.inputs[at];
                    if self.kernel.strided {
                        bytes += (layout.elements() * dtype.size()) as u64;
                        return Bound {
                            operand: at,
                            window: windows[at],
                        };
                    }
                    let first = (layout.offset() * dtype.size()) as u64;
                    (at, first, dtype.size(), layout.elements())
                }
                Role::Output(at) => {
                    let output = &self.outputs[at];
                    let (size, count) = (output.dtype.size(), output.shape.elements());
                    let first = match self.keeps {
                        true => (problem.output.layout.offset() * size) as u64,
                        false => output.offset,
                    };
                    (problem.inputs.len(), first, size, count)
                }
            };
            let elements = piece.clone().unwrap_or(0..count);
            let from = first + (elements.start * size) as u64;
            let range = from..from + (elements.len() * size).max(1) as u64;
            bytes += range.end - range.start;
            Bound {
                operand,
                window: Some(Window::around(range)),
            }
        });
        let operands: SmallVec<[Bound; 4]> = operands.collect();
        let source = &self.kernel.source;
        let sizes = groups.into_iter().chain(source.workgroup);
        let invocations = sizes.map(u64::from).fold(1, u64::saturating_mul);
        Launch {
            kernel: KernelKey {
                template: USER,
                values: smallvec![
                    ("name", self.kernel.name.into()),
                    ("immediate", source.immediate.clone().into()),
                    ("uniform", source.uniform.clone().into()),
                ],
                bindings: source.bindings.len() as u32,
                words: source.words as u32,
            },
            operands,
            texels: SmallVec::new(),
            dispatches: smallvec![Dispatch { words, groups }],
            flops: invocations as f64 * source.operations as f64,
            bytes: bytes as f64,
        }
    }

    /// What is bound of an input of a strided kernel whose storage no binding holds.
    fn part_of(&self, input: &Operand<'_>, capabilities: &Capabilities) -> Option<Window> {
        let is_too_large = input.storage_bytes > capabilities.indexed_bytes();
        (self.kernel.strided && is_too_large).then(|| {
            let (span, size) = (input.layout.span(), input.dtype.size());
            Window::around((span.start * size) as u64..(span.end * size) as u64)
        })
    }

    /// Elements of the longest output.
    fn elements(&self) -> usize {
        let outputs = self.outputs.iter();
        let elements = outputs.map(|output| output.shape.elements());
        elements.max().unwrap_or(0)
    }

    /// Elements of a piece that an elementwise kernel takes at once.
    fn piece(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> usize {
        let inputs = problem.inputs.iter().map(|input| input.dtype.size());
        let outputs = self.outputs.iter().map(|output| output.dtype.size());
        let sizes: SmallVec<[usize; 4]> = inputs.chain(outputs).collect();
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let bytes: usize = sizes.iter().sum();
        let bound = capabilities.max_binding_bytes as usize / largest;
        let seconds = capabilities.seconds(bytes as f64, bytes as f64);
        let timely = (LONGEST_LAUNCH / seconds) as usize;
        let grid = capabilities.max_workgroups as usize * self.kernel.per_workgroup();
        let most = bound.min(timely).min(grid);
        // Windows begin at multiples of their alignment whatever the size of an element.
        (most - most % WINDOW_ALIGNMENT as usize).max(WINDOW_ALIGNMENT as usize)
    }
}

impl Op for UserOp<'_> {
    fn name(&self) -> &'static str {
        self.kernel.name
    }

    fn infer(&self, _inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        match &self.outputs[..] {
            [output] => Ok((output.shape.clone(), output.dtype)),
            // Several are views of one tensor of words.
            _ => Ok((
                Shape::from([self.output_bytes().div_ceil(4) as usize]),
                DType::U32,
            )),
        }
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        _output: DType,
    ) -> Option<String> {
        if capabilities.kind == DeviceKind::Cpu {
            return None;
        }
        // Shaders count the elements of a binding, and check their indices, in 32 bits.
        let limit = capabilities.indexed_bytes();
        let above = |bytes: u64| !self.kernel.elementwise && bytes > limit;
        let input = |input: &Operand<'_>| match self.kernel.strided {
            true => (self.part_of(input, capabilities))
                .map_or(input.storage_bytes, |window| window.bytes),
            false => (input.layout.elements() * input.dtype.size()) as u64,
        };
        let sizes = inputs.iter().map(input);
        let largest = sizes.chain(self.outputs.iter().map(Output::bytes)).max();
        let too_large = largest.filter(|&bytes| above(bytes)).map(|bytes| {
            format!(
                "an operand of {bytes} bytes is above its largest binding of {limit} bytes, and the \
                 kernel is not declared elementwise"
            )
        });
        let groups = self.groups.into_iter().max().unwrap_or(0);
        let wide = (!self.kernel.elementwise && groups > capabilities.max_workgroups).then(|| {
            let most = capabilities.max_workgroups;
            format!(
                "a grid of {:?} workgroups is above its {most} a dimension, of which there are three",
                self.groups
            )
        });
        self.kernel
            .source
            .missing(capabilities)
            .or(too_large)
            .or(wide)
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let mut launches = Launches::new();
        if !self.kernel.overwrites && !self.keeps {
            let words = self.output_bytes().div_ceil(4) as usize;
            let zeros = Fill::new(self.name(), [words].into(), Scalar::Integer(0), DType::U32)?;
            let layout = Layout::contiguous([words]);
            let output = Operand {
                layout: &layout,
                dtype: DType::U32,
                ..problem.output
            };
            launches = zeros.plan(
                &Problem {
                    inputs: SmallVec::new(),
                    output,
                    fresh: true,
                    spare: false,
                    slots: SmallVec::new(),
                },
                capabilities,
            )?;
            for bound in launches.iter_mut().flat_map(|launch| &mut launch.operands) {
                bound.operand += problem.inputs.len();
            }
        }
        if !self.kernel.elementwise {
            launches.push(self.launch(problem, None, self.groups, capabilities));
            return Ok(launches);
        }
        let count = self.elements();
        let most = self.piece(problem, capabilities);
        let mut from = 0;
        while from < count {
            let piece = from..count.min(from.saturating_add(most));
            from = piece.end;
            let groups = self.kernel.groups_of(piece.len());
            launches.push(self.launch(problem, Some(piece), groups, capabilities));
        }
        Ok(launches)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let source = &self.kernel.source;
        // It gets them without gaps, so offsets and strides are those of rows.
        let dense: SmallVec<[Layout; 4]> = match self.kernel.strided {
            true => self
                .shapes
                .iter()
                .cloned()
                .map(Layout::contiguous)
                .collect(),
            false => SmallVec::new(),
        };
        let words = self.params(&dense, None);
        let mut given = SmallVec::new();
        let mut outputs = SmallVec::new();
        let first = match self.keeps {
            true => output.layout.offset() * output.dtype.size(),
            false => 0,
        };
        let bytes = output.bytes.get_mut(first..).unwrap_or_default();
        if !self.kernel.overwrites && !self.keeps {
            bytes.fill(0);
        }
        let mut rest = bytes;
        let mut at = 0;
        for written in &self.outputs {
            let (gap, bytes) = ((written.offset - at) as usize, written.bytes() as usize);
            let (_, tail) = std::mem::take(&mut rest).split_at_mut(gap);
            let (own, tail) = tail.split_at_mut(bytes);
            outputs.push((written.name.as_str(), &written.shape, Cell::new(Some(own))));
            (rest, at) = (tail, written.offset + written.bytes());
        }
        for (binding, place) in source.bindings.iter().zip(&self.places) {
            let &Role::Input(at) = place else { continue };
            let input = &inputs[at];
            let bytes = match self.lengths[at] {
                0 => Bytes::Gathered(Vec::new(), 0),
                _ => Bytes::of(self.kernel.name, input.bytes, input.layout, input.dtype)?,
            };
            given.push((binding.name.as_str(), &self.shapes[at], bytes));
        }
        (self.kernel.twin)(&KernelCall {
            kernel: self.kernel.name,
            source,
            inputs: given,
            outputs,
            words: &words,
            groups: match self.kernel.elementwise {
                true => self.kernel.groups_of(self.elements()),
                false => self.groups,
            },
        })
    }
}

/// Where a scalar's name says something about an operand: `x_length`, `x_offset`, `x_size_1`,
/// `x_stride_0`.
pub(super) fn about(member: &str, operand: &str) -> Option<About> {
    let what = member.strip_prefix(operand)?.strip_prefix('_')?;
    let axis = |prefix: &str| what.strip_prefix(prefix)?.parse().ok();
    match what {
        "length" => Some(About::Length),
        "offset" => Some(About::Offset),
        _ => axis("size_")
            .map(About::Size)
            .or_else(|| axis("stride_").map(About::Stride)),
    }
}

/// Whether it can be bound as it lies: without gaps, from where windows may begin.
pub(super) fn lies_well(tensor: &Tensor) -> bool {
    tensor.is_contiguous() && tensor.byte_range().start.is_multiple_of(WINDOW_ALIGNMENT)
}

/// The typed error for a launch that lacks what the kernel names.
pub(super) fn not_given(kernel: &'static str, what: &str, name: &str) -> Error {
    Error::invalid(kernel, format!("the launch gives no {what} `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shaders would take what lies beyond 4 GiB for what is not there, however much is bound.
    #[test]
    fn operands_are_within_32_bits() -> Result<()> {
        let kernel = Kernel::wgsl(
            "copied",
            "@group(0) @binding(0) var<storage, read> x: array<f32>;
             @group(0) @binding(1) var<storage, read_write> y: array<f32>;
             @compute @workgroup_size(1) fn main() { y[0] = x[0]; }",
        )?
        .twin(|_| Ok(()))?;
        let capabilities = Capabilities {
            kind: DeviceKind::IntegratedGpu,
            bounds_checks: true,
            max_binding_bytes: 8 << 30,
            ..Capabilities::cpu()
        };
        let missing = |elements: usize| {
            let layout = Layout::contiguous([elements]);
            let operand = Operand {
                layout: &layout,
                dtype: DType::F32,
                storage_bytes: elements as u64 * 4,
            };
            let op = UserOp {
                kernel: &kernel,
                lengths: smallvec![elements],
                shapes: smallvec![Shape::from([elements])],
                outputs: SmallVec::new(),
                places: smallvec![Role::Input(0)],
                words: Words::new(),
                about: SmallVec::new(),
                groups: [1; 3],
                keeps: false,
            };
            op.missing(&capabilities, &[operand], DType::F32)
        };
        assert_eq!(missing(1 << 28), None);
        let why = missing(3 << 29);
        assert!(
            why.as_ref()
                .is_some_and(|why| why.contains("largest binding")),
            "{why:?}"
        );
        Ok(())
    }
}
