//! What a CPU twin is given.

use std::cell::Cell;
use std::fmt;

use smallvec::SmallVec;

use super::op::{About, about};
use super::source::Source;
use crate::cpu::{self, host_vec};
use crate::dtype::{DType, Element, by_size};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::Shape;

/// One launch of a program's own kernel, as its CPU twin sees it: inputs and outputs by the names
/// of their variables in the WGSL, row-major and without gaps, and the scalars. Of a kernel that is
/// [`strided`](super::KernelBuilder::strided) `NAME_offset` is 0 here, and `NAME_stride_0`, .. are those of rows.
pub struct KernelCall<'a> {
    pub(super) kernel: &'static str,
    pub(super) source: &'a Source,
    pub(super) inputs: SmallVec<[(&'a str, &'a Shape, Bytes<'a>); 4]>,
    pub(super) outputs: SmallVec<[(&'a str, &'a Shape, Taken<'a>); 2]>,
    pub(super) words: &'a [u32],
    pub(super) groups: [u32; 3],
}

impl fmt::Debug for KernelCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs = self.inputs.iter().map(|(name, shape, _)| (name, shape));
        let outputs = self.outputs.iter().map(|(name, shape, _)| (name, shape));
        f.debug_struct("KernelCall")
            .field("kernel", &self.kernel)
            .field("inputs", &inputs.collect::<Vec<_>>())
            .field("outputs", &outputs.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The bytes of an output, until they are taken.
pub(super) type Taken<'a> = Cell<Option<&'a mut [u8]>>;

/// The bytes of an input without gaps.
pub(super) enum Bytes<'a> {
    Lent(&'a [u8]),
    /// In words, so that they are aligned for every dtype.
    Gathered(Vec<u64>, usize),
}

impl<'a> Bytes<'a> {
    /// # Errors
    /// `OutOfMemory` of the host: a broadcast may have more elements than fit there.
    pub(super) fn of(
        op: &'static str,
        bytes: &'a [u8],
        layout: &Layout,
        dtype: DType,
    ) -> Result<Self> {
        let (size, count) = (dtype.size(), layout.elements());
        if layout.is_contiguous() {
            let first = layout.offset() * size;
            return Ok(Bytes::Lent(&bytes[first..first + count * size]));
        }
        let length = (count * size).div_ceil(8);
        let mut words = host_vec(op, length)?;
        words.resize(length, 0u64);
        let dense = Layout::contiguous(layout.shape().clone());
        let out = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..count * size];
        by_size!(dtype, Bits => cpu::copy::<Bits>(
            (layout, bytemuck::cast_slice(bytes)),
            (&dense, bytemuck::cast_slice_mut(out)),
        ));
        Ok(Bytes::Gathered(words, count * size))
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Lent(bytes) => bytes,
            Bytes::Gathered(words, count) => &bytemuck::cast_slice(words)[..*count],
        }
    }
}

impl<'a> KernelCall<'a> {
    /// The elements of an input.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the kernel has no such input,
    /// [`Error::DTypeMismatch`] when its elements are no `T`.
    pub fn input<T: Element + bytemuck::Pod>(&self, name: &str) -> Result<&[T]> {
        let (_, _, bytes) = self.find_input(name)?;
        self.check::<T>(name)?;
        Ok(bytemuck::cast_slice(bytes.as_slice()))
    }

    /// The sizes of an input.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the kernel has no such input.
    pub fn input_shape(&self, name: &str) -> Result<&Shape> {
        Ok(self.find_input(name)?.1)
    }

    /// The elements of an output, to be written: zeros before, or anything where the kernel says that it
    /// [overwrites](super::KernelBuilder::overwrites); under [`run_into`](super::KernelLaunch::run_into) what the tensor holds,
    /// whatever the kernel says. An output is given once.
    ///
    /// # Errors
    /// As [`KernelCall::input`]; when it was taken before.
    pub fn output<T: Element + bytemuck::Pod>(&self, name: &str) -> Result<&'a mut [T]> {
        self.check::<T>(name)?;
        let (_, _, bytes) = self
            .outputs
            .iter()
            .find(|(output, ..)| *output == name)
            .ok_or_else(|| unknown(self.kernel, self.source, What::Output, name))?;
        let bytes = bytes.take().ok_or_else(|| {
            Error::invalid(self.kernel, format!("the output `{name}` was taken before"))
        })?;
        Ok(bytemuck::cast_slice_mut(bytes))
    }

    /// The sizes of an output.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the kernel has no such output.
    pub fn output_shape(&self, name: &str) -> Result<&Shape> {
        let found = self.outputs.iter().find(|(output, ..)| *output == name);
        let (_, shape, _) =
            found.ok_or_else(|| unknown(self.kernel, self.source, What::Output, name))?;
        Ok(shape)
    }

    /// A number of the kernel's params: `f32`, `i32` or `u32`, as the WGSL says.
    ///
    /// # Errors
    /// As [`KernelCall::input`]; for a length above 32 bits.
    pub fn scalar<T: Element + bytemuck::Pod>(&self, name: &str) -> Result<T> {
        let [value] = self.vector::<T, 1>(name)?;
        Ok(value)
    }

    /// A vector of the kernel's params.
    ///
    /// # Errors
    /// As [`KernelCall::input`]; when it has not `N` numbers.
    pub fn vector<T: Element + bytemuck::Pod, const N: usize>(&self, name: &str) -> Result<[T; N]> {
        let member = self
            .source
            .members
            .iter()
            .find(|member| member.name == name);
        let member = member.ok_or_else(|| unknown(self.kernel, self.source, What::Scalar, name))?;
        if T::DTYPE != member.dtype {
            return Err(Error::read_as(self.kernel, name, member.dtype, T::DTYPE));
        }
        let inputs = self.inputs.iter().map(|(name, shape, _)| (*name, *shape));
        let outputs = self.outputs.iter().map(|(name, shape, _)| (*name, *shape));
        let overflows = |(operand, shape): &(&str, &Shape)| {
            about(name, operand) == Some(About::Length) && shape.elements() > u32::MAX as usize
        };
        // Kernels get pieces of what is longer.
        if let Some((_, shape)) = inputs.chain(outputs).find(overflows) {
            let problem = format!("{} elements overflow `{name}`", shape.elements());
            return Err(Error::invalid(self.kernel, problem));
        }
        let numbers = bytemuck::cast_slice(&self.words[member.word..member.word + member.lanes]);
        <[T; N]>::try_from(numbers).map_err(|_| {
            let problem = format!("`{name}` has {} numbers, not {N}", member.lanes);
            Error::invalid(self.kernel, problem)
        })
    }

    /// The workgroups of the launch along x, y and z: WGSL's `num_workgroups`. An elementwise kernel may have
    /// them in several launches on a GPU.
    pub fn workgroups(&self) -> [u32; 3] {
        self.groups
    }

    fn find_input(&self, name: &str) -> Result<&(&'a str, &'a Shape, Bytes<'a>)> {
        let found = self.inputs.iter().find(|(input, ..)| *input == name);
        found.ok_or_else(|| unknown(self.kernel, self.source, What::Input, name))
    }

    fn check<T: Element + bytemuck::Pod>(&self, name: &str) -> Result<()> {
        let binding = self
            .source
            .bindings
            .iter()
            .find(|binding| binding.name == name);
        match binding.map(|binding| binding.dtype) {
            Some(dtype) if dtype != T::DTYPE => {
                Err(Error::read_as(self.kernel, name, dtype, T::DTYPE))
            }
            _ => Ok(()),
        }
    }
}

/// The typed error for a name that the kernel's WGSL has not, with those that it has.
pub(super) fn unknown(kernel: &'static str, source: &Source, what: What, name: &str) -> Error {
    let bindings = source.bindings.iter();
    let names: Vec<&str> = match what {
        What::Scalar => source.members.iter().map(|one| one.name.as_str()).collect(),
        What::Input | What::Output => bindings
            .filter(|binding| binding.is_input == (what == What::Input))
            .map(|binding| binding.name.as_str())
            .collect(),
    };
    let names = match names.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it has `{}`", names.join("`, `")),
    };
    let what = what.name();
    Error::invalid(
        kernel,
        format!("the kernel has no {what} `{name}`: {names}"),
    )
}

/// What a launch gives a kernel by name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Input,
    Output,
    Scalar,
}

impl What {
    pub(super) fn name(self) -> &'static str {
        match self {
            What::Input => "input",
            What::Output => "output",
            What::Scalar => "scalar",
        }
    }
}
