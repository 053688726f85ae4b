//! The kernel specialisations that plans can ask for: what validation and readers go through.

use super::{index, matmul, nonzero, normalise, position, reduce, scan, sort};
use crate::launch::{KernelKey, Value};

/// Ranks after merging that are listed; higher ones follow the same templates.
const RANKS: u32 = 6;

pub(crate) fn specialisations() -> Vec<KernelKey> {
    let mut all = super::elementwise::specialisations(RANKS);
    for element in ["u32", "vec2<u32>", "u16", "u8"] {
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
        ("integers", "u32"),
    ] {
        let values = [
            ("distribution", distribution.into()),
            ("element", element.into()),
        ];
        let words = if distribution == "integers" { 8 } else { 6 };
        all.push(key("random", values, 1, words));
    }
    all.extend(index::specialisations(RANKS));
    all.extend(nonzero::specialisations(RANKS));
    all.extend(position::specialisations(RANKS));
    all.extend(reduce::specialisations());
    all.extend(normalise::specialisations());
    all.extend(scan::specialisations());
    all.extend(sort::specialisations());
    all.extend(matmul::specialisations());
    all
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use smallvec::smallvec;

    use super::*;
    use crate::capabilities::{Capabilities, DeviceKind};
    use crate::dtype::{DType, Scalar};
    use crate::layout::{Layout, merge};
    use crate::ops::contiguous::COPY;
    use crate::ops::elementwise::{Elementwise, Function};
    use crate::ops::fill::Fill;
    use crate::road::{Op, Operand, Problem};
    use crate::shape::Shape;

    /// Whole tensors and pieces, in every dtype and way to lie, ask for nothing that is not listed.
    #[test]
    fn plans_ask_for_what_is_listed() {
        let listed: HashSet<KernelKey> = specialisations().into_iter().collect();
        let mut capabilities = Capabilities::cpu();
        capabilities.max_workgroups = 65_535;
        let mut asked = HashSet::new();
        let add = Elementwise::of(Function::Add);
        for (binding, int64, kind) in [
            (1 << 30, true, DeviceKind::Software),
            (4096, false, DeviceKind::Software),
            (1 << 30, true, DeviceKind::DiscreteGpu),
        ] {
            capabilities.max_binding_bytes = binding;
            capabilities.int64 = int64;
            capabilities.kind = kind;
            for layouts in ways() {
                for &dtype in DType::ALL {
                    for &to in DType::ALL {
                        let cast = Elementwise::cast(to);
                        // Casts are listed up to two dimensions.
                        let is_plain = merge(&[&layouts[0]]).dims.len() <= 2;
                        let ops: &[&dyn Op] = if to != dtype && !is_plain {
                            &[]
                        } else if to == dtype && to == DType::Bool {
                            &[&COPY]
                        } else if to == dtype {
                            &[&add, &COPY]
                        } else {
                            &[&cast]
                        };
                        for op in ops {
                            for shared in [false, true] {
                                asked.extend(keys(
                                    *op,
                                    &layouts,
                                    (dtype, to),
                                    shared,
                                    &capabilities,
                                ));
                            }
                        }
                    }
                }
            }
        }
        assert!(asked.len() > 300, "{}", asked.len());
        for key in asked {
            assert!(listed.contains(&key), "{key:?}");
        }
    }

    /// Pairs of layouts of one shape.
    fn ways() -> Vec<[Layout; 2]> {
        let mut ways = Vec::new();
        for shape in [
            &[4000][..],
            &[60, 64],
            &[61, 63],
            &[6, 20, 32],
            &[20, 9, 32],
            &[2, 3, 4, 5, 6, 7],
        ] {
            let plain = Layout::contiguous(shape);
            let backward: Vec<usize> = (0..shape.len()).rev().collect();
            let turned: Shape = shape.iter().rev().copied().collect();
            let turned = Layout::contiguous(turned).permute(&backward).unwrap();
            let row = Layout::contiguous(*shape.last().unwrap());
            let row = row.broadcast_to(&shape.into()).unwrap();
            let moved = plain.at_offset(3);
            ways.extend([
                [plain.clone(), plain.clone()],
                [plain.clone(), turned.clone()],
                [turned.clone(), row.clone()],
                [row.clone(), plain],
                [moved, turned],
            ]);
        }
        ways
    }

    fn keys(
        op: &dyn Op,
        layouts: &[Layout; 2],
        (from, to): (DType, DType),
        shared: bool,
        capabilities: &Capabilities,
    ) -> Vec<KernelKey> {
        let two = op.name() == "add";
        let output = Layout::contiguous(layouts[0].shape().clone());
        fn operand(layout: &Layout, dtype: DType) -> Operand<'_> {
            Operand {
                layout,
                dtype,
                storage_bytes: ((layout.end() * dtype.size()) as u64).next_multiple_of(256),
            }
        }
        let inputs = layouts.iter().take(if two { 2 } else { 1 });
        let problem = Problem {
            inputs: inputs.map(|layout| operand(layout, from)).collect(),
            output: operand(&output, to),
            fresh: true,
            spare: true,
            slots: match (two, shared) {
                (true, false) => smallvec![0, 1],
                (true, true) => smallvec![0, 0],
                _ => smallvec![0],
            },
        };
        let mut launches = op.plan(&problem, capabilities).unwrap();
        // The same tensor is filled, through whatever strides the first one has.
        let each = layouts[0].distinct();
        let view = Problem {
            inputs: smallvec![],
            output: operand(&each, to),
            fresh: false,
            spare: true,
            slots: smallvec![],
        };
        let shape = each.shape().clone();
        let fill = Fill::new("fill", shape, Scalar::Integer(1), to).unwrap();
        launches.extend(fill.plan(&view, capabilities).unwrap());
        launches.into_iter().map(|launch| launch.kernel).collect()
    }
}
