//! The allocator, the host arena, threads that share work, and nothing else of the library.

#![allow(dead_code, unused_imports, unreachable_pub, unused_macros)]

#[path = "../../src/background.rs"]
mod background;
#[path = "../../src/dtype.rs"]
mod dtype;
#[path = "../../src/error/mod.rs"]
mod error;
#[path = "../../src/faults.rs"]
mod faults;
#[path = "../../src/memory/mod.rs"]
pub mod memory;
#[path = "../../src/promise.rs"]
mod promise;
#[path = "../../src/shape.rs"]
mod shape;
#[path = "../../src/sync/mod.rs"]
mod sync;
#[path = "../../src/turns.rs"]
mod turns;

/// Of the CPU device what holds memory and threads.
#[path = "../../src/cpu"]
mod cpu {
    #[path = "arena/mod.rs"]
    pub mod arena;
    pub mod helpers;
    pub mod pages;
}
