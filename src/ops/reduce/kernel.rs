//! The names of the kernels that reductions ask for.

use super::Reduction;
use super::plan::{HELD, KEPT_RANKS, REDUCED_RANKS, is_held_by_lanes, least_held};
use super::shares::{COLUMN_LANES, SOFT_LANES, Source, TREE_BYTES, tree_bytes};
use crate::dtype::DType;
use crate::launch::{KernelKey, Value};
use crate::ops::plan::ROW_LANES;

/// What a kernel keeps of elements, for each output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) struct State {
    /// The type of the first field.
    pub accumulator: DType,
    pub fields: usize,
}

impl State {
    pub(in crate::ops) fn of(what: Reduction, element: DType) -> Self {
        let sums = match element {
            DType::Bool => DType::U32,
            other => other.accumulator(),
        };
        let (accumulator, fields) = match what.kernel() {
            "truth" => (DType::U32, 1),
            // Floats in the order of integers.
            "extreme" if sums == DType::F32 => (DType::I32, 1),
            "place" if sums == DType::F32 => (DType::I32, 2),
            "place" | "exponential" | "square" => (sums, 2),
            "moment" => (sums, 4),
            _ => (sums, 1),
        };
        Self {
            accumulator,
            fields,
        }
    }

    pub(in crate::ops) fn bytes(self) -> usize {
        self.fields * self.accumulator.size()
    }
}

/// What a kernel reads elements as: their bits, where no more than those counts.
fn storage(what: Reduction, element: DType) -> &'static str {
    match (what.kernel(), element) {
        (_, DType::Bool) => "bits8",
        ("truth", DType::F16 | DType::BF16) => "bits16",
        ("truth", DType::F32 | DType::I32) => DType::U32.name(),
        _ => element.name(),
    }
}

/// How the lanes of a chunk come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// Each writes a state of its own.
    None,
    /// In workgroup memory; neighbouring invocations are lanes of one output.
    Rows,
    /// In workgroup memory; neighbouring invocations have neighbouring outputs.
    Columns,
}

impl Tree {
    fn name(self) -> &'static str {
        match self {
            Tree::None => "none",
            Tree::Rows => "rows",
            Tree::Columns => "columns",
        }
    }
}

/// Everything that makes a kernel another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub what: Reduction,
    /// Of the op's input.
    pub element: DType,
    pub state: State,
    /// `None`: states are written.
    pub result: Option<DType>,
    pub source: Source,
    pub unit: u32,
    pub along_reduced: bool,
    pub kept_rank: u32,
    pub reduced_rank: u32,
    /// Steps of an output, at most, one of [`HELD`]; 0: any.
    pub held: u32,
    pub lanes: u32,
    pub tree: Tree,
    pub placed: bool,
}

impl Name {
    /// Whether it has to know which element of an output it reads.
    pub(super) fn has_positions(&self) -> bool {
        self.what.kernel() == "place" && self.source == Source::Values
    }

    pub(super) fn key(&self, words: usize) -> KernelKey {
        let accumulator = self.state.accumulator;
        let (source, element) = match self.source {
            Source::Values => ("values", storage(self.what, self.element)),
            Source::States => ("states", accumulator.name()),
        };
        let target = if self.result.is_some() {
            "result"
        } else {
            "state"
        };
        KernelKey {
            template: "reduce",
            values: [
                ("op", Value::from(self.what.kernel())),
                ("element", element.into()),
                ("accumulator", accumulator.name().into()),
                ("result", self.result.unwrap_or(accumulator).name().into()),
                ("source", source.into()),
                ("target", target.into()),
                ("unit", self.unit.into()),
                (
                    "along",
                    if self.along_reduced {
                        "reduced"
                    } else {
                        "kept"
                    }
                    .into(),
                ),
                ("kept_rank", self.kept_rank.into()),
                ("reduced_rank", self.reduced_rank.into()),
                ("held", self.held.into()),
                ("lanes", self.lanes.into()),
                ("tree", self.tree.name().into()),
                ("placed", u32::from(self.placed).into()),
            ]
            .into_iter()
            .collect(),
            bindings: 2,
            words: words as u32,
        }
    }

    /// How many words its `Params` have.
    fn words(&self) -> usize {
        let (kept, reduced) = (self.kept_rank as usize, self.reduced_rank as usize);
        let positions = if self.has_positions() { 1 + reduced } else { 0 };
        let placed = if self.placed { 1 + kept } else { 0 };
        8 + placed
            + positions
            + self.what.words(self.element, 1).len()
            + (2 * kept - 1)
            + (2 * reduced - 1)
    }
}

/// Every kernel of the family.
pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    let mut names = Vec::new();
    for what in Reduction::KERNELS {
        for element in DType::ALL
            .iter()
            .copied()
            .filter(|&dtype| what.in_kernels(dtype))
        {
            let result = what.result(element);
            for source in [Source::Values, Source::States] {
                for result in [None, Some(result)] {
                    let name = Name {
                        what,
                        element,
                        state: State::of(what, element),
                        result,
                        source,
                        unit: 1,
                        along_reduced: true,
                        kept_rank: 1,
                        reduced_rank: 1,
                        held: 0,
                        lanes: 1,
                        tree: Tree::None,
                        placed: false,
                    };
                    names.extend(shared(name));
                }
            }
        }
    }
    // The kernels of states of f16 are those of f32.
    let mut seen = std::collections::HashSet::new();
    let keys = names.iter().map(|name| name.key(name.words()));
    keys.filter(|key| seen.insert(key.clone())).collect()
}

/// The same in all units, ranks and ways to share work.
fn shared(name: Name) -> impl Iterator<Item = Name> {
    let is_values = name.source == Source::Values;
    let writes_states = name.result.is_none();
    let units = [(1, true), (4, true), (4, false), (8, true), (8, false)];
    let units = units.into_iter().filter(move |&(unit, _)| match unit {
        8 => is_values && (name.element == DType::F32 || name.element.size() == 2),
        4 => is_values || name.state.fields == 1,
        _ => true,
    });
    let by_tree = |lanes: &'static [usize], tree: Tree| {
        let lanes = lanes.iter().map(|&lanes| lanes as u32);
        lanes.map(move |lanes| (lanes, tree))
    };
    let lanes: Vec<(u32, Tree)> = [(1, Tree::None), (SOFT_LANES as u32, Tree::None)]
        .into_iter()
        .chain(by_tree(&ROW_LANES, Tree::Rows))
        .chain(by_tree(&COLUMN_LANES, Tree::Columns))
        .collect();
    let ranks = [KEPT_RANKS[0], KEPT_RANKS[1]]
        .into_iter()
        .flat_map(|kept| REDUCED_RANKS.map(|reduced| (kept as u32, reduced as u32)));
    let ranks: Vec<(u32, u32)> = ranks.collect();
    units
        .flat_map(move |unit| lanes.clone().into_iter().map(move |lanes| (unit, lanes)))
        .flat_map(move |shape| [false, true].map(|placed| (shape, placed)))
        .flat_map(move |shape| ranks.clone().into_iter().map(move |ranks| (shape, ranks)))
        .map(
            move |((((unit, along_reduced), (lanes, tree)), placed), (kept, reduced))| Name {
                unit,
                along_reduced,
                kept_rank: kept,
                reduced_rank: reduced,
                lanes,
                tree,
                placed,
                ..name
            },
        )
        .filter(move |name| {
            // Hardware takes eight neighbours where they are halves, with states of one field.
            let is_soft = name.unit == 8 && (name.element.size() == 4 || name.state.fields > 1);
            let fits = match name.tree {
                Tree::None => true,
                Tree::Rows => !is_soft && name.along_reduced,
                Tree::Columns => {
                    !is_soft
                        && (name.unit == 1 || !name.along_reduced)
                        && tree_bytes(name.state, name.unit as usize) <= TREE_BYTES
                }
            };
            fits
                // Lanes without a tree write states of their own.
                && (name.tree != Tree::None || name.lanes == 1 || is_values && writes_states && !name.placed)
                && !(name.placed && (!writes_states || !name.along_reduced))
                && (is_values || name.reduced_rank == 1 && (name.placed || name.kept_rank == 1))
        })
        .flat_map(move |name| {
            let by_lanes = name.tree == Tree::Rows && is_held_by_lanes(name.what, name.state);
            let may_hold = is_values && (name.lanes == 1 || by_lanes) && !name.placed;
            let least = if name.lanes == 1 { least_held(name.what) } else { 2 };
            let held = HELD.iter().filter(move |&&held| may_hold && held >= least);
            let held = held.map(|&held| held as u32);
            std::iter::once(0)
                .chain(held)
                .map(move |held| Name { held, ..name })
        })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use smallvec::smallvec;

    use super::*;
    use crate::capabilities::{Capabilities, DeviceKind};
    use crate::launch::Launches;
    use crate::layout::Layout;
    use crate::ops::reduce::{Axes, Reduce};
    use crate::road::{Op, Operand, Problem};
    use crate::shape::Shape;

    /// What plans ask for, on adapters of each kind, is listed; windows fit bindings.
    #[test]
    fn plans_ask_for_what_is_listed() {
        let listed: HashSet<KernelKey> = specialisations().into_iter().collect();
        let mut capabilities = Capabilities::cpu();
        capabilities.max_workgroups = 65_535;
        capabilities.workgroup_memory_bytes = 48 << 10;
        let mut asked = HashSet::new();
        for (kind, int64, binding) in [
            (DeviceKind::Software, true, 1 << 27),
            (DeviceKind::Software, false, 1 << 27),
            (DeviceKind::Software, true, 4096),
            (DeviceKind::DiscreteGpu, true, 1 << 31),
            (DeviceKind::DiscreteGpu, true, 4096),
        ] {
            capabilities.kind = kind;
            capabilities.int64 = int64;
            capabilities.max_binding_bytes = binding;
            for layout in layouts() {
                for axes in (0..1 << layout.rank()).map(|bits| chosen(layout.rank(), bits)) {
                    let cases = Reduction::KERNELS
                        .into_iter()
                        .flat_map(|what| DType::ALL.iter().map(move |&dtype| (what, dtype)));
                    for (what, dtype) in cases.filter(|(what, dtype)| what.in_kernels(*dtype)) {
                        for launch in planned(what, &layout, &axes, dtype, &capabilities) {
                            for bound in &launch.operands {
                                let bytes = bound.window.map_or(0, |window| window.bytes);
                                assert!(bytes <= binding, "{launch:?}");
                            }
                            asked.insert(launch.kernel);
                        }
                    }
                }
            }
        }
        assert!(asked.len() > 200, "{}", asked.len());
        for key in asked {
            assert!(listed.contains(&key), "{key:?}");
        }
    }

    fn discrete() -> Capabilities {
        Capabilities {
            kind: DeviceKind::DiscreteGpu,
            max_workgroups: 65_535,
            workgroup_memory_bytes: 48 << 10,
            max_binding_bytes: 1 << 31,
            ..Capabilities::cpu()
        }
    }

    /// A large matrix fills hardware's multiprocessors by its rows, its columns and as a whole.
    #[test]
    fn hardware_is_filled() {
        let capabilities = discrete();
        let square = Layout::contiguous([4096, 4096]);
        let wide = Layout::contiguous([1 << 16, 1024]);
        let odd = Layout::contiguous([8192, 1025]);
        let short = Layout::contiguous([1 << 18, 64]);
        // Launches, workgroups of the first and of the last.
        let cases = [
            (Reduction::Sum, &square, &[0][..], (1, 512, 512)),
            (Reduction::LogSumExp, &square, &[0], (1, 512, 512)),
            (Reduction::Sum, &wide, &[0], (2, 1024, 8)),
            // Neighbours of 32 bytes and more are read at once.
            (Reduction::Sum, &odd, &[0], (2, 1025, 33)),
            (Reduction::Sum, &square, &[1], (1, 4096, 4096)),
            (Reduction::LogSumExp, &square, &[1], (1, 1024, 1024)),
            (Reduction::Sum, &square, &[0, 1], (2, 1024, 1)),
            (Reduction::Sum, &short, &[1], (1, 4096, 4096)),
        ];
        for (what, layout, axes, want) in cases {
            let launches = planned(what, layout, axes, DType::F32, &capabilities);
            let workgroups = |launch: &crate::launch::Launch| -> u32 {
                launch.dispatches[0].groups.iter().product()
            };
            let found = (
                launches.len(),
                workgroups(&launches[0]),
                workgroups(&launches[launches.len() - 1]),
            );
            assert_eq!(found, want, "{what:?} along {axes:?}");
        }
    }

    /// Kernels count in 32 bits, past the last step too; and no invocation takes more steps than there is room for states of.
    #[test]
    fn broadcasts_are_counted_in_32_bits() {
        let capabilities = discrete();
        let most = u32::MAX as usize;
        let few = Capabilities {
            kind: DeviceKind::Software,
            max_binding_bytes: 4096,
            ..capabilities.clone()
        };
        for (capabilities, from, to, axes) in [
            (&capabilities, &[1][..], &[most][..], &[0][..]),
            (&capabilities, &[1], &[most + 1], &[0]),
            (&capabilities, &[65_537], &[65_535, 65_537], &[0, 1]),
            (&few, &[257, 2, 1], &[257, 2, 194_000], &[1, 2]),
        ] {
            let layout = Layout::contiguous(from)
                .broadcast_to(&Shape::from(to))
                .unwrap();
            for what in [Reduction::Sum, Reduction::Max, Reduction::LogSumExp] {
                for launch in planned(what, &layout, axes, DType::F32, capabilities) {
                    let [groups, chunks, per_chunk, steps, ..] = launch.dispatches[0].words[..]
                    else {
                        panic!("{what:?}");
                    };
                    let end = u64::from(chunks) * u64::from(per_chunk) + (64 << 8);
                    assert!(u32::try_from(end).is_ok(), "{what:?} of {to:?}: {end}");
                    // Of what is read whole by each: 4096 of up to 256 lanes.
                    assert!(
                        per_chunk <= 4096 << 8,
                        "{what:?} of {to:?}: {steps} in {chunks}"
                    );
                    assert!(capabilities.kind != DeviceKind::Software || per_chunk <= 8 * 4096);
                    assert!(groups > 0);
                }
            }
        }
    }

    fn chosen(rank: usize, bits: usize) -> Vec<usize> {
        (0..rank).filter(|axis| bits >> axis & 1 == 1).collect()
    }

    fn layouts() -> Vec<Layout> {
        let shapes = [
            &[100_000][..],
            &[60, 4096],
            &[4096, 61],
            &[6, 20, 32],
            &[2, 3, 4, 5, 6, 8],
        ];
        let mut layouts = Vec::new();
        for shape in shapes {
            let plain = Layout::contiguous(shape);
            let backward: Vec<usize> = (0..shape.len()).rev().collect();
            layouts.push(plain.permute(&backward).unwrap());
            layouts.push(plain.at_offset(3));
            layouts.push(plain);
        }
        layouts
    }

    fn planned(
        what: Reduction,
        layout: &Layout,
        axes: &[usize],
        dtype: DType,
        capabilities: &Capabilities,
    ) -> Launches {
        let op = Reduce {
            what,
            along: Axes::from(axes).of("sum", layout.shape()).unwrap(),
        };
        fn operand(layout: &Layout, dtype: DType) -> Operand<'_> {
            Operand {
                layout,
                dtype,
                storage_bytes: ((layout.end() * dtype.size()) as u64).next_multiple_of(256),
            }
        }
        let inputs = [operand(layout, dtype)];
        let (shape, dtype) = op.infer(&inputs).unwrap();
        let output = Layout::contiguous(shape);
        let problem = Problem {
            inputs: inputs.into_iter().collect(),
            output: operand(&output, dtype),
            fresh: true,
            spare: true,
            slots: smallvec![0],
        };
        op.plan(&problem, capabilities).unwrap()
    }
}
