//! The model of views: for each element in row-major order, which element of the base it is.
//! Nothing is shared with the library: no strides, no offsets.

use std::ops::Range;

/// A view of a base as a list of indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    pub shape: Vec<usize>,
    pub indices: Vec<usize>,
}

impl Grid {
    /// A whole base.
    pub fn whole(shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            indices: (0..shape.iter().product()).collect(),
        }
    }

    /// Each axis of the new grid is a list: what its entries add to an element's position in this one.
    fn gather(&self, axes: impl IntoIterator<Item = Vec<usize>>) -> Self {
        let mut shape = Vec::new();
        let mut positions = vec![0];
        for axis in axes {
            shape.push(axis.len());
            positions = positions
                .iter()
                .flat_map(|&position| axis.iter().map(move |&more| position + more))
                .collect();
        }
        let indices = positions.iter().map(|&at| self.indices[at]).collect();
        Self { shape, indices }
    }

    /// These entries of an axis, as [`Grid::gather`] takes them.
    fn entries(&self, axis: usize, entries: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let inner: usize = self.shape[axis + 1..].iter().product();
        entries.into_iter().map(|at| at * inner).collect()
    }

    pub fn permute(&self, axes: &[usize]) -> Self {
        let whole = |&axis: &usize| self.entries(axis, 0..self.shape[axis]);
        self.gather(axes.iter().map(whole))
    }

    pub fn transpose(&self, first: usize, second: usize) -> Self {
        let mut axes: Vec<usize> = (0..self.shape.len()).collect();
        axes.swap(first, second);
        self.permute(&axes)
    }

    pub fn slice(&self, ranges: &[Range<usize>]) -> Self {
        let ranges = ranges.iter().cloned().enumerate();
        self.gather(ranges.map(|(axis, range)| self.entries(axis, range)))
    }

    /// Those entries of an axis, in that order.
    pub fn pick(&self, picked: usize, entries: &[usize]) -> Self {
        self.gather((0..self.shape.len()).map(|axis| match axis == picked {
            true => self.entries(axis, entries.iter().copied()),
            false => self.entries(axis, 0..self.shape[axis]),
        }))
    }

    /// Windows of an axis, one each `step` entries, with a new last axis along them.
    pub fn unfold(&self, unfolded: usize, size: usize, step: usize) -> Self {
        let starts = (0..=self.shape[unfolded] - size).step_by(step);
        let axes = (0..self.shape.len()).map(|axis| match axis == unfolded {
            true => self.entries(axis, starts.clone()),
            false => self.entries(axis, 0..self.shape[axis]),
        });
        self.gather(axes.chain([self.entries(unfolded, 0..size)]))
    }

    /// Entries of two axes that are `offset` apart, along a new last axis.
    pub fn diagonal(&self, offset: isize, first: usize, second: usize) -> Self {
        let others = (0..self.shape.len()).filter(|&axis| axis != first && axis != second);
        let others = others.map(|axis| self.entries(axis, 0..self.shape[axis]));
        let pairs = (0..self.shape[first]).filter_map(|row| {
            let column = row.checked_add_signed(offset)?;
            (column < self.shape[second]).then_some((row, column))
        });
        let (rows, columns): (Vec<usize>, Vec<usize>) = pairs.unzip();
        let rows = self.entries(first, rows).into_iter();
        let along = rows.zip(self.entries(second, columns));
        let along = along.map(|(row, column)| row + column).collect();
        self.gather(others.chain([along]))
    }

    pub fn broadcast(&self, shape: &[usize]) -> Self {
        let added = shape.len() - self.shape.len();
        self.gather(
            shape
                .iter()
                .enumerate()
                .map(|(axis, &size)| match axis.checked_sub(added) {
                    Some(own) if self.shape[own] != 1 => self.entries(own, 0..size),
                    _ => vec![0; size],
                }),
        )
    }

    /// The same elements in the same order: reshape, squeeze, unsqueeze.
    pub fn reshape(&self, shape: &[usize]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), self.indices.len());
        Self {
            shape: shape.to_vec(),
            indices: self.indices.clone(),
        }
    }

    /// The elements of the view.
    pub fn of<T: Copy>(&self, base: &[T]) -> Vec<T> {
        self.indices.iter().map(|&at| base[at]).collect()
    }
}

/// NumPy's rule, written down a second time.
pub fn broadcast_shapes(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], from_end: usize| {
        if from_end < shape.len() {
            shape[shape.len() - 1 - from_end]
        } else {
            1
        }
    };
    (0..rank)
        .rev()
        .map(|from_end| match (size(a, from_end), size(b, from_end)) {
            (1, other) => other,
            (other, 1) => other,
            (one, other) => {
                assert_eq!(one, other, "{a:?} and {b:?} do not broadcast");
                one
            }
        })
        .collect()
}
