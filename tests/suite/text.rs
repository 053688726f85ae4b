//! Tensors as text: `Debug` never downloads, `display` shows the numbers.

use orlop::{DType, Result, Tensor, f16};

use crate::adapters::Context;
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("text::debug", Scope::Device, debug),
        Test::new("text::display", Scope::Device, display),
        Test::new(
            "text::display_of_large_ones",
            Scope::Device,
            display_of_large_ones,
        ),
    ]
}

fn debug(context: &Context) -> Result<()> {
    let device = context.open();
    let tensor = Tensor::from_slice(&device, &[1.5f32; 6], [2, 3])?;
    device.reset_peaks();
    let before = device.memory();
    assert_eq!(
        format!("{tensor:?}"),
        format!("Tensor(f32 [2, 3] on {device})")
    );
    let turned = tensor.transpose(0, 1)?;
    assert_eq!(
        format!("{turned:?}"),
        format!("Tensor(f32 [3, 2] strides [1, 3] on {device})")
    );
    assert_eq!(format!("{:?}", tensor.shape()), "[2, 3]");
    assert_eq!(
        device.memory(),
        before,
        "nothing was copied, not even a view"
    );
    Ok(())
}

fn display(context: &Context) -> Result<()> {
    let device = context.device();
    let shown = |tensor: Tensor| tensor.display();
    assert_eq!(
        shown(Tensor::from_slice(device, &[1i32, -20, 3], 3)?)?,
        "[  1, -20,   3]"
    );
    assert_eq!(shown(Tensor::scalar(device, 2.5f32)?)?, "2.5");
    for shape in [vec![0, 3], vec![3, 0, 2], vec![1 << 40, 0]] {
        assert_eq!(shown(Tensor::zeros(device, shape, DType::F32)?)?, "[]");
    }
    let table = Tensor::from_slice(device, &[1u32, 2, 3, 4, 5, 60], [2, 3])?;
    assert_eq!(shown(table.clone())?, "[[ 1,  2,  3],\n [ 4,  5, 60]]");
    assert_eq!(
        shown(table.transpose(0, 1)?)?,
        "[[ 1,  4],\n [ 2,  5],\n [ 3, 60]]"
    );
    // Eight digits at most, and exponents where one is far from 1.
    let floats = |numbers: &[f64], dtype| {
        let numbers: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
        Tensor::from_slice(device, &numbers, numbers.len())?
            .cast(dtype)?
            .display()
    };
    let third = 1.0 / 3.0;
    assert_eq!(
        floats(&[1.0, third], DType::F32)?,
        "[         1, 0.33333334]"
    );
    assert_eq!(
        floats(&[0.0, 2f64.powi(31)], DType::F32)?,
        "[        0e0, 2.1474836e9]"
    );
    assert_eq!(
        floats(&[1e-38, -1.0, 1e38], DType::F32)?,
        "[1e-38,  -1e0,  1e38]"
    );
    assert_eq!(
        floats(&[99_999_992.0, 2e-4], DType::F32)?,
        "[99999990,   0.0002]"
    );
    assert_eq!(
        floats(&[third, 2.0], DType::F16)?,
        "[0.33325195,          2]"
    );
    let wide = Tensor::from_slice(device, &[third, 1.0 + 1e-12, 250.0], 3);
    if let Ok(wide) = wide {
        assert_eq!(wide.display()?, "[0.33333333,          1,        250]");
        assert_eq!(
            wide.mul(1e-9)?.display()?,
            "[3.33333333e-10,           1e-9,         2.5e-7]"
        );
    }
    let floats = [f32::NAN, f32::INFINITY, -0.5, 100.0];
    assert_eq!(
        shown(Tensor::from_slice(device, &floats, 4)?)?,
        "[ NaN,  inf, -0.5,  100]"
    );
    let halves = [0.5, -1.0].map(f16::from_f32);
    assert_eq!(
        shown(Tensor::from_slice(device, &halves, [1, 2])?)?,
        "[[0.5,  -1]]"
    );
    let wide = Tensor::from_slice(device, &[0.1f64, 0.2], 2)?;
    assert_eq!(shown(wide)?, "[0.1, 0.2]");
    let cube = Tensor::arange(device, 0, 8, 1, DType::I32)?.reshape([2, 2, 2])?;
    assert_eq!(shown(cube)?, "[[[0, 1],\n  [2, 3]],\n [[4, 5],\n  [6, 7]]]");
    // More than a stack has room for.
    let deep = Tensor::from_slice(device, &[7u32], vec![1; 100_000])?;
    assert_eq!(
        shown(deep)?,
        "[".repeat(100_000) + "7" + &"]".repeat(100_000)
    );
    Ok(())
}

fn display_of_large_ones(context: &Context) -> Result<()> {
    let device = context.device();
    let line = Tensor::arange(device, 0, 5000, 1, DType::I32)?;
    assert_eq!(line.display()?, "[   0,    1,    2, ..., 4997, 4998, 4999]");
    let table = line.reshape([50, 100])?.display()?;
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 7, "{table}");
    assert_eq!(rows[0], "[[   0,    1,    2, ...,   97,   98,   99],");
    assert_eq!(rows[3], " ...,");
    assert_eq!(rows[6], " [4900, 4901, 4902, ..., 4997, 4998, 4999]]");
    Ok(())
}
