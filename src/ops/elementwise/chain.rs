//! Plain functions of floats on the CPU, several in one pass over memory: the value that goes from one to
//! the next stays in the processor's registers.

use bytemuck::cast_slice_mut;
use pulp::{Arch, Simd, WithSimd};
use smallvec::SmallVec;

use super::expression::{Expression, Node, Types};
use super::function::Function;
use super::lanes::Lanes;
use crate::cpu::parallel::Grid;
use crate::dtype::{DType, ElementBytes};
use crate::road::HostInput;

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
pub(super) enum Source<'a, T> {
    Number(T),
    Values(Elements<'a, T>),
}

/// As many as the output has.
#[derive(Clone, Copy)]
pub(super) enum Elements<'a, T> {
    /// In its order.
    InOrder(&'a [T]),
    /// (By reference: chains are moved.)
    Rows(&'a Rows<'a, T>),
    /// What the output held.
    Old,
}

/// By rows of the output, each of neighbours or of one value.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub elements: &'a [T],
    pub grid: Grid,
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
enum Step<'a, T> {
    One(One),
    Number(Two, T),
    Values(Two, Elements<'a, T>),
}

/// Functions one after another, each of what the one before it gives.
pub(super) struct Chain<'a, T> {
    first: Source<'a, T>,
    steps: SmallVec<[Step<'a, T>; 8]>,
    /// Of a row; `None` where sources know of no rows.
    columns: Option<usize>,
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

/// How a node is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It is not computed, or in a loop of its own.
    Alone,
    /// In the loop of the next one that is computed, which alone reads it.
    Flows,
    /// With those before it from this one on.
    Ends(u8),
}

pub(super) fn is_computed(node: &Node) -> bool {
    matches!(node, Node::Apply(..) | Node::Cast(..))
}

/// Chains of plain functions of floats: from nodes to the next one that is computed.
pub(super) fn roles(expression: &Expression, types: &Types) -> SmallVec<[Role; 8]> {
    let is_link = |node: &Node| match *node {
        Node::Apply(function, operands) => {
            types[usize::from(operands[0])].is_float() && is_plain(function)
        }
        _ => false,
    };
    let nodes = &expression.nodes;
    let mut start = None;
    let mut roles = SmallVec::new();
    for (at, node) in nodes.iter().enumerate() {
        if !is_link(node) {
            roles.push(Role::Alone);
            continue;
        }
        let next = (at + 1..nodes.len()).find(|&next| is_computed(&nodes[next]));
        let flows = next.is_some_and(|next| {
            let Node::Apply(function, _) = nodes[next] else {
                return false;
            };
            let mut reads = nodes[next].reads().iter();
            let place = reads.position(|&read| usize::from(read) == at);
            let is_twice = reads.any(|&read| usize::from(read) == at);
            is_link(&nodes[next])
                && place.is_some_and(|place| goes_on(function, place))
                && (!is_twice || function == Function::Mul)
                && !expression.reads_after(next, at)
        });
        let first = *start.get_or_insert(at);
        roles.push(match flows {
            true => Role::Flows,
            false => {
                start = None;
                Role::Ends(first as u8)
            }
        });
    }
    roles
}

/// Writes the output of one plain function of numbers and of whole inputs, floats that are not widened, and says whether it is
/// that: where elements are few, all that is found out for other expressions takes several times as long.
pub(super) fn at_once(
    expression: &Expression,
    numbers: &[ElementBytes],
    inputs: &[HostInput<'_>],
    dtype: DType,
    out: &mut [u8],
) -> bool {
    match dtype {
        DType::F32 => at_once_of::<f32>(expression, numbers, inputs, dtype, cast_slice_mut(out)),
        DType::F64 => at_once_of::<f64>(expression, numbers, inputs, dtype, cast_slice_mut(out)),
        _ => None,
    }
    .is_some()
}

fn at_once_of<T: Lanes + bytemuck::Pod>(
    expression: &Expression,
    numbers: &[ElementBytes],
    inputs: &[HostInput<'_>],
    dtype: DType,
    out: &mut [T],
) -> Option<()> {
    let (node, read) = expression.nodes.split_last()?;
    let function = match *node {
        Node::Apply(function, _) if is_plain(function) && !read.iter().any(is_computed) => function,
        _ => return None,
    };
    let mut sources = [None; 3];
    for (source, &of) in sources.iter_mut().zip(node.reads()) {
        *source = Some(match *read.get(usize::from(of))? {
            Node::Scalar(number) => {
                let number = numbers.get(usize::from(number))?.as_slice();
                Source::Number(bytemuck::try_pod_read_unaligned(number).ok()?)
            }
            Node::Input(input) => {
                let input = inputs.get(usize::from(input))?;
                if input.dtype != dtype || !input.layout.is_contiguous() {
                    return None;
                }
                let first = input.layout.offset();
                let elements = input.elements().get(first..first + out.len())?;
                Source::Values(Elements::InOrder(elements))
            }
            Node::Old => Source::Values(Elements::Old),
            Node::Apply(..) | Node::Cast(..) => return None,
        });
    }
    let mut chain = Chain::new();
    chain.push(function, sources);
    chain.run(out);
    Some(())
}

impl<'a, T: Lanes> Chain<'a, T> {
    pub(super) fn new() -> Self {
        Self {
            first: Source::Number(T::ZERO),
            steps: SmallVec::new(),
            columns: None,
        }
    }

    /// Of whole rows, of so many values each.
    pub(super) fn of_rows(columns: usize) -> Self {
        Self {
            columns: Some(columns),
            ..Self::new()
        }
    }

    /// A plain function of sources, one of which may be what the chain gives so far: `None`.
    pub(super) fn push(&mut self, function: Function, sources: [Option<Source<'a, T>>; 3]) {
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
            self.first = first;
        }
        let [_, second, third] = sources;
        let zero = Some(Source::Number(T::ZERO));
        let one = Some(Source::Number(T::ONE));
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

    fn two(&mut self, two: Two, other: Option<Source<'a, T>>) {
        self.steps.push(match other {
            Some(Source::Number(number)) => Step::Number(two, number),
            Some(Source::Values(values)) => Step::Values(two, values),
            // Both are the value: of its functions only the square is asked for so.
            None => Step::One(One::Square),
        });
    }

    /// As many values as `out` has.
    pub(super) fn run(&self, out: &mut [T]) {
        Arch::new().dispatch(Run(self, out));
    }
}

struct Run<'a, 'v, T>(&'a Chain<'v, T>, &'a mut [T]);

impl<T: Lanes> WithSimd for Run<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run(chain, out) = self;
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        let tile = WIDTH * lanes;
        let columns = chain.columns.unwrap_or(out.len()).max(1);
        let whole = out.len() / tile * tile;
        let is_short =
            columns < tile && tile.is_multiple_of(columns) && columns.is_multiple_of(lanes);
        // Several short rows at a time, and what is left of them, or else all, row by row.
        let several = if is_short { whole } else { 0 };
        let (first, rest) = out.split_at_mut(several);
        let rows = if is_short { several / columns } else { 0 };
        let rest = rest.chunks_mut(columns).zip(rows..);
        for (line, row) in std::iter::once((first, 0)).chain(rest) {
            let is_one = row >= rows;
            let mut place = match is_one {
                true => Place::of_row(row, row * columns),
                false => Place {
                    shift: (columns / lanes).trailing_zeros(),
                    ..Place::of_row(0, 0)
                },
            };
            let mut tiles = line.chunks_exact_mut(tile);
            for out in &mut tiles {
                let value = values::<T, S, true>(simd, chain, place, out);
                T::vectors_mut::<S>(out).copy_from_slice(&value);
                place.at += tile;
                match is_one {
                    true => place.column += tile,
                    false => place.row += WIDTH >> place.shift,
                }
            }
            let out = tiles.into_remainder();
            if !out.is_empty() {
                place.count = out.len();
                let value = values::<T, S, false>(simd, chain, place, out);
                for (out, value) in out.chunks_mut(lanes).zip(value) {
                    T::partial_store(simd, out, value);
                }
            }
        }
    }
}

/// Where a tile is.
#[derive(Clone, Copy)]
struct Place {
    /// Its first value, of all and in its row.
    at: usize,
    row: usize,
    column: usize,
    /// Its values, where it is not whole.
    count: usize,
    /// A row has two to the power of this vectors of it.
    shift: u32,
}

impl Place {
    fn of_row(row: usize, at: usize) -> Self {
        Self {
            at,
            row,
            column: 0,
            count: 0,
            shift: WIDTH.trailing_zeros(),
        }
    }
}

/// What the last step gives at a place, where the output held `old`; where the tile is not whole, past the end too.
#[inline(always)]
fn values<T: Lanes, S: Simd, const WHOLE: bool>(
    simd: S,
    chain: &Chain<'_, T>,
    place: Place,
    old: &[T],
) -> [T::Vector<S>; WIDTH] {
    let mut value = match chain.first {
        Source::Number(number) => [T::splat(simd, number); WIDTH],
        Source::Values(elements) => load::<T, S, WHOLE>(simd, elements, place, old),
    };
    for step in &chain.steps {
        value = match *step {
            Step::One(function) => of_one::<T, S>(simd, function, value),
            Step::Number(function, number) => {
                of_two::<T, S>(simd, function, value, [T::splat(simd, number); WIDTH])
            }
            Step::Values(function, elements) => {
                let other = load::<T, S, WHOLE>(simd, elements, place, old);
                of_two::<T, S>(simd, function, value, other)
            }
        };
    }
    value
}

#[inline(always)]
fn load<T: Lanes, S: Simd, const WHOLE: bool>(
    simd: S,
    elements: Elements<'_, T>,
    place: Place,
    old: &[T],
) -> [T::Vector<S>; WIDTH] {
    let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
    let (values, start) = match elements {
        Elements::InOrder(values) => (values, place.at),
        Elements::Old => (old, 0),
        // In one row, or else vector by vector.
        Elements::Rows(&Rows {
            elements: values,
            grid,
        }) if !WHOLE || 1 << place.shift == WIDTH => {
            let start = grid.at(place.row, place.column) as usize;
            if grid.column == 0 {
                return [T::splat(simd, values[start]); WIDTH];
            }
            (values, start)
        }
        Elements::Rows(&Rows {
            elements: values,
            grid,
        }) => {
            let start = grid.at(place.row, 0);
            let row =
                |vector: usize| (start + (vector >> place.shift) as isize * grid.row) as usize;
            if grid.column == 0 {
                return each!(i => T::splat(simd, values[row(i)]));
            }
            let of_row = (1 << place.shift) - 1;
            return each!(i => {
                let start = row(i) + (i & of_row) * lanes;
                T::vectors::<S>(&values[start..start + lanes])[0]
            });
        }
    };
    if WHOLE {
        let tile = T::vectors::<S>(&values[start..start + WIDTH * lanes]);
        each!(i => tile[i])
    } else {
        let mut vectors = values[start..start + place.count].chunks(lanes);
        each!(_i => T::partial_load(simd, vectors.next().unwrap_or_default()))
    }
}

#[inline(always)]
fn of_one<T: Lanes, S: Simd>(
    simd: S,
    function: One,
    a: [T::Vector<S>; WIDTH],
) -> [T::Vector<S>; WIDTH] {
    match function {
        One::Neg => each!(i => T::neg(simd, a[i])),
        One::Abs => each!(i => T::abs(simd, a[i])),
        One::Square => each!(i => T::mul(simd, a[i], a[i])),
        One::Sqrt => each!(i => T::sqrt(simd, a[i])),
        // Zero is of no sign, NaN stays.
        One::Sign => {
            let (zero, one) = (T::splat(simd, T::ZERO), T::splat(simd, T::ONE));
            each!(i => {
                let above = T::less(simd, zero, a[i], one, zero);
                let sign = T::less(simd, a[i], zero, T::neg(simd, one), above);
                T::number(simd, a[i], sign)
            })
        }
    }
}

#[inline(always)]
fn of_two<T: Lanes, S: Simd>(
    simd: S,
    function: Two,
    a: [T::Vector<S>; WIDTH],
    b: [T::Vector<S>; WIDTH],
) -> [T::Vector<S>; WIDTH] {
    match function {
        Two::Add => each!(i => T::add(simd, a[i], b[i])),
        Two::Sub => each!(i => T::sub(simd, a[i], b[i])),
        Two::From => each!(i => T::sub(simd, b[i], a[i])),
        Two::Mul => each!(i => T::mul(simd, a[i], b[i])),
        Two::Div => each!(i => T::div(simd, a[i], b[i])),
        Two::Into => each!(i => T::div(simd, b[i], a[i])),
        // The first where it is less, or greater, or NaN, else the second: where that is NaN, nothing is less.
        Two::Min => each!(i => T::number(simd, a[i], T::less(simd, a[i], b[i], a[i], b[i]))),
        Two::Max => each!(i => T::number(simd, a[i], T::less(simd, b[i], a[i], a[i], b[i]))),
        Two::Raise => each!(i => T::less(simd, a[i], b[i], b[i], a[i])),
        Two::Lower => each!(i => T::less(simd, b[i], a[i], b[i], a[i])),
        Two::Leaky => {
            let zero = T::splat(simd, T::ZERO);
            each!(i => T::less(simd, a[i], zero, T::mul(simd, a[i], b[i]), a[i]))
        }
    }
}
