//! The native CPU: its memory, parallel loops and copies, functions of floats, conversions, matrix products, and how
//! results are stored.

mod angles;
pub(crate) mod arena;
mod copy;
pub(crate) mod double;
mod few;
pub(crate) mod halves;
mod helpers;
pub(crate) mod matrix;
pub(crate) mod narrow;
mod pages;
#[cfg(target_arch = "x86_64")]
mod pairs;
pub(crate) mod panels;
pub(crate) mod parallel;
pub(crate) mod product;
mod rooms;
mod shared;
mod simd;
pub(crate) mod single;
pub(crate) mod stores;
pub(crate) mod tiles;
pub(crate) mod transpose;
mod vectors;
pub(crate) mod whole;

pub(crate) use arena::{HostBlock, HostPin, HostPool, ReadBytes};
pub(crate) use copy::{copy, copy_block, copy_run, fill, gather};
pub(crate) use rooms::Rooms;
pub(crate) use simd::{Loops, vectorised};

use crate::error::{Error, Result};

/// An empty vector with room for `count` elements, in large pages where it is large.
///
/// # Errors
/// `OutOfMemory` of the host, where the system would end the program.
pub(crate) fn host_vec<T>(op: &'static str, count: usize) -> Result<Vec<T>> {
    let mut room: Vec<T> = Vec::new();
    match room.try_reserve_exact(count) {
        Ok(()) => {
            pages::prefer_large(room.spare_capacity_mut());
            Ok(room)
        }
        Err(_) => Err(Error::host_memory(
            op,
            (count as u64).saturating_mul(size_of::<T>() as u64),
        )),
    }
}
