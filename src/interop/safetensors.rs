//! Files of named tensors: <https://huggingface.co/docs/safetensors>.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::file::{Failing, RANK, READER, WRITER, copy_in, copy_out, left, replace};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, brief};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Bytes of a header, at most: what the format allows.
const HEADER: u64 = 100_000_000;

/// Names that an error lists of a file that has more.
const FEW: usize = 8;

/// What a file says of one of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SafeTensorInfo {
    /// The dtype as the file names it: `F32`, `BF16`, ...
    pub dtype: String,
    /// The sizes.
    pub shape: Shape,
    /// Bytes of data.
    pub bytes: u64,
}

/// An open file of named tensors, with the feature `safetensors`: the header is read, the data only
/// on demand, each tensor in pieces of 4 MiB through staging.
pub struct SafeTensors<R> {
    reader: R,
    file: String,
    /// Where the data starts.
    data: u64,
    metadata: Metadata,
}

impl<R> fmt::Debug for SafeTensors<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafeTensors")
            .field("file", &self.file)
            .field("names", &self.metadata.offset_keys())
            .finish_non_exhaustive()
    }
}

impl SafeTensors<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`SafeTensors::new`]; [`Error::File`](crate::Error::File) names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failing = Failing::new("SafeTensors::open", path.display());
        let file = File::open(path).map_err(failing.io())?;
        Self::read(&failing, path.display().to_string(), BufReader::new(file))
    }
}

impl<R: Read + Seek> SafeTensors<R> {
    /// Reads the header of the file that starts where the reader is and goes on to its end.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for a header that is malformed or does not fit the
    /// length of the file, and for a tensor of more than 64 dimensions.
    pub fn new(reader: R) -> Result<Self> {
        Self::read(
            &Failing::new("SafeTensors::new", READER),
            READER.to_owned(),
            reader,
        )
    }

    fn read(failing: &Failing, file: String, mut reader: R) -> Result<Self> {
        let there = left(&mut reader).map_err(failing.io())?;
        let mut length = [0; 8];
        if there < length.len() as u64 {
            return Err(failing.problem("not a safetensors file: it has less than 8 bytes"));
        }
        reader.read_exact(&mut length).map_err(failing.io())?;
        let length = u64::from_le_bytes(length);
        let there = there - 8;
        if length > there || length > HEADER {
            return Err(failing.problem(format!(
                "not a safetensors file: a header of {length} bytes in a file of {there} more"
            )));
        }
        let mut header = vec![0; length as usize];
        reader.read_exact(&mut header).map_err(failing.io())?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| failing.problem(format!("its header is malformed: {error}")))?;
        if metadata.data_len() as u64 != there - length {
            return Err(failing.problem(format!(
                "{} bytes of data, but its header describes {}",
                there - length,
                metadata.data_len()
            )));
        }
        for (name, info) in metadata.tensors() {
            check_rank(failing, &name, info.shape.len())?;
        }
        let data = reader.stream_position().map_err(failing.io())?;
        Ok(Self {
            reader,
            file,
            data,
            metadata,
        })
    }

    /// The names of its tensors, in the order of their data.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The texts that the file has beside its tensors, under `__metadata__`, by their names.
    pub fn metadata(&self) -> Vec<(&str, &str)> {
        let texts = self.metadata.metadata().iter().flatten();
        let mut texts: Vec<_> = texts
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .collect();
        texts.sort_unstable();
        texts
    }

    /// What the file says of a tensor; `None` when it has none of that name.
    pub fn info(&self, name: &str) -> Option<SafeTensorInfo> {
        self.metadata.info(name).map(|info| SafeTensorInfo {
            dtype: info.dtype.to_string(),
            shape: Shape::from(info.shape.as_slice()),
            bytes: bytes(info),
        })
    }

    /// Reads a tensor onto a device.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for a name that is not there, a dtype that orlop lacks
    /// (`F8_E4M3`, `I64`, `U8`, ...), or data that cannot be read; what [`Tensor::empty`] says.
    pub fn load(&mut self, device: &Device, name: &str) -> Result<Tensor> {
        let failing = Failing::new("SafeTensors::load", &self.file);
        let info = self.metadata.info(name).ok_or_else(|| {
            let names = self.metadata.offset_keys();
            let some = names.iter().take(FEW);
            let some: Vec<_> = some
                .map(|name| format!("`{}`", name.escape_debug()))
                .collect();
            let has = match names.len() {
                0 => "none".to_owned(),
                count @ ..=FEW => format!("{count}: {}", some.join(", ")),
                count => format!("{count}: {}, ..", some.join(", ")),
            };
            failing.problem(format!("it has no tensor `{name}`; it has {has}"))
        })?;
        let dtype = DType::ALL
            .iter()
            .copied()
            .find(|&dtype| kind(dtype) == info.dtype)
            .ok_or_else(|| {
                failing.problem(format!(
                    "tensor `{name}` is {}; F32, F16, BF16, F64, I32, U32 and BOOL can be read: \
                     convert it where the file is made",
                    info.dtype
                ))
            })?;
        let start = self.data + info.data_offsets.0 as u64;
        let shape = Shape::from(info.shape.as_slice());
        let tensor = Tensor::empty_for(failing.op, device, shape, dtype)?;
        self.reader
            .seek(SeekFrom::Start(start))
            .map_err(failing.io())?;
        copy_in(&failing, &tensor, &mut self.reader, false)?;
        Ok(tensor)
    }
}

/// The format's name of a dtype.
fn kind(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::F64 => Dtype::F64,
        DType::Bool => Dtype::BOOL,
    }
}

/// The format has no limit, but what goes through dimensions does.
fn check_rank(failing: &Failing, name: &str, rank: usize) -> Result<()> {
    match rank {
        ..=RANK => Ok(()),
        _ => Err(failing.problem(format!(
            "tensor `{}` has {rank} dimensions, above {RANK}",
            brief(name).escape_debug()
        ))),
    }
}

fn bytes(info: &TensorInfo) -> u64 {
    (info.data_offsets.1 - info.data_offsets.0) as u64
}

/// Writes named tensors, with the feature `safetensors`, and texts beside them, if there are any: `__metadata__` (what PyTorch's
/// `transformers` loads says `("format", "pt")`). Elements are read while the writer takes them: work that writes
/// into a tensor's own memory meanwhile, on another thread or in the writer, may be in some of them and not in others. (Of no
/// tensors at all the list needs a type: `&[] as &[(&str, &Tensor)]`.)
///
/// # Errors
/// [`Error::File`](crate::Error::File) when the writer fails, for a name twice, for a tensor of more than 64 dimensions,
/// or for one called `__metadata__`, which the format keeps for itself; as [`Tensor::to_vec`].
pub fn write_safetensors(
    mut writer: impl Write,
    tensors: &[(impl AsRef<str>, impl Borrow<Tensor>)],
    metadata: &[(&str, &str)],
) -> Result<()> {
    let failing = Failing::new("write_safetensors", WRITER);
    write(&failing, tensors, metadata, &mut writer)
}

/// Writes named tensors, and texts beside them, into a file. One that is there is replaced when all is on the disk, by another beside it that takes
/// its name, so the folder has to take another file: where the call fails it is as it was.
///
/// # Errors
/// As [`write_safetensors`]; [`Error::File`](crate::Error::File) names the file.
pub fn save_safetensors(
    path: impl AsRef<Path>,
    tensors: &[(impl AsRef<str>, impl Borrow<Tensor>)],
    metadata: &[(&str, &str)],
) -> Result<()> {
    let path = path.as_ref();
    let failing = Failing::new("save_safetensors", path.display());
    replace(&failing, path, |writer| {
        write(&failing, tensors, metadata, writer)
    })
}

fn write(
    failing: &Failing,
    tensors: &[(impl AsRef<str>, impl Borrow<Tensor>)],
    metadata: &[(&str, &str)],
    writer: &mut impl Write,
) -> Result<()> {
    // Wide elements first, so that each tensor is aligned; then by name.
    let given = tensors.iter();
    let mut order: Vec<(&str, &Tensor)> = given
        .map(|(name, tensor)| (name.as_ref(), tensor.borrow()))
        .collect();
    order.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.dtype().size()), *name));
    let mut names: Vec<&str> = order.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    if let Some(name) = twice.map(|pair| pair[0]) {
        return Err(failing.problem(format!("two tensors are named `{name}`")));
    }
    if names.contains(&"__metadata__") {
        return Err(failing.problem("`__metadata__` is no name of a tensor in this format"));
    }
    let mut end = 0usize;
    let infos: Result<_> = order
        .iter()
        .map(|(name, tensor)| {
            check_rank(failing, name, tensor.rank())?;
            let start = end;
            let bytes = tensor.elements().checked_mul(tensor.dtype().size());
            let after = bytes.and_then(|bytes| start.checked_add(bytes));
            end = after.ok_or_else(|| {
                failing.problem("more bytes than can be counted: are there broadcasts?")
            })?;
            let info = TensorInfo {
                dtype: kind(tensor.dtype()),
                shape: tensor.shape().dims().to_vec(),
                data_offsets: (start, end),
            };
            Ok(((*name).to_owned(), info))
        })
        .collect();
    let mut texts = BTreeMap::new();
    for &(name, text) in metadata {
        if texts.insert(name, text).is_some() {
            return Err(failing.problem(format!("two texts of its metadata are named `{name}`")));
        }
    }
    let says = |error: &dyn std::error::Error| failing.problem(error.to_string());
    let tensors = Metadata::new(None, infos?).map_err(|error| says(&error))?;
    let mut header = serde_json::to_vec(&tensors).map_err(|error| says(&error))?;
    if !texts.is_empty() {
        // First, and in order: the format's crate writes them in another order each time.
        let texts = serde_json::to_string(&texts).map_err(|error| says(&error))?;
        let comma = if order.is_empty() { "" } else { "," };
        header.splice(
            1..1,
            format!("\"__metadata__\":{texts}{comma}").into_bytes(),
        );
    }
    // So that the data starts at a multiple of 8.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > HEADER {
        let bytes = header.len();
        return Err(failing.problem(format!(
            "its header would have {bytes} bytes, above the format's {HEADER}: fewer tensors, shorter names, or less metadata"
        )));
    }
    writer
        .write_all(&(header.len() as u64).to_le_bytes())
        .and_then(|()| writer.write_all(&header))
        .map_err(failing.io())?;
    for (_, tensor) in order {
        let source = tensor.dense(failing.op, || tensor.storage().turn_to_read())?;
        copy_out(failing, &source, writer)?;
    }
    writer.flush().map_err(failing.io())
}
