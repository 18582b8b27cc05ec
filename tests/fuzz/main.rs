//! Damaged and forged input for everything that reads what a job or a stranger wrote: no panic, no
//! hang, no memory without end.
//!
//! `cargo test --test fuzz` tries the same few inputs every time. `MEMSPY_FUZZ_SECONDS=3600` goes
//! on with others for that long in each test; `MEMSPY_FUZZ_SEED=N` begins at another input, and
//! with `MEMSPY_FUZZ_CASES=1` it is that one alone.

#![allow(
    unreachable_pub,
    missing_docs,
    clippy::print_stderr,
    reason = "tests have no API, and say what they tried"
)]

#[path = "../analysis_script/mod.rs"]
mod analysis_script;
#[path = "../exact_script/mod.rs"]
mod exact_script;
#[path = "../flight_support/mod.rs"]
mod flight_support;
#[path = "../hostile_support/mod.rs"]
mod hostile_support;
#[path = "../support/mod.rs"]
mod support;
#[path = "../trace_support/mod.rs"]
mod trace_support;

mod campaign;
mod cores;
mod edits;
mod elf;
mod live_damage;
mod memory;
mod source_text;
mod traces;
mod unwinding;
