//! Addresses and offsets shared with the kernel program.
//!
//! Turns what `python` and `torch` find into data for `probe` and `cuda/probe.h`. May import
//! nothing. Never reads a target. Start reading at [`UnwindInfo`].

mod object_header;
mod step_counter;
mod unwind;

pub use object_header::ObjectHeader;
pub use step_counter::{CounterLocation, WatchedFrame, WatchedInteger, WatchedSteps};
pub use unwind::{AutogradInfo, BpfFrame, CounterAddresses, UnwindInfo};
