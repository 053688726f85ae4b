//! What needs a process of its own: ends of processes and threads while tensors, devices and
//! downloads are alive (nothing hangs, nothing aborts, and what goes on works on); memory of the
//! process over many devices; threads that devices leave.
//!
//! Each case runs in a process of its own (this test's binary with a case in its environment), on
//! every device that is there, with a limit on its time.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use orlop::{DType, Device, DeviceKind, Pending, Result, Tensor, explain_matmuls, fused};

/// Case and selector for a child.
const CASE: &str = "ORLOP_TEST_CASE";
const DEVICE: &str = "ORLOP_TEST_DEVICE";
const LIMIT: Duration = Duration::from_secs(120);
/// Of a case in a full run.
const FULL_LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Elements of a download that is not done at once.
const LARGE: usize = 6_000_000;

/// What a case does; it then returns from `main`.
type Body = fn(&str) -> Result<()>;

/// Name, body, exit code.
const CASES: &[(&str, Body, i32)] = &[
    ("return_from_main", |selector| all_alive(selector), 0),
    ("exit", exit_with_all_alive, 7),
    ("exit_on_a_thread", exit_on_a_thread, 7),
    ("exit_while_threads_work", exit_while_threads_work, 7),
    ("thread_locals", thread_locals, 0),
    (
        "thread_ends_with_thread_locals",
        thread_local_of_a_thread,
        0,
    ),
    ("thread_local_that_works", thread_local_that_works, 0),
    ("last_handle_while_pending", last_handle_while_pending, 0),
    ("panic_ends_main", panic_ends_main, 101),
    ("panic_unwinds", panic_unwinds, 0),
    ("panic_in_a_thread", panic_in_a_thread, 0),
    ("panic_in_a_thread_pool", panic_in_a_thread_pool, 0),
    ("panic_in_a_waker", panic_in_a_waker, 0),
    ("panic_in_a_drop", panic_in_a_drop, 0),
    #[cfg(unix)]
    ("fork_child_works", |selector| fork::run(selector, false), 0),
    #[cfg(unix)]
    ("fork_both_work", |selector| fork::run(selector, true), 0),
    #[cfg(target_os = "linux")]
    ("threads_end_with_their_device", proc::threads_end, 0),
    #[cfg(target_os = "linux")]
    ("memory_is_flat", proc::memory_is_flat, 0),
    #[cfg(target_os = "linux")]
    ("trimmed_memory_is_gone", proc::trimmed_memory_is_gone, 0),
    #[cfg(target_os = "linux")]
    ("the_cpu_asks_no_driver", proc::the_cpu_asks_no_driver, 0),
];

/// For `scripts/layers.sh`: what Vulkan's validation layers must complain of, so that one sees
/// that they are on.
const MISTAKE: &str = "vulkan_mistake";

fn full() -> bool {
    std::env::var("ORLOP_TEST_FULL").is_ok_and(|value| !value.is_empty() && value != "0")
}

fn main() -> ExitCode {
    if let Ok(case) = std::env::var(CASE) {
        return child(&case);
    }
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for info in Device::list().unwrap_or_else(|error| panic!("{error}")) {
        for &(case, _, code) in CASES {
            let selector = info.selector.clone();
            let name = format!("{}::{case}", selector.replace(':', ""));
            // Without what keeps threads out of GL then, one in eight ended badly.
            let times = match case {
                "exit_while_threads_work" if info.backend == "Gl" && full() => 200,
                "exit_while_threads_work" if info.backend == "Gl" => 16,
                // Without what waits for Mesa's compiler then, two in ten ended badly.
                "panic_unwinds" if info.kind() == DeviceKind::Software => 10,
                _ => 1,
            };
            trials.push(Trial::test(name, move || {
                (0..times).try_for_each(|_| parent(case, &selector, code))
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a case in a child and judges its end; Mesa compiles every kernel anew.
fn parent(case: &str, selector: &str, code: i32) -> std::result::Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .env("MESA_SHADER_CACHE_DISABLE", "true")
        .env_remove("ORLOP_VISIBLE_DEVICES")
        .env(CASE, case)
        .env(DEVICE, selector)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let started = Instant::now();
    let hangs = loop {
        if child.try_wait()?.is_some() {
            break false;
        }
        if started.elapsed() > if full() { FULL_LIMIT } else { LIMIT } {
            child.kill()?;
            break true;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in told.lines().filter(|line| *line != DONE) {
        println!("{selector}: {line}");
    }
    let done = told.lines().any(|line| line == DONE);
    if hangs {
        return Err(format!("hangs (done: {done}): {said}").into());
    }
    if output.status.code() != Some(code) || !done {
        return Err(format!("{} instead of {code} (done: {done}): {said}", output.status).into());
    }
    Ok(())
}

fn child(case: &str) -> ExitCode {
    if case == MISTAKE {
        return vulkan_mistake();
    }
    let selector = std::env::var(DEVICE).unwrap_or_default();
    let Some((_, body, _)) = CASES.iter().find(|(name, _, _)| *name == case) else {
        return ExitCode::FAILURE;
    };
    match body(&selector) {
        Ok(()) => {
            done();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Asks the first adapter for a buffer of no bytes.
fn vulkan_mistake() -> ExitCode {
    use ash::vk;

    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&priorities)];
    let version = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
    // SAFETY: handles are used while they live; the buffer is not used, and the rest goes with the
    // process.
    let asked = || unsafe {
        let entry = ash::Entry::load().ok()?;
        let info = vk::InstanceCreateInfo::default().application_info(&version);
        let instance = entry.create_instance(&info, None).ok()?;
        let adapter = *instance.enumerate_physical_devices().ok()?.first()?;
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let device = instance.create_device(adapter, &info, None).ok()?;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER;
        let info = vk::BufferCreateInfo::default().size(0).usage(usage);
        let _ = device.create_buffer(&info, None);
        Some(())
    };
    match asked() {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

/// What is to be shown was reached; the parent looks for it.
fn done() {
    println!("{DONE}");
}

const DONE: &str = "case done";

fn open(selector: &str) -> Result<Device> {
    Device::select(selector)
}

/// Something of everything.
struct Alive {
    // Downloads first, or last: cases build it in both orders.
    pending: Vec<Pending<Vec<f32>>>,
    tensors: Vec<Tensor>,
    device: Device,
}

impl Alive {
    fn new(selector: &str) -> Result<Self> {
        let device = open(selector)?;
        let large = Tensor::zeros(&device, LARGE, DType::F32)?;
        let small = Tensor::from_slice(&device, &[1.0f32, 2.0], [2])?;
        let sum = small.add(&small)?;
        let pending = vec![large.to_vec_async(), sum.to_vec_async()];
        // Recorded and not submitted.
        let open = sum.add(&small)?;
        Ok(Self {
            pending,
            tensors: vec![large, small.transpose(0, 0)?, sum, open],
            device,
        })
    }
}

/// The device works: the sum of two small tensors is right.
fn works(device: &Device) -> Result<()> {
    let tensor = Tensor::from_slice(device, &[1.0f32, 2.0, 3.0], [3])?;
    let sum = tensor.add(&tensor)?;
    assert_eq!(sum.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    assert_eq!(
        pollster::block_on(sum.to_vec_async::<f32>())?,
        [2.0, 4.0, 6.0]
    );
    Ok(())
}

/// In a static, leaked, on another thread that sleeps, and on the stack of `main`.
fn all_alive(selector: &str) -> Result<()> {
    static KEPT: OnceLock<Alive> = OnceLock::new();
    static ASYNC: Mutex<Vec<Pending<Vec<f32>>>> = Mutex::new(Vec::new());
    let here = Alive::new(selector)?;
    let mut kept = Alive::new(selector)?;
    if let Ok(mut pending) = ASYNC.lock() {
        pending.append(&mut kept.pending);
    }
    let _ = KEPT.set(kept);
    std::mem::forget(Alive::new(selector)?);
    let sleeper = Alive::new(selector)?;
    thread::spawn(move || {
        thread::sleep(LIMIT);
        drop(sleeper);
    });
    works(&here.device)
}

fn exit_with_all_alive(selector: &str) -> Result<()> {
    let _here = Alive::new(selector)?;
    all_alive(selector)?;
    done();
    std::process::exit(7)
}

fn exit_on_a_thread(selector: &str) -> Result<()> {
    let here = Alive::new(selector)?;
    let there = Alive::new(selector)?;
    let thread = thread::spawn(move || {
        let _there = there;
        done();
        std::process::exit(7)
    });
    let _ = thread.join();
    drop(here);
    Ok(())
}

fn exit_while_threads_work(selector: &str) -> Result<()> {
    let device = open(selector)?;
    for _ in 0..3 {
        let device = device.clone();
        thread::spawn(move || {
            loop {
                let outcome = works(&device);
                assert!(outcome.is_ok(), "{outcome:?}");
            }
        });
    }
    works(&device)?;
    thread::sleep(Duration::from_millis(50));
    done();
    std::process::exit(7)
}

thread_local! {
    static LOCAL: RefCell<Option<Alive>> = const { RefCell::new(None) };
}

/// The main thread's locals go when the process ends.
fn thread_locals(selector: &str) -> Result<()> {
    let alive = Alive::new(selector)?;
    works(&alive.device)?;
    LOCAL.with(|local| local.replace(Some(alive)));
    Ok(())
}

fn thread_local_of_a_thread(selector: &str) -> Result<()> {
    let named = selector.to_owned();
    let thread = thread::spawn(move || {
        let alive = Alive::new(&named)?;
        works(&alive.device)?;
        LOCAL.with(|local| local.replace(Some(alive)));
        Ok(())
    });
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
    works(&open(selector)?)
}

/// Works once more when it is dropped, and tells whether it could.
struct WorksInDrop(Device, mpsc::Sender<Result<()>>);

impl Drop for WorksInDrop {
    fn drop(&mut self) {
        let work = || -> Result<()> {
            let ones = Tensor::ones(&self.0, [20, 30], DType::F32)?;
            let sum = fused(|e| e.input(&ones) * 2.0 + 1.0)?;
            let sum = Device::cpu().scope(|| sum.add(&ones))?.to(&self.0)?;
            let (product, _) = explain_matmuls(|| sum.matmul(&ones.transpose(0, 1)?));
            let product = product?;
            assert_eq!(product.sum(..)?.item::<f32>()?, 4.0 * 30.0 * 400.0);
            Ok(())
        };
        let _ = self.1.send(work());
    }
}

/// Made before the thread has any of the library's own, so that it goes after them.
fn thread_local_that_works(selector: &str) -> Result<()> {
    thread_local! {
        static WORKS: RefCell<Option<WorksInDrop>> = const { RefCell::new(None) };
    }
    let device = open(selector)?;
    let (sender, told) = mpsc::channel();
    let on_it = device.clone();
    let thread = thread::spawn(move || {
        WORKS.with(|works| works.replace(Some(WorksInDrop(on_it.clone(), sender))));
        let ones = Tensor::ones(&on_it, [20, 30], DType::F32)?;
        fused(|e| e.input(&ones) * 2.0 + 1.0)?.matmul(&ones.transpose(0, 1)?)?;
        Device::cpu().scope(|| ones.add(&ones))?;
        works(&on_it)
    });
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
    told.recv().expect("it was dropped")?;
    works(&device)
}

/// The device goes first, then its tensors; what was ordered still arrives, or is dropped too.
fn last_handle_while_pending(selector: &str) -> Result<()> {
    let device = open(selector)?;
    let tensors: Vec<Tensor> = (0..4)
        .map(|value| Tensor::full(&device, LARGE / 2, value, DType::F32))
        .collect::<Result<_>>()?;
    let mut pending: Vec<_> = tensors.iter().map(Tensor::to_vec_async::<f32>).collect();
    drop(device);
    drop(tensors);
    drop(pending.pop());
    for (value, future) in (0..).zip(pending) {
        let seen = pollster::block_on(future)?;
        assert!(seen.len() == LARGE / 2 && seen.iter().all(|&x| x == value as f32));
    }
    // Nobody waits for these.
    let alive = Alive::new(selector)?;
    drop((alive.device, alive.tensors, alive.pending));
    let alive = Alive::new(selector)?;
    drop((alive.pending, alive.tensors, alive.device));
    works(&open(selector)?)
}

/// The message of a panic that is meant would only disturb.
fn fall(alive: Alive) -> ! {
    let _alive = alive;
    resume_unwind(Box::new("a panic that is meant"))
}

fn panic_ends_main(selector: &str) -> Result<()> {
    let alive = Alive::new(selector)?;
    works(&alive.device)?;
    done();
    fall(alive)
}

fn panic_unwinds(selector: &str) -> Result<()> {
    let device = open(selector)?;
    let kept = Tensor::ones(&device, 5, DType::F32)?;
    for _ in 0..3 {
        let mut alive = Alive::new(selector)?;
        alive.device = device.clone();
        alive.tensors.push(kept.clone());
        assert!(catch_unwind(AssertUnwindSafe(|| fall(alive))).is_err());
    }
    assert_eq!(kept.to_vec::<f32>()?, [1.0; 5]);
    works(&device)
}

fn panic_in_a_thread(selector: &str) -> Result<()> {
    let device = open(selector)?;
    let before = device.memory().allocated;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (device, selector) = (device.clone(), selector.to_owned());
            thread::spawn(move || {
                let mut alive = Alive::new(&selector).expect("it opens");
                alive.tensors = vec![Tensor::ones(&device, LARGE, DType::F32).expect("room")];
                alive.pending = vec![alive.tensors[0].to_vec_async()];
                fall(alive)
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().is_err());
    }
    works(&device)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while device.memory().allocated != before {
        assert!(Instant::now() < deadline, "{}", device.memory_summary());
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn panic_in_a_thread_pool(selector: &str) -> Result<()> {
    let device = open(selector)?;
    let kept = Tensor::ones(&device, 100_000, DType::F32)?;
    let scope = catch_unwind(AssertUnwindSafe(|| {
        rayon::scope(|scope| {
            for at in 0..8 {
                let kept = &kept;
                scope.spawn(move |_| {
                    let sum = kept.add(kept).expect("recorded");
                    if at == 3 {
                        let _sum = sum;
                        resume_unwind(Box::new("a panic that is meant"));
                    }
                });
            }
        });
    }));
    assert!(scope.is_err());
    assert!(kept.add(&kept)?.to_vec::<f32>()?.iter().all(|&x| x == 2.0));
    works(&device)
}

struct Panics(Mutex<Option<Alive>>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        let alive = self.0.lock().ok().and_then(|mut alive| alive.take());
        let _alive = alive;
        resume_unwind(Box::new("a waker that panics"))
    }
}

fn panic_in_a_waker(selector: &str) -> Result<()> {
    let device = open(selector)?;
    let tensor = Tensor::ones(&device, LARGE, DType::F32)?;
    let mut futures = Vec::new();
    for _ in 0..3 {
        let mut future = tensor.to_vec_async::<f32>();
        let waker = Waker::from(Arc::new(Panics(Mutex::new(Some(Alive::new(selector)?)))));
        let _ = Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
        futures.push(future);
    }
    let good = tensor.to_vec_async::<f32>();
    assert_eq!(pollster::block_on(good)?.len(), LARGE);
    drop((futures, tensor));
    works(&device)
}

/// Panics when it is dropped, before what it holds is dropped.
struct PanicsInDrop(#[allow(dead_code)] Alive);

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        resume_unwind(Box::new("a drop that panics"))
    }
}

fn panic_in_a_drop(selector: &str) -> Result<()> {
    let device = open(selector)?;
    let holder = PanicsInDrop(Alive::new(selector)?);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(holder))).is_err());
    works(&device)
}

#[cfg(unix)]
mod fork {
    use super::{done, open, works};
    use orlop::Result;

    unsafe extern "C" {
        safe fn fork() -> i32;
        fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
    }

    /// Forks before this process used any device; the child works, and `both`: the parent too.
    pub fn run(selector: &str, both: bool) -> Result<()> {
        // One thread so far: the child is whole.
        let child = fork();
        if child == 0 {
            let code = match open(selector).and_then(|device| works(&device)) {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("child: {error}");
                    1
                }
            };
            std::process::exit(code);
        }
        assert!(child > 0, "no process");
        if both {
            works(&open(selector)?)?;
        }
        let mut status = -1;
        // SAFETY: the child is ours, the status is a live i32.
        let waited = unsafe { waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0), "the child's end");
        if !both {
            works(&open(selector)?)?;
        }
        done();
        Ok(())
    }
}

/// What the system says about this process.
#[cfg(target_os = "linux")]
mod proc {
    use super::{Alive, full, open, works};
    use orlop::{DType, Device, Result, Tensor};
    use std::fs;
    use std::time::{Duration, Instant};

    /// Threads of this process that a device started for itself.
    fn device_threads() -> usize {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
        let names = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let started =
            |name: &String| name.starts_with("orlop download") || name.starts_with("orlop wakes");
        names.filter(started).count()
    }

    /// Waits until the system shows so many: threads name themselves, and end, a moment later.
    fn await_threads(count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while device_threads() != count {
            assert!(Instant::now() < deadline, "{} threads", device_threads());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Two for each device that was asked for a future, none once it is gone.
    pub fn threads_end(selector: &str) -> Result<()> {
        let kept = open(selector)?;
        await_threads(0);
        works(&kept)?;
        await_threads(2);
        for _ in 0..10 {
            let alive = Alive::new(selector)?;
            await_threads(4);
            drop(alive);
            await_threads(2);
        }
        drop(kept);
        await_threads(0);
        Ok(())
    }

    /// Bytes of memory that this process holds.
    fn resident() -> f64 {
        // Not in pages, whose size differs.
        let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line
            .and_then(|line| line.split_whitespace().next())
            .and_then(|kibibytes| kibibytes.parse::<f64>().ok());
        kibibytes.unwrap_or(0.0) * 1024.0
    }

    /// What a cycle may leave behind in the long run: less than any object of a device weighs. (None
    /// was seen to stay in 10,000.)
    const BYTES_PER_CYCLE: f64 = 256.0;
    /// Steps in which the system's allocator and the driver's caches grow. A device that stays
    /// weighs more than a mebibyte, and the shortest run compares 20 of them.
    const NOISE: f64 = 8.0 * 1048576.0;

    /// Regions of the host that are given back are no longer the process's, of any size that C's allocator has its own way
    /// with.
    pub fn trimmed_memory_is_gone(selector: &str) -> Result<()> {
        let device = Device::builder().select(selector).build()?;
        if !device.is_cpu() {
            return Ok(());
        }
        for mebibytes in [1, 3, 8, 24, 40] {
            let elements = mebibytes << 18;
            for _ in 0..4 {
                drop(Tensor::ones(&device, elements, DType::F32)?);
                device.trim()?;
            }
            let before = resident();
            let tensor = Tensor::ones(&device, elements, DType::F32)?;
            let held = resident() - before;
            drop(tensor);
            device.trim()?;
            let left = resident() - before;
            let bytes = (elements * 4) as f64;
            assert_eq!(device.memory().reserved, 0);
            assert!(
                held > 0.9 * bytes && left < 0.1 * bytes,
                "of {mebibytes} MiB {held} bytes were held, and {left} are"
            );
        }
        Ok(())
    }

    /// Who names the CPU loads no driver of a GPU.
    pub fn the_cpu_asks_no_driver(selector: &str) -> Result<()> {
        let device = Device::builder().select(selector).build()?;
        works(&device)?;
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let has_driver = ["libvulkan", "libEGL"]
            .iter()
            .any(|name| maps.contains(name));
        assert_eq!(has_driver, !device.is_cpu());
        Ok(())
    }

    /// Open a device, work, drop it, many times. Compared are medians of the second and the last
    /// quarter: caches of the system's allocator fill at first, and single figures jump.
    pub fn memory_is_flat(selector: &str) -> Result<()> {
        let started = Instant::now();
        let mut held = Vec::new();
        let more = |done: usize| match full() {
            true => done < 10_000,
            // SwiftShader compiles for a third of a second.
            false => done < 40 || done < 240 && started.elapsed() < Duration::from_secs(10),
        };
        while more(held.len()) {
            let device = Device::builder().select(selector).build()?;
            let tensor = Tensor::ones(&device, 1000, DType::F32)?;
            let sum = tensor.add(&tensor)?;
            assert_eq!(sum.to_vec::<f32>()?, [2.0; 1000]);
            assert_eq!(pollster::block_on(sum.to_vec_async::<f32>())?.len(), 1000);
            drop((device, tensor, sum));
            held.push(resident());
        }
        let median = |part: &[f64]| {
            let mut part = part.to_vec();
            part.sort_unstable_by(f64::total_cmp);
            part[part.len() / 2]
        };
        let (cycles, quarter) = (held.len(), held.len() / 4);
        let (early, late) = (
            median(&held[quarter..2 * quarter]),
            median(&held[3 * quarter..]),
        );
        let slope = (late - early) / (2 * quarter) as f64;
        println!(
            "{cycles} devices in {:.1} s: {:.1} MiB, then {:.1} MiB: {slope:.0} bytes each",
            started.elapsed().as_secs_f64(),
            early / 1048576.0,
            late / 1048576.0,
        );
        assert!(
            late < early + NOISE + BYTES_PER_CYCLE * 2.0 * quarter as f64,
            "not flat"
        );
        Ok(())
    }
}
