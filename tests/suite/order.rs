//! Work happens in program order: memory that was freed and reused while earlier work is still
//! unsubmitted holds what its last writer put there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use orlop::{DType, Result, Tensor};

use crate::adapters::Context;
use crate::operand::same;
use crate::rng::{Rng, cases};
use crate::{Scope, Test, watchdog};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("order::reuse_by_upload", Scope::Device, reuse_by_upload),
        Test::new("order::reuse_by_ops", Scope::Device, reuse_by_ops),
        Test::new("order::read_then_write", Scope::Device, read_then_write),
        Test::new("order::random_programs", Scope::Kernels, random_programs),
        Test::new(
            "order::a_writer_has_its_turn",
            Scope::Device,
            a_writer_has_its_turn,
        ),
    ]
}

/// An op reads `a`; `a` is dropped, an upload takes its chunk; the op must have seen the old one.
fn reuse_by_upload(context: &Context) -> Result<()> {
    let device = context.open();
    for count in [64, 5000, 100_000, 1_500_000] {
        if context.is_slow() && count > 1_000_000 {
            continue;
        }
        for round in 0..6 {
            let a = Tensor::full(&device, count, round, DType::I32)?;
            let sum = a.add(&a)?;
            drop(a);
            // The same size: best fit gives the same chunk.
            let b = Tensor::from_vec(&device, vec![1000 + round; count], count)?;
            let product = b.mul(&b)?;
            drop(b);
            let c = Tensor::from_vec(&device, vec![-5i32; count], count)?;
            assert!(
                sum.to_vec::<i32>()?.iter().all(|&x| x == 2 * round),
                "{count}"
            );
            let square = (1000 + round) * (1000 + round);
            assert!(
                product.to_vec::<i32>()?.iter().all(|&x| x == square),
                "{count}"
            );
            same(&c, &vec![-5i32; count])?;
        }
    }
    Ok(())
}

fn reuse_by_ops(context: &Context) -> Result<()> {
    let device = context.open();
    let count = 3000;
    let one = Tensor::ones(&device, count, DType::I32)?;
    let mut sum = Tensor::zeros(&device, count, DType::I32)?;
    // Each step frees the tensor before it: two chunks go round, hundreds of times a batch.
    for _ in 0..1000 {
        sum = sum.add(&one)?;
    }
    assert!(
        device.memory().peak_allocated <= 3 * 12_032,
        "chunks are reused"
    );
    assert!(sum.to_vec::<i32>()?.iter().all(|&x| x == 1000));
    Ok(())
}

/// Downloads and copies see what was there when they were called.
fn read_then_write(context: &Context) -> Result<()> {
    let device = context.device();
    let tensor = Tensor::zeros(device, 10_000, DType::I32)?;
    let mut copies = Vec::new();
    let mut reads = Vec::new();
    for round in 0..30 {
        tensor.fill(round)?;
        copies.push(tensor.copy()?);
        reads.push(tensor.to_vec_async::<i32>());
    }
    for (round, (copy, read)) in (0..).zip(copies.into_iter().zip(reads)) {
        assert!(copy.to_vec::<i32>()?.iter().all(|&x| x == round));
        assert!(pollster::block_on(read)?.iter().all(|&x| x == round));
    }
    Ok(())
}

/// Long random programs beside a model on the host.
fn random_programs(context: &Context) -> Result<()> {
    let device = context.device();
    let steps = if context.is_slow() { 250 } else { 600 };
    cases(context.times(4), |rng| {
        let mut live: Vec<(Tensor, Vec<i32>)> = Vec::new();
        let mut sums = 0;
        for _ in 0..steps {
            match rng.below(10) {
                0..=2 => {
                    let count = *rng.pick(&[1, 17, 64, 65, 1000, 4096, 20_000]);
                    let start = rng.next() as i32 >> 8;
                    let values: Vec<i32> = (0..count).map(|at| start + at).collect();
                    live.push((Tensor::from_slice(device, &values, count as usize)?, values));
                }
                3 if !live.is_empty() => {
                    let at = rng.below(live.len());
                    live.swap_remove(at);
                }
                4 | 5 => {
                    if let Some(sum) = add_two(rng, &live)? {
                        sums += 1;
                        live.push(sum);
                    }
                }
                6 if !live.is_empty() => {
                    let at = rng.below(live.len());
                    let (tensor, values) = &mut live[at];
                    let start = rng.below(values.len());
                    let value = rng.below(1000) as i32;
                    tensor.slice(start..)?.fill(value)?;
                    values[start..].fill(value);
                }
                7 if !live.is_empty() => {
                    let (tensor, values) = rng.pick(&live);
                    let copy = (tensor.copy()?, values.clone());
                    live.push(copy);
                }
                8 if !live.is_empty() => {
                    let at = rng.below(live.len());
                    same(&live[at].0, &live[at].1)?;
                }
                _ => {
                    if rng.one_in(40) {
                        device.trim()?;
                    }
                    if live.len() > 40 {
                        live.drain(..20);
                    }
                }
            }
        }
        assert!(sums > 0);
        for (tensor, values) in &live {
            same(tensor, values)?;
        }
        Ok(())
    })
}

/// The sum of two live tensors of one length.
fn add_two(rng: &mut Rng, live: &[(Tensor, Vec<i32>)]) -> Result<Option<(Tensor, Vec<i32>)>> {
    if live.is_empty() {
        return Ok(None);
    }
    let (a, a_values) = rng.pick(live);
    let partners: Vec<_> = live
        .iter()
        .filter(|(_, v)| v.len() == a_values.len())
        .collect();
    let (b, b_values) = rng.pick(&partners);
    let values = a_values
        .iter()
        .zip(b_values)
        .map(|(a, b)| a.wrapping_add(*b))
        .collect();
    Ok(Some((a.add(b)?, values)))
}

/// Threads that read one large tensor again and again, by waiting and by futures, never let a writer
/// in between if it were not for turns; each sees a whole state.
fn a_writer_has_its_turn(context: &Context) -> Result<()> {
    let _alone = watchdog::alone();
    let _watchdog = watchdog::minute("order::a_writer_has_its_turn");
    let device = context.open();
    let tensor = Tensor::zeros(&device, 4_000_000, DType::I32)?;
    let done = AtomicBool::new(false);
    let read = |index: usize| -> Result<i32> {
        let mut last = 0;
        let mut pending = Vec::new();
        while !done.load(Ordering::Acquire) {
            let seen = match index {
                0 => {
                    pending.push(tensor.to_vec_async::<i32>());
                    match pending.len() {
                        3 => pollster::block_on(pending.remove(0))?,
                        _ => continue,
                    }
                }
                _ => tensor.to_vec::<i32>()?,
            };
            assert!(seen.iter().all(|&x| x == seen[0]), "half written");
            assert!(seen[0] >= last, "back in time");
            last = seen[0];
        }
        Ok(last)
    };
    let read = &read;
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|index| scope.spawn(move || read(index)))
            .collect();
        let written = (1..=8).try_for_each(|value| tensor.fill(value));
        done.store(true, Ordering::Release);
        for reader in readers {
            reader.join().expect("no panic")?;
        }
        written
    })?;
    same(&tensor, &vec![8; 4_000_000])
}
