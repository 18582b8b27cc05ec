//! Owners of GPU memory: a process's tensors by name, category and autograd node.
//!
//! Turns Python's heap and PyTorch's objects into an
//! [`OwnershipSnapshot`](crate::model::OwnershipSnapshot). May import `model`, `abi`, `ownership`,
//! `target`, `python` and `torch`. Never sleeps: transient errors are the caller's. Start reading
//! at [`OwnerReader`].

mod allocator_blocks;
mod copy_stop;
mod cpp_memory;
mod cpp_references;
mod error;
mod far_paths;
mod garbage;
mod garbage_cycles;
mod held_memory;
mod jax_arrays;
mod jax_devices;
mod name_lookup;
mod names;
mod options;
mod page_choice;
mod paths;
mod profiler;
mod reader;
mod referrers;
mod repeats;
mod retained;
mod retention_graph;
mod rounds;
mod rows;
mod session;
mod tensor_source;
mod torch_version;
mod untracked_objects;
mod vllm_tags;
mod walk;

pub use error::OwnerError;
pub use jax_arrays::read_jax_arrays;
pub use options::{SnapshotOptions, SnapshotRequest, StopPolicy};
pub use profiler::is_profiled;
pub use reader::OwnerReader;
pub use torch_version::torch_version;
pub use vllm_tags::vllm_tags;
