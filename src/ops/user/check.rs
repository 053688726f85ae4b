//! A kernel against its twin.

use super::{Kernel, KernelLaunch};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How far a kernel may be from its twin: an element `x` for the twin's `y` passes when
/// `y` is finite and `|x - y| <= absolute + relative |y|`, when both are NaN, or when they are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tolerance {
    /// A part of the twin's value.
    pub relative: f64,
    /// In the unit of the elements.
    pub absolute: f64,
}

impl Tolerance {
    /// Every element is the twin's.
    pub const EXACT: Tolerance = Tolerance::new(0.0, 0.0);

    /// A part of the twin's value, and so much in the unit of the elements.
    pub const fn new(relative: f64, absolute: f64) -> Self {
        Self { relative, absolute }
    }
}

/// Rounds of random inputs.
const ROUNDS: u64 = 3;

impl Kernel {
    /// Compares the kernel on a device with its twin, on random inputs: of the standard normal
    /// distribution for floats, whole numbers from -100 to 100 (0 to 200 for `u32`) for others.
    /// `shapes` are those of the inputs, by name; `with` gives what else a launch needs. A kernel that is
    /// [`strided`](super::KernelBuilder::strided) gets them turned round, and not from the start, in some rounds.
    ///
    /// ```
    /// # use orlop::{Device, Kernel, Tolerance};
    /// # let twice = Kernel::wgsl("twice", "struct Params { x_length: u32 } var<immediate> params: Params;
    /// #   @group(0) @binding(0) var<storage, read> x: array<f32>;
    /// #   @group(0) @binding(1) var<storage, read_write> out: array<f32>;
    /// #   @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    /// #     if id.x < params.x_length { out[id.x] = 2.0 * x[id.x]; } }")?
    /// #   .elementwise()
    /// #   .twin(|call| {
    /// #     for (out, x) in call.output::<f32>("out")?.iter_mut().zip(call.input::<f32>("x")?) { *out = 2.0 * x; }
    /// #     Ok(())
    /// #   })?;
    /// # let device = Device::best()?;
    /// if !device.is_cpu() {
    ///     twice.check(&device, &[("x", &[1000])], Tolerance::EXACT, |launch| launch)?;
    /// }
    /// # Ok::<(), orlop::Error>(())
    /// ```
    ///
    /// Scopes change neither side. Shapes without elements compare nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the first element that differs; [`Error::Unsupported`] when
    /// the device would run the twin too, as a CPU device does; as [`KernelLaunch::run`].
    pub fn check<'k>(
        &'k self,
        device: &Device,
        shapes: &[(&str, &[usize])],
        tolerance: Tolerance,
        with: impl Fn(KernelLaunch<'k>) -> KernelLaunch<'k>,
    ) -> Result<()> {
        for round in 0..ROUNDS {
            let mut launch = self.launch().on(device);
            for (at, &(name, shape)) in shapes.iter().enumerate() {
                let bindings = &self.source.bindings;
                let binding = bindings.iter().find(|binding| binding.name == name);
                let dtype = binding.map_or(DType::F32, |binding| binding.dtype);
                let seed = round * shapes.len() as u64 + at as u64;
                let input = match self.strided && round % 2 == 1 {
                    true => random_view(device, shape, dtype, seed)?,
                    false => random(shape, dtype, seed)?,
                };
                launch = launch.input(name, &input);
            }
            with(launch).check(device, tolerance)?;
        }
        Ok(())
    }
}

impl KernelLaunch<'_> {
    /// Compares what the kernel gives on a device with what its twin does, for the inputs of this
    /// launch.
    ///
    /// # Errors
    /// As [`Kernel::check`].
    pub fn check(&self, device: &Device, tolerance: Tolerance) -> Result<()> {
        let kernel = self.kernel();
        let there = self.inputs_on(device)?;
        let missing = match device.is_cpu() {
            true => Some("a CPU device has no kernels".to_owned()),
            false => there.missing(device)?,
        };
        if let Some(reason) = missing {
            let help = "its twin runs there: nothing is compared; name another device";
            return Err(Error::unsupported(
                kernel.name,
                device.to_string(),
                reason,
                help,
            ));
        }
        // Each on its own, inside of scopes too.
        let made = device.scope(|| there.run_all())?;
        let cpu = Device::cpu();
        let here = self.inputs_on(&cpu)?;
        let wanted = cpu.scope(|| here.run_all())?;
        let outputs = kernel
            .source
            .bindings
            .iter()
            .filter(|binding| !binding.is_input);
        for ((output, made), wanted) in outputs.zip(&made).zip(&wanted) {
            let (made, wanted) = (numbers(made)?, numbers(wanted)?);
            let differs = |(x, y): (&f64, &f64)| {
                let bound = tolerance.absolute + tolerance.relative * y.abs();
                let is_near = y.is_finite() && (x - y).abs() <= bound;
                !(x == y || is_near || (x.is_nan() && y.is_nan()))
            };
            let Some(at) = made.iter().zip(&wanted).position(differs) else {
                continue;
            };
            let all = made
                .iter()
                .zip(&wanted)
                .filter(|&pair| differs(pair))
                .count();
            return Err(Error::invalid(
                kernel.name,
                format!(
                    "`{}`[{at}] is {:?} on {device} and {:?} by its twin; {all} of {} elements differ by more than {:?} + {:?} of the twin's",
                    output.name,
                    made[at],
                    wanted[at],
                    made.len(),
                    tolerance.absolute,
                    tolerance.relative,
                ),
            ));
        }
        Ok(())
    }
}

/// The elements in row-major order, exactly.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    let cpu = Device::cpu();
    let tensor = cpu.scope(|| tensor.to(&cpu)?.cast(DType::F64))?;
    tensor.to_vec::<f64>()
}

/// Columns instead of rows, behind one that is not asked for, where there is room for that.
fn random_view(device: &Device, shape: &[usize], dtype: DType, seed: u64) -> Result<Tensor> {
    let turned: Vec<usize> = match shape.split_last() {
        Some((last, others)) => std::iter::once(last.saturating_add(1))
            .chain(others.iter().rev().copied())
            .collect(),
        None => Vec::new(),
    };
    let elements = |sizes: &[usize]| Shape::from(sizes).elements();
    let bytes = (elements(&turned) as u64).saturating_mul(dtype.size() as u64);
    // The kernel is bound to all of it.
    if elements(shape) == 0 || turned.is_empty() || bytes > device.capabilities().indexed_bytes() {
        return random(shape, dtype, seed);
    }
    let axes: Vec<usize> = (0..shape.len()).rev().collect();
    let there = random(&turned, dtype, seed)?.to(device)?;
    there.slice(1..)?.permute(&axes)
}

fn random(shape: &[usize], dtype: DType, seed: u64) -> Result<Tensor> {
    let cpu = Device::cpu();
    let shape: Shape = shape.into();
    if dtype.is_float() {
        return Tensor::randn(&cpu, shape, dtype, seed);
    }
    let range = match dtype {
        DType::U32 => 0..201,
        _ => -100..101,
    };
    Tensor::randint(&cpu, range, shape, dtype, seed)
}
