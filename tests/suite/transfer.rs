//! Bytes between host and devices, and between devices.

use orlop::memory::WhenFull;
use orlop::{DType, Device, Error, Result, Tensor, bf16, f16};

use crate::adapters::{self, Context, Variant};
use crate::index::distinct_view;
use crate::number::Number;
use crate::operand::{Operand, same};
use crate::rng::{Rng, cases, seed};
use crate::{OnceTest, Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("transfer::sizes", Scope::Device, sizes),
        Test::new("transfer::odd_halves", Scope::Device, odd_halves),
        Test::new("transfer::large", Scope::Device, large),
        Test::new("transfer::async_reads", Scope::Device, async_reads),
        Test::new("transfer::dropped_futures", Scope::Device, dropped_futures),
        Test::new("transfer::async_in_order", Scope::Device, async_in_order),
        Test::new("transfer::writes", Scope::Device, writes),
        Test::new("transfer::writes_in_order", Scope::Device, writes_in_order),
    ]
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![("transfer::between_devices", between_devices)]
}

/// Elements that no piece of another place could equal.
fn pattern(count: usize, salt: u32) -> Vec<u32> {
    (0..count as u32)
        .map(|at| at.wrapping_mul(2_654_435_761) ^ salt)
        .collect()
}

fn round_trip(device: &Device, count: usize) -> Result<()> {
    let values = pattern(count, count as u32);
    let tensor = Tensor::from_slice(device, &values, count)?;
    let got = tensor.to_vec::<u32>()?;
    assert!(got == values, "{count} elements came back changed");
    Ok(())
}

/// Around each size at which staging changes its way.
fn sizes(context: &Context) -> Result<()> {
    let bytes = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20];
    let around = bytes.into_iter().flat_map(|bytes| {
        let count = bytes / 4;
        [count - 1, count, count + 1]
    });
    for count in [0, 1, 2, 3, 1023, 1024, 1025].into_iter().chain(around) {
        round_trip(context.device(), count)?;
    }
    Ok(())
}

fn large(context: &Context) -> Result<()> {
    let mebibytes: &[usize] = if context.is_slow() {
        &[9, 17]
    } else {
        &[9, 33, 40, 65]
    };
    for mebibytes in mebibytes {
        round_trip(context.device(), mebibytes * (1 << 18) + 3)?;
    }
    // Many small ones in one batch.
    let tensors = (0..300)
        .map(|at| {
            Tensor::from_slice(
                context.device(),
                &pattern(1 + at * 7, at as u32),
                1 + at * 7,
            )
        })
        .collect::<Result<Vec<_>>>()?;
    for (at, tensor) in tensors.iter().enumerate() {
        same(tensor, &pattern(1 + at * 7, at as u32))?;
    }
    Ok(())
}

/// Two bytes an element: copies go by four.
fn odd_halves(context: &Context) -> Result<()> {
    let device = context.device();
    for count in [1usize, 2, 3, 5, 31, 32_769, 524_287, 524_289, 2_097_153] {
        let values: Vec<f16> = (0..count)
            .map(|at| f16::from_bits((at % 31_000) as u16))
            .collect();
        let tensor = Tensor::from_slice(device, &values, count)?;
        same(&tensor, &values)?;
        for start in [1, 2, 3] {
            if start < count {
                same(&tensor.slice(start..)?, &values[start..])?;
                same(&tensor.slice(start..start + 1)?, &values[start..=start])?;
            }
        }
    }
    Ok(())
}

fn async_reads(context: &Context) -> Result<()> {
    let device = context.device();
    // Many on their way at once, awaited in another order.
    let values: Vec<Vec<u32>> = (0..40).map(|at| pattern(1 + at * 997, at as u32)).collect();
    let tensors = values
        .iter()
        .map(|values| Tensor::from_slice(device, values, values.len()))
        .collect::<Result<Vec<_>>>()?;
    let mut futures: Vec<_> = tensors.iter().map(Tensor::to_vec_async::<u32>).collect();
    drop(tensors);
    while let Some(future) = futures.pop() {
        assert_eq!(pollster::block_on(future)?, values[futures.len()]);
    }
    // Of a strided view, and of the wrong type.
    let table = Tensor::from_slice(device, &pattern(35, 1), [5, 7])?;
    let turned = pollster::block_on(table.transpose(0, 1)?.to_vec_async::<u32>())?;
    assert_eq!(turned, table.transpose(0, 1)?.to_vec::<u32>()?);
    assert!(pollster::block_on(table.to_vec_async::<f32>()).is_err());
    Ok(())
}

fn dropped_futures(context: &Context) -> Result<()> {
    let device = context.open();
    let count = if context.is_slow() { 3 << 18 } else { 10 << 18 };
    let values = pattern(count, 5);
    let tensor = Tensor::from_slice(&device, &values, count)?;
    for at in 0..12 {
        let future = tensor.to_vec_async::<u32>();
        if at % 3 == 0 {
            // Polled once, then dropped.
            let mut future = Box::pin(future);
            let mut waiting = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = future.as_mut().poll(&mut waiting);
        }
    }
    tensor.fill(1)?;
    assert!(tensor.to_vec::<u32>()? == vec![1; count]);
    let last = tensor.to_vec_async::<u32>();
    drop(tensor);
    assert!(pollster::block_on(last)? == vec![1; count]);
    // The background thread may still hold what it has just read.
    crate::memory::settle(&device, |memory| memory.allocated == 0);
    Ok(())
}

/// What was read before an in-place fill is what was there before it, however long it takes.
fn async_in_order(context: &Context) -> Result<()> {
    let device = context.device();
    let large = if context.is_slow() {
        10 << 18
    } else {
        40 << 18
    };
    for count in [1, 1000, 600_000, large] {
        let tensor = Tensor::full(device, count, 7, DType::U32)?;
        let before = tensor.to_vec_async::<u32>();
        tensor.fill(8)?;
        let between = tensor.to_vec_async::<u32>();
        tensor.slice(..count / 2 + 1)?.fill(9)?;
        let after = tensor.to_vec::<u32>()?;
        assert!(
            pollster::block_on(before)?.iter().all(|&x| x == 7),
            "{count}"
        );
        assert!(
            pollster::block_on(between)?.iter().all(|&x| x == 8),
            "{count}"
        );
        assert!(after[..count / 2 + 1].iter().all(|&x| x == 9), "{count}");
        assert!(after[count / 2 + 1..].iter().all(|&x| x == 8), "{count}");
    }
    Ok(())
}

/// Over whole tensors and views of any strides, and nothing beside them.
fn writes(context: &Context) -> Result<()> {
    written::<f32>(context)?;
    written::<f16>(context)?;
    written::<bool>(context)?;
    written::<i32>(context)?;
    written::<f64>(context)
}

fn written<T: Number>(context: &Context) -> Result<()> {
    cases(context.times(20), |rng| {
        let rank = rng.between(1, 4);
        let shape: Vec<usize> = (0..rank).map(|_| rng.below(9)).collect();
        let [whole, view] = match rng.one_in(3) {
            true => {
                let whole = Operand::<T>::random(context.device(), rng, &shape)?;
                [whole.clone(), whole]
            }
            false => distinct_view::<T>(context, rng, &shape)?,
        };
        let count = view.tensor.elements();
        let values: Vec<T> = (0..count).map(|_| T::sample(rng)).collect();
        view.tensor.write_from(&values)?;
        same(&view.tensor, &values)?;
        let mut all = whole.values();
        for (&at, &value) in view.grid.indices.iter().zip(&values) {
            all[at] = value;
        }
        same(&whole.tensor, &all)?;
        // What is refused changes nothing.
        let refused = view.tensor.write_from(&vec![T::sample(rng); count + 1]);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
        let refused = view.tensor.write_from(&vec![bf16::ONE; count]);
        assert!(matches!(refused, Err(Error::DTypeMismatch(_))));
        if count > 1 {
            let twice = [&[2], view.tensor.shape().dims()].concat();
            let repeated = view.tensor.broadcast_to(twice)?;
            let refused = repeated.write_from(&vec![T::sample(rng); 2 * count]);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))));
        }
        same(&whole.tensor, &all)
    })
}

/// In the order of the device's work, around the sizes at which staging changes its way; on the host, too.
fn writes_in_order(context: &Context) -> Result<()> {
    let bytes = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 9 << 20];
    let around = bytes
        .into_iter()
        .flat_map(|bytes| [bytes / 4 - 1, bytes / 4, bytes / 4 + 1]);
    let builder = context.builder().memory_limit(24 << 20);
    let device = &builder
        .when_full(WhenFull::SpillToHost { most: None })
        .build()?;
    for count in [1, 1000].into_iter().chain(around) {
        let tensor = Tensor::full(device, count + 3, 7, DType::U32)?;
        let before = tensor.to_vec_async::<u32>();
        let (first, second) = (pattern(count, 1), pattern(count, 2));
        tensor.slice(2..count + 2)?.write_from(&first)?;
        let between = tensor.to_vec_async::<u32>();
        let sum = tensor.add(1)?;
        tensor.slice(2..count + 2)?.write_from(&second)?;
        let framed = |values: &[u32]| [&[7, 7], values, &[7]].concat();
        assert!(
            pollster::block_on(before)?.iter().all(|&x| x == 7),
            "{count}"
        );
        assert!(pollster::block_on(between)? == framed(&first), "{count}");
        assert!(tensor.to_vec::<u32>()? == framed(&second), "{count}");
        let more: Vec<u32> = framed(&first).iter().map(|x| x.wrapping_add(1)).collect();
        assert!(sum.to_vec::<u32>()? == more, "{count}");
        if count >= 2 << 20 && !context.is_cpu() {
            // One that was sent to the host meanwhile.
            let beside = Tensor::full(device, count, 3, DType::U32)?;
            assert!(device.memory().spilled > 0, "{count}");
            tensor.write_from(&framed(&first))?;
            assert!(tensor.to_vec::<u32>()? == framed(&first), "{count}");
            assert!(beside.to_vec::<u32>()?.iter().all(|&x| x == 3), "{count}");
        }
    }
    Ok(())
}

/// Every pair, there and back, whole tensors and views.
fn between_devices() -> Result<()> {
    let devices: Vec<Device> = adapters::found()
        .into_iter()
        .map(|adapter| Context::new(adapter, Variant::Plain).open())
        .chain([Device::cpu()])
        .collect();
    let mut rng = Rng::new(seed());
    for from in &devices {
        for to in &devices {
            move_between::<f32>(from, to, &mut rng, &[33, 70])?;
            move_between::<f16>(from, to, &mut rng, &[7, 3, 5])?;
            move_between::<u32>(from, to, &mut rng, &[0, 4])?;
            if from.capabilities().holds(DType::F64) && to.capabilities().holds(DType::F64) {
                move_between::<f64>(from, to, &mut rng, &[5, 9])?;
            }
        }
    }
    cases(2, |rng| {
        move_between::<i32>(&devices[0], &devices[devices.len() - 1], rng, &[3, 400_000])
    })
}

fn move_between<T: Number>(
    from: &Device,
    to: &Device,
    rng: &mut Rng,
    shape: &[usize],
) -> Result<()> {
    let whole = Operand::<T>::random(from, rng, shape)?;
    let axes: Vec<usize> = (0..shape.len()).rev().collect();
    let cut: Vec<_> = shape.iter().map(|&size| size.min(1)..size).collect();
    for view in [whole.clone(), whole.permute(&axes)?, whole.slice(&cut)?] {
        let moved = view.tensor.to(to)?;
        assert_eq!(moved.device(), to);
        assert_eq!(
            moved.shares_storage(&view.tensor),
            from == to && view.tensor.elements() > 0
        );
        same(&moved, &view.values())?;
        // It is a tensor like any other there.
        same(&moved.contiguous()?, &view.values())?;
        same(&moved.to(from)?, &view.values())?;
    }
    Ok(())
}
