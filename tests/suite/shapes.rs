//! Ops that put elements elsewhere: concat, stack, split, pad, triangles, one-hot rows. Each against
//! loops over indices of its own.

use orlop::{DType, Error, Result, Tensor};

use crate::adapters::Context;
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::{Operand, same};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("shapes::splits", Scope::Device, splits),
        Test::new("shapes::errors", Scope::Device, errors),
        Test::new("shapes::far_rows", Scope::Device, far_rows),
        Test::new("shapes::overflows", Scope::Device, overflows),
        Test::new("shapes::edges", Scope::Device, edges),
        Test::new(
            "shapes::short_rows::bool",
            Scope::Device,
            short_rows::<bool>,
        ),
        Test::new("shapes::short_rows::f32", Scope::Device, short_rows::<f32>),
    ];
    for_each_dtype!(all, Scope::Kernels, "shapes::concat", concat);
    for_each_dtype!(all, Scope::Kernels, "shapes::pad", pad);
    for_each_dtype!(all, Scope::Kernels, "shapes::triangles", triangles);
    for_each_dtype!(all, Scope::Kernels, "shapes::one_hot", one_hot);
    for (name, body) in [
        (
            "shapes::concat::bool",
            concat::<bool> as fn(&Context) -> Result<()>,
        ),
        ("shapes::pad::bool", pad::<bool>),
        ("shapes::triangles::bool", triangles::<bool>),
        ("shapes::one_hot::bool", one_hot::<bool>),
    ] {
        all.push(Test::new(name, Scope::Kernels, body));
    }
    all
}

fn some_shape(context: &Context, rng: &mut Rng, least: usize) -> Vec<usize> {
    loop {
        let shape = context.shape(rng, 5, 1500);
        if shape.len() >= least {
            return shape;
        }
    }
}

/// All indices of a shape, row-major.
fn each(shape: &[usize], mut work: impl FnMut(&[usize])) {
    let count = shape.iter().product::<usize>();
    let mut index = vec![0; shape.len()];
    for mut rest in 0..count {
        for (at, &size) in index.iter_mut().zip(shape).rev() {
            *at = rest % size;
            rest /= size;
        }
        work(&index);
    }
}

fn flat(shape: &[usize], index: &[usize]) -> usize {
    let sizes = index.iter().zip(shape);
    sizes.fold(0, |at, (&i, &size)| at * size + i)
}

fn zero<T: Number>() -> T {
    T::from_value(Value::Integer(0))
}

/// Moving bits needs no dtype in kernels.
fn stays(context: &Context, result: &Tensor) {
    if context.device().capabilities().holds(result.dtype()) {
        assert_eq!(result.device(), context.device());
        let ours = ["concat", "pad", "tril", "triu", "one_hot"];
        let events = context.device().placement_log().events;
        let moved = events
            .iter()
            .find(|event| ours.contains(&event.op) && !event.reason.contains("f64"));
        assert!(moved.is_none(), "{moved:?}");
    }
}

fn concat<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(50), |rng| {
        let shape = some_shape(context, rng, 1);
        let axis = rng.below(shape.len());
        let mut parts: Vec<Operand<T>> = Vec::new();
        let mut total = 0;
        for _ in 0..rng.between(1, 4) {
            let mut sizes = shape.clone();
            if rng.one_in(2) {
                sizes[axis] = rng.below(7);
            }
            if !parts.is_empty() && rng.one_in(6) {
                parts.push(parts[0].clone());
            } else {
                parts.push(Operand::random_view(context.device(), rng, &sizes)?);
            }
            total += parts[parts.len() - 1].shape()[axis];
        }
        let tensors: Vec<&Tensor> = parts.iter().map(|part| &part.tensor).collect();
        let result = Tensor::concat(&tensors, axis)?;
        let mut whole = shape.clone();
        whole[axis] = total;
        let values: Vec<Vec<T>> = parts.iter().map(Operand::values).collect();
        let mut want = Vec::new();
        each(&whole, |index| {
            let (mut index, mut part) = (index.to_vec(), 0);
            while index[axis] >= parts[part].shape()[axis] {
                index[axis] -= parts[part].shape()[axis];
                part += 1;
            }
            want.push(values[part][flat(parts[part].shape(), &index)]);
        });
        assert_eq!(result.shape().dims(), whole);
        assert!(result.is_contiguous());
        stays(context, &result);
        same(&result, &want)?;
        // Side by side, and back.
        let rows = Tensor::stack(&[tensors[0], tensors[0]], axis)?;
        assert_eq!(rows.shape()[axis], 2);
        for row in rows.split(axis, &[1, 1])? {
            same(&row.squeeze(axis)?, &values[0])?;
        }
        let sizes: Vec<usize> = parts.iter().map(|part| part.shape()[axis]).collect();
        for (part, want) in result.split(axis, &sizes)?.iter().zip(&values) {
            same(part, want)?;
        }
        Ok(())
    })
}

fn pad<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(60), |rng| {
        let shape = some_shape(context, rng, 0);
        let input = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let few = rng.one_in(2);
        let mut width = || match few && !rng.one_in(3) {
            true => 0,
            false => *rng.pick(&[0, 1, 2, 3, 4, 8]),
        };
        let widths: Vec<(usize, usize)> = shape.iter().map(|_| (width(), width())).collect();
        let value = rng.below(if T::DTYPE == DType::Bool { 2 } else { 5 }) as i64;
        let sizes = shape.iter().zip(&widths);
        let sizes: Vec<usize> = sizes.map(|(&size, &(a, b))| a + size + b).collect();
        let result = input.tensor.pad(&widths, value)?;
        assert_eq!(result.shape().dims(), sizes);
        let values = input.values();
        let mut want = Vec::new();
        each(&sizes, |index| {
            let inner: Option<Vec<usize>> = (0..shape.len())
                .map(|axis| {
                    index[axis]
                        .checked_sub(widths[axis].0)
                        .filter(|&i| i < shape[axis])
                })
                .collect();
            want.push(match inner {
                Some(inner) => values[flat(&shape, &inner)],
                None => T::from_value(Value::Integer(value)),
            });
        });
        stays(context, &result);
        same(&result, &want)
    })
}

/// A row alone reaches further than a binding.
fn far_rows(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(64 << 10).build()?;
    let [rows, columns] = [4000, 300];
    let stored: Vec<i32> = (0..rows as i32 * columns as i32).collect();
    let turned = Tensor::from_slice(&device, &stored, [columns, rows])?.transpose(0, 1)?;
    let at = |row: usize, column: usize| stored[column * rows + row];
    let mut lower = Vec::new();
    for row in 0..rows {
        let kept = |column: usize| {
            if column <= row + 2 {
                at(row, column)
            } else {
                0
            }
        };
        lower.extend((0..columns).map(kept));
    }
    same(&turned.tril(2)?, &lower)?;
    let mut padded = vec![-7; columns + 2];
    for row in 0..rows {
        padded.extend((0..columns).map(|column| at(row, column)));
        padded.extend([-7; 2]);
    }
    same(&turned.pad(&[(1, 0), (0, 2)], -7)?, &padded)?;
    // Axes between that reach as far, numbers, halves, and what lives elsewhere than where it is needed.
    let cube = turned.reshape([400, 10, 300])?.permute(&[1, 0, 2])?;
    let near = cube.copy()?;
    let widths = [(0, 1), (2, 0), (0, 0)];
    let (far, near_) = (cube.pad(&widths, 3)?, near.pad(&widths, 3)?);
    same(&far, &near_.to_vec::<i32>()?)?;
    same(&cube.triu(-3)?, &near.triu(-3)?.to_vec::<i32>()?)?;
    let few = turned.slice((..200, ..150))?;
    let hot = few.one_hot(3, DType::I32)?.to_vec::<i32>()?;
    let near = few.copy()?.one_hot(3, DType::I32)?;
    same(&near, &hot)?;
    let rows = 1000;
    let halves = turned.slice(..rows)?.cast(DType::BF16)?.copy()?;
    let halves = halves.transpose(0, 1)?.copy()?.transpose(0, 1)?;
    let joined = Tensor::concat(&[&halves, &halves], 0)?;
    let want: Vec<i32> = (0..2 * rows)
        .flat_map(|row| (0..columns).map(move |column| (row % rows, column)))
        .map(|(row, column)| half::bf16::from_f32(at(row, column) as f32).to_f32() as i32)
        .collect();
    same(&joined.cast(DType::I32)?, &want)?;
    let elsewhere = turned.to(&orlop::Device::cpu())?;
    same(&device.scope(|| elsewhere.tril(2))?, &lower)
}

/// Of tensors without elements too.
fn overflows(context: &Context) -> Result<()> {
    let none = Tensor::empty(context.device(), [2, 0], DType::F32)?;
    let padded = none.pad(&[(usize::MAX, 5), (0, 0)], 0.0).unwrap_err();
    assert!(matches!(padded, Error::TooLarge(_)), "{padded}");
    let long = Tensor::empty(context.device(), [isize::MAX as usize, 0], DType::F32)?;
    let joined = Tensor::concat(&[&long, &long], 0).unwrap_err();
    assert!(matches!(joined, Error::TooLarge(_)), "{joined}");
    Ok(())
}

fn triangles<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(50), |rng| {
        let shape = some_shape(context, rng, 2);
        let input = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let diagonal = match rng.below(8) {
            0 => *rng.pick(&[isize::MIN, isize::MAX, 1 << 40, -(1 << 40)]),
            _ => rng.below(13) as isize - 6,
        };
        let values = input.values();
        for lower in [true, false] {
            let result = match lower {
                true => input.tensor.tril(diagonal)?,
                false => input.tensor.triu(diagonal)?,
            };
            let mut want = Vec::new();
            each(&shape, |index| {
                let [.., i, j] = index else { unreachable!() };
                let off = *j as i128 - *i as i128;
                let inside = match lower {
                    true => off <= diagonal as i128,
                    false => off >= diagonal as i128,
                };
                let value = values[flat(&shape, index)];
                want.push(if inside { value } else { zero() });
            });
            assert_eq!(result.shape().dims(), shape);
            stays(context, &result);
            same(&result, &want)?;
        }
        Ok(())
    })
}

fn one_hot<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(40), |rng| {
        let mut shape = some_shape(context, rng, 0);
        shape.truncate(3);
        let classes = rng.between(1, 9);
        let count = shape.iter().product::<usize>();
        let signed = rng.one_in(2);
        let numbers: Vec<i32> = (0..2 * count)
            .map(|_| {
                rng.below(2 * classes + 2) as i32 - if signed { classes as i32 + 1 } else { 0 }
            })
            .collect();
        let device = context.device();
        let pairs: Vec<usize> = shape.iter().copied().chain([2]).collect();
        let base = match signed {
            true => Tensor::from_slice(device, &numbers, &pairs)?,
            false => {
                let numbers: Vec<u32> = numbers.iter().map(|&x| x as u32).collect();
                Tensor::from_slice(device, &numbers, &pairs)?
            }
        };
        let last = shape.len();
        let index = base.split(last, &[1, 1])?[1].squeeze(last)?.clone();
        let result = index.one_hot(classes, T::DTYPE)?;
        let mut want = Vec::new();
        for &number in numbers.iter().skip(1).step_by(2) {
            let class = if number < 0 {
                number + classes as i32
            } else {
                number
            };
            let row = (0..classes as i32).map(|at| i64::from(at == class));
            want.extend(row.map(|one| T::from_value(Value::Integer(one))));
        }
        assert_eq!(result.shape().dims(), [&shape[..], &[classes]].concat());
        stays(context, &result);
        same(&result, &want)
    })
}

/// So many rows of few elements that cores share them, in parts that begin within rows.
fn short_rows<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let count = if context.is_slow() { 700 } else { 7001 };
    cases(1, |rng| {
        for columns in [1, 2, 3, 4, 7, 13] {
            let rows = 3 * count / columns * 4;
            let base = Operand::<T>::random(device, rng, &[rows, columns + 3])?;
            let turned = Operand::<T>::random(device, rng, &[columns, rows])?.transpose(0, 1)?;
            let part = base.slice(&[0..rows, 2..columns + 2])?;
            for x in [&part, &part.flip(&[0, 1])?, &turned, &turned.flip(&[0])?] {
                let values = x.values();
                same(&x.tensor.copy()?, &values)?;
                let both: Vec<T> = values
                    .chunks(columns)
                    .flat_map(|row| [row, row].concat())
                    .collect();
                same(&Tensor::concat(&[&x.tensor, &x.tensor], 1)?, &both)?;
                let one = T::from_value(Value::Integer(1));
                let padded: Vec<T> = values
                    .chunks(columns)
                    .flat_map(|row| [&[one], row, &[one, one]].concat())
                    .collect();
                same(&x.tensor.pad(&[(0, 0), (1, 2)], 1)?, &padded)?;
                let matrices = x.tensor.copy()?.reshape([rows / 4, 4, columns])?;
                let triangle = values.iter().enumerate().map(|(at, &value)| {
                    let (row, column) = (at / columns % 4, at % columns);
                    if column <= row { value } else { zero() }
                });
                same(&matrices.tril(0)?, &triangle.collect::<Vec<_>>())?;
            }
            let of_turned = turned.values();
            let numbers: Vec<u32> = (0..rows).map(|_| rng.below(rows) as u32).collect();
            let taken: Vec<T> = numbers
                .iter()
                .flat_map(|&row| of_turned[row as usize * columns..][..columns].to_vec())
                .collect();
            let index = Tensor::from_slice(device, &numbers, [rows])?;
            same(&turned.tensor.copy()?.index_select(0, &index)?, &taken)?;
            // What is filled, and what lies beside it.
            part.tensor.fill(1)?;
            let mut want = base.values();
            for (at, value) in want.iter_mut().enumerate() {
                if (2..columns + 2).contains(&(at % (columns + 3))) {
                    *value = T::from_value(Value::Integer(1));
                }
            }
            same(&base.tensor, &want)?;
        }
        Ok(())
    })
}

fn splits(context: &Context) -> Result<()> {
    let whole = Tensor::arange(context.device(), 0, 30, 1, DType::I32)?.reshape([3, 10])?;
    let parts = whole.split(1, &[3, 0, 7])?;
    assert_eq!(parts[1].shape(), &[3, 0]);
    assert!(parts[2].shares_storage(&whole));
    assert_eq!(parts[0].to_vec::<i32>()?, [0, 1, 2, 10, 11, 12, 20, 21, 22]);
    let chunks = whole.chunk(1, 4)?;
    let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.shape()[1]).collect();
    assert_eq!(sizes, [3, 3, 3, 1]);
    assert_eq!(whole.chunk(0, 7)?.len(), 3);
    assert_eq!(whole.slice(0..0)?.chunk(0, 2)?.len(), 1);
    Ok(())
}

fn errors(context: &Context) -> Result<()> {
    let device = context.device();
    let a = Tensor::zeros(device, [2, 3], DType::F32)?;
    let b = Tensor::zeros(device, [2, 4], DType::F32)?;
    let i = Tensor::zeros(device, [2, 3], DType::I32)?;
    let invalid = |result: Result<Tensor>| match result {
        Err(Error::InvalidArgument(why)) => why.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(invalid(Tensor::concat(&[] as &[Tensor], 0)).contains("one tensor or more"));
    let nothing = Tensor::stack(&[] as &[Tensor], 0);
    assert!(invalid(nothing).starts_with("stack: takes one tensor or more"));
    assert!(invalid(Tensor::concat(&[&a, &b], 2)).contains("no axis 2"));
    assert!(matches!(
        Tensor::concat(&[&a, &b], 0),
        Err(Error::ShapeMismatch(_))
    ));
    assert!(matches!(
        Tensor::concat(&[&a, &i], 0),
        Err(Error::DTypeMismatch(_))
    ));
    assert!(matches!(
        Tensor::stack(&[&a, &b], 0),
        Err(Error::ShapeMismatch(_))
    ));
    let none = "stack: there is no place for an axis";
    for axis in [3, -4] {
        assert!(invalid(Tensor::stack(&[&a, &a], axis)).starts_with(none));
    }
    let mixed = Tensor::stack(&[&a, &i], 0).unwrap_err().to_string();
    assert!(mixed.starts_with("stack: "), "{mixed}");
    assert!(invalid(a.permute(&[-1])).contains("axes [-1] must name each"));
    let claimed = Tensor::zeros(device, [1], DType::F32)?.broadcast_to([1usize << 40])?;
    assert!(claimed.chunk(0, 1 << 40).is_err());
    assert!(invalid(a.pad(&[(1, 1)], 0)).contains("1 pairs"));
    assert!(invalid(i.pad(&[(1, 1), (0, 0)], 0.5)).contains("cannot hold"));
    assert!(matches!(
        a.pad(&[(usize::MAX, 0), (1, 1)], 0),
        Err(Error::TooLarge(_))
    ));
    assert!(invalid(a.slice(0..1)?.squeeze(0)?.tril(0)).contains("no matrices"));
    assert!(matches!(
        a.one_hot(3, DType::F32),
        Err(Error::DTypeMismatch(_))
    ));
    assert!(a.split(1, &[1, 1]).is_err() && a.split(2, &[]).is_err());
    assert!(a.chunk(0, 0).is_err());
    Ok(())
}

fn edges(context: &Context) -> Result<()> {
    let device = context.device();
    let empty = Tensor::zeros(device, [0, 3], DType::F32)?;
    let padded = empty.pad(&[(1, 1), (0, 1)], 2.5)?;
    assert_eq!(padded.to_vec::<f32>()?, [2.5; 8]);
    assert_eq!(empty.pad(&[(0, 0), (1, 1)], 1)?.shape(), &[0, 5]);
    let both = Tensor::concat(&[&empty, &empty], 0)?;
    assert_eq!(both.shape(), &[0, 3]);
    let ids = Tensor::zeros(device, [2], DType::I32)?;
    assert_eq!(ids.one_hot(0, DType::F32)?.shape(), &[2, 0]);
    let scalar = Tensor::scalar(device, 4.0f32)?;
    assert_eq!(scalar.pad(&[], 0)?.item::<f32>()?, 4.0);
    assert_eq!(
        Tensor::stack(&[&scalar, &scalar], 0)?.to_vec::<f32>()?,
        [4.0; 2]
    );
    // More workgroups than one dimension of a grid has.
    let count = if context.is_slow() {
        1 << 12
    } else {
        65_536 * 512
    };
    let row = Tensor::scalar(device, 3u32)?.broadcast_to([2, count])?;
    let long = row.pad(&[(0, 0), (1, 2)], 9)?;
    for row in 0..2 {
        let ends = |from: usize| long.slice((row..row + 1, from..from + 3))?.to_vec::<u32>();
        assert_eq!(ends(0)?, [9, 3, 3]);
        assert_eq!(ends(count / 2)?, [3, 3, 3]);
        assert_eq!(ends(count)?, [3, 9, 9]);
    }
    Ok(())
}
