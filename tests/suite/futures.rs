//! Futures under every kind of executor, and under those that are not kind: they poll inside the
//! wake, or panic in it. Nobody's thread is blocked, and a dropped future leaves nothing behind.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as Poller, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use orlop::{DType, HostMatrix, Pending, Result, Tensor, f16, matmul_streamed};

use crate::adapters::Context;
use crate::memory::settle;
use crate::rng::Rng;
use crate::{Scope, Test, watchdog};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "futures::polled_in_the_wake",
            Scope::Device,
            polled_in_the_wake,
        ),
        Test::new(
            "futures::a_wake_that_panics",
            Scope::Device,
            a_wake_that_panics,
        ),
        Test::new(
            "futures::a_wake_that_blocks",
            Scope::Device,
            a_wake_that_blocks,
        ),
        Test::new("futures::any_executor", Scope::Device, any_executor),
        Test::new(
            "futures::ordered_at_the_call",
            Scope::Device,
            ordered_at_the_call,
        ),
        Test::new(
            "futures::a_timer_keeps_ticking",
            Scope::Device,
            a_timer_keeps_ticking,
        ),
        Test::new(
            "futures::dropped_ones_leave_nothing",
            Scope::Device,
            dropped_ones_leave_nothing,
        ),
    ]
}

/// Elements of more bytes than a device stages ahead for a reader.
const LARGE: usize = 5_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that is polled on whichever thread wakes it.
struct Inline(Mutex<Option<Work>>);

impl Inline {
    fn poll(self: &Arc<Self>) {
        let Some(mut work) = self.0.lock().expect("no panic").take() else {
            return;
        };
        let waker = Waker::from(Arc::clone(self));
        if work
            .as_mut()
            .poll(&mut Poller::from_waker(&waker))
            .is_pending()
        {
            *self.0.lock().expect("no panic") = Some(work);
        }
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

/// What follows a download runs in its wake, and writes a tensor whose download comes behind it.
fn polled_in_the_wake(context: &Context) -> Result<()> {
    let device = context.open();
    let first = Tensor::zeros(&device, LARGE, DType::F32)?;
    let second = Tensor::zeros(&device, LARGE, DType::F32)?;
    let (one, two) = (first.to_vec_async::<f32>(), second.to_vec_async::<f32>());
    let (sender, receiver) = mpsc::channel();
    let work: Work = Box::pin(async move {
        let _ = sender.send(one.await);
        let filled = second.fill(1.0);
        let _ = sender.send(filled.map(|()| Vec::new()));
        let _ = sender.send(two.await);
        let _ = sender.send(second.to_vec());
    });
    Arc::new(Inline(Mutex::new(Some(work)))).poll();
    let next = || receiver.recv_timeout(PATIENCE).expect("nothing hangs");
    assert_eq!(next()?, vec![0.0; LARGE]);
    next()?;
    assert_eq!(next()?, vec![0.0; LARGE], "ordered before the fill");
    assert_eq!(next()?, vec![1.0; LARGE]);
    Ok(())
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        // Without the hook's output: this one is meant.
        std::panic::resume_unwind(Box::new("a waker that panics"));
    }
}

/// The others still complete, and the device goes on.
fn a_wake_that_panics(context: &Context) -> Result<()> {
    let device = context.open();
    let tensor = Tensor::ones(&device, LARGE, DType::F32)?;
    let mut bad = tensor.to_vec_async::<f32>();
    let good = tensor.to_vec_async::<f32>();
    let waker = Waker::from(Arc::new(Panics));
    let _ = Pin::new(&mut bad).poll(&mut Poller::from_waker(&waker));
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(pollster::block_on(good)));
    let data = receiver.recv_timeout(PATIENCE).expect("nothing hangs")?;
    assert_eq!(data, vec![1.0; LARGE]);
    assert_eq!(
        pollster::block_on(tensor.to_vec_async::<f32>())?.len(),
        LARGE
    );
    Ok(())
}

thread_local! {
    /// Timers of this thread's executor.
    static TIMERS: RefCell<Vec<(Instant, Waker)>> = const { RefCell::new(Vec::new()) };
}

/// Ends at its moment, under [`run`].
struct Timer(Instant);

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, poller: &mut Poller<'_>) -> Poll<()> {
        if Instant::now() >= self.0 {
            return Poll::Ready(());
        }
        TIMERS.with_borrow_mut(|timers| timers.push((self.0, poller.waker().clone())));
        Poll::Pending
    }
}

/// Says which task to poll, and rouses the executor.
struct Flag {
    woken: AtomicBool,
    executor: Thread,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.executor.unpark();
    }
}

/// An executor on one thread, with timers: runs the tasks until all are done.
fn run(tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    let flag = || Flag {
        woken: AtomicBool::new(true),
        executor: thread::current(),
    };
    let mut tasks: Vec<_> = tasks
        .into_iter()
        .map(|task| (task, Arc::new(flag())))
        .collect();
    while !tasks.is_empty() {
        tasks.retain_mut(|(task, flag)| {
            let waker = Waker::from(Arc::clone(flag));
            !flag.woken.swap(false, Ordering::AcqRel)
                || task
                    .as_mut()
                    .poll(&mut Poller::from_waker(&waker))
                    .is_pending()
        });
        let now = Instant::now();
        let (due, next) = TIMERS.with_borrow_mut(|timers| {
            let (due, later): (Vec<_>, Vec<_>) =
                timers.drain(..).partition(|(moment, _)| *moment <= now);
            let next = later.iter().map(|(moment, _)| *moment).min();
            *timers = later;
            (due, next)
        });
        for (_, waker) in due {
            waker.wake();
        }
        if tasks
            .iter()
            .all(|(_, flag)| !flag.woken.load(Ordering::Acquire))
            && !tasks.is_empty()
        {
            match next {
                Some(next) => thread::park_timeout(next.saturating_duration_since(now)),
                None => thread::park(),
            }
        }
    }
}

/// Polled by hand, without anybody to wake.
fn by_hand<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut poller = Poller::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut poller) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// The same answer from pollster, from an executor on one thread, and from none at all; and when
/// one task begins a download and another thread ends it.
fn any_executor(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("futures::any_executor");
    let device = context.open();
    for count in [0, 1, 1000, LARGE] {
        let tensor = Tensor::arange(&device, 0, count as i64, 1, DType::F32)?;
        let right = |seen: Result<Vec<f32>>| {
            let seen = seen?;
            assert!(seen.len() == count && (0..).zip(&seen).all(|(at, &x)| x == at as f32));
            Ok(())
        };
        right(pollster::block_on(tensor.to_vec_async()))?;
        right(by_hand(tensor.to_vec_async()))?;
        let mut seen = Vec::new();
        let found = RefCell::new(&mut seen);
        let task = || -> Pin<Box<dyn Future<Output = ()> + '_>> {
            let future = tensor.to_vec_async::<f32>();
            Box::pin(async {
                let data = future.await;
                found.borrow_mut().push(data);
            })
        };
        run(vec![task(), task(), task()]);
        assert_eq!(seen.len(), 3);
        seen.into_iter().try_for_each(right)?;
        // Polled here, with this thread's waker, and then there: the later waker counts.
        let mut future = tensor.to_vec_async::<f32>();
        let first = Pin::new(&mut future).poll(&mut Poller::from_waker(Waker::noop()));
        let elsewhere = thread::spawn(move || match first {
            Poll::Ready(data) => data,
            Poll::Pending => pollster::block_on(future),
        });
        right(elsewhere.join().expect("no panic"))?;
    }
    // The other futures there are: opening, and waiting for all that was recorded.
    let filled = Tensor::full(&device, LARGE, 3, DType::I32)?;
    by_hand(device.synchronize_async())?;
    pollster::block_on(device.synchronize_async())?;
    drop(device.synchronize_async());
    let opened = RefCell::new(Vec::new());
    let open = || -> Pin<Box<dyn Future<Output = ()> + '_>> {
        let building = context.builder().build_async();
        Box::pin(async {
            let device = building.await;
            let synchronized = match &device {
                Ok(device) => device.synchronize_async().await,
                Err(error) => Err(error.clone()),
            };
            opened.borrow_mut().push(synchronized.and(device));
        })
    };
    run(vec![open(), open()]);
    for opened in opened.into_inner() {
        let copy = filled.to(&opened?)?;
        assert_eq!(copy.slice(LARGE - 1..)?.item::<i32>()?, 3);
    }
    drop(by_hand(context.builder().build_async())?);
    device.synchronize_async().wait()?;
    let waited = filled.to_vec_async::<i32>().wait()?;
    assert!(waited.len() == LARGE && waited.iter().all(|&number| number == 3));
    // An error is an answer too.
    let tensor = Tensor::zeros(&device, 3, DType::F32)?;
    assert!(by_hand(tensor.to_vec_async::<i32>()).is_err());
    Ok(())
}

/// Awaits what `begin` orders, and keeps a timer ticking beside it on the same thread: from before
/// the call until the result is there.
fn beside_a_timer<T>(what: &str, begin: impl FnOnce() -> Pending<T>) -> Result<T> {
    const TICK: Duration = Duration::from_millis(2);
    let arrived = RefCell::new(None);
    let ticks = RefCell::new(Vec::new());
    let called = Cell::new(Duration::ZERO);
    run(vec![
        Box::pin(async {
            while arrived.borrow().is_none() {
                ticks.borrow_mut().push(Instant::now());
                Timer(Instant::now() + TICK).await;
            }
            ticks.borrow_mut().push(Instant::now());
        }),
        Box::pin(async {
            let started = Instant::now();
            let future = begin();
            called.set(started.elapsed());
            *arrived.borrow_mut() = Some(future.await);
        }),
    ]);
    let ticks = ticks.into_inner();
    let whole = ticks[ticks.len() - 1] - ticks[0];
    let longest = ticks.windows(2).map(|pair| pair[1] - pair[0]).max();
    let longest = longest.unwrap_or_default();
    println!(
        "{what}: called in {:.1?}, there after {whole:.1?}: {} ticks, the longest {longest:.1?}",
        called.get(),
        ticks.len()
    );
    // Machines are busy: what must not be is a thread that waits for the whole.
    assert!(
        longest < Duration::from_millis(50) + whole / 2,
        "{what}: {longest:?} of {whole:?}"
    );
    arrived
        .into_inner()
        .unwrap_or_else(|| panic!("the executor ended early"))
}

/// A timer on an executor of one thread, while 256 MiB come down beside it; and while views, dtypes
/// that the device lacks, and a busy device make it more work.
fn a_timer_keeps_ticking(context: &Context) -> Result<()> {
    const COUNT: usize = 64 << 20;
    let _alone = watchdog::alone();
    let _watchdog = watchdog::watch("futures::a_timer_keeps_ticking", Duration::from_secs(180));
    let device = context.open();
    let name = |what: &str| format!("{}: {what}", context.adapter.name);
    let tensor = Tensor::from_vec(&device, (0..COUNT as u32).collect(), COUNT)?;
    device.synchronize()?;
    let data = beside_a_timer(&name("256 MiB"), || tensor.to_vec_async::<u32>())?;
    assert!(data.len() == COUNT && (0..).zip(&data).all(|(at, &x)| x == at));
    drop((data, tensor));

    let (rows, columns) = (2048, 4096);
    let matrix = Tensor::arange(&device, 0, (rows * columns) as i64, 1, DType::F32)?;
    let matrix = matrix.reshape([rows, columns])?;
    let turned = matrix.transpose(0, 1)?;
    device.synchronize()?;
    let data = beside_a_timer(&name("32 MiB transposed"), || turned.to_vec_async::<f32>())?;
    let right = |(at, &x): (usize, &f32)| x == (at % rows * columns + at / rows) as f32;
    assert!(data.len() == rows * columns && data.iter().enumerate().all(right));

    // Elements that share words.
    let halves = turned.cast(DType::F16)?.transpose(0, 1)?;
    device.synchronize()?;
    let data = beside_a_timer(&name("16 MiB of f16 transposed"), || {
        halves.to_vec_async::<f16>()
    })?;
    let right = |(at, x): (usize, &f16)| *x == f16::from_f32(at as f32);
    assert!(data.len() == rows * columns && data.iter().enumerate().all(right));

    // Behind more work than may be in flight, and beside another device on the same adapter.
    let other = context.open();
    let stopped = AtomicBool::new(false);
    // Tens of milliseconds each.
    let side: usize = match context.adapter.name.as_str() {
        "swiftshader" => 256,
        _ => 512,
    };
    thread::scope(|scope| {
        // However this ends.
        let stopping = Stops(&stopped);
        let busy = scope.spawn(|| -> Result<()> {
            let a = Tensor::ones(&other, [side, side], DType::F32)?;
            while !stopped.load(Ordering::Acquire) {
                a.matmul(&a)?;
                other.synchronize()?;
            }
            Ok(())
        });
        let a = Tensor::full(&device, [side, side], 1.0 / side as f64, DType::F32)?;
        let mut product = a.clone();
        for _ in 0..40 {
            product = product.matmul(&a)?;
        }
        let seen = beside_a_timer(&name("a view behind work"), || {
            product.transpose(0, 1).map_or_else(
                |error| panic!("{error}"),
                |turned| turned.to_vec_async::<f32>(),
            )
        });
        assert!(seen?.iter().all(|x| (x - 1.0 / side as f32).abs() < 1e-6));
        for _ in 0..20 {
            product = product.matmul(&a)?;
        }
        beside_a_timer(&name("synchronize behind work"), || {
            device.synchronize_async()
        })?;
        drop(stopping);
        busy.join().expect("no panic")
    })
}

/// Tells others to stop when it goes.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What a future gives is what was there at its call, whatever writes in place after it: on the
/// same thread at once, whole tensors and views, in dtypes that kernels have or lack.
fn ordered_at_the_call(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("futures::ordered_at_the_call");
    let device = context.open();
    for dtype in [DType::F32, DType::F16] {
        for count in [6, 300_000, LARGE / 2] {
            let tensor = Tensor::zeros(&device, [count / 2, 2], dtype)?;
            let views = [
                tensor.clone(),
                tensor.transpose(0, 1)?,
                tensor.slice(count / 4..)?,
            ];
            let mut futures: Vec<(f32, usize, Floats)> = Vec::new();
            for value in 1..4 {
                for view in &views {
                    let elements = view.elements();
                    let future: Floats = match dtype {
                        DType::F32 => Box::pin(view.to_vec_async::<f32>()),
                        _ => {
                            let halves = view.to_vec_async::<f16>();
                            let floats = |data: Vec<f16>| data.iter().map(|x| x.to_f32()).collect();
                            Box::pin(async move { halves.await.map(floats) })
                        }
                    };
                    futures.push(((value - 1) as f32, elements, future));
                }
                tensor.fill(value)?;
            }
            // The last first: nobody has to ask for those before.
            for (value, elements, future) in futures.into_iter().rev() {
                let seen = pollster::block_on(future)?;
                assert!(
                    seen.len() == elements && seen.iter().all(|&x| x == value),
                    "{dtype} {count}: {value}"
                );
            }
        }
    }
    Ok(())
}

type Floats = Pin<Box<dyn Future<Output = Result<Vec<f32>>>>>;

/// Wakers that never come back hold up no work: other futures still get there.
fn a_wake_that_blocks(context: &Context) -> Result<()> {
    struct Blocks(Mutex<mpsc::Receiver<()>>, AtomicBool);
    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::Release);
            let _ = self.0.lock().expect("no panic").recv();
        }
    }
    let _watchdog = watchdog::minute("futures::a_wake_that_blocks");
    let device = context.open();
    let tensor = Tensor::ones(&device, LARGE, DType::F32)?;
    let (release, gate) = mpsc::channel();
    let blocks = Arc::new(Blocks(Mutex::new(gate), AtomicBool::new(false)));
    let mut first = tensor.to_vec_async::<f32>();
    let waker = Waker::from(Arc::clone(&blocks));
    if Pin::new(&mut first)
        .poll(&mut Poller::from_waker(&waker))
        .is_pending()
    {
        while !blocks.1.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
    // Its thread is stuck in the wake.
    let second = tensor.to_vec_async::<f32>();
    tensor.fill(2)?;
    assert_eq!(by_hand(second)?, vec![1.0; LARGE]);
    by_hand(device.synchronize_async())?;
    // Nor do calls that block, and download inside.
    let (ones, mut product) = ([1.0f32; 64], [0.0f32; 64]);
    let operand = || HostMatrix::new(&ones[..], [8, 8]);
    let mut target = HostMatrix::new(&mut product[..], [8, 8])?;
    matmul_streamed(&device, &mut operand()?, &mut operand()?, &mut target)?;
    assert_eq!(product, [8.0; 64]);
    // The last handles go, and with them the device.
    drop((tensor, device));
    let _ = release.send(());
    Ok(())
}

/// Thousands of futures, dropped at once, later, or polled once before: staging and the account
/// are what they were, and the device's thread is idle.
fn dropped_ones_leave_nothing(context: &Context) -> Result<()> {
    let _watchdog = watchdog::minute("futures::dropped_ones_leave_nothing");
    let device = context.open();
    let sizes = [1, 5000, 300_000, LARGE / 2];
    let tensors: Vec<Tensor> = sizes
        .iter()
        .map(|&count| Tensor::ones(&device, count, DType::F32))
        .collect::<Result<_>>()?;
    let mut rng = Rng::new(crate::rng::seed());
    let mut held = None;
    let mut round = |times: usize| -> Result<(u64, Option<u64>)> {
        let mut later = Vec::new();
        for at in 0..times {
            let tensor = &tensors[if at % 16 == 0 { 3 } else { rng.below(3) }];
            let mut future = tensor.to_vec_async::<f32>();
            match rng.below(3) {
                0 => drop(future),
                1 => {
                    let waker = Waker::noop();
                    let _ = Pin::new(&mut future).poll(&mut Poller::from_waker(waker));
                    drop(future);
                }
                _ => later.push(future),
            }
            later.truncate(4);
        }
        drop(later);
        // Behind all of them on the device's thread.
        assert_eq!(pollster::block_on(tensors[0].to_vec_async::<f32>())?, [1.0]);
        device.synchronize()?;
        device.trim()?;
        device.synchronize()?;
        Ok((device.memory().allocated, device.driver_reserved()))
    };
    for _ in 0..4 {
        let (allocated, driver) = round(context.times(96))?;
        let (first, most) = *held.get_or_insert((allocated, driver));
        assert_eq!(allocated, first);
        assert!(
            driver <= most,
            "{driver:?} held by the driver, {most:?} before"
        );
    }
    drop(tensors);
    settle(&device, |memory| memory.live_blocks == 0);
    Ok(())
}
