//! Every kernel for matrix products that the adapter can run, forced by name, of every dtype, in every way that operands
//! lie, against sums in f64 or better.

use orlop::{DType, Device, MatmulKernel, Result, Tensor, bf16, f16, with_matmul_kernel};

use crate::adapters::{Context, full};
use crate::grid::Grid;
use crate::kernels::{Matrix, check, runs};
use crate::number::Number;
use crate::operand::Operand;
use crate::products::{self, Factor};
use crate::rng::{Rng, cases, seed};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("forced::f32", Scope::Gpu, singles),
        Test::new("forced::i32", Scope::Gpu, others::<i32>),
        Test::new("forced::u32", Scope::Gpu, others::<u32>),
        Test::new("forced::f16", Scope::Gpu, others::<f16>),
        Test::new("forced::bf16", Scope::Gpu, others::<bf16>),
        Test::new("forced::f64", Scope::Gpu, others::<f64>)
            .when(|context| context.adapter.info.capabilities.f64),
    ]
}

/// How both operands lie: 0 by rows, 1 by columns, 2 as a slice of more, which spoils vectors.
const WAYS: [[usize; 2]; 6] = [[0, 0], [1, 1], [2, 1], [1, 2], [0, 1], [1, 0]];

/// The kernels that an adapter would choose, as their names begin, and its turn among the adapters.
fn own(context: &Context) -> Option<(&'static [&'static str], usize)> {
    match context.adapter.name.as_str() {
        "lavapipe" => Some((&["subgroup", "wide", "texel", "vector_tile 64"], 0)),
        "swiftshader" => Some((&["subgroup", "quad", "vector_tile 64"], 1)),
        "gl" => Some((&["register", "vector_tile 64"], 2)),
        _ => None,
    }
}

/// Compilers of software adapters take up to seconds for each way in which operands of a kernel lie: a kernel that an
/// adapter would not choose meets one of them by its turn, in some of the ways.
pub fn turn_of(context: &Context, nth: usize, kernel: MatmulKernel) -> Option<usize> {
    let (own, at) = own(context)?;
    let name = kernel.to_string();
    let is_own = own.iter().any(|own| name.starts_with(own));
    (!is_own && !full()).then_some(nth + at)
}

/// Whether a kernel that this adapter would not choose meets another one.
pub fn is_anothers(turn: Option<usize>) -> bool {
    turn.is_some_and(|turn| !turn.is_multiple_of(3))
}

/// Edges of tiles, primes, one row, one column, batches, every way to lie.
fn singles(context: &Context) -> Result<()> {
    if context.is_cpu() {
        return Ok(());
    }
    let device = context.device();
    cases(1, |rng| {
        for (nth, &kernel) in MatmulKernel::all().iter().enumerate() {
            let mut ran = 0;
            let turn = turn_of(context, nth, kernel);
            let shapes: [Sizes<'_>; 13] = [
                (&[1], &[1], [1, 1, 1]),
                (&[1], &[1], [67, 35, 131]),
                // Several groups of columns a tile, few rows of it.
                (&[2], &[2], [6, 64, 200]),
                (&[2], &[2], [64, 64, 64]),
                // Batches that repeat on both sides, and do not merge.
                (&[2, 1], &[3], [20, 36, 28]),
                (&[1], &[1], [33, 7, 65]),
                (&[1], &[1], [257, 40, 1]),
                (&[2], &[2], [72, 136, 1]),
                (&[1], &[1], [1, 44, 648]),
                (&[1], &[1], [1, 129, 300]),
                (&[3], &[3], [24, 16, 40]),
                (&[1], &[1], [20, 3000, 24]),
                // More steps than llvmpipe turns a loop.
                (&[1], &[1], [5, 70_000, 7]),
            ];
            for (at, (left, right, [m, k, n])) in shapes.into_iter().enumerate() {
                if context.is_slow() && !full() && m * k * n > 100_000 {
                    continue;
                }
                for (way, ways) in WAYS.into_iter().enumerate() {
                    let is_left_out = match turn {
                        // Two of the ways on one of three adapters, by turns, with every other shape.
                        Some(_) => {
                            is_anothers(turn)
                                || !(nth / 3 + way).is_multiple_of(3)
                                || !(at + way / 3 + nth / 9).is_multiple_of(2)
                        }
                        None => {
                            at != 4
                                && !(nth + at + way).is_multiple_of(3)
                                && context.shares_kernels()
                        }
                    };
                    // A kernel of its own each, which other dtypes meet too: in one way.
                    let is_left_out = is_left_out
                        || at == 4 && way != (nth + 1) % WAYS.len() && context.shares_kernels();
                    let rare = if context.shares_kernels() { 5 } else { 3 };
                    if is_left_out || (at > 3 && !full() && !rng.one_in(rare)) {
                        continue;
                    }
                    let a = Matrix::new(device, rng, [left.iter().product(), m, k], ways[0])?;
                    let b = Matrix::new(device, rng, [right.iter().product(), k, n], ways[1])?;
                    let of = |batch: &[usize], size: [usize; 2]| [batch, &size[..]].concat();
                    let (of_a, of_b) = (of(left, [m, k]), of(right, [k, n]));
                    let (x, y) = (a.tensor.reshape(&of_a[..])?, b.tensor.reshape(&of_b[..])?);
                    let Some(product) = runs(kernel, &x, &y)? else {
                        continue;
                    };
                    ran += 1;
                    let story = || format!("{kernel}: {of_a:?} x {of_b:?}, ways {ways:?}");
                    // As many matrices as come out.
                    let batch = crate::grid::broadcast_shapes(left, right);
                    let each = |host: &[f32], from: &[usize], size: [usize; 2]| {
                        let whole = Grid::whole(&of(from, size));
                        whole.broadcast(&of(&batch, size)).of(host)
                    };
                    let (left, right) = (each(&a.host, left, [m, k]), each(&b.host, right, [k, n]));
                    let c = product.to_vec::<f32>()?;
                    let batch = batch.iter().product();
                    check(&left, &right, &c, [batch, m, k, n], &story);
                }
            }
            // Where no shape fits it one product still; lavapipe, which runs what the others lack limits for, makes one
            // also where it is another's turn.
            if ran == 0 && !(is_anothers(turn) && context.is_slow()) {
                ran += usize::from(once::<f32>(device, rng, kernel, None)?);
            }
            if std::env::var_os("ORLOP_TEST_VERBOSE").is_some() {
                println!("{kernel}: {ran} products");
            }
        }
        Ok(())
    })
}

/// The edges of a kernel's tiles as its name has them; of a matrix times a vector one column.
fn tile(kernel: MatmulKernel) -> [usize; 2] {
    let name = kernel.to_string();
    let sizes = name.split(' ').nth(1).expect("a name and a tile");
    let mut sizes = sizes.split('x').map(|size| size.parse().expect("a size"));
    [sizes.next().expect("rows"), sizes.next().unwrap_or(1)]
}

/// The dtypes beside f32 that a kernel has forms for.
pub fn dtypes(kernel: MatmulKernel, context: &Context) -> Vec<DType> {
    let name = kernel.to_string();
    let kind = name.split('_').next().unwrap_or_default();
    let all = [DType::I32, DType::F16, DType::U32, DType::BF16, DType::F64];
    let has = |dtype: DType| match kind {
        "texel" => false,
        "wide" | "quad" => dtype.size() == 4,
        "cooperative" => dtype == DType::F16,
        "subgroup" => dtype != DType::F64,
        "workgroup" => dtype != DType::F64 || !name.ends_with("8x8"),
        _ => true,
    };
    let is_there = |dtype| dtype != DType::F64 || context.adapter.info.capabilities.f64;
    all.into_iter()
        .filter(|&dtype| has(dtype) && is_there(dtype))
        .collect()
}

/// A tensor that lies in one of [`WAYS`].
fn lying<T: Number>(
    device: &Device,
    rng: &mut Rng,
    shape: &[usize],
    way: usize,
) -> Result<Operand<T>> {
    let [first, second] = [shape.len() - 2, shape.len() - 1];
    let mut stored = shape.to_vec();
    match way {
        0 => Operand::random(device, rng, shape),
        1 => {
            stored.swap(first, second);
            Operand::random(device, rng, &stored)?.transpose(first, second)
        }
        _ => {
            let mut ranges: Vec<_> = shape.iter().map(|&size| 0..size).collect();
            for axis in [first, second] {
                stored[axis] += 3;
                ranges[axis] = 3..stored[axis];
            }
            Operand::random(device, rng, &stored)?.slice(&ranges)
        }
    }
}

/// The batches of both operands, and m, k, n.
type Sizes<'a> = (&'a [usize], &'a [usize], [usize; 3]);

/// A product so many rows and columns beyond the kernel's tile, or less; of kernels for vectors of one column.
fn around(kernel: MatmulKernel, by: isize, k: usize) -> [usize; 3] {
    let [m, n] = tile(kernel).map(|size| size.saturating_add_signed(by).max(1));
    match kernel.to_string().contains("vector") {
        true => [m, k, 1],
        false => [m, k, n],
    }
}

/// Of a dtype beside f32: one below, at and one above the edges of the kernel's tile, with batches that repeat on either
/// side and on both. In full every kernel in every way; else each in one of them, and software adapters share out the
/// dtypes of each kernel, and try half of their own kernels and few of the others: each takes a compiler seconds.
fn others<T: Factor>(context: &Context) -> Result<()> {
    if context.is_cpu() {
        return Ok(());
    }
    let device = context.device();
    let turn = (seed() % 1000) as usize + own(context).map_or(0, |(_, at)| at);
    let mut ran = 0;
    cases(1, |rng| {
        for (nth, &kernel) in MatmulKernel::all().iter().enumerate() {
            let dtypes = dtypes(kernel, context);
            let Some(at) = dtypes.iter().position(|&dtype| dtype == T::DTYPE) else {
                is_refused::<T>(device, kernel, &[NO_FORM])?;
                continue;
            };
            let rare = match turn_of(context, nth, kernel) {
                Some(_) => 8,
                None => 2,
            };
            let is_tried =
                (nth + turn).is_multiple_of(rare) && at == (nth / 2 + turn) % dtypes.len();
            if context.shares_kernels() && !is_tried {
                continue;
            }
            let shapes: [Sizes<'_>; 3] = [
                (&[], &[], around(kernel, 1, 33)),
                (&[2, 1], &[3], around(kernel, -1, 20)),
                (&[1], &[2], around(kernel, 0, 32)),
            ];
            let first = nth + at + turn;
            let of_all = if full() { WAYS.len() } else { 1 };
            for way in first..first + of_all {
                let product = (WAYS[way % WAYS.len()], shapes[way % shapes.len()]);
                ran += usize::from(once::<T>(device, rng, kernel, Some(product))?);
            }
        }
        if ran == 0 {
            // No kernel had its turn with this dtype: one that every adapter has.
            let kernel: MatmulKernel = "flat_tile 4x4".parse()?;
            ran += usize::from(once::<T>(device, rng, kernel, None)?);
        }
        Ok(())
    })?;
    assert!(ran > 0, "no kernel ran");
    if std::env::var_os("ORLOP_TEST_VERBOSE").is_some() {
        println!("{} on {}: {ran} products", T::DTYPE, context.adapter.name);
    }
    Ok(())
}

/// A product by the kernel: this one, or, where it takes whole vectors alone, of those. False where the adapter has no
/// such kernel.
fn once<T: Factor>(
    device: &Device,
    rng: &mut Rng,
    kernel: MatmulKernel,
    product: Option<([usize; 2], Sizes<'_>)>,
) -> Result<bool> {
    let whole: Sizes<'_> = (&[1], &[2], around(kernel, 0, 32));
    let tried = product
        .into_iter()
        .chain([([0, 1], whole), ([1, 0], whole)]);
    for (ways, sizes) in tried {
        if one::<T>(device, rng, kernel, ways, sizes)? {
            return Ok(true);
        }
    }
    // Of f32 nothing is said beforehand.
    let reasons = match T::DTYPE {
        DType::F32 => &NOT_THERE[..],
        _ => &NOT_THERE[..2],
    };
    is_refused::<T>(device, kernel, reasons)?;
    Ok(false)
}

/// Whether the kernel runs: then its product is right.
fn one<T: Factor>(
    device: &Device,
    rng: &mut Rng,
    kernel: MatmulKernel,
    ways: [usize; 2],
    (left, right, [m, k, n]): Sizes<'_>,
) -> Result<bool> {
    let a = lying::<T>(device, rng, &[left, &[m, k]].concat(), ways[0])?;
    let b = lying::<T>(device, rng, &[right, &[k, n]].concat(), ways[1])?;
    let Some(product) = runs(kernel, &a.tensor, &b.tensor)? else {
        return Ok(false);
    };
    // Of the largest tiles some entries, of all rows and columns.
    let every = if m * n > 10_000 { 7 } else { 1 };
    products::check(&a, &b, &product.to_vec::<T>()?, every).unwrap_or_else(|problem| {
        let dtype = T::DTYPE;
        panic!("{kernel}, {dtype}, {left:?} x {right:?}, ways {ways:?}: {problem}")
    });
    Ok(true)
}

const NO_FORM: &str = "has no form for";
/// What is said of a kernel that no product runs on a device.
pub const NOT_THERE: [&str; 3] = ["the adapter cannot run it", "was opened without", NO_FORM];

/// A kernel that did not run says why: one of these reasons, and nothing about a shape.
fn is_refused<T: Factor>(device: &Device, kernel: MatmulKernel, reasons: &[&str]) -> Result<()> {
    let ones = Tensor::ones(device, [1, 1], T::DTYPE)?;
    let refused = with_matmul_kernel(kernel, || ones.matmul(&ones));
    let error = refused.expect_err("it takes the dtype").to_string();
    let is_known = reasons.iter().any(|&reason| error.contains(reason));
    assert!(is_known, "{error}");
    Ok(())
}
