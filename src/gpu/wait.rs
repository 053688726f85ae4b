//! Waiting for the device: without the locks of GL, stream and memory, seeing a loss, within a time limit if there is one.

use std::sync::Arc;
use std::time::Duration;

use super::Gpu;
use super::block::GpuBlock;
use super::deadline::{Deadline, PAUSE, looks};
use super::exit::{self, Counted, Left};
use super::health::caught_poll;
use super::serial::Hold;
use super::stream::{Stream, Submission};
use crate::error::{Error, Result};
use crate::promise::{Pending, Promise};
use crate::sync::{MutexGuard, thread};
use crate::turns::Turn;

/// Submissions that may be in flight before the recording thread waits for the oldest.
pub(super) const IN_FLIGHT: usize = 8;

/// Who sees to it that a write comes after the reads before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteOrder {
    /// Whoever writes waits for a turn.
    Waits,
    /// It is the writer's turn, or what is written does not change the contents.
    Kept,
}

impl Gpu {
    /// The time limit of a wait that begins now.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.wait_timeout)
    }

    /// Polls until `done`, which must follow from `submission` having run.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn wait_for(
        &self,
        what: &'static str,
        submission: &Submission,
        deadline: Deadline,
        done: impl Fn() -> bool,
    ) -> Result<()> {
        let done = looks(done);
        while !done() {
            self.health.check()?;
            // Before the poll: what is done by the deadline is seen, however short the limit is.
            let in_time = deadline.check(&self.name, what);
            if self.poll(submission, deadline) {
                // Its callbacks have run, or another thread's poll is running them.
                thread::yield_now();
            }
            if in_time.is_err() && !done() {
                return in_time;
            }
        }
        Ok(())
    }

    /// Waits (on GL, on Metal, on a lent device and before a deadline: looks once); true when the submission has run.
    fn poll(&self, submission: &Submission, deadline: Deadline) -> bool {
        let first = self
            .counted
            .as_ref()
            .filter(|counted| counted.is_first(self));
        if self.waits_in_wgpu && deadline.is_endless() && first.is_none() {
            // Never wgpu's own timeout: it panics when one meets another thread's poll. A lost
            // device ends the wait, and drivers give up on work that hangs.
            let waited = self.poll_device(wgpu::PollType::Wait {
                submission_index: Some(submission.index.clone()),
                timeout: None,
            });
            if waited {
                return true;
            }
            // A lost device took no such submission, and says so only to who polls without it.
        }
        {
            let _hold = self.hold();
            self.poll_device(wgpu::PollType::Poll);
        }
        let has_run = self.progress.count() >= submission.number;
        if let Some(first) = first {
            first.looked(has_run);
        }
        if !has_run {
            thread::sleep(PAUSE);
        }
        has_run
    }

    /// False when wgpu refused, and did nothing.
    pub(super) fn poll_device(&self, poll: wgpu::PollType) -> bool {
        match caught_poll(&self.device, poll) {
            Ok(polled) => polled.is_some(),
            Err(message) => {
                self.health.lose(&message);
                true
            }
        }
    }

    /// Between two looks at what other threads, or callbacks that somebody's poll runs, will do.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(super) fn look_again(&self, what: &'static str, deadline: Deadline) -> Result<()> {
        {
            let _hold = self.hold();
            self.poll_device(wgpu::PollType::Poll);
        }
        deadline.check(&self.name, what)?;
        thread::sleep(PAUSE);
        Ok(())
    }

    /// Waits until a submission, and so all before it, has run.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn wait_submission(
        &self,
        what: &'static str,
        submission: &Submission,
        deadline: Deadline,
    ) -> Result<()> {
        self.wait_for(what, submission, deadline, || {
            self.progress.count() >= submission.number
        })?;
        // What a lost device did not take is counted too, before the loss is told.
        self.health.ask(&self.device)
    }

    /// Submits what is recorded and waits until all of it has run, for `limit` or what the device
    /// has been given.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`; the error of the first work that failed since the last call.
    pub(crate) fn synchronize(&self, limit: Option<Duration>) -> Result<()> {
        self.finish("synchronize", Deadline::after(limit.or(self.wait_timeout)))?;
        self.take_failure()
    }

    /// [`Gpu::synchronize`] that leaves the error of failed work to the program. Regions that went back before are the
    /// adapter's again after it.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn finish(&self, what: &'static str, deadline: Deadline) -> Result<()> {
        let (last, went_back) = self.submit_all()?;
        if let Some(last) = last {
            self.wait_submission(what, &last, deadline)?;
        }
        self.memory.lock().source_mut().settled_up_to(went_back);
        Ok(())
    }

    /// [`Gpu::synchronize`] on the device's own thread, for what is recorded now.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn synchronize_async(self: &Arc<Self>) -> Result<Pending<()>> {
        let op = "synchronize_async";
        let gpu = Arc::clone(self);
        self.background.order(op, |promise: Promise<()>| {
            Box::new(move || {
                let waited = gpu.finish(op, gpu.deadline());
                // What failed is for somebody who asks: not for a future that was dropped.
                let result = match promise.is_awaited() {
                    true => waited.and_then(|()| gpu.take_failure()),
                    false => waited,
                };
                // Before the future is done: its program may count on the device being closed.
                drop(gpu);
                promise.keep(result);
            })
        })
    }

    /// Submits what is recorded: the last submission, and the bytes that went back before it.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(super) fn submit_all(&self) -> Result<(Option<Submission>, u64)> {
        let _hold = self.hold();
        let mut stream = self.stream.lock();
        stream.submit()?;
        let mut pool = self.memory.lock();
        // Cached bind groups would keep what went back.
        stream.forget_returned(&mut pool);
        Ok((stream.last_submission(), pool.source_mut().went_back()))
    }

    /// The error of the first work that failed since the last call.
    fn take_failure(&self) -> Result<()> {
        if let Some(message) = self.health.take_uncaptured() {
            return Err(Error::execution(&self.name, "unknown work", message));
        }
        match self.stream.lock().take_failure() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits for a turn to read.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(crate) fn await_turn(&self, turn: &Turn) -> Result<()> {
        let mut deadline = None;
        while !turn.has_come() {
            let deadline = *deadline.get_or_insert_with(|| self.deadline());
            // The writer before it goes on or gives up, whatever this thread does.
            self.look_again("download", deadline)?;
        }
        Ok(())
    }

    /// Waits for a turn to write, and keeps it: reads from now on come after it.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn line_up_to_write(&self, block: &GpuBlock) -> Result<Turn> {
        let turn = block.turns().line_up_to_write();
        let deadline = self.deadline();
        while !turn.has_come() {
            self.health.check()?;
            self.look_again("recording", deadline)?;
        }
        Ok(turn)
    }

    /// For a device that goes: wgpu then waits for its queue without limit. Where waits have one, a queue that
    /// does not end its work within it stays behind, with its device.
    pub(super) fn leave_what_hangs(&self) {
        let last = self.stream.lock().last_submission();
        let Some(last) = last.filter(|_| self.wait_timeout.is_some()) else {
            return;
        };
        let waited = self.wait_submission("drop", &last, self.deadline());
        if matches!(waited, Err(Error::TimedOut(_))) {
            let claim = self.memory.lock().source_mut().leave();
            exit::leave(Left {
                claim,
                device: self.device.clone(),
                queue: self.queue.clone(),
                serial: self.serial,
                counted: Counted::new(self.serial.is_some()),
                progress: Arc::clone(&self.progress),
                submissions: last.number,
            });
        }
    }

    /// The stream, to record work that writes a block in place: when the reads that came before are
    /// recorded, and the device is not too far behind.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn stream_to_write(
        &self,
        block: &GpuBlock,
        order: WriteOrder,
    ) -> Result<(MutexGuard<'_, Stream>, Option<Hold>)> {
        let mut deadline = None;
        let mut turn: Option<Turn> = None;
        loop {
            let oldest = {
                let hold = self.hold();
                let mut stream = self.stream.lock();
                self.health.check()?;
                // First, so that those who read later wait. Over once the stream is ours: they need
                // it too.
                let is_next =
                    order == WriteOrder::Kept || block.turns().is_my_turn_to_write(&mut turn);
                let oldest = stream.oldest_of(IN_FLIGHT);
                if is_next && oldest.is_none() {
                    return Ok((stream, hold));
                }
                oldest
            };
            let deadline = *deadline.get_or_insert_with(|| self.deadline());
            match oldest {
                Some(oldest) => self.wait_submission("recording", &oldest, deadline)?,
                // The readers before it record on their own threads, whatever this one does.
                None => self.look_again("recording", deadline)?,
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    use super::IN_FLIGHT;
    use crate::device::Device;
    use crate::dtype::DType;
    use crate::error::{Error, Result};
    use crate::tensor::Tensor;

    /// What takes as long hangs: a busy machine takes a minute for what a quiet one does in two seconds.
    const HANGS: Duration = Duration::from_secs(600);

    const SIDE: usize = 512;

    /// A chain of products that keeps a software adapter busy for a while.
    pub(in crate::gpu) fn work(device: &Device, steps: usize) -> Result<Tensor> {
        let a = Tensor::full(device, [SIDE, SIDE], 1.0 / SIDE as f64, DType::F32)?;
        let mut product = a.clone();
        for _ in 0..steps {
            product = product.matmul(&a)?;
        }
        Ok(product)
    }

    /// On every adapter that is there: threads and futures that wait in every way there is end
    /// when the device is lost, with that error or with what was there before.
    #[test]
    fn a_loss_ends_every_wait() {
        type Waiting = fn(&Device, &Tensor) -> Result<()>;
        let waits: [(&'static str, Waiting); 6] = [
            ("synchronize", |device, _| device.synchronize()),
            ("synchronize_within", |device, _| {
                device.synchronize_within(HANGS)
            }),
            ("to_vec", |_, tensor| tensor.to_vec::<f32>().map(drop)),
            ("to_vec_async", |_, tensor| {
                pollster::block_on(tensor.to_vec_async::<f32>()).map(drop)
            }),
            ("synchronize_async", |device, _| {
                pollster::block_on(device.synchronize_async())
            }),
            ("from_slice", |device, _| {
                let data = vec![1.0f32; 1 << 20];
                loop {
                    Tensor::from_slice(device, &data, [data.len()])?;
                }
            }),
        ];
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let device = Device::select(&info.selector).unwrap();
            let tensor = work(&device, 30).unwrap();
            let (ended, results) = mpsc::channel();
            for (name, wait) in waits {
                let (device, tensor, ended) = (device.clone(), tensor.clone(), ended.clone());
                std::thread::spawn(move || {
                    let result = wait(&device, &tensor);
                    let _ = ended.send((name, result));
                });
            }
            std::thread::sleep(Duration::from_millis(30));
            device.gpu().unwrap().destroy();
            for _ in waits {
                let (name, result) = results
                    .recv_timeout(HANGS)
                    .unwrap_or_else(|_| panic!("{info}: a wait did not end"));
                assert!(
                    matches!(result, Ok(()) | Err(Error::DeviceLost(_))),
                    "{info}: {name} gave {result:?}"
                );
                assert!(name != "from_slice" || result.is_err());
            }
            for (name, wait) in waits {
                let result = wait(&device, &tensor);
                assert!(
                    matches!(result, Err(Error::DeviceLost(_))),
                    "{info}: {name} gave {result:?} after the loss"
                );
            }
        }
    }

    /// What is recorded before the loss and submitted after it is refused by wgpu without a word, and so are
    /// waits for it.
    #[test]
    fn waits_for_what_was_never_taken_end() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let device = Device::select(&info.selector).unwrap();
            let tensor = Tensor::full(&device, [64], 1.0, DType::F32).unwrap();
            device.synchronize().unwrap();
            let sum = tensor.add(&tensor).unwrap();
            device.gpu().unwrap().destroy();
            let (ended, result) = mpsc::channel();
            std::thread::spawn(move || {
                let synchronized = device.synchronize();
                let _ = ended.send((synchronized, sum.to_vec::<f32>()));
            });
            let (synchronized, read) = result
                .recv_timeout(HANGS)
                .unwrap_or_else(|_| panic!("{info}: a wait did not end"));
            assert!(
                matches!(synchronized, Err(Error::DeviceLost(_))),
                "{info}: {synchronized:?}"
            );
            assert!(
                matches!(read, Err(Error::DeviceLost(_))),
                "{info}: {read:?}"
            );
        }
    }

    /// wgpu counts what it refused as done, for a moment before it tells of the loss.
    #[test]
    fn what_was_never_taken_is_not_done() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let device = Device::select(&info.selector).unwrap();
            let tensor = Tensor::full(&device, [64], 1.0, DType::F32).unwrap();
            let gpu = device.gpu().unwrap();
            gpu.destroy();
            // Without immediates its parameters were refused already.
            let Ok((Some(last), _)) = gpu.submit_all() else {
                continue;
            };
            gpu.progress.0.fetch_max(last.number, Ordering::AcqRel);
            let waited = gpu.wait_submission("a test", &last, gpu.deadline());
            assert!(
                matches!(waited, Err(Error::DeviceLost(_))),
                "{info}: {waited:?}"
            );
            drop(tensor);
        }
    }

    /// What a download that gave up had asked for still comes, and not to the next one.
    #[test]
    fn a_download_given_up_harms_no_other() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let limit = Duration::from_millis(1);
            let device = Device::builder()
                .select(&info.selector)
                .wait_timeout(limit)
                .build()
                .unwrap();
            let until_done = |read: &dyn Fn() -> Result<Vec<f32>>| {
                let started = Instant::now();
                let mut tries = 0;
                loop {
                    match read() {
                        Err(Error::TimedOut(_)) if started.elapsed() < HANGS => {}
                        other => return other.unwrap(),
                    }
                    // What was given up has its staging until it has run.
                    let in_flight = device.gpu().unwrap().in_flight();
                    assert!(in_flight <= IN_FLIGHT as u64 + 1, "{info}: {in_flight}");
                    tries += 1;
                    // At once for a while: what was given up comes meanwhile.
                    if tries > 1000 {
                        device.synchronize_within(HANGS).unwrap();
                    }
                }
            };
            for _ in 0..3 {
                let ones = Tensor::full(&device, [16], 1.0, DType::F32).unwrap();
                let twos = Tensor::full(&device, [16], 2.0, DType::F32).unwrap();
                let one = work(&device, 2).unwrap();
                let given_up = ones.to_vec::<f32>();
                assert!(matches!(given_up, Ok(_) | Err(Error::TimedOut(_))));
                let other = work(&device, 2).unwrap();
                assert_eq!(until_done(&|| twos.to_vec()), [2.0; 16], "{info}");
                assert_eq!(until_done(&|| ones.to_vec()), [1.0; 16], "{info}");
                drop((one, other));
            }
        }
    }

    /// Who asks again and again without waiting is told, too.
    #[test]
    fn waits_without_time_see_what_is_done() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let device = Device::builder()
                .select(&info.selector)
                .wait_timeout(Duration::ZERO)
                .build()
                .unwrap();
            let started = Instant::now();
            let again = |result: &Result<()>| {
                matches!(result, Err(Error::TimedOut(_))) && started.elapsed() < HANGS
            };
            let ones = Tensor::full(&device, [16], 1.0, DType::F32).unwrap();
            device.synchronize_within(HANGS).unwrap();
            device.synchronize_within(Duration::ZERO).unwrap();
            drop(ones.add(&ones).unwrap());
            loop {
                let synchronized = device.synchronize_within(Duration::ZERO);
                if !again(&synchronized) {
                    break synchronized.unwrap();
                }
            }
            loop {
                let read = ones.to_vec::<f32>().map(|seen| assert_eq!(seen, [1.0; 16]));
                if !again(&read) {
                    break read.unwrap();
                }
            }
        }
    }

    /// llvmpipe on GL works inside of the submission, which nobody can cut short.
    #[test]
    fn waits_end_at_their_limit_and_work_goes_on() {
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let limit = Duration::from_millis(1);
            let device = Device::select(&info.selector).unwrap();
            let mut tensor = work(&device, 4).unwrap();
            let timed_out = |result: Result<()>| match result {
                Err(Error::TimedOut(found)) => {
                    assert!(found.limit == limit && found.device.contains(&info.selector));
                    let text = Error::TimedOut(found).to_string();
                    for part in ["waited 1ms", "goes on", "wait_timeout"] {
                        assert!(text.contains(part), "`{part}` is not in {text}");
                    }
                    true
                }
                other => {
                    other.unwrap();
                    false
                }
            };
            // A device that is quicker than the limit gets more to do.
            for steps in [10, 100] {
                if info.backend == "Gl" || timed_out(device.synchronize_within(limit)) {
                    break;
                }
                assert!(steps < 100 || info.kind().is_gpu(), "{info}: no wait ended");
                tensor = work(&device, steps).unwrap();
            }
            device.synchronize().unwrap();
            let expected = vec![1.0 / SIDE as f32; SIDE * SIDE];
            let found = tensor.to_vec::<f32>().unwrap();
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-4);
            }

            // As a setting it holds for every wait, and a failed call leaves everything as it was.
            let device = Device::builder()
                .select(&info.selector)
                .wait_timeout(limit)
                .build()
                .unwrap();
            let before = device.memory().live_blocks;
            // Product and copy are one submission, which a software adapter does not run so soon.
            let a = Tensor::full(&device, [512, 512], 1.0, DType::F32).unwrap();
            let read = a.matmul(&a).and_then(|product| product.to_vec::<f32>());
            assert!(timed_out(read.map(drop)) || info.backend == "Gl" || info.kind().is_gpu());
            drop(a);
            assert_eq!(device.memory().live_blocks, before);
            assert_eq!(device.memory().allocated, 0);
            while timed_out(device.synchronize()) {}
            let one = Tensor::ones(&device, [1], DType::F32).unwrap();
            while timed_out(device.synchronize()) {}
            while timed_out(one.item::<f32>().map(|found| assert_eq!(found, 1.0))) {}

            // Nor does its end wait for longer: nobody saw the work's end.
            if info.backend == "Gl" || info.kind().is_gpu() {
                continue;
            }
            let last = work(&device, 4).unwrap();
            let gpu = device.gpu().unwrap();
            gpu.submit().unwrap();
            let (progress, submissions) =
                (Arc::clone(&gpu.progress), gpu.stream.lock().submissions());
            drop((one, last, device));
            assert!(progress.count() < submissions, "{info}: waited");
        }
    }
}
