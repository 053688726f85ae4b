//! What stands at a place of each sorted line, on the CPU, which need not sort for it: two elements of a sample, before and
//! behind the place, say which of a line's elements are looked at (Floyd and Rivest, "Expected time bounds for selection", 1975).

use super::check_lines;
use super::cpu::{LONG, lines_of};
use super::keys::{self, Keyed};
use crate::capabilities::Capabilities;
use crate::cpu::{host_vec, parallel, vectorised};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::Launches;
use crate::road::{HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::{Dims, Shape};
use crate::sync::Mutex;

/// What is told of a line: the element at the place, the next one (or the last), and the last.
pub(super) const TOLD: usize = 3;
/// Elements of a line from which the CPU has one sooner than all in order.
pub(super) const LEAST: usize = 48;
/// Elements of a line from which a sample pays, how many of them are one of it, and those it has at most.
const SAMPLED: usize = 2048;
const OF_SAMPLE: usize = 16;
const MOST_SAMPLES: usize = 4096;
/// Standard deviations of a place in the sample between it and the two elements: one line of hundreds is gone through twice.
const DEVIATIONS: f64 = 3.0;
/// Elements that are compared together.
const TOGETHER: usize = 64;
/// Of which the upper bits make a number of a sample's element that has no period.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Of floats along the last axis, which becomes [`TOLD`].
pub(super) struct Selection {
    pub op: &'static str,
    pub place: usize,
}

impl Op for Selection {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [x] = inputs else {
            return Err(Error::invalid(self.op, "takes one operand"));
        };
        let shape = x.layout.shape();
        check_lines(self.op, shape)?;
        let mut dims: Dims = shape.dims().into();
        if let Some(last) = dims.last_mut() {
            *last = TOLD;
        }
        Ok((Shape::from(&dims[..]), keys::widened(x.dtype)))
    }

    fn plan(&self, _problem: &Problem<'_>, _capabilities: &Capabilities) -> Result<Launches> {
        Err(Error::invalid(self.op, "kernels sort lines"))
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [x] = inputs else { return Ok(()) };
        match x.dtype {
            DType::F32 => self.typed::<f32, u32>(x, output, |key| key as u32),
            DType::F64 => self.typed::<f64, u64>(x, output, |key| key),
            DType::F16 => self.typed::<half::f16, u32>(x, output, |key| key as u32),
            DType::BF16 => self.typed::<half::bf16, u32>(x, output, |key| key as u32),
            other => Err(Error::invalid(
                self.op,
                format!("is of floats, not of {other}"),
            )),
        }
    }
}

/// Where an element of a sample is, one of so many.
fn sampled(at: usize, step: usize) -> usize {
    let within = (at as u64).wrapping_mul(MIX) >> 32;
    at * step + within as usize % step
}

/// A key in as many bits as it needs. Neither 0 nor the largest is one of a float.
trait Key: Ord + Copy + Default + Send + Sync + Into<u64> {
    const MAX: Self;
}

impl Key for u32 {
    const MAX: Self = u32::MAX;
}

impl Key for u64 {
    const MAX: Self = u64::MAX;
}

/// Of elements that are gone through: how many are before the first end, up to it and up to the second one, and the largest;
/// those between both are put aside.
#[derive(Clone, Copy, Default)]
struct Count<K> {
    before: usize,
    to_first: usize,
    to_second: usize,
    largest: K,
}

/// A key of each element.
struct Keys<F>(F);

impl Selection {
    fn typed<T: Keyed, K: Key>(
        &self,
        x: &HostInput<'_>,
        output: &mut HostOutput<'_>,
        narrow: impl Fn(u64) -> K + Sync,
    ) -> Result<()> {
        let layout = x.layout;
        let (size, count) = (
            layout.shape().last().copied().unwrap_or(0),
            layout.elements(),
        );
        if count == 0 {
            return Ok(());
        }
        let mut copied = Vec::new();
        let x = lines_of::<T>(self.op, x, &mut copied)?;
        let lines = count / size;
        let out = &mut output.elements::<T::Wide>()[..lines * TOLD];
        let (place, width) = (self.place, parallel::width());
        let keys = Keys(|x: T| narrow(x.key(false)));
        let write = |out: &mut [T::Wide], told: [K; TOLD]| {
            for (out, key) in out.iter_mut().zip(told) {
                *out = T::of(key.into());
            }
        };
        let is_shared = size >= LONG && lines < 2 * width && width > 1;
        if is_shared {
            let mut rooms = Vec::new();
            for _ in 0..width {
                rooms.push(host_vec(self.op, size.div_ceil(width) + TOGETHER)?);
            }
            let mut all = host_vec(self.op, size)?;
            for (line, out) in x.chunks(size).zip(out.chunks_mut(TOLD)) {
                write(out, keys.told(line, place, &mut rooms, &mut all));
            }
            return Ok(());
        }
        let together = (LONG / 8 / size).max(1);
        let threads = width.min(lines.div_ceil(together));
        let mut rooms = Vec::new();
        for _ in 0..threads {
            rooms.push(host_vec(self.op, size + TOGETHER)?);
        }
        let rooms = Mutex::new(rooms);
        let pieces = x
            .chunks(size * together)
            .zip(out.chunks_mut(TOLD * together));
        parallel::share(count > parallel::PARALLEL / 4, pieces, |(lines, out)| {
            let room = rooms.lock().pop();
            let mut room = [room.unwrap_or_default()];
            for (line, out) in lines.chunks(size).zip(out.chunks_mut(TOLD)) {
                write(out, keys.told(line, place, &mut room, &mut Vec::new()));
            }
            rooms.lock().extend(room);
        });
        Ok(())
    }
}

impl<F> Keys<F> {
    /// What is told of a line, whose parts go to threads that have a room each; of several `all` is made of them.
    fn told<T: Keyed, K: Key>(
        &self,
        line: &[T],
        place: usize,
        rooms: &mut [Vec<K>],
        all: &mut Vec<K>,
    ) -> [K; TOLD]
    where
        F: Fn(T) -> K + Sync,
    {
        let next = (place + 1).min(line.len() - 1);
        let everything = [K::default(), K::MAX];
        let sampled = (line.len() >= SAMPLED).then(|| self.ends(line, place));
        for ends in sampled.into_iter().chain([everything]) {
            let count = self.count(line, ends, rooms);
            let items = match rooms {
                [room] => &mut *room,
                _ => {
                    all.clear();
                    for room in &*rooms {
                        all.extend_from_slice(room);
                    }
                    &mut *all
                }
            };
            if let Some([at, next]) = count.told([place, next], ends, items) {
                return [at, next, count.largest];
            }
        }
        // Of everything some are told.
        [K::MAX; TOLD]
    }

    /// Two elements between which the one at the place most likely is.
    fn ends<T: Keyed, K: Key>(&self, line: &[T], place: usize) -> [K; 2]
    where
        F: Fn(T) -> K,
    {
        let count = (line.len() / OF_SAMPLE).min(MOST_SAMPLES);
        let step = line.len() / count;
        let mut sample = [K::default(); MOST_SAMPLES];
        let sample = &mut sample[..count];
        for (at, key) in sample.iter_mut().enumerate() {
            *key = (self.0)(line[sampled(at, step)]);
        }
        sample.sort_unstable();
        let part = place as f64 / line.len() as f64;
        let spread = DEVIATIONS * (count as f64 * part * (1.0 - part)).sqrt() + 1.0;
        let (middle, spread) = ((part * count as f64) as usize, spread as usize);
        let first = middle.checked_sub(spread).map(|at| sample[at]);
        let second = sample.get(middle + spread).copied();
        [first.unwrap_or_default(), second.unwrap_or(K::MAX)]
    }

    fn count<T: Keyed, K: Key>(&self, line: &[T], ends: [K; 2], rooms: &mut [Vec<K>]) -> Count<K>
    where
        F: Fn(T) -> K + Sync,
    {
        let parts = rooms.len();
        let total = Mutex::new(Count::<K>::default());
        let pieces = line.chunks(line.len().div_ceil(parts)).zip(rooms);
        parallel::share(parts > 1, pieces, |(xs, room)| {
            let mut count = Count::default();
            vectorised(|| count = self.count_part(xs, ends, room));
            let mut total = total.lock();
            total.before += count.before;
            total.to_first += count.to_first;
            total.to_second += count.to_second;
            total.largest = total.largest.max(count.largest);
        });
        total.into_inner()
    }

    #[inline(always)]
    fn count_part<T: Keyed, K: Key>(
        &self,
        xs: &[T],
        [first, second]: [K; 2],
        room: &mut Vec<K>,
    ) -> Count<K>
    where
        F: Fn(T) -> K,
    {
        room.clear();
        let mut all = Count::<K>::default();
        let mut held = 0;
        for xs in xs.chunks(TOGETHER) {
            let [mut before, mut to_first, mut to_second] = [0u32; 3];
            for &x in xs {
                let key = (self.0)(x);
                before += u32::from(key < first);
                to_first += u32::from(key <= first);
                to_second += u32::from(key <= second);
                all.largest = all.largest.max(key);
            }
            all.before += before as usize;
            all.to_first += to_first as usize;
            all.to_second += to_second as usize;
            // Each goes behind those before it, and stays if it is between: which of them are, no processor foresees.
            room.resize(held + TOGETHER, K::default());
            for &x in xs {
                let key = (self.0)(x);
                room[held] = key;
                held += usize::from((first < key) & (key < second));
            }
        }
        room.truncate(held);
        all
    }
}

impl<K: Key> Count<K> {
    /// The elements at two places of the line in order, the same or one after the other, if they are among what was counted.
    fn told(
        &self,
        [place, next]: [usize; 2],
        [first, second]: [K; 2],
        items: &mut [K],
    ) -> Option<[K; 2]> {
        let inside = self.to_first..self.to_first + items.len();
        let end = |place: usize| match place {
            _ if (self.before..inside.start).contains(&place) => Some(first),
            _ if (inside.end..self.to_second).contains(&place) => Some(second),
            _ => None,
        };
        if !inside.contains(&place) {
            let at = end(place)?;
            let next = match inside.contains(&next) {
                true => items.iter().min().copied(),
                false => end(next),
            };
            return Some([at, next?]);
        }
        let (_, &mut at, behind) = items.select_nth_unstable(place - inside.start);
        let next = match inside.contains(&next) {
            // The last element of a line is its own next.
            true => behind.iter().min().copied().or(Some(at)),
            false => end(next),
        };
        Some([at, next?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_say_nothing_are_seen() {
        let step = 100_000 / MOST_SAMPLES;
        let mut line: Vec<f32> = (0..100_000).map(|at| (at % 977) as f32).collect();
        for at in 0..MOST_SAMPLES {
            line[sampled(at, step)] = 5000.0 + (at % 2) as f32;
        }
        let keys = Keys(|x: f32| x.key(false) as u32);
        let mut sorted: Vec<u32> = line.iter().map(|&x| (keys.0)(x)).collect();
        sorted.sort_unstable();
        for place in [0, 1, 50_000, 99_998, 99_999] {
            let next = (place + 1).min(line.len() - 1);
            let want = [place, next, line.len() - 1].map(|at| sorted[at]);
            for parts in [1, 3] {
                let mut rooms = vec![Vec::new(); parts];
                let ends = keys.ends(&line, place);
                let count = keys.count(&line, ends, &mut rooms);
                if place == 50_000 {
                    assert!(count.before > place, "the sample has no such element");
                }
                assert_eq!(keys.told(&line, place, &mut rooms, &mut Vec::new()), want);
            }
        }
    }
}
