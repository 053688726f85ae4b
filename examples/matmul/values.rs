//! Matrices on the host: elements of any dtype with the shape and order that they are stored in.

use orlop::{DType, Device, Element, Layout, Result, Shape, Tensor, f16};

/// Elements of one dtype.
#[derive(Clone, Debug)]
pub enum Values {
    /// `<f4` in NumPy.
    F32(Vec<f32>),
    /// `<f2` in NumPy.
    F16(Vec<f16>),
    /// `<f8` in NumPy.
    F64(Vec<f64>),
    /// `<i4` in NumPy.
    I32(Vec<i32>),
    /// `<u4` in NumPy.
    U32(Vec<u32>),
}

/// Runs an expression on the vector inside a [`Values`], whatever its type.
macro_rules! with_elements {
    ($values:expr, $elements:ident => $body:expr) => {
        match $values {
            $crate::values::Values::F32($elements) => $body,
            $crate::values::Values::F16($elements) => $body,
            $crate::values::Values::F64($elements) => $body,
            $crate::values::Values::I32($elements) => $body,
            $crate::values::Values::U32($elements) => $body,
        }
    };
}
pub(crate) use with_elements;

impl Values {
    /// Downloads a tensor's elements, row-major.
    pub fn of(tensor: &Tensor) -> Result<Values> {
        Ok(match tensor.dtype() {
            DType::F32 => Values::F32(tensor.to_vec()?),
            DType::F16 => Values::F16(tensor.to_vec()?),
            DType::F64 => Values::F64(tensor.to_vec()?),
            DType::I32 => Values::I32(tensor.to_vec()?),
            // `DType` may grow; a dtype that is not known here fails as one.
            _ => Values::U32(tensor.to_vec()?),
        })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        with_elements!(self, elements => elements.len())
    }

    /// Their type.
    pub fn dtype(&self) -> DType {
        fn of<T: Element>(_: &[T]) -> DType {
            T::DTYPE
        }
        with_elements!(self, elements => of(elements))
    }
}

/// A matrix, vector or batch of matrices on the host.
#[derive(Clone, Debug)]
pub struct Array {
    /// In the order of memory.
    pub values: Values,
    /// The shape that the reader sees.
    pub shape: Shape,
    /// The first index runs fastest, as in Fortran; else the last.
    pub fortran: bool,
}

impl Array {
    /// Random numbers, the same on every machine: normal floats, integers of up to about 1000.
    pub fn random(shape: Shape, dtype: DType, seed: u64) -> Result<Array> {
        let cpu = Device::cpu();
        let tensor = match dtype {
            DType::I32 => (&Tensor::randn(&cpu, &shape, DType::F32, seed)? * 250.0)?.cast(dtype)?,
            DType::U32 => (&Tensor::rand(&cpu, &shape, DType::F32, seed)? * 1000.0)?.cast(dtype)?,
            _ => Tensor::randn(&cpu, &shape, dtype, seed)?,
        };
        Ok(Array {
            values: Values::of(&tensor)?,
            shape,
            fortran: false,
        })
    }

    /// The same numbers as another dtype, by the rules of [`Tensor::cast`].
    pub fn cast(self, dtype: DType) -> Result<Array> {
        if self.values.dtype() == dtype {
            return Ok(self);
        }
        let memory = self.memory_on(&Device::cpu())?;
        Ok(Array {
            values: Values::of(&memory.cast(dtype)?)?,
            ..self
        })
    }

    /// Uploads the memory as it is; Fortran order becomes a transposed view, without a copy.
    pub fn upload(&self, device: &Device) -> Result<Tensor> {
        let memory = self.memory_on(device)?;
        if self.fortran {
            let axes: Vec<usize> = (0..self.shape.rank()).rev().collect();
            memory.permute(&axes)
        } else {
            Ok(memory)
        }
    }

    /// Where each element lies in `values`.
    pub fn layout(&self) -> Result<Layout> {
        let memory = Layout::contiguous(self.memory_shape());
        if self.fortran {
            let axes: Vec<usize> = (0..self.shape.rank()).rev().collect();
            memory.permute(&axes)
        } else {
            Ok(memory)
        }
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.values.len() * self.values.dtype().size()
    }

    fn memory_on(&self, device: &Device) -> Result<Tensor> {
        let shape = self.memory_shape();
        with_elements!(&self.values, elements => Tensor::from_slice(device, elements, shape))
    }

    /// The shape of the memory, read row-major.
    fn memory_shape(&self) -> Shape {
        if self.fortran {
            self.shape.iter().rev().copied().collect()
        } else {
            self.shape.clone()
        }
    }
}
