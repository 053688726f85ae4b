//! NumPy's `.npy` files.

mod header;
mod matrix;

pub use matrix::{NpyMatrix, NpyMatrixMut};

use std::fs::File;
use std::io::{BufReader, Read, Seek, Write};
use std::path::Path;

use super::file::{Failing, RANK, READER, WRITER, copy_in, copy_out, left, replace};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The header's file uses only std, so it has a constant of its own.
const _: () = assert!(header::RANK == RANK);

/// # NumPy files
///
/// With the feature `npy`. Dtypes are `f2`, `f4`, `f8`, `i4`, `u4` and `b1`. Data goes through staging in
/// pieces of 4 MiB; it is never whole on the host beside the tensor.
impl Tensor {
    /// Reads the `.npy` array that starts where the reader is, in either byte order, and leaves the
    /// reader after it. An array in Fortran order becomes a transposed view, not a copy.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for what is no such array, another dtype, or less data
    /// than the header says, before memory is taken for it; what [`Tensor::empty`] says.
    pub fn from_npy(device: &Device, reader: impl Read + Seek) -> Result<Tensor> {
        read(&Failing::new("from_npy", READER), device, reader, false)
    }

    /// Reads a `.npy` file, which holds one array and nothing after it.
    ///
    /// # Errors
    /// As [`Tensor::from_npy`]; [`Error::File`](crate::Error::File) names the file.
    pub fn load_npy(device: &Device, path: impl AsRef<Path>) -> Result<Tensor> {
        let path = path.as_ref();
        let failing = Failing::new("load_npy", path.display());
        let file = File::open(path).map_err(failing.io())?;
        read(&failing, device, BufReader::new(file), true)
    }

    /// Writes a `.npy` array, in Fortran order where the elements lie so, else in C order. Elements are read while
    /// the writer takes them: work that writes into the tensor's own memory meanwhile, on another thread or in the
    /// writer, may be in some of them and not in others.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) when the writer fails, for more than 64 dimensions, or for bf16, which NumPy does
    /// not have; as [`Tensor::to_vec`].
    pub fn to_npy(&self, mut writer: impl Write) -> Result<()> {
        write(&Failing::new("to_npy", WRITER), self, &mut writer)
    }

    /// Writes a `.npy` file, as [`Tensor::to_npy`] does. One that is there is replaced when all is on the disk, by another beside
    /// it that takes its name, so the folder has to take another file: where the call fails it is as it was.
    ///
    /// # Errors
    /// As [`Tensor::to_npy`]; [`Error::File`](crate::Error::File) names the file.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failing = Failing::new("save_npy", path.display());
        replace(&failing, path, |writer| write(&failing, self, writer))
    }
}

/// NumPy's name of a dtype, if it has it.
fn kind(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "f4",
        DType::F16 => "f2",
        DType::I32 => "i4",
        DType::U32 => "u4",
        DType::F64 => "f8",
        DType::Bool => "b1",
        DType::BF16 => return None,
    })
}

/// What a file holds, its reader at the data.
struct Opened {
    header: header::Header,
    dtype: DType,
    shape: Shape,
    /// Where the data starts, from where the file did.
    start: u64,
}

/// Reads and checks a header.
fn open(failing: &Failing, reader: &mut (impl Read + Seek), whole: bool) -> Result<Opened> {
    let there = left(reader).map_err(failing.io())?;
    let mut first = [0; header::PREFIX];
    let first = &mut first[..there.min(header::PREFIX as u64) as usize];
    reader.read_exact(first).map_err(failing.io())?;
    let (start, length) = header::extent(first).map_err(failing.says())?;
    let data = there
        .checked_sub((start + length) as u64)
        .ok_or_else(|| failing.problem("the file ends inside its header"))?;
    reader
        .seek_relative(start as i64 - first.len() as i64)
        .map_err(failing.io())?;
    // Not longer than the file.
    let mut text = vec![0; length];
    reader.read_exact(&mut text).map_err(failing.io())?;
    let header = header::parse(&text).map_err(failing.says())?;

    let dtype = DType::ALL
        .iter()
        .copied()
        .find(|&dtype| kind(dtype) == Some(&header.kind))
        .ok_or_else(|| {
            failing.problem(format!(
                "its dtype is '{}'; f2, f4, f8, i4, u4 and b1 can be read: convert it with astype",
                header.kind.escape_debug()
            ))
        })?;
    let shape = Shape::from(&header.shape[..]);
    let needed = shape
        .checked_elements()
        .ok_or_else(|| failing.problem(format!("shape {shape} has more elements than memory")))?;
    let needed = needed as u128 * dtype.size() as u128;
    if needed > u128::from(data) || whole && needed != u128::from(data) {
        return Err(failing.problem(format!(
            "{data} bytes of data, but shape {shape} of '{}' needs {needed}",
            header.kind
        )));
    }
    Ok(Opened {
        header,
        dtype,
        shape,
        start: (start + length) as u64,
    })
}

fn read(
    failing: &Failing,
    device: &Device,
    mut reader: impl Read + Seek,
    whole: bool,
) -> Result<Tensor> {
    let Opened {
        header,
        dtype,
        shape,
        ..
    } = open(failing, &mut reader, whole)?;
    let axes: Vec<usize> = (0..shape.rank()).rev().collect();
    let stored = if header.fortran {
        Shape::from(axes.iter().map(|&axis| shape[axis]).collect::<Vec<_>>())
    } else {
        shape
    };
    let tensor = Tensor::empty_for(failing.op, device, stored, dtype)?;
    copy_in(failing, &tensor, &mut reader, header.big_endian)?;
    if header.fortran {
        tensor.permute(&axes)
    } else {
        Ok(tensor)
    }
}

fn write(failing: &Failing, tensor: &Tensor, writer: &mut impl Write) -> Result<()> {
    let kind = kind(tensor.dtype()).ok_or_else(|| {
        failing.problem(format!(
            "NumPy has no {}: cast to f32 first",
            tensor.dtype()
        ))
    })?;
    let axes: Vec<usize> = (0..tensor.rank()).rev().collect();
    let turned = tensor.permute(&axes)?;
    let fortran = !tensor.is_contiguous() && turned.is_contiguous();
    let source = if fortran {
        turned
    } else {
        tensor.dense(failing.op, || tensor.storage().turn_to_read())?
    };
    let header = header::write(kind, tensor.shape().dims(), fortran).map_err(failing.says())?;
    writer.write_all(&header).map_err(failing.io())?;
    copy_out(failing, &source, writer)?;
    writer.flush().map_err(failing.io())
}
