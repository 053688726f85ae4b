//! Software adapters when the process ends while they work: the destructors of Mesa's compiler (LLVM) run
//! under the feet of the thread that compiles and runs a batch. So no more work goes out then, and what is
//! under way is waited for. On GL that thread is inside GL, whatever the adapter, so its lock is taken.
//!
//! LLVM has objects that come while the first kernel is compiled, and are destroyed before what was there
//! earlier, so before handlers of `atexit` from that time. Hence more than one chance: the end of the main
//! thread's own variables, which is before any handler; a handler from the time of the first device; handlers
//! that are put in while a thread waits for the first kernel.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, PoisonError, Weak};

use super::Gpu;
use super::progress::Progress;
use super::serial::{LOOKS, PAUSE, Serial, at_exit};
use crate::memory::Claim;
use crate::sync::{Mutex, thread};

/// Devices other than GL's that are open.
static OPEN: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());
/// Devices other than GL's that are open, or not yet closed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Work of some device has run, so a kernel has been compiled.
static HAS_RUN: AtomicBool = AtomicBool::new(false);
/// Looks that put a handler in; by then the compiler's objects are there.
static HANDLERS: AtomicUsize = AtomicUsize::new(0);
const MOST_HANDLERS: usize = 10_000;

/// Devices on GL have been opened.
static GL: AtomicBool = AtomicBool::new(false);

thread_local! {
    static END: End = End {
        // Its destructor tells the end of the process in the main thread only.
        is_main: std::fs::read_link("/proc/thread-self").is_ok_and(|of| {
            let process = std::process::id().to_string();
            of.file_name().is_some_and(|thread| *thread == *process)
        }),
    };
}

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

struct End {
    is_main: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        if self.is_main {
            settle();
        }
    }
}

/// One device; the last of its fields, so that it outlives every wgpu object.
pub(super) struct Counted {
    /// Closing one on GL takes its lock.
    is_gl: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !self.is_gl {
            COUNT.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Counted {
    pub(super) fn new(is_gl: bool) -> Self {
        if !is_gl {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        Self { is_gl }
    }

    /// While a thread waits for the device: false once the process has seen a kernel run.
    pub(super) fn is_first(&self, gpu: &Gpu) -> bool {
        watch_thread(gpu);
        !HAS_RUN.load(Ordering::Relaxed)
    }

    /// At each look of such a wait.
    pub(super) fn looked(&self, has_run: bool) {
        HAS_RUN.fetch_or(has_run, Ordering::Relaxed);
        if has_run || HANDLERS.fetch_add(1, Ordering::Relaxed) < MOST_HANDLERS {
            at_exit(settle_at_exit);
        }
    }
}

/// What is left of a device that was dropped while it worked for longer than it may.
pub(super) struct Left {
    pub device: wgpu::Device,
    /// wgpu waits for the work when the last handle on it goes.
    #[expect(dead_code, reason = "held")]
    pub queue: wgpu::Queue,
    pub serial: Option<&'static Serial>,
    pub progress: Arc<Progress>,
    pub submissions: u64,
    /// The driver has the regions until then, so nobody else is promised their bytes.
    #[expect(dead_code, reason = "held")]
    pub claim: Arc<Claim>,
    /// Last: the end of the process waits for whoever closes it.
    #[expect(dead_code, reason = "held")]
    pub counted: Counted,
}

/// What is left of devices, which nothing is waited for with.
fn left() -> std::sync::MutexGuard<'static, Vec<Left>> {
    // The standard library's: it outlives every schedule of a model.
    static LEFT: std::sync::Mutex<Vec<Left>> = std::sync::Mutex::new(Vec::new());
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Left {
    /// Looks without waiting whether its work has ended.
    fn has_ended(&self) -> bool {
        // A panic of wgpu's, or of a callback's, ends nothing but this.
        let _ = catch_unwind(AssertUnwindSafe(|| self.device.poll(wgpu::PollType::Poll)));
        self.progress.count() >= self.submissions
    }
}

/// Keeps it until its work has ended, and somebody asks; else until the process ends, which gives it some time.
pub(super) fn leave(left: Left) {
    close_ended();
    self::left().push(left);
}

/// Closes what was left of devices whose work has ended since.
pub(crate) fn close_ended() {
    // Taken out, as looking at them may wait.
    let all = std::mem::take(&mut *left());
    for left in all {
        // Closing on GL takes its lock, too.
        let _hold = left.serial.map(Serial::hold);
        match left.has_ended() {
            true => drop(left),
            false => self::left().push(left),
        }
    }
}

/// Has the end of the process wait for a device.
pub(super) fn watch(gpu: &Arc<Gpu>) {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| at_exit(settle_at_exit));
    watch_thread(gpu);
    if gpu.serial.is_some() {
        GL.store(true, Ordering::Release);
        return;
    }
    let mut open = OPEN.lock();
    open.retain(|other| other.strong_count() > 0);
    open.push(Arc::downgrade(gpu));
}

fn watch_thread(gpu: &Gpu) {
    // Gone in a thread that ends, and so is its chance.
    let is_new = IS_WATCHED.try_with(|is_watched| !is_watched.replace(true));
    if is_new != Ok(true) {
        return;
    }
    {
        let _hold = gpu.hold();
        // What wgpu has for a thread, in debug builds, comes with its first look: it goes after what comes later, which looks again.
        gpu.poll_device(wgpu::PollType::Poll);
    }
    let _ = END.try_with(|_| ());
}

extern "C" fn settle_at_exit() {
    settle();
}

/// Panics nowhere. The first call does it all: what takes too long then takes too long for ever.
fn settle() {
    static SETTLED: AtomicBool = AtomicBool::new(false);
    if SETTLED.swap(true, Ordering::AcqRel) {
        return;
    }
    if GL.load(Ordering::Acquire) {
        Serial::gl().close();
    }
    let open: Vec<Arc<Gpu>> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
    let mut count = open.len();
    for gpu in open {
        // A panic of wgpu's ends nothing but this.
        let _ = catch_unwind(AssertUnwindSafe(|| gpu.settle()));
        // Nobody closes it any more.
        std::mem::forget(gpu);
    }
    let all = std::mem::take(&mut *left());
    for left in all {
        let done = |_| {
            let done = left.has_ended();
            if !done {
                thread::sleep(PAUSE);
            }
            done
        };
        (0..LOOKS).any(done);
        count += usize::from(left.serial.is_none());
        // Nobody closes it any more.
        std::mem::forget(left);
    }
    // Those that were being closed.
    for _ in 0..LOOKS {
        if COUNT.load(Ordering::Acquire) <= count {
            break;
        }
        thread::sleep(PAUSE);
    }
}

impl Gpu {
    /// Takes no more work, and waits for what was submitted, unless that takes seconds.
    fn settle(&self) {
        self.health.lose("the process ends");
        let submissions = (0..LOOKS).find_map(|_| {
            let stream = self.stream.try_lock();
            if stream.is_none() {
                thread::sleep(PAUSE);
            }
            stream.map(|stream| stream.submissions())
        });
        let done = |_: usize| {
            self.poll_device(wgpu::PollType::Poll);
            let done = Some(self.progress.count()) >= submissions;
            if !done {
                thread::sleep(PAUSE);
            }
            done
        };
        // As long again: on a busy machine a driver compiles for seconds, and must not be left at that.
        (0..LOOKS).any(done);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::wait::tests::work;
    use crate::device::Device;

    /// The memory of a device that was dropped at work is the driver's still, and is promised to nobody else until the work has
    /// ended.
    #[test]
    fn what_is_left_keeps_its_seat() {
        for info in Device::list().unwrap() {
            // llvmpipe on GL works inside of the submission.
            if matches!(info.backend, "native" | "Gl") {
                continue;
            }
            let watch = Device::select(&info.selector).unwrap();
            let is_left = |mark: u64| {
                let budget = (1 << 30) + mark * 1024;
                let device = Device::builder()
                    .select(&info.selector)
                    .memory_limit(budget)
                    .wait_timeout(Duration::ZERO)
                    .build()
                    .unwrap();
                drop(work(&device, 4 << mark).unwrap());
                let has = device.memory().reserved;
                drop(device);
                let seats = watch.adapter_ledger().devices;
                let seat = seats.iter().find(|seat| seat.budget == Some(budget));
                seat.is_some_and(|seat| {
                    assert_eq!(seat.reserved, has);
                    true
                })
            };
            // A device that is quicker than that gets more to do.
            assert!((0..6).any(is_left), "{info}");
            let others = || {
                let seats = watch.adapter_ledger().devices;
                seats
                    .iter()
                    .any(|seat| !seat.is_self && seat.budget >= Some(1 << 30))
            };
            let started = Instant::now();
            while others() {
                assert!(started.elapsed() < Duration::from_secs(300), "{info}");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
