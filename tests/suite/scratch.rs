//! Ops take memory for their result, and for the scratch that they say: counted by the device.

use orlop::{DType, Result, Tensor};

use crate::adapters::{Context, Variant};
use crate::{Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![Test::new("memory::of_ops", Scope::Kernels, of_ops)]
}

type Op = fn(&Operands) -> Result<Tensor>;

struct Operands {
    /// `[60, 64]`, and the same turned.
    a: Tensor,
    turned: Tensor,
    /// `[64]`.
    row: Tensor,
    /// `[60]`, from 0 to 59 in some order.
    index: Tensor,
}

/// Each op, with the bytes of scratch that its documentation speaks of.
const OPS: &[(&str, u64, Op)] = &[
    ("add", 0, |o| o.a.add(&o.turned)),
    ("add a row", 0, |o| o.a.add(&o.row)),
    ("copy", 0, |o| o.turned.copy()),
    ("cast", 0, |o| o.turned.cast(DType::I32)),
    ("flip", 0, |o| o.a.flip(&[0, 1])?.copy()),
    ("steps", 0, |o| {
        o.a.slice(orlop::SliceRange::from(..).step(-3))?.copy()
    }),
    ("concat", 0, |o| Tensor::concat(&[&o.a, &o.turned, &o.a], 1)),
    ("stack", 0, |o| Tensor::stack(&[&o.a, &o.turned], 2)),
    ("pad", 0, |o| o.turned.pad(&[(1, 2), (3, 4)], 1)),
    ("tril", 0, |o| o.turned.tril(1)),
    ("triu", 0, |o| o.a.triu(1)),
    ("index_select", 0, |o| o.a.index_select(0, &o.index)),
    ("embedding", 0, |o| o.turned.embedding(&o.index)),
    ("gather", 0, |o| o.row.gather(0, &o.index)),
    ("one_hot", 0, |o| o.index.one_hot(64, DType::F32)),
    ("index_add", 0, |o| o.a.index_add(0, &o.index, &o.turned)),
    ("scatter_add", 0, |o| {
        o.row.scatter_add(0, &o.index, &o.row.slice(4..)?)
    }),
    ("randint", 0, |o| {
        Tensor::randint(o.a.device(), 0..9, [777], DType::I32, 1)
    }),
];

fn of_ops(context: &Context) -> Result<()> {
    if !matches!(context.variant, Variant::Plain | Variant::Windows) {
        return Ok(());
    }
    let device = context.open();
    let operands = Operands {
        a: Tensor::randn(&device, [60, 64], DType::F32, 1)?,
        turned: Tensor::randn(&device, [64, 60], DType::F32, 2)?.transpose(0, 1)?,
        row: Tensor::randn(&device, [64], DType::F32, 3)?,
        index: Tensor::from_vec(
            &device,
            (0..60).map(|x| x * 7 % 60).collect::<Vec<i32>>(),
            60,
        )?,
    };
    for (name, scratch, op) in OPS {
        device.synchronize()?;
        device.reset_peaks();
        let before = device.memory().allocated;
        let result = op(&operands)?;
        let taken = device.memory().peak_allocated - before;
        let bytes = (result.elements() * result.dtype().size()) as u64;
        assert_eq!(result.device(), &device, "{name}");
        assert_eq!(taken, bytes.next_multiple_of(256) + scratch, "{name}");
    }
    Ok(())
}
