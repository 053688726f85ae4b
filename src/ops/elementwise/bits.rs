//! Functions of f16 and bf16 on the CPU that change or choose bits: nothing is widened.

use bytemuck::{cast_slice, cast_slice_mut};

use super::expression::{Expression, Node};
use super::function::Function;
use super::twin::{BLOCK, stores};
use crate::cpu::{Loops, parallel, vectorised};
use crate::dtype::DType;
use crate::road::HostInput;

const SIGN: u16 = 1 << 15;

/// Writes the output of one such function, of a whole input or in place, and says whether it is that.
pub(super) fn by_bits(
    expression: &Expression,
    inputs: &[HostInput<'_>],
    dtype: DType,
    out: &mut [u8],
) -> bool {
    let infinity = match dtype {
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        _ => return false,
    };
    let (of, function) = match expression.nodes[..] {
        [of, Node::Apply(function, [0, ..])] if function.operands() == 1 => (of, function),
        _ => return false,
    };
    let input: Option<&[u16]> = match (of, inputs) {
        (Node::Old, _) => None,
        (Node::Input(0), [input]) if input.layout.is_contiguous() && input.dtype == dtype => {
            let count = input.layout.elements();
            Some(cast_slice(input.bytes_of(input.layout.offset(), count)))
        }
        _ => return false,
    };
    // Inlined always: what is called instead knows nothing of vectors.
    match function {
        Function::Neg => each(
            expression,
            input,
            out,
            #[inline(always)]
            move |x| x ^ SIGN,
        ),
        Function::Abs => each(
            expression,
            input,
            out,
            #[inline(always)]
            move |x| x & !SIGN,
        ),
        // From the first number below -0 to minus infinity; NaN stays.
        Function::Relu => each(
            expression,
            input,
            out,
            #[inline(always)]
            move |x| {
                let is_below = x.wrapping_sub(SIGN + 1) < infinity;
                if is_below { 0 } else { x }
            },
        ),
        _ => return false,
    }
    true
}

fn each(
    expression: &Expression,
    input: Option<&[u16]>,
    out: &mut [u8],
    f: impl Fn(u16) -> u16 + Copy + Sync,
) {
    const SIZE: usize = size_of::<u16>();
    let stores = stores(expression, out.len());
    parallel::elements(out, SIZE, |from, piece| {
        stores.write(piece, BLOCK * SIZE, |first, piece| {
            let input = input.map(|input| &input[from + first / SIZE..]);
            vectorised(Each(input, cast_slice_mut(piece), f));
        });
    });
}

/// The function itself, not where it is: what it holds might be what is written.
struct Each<'a, F>(Option<&'a [u16]>, &'a mut [u16], F);

impl<F: Fn(u16) -> u16> Loops for Each<'_, F> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Each(input, out, f) = self;
        match input {
            Some(input) => {
                for (out, &x) in out.iter_mut().zip(input) {
                    *out = f(x);
                }
            }
            None => {
                for x in out {
                    *x = f(*x);
                }
            }
        }
    }
}
