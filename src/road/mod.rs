//! The one road that every op takes: infer, place, plan, allocate, record, observe.

mod op;
mod place;
mod run;
mod scope;
pub(crate) mod window;

pub(crate) use op::{HostInput, HostOutput, Op, Operand, Problem, check_walk, missing_dtype};
pub(crate) use place::{home, lacks, move_in_turn, move_to, place_new};
pub(crate) use run::{alone, check, create, operand, run, run_at_home, write};
