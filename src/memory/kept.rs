//! Regions that went back lately, for whoever needs one as large.

use std::collections::VecDeque;

/// Share of what regions hold that those may have which went back lately.
const SHARE: u64 = 8;
/// What they may have in any case, what they have at most, and how many they are at most.
pub(crate) const LEAST: u64 = 8 << 20;
const MOST: u64 = 64 << 20;
const COUNT: usize = 64;
/// Ops for which one is kept, on the CPU allocations.
const OPS: u64 = 1024;

/// Regions that went back lately. To keep idle regions whole the pool gives them back and makes others
/// (`Growth::Proportional`), in a program that repeats itself the same ones each time; a driver takes some 0.3 ms to make
/// one, however small, and the host writes each page of one with zeros. What is kept is the pool's no longer and in none of its
/// figures.
#[derive(Debug)]
pub(crate) struct Kept<R> {
    /// With their bytes and the ops before they came, the oldest first.
    regions: VecDeque<(R, u64, u64)>,
    bytes: u64,
    /// Ops so far.
    ops: u64,
}

impl<R> Default for Kept<R> {
    fn default() -> Self {
        Self {
            regions: VecDeque::new(),
            bytes: 0,
            ops: 0,
        }
    }
}

impl<R> Kept<R> {
    /// One of exactly so many bytes, the latest.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<R> {
        let is_as_large = |region: &(R, u64, u64)| region.1 == bytes;
        let at = self.regions.iter().rposition(is_as_large)?;
        let (region, ..) = self.regions.remove(at)?;
        self.bytes -= bytes;
        Some(region)
    }

    /// Keeps one, where regions in use hold so many bytes: what is not kept, of it and of those before it.
    pub(crate) fn push(&mut self, region: R, bytes: u64, held: u64) -> Vec<R> {
        let most = (held / SHARE).clamp(LEAST, MOST);
        let mut too_many = Vec::new();
        if bytes > most {
            too_many.push(region);
        } else {
            self.bytes += bytes;
            self.regions.push_back((region, bytes, self.ops));
        }
        while self.bytes > most || self.regions.len() > COUNT {
            too_many.extend(self.pop());
        }
        too_many
    }

    /// The oldest.
    pub(crate) fn pop(&mut self) -> Option<R> {
        let (region, bytes, _) = self.regions.pop_front()?;
        self.bytes -= bytes;
        Some(region)
    }

    /// One more op.
    pub(crate) fn age(&mut self) {
        self.ops += 1;
    }

    /// One that nobody has needed for long.
    pub(crate) fn pop_old(&mut self) -> Option<R> {
        let (.., came) = self.regions.front()?;
        (self.ops - came > OPS).then(|| self.pop())?
    }
}

#[cfg(test)]
mod tests {
    use super::{COUNT, Kept, LEAST, MOST, OPS};

    /// Keeps so many of a size; how many there are then, and their bytes.
    fn keeps(kept: &mut Kept<u64>, bytes: u64, count: usize, held: u64) -> (usize, u64) {
        for _ in 0..count {
            kept.push(bytes, bytes, held);
        }
        let sum: u64 = kept.regions.iter().map(|region| region.1).sum();
        assert_eq!(kept.bytes, sum);
        (kept.regions.len(), kept.bytes)
    }

    #[test]
    fn few_are_kept() {
        let mut kept = Kept::default();
        assert_eq!(keeps(&mut kept, 256, 3, 0), (3, 3 * 256));
        assert_eq!(kept.take(256), Some(256));
        assert_eq!(kept.take(512), None);
        assert_eq!(keeps(&mut kept, 256, 100, 0).0, COUNT);
        assert!(keeps(&mut kept, LEAST / 2, 6, 0).1 <= LEAST);
        // One that is too large by itself takes no other's place.
        let before = keeps(&mut kept, 256, 0, 0);
        assert_eq!(kept.push(7, LEAST + 1, 0), [7]);
        assert_eq!(keeps(&mut kept, 256, 0, 0), before);
        // One that is as large as may be takes all others'.
        assert!(!kept.push(LEAST, LEAST, 0).contains(&LEAST));
        assert_eq!(kept.bytes, LEAST);
        let (_, bytes) = keeps(&mut kept, MOST / 8, 10, 64 * MOST);
        assert!(bytes <= MOST && bytes > MOST / 2, "{bytes}");
        while kept.pop().is_some() {}
        assert_eq!(kept.bytes, 0);
    }

    /// The one that is in the nearest caches, if any is.
    #[test]
    fn the_latest_is_taken() {
        let mut kept = Kept::default();
        for (region, bytes) in [('a', 256), ('b', 256), ('c', 512)] {
            kept.push(region, bytes, 0);
        }
        assert_eq!((kept.take(256), kept.take(256)), (Some('b'), Some('a')));
    }

    #[test]
    fn old_ones_go() {
        let mut kept = Kept::default();
        kept.push('a', 256, 0);
        for _ in 0..OPS {
            kept.age();
        }
        kept.push('b', 256, 0);
        assert_eq!(kept.pop_old(), None);
        kept.age();
        assert_eq!((kept.pop_old(), kept.pop_old()), (Some('a'), None));
    }
}
