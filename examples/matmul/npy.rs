//! NumPy's `.npy` files. With its feature `npy` the library reads and writes them itself; this
//! example does without, and shares the part that understands headers.

#[path = "../../src/interop/npy/header.rs"]
mod header;

use std::io::Read;
use std::path::Path;

use orlop::{Shape, f16};

use crate::cli;
use crate::values::{Array, Values, with_elements};

/// Reads an array of f2, f4, f8, i4 or u4, of either byte order.
///
/// # Errors
/// What is wrong with the file, in one line that names it.
pub fn read(path: &Path) -> Result<Array, String> {
    let fail = |why: String| format!("{}: {why}", path.display());
    let failed = |error: std::io::Error| fail(error.to_string());
    let mut opened = std::fs::File::open(path).map_err(failed)?;
    // What does not begin as such a file may have no end.
    let mut file = Vec::new();
    let mut beginning = (&mut opened).take(header::PREFIX as u64);
    beginning.read_to_end(&mut file).map_err(failed)?;
    header::extent(&file).map_err(fail)?;
    opened.read_to_end(&mut file).map_err(failed)?;
    parse(&file).map_err(fail)
}

/// Writes a row-major array.
///
/// # Errors
/// What the system said, in one line that names the file.
pub fn write(path: &Path, values: &Values, shape: &Shape) -> Result<(), String> {
    let (kind, data) = match values {
        Values::F32(elements) => ("f4", little_endian(elements, |x| x.to_le_bytes())),
        Values::F16(elements) => ("f2", little_endian(elements, |x| x.to_le_bytes())),
        Values::F64(elements) => ("f8", little_endian(elements, |x| x.to_le_bytes())),
        Values::I32(elements) => ("i4", little_endian(elements, |x| x.to_le_bytes())),
        Values::U32(elements) => ("u4", little_endian(elements, |x| x.to_le_bytes())),
    };
    let mut file = header::write(kind, shape.dims(), false)?;
    file.extend(data);
    cli::write(path, &file)
}

fn little_endian<T: Copy, const N: usize>(elements: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    elements
        .iter()
        .flat_map(|&element| bytes(element))
        .collect()
}

fn parse(file: &[u8]) -> Result<Array, String> {
    let (start, length) = header::extent(&file[..file.len().min(header::PREFIX)])?;
    let (text, data) = file
        .get(start..)
        .and_then(|rest| rest.split_at_checked(length))
        .ok_or_else(|| "the file ends inside its header".to_owned())?;
    let header = header::parse(text)?;
    let mut values = match header.kind.as_str() {
        "f4" => Values::F32(Vec::new()),
        "f2" => Values::F16(Vec::new()),
        "f8" => Values::F64(Vec::new()),
        "i4" => Values::I32(Vec::new()),
        "u4" => Values::U32(Vec::new()),
        kind => {
            return Err(format!(
                "its dtype is '{kind}'; f2, f4, f8, i4 and u4 can be read: convert it with astype"
            ));
        }
    };
    let size = values.dtype().size();
    let shape = Shape::from(header.shape);
    let expected = shape
        .checked_elements()
        .and_then(|elements| elements.checked_mul(size));
    if expected != Some(data.len()) {
        let expected = expected.map_or("more than memory can hold".to_owned(), |n| n.to_string());
        return Err(format!(
            "{} bytes of data, but shape {shape} of '{}' needs {expected}",
            data.len(),
            header.kind
        ));
    }
    with_elements!(&mut values, elements => decode(elements, data, header.big_endian));
    Ok(Array {
        values,
        shape,
        fortran: header.fortran,
    })
}

trait FromBytes: Sized {
    fn from_bytes(bytes: &[u8], big_endian: bool) -> Option<Self>;
}

macro_rules! from_bytes {
    ($($element:ty),*) => {$(
        impl FromBytes for $element {
            fn from_bytes(bytes: &[u8], big_endian: bool) -> Option<Self> {
                let bytes = bytes.try_into().ok()?;
                Some(if big_endian {
                    <$element>::from_be_bytes(bytes)
                } else {
                    <$element>::from_le_bytes(bytes)
                })
            }
        }
    )*};
}
from_bytes!(f32, f16, f64, i32, u32);

fn decode<T: FromBytes>(elements: &mut Vec<T>, data: &[u8], big_endian: bool) {
    let pieces = data.chunks_exact(size_of::<T>());
    elements.extend(pieces.filter_map(|piece| T::from_bytes(piece, big_endian)));
}
