//! The kernels of expressions of one function, and of a long one, for validation and for readers.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::expression::{Expression, Node};
use super::function::Function;
use super::launch::{Body, Cost, KernelShape, MANY_LONG, kernel, storage};
use super::turned::{Squares, Way};
use crate::dtype::DType;
use crate::launch::KernelKey;
use crate::ops::contiguous::copy_code;

/// Of copies and of `add` every way to lie, up to `ranks` dimensions; of the others, whose kernels
/// differ in the body alone, those of one and of two dimensions, also with a number and in place. Programs' own expressions
/// are without end: one that is long is here.
pub(in crate::ops) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = Vec::new();
    for dtype in [DType::Bool, DType::F16, DType::F32, DType::F64] {
        let storage = storage(dtype, true);
        each_way(&mut all, &copy_code(dtype), &[storage; 2], ranks);
        let body = body(copy_code(dtype), true);
        turned(&mut all, &body, (&[storage; 2], &[dtype; 2]), ranks);
    }
    for &from in DType::ALL {
        for to in DType::ALL.iter().copied().filter(|&to| to != from) {
            if let Some(form) = Form::of("cast", &Expression::cast(to), &[from], None) {
                form.list(&mut all);
                let body = body(form.code, false);
                turned(&mut all, &body, (&form.storages, &[from, to]), 2);
            }
        }
    }
    for &function in Function::ALL {
        for &dtype in DType::ALL {
            let mut inputs: SmallVec<[DType; 4]> =
                std::iter::repeat_n(dtype, function.operands()).collect();
            inputs[..function.first_alike()].fill(DType::Bool);
            let form = Form::of(
                function.name(),
                &Expression::of_inputs(function),
                &inputs,
                None,
            );
            let Some(form) = form else { continue };
            match function {
                Function::Add => {
                    each_way(&mut all, &form.code, &form.storages, ranks);
                    let body = body(form.code, false);
                    turned(&mut all, &body, (&form.storages, &[dtype; 3]), 3);
                }
                _ => form.list(&mut all),
            }
            for form in other_calls(function, &inputs) {
                form.list(&mut all);
            }
        }
    }
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let steps = (0..=MANY_LONG as u8).map(|at| Node::Apply(Function::Sin, [at, 0, 0]));
        let nodes = std::iter::once(Node::Input(0)).chain(steps).collect();
        if let Some(form) = Form::of("fused", &Expression { nodes }, &[dtype], None) {
            form.list(&mut all);
        }
    }
    // Some functions are the same of some dtypes: `abs` and `relu` of u32.
    let mut seen = FxHashSet::default();
    all.retain(|key| seen.insert(key.clone()));
    all
}

fn body(code: Arc<str>, bits: bool) -> Body<'static> {
    Body {
        op: "",
        code,
        bits,
        cost: Cost::Plain,
        reads_old: false,
        scalars: &[],
        flops: 0.0,
    }
}

/// Inputs of which one lies turned, in squares of every form.
fn turned(
    all: &mut Vec<KernelKey>,
    body: &Body<'_>,
    (storages, dtypes): (&[&'static str], &[DType]),
    ranks: u32,
) {
    let inputs = storages.len() - 1;
    let sizes = || dtypes.iter().map(|dtype| dtype.size());
    let has_vectors = !body.bits || sizes().all(|size| size <= 4);
    let has_eights = sizes().all(|size| size == 2 || size == 4);
    let are_halves = sizes().all(|size| size == 2);
    let is_word = storages[inputs] != "bool" && dtypes[inputs].size() >= 4;
    let forms = [
        (32, 1, 1, true, true),
        (64, 2, 1, true, are_halves),
        (8, 8, 2, false, has_eights),
        (4, 4, 1, false, has_vectors),
        (4, 1, 1, false, is_word),
    ];
    let others: &[&[Way]] = match inputs {
        1 => &[&[Way::Turned]],
        _ => &[
            &[Way::Turned, Way::Turned],
            &[Way::Turned, Way::Straight],
            &[Way::Straight, Way::Turned],
            &[Way::Turned, Way::One],
            &[Way::One, Way::Turned],
        ],
    };
    for rank in 2..=ranks {
        for &ways in others {
            for shared in 0..inputs {
                let mut slots: SmallVec<[usize; 4]> = (0..=inputs - shared).collect();
                if shared == 1 {
                    slots.insert(0, 0);
                }
                let turned = ways.iter().filter(|&&way| way == Way::Turned).count();
                for (side, unit, squares, tile, _) in forms.into_iter().filter(|form| form.4) {
                    // Plans have no two of these in workgroup memory.
                    if unit == 2 && turned > 1 {
                        continue;
                    }
                    let shape = Squares {
                        side,
                        unit,
                        squares,
                        tile,
                        ways: ways.iter().copied().chain([Way::Straight]).collect(),
                        rank,
                    };
                    all.push(shape.kernel(body, storages, &slots, shape.words()));
                }
            }
        }
    }
}

/// Inputs in one buffer or each in its own, new outputs and pieces, with vectors and without.
fn each_way(all: &mut Vec<KernelKey>, code: &Arc<str>, storages: &[&'static str], ranks: u32) {
    let inputs = storages.len() - 1;
    let widths = widths(storages);
    let ways = 0..1 << inputs;
    for rank in 1..=ranks {
        for shared in 0..inputs {
            for strided_out in [false, true] {
                // The last input is the first's neighbour, or in its buffer.
                let mut slots: SmallVec<[usize; 4]> = (0..=inputs - shared).collect();
                if shared == 1 {
                    slots.insert(0, 0);
                }
                let mut shape = KernelShape {
                    vector: 1,
                    rank,
                    inner: &[0; 3][..=inputs],
                    slots: &slots,
                    strided_out,
                    reads_old: false,
                    cost: Cost::Plain,
                };
                all.push(kernel(code, storages, &shape, 0));
                for (vector, way) in widths
                    .iter()
                    .flat_map(|&width| ways.clone().map(move |way| (width, way)))
                {
                    let inner: SmallVec<[u32; 4]> = (0..inputs)
                        .map(|input| (way >> input) & 1)
                        .chain([1])
                        .collect();
                    shape.vector = vector;
                    let shape = KernelShape {
                        inner: &inner,
                        ..shape
                    };
                    all.push(kernel(code, storages, &shape, 0));
                }
            }
        }
    }
}

/// How many neighbours there are vectors of.
fn widths(storages: &[&'static str]) -> &'static [u32] {
    if storages.iter().any(|storage| storage.starts_with("vec")) {
        &[]
    } else if storages.contains(&"f64") {
        &[4]
    } else {
        &[4, 8]
    }
}

/// What the kernels of an expression have beside the ways that its operands lie.
struct Form {
    code: Arc<str>,
    /// Of the inputs and of the output.
    storages: SmallVec<[&'static str; 4]>,
    scalars: usize,
    reads_old: bool,
    cost: Cost,
}

/// Calls of a function that are not of tensors alone: with a number, last or first, written into the first operand, and both.
fn other_calls(function: Function, inputs: &[DType]) -> Vec<Form> {
    let (first, last) = (function.first_alike(), inputs.len() - 1);
    let calls = [
        (false, Some(last)),
        (false, Some(first)),
        (true, None),
        (true, Some(last)),
    ];
    let mut forms = Vec::new();
    for (is_old, number) in calls {
        // Numbers of f64 are tensors in kernels.
        if number.is_some() && inputs[last] == DType::F64 {
            continue;
        }
        let mut tensors: SmallVec<[DType; 4]> = SmallVec::new();
        let mut nodes: SmallVec<[Node; 6]> = SmallVec::new();
        for (at, &dtype) in inputs.iter().enumerate() {
            nodes.push(match at {
                0 if is_old => Node::Old,
                _ if Some(at) == number => Node::Scalar(0),
                _ => {
                    tensors.push(dtype);
                    Node::Input((tensors.len() - 1) as u8)
                }
            });
        }
        nodes.push(Node::Apply(function, [0, 1, 2]));
        let old = is_old.then_some(inputs[0]);
        let form = Form::of(function.name(), &Expression { nodes }, &tensors, old);
        // What is written keeps its dtype.
        forms.extend(form.filter(|form| {
            let result = form.storages.last();
            old.is_none_or(|old| result == Some(&storage(old, false)))
        }));
    }
    forms
}

impl Form {
    /// `None` where the expression has no meaning for inputs of these dtypes and for what is written into, or kernels lack it.
    fn of(
        name: &'static str,
        expression: &Expression,
        inputs: &[DType],
        old: Option<DType>,
    ) -> Option<Self> {
        let types = expression.types(name, &|at| inputs.get(at).copied(), old);
        let types = types.ok()?;
        let is_lacking = |node: &Node| match *node {
            Node::Apply(function, operands) => {
                let of = types[usize::from(operands[function.first_alike()])];
                !function.is_in_kernels(of)
            }
            _ => false,
        };
        if expression.nodes.iter().any(is_lacking) {
            return None;
        }
        let operands = inputs.iter().chain(types.last());
        let is_number = |node: &&Node| matches!(node, Node::Scalar(_));
        Some(Self {
            code: expression.body(&types, inputs, old).into(),
            storages: operands.map(|dtype| storage(*dtype, false)).collect(),
            scalars: expression.nodes.iter().filter(is_number).count(),
            reads_old: old.is_some(),
            cost: expression.cost(),
        })
    }

    /// Its kernels of one and of two dimensions, each operand in a binding of its own.
    fn list(&self, all: &mut Vec<KernelKey>) {
        let slots: SmallVec<[usize; 4]> = (0..self.storages.len()).collect();
        // What is written into is never new.
        let outputs = if self.reads_old {
            &[true][..]
        } else {
            &[false, true]
        };
        for rank in [1, 2] {
            for &vector in [1].iter().chain(widths(&self.storages)) {
                let inner: SmallVec<[u32; 4]> = self
                    .storages
                    .iter()
                    .map(|_| u32::from(vector > 1))
                    .collect();
                for &strided_out in outputs {
                    let shape = KernelShape {
                        vector,
                        rank,
                        inner: &inner,
                        slots: &slots,
                        strided_out,
                        reads_old: self.reads_old,
                        cost: self.cost,
                    };
                    all.push(kernel(&self.code, &self.storages, &shape, self.scalars));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::{Capabilities, DeviceKind};
    use crate::dtype::Scalar;
    use crate::error::Result;
    use crate::layout::Layout;
    use crate::ops::elementwise::{Argument, Elementwise};
    use crate::road::{Op, Problem, operand};
    use crate::tensor::Tensor;
    use crate::{Device, Shape};

    /// Calls with a number, and in place, of tensors that lie by rows ask for nothing that is not listed.
    #[test]
    fn calls_with_numbers_and_in_place_are_listed() -> Result<()> {
        let listed: FxHashSet<KernelKey> = specialisations(2).into_iter().collect();
        let mut asked = FxHashSet::default();
        for &function in Function::ALL.iter().filter(|of| of.operands() == 2) {
            for &dtype in DType::ALL {
                for shape in [&[4000][..], &[61, 63]] {
                    for view in [false, true] {
                        asked.extend(keys(function, dtype, shape.into(), view)?);
                    }
                }
            }
        }
        assert!(asked.len() > 200, "{}", asked.len());
        for key in asked {
            assert!(listed.contains(&key), "{key:?}");
        }
        Ok(())
    }

    /// The kernels of both calls, with all of a tensor or a part of it.
    fn keys(function: Function, dtype: DType, shape: Shape, view: bool) -> Result<Vec<KernelKey>> {
        let mut tensor = Tensor::zeros(&Device::cpu(), shape, dtype)?;
        if view {
            tensor = tensor.slice(1..)?;
        }
        let number = Argument::Number(match dtype.is_float() {
            true => Scalar::Float(2.5),
            false => Scalar::Integer(1),
        });
        let new = Layout::contiguous(tensor.shape().clone());
        let mut keys = Vec::new();
        let this = Argument::Tensor(&tensor);
        let calls: [(bool, &[Argument<'_>]); 4] = [
            (false, &[this, number]),
            (false, &[number, this]),
            (true, &[this]),
            (true, &[number]),
        ];
        for (in_place, arguments) in calls {
            let has_number = arguments.len() == 2 || matches!(arguments, [Argument::Number(_)]);
            if has_number && dtype == DType::F64 {
                continue;
            }
            let mut call = Elementwise::new(function.name(), Expression::default());
            let mut inputs = SmallVec::new();
            if in_place {
                call.expression.nodes.push(Node::Old);
                call.into = Some((tensor.shape().clone(), dtype));
            }
            call.push(function, arguments, &mut inputs);
            let inputs: SmallVec<[_; 4]> = inputs.into_iter().map(operand).collect();
            let count = inputs.len();
            let Ok((_, result)) = call.infer(&inputs) else {
                continue;
            };
            if !function.is_in_kernels(dtype) || in_place && result != dtype {
                continue;
            }
            let mut output = operand(&tensor);
            output.dtype = result;
            if !in_place {
                output.layout = &new;
            }
            let problem = Problem {
                inputs,
                output,
                fresh: !in_place,
                spare: true,
                slots: SmallVec::from_elem(0, count),
            };
            for kind in [DeviceKind::Software, DeviceKind::DiscreteGpu] {
                let mut capabilities = Capabilities::cpu();
                capabilities.max_workgroups = 65_535;
                capabilities.max_binding_bytes = 1 << 30;
                capabilities.int64 = true;
                capabilities.kind = kind;
                let launches = call.plan(&problem, &capabilities)?;
                keys.extend(launches.into_iter().map(|launch| launch.kernel));
            }
        }
        Ok(keys)
    }
}
