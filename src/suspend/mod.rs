//! Pausing a job and resuming it: its GPU memory goes to the host and comes back, by the driver's own checkpoints.
//!
//! Turns a process into one that holds no GPU memory, and back, with a report of what moved.
//! May import `model`, `files`, `target`, `gpu`, and alone knows cudarc and the driver's checkpoint calls.
//! Never runs unless asked for by name: it is all of memspy that changes a job.
//! Start reading at [`Checkpointer`].

mod checkpoint_api;
mod checkpointer;
mod host_memory;
mod pause_file;

pub use checkpoint_api::CheckpointError;
pub use checkpointer::{CheckpointReport, Checkpointer, JobState, SuspendError};
pub use host_memory::{HostMemory, MemoryLimit};
pub use pause_file::PauseFile;
