//! Functions that WGSL has for numbers of 64 bits and kernels do not: naga takes them, and what comes out is nobody's.

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{Expression, Function, MathFunction, Module, ScalarKind, TypeInner};

/// The first of them, in words.
pub(super) fn function(module: &Module, info: &ModuleInfo) -> Option<String> {
    let functions = module.functions.iter();
    let functions = functions.map(|(handle, function)| (function, &info[handle]));
    let entries = module.entry_points.iter().enumerate();
    let entries = entries.map(|(at, entry)| (&entry.function, info.get_entry_point(at)));
    functions
        .chain(entries)
        .find_map(|(function, info)| in_function(module, function, info))
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
