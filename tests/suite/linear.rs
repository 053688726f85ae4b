//! Products with an epilogue, within bounds of the same in f64.

use orlop::{
    Activation, DType, Device, Epilogue, Error, MatmulKernel, Placement, PlacementLog, Result,
    Tensor, bf16, f16, with_matmul_kernel, with_matmul_split,
};

use crate::adapters::{Context, full};
use crate::forced::{NOT_THERE, dtypes, is_anothers, turn_of};
use crate::number::{Number, Value};
use crate::operand::Operand;
use crate::products::{self, Factor, Rule};
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("linear::random::f32", Scope::Kernels, random::<f32>),
        Test::new("linear::random::f16", Scope::Kernels, random::<f16>),
        Test::new("linear::random::bf16", Scope::Kernels, random::<bf16>),
        Test::new("linear::random::f64", Scope::Kernels, random::<f64>),
        Test::new("linear::forced::f32", Scope::Gpu, forced::<f32>),
        Test::new("linear::forced::f16", Scope::Gpu, forced::<f16>),
        Test::new("linear::forced::bf16", Scope::Gpu, forced::<bf16>),
        // Which the CPU does.
        Test::new("linear::in_pieces", Scope::Device, in_pieces)
            .when(|context| !context.is_software()),
        Test::new(
            "linear::one_storage::f32",
            Scope::Device,
            one_storage::<f32>,
        ),
        Test::new(
            "linear::one_storage::f16",
            Scope::Device,
            one_storage::<f16>,
        )
        .when(|context| !context.shares_kernels() || context.adapter.name == "lavapipe"),
        Test::new(
            "linear::one_storage::bf16",
            Scope::Device,
            one_storage::<bf16>,
        )
        .when(|context| !context.shares_kernels() || context.adapter.name == "swiftshader"),
        Test::new("linear::layer", Scope::Device, layer),
        Test::new("linear::tiny_batches", Scope::Device, tiny_batches),
        Test::new("linear::f64_in_place", Scope::Gpu, f64_in_place)
            .when(|context| context.device().capabilities().f64),
        Test::new("linear::specials", Scope::Device, specials),
        Test::new("linear::far_residual", Scope::Device, far_residual),
        Test::new("linear::sums_below", Scope::Device, sums_below),
        Test::new("linear::residual_beside", Scope::Device, residual_beside),
        Test::new("linear::refusals", Scope::Device, refusals),
        Test::new("linear::absurd", Scope::Device, absurd),
    ]
}

/// A float with its epsilon and that of the type that its sums are kept in.
trait Real: Factor {
    const SUMS: f64;
    const ROUNDING: f64;
}
impl Real for f32 {
    const SUMS: f64 = f32::EPSILON as f64;
    const ROUNDING: f64 = 0.0;
}
impl Real for f64 {
    const SUMS: f64 = f64::EPSILON;
    const ROUNDING: f64 = 0.0;
}
impl Real for bf16 {
    const SUMS: f64 = f32::EPSILON as f64;
    const ROUNDING: f64 = 1.0 / 256.0;
}
impl Real for f16 {
    const SUMS: f64 = f32::EPSILON as f64;
    const ROUNDING: f64 = 1.0 / 2048.0;
}

fn float<T: Number>(x: T) -> f64 {
    match x.value() {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    }
}

/// erfc by its series and its continued fraction.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    let scale = (-x * x).exp() / std::f64::consts::PI.sqrt();
    if x < 2.0 {
        let (mut term, mut sum) = (2.0 * x, 0.0);
        for n in 1..80 {
            sum += term;
            term *= 2.0 * x * x / f64::from(2 * n + 1);
        }
        return 1.0 - scale * sum;
    }
    let rest = (1..120)
        .rev()
        .fold(x, |rest, n| x + f64::from(n) / 2.0 / rest);
    scale / rest
}

fn activated(activation: Activation, y: f64) -> f64 {
    match activation {
        Activation::Relu => y.max(0.0),
        Activation::Gelu => y / 2.0 * erfc(-y / 2f64.sqrt()),
        Activation::Silu => y / (1.0 + (-y).exp()),
        _ => y,
    }
}

/// Operands of one case.
struct Case<T> {
    a: Operand<T>,
    b: Operand<T>,
    scale: f64,
    bias: Option<Operand<T>>,
    residual: Option<Operand<T>>,
    activation: Activation,
}

impl<T: Real> Case<T> {
    fn random(context: &Context, rng: &mut Rng, a: &[usize], b: &[usize]) -> Result<Self> {
        let device = context.device();
        let rule = Rule::of(a, b);
        let n = if b.len() == 1 { 1 } else { b[b.len() - 1] };
        Ok(Self {
            a: Operand::random_view(device, rng, a)?,
            b: Operand::random_view(device, rng, b)?,
            scale: *rng.pick(&[1.0, 0.25, -0.37]),
            bias: match rng.one_in(2) {
                true => Some(Operand::random_view(device, rng, &[n])?),
                false => None,
            },
            residual: match rng.one_in(2) {
                true => Some(Operand::random_view(device, rng, &rule.output)?),
                false => None,
            },
            activation: *rng.pick(Activation::ALL),
        })
    }

    /// As planned.
    fn check(&self) -> Result<()> {
        self.check_by(None)
    }

    /// By a kernel that is forced.
    fn check_by(&self, kernel: Option<MatmulKernel>) -> Result<()> {
        let mut epilogue = Epilogue::new()
            .scale(self.scale)
            .activation(self.activation);
        if let Some(bias) = &self.bias {
            epilogue = epilogue.bias(&bias.tensor);
        }
        if let Some(residual) = &self.residual {
            epilogue = epilogue.residual(&residual.tensor);
        }
        let story = || {
            format!(
                "{} {} x {}, {epilogue:?}",
                T::DTYPE,
                self.a.story(),
                self.b.story()
            )
        };
        let product = || self.a.tensor.matmul_with(&self.b.tensor, &epilogue);
        let product = match kernel {
            Some(kernel) => with_matmul_kernel(kernel, product)?,
            None => product()?,
        };
        let rule = Rule::of(self.a.shape(), self.b.shape());
        assert_eq!(product.shape().dims(), rule.output, "{}", story());
        let got = product.to_vec::<T>()?;
        let bias = self.bias.as_ref().map(Operand::values);
        let residual = self.residual.as_ref().map(Operand::values);
        products::each_entry(&self.a, &self.b, got.len(), 1, |at, terms| {
            let (sum, absolute) = products::dot(products::wide(terms).into_iter());
            let scale = self.scale;
            let bias = bias
                .as_ref()
                .map_or(0.0, |bias| float(bias[at % bias.len()]));
            let residual = residual
                .as_ref()
                .map_or(0.0, |residual| float(residual[at]));
            let y = scale * sum + bias + residual;
            let want = activated(self.activation, y);
            let rounded = products::steps(terms.len()) * absolute * scale.abs()
                + 2.0 * (scale * sum).abs()
                + 2.0 * (bias.abs() + residual.abs());
            let before = T::SUMS * rounded;
            // Slopes are at most 1.2; functions are good to 2^-20.
            let function = match self.activation {
                Activation::Gelu | Activation::Silu => {
                    8.0 * T::SUMS.max(2f64.powi(-50)) * (y.abs() + want.abs())
                }
                _ => 0.0,
            };
            let bound = 1.2 * before
                + function
                + T::ROUNDING * want.abs()
                + if T::ROUNDING > 0.0 {
                    2f64.powi(-14)
                } else {
                    1e-37
                };
            let error = (float(got[at]) - want).abs();
            match error <= bound {
                true => Ok(()),
                false => Err(format!(
                    "entry {at}: {}, not {want}: off by {error:e}, above {bound:e}",
                    got[at]
                )),
            }
        })
        .unwrap_or_else(|problem| panic!("{}: {problem}", story()));
        Ok(())
    }
}

fn random<T: Real>(context: &Context) -> Result<()> {
    // Those of 16 bits take compilers longest.
    let usual = match (context.shares_kernels(), T::DTYPE.size()) {
        (true, 2) => 10,
        (true, _) => 20,
        _ => 30,
    };
    cases(context.times(usual), |rng| {
        let mut size = |most| rng.between(1, most);
        let (m, n) = (size(40), size(40));
        let k = if rng.one_in(8) { 0 } else { rng.between(1, 80) };
        let (a, b) = match rng.below(6) {
            0 => (vec![k], vec![k, n]),
            1 => (vec![m, k], vec![k]),
            2 => (vec![3, m, k], vec![k, n]),
            3 => (vec![2, 1, m, k], vec![3, k, 1]),
            _ => (vec![m, k], vec![k, n]),
        };
        let case = Case::<T>::random(context, rng, &a, &b)?;
        let parts = if rng.one_in(4) { 2 } else { 1 };
        with_matmul_split(parts, || case.check())
    })
}

/// Every kernel with all of it at once: batches that repeat, views, an epilogue.
fn forced<T: Real>(context: &Context) -> Result<()> {
    let shapes = [
        (&[2, 1, 33, 30][..], &[3, 30, 36][..]),
        (&[70, 48], &[2, 48, 1]),
        (&[2, 65, 40], &[40, 66]),
        (&[1, 44], &[2, 44, 130]),
        (&[20, 1500], &[1500, 24]),
    ];
    // Compilers take long, slow ones for too long: each kernel meets one shape of one of its dtypes, or of f32 where they are
    // slow; adapters share out those that they would not choose.
    let each = if full() { shapes.len() } else { 1 };
    let left_out = |at: usize, kernel: MatmulKernel| {
        if !context.shares_kernels() {
            return false;
        }
        let mut floats = vec![DType::F32];
        if !context.is_slow() {
            let others = dtypes(kernel, context).into_iter();
            floats.extend(others.filter(|dtype| dtype.size() == 2));
        }
        // Turns of other adapters' kernels go by threes.
        is_anothers(turn_of(context, at, kernel)) || floats[at / 3 % floats.len()] != T::DTYPE
    };
    cases(1, |rng| {
        for (at, &kernel) in MatmulKernel::all().iter().enumerate() {
            if left_out(at, kernel) {
                continue;
            }
            let (mut ran, mut refusals) = (0, Vec::new());
            let from = rng.below(shapes.len());
            for nth in 0..shapes.len() {
                // Until there are as many, of those that it can do.
                if ran == each {
                    break;
                }
                let (a, b) = shapes[(from + nth) % shapes.len()];
                let mut case = Case::<T>::random(context, rng, a, b)?;
                // A formula for each entry of a tile takes compilers seconds: every fourth kernel has one.
                if context.shares_kernels() && at % 4 != 0 {
                    case.activation = Activation::Relu;
                }
                match case.check_by(Some(kernel)) {
                    Ok(()) => ran += 1,
                    Err(error) if error.to_string().contains("is forced, but") => {
                        refusals.push(error.to_string());
                    }
                    Err(error) => return Err(error),
                }
            }
            let is_not_there = |refusal: &String| {
                // Random views lie in no vectors of eight.
                let of_shapes = [
                    "do not lie in vectors of eight",
                    "no operand is a vector",
                    "fewer rows than the left operand's vectors",
                ];
                let mut reasons = NOT_THERE.iter().chain(&of_shapes);
                reasons.any(|reason| refusal.contains(reason))
            };
            assert!(
                ran > 0 || refusals.iter().all(is_not_there),
                "{kernel}: {refusals:?}"
            );
            if std::env::var_os("ORLOP_TEST_VERBOSE").is_some() {
                println!("{kernel} {}: {ran} products", T::DTYPE);
            }
        }
        Ok(())
    })
}

/// More entries than the CPU finishes on one core at once, in pieces that end within rows.
fn in_pieces(context: &Context) -> Result<()> {
    fn of<T: Real>(context: &Context, rng: &mut Rng) -> Result<()> {
        for [batch, m, k, n] in [[1, 200, 8, 300], [3, 101, 5, 200], [3, 110, 100, 101]] {
            let device = context.device();
            let (a, b) = ([batch, m, k], [k, n]);
            let mut case = Case::<T>::random(context, rng, &a, &b)?;
            case.bias = Some(Operand::random_view(device, rng, &[n])?);
            case.residual = Some(Operand::random_view(device, rng, &[batch, m, n])?);
            case.activation = Activation::Relu;
            case.check()?;
        }
        Ok(())
    }
    cases(1, |rng| {
        of::<f32>(context, rng)?;
        if context.is_cpu() {
            of::<f64>(context, rng)?;
            of::<f16>(context, rng)?;
        }
        Ok(())
    })
}

/// What is added lies in the storage of an operand: `f(x w) + x`, and a bias among the weights, which are added too.
fn one_storage<T: Real>(context: &Context) -> Result<()> {
    let device = context.device();
    // In vectors of eight, four and one; of one row. Compilers of software adapters take seconds for each of 16 bits.
    let sizes = [[64, 64], [68, 68], [66, 66], [1, 64]];
    let count = match context.shares_kernels() && T::DTYPE.size() == 2 {
        true => 1,
        false => sizes.len(),
    };
    cases(1, |rng| {
        for (nth, &[m, n]) in sizes[..count].iter().enumerate() {
            let x = Operand::<T>::random(device, rng, &[n, n])?;
            let w = Operand::<T>::random(device, rng, &[n, n])?;
            let x = x.slice(&[0..m, 0..n])?;
            let row = w.slice(&[3..4, 0..n])?.reshape(&[n])?;
            let with = |bias, residual| Case {
                a: x.clone(),
                b: w.clone(),
                scale: 1.0,
                bias,
                residual,
                activation: Activation::None,
            };
            if nth % 2 == 0 || !context.shares_kernels() {
                with(None, Some(x.clone())).check()?;
            }
            // Which loads 16 bits in vectors of eight.
            if nth == 0 && T::DTYPE.size() == 2 && !context.is_cpu() {
                let kernel = "workgroup_tile 32x32x16 thread 4x4".parse()?;
                with(None, Some(x.clone())).check_by(Some(kernel))?;
            }
            if nth % 2 == 1 || !context.shares_kernels() {
                let residual = (m == n).then(|| w.clone());
                with(Some(row), residual).check()?;
            }
        }
        Ok(())
    })
}

/// A layer with weights as PyTorch has them.
fn layer(context: &Context) -> Result<()> {
    let device = context.device();
    let x = Tensor::from_slice(device, &[1.0f32, -2.0, 3.0, 0.5], [2, 2])?;
    let weight = Tensor::from_slice(device, &[1.0f32, 2.0, -1.0, 1.0, 0.0, 2.0], [3, 2])?;
    let weight = weight.transpose(0, 1)?;
    let bias = Tensor::from_slice(device, &[0.5f32, 0.0, 1.0], [3])?;
    let y = x.linear(&weight, Some(&bias), Activation::Relu)?;
    assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0, 0.0, 4.5, 0.0, 2.0]);
    let y = x.linear(&weight, None, Activation::None)?;
    assert_eq!(y.to_vec::<f32>()?, x.matmul(&weight)?.to_vec::<f32>()?);
    Ok(())
}

fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.elements() * tensor.dtype().size()) as u64
}

/// On devices that multiply f64 what is done to sums is done there, in their memory, but for functions that WGSL does not
/// have: strict devices refuse those before anything is done.
fn f64_in_place(context: &Context) -> Result<()> {
    let strict = &context.builder().placement(Placement::Strict).build()?;
    let soft = &context.open();
    let make = |device, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|at| ((at * 7) % 11) as f64 - 5.0).collect();
        Tensor::from_slice(device, &values, shape)
    };
    // Columns, rows and batches too; whole numbers, so that all is exact.
    for (a, b, n) in [
        (&[6, 8][..], &[8, 5][..], 5),
        (&[8], &[8, 5], 5),
        (&[6, 8], &[8], 1),
        (&[8], &[8], 1),
        (&[2, 6, 8], &[2, 8, 5], 5),
        (&[3, 0], &[0, 4], 4),
    ] {
        let (a, b, bias) = (make(strict, a)?, make(strict, b)?, make(strict, &[n])?);
        let residual = a.matmul(&b)?.add(0.5)?;
        let full = Epilogue::new().scale(0.25).bias(&bias).residual(&residual);
        for activation in [Activation::None, Activation::Relu] {
            let before = strict.memory().allocated;
            strict.reset_peaks();
            let got = a.matmul_with(&b, &full.activation(activation))?;
            assert_eq!(got.device(), strict);
            assert_eq!(got.shape(), residual.shape());
            // Itself, and a number; where there is nothing to sum two zeros too.
            let taken = strict.memory().peak_allocated - before;
            let most = if a.elements() == 0 { 768 } else { 256 };
            assert!(
                taken <= most + bytes_of(&got).next_multiple_of(256),
                "{taken}"
            );
            let (sums, bias) = (a.matmul(&b)?.to_vec::<f64>()?, bias.to_vec::<f64>()?);
            let residual = residual.to_vec::<f64>()?;
            for (at, got) in got.to_vec::<f64>()?.into_iter().enumerate() {
                let y = 0.25 * sums[at] + bias[at % n] + residual[at];
                assert_eq!(got, activated(activation, y), "{at} of {activation:?}");
            }
        }
        assert_eq!(strict.placement_log(), PlacementLog::default());
        for activation in [Activation::Gelu, Activation::Silu] {
            let epilogue = full.activation(activation);
            let count = strict.memory().counts.blocks.allocated;
            let refused = a.matmul_with(&b, &epilogue);
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
            let why = format!("{refused:?}");
            assert!(
                why.contains("matmul") && why.contains(activation.name()),
                "{why}"
            );
            if a.elements() > 0 {
                assert_eq!(strict.memory().counts.blocks.allocated, count);
            }
            // The product there, the function on the CPU, the result at home.
            let (a, b) = (a.to(soft)?, b.to(soft)?);
            let got = a.linear(&b, None, activation)?;
            assert_eq!(got.device(), soft);
            let log = soft.placement_log();
            let event = log
                .events
                .last()
                .unwrap_or_else(|| panic!("nothing was logged"));
            assert_eq!(event.op, "matmul");
            assert!(event.reason.contains(activation.name()), "{event:?}");
            // There in words of four elements, as chunks end, and back as it is.
            let there = (got.elements().next_multiple_of(4) * 8) as u64;
            assert_eq!(event.bytes_moved, there + bytes_of(&got), "{event:?}");
            let sums = a.matmul(&b)?.to_vec::<f64>()?;
            for (y, got) in sums.into_iter().zip(got.to_vec::<f64>()?) {
                let want = activated(activation, y);
                let bound = 2f64.powi(-47) * (y.abs() + want.abs());
                assert!((got - want).abs() <= bound, "{got}, not {want}");
            }
        }
    }
    // Of operands of several devices all of it happens at the home of all.
    let (cpu, other) = (&Device::cpu(), &context.open());
    for (ours, added) in [(cpu, soft), (soft, cpu), (soft, other)] {
        let home = if ours.is_cpu() { added } else { ours };
        let (a, b) = (make(ours, &[6, 8])?, make(ours, &[8, 5])?);
        let bias = make(added, &[5])?;
        let got = a.linear(&b, Some(&bias), Activation::Relu)?;
        assert_eq!(got.device(), home);
        let want = a.matmul(&b)?.to(home)?.add(&bias.to(home)?)?.relu()?;
        assert_eq!(got.to_vec::<f64>()?, want.to_vec::<f64>()?);
    }
    let (x, y) = (make(soft, &[40])?, make(other, &[40])?);
    let want = x.add(&y.to(soft)?)?.to_vec::<f64>()?;
    let got = x.into_fused(|e, x| x + e.input(&y))?;
    assert_eq!(got.device(), soft);
    assert_eq!(got.to_vec::<f64>()?, want);
    Ok(())
}

/// NaN stays, large values do not overflow on the way.
fn specials(context: &Context) -> Result<()> {
    let device = context.device();
    let values = [
        f32::NAN,
        f32::INFINITY,
        1e30,
        -1e30,
        0.0,
        -100.0,
        100.0,
        -0.0,
    ];
    let x = Tensor::from_slice(device, &values, [8, 1])?;
    let one = Tensor::ones(device, [1, 1], DType::F32)?;
    for &activation in Activation::ALL {
        let y = x.linear(&one, None, activation)?.to_vec::<f32>()?;
        let name = activation.name();
        assert!(y[0].is_nan(), "{name}(NaN) is {}", y[0]);
        assert_eq!(y[1], f32::INFINITY, "{name}");
        assert_eq!(y[2], 1e30, "{name}");
        assert_eq!(y[6], 100.0, "{name}");
        if activation != Activation::None {
            assert_eq!([y[3], y[4], y[7]], [0.0; 3], "{name}");
            assert!(y[5].abs() < 1e-30, "{name}(-100) is {}", y[5]);
        }
    }
    Ok(())
}

/// Sums that go below every number: zero, as of the functions on their own.
fn sums_below(context: &Context) -> Result<()> {
    let device = context.device();
    for columns in [1, 4, 37] {
        let low = Tensor::full(device, [2, 1], -3e38, DType::F32)?;
        let two = Tensor::full(device, [1, columns], 2.0, DType::F32)?;
        for activation in [Activation::Relu, Activation::Gelu, Activation::Silu] {
            let y = low.linear(&two, None, activation)?.to_vec::<f32>()?;
            let name = activation.name();
            assert!(y.iter().all(|&y| y == 0.0), "{name}: {y:?}");
        }
    }
    Ok(())
}

/// What is added spans more than a binding, where sums of odd rows go through scratch.
fn far_residual(context: &Context) -> Result<()> {
    let device = &context.builder().max_binding_bytes(4 << 10).build()?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (a, b) = (
            Tensor::ones(device, [30, 2], dtype)?,
            Tensor::ones(device, [2, 33], dtype)?,
        );
        let wide = Tensor::ones(device, [30, 400], dtype)?;
        let made = a.matmul_with(&b, &Epilogue::new().residual(&wide.slice((.., 5..38))?))?;
        assert_eq!(made.cast(DType::F32)?.to_vec::<f32>()?, [3.0; 990]);
    }
    Ok(())
}

/// What is added begins where A ends, in one storage above a binding: where odd rows of 16 bits go through scratch the last
/// kernel binds it alone.
fn residual_beside(context: &Context) -> Result<()> {
    let device = &context.builder().max_binding_bytes(64 << 10).build()?;
    let [m, k, n] = [101, 601, 33];
    for dtype in [DType::F16, DType::BF16] {
        let both = Tensor::rand(device, m * (k + n), dtype, 5)?;
        let a = both.slice(..m * k)?.reshape([m, k])?;
        let residual = both.slice(m * k..)?.reshape([m, n])?;
        let b = Tensor::rand(device, [k, n], dtype, 6)?;
        let sum = |residual: &Tensor| a.matmul_with(&b, &Epilogue::new().residual(residual));
        let [beside, apart] = [sum(&residual)?, sum(&residual.copy()?)?];
        let bits = |tensor: &Tensor| tensor.cast(DType::F32)?.to_vec::<f32>();
        assert_eq!(bits(&beside)?, bits(&apart)?, "{dtype}");
        // What is added twice, each within a binding, both in one above it.
        let [m, k, n, pitch] = [16, 4, 1001, 2100];
        let both = Tensor::rand(device, n + m * pitch, dtype, 7)?;
        let bias = both.slice(..n)?;
        let residual = both.slice(n..)?.reshape([m, pitch])?.slice((.., ..n))?;
        let (a, b) = (
            Tensor::rand(device, [m, k], dtype, 8)?,
            Tensor::rand(device, [k, n], dtype, 9)?,
        );
        let sum = |bias: &Tensor, residual: &Tensor| {
            a.matmul_with(&b, &Epilogue::new().bias(bias).residual(residual))
        };
        let [beside, apart] = [
            sum(&bias, &residual)?,
            sum(&bias.copy()?, &residual.copy()?)?,
        ];
        assert_eq!(bits(&beside)?, bits(&apart)?, "{dtype}, both");
    }
    Ok(())
}

/// Sizes that only views can claim are refused before anything is done.
fn absurd(context: &Context) -> Result<()> {
    let device = &context.open();
    let one = Tensor::ones(device, [1, 1], DType::F32)?;
    let bias = Tensor::ones(device, [1], DType::F32)?;
    let before = device.memory();
    for k in [1usize << 56, 1 << 61] {
        let (row, column) = (one.broadcast_to([1, k])?, one.broadcast_to([k, 1])?);
        for refused in [
            row.matmul(&column),
            row.linear(&column, Some(&bias), Activation::Relu),
            row.broadcast_to([3, 1, k])?.matmul(&column.reshape([k])?),
        ] {
            assert!(
                matches!(refused, Err(Error::InvalidArgument(_))),
                "{refused:?}"
            );
        }
    }
    let huge = one.broadcast_to([1 << 40, 1])?;
    let wide = one.broadcast_to([1, 1 << 40])?;
    let refused = huge.linear(&wide, None, Activation::Gelu);
    assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    let residual = one.broadcast_to([1 << 20, 1 << 20])?;
    let refused = one.matmul_with(&one, &Epilogue::new().residual(&residual));
    assert!(
        matches!(refused, Err(Error::ShapeMismatch(_))),
        "{refused:?}"
    );
    assert_eq!(device.memory(), before);
    Ok(())
}

fn refusals(context: &Context) -> Result<()> {
    let device = context.device();
    let make = |shape: &[usize], dtype| Tensor::ones(device, shape, dtype);
    let (a, b) = (make(&[2, 3], DType::F32)?, make(&[3, 4], DType::F32)?);
    for bias in [&[1, 4][..], &[1], &[3], &[]] {
        let bias = make(bias, DType::F32)?;
        let refused = a.linear(&b, Some(&bias), Activation::None);
        assert!(
            matches!(refused, Err(Error::ShapeMismatch(_))),
            "{refused:?}"
        );
    }
    for residual in [&[4][..], &[4, 2], &[2, 1], &[1, 2, 4]] {
        let residual = make(residual, DType::F32)?;
        let refused = a.matmul_with(&b, &Epilogue::new().residual(&residual));
        assert!(
            matches!(refused, Err(Error::ShapeMismatch(_))),
            "{refused:?}"
        );
    }
    let bias = make(&[4], DType::I32)?;
    let refused = a.linear(&b, Some(&bias), Activation::None);
    assert!(
        matches!(refused, Err(Error::DTypeMismatch(_))),
        "{refused:?}"
    );
    let (a, b) = (make(&[2, 3], DType::I32)?, make(&[3, 4], DType::I32)?);
    let refused = a.linear(&b, Some(&bias), Activation::None);
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    Ok(())
}

/// Batches of a few elements, of small whole numbers, whose epilogue goes through all of a batch at once: what comes of
/// separate ops.
fn tiny_batches(context: &Context) -> Result<()> {
    let mut rng = Rng::new(3);
    for (dtype, count) in [
        (DType::F32, 7),
        (DType::F32, 20_000),
        (DType::F16, 3000),
        (DType::F64, 600),
    ] {
        if !context.device().capabilities().holds(dtype) {
            continue;
        }
        let count = if context.is_slow() {
            count.min(600)
        } else {
            count
        };
        let mut whole = |shape: &[usize]| -> Result<Tensor> {
            let values: Vec<i32> = (0..shape.iter().product())
                .map(|_| rng.between(0, 8) as i32 - 4)
                .collect();
            Tensor::from_slice(context.device(), &values, shape)?.cast(dtype)
        };
        // The batch innermost, and one matrix for all.
        let a = whole(&[3, 2, count])?.permute(&[2, 0, 1])?;
        let (b, bias) = (whole(&[count, 2, 4])?, whole(&[4])?);
        for b in [b.clone(), b.slice(0..1)?.broadcast_to([count, 2, 4])?] {
            let residual = whole(&[count, 3, 4])?;
            let epilogue = Epilogue::new().scale(2.0).bias(&bias).residual(&residual);
            let made = a.matmul_with(&b, &epilogue.activation(Activation::Relu))?;
            let parts = a.matmul(&b)?.mul(2)?.add(&bias)?.add(&residual)?.relu()?;
            let differ = made.cast(DType::F32)?.ne(&parts.cast(DType::F32)?)?;
            assert!(!differ.any(..)?.item::<bool>()?, "{dtype}, {count}");
        }
    }
    Ok(())
}
