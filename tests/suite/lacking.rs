//! Programs' kernels that need f16 or subgroups, on devices that have them and on devices that have not.

use orlop::interop::wgpu;
use orlop::{DType, Device, Element, Error, Kernel, KernelCall, Placement, Result, SortOrder};
use orlop::{Tensor, Tolerance, f16};

use crate::adapters::Context;
use crate::interop::Owner;
use crate::placement::{is_unsupported, last, open};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("lacking::f16_and_subgroups", Scope::Device, as_opened),
        Test::new("lacking::lent", Scope::Gpu, lent),
        Test::new("lacking::few_buffers", Scope::Gpu, few_buffers),
    ]
}

/// A kernel that adds 1 to each element, and what it needs for it. Its twin adds 101: the sum tells which of both ran.
struct Needy {
    kernel: Kernel,
    dtype: DType,
    /// What a device lacks that cannot run it, in the words of its reason.
    what: &'static str,
    is_there: fn(&Device) -> bool,
}

fn hundred_more<T: Element + bytemuck::Pod>(
    call: &KernelCall<'_>,
    more: impl Fn(T) -> T,
) -> Result<()> {
    let x = call.input::<T>("x")?;
    for (out, &x) in call.output::<T>("out")?.iter_mut().zip(x) {
        *out = more(x);
    }
    Ok(())
}

fn needy() -> Result<Vec<Needy>> {
    let source = |enables: &str, element: &str, sum: &str| {
        format!(
            "{enables}
            struct Params {{ x_length: u32 }}
            var<immediate> params: Params;
            @group(0) @binding(0) var<storage, read> x: array<{element}>;
            @group(0) @binding(1) var<storage, read_write> out: array<{element}>;
            @compute @workgroup_size(32) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
                let one = {sum};
                if id.x < params.x_length {{ out[id.x] = x[id.x] + one; }}
            }}"
        )
    };
    let of = |name: &str, source: &str| Ok::<_, Error>(Kernel::wgsl(name, source)?.elementwise());
    let singles = |call: &KernelCall<'_>| hundred_more::<f32>(call, |x| x + 101.0);
    let has_f16 = |device: &Device| device.capabilities().f16;
    let has_subgroups = |device: &Device| device.capabilities().subgroup_sizes.is_some();
    Ok(vec![
        Needy {
            kernel: of("halves", &source("enable f16;", "f16", "1.0h"))?
                .twin(|call| hundred_more(call, |x: f16| f16::from_f32(x.to_f32() + 101.0)))?,
            dtype: DType::F16,
            what: "f16 in kernels",
            is_there: has_f16,
        },
        // In between alone: no operand tells.
        Needy {
            kernel: of(
                "between",
                &source(
                    "enable f16;",
                    "f32",
                    "f32(f16(params.x_length) * 0.0h + 1.0h)",
                ),
            )?
            .twin(singles)?,
            dtype: DType::F32,
            what: "f16 in kernels",
            is_there: has_f16,
        },
        Needy {
            kernel: of("lanes", &source("", "f32", "f32(subgroupMax(1u))"))?.twin(singles)?,
            dtype: DType::F32,
            what: "subgroups",
            is_there: has_subgroups,
        },
    ])
}

/// The kernel where the device has what it needs; else its twin under soft placement, which is logged, and an error under
/// strict placement.
fn check(needy: &Needy, soft: &Device, strict: &Device) -> Result<()> {
    let name = needy.kernel.name();
    let on = |device: &Device| -> Result<Tensor> {
        let x = Tensor::from_slice(device, &[0.5f32, -3.0, 7.0], 3)?.cast(needy.dtype)?;
        needy.kernel.launch().input("x", &x).run()
    };
    let before = soft.placement_log().events.len();
    let made = on(soft)?;
    assert_eq!((made.device(), made.dtype()), (soft, needy.dtype), "{name}");
    let made = made.cast(DType::F32)?.to_vec::<f32>()?;
    let (is_cpu, capabilities) = (soft.is_cpu(), soft.capabilities());
    if !is_cpu && (needy.is_there)(soft) && capabilities.bounds_checks {
        assert_eq!(made, [1.5, -2.0, 8.0], "{name}");
        assert_eq!(soft.placement_log().events.len(), before, "{name}");
        assert_eq!(on(strict)?.device(), strict, "{name}");
        return Ok(());
    }
    assert_eq!(made, [101.5, 98.0, 108.0], "{name}");
    if is_cpu {
        // Its kernels are twins.
        assert_eq!(soft.placement_log().events.len(), before, "{name}");
        return Ok(());
    }
    let what = match (needy.is_there)(soft) {
        true => "bounds checks",
        false => needy.what,
    };
    let event = last(soft);
    assert_eq!(event.op, name);
    assert!(event.reason.contains(what), "{event}");
    assert_eq!(soft.placement_log().events.len(), before + 1, "{name}");
    is_unsupported(on(strict), &[name, what]);
    // There is no kernel to compare the twin with.
    let compared = needy
        .kernel
        .check(soft, &[("x", &[3])], Tolerance::EXACT, |launch| launch);
    is_unsupported(compared, &[what]);
    Ok(())
}

fn as_opened(context: &Context) -> Result<()> {
    let soft = open(context, Placement::Soft)?;
    let strict = open(context, Placement::Strict)?;
    for needy in needy()? {
        check(&needy, &soft, &strict)?;
    }
    Ok(())
}

/// A program's own wgpu device has what the program asked for: nothing, whatever the adapter has, and then what it has.
fn lent(context: &Context) -> Result<()> {
    let bare = Owner::new(context);
    let wanted = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP;
    let whole = wgpu::DeviceDescriptor {
        required_features: bare.adapter.features() & wanted,
        ..Default::default()
    };
    let whole = Owner::with(context, &whole);
    for (owner, is_bare) in [(&bare, true), (&whole, false)] {
        let [soft, strict] = [Placement::Soft, Placement::Strict].map(|placement| {
            let builder = Device::builder().placement(placement);
            builder.build_on_wgpu(&owner.adapter, &owner.device, &owner.queue)
        });
        let (soft, strict) = (soft?, strict?);
        for needy in needy()? {
            if is_bare {
                assert!(!(needy.is_there)(&soft), "{}", needy.kernel.name());
            }
            check(&needy, &soft, &strict)?;
        }
    }
    Ok(())
}

/// Four storage buffers to a kernel, the fewest that orlop takes, are enough to sort places.
fn few_buffers(context: &Context) -> Result<()> {
    let owner = Owner::with(
        context,
        &wgpu::DeviceDescriptor {
            required_limits: wgpu::Limits {
                max_storage_buffers_per_shader_stage: 4,
                ..wgpu::Limits::default()
            },
            ..Default::default()
        },
    );
    let builder = Device::builder().placement(Placement::Strict);
    let device = builder.build_on_wgpu(&owner.adapter, &owner.device, &owner.queue)?;
    let up = SortOrder::Ascending;
    let back: Vec<u32> = (0..100).rev().collect();
    for dtype in [DType::F32, DType::F64] {
        if device.capabilities().holds(dtype) {
            let down = Tensor::arange(&device, 99, -1, -1, dtype)?;
            assert_eq!(down.argsort(0, up)?.to_vec::<u32>()?, back);
        }
    }
    Ok(())
}
