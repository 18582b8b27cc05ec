//! The sampler: readers looked at again and again become records in time order.
//!
//! Turns an attached target into [`Record`](crate::model::Record)s on a [`RecordSink`](crate::model::RecordSink).
//! May import `model`, `target`, `python`, `torch`, `gpu`, `probe`; alone owns threads and sleeping.
//! Never interprets what it sees (that is `analysis`), never stops the target, never prints.
//! Start reading at [`Recorder`].

mod attach;
mod background;
mod exact;
mod gpu_watch;
mod losses;
mod map_thread;
mod order;
mod pace;
mod policy;
mod priority;
mod readers;
mod recorder;
mod session;
mod sources;

pub use crate::probe::{Probe, ProbeError};
pub use attach::{attach, attach_when_python};
pub use background::BackgroundSink;
pub use exact::{ExactOutlook, ExactRecorder, ExactWanted};
pub use readers::{AttachError, Readers, Torch};
pub use recorder::{Progress, Recorder, Wanted};
pub use sources::WithSources;
