//! What is multiplied.

use orlop::DType;

/// A product of row-major matrices, `batch` times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// A is given as its transposed, `[k, m]`: column-major.
    pub turned: bool,
}

impl Problem {
    pub fn flops(&self) -> f64 {
        2.0 * self.batch as f64 * self.m as f64 * self.k as f64 * self.n as f64
    }

    /// Matrix times vector, or the reverse: memory is the limit.
    pub fn is_vector(&self) -> bool {
        self.m == 1 || self.n == 1
    }

    /// Bytes of the matrix that a product with a vector reads.
    pub fn matrix_bytes(&self, dtype: DType) -> f64 {
        dtype.size() as f64 * self.batch as f64 * self.k as f64 * self.m.max(self.n) as f64
    }

    pub fn name(&self) -> String {
        let Problem {
            batch,
            m,
            k,
            n,
            turned,
        } = *self;
        let size = match (m, n) {
            (_, 1) if turned => format!("columns {m}x{k} x vector"),
            (_, 1) => format!("matrix {m}x{k} x vector"),
            (1, _) => format!("vector x matrix {k}x{n}"),
            _ if m == k && k == n => format!("{m}^3{}", if turned { ", A turned" } else { "" }),
            _ => format!("{m}x{k}x{n}"),
        };
        match batch {
            1 => size,
            _ => format!("{batch} x {size}"),
        }
    }
}

const fn one(m: usize, k: usize, n: usize) -> Problem {
    many(1, m, k, n)
}

const fn many(batch: usize, m: usize, k: usize, n: usize) -> Problem {
    Problem {
        batch,
        m,
        k,
        n,
        turned: false,
    }
}

pub const PROBLEMS: [Problem; 27] = [
    one(8, 8, 8),
    one(16, 16, 16),
    one(32, 32, 32),
    one(64, 64, 64),
    one(128, 128, 128),
    one(256, 256, 256),
    one(512, 512, 512),
    one(1024, 1024, 1024),
    one(2048, 2048, 2048),
    one(127, 129, 131),
    one(1023, 1025, 511),
    one(2048, 64, 2048),
    one(64, 4096, 64),
    one(4096, 256, 16),
    Problem {
        turned: true,
        ..one(1024, 1024, 1024)
    },
    many(16, 256, 256, 256),
    many(64, 64, 64, 64),
    many(1000, 32, 32, 32),
    many(4000, 8, 8, 8),
    many(3, 500, 500, 500),
    one(4096, 4096, 1),
    Problem {
        turned: true,
        ..one(4096, 4096, 1)
    },
    one(1, 4096, 4096),
    one(4096, 4096, 4),
    one(4, 4096, 4096),
    one(512, 512, 1),
    many(8, 1024, 1024, 1),
];

/// What a hardware GPU is asked for beside them: every size, so that a cliff shows, and a matrix that no
/// cache holds.
pub const LARGE: [Problem; 14] = [
    one(96, 96, 96),
    one(192, 192, 192),
    one(384, 384, 384),
    one(768, 768, 768),
    one(1536, 1536, 1536),
    one(3072, 3072, 3072),
    one(4096, 4096, 4096),
    one(6144, 6144, 6144),
    one(8192, 8192, 8192),
    one(4095, 4097, 4093),
    one(64, 65536, 64),
    one(8192, 8192, 4),
    many(64, 1024, 1024, 1024),
    one(16384, 16384, 1),
];

/// Values that a reference in f64 can be computed from, entry by entry; of 10 bits for f16, which holds them.
pub fn values(count: usize, seed: u32, dtype: DType) -> Vec<f32> {
    let bits = if dtype == DType::F16 { 10 } else { 24 };
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> (32 - bits)) as f32 / (1 << bits) as f32 - 0.5
        })
        .collect()
}

/// Operands of a problem on the host.
pub struct Operands {
    pub a: Vec<f32>,
    pub b: Vec<f32>,
    dtype: DType,
}

impl Operands {
    pub fn of(problem: &Problem, dtype: DType) -> Self {
        let Problem { batch, m, k, n, .. } = *problem;
        Self {
            a: values(batch * m * k, 1, dtype),
            b: values(batch * k * n, 2, dtype),
            dtype,
        }
    }

    /// Panics when a sample of entries is not what it should be.
    pub fn check(&self, problem: &Problem, c: &[f32], who: &str, rounding: f64) {
        let Problem {
            batch,
            m,
            k,
            n,
            turned,
        } = *problem;
        assert_eq!(c.len(), batch * m * n, "{who}: {}", problem.name());
        for at in (0..c.len()).step_by((c.len() / 64).max(1) | 1) {
            let (which, row, column) = (at / (m * n), at / n % m, at % n);
            let (mut sum, mut absolute) = (0.0, 0.0);
            for i in 0..k {
                let left = match turned {
                    true => self.a[(which * k + i) * m + row],
                    false => self.a[(which * m + row) * k + i],
                };
                let product = f64::from(left) * f64::from(self.b[(which * k + i) * n + column]);
                sum += product;
                absolute += product.abs();
            }
            let mut bound = (4.0 * (k as f64).sqrt() * 2f64.powi(-23) + rounding) * absolute;
            if self.dtype == DType::F16 {
                bound += 2f64.powi(-11) * sum.abs() + 2f64.powi(-24);
            }
            let error = (f64::from(c[at]) - sum).abs();
            assert!(
                error <= bound,
                "{who}: {}: entry {at} is {}, not {sum}",
                problem.name(),
                c[at]
            );
        }
    }
}
