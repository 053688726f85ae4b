//! Tensors above one storage binding: every op on them, contiguous, transposed and broadcast,
//! against references in f64 on samples at the edges of windows and at random.
//!
//! 129 MiB on lavapipe, and 300 MiB on hardware; 1.5 GiB, and the slow adapters, in full.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use orlop::{DType, Device, Error, Result, Tensor, f16};

use crate::adapters::{Context, full};
use crate::number::{Arithmetic, Number, Value};
use crate::rng::{Rng, seed};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    [
        (
            "large::arithmetic",
            arithmetic as fn(&Context) -> Result<()>,
        ),
        ("large::shared_storage", shared_storage),
        ("large::dtypes", dtypes),
        ("large::copies", copies),
        ("large::casts", casts),
        ("large::fills", fills),
        ("large::new_tensors", new_tensors),
        ("large::random_numbers", random_numbers),
        ("large::transfers", transfers),
        ("large::moves", moves),
        ("large::other_devices", other_devices),
    ]
    .into_iter()
    .map(|(name, body)| Test::new(name, Scope::Large, body))
    .chain([Test::new("large::too_large", Scope::Gpu, too_large)])
    .collect()
}

/// Gigabytes each: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Columns of the matrices: rows of whole vectors.
const COLUMNS: usize = 4096;

/// Runs a body for each size in bytes, on a device of its own.
fn for_each_size(context: &Context, body: impl Fn(&Device, usize) -> Result<()>) -> Result<()> {
    let mebibytes: &[usize] = match full() {
        _ if context.is_slow() => &[129],
        false if context.is_software() => &[129],
        false => &[129, 300],
        true => &[129, 300, 1536],
    };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for mebibytes in mebibytes {
        body(&context.open(), mebibytes << 20)?;
    }
    Ok(())
}

/// Tables, indices and results above one binding: rows found and added to, elements gathered,
/// tensors joined, padded and turned round.
fn moves(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        if !is_first(bytes) {
            return Ok(());
        }
        let rows = rows::<f32>(bytes);
        let whole = made::<f32>(device, [rows, COLUMNS], 7)?;
        let value = |row: usize, column: usize| number::<f32>(row * COLUMNS + column, 7);
        // Every row once, from the end every other time.
        let entry = |row: usize| (row * 7919 + 3) % rows;
        let given = |row: usize| {
            entry(row) as i32
                - if row.is_multiple_of(2) {
                    0
                } else {
                    rows as i32
                }
        };
        let order: Vec<i32> = (0..rows).map(given).collect();
        let mut origin = vec![0; rows];
        (0..rows).for_each(|row| origin[entry(row)] = row);
        let index = Tensor::from_slice(device, &order, [rows])?;
        check::<f32>(
            "index_select",
            &whole.index_select(0, &index)?,
            |at, got| got == value(entry(at / COLUMNS), at % COLUMNS),
        )?;
        check::<f32>(
            "index_add",
            &whole.index_add(0, &index, &whole)?,
            |at, got| {
                let (row, column) = (at / COLUMNS, at % COLUMNS);
                got == value(row, column) + value(origin[row], column)
            },
        )?;
        let places = made::<i32>(device, [rows, COLUMNS], 8)?;
        check::<f32>("gather", &whole.gather(1, &places)?, |at, got| {
            got == value(at / COLUMNS, 1 + hash(at, 8))
        })?;
        drop(places);
        let parts = [whole.slice(10..)?, whole.slice(..10)?];
        check::<f32>("concat", &Tensor::concat(&parts, 0)?, |at, got| {
            got == value((at / COLUMNS + 10) % rows, at % COLUMNS)
        })?;
        check::<f32>("pad", &whole.pad(&[(0, 1), (1, 0)], 0.5)?, |at, got| {
            let (row, column) = (at / (COLUMNS + 1), at % (COLUMNS + 1));
            let outside = row == rows || column == 0;
            got == if outside { 0.5 } else { value(row, column - 1) }
        })?;
        check::<f32>("triu", &whole.triu(5)?, |at, got| {
            let (row, column) = (at / COLUMNS, at % COLUMNS);
            got == if column < row + 5 {
                0.0
            } else {
                value(row, column)
            }
        })?;
        check::<f32>("flip", &whole.flip(&[0, 1])?.copy()?, |at, got| {
            got == value(rows - 1 - at / COLUMNS, COLUMNS - 1 - at % COLUMNS)
        })
    })
}

/// All dtypes and ways are run at the first size, the most telling at the others.
fn is_first(bytes: usize) -> bool {
    bytes >> 20 == 129
}

/// The rows of a matrix of so many bytes.
fn rows<T>(bytes: usize) -> usize {
    (bytes / size_of::<T>()).div_ceil(COLUMNS)
}

/// Which of the 2000 numbers element `at` is.
fn hash(at: usize, salt: u32) -> usize {
    let mut mixed = (at as u32 ^ salt).wrapping_mul(2_654_435_761);
    mixed ^= mixed >> 15;
    mixed = mixed.wrapping_mul(2_246_822_519);
    (mixed >> 16) as usize % 2000
}

/// Element `at` of [`made`]: from 1 to 2000, which every dtype holds exactly.
fn number<T: Number>(at: usize, salt: u32) -> T {
    T::from_value(Value::Integer(1 + hash(at, salt) as i64))
}

/// An uploaded matrix.
fn made<T: Number>(device: &Device, shape: [usize; 2], salt: u32) -> Result<Tensor> {
    let table: Vec<T> = (0..2000)
        .map(|x| T::from_value(Value::Integer(1 + x)))
        .collect();
    let count = shape[0] * shape[1];
    let values: Vec<T> = (0..count).map(|at| table[hash(at, salt)]).collect();
    Tensor::from_vec(device, values, shape)
}

/// Ranges of a tensor's elements by rows: around every multiple of the binding limit, the first and the
/// last elements, and many at random.
fn samples(device: &Device, count: usize, element_bytes: usize) -> Vec<Range<usize>> {
    let limit = device.capabilities().max_binding_bytes as usize / element_bytes;
    let edges = (0..=count / limit).map(|edge| edge * limit).chain([count]);
    let mut ranges: Vec<Range<usize>> = edges
        .map(|edge| edge.saturating_sub(5)..(edge + 5).min(count))
        .collect();
    let mut rng = Rng::new(seed());
    ranges.extend((0..600).map(|_| {
        let start = rng.below(count);
        start..(start + 3).min(count)
    }));
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// Reads samples and asks whether each, by its index, is right.
fn check<T: Number>(story: &str, tensor: &Tensor, right: impl Fn(usize, T) -> bool) -> Result<()> {
    // What is computed of transposed ones alone lies as they do.
    let count = tensor.elements();
    let flat = tensor.contiguous()?.reshape([count])?;
    for range in samples(tensor.device(), count, size_of::<T>()) {
        let got = flat.slice(range.clone())?.to_vec::<T>()?;
        for (at, got) in range.zip(got) {
            let size = (tensor.elements() * size_of::<T>()) >> 20;
            assert!(
                right(at, got),
                "{story}, {size} MiB: element {at} is {got:?}"
            );
        }
    }
    Ok(())
}

/// A matrix whose element at (row, column) is known.
struct Known<T> {
    tensor: Tensor,
    value: fn(usize, usize, usize) -> T,
}

fn run(op: Arithmetic, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match op {
        Arithmetic::Add => a.add(b),
        Arithmetic::Sub => a.sub(b),
        Arithmetic::Mul => a.mul(b),
        Arithmetic::Div => a.div(b),
    }
}

/// Pairs of operands of `[rows, COLUMNS]` in every way that they can lie.
fn pairs<T: Number>(device: &Device, rows: usize, ops: &[Arithmetic]) -> Result<()> {
    let whole = Known::<T> {
        tensor: made::<T>(device, [rows, COLUMNS], 1)?,
        value: |_, row, column| number(row * COLUMNS + column, 1),
    };
    let other = Known::<T> {
        tensor: made::<T>(device, [rows, COLUMNS], 2)?,
        value: |_, row, column| number(row * COLUMNS + column, 2),
    };
    let turned = Known::<T> {
        tensor: other.tensor.reshape([COLUMNS, rows])?.transpose(0, 1)?,
        value: |rows, row, column| number(column * rows + row, 2),
    };
    let a_row = Known::<T> {
        tensor: made::<T>(device, [1, COLUMNS], 3)?,
        value: |_, _, column| number(column, 3),
    };
    let a_column = Known::<T> {
        tensor: made::<T>(device, [rows, 1], 4)?,
        value: |_, row, _| number(row, 4),
    };
    let pairs = [
        ("contiguous", &whole, &other),
        ("transposed", &whole, &turned),
        ("both transposed", &turned, &turned),
        ("with a row", &a_row, &whole),
        ("with a column", &whole, &a_column),
        ("transposed with a column", &a_column, &turned),
        ("row and column", &a_row, &a_column),
    ];
    for (at, (story, a, b)) in pairs.into_iter().enumerate() {
        // Each op on contiguous operands, the others in turn.
        let some = if at == 0 {
            ops
        } else {
            &ops[at % ops.len()..][..1]
        };
        for &op in some {
            let result = run(op, &a.tensor, &b.tensor)?;
            assert_eq!(result.device(), device);
            check::<T>(&format!("{op:?} {story}"), &result, |at, got| {
                let (row, column) = (at / COLUMNS, at % COLUMNS);
                let (x, y) = ((a.value)(rows, row, column), (b.value)(rows, row, column));
                T::is_right(op, x, y, got, false)
            })?;
        }
    }
    Ok(())
}

fn arithmetic(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        pairs::<f32>(device, rows::<f32>(bytes), &Arithmetic::ALL)
    })
}

/// The other dtypes, at the first size.
fn dtypes(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        if !is_first(bytes) {
            return Ok(());
        }
        let has = |dtype| device.capabilities().computes(dtype);
        if has(DType::F16) {
            pairs::<f16>(device, rows::<f16>(bytes), &[Arithmetic::Sub])?;
        }
        if has(DType::F64) {
            pairs::<f64>(device, rows::<f64>(bytes), &[Arithmetic::Div])?;
        }
        pairs::<i32>(device, rows::<i32>(bytes), &[Arithmetic::Mul])?;
        pairs::<u32>(device, rows::<u32>(bytes), &[Arithmetic::Div])
    })
}

/// Both operands in one storage: the same bytes, bytes that overlap, bytes far apart.
fn shared_storage(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        let rows = rows::<f32>(bytes);
        let whole = made::<f32>(device, [rows, COLUMNS], 5)?;
        let value = |at| number::<f32>(at, 5);
        check::<f32>("with itself", &whole.add(&whole)?, |at, got| {
            got == 2.0 * value(at)
        })?;
        let turned = whole.reshape([COLUMNS, rows])?.transpose(0, 1)?;
        check::<f32>("with itself transposed", &whole.sub(&turned)?, |at, got| {
            got == value(at) - value(at % COLUMNS * rows + at / COLUMNS)
        })?;
        let count = rows * COLUMNS;
        let flat = whole.reshape([count])?;
        for step in [1, 4, 1000, 3 << 20, count / 2] {
            let moved = flat.slice(..count - step)?.sub(&flat.slice(step..)?)?;
            check::<f32>(&format!("moved by {step}"), &moved, |at, got| {
                got == value(at) - value(at + step)
            })?;
        }
        let one = flat.slice(count - 1..)?;
        check::<f32>("with its last element", &flat.mul(&one)?, |at, got| {
            got == value(at) * value(count - 1)
        })
    })
}

fn copies_of<T: Number>(device: &Device, bytes: usize) -> Result<()> {
    let rows = rows::<T>(bytes);
    let whole = made::<T>(device, [rows, COLUMNS], 6)?;
    let is = |at, got: T| number::<T>(at, 6).bits() == got.bits();
    check::<T>("copy", &whole.copy()?, is)?;
    let turned = whole.transpose(0, 1)?;
    let turn = |at: usize| at % rows * COLUMNS + at / rows;
    check::<T>("transposed", &turned.contiguous()?, |at, got| {
        is(turn(at), got)
    })?;
    check::<T>("reshaped", &turned.reshape([-1])?, |at, got| {
        is(turn(at), got)
    })?;
    // Rows of a length that no vector divides, from an odd place.
    let cut = whole.slice((1.., 3..COLUMNS - 2))?;
    let width = COLUMNS - 5;
    check::<T>("cut", &cut.copy()?, |at, got| {
        is((1 + at / width) * COLUMNS + 3 + at % width, got)
    })?;
    // Four dimensions that do not merge.
    let quarters = whole.reshape([4, 1024, rows / 4, 4].map(|size| size as i64))?;
    let permuted = quarters.permute(&[2, 0, 3, 1])?;
    check::<T>("permuted", &permuted.copy()?, |at, got| {
        let (d, at) = (at % 1024, at / 1024);
        let (c, at) = (at % 4, at / 4);
        let (b, a) = (at % 4, at / 4);
        is(((b * 1024 + d) * (rows / 4) + a) * 4 + c, got)
    })?;
    let repeated = whole.slice(7..8)?.broadcast_to([rows, COLUMNS])?;
    check::<T>("one row repeated", &repeated.copy()?, |at, got| {
        is(7 * COLUMNS + at % COLUMNS, got)
    })?;
    // A thin strided view of all of it.
    let column = whole.slice((.., 5..6))?.to_vec::<T>()?;
    assert!(
        column
            .iter()
            .enumerate()
            .all(|(row, &got)| is(row * COLUMNS + 5, got))
    );
    Ok(())
}

fn copies(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        // Whole rows in four.
        let bytes = bytes.next_multiple_of(4 * 8 * COLUMNS);
        let capabilities = device.capabilities();
        copies_of::<f32>(device, bytes)?;
        if !is_first(bytes) {
            return Ok(());
        }
        if capabilities.computes(DType::F16) {
            copies_of::<f16>(device, bytes)?;
        }
        if capabilities.computes(DType::F64) {
            copies_of::<f64>(device, bytes)?;
        }
        Ok(())
    })
}

fn cast<A: Number, B: Number>(device: &Device, bytes: usize) -> Result<()> {
    let capabilities = device.capabilities();
    if !capabilities.computes(A::DTYPE) || !capabilities.computes(B::DTYPE) {
        return Ok(());
    }
    // The larger of both has the size.
    let rows = bytes / COLUMNS / size_of::<A>().max(size_of::<B>()) + 1;
    let whole = made::<A>(device, [rows, COLUMNS], 7)?;
    let story = |how| format!("{} to {}, {how}", A::DTYPE, B::DTYPE);
    let is = |at, got: B| number::<B>(at, 7).bits() == got.bits();
    check::<B>(&story("contiguous"), &whole.cast(B::DTYPE)?, is)?;
    let turned = whole.reshape([COLUMNS, rows])?.transpose(0, 1)?;
    check::<B>(&story("transposed"), &turned.cast(B::DTYPE)?, |at, got| {
        is(at % COLUMNS * rows + at / COLUMNS, got)
    })?;
    let repeated = whole.slice(..1)?.broadcast_to([rows, COLUMNS])?;
    check::<B>(&story("repeated"), &repeated.cast(B::DTYPE)?, |at, got| {
        is(at % COLUMNS, got)
    })
}

fn casts(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        cast::<f32, f16>(device, bytes)?;
        if is_first(bytes) {
            cast::<f16, f32>(device, bytes)?;
            cast::<f32, i32>(device, bytes)?;
            cast::<u32, f32>(device, bytes)?;
            cast::<f64, f16>(device, bytes)?;
            cast::<i32, f64>(device, bytes)?;
        }
        Ok(())
    })
}

fn fills_of<T: Number>(device: &Device, bytes: usize) -> Result<()> {
    let rows = rows::<T>(bytes);
    let value = |x| T::from_value(Value::Integer(x)).bits();
    let whole = Tensor::full(device, [rows, COLUMNS], 3, T::DTYPE)?;
    check::<T>("full", &whole, |_, got| got.bits() == value(3))?;
    whole.fill(4)?;
    check::<T>("fill", &whole, |_, got| got.bits() == value(4))?;
    // Through offsets and strides; what is beside stays.
    let count = rows * COLUMNS;
    whole.reshape([count])?.slice(1..count - 1)?.fill(5)?;
    whole.slice((.., 9..12))?.transpose(0, 1)?.fill(6)?;
    check::<T>("fill of views", &whole, |at, got| {
        let want = match (at, at % COLUMNS) {
            (_, 9..12) => 6,
            (0, _) => 4,
            (at, _) if at == count - 1 => 4,
            _ => 5,
        };
        got.bits() == value(want)
    })
}

fn fills(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        fills_of::<f32>(device, bytes)?;
        if device.capabilities().computes(DType::F64) && is_first(bytes) {
            fills_of::<f64>(device, bytes)?;
        }
        if device.capabilities().computes(DType::F16) || is_first(bytes) {
            // Without f16 in kernels neighbours that share words are kept by bits.
            fills_of::<f16>(device, bytes)?;
        }
        Ok(())
    })
}

fn new_tensors(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        let count = bytes / 4 + 3;
        // What was there before would show.
        drop(Tensor::full(device, count, 99, DType::U32)?);
        check::<u32>(
            "zeros",
            &Tensor::zeros(device, count, DType::U32)?,
            |_, got| got == 0,
        )?;
        check::<f32>(
            "ones",
            &Tensor::ones(device, count, DType::F32)?,
            |_, got| got == 1.0,
        )?;
        let halves = Tensor::ones(device, 2 * count + 1, DType::F16)?;
        check::<f16>("ones", &halves, |_, got| got == f16::ONE)?;
        drop(halves);
        assert_eq!(Tensor::empty(device, count, DType::F32)?.elements(), count);
        let range = Tensor::arange(device, 7, (count + 7) as i64, 1, DType::U32)?;
        check::<u32>("arange", &range, |at, got| got as usize == at + 7)
    })
}

/// The CPU makes the same numbers, in one piece.
fn random_numbers(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        let cpu = Device::builder().select("cpu").build()?;
        for dtype in [DType::F32, DType::F16, DType::F64] {
            let runs = dtype == DType::F32 || is_first(bytes);
            if !runs || !device.capabilities().computes(dtype) {
                continue;
            }
            let count = bytes / dtype.size() + 1;
            let (got, want) = (
                Tensor::rand(device, count, dtype, 11)?,
                Tensor::rand(&cpu, count, dtype, 11)?,
            );
            same_samples(&got, &want, 0.0)?;
            drop((got, want));
            if !is_first(bytes) {
                continue;
            }
            // In f64 made on the CPU, and moved.
            let (got, want) = (
                Tensor::randn(device, count, dtype, 12)?,
                Tensor::randn(&cpu, count, dtype, 12)?,
            );
            assert_eq!(got.device(), device);
            let bound = if dtype == DType::F16 { 2e-3 } else { 1e-6 };
            same_samples(&got, &want, bound)?;
        }
        Ok(())
    })
}

/// Two tensors hold the same samples within `bound * max(1, |x|)`.
fn same_samples(got: &Tensor, want: &Tensor, bound: f64) -> Result<()> {
    for range in samples(got.device(), got.elements(), got.dtype().size()) {
        let read = |tensor: &Tensor| {
            let piece = tensor.slice(range.clone())?.to(&Device::cpu())?;
            piece.cast(DType::F64)?.to_vec::<f64>()
        };
        for (got, want) in read(got)?.into_iter().zip(read(want)?) {
            let error = (got - want).abs();
            assert!(
                error <= bound * want.abs().max(1.0),
                "{range:?}: {got}, not {want}"
            );
        }
    }
    Ok(())
}

/// Copies need no binding.
fn transfers(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        let count = bytes / 4 + 1;
        let table: Vec<u32> = (0..count).map(|at| hash(at, 8) as u32).collect();
        let tensor = Tensor::from_slice(device, &table, count)?;
        check::<u32>("from_slice", &tensor, |at, got| got == table[at])?;
        assert!(tensor.to_vec::<u32>()? == table, "to_vec");
        let cpu = tensor.to(&Device::cpu())?;
        assert_eq!(cpu.slice(count - 1..)?.item::<u32>()?, table[count - 1]);
        let back = cpu.slice(3..)?.to(device)?;
        check::<u32>("to and back", &back, |at, got| got == table[at + 3])?;
        drop((cpu, back));
        if is_first(bytes) {
            let mut place = vec![0u32; count];
            tensor.read_into(&mut place)?;
            assert!(place == table, "read_into");
            let future = tensor.to_vec_async::<u32>();
            assert!(pollster::block_on(future)? == table, "to_vec_async");
        }
        Ok(())
    })
}

/// Operands that travel, and strided views that travel with their span.
fn other_devices(context: &Context) -> Result<()> {
    for_each_size(context, |device, bytes| {
        let rows = rows::<f32>(bytes);
        let here = made::<f32>(device, [rows, COLUMNS], 1)?;
        let there = made::<f32>(&Device::cpu(), [COLUMNS, rows], 2)?;
        let sum = here.add(&there.transpose(0, 1)?)?;
        assert_eq!(sum.device(), device);
        check::<f32>("mixed", &sum, |at, got| {
            got == number::<f32>(at, 1) + number::<f32>(at % COLUMNS * rows + at / COLUMNS, 2)
        })
    })
}

/// Above the largest buffer every way to make a tensor is refused before anything happens.
fn too_large(context: &Context) -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = &context.open();
    let limit = device.capabilities().max_buffer_bytes;
    if limit > 1 << 40 {
        return Ok(());
    }
    let side = (limit as f64 / 4.0).sqrt() as usize + 2;
    let count = side * side;
    let row = &made::<f32>(device, [1, side], 1)?;
    let column = &row.transpose(0, 1)?;
    let wide = &row.broadcast_to([side, side])?;
    let halves = &row.cast(DType::F16)?.broadcast_to([side, side])?;
    let far = &Tensor::empty(&Device::builder().select("cpu").build()?, count, DType::F32)?;
    device.synchronize()?;
    let before = device.memory();
    let calls: &[(&str, &dyn Fn() -> Result<Tensor>)] = &[
        ("empty", &|| Tensor::empty(device, count, DType::F32)),
        ("zeros", &|| Tensor::zeros(device, count, DType::F32)),
        ("ones", &|| Tensor::ones(device, [side, side], DType::I32)),
        ("full", &|| Tensor::full(device, 2 * count, 7, DType::F16)),
        ("rand", &|| Tensor::rand(device, count, DType::F32, 1)),
        ("randn", &|| Tensor::randn(device, count, DType::F32, 1)),
        ("arange", &|| {
            Tensor::arange(device, 0, count as i64, 1, DType::U32)
        }),
        ("add", &|| row.add(column)),
        ("sub", &|| row.sub(wide)),
        ("mul", &|| wide.mul(wide)),
        ("div", &|| column.div(row)),
        ("copy", &|| wide.copy()),
        ("contiguous", &|| wide.contiguous()),
        ("reshape", &|| wide.reshape([count])),
        ("cast", &|| halves.cast(DType::F32)),
        ("matmul", &|| column.matmul(row)),
        ("to", &|| far.to(device)),
        ("add", &|| far.add(&row.slice((.., ..1))?.reshape([1])?)),
        ("to_vec", &|| wide.to_vec::<f32>().map(|_| wide.clone())),
    ];
    // Made on the CPU where WGSL lacks something, unless it could not return.
    let doubles = || Tensor::randn(device, count / 2 + 1, DType::F64, 1);
    let wide_calls: &[(&str, &dyn Fn() -> Result<Tensor>)] = &[("randn", &doubles)];
    let holds = device.capabilities().holds(DType::F64);
    let more = if holds { wide_calls } else { &[] };
    for &(name, call) in calls.iter().chain(more) {
        match call() {
            Err(Error::TooLarge(error)) => assert_eq!(error.op, name, "{error}"),
            other => panic!("{name} gave {other:?}"),
        }
        assert_eq!(device.memory(), before, "{name}");
    }
    // The device works on.
    check::<f32>("after", &row.add(row)?, |at, got| {
        got == 2.0 * number::<f32>(at, 1)
    })
}
