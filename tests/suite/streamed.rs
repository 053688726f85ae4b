//! Products of host matrices through devices that cannot hold them.

use std::ops::Range;

use orlop::memory::WhenFull;
use orlop::{
    DType, Device, Element, Error, HostMatrix, Result, Streamed, Tensor, bf16, f16, matmul_streamed,
};

use crate::adapters::{Context, full};
use crate::full::one_region;
use crate::number::{Number, Value};
use crate::operand::same;
use crate::products::Factor;
use crate::rng::{Rng, cases};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("streamed::tiles::f32", Scope::Device, tiles::<f32>),
        Test::new("streamed::tiles::f16", Scope::Device, tiles::<f16>),
        Test::new("streamed::tiles::bf16", Scope::Device, tiles::<bf16>),
        Test::new("streamed::tiles::i32", Scope::Device, tiles::<i32>),
        Test::new("streamed::tiles::f64", Scope::Device, tiles::<f64>),
        Test::new("streamed::long_k", Scope::Device, long_k),
        Test::new("streamed::edges", Scope::Device, edges),
        Test::new("streamed::tiny_budgets", Scope::Device, tiny_budgets),
        Test::new("streamed::full_devices", Scope::Gpu, full_devices),
        Test::new("streamed::nothing", Scope::Device, nothing),
        Test::new("streamed::scopes", Scope::Device, scopes),
        Test::new("streamed::refusals", Scope::Device, refusals),
        Test::new("streamed::failing_sources", Scope::Device, failing_sources),
        #[cfg(feature = "npy")]
        Test::new("streamed::files", Scope::Device, files),
    ]
}

const BUDGET: u64 = 1 << 20;

fn small(context: &Context) -> Result<Device> {
    context.builder().memory_limit(BUDGET).build()
}

fn random<T: Number>(rng: &mut Rng, count: usize) -> Vec<T> {
    (0..count).map(|_| T::sample(rng)).collect()
}

/// Checks a sample of entries, of all columns in turn, and those at the ends of tiles of multiples of 32.
fn check<T: Factor + bytemuck::Pod>([m, k, n]: [usize; 3], a: &[T], b: &[T], c: &[T]) {
    assert_eq!(c.len(), m * n);
    // One row and one column on, and some rows more.
    let step = (c.len() / 300).max(1) / n.max(1) * n + n + 1;
    let walked = (0..c.len()).step_by(step).map(|at| (at / n, at % n));
    let ends = |size: usize| {
        let around = (0..=size)
            .step_by(32)
            .flat_map(|end| [end.checked_sub(1), Some(end)]);
        around
            .flatten()
            .chain(size.checked_sub(1))
            .filter(move |&at| at < size)
    };
    // Of one row all ends of columns, of the last column all ends of rows.
    let of_columns = ends(n).map(|column| (m / 2, column));
    let of_rows = ends(m).map(|row| (row, n.saturating_sub(1)));
    let entries = walked
        .chain(of_columns)
        .chain(of_rows)
        .take(if c.is_empty() { 0 } else { usize::MAX });
    for (row, column) in entries {
        let at = row * n + column;
        let terms: Vec<(T, T)> = (0..k)
            .map(|i| (a[row * k + i], b[i * n + column]))
            .collect();
        T::check(c[at], &terms)
            .unwrap_or_else(|problem| panic!("{m}x{k}x{n}, entry {row}, {column}: {problem}"));
    }
}

fn multiply<T: Factor + bytemuck::Pod>(
    device: &Device,
    rng: &mut Rng,
    [m, k, n]: [usize; 3],
) -> Result<u64> {
    let (a, b) = (random::<T>(rng, m * k), random::<T>(rng, k * n));
    let c = vec![T::from_value(Value::Integer(77)); m * n];
    let mut product = HostMatrix::new(c, [m, n])?;
    let before = device.memory();
    let streamed = matmul_streamed(
        device,
        &mut HostMatrix::new(&a[..], [m, k])?,
        &mut HostMatrix::new(&b[..], [k, n])?,
        &mut product,
    )?;
    check([m, k, n], &a, &b, &product.into_inner());
    let after = device.memory();
    assert_eq!(after.allocated, before.allocated);
    assert_eq!(after.live_blocks, before.live_blocks);
    assert!(after.peak_reserved <= BUDGET);
    assert_eq!(streamed.downloaded, (m * n * size_of::<T>()) as u64);
    let operands = ((m + n) * k * size_of::<T>()) as u64;
    assert!(m * k * n == 0 || streamed.uploaded >= operands);
    Ok(streamed.uploaded / operands.max(1))
}

/// Operands and result each larger than the budget.
fn tiles<T: Factor + bytemuck::Pod>(context: &Context) -> Result<()> {
    let device = small(context)?;
    let sizes = match context.is_slow() {
        true => [[700, 300, 600], [257, 801, 331]],
        false => [[900, 700, 1000], [1023, 513, 777]],
    };
    cases(1, |rng| {
        for sizes in sizes {
            // Wider elements have smaller tiles.
            let most = 2 * size_of::<T>().max(4) as u64;
            assert!(multiply::<T>(&device, rng, sizes)? <= most, "{sizes:?}");
        }
        Ok(())
    })
}

/// k is cut, too.
fn long_k(context: &Context) -> Result<()> {
    let device = small(context)?;
    cases(1, |rng| {
        multiply::<f32>(&device, rng, [30, 40_000, 20])?;
        multiply::<i32>(&device, rng, [1, 300_001, 3]).map(drop)
    })
}

fn edges(context: &Context) -> Result<()> {
    let device = small(context)?;
    cases(1, |rng| {
        for sizes in [
            [1, 1, 1],
            [0, 5, 3],
            [5, 3, 0],
            [5, 0, 3],
            [1, 7, 1],
            [2, 1, 300],
        ] {
            multiply::<f32>(&device, rng, sizes)?;
        }
        // With a part of the budget in use.
        let kept = Tensor::zeros(&device, [500 << 8], DType::F32)?;
        multiply::<f32>(&device, rng, [300, 200, 400])?;
        drop(kept);
        Ok(())
    })
}

/// Of budgets of a few chunks each is enough, or nothing is written.
fn tiny_budgets(context: &Context) -> Result<()> {
    let [m, k, n] = [9, 70, 11];
    let (a, b) = (vec![1i32; m * k], vec![2i32; k * n]);
    // Each is a device that compiles anew: on slow adapters one of each number of whole chunks, with all rests in turn.
    let step = match context.is_slow() && !full() {
        true => 192,
        false => 64,
    };
    for limit in (1024..4096).step_by(step) {
        let device = context.builder().memory_limit(limit).build()?;
        let mut c = vec![-1i32; m * n];
        let result = matmul_streamed(
            &device,
            &mut HostMatrix::new(&a[..], [m, k])?,
            &mut HostMatrix::new(&b[..], [k, n])?,
            &mut HostMatrix::new(&mut c[..], [m, n])?,
        );
        let want = match result {
            Ok(_) => 2 * k as i32,
            Err(Error::OutOfMemory(_)) => -1,
            Err(error) => return Err(error),
        };
        assert!(
            c.iter().all(|&c| c == want),
            "a budget of {limit}: {want}, not {c:?}"
        );
    }
    Ok(())
}

/// A device at its limit, as one that spills is most of the time: tensors go to the host for tiles that are not small. Where
/// they may not, it is an error at once.
fn full_devices(context: &Context) -> Result<()> {
    const LARGE: usize = 64 << 10;
    let [m, k, n] = [300, 200, 400];
    let mut rng = Rng::new(crate::rng::seed());
    let (a, b) = (
        random::<f32>(&mut rng, m * k),
        random::<f32>(&mut rng, k * n),
    );
    let product = |device: &Device, c: &mut [f32]| -> Result<Streamed> {
        matmul_streamed(
            device,
            &mut HostMatrix::new(&a[..], [m, k])?,
            &mut HostMatrix::new(&b[..], [k, n])?,
            &mut HostMatrix::new(&mut c[..], [m, n])?,
        )
    };
    let full = |most: Option<u64>| -> Result<(Device, Vec<Tensor>)> {
        let device = one_region(context, BUDGET, WhenFull::SpillToHost { most })?;
        let tensors = (0..BUDGET as u32 / LARGE as u32)
            .map(|at| Tensor::full(&device, [LARGE / 4], at, DType::U32))
            .collect::<Result<Vec<_>>>()?;
        assert_eq!(device.memory().allocated, BUDGET);
        Ok((device, tensors))
    };
    for most in [None, Some(BUDGET / 2)] {
        let (device, tensors) = full(most)?;
        let mut c = vec![0.0; m * n];
        let streamed = product(&device, &mut c)?;
        check([m, k, n], &a, &b, &c);
        let tile = streamed.tile.iter().product::<usize>();
        assert!(tile >= 64 * 64 * 64, "{streamed:?}");
        let memory = device.memory();
        assert_eq!(memory.allocated + memory.spilled, BUDGET);
        for (at, tensor) in (0u32..).zip(&tensors) {
            same(tensor, &[at; LARGE / 4])?;
        }
    }
    let (device, tensors) = full(None)?;
    let pins = tensors
        .iter()
        .map(Tensor::pin)
        .collect::<Result<Vec<_>>>()?;
    let mut c = vec![7.0; m * n];
    let refused = product(&device, &mut c).expect_err("no room");
    assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
    assert!(c.iter().all(|&c| c == 7.0));
    drop(pins);
    Ok(())
}

/// Results without entries take no steps, however long the other sides are.
fn nothing(context: &Context) -> Result<()> {
    let source = |shape: [usize; 2]| {
        let read = |_: Range<usize>, _: Range<usize>, _: &mut [f32]| -> Result<()> {
            panic!("nothing is read")
        };
        (shape, read)
    };
    for [m, k, n] in [[1 << 60, 0, 0], [0, 5, 1 << 60], [1 << 40, 7, 0]] {
        let streamed = matmul_streamed(
            context.device(),
            &mut source([m, k]),
            &mut source([k, n]),
            &mut Everywhere([m, n]),
        )?;
        assert_eq!([streamed.uploaded, streamed.downloaded], [0, 0]);
    }
    Ok(())
}

/// It multiplies on the device that it is called with, in another's scope too.
fn scopes(context: &Context) -> Result<()> {
    let device = context.device();
    let other = Device::builder().select("cpu").build()?;
    let halves = [f16::ONE; 20];
    let mut out = [f16::ZERO; 16];
    other.scope(|| {
        matmul_streamed(
            device,
            &mut HostMatrix::new(&halves[..], [4, 5])?,
            &mut HostMatrix::new(&halves[..], [5, 4])?,
            &mut HostMatrix::new(&mut out[..], [4, 4])?,
        )
    })?;
    assert_eq!(out, [f16::from_f32(5.0); 16]);
    assert_eq!(other.memory().peak_reserved, 0);
    Ok(())
}

fn refusals(context: &Context) -> Result<()> {
    let device = context.device();
    let values = [1.0f32; 12];
    let matrix = |shape| HostMatrix::new(&values[..], shape);
    assert!(matches!(matrix([5, 2]), Err(Error::InvalidArgument(_))));
    assert!(matches!(
        matrix([usize::MAX, 2]),
        Err(Error::InvalidArgument(_))
    ));
    let mut out = [0.0f32; 12];
    let mut target = HostMatrix::new(&mut out[..], [3, 4])?;
    let refused = matmul_streamed(
        device,
        &mut matrix([3, 4])?,
        &mut matrix([3, 4])?,
        &mut target,
    );
    assert!(
        matches!(refused, Err(Error::ShapeMismatch(_))),
        "{refused:?}"
    );
    let refused = matmul_streamed(
        device,
        &mut matrix([4, 3])?,
        &mut matrix([3, 4])?,
        &mut target,
    );
    assert!(
        matches!(refused, Err(Error::ShapeMismatch(_))),
        "{refused:?}"
    );
    // What is called by a program, not by the product.
    let mut elements = [0.0f32; 8];
    parts_refused(&mut HostMatrix::new(&mut elements[..], [2, 4])?);
    assert_eq!(elements, [0.0; 8]);
    parts_unread(&mut HostMatrix::new(&elements[..], [2, 4])?);
    // Sizes that no memory has.
    let absurd = || {
        let read = |_: Range<usize>, _: Range<usize>, _: &mut [f32]| -> Result<()> {
            panic!("nothing is read")
        };
        ([1usize << 40, 1 << 40], read)
    };
    let mut target = Everywhere([1 << 40, 1 << 40]);
    let refused = matmul_streamed(device, &mut absurd(), &mut absurd(), &mut target);
    assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    Ok(())
}

/// Parts that a matrix of 2 rows of 4 has not, and slices of other lengths.
const NO_PARTS: [(Range<usize>, Range<usize>, usize); 7] = [
    (5..6, 0..4, 4),
    (0..1, 3..5, 2),
    (1..3, 0..1, 2),
    (0..1, 0..4, 3),
    (0..1, 0..4, 5),
    (0..0, 0..4, 4),
    (usize::MAX - 1..usize::MAX, 0..4, 4),
];

fn parts_refused(target: &mut dyn orlop::MatrixTarget<f32>) {
    for (rows, columns, elements) in NO_PARTS {
        let refused = target.write(rows.clone(), columns.clone(), &vec![1.0; elements]);
        let is_refused = matches!(refused, Err(Error::InvalidArgument(_)));
        assert!(is_refused, "{rows:?} {columns:?} {elements}: {refused:?}");
    }
}

fn parts_unread(source: &mut dyn orlop::MatrixSource<f32>) {
    for (rows, columns, elements) in NO_PARTS {
        let refused = source.read(rows.clone(), columns.clone(), &mut vec![1.0; elements]);
        let is_refused = matches!(refused, Err(Error::InvalidArgument(_)));
        assert!(is_refused, "{rows:?} {columns:?} {elements}: {refused:?}");
    }
    for rows in [1..3, 0..usize::MAX, usize::MAX - 1..usize::MAX] {
        assert_eq!(source.rows(rows), None);
    }
}

/// Takes nothing.
struct Everywhere([usize; 2]);

impl<T: Element> orlop::MatrixTarget<T> for Everywhere {
    fn shape(&self) -> [usize; 2] {
        self.0
    }

    fn write(&mut self, _: Range<usize>, _: Range<usize>, _: &[T]) -> Result<()> {
        panic!("nothing is written")
    }
}

/// An error of a source ends the product, and leaves the device as it was.
fn failing_sources(context: &Context) -> Result<()> {
    let device = small(context)?;
    let before = device.memory();
    let mut reads = 0;
    let mut source = (
        [400usize, 400],
        |_: Range<usize>, _: Range<usize>, into: &mut [f32]| {
            reads += 1;
            into.fill(1.0);
            match reads {
                4 => Err(Error::custom(std::io::Error::other("the disk is gone"))),
                _ => Ok(()),
            }
        },
    );
    let ones = vec![1.0f32; 400 * 400];
    let mut out = vec![0.0f32; 400 * 400];
    let failed = matmul_streamed(
        &device,
        &mut HostMatrix::new(&ones[..], [400, 400])?,
        &mut source,
        &mut HostMatrix::new(&mut out[..], [400, 400])?,
    );
    let failed = failed.map(drop).expect_err("of the source").to_string();
    assert_eq!(failed, "the disk is gone");
    device.synchronize()?;
    assert_eq!(device.memory().allocated, before.allocated);
    Ok(())
}

#[cfg(feature = "npy")]
fn files(context: &Context) -> Result<()> {
    use orlop::interop::{NpyMatrix, NpyMatrixMut};
    use orlop::{MatrixSource, MatrixTarget};
    let device = small(context)?;
    let name = format!(
        "orlop-streamed-{}-{}",
        std::process::id(),
        context.adapter.name
    );
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let [m, k, n] = [500, 401, 600];
    let mut rng = Rng::new(crate::rng::seed());
    let (a, b) = (
        random::<f32>(&mut rng, m * k),
        random::<f32>(&mut rng, k * n),
    );
    // One in C order, one in Fortran order.
    let cpu = Device::cpu();
    let [a_path, b_path, c_path] = ["a", "b", "c"].map(|name| folder.join(name));
    Tensor::from_slice(&cpu, &a, [m, k])?.save_npy(&a_path)?;
    let turned: Vec<f32> = (0..k * n).map(|at| b[at % k * n + at / k]).collect();
    let fortran = Tensor::from_slice(&cpu, &turned, [n, k])?.transpose(0, 1)?;
    fortran.save_npy(&b_path)?;
    matmul_streamed::<f32>(
        &device,
        &mut NpyMatrix::open(&a_path)?,
        &mut NpyMatrix::open(&b_path)?,
        &mut NpyMatrixMut::create(&c_path, [m, n], DType::F32)?,
    )?;
    // Chosen while the program runs.
    let (file, mut sums) = (NpyMatrix::open(&a_path)?, vec![0.0f32; m * n]);
    assert_eq!((file.shape(), file.dtype()), ([m, k], DType::F32));
    let mut sources: [Box<dyn MatrixSource<f32>>; 2] =
        [Box::new(file), Box::new(HostMatrix::new(&b[..], [k, n])?)];
    let [left, right] = &mut sources;
    let result: &mut dyn MatrixTarget<f32> = &mut HostMatrix::new(&mut sums[..], [m, n])?;
    matmul_streamed(&device, &mut **left, &mut **right, result)?;
    check([m, k, n], &a, &b, &sums);
    let c = Tensor::load_npy(&cpu, &c_path)?;
    assert_eq!(c.shape().dims(), [m, n]);
    check([m, k, n], &a, &b, &c.to_vec::<f32>()?);
    // Parts of rows, in both orders and both orders of bytes.
    let parts = |path: &std::path::Path, [height, width]: [usize; 2], all: &[f32]| -> Result<()> {
        let mut file = NpyMatrix::open(path)?;
        for (rows, columns) in [
            (0..height, 0..width),
            (3..7, 0..width),
            (5..40, 2..3),
            (height - 1..height, width - 30..width),
            (2..2, 4..9),
            (2..9, 4..4),
        ] {
            let mut got = vec![0.0f32; rows.len() * columns.len()];
            file.read(rows.clone(), columns.clone(), &mut got)?;
            let want = rows.flat_map(|row| &all[row * width..][columns.clone()]);
            assert!(got.iter().eq(want));
        }
        Ok(())
    };
    parts(&a_path, [m, k], &a)?;
    parts(&b_path, [k, n], &b)?;
    let turned_path = folder.join("turned");
    for (path, shape, all) in [(&a_path, [m, k], &a), (&b_path, [k, n], &b)] {
        let mut bytes = std::fs::read(path).expect("a matrix");
        let data = bytes.len() - 4 * all.len();
        let order = bytes[..data].windows(3).position(|word| word == b"<f4");
        bytes[order.expect("its dtype")] = b'>';
        bytes[data..].chunks_mut(4).for_each(<[u8]>::reverse);
        std::fs::write(&turned_path, bytes).expect("a matrix, turned");
        parts(&turned_path, shape, all)?;
    }
    // Another dtype than the file's.
    let refused = matmul_streamed::<i32>(
        &device,
        &mut NpyMatrix::open(&a_path)?,
        &mut NpyMatrix::open(&b_path)?,
        &mut NpyMatrixMut::create(&c_path, [m, n], DType::I32)?,
    );
    assert!(
        matches!(refused, Err(Error::DTypeMismatch(_))),
        "{refused:?}"
    );
    parts_refused(&mut NpyMatrixMut::create(&c_path, [2, 4], DType::F32)?);
    let there = std::fs::metadata(&c_path).expect("the matrix").len();
    let zeros = Tensor::load_npy(&cpu, &c_path)?;
    assert_eq!((there % 64, zeros.to_vec::<f32>()?), (32, vec![0.0; 8]));
    parts_unread(&mut NpyMatrix::open(&c_path)?);
    let mut target = NpyMatrixMut::create(&c_path, [m, n], DType::F32)?;
    target.write(0..m, 0..n, &sums)?;
    target.sync()?;
    // What cannot be written leaves the file that is there.
    let there = std::fs::read(&c_path).expect("the product");
    for (shape, dtype) in [
        ([m, n], DType::BF16),
        ([1 << 31, 1 << 31], DType::F32),
        ([1 << 30, 1 << 31], DType::F32),
    ] {
        let refused = NpyMatrixMut::create(&c_path, shape, dtype);
        let Err(Error::File(error)) = refused else {
            panic!("{shape:?} of {dtype}: {refused:?}")
        };
        let error = error.to_string();
        assert!(!error.contains("integral type"), "{error}");
        assert_eq!(std::fs::read(&c_path).ok().as_ref(), Some(&there));
    }
    let fresh = folder.join("fresh");
    assert!(NpyMatrixMut::create(&fresh, [1 << 31, 1 << 31], DType::F32).is_err());
    assert!(!fresh.exists());
    // The result takes an operand's place, which is read to its end all the same.
    std::fs::copy(&a_path, &fresh).expect("an operand");
    matmul_streamed::<f32>(
        &device,
        &mut NpyMatrix::open(&fresh)?,
        &mut NpyMatrix::open(&b_path)?,
        &mut NpyMatrixMut::create(&fresh, [m, n], DType::F32)?,
    )?;
    let c = Tensor::load_npy(&cpu, &fresh)?;
    check([m, k, n], &a, &b, &c.to_vec::<f32>()?);
    std::fs::remove_file(&fresh).expect("the product");
    #[cfg(unix)]
    {
        let link = folder.join("link");
        std::os::unix::fs::symlink("fresh", &link).expect("a link to nowhere");
        assert!(NpyMatrixMut::create(&link, [1 << 30, 1 << 31], DType::F32).is_err());
        assert!(link.is_symlink() && !fresh.exists());
        drop(NpyMatrixMut::create(&link, [2, 3], DType::F32)?);
        assert!(link.is_symlink());
        let zeros = Tensor::load_npy(&cpu, &fresh)?;
        assert_eq!(zeros.to_vec::<f32>()?, [0.0; 6]);
        std::fs::remove_file(&link).expect("the link");
        let refused = NpyMatrixMut::create("/dev/null", [2, 3], DType::F32);
        assert!(matches!(refused, Err(Error::File(_))), "{refused:?}");
    }
    // Nothing is left beside them.
    let names = std::fs::read_dir(&folder).expect("the folder");
    let names = names.map(|entry| entry.expect("a file").file_name());
    let names: Vec<_> = names
        .map(|name| name.into_string().expect("text"))
        .collect();
    assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
    // A header that no memory fits, and a file that is cut after it was opened.
    let header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 2)}";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header);
    std::fs::write(&fresh, bytes).expect("a header");
    let refused = NpyMatrix::open(&fresh).unwrap_err().to_string();
    assert!(
        refused.contains("fresh") && refused.contains("NpyMatrix::open"),
        "{refused}"
    );
    let mut cut = NpyMatrix::open(&a_path)?;
    let file = std::fs::OpenOptions::new().write(true).open(&a_path);
    file.and_then(|file| file.set_len(3000)).expect("cut");
    let mut out = vec![0.0f32; m * n];
    let refused = matmul_streamed::<f32>(
        &device,
        &mut cut,
        &mut NpyMatrix::open(&b_path)?,
        &mut HostMatrix::new(&mut out[..], [m, n])?,
    )
    .unwrap_err()
    .to_string();
    assert!(refused.contains("shorter"), "{refused}");
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    Ok(())
}
