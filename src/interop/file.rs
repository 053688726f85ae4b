//! What readers and writers of files share: errors, lengths, pieces.

use std::fmt::Display;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The name of a file that has none.
pub(super) const READER: &str = "the reader";
pub(super) const WRITER: &str = "the writer";

/// Bytes read from a device at a time: a window of its staging, so recorded whole.
const PIECE: u64 = 4 << 20;

/// Makes the errors of a call about a file.
pub(super) struct Failing {
    pub op: &'static str,
    file: String,
}

impl Failing {
    pub(super) fn new(op: &'static str, file: impl Display) -> Self {
        Self {
            op,
            file: file.to_string(),
        }
    }

    pub(super) fn problem(&self, problem: impl Into<String>) -> Error {
        Error::file(self.op, &self.file, problem)
    }

    /// Of what a parser says.
    pub(super) fn says(&self) -> impl Fn(String) -> Error {
        |problem| self.problem(problem)
    }

    /// Of what the system says.
    pub(super) fn io(&self) -> impl Fn(io::Error) -> Error {
        |error| match error.kind() {
            // Lengths are checked before: "failed to fill whole buffer" names neither.
            io::ErrorKind::UnexpectedEof => {
                self.problem("it became shorter while it was read: its data ends too soon")
            }
            _ => self.problem(error.to_string()),
        }
    }
}

/// Bytes from where the reader is to its end.
pub(super) fn left(reader: &mut impl Seek) -> io::Result<u64> {
    let at = reader.stream_position()?;
    let end = reader.seek(SeekFrom::End(0))?;
    reader.seek(SeekFrom::Start(at))?;
    Ok(end.saturating_sub(at))
}

/// Fills a contiguous tensor with the reader's next bytes.
pub(super) fn copy_in(
    failing: &Failing,
    tensor: &Tensor,
    reader: &mut impl Read,
    big_endian: bool,
) -> Result<()> {
    let size = tensor.dtype().size();
    let bytes = (tensor.elements() * size) as u64;
    tensor.storage().fill(bytes, &mut |piece| {
        reader.read_exact(piece).map_err(failing.io())?;
        if big_endian != cfg!(target_endian = "big") {
            piece.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(())
    })
}

/// Writes the elements of a contiguous tensor, little-endian, piece by piece: the writer may take
/// its time, and may use the device, so it is called with no lock held and no read half done.
pub(super) fn copy_out(failing: &Failing, tensor: &Tensor, writer: &mut impl Write) -> Result<()> {
    let range = tensor.byte_range();
    let mut piece = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + PIECE);
        piece.clear();
        tensor
            .storage()
            .read(at..end, &mut |bytes| piece.extend_from_slice(bytes))?;
        if cfg!(target_endian = "big") {
            piece
                .chunks_exact_mut(tensor.dtype().size())
                .for_each(<[u8]>::reverse);
        }
        writer.write_all(&piece).map_err(failing.io())?;
        at = end;
    }
    Ok(())
}
