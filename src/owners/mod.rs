//! Owners of GPU memory: every tensor of a process by name, category and autograd node.
//!
//! Turns the heap of `python` and the objects of `torch` into an
//! [`OwnershipSnapshot`](crate::model::OwnershipSnapshot). May import `model`, `abi`, `ownership`,
//! `target`, `python` and `torch`. Never sleeps: it returns transient errors, and its caller waits.
//! Start reading at [`OwnerReader`]; names come from `names` and `paths`.

mod cpp_references;
mod error;
mod far_paths;
mod garbage;
mod garbage_cycles;
mod names;
mod options;
mod page_choice;
mod paths;
mod reader;
mod referrers;
mod repeats;
mod rows;
mod stopped_for_copy;
mod torch_version;
mod vllm_tags;
mod walk;

pub use error::OwnerError;
pub use options::{AnnounceStop, SnapshotOptions, SnapshotRequest, StopEstimate, StopPolicy};
pub use reader::OwnerReader;
pub use torch_version::torch_version;
pub use vllm_tags::vllm_tags;
