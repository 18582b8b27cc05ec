//! Pauses and resumes a job.
//!
//! Turns a process into one without GPU memory, and back, and reports what moved.
//! May import `model`, `files`, `target`, `gpu`. Only this room uses cudarc.
//! Never runs unless requested by name: only this room changes a job.
//! Start reading at [`Checkpointer`].

mod checkpoint_api;
mod checkpointer;
mod host_memory;
mod pause_file;

pub use checkpoint_api::CheckpointError;
pub use checkpointer::{CheckpointReport, Checkpointer, JobState, MoveError};
pub use host_memory::{HostMemory, MemoryLimit};
pub use pause_file::PauseFile;
