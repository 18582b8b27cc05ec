//! The flight recorder: what is kept of a recording that goes on for days, and what is written when something happens.
//!
//! Turns records into a trace, the last part of one, a profile or tables; and conditions that come true into recordings.
//! May import `model`, `files`, `trace`, `analysis` and `render`: joining the live and the recorded half is its one concept.
//! Never reads a target, never prints a message: a [`RecordingHost`] is told what happened.
//! Start reading at [`FlightRecorder`]; [`SinkChain`] waits for conditions.

mod calls;
mod error;
mod print;
mod recorder;
mod report;
mod sinks;
mod window;

pub use error::FlightError;
pub use print::{OomReportPrinter, PrintInterval, TableOutput};
pub use recorder::FlightRecorder;
pub use report::{RingRecording, join_segments, oom_report_path};
pub use sinks::{
    Aggregation, FlightEvent, OnTrigger, RankContext, RecordOutput, RecordingHost, SinkChain,
    TriggerState,
};
