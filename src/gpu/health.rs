//! Is the device still there, and what did it say: the lost flag, errors outside any scope, and
//! error scopes as results.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// What wgpu reported about a device. Callbacks only store here and wake nobody.
pub(crate) struct Health {
    device: String,
    lost: OnceLock<String>,
    uncaptured: Mutex<Option<String>>,
}

impl Health {
    /// Watches `device`: from now on wgpu neither panics nor logs on errors of ours.
    pub(crate) fn watch(name: &str, device: &wgpu::Device) -> Arc<Self> {
        let health = Arc::new(Self {
            device: name.to_owned(),
            lost: OnceLock::new(),
            uncaptured: Mutex::new(None),
        });
        let seen = Arc::clone(&health);
        device.set_device_lost_callback(move |reason, message| {
            let _ = seen.lost.set(format!(
                "lost ({reason:?}{}{message}); open it again with Device::builder(), data of other devices and of the CPU is intact",
                if message.is_empty() { "" } else { ": " }
            ));
        });
        let seen = Arc::clone(&health);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            tracing::error!(%error, "uncaptured wgpu error");
            seen.uncaptured.lock().get_or_insert(error.to_string());
        }));
        health
    }

    /// # Errors
    /// [`Error::DeviceLost`] once the device is lost.
    pub(crate) fn check(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::device_lost(&self.device, reason)),
            None => Ok(()),
        }
    }

    /// An error that came outside every scope since the last call.
    pub(crate) fn take_uncaptured(&self) -> Option<String> {
        self.uncaptured.lock().take()
    }
}

/// What an error scope caught.
#[derive(Debug)]
pub(crate) enum Caught {
    OutOfMemory(String),
    Other(String),
}

impl Caught {
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
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let value = work();
    // On native the futures are ready at once. Every scope is popped, innermost first.
    let caught = [validation, memory, internal].map(|scope| pollster::block_on(scope.pop()));
    match caught.into_iter().flatten().next() {
        None => Ok(value),
        Some(error @ wgpu::Error::OutOfMemory { .. }) => Err(Caught::OutOfMemory(describe(&error))),
        Some(error) => Err(Caught::Other(describe(&error))),
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
