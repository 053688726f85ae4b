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
                       mover: Option<&mut dyn Mover<wgpu::Buffer>>| {
            let taken = memory.attempt(request, mover);
            if let (Ok(id), Some(block)) = (&taken, back) {
                memory.adopt(*id, block);
                memory.resume(*id, block.number());
                block.settle(*id);
            }
            taken
        };
        let _hold = self.hold();
        let bounce = {
            let mut memory = self.memory.lock();
            match &self.bounce {
                // Most requests find a chunk: they need no stream.
                Some(bounce) if !memory.has_room(request.bytes) => bounce,
                _ => return Ok(attempt(&mut memory, None)),
            }
        };
        let mut stream = self.stream.lock();
        let mut journeys = Journeys::default();
        let (taken, owners) = {
            let mut memory = self.memory.lock();
            let taken = attempt(&mut memory, Some(&mut journeys));
            let owners: Vec<Weak<GpuBlock>> = journeys
                .0
                .iter()
                .map(|journey| memory.owner(journey.block))
                .collect();
            (taken, owners)
        };
        let moved: Result<()> = journeys
            .0
            .into_iter()
            .zip(owners)
            .try_for_each(|(journey, owner)| record(&mut stream, bounce, journey, owner));
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
