//! The kernels that the library can ask for, through naga, as adapters of several kinds see it.

mod fast_math;
#[path = "../random/mod.rs"]
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use naga::valid::{
    Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator,
};
use naga::{AddressSpace, Module, TypeInner};
use orlop::kernels::{KernelSource, sources};
use random::Random;

/// What a kind of adapter allows.
struct Profile {
    name: &'static str,
    capabilities: Capabilities,
    subgroups: bool,
    /// Bytes of immediates.
    immediates: u32,
    invocations: u32,
    workgroup_bytes: u32,
    bindings: usize,
}

/// Immediates that desktop adapters have, in bytes.
const IMMEDIATES: u32 = 128;

/// How templates declare scalars.
const UNIFORM: &str = "@group(1) @binding(0) var<uniform> params";
const IMMEDIATE: &str = "var<immediate> params";

fn profiles() -> [Profile; 5] {
    // pack2x16float and the like, which WebGPU always has.
    let core = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let immediates = Capabilities::IMMEDIATES;
    let web = Profile {
        name: "WebGPU defaults",
        capabilities: core,
        subgroups: false,
        immediates: 0,
        invocations: 256,
        workgroup_bytes: 16 << 10,
        bindings: 8,
    };
    [
        Profile {
            name: "downlevel GL",
            capabilities: immediates,
            immediates: 64,
            bindings: 4,
            ..web
        },
        Profile {
            name: "lavapipe",
            // Cooperative matrices from Mesa 26 on.
            capabilities: core
                | immediates
                | Capabilities::SHADER_FLOAT16
                | Capabilities::FLOAT64
                | Capabilities::SHADER_INT64
                | Capabilities::SUBGROUP
                | Capabilities::SUBGROUP_BARRIER
                | Capabilities::COOPERATIVE_MATRIX,
            subgroups: true,
            immediates: IMMEDIATES,
            invocations: 1024,
            workgroup_bytes: 32 << 10,
            bindings: 16,
        },
        Profile {
            name: "SwiftShader",
            capabilities: core | immediates | Capabilities::SUBGROUP,
            subgroups: true,
            immediates: IMMEDIATES,
            ..web
        },
        Profile {
            name: "a large NVIDIA GPU",
            capabilities: Capabilities::all(),
            subgroups: true,
            immediates: 256,
            invocations: 1024,
            workgroup_bytes: 48 << 10,
            bindings: 1 << 20,
        },
        web,
    ]
}

impl Profile {
    /// Whether a device of this kind asks for the kernel: plans look at dtypes, subgroups, the size
    /// of workgroups and of their memory, and room for the scalars before they choose one.
    fn asks_for(&self, source: &KernelSource, facts: &Facts) -> bool {
        let has = |capability| self.capabilities.contains(capability);
        (!source.f16 || has(Capabilities::SHADER_FLOAT16))
            && (!source.f64 || has(Capabilities::FLOAT64))
            && (!source.int64 || has(Capabilities::SHADER_INT64))
            && (!source.subgroups || self.subgroups)
            && (!source.own_conversions || has(Capabilities::SHADER_FLOAT16_IN_FLOAT32))
            && (!source.cooperative || has(Capabilities::COOPERATIVE_MATRIX))
            && (!source.immediates || facts.params <= self.immediates)
            && facts.invocations <= self.invocations
            // Epilogues and norms with a weight and a bias go elsewhere where their operands are too many.
            && (facts.storage_bindings <= self.bindings
                || !["finishes=1", "normalise/apply"].iter().any(|part| source.name.contains(part)))
            && facts.workgroup_bytes <= self.workgroup_bytes
    }

    fn allows_more_than(&self, other: &Profile) -> bool {
        self.capabilities.contains(other.capabilities) && (self.subgroups || !other.subgroups)
    }
}

/// What limits are checked against.
struct Facts {
    /// Bytes of the scalars.
    params: u32,
    workgroup_bytes: u32,
    invocations: u32,
    storage_bindings: usize,
}

impl Facts {
    fn of(module: &Module) -> Self {
        let mut facts = Self {
            params: 0,
            workgroup_bytes: 0,
            invocations: 0,
            storage_bindings: 0,
        };
        let size = |ty: naga::Handle<naga::Type>| module.types[ty].inner.size(module.to_ctx());
        for (_, variable) in module.global_variables.iter() {
            match variable.space {
                AddressSpace::Immediate | AddressSpace::Uniform => {
                    facts.params += size(variable.ty)
                }
                AddressSpace::WorkGroup => facts.workgroup_bytes += size(variable.ty),
                AddressSpace::Storage { .. } => {
                    facts.storage_bindings += 1;
                    let inner = &module.types[variable.ty].inner;
                    assert!(
                        matches!(inner, TypeInner::Array { .. }),
                        "operands are plain arrays"
                    );
                }
                _ => {}
            }
        }
        for entry in &module.entry_points {
            facts.invocations = facts.invocations.max(entry.workgroup_size.iter().product());
        }
        facts
    }
}

fn kernels() -> &'static [KernelSource] {
    static KERNELS: OnceLock<Vec<KernelSource>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let sources = sources().unwrap_or_else(|error| panic!("{error}"));
        assert!(!sources.is_empty());
        sources
    })
}

/// Modules of all kernels would take gigabytes: each is read where it is looked at.
fn parse(source: &KernelSource) -> Module {
    naga::front::wgsl::parse_str(&source.wgsl).unwrap_or_else(|error| {
        let text = error.emit_to_string(&source.wgsl);
        panic!("{} does not parse:\n{text}\n{}", source.name, source.wgsl)
    })
}

/// A kernel with a uniform buffer, and with immediates where it fits them.
type Twins = (&'static KernelSource, Option<&'static KernelSource>);

fn twins() -> Vec<Twins> {
    let (immediates, uniforms): (Vec<_>, Vec<_>) =
        kernels().iter().partition(|source| source.immediates);
    let mut by_name: BTreeMap<&str, &KernelSource> = immediates
        .into_iter()
        .map(|source| (source.name.as_str(), source))
        .collect();
    let twins = uniforms
        .into_iter()
        .map(|source| (source, by_name.remove(source.name.as_str())))
        .collect();
    assert!(by_name.is_empty(), "with immediates alone: {by_name:?}");
    twins
}

/// Immediates are another declaration, no other code: what was read of a kernel with a uniform buffer is its twin's but for this.
fn take_immediates(module: &mut Module) {
    for (_, variable) in module.global_variables.iter_mut() {
        if variable.space == AddressSpace::Uniform {
            variable.space = AddressSpace::Immediate;
            variable.binding = None;
        }
    }
}

/// Maps on all cores; a panic of one is the caller's.
fn in_parallel<A: Send, B: Send>(items: Vec<A>, work: impl Fn(A) -> B + Sync + Send) -> Vec<B> {
    use rayon::prelude::*;
    items.into_par_iter().map(work).collect()
}

fn validate(source: &KernelSource, module: &Module, profile: &Profile) -> ModuleInfo {
    let mut validator = Validator::new(ValidationFlags::all(), profile.capabilities);
    if profile.subgroups {
        validator
            .subgroup_stages(ShaderStages::COMPUTE)
            .subgroup_operations(SubgroupOperationSet::all());
    }
    validator.validate(module).unwrap_or_else(|error| {
        let text = error.emit_to_string(&source.wgsl);
        panic!(
            "{} on {}:\n{text}\n{}",
            source.name, profile.name, source.wgsl
        )
    })
}

/// The profiles that ask for a kernel, with its family, once it has passed each of them. What passes one passes those that
/// allow more, which are asked where that `is_shown`.
fn passes<'a>(
    source: &'a KernelSource,
    module: &Module,
    profiles: &[Profile],
    is_shown: bool,
) -> Vec<(&'static str, &'a str)> {
    let KernelSource { name, .. } = source;
    let facts = Facts::of(module);
    let params = facts.params;
    // The question how f16 are converted has none.
    assert!(params > 0 || name == "halves", "{name}");
    assert!(params.is_multiple_of(4), "{name}");
    assert!(
        !source.immediates || params <= IMMEDIATES,
        "{name}: {params} bytes"
    );
    let asking: Vec<&Profile> = profiles
        .iter()
        .filter(|profile| profile.asks_for(source, &facts))
        .collect();
    let mut info = None;
    for profile in &asking {
        let mut others = asking.iter().filter(|other| other.name != profile.name);
        if is_shown || !others.any(|other| profile.allows_more_than(other)) {
            info = Some(validate(source, module, profile));
        }
        assert!(
            facts.storage_bindings <= profile.bindings,
            "{name} on {}",
            profile.name
        );
    }
    let info = info.unwrap_or_else(|| panic!("{name}: no profile asks for it"));
    let words = naga::back::spv::write_vec(module, &info, &spirv_options(), None)
        .unwrap_or_else(|error| panic!("{name} as SPIR-V: {error}"));
    assert_eq!(words.first(), Some(&0x0723_0203), "{name}");
    // Immediates are another declaration, no other code; cooperative matrices are Vulkan's.
    if !source.immediates && !source.cooperative {
        write_hlsl(source, module, &info);
        // Metal has no f64.
        if !source.f64 {
            write_msl(source, module, &info);
        }
    }
    let family = name.split_whitespace().next().unwrap_or_default();
    let seen = asking.iter().map(|profile| (profile.name, family));
    seen.collect()
}

/// Kernels of a template that are all read in a usual run; of the others one in three.
const FEW: usize = 60;

/// The kernels that a run reads, each with its place among all: with `ORLOP_TEST_FULL=1` every one.
fn tried() -> Vec<(usize, Twins)> {
    let is_full = std::env::var("ORLOP_TEST_FULL").is_ok_and(|value| !["", "0"].contains(&&*value));
    let mut of_template: BTreeMap<&str, usize> = BTreeMap::new();
    let all = twins().into_iter().enumerate();
    all.filter(|(at, (source, _))| {
        let template = source.name.split_whitespace().next().unwrap_or_default();
        let nth = of_template.entry(template).or_default();
        *nth += 1;
        // Neighbours differ in one thing, so that every third would leave out values.
        let is_in_turn = Random(*at as u64).once_in(3);
        is_full || *nth <= FEW || is_in_turn
    })
    .collect()
}

/// Parsed, validated and written as SPIR-V, for Direct3D and for Metal, under each profile that asks for it. Scalars fit the
/// immediates of desktop adapters.
#[test]
fn every_kernel_passes_every_profile_that_asks_for_it() {
    let (kernels, tried) = (kernels(), tried());
    println!("{} of {} kernels", tried.len(), kernels.len());
    let profiles = profiles();
    let passed = in_parallel(tried, |(at, (source, twin))| {
        let mut module = parse(source);
        let is_shown = at % 20 == 0;
        let mut seen = passes(source, &module, &profiles, is_shown);
        if let Some(twin) = twin {
            let text = source.wgsl.replace(UNIFORM, IMMEDIATE);
            assert!(twin.wgsl == text, "{}: other code", twin.name);
            take_immediates(&mut module);
            // Reading takes most of the time, and printing more; blanks, so that all else is at the same place.
            if at % 340 == 0 {
                let blanks = " ".repeat(UNIFORM.len() - IMMEDIATE.len());
                let mut apart = twin.clone();
                apart.wgsl = text.replace(IMMEDIATE, &(blanks + IMMEDIATE));
                let (read, made) = (format!("{:?}", parse(&apart)), format!("{module:?}"));
                assert!(read == made, "{}: read otherwise", twin.name);
            }
            seen.extend(passes(twin, &module, &profiles, is_shown));
        }
        seen
    });
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for &seen in passed.iter().flatten() {
        *counts.entry(seen).or_default() += 1;
    }
    println!("validated: {counts:#?}");
    // Every kind of adapter has a kernel of every family that it can run.
    let families: BTreeSet<&str> = counts.keys().map(|&(_, family)| family).collect();
    for profile in &profiles {
        for family in &families {
            let words = profile.capabilities.contains(Capabilities::SHADER_INT64);
            let runs = match *family {
                "matmul/wide_tile" | "matmul/wide_vector" => profile.subgroups && words,
                "matmul/quad_tile" | "matmul/texel_tile" => profile.subgroups,
                "matmul/cooperative_tile" => profile
                    .capabilities
                    .contains(Capabilities::COOPERATIVE_MATRIX),
                "matmul/pack" => words,
                "halves" => profile
                    .capabilities
                    .contains(Capabilities::SHADER_FLOAT16_IN_FLOAT32),
                _ => profile.subgroups || !family.contains("subgroup"),
            };
            let validated = counts.contains_key(&(profile.name, *family));
            assert!(!runs || validated, "{}: no {family}", profile.name);
        }
    }
}

fn spirv_options() -> naga::back::spv::Options<'static> {
    naga::back::spv::Options {
        lang_version: (1, 3),
        capabilities: None,
        ..Default::default()
    }
}

/// As wgpu writes it: for FXC, where a device has no other compiler, if the kernel needs no more; else for DXC, which takes both.
fn write_hlsl(source: &KernelSource, module: &Module, info: &ModuleInfo) {
    use naga::back::hlsl;

    let needs_more = source.f16 || source.f64 || source.int64 || source.subgroups;
    let options = hlsl::Options {
        shader_model: match needs_more {
            true => hlsl::ShaderModel::V6_2,
            false => hlsl::ShaderModel::V5_1,
        },
        special_constants_binding: Some(hlsl::BindTarget::default()),
        restrict_indexing: false,
        force_loop_bounding: false,
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let written = hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None);
    let written = written.unwrap_or_else(|error| panic!("{} as HLSL: {error}", source.name));
    for name in written.entry_point_names {
        name.unwrap_or_else(|error| panic!("{} as HLSL: {error}", source.name));
    }
}

/// As wgpu writes it for Metal 2.1 and later, without checks.
fn write_msl(source: &KernelSource, module: &Module, info: &ModuleInfo) -> String {
    use naga::back::msl;

    let resources = msl::EntryPointResources {
        sizes_buffer: Some(8),
        ..Default::default()
    };
    let options = msl::Options {
        lang_version: (2, 1),
        per_entry_point_map: std::iter::once(("main".to_owned(), resources)).collect(),
        force_loop_bounding: false,
        emit_int_div_checks: false,
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let written = msl::write_string(module, info, &options, &msl::PipelineOptions::default());
    let (text, written) = written.unwrap_or_else(|error| panic!("{} as MSL: {error}", source.name));
    for name in written.entry_point_names {
        name.unwrap_or_else(|error| panic!("{} as MSL: {error}", source.name));
    }
    text
}

/// What a profile lacks is refused, so a pass means something.
#[test]
fn profiles_refuse_what_they_lack() {
    for profile in profiles() {
        let refuses = |missing: Capabilities, uses: fn(&KernelSource) -> bool| {
            if profile.capabilities.contains(missing) {
                return;
            }
            let kernel = kernels().iter().find(|&kernel| uses(kernel));
            let kernel = kernel.unwrap_or_else(|| panic!("no kernel uses {missing:?}"));
            let mut validator = Validator::new(ValidationFlags::all(), profile.capabilities);
            assert!(
                validator.validate(&parse(kernel)).is_err(),
                "{} has {missing:?}?",
                profile.name
            );
        };
        refuses(Capabilities::FLOAT64, |source| source.f64);
        refuses(Capabilities::SHADER_FLOAT16_IN_FLOAT32, |source| {
            source.own_conversions
        });
        refuses(Capabilities::SHADER_INT64, |source| source.int64);
        refuses(Capabilities::IMMEDIATES, |source| source.immediates);
        refuses(Capabilities::SHADER_FLOAT16, |source| source.f16);
        refuses(Capabilities::COOPERATIVE_MATRIX, |source| {
            source.cooperative
        });
    }
}

/// Every kernel also exists with a uniform buffer.
#[test]
fn every_kernel_can_do_without_immediates() {
    let uniform = kernels().iter().filter(|source| !source.immediates);
    let with_uniform: BTreeSet<&str> = uniform.map(|source| source.name.as_str()).collect();
    for KernelSource { name, .. } in kernels() {
        assert!(with_uniform.contains(name.as_str()), "{name}");
    }
}

/// One name is one kernel.
#[test]
fn names_are_unique() {
    let mut seen = BTreeSet::new();
    for source in kernels() {
        assert!(
            seen.insert((&source.name, source.immediates)),
            "{} twice",
            source.name
        );
    }
}

/// No file in `shaders/` is left over, and none is missing in the list.
#[test]
fn every_template_is_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut files = BTreeSet::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("shaders/ is readable") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let inside = path.strip_prefix(&root).expect("inside shaders/");
            let name = inside.to_string_lossy().replace('\\', "/");
            let name = name
                .strip_suffix(".wgsl")
                .expect("only .wgsl files")
                .to_owned();
            files.insert(name);
        }
    }
    let mut used: BTreeSet<String> = kernels()
        .iter()
        .filter_map(|kernel| kernel.name.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    // Parts are used by those that include them.
    for file in &files {
        let text = fs::read_to_string(root.join(format!("{file}.wgsl"))).expect("a template");
        let includes =
            ["include \"", "{% from \"", "{% import \""].map(|from| text.split(from).skip(1));
        used.extend(
            includes
                .into_iter()
                .flatten()
                .filter_map(|rest| rest.split('"').next().map(str::to_owned)),
        );
    }
    assert_eq!(used, files);
}
