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

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!(
    "memspy runs on x86-64 Linux only. For another processor it lacks: the registers and the unwinding of native stacks \
     (src/target/registers.rs, src/native), the clock that orders events (src/target/tsc.rs), and the program in the kernel \
     for exact stacks (cuda/probe.bpf.c)"
);

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
