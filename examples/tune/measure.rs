//! The time of one product by each kernel that can do it, in rounds that take turns.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use orlop::{
    DType, Device, Error, MatmulKernel, MatmulProblem, Result, Tensor, explain_matmuls,
    with_matmul_kernel, with_matmul_split,
};

/// A product to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub dtype: DType,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub batches: usize,
    pub a_by_columns: bool,
    pub b_by_columns: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            dtype,
            m,
            k,
            n,
            batches,
            ..
        } = self;
        write!(f, "{m}x{k} times {k}x{n} of {dtype}")?;
        if *batches != 1 {
            write!(f, ", {batches} side by side")?;
        }
        for (name, by_columns) in [("A", self.a_by_columns), ("B", self.b_by_columns)] {
            if by_columns {
                write!(f, ", {name} by columns")?;
            }
        }
        Ok(())
    }
}

/// How to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub kernel: MatmulKernel,
    /// Parts of k side by side.
    pub split: u32,
}

impl Way {
    fn run<R>(self, work: impl FnOnce() -> R) -> R {
        with_matmul_kernel(self.kernel, || with_matmul_split(self.split, work))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kernel)?;
        match self.split {
            1 => Ok(()),
            parts => write!(f, ", k in {parts} parts"),
        }
    }
}

/// What a product took.
pub struct Times {
    /// The problem as kernels see it.
    pub problem: MatmulProblem,
    /// The planned kernel.
    pub plan: Way,
    /// Seconds by it; without end where its entries are wrong.
    pub planned: f64,
    /// Seconds by each kernel that is not hopeless, the fastest first.
    pub ways: Vec<(Way, f64)>,
    /// Kernels that gave wrong entries, or could not run, and why.
    pub failed: Vec<(Way, String)>,
}

/// Why a problem is not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    Memory,
    TooLong,
    /// But the CPU's.
    NoKernel,
}

impl Times {
    /// The fastest kernel, where it saves at least `margin` of the planned one's time.
    pub fn faster(&self, margin: f64) -> Option<(Way, f64)> {
        self.ways
            .first()
            .copied()
            .filter(|(_, seconds)| *seconds < self.planned * (1.0 - margin))
    }
}

pub struct Bench<'a> {
    pub device: &'a Device,
    pub rounds: usize,
    /// Seconds of a product above which a problem is left out.
    pub longest: f64,
}

/// Seconds of work in one timed run: short products are repeated.
const RUN: f64 = 0.01;
/// A kernel that takes this many times the planned one's time has no more rounds,
const HOPELESS: f64 = 2.0;
/// or no first one after a run by itself: while kernels compile a GPU's clock falls, on an H200 to less than a fifth.
const HOPELESS_ALONE: f64 = 10.0;
/// How many times m and n k is where its parts are tried.
const LONG: usize = 4;
/// Sums in another order differ; sums of something else differ by far more.
const ALIKE: f64 = 1e-2;

impl Bench<'_> {
    /// How long each kernel takes for a product.
    ///
    /// # Errors
    /// What allocating the operands or the planned product says; a lost device.
    pub fn times(&self, case: &Case) -> Result<std::result::Result<Times, LeftOut>> {
        // Two operands and two results, in f64: sizes that overflow are too long.
        let [m, k, n] = [case.m, case.k, case.n].map(|size| size as f64);
        let floats = case.batches as f64 * (m * k + k * n + 2.0 * m * n);
        let limit = self
            .device
            .memory()
            .limit
            .map_or(f64::INFINITY, |limit| limit as f64);
        let room = limit.min(self.device.capabilities().max_buffer_bytes as f64);
        if 2.0 * floats * case.dtype.size() as f64 > room {
            return Ok(Err(LeftOut::Memory));
        }
        let operand = |rows, columns, by_columns, seed| {
            let shape = match by_columns {
                false => [case.batches, rows, columns],
                true => [case.batches, columns, rows],
            };
            let values = match case.dtype.is_float() {
                // Of both signs: sums of f16 stay far from its largest number, however long they are.
                true => Tensor::randn(self.device, shape, case.dtype, seed)?,
                false => Tensor::randint(self.device, 0..100, shape, case.dtype, seed)?,
            };
            match by_columns {
                false => Ok(values),
                true => values.transpose(1, 2),
            }
        };
        let a = operand(case.m, case.k, case.a_by_columns, 1)?;
        let b = operand(case.k, case.n, case.b_by_columns, 2)?;

        let (product, plans) = explain_matmuls(|| a.matmul(&b));
        let product = product?;
        // Not on the CPU, for want of kernels.
        let Some((problem, plan)) = plans.first() else {
            return Ok(Err(LeftOut::NoKernel));
        };
        let plan = Way {
            kernel: plan.kernel,
            split: plan.split,
        };
        let once = self.seconds(&a, &b, 1)?;
        if once > self.longest {
            return Ok(Err(LeftOut::TooLong));
        }
        let expected = reference(&a, &b)?;
        let is_right = alike(&ends(&product)?, &expected);
        drop(product);
        let mut failed = Vec::new();
        // What a wrong one takes is no measure.
        let (once, hopeless) = match is_right {
            true => (once, HOPELESS_ALONE * once),
            false => (self.longest, self.longest),
        };
        if !is_right {
            let why = "gives wrong entries, and is what is planned";
            failed.push((plan, why.to_owned()));
        }
        let times = (RUN / once).clamp(1.0, 1000.0) as usize;
        let mut ways = Vec::new();
        // Parts of k pay where there is little but k; only sums in f32 are split.
        let is_split = case.dtype.accumulator() == DType::F32;
        let splits: &[u32] = match is_split && case.k >= LONG * case.m.max(case.n) {
            true => &[1, 4, 16, 64],
            false => &[1],
        };
        for way in MatmulKernel::all()
            .iter()
            .flat_map(|&kernel| splits.iter().map(move |&split| Way { kernel, split }))
        {
            if !is_right && way == plan {
                continue;
            }
            let entries = way.run(|| a.matmul(&b)).and_then(|product| ends(&product));
            let why = match entries {
                Ok(entries) if alike(&entries, &expected) => {
                    let seconds = way.run(|| self.seconds(&a, &b, 1))?;
                    if seconds <= hopeless {
                        ways.push((way, Vec::new()));
                    }
                    continue;
                }
                Ok(_) => "gives wrong entries".to_owned(),
                // It is not for this problem.
                Err(Error::InvalidArgument(_) | Error::Unsupported(_)) => continue,
                Err(lost @ Error::DeviceLost(_)) => return Err(lost),
                Err(error) => error.to_string(),
            };
            failed.push((way, why));
        }
        let mut planned = Vec::new();
        for round in 0..self.rounds {
            let seconds = self.seconds(&a, &b, times)?;
            planned.push(seconds);
            for (way, seconds) in &mut ways {
                seconds.push(way.run(|| self.seconds(&a, &b, times))?);
            }
            if round == 0 {
                ways.retain(|(_, of_way)| {
                    let mut times = of_way.iter();
                    !is_right || times.all(|&of_way| of_way <= HOPELESS * seconds)
                });
            }
        }
        let mut ways: Vec<(Way, f64)> = ways
            .into_iter()
            .map(|(way, seconds)| (way, median(seconds)))
            .collect();
        ways.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        Ok(Ok(Times {
            problem: *problem,
            plan,
            planned: match is_right {
                true => median(planned),
                false => f64::INFINITY,
            },
            ways,
            failed,
        }))
    }

    /// Seconds of one product, of `times` in a row.
    fn seconds(&self, a: &Tensor, b: &Tensor, times: usize) -> Result<f64> {
        self.device.synchronize()?;
        let start = Instant::now();
        for _ in 0..times {
            a.matmul(b)?;
        }
        self.device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / times as f64)
    }
}

/// Entries that are looked at, from the first one on and up to the last one.
const LOOKED_AT: usize = 4096;

/// The first and the last entries of a product.
pub fn ends(product: &Tensor) -> Result<Vec<f32>> {
    let size = product.elements();
    let (flat, part) = (product.reshape([size])?, size.min(LOOKED_AT));
    let of = |range: Range<usize>| flat.slice(range)?.cast(DType::F32)?.to_vec::<f32>();
    let mut values = of(0..part)?;
    values.extend(of(size - part..size)?);
    Ok(values)
}

/// The same by the CPU, from the rows that they are of.
pub fn reference(a: &Tensor, b: &Tensor) -> Result<Vec<f32>> {
    let cpu = Device::cpu();
    let (batches, m, n) = (a.shape()[0], a.shape()[1], b.shape()[2]);
    let part = (batches * m * n).min(LOOKED_AT);
    let (of_matrix, rows) = (m * n, part.div_ceil(n).min(m));
    let matrices = part.div_ceil(of_matrix);
    let of = |matrices: Range<usize>, rows: Range<usize>| -> Result<Vec<f32>> {
        let a = a.slice((matrices.clone(), rows))?.to(&cpu)?;
        let product = a.matmul(&b.slice(matrices)?.to(&cpu)?)?;
        product.cast(DType::F32)?.to_vec::<f32>()
    };
    let mut values = of(0..matrices, 0..rows)?;
    values.truncate(part);
    let last = of(batches - matrices..batches, m - rows..m)?;
    values.extend(&last[last.len() - part..]);
    Ok(values)
}

/// Whether the same was computed.
pub fn alike(found: &[f32], expected: &[f32]) -> bool {
    let largest = expected
        .iter()
        .fold(1.0, |most: f32, value| most.max(value.abs()));
    let pairs = found.iter().zip(expected);
    found.len() == expected.len()
        && pairs
            .map(|(a, b)| f64::from((a - b).abs()))
            .all(|off| off <= ALIKE * f64::from(largest))
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
