//! What a plan gives: plain data that says which kernel runs on which operands, without any
//! device type in it, so that it can be printed, split, replayed and fused.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// A value of a kernel template's variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(&'static str),
    Number(u32),
    /// Text made while the program runs: generated code.
    Shared(Arc<str>),
}

/// Of longer text some parts: every launch looks its kernel up, and the text itself is compared only where it is another one.
const HASHED: usize = 1024;
const HASHED_PART: usize = 64;

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let text = match self {
            Value::Number(number) => return number.hash(state),
            Value::Text(text) => text.as_bytes(),
            Value::Shared(text) => text.as_bytes(),
        };
        if text.len() <= HASHED {
            return text.hash(state);
        }
        text.len().hash(state);
        let apart = text.len() / (HASHED / HASHED_PART);
        for part in text.chunks(apart) {
            part[..HASHED_PART.min(part.len())].hash(state);
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Number(number) => number.fmt(f),
            Value::Shared(text) => f.write_str(text),
        }
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Value::Text(text)
    }
}

impl From<Arc<str>> for Value {
    fn from(text: Arc<str>) -> Self {
        Value::Shared(text)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Value::Number(number)
    }
}

/// Names one specialisation of a template in `shaders/`, so one pipeline. Shapes are never in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelKey {
    /// The template's path in `shaders/` without `.wgsl`.
    pub template: &'static str,
    /// The template's variables.
    pub values: SmallVec<[(&'static str, Value); 16]>,
    /// Number of buffers that the kernel binds.
    pub bindings: u32,
    /// Number of 32-bit words of its `Params`.
    pub words: u32,
}

/// The template of a program's own kernels: its values are the WGSL, as `immediate` and as `uniform`.
pub(crate) const USER: &str = "user";

impl KernelKey {
    /// In errors and labels.
    pub(crate) fn name(&self) -> &'static str {
        let named = self.values.iter().find(|(name, _)| *name == "name");
        match named {
            Some((_, Value::Text(name))) if self.is_users() => name,
            _ => self.template,
        }
    }

    /// Whether the kernel is a program's own: it runs with every check.
    pub(crate) fn is_users(&self) -> bool {
        self.template == USER
    }

    /// Whether the kernel reads the device's texels, as group 2.
    pub(crate) fn reads_texels(&self) -> bool {
        self.values.iter().any(|(name, _)| *name == "texels")
    }
}

/// The template and its values in one line; of a program's own kernel, whose values are its text, the name.
impl fmt::Display for KernelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (name, value) in self.values.iter().filter(|_| !self.is_users()) {
            // Elementwise kernels have code among them.
            write!(f, " {name}={}", value.to_string().replace('\n', " "))?;
        }
        Ok(())
    }
}

/// The words of one dispatch's `Params`: scalars as u32.
pub(crate) type Words = SmallVec<[u32; 32]>;

/// One dispatch of a launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dispatch {
    pub words: Words,
    pub groups: [u32; 3],
}

/// Bytes of a storage that a launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// From the storage's start, a multiple of [`WINDOW_ALIGNMENT`].
    pub offset: u64,
    /// A multiple of [`WINDOW_ALIGNMENT`].
    pub bytes: u64,
}

/// Windows start and end on it: what every adapter accepts, and what storages are multiples of.
pub(crate) const WINDOW_ALIGNMENT: u64 = 256;

impl Window {
    /// The smallest window that has these bytes of a storage.
    pub(crate) fn around(bytes: std::ops::Range<u64>) -> Self {
        let offset = bytes.start - bytes.start % WINDOW_ALIGNMENT;
        Self {
            offset,
            bytes: bytes.end.next_multiple_of(WINDOW_ALIGNMENT) - offset,
        }
    }

    /// One past its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// Whether both have bytes that are the same, of one storage.
    pub(crate) fn overlaps(&self, other: &Window) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// What one binding of a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Inputs count from 0, then comes the output, then scratch: memory without contents that the
    /// op's launches share, as large as their windows on it reach.
    pub operand: usize,
    /// The part of its storage that is bound; all of it when `None`.
    pub window: Option<Window>,
}

impl Bound {
    /// An operand's whole storage.
    pub(crate) fn whole(operand: usize) -> Self {
        Self {
            operand,
            window: None,
        }
    }
}

/// Rows that are copied into the device's texels before a launch, for kernels that read operands
/// there: a software adapter loads texels without a branch for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TexelCopy {
    /// What is copied from, as in [`Bound`].
    pub operand: usize,
    /// Of the first row, in bytes from the storage's start: a multiple of 16.
    pub offset: u64,
    /// Bytes from row to row: a multiple of 256.
    pub pitch: u64,
    /// Texels of a row, at most [`TEXEL_WIDTH`].
    pub width: u32,
    pub rows: u32,
    /// Where they go: the layer, and the first row of it.
    pub layer: u32,
    pub row: u32,
}

/// Bytes of a texel: four f32; texels in a row of the device's, rows of a layer, layers: 4 MiB each.
pub(crate) const TEXEL_BYTES: u64 = 16;
pub(crate) const TEXEL_WIDTH: u32 = 16;
pub(crate) const TEXEL_ROWS: u32 = 16_384;
pub(crate) const TEXEL_LAYERS: u32 = 8;

/// An op's work on a GPU: run in order, with nothing else between them.
pub(crate) type Launches = SmallVec<[Launch; 1]>;

/// What is counted where there would be too many.
pub(crate) const LAUNCHES: &str = "launches";

/// What is said of more launches than there may be, and at least how many they are.
pub(crate) fn too_many(op: &'static str, what: impl Into<String>, launches: usize) -> Error {
    Error::too_large(
        op,
        what,
        launches as u128,
        MAX_LAUNCHES as u64,
        LAUNCHES,
        "of one op",
        "work on parts of the operands, on copies whose rows lie close together, or on the CPU",
    )
}

/// Launches of an op that reads or writes in windows by places of its own (`index`, `position`), and of a product: more are
/// refused before they take the host's memory. Other ops are not counted: `concat`, for one, has a launch or more for each
/// operand.
pub(crate) const MAX_LAUNCHES: usize = 1 << 17;

/// # Errors
/// `TooLarge` when an op has more than there may be.
pub(crate) fn check_count(op: &'static str, launches: usize) -> Result<()> {
    match launches <= MAX_LAUNCHES {
        true => Ok(()),
        false => Err(too_many(op, "its work on a GPU", launches)),
    }
}

/// One kernel on one set of bindings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    pub kernel: KernelKey,
    /// What each binding is. Operands that share a storage share a binding, unless their windows
    /// are disjoint: no byte is ever bound twice.
    pub operands: SmallVec<[Bound; 4]>,
    /// Done first, for a kernel that reads texels.
    pub texels: SmallVec<[TexelCopy; 1]>,
    pub dispatches: SmallVec<[Dispatch; 1]>,
    /// Floating point or integer operations, for batching and figures.
    pub flops: f64,
    /// Bytes read and written, for batching and figures.
    pub bytes: f64,
}

/// Folds `workgroups` into two grid dimensions of at most `limit` each; kernels compute
/// `x + y * num_workgroups.x` and leave when that is past the end. `None` when even that is too
/// few.
pub(crate) fn fold_grid(workgroups: u64, limit: u32) -> Option<[u32; 3]> {
    let limit = u64::from(limit.max(1));
    if workgroups <= limit {
        return Some([workgroups as u32, 1, 1]);
    }
    let rows = workgroups.div_ceil(limit);
    if rows > limit {
        return None;
    }
    // Balanced columns leave fewer idle workgroups than full rows.
    let columns = workgroups.div_ceil(rows);
    Some([columns as u32, rows as u32, 1])
}

#[cfg(test)]
mod tests {
    use super::fold_grid;

    #[test]
    fn grids_cover_all_workgroups() {
        for n in [1u64, 2, 65_535, 65_536, 65_537, 1 << 20, 4_294_836_225] {
            let [x, y, z] = fold_grid(n, 65_535).unwrap();
            assert!(u64::from(x) * u64::from(y) >= n && z == 1);
            assert!(x <= 65_535 && y <= 65_535);
        }
        assert_eq!(fold_grid(4_294_836_226, 65_535), None);
    }
}
