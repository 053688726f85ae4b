//! Ops by an index, against loops over indices of their own.

use std::thread;

use orlop::{DType, Device, Error, PlacementEvent, Result, Tensor, bf16, f16, with_hardware_plans};

use crate::adapters::{Context, full};
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::{Operand, same};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("index::edges", Scope::Device, edges),
        Test::new("index::errors", Scope::Device, errors),
        Test::new("index::errors_of_sums", Scope::Device, errors_of_sums),
        Test::new("index::many_workgroups", Scope::Device, many_workgroups),
        Test::new("index::large_sums::i32", Scope::Device, large_sums::<i32>),
        // Whose order counts.
        Test::new("index::large_sums::f32", Scope::Device, large_sums::<f32>),
        Test::new("index::large_sets", Scope::Device, large_sets),
        Test::new("index::written_in_place", Scope::Device, written_in_place),
        Test::new("index::halves_of_threads", Scope::Device, halves_of_threads),
        Test::new(
            "index::few_of_many_halves",
            Scope::Device,
            few_of_many_halves,
        ),
        Test::new("index::hardware_sets", Scope::Gpu, hardware_sets),
        Test::new("index::hardware_sums", Scope::Gpu, hardware_sums),
        Test::new("index::hardware_extremes", Scope::Gpu, hardware_extremes),
        Test::new("index::large_extremes", Scope::Device, large_extremes),
        Test::new("index::extreme_specials", Scope::Kernels, extreme_specials),
        Test::new("index::rows_apart", Scope::Kernels, rows_apart),
        Test::new("index::hardware_windows", Scope::Gpu, hardware_windows)
            .when(|context| !context.is_slow() || full()),
        Test::new(
            "index::windows_of_entries",
            Scope::Device,
            windows_of_entries,
        ),
        // Windows are the library's doing, not the adapter's.
        Test::new("index::far_operands", Scope::Device, far_operands)
            .when(|context| !context.is_slow() || full()),
        Test::new("index::one_storage", Scope::Kernels, one_storage),
    ];
    for_each_dtype!(all, Scope::Kernels, "index::select", select);
    for_each_dtype!(all, Scope::Kernels, "index::gather", gather);
    for_each_dtype!(all, Scope::Kernels, "index::sums", sums);
    for_each_dtype!(all, Scope::Kernels, "index::sets", sets);
    for_each_dtype!(all, Scope::Kernels, "index::extremes", extremes);
    for (name, body) in [
        (
            "index::select::bool",
            select::<bool> as fn(&Context) -> Result<()>,
        ),
        ("index::gather::bool", gather::<bool>),
        ("index::sets::bool", sets::<bool>),
    ] {
        all.push(Test::new(name, Scope::Kernels, body));
    }
    all.push(Test::new("index::long_sums", Scope::Kernels, long_sums));
    all
}

/// Numbers for an axis of `size`: mostly in range, from the end too, some outside.
struct Indices {
    tensor: Tensor,
    shape: Vec<usize>,
    /// The entry that each names, if there is one.
    entries: Vec<Option<usize>>,
}

fn indices(context: &Context, rng: &mut Rng, shape: &[usize], size: usize) -> Result<Indices> {
    let signed = rng.one_in(2);
    let outside = rng.one_in(2);
    let far = [i32::MIN, i32::MAX, i32::MIN + 1];
    let size = size as i64;
    let number = |rng: &mut Rng| match rng.below(12) {
        0 if outside => size + rng.below(3) as i64,
        1 if outside && signed => -size - 1 - rng.below(3) as i64,
        2 if outside => i64::from(*rng.pick(&far)),
        3..6 if signed => -1 - rng.below(size as usize) as i64,
        _ => rng.below(size as usize) as i64,
    };
    // Also backwards, with steps, permuted and repeated.
    let device = context.device();
    let (tensor, numbers): (Tensor, Vec<i64>) = if signed {
        let index = Operand::<i32>::view_of(device, rng, shape, |rng| number(rng) as i32)?;
        let numbers = index.values().into_iter().map(i64::from);
        (index.tensor.clone(), numbers.collect())
    } else {
        let index = Operand::<u32>::view_of(device, rng, shape, |rng| number(rng) as u32)?;
        let numbers = index.values().into_iter().map(i64::from);
        (index.tensor.clone(), numbers.collect())
    };
    let entries = numbers
        .into_iter()
        .map(|x| if x < 0 { x + size } else { x })
        .map(|x| usize::try_from(x).ok().filter(|_| x < size))
        .collect();
    Ok(Indices {
        tensor,
        shape: shape.to_vec(),
        entries,
    })
}

fn some_shape(context: &Context, rng: &mut Rng, max_rank: usize, most: usize) -> Vec<usize> {
    loop {
        let shape = context.shape(rng, max_rank, most);
        if !shape.is_empty() && !shape.contains(&0) {
            return shape;
        }
    }
}

fn select<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(60), |rng| {
        let shape = some_shape(context, rng, 5, 2000);
        let table = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let axis = rng.below(shape.len());
        let mut named: Vec<usize> = (0..rng.below(3)).map(|_| rng.between(1, 6)).collect();
        if rng.one_in(20) {
            named.push(0);
        }
        let index = indices(context, rng, &named, shape[axis])?;
        let result = table.tensor.index_select(axis, &index.tensor)?;
        let outer: usize = shape[..axis].iter().product();
        let inner: usize = shape[axis + 1..].iter().product();
        let values = table.values();
        let mut want = Vec::new();
        for row in 0..outer {
            for entry in &index.entries {
                for column in 0..inner {
                    want.push(match entry {
                        Some(entry) => values[(row * shape[axis] + entry) * inner + column],
                        None => T::from_value(Value::Integer(0)),
                    });
                }
            }
        }
        let mut sizes = shape[..axis].to_vec();
        sizes.extend(&index.shape);
        sizes.extend(&shape[axis + 1..]);
        assert_eq!(result.shape().dims(), sizes, "{} at {axis}", table.story());
        stays(context, &result);
        same(&result, &want)
    })
}

/// It ran on its device: moving bits needs no dtype in kernels, and halves are summed in f32.
fn stays(context: &Context, result: &Tensor) {
    if context.device().capabilities().holds(result.dtype()) {
        assert_eq!(result.device(), context.device());
        let events = context.device().placement_log().events;
        let ours = [
            "index_select",
            "gather",
            "embedding",
            "scatter_add",
            "index_add",
            "scatter",
            "index_copy",
        ];
        let is_of_f64 = |event: &PlacementEvent| {
            // Its tensors live on the CPU where the device has none.
            event.reason.contains("f64") || event.result.starts_with("cpu")
        };
        let mut moved = events.iter().filter(|event| ours.contains(&event.op));
        let moved = moved.find(|event| !is_of_f64(event));
        assert!(moved.is_none(), "{moved:?}");
    }
}

fn gather<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(60), |rng| {
        let shape = some_shape(context, rng, 5, 2000);
        let table = Operand::<T>::random_view(context.device(), rng, &shape)?;
        let axis = rng.below(shape.len());
        let sizes: Vec<usize> = shape
            .iter()
            .enumerate()
            .map(|(at, &size)| match at == axis {
                true => rng.between(1, 7),
                false if rng.one_in(3) => rng.between(1, size),
                false => size,
            })
            .collect();
        let index = indices(context, rng, &sizes, shape[axis])?;
        let result = table.tensor.gather(axis, &index.tensor)?;
        assert_eq!(result.shape().dims(), sizes);
        let values = table.values();
        let want: Vec<T> = index
            .entries
            .iter()
            .enumerate()
            .map(|(element, entry)| {
                let Some(entry) = entry else {
                    return T::from_value(Value::Integer(0));
                };
                let (mut rest, mut at, mut step) = (element, 0, 1);
                for d in (0..shape.len()).rev() {
                    let i = if d == axis { *entry } else { rest % sizes[d] };
                    rest /= sizes[d];
                    at += i * step;
                    step *= shape[d];
                }
                values[at]
            })
            .collect();
        stays(context, &result);
        same(&result, &want)
    })
}

fn edges(context: &Context) -> Result<()> {
    let device = context.device();
    let table: Vec<f32> = (0..12).map(|x| x as f32).collect();
    let table = Tensor::from_slice(device, &table, [4, 3])?;
    let ids = Tensor::from_slice(device, &[3i32, -1, 4, -5, 0, i32::MIN], [2, 3])?;
    let rows = table.embedding(&ids)?;
    assert_eq!(rows.shape(), &[2, 3, 3]);
    let want = [
        9.0, 10.0, 11.0, 9.0, 10.0, 11.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0,
        0.0,
    ];
    assert_eq!(rows.to_vec::<f32>()?, want);
    // A scalar index takes one entry and its axis.
    let one = Tensor::scalar(device, 2u32)?;
    assert_eq!(
        table.index_select(1, &one)?.to_vec::<f32>()?,
        [2.0, 5.0, 8.0, 11.0]
    );
    let none = Tensor::from_slice::<i32>(device, &[], [0])?;
    assert_eq!(table.index_select(0, &none)?.shape(), &[0, 3]);
    let empty = Tensor::zeros(device, [0, 3], DType::F32)?;
    assert_eq!(empty.index_select(0, &none)?.shape(), &[0, 3]);
    assert_eq!(empty.index_select(1, &one)?.shape(), &[0]);
    // More entries than 32 bits name: elsewhere, which is logged.
    #[cfg(target_pointer_width = "64")]
    {
        let apart = context.builder().build()?;
        let ones = Tensor::ones(&apart, [1], DType::F32)?.broadcast_to([1 << 32])?;
        let few = Tensor::from_slice(&apart, &[0i32, -1, i32::MAX], [3])?;
        assert_eq!(ones.index_select(0, &few)?.to_vec::<f32>()?, [1.0; 3]);
        let events = apart.placement_log().events;
        let logged = events
            .iter()
            .filter(|event| event.op == "index_select" && event.reason.contains("entries"));
        assert_eq!(logged.count(), usize::from(!context.is_cpu()), "{events:?}");
    }
    ids.check_indices(6).unwrap_err();
    ids.slice(..1)?.check_indices(5)?;
    let error = ids.check_indices(5).unwrap_err().to_string();
    assert!(
        error.contains("element 5") && error.contains("-2147483648"),
        "{error}"
    );
    Ok(())
}

fn errors(context: &Context) -> Result<()> {
    let device = context.device();
    let table = Tensor::zeros(device, [4, 3], DType::F32)?;
    let ids = Tensor::zeros(device, [2], DType::I32)?;
    let floats = Tensor::zeros(device, [2], DType::F32)?;
    let wide = Tensor::zeros(device, [2, 4], DType::I32)?;
    let empty = Tensor::zeros(device, [0, 3], DType::F32)?;
    let invalid = |result: Result<Tensor>| match result {
        Err(Error::InvalidArgument(why)) => why.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(invalid(table.index_select(2, &ids)).contains("no axis 2"));
    assert!(invalid(empty.index_select(0, &ids)).contains("empty"));
    assert!(invalid(floats.embedding(&ids)).contains("[rows, width]"));
    assert!(matches!(
        table.index_select(0, &floats),
        Err(Error::DTypeMismatch(_))
    ));
    assert!(matches!(
        table.gather(0, &ids),
        Err(Error::ShapeMismatch(_))
    ));
    assert!(matches!(
        table.gather(0, &wide),
        Err(Error::ShapeMismatch(_))
    ));
    let other = floats.check_indices(3).map(|()| floats.clone());
    assert!(matches!(&other, Err(Error::DTypeMismatch(_))));
    assert!(other.unwrap_err().to_string().contains("check_indices"));
    // Views claim what nobody waits for, and a kernel what no host holds the launches of.
    let one = Tensor::zeros(device, [1], DType::F32)?;
    let claims = |count: usize| -> Result<Tensor> {
        let index = Tensor::zeros(device, [1], DType::I32)?.broadcast_to([count])?;
        one.scatter_add(0, &index, &one.broadcast_to([count])?)
    };
    assert!(invalid(claims(1 << 40)).contains("elements"));
    if !context.is_cpu() {
        let refused = claims(1 << 38).unwrap_err();
        assert!(matches!(refused, Error::TooLarge(_)), "{refused}");
        assert!(refused.to_string().contains("131072 launches"), "{refused}");
    } else {
        // Twins reach any place: memory is what is short.
        let many = Tensor::zeros(device, [1], DType::I32)?.broadcast_to([1usize << 39])?;
        let refused = one.index_select(0, &many);
        assert!(
            matches!(refused, Err(Error::OutOfMemory(_) | Error::TooLarge(_))),
            "{refused:?}"
        );
    }
    Ok(())
}

fn errors_of_sums(context: &Context) -> Result<()> {
    let device = &context.open();
    let zeros = |shape: &[usize], dtype| Tensor::zeros(device, shape, dtype);
    let target = zeros(&[4, 3], DType::F32)?;
    let source = zeros(&[2, 3], DType::F32)?;
    let ids = zeros(&[2], DType::I32)?;
    let of_each = zeros(&[2, 3], DType::I32)?;
    let both = |target: &Tensor, ids: &Tensor, of_each: &Tensor, source: &Tensor| {
        [
            target.index_add(0, ids, source),
            target.scatter_add(0, of_each, source),
        ]
    };
    for result in both(&target, &ids, &of_each, &source) {
        assert_eq!(result?.shape(), &[4, 3]);
    }
    for result in [
        target.index_add(2, &ids, &source),
        target.scatter_add(-3, &of_each, &source),
    ] {
        assert!(matches!(result, Err(Error::InvalidArgument(_))));
    }
    let [bools, other] = [&target, &source].map(|tensor| tensor.cast(DType::Bool));
    for result in both(&bools?, &ids, &of_each, &other?) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("not bool"), "{error}");
    }
    for result in both(&target, &ids, &of_each, &source.cast(DType::I32)?) {
        assert!(matches!(result, Err(Error::DTypeMismatch(_))));
    }
    let floats = [ids.cast(DType::F32)?, of_each.cast(DType::F32)?];
    for result in both(&target, &floats[0], &floats[1], &source) {
        assert!(matches!(result, Err(Error::DTypeMismatch(_))));
    }
    // The two shapes that do not go together, of the tensor, the index and the source.
    let shapes = |result: Result<Tensor>| match result {
        Err(Error::ShapeMismatch(of)) => [of.left.dims().to_vec(), of.right.dims().to_vec()],
        other => panic!("{other:?}"),
    };
    let add = |source: &[usize]| target.index_add(0, &ids, &zeros(source, DType::F32)?);
    assert_eq!(shapes(add(&[2, 4])), [[4, 3], [2, 4]]);
    assert_eq!(shapes(add(&[2])), [vec![4, 3], vec![2]]);
    assert_eq!(shapes(add(&[3, 3])), [vec![2], vec![3, 3]]);
    let add = |index: &[usize], source: &[usize]| {
        target.scatter_add(0, &zeros(index, DType::I32)?, &zeros(source, DType::F32)?)
    };
    assert_eq!(shapes(add(&[2, 4], &[2, 4])), [[4, 3], [2, 4]]);
    assert_eq!(shapes(add(&[2], &[2, 3])), [vec![4, 3], vec![2]]);
    assert_eq!(shapes(add(&[2, 3], &[1, 3])), [[2, 3], [1, 3]]);
    assert_eq!(shapes(add(&[2, 3], &[6])), [vec![2, 3], vec![6]]);
    // Before halves are cast, or an index is copied that lies in what it is the index of.
    let halves = target.cast(DType::F16)?;
    let wide = zeros(&[2, 4], DType::F16)?;
    let [first, part] = [of_each.slice((0, ..2))?, of_each.slice((.., ..2))?];
    device.synchronize()?;
    device.reset_peaks();
    let before = device.memory().allocated;
    assert!(halves.index_add(0, &ids, &wide).is_err());
    assert!(of_each.index_add(0, &first, &part).is_err());
    assert!(of_each.gather(0, &first).is_err());
    assert_eq!(device.memory().peak_allocated, before);
    Ok(())
}

/// scatter_add and index_add: the same sums in the same order on the host.
fn sums<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(50), |rng| {
        some_change::<T>(context, rng, Change::Sum)
    })
}

/// scatter and index_copy: bit for bit, the last of several.
fn sets<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(50), |rng| {
        some_change::<T>(context, rng, Change::Set)
    })
}

/// scatter_max, index_max and those of the smallest: bit for bit, NaN but for its bits.
fn extremes<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(40), |rng| {
        let change = *rng.pick(&[Change::Max, Change::Min]);
        some_change::<T>(context, rng, change)
    })
}

/// What becomes of an entry that is named.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    Sum,
    Set,
    Max,
    Min,
}

impl Change {
    /// Of what is there, and what is given.
    fn of<T: Number>(self, old: T, given: T) -> T {
        let (a, b) = match (old.value(), given.value()) {
            (Value::Float(a), Value::Float(b)) if a.is_nan() || b.is_nan() => {
                return if a.is_nan() { old } else { given };
            }
            (Value::Float(a), Value::Float(b)) => {
                let signed = |x: f64| (x, !x.is_sign_negative());
                let takes = match self {
                    Change::Max => signed(b) > signed(a),
                    _ => signed(b) < signed(a),
                };
                return if takes { given } else { old };
            }
            (Value::Integer(a), Value::Integer(b)) => (a, b),
            _ => unreachable!(),
        };
        let takes = match self {
            Change::Max => b > a,
            _ => b < a,
        };
        if takes { given } else { old }
    }
}

fn some_change<T: Number>(context: &Context, rng: &mut Rng, what: Change) -> Result<()> {
    let shape = some_shape(context, rng, 4, 1500);
    let axis = rng.below(shape.len());
    let mut sizes = shape.clone();
    sizes[axis] = rng.below(12);
    let mut named = None;
    if rng.one_in(2) {
        for size in &mut sizes {
            *size = rng
                .between(0, (*size).min(9))
                .max(usize::from(!rng.one_in(20)));
        }
        named = Some(sizes.clone());
        sizes.iter_mut().for_each(|size| *size += rng.below(2));
    }
    let in_place = rng.one_in(2);
    change::<T>(
        context,
        rng,
        (&shape, axis),
        named.as_deref(),
        &sizes,
        (what, in_place),
    )
}

/// More than one thread of the CPU adds: outputs of each before the axis, and along it.
fn large_sums<T: Number>(context: &Context) -> Result<()> {
    large_sums_of::<T>(context, 9000)
}

fn large_sums_of<T: Number>(context: &Context, most: usize) -> Result<()> {
    large_changes::<T>(context, most, Change::Sum)
}

/// Elements of several in a word, and rows that are moved in units of several.
fn large_sets(context: &Context) -> Result<()> {
    large_changes::<f16>(context, 9000, Change::Set)?;
    large_changes::<bool>(context, 9000, Change::Set)?;
    large_changes::<f32>(context, 9000, Change::Set)
}

/// Those where hardware's workgroups share an index.
fn hardware_sets(context: &Context) -> Result<()> {
    with_hardware_plans(|| {
        sets::<u32>(context)?;
        sets::<bool>(context)?;
        match context.shares_kernels() {
            true => large_changes::<f16>(context, 2500, Change::Set),
            false => large_sets(context),
        }
    })
}

fn large_changes<T: Number>(context: &Context, most: usize, what: Change) -> Result<()> {
    cases(1, |rng| {
        for (shape, axis, count) in [
            (vec![90, 400], 0, 95),
            (vec![90, 400], 1, 410),
            (vec![1, 3, 90, 200], 2, 95),
            (vec![2, 30, 30, 30], 2, 40),
            (vec![1, 50, 30, 30], 1, 60),
            (vec![300], 0, 40_000),
            (vec![700, 3], 0, 20_000),
            (vec![2, 700], 1, 5000),
            (vec![31, 40], 1, 4200),
            (vec![70, 2, 300], 0, 80),
            (vec![most, 5], 0, most),
        ] {
            // Slow adapters take half a minute for the longest.
            if context.is_slow() && count > 4200 && !full() {
                continue;
            }
            let mut sizes = shape.clone();
            sizes[axis] = count;
            let of = (&shape[..], axis);
            let in_place = rng.one_in(2);
            change::<T>(context, rng, of, None, &sizes, (what, in_place))?;
            let named: Vec<usize> = sizes.iter().map(|&size| size.max(2) - 1).collect();
            change::<T>(context, rng, of, Some(&named), &sizes, (what, !in_place))?;
        }
        Ok(())
    })
}

/// Those where hardware's workgroups share an index.
fn hardware_sums(context: &Context) -> Result<()> {
    // Each of thousands of invocations goes through the whole index, which takes software adapters long.
    let most = match context.shares_kernels() {
        true => 2500,
        false => 9000,
    };
    with_hardware_plans(|| {
        sums::<i32>(context)?;
        sums::<f32>(context)?;
        large_sums_of::<u32>(context, most)?;
        large_sums_of::<f32>(context, most)
    })
}

/// Rows that begin at places which units of several elements do not.
fn rows_apart(context: &Context) -> Result<()> {
    let device = context.device();
    for (rows, width, taken) in [(4, 10, 8), (5, 9, 8), (3, 6, 4), (3, 14, 12)] {
        let whole = Tensor::arange(device, 0, (rows * width) as u32, 1, DType::U32)?;
        let part = whole.reshape([rows, width])?.slice((.., ..taken))?;
        let index = Tensor::from_slice(device, &[2, 1], 2)?;
        let row = |row: usize| (row * width) as u32..(row * width + taken) as u32;
        let want: Vec<u32> = row(2).chain(row(1)).collect();
        for dtype in [DType::U32, DType::F16, DType::F64] {
            let got = part.cast(dtype)?.index_select(0, &index)?;
            assert_eq!(got.cast(DType::U32)?.to_vec::<u32>()?, want, "{dtype}");
        }
        assert_eq!(part.index_select(0, &index)?.to_vec::<u32>()?, want);
    }
    Ok(())
}

/// Those where hardware's workgroups share an index.
fn hardware_extremes(context: &Context) -> Result<()> {
    let most = match context.shares_kernels() {
        true => 2500,
        false => 9000,
    };
    with_hardware_plans(|| {
        extremes::<f64>(context)?;
        extremes::<f16>(context)?;
        large_changes::<f32>(context, most, Change::Max)
    })
}

/// Infinities, NaN of any bits, zeros of both signs and subnormals, in every order.
fn extreme_specials(context: &Context) -> Result<()> {
    specials_of::<f32>(context)?;
    specials_of::<f64>(context)?;
    specials_of::<f16>(context)?;
    specials_of::<bf16>(context)
}

fn specials_of<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let of = |x: f64| T::from_value(Value::Float(x));
    // The smallest and the largest bits that are NaN, where the dtype has them.
    let nans = [0x7ff0_0000_0000_0001, 0xffff_ffff_ffff_ffff].map(|bits| of(f64::from_bits(bits)));
    let [inf, one, zero] = [f64::INFINITY, 1.0, 0.0].map(of);
    let [low, cold, below] = [-f64::INFINITY, -1.0, -0.0].map(of);
    for given in [
        [inf, one, low],
        [inf, nans[0], one],
        [low, nans[1], cold],
        [nans[0], inf, low],
        [nans[1], low, inf],
        [zero, below, zero],
        [below, zero, below],
    ] {
        for turn in 0..3 {
            let mut values = given;
            values.rotate_left(turn);
            let target = Tensor::from_slice(device, &values[..1], 1)?;
            let source = Tensor::from_slice(device, &values[1..], 2)?;
            let index = Tensor::from_slice(device, &[0, 0], 2)?;
            for (what, got) in [
                (Change::Max, target.scatter_max(0, &index, &source)?),
                (Change::Min, target.index_min(0, &index, &source)?),
            ] {
                let want = values[1..].iter().fold(values[0], |x, &y| what.of(x, y));
                let got = got.item::<T>()?;
                assert!(
                    T::is_same(want, got, false),
                    "{values:?}: {got:?}, not {want:?}"
                );
            }
        }
    }
    Ok(())
}

/// More than one thread of the CPU compares.
fn large_extremes(context: &Context) -> Result<()> {
    large_changes::<u32>(context, 9000, Change::Max)?;
    large_changes::<f32>(context, 9000, Change::Min)
}

/// A view in which each element is once, and what it is a view of.
pub fn distinct_view<T: Number>(
    context: &Context,
    rng: &mut Rng,
    shape: &[usize],
) -> Result<[Operand<T>; 2]> {
    let axes = match rng.one_in(2) {
        true => (0..shape.len()).collect(),
        false => rng.shuffled(shape.len()),
    };
    let mut inner = vec![0; shape.len()];
    for (&size, &old) in shape.iter().zip(&axes) {
        inner[old] = size;
    }
    let stepped = rng.below(2 * shape.len());
    let steps = |axis: usize| if axis == stepped { -2 } else { 1 };
    let first = rng.below(2);
    let outer = |(axis, &size): (usize, &usize)| size * if axis == stepped { 2 } else { 1 } + first;
    let outer: Vec<usize> = inner.iter().enumerate().map(outer).collect();
    let whole = Operand::random(context.device(), rng, &outer)?;
    let mut view = whole.clone();
    for (axis, &size) in outer.iter().enumerate() {
        view = view.step(axis, first..size, steps(axis))?;
    }
    Ok([whole, view.permute(&axes)?])
}

/// One change: by an index of as many dimensions, or of one; of a copy, or in place.
fn change<T: Number>(
    context: &Context,
    rng: &mut Rng,
    (shape, axis): (&[usize], usize),
    named: Option<&[usize]>,
    sizes: &[usize],
    (what, in_place): (Change, bool),
) -> Result<()> {
    let [whole, target] = match in_place {
        true => distinct_view::<T>(context, rng, shape)?,
        false => {
            let target = Operand::<T>::random_view(context.device(), rng, shape)?;
            [target.clone(), target]
        }
    };
    let along = named.is_some();
    let of_axis = [sizes[axis]];
    let named = named.unwrap_or(&of_axis);
    let source = Operand::<T>::random_view(context.device(), rng, sizes)?;
    let index = indices(context, rng, named, shape[axis])?;
    let (to, by, from) = (&target.tensor, &index.tensor, &source.tensor);
    let changed = if in_place {
        match (what, along) {
            (Change::Sum, true) => to.scatter_add_assign(axis, by, from),
            (Change::Sum, false) => to.index_add_assign(axis, by, from),
            (Change::Set, true) => to.scatter_assign(axis, by, from),
            (Change::Set, false) => to.index_copy_assign(axis, by, from),
            (Change::Max, true) => to.scatter_max_assign(axis, by, from),
            (Change::Max, false) => to.index_max_assign(axis, by, from),
            (Change::Min, true) => to.scatter_min_assign(axis, by, from),
            (Change::Min, false) => to.index_min_assign(axis, by, from),
        }?;
        to.clone()
    } else {
        match (what, along) {
            (Change::Sum, true) => to.scatter_add(axis, by, from),
            (Change::Sum, false) => to.index_add(axis, by, from),
            (Change::Set, true) => to.scatter(axis, by, from),
            (Change::Set, false) => to.index_copy(axis, by, from),
            (Change::Max, true) => to.scatter_max(axis, by, from),
            (Change::Max, false) => to.index_max(axis, by, from),
            (Change::Min, true) => to.scatter_min(axis, by, from),
            (Change::Min, false) => to.index_min(axis, by, from),
        }?
    };
    let values = source.values();
    let (mut sums, mut set) = (wide(&target.values()), target.values());
    let walked = if along { named } else { sizes };
    for element in 0..walked.iter().product::<usize>() {
        let mut rest = element;
        let mut at = vec![0; walked.len()];
        for d in (0..walked.len()).rev() {
            at[d] = rest % walked[d];
            rest /= walked[d];
        }
        let entry = index.entries[if along { element } else { at[axis] }];
        let flat = |sizes: &[usize], at: &[usize]| {
            at.iter()
                .zip(sizes)
                .fold(0, |all, (&i, &size)| all * size + i)
        };
        let value = values[flat(sizes, &at)];
        let Some(entry) = entry else { continue };
        at[axis] = entry;
        let out = flat(shape, &at);
        match what {
            Change::Sum => sums[out] = plus::<T>(sums[out], wide(&[value])[0]),
            Change::Set => set[out] = value,
            extreme => set[out] = extreme.of(set[out], value),
        }
    }
    if what == Change::Sum {
        set = sums.into_iter().map(T::from_value).collect();
    }
    assert_eq!(changed.shape().dims(), shape);
    stays(context, &changed);
    let story = format!("{} + {}", target.story(), source.story());
    let alike = |got: &Tensor, want: &[T]| -> Result<()> {
        let got = got.to_vec::<T>()?;
        for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
            let is_same = T::is_same(want, got, what == Change::Sum);
            assert!(is_same, "{story}: element {at} is {got:?}, not {want:?}");
        }
        Ok(())
    };
    alike(&changed, &set)?;
    if !in_place {
        // The tensor itself is as it was.
        return target.check();
    }
    let mut all = whole.values();
    for (&at, &value) in target.grid.indices.iter().zip(&set) {
        all[at] = value;
    }
    alike(&whole.tensor, &all)
}

/// As sums are kept: f16 and bf16 in f32.
fn wide<T: Number>(values: &[T]) -> Vec<Value> {
    values.iter().map(|value| value.value()).collect()
}

/// One step of a sum.
fn plus<T: Number>(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) if T::DTYPE == DType::F64 => Value::Float(a + b),
        (Value::Float(a), Value::Float(b)) => Value::Float(f64::from(a as f32 + b as f32)),
        (Value::Integer(a), Value::Integer(b)) if T::DTYPE == DType::U32 => {
            Value::Integer(i64::from((a + b) as u32))
        }
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(i64::from((a + b) as i32)),
        _ => unreachable!(),
    }
}

/// Longer than llvmpipe's loops, over few lines, and the same bits each time.
fn long_sums(context: &Context) -> Result<()> {
    let count = if context.is_slow() { 70_000 } else { 200_001 };
    let device = context.device();
    let mut rng = Rng::new(crate::rng::seed());
    let values: Vec<f32> = (0..count).map(|_| rng.unit() as f32).collect();
    let ids: Vec<i32> = (0..count).map(|_| rng.below(40) as i32 - 20).collect();
    let source = Tensor::from_slice(device, &values, [count])?;
    let index = Tensor::from_slice(device, &ids, [count])?;
    let zeros = Tensor::zeros(device, [30], DType::F32)?;
    let result = zeros.scatter_add(0, &index, &source)?.to_vec::<f32>()?;
    let mut want = [0f32; 30];
    for (&value, &id) in values.iter().zip(&ids) {
        want[(id + if id < 0 { 30 } else { 0 }) as usize] += value;
    }
    assert_eq!(result, want);
    assert_eq!(zeros.index_add(0, &index, &source)?.to_vec::<f32>()?, want);
    // Many lines of one entry each, and a table above a window.
    let ones = source.unsqueeze(1)?.broadcast_to([count, 3])?;
    let tall = Tensor::zeros(device, [30, 3], DType::F32)?.index_add(0, &index, &ones)?;
    let tall = tall.to_vec::<f32>()?;
    assert!(tall.chunks(3).zip(want).all(|(row, want)| row == [want; 3]));
    Ok(())
}

/// Entries of the axis, added one launch after the other, begin at other places of their windows.
fn windows_of_entries(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    // Two rows of the first entry are within a window; those of the second go across one more multiple of 256 bytes.
    let (rows, entries, columns) = (2, 3, 341);
    let values: Vec<f32> = (0..rows * 2 * columns).map(|x| x as f32).collect();
    let source = Tensor::from_slice(&device, &values, [rows, 2, columns])?;
    let index = Tensor::from_slice(&device, &[2i32, 0], [2])?;
    let zeros = Tensor::zeros(&device, [rows, entries, columns], DType::F32)?;
    let result = zeros.index_add(1, &index, &source)?;
    let mut want = vec![0.0; rows * entries * columns];
    for (at, &value) in values.iter().enumerate() {
        let (row, entry, column) = (at / columns / 2, at / columns % 2, at % columns);
        want[(row * entries + [2, 0][entry]) * columns + column] = value;
    }
    same(&result, &want)
}

/// Those where hardware's workgroups share an index, of windows: entries of other windows are not theirs.
fn hardware_windows(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    let (rows, columns, count) = (60, 40, 60);
    let mut rng = Rng::new(crate::rng::seed());
    let mut ids: Vec<i32> = (0..count).map(|_| rng.below(rows) as i32).collect();
    (ids[1], ids[count - 1]) = (ids[0], rows as i32 - 1);
    let values: Vec<i32> = (0..count * columns).map(|at| at as i32 + 1).collect();
    let mut want = vec![0; rows * columns];
    for (at, value) in values.iter().enumerate() {
        want[ids[at / columns] as usize * columns + at % columns] += value;
    }
    let index = Tensor::from_slice(&device, &ids, [count])?;
    let source = Tensor::from_slice(&device, &values, [count, columns])?;
    let zeros = Tensor::zeros(&device, [rows, columns], DType::I32)?;
    same(
        &with_hardware_plans(|| zeros.index_add(0, &index, &source))?,
        &want,
    )?;
    let index = index.unsqueeze(1)?.broadcast_to([count, columns])?;
    same(
        &with_hardware_plans(|| zeros.scatter_add(0, &index, &source))?,
        &want,
    )
}

/// Rows alone reach further than a binding: such operands are copied first, and what is repeated is not.
fn far_operands(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    // As they lie, each line would be a launch of its own: more than there may be.
    let (rows, columns) = (65_537, 8);
    let stored: Vec<i32> = (0..2 * rows as i32 * columns as i32).collect();
    let stored = Tensor::from_slice(&device, &stored, [2, rows, columns])?;
    let source = stored.permute(&[1, 2, 0])?;
    let named = [0, 1, 2, -1, 1, 5, 0, 0];
    let index = Tensor::from_slice(&device, &named, [columns])?;
    let ones = Tensor::ones(&device, [rows, 3, 2], DType::I32)?;
    let sums = |rows: usize| {
        let mut sums = vec![1; rows * 3 * 2];
        for (row, sums) in sums.chunks_mut(6).enumerate() {
            for (column, &name) in named.iter().enumerate().filter(|(_, name)| **name < 3) {
                let entry = if name < 0 { 2 } else { name as usize };
                for half in 0..2 {
                    sums[entry * 2 + half] += ((half * 65_537 + row) * columns + column) as i32;
                }
            }
        }
        sums
    };
    same(&ones.index_add(1, &index, &source)?, &sums(rows))?;
    // From where kernels have no limits, in place; and into what lies so itself.
    let there = Device::cpu();
    let [of_host, from_host] = [index.to(&there)?, stored.to(&there)?.permute(&[1, 2, 0])?];
    let changed = ones.copy()?;
    changed.index_add_assign(1, &of_host, &from_host)?;
    same(&changed, &sums(rows))?;
    let turned = Tensor::ones(&device, [2, rows, 3], DType::I32)?.permute(&[1, 2, 0])?;
    turned.index_add_assign(1, &index, &source)?;
    same(&turned, &sums(rows))?;
    // An index that lies so too.
    let rows = 3000;
    let part = ones.slice(..rows)?;
    let numbers = index.broadcast_to([2, rows, columns])?.copy()?;
    let index = numbers.permute(&[1, 2, 0])?;
    let added = part.scatter_add(1, &index, &source.slice(..rows)?)?;
    same(&added, &sums(rows))?;
    let entries = named.iter().flat_map(|&name| [i32::from(name < 3); 2]);
    let want: Vec<i32> = entries.cycle().take(rows * columns * 2).collect();
    same(&part.gather(1, &index)?, &want)?;
    // One number for a row, which is read where it is.
    let table = Tensor::from_slice(&device, &[5i32, 6, 7, 8, 9, 10], [2, 3])?;
    let numbers: Vec<u32> = (0..rows as u32).map(|row| row % 2).collect();
    let index = Tensor::from_slice(&device, &numbers, [rows, 1])?.broadcast_to([rows, 3])?;
    device.synchronize()?;
    device.reset_peaks();
    let before = device.memory().allocated;
    let taken = table.gather(0, &index)?;
    let memory = device.memory().peak_allocated - before;
    assert_eq!(memory, (rows as u64 * 12).next_multiple_of(256));
    let want: Vec<i32> = (0..rows)
        .flat_map(|row| [5, 6, 7].map(|x| x + row as i32 % 2 * 3))
        .collect();
    same(&taken, &want)
}

/// More workgroups than one dimension of a grid has.
fn many_workgroups(context: &Context) -> Result<()> {
    let device = context.device();
    // Of lines with an index each, of one entry: a workgroup has 64.
    let count = if context.is_slow() {
        1 << 12
    } else {
        65_536 * 64 + 77
    };
    let values: Vec<i32> = (0..count).collect();
    let source = Tensor::from_slice(device, &values, [1, count as usize])?;
    let index = Tensor::full(device, [1, count as usize], -1, DType::I32)?;
    let ones = Tensor::ones(device, [2, count as usize], DType::I32)?;
    let sums = ones.scatter_add(0, &index, &source)?.to_vec::<i32>()?;
    let (first, last) = sums.split_at(count as usize);
    assert!(first.iter().all(|&sum| sum == 1));
    assert!(
        last.iter()
            .zip(&values)
            .all(|(&sum, &value)| sum == value + 1)
    );
    let count = if context.is_slow() {
        1 << 16
    } else {
        65_536 * 1024 + 77
    };
    let index = Tensor::from_slice(device, &[1i32, 0, 1, 1, -2], [5])?;
    let table = Tensor::from_slice(device, &[5u32, 7], [2])?;
    let some = table.index_select(0, &index)?.reshape([5, 1])?;
    assert_eq!(some.to_vec::<u32>()?, [7, 5, 7, 7, 5]);
    let ids = Tensor::from_slice(device, &[1u32, 9, 0], [3, 1])?.broadcast_to([3, count / 3])?;
    let wide = table.unsqueeze(1)?.broadcast_to([2, count / 3])?;
    let result = wide.gather(0, &ids)?;
    for (row, want) in [7u32, 0, 5].into_iter().enumerate() {
        for at in [0, 1, 255, count / 6, count / 3 - 2] {
            let got = result.slice((row..row + 1, at..at + 2))?.to_vec::<u32>()?;
            assert_eq!(got, [want; 2], "{row} {at}");
        }
    }
    Ok(())
}

/// What is written lies in parts that no kernel binds at once, or holds the index and the source; no memory is taken.
fn written_in_place(context: &Context) -> Result<()> {
    let device = &context.builder().max_binding_bytes(4 << 10).build()?;
    let numbers: Vec<i32> = (0..60_000).collect();
    let whole = || Tensor::from_slice(device, &numbers, [300, 200]);
    // Rows of a large tensor, and of a part of it with gaps.
    let cache = whole()?;
    let rows = Tensor::full(device, [4, 200], -1, DType::I32)?;
    let places = Tensor::from_slice(device, &[299i32, 3, -300, 300], [4])?;
    device.synchronize()?;
    device.reset_peaks();
    let before = device.memory().allocated;
    cache.index_copy_assign(0, &places, &rows)?;
    cache.index_add_assign(0, &places, &rows)?;
    cache
        .slice((100.., ..))?
        .index_copy_assign(0, &places, &rows)?;
    assert_eq!(device.memory().peak_allocated, before);
    let changed = |at: usize| match at / 200 {
        299 | 3 | 0 => -2,
        103 => -1,
        _ => numbers[at],
    };
    let want: Vec<i32> = (0..60_000).map(changed).collect();
    same(&cache, &want)?;
    let cache = whole()?;
    let part = cache.slice((.., 7..100))?;
    part.index_copy_assign(0, &places, &rows.slice((.., 7..100))?)?;
    let changed = |at: usize| match (at / 200, at % 200) {
        (299 | 3 | 0, 7..100) => -1,
        _ => numbers[at],
    };
    same(&cache, &(0..60_000).map(changed).collect::<Vec<i32>>())?;
    // Itself, read before anything is written: rows one on, and by numbers of its own.
    let cache = whole()?;
    let places = Tensor::arange(device, 1, 300, 1, DType::I32)?;
    cache.index_copy_assign(0, &places, &cache.slice(..299)?)?;
    let want: Vec<i32> = numbers[..200]
        .iter()
        .chain(&numbers[..59_800])
        .copied()
        .collect();
    same(&cache, &want)?;
    let line = Tensor::from_slice(device, &[2i32, 0, 1, 2], [4])?;
    line.scatter_add_assign(0, &line, &line)?;
    same(&line, &[2, 1, 5, 2])?;
    // Parts of the source times windows of what is written: in a copy where they are many.
    let wide = Tensor::zeros(device, [300, 20_000], DType::F32)?;
    let part = wide.slice((.., ..10))?;
    let places = Tensor::from_slice(
        device,
        &(0..1200).map(|at| at % 300).collect::<Vec<i32>>(),
        [1200],
    )?;
    part.index_add_assign(0, &places, &Tensor::ones(device, [1200, 10], DType::F32)?)?;
    same(&part, &[4.0f32; 3000])?;
    same(&wide.slice((.., 10..13))?, &[0.0f32; 900])?;
    // Of narrow elements the index reaches further than what it names.
    for (rows, columns) in [(64, 100), (1024, 5)] {
        let last = Tensor::full(device, [rows, columns], 9, DType::I32)?;
        let marks = Tensor::ones(device, [rows, columns], DType::Bool)?;
        let cells = Tensor::zeros(device, [10, columns], DType::Bool)?;
        let mut want = vec![false; 10 * columns];
        want[9 * columns..].fill(true);
        same(&cells.scatter(0, &last, &marks)?, &want)?;
        cells.scatter_assign(0, &last, &marks)?;
        same(&cells, &want)?;
        let halves = [&cells, &marks].map(|bools| bools.cast(DType::F16));
        let [cells, marks] = [halves[0].as_ref().unwrap(), halves[1].as_ref().unwrap()];
        let doubled = cells.scatter(0, &last, &marks.add(marks)?)?;
        let want: Vec<f16> = want
            .iter()
            .map(|&is| f16::from_f32(if is { 2.0 } else { 0.0 }))
            .collect();
        same(&doubled, &want)?;
    }
    // A view of one element at several places; errors that change nothing.
    let repeated = line.slice(..1)?.broadcast_to([4])?;
    let refused = repeated.scatter_assign(0, &line, &line).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    let halves = line.cast(DType::F16)?;
    for refused in [
        line.scatter_assign(1, &line, &line),
        line.index_copy_assign(0, &line, &line.slice(..3)?),
        line.index_copy_assign(0, &halves, &line),
        line.index_copy_assign(0, &line, &halves),
        halves.index_add_assign(0, &line, &line),
    ] {
        refused.unwrap_err();
    }
    same(&line, &[2, 1, 5, 2])
}

/// Few entries of many are summed by themselves: the same bits as with all of them, and memory for those few.
fn few_of_many_halves(context: &Context) -> Result<()> {
    cases(context.times(6), |rng| {
        for dtype in [DType::F16, DType::BF16] {
            let device = &context.builder().build()?;
            let random = |shape: &[usize], seed| Tensor::randn(device, shape, DType::F32, seed);
            let (axis, shape) = *rng.pick(&[(0, [701, 3, 13]), (1, [2, 900, 7]), (2, [5, 4, 800])]);
            let count = 1 + rng.below(6);
            let mut given = shape;
            given[axis] = count;
            let (table, source) = (random(&shape, 1)?, random(&given, 2)?.mul(300.0)?);
            let (table, source) = (table.cast(dtype)?, source.cast(dtype)?);
            let table = match rng.one_in(2) {
                true => table.transpose(0, 2)?.copy()?.transpose(0, 2)?,
                false => table,
            };
            // Some from the end, some the same, some that do not exist.
            let size = shape[axis] as i32;
            let numbers: Vec<i32> = (0..count)
                .map(|_| *rng.pick(&[-1, size - 1, -size, 0, 17, 17 - size, size, -size - 1]))
                .collect();
            let index = Tensor::from_slice(device, &numbers, [count])?;
            let index = match rng.one_in(2) && numbers.iter().all(|&at| at >= 0) {
                true => index.cast(DType::U32)?,
                false => index,
            };
            let want = table.index_add(axis, &index, &source)?;
            device.synchronize()?;
            device.reset_peaks();
            let before = device.memory().allocated;
            table.index_add_assign(axis, &index, &source)?;
            let peak = device.memory().peak_allocated - before;
            assert!(
                peak < table.elements() as u64,
                "{peak} bytes for {given:?} of {shape:?}"
            );
            let bits = |x: &Tensor| x.cast(DType::F32)?.to_vec::<f32>();
            let (got, want) = (bits(&table)?, bits(&want)?);
            assert!(got == want, "{dtype} {numbers:?} along {axis} of {shape:?}");
        }
        Ok(())
    })?;
    // What it is made of is not what the program asked for.
    let table_bytes = 1 << 20;
    let device = &context.builder().memory_limit(table_bytes + 4096).build()?;
    let table = Tensor::zeros(device, [1 << 13, 64], DType::BF16)?;
    let places = Tensor::zeros(device, [8], DType::U32)?;
    let rows = Tensor::zeros(device, [8, 64], DType::BF16)?;
    match table.index_add_assign(0, &places, &rows) {
        Err(Error::OutOfMemory(full)) => assert_eq!(full.op, Some("index_add_assign")),
        done => panic!("{done:?} in {}", device.memory_summary()),
    }
    Ok(())
}

/// Sums of halves are made apart: threads add one after the other, and nothing but what they name is written.
fn halves_of_threads(context: &Context) -> Result<()> {
    let (device, times) = (context.device(), 20);
    let cache = Tensor::zeros(device, [6, 3], DType::F16)?;
    let ones = Tensor::ones(device, [2, 3], DType::F16)?;
    thread::scope(|scope| {
        let add = |row: i32| {
            let rows = Tensor::from_slice(device, &[row, row], [2])?;
            (0..times).try_for_each(|_| cache.index_add_assign(0, &rows, &ones))
        };
        // On the CPU's device each has entries of its own.
        let threads =
            [0, if context.is_cpu() { 1 } else { 0 }].map(|row| scope.spawn(move || add(row)));
        for round in 0..times {
            cache.slice(4..5)?.fill(round)?;
            let last = cache.slice(4..5)?.to_vec::<f16>()?;
            assert!(
                last.iter().all(|&x| x == f16::from_f32(round as f32)),
                "{last:?}"
            );
        }
        let mut ends = threads.into_iter().map(|thread| thread.join().unwrap());
        ends.try_for_each(|end| end)
    })?;
    let sums = cache.cast(DType::F32)?.sum([0, 1])?.item::<f32>()?;
    assert_eq!(sums, (2 * 2 * 3 * times + 3 * (times - 1)) as f32);
    Ok(())
}

/// The index is the table, or a part of it.
fn one_storage(context: &Context) -> Result<()> {
    let count = 3000;
    let numbers: Vec<i32> = (0..count).map(|x| (x * 7919 + 13) % count).collect();
    let whole = Tensor::from_slice(context.device(), &numbers, [count as usize])?;
    let want: Vec<i32> = numbers.iter().map(|&x| numbers[x as usize]).collect();
    same(&whole.index_select(0, &whole)?, &want)?;
    let part = whole.slice(100..200)?;
    same(&whole.index_select(0, &part)?, &want[100..200])?;
    same(&whole.gather(0, &part)?, &want[100..200])
}
