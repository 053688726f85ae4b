//! Dtypes that do not go together.

use std::fmt;

use super::Error;
use crate::dtype::DType;

/// Details of [`Error::DTypeMismatch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DTypeMismatch {
    /// The operation.
    pub op: &'static str,
    /// What the first operand is, or what the tensor holds.
    pub left: DType,
    /// What the second operand is, or what was asked for.
    pub right: DType,
    rule: DTypeRule,
}

/// Why dtypes have to go together.
#[derive(Clone, Debug)]
enum DTypeRule {
    /// Operands have one dtype.
    Same,
    /// What the first has to be, where it is an operand like no other.
    Operand(&'static str),
    /// What comes out, and what it is written into.
    Into,
    /// What an input of a program's kernel has to be, by its name.
    Input(Box<str>),
    /// Elements are read as what they are.
    Read,
    /// What a program's kernel has by this name is read as what it is.
    ReadAs(Box<str>),
}

impl std::error::Error for DTypeMismatch {}

impl fmt::Display for DTypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            op,
            left,
            right,
            rule,
        } = self;
        match rule {
            DTypeRule::Same => write!(
                f,
                "{op}: dtypes {left} and {right} differ; convert one of them with \
                 `cast(DType::{right:?})` or `cast(DType::{left:?})`"
            ),
            DTypeRule::Operand(rule) => write!(
                f,
                "{op}: {rule}, not {left}; convert it with `cast(DType::{right:?})`"
            ),
            DTypeRule::Into => write!(
                f,
                "{op}: {right} cannot be written into a tensor of {left}: write into one of {right}, or convert before"
            ),
            DTypeRule::Input(name) => write!(
                f,
                "{op}: the input `{name}` is {left}, the kernel reads {right}; convert it with `cast(DType::{right:?})`"
            ),
            DTypeRule::Read => write!(
                f,
                "{op}: elements are {left}, not {right}: read them as {left} (of a tensor `cast(DType::{right:?})` \
                 makes {right})"
            ),
            DTypeRule::ReadAs(name) => {
                write!(
                    f,
                    "{op}: `{name}` is {left}, not {right}: read it as {left}"
                )
            }
        }
    }
}

impl Error {
    pub(crate) fn dtype_mismatch(op: &'static str, left: DType, right: DType) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left,
            right,
            rule: DTypeRule::Same,
        }))
    }

    /// A result of a dtype that is not the one of what it is written into.
    pub(crate) fn dtype_into(op: &'static str, into: DType, result: DType) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left: into,
            right: result,
            rule: DTypeRule::Into,
        }))
    }

    /// Elements `there` that are `asked` for as others.
    pub(crate) fn read_dtype(op: &'static str, there: DType, asked: DType) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left: there,
            right: asked,
            rule: DTypeRule::Read,
        }))
    }

    /// What a program's kernel has by a name, read as elements or numbers of another dtype.
    pub(crate) fn read_as(op: &'static str, name: &str, there: DType, asked: DType) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left: there,
            right: asked,
            rule: DTypeRule::ReadAs(name.into()),
        }))
    }

    /// An index of another dtype than those that count.
    pub(crate) fn no_index(op: &'static str, dtype: DType) -> Self {
        Self::operand_dtype(op, dtype, DType::I32, "an index is i32 or u32")
    }

    /// An operand of a dtype that is not the one it has to be, whatever the others are.
    pub(crate) fn operand_dtype(
        op: &'static str,
        left: DType,
        right: DType,
        rule: &'static str,
    ) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left,
            right,
            rule: DTypeRule::Operand(rule),
        }))
    }

    /// An input of a program's kernel that is of another dtype than what the kernel reads.
    pub(crate) fn input_dtype(op: &'static str, name: &str, left: DType, right: DType) -> Self {
        Error::DTypeMismatch(Box::new(DTypeMismatch {
            op,
            left,
            right,
            rule: DTypeRule::Input(name.into()),
        }))
    }
}
