//! The one road that every op takes: infer, place, plan, allocate, record, observe.

mod op;
mod place;
mod run;

pub(crate) use op::{HostInput, HostOutput, Op, Operand, Problem};
pub(crate) use place::move_to;
pub(crate) use run::{create, run, write};
