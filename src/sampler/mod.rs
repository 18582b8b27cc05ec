//! The sampler: readers looked at again and again become records in time order.
//!
//! Turns an attached target into [`Record`](crate::model::Record)s on a [`RecordSink`](crate::model::RecordSink).
//! May import `model`, `target`, `python`, `torch`, `gpu`; alone owns threads and sleeping.
//! Never interprets what it sees (that is `analysis`), never stops the target, never prints.
//! Start reading at [`recorder::Recorder`].

pub mod background;
pub mod pace;
pub mod policy;
pub mod sources;

pub use background::BackgroundSink;
pub use sources::WithSources;
