//! The epilogue on the CPU: what is done to sums before they are rounded and stored.

use half::{bf16, f16};

use super::rule::{Activation, Finish};
use crate::cpu::narrow::Narrow;
use crate::cpu::{Loops, parallel, vectorised};
use crate::dtype::Element;
use crate::layout::Layout;
use crate::ops::elementwise::Real;
use crate::ops::reduce::Float;
use crate::road::HostInput;

/// A type that sums are kept in.
pub(super) trait Sum: Element + Real + Float {}

impl Sum for f32 {}
impl Sum for f64 {}

/// An element type with the type that its sums are kept in.
pub(super) trait Term: Element + bytemuck::Pod {
    type Sum: Sum;
    fn wide(self) -> Self::Sum;
}

impl Term for f32 {
    type Sum = f32;
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

impl Term for f64 {
    type Sum = f64;
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
}

macro_rules! half {
    ($rust:ty) => {
        impl Term for $rust {
            type Sum = f32;
            #[inline(always)]
            fn wide(self) -> f32 {
                self.widened()
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
        if finish == Finish::NONE {
            return None;
        }
        let layouts: Vec<&Layout> = added.iter().map(|input| input.layout).collect();
        let walk = (!added.is_empty()).then(|| parallel::Walk::new(&layouts));
        Some(Self {
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
        let scale = T::Sum::of(self.finish.scale);
        if let Some(walk) = &self.walk {
            let length = piece.len();
            walk.runs(from, length, &mut |first, starts, count| {
                let piece = &mut piece[first..first + count];
                let operand = |at: usize| (self.added[at], starts[at], self.strides[at]);
                add(
                    piece,
                    operand(0),
                    #[inline(always)]
                    |sum: T::Sum, added| scale * sum + added,
                );
                if self.added.len() == 2 {
                    add(
                        piece,
                        operand(1),
                        #[inline(always)]
                        |sum: T::Sum, added| sum + added,
                    );
                }
            });
        } else if self.finish.scale != 1.0 {
            for sum in piece.iter_mut() {
                *sum = scale * *sum + <T::Sum as Float>::ZERO;
            }
        }
        if self.finish.activation != Activation::None {
            vectorised(Activate(self.finish.activation, piece));
        }
    }
}

/// Combines each sum with an operand's entry, from `start` on; unit strides and none take loops that
/// vectorise.
fn add<T: Term>(
    sums: &mut [T::Sum],
    operand: (&[T], isize, isize),
    f: impl Fn(T::Sum, T::Sum) -> T::Sum,
) {
    vectorised(Added { sums, operand, f });
}

struct Added<'a, T: Term, F> {
    sums: &'a mut [T::Sum],
    operand: (&'a [T], isize, isize),
    f: F,
}

impl<T: Term, F: Fn(T::Sum, T::Sum) -> T::Sum> Loops for Added<'_, T, F> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Added { sums, operand, f } = self;
        let (elements, start, stride) = operand;
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
}

/// An activation of each sum, in place.
struct Activate<'a, S>(Activation, &'a mut [S]);

impl<S: Sum> Loops for Activate<'_, S> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Activate(activation, sums) = self;
        match activation {
            Activation::None => {}
            Activation::Relu => {
                for sum in sums {
                    // NaN stays.
                    let zero = <S as Float>::ZERO;
                    *sum = if *sum < zero { zero } else { *sum };
                }
            }
            Activation::Gelu => {
                for sum in sums {
                    *sum = sum.gelu::<FUSED>();
                }
            }
            Activation::Silu => {
                for sum in sums {
                    *sum = sum.silu::<FUSED>();
                }
            }
        }
    }
}
