//! The sampler: readers looked at again and again become records in time order.
//!
//! Turns an attached target into [`Record`](crate::model::Record)s on a [`RecordSink`](crate::model::RecordSink).
//! May import `model`, `files`, `target`, `python`, `torch`, `gpu`, `probe`, `holders`; alone owns threads and sleeping.
//! Never interprets what it sees (that is `analysis`), stops the target only to look at owners, changes it only by
//! moving its GPU memory when asked to ([`Checkpointer`]), never prints.
//! Start reading at [`Recorder`].

mod attach;
mod background;
mod device_watch;
mod error_thread;
mod exact;
mod process_tree;
mod gpu_watch;
mod owner_thread;
mod owners;
mod loop_variables;
mod losses;
mod snapshot_thread;
mod pause_file;
mod checkpointer;
mod optimizer_counter;
mod reorder_buffer;
mod ticker;
mod snapshot_policy;
mod priority;
mod readers;
mod recorder;
mod session;
mod source_embedder;
mod step_shape;
mod steps;

pub use crate::holders::{OwnerError, LookOptions, StopPolicy};
pub use crate::probe::{AttachedProbes, ProbeError};
pub use attach::{attach, attach_when_python};
pub use background::BackgroundSink;
pub use device_watch::{DevicePoll, MachineReading, TargetReading};
pub use exact::{ExactAvailability, ExactRecorder, ExactOptions};
pub use process_tree::{ProcessTree, RankProcess, rank_of};
pub use owners::{OwnerReading, ReadOwners, read_owners, read_referrers, watch_owners};
pub use checkpointer::{SuspendError, CheckpointReport, Checkpointer, JobState};
pub use readers::{AttachError, TargetReaders, TorchState};
pub use recorder::{RecordingProgress, Recorder, RecordOptions};
pub use session::CommonOptions;
pub use source_embedder::SourceEmbedder;
