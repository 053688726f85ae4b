//! The names of the kernels that norms ask for.

use super::Norm;
use crate::dtype::DType;
use crate::launch::{KernelKey, Value};
use crate::ops::plan::ROW_LANES;
use crate::ops::reduce::State;

/// Kernels exist for these ranks; lower ones are filled up with sizes of 1, higher ones are exact.
pub(super) const RANKS: [usize; 4] = [1, 2, 3, 6];
pub(super) const ROW_RANKS: [usize; 2] = [1, 6];
/// Steps of the rows that kernels hold in registers: softmax, which then computes each exponential once.
pub(super) const HELD: [usize; 4] = [2, 4, 8, 16];
/// Elements that an invocation of hardware holds: of 128, log_softmax keeps some of its 256 registers in memory.
pub(super) const HARD_HELD: usize = 64;
/// Rows that share loads of weight and bias.
pub(super) const TOGETHER: u32 = 2;

/// What all kernels of an op have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub what: Norm,
    pub element: DType,
    pub weight: bool,
    pub bias: bool,
}

/// What makes a kernel for rows another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub unit: u32,
    pub along_reduced: bool,
    pub kept_rank: u32,
    pub lanes: u32,
    pub workgroup: u32,
    /// Steps that are held in registers, one of [`HELD`]; 0: any.
    pub held: u32,
    /// Rows of an invocation: 1, or [`TOGETHER`] where there is a weight or bias to share.
    pub each: u32,
}

/// What makes a kernel that applies states another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply {
    pub vector: u32,
    pub along_reduced: bool,
    pub rank: u32,
    /// The steps of an invocation share a state.
    pub grouped: bool,
    /// The last of them first: grouped ones on hardware.
    pub backwards: bool,
    pub strided: bool,
}

impl Family {
    pub(super) fn state(&self) -> State {
        State::of(self.what.reduction(), self.element)
    }

    /// Whether sums are f64.
    pub(super) fn is_double(&self) -> bool {
        self.element.accumulator() == DType::F64
    }

    /// Words that tell of a row's length and epsilon, which is in two parts where sums are f64.
    fn row_words(&self) -> u32 {
        3 + u32::from(self.is_double())
    }

    /// Whether there is something that is the same for all rows.
    pub(super) fn is_shared(&self) -> bool {
        self.weight || self.bias
    }

    /// The tensor, weight and bias.
    pub(super) fn inputs(&self) -> u32 {
        1 + u32::from(self.weight) + u32::from(self.bias)
    }

    fn values(&self) -> [(&'static str, Value); 10] {
        let slot_bias = 1 + u32::from(self.weight);
        [
            ("norm", self.what.kernel().into()),
            ("op", self.what.reduction().kernel().into()),
            ("element", self.element.name().into()),
            ("accumulator", self.element.accumulator().name().into()),
            ("target", "state".into()),
            ("weight", u32::from(self.weight).into()),
            ("bias", u32::from(self.bias).into()),
            ("slot_x", 0.into()),
            ("slot_weight", 1.into()),
            ("slot_bias", slot_bias.into()),
        ]
    }

    pub(super) fn rows(&self, rows: Rows) -> KernelKey {
        let along = if rows.along_reduced {
            "reduced"
        } else {
            "kept"
        };
        let more = [
            ("slot_out", self.inputs().into()),
            ("unit", rows.unit.into()),
            ("along", along.into()),
            ("kept_rank", rows.kept_rank.into()),
            ("lanes", rows.lanes.into()),
            ("workgroup", rows.workgroup.into()),
            ("held", rows.held.into()),
            ("each", rows.each.into()),
        ];
        KernelKey {
            template: "normalise/rows",
            values: self.values().into_iter().chain(more).collect(),
            bindings: self.inputs() + 1,
            words: 5 + self.row_words() + (rows.kept_rank - 1) + 2 * (1 + rows.kept_rank),
        }
    }

    pub(super) fn apply(&self, apply: Apply) -> KernelKey {
        let along = if apply.along_reduced {
            "reduced"
        } else {
            "kept"
        };
        let more = [
            ("slot_out", self.inputs().into()),
            ("slot_state", (self.inputs() + 1).into()),
            ("vector", apply.vector.into()),
            ("along", along.into()),
            ("rank", apply.rank.into()),
            ("grouped", u32::from(apply.grouped).into()),
            ("backwards", u32::from(apply.backwards).into()),
            ("strided_out", u32::from(apply.strided).into()),
        ];
        let walked = self.inputs() + 1 + u32::from(apply.strided);
        KernelKey {
            template: "normalise/apply",
            values: self.values().into_iter().chain(more).collect(),
            bindings: self.inputs() + 2,
            words: 1
                + self.row_words()
                + 2 * u32::from(apply.grouped)
                + u32::from(apply.grouped && !apply.along_reduced)
                + walked
                + (apply.rank - 1)
                + walked * apply.rank,
        }
    }
}

/// Every kernel of the family.
pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    let mut all = Vec::new();
    for what in Norm::ALL {
        let dtypes = DType::ALL
            .iter()
            .copied()
            .filter(|&dtype| dtype.is_float() && what.reduction().in_kernels(dtype));
        for element in dtypes {
            for (weight, bias) in [(false, false), (true, false), (false, true), (true, true)] {
                let exists = match what {
                    Norm::Softmax | Norm::LogSoftmax => !weight && !bias,
                    Norm::Rms => !bias,
                    Norm::Layer => true,
                };
                if exists {
                    let family = Family {
                        what,
                        element,
                        weight,
                        bias,
                    };
                    all.extend(ways(family));
                }
            }
        }
    }
    all
}

fn ways(family: Family) -> Vec<KernelKey> {
    let mut all = Vec::new();
    let units = [(1, true), (4, true), (4, false), (8, true), (8, false)];
    for (unit, along_reduced) in units {
        if unit == 8 && family.element == DType::F64 {
            continue;
        }
        let shapes = RANKS.map(|rank| [(rank, false), (rank, true)]);
        let exists = |&(rank, grouped): &(usize, bool)| match grouped {
            false => unit < 8,
            true => unit > 1 && (along_reduced || rank > 1),
        };
        for (rank, grouped) in shapes.into_iter().flatten().filter(exists) {
            for strided in [false, true] {
                let backwards: &[bool] = if grouped { &[false, true] } else { &[false] };
                all.extend(backwards.iter().map(|&backwards| {
                    family.apply(Apply {
                        vector: unit,
                        along_reduced,
                        rank: rank as u32,
                        grouped,
                        backwards,
                        strided,
                    })
                }));
            }
        }
        for kept_rank in ROW_RANKS {
            let shared = ROW_LANES.map(|lanes| (lanes as u32, 256));
            for (lanes, workgroup) in [(1, 8), (1, 64)].into_iter().chain(shared) {
                // Hardware takes four neighbours at most.
                if lanes > 1 && (unit == 8 || !along_reduced) {
                    continue;
                }
                // Hardware takes no eights, and no workgroups of 8; software adapters take one lane.
                let may_be = [unit != 8 && workgroup != 8, lanes == 1];
                let fits = |&held: &usize| {
                    let small = held * unit as usize <= HARD_HELD;
                    let holds = |is_software| family.what.is_held(family.element, is_software);
                    may_be[0] && small && holds(false) || may_be[1] && holds(true)
                };
                let together = (lanes == 1 && family.is_shared()).then_some((0, TOGETHER));
                let held = HELD.into_iter().filter(fits).map(|held| (held as u32, 1));
                all.extend(held.chain([(0, 1)]).chain(together).map(|(held, each)| {
                    family.rows(Rows {
                        unit,
                        along_reduced,
                        kept_rank: kept_rank as u32,
                        lanes,
                        workgroup,
                        held,
                        each,
                    })
                }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use smallvec::smallvec;

    use super::*;
    use crate::capabilities::{Capabilities, DeviceKind};
    use crate::layout::Layout;
    use crate::ops::normalise::Normalise;
    use crate::ops::reduce::{self, Axes};
    use crate::road::{Op, Operand, Problem};

    /// What plans ask for, on adapters of each kind, is listed; windows fit bindings.
    #[test]
    fn plans_ask_for_what_is_listed() {
        let listed = specialisations()
            .into_iter()
            .chain(reduce::specialisations());
        let listed: HashSet<KernelKey> = listed.collect();
        let mut capabilities = Capabilities::cpu();
        capabilities.max_workgroups = 65_535;
        let mut asked = HashSet::new();
        for (kind, int64, binding) in [
            (DeviceKind::Software, true, 1 << 27),
            (DeviceKind::Software, false, 1 << 27),
            (DeviceKind::Software, true, 4096),
            (DeviceKind::DiscreteGpu, true, 1 << 31),
        ] {
            capabilities.kind = kind;
            capabilities.int64 = int64;
            capabilities.max_binding_bytes = binding;
            for shape in [
                &[64, 4096][..],
                &[4096, 61],
                &[3, 20_000],
                &[6, 20, 32],
                &[2, 3, 4, 5, 8],
            ] {
                let plain = Layout::contiguous(shape);
                let backward: Vec<usize> = (0..shape.len()).rev().collect();
                let turned = plain.permute(&backward).unwrap();
                for layout in [&plain, &turned, &plain.at_offset(3)] {
                    for bits in 0..1usize << shape.len() {
                        let axes: Vec<usize> = (0..shape.len())
                            .filter(|axis| bits >> axis & 1 == 1)
                            .collect();
                        let dtypes = [DType::F32, DType::BF16];
                        let cases = Norm::ALL.iter().flat_map(|w| dtypes.map(|d| (*w, d)));
                        for (what, dtype) in cases {
                            for launch in planned(what, dtype, layout, &axes, &capabilities) {
                                let windows = launch.operands.iter().filter_map(|b| b.window);
                                windows.for_each(|window| assert!(window.bytes <= binding));
                                asked.insert(launch.kernel);
                            }
                        }
                    }
                }
            }
        }
        assert!(asked.len() > 80, "{}", asked.len());
        for key in asked {
            assert!(listed.contains(&key), "{key:?}");
        }
    }

    fn planned(
        what: Norm,
        dtype: DType,
        layout: &Layout,
        axes: &[usize],
        capabilities: &Capabilities,
    ) -> crate::launch::Launches {
        let along = Axes::from(axes).of("norm", layout.shape()).unwrap();
        let among: Vec<usize> = (0..layout.rank())
            .map(|axis| {
                if along.axes.contains(&axis) {
                    layout.shape()[axis]
                } else {
                    1
                }
            })
            .collect();
        let row = Layout::contiguous(among)
            .broadcast_to(layout.shape())
            .unwrap();
        let is_layer = what == Norm::Layer;
        let op = Normalise {
            what,
            along,
            epsilon: 1e-5,
            weight: is_layer,
            bias: is_layer,
        };
        fn operand(layout: &Layout, dtype: DType) -> Operand<'_> {
            Operand {
                layout,
                dtype,
                storage_bytes: ((layout.end() * dtype.size()) as u64).next_multiple_of(256),
            }
        }
        let output = Layout::contiguous(layout.shape().clone());
        let mut problem = Problem {
            inputs: smallvec![operand(layout, dtype)],
            output: operand(&output, dtype),
            fresh: true,
            spare: true,
            slots: smallvec![0],
        };
        if is_layer {
            problem
                .inputs
                .extend([operand(&row, dtype), operand(&row, dtype)]);
            problem.slots.extend([1, 2]);
        }
        op.plan(&problem, capabilities).unwrap()
    }
}
