//! Blocks move: what the pool decided is recorded as copies, in order with everything else.

use std::sync::{Arc, Weak};

use smallvec::smallvec;

use super::Gpu;
use super::batch::{Effect, Target};
use super::block::GpuBlock;
use super::health;
use super::regions::Regions;
use super::stream::Stream;
use crate::error::Result;
use crate::memory::{BlockId, FullReason, Move, Mover, OwnedPool, Request};

/// Bytes that go through the bounce buffer at a time: wgpu copies within one buffer only that way.
/// It is held from the device's opening, since there may be no memory for it when it is needed.
const BOUNCE: u64 = 1 << 20;

/// A buffer that blocks pass through on their way to another place in their region.
pub(crate) struct Bounce(wgpu::Buffer);

impl Bounce {
    /// # Errors
    /// What the device said.
    pub(crate) fn new(device: &wgpu::Device) -> std::result::Result<Self, health::Caught> {
        health::scoped(device, || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("orlop bounce"),
                size: BOUNCE,
                usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })
        .map(Self)
    }
}

/// One block's way from its old place to its new one.
struct Journey {
    block: BlockId,
    from: (wgpu::Buffer, u64),
    to: (wgpu::Buffer, u64),
    bytes: u64,
}

/// Notes moves while the pool is locked; they are recorded once it is let go, under the same stream
/// lock: whoever resolves a new place records after them.
#[derive(Default)]
struct Journeys(Vec<Journey>);

impl Mover<wgpu::Buffer> for Journeys {
    fn move_block(&mut self, moved: Move<'_, wgpu::Buffer>) {
        self.0.push(Journey {
            block: moved.block,
            from: (moved.from_region.clone(), moved.from.offset),
            to: (moved.to_region.clone(), moved.to.offset),
            bytes: moved.from.bytes,
        });
    }
}

impl Gpu {
    /// Climbs the ladder of the pool once. Moves of live blocks are recorded; nobody waits for them. What is taken is
    /// the chunk of a block that comes `back` from the host, as soon as it is taken, if one does.
    ///
    /// # Errors
    /// Outer: `DeviceLost`. Inner: why there is no room.
    pub(super) fn attempt(
        &self,
        request: Request,
        back: Option<&Arc<GpuBlock>>,
    ) -> Result<std::result::Result<BlockId, FullReason>> {
        let attempt = |memory: &mut OwnedPool<Regions, GpuBlock>,
                       mut mover: Option<&mut dyn Mover<wgpu::Buffer>>| {
            let mut taken = match &mut mover {
                Some(mover) => memory.attempt(request, Some(&mut **mover)),
                None => memory.attempt(request, None),
            };
            if taken.is_err() && memory.release_dying() {
                taken = memory.attempt(request, mover);
            }
            if let (Ok(id), Some(block)) = (&taken, back) {
                memory.adopt(*id, block);
                memory.resume(*id, block.number());
                block.settle(*id);
            }
            taken
        };
        let _hold = self.hold();
        {
            let mut memory = self.memory.lock();
            // Most requests find a chunk: they need no stream.
            if self.bounce.is_none() || memory.has_room(request.bytes) {
                match attempt(&mut memory, None) {
                    // An idle region with the only chunk went back for a smaller one, which the driver refused.
                    Err(FullReason::Refused(_)) if self.bounce.is_some() => {}
                    taken => return Ok(taken),
                }
            }
        }
        let mut stream = self.stream.lock();
        let (taken, moved) = self.moving(&mut stream, attempt);
        match (moved, taken) {
            (Ok(()), taken) => Ok(taken),
            (Err(lost), Ok(id)) => {
                match back {
                    Some(block) => self.stay_away(block),
                    None => self.memory.lock().release(id),
                }
                Err(lost)
            }
            (Err(lost), Err(_)) => Err(lost),
        }
    }
}

impl Gpu {
    /// Does something to the pool that may move blocks, where they may, and records their copies.
    pub(super) fn moving<T>(
        &self,
        stream: &mut Stream,
        act: impl FnOnce(&mut OwnedPool<Regions, GpuBlock>, Option<&mut dyn Mover<wgpu::Buffer>>) -> T,
    ) -> (T, Result<()>) {
        let Some(bounce) = &self.bounce else {
            return (act(&mut self.memory.lock(), None), Ok(()));
        };
        let mut journeys = Journeys::default();
        let (done, owners) = {
            let mut memory = self.memory.lock();
            let done = act(&mut memory, Some(&mut journeys));
            let owners: Vec<Weak<GpuBlock>> = journeys
                .0
                .iter()
                .map(|journey| memory.owner(journey.block))
                .collect();
            (done, owners)
        };
        let moved = journeys
            .0
            .into_iter()
            .zip(owners)
            .try_for_each(|(journey, owner)| record(stream, bounce, journey, owner));
        (done, moved)
    }
}

/// Records the copies of one move.
fn record(
    stream: &mut Stream,
    bounce: &Bounce,
    journey: Journey,
    owner: Weak<GpuBlock>,
) -> Result<()> {
    let Journey {
        block,
        from,
        to,
        bytes,
    } = journey;
    let effect = || Effect {
        label: "relocation",
        reads: smallvec![block],
        writes: Target::Block(block, owner.clone()),
    };
    if from.0 != to.0 {
        stream.copy(from, to, bytes, effect());
        return submit_full(stream);
    }
    // Piece by piece from the start: a block that moves down by less than its size is right, too.
    let mut at = 0;
    while at < bytes {
        let piece = BOUNCE.min(bytes - at);
        let source = (from.0.clone(), from.1 + at);
        let target = (to.0.clone(), to.1 + at);
        stream.copy(source, (bounce.0.clone(), 0), piece, effect());
        stream.copy((bounce.0.clone(), 0), target, piece, effect());
        at += piece;
        submit_full(stream)?;
    }
    Ok(())
}

/// However much moves, nobody waits for submissions before it, as recording does elsewhere: the stream
/// is not let go before the new places hold what they must, and what is in flight is commands only.
fn submit_full(stream: &mut Stream) -> Result<()> {
    if stream.is_full() {
        stream.submit()
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::device::{Device, Storage};
    use crate::dtype::DType;
    use crate::gpu::staging::LARGE_SLOTS;
    use crate::memory::{Growth, WhenFull};
    use crate::tensor::Tensor;

    const MIB: u64 = 1 << 20;

    /// In one region of 32 MiB a tensor of 16, behind a hole of 4.
    fn behind_a_hole(selector: &str, numbers: &[u32]) -> (Device, Tensor) {
        let bytes = 32 * MIB;
        let device = Device::builder()
            .select(selector)
            .memory_limit(bytes)
            .growth(Growth::PreallocateBytes { bytes })
            .when_full(WhenFull::Relocate)
            .build()
            .unwrap();
        let hole = Tensor::empty(&device, [1 << 20], DType::U32).unwrap();
        let tensor = Tensor::from_slice(&device, numbers, [numbers.len()]).unwrap();
        drop(hole);
        (device, tensor)
    }

    fn numbers() -> Vec<u32> {
        (0..4 << 20).collect()
    }

    /// What has room once that tensor has slid down.
    fn large(device: &Device) -> Tensor {
        Tensor::zeros(device, [14 << 18], DType::U32).unwrap()
    }

    /// What moves while it is read is read where it is then.
    #[test]
    fn downloads_follow_what_moves() {
        let numbers = numbers();
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let (device, tensor) = behind_a_hole(&info.selector, &numbers);
            let Storage::Gpu(block) = tensor.storage() else {
                panic!("{info}: not on the device");
            };
            let turn = block.turns().to_read();
            let gpu = device.gpu().unwrap();
            // Half of it is recorded.
            let read = gpu.begin_download(block, turn, 0, 16 * MIB).unwrap();
            let _large = large(&device);
            assert_eq!(device.memory().events.relocations, 1, "{info}");
            let mut found: Vec<u8> = Vec::new();
            read.finish(&mut |piece| found.extend_from_slice(piece))
                .unwrap();
            assert!(found == bytemuck::cast_slice::<_, u8>(&numbers), "{info}");
        }
    }

    /// What moves while it is written is written where it is then.
    #[test]
    fn uploads_follow_what_moves() {
        let numbers = numbers();
        for info in Device::list().unwrap() {
            if info.backend == "native" {
                continue;
            }
            let (device, tensor) = behind_a_hole(&info.selector, &[0; 4 << 20]);
            let Storage::Gpu(block) = tensor.storage() else {
                panic!("{info}: not on the device");
            };
            let gpu = device.gpu().unwrap();
            // Until it gets one of these it records nothing.
            let slots: Vec<_> = (0..LARGE_SLOTS)
                .map(|_| gpu.take_upload_slot().unwrap())
                .collect();
            let (uploaded, large) = std::thread::scope(|scope| {
                let upload = || gpu.upload(block, 0, bytemuck::cast_slice(&numbers));
                let upload = scope.spawn(upload);
                // So that it has begun; an upload that has not meets nothing.
                std::thread::sleep(Duration::from_millis(50));
                let large = large(&device);
                let hold = gpu.hold();
                let mut stream = gpu.stream.lock();
                for slot in slots {
                    stream.staging.forget_large();
                    drop(slot);
                }
                drop((stream, hold));
                (upload.join().unwrap(), large)
            });
            uploaded.unwrap();
            assert_eq!(device.memory().events.relocations, 1, "{info}");
            assert!(tensor.to_vec::<u32>().unwrap() == numbers, "{info}");
            assert!(large.to_vec::<u32>().unwrap().iter().all(|&x| x == 0));
        }
    }
}
