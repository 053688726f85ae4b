//! The epilogue on the CPU: what is done to sums before they are rounded and stored.

use half::{bf16, f16};

use super::rule::{Activation, Finish};
use crate::cpu::parallel;
use crate::dtype::Element;
use crate::layout::Layout;
use crate::road::HostInput;

/// Below it gelu and silu are zero in f32 and f64; at minus infinity itself their formulas are not.
const LEAST: f32 = -800.0;

/// A type that sums are kept in.
pub(super) trait Sum: Element + bytemuck::Pod {
    fn from_f32(value: f32) -> Self;
    fn relu(self) -> Self;
    fn gelu(self) -> Self;
    fn silu(self) -> Self;
    /// The larger of it and [`LEAST`].
    fn or_least(self) -> Self;
    /// `scale * self + added`
    fn combine(self, scale: Self, added: Self) -> Self;
    fn plus(self, other: Self) -> Self;
    fn zero() -> Self;
}

macro_rules! sum {
    ($rust:ty, $erfc:path, $half_root:expr) => {
        impl Sum for $rust {
            fn from_f32(value: f32) -> Self {
                value.into()
            }
            fn relu(self) -> Self {
                // NaN stays.
                if self < 0.0 { 0.0 } else { self }
            }
            fn gelu(self) -> Self {
                let x = self.or_least();
                0.5 * x * $erfc(-x * $half_root)
            }
            fn silu(self) -> Self {
                let x = self.or_least();
                x / (1.0 + (-x).exp())
            }
            fn or_least(self) -> Self {
                // NaN stays.
                let least = Self::from_f32(LEAST);
                if self < least { least } else { self }
            }
            fn combine(self, scale: Self, added: Self) -> Self {
                scale * self + added
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn zero() -> Self {
                0.0
            }
        }
    };
}
sum!(f32, libm::erfcf, std::f32::consts::FRAC_1_SQRT_2);
sum!(f64, libm::erfc, std::f64::consts::FRAC_1_SQRT_2);

/// An element type with the type that its sums are kept in.
pub(super) trait Term: Element + bytemuck::Pod {
    type Sum: Sum;
    fn wide(self) -> Self::Sum;
}

impl Term for f32 {
    type Sum = f32;
    fn wide(self) -> f32 {
        self
    }
}

impl Term for f64 {
    type Sum = f64;
    fn wide(self) -> f64 {
        self
    }
}

macro_rules! half {
    ($rust:ty) => {
        impl Term for $rust {
            type Sum = f32;
            fn wide(self) -> f32 {
                self.to_f32()
            }
        }
    };
}
half!(f16);
half!(bf16);

/// An epilogue with its operands at hand.
pub(super) struct Finisher<'a, T: Term> {
    finish: Finish,
    walk: Option<parallel::Walk>,
    strides: Vec<isize>,
    added: Vec<&'a [T]>,
}

impl<'a, T: Term> Finisher<'a, T> {
    /// Bias and residual come after both factors. `None` where nothing is to be done.
    pub(super) fn new(finish: Finish, inputs: &'a [HostInput<'_>]) -> Option<Self> {
        let [_, _, added @ ..] = inputs else {
            return None;
        };
        let layouts: Vec<&Layout> = added.iter().map(|input| input.layout).collect();
        let walk = (!added.is_empty()).then(|| parallel::Walk::new(&layouts));
        (finish != Finish::NONE).then(|| Self {
            finish,
            strides: walk
                .as_ref()
                .map_or(Vec::new(), parallel::Walk::inner_strides),
            walk,
            added: added.iter().map(HostInput::elements).collect(),
        })
    }

    /// Finishes sums in place, of which the first is entry `first` of the whole result.
    pub(super) fn finish(&self, first: usize, sums: &mut [T::Sum], on_all_cores: bool) {
        match on_all_cores {
            true => parallel::pieces(sums, |from, piece| self.piece(first + from, piece)),
            false => self.piece(first, sums),
        }
    }

    fn piece(&self, from: usize, piece: &mut [T::Sum]) {
        let scale = T::Sum::from_f32(self.finish.scale);
        if let Some(walk) = &self.walk {
            let length = piece.len();
            walk.runs(from, length, &mut |first, starts, count| {
                let piece = &mut piece[first..first + count];
                let operand = |at: usize| (self.added[at], starts[at], self.strides[at]);
                add(piece, operand(0), |sum, added| sum.combine(scale, added));
                if self.added.len() == 2 {
                    add(piece, operand(1), T::Sum::plus);
                }
            });
        } else if self.finish.scale != 1.0 {
            for sum in piece.iter_mut() {
                *sum = sum.combine(scale, T::Sum::zero());
            }
        }
        activate(self.finish.activation, piece);
    }
}

/// Combines each sum with an operand's entry, from `start` on; unit strides and none take loops that
/// vectorise.
fn add<T: Term>(
    sums: &mut [T::Sum],
    (elements, start, stride): (&[T], isize, isize),
    f: impl Fn(T::Sum, T::Sum) -> T::Sum,
) {
    let first = start as usize;
    match stride {
        1 => {
            let elements = &elements[first..first + sums.len()];
            for (sum, element) in sums.iter_mut().zip(elements) {
                *sum = f(*sum, element.wide());
            }
        }
        0 => {
            let element = elements[first].wide();
            for sum in sums {
                *sum = f(*sum, element);
            }
        }
        _ => {
            for (at, sum) in sums.iter_mut().enumerate() {
                let index = start + at as isize * stride;
                *sum = f(*sum, elements[index as usize].wide());
            }
        }
    }
}

fn activate<S: Sum>(activation: Activation, sums: &mut [S]) {
    let each = |sums: &mut [S], f: fn(S) -> S| {
        for sum in sums {
            *sum = f(*sum);
        }
    };
    match activation {
        Activation::None => {}
        Activation::Relu => each(sums, S::relu),
        Activation::Gelu => each(sums, S::gelu),
        Activation::Silu => each(sums, S::silu),
    }
}
