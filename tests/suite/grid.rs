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

    /// The grid of `shape` whose element at an index is this grid's element at `old(index)`.
    fn gather(&self, shape: Vec<usize>, old: impl Fn(&[usize]) -> Vec<usize>) -> Self {
        let indices = multi_indices(&shape)
            .map(|index| self.indices[flat(&self.shape, &old(&index))])
            .collect();
        Self { shape, indices }
    }

    pub fn permute(&self, axes: &[usize]) -> Self {
        let shape = axes.iter().map(|&axis| self.shape[axis]).collect();
        self.gather(shape, |index| {
            let mut old = vec![0; axes.len()];
            for (new, &axis) in axes.iter().enumerate() {
                old[axis] = index[new];
            }
            old
        })
    }

    pub fn transpose(&self, first: usize, second: usize) -> Self {
        let mut axes: Vec<usize> = (0..self.shape.len()).collect();
        axes.swap(first, second);
        self.permute(&axes)
    }

    pub fn slice(&self, ranges: &[Range<usize>]) -> Self {
        let shape = ranges.iter().map(ExactSizeIterator::len).collect();
        self.gather(shape, |index| {
            index
                .iter()
                .zip(ranges)
                .map(|(at, range)| at + range.start)
                .collect()
        })
    }

    /// Those entries of an axis, in that order.
    pub fn pick(&self, axis: usize, entries: &[usize]) -> Self {
        let mut shape = self.shape.clone();
        shape[axis] = entries.len();
        self.gather(shape, |index| {
            let mut old = index.to_vec();
            old[axis] = entries[index[axis]];
            old
        })
    }

    pub fn broadcast(&self, shape: &[usize]) -> Self {
        let added = shape.len() - self.shape.len();
        self.gather(shape.to_vec(), |index| {
            self.shape
                .iter()
                .zip(&index[added..])
                .map(|(&size, &at)| if size == 1 { 0 } else { at })
                .collect()
        })
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

fn flat(shape: &[usize], index: &[usize]) -> usize {
    index
        .iter()
        .zip(shape)
        .fold(0, |at, (&i, &size)| at * size + i)
}

/// All indices of a shape, row-major.
fn multi_indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..shape.iter().product::<usize>()).map(move |element| {
        let mut rest = element;
        let mut index = vec![0; shape.len()];
        for (at, &size) in index.iter_mut().zip(shape).rev() {
            *at = rest % size;
            rest /= size;
        }
        index
    })
}
