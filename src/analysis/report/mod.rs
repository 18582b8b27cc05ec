//! What a report shows of a recording: its course over time, and the memory of a few hundred key moments as lifetimes of blocks.
//!
//! The records are read three times. [`Profile`](super::Profile) tells the peak and how long the recording is; a
//! [`RecordingSurvey`] the levels over time, and from them which moments are worth keeping; a [`ReportBuilder`] who
//! allocated what lived at these. Start reading at [`BlockSpan`]: every view of every moment and window follows from it.

mod builder;
mod levels;
mod lifetimes;
mod moments;
mod pruning;
mod segment_map;
mod survey;
mod track;

pub use builder::ReportBuilder;
pub use levels::{LevelColumn, LevelHistory};
pub use segment_map::{MappedBlock, MappedSegment, SegmentMap};
pub use survey::{OomMark, RecordingSurvey, SurveyOptions, UsageReading};
pub use track::{BlockSpan, ChurnedBytes, MemoryTrack, ReportMoment, ReportStack};
