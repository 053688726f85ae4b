//! The header of NumPy's `.npy` files, in both directions:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
//!
//! A file from anywhere may say anything, so nothing here trusts it, recurses or takes memory by what
//! it says. Uses only std: the `matmul` example includes this file.

const MAGIC: &[u8] = b"\x93NUMPY";
/// Bytes that say how long the header is, at most.
pub(crate) const PREFIX: usize = 12;
/// Dimensions that NumPy allows.
pub(crate) const RANK: usize = 64;
/// Bytes of a header's text, at most: 64 dimensions take 2 KB; only records need more.
const LONGEST: usize = u16::MAX as usize;

/// What a file says of its data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// NumPy's name of the dtype, without byte order: `f4`.
    pub kind: String,
    pub big_endian: bool,
    pub fortran: bool,
    pub shape: Vec<usize>,
}

/// Where the header's text starts, and its length in bytes, from a file's first bytes: [`PREFIX`]
/// of them, or all there are.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn extent(first: &[u8]) -> Result<(usize, usize), String> {
    let Some(rest) = first.strip_prefix(MAGIC) else {
        return Err(if first.starts_with(b"PK") {
            "not a .npy file but a zip (.npz?): save the array with numpy.save".to_owned()
        } else {
            "not a .npy file: it does not start as one".to_owned()
        });
    };
    let truncated = || "the file ends inside its header".to_owned();
    let (&[major, _], rest) = rest.split_first_chunk().ok_or_else(truncated)?;
    match major {
        1 => {
            let length = rest.first_chunk().ok_or_else(truncated)?;
            Ok((10, usize::from(u16::from_le_bytes(*length))))
        }
        2 | 3 => {
            let length = rest.first_chunk().ok_or_else(truncated)?;
            match u32::from_le_bytes(*length) as usize {
                length if length <= LONGEST => Ok((12, length)),
                length => Err(format!(
                    "its header of {length} bytes is longer than any of plain numbers ({LONGEST})"
                )),
            }
        }
        _ => Err(format!("version {major} of the .npy format is not known")),
    }
}

/// Reads the header's text.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(text: &[u8]) -> Result<Header, String> {
    let text = std::str::from_utf8(text).map_err(|_| "its header is not text".to_owned())?;
    Reader(text).header()
}

/// The header of little-endian data, ready to be written.
///
/// # Errors
/// Too many dimensions.
pub(crate) fn write(kind: &str, shape: &[usize], fortran: bool) -> Result<Vec<u8>, String> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let order = if fortran { "True" } else { "False" };
    // Bytes have no order.
    let order_of_bytes = if kind.ends_with('1') { '|' } else { '<' };
    let mut text = format!(
        "{{'descr': '{order_of_bytes}{kind}', 'fortran_order': {order}, 'shape': ({sizes}), }}"
    );
    // Padded so that the data starts at a multiple of 64.
    let unpadded = MAGIC.len() + 4 + text.len() + 1;
    text.extend(std::iter::repeat_n(
        ' ',
        unpadded.next_multiple_of(64) - unpadded,
    ));
    text.push('\n');
    let length = u16::try_from(text.len())
        .ok()
        .filter(|_| shape.len() <= RANK)
        .ok_or_else(|| format!("NumPy arrays have at most {RANK} dimensions"))?;
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend(length.to_le_bytes());
    header.extend(text.as_bytes());
    Ok(header)
}

/// Reads the header's Python dictionary of three keys.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    fn header(mut self) -> Result<Header, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.require("{")?;
        while !self.take("}") {
            let key = self.string()?;
            self.require(":")?;
            match key {
                "descr" if self.sees("[") => {
                    return Err("it holds records (a structured dtype), not numbers".to_owned());
                }
                "descr" => descr = Some(self.string()?),
                "fortran_order" => fortran = Some(self.boolean()?),
                "shape" => shape = Some(self.sizes()?),
                _ => {
                    let key = key.escape_debug();
                    return Err(format!("its header has an unknown key '{key}'"));
                }
            }
            if !self.take(",") && !self.sees("}") {
                return Err(self.malformed());
            }
        }
        if !self.0.trim().is_empty() {
            return Err(self.malformed());
        }
        match (descr, fortran, shape) {
            (Some(_), Some(_), Some(shape)) if shape.len() > RANK => Err(format!(
                "it has {} dimensions, more than {RANK}",
                shape.len()
            )),
            (Some(descr), Some(fortran), Some(shape)) => Ok(Header {
                big_endian: descr.starts_with('>'),
                kind: descr
                    .strip_prefix(['<', '>', '=', '|'])
                    .unwrap_or(descr)
                    .to_owned(),
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

    fn require(&mut self, token: &str) -> Result<(), String> {
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
        self.require("(")?;
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
