//! Every kernel specialisation that plans can ask for: what validation and readers go through.

use super::elementwise::Binary;
use super::{matmul, plan};
use crate::dtype::DType;
use crate::launch::{KernelKey, Value};

/// Ranks after merging that are listed; higher ones follow the same templates.
const RANKS: u32 = 6;

pub(crate) fn specialisations() -> Vec<KernelKey> {
    let mut all = Vec::new();
    for dtype in DType::ALL {
        for op in Binary::ALL {
            let name = crate::road::Op::name(&op);
            elementwise(
                &mut all,
                name,
                (dtype.name(), dtype.name()),
                (dtype, dtype),
                2,
            );
        }
        let (bits, _) = plan::bits(dtype);
        elementwise(&mut all, "copy", (bits, bits), (dtype, dtype), 1);
        for to in DType::ALL.into_iter().filter(|&to| to != dtype) {
            elementwise(&mut all, "cast", (dtype.name(), to.name()), (dtype, to), 1);
        }
    }
    for element in ["u32", "vec2<u32>", "f16"] {
        for rank in 1..=RANKS {
            let values = [("element", element.into()), ("rank", rank.into())];
            all.push(key("fill", values, 1, 3 + 2 * rank));
        }
    }
    for (distribution, element) in [
        ("uniform", "f32"),
        ("uniform", "f16"),
        ("uniform", "f64"),
        ("normal", "f32"),
        ("normal", "f16"),
    ] {
        let values = [
            ("distribution", distribution.into()),
            ("element", element.into()),
        ];
        all.push(key("random", values, 1, 6));
    }
    all.extend(matmul::specialisations());
    all
}

fn elementwise(
    all: &mut Vec<KernelKey>,
    op: &'static str,
    (element_in, element_out): (&'static str, &'static str),
    (from, to): (DType, DType),
    inputs: u32,
) {
    let vectors: &[u32] = if element_in.starts_with("vec") {
        &[1]
    } else {
        &[1, 4]
    };
    for rank in 1..=RANKS {
        for &vector in vectors {
            for inner in 0..if vector == 4 { 2 << (inputs - 1) } else { 1 } {
                // Two operands in one buffer, or each in its own; a contiguous output, or a piece.
                for (shared, strided) in (0..inputs).flat_map(|shared| [(shared, 0), (shared, 1)]) {
                    let slot_b = if inputs == 2 { 1 - shared } else { 0 };
                    let slot_out = slot_b + 1;
                    let values = [
                        ("op", op.into()),
                        ("element_in", element_in.into()),
                        ("element_out", element_out.into()),
                        ("kind", plan::kind(from).into()),
                        ("kind_out", plan::kind(to).into()),
                        ("vector", vector.into()),
                        ("inner_a", (inner & 1).into()),
                        ("inner_b", (inner >> 1).into()),
                        ("rank", rank.into()),
                        ("per_thread", plan::PER_THREAD.into()),
                        ("slot_a", 0.into()),
                        ("slot_b", slot_b.into()),
                        ("slot_out", slot_out.into()),
                        ("strided_out", strided.into()),
                    ];
                    let walked = inputs + strided;
                    let words = 1 + walked + (rank - 1) + walked * rank;
                    all.push(key("elementwise", values, slot_out + 1, words));
                }
            }
        }
    }
}

fn key(
    template: &'static str,
    values: impl IntoIterator<Item = (&'static str, Value)>,
    bindings: u32,
    words: u32,
) -> KernelKey {
    KernelKey {
        template,
        values: values.into_iter().collect(),
        bindings,
        words,
    }
}
