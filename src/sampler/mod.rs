//! The sampler: readers looked at again and again become records in time order.
//!
//! Turns an attached target into [`Record`](crate::model::Record)s on a [`RecordSink`](crate::model::RecordSink).
//! May import `model`, `files`, `target`, `python`, `torch`, `gpu`, `probe`, `holders`; alone owns threads and sleeping.
//! Never interprets what it sees (that is `analysis`), stops the target only to look at holders, changes it only by
//! moving its GPU memory when asked to ([`Mover`]), never prints.
//! Start reading at [`Recorder`].

mod attach;
mod background;
mod device_watch;
mod error_thread;
mod exact;
mod family;
mod gpu_watch;
mod holder_thread;
mod holders;
mod loop_variables;
mod losses;
mod map_thread;
mod move_note;
mod mover;
mod optimizer_counter;
mod order;
mod pace;
mod policy;
mod priority;
mod readers;
mod recorder;
mod session;
mod sources;
mod step_shape;
mod steps;

pub use crate::holders::{HolderError, LookOptions, Pausing};
pub use crate::probe::{Probe, ProbeError};
pub use attach::{attach, attach_when_python};
pub use background::BackgroundSink;
pub use device_watch::{DeviceWatch, MachineLook, TargetLook};
pub use exact::{ExactOutlook, ExactRecorder, ExactWanted};
pub use family::{Family, Member, rank_of};
pub use holders::{HolderLook, TakeLook, look_at_holders, look_at_referrers, watch_holders};
pub use mover::{MoveError, Moved, Mover, Outcome};
pub use readers::{AttachError, Readers, Torch};
pub use recorder::{Progress, Recorder, Wanted};
pub use session::AlsoWanted;
pub use sources::WithSources;
