//! ONNX's tensors as orlop's. Integers of 64 bits are i32 where they fit; their own bits stay on the host
//! for what are parameters (axes, shapes).

use orlop::{DType, Device, Tensor, bf16, f16};

use super::ops::Skip;
use super::proto::TensorData;

/// `TensorProto.DataType`.
pub const FLOAT: i32 = 1;
pub const INT32: i32 = 6;
pub const INT64: i32 = 7;
pub const BOOL: i32 = 9;
pub const FLOAT16: i32 = 10;
pub const DOUBLE: i32 = 11;
pub const UINT32: i32 = 12;
pub const BFLOAT16: i32 = 16;

pub fn is_float(kind: i32) -> bool {
    [FLOAT, FLOAT16, DOUBLE, BFLOAT16].contains(&kind) || kind >= 17
}

/// The dtype that stands for a kind.
pub fn dtype(kind: i32) -> Option<DType> {
    Some(match kind {
        FLOAT => DType::F32,
        FLOAT16 => DType::F16,
        BFLOAT16 => DType::BF16,
        DOUBLE => DType::F64,
        INT32 | INT64 => DType::I32,
        UINT32 => DType::U32,
        BOOL => DType::Bool,
        _ => return None,
    })
}

#[derive(Clone, Debug)]
pub enum Numbers {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
}

/// A tensor from a file.
#[derive(Clone, Debug)]
pub struct Data {
    pub kind: i32,
    pub shape: Vec<usize>,
    pub numbers: Numbers,
}

impl Data {
    /// Nothing for kinds that are no numbers of whole bytes.
    pub fn of(data: &TensorData) -> Option<Self> {
        let shape: Vec<usize> = data.dims.iter().map(|&size| size as usize).collect();
        let count: usize = shape.iter().product();
        let raw = &data.raw;
        let (ints, floats) = (&data.small, &data.floats);
        macro_rules! read {
            ($type:ty as $wide:ty) => {
                raw.chunks_exact(size_of::<$type>())
                    .map(|bytes| <$type>::from_le_bytes(bytes.try_into().unwrap()) as $wide)
                    .collect::<Vec<$wide>>()
            };
        }
        let halves = |from: fn(u16) -> f64| -> Vec<f64> {
            match raw.is_empty() {
                true => ints.iter().map(|&bits| from(bits as u16)).collect(),
                false => read!(u16 as u16).into_iter().map(from).collect(),
            }
        };
        let numbers = match data.kind {
            FLOAT if raw.is_empty() => Numbers::Floats(floats.iter().map(|&x| x.into()).collect()),
            FLOAT => Numbers::Floats(read!(f32 as f64)),
            DOUBLE if raw.is_empty() => Numbers::Floats(data.doubles.clone()),
            DOUBLE => Numbers::Floats(read!(f64 as f64)),
            FLOAT16 => Numbers::Floats(halves(|bits| f16::from_bits(bits).to_f64())),
            BFLOAT16 => Numbers::Floats(halves(|bits| bf16::from_bits(bits).to_f64())),
            INT64 if raw.is_empty() => Numbers::Integers(data.ints.clone()),
            INT64 => Numbers::Integers(read!(i64 as i64)),
            UINT32 if raw.is_empty() => return None,
            UINT32 => Numbers::Integers(read!(u32 as i64)),
            // Those of up to 32 bits lie in one list where they are not raw.
            2..=6 | BOOL if raw.is_empty() => Numbers::Integers(ints.clone()),
            2 | BOOL => Numbers::Integers(read!(u8 as i64)),
            3 => Numbers::Integers(read!(i8 as i64)),
            4 => Numbers::Integers(read!(u16 as i64)),
            5 => Numbers::Integers(read!(i16 as i64)),
            INT32 => Numbers::Integers(read!(i32 as i64)),
            _ => return None,
        };
        let length = match &numbers {
            Numbers::Integers(all) => all.len(),
            Numbers::Floats(all) => all.len(),
        };
        (length == count).then_some(Self {
            kind: data.kind,
            shape,
            numbers,
        })
    }
}

/// A tensor of a graph: on the device if orlop has its dtype, and on the host if it was read.
#[derive(Clone, Debug)]
pub struct Value {
    pub kind: i32,
    pub data: Option<Data>,
    pub tensor: Option<Tensor>,
}

impl Value {
    pub fn new(device: &Device, data: Data) -> Result<Self, Skip> {
        let shape = &data.shape[..];
        let tensor = match (&data.numbers, dtype(data.kind)) {
            (Numbers::Floats(all), Some(dtype)) => Some(match dtype {
                DType::F32 => {
                    let all: Vec<f32> = all.iter().map(|&x| x as f32).collect();
                    Tensor::from_slice(device, &all, shape)?
                }
                DType::F16 => {
                    let all: Vec<f16> = all.iter().map(|&x| f16::from_f64(x)).collect();
                    Tensor::from_slice(device, &all, shape)?
                }
                DType::BF16 => {
                    let all: Vec<bf16> = all.iter().map(|&x| bf16::from_f64(x)).collect();
                    Tensor::from_slice(device, &all, shape)?
                }
                // Where the device has none it lives on the CPU.
                _ => match device.capabilities().holds(DType::F64) {
                    true => Tensor::from_slice(device, all, shape)?,
                    false => Tensor::from_slice(&Device::cpu(), all, shape)?,
                },
            }),
            (Numbers::Integers(all), Some(DType::U32)) => {
                let all: Vec<u32> = all.iter().map(|&x| x as u32).collect();
                Some(Tensor::from_slice(device, &all, shape)?)
            }
            (Numbers::Integers(all), Some(DType::Bool)) => {
                let all: Vec<bool> = all.iter().map(|&x| x != 0).collect();
                Some(Tensor::from_slice(device, &all, shape)?)
            }
            (Numbers::Integers(all), Some(_)) => {
                let all: Result<Vec<i32>, _> = all.iter().map(|&x| i32::try_from(x)).collect();
                let all = all.ok();
                let made = all.map(|all| Tensor::from_slice(device, &all, shape));
                made.transpose()?
            }
            (_, None) => None,
        };
        Ok(Self {
            kind: data.kind,
            data: Some(data),
            tensor,
        })
    }

    /// What an op gave.
    pub fn made(tensor: Tensor, kind: i32) -> Self {
        Self {
            kind,
            data: None,
            tensor: Some(tensor),
        }
    }

    pub fn shape(&self) -> Vec<usize> {
        match (&self.data, &self.tensor) {
            (Some(data), _) => data.shape.clone(),
            (None, Some(tensor)) => tensor.shape().dims().to_vec(),
            (None, None) => Vec::new(),
        }
    }

    /// The numbers as a parameter.
    pub fn integers(&self) -> Result<Vec<i64>, Skip> {
        match self.numbers()? {
            Numbers::Integers(all) => Ok(all),
            Numbers::Floats(all) => Ok(all.iter().map(|&x| x as i64).collect()),
        }
    }

    pub fn floats(&self) -> Result<Vec<f64>, Skip> {
        match self.numbers()? {
            Numbers::Integers(all) => Ok(all.iter().map(|&x| x as f64).collect()),
            Numbers::Floats(all) => Ok(all),
        }
    }

    fn numbers(&self) -> Result<Numbers, Skip> {
        if let Some(data) = &self.data {
            return Ok(data.numbers.clone());
        }
        let Some(tensor) = &self.tensor else {
            return Err(Skip::Unsupported(format!("dtype {}", self.kind)));
        };
        Ok(match tensor.dtype() {
            DType::Bool => {
                let all = tensor.to_vec::<bool>()?;
                Numbers::Integers(all.into_iter().map(i64::from).collect())
            }
            DType::I32 => {
                Numbers::Integers(tensor.to_vec::<i32>()?.into_iter().map(i64::from).collect())
            }
            DType::U32 => {
                Numbers::Integers(tensor.to_vec::<u32>()?.into_iter().map(i64::from).collect())
            }
            _ => Numbers::Floats(tensor.cast(DType::F64)?.to_vec()?),
        })
    }

    /// # Errors
    /// What differs.
    pub fn compare(&self, want: &Data) -> Result<(), String> {
        let shape = self.shape();
        if shape != want.shape {
            return Err(format!("shape {shape:?}, not {:?}", want.shape));
        }
        if self.kind != want.kind {
            return Err(format!("dtype {}, not {}", self.kind, want.kind));
        }
        let got = self.numbers().map_err(|skip| format!("{skip:?}"))?;
        match (&got, &want.numbers) {
            (Numbers::Integers(got), Numbers::Integers(want)) => {
                match got.iter().zip(want).position(|(got, want)| got != want) {
                    None => Ok(()),
                    Some(at) => Err(format!("element {at} is {}, not {}", got[at], want[at])),
                }
            }
            (Numbers::Floats(got), Numbers::Floats(want)) => {
                let far = |(got, want): (&f64, &f64)| {
                    let near = (got - want).abs() <= 1e-7 + 1e-3 * want.abs();
                    !(near || got == want || (got.is_nan() && want.is_nan()))
                };
                match got.iter().zip(want).position(far) {
                    None => Ok(()),
                    Some(at) => Err(format!("element {at} is {}, not {}", got[at], want[at])),
                }
            }
            _ => Err("integers for floats".to_owned()),
        }
    }
}
