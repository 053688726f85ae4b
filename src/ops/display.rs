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
/// Digits after the point at most.
const DIGITS: usize = 8;
/// Sizes of floats that are easy to read without exponents.
const NEAR: std::ops::Range<f64> = 1e-4..1e8;

impl Tensor {
    /// The numbers as text, nested as NumPy does; large tensors by their edges, `[]` where there are none. Of floats at most
    /// eight digits after the point; where one that is shown is 1e8 or more, or below 1e-4, all have exponents. Downloads
    /// what it shows, unlike `Debug`.
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
        let numbers = self.shown(&shown)?;
        let are_far = numbers.iter().any(|number| number.is_far);
        let texts = numbers.into_iter().map(|number| match are_far {
            true => number.exponent,
            false => number.plain,
        });
        Ok(shown.nest(&texts.collect::<Vec<_>>()))
    }

    /// The shown elements in row-major order. Only they travel: a long dimension is cut down to
    /// its two ends, each corner is downloaded and takes its place among the shown.
    fn shown(&self, shown: &Shown<'_>) -> Result<Vec<Number>> {
        let places = Layout::contiguous(shown.sizes().collect::<Shape>());
        let mut numbers = vec![Number::default(); shown.count()];
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

    fn texts(&self) -> Result<Vec<Number>> {
        Ok(match self.dtype() {
            DType::F32 => floats(&self.to_vec::<f32>()?, f64::from),
            DType::F16 => floats(&singles(&self.to_vec::<f16>()?), f64::from),
            DType::BF16 => floats(&singles(&self.to_vec::<bf16>()?), f64::from),
            DType::F64 => floats(&self.to_vec::<f64>()?, |x| x),
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

/// A number without and with an exponent.
#[derive(Clone, Default)]
struct Number {
    plain: String,
    exponent: String,
    /// Only one with an exponent is easy to read.
    is_far: bool,
}

fn texts<T: fmt::Display>(elements: &[T]) -> Vec<Number> {
    let numbers = elements.iter().map(|element| Number {
        plain: element.to_string(),
        exponent: element.to_string(),
        is_far: false,
    });
    numbers.collect()
}

fn singles<T: Copy + Into<f32>>(halves: &[T]) -> Vec<f32> {
    halves.iter().map(|&half| half.into()).collect()
}

fn floats<T: Copy + fmt::Display + fmt::LowerExp>(
    elements: &[T],
    wide: impl Fn(T) -> f64,
) -> Vec<Number> {
    // The shortest text that is this number, unless it is long: what is limited may end in zeros.
    let short = |text: String, limited: String| {
        let digits = text.split_once('.').map_or("", |(_, digits)| digits);
        if digits.find('e').unwrap_or(digits.len()) <= DIGITS {
            return text;
        }
        let (digits, exponent) = limited.split_at(limited.find('e').unwrap_or(limited.len()));
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        format!("{digits}{exponent}")
    };
    let numbers = elements.iter().map(|&x| {
        let size = wide(x).abs();
        let is_far = size > 0.0 && size.is_finite() && !NEAR.contains(&size);
        let plain = match is_far {
            true => String::new(),
            false => short(format!("{x}"), format!("{x:.DIGITS$}")),
        };
        Number {
            plain,
            exponent: short(format!("{x:e}"), format!("{x:.DIGITS$e}")),
            is_far,
        }
    });
    numbers.collect()
}
