//! Matrices in NumPy's files, a tile at a time: operands and results of `matmul_streamed`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use super::{Failing, Opened, header, kind, open};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::interop::file::{Beside, sync};
use crate::ops::{MatrixSource, MatrixTarget, check_part};
use crate::shape::Shape;

const OP: &str = "matmul_streamed";

/// A matrix in a `.npy` file, with the feature `npy`: an operand of
/// [`matmul_streamed`](crate::matmul_streamed). Only the tiles that are asked for are read, in either
/// byte order, and in C or Fortran order.
#[derive(Debug)]
pub struct NpyMatrix {
    place: FileElements,
    fortran: bool,
    big_endian: bool,
}

/// A `.npy` file for the result of [`matmul_streamed`](crate::matmul_streamed), with the feature
/// `npy`. What was written is on its disk after [`sync`](NpyMatrixMut::sync), or when the system gets to it.
#[derive(Debug)]
pub struct NpyMatrixMut {
    place: FileElements,
}

/// Where elements are.
#[derive(Debug)]
struct FileElements {
    file: File,
    name: String,
    start: u64,
    shape: [usize; 2],
    dtype: DType,
}

impl NpyMatrix {
    /// Opens a file that holds one array of two dimensions. It must not change while it is read.
    ///
    /// # Errors
    /// [`Error::File`] for what is no such file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        let failing = Failing::new("NpyMatrix::open", &name);
        let file = File::open(path).map_err(failing.io())?;
        let mut reader = BufReader::new(file);
        let Opened {
            header,
            dtype,
            shape,
            start,
        } = open(&failing, &mut reader, true)?;
        let shape = <[usize; 2]>::try_from(shape.dims())
            .map_err(|_| failing.problem(format!("its shape is {shape}, no matrix")))?;
        Ok(Self {
            place: FileElements {
                file: reader.into_inner(),
                name,
                start,
                shape,
                dtype,
            },
            fortran: header.fortran,
            big_endian: header.big_endian,
        })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.place.shape
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.place.dtype
    }

    fn fill<T: Element + bytemuck::Pod>(
        &mut self,
        rows: Range<usize>,
        columns: Range<usize>,
        into: &mut [T],
    ) -> io::Result<()> {
        let [height, width] = self.place.shape;
        if self.fortran {
            let mut run = vec![<T as bytemuck::Zeroable>::zeroed(); rows.len()];
            for (at, column) in columns.clone().enumerate() {
                self.place.seek::<T>(column, height, rows.start)?;
                self.place
                    .file
                    .read_exact(bytemuck::cast_slice_mut(&mut run))?;
                let places = into.iter_mut().skip(at).step_by(columns.len());
                for (place, &element) in places.zip(&run) {
                    *place = element;
                }
            }
        } else if columns.len() == width {
            self.place.seek::<T>(rows.start, width, 0)?;
            self.place.file.read_exact(bytemuck::cast_slice_mut(into))?;
        } else {
            for (row, line) in rows.zip(into.chunks_mut(columns.len().max(1))) {
                self.place.seek::<T>(row, width, columns.start)?;
                self.place.file.read_exact(bytemuck::cast_slice_mut(line))?;
            }
        }
        if self.big_endian != cfg!(target_endian = "big") {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(into);
            bytes.chunks_mut(size_of::<T>()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }
}

impl NpyMatrixMut {
    /// Creates a file of this shape and dtype, of zeros. One that is there is replaced at once, by another beside it that takes
    /// its name, so the folder has to take another file; who has it open, a [`NpyMatrix`] too, goes on reading what it held.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be written or be so long, is a pipe or the like, or NumPy has no such dtype;
    /// [`Error::TooLarge`] for a shape that overflows. A file that is there stays as it was then.
    pub fn create(path: impl AsRef<Path>, shape: [usize; 2], dtype: DType) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        let failing = Failing::new("NpyMatrixMut::create", &name);
        let elements = Shape::from(shape).count(failing.op)? as u64;
        let kind =
            kind(dtype).ok_or_else(|| failing.problem(format!("NumPy has no {dtype}: use f32")))?;
        let header = header::write(kind, &shape, false).map_err(failing.says())?;
        let start = header.len() as u64;
        let length = elements
            .checked_mul(dtype.size() as u64)
            .and_then(|bytes| bytes.checked_add(start))
            .filter(|&length| i64::try_from(length).is_ok());
        let length = length.ok_or_else(|| {
            let [rows, columns] = shape;
            failing.problem(format!(
                "{rows} rows of {columns} {dtype} are longer than a file can be"
            ))
        })?;
        let created = Beside::create(path.as_ref()).map_err(failing.io())?;
        let (mut file, beside) = created.ok_or_else(|| {
            failing.problem("it is no file, and tiles are written here and there")
        })?;
        // Zeros, until the product comes.
        file.write_all(&header)
            .and_then(|()| file.set_len(length))
            .and_then(|()| beside.take_place(None))
            .map_err(failing.io())?;
        Ok(Self {
            place: FileElements {
                file,
                name,
                start,
                shape,
                dtype,
            },
        })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.place.shape
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.place.dtype
    }

    /// Returns when the disk has what was written (where its file system can tell): after a crash of the system it is there.
    ///
    /// # Errors
    /// [`Error::File`] when the system could not write it.
    pub fn sync(&self) -> Result<()> {
        let failing = Failing::new("NpyMatrixMut::sync", &self.place.name);
        sync(&self.place.file).map_err(failing.io())
    }
}

impl FileElements {
    fn check<T: Element>(
        &self,
        rows: &Range<usize>,
        columns: &Range<usize>,
        elements: usize,
    ) -> Result<()> {
        match T::DTYPE == self.dtype {
            true => check_part(self.shape, rows, columns, elements),
            false => Err(Error::read_dtype(OP, self.dtype, T::DTYPE)),
        }
    }

    /// Goes to an element of a line.
    fn seek<T>(&mut self, line: usize, length: usize, at: usize) -> io::Result<()> {
        let element = line as u64 * length as u64 + at as u64;
        let at = SeekFrom::Start(self.start + element * size_of::<T>() as u64);
        self.file.seek(at).map(drop)
    }
}

impl<T: Element + bytemuck::Pod> MatrixSource<T> for NpyMatrix {
    fn shape(&self) -> [usize; 2] {
        self.place.shape
    }

    fn read(&mut self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()> {
        self.place.check::<T>(&rows, &columns, into.len())?;
        self.fill(rows, columns, into)
            .map_err(Failing::new(OP, &self.place.name).io())
    }
}

impl<T: Element> MatrixTarget<T> for NpyMatrixMut {
    fn shape(&self) -> [usize; 2] {
        self.place.shape
    }

    fn write(&mut self, rows: Range<usize>, columns: Range<usize>, from: &[T]) -> Result<()> {
        self.place.check::<T>(&rows, &columns, from.len())?;
        let failing = Failing::new(OP, &self.place.name);
        let place = &mut self.place;
        let write = || -> io::Result<()> {
            for (row, line) in rows.zip(from.chunks(columns.len().max(1))) {
                place.seek::<T>(row, place.shape[1], columns.start)?;
                let bytes: &[u8] = bytemuck::cast_slice(line);
                match cfg!(target_endian = "big") {
                    false => place.file.write_all(bytes)?,
                    // The header says little.
                    true => {
                        for element in bytes.chunks(size_of::<T>()) {
                            let turned: Vec<u8> = element.iter().rev().copied().collect();
                            place.file.write_all(&turned)?;
                        }
                    }
                }
            }
            Ok(())
        };
        write().map_err(failing.io())
    }
}
