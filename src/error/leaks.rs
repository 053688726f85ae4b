//! Tensors that live where none should.

use std::fmt;

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

/// Details of [`Error::Leaks`](crate::Error::Leaks).
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
