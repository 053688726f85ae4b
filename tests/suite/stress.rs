//! Random operations from many threads at once: right data, an exact account, no deadlock.
//!
//! Each thread creates, views, computes, fills, moves, reads and drops small tensors, and knows by
//! a model on the host what each holds. Tensors pass between threads, so that they are used and
//! dropped elsewhere. Values are integers that every dtype here holds exactly.
//!
//! On full devices, whose budget is below what the threads want, tensors move and are spilled
//! meanwhile; what fails for want of memory changes nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use orlop::memory::{Growth, MemoryEvents, QUANTUM, WhenFull};
use orlop::{DType, Device, Error, Result, Tensor};

use crate::adapters::{self, Context, Variant, full};
use crate::memory::settle;
use crate::rng::{Rng, panic_text, seed};
use crate::watchdog::{self, Pulse};
use crate::{OnceTest, Scope, Test};

pub fn tests() -> Vec<Test> {
    let test = |name, run| Test::new(name, Scope::Device, run);
    vec![
        test("stress::threads_on_one_device", one_device as fn(&_) -> _),
        test("stress::threads_on_a_full_device", full_device),
        test("stress::threads_on_a_device_that_spills", spilling_device),
    ]
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![("stress::threads_on_every_device", every_device)]
}

const THREADS: usize = 24;
/// Operations of a thread in a full run.
const OPERATIONS: u64 = 100_000;
/// A normal run's time, in phases that end in a look at the account.
const PHASES: u32 = 3;
const PHASE: Duration = Duration::from_secs(2);
/// What a full device may hold, and what may be on the host: threads want about twice as much.
const BUDGET: u64 = 96 << 10;
const ON_HOST: u64 = 48 << 10;
/// No operation takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Tensors that a thread holds at most.
const HELD: usize = 12;
/// Tensors that wait for another thread at most.
const EXCHANGED: usize = 48;
/// Above it an f32 might round.
const EXACT: i64 = 1 << 23;

fn one_device(context: &Context) -> Result<()> {
    let devices = vec![context.open(), Device::select("cpu")?];
    // On the CPU two pools, so that there is somewhere to move to; elsewhere the CPU is that place.
    let name = format!("stress on {}", context.adapter.name);
    stress(&name, devices, 8, Crowd::No).map(drop)
}

/// In regions of all sizes, so that blocks move within them and between them, and regions are traded.
fn full_device(context: &Context) -> Result<()> {
    let device = context
        .builder()
        .memory_limit(BUDGET)
        .growth(Growth::Step { bytes: 16 << 10 })
        .build()?;
    let name = format!("stress on {}, full", context.adapter.name);
    let devices = vec![device, Device::select("cpu")?];
    let events = stress(&name, devices, 64, Crowd::Full)?;
    assert!(events.relocations > 0, "{events:?}");
    assert_eq!(events.spills, 0);
    Ok(())
}

/// The host is full now and then, too.
fn spilling_device(context: &Context) -> Result<()> {
    let most = Some(ON_HOST);
    let device = context
        .builder()
        .memory_limit(BUDGET - ON_HOST)
        .when_full(WhenFull::SpillToHost { most })
        .build()?;
    let name = format!("stress on {}, spilling", context.adapter.name);
    let devices = vec![device, Device::select("cpu")?];
    let events = stress(&name, devices, 64, Crowd::Full)?;
    assert!(events.relocations > 0, "{events:?}");
    let spills = events.spills > 0 && events.refaults > 0;
    assert_eq!(spills, !context.is_cpu(), "{events:?}");
    Ok(())
}

fn every_device() -> Result<()> {
    let devices = adapters::found()
        .into_iter()
        .map(|adapter| Context::new(adapter, Variant::Plain).open())
        .collect();
    stress("stress on every device", devices, 2, Crowd::No).map(drop)
}

/// Whether the first device is too small.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Crowd {
    No,
    Full,
}

/// Bytes and blocks in use on each device, by the model.
struct Account(Vec<(AtomicI64, AtomicI64)>);

/// One storage of the model: counted while an item that sees it lives.
struct Storage {
    account: Arc<Account>,
    device: usize,
    bytes: i64,
}

impl Drop for Storage {
    fn drop(&mut self) {
        let (bytes, blocks) = &self.account.0[self.device];
        bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        blocks.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A matrix and what it holds.
struct Item {
    // Before the storage: the model must not count less than there is when somebody looks.
    tensor: Tensor,
    values: Vec<i64>,
    storage: Arc<Storage>,
}

impl Item {
    fn sizes(&self) -> [usize; 2] {
        [self.tensor.shape()[0], self.tensor.shape()[1]]
    }

    /// Reads the whole.
    fn check(&self) -> Result<()> {
        let seen = read(&self.tensor)?;
        assert_eq!(seen, self.values, "{:?}", self.tensor);
        Ok(())
    }
}

fn read(tensor: &Tensor) -> Result<Vec<i64>> {
    Ok(match tensor.dtype() {
        DType::I32 => tensor.to_vec::<i32>()?.into_iter().map(i64::from).collect(),
        _ => floats(tensor.to_vec()?),
    })
}

fn floats(values: Vec<f32>) -> Vec<i64> {
    let whole = |x: f32| {
        assert_eq!(x.fract(), 0.0, "not an integer");
        x as i64
    };
    values.into_iter().map(whole).collect()
}

/// A download on its way.
enum Pending {
    I32(orlop::Pending<Vec<i32>>),
    F32(orlop::Pending<Vec<f32>>),
}

/// What the threads share.
struct Shared {
    devices: Vec<Device>,
    account: Arc<Account>,
    exchange: Mutex<Vec<Arc<Item>>>,
    barrier: Barrier,
    /// One time in so many an item is made on another device than the first.
    elsewhere: usize,
    crowd: Crowd,
    /// Of the first device, at first and at most.
    budget: Option<u64>,
    /// Operations that failed for want of memory.
    refused: AtomicU64,
}

struct Worker<'a> {
    shared: &'a Shared,
    rng: Rng,
    held: Vec<Arc<Item>>,
    pending: VecDeque<(Pending, Vec<i64>)>,
}

/// Runs it; `elsewhere` as in [`Shared`]. What happened on the first device.
fn stress(
    name: &str,
    devices: Vec<Device>,
    elsewhere: usize,
    crowd: Crowd,
) -> Result<MemoryEvents> {
    let account = devices.iter().map(|_| Default::default()).collect();
    let budget = devices[0].memory().limit;
    let shared = Arc::new(Shared {
        devices,
        account: Arc::new(Account(account)),
        exchange: Mutex::default(),
        barrier: Barrier::new(THREADS),
        elsewhere,
        crowd,
        budget,
        refused: AtomicU64::new(0),
    });
    let started = Instant::now();
    let pulses = watchdog::pulses(name, THREADS, PATIENCE);
    let running: Vec<_> = pulses
        .into_iter()
        .enumerate()
        .map(|(index, pulse)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let work = std::panic::AssertUnwindSafe(|| run(&shared, index, &pulse));
                match std::panic::catch_unwind(work) {
                    Ok(Ok(operations)) => operations,
                    failed => {
                        // The others wait at the barrier: nothing is left to learn from them.
                        let what = match failed {
                            Ok(outcome) => format!("{outcome:?}"),
                            Err(panic) => panic_text(&*panic),
                        };
                        let at = pulse.count();
                        eprintln!("seed {} thread {index} operation {at}: {what}", seed());
                        std::process::abort();
                    }
                }
            })
        })
        .collect();
    let operations: u64 = running
        .into_iter()
        .map(|thread| thread.join().expect("failures abort"))
        .sum();
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{name}: {operations} operations of {THREADS} threads in {seconds:.1} s");
    let events = shared.devices[0].memory().events;
    let refused = shared.refused.load(Ordering::Acquire);
    if crowd == Crowd::Full {
        eprintln!("{name}: {refused} refused, {events:?}");
        assert!(
            refused * 4 < operations,
            "{refused} of {operations} refused"
        );
    }
    shared.exchange.lock().expect("no panic").clear();
    for device in &shared.devices {
        settle(device, |memory| memory.allocated == 0);
        device.synchronize()?;
        device.trim()?;
        let memory = device.memory();
        assert_eq!(
            (memory.live_blocks, memory.reserved, memory.regions),
            (0, 0, 0)
        );
        assert_eq!(memory.spilled, 0);
    }
    Ok(events)
}

/// One thread's work; gives the count of operations.
fn run(shared: &Shared, index: usize, pulse: &Pulse) -> Result<u64> {
    let mut worker = Worker {
        shared,
        rng: Rng::new(seed() ^ (index as u64 + 1).wrapping_mul(0xA24B_AED4_963E_E407)),
        held: Vec::new(),
        pending: VecDeque::new(),
    };
    let mut operations = 0;
    for _ in 0..PHASES {
        let started = Instant::now();
        let more = |done: u64| match full() {
            true => done < OPERATIONS.div_ceil(u64::from(PHASES)),
            false => started.elapsed() < PHASE,
        };
        let mut done = 0;
        while more(done) {
            let outcome = worker.step();
            if !worker.goes_on(outcome)? {
                let left = worker.held.len() / 2;
                worker.held.truncate(left);
            }
            pulse.beat();
            done += 1;
        }
        operations += done;
        worker.finish_pending()?;
        for item in &worker.held {
            // To read a view takes memory.
            worker.goes_on(item.check())?;
        }
        pulse.wait();
        // Nobody works between the two.
        if shared.barrier.wait().is_leader() {
            shared.compare();
        }
        shared.barrier.wait();
        pulse.beat();
    }
    pulse.end();
    Ok(operations)
}

impl Shared {
    /// The devices' account is the model's.
    fn compare(&self) {
        for (device, (bytes, blocks)) in self.devices.iter().zip(&self.account.0) {
            let bytes = bytes.load(Ordering::Acquire) as u64;
            let blocks = blocks.load(Ordering::Acquire) as u64;
            // A background thread may still let go of what it read.
            settle(device, |memory| {
                let spilled = device.memory_snapshot().spilled.len() as u64;
                memory.allocated + memory.spilled == bytes && memory.live_blocks + spilled == blocks
            });
        }
    }
}

impl Worker<'_> {
    /// False when there was no memory and there need not be.
    fn goes_on(&self, outcome: Result<()>) -> Result<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(Error::OutOfMemory(_)) if self.shared.crowd == Crowd::Full => {
                self.shared.refused.fetch_add(1, Ordering::AcqRel);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn step(&mut self) -> Result<()> {
        let operation = self.rng.below(100);
        match operation {
            0..=14 => {
                let item = self.create()?;
                self.hold(item);
            }
            15..=26 => self.view()?,
            27..=44 => self.combine()?,
            45..=52 => self.matmul()?,
            53..=58 => self.copy()?,
            59..=65 => self.fill()?,
            66..=71 => self.send()?,
            72..=80 => drop(self.take()),
            81..=84 => self.read()?,
            85..=89 => self.read_later()?,
            90..=97 => self.exchange(),
            _ => self.look()?,
        }
        Ok(())
    }

    fn hold(&mut self, item: Item) {
        if self.held.len() >= HELD {
            drop(self.take());
        }
        self.held.push(Arc::new(item));
    }

    fn take(&mut self) -> Option<Arc<Item>> {
        let count = self.held.len();
        (count > 0).then(|| self.held.swap_remove(self.rng.below(count)))
    }

    /// Any item that this thread holds, or a new one.
    fn any(&mut self) -> Result<Arc<Item>> {
        if self.held.is_empty() {
            let item = self.create()?;
            self.hold(item);
        }
        Ok(Arc::clone(self.rng.pick(&self.held)))
    }

    fn device(&mut self) -> usize {
        let count = self.shared.devices.len();
        match self.rng.one_in(self.shared.elsewhere) {
            true => self.rng.below(count),
            false => 0,
        }
    }

    fn item(&self, tensor: Tensor, values: Vec<i64>) -> Item {
        let device = self
            .shared
            .devices
            .iter()
            .position(|device| device == tensor.device())
            .expect("one of ours");
        let bytes = (values.len() * tensor.dtype().size()).next_multiple_of(QUANTUM as usize);
        let account = Arc::clone(&self.shared.account);
        account.0[device]
            .0
            .fetch_add(bytes as i64, Ordering::AcqRel);
        account.0[device].1.fetch_add(1, Ordering::AcqRel);
        Item {
            tensor,
            values,
            storage: Arc::new(Storage {
                account,
                device,
                bytes: bytes as i64,
            }),
        }
    }

    fn create(&mut self) -> Result<Item> {
        let device = self.device();
        let dtype = *self.rng.pick(&[DType::I32, DType::F32]);
        let sizes = match self.rng.below(400) {
            0 => {
                let least = match self.shared.crowd {
                    // Above what shares a staging slot.
                    Crowd::No => 150,
                    // Much of the budget.
                    Crowd::Full => 60,
                };
                [least, self.rng.between(least, least * 5 / 3)]
            }
            _ => [self.rng.between(1, 16), self.rng.between(1, 16)],
        };
        self.create_like(device, dtype, sizes)
    }

    fn create_like(&mut self, device: usize, dtype: DType, sizes: [usize; 2]) -> Result<Item> {
        let count = sizes[0] * sizes[1];
        let device = &self.shared.devices[device];
        let (tensor, values) = match self.rng.below(4) {
            0 => {
                let value = self.rng.below(19) as i64 - 9;
                (
                    Tensor::full(device, sizes, value, dtype)?,
                    vec![value; count],
                )
            }
            1 => (Tensor::zeros(device, sizes, dtype)?, vec![0; count]),
            _ => {
                let values: Vec<i64> = (0..count).map(|_| self.rng.below(19) as i64 - 9).collect();
                let tensor = match dtype {
                    DType::I32 => {
                        let host: Vec<i32> = values.iter().map(|&x| x as i32).collect();
                        Tensor::from_slice(device, &host, sizes)?
                    }
                    _ => {
                        let host: Vec<f32> = values.iter().map(|&x| x as f32).collect();
                        Tensor::from_slice(device, &host, sizes)?
                    }
                };
                (tensor, values)
            }
        };
        Ok(self.item(tensor, values))
    }

    fn view(&mut self) -> Result<()> {
        let base = self.any()?;
        let [rows, columns] = base.sizes();
        let at = |row: usize, column: usize| base.values[row * columns + column];
        let (tensor, values) = match self.rng.below(3) {
            0 => {
                let values = (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c)));
                (
                    base.tensor.transpose(0, 1)?,
                    values.map(|(r, c)| at(r, c)).collect(),
                )
            }
            1 => {
                let top = self.rng.below(rows);
                let left = self.rng.below(columns);
                let values = (top..rows).flat_map(|r| (left..columns).map(move |c| (r, c)));
                (
                    base.tensor.slice((top.., left..))?,
                    values.map(|(r, c)| at(r, c)).collect(),
                )
            }
            _ => {
                let row = self.rng.below(rows);
                let times = self.rng.between(1, 8);
                let line = base.tensor.slice(row..row + 1)?;
                (
                    line.broadcast_to([times, columns])?,
                    (0..times * columns).map(|i| at(row, i % columns)).collect(),
                )
            }
        };
        let storage = Arc::clone(&base.storage);
        drop(base);
        self.hold(Item {
            tensor,
            values,
            storage,
        });
        Ok(())
    }

    /// Elementwise, with one of the same sizes or a new one, now and then from another device.
    fn combine(&mut self) -> Result<()> {
        let a = self.any()?;
        let other = self
            .held
            .iter()
            .find(|b| {
                !Arc::ptr_eq(&a, b)
                    && b.sizes() == a.sizes()
                    && b.tensor.dtype() == a.tensor.dtype()
            })
            .cloned();
        let b = match other {
            Some(b) => b,
            None => {
                let device = match self.rng.one_in(8) {
                    true => self.device(),
                    false => a.storage.device,
                };
                Arc::new(self.create_like(device, a.tensor.dtype(), a.sizes())?)
            }
        };
        let pairs = a.values.iter().zip(&b.values);
        let (tensor, values): (_, Vec<i64>) = match self.rng.below(4) {
            0 => (
                a.tensor.sub(&b.tensor)?,
                pairs.map(|(x, y)| x - y).collect(),
            ),
            1 => (
                a.tensor.mul(&b.tensor)?,
                pairs.map(|(x, y)| x * y).collect(),
            ),
            _ => (
                a.tensor.add(&b.tensor)?,
                pairs.map(|(x, y)| x + y).collect(),
            ),
        };
        self.result(tensor, values)
    }

    fn matmul(&mut self) -> Result<()> {
        let a = self.any()?;
        let [rows, inner] = a.sizes();
        let columns = self.rng.between(1, 16);
        let b = self.create_like(a.storage.device, a.tensor.dtype(), [inner, columns])?;
        let tensor = a.tensor.matmul(&b.tensor)?;
        let sum = |at: usize| -> i64 {
            let (row, column) = (at / columns, at % columns);
            (0..inner)
                .map(|k| a.values[row * inner + k] * b.values[k * columns + column])
                .sum()
        };
        let values = (0..rows * columns).map(sum).collect();
        self.result(tensor, values)
    }

    /// Keeps a result; one whose numbers grow too large for f32 ends here.
    fn result(&mut self, tensor: Tensor, values: Vec<i64>) -> Result<()> {
        let item = self.item(tensor, values);
        if item.values.iter().all(|x| x.abs() < EXACT / 4096) {
            self.hold(item);
            return Ok(());
        }
        if item.values.iter().all(|x| x.abs() < EXACT) && self.rng.one_in(4) {
            item.check()?;
        }
        Ok(())
    }

    fn copy(&mut self) -> Result<()> {
        let item = self.any()?;
        let tensor = match self.rng.below(3) {
            0 => item.tensor.cast(DType::I32)?.cast(DType::F32)?,
            _ => item.tensor.copy()?,
        };
        self.result(tensor, item.values.clone())
    }

    /// Writes a part of one that nobody else sees; downloads ordered before show the old values.
    fn fill(&mut self) -> Result<()> {
        let Some(mut taken) = self.take() else {
            return Ok(());
        };
        let Some(item) = Arc::get_mut(&mut taken).filter(|item| {
            Arc::strong_count(&item.storage) == 1 && item.values.len() == item.tensor.elements()
        }) else {
            self.held.push(taken);
            return Ok(());
        };
        if overlaps(&item.tensor) {
            return Ok(());
        }
        if self.rng.one_in(4) {
            self.pending.push_back(later(item));
        }
        let [rows, columns] = item.sizes();
        let (top, left) = (self.rng.below(rows), self.rng.below(columns));
        let value = self.rng.below(19) as i64 - 9;
        let part = item.tensor.slice((top.., left..))?;
        match (self.rng.below(3), part.dtype()) {
            (0, DType::I32) => part.write_from(&vec![value as i32; part.elements()])?,
            (0, DType::F32) => part.write_from(&vec![value as f32; part.elements()])?,
            _ => part.fill(value)?,
        }
        for row in top..rows {
            item.values[row * columns + left..(row + 1) * columns].fill(value);
        }
        if self.rng.one_in(4) {
            item.check()?;
        }
        self.held.push(taken);
        self.finish_some()
    }

    /// To another device, or to itself.
    fn send(&mut self) -> Result<()> {
        let item = self.any()?;
        let target = self.rng.below(self.shared.devices.len());
        let tensor = item.tensor.to(&self.shared.devices[target])?;
        if target == item.storage.device {
            assert!(tensor.shares_storage(&item.tensor));
            return Ok(());
        }
        // Its span of the storage travels, and that is not known here: a copy has its own size.
        let tensor = tensor.copy()?;
        self.result(tensor, item.values.clone())
    }

    fn read(&mut self) -> Result<()> {
        let item = self.any()?;
        match self.rng.below(3) {
            0 if item.tensor.dtype() == DType::F32 => {
                let mut host = vec![0.0f32; item.values.len()];
                item.tensor.read_into(&mut host)?;
                assert_eq!(floats(host), item.values);
                Ok(())
            }
            1 => {
                let [rows, columns] = item.sizes();
                let (row, column) = (self.rng.below(rows), self.rng.below(columns));
                let one = item.tensor.slice((row..row + 1, column..column + 1))?;
                assert_eq!(read(&one)?, [item.values[row * columns + column]]);
                Ok(())
            }
            _ => item.check(),
        }
    }

    fn read_later(&mut self) -> Result<()> {
        let item = self.any()?;
        self.pending.push_back(later(&item));
        self.finish_some()
    }

    fn finish_some(&mut self) -> Result<()> {
        while self.pending.len() > 4 {
            let next = self.pending.pop_front();
            if self.rng.one_in(3) {
                // Dropped before it is done, or after.
                continue;
            }
            next.map_or(Ok(()), finish)?;
        }
        Ok(())
    }

    fn finish_pending(&mut self) -> Result<()> {
        for pending in std::mem::take(&mut self.pending) {
            self.goes_on(finish(pending))?;
        }
        Ok(())
    }

    /// Gives one to the others and takes one of theirs.
    fn exchange(&mut self) {
        let given = match self.rng.one_in(2) {
            true => self.take(),
            false => (!self.held.is_empty()).then(|| Arc::clone(self.rng.pick(&self.held))),
        };
        let mut waiting = self.shared.exchange.lock().expect("no panic");
        let mut gone = None;
        if let Some(given) = given {
            if waiting.len() >= EXCHANGED {
                let at = self.rng.below(waiting.len());
                gone = Some(waiting.swap_remove(at));
            }
            waiting.push(given);
        }
        if !waiting.is_empty() && self.held.len() < HELD {
            self.held.push(Arc::clone(self.rng.pick(&waiting[..])));
        }
        drop(waiting);
        drop(gone);
    }

    /// Statistics agree with themselves while others work; now and then idle memory goes back, and a full device gets another budget.
    fn look(&mut self) -> Result<()> {
        for device in &self.shared.devices {
            let memory = device.memory();
            assert!(memory.allocated <= memory.reserved, "{memory:?}");
            assert_eq!(memory.free, memory.reserved - memory.allocated);
            assert!(memory.largest_free <= memory.free, "{memory:?}");
            assert!(memory.peak_allocated >= memory.allocated, "{memory:?}");
            assert!(memory.peak_reserved >= memory.reserved, "{memory:?}");
            assert!(memory.live_blocks * QUANTUM <= memory.allocated);
            assert_eq!(memory.allocated % QUANTUM, 0);
            assert!(memory.limit.is_none_or(|limit| memory.reserved <= limit));
        }
        if let (Crowd::Full, Some(most), true) =
            (self.shared.crowd, self.shared.budget, self.rng.one_in(10))
        {
            let budget = most - self.rng.below(most as usize / 8) as u64;
            return self.shared.devices[0].set_memory_limit(budget);
        }
        let device = self.rng.pick(&self.shared.devices);
        match self.rng.below(40) {
            0 => device.trim(),
            1 => device.synchronize(),
            2 => {
                device.reset_peaks();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// A broadcast: one element seen several times.
fn overlaps(tensor: &Tensor) -> bool {
    let strides = tensor.layout().strides();
    (0..2).any(|axis| tensor.shape()[axis] > 1 && strides[axis] == 0)
}

fn later(item: &Item) -> (Pending, Vec<i64>) {
    let pending = match item.tensor.dtype() {
        DType::I32 => Pending::I32(item.tensor.to_vec_async()),
        _ => Pending::F32(item.tensor.to_vec_async()),
    };
    (pending, item.values.clone())
}

fn finish((pending, values): (Pending, Vec<i64>)) -> Result<()> {
    let seen = match pending {
        Pending::I32(future) => pollster::block_on(future)?
            .into_iter()
            .map(i64::from)
            .collect(),
        Pending::F32(future) => floats(pollster::block_on(future)?),
    };
    assert_eq!(seen, values, "as it was when the download was ordered");
    Ok(())
}
