//! What readers of a target agree on with each other and with the program in the kernel: addresses and offsets only.
//!
//! Turns nothing into anything: what `python` and `torch` find, and `probe` and its BPF program (`cuda/probe.h`) use.
//! May import nothing.
//! Never reads a target.
//! Start reading at [`UnwindInfo`].

mod object_header;
mod step_counter;
mod unwind;

pub use object_header::PyObjectHeader;
pub use step_counter::{StepCounterLocation, WatchedFrame, WatchedInteger, WatchedSteps};
pub use unwind::{AutogradInfo, BpfFrame, CounterAddresses, UnwindInfo};
