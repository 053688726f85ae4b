//! Waiting for the device: without any lock, seeing a loss.

use std::time::Duration;

use super::Gpu;
use super::block::GpuBlock;
use super::serial::Hold;
use super::stream::{Stream, Submission};
use crate::error::Result;
use crate::sync::{MutexGuard, thread};

/// Submissions that may be in flight before the recording thread waits for the oldest.
const IN_FLIGHT: usize = 8;
/// Between two looks where a wait cannot block: GL must let others at the context.
pub(super) const PAUSE: Duration = Duration::from_micros(100);

impl Gpu {
    /// Polls until `done`, which must follow from `submission` having run.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(super) fn wait_for(&self, submission: &Submission, done: impl Fn() -> bool) -> Result<()> {
        loop {
            if done() {
                return Ok(());
            }
            self.health.check()?;
            if self.poll_once(submission) {
                // The callbacks of a finished submission have run, or the next poll runs them.
                thread::yield_now();
            }
        }
    }

    /// Waits (on GL: looks once); true when the submission has run.
    fn poll_once(&self, submission: &Submission) -> bool {
        let poll = |timeout| {
            let status = self.device.poll(wgpu::PollType::Wait {
                submission_index: Some(submission.index.clone()),
                timeout,
            });
            // Any other error says that there is nothing to wait for.
            !matches!(status, Err(wgpu::PollError::Timeout))
        };
        match self.serial {
            // Never a timeout: wgpu 30 panics when one meets another thread's poll. A lost device
            // ends the wait, and drivers give up on work that hangs.
            None => poll(None),
            Some(_) => {
                let finished = {
                    let _hold = self.hold();
                    poll(Some(Duration::ZERO))
                };
                if !finished {
                    thread::sleep(PAUSE);
                }
                finished
            }
        }
    }

    /// Waits until a submission, and so all before it, has run.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(super) fn wait_submission(&self, submission: &Submission) -> Result<()> {
        loop {
            self.health.check()?;
            if self.poll_once(submission) {
                self.stream.lock().finished(submission);
                return self.health.check();
            }
        }
    }

    /// Keeps the host from running ahead of the device without end.
    pub(super) fn throttle(&self) -> Result<()> {
        let oldest = self.stream.lock().oldest_of(IN_FLIGHT);
        match oldest {
            Some(oldest) => self.wait_submission(&oldest),
            None => Ok(()),
        }
    }

    /// Submits what is recorded and waits until all of it has run.
    ///
    /// # Errors
    /// `DeviceLost`; the error of the first batch that failed since the last call.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let last = {
            let _hold = self.hold();
            let mut stream = self.stream.lock();
            stream.submit()?;
            stream.last_submission()
        };
        if let Some(last) = last {
            self.wait_submission(&last)?;
        }
        if let Some(message) = self.health.take_uncaptured() {
            return Err(crate::error::Error::execution(
                &self.name,
                "unknown work",
                message,
            ));
        }
        match self.stream.lock().take_failure() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The stream, to record work that writes a block in place: when no other thread is in the
    /// middle of reading it.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(super) fn stream_to_write(
        &self,
        block: &GpuBlock,
    ) -> Result<(MutexGuard<'_, Stream>, Option<Hold>)> {
        loop {
            {
                let hold = self.hold();
                let stream = self.stream.lock();
                self.health.check()?;
                if !block.has_unrecorded_reads() {
                    return Ok((stream, hold));
                }
            }
            // The reader records on its own thread, whatever this one does.
            thread::sleep(PAUSE);
        }
    }
}
