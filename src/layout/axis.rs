//! Dimensions, and places along one, counted from the first or from the last.

use std::fmt;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::shape::{Dims, Shape};

/// One dimension: counted from the first (`0`, `1`), or, where negative, from the last (`-1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis(Counted);

/// A place counted from the start, or from behind the end: 1 is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Counted {
    FromStart(usize),
    FromEnd(usize),
}

impl Counted {
    /// The place among `size` and the one behind them.
    pub(super) fn among(self, size: usize) -> Option<usize> {
        match self {
            Counted::FromStart(at) => (at <= size).then_some(at),
            Counted::FromEnd(back) => size.checked_sub(back),
        }
    }
}

macro_rules! counted_from {
    ($($integer:ty, $place:ident => $counted:expr;)*) => {$(
        impl From<$integer> for Counted {
            fn from($place: $integer) -> Self {
                $counted
            }
        }

        impl From<$integer> for Axis {
            fn from(axis: $integer) -> Self {
                Axis(axis.into())
            }
        }
    )*};
}
counted_from!(
    usize, place => Counted::FromStart(place);
    isize, place => match usize::try_from(place) {
        Ok(place) => Counted::FromStart(place),
        Err(_) => Counted::FromEnd(place.unsigned_abs()),
    };
    // What a literal is.
    i32, place => Counted::from(place as isize);
    // What files have. No dimension is as long as what 32 bits do not hold there.
    i64, place => Counted::from(isize::try_from(place).unwrap_or(match place < 0 {
        true => isize::MIN,
        false => isize::MAX,
    }));
);

/// As it was given.
impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Counted::FromStart(at) => write!(f, "{at}"),
            Counted::FromEnd(0) => Ok(()),
            Counted::FromEnd(back) => write!(f, "-{back}"),
        }
    }
}

/// The number, as it was given.
impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Axis {
    /// Which dimension of a shape it is.
    ///
    /// # Errors
    /// `InvalidArgument` when the shape has no such one.
    pub(crate) fn of(self, op: &'static str, shape: &Shape) -> Result<usize> {
        let axis = self.0.among(shape.rank());
        axis.filter(|&axis| axis < shape.rank())
            .ok_or_else(|| Error::invalid(op, format!("there is no axis {self} in shape {shape}")))
    }

    /// Before which dimension of a shape a new one stands, so that it is this one then.
    ///
    /// # Errors
    /// `InvalidArgument` when the shape has too few.
    pub(crate) fn added(self, op: &'static str, shape: &Shape) -> Result<usize> {
        let rank = shape.rank();
        let axis = self.0.among(rank + 1);
        axis.filter(|&axis| axis <= rank).ok_or_else(|| {
            let problem = format!("there is no place for an axis {self} in shape {shape}");
            Error::invalid(op, problem)
        })
    }
}

/// Which dimensions of a shape several are, each once.
///
/// # Errors
/// `InvalidArgument` for one that the shape does not have, or one that is named twice.
pub(crate) fn each_once(
    axes: &[impl Into<Axis> + Copy],
    op: &'static str,
    shape: &Shape,
) -> Result<Dims> {
    let mut named = SmallVec::<[usize; 6]>::new();
    let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, shape.rank());
    for &axis in axes {
        let axis: Axis = axis.into();
        let at = axis.of(op, shape)?;
        if std::mem::replace(&mut seen[at], true) {
            let problem = format!("axis {axis} of shape {shape} is named twice");
            return Err(Error::invalid(op, problem));
        }
        named.push(at);
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_count_from_both_ends() {
        let shape = Shape::from([2, 3, 4]);
        let of = |axis: Axis| axis.of("test", &shape).ok();
        let found: Vec<_> = (-5..5).map(|axis: i32| of(axis.into())).collect();
        let three = [Some(0), Some(1), Some(2)];
        assert_eq!(found, [&[None; 2][..], &three, &three, &[None; 2]].concat());
        for far in [isize::MIN, isize::MAX] {
            assert_eq!(of(far.into()), None);
        }
        assert_eq!(of(usize::MAX.into()), None);
        let added = |axis: Axis| axis.added("test", &shape).ok();
        let found: Vec<_> = (-5..5).map(|axis: i32| added(axis.into())).collect();
        let four = [Some(0), Some(1), Some(2), Some(3)];
        assert_eq!(found, [&[None][..], &four, &four, &[None]].concat());
        let scalar = Shape::from(());
        assert!(Axis::from(0).of("test", &scalar).is_err());
        assert!(Axis::from(-1).of("test", &scalar).is_err());
        assert_eq!(Axis::from(-1).added("test", &scalar).ok(), Some(0));
    }

    #[test]
    fn errors_name_axes_as_given() {
        let shape = Shape::from([2, 3]);
        let said = Axis::from(-3).of("sum", &shape).unwrap_err().to_string();
        assert!(said.contains("no axis -3 in shape [2, 3]"), "{said}");
        let twice = each_once(&[1, -1], "sum", &shape);
        let said = twice.unwrap_err().to_string();
        assert!(
            said.contains("axis -1 of shape [2, 3] is named twice"),
            "{said}"
        );
        let both = each_once(&[-1, 0], "sum", &shape);
        assert_eq!(both.unwrap().as_slice(), [1, 0]);
    }
}
