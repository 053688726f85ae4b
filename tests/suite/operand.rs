//! Tensors beside the numbers that they must hold.

use std::ops::Range;

use orlop::{Device, Result, SliceRange, Tensor};

use crate::grid::Grid;
use crate::number::Number;
use crate::rng::Rng;

/// A tensor, perhaps a view, and its elements in row-major order.
#[derive(Clone)]
pub struct Operand<T> {
    pub tensor: Tensor,
    pub grid: Grid,
    base: std::sync::Arc<Vec<T>>,
}

impl<T: Number> Operand<T> {
    pub fn new(device: &Device, values: Vec<T>, shape: &[usize]) -> Result<Self> {
        Ok(Self {
            tensor: Tensor::from_slice(device, &values, shape)?,
            grid: Grid::whole(shape),
            base: values.into(),
        })
    }

    /// Random values, without gaps.
    pub fn random(device: &Device, rng: &mut Rng, shape: &[usize]) -> Result<Self> {
        Self::sampled(device, rng, shape, T::sample)
    }

    fn sampled(
        device: &Device,
        rng: &mut Rng,
        shape: &[usize],
        mut sample: impl FnMut(&mut Rng) -> T,
    ) -> Result<Self> {
        let count = shape.iter().product();
        let values = (0..count).map(|_| sample(rng)).collect();
        Self::new(device, values, shape)
    }

    /// Random values of `shape` through a random view: a permutation of a slice of a larger base,
    /// now and then with steps, backwards, with repeated dimensions, or of windows that overlap.
    pub fn random_view(device: &Device, rng: &mut Rng, shape: &[usize]) -> Result<Self> {
        Self::view_of(device, rng, shape, T::sample)
    }

    /// The same with values of the caller's.
    pub fn view_of(
        device: &Device,
        rng: &mut Rng,
        shape: &[usize],
        mut sample: impl FnMut(&mut Rng) -> T,
    ) -> Result<Self> {
        if rng.one_in(3) {
            return Self::sampled(device, rng, shape, sample);
        }
        let rank = shape.len();
        if rank > 1 && !shape.contains(&0) && rng.one_in(6) {
            return Self::windows(device, rng, shape, &mut sample);
        }
        let repeats = rng.one_in(4);
        let single: Vec<usize> = shape
            .iter()
            .map(|&size| if repeats && rng.one_in(3) { 1 } else { size })
            .collect();
        let axes = if rng.one_in(3) {
            (0..rank).collect()
        } else {
            rng.shuffled(rank)
        };
        // axes[i] is the old axis of new axis i.
        let mut inner = vec![0; rank];
        for (new, &old) in axes.iter().enumerate() {
            inner[old] = single[new];
        }
        let sliced = !rng.one_in(3);
        // Around a few of many axes: around all of seven the base would be a hundred times the view.
        let mut margins = || match sliced && (rank <= 3 || rng.one_in(3)) {
            true => [rng.below(3), rng.below(3)],
            false => [0; 2],
        };
        let (ranges, outer): (Vec<Range<usize>>, Vec<usize>) = inner
            .iter()
            .map(|&size| {
                let [before, after] = margins();
                (before..before + size, before + size + after)
            })
            .unzip();
        // Gaps along one axis only: the base stays small.
        let gaps = rng.below(rank.max(1) * 3);
        let steps: Vec<isize> = (0..rank)
            .map(|axis| match axis == gaps {
                true => *rng.pick(&[2, -2, 3, -3]),
                false if rng.one_in(4) => -1,
                false => 1,
            })
            .collect();
        let stepped = outer
            .iter()
            .zip(&steps)
            .map(|(&size, step)| size * step.unsigned_abs());
        let mut view = Self::sampled(device, rng, &stepped.collect::<Vec<_>>(), sample)?;
        for (axis, (&size, &step)) in outer.iter().zip(&steps).enumerate() {
            view = view.step(axis, 0..size * step.unsigned_abs(), step)?;
        }
        view.slice(&ranges)?.permute(&axes)?.broadcast(shape)
    }

    /// Two of the axes are windows of one and what is along them.
    fn windows(
        device: &Device,
        rng: &mut Rng,
        shape: &[usize],
        sample: &mut dyn FnMut(&mut Rng) -> T,
    ) -> Result<Self> {
        let rank = shape.len();
        let axes = rng.shuffled(rank);
        let (count, along) = (axes[0], axes[1]);
        let step = rng.between(1, 3);
        // The base has all axes but the one along windows.
        let left: Vec<usize> = (0..rank).filter(|&axis| axis != along).collect();
        let unfolded = left.iter().position(|&axis| axis == count).unwrap_or(0);
        let mut base: Vec<usize> = left.iter().map(|&axis| shape[axis]).collect();
        // A window more would not fit.
        base[unfolded] = (shape[count] - 1) * step + shape[along] + rng.below(step);
        let base = Self::view_of(device, rng, &base, sample)?;
        let mut back: Vec<usize> = (0..rank - 1).collect();
        back.insert(along, rank - 1);
        base.unfold(unfolded, shape[along], step)?.permute(&back)
    }

    pub fn shape(&self) -> &[usize] {
        &self.grid.shape
    }

    pub fn values(&self) -> Vec<T> {
        self.grid.of(&self.base)
    }

    pub fn slice(&self, ranges: &[Range<usize>]) -> Result<Self> {
        let named: Vec<SliceRange> = ranges.iter().cloned().map(SliceRange::from).collect();
        self.with(self.tensor.slice(&named[..])?, self.grid.slice(ranges))
    }

    /// Every `step`th element of a range of one axis, backwards from its end for a negative step.
    pub fn step(&self, axis: usize, range: Range<usize>, step: isize) -> Result<Self> {
        let mut ranges = vec![SliceRange::from(..); self.shape().len()];
        ranges[axis] = SliceRange::from(range.clone()).step(step);
        let every = step.unsigned_abs();
        let entries: Vec<usize> = match step < 0 {
            true => range.rev().step_by(every).collect(),
            false => range.step_by(every).collect(),
        };
        self.with(
            self.tensor.slice(&ranges[..])?,
            self.grid.pick(axis, &entries),
        )
    }

    /// Windows of an axis, which a new last axis goes along.
    pub fn unfold(&self, axis: usize, size: usize, step: usize) -> Result<Self> {
        self.with(
            self.tensor.unfold(axis, size, step)?,
            self.grid.unfold(axis, size, step),
        )
    }

    pub fn diagonal(&self, offset: isize, first: usize, second: usize) -> Result<Self> {
        self.with(
            self.tensor.diagonal(offset, first, second)?,
            self.grid.diagonal(offset, first, second),
        )
    }

    pub fn flip(&self, axes: &[usize]) -> Result<Self> {
        let mut grid = self.grid.clone();
        for &axis in axes {
            let entries: Vec<usize> = (0..grid.shape[axis]).rev().collect();
            grid = grid.pick(axis, &entries);
        }
        self.with(self.tensor.flip(axes)?, grid)
    }

    /// A slice of one dimension.
    pub fn range(&self, range: Range<usize>) -> Result<Self> {
        self.slice(std::slice::from_ref(&range))
    }

    pub fn permute(&self, axes: &[usize]) -> Result<Self> {
        self.with(self.tensor.permute(axes)?, self.grid.permute(axes))
    }

    pub fn transpose(&self, first: usize, second: usize) -> Result<Self> {
        self.with(
            self.tensor.transpose(first, second)?,
            self.grid.transpose(first, second),
        )
    }

    pub fn broadcast(&self, shape: &[usize]) -> Result<Self> {
        self.with(self.tensor.broadcast_to(shape)?, self.grid.broadcast(shape))
    }

    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        self.with(self.tensor.reshape(shape)?, self.grid.reshape(shape))
    }

    /// The base's elements through a grid made of this operand's.
    pub fn through(&self, grid: &Grid) -> Vec<T> {
        grid.of(&self.base)
    }

    fn with(&self, tensor: Tensor, grid: Grid) -> Result<Self> {
        assert_eq!(tensor.shape().dims(), grid.shape);
        Ok(Self {
            tensor,
            grid,
            base: self.base.clone(),
        })
    }

    /// Downloads and compares bit for bit.
    pub fn check(&self) -> Result<()> {
        same(&self.tensor, &self.values())
    }

    /// What it is, for messages.
    pub fn story(&self) -> String {
        format!(
            "{:?} strides {:?} offset {}",
            self.tensor.shape(),
            self.tensor.layout().strides(),
            self.tensor.layout().offset()
        )
    }
}

/// The tensor holds these values, bit for bit.
pub fn same<T: Number>(tensor: &Tensor, want: &[T]) -> Result<()> {
    let got = tensor.to_vec::<T>()?;
    assert_eq!(got.len(), want.len(), "{tensor:?}");
    if let Some(at) = (0..got.len()).find(|&at| got[at].bits() != want[at].bits()) {
        panic!(
            "{tensor:?}: element {at} is {} ({:#x}), not {} ({:#x})",
            got[at],
            got[at].bits(),
            want[at],
            want[at].bits()
        );
    }
    Ok(())
}

/// A random shape of a rank up to `max_rank` and about `most` elements at most.
pub fn random_shape(rng: &mut Rng, max_rank: usize, most: usize) -> Vec<usize> {
    let rank = rng.between(0, max_rank);
    let mut left = most;
    let mut shape: Vec<usize> = (0..rank)
        .map(|_| {
            let size = match rng.below(10) {
                0 => 1,
                1 => rng.between(1, left.max(1)),
                _ => rng.between(1, 9.min(left.max(1))),
            };
            left /= size.max(1);
            size
        })
        .collect();
    let order = rng.shuffled(rank);
    shape = order.iter().map(|&at| shape[at]).collect();
    if rank > 0 && rng.one_in(25) {
        let axis = rng.below(rank);
        shape[axis] = 0;
    }
    shape
}
