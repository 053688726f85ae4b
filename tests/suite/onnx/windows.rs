//! ONNX's pools and convolutions as windows of a tensor, reduced or multiplied.

use orlop::{Shape, SliceRange, Tensor};

use super::ops::{Answer, Call, unsupported};
use super::value::Value;

/// The windows along one axis of images.
#[derive(Clone, Copy)]
struct Along {
    /// Elements of a window, and how far the next one is.
    size: usize,
    dilation: usize,
    /// How far the next window is, and how many there are.
    stride: usize,
    count: usize,
    /// Elements around the axis; after it more may be needed for the last window.
    before: usize,
    after: usize,
    beyond: usize,
}

impl Along {
    /// Elements from a window's first to its last.
    fn reach(self) -> usize {
        (self.size - 1) * self.dilation + 1
    }
}

/// The axes of images after those of samples and channels: the windows that a node's attributes ask for.
fn axes(call: &Call<'_>, image: &[usize], sizes: &[usize]) -> Answer<Vec<Along>> {
    let list = |name: &str, default: usize, count: usize| match call.attribute(name) {
        Some(given) => given.ints.iter().map(|&at| at as usize).collect(),
        None => vec![default; count],
    };
    let rank = image.len();
    let (strides, dilations) = (list("strides", 1, rank), list("dilations", 1, rank));
    let pads = list("pads", 0, 2 * rank);
    let is_up = call.int("ceil_mode", 0) != 0;
    let each = (0..rank).map(|at| {
        let mut along = Along {
            size: sizes[at],
            dilation: dilations[at],
            stride: strides[at],
            count: 0,
            before: pads[at],
            after: pads[rank + at],
            beyond: 0,
        };
        let (length, stride) = (image[at], along.stride);
        let reach = along.reach();
        match call.text("auto_pad", "NOTSET").as_str() {
            "NOTSET" => {}
            "VALID" => (along.before, along.after) = (0, 0),
            same => {
                let all = (length.div_ceil(stride) - 1) * stride + reach;
                let all = all.saturating_sub(length);
                let (less, more) = (all / 2, all.div_ceil(2));
                (along.before, along.after) = match same {
                    "SAME_UPPER" => (less, more),
                    _ => (more, less),
                };
            }
        }
        let padded = along.before + length + along.after;
        along.count = (padded - reach) / stride + 1;
        // One more begins before the end.
        if is_up
            && !(padded - reach).is_multiple_of(stride)
            && along.count * stride < along.before + length
        {
            along.count += 1;
        }
        along.beyond = ((along.count - 1) * stride + reach).saturating_sub(padded);
        along
    });
    Ok(each.collect())
}

/// Windows of images `[n, c, ..]` with so much around them: `[n, c, windows .., along them ..]`.
fn windows(x: &Tensor, axes: &[Along], value: f64) -> Answer<Tensor> {
    let padded = |along: &Along| (along.before, along.after + along.beyond);
    let widths: Vec<_> = [(0, 0); 2]
        .into_iter()
        .chain(axes.iter().map(padded))
        .collect();
    let mut seen = x.pad(&widths, value)?;
    for (at, along) in axes.iter().enumerate() {
        seen = seen.unfold(2 + at, along.reach(), along.stride)?;
        let mut ranges = vec![SliceRange::from(..); seen.rank()];
        ranges[seen.rank() - 1] = SliceRange::from(..).step(along.dilation as isize);
        seen = seen.slice(&ranges[..])?;
    }
    Ok(seen)
}

fn last(x: &Tensor, count: usize) -> Vec<usize> {
    (x.rank() - count..x.rank()).collect()
}

pub fn run(call: &Call<'_>) -> Answer<Vec<Value>> {
    let op = call.node.op.as_str();
    match op {
        "AveragePool" | "LpPool" | "MaxPool" => pool(call),
        "Conv" => convolution(call),
        "ConvTranspose" => transposed(call),
        "Col2Im" => folded(call),
        "LRN" => normalised(call),
        _ => unsupported(op),
    }
}

fn sizes(shape: &[i64]) -> Vec<usize> {
    shape.iter().map(|&size| size as usize).collect()
}

fn pool(call: &Call<'_>) -> Answer<Vec<Value>> {
    let x = call.tensor(0)?;
    if call.node.outputs.len() > 1 {
        return unsupported("places of the largest in the whole image");
    }
    let kernel = call.attribute("kernel_shape").map(|a| sizes(&a.ints));
    let axes = axes(call, &x.shape()[2..], &kernel.unwrap_or_default())?;
    let count = axes.len();
    let sums = |x: &Tensor, axes: &[Along]| -> Answer<Tensor> {
        let seen = windows(x, axes, 0.0)?;
        Ok(seen.sum(last(&seen, count))?)
    };
    let pooled = match call.node.op.as_str() {
        "MaxPool" => {
            let seen = windows(x, &axes, f64::NEG_INFINITY)?;
            seen.max(last(&seen, count))?
        }
        "LpPool" => {
            let p = call.int("p", 2);
            sums(&x.abs()?.pow(p)?, &axes)?.pow(1.0 / p as f64)?
        }
        _ => {
            // What is around counts, or does not; what is beyond that never does.
            let mut of_ones = axes.clone();
            let mut shape: Vec<usize> = x.shape().to_vec();
            if call.int("count_include_pad", 0) != 0 {
                for (along, size) in of_ones.iter_mut().zip(&mut shape[2..]) {
                    *size += along.before + along.after;
                    (along.before, along.after) = (0, 0);
                }
            }
            let ones = Tensor::ones(call.device, shape, x.dtype())?;
            sums(x, &axes)?.div(&sums(&ones, &of_ones)?)?
        }
    };
    call.like(vec![pooled])
}

/// With a number added to each channel, if there is one.
fn biased(call: &Call<'_>, y: Tensor) -> Answer<Vec<Value>> {
    if !call.has(2) {
        return call.like(vec![y]);
    }
    let mut shape = vec![1; y.rank()];
    shape[1] = y.shape()[1];
    call.like(vec![y.add(&call.tensor(2)?.reshape(&shape[..])?)?])
}

fn convolution(call: &Call<'_>) -> Answer<Vec<Value>> {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let groups = call.int("group", 1) as usize;
    let axes = axes(call, &x.shape()[2..], &w.shape()[2..])?;
    let seen = windows(x, &axes, 0.0)?;
    // Columns [n, groups, of one output, outputs].
    let (of_windows, of_outputs) = (last(&seen, axes.len()), 2..2 + axes.len());
    let order: Vec<usize> = (0..2).chain(of_windows).chain(of_outputs).collect();
    let outputs: usize = axes.iter().map(|along| along.count).product();
    let each: usize = w.shape()[1..].iter().product();
    let columns = seen.permute(&order)?;
    let columns = columns.reshape([x.shape()[0], groups, each, outputs])?;
    let made = w.shape()[0];
    let y = w.reshape([groups, made / groups, each])?.matmul(&columns)?;
    let counts = axes.iter().map(|along| along.count);
    let shape: Shape = [x.shape()[0], made].into_iter().chain(counts).collect();
    biased(call, y.reshape(shape)?)
}

/// Adds columns `[n, c, along windows .., windows ..]` where they were seen in images, of which what is around is cut off.
fn fold(columns: &Tensor, axes: &[Along], image: &[usize]) -> Answer<Tensor> {
    let padded = |(along, size): (&Along, &usize)| along.before + size + along.after;
    let outer = columns.shape()[..2].iter().copied();
    let shape: Shape = outer.chain(axes.iter().zip(image).map(padded)).collect();
    let sum = Tensor::zeros(columns.device(), shape, columns.dtype())?;
    let places: usize = axes.iter().map(|along| along.size).product();
    for place in 0..places {
        let mut left = place;
        let mut here = vec![SliceRange::from(..); 2 + axes.len()];
        let mut from = here.clone();
        for (at, along) in axes.iter().enumerate().rev() {
            let index = left % along.size;
            left /= along.size;
            let first = index * along.dilation;
            let end = first + (along.count - 1) * along.stride + 1;
            here[2 + at] = SliceRange::from(first..end).step(along.stride as isize);
            from[2 + at] = SliceRange::from(index as isize);
        }
        sum.slice(&here[..])?
            .add_assign(&columns.slice(&from[..])?)?;
    }
    let mut kept = vec![SliceRange::from(..); 2];
    kept.extend(
        axes.iter()
            .zip(image)
            .map(|(along, &size)| SliceRange::from(along.before..along.before + size)),
    );
    Ok(sum.slice(&kept[..])?)
}

fn transposed(call: &Call<'_>) -> Answer<Vec<Value>> {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let groups = call.int("group", 1) as usize;
    let (n, rank) = (x.shape()[0], x.rank() - 2);
    let list = |name: &str, default: i64, count: usize| {
        call.attribute(name)
            .map_or(vec![default; count], |given| given.ints.clone())
    };
    let [strides, dilations, more] = [("strides", 1), ("dilations", 1), ("output_padding", 0)]
        .map(|(name, default)| list(name, default, rank));
    let pads = list("pads", 0, 2 * rank);
    let asked = call.attribute("output_shape").map(|a| a.ints.clone());
    let same = call.text("auto_pad", "NOTSET");
    let (mut axes, mut image) = (Vec::new(), Vec::new());
    for at in 0..rank {
        let (count, size) = (x.shape()[2 + at], w.shape()[2 + at]);
        let stride = strides[at];
        let reach = (count as i64 - 1) * stride + (size as i64 - 1) * dilations[at] + 1;
        let asked = match (&asked, same.as_str()) {
            (Some(asked), _) => Some(asked[asked.len() - rank + at]),
            (None, "SAME_UPPER" | "SAME_LOWER") => Some(count as i64 * stride),
            _ => None,
        };
        let (length, before) = match asked {
            Some(length) => {
                let all = (reach + more[at] - length).max(0);
                let is_upper = same == "SAME_UPPER";
                (length, if is_upper { all / 2 } else { all - all / 2 })
            }
            None => (reach + more[at] - pads[at] - pads[rank + at], pads[at]),
        };
        axes.push(Along {
            size,
            dilation: dilations[at] as usize,
            stride: stride as usize,
            count,
            before: before as usize,
            after: (reach - before - length).max(0) as usize,
            beyond: 0,
        });
        image.push(length as usize);
    }
    // [n, groups, of a group's channels and windows, inputs]
    let inputs: usize = x.shape()[2..].iter().product();
    let (channels, made) = (x.shape()[1] / groups, w.shape()[1]);
    let each: usize = w.shape()[1..].iter().product();
    let weights = w.reshape([groups, channels, each])?.transpose(1, 2)?;
    let columns = weights.matmul(&x.reshape([n, groups, channels, inputs])?)?;
    let sizes = w.shape()[2..].iter().chain(&x.shape()[2..]).copied();
    let shape: Shape = [n, groups * made].into_iter().chain(sizes).collect();
    biased(call, fold(&columns.reshape(shape)?, &axes, &image)?)
}

fn folded(call: &Call<'_>) -> Answer<Vec<Value>> {
    let x = call.tensor(0)?;
    let list = |at: usize| -> Answer<Vec<usize>> { Ok(sizes(&call.value(at)?.integers()?)) };
    let (image, kernel) = (list(1)?, list(2)?);
    let axes = axes(call, &image, &kernel)?;
    let channels = x.shape()[1] / kernel.iter().product::<usize>();
    let counts = axes.iter().map(|along| along.count);
    let sizes = kernel.iter().copied().chain(counts);
    let shape: Shape = [x.shape()[0], channels].into_iter().chain(sizes).collect();
    call.like(vec![fold(&x.reshape(shape)?, &axes, &image)?])
}

/// Divided by what channels nearby have.
fn normalised(call: &Call<'_>) -> Answer<Vec<Value>> {
    let x = call.tensor(0)?;
    let size = call.int("size", 1) as usize;
    let [alpha, beta, bias] = [("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)]
        .map(|(name, default)| f64::from(call.float(name, default)));
    let mut widths = vec![(0, 0); x.rank()];
    widths[1] = ((size - 1) / 2, size / 2);
    let near = x.square()?.pad(&widths, 0.0)?.unfold(1, size, 1)?.sum(-1)?;
    let by = near.mul(alpha / size as f64)?.add(bias)?.pow(beta)?;
    call.like(vec![x.div(&by)?])
}
