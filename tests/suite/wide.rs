//! Programs' own kernels: numbers of 64 bits, vectors, small views of large tensors, what twins are told.

use orlop::{DType, Device, Error, Kernel, Placement, Result, SliceRange, Tensor};

use crate::adapters::Context;
use crate::operand::same;
use crate::placement::{is_unsupported, last, open};
use crate::user::minus;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("user::wide_functions", Scope::Device, wide_functions),
        Test::new("user::vectors", Scope::Kernels, vectors),
        Test::new("user::small_views", Scope::Device, small_views),
        Test::new("user::grids_of_twins", Scope::Device, grids_of_twins),
        Test::new("user::odd_places", Scope::Device, odd_places),
        Test::new("user::long_texts", Scope::Device, long_texts),
    ]
}

/// No adapter has them: the twin runs, and it is said.
fn wide_functions(context: &Context) -> Result<()> {
    let of_doubles = "
        fn apart(x: f64) -> f64 { return FUNCTION; }
        @group(0) @binding(0) var<storage, read> x: array<f64>;
        @group(0) @binding(1) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(1) fn main() { out[0] = u32(apart(x[0])); }";
    let of_bits = "
        @group(0) @binding(0) var<storage, read> x: array<f64>;
        @group(0) @binding(1) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(1) fn main() { let x = u64(x[0]); out[0] = u32(FUNCTION); }";
    let cases = [
        (of_doubles, "exp(x)", "Exp of f64"),
        (of_doubles, "pow(x, 2.5lf)", "Pow of f64"),
        (of_doubles, "sin(vec2<f64>(x)).x", "Sin of f64"),
        (of_bits, "firstLeadingBit(x)", "FirstLeadingBit of u64"),
        (of_bits, "countOneBits(i64(x))", "CountOneBits of i64"),
        (of_bits, "reverseBits(x)", "ReverseBits of u64"),
    ];
    let soft = open(context, Placement::Soft)?;
    let strict = open(context, Placement::Strict)?;
    for (text, function, told) in cases {
        let kernel = Kernel::wgsl("wide", &text.replace("FUNCTION", function))?;
        let kernel = kernel.twin(|call| {
            call.output::<u32>("out")?[0] = 77;
            Ok(())
        })?;
        let run = |device: &Device| {
            let x = Tensor::ones(device, [1], DType::F64)?;
            let launch = kernel.launch().input("x", &x).output("out", [1]);
            device.scope(|| launch.workgroups([1; 3]).run())
        };
        same(&run(&soft)?, &[77u32])?;
        if context.is_cpu() {
            continue;
        }
        assert_eq!(last(&soft).op, "wide");
        let capabilities = soft.capabilities();
        if capabilities.f64 && capabilities.int64 && capabilities.bounds_checks {
            assert!(last(&soft).reason.contains(told), "{:?}", last(&soft));
            is_unsupported(run(&strict), &[told]);
        }
    }
    // Those that kernels have run there, whatever is beside them that nothing calls.
    let roots = of_doubles.replace("FUNCTION", "sqrt(abs(floor(x) * 9.0lf))");
    let roots = format!("fn unused(x: f64) -> f64 {{ return exp(x); }} {roots}");
    let roots = Kernel::wgsl("roots", &roots)?.twin(|call| {
        call.output::<u32>("out")?[0] = 3;
        Ok(())
    })?;
    let x = Tensor::ones(&soft, [1], DType::F64)?;
    let launch = roots.launch().input("x", &x).output("out", [1]);
    same(&launch.workgroups([1; 3]).run()?, &[3u32])?;
    if soft.capabilities().f64 && soft.capabilities().bounds_checks && !context.is_cpu() {
        assert_ne!(last(&soft).op, "roots");
    }
    Ok(())
}

/// Elementwise kernels whose arrays are of vectors: by vectors, the last one padding in part, and by their elements.
fn vectors(context: &Context) -> Result<()> {
    vectors_by(
        context,
        "if id.x * 4u < params.x_length { out[id.x] = x[id.x] + 1.0; }",
    )?;
    let by_elements =
        "if id.x < params.x_length { out[id.x / 4u][id.x % 4u] = x[id.x / 4u][id.x % 4u] + 1.0; }";
    vectors_by(context, by_elements)
}

fn vectors_by(context: &Context, body: &str) -> Result<()> {
    let source = "
        struct Params { x_length: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
        @group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
        @compute @workgroup_size(32) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            BODY
        }";
    let plus = Kernel::wgsl("plus", &source.replace("BODY", body))?
        .elementwise()
        .twin(|call| {
            let x = call.input::<f32>("x")?;
            let out = call.output::<f32>("out")?.iter_mut();
            out.zip(x).for_each(|(out, x)| *out = x + 1.0);
            Ok(())
        })?;
    for count in [1, 3, 4, 5, 127, 128, 129, 1023, 1024, 1025, 5000] {
        let x = Tensor::arange(context.device(), 0, count, 1, DType::F32)?;
        let want: Vec<f32> = (1..=count).map(|x| x as f32).collect();
        same(&plus.launch().input("x", &x).run()?, &want)?;
    }
    Ok(())
}

/// A strided kernel on a part of what no binding holds: that part is bound.
fn small_views(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    let minus = minus()?;
    let values: Vec<f32> = (0..20_000).map(|x| x as f32).collect();
    let whole = Tensor::from_slice(&device, &values, [200, 100])?;
    for (rows, columns) in [(0..7, 0..100), (90..97, 3..90), (193..200, 99..100)] {
        let view = whole.slice((rows, columns))?;
        let back = view.flip(&[0, 1])?;
        for view in [view.clone(), view.transpose(0, 1)?, back] {
            let [height, width] = view.shape().dims()[..] else {
                panic!("{view:?}");
            };
            let launch = minus.launch().input("x", &view);
            let made = launch.invocations([width as u64, height as u64, 1]).run()?;
            let want: Vec<f32> = view.to_vec::<f32>()?.iter().map(|x| -x).collect();
            same(&made, &want)?;
        }
    }
    if device.capabilities().bounds_checks {
        assert!(device.placement_log().events.is_empty());
    }
    let launch = minus.launch().input("x", &whole);
    let made = launch.invocations([100, 200, 1]).run()?;
    same(&made.neg()?, &values)?;
    if !context.is_cpu() {
        assert_eq!(last(&device).op, "minus");
    }
    Ok(())
}

/// Twins are told the grid, where the WGSL asks for it.
fn grids_of_twins(context: &Context) -> Result<()> {
    let source = "
        @group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(2) fn main(@builtin(num_workgroups) groups: vec3<u32>) {
            out[0] = groups.x; out[1] = groups.y; out[2] = groups.z;
        }";
    let grid = Kernel::wgsl("grid", source)?.twin(|call| {
        call.output::<u32>("out")?
            .copy_from_slice(&call.workgroups());
        Ok(())
    })?;
    let launch = grid.launch().on(context.device()).output("out", [3]);
    same(&launch.clone().workgroups([3, 5, 2]).run()?, &[3u32, 5, 2])?;
    same(&launch.invocations([7, 5, 2]).run()?, &[4u32, 5, 2])?;
    // Names of what strided kernels are told, and numbers read as others.
    let named = source.replace(
        "@group(0)",
        "struct Params { out_offset: u32 } var<immediate> params: Params; @group(0)",
    );
    let refused = Kernel::wgsl("named", &named)?.twin(|_| Ok(()));
    let said = refused.unwrap_err().to_string();
    assert!(
        said.contains("`out_offset`") && said.contains("strided"),
        "{said}"
    );
    let counted = named.replace("out_offset", "count");
    let counted =
        Kernel::wgsl("counted", &counted)?.twin(|call| call.scalar::<f32>("count").map(drop))?;
    let cpu = Device::cpu();
    let launch = counted.launch().on(&cpu).output("out", [3]);
    let launch = launch.scalar("count", 1u32).workgroups([1; 3]);
    let refused = launch.run().unwrap_err();
    assert!(matches!(refused, Error::DTypeMismatch(_)));
    assert!(refused.to_string().contains("`count` is u32"), "{refused}");
    let enabled = format!("enable subgroups; {source}");
    let said = Kernel::wgsl("enabled", &enabled).unwrap_err().to_string();
    assert!(said.contains("without it"), "{said}");
    Ok(())
}

/// On a CPU device nothing is bound: what begins or ends anywhere is neither copied nor put back.
fn odd_places(context: &Context) -> Result<()> {
    let source = "
        struct Params { weight_length: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> step: array<f32>;
        @group(0) @binding(1) var<storage, read_write> weight: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.weight_length { weight[id.x] += step[id.x]; }
        }";
    let add = Kernel::wgsl("add", source)?.elementwise().twin(|call| {
        let step = call.input::<f32>("step")?;
        let weight = call.output::<f32>("weight")?.iter_mut();
        weight.zip(step).for_each(|(weight, step)| *weight += step);
        Ok(())
    })?;
    let device = context.open();
    let steps = Tensor::ones(&device, [2000], DType::F32)?;
    let weights = Tensor::zeros(&device, [2000], DType::F32)?;
    let (step, weight) = (steps.slice(3..1003)?, weights.slice(1..1001)?);
    let run = || add.launch().input("step", &step).run_into(&weight);
    run()?;
    if device.is_cpu() {
        device.reset_peaks();
        let before = device.memory().allocated;
        run()?;
        assert_eq!(device.memory().peak_allocated, before);
        // Threads that do so at once lose nothing.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20).try_for_each(|_| run()).unwrap());
            }
        });
    }
    let times = if device.is_cpu() { 82.0 } else { 1.0 };
    let mut want = vec![0.0f32; 2000];
    want[1..1001].fill(times);
    same(&weights, &want)?;
    // Views with gaps, and one tensor twice.
    let odd = weights.slice(SliceRange::from(..).step(2))?;
    let made = add.launch().input("step", &odd).run();
    let want: Vec<f32> = odd.to_vec()?;
    same(&made?, &want)
}

/// Kernels whose text differs in one place are two kernels, however long it is.
fn long_texts(context: &Context) -> Result<()> {
    let kernel = |number: u32| -> Result<Kernel> {
        let lines = |name: &str| -> String {
            (0..300)
                .map(|at| format!("fn {name}{at}() -> u32 {{ return {at}u; }}\n"))
                .collect()
        };
        let source = format!(
            "{} fn chosen() -> u32 {{ return {number}u; }} {}
             @group(0) @binding(0) var<storage, read_write> out: array<u32>;
             @compute @workgroup_size(1) fn main() {{ out[0] = chosen(); }}",
            lines("before"),
            lines("after")
        );
        assert!(source.len() > 16 << 10);
        Kernel::wgsl("long", &source)?.twin(move |call| {
            call.output::<u32>("out")?[0] = number;
            Ok(())
        })
    };
    let kernels = (0..3).map(kernel).collect::<Result<Vec<_>>>()?;
    for _ in 0..2 {
        for (number, kernel) in (0u32..).zip(&kernels) {
            let launch = kernel.launch().on(context.device()).output("out", [1]);
            same(&launch.workgroups([1; 3]).run()?, &[number])?;
        }
    }
    Ok(())
}
