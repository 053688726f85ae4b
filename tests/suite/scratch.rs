//! Ops take memory for their result, and for the scratch that `docs/memory.md` states: counted by the device.
//! The formulas here are the document's, worked out anew.

use orlop::{
    Activation, Capabilities, DType, Device, DeviceKind, Epilogue, Kernel, MatmulPlan, Result,
    SearchSide, SliceRange, SortOrder, Tensor, explain_matmuls, fused, with_hardware_plans,
    with_matmul_split,
};

use crate::adapters::{Context, Variant, full};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("memory::of_ops", Scope::Kernels, of_ops),
        Test::new("memory::of_writes_in_place", Scope::Kernels, in_place),
        Test::new("memory::of_creation", Scope::Kernels, creation),
        Test::new("memory::of_reductions", Scope::Device, reductions),
        Test::new("memory::of_scans", Scope::Device, scans),
        Test::new("memory::of_sorts", Scope::Device, sorts),
        Test::new("memory::of_norms", Scope::Device, norms),
        Test::new("memory::of_products", Scope::Device, products),
        Test::new("memory::of_reads", Scope::Device, reads),
        Test::new("memory::of_programs_kernels", Scope::Device, kernels),
    ]
}

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// Whether a dtype is counted on a device: those that it holds. Kernels of the slow adapters have no f16, and go bf16's
/// way; integers go f32's.
fn is_tried(context: &Context, dtype: DType) -> bool {
    let stands_for_others = [DType::F32, DType::BF16, DType::F64].contains(&dtype);
    let is_quick = !context.is_slow() || full();
    context.adapter.info.capabilities.holds(dtype) && (stands_for_others || is_quick)
}

fn held(context: &Context) -> impl Iterator<Item = DType> + '_ {
    let floats = FLOATS.into_iter();
    floats.filter(|&dtype| is_tried(context, dtype))
}

/// What a tensor's memory is a multiple of.
fn rounded(bytes: usize) -> u64 {
    bytes.next_multiple_of(256) as u64
}

fn size(tensor: &Tensor) -> usize {
    tensor.elements() * tensor.dtype().size()
}

/// The most that `op` takes at a time, without what was there before it, and what it gives.
fn taken<R>(device: &Device, op: impl FnOnce() -> Result<R>) -> Result<(u64, R)> {
    device.synchronize()?;
    device.reset_peaks();
    let before = device.memory().allocated;
    let result = op()?;
    Ok((device.memory().peak_allocated - before, result))
}

/// Checks an op that makes a tensor: its bytes and so many more, and 256 for each number of f64 but those that are
/// there already.
fn check(
    device: &Device,
    name: &str,
    (scratch, numbers): (u64, usize),
    op: impl FnOnce() -> Result<Tensor>,
) -> Result<()> {
    let (taken, result) = taken(device, op)?;
    assert_eq!(result.device(), device, "{name}");
    let least = rounded(size(&result)) + scratch;
    let most = least + 256 * numbers as u64;
    assert!(
        (least..=most).contains(&taken),
        "{name} on {device}: {taken} bytes, not {least} to {most}"
    );
    Ok(())
}

/// Numbers that become tensors: those of f64 on GPUs.
fn tensors_of(device: &Device, dtype: DType, numbers: usize) -> usize {
    match dtype == DType::F64 && !device.is_cpu() {
        true => numbers,
        false => 0,
    }
}

struct Operands {
    dtype: DType,
    /// `[60, 64]`, and the same turned.
    a: Tensor,
    turned: Tensor,
    /// `[64, 64]`.
    square: Tensor,
    /// `[64]`.
    row: Tensor,
    /// `[60]`, from 0 to 59 in some order.
    index: Tensor,
    /// `[60, 64]`, bool, and how many are true.
    mask: Tensor,
    selected: usize,
}

impl Operands {
    fn new(device: &Device, dtype: DType) -> Result<Self> {
        let a = Tensor::randn(device, [60, 64], dtype, 1)?;
        let mask = a.gt(&Tensor::zeros(device, (), dtype)?)?;
        Ok(Self {
            dtype,
            turned: Tensor::randn(device, [64, 60], dtype, 2)?.transpose(0, 1)?,
            square: Tensor::randn(device, [64, 64], dtype, 3)?,
            row: Tensor::randn(device, [64], dtype, 4)?,
            index: Tensor::from_vec(
                device,
                (0..60).map(|x| x * 7 % 60).collect::<Vec<i32>>(),
                60,
            )?,
            selected: mask.sum(..)?.item::<u32>()? as usize,
            mask,
            a,
        })
    }

    /// Running sums in f32 of a tensor like `a`.
    fn summed(&self) -> u64 {
        match self.dtype.size() {
            2 => rounded(4 * 60 * 64),
            _ => 0,
        }
    }

    /// Copies in f32 for sums by an index: the tensor, the source, and the sums.
    fn widened(&self, elements: usize, source: usize) -> u64 {
        match self.dtype.size() {
            2 => 2 * rounded(4 * elements) + rounded(4 * source),
            _ => 0,
        }
    }
}

type Op = fn(&Operands) -> Result<Tensor>;
type Bytes = fn(&Operands) -> u64;

const NONE: Bytes = |_| 0;

/// Each op, with its bytes of scratch and how many numbers it is given.
const OPS: &[(&str, Bytes, usize, Op)] = &[
    ("add", NONE, 0, |o| o.a.add(&o.turned)),
    ("add a row", NONE, 0, |o| o.a.add(&o.row)),
    ("add a number", NONE, 1, |o| o.a.add(0.5)),
    ("pow", NONE, 0, |o| o.a.pow(&o.row)),
    ("square by pow", NONE, 0, |o| o.a.pow(2)),
    ("rpow", NONE, 1, |o| o.a.rpow(2)),
    ("neg", NONE, 0, |o| o.turned.neg()),
    ("exp", NONE, 0, |o| o.a.exp()),
    ("gelu", NONE, 0, |o| o.turned.gelu()),
    ("less", NONE, 0, |o| o.a.lt(&o.turned)),
    ("not", NONE, 0, |o| o.mask.logical_not()),
    ("select", NONE, 0, |o| o.mask.select(&o.a, &o.row)),
    ("select a number", NONE, 1, |o| o.mask.select(&o.a, 0.25)),
    ("clamp", NONE, 0, |o| o.a.clamp(&o.row, &o.turned)),
    ("clamp by numbers", NONE, 2, |o| o.a.clamp(-0.5, 0.25)),
    ("mul_add", NONE, 0, |o| o.a.mul_add(&o.row, &o.turned)),
    ("mul_add numbers", NONE, 2, |o| o.a.mul_add(0.5, 0.25)),
    ("fused", NONE, 2, |o| {
        fused(|e| ((e.input(&o.a) * 2.0 + e.input(&o.turned)).square() - 0.5).relu())
    }),
    ("into_add", NONE, 0, |o| o.a.copy()?.into_add(&o.turned)),
    ("into_fused", NONE, 1, |o| {
        o.a.copy()?.into_fused(|_, x| x.abs() * 3.0)
    }),
    ("copy", NONE, 0, |o| o.turned.copy()),
    ("contiguous", NONE, 0, |o| o.turned.contiguous()),
    ("reshape", NONE, 0, |o| o.turned.reshape([64, 60])),
    ("cast", NONE, 0, |o| o.turned.cast(DType::I32)),
    ("cast to bool", NONE, 0, |o| o.turned.cast(DType::Bool)),
    ("cast to f16", NONE, 0, |o| o.mask.cast(DType::F16)),
    ("flip", NONE, 0, |o| o.a.flip(&[0, 1])?.copy()),
    ("steps", NONE, 0, |o| {
        o.a.slice(SliceRange::from(..).step(-3))?.copy()
    }),
    ("odd rows", NONE, 0, |o| o.a.slice((.., 1..36))?.neg()),
    ("concat", NONE, 0, |o| {
        Tensor::concat(&[&o.a, &o.turned, &o.a], 1)
    }),
    ("stack", NONE, 0, |o| Tensor::stack(&[&o.a, &o.turned], 2)),
    ("pad", NONE, 0, |o| o.turned.pad(&[(1, 2), (3, 4)], 1)),
    ("tril", NONE, 0, |o| o.turned.tril(1)),
    ("triu", NONE, 0, |o| o.a.triu(1)),
    ("index_select", NONE, 0, |o| o.a.index_select(0, &o.index)),
    ("embedding", NONE, 0, |o| o.turned.embedding(&o.index)),
    ("gather", NONE, 0, |o| o.row.gather(0, &o.index)),
    ("one_hot", NONE, 0, |o| o.index.one_hot(64, o.dtype)),
    // An index in its table's storage is copied.
    (
        "index_select of the index",
        |o| rounded(size(&o.index)),
        0,
        |o| o.index.index_select(0, &o.index),
    ),
    (
        "index_add",
        |o| o.widened(60 * 64, 60 * 64),
        0,
        |o| o.a.index_add(0, &o.index, &o.turned),
    ),
    (
        "scatter_add",
        |o| o.widened(64, 60),
        0,
        |o| o.row.scatter_add(0, &o.index, &o.row.slice(4..)?),
    ),
    ("index_max", NONE, 0, |o| {
        o.a.index_max(0, &o.index, &o.turned)
    }),
    ("scatter_min", NONE, 0, |o| {
        o.row.scatter_min(0, &o.index, &o.row.slice(4..)?)
    }),
    ("cumsum", |o| o.summed(), 0, |o| o.a.cumsum(1)),
    (
        "cumsum of turned",
        |o| o.summed(),
        0,
        |o| o.turned.cumsum(0),
    ),
    (
        "sort",
        |o| match o.dtype {
            DType::F64 => rounded(4 * 60 * 64),
            _ => o.summed(),
        },
        0,
        |o| o.a.sort(1, SortOrder::Ascending),
    ),
    ("argsort", NONE, 0, |o| {
        o.a.argsort(1, SortOrder::Descending)
    }),
    (
        "argsort of turned",
        // The CPU's copy is no device's.
        |o| match o.a.device().is_cpu() {
            true => 0,
            false => rounded(size(&o.turned)),
        },
        0,
        |o| o.turned.argsort(1, SortOrder::Ascending),
    ),
    // Marks are two rows of 128 words; their counts, of fewer, are gone before there is a result of more.
    ("nonzero", |_| 1024, 0, |o| o.a.nonzero()),
    (
        "nonzero of turned",
        // What no binding reaches is copied, and gone before there is a result of as much.
        |o| match o.dtype == DType::F64 && o.a.device().capabilities().max_binding_bytes < 30_720 {
            true => 2048,
            false => 1024,
        },
        0,
        |o| o.turned.nonzero(),
    ),
    (
        "masked_select",
        // What takes more than marks: places of what is selected.
        |o| match o.a.device().is_cpu() {
            true => 1024,
            false => rounded(4 * o.selected),
        },
        0,
        |o| o.a.masked_select(&o.mask),
    ),
    (
        "masked_select of turned",
        |o| match o.a.device().is_cpu() {
            true => 1024,
            false => rounded(4 * o.selected) + rounded(size(&o.turned)),
        },
        0,
        |o| o.turned.masked_select(&o.mask),
    ),
    ("search_sorted", NONE, 0, |o| {
        o.row.search_sorted(&o.a, SearchSide::Left)
    }),
    (
        "search_sorted of turned",
        |o| match o.a.device().is_cpu() {
            true => 0,
            false => rounded(size(&o.turned)),
        },
        0,
        |o| o.a.search_sorted(&o.turned, SearchSide::Right),
    ),
    ("index_copy", NONE, 0, |o| {
        o.a.index_copy(0, &o.index, &o.turned)
    }),
    ("scatter", NONE, 0, |o| {
        o.row.scatter(0, &o.index, &o.row.slice(4..)?)
    }),
];

fn is_counted(context: &Context) -> bool {
    matches!(context.variant, Variant::Plain | Variant::Windows)
}

fn of_ops(context: &Context) -> Result<()> {
    if !is_counted(context) {
        return Ok(());
    }
    let device = &context.open();
    for dtype in held(context) {
        // Kernels of 16 bits in pieces differ in what they read alone.
        if context.variant != Variant::Plain && dtype.size() == 2 && !full() {
            continue;
        }
        let operands = Operands::new(device, dtype)?;
        for (name, scratch, numbers, op) in OPS {
            let name = format!("{name} of {dtype}");
            let numbers = tensors_of(device, dtype, *numbers);
            check(device, &name, (scratch(&operands), numbers), || {
                op(&operands)
            })?;
        }
    }
    Ok(())
}

type Write = fn(&Operands) -> Result<()>;

/// What writes into memory that is there: it takes none, but for what is read of it elsewhere than it is written.
const WRITES: &[(&str, Bytes, usize, Write)] = &[
    ("add_assign", NONE, 0, |o| o.a.add_assign(&o.turned)),
    ("add_assign a number", NONE, 1, |o| o.a.add_assign(0.5)),
    ("mul_assign itself", NONE, 0, |o| o.a.mul_assign(&o.a)),
    ("exp in place", NONE, 0, |o| {
        o.a.fused_assign(|_, x| x.exp())
    }),
    ("clamp in place", NONE, 2, |o| {
        o.turned.fused_assign(|_, x| x.clamp(-0.5, 0.25))
    }),
    ("odd rows", NONE, 0, |o| {
        o.a.slice((.., 1..36))?.fused_assign(|_, x| x.abs())
    }),
    ("fill", NONE, 0, |o| o.turned.fill(3)),
    ("fill odd rows", NONE, 0, |o| {
        o.a.slice((.., 1..36))?.fill(3)
    }),
    ("assign", NONE, 0, |o| o.a.assign(&o.turned)),
    (
        "assign itself, turned",
        |o| rounded(size(&o.square)),
        0,
        |o| o.square.assign(&o.square.transpose(0, 1)?),
    ),
    (
        "add_assign its first row",
        |o| rounded(64 * o.dtype.size()),
        0,
        |o| o.square.add_assign(&o.square.slice(0)?),
    ),
    ("index_copy_assign", NONE, 0, |o| {
        o.a.index_copy_assign(0, &o.index, &o.turned)
    }),
    ("scatter_assign", NONE, 0, |o| {
        o.row.scatter_assign(0, &o.index, &o.turned.slice(0)?)
    }),
    (
        "index_add_assign",
        |o| match o.dtype.size() {
            2 => o.widened(60 * 64, 60 * 64) + rounded(size(&o.a)) + rounded(size(&o.index)),
            _ => 0,
        },
        0,
        |o| o.a.index_add_assign(0, &o.index, &o.turned),
    ),
    ("scatter_max_assign", NONE, 0, |o| {
        o.row.scatter_max_assign(0, &o.index, &o.turned.slice(0)?)
    }),
    // The last one, which changes the index.
    (
        "index_add_assign of the index",
        |o| 2 * rounded(size(&o.index)),
        0,
        |o| o.index.index_add_assign(0, &o.index, &o.index),
    ),
];

fn in_place(context: &Context) -> Result<()> {
    if !is_counted(context) {
        return Ok(());
    }
    let device = &context.open();
    for dtype in held(context) {
        let operands = Operands::new(device, dtype)?;
        for (name, scratch, numbers, write) in WRITES {
            let (taken, ()) = taken(device, || write(&operands))?;
            let least = scratch(&operands);
            let most = least + 256 * tensors_of(device, dtype, *numbers) as u64;
            assert!(
                (least..=most).contains(&taken),
                "{name} of {dtype} on {device}: {taken} bytes, not {least} to {most}"
            );
        }
    }
    Ok(())
}

type Make = fn(&Device, DType) -> Result<Tensor>;

const CREATION: &[(&str, Make)] = &[
    ("empty", |device, dtype| Tensor::empty(device, 777, dtype)),
    ("zeros", |device, dtype| Tensor::zeros(device, 777, dtype)),
    ("full", |device, dtype| {
        Tensor::full(device, [7, 111], 3, dtype)
    }),
    ("arange", |device, dtype| {
        Tensor::arange(device, 0, 777, 1, dtype)
    }),
    ("rand", |device, dtype| Tensor::rand(device, 777, dtype, 1)),
    ("randn", |device, dtype| {
        Tensor::randn(device, 777, dtype, 1)
    }),
    ("randint", |device, _| {
        Tensor::randint(device, 0..9, [777], DType::I32, 1)
    }),
    ("from_slice", |device, _| {
        Tensor::from_slice(device, &[1u32; 777], 777)
    }),
];

fn creation(context: &Context) -> Result<()> {
    if !is_counted(context) {
        return Ok(());
    }
    let device = &context.open();
    for dtype in held(context) {
        for (name, make) in CREATION {
            check(device, &format!("{name} of {dtype}"), (0, 0), || {
                make(device, dtype)
            })?;
        }
    }
    Ok(())
}

/// Bytes of each field of what a reduction keeps of elements, and how many fields.
#[derive(Clone, Copy)]
struct State(usize, usize);

impl State {
    fn of(kernel: &str, dtype: DType) -> Self {
        let sums = if dtype == DType::F64 { 8 } else { 4 };
        match kernel {
            "any" => State(4, 1),
            "norm" | "argmax" | "logsumexp" | "rms_norm" | "softmax" | "log_softmax" => {
                State(sums, 2)
            }
            "var" | "layer_norm" => State(sums, 4),
            _ => State(sums, 1),
        }
    }

    fn bytes(self) -> usize {
        self.0 * self.1
    }
}

/// A reduction of a contiguous matrix along its rows, or down its columns.
#[derive(Clone, Copy)]
struct Pass<'a> {
    capabilities: &'a Capabilities,
    /// Planned as on hardware.
    is_hard: bool,
    dtype: DType,
    state: State,
    outputs: usize,
    length: usize,
    along_rows: bool,
}

impl Pass<'_> {
    /// States of each output in a first launch.
    fn parts(self) -> usize {
        let element = self.dtype.size();
        let is_wide = match self.is_hard {
            true => element == 2 && self.state.1 == 1,
            false => element == 2 || self.dtype == DType::F32 && self.capabilities.int64,
        };
        let unit = if is_wide { 8 } else { 4 };
        let (groups, steps) = match self.along_rows {
            true => (self.outputs, self.length.div_ceil(unit)),
            false => (self.outputs / unit, self.length),
        };
        // Joined in workgroup memory.
        let is_tree = self.is_hard
            && steps >= 8
            && (self.along_rows
                || groups < 64 << 10 && 256 * self.state.bytes() * unit.min(4) <= 16 << 10);
        let is_far =
            !self.is_hard && !self.along_rows && self.outputs * self.length * element > 2_000_000;
        let lanes = match (self.is_hard, self.along_rows) {
            (false, true) if steps >= 128 => 8,
            (true, true) if is_tree => {
                let each = if self.state.1 > 1 { 16 } else { 4 };
                [16, 64, 256].into_iter().fold(4, |lanes, wider| {
                    let is_few = groups * lanes < 64 << 10 && steps >= 4 * wider;
                    if steps >= each * wider || is_few {
                        wider
                    } else {
                        lanes
                    }
                })
            }
            (true, false) if is_tree => {
                let busy = if element == 2 { 64 << 10 } else { 128 << 10 };
                let reads_all = |lanes: &usize| groups * lanes >= busy && steps >= 4 * lanes;
                assert!(![8, 32, 64, 128].iter().any(reads_all), "of few columns");
                if groups >= 32 { 8 } else { 32 }
            }
            _ => 1,
        };
        let busy: usize = match (self.is_hard, is_tree) {
            (false, _) => 512,
            (true, false) => 64 << 10,
            (true, true) => 256 << 10,
        };
        let most_steps = if is_far { 128 } else { 4096 * lanes };
        let wanted = busy.div_ceil(groups * lanes);
        let chunks = steps.div_ceil(most_steps);
        let chunks = chunks.max((steps / (16 * lanes)).min(wanted)).max(1);
        let of_chunk = steps.div_ceil(chunks).next_multiple_of(lanes);
        let joined = if is_tree { 1 } else { lanes };
        let parts = steps.div_ceil(of_chunk) * joined;
        assert!(parts == 1 || 16 * parts <= steps);
        parts
    }

    fn scratch(self) -> u64 {
        match self.parts() {
            1 => 0,
            parts => rounded(self.outputs * parts * self.state.bytes()),
        }
    }
}

/// Two sums for each block of `lines` of so many elements, and for these as many again.
fn scanned(is_hard: bool, [size, lines]: [usize; 2], are_columns: bool) -> u64 {
    let unit = match are_columns || size.is_multiple_of(4) {
        true => 4,
        false => 1,
    };
    let groups = if are_columns { lines / unit } else { lines };
    let mut shared = [16, 64, 256].into_iter();
    let (lanes, wanted, least) = match (is_hard, are_columns) {
        (false, _) => (1, 1024, 64),
        (true, true) => (1, 64 << 10, 16),
        (true, false) if size / unit <= 8 => (1, 1, 16),
        (true, false) => {
            let lanes = shared.find(|lanes| size / unit <= 4 * lanes);
            let lanes = lanes.unwrap_or(256);
            (lanes, (256 << 10) / lanes, 4 * lanes * unit)
        }
    };
    let most = match !is_hard && are_columns && size * lines * 4 > 2_000_000 {
        true => 16,
        false => 4096.max(64 * lanes * unit),
    };
    let parts = wanted.div_ceil(groups).min(size.div_ceil(least));
    let steps = if are_columns { 1 } else { lanes * unit };
    let block = size
        .div_ceil(parts)
        .min(most)
        .next_multiple_of(steps)
        .min(most);
    match size.div_ceil(block) {
        1 => 0,
        blocks => 2 * rounded(lines * blocks * 4) + scanned(is_hard, [blocks, lines], are_columns),
    }
}

fn scans(context: &Context) -> Result<()> {
    let device = &context.open();
    for ([size, lines], are_columns) in [
        ([100_000, 1], false),
        ([40_000, 5], false),
        ([64, 60], false),
        ([40_000, 8], true),
        ([1000, 1024], true),
        ([12, 64], true),
    ] {
        let (shape, axis) = match are_columns {
            true => ([size, lines], 0),
            false => ([lines, size], 1),
        };
        let x = Tensor::rand(device, shape, DType::F32, 1)?;
        for &is_hard in ways(device) {
            let scratch = match device.is_cpu() {
                true => 0,
                false => scanned(is_hard, [size, lines], are_columns),
            };
            check(device, "cumsum", (scratch, 0), || {
                planned(device, is_hard, || x.cumsum(axis))
            })?;
        }
    }
    Ok(())
}

/// Counts of digits with their sums, and keys, or pairs of one and a place, that passes hand to each other.
fn in_order(dtype: DType, is_hard: bool, [lines, size, kept]: [usize; 3], places: bool) -> u64 {
    if size <= 64 || (is_hard && size <= 2048) {
        return 0;
    }
    let block = match is_hard {
        true => size
            .div_ceil(2048usize.div_ceil(lines))
            .next_multiple_of(2048),
        false => size.div_ceil(256usize.div_ceil(lines)).clamp(64, 32 << 10),
    };
    let counts = 16 * size.div_ceil(block);
    let counted = 2 * rounded(4 * lines * counts) + scanned(is_hard, [counts, lines], false);
    let bits = match dtype {
        DType::Bool => 1,
        dtype => 8 * dtype.size() as u32,
    };
    let passes = bits.div_ceil(4);
    let moved = match (places, passes) {
        (_, 1) => 0,
        (false, _) => rounded(4 * lines * size),
        // Pairs, of which the last pass makes none.
        (true, passes) => u64::from((passes - 1).min(2)) * rounded(8 * lines * size),
    };
    let of_words = match dtype == DType::F64 && kept < size {
        true => rounded(4 * lines * size),
        false => 0,
    };
    counted + moved + of_words
}

/// All that places of the first elements take, in tiles of which the first are sorted again.
fn first_ones(dtype: DType, is_hard: bool, [lines, size, kept]: [usize; 3]) -> u64 {
    let most = 2048;
    let result = rounded(4 * lines * kept);
    if !is_hard || size <= most {
        return result + in_order(dtype, is_hard, [lines, size, kept], true);
    }
    let mut counts = (size.div_ceil(most)..=2 * size / most).take(64);
    let (count, tile) = match counts.find(|count| size % count == 0) {
        Some(count) => (count, size / count),
        None => (size / most, most),
    };
    let rest = size - count * tile;
    // Lines with a rest are no runs of tiles.
    let [copy, copy_of_rest] = [count * tile, rest].map(|of_line| match rest > 0 && lines > 1 {
        true => rounded(dtype.size() * lines * of_line),
        false => 0,
    });
    let of_tiles = rounded(4 * lines * count * kept);
    let all = count * kept + kept.min(rest);
    let [places, values] = [4, dtype.size()].map(|bytes| rounded(bytes * lines * all));
    let with_rest = match rest {
        0 => 0,
        rest => {
            let of_rest = rounded(4 * lines * kept.min(rest));
            of_tiles + of_rest + places.max(copy_of_rest)
        }
    };
    (copy + of_tiles)
        .max(of_tiles + rounded(4 * count))
        .max(with_rest)
        .max(places + values + first_ones(dtype, is_hard, [lines, all, kept]))
        .max(places + 2 * result)
}

fn sorts(context: &Context) -> Result<()> {
    let device = &context.open();
    let up = SortOrder::Ascending;
    for [lines, size] in [[1, 100_000], [3, 5000], [70, 300], [9, 64]] {
        for dtype in [DType::F32, DType::F16, DType::Bool, DType::F64] {
            if !is_tried(context, dtype) {
                continue;
            }
            let x = Tensor::rand(device, [lines, size], DType::F32, 1)?.cast(dtype)?;
            for &is_hard in ways(device) {
                let expected = |kept, places| match device.is_cpu() {
                    true => 0,
                    false => in_order(dtype, is_hard, [lines, size, kept], places),
                };
                let scratch = (expected(size, true), 0);
                check(device, "argsort", scratch, || {
                    planned(device, is_hard, || x.argsort(1, up))
                })?;
                // In f32 or u32 first; by places, of f64.
                let [first, result] = [4, dtype.size()].map(|bytes| rounded(bytes * lines * size));
                let by_places = dtype == DType::F64;
                let scratch = match dtype {
                    DType::F32 => expected(size, by_places),
                    _ => (expected(size, by_places) + first).max(first + result) - result,
                };
                check(device, "sort", (scratch, 0), || {
                    planned(device, is_hard, || x.sort(1, up))
                })?;
                if dtype == DType::F32 || dtype == DType::F64 {
                    let top = || {
                        let (first, places) = x.top_k(10, 1, up)?;
                        drop(first);
                        Ok(places)
                    };
                    let [places, values] = [4, dtype.size()].map(|size| rounded(size * lines * 10));
                    let all = match device.is_cpu() {
                        true => 0,
                        false => first_ones(dtype, is_hard, [lines, size, 10]),
                    };
                    let scratch = all.saturating_sub(places).max(values);
                    check(device, "top_k", (scratch, 0), || {
                        planned(device, is_hard, top)
                    })?;
                }
            }
        }
    }
    Ok(())
}

type OfShape = fn(&Tensor, bool) -> Result<Tensor>;

/// Along rows, or down columns.
const REDUCTIONS: &[(&str, OfShape)] = &[
    ("sum", |x, rows| x.sum(usize::from(rows))),
    ("mean", |x, rows| x.mean(usize::from(rows))),
    ("prod", |x, rows| x.prod(usize::from(rows))),
    ("max", |x, rows| x.max(usize::from(rows))),
    ("min", |x, rows| x.min(usize::from(rows))),
    ("any", |x, rows| x.any(usize::from(rows))),
    ("all", |x, rows| x.all(usize::from(rows))),
    ("norm", |x, rows| x.norm(usize::from(rows))),
    ("argmax", |x, rows| x.argmax(usize::from(rows))),
    ("argmin", |x, rows| x.argmin(usize::from(rows))),
    ("var", |x, rows| x.var(usize::from(rows), 1)),
    ("std", |x, rows| x.std(usize::from(rows), 1)),
    ("logsumexp", |x, rows| x.logsumexp(usize::from(rows))),
];

fn kernel_of(name: &str) -> &str {
    match name {
        "argmin" => "argmax",
        "all" => "any",
        "std" => "var",
        other => other,
    }
}

/// Both ways to plan that a device has: software adapters those of hardware too.
fn ways(device: &Device) -> &'static [bool] {
    match device.capabilities().kind {
        DeviceKind::Software => &[false, true],
        _ => &[true],
    }
}

fn planned<R>(device: &Device, is_hard: bool, work: impl FnOnce() -> R) -> R {
    match is_hard && device.capabilities().kind == DeviceKind::Software {
        true => with_hardware_plans(work),
        false => work(),
    }
}

/// Whether no kernel has exponentials of it: the CPU does it, and the result comes home.
fn is_elsewhere(name: &str, dtype: DType) -> bool {
    dtype == DType::F64 && ["logsumexp", "softmax", "log_softmax"].contains(&name)
}

fn reductions(context: &Context) -> Result<()> {
    let device = &context.open();
    let mut with_scratch = 0;
    for (dtype, [rows, columns], along_rows) in FLOATS.into_iter().flat_map(|dtype| {
        [
            (dtype, [5, 40_000], true),
            (dtype, [1, 200_000], true),
            (dtype, [60, 64], true),
            (dtype, [40_000, 8], false),
            (dtype, [1000, 1024], false),
            (dtype, [12, 64], false),
        ]
    }) {
        // Of other dtypes than f32, whose kernels take long to compile, what differs.
        let is_all = dtype == DType::F32 || rows >= 1000 || full();
        if !is_tried(context, dtype) || !is_all && rows != 5 {
            continue;
        }
        let x = Tensor::rand(device, [rows, columns], dtype, 1)?;
        let (outputs, length) = match along_rows {
            true => (rows, columns),
            false => (columns, rows),
        };
        // Of a state of each size, and all of them once.
        let is_first = dtype == DType::F32 && rows == 5;
        let few = REDUCTIONS
            .iter()
            .filter(|(name, _)| is_first || ["sum", "argmax", "var"].contains(name));
        for (name, reduce) in few {
            for &is_hard in ways(device) {
                let pass = Pass {
                    capabilities: device.capabilities(),
                    is_hard,
                    dtype,
                    state: State::of(kernel_of(name), dtype),
                    outputs,
                    length,
                    along_rows,
                };
                let scratch = match device.is_cpu() || is_elsewhere(name, dtype) {
                    true => 0,
                    false => pass.scratch(),
                };
                with_scratch += usize::from(scratch > 0);
                let story = format!("{name} of {rows}x{columns} {dtype}, hardware {is_hard}");
                planned(device, is_hard, || {
                    check(device, &story, (scratch, 0), || reduce(&x, along_rows))
                })?;
            }
        }
    }
    assert!(device.is_cpu() || with_scratch > 10);
    Ok(())
}

type Normalise = fn(&Tensor, bool) -> Result<Tensor>;

const NORMS: &[(&str, Normalise)] = &[
    ("softmax", |x, rows| x.softmax(usize::from(rows))),
    ("log_softmax", |x, rows| x.log_softmax(usize::from(rows))),
    ("layer_norm", |x, rows| {
        x.layer_norm(usize::from(rows), None, None, 1e-5)
    }),
    ("rms_norm", |x, rows| {
        x.rms_norm(usize::from(rows), None, 1e-5)
    }),
];

fn norms(context: &Context) -> Result<()> {
    let device = &context.open();
    // By one kernel; by the states of rows, which are few and long; of columns, beyond caches.
    for (dtype, [rows, columns], along_rows, by_states) in FLOATS.into_iter().flat_map(|dtype| {
        [
            (dtype, [60, 64], true, false),
            (dtype, [4, 200_000], true, true),
            (dtype, [1000, 1024], false, true),
        ]
    }) {
        if !is_tried(context, dtype) || dtype == DType::BF16 && !context.is_slow() && !full() {
            continue;
        }
        let x = Tensor::rand(device, [rows, columns], dtype, 1)?;
        let (outputs, length) = match along_rows {
            true => (rows, columns),
            false => (columns, rows),
        };
        let few = NORMS
            .iter()
            .filter(|(name, _)| dtype == DType::F32 || ["softmax", "layer_norm"].contains(name));
        for (name, normalise) in few {
            for &is_hard in ways(device) {
                let state = State::of(name, dtype);
                let pass = Pass {
                    capabilities: device.capabilities(),
                    is_hard,
                    dtype,
                    state,
                    outputs,
                    length,
                    along_rows,
                };
                let scratch = match device.is_cpu() || is_elsewhere(name, dtype) || !by_states {
                    true => 0,
                    false => rounded(outputs * state.bytes()) + pass.scratch(),
                };
                let story = format!("{name} of {rows}x{columns} {dtype}, hardware {is_hard}");
                planned(device, is_hard, || {
                    check(device, &story, (scratch, 0), || normalise(&x, along_rows))
                })?;
            }
        }
    }
    // A weight that is no row of its own is copied.
    let o = Operands::new(device, DType::F32)?;
    let column = o.square.slice((.., 0))?;
    let row = Some(&o.row);
    check(device, "a weight", (0, 0), || o.a.rms_norm(1, row, 1e-5))?;
    check(device, "a weight and a bias", (0, 0), || {
        let bias = o.square.slice(0)?;
        o.a.layer_norm(1, row, Some(&bias), 1e-5)
    })?;
    check(device, "a column as weight", (rounded(256), 0), || {
        o.a.layer_norm(1, Some(&column), None, 1e-5)
    })
}

/// A product of contiguous matrices `[m, k]` and `[k, n]` by a plan.
fn of_product(
    device: &Device,
    (batches, [m, k, n]): (usize, [usize; 3]),
    dtype: DType,
    plan: &MatmulPlan,
) -> u64 {
    let pitch = match plan.kernel.to_string().starts_with("texel_tile") {
        true => 64,
        false => 8,
    };
    let mut bytes = 0;
    if plan.pack[0] {
        bytes += rounded(4 * batches * m * k.next_multiple_of(pitch));
    }
    if plan.pack[1] {
        bytes += rounded(4 * batches * k.next_multiple_of(8) * n.next_multiple_of(pitch));
    }
    let capabilities = device.capabilities();
    let by_words = dtype == DType::BF16 || dtype == DType::F16 && !capabilities.f16;
    // One row is turned round: a column.
    let is_odd = !n.is_multiple_of(4) || m == 1;
    let split = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => plan.split as usize,
        _ => 1,
    };
    if split > 1 || by_words && is_odd {
        let part = match split {
            1 => k,
            split => k.div_ceil(split).next_multiple_of(32).min(k),
        };
        bytes += rounded(4 * k.div_ceil(part) * (batches * m * n).next_multiple_of(4));
    }
    bytes
}

fn products(context: &Context) -> Result<()> {
    let device = &context.open();
    let all = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I32,
        DType::U32,
    ];
    let make = |shape: &[usize], dtype: DType| match dtype.is_float() {
        true => Tensor::rand(device, shape, dtype, 1),
        false => Tensor::ones(device, shape, dtype),
    };
    let mut seen = [false; 3];
    for dtype in all {
        if !is_tried(context, dtype) {
            continue;
        }
        // Copied where tiles are wide; split; odd rows of 16 bits; vectors.
        for (batches, sizes, parts) in [
            (1, [192, 192, 192], None),
            (1, [203, 201, 207], None),
            (3, [130, 201, 97], None),
            (1, [64, 2048, 64], Some(4)),
            (1, [64, 2000, 60], Some(7)),
            (5, [33, 40, 35], None),
            (1, [33, 40, 36], None),
            (1, [1, 200, 64], None),
            (1, [65, 200, 1], None),
            (1, [3, 5000, 4], None),
        ] {
            let [m, k, n] = sizes;
            // No kernel of slow adapters wants copies.
            if context.is_slow() && m > 128 && !full() {
                continue;
            }
            let [a, b] = [[batches, m, k], [batches, k, n]].map(|shape| make(&shape, dtype));
            let (a, b) = (a?, b?);
            let multiply = || match parts {
                Some(parts) => with_matmul_split(parts, || a.matmul(&b)),
                None => a.matmul(&b),
            };
            // The first plan is that of the whole.
            let (_, plans) = explain_matmuls(multiply);
            let scratch = plans.first().map_or(0, |(_, plan)| {
                seen[0] |= plan.pack != [false; 2];
                of_product(device, (batches, sizes), dtype, plan)
            });
            seen[1] |= parts.is_some() && scratch > 0;
            seen[2] |= dtype == DType::BF16 && scratch > 0;
            let story = format!("{batches} of {m}x{k}x{n} of {dtype}, parts {parts:?}");
            check(device, &story, (scratch, 0), multiply)?;
        }
        // Backwards, an operand is copied whole.
        let (a, b) = (make(&[32, 40], dtype)?, make(&[40, 64], dtype)?);
        check(
            device,
            &format!("{dtype} backwards"),
            (rounded(size(&a)), 0),
            || a.flip(&[1])?.matmul(&b),
        )?;
        // What is done to the entries takes nothing.
        if dtype.is_float() {
            let bias = make(&[64], dtype)?;
            let epilogue = Epilogue::new().scale(0.5).bias(&bias);
            let scaled = epilogue.activation(Activation::Relu);
            let numbers = tensors_of(device, dtype, 1);
            check(device, &format!("{dtype} scaled"), (0, numbers), || {
                a.matmul_with(&b, &scaled)
            })?;
            check(device, &format!("linear of {dtype}"), (0, 0), || {
                a.linear(&b, Some(&bias), Activation::Gelu)
            })?;
        }
    }
    let capabilities = device.capabilities();
    let is_lavapipe = capabilities.texels && capabilities.subgroup_sizes == Some((8, 8));
    assert_eq!(seen, [is_lavapipe, !device.is_cpu(), !device.is_cpu()]);
    // Where there is no memory for parts the product is made whole, and takes none.
    if !device.is_cpu() {
        let (m, k, n) = (64, 32 << 10, 64);
        let (a, b) = (make(&[m, k], DType::F32)?, make(&[k, n], DType::F32)?);
        let room = device.memory().allocated + rounded(4 * m * n) + (64 << 10);
        let small = &context.builder().memory_limit(room).build()?;
        let (a, b) = (a.to(small)?, b.to(small)?);
        let (taken, product) = taken(small, || with_matmul_split(64, || a.matmul(&b)))?;
        assert_eq!(taken, rounded(size(&product)));
    }
    Ok(())
}

/// Views with gaps are copied together before they are read; what has none is read as it lies.
fn reads(context: &Context) -> Result<()> {
    let device = &context.open();
    let x = Tensor::rand(device, [60, 64], DType::F32, 1)?;
    let (bytes, values) = taken(device, || x.to_vec::<f32>())?;
    assert_eq!((bytes, values.len()), (0, 3840));
    let turned = x.transpose(0, 1)?;
    let (bytes, values) = taken(device, || turned.to_vec::<f32>())?;
    assert_eq!((bytes, values.len()), (rounded(size(&x)), 3840));
    let (bytes, _) = taken(device, || x.slice((.., ..3))?.to_vec::<f32>())?;
    assert_eq!(bytes, rounded(4 * 60 * 3));
    let (bytes, _) = taken(device, || x.sum(1)?.to_vec::<f32>())?;
    assert_eq!(bytes, rounded(4 * 60));
    Ok(())
}

/// What cannot be bound as it lies is copied, and of several outputs those of the lesser dtype.
fn kernels(context: &Context) -> Result<()> {
    let device = &context.open();
    let kernel = Kernel::wgsl(
        "parts",
        "struct Params { x_length: u32 }
         var<immediate> params: Params;
         @group(0) @binding(0) var<storage, read> x: array<f32>;
         @group(0) @binding(1) var<storage, read_write> whole: array<f32>;
         @group(0) @binding(2) var<storage, read_write> sign: array<u32>;
         @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
             if id.x < params.x_length {
                 whole[id.x] = trunc(x[id.x]);
                 sign[id.x / 2u] = 1u;
             }
         }",
    )?
    .twin(|call| {
        let x = call.input::<f32>("x")?;
        let whole = call.output::<f32>("whole")?.iter_mut();
        whole.zip(x).for_each(|(whole, x)| *whole = x.trunc());
        call.output::<u32>("sign")?.fill(1);
        Ok(())
    })?;
    let x = Tensor::rand(device, [60, 64], DType::F32, 1)?;
    let count = x.elements();
    let (whole, sign) = (rounded(4 * count), rounded(2 * count));
    for (x, copy) in [
        (x.clone(), 0),
        (x.transpose(0, 1)?, whole),
        // It begins where a binding may.
        (
            Tensor::rand(device, [61, 64], DType::F32, 1)?.slice(1..)?,
            0,
        ),
    ] {
        let launch = kernel
            .launch()
            .input("x", &x)
            .invocations([count as u64, 1, 1]);
        let launch = launch.output("whole", count).output("sign", count / 2);
        let (taken, outputs) = taken(device, || launch.run_all())?;
        assert_eq!(outputs.len(), 2);
        assert_eq!(taken, whole + 2 * sign + copy);
    }
    Ok(())
}
