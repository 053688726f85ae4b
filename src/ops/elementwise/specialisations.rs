//! The kernels of expressions of one function, for validation and for readers.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::expression::Expression;
use super::function::Function;
use super::launch::{Body, Cost, KernelShape, kernel, storage};
use super::turned::{Squares, Way};
use crate::dtype::DType;
use crate::launch::KernelKey;
use crate::ops::contiguous::copy_code;

/// Of copies and of `add` every way to lie, up to `ranks` dimensions; of the others, whose kernels
/// differ in the body alone, those of one and of two dimensions.
pub(in crate::ops) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = Vec::new();
    for dtype in [DType::Bool, DType::F16, DType::F32, DType::F64] {
        let storage = storage(dtype, true);
        each_way(&mut all, &copy_code(dtype), &[storage; 2], ranks);
        let body = body(copy_code(dtype), true);
        turned(&mut all, &body, (&[storage; 2], &[dtype; 2]), ranks);
    }
    for from in DType::ALL {
        for to in DType::ALL.into_iter().filter(|&to| to != from) {
            let expression = Expression::cast(to);
            if let Ok(types) = expression.types("cast", &[from], None) {
                let code: Arc<str> = expression.body(&types, &[from], None).into();
                plainly(&mut all, &code, &[from.name(), to.name()]);
                let names = [from.name(), to.name()];
                turned(&mut all, &body(code, false), (&names, &[from, to]), 2);
            }
        }
    }
    for &function in Function::ALL {
        for dtype in DType::ALL {
            let expression = Expression::of_inputs(function);
            let mut inputs: SmallVec<[DType; 4]> =
                std::iter::repeat_n(dtype, function.operands()).collect();
            inputs[..function.first_alike()].fill(DType::Bool);
            let Ok(types) = expression.types(function.name(), &inputs, None) else {
                continue;
            };
            if !function.is_in_kernels(dtype) {
                continue;
            }
            let code: Arc<str> = expression.body(&types, &inputs, None).into();
            let operands = inputs.iter().chain(types.last());
            let storages: SmallVec<[&'static str; 4]> =
                operands.map(|dtype| storage(*dtype, false)).collect();
            match function {
                Function::Add => {
                    each_way(&mut all, &code, &storages, ranks);
                    let body = body(code, false);
                    turned(&mut all, &body, (&storages, &[dtype; 3]), 3);
                }
                _ => plainly(&mut all, &code, &storages),
            }
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

fn plainly(all: &mut Vec<KernelKey>, code: &Arc<str>, storages: &[&'static str]) {
    let slots: SmallVec<[usize; 4]> = (0..storages.len()).collect();
    for rank in [1, 2] {
        for &vector in [1].iter().chain(widths(storages)) {
            let inner: SmallVec<[u32; 4]> =
                storages.iter().map(|_| u32::from(vector > 1)).collect();
            for strided_out in [false, true] {
                let shape = KernelShape {
                    vector,
                    rank,
                    inner: &inner,
                    slots: &slots,
                    strided_out,
                    reads_old: false,
                    cost: Cost::Plain,
                };
                all.push(kernel(code, storages, &shape, 0));
            }
        }
    }
}
