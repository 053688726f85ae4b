//! What products widen, pack and sum in: kept for the next ones, since the system takes back what is freed, and to have it
//! again costs several times what small products do.

use std::sync::PoisonError;

use super::host_vec;
use crate::error::Result;
use crate::sync::Mutex;

/// Rooms of products that are done. (The standard library's lock: it is never waited for with another one.)
static KEPT: std::sync::Mutex<Vec<Vec<f32>>> = std::sync::Mutex::new(Vec::new());
/// Numbers of all that are kept at most: 8 MiB, those of three threads of the largest products, of many of others.
const MOST_KEPT: usize = 2 << 20;

/// One for each thread, of so many numbers.
pub(crate) struct Rooms {
    spare: Mutex<Vec<Vec<f32>>>,
    count: usize,
}

impl Rooms {
    /// # Errors
    /// `OutOfMemory` of the host.
    pub(crate) fn new(op: &'static str, threads: usize, count: usize) -> Result<Self> {
        let spare = (0..threads).map(|_| {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            match kept.iter().position(|room| room.capacity() >= count) {
                Some(at) => Ok(kept.swap_remove(at)),
                None => host_vec(op, count),
            }
        });
        Ok(Self {
            spare: Mutex::new(spare.collect::<Result<Vec<_>>>()?),
            count,
        })
    }

    /// Lends one, whose numbers are any.
    pub(crate) fn lend(&self, work: impl FnOnce(&mut [f32])) {
        let mut room = self.spare.lock().pop().unwrap_or_default();
        if room.len() < self.count {
            room.resize(self.count, 0.0);
        }
        work(&mut room[..self.count]);
        self.spare.lock().push(room);
    }
}

/// They are kept for the next product, unless there are enough.
impl Drop for Rooms {
    fn drop(&mut self) {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        for room in std::mem::take(&mut *self.spare.lock()) {
            let held: usize = kept.iter().map(Vec::capacity).sum();
            if room.capacity() <= MOST_KEPT.saturating_sub(held) {
                kept.push(room);
            }
        }
    }
}
