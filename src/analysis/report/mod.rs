//! A recording over time: levels, and lifetimes of blocks between key moments.
//!
//! Records are read three times: [`Profile`](super::Profile) finds peak and length,
//! [`RecordingSurvey`] key moments, [`PageBuilder`] live blocks. Start reading at [`BlockSpan`].

mod builder;
mod levels;
mod lifetimes;
mod moments;
mod pruning;
mod segment_map;
mod survey;
mod track;

pub use builder::PageBuilder;
pub use levels::{LevelColumn, LevelHistory};
pub use segment_map::{MappedBlock, MappedSegment, SegmentMap};
pub use survey::{OomMark, RecordingSurvey, SurveyOptions, UsageReading};
pub use track::{BlockSpan, ChurnedBytes, KeyMoment, MemoryTrack, SitePath};
