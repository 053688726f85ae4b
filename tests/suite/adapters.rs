//! Which devices the tests run on, and one shared device for each.

use std::path::PathBuf;
use std::sync::OnceLock;

use orlop::{DType, Device, DeviceBuilder, DeviceInfo, DeviceKind};

use crate::number::Number;
use crate::operand::random_shape;
use crate::rng::Rng;

/// One device under test.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// `cpu`, `lavapipe`, `swiftshader`, `gl`, `gpu`, `gpu1`, ...
    pub name: String,
    pub info: DeviceInfo,
}

/// Every device that is there, by its name in trials. Software adapters without a name in the
/// tests are left out.
pub fn found() -> Vec<Adapter> {
    let mut gpus = 0;
    let mut all: Vec<Adapter> = Vec::new();
    for info in Device::list().unwrap_or_else(|error| panic!("{error}")) {
        let lower = info.name.to_lowercase();
        let name = match info.kind() {
            DeviceKind::Cpu => "cpu".to_owned(),
            DeviceKind::Software if info.backend == "Gl" => "gl".to_owned(),
            DeviceKind::Software if lower.contains("swiftshader") => "swiftshader".to_owned(),
            DeviceKind::Software if lower.contains("llvmpipe") => "lavapipe".to_owned(),
            DeviceKind::Software => info.selector.replace(':', ""),
            _ => {
                gpus += 1;
                match gpus {
                    1 => "gpu".to_owned(),
                    _ => format!("gpu{}", gpus - 1),
                }
            }
        };
        if all.iter().all(|adapter| adapter.name != name) {
            all.push(Adapter { name, info });
        }
    }
    all
}

/// The adapters that `ORLOP_TEST_REQUIRE` names.
pub fn required() -> Vec<String> {
    std::env::var("ORLOP_TEST_REQUIRE")
        .unwrap_or_default()
        .split(',')
        .map(|name| name.trim().to_lowercase())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The project's folder: the one that cargo, or scripts/measure.sh, says, else where this was built.
pub fn project() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into())
        .into()
}

/// Exhaustive sweeps were asked for.
pub fn full() -> bool {
    std::env::var("ORLOP_TEST_FULL").is_ok_and(|value| !value.is_empty() && value != "0")
}

/// The sweep over every f32 as well.
pub fn every() -> bool {
    std::env::var("ORLOP_TEST_FULL").is_ok_and(|value| value == "every")
}

/// How kernels are compiled and fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Plain,
    /// With the runtime checks of naga; on software adapters, but for full runs, as `Uniforms` too, which is
    /// not tried by itself there.
    Checks,
    /// Scalars in uniform buffers although the adapter has immediates.
    Uniforms,
    /// With storage bindings of 4 KiB at most, so that small tensors are worked on in pieces; not on slow
    /// adapters, but for full runs.
    Windows,
    /// With cooperative matrices, where the adapter has some: products alone.
    Cooperative,
}

impl Variant {
    /// The part of a trial's name.
    pub fn prefix(self) -> &'static str {
        match self {
            Variant::Plain => "",
            Variant::Checks => "checks::",
            Variant::Uniforms => "uniforms::",
            Variant::Windows => "windows::",
            Variant::Cooperative => "cooperative::",
        }
    }
}

/// What a test's body gets: an adapter, a shared device on it, and how much to do.
pub struct Context {
    pub adapter: Adapter,
    pub variant: Variant,
    shared: OnceLock<Device>,
}

impl Context {
    pub fn new(adapter: Adapter, variant: Variant) -> Self {
        Self {
            adapter,
            variant,
            shared: OnceLock::new(),
        }
    }

    /// Settings for a device of the test's own on this adapter.
    pub fn builder(&self) -> DeviceBuilder {
        let builder = Device::builder()
            .select(self.adapter.info.selector.clone())
            .kernel_checks(self.variant == Variant::Checks)
            .immediates(match self.variant {
                Variant::Uniforms => false,
                Variant::Checks => !self.shares_kernels(),
                Variant::Plain | Variant::Windows | Variant::Cooperative => true,
            })
            .experimental_cooperative_matrices(self.variant == Variant::Cooperative);
        match self.variant {
            Variant::Windows => builder.max_binding_bytes(4 << 10),
            _ => builder,
        }
    }

    /// A device of the test's own.
    pub fn open(&self) -> Device {
        self.builder()
            .build()
            .unwrap_or_else(|error| panic!("{} does not open: {error}", self.adapter.name))
    }

    /// The device that tests share.
    pub fn device(&self) -> &Device {
        self.shared.get_or_init(|| self.open())
    }

    /// How the kernels of an adapter are tried.
    pub fn variants(adapter: &Adapter) -> Vec<Variant> {
        let plain = Self::new(adapter.clone(), Variant::Plain);
        let mut variants = vec![Variant::Plain];
        if !plain.is_cpu() {
            variants.push(Variant::Checks);
            // Windows are the library's doing, not the adapter's.
            if !plain.is_slow() || full() {
                variants.push(Variant::Windows);
            }
            let has_immediates = adapter.info.capabilities.immediate_bytes > 0;
            if has_immediates && !plain.shares_kernels() {
                variants.push(Variant::Uniforms);
            }
            if adapter.info.capabilities.cooperative_matrices.f16.is_some() {
                variants.push(Variant::Cooperative);
            }
        }
        variants
    }

    pub fn is_cpu(&self) -> bool {
        self.adapter.info.kind() == DeviceKind::Cpu
    }

    pub fn is_software(&self) -> bool {
        self.adapter.info.kind() == DeviceKind::Software
    }

    /// SwiftShader and GL.
    pub fn is_slow(&self) -> bool {
        self.is_software() && self.adapter.name != "lavapipe"
    }

    /// Whether kernels that take each other's place are shared out over tests, dtypes and adapters: on software
    /// adapters, whose compilers take most of the time, but not in a full run.
    pub fn shares_kernels(&self) -> bool {
        self.is_software() && !full()
    }

    /// Whether a dtype is among those that meet something where software adapters share it out.
    pub fn has_turn<T: Number>(&self, dtypes: &[DType]) -> bool {
        !self.shares_kernels() || dtypes.contains(&T::DTYPE)
    }

    /// Where software adapters share kernels out, what f32 alone meets all of, without variants.
    pub fn is_stood_for<T: Number>(&self) -> bool {
        let stands_for_others = T::DTYPE == DType::F32 && self.variant == Variant::Plain;
        self.shares_kernels() && !stands_for_others
    }

    /// Each pair of an op and a way to lie is a kernel. Where ops only take each other's place in it, most ways are
    /// tried with the one that stands for others.
    pub fn op<T: Copy>(&self, rng: &mut Rng, all: &[T], one: T) -> T {
        match !self.shares_kernels() || rng.one_in(4) {
            true => *rng.pick(all),
            false => one,
        }
    }

    /// A random shape; with windows every other one is of several.
    pub fn shape(&self, rng: &mut Rng, max_rank: usize, most: usize) -> Vec<usize> {
        if self.variant == Variant::Windows && rng.one_in(2) {
            return vec![rng.between(3, 9), rng.between(16, 40), rng.between(8, 40)];
        }
        random_shape(rng, max_rank, most)
    }

    /// How often a random test runs: fewer times on software adapters, whose compilers take most of the time, and
    /// variants; more in full.
    pub fn times(&self, usual: usize) -> usize {
        let mut times = usual;
        if self.shares_kernels() {
            times /= 2;
        }
        if self.is_slow() {
            times /= 3;
        }
        if self.variant != Variant::Plain {
            times /= 3;
        }
        if full() {
            times *= 10;
        }
        times.max(2)
    }
}

/// Of a test that runs for all dtypes on all devices; named as those that ask for the dtype.
#[allow(clippy::extra_unused_type_parameters)]
pub fn always<T>(_: &Context) -> bool {
    true
}

/// Compilers take most of the time of these tests. Where a dtype only takes another's place in kernels, software
/// adapters share the dtypes out: unsigned integers to SwiftShader, signed ones to the others, f16 in words to
/// SwiftShader as well; f64 has no variants.
pub fn in_turn<T: Number>(context: &Context) -> bool {
    let swiftshader = context.adapter.name == "swiftshader";
    let is_tried = match T::DTYPE {
        DType::U32 => swiftshader,
        DType::I32 => !swiftshader,
        DType::F16 => context.adapter.name != "gl",
        DType::F64 => context.variant == Variant::Plain,
        _ => true,
    };
    is_tried || !context.shares_kernels()
}

/// Of tests of how operands lie, on software adapters: dtypes that are stored as no other of these, in words,
/// halves of words, halves and pairs of words.
pub fn stored_alone<T: Number>(context: &Context) -> bool {
    let is_alone = match T::DTYPE {
        DType::F16 => context.adapter.info.capabilities.f16,
        DType::I32 | DType::U32 => false,
        _ => true,
    };
    (is_alone && in_turn::<T>(context)) || !context.shares_kernels()
}

/// Whether a test of hardware's kernels runs on this adapter: compilers of software adapters take minutes for
/// them, so f32 runs on the two that are slow, what sizes they have time for; bf16, i32, f64 and bool run on lavapipe. f16
/// and u32 go the ways of bf16 and i32.
pub fn runs_hardwares<T: Number>(context: &Context) -> bool {
    let dtypes: &[DType] = match context.is_slow() {
        true => &[DType::F32],
        false => &[DType::BF16, DType::I32, DType::F64, DType::Bool],
    };
    context.has_turn::<T>(dtypes)
}
