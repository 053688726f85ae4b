//! ONNX's ops as calls of orlop's: a thin mapping. What orlop lacks is said to be unsupported.

use orlop::{DType, Device, Epilogue, Error, Shape, SliceRange, SortOrder, Tensor};

use super::proto::{Attribute, Node};
use super::value::{Data, FLOAT, INT64, Value, dtype};

/// Why a case did not pass.
#[derive(Debug)]
pub enum Skip {
    /// An op, a dtype or an option that orlop does not have.
    Unsupported(String),
    /// An error, or another result.
    Wrong(String),
}

impl From<Error> for Skip {
    fn from(error: Error) -> Self {
        Skip::Wrong(error.to_string())
    }
}

pub type Answer<T> = Result<T, Skip>;

pub fn unsupported<T>(what: impl Into<String>) -> Answer<T> {
    Err(Skip::Unsupported(what.into()))
}

/// A node and what comes into it.
pub struct Call<'a> {
    pub device: &'a Device,
    pub node: &'a Node,
    pub inputs: Vec<Option<Value>>,
}

impl Call<'_> {
    pub fn has(&self, at: usize) -> bool {
        self.inputs.get(at).is_some_and(Option::is_some)
    }

    pub fn value(&self, at: usize) -> Answer<&Value> {
        match self.inputs.get(at) {
            Some(Some(value)) => Ok(value),
            _ => unsupported(format!("no input {at}")),
        }
    }

    pub fn tensor(&self, at: usize) -> Answer<&Tensor> {
        let value = self.value(at)?;
        match &value.tensor {
            Some(tensor) => Ok(tensor),
            None => unsupported(format!("dtype {}", value.kind)),
        }
    }

    pub fn tensors(&self) -> Answer<Vec<&Tensor>> {
        (0..self.inputs.len()).map(|at| self.tensor(at)).collect()
    }

    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.node
            .attributes
            .iter()
            .find(|attribute| attribute.name == name)
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name)
            .map_or(default, |attribute| attribute.int)
    }

    pub fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name)
            .map_or(default, |attribute| attribute.float)
    }

    pub fn text(&self, name: &str, default: &str) -> String {
        let text = self.attribute(name);
        text.map_or(default.to_owned(), |a| a.text.clone())
    }

    /// A list that is an input in newer versions and was an attribute in older ones.
    pub fn list(&self, at: usize, name: &str) -> Answer<Option<Vec<i64>>> {
        if self.has(at) {
            return self.value(at)?.integers().map(Some);
        }
        Ok(self.attribute(name).map(|attribute| attribute.ints.clone()))
    }

    /// Results of the first input's kind.
    pub fn like(&self, tensors: Vec<Tensor>) -> Answer<Vec<Value>> {
        let kind = self.value(0)?.kind;
        let values = tensors.into_iter().map(|tensor| Value::made(tensor, kind));
        Ok(values.collect())
    }
}

/// An axis from the end, or not.
pub fn axis(given: i64, rank: usize) -> usize {
    (if given < 0 {
        given + rank as i64
    } else {
        given
    }) as usize
}

pub fn run(call: &Call<'_>) -> Answer<Vec<Value>> {
    if !call.node.domain.is_empty() {
        return unsupported(call.node.domain.clone());
    }
    let op = call.node.op.as_str();
    let one = |tensor: orlop::Result<Tensor>| call.like(vec![tensor?]);
    match op {
        "Add" => one(call.tensor(0)?.add(call.tensor(1)?)),
        "Sub" => one(call.tensor(0)?.sub(call.tensor(1)?)),
        "Mul" => one(call.tensor(0)?.mul(call.tensor(1)?)),
        "Div" => one(call.tensor(0)?.div(call.tensor(1)?)),
        "Sum" => {
            let tensors = call.tensors()?;
            let mut sum = tensors[0].clone();
            for tensor in &tensors[1..] {
                sum = sum.add(tensor)?;
            }
            call.like(vec![sum])
        }
        "MatMul" => one(call.tensor(0)?.matmul(call.tensor(1)?)),
        "Gemm" => gemm(call),
        "Identity" => one(Ok(call.tensor(0)?.clone())),
        "Dropout" => dropout(call),
        "Cast" | "CastLike" => cast(call),
        "Constant" => constant(call),
        "ConstantOfShape" => constant_of_shape(call),
        "EyeLike" => eye(call),
        "Transpose" => {
            let tensor = call.tensor(0)?;
            let backward = || (0..tensor.rank() as i64).rev().collect();
            let axes = call
                .attribute("perm")
                .map_or_else(backward, |a| a.ints.clone());
            let axes: Vec<usize> = axes.iter().map(|&axis| axis as usize).collect();
            one(tensor.permute(&axes))
        }
        "Reshape" => {
            let tensor = call.tensor(0)?;
            let mut sizes = call.value(1)?.integers()?;
            if call.int("allowzero", 0) == 0 {
                for (at, size) in sizes.iter_mut().enumerate().filter(|(_, size)| **size == 0) {
                    *size = tensor.shape()[at] as i64;
                }
            }
            one(tensor.reshape(&sizes[..]))
        }
        "Flatten" => {
            let tensor = call.tensor(0)?;
            let at = axis(call.int("axis", 1), tensor.rank());
            let rows: usize = tensor.shape()[..at].iter().product();
            let columns: usize = tensor.shape()[at..].iter().product();
            one(tensor.reshape([rows, columns]))
        }
        "Unsqueeze" => {
            let mut tensor = call.tensor(0)?.clone();
            let given = call.list(1, "axes")?.unwrap_or_default();
            let rank = tensor.rank() + given.len();
            let mut axes: Vec<usize> = given.iter().map(|&at| axis(at, rank)).collect();
            axes.sort_unstable();
            for at in axes {
                tensor = tensor.unsqueeze(at)?;
            }
            one(Ok(tensor))
        }
        "Squeeze" => {
            let mut tensor = call.tensor(0)?.clone();
            let rank = tensor.rank();
            let mut axes: Vec<usize> = match call.list(1, "axes")? {
                Some(given) => given.iter().map(|&at| axis(at, rank)).collect(),
                None => (0..rank).filter(|&at| tensor.shape()[at] == 1).collect(),
            };
            axes.sort_unstable();
            for at in axes.into_iter().rev() {
                tensor = tensor.squeeze(at)?;
            }
            one(Ok(tensor))
        }
        "Expand" => {
            let tensor = call.tensor(0)?;
            let sizes = call.value(1)?.integers()?;
            let to: Shape = sizes.iter().map(|&size| size as usize).collect();
            let shape = orlop_broadcast(tensor.shape(), &to);
            one(tensor.broadcast_to(shape))
        }
        "Tile" => tile(call),
        "Concat" => {
            let tensors = call.tensors()?;
            let at = axis(call.int("axis", 0), tensors[0].rank());
            one(Tensor::concat(&tensors, at))
        }
        "Split" => split(call),
        "Slice" => slice(call),
        "Pad" => pad(call),
        "Gather" => {
            let (table, index) = (call.tensor(0)?, call.tensor(1)?);
            one(table.index_select(axis(call.int("axis", 0), table.rank()), index))
        }
        "GatherElements" => {
            let (table, index) = (call.tensor(0)?, call.tensor(1)?);
            one(table.gather(axis(call.int("axis", 0), table.rank()), index))
        }
        "Scatter" | "ScatterElements" => {
            let tensor = call.tensor(0)?;
            let at = axis(call.int("axis", 0), tensor.rank());
            let (index, source) = (call.tensor(1)?, call.tensor(2)?);
            match call.text("reduction", "none").as_str() {
                "none" => one(tensor.scatter(at, index, source)),
                "add" => one(tensor.scatter_add(at, index, source)),
                "max" => one(tensor.scatter_max(at, index, source)),
                "min" => one(tensor.scatter_min(at, index, source)),
                other => unsupported(format!("reduction {other}")),
            }
        }
        "Trilu" => {
            let tensor = call.tensor(0)?;
            let diagonal = match call.has(1) {
                true => call.value(1)?.integers()?[0] as isize,
                false => 0,
            };
            match call.int("upper", 1) {
                0 => one(tensor.tril(diagonal)),
                _ => one(tensor.triu(diagonal)),
            }
        }
        "NonZero" => {
            let places = call.tensor(0)?.nonzero()?.transpose(0, 1)?;
            Ok(vec![Value::made(places, INT64)])
        }
        "Compress" => {
            let tensor = call.tensor(0)?;
            let places = call.tensor(1)?.nonzero()?.squeeze(1)?;
            match call.attribute("axis") {
                Some(at) => one(tensor.index_select(axis(at.int, tensor.rank()), &places)),
                None => one(tensor
                    .reshape([tensor.elements()])?
                    .index_select(0, &places)),
            }
        }
        "CumSum" => cumsum(call),
        "TopK" => top_k(call),
        "OneHot" => one_hot(call),
        "Shape" => {
            let shape = call.value(0)?.shape();
            let rank = shape.len() as i64;
            let end = |given: i64| (if given < 0 { given + rank } else { given }).clamp(0, rank);
            let (start, end) = (end(call.int("start", 0)), end(call.int("end", rank)));
            let sizes = &shape[start as usize..end.max(start) as usize];
            integers(
                call,
                sizes.iter().map(|&size| size as i64).collect(),
                vec![sizes.len()],
            )
        }
        "Size" => {
            let count = call.value(0)?.shape().iter().product::<usize>();
            integers(call, vec![count as i64], Vec::new())
        }
        "DepthToSpace" | "SpaceToDepth" => depth(call, op == "DepthToSpace"),
        _ => super::math::run(call),
    }
}

/// NumPy's rule, both ways.
fn orlop_broadcast(a: &Shape, b: &Shape) -> Shape {
    crate::grid::broadcast_shapes(a.dims(), b.dims()).into()
}

fn integers(call: &Call<'_>, numbers: Vec<i64>, shape: Vec<usize>) -> Answer<Vec<Value>> {
    let data = Data {
        kind: INT64,
        shape,
        numbers: super::value::Numbers::Integers(numbers),
    };
    Ok(vec![Value::new(call.device, data)?])
}

fn gemm(call: &Call<'_>) -> Answer<Vec<Value>> {
    let turned = |at: usize, name: &str| -> Answer<Tensor> {
        let tensor = call.tensor(at)?;
        match call.int(name, 0) {
            0 => Ok(tensor.clone()),
            _ => Ok(tensor.transpose(0, 1)?),
        }
    };
    let (a, b) = (turned(0, "transA")?, turned(1, "transB")?);
    let scaled = Epilogue::new().scale(call.float("alpha", 1.0));
    let product = a.matmul_with(&b, &scaled)?;
    if !call.has(2) {
        return call.like(vec![product]);
    }
    let beta = Tensor::full(call.device, (), call.float("beta", 1.0), DType::F32)?;
    call.like(vec![product.add(&call.tensor(2)?.mul(&beta)?)?])
}

fn dropout(call: &Call<'_>) -> Answer<Vec<Value>> {
    let trains = call.has(2) && call.value(2)?.integers()? != [0];
    if trains || call.node.outputs.len() > 1 {
        return unsupported("a dropout that drops, or tells what");
    }
    call.like(vec![call.tensor(0)?.clone()])
}

fn cast(call: &Call<'_>) -> Answer<Vec<Value>> {
    let kind = match call.node.op.as_str() {
        "Cast" => call.int("to", 0) as i32,
        _ => call.value(1)?.kind,
    };
    let Some(to) = dtype(kind) else {
        return unsupported(format!("dtype {kind}"));
    };
    let tensor = call.tensor(0)?;
    // 64 bits are held in 32.
    if kind == INT64 && tensor.dtype() == DType::U32 {
        return unsupported("u32 to i64");
    }
    Ok(vec![Value::made(tensor.cast(to)?, kind)])
}

fn constant(call: &Call<'_>) -> Answer<Vec<Value>> {
    if let Some(tensor) = call.attribute("value").and_then(|a| a.tensor.as_ref()) {
        let Some(data) = Data::of(tensor) else {
            return unsupported("a constant's dtype");
        };
        return Ok(vec![Value::new(call.device, data)?]);
    }
    if let Some(attribute) = call.attribute("value_ints") {
        let count = attribute.ints.len();
        return integers(call, attribute.ints.clone(), vec![count]);
    }
    if let Some(attribute) = call.attribute("value_int") {
        return integers(call, vec![attribute.int], Vec::new());
    }
    let floats = match (
        call.attribute("value_float"),
        call.attribute("value_floats"),
    ) {
        (Some(attribute), _) => (vec![attribute.float], Vec::new()),
        (_, Some(attribute)) => (attribute.floats.clone(), vec![attribute.floats.len()]),
        _ => return unsupported("a constant's kind"),
    };
    let tensor = Tensor::from_slice(call.device, &floats.0, floats.1)?;
    Ok(vec![Value::made(tensor, FLOAT)])
}

fn constant_of_shape(call: &Call<'_>) -> Answer<Vec<Value>> {
    let shape = call.value(0)?.integers()?;
    let shape: Shape = shape.iter().map(|&size| size as usize).collect();
    let data = call
        .attribute("value")
        .and_then(|a| a.tensor.as_ref())
        .map(Data::of);
    let value = match data {
        None => Tensor::zeros(call.device, [1], DType::F32).map(|t| Value::made(t, FLOAT))?,
        Some(Some(data)) => Value::new(call.device, data)?,
        Some(None) => return unsupported("a constant's dtype"),
    };
    let Some(tensor) = &value.tensor else {
        return unsupported("a constant's dtype");
    };
    let whole = tensor.reshape(())?.broadcast_to(shape)?.copy()?;
    Ok(vec![Value::made(whole, value.kind)])
}

fn eye(call: &Call<'_>) -> Answer<Vec<Value>> {
    let given = call.value(0)?;
    let kind = call.int("dtype", i64::from(given.kind)) as i32;
    let (Some(to), &[rows, columns]) = (dtype(kind), &given.shape()[..]) else {
        return unsupported(format!("dtype {kind}"));
    };
    let unit = Tensor::zeros(call.device, [rows, columns], to)?;
    unit.diagonal(call.int("k", 0) as isize, 0, 1)?.fill(1)?;
    Ok(vec![Value::made(unit, kind)])
}

fn tile(call: &Call<'_>) -> Answer<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let (mut pairs, mut once, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for (&size, count) in tensor.shape().iter().zip(call.value(1)?.integers()?) {
        once.extend([1, size]);
        pairs.extend([count as usize, size]);
        sizes.push(size * count as usize);
    }
    call.like(vec![
        tensor
            .reshape(&once[..])?
            .broadcast_to(&pairs[..])?
            .reshape(&sizes[..])?,
    ])
}

fn split(call: &Call<'_>) -> Answer<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let at = axis(call.int("axis", 0), tensor.rank());
    match call.list(1, "split")? {
        Some(sizes) => {
            let sizes: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
            call.like(tensor.split(at, &sizes)?)
        }
        None => call.like(tensor.chunk(at, call.node.outputs.len())?),
    }
}

fn slice(call: &Call<'_>) -> Answer<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let lists = [(1, "starts"), (2, "ends")].map(|(at, name)| call.list(at, name));
    let [Ok(Some(starts)), Ok(Some(ends))] = lists else {
        return unsupported("a slice without ends");
    };
    let all: Vec<i64> = (0..starts.len() as i64).collect();
    let axes = call.list(3, "axes")?.unwrap_or(all);
    let steps = call.list(4, "steps")?.unwrap_or(vec![1; starts.len()]);
    let mut ranges = vec![SliceRange::from(..); tensor.rank()];
    for (((start, end), at), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let at = axis(*at, tensor.rank());
        let size = tensor.shape()[at] as i64;
        let place = |given: i64| {
            if given < 0 {
                given.saturating_add(size)
            } else {
                given
            }
        };
        // A range of indices upwards; its direction is the step's.
        let (low, high) = match *step > 0 {
            true => (place(*start).clamp(0, size), place(*end).clamp(0, size)),
            false => (
                place(*end).clamp(-1, size - 1) + 1,
                place(*start).clamp(-1, size - 1) + 1,
            ),
        };
        let range = low as usize..high.max(low) as usize;
        ranges[at] = SliceRange::from(range).step(*step as isize);
    }
    call.like(vec![tensor.slice(&ranges[..])?])
}

fn pad(call: &Call<'_>) -> Answer<Vec<Value>> {
    let tensor = call.tensor(0)?;
    if call.text("mode", "constant") != "constant" {
        return unsupported("padding with something else than a constant");
    }
    let pads = call.list(1, "pads")?.unwrap_or_default();
    let value = match call.has(2) {
        true => call.value(2)?.floats()?[0],
        false => f64::from(call.float("value", 0.0)),
    };
    let all: Vec<i64> = (0..tensor.rank() as i64).collect();
    let axes = if call.has(3) {
        call.value(3)?.integers()?
    } else {
        all
    };
    let mut widths = vec![(0, 0); tensor.rank()];
    for (index, &at) in axes.iter().enumerate() {
        let (before, after) = (pads[index], pads[index + axes.len()]);
        if before < 0 || after < 0 {
            return unsupported("padding that takes away");
        }
        widths[axis(at, tensor.rank())] = (before as usize, after as usize);
    }
    call.like(vec![tensor.pad(&widths, value)?])
}

fn one_hot(call: &Call<'_>) -> Answer<Vec<Value>> {
    let classes = call.value(1)?.integers()?[0] as usize;
    let values = call.tensor(2)?;
    let index = call.tensor(0)?.cast(DType::I32)?;
    let hot = index.one_hot(classes, values.dtype())?;
    let (off, on) = (values.slice(0..1)?, values.slice(1..2)?);
    let result = hot.mul(&on.sub(&off)?)?.add(&off)?;
    let at = axis(call.int("axis", -1), result.rank());
    let mut axes: Vec<usize> = (0..result.rank() - 1).collect();
    axes.insert(at, result.rank() - 1);
    Ok(vec![Value::made(
        result.permute(&axes)?,
        call.value(2)?.kind,
    )])
}

/// From the end in a flipped tensor; without the element itself of a tensor that is moved on by one.
fn cumsum(call: &Call<'_>) -> Answer<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let at = axis(call.value(1)?.integers()?[0], tensor.rank());
    let is_reverse = call.int("reverse", 0) == 1;
    let turned = |tensor: Tensor| match is_reverse {
        true => tensor.flip(&[at]),
        false => Ok(tensor),
    };
    let mut given = turned(tensor.clone())?;
    if call.int("exclusive", 0) == 1 {
        let mut widths = vec![(0, 0); given.rank()];
        widths[at].0 = 1;
        given = given.pad(&widths, 0)?;
        let mut ranges = vec![SliceRange::from(..); given.rank()];
        ranges[at] = SliceRange::from(..tensor.shape()[at]);
        given = given.slice(&ranges[..])?;
    }
    call.like(vec![turned(given.cumsum(at)?)?])
}

/// In order, whether the case asks for that or not.
fn top_k(call: &Call<'_>) -> Answer<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let count = call.value(1)?.integers()?[0] as usize;
    let order = match call.int("largest", 1) {
        0 => SortOrder::Ascending,
        _ => SortOrder::Descending,
    };
    let at = axis(call.int("axis", -1), tensor.rank());
    let (first, places) = tensor.top_k(count, at, order)?;
    Ok(vec![
        Value::made(first, call.value(0)?.kind),
        Value::made(places, INT64),
    ])
}

fn depth(call: &Call<'_>, to_space: bool) -> Answer<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let block = call.int("blocksize", 1) as usize;
    let [n, c, h, w] = tensor.shape().dims()[..] else {
        return unsupported("another rank");
    };
    let result = if !to_space {
        let cut = tensor.reshape([n, c, h / block, block, w / block, block])?;
        let turned = cut.permute(&[0, 3, 5, 1, 2, 4])?;
        turned.reshape([n, c * block * block, h / block, w / block])?
    } else {
        let inner = c / block / block;
        let turned = match call.text("mode", "DCR").as_str() {
            "DCR" => tensor
                .reshape([n, block, block, inner, h, w])?
                .permute(&[0, 3, 4, 1, 5, 2])?,
            _ => tensor
                .reshape([n, inner, block, block, h, w])?
                .permute(&[0, 1, 4, 2, 5, 3])?,
        };
        turned.reshape([n, inner, h * block, w * block])?
    };
    call.like(vec![result])
}
