//! Which dimensions an op goes along.

use std::ops::RangeFull;

use smallvec::SmallVec;

use crate::error::Result;
use crate::layout::{Axis, each_once};
use crate::memory::order;
use crate::shape::{Dims, Shape};

/// The dimensions that a reduction goes along: one (`1`; `-1` is the last), several (`[0, 2]`, in any order)
/// or all (`..`); an empty list is none of them, where PyTorch takes all; with [`keepdim`] they stay as dimensions of size 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    /// All of them when `None`.
    named: Option<SmallVec<[Axis; 6]>>,
    keep: bool,
}

/// The same axes, kept in the result as dimensions of size 1: `x.sum(keepdim(1))`.
pub fn keepdim(axes: impl Into<Axes>) -> Axes {
    let axes = axes.into();
    Axes { keep: true, ..axes }
}

impl<A: Into<Axis>> From<A> for Axes {
    fn from(axis: A) -> Self {
        Axes::from([axis])
    }
}

impl From<RangeFull> for Axes {
    fn from(_: RangeFull) -> Self {
        Axes {
            named: None,
            keep: false,
        }
    }
}

impl<A: Into<Axis> + Copy> From<&[A]> for Axes {
    fn from(axes: &[A]) -> Self {
        Axes {
            named: Some(axes.iter().map(|&axis| axis.into()).collect()),
            keep: false,
        }
    }
}

impl<A: Into<Axis> + Copy> From<&Vec<A>> for Axes {
    fn from(axes: &Vec<A>) -> Self {
        Axes::from(&axes[..])
    }
}

impl<A: Into<Axis>> From<Vec<A>> for Axes {
    fn from(axes: Vec<A>) -> Self {
        Axes {
            named: Some(axes.into_iter().map(Into::into).collect()),
            keep: false,
        }
    }
}

impl<A: Into<Axis>, const N: usize> From<[A; N]> for Axes {
    fn from(axes: [A; N]) -> Self {
        Axes {
            named: Some(axes.into_iter().map(Into::into).collect()),
            keep: false,
        }
    }
}

impl<A: Into<Axis> + Copy, const N: usize> From<&[A; N]> for Axes {
    fn from(axes: &[A; N]) -> Self {
        Axes::from(&axes[..])
    }
}

/// Axes of a shape: each exists, each once, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Along {
    pub axes: Dims,
    pub keep: bool,
}

impl Axes {
    /// # Errors
    /// `InvalidArgument` for an axis that does not exist or is named twice.
    pub(in crate::ops) fn of(self, op: &'static str, shape: &Shape) -> Result<Along> {
        let mut axes = match self.named {
            Some(named) => each_once(&named, op, shape)?,
            None => (0..shape.rank()).collect(),
        };
        order::sort(&mut axes, |&axis| (axis as u64, 0));
        Ok(Along {
            axes,
            keep: self.keep,
        })
    }
}

impl Along {
    /// The dimensions that stay, in order.
    pub(in crate::ops) fn kept(&self, rank: usize) -> Dims {
        (0..rank).filter(|axis| !self.axes.contains(axis)).collect()
    }

    /// What is left of a shape.
    pub(in crate::ops) fn shape(&self, from: &Shape) -> Shape {
        let left = |(axis, &size): (usize, &usize)| match self.axes.contains(&axis) {
            false => Some(size),
            true => self.keep.then_some(1),
        };
        from.iter().enumerate().filter_map(left).collect()
    }

    /// A shape with sizes of 1 along the axes.
    pub(in crate::ops) fn of_one(&self, from: &Shape) -> Shape {
        let size = |(axis, &size): (usize, &usize)| match self.axes.contains(&axis) {
            true => 1,
            false => size,
        };
        from.iter().enumerate().map(size).collect()
    }
}
