//! Copies of elements from one view into another.

use super::parallel::{Walk, through};
use super::transpose::Transposed;
use crate::layout::Layout;

/// Copies all elements of the one view to their places in the other one, which has the same shape and no element twice.
pub(crate) fn copy<T: bytemuck::Pod + Send + Sync>(
    (from, elements): (&Layout, &[T]),
    (to, out): (&Layout, &mut [T]),
) {
    if let Some(transposed) = Transposed::of(from, to) {
        return transposed.copy(elements, out);
    }
    let walk = Walk::new(&[from, to]);
    let [stride, out_stride] = [0, 1].map(|operand| walk.inner_strides()[operand]);
    through(to, out, |places, base, out| {
        walk.runs(places.start, places.len(), &mut |_, starts, count| {
            let (mut at, mut to) = (starts[0], starts[1] - base as isize);
            if out_stride == 1 {
                return gather(elements, at, stride, &mut out[to as usize..][..count]);
            }
            for _ in 0..count {
                out[to as usize] = elements[at as usize];
                at += stride;
                to += out_stride;
            }
        });
    });
}

/// Elements that are `stride` apart, from the one at `start` on, as many as `out` holds.
pub(crate) fn gather<T: Copy>(elements: &[T], start: isize, stride: isize, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    match stride {
        1 => out.copy_from_slice(&elements[start as usize..][..out.len()]),
        0 => out.fill(elements[start as usize]),
        _ => {
            let mut at = start;
            for out in out {
                *out = elements[at as usize];
                at += stride;
            }
        }
    }
}
