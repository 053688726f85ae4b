//! The same elements under another shape.

use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The argument of `reshape`: sizes, one of which may be -1 and is then worked out.
#[derive(Clone, Debug)]
pub struct Sizes(Vec<i128>);

macro_rules! sizes_from {
    ($($integer:ty),*) => {$(
        impl From<&[$integer]> for Sizes {
            fn from(sizes: &[$integer]) -> Self {
                // Wide enough for all of these types.
                Sizes(sizes.iter().map(|&size| size as i128).collect())
            }
        }
        impl<const N: usize> From<[$integer; N]> for Sizes {
            fn from(sizes: [$integer; N]) -> Self {
                Sizes::from(&sizes[..])
            }
        }
        impl<const N: usize> From<&[$integer; N]> for Sizes {
            fn from(sizes: &[$integer; N]) -> Self {
                Sizes::from(&sizes[..])
            }
        }
        impl From<&Vec<$integer>> for Sizes {
            fn from(sizes: &Vec<$integer>) -> Self {
                Sizes::from(&sizes[..])
            }
        }
        impl From<Vec<$integer>> for Sizes {
            fn from(sizes: Vec<$integer>) -> Self {
                Sizes::from(&sizes[..])
            }
        }
        impl From<$integer> for Sizes {
            fn from(size: $integer) -> Self {
                Sizes::from([size])
            }
        }
    )*};
}
sizes_from!(i32, i64, isize, usize);

impl From<&Shape> for Sizes {
    fn from(shape: &Shape) -> Self {
        Sizes::from(shape.dims())
    }
}

impl From<Shape> for Sizes {
    fn from(shape: Shape) -> Self {
        Sizes::from(shape.dims())
    }
}

impl From<()> for Sizes {
    fn from((): ()) -> Self {
        Sizes(Vec::new())
    }
}

impl Tensor {
    /// The same elements in row-major order under another shape; one size may be -1. A view where
    /// the strides allow it, else a copy: so of transposed tensors, and of what elementwise functions make of
    /// them, which lies as they do.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the element counts differ or more than one size is -1;
    /// [`Error::TooLarge`] for sizes that no tensor has; what a copy can meet.
    pub fn reshape(&self, sizes: impl Into<Sizes>) -> Result<Tensor> {
        let shape = self.resolve(&sizes.into().0)?;
        match self.layout().reshape(&shape) {
            Some(layout) => Ok(self.view(layout)),
            None => {
                let copy = self.contiguous_for("reshape")?;
                let layout = crate::layout::Layout::contiguous(shape);
                Ok(copy.view(layout))
            }
        }
    }

    fn resolve(&self, sizes: &[i128]) -> Result<Shape> {
        let bad = |why: String| {
            Error::invalid("reshape", format!("{} to {sizes:?}: {why}", self.shape()))
        };
        let unknown = sizes.iter().filter(|&&size| size == -1).count();
        if unknown > 1 || sizes.iter().any(|&size| size < -1) {
            return Err(bad(
                "sizes are not negative, and at most one is -1".to_owned()
            ));
        }
        // What a size of 64 bits is above here, the count below refuses.
        let size = |size: i128| usize::try_from(size).unwrap_or(usize::MAX);
        let known: Shape = sizes
            .iter()
            .filter(|&&size| size >= 0)
            .map(|&known| size(known))
            .collect();
        let count = known.count("reshape")?;
        let fill = match (unknown, count) {
            (0, _) => 0,
            (_, 0) => return Err(bad("-1 beside a size of 0 could be anything".to_owned())),
            _ => self.elements() / count,
        };
        let shape: Shape = sizes
            .iter()
            .map(|&given| if given == -1 { fill } else { size(given) })
            .collect();
        if shape.checked_elements() != Some(self.elements()) {
            return Err(bad(format!("{} elements do not fit", self.elements())));
        }
        Ok(shape)
    }
}
