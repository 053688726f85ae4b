//! Programs' own kernels: bindings read from WGSL, windows, placement, errors, and what hostile ones cannot do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orlop::{
    DType, Device, Error, Kernel, KernelCall, Placement, Result, Shape, Tensor, Tolerance, f16,
    fused,
};

use crate::adapters::Context;
use crate::number::{Number, Value};
use crate::operand::{Operand, same};
use crate::placement::{is_unsupported, last, open};
use crate::rng::{Rng, cases};
use crate::{OnceTest, Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("user::elementwise", Scope::Kernels, elementwise),
        Test::new("user::many_workgroups", Scope::Kernels, many_workgroups),
        Test::new(
            "user::many_workgroups_of",
            Scope::Device,
            many_workgroups_of,
        ),
        Test::new(
            "user::windows_of_several_dtypes",
            Scope::Device,
            windows_of_several_dtypes,
        ),
        Test::new(
            "user::outputs_and_atomics",
            Scope::Kernels,
            outputs_and_atomics,
        ),
        Test::new("user::rows", Scope::Device, rows),
        Test::new("user::strided", Scope::Device, strided),
        Test::new("user::endless_views", Scope::Device, endless_views),
        Test::new("user::tables", Scope::Device, tables),
        Test::new(
            "user::outputs_of_several_dtypes",
            Scope::Device,
            outputs_of_several_dtypes,
        ),
        Test::new("user::many_numbers", Scope::Kernels, many_numbers),
        Test::new("user::no_elements", Scope::Device, no_elements),
        Test::new("user::without_inputs", Scope::Device, without_inputs),
        Test::new("user::templates", Scope::Device, templates),
        Test::new("user::check_compares", Scope::Device, check_compares),
        Test::new("user::launches_refused", Scope::Device, launches_refused),
        Test::new(
            "user::what_a_device_lacks",
            Scope::Device,
            what_a_device_lacks,
        ),
        Test::new("user::beyond_a_binding", Scope::Device, beyond_a_binding),
        Test::new("user::hostile", Scope::Kernels, hostile),
        Test::new("user::memory", Scope::Device, memory),
        Test::new("user::run_into", Scope::Kernels, run_into),
    ]
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![("user::sources_refused", sources_refused)]
}

const SAXPY: &str = "
fn doubled() -> f32 { var<function> x = 1.0; var<function> params = x; return x + params; }
struct Params { a: f32, x_length: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.x_length { out[id.x] = 0.5 * doubled() * params.a * x[id.x] + y[id.x]; }
}";

fn saxpy() -> Result<Kernel> {
    Kernel::wgsl("saxpy", SAXPY)?.elementwise().twin(|call| {
        let a = call.scalar::<f32>("a")?;
        let (x, y) = (call.input::<f32>("x")?, call.input::<f32>("y")?);
        for ((out, x), y) in call.output("out")?.iter_mut().zip(x).zip(y) {
            *out = a * x + y;
        }
        Ok(())
    })
}

/// Of whole numbers, so that every way to multiply and add gives the same.
fn whole(rng: &mut Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.below(200) as f32 - 100.0).collect()
}

/// Views of every kind, of every size, windowed too.
fn elementwise(context: &Context) -> Result<()> {
    let saxpy = saxpy()?;
    cases(context.times(40), |rng| {
        let shape = context.shape(rng, 4, 3000);
        let x = Operand::<f32>::random_view(context.device(), rng, &shape)?;
        let y = Operand::<f32>::random_view(context.device(), rng, &shape)?;
        let made = saxpy
            .launch()
            .input("x", &x.tensor)
            .input("y", &y.tensor)
            .scalar("a", 2.0)
            .run()?;
        assert_eq!(made.shape(), x.tensor.shape());
        let got = made.to_vec::<f32>()?;
        for ((got, x), y) in got.iter().zip(x.values()).zip(y.values()) {
            let want = 2.0 * f64::from(x) + f64::from(y);
            let bound =
                2.0 * f64::from(f32::EPSILON) * (2.0 * f64::from(x).abs() + f64::from(y).abs());
            let is_same = f64::from(*got) == want || (want.is_nan() && got.is_nan());
            assert!(
                is_same || (f64::from(*got) - want).abs() <= bound + 1e-37,
                "{got} {want}"
            );
        }
        Ok(())
    })?;
    // One tensor twice, and two views of one storage that overlap.
    let values = whole(&mut Rng::new(1), 1000);
    let base = Tensor::from_slice(context.device(), &values, [1000])?;
    for from in [0, 1, 64, 100, 499] {
        let (x, y) = (
            base.slice(from..from + 500)?,
            base.slice(500 - from..1000 - from)?,
        );
        let made = saxpy
            .launch()
            .input("y", &y)
            .input("x", &x)
            .scalar("a", -3)
            .run()?;
        let want: Vec<f32> = (0..500)
            .map(|at| -3.0 * values[from + at] + values[500 - from + at])
            .collect();
        same(&made, &want)?;
        let twice = saxpy
            .launch()
            .input("y", &x)
            .input("x", &x)
            .scalar("a", 1)
            .run()?;
        let want: Vec<f32> = (0..500).map(|at| 2.0 * values[from + at]).collect();
        same(&twice, &want)?;
    }
    same(&base, &values)
}

/// More than 65,535 workgroups of elements of other sizes than a word: in pieces, whose bytes are counted by theirs.
fn many_workgroups_of(context: &Context) -> Result<()> {
    fn more<T: orlop::Element + bytemuck::Pod + Number>(call: &KernelCall<'_>) -> Result<()> {
        let out = call.output::<T>("out")?.iter_mut();
        for (out, x) in out.zip(call.input::<T>("x")?) {
            let Value::Float(x) = x.value() else {
                unreachable!("floats");
            };
            *out = T::from_value(Value::Float(x + 1.0));
        }
        Ok(())
    }
    let source = "{{ enables }}
        struct Params { x_length: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<{{ element }}>;
        @group(0) @binding(1) var<storage, read_write> out: array<{{ element }}>;
        @compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.x_length { out[id.x] = x[id.x] + {{ element }}(1); }
        }";
    for dtype in [DType::F16, DType::F64] {
        let kernel = Kernel::template("more", source, &[("element", dtype.into())])?;
        let kernel = kernel
            .elementwise()
            .overwrites()
            .twin(move |call| match dtype {
                DType::F16 => more::<f16>(call),
                _ => more::<f64>(call),
            })?;
        let values: Vec<f32> = (0..140_001).map(|at| (at % 1999) as f32).collect();
        let x = Tensor::from_slice(context.device(), &values, [values.len()])?.cast(dtype)?;
        let want: Vec<f32> = values.iter().map(|x| x + 1.0).collect();
        let made = kernel.launch().input("x", &x).run()?;
        same(&made.cast(DType::F32)?, &want)?;
    }
    Ok(())
}

/// Operands of several sizes of element in windows: as long as the widest of them allows.
fn windows_of_several_dtypes(context: &Context) -> Result<()> {
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    let source = "enable f16;
        struct Params { x_length: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<f16>;
        @group(0) @binding(1) var<storage, read_write> halves: array<f32>;
        @group(0) @binding(2) var<storage, read_write> whole: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.x_length {
                halves[id.x] = f32(x[id.x]) * 0.5;
                whole[id.x] = u32(x[id.x]) + 7u;
            }
        }";
    let kernel = Kernel::wgsl("both", source)?
        .elementwise()
        .overwrites()
        .twin(|call| {
            let x = call.input::<f16>("x")?;
            let halves = call.output::<f32>("halves")?;
            let whole = call.output::<u32>("whole")?;
            for ((halves, whole), x) in halves.iter_mut().zip(whole).zip(x) {
                (*halves, *whole) = (x.to_f32() * 0.5, x.to_f32() as u32 + 7);
            }
            Ok(())
        })?;
    let values: Vec<f16> = (0..5000)
        .map(|at| f16::from_f32((at % 2039) as f32))
        .collect();
    let base = Tensor::from_slice(&device, &values, [5000])?;
    for from in [0, 1, 130] {
        let made = kernel.launch().input("x", &base.slice(from..)?).run_all()?;
        let x = || values[from..].iter().map(|x| x.to_f32());
        same(&made[0], &x().map(|x| x * 0.5).collect::<Vec<f32>>())?;
        same(&made[1], &x().map(|x| x as u32 + 7).collect::<Vec<u32>>())?;
    }
    Ok(())
}

/// More than 65,535 workgroups.
fn many_workgroups(context: &Context) -> Result<()> {
    let source = "
        struct Params { x_length: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<u32>;
        @group(0) @binding(1) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.x_length { out[id.x] = x[id.x] + 1u; }
        }";
    let more = Kernel::wgsl("more", source)?
        .elementwise()
        .overwrites()
        .twin(|call| {
            for (out, x) in call
                .output::<u32>("out")?
                .iter_mut()
                .zip(call.input::<u32>("x")?)
            {
                *out = x + 1;
            }
            Ok(())
        })?;
    let values: Vec<u32> = (0..140_001).collect();
    let x = Tensor::from_slice(context.device(), &values, [values.len()])?;
    let want: Vec<u32> = values.iter().map(|x| x + 1).collect();
    same(&more.launch().input("x", &x).run()?, &want)
}

const HISTOGRAM: &str = "
struct Params { x_length: u32, bins: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> place: array<vec2<i32>>;
@compute @workgroup_size(32) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.x_length {
        let bin = x[id.x] % params.bins;
        atomicAdd(&counts[bin], 1u);
        place[id.x] = vec2<i32>(i32(bin), -1);
    }
}";

fn histogram() -> Result<Kernel> {
    Kernel::wgsl("histogram", HISTOGRAM)?
        .shape("place", |inputs: &[&Shape]| {
            Ok(Shape::from([inputs[0].elements(), 2]))
        })
        .twin(|call| {
            let bins = call.scalar::<u32>("bins")?;
            let counts = call.output::<u32>("counts")?;
            let place = call.output::<i32>("place")?;
            assert_eq!(call.output_shape("place")?.dims()[1], 2);
            for (place, x) in place.chunks_exact_mut(2).zip(call.input::<u32>("x")?) {
                counts[(x % bins) as usize] += 1;
                place.copy_from_slice(&[(x % bins) as i32, -1]);
            }
            Ok(())
        })
}

/// Outputs begin as zeros, also in memory that was used before; several of them share a storage.
fn outputs_and_atomics(context: &Context) -> Result<()> {
    let histogram = histogram()?;
    let device = context.open();
    cases(context.times(20), |rng| {
        drop(Tensor::full(&device, [3000], 77, DType::U32)?);
        let (bins, count) = (rng.between(1, 100), rng.between(1, 500));
        let values: Vec<u32> = (0..count).map(|_| rng.next() as u32).collect();
        let x = Tensor::from_slice(&device, &values, [count])?;
        let launch = histogram
            .launch()
            .input("x", &x)
            .output("counts", [bins])
            .scalar("bins", bins as u32);
        let made = launch.clone().invocations([count as u64, 1, 1]).run_all()?;
        let (mut counts, mut place) = (vec![0u32; bins], Vec::new());
        for x in values {
            counts[x as usize % bins] += 1;
            place.extend([(x % bins as u32) as i32, -1]);
        }
        same(&made[0], &counts)?;
        same(&made[1], &place)?;
        assert_eq!(made[1].shape().dims(), [count, 2]);
        assert!(
            launch.workgroups([1, 1, 1]).run().is_err(),
            "it has two outputs"
        );
        Ok(())
    })
}

const ROWS: &str = "
struct Params { columns: u32 }
var<immediate> params: Params;
var<workgroup> part: array<f32, 64>;
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64) fn sum_of_a_row(
    @builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32,
) {
    var sum = vec4<f32>();
    for (var at = local; at < params.columns / 4u; at += 64u) {
        sum += x[group.x * (params.columns / 4u) + at];
    }
    part[local] = sum.x + sum.y + sum.z + sum.w;
    workgroupBarrier();
    if local == 0u {
        var all = 0.0;
        for (var at = 0u; at < 64u; at++) { all += part[at]; }
        out[group.x] = all;
    }
}";

/// Workgroup memory, vectors, a grid of its own, and a shape rule.
fn rows(context: &Context) -> Result<()> {
    let rows = Kernel::wgsl("rows", ROWS)?
        .overwrites()
        .shape("out", |inputs: &[&Shape]| {
            Ok(Shape::from([inputs[0].dims()[0]]))
        })
        .twin(|call| {
            let columns = call.input_shape("x")?.dims()[1];
            let x = call.input::<f32>("x")?;
            for (out, row) in call
                .output::<f32>("out")?
                .iter_mut()
                .zip(x.chunks_exact(columns))
            {
                *out = row.iter().sum();
            }
            Ok(())
        })?;
    cases(context.times(10), |rng| {
        let (count, columns) = (rng.between(1, 30), 4 * rng.between(1, 100));
        let values = whole(rng, count * columns);
        let x = Tensor::from_slice(context.device(), &values, [count, columns])?;
        let launch = rows
            .launch()
            .input("x", &x)
            .scalar("columns", columns as u32);
        let want: Vec<f32> = values
            .chunks_exact(columns)
            .map(|row| row.iter().sum())
            .collect();
        same(&launch.workgroups([count as u32, 1, 1]).run()?, &want)
    })
}

const MINUS: &str = "
        struct Params { x_offset: u32, x_stride_0: i32, x_stride_1: i32, x_size_0: u32, x_size_1: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> out: array<f32>;
        @compute @workgroup_size(8, 8) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.x_size_1 && id.y < params.x_size_0 {
                let at = i32(params.x_offset) + i32(id.y) * params.x_stride_0 + i32(id.x) * params.x_stride_1;
                out[id.y * params.x_size_1 + id.x] = -x[at];
            }
        }";

/// The negative of a tensor as it lies, by a strided kernel.
pub fn minus() -> Result<Kernel> {
    Kernel::wgsl("minus", MINUS)?
        .strided()
        .shape("out", |inputs: &[&Shape]| Ok(inputs[0].clone()))
        .twin(|call| {
            let x = call.input::<f32>("x")?;
            let out = call.output::<f32>("out")?.iter_mut();
            out.zip(x).for_each(|(out, x)| *out = -x);
            Ok(())
        })
}

/// A kernel that takes its operand as it lies: turned, backwards, repeated.
fn strided(context: &Context) -> Result<()> {
    let (source, minus) = (MINUS, minus()?);
    cases(context.times(20), |rng| {
        let shape = [rng.between(1, 40), rng.between(1, 40)];
        let x = Operand::<f32>::random_view(context.device(), rng, &shape)?;
        let grid = [shape[1] as u64, shape[0] as u64, 1];
        let made = minus
            .launch()
            .input("x", &x.tensor)
            .invocations(grid)
            .run()?;
        let want: Vec<f32> = x.values().iter().map(|x| -x).collect();
        let got = made.to_vec::<f32>()?;
        // The sign of NaN is nobody's.
        assert!(
            got.iter()
                .zip(&want)
                .all(|(a, b)| a == b || (a.is_nan() && b.is_nan()))
        );
        Ok(())
    })?;
    // A twin that goes by offset and strides, as the kernel does, gets those of what it gets.
    let by_strides = Kernel::wgsl("by_strides", source)?
        .strided()
        .shape("out", |inputs: &[&Shape]| Ok(inputs[0].clone()))
        .twin(|call| {
            let [rows, columns, first] = ["x_size_0", "x_size_1", "x_offset"]
                .map(|name| call.scalar::<u32>(name).map(|number| number as usize));
            let (rows, columns, first) = (rows?, columns?, first?);
            let [down, across] = ["x_stride_0", "x_stride_1"].map(|name| call.scalar::<i32>(name));
            let (down, across) = (down? as usize, across? as usize);
            let (x, out) = (call.input::<f32>("x")?, call.output::<f32>("out")?);
            for at in 0..rows * columns {
                out[at] = -x[first + at / columns * down + at % columns * across];
            }
            Ok(())
        })?;
    let cpu = Device::cpu();
    let x = Tensor::arange(&cpu, 0, 12, 1, DType::F32)?.reshape([4, 3])?;
    let x = x.slice(1..)?.transpose(0, 1)?;
    let launch = by_strides.launch().input("x", &x).invocations([3, 3, 1]);
    let want = [3.0f32, 6.0, 9.0, 4.0, 7.0, 10.0, 5.0, 8.0, 11.0].map(|x| -x);
    same(&launch.run()?, &want)?;
    let kernel_runs = !context.is_cpu() && context.adapter.info.backend != "Gl";
    if kernel_runs {
        let check = |kernel: &Kernel| {
            let shapes: [(&str, &[usize]); 1] = [("x", &[5, 7])];
            kernel.check(context.device(), &shapes, Tolerance::EXACT, |launch| {
                launch.invocations([7, 5, 1])
            })
        };
        check(&by_strides)?;
        // It sees what holds for rows alone.
        let rows_alone = source.replace("id.x) * params.x_stride_1", "id.x)");
        let rows_alone = Kernel::wgsl("rows_alone", &rows_alone)?
            .strided()
            .shape("out", |inputs: &[&Shape]| Ok(inputs[0].clone()))
            .twin(|call| {
                let x = call.input::<f32>("x")?.iter();
                let out = call.output::<f32>("out")?.iter_mut();
                out.zip(x).for_each(|(out, x)| *out = -x);
                Ok(())
            })?;
        is_refused(check(&rows_alone), &["by its twin"]);
    }
    let cube = Tensor::ones(context.device(), [2, 2, 2], DType::F32)?;
    let row = Tensor::ones(context.device(), [2], DType::F32)?;
    let launch = |x| minus.launch().input("x", x).invocations([2, 2, 1]).run();
    is_refused(launch(&cube), &["strides of 2 dimensions", "which has 3"]);
    is_refused(launch(&row), &["x_stride_1", "axis 1"]);
    let wide = row.slice(0..1)?.broadcast_to([1, 1 << 32])?;
    is_refused(launch(&wide), &["x_size_1", "axis 1", "overflows"]);
    // Sizes are those of the operand also where there is none.
    let sizes = source.replace("x[at]", "0.0").replace(
        "if id.x",
        "out[0] = f32(params.x_size_0); out[1] = f32(params.x_size_1);
         out[2] = f32(params.x_offset); out[3] = f32(params.x_stride_0); if id.x",
    );
    let sizes = Kernel::wgsl("sizes", &sizes)?.strided().twin(|call| {
        let sizes = ["x_size_0", "x_size_1", "x_offset"];
        let sizes = sizes.map(|name| call.scalar::<u32>(name));
        let out = call.output::<f32>("out")?;
        for (out, size) in out.iter_mut().zip(sizes) {
            *out = size? as f32;
        }
        out[3] = call.scalar::<i32>("x_stride_0")? as f32;
        Ok(())
    })?;
    for (rows, columns) in [(0, 3), (2, 0), (0, 0)] {
        let none = Tensor::zeros(context.device(), [rows, columns], DType::F32)?;
        let launch = sizes.launch().input("x", &none).output("out", [4]);
        let made = launch.workgroups([1; 3]).run()?;
        same(&made, &[rows as f32, columns as f32, 0.0, 0.0])?;
    }
    Ok(())
}

/// More params than immediates have room for: they become a uniform.
fn many_numbers(context: &Context) -> Result<()> {
    let members: String = (0..40).map(|at| format!("m{at}: vec4<f32>, ")).collect();
    let sum: String = (0..40)
        .map(|at| format!(" + params.m{at}.x * params.m{at}.w"))
        .collect();
    let source = format!(
        "struct Params {{ {members} v: vec3<i32>, last: u32 }}
         /* var<immediate> params */ var<immediate> params: Params;
         @group(0) @binding(0) var<storage, read_write> out: array<f32>;
         @compute @workgroup_size(1) fn main() {{
             out[0] = 0.0{sum};
             out[1] = f32(params.v.z) + f32(params.last);
         }}"
    );
    let many = Kernel::wgsl("many", &source)?.twin(|call| {
        let out = call.output::<f32>("out")?;
        for at in 0..40 {
            let [x, _, _, w] = call.vector::<f32, 4>(&format!("m{at}"))?;
            out[0] += x * w;
        }
        let [_, _, z] = call.vector::<i32, 3>("v")?;
        out[1] = z as f32 + call.scalar::<u32>("last")? as f32;
        Ok(())
    })?;
    let mut launch = many
        .launch()
        .on(context.device())
        .output("out", [2])
        .workgroups([1; 3]);
    for at in 0..40 {
        launch = launch.vector(&format!("m{at}"), [f64::from(at), 9.0, 9.0, 2.0]);
    }
    let made = launch.vector("v", [1, 2, -30]).scalar("last", 7u32).run()?;
    same(&made, &[1560.0f32, -23.0])
}

/// A twin gets its inputs without gaps: of a view that no host holds it gets none, and the program goes on.
fn endless_views(context: &Context) -> Result<()> {
    let source = "
        struct Params { x_offset: u32, x_stride_0: i32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> out: array<f32>;
        @compute @workgroup_size(1) fn main() {
            out[0] = x[i32(params.x_offset) + 7 * params.x_stride_0];
        }";
    let eighth = Kernel::wgsl("eighth", source)?.strided().twin(|call| {
        call.output::<f32>("out")?[0] = call.input::<f32>("x")?[7];
        Ok(())
    })?;
    let x = Tensor::ones(context.device(), 1, DType::F32)?.broadcast_to([1 << 50])?;
    let launch = eighth.launch().input("x", &x).output("out", 1);
    match launch.workgroups([1; 3]).run() {
        Ok(made) => {
            assert!(!made.device().is_cpu());
            same(&made, &[1.0f32])
        }
        Err(Error::OutOfMemory(full)) => {
            // Of the CPU device where it is copied there, of the host where its twin gathers it.
            assert!(full.device == "host" || context.is_cpu(), "{full:?}");
            Ok(())
        }
        Err(other) => Err(other),
    }
}

/// Of a fixed length a strided kernel gets the elements that it names, wherever they lie.
fn tables(context: &Context) -> Result<()> {
    let source = "
        struct Params { x_offset: u32, x_stride_0: i32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read> table: array<f32, 100>;
        @group(0) @binding(2) var<storage, read_write> out: array<f32>;
        @compute @workgroup_size(1) fn main() {
            for (var at = 0; at < 4; at++) {
                out[at] = table[u32(x[i32(params.x_offset) + at * params.x_stride_0])];
            }
        }";
    let look_up = Kernel::wgsl("look_up", source)?.strided().twin(|call| {
        let (x, table) = (call.input::<f32>("x")?, call.input::<f32>("table")?);
        let out = call.output::<f32>("out")?.iter_mut();
        out.zip(x).for_each(|(out, &x)| *out = table[x as usize]);
        Ok(())
    })?;
    let device = context.device();
    let numbers: Vec<f32> = (0..300).map(|at| at as f32).collect();
    let numbers = Tensor::from_slice(device, &numbers, [300])?;
    let x = Tensor::from_slice(device, &[0.0f32, 3.0, 50.0, 99.0], [4])?.flip(&[0])?;
    let one = Tensor::full(device, 1, 0.5, DType::F32)?;
    for (table, want) in [
        (numbers.slice(..100)?, [99.0f32, 50.0, 3.0, 0.0]),
        (numbers.slice(150..250)?, [249.0, 200.0, 153.0, 150.0]),
        (numbers.slice(..100)?.flip(&[0])?, [0.0, 49.0, 96.0, 99.0]),
        (one.broadcast_to([100])?, [0.5; 4]),
    ] {
        let launch = look_up.launch().input("x", &x).input("table", &table);
        same(&launch.output("out", 4).workgroups([1; 3]).run()?, &want)?;
    }
    Ok(())
}

/// They are operands like any others: of one expression, of an index and what it names, on another device.
fn outputs_of_several_dtypes(context: &Context) -> Result<()> {
    let source = "
        @group(0) @binding(0) var<storage, read_write> value: array<f32>;
        @group(0) @binding(1) var<storage, read_write> index: array<i32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            value[id.x] = f32(id.x) + 0.5;
            index[id.x] = -i32(id.x) - 1;
        }";
    let pairs = Kernel::wgsl("pairs", source)?.twin(|call| {
        let values = call.output::<f32>("value")?.iter_mut();
        for (at, (value, index)) in values.zip(call.output::<i32>("index")?).enumerate() {
            (*value, *index) = (at as f32 + 0.5, -(at as i32) - 1);
        }
        Ok(())
    })?;
    let launch = pairs.launch().on(context.device());
    let launch = launch.output("value", 64).output("index", 64);
    let made = launch.clone().workgroups([1; 3]).run_all()?;
    let [value, index] = &made[..] else {
        panic!("{} outputs", made.len());
    };
    let product = || fused(|e| e.input(value) * e.input(index).cast(DType::F32));
    let want: Vec<f32> = (0..64)
        .map(|at| (at as f32 + 0.5) * -(at as f32 + 1.0))
        .collect();
    same(&product()?, &want)?;
    same(&Device::cpu().scope(product)?, &want)?;
    // Each meets the one as far from the other end.
    let sums = || value.scatter_add(0, index, value);
    same(&sums()?, &[64.0f32; 64])?;
    same(&Device::cpu().scope(sums)?, &[64.0f32; 64])?;

    // One output is asked for: that there are two is told before anything runs.
    let ran = Arc::new(AtomicBool::new(false));
    let noted = ran.clone();
    let noting = Kernel::wgsl("noting", source)?.twin(move |_| {
        noted.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let launch = noting.launch().on(&Device::cpu());
    let launch = launch.output("value", 64).output("index", 64);
    is_refused(launch.workgroups([1; 3]).run(), &["2 outputs", "run_all()"]);
    assert!(!ran.load(Ordering::Relaxed));

    // Equal layouts, counted in elements of different sizes.
    let source = "enable f16;
        @group(0) @binding(0) var<storage, read_write> a: array<f32>;
        @group(0) @binding(1) var<storage, read_write> b: array<f16>;
        @group(0) @binding(2) var<storage, read_write> c: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            a[id.x] = 1.0;
            b[id.x] = 2.0h;
            c[id.x] = 3.0;
        }";
    let triples = Kernel::wgsl("triples", source)?.twin(|call| {
        call.output::<f32>("a")?.fill(1.0);
        call.output::<f16>("b")?.fill(f16::from_f32(2.0));
        call.output::<f32>("c")?.fill(3.0);
        Ok(())
    })?;
    let launch = triples.launch().on(context.device());
    let launch = launch.output("a", 64).output("b", 64).output("c", 64);
    let made = launch.workgroups([1; 3]).run_all()?;
    let sum = fused(|e| e.input(&made[1]).cast(DType::F32) + e.input(&made[2]))?;
    same(&sum, &[5.0f32; 64])?;
    same(&made[0], &[1.0f32; 64])
}

fn no_elements(context: &Context) -> Result<()> {
    let x = Tensor::zeros(context.device(), [0, 3], DType::F32)?;
    let made = saxpy()?
        .launch()
        .input("x", &x)
        .input("y", &x)
        .scalar("a", 1)
        .run()?;
    assert_eq!(made.shape().dims(), [0, 3]);
    let x = Tensor::zeros(context.device(), 0, DType::U32)?;
    let launch = histogram()?;
    let launch = launch
        .launch()
        .input("x", &x)
        .output("counts", 3)
        .scalar("bins", 3);
    let made = launch.workgroups([1; 3]).run_all()?;
    same(&made[0], &[0u32; 3])?;
    assert_eq!(made[1].shape().dims(), [0, 2]);
    Ok(())
}

fn without_inputs(context: &Context) -> Result<()> {
    let source = "
        struct Params { out_length: u32, scale: i32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read_write> out: array<i32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.out_length { out[id.x] = params.scale * i32(id.x); }
        }";
    let ramp = Kernel::wgsl("ramp", source)?.twin(|call| {
        let scale = call.scalar::<i32>("scale")?;
        for (at, out) in call.output::<i32>("out")?.iter_mut().enumerate() {
            *out = scale * at as i32;
        }
        Ok(())
    })?;
    let launch = ramp
        .launch()
        .output("out", [5, 20])
        .scalar("scale", -2)
        .invocations([100, 1, 1]);
    is_refused(launch.run(), &["on(&device)"]);
    let want: Vec<i32> = (0..100).map(|at| -2 * at).collect();
    same(&launch.on(context.device()).run()?, &want)
}

fn templates(context: &Context) -> Result<()> {
    let source = "{{ enables }}
        struct Params { x_length: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read> x: array<{{ element }}>;
        @group(0) @binding(1) var<storage, read_write> out: array<{{ element }}>;
        @compute @workgroup_size({{ size }}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < params.x_length {
                {% for i in range(3) %} out[id.x] += x[id.x]; {% endfor %}
            }
        }";
    for dtype in [DType::F32, DType::F16, DType::F64, DType::I32, DType::U32] {
        let kernel = Kernel::template(
            "thrice",
            source,
            &[("element", dtype.into()), ("size", 16.into())],
        )?
        .elementwise()
        .twin(move |call| match dtype {
            DType::F32 => thrice::<f32>(call),
            DType::F16 => thrice::<orlop::f16>(call),
            DType::F64 => thrice::<f64>(call),
            DType::I32 => thrice::<i32>(call),
            _ => thrice::<u32>(call),
        })?;
        let x = Tensor::from_slice(context.device(), &[1.0f32, 2.0, 5.0], [3])?.cast(dtype)?;
        let made = kernel.launch().input("x", &x).run()?;
        assert_eq!(made.dtype(), dtype);
        same(&made.cast(DType::F32)?, &[3.0f32, 6.0, 15.0])?;
    }
    let counted = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(1) fn main() {
            {% for i in range(n) %}out[{{ i }}] = {% if n > 3 %}{{ n + 1 }}u{% else %}7u{% endif %};{% endfor %}
        }";
    let refused = Kernel::template("counted", counted, &[("n", "2".into())]);
    assert!(
        matches!(refused, Err(Error::KernelCompile(_))),
        "text is no number"
    );
    let counted = Kernel::template("counted", counted, &[("n", 2.into())])?.twin(|call| {
        call.output::<u32>("out")?.fill(7);
        Ok(())
    })?;
    let launch = counted.launch().on(context.device()).output("out", 2);
    same(&launch.workgroups([1; 3]).run()?, &[7u32, 7])?;
    let wrong = Kernel::template(
        "wrong",
        "{{ element }} {{ missing }}",
        &[("element", 1.into())],
    );
    assert!(matches!(wrong, Err(Error::KernelCompile(_))), "{wrong:?}");
    // What is long and not deep.
    let simple = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(1) fn main() { out[0] = 1u; }";
    let numbers = "-1.5, ".repeat(1000);
    let ifs = "{% if n > 3 %}{% elif n %}{% endif %}".repeat(300);
    let sets = "{% set a = '}}' %}".repeat(500) + &"{% set (a, b) = (n, '}}') %}".repeat(100);
    let tables =
        "{% for (i, j) in [(1, 2), (n, 3)] %}{% set taps = [i, j] %}{% endfor %}".repeat(20);
    let none = "{% for i in range(9223372036854775800, 9223372036854775807, 100) %}{% endfor %}";
    let long = format!(
        "{{# {{% #}}{{% set taps = [{numbers}2] %}}{ifs}{sets}{tables}{none}// {{π\n{{% raw %}}// {{{{\n{{% endraw %}}{simple}"
    );
    drop(Kernel::template("long", &long, &[("n", 2.into())])?);
    // Templates that would take the stack, or for ever.
    let loops = "{% for i in range(2000) %}".repeat(3);
    let lists = format!("{}x{}", "[".repeat(60), "]".repeat(60));
    let chained: String = (0..400)
        .map(|at| format!(", a{} = [a{at}]", at + 1))
        .collect();
    let deep = format!("{{{{ n{} }}}}", "+n".repeat(30_000));
    for (hostile, part) in [
        (format!("{{{{ n{} }}}}", "+n".repeat(30_000)), "operators"),
        (format!("\n{{{{ {}n }}}}", "-".repeat(30_000)), "line 2"),
        (format!("{{{{ {}n }}}}", "not ".repeat(10_000)), "operators"),
        (format!("{{{{ n{} }}}}", ".x".repeat(30_000)), "operators"),
        (format!("{{{{ n{} }}}}", "[0]".repeat(20_000)), "operators"),
        (format!("{{{{ n{} }}}}", "()".repeat(30_000)), "operators"),
        (
            format!("{{{{ n{} }}}}", "(1, 2)".repeat(10_000)),
            "operators",
        ),
        (
            format!("{{{{ ''{} }}}}", "or''".repeat(12_000)),
            "operators",
        ),
        (
            format!("{{{{ f(1, 2){} }}}}", "+f(1, 2)".repeat(7000)),
            "operators",
        ),
        // What is in quotes or brackets ends nothing.
        (format!("{{{{ \"}}}}{{#\" }}}}{deep}"), "operators"),
        (format!("{{{{ '\\'}}}}{{% raw %}}' }}}}{deep}"), "operators"),
        (format!("{{{{ '}}}}{{% elif %}}' }}}}{deep}"), "operators"),
        (
            format!("{{{{ {{'a': {{}}}}{} }}}}", "+n".repeat(30_000)),
            "operators",
        ),
        (
            format!("{{{{ n{} }}}}", ("+n".repeat(100) + "+\",)\"").repeat(300)),
            "operators",
        ),
        (
            format!("{{% raw %}} endraw {{# {{% endraw %}}{deep}"),
            "operators",
        ),
        (
            format!("{{% raw %}}{{% endraw --%}}{{# {{% endraw %}}{deep}"),
            "operators",
        ),
        (
            format!("{{% raw %}}{{% endraw\u{a0}%}}{{# {{% endraw %}}{deep}"),
            "operators",
        ),
        (format!("{{{{ n{} }}}}", ".1".repeat(30_000)), "operators"),
        (format!("{{{{ n{} }}}}", ".a1".repeat(20_000)), "operators"),
        ("{% if n %}".repeat(6000), "blocks"),
        ("{% if n %}{% set x %}{% endset %}".repeat(1900), "blocks"),
        ("{% set x | upper %}".repeat(3000), "blocks"),
        (
            format!("{{% if n %}}{}{{% endif %}}", "{%- elif n %}".repeat(4000)),
            "elif",
        ),
        (
            format!("{loops}{{% endfor %}}{{% endfor %}}{{% endfor %}}"),
            "fuel",
        ),
        (
            "{% for i in range(65536) %}xx{% endfor %}".into(),
            "65536 bytes",
        ),
        // Values that nest, whose printing or dropping would take the stack.
        (
            format!("{{% set x = 1 %}}{}{{{{ x }}}}", format!("{{% set x = {lists} %}}").repeat(450)),
            "nest too deeply",
        ),
        (
            format!("{{% set x = [1] %}}{}", "{% set x = x[:] %}".repeat(3000)),
            "nest too deeply",
        ),
        (
            format!("{{% set x = 1 %}}{}", "{% set x = x, %}".repeat(3000)),
            "nest too deeply",
        ),
        (
            format!("{{% set x = 1 %}}{}", "{% set x = loop.cycle(a=x) %}".repeat(2000)),
            "nest too deeply",
        ),
        (
            format!("{{% with a0 = 1{chained} %}}{{% endwith %}}"),
            "nest too deeply",
        ),
        (
            format!("{{% macro f(x) %}}{{{{ f({lists}) }}}}{{{{ f({lists}) }}}}{{% endmacro %}}{{{{ f(1) }}}}"),
            "nest too deeply",
        ),
        (
            format!("{{% for x in [1] recursive %}}{{{{ loop({lists}) }}}}{{% endfor %}}"),
            "nest too deeply",
        ),
        (
            "{% set ns = namespace(x=1) %}{% for i in range(60000) %}{% set ns.x = [ns.x] %}{% endfor %}".into(),
            "namespace is unknown",
        ),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(), "recursion"),
        // What would take gigabytes.
        ("{{ range(65537) | length }}".into(), "65,536 items"),
        ("{% for i in range(20) %}{% set a = range(65000) %}{% endfor %}".into(), "1,048,576"),
        ("{% for i in range(20) %}{{ ('x' * 60000) | split('') | length }}{% endfor %}".into(), "1,048,576"),
        ("{% set a = range(65000) %}{% for i in range(20) %}{% set b = a | reverse %}{% endfor %}".into(), "1,048,576"),
        // Of nothing, backwards; and what minijinja has no answer for.
        ("{{ ''[::-1] }}".into(), "one entry point"),
        ("{% for d in range(n - 3)[::-1] %}{% endfor %}".into(), "one entry point"),
        ("{% for d in range(n) %}{{ loop.cycle() }}{% endfor %}".into(), "minijinja panicked"),
        ("x".repeat(100_000), "100000 bytes"),
    ] {
        let refused = Kernel::template("hostile", &hostile, &[("n", 3.into())]);
        let refused = refused.map(drop).expect_err("too much").to_string();
        assert!(refused.contains(part), "{part}: {refused}");
    }
    Ok(())
}

fn thrice<T: orlop::Element + bytemuck::Pod + std::ops::Add<Output = T>>(
    call: &KernelCall<'_>,
) -> Result<()> {
    for (out, &x) in call
        .output::<T>("out")?
        .iter_mut()
        .zip(call.input::<T>("x")?)
    {
        *out = x + x + x;
    }
    Ok(())
}

/// A twin that does something else is found out.
fn check_compares(context: &Context) -> Result<()> {
    let device = context.device();
    let within = Tolerance::new(1e-6, 1e-6);
    let shapes: [(&str, &[usize]); 2] = [("x", &[3, 777]), ("y", &[3, 777])];
    let wrong = Kernel::wgsl("wrong", SAXPY)?.elementwise().twin(|call| {
        call.output::<f32>("out")?.copy_from_slice(call.input("y")?);
        Ok(())
    })?;
    let right = saxpy()?.check(device, &shapes, within, |launch| launch.scalar("a", 0.5));
    let found = wrong.check(device, &shapes, within, |launch| launch.scalar("a", 0.5));
    if context.is_cpu() || context.adapter.info.backend == "Gl" {
        is_unsupported(right, &["saxpy", "twin"]);
        is_unsupported(found, &["wrong", "twin"]);
        return Ok(());
    }
    right?;
    is_refused(found, &["`out`[0]", "by its twin"]);
    // Nothing finite is near infinity.
    let endless = Kernel::wgsl("endless", SAXPY)?.elementwise().twin(|call| {
        call.output::<f32>("out")?.fill(f32::INFINITY);
        Ok(())
    })?;
    let found = endless.check(device, &shapes, within, |launch| launch.scalar("a", 0.5));
    is_refused(found, &["`out`[0]", "inf by its twin"]);
    // A scope makes neither of both the other.
    for scope in [device, &Device::cpu()] {
        let found =
            scope.scope(|| wrong.check(device, &shapes, within, |launch| launch.scalar("a", 0.5)));
        is_refused(found, &["`out`[0]", "by its twin"]);
    }
    Ok(())
}

fn is_refused<T: std::fmt::Debug>(result: Result<T>, parts: &[&str]) {
    let text = match result {
        Err(Error::InvalidArgument(error)) => error.to_string(),
        Err(Error::ShapeMismatch(error)) => error.to_string(),
        Err(Error::DTypeMismatch(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Everything wrong with a launch is said before anything is allocated or runs.
fn launches_refused(context: &Context) -> Result<()> {
    let device = context.open();
    let (saxpy, histogram) = (saxpy()?, histogram()?);
    let x = Tensor::ones(&device, [4], DType::F32)?;
    let (long, whole) = (Tensor::ones(&device, [5], DType::F32)?, x.cast(DType::U32)?);
    let before = device.memory();
    let launch = || saxpy.launch().input("x", &x).input("y", &x).scalar("a", 1);
    let only = || saxpy.launch().input("x", &x).scalar("a", 1);
    is_refused(only().run(), &["saxpy", "input `y`"]);
    is_refused(launch().input("z", &x).run(), &["no input `z`"]);
    is_refused(launch().input("x", &x).run(), &["`x`", "twice"]);
    is_refused(launch().scalar("a", 1).run(), &["`a`", "twice"]);
    is_refused(
        launch().scalar("x_length", 1).run(),
        &["`x_length`", "given by orlop", "`x`"],
    );
    is_refused(launch().scalar("b", 1).run(), &["no scalar `b`"]);
    is_refused(
        saxpy.launch().input("x", &x).input("y", &x).run(),
        &["number `a`"],
    );
    is_refused(
        only().input("y", &whole).run(),
        &["`y` is u32", "cast(DType::F32)"],
    );
    let mistaken = only().input("y", &whole).run();
    assert!(
        matches!(mistaken, Err(Error::DTypeMismatch(_))),
        "{mistaken:?}"
    );
    is_refused(only().input("y", &long).run(), &["[4]", "[5]"]);
    // A device that is named beside the inputs' is no hint: it is that one, or an error that names both.
    let other = Device::select("cpu")?;
    let both = [device.to_string(), other.to_string()];
    let both = [both[0].as_str(), both[1].as_str(), "on("];
    is_refused(launch().on(&other).run(), &both);
    is_refused(other.scope(|| launch().on(&device).run()), &both);
    same(&launch().on(&device).run()?, &[2.0f32; 4])?;
    is_refused(launch().output("x", 4).run(), &["no output `x`"]);
    is_refused(launch().output("out", 5).run(), &["[4]", "[5]"]);
    is_refused(launch().output("out", [2, 2]).run(), &["[2, 2]"]);
    for absurd in [usize::MAX / 4, usize::MAX / 8] {
        let counts = histogram
            .launch()
            .input("x", &whole)
            .output("counts", absurd);
        is_refused(
            counts.scalar("bins", 3).workgroups([1; 3]).run_all(),
            &["counts"],
        );
    }
    is_refused(launch().workgroups([1; 3]).run(), &["grid"]);
    let two = saxpy
        .launch()
        .input("x", &x)
        .input("y", &x)
        .vector("a", [1, 2]);
    is_refused(two.run(), &["`a` has 1 numbers"]);
    let launch = || histogram.launch().input("x", &whole);
    is_refused(
        launch().output("counts", 3).scalar("bins", 3).run_all(),
        &["grid"],
    );
    is_refused(
        launch().scalar("bins", 3).workgroups([1; 3]).run_all(),
        &["shape", "`counts`"],
    );
    let half = launch()
        .output("counts", 3)
        .scalar("bins", 2.5)
        .workgroups([1; 3]);
    is_refused(half.run_all(), &["`bins` is u32", "2.5"]);
    let far = launch()
        .output("counts", 3)
        .scalar("bins", 3)
        .invocations([1 << 40, 1, 1]);
    is_refused(far.run_all(), &["overflows"]);
    let absurd = launch()
        .output("counts", [usize::MAX, 3])
        .scalar("bins", 3)
        .workgroups([1; 3]);
    assert!(absurd.run_all().is_err());
    // Each could be, all together overflow.
    let name = |at: usize| format!("out{at}");
    let many: String = (0..17)
        .map(|at| {
            format!(
                "@group(0) @binding({at}) var<storage, read_write> {}: array<f32>;\n",
                name(at)
            )
        })
        .collect();
    let many = format!("{many}@compute @workgroup_size(1) fn main() {{ out0[0] = 1.0; }}");
    let many = Kernel::wgsl("many", &many)?.twin(|_| Ok(()))?;
    let names: Vec<String> = (0..17).map(name).collect();
    let launch = names
        .iter()
        .enumerate()
        .fold(many.launch().on(&device), |launch, (at, name)| {
            launch.output(name, if at < 16 { 1usize << 58 } else { 4 })
        });
    is_refused(launch.workgroups([1; 3]).run_all(), &["outputs"]);
    let fixed = SAXPY.replace("x: array<f32>", "x: array<f32, 1000>");
    let fixed = Kernel::wgsl("fixed", &fixed)?.twin(|_| Ok(()))?;
    let short = fixed.launch().input("x", &x).input("y", &x).scalar("a", 1);
    let short = short.output("out", 4).workgroups([1; 3]);
    is_refused(short.run(), &["`x`", "4000"]);
    // Padding is nobody's.
    let fixed = SAXPY.replace("x: array<f32>", "x: array<f32, 100>");
    let fixed = Kernel::wgsl("fixed", &fixed)?.twin(|_| Ok(()))?;
    let most = Tensor::ones(&device, [99], DType::F32)?;
    let short = fixed
        .launch()
        .input("x", &most)
        .input("y", &x)
        .scalar("a", 1);
    is_refused(
        short.output("out", 4).workgroups([1; 3]).run(),
        &["`x`", "400"],
    );
    drop(most);
    assert_eq!(device.memory().allocated, before.allocated);
    same(&x, &[1.0f32; 4])
}

/// Dtypes and limits that the device has not: the twin runs and it is said, or an error.
fn what_a_device_lacks(context: &Context) -> Result<()> {
    let large = SAXPY.replace("workgroup_size(64)", "workgroup_size(16384)");
    let huge = "var<workgroup> a: array<f32, 0x10000000>; var<workgroup> b: array<f32, 0x10000000>;
        var<workgroup> c: array<f32, 0x10000000>; var<workgroup> d: array<f32, 0x10000000>; struct Params";
    let huge = SAXPY.replace("struct Params", huge);
    let doubles = SAXPY
        .replace("array<f32>", "array<f64>")
        .replace("0.5 * doubled() * params.a *", "f64(params.a) *");
    let hidden = SAXPY.replace("0.5 * doubled()", "f32(f64(0.5) * f64(doubled()))");
    let twin = |call: &KernelCall<'_>| {
        let (x, y) = (call.input::<f32>("x")?, call.input::<f32>("y")?);
        for ((out, x), y) in call.output("out")?.iter_mut().zip(x).zip(y) {
            *out = x + y;
        }
        Ok(())
    };
    let large = Kernel::wgsl("large", &large)?.elementwise().twin(twin)?;
    let huge = Kernel::wgsl("huge", &huge)?.elementwise().twin(twin)?;
    let doubles = Kernel::wgsl("doubles", &doubles)?
        .elementwise()
        .twin(|call| {
            call.output::<f64>("out")?.copy_from_slice(call.input("x")?);
            Ok(())
        })?;
    let values = [1.0f32, 2.0];
    let soft = open(context, Placement::Soft)?;
    let x = Tensor::from_slice(&soft, &values, [2])?;
    let made = large
        .launch()
        .input("x", &x)
        .input("y", &x)
        .scalar("a", 1)
        .run()?;
    assert_eq!(made.device(), &soft);
    same(&made, &[2.0f32, 4.0])?;
    if context.is_cpu() {
        return Ok(());
    }
    assert_eq!(last(&soft).op, "large");
    huge.launch()
        .input("x", &x)
        .input("y", &x)
        .scalar("a", 1)
        .run()?;
    assert_eq!(last(&soft).op, "huge");
    let strict = open(context, Placement::Strict)?;
    let x = Tensor::from_slice(&strict, &values, [2])?;
    let refused = large
        .launch()
        .input("x", &x)
        .input("y", &x)
        .scalar("a", 1)
        .run();
    is_unsupported(refused, &["large"]);
    let hidden = Kernel::wgsl("hidden", &hidden)?.elementwise().twin(twin)?;
    let x = Tensor::from_slice(&soft, &values, [2])?;
    let made = hidden
        .launch()
        .input("x", &x)
        .input("y", &x)
        .scalar("a", 1)
        .run()?;
    same(&made, &[2.0f32, 4.0])?;
    if !soft.capabilities().f64 {
        assert_eq!(last(&soft).op, "hidden");
        let x = Tensor::ones(&soft, [2], DType::F64)?;
        assert!(x.device().is_cpu());
        let made = doubles
            .launch()
            .input("x", &x)
            .input("y", &x)
            .scalar("a", 1)
            .run()?;
        same(&made, &[1.0f64; 2])?;
        let device = doubles.check(
            &soft,
            &[("x", &[2]), ("y", &[2])],
            Tolerance::EXACT,
            |launch| launch.scalar("a", 1),
        );
        is_unsupported(device, &["f64"]);
        // One of several outputs.
        let source = "@group(0) @binding(0) var<storage, read_write> wide: array<f64>;
            @group(0) @binding(1) var<storage, read_write> narrow: array<f32>;
            @compute @workgroup_size(1) fn main() { wide[0] = 1.5lf; narrow[0] = 2.5; }";
        let pair = Kernel::wgsl("pair", source)?.twin(|call| {
            call.output::<f64>("wide")?.fill(1.5);
            call.output::<f32>("narrow")?.fill(2.5);
            Ok(())
        })?;
        let launch = pair
            .launch()
            .on(&soft)
            .output("wide", 1)
            .output("narrow", 1);
        let made = launch.workgroups([1; 3]).run_all()?;
        assert!(made.iter().all(|made| made.device().is_cpu()));
        same(&made[0], &[1.5f64])?;
        same(&made[1], &[2.5f32])?;
    }
    Ok(())
}

/// Not elementwise, and above the largest binding: the twin.
fn beyond_a_binding(context: &Context) -> Result<()> {
    if context.is_cpu() {
        return Ok(());
    }
    let device = context.builder().max_binding_bytes(4 << 10).build()?;
    let histogram = histogram()?;
    // Also where it would be above it only after it came from the CPU.
    for home in [&device, &Device::cpu()] {
        let x = Tensor::arange(home, 0, 5000, 1, DType::U32)?;
        let launch = histogram
            .launch()
            .on(&device)
            .input("x", &x)
            .output("counts", 10)
            .scalar("bins", 10);
        // What it names alone moves no input: that is a scope's.
        let made = device.scope(|| launch.invocations([5000, 1, 1]).run_all())?;
        same(&made[0], &[500u32; 10])?;
        let event = last(&device);
        assert_eq!(event.op, "histogram");
        let lacks_checks = !device.capabilities().bounds_checks;
        assert!(
            event.reason.contains("largest binding") || lacks_checks,
            "{event:?}"
        );
    }
    Ok(())
}

/// What lies around a hostile kernel's operands stays as it is, on the device and in the statistics.
fn hostile(context: &Context) -> Result<()> {
    let device = context.open();
    let writes = "
        struct Params { far: u32, count: u32 }
        var<immediate> params: Params;
        var<workgroup> scratch: array<u32, 16>;
        @group(0) @binding(0) var<storage, read> x: array<u32>;
        @group(0) @binding(1) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(16) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            for (var at = 0u; at < params.count; at++) {
                let index = (id.x + at * 16u) * params.far;
                out[index] = 0xdeadbeefu + x[index + 1u] * 0u;
                out[0u - index - 1u] = 0xdeadbeefu;
                scratch[index] = x[0u - index];
            }
        }";
    let hostile = Kernel::wgsl("hostile", writes)?.twin(|_| Ok(()))?;
    let values: Vec<u32> = (0..1000).collect();
    let around: Vec<Tensor> = (0..6)
        .map(|_| Tensor::from_slice(&device, &values, [1000]))
        .collect::<Result<_>>()?;
    // The outputs go into the gaps between them.
    let gaps: Vec<Tensor> = (0..6)
        .map(|_| Tensor::zeros(&device, [64], DType::U32))
        .collect::<Result<_>>()?;
    let kept: Vec<Tensor> = (0..6)
        .map(|_| Tensor::from_slice(&device, &values, [1000]))
        .collect::<Result<_>>()?;
    drop(gaps);
    for far in [1u32, 3, 63, 64, 65, 1000, 1 << 20, 1 << 29, u32::MAX] {
        let launch = hostile.launch().input("x", &around[2]).output("out", [64]);
        let launch = launch.scalar("far", far).scalar("count", 100u32);
        launch.workgroups([4, 1, 1]).run()?.to_vec::<u32>()?;
    }
    for tensor in around.iter().chain(&kept) {
        same(tensor, &values)?;
    }
    // Windows of one storage too: an input is for reading.
    let part = around[0].slice(64..128)?;
    let launch = hostile.launch().input("x", &part).output("out", [64]);
    launch
        .scalar("far", 1u32)
        .scalar("count", 100u32)
        .workgroups([1; 3])
        .run()?;
    same(&around[0], &values)?;
    // Loops end where the adapter bounds them: lavapipe did so once, and hardware loses the device.
    if context.adapter.name == "lavapipe" && context.adapter.info.driver.contains("Mesa 22.") {
        let endless = "
            @group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @compute @workgroup_size(1) fn main() { loop { out[0] += 1u; } }";
        let endless = Kernel::wgsl("endless", endless)?.twin(|_| Ok(()))?;
        let launch = endless.launch().on(&device).output("out", [1]);
        let turns = launch.workgroups([1; 3]).run()?.to_vec::<u32>()?;
        // Its twin turns no loop.
        assert!(turns[0] > 1000, "{turns:?} turns");
    }
    same(&around[5], &values)
}

/// The output, and nothing else.
fn memory(context: &Context) -> Result<()> {
    let device = context.open();
    let x = Tensor::ones(&device, [1000], DType::F32)?;
    let saxpy = saxpy()?;
    let run = || {
        saxpy
            .launch()
            .input("x", &x)
            .input("y", &x)
            .scalar("a", 1)
            .run()
    };
    drop(run()?);
    device.reset_peaks();
    let y = Tensor::ones(&device, [1000], DType::F32)?;
    let before = device.memory().allocated;
    device.reset_peaks();
    let made = saxpy
        .launch()
        .input("x", &x)
        .input("y", &y)
        .scalar("a", 1)
        .run()?;
    let after = device.memory();
    assert_eq!(after.allocated - before, 4096);
    let moved = context.adapter.info.backend == "Gl";
    assert!(
        moved || after.peak_allocated == after.allocated,
        "{}",
        device.memory_summary()
    );
    drop(made);
    assert_eq!(device.memory().allocated, before);
    Ok(())
}

/// The memory of a tensor that is there, of views too: what lies around them stays.
fn run_into(context: &Context) -> Result<()> {
    let source = SAXPY
        .replace(
            "binding(2) var<storage, read_write> out: array<f32>;",
            "binding(1) var<storage, read_write> y: array<f32>;",
        )
        .replace(
            "@group(0) @binding(1) var<storage, read> y: array<f32>;",
            "",
        )
        .replace("out[id.x] =", "y[id.x] =");
    let grows = Kernel::wgsl("grows", &source)?.elementwise().twin(|call| {
        let (a, x) = (call.scalar::<f32>("a")?, call.input::<f32>("x")?);
        for (y, x) in call.output::<f32>("y")?.iter_mut().zip(x) {
            *y += a * x;
        }
        Ok(())
    })?;
    let device = context.open();
    cases(context.times(30), |rng| {
        let (rows, columns) = (rng.between(1, 70), rng.between(1, 130));
        let values = whole(rng, rows * columns);
        let base = Tensor::from_slice(&device, &values, [rows, columns])?;
        let (first, end) = (rng.below(rows), rows);
        let (left, right) = (rng.below(columns) * rng.below(2), columns);
        let view = base.slice((first..end, left..right))?;
        let (view, turned) = match rng.one_in(3) {
            true => (view.transpose(0, 1)?, true),
            false => (view, false),
        };
        let xs = whole(rng, view.elements());
        let x = match rng.one_in(4) {
            true => view.clone(),
            false => Tensor::from_slice(&device, &xs, view.shape())?,
        };
        let xs = x.to_vec::<f32>()?;
        grows
            .launch()
            .input("x", &x)
            .scalar("a", 3)
            .run_into(&view)?;
        let mut want = values;
        for (at, x) in xs.iter().enumerate() {
            let (high, wide) = (end - first, right - left);
            let (row, column) = match turned {
                true => (at % high, at / high),
                false => (at / wide, at % wide),
            };
            want[(first + row) * columns + left + column] += 3.0 * x;
        }
        same(&base, &want)
    })?;
    // From the middle of a storage, to the end of what a window can begin with or short of it.
    let ones = Tensor::ones(&device, [200], DType::F32)?;
    for (start, end) in [(64, 128), (64, 100), (0, 100), (3, 70)] {
        let values: Vec<f32> = (0..200).map(|at| at as f32).collect();
        let base = Tensor::from_slice(&device, &values, values.len())?;
        let launch = grows.launch().input("x", &ones.slice(..end - start)?);
        launch.scalar("a", 1).run_into(&base.slice(start..end)?)?;
        let grown = |at: usize| f32::from(u8::from((start..end).contains(&at)));
        let want: Vec<f32> = (0..200).map(|at| values[at] + grown(at)).collect();
        same(&base, &want)?;
    }
    // What a kernel writes beyond a view goes nowhere: not to its neighbours in the last words of the storage either.
    let strays = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = 7.0; }";
    let strays = Kernel::wgsl("strays", strays)?.elementwise().twin(|call| {
        call.output::<f32>("y")?.fill(7.0);
        Ok(())
    })?;
    cases(context.times(30), |rng| {
        let size = rng.between(1, 1100);
        let first = (64 * rng.below(size / 64 + 1)).min(size - 1);
        let end = rng.between(first + 1, size);
        let base = Tensor::zeros(&device, size, DType::F32)?;
        strays.launch().run_into(&base.slice(first..end)?)?;
        let want: Vec<f32> = (0..size)
            .map(|at| if (first..end).contains(&at) { 7.0 } else { 0.0 })
            .collect();
        same(&base, &want)
    })?;
    // Of the tensor's own memory, and no more.
    let (x, y) = (
        Tensor::ones(&device, [1000], DType::F32)?,
        Tensor::ones(&device, [1000], DType::F32)?,
    );
    let launch = || grows.launch().input("x", &x).scalar("a", 1);
    launch().run_into(&y)?;
    same(&y, &[2.0f32; 1000])?;
    let before = device.memory().allocated;
    device.reset_peaks();
    launch().run_into(&y)?;
    device.synchronize()?;
    let moved = context.adapter.info.backend == "Gl";
    assert!(moved || device.memory().peak_allocated == before);
    let twice = y.slice(0..1)?.broadcast_to([1000])?;
    is_refused(launch().run_into(&twice), &["several places"]);
    is_refused(launch().run_into(&y.slice(1..1000)?), &["[1000]", "[999]"]);
    let whole = y.cast(DType::I32)?;
    is_refused(
        launch().run_into(&whole),
        &["f32", "i32", "cannot be written into"],
    );
    let mistaken = launch().run_into(&whole);
    assert!(
        matches!(mistaken, Err(Error::DTypeMismatch(_))),
        "{mistaken:?}"
    );
    let (here, other) = (device.to_string(), Device::select("cpu")?);
    is_refused(
        launch().on(&other).run_into(&y),
        &[here.as_str(), other.to_string().as_str()],
    );
    let nothing = Tensor::zeros(&device, [1000], DType::F32)?;
    launch().on(&device).run_into(&nothing)?;
    drop((whole, nothing));
    // Before devices that do not go together.
    let strict = open(context, Placement::Strict)?;
    let elsewhere = Tensor::ones(&Device::select("cpu")?, [1000], DType::F32)?;
    let launch = || grows.launch().input("x", &elsewhere).scalar("a", 1);
    let written = Tensor::ones(&strict, [1000], DType::F32)?;
    let whole = written.cast(DType::I32)?;
    is_refused(launch().run_into(&whole), &["f32", "i32"]);
    let refused = launch().run_into(&written);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    let histogram = histogram()?;
    let counts = histogram
        .launch()
        .input("x", &y.cast(DType::U32)?)
        .scalar("bins", 3);
    is_refused(counts.workgroups([1; 3]).run_into(&y), &["several outputs"]);
    same(&y, &[3.0f32; 1000])
}

/// What a kernel must be, with the line and a caret where naga found it.
fn sources_refused() -> Result<()> {
    let refused = |source: &str, parts: &[&str]| match Kernel::wgsl("broken", source) {
        Err(Error::KernelCompile(error)) => {
            let text = error.to_string();
            for part in parts.iter().chain(&["broken"]) {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        other => panic!("{other:?}: {source}"),
    };
    let main = "@compute @workgroup_size(1) fn main() {}";
    let out = "@group(0) @binding(0) var<storage, read_write> out: array<f32>;";
    refused("@compute fn main( {", &["^"]);
    let long = "n".repeat(257);
    is_refused(Kernel::wgsl(&long, SAXPY), &["257 bytes"]);
    is_refused(Kernel::template(&long, SAXPY, &[]), &["257 bytes"]);
    drop(Kernel::wgsl(&long[1..], SAXPY)?);
    // Values of which one would be taken without a word.
    let twice = [("size", 8.into()), ("n", 1.into()), ("size", 16.into())];
    is_refused(Kernel::template("twice", SAXPY, &twice), &["`size`"]);
    let own = [("enables", "enable f16;".into())];
    is_refused(Kernel::template("own", SAXPY, &own), &["`enables`"]);
    // What naga panics on.
    for body in [
        "out[0] = f32(i32(f16(70000)));",
        "let v = select(vec3(vec2(1.0, 2.0), 3.0), vec3(4.0, 5.0, 6.0), true); out[0] = v.x;",
        "out[0] = clamp(1.0, inverseSqrt(-1.0), 2.0);",
    ] {
        let main = format!("@compute @workgroup_size(1) fn main() {{ {body} }}");
        refused(&format!("enable f16; {out} {main}"), &["panicked"]);
    }
    // A constant of 2^27 numbers in a kilobyte.
    let arrays = (1..=26).map(|at| format!("const a{at} = array(a{0}, a{0});\n", at - 1));
    let arrays = "const a0 = array(1f, 1f);\n".to_owned() + &arrays.collect::<String>();
    let index = "[0]".repeat(27);
    let body = format!("@compute @workgroup_size(1) fn main() {{ out[0] = a26{index}; }}");
    refused(&format!("{arrays} {out} {body}"), &["line", "too large"]);
    // Params above 256 bytes, which naga cannot count: written to, and of what they have no numbers of.
    let long = (0..80)
        .map(|at| format!("m{at}: u32, "))
        .collect::<String>();
    for (more, body, parts) in [
        ("", "params.m70 = 1u; out[0] = 1.0;", &["^"][..]),
        (
            "more: array<u32, 70>",
            "out[0] = f32(params.more[65]);",
            &["no f32, i32, u32"],
        ),
        (
            "more: array<u32, 1000000000>",
            "out[0] = f32(params.more[65]);",
            &[],
        ),
        ("more: array<u32>", "out[0] = f32(params.more[65]);", &[]),
        ("more: bool", "out[0] = select(1.0, 2.0, params.more);", &[]),
    ] {
        let params = format!("struct Params {{ {long} {more} }} var<immediate> params: Params;");
        let main = format!("@compute @workgroup_size(1) fn main() {{ {body} }}");
        refused(&format!("{params} {out} {main}"), parts);
    }
    refused(
        &SAXPY.replace("params.a *", "params.b *"),
        &["^", "params.b", "9 │"],
    );
    refused(&SAXPY.replace("out[id.x] =", "x[id.x] ="), &["^"]);
    refused(&SAXPY.replace("binding(2)", "binding(3)"), &["@binding(2)"]);
    refused(
        &SAXPY.replace("@group(0) @binding(1)", "@group(1) @binding(1)"),
        &["`y`", "@group(0)"],
    );
    refused(
        &SAXPY
            .replace("y: array<f32>", "y: array<vec3<f32>>")
            .replace("y[id.x]", "y[id.x].x"),
        &["`y`"],
    );
    refused(
        &SAXPY.replace("var<immediate>", "@group(0) @binding(3) var<uniform>"),
        &["`params`", "immediate"],
    );
    refused(&format!("override n: u32; {out} {main}"), &["template"]);
    refused(main, &["no output"]);
    refused(
        &format!("{out} {} {main}", out.replace("out", "more")),
        &["`out` and `more` are both @binding(0)"],
    );
    // What no device is asked for.
    refused(&format!("enable wgpu_int16; {out} {main}"), &["wgpu_int16"]);
    refused(
        &format!(
            "var<workgroup> w: atomic<u64>; {out} {}",
            main.replace("{}", "{ atomicAdd(&w, 1lu); }")
        ),
        &["INT64_ATOMIC"],
    );
    // Recursion of whoever reads it ends at their stack.
    for text in [
        "!".repeat(3290) + "true",
        "true".to_owned() + &" && true".repeat(3440),
    ] {
        let deep = format!("{out} @compute @workgroup_size(1) fn main() {{\n let x = {text}; }}");
        refused(&deep, &["line 2 nests too deeply"]);
    }
    let deep = format!(
        "fn main() {{ if out[0] > 1.0 {{}} {} }}",
        "else if out[0] > 2.0 {} ".repeat(1274)
    );
    refused(
        &format!("{out} {}", main.replace("fn main() {}", &deep)),
        &["too deeply"],
    );
    // Who compiles it would not come to an end.
    let doubled: String = (1..40)
        .map(|at| {
            let before = at - 1;
            format!("fn g{at}(x: f32) -> f32 {{ return g{before}(x) + g{before}(x + 1.0); }}")
        })
        .collect();
    let doubled = format!("fn g0(x: f32) -> f32 {{ return sqrt(x); }} {doubled}");
    refused(
        &format!(
            "{out} {doubled} {}",
            main.replace("{}", "{ out[0] = g39(2.0); }")
        ),
        &["every call", "131072"],
    );
    refused(
        &format!("{out} {main} {}", main.replace("main", "other")),
        &["entry point"],
    );
    refused(&format!("{out} @fragment fn main() {{}}"), &["main"]);
    let second = "var<immediate> more: Params; struct Params";
    refused(
        &SAXPY.replace("struct Params", second),
        &["second var<immediate>"],
    );
    let pointer = SAXPY
        .replace("0.5 *", "0.5 * *p *")
        .replace("if id", "let p: ptr<storage, f32, read> = &x[0]; if id");
    refused(&pointer, &["^", "read_write"]);
    refused(
        &HISTOGRAM.replace("atomic<u32>", "atomic<f32>"),
        &["counts"],
    );
    let shared = SAXPY.replace(
        "struct Params",
        "var<private> w: array<f32, 20000>; struct Params",
    );
    refused(&shared, &["80008 bytes", "invocation"]);
    // Arrays that are values, and variables of what is called, once for each call.
    let call = "fn far(i: u32) -> f32 { var w: array<f32, 5000>; w[i] = 1; return w[i / 2u]; }";
    let twice = SAXPY.replace("if id", "let z = far(id.x) + far(id.y); if id");
    drop(Kernel::wgsl("twice", &format!("{twice}{call}"))?);
    let often = SAXPY.replace(
        "if id",
        "let z = far(id.x) + far(id.y) + far(id.z) + far(3u); if id",
    );
    refused(&format!("{often}{call}"), &["80008 bytes", "every call"]);
    let table = format!("const table = array<array<i32, 16>, 256>(); {SAXPY}").replace(
        "if id",
        "let z = table[id.x][0] + table[id.y][1] + table[id.z][2] + table[3][id.x]; if id",
    );
    drop(Kernel::wgsl("table", &table)?);
    for values in [
        "let w = array<f32, 200000000>(); let z = w[id.x];",
        "let z = many[id.x];",
    ] {
        let values = SAXPY.replace("if id", &format!("{values} if id"));
        let many = "const many = array<f32, 1000000>();";
        refused(&format!("{many}{values}"), &["above 1048576"]);
    }
    let vector = SAXPY
        .replace("x_length: u32", "x_length: vec2<u32>")
        .replace("params.x_length", "params.x_length.x");
    let vector = Kernel::wgsl("vector", &vector)?.twin(|_| Ok(()))?;
    let x = Tensor::ones(&Device::cpu(), [4], DType::F32)?;
    let launch = vector
        .launch()
        .input("x", &x)
        .input("y", &x)
        .scalar("a", 1)
        .workgroups([1; 3]);
    is_refused(launch.output("out", [4]).run(), &["`x_length` is a vector"]);
    refused(
        &format!("{SAXPY}{}", " ".repeat(64 << 10)),
        &["bytes of WGSL"],
    );
    let nested = SAXPY.replace("a: f32,", "a: f32, more: array<f32, 4>,");
    refused(&nested, &["`params`", "member"]);
    let twin = Kernel::wgsl("saxpy", SAXPY)?
        .shape("x", |_| Ok(Shape::from([1])))
        .twin(|_| Ok(()));
    is_refused(twin, &["no output `x`"]);
    let twice = Kernel::wgsl("saxpy", SAXPY)?
        .shape("out", |_| Ok(Shape::from([1])))
        .shape("out", |_| Ok(Shape::from([2])))
        .twin(|_| Ok(()));
    is_refused(twice, &["`out` has two rules"]);
    let both = Kernel::wgsl("saxpy", SAXPY)?
        .strided()
        .elementwise()
        .twin(|_| Ok(()));
    is_refused(both, &["elementwise"]);
    let flat = SAXPY.replace("workgroup_size(64)", "workgroup_size(8, 8)");
    let flat = Kernel::wgsl("saxpy", &flat)?.elementwise().twin(|_| Ok(()));
    is_refused(flat, &["along x"]);
    let fixed = SAXPY.replace("x: array<f32>", "x: array<f32, 600>");
    let fixed = Kernel::wgsl("saxpy", &fixed)?
        .elementwise()
        .twin(|_| Ok(()));
    is_refused(fixed, &["`x`", "fixed length", "pieces"]);
    let large = SAXPY.replace("a: f32", "@size(20000) a: f32");
    refused(&large, &["`params`", "bytes"]);
    let device = Device::cpu();
    let x = Tensor::ones(&device, [3], DType::F32)?;
    let wrong = Kernel::wgsl("wrong", SAXPY)?.elementwise().twin(|call| {
        assert!(matches!(
            call.input::<u32>("x"),
            Err(Error::DTypeMismatch(_))
        ));
        assert!(matches!(
            call.scalar::<u32>("a"),
            Err(Error::DTypeMismatch(_))
        ));
        is_refused(call.input::<f32>("out"), &["no input `out`"]);
        is_refused(call.scalar::<f32>("b"), &["no scalar `b`"]);
        call.output::<f32>("out")?;
        is_refused(call.output::<f32>("out"), &["taken"]);
        call.input::<f32>("z").map(drop)
    })?;
    is_refused(
        wrong
            .launch()
            .input("x", &x)
            .input("y", &x)
            .scalar("a", 1)
            .run(),
        &["`z`"],
    );
    Ok(())
}
