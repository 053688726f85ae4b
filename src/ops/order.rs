//! The order of axes that operands share in memory, where it is not that of rows: what is computed of them is
//! computed and stored in that order, so that nothing is turned. PyTorch keeps memory formats in the same way.

use smallvec::SmallVec;

use crate::error::Result;
use crate::layout::Layout;
use crate::shape::Dims;
use crate::tensor::Tensor;

/// Axes, the one with the longest steps first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AxisOrder(Dims);

impl AxisOrder {
    /// That of layouts of one shape, but for those that repeat elements, which lie in any order. `None` where they
    /// lie by rows, or differ.
    pub(super) fn of<'a>(layouts: impl Iterator<Item = &'a Layout>) -> Option<Self> {
        let mut whole = layouts.filter(|layout| layout.is_distinct());
        let first = whole.next()?;
        if falls(longer(first).map(|(_, step)| step)) {
            return None;
        }
        let mut axes: Dims = (0..first.rank()).collect();
        let step = |layout: &Layout, axis: usize| match layout.shape()[axis] {
            1 => usize::MAX,
            _ => layout.strides()[axis].unsigned_abs(),
        };
        axes.sort_by_key(|&axis| std::cmp::Reverse(step(first, axis)));
        whole
            .all(|other| falls(axes.iter().map(|&axis| step(other, axis))))
            .then_some(Self(axes))
    }

    /// A tensor with its axes in this order.
    pub(super) fn view(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.permute(&self.0)
    }

    /// Where these axes are in it.
    pub(super) fn places(&self, axes: &[usize]) -> Dims {
        let place = |axis: &usize| self.0.iter().position(|of| of == axis);
        axes.iter().filter_map(place).collect()
    }

    /// A tensor of this order with its axes where they were.
    pub(super) fn restored(&self, tensor: &Tensor) -> Result<Tensor> {
        let mut back: Dims = SmallVec::from_elem(0, self.0.len());
        for (at, &axis) in self.0.iter().enumerate() {
            back[axis] = at;
        }
        tensor.permute(&back)
    }
}

/// How a tensor that is written is gone through, and what is read with it: in the order of its memory, and forwards.
pub(super) struct Course {
    order: Option<AxisOrder>,
    /// Axes that go backwards, before they are put in order.
    back: Dims,
}

impl Course {
    pub(super) fn of(written: &Layout) -> Self {
        let sizes = written.shape().iter().zip(written.strides());
        let back = sizes
            .enumerate()
            .filter(|(_, (size, stride))| **size > 1 && **stride < 0);
        Self {
            order: AxisOrder::of(std::iter::once(written)),
            back: back.map(|(axis, _)| axis).collect(),
        }
    }

    /// A tensor of the written one's shape, so.
    pub(super) fn view(&self, tensor: &Tensor) -> Result<Tensor> {
        let flipped;
        let tensor = match self.back.is_empty() {
            true => tensor,
            false => {
                flipped = tensor.flip(&self.back)?;
                &flipped
            }
        };
        match &self.order {
            Some(order) => order.view(tensor),
            None => Ok(tensor.clone()),
        }
    }
}

/// Axes of more than one element, with their steps.
fn longer(layout: &Layout) -> impl Iterator<Item = (usize, usize)> + '_ {
    let sizes = layout.shape().iter().zip(layout.strides());
    let longer = sizes.enumerate().filter(|(_, (size, _))| **size != 1);
    longer.map(|(axis, (_, stride))| (axis, stride.unsigned_abs()))
}

fn falls(mut steps: impl Iterator<Item = usize>) -> bool {
    let mut last = usize::MAX;
    steps.all(|step| step <= std::mem::replace(&mut last, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(layouts: &[&Layout]) -> Option<Vec<usize>> {
        AxisOrder::of(layouts.iter().copied()).map(|order| order.0.to_vec())
    }

    #[test]
    fn orders() -> Result<()> {
        let rows = Layout::contiguous([3, 4, 5]);
        let turned = Layout::contiguous([5, 3, 4]).permute(&[1, 2, 0])?;
        assert_eq!(of(&[&rows]), None);
        assert_eq!(of(&[&rows, &turned]), None);
        assert_eq!(of(&[&turned, &rows]), None);
        assert_eq!(of(&[&turned]), Some(vec![2, 0, 1]));
        // A part of it, backwards, lies so too; what repeats elements does not count.
        let part = Layout::contiguous([9, 3, 4]).slice(&[(1..6).into()])?;
        let back = part.flip(&[0, 2])?.permute(&[1, 2, 0])?;
        let bias = Layout::contiguous([5]).broadcast_to(rows.shape())?;
        assert_eq!(of(&[&bias, &turned, &back]), Some(vec![2, 0, 1]));
        assert_eq!(of(&[&bias]), None);
        assert_eq!(of(&[]), None);
        // Axes of one element lie anywhere.
        let thin = Layout::contiguous([4, 1, 3]);
        assert_eq!(of(&[&thin.permute(&[1, 0, 2])?]), None);
        assert_eq!(of(&[&thin.permute(&[2, 1, 0])?]), Some(vec![1, 2, 0]));
        Ok(())
    }
}
