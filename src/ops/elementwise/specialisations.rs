//! The kernels of expressions of one function, for validation and for readers.

use std::sync::Arc;

use smallvec::SmallVec;

use super::expression::Expression;
use super::function::Function;
use super::launch::{KernelShape, kernel};
use crate::dtype::DType;
use crate::launch::KernelKey;

/// Of `add` every way to lie, up to `ranks` dimensions; of the others, whose kernels differ in the
/// body alone, those of one and of two dimensions.
pub(in crate::ops) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = Vec::new();
    for function in Function::ALL {
        for dtype in DType::ALL {
            let expression = Expression::of_inputs(function);
            let inputs: SmallVec<[DType; 4]> =
                std::iter::repeat_n(dtype, function.operands()).collect();
            let Ok(types) = expression.types(function.name(), &inputs) else {
                continue;
            };
            if !function.is_in_kernels(dtype) {
                continue;
            }
            let code: Arc<str> = expression.body(&types, &inputs).into();
            let mut dtypes = inputs;
            dtypes.extend(types.last().copied());
            match function {
                Function::Add => each_way(&mut all, &code, &dtypes, ranks),
                _ => plainly(&mut all, &code, &dtypes),
            }
        }
    }
    all
}

/// Inputs in one buffer or each in its own, new outputs and pieces, with vectors and without.
fn each_way(all: &mut Vec<KernelKey>, code: &Arc<str>, dtypes: &[DType], ranks: u32) {
    for rank in 1..=ranks {
        for inner in [None, Some([0, 0]), Some([0, 1]), Some([1, 0]), Some([1, 1])] {
            for slots in [[0, 0, 1], [0, 1, 2]] {
                for strided_out in [false, true] {
                    let [first, second] = inner.unwrap_or([0, 0]);
                    let shape = KernelShape {
                        vector: if inner.is_some() { 4 } else { 1 },
                        rank,
                        inner: &[first, second, u32::from(inner.is_some())],
                        slots: &slots,
                        strided_out,
                    };
                    all.push(kernel(code, dtypes, &shape, 0));
                }
            }
        }
    }
}

fn plainly(all: &mut Vec<KernelKey>, code: &Arc<str>, dtypes: &[DType]) {
    let slots: SmallVec<[usize; 4]> = (0..dtypes.len()).collect();
    for rank in [1, 2] {
        for vector in [1, 4] {
            let inner: SmallVec<[u32; 4]> = dtypes.iter().map(|_| u32::from(vector == 4)).collect();
            for strided_out in [false, true] {
                let shape = KernelShape {
                    vector,
                    rank,
                    inner: &inner,
                    slots: &slots,
                    strided_out,
                };
                all.push(kernel(code, dtypes, &shape, 0));
            }
        }
    }
}
