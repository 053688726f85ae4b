//! ONNX's arithmetic, reductions and normalisations.

use orlop::{DType, Tensor, keepdim};

use super::ops::{Answer, Call, axis, unsupported};
use super::value::{BOOL, INT64, Value};

pub fn run(call: &Call<'_>) -> Answer<Vec<Value>> {
    let op = call.node.op.as_str();
    let one = |tensor: orlop::Result<Tensor>| call.like(vec![tensor?]);
    let bools = |tensor: orlop::Result<Tensor>| Ok(vec![Value::made(tensor?, BOOL)]);
    let x = call.tensor(0)?;
    let y = || call.tensor(1);
    let alpha = |default: f32| call.float("alpha", default);
    match op {
        "Neg" => one(x.neg()),
        "Relu" => one(x.relu()),
        "Exp" => one(x.exp()),
        "Sqrt" => one(x.sqrt()),
        "Abs" => one(x.abs()),
        "Sign" => one(x.sign()),
        "Reciprocal" => one(x.recip()),
        "Floor" => one(x.floor()),
        "Ceil" => one(x.ceil()),
        "Round" => one(x.round()),
        "Log" => one(x.log()),
        "Sin" => one(x.sin()),
        "Cos" => one(x.cos()),
        "Tan" => one(x.tan()),
        "Asin" => one(x.asin()),
        "Acos" => one(x.acos()),
        "Atan" => one(x.atan()),
        "Sinh" => one(x.sinh()),
        "Cosh" => one(x.cosh()),
        "Asinh" => one(x.asinh()),
        "Acosh" => one(x.acosh()),
        "Atanh" => one(x.atanh()),
        "Tanh" => one(x.tanh()),
        "Sigmoid" => one(x.sigmoid()),
        "Erf" => one(x.erf()),
        "Softplus" => one(x.softplus()),
        "Softsign" => one(x.div(&x.abs()?.add(1)?)),
        "Mish" => one(x.mul(&x.softplus()?.tanh()?)),
        "Swish" => one(x.mul(&x.mul(alpha(1.0))?.sigmoid()?)),
        "LeakyRelu" => one(x.leaky_relu(alpha(0.01))),
        "PRelu" => one(x.maximum(0)?.add(&x.minimum(0)?.mul(y()?)?)),
        "Elu" => one(x.maximum(0)?.add(&x.minimum(0)?.expm1()?.mul(alpha(1.0))?)),
        "Celu" => {
            let below = x.minimum(0)?.div(alpha(1.0))?.expm1()?.mul(alpha(1.0))?;
            one(x.maximum(0)?.add(&below))
        }
        "Selu" => {
            let below = x.minimum(0)?.expm1()?.mul(alpha(1.673_263_2))?;
            one(x
                .maximum(0)?
                .add(&below)?
                .mul(call.float("gamma", 1.050_701)))
        }
        "HardSigmoid" => one(x.mul(alpha(0.2))?.add(call.float("beta", 0.5))?.clamp(0, 1)),
        "HardSwish" => one(x.mul(&x.mul(1.0 / 6.0)?.add(0.5)?.clamp(0, 1)?)),
        "ThresholdedRelu" => one(x.gt(alpha(1.0))?.select(x, 0)),
        "Gelu" => match call.text("approximate", "none").as_str() {
            "tanh" => one(x.gelu_tanh()),
            _ => one(x.gelu()),
        },
        "Pow" => one(x.pow(&y()?.cast(x.dtype())?)),
        "Mod" => match call.int("fmod", 0) {
            0 => one(x.rem(y()?)?.add(y()?)?.rem(y()?)),
            _ => one(x.rem(y()?)),
        },
        "Max" | "Min" | "Mean" => {
            let tensors = call.tensors()?;
            let mut all = tensors[0].clone();
            for tensor in &tensors[1..] {
                all = match op {
                    "Max" => all.maximum(tensor)?,
                    "Min" => all.minimum(tensor)?,
                    _ => all.add(tensor)?,
                };
            }
            match op {
                "Mean" => one(all.div(tensors.len() as i64)),
                _ => one(Ok(all)),
            }
        }
        "Clip" => {
            let mut result = x.clone();
            if call.has(1) {
                result = result.maximum(y()?)?;
            }
            if call.has(2) {
                result = result.minimum(call.tensor(2)?)?;
            }
            one(Ok(result))
        }
        "Where" => {
            let (yes, no) = (call.value(1)?, call.value(2)?);
            let result = x.select(call.tensor(1)?, call.tensor(2)?)?;
            match yes.kind == no.kind {
                true => Ok(vec![Value::made(result, yes.kind)]),
                false => unsupported("mixed dtypes"),
            }
        }
        "Equal" => bools(x.eq(y()?)),
        "Greater" => bools(x.gt(y()?)),
        "GreaterOrEqual" => bools(x.ge(y()?)),
        "Less" => bools(x.lt(y()?)),
        "LessOrEqual" => bools(x.le(y()?)),
        "And" => bools(x.logical_and(y()?)),
        "Or" => bools(x.logical_or(y()?)),
        "Xor" => bools(x.logical_xor(y()?)),
        "Not" => bools(x.logical_not()),
        "BitwiseAnd" => one(x.bitwise_and(y()?)),
        "BitwiseOr" => one(x.bitwise_or(y()?)),
        "BitwiseXor" => one(x.bitwise_xor(y()?)),
        "BitwiseNot" => one(x.bitwise_not()),
        "BitShift" => match call.text("direction", "").as_str() {
            "LEFT" => one(x.shift_left(y()?)),
            _ => one(x.shift_right(y()?)),
        },
        "IsNaN" => bools(x.is_nan()),
        "IsInf" => {
            let ways = (
                call.int("detect_positive", 1),
                call.int("detect_negative", 1),
            );
            bools(match ways {
                (1, 1) => x.abs()?.eq(f32::INFINITY),
                (1, _) => x.eq(f32::INFINITY),
                _ => x.eq(f32::NEG_INFINITY),
            })
        }
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1"
        | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceSumSquare" => reduce(call, op),
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
        "LpNormalization" => {
            let at = axis(call.int("axis", -1), x.rank());
            let size = match call.int("p", 2) {
                1 => x.abs()?.sum(keepdim(at))?,
                _ => x.norm(keepdim(at))?,
            };
            one(x.div(&size))
        }
        "LayerNormalization" => layer_norm(call),
        "RMSNormalization" => {
            let axes = inner_axes(x, call.int("axis", -1));
            one(x.rms_norm(&axes[..], Some(y()?), call.float("epsilon", 1e-5)))
        }
        "MeanVarianceNormalization" => {
            let axes = call
                .attribute("axes")
                .map_or(vec![0, 2, 3], |a| a.ints.clone());
            let axes: Vec<usize> = axes.iter().map(|&at| axis(at, x.rank())).collect();
            let centred = x.sub(&x.mean(keepdim(&axes))?)?;
            one(centred.div(&x.std(keepdim(&axes), 0)?.add(1e-9)?))
        }
        "BatchNormalization" if call.int("training_mode", 0) == 0 => {
            let along = |at: usize| -> Answer<Tensor> {
                let mut sizes = vec![1; x.rank()];
                sizes[1] = x.shape()[1];
                Ok(call.tensor(at)?.reshape(&sizes[..])?)
            };
            let spread = along(4)?.add(call.float("epsilon", 1e-5))?.rsqrt()?;
            let factor = along(1)?.mul(&spread)?;
            one(x.sub(&along(3)?)?.mul_add(&factor, &along(2)?))
        }
        "InstanceNormalization" | "GroupNormalization" => {
            let [n, c] = [x.shape()[0], x.shape()[1]];
            let groups = if op.starts_with('I') {
                c
            } else {
                call.int("num_groups", 1) as usize
            };
            let flat = x.reshape(&[n as i64, groups as i64, -1][..])?;
            let epsilon = call.float("epsilon", 1e-5);
            let result = flat
                .layer_norm(2, None, None, epsilon)?
                .reshape(x.shape())?;
            let mut sizes = vec![1; x.rank()];
            sizes[1] = c;
            let [scale, bias] =
                [1, 2].map(|at| -> Answer<Tensor> { Ok(call.tensor(at)?.reshape(&sizes[..])?) });
            one(result.mul_add(&scale?, &bias?))
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
        _ => super::windows::run(call),
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
        "ReduceMax" if x.dtype() == DType::Bool => {
            x.cast(DType::I32)?.max(along)?.cast(DType::Bool)?
        }
        "ReduceMin" if x.dtype() == DType::Bool => {
            x.cast(DType::I32)?.min(along)?.cast(DType::Bool)?
        }
        "ReduceMax" if x.shape().contains(&0) => return unsupported("the maximum of nothing"),
        "ReduceMin" if x.shape().contains(&0) => return unsupported("the minimum of nothing"),
        "ReduceMax" => x.max(along)?,
        "ReduceMin" => x.min(along)?,
        "ReduceProd" => x.prod(along)?,
        "ReduceL1" => x.abs()?.sum(along)?,
        "ReduceL2" => x.norm(along)?,
        "ReduceLogSum" => x.sum(along)?.log()?,
        "ReduceLogSumExp" => x.logsumexp(along)?,
        _ => x.square()?.sum(along)?,
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
        found = found.neg()?.add(x.shape()[at] as i64 - 1)?;
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
    let inverse = x.var(keepdim(&axes), 0)?.add(epsilon)?.rsqrt()?;
    call.like(vec![result, x.mean(keepdim(&axes))?, inverse])
}
