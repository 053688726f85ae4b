//! Elementwise expressions as data: what a kernel is generated from, and what the twin evaluates.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::function::{Function, Kind, cast_code};
use super::launch::{Cost, MANY_LONG};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};

/// One value of an expression. Operands are nodes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// An element of an input.
    Input(u8),
    /// What the output held, where it is written in place.
    Old,
    /// A number, of the dtype of what it is combined with.
    Scalar(u8),
    /// A function of as many nodes as it takes.
    Apply(Function, [u8; 3]),
    /// A node as another dtype.
    Cast(DType, u8),
}

impl Node {
    /// The nodes that it reads.
    pub(super) fn reads(&self) -> &[u8] {
        match self {
            Node::Input(_) | Node::Old | Node::Scalar(_) => &[],
            Node::Apply(function, operands) => &operands[..function.operands()],
            Node::Cast(_, operand) => std::slice::from_ref(operand),
        }
    }
}

/// The second, third and fourth power of a node by products, which lose 2 ULP at most and wait for memory alone. Other powers
/// have none: the square roots of minus infinity and of minus zero, say, are not their powers. Nor has bool, whose powers are
/// refused by that name.
pub(super) fn power_by_products(
    (base, dtype): (u8, Option<DType>),
    power: Scalar,
    mut push: impl FnMut(Node) -> u8,
) -> Option<u8> {
    let power = match power {
        Scalar::Float(power) => power,
        Scalar::Integer(power @ 2..=4) => power as f64,
        Scalar::Integer(_) => return None,
    };
    if ![2.0, 3.0, 4.0].contains(&power) || dtype == Some(DType::Bool) {
        return None;
    }
    let square = push(Node::Apply(Function::Square, [base, 0, 0]));
    Some(match power {
        2.0 => square,
        3.0 => push(Node::Apply(Function::Mul, [square, base, 0])),
        _ => push(Node::Apply(Function::Square, [square, 0, 0])),
    })
}

/// Nodes; the last one is the result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Expression {
    pub nodes: SmallVec<[Node; 6]>,
}

/// Expressions whose bodies a thread keeps; with one more it starts anew.
const MOST_BODIES: usize = 256;

/// An expression's body for inputs, and for what is written into, of some dtypes.
struct Body {
    inputs: SmallVec<[DType; 4]>,
    old: Option<DType>,
    code: Arc<str>,
}

thread_local! {
    static BODIES: RefCell<FxHashMap<Expression, Vec<Body>>> = RefCell::default();
}

/// The dtype of each node.
pub(super) type Types = SmallVec<[DType; 6]>;

impl Expression {
    /// A function of inputs in their order.
    pub(super) fn of_inputs(function: Function) -> Self {
        let mut nodes: SmallVec<[Node; 6]> =
            (0..function.operands() as u8).map(Node::Input).collect();
        nodes.push(Node::Apply(function, [0, 1, 2]));
        Self { nodes }
    }

    /// An input as another dtype.
    pub(super) fn cast(dtype: DType) -> Self {
        Self {
            nodes: [Node::Input(0), Node::Cast(dtype, 0)].into_iter().collect(),
        }
    }

    /// Whether a node after `at` reads `node`.
    pub(super) fn reads_after(&self, at: usize, node: usize) -> bool {
        let mut later = self.nodes[at + 1..].iter().flat_map(Node::reads);
        later.any(|&read| usize::from(read) == node)
    }

    /// The dtype of each node, from those of inputs.
    ///
    /// # Errors
    /// Operands of different dtypes, a function that has no meaning for its operands' dtype.
    pub(super) fn types(
        &self,
        op: &'static str,
        input: &dyn Fn(usize) -> Option<DType>,
        old: Option<DType>,
    ) -> Result<Types> {
        let mut known: SmallVec<[Option<DType>; 6]> = SmallVec::new();
        for node in &self.nodes {
            let dtype = match *node {
                Node::Input(at) => input(usize::from(at)),
                Node::Old => old,
                Node::Scalar(_) => None,
                Node::Cast(to, operand) => {
                    known[usize::from(operand)].ok_or_else(|| numbers_alone(op, "cast"))?;
                    Some(to)
                }
                Node::Apply(function, operands) => {
                    let operands = &operands[..function.operands()];
                    let (choice, alike) = operands.split_at(function.first_alike());
                    for &at in choice {
                        let choice = *known[usize::from(at)].get_or_insert(DType::Bool);
                        if choice != DType::Bool {
                            let rule = "what chooses is bool";
                            return Err(Error::operand_dtype(op, choice, DType::Bool, rule));
                        }
                    }
                    let mut dtypes = alike.iter().filter_map(|&at| known[usize::from(at)]);
                    let alone = || numbers_alone(op, function.name());
                    let first = dtypes.next().ok_or_else(alone)?;
                    if let Some(other) = dtypes.find(|&other| other != first) {
                        return Err(Error::dtype_mismatch(op, first, other));
                    }
                    let result = function
                        .result(first)
                        .ok_or_else(|| not_taken(op, function, first))?;
                    for &at in alike {
                        known[usize::from(at)].get_or_insert(first);
                    }
                    Some(result)
                }
            };
            known.push(dtype);
        }
        let mut types = Types::new();
        for dtype in &known {
            types.push(dtype.ok_or_else(|| Error::invalid(op, "an operand is missing"))?);
        }
        Ok(types)
    }

    /// What its functions take.
    pub(super) fn cost(&self) -> Cost {
        let (mut is_plain, mut long) = (true, 0);
        for node in &self.nodes {
            if let Node::Apply(function, _) = node {
                is_plain &= function.is_plain();
                long += usize::from(function.is_long());
            }
        }
        match is_plain {
            true => Cost::Plain,
            false if long > MANY_LONG => Cost::Long,
            false => Cost::Mixed,
        }
    }

    /// [`Expression::body`], kept for the next call of the same expression on this thread.
    pub(super) fn code(&self, types: &Types, inputs: &[DType], old: Option<DType>) -> Arc<str> {
        let kept = BODIES.try_with(|bodies| {
            let bodies = &mut *bodies.borrow_mut();
            let written = bodies.get(self).into_iter().flatten();
            let known = written
                .into_iter()
                .find(|body| body.old == old && *body.inputs == *inputs);
            if let Some(body) = known {
                return Arc::clone(&body.code);
            }
            let code: Arc<str> = self.body(types, inputs, old).into();
            if bodies.len() >= MOST_BODIES {
                bodies.clear();
            }
            bodies.entry(self.clone()).or_default().push(Body {
                inputs: inputs.into(),
                old,
                code: Arc::clone(&code),
            });
            code
        });
        // A thread that is ending keeps nothing.
        kept.unwrap_or_else(|_| self.body(types, inputs, old).into())
    }

    /// The function `apply` of the generated kernel, on `inputs` of these dtypes and on what the output
    /// held.
    pub(super) fn body(&self, types: &Types, inputs: &[DType], old: Option<DType>) -> String {
        let alias = |dtype| Kind::of(dtype).alias();
        let arguments: Vec<String> = inputs
            .iter()
            .enumerate()
            .map(|(at, &dtype)| format!("a{at}: {}", alias(dtype)))
            .chain(old.map(|dtype| format!("old: {}", alias(dtype))))
            .collect();
        let result = types.last().copied().map_or("F", alias);
        let mut body = format!("fn apply({}) -> {result} {{\n", arguments.join(", "));
        let mut names: Vec<String> = Vec::new();
        for (at, (node, &dtype)) in self.nodes.iter().zip(types).enumerate() {
            let code = match *node {
                Node::Input(input) => {
                    names.push(format!("a{input}"));
                    continue;
                }
                Node::Old => {
                    names.push("old".to_owned());
                    continue;
                }
                Node::Scalar(scalar) => {
                    let word = format!("params.scalar_{scalar}");
                    match Kind::of(dtype) {
                        Kind::U32 => format!("U({word})"),
                        Kind::I32 => format!("I(bitcast<i32>({word}))"),
                        Kind::Bool => format!("B({word} != 0u)"),
                        Kind::F32 | Kind::F64 => format!("F(bitcast<f32>({word}))"),
                    }
                }
                Node::Apply(function, operands) => {
                    let operands = &operands[..function.operands()];
                    // Those of a select's choice are its bool's.
                    let of = types[usize::from(operands[function.first_alike()])];
                    let names: SmallVec<[&str; 3]> = operands
                        .iter()
                        .map(|&at| names[usize::from(at)].as_str())
                        .collect();
                    function.code(Kind::of(of), &names)
                }
                Node::Cast(to, operand) => {
                    let operand = usize::from(operand);
                    cast_code(types[operand], to, &names[operand])
                }
            };
            // Writing to a String never fails.
            let _ = writeln!(body, "    let n{at} = {code};");
            names.push(format!("n{at}"));
        }
        let last = names.last().map_or("", String::as_str);
        let _ = write!(body, "    return {last};\n}}");
        body
    }
}

/// A function of an expression does not take a dtype.
fn not_taken(op: &'static str, function: Function, dtype: DType) -> Error {
    let (name, takes) = (function.name(), function.takes());
    let who = match name == op {
        true => String::new(),
        false => format!("{name} "),
    };
    let help = match (takes, dtype) {
        ("integers", DType::Bool) => "`logical_and` and its like take it",
        _ => "cast first",
    };
    Error::invalid(op, format!("{who}takes {takes}, not {dtype}: {help}"))
}

fn numbers_alone(op: &'static str, function: &str) -> Error {
    let help = match function {
        "select" => "one of both values must be a tensor: of a mask alone, `cast` makes numbers",
        _ => "one of those that it combines must be a tensor",
    };
    Error::invalid(op, format!("`{function}` of numbers alone: {help}"))
}
