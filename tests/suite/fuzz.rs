//! Every op with random shapes, strides, broadcasts and dtypes against the `ndarray` crate in f64.

mod elementwise;

use ndarray::{Array2, ArrayD, ArrayView1, Axis, IxDyn, Slice, SliceInfoElem, concatenate, stack};
use orlop::{DType, Result, SearchSide, SliceRange, SortOrder, Tensor};

use crate::adapters::Context;
use crate::functions;
use crate::number::{Number, Value, for_each_dtype};
use crate::operand::Operand;
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for_each_dtype!(all, Scope::Kernels, "fuzz::ops", ops);
    all.push(Test::new("fuzz::ops::bool", Scope::Kernels, ops::<bool>));
    all
}

/// One random case.
struct Fuzz<'a, T> {
    context: &'a Context,
    rng: &'a mut Rng,
    dtype: std::marker::PhantomData<T>,
}

/// A tensor and the same numbers.
struct Drawn<T> {
    operand: Operand<T>,
    tensor: Tensor,
    array: ArrayD<f64>,
}

type Case<T> = (&'static str, fn(&mut Fuzz<'_, T>) -> Result<()>);

/// Each op, in f64 by the most direct way that `ndarray` has; those of [`elementwise`] aside.
fn table<T: Number>() -> Vec<Case<T>> {
    let mut all = moves();
    match T::DTYPE {
        DType::Bool => all.extend(of_bools()),
        _ => all.extend(numbers()),
    }
    if T::DTYPE.is_float() {
        all.extend(floats());
    }
    all
}

fn numbers<T: Number>() -> Vec<Case<T>> {
    vec![
        ("add", |f| f.binary(|a, b| a.add(b), |a, b| a + b)),
        ("sub", |f| f.binary(|a, b| a.sub(b), |a, b| a - b)),
        ("mul", |f| f.binary(|a, b| a.mul(b), |a, b| a * b)),
        ("div", |f| {
            f.binary(|a, b| a.div(b), elementwise::quotient::<T>)
        }),
        ("neg", |f| f.unary("neg", 1.0, Tensor::neg, |x| -x)),
        ("relu", |f| {
            f.unary("relu", 1.0, Tensor::relu, |x| x.max(0.0))
        }),
        ("sum", |f| {
            f.reduction(2000, Tensor::sum, |row| row.iter().sum())
        }),
        ("cumsum", |f| f.running()),
        ("argmax", |f| f.largest()),
        ("matmul", |f| f.matmul()),
        ("scatter_add", |f| f.scatter()),
    ]
}

/// What needs no numbers.
fn moves<T: Number>() -> Vec<Case<T>> {
    vec![
        ("max", |f| {
            f.reduction(2000, Tensor::max, |row| {
                row.iter().copied().fold(f64::MIN, f64::max)
            })
        }),
        ("min", |f| {
            f.reduction(2000, Tensor::min, |row| {
                row.iter().copied().fold(f64::MAX, f64::min)
            })
        }),
        ("copy", |f| {
            let a = f.any(6)?;
            f.check("copy", &a, &a.tensor.copy()?, &a.array)
        }),
        ("cast", |f| f.cast()),
        ("reshape", |f| f.reshape()),
        ("permute", |f| f.permute()),
        ("flip", |f| f.flip()),
        ("slice", |f| f.slice()),
        ("broadcast_to", |f| f.broadcast()),
        ("concat", |f| f.concat()),
        ("stack", |f| f.stack()),
        ("pad", |f| f.pad()),
        ("tril", |f| f.triangle(true)),
        ("triu", |f| f.triangle(false)),
        ("index_select", |f| f.select()),
        ("gather", |f| f.gather()),
        ("sort", |f| f.sorted()),
        ("search_sorted", |f| f.searched()),
        ("nonzero", |f| f.nonzero()),
        ("masked_select", |f| f.masked()),
        ("one_hot", |f| f.one_hot()),
    ]
}

fn of_bools<T: Number>() -> Vec<Case<T>> {
    vec![
        ("any", |f| {
            f.reduction(2000, Tensor::any, |row| {
                row.iter().copied().fold(0.0, f64::max)
            })
        }),
        ("all", |f| {
            f.reduction(2000, Tensor::all, |row| {
                row.iter().copied().fold(1.0, f64::min)
            })
        }),
    ]
}

fn floats<T: Number>() -> Vec<Case<T>> {
    vec![
        ("functions", |f| f.functions()),
        ("mean", |f| f.reduction(2000, Tensor::mean, mean)),
        ("prod", |f| {
            f.reduction(30, Tensor::prod, |row| row.iter().product())
        }),
        ("var", |f| {
            f.reduction(
                2000,
                |x, axes| x.var(axes, 0),
                |row| {
                    let mean = mean(row);
                    row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64
                },
            )
        }),
        ("norm", |f| {
            f.reduction(2000, Tensor::norm, |row| {
                row.iter().map(|x| x * x).sum::<f64>().sqrt()
            })
        }),
        ("logsumexp", |f| {
            f.reduction(2000, Tensor::logsumexp, |row| {
                row.iter().map(|x| x.exp()).sum::<f64>().ln()
            })
        }),
        ("softmax", |f| f.softmax()),
        ("layer_norm", |f| f.layer_norm()),
        ("linear", |f| f.linear()),
    ]
}

fn mean(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

fn ops<T: Number>(context: &Context) -> Result<()> {
    let only = std::env::var("ORLOP_TEST_FUZZ").unwrap_or_default();
    let (table, kin) = (table::<T>(), elementwise::table::<T>());
    // Each turn is another op: none is left out where kernels are shared out.
    let times = |usual| {
        context.times(if context.shares_kernels() {
            2 * usual
        } else {
            usual
        })
    };
    let turns = times(4 * table.len());
    let mut order = table.iter().cycle().take(turns).collect::<Vec<_>>();
    // Each of them is a kernel, whose places others take.
    let share = kin.len().div_ceil(4);
    let (first, turns) = match context.shares_kernels() {
        true => (T::DTYPE as usize * share, times(share)),
        false => (0, times(4 * kin.len())),
    };
    order.extend(kin.iter().cycle().skip(first).take(turns));
    let mut turn = order.into_iter();
    cases(turn.len(), |rng| {
        let Some((name, case)) = turn.next() else {
            return Ok(());
        };
        if !name.contains(&only) {
            return Ok(());
        }
        let dtype = std::marker::PhantomData;
        let mut fuzz = Fuzz::<T> {
            context,
            rng,
            dtype,
        };
        case(&mut fuzz).inspect_err(|error| eprintln!("fuzz of {name}: {error}"))
    })
}

/// Small numbers, so that f64 holds what integers give and nothing overflows.
fn small<T: Number>(rng: &mut Rng) -> T {
    match T::DTYPE {
        DType::U32 => T::from_value(Value::Integer(rng.below(12) as i64)),
        DType::Bool => T::from_value(Value::Integer(rng.below(2) as i64)),
        dtype if !dtype.is_float() || rng.one_in(4) => {
            T::from_value(Value::Integer(rng.below(13) as i64 - 6))
        }
        _ => T::from_value(Value::Float(rng.unit() * 4.0)),
    }
}

fn as_f64<T: Number>(value: T) -> f64 {
    match value.value() {
        Value::Float(value) => value,
        Value::Integer(value) => value as f64,
    }
}

/// The distance of neighbours at 1.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-52),
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 2f64.powi(-23),
    }
}

/// Rounded as it should be, or within a bound; integers exactly.
fn is_near<T: Number>(got: T, want: f64, bound: f64) -> bool {
    if !T::DTYPE.is_float() {
        return T::is_same(T::from_value(Value::Integer(want as i64)), got, true);
    }
    let rounded = T::from_value(Value::Float(want));
    let (off, least) = ((as_f64(got) - want).abs(), 1e-30);
    T::is_same(rounded, got, true) || as_f64(got) == as_f64(rounded) || off <= bound + least
}

impl<T: Number> Fuzz<'_, T> {
    /// A shape: edges, primes, what vectors and workgroups divide and what not.
    fn shape(&mut self, least: usize, most: usize) -> Vec<usize> {
        let rank = self.rng.between(least, most);
        let limit = if self.context.is_slow() { 1500 } else { 4000 };
        let mut left = limit;
        let mut shape: Vec<usize> = (0..rank)
            .map(|_| {
                let sizes = [
                    1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129,
                    255, 256, 257, 1024,
                ];
                let most = if rank > 3 { 8 } else { left };
                let fit = sizes.iter().filter(|&&size| size <= left.min(most));
                let size = *self.rng.pick(&fit.copied().collect::<Vec<_>>());
                left /= size;
                size
            })
            .collect();
        if rank > 0 && self.rng.one_in(30) {
            let axis = self.rng.below(rank);
            shape[axis] = 0;
        }
        shape
    }

    fn draw(&mut self, shape: &[usize]) -> Result<Drawn<T>> {
        self.draw_by(shape, small)
    }

    fn draw_by(&mut self, shape: &[usize], sample: fn(&mut Rng) -> T) -> Result<Drawn<T>> {
        let operand = Operand::view_of(self.context.device(), self.rng, shape, sample)?;
        let values = operand.values().into_iter().map(as_f64).collect();
        Ok(Drawn {
            tensor: operand.tensor.clone(),
            array: ArrayD::from_shape_vec(IxDyn(shape), values).unwrap(),
            operand,
        })
    }

    fn any(&mut self, most: usize) -> Result<Drawn<T>> {
        let shape = self.shape(0, most);
        self.draw(&shape)
    }

    /// Numbers of an index in `-size..size`, or in `0..size` of u32, through any view, and the entries.
    fn index(&mut self, shape: &[usize], size: usize) -> Result<(Tensor, ArrayD<usize>)> {
        match self.rng.one_in(2) {
            true => self.index_of::<u32>(shape, size, false),
            false => self.index_of::<i32>(shape, size, true),
        }
    }

    fn index_of<I: Number>(
        &mut self,
        shape: &[usize],
        size: usize,
        is_signed: bool,
    ) -> Result<(Tensor, ArrayD<usize>)> {
        let sample = |rng: &mut Rng| {
            let entry = rng.below(size) as i64;
            let from_the_end = is_signed && rng.one_in(3);
            I::from_value(Value::Integer(
                entry - if from_the_end { size as i64 } else { 0 },
            ))
        };
        let index = Operand::<I>::view_of(self.context.device(), self.rng, shape, sample)?;
        let entry = |number: I| match as_f64(number) {
            back if back < 0.0 => (back + size as f64) as usize,
            entry => entry as usize,
        };
        let entries = index.values().into_iter().map(entry).collect();
        Ok((
            index.tensor,
            ArrayD::from_shape_vec(IxDyn(shape), entries).unwrap(),
        ))
    }

    /// Within three neighbours of the reference; integers exactly.
    fn check(&self, op: &str, a: &Drawn<T>, got: &Tensor, want: &ArrayD<f64>) -> Result<()> {
        self.check_within(
            op,
            a,
            got,
            want,
            &want.mapv(|want| 3.0 * epsilon(T::DTYPE) * want.abs()),
        )
    }

    fn check_within(
        &self,
        op: &str,
        a: &Drawn<T>,
        got: &Tensor,
        want: &ArrayD<f64>,
        bound: &ArrayD<f64>,
    ) -> Result<()> {
        let story = || format!("{op} of {} {}", T::DTYPE, a.operand.story());
        assert_eq!(got.shape().dims(), want.shape(), "{}", story());
        assert_eq!(got.dtype(), T::DTYPE, "{}", story());
        let got = got.to_vec::<T>()?;
        for (at, ((&got, &want), &bound)) in got.iter().zip(want).zip(bound).enumerate() {
            assert!(
                is_near(got, want, bound),
                "{}: element {at} is {got}, not {want}",
                story()
            );
        }
        Ok(())
    }

    /// Some of all functions of one operand, within their bounds.
    fn functions(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let all = functions::cases();
        let epsilon = epsilon(T::DTYPE);
        for _ in 0..6 {
            let case = self.rng.pick(&all);
            let got = (case.run)(&a.tensor)?;
            let story = || format!("{} of {} {}", case.name, T::DTYPE, a.operand.story());
            assert_eq!(got.shape().dims(), a.array.shape(), "{}", story());
            assert_eq!(got.dtype(), T::DTYPE, "{}", story());
            let got = got.to_vec::<T>()?;
            for (&got, &x) in got.iter().zip(&a.array) {
                let (got, want) = (as_f64(got), (case.exact)(x));
                // What is beside the last places is f32's; f64 is libm's, but for what the reference
                // loses where it subtracts.
                let beside = case.of_operand * x.abs();
                let bound = match T::DTYPE {
                    DType::F64 => 1e-13 * (want.abs() + x.abs() + 1.0),
                    DType::F32 => (case.ulps + 0.5) * epsilon * want.abs() + beside,
                    // Rounded once more; f16's least numbers are 6e-8 apart.
                    _ => (epsilon + (case.ulps + 1.0) * 1.2e-7) * want.abs() + beside + 6e-8,
                };
                // Beyond the largest number it is infinite.
                let rounded = as_f64(T::from_value(Value::Float(want)));
                let is_near = got == want || got == rounded || (got - want).abs() <= bound;
                assert!(
                    is_near || (got.is_nan() && want.is_nan()),
                    "{}: at {x} {got}, not {want}",
                    story()
                );
            }
        }
        Ok(())
    }

    /// Within so many steps of the last bit; `docs/numerics.md` has the bounds.
    fn unary(
        &mut self,
        name: &str,
        steps: f64,
        op: fn(&Tensor) -> Result<Tensor>,
        reference: fn(f64) -> f64,
    ) -> Result<()> {
        let a = self.any(6)?;
        let want = a.array.mapv(reference);
        let bound = want.mapv(|want| steps * epsilon(T::DTYPE) * want.abs());
        self.check_within(name, &a, &op(&a.tensor)?, &want, &bound)
    }

    /// Sizes above 0, and some axes of them.
    fn along(&mut self) -> Result<(Drawn<T>, Vec<usize>)> {
        let shape: Vec<usize> = self.shape(1, 7).iter().map(|&size| size.max(1)).collect();
        let a = self.draw(&shape)?;
        let axes = self.rng.shuffled(shape.len());
        Ok((a, axes[..self.rng.between(1, shape.len())].to_vec()))
    }

    /// Rows of the elements along some axes, those of the others in order, and the shape that is left.
    fn rows(a: &Drawn<T>, axes: &[usize]) -> (Vec<Vec<f64>>, Vec<usize>) {
        let mut order: Vec<usize> = (0..a.array.ndim())
            .filter(|at| !axes.contains(at))
            .collect();
        let left: Vec<usize> = order.iter().map(|&at| a.array.shape()[at]).collect();
        let mut inner = axes.to_vec();
        inner.sort_unstable();
        order.extend(&inner);
        let length: usize = axes.iter().map(|&at| a.array.shape()[at]).product();
        let all: Vec<f64> = a
            .array
            .view()
            .permuted_axes(order)
            .iter()
            .copied()
            .collect();
        (all.chunks(length).map(<[f64]>::to_vec).collect(), left)
    }

    fn reduction(
        &mut self,
        longest: usize,
        op: fn(&Tensor, orlop::Axes) -> Result<Tensor>,
        reference: fn(&[f64]) -> f64,
    ) -> Result<()> {
        let (mut a, mut axes) = self.along()?;
        // Products of many floats overflow.
        while Self::rows(&a, &axes).0[0].len() > longest {
            (a, axes) = self.along()?;
        }
        let (rows, left) = Self::rows(&a, &axes);
        let want: Vec<f64> = rows.iter().map(|row| reference(row)).collect();
        // Of sums and means by their absolute terms, of products by their size.
        let bound = rows.iter().zip(&want).map(|(row, want)| {
            let size = row.iter().map(|x| x.abs()).sum::<f64>() + 1.0;
            8.0 * (epsilon(DType::F32) * size * size.max(1.0).ln().max(1.0))
                + 8.0 * row.len() as f64 * epsilon(DType::F32) * want.abs()
                + 2.0 * epsilon(T::DTYPE) * want.abs()
        });
        let bound = ArrayD::from_shape_vec(IxDyn(&left), bound.collect()).unwrap();
        let want = ArrayD::from_shape_vec(IxDyn(&left), want).unwrap();
        let got = op(&a.tensor, (&axes).into())?;
        self.check_within("a reduction", &a, &got, &want, &bound)
    }

    fn largest(&mut self) -> Result<()> {
        let (a, axes) = self.along()?;
        let (rows, _) = Self::rows(&a, &axes);
        let got = a.tensor.argmax(&axes)?.to_vec::<u32>()?;
        for (row, at) in rows.iter().zip(got) {
            let most = row.iter().copied().fold(f64::MIN, f64::max);
            let first = row.iter().position(|&x| x == most).unwrap();
            assert_eq!(at as usize, first, "argmax of {}", a.operand.story());
        }
        Ok(())
    }

    fn softmax(&mut self) -> Result<()> {
        let (a, axes) = self.along()?;
        let at = axes[0];
        let mut want = a.array.mapv(f64::exp);
        let sums = want.sum_axis(Axis(at)).insert_axis(Axis(at));
        want /= &sums;
        let bound = want.mapv(|want| (64.0 * epsilon(DType::F32) + 2.0 * epsilon(T::DTYPE)) * want);
        self.check_within("softmax", &a, &a.tensor.softmax(at)?, &want, &bound)
    }

    fn layer_norm(&mut self) -> Result<()> {
        let (a, axes) = self.along()?;
        let at = axes[0];
        let mean = a.array.mean_axis(Axis(at)).unwrap().insert_axis(Axis(at));
        let centred = &a.array - &mean;
        let var = centred
            .mapv(|x| x * x)
            .mean_axis(Axis(at))
            .unwrap()
            .insert_axis(Axis(at));
        let want = centred / (var + 0.01).mapv(f64::sqrt);
        let bound =
            want.mapv(|want| 200.0 * epsilon(DType::F32) + 2.0 * epsilon(T::DTYPE) * want.abs());
        let got = a.tensor.layer_norm(at, None, None, 0.01)?;
        self.check_within("layer_norm", &a, &got, &want, &bound)
    }

    /// A product of matrices, and the sum of absolute products.
    fn product(a: &ArrayD<f64>, b: &ArrayD<f64>) -> [Array2<f64>; 2] {
        let two = |array: &ArrayD<f64>| array.clone().into_dimensionality().unwrap();
        let (a, b): (Array2<f64>, Array2<f64>) = (two(a), two(b));
        [a.dot(&b), a.mapv(f64::abs).dot(&b.mapv(f64::abs))]
    }

    fn matmul(&mut self) -> Result<()> {
        let batch = self.rng.between(1, 3);
        let sizes = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33, 64];
        let [m, k, n] = [0; 3].map(|_| *self.rng.pick(&sizes));
        let a = self.draw(&[batch, m, k])?;
        let b = self.draw(&[k, n])?;
        let got = a.tensor.matmul(&b.tensor)?;
        let rows: Vec<[Array2<f64>; 2]> = a
            .array
            .axis_iter(Axis(0))
            .map(|matrix| Self::product(&matrix.to_owned(), &b.array))
            .collect();
        let all = |which: usize| {
            let views: Vec<_> = rows.iter().map(|row| row[which].view()).collect();
            stack(Axis(0), &views).unwrap().into_dyn()
        };
        let (want, size) = (all(0), all(1));
        let bound = size.mapv(|size| size * epsilon(DType::F32) * k as f64)
            + want.mapv(|want| 2.0 * epsilon(T::DTYPE) * want.abs());
        self.check_within("matmul", &a, &got, &want, &bound)
    }

    fn linear(&mut self) -> Result<()> {
        let [m, k, n] = [0; 3].map(|_| self.rng.between(1, 40));
        let (a, b, bias) = (self.draw(&[m, k])?, self.draw(&[k, n])?, self.draw(&[n])?);
        let relu = orlop::Activation::Relu;
        let got = a.tensor.linear(&b.tensor, Some(&bias.tensor), relu)?;
        let [sum, size] = Self::product(&a.array, &b.array);
        let want = (sum.into_dyn() + &bias.array).mapv(|x| x.max(0.0));
        let bound = size
            .into_dyn()
            .mapv(|size| (size + 4.0) * epsilon(DType::F32) * k as f64)
            + want.mapv(|want| 2.0 * epsilon(T::DTYPE) * want.abs());
        self.check_within("linear", &a, &got, &want, &bound)
    }

    /// There and back, through what holds every small number, or nearly.
    fn cast(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let to = *self.rng.pick(DType::ALL);
        let (want, slack) = match (T::DTYPE.is_float(), to) {
            (_, to) if to.name() == "bool" => {
                (a.array.mapv(|x| f64::from(u8::from(x != 0.0))), 0.0)
            }
            (_, DType::U32) => (a.array.mapv(|x| x.trunc().max(0.0)), 0.0),
            (_, DType::I32) => (a.array.mapv(f64::trunc), 0.0),
            (true, to) => (a.array.clone(), epsilon(to)),
            (false, _) => (a.array.clone(), 0.0),
        };
        if T::DTYPE == DType::I32 && to == DType::U32 {
            // The bits stay, there and back.
            return self.check("cast", &a, &a.tensor.cast(to)?.cast(T::DTYPE)?, &a.array);
        }
        let got = a.tensor.cast(to)?.cast(T::DTYPE)?;
        let bound = want.mapv(|want| (slack + epsilon(T::DTYPE)) * want.abs());
        self.check_within("cast", &a, &got, &want, &bound)
    }

    fn reshape(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let mut sizes = a.operand.shape().to_vec();
        if sizes.len() > 1 {
            let at = self.rng.below(sizes.len() - 1);
            sizes[at] *= sizes.remove(at + 1);
        }
        let at = self.rng.below(sizes.len() + 1);
        sizes.insert(at, 1);
        let want = ArrayD::from_shape_vec(IxDyn(&sizes), a.array.iter().copied().collect());
        self.check(
            "reshape",
            &a,
            &a.tensor.reshape(&sizes[..])?,
            &want.unwrap(),
        )
    }

    fn permute(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let axes = self.rng.shuffled(a.array.ndim());
        let want = a
            .array
            .view()
            .permuted_axes(axes.clone())
            .as_standard_layout()
            .into_owned();
        self.check("permute", &a, &a.tensor.permute(&axes)?, &want)
    }

    fn flip(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let axes = self.rng.shuffled(a.array.ndim());
        let axes = &axes[..self.rng.below(axes.len() + 1)];
        let mut want = a.array.clone();
        for &axis in axes {
            want.invert_axis(Axis(axis));
        }
        let want = want.as_standard_layout().into_owned();
        self.check("flip", &a, &a.tensor.flip(axes)?, &want)
    }

    fn slice(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let (mut ranges, mut info) = (Vec::new(), Vec::new());
        for &size in a.operand.shape() {
            let start = self.rng.below(size + 1);
            let end = self.rng.between(start, size);
            let step = *self.rng.pick(&[1, 1, 2, 3, -1, -2, -5]);
            ranges.push(SliceRange::from(start..end).step(step));
            info.push(SliceInfoElem::Slice {
                start: start as isize,
                end: Some(end as isize),
                step,
            });
        }
        let want = a.array.slice(&info[..]).as_standard_layout().into_owned();
        self.check("slice", &a, &a.tensor.slice(&ranges[..])?, &want)
    }

    fn broadcast(&mut self) -> Result<()> {
        let whole = self.shape(0, 6);
        let from = self.rng.below(whole.len() + 1);
        let thin = |&size: &usize| if self.rng.one_in(2) { 1 } else { size };
        let part: Vec<usize> = whole[from..].iter().map(thin).collect();
        let a = self.draw(&part)?;
        let want = a.array.broadcast(IxDyn(&whole)).unwrap().to_owned();
        self.check("broadcast_to", &a, &a.tensor.broadcast_to(&whole)?, &want)
    }

    fn concat(&mut self) -> Result<()> {
        let mut shape = self.shape(1, 6);
        let axis = self.rng.below(shape.len());
        let mut parts = Vec::new();
        for _ in 0..self.rng.between(1, 4) {
            shape[axis] = self.rng.below(6);
            parts.push(self.draw(&shape)?);
        }
        let tensors: Vec<&Tensor> = parts.iter().map(|part| &part.tensor).collect();
        let views: Vec<_> = parts.iter().map(|part| part.array.view()).collect();
        let want = concatenate(Axis(axis), &views)
            .unwrap()
            .as_standard_layout()
            .into_owned();
        self.check("concat", &parts[0], &Tensor::concat(&tensors, axis)?, &want)
    }

    fn stack(&mut self) -> Result<()> {
        let shape = self.shape(0, 5);
        let axis = self.rng.below(shape.len() + 1);
        let parts = [self.draw(&shape)?, self.draw(&shape)?];
        let tensors = [&parts[0].tensor, &parts[1].tensor];
        let views = [parts[0].array.view(), parts[1].array.view()];
        let want = stack(Axis(axis), &views)
            .unwrap()
            .as_standard_layout()
            .into_owned();
        self.check("stack", &parts[0], &Tensor::stack(&tensors, axis)?, &want)
    }

    fn pad(&mut self) -> Result<()> {
        let a = self.any(5)?;
        let widths: Vec<(usize, usize)> = a
            .operand
            .shape()
            .iter()
            .map(|_| (self.rng.below(4), self.rng.below(4)))
            .collect();
        let shape: Vec<usize> = a
            .operand
            .shape()
            .iter()
            .zip(&widths)
            .map(|(&size, w)| w.0 + size + w.1)
            .collect();
        let fill = if T::DTYPE == DType::Bool { 1 } else { 5 };
        let mut want = ArrayD::from_elem(IxDyn(&shape), f64::from(fill));
        want.slice_each_axis_mut(|axis| {
            let (before, size) = (widths[axis.axis.0].0, a.operand.shape()[axis.axis.0]);
            Slice::from(before..before + size)
        })
        .assign(&a.array);
        self.check("pad", &a, &a.tensor.pad(&widths, fill)?, &want)
    }

    fn triangle(&mut self, lower: bool) -> Result<()> {
        let shape = self.shape(2, 5);
        let a = self.draw(&shape)?;
        let diagonal = self.rng.below(9) as isize - 4;
        let (got, want) = match lower {
            true => (a.tensor.tril(diagonal)?, a.array.tril(diagonal)),
            false => (a.tensor.triu(diagonal)?, a.array.triu(diagonal)),
        };
        self.check("a triangle", &a, &got, &want)
    }

    fn select(&mut self) -> Result<()> {
        let shape: Vec<usize> = self.shape(1, 5).iter().map(|&size| size.max(1)).collect();
        let a = self.draw(&shape)?;
        let axis = self.rng.below(shape.len());
        let count = self.rng.below(9);
        let (index, entries) = self.index(&[count], shape[axis])?;
        let entries: Vec<usize> = entries.iter().copied().collect();
        let want = a
            .array
            .select(Axis(axis), &entries)
            .as_standard_layout()
            .into_owned();
        self.check(
            "index_select",
            &a,
            &a.tensor.index_select(axis, &index)?,
            &want,
        )
    }

    fn gather(&mut self) -> Result<()> {
        let mut shape: Vec<usize> = self.shape(1, 5).iter().map(|&size| size.max(1)).collect();
        let a = self.draw(&shape)?;
        let axis = self.rng.below(shape.len());
        let size = shape[axis];
        shape[axis] = self.rng.below(9);
        let (index, entries) = self.index(&shape, size)?;
        let want = ArrayD::from_shape_fn(IxDyn(&shape), |at| {
            let mut from = at.clone();
            from[axis] = entries[&at];
            a.array[&from]
        });
        self.check("gather", &a, &a.tensor.gather(axis, &index)?, &want)
    }

    fn sorted(&mut self) -> Result<()> {
        let shape: Vec<usize> = self.shape(1, 6).iter().map(|&size| size.max(1)).collect();
        let a = self.draw(&shape)?;
        let axis = self.rng.below(shape.len());
        let order = *self
            .rng
            .pick(&[SortOrder::Ascending, SortOrder::Descending]);
        let mut want = a.array.clone();
        for mut lane in want.lanes_mut(Axis(axis)) {
            let mut line = lane.to_vec();
            line.sort_by(f64::total_cmp);
            if order == SortOrder::Descending {
                line.reverse();
            }
            lane.assign(&ArrayView1::from(&line));
        }
        self.check("sort", &a, &a.tensor.sort(axis, order)?, &want)
    }

    fn searched(&mut self) -> Result<()> {
        let rows = self.rng.between(1, 9);
        let [size, columns] = [40, 9].map(|most| self.rng.between(1, most));
        let lines = self.draw(&[rows, size])?;
        let values = self.draw(&[rows, columns])?;
        let sorted = lines.tensor.sort(1, SortOrder::Ascending)?;
        let side = *self.rng.pick(&[SearchSide::Left, SearchSide::Right]);
        let got = sorted
            .search_sorted(&values.tensor, side)?
            .to_vec::<u32>()?;
        for ((at, &value), got) in values.array.indexed_iter().zip(got) {
            let line = lines.array.index_axis(Axis(0), at[0]);
            let is_before = |x: f64| x < value || (side == SearchSide::Right && x == value);
            let want = line.iter().filter(|&&x| is_before(x)).count();
            assert_eq!(got as usize, want, "search of {}", lines.operand.story());
        }
        Ok(())
    }

    fn nonzero(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let named = a.array.indexed_iter().filter(|(_, x)| **x != 0.0);
        let want = named.flat_map(|(at, _)| ndarray::Dimension::slice(&at).to_vec());
        let want: Vec<u32> = want.map(|at| at as u32).collect();
        let got = a.tensor.nonzero()?.to_vec::<u32>()?;
        assert_eq!(got, want, "nonzero of {}", a.operand.story());
        Ok(())
    }

    fn masked(&mut self) -> Result<()> {
        let a = self.any(6)?;
        let shape = a.array.shape();
        let mask =
            Operand::<bool>::view_of(self.context.device(), self.rng, shape, |rng| rng.one_in(3))?;
        let all = a.array.iter().zip(mask.values());
        let want = all.filter(|(_, named)| *named).map(|(&x, _)| x);
        let want = ndarray::Array1::from_iter(want).into_dyn();
        let got = a.tensor.masked_select(&mask.tensor)?;
        self.check("masked_select", &a, &got, &want)
    }

    fn running(&mut self) -> Result<()> {
        let shape: Vec<usize> = self.shape(1, 6).iter().map(|&size| size.max(1)).collect();
        let a = self.draw(&shape)?;
        let axis = self.rng.below(shape.len());
        let (mut want, mut sizes) = (a.array.clone(), a.array.mapv(f64::abs));
        want.accumulate_axis_inplace(Axis(axis), |&before, sum| *sum += before);
        sizes.accumulate_axis_inplace(Axis(axis), |&before, sum| *sum += before);
        let bound = sizes.mapv(|size| 10.0 * epsilon(T::DTYPE) * size);
        self.check_within("cumsum", &a, &a.tensor.cumsum(axis)?, &want, &bound)
    }

    fn scatter(&mut self) -> Result<()> {
        let mut shape: Vec<usize> = self.shape(1, 5).iter().map(|&size| size.max(1)).collect();
        let a = self.draw(&shape)?;
        let axis = self.rng.below(shape.len());
        let size = shape[axis];
        shape[axis] = self.rng.below(9);
        let source = self.draw(&shape)?;
        let (index, entries) = self.index(&shape, size)?;
        let (mut want, mut bound) = (a.array.clone(), a.array.mapv(f64::abs));
        let mut largest = a.array.clone();
        for (at, &value) in source.array.indexed_iter() {
            let mut to = at.clone();
            to[axis] = entries[&at];
            want[&to] += value;
            bound[&to] += value.abs();
            largest[&to] = largest[&to].max(value);
        }
        let got = a.tensor.scatter_max(axis, &index, &source.tensor)?;
        let none = largest.mapv(|_| 0.0);
        self.check_within("scatter_max", &a, &got, &largest, &none)?;
        let got = a.tensor.scatter_add(axis, &index, &source.tensor)?;
        let bound = bound.mapv(|bound| 10.0 * epsilon(T::DTYPE) * bound);
        self.check_within("scatter_add", &a, &got, &want, &bound)
    }

    fn one_hot(&mut self) -> Result<()> {
        let mut shape = self.shape(0, 3);
        let classes = self.rng.between(1, 9);
        let (index, entries) = self.index(&shape, classes)?;
        let a = self.draw(&[1])?;
        shape.push(classes);
        let want = ArrayD::from_shape_fn(IxDyn(&shape), |at| {
            let outer = IxDyn(&ndarray::Dimension::slice(&at)[..shape.len() - 1]);
            f64::from(entries[outer] == at[shape.len() - 1])
        });
        self.check("one_hot", &a, &index.one_hot(classes, T::DTYPE)?, &want)
    }
}
