//! Keeps the last part of a recording and writes it when a condition is met.
//!
//! Turns records into a trace, the last part of one, a profile or tables; and conditions into
//! recordings.
//! May import `model`, `files`, `trace`, `analysis` and `render`: it joins both halves.
//! Never reads a target or prints: a [`RecordingHost`] gets events.
//! Start reading at [`RingRecorder`]; [`SinkChain`] waits for conditions.

mod calls;
mod error;
mod print;
mod recorder;
mod report;
mod sinks;
mod window;

pub use error::RingError;
pub use print::{PrintInterval, TableOutput, TablePrinter};
pub use recorder::RingRecorder;
pub use report::{RingRecording, join_segments, oom_report_path};
pub use sinks::{
    Aggregation, HostEvent, OnTrigger, RankContext, RecordOutput, RecordingHost, SinkChain,
    TriggerState,
};
