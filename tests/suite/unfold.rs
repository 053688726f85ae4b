//! Windows of a tensor and diagonals: what they show, what is computed of them, and that nothing is written through windows
//! that overlap.

use orlop::{DType, Error, Kernel, Result, SliceRange, Tensor};

use crate::adapters::Context;
use crate::number::{Number, for_each_dtype};
use crate::operand::{Operand, random_shape, same};
use crate::rng::cases;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    let mut all = vec![
        Test::new("unfold::errors", Scope::Device, errors),
        Test::new("unfold::writes", Scope::Device, writes),
        Test::new("unfold::convolutions", Scope::Kernels, convolutions),
    ];
    for_each_dtype!(all, Scope::Device, "unfold::diagonals", diagonals);
    for_each_dtype!(all, Scope::Device, "unfold::views", views);
    for_each_dtype!(all, Scope::Device, "unfold::patches", patches);
    all
}

fn errors(context: &Context) -> Result<()> {
    let x = Tensor::zeros(context.device(), [4, 5], DType::F32)?;
    let problem = |axis: isize, size: usize, step: usize| match x.unfold(axis, size, step) {
        Err(Error::InvalidArgument(problem)) => problem.to_string(),
        other => panic!("{other:?}"),
    };
    let text = problem(1, 6, 1);
    assert_eq!(
        text,
        "unfold: windows of 6 do not fit axis 1 of size 5 in shape [4, 5]: pad it"
    );
    for (axis, size, step) in [
        (2, 1, 1),
        (-3, 1, 1),
        (0, 0, 1),
        (0, 1, 0),
        (0, usize::MAX, 1),
    ] {
        problem(axis, size, step);
    }
    // Elements are counted by words of the machine.
    let long = Tensor::zeros(context.device(), [1], DType::Bool)?.broadcast_to([1 << 33])?;
    assert_eq!(long.unfold(0, 1 << 20, 1)?.shape()[1], 1 << 20);
    assert!(matches!(
        long.unfold(0, 1 << 32, 1),
        Err(Error::TooLarge(_))
    ));
    Ok(())
}

/// Windows of views, and of windows.
fn views<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(40), |rng| {
        let mut shape = random_shape(rng, 4, 400);
        shape.push(rng.between(1, 30));
        let mut view = Operand::<T>::random_view(context.device(), rng, &shape)?;
        for _ in 0..rng.between(1, 2) {
            let axis = rng.below(view.shape().len());
            let length = view.shape()[axis];
            if length == 0 {
                continue;
            }
            let (size, step) = (rng.between(1, length.min(9)), rng.between(1, 4));
            view = view.unfold(axis, size, step)?;
        }
        let order = rng.shuffled(view.shape().len());
        view.check()?;
        view.permute(&order)?.check()?;
        same(&view.tensor.contiguous()?, &view.values())
    })
}

/// Diagonals of views, read, and written where elements are seen once.
fn diagonals<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(30), |rng| {
        let mut shape = random_shape(rng, 2, 12);
        shape.extend([rng.between(1, 9), rng.between(1, 9)]);
        let axes = rng.shuffled(shape.len());
        let (first, second) = (axes[0], axes[1]);
        let offset = rng.between(0, 12) as isize - 6;
        let view = Operand::<T>::random_view(context.device(), rng, &shape)?;
        view.diagonal(offset, first, second)?.check()?;
        if shape.contains(&0) {
            return Ok(());
        }
        let base = Operand::<T>::random(context.device(), rng, &shape)?;
        let written = base.diagonal(offset, first, second)?;
        written.tensor.assign(
            &base
                .tensor
                .slice(vec![SliceRange::from(0..1); shape.len()])?
                .reshape(())?,
        )?;
        let mut want = base.values();
        for &at in &written.grid.indices {
            want[at] = want[0];
        }
        same(&base.tensor, &want)
    })
}

/// Patches of images by columns and by rows, as many as threads share, with steps along windows and between them.
fn patches<T: Number>(context: &Context) -> Result<()> {
    let (channels, rows, columns) = match context.is_slow() {
        true => (2, 20, 33),
        false => (5, 67, 93),
    };
    cases(1, |rng| {
        let images = Operand::<T>::random(context.device(), rng, &[2, channels, rows, columns])?;
        for (size, step, dilation) in [(3, 1, 1), (2, 2, 1), (3, 2, 3), (5, 1, 2)] {
            let reach = (size - 1) * dilation + 1;
            let windows = images.unfold(2, reach, step)?.unfold(3, reach, step)?;
            let windows = windows.step(4, 0..reach, dilation as isize)?;
            let windows = windows.step(5, 0..reach, dilation as isize)?;
            windows.permute(&[0, 1, 4, 5, 2, 3])?.check()?;
            windows.permute(&[0, 2, 3, 1, 4, 5])?.check()?;
        }
        Ok(())
    })
}

/// Nothing is written to an element that is seen twice, and every other way of writing works.
fn writes(context: &Context) -> Result<()> {
    let device = context.device();
    let values: Vec<f32> = (0..10).map(|at| at as f32).collect();
    let base = Tensor::from_slice(device, &values, [10])?;
    let windows = base.unfold(0, 3, 2)?;
    let other = Tensor::ones(device, [4, 3], DType::F32)?;
    let index = Tensor::zeros(device, [4, 3], DType::I32)?;
    let one = Tensor::zeros(device, [4], DType::I32)?;
    let twice = Kernel::wgsl(
        "twice",
        "@group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> out: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&out) { out[id.x] = 2.0 * x[id.x]; }
        }",
    )?;
    let twice = twice.twin(|call| {
        let x = call.input::<f32>("x")?;
        for (out, x) in call.output("out")?.iter_mut().zip(x) {
            *out = 2.0 * x;
        }
        Ok(())
    })?;
    let refused = [
        windows.assign(&other),
        windows.add_assign(&other),
        windows.fill(7.0),
        windows.scatter_assign(0, &index, &other),
        windows.scatter_add_assign(1, &index, &other),
        windows.index_copy_assign(0, &one, &other),
        windows.fused_assign(|_, x| x * 2.0),
        twice.launch().input("x", &other).run_into(&windows),
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        match refused {
            Err(Error::InvalidArgument(problem)) => {
                let text = problem.to_string();
                assert!(text.contains("at several places"), "{at}: {text}");
            }
            other => panic!("{at}: {other:?}"),
        }
    }
    same(&base, &values)?;
    // What is not written in place is.
    assert_eq!(windows.index_copy(0, &one, &other)?.shape().dims(), [4, 3]);
    let sums = windows.into_add(&other)?;
    let want: Vec<f32> = (0..12).map(|at| (at / 3 * 2 + at % 3 + 1) as f32).collect();
    same(&sums, &want)?;
    same(&base, &values)?;
    // Windows that do not overlap are written, and what lies between them stays.
    let apart = base.unfold(0, 2, 4)?;
    apart.add_assign(100.0)?;
    apart.slice(2..)?.fill(-1.0)?;
    same(
        &base,
        &[
            100.0, 101.0, 2.0, 3.0, 104.0, 105.0, 6.0, 7.0, -1.0, -1.0f32,
        ],
    )
}

/// Images by weights, beside the sums written out.
fn convolutions(context: &Context) -> Result<()> {
    let (rows, columns) = if context.is_slow() { (9, 12) } else { (17, 31) };
    cases(context.times(4), |rng| {
        let (n, channels, made) = (rng.between(1, 2), rng.between(1, 5), rng.between(1, 9));
        let [height, width] = [0; 2].map(|_: usize| rng.between(1, 4));
        let (step, dilation) = (rng.between(1, 2), rng.between(1, 2));
        let images = [n, channels, rows, columns];
        let images = Operand::<f32>::random_view(context.device(), rng, &images)?;
        let weights = [made, channels, height, width];
        let weights = Operand::<f32>::random_view(context.device(), rng, &weights)?;
        let reach = |size: usize| (size - 1) * dilation + 1;
        let every = SliceRange::from(..).step(dilation as isize);
        let windows = images.tensor.unfold(2, reach(height), step)?;
        let windows = windows.unfold(3, reach(width), step)?;
        let windows = windows.slice((.., .., .., .., every, every))?;
        let (above, beside) = (windows.shape()[2], windows.shape()[3]);
        let each = channels * height * width;
        let patches = windows.permute(&[0, 1, 4, 5, 2, 3])?;
        let patches = patches.reshape([n, each, above * beside])?;
        let kernel = weights.tensor.reshape([made, each])?;
        let got = kernel.matmul(&patches)?.to_vec::<f32>()?;
        let (x, w) = (images.values(), weights.values());
        let mut at = 0;
        for image in 0..n {
            for of in 0..made {
                for (row, column) in (0..above * beside).map(|at| (at / beside, at % beside)) {
                    let (mut sum, mut bound) = (0.0, 0.0);
                    for tap in 0..each {
                        let (channel, place) = (tap / (height * width), tap % (height * width));
                        let row = row * step + place / width * dilation;
                        let column = column * step + place % width * dilation;
                        let x = x[((image * channels + channel) * rows + row) * columns + column];
                        let product = f64::from(x) * f64::from(w[of * each + tap]);
                        (sum, bound) = (sum + product, bound + product.abs());
                    }
                    let error = (f64::from(got[at]) - sum).abs();
                    assert!(
                        error <= each as f64 * 1.2e-7 * bound,
                        "{at}: {} and {sum}",
                        got[at]
                    );
                    at += 1;
                }
            }
        }
        assert_eq!(at, got.len());
        Ok(())
    })
}
