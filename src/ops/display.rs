//! Tensors as text for people.

use std::fmt::{self, Write};

use half::{bf16, f16};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::{Layout, SliceRange};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Elements shown at each end of a long dimension.
const EDGE: usize = 3;
/// Tensors of more elements than this are shown by their edges.
const WHOLE: usize = 1000;
/// Elements of edges that are shown at most: of many long dimensions there are more than anybody reads.
const MOST: usize = 1 << 20;

impl Tensor {
    /// The numbers as text, NumPy's way; large tensors by their edges, `[]` where there are none. Downloads what it shows,
    /// unlike `Debug`.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; [`Error::InvalidArgument`] where more than 2^20 elements would be shown: the edges
    /// of eight long dimensions.
    pub fn display(&self) -> Result<String> {
        if self.elements() == 0 {
            return Ok("[]".to_owned());
        }
        let shown = Shown::new(self.shape().dims());
        if shown.count() > MOST {
            let problem = format!(
                "{} elements of shape {} would be shown, above {MOST}: show a slice",
                shown.count(),
                self.shape()
            );
            return Err(Error::invalid("display", problem));
        }
        Ok(shown.nest(&self.shown(&shown)?))
    }

    /// The shown elements in row-major order. Only they travel: a long dimension is cut down to
    /// its two ends, each corner is downloaded and takes its place among the shown.
    fn shown(&self, shown: &Shown<'_>) -> Result<Vec<String>> {
        let places = Layout::contiguous(shown.sizes().collect::<Shape>());
        let mut numbers = vec![String::new(); shown.count()];
        let long: Vec<usize> = (0..self.rank())
            .filter(|&axis| shown.is_cut(axis))
            .collect();
        // Bit d of `corner` says which end of the dth long dimension.
        for corner in 0..1usize << long.len() {
            let ranges = |sizes: &[usize]| -> Vec<SliceRange> {
                let mut ranges: Vec<SliceRange> =
                    sizes.iter().map(|&size| (0..size).into()).collect();
                for (nth, &axis) in long.iter().enumerate() {
                    ranges[axis] = match corner >> nth & 1 {
                        0 => (0..EDGE).into(),
                        _ => (sizes[axis] - EDGE..sizes[axis]).into(),
                    };
                }
                ranges
            };
            let texts = self.slice(&ranges(self.shape().dims())[..])?.texts()?;
            let place = places.slice(&ranges(places.shape().dims()))?;
            for (text, at) in texts.into_iter().zip(place.indices()) {
                numbers[at] = text;
            }
        }
        Ok(numbers)
    }

    fn texts(&self) -> Result<Vec<String>> {
        Ok(match self.dtype() {
            DType::F32 => texts(&self.to_vec::<f32>()?),
            DType::F16 => texts(&self.to_vec::<f16>()?),
            DType::BF16 => texts(&self.to_vec::<bf16>()?),
            DType::F64 => texts(&self.to_vec::<f64>()?),
            DType::I32 => texts(&self.to_vec::<i32>()?),
            DType::U32 => texts(&self.to_vec::<u32>()?),
            DType::Bool => texts(&self.to_vec::<bool>()?),
        })
    }
}

/// Which elements are shown: of long dimensions of large tensors the ends.
struct Shown<'a> {
    shape: &'a [usize],
    is_large: bool,
}

impl<'a> Shown<'a> {
    fn new(shape: &'a [usize]) -> Self {
        Self {
            shape,
            is_large: shape.iter().product::<usize>() > WHOLE,
        }
    }

    fn is_cut(&self, axis: usize) -> bool {
        self.is_large && self.shape[axis] > 2 * EDGE
    }

    /// Of each axis, how many are shown.
    fn sizes(&self) -> impl Iterator<Item = usize> {
        (0..self.shape.len()).map(|axis| match self.is_cut(axis) {
            true => 2 * EDGE,
            false => self.shape[axis],
        })
    }

    fn count(&self) -> usize {
        self.sizes().product()
    }

    /// The shown elements, row-major, in brackets. Not recursive: there may be thousands of axes.
    fn nest(&self, numbers: &[String]) -> String {
        let width = numbers.iter().map(String::len).max().unwrap_or(0);
        let sizes: Vec<usize> = self.sizes().collect();
        let mut index = vec![0; sizes.len()];
        let mut text = "[".repeat(sizes.len());
        for (nth, number) in numbers.iter().enumerate() {
            if nth > 0 {
                // The axis that goes on, and those within it, which begin anew.
                let axis = (0..sizes.len())
                    .rev()
                    .find(|&axis| index[axis] + 1 < sizes[axis])
                    .unwrap_or(0);
                let within = sizes.len() - axis - 1;
                index[axis] += 1;
                index[axis + 1..].fill(0);
                let separator = match within {
                    0 => ", ".to_owned(),
                    _ => format!(",\n{:1$}", "", axis + 1),
                };
                text.push_str(&"]".repeat(within));
                text.push_str(&separator);
                if self.is_cut(axis) && index[axis] == EDGE {
                    text.push_str("...");
                    text.push_str(&separator);
                }
                text.push_str(&"[".repeat(within));
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "{number:>width$}");
        }
        text.push_str(&"]".repeat(sizes.len()));
        text
    }
}

fn texts<T: fmt::Display>(elements: &[T]) -> Vec<String> {
    elements
        .iter()
        .map(|element| format!("{element}"))
        .collect()
}
