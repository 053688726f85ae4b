//! Which specialisation of its kernel a plan takes.

use smallvec::{SmallVec, smallvec};

use super::pack;
use super::panel::OPERANDS;
use super::product::C;
use super::rule::{Activation, Finish};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::launch::{KernelKey, Value};
use crate::matmul_kernel::{
    FEW_SUMS, FLAT_THREADS, FLAT_UNROLL, KernelKind, MatmulKernel, QUAD_UNROLL, SUBGROUP_UNROLL,
    WIDE,
};

/// What a kernel is specialised by, beside the plan and the dtype.
#[derive(Clone, Copy)]
pub(super) struct Form {
    /// What kernels call the elements of A, B and what is added, and those of C.
    pub element: &'static str,
    pub result: &'static str,
    pub batch_rank: u32,
    pub a_along_k: bool,
    pub b_along_k: bool,
    /// Elements of a load or store.
    pub vector_a: u32,
    pub vector_b: u32,
    pub vector_c: u32,
    /// One of several parts of k.
    pub accumulates: bool,
    /// k is a whole number of the kernel's steps, for kernels that ask.
    pub whole: bool,
    /// The binding of each operand, in the order of a nest; C's is the one after the inputs'.
    pub slots: [u32; OPERANDS],
    pub finish: Finish,
}

/// The binding of an operand that its kernel does not bind: it reads texels.
pub(super) const UNBOUND: u32 = u32::MAX;

/// f16 of adapters whose kernels have no such type.
const PACKED_F16: &str = "packed_f16";

/// What kernels call elements of a dtype.
pub(super) fn element_name(dtype: DType, capabilities: &Capabilities) -> &'static str {
    match dtype {
        DType::F16 if !capabilities.f16 => PACKED_F16,
        _ => dtype.name(),
    }
}

/// Elements lie two to a word, for want of a type: kernels store them by fours alone.
pub(super) fn packs(element: &str) -> bool {
    [PACKED_F16, DType::BF16.name()].contains(&element)
}

/// The widest loads of A and B that a kernel has of these elements, along k or not.
pub(super) fn kernel_loads(kernel: &MatmulKernel, element: &str, along_k: [bool; 2]) -> [u32; 2] {
    let load = |along_k, thread: u32, unroll| match along_k {
        true => unroll == 4,
        false => thread.is_multiple_of(4),
    };
    let vectors = match kernel.kind {
        // Along k by blocks of four by four where all invocations have one; else by single elements, so that all load.
        // Tiles of few rows or columns are slower with blocks (H200).
        KernelKind::Workgroup {
            tile_k,
            thread_m,
            thread_n,
        } => {
            let threads = kernel.tile_m / thread_m * (kernel.tile_n / thread_n);
            let has_blocks = |tile: u32| thread_m * thread_n == 64 && tile * tile_k >= 16 * threads;
            let loads = |along_k: bool, tile| !along_k || has_blocks(tile);
            [
                loads(along_k[0], kernel.tile_m),
                loads(along_k[1], kernel.tile_n),
            ]
        }
        KernelKind::Cooperative { by_eights, .. } if by_eights && element == DType::F16.name() => {
            return [WIDE; 2];
        }
        KernelKind::Cooperative { .. } => [true; 2],
        KernelKind::Register {
            thread_m,
            thread_n,
            unroll,
        } => [
            load(along_k[0], thread_m, unroll),
            load(along_k[1], thread_n, unroll),
        ],
        KernelKind::Flat => [
            load(along_k[0], kernel.tile_m, FLAT_UNROLL),
            load(along_k[1], kernel.tile_n, FLAT_UNROLL),
        ],
        KernelKind::Subgroup { .. } => [true, along_k[1] || stores_vectors(kernel)],
        KernelKind::Quad => along_k,
        KernelKind::Wide => return [WIDE; 2],
        // It binds none of them.
        KernelKind::Texel => return [0; 2],
        KernelKind::WideVector { along_k } => return [WIDE, if along_k { WIDE } else { 1 }],
        KernelKind::Vector { row_threads, .. } => {
            let thread_m = kernel.tile_m / row_threads;
            [along_k[0] || thread_m.is_multiple_of(4), along_k[1]]
        }
        // All their edges are whole fours.
        KernelKind::Few { .. } => [true; 2],
    };
    vectors.map(|vectors| if vectors { 4 } else { 1 })
}

/// Whether a kernel can store four columns as one vector.
pub(super) fn stores_vectors(kernel: &MatmulKernel) -> bool {
    match kernel.kind {
        KernelKind::Workgroup { .. } | KernelKind::Cooperative { .. } => true,
        KernelKind::Wide | KernelKind::Texel => true,
        KernelKind::Register { thread_n, .. } => thread_n.is_multiple_of(4),
        KernelKind::Flat => kernel.tile_n.is_multiple_of(4),
        KernelKind::Subgroup { lanes } => (kernel.tile_n / lanes).is_multiple_of(4),
        KernelKind::Quad | KernelKind::Few { .. } => false,
        KernelKind::Vector { .. } | KernelKind::WideVector { .. } => false,
    }
}

/// The specialisation of a plan's kernel.
pub(super) fn key(kernel: &MatmulKernel, dtype: DType, form: Form) -> KernelKey {
    let [slot_a, slot_b, slot_c, ..] = form.slots;
    let finish = form.finish;
    // A buffer is declared as its first operand loads it.
    let declared = |slot| match slot {
        _ if slot == slot_a => form.vector_a,
        _ if slot == slot_b => form.vector_b,
        _ => 1,
    };
    // A vector runs along k alone: the kernel does not ask.
    let b_along_k = form.b_along_k || kernel.is_of_vectors();
    let mut values: SmallVec<[(&'static str, Value); 16]> = smallvec![
        ("element", form.element.into()),
        ("result", form.result.into()),
        ("accumulator", dtype.accumulator().name().into()),
        ("slot_a", slot_a.into()),
        ("slot_b", slot_b.into()),
        ("slot_c", slot_c.into()),
        ("batch_rank", form.batch_rank.into()),
        ("fast_a", if form.a_along_k { "k" } else { "m" }.into()),
        ("fast_b", if b_along_k { "k" } else { "n" }.into()),
        ("vector_a", form.vector_a.into()),
        ("vector_b", form.vector_b.into()),
        ("vector_c", form.vector_c.into()),
        ("can_accumulate", u32::from(form.accumulates).into()),
        ("tile_m", kernel.tile_m.into()),
        ("tile_n", kernel.tile_n.into()),
        ("finishes", u32::from(finish != Finish::NONE).into()),
    ];
    if finish != Finish::NONE {
        values.extend(epilogue(finish, form.slots, declared));
    }
    let sums_apart = form.accumulates && dtype.accumulator().name() != form.result;
    if sums_apart {
        values.push(("slot_sums", (slot_c + 1).into()));
    }
    // What tiles are in workgroup memory.
    match kernel.kind {
        KernelKind::Workgroup { .. } => values.push(("staged", dtype.accumulator().name().into())),
        KernelKind::Cooperative { .. } => values.extend([
            ("staged", form.element.into()),
            ("whole", u32::from(form.whole).into()),
        ]),
        _ => {}
    }
    if let KernelKind::Few { .. } = kernel.kind {
        let by_rows = kernel.tile_m < kernel.tile_n;
        values.push(("few", if by_rows { "m" } else { "n" }.into()));
    }
    let (template, own): (_, &[(&'static str, u32)]) = match kernel.kind {
        KernelKind::Workgroup {
            tile_k,
            thread_m,
            thread_n,
        } => (
            "matmul/workgroup_tile",
            &[
                ("tile_k", tile_k),
                ("thread_m", thread_m),
                ("thread_n", thread_n),
                (
                    "threads",
                    kernel.tile_m / thread_m * (kernel.tile_n / thread_n),
                ),
            ],
        ),
        KernelKind::Cooperative {
            tile_k,
            edge,
            lanes,
            subgroups: [down, across],
            ahead,
            ..
        } => (
            "matmul/cooperative_tile",
            &[
                ("ahead", ahead),
                ("tile_k", tile_k),
                ("edge", edge),
                ("lanes", lanes),
                ("subgroups_m", down),
                ("subgroups_n", across),
                ("threads", lanes * down * across),
            ],
        ),
        KernelKind::Register {
            thread_m,
            thread_n,
            unroll,
        } => (
            "matmul/register_tile",
            &[
                ("thread_m", thread_m),
                ("thread_n", thread_n),
                ("unroll", unroll),
                (
                    "threads",
                    kernel.tile_m / thread_m * (kernel.tile_n / thread_n),
                ),
                ("flat", 0),
            ],
        ),
        KernelKind::Flat => (
            "matmul/register_tile",
            &[
                ("thread_m", kernel.tile_m),
                ("thread_n", kernel.tile_n),
                ("unroll", FLAT_UNROLL),
                ("threads", FLAT_THREADS),
                ("flat", 1),
            ],
        ),
        KernelKind::Subgroup { lanes } => (
            "matmul/subgroup_tile",
            &[("lanes", lanes), ("unroll", SUBGROUP_UNROLL)],
        ),
        KernelKind::Quad => ("matmul/quad_tile", &[("unroll", QUAD_UNROLL)]),
        KernelKind::Wide => ("matmul/wide_tile", &[]),
        KernelKind::WideVector { .. } => ("matmul/wide_vector", &[]),
        KernelKind::Texel => ("matmul/texel_tile", &[("texels", 1)]),
        KernelKind::Few {
            row_threads,
            k_threads,
        } => (
            "matmul/few_tile",
            &[
                ("row_threads", row_threads),
                ("k_threads", k_threads),
                ("thread_rows", kernel.long_and_few()[0] / row_threads),
                ("few_sums", FEW_SUMS),
            ],
        ),
        KernelKind::Vector {
            row_threads,
            k_threads,
        } => (
            "matmul/vector_tile",
            &[("row_threads", row_threads), ("k_threads", k_threads)],
        ),
    };
    values.extend(own.iter().map(|&(name, value)| (name, value.into())));
    KernelKey {
        template,
        values,
        bindings: slot_c + 1 + u32::from(sums_apart),
        words: 15 + 4 * form.batch_rank + epilogue_words(finish, form.batch_rank),
    }
}

/// What an epilogue adds to a kernel; `declared` is the width of a binding's loads.
fn epilogue(
    finish: Finish,
    slots: [u32; OPERANDS],
    declared: impl Fn(u32) -> u32,
) -> [(&'static str, Value); 7] {
    let [.., slot_bias, slot_residual] = slots;
    [
        ("activation", finish.activation.name().into()),
        ("bias", u32::from(finish.bias).into()),
        ("slot_bias", slot_bias.into()),
        ("vector_bias", declared(slot_bias).into()),
        ("residual", u32::from(finish.residual).into()),
        ("slot_residual", slot_residual.into()),
        ("vector_residual", declared(slot_residual).into()),
    ]
}

fn epilogue_words(finish: Finish, batch_rank: u32) -> u32 {
    let added = u32::from(finish.bias) + u32::from(finish.residual);
    u32::from(finish != Finish::NONE) + added * (3 + batch_rank)
}

/// The kernel that adds up sums in scratch: binding 0, then what is added, then C.
pub(super) fn reduce_key(
    element: &'static str,
    result: &'static str,
    batch_rank: u32,
    slots: [u32; OPERANDS],
    finish: Finish,
) -> KernelKey {
    let mut values: SmallVec<[(&'static str, Value); 16]> = smallvec![
        ("element", element.into()),
        ("result", result.into()),
        ("accumulator", DType::F32.name().into()),
        ("slot_c", slots[C].into()),
        ("batch_rank", batch_rank.into()),
        ("finishes", u32::from(finish != Finish::NONE).into()),
    ];
    if finish != Finish::NONE {
        values.extend(epilogue(finish, slots, |_| 1));
    }
    KernelKey {
        template: "matmul/reduce",
        values,
        bindings: slots[C] + 1,
        words: 6 + batch_rank + epilogue_words(finish, batch_rank),
    }
}

/// Every specialisation with up to two batch dimensions after merging.
pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    let mut all: Vec<KernelKey> = pack::specialisations().collect();
    all.extend(reduces());
    for &kernel in MatmulKernel::all() {
        for dtype in DType::ALL
            .iter()
            .copied()
            .filter(|&dtype| kernel.takes(dtype))
        {
            for (nth, &(element, result)) in names(dtype).iter().enumerate() {
                // Of forms that differ from others in loads, stores or types alone, a few of each.
                let all_forms = match kernel.kind {
                    KernelKind::Cooperative { .. } => false,
                    _ if dtype == DType::F32 => true,
                    KernelKind::Workgroup { .. } => false,
                    _ => dtype.name() == result && !packs(result),
                };
                let bits = (0..1u32 << 7)
                    .filter(|bits| all_forms || (bits / 3 + nth as u32).is_multiple_of(4));
                all.extend(bits.flat_map(|bits| of_bits(&kernel, dtype, (element, result), bits)));
            }
        }
    }
    all
}

/// What kernels may call elements of A and B, and those of C.
fn names(dtype: DType) -> &'static [(&'static str, &'static str)] {
    const PACKED: &str = PACKED_F16;
    match dtype {
        DType::F32 => &[("f32", "f32")],
        DType::F16 => &[
            ("f16", "f16"),
            ("f16", "f32"),
            (PACKED, PACKED),
            (PACKED, "f32"),
        ],
        DType::BF16 => &[("bf16", "bf16"), ("bf16", "f32")],
        DType::F64 => &[("f64", "f64")],
        DType::I32 => &[("i32", "i32")],
        DType::U32 => &[("u32", "u32")],
        DType::Bool => &[],
    }
}

/// A specialisation by number, and the same with an epilogue, of those that there are.
fn of_bits(
    kernel: &MatmulKernel,
    dtype: DType,
    (element, result): (&'static str, &'static str),
    bits: u32,
) -> SmallVec<[KernelKey; 2]> {
    let mut all = SmallVec::new();
    let bit = |at: u32| bits >> at & 1 == 1;
    let along_k = [bit(0), bit(1)];
    let mut widest = kernel_loads(kernel, element, along_k);
    if let KernelKind::Cooperative { .. } = kernel.kind {
        // Of what has no eights it takes fours.
        for (widest, nth) in widest.iter_mut().zip([3, 5]) {
            *widest = if bits.is_multiple_of(nth) { 4 } else { *widest };
        }
    }
    let width = |on: bool, widest| if on { widest } else { 1 };
    // Where there are no vectors, they are not asked for twice.
    let texels = matches!(kernel.kind, KernelKind::Texel);
    if (bit(2) && widest[0] <= 1) || (bit(3) && widest[1] <= 1) || (texels && bit(6)) {
        return all;
    }
    let form = Form {
        element,
        result,
        batch_rank: bits % 3,
        a_along_k: along_k[0],
        b_along_k: along_k[1],
        vector_a: width(bit(2), widest[0]),
        vector_b: width(bit(3), widest[1]),
        vector_c: width(bit(4), 4),
        accumulates: bit(5),
        whole: bits.count_ones().is_multiple_of(2),
        slots: match (bit(6), bit(1) && kernel.is_of_vectors()) {
            (true, _) => [0, 0, 1, 0, 0],
            (false, false) => [0, 1, 2, 0, 0],
            // A row times a matrix, turned round.
            (false, true) => [1, 0, 2, 0, 0],
        },
        finish: Finish::NONE,
    };
    let form = if texels { unbound(form) } else { form };
    if is_asked_for(kernel, form) {
        all.push(key(kernel, dtype, form));
        // Sums for another kernel are not finished.
        if dtype.accumulator() == DType::F32 && element == result && !bit(6) {
            all.push(key(kernel, dtype, finished(form, bits)));
        }
    }
    all
}

/// The kernel that adds up sums, for each dtype, with and without epilogues.
fn reduces() -> impl Iterator<Item = KernelKey> {
    let elements = ["f32", "f16", PACKED_F16, "bf16"];
    elements.into_iter().flat_map(|element| {
        (0..12u32).map(move |number| {
            let batch_rank = number % 3;
            let plain = [0, 0, 1, 0, 0];
            if number < 3 {
                return reduce_key(element, element, batch_rank, plain, Finish::NONE);
            }
            let finish = Finish {
                scale: 0.5,
                bias: number % 2 == 0,
                residual: number % 4 < 2,
                activation: Activation::ALL[(number / 3) as usize],
            };
            let slot_residual = 1 + u32::from(finish.bias && number != 4);
            let slot_c = 1 + u32::from(finish.bias).max(slot_residual * u32::from(finish.residual));
            let slots = [0, 0, slot_c, 1, slot_residual];
            reduce_key(element, element, batch_rank, slots, finish)
        })
    })
}

/// The same with one of the epilogues.
fn finished(form: Form, number: u32) -> Form {
    let activations = [
        Activation::None,
        Activation::Relu,
        Activation::Gelu,
        Activation::Silu,
    ];
    let [a, b, after, ..] = form.slots;
    // The residual is often the left operand.
    let (bias, residual) = (!number.is_multiple_of(3), number % 5 < 3);
    // Where A and B are bound, bias and residual come after them.
    let slot_bias = after;
    let shares = a != UNBOUND && number.is_multiple_of(5);
    let slot_residual = match shares {
        true => a,
        false => after + u32::from(bias),
    };
    let slot_c = after + u32::from(bias) + u32::from(residual && !shares);
    Form {
        slots: [a, b, slot_c, slot_bias, slot_residual],
        finish: Finish {
            scale: 0.5,
            bias,
            residual,
            activation: activations[(number / 7 % 4) as usize],
        },
        ..form
    }
}

/// The same with operands as texels.
fn unbound(form: Form) -> Form {
    let mut form = form;
    (form.vector_a, form.vector_b) = (0, 0);
    form.slots = [UNBOUND, UNBOUND, 0, 0, 0];
    form
}

fn is_asked_for(kernel: &MatmulKernel, form: Form) -> bool {
    // There are no narrower loads of this one.
    let lies = match kernel.kind {
        KernelKind::Wide => (form.vector_a, form.vector_b) == (WIDE, WIDE),
        KernelKind::WideVector { along_k } => {
            let widest = kernel_loads(kernel, form.element, [form.a_along_k, true]);
            form.a_along_k == along_k && [form.vector_a, form.vector_b] == widest
        }
        KernelKind::Cooperative { .. } => !packs(form.element),
        _ => true,
    };
    lies && (stores_vectors(kernel) || form.vector_c == 1)
        && (kernel.may_accumulate() || !form.accumulates)
        && (!packs(form.result) || form.vector_c == 4)
        && (form.slots[0] != form.slots[1] || form.vector_a == form.vector_b)
}
