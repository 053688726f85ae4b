//! The native CPU's memory and its parallel loops.

pub(crate) mod arena;
pub(crate) mod parallel;
pub(crate) mod product;

pub(crate) use arena::{HostBlock, HostPool};
