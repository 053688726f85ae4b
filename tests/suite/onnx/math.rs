//! ONNX's arithmetic, reductions and normalisations.

use orlop::{DType, Tensor, keepdim};

use super::ops::{Answer, Call, axis, unsupported};
use super::value::{INT64, Value};

pub fn run(call: &Call<'_>) -> Answer<Vec<Value>> {
    let op = call.node.op.as_str();
    let one = |tensor: orlop::Result<Tensor>| call.like(vec![tensor?]);
    let x = call.tensor(0)?;
    let y = || call.tensor(1);
    match op {
        "Neg" => one(x.neg()),
        "Relu" => one(x.relu()),
        "Exp" => one(x.exp()),
        "Sqrt" => one(x.sqrt()),
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL2"
        | "ReduceLogSumExp" | "ReduceSumSquare" => reduce(call, op),
        "ArgMax" | "ArgMin" => argument(call, op == "ArgMax"),
        "Softmax" => one(x.softmax(axis(call.int("axis", -1), x.rank()))),
        "LogSoftmax" => one(x.log_softmax(axis(call.int("axis", -1), x.rank()))),
        "Hardmax" => {
            let at = axis(call.int("axis", -1), x.rank());
            let hot = x.argmax(at)?.one_hot(x.shape()[at], x.dtype())?;
            let mut axes: Vec<usize> = (0..x.rank() - 1).collect();
            axes.insert(at, x.rank() - 1);
            one(hot.permute(&axes))
        }
        "LayerNormalization" => layer_norm(call),
        "RMSNormalization" => {
            let axes = inner_axes(x, call.int("axis", -1));
            one(x.rms_norm(&axes[..], Some(y()?), call.float("epsilon", 1e-5)))
        }
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let axes: Vec<usize> = (2..x.rank()).collect();
            match op {
                "GlobalMaxPool" => one(x.max(keepdim(&axes))),
                _ => one(x.mean(keepdim(&axes))),
            }
        }
        "Range" => {
            let [start, end, step] =
                [0, 1, 2].map(|at| -> Answer<f64> { Ok(call.value(at)?.floats()?[0]) });
            match x.dtype() {
                DType::I32 => {
                    let [start, end, step] = [start? as i64, end? as i64, step? as i64];
                    one(Tensor::arange(call.device, start, end, step, DType::I32))
                }
                dtype => one(Tensor::arange(call.device, start?, end?, step?, dtype)),
            }
        }
        _ => unsupported(op),
    }
}

/// The axes from one on.
fn inner_axes(x: &Tensor, from: i64) -> Vec<usize> {
    (axis(from, x.rank())..x.rank()).collect()
}

fn reduce(call: &Call<'_>, op: &str) -> Answer<Vec<Value>> {
    let x = call.tensor(0)?;
    let given = call.list(1, "axes")?.unwrap_or_default();
    let axes: Vec<usize> = match given.is_empty() && call.int("noop_with_empty_axes", 0) == 0 {
        true => (0..x.rank()).collect(),
        false => given.iter().map(|&at| axis(at, x.rank())).collect(),
    };
    let along = match call.int("keepdims", 1) {
        0 => orlop::Axes::from(&axes),
        _ => keepdim(&axes),
    };
    call.like(vec![match op {
        "ReduceSum" => x.sum(along)?,
        "ReduceMean" => x.mean(along)?,
        "ReduceMax" if x.shape().contains(&0) => return unsupported("the maximum of nothing"),
        "ReduceMin" if x.shape().contains(&0) => return unsupported("the minimum of nothing"),
        "ReduceMax" => x.max(along)?,
        "ReduceMin" => x.min(along)?,
        "ReduceProd" => x.prod(along)?,
        "ReduceL2" => x.norm(along)?,
        "ReduceLogSumExp" => x.logsumexp(along)?,
        _ => x.mul(x)?.sum(along)?,
    }])
}

fn argument(call: &Call<'_>, largest: bool) -> Answer<Vec<Value>> {
    let x = call.tensor(0)?;
    let at = axis(call.int("axis", 0), x.rank());
    let last = call.int("select_last_index", 0) == 1;
    // The last of equal ones is the first from the end.
    let seen = if last { x.flip(&[at])? } else { x.clone() };
    let along = match call.int("keepdims", 1) {
        0 => orlop::Axes::from(at),
        _ => keepdim(at),
    };
    let found = if largest {
        seen.argmax(along)?
    } else {
        seen.argmin(along)?
    };
    let mut found = found.cast(DType::I32)?;
    if last {
        let end = Tensor::full(call.device, (), x.shape()[at] as i64 - 1, DType::I32)?;
        found = end.sub(&found)?;
    }
    Ok(vec![Value::made(found, INT64)])
}

/// The result, the mean and the inverse deviation.
fn layer_norm(call: &Call<'_>) -> Answer<Vec<Value>> {
    let x = call.tensor(0)?;
    let axes = inner_axes(x, call.int("axis", -1));
    let epsilon = call.float("epsilon", 1e-5);
    let bias = if call.has(2) {
        Some(call.tensor(2)?)
    } else {
        None
    };
    let result = x.layer_norm(&axes[..], Some(call.tensor(1)?), bias, epsilon)?;
    let [one, least] = [1.0, epsilon].map(|x| Tensor::full(call.device, (), x, DType::F32));
    let inverse = one?.div(&x.var(keepdim(&axes), 0)?.add(&least?)?.sqrt()?)?;
    call.like(vec![result, x.mean(keepdim(&axes))?, inverse])
}
