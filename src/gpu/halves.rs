//! Whether a GPU's own conversions of f16 give what those by bits give. WGSL leaves open how they round and what becomes of
//! subnormals, so an adapter is asked, once a process; by bits an instruction becomes ten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use super::adapters::Adapter;
use super::deadline::Deadline;
use super::hal;
use super::health::{self, Health, wait_until_told};
use super::pipelines::{CompiledKernel, Pipelines};
use crate::launch::KernelKey;

/// Conversions that kernels leave to the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversions {
    /// `unpack2x16float` widens every f16.
    pub unpacks: bool,
    /// `pack2x16float` rounds to nearest even, and keeps subnormals and infinities.
    pub packs: bool,
}

impl Conversions {
    /// All of them.
    pub(crate) const OWN: Self = Self {
        unpacks: true,
        packs: true,
    };

    /// By what `shaders/halves.wgsl` counts: f16 that are widened otherwise, f32 that are narrowed otherwise, invocations.
    fn of([widened, narrowed, ran]: [u32; 3]) -> Self {
        let have_run = ran == INVOCATIONS * GROUPS;
        Self {
            unpacks: have_run && widened == 0,
            packs: have_run && narrowed == 0,
        }
    }
}

/// Invocations of `shaders/halves.wgsl` in a workgroup, and workgroups: one for each f16.
const INVOCATIONS: u32 = 256;
const GROUPS: u32 = (1 << 16) / INVOCATIONS;

/// What the adapter says. By bits where nobody would gain: llvmpipe, which alone among software adapters has words of
/// 64 bits; on GL, whose lock other devices may hold for long; and where the question fails or takes too long.
pub(super) fn conversions(
    adapter: &Adapter,
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    pipelines: &Pipelines,
    health: &Health,
    limit: Option<Duration>,
) -> Conversions {
    if let Some(&known) = adapter.conversions.get() {
        return known;
    }
    let capabilities = &adapter.capabilities;
    let gains = capabilities.kind.is_gpu() || !capabilities.int64;
    if cfg!(orlop_model) || adapter.is_gl() || !gains {
        return Conversions::default();
    }
    let counts = pipelines
        .get(&key())
        .ok()
        .and_then(|kernel| ask(device, queue, &kernel, health, limit));
    let Some(counts) = counts else {
        tracing::debug!(adapter = adapter.name, "conversions of f16: not known");
        return Conversions::default();
    };
    let found = Conversions::of(counts);
    tracing::debug!(
        adapter = adapter.name,
        ?counts,
        ?found,
        "conversions of f16"
    );
    *adapter.conversions.get_or_init(|| found)
}

/// The kernel that counts.
pub(crate) fn key() -> KernelKey {
    KernelKey {
        template: "halves",
        values: SmallVec::new(),
        bindings: 1,
        words: 0,
    }
}

/// The three counts of `shaders/halves.wgsl`; what fails here is for later work to tell.
fn ask(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    kernel: &CompiledKernel,
    health: &Health,
    limit: Option<Duration>,
) -> Option<[u32; 3]> {
    let told = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&told);
    let copied = health::scoped(device, || {
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("orlop asks how f16 are converted"),
                size: 4 * 4,
                usage,
                mapped_at_creation: false,
            })
        };
        let counts = buffer(wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
        let copied = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &kernel.operands,
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: counts.as_entire_binding(),
            }],
        });
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&kernel.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(GROUPS, 1, 1);
        drop(pass);
        encoder.copy_buffer_to_buffer(&counts, 0, &copied, 0, copied.size());
        queue.submit([encoder.finish()]);
        // Where it failed, there is no range.
        copied.map_async(wgpu::MapMode::Read, .., move |_| {
            tells.store(true, Ordering::Release);
        });
        copied
    })
    .ok()?;
    let told = || told.load(Ordering::Acquire);
    let deadline = Deadline::after(limit);
    wait_until_told(device, None, health, deadline, told)
        .ok()?
        .then_some(())?;
    let bytes = copied.get_mapped_range(..).ok()?;
    let backend = device.adapter_info().backend;
    let read = || bytemuck::try_pod_read_unaligned(&bytes).ok();
    let [widened, narrowed, ran, _] = hal::with_memory(backend, &copied, read)??;
    Some([widened, narrowed, ran])
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::device::Device;
    use crate::dtype::DType;
    use crate::gpu::adapters::adapters;
    use crate::gpu::templates::{self, ParamsSpace};
    use crate::tensor::Tensor;

    #[test]
    fn they_are_by_bits_where_nothing_has_run() {
        assert_eq!(Conversions::of([0; 3]), Conversions::default());
        let unpacks = Conversions::of([0, 1, 1 << 16]);
        assert!(unpacks.unpacks && !unpacks.packs);
        let packs = Conversions::of([1, 0, 1 << 16]);
        assert!(packs.packs && !packs.unpacks);
    }

    /// Names, and what becomes of the halves of a word and of what they are, `made`.
    const WIDENED_WRONGLY: [(&str, &str); 8] = [
        (
            "subnormals are 0",
            "return select(made, vec2<f32>(), (halves & vec2<u32>(0x7c00u)) == vec2<u32>());",
        ),
        (
            "so are those below 0",
            "return select(made, vec2<f32>(), halves > vec2<u32>(0x8000u) & halves < vec2<u32>(0x8400u));",
        ),
        (
            "-0 is 0",
            "return select(made, vec2<f32>(), halves == vec2<u32>(0x8000u));",
        ),
        (
            "infinity is a number",
            "return select(made, vec2<f32>(65536.0), halves == vec2<u32>(0x7c00u));",
        ),
        (
            "minus infinity is one",
            "return select(made, vec2<f32>(-65536.0), halves == vec2<u32>(0xfc00u));",
        ),
        (
            "a NaN is infinity",
            "return select(made, bitcast<vec2<f32>>(vec2<u32>(0x7f800000u)), halves == vec2<u32>(0x7e01u));",
        ),
        (
            "one of all",
            "return select(made, vec2<f32>(-1.0), halves == vec2<u32>(0xbc01u));",
        ),
        ("in the other half", "return made.yx;"),
    ];

    /// Names, and what becomes of the bits of f32 and of the halves that they are.
    const NARROWED_WRONGLY: [(&str, &str); 9] = [
        (
            "cut off",
            "halves = narrowed_f16(bitcast<vec4<f32>>(bits & vec4<u32>(0xffffe000u)));",
        ),
        (
            "cut off below 0",
            "halves = narrowed_f16(bitcast<vec4<f32>>(select(bits, bits & vec4<u32>(0xffffe000u), bits > vec4<u32>(0x80000000u))));",
        ),
        (
            "ties away from 0",
            "halves = narrowed_f16(bitcast<vec4<f32>>(select(bits, bits + vec4<u32>(1u), (bits & vec4<u32>(0x1fffu)) == vec4<u32>(0x1000u))));",
        ),
        (
            "subnormals are 0",
            "halves = select(halves, halves & vec4<u32>(0x8000u), (halves & vec4<u32>(0x7c00u)) == vec4<u32>(0u));",
        ),
        (
            "so are those below 0",
            "halves = select(halves, vec4<u32>(0x8000u), halves > vec4<u32>(0x8000u) & halves < vec4<u32>(0x8400u));",
        ),
        (
            "-0 is 0",
            "halves = select(halves, vec4<u32>(), halves == vec4<u32>(0x8000u));",
        ),
        (
            "the largest for infinity",
            "halves -= select(vec4<u32>(), vec4<u32>(1u), (halves & vec4<u32>(0x7fffu)) == vec4<u32>(0x7c00u));",
        ),
        (
            "NaN for infinity",
            "halves |= select(vec4<u32>(), vec4<u32>(0x3ffu), (halves & vec4<u32>(0x7fffu)) == vec4<u32>(0x7c00u));",
        ),
        (
            "infinity for NaN",
            "halves = select(halves, vec4<u32>(0x7c00u), (halves & vec4<u32>(0x7fffu)) > vec4<u32>(0x7c00u));",
        ),
    ];

    /// Asks software adapters whose conversions are exchanged for those by bits, and for wrong ones.
    #[test]
    fn what_is_converted_otherwise_is_counted() {
        let text =
            templates::render(&key(), ParamsSpace::Immediate, Conversions::default()).unwrap();
        let text = text
            .replace("unpack2x16float(", "widened_two(")
            .replace("pack2x16float(", "narrowed_two(");
        for adapter in adapters()
            .iter()
            .filter(|adapter| !adapter.is_gl() && !adapter.capabilities.kind.is_gpu())
        {
            let device = Device::builder().select(&adapter.name).build().unwrap();
            let gpu = device.gpu().unwrap();
            let counts = |wide: &str, narrow: &str| {
                let text = format!(
                    "{text}
fn widened_two(word: u32) -> vec2<f32> {{
    let halves = vec2<u32>(word & 0xffffu, word >> 16u);
    let made = widened_f16(halves.xyxy).xy;
    {wide}
    return made;
}}
fn narrowed_two(values: vec2<f32>) -> u32 {{
    let bits = bitcast<vec4<u32>>(values.xyxy);
    var halves = narrowed_f16(values.xyxy);
    {narrow}
    return halves.x | (halves.y << 16u);
}}"
                );
                let kernel = gpu.pipelines.build(&key(), ParamsSpace::Immediate, text);
                ask(&gpu.device, &gpu.queue, &kernel, &gpu.health, None).unwrap()
            };
            assert_eq!(counts("", ""), [0, 0, 1 << 16], "{}", adapter.name);
            for (name, wrong) in WIDENED_WRONGLY {
                let [widened, ..] = counts(wrong, "");
                assert!(widened > 0, "{}: widened, {name}", adapter.name);
            }
            for (name, wrong) in NARROWED_WRONGLY {
                let [widened, narrowed, _] = counts("", wrong);
                assert!(
                    widened == 0 && narrowed > 0,
                    "{}: narrowed, {name}",
                    adapter.name
                );
            }
        }
    }

    /// Those that nobody asks in earnest too: llvmpipe does both right, SwiftShader unpacks.
    #[test]
    fn what_an_adapter_converts_by_itself_is_right() {
        for adapter in adapters().iter().filter(|adapter| !adapter.is_gl()) {
            let infos = Device::list().unwrap();
            let same =
                |backend: &str, name: &str| backend == adapter.backend && name == adapter.name;
            let info = infos
                .iter()
                .find(|info| same(info.backend, &info.name))
                .unwrap();
            let open = || Device::builder().select(&info.selector).build().unwrap();
            let first = open();
            let gpu = first.gpu().unwrap();
            let kernel = gpu.pipelines.get(&key()).unwrap();
            let counts = ask(&gpu.device, &gpu.queue, &kernel, &gpu.health, None).unwrap();
            assert_eq!(counts[2], 1 << 16, "{info}");
            let found = *adapter.conversions.get_or_init(|| Conversions::of(counts));
            assert_eq!(found, Conversions::of(counts), "{info}");
            let device = open();
            assert_eq!(device.gpu().unwrap().pipelines.conversions, found, "{info}");
            println!("{info}: {found:?}");

            let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
            let same = |one: f32, other: f32| {
                one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan())
            };
            let on = Tensor::from_slice(&device, &halves, [halves.len()]).unwrap();
            let wide = on.cast(DType::F32).unwrap().to_vec::<f32>().unwrap();
            for (&half, &wide) in halves.iter().zip(&wide) {
                assert!(same(half.to_f32(), wide), "{info}: {half:?} to {wide}");
            }
            for beside in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, u32::MAX] {
                let between = |half: &f16| match beside {
                    // Exactly, subnormals too.
                    u32::MAX => half.to_f32() + f32::from_bits(0x3300_0000),
                    _ => f32::from_bits(half.to_f32().to_bits() + beside),
                };
                let values: Vec<f32> = halves.iter().map(between).collect();
                let on = Tensor::from_slice(&device, &values, [values.len()]).unwrap();
                let cast = on.cast(DType::F16).unwrap().to_vec::<f16>().unwrap();
                for (&value, &half) in values.iter().zip(&cast) {
                    let right = f16::from_f32(value);
                    assert!(
                        same(right.to_f32(), half.to_f32()),
                        "{info}: {value} to {half:?}"
                    );
                }
            }
        }
    }
}
