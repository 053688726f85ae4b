//! Scopes: which ops they move, and which things they leave where they are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use orlop::{DType, Device, Placement, PlacementLog, Result, Tensor, f16};

use crate::adapters::Context;
use crate::operand::same;
use crate::placement::{is_unsupported, last, open};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("scopes::beat_the_home", Scope::Device, beat_the_home),
        Test::new("scopes::nest_and_unwind", Scope::Device, nest_and_unwind),
        Test::new("scopes::leave_in_place", Scope::Device, leave_in_place),
        Test::new("scopes::what_is_missing", Scope::Gpu, what_is_missing),
        Test::new(
            "scopes::are_of_one_thread",
            Scope::Device,
            are_of_one_thread,
        ),
        Test::new(
            "scopes::casts_to_the_same",
            Scope::Device,
            casts_to_the_same,
        ),
        Test::new("scopes::and_futures", Scope::Device, and_futures),
    ]
}

fn beat_the_home(context: &Context) -> Result<()> {
    let (home, other) = (context.open(), Device::select("cpu")?);
    let a = Tensor::from_slice(&home, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    for (from, to) in [(&home, &other), (&other, &home)] {
        let a = a.to(from)?;
        // Memory that nobody else has is not taken over where it is.
        let own = (&a + 0.0)?;
        let sum = to.scope(|| own.into_add(1.0))?;
        assert_eq!(sum.device(), to);
        same(&sum, &[2.0f32, 3.0, 4.0, 5.0])?;
        to.clear_placement_log();
        let (sum, product, wide, number, copy) = to.scope(|| {
            Ok((
                a.add(&a)?,
                a.matmul(&a)?,
                a.cast(DType::I32)?,
                (&a + 1.0)?,
                a.copy()?,
            ))
        })?;
        for tensor in [&sum, &product, &wide, &number, &copy] {
            assert_eq!(tensor.device(), to);
        }
        same(&sum, &[2.0f32, 4.0, 6.0, 8.0])?;
        same(&product, &[7.0f32, 10.0, 15.0, 22.0])?;
        same(&wide, &[1i32, 2, 3, 4])?;
        same(&number, &[2.0f32, 3.0, 4.0, 5.0])?;
        let log = to.placement_log();
        assert_eq!(log.events.len(), 5, "{log}");
        for event in &log.events {
            assert_eq!(event.bytes_moved, 16, "{log}");
            assert!(event.reason.contains("scope"), "{log}");
            assert_eq!(event.from, from.to_string());
            assert_eq!([&event.to, &event.result], [&to.to_string(); 2]);
        }
        // The empty sum of a product without inner size.
        let none = a.slice((.., 0..0))?;
        let zeros = to.scope(|| none.matmul(&none.transpose(0, 1)?))?;
        assert_eq!(zeros.device(), to);
        same(&zeros, &[0.0f32; 4])?;
        assert_eq!(a.add(&a)?.device(), from, "the scope is over");
    }
    Ok(())
}

fn nest_and_unwind(context: &Context) -> Result<()> {
    let (home, other) = (context.open(), context.open());
    let a = Tensor::ones(&home, 3, DType::F32)?;
    let on = || a.add(&a).map(|sum| sum.device().clone());
    other.scope(|| {
        assert_eq!(on()?, other);
        assert_eq!(home.scope(on)?, home, "the innermost counts");
        assert_eq!(on()?, other);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            home.scope(|| Device::cpu().scope(|| panic!("on purpose")))
        }));
        assert!(caught.is_err());
        assert_eq!(on()?, other, "a panic closes its scopes");
        orlop::Result::Ok(())
    })?;
    assert_eq!(on()?, home);
    // A scope keeps its device alive and no longer.
    let before = other.scope(|| 7);
    assert_eq!(before, 7);
    Ok(())
}

/// Views, reads, writes in place, creation and moves that are asked for.
fn leave_in_place(context: &Context) -> Result<()> {
    let (home, other) = (context.open(), Device::select("cpu")?);
    let a = Tensor::from_slice(&home, &[1i32, 2, 3, 4, 5, 6], [2, 3])?;
    other.scope(|| {
        let turned = a.transpose(0, 1)?;
        same(&turned, &[1i32, 4, 2, 5, 3, 6])?;
        for tensor in [
            turned.clone(),
            turned.contiguous()?,
            turned.reshape([6])?,
            a.slice((.., 1..2))?,
            a.to(&home)?,
            Tensor::zeros(&home, 2, DType::F32)?,
            Tensor::rand(&home, 2, DType::F32, 1)?,
            Tensor::arange(&home, 0, 3, 1, DType::I32)?,
            Tensor::from_slice(&home, &[1u32], 1)?,
            Tensor::empty(&home, 2, DType::F32)?,
        ] {
            assert_eq!(tensor.device(), &home, "{tensor:?}");
        }
        a.slice((.., 0..1))?.fill(9)?;
        assert_eq!(a.slice((0..1, 0..1))?.item::<i32>()?, 9);
        assert!(a.transpose(0, 1)?.display()?.contains('9'));
        same(&a, &[9i32, 2, 3, 9, 5, 6])
    })?;
    for device in [&home, &other] {
        assert_eq!(device.placement_log(), PlacementLog::default());
    }
    // The operand travels to what is written, whatever the scope.
    if home != other {
        let one = Tensor::ones(&other, [2, 3], DType::I32)?;
        other.scope(|| a.add_assign(&one))?;
        let log = home.placement_log();
        let event = log.events.last().expect("the operand travelled");
        assert!(event.reason.contains("different devices"), "{log}");
    }
    Ok(())
}

/// Soft: the CPU does it and the result comes to the scope's device. Strict: an error.
fn what_is_missing(context: &Context) -> Result<()> {
    let soft = open(context, Placement::Soft)?;
    let strict = open(context, Placement::Strict)?;
    let own_cpu = Device::select("cpu")?;
    let halves = Tensor::from_slice(&own_cpu, &[1.5f32, 2.5].map(f16::from_f32), 2)?;
    let sum = soft.scope(|| halves.add(&halves))?;
    assert_eq!(sum.device(), &soft);
    same(&sum, &[3.0f32, 5.0].map(f16::from_f32))?;
    let event = last(&soft);
    assert_eq!((event.bytes_moved, &event.to), (4, &soft.to_string()));
    assert_eq!(strict.scope(|| halves.add(&halves))?.device(), &strict);
    let doubles = Tensor::from_slice(&own_cpu, &[1.5f64, 2.5], 2)?;
    let sum = soft.scope(|| doubles.add(&doubles))?;
    same(&sum, &[3.0f64, 5.0])?;
    let single = soft.scope(|| sum.cast(DType::F32))?;
    assert_eq!(single.device(), &soft);
    if soft.capabilities().f64 {
        assert_eq!(sum.device(), &soft);
    } else {
        assert_eq!(sum.device(), &Device::cpu(), "home cannot hold it");
        is_unsupported(strict.scope(|| doubles.add(&doubles)), &["f64"]);
    }
    Ok(())
}

fn are_of_one_thread(context: &Context) -> Result<()> {
    let home = context.open();
    let a = Tensor::ones(&home, 3, DType::F32)?;
    let outside = Device::cpu().scope(|| {
        std::thread::scope(|scope| scope.spawn(|| a.add(&a)).join().expect("no panic"))
    })?;
    assert_eq!(outside.device(), &home);
    Ok(())
}

/// Whether there is something to convert or not, the result lives on the scope's device.
fn casts_to_the_same(context: &Context) -> Result<()> {
    let a = Tensor::ones(&context.open(), 3, DType::F32)?;
    let here = a.cast(DType::F32)?;
    assert!(here.device() == a.device() && here.shares_storage(&a));
    for dtype in [DType::F32, DType::F16] {
        let cast = Device::cpu().scope(|| a.cast(dtype))?;
        assert_eq!(cast.device(), &Device::cpu(), "{dtype}");
    }
    // Where there is no f64 they stay on the CPU, as what is computed with them does.
    let doubles = Tensor::ones(&Device::cpu(), 3, DType::F64)?;
    let device = context.open();
    let [cast, sum] = [
        device.scope(|| doubles.cast(DType::F64))?,
        device.scope(|| doubles.add(&doubles))?,
    ];
    assert_eq!(cast.device(), sum.device());
    Ok(())
}

/// A future is polled where its executor pleases: the scope that it was made in is over.
fn and_futures(context: &Context) -> Result<()> {
    let (home, other) = (context.open(), Device::select("cpu")?);
    let a = Tensor::ones(&home, 3, DType::F32)?;
    let (before, after, read) = pollster::block_on(other.scope(|| async {
        let before = a.add(&a)?;
        let read = before.to_vec_async::<f32>().await?;
        let after = other.scope(|| a.add(&a))?;
        orlop::Result::Ok((before, after, read))
    }))?;
    assert_eq!(before.device(), &home);
    assert_eq!(after.device(), &other);
    assert_eq!(read, [2.0; 3]);
    Ok(())
}
