//! Every error that can be had today, and what its text says; a failed call changes nothing.

use orlop::{DType, Error, Result, SliceRange, Tensor};

use crate::adapters::Context;
use crate::operand::same;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("errors::shapes", Scope::Device, shapes),
        Test::new("errors::dtypes", Scope::Device, dtypes),
        Test::new("errors::arguments", Scope::Device, arguments),
        Test::new("errors::too_large", Scope::Device, too_large),
        Test::new("errors::travel", Scope::Device, travel),
    ]
}

/// The call fails with a text that has all parts, and the account stays.
fn fails<T>(tensor: &Tensor, parts: &[&str], call: impl FnOnce() -> Result<T>) -> Error {
    let before = tensor.device().memory();
    let Err(error) = call() else {
        panic!("no error, though {parts:?} was expected");
    };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let after = tensor.device().memory();
    assert_eq!(before, after, "a failed call changed the account: {text}");
    error
}

fn shapes(context: &Context) -> Result<()> {
    let device = &context.open();
    let a = &Tensor::zeros(device, [2, 3], DType::F32)?;
    let b = &Tensor::zeros(device, [2, 4], DType::F32)?;
    for (name, error) in [
        (
            "add",
            fails(a, &["[2, 3]", "[2, 4]", "aligned at the last"], || a.add(b)),
        ),
        ("sub", fails(a, &["[2, 3]", "[2, 4]"], || a.sub(b))),
        ("mul", fails(a, &["[2, 3]", "[2, 4]"], || a * b)),
        ("div", fails(a, &["[2, 3]", "[2, 4]"], || a.div(b))),
        (
            "matmul",
            fails(a, &["[2, 3]", "[2, 4]", "last size"], || a.matmul(b)),
        ),
        (
            "broadcast_to",
            fails(a, &["[2, 3]", "[3, 3]"], || a.broadcast_to([3, 3])),
        ),
    ] {
        assert!(
            matches!(&error, Error::ShapeMismatch(found) if found.op == name),
            "{error:?}"
        );
        assert!(error.to_string().starts_with(name));
    }
    let x = &Tensor::zeros(device, [2, 5, 3], DType::F32)?;
    let y = &Tensor::zeros(device, [3, 3, 4], DType::F32)?;
    fails(
        x,
        &["matmul", "[2, 5, 3]", "[3, 3, 4]", "before the last two"],
        || x.matmul(y),
    );
    let vector = &Tensor::zeros(device, 4, DType::F32)?;
    fails(a, &["[2, 3]", "[4]"], || a.matmul(vector));
    fails(a, &["[4]", "[2, 3]"], || vector.matmul(a));
    Ok(())
}

fn dtypes(context: &Context) -> Result<()> {
    let device = &context.open();
    let a = &Tensor::zeros(device, 3, DType::F32)?;
    let b = &Tensor::zeros(device, 3, DType::I32)?;
    let names = ["f32", "i32", "cast(DType::I32)", "cast(DType::F32)"];
    for error in [
        fails(a, &names, || a.add(b)),
        fails(a, &names, || a.matmul(b)),
    ] {
        assert!(matches!(error, Error::DTypeMismatch(_)));
    }
    fails(a, &["to_vec", "f32", "i32", "cast"], || a.to_vec::<i32>());
    fails(a, &["f32", "f64"], || a.read_into(&mut [0.0f64; 3]));
    fails(a, &["f32", "u32"], || {
        pollster::block_on(a.to_vec_async::<u32>())
    });
    fails(a, &["i32", "f32"], || b.slice(0..1)?.item::<f32>());
    Ok(())
}

fn arguments(context: &Context) -> Result<()> {
    let device = &context.open();
    let a = &Tensor::from_slice(device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    let unsigned = Tensor::zeros(device, 3, DType::U32)?;
    let errors = [
        fails(a, &["transpose", "axis 2", "[2, 3]"], || a.transpose(0, 2)),
        fails(a, &["permute", "axis 0", "[2, 3]", "twice"], || {
            a.permute(&[0, 0])
        }),
        fails(a, &["permute", "[1]"], || a.permute(&[1])),
        fails(a, &["slice", "1..4", "axis 1", "size 3"], || {
            a.slice((.., 1..4))
        }),
        fails(a, &["slice", "3 ranges", "rank 2"], || {
            a.slice((.., .., ..))
        }),
        fails(a, &["slice"], || {
            a.slice(&[SliceRange::from(2..)][..])?.slice(1..)
        }),
        fails(a, &["squeeze", "axis 0"], || a.squeeze(0)),
        fails(a, &["squeeze", "axis 5"], || a.squeeze(5)),
        fails(a, &["unsqueeze", "axis 3"], || a.unsqueeze(3)),
        fails(a, &["reshape", "[2, 3]", "[4, 2]", "6 elements"], || {
            a.reshape([4, 2])
        }),
        fails(a, &["reshape", "-1"], || a.reshape([-1, -1])),
        fails(a, &["reshape"], || a.reshape([-2, 3])),
        fails(a, &["reshape"], || a.reshape([-1, 4])),
        fails(a, &["reshape", "0"], || a.slice(0..0)?.reshape([-1, 0])),
        fails(a, &["reshape"], || a.reshape([usize::MAX, 2])),
        fails(a, &["from_slice", "2 elements", "[3]"], || {
            Tensor::from_slice(device, &[1.0f32, 2.0], 3)
        }),
        fails(a, &["3 elements", "[2]"], || {
            Tensor::from_vec(device, vec![1i32; 3], 2)
        }),
        fails(a, &["item", "[2, 3]", "6 elements"], || a.item::<f32>()),
        fails(a, &["item", "0 elements"], || a.slice(0..0)?.item::<f32>()),
        fails(a, &["read_into", "5 elements", "[2, 3]"], || {
            a.read_into(&mut [0.0f32; 5])
        }),
        fails(a, &["arange", "step"], || {
            Tensor::arange(device, 0, 5, 0, DType::I32)
        }),
        fails(a, &["arange"], || {
            Tensor::arange(device, 0.0, f64::INFINITY, 1, DType::F32)
        }),
        fails(a, &["arange", "i32", "0.5"], || {
            Tensor::arange(device, 0, 1, 0.5, DType::I32)
        }),
        fails(a, &["full", "i32", "1.5"], || {
            Tensor::full(device, 3, 1.5, DType::I32)
        }),
        fails(a, &["full", "u32", "-1"], || {
            Tensor::full(device, 3, -1, DType::U32)
        }),
        fails(a, &["full", "i32", "NaN"], || {
            Tensor::full(device, 3, f64::NAN, DType::I32)
        }),
        fails(a, &["fill", "u32", "-1"], || unsigned.fill(-1)),
        fails(a, &["rand", "i32"], || {
            Tensor::rand(device, 3, DType::I32, 0)
        }),
        fails(a, &["randn", "u32"], || {
            Tensor::randn(device, 3, DType::U32, 0)
        }),
        fails(a, &["matmul", "scalar", "mul"], || {
            a.matmul(&a.slice((0..1, 0..1))?.reshape(())?)
        }),
    ];
    for error in errors {
        let expected = matches!(error, Error::InvalidArgument(_) | Error::TooLarge(_));
        assert!(expected, "{error:?}");
    }
    same(a, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])
}

fn too_large(context: &Context) -> Result<()> {
    // Neither the host nor the device has room for a quadrillion elements.
    let one = &Tensor::ones(&context.open(), 1, DType::F32)?;
    fails(one, &["arange"], || {
        Tensor::arange(one.device(), 0.0, 1e15, 1.0, DType::F32)
    });

    let device = &context.open();
    let a = &Tensor::ones(device, [1, 3], DType::F32)?;
    let huge = usize::MAX / 2;
    for error in [
        fails(a, &["address space"], || {
            Tensor::zeros(device, [huge, 3], DType::F32)
        }),
        fails(a, &["empty"], || {
            Tensor::empty(device, [huge, huge], DType::F32)
        }),
        fails(a, &["broadcast_to", "elements", "address space"], || {
            a.broadcast_to([huge, 3])
        }),
        fails(a, &["rand"], || {
            Tensor::rand(device, [1 << 40, 1 << 40], DType::F32, 1)
        }),
        fails(a, &[], || Tensor::arange(device, 0.0, 1e300, 1, DType::F32)),
        fails(a, &["add"], || a.broadcast_to([1 << 61, 3])?.add(a)),
        fails(a, &["reshape", "18446744073709551615"], || {
            a.reshape([usize::MAX])
        }),
        fails(a, &["reshape", "18446744073709551615"], || {
            a.reshape(&[usize::MAX, 1][..])
        }),
    ] {
        assert!(matches!(error, Error::TooLarge(_)), "{error:?}");
    }
    // What makes a tensor for an op says whose it is.
    let none = &Tensor::zeros(device, [0, 1 << 40, 1 << 40], DType::F32)?;
    fails(a, &["sum:", "elements"], || none.sum(0));
    // Above the device's largest buffer, within the address space.
    let limit = device.capabilities().max_buffer_bytes;
    if let Ok(count) = usize::try_from(limit / 4 + 64)
        && limit < 1 << 60
    {
        let limit = limit.to_string();
        fails(a, &["empty", &limit, "largest buffer", "split"], || {
            Tensor::empty(device, count, DType::F32)
        });
    }
    Ok(())
}

fn travel(_: &Context) -> Result<()> {
    fn travels<T: Send + Sync + Clone + std::error::Error + 'static>() {}
    travels::<Error>();
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<Tensor>();
    crosses::<orlop::Device>();
    crosses::<orlop::Pending<Vec<f32>>>();
    assert!(size_of::<Error>() <= 32);
    Ok(())
}
