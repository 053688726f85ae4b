//! Loops over elements, on all cores when that pays.

use std::sync::OnceLock;

use crate::layout::{Layout, Merged, merge};
use crate::sync::Mutex;

/// Elements below which starting threads costs more than it gives (about 20 microseconds of work).
pub(crate) const PARALLEL: usize = 32 << 10;
/// Elements that one thread takes at a time.
const CHUNK: usize = 16 << 10;

/// Threads for parallel work, or `None` where it must run on the caller's thread.
///
/// Work runs while blocks are locked. So the threads are our own: none of them ever waits for such
/// a lock, as a task of the program in rayon's global pool might. And a caller that is itself a
/// rayon worker works alone: while waiting it would take up other tasks, which may want the lock.
pub(crate) fn threads() -> Option<&'static rayon::ThreadPool> {
    static THREADS: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    if rayon::current_thread_index().is_some() {
        return None;
    }
    THREADS
        .get_or_init(|| {
            rayon::ThreadPoolBuilder::new()
                .thread_name(|index| format!("orlop cpu {index}"))
                .build()
                .ok()
                .filter(|threads| threads.current_num_threads() > 1)
        })
        .as_ref()
}

/// Runs `work(start, piece)` over pieces of `out`; `start` is the index of the piece's first
/// element.
pub(crate) fn pieces<T: Send>(out: &mut [T], work: impl Fn(usize, &mut [T]) + Sync) {
    in_chunks(out, 1, &work);
}

/// [`pieces`] of elements of `size` bytes, as bytes.
pub(crate) fn elements(out: &mut [u8], size: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    in_chunks(out, size, &work);
}

/// Elements of `size` entries of `out` each.
fn in_chunks<T: Send>(out: &mut [T], size: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let is_much = out.len() > PARALLEL * size;
    let chunk = if is_much { CHUNK * size } else { out.len() };
    let pieces = out.chunks_mut(chunk.max(1)).enumerate();
    share(is_much, pieces, |(at, piece)| work(at * CHUNK, piece));
}

/// Hands each item to `work`: on the caller's thread, and where there `is_much` to do on the others as
/// soon as they come. Work that is done before they do costs no more than it does alone.
pub(crate) fn share<I: Iterator<Item: Send> + Send>(
    is_much: bool,
    items: I,
    work: impl Fn(I::Item) + Sync,
) {
    let items = Mutex::new(items);
    let next = || items.lock().next();
    let all = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    match is_much {
        true => everywhere(&all),
        false => all(),
    }
}

/// Runs `work` on the caller's thread, and on the others as soon as they come. Not generic, so that what
/// is rayon's is compiled once.
fn everywhere(work: &(dyn Fn() + Sync)) {
    let Some(threads) = threads() else {
        return work();
    };
    threads.in_place_scope(|scope| {
        for _ in 1..threads.current_num_threads() {
            scope.spawn(|_| work());
        }
        work();
    });
}

/// Threads that [`share`] may use, the caller's included.
pub(crate) fn width() -> usize {
    threads().map_or(1, rayon::ThreadPool::current_num_threads)
}

/// Walks the elements of several layouts of one shape together, in row-major order, as runs of
/// the innermost merged dimension.
pub(crate) struct Walk {
    merged: Merged,
    offsets: Vec<isize>,
    elements: usize,
}

impl Walk {
    /// All layouts have the same shape.
    pub(crate) fn new(layouts: &[&Layout]) -> Self {
        let elements = layouts.first().map_or(0, |layout| layout.elements());
        Self {
            merged: merge(layouts),
            offsets: layouts.iter().map(|l| l.offset() as isize).collect(),
            elements,
        }
    }

    /// Strides of the innermost dimension, one a layout.
    pub(crate) fn inner_strides(&self) -> Vec<isize> {
        self.merged
            .strides
            .iter()
            .map(|strides| strides.last().copied().unwrap_or(0))
            .collect()
    }

    /// Calls `run(first, starts, count)` for runs that together cover elements
    /// `from..from + count`: `first` counts from `from`, `starts` are storage indices of the run's
    /// first element in each layout.
    pub(crate) fn runs(
        &self,
        from: usize,
        count: usize,
        run: &mut dyn FnMut(usize, &[isize], usize),
    ) {
        let inner = self.merged.dims.last().copied().unwrap_or(1);
        let end = from.saturating_add(count).min(self.elements);
        let mut starts = self.offsets.clone();
        let mut at = from;
        while at < end {
            for (operand, start) in starts.iter_mut().enumerate() {
                *start = self.offsets[operand] + self.merged.place(operand, at);
            }
            let length = (inner - at % inner).min(end - at);
            run(at - from, &starts, length);
            at += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_rayon_work_alone() {
        rayon::scope(|scope| scope.spawn(|_| assert!(threads().is_none())));
    }

    #[test]
    fn shared_items_are_worked_on_once() {
        let mut seen = vec![0u32; 10_000];
        for (round, is_much) in [(1, true), (2, false)] {
            share(is_much, seen.chunks_mut(7).enumerate(), |(at, chunk)| {
                chunk.iter_mut().for_each(|seen| *seen += at as u32 + 1);
            });
            let mut seen = seen.iter().enumerate();
            assert!(seen.all(|(at, &seen)| seen == round * (at as u32 / 7 + 1)));
        }
    }

    #[test]
    fn walks_visit_each_element_once_in_order() {
        let base = Layout::contiguous([3, 4, 5]);
        let turned = base.permute(&[2, 0, 1]).unwrap();
        let walk = Walk::new(&[&turned]);
        let stride = walk.inner_strides()[0];
        for (from, count) in [(0, 60), (7, 20), (59, 1), (0, 0), (58, 9)] {
            let mut seen = Vec::new();
            walk.runs(from, count, &mut |first, starts, length| {
                assert_eq!(first, seen.len());
                seen.extend((0..length as isize).map(|i| starts[0] + i * stride));
            });
            let expected: Vec<isize> = (from..(from + count).min(60))
                .map(|at| {
                    let (k, rest) = (at / 12, at % 12);
                    ((rest / 4) * 20 + (rest % 4) * 5 + k) as isize
                })
                .collect();
            assert_eq!(seen, expected);
        }
    }
}
