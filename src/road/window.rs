//! Index spaces in boxes, so that each operand of a box lies within one storage binding: pure
//! functions of sizes and strides.

use smallvec::SmallVec;

use crate::capabilities::{Capabilities, LONGEST_LAUNCH};
use crate::launch::{Bound, Window};
use crate::layout::Strides;
use crate::shape::Dims;

/// Cuts of dimensions along which an operand's elements are neighbours are multiples of it where they can be:
/// they keep vectors and windows aligned.
const CUT: usize = 64;

/// How an operand lies along an index space: element `i` is at `offset + sum of i[d] strides[d]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked<'a> {
    /// Operands with the same number lie in one storage.
    pub storage: usize,
    pub element_bytes: usize,
    /// In elements, as the strides.
    pub offset: usize,
    pub strides: &'a [isize],
}

/// Elements of a launch, at most: kernels count in 32 bits, and up to a whole number of what they take at a time.
pub(crate) const MOST_ELEMENTS: usize = 1 << 31;

/// What bounds a box.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of one window.
    pub binding_bytes: u64,
    /// Of the index space.
    pub elements: usize,
}

impl Limits {
    /// The limits of launches that take so many operations and bytes an element: of bindings, of
    /// time, and of the kernels' 32-bit indices.
    pub(crate) fn new(capabilities: &Capabilities, flops: f64, bytes: f64) -> Self {
        let seconds = capabilities.seconds(flops, bytes);
        let most = (LONGEST_LAUNCH / seconds).min(MOST_ELEMENTS as f64) as usize;
        Self {
            binding_bytes: capabilities.indexed_bytes(),
            elements: most.max(1),
        }
    }
}

/// One box of an index space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The box's first index and its sizes.
    pub start: Dims,
    pub dims: Dims,
    /// What is bound: windows of one storage are disjoint.
    pub bindings: SmallVec<[Bound; 4]>,
    /// Of each operand its binding, and its first element's place in it, in elements.
    pub slots: SmallVec<[usize; 4]>,
    pub offsets: SmallVec<[usize; 4]>,
}

impl Piece {
    /// Elements of the box.
    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The sizes above 1, and the operands' strides along them; at least one dimension.
    pub(crate) fn without_single(&self, operands: &[Walked<'_>]) -> (Dims, SmallVec<[Strides; 3]>) {
        let mut axes: Dims = (0..self.dims.len())
            .filter(|&axis| self.dims[axis] > 1)
            .collect();
        if axes.is_empty() {
            axes.extend(self.dims.len().checked_sub(1));
        }
        let strides =
            |operand: &Walked<'_>| axes.iter().map(|&axis| operand.strides[axis]).collect();
        let dims = axes.iter().map(|&axis| self.dims[axis]).collect();
        (dims, operands.iter().map(strides).collect())
    }
}

/// Splits the index space `dims` into boxes within the limits, first elements first. All sizes are
/// above 0.
pub(crate) fn pieces(dims: &[usize], operands: &[Walked<'_>], limits: Limits) -> Vec<Piece> {
    let mut done = Vec::new();
    let mut left = vec![Space {
        start: SmallVec::from_elem(0, dims.len()),
        dims: dims.into(),
    }];
    while let Some(space) = left.pop() {
        match space.cut(operands, limits) {
            Some((axis, size)) => {
                let (first, rest) = space.split(axis, size);
                left.extend([rest, first]);
            }
            None => done.push(space.piece(operands)),
        }
    }
    done
}

/// A box.
struct Space {
    start: Dims,
    dims: Dims,
}

impl Space {
    /// Where the box has to be cut: an axis, and the size of the first part. `None` when it is
    /// within the limits, or a single element.
    fn cut(&self, operands: &[Walked<'_>], limits: Limits) -> Option<(usize, usize)> {
        let elements = self.dims.iter().fold(1, |n: usize, &d| n.saturating_mul(d));
        if elements > limits.elements {
            let axis = self.dims.iter().position(|&size| size > 1)?;
            let others = elements / self.dims[axis];
            return Some((axis, whole_cuts(axis, limits.elements / others, operands)));
        }
        let windows = self.windows(operands, &self.dims);
        let (worst, _) = windows
            .iter()
            .enumerate()
            .filter(|(_, window)| window.bytes > limits.binding_bytes)
            .max_by_key(|(_, window)| window.bytes)?;
        // The longest way that an operand of that window goes is what makes it large.
        let joined = |other: &usize| {
            operands[*other].storage == operands[worst].storage && windows[*other] == windows[worst]
        };
        let (_, axis) = (0..operands.len())
            .filter(joined)
            .flat_map(|operand| (0..self.dims.len()).map(move |axis| (operand, axis)))
            .filter(|&(_, axis)| self.dims[axis] > 1)
            .map(|(operand, axis)| (self.reach(&operands[operand], axis, &self.dims), axis))
            .max_by_key(|&(reach, axis)| (reach, std::cmp::Reverse(axis)))?;
        // The largest first part that fits; else that fits as far as the worst storage goes; else
        // the half.
        let size = self
            .largest_part(axis, operands, limits, |_| true)
            .or_else(|| {
                let storage = operands[worst].storage;
                self.largest_part(axis, operands, limits, |operand| operand.storage == storage)
            })
            .unwrap_or(self.dims[axis] / 2);
        Some((axis, whole_cuts(axis, size, operands)))
    }

    /// The largest size along an axis, below the box's, with which the windows of operands that
    /// `count` are within the limit.
    fn largest_part(
        &self,
        axis: usize,
        operands: &[Walked<'_>],
        limits: Limits,
        counts: impl Fn(&Walked<'_>) -> bool,
    ) -> Option<usize> {
        let fits = |size: usize| {
            let mut dims = self.dims.clone();
            dims[axis] = size;
            let windows = self.windows(operands, &dims);
            let mut counted = operands
                .iter()
                .zip(&windows)
                .filter(|(operand, _)| counts(operand));
            counted.all(|(_, window)| window.bytes <= limits.binding_bytes)
        };
        let (mut size, mut too_large) = (0, self.dims[axis]);
        while too_large - size > 1 {
            let middle = size + (too_large - size) / 2;
            if fits(middle) {
                size = middle;
            } else {
                too_large = middle;
            }
        }
        (size > 0).then_some(size)
    }

    fn split(self, axis: usize, size: usize) -> (Space, Space) {
        let (mut first, mut rest) = (self.dims.clone(), self.dims);
        first[axis] = size;
        rest[axis] -= size;
        let mut middle = self.start.clone();
        middle[axis] += size;
        let first = Space {
            start: self.start,
            dims: first,
        };
        let rest = Space {
            start: middle,
            dims: rest,
        };
        (first, rest)
    }

    /// Bytes that an operand goes along an axis.
    fn reach(&self, operand: &Walked<'_>, axis: usize, dims: &[usize]) -> u64 {
        let steps = (dims[axis] - 1) * operand.strides[axis].unsigned_abs();
        (steps * operand.element_bytes) as u64
    }

    /// The first element of the box in an operand's storage.
    fn first(&self, operand: &Walked<'_>) -> usize {
        let steps = self.start.iter().zip(operand.strides);
        let first = steps.fold(operand.offset as isize, |at, (&index, &stride)| {
            at + index as isize * stride
        });
        first as usize
    }

    /// The window of each operand for a box of `dims` at this start. Those of one storage that
    /// overlap are joined, so equal ones are one binding.
    fn windows(&self, operands: &[Walked<'_>], dims: &[usize]) -> SmallVec<[Window; 4]> {
        let mut windows: SmallVec<[Window; 4]> = operands
            .iter()
            .map(|operand| {
                let from = (self.first(operand) * operand.element_bytes) as u64;
                let (mut back, mut on) = (0, operand.element_bytes as u64);
                for (axis, &stride) in operand.strides.iter().enumerate() {
                    let reach = self.reach(operand, axis, dims);
                    *(if stride < 0 { &mut back } else { &mut on }) += reach;
                }
                Window::around(from - back..from + on)
            })
            .collect();
        // A join may overlap with another window in turn.
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for second in 1..windows.len() {
                for first in 0..second {
                    let (a, b) = (windows[first], windows[second]);
                    let share = operands[first].storage == operands[second].storage;
                    if share && a.overlaps(&b) && a != b {
                        let offset = a.offset.min(b.offset);
                        let joined = Window {
                            offset,
                            bytes: a.end().max(b.end()) - offset,
                        };
                        (windows[first], windows[second]) = (joined, joined);
                        changed = true;
                    }
                }
            }
        }
        windows
    }

    fn piece(self, operands: &[Walked<'_>]) -> Piece {
        let windows = self.windows(operands, &self.dims);
        let mut bindings: SmallVec<[Bound; 4]> = SmallVec::new();
        let (mut slots, mut offsets) = (SmallVec::new(), SmallVec::new());
        for (at, (operand, &window)) in operands.iter().zip(&windows).enumerate() {
            let slot = bindings.iter().position(|bound| {
                bound.window == Some(window) && operands[bound.operand].storage == operand.storage
            });
            slots.push(slot.unwrap_or(bindings.len()));
            if slot.is_none() {
                bindings.push(Bound {
                    operand: at,
                    window: Some(window),
                });
            }
            offsets.push(self.first(operand) - window.offset as usize / operand.element_bytes);
        }
        Piece {
            start: self.start,
            dims: self.dims,
            bindings,
            slots,
            offsets,
        }
    }
}

/// `size`, at least 1, as a multiple of [`CUT`] when it is that large and neighbours lie along the axis.
fn whole_cuts(axis: usize, size: usize, operands: &[Walked<'_>]) -> usize {
    let mut strides = operands.iter().map(|operand| operand.strides[axis]);
    match size > CUT && strides.any(|stride| stride == 1) {
        true => size - size % CUT,
        false => size.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::DeviceKind;
    use crate::launch::WINDOW_ALIGNMENT;

    /// A generator without dependencies: xorshift.
    struct Rng(u64);

    impl Rng {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }
    }

    fn limits(binding_bytes: u64, elements: usize) -> Limits {
        Limits {
            binding_bytes,
            elements,
        }
    }

    fn walked(storage: usize, offset: usize, strides: &[isize]) -> Walked<'_> {
        Walked {
            storage,
            element_bytes: 4,
            offset,
            strides,
        }
    }

    /// The indices of a box, row-major.
    fn indices(dims: &[usize]) -> impl Iterator<Item = Dims> + '_ {
        (0..dims.iter().product::<usize>()).map(move |mut rest| {
            let mut index: Dims = dims.into();
            for (at, &size) in index.iter_mut().zip(dims).rev() {
                *at = rest % size;
                rest /= size;
            }
            index
        })
    }

    fn address(offset: usize, index: &[usize], strides: &[isize]) -> usize {
        let steps = index.iter().zip(strides);
        let at = steps.fold(offset as isize, |at, (&i, &stride)| {
            at + i as isize * stride
        });
        at as usize
    }

    /// Each index once; each window within the limit, aligned and inside of its storage; no byte
    /// bound twice; every element where it is without boxes.
    fn check(dims: &[usize], operands: &[Walked<'_>], limits: Limits) -> Vec<Piece> {
        let made = pieces(dims, operands, limits);
        let ends: Vec<u64> = operands
            .iter()
            .map(|operand| {
                let sizes = dims.iter().zip(operand.strides);
                let last =
                    |(&size, &stride): (&usize, &isize)| if stride < 0 { 0 } else { size - 1 };
                let last: Dims = sizes.map(last).collect();
                let end = address(operand.offset, &last, operand.strides) + 1;
                ((end * operand.element_bytes) as u64).next_multiple_of(WINDOW_ALIGNMENT)
            })
            .collect();
        let mut seen = std::collections::HashSet::new();
        for piece in &made {
            assert!(piece.dims.iter().product::<usize>() <= limits.elements);
            for (at, bound) in piece.bindings.iter().enumerate() {
                let window = bound.window.unwrap();
                assert!(
                    window.bytes <= limits.binding_bytes,
                    "{window:?} {limits:?}"
                );
                assert!(window.offset.is_multiple_of(WINDOW_ALIGNMENT));
                assert!(
                    window.end() <= ends[bound.operand].max(window_ends(operands, &ends, bound))
                );
                for other in &piece.bindings[..at] {
                    let before = other.window.unwrap();
                    assert!(
                        operands[other.operand].storage != operands[bound.operand].storage
                            || !before.overlaps(&window)
                    );
                }
            }
            for index in indices(&piece.dims) {
                let whole: Dims = index.iter().zip(&piece.start).map(|(a, b)| a + b).collect();
                for (at, operand) in operands.iter().enumerate() {
                    let bound = piece.bindings[piece.slots[at]];
                    assert_eq!(operands[bound.operand].storage, operand.storage);
                    let window = bound.window.unwrap();
                    let inside = address(piece.offsets[at], &index, operand.strides);
                    assert!(((inside + 1) * operand.element_bytes) as u64 <= window.bytes);
                    assert_eq!(
                        window.offset as usize + inside * operand.element_bytes,
                        address(operand.offset, &whole, operand.strides) * operand.element_bytes
                    );
                }
                assert!(seen.insert(whole), "{index:?} of {piece:?} twice");
            }
        }
        assert_eq!(seen.len(), dims.iter().product::<usize>());
        made
    }

    /// How far strides go back from the first element.
    fn back(dims: &[usize], strides: &[isize]) -> usize {
        let sizes = dims.iter().zip(strides);
        sizes
            .map(|(&size, &stride)| (size - 1) * stride.min(0).unsigned_abs())
            .sum()
    }

    /// The end of the storage that a binding is of: what any of its operands reaches.
    fn window_ends(operands: &[Walked<'_>], ends: &[u64], bound: &Bound) -> u64 {
        let of = |at: &usize| operands[*at].storage == operands[bound.operand].storage;
        (0..ends.len())
            .filter(of)
            .map(|at| ends[at])
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn boxes_cover_random_spaces() {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
        for _ in 0..3000 {
            let rank = 1 + rng.below(6);
            let most = [4000, 60, 16, 8, 6, 4][rank - 1];
            let dims: Vec<usize> = (0..rank).map(|_| 1 + rng.below(most)).collect();
            let all: Vec<Vec<isize>> = (0..1 + rng.below(3))
                .map(|_| {
                    // A permuted, padded, perhaps repeated view.
                    let mut order: Vec<usize> = (0..rank).collect();
                    for at in (1..rank).rev() {
                        order.swap(at, rng.below(at + 1));
                    }
                    let mut strides = vec![0; rank];
                    let mut step = 1 + rng.below(2) * rng.below(3);
                    for axis in order {
                        strides[axis] = match rng.below(6) {
                            0 => 0,
                            1 => -(step as isize),
                            _ => step as isize,
                        };
                        step *= dims[axis] + rng.below(2);
                    }
                    strides
                })
                .collect();
            let operands: Vec<Walked<'_>> = all
                .iter()
                .map(|strides| Walked {
                    storage: rng.below(3),
                    element_bytes: [2, 4, 8, 16][rng.below(4)],
                    offset: rng.below(3) * rng.below(700) + back(&dims, strides),
                    strides,
                })
                .collect();
            let elements = if rng.below(2) == 0 {
                usize::MAX
            } else {
                1 + rng.below(2000)
            };
            check(
                &dims,
                &operands,
                limits(256 * (2 + rng.below(20) as u64), elements),
            );
        }
    }

    #[test]
    fn contiguous_tensors_are_cut_at_the_limit() {
        let made = check(
            &[10_000],
            &[walked(0, 0, &[1]), walked(1, 0, &[1])],
            limits(4096, usize::MAX),
        );
        assert_eq!(made.len(), 10);
        assert!(made.iter().take(9).all(|piece| piece.dims[0] == 1024));
        assert_eq!(made[3].offsets[..], [0, 0]);
        assert_eq!(
            made[3].bindings[1].window,
            Some(Window {
                offset: 3 * 4096,
                bytes: 4096
            })
        );
    }

    #[test]
    fn transposed_tensors_are_cut_both_ways() {
        let made = check(
            &[200, 200],
            &[walked(0, 0, &[1, 200]), walked(1, 0, &[200, 1])],
            limits(16 << 10, usize::MAX),
        );
        // 160,000 bytes are ten windows each way.
        assert!(made.len() <= 121, "{}", made.len());
        assert!(
            made.iter()
                .all(|piece| piece.dims[0] < 200 && piece.dims[1] < 200)
        );
    }

    #[test]
    fn one_storage_is_bound_once_where_its_windows_meet() {
        // A square matrix beside its transposed self.
        let made = check(
            &[100, 100],
            &[
                walked(0, 0, &[100, 1]),
                walked(0, 0, &[1, 100]),
                walked(1, 0, &[100, 1]),
            ],
            limits(8 << 10, usize::MAX),
        );
        assert!(made.iter().any(|piece| piece.slots[..] == [0, 0, 1]));
        assert!(made.iter().any(|piece| piece.slots[..] == [0, 1, 2]));
        // A tensor with itself, moved by one.
        let made = check(
            &[9999],
            &[walked(0, 0, &[1]), walked(0, 1, &[1]), walked(1, 0, &[1])],
            limits(4096, usize::MAX),
        );
        assert!(made.len() <= 12, "{}", made.len());
    }

    #[test]
    fn time_cuts_what_bindings_allow() {
        let mut capabilities = Capabilities::cpu();
        capabilities.kind = DeviceKind::Software;
        let limits = Limits::new(&capabilities, 1.0, 12.0);
        let dims = [100_000_000];
        let strides = [1];
        let made = pieces(&dims, &[walked(0, 0, &strides)], limits);
        assert!(made.len() >= 3);
        for piece in &made {
            let elements = piece.dims[0] as f64;
            assert!(capabilities.seconds(elements, elements * 12.0) <= LONGEST_LAUNCH);
        }
        assert_eq!(
            made.iter().map(|piece| piece.dims[0]).sum::<usize>(),
            dims[0]
        );
    }

    /// Indices beyond 32 bits: the boxes' own are within.
    #[test]
    fn huge_broadcasts_count_in_32_bits() {
        let capabilities = Capabilities::cpu();
        let limits = Limits::new(&capabilities, 1.0, 8.0);
        // 5 GiB of f32 rows from one row, into halves.
        let dims = [40_960, 32_768];
        let operands = [
            walked(0, 7, &[0, 1]),
            Walked {
                element_bytes: 2,
                ..walked(1, 0, &[32_768, 1])
            },
        ];
        let made = pieces(&dims, &operands, limits);
        let mut rows = 0;
        for piece in &made {
            assert_eq!(piece.dims[1], 32_768);
            assert_eq!(piece.start[0], rows);
            rows += piece.dims[0];
            assert!(piece.dims.iter().product::<usize>() <= MOST_ELEMENTS);
            assert!(
                piece
                    .bindings
                    .iter()
                    .all(|b| b.window.unwrap().bytes <= u64::from(u32::MAX))
            );
            assert_eq!(piece.offsets[0], 7);
        }
        assert_eq!(rows, 40_960);
    }

    #[test]
    fn single_elements_end_the_cutting() {
        // Below any real limit: the launch is refused later, but planning ends.
        let made = pieces(&[5], &[walked(0, 0, &[1000])], limits(0, 1));
        assert_eq!(made.len(), 5);
    }
}
