//! Elementwise expressions on the CPU: in blocks that stay in the nearest cache, each node a loop that
//! vectorises.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::expression::{Expression, Node, Types};
use super::function::{Function, Kind};
use super::real::{Real, Whole};
use crate::cpu::parallel::{self, Walk};
use crate::dtype::{DType, ElementBytes};
use crate::road::{HostInput, HostOutput};

/// Elements of a block.
const BLOCK: usize = 1024;

/// Writes a new output.
pub(super) fn evaluate(
    expression: &Expression,
    types: &Types,
    numbers: &[ElementBytes],
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) {
    let size = output.dtype.size();
    let count = output.layout.elements();
    let Some(out) = output.bytes.get_mut(..count * size) else {
        return;
    };
    parallel::elements(out, size, |from, piece| {
        let mut machine = Machine::new(expression, types, numbers, inputs);
        for (at, block) in piece.chunks_mut(BLOCK * size).enumerate() {
            machine.block(from + at * BLOCK, block);
        }
    });
}

/// A block of values of any kind, aligned for all of them.
type Register = Vec<u64>;

/// Where a node's values are.
#[derive(Clone, Copy)]
enum Place {
    /// In the input itself, from its first element on.
    Straight(usize),
    Register(usize),
}

/// Evaluates block by block on one thread.
struct Machine<'a> {
    expression: &'a Expression,
    types: &'a Types,
    inputs: &'a [HostInput<'a>],
    /// Of inputs that are not read straight.
    walks: Vec<Option<Walk>>,
    places: Vec<Place>,
    registers: Vec<Register>,
    /// Bits of elements before they are widened.
    raw: Register,
}

/// The bytes of one value as it is computed with.
fn size_of_kind(dtype: DType) -> usize {
    match Kind::of(dtype) {
        Kind::F64 => 8,
        Kind::F32 | Kind::I32 | Kind::U32 => 4,
    }
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl<'a> Machine<'a> {
    fn new(
        expression: &'a Expression,
        types: &'a Types,
        numbers: &[ElementBytes],
        inputs: &'a [HostInput<'a>],
    ) -> Self {
        let mut machine = Self {
            expression,
            types,
            inputs,
            walks: inputs.iter().map(|_| None).collect(),
            places: Vec::new(),
            registers: Vec::new(),
            raw: vec![0; BLOCK],
        };
        let mut free: Vec<usize> = Vec::new();
        for (at, (node, &dtype)) in expression.nodes.iter().zip(types).enumerate() {
            let place = match *node {
                Node::Input(input) => machine.input(usize::from(input), dtype),
                Node::Scalar(number) => {
                    let register = machine.register();
                    let value = numbers.get(usize::from(number));
                    let bytes = value.map_or(&[][..], ElementBytes::as_slice);
                    machine.splat(register, dtype, bytes);
                    Place::Register(register)
                }
                Node::Apply(..) => {
                    let register = free.pop().unwrap_or_else(|| machine.register());
                    Place::Register(register)
                }
            };
            machine.places.push(place);
            // Registers of values that nothing reads any more serve again.
            if let Node::Apply(function, operands) = *node {
                let operands = &operands[..function.operands()];
                for (index, &operand) in operands.iter().enumerate() {
                    let operand = usize::from(operand);
                    let computed = matches!(expression.nodes[operand], Node::Apply(..));
                    let again = operands[..index].contains(&(operand as u8));
                    if let (true, false, Place::Register(register)) = (
                        computed && !expression.reads_after(at, operand),
                        again,
                        machine.places[operand],
                    ) {
                        free.push(register);
                    }
                }
            }
        }
        machine
    }

    fn register(&mut self) -> usize {
        self.registers.push(vec![0; BLOCK]);
        self.registers.len() - 1
    }

    /// Where an input is read from; one value for all elements is spread here, once.
    fn input(&mut self, input: usize, dtype: DType) -> Place {
        let operand = &self.inputs[input];
        if operand.layout.is_contiguous() && !is_narrow(dtype) {
            return Place::Straight(input);
        }
        let register = self.register();
        if operand.layout.strides().iter().all(|&stride| stride == 0) {
            let first = operand.layout.offset() * dtype.size();
            let bytes = operand.bytes.get(first..first + dtype.size());
            self.splat(register, dtype, bytes.unwrap_or_default());
        } else if !operand.layout.is_contiguous() {
            self.walks[input] = Some(Walk::new(&[operand.layout]));
        }
        Place::Register(register)
    }

    /// Fills a register with one element.
    fn splat(&mut self, register: usize, dtype: DType, element: &[u8]) {
        let wide: [u8; 4];
        let element = match dtype {
            DType::F16 => {
                wide = f16::from_bits(bits16(element)).to_f32().to_ne_bytes();
                &wide
            }
            DType::BF16 => {
                wide = bf16::from_bits(bits16(element)).to_f32().to_ne_bytes();
                &wide
            }
            _ => element,
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.registers[register]);
        for place in bytes.chunks_exact_mut(element.len().max(1)) {
            place.copy_from_slice(element);
        }
    }

    /// Computes elements from `from` on, as many as `out` holds.
    fn block(&mut self, from: usize, out: &mut [u8]) {
        let last = self.expression.nodes.len() - 1;
        let dtype = self.types[last];
        let count = out.len() / dtype.size();
        for at in 0..=last {
            match self.expression.nodes[at] {
                Node::Input(input) => self.load(at, usize::from(input), from, count),
                Node::Scalar(_) => {}
                Node::Apply(function, operands) => {
                    if at == last && !is_narrow(dtype) {
                        self.apply(function, operands, from, count, out);
                        return;
                    }
                    if let Place::Register(register) = self.places[at] {
                        let mut target = std::mem::take(&mut self.registers[register]);
                        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut target);
                        let bytes = &mut bytes[..count * size_of_kind(self.types[at])];
                        self.apply(function, operands, from, count, bytes);
                        self.registers[register] = target;
                    }
                }
            }
        }
        let values = self.values(last, from, count);
        match dtype {
            DType::F16 => {
                let out: &mut [f16] = bytemuck::cast_slice_mut(out);
                out.convert_from_f32_slice(bytemuck::cast_slice(values));
            }
            DType::BF16 => {
                let values: &[f32] = bytemuck::cast_slice(values);
                let out: &mut [bf16] = bytemuck::cast_slice_mut(out);
                for (out, &value) in out.iter_mut().zip(values) {
                    *out = bf16::from_f32(value);
                }
            }
            _ => out.copy_from_slice(values),
        }
    }

    /// The values of a node in this block.
    fn values(&self, node: usize, from: usize, count: usize) -> &[u8] {
        let dtype = self.types[node];
        match self.places[node] {
            Place::Straight(input) => {
                let operand = &self.inputs[input];
                let first = (operand.layout.offset() + from) * dtype.size();
                &operand.bytes[first..first + count * dtype.size()]
            }
            Place::Register(register) => {
                let bytes: &[u8] = bytemuck::cast_slice(&self.registers[register]);
                &bytes[..count * size_of_kind(dtype)]
            }
        }
    }

    /// Gathers and widens an input's elements that are not read straight.
    fn load(&mut self, node: usize, input: usize, from: usize, count: usize) {
        let Place::Register(register) = self.places[node] else {
            return;
        };
        let (operand, dtype) = (&self.inputs[input], self.types[node]);
        let size = dtype.size();
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut self.registers[register]);
        let elements = match &self.walks[input] {
            Some(walk) => {
                let raw: &mut [u8] = bytemuck::cast_slice_mut(&mut self.raw);
                let into = if is_narrow(dtype) { raw } else { &mut *target };
                let into = &mut into[..count * size];
                match size {
                    2 => gather::<u16>(walk, operand.bytes, from, into),
                    4 => gather::<u32>(walk, operand.bytes, from, into),
                    _ => gather::<u64>(walk, operand.bytes, from, into),
                }
                match is_narrow(dtype) {
                    true => &bytemuck::cast_slice(&self.raw)[..count * size],
                    false => return,
                }
            }
            None if operand.layout.is_contiguous() => {
                let first = (operand.layout.offset() + from) * size;
                &operand.bytes[first..first + count * size]
            }
            // One value, spread at the start.
            None => return,
        };
        let target = &mut bytemuck::cast_slice_mut::<u8, f32>(target)[..count];
        match dtype {
            DType::F16 => {
                let elements: &[f16] = bytemuck::cast_slice(elements);
                elements.convert_to_f32_slice(target);
            }
            _ => {
                let elements: &[bf16] = bytemuck::cast_slice(elements);
                for (target, element) in target.iter_mut().zip(elements) {
                    *target = element.to_f32();
                }
            }
        }
    }

    fn apply(
        &self,
        function: Function,
        operands: [u8; 3],
        from: usize,
        count: usize,
        out: &mut [u8],
    ) {
        let kind = Kind::of(self.types[usize::from(operands[0])]);
        let mut values: [&[u8]; 3] = [&[]; 3];
        for (values, &operand) in values.iter_mut().zip(&operands[..function.operands()]) {
            *values = self.values(usize::from(operand), from, count);
        }
        vectorised(
            #[inline(always)]
            || match kind {
                Kind::F32 => real::<f32>(function, values, out),
                Kind::F64 => real::<f64>(function, values, out),
                Kind::I32 => whole::<i32>(function, values, out),
                Kind::U32 => whole::<u32>(function, values, out),
            },
        );
    }
}

/// Runs loops with the processor's wider vectors where it has them.
#[inline(always)]
fn vectorised(loops: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return pulp::Simd::vectorize(simd, loops);
    }
    loops();
}

fn bits16(element: &[u8]) -> u16 {
    element.try_into().map_or(0, u16::from_ne_bytes)
}

/// Elements of a view from `from` on, as many as `into` holds.
fn gather<T: bytemuck::Pod>(walk: &Walk, bytes: &[u8], from: usize, into: &mut [u8]) {
    let elements: &[T] = bytemuck::cast_slice(bytes);
    let into: &mut [T] = bytemuck::cast_slice_mut(into);
    let stride = walk.inner_strides()[0];
    let length = into.len();
    walk.runs(from, length, |first, starts, count| {
        let into = &mut into[first..first + count];
        let start = starts[0] as usize;
        match stride {
            1 => into.copy_from_slice(&elements[start..start + count]),
            0 => into.fill(elements[start]),
            _ => {
                let mut at = starts[0];
                for into in into {
                    *into = elements[at as usize];
                    at += stride;
                }
            }
        }
    });
}

#[inline(always)]
fn one<A: bytemuck::Pod, R: bytemuck::Pod>(values: [&[u8]; 3], out: &mut [u8], f: impl Fn(A) -> R) {
    let a: &[A] = bytemuck::cast_slice(values[0]);
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    for (out, &a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
}

#[inline(always)]
fn two<A: bytemuck::Pod, R: bytemuck::Pod>(
    values: [&[u8]; 3],
    out: &mut [u8],
    f: impl Fn(A, A) -> R,
) {
    let (a, b): (&[A], &[A]) = (
        bytemuck::cast_slice(values[0]),
        bytemuck::cast_slice(values[1]),
    );
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}

#[inline(always)]
fn real<T: Real>(function: Function, values: [&[u8]; 3], out: &mut [u8]) {
    match function {
        Function::Add => two::<T, T>(values, out, |a, b| a + b),
        Function::Sub => two::<T, T>(values, out, |a, b| a - b),
        Function::Mul => two::<T, T>(values, out, |a, b| a * b),
        Function::Div => two::<T, T>(values, out, |a, b| a / b),
        Function::Neg => one::<T, T>(values, out, |a| -a),
        // NaN stays.
        Function::Relu => one::<T, T>(values, out, |a| if a < T::ZERO { T::ZERO } else { a }),
        Function::Exp => one::<T, T>(values, out, T::exp),
        Function::Sqrt => one::<T, T>(values, out, T::sqrt),
    }
}

#[inline(always)]
fn whole<T: Whole>(function: Function, values: [&[u8]; 3], out: &mut [u8]) {
    match function {
        Function::Add => two::<T, T>(values, out, T::wrapping_add),
        Function::Sub => two::<T, T>(values, out, T::wrapping_sub),
        Function::Mul => two::<T, T>(values, out, T::wrapping_mul),
        Function::Div => two::<T, T>(values, out, T::divide),
        Function::Neg => one::<T, T>(values, out, T::wrapping_neg),
        Function::Relu => one::<T, T>(values, out, |a| a.max(T::default())),
        // Of floats alone, by their rules.
        Function::Exp | Function::Sqrt => {}
    }
}
