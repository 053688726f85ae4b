//! The time of one product by each kernel that can do it, in rounds that take turns.

use std::fmt;
use std::time::Instant;

use orlop::{
    DType, Device, MatmulKernel, MatmulProblem, Result, Tensor, explain_matmuls,
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
#[derive(Clone, Copy, Debug)]
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
    /// Seconds by it.
    pub planned: f64,
    /// Seconds by each kernel that is not hopeless, the fastest first.
    pub ways: Vec<(Way, f64)>,
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
/// A kernel that takes this many times the planned one's time has no more rounds.
const HOPELESS: f64 = 2.0;
/// How many times m and n k is where its parts are tried.
const LONG: usize = 4;
/// Sums in another order differ; sums of something else differ by far more.
const ALIKE: f64 = 1e-2;

impl Bench<'_> {
    /// How long each kernel takes for a product; nothing where it takes too long, or is the CPU's.
    ///
    /// # Errors
    /// What allocating the operands or the planned product says.
    pub fn times(&self, case: &Case) -> Result<Option<Times>> {
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
            return Ok(None);
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

        let (expected, plans) = explain_matmuls(|| a.matmul(&b));
        let expected = expected?;
        // Not on the CPU, for want of kernels.
        let Some((problem, plan)) = plans.first() else {
            return Ok(None);
        };
        let once = self.seconds(&a, &b, 1)?;
        if once > self.longest {
            return Ok(None);
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
            // Those that cannot do it are refused.
            let Ok(product) = way.run(|| a.matmul(&b)) else {
                continue;
            };
            if !self.alike(&product, &expected)? {
                continue;
            }
            let seconds = way.run(|| self.seconds(&a, &b, 1))?;
            if seconds <= HOPELESS * once {
                ways.push((way, Vec::new()));
            }
        }
        let mut planned = Vec::new();
        for _ in 0..self.rounds {
            planned.push(self.seconds(&a, &b, times)?);
            for (way, seconds) in &mut ways {
                seconds.push(way.run(|| self.seconds(&a, &b, times))?);
            }
        }
        let mut ways: Vec<(Way, f64)> = ways
            .into_iter()
            .map(|(way, seconds)| (way, median(seconds)))
            .collect();
        ways.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        Ok(Some(Times {
            problem: *problem,
            plan: Way {
                kernel: plan.kernel,
                split: plan.split,
            },
            planned: median(planned),
            ways,
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

    /// Whether a kernel computes the same, by the first and the last entries.
    fn alike(&self, product: &Tensor, expected: &Tensor) -> Result<bool> {
        let ends = |tensor: &Tensor| -> Result<Vec<f32>> {
            let flat = tensor.reshape([tensor.shape().elements()])?;
            let size = flat.shape().elements();
            let part = size.min(4096);
            let mut values = flat.slice(0..part)?.cast(DType::F32)?.to_vec::<f32>()?;
            values.extend(
                flat.slice(size - part..size)?
                    .cast(DType::F32)?
                    .to_vec::<f32>()?,
            );
            Ok(values)
        };
        let (found, expected) = (ends(product)?, ends(expected)?);
        let largest = expected
            .iter()
            .fold(1.0, |most: f32, value| most.max(value.abs()));
        let pairs = found.iter().zip(&expected);
        Ok(pairs
            .map(|(a, b)| f64::from((a - b).abs()))
            .all(|off| off <= ALIKE * f64::from(largest)))
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
