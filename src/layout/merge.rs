//! Dimensions that several layouts walk together, joined where all of them lie evenly.

use smallvec::SmallVec;

use super::{Layout, Strides};
use crate::shape::Dims;

/// Dimensions shared by several operands, merged where all of them lie evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Sizes, outermost first, none of them 1; empty for a single element.
    pub dims: Dims,
    /// Strides in elements, one list an operand.
    pub strides: SmallVec<[Strides; 3]>,
}

impl Merged {
    /// How far an operand's element `at`, in row-major order, is from its first.
    #[inline(always)]
    pub(crate) fn place(&self, operand: usize, at: usize) -> isize {
        place(at, &self.dims, &self.strides[operand])
    }
}

/// How far element `at` of these dimensions, in row-major order, is from their first.
#[inline(always)]
pub(crate) fn place(at: usize, dims: &[usize], strides: &[isize]) -> isize {
    let (mut rest, mut place) = (at, 0);
    for (&size, &stride) in dims.iter().zip(strides).rev() {
        place += (rest % size) as isize * stride;
        rest /= size;
    }
    place
}

/// Drops dimensions of size 1 and joins neighbours that every operand walks evenly, so that most
/// problems become one dimension. All layouts have the same shape and at least one element.
pub(crate) fn merge(layouts: &[&Layout]) -> Merged {
    let mut dims: Dims = SmallVec::new();
    let mut strides: SmallVec<[Strides; 3]> = layouts.iter().map(|_| Strides::new()).collect();
    let shape = layouts
        .first()
        .map_or(&[][..], |layout| layout.shape().dims());
    for (axis, &size) in shape.iter().enumerate() {
        if size == 1 {
            continue;
        }
        let joins = !dims.is_empty()
            && layouts.iter().zip(&strides).all(|(layout, merged)| {
                merged.last().is_some_and(|&outer| {
                    layout.strides()[axis].checked_mul(size as isize) == Some(outer)
                })
            });
        if joins {
            if let Some(last) = dims.last_mut() {
                *last *= size;
            }
            for (layout, merged) in layouts.iter().zip(&mut strides) {
                if let Some(last) = merged.last_mut() {
                    *last = layout.strides()[axis];
                }
            }
        } else {
            dims.push(size);
            for (layout, merged) in layouts.iter().zip(&mut strides) {
                merged.push(layout.strides()[axis]);
            }
        }
    }
    Merged { dims, strides }
}
