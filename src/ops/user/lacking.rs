//! Functions that WGSL has for numbers of 64 bits and kernels do not: naga takes them, and what comes out is nobody's.

use std::collections::HashSet;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{Expression, Function, MathFunction, Module, ScalarKind, Statement, TypeInner};

use super::inlined::for_each_statement;

/// The first of them that the entry point comes to, in words.
pub(super) fn function(module: &Module, info: &ModuleInfo) -> Option<String> {
    let entries = module.entry_points.iter().enumerate();
    let mut left: Vec<(&Function, &FunctionInfo)> = entries
        .map(|(at, entry)| (&entry.function, info.get_entry_point(at)))
        .collect();
    let mut seen = HashSet::new();
    while let Some((function, of_function)) = left.pop() {
        if let Some(found) = in_function(module, function, of_function) {
            return Some(found);
        }
        for_each_statement(&function.body, |statement| {
            if let Statement::Call { function, .. } = statement
                && seen.insert(*function)
            {
                left.push((&module.functions[*function], &info[*function]));
            }
        });
    }
    None
}

fn in_function(module: &Module, function: &Function, info: &FunctionInfo) -> Option<String> {
    function.expressions.iter().find_map(|(_, expression)| {
        let Expression::Math { fun, arg, .. } = expression else {
            return None;
        };
        let scalar = match info[*arg].ty.inner_with(&module.types) {
            TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } => scalar,
            _ => return None,
        };
        let dtype = match (scalar.kind, scalar.width) {
            (ScalarKind::Float, 8) if !is_of_doubles(*fun) => "f64",
            (ScalarKind::Sint, 8) if is_of_bits(*fun) => "i64",
            (ScalarKind::Uint, 8) if is_of_bits(*fun) => "u64",
            _ => return None,
        };
        Some(format!("no kernel has {fun:?} of {dtype}"))
    })
}

/// SPIR-V has these of 16 and 32 bits alone (GLSL.std.450): of f64 lavapipe makes numbers of other bits.
fn is_of_doubles(function: MathFunction) -> bool {
    use MathFunction::*;
    !matches!(
        function,
        Sin | Cos
            | Tan
            | Sinh
            | Cosh
            | Tanh
            | Asin
            | Acos
            | Atan
            | Atan2
            | Asinh
            | Acosh
            | Atanh
            | Radians
            | Degrees
            | Exp
            | Exp2
            | Log
            | Log2
            | Pow
    )
}

/// Vulkan has these of 32 bits alone: of others naga 30 panics, or drivers do.
fn is_of_bits(function: MathFunction) -> bool {
    use MathFunction::*;
    matches!(
        function,
        CountTrailingZeros
            | CountLeadingZeros
            | CountOneBits
            | ReverseBits
            | ExtractBits
            | InsertBits
            | FirstTrailingBit
            | FirstLeadingBit
    )
}
