//! Matrix products that take several launches: operands above one storage binding, sums longer
//! than a loop may be; and those that no device could do.

use orlop::{DType, Device, Error, Result, Tensor, f16, with_matmul_kernel};

use crate::adapters::{Context, Variant, full};
use crate::products::Factor;
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("matmul::above_a_binding", Scope::Gpu, above_a_binding),
        Test::new("matmul::long_work", Scope::Device, long_work),
        Test::new("matmul::parts_of_k", Scope::Kernels, parts_of_k),
        Test::new("matmul::exact_parts", Scope::Kernels, exact_parts),
        Test::new("matmul::absurd", Scope::Device, absurd),
        Test::new("matmul::far_columns", Scope::Device, far_columns),
        Test::new("matmul::between_texels", Scope::Gpu, between_texels),
    ]
}

/// Rows of the result are so long that panels have two of them: every other one begins between texels of A, and binds B, which
/// is above the limit as a whole.
fn between_texels(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(1 << 20).build()?;
    let [m, k, n] = [64, 64, 100_032];
    let a_at = |row: usize, at: usize| ((row * 7 + at * 3) % 5) as f32;
    let b_at = |at: usize, column: usize| ((at * 5 + column) % 7) as f32;
    let a: Vec<f32> = (0..k * m).map(|at| a_at(at % m, at / m)).collect();
    let b: Vec<f32> = (0..k * n).map(|at| b_at(at / n, at % n)).collect();
    let a = Tensor::from_vec(&device, a, [k, m])?.transpose(0, 1)?;
    let b = Tensor::from_vec(&device, b, [k, n])?;
    let c = match with_matmul_kernel("texel_tile 16x64".parse()?, || a.matmul(&b)) {
        Err(error) if error.to_string().contains("is forced, but") => return Ok(()),
        c => c?.to_vec::<f32>()?,
    };
    for row in 0..m {
        for column in (row % 97..n).step_by(97) {
            let want: f32 = (0..k).map(|at| a_at(row, at) * b_at(at, column)).sum();
            assert_eq!(c[row * n + column], want, "{row}, {column}");
        }
    }
    Ok(())
}

/// A matrix too large for anything but its formula: each element from its place.
#[derive(Clone, Copy)]
struct Matrix {
    rows: usize,
    columns: usize,
    /// Columns lie one after the other.
    turned: bool,
    seed: u64,
}

impl Matrix {
    fn value(&self, row: usize, column: usize) -> f32 {
        let at = match self.turned {
            false => row * self.columns + column,
            true => column * self.rows + row,
        };
        self.stored(at)
    }

    /// In steps of 2^-15 from -1 to 1.
    fn stored(&self, at: usize) -> f32 {
        let mixed = (at as u64 ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 48) as f32 / 32768.0 - 1.0
    }

    fn tensor(&self, device: &Device) -> Result<Tensor> {
        let values: Vec<f32> = (0..self.rows * self.columns)
            .map(|at| self.stored(at))
            .collect();
        match self.turned {
            false => Tensor::from_slice(device, &values, [self.rows, self.columns]),
            true => Tensor::from_slice(device, &values, [self.columns, self.rows])?.transpose(0, 1),
        }
    }
}

/// Indices of an axis where panels may meet: ends, whole tiles near equal parts, what fills a
/// binding; and some others.
fn places(rng: &mut Rng, size: usize, per_binding: usize) -> Vec<usize> {
    let mut edges = vec![0, size];
    for parts in 2..=4 {
        for unit in [1, 4, 16, 32, 48, 64, 128] {
            let panel = size.div_ceil(parts).next_multiple_of(unit);
            edges.extend((1..parts).map(|part| part * panel));
        }
    }
    edges.extend((1..4).map(|nth: usize| nth.saturating_mul(per_binding)));
    edges.extend((0..20).map(|_| rng.below(size)));
    let mut all: Vec<usize> = edges
        .into_iter()
        .flat_map(|edge| [edge.wrapping_sub(1), edge])
        .filter(|&at| at < size)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Multiplies, and checks entries at the edges of whatever panels there may be.
fn check(device: &Device, rng: &mut Rng, a: Matrix, b: Matrix, limit: usize) -> Result<()> {
    let (m, k, n) = (a.rows, a.columns, b.columns);
    let product = a.tensor(device)?.matmul(&b.tensor(device)?)?;
    assert_eq!(product.shape().dims(), [m, n]);
    assert_eq!(product.device(), device);
    let got = product.to_vec::<f32>()?;
    let rows = places(rng, m, limit / if a.turned { m } else { k.max(n) });
    let columns = places(rng, n, limit / k);
    // As many entries as take a moment.
    let pairs = rows.len() * columns.len();
    let every = (pairs * k).div_ceil(20_000_000).max(1);
    for pair in (0..pairs).step_by(every).chain([pairs - 1]) {
        let (row, column) = (rows[pair / columns.len()], columns[pair % columns.len()]);
        let terms: Vec<(f32, f32)> = (0..k)
            .map(|step| (a.value(row, step), b.value(step, column)))
            .collect();
        if let Err(problem) = f32::check(got[row * n + column], &terms) {
            panic!(
                "[{m}, {k}] x [{k}, {n}], turned {} {}, at {row}, {column}: {problem}",
                a.turned, b.turned
            );
        }
    }
    Ok(())
}

/// Each operand above the adapter's binding limit, and several at once. The real limit on lavapipe;
/// elsewhere a smaller one, unless in full.
fn above_a_binding(context: &Context) -> Result<()> {
    let real = context.device().capabilities().max_binding_bytes;
    let device = if (context.adapter.name == "lavapipe" || full()) && real <= 1 << 30 {
        context.open()
    } else {
        context.builder().max_binding_bytes(1 << 20).build()?
    };
    let limit = device.capabilities().max_binding_bytes as usize / 4;
    let large = limit / 8 * 9;
    // Rows that are not a power of two: 8192 or so, and 64 or so.
    let (long, short) = (large.isqrt().min(8200), 60);
    cases(1, |rng| {
        let matrix = |rows, columns, turned| Matrix {
            rows,
            columns,
            turned,
            seed: 1 + rows as u64,
        };
        let tall = |turned| matrix(large / long + 1, long, turned);
        let wide = |turned| matrix(long, large / long + 1, turned);
        let mut products = vec![
            // A, and A by columns: then k is cut.
            (tall(false), matrix(long, 5, false)),
            (wide(true), matrix(large / long + 1, 4, false)),
            // B by rows: k is cut; B and C.
            (matrix(3, long, false), wide(false)),
            (matrix(large / short + 1, 8, false), matrix(8, short, true)),
        ];
        if full() {
            products.extend([
                (tall(false), matrix(long, 1, false)),
                (wide(true), matrix(large / long + 1, 1, false)),
                (tall(true), matrix(long, 7, true)),
                (matrix(1, long, false), wide(false)),
                (matrix(5, long, false), wide(true)),
                // A and C; all of them.
                (
                    matrix(large / short + 1, short, false),
                    matrix(short, short, false),
                ),
                (
                    matrix(large / long + 1, long, false),
                    matrix(long, large / long + 1, true),
                ),
                // One row above the limit.
                (matrix(1, large, false), matrix(large, 1, false)),
                (matrix(2, large, true), matrix(large, 3, false)),
            ]);
        }
        let most = if context.is_slow() { 1e10 } else { 1e12 };
        for (a, b) in products {
            let work = a.rows as f64 * b.rows as f64 * b.columns as f64;
            if work <= most {
                check(&device, rng, a, b, limit)?;
            }
        }
        // Both operands in one storage above the limit.
        let a = matrix(3, large / 3 + 1, false);
        let tensor = a.tensor(&device)?;
        let got = tensor.matmul(&tensor.transpose(0, 1)?)?.to_vec::<f32>()?;
        for (at, &got) in got.iter().enumerate() {
            let terms: Vec<(f32, f32)> = (0..a.columns)
                .map(|step| (a.value(at / 3, step), a.value(at % 3, step)))
                .collect();
            f32::check(got, &terms).unwrap_or_else(|problem| panic!("a a.T at {at}: {problem}"));
        }
        Ok(())
    })
}

/// More than a fifth of a second by the estimate for software adapters: several launches.
fn long_work(context: &Context) -> Result<()> {
    cases(1, |rng| {
        let [m, k, n] = [1700, 1300, 1101];
        for turned in [false, true] {
            let matrix = |rows, columns| Matrix {
                rows,
                columns,
                turned,
                seed: 5,
            };
            check(
                context.device(),
                rng,
                matrix(m, k),
                matrix(k, n),
                usize::MAX,
            )?;
        }
        Ok(())
    })
}

/// k beyond what one loop may take (llvmpipe ends it after 65,535 turns), for matrices and
/// vectors.
fn parts_of_k(context: &Context) -> Result<()> {
    let device = context.device();
    cases(1, |rng| {
        for k in [70_000, 200_000] {
            for (m, n) in [(1, 1), (2, 3), (17, 1), (1, 9)] {
                for turned in [false, true] {
                    let matrix = |rows, columns| Matrix {
                        rows,
                        columns,
                        turned,
                        seed: 1 + k as u64,
                    };
                    check(device, rng, matrix(m, k), matrix(k, n), usize::MAX)?;
                }
            }
        }
        Ok(())
    })
}

/// Sums over parts of k that f32 holds exactly and f16 does not: they are rounded to f16 once, at
/// the end.
fn exact_parts(context: &Context) -> Result<()> {
    let device = context.device();
    for k in [70_000usize, 200_000] {
        // The sum rises to thousands and falls again.
        let steps: Vec<f16> = (0..k)
            .map(|step| match step < k / 2 {
                true => f16::from_f32(0.25 + 2f32.powi(-9)),
                false => f16::from_f32(-0.25),
            })
            .collect();
        let want = (k / 2) as f32 * 2f32.powi(-9);
        let steps = Tensor::from_slice(device, &steps, [k])?;
        for (m, n) in [(1, 1), (5, 1), (1, 6), (3, 8), (50, 33)] {
            // A window of 4 KiB on one row at a time takes a hundred thousand launches.
            if context.variant == Variant::Windows && m > 5 {
                continue;
            }
            let ones = Tensor::from_slice(device, &vec![f16::ONE; m * k], [m, k])?;
            let b = steps.unsqueeze(1)?.broadcast_to([k, n])?;
            let got = ones.matmul(&b)?.to_vec::<f16>()?;
            for got in got {
                assert!(
                    (got.to_f32() - want).abs() <= want * 2f32.powi(-11),
                    "{m} x {k} x {n}: {got}, not {want}"
                );
            }
            // Integers count every turn.
            let ones = |rows, columns| {
                Tensor::from_slice(device, &vec![1i32; rows * columns], [rows, columns])
            };
            let counted = ones(m, k)?.matmul(&ones(k, n)?)?.to_vec::<i32>()?;
            assert!(
                counted.iter().all(|&sum| sum == k as i32),
                "{m} x {k} x {n}"
            );
        }
    }
    Ok(())
}

/// Columns so far apart that few lie in one binding: panels of less than a word of 16 bits, whose sums take
/// scratch, or the CPU where that is no binding either.
fn far_columns(context: &Context) -> Result<()> {
    let device = &context.builder().max_binding_bytes(4 << 10).build()?;
    for dtype in [DType::F16, DType::BF16, DType::I32] {
        for [m, n] in [[64, 8], [64, 64], [300, 4], [5, 1200]] {
            let a = Tensor::ones(device, [m, 8], dtype)?;
            let wide = Tensor::ones(device, [n, 4096], dtype)?.slice((.., 0..8))?;
            let product = a.matmul(&wide.transpose(0, 1)?)?;
            let entries = product.cast(DType::F32)?.to_vec::<f32>()?;
            assert_eq!(entries.len(), m * n);
            let right = entries.iter().all(|&entry| entry == 8.0);
            assert!(right, "{m} x {n} of {dtype}: {entries:?}");
        }
        // Panels of one row and twelve columns, of rows of 22.
        let a = Tensor::ones(device, [3, 4096], dtype)?.slice((.., 0..100))?;
        let b = Tensor::ones(device, [22, 100], dtype)?.transpose(0, 1)?;
        let entries = a.matmul(&b)?.cast(DType::F32)?.to_vec::<f32>()?;
        assert_eq!(entries, [100.0; 66], "{dtype}");
    }
    Ok(())
}

/// Products that nobody can hold or finish are refused, and nothing has changed.
fn absurd(context: &Context) -> Result<()> {
    // Its own, so that its account is.
    let device = &context.open();
    let one = |dtype| Tensor::ones(device, [1, 1], dtype);
    let before = device.memory();
    for dtype in [DType::F32, DType::F16, DType::I32] {
        let huge = 1 << 40;
        let column = one(dtype)?.broadcast_to([huge, 1])?;
        let row = one(dtype)?.broadcast_to([1, huge])?;
        let error = column.matmul(&row).unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
        let batches = |shape: [usize; 4]| one(dtype)?.broadcast_to(shape);
        let error = batches([huge, 1, 1, 1])?
            .matmul(&batches([1, huge, 1, 1])?)
            .unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
        if context.is_cpu() || !device.capabilities().computes(dtype) {
            continue;
        }
        let tall = one(dtype)?.broadcast_to([huge, 5])?;
        let error = tall.matmul(&one(dtype)?.broadcast_to([5, 3])?).unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
        // A sum that would go on for years.
        let steps = one(dtype)?.broadcast_to([1, 1 << 50])?;
        let error = steps.matmul(&steps.transpose(0, 1)?).unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
        assert!(error.to_string().contains("launches"), "{error}");
    }
    // Numbers alone multiply, without steps too.
    for k in [0, 2] {
        let truth = Tensor::ones(device, [2, k], DType::Bool)?;
        let refused = truth.matmul(&truth.transpose(0, 1)?);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
    }
    let after = device.memory();
    assert_eq!(before.allocated, after.allocated);
    let eye = one(DType::F32)?;
    assert_eq!(eye.matmul(&eye)?.to_vec::<f32>()?, [1.0]);
    Ok(())
}
