//! memspy: what is holding this GPU memory, and which line put it there?
//!
//! The map of the program. The live column (needs the machine) and the recorded column (needs only a
//! trace) meet in [`model::Record`]; only a face and the flight recorder join them. A room imports from lower floors only.
//!
//! | floor | room | turns what into what |
//! |---|---|---|
//! | 0 | [`model`] | the words everyone speaks |
//! | 0 | [`abi`] | what readers of a target and the probes' program agree on |
//! | 0 | [`files`] | a path → a file of memspy's own, safe from other users |
//! | 1 | [`target`] | a pid → safe reads of its memory, mappings, ELF symbols |
//! | 1 | [`trace`] | records ↔ file |
//! | 1 | [`ownership`] | who holds what → sums, names, patterns |
//! | 2 | [`analysis`] | records → answers |
//! | 2 | [`python`] | CPython → thread stacks |
//! | 2 | [`native`] | registers and stacks → frames of C and C++ |
//! | 2 | [`torch`] | libtorch → allocator counters, segments, blocks |
//! | 2 | [`gpu`] | driver → device and per-process totals |
//! | 2 | [`probe`] | uprobes, USDT → allocation events with stacks, losses counted |
//! | 3 | [`render`] | answers → bytes on a `Write` |
//! | 3 | [`owners`] | python + torch → which tensor, name and graph node holds each block |
//! | 3 | [`suspend`] | a job's GPU memory → the host, and back: pause and resume |
//! | 3 | [`sampler`] | readers → records in time order |
//! | 4 | [`flight`] | records → a trace, or the last part of one; conditions → recordings |
//! | 4 | [`tui`] | live profile → terminal |
//! | 5 | [`cli`] | words typed → rooms called |

#![warn(missing_docs, unreachable_pub)]
// Bad input is an error with a name, never a panic; only faces print.
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
