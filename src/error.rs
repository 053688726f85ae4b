//! The one error type: what was asked, what there was, what would help.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::dtype::DType;
use crate::shape::Shape;

/// Result with orlop's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. A failed call changes no tensor, but for what a program's own twin or a
/// [`matmul_streamed`](crate::matmul_streamed) had written before it failed; the device and its statistics stay valid (after
/// [`Error::DeviceLost`] only that one device is gone). It is counted, and on the way memory may have gone back or moved.
///
/// Small (at most 32 bytes), `Send + Sync`, `Clone`, free of wgpu types.
///
/// # What any op can meet
///
/// Beside what each op says of its arguments: [`Error::OutOfMemory`]; [`Error::TooLarge`] for a result above the largest buffer of the
/// device; under strict placement [`Error::Unsupported`] for what the device lacks, and for operands on several devices;
/// [`Error::KernelCompile`] from a driver that refuses a kernel;
/// [`Error::Execution`] when the work that made an operand failed; [`Error::TimedOut`] for a wait above
/// [`DeviceBuilder::wait_timeout`](crate::DeviceBuilder::wait_timeout); [`Error::DeviceLost`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes do not go together in an operation.
    #[error("{0}")]
    ShapeMismatch(Box<ShapeMismatch>),
    /// Two dtypes do not go together; orlop never converts on its own.
    #[error("{0}")]
    DTypeMismatch(Box<DTypeMismatch>),
    /// An argument that no device could serve: a bad axis, a slice out of range, wrong length.
    #[error("{0}")]
    InvalidArgument(Box<InvalidArgument>),
    /// A tensor or shape larger than can be: an overflow, or above a limit of the device.
    #[error("{0}")]
    TooLarge(Box<TooLarge>),
    /// A device that is not there; lists those that are.
    #[error("{0}")]
    UnknownDevice(Box<UnknownDevice>),
    /// The adapter is there but could not be opened.
    #[error("{0}")]
    DeviceUnavailable(Box<DeviceFailure>),
    /// The device's budget or the adapter's memory cannot hold the request.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The device cannot do this: under strict placement, because it lacks something or operands live on several devices; under
    /// any, where it was named on purpose ([`Tensor::to`](crate::Tensor::to), buffers of wgpu, [`Kernel::check`](crate::Kernel::check)).
    #[error("{0}")]
    Unsupported(Box<Unsupported>),
    /// A kernel did not compile.
    #[error("{0}")]
    KernelCompile(Box<KernelCompile>),
    /// Recorded work failed on the device; what it would have written has no content.
    #[error("{0}")]
    Execution(Box<Execution>),
    /// A file that cannot be read or written, or is not what its format asks for.
    #[error("{0}")]
    File(Box<FileFailure>),
    /// A wait reached its time limit; the work goes on.
    #[error("{0}")]
    TimedOut(Box<TimedOut>),
    /// Tensors live where none should: [`Device::check_leaks`](crate::Device::check_leaks).
    #[error("{0}")]
    Leaks(Box<Leaks>),
    /// What a program's own code said: a kernel's twin or shape rule, a source or target of [`matmul_streamed`](crate::matmul_streamed).
    /// Made by [`Error::custom`].
    #[error(transparent)]
    Custom(Arc<dyn std::error::Error + Send + Sync>),
    /// The device is lost: from now on every call on it that computes, copies, waits or allocates says so, but for reads of tensors that
    /// were spilled. Other devices go on.
    #[error("{0}")]
    DeviceLost(Box<DeviceFailure>),
}

/// Details of [`Error::ShapeMismatch`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op}: shapes {left} and {right} do not go together: {rule}")]
#[non_exhaustive]
pub struct ShapeMismatch {
    /// The operation.
    pub op: &'static str,
    /// Shape of the first operand.
    pub left: Shape,
    /// Shape of the second operand.
    pub right: Shape,
    /// The rule that they break.
    pub rule: &'static str,
}

/// Details of [`Error::DTypeMismatch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DTypeMismatch {
    /// The operation.
    pub op: &'static str,
    /// What the first operand is, or what the tensor holds.
    pub left: DType,
    /// What the second operand is, or what was asked for.
    pub right: DType,
    pub(crate) rule: DTypeRule,
}

/// Why dtypes have to go together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DTypeRule {
    /// Operands have one dtype.
    Same,
    /// What the first has to be, where it is an operand like no other.
    Operand(&'static str),
    /// Elements are read as what they are.
    Read,
}

impl std::error::Error for DTypeMismatch {}

impl fmt::Display for DTypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            op,
            left,
            right,
            rule,
        } = self;
        match rule {
            DTypeRule::Same => write!(
                f,
                "{op}: dtypes {left} and {right} differ; convert one of them with \
                 `cast(DType::{right:?})` or `cast(DType::{left:?})`"
            ),
            DTypeRule::Operand(rule) => write!(
                f,
                "{op}: {rule}, not {left}; convert it with `cast(DType::{right:?})`"
            ),
            DTypeRule::Read => write!(
                f,
                "{op}: elements are {left}, not {right}: read them as {left} (of a tensor `cast(DType::{right:?})` \
                 makes {right})"
            ),
        }
    }
}

/// Details of [`Error::InvalidArgument`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op}: {problem}")]
#[non_exhaustive]
pub struct InvalidArgument {
    /// The operation.
    pub op: &'static str,
    /// What was given, what was expected.
    pub problem: String,
}

/// Details of [`Error::TooLarge`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op}: {what} is {asked} {unit}, above the limit of {limit} {unit} ({limit_name}); {help}")]
#[non_exhaustive]
pub struct TooLarge {
    /// The operation.
    pub op: &'static str,
    /// What is too large.
    pub what: String,
    /// How much was asked for, in units; `u128::MAX` where it is more than that.
    pub asked: u128,
    /// The limit, in units.
    pub limit: u64,
    /// What is counted: `bytes`, or `elements` of a shape that no memory could have.
    pub unit: &'static str,
    /// Which limit: an adapter's, or the address space's.
    pub limit_name: &'static str,
    /// What would help.
    pub help: &'static str,
}

/// Details of [`Error::UnknownDevice`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnknownDevice {
    /// What was asked for.
    pub asked: String,
    /// The setting that asked for it, where it was not the call: `ORLOP_DEVICE`,
    /// `ORLOP_VISIBLE_DEVICES` or `visible`.
    pub setting: Option<&'static str>,
    /// Selectors and names of the devices that exist.
    pub available: Vec<String>,
}

impl std::error::Error for UnknownDevice {}

impl fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no device matches `{}`", self.asked)?;
        if let Some(setting) = self.setting {
            write!(f, " of {setting}")?;
        }
        write!(f, "; there are: {}", self.available.join(", "))
    }
}

/// Details of [`Error::DeviceUnavailable`] and [`Error::DeviceLost`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("device {device}: {reason}")]
#[non_exhaustive]
pub struct DeviceFailure {
    /// The device's selector and name.
    pub device: String,
    /// What the driver said and what would help.
    pub reason: String,
}

/// Details of [`Error::OutOfMemory`].
///
/// Where `build` finds too little left by other devices on the adapter, `asked` is the budget (0 without a
/// [`memory_limit`](crate::DeviceBuilder::memory_limit)), `limit` the adapter's memory, `reserved` what the others hold, and
/// `largest_free` what they leave; so where [`Device::set_memory_limit`](crate::Device::set_memory_limit) does. Where that finds more reserved than it is
/// to be, `asked` is the new budget, `limit` the old one.
#[derive(Clone, Debug, thiserror::Error)]
#[error("device {device}: {diagnosis}")]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device's selector and name; `host` where the host has no memory.
    pub device: String,
    /// Bytes asked for; 0 where it was memory for staging, which is beside the budget.
    pub asked: u64,
    /// The device's budget in bytes, if it has one.
    pub limit: Option<u64>,
    /// Bytes in use by tensors at that moment.
    pub allocated: u64,
    /// Bytes held from the adapter at that moment.
    pub reserved: u64,
    /// The largest free chunk in bytes at that moment.
    pub largest_free: u64,
    /// What was asked, the budget, what is in use, the largest hole, what would help.
    pub diagnosis: String,
}

/// Details of [`Error::Unsupported`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op}: device {device} cannot do this: {reason}; {help}")]
#[non_exhaustive]
pub struct Unsupported {
    /// The operation.
    pub op: &'static str,
    /// The device's selector and name.
    pub device: String,
    /// Which dtype, feature or limit is missing, or where operands live.
    pub reason: String,
    /// What would help.
    pub help: &'static str,
}

/// Details of [`Error::KernelCompile`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("kernel {kernel} does not compile:\n{rendered}")]
#[non_exhaustive]
pub struct KernelCompile {
    /// The kernel's name.
    pub kernel: String,
    /// The compiler's message with line and caret.
    pub rendered: String,
}

/// Details of [`Error::Execution`].
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "device {device}: {label} failed, and what it would have written has no content: {reason}; all other work goes on: mend the cause and run it again"
)]
#[non_exhaustive]
pub struct Execution {
    /// The device's selector and name.
    pub device: String,
    /// The operation that failed.
    pub label: String,
    /// What the device said.
    pub reason: String,
}

/// Details of [`Error::File`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op}: {file}: {problem}")]
#[non_exhaustive]
pub struct FileFailure {
    /// The operation.
    pub op: &'static str,
    /// The file's path, or that it is a reader or writer.
    pub file: String,
    /// What the system said, or what is wrong with the contents.
    pub problem: String,
    /// What the system, the reader or the writer returned ([`NotFound`](std::io::ErrorKind::NotFound), say); `None` of contents.
    pub kind: Option<std::io::ErrorKind>,
}

/// Details of [`Error::TimedOut`].
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "device {device}: {what} waited {limit:?}, its limit, and the device is still at work; the work goes on: wait again, allow more time (`wait_timeout` of the builder), or drop the device"
)]
#[non_exhaustive]
pub struct TimedOut {
    /// The device's selector and name.
    pub device: String,
    /// What waited.
    pub what: &'static str,
    /// The time limit.
    pub limit: Duration,
}

/// A tensor's memory that is in use, views of it included. From
/// [`Device::live_tensors`](crate::Device::live_tensors).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveTensor {
    /// Number of its allocation on the device, counted from 1.
    pub number: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// What it is for: see [`tagged`](crate::tagged).
    pub tag: String,
    /// Allocations on the device since it was made.
    pub age: u64,
    /// Whether it is on the host for now, to make room.
    pub spilled: bool,
    /// The first function outside of orlop that asked for it, when
    /// [`record_call_sites`](crate::DeviceBuilder::record_call_sites) is on.
    pub call_site: Option<String>,
}

impl fmt::Display for LiveTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LiveTensor {
            number,
            requested,
            tag,
            age,
            ..
        } = self;
        write!(
            f,
            "allocation {number}: {requested} bytes, {tag}, age {age}"
        )?;
        match &self.call_site {
            Some(site) => write!(f, ", from {site}"),
            None => Ok(()),
        }
    }
}

/// Details of [`Error::Leaks`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leaks {
    /// The device's selector and name.
    pub device: String,
    /// What lives, oldest first.
    pub tensors: Vec<LiveTensor>,
    /// What was looked at, if not everything.
    pub(crate) since: &'static str,
}

/// Tensors that a message lists.
const MOST_LISTED: usize = 20;

impl std::error::Error for Leaks {}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.tensors.len();
        let bytes: u64 = self.tensors.iter().map(|tensor| tensor.bytes).sum();
        let noun = if count == 1 {
            "tensor lives"
        } else {
            "tensors live"
        };
        let (device, since) = (&self.device, self.since);
        write!(
            f,
            "device {device}: {count} {noun} in {bytes} bytes{since}:"
        )?;
        for tensor in self.tensors.iter().take(MOST_LISTED) {
            write!(f, "\n  {tensor}")?;
        }
        if count > MOST_LISTED {
            write!(f, "\n  and {} more", count - MOST_LISTED)?;
        }
        if self.tensors.iter().all(|tensor| tensor.call_site.is_none()) {
            write!(
                f,
                "\nrecord_call_sites(true) of the builder tells where they come from"
            )?;
        }
        Ok(())
    }
}

/// A text, or what it begins with: files may have lines of any length, and names.
#[cfg(any(feature = "matmul-table", feature = "npy", feature = "safetensors"))]
pub(crate) fn brief(text: &str) -> std::borrow::Cow<'_, str> {
    const MOST: usize = 2000;
    match text.char_indices().nth(MOST) {
        None => text.into(),
        Some((end, _)) => format!("{}...", &text[..end]).into(),
    }
}

impl Error {
    /// An error of a program's own, from text or from any other error, whose text it has
    /// and whose [`source`](std::error::Error::source) is its own.
    ///
    /// ```
    /// use orlop::Error;
    ///
    /// let error = Error::custom("the plate has no edges");
    /// assert_eq!(error.to_string(), "the plate has no edges");
    /// let length = std::fs::metadata("plate.npy").map_err(Error::custom);
    /// # assert!(length.is_err());
    /// ```
    pub fn custom(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Custom(Arc::from(error.into()))
    }

    pub(crate) fn shape_mismatch(
        op: &'static str,
        left: &Shape,
        right: &Shape,
        rule: &'static str,
    ) -> Self {
        Error::ShapeMismatch(Box::new(ShapeMismatch {
            op,
            left: left.clone(),
            right: right.clone(),
            rule,
        }))
    }

    pub(crate) fn dtype_mismatch(op: &'static str, left: DType, right: DType) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left,
            right,
            rule: DTypeRule::Same,
        }))
    }

    /// Elements `there` that are `asked` for as others.
    pub(crate) fn read_dtype(op: &'static str, there: DType, asked: DType) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left: there,
            right: asked,
            rule: DTypeRule::Read,
        }))
    }

    /// An index of another dtype than those that count.
    pub(crate) fn no_index(op: &'static str, dtype: DType) -> Self {
        Self::operand_dtype(op, dtype, DType::I32, "an index is i32 or u32")
    }

    /// An operand of a dtype that is not the one it has to be, whatever the others are.
    pub(crate) fn operand_dtype(
        op: &'static str,
        left: DType,
        right: DType,
        rule: &'static str,
    ) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left,
            right,
            rule: DTypeRule::Operand(rule),
        }))
    }

    pub(crate) fn invalid(op: &'static str, problem: impl Into<String>) -> Self {
        Error::InvalidArgument(Box::new(InvalidArgument {
            op,
            problem: problem.into(),
        }))
    }

    pub(crate) fn unsupported(
        op: &'static str,
        device: impl Into<String>,
        reason: impl Into<String>,
        help: &'static str,
    ) -> Self {
        Error::Unsupported(Box::new(Unsupported {
            op,
            device: device.into(),
            reason: reason.into(),
            help,
        }))
    }

    pub(crate) fn execution(
        device: impl Into<String>,
        label: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Error::Execution(Box::new(Execution {
            device: device.into(),
            label: label.into(),
            reason: reason.into(),
        }))
    }

    #[cfg(any(feature = "npy", feature = "safetensors"))]
    pub(crate) fn file(
        op: &'static str,
        file: impl Into<String>,
        problem: impl Into<String>,
        kind: Option<std::io::ErrorKind>,
    ) -> Self {
        Error::File(Box::new(FileFailure {
            op,
            file: file.into(),
            problem: brief(&problem.into()).into_owned(),
            kind,
        }))
    }

    /// The host has no room for what an op needs there.
    pub(crate) fn host_memory(op: &'static str, asked: u64) -> Self {
        Error::OutOfMemory(Box::new(OutOfMemory {
            device: "host".to_owned(),
            asked,
            limit: None,
            allocated: 0,
            reserved: 0,
            largest_free: 0,
            diagnosis: format!(
                "{op}: the system gives no {asked} bytes on the host; smaller pieces, one after the other, take less"
            ),
        }))
    }

    pub(crate) fn device_lost(device: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::DeviceLost(Box::new(DeviceFailure {
            device: device.into(),
            reason: reason.into(),
        }))
    }

    pub(crate) fn timed_out(
        device: impl Into<String>,
        what: &'static str,
        limit: Duration,
    ) -> Self {
        Error::TimedOut(Box::new(TimedOut {
            device: device.into(),
            what,
            limit,
        }))
    }

    pub(crate) fn kernel_compile(kernel: &str, rendered: String) -> Self {
        Error::KernelCompile(Box::new(KernelCompile {
            kernel: kernel.to_owned(),
            rendered,
        }))
    }

    pub(crate) fn too_large(
        op: &'static str,
        what: impl Into<String>,
        asked: u128,
        limit: u64,
        unit: &'static str,
        limit_name: &'static str,
        help: &'static str,
    ) -> Self {
        Error::TooLarge(Box::new(TooLarge {
            op,
            what: what.into(),
            asked,
            limit,
            unit,
            limit_name,
            help,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small_and_travel() {
        assert!(size_of::<Error>() <= 32);
        fn travels<T: Send + Sync + 'static>() {}
        travels::<Error>();
    }
}
