//! What readers and writers of files share: errors, lengths, pieces, files that take the place of others.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The name of a file that has none.
pub(super) const READER: &str = "the reader";
pub(super) const WRITER: &str = "the writer";

/// Bytes read from a device at a time: less than a download records at once (`READ_WINDOW` slots in
/// `gpu/transfer.rs`), so all of it is recorded before the first wait.
const PIECE: u64 = 4 << 20;

/// Dimensions that a file's tensor may have: as many as NumPy allows.
pub(super) const RANK: usize = 64;

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
        Error::file(self.op, &self.file, problem, None)
    }

    /// Of what a parser says.
    #[cfg(feature = "npy")]
    pub(super) fn says(&self) -> impl Fn(String) -> Error {
        |problem| self.problem(problem)
    }

    /// Of what the system says.
    pub(super) fn io(&self) -> impl Fn(io::Error) -> Error {
        |error| {
            let kind = error.kind();
            let problem = match kind {
                // Lengths are checked before: "failed to fill whole buffer" names neither.
                io::ErrorKind::UnexpectedEof => {
                    "it became shorter while it was read: its data ends too soon".to_owned()
                }
                _ => error.to_string(),
            };
            Error::file(self.op, &self.file, problem, Some(kind))
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
    let filled = tensor.storage().fill(tensor.bytes(), &mut |piece| {
        reader.read_exact(piece).map_err(failing.io())?;
        if big_endian != cfg!(target_endian = "big") {
            piece.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        if tensor.dtype() == DType::Bool {
            // Files may hold any byte; loops are faster over zeros and ones.
            plain_bools(piece);
        }
        Ok(())
    });
    filled.map_err(|error| error.asked_by(failing.op))
}

/// Zeros and ones out of any bytes: buffers of a program's own may hold others, too.
fn plain_bools(bytes: &mut [u8]) {
    bytes
        .iter_mut()
        .for_each(|byte| *byte = u8::from(*byte != 0));
}

/// Writes a file by `write`. One that is there is replaced when all is on the disk, where its file system can tell; until
/// then, and where anything fails, it is as it was.
///
/// # Errors
/// What `write` says; [`Error::File`] where the system refuses.
pub(super) fn replace(
    failing: &Failing,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<()>,
) -> Result<()> {
    let (file, beside) = match Beside::create(path).map_err(failing.io())? {
        Some((file, beside)) => (file, Some(beside)),
        None => (File::create(path).map_err(failing.io())?, None),
    };
    let mut writer = BufWriter::new(file);
    write(&mut writer)?;
    let written = writer.into_inner().map_err(|error| error.into_error());
    let file = written.map_err(failing.io())?;
    match beside {
        Some(beside) => beside.take_place(Some(&file)).map_err(failing.io()),
        None => Ok(()),
    }
}

/// A file beside the one whose place it takes, or that is not there yet. Removed, but where it took that place.
pub(super) struct Beside {
    file: Option<PathBuf>,
    place: PathBuf,
}

impl Beside {
    /// One for a path; nothing for pipes and devices, which are written to as they are. A link stays, and what it leads
    /// to is replaced or made.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn create(path: &Path) -> io::Result<Option<(File, Self)>> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let there = match fs::metadata(path) {
            Ok(there) if !there.is_file() => return Ok(None),
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let place = fs::canonicalize(path).unwrap_or_else(|_| end_of_links(path));
        if there.is_some() {
            // A file that must not be written to must not be replaced.
            OpenOptions::new().append(true).open(&place)?;
        }
        // What a process that was killed left may have the name.
        for _ in 0..1000 {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!(".orlop-{}-{number}", std::process::id());
            let beside = place.with_file_name(name);
            let file = match create_new(&beside, there.is_some()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            let beside = Self {
                file: Some(beside),
                place,
            };
            if let Some(there) = there {
                file.set_permissions(there.permissions())?;
            }
            return Ok(Some((file, beside)));
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Takes the place that it is for: who has read the file there from before goes on reading that one. What was `written`
    /// is on the disk before, so that no crash of the system leaves half of it in place of another file.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn take_place(mut self, written: Option<&File>) -> io::Result<()> {
        let replaced = written.filter(|_| self.place.exists());
        if let Some(written) = replaced {
            sync(written)?;
        }
        if let Some(file) = self.file.take() {
            fs::rename(&file, &self.place).inspect_err(|_| self.file = Some(file))?;
        }
        #[cfg(unix)]
        if replaced.is_some()
            && let Some(folder) = self.place.parent()
        {
            let folder = match folder.as_os_str().is_empty() {
                true => Path::new("."),
                false => folder,
            };
            // Some systems sync no folders, some forbid to open them; either name has a whole file.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(())
    }
}

/// Returns when the disk has a file's bytes, or its file system cannot tell (SMB's on macOS).
pub(super) fn sync(file: &File) -> io::Result<()> {
    // EINVAL, ENOTTY, ENOTSUP and EOPNOTSUPP, of Linux and macOS.
    const CANNOT: [i32; 5] = [22, 25, 45, 95, 102];
    match file.sync_all() {
        Err(error)
            if cfg!(unix)
                && error
                    .raw_os_error()
                    .is_some_and(|code| CANNOT.contains(&code)) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// A file that is not there yet; where it gets the permissions of another, nobody else reads it before.
fn create_new(path: &Path, is_private: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if is_private {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = is_private;
    options.open(path)
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // What went wrong is told already.
            let _ = fs::remove_file(file);
        }
    }
}

/// Where links lead, to nowhere in the end; at most as many as the system follows.
fn end_of_links(path: &Path) -> PathBuf {
    let mut end = path.to_owned();
    for _ in 0..40 {
        let Ok(to) = fs::read_link(&end) else { break };
        end = end.parent().unwrap_or(Path::new("")).join(to);
    }
    end
}

/// Writes the elements of a contiguous tensor, little-endian, piece by piece: the writer may take
/// its time, and may use the device, so it is called with no lock held and no read half done. What writes into
/// the tensor's memory meanwhile may be in the later pieces alone.
pub(super) fn copy_out(failing: &Failing, tensor: &Tensor, writer: &mut impl Write) -> Result<()> {
    let range = tensor.byte_range();
    let mut piece = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + PIECE);
        piece.clear();
        tensor
            .storage()
            .read(at..end, &mut |bytes| piece.extend_from_slice(bytes))
            .map_err(|error| error.asked_by(failing.op))?;
        if cfg!(target_endian = "big") {
            piece
                .chunks_exact_mut(tensor.dtype().size())
                .for_each(<[u8]>::reverse);
        }
        if tensor.dtype() == DType::Bool {
            plain_bools(&mut piece);
        }
        writer.write_all(&piece).map_err(failing.io())?;
        at = end;
    }
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{Beside, create_new};

    #[test]
    fn what_takes_the_place_of_another_is_private_before() {
        let folder = std::env::temp_dir().join(format!("orlop-beside-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mode = |file: &fs::File| file.metadata().unwrap().permissions().mode() & 0o777;
        let private = create_new(&folder.join("private"), true).unwrap();
        assert_eq!(mode(&private) & 0o077, 0);
        // As anything else that is created, and in the end as what was there.
        let place = folder.join("place");
        let usual = fs::File::create(folder.join("usual")).unwrap();
        let (new, beside) = Beside::create(&place).unwrap().unwrap();
        assert_eq!(mode(&new), mode(&usual));
        beside.take_place(Some(&new)).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o640)).unwrap();
        let (new, beside) = Beside::create(&place).unwrap().unwrap();
        beside.take_place(Some(&new)).unwrap();
        assert_eq!(mode(&fs::File::open(&place).unwrap()), 0o640);
        fs::remove_dir_all(&folder).unwrap();
    }
}
