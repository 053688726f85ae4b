//! A launch of a program's own kernel: its operands, numbers and grid, by name.

mod numbers;

use smallvec::SmallVec;

use super::Kernel;
use super::call::{What, unknown};
use super::op::{self, Output, Role, UserOp, lies_well};
use crate::device::Device;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::launch::{WINDOW_ALIGNMENT, Window, Words};
use crate::layout::Layout;
use crate::ops::contiguous;
use crate::road;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A launch of a [`Kernel`] in the making: operands, numbers and the grid by name, then
/// [`run`](KernelLaunch::run). What is wrong is told there, before anything runs.
#[derive(Clone, Debug)]
#[must_use = "a launch does nothing until it is run"]
pub struct KernelLaunch<'k> {
    kernel: &'k Kernel,
    device: Option<Device>,
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<(String, Shape)>,
    scalars: Vec<(String, Vec<Scalar>)>,
    grid: Option<Grid>,
}

/// Above what any device has, and far from where sums of such numbers overflow.
const MOST_BYTES: u128 = 1 << 60;

#[derive(Clone, Copy, Debug)]
enum Grid {
    Workgroups([u32; 3]),
    Invocations([u64; 3]),
}

impl<'k> KernelLaunch<'k> {
    pub(super) fn new(kernel: &'k Kernel) -> Self {
        Self {
            kernel,
            device: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            scalars: Vec::new(),
            grid: None,
        }
    }

    /// The device, for a kernel without inputs. With inputs it runs where they live, or where a scope says, and into a tensor
    /// where that lives: to name another device is an error.
    pub fn on(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// The tensor for an input.
    pub fn input(mut self, name: &str, tensor: &Tensor) -> Self {
        self.inputs.push((name.to_owned(), tensor.clone()));
        self
    }

    /// The shape of an output: before the kernel's own rule.
    pub fn output(mut self, name: &str, shape: impl Into<Shape>) -> Self {
        self.outputs.push((name.to_owned(), shape.into()));
        self
    }

    /// A number of the params. Members called `NAME_length` and the like, of operands `NAME`, are given by orlop, and by nobody else.
    pub fn scalar(self, name: &str, value: impl Into<Scalar>) -> Self {
        self.vector(name, [value])
    }

    /// A vector of the params.
    pub fn vector<const N: usize>(mut self, name: &str, values: [impl Into<Scalar>; N]) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.scalars.push((name.to_owned(), values));
        self
    }

    /// The workgroups of each dimension of the grid, instead of what was set before. An elementwise kernel takes no grid: with one
    /// it does not run.
    pub fn workgroups(mut self, workgroups: [u32; 3]) -> Self {
        self.grid = Some(Grid::Workgroups(workgroups));
        self
    }

    /// The invocations of each dimension of the grid, rounded up to whole workgroups, instead of what was set before; not for an
    /// elementwise kernel either.
    pub fn invocations(mut self, invocations: [u64; 3]) -> Self {
        self.grid = Some(Grid::Invocations(invocations));
        self
    }

    /// Runs a kernel with one output, and gives it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operand or number that is missing, unknown or given twice, a grid that is missing
    /// or that an elementwise kernel was given, another device than where it runs ([`KernelLaunch::on`]), and for several
    /// outputs ([`KernelLaunch::run_all`]); [`Error::DTypeMismatch`] for an input of another dtype than the kernel reads;
    /// [`Error::ShapeMismatch`]; [`Error::Unsupported`] under strict placement for what the device
    /// lacks; what any op can meet.
    pub fn run(&self) -> Result<Tensor> {
        let bindings = self.kernel.source.bindings.iter();
        let outputs = bindings.filter(|binding| !binding.is_input).count();
        if outputs != 1 {
            return Err(Error::invalid(
                self.kernel.name,
                format!("it has {outputs} outputs: run_all() gives them all"),
            ));
        }
        let first = self.run_all()?.into_iter().next();
        first.ok_or_else(|| Error::invalid(self.kernel.name, "it has no output"))
    }

    /// Runs the kernel and gives its outputs, in the order of their bindings. It writes them into one storage, which
    /// those of one dtype go on to share (of the dtype that has the most bytes); each of another dtype is copied into a
    /// storage of its own. The storage is as large as all outputs together, and stays as long as one of those that share it lives:
    /// [`Tensor::copy`] what is kept alone.
    ///
    /// # Errors
    /// As [`KernelLaunch::run`].
    pub fn run_all(&self) -> Result<Vec<Tensor>> {
        let operands = self.operands()?;
        let op = self.op(&operands)?;
        if !operands.is_empty() {
            // Those that may not travel are refused before they are copied.
            let home = road::home(self.kernel.name, &operands)?;
            self.check_named(&home, "where its inputs live or a scope has it run")?;
        }
        let arrived = self.arrived(operands, None)?;
        let inputs: SmallVec<[&Tensor; 4]> = arrived.iter().collect();
        let whole = match &self.device {
            _ if !inputs.is_empty() => road::run(&op, &inputs)?,
            Some(device) => road::create(&op, device)?,
            None => {
                return Err(Error::invalid(
                    self.kernel.name,
                    "a launch without inputs names its device: on(&device)",
                ));
            }
        };
        if op.outputs.len() == 1 {
            return Ok(vec![whole]);
        }
        // As words they may live where their dtypes may not.
        let home = whole.device().capabilities();
        let whole = match op.outputs.iter().all(|output| home.holds(output.dtype)) {
            true => whole,
            false => whole.to(&Device::cpu())?,
        };
        // The dtype that has the most bytes stays where it is.
        let bytes_of = |dtype: DType| -> u64 {
            let outputs = op.outputs.iter();
            outputs
                .filter(|output| output.dtype == dtype)
                .map(Output::bytes)
                .sum()
        };
        let dtypes = op.outputs.iter().map(|output| output.dtype);
        let shared = dtypes.max_by_key(|&dtype| bytes_of(dtype));
        let part = |output: &Output| {
            let offset = output.offset as usize / output.dtype.size();
            let layout = Layout::contiguous(output.shape.clone()).at_offset(offset);
            let (device, storage) = (whole.device().clone(), whole.storage().clone());
            let part = Tensor::new(device, storage, layout, output.dtype);
            // Whoever compares operands of one storage, or moves them together, takes them for elements of one dtype.
            match shared == Some(output.dtype) {
                true => Ok(part),
                false => part.copy_at_home(self.kernel.name),
            }
        };
        op.outputs.iter().map(part).collect()
    }

    /// Runs a kernel with one output on the memory of a tensor that is there: the kernel finds in its output what
    /// the tensor holds, and what it writes is the tensor's. All views of the storage see it; inputs in the same storage are read before. A view with
    /// gaps, or on a GPU one whose first or last 256 bytes (from the storage's start) are others' too, is copied, written and put back: on a CPU device what other threads write there meanwhile may be lost.
    ///
    /// ```
    /// # use orlop::{Device, Kernel, Tensor};
    /// let descend = Kernel::wgsl(
    ///     "descend",
    ///     "struct Params { rate: f32, weight_length: u32 }
    ///      var<immediate> params: Params;
    ///      @group(0) @binding(0) var<storage, read> gradient: array<f32>;
    ///      @group(0) @binding(1) var<storage, read_write> weight: array<f32>;
    ///      @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    ///          if id.x < params.weight_length { weight[id.x] -= params.rate * gradient[id.x]; }
    ///      }",
    /// )?
    /// .elementwise()
    /// .twin(|call| {
    ///     let (rate, gradient) = (call.scalar::<f32>("rate")?, call.input::<f32>("gradient")?);
    ///     for (weight, gradient) in call.output::<f32>("weight")?.iter_mut().zip(gradient) {
    ///         *weight -= rate * gradient;
    ///     }
    ///     Ok(())
    /// })?;
    /// let device = Device::best()?;
    /// let weight = Tensor::from_slice(&device, &[1.0f32, 2.0], [2])?;
    /// let gradient = Tensor::from_slice(&device, &[4.0f32, 8.0], [2])?;
    /// descend.launch().input("gradient", &gradient).scalar("rate", 0.25).run_into(&weight)?;
    /// assert_eq!(weight.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`KernelLaunch::run`]; [`Error::InvalidArgument`] for a tensor of another shape than the output's, or one that
    /// repeats elements; [`Error::DTypeMismatch`] for one of another dtype. Nothing is written then, but by a twin that
    /// fails after it wrote.
    pub fn run_into(&self, output: &Tensor) -> Result<()> {
        let kernel = self.kernel;
        self.check_named(output.device(), "where what it writes lives")?;
        output.check_distinct(kernel.name)?;
        let bindings = kernel.source.bindings.iter();
        let mut outputs = bindings.filter(|binding| !binding.is_input);
        let (Some(binding), None) = (outputs.next(), outputs.next()) else {
            let problem =
                "it has several outputs, which it writes into one storage: run_all() makes it";
            return Err(Error::invalid(kernel.name, problem));
        };
        let mut launch = self.clone();
        let has_shape = self.outputs.iter().any(|(name, _)| *name == binding.name);
        let has_rule = kernel.rules.iter().any(|(name, _)| *name == binding.name);
        if !has_shape && !has_rule {
            launch = launch.output(&binding.name, output.shape().clone());
        }
        let operands = launch.operands()?;
        let op = UserOp {
            keeps: true,
            ..launch.op(&operands)?
        };
        road::check(&op, &operands, Some(output))?;
        let arrived = launch.arrived(operands, Some(output))?;
        let inputs: SmallVec<[&Tensor; 4]> = arrived.iter().collect();
        // A window ends where its padding does: what lies there shall be nobody's.
        let end = output.byte_range().end;
        let is_last = end >= output.storage().asked();
        let is_apart = is_last || end.is_multiple_of(WINDOW_ALIGNMENT);
        let is_on_cpu = output.device().is_cpu() && output.is_contiguous();
        if is_on_cpu || (lies_well(output) && is_apart) {
            return contiguous::write(&op, &inputs, output);
        }
        let _alone = road::alone(output);
        let whole = output.copy_at_home(kernel.name)?;
        contiguous::write(&op, &inputs, &whole)?;
        output.assign_for(kernel.name, &whole)
    }

    /// # Errors
    /// `InvalidArgument` for a device that was named beside the one where it runs.
    fn check_named(&self, home: &Device, why: &str) -> Result<()> {
        match &self.device {
            Some(named) if named != home => Err(Error::invalid(
                self.kernel.name,
                format!(
                    "on({named}) is not {home}, {why}: move them with to(&device), or leave on() out"
                ),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn kernel(&self) -> &'k Kernel {
        self.kernel
    }

    pub(super) fn inputs_on(&self, device: &Device) -> Result<Self> {
        let inputs = self.inputs.iter();
        Ok(Self {
            device: Some(device.clone()),
            inputs: inputs
                .map(|(name, tensor)| Ok((name.clone(), tensor.to(device)?)))
                .collect::<Result<_>>()?,
            ..self.clone()
        })
    }

    /// Why a device would not run it, if it would not.
    pub(super) fn missing(&self, device: &Device) -> Result<Option<String>> {
        let operands = self.operands()?;
        let op = self.op(&operands)?;
        let arrived = self.arrived(operands, None)?;
        let operands: Vec<road::Operand<'_>> = arrived.iter().map(road::operand).collect();
        Ok(road::Op::missing(
            &op,
            device.capabilities(),
            &operands,
            DType::U32,
        ))
    }

    /// The tensor of each input binding, checked.
    fn operands(&self) -> Result<SmallVec<[&Tensor; 4]>> {
        let kernel = self.kernel.name;
        let bindings = &self.kernel.source.bindings;
        let is_there = |name: &str, what| {
            let is_input = what == What::Input;
            let mut bindings = bindings.iter();
            bindings.any(|binding| binding.is_input == is_input && binding.name == name)
        };
        let inputs = self.inputs.iter().map(|(name, _)| (name, What::Input));
        let outputs = self.outputs.iter().map(|(name, _)| (name, What::Output));
        let mut named: Vec<&String> = Vec::new();
        for (name, what) in inputs.chain(outputs) {
            if !is_there(name, what) {
                return Err(unknown(kernel, &self.kernel.source, what, name));
            }
            if named.contains(&name) {
                let problem = format!("the {} `{name}` is given twice", what.name());
                return Err(Error::invalid(kernel, problem));
            }
            named.push(name);
        }
        let wanted = bindings.iter().filter(|binding| binding.is_input);
        let find = |binding: &super::source::Binding| {
            let found = self.inputs.iter().find(|(name, _)| *name == binding.name);
            let (_, tensor) = found.ok_or_else(|| op::not_given(kernel, "input", &binding.name))?;
            if tensor.dtype() != binding.dtype {
                let (name, there) = (&binding.name, tensor.dtype());
                return Err(Error::input_dtype(kernel, name, there, binding.dtype));
            }
            self.check_size(&binding.name, tensor.shape(), binding)?;
            Ok(tensor)
        };
        wanted.map(find).collect()
    }

    /// A type of a fixed length must find that many elements.
    fn check_size(
        &self,
        name: &str,
        shape: &Shape,
        binding: &super::source::Binding,
    ) -> Result<()> {
        let bytes = shape.count(self.kernel.name)? as u128 * binding.dtype.size() as u128;
        if bytes > MOST_BYTES {
            let problem = format!("`{name}` of shape {shape} takes {bytes} bytes");
            return Err(Error::invalid(self.kernel.name, problem));
        }
        let bytes = bytes as u64;
        // Of an array of any length one element is enough, and padding may be it.
        let there = match binding.is_fixed {
            true => bytes,
            false => bytes.max(1).next_multiple_of(WINDOW_ALIGNMENT),
        };
        if there >= binding.least_bytes {
            return Ok(());
        }
        Err(Error::invalid(
            self.kernel.name,
            format!(
                "`{name}` of shape {shape} has {bytes} bytes, the kernel's array has {}",
                binding.least_bytes
            ),
        ))
    }

    fn op(&self, operands: &[&Tensor]) -> Result<UserOp<'k>> {
        let kernel = self.kernel;
        let bindings = &kernel.source.bindings;
        let shapes: SmallVec<[Shape; 4]> = operands
            .iter()
            .map(|tensor| tensor.shape().clone())
            .collect();
        let other = shapes.iter().find(|shape| **shape != shapes[0]);
        if let Some(shape) = other.filter(|_| kernel.elementwise) {
            let rule = "operands of an elementwise kernel have one shape: broadcast_to";
            return Err(Error::shape_mismatch(kernel.name, &shapes[0], shape, rule));
        }
        let mut outputs: SmallVec<[Output; 2]> = SmallVec::new();
        let mut places: SmallVec<[Role; 4]> = SmallVec::new();
        let mut end = 0u64;
        for binding in bindings {
            let inputs = places
                .iter()
                .filter(|place| matches!(place, Role::Input(_)));
            places.push(match binding.is_input {
                true => Role::Input(inputs.count()),
                false => Role::Output(outputs.len()),
            });
            if binding.is_input {
                continue;
            }
            let shape = self.output_shape(&binding.name, &shapes)?;
            let first = shapes.first().or(outputs.first().map(|first| &first.shape));
            if let Some(first) = first.filter(|first| kernel.elementwise && **first != shape) {
                let rule = "operands of an elementwise kernel have one shape: broadcast_to";
                return Err(Error::shape_mismatch(kernel.name, first, &shape, rule));
            }
            self.check_size(&binding.name, &shape, binding)?;
            let output = Output {
                name: binding.name.clone(),
                offset: end,
                dtype: binding.dtype,
                shape,
            };
            end = end.saturating_add(output.room());
            if u128::from(end) > MOST_BYTES {
                let problem = format!("its outputs take {end} bytes together, or more");
                return Err(Error::invalid(kernel.name, problem));
            }
            outputs.push(output);
        }
        let mut op = UserOp {
            kernel,
            lengths: shapes.iter().map(Shape::elements).collect(),
            shapes,
            outputs,
            places,
            words: Words::from_elem(0, kernel.source.words),
            about: SmallVec::new(),
            groups: self.groups()?,
            keeps: false,
        };
        self.params(&mut op)?;
        Ok(op)
    }

    fn output_shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape> {
        if let Some((_, shape)) = self.outputs.iter().find(|(output, _)| output == name) {
            shape.count(self.kernel.name)?;
            return Ok(shape.clone());
        }
        if let Some((_, rule)) = self.kernel.rules.iter().find(|(output, _)| output == name) {
            let inputs: Vec<&Shape> = inputs.iter().collect();
            let shape = rule(&inputs)?;
            shape.count(self.kernel.name)?;
            return Ok(shape);
        }
        match (self.kernel.elementwise, inputs.first()) {
            (true, Some(first)) => Ok(first.clone()),
            _ => Err(op::not_given(self.kernel.name, "shape of the output", name)),
        }
    }

    fn groups(&self) -> Result<[u32; 3]> {
        let kernel = self.kernel;
        match self.grid {
            Some(_) if kernel.elementwise => Err(Error::invalid(
                kernel.name,
                "the grid of an elementwise kernel follows from its elements",
            )),
            None if kernel.elementwise => Ok([1; 3]),
            None => Err(op::not_given(
                kernel.name,
                "grid:",
                "workgroups or invocations",
            )),
            Some(Grid::Workgroups(groups)) => Ok(groups),
            Some(Grid::Invocations(invocations)) => {
                let mut groups = [0; 3];
                for axis in 0..3 {
                    let size = u64::from(kernel.source.workgroup[axis].max(1));
                    let wanted = invocations[axis].div_ceil(size);
                    groups[axis] = u32::try_from(wanted).map_err(|_| {
                        let problem = format!("a grid of {invocations:?} invocations overflows");
                        Error::invalid(kernel.name, problem)
                    })?;
                }
                Ok(groups)
            }
        }
    }

    /// The operands as kernels get them: without gaps, each in bytes of its own, none empty, none in the storage
    /// of what is written.
    fn arrived(
        &self,
        operands: SmallVec<[&Tensor; 4]>,
        written: Option<&Tensor>,
    ) -> Result<Vec<Tensor>> {
        let mut arrived: Vec<Tensor> = Vec::new();
        // Twins of a CPU device bind nothing: what has no gaps is seen where it lies. What is wrong the road will find.
        let is_on_cpu = match written {
            Some(written) => written.device().is_cpu(),
            None => road::home(self.kernel.name, &operands).is_ok_and(|home| home.is_cpu()),
        };
        let bindings = &self.kernel.source.bindings;
        let inputs = bindings.iter().filter(|binding| binding.is_input);
        for (tensor, input) in operands.into_iter().zip(inputs) {
            if tensor.elements() == 0 {
                arrived.push(Tensor::zeros(tensor.device(), 1, tensor.dtype())?);
                continue;
            }
            let window = |tensor: &Tensor| Window::around(tensor.byte_range());
            // No byte is bound twice.
            let is_bound_once = is_on_cpu
                || arrived.iter().all(|other| {
                    let overlap = || window(tensor).overlaps(&window(other));
                    !(other.shares_storage(tensor) && (self.kernel.strided || overlap()))
                });
            let is_written = written.is_some_and(|written| written.shares_storage(tensor));
            let is_free = is_bound_once && !is_written;
            let lies_well = match self.kernel.strided {
                _ if is_on_cpu => tensor.is_contiguous(),
                // Its whole storage is bound.
                true => !input.is_fixed || tensor.is_contiguous() && tensor.layout().offset() == 0,
                false => lies_well(tensor),
            };
            arrived.push(match is_free && lies_well {
                true => tensor.clone(),
                false => tensor.copy_at_home(self.kernel.name)?,
            });
        }
        Ok(arrived)
    }
}
