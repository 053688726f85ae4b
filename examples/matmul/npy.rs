//! NumPy's `.npy` files: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
//!
//! Written out here because a file from anywhere may say anything: every length is checked
//! against the file before it is believed.

use std::path::Path;

use orlop::{Shape, f16};

use crate::values::{Array, Values, with_elements};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads an array of f2, f4, f8, i4 or u4, of either byte order.
///
/// # Errors
/// What is wrong with the file, in one line that names it.
pub fn read(path: &Path) -> Result<Array, String> {
    let fail = |why: String| format!("{}: {why}", path.display());
    let file = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    parse(&file).map_err(fail)
}

/// Writes a row-major array.
///
/// # Errors
/// What the system said, in one line that names the file.
pub fn write(path: &Path, values: &Values, shape: &Shape) -> Result<(), String> {
    let (descr, data) = match values {
        Values::F32(elements) => ("<f4", little_endian(elements, |x| x.to_le_bytes())),
        Values::F16(elements) => ("<f2", little_endian(elements, |x| x.to_le_bytes())),
        Values::F64(elements) => ("<f8", little_endian(elements, |x| x.to_le_bytes())),
        Values::I32(elements) => ("<i4", little_endian(elements, |x| x.to_le_bytes())),
        Values::U32(elements) => ("<u4", little_endian(elements, |x| x.to_le_bytes())),
    };
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // Padded so that the data starts at a multiple of 64.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.extend(std::iter::repeat_n(
        ' ',
        unpadded.next_multiple_of(64) - unpadded,
    ));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(|_| "too many dimensions".to_owned())?;
    let mut file = MAGIC.to_vec();
    file.extend([1, 0]);
    file.extend(length.to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(path, file).map_err(|error| format!("{}: {error}", path.display()))
}

fn little_endian<T: Copy, const N: usize>(elements: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    elements
        .iter()
        .flat_map(|&element| bytes(element))
        .collect()
}

fn parse(file: &[u8]) -> Result<Array, String> {
    let not_npy = || {
        if file.starts_with(b"PK") {
            "not a .npy file but a zip (.npz?): save the array with numpy.save".to_owned()
        } else {
            "not a .npy file: it does not start as one".to_owned()
        }
    };
    let truncated = || "the file ends inside its header".to_owned();
    let rest = file.strip_prefix(MAGIC).ok_or_else(not_npy)?;
    let (&[major, _], rest) = rest.split_first_chunk().ok_or_else(truncated)?;
    let (length, rest) = match major {
        1 => {
            let (length, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        _ => return Err(format!("version {major} of the .npy format is not known")),
    };
    let (header, data) = rest.split_at_checked(length).ok_or_else(truncated)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text".to_owned())?;
    let header = Reader(header).header()?;

    let (order, kind) = match header.descr.split_at_checked(1) {
        Some(("<" | "=" | "|", kind)) => (ByteOrder::Little, kind),
        Some((">", kind)) => (ByteOrder::Big, kind),
        _ => (ByteOrder::Little, header.descr.as_str()),
    };
    let mut values = match kind {
        "f4" => Values::F32(Vec::new()),
        "f2" => Values::F16(Vec::new()),
        "f8" => Values::F64(Vec::new()),
        "i4" => Values::I32(Vec::new()),
        "u4" => Values::U32(Vec::new()),
        _ => {
            return Err(format!(
                "its dtype is '{}'; f2, f4, f8, i4 and u4 can be read: convert it with astype",
                header.descr
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
            header.descr
        ));
    }
    with_elements!(&mut values, elements => decode(elements, data, order));
    Ok(Array {
        values,
        shape,
        fortran: header.fortran,
    })
}

#[derive(Clone, Copy)]
enum ByteOrder {
    Little,
    Big,
}

trait FromBytes: Sized {
    fn from_bytes(bytes: &[u8], order: ByteOrder) -> Option<Self>;
}

macro_rules! from_bytes {
    ($($element:ty),*) => {$(
        impl FromBytes for $element {
            fn from_bytes(bytes: &[u8], order: ByteOrder) -> Option<Self> {
                let bytes = bytes.try_into().ok()?;
                Some(match order {
                    ByteOrder::Little => <$element>::from_le_bytes(bytes),
                    ByteOrder::Big => <$element>::from_be_bytes(bytes),
                })
            }
        }
    )*};
}
from_bytes!(f32, f16, f64, i32, u32);

fn decode<T: FromBytes>(elements: &mut Vec<T>, data: &[u8], order: ByteOrder) {
    let pieces = data.chunks_exact(size_of::<T>());
    elements.extend(pieces.filter_map(|piece| T::from_bytes(piece, order)));
}

struct Header {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

/// Reads the header's Python dictionary of three keys.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    fn header(mut self) -> Result<Header, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.take("}") {
            let key = self.string()?;
            self.expect(":")?;
            match key {
                "descr" if self.sees("[") => {
                    return Err("it holds records (a structured dtype), not numbers".to_owned());
                }
                "descr" => descr = Some(self.string()?.to_owned()),
                "fortran_order" => fortran = Some(self.boolean()?),
                "shape" => shape = Some(self.sizes()?),
                _ => return Err(format!("its header has an unknown key '{key}'")),
            }
            if !self.take(",") && !self.sees("}") {
                return Err(self.malformed());
            }
        }
        if !self.0.trim().is_empty() {
            return Err(self.malformed());
        }
        match (descr, fortran, shape) {
            (Some(descr), Some(fortran), Some(shape)) => Ok(Header {
                descr,
                fortran,
                shape,
            }),
            _ => Err("its header lacks one of descr, fortran_order, shape".to_owned()),
        }
    }

    fn malformed(&self) -> String {
        let near: String = self.0.chars().take(20).collect();
        format!("its header is malformed near `{}`", near.escape_debug())
    }

    fn sees(&mut self, token: &str) -> bool {
        self.0 = self.0.trim_start();
        self.0.starts_with(token)
    }

    fn take(&mut self, token: &str) -> bool {
        let sees = self.sees(token);
        if sees {
            self.0 = &self.0[token.len()..];
        }
        sees
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.take(token) {
            Ok(())
        } else {
            Err(self.malformed())
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.take("'") {
            '\''
        } else if self.take("\"") {
            '"'
        } else {
            return Err(self.malformed());
        };
        let (text, rest) = self.0.split_once(quote).ok_or_else(|| self.malformed())?;
        self.0 = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.take("True") {
            Ok(true)
        } else if self.take("False") {
            Ok(false)
        } else {
            Err(self.malformed())
        }
    }

    fn sizes(&mut self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            self.0 = self.0.trim_start();
            let digits = self
                .0
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(self.0.len());
            let (number, rest) = self.0.split_at(digits);
            sizes.push(number.parse().map_err(|_| self.malformed())?);
            self.0 = rest;
            self.take("L"); // Python 2
            if !self.take(",") && !self.sees(")") {
                return Err(self.malformed());
            }
        }
        Ok(sizes)
    }
}
