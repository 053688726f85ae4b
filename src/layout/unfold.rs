//! Windows of a dimension side by side, and whether an element is seen at several places then.

use smallvec::SmallVec;

use super::{Axis, Layout, signed, stepped};
use crate::error::{Error, Result};
use crate::shape::Dims;

impl Layout {
    /// Every window of `size` neighbours along an axis, one each `step` elements: the axis counts windows then, and
    /// a new last axis goes along each of them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such axis, when `size` or `step` is 0, or when no window fits.
    pub fn unfold(&self, axis: impl Into<Axis>, size: usize, step: usize) -> Result<Self> {
        let axis = axis.into().of("unfold", &self.shape)?;
        let length = self.shape[axis];
        let why = if size == 0 {
            Some("a window needs an element at least".to_owned())
        } else if step == 0 {
            Some("a step of 0 goes nowhere".to_owned())
        } else if size > length {
            let shape = &self.shape;
            Some(format!(
                "windows of {size} do not fit axis {axis} of size {length} in shape {shape}: pad it"
            ))
        } else {
            None
        };
        if let Some(why) = why {
            return Err(Error::invalid("unfold", why));
        }
        let count = (length - size) / step + 1;
        let mut dims: Dims = SmallVec::from_slice(&self.shape);
        let mut strides = self.strides.clone();
        let along = strides[axis];
        dims[axis] = count;
        strides[axis] = stepped(count, along.saturating_mul(signed(step)));
        dims.push(size);
        strides.push(stepped(size, along));
        Ok(Self {
            shape: dims.into_iter().collect(),
            strides,
            offset: self.offset,
        })
    }

    /// True when no element is at two places, as far as strides tell: each steps over all that shorter ones reach.
    /// Of what slices and turns make they tell it; of some windows that are dilated, and whose elements mesh, they do not (0 2 4
    /// and 3 5 7). The question in general is NP-hard, and NumPy's `shares_memory` bounds how long it looks.
    pub(crate) fn is_distinct(&self) -> bool {
        if self.is_contiguous() {
            return true;
        }
        let sizes = self.shape.iter().zip(&self.strides);
        let mut steps: SmallVec<[(usize, usize); 6]> = sizes
            .filter(|(size, _)| **size > 1)
            .map(|(&size, stride)| (stride.unsigned_abs(), size))
            .rev()
            .collect();
        if !steps.is_sorted() {
            steps.sort_unstable();
        }
        let mut reach = 0usize;
        steps.into_iter().all(|(step, size)| {
            let is_over = step > reach;
            reach = reach.saturating_add(step.saturating_mul(size - 1));
            is_over
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::SliceRange;
    use crate::shape::Shape;

    fn places(layout: &Layout) -> Vec<usize> {
        layout.indices().collect()
    }

    #[test]
    fn windows_of_a_line() -> Result<()> {
        let line = Layout::contiguous([7]);
        let of = |size, step| Ok::<_, Error>(places(&line.unfold(0, size, step)?));
        assert_eq!(of(3, 2)?, [0, 1, 2, 2, 3, 4, 4, 5, 6]);
        assert_eq!(of(2, 3)?, [0, 1, 3, 4]);
        assert_eq!(of(7, 1)?, places(&line));
        assert_eq!(of(1, usize::MAX)?, [0]);
        let back = line.flip(&[0])?.unfold(-1, 2, 4)?;
        assert_eq!(places(&back), [6, 5, 2, 1]);
        // One window, and windows of one element.
        assert_eq!(line.flip(&[0])?.unfold(0, 7, 9)?.strides(), [9, -1]);
        assert_eq!(line.flip(&[0])?.unfold(0, 1, 2)?.strides(), [-2, 1]);
        Ok(())
    }

    #[test]
    fn windows_of_images() -> Result<()> {
        let image = Layout::contiguous([2, 5, 4]);
        let windows = image.unfold(1, 3, 2)?.unfold(2, 2, 1)?;
        assert_eq!(windows.shape(), &Shape::from([2, 2, 3, 3, 2]));
        let mut want = Vec::new();
        for (image, row, column) in indices_of([2, 2, 3]) {
            for (below, beside, _) in indices_of([3, 2, 1]) {
                want.push(image * 20 + (row * 2 + below) * 4 + column + beside);
            }
        }
        assert_eq!(places(&windows), want);
        assert_eq!(image.slice(&[(0..0).into()])?.unfold(1, 3, 1)?.end(), 0);
        Ok(())
    }

    /// All indices of a shape in row-major order.
    fn indices_of([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..a * b * c).map(move |at| (at / (b * c), at / c % b, at % c))
    }

    #[test]
    fn bad_windows_are_errors() {
        let line = Layout::contiguous([7, 0]);
        for (axis, size, step) in [(0, 8, 1), (0, 0, 1), (0, 1, 0), (1, 1, 1), (2, 1, 1)] {
            assert!(line.unfold(axis, size, step).is_err());
        }
    }

    /// Beside all places compared.
    #[test]
    fn what_is_seen_twice_is_known() -> Result<()> {
        let base = Layout::contiguous([6, 5, 4]);
        let every = |step| SliceRange::from(..).step(step);
        let mut layouts = vec![
            base.clone(),
            base.permute(&[2, 0, 1])?,
            base.flip(&[0, 2])?.transpose(1, 2)?,
            base.slice(&[every(2), every(-3), every(1)])?,
            Layout::contiguous([1, 4]).broadcast_to(&[3, 4].into())?,
            Layout::contiguous([1, 0]).broadcast_to(&[3, 0].into())?,
            Layout::contiguous([1, 1]).broadcast_to(&[1, 1].into())?,
            base.unfold(0, 3, 1)?
                .slice(&[every(1), every(1), every(1), every(2)])?,
        ];
        for (axis, size, step) in [
            (0, 3, 3),
            (0, 3, 2),
            (1, 2, 5),
            (1, 2, 1),
            (2, 4, 1),
            (0, 1, 2),
        ] {
            layouts.push(base.unfold(axis, size, step)?);
            layouts.push(
                base.flip(&[axis])?
                    .unfold(axis, size, step)?
                    .transpose(0, 3)?,
            );
        }
        for layout in layouts {
            let mut all = places(&layout);
            all.sort_unstable();
            let is_distinct = all.windows(2).all(|pair| pair[0] != pair[1]);
            assert_eq!(layout.is_distinct(), is_distinct, "{layout:?}");
        }
        // Elements that mesh.
        let dilated = Layout::contiguous([8]).unfold(0, 5, 3)?;
        let dilated = dilated.slice(&[every(1), every(2)])?;
        assert_eq!(places(&dilated), [0, 2, 4, 3, 5, 7]);
        assert!(!dilated.is_distinct());
        Ok(())
    }
}
