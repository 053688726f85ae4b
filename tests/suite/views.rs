//! Views: what they show, what they share, and when a copy is made.

use orlop::{DType, Layout, Result, SliceRange, SortOrder, Tensor, keepdim};

use crate::adapters::Context;
use crate::number::{Number, for_each_dtype};
use crate::operand::{Operand, random_shape, same};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("views::slices", Scope::Device, slices),
        Test::new("views::from_the_end", Scope::Device, from_the_end),
        Test::new("views::reshapes", Scope::Device, reshapes),
        Test::new("views::sizes_of_one", Scope::Device, sizes_of_one),
        Test::new("views::high_ranks", Scope::Device, high_ranks),
        Test::new("views::repeated", Scope::Device, repeated),
        Test::new("views::without_elements", Scope::Device, without_elements),
        Test::new("views::large_parts", Scope::Device, large_parts),
    ];
    all.push(Test::new(
        "views::assign_overlaps",
        Scope::Device,
        assign_overlaps,
    ));
    for_each_dtype!(all, Scope::Device, "views::chains", chains);
    for_each_dtype!(all, Scope::Device, "views::assign", assign);
    all
}

/// A few bytes seen as a trillion elements: filled and shown without walking over them.
fn repeated(context: &Context) -> Result<()> {
    let device = context.open();
    let one = Tensor::zeros(&device, [1, 1], DType::F32)?;
    let many = one.broadcast_to([1 << 20, 1 << 20])?;
    many.fill(2.5)?;
    assert_eq!(one.item::<f32>()?, 2.5);
    let text = many.display()?;
    assert!(
        text.starts_with("[[2.5, 2.5, 2.5, ..., 2.5, 2.5, 2.5],"),
        "{text}"
    );
    Ok(())
}

/// Elements written through random views, and the others that stay.
fn assign<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(30), |rng| {
        let shape = random_shape(rng, 4, 600);
        let base = Operand::<T>::random(context.device(), rng, &shape)?;
        let mut view = base.clone();
        for (axis, &size) in shape.iter().enumerate() {
            let every = *rng.pick(&[1, 1, -1, 2, -3]);
            let start = rng.below(size + 1);
            view = view.step(axis, start..size, every)?;
        }
        let view = view.permute(&rng.shuffled(shape.len()))?;
        let (rank, skipped) = (view.shape().len(), rng.below(view.shape().len() + 1));
        let small: Vec<usize> = view.shape()[skipped.min(rank)..]
            .iter()
            .map(|&size| if rng.one_in(5) { 1 } else { size })
            .collect();
        let source = Operand::<T>::random_view(context.device(), rng, &small)?;
        view.tensor.assign(&source.tensor)?;
        let mut want = base.values();
        let places: Vec<usize> = (0..want.len()).collect();
        let given = source.broadcast(view.shape())?.values();
        for (place, value) in view.grid.of(&places).into_iter().zip(given) {
            want[place] = value;
        }
        same(&base.tensor, &want)?;
        source.check()
    })
}

/// What is read lies where it is written; what cannot be written is refused, and nothing changes.
fn assign_overlaps(context: &Context) -> Result<()> {
    let values: Vec<i32> = (0..1000).collect();
    let base = Tensor::from_slice(context.device(), &values, [1000])?;
    base.slice(1..1000)?.assign(&base.slice(0..999)?)?;
    let mut want: Vec<i32> = std::iter::once(0).chain(0..999).collect();
    same(&base, &want)?;
    base.assign(&base.flip(&[0])?)?;
    want.reverse();
    same(&base, &want)?;
    base.assign(&base)?;
    let square = base.reshape([20, 50])?;
    square
        .slice((.., 0..20))?
        .assign(&square.slice((.., 10..30))?.transpose(0, 1)?)?;
    let before = want.clone();
    for (row, column) in (0..20).flat_map(|row| (0..20).map(move |column| (row, column))) {
        want[row * 50 + column] = before[column * 50 + 10 + row];
    }
    same(&base, &want)?;
    let one = base.slice(0..1)?;
    assert!(one.broadcast_to([3])?.assign(&base.slice(0..3)?).is_err());
    assert!(one.assign(&base.slice(0..2)?).is_err());
    assert!(base.assign(&base.cast(DType::F32)?).is_err());
    assert!(base.slice(0..0)?.assign(&base.slice(0..2)?).is_err());
    base.slice(0..0)?.assign(&one)?;
    let elsewhere = Tensor::from_slice(&orlop::Device::cpu(), &[7i32], [1])?;
    one.assign(&elsewhere)?;
    want[0] = 7;
    same(&base, &want)
}

/// Parts that several threads write at once on the CPU: what lies between their rows stays.
fn large_parts(context: &Context) -> Result<()> {
    cases(1, |rng| {
        for (shape, axes) in [([90, 3, 300], [0, 1, 2]), ([300, 90, 3], [1, 2, 0])] {
            let base = Operand::<i32>::random(context.device(), rng, &shape)?;
            let ranges: Vec<_> = shape.iter().map(|&size| 1..size).collect();
            let inner = base.slice(&ranges)?.permute(&axes)?;
            // Within planes, every second plane, every second column; backwards one thread writes.
            let parts = [
                inner.clone(),
                base.permute(&axes)?.step(0, 0..90, 2)?,
                base.permute(&axes)?.step(2, 1..300, 2)?,
                base.permute(&axes)?.flip(&[1])?,
            ];
            let mut want = base.values();
            for part in parts {
                let places = &part.grid.indices;
                let other = Operand::<i32>::random(context.device(), rng, part.shape())?;
                part.tensor.add_assign(&other.tensor)?;
                for (&at, value) in places.iter().zip(other.values()) {
                    want[at] = want[at].wrapping_add(value);
                }
                same(&base.tensor, &want)?;
                part.tensor.assign(&other.tensor)?;
                for (&at, value) in places.iter().zip(other.values()) {
                    want[at] = value;
                }
                same(&base.tensor, &want)?;
                part.tensor.fill(7)?;
                places.iter().for_each(|&at| want[at] = 7);
                same(&base.tensor, &want)?;
            }
        }
        Ok(())
    })
}

/// Random chains of views, compared with the list of indices.
fn chains<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(40), |rng| {
        let shape = random_shape(rng, 5, 800);
        let mut view = Operand::<T>::random(context.device(), rng, &shape)?;
        for _ in 0..rng.between(1, 6) {
            let next = step(rng, &view)?;
            let shares = next.tensor.shares_storage(&view.tensor);
            // A copy starts a storage of its own, and may begin a chain of its own.
            assert!(
                shares || next.tensor.elements() == 0 || !view.tensor.is_contiguous(),
                "{} then {}",
                view.story(),
                next.story()
            );
            view = next;
        }
        view.check()
    })
}

fn step<T: Number>(rng: &mut Rng, view: &Operand<T>) -> Result<Operand<T>> {
    let shape = view.shape().to_vec();
    let rank = shape.len();
    match rng.below(7) {
        0 if rank > 1 => view.transpose(rng.below(rank), rng.below(rank)),
        1 => view.permute(&rng.shuffled(rank)),
        2 => {
            let ranges: Vec<_> = shape
                .iter()
                .map(|&size| {
                    let start = rng.below(size + 1);
                    start..rng.between(start, size)
                })
                .collect();
            view.slice(&ranges)
        }
        3 if rank > 0 => {
            let axes = rng.shuffled(rank);
            view.flip(&axes[..rng.between(1, rank)])
        }
        4 if rank > 0 => {
            let axis = rng.below(rank);
            let start = rng.below(shape[axis] + 1);
            let end = rng.between(start, shape[axis]);
            view.step(axis, start..end, *rng.pick(&[-3, -2, -1, 2, 3]))
        }
        5 if view.grid.indices.len() < 500 => {
            let mut to: Vec<usize> = shape
                .iter()
                .map(|&size| if size == 1 { rng.between(1, 3) } else { size })
                .collect();
            to.insert(0, rng.between(1, 2));
            view.broadcast(&to)
        }
        _ => {
            // Joins, or cuts, one dimension.
            let mut to = shape.clone();
            if rank > 1 && rng.one_in(2) {
                let at = rng.below(rank - 1);
                to[at] *= to.remove(at + 1);
            } else if rank > 0 {
                let at = rng.below(rank);
                let size = to[at];
                let cut = (1..=size.max(1))
                    .filter(|cut| size.is_multiple_of(*cut))
                    .nth(1)
                    .unwrap_or(1);
                to[at] = size / cut;
                to.insert(at + 1, cut);
            } else {
                to.push(1);
            }
            view.reshape(&to)
        }
    }
}

fn numbers(context: &Context, shape: &[usize]) -> Result<Operand<i32>> {
    let count = shape.iter().product::<usize>() as i32;
    Operand::new(context.device(), (0..count).collect(), shape)
}

fn slices(context: &Context) -> Result<()> {
    let whole = numbers(context, &[4, 5, 6])?.tensor;
    let at = |i: i32, j: i32, k: i32| (i * 5 + j) * 6 + k;
    let view = whole.slice((0..2, .., 3..))?;
    assert_eq!(view.shape(), &[2, 5, 3]);
    assert!(view.shares_storage(&whole));
    let got = view.to_vec::<i32>()?;
    assert_eq!(
        (got[0], got[1], got[3], got[29]),
        (at(0, 0, 3), at(0, 0, 4), at(0, 1, 3), at(1, 4, 5))
    );
    assert_eq!(whole.slice(3..)?.to_vec::<i32>()?[0], at(3, 0, 0));
    assert_eq!(whole.slice((..=1, 4..=4))?.shape(), &[2, 1, 6]);
    let ranges = [SliceRange::from(1..2), SliceRange::from(..)];
    let borrowed: &[SliceRange; 2] = &ranges;
    let listed = ranges.to_vec();
    for view in [
        whole.slice(&ranges[..])?,
        whole.slice(borrowed)?,
        whole.slice(&listed)?,
        whole.slice(listed)?,
        whole.slice(ranges)?,
    ] {
        assert_eq!(view.to_vec::<i32>()?[0], at(1, 0, 0));
    }
    // A slice of a slice.
    let inner = view.slice((1..2, 1..4, 1..))?;
    same(
        &inner,
        &[
            at(1, 1, 4),
            at(1, 1, 5),
            at(1, 2, 4),
            at(1, 2, 5),
            at(1, 3, 4),
            at(1, 3, 5),
        ],
    )?;
    // Steps, and backwards.
    let back = whole.slice((
        SliceRange::from(1..).step(-2),
        ..,
        SliceRange::from(..5).step(2),
    ))?;
    assert_eq!(back.shape(), &[2, 5, 3]);
    assert!(back.shares_storage(&whole));
    assert_eq!(
        back.to_vec::<i32>()?[..4],
        [at(3, 0, 0), at(3, 0, 2), at(3, 0, 4), at(3, 1, 0)]
    );
    let turned = whole.flip(&[2, 0])?;
    assert_eq!(turned.to_vec::<i32>()?[..2], [at(3, 0, 5), at(3, 0, 4)]);
    assert_eq!(
        turned.slice((0..1, 1..2, 2..3))?.item::<i32>()?,
        at(3, 1, 3)
    );
    assert!(turned.flip(&[0, 2])?.layout() == whole.layout());
    // What is written through one is seen through the other.
    let copy = whole.copy()?;
    copy.slice((
        SliceRange::from(..).step(-3),
        4..,
        SliceRange::from(..).step(-5),
    ))?
    .fill(-1)?;
    let changed = copy.to_vec::<i32>()?;
    let minus: Vec<usize> = (0..120).filter(|&at| changed[at] == -1).collect();
    let want = [(0, 4, 0), (0, 4, 5), (3, 4, 0), (3, 4, 5)].map(|(i, j, k)| at(i, j, k) as usize);
    assert_eq!(minus, want);
    // Empty ones, at the end too.
    assert_eq!(whole.slice(4..)?.shape(), &[0, 5, 6]);
    assert_eq!(whole.slice((.., 2..2))?.to_vec::<i32>()?, Vec::<i32>::new());
    let scalar = Tensor::scalar(context.device(), 7i32)?;
    assert_eq!(scalar.slice(&[] as &[SliceRange])?.item::<i32>()?, 7);
    Ok(())
}

/// Axes, ranges and indices that count from the end, in all that takes them.
#[allow(clippy::reversed_empty_ranges)]
fn from_the_end(context: &Context) -> Result<()> {
    let whole = numbers(context, &[4, 5, 6])?.tensor;
    let alike = |got: Tensor, want: Tensor| {
        assert_eq!(got.layout(), want.layout());
        same(&got, &want.to_vec::<i32>()?)
    };
    alike(whole.transpose(-1, -3)?, whole.transpose(2, 0)?)?;
    alike(whole.permute(&[-1, 0, -2])?, whole.permute(&[2, 0, 1])?)?;
    alike(whole.flip(&[-1, 0])?, whole.flip(&[2, 0])?)?;
    alike(whole.unfold(-2, 3, 2)?, whole.unfold(1, 3, 2)?)?;
    alike(whole.diagonal(1, -1, 0)?, whole.diagonal(1, 2, 0)?)?;
    let with_one = whole.unsqueeze(-2)?;
    assert_eq!(with_one.shape(), &[4, 5, 1, 6]);
    assert_eq!(whole.unsqueeze(-1)?.shape(), &[4, 5, 6, 1]);
    assert_eq!(whole.unsqueeze(-4)?.shape(), &[1, 4, 5, 6]);
    alike(with_one.squeeze(-2)?, whole.clone())?;
    let two = [&whole, &whole];
    alike(Tensor::concat(&two, -1)?, Tensor::concat(&two, 2)?)?;
    alike(Tensor::stack(&two, -1)?, Tensor::stack(&two, 3)?)?;
    alike(Tensor::stack(&two, -4)?, Tensor::stack(&two, 0)?)?;
    let parts = whole
        .split(-2, &[2, 3])?
        .into_iter()
        .zip(whole.split(1, &[2, 3])?);
    let chunks = whole.chunk(-1, 4)?.into_iter().zip(whole.chunk(2, 4)?);
    for (got, want) in parts.chain(chunks) {
        alike(got, want)?;
    }
    alike(whole.sum(-1)?, whole.sum(2)?)?;
    alike(whole.cumsum(-2)?, whole.cumsum(1)?)?;
    let up = SortOrder::Ascending;
    alike(whole.sort(-3, up)?, whole.sort(0, up)?)?;
    alike(whole.top_k(2, -2, up)?.0, whole.top_k(2, 1, up)?.0)?;
    same(
        &whole.argsort(-1, up)?,
        &whole.argsort(2, up)?.to_vec::<u32>()?,
    )?;
    alike(whole.max([-1, 0])?, whole.max([0, 2])?)?;
    alike(whole.sum(keepdim([-3isize]))?, whole.sum(keepdim([0]))?)?;
    let floats = whole.cast(DType::F32)?;
    same(&floats.softmax(-2)?, &floats.softmax(1)?.to_vec::<f32>()?)?;
    same(&floats.median(-3)?, &floats.median(0)?.to_vec::<f32>()?)?;
    let index = Tensor::from_slice(context.device(), &[1i32, 0], [2])?;
    alike(
        whole.index_select(-2, &index)?,
        whole.index_select(1, &index)?,
    )?;
    let part = whole.slice((.., .., ..2))?;
    alike(
        whole.index_add(-1, &index, &part)?,
        whole.index_add(2, &index, &part)?,
    )?;
    let of_each = Tensor::from_slice(context.device(), &[3i32, -1, 0], [1, 1, 3])?;
    alike(whole.gather(-1, &of_each)?, whole.gather(2, &of_each)?)?;
    let one = whole.slice((..1, ..1, ..3))?;
    alike(
        whole.scatter_add(-1, &of_each, &one)?,
        whole.scatter_add(2, &of_each, &one)?,
    )?;
    alike(
        whole.index_max(-1, &index, &part)?,
        whole.index_max(2, &index, &part)?,
    )?;
    alike(
        whole.scatter_min(-1, &of_each, &one)?,
        whole.scatter_min(2, &of_each, &one)?,
    )?;
    alike(
        whole.scatter(-1, &of_each, &one)?,
        whole.scatter(2, &of_each, &one)?,
    )?;
    // Ranges and indices.
    alike(whole.slice(-3..)?, whole.slice(1..)?)?;
    alike(whole.slice((..-1, 1..=-2))?, whole.slice((..3, 1..4))?)?;
    let row = whole.slice((-1, .., 2))?;
    assert!(row.shares_storage(&whole));
    same(&row, &[92, 98, 104, 110, 116])?;
    assert_eq!(whole.slice((1, -1, 3))?.item::<i32>()?, 57);
    whole.slice((0, 0, 0))?.fill(-7)?;
    assert_eq!(whole.slice(0)?.to_vec::<i32>()?[..2], [-7, 1]);
    // What there is not, by its name.
    let refused = [
        whole.transpose(0, -4).map(drop),
        whole.squeeze(-4).map(drop),
        whole.unsqueeze(-5).map(drop),
        whole.sum([0, -3]).map(drop),
        whole.cumsum(-4).map(drop),
        whole.argsort(-4, up).map(drop),
        whole.softmax(-4).map(drop),
        whole.quantile(0.5, -4).map(drop),
        Tensor::concat(&two, -4).map(drop),
        whole.index_select(-4, &index).map(drop),
        whole.slice((.., -6)).map(drop),
        whole.slice(-5..).map(drop),
    ];
    for refused in refused {
        let said = refused.unwrap_err().to_string();
        assert!(
            ["-3", "-4", "-5", "-6"].iter().any(|at| said.contains(at)),
            "{said}"
        );
    }
    Ok(())
}

fn reshapes(context: &Context) -> Result<()> {
    let whole = numbers(context, &[4, 6])?;
    let tensor = &whole.tensor;
    for (sizes, shape) in [
        (vec![-1i64], vec![24usize]),
        (vec![2, -1], vec![2, 12]),
        (vec![2, 3, -1, 2], vec![2, 3, 2, 2]),
        (vec![24, -1], vec![24, 1]),
        (vec![1, 4, 1, 6], vec![1, 4, 1, 6]),
    ] {
        let view = tensor.reshape(&sizes[..])?;
        assert_eq!(view.shape().dims(), shape);
        assert!(view.shares_storage(tensor), "{sizes:?} is a view");
        same(&view, &whole.values())?;
    }
    assert_eq!(tensor.slice((0..1, 0..1))?.reshape(())?.rank(), 0);
    // Rows of a slice stay rows: a view. Joining them is a copy.
    let cut = whole.slice(&[0..4, 1..4])?;
    assert!(cut.reshape(&[2, 2, 3])?.tensor.shares_storage(tensor));
    let joined = cut.reshape(&[12])?;
    assert!(!joined.tensor.shares_storage(tensor));
    joined.check()?;
    let turned = whole.transpose(0, 1)?;
    assert!(turned.reshape(&[2, 3, 4])?.tensor.shares_storage(tensor));
    turned.reshape(&[3, 8])?.check()?;
    // A repeated dimension cuts as a view and joins as a copy.
    let row = numbers(context, &[1, 4])?.broadcast(&[6, 4])?;
    assert!(row.reshape(&[3, 2, 4])?.tensor.shares_storage(&row.tensor));
    row.reshape(&[24])?.check()
}

fn sizes_of_one(context: &Context) -> Result<()> {
    let tensor = numbers(context, &[3, 1, 2])?.tensor;
    let flat = tensor.squeeze(1)?;
    assert_eq!(flat.shape(), &[3, 2]);
    assert!(flat.shares_storage(&tensor));
    for axis in 0..=2 {
        let back = flat.unsqueeze(axis)?;
        assert_eq!(back.shape()[axis], 1);
        assert_eq!(back.to_vec::<i32>()?, tensor.to_vec::<i32>()?);
        assert_eq!(back.squeeze(axis)?.layout(), flat.layout());
    }
    let scalar = Tensor::scalar(context.device(), 2.5f32)?;
    assert_eq!(scalar.unsqueeze(0)?.shape(), &[1]);
    assert_eq!(scalar.broadcast_to([2, 3])?.to_vec::<f32>()?, [2.5; 6]);
    assert_eq!(scalar.item::<f32>()?, 2.5);
    Ok(())
}

/// More dimensions than shapes hold inline, and than immediates can tell.
fn high_ranks(context: &Context) -> Result<()> {
    let shape = [2, 1, 3, 2, 2, 1, 2, 2, 3];
    let whole = numbers(context, &shape)?;
    let turned = whole.permute(&[8, 3, 0, 7, 2, 5, 6, 1, 4])?;
    turned.check()?;
    same(&turned.tensor.copy()?, &turned.values())?;
    let sum = turned.tensor.add(&turned.tensor)?.to_vec::<i32>()?;
    let double: Vec<i32> = turned.values().iter().map(|x| 2 * x).collect();
    assert_eq!(sum, double);
    // Two operands that merge nowhere: nine dimensions in each.
    let other = numbers(context, &[2, 3, 2, 2, 2, 2, 3])?;
    let first = other.permute(&[6, 5, 4, 3, 2, 1, 0])?;
    let second = numbers(context, &[3, 2, 2, 2, 2, 3, 2])?;
    let sum = first.tensor.add(&second.tensor)?.to_vec::<i32>()?;
    let want: Vec<i32> = first
        .values()
        .iter()
        .zip(second.values())
        .map(|(a, b)| a + b)
        .collect();
    assert_eq!(sum, want);
    Ok(())
}

fn without_elements(context: &Context) -> Result<()> {
    let device = context.device();
    for shape in [vec![0usize], vec![3, 0], vec![0, 5, 2], vec![2, 0, 0]] {
        for &dtype in DType::ALL {
            let empty = Tensor::zeros(device, &shape, dtype)?;
            assert_eq!((empty.shape().dims(), empty.elements()), (&shape[..], 0));
            if dtype != DType::Bool {
                assert_eq!(empty.add(&empty)?.shape(), empty.shape());
            }
            assert_eq!(empty.copy()?.dtype(), dtype);
            empty.fill(0)?;
            assert_eq!(empty.cast(DType::I32)?.to_vec::<i32>()?, Vec::<i32>::new());
        }
        let tensor = Tensor::from_slice::<f32>(device, &[], &shape)?;
        let axes: Vec<usize> = (0..shape.len()).rev().collect();
        assert_eq!(tensor.permute(&axes)?.to_vec::<f32>()?, Vec::<f32>::new());
        assert_eq!(tensor.reshape([0, 7])?.shape(), &[0, 7]);
        let one = Tensor::ones(device, [1], DType::F32)?;
        assert_eq!(tensor.add(&one)?.shape().dims(), shape);
        assert_eq!(
            pollster::block_on(tensor.to_vec_async::<f32>())?,
            Vec::<f32>::new()
        );
        assert_eq!(tensor.to(&orlop::Device::cpu())?.shape(), tensor.shape());
    }
    assert_eq!(Layout::contiguous([0, 3]).end(), 0);
    Ok(())
}
