//! Is the device still there, and what did it say: the lost flag, errors outside any scope,
//! error scopes as results, and polls that meet a loss.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::deadline::{Deadline, PAUSE};
use super::serial::Serial;
use crate::error::{Error, Result};
use crate::sync::{Mutex, thread};

/// What wgpu reported about a device. Callbacks only store here and wake nobody.
pub(crate) struct Health {
    device: String,
    lost: OnceLock<String>,
    uncaptured: Mutex<Option<String>>,
    /// A device of somebody else's, whose handlers stay theirs: asked at each check.
    lent: Option<wgpu::Device>,
}

const REOPEN: &str =
    "open it again with Device::builder(), data of other devices and of the CPU is intact";

impl Health {
    /// Watches `device`: from now on wgpu neither panics nor logs on errors of ours.
    pub(crate) fn watch(name: &str, device: &wgpu::Device) -> Arc<Self> {
        let health = Arc::new(Self {
            device: name.to_owned(),
            lost: OnceLock::new(),
            uncaptured: Mutex::new(None),
            lent: None,
        });
        let seen = Arc::clone(&health);
        device.set_device_lost_callback(move |reason, message| {
            let separator = if message.is_empty() { "" } else { ": " };
            seen.lose(&format!("{reason:?}{separator}{message}"));
        });
        let seen = Arc::clone(&health);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            tracing::error!(%error, "uncaptured wgpu error");
            seen.uncaptured.lock().get_or_insert(error.to_string());
        }));
        health
    }

    /// Looks after a device whose handlers are its owner's: none is set, and each check asks the
    /// device.
    pub(crate) fn lent(name: &str, device: &wgpu::Device) -> Arc<Self> {
        Arc::new(Self {
            device: name.to_owned(),
            lost: OnceLock::new(),
            uncaptured: Mutex::new(None),
            lent: Some(device.clone()),
        })
    }

    /// # Errors
    /// [`Error::DeviceLost`] once the device is lost.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(device) = &self.lent {
            return self.ask(device);
        }
        self.known()
    }

    /// [`Health::check`] that asks the device: a loss may fail work before it is reported.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] once the device is lost.
    pub(crate) fn ask(&self, device: &wgpu::Device) -> Result<()> {
        if self.lost.get().is_none() && is_lost(device) {
            self.lose("by its owner or its driver");
        }
        self.known()
    }

    /// Why something failed that should not: the device is lost, or what it said.
    pub(crate) fn explain(&self, device: &wgpu::Device, label: &str, reason: String) -> Error {
        match self.ask(device) {
            Err(lost) => lost,
            Ok(()) => Error::execution(&self.device, label, reason),
        }
    }

    fn known(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::device_lost(&self.device, reason)),
            None => Ok(()),
        }
    }

    /// Notes a loss that wgpu did not report by its callback.
    pub(crate) fn lose(&self, reason: &str) {
        let _ = self.lost.set(format!("lost ({reason}); {REOPEN}"));
    }

    /// Whether somebody else uses the device beside us.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// A loss was seen before: asks nobody, unlike [`Health::check`].
    pub(crate) fn is_known_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// An error that came outside every scope since the last call.
    pub(crate) fn take_uncaptured(&self) -> Option<String> {
        self.uncaptured.lock().take()
    }
}

/// wgpu tells of a loss through its owner's callback only, but a lost device swallows every error:
/// one that swallows what it must refuse is lost. Half a microsecond; reaches no driver.
fn is_lost(device: &wgpu::Device) -> bool {
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    drop(device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("orlop asks whether the device is lost"),
        size: 4,
        usage: wgpu::BufferUsages::empty(),
        mapped_at_creation: false,
    }));
    pollster::block_on(scope.pop()).is_none()
}

/// Polls; nothing when wgpu refused, and did nothing.
///
/// # Errors
/// What wgpu panicked with when the driver said that the device is lost: it has no other way to tell.
pub(super) fn caught_poll(
    device: &wgpu::Device,
    poll: wgpu::PollType,
) -> std::result::Result<Option<wgpu::PollStatus>, String> {
    let panic = match catch_unwind(AssertUnwindSafe(|| device.poll(poll))) {
        Ok(polled) => return Ok(polled.ok()),
        Err(panic) => panic,
    };
    match panic.downcast::<String>() {
        Ok(message) if message.starts_with("Error in Device::poll") => Err(*message),
        // A callback's of whoever else uses the device.
        Ok(other) => resume_unwind(other),
        Err(other) => resume_unwind(other),
    }
}

/// Looks at an idle queue, a millisecond apart: another thread's poll may be about to tell.
const LOOKS_AFTER: usize = 100;
/// After so long without an idle moment a poll waits, or it would never end for a busy device that was given with
/// another one's queue.
const LOOKED_FOR: Duration = Duration::from_secs(10);

/// Polls a device that no `Gpu` has yet, to the end of all of its work, until a callback of that work has told; false
/// where none does.
///
/// # Errors
/// `DeviceLost`, `TimedOut`.
pub(super) fn wait_until_told(
    device: &wgpu::Device,
    serial: Option<&'static Serial>,
    health: &Health,
    deadline: Deadline,
    told: impl Fn() -> bool,
) -> Result<bool> {
    let started = Instant::now();
    // On Metal a wait may take it for lost: see `Gpu::waits_in_wgpu`.
    let may_wait = device.adapter_info().backend != wgpu::Backend::Metal;
    let mut looks = 0;
    while looks < LOOKS_AFTER {
        // Before the poll: what is told by the deadline is seen, however short the limit is.
        let in_time = deadline.check(&health.device, "opening the device");
        let waits = may_wait && deadline.is_endless() && started.elapsed() >= LOOKED_FOR;
        let poll = match waits {
            true => wgpu::PollType::wait_indefinitely(),
            // One that waits would keep a device's owner from presenting: see `Gpu::poll`.
            false => wgpu::PollType::Poll,
        };
        let polled = {
            let _hold = serial.map(Serial::hold);
            caught_poll(device, poll)
        };
        let is_idle = match polled {
            Ok(status) => waits || status.is_some_and(|status| status.is_queue_empty()),
            Err(message) => {
                health.lose(&message);
                false
            }
        };
        if told() {
            return Ok(true);
        }
        health.check()?;
        in_time?;
        if is_idle {
            looks += 1;
            thread::sleep(Duration::from_millis(1));
        } else {
            thread::sleep(PAUSE);
        }
    }
    Ok(false)
}

/// What an error scope caught.
#[derive(Debug)]
pub(crate) enum Caught {
    OutOfMemory(String),
    Other(String),
}

impl Caught {
    fn message(&self) -> &str {
        match self {
            Caught::OutOfMemory(message) | Caught::Other(message) => message,
        }
    }

    pub(crate) fn into_message(self) -> String {
        match self {
            Caught::OutOfMemory(message) | Caught::Other(message) => message,
        }
    }
}

/// Runs `work` inside error scopes of this thread, so that no error reaches a panic or a handler
/// of somebody else.
pub(crate) fn scoped<T>(
    device: &wgpu::Device,
    work: impl FnOnce() -> T,
) -> std::result::Result<T, Caught> {
    match observed(device, work) {
        (value, None) => Ok(value),
        (_, Some(caught)) => Err(caught),
    }
}

/// [`scoped`] for work whose value is needed whatever it met: what it made shows the error when it
/// is used.
pub(crate) fn observed<T>(device: &wgpu::Device, work: impl FnOnce() -> T) -> (T, Option<Caught>) {
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let value = work();
    // On native the futures are ready at once. Every scope is popped, innermost first.
    let caught = [validation, memory, internal].map(|scope| pollster::block_on(scope.pop()));
    let caught = caught
        .into_iter()
        .flatten()
        .next()
        .map(|error| match error {
            wgpu::Error::OutOfMemory { .. } => Caught::OutOfMemory(describe(&error)),
            _ => Caught::Other(describe(&error)),
        });
    (value, caught)
}

/// Hands a finished encoder's commands to the queue. wgpu may run callbacks of a program's in there, on this thread and in
/// our scopes: what goes wrong in those is no refusal.
///
/// # Errors
/// Why wgpu refused the commands: none of them runs.
pub(crate) fn submit(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    commands: wgpu::CommandBuffer,
) -> std::result::Result<wgpu::SubmissionIndex, Caught> {
    match observed(device, || queue.submit([commands])) {
        (index, None) => Ok(index),
        // wgpu runs no callbacks where it refuses, so what a scope keeps, its first error, is then the refusal. (Or that of
        // a callback that submits, which has the same words.)
        (_, Some(caught)) if caught.message().contains("In Queue::submit") => Err(caught),
        (index, Some(caught)) => {
            let error = caught.into_message();
            tracing::error!(error, "a callback of the program's failed in a submission");
            Ok(index)
        }
    }
}

/// The error with its causes, one a line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let line = cause.to_string();
        if !text.contains(&line) {
            text.push('\n');
            text.push_str(&line);
        }
        source = cause.source();
    }
    text
}
