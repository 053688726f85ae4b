//! Plain functions of f32 on the CPU, several in one pass over memory: the value that goes from one to
//! the next stays in the processor's registers.

use pulp::{Arch, Simd, WithSimd};
use smallvec::SmallVec;

use super::function::Function;

/// Vectors that a step takes at a time: enough that finding out what to do costs little beside it.
const WIDTH: usize = 8;

/// An array of what an expression is at each place, written out: arrays made by closures go through
/// memory.
macro_rules! each {
    ($at:ident => $value:expr) => {
        each!($at $value, 0 1 2 3 4 5 6 7)
    };
    ($at:ident $value:expr, $($place:literal)*) => {
        [$({
            let $at: usize = $place;
            $value
        }),*]
    };
}

/// Numbers that a step reads.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Number(f32),
    Values(&'a [f32]),
}

/// Of the value of the step before.
#[derive(Clone, Copy)]
enum One {
    Neg,
    Abs,
    Sign,
    Square,
    Sqrt,
}

/// Of that value and another one.
#[derive(Clone, Copy)]
enum Two {
    Add,
    Sub,
    /// The other less the value.
    From,
    Mul,
    Div,
    /// The other by the value.
    Into,
    Min,
    Max,
    /// The other where the value is below it.
    Raise,
    /// The other where the value is above it.
    Lower,
    Leaky,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    One(One),
    Number(Two, f32),
    Values(Two, &'a [f32]),
}

/// Functions one after another, each of what the one before it gives.
#[derive(Default)]
pub(super) struct Chain<'a> {
    first: Option<Source<'a>>,
    steps: SmallVec<[Step<'a>; 8]>,
}

/// Whether a function can be in a chain: a few instructions each.
pub(super) fn is_plain(function: Function) -> bool {
    use Function::*;
    matches!(
        function,
        Add | Sub | Mul | Div | Min | Max | MulAdd | Clamp | Neg | Abs | Sign | Square | Relu
    ) || matches!(function, LeakyRelu | Recip | Sqrt | Rsqrt)
}

/// Whether a plain function goes on with a value that is this operand of it and no other.
pub(super) fn goes_on(function: Function, operand: usize) -> bool {
    match function {
        Function::LeakyRelu | Function::Clamp => operand == 0,
        Function::MulAdd => operand < 2,
        _ => true,
    }
}

impl<'a> Chain<'a> {
    /// A plain function of sources, one of which may be what the chain gives so far: `None`.
    pub(super) fn push(&mut self, function: Function, sources: [Option<Source<'a>>; 3]) {
        let mut sources = sources;
        // On with the value, or else with what is no number.
        let is_turned = match function.operands() {
            1 => false,
            _ if function == Function::LeakyRelu || function == Function::Clamp => false,
            _ => {
                let [first, second, _] = sources;
                second.is_none() || matches!(first, Some(Source::Number(_)))
            }
        };
        if is_turned {
            sources.swap(0, 1);
        }
        if let Some(first) = sources[0] {
            self.first = Some(first);
        }
        let [_, second, third] = sources;
        let zero = Some(Source::Number(0.0));
        let one = Some(Source::Number(1.0));
        match function {
            Function::Neg => self.one(One::Neg),
            Function::Abs => self.one(One::Abs),
            Function::Sign => self.one(One::Sign),
            Function::Square => self.one(One::Square),
            Function::Sqrt => self.one(One::Sqrt),
            // NaN stays.
            Function::Relu => self.two(Two::Raise, zero),
            Function::Recip => self.two(Two::Into, one),
            Function::Rsqrt => {
                self.one(One::Sqrt);
                self.two(Two::Into, one);
            }
            Function::Add => self.two(Two::Add, second),
            Function::Sub if is_turned => self.two(Two::From, second),
            Function::Sub => self.two(Two::Sub, second),
            Function::Mul => self.two(Two::Mul, second),
            Function::Div if is_turned => self.two(Two::Into, second),
            Function::Div => self.two(Two::Div, second),
            // One comparison, where the other is not NaN.
            Function::Min | Function::Max => {
                let is_number = matches!(second, Some(Source::Number(other)) if !other.is_nan());
                let two = match (function, is_number) {
                    (Function::Min, true) => Two::Lower,
                    (Function::Min, false) => Two::Min,
                    (_, true) => Two::Raise,
                    (_, false) => Two::Max,
                };
                self.two(two, second);
            }
            Function::MulAdd => {
                self.two(Two::Mul, second);
                self.two(Two::Add, third);
            }
            // The upper bound where they cross; NaN stays.
            Function::Clamp => {
                self.two(Two::Raise, second);
                self.two(Two::Lower, third);
            }
            _ => self.two(Two::Leaky, second),
        }
    }

    fn one(&mut self, one: One) {
        self.steps.push(Step::One(one));
    }

    fn two(&mut self, two: Two, other: Option<Source<'a>>) {
        self.steps.push(match other {
            Some(Source::Number(number)) => Step::Number(two, number),
            Some(Source::Values(values)) => Step::Values(two, values),
            // Both are the value: of its functions only the square is asked for so.
            None => Step::One(One::Square),
        });
    }

    /// As many values as `out` has.
    pub(super) fn run(&self, out: &mut [f32]) {
        Arch::new().dispatch(Run(self, out));
    }
}

struct Run<'a, 'v>(&'a Chain<'v>, &'a mut [f32]);

impl WithSimd for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run(chain, out) = self;
        let first = chain.first.unwrap_or(Source::Number(0.0));
        let tile = WIDTH * S::F32_LANES;
        let whole = out.len() / tile * tile;
        for at in (0..whole).step_by(tile) {
            let value = values::<S, true>(simd, first, &chain.steps, at);
            let (out, _) = S::as_mut_simd_f32s(&mut out[at..at + tile]);
            out.copy_from_slice(&value);
        }
        if whole < out.len() {
            let value = values::<S, false>(simd, first, &chain.steps, whole);
            for (out, value) in out[whole..].chunks_mut(S::F32_LANES).zip(value) {
                simd.partial_store_f32s(out, value);
            }
        }
    }
}

/// What the last step gives from `at` on; where the tile is not whole, past the end too.
#[inline(always)]
fn values<S: Simd, const WHOLE: bool>(
    simd: S,
    first: Source<'_>,
    steps: &[Step<'_>],
    at: usize,
) -> [S::f32s; WIDTH] {
    let mut value = match first {
        Source::Number(number) => [simd.splat_f32s(number); WIDTH],
        Source::Values(values) => load::<S, WHOLE>(simd, values, at),
    };
    for step in steps {
        value = match *step {
            Step::One(function) => of_one(simd, function, value),
            Step::Number(function, number) => {
                of_two(simd, function, value, [simd.splat_f32s(number); WIDTH])
            }
            Step::Values(function, values) => {
                let other = load::<S, WHOLE>(simd, values, at);
                of_two(simd, function, value, other)
            }
        };
    }
    value
}

#[inline(always)]
fn load<S: Simd, const WHOLE: bool>(simd: S, values: &[f32], at: usize) -> [S::f32s; WIDTH] {
    if WHOLE {
        let (tile, _) = S::as_simd_f32s(&values[at..at + WIDTH * S::F32_LANES]);
        each!(i => tile[i])
    } else {
        let mut vectors = values[at..].chunks(S::F32_LANES);
        each!(_i => simd.partial_load_f32s(vectors.next().unwrap_or_default()))
    }
}

#[inline(always)]
fn of_one<S: Simd>(simd: S, function: One, a: [S::f32s; WIDTH]) -> [S::f32s; WIDTH] {
    match function {
        One::Neg => each!(i => simd.neg_f32s(a[i])),
        One::Abs => each!(i => simd.abs_f32s(a[i])),
        One::Square => each!(i => simd.mul_f32s(a[i], a[i])),
        One::Sqrt => each!(i => simd.sqrt_f32s(a[i])),
        // Zero is of no sign, NaN stays.
        One::Sign => {
            let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
            each!(i => {
                let above = simd.select_f32s(simd.less_than_f32s(zero, a[i]), one, zero);
                let is_below = simd.less_than_f32s(a[i], zero);
                let sign = simd.select_f32s(is_below, simd.neg_f32s(one), above);
                simd.select_f32s(simd.equal_f32s(a[i], a[i]), sign, a[i])
            })
        }
    }
}

#[inline(always)]
fn of_two<S: Simd>(
    simd: S,
    function: Two,
    a: [S::f32s; WIDTH],
    b: [S::f32s; WIDTH],
) -> [S::f32s; WIDTH] {
    match function {
        Two::Add => each!(i => simd.add_f32s(a[i], b[i])),
        Two::Sub => each!(i => simd.sub_f32s(a[i], b[i])),
        Two::From => each!(i => simd.sub_f32s(b[i], a[i])),
        Two::Mul => each!(i => simd.mul_f32s(a[i], b[i])),
        Two::Div => each!(i => simd.div_f32s(a[i], b[i])),
        Two::Into => each!(i => simd.div_f32s(b[i], a[i])),
        Two::Min => each!(i => chosen(simd, simd.less_than_f32s(a[i], b[i]), a[i], b[i])),
        Two::Max => each!(i => chosen(simd, simd.less_than_f32s(b[i], a[i]), a[i], b[i])),
        Two::Raise => each!(i => simd.select_f32s(simd.less_than_f32s(a[i], b[i]), b[i], a[i])),
        Two::Lower => each!(i => simd.select_f32s(simd.less_than_f32s(b[i], a[i]), b[i], a[i])),
        Two::Leaky => {
            let zero = simd.splat_f32s(0.0);
            each!(i => {
                let is_below = simd.less_than_f32s(a[i], zero);
                simd.select_f32s(is_below, simd.mul_f32s(a[i], b[i]), a[i])
            })
        }
    }
}

/// The first where it is chosen or NaN, else the second: where that is NaN, nothing is chosen.
#[inline(always)]
fn chosen<S: Simd>(simd: S, is_chosen: S::m32s, a: S::f32s, b: S::f32s) -> S::f32s {
    let either = simd.select_f32s(is_chosen, a, b);
    simd.select_f32s(simd.equal_f32s(a, a), either, a)
}
