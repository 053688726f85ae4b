//! The specification of the allocator once more, as plainly as possible: lists and linear scans. And a device for both.

use orlop::memory::{FullReason, MemoryStatistics, PoolConfig, QUANTUM, Refused, RegionSource};

use crate::random::Random;

/// Plays a device: a capacity, refusals at random, and a count of what it has given out.
/// Each region is its creation number, and two copies of a device behave alike.
#[derive(Clone)]
pub struct Device {
    pub random: Random,
    /// One call in so many is refused; 0 for none.
    pub refuse_once_in: u64,
    pub capacity: u64,
    pub in_use: u64,
    pub created: Vec<u64>,
    pub destroyed: Vec<usize>,
}

impl Device {
    pub fn new() -> Device {
        Device {
            random: Random(0),
            refuse_once_in: 0,
            capacity: u64::MAX,
            in_use: 0,
            created: Vec::new(),
            destroyed: Vec::new(),
        }
    }

    pub fn with_capacity(capacity: u64) -> Device {
        Device {
            capacity,
            ..Device::new()
        }
    }
}

impl RegionSource for Device {
    type Region = usize;

    fn create(&mut self, bytes: u64) -> Result<usize, Refused> {
        assert!(bytes > 0 && bytes.is_multiple_of(QUANTUM));
        if self.refuse_once_in > 0 && self.random.once_in(self.refuse_once_in) {
            return Err(Refused("a bad moment".into()));
        }
        if bytes > self.capacity - self.in_use {
            return Err(Refused("no memory left".into()));
        }
        self.in_use += bytes;
        self.created.push(bytes);
        Ok(self.created.len() - 1)
    }

    fn destroy(&mut self, region: usize) {
        self.in_use -= self.created[region];
        self.destroyed.push(region);
    }
}

/// What a pool with `Growth::Proportional` is to do.
pub struct Oracle {
    pub device: Device,
    pub config: PoolConfig,
    pub regions: Vec<OracleRegion>,
    pub remaking: Remaking,
    pub peak_allocated: u64,
    pub peak_reserved: u64,
    most_reserved: u64,
}

/// What ends that regions are made anew: regions that are found to do, or a refusal.
pub struct Remaking {
    /// The most in use that regions stay for, and how many bytes may be reserved.
    pub settled: Option<(u64, u64)>,
    pub refused: bool,
    /// Since a rehearsal began, failed, or went through its length: bytes that went back, and most bytes in use so far
    /// or with a request that idle regions went back for.
    pub bytes: u64,
    pub most: u64,
    /// Rehearsals that failed or were wrong, and those of them that had no room.
    pub failed: u32,
    pub cramped: u32,
    /// Most bytes in use when failures began to be counted.
    pub largest: u64,
    /// The least in use at a moment to make regions, each time that so many bytes went back.
    lowest: Vec<u64>,
    pub rehearsal: Option<Rehearsal>,
}

/// The same requests in regions for a little more than the most in use.
pub struct Rehearsal {
    regions: Vec<OracleRegion>,
    most: u64,
    length: u64,
    is_over: bool,
    /// Bytes in use when it began, of the regions that they were in, and of those that are to be made.
    in_use: u64,
    held: u64,
    made: u64,
    allocations: u64,
    longest: u64,
}

pub struct OracleRegion {
    /// The creation number that the device gave.
    pub number: usize,
    /// Offset, bytes and tag of the block, in address order.
    pub chunks: Vec<(u64, u64, Option<u64>)>,
}

impl OracleRegion {
    fn new(number: usize, bytes: u64) -> OracleRegion {
        OracleRegion {
            number,
            chunks: vec![(0, bytes, None)],
        }
    }

    fn idle(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.2.is_none())
    }
}

impl Oracle {
    pub fn new(device: Device, config: PoolConfig) -> Oracle {
        Oracle {
            device,
            config,
            regions: Vec::new(),
            remaking: Remaking::default(),
            peak_allocated: 0,
            peak_reserved: 0,
            most_reserved: 0,
        }
    }

    /// Creation number of the region, and offset.
    pub fn allocate(&mut self, tag: u64, bytes: u64) -> Result<(usize, u64), FullReason> {
        let max_region = self.config.max_region / QUANTUM * QUANTUM;
        let bytes = bytes.max(1).div_ceil(QUANTUM) * QUANTUM;
        if bytes > max_region {
            return Err(FullReason::OverRegionLimit { max_region });
        }
        let live = self.statistics().allocated + bytes;
        let most = live.saturating_add(live / 20);
        let busy = self.busy();
        let smallest = if busy > most { 64 << 10 } else { 256 << 10 };
        // An idle region goes back, with all others, rather than be broken up for less than 4/5 of it.
        let keeps = self.remaking.settled.is_none() && !self.remaking.refused;
        let found = best(&self.regions, bytes);
        let kept_whole = found.is_some_and(|(held, region, _)| {
            keeps && self.regions[region].idle() && held > bytes.max(smallest) / 4 * 5
        });
        if found.is_some() && !kept_whole {
            return Ok(self.place(tag, bytes).expect("it was found"));
        }
        // Idle regions are traded in, if a region for the request is within the budget then.
        let limit = self.config.limit.unwrap_or(u64::MAX);
        let idle = self.statistics().reserved - busy;
        let mut went_back = false;
        if idle > 0 && busy + bytes <= limit {
            if live <= self.most_reserved {
                self.remaking.most = self.remaking.most.max(live);
            }
            if kept_whole {
                self.goes_back(idle);
            }
            self.return_idle();
            self.settle(live - bytes, bytes, max_region);
            went_back = true;
        }
        if let Some(found) = self.place(tag, bytes) {
            return Ok(found);
        }
        let size = self.size(bytes, live, max_region);
        let Some(mut size) = size else {
            return Err(FullReason::OverBudget);
        };
        let mut is_short = false;
        loop {
            match self.device.create(size) {
                Ok(number) => {
                    self.regions.push(OracleRegion::new(number, size));
                    break;
                }
                Err(refused) => {
                    is_short = true;
                    if size == bytes {
                        if self.statistics().reserved + bytes <= self.most_reserved {
                            self.remaking = Remaking::refused();
                        }
                        if went_back && self.remaking.settled.is_some() {
                            self.remaking.forget();
                        }
                        return Err(FullReason::Refused(refused.0));
                    }
                    size = (size / 2 / QUANTUM * QUANTUM).max(bytes);
                }
            }
        }
        if let Some((most, reserved)) = self.remaking.settled
            && self.device.in_use > reserved
        {
            self.remaking.fails(live <= most);
            self.remaking.outgrown(live);
        }
        if is_short {
            self.remaking = Remaking::refused();
        }
        self.reserves();
        Ok(self.place(tag, bytes).expect("the new region has room"))
    }

    /// Bytes of a region for a request with which `live` bytes are in use; `None` where the budget allows none.
    fn size(&self, bytes: u64, live: u64, max_region: u64) -> Option<u64> {
        let held = self.statistics().reserved;
        let headroom = self.config.limit.unwrap_or(u64::MAX).saturating_sub(held) / QUANTUM;
        // Ahead of the request while reserved stays within 21/20 of what is in use.
        let ahead = live.saturating_add(live / 20);
        let smallest = if held > ahead { 64 << 10 } else { 256 << 10 };
        let step = ahead.saturating_sub(held).max(smallest).max(held / 256);
        let most = match headroom * QUANTUM > max_region {
            true => max_region / bytes * bytes,
            false => headroom * QUANTUM,
        };
        (bytes <= max_region.min(headroom * QUANTUM))
            .then(|| ((step / bytes).max(1) * bytes).min(most))
    }

    /// Counts what goes back to keep regions whole.
    fn goes_back(&mut self, idle: u64) {
        let remaking = &mut self.remaking;
        remaking.outgrown(remaking.most);
        let begins = remaking.begins();
        remaking.bytes += idle;
        let Remaking { bytes, most, .. } = *remaking;
        if let Some(rehearsal) = &mut remaking.rehearsal {
            if bytes >= rehearsal.length {
                rehearsal.is_over = true;
                remaking.lowest.push(u64::MAX);
                (remaking.bytes, remaking.most) = (0, 0);
                if most < rehearsal.most - rehearsal.most / 16 {
                    remaking.fails(false);
                }
            }
        } else if bytes / 2 >= begins {
            remaking.lowest.push(u64::MAX);
            remaking.bytes = begins;
        }
    }

    /// Begins to rehearse, or makes the regions that were rehearsed, when it is time and little is in use.
    fn settle(&mut self, in_use: u64, needed: u64, max_region: u64) {
        let reserved = self.busy();
        let limit = self.config.limit.unwrap_or(u64::MAX);
        let remaking = &mut self.remaking;
        if remaking.settled.is_some() || remaking.refused {
            return;
        }
        let times = remaking.lowest.len();
        remaking.lowest[times - 1] = remaking.lowest[times - 1].min(in_use);
        let lowest = remaking.lowest[times.saturating_sub(2)..].iter().min();
        let rehearsal = remaking.rehearsal.as_ref();
        let most = rehearsal.map_or(remaking.most, |rehearsal| rehearsal.most);
        if in_use > lowest.expect("one") + most / 32
            || in_use + needed > most
            || reserved - in_use > most / 32
        {
            return;
        }
        let Some(rehearsal) = rehearsal else {
            self.rehearse(reserved, limit.saturating_sub(reserved), max_region);
            return;
        };
        if !rehearsal.is_over
            || remaking.most < rehearsal.most - rehearsal.most / 16
            || in_use > rehearsal.in_use
            || reserved.abs_diff(rehearsal.held) > most / 100
        {
            return;
        }
        let made = rehearsal.made;
        if made > limit.saturating_sub(reserved) {
            remaking.fails(false);
            return;
        }
        remaking.settle(most, most.max(rehearsal.held + made) + most / 100);
        for bytes in sizes(made, max_region) {
            let Ok(number) = self.device.create(bytes) else {
                self.remaking = Remaking::refused();
                return;
            };
            self.regions.push(OracleRegion::new(number, bytes));
        }
        self.reserves();
    }

    fn reserves(&mut self) {
        self.peak_reserved = self.peak_reserved.max(self.device.in_use);
        self.most_reserved = self.most_reserved.max(self.device.in_use);
    }

    /// Begins to rehearse in the regions in use and one for what is missing.
    fn rehearse(&mut self, held: u64, headroom: u64, max_region: u64) {
        let remaking = &self.remaking;
        let (length, most) = (2 * remaking.bytes, remaking.most);
        if length == 0 || remaking.bytes < remaking.begins() {
            return;
        }
        let percent = match remaking.cramped {
            0..4 => 8,
            4..7 => 10,
            7 => 15,
            8 => 25,
            9 => 50,
            _ => 100,
        };
        let missing = (most + most / 100 * percent).saturating_sub(held);
        let made = missing.min(headroom) / QUANTUM * QUANTUM;
        let mut rehearsal = Rehearsal {
            regions: Vec::new(),
            most,
            length,
            is_over: false,
            in_use: self.statistics().allocated,
            held,
            made,
            allocations: 0,
            longest: (1 << 20) << remaking.failed,
        };
        (self.remaking.bytes, self.remaking.most) = (0, 0);
        for region in &self.regions {
            let chunks = region.chunks.clone();
            rehearsal.regions.push(OracleRegion { chunks, ..*region });
        }
        for bytes in sizes(made, max_region) {
            rehearsal.regions.push(OracleRegion::new(usize::MAX, bytes));
        }
        self.remaking.rehearsal = Some(rehearsal);
    }

    /// Bytes of the regions with a block.
    fn busy(&self) -> u64 {
        let busy = self.regions.iter().filter(|region| !region.idle());
        busy.map(|region| self.device.created[region.number]).sum()
    }

    fn place(&mut self, tag: u64, bytes: u64) -> Option<(usize, u64)> {
        let found = place(&mut self.regions, tag, bytes)?;
        self.remaking.most = self.remaking.most.max(self.statistics().allocated);
        let rehearsal = self.remaking.rehearsal.as_mut();
        if let Some(cramped) = rehearsal.and_then(|rehearsal| rehearsal.cannot(tag, bytes)) {
            self.remaking.fails(cramped);
        }
        self.peak_allocated = self.peak_allocated.max(self.statistics().allocated);
        Some(found)
    }

    pub fn free(&mut self, tag: u64) {
        assert!(free(&mut self.regions, tag), "no block {tag}");
        if let Some(rehearsal) = &mut self.remaking.rehearsal {
            free(&mut rehearsal.regions, tag);
        }
    }

    /// What was to stay may be gone.
    pub fn trim(&mut self) {
        if self.return_idle() && self.remaking.settled.is_some() {
            self.remaking.forget();
        }
    }

    /// Whether there was any.
    fn return_idle(&mut self) -> bool {
        let before = self.regions.len();
        for region in &self.regions {
            if region.idle() {
                self.device.destroy(region.number);
            }
        }
        self.regions.retain(|region| !region.idle());
        self.regions.len() < before
    }

    pub fn statistics(&self) -> MemoryStatistics {
        let mut statistics = MemoryStatistics::default();
        statistics.peak_allocated = self.peak_allocated;
        statistics.peak_reserved = self.peak_reserved;
        statistics.limit = self.config.limit;
        statistics.regions = self.regions.len() as u64;
        for &(_, bytes, block) in self.regions.iter().flat_map(|region| &region.chunks) {
            statistics.reserved += bytes;
            if block.is_some() {
                statistics.allocated += bytes;
                statistics.live_blocks += 1;
            } else {
                statistics.free += bytes;
                statistics.largest_free = statistics.largest_free.max(bytes);
            }
        }
        statistics
    }
}

impl Default for Remaking {
    fn default() -> Remaking {
        Remaking {
            settled: None,
            refused: false,
            bytes: 0,
            most: 0,
            failed: 0,
            cramped: 0,
            largest: 0,
            lowest: vec![u64::MAX],
            rehearsal: None,
        }
    }
}

impl Remaking {
    /// A program that uses a sixteenth more begins to count failures anew.
    fn outgrown(&mut self, in_use: u64) {
        if in_use > self.largest + self.largest / 16 {
            *self = Remaking {
                largest: in_use,
                most: in_use,
                ..Remaking::default()
            };
        }
    }

    /// A rehearsal begins when so many bytes went back.
    fn begins(&self) -> u64 {
        self.most * (16 << self.failed)
    }

    fn settle(&mut self, most: u64, reserved: u64) {
        *self = Remaking {
            settled: Some((most, reserved)),
            failed: self.failed,
            cramped: self.cramped,
            largest: self.largest,
            ..Remaking::default()
        };
    }

    fn fails(&mut self, cramped: bool) {
        self.failed += 1;
        self.cramped += u32::from(cramped);
        self.forget();
    }

    /// All but what failed.
    fn forget(&mut self) {
        *self = Remaking {
            failed: self.failed,
            cramped: self.cramped,
            largest: self.largest,
            ..Remaking::default()
        };
    }

    fn refused() -> Remaking {
        Remaking {
            refused: true,
            ..Remaking::default()
        }
    }
}

impl Rehearsal {
    /// Whether it was for want of room, where it cannot be allocated.
    fn cannot(&mut self, tag: u64, bytes: u64) -> Option<bool> {
        self.allocations += 1;
        if self.allocations > self.longest {
            return Some(false);
        }
        place(&mut self.regions, tag, bytes)
            .is_none()
            .then_some(true)
    }
}

/// So many bytes in regions as large as may be.
fn sizes(bytes: u64, max_region: u64) -> Vec<u64> {
    let mut sizes = vec![max_region; (bytes / max_region) as usize];
    sizes.extend(Some(bytes % max_region).filter(|&rest| rest > 0));
    sizes
}

/// Best fit: the smallest chunk that is large enough, the first of its size in address order: its bytes,
/// region and place there.
fn best(regions: &[OracleRegion], bytes: u64) -> Option<(u64, usize, usize)> {
    let mut best: Option<(u64, usize, usize)> = None;
    for (region_index, region) in regions.iter().enumerate() {
        for (chunk_index, &(_, chunk_bytes, block)) in region.chunks.iter().enumerate() {
            let better = best.is_none_or(|(best_bytes, _, _)| chunk_bytes < best_bytes);
            if block.is_none() && chunk_bytes >= bytes && better {
                best = Some((chunk_bytes, region_index, chunk_index));
            }
        }
    }
    best
}

/// Takes the best chunk; tells its region's number, and the offset.
fn place(regions: &mut [OracleRegion], tag: u64, bytes: u64) -> Option<(usize, u64)> {
    let (held, region_index, chunk_index) = best(regions, bytes)?;
    let region = &mut regions[region_index];
    let offset = region.chunks[chunk_index].0;
    region.chunks[chunk_index] = (offset, bytes, Some(tag));
    if held > bytes {
        let rest = (offset + bytes, held - bytes, None);
        region.chunks.insert(chunk_index + 1, rest);
    }
    Some((region.number, offset))
}

/// False where there is no such block.
fn free(regions: &mut [OracleRegion], tag: u64) -> bool {
    for region in regions {
        let found = region.chunks.iter().position(|chunk| chunk.2 == Some(tag));
        if let Some(index) = found {
            region.chunks[index].2 = None;
            region.chunks.dedup_by(|next, previous| {
                let merge = next.2.is_none() && previous.2.is_none();
                if merge {
                    previous.1 += next.1;
                }
                merge
            });
            return true;
        }
    }
    false
}
