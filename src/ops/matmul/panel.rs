//! Panels: a product is cut along batches, m, n and k until the operands of each part fit a storage
//! binding, its loops the cap of llvmpipe, its time a submission. Arithmetic on sizes and strides.

use smallvec::SmallVec;

use super::product::{A, B};
use crate::launch::{WINDOW_ALIGNMENT, Window};
use crate::shape::Dims;

/// Operands in the order of [`Axis::strides`]: the kernel's A and B, the result C, and the bias and
/// residual that are added to it. Those that are not there have no strides and no bytes.
pub(super) const OPERANDS: usize = 5;

/// One loop of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub size: usize,
    /// Elements from one turn to the next in each operand; 0 where an operand stands still.
    pub strides: [isize; OPERANDS],
}

/// A product as nested loops: batches, outermost first, then m, n and k.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    pub axes: SmallVec<[Axis; 6]>,
    /// Index of the first element of each operand in its storage.
    pub offsets: [usize; OPERANDS],
}

/// What every panel has to keep.
pub(super) struct Limits<'a> {
    /// Elements that each operand may span, from the first to the last.
    pub spans: [usize; OPERANDS],
    /// Sizes along m, n and k are multiples of these, or of 4, where they can be.
    pub tile: [usize; 3],
    /// Steps of k.
    pub max_k: usize,
    /// What panels of some size take of the time of a submission: more than 1 is too long. No
    /// panel is cut below a tile for it.
    pub time: &'a dyn Fn(&[usize]) -> f64,
}

/// A part of a nest: where it starts along each axis, and how far it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Panel {
    pub starts: Dims,
    pub sizes: Dims,
}

impl Nest {
    /// All of it.
    pub(super) fn sizes(&self) -> Dims {
        self.axes.iter().map(|axis| axis.size).collect()
    }

    /// The sizes of the largest panels that keep the limits; those at the ends may be smaller.
    pub(super) fn cut(&self, limits: &Limits<'_>) -> Dims {
        let rank = self.axes.len();
        let [m, n, k] = [rank - 3, rank - 2, rank - 1];
        let tile = |axis: usize| match axis.checked_sub(m) {
            Some(side) => limits.tile[side],
            None => 1,
        };
        let mut sizes = self.sizes();
        sizes[k] = whole(sizes[k].min(limits.max_k), sizes[k], tile(k));
        for operand in 0..OPERANDS {
            self.cut_to_span(&mut sizes, operand, limits.spans[operand], tile);
        }
        loop {
            let over = (limits.time)(&sizes);
            let tiles = |side: usize| sizes[side].div_ceil(tile(side));
            let longer = if tiles(m) >= tiles(n) { m } else { n };
            let batch = (0..m).find(|&axis| sizes[axis] > 1);
            let axis = batch.unwrap_or(longer);
            // Also where the time is no number.
            if !(over > 1.0 && tiles(axis) > 1) {
                break;
            }
            // Both sides in turn: panels stay close to squares.
            let factor = if batch.is_some() { over } else { over.min(2.0) };
            let wanted = (sizes[axis] as f64 / factor) as usize;
            let wanted = wanted.clamp(tile(axis), sizes[axis] - 1);
            sizes[axis] = whole(wanted, sizes[axis], tile(axis));
        }
        // As many panels, but alike.
        for (axis, size) in sizes.iter_mut().enumerate() {
            let full = self.axes[axis].size;
            let unit = [tile(axis), 4, 1]
                .into_iter()
                .find(|&unit| size.is_multiple_of(unit))
                .unwrap_or(1);
            let even = full.div_ceil(full.div_ceil(*size));
            *size = even.next_multiple_of(unit).min(*size);
        }
        sizes
    }

    /// Shortens the axes that an operand steps along by most until it spans no more than `most`.
    fn cut_to_span(
        &self,
        sizes: &mut Dims,
        operand: usize,
        most: usize,
        tile: impl Fn(usize) -> usize,
    ) {
        let stride = |axis: usize| self.axes[axis].strides[operand].unsigned_abs();
        loop {
            let reach = |axis: usize| (sizes[axis] - 1).saturating_mul(stride(axis));
            let span = (0..sizes.len()).fold(1usize, |sum, axis| sum.saturating_add(reach(axis)));
            let Some(axis) = (0..sizes.len()).max_by_key(|&axis| reach(axis)) else {
                return;
            };
            if span <= most || reach(axis) == 0 {
                return;
            }
            // What the shorter steps leave, if they leave anything: else they are cut next.
            let rest = (0..sizes.len())
                .filter(|&other| other != axis)
                .fold(1usize, |sum, other| sum.saturating_add(reach(other)));
            let room = most.saturating_sub(rest) / stride(axis) + 1;
            sizes[axis] = whole(room, sizes[axis], tile(axis));
        }
    }

    /// How many panels of these sizes there are; `None` when they cannot be counted.
    pub(super) fn count(&self, sizes: &[usize]) -> Option<usize> {
        let parts = self.axes.iter().zip(sizes);
        parts
            .map(|(axis, &size)| axis.size.div_ceil(size))
            .try_fold(1usize, usize::checked_mul)
    }

    /// The panels of these sizes: those of one part of C follow each other in the order of k.
    pub(super) fn panels(&self, sizes: &Dims) -> impl Iterator<Item = Panel> {
        let count = self.count(sizes).unwrap_or(0);
        (0..count).map(move |number| {
            let mut rest = number;
            let mut panel = Panel {
                starts: sizes.clone(),
                sizes: sizes.clone(),
            };
            for axis in (0..sizes.len()).rev() {
                let (full, size) = (self.axes[axis].size, sizes[axis]);
                let parts = full.div_ceil(size);
                let start = rest % parts * size;
                rest /= parts;
                panel.starts[axis] = start;
                panel.sizes[axis] = size.min(full - start);
            }
            panel
        })
    }

    /// Storage index of an operand's first element in a panel.
    pub(super) fn first(&self, panel: &Panel, operand: usize) -> usize {
        let steps = self.axes.iter().zip(&panel.starts);
        let at = steps.fold(self.offsets[operand] as isize, |at, (axis, &start)| {
            at + start as isize * axis.strides[operand]
        });
        at as usize
    }

    /// Storage indices of an operand in a panel: the lowest, and one past the highest.
    pub(super) fn reach(&self, panel: &Panel, operand: usize) -> [usize; 2] {
        let first = self.first(panel, operand) as isize;
        let steps = self.axes.iter().zip(&panel.sizes);
        let (low, high) = steps.fold((first, first), |(low, high), (axis, &size)| {
            let reach = (size - 1) as isize * axis.strides[operand];
            (low + reach.min(0), high + reach.max(0))
        });
        [low as usize, high as usize + 1]
    }
}

/// `wanted` steps of an axis that has `size`: all of them, or whole tiles, or fours.
fn whole(wanted: usize, size: usize, tile: usize) -> usize {
    if wanted >= size {
        return size;
    }
    match [tile, 4].into_iter().find(|&unit| wanted >= unit) {
        Some(unit) => wanted / unit * unit,
        None => wanted.max(1),
    }
}

/// The storages of a product, and how much of one can be bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storages {
    /// Bytes of each operand's.
    pub bytes: [u64; OPERANDS],
    /// Operands with the same number lie in one.
    pub of: [usize; OPERANDS],
    /// Bytes of an element.
    pub element: u64,
    /// Bytes of one binding.
    pub limit: u64,
}

/// What a panel binds of each operand; `None` is all of its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    pub of: [Option<Window>; OPERANDS],
    /// Operands with the same number are one binding.
    pub joined: [usize; OPERANDS],
}

impl Storages {
    /// For a kernel that binds neither A nor B: nothing is bound together with them.
    pub(super) fn without_factors(mut self) -> Self {
        for operand in [A, B] {
            self.bytes[operand] = 0;
            self.of[operand] = usize::MAX - operand;
        }
        self
    }

    /// Elements that each operand may span so that its windows can be bound.
    pub(super) fn spans(&self) -> [usize; OPERANDS] {
        std::array::from_fn(|operand| {
            if self.is_whole(operand) {
                return usize::MAX;
            }
            // Windows that overlap become one: together they have to fit.
            let parts = self.of.iter().filter(|&&of| of == self.of[operand]).count() as u64;
            let limit = self.limit / parts / WINDOW_ALIGNMENT * WINDOW_ALIGNMENT;
            // Aligning takes less than one unit at each end.
            let bytes = limit.saturating_sub(2 * WINDOW_ALIGNMENT);
            ((bytes / self.element) as usize).max(1)
        })
    }

    /// The first operand in the same storage.
    fn first_in(&self, operand: usize) -> usize {
        let same = |&of: &usize| of == self.of[operand];
        self.of.iter().position(same).unwrap_or(operand)
    }

    fn is_whole(&self, operand: usize) -> bool {
        self.bytes[operand] <= self.limit
    }

    /// What a panel binds.
    pub(super) fn windows(&self, nest: &Nest, panel: &Panel) -> Windows {
        let mut of: [Option<Window>; OPERANDS] = std::array::from_fn(|operand| {
            (!self.is_whole(operand)).then(|| {
                let [low, high] = nest
                    .reach(panel, operand)
                    .map(|at| at as u64 * self.element);
                Window::around(low..high)
            })
        });
        let mut joined: [usize; OPERANDS] =
            std::array::from_fn(|operand| match self.is_whole(operand) {
                true => self.first_in(operand),
                false => operand,
            });
        // Windows that overlap become one, which may reach another.
        let mut settled = false;
        while !settled {
            settled = true;
            for (one, other) in
                (0..OPERANDS).flat_map(|one| (0..one).map(move |other| (one, other)))
            {
                let (Some(a), Some(b)) = (of[one], of[other]) else {
                    continue;
                };
                let share = self.of[one] == self.of[other];
                if !share || joined[one] == joined[other] || !a.overlaps(&b) {
                    continue;
                }
                let both = Window::around(a.offset.min(b.offset)..a.end().max(b.end()));
                let [from, into] = [joined[one], joined[other]];
                for operand in 0..OPERANDS {
                    if joined[operand] == from || joined[operand] == into {
                        (of[operand], joined[operand]) = (Some(both), into);
                    }
                }
                settled = false;
            }
        }
        Windows { of, joined }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A nest from the sizes of its batches, m, n, k and the strides of A and B; C is contiguous.
    fn nest_of(sizes: &[usize], a: &[isize], b: &[isize], offsets: [usize; 2]) -> Nest {
        let rank = sizes.len();
        let mut c = vec![0; rank];
        let mut step = 1;
        for axis in (0..rank - 1).rev() {
            c[axis] = step;
            step *= sizes[axis] as isize;
        }
        Nest {
            axes: (0..rank)
                .map(|axis| Axis {
                    size: sizes[axis],
                    strides: [a[axis], b[axis], c[axis], 0, 0],
                })
                .collect(),
            offsets: [offsets[0], offsets[1], 0, 0, 0],
        }
    }

    /// Row-major `[m, k] x [k, n]`.
    fn plain(m: usize, n: usize, k: usize) -> Nest {
        nest_of(&[m, n, k], &[k as isize, 0, 1], &[0, 1, n as isize], [0, 0])
    }

    fn storages_of(nest: &Nest, limit: u64) -> Storages {
        let whole = Panel {
            starts: nest.axes.iter().map(|_| 0).collect(),
            sizes: nest.sizes(),
        };
        Storages {
            bytes: std::array::from_fn(|operand| 4 * nest.reach(&whole, operand)[1] as u64),
            of: [0, 1, 2, 3, 4],
            element: 4,
            limit,
        }
    }

    fn cut_panels(nest: &Nest, storages: &Storages, max_k: usize) -> Vec<Panel> {
        let limits = Limits {
            spans: storages.spans(),
            tile: [48, 32, 128],
            max_k,
            time: &|_| 0.0,
        };
        nest.panels(&nest.cut(&limits)).collect()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_fits_stays_whole() {
        // Exactly the limit, and no stride matters below it.
        let nest = plain(4096, 16, 8192);
        let storages = storages_of(&nest, 128 * MIB);
        assert_eq!(storages.bytes[0], 128 * MIB);
        let panels = cut_panels(&nest, &storages, 240_000);
        assert_eq!(panels.len(), 1);
        assert_eq!(storages.windows(&nest, &panels[0]).of, [None; OPERANDS]);
    }

    #[test]
    fn rows_above_a_binding_are_few_alike_panels_of_whole_tiles() {
        let nest = plain(4800, 16, 8192);
        let panels = cut_panels(&nest, &storages_of(&nest, 128 * MIB), 240_000);
        let sizes: Vec<_> = panels.iter().map(|panel| panel.sizes[0]).collect();
        assert_eq!(sizes, [2400, 2400]);
        let nest = plain(100, 40_000_000, 2);
        let cut = cut_panels(&nest, &storages_of(&nest, 128 * MIB), 240_000);
        // C, and A B in 16 GB: a row of C is already above the limit.
        assert!(cut.iter().all(|panel| panel.sizes[0] == 1));
    }

    #[test]
    fn one_long_row_and_the_cap_of_loops_split_k() {
        // A row of 1 GiB.
        let nest = plain(1, 1, 1 << 28);
        let cut = cut_panels(&nest, &storages_of(&nest, 128 * MIB), usize::MAX);
        assert_eq!(cut.len(), 9);
        // Columns of A 80 MB apart: k alone spans more than the limit.
        let (m, k) = (20_000_000, 12);
        let nest = nest_of(&[m, 3, k], &[1, 0, m as isize], &[0, 1, 3], [0, 0]);
        let storages = storages_of(&nest, 128 * MIB);
        let cut = cut_panels(&nest, &storages, 240_000);
        assert!(cut.iter().all(|panel| panel.sizes[2] == 1));
        assert_eq!(cut.len(), 12 * 2); // C takes two windows.
        let nest = plain(5, 5, 300_000);
        let cut = cut_panels(&nest, &storages_of(&nest, 128 * MIB), 240_000);
        let sizes: Vec<_> = cut.iter().map(|panel| panel.sizes[2]).collect();
        assert_eq!(sizes, [150_016, 149_984]);
    }

    #[test]
    fn long_work_is_cut_into_squares() {
        let nest = plain(4096, 4096, 4096);
        let time = |sizes: &[usize]| sizes.iter().product::<usize>() as f64 / 4e9;
        let limits = Limits {
            spans: [usize::MAX; OPERANDS],
            tile: [48, 32, 128],
            max_k: usize::MAX,
            time: &time,
        };
        let sizes = nest.cut(&limits);
        assert!(time(&sizes) <= 1.0);
        let (m, n) = (sizes[0] as f64, sizes[1] as f64);
        assert!((0.4..2.5).contains(&(m / n)), "{sizes:?}");
        assert!(nest.count(&sizes).unwrap() <= 30, "{sizes:?}");
    }

    /// An operand with axes in any order of memory, gaps, repeated axes, now and then walked
    /// backwards: strides and offset. `axes` says which of the nest's axes it has.
    fn strides(sizes: &[usize], axes: &[bool], order: &[u32], odd: u32) -> (Vec<isize>, usize) {
        let mut sorted: Vec<usize> = (0..sizes.len()).filter(|&axis| axes[axis]).collect();
        sorted.sort_by_key(|&axis| order[axis]);
        let (mut strides, mut offset) = (vec![0isize; sizes.len()], (odd & 3) as usize);
        let mut step = 1;
        for (nth, &axis) in sorted.iter().enumerate() {
            match odd >> (2 + 3 * nth) & 7 {
                0 => continue,
                1 => {
                    strides[axis] = -step;
                    offset += (sizes[axis] - 1) * step as usize;
                }
                _ => strides[axis] = step,
            }
            step *= (sizes[axis] + (odd as usize >> nth & 1)) as isize;
        }
        (strides, offset)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn panels_cover_each_product_once_inside_their_windows(
            batch in proptest::collection::vec(1usize..6, 0..3),
            m in 1usize..40, n in 1usize..40, k in 1usize..60,
            order in proptest::collection::vec(any::<u32>(), 5),
            odd in any::<[u32; 2]>(),
            limit in 1u64..24,
            shared: bool,
            tile in prop_oneof![Just([1, 1, 1]), Just([4, 8, 4]), Just([16, 16, 8])],
            max_k in prop_oneof![Just(usize::MAX), 5usize..50],
            most in prop_oneof![Just(f64::INFINITY), 100.0..50_000.0],
        ) {
            let sizes: Vec<usize> = batch.iter().copied().chain([m, n, k]).collect();
            let rank = sizes.len();
            let has = |outer: usize| -> Vec<bool> {
                (0..rank).map(|axis| axis != outer).collect()
            };
            let (a, a_offset) = strides(&sizes, &has(rank - 2), &order, odd[0]);
            let (b, b_offset) = strides(&sizes, &has(rank - 3), &order, odd[1]);
            let nest = nest_of(&sizes, &a, &b, [a_offset, b_offset]);
            let mut storages = Storages { limit: limit * 256, ..storages_of(&nest, 0) };
            if shared {
                let both = storages.bytes[0].max(storages.bytes[1]);
                let [_, _, c, bias, residual] = storages.bytes;
                let bytes = [both, both, c, bias, residual];
                storages = Storages { of: [0, 0, 2, 3, 4], bytes, ..storages };
            }
            let time = |sizes: &[usize]| sizes.iter().product::<usize>() as f64 / most;
            let limits = Limits { spans: storages.spans(), tile, max_k, time: &time };
            let cut = nest.cut(&limits);
            prop_assert_eq!(nest.panels(&cut).count(), nest.count(&cut).unwrap());

            let entries: usize = sizes[..rank - 1].iter().product();
            let mut reached = vec![0; entries];
            for panel in nest.panels(&cut) {
                prop_assert!(panel.sizes[rank - 1] <= max_k);
                let units = [1, 1, tile[0], tile[1]];
                let splits = (0..rank - 1).any(|axis| panel.sizes[axis] > units[5 - rank + axis]);
                prop_assert!(time(&panel.sizes) <= 1.0 || !splits);

                // Each entry of C meets the parts of k in order.
                let k_start = panel.starts[rank - 1];
                for nth in 0..panel.sizes[..rank - 1].iter().product() {
                    let (mut rest, mut at, mut step): (usize, usize, usize) = (nth, 0, 1);
                    for axis in (0..rank - 1).rev() {
                        at += (panel.starts[axis] + rest % panel.sizes[axis]) * step;
                        rest /= panel.sizes[axis];
                        step *= sizes[axis];
                    }
                    prop_assert_eq!(reached[at], k_start);
                    reached[at] += panel.sizes[rank - 1];
                }

                let windows = storages.windows(&nest, &panel);
                for operand in 0..OPERANDS {
                    let room = storages.bytes[operand].next_multiple_of(256);
                    let window = windows.of[operand].unwrap_or(Window { offset: 0, bytes: room });
                    prop_assert_eq!((window.offset % 256, window.bytes % 256), (0, 0));
                    prop_assert!(window.bytes <= storages.limit.max(256), "{:?}", window);
                    prop_assert!(window.end() <= room);
                    // Its corners, so all of its elements.
                    for corner in 0..1usize << rank {
                        let at = (0..rank).fold(nest.offsets[operand] as isize, |at, axis| {
                            let last = (panel.sizes[axis] - 1) * (corner >> axis & 1);
                            let index = panel.starts[axis] + last;
                            at + index as isize * nest.axes[axis].strides[operand]
                        });
                        prop_assert!(at >= 0);
                        let byte = 4 * at as u64;
                        prop_assert!((window.offset..window.end()).contains(&byte));
                    }
                }
                if let ([Some(a), Some(b), ..], true) = (windows.of, shared) {
                    let is_joined = windows.joined[0] == windows.joined[1];
                    let right = if is_joined { a == b } else { !a.overlaps(&b) };
                    prop_assert!(right);
                }
            }
            prop_assert!(reached.iter().all(|&reached| reached == k));
        }
    }
}
