//! add, sub, mul, div against references of their own, on any strides.

use half::{bf16, f16};
use orlop::{DType, Result, Tensor, fused};

use crate::adapters::{Context, full, in_turn, stored_alone};
use crate::grid::broadcast_shapes;
use crate::number::{Arithmetic, Number, Value, for_each_dtype};
use crate::operand::{Operand, random_shape};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("elementwise::operators", Scope::Device, operators),
        Test::new("elementwise::functions", Scope::Kernels, functions),
        Test::new(
            "elementwise::nan_as_a_number",
            Scope::Device,
            nan_as_a_number,
        ),
        Test::new("elementwise::bits_of_halves", Scope::Device, bits_of_halves),
        Test::new("elementwise::large", Scope::Device, large),
        Test::new(
            "elementwise::many_workgroups",
            Scope::Device,
            many_workgroups,
        ),
    ];
    for_each_dtype!(all, Scope::Kernels, "elementwise::random", random, in_turn);
    for_each_dtype!(
        all,
        Scope::Kernels,
        "elementwise::edges",
        edges,
        stored_alone
    );
    for_each_dtype!(
        all,
        Scope::Kernels,
        "elementwise::aliases",
        aliases,
        stored_alone
    );
    for_each_dtype!(all, Scope::Kernels, "elementwise::rows", rows, stored_alone);
    for_each_dtype!(
        all,
        Scope::Kernels,
        "elementwise::rows_of_chains",
        rows_of_chains,
        stored_alone
    );
    for_each_dtype!(all, Scope::Kernels, "elementwise::specials", specials);
    all
}

/// A number that is NaN is as an element that is: nothing is smaller or larger.
fn nan_as_a_number(context: &Context) -> Result<()> {
    let device = context.device();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        if !device.capabilities().holds(dtype) {
            continue;
        }
        let x = Tensor::full(device, [100], 2.0, dtype)?;
        for y in [x.minimum(f32::NAN)?, x.maximum(f32::NAN)?] {
            let y = y.cast(DType::F32)?.to_vec::<f32>()?;
            assert!(y.iter().all(|y| y.is_nan()), "{dtype}: {y:?}");
        }
    }
    Ok(())
}

fn run(op: Arithmetic, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match op {
        Arithmetic::Add => a.add(b),
        Arithmetic::Sub => a.sub(b),
        Arithmetic::Mul => a.mul(b),
        Arithmetic::Div => a.div(b),
    }
}

/// Computes on the device and compares each element.
pub fn check<T: Number>(
    context: &Context,
    op: Arithmetic,
    a: &Operand<T>,
    b: &Operand<T>,
) -> Result<()> {
    let story = || format!("{op:?} of {} {} and {}", T::DTYPE, a.story(), b.story());
    let shape = broadcast_shapes(a.shape(), b.shape());
    let result = run(op, &a.tensor, &b.tensor).unwrap_or_else(|e| panic!("{}: {e}", story()));
    assert_eq!(result.shape().dims(), shape, "{}", story());
    assert_eq!(result.dtype(), T::DTYPE);
    // Without gaps, in the order of the operands.
    assert_eq!(
        result.layout().end(),
        result.elements(),
        "{result:?}: {}",
        story()
    );
    if context.device().capabilities().holds(T::DTYPE) {
        assert_eq!(result.device(), context.device(), "{}", story());
    }
    let got = result.to_vec::<T>()?;
    let left = a.grid.broadcast(&shape);
    let right = b.grid.broadcast(&shape);
    assert_eq!(got.len(), left.indices.len(), "{}", story());
    let (left, right) = (a.through(&left), b.through(&right));
    for (at, &got) in got.iter().enumerate() {
        let (x, y) = (left[at], right[at]);
        assert!(
            T::is_right(op, x, y, got, context.is_cpu()),
            "{}: element {at}: {op:?} of {x:?} and {y:?} gave {got:?} ({:#x})",
            story(),
            got.bits()
        );
    }
    Ok(())
}

/// On software adapters mostly one that minds the order of its operands.
pub fn some_op(context: &Context, rng: &mut Rng) -> Arithmetic {
    context.op(rng, &Arithmetic::ALL, Arithmetic::Sub)
}

fn random<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let most = if context.is_slow() { 1500 } else { 4000 };
    cases(context.times(120), |rng| {
        let target = random_shape(rng, 7, most);
        let mut shape = || -> Vec<usize> {
            let dropped = if rng.one_in(3) && !target.is_empty() {
                rng.below(target.len())
            } else {
                0
            };
            target[dropped..]
                .iter()
                .map(|&size| if rng.one_in(5) { 1 } else { size })
                .collect()
        };
        let (a_shape, b_shape) = (shape(), shape());
        let a = Operand::<T>::random_view(device, rng, &a_shape)?;
        let b = Operand::<T>::random_view(device, rng, &b_shape)?;
        check(context, some_op(context, rng), &a, &b)
    })
}

/// Sizes around vectors, workgroups and grids, from offsets that spoil the alignment.
fn edges<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let mut sizes = vec![
        0, 1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 4095, 4097,
    ];
    if !context.is_slow() {
        sizes.extend([65_535, 65_536, 65_537, 262_147]);
    }
    cases(1, |rng| {
        for &size in &sizes {
            let a = Operand::<T>::random(device, rng, &[size + 4])?;
            let b = Operand::<T>::random(device, rng, &[size + 4])?;
            for (first, second) in [(0, 0), (1, 0), (4, 4), (3, 2), (0, 4)] {
                let a = a.range(first..first + size)?;
                let b = b.range(second..second + size)?;
                check(context, some_op(context, rng), &a, &b)?;
            }
        }
        // Rows whose inner size is or is not a multiple of four, against rows and columns.
        for (rows, columns) in [(3, 4), (4, 3), (5, 8), (33, 12), (2, 1), (1, 2), (17, 257)] {
            let a = Operand::<T>::random(device, rng, &[rows, columns])?;
            for shape in [
                vec![columns],
                vec![rows, 1],
                vec![1],
                vec![],
                vec![1, columns],
            ] {
                let b = Operand::<T>::random(device, rng, &shape)?;
                check(context, some_op(context, rng), &a, &b)?;
                check(context, some_op(context, rng), &b, &a)?;
            }
        }
        Ok(())
    })
}

/// Rows and columns of rows: on the CPU of all short lengths, and of those around vectors, steps of a chain, blocks and what
/// one thread takes.
fn row_sizes(context: &Context) -> Vec<[usize; 2]> {
    let mut all: Vec<[usize; 2]> = vec![[37, 3], [5, 64], [3, 257], [2, 1025]];
    if context.is_cpu() {
        all.extend((1..=70).map(|columns| [37, columns]));
        all.extend((127..=129).map(|columns| [9, columns]));
        all.extend((254..=258).map(|columns| [5, columns]));
        all.extend((1022..=1026).map(|columns| [3, columns]));
        all.extend([
            [1, 300],
            [2, 2100],
            [12_000, 3],
            [1100, 32],
            [531, 64],
            [400, 100],
        ]);
        all.extend([[140, 300], [3, 17_000], [1, 40_000]]);
    }
    all
}

/// What repeats along rows, columns and whole planes, by itself and beside what does not.
fn rows<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    cases(1, |rng| {
        for [rows, columns] in row_sizes(context) {
            let mut view = |shape: &[usize]| Operand::<T>::random_view(device, rng, shape);
            let (row, column) = (view(&[columns])?, view(&[rows, 1])?);
            let (part, plane) = (view(&[rows, columns])?, view(&[2, 1, columns])?);
            let whole = Operand::<T>::random(device, rng, &[rows, columns])?;
            let outer = Operand::<T>::random(device, rng, &[2, rows, 1])?;
            let straight =
                Operand::<T>::random(device, rng, &[columns + 3])?.range(3..columns + 3)?;
            let pairs = [
                (&whole, &straight),
                (&whole, &row),
                (&whole, &column),
                (&column, &row),
                (&part, &straight),
                (&part, &column),
                (&plane, &whole),
                (&plane, &outer),
                (&outer, &whole),
                (&straight, &outer),
            ];
            for (first, second) in pairs {
                check(context, some_op(context, rng), first, second)?;
                check(context, some_op(context, rng), second, first)?;
            }
        }
        // Many planes, each with a row or a column of its own, of few elements and of more.
        for [rows, columns] in [[2, 16], [7, 16], [33, 16], [3, 130], [5, 130], [17, 32]] {
            let of = |rng: &mut Rng, shape: &[usize]| Operand::<T>::random(device, rng, shape);
            let whole = of(rng, &[9, rows, columns])?;
            for other in [[9, 1, columns], [9, rows, 1], [1, rows, columns]] {
                let other = of(rng, &other)?;
                check(context, some_op(context, rng), &whole, &other)?;
                check(context, some_op(context, rng), &other, &whole)?;
            }
        }
        Ok(())
    })
}

/// Chains, and functions that are in none, of operands that repeat: on the CPU the same bits as of copies of them.
fn rows_of_chains<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    if !context.is_cpu() {
        return Ok(());
    }
    let is_float = matches!(T::DTYPE, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    cases(1, |rng| {
        for [rows, columns] in row_sizes(context) {
            let all = [
                Operand::<T>::random(device, rng, &[rows, columns])?.tensor,
                Operand::<T>::random(device, rng, &[columns])?.tensor,
                Operand::<T>::random(device, rng, &[rows, 1])?.tensor,
                Operand::<T>::random(device, rng, &[1])?.tensor,
            ];
            let copies = [0, 1, 2].map(|at: usize| {
                let copy = all[at].broadcast_to([rows, columns]);
                copy.and_then(|view| view.copy())
            });
            let [x, row, column] = copies;
            let copies = [x?, row?, column?, all[3].clone()];
            let results = |[x, row, column, one]: &[Tensor; 4]| -> Result<Vec<Tensor>> {
                let mut all = vec![
                    x.mul_add(row, column)?,
                    row.clamp(column, x)?,
                    column.minimum(row)?,
                    x.maximum(row)?,
                    x.rem(row)?,
                    column.rem(row)?,
                    row.lt(column)?.cast(T::DTYPE)?,
                    x.gt(column)?.select(row, x)?,
                ];
                if is_float {
                    all.push(fused(|e| {
                        let (x, row, column) = (e.input(x), e.input(row), e.input(column));
                        let z = (row - x).maximum(column) * row + 0.5;
                        (z.neg().abs().minimum(e.input(one)) - column).relu() / row
                    })?);
                    all.push(column.atan2(row)?);
                    all.push(row.leaky_relu(column)?);
                    all.push(fused(|e| {
                        (e.input(x) - e.input(row)).exp() * e.input(column)
                    })?);
                    // Two chains, one of which waits for the other.
                    all.push(fused(|e| {
                        let (x, row, column) = (e.input(x), e.input(row), e.input(column));
                        (x + row) * (x - column)
                    })?);
                }
                let into = x.copy()?;
                into.add_assign(row)?;
                into.sub_assign(column)?;
                all.push(into);
                Ok(all)
            };
            for (at, (got, want)) in results(&all)?.iter().zip(&results(&copies)?).enumerate() {
                let (got, want) = (got.to_vec::<T>()?, want.to_vec::<T>()?);
                for (place, (got, want)) in got.iter().zip(&want).enumerate() {
                    let are_nan =
                        [got, want].map(|x| matches!(x.value(), Value::Float(x) if x.is_nan()));
                    assert!(
                        got.bits() == want.bits() || are_nan == [true; 2],
                        "{} {rows} {columns}, result {at}, element {place}: {got:?}, not {want:?}",
                        T::DTYPE
                    );
                }
            }
        }
        Ok(())
    })
}

/// `neg`, `abs` and `relu` of every number of 16 bits, from any element on, with steps and in place: the bits themselves.
fn bits_of_halves(context: &Context) -> Result<()> {
    let device = context.device();
    if !context.is_cpu() {
        // Of adapters `functions::halves` has these; subnormals may be flushed.
        return Ok(());
    }
    let all: Vec<u16> = (0..=u16::MAX).chain(0..5).collect();
    let halves: Vec<f16> = all.iter().map(|&bits| f16::from_bits(bits)).collect();
    let brains: Vec<bf16> = all.iter().map(|&bits| bf16::from_bits(bits)).collect();
    let tensors = [
        (Tensor::from_slice(device, &halves, all.len())?, 0x7c00u16),
        (Tensor::from_slice(device, &brains, all.len())?, 0x7f80),
    ];
    let bits = |tensor: &Tensor| -> Result<Vec<u16>> {
        Ok(match tensor.dtype() {
            DType::F16 => tensor
                .to_vec::<f16>()?
                .iter()
                .map(|x| x.to_bits())
                .collect(),
            _ => tensor
                .to_vec::<bf16>()?
                .iter()
                .map(|x| x.to_bits())
                .collect(),
        })
    };
    for (tensor, infinity) in tensors {
        let is_nan = |x: u16| x & 0x7fff > infinity;
        let check =
            |name: &str, x: &[u16], got: &Tensor, want: &dyn Fn(u16) -> u16| -> Result<()> {
                let got = bits(got)?;
                assert_eq!(got.len(), x.len());
                for (&x, got) in x.iter().zip(got) {
                    let is_right = if is_nan(x) {
                        is_nan(got)
                    } else {
                        got == want(x)
                    };
                    assert!(is_right, "{name} of {x:#x}: {got:#x}, not {:#x}", want(x));
                }
                Ok(())
            };
        let neg = |x: u16| x ^ 0x8000;
        let abs = |x: u16| x & 0x7fff;
        // That of zero stays here.
        let relu = |x: u16| if x > 0x8000 { 0 } else { x };
        let views = [
            tensor.clone(),
            tensor.slice(1..)?,
            tensor.slice(5..40_000)?,
            tensor.slice(0..1)?,
            tensor.slice(0x7f00..0x8100)?,
            tensor.flip(&[0])?,
            tensor.slice(orlop::SliceRange::from(3..).step(2))?,
        ];
        for view in views {
            let x = bits(&view)?;
            check("neg", &x, &view.neg()?, &neg)?;
            check("abs", &x, &view.abs()?, &abs)?;
            check("relu", &x, &view.relu()?, &relu)?;
            let into = view.copy()?;
            into.fused_assign(|_, x| x.neg())?;
            check("neg in place", &x, &into, &neg)?;
            let into = view.copy()?;
            into.fused_assign(|_, x| x.relu())?;
            check("relu in place", &x, &into, &relu)?;
        }
    }
    // Larger than the caches of most processors, as [`large`]: pieces that begin within a copy of the row.
    let row = Tensor::from_slice(device, &halves, all.len())?;
    let many = row.broadcast_to([290, all.len()])?.copy()?.neg()?;
    let row = bits(&row.neg()?)?;
    for (at, got) in bits(&many)?.chunks(row.len()).enumerate() {
        assert!(got == row, "row {at} is another");
    }
    Ok(())
}

/// Both operands in one storage.
fn aliases<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    cases(context.times(6), |rng| {
        for size in [1, 4, 7, 16, 33] {
            let a = Operand::<T>::random(device, rng, &[size, size])?;
            let row = a.slice(&[size / 2..size / 2 + 1, 0..size])?;
            let column = a.slice(&[0..size, size - 1..size])?;
            let turned = a.transpose(0, 1)?;
            let pairs = [
                (&a, &a),
                (&a, &turned),
                (&row, &a),
                (&a, &column),
                (&row, &column),
            ];
            for (first, second) in pairs {
                // Each op and each pair is a kernel; they meet on the CPU, where none is compiled.
                if context.is_cpu() || full() {
                    for op in Arithmetic::ALL {
                        check(context, op, first, second)?;
                    }
                } else {
                    check(context, some_op(context, rng), first, second)?;
                }
            }
            let line = Operand::<T>::random(device, rng, &[4 * size + 4])?;
            let op = some_op(context, rng);
            for start in [1, 3, 4] {
                let other = line.range(start..start + 4 * size)?;
                check(context, op, &line.range(0..4 * size)?, &other)?;
            }
        }
        Ok(())
    })
}

/// Every special value with every other: NaN, infinities, zeros, the ends of the integers.
fn specials<T: Number>(context: &Context) -> Result<()> {
    let device = context.device();
    let values: Vec<T> = T::specials()
        .into_iter()
        // Division by what is near the largest float may flush (WGSL).
        .filter(|x| !matches!(x.value(), Value::Float(x) if x.is_finite() && x.abs() > 1e38))
        .collect();
    let count = values.len();
    let a = Operand::new(device, values.clone(), &[count, 1])?;
    let b = Operand::new(device, values, &[count])?;
    for op in Arithmetic::ALL {
        check(context, op, &a, &b)?;
        // Without broadcasting, so that vectors are loaded.
        let shape = [count, count];
        let whole = |operand: &Operand<T>| -> Result<Operand<T>> {
            Operand::new(
                device,
                operand.through(&operand.grid.broadcast(&shape)),
                &shape,
            )
        };
        check(context, op, &whole(&a)?, &whole(&b)?)?;
    }
    Ok(())
}

fn operators(context: &Context) -> Result<()> {
    let device = context.device();
    let a = Tensor::from_slice(device, &[1.0f32, 2.0, 3.0], [3])?;
    let b = Tensor::from_slice(device, &[4.0f32, 8.0, 16.0], [3])?;
    let is = |tensor: Result<Tensor>, want: [f32; 3]| -> Result<()> {
        assert_eq!(tensor?.to_vec::<f32>()?, want);
        Ok(())
    };
    is(&a + &b, [5.0, 10.0, 19.0])?;
    is(&a - &b, [-3.0, -6.0, -13.0])?;
    is(&a * &b, [4.0, 16.0, 48.0])?;
    is(&b / &a, [4.0, 4.0, 16.0 / 3.0])?;
    is(&a * &b + &a, [5.0, 18.0, 51.0])?;
    is(&a + &b * &a, [5.0, 18.0, 51.0])?;
    is(&a * 2.0, [2.0, 4.0, 6.0])?;
    is(2.0 - &a, [1.0, 0.0, -1.0])?;
    is(&a + 1, [2.0, 3.0, 4.0])?;
    is(&b % &a, [0.0, 0.0, 1.0])?;
    is(-&a, [-1.0, -2.0, -3.0])?;
    is(&b + -&a, [3.0, 6.0, 13.0])?;
    is(&a * &b % &b, [0.0; 3])?;
    is(&b % (&a + 2), [1.0, 0.0, 1.0])?;
    let whole = Tensor::from_slice(device, &[1i32, 2, 3], [3])?;
    assert_eq!((&whole * 3)?.to_vec::<i32>()?, [3, 6, 9]);
    assert!((&whole * 0.5).is_err(), "no integer holds a half");
    if context.shares_kernels() {
        // More kernels of what the fuzz tries: the operators are the same everywhere.
        return Ok(());
    }
    is(&b % 6.0, [4.0, 2.0, 4.0])?;
    is(7 % &a, [0.0, 1.0, 1.0])?;
    is(orlop::Scalar::Integer(-7) % &a, [0.0, -1.0, -1.0])?;
    assert_eq!((-7 % &whole)?.to_vec::<i32>()?, [0, -1, -1]);
    assert_eq!((&whole % 0)?.to_vec::<i32>()?, [0; 3]);
    assert_eq!((-&whole)?.to_vec::<i32>()?, [-1, -2, -3]);
    Ok(())
}

/// Functions of one operand, on the first few numbers.
fn functions(context: &Context) -> Result<()> {
    let device = context.device();
    let values: Vec<f32> = (0..23).map(|at| at as f32 / 4.0 - 2.0).collect();
    let whole = Tensor::from_slice(device, &values, [23])?;
    for from in [0, 1] {
        let (x, values) = (whole.slice(from..)?, &values[from..]);
        let is = |got: Result<Tensor>, want: fn(f64) -> f64| -> Result<()> {
            for (got, &x) in got?.to_vec::<f32>()?.into_iter().zip(values) {
                let want = want(f64::from(x));
                let close = (f64::from(got) - want).abs() <= 1e-6 * want.abs();
                assert!(close || got.is_nan() && want.is_nan(), "{got} not {want}");
            }
            Ok(())
        };
        is(x.exp(), f64::exp)?;
        is(x.neg(), |x| -x)?;
        is(x.relu(), |x| x.max(0.0))?;
        is(x.sqrt(), f64::sqrt)?;
    }
    Ok(())
}

/// Larger than the caches of most processors (36 MiB), where the CPU stores past them: lengths that no line divides.
fn large(context: &Context) -> Result<()> {
    let (rows, columns) = if context.is_slow() {
        (30, 2003)
    } else {
        (4713, 2003)
    };
    let whole = |at: usize| (at * 7919 % 10_007) as i32 - 5000;
    let host: Vec<i32> = (0..rows * columns).map(whole).collect();
    let x = Tensor::from_slice(context.device(), &host, [rows, columns])?;
    let f = x.cast(DType::F32)?;
    let last = f.slice((.., 1..))?;
    let row = f.slice(rows - 1..)?;
    let doubled = (&x + &x)?.to_vec::<i32>()?;
    let negated = f.neg()?.to_vec::<f32>()?;
    let beside = (&last * &row.slice((.., 1..))?)?.to_vec::<f32>()?;
    let clamped = f.clamp(-7.5, 2000.0)?.to_vec::<f32>()?;
    for (at, &x) in host.iter().enumerate() {
        let f = x as f32;
        assert_eq!(doubled[at], 2 * x, "{at}");
        assert_eq!(
            (negated[at], clamped[at]),
            (-f, f.clamp(-7.5, 2000.0)),
            "{at}"
        );
        if let (line, column @ 1..) = (at / columns, at % columns) {
            let other = whole((rows - 1) * columns + column) as f32;
            assert_eq!(beside[line * (columns - 1) + column - 1], f * other, "{at}");
        }
    }
    Ok(())
}

/// More workgroups than one grid dimension has: the grid folds.
fn many_workgroups(context: &Context) -> Result<()> {
    let in_full = full() && context.adapter.name == "lavapipe";
    if !in_full && !context.adapter.info.kind().is_gpu() {
        return Ok(());
    }
    // f16 without vectors: 8192^2 elements are 65,536 workgroups, and just within 128 MiB.
    let (size, bits) = (8192, |at: usize| half_bits(at));
    let values: Vec<orlop::f16> = (0..size * size)
        .map(|at| orlop::f16::from_bits(bits(at)))
        .collect();
    let tensor = Tensor::from_slice(context.device(), &values, [size, size])?;
    let turned = tensor.transpose(0, 1)?.copy()?.to_vec::<orlop::f16>()?;
    let grid = |at: usize| at % size * size + at / size;
    for (at, got) in turned.iter().enumerate() {
        assert_eq!(got.to_bits(), bits(grid(at)), "element {at}");
    }
    Ok(())
}

/// Finite halves that differ between neighbours.
fn half_bits(at: usize) -> u16 {
    (at % 31_000) as u16
}
