//! What a Vulkan driver's compiler makes of the kernels: registers, spills, how many subgroups fit, size, time to
//! compile. It runs nothing, so it needs no GPU where the driver can do without: Mesa's for AMD can
//! (`scripts/hardware.sh`).
//!
//! `cargo bench --bench compiled [-- --device NAME] [--only TEXT]... [--every N] [--listing] [--software] [--json]`; a kernel is
//! told of when its name has every TEXT
//!
//! Exit code 1 when a kernel does not compile, or is given memory for registers that it does not have.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use ash::vk;
use clap::Parser;
use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use orlop::kernels::{KernelSource, sources};
use rayon::prelude::*;

/// What a driver's compiler makes of the kernels.
#[derive(Parser)]
struct Args {
    /// Part of the name of the Vulkan adapter; without it the first one.
    #[arg(long)]
    device: Option<String>,
    /// Kernels whose names contain this; of several, all of them.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Every Nth of these kernels.
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,
    /// Each kernel's figures, and its code where the driver shows it.
    #[arg(long)]
    listing: bool,
    /// Also the kernels that only software adapters are given.
    #[arg(long)]
    software: bool,
    /// A line of JSON for each kernel.
    #[arg(long)]
    json: bool,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Whether plans give the kernel to software adapters alone.
fn is_software(name: &str) -> bool {
    let name = name.trim_end_matches(" own conversions");
    let has = |part: &str| name.contains(part);
    let is = |template| name.starts_with(template);
    let of_matmul = [
        "register_tile",
        "subgroup_tile",
        "quad_tile",
        "wide_",
        "texel_tile",
        "pack",
    ];
    let by_eights = has(" vector=8 ") || has(" unit=8 ");
    if let Some(kernel) = name.strip_prefix("matmul/") {
        let is_theirs = of_matmul.iter().any(|one| kernel.starts_with(one));
        let is_flat = has(" flat=1") && !has(" thread_m=8 ");
        return is_theirs && !is_flat || has(" edge=8 ") || name.ends_with(" k_threads=1");
    }
    // Rows of 128 halves in registers.
    if has(" unit=8 ") && has(" held=16 ") {
        return true;
    }
    // Hardware takes eight halves where their states have one field.
    let fields = [
        " op=place ",
        " op=exponential ",
        " op=square ",
        " op=moment ",
    ];
    let of_many = is("normalise") || has(" element=f32 ") || fields.into_iter().any(has);
    let of_eights = by_eights && (is("elementwise") || is("turned") || of_many);
    of_eights || has(" lanes=8 ") && has(" tree=none") || has(" workgroup=8 ") || has(" each=2")
}

/// In the names of what drivers count that tells of memory in the place of registers: Mesa's; others', as far as known.
const SPILLS: [&str; 5] = ["spill", "scratch", "fill", "stack", "local memory"];

fn main() -> ExitCode {
    match compare(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("compiled: {error}");
            ExitCode::from(2)
        }
    }
}

fn compare(args: &Args) -> Result<ExitCode, String> {
    let driver = Driver::open(args.device.as_deref())?;
    let all = sources().map_err(|error| error.to_string())?;
    let asked: Vec<&KernelSource> = all
        .iter()
        .filter(|source| source.immediates && driver.can(source))
        .filter(|source| args.software || !is_software(&source.name))
        .filter(|source| args.only.iter().all(|part| source.name.contains(part)))
        .step_by(args.every.max(1))
        .collect();
    if asked.is_empty() {
        return Err("there is no such kernel".to_owned());
    }
    let compiled: Vec<_> = asked
        .par_iter()
        .map(|source| (*source, driver.compile(source, args.listing)))
        .collect();
    let mut families: BTreeMap<&str, Family> = BTreeMap::new();
    let mut failed = false;
    for (source, result) in &compiled {
        let name = &source.name;
        let compiled = match result {
            Ok(compiled) => compiled,
            Err(error) => {
                eprintln!("{name}: {error}");
                failed = true;
                continue;
            }
        };
        let spills = compiled.spills();
        if !spills.is_empty() {
            eprintln!("{name}: registers in memory: {}", spills.join(", "));
            failed = true;
        }
        if args.json {
            let line = serde_json::json!({
                "device": driver.name, "kernel": name, "seconds": compiled.seconds,
                "statistics": compiled.statistics.iter().cloned().collect::<BTreeMap<_, _>>(),
            });
            println!("{line}");
        }
        if args.listing {
            println!("{name}\n{:?}", compiled.statistics);
            for text in &compiled.listings {
                println!("{text}");
            }
        }
        let family = name.split(' ').next().unwrap_or(name);
        families.entry(family).or_default().add(compiled);
    }
    if !args.json {
        println!("\n{}: {} kernels", driver.name, compiled.len());
        for (name, family) in &families {
            family.print(name);
        }
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// The kernels of one template.
#[derive(Default)]
struct Family {
    kernels: usize,
    seconds: f64,
    /// The least and the most of what the driver counts.
    ranges: BTreeMap<String, (f64, f64)>,
}

impl Family {
    fn add(&mut self, compiled: &Compiled) {
        self.kernels += 1;
        self.seconds = self.seconds.max(compiled.seconds);
        for (name, value) in &compiled.statistics {
            let range = self.ranges.entry(name.clone()).or_insert((*value, *value));
            *range = (range.0.min(*value), range.1.max(*value));
        }
    }

    fn print(&self, name: &str) {
        let seconds = self.seconds;
        println!("\n{name}: {} kernels, at most {seconds:.2} s", self.kernels);
        // Hashes count nothing.
        let counts = |name: &str| !name.to_lowercase().contains("hash");
        let ranges: Vec<String> = self
            .ranges
            .iter()
            .filter(|(name, (_, most))| *most != 0.0 && counts(name))
            .map(|(name, (least, most))| match least == most {
                true => format!("{name} {most}"),
                false => format!("{name} {least} - {most}"),
            })
            .collect();
        println!("  {}", ranges.join(", "));
    }
}

struct Compiled {
    seconds: f64,
    /// By the driver's names.
    statistics: Vec<(String, f64)>,
    listings: Vec<String>,
}

impl Compiled {
    /// What tells of memory in the place of registers.
    fn spills(&self) -> Vec<String> {
        let tells = |name: &str| {
            SPILLS
                .iter()
                .any(|spill| name.to_lowercase().contains(spill))
        };
        self.statistics
            .iter()
            .filter(|(name, value)| *value > 0.0 && tells(name))
            .map(|(name, value)| format!("{name} {value}"))
            .collect()
    }
}

/// The SPIR-V that wgpu gives to drivers for kernels of orlop's own: without checks.
fn spirv(source: &KernelSource) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(&source.wgsl)
        .map_err(|error| error.emit_to_string(&source.wgsl))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .subgroup_stages(ShaderStages::COMPUTE)
        .subgroup_operations(SubgroupOperationSet::all())
        .validate(&module)
        .map_err(|error| error.emit_to_string(&source.wgsl))?;
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        lang_version: (1, 6),
        flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    };
    spv::write_vec(&module, &info, &options, None).map_err(|error| error.to_string())
}

/// A device of a Vulkan driver that tells of pipelines. It lives as long as the process.
struct Driver {
    name: String,
    /// The loader: nothing may be called without it.
    _entry: ash::Entry,
    device: ash::Device,
    told: ash::khr::pipeline_executable_properties::Device,
    cooperative: bool,
    f16: bool,
    f64: bool,
    int64: bool,
}

impl Driver {
    fn open(name: Option<&str>) -> Result<Self, String> {
        let said = |error: vk::Result| error.to_string();
        // SAFETY: nothing is destroyed before the process ends, and what is passed lives while it is read.
        unsafe {
            let entry = ash::Entry::load().map_err(|error| error.to_string())?;
            let version = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let instance = vk::InstanceCreateInfo::default().application_info(&version);
            let instance = entry.create_instance(&instance, None).map_err(said)?;
            let (adapter, name) = instance
                .enumerate_physical_devices()
                .map_err(said)?
                .into_iter()
                .map(|adapter| {
                    let properties = instance.get_physical_device_properties(adapter);
                    let name = properties.device_name_as_c_str().unwrap_or_default();
                    (adapter, name.to_string_lossy().into_owned())
                })
                .find(|(_, shown)| name.is_none_or(|name| shown.contains(name)))
                .ok_or("no Vulkan adapter of that name")?;
            // All that there is.
            let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
            let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
            let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
            let mut tells = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
            let mut features = vk::PhysicalDeviceFeatures2::default()
                .push_next(&mut tells)
                .push_next(&mut v13)
                .push_next(&mut v12)
                .push_next(&mut v11);
            instance.get_physical_device_features2(adapter, &mut features);
            let core = features.features;
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let mut extensions = vec![ash::khr::pipeline_executable_properties::NAME.as_ptr()];
            let matrices = ash::khr::cooperative_matrix::NAME;
            let cooperative = instance
                .enumerate_device_extension_properties(adapter)
                .map_err(said)?
                .iter()
                .any(|one| one.extension_name_as_c_str() == Ok(matrices));
            let mut with_matrices =
                vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
            if cooperative {
                extensions.push(matrices.as_ptr());
                features = features.push_next(&mut with_matrices);
            }
            let device = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&extensions)
                .push_next(&mut features);
            let device = instance
                .create_device(adapter, &device, None)
                .map_err(|error| format!("{name} tells nothing of pipelines: {error}"))?;
            Ok(Self {
                name,
                _entry: entry,
                told: ash::khr::pipeline_executable_properties::Device::new(&instance, &device),
                device,
                cooperative,
                f16: v12.shader_float16 != 0,
                f64: core.shader_float64 != 0,
                int64: core.shader_int64 != 0,
            })
        }
    }

    fn can(&self, source: &KernelSource) -> bool {
        (self.f16 || !source.f16)
            && (self.f64 || !source.f64)
            && (self.int64 || !source.int64)
            && (self.cooperative || !source.cooperative)
            // Its texture would be one more descriptor.
            && !source.name.starts_with("matmul/texel_tile")
    }

    fn compile(&self, source: &KernelSource, listing: bool) -> Result<Compiled, String> {
        let words = spirv(source)?;
        let bindings: Vec<_> = (0..)
            .take_while(|slot| source.wgsl.contains(&format!("@group(0) @binding({slot})")))
            .map(|slot| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(slot)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let mut flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR;
        if listing {
            flags |= vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
        }
        let said = |error: vk::Result| error.to_string();
        // SAFETY: naga has validated the module, the layout holds all that it binds, and handles are used while they
        // live; layouts stay until the process ends.
        unsafe {
            let module = vk::ShaderModuleCreateInfo::default().code(&words);
            let module = self
                .device
                .create_shader_module(&module, None)
                .map_err(said)?;
            let operands = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let operands = [self
                .device
                .create_descriptor_set_layout(&operands, None)
                .map_err(said)?];
            // What desktop adapters have.
            let immediates = [vk::PushConstantRange::default()
                .size(128)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)];
            let layout = vk::PipelineLayoutCreateInfo::default()
                .set_layouts(&operands)
                .push_constant_ranges(&immediates);
            let layout = self
                .device
                .create_pipeline_layout(&layout, None)
                .map_err(said)?;
            let mut stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            // Plans give these to adapters whose subgroups all have that size.
            let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
                .required_subgroup_size(32);
            if source.cooperative {
                stage = stage.push_next(&mut size);
            } else {
                stage.flags = vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE;
            }
            let pipeline = vk::ComputePipelineCreateInfo::default()
                .flags(flags)
                .stage(stage)
                .layout(layout);
            let started = Instant::now();
            let made = self
                .device
                .create_compute_pipelines(vk::PipelineCache::null(), &[pipeline], None)
                .map_err(|(_, error)| error.to_string())?;
            let seconds = started.elapsed().as_secs_f64();
            // One was asked for.
            let pipeline = made[0];
            let compiled = self.told_of(pipeline, seconds, listing);
            self.device.destroy_pipeline(pipeline, None);
            self.device.destroy_shader_module(module, None);
            compiled.map_err(said)
        }
    }

    /// What the driver tells of a pipeline.
    fn told_of(
        &self,
        pipeline: vk::Pipeline,
        seconds: f64,
        listing: bool,
    ) -> Result<Compiled, vk::Result> {
        use vk::PipelineExecutableStatisticFormatKHR as Format;
        let first = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        // SAFETY: the pipeline lives and was made to be asked, and the format says which field of a value is set.
        let statistics = unsafe { self.told.get_pipeline_executable_statistics(&first)? };
        if statistics.is_empty() {
            return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
        }
        let statistics = statistics
            .iter()
            .map(|one| {
                let name = one.name_as_c_str().unwrap_or_default().to_string_lossy();
                // SAFETY: as above.
                let value = unsafe {
                    match one.format {
                        Format::FLOAT64 => one.value.f64,
                        Format::INT64 => one.value.i64 as f64,
                        // NVIDIA's (580) counts of 32 bits have 16 in their upper halves.
                        Format::UINT64 if one.value.u64 >> 32 == 16 => one.value.u64 as u32 as f64,
                        Format::UINT64 => one.value.u64 as f64,
                        _ => f64::from(one.value.b32),
                    }
                };
                (name.into_owned(), value)
            })
            .collect();
        let mut listings = Vec::new();
        if listing {
            let ask = self
                .told
                .fp()
                .get_pipeline_executable_internal_representations_khr;
            let device = self.device.handle();
            let mut count = 0;
            // SAFETY: asked for their number, for their sizes and for themselves, into memory of these sizes.
            unsafe {
                ask(device, &first, &mut count, std::ptr::null_mut()).result()?;
                let mut shown = vec![
                    vk::PipelineExecutableInternalRepresentationKHR::default();
                    count as usize
                ];
                ask(device, &first, &mut count, shown.as_mut_ptr()).result()?;
                let mut texts: Vec<_> = shown.iter().map(|one| vec![0u8; one.data_size]).collect();
                for (one, text) in shown.iter_mut().zip(&mut texts) {
                    one.p_data = text.as_mut_ptr().cast();
                }
                ask(device, &first, &mut count, shown.as_mut_ptr()).result()?;
                listings.extend(
                    texts
                        .iter()
                        .map(|text| String::from_utf8_lossy(text).into()),
                );
            }
        }
        Ok(Compiled {
            seconds,
            statistics,
            listings,
        })
    }
}
