//! Arrays of ndarray, NumPy's files and files of named tensors: to and from every device. The files
//! in `tests/files` were written by NumPy and by the Python package `safetensors`; `npyz` is a
//! witness for what is written here.

use std::fs::File;
use std::io::{BufReader, Cursor, ErrorKind, Seek};
use std::path::PathBuf;

use ndarray::{Array, ArrayD, Axis, Ix2, ShapeBuilder, s};
use orlop::interop::{SafeTensors, save_safetensors, write_safetensors};
use orlop::memory::WhenFull;
use orlop::{DType, Device, Element, Error, Result, Tensor, f16};
use proptest::prelude::*;

use crate::adapters::{Context, project};
use crate::full::one_region;
use crate::operand::same;
use crate::rng::Rng;
use crate::{OnceTest, Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("formats::arrays", Scope::Device, arrays),
        Test::new("formats::arrays_back", Scope::Device, arrays_back),
        Test::new("formats::npy_of_numpy", Scope::Device, npy_of_numpy),
        Test::new("formats::npy_round_trips", Scope::Device, npy_round_trips),
        Test::new("formats::npy_large", Scope::Device, npy_large),
        Test::new("formats::busy_writer", Scope::Device, busy_writer),
        Test::new("formats::bytes_of_bools", Scope::Device, bytes_of_bools),
        Test::new("formats::spilled_views", Scope::Gpu, spilled_views),
        #[cfg(feature = "fault-injection")]
        Test::new("formats::failed_saves", Scope::Device, failed_saves),
        Test::new(
            "formats::safetensors_of_python",
            Scope::Device,
            safetensors_of_python,
        ),
        Test::new(
            "formats::safetensors_round_trips",
            Scope::Device,
            safetensors_round_trips,
        ),
    ]
}

/// A writer that works on the device, and on the very tensor, while it is written.
fn busy_writer(context: &Context) -> Result<()> {
    struct Busy(Device, Tensor, Vec<u8>);
    impl std::io::Write for Busy {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let one = Tensor::ones(&self.0, [8], DType::F32).and_then(|one| one.to_vec::<f32>());
            assert_eq!(one.unwrap(), [1.0; 8]);
            // At the header nothing is read yet.
            if !self.2.is_empty() {
                self.1.fill(4.0).unwrap();
            }
            self.2.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let device = context.open();
    // More than the window of a download.
    let tensor = Tensor::full(&device, [3 << 20], 3.0, DType::F32)?;
    let mut busy = Busy(device, tensor.clone(), Vec::new());
    tensor.to_npy(&mut busy)?;
    // What it writes comes after what was read before it.
    let data: Vec<f32> = bytemuck::pod_collect_to_vec(&busy.2[busy.2.len() - (12 << 20)..]);
    let first = data.partition_point(|&x| x == 3.0);
    assert_eq!(first, 1 << 20, "a piece of 4 MiB");
    assert!(data[first..].iter().all(|&x| x == 4.0));
    Ok(())
}

/// Any byte but 0 is true, on every device.
fn bytes_of_bools(context: &Context) -> Result<()> {
    let bytes = [0, 1, 2, 255, 128, 1, 0, 4];
    let is_true = bytes.map(|byte: u8| byte != 0);
    let mut npy = npy("'|b1'", "False", "(8,)", 0);
    npy.extend(bytes);
    let header = br#"{"a":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}}"#;
    let mut named = (header.len() as u64).to_le_bytes().to_vec();
    named.extend(header);
    named.extend(bytes);
    let device = context.device();
    for tensor in [
        Tensor::from_npy(device, Cursor::new(npy))?,
        SafeTensors::new(Cursor::new(named))?.load(device, "a")?,
    ] {
        assert_eq!(tensor.to_vec::<bool>()?, is_true);
        let ones = tensor.cast(DType::F32)?.to_vec::<f32>()?;
        assert_eq!(ones, is_true.map(|is_true| f32::from(u8::from(is_true))));
        let mut back = Vec::new();
        tensor.to_npy(&mut back)?;
        assert_eq!(back[back.len() - 8..], is_true.map(u8::from));
    }
    Ok(())
}

/// Views of what is on the host and cannot come back, since all else is pinned or the device is lost, are saved as they are
/// read: there.
fn spilled_views(context: &Context) -> Result<()> {
    const BYTES: u64 = 1 << 20;
    let device = one_region(context, BYTES, WhenFull::SpillToHost { most: None })?;
    let host: Vec<u32> = (0..BYTES as u32 / 8).collect();
    let spilled = Tensor::from_slice(&device, &host, [256, 512])?;
    let beside = Tensor::ones(&device, [192 << 10], DType::U32)?;
    let pin = beside.pin()?;
    assert_eq!(device.memory().spilled, BYTES / 2);
    // With wide gaps and with little between the elements.
    let views = [spilled.slice((.., 2))?, spilled.slice((.., ..300))?];
    let save = || -> Result<()> {
        for view in &views {
            let want = view.to_vec::<u32>()?;
            let mut file = Vec::new();
            view.to_npy(&mut file)?;
            let back = Tensor::from_npy(&Device::cpu(), Cursor::new(file))?;
            assert_eq!(back.shape(), view.shape());
            same(&back, &want)?;
            let mut file = Vec::new();
            write_safetensors(&mut file, &[("a", view)], &[])?;
            assert!(file.ends_with(bytemuck::cast_slice(&want)), "{view:?}");
        }
        Ok(())
    };
    save()?;
    if let Some((wgpu, _)) = device.wgpu_device() {
        wgpu.destroy();
        save()?;
    }
    drop(pin);
    Ok(())
}

/// A file that is there stays as it is until all of the new one is written, and nothing is left beside it.
#[cfg(feature = "fault-injection")]
fn failed_saves(context: &Context) -> Result<()> {
    type Save = fn(&Tensor, &std::path::Path) -> Result<()>;
    let saves: [Save; 2] = [
        |tensor, path| tensor.save_npy(path),
        |tensor, path| save_safetensors(path, &[("a", tensor), ("b", tensor)], &[]),
    ];
    let faults = orlop::Faults::new();
    let device = context.builder().faults(&faults).build()?;
    let (was, new) = (
        Tensor::zeros(&device, [40, 3], DType::F32)?,
        // Some pieces of a file.
        Tensor::ones(&device, [3 << 20], DType::F32)?,
    );
    let name = format!("orlop-{}-{}", std::process::id(), context.adapter.name);
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("a");
    let mut failed = 0;
    for save in saves {
        let _ = std::fs::remove_file(&path);
        save(&was, &path)?;
        let before = std::fs::read(&path).expect("a file");
        for nth in 1.. {
            // Tells of the last failure once more.
            let _ = device.synchronize();
            faults.fail_step(nth);
            let result = save(&new, &path);
            faults.disarm();
            let after = std::fs::read(&path).expect("a file");
            let files = std::fs::read_dir(&folder).expect("a folder").count();
            assert_eq!(files, 1, "{result:?}");
            if result.is_ok() {
                assert!(after.len() > 12 << 20 && after[after.len() - 4..] == 1f32.to_le_bytes());
                break;
            }
            assert!(after == before, "{result:?}");
            failed += 1;
        }
    }
    assert_eq!(failed > 0, !device.is_cpu());
    #[cfg(unix)]
    {
        let link = folder.join("link");
        std::os::unix::fs::symlink("a", &link).expect("a link");
        was.save_npy(&link)?;
        assert!(link.is_symlink() && std::fs::read(&path).is_ok_and(|file| file.len() < 1 << 20));
        // To nowhere: a call that is refused leaves it so.
        std::fs::remove_file(&path).expect("a file");
        let halves = Tensor::zeros(&device, [3], DType::BF16)?;
        assert!(halves.save_npy(&link).is_err() && link.is_symlink() && !path.exists());
        was.save_npy(&link)?;
        assert!(link.is_symlink() && path.is_file());
        // In a circle.
        std::fs::remove_file(&path).expect("a file");
        std::os::unix::fs::symlink("link", &path).expect("a link");
        assert!(was.save_npy(&link).is_err() && link.is_symlink() && path.is_symlink());
        was.save_npy("/dev/null")?;
    }
    std::fs::remove_dir_all(&folder).expect("a folder");
    Ok(())
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![
        ("formats::npy_refused", npy_refused),
        ("formats::npy_mutated", npy_mutated),
        ("formats::safetensors_refused", safetensors_refused),
        ("formats::safetensors_mutated", safetensors_mutated),
        ("formats::files_stay", files_stay),
    ]
}

fn fixture(name: &str) -> PathBuf {
    project().join("tests/files").join(name)
}

/// A file of one test, removed at its end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(context: &str, name: &str) -> Self {
        let name = format!("orlop-{}-{context}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Row-major elements of an array, as ndarray sees them.
fn elements<T: Element>(array: &ArrayD<T>) -> Vec<T> {
    array.iter().copied().collect()
}

fn arrays(context: &Context) -> Result<()> {
    let device = context.device();
    let base = Array::from_shape_fn((4, 5, 6), |(i, j, k)| (100 * i + 10 * j + k) as f32);
    let mut fortran = Array::zeros((4, 5, 6).f());
    fortran.assign(&base);
    let views = [
        ("standard", base.view()),
        ("fortran", fortran.view()),
        ("permuted", base.view().permuted_axes([1, 2, 0])),
        ("reversed", base.slice(s![.., ..;-1, ..])),
        ("stepped", base.slice(s![..;2, 1..4, ..;3])),
        ("one", base.slice(s![1..2, .., 3..4])),
        ("none", base.slice(s![2..2, .., ..])),
        ("tail", base.slice(s![2.., .., ..])),
        ("rows", base.slice(s![.., .., 1..])),
        ("backwards", base.slice(s![.., .., ..;-1])),
    ];
    for (name, view) in views {
        let tensor = Tensor::from_ndarray(device, &view)?;
        assert_eq!(tensor.shape().dims(), view.shape(), "{name}");
        let expected: Vec<f32> = view.iter().copied().collect();
        assert_eq!(tensor.to_vec::<f32>()?, expected, "{name}");
        // Straight from where they lie: a view with the array's order of axes.
        let straight = !matches!(name, "reversed" | "stepped" | "one" | "rows" | "backwards");
        let strides: Vec<isize> = view.strides().to_vec();
        if straight && !expected.is_empty() {
            assert_eq!(tensor.layout().strides(), strides, "{name}");
        }
        let back = tensor.to_ndarray::<f32>()?;
        assert_eq!(back, view.into_dyn(), "{name}");
    }
    let repeated = base.slice(s![..1, .., ..]);
    let repeated = repeated.broadcast((3, 5, 6)).expect("it repeats");
    let tensor = Tensor::from_ndarray(device, &repeated)?;
    assert_eq!(tensor.to_ndarray::<f32>()?, repeated.into_dyn());
    // Lanes that are taken whole, with their gaps and without.
    let wide = Array::from_shape_fn((7, 120), |(i, j)| (1000 * i + j) as f32);
    for view in [
        wide.slice(s![..;2, 5..110]),
        wide.slice(s![..;-1, ..;3]),
        wide.slice(s![1..6, 3..]),
    ] {
        let tensor = Tensor::from_ndarray(device, &view)?;
        assert_eq!(tensor.to_ndarray::<f32>()?, view.into_dyn());
    }
    let scalar = ndarray::arr0(f16::from_f32(2.5));
    let tensor = Tensor::from_ndarray(device, &scalar)?;
    assert_eq!((tensor.rank(), tensor.item::<f16>()?.to_f32()), (0, 2.5));
    let integers = Array::from_shape_fn((3, 3), |(i, j)| i as i32 - 2 * j as i32);
    let tensor = Tensor::from_ndarray(device, &integers.t())?;
    assert_eq!(
        tensor.to_ndarray::<i32>()?,
        integers.t().to_owned().into_dyn()
    );
    Ok(())
}

/// Any view of a tensor becomes an array with the same elements.
fn arrays_back(context: &Context) -> Result<()> {
    let device = context.device();
    let mut rng = Rng::new(crate::rng::seed() ^ 0xA77A);
    for _ in 0..context.times(60) {
        let shape: Vec<usize> = (0..rng.below(5)).map(|_| 1 + rng.below(5)).collect();
        let operand = crate::operand::Operand::<f32>::random_view(device, &mut rng, &shape)?;
        let array = operand.tensor.to_ndarray::<f32>()?;
        assert_eq!(array.shape(), shape);
        assert_eq!(elements(&array), operand.values());
        let again = Tensor::from_ndarray(device, &array)?;
        assert_eq!(again.to_vec::<f32>()?, operand.values());
    }
    let a = Tensor::zeros(device, [2, 3], DType::F32)?.transpose(0, 1)?;
    assert_eq!(a.to_ndarray::<f32>()?.strides(), [1, 3]);
    let error = a.to_ndarray::<i32>().unwrap_err();
    assert!(matches!(error, Error::DTypeMismatch(_)), "{error}");
    Ok(())
}

fn npy_of_numpy(context: &Context) -> Result<()> {
    let device = context.device();
    let load = |name: &str| Tensor::load_npy(device, fixture(name));
    let expected = [0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    for name in ["c_f4.npy", "fortran_f4.npy", "big_f4.npy", "v2.npy"] {
        let tensor = load(name)?;
        assert_eq!(tensor.shape().dims(), [2, 3], "{name}");
        assert_eq!(tensor.to_vec::<f32>()?, expected, "{name}");
        assert_eq!(tensor.is_contiguous(), name != "fortran_f4.npy");
        assert_eq!(tensor.device(), device);
    }
    assert_eq!(
        load("f2.npy")?.to_vec::<f16>()?,
        expected.map(f16::from_f32)
    );
    // On the CPU where the device holds no f64.
    assert_eq!(
        load("big_f8.npy")?.to_vec::<f64>()?,
        expected.map(f64::from)
    );
    assert_eq!(load("i4.npy")?.to_vec::<i32>()?, [-3, -2, -1, 0, 1, 2]);
    let u4 = load("u4.npy")?;
    assert_eq!(u4.shape().dims(), [1, 2, 3, 1]);
    assert_eq!(u4.to_vec::<u32>()?, [0, 1, 2, 3, 4, 5]);
    assert_eq!(load("scalar.npy")?.item::<f64>()?, 2.5);
    assert_eq!(load("none.npy")?.shape().dims(), [0, 4]);
    // Several arrays in one stream, as numpy.load reads them.
    let mut two = std::fs::read(fixture("c_f4.npy")).expect("a fixture");
    two.extend(std::fs::read(fixture("i4.npy")).expect("a fixture"));
    let mut stream = Cursor::new(two);
    assert_eq!(
        Tensor::from_npy(device, &mut stream)?.to_vec::<f32>()?,
        expected
    );
    let second = Tensor::from_npy(device, &mut stream)?;
    assert_eq!(second.to_vec::<i32>()?, [-3, -2, -1, 0, 1, 2]);
    assert_eq!(
        stream.stream_position().ok(),
        Some(stream.get_ref().len() as u64)
    );
    Ok(())
}

fn npy_round_trip<T>(device: &Device, values: &[T]) -> Result<()>
where
    T: Element + npyz::Deserialize + PartialEq + std::fmt::Debug,
{
    let tensor = Tensor::from_slice(device, &values[..60], [3, 4, 5])?;
    let reversed = tensor.permute(&[2, 1, 0])?;
    let cases = [
        (tensor.clone(), npyz::Order::C),
        (reversed.clone(), npyz::Order::Fortran),
        (tensor.permute(&[1, 0, 2])?, npyz::Order::C),
        (reversed.slice((1..4, .., 2..))?, npyz::Order::C),
        (tensor.slice((1..2, 1..2, 1..2))?, npyz::Order::C),
        (tensor.slice(1..1)?, npyz::Order::C),
        (
            tensor.slice((0..1, 0..1, 0..1))?.reshape(())?,
            npyz::Order::C,
        ),
    ];
    for (tensor, order) in cases {
        let mut file = Vec::new();
        tensor.to_npy(&mut file)?;
        assert_eq!((file.len() - tensor.elements() * size_of::<T>()) % 64, 0);
        let back = Tensor::from_npy(device, Cursor::new(&file))?;
        assert_eq!((back.shape(), back.dtype()), (tensor.shape(), T::DTYPE));
        let values = tensor.to_vec::<T>()?;
        assert!(back.to_vec::<T>()? == values);
        let witness = npyz::NpyFile::new(&file[..]).expect("npyz reads it");
        let shape: Vec<u64> = tensor.shape().iter().map(|&size| size as u64).collect();
        assert_eq!((witness.shape(), witness.order()), (&shape[..], order));
        let stored = match order {
            npyz::Order::C => values,
            npyz::Order::Fortran => tensor.permute(&[2, 1, 0])?.to_vec::<T>()?,
        };
        assert_eq!(witness.into_vec::<T>().expect("npyz reads it"), stored);
    }
    Ok(())
}

fn npy_round_trips(context: &Context) -> Result<()> {
    let device = context.device();
    npy_round_trip(device, &Vec::from_iter((0..60).map(|i| i as f32 - 7.5)))?;
    npy_round_trip(device, &Vec::from_iter((0..60).map(|i| f64::from(i) / 3.0)))?;
    npy_round_trip(device, &Vec::from_iter((0..60).map(|i| i - 30)))?;
    npy_round_trip(device, &Vec::from_iter(0..60u32))?;
    npy_round_trip(
        device,
        &Vec::from_iter((0..60).map(|i| f16::from_f32(i as f32 * 0.25))),
    )
}

/// More than one piece, with a last one that is no whole one.
fn npy_large(context: &Context) -> Result<()> {
    let device = context.open();
    let count = (9 << 20) / 4 + 3;
    let values: Vec<u32> = (0..count as u32)
        .map(|i| i.wrapping_mul(2_654_435_761))
        .collect();
    let tensor = Tensor::from_slice(&device, &values, [count])?;
    let file = Temporary::new(&context.adapter.name, "large.npy");
    tensor.save_npy(&file.0)?;
    drop(tensor);
    let back = Tensor::load_npy(&device, &file.0)?;
    assert!(back.to_vec::<u32>()? == values);
    drop(back);
    assert_eq!(device.memory().allocated, 0);
    Ok(())
}

fn safetensors_of_python(context: &Context) -> Result<()> {
    let device = context.device();
    let mut file = SafeTensors::open(fixture("python.safetensors"))?;
    let mut names = file.names();
    names.sort();
    assert_eq!(
        names,
        [
            "counts", "double", "half", "long", "mask", "none", "scalar", "steps", "weight"
        ]
    );
    let info = file.info("half").expect("it is there");
    assert_eq!(
        (&info.dtype[..], info.shape.dims(), info.bytes),
        ("F16", &[3, 2][..], 12)
    );
    assert!(file.info("other").is_none());
    let expected = [0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    let weight = file.load(device, "weight")?;
    assert_eq!(weight.shape().dims(), [2, 3]);
    assert_eq!(weight.to_vec::<f32>()?, expected);
    assert_eq!(weight.device(), device);
    assert_eq!(
        file.load(device, "half")?.to_vec::<f16>()?,
        expected.map(f16::from_f32)
    );
    assert_eq!(
        file.load(device, "double")?.to_vec::<f64>()?,
        [0.0, 1.0, 2.0]
    );
    assert_eq!(
        file.load(device, "counts")?.to_vec::<u32>()?,
        [0, 1, 2, 3, 4, 5]
    );
    assert_eq!(
        file.load(device, "steps")?.to_vec::<i32>()?,
        [0, -1, -2, -3, -4, -5]
    );
    assert_eq!(file.load(device, "scalar")?.item::<f32>()?, 2.5);
    assert_eq!(file.load(device, "none")?.shape().dims(), [0, 4]);
    for (name, dtype) in [("long", "I64"), ("other", "no tensor")] {
        let error = file.load(device, name).unwrap_err();
        assert!(matches!(error, Error::File(_)), "{error}");
        for part in [name, dtype, "python.safetensors"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    Ok(())
}

fn safetensors_round_trips(context: &Context) -> Result<()> {
    let device = context.open();
    let count = (5 << 20) / 4 + 1;
    let values: Vec<u32> = (0..count as u32).collect();
    let large = Tensor::from_slice(&device, &values, [count])?;
    let view = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    let view = view.transpose(0, 1)?;
    let odd = Tensor::from_slice(&device, &[f16::from_f32(1.5); 3], [3])?;
    let double = Tensor::from_slice(&device, &[0.1f64, 0.2], [1, 2])?;
    let none = Tensor::zeros(&device, [3, 0], DType::I32)?;
    let all = [
        ("odd \u{e9}\"\\", &odd),
        ("large", &large),
        ("view", &view),
        ("double", &double),
        ("none", &none),
    ];
    let endless = Tensor::ones(&device, 1, DType::F32)?.broadcast_to([1usize << 62])?;
    let error = write_safetensors(Vec::new(), &[("endless", &endless)], &[]).unwrap_err();
    assert!(error.to_string().contains("than can be counted"), "{error}");
    let path = Temporary::new(&context.adapter.name, "all.safetensors");
    save_safetensors(&path.0, &all, &[])?;
    let bytes = std::fs::read(&path.0).expect("it was written");
    let witness = safetensors::SafeTensors::deserialize(&bytes).expect("the crate reads it");
    assert_eq!(witness.len(), all.len());
    assert_eq!(
        witness.tensor("view").expect("it is there").data(),
        bytemuck::cast_slice::<f32, u8>(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0])
    );
    // Whatever their names, they begin at multiples of their elements' sizes.
    for (name, size) in [("double", 8), ("large", 4), ("view", 4)] {
        let data = witness.tensor(name).expect("it is there").data();
        let at = data.as_ptr().addr() - bytes.as_ptr().addr();
        assert!(at.is_multiple_of(size), "{name} at {at}");
    }
    let mut file = SafeTensors::open(&path.0)?;
    assert_eq!(file.metadata(), []);
    let text = [("step", "7"), ("format", "pt"), ("\"quoted\"", "\u{e9}\n")];
    for tensors in [&all[..], &[]] {
        let mut bytes = Vec::new();
        write_safetensors(&mut bytes, tensors, &text)?;
        let (_, witness) = safetensors::SafeTensors::read_metadata(&bytes).expect("it is right");
        let witness = witness.metadata().as_ref().expect("there are texts");
        assert_eq!(witness.len(), 3);
        assert!(text.iter().all(|&(name, text)| witness[name] == text));
        let again = SafeTensors::new(Cursor::new(&bytes))?;
        let mut same = Vec::new();
        // Names and tensors of one's own do too.
        let owned = tensors
            .iter()
            .map(|&(name, tensor)| (name.to_owned(), tensor.clone()));
        let owned: Vec<(String, Tensor)> = owned.collect();
        write_safetensors(&mut same, &owned, &again.metadata())?;
        assert!(bytes == same);
    }
    let error = write_safetensors(Vec::new(), &all, &[text[0], text[0]]).unwrap_err();
    assert!(error.to_string().contains("named `step`"), "{error}");
    let error = file.load(&device, "vieww").unwrap_err().to_string();
    assert!(
        error.contains("`vieww`; it has 5") && error.contains("`view`"),
        "{error}"
    );
    for (name, tensor) in all {
        let back = file.load(&device, name)?;
        assert_eq!(
            (back.shape(), back.dtype()),
            (tensor.shape(), tensor.dtype()),
            "{name}"
        );
    }
    assert!(file.load(&device, "large")?.to_vec::<u32>()? == values);
    assert_eq!(
        file.load(&device, "view")?.to_vec::<f32>()?,
        view.to_vec::<f32>()?
    );
    assert_eq!(
        file.load(&device, all[0].0)?.to_vec::<f16>()?,
        odd.to_vec::<f16>()?
    );
    assert_eq!(file.load(&device, "double")?.to_vec::<f64>()?, [0.1, 0.2]);
    for names in [["a", "a"], ["a", "__metadata__"]] {
        let pair = [(names[0], &odd), (names[1], &view)];
        let error = write_safetensors(Vec::new(), &pair, &[]).unwrap_err();
        assert!(matches!(error, Error::File(_)), "{error}");
        assert!(error.to_string().contains(names[1]), "{error}");
    }
    Ok(())
}

fn npy(descr: &str, order: &str, shape: &str, data: usize) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(std::iter::repeat_n(0, data));
    file
}

fn npy_refused() -> Result<()> {
    let cpu = Device::builder().select("cpu").build()?;
    let good = npy("'<f4'", "False", "(2, 3)", 24);
    assert!(Tensor::from_npy(&cpu, Cursor::new(&good)).is_ok());
    let bools = npy("'|b1'", "False", "(2, 3)", 6);
    let bools = Tensor::from_npy(&cpu, Cursor::new(&bools))?;
    assert_eq!(bools.dtype(), DType::Bool);
    let mut file = Cursor::new(Vec::new());
    bools.to_npy(&mut file)?;
    file.set_position(0);
    let again = Tensor::from_npy(&cpu, file)?.to_vec::<bool>()?;
    assert_eq!(again, bools.to_vec::<bool>()?);
    drop(bools);
    let long_header = {
        let mut file = b"\x93NUMPY\x02\x00".to_vec();
        file.extend(u32::MAX.to_le_bytes());
        file.extend(b"{'descr'");
        file
    };
    let cases = [
        (Vec::new(), "not a .npy file"),
        (b"PK\x03\x04".to_vec(), "numpy.save"),
        (b"\x93NUMPY\x09\x00\x01\x00".to_vec(), "version 9"),
        (good[..9].to_vec(), "ends inside its header"),
        (good[..40].to_vec(), "ends inside its header"),
        (good[..good.len() - 1].to_vec(), "needs 24"),
        (long_header, "longer than any of plain numbers"),
        (npy("'<i8'", "False", "(2, 3)", 48), "'i8'"),
        (npy("'|u1'", "False", "(2, 3)", 6), "astype"),
        (npy("'<a\nb'", "False", "(2, 3)", 6), "'a\\nb'"),
        (
            npy(&format!("'{}'", "x".repeat(60_000)), "False", "(2,)", 8),
            "xxx...",
        ),
        (npy("[('x', '<f4')]", "False", "(2,)", 8), "records"),
        (npy("'<f4'", "Maybe", "(2, 3)", 24), "malformed"),
        (npy("'<f4'", "False", "(2, -3)", 24), "malformed"),
        (npy("'<f4'", "False", &"[".repeat(60_000), 24), "malformed"),
        (
            npy("'<f4'", "False", &format!("({})", "1, ".repeat(65)), 4),
            "65 dimensions",
        ),
        (
            npy("'<f4'", "False", "(1000000000000,)", 24),
            "needs 4000000000000",
        ),
        (
            npy("'<f4'", "True", "(0, 99999999999999999999)", 0),
            "malformed",
        ),
        (
            npy("'<f8'", "False", "(4294967296, 4294967296)", 8),
            "more elements than memory",
        ),
    ];
    for (file, word) in cases {
        let error = Tensor::from_npy(&cpu, Cursor::new(&file)).unwrap_err();
        assert!(matches!(error, Error::File(_)), "{error}");
        assert!(error.to_string().contains(word), "`{word}`: {error}");
        assert!(error.to_string().len() < 3000, "`{word}`: {error}");
    }
    for name in ["i8.npy", "records.npy", "there is no such file.npy"] {
        let error = Tensor::load_npy(&cpu, fixture(name)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        let Error::File(failure) = error else {
            panic!("{error}");
        };
        let is_there = fixture(name).exists();
        assert_eq!(failure.kind, (!is_there).then_some(ErrorKind::NotFound));
    }
    let trailing = Temporary::new("once", "trailing.npy");
    std::fs::write(&trailing.0, [&good[..], b"x"].concat()).expect("a file");
    let error = Tensor::load_npy(&cpu, &trailing.0).unwrap_err();
    assert!(error.to_string().contains("25 bytes"), "{error}");
    let error = Tensor::zeros(&cpu, [1], DType::F32)?.save_npy("/no/such/folder/x.npy");
    assert!(matches!(error, Err(Error::File(_))), "{error:?}");
    let deep = Tensor::zeros(&cpu, vec![1; 65], DType::F32)?.to_npy(Vec::new());
    assert!(matches!(deep, Err(Error::File(_))), "{deep:?}");
    assert_eq!(cpu.memory().allocated, 0);
    Ok(())
}

/// Cuts and changes bytes of a good file; whatever reads it gives a tensor or an error.
fn mutated(good: Vec<u8>, mut read: impl FnMut(&[u8]) -> Result<()>) {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let strategy = (edits, any::<prop::sample::Index>(), any::<bool>());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let read = std::cell::RefCell::new(&mut read);
    runner
        .run(&strategy, |(edits, cut, cuts)| {
            let mut file = good.clone();
            for (at, byte) in edits {
                let at = at.index(file.len());
                file[at] = byte;
            }
            if cuts {
                file.truncate(cut.index(file.len()));
            }
            match (read.borrow_mut())(&file) {
                Ok(()) | Err(Error::File(_) | Error::TooLarge(_)) => Ok(()),
                Err(other) => Err(TestCaseError::fail(other.to_string())),
            }
        })
        .unwrap();
}

fn npy_mutated() -> Result<()> {
    let cpu = Device::builder().select("cpu").build()?;
    let good = std::fs::read(fixture("fortran_f4.npy")).expect("a fixture");
    mutated(good, |file| {
        let tensor = Tensor::from_npy(&cpu, Cursor::new(file))?;
        assert!(tensor.elements() <= 12);
        Ok(())
    });
    assert!(cpu.memory().peak_reserved <= 4 << 20);
    Ok(())
}

fn safetensors_refused() -> Result<()> {
    let file = |header: &str, data: usize| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(std::iter::repeat_n(0, data));
        file
    };
    let one = |shape: &str, start: usize, end: usize| {
        format!(
            "{{\"a\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}}}"
        )
    };
    let most = format!("[2{}]", ",1".repeat(63));
    for shape in ["[2]", &most] {
        assert!(SafeTensors::new(Cursor::new(file(&one(shape, 0, 8), 8))).is_ok());
    }
    assert!(
        SafeTensors::new(Cursor::new(file("{}", 0)))?
            .names()
            .is_empty()
    );
    let cases = [
        (b"1234567".to_vec(), "less than 8 bytes"),
        (u64::MAX.to_le_bytes().to_vec(), "18446744073709551615"),
        (90_000_000u64.to_le_bytes().to_vec(), "90000000"),
        (file("", 0), "malformed"),
        (file("[1, 2]", 0), "malformed"),
        (file(&"[".repeat(100_000), 0), "malformed"),
        (file(&one("[2]", 0, 8), 7), "7 bytes of data"),
        (file(&one("[2]", 0, 8), 9), "9 bytes of data"),
        (file(&one("[3]", 0, 8), 8), "malformed"),
        (file(&one("[2]", 4, 12), 12), "malformed"),
        (file(&one("[2]", 8, 0), 8), "malformed"),
        (
            file(&one("[4294967296,4294967296,4]", 0, 8), 8),
            "malformed",
        ),
        (file(&one("[-2]", 0, 8), 8), "malformed"),
        (
            file(&one(&format!("[2{}]", ",1".repeat(64)), 0, 8), 8),
            "65 dimensions",
        ),
        (
            file(&one("[2]", 0, 8).replace("F32", &"x".repeat(100_000)), 8),
            "xxx...",
        ),
    ];
    for (file, word) in cases {
        let Err(error) = SafeTensors::new(Cursor::new(file)) else {
            panic!("`{word}` was expected");
        };
        assert!(matches!(error, Error::File(_)), "{error}");
        assert!(error.to_string().contains(word), "`{word}`: {error}");
        assert!(error.to_string().len() < 3000, "`{word}`: {error}");
    }
    let error = SafeTensors::open("/no/such/file.safetensors").err();
    assert!(matches!(error, Some(Error::File(_))), "{error:?}");
    Ok(())
}

fn safetensors_mutated() -> Result<()> {
    let cpu = Device::builder().select("cpu").build()?;
    let good = std::fs::read(fixture("python.safetensors")).expect("a fixture");
    mutated(good, |file| {
        let mut file = SafeTensors::new(Cursor::new(file))?;
        for name in file.names() {
            match file.load(&cpu, &name) {
                Ok(tensor) => assert!(tensor.elements() <= 100),
                Err(Error::File(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    });
    assert!(cpu.memory().peak_reserved <= 4 << 20);
    Ok(())
}

/// A call that is refused leaves the file that is there.
fn files_stay() -> Result<()> {
    let cpu = Device::cpu();
    let path = Temporary::new("once", "stays");
    std::fs::write(&path.0, "what was there").expect("a file");
    let a = Tensor::zeros(&cpu, vec![1; 65], DType::F32)?;
    assert!(a.save_npy(&path.0).is_err());
    let refused = save_safetensors(&path.0, &[("a", &a)], &[]);
    assert!(refused.is_err_and(|error| error.to_string().contains("65 dimensions")));
    let b = Tensor::zeros(&cpu, [1], DType::F32)?;
    assert!(save_safetensors(&path.0, &[("b", &b), ("b", &b)], &[]).is_err());
    assert_eq!(
        std::fs::read(&path.0).ok().as_deref(),
        Some(&b"what was there"[..])
    );
    let file = BufReader::new(File::open(fixture("c_f4.npy")).expect("a fixture"));
    let array = Tensor::from_npy(&cpu, file)?.to_ndarray::<f32>()?;
    let array = array.into_dimensionality::<Ix2>().expect("two dimensions");
    assert_eq!(array.sum_axis(Axis(0)).to_vec(), [3.0, 5.0, 7.0]);
    Ok(())
}
