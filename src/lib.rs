//! memspy: what is holding this GPU memory, and which line put it there?
//!
//! `docs/architecture.md` describes the program: the way of one allocation, each room, the
//! invariants, a glossary. `tests/fast/architecture.rs` checks the import order of the rooms.

#![warn(missing_docs, unreachable_pub, clippy::module_name_repetitions)]
// Bad input is a named error, never a panic; only faces print.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

pub mod abi;
pub mod analysis;
pub mod cli;
pub mod files;
pub mod flight;
pub mod gpu;
pub mod model;
pub mod native;
pub mod owners;
pub mod ownership;
pub mod probe;
pub mod python;
pub mod render;
pub mod sampler;
pub mod suspend;
pub mod target;
pub mod torch;
pub mod trace;
pub mod tui;
