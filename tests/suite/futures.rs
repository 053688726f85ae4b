//! Futures under every kind of executor, and under those that are not kind: they poll inside the
//! wake, or panic in it. Nobody's thread is blocked, and a dropped future leaves nothing behind.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as Poller, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use orlop::{DType, Result, Tensor};

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
        Test::new("futures::any_executor", Scope::Device, any_executor),
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

/// What follows a download runs on the device's thread and writes a tensor whose download waits
/// behind it.
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
    // An error is an answer too.
    let tensor = Tensor::zeros(&device, 3, DType::F32)?;
    assert!(by_hand(tensor.to_vec_async::<i32>()).is_err());
    Ok(())
}

/// A timer on an executor of one thread, while 256 MiB come down beside it.
fn a_timer_keeps_ticking(context: &Context) -> Result<()> {
    const COUNT: usize = 64 << 20;
    const TICK: Duration = Duration::from_millis(2);
    let _alone = watchdog::alone();
    let _watchdog = watchdog::minute("futures::a_timer_keeps_ticking");
    let device = context.open();
    let tensor = Tensor::from_vec(&device, (0..COUNT as u32).collect(), COUNT)?;
    device.synchronize()?;
    let arrived = RefCell::new(None);
    let ticks = RefCell::new(Vec::new());
    let started = Instant::now();
    // The copies are ordered here, which is the caller's work; waiting is not.
    let future = tensor.to_vec_async::<u32>();
    let ordered = started.elapsed();
    run(vec![
        Box::pin(async {
            let data = future.await;
            *arrived.borrow_mut() = Some((Instant::now(), data));
        }),
        Box::pin(async {
            while arrived.borrow().is_none() {
                ticks.borrow_mut().push(Instant::now());
                Timer(Instant::now() + TICK).await;
            }
        }),
    ]);
    let Some((end, data)) = arrived.into_inner() else {
        panic!("the executor ended early");
    };
    let data = data?;
    assert!(data.len() == COUNT && (0..).zip(&data).all(|(at, &x)| x == at));
    let ticks = ticks.into_inner();
    let waited = end - (started + ordered);
    let longest = ticks
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .max()
        .unwrap_or_default();
    println!(
        "{}: 256 MiB ordered in {ordered:.1?}, there after {waited:.1?}: {} ticks, the longest {longest:.1?}",
        context.adapter.name,
        ticks.len()
    );
    // Machines are busy: what must not be is a thread that waits for the whole.
    assert!(
        longest < Duration::from_millis(50) + waited / 3,
        "{longest:?} of {waited:?}"
    );
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
