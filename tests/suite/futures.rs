//! Futures under executors that are not kind: they poll inside the wake, or panic in it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as Poller, Wake, Waker};
use std::time::Duration;

use orlop::{DType, Result, Tensor};

use crate::adapters::Context;
use crate::{Scope, Test};

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
