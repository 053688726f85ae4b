//! Elementwise expressions as data: what a kernel is generated from, and what the twin evaluates.

use std::fmt::Write;

use smallvec::SmallVec;

use super::function::{Function, Kind};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// One value of an expression. Operands are nodes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// An element of an input.
    Input(u8),
    /// A number, of the dtype of what it is combined with.
    Scalar(u8),
    /// A function of as many nodes as it takes.
    Apply(Function, [u8; 3]),
}

/// Nodes; the last one is the result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Expression {
    pub nodes: SmallVec<[Node; 6]>,
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

    /// A function of an input and a number, either first.
    pub(super) fn with_number(function: Function, number_first: bool) -> Self {
        let (first, second) = if number_first { (1, 0) } else { (0, 1) };
        Self {
            nodes: [
                Node::Input(0),
                Node::Scalar(0),
                Node::Apply(function, [first, second, 0]),
            ]
            .into_iter()
            .collect(),
        }
    }

    /// Whether a node after `at` reads `node`.
    pub(super) fn reads_after(&self, at: usize, node: usize) -> bool {
        self.nodes[at + 1..].iter().any(|later| match later {
            Node::Apply(function, operands) => operands[..function.operands()]
                .iter()
                .any(|&operand| usize::from(operand) == node),
            Node::Input(_) | Node::Scalar(_) => false,
        })
    }

    /// The dtype of each node.
    ///
    /// # Errors
    /// Operands of different dtypes, a function that has no meaning for its operands' dtype.
    pub(super) fn types(&self, op: &'static str, inputs: &[DType]) -> Result<Types> {
        let mut known: SmallVec<[Option<DType>; 6]> = SmallVec::new();
        for node in &self.nodes {
            let dtype = match *node {
                Node::Input(input) => inputs.get(usize::from(input)).copied(),
                Node::Scalar(_) => None,
                Node::Apply(function, operands) => {
                    let operands = &operands[..function.operands()];
                    let mut dtypes = operands.iter().filter_map(|&at| known[usize::from(at)]);
                    let first = dtypes.next().ok_or_else(|| {
                        Error::invalid(op, "of numbers alone: one operand must be a tensor")
                    })?;
                    if let Some(other) = dtypes.find(|&other| other != first) {
                        return Err(Error::dtype_mismatch(op, first, other));
                    }
                    let result = function.result(first).ok_or_else(|| {
                        Error::invalid(
                            op,
                            format!(
                                "{} takes {}, not {first}: cast first",
                                function.name(),
                                function.takes()
                            ),
                        )
                    })?;
                    for &at in operands {
                        known[usize::from(at)].get_or_insert(first);
                    }
                    Some(result)
                }
            };
            known.push(dtype);
        }
        known
            .into_iter()
            .collect::<Option<Types>>()
            .ok_or_else(|| Error::invalid(op, "an operand is missing"))
    }

    /// The function `apply` of the generated kernel, on `inputs` of these dtypes.
    pub(super) fn body(&self, types: &Types, inputs: &[DType]) -> String {
        let alias = |dtype| Kind::of(dtype).alias();
        let arguments: Vec<String> = inputs
            .iter()
            .enumerate()
            .map(|(at, &dtype)| format!("a{at}: {}", alias(dtype)))
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
                Node::Scalar(scalar) => {
                    let word = match Kind::of(dtype) {
                        Kind::U32 => format!("params.scalar_{scalar}"),
                        kind => {
                            let plain = if kind == Kind::I32 { "i32" } else { "f32" };
                            format!("bitcast<{plain}>(params.scalar_{scalar})")
                        }
                    };
                    format!("{}({word})", alias(dtype))
                }
                Node::Apply(function, operands) => {
                    let operands = &operands[..function.operands()];
                    let of = types[usize::from(operands[0])];
                    let names: SmallVec<[&str; 3]> = operands
                        .iter()
                        .map(|&at| names[usize::from(at)].as_str())
                        .collect();
                    function.code(Kind::of(of), &names)
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
