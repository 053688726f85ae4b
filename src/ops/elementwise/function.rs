//! The functions of elementwise expressions: names, rules, and what they are in WGSL.

use crate::dtype::DType;

/// What kernels and twins compute a dtype's values with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    F64,
    I32,
    U32,
    Bool,
}

impl Kind {
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Kind::F32,
            DType::F64 => Kind::F64,
            DType::I32 => Kind::I32,
            DType::U32 => Kind::U32,
            DType::Bool => Kind::Bool,
        }
    }

    /// The name in generated code: a number, or four of them.
    pub(super) fn alias(self) -> &'static str {
        match self {
            Kind::F32 => "F",
            Kind::F64 => "D",
            Kind::I32 => "I",
            Kind::U32 => "U",
            Kind::Bool => "B",
        }
    }

    /// Bytes of a value in the twin.
    pub(super) fn bytes(self) -> usize {
        match self {
            Kind::F64 => 8,
            Kind::F32 | Kind::I32 | Kind::U32 => 4,
            Kind::Bool => 1,
        }
    }
}

/// What a function takes and gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Numbers of one dtype, which the result has too.
    Numbers,
    /// The same of floats.
    Floats,
    /// Whether floats are something.
    FloatTest,
    /// Compares elements of one dtype.
    Comparison,
    /// Of bools.
    Logical,
    /// Of integers of one dtype, which the result has too.
    Bits,
    /// A bool chooses between two elements of one dtype.
    Select,
}

macro_rules! functions {
    ($($function:ident $name:ident $operands:literal $rule:ident,)*) => {
        /// A function of one, two or three values.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(in crate::ops) enum Function {
            $($function,)*
        }

        impl Function {
            pub(in crate::ops) const ALL: &'static [Function] = &[$(Function::$function,)*];

            /// The name in errors, labels and logs, the number of operands, and the rule.
            fn facts(self) -> (&'static str, usize, Rule) {
                match self {
                    $(Function::$function => (stringify!($name), $operands, Rule::$rule),)*
                }
            }
        }
    };
}

functions! {
    Add add 2 Numbers,
    Sub sub 2 Numbers,
    Mul mul 2 Numbers,
    Div div 2 Numbers,
    Rem rem 2 Numbers,
    Pow pow 2 Numbers,
    Min minimum 2 Numbers,
    Max maximum 2 Numbers,
    MulAdd mul_add 3 Numbers,
    Clamp clamp 3 Numbers,
    Neg neg 1 Numbers,
    Abs abs 1 Numbers,
    Sign sign 1 Numbers,
    Square square 1 Numbers,
    Relu relu 1 Numbers,
    LeakyRelu leaky_relu 2 Floats,
    Recip recip 1 Floats,
    Sqrt sqrt 1 Floats,
    Rsqrt rsqrt 1 Floats,
    Floor floor 1 Floats,
    Ceil ceil 1 Floats,
    Round round 1 Floats,
    Trunc trunc 1 Floats,
    Exp exp 1 Floats,
    Exp2 exp2 1 Floats,
    Expm1 expm1 1 Floats,
    Log log 1 Floats,
    Log2 log2 1 Floats,
    Log1p log1p 1 Floats,
    Sin sin 1 Floats,
    Cos cos 1 Floats,
    Tan tan 1 Floats,
    Asin asin 1 Floats,
    Acos acos 1 Floats,
    Atan atan 1 Floats,
    Atan2 atan2 2 Floats,
    Sinh sinh 1 Floats,
    Cosh cosh 1 Floats,
    Asinh asinh 1 Floats,
    Acosh acosh 1 Floats,
    Atanh atanh 1 Floats,
    Tanh tanh 1 Floats,
    Sigmoid sigmoid 1 Floats,
    Erf erf 1 Floats,
    Gelu gelu 1 Floats,
    GeluTanh gelu_tanh 1 Floats,
    Silu silu 1 Floats,
    Softplus softplus 1 Floats,
    IsNan is_nan 1 FloatTest,
    IsFinite is_finite 1 FloatTest,
    Eq eq 2 Comparison,
    Ne ne 2 Comparison,
    Lt lt 2 Comparison,
    Le le 2 Comparison,
    Gt gt 2 Comparison,
    Ge ge 2 Comparison,
    And logical_and 2 Logical,
    Or logical_or 2 Logical,
    Xor logical_xor 2 Logical,
    Not logical_not 1 Logical,
    BitAnd bitwise_and 2 Bits,
    BitOr bitwise_or 2 Bits,
    BitXor bitwise_xor 2 Bits,
    BitNot bitwise_not 1 Bits,
    ShiftLeft shift_left 2 Bits,
    ShiftRight shift_right 2 Bits,
    Select select 3 Select,
}

impl Function {
    pub(in crate::ops) fn name(self) -> &'static str {
        self.facts().0
    }

    pub(super) fn operands(self) -> usize {
        self.facts().1
    }

    /// The first operand that has the dtype of the result's elements: those from there on share it.
    pub(super) fn first_alike(self) -> usize {
        usize::from(self.facts().2 == Rule::Select)
    }

    /// The dtype of the result for operands that all have `dtype` (but a select's condition, which
    /// is bool); `None` when the function has no meaning for it.
    pub(super) fn result(self, dtype: DType) -> Option<DType> {
        let is_bool = dtype == DType::Bool;
        match self.facts().2 {
            Rule::Numbers => (!is_bool).then_some(dtype),
            Rule::Floats => dtype.is_float().then_some(dtype),
            Rule::FloatTest => dtype.is_float().then_some(DType::Bool),
            Rule::Comparison => Some(DType::Bool),
            Rule::Logical => is_bool.then_some(DType::Bool),
            Rule::Bits => matches!(dtype, DType::I32 | DType::U32).then_some(dtype),
            Rule::Select => Some(dtype),
        }
    }

    /// The dtypes that it takes, in words.
    pub(super) fn takes(self) -> &'static str {
        match self.facts().2 {
            Rule::Numbers => "numbers",
            Rule::Floats | Rule::FloatTest => "floats",
            Rule::Comparison | Rule::Select => "any dtype",
            Rule::Logical => "bool",
            Rule::Bits => "integers",
        }
    }

    /// A few instructions of the processor, which WGSL has for f64 too.
    pub(super) fn is_plain(self) -> bool {
        use Function::*;
        matches!(
            self,
            Add | Sub | Mul | Div | Min | Max | MulAdd | Clamp | Neg | Abs | Sign | Square | Relu
        ) || matches!(
            self,
            LeakyRelu | Recip | Sqrt | Rsqrt | Floor | Ceil | Round | Trunc
        )
    }

    /// Dozens of instructions.
    pub(super) fn is_long(self) -> bool {
        matches!(self.facts().2, Rule::Numbers | Rule::Floats) && !self.is_plain()
    }

    /// Whether kernels have it for a dtype: of f64 they have what WGSL has.
    pub(super) fn is_in_kernels(self, dtype: DType) -> bool {
        use Function::*;
        let tests = matches!(
            self,
            IsNan | IsFinite | Eq | Ne | Lt | Le | Gt | Ge | Select
        );
        dtype != DType::F64 || self.is_plain() || tests
    }

    /// Whether compilers make a number of it where both operands are one value, also of infinities, NaN and zeros, which
    /// give NaN: Mesa's 0 of `a - a`, NVIDIA's 1 of `a / a`.
    pub(super) fn folds_alike(self) -> bool {
        matches!(self, Function::Sub | Function::Div)
    }

    /// The code, on operands of a kind.
    pub(super) fn code(self, kind: Kind, operands: &[&str]) -> String {
        let all = operands.join(", ");
        let of = kind.alias();
        let (a, b) = (
            operands.first().copied().unwrap_or_default(),
            operands.get(1).copied().unwrap_or_default(),
        );
        let is_float = matches!(kind, Kind::F32 | Kind::F64);
        match self {
            Function::Add => format!("{a} + {b}"),
            Function::Sub => format!("{a} - {b}"),
            Function::Mul => format!("{a} * {b}"),
            Function::Div if is_float => format!("{a} / {b}"),
            Function::Min if !is_float => format!("min({all})"),
            Function::Max if !is_float => format!("max({all})"),
            Function::Clamp if !is_float => format!("min(max({a}, {b}), {})", operands[2]),
            Function::MulAdd => format!("{a} * {b} + {}", operands[2]),
            Function::Neg if kind == Kind::U32 => format!("U(0u) - {a}"),
            Function::Neg => format!("-{a}"),
            Function::Abs | Function::Relu if kind == Kind::U32 => a.to_owned(),
            Function::Abs => format!("abs({a})"),
            Function::Square => format!("{a} * {a}"),
            Function::Relu if kind == Kind::I32 => format!("max({a}, I(0))"),
            Function::Recip => format!("{of}(1.0) / {a}"),
            Function::Rsqrt => format!("{of}(1.0) / sqrt_{of}({a})"),
            Function::Sqrt => format!("sqrt_{of}({a})"),
            Function::Round | Function::Trunc if kind == Kind::F64 => {
                format!("{}_D({a})", self.name())
            }
            Function::Floor | Function::Ceil | Function::Round | Function::Trunc => {
                format!("{}({a})", self.name())
            }
            Function::Eq if kind == Kind::Bool => format!("{a} == {b}"),
            Function::Ne if kind == Kind::Bool => format!("{a} != {b}"),
            Function::Lt if kind == Kind::Bool => format!("!{a} & {b}"),
            Function::Le if kind == Kind::Bool => format!("!{a} | {b}"),
            Function::Gt if kind == Kind::Bool => format!("{a} & !{b}"),
            Function::Ge if kind == Kind::Bool => format!("{a} | !{b}"),
            // NaN is told by its bits.
            Function::Eq
            | Function::Ne
            | Function::Lt
            | Function::Le
            | Function::Gt
            | Function::Ge
                if kind == Kind::F32 =>
            {
                format!("{}_{of}({all})", self.name())
            }
            Function::Eq => format!("{a} == {b}"),
            // True for NaN, which `!=` need not be.
            Function::Ne => format!("!({a} == {b})"),
            Function::Lt => format!("{a} < {b}"),
            Function::Le => format!("{a} <= {b}"),
            Function::Gt => format!("{a} > {b}"),
            Function::Ge => format!("{a} >= {b}"),
            Function::And | Function::BitAnd => format!("{a} & {b}"),
            Function::Or | Function::BitOr => format!("{a} | {b}"),
            Function::BitXor => format!("{a} ^ {b}"),
            Function::BitNot => format!("~{a}"),
            Function::Xor => format!("{a} != {b}"),
            Function::Not => format!("!{a}"),
            Function::Select => format!("select({}, {b}, {a})", operands[2]),
            _ => format!("{}_{of}({all})", self.name()),
        }
    }
}

/// The code of a conversion, on a value of one dtype.
pub(super) fn cast_code(from: DType, to: DType, value: &str) -> String {
    let (kind_from, kind_to) = (Kind::of(from), Kind::of(to));
    let (f, t) = (kind_from.alias(), kind_to.alias());
    match (kind_from, kind_to) {
        // Rounded where it goes on as f32.
        (Kind::F32, Kind::F32) if to != DType::F32 => {
            format!("rounded_{}({value})", to.name())
        }
        // So that only the narrow type rounds.
        (Kind::I32 | Kind::U32, Kind::F32) if to == DType::BF16 => {
            format!("rounded_bf16(odd_{f}({value}))")
        }
        (Kind::F64, Kind::F32) if to != DType::F32 => {
            format!("rounded_{}(odd_D({value}))", to.name())
        }
        (Kind::I32, Kind::F32) if to == DType::F16 => format!("rounded_f16(F({value}))"),
        (Kind::U32, Kind::F32) if to == DType::F16 => {
            format!("rounded_f16(f32_of_U({value}))")
        }
        (Kind::U32, Kind::F32) => format!("f32_of_U({value})"),
        (from, to) if from == to => value.to_owned(),
        (Kind::Bool, to) => {
            let one = if to == Kind::U32 { "1u" } else { "1" };
            format!("select({t}(), {t}({one}), {value})")
        }
        // By bits: NaN is not zero.
        (Kind::F32, Kind::Bool) => {
            format!("(bitcast<U>({value}) & U(0x7fffffffu)) != U()")
        }
        (Kind::F64, Kind::Bool) => format!("B_of_D({value})"),
        (_, Kind::Bool) => format!("!({value} == {f}())"),
        // A minimum of bits that changes no number: compilers take what was rounded to f32 for what it was before.
        (Kind::F32, Kind::F64) => {
            format!("D(bitcast<F>(min(bitcast<U>({value}), U(0xfffffffeu))))")
        }
        (Kind::F32 | Kind::F64, Kind::I32 | Kind::U32) => format!("{t}_of_{f}({value})"),
        _ => format!("{t}({value})"),
    }
}
