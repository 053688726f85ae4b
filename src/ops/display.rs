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
    /// The numbers as text, NumPy's way; large tensors by their edges. Downloads what it shows,
    /// unlike `Debug`.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; [`Error::InvalidArgument`] where more than 2^20 elements would be shown: the edges
    /// of eight long dimensions.
    pub fn display(&self) -> Result<String> {
        let short = self.elements() > WHOLE;
        let numbers = self.shown(short)?;
        let width = numbers.iter().map(String::len).max().unwrap_or(0);
        let mut text = String::new();
        let mut next = numbers.iter();
        // Writing to a string cannot fail.
        let _ = self.nest(&mut text, 0, short, width, &mut next);
        Ok(text)
    }

    /// The shown elements in row-major order. Only they travel: a long dimension is cut down to
    /// its two ends, each corner is downloaded and takes its place among the shown.
    fn shown(&self, short: bool) -> Result<Vec<String>> {
        let cut = |size: usize| short && size > 2 * EDGE;
        let shown: Shape = self
            .shape()
            .iter()
            .map(|&size| if cut(size) { 2 * EDGE } else { size })
            .collect();
        if shown.elements() > MOST {
            let problem = format!(
                "{} elements of shape {} would be shown, above {MOST}: show a slice",
                shown.elements(),
                self.shape()
            );
            return Err(Error::invalid("display", problem));
        }
        let places = Layout::contiguous(shown.clone());
        let mut numbers = vec![String::new(); shown.elements()];
        let long: Vec<usize> = (0..self.rank())
            .filter(|&axis| cut(self.shape()[axis]))
            .collect();
        // Bit d of `corner` says which end of the dth long dimension.
        for corner in 0..1usize << long.len() {
            let far = |axis: usize| {
                let nth = long.iter().position(|&long| long == axis);
                nth.is_some_and(|nth| corner >> nth & 1 == 1)
            };
            let ends = |size: usize, axis: usize, whole: usize| match (cut(whole), far(axis)) {
                (false, _) => 0..size,
                (true, false) => 0..EDGE,
                (true, true) => size - EDGE..size,
            };
            let ranges = |of: &Shape| -> Vec<SliceRange> {
                (0..self.rank())
                    .map(|axis| ends(of[axis], axis, self.shape()[axis]).into())
                    .collect()
            };
            let texts = self.slice(&ranges(self.shape())[..])?.texts()?;
            let place = places.slice(&ranges(&shown))?;
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

    fn nest(
        &self,
        text: &mut String,
        axis: usize,
        short: bool,
        width: usize,
        next: &mut std::slice::Iter<'_, String>,
    ) -> fmt::Result {
        let Some(&size) = self.shape().get(axis) else {
            return write!(text, "{:>width$}", next.next().map_or("", String::as_str));
        };
        let last = axis + 1 == self.rank();
        let break_line = |text: &mut String| {
            if last {
                text.write_str(", ")
            } else {
                write!(text, ",\n{:1$}", "", axis + 1)
            }
        };
        text.write_char('[')?;
        let cut = short && size > 2 * EDGE;
        let far = if cut { size - EDGE } else { size };
        for index in (0..if cut { EDGE } else { size }).chain(far..size) {
            if index > 0 {
                break_line(text)?;
            }
            if cut && index == far {
                text.write_str("...")?;
                break_line(text)?;
            }
            self.nest(text, axis + 1, short, width, next)?;
        }
        text.write_char(']')
    }
}

fn texts<T: fmt::Display>(elements: &[T]) -> Vec<String> {
    elements
        .iter()
        .map(|element| format!("{element}"))
        .collect()
}
