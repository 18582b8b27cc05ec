//! Writes records to a file and reads the same records back. `format.md` specifies the file.
//!
//! Turns records into the bytes of a file, and back.
//! May import `model` and `files`; only this room uses bincode, zstd and crc32c.
//! Never knows the clock, the target or the meaning of records, and never invents a record.
//! Start reading at [`TraceWriter`] and [`TraceReader`].
#![doc = include_str!("format.md")]

mod block;
mod error;
mod id_map;
mod join;
mod limits;
mod read_ahead;
mod reader;
mod renumberer;
mod ring;
mod sequence;
mod sniff;
mod spending;
mod summary;
mod window;
mod wire;
mod writer;

pub use error::{CreateError, ReadError};
pub use join::{JoinResult, join, segments};
#[expect(
    clippy::module_name_repetitions,
    reason = "imported alone: of a trace, no other file"
)]
pub use reader::TraceReader;
pub use renumberer::{DefinitionTables, Renumberer};
pub use ring::{RecordingRing, Retention, RetentionLimit};
pub use summary::{DamagedPlace, ReplayProgress, ReplaySummary};
pub use wire::v1::encode::RejectedRecord;
#[expect(
    clippy::module_name_repetitions,
    reason = "imported alone: of a trace, no other file"
)]
pub use writer::TraceWriter;
pub use writer::WrittenFile;
