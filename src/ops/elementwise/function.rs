//! The functions of elementwise expressions: names, rules, and what they are in WGSL.

use crate::dtype::DType;

/// What kernels and twins compute a dtype's values with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    F64,
    I32,
    U32,
}

impl Kind {
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Kind::F32,
            DType::F64 => Kind::F64,
            DType::I32 => Kind::I32,
            DType::U32 => Kind::U32,
        }
    }

    /// The name in generated code: a number, or four of them.
    pub(super) fn alias(self) -> &'static str {
        match self {
            Kind::F32 => "F",
            Kind::F64 => "D",
            Kind::I32 => "I",
            Kind::U32 => "U",
        }
    }
}

/// A function of one, two or three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) enum Function {
    Add,
    Sub,
    Mul,
    Div,
    Neg,
    Relu,
    Exp,
    Sqrt,
}

/// What a function takes and gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Numbers of one dtype, which the result has too.
    Numbers,
    /// The same of floats.
    Floats,
}

impl Function {
    pub(in crate::ops) const ALL: [Function; 8] = [
        Function::Add,
        Function::Sub,
        Function::Mul,
        Function::Div,
        Function::Neg,
        Function::Relu,
        Function::Exp,
        Function::Sqrt,
    ];

    /// The name in errors, labels and logs, the number of operands, and the rule.
    fn facts(self) -> (&'static str, usize, Rule) {
        match self {
            Function::Add => ("add", 2, Rule::Numbers),
            Function::Sub => ("sub", 2, Rule::Numbers),
            Function::Mul => ("mul", 2, Rule::Numbers),
            Function::Div => ("div", 2, Rule::Numbers),
            Function::Neg => ("neg", 1, Rule::Numbers),
            Function::Relu => ("relu", 1, Rule::Numbers),
            Function::Exp => ("exp", 1, Rule::Floats),
            Function::Sqrt => ("sqrt", 1, Rule::Floats),
        }
    }

    pub(in crate::ops) fn name(self) -> &'static str {
        self.facts().0
    }

    pub(super) fn operands(self) -> usize {
        self.facts().1
    }

    /// The dtype of the result for operands that all have `dtype`; `None` when the function has no
    /// meaning for it.
    pub(super) fn result(self, dtype: DType) -> Option<DType> {
        match self.facts().2 {
            Rule::Numbers => Some(dtype),
            Rule::Floats => dtype.is_float().then_some(dtype),
        }
    }

    /// The dtypes that it takes, in words.
    pub(super) fn takes(self) -> &'static str {
        match self.facts().2 {
            Rule::Numbers => "numbers",
            Rule::Floats => "floats",
        }
    }

    /// Whether WGSL has it for a dtype: of f64 it has arithmetic alone.
    pub(super) fn is_in_kernels(self, dtype: DType) -> bool {
        dtype != DType::F64 || !matches!(self, Function::Exp)
    }

    /// The code, on operands of a kind.
    pub(super) fn code(self, kind: Kind, operands: &[&str]) -> String {
        let all = operands.join(", ");
        let of = kind.alias();
        match (self, operands) {
            (Function::Add, [a, b]) => format!("{a} + {b}"),
            (Function::Sub, [a, b]) => format!("{a} - {b}"),
            (Function::Mul, [a, b]) => format!("{a} * {b}"),
            (Function::Div, [a, b]) if matches!(kind, Kind::F32 | Kind::F64) => {
                format!("{a} / {b}")
            }
            (Function::Div, _) => format!("divide_{of}({all})"),
            (Function::Neg, [a]) if kind == Kind::U32 => format!("U(0u) - {a}"),
            (Function::Neg, [a]) => format!("-{a}"),
            (Function::Relu, [a]) if kind == Kind::U32 => (*a).to_owned(),
            // NaN stays.
            (Function::Relu, [a]) => format!("select({a}, {of}(), {a} < {of}())"),
            (Function::Sqrt, [a]) => format!("sqrt({a})"),
            _ => format!("{}_{of}({all})", self.name()),
        }
    }
}
