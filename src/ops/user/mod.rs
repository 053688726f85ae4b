//! A program's own kernels: WGSL and a CPU twin, on the same road as every op.

mod call;
mod check;
mod constants;
mod cost;
mod depth;
mod inlined;
mod lacking;
mod launch;
mod op;
mod rewrite;
mod source;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use call::KernelCall;
pub use check::Tolerance;
pub use launch::KernelLaunch;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::program_text;
use crate::shape::Shape;
use crate::sync::Mutex;
use source::Source;

/// The twin of a kernel.
type Twin = dyn Fn(&KernelCall<'_>) -> Result<()> + Send + Sync;
/// The shape of an output by those of the inputs.
type ShapeRule = dyn Fn(&[&Shape]) -> Result<Shape> + Send + Sync;

/// A kernel of a program's own: WGSL for GPUs, and a CPU twin that gives the same.
///
/// ```
/// use orlop::{Device, Kernel, Tensor};
///
/// let saxpy = Kernel::wgsl(
///     "saxpy",
///     "struct Params { a: f32, x_length: u32 }
///      var<immediate> params: Params;
///      @group(0) @binding(0) var<storage, read> x: array<f32>;
///      @group(0) @binding(1) var<storage, read> y: array<f32>;
///      @group(0) @binding(2) var<storage, read_write> out: array<f32>;
///      @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
///          if id.x < params.x_length { out[id.x] = params.a * x[id.x] + y[id.x]; }
///      }",
/// )?
/// .elementwise()
/// .twin(|call| {
///     let (a, x, y) = (call.scalar::<f32>("a")?, call.input::<f32>("x")?, call.input::<f32>("y")?);
///     for ((out, x), y) in call.output::<f32>("out")?.iter_mut().zip(x).zip(y) {
///         *out = a * x + y;
///     }
///     Ok(())
/// })?;
///
/// let device = Device::best()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [3])?;
/// let y = saxpy.launch().input("x", &x).input("y", &x).scalar("a", 2.0).run()?;
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 6.0, 9.0]);
/// # Ok::<(), orlop::Error>(())
/// ```
///
/// # What the WGSL says
/// - `var<storage, read>` is an input, `var<storage, read_write>` an output, all in `@group(0)`,
///   their bindings counted from 0. Each is an array (of any length, or of a fixed one) of `f32`,
///   `f16`, `f64`, `i32` or `u32`, of vectors of two or four of them, or of atomic `i32` or `u32`. The name of
///   the variable is that of the operand.
/// - Numbers are members of a struct in `var<immediate>`: `f32`, `i32`, `u32` or vectors of them.
///   Where an adapter has no immediates (or too few) they become a uniform.
/// - One `@compute` entry point. At most 64 KiB of text, and of private memory of an invocation (variables, those of called functions for
///   each call), 1 MiB of arrays that are values; 500 levels of
///   expressions and blocks in each other, 1000 declarations; 131,072 expressions and statements where each call is
///   replaced by what it calls, as drivers compile it; and 1,048,576 tokens of constants where each is written out as often as it
///   is named.
///
/// # What holds for operands
/// - Inputs arrive row-major, without gaps, from their first element: other views are copied
///   first, and so is a tensor that is given for a second input. A kernel that declares itself [`strided`](KernelBuilder::strided) gets them as they lie.
/// - `arrayLength` counts padding (up to 256 bytes), which holds whatever was there, or, behind a view, its tensor's next
///   elements. So a member of the params that is called `NAME_length` is given the elements of operand `NAME`: numbers, not
///   vectors, where it is an array of those. The last vector of a tensor whose length is no multiple of theirs is padding in part.
/// - Outputs are new tensors, of zeros unless the kernel [overwrites](KernelBuilder::overwrites)
///   them; or the one output is a tensor that is there, with what it holds: [`KernelLaunch::run_into`].
/// - The twin works on what its call gives it: a tensor of the launch that it has otherwise is locked meanwhile, and
///   using it there waits for ever, or is lost; so may changing any tensor in place there, for a thread that waits for this one.
/// - Functions of WGSL are the driver's, within WGSL's bounds: `pow`, `sin` or `exp` may be far off what the library's own
///   ops and the twin give (SwiftShader's `pow` and `cos` of a rotary embedding by 1e-3).
/// - Of f64 kernels have no `sin`, `exp`, `log`, `pow` and their like, of 64-bit integers no functions of bits (`countOneBits`,
///   `extractBits`, ..), whatever WGSL says: a kernel with one of them goes to its twin, or is refused under strict placement.
/// - **An invocation's loops end after 65,535 turns in all on Mesa 22's lavapipe, without an error**: a row of a sparse matrix that is
///   longer than that is cut. Share long rows among invocations, or launches; [`KernelLaunch::check`] compares a launch with its twin.
/// - A launch goes to the device with those after it, once they are taken for some 20 ms of work (a loop for 1024 turns), at the next
///   read or wait, or with [`Device::submit`](crate::Device::submit).
/// - An operand above the device's largest binding is windowed when the kernel is
///   [`elementwise`](KernelBuilder::elementwise); else the kernel is placed on the CPU, or refused
///   under strict placement.
///
/// # What cannot happen
/// Kernels of a program run with naga's checks: accesses outside of a binding reach no other
/// tensor, and workgroup memory begins as zeros. GL has no such checks: there the twin runs. A loop
/// without an end is the adapter's to end: naga bounds it at 2^64 turns, a driver's watchdog loses the device,
/// Mesa 22's lavapipe stops it early (above), Mesa 25's never: with
/// [`DeviceBuilder::wait_timeout`](crate::DeviceBuilder::wait_timeout) nobody waits for it longer than that.
/// A driver's compiler is not the library's: of arrays within an invocation WGSL promises 8 KiB, and with more than some KiB,
/// where indices are computed, those of software adapters take seconds to minutes, or end the process.
pub struct Kernel {
    name: &'static str,
    source: Source,
    elementwise: bool,
    strided: bool,
    overwrites: bool,
    rules: Vec<(String, Arc<ShapeRule>)>,
    twin: Box<Twin>,
}

/// A kernel without its twin: see [`Kernel::wgsl`].
#[must_use = "the kernel is there when it has its twin"]
pub struct KernelBuilder {
    name: &'static str,
    source: Source,
    elementwise: bool,
    strided: bool,
    overwrites: bool,
    rules: Vec<(String, Arc<ShapeRule>)>,
}

/// A value of a template's variable: [`Kernel::template`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum KernelValue {
    /// A WGSL type: `f32`, `f16`, ...
    DType(DType),
    /// A number.
    Number(i64),
    /// Any text.
    Text(String),
}

impl From<DType> for KernelValue {
    fn from(dtype: DType) -> Self {
        KernelValue::DType(dtype)
    }
}

impl From<String> for KernelValue {
    fn from(text: String) -> Self {
        KernelValue::Text(text)
    }
}

macro_rules! number_values {
    ($($rust:ty),*) => {$(
        impl From<$rust> for KernelValue {
            fn from(number: $rust) -> Self {
                // No template's number is as large.
                KernelValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
            }
        }
    )*};
}
number_values!(i32, u32, i64, usize);

impl From<&str> for KernelValue {
    fn from(text: &str) -> Self {
        KernelValue::Text(text.to_owned())
    }
}

impl fmt::Display for KernelValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelValue::DType(dtype) => dtype.fmt(f),
            KernelValue::Number(number) => number.fmt(f),
            KernelValue::Text(text) => f.write_str(text),
        }
    }
}

impl Kernel {
    /// A kernel from WGSL, which is read and checked here: no device is needed. What is left to
    /// give is its twin: [`KernelBuilder::twin`]. Names of kernels that could be read are kept for good, each once.
    ///
    /// # Errors
    /// [`Error::KernelCompile`] with naga's rendering of the line, or with what a kernel must be;
    /// [`Error::InvalidArgument`] for a name above 256 bytes.
    pub fn wgsl(name: &str, source: &str) -> Result<KernelBuilder> {
        check_name("Kernel::wgsl", name)?;
        let source = Source::read(name, source)?;
        Ok(KernelBuilder {
            name: interned(name),
            source,
            elementwise: false,
            strided: false,
            overwrites: false,
            rules: Vec::new(),
        })
    }

    /// [`Kernel::wgsl`] from a template: `{{ name }}` becomes the value, `{% if .. %}` and
    /// `{% for .. %}` are there too (Jinja's language, with `range` and the filters `default`, `int`,
    /// `length`, `reverse` and `split`; without what is for templates of several texts, and with few tests). `{{ enables }}` becomes `enable f16;` when one of the values is
    /// [`DType::F16`].
    ///
    /// A template is a part of the program. These are bounded: 64 KiB of it and of what it becomes; 200 operators, indices,
    /// calls and blocks in each other; 500 of them, all together, in tags that give lists, maps or slices a name, where those
    /// of a macro count five times, as lists nest from tag to tag; 32 loops and macros in each other, a macro for six; 2^20
    /// steps, and items that `range`, `split` and `reverse` make, 65,536 of them at a time. These are not: the memory of texts
    /// and lists that it doubles, repeats or takes apart, and how long it looks through them, or compares them.
    ///
    /// ```
    /// use orlop::{DType, Kernel};
    ///
    /// let source = "{{ enables }}
    ///     @group(0) @binding(0) var<storage, read_write> out: array<{{ element }}>;
    ///     @compute @workgroup_size({{ size }}) fn main() { out[0] = {{ element }}(1); }";
    /// Kernel::template("one", source, &[("element", DType::F16.into()), ("size", 8.into())])?;
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Kernel::wgsl`], which is for a template that does not render, too; [`Error::InvalidArgument`] for two values of
    /// one name, or one that is called `enables`.
    pub fn template(
        name: &str,
        source: &str,
        values: &[(&str, KernelValue)],
    ) -> Result<KernelBuilder> {
        const OP: &str = "Kernel::template";
        check_name(OP, name)?;
        let mut names = BTreeSet::from(["enables"]);
        if let Some((twice, _)) = values.iter().find(|(name, _)| !names.insert(*name)) {
            let problem = match *twice {
                "enables" => {
                    "`enables` is a value of orlop's own: call yours something else".into()
                }
                _ => format!("two values are called `{twice}`"),
            };
            return Err(Error::invalid(OP, problem));
        }
        let f16 = values
            .iter()
            .any(|(_, value)| *value == KernelValue::DType(DType::F16));
        let enables = if f16 { "enable f16;" } else { "" };
        let given = values.iter().map(|(name, value)| {
            let value = match value {
                KernelValue::Number(number) => (*number).into(),
                other => other.to_string().into(),
            };
            (*name, value)
        });
        let values = given.chain([("enables", enables.into())]);
        let rendered = program_text::render_text(source, values)
            .map_err(|rendered| Error::kernel_compile(name, rendered))?;
        Self::wgsl(name, &rendered)
    }

    /// The kernel's name, in errors and labels.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The beginning of a launch.
    pub fn launch(&self) -> KernelLaunch<'_> {
        KernelLaunch::new(self)
    }

    /// Invocations of a workgroup of an elementwise kernel.
    fn per_workgroup(&self) -> usize {
        self.source.workgroup[0].max(1) as usize
    }

    /// The grid of an elementwise kernel on so many elements; past 32 bits, where there are twins alone, the largest.
    fn groups_of(&self, elements: usize) -> [u32; 3] {
        let groups = elements.div_ceil(self.per_workgroup());
        [u32::try_from(groups).unwrap_or(u32::MAX), 1, 1]
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("bindings", &self.source.bindings)
            .field("scalars", &self.source.members)
            .field("workgroup", &self.source.workgroup)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for KernelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelBuilder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl KernelBuilder {
    /// Element `i` of each output depends on element `i` of each input alone, by
    /// `global_invocation_id.x`, and all have one shape. Then the grid follows from the elements,
    /// outputs take the shape of the inputs, and operands of any size are windowed: a launch may
    /// see a piece of them, and `NAME_length` is the piece's.
    pub fn elementwise(mut self) -> Self {
        self.elementwise = true;
        self
    }

    /// The kernel handles offsets and strides: inputs arrive as they lie (but copied where an input before them is of the same
    /// storage, as none is bound twice), and members of the params
    /// called `NAME_offset`, `NAME_size_0`, `NAME_stride_0`, .. say how, in elements (strides may
    /// be negative, as `i32`; those of broadcast dimensions are 0). The rank must be the one that
    /// the members ask for. An array of a fixed length gets its elements in order, from the first.
    /// Outputs are row-major as ever. The twin gets inputs row-major and without gaps as well, and offsets and strides that say so.
    pub fn strided(mut self) -> Self {
        self.strided = true;
        self
    }

    /// Every element of every output is written: they need not be zeros before. Nothing under [`KernelLaunch::run_into`], whose
    /// output keeps what it holds.
    pub fn overwrites(mut self) -> Self {
        self.overwrites = true;
        self
    }

    /// The shape of an output, from those of the inputs in the order of their bindings. A launch
    /// can give another one: [`KernelLaunch::output`].
    pub fn shape(
        mut self,
        output: &str,
        rule: impl Fn(&[&Shape]) -> Result<Shape> + Send + Sync + 'static,
    ) -> Self {
        self.rules.push((output.to_owned(), Arc::new(rule)));
        self
    }

    /// The kernel with its twin: what runs on the CPU device, where an adapter lacks something that
    /// the WGSL needs, and in [`Kernel::check`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a shape rule of an output that is not there or that has one, for a kernel
    /// that is both elementwise and strided, for an elementwise one whose workgroup goes along
    /// y or z or whose arrays have a length, and for one that is not strided with a member called as what those are told.
    pub fn twin(
        self,
        twin: impl Fn(&KernelCall<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Kernel> {
        let is_output = |name: &str| {
            let mut bindings = self.source.bindings.iter();
            bindings.any(|binding| !binding.is_input && binding.name == name)
        };
        for (at, (name, _)) in self.rules.iter().enumerate() {
            if !is_output(name) {
                return Err(call::unknown(
                    self.name,
                    &self.source,
                    call::What::Output,
                    name,
                ));
            }
            if self.rules[..at].iter().any(|(other, _)| other == name) {
                let problem = format!("the output `{name}` has two rules for its shape");
                return Err(Error::invalid(self.name, problem));
            }
        }
        if self.elementwise && self.strided {
            return Err(Error::invalid(
                self.name,
                "an elementwise kernel gets its operands without strides: declare it one or the other",
            ));
        }
        let mut bindings = self.source.bindings.iter();
        if let Some(fixed) = bindings.find(|binding| self.elementwise && binding.is_fixed) {
            let name = &fixed.name;
            return Err(Error::invalid(
                self.name,
                format!("`{name}` has a fixed length, an elementwise kernel gets pieces of any"),
            ));
        }
        let [_, y, z] = self.source.workgroup;
        if self.elementwise && (y, z) != (1, 1) {
            return Err(Error::invalid(
                self.name,
                "the workgroup of an elementwise kernel lies along x: @workgroup_size(64), say",
            ));
        }
        for (member, operand) in self.source.about_operands() {
            if !self.strided && !matches!(op::about(member, operand), Some(op::About::Length)) {
                return Err(Error::invalid(
                    self.name,
                    format!(
                        "`{member}` is what strided kernels are told of `{operand}`: call it something else, or declare \
                         the kernel strided()"
                    ),
                ));
            }
        }
        Ok(Kernel {
            name: self.name,
            source: self.source,
            elementwise: self.elementwise,
            strided: self.strided,
            overwrites: self.overwrites,
            rules: self.rules,
            twin: Box::new(twin),
        })
    }
}

/// Bytes of a kernel's name: those of kernels are kept for good.
const LONGEST_NAME: usize = 256;

fn check_name(op: &'static str, name: &str) -> Result<()> {
    match name.len() {
        ..=LONGEST_NAME => Ok(()),
        bytes => Err(Error::invalid(
            op,
            format!("a kernel's name of {bytes} bytes is above {LONGEST_NAME}"),
        )),
    }
}

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The name for as long as the process lives, as errors and labels want it: each one once.
fn interned(name: &str) -> &'static str {
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::{Kernel, NAMES};

    #[test]
    fn names_are_kept_of_what_could_be_read() {
        let whole = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @compute @workgroup_size(1) fn main() { out[0] = 1u; }";
        for (name, text, is_kept) in [("no kernel", "fn", false), ("a kernel", whole, true)] {
            assert_eq!(Kernel::wgsl(name, text).is_ok(), is_kept);
            assert_eq!(NAMES.lock().contains(name), is_kept, "{name}");
        }
    }
}
