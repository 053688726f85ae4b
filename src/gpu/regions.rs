//! Regions as wgpu buffers: where the pool gets its memory from.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Gpu;
use super::health::{self, Caught, Health};
use crate::error::{DeviceFailure, Error, Result};
use crate::faults::{Fault, FaultHook, INJECTED};
use crate::memory::{Claim, Kept, QUANTUM, Refused, RegionSource};
use crate::sync::atomic::{AtomicBool, Ordering};

/// What regions can be used for beside what orlop needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionUsages(pub wgpu::BufferUsages);

impl Default for RegionUsages {
    fn default() -> Self {
        Self(wgpu::BufferUsages::empty())
    }
}

/// Share of what regions hold that those may have which went back, but which work in flight or cached bind groups
/// may keep.
const UNSETTLED_SHARE: u64 = 8;
/// And what they may have in any case.
const UNSETTLED_BYTES: u64 = 4 << 20;

/// Creates regions on one device.
pub(crate) struct Regions {
    device: wgpu::Device,
    health: Arc<Health>,
    usages: wgpu::BufferUsages,
    faults: FaultHook,
    /// The device's seat in its adapter's ledger.
    claim: Arc<Claim>,
    /// The device is dropped at work, and the driver keeps its regions.
    is_left: bool,
    /// A region was given back since this was last cleared: cached bind groups may keep its
    /// memory alive.
    pub returned: bool,
    held: u64,
    /// Work in flight may use them still.
    kept: Kept<wgpu::Buffer>,
    /// Bytes that went back so far.
    went_back: u64,
    /// Of them those that are the adapter's again, since somebody waited for what used them.
    settled: u64,
    /// Submissions that are the last to use what went back before them, and how much that was in all; the oldest first.
    leaving: VecDeque<(u64, u64)>,
    /// The others are too many: the next allocation waits first.
    pub crowded: Arc<AtomicBool>,
}

impl Regions {
    /// # Errors
    /// `InvalidArgument` for extra usages that the device does not give to such buffers, `DeviceUnavailable` where there
    /// is no memory to try them, `DeviceLost`.
    pub(crate) fn new(
        device: wgpu::Device,
        health: Arc<Health>,
        name: &str,
        extra: RegionUsages,
        claim: Claim,
        faults: FaultHook,
    ) -> Result<Self> {
        let watched = Arc::clone(&health);
        claim.lapses_when(move || watched.is_known_lost());
        let regions = Self {
            device,
            health,
            usages: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST
                | extra.0,
            claim: Arc::new(claim),
            is_left: false,
            faults,
            returned: false,
            held: 0,
            kept: Kept::default(),
            went_back: 0,
            settled: 0,
            leaving: VecDeque::new(),
            crowded: Arc::default(),
        };
        if extra != RegionUsages::default() {
            // The device says best what it allows.
            let made = regions.made(QUANTUM);
            // Of a lost device nobody can tell.
            regions.health.ask(&regions.device)?;
            made.map_err(|caught| match caught {
                Caught::OutOfMemory(reason) => Error::DeviceUnavailable(Box::new(DeviceFailure {
                    device: name.to_owned(),
                    reason: format!(
                        "the driver gave no buffer to try region_usages with: {reason}"
                    ),
                })),
                Caught::Other(reason) => Error::invalid(
                    "region_usages",
                    format!("{:?} cannot be had for regions: {reason}", extra.0),
                ),
            })?;
        }
        Ok(regions)
    }
}

impl RegionSource for Regions {
    type Region = wgpu::Buffer;

    fn create(&mut self, bytes: u64) -> Result<wgpu::Buffer, Refused> {
        self.claim.take(bytes)?;
        let created = self.kept_or_made(bytes);
        match created {
            Ok(_) => self.held += bytes,
            Err(_) => self.claim.give(bytes),
        }
        self.count_unsettled();
        created
    }

    fn destroy(&mut self, region: wgpu::Buffer) {
        let bytes = region.size();
        if !self.is_left {
            self.claim.give(bytes);
        }
        self.returned = true;
        self.held = self.held.saturating_sub(bytes);
        for region in self.kept.push(region, bytes, self.held) {
            self.goes(region);
        }
        self.count_unsettled();
    }
}

impl Regions {
    fn kept_or_made(&mut self, bytes: u64) -> Result<wgpu::Buffer, Refused> {
        let found = match self.kept.take(bytes) {
            Some(kept) => Ok(kept),
            None => match self.made(bytes) {
                // What is kept may be what is missing.
                Err(Caught::OutOfMemory(_)) if self.let_go() => self.made(bytes),
                made => made,
            },
        };
        // A lost device swallows errors and hands out dead buffers.
        let lost = self.health.check();
        lost.map_err(|lost| Refused(lost.to_string()))?;
        found.map_err(|caught| match caught {
            Caught::OutOfMemory(_) => Refused("the adapter is out of memory".to_owned()),
            Caught::Other(message) => Refused(message),
        })
    }

    fn made(&self, bytes: u64) -> Result<wgpu::Buffer, Caught> {
        if self.faults.strikes(Fault::Region) {
            return Err(Caught::Other(INJECTED.to_owned()));
        }
        health::scoped(&self.device, || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("orlop region"),
                size: bytes,
                usage: self.usages,
                mapped_at_creation: false,
            })
        })
    }

    /// The adapter's again as soon as nothing uses it.
    fn goes(&mut self, region: wgpu::Buffer) {
        self.went_back += region.size();
        self.count_unsettled();
        self.returned = true;
        // Dropped, not destroyed: work in flight or in the open batch may still use it.
        drop(region);
    }

    /// The device's seat in its adapter's ledger.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The seat with all that is reserved, for who keeps it until the driver gives the regions up.
    pub(super) fn leave(&mut self) -> Arc<Claim> {
        self.is_left = true;
        Arc::clone(&self.claim)
    }

    /// Keeps none any longer; whether there was any.
    pub(crate) fn let_go(&mut self) -> bool {
        let mut any = false;
        while let Some(region) = self.kept.pop() {
            self.goes(region);
            any = true;
        }
        any
    }

    /// One more op: what nobody has needed for long goes.
    pub(crate) fn age(&mut self) {
        self.kept.age();
        while let Some(region) = self.kept.pop_old() {
            self.goes(region);
        }
    }

    /// Bytes that went back so far.
    pub(crate) fn went_back(&self) -> u64 {
        self.went_back
    }

    /// What had gone back by then, in [`Regions::went_back`], is the adapter's again. Several may wait for the same bytes.
    pub(crate) fn settled_up_to(&mut self, went_back: u64) {
        self.settled = self.settled.max(went_back);
        self.leaving.retain(|(_, others)| *others > went_back);
        self.count_unsettled();
    }

    /// What has gone back is used by submissions up to this one, and forgotten by all that would keep it.
    pub(super) fn leaves_with(&mut self, submission: u64) {
        let known = self
            .leaving
            .back()
            .map_or(self.settled, |(_, went_back)| *went_back);
        // Else it is kept here.
        if known < self.went_back {
            self.leaving.push_back((submission, self.went_back));
        }
    }

    /// A submission has run, and all before it.
    pub(super) fn settled_with(&mut self, submission: u64) {
        while let Some(&(last, went_back)) = self.leaving.front()
            && last <= submission
        {
            self.settled = self.settled.max(went_back);
            self.leaving.pop_front();
        }
        self.count_unsettled();
    }

    /// The first submission that has to run for what is unsettled not to be too much, and what had gone back before it.
    pub(super) fn awaited(&self) -> Option<(u64, u64)> {
        let is_enough = |&&(_, settled): &&(u64, u64)| !self.is_crowded(settled);
        let first = || self.leaving.iter().find(is_enough);
        self.is_crowded(self.settled).then(first)?.copied()
    }

    fn is_crowded(&self, settled: u64) -> bool {
        let most = (self.held / UNSETTLED_SHARE).max(UNSETTLED_BYTES);
        self.went_back - settled > most
    }

    fn count_unsettled(&self) {
        let crowded = self.is_crowded(self.settled);
        self.crowded.store(crowded, Ordering::Relaxed);
    }
}

impl Gpu {
    /// Waits for the submissions that keep too much of what went back, not for those after them.
    ///
    /// # Errors
    /// `DeviceLost`, `TimedOut`.
    pub(super) fn wait_for_returned(&self) -> Result<()> {
        let (went_back, last) = {
            let _hold = self.hold();
            let mut stream = self.stream.lock();
            let awaited = {
                let mut pool = self.memory.lock();
                stream.forget_returned(&mut pool);
                let regions = pool.source_mut();
                regions.settled_with(self.progress.count());
                regions.awaited()
            };
            let Some((awaited, went_back)) = awaited else {
                return Ok(());
            };
            let mut last = stream.submission_of(awaited);
            if last.as_ref().is_none_or(|last| last.number < awaited) {
                stream.submit()?;
                last = stream.submission_of(awaited);
            }
            (went_back, last)
        };
        if let Some(last) = last {
            self.wait_submission("allocation", &last, self.deadline())?;
        }
        self.memory.lock().source_mut().settled_up_to(went_back);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::Device;
    use crate::dtype::DType;
    use crate::error::Error;
    use crate::memory::{KEPT_LEAST, Ledger};
    use crate::tensor::Tensor;

    /// A region that the ledger refuses is not made; what goes back is there to take again.
    #[test]
    fn the_ledger_is_asked_first() {
        const MIB: u64 = 1 << 20;
        for info in Device::list().unwrap() {
            let device = Device::builder().select(&info.selector).build().unwrap();
            let Some(gpu) = device.gpu() else { continue };
            let ledger: Arc<Ledger> = Arc::default();
            // Nine tenths of it are there to take.
            let claim = ledger.claim(100 * MIB, None, u64::MAX).unwrap();
            let reserved = || ledger.entries()[0].reserved;
            let _hold = gpu.hold();
            let mut regions = Regions::new(
                gpu.device.clone(),
                Arc::clone(&gpu.health),
                &info.name,
                RegionUsages::default(),
                claim,
                FaultHook::default(),
            )
            .unwrap();
            let most = regions.create(80 * MIB).unwrap();
            assert!(regions.create(20 * MIB).is_err(), "{info}");
            assert_eq!(reserved(), 80 * MIB, "{info}");
            regions.destroy(most);
            assert_eq!(reserved(), 0, "{info}");
            let more = regions.create(85 * MIB).unwrap();
            assert_eq!(reserved(), 85 * MIB, "{info}");
            // While GL's lock is held.
            drop((more, regions));
        }
    }

    /// What went back lately is kept for the next one of its size.
    #[test]
    fn the_next_one_is_the_last() {
        for info in Device::list().unwrap() {
            let device = Device::builder().select(&info.selector).build().unwrap();
            let Some(gpu) = device.gpu() else { continue };
            let _hold = gpu.hold();
            let mut pool = gpu.memory.lock();
            let regions = pool.source_mut();
            let first = regions.create(QUANTUM).unwrap();
            let same = first.clone();
            regions.destroy(first);
            let next = regions.create(QUANTUM).unwrap();
            assert!(next == same, "{info}");
            regions.destroy(next);
            assert!(regions.let_go(), "{info}");
            assert!(!regions.let_go(), "{info}");
        }
    }

    /// Who needs memory waits for what used the regions that went back, not for what came after.
    #[test]
    fn what_came_after_is_not_waited_for() {
        for info in Device::list().unwrap() {
            let device = Device::builder().select(&info.selector).build().unwrap();
            let Some(gpu) = device.gpu() else { continue };
            let _hold = gpu.hold();
            let mut pool = gpu.memory.lock();
            let regions = pool.source_mut();
            assert_eq!(regions.awaited(), None, "{info}");
            let mut goes_back = |submission| {
                let region = regions.create(KEPT_LEAST + 1024).unwrap();
                regions.destroy(region);
                assert!(regions.crowded.load(Ordering::Relaxed), "{info}");
                regions.leaves_with(submission);
            };
            goes_back(3);
            goes_back(5);
            // Nothing has gone back since.
            regions.leaves_with(8);
            let all = regions.went_back();
            assert_eq!(regions.awaited(), Some((5, all)), "{info}");
            regions.settled_with(4);
            assert_eq!(regions.awaited(), Some((5, all)), "{info}");
            regions.settled_with(5);
            assert_eq!(regions.awaited(), None, "{info}");
            assert!(!regions.crowded.load(Ordering::Relaxed), "{info}");
            assert_eq!(regions.leaving.len(), 0, "{info}");
            drop(pool);
            drop(_hold);
            // A request waits for no more than it has to: what is recorded since stays so.
            let a = Tensor::full(&device, [64, 64], 1.0, DType::F32).unwrap();
            {
                let _hold = gpu.hold();
                let mut pool = gpu.memory.lock();
                let region = pool.source_mut().create(KEPT_LEAST + 1024).unwrap();
                pool.source_mut().destroy(region);
            }
            gpu.submit_all().unwrap();
            a.fill(2.0).unwrap();
            let b = Tensor::empty(&device, [64, 64], DType::F32).unwrap();
            assert!(!gpu.crowded.load(Ordering::Relaxed), "{info}");
            assert!(gpu.stream.lock().commands() > 0, "{info}");
            drop((a, b));
        }
    }

    /// A wait settles what went back before it began, once, and where it comes to its end.
    #[test]
    fn waits_settle_what_went_back_before_them() {
        for info in Device::list().unwrap() {
            let device = Device::builder().select(&info.selector).build().unwrap();
            let Some(gpu) = device.gpu() else { continue };
            let goes_back = || {
                let _hold = gpu.hold();
                let mut pool = gpu.memory.lock();
                // More than is kept.
                let region = pool.source_mut().create(KEPT_LEAST + 1024).unwrap();
                pool.source_mut().destroy(region);
            };
            let is_crowded = || gpu.crowded.load(Ordering::Relaxed);
            goes_back();
            assert!(is_crowded(), "{info}");
            let (_, before) = gpu.submit_all().unwrap();
            goes_back();
            // Two that waited for the first.
            for _ in 0..2 {
                gpu.memory.lock().source_mut().settled_up_to(before);
                assert!(is_crowded(), "{info}: the second is settled");
            }
            device.synchronize().unwrap();
            assert!(!is_crowded(), "{info}: synchronized");

            let a = Tensor::full(&device, [512, 512], 1.0, DType::F32).unwrap();
            let product = a.matmul(&a).unwrap();
            goes_back();
            match device.synchronize_within(Duration::ZERO) {
                Err(Error::TimedOut(_)) => assert!(is_crowded(), "{info}: given up"),
                // Who works in the submission is done.
                done => done.unwrap(),
            }
            device.synchronize().unwrap();
            assert!(!is_crowded(), "{info}: synchronized again");
            drop(product);
        }
    }
}
