//! The one error type: what was asked, what there was, what would help.

mod dtypes;
mod leaks;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::shape::Shape;

pub use dtypes::DTypeMismatch;
pub use leaks::{Leaks, LiveTensor};

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
/// device, and for products and work by places or an index that take a GPU more than 2^17 launches of kernels; under strict placement [`Error::Unsupported`] for
/// what the device lacks, and for operands on several devices;
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
    /// A tensor, shape or work larger than can be: an overflow, or above a limit of the device.
    #[error("{0}")]
    TooLarge(Box<TooLarge>),
    /// A device that is not there; lists those that are.
    #[error("{0}")]
    UnknownDevice(Box<UnknownDevice>),
    /// The adapter is there but could not be opened.
    #[error("{0}")]
    DeviceUnavailable(Box<DeviceFailure>),
    /// The device's budget or the adapter's memory cannot hold the request, or the host has no memory or no thread for it.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The device cannot do this: under strict placement, because it lacks something or operands live on several devices; under
    /// any, where it was named on purpose ([`Tensor::to`](crate::Tensor::to), buffers of wgpu, [`Kernel::check`](crate::Kernel::check)).
    #[error("{0}")]
    Unsupported(Box<Unsupported>),
    /// A kernel did not compile.
    #[error("{0}")]
    KernelCompile(Box<KernelCompile>),
    /// Recorded work failed on the device, or on a thread of its own; what it would have written has no content.
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
    /// The device is lost: from now on every call that computes, copies, waits or allocates there says so, but for reads of tensors that
    /// were spilled. Other devices go on, and so do ops that the CPU does for it whose operands and results are not there.
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
    /// How much was asked for, in units; `u128::MAX` where it is more than that. Of launches at least so many.
    pub asked: u128,
    /// The limit, in units.
    pub limit: u64,
    /// What is counted: `bytes`, `elements` of a shape that no memory could have, or `launches` of kernels.
    pub unit: &'static str,
    /// Which limit: an adapter's, the address space's, or orlop's own.
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
    /// What may keep others from sight: settings that hide them, backends that orlop was built without.
    pub help: Option<String>,
}

impl std::error::Error for UnknownDevice {}

impl fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no device matches `{}`", self.asked)?;
        if let Some(setting) = self.setting {
            write!(f, " of {setting}")?;
        }
        write!(f, "; there are: {}", self.available.join(", "))?;
        match &self.help {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The operation that asked, or the one that it is made of which did; `None` where a device was opened.
    pub op: Option<&'static str>,
    /// The device's selector and name; `host` where the host has no memory.
    pub device: String,
    /// Bytes asked for; 0 where it was memory for staging, which is beside the budget, or a thread.
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

impl std::error::Error for OutOfMemory {}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(op) = self.op {
            write!(f, "{op}: ")?;
        }
        write!(f, "device {}: {}", self.device, self.diagnosis)
    }
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
    /// The device's selector and name; `host` where a panic ended a thread's work.
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

/// What errors call the host where it is no device.
const HOST: &str = "host";

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
    // No `From<io::Error>`: a second `From` leaves closures of `scope` that end in `Ok(..)` without an error type.
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
        Self::of_host(
            op,
            asked,
            format!(
                "the system gives no {asked} bytes on the host; smaller pieces, one after the other, take less"
            ),
        )
    }

    /// The host has no thread for what an op does there.
    pub(crate) fn no_thread(op: &'static str, error: &std::io::Error) -> Self {
        let problem = format!(
            "the system gives no thread: {error}; fewer threads, or a higher limit of them, would help"
        );
        Self::of_host(op, 0, problem)
    }

    fn of_host(op: &'static str, asked: u64, diagnosis: String) -> Self {
        Error::OutOfMemory(Box::new(OutOfMemory {
            op: Some(op),
            device: HOST.to_owned(),
            asked,
            limit: None,
            allocated: 0,
            reserved: 0,
            largest_free: 0,
            diagnosis,
        }))
    }

    /// Says of memory that there is not which op asked for it, where nothing says so yet.
    pub(crate) fn asked_by(mut self, op: &'static str) -> Self {
        if let Error::OutOfMemory(full) = &mut self {
            full.op.get_or_insert(op);
        }
        self
    }

    /// Says of memory that there is not that an op asked for it that is made of others.
    pub(crate) fn asked_for(mut self, op: &'static str) -> Self {
        if let Error::OutOfMemory(full) = &mut self {
            full.op = Some(op);
        }
        self
    }

    /// Says of memory that there is not that it was no result.
    pub(crate) fn of_scratch(mut self) -> Self {
        if let Error::OutOfMemory(full) = &mut self
            // What nobody reads stays nothing.
            && !full.diagnosis.is_empty()
        {
            full.diagnosis
                .push_str("; it was for scratch, beside the result");
        }
        self
    }

    /// A thread of the host ended before it had done its work, or gave it up.
    pub(crate) fn thread_ended(op: &'static str) -> Self {
        let why = "a panic came before the result: of its thread, or of a callback that the program gave wgpu and that ran there";
        Self::execution(HOST, op, why)
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
    fn what_the_environment_lacks_is_no_argument() {
        let refused = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        let text = Error::no_thread("to_vec_async", &refused).to_string();
        assert!(
            text.starts_with("to_vec_async: device host: the system gives no thread"),
            "{text}"
        );
        let ended = Error::thread_ended("build_async");
        assert!(matches!(ended, Error::Execution(_)), "{ended}");
    }

    #[test]
    fn errors_are_small_and_travel() {
        assert!(size_of::<Error>() <= 32);
        fn travels<T: Send + Sync + 'static>() {}
        travels::<Error>();
    }
}
